package drover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/health"
	"github.com/drover-queue/drover/internal/pg"
)

// Snapshot shows the jobs that wait, the supervisors that work, and the problems that need a person. It is for dashboards,
// metrics and probes. Its parts are read one after the other, so they may be a moment apart. If a part could not be read, its
// fields are zero, and NotSeen names it.
type Snapshot struct {
	At          time.Time        `json:"at"`          // when the snapshot was taken, by the server's clock
	Level       Level            `json:"level"`       // the worst level of Findings; LevelOK if there are none
	Findings    []Finding        `json:"findings"`    // everything that needs a person, worst first
	Queues      []QueueDepth     `json:"queues"`      // sorted by name, at most 1,000
	Pauses      []PauseInfo      `json:"pauses"`      // the scopes that are paused, sorted by name, at most 1,000
	Suspects    int64            `json:"suspects"`    // jobs in Queues that have not ended, and whose process died in an earlier run
	SetAside    int64            `json:"set_aside"`   // jobs in the table drover_set_aside: the database refuses to read or to change them
	Quarantined []QuarantinedJob `json:"quarantined"` // the newest dead letters with ReasonCrashed, at most 10
	Redrives    []Redrive        `json:"redrives"`    // redrives in progress, at most 100, oldest first
	Supervisors SupervisorCounts `json:"supervisors"` // the supervisors of all processes
	NotSeen     []NotSeen        `json:"not_seen"`    // the parts that could not be read
}

// Level is how urgent a finding is.
type Level string

// The levels of findings.
const (
	LevelOK       Level = "ok"
	LevelWarning  Level = "warning"  // look at it today
	LevelCritical Level = "critical" // look at it now
)

// Finding is something that needs a person.
type Finding struct {
	Level Level  `json:"level"` // LevelWarning or LevelCritical
	Name  string `json:"name"`  // such as vacuum_held, claim_lag or supervisors: docs/health.md has all
	What  string `json:"what"`
	Why   string `json:"why,omitempty"` // why it matters
	Do    string `json:"do,omitempty"`  // a remedy: SQL, one statement a line, or a command; drover never runs it
}

// QueueDepth counts the jobs of one queue. A queue is listed while it has a job that has not ended, a dead letter, or a
// supervisor.
type QueueDepth struct {
	Queue     string          `json:"queue"`
	Jobs      map[State]int64 `json:"jobs"`                 // jobs by state, without Completed and Cancelled, which Client.Counts has
	Estimated bool            `json:"estimated,omitempty"`  // some of Jobs are estimates from a sample: the queue has over 200 unfinished jobs, or over 200 dead letters
	Due       int64           `json:"due"`                  // the jobs among Jobs that are due and wait for a claim, paused jobs included
	Paused    bool            `json:"paused,omitempty"`     // no job of the queue starts, because the queue is paused, or all jobs are
	OldestDue *time.Time      `json:"oldest_due,omitempty"` // when the job that has waited longest for a claim became due; nil if none is due. Paused jobs do not count. While a kind is paused, only the first 1,000 due jobs of each lane are looked at
}

// QuarantinedJob is a dead letter that was discarded because processes died while it ran.
type QuarantinedJob struct {
	ID    string    `json:"id"`
	Queue string    `json:"queue"`
	Kind  string    `json:"kind"`
	At    time.Time `json:"at"` // when it was discarded
}

// SupervisorCounts counts supervisors, and the jobs that they run.
type SupervisorCounts struct {
	Alive    int `json:"alive"`
	Draining int `json:"draining"` // finish their jobs and claim no more
	Silent   int `json:"silent"`   // have sent no heartbeat for a lease
	Lost     int `json:"lost"`     // declared dead; other supervisors rescue their jobs

	// InFlight counts the jobs that ran in the supervisors that are alive or draining, at their last heartbeats. Unlike the
	// running jobs of a QueueDepth, it is never estimated.
	InFlight int `json:"in_flight"`
}

