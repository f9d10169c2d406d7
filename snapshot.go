package drover

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/health"
)

// Snapshot shows what waits, who works, and what needs a person. It is for dashboards, metrics and probes. Its parts are
// read one after the other, so they may be a moment apart. A part that could not be read is zero here, and NotSeen names it.
type Snapshot struct {
	At          time.Time        `json:"at"`          // by the server's clock
	Level       Level            `json:"level"`       // the worst level of Findings; LevelOK if there are none
	Findings    []Finding        `json:"findings"`    // everything that needs a person, worst first
	Queues      []QueueDepth     `json:"queues"`      // by name, at most 1,000
	Pauses      []PauseInfo      `json:"pauses"`      // the scopes that are paused, in order, at most 1,000
	Suspects    int64            `json:"suspects"`    // jobs in Queues that wait or run after a process died while they ran
	SetAside    int64            `json:"set_aside"`   // jobs in the table drover_set_aside: the database refuses to read or to change them
	Redrives    []Redrive        `json:"redrives"`    // those in progress, at most 100, oldest first
	Supervisors SupervisorCounts `json:"supervisors"` // in all processes
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
	Do    string `json:"do,omitempty"`  // SQL, one statement a line, or a command; drover never runs it
}

// QueueDepth counts the jobs of one queue. A queue is listed while it has a job that has not ended, a dead letter, or a
// supervisor.
type QueueDepth struct {
	Queue     string          `json:"queue"`
	Jobs      map[State]int64 `json:"jobs"`                 // by state, without Completed and Cancelled: Client.Counts has these
	AtLeast   bool            `json:"at_least,omitempty"`   // there may be more: counting stopped at 10,000 jobs that have not ended, or at 10,000 dead letters
	Paused    bool            `json:"paused,omitempty"`     // no job of it starts: the queue is paused, or all jobs are
	OldestDue *time.Time      `json:"oldest_due,omitempty"` // when the job that has waited longest for a claim became due; nil if none is due. Paused jobs do not count
}

// SupervisorCounts counts supervisors.
type SupervisorCounts struct {
	Alive    int `json:"alive"`
	Draining int `json:"draining"` // finish their jobs and claim no more
	Silent   int `json:"silent"`   // no heartbeat for a lease
	Lost     int `json:"lost"`     // others rescue their jobs
}

// NotSeen is a part of a Snapshot that could not be read, or not as a whole.
type NotSeen struct {
	Part string `json:"part"` // depths (Queues and Suspects), pauses, redrives, supervisors, set_aside, or a part that only findings come from
	Why  string `json:"why"`
}

const (
	snapshotQueues   = 1000
	snapshotJobs     = 10_000 // counted in a queue: jobs that have not ended, and dead letters
	snapshotRedrives = 100
	snapshotHeld     = 1000 // jobs of a lane in which a job that is not paused is looked for, while a kind is paused
)

// Snapshot reads the state of the whole queue. It changes nothing. It counts a bounded number of jobs in each queue, by
// index, and each of its parts ends after 2 s at the latest. The role needs select on drover's tables; a part that it may
// not read is in NotSeen, and no error. On a standby, NotSeen also lists the parts that only the primary knows. Retry
// budgets are a read of their own: RetryBudgets. Errors: ErrNotMigrated.
func (c *Client) Snapshot(ctx context.Context) (*Snapshot, error) {
	s := &Snapshot{Findings: []Finding{}, Queues: []QueueDepth{}, Pauses: []PauseInfo{}, Redrives: []Redrive{}, NotSeen: []NotSeen{}}
	h, err := health.Look(ctx, c.desk.pool,
		health.Part{Name: "depths", Read: s.readDepth, SQL: sqlDepths, Args: []any{snapshotJobs, snapshotQueues + 1, snapshotHeld}, Plan: sqlDepthsPlan},
		health.Part{Name: "pauses", Read: s.readPause, SQL: sqlPauses, Args: []any{mostPauses}},
		health.Part{Name: "redrives", Read: s.readRedrive, SQL: sqlOpenRedrives, Args: []any{snapshotRedrives}})
	if err != nil {
		return nil, fmt.Errorf("take a snapshot: %w", err)
	}
	s.take(h)
	return s, nil
}

// take adds what the look at the health has found.
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
		switch n.Part { // rows that came before the error
		case "depths":
			s.Queues, s.Suspects = []QueueDepth{}, 0
		case "pauses":
			s.Pauses = []PauseInfo{}
		case "redrives":
			s.Redrives = []Redrive{}
		}
	}
	if len(s.Queues) > snapshotQueues {
		s.Queues = slices.Delete(s.Queues, snapshotQueues, len(s.Queues))
		s.NotSeen = append(s.NotSeen, NotSeen{"depths", fmt.Sprintf("there are more than %d queues, these are the first", snapshotQueues)})
	}
}

