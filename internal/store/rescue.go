package store

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/drover-queue/drover/internal/blame"
	"github.com/drover-queue/drover/internal/floors"
	"github.com/drover-queue/drover/internal/pg"
)

// SQLScan looks for running jobs of supervisor $1 on the next page of each lane. A page is the $6 rows after the key
// ($4, $5). If $1 is empty, it looks for running jobs whose owner has no row in drover_supervisors. It returns these
// jobs with the policies that apply to them. If a page is full, it also returns the last row of the page.
//
// No index has claimed_by, so SQLScan reads jobs_claim_idx. It reads up to jobs that are due a minute from now, or to
// the end if $7 is true. The due time of a running job may be after now, because the server's clock may have gone back.
// SQLScan reads by pages. With a million due jobs, a search in one statement could run out of time, and would begin
// from the start in each try. SQLScan leaves out jobs that were set aside on one of the paths $9, until it is time for
// another try.
//
// Somebody may have changed rows by hand. So SQLScan computes nothing with infinite times or with numbers beyond its
// types, because that could fail. Values that are stored outside of a row may be damaged. If $8 is true, SQLScan does
// not read these values.
const SQLScan = `
select j.id, j.queue, j.lane, j.scheduled_at, j.n = $6 as last, j.held, coalesce(j.claimed_by, ''),
	j.kind, j.attempt, j.claim_seq, j.attempted_at, j.crashes, j.last_delay_ms,
	coalesce(j.max_attempts, k.max_attempts, q.max_attempts, 20), case when j.held and not $8 then j.retry::text end, coalesce(k.retry, q.retry)::text,
	case when $8 then false else
		(j.id in (select f from drover_supervisors o cross join lateral unnest(o.in_flight) as f where o.id = $1 and f is not null)) is true end,
	coalesce(case when not $8 and jsonb_typeof(s.slots->j.queue) = 'number' then least(greatest((s.slots->j.queue)::numeric, 0), 1e6)::int end, 0),
	coalesce(coalesce(s.host, e.host) || ', process ' || coalesce(s.pid, e.pid), ''), coalesce(j.started_seq = j.claim_seq, false), coalesce(j.deaths, 0), j.redrives,
	case when isfinite(coalesce(s.beat_at, e.ended_at)) and isfinite(j.attempted_at)
		then greatest(extract(epoch from coalesce(s.beat_at, e.ended_at) - j.attempted_at), 0) else 0 end::float8
		+ least(coalesce(s.lease_ms, 0), 1e12) / 12e3, -- coalesce is inside, because least ignores a null
	case when j.held and j.crashes > 0 and not $8 then (
		select jsonb_agg(jsonb_build_object('supervisor', left(e->>'supervisor', 100), 'duration_ms',
			case when jsonb_typeof(e->'duration_ms') = 'number' then least(greatest((e->'duration_ms')::numeric, 0), 1e10)::bigint else 0 end))
		from jsonb_array_elements(case when jsonb_typeof(j.errors) = 'array' then j.errors else '[]' end) as e where e->>'class' = 'crash' and not e ? 'spared') end
from unnest($2::text[], $3::smallint[], $4::timestamptz[], $5::text[]) as l(queue, lane, from_at, from_id)
cross join lateral (
	select *, state = 'running' and case when $1 = ''
			then not exists (select from drover_supervisors o where o.id = claimed_by) else claimed_by = $1 end
			and (id in (select a.job from drover_set_aside a where a.path = any($9) and a.retry_at > now())) is not true as held
	from (
		select *, row_number() over (order by scheduled_at, id) as n from (
			select id, queue, lane, scheduled_at, state, claimed_by, kind, attempt, claim_seq, crashes, last_delay_ms, max_attempts, retry,
				started_seq, deaths, redrives, attempted_at, errors from jobs
			where finalized_at is null and queue = l.queue and lane = l.lane and (scheduled_at, id) > (l.from_at, l.from_id)
				and scheduled_at <= case when $7 then 'infinity' else now() + interval '1 minute' end
			order by scheduled_at, id limit $6
		) page
	) numbered
) j
left join drover_kinds k on k.kind = j.kind
left join queues q on q.name = j.queue
left join drover_supervisors s on s.id = j.claimed_by
left join drover_ended_supervisors e on e.id = j.claimed_by
where j.held or j.n = $6`