// NotSeen is a part of a Snapshot that could not be read, or only partly.
type NotSeen struct {
	Part string `json:"part"` // depths (Queues and Suspects), pauses, quarantined, redrives, supervisors, set_aside, or a part that only Findings uses
	Why  string `json:"why"`
}

const (
	snapshotQueues   = 1000
	snapshotJobs     = 200 // how many unfinished jobs, and how many dead letters, are counted in each queue
	snapshotFew      = 15  // how many of them are counted if the sample is enough to estimate them
	snapshotSample   = 200 // how many pages of the table are in the sample from which larger numbers are estimated
	snapshotRedrives = 100
	snapshotHeld     = 1000 // while a kind is paused: how many jobs of each lane are searched for the oldest job that is not paused
)

// Snapshot reads the state of the whole queue. It changes nothing. It counts a bounded number of jobs in each queue, by
// index. It takes about 4 s at most, and waits 0.3 s at most for a lock. NotSeen lists the parts that it could not read
// in this time, the parts that the role may not read, and on a standby the parts that only the primary knows; Snapshot
// returns no error then. The role needs select on drover's tables. To read retry budgets, call RetryBudgets. Errors:
// ErrNotMigrated.
func (c *Client) Snapshot(ctx context.Context) (*Snapshot, error) {
	s := &Snapshot{Findings: []Finding{}, Queues: []QueueDepth{}, Pauses: []PauseInfo{}, Quarantined: []QuarantinedJob{}, Redrives: []Redrive{}, NotSeen: []NotSeen{}}
	h := health.New()
	err := h.Brief(ctx, c.desk.pool,
		health.Part{Name: "depths", Read: s.readDepth(&h.Claim), SQL: sqlDepths, Args: []any{snapshotJobs, snapshotQueues + 1, snapshotHeld, snapshotSample, snapshotFew}, Plan: sqlDepthsPlan},
		health.Part{Name: "pauses", Read: pg.Into(&s.Pauses, readPause), SQL: sqlPauses, Args: []any{mostPauses}},
		health.Part{Name: "quarantined", Read: pg.Into(&s.Quarantined, pgx.RowToStructByPos[QuarantinedJob]), SQL: sqlQuarantined},
		health.Part{Name: "redrives", Read: pg.Into(&s.Redrives, scanRedrive), SQL: sqlOpenRedrives, Args: []any{snapshotRedrives}})
	if err != nil {
		return nil, fmt.Errorf("take a snapshot: %w", err)
	}
	s.take(h)
	return s, nil
}

// take copies the results of the health report into the snapshot.
func (s *Snapshot) take(h *health.Report) {
	s.At, s.Level, s.SetAside = h.At, Level(h.Level), h.SetAside.Rows
	s.Supervisors = SupervisorCounts(h.Supervisors)
	for _, f := range h.Findings {
		if f.Level != health.LevelOK {
			s.Findings = append(s.Findings, Finding{Level(f.Level), f.Name, f.What, f.Why, f.Do})
		}
	}
	for _, n := range h.NotSeen {
		s.NotSeen = append(s.NotSeen, NotSeen{n.Part, n.Why})
		switch n.Part { // the part failed: drop the rows that were read before the error
		case "depths":
			s.Queues, s.Suspects = []QueueDepth{}, 0
		case "pauses":
			s.Pauses = []PauseInfo{}
		case "quarantined":
			s.Quarantined = []QuarantinedJob{}
		case "redrives":
			s.Redrives = []Redrive{}
		}
	}
	if len(s.Quarantined) > 0 {
		s.Findings = append(s.Findings, Finding{
			LevelWarning, "quarantined", "jobs are quarantined: their processes died while they ran", "they run again only if somebody redrives them", "drover jobs list --reason crashed",
		})
		if s.Level == LevelOK {
			s.Level = LevelWarning
		}
	}
	if len(s.Queues) > snapshotQueues {
		s.Queues = slices.Delete(s.Queues, snapshotQueues, len(s.Queues))
		s.NotSeen = append(s.NotSeen, NotSeen{"depths", fmt.Sprintf("there are more than %d queues, these are the first", snapshotQueues)})
	}
}

