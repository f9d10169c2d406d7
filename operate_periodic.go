package drover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/pg"
)

// PeriodicJob is a schedule as it is stored. A tick is one of the times of the schedule.
type PeriodicJob struct {
	Name        string          `json:"name"`
	Kind        string          `json:"kind"`
	Queue       string          `json:"queue"`
	Schedule    string          `json:"schedule"`
	Zone        string          `json:"zone"`
	State       PeriodicState   `json:"state"`
	Declared    bool            `json:"declared"`        // whether it was declared in code; false: it was made at run time
	Build       string          `json:"build,omitempty"` // the build whose settings it has, if it was declared in code
	Args        json.RawMessage `json:"args"`
	Options     json.RawMessage `json:"options"`             // the jobs' options, under the names of the parameters of the SQL function drover_enqueue
	JitterMS    int64           `json:"jitter_ms,omitempty"` // in milliseconds
	CatchUp     CatchUp         `json:"catch_up"`
	Overlap     Overlap         `json:"overlap"`
	RunAtStart  bool            `json:"run_at_start,omitempty"`
	Next        []time.Time     `json:"next"`                   // the next ten ticks; none if the schedule is undeclared, or paused without an end
	LastAt      *time.Time      `json:"last_at,omitempty"`      // the last tick, even if it made no job
	LastJobID   string          `json:"last_job_id,omitempty"`  // the last job that the schedule made
	LastState   State           `json:"last_state,omitempty"`   // the state of that job; "" if its row is gone
	PausedUntil *time.Time      `json:"paused_until,omitempty"` // when the pause ends; if it is nil and State is PeriodicPaused, the pause ends when somebody resumes the schedule
	Jobs        int64           `json:"jobs"`                   // how many jobs the schedule has made
	Skipped     int64           `json:"skipped"`                // ticks that were missed, or left out because the last job had not ended or another job had the unique key
	SkippedAt   *time.Time      `json:"skipped_at,omitempty"`
	SkippedWhy  string          `json:"skipped_why,omitempty"`
	Problem     string          `json:"problem,omitempty"` // why the database refused the job of a tick; the newest such error
	ProblemAt   *time.Time      `json:"problem_at,omitempty"`
	CreatedAt   time.Time       `json:"created_at"`
	UpdatedAt   time.Time       `json:"updated_at"` // when somebody last changed it
	UpdatedBy   string          `json:"updated_by"`
	UpdatedWhy  string          `json:"updated_why,omitempty"`
	Seen        string          `json:"seen"` // changes with each change by a person, and with each job: see Audit.Seen
}

// PeriodicState is whether a schedule ticks.
type PeriodicState string

// The states of a schedule.
const (
	PeriodicActive     PeriodicState = "active"
	PeriodicPaused     PeriodicState = "paused"
	PeriodicUndeclared PeriodicState = "undeclared" // it was declared in code, no running supervisor declares it any more, and it is not paused
)

// SetPeriodic stores a schedule, or changes the schedule of that name. The schedule stays until somebody deletes it,
// and any supervisor enqueues its jobs. If neither Schedule nor Zone changes, the next tick stays as it is.
//
// Errors, before anything is stored: *InvalidError with the field; ErrState if the schedule is declared in code.
func (c *Client) SetPeriodic(ctx context.Context, p Periodic, audit Audit) error {
	var bad problems
	policy := c.encodePeriodic(&bad, &p)
	audit.check(&bad)
	if err := bad.err(); err != nil {
		return err
	}
	err := c.desk.pool.InTx(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sqlSetPeriodic, policy.Name, policy.Kind, policy.Schedule, string(policy.Args), policy.Zone, string(policy.Options), policy.JitterMS,
			policy.CatchUp, policy.Overlap, policy.RunAtStart, audit.by(), audit.Why)
		return pg.Classify(err)
	})
	if err != nil {
		return fmt.Errorf("set schedule %q: %w", p.Name, periodicError(err))
	}
	c.running.each((*engine.Engine).Tick)
	return nil
}

// PausePeriodic stops the ticks of a schedule. The parameter until is the end of the pause, by the server's clock; the
// zero time means that ResumePeriodic ends the pause. The ticks of a pause are left out, whatever CatchUp is. A pause
// survives deploys. Errors: ErrNotFound; *InvalidError if that end is past.
func (c *Client) PausePeriodic(ctx context.Context, name string, until time.Time, audit Audit) error {
	var bad problems
	var at *time.Time
	if !until.IsZero() {
		at = instant(&bad, "until", until)
	}
	return c.changePeriodic("pause", name, &bad, audit, func() error {
		return c.desk.changeFound(ctx, audit, aSchedulesLife, name, sqlPausePeriodic, name, at, audit.by(), audit.Why)
	})
}

