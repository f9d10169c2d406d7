package store

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/drover-queue/drover/internal/pg"
)

// The keeper runs these statements on its own connection, except Serve, which takes a connection of the pool.

// sqlRegister adds a supervisor.
const sqlRegister = `
insert into drover_supervisors (id, lease_ms, queues, slots, host, pid, build, process, crew)
values ($1, $2, $3, $4, $5, $6, $7, $8, hashtextextended($9::text[]::text, 0))`

// These statements store the policies of queues, kinds and builds in tables, because rescuers, psql and the command
// line may not have the code of this process.
const (
	sqlRegisterQueue = `
insert into queues (name, max_attempts, retry, completed_retention, cancelled_retention, discarded_retention, archive_discarded_after,
	keep_completed, keep_discarded, keep_archived)
values ($1, $2, $3, $4::interval, $5::interval, $6::interval, $7::interval, $8, $9, $10)
on conflict (name) do update set max_attempts = excluded.max_attempts, retry = excluded.retry,
	completed_retention = excluded.completed_retention, cancelled_retention = excluded.cancelled_retention,
	discarded_retention = excluded.discarded_retention, archive_discarded_after = excluded.archive_discarded_after,
	keep_completed = excluded.keep_completed, keep_discarded = excluded.keep_discarded, keep_archived = excluded.keep_archived, updated_at = now()
where (queues.max_attempts, queues.retry, queues.completed_retention, queues.cancelled_retention, queues.discarded_retention, queues.archive_discarded_after,
		queues.keep_completed, queues.keep_discarded, queues.keep_archived)
	is distinct from (excluded.max_attempts, excluded.retry, excluded.completed_retention, excluded.cancelled_retention, excluded.discarded_retention, excluded.archive_discarded_after,
		excluded.keep_completed, excluded.keep_discarded, excluded.keep_archived)`

	sqlRegisterKind = `
insert into drover_kinds (kind, max_attempts, retry, timeout_ms, build, follow_up_kind, follow_up_queue) values ($1, $2, $3, $4, $5, $6, $7)
on conflict (kind) do update set max_attempts = excluded.max_attempts, retry = excluded.retry, timeout_ms = excluded.timeout_ms, build = excluded.build,
	follow_up_kind = excluded.follow_up_kind, follow_up_queue = excluded.follow_up_queue, seen_at = now()`

	// sqlRegisterBuild adds a build that was never seen before. A known build keeps its place in the order, so after a
	// rollback of the application the newest build is still the build that was rolled back.
	sqlRegisterBuild = `
insert into drover_builds (build) select $1 where $1 <> '' on conflict do nothing`
)

// Registration is what a supervisor stores about itself. Scopes, Crews and Taken are results: Register fills them in,
// and ServeOn fills in Scopes and Crews.
type Registration struct {
	ID, Host, Build string
	Process         string // the client's id
	PID             int
	Lease           time.Duration
	Queues          []QueuePolicy
	Kinds           []KindPolicy
	Budgets         []BudgetPolicy
	Scopes          []string // the scopes of all budgets in the database
	Schedules       []SchedulePolicy
	Taken           []string        // names in Schedules that already belong to schedules made at run time
	Listens         bool            // whether the supervisor gets notifications
	Polls           time.Duration   // the longest pause between two looks for jobs
	Crews           map[string]Crew // the supervisor's crew in each of its queues, if it listens
}

// QueuePolicy has the settings that a supervisor has for one of its queues. Nil means that the queue does not set the
// value.
type QueuePolicy struct {
	Name        string
	Slots       int
	MaxAttempts *int
	Retry       *string
	Keep        Retention
}

// Retention is how long a queue keeps ended jobs, as texts of SQL intervals. Archived is the time after which discarded
// jobs go to the archive. If Completed or Cancelled is nil, the setting of the supervisor that prunes applies. If
// Discarded or Archived is nil, no job is deleted or archived for that reason.
type Retention struct {
	Completed, Cancelled, Discarded, Archived  *string
	KeepCompleted, KeepDiscarded, KeepArchived *int // how many of the newest jobs of each kind are kept; nil: all
}