// sqlDepths counts the jobs of the first $2 queues. jobs_claim_idx leads from each lane to the next one, and gives the
// first job of each lane. jobs_discarded_groups_idx gives the queues with dead letters. Each scan is in the order of its
// index, so the scan ends at its limit. With old statistics, a plan with min(), a bitmap or a sort would read all dead
// letters; sqlDepthsPlan forbids bitmaps and sorts.
//
// In each queue it counts up to $5 dead letters and up to $5 unfinished jobs, beginning with suspects and retries,
// which have the highest lanes. If a queue has more jobs, a sample of about $4 pages of the table estimates how many.
// The sample has the same pages each time, so that an estimate does not jump. The sample is enough for a queue if jobs
// of the queue in one state are on at least 20 of the sample's pages, and if these stand for at least four times $1
// pages of the table. The chance that this happens for a queue with less than $1 jobs is one in ten million. If the
// sample is not enough, the query counts the jobs, and ends when there are more than $1.
//
// The oldest due job is, in one of the lanes, the first job that is not running. A paused queue has no oldest due job.
// Without the offset 0, the search behind running jobs would be done twice. While a kind is paused, the query searches
// the first $3 jobs of each lane for the oldest due job of another kind.
//
// The last three columns are for the findings: how many supervisors serve the queue, how many pages it took to find the
// first jobs of all lanes, and how many it takes at most if no dead or running jobs are in the way. A claim without a
// floor reads as many. sqlDepthsPlan keeps the server's count of pages from before, and the query subtracts it.
const (
	// sqlUnfinished counts the unfinished jobs of a queue (the column name), up to a limit (the column most): the jobs
	// of each state, the due jobs, and all jobs (n).
	sqlUnfinished = `(
	select coalesce(jsonb_object_agg(state, n), '{}') || jsonb_build_object('due', coalesce(sum(due), 0), 'n', coalesce(sum(n), 0)) from (
		select state, count(*) as n, count(*) filter (where state not in ('running', 'parked') and scheduled_at <= now()) as due from (
			select j.* from unnest(lanes, dues, ids) as first(lane, due, id) cross join lateral (
				select state, scheduled_at from jobs where finalized_at is null and queue = name and lane = first.lane and (scheduled_at, id) >= (first.due, first.id)
				order by scheduled_at desc, id desc limit most
			) j limit most
		) j group by state
	) s)`
	// sqlDead counts the dead letters of the same queue, up to the same limit.
	sqlDead       = `(select count(*) from (select from jobs where discard_reason is not null and queue = name order by kind limit most) j)`
	sqlDepthsPlan = `select set_config('enable_sort', 'off', true), set_config('enable_bitmapscan', 'off', true),
	set_config('drover.fetched', (` + sqlFetched + `)::text, true)`
	// sqlFetched is how many pages of the table jobs and of jobs_claim_idx this transaction has read.
	sqlFetched = `pg_stat_get_xact_blocks_fetched('jobs'::regclass) + pg_stat_get_xact_blocks_fetched(` + health.ClaimIndex + `)`
	sqlDepths  = `
with recursive lanes(queue, lane, at, id, state, queues) as (
	(select queue, lane, scheduled_at, id, state, 1 from jobs where finalized_at is null order by queue, lane, scheduled_at, id limit 1)
	union all
	select n.*, l.queues + (n.queue <> l.queue)::int from lanes l cross join lateral (
		select j.queue, j.lane, j.scheduled_at, j.id, j.state from jobs j where j.finalized_at is null and (j.queue, j.lane) > (l.queue, l.lane)
		order by j.queue, j.lane, j.scheduled_at, j.id limit 1
	) n where l.queues <= $2
), waiting as materialized (
	select queue, array_agg(lane order by lane desc) as lanes, array_agg(due order by lane desc) as dues, array_agg(id order by lane desc) as ids, case when min(at) <= now() then min(at) end as first from (
		select l.queue, l.lane, l.at as due, l.id, case when l.state <> 'running' then l.at else (
			select j.scheduled_at from jobs j
			where j.finalized_at is null and j.state <> 'running' and j.queue = l.queue and j.lane = l.lane and (j.scheduled_at, j.id) > (l.at, l.id)
			order by j.scheduled_at, j.id limit 1
		) end as at from lanes l offset 0
	) l group by queue
), cost as materialized (
	select ` + sqlFetched + ` - current_setting('drover.fetched')::bigint as pages, coalesce(10 * sum(cardinality(lanes)), 0) as usual from waiting
), dead(queue) as (
	(select queue from jobs where discard_reason is not null order by queue limit 1)
	union all
	select n.queue from dead d cross join lateral (
		select j.queue from jobs j where j.discard_reason is not null and j.queue > d.queue order by j.queue limit 1
	) n
), named as (
	select queue as name from waiting union (select queue from dead limit $2) union select q collate "C" from drover_supervisors s cross join unnest(s.queues) as q
	order by 1 limit $2
), served as materialized (
	select name, exists (select from drover_limits l where l.scope in ('all', 'queue:' || name) and l.held_until > now()) as paused, w.lanes, w.dues, w.ids, w.first,
		(select count(*) from drover_supervisors s where name = any(s.queues) and ` + health.Claiming + `) as supervisors, ` + sqlUnfinished + ` as few, ` + sqlDead + ` as few_dead, cost.*
	from cost cross join named left join waiting w on w.queue = name cross join (select $5::int as most) bound
), sampled as materialized (
	select queue, max(pages) filter (where state <> 'discarded') >= greatest(20, 4 * $1 / part) as enough, max(pages) filter (where state = 'discarded') >= greatest(20, 4 * $1 / part) as enough_dead,
		jsonb_object_agg(state, round(n * part)::bigint) || jsonb_build_object('due', round(sum(due * part))::bigint) as jobs
	from (
		select queue, state, part, count(*) as n, count(distinct (j.ctid::text::point)[0]) as pages, count(*) filter (where state not in ('running', 'parked', 'discarded') and scheduled_at <= now()) as due
		from (select greatest(1, pg_relation_size('jobs'::regclass) / current_setting('block_size')::float8 / $4::float8) as part) p
		cross join jobs j tablesample system (least(100, 100 * $4::float8 / greatest(1, (pg_relation_size('jobs'::regclass) / current_setting('block_size')::float8)))) repeatable (1)
		where (finalized_at is null or discard_reason is not null) and (select bool_or($5 in ((few->'n')::int, few_dead)) from served)
		group by queue, state, part
	) j group by queue, part
), counted as materialized (
	select q.name, counts.jobs, suspects.n as suspects, s.enough is true as enough, counts.dead, s.enough_dead is true as enough_dead, coalesce(s.jobs, '{}') as sample, q.paused, q.supervisors, q.pages, q.usual,
		case when q.paused then null when held.kinds = '{}' then q.first else (
			select min(o.at) from unnest(q.lanes, q.dues, q.ids) as l(lane, due, id) cross join lateral (
				select j.scheduled_at as at from (
					select scheduled_at, kind from jobs
					where finalized_at is null and state <> 'running' and queue = q.name and lane = l.lane and scheduled_at <= now() and (scheduled_at, jobs.id) >= (l.due, l.id)
					order by scheduled_at, id limit $3
				) j where j.kind <> all(held.kinds) limit 1
			) o
		) end as due
	from served q
	left join sampled s on s.queue = q.name
	cross join (select array(select substr(scope, 6) from drover_limits where scope like 'kind:%' and held_until > now()) as kinds) held
	cross join lateral (
		select case when s.enough or (few->'n')::int < $5 then few else ` + sqlUnfinished + ` end as jobs, case when s.enough_dead or few_dead < $5 then few_dead else ` + sqlDead + ` end as dead
		from (select $1::int + 1 as most) bound
	) counts
	cross join lateral (
		select count(*) as n from (select from jobs where finalized_at is null and queue = name and lane >= 20 order by lane, scheduled_at, id limit $1) j
	) suspects
)
select name, jobs::text, suspects, enough or (jobs->'n')::int > $1, dead, enough_dead or dead > $1, sample::text, paused, case when due is not null then greatest(due, '0001-01-02+00') end, supervisors, pages, usual
from counted order by name`
)