// ResumePeriodic ends a pause. The next tick is the schedule's first from now on. Errors: ErrNotFound; *InvalidError.
func (c *Client) ResumePeriodic(ctx context.Context, name string, audit Audit) error {
	err := c.changePeriodic("resume", name, new(problems), audit, func() error {
		return c.desk.changeFound(ctx, audit, aSchedulesLife, name, sqlResumePeriodic, name, audit.by(), audit.Why)
	})
	c.running.each((*engine.Engine).Tick)
	return err
}

// RunPeriodic enqueues one job of a schedule now, in addition to its ticks, and returns the job's id. It also works
// while the schedule is paused. The job's metadata keep the Audit. Errors: ErrNotFound; ErrState if the last job has
// not ended and Overlap is OverlapSkip, if another job has the unique key, or if an earlier call with the same opts.ID
// has made the job; ErrIDConflict if another job has opts.ID; *InvalidError.
func (c *Client) RunPeriodic(ctx context.Context, name string, opts *RunOpts, audit Audit) (jobID string, err error) {
	var bad problems
	id := opts.id(&bad)
	var queue, kind string
	err = c.changePeriodic("run", name, &bad, audit, func() error {
		jobID, queue, kind, err = c.desk.makeJob(ctx, audit, aSchedule, sqlRunPeriodic, name, id)
		return err
	})
	if err == nil {
		c.emit(ctx, emission{engine.EventEnqueued, Event{JobID: jobID, Queue: queue, Kind: kind, Periodic: name, By: audit.By, Why: audit.Why}})
	}
	return jobID, err
}

// DeletePeriodic deletes a schedule. The schedule stops immediately; its jobs stay. The schedule leaves no row, so the
// Audit is logged. Errors: ErrNotFound; ErrState if a running supervisor declares the schedule in code, because it
// would store the schedule again: pause the schedule instead; *InvalidError.
func (c *Client) DeletePeriodic(ctx context.Context, name string, audit Audit) error {
	err := c.changePeriodic("delete", name, new(problems), audit, func() error {
		return c.desk.changeFound(ctx, audit, aSchedulesLife, name, sqlDeletePeriodic, name, audit.by(), audit.Why)
	})
	if err == nil {
		c.log.InfoContext(ctx, "schedule deleted", audit.attrs(slog.String("periodic", name))...)
	}
	return err
}

// PeriodicJobs lists all schedules, by name.
func (c *Client) PeriodicJobs(ctx context.Context) ([]PeriodicJob, error) {
	list, err := pg.ReadAll(ctx, c.desk.pool, scanPeriodic, sqlPeriodic, "")
	return list, doing(err, "list schedules")
}

// PeriodicJob reads one schedule. Errors: ErrNotFound.
func (c *Client) PeriodicJob(ctx context.Context, name string) (*PeriodicJob, error) {
	if unknownSchedule(name) {
		return nil, fmt.Errorf("get schedule %q: %w", name, ErrNotFound)
	}
	job, err := oneRow(pg.ReadAll(ctx, c.desk.pool, scanPeriodic, sqlPeriodic, name))
	return job, doing(err, "get schedule %q", name)
}

// PreviewPeriodic returns the next n ticks of a schedule in a zone ("" is UTC), by the server's clock. n is 1 to 1000.
// If it returns none, the schedule never ticks. Errors: *InvalidError.
func (c *Client) PreviewPeriodic(ctx context.Context, schedule, zone string, n int) ([]time.Time, error) {
	var bad problems
	checkSchedule(&bad, schedule, zone)
	if n < 1 || n > 1000 {
		bad.add("n", "%d is not 1 to 1000", n)
	}
	if err := bad.err(); err != nil {
		return nil, err
	}
	ticks, err := pg.ReadAll(ctx, c.desk.pool, pgx.RowTo[time.Time], sqlPreviewPeriodic, schedule, zone, n)
	return ticks, doing(periodicError(err), "preview schedule %q", schedule)
}