// Scan is a search for running jobs, in pages. It goes on where the last page ended.
type Scan struct {
	Owner  string        // the supervisor that has claimed the jobs; empty: all owners without a row in drover_supervisors
	All    bool          // search also among jobs that are not due
	Own    bool          // the owner itself searches for its jobs, and not a rescuer
	Lanes  []ScanLane    // the lanes that the scan has not read to their end
	Page   int           // how many rows of a lane the scan reads at a time
	Bound  time.Duration // how long each statement may take; zero: only the session's own bound
	Found  []Held
	Unread []unreadLane // the lanes that the scan has skipped because it could not read them

	// Only a rescue uses the fields below: which jobs had started, the evidence about the death, and how many jobs the
	// rescuer frees at a time.
	Started map[string]bool
	Death   blame.Death
	Part    int
	Late    int // the number of beats in which the write of at least one job has timed out
}

// ScanLane is a lane, and the place in the lane at which the search goes on. The due time fromAt may be infinite.
type ScanLane struct {
	key    floors.Lane
	fromAt pgtype.Timestamptz
	fromID string
}

// unreadLane is a lane that the database cannot read.
type unreadLane struct {
	Key floors.Lane
	Err error
}

// HuntPage is how many rows of a lane a scan reads at a time, which takes some 20 ms. If a page takes too long, the
// scan goes on with smaller pages, of at least leastHuntPage rows.
const (
	HuntPage      = 20_000
	leastHuntPage = 100
)

// laneFromStart returns a lane that the scan reads from its first row, even if rows have due times before the year 1.
func laneFromStart(key floors.Lane) ScanLane {
	return ScanLane{key: key, fromAt: pgtype.Timestamptz{Valid: true, InfinityModifier: pgtype.NegativeInfinity}}
}

// NewScan returns a search for an owner's running jobs through all lanes of the queues. If the parameter all is true,
// the scan reads each lane to its end, and not only the jobs that are due.
func NewScan(owner string, queues []string, all bool) *Scan {
	h := &Scan{Owner: owner, All: all, Page: HuntPage, Part: MaxSettle}
	for _, queue := range queues {
		for _, tier := range []int16{floors.TierFresh, floors.TierRetry, floors.TierSuspect, floors.TierStrong} {
			for priority := int16(1); priority <= 9; priority++ {
				h.Lanes = append(h.Lanes, laneFromStart(floors.Lane{Queue: queue, N: tier + priority}))
			}
		}
	}
	return h
}

// Ended reports whether the scan has read each lane to its end, or skipped it.
func (h *Scan) Ended() bool { return len(h.Lanes) == 0 }

// Held is a running job that a scan has found. The job's owner is dead, or may not know that it has the job.
type Held struct {
	ID, Queue, Kind string
	Attempt         int
	ClaimSeq        int
	AttemptedAt     pgtype.Timestamptz
	Crashes         int
	LastDelay       time.Duration
	MaxAttempts     int
	Retry           *string // the job's own strategy
	Policy          *string // the strategy of its kind or queue
	InFlight        bool    // its handler was running at the owner's last beat
	Slots           int     // how many slots the owner had for the queue; 0: not known
	Host            string  // host and process of the owner, for people to read
	Owner           string
	StartedSeq      bool          // the owner has recorded a start under this claim
	Flight          time.Duration // from the claim to the assumed death of the owner, which is half a beat after the owner's last beat
	deaths          int
	redrives        int
	Before          []CrashEntry // earlier deaths that count against the job
}

// Unfenced reports whether no settle can match the job, because its attempted_at is no finite time. That happens only
// if somebody has changed the row by hand.
func (j *Held) Unfenced() bool { return j.AttemptedAt.Valid && j.AttemptedAt.Time.IsZero() }