// readDepth returns a function that reads a row of sqlDepths into the snapshot, and what findings need of it into claim.
func (s *Snapshot) readDepth(claim *health.Claim) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		var q QueueDepth
		var jobs, sample string
		var sampled map[State]int64
		var suspects, dead int64
		var more, moreDead bool // the queue has more jobs, or more dead letters, than were counted
		var supervisors int
		if err := rows.Scan(&q.Queue, &jobs, &suspects, &more, &dead, &moreDead, &sample, &q.Paused, &q.OldestDue, &supervisors, &claim.FullBuffers, &claim.FloorBuffers); err != nil {
			return err
		}
		if err := errors.Join(json.Unmarshal([]byte(jobs), &q.Jobs), json.Unmarshal([]byte(sample), &sampled)); err != nil {
			return err
		}
		q.count(sampled, dead, more, moreDead)
		if q.OldestDue != nil {
			claim.Queues = append(claim.Queues, health.Queue{Queue: q.Queue, OldestDue: q.OldestDue, OldestOpen: q.OldestDue, Supervisors: supervisors})
		}
		if s.Queues = append(s.Queues, q); len(s.Queues) <= snapshotQueues { // the method take drops the queues beyond snapshotQueues
			s.Suspects += suspects
		}
		return nil
	}
}