// KindPolicy is a kind's row in drover_kinds. Nil means that the kind does not set the value.
type KindPolicy struct {
	Kind        string
	MaxAttempts *int
	Retry       *string
	TimeoutMS   *int64
	FollowUp    string // the follow-up's kind; "": none
	FollowQueue string
}

// Register adds a supervisor, and stores its schedules and the policies of its queues, kinds and budgets. It fails if
// the schema was renamed (pg.CheckSchema).
func (s Session) Register(ctx context.Context, reg *Registration) error {
	names, slots := reg.slots()
	return s.inTx(ctx, func(p *pipeline) {
		p.Exec(nil, pg.CheckSchema)
		p.Exec(nil, sqlRegister, reg.ID, reg.Lease.Milliseconds(), names, slots, reg.Host, reg.PID, reg.Build, reg.Process, reg.crew())
		p.registerQueues(reg)
		for _, k := range reg.Kinds {
			p.Exec(nil, sqlRegisterKind, k.Kind, k.MaxAttempts, k.Retry, k.TimeoutMS, reg.Build, pg.OrNull(k.FollowUp), pg.OrNull(k.FollowQueue))
		}
		p.Exec(nil, sqlRegisterBuild, reg.Build)
		p.registerBudgets(reg.Budgets, &reg.Scopes)
		p.declarePeriodic(reg.ID, reg.Build, reg.Schedules, &reg.Taken)
		p.readCrews(reg.ID, &reg.Crews)
	})
}

// slots returns the names of the queues, and a JSON object with the number of slots under each name.
func (reg *Registration) slots() (names []string, doc string) {
	slots := make(map[string]int, len(reg.Queues))
	for _, q := range reg.Queues {
		names, slots[q.Name] = append(names, q.Name), q.Slots
	}
	raw, _ := json.Marshal(slots) // strings and ints only: cannot fail
	return names, string(raw)
}

// crew returns the names of the supervisor's kinds, in order; nil if the supervisor does not listen.
func (reg *Registration) crew() (kinds []string) {
	if !reg.Listens {
		return nil
	}
	kinds = []string{}
	for _, k := range reg.Kinds {
		kinds = append(kinds, k.Kind)
	}
	slices.Sort(kinds)
	return kinds
}

// registerQueues stores the policies of the queues, and their crews. Its caller has sorted the queues and the kinds by
// name, so that two supervisors that start together do not deadlock.
func (p *pipeline) registerQueues(reg *Registration) {
	for _, q := range reg.Queues {
		p.Exec(nil, sqlRegisterQueue, q.Name, q.MaxAttempts, q.Retry, q.Keep.Completed, q.Keep.Cancelled, q.Keep.Discarded, q.Keep.Archived,
			q.Keep.KeepCompleted, q.Keep.KeepDiscarded, q.Keep.KeepArchived)
		if reg.Listens {
			p.Exec(nil, sqlRegisterCrew, q.Name, reg.ID, reg.crew(), pg.Interval(reg.Polls))
		}
	}
}

const sqlServe = `update drover_supervisors set queues = $2, slots = $3 where id = $1`

// Serve stores which queues a running supervisor serves and what their policies are, on a connection of the pool.
func Serve(ctx context.Context, pool *pg.Pool, id string, reg *Registration) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return pg.Classify(err)
	}
	defer conn.Release()
	return Session{conn.Conn()}.ServeOn(ctx, id, reg)
}

// ServeOn does the same as Serve, on the session's connection.
func (s Session) ServeOn(ctx context.Context, id string, reg *Registration) error {
	names, slots := reg.slots()
	return s.inTx(ctx, func(p *pipeline) {
		p.Exec(nil, sqlServe, id, names, slots)
		p.Exec(nil, sqlForgetCrews)
		p.registerQueues(reg)
		p.registerBudgets(reg.Budgets, &reg.Scopes)
		p.readCrews(id, &reg.Crews)
	})
}