// Once reports whether the job must not run again if its handler may have begun. If a start was recorded, the job had a
// single attempt at that time, and the answer is true even if the settings have changed since.
func (j *Held) Once() bool { return j.StartedSeq || j.MaxAttempts == 1 }

// CrashEntry has the fields that a scan reads from an entry with the class "crash" in the column errors.
type CrashEntry struct {
	Supervisor string `json:"supervisor"`
	DurationMS int64  `json:"duration_ms"`
}

// Scan reads the next page of each lane of h. It returns the jobs that it has found, and adds them to h.Found. It reads
// the other lanes even if it cannot read one of them. If the page of a lane takes too long, the next try reads fewer
// rows, but at least leastHuntPage. After any other failure Scan reads the page again, without the columns that may be
// stored outside of a row. If that fails too, it skips the lane.
func (s Session) Scan(ctx context.Context, h *Scan) ([]Held, error) {
	var held []Held
	var rest []ScanLane
	tried := 0
	read := func(lanes []ScanLane, bare bool) error {
		if err := pg.TimeFor(ctx, h.Bound); err != nil {
			return err
		}
		more, full, err := s.huntLanes(ctx, h, lanes, bare)
		if err != nil {
			return err
		}
		held, rest, tried = append(held, more...), append(rest, full...), tried+len(lanes)
		return nil
	}
	err := pg.Bisect(h.Lanes, func(lanes []ScanLane) error { return read(lanes, false) }, func(lane ScanLane, err error) error {
		if pg.SQLState(err) == "57014" && h.Page > leastHuntPage {
			h.Page = max(h.Page/8, leastHuntPage)
			rest, tried = append(rest, lane), tried+1
			return nil
		}
		again := read([]ScanLane{lane}, true)
		if again != nil && pg.RowsFault(again) {
			h.Unread = append(h.Unread, unreadLane{lane.key, err})
			tried++
			return nil
		}
		return again
	})
	h.Lanes = append(rest, h.Lanes[tried:]...)
	h.Found = append(h.Found, held...)
	return held, err
}

// huntLanes reads the next page of each lane. It returns the jobs that it has found, and the lanes that may have more.
// If the parameter bare is true, it does not read columns that may be stored outside of a row.
func (s Session) huntLanes(ctx context.Context, h *Scan, lanes []ScanLane, bare bool) (held []Held, rest []ScanLane, err error) {
	var queues, fromID []string
	var numbers []int16
	var fromAt []pgtype.Timestamptz
	for _, l := range lanes {
		queues, numbers = append(queues, l.key.Queue), append(numbers, l.key.N)
		fromAt, fromID = append(fromAt, l.fromAt), append(fromID, l.fromID)
	}
	err = s.inTx(ctx, func(p *pipeline) {
		if h.Bound > 0 {
			p.BoundPlan(h.Bound)
		} else {
			p.Exec(nil, pg.OnePlan)
		}
		p.Query(func(rows pgx.Rows) error {
			var j Held
			var at ScanLane
			var last, isHeld bool
			var lastDelayMS *int64
			var flight float64
			var before []byte
			err := rows.Scan(&j.ID, &j.Queue, &at.key.N, &at.fromAt, &last, &isHeld, &j.Owner,
				&j.Kind, &j.Attempt, &j.ClaimSeq, &j.AttemptedAt, &j.Crashes, &lastDelayMS,
				&j.MaxAttempts, &j.Retry, &j.Policy, &j.InFlight, &j.Slots, &j.Host,
				&j.StartedSeq, &j.deaths, &j.redrives, &flight, &before)
			if before != nil && err == nil {
				err = json.Unmarshal(before, &j.Before)
			}
			if err != nil {
				return &pg.RowError{Err: err}
			}
			if lastDelayMS != nil {
				j.LastDelay = pg.Millis(*lastDelayMS)
			}
			j.Flight = pg.Seconds(flight)
			if last {
				at.key.Queue, at.fromID = j.Queue, j.ID
				rest = append(rest, at)
			}
			if isHeld {
				held = append(held, j)
			}
			return nil
		}, SQLScan, h.Owner, queues, numbers, fromAt, fromID, h.Page, h.All, bare, h.asidePaths())
	})
	if err != nil {
		return nil, nil, err
	}
	return held, rest, nil
}