// count completes the numbers of jobs of each state, which sqlDepths has counted up to a bound, from the sample.
func (q *QueueDepth) count(sampled map[State]int64, dead int64, more, moreDead bool) {
	const due, all = "due", "n" // keys next to the states
	q.Due = q.Jobs[due]
	if more {
		q.Due = max(q.Due, sampled[due])
	}
	if q.OldestDue != nil {
		q.Due = max(q.Due, 1) // the sample may have missed all due jobs
	}
	delete(q.Jobs, due)
	delete(q.Jobs, all)
	delete(sampled, due)
	if dead > 0 {
		q.Jobs[Discarded] = dead
	}
	q.Estimated = more || moreDead
	for state, n := range sampled {
		if state == Discarded && moreDead || state != Discarded && more {
			q.Jobs[state] = max(q.Jobs[state], n)
		}
	}
}

const sqlQuarantined = `select id, queue, kind, least(greatest(finalized_at, '0001-01-02+00'), '9999-12-30+00') from drover_newest_dead('crashed', 10)`

// sqlOpenRedrives reads the redrives in progress by redrives_unfinished_idx. An aborted redrive stays unfinished until
// supervisors have released its jobs.
const sqlOpenRedrives = sqlRedrives + `where finished_at is null and state <> 'aborted' order by id limit $1`

// QueueActivity counts the runs of a queue, minute by minute.
type QueueActivity struct {
	Queue   string           `json:"queue"`
	Minutes []ActivityMinute `json:"minutes"` // every minute of the hour, oldest first
}