// sqlDepths counts up to $1 unfinished jobs and up to $1 dead letters in each of the first $2 queues. jobs_claim_idx and
// jobs_discarded_groups_idx give the queues and their jobs. Each scan is in the order of its index, so its limit ends it.
// A min(), a bitmap or a sort would read all dead letters if the statistics are from before they came; sqlDepthsPlan
// forbids the last two. The order also counts suspects first, because they have the highest lanes. The oldest due job is
// the first job of a lane. Nothing is late in a paused queue. Only while a kind is paused, the oldest due job of another
// kind is looked for, among the first $3 jobs of each lane.
const (
	sqlDepthsPlan = `select set_config('enable_sort', 'off', true), set_config('enable_bitmapscan', 'off', true)`
	sqlDepths     = `
with recursive held(name) as (
	select least((select queue from jobs where finalized_at is null order by queue limit 1), (select queue from jobs where discard_reason is not null order by queue limit 1))
	union all
	select least((select j.queue from jobs j where j.finalized_at is null and j.queue > h.name order by j.queue limit 1),
		(select j.queue from jobs j where j.discard_reason is not null and j.queue > h.name order by j.queue limit 1))
	from held h where h.name is not null
), named as (
	(select name from held where name is not null limit $2)
	union select q collate "C" from drover_supervisors s cross join unnest(s.queues) as q
	order by 1 limit $2
)
select q.name, unfinished.jobs::text, unfinished.suspects, greatest(unfinished.n, dead.n) >= $1, dead.n, q.paused,
	case when q.paused then null when held.kinds = '{}' then first.due else (
		select case when min(o.at) is not null then greatest(min(o.at), '0001-01-02+00') end
		from generate_series(0, 30, 10) as t(tier) cross join generate_series(1, 9) as p(n)
		cross join lateral (
			select j.scheduled_at as at from (
				select scheduled_at, kind from jobs
				where finalized_at is null and state <> 'running' and queue = q.name and lane = (t.tier + p.n)::smallint and scheduled_at <= now()
				order by scheduled_at, id limit $3
			) j where j.kind <> all(held.kinds) limit 1
		) o
	) end
from (select name, exists (select from drover_limits l where l.scope in ('all', 'queue:' || name) and l.held_until > now()) as paused from named) q
cross join (select array(select substr(scope, 6) from drover_limits where scope like 'kind:%' and held_until > now()) as kinds) held
cross join lateral (
	select coalesce(jsonb_object_agg(state, n), '{}') as jobs, coalesce(sum(n), 0)::bigint as n, coalesce(sum(suspects), 0)::bigint as suspects
	from (
		select state, count(*) as n, count(*) filter (where lane >= 20) as suspects from (
			select state, lane from jobs where finalized_at is null and queue = q.name
			order by lane desc, scheduled_at desc, id desc limit $1
		) j group by state
	) s
) unfinished
cross join lateral (
	select count(*) as n from (select from jobs where discard_reason is not null and queue = q.name order by kind limit $1) j
) dead
cross join lateral (
	select case when min(j.scheduled_at) is not null then greatest(min(j.scheduled_at), '0001-01-02+00') end as due
	from generate_series(0, 30, 10) as t(tier) cross join generate_series(1, 9) as p(n)
	cross join lateral (
		select scheduled_at from jobs
		where finalized_at is null and state <> 'running' and queue = q.name and lane = (t.tier + p.n)::smallint and scheduled_at <= now()
		order by scheduled_at, id limit 1
	) j
) first
order by q.name`
)

func (s *Snapshot) readDepth(rows pgx.Rows) error {
	var q QueueDepth
	var jobs string
	var suspects, dead int64
	if err := rows.Scan(&q.Queue, &jobs, &suspects, &q.AtLeast, &dead, &q.Paused, &q.OldestDue); err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(jobs), &q.Jobs); err != nil {
		return err
	}
	if dead > 0 {
		q.Jobs[Discarded] = dead
	}
	if s.Queues = append(s.Queues, q); len(s.Queues) <= snapshotQueues { // else take cuts the queue off
		s.Suspects += suspects
	}
	return nil
}

func (s *Snapshot) readPause(rows pgx.Rows) error {
	p, err := readPause(rows)
	s.Pauses = append(s.Pauses, p)
	return err
}

// sqlOpenRedrives reads the redrives in progress by redrives_unfinished_idx. An aborted one is there until supervisors have
// let go of its jobs.
const sqlOpenRedrives = sqlRedrives + `where finished_at is null and state <> 'aborted' order by id limit $1`

func (s *Snapshot) readRedrive(rows pgx.Rows) error {
	r, err := scanRedrive(rows)
	s.Redrives = append(s.Redrives, r)
	return err
}
