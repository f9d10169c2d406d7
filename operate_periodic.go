package drover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// PeriodicJob is a schedule as it is stored.
type PeriodicJob struct {
	Name        string          `json:"name"`
	Kind        string          `json:"kind"`
	Queue       string          `json:"queue"`
	Schedule    string          `json:"schedule"`
	Zone        string          `json:"zone"`
	State       PeriodicState   `json:"state"`
	Declared    bool            `json:"declared"`        // in code; false: it was made at run time
	Build       string          `json:"build,omitempty"` // the build whose settings it has, if it was declared in code
	Args        json.RawMessage `json:"args"`
	Options     json.RawMessage `json:"options"`             // as parameters of the SQL function drover_enqueue
	JitterMS    int64           `json:"jitter_ms,omitempty"` // in milliseconds
	CatchUp     CatchUp         `json:"catch_up"`
	Overlap     Overlap         `json:"overlap"`
	RunAtStart  bool            `json:"run_at_start,omitempty"`
	Next        []time.Time     `json:"next"`                   // the next ten ticks; none if it is undeclared, or paused until it is resumed
	LastAt      *time.Time      `json:"last_at,omitempty"`      // the last tick, even if it made no job
	LastJobID   string          `json:"last_job_id,omitempty"`  // the last job that it made
	LastState   State           `json:"last_state,omitempty"`   // of that job; "" if its row is gone
	PausedUntil *time.Time      `json:"paused_until,omitempty"` // nil with State PeriodicPaused: until it is resumed
	Jobs        int64           `json:"jobs"`                   // how many it has made
	Skipped     int64           `json:"skipped"`                // ticks that were missed, or left out because the last job had not ended
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
	PeriodicUndeclared PeriodicState = "undeclared" // it was declared in code, and no running supervisor declares it any more
)

// SetPeriodic stores a schedule, or changes the schedule of that name. It stays until it is deleted, and any supervisor
// ticks it. If neither Schedule nor Zone changes, the next tick stays as it is.
//
// Errors, before anything is stored: *InvalidError with the field; ErrState if the schedule is declared in code.
func (c *Client) SetPeriodic(ctx context.Context, p Periodic, audit Audit) error {
	var bad problems
	policy := c.encodePeriodic(&bad, &p)
	audit.check(&bad)
	if err := bad.err(); err != nil {
		return err
	}
	if err := c.desk.setPeriodic(ctx, &policy, audit); err != nil {
		return fmt.Errorf("set schedule %q: %w", p.Name, periodicError(err))
	}
	c.running.tick()
	return nil
}

// PausePeriodic keeps a schedule from ticking before until, by the server's clock; the zero time means until
// ResumePeriodic. The ticks of a pause are left out, whatever CatchUp is. A pause survives deploys. Errors: ErrNotFound;
// *InvalidError if until is past.
func (c *Client) PausePeriodic(ctx context.Context, name string, until time.Time, audit Audit) error {
	var bad problems
	var at *time.Time
	if !until.IsZero() {
		at = instant(&bad, "until", until)
	}
	return c.changePeriodic("pause", name, &bad, audit, func() error { return c.desk.pausePeriodic(ctx, name, at, audit) })
}

// ResumePeriodic ends a pause. The next tick is the schedule's first from now on. Errors: ErrNotFound; *InvalidError.
func (c *Client) ResumePeriodic(ctx context.Context, name string, audit Audit) error {
	err := c.changePeriodic("resume", name, new(problems), audit, func() error { return c.desk.resumePeriodic(ctx, name, audit) })
	c.running.tick()
	return err
}

// RunPeriodic enqueues one job of a schedule now, in addition to its ticks, and returns the job's id. It does so even if
// the schedule is paused. The job's metadata keep the Audit. Errors: ErrNotFound; ErrState if the last job has not ended
// and Overlap is OverlapSkip, or if the schedule has made the job opts.ID before, because the call is repeated;
// ErrIDConflict if that is another job's id; *InvalidError.
func (c *Client) RunPeriodic(ctx context.Context, name string, opts *RunOpts, audit Audit) (jobID string, err error) {
	var bad problems
	id := opts.id(&bad)
	err = c.changePeriodic("run", name, &bad, audit, func() error {
		jobID, err = c.desk.runPeriodic(ctx, name, id, audit)
		return err
	})
	return jobID, err
}

// DeletePeriodic deletes a schedule. It stops immediately; its jobs stay. The schedule leaves no row, so the Audit is logged.
// Errors: ErrNotFound; ErrState if a running supervisor declares the schedule in code, because it would store the
// schedule again: pause the schedule instead; *InvalidError.
func (c *Client) DeletePeriodic(ctx context.Context, name string, audit Audit) error {
	err := c.changePeriodic("delete", name, new(problems), audit, func() error { return c.desk.deletePeriodic(ctx, name, audit) })
	if err == nil {
		c.logDeletedSchedule(ctx, name, audit)
	}
	return err
}

// PeriodicJobs lists all schedules, by name.
func (c *Client) PeriodicJobs(ctx context.Context) ([]PeriodicJob, error) {
	list, err := c.desk.periodic(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("list schedules: %w", err)
	}
	return list, nil
}

// PeriodicJob reads one schedule. Errors: ErrNotFound.
func (c *Client) PeriodicJob(ctx context.Context, name string) (*PeriodicJob, error) {
	if unknownSchedule(name) {
		return nil, fmt.Errorf("get schedule %q: %w", name, ErrNotFound)
	}
	job, err := c.desk.periodicJob(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("get schedule %q: %w", name, err)
	}
	return job, nil
}

// PreviewPeriodic returns the next n ticks of a schedule in a zone ("" is UTC), by the server's clock: 1 to 1000. None
// means that it never ticks. Errors: *InvalidError.
func (c *Client) PreviewPeriodic(ctx context.Context, schedule, zone string, n int) ([]time.Time, error) {
	var bad problems
	checkSchedule(&bad, schedule, zone)
	if n < 1 || n > 1000 {
		bad.add("n", "%d is not 1 to 1000", n)
	}
	if err := bad.err(); err != nil {
		return nil, err
	}
	ticks, err := c.desk.previewPeriodic(ctx, schedule, zone, n)
	if err != nil {
		return nil, fmt.Errorf("preview schedule %q: %w", schedule, periodicError(err))
	}
	return ticks, nil
}

// changePeriodic carries out a verb. bad has the mistakes in its own arguments.
func (c *Client) changePeriodic(verb, name string, bad *problems, audit Audit, change func() error) error {
	audit.checkOne(bad)
	if err := bad.err(); err != nil {
		return err
	}
	if unknownSchedule(name) {
		return fmt.Errorf("%s schedule %q: %w", verb, name, ErrNotFound)
	}
	if err := change(); err != nil {
		return fmt.Errorf("%s schedule %q: %w", verb, name, periodicError(err))
	}
	return nil
}

// unknownSchedule reports a name that no schedule can have, and that the server could not even take.
func unknownSchedule(name string) bool {
	return errors.Is(checkName("name", name), ErrInvalid)
}