// ActivityMinute is one minute of QueueActivity. Supervisors count over a minute that begins at any second, and their
// counts are spread evenly over the two minutes of the clock that they touch. So the counts are not whole numbers.
type ActivityMinute struct {
	At        time.Time `json:"at"`        // when the minute begins, by the server's clock
	Started   float64   `json:"started"`   // runs that started
	WaitMS    float64   `json:"wait_ms"`   // how long the jobs of Started had been due, on average, in milliseconds
	Completed float64   `json:"completed"` // runs that completed their jobs
	Failed    float64   `json:"failed"`    // runs whose jobs are retried or parked
	Discarded float64   `json:"discarded"` // runs whose jobs were discarded, and jobs that expired

	// Due is how many jobs were due and did not run, and Retrying how many waited for a retry. Both are sampled at one
	// moment of the minute, or of the minute before if this one has no sample, and count at most 10,000. Nil means that
	// there is no sample, because the queue was paused, or no supervisor served it.
	Due      *int64 `json:"due,omitempty"`
	Retrying *int64 `json:"retrying,omitempty"`
}

// Activity returns how many jobs ran in the last hour, and how many waited, in the named queues, or in all queues if
// none is named. It returns at most 1,000 queues, sorted by name. A queue in which nothing ran and that no supervisor
// served is left out. The hour ends one to two minutes ago, because each supervisor writes its counts once a minute.
// The counts of the last minute of a process that died are missing. Activity reads a row for each supervisor, queue and
// minute, and no jobs. Errors: ErrNotMigrated.
func (c *Client) Activity(ctx context.Context, queues ...string) ([]QueueActivity, error) {
	type minute struct {
		Queue string
		ActivityMinute
	}
	rows, err := pg.ReadAll(ctx, c.desk.pool, func(row pgx.CollectableRow) (m minute, err error) {
		return m, row.Scan(&m.Queue, &m.At, &m.Started, &m.WaitMS, &m.Completed, &m.Failed, &m.Discarded, &m.Due, &m.Retrying)
	}, sqlActivity, queues, snapshotQueues)
	if err != nil {
		return nil, fmt.Errorf("read how many jobs ran: %w", err)
	}
	all := []QueueActivity{}
	for _, m := range rows {
		if len(all) == 0 || all[len(all)-1].Queue != m.Queue {
			all = append(all, QueueActivity{Queue: m.Queue})
		}
		q := &all[len(all)-1]
		q.Minutes = append(q.Minutes, m.ActivityMinute)
	}
	return all, nil
}

// sqlActivity spreads each row of drover_activity over the minutes that the row touches. Minutes are numbered since
// 1970. A usual row touches two minutes: its sums are split where the later minute begins. The primary key finds the
// rows.
const sqlActivity = `
with hour as (
	select floor(date_part('epoch', now()) / 60)::int - 61 as first, floor(date_part('epoch', now()) / 60)::int - 2 as last
), noted as not materialized (
	select a.*, date_part('epoch', a.at) as until from drover_activity a
	where a.at > (select to_timestamp((first - 1) * 60) from hour) and (cardinality($1::text[]) is null or cardinality($1::text[]) = 0 or a.queue = any($1))
), usual as (
	select queue, ended, sum(started) as started, sum(waited) as waited, sum(completed) as completed, sum(failed) as failed, sum(discarded) as discarded,
		sum(started * late) as started_late, sum(waited * late) as waited_late, sum(completed * late) as completed_late, sum(failed * late) as failed_late, sum(discarded * late) as discarded_late
	from noted cross join lateral (select floor(until / 60)::int as ended) e cross join lateral (select least((until - ended * 60) / seconds, 1) as late) l
	where seconds <= 90 group by queue, ended
), spread as (
	select queue, ended as minute, started_late as started, waited_late as waited, completed_late as completed, failed_late as failed, discarded_late as discarded from usual
	union all
	select queue, ended - 1, started - started_late, waited - waited_late, completed - completed_late, failed - failed_late, discarded - discarded_late from usual
	union all
	select queue, minute, started * part, waited * part, completed * part, failed * part, discarded * part from noted
	cross join lateral generate_series(floor((until - seconds) / 60)::int, floor(until / 60)::int) as minute
	cross join lateral (select (least(until, minute * 60 + 60) - greatest(until - seconds, minute * 60)) / seconds as part) p
	where seconds > 90
), counted as materialized (
	select queue, minute, sum(started) as started, sum(waited) as waited, sum(completed) as completed, sum(failed) as failed, sum(discarded) as discarded
	from spread where minute between (select first from hour) and (select last from hour) and started + completed + failed + discarded > 0 group by queue, minute
), sampled as materialized (
	select queue, floor(until / 60)::int + late as minute, late, due, retrying from noted cross join generate_series(0, 1) as late where due is not null
), named as (
	select queue from counted union select queue from sampled where minute between (select first from hour) and (select last from hour) order by queue limit $2
)
select n.queue, to_timestamp(minute * 60), coalesce(round(c.started::numeric, 3), 0)::float8, coalesce(round((c.waited / nullif(c.started, 0) * 1000)::numeric, 3), 0)::float8,
	coalesce(round(c.completed::numeric, 3), 0)::float8, coalesce(round(c.failed::numeric, 3), 0)::float8, coalesce(round(c.discarded::numeric, 3), 0)::float8, d.due, d.retrying
from hour cross join named n cross join lateral generate_series(first, last) as minute
left join counted c using (queue, minute)
left join (select distinct on (queue, minute) queue, minute, due, retrying from sampled order by queue, minute, late) d using (queue, minute)
order by n.queue, minute`