// asidePaths returns the paths of drover_set_aside whose jobs the scan leaves out. A rescuer does not leave out the
// jobs that their owner could not settle.
func (h *Scan) asidePaths() []string {
	if h.Own {
		return []string{PathRescue, PathSettle}
	}
	return []string{PathRescue}
}

// sqlForgive deletes the rows of drover_set_aside on path $1 for jobs that no longer run.
const sqlForgive = `
delete from drover_set_aside a where path = $1 and (select j.state = 'running' from jobs j where j.id = a.job) is not true`

// Forgive takes the jobs that no longer run off the list of jobs that rescues have set aside.
func (s Session) Forgive(ctx context.Context, bound time.Duration) error {
	return s.inTx(ctx, func(p *pipeline) {
		p.BoundPlan(bound)
		p.Exec(nil, sqlForgive, PathRescue)
	})
}

// sqlBlame records against which jobs a death counts. sqlExplain records which job counts as the cause of deaths. Both
// run after the settle in the same transaction, and skip jobs that the settle did not change.
const (
	sqlBlame = `
update drover_ended_supervisors set blamed = blamed || array(select id from jobs where id = any($2) and errors->-1->>'class' = 'crash' and errors->-1->>'supervisor' = $1)
where id = $1`
	sqlExplain = `
update drover_ended_supervisors set explained_by = $2 where id = any($1) and exists (select from jobs where id = $2 and (discard_reason = 'crashed') is true)`
)

// Freeing has the outcomes of jobs of one dead supervisor, and the jobs that get the blame for its death.
type Freeing struct {
	Owner     string
	Changes   []Change
	Blamed    []string            // jobs that the death counts against
	Explained map[string][]string // for each quarantined job: the supervisors whose deaths it has caused
	Bound     time.Duration       // how long each statement may take
}

// Free settles the jobs and records the blame in one transaction. With two transactions, one of them could fail after
// the other has committed. A job would then be blamed that is not settled, or a job would be settled without its blame.
// No rescuer looks at a settled job again. Free returns the new state of each job that it settled.
func (s Session) Free(ctx context.Context, f *Freeing) (settled map[string]State, err error) {
	settled = map[string]State{}
	err = s.inTx(ctx, func(p *pipeline) {
		p.Exec(nil, SQLSettlePlan)
		p.Exec(nil, pg.Bound, f.Bound.Milliseconds())
		p.queueSettle(settled, f.Owner, f.Changes)
		if len(f.Blamed) > 0 {
			p.Exec(nil, sqlBlame, f.Owner, f.Blamed)
		}
		for _, job := range slices.Sorted(maps.Keys(f.Explained)) {
			p.Exec(nil, sqlExplain, f.Explained[job], job)
		}
	})
	return settled, err
}

// DeathsBlamed returns the supervisors whose deaths count against the job. The parameter owner is the job's present
// owner, which is the first of them.
func (j *Held) DeathsBlamed(owner string) []string {
	deaths := []string{owner}
	for _, e := range j.Before {
		deaths = append(deaths, e.Supervisor)
	}
	return deaths
}

// Suspect returns what package blame needs to know about the job. Its Flight is the mean time from a claim of the job
// to the death of the process.
func (j *Held) Suspect() blame.Suspect {
	flight := j.Flight
	for _, e := range j.Before {
		flight = min(flight+pg.Millis(max(e.DurationMS, 0)), pg.MaxSpan)
	}
	return blame.Suspect{
		Crashes: j.Crashes, Deaths: j.deaths, Redrives: j.redrives, Flight: flight / time.Duration(1+len(j.Before)),
	}
}