// changePeriodic carries out an operator's change of a schedule. The parameter bad has the mistakes that the caller has
// found in the arguments.
func (c *Client) changePeriodic(verb, name string, bad *problems, audit Audit, change func() error) error {
	audit.checkOne(bad)
	if err := bad.err(); err != nil {
		return err
	}
	if unknownSchedule(name) {
		return fmt.Errorf("%s schedule %q: %w", verb, name, ErrNotFound)
	}
	return doing(periodicError(change()), "%s schedule %q", verb, name)
}

// unknownSchedule reports whether no schedule can have the name. The server would refuse some of these names even as a
// parameter, such as invalid UTF-8.
func unknownSchedule(name string) bool {
	return errors.Is(checkName("name", name), ErrInvalid)
}

// Schedules, as operators see and change them. The statements with which supervisors declare and tick them are in
// internal/store/periodic.go.

const sqlSetPeriodic = `
select drover_periodic_set($1, $2, $3, $4::jsonb, zone => $5, options => $6::jsonb, jitter => $7::bigint * interval '1 ms', catch_up => $8, overlap => $9,
	run_at_start => $10, by => $11, why => $12) is not null`

const (
	sqlPausePeriodic  = `select drover_periodic_pause($1, coalesce($2::timestamptz, 'infinity'), by => $3, why => $4)`
	sqlResumePeriodic = `select drover_periodic_resume($1, by => $2, why => $3)`
	sqlDeletePeriodic = `select drover_periodic_delete($1, by => $2, why => $3)`
)

// sqlRunPeriodic also returns the queue and the kind of the new job, from the row of the schedule.
const sqlRunPeriodic = `
select drover_periodic_run(name, by => $2, why => $3, new_id => $4), coalesce(options->>'queue', 'default'), kind from drover_periodic where name = $1`

// sqlPeriodic cuts times to the years that Go and JSON can represent. The ticks after the next tick are computed. They
// are missing if somebody has edited the row by hand and its schedule makes no sense.
const sqlPeriodic = `
select p.name, p.kind, p.queue, p.schedule, p.zone, p.state, p.made_in = 'code', coalesce(p.build, ''), p.args::text, p.options::text,
	extract(epoch from p.jitter)::float8, p.catch_up, p.overlap, p.run_at_start, p.jobs, p.skipped, coalesce(p.skipped_why, ''), coalesce(p.problem, ''),
	coalesce(p.last_job, ''), coalesce(p.last_state, ''), p.updated_by, p.updated_why, t.times[1], t.times[2], t.times[3], t.times[4],
	least(greatest(p.created_at, '0001-01-01 00:00:00Z'), '9999-12-31 00:00:00Z'), least(greatest(p.updated_at, '0001-01-01 00:00:00Z'), '9999-12-31 00:00:00Z'),
	array(select least(greatest(n, '0001-01-01 00:00:00Z'), '9999-12-31 00:00:00Z') from unnest(p.next_runs) as n), coalesce(drover_seen('schedule', p.name), '')
from periodic_jobs p
cross join lateral (select array_agg(case when x.at is not null and x.at < 'infinity' then least(greatest(x.at, '0001-01-01 00:00:00Z'), '9999-12-31 00:00:00Z') end order by x.n) as times
	from unnest(array[p.last_at, p.paused_until, p.skipped_at, p.problem_at]) with ordinality as x(at, n)) t
where $1 = '' or p.name = $1 order by p.name`

func scanPeriodic(row pgx.CollectableRow) (j PeriodicJob, err error) {
	var args, options string
	var jitter float64
	err = row.Scan(&j.Name, &j.Kind, &j.Queue, &j.Schedule, &j.Zone, &j.State, &j.Declared, &j.Build, &args, &options,
		&jitter, &j.CatchUp, &j.Overlap, &j.RunAtStart, &j.Jobs, &j.Skipped, &j.SkippedWhy, &j.Problem,
		&j.LastJobID, &j.LastState, &j.UpdatedBy, &j.UpdatedWhy, &j.LastAt, &j.PausedUntil, &j.SkippedAt, &j.ProblemAt, &j.CreatedAt, &j.UpdatedAt, &j.Next, &j.Seen)
	j.Args, j.Options, j.JitterMS = json.RawMessage(args), json.RawMessage(options), pg.Seconds(jitter).Milliseconds()
	return j, err
}

const sqlPreviewPeriodic = `select drover_periodic_preview($1, $2, $3)`