// SupervisorState shows whether a supervisor works.
type SupervisorState string

// The states of a supervisor.
const (
	SupervisorAlive    SupervisorState = "alive"
	SupervisorDraining SupervisorState = "draining" // finishes its jobs and claims no more
	SupervisorSilent   SupervisorState = "silent"   // has sent no heartbeat for a lease
	SupervisorLost     SupervisorState = "lost"     // declared dead; other supervisors rescue its jobs
)

// SupervisorInfo is a supervisor of any process, as its row in the database shows it.
type SupervisorInfo struct {
	ID       string          `json:"id"`
	Host     string          `json:"host"`
	PID      int             `json:"pid"`
	Build    string          `json:"build,omitempty"` // SupervisorConfig.Build
	Queues   []string        `json:"queues"`
	State    SupervisorState `json:"state"`
	BeatAt   time.Time       `json:"beat_at"`   // when it last sent a heartbeat, by the server's clock
	InFlight int             `json:"in_flight"` // jobs that ran at the last heartbeat
	Slots    int64           `json:"slots"`     // how many jobs can run at the same time, in all of Queues
	LeaseMS  int64           `json:"lease_ms"`  // SupervisorConfig.Lease, in milliseconds

	QueueSlots map[string]int64 `json:"queue_slots"` // how many jobs of each queue can run at the same time
}

// Supervisors lists the supervisors that have not stopped, the oldest first: at most 1,000. It reads no jobs.
func (c *Client) Supervisors(ctx context.Context) ([]SupervisorInfo, error) {
	list, err := pg.ReadAll(ctx, c.desk.pool, pgx.RowToStructByPos[SupervisorInfo], sqlSupervisors, nil, mostSupervisors)
	return list, doing(err, "list supervisors")
}

const mostSupervisors = 1000

// sqlSupervisors reads a table with a row for each supervisor; $1 is the id of the only supervisor to read, or null.
const sqlSupervisors = `
select id, host, pid, build, queues,
	case when lost_at is not null then 'lost'
		when beat_at < now() - least(lease_ms, 1000000000000) * interval '1 ms' then 'silent'
		when draining then 'draining' else 'alive' end,
	least(greatest(beat_at, '0001-01-02+00'), '9999-12-30+00'), cardinality(in_flight),
	coalesce((select sum(least(greatest(value::numeric, 0), 1e6)) from jsonb_each_text(slots) where value ~ '^[0-9]{1,9}$'), 0)::bigint, lease_ms,
	coalesce((select jsonb_object_agg(key, least(value::bigint, 1000000)) from jsonb_each_text(slots) where value ~ '^[0-9]{1,9}$'), '{}')
from drover_supervisors where $1::text is null or id = $1 order by started_at, id limit $2`
