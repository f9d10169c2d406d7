package drover

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/pg"
)

// JobEdit sets what an edit changes in a waiting job: its due time, its place, its args, or how it is retried. A
// field that is zero changes nothing. An edit without any field is an *InvalidError.
type JobEdit struct {
	// RunNow makes the job due now, whatever it waits for: its time, its backoff, its slot of a retry budget, or what it
	// is parked for. A job that is due already keeps its place in the queue.
	RunNow bool

	// ScheduledAt is when the job is due instead, by the server's clock. A time in the past means now. Like RunNow and
	// Delay, it ends the wait of a parked job. It excludes RunNow and Delay.
	ScheduledAt time.Time

	// Delay is the time from now until the job is due instead, by the server's clock. It excludes RunNow and ScheduledAt.
	Delay time.Duration

	// Priority is 1 to 9; lower is sooner. A job that is due comes after the jobs of its new priority that are due
	// already.
	Priority int

	// Queue is the queue that the job moves to. A job that is due comes after the jobs that are due there already.
	Queue string

	// MaxAttempts is the total number of runs that the job may have, including its runs before the edit. If the job
	// has had that many runs already, its next run is its last.
	MaxAttempts int

	// Retry is the job's own strategy. It applies from the job's next failed run on.
	Retry RetryStrategy

	// ArgsPatch is a JSON merge patch (RFC 7396) of the args, as in RedriveOpts.
	ArgsPatch json.RawMessage
}

// editDoc is JobEdit as drover_edit takes it.
type editDoc struct {
	RunNow      bool            `json:"run_now,omitempty"`
	ScheduledAt *time.Time      `json:"scheduled_at,omitempty"`
	Delay       string          `json:"delay,omitempty"`
	Priority    int             `json:"priority,omitempty"`
	Queue       string          `json:"queue,omitempty"`
	MaxAttempts int             `json:"max_attempts,omitempty"`
	Retry       json.RawMessage `json:"retry,omitempty"`
	ArgsPatch   json.RawMessage `json:"args_patch,omitempty"`
}

// encodeEdit checks an edit, and returns it in the form that drover_edit reads.
func (c *Client) encodeEdit(bad *problems, e *JobEdit) string {
	mistakes := len(bad.errs)
	doc := editDoc{RunNow: e.RunNow, Priority: e.Priority, Queue: e.Queue, MaxAttempts: e.MaxAttempts, ArgsPatch: e.ArgsPatch}
	if !e.ScheduledAt.IsZero() {
		doc.ScheduledAt = instant(bad, "ScheduledAt", e.ScheduledAt)
		if e.RunNow {
			bad.add("ScheduledAt", "contradicts RunNow")
		}
	}
	bad.nonNegative("Delay", e.Delay)
	if e.Delay > 0 {
		doc.Delay = pg.Interval(e.Delay)
		if e.RunNow || doc.ScheduledAt != nil {
			bad.add("Delay", "contradicts RunNow and ScheduledAt")
		}
	}
	if e.Priority < 0 || e.Priority > 9 {
		bad.add("Priority", "%d is not 1 to 9", e.Priority)
	}
	if e.Queue != "" {
		bad.join(checkName("Queue", e.Queue))
	}
	bad.attempts("MaxAttempts", e.MaxAttempts)
	doc.Retry = encodeOwn(bad, e.Retry)
	bad.join(c.checkPatch(e.ArgsPatch))
	if len(bad.errs) > mistakes {
		return "{}"
	}
	raw, err := json.Marshal(doc)
	if err != nil || string(raw) == "{}" {
		bad.add("JobEdit", "is empty; set what is to change")
	}
	return string(raw)
}

// Edit changes a job that waits: an available, scheduled, retryable or parked job. The job keeps its id, its attempts,
// its failures and its errors. A new entry of its errors names who changed the job, why, and the old values. If the job
// is due earlier now, Edit wakes sleeping supervisors. If the job has the new values already, changed is false and
// nothing is stored.
//
// A parked job that gets another due time is no longer parked; other edits leave it parked. If the args or the queue
// of a unique job change, it gets the unique key that an enqueue with the new values would have.
//
// Errors: ErrNotFound; ErrArchived; ErrState if the job runs or has ended, if it would have expired by its new time, if
// another job has the unique key that the edit would give it, or if that key cannot be computed (docs/edit.md);
// *InvalidError. After an error the job is as it was.
func (c *Client) Edit(ctx context.Context, id string, edit JobEdit, audit Audit) (changed bool, err error) {
	var bad problems
	doc := c.encodeEdit(&bad, &edit)
	if id, err = audit.checkChange(&bad, "edit job", id); err != nil {
		return false, err
	}
	var was State
	err = c.desk.change(ctx, audit, aJob, id, []any{&was, &changed}, sqlEdit, id, doc, audit.Why, audit.by())
	if err = namesField(patchFault(err)); err == nil && (was == Running || was.Final()) {
		err = fmt.Errorf("it is %s: %w", was, ErrState)
	}
	if err != nil {
		return false, fmt.Errorf("edit job %s: %w", id, err)
	}
	return changed, nil
}

// EditMany edits every waiting job that the filter picks, as Edit does. Jobs that run or have ended stay as they are,
// and so do jobs that have the new values already. BulkResult.Changed counts only the jobs that were changed. Refused
// lists each job that Edit would refuse. All else is as with CancelMany.
func (c *Client) EditMany(ctx context.Context, filter Filter, edit JobEdit, audit Audit) (BulkResult, error) {
	var bad problems
	doc := c.encodeEdit(&bad, &edit)
	return c.many(ctx, filter, bulkVerb{name: "edit", sql: sqlEditMany, audit: audit, more: []any{doc}, bad: bad})
}

// RunOpts are settings of the job that Rerun or RunPeriodic makes. Nil is like the zero value.
type RunOpts struct {
	// ID is the new job's id, a ULID. A repeated call with the same ID makes no second job: its error is ErrState. So
	// you can repeat the call after a lost connection, and a button may be pressed twice. This holds while the new
	// job's row is kept. Zero means that drover makes an id.
	ID string
}

// id returns the id that the caller has chosen, in capitals, because ids are compared in capitals. It returns "" if the
// caller has chosen none.
func (o *RunOpts) id(bad *problems) string {
	if o == nil {
		return ""
	}
	return newID(bad, o.ID)
}

func newID(bad *problems, id string) string {
	if id == "" {
		return ""
	}
	parsed, err := ulid.ParseStrict(id)
	if err != nil {
		bad.add("ID", "%q is not a ULID: %v", id, err)
		return ""
	}
	return parsed.String()
}

// Rerun enqueues a completed job again, as a new job that is due now, with the same kind, args, queue and options. The
// new job begins without attempts and failures. The first entry of its errors names the old job (RunError.Job), and an
// entry of the old job's errors names the new job. Both entries name who did it, and why. RetryUntil moves by the time
// since the old job's enqueue, or since its last redrive; ExpiresAt stays. If the old job is unique for a period, it
// keeps the period, and the new job is not unique. Each call makes another job, unless opts has the same ID.
//
// To run a discarded or cancelled job again, call RedriveJob, which makes no new job.
//
// Errors: ErrNotFound, also for a completed job that was deleted; ErrArchived; ErrState if the job is not completed,
// has expired, or was rerun as opts.ID before, or if another job has its unique key; ErrIDConflict if another job has
// opts.ID; *InvalidError.
func (c *Client) Rerun(ctx context.Context, id string, opts *RunOpts, audit Audit) (Receipt, error) {
	var bad problems
	as := opts.id(&bad)
	id, err := audit.checkChange(&bad, "rerun job", id)
	if err != nil {
		return Receipt{}, err
	}
	made, queue, kind, err := c.desk.makeJob(ctx, audit, aJob, sqlRerun, id, as)
	if err != nil {
		return Receipt{}, fmt.Errorf("rerun job %s: %w", id, namesField(err))
	}
	c.emit(ctx, emission{engine.EventEnqueued, Event{JobID: made, Queue: queue, Kind: kind, By: audit.By, Why: audit.Why}})
	return Receipt{ID: made}, nil
}

// RerunPlan sets how RerunMany enqueues jobs again.
type RerunPlan struct {
	// Rate is how many of the new jobs become due in a second, at most. Zero means 50; 0.001 to 5,000.
	Rate float64

	// If DryRun is true, RerunMany changes nothing. BulkResult.Changed counts the jobs that it would try to rerun.
	DryRun bool
}

// RerunMany enqueues every completed job that the filter picks again, as Rerun does. Use it for jobs that did the wrong
// thing without an error. The first of the new jobs is due now, and the others follow at the plan's rate. Filter{State:
// Scheduled} finds the jobs that are not due yet, and CancelMany stops them.
//
// A job that was rerun before stays as it is. So a call that was interrupted, or that two people make, can be repeated:
// no job is rerun twice. A job that is a rerun itself stays as it is too, unless the filter has IDs. A State other than
// Completed is an *InvalidError. BulkResult.IDs are the ids of the new jobs. Refused lists each job that Rerun would
// refuse, or that would expire before it is due. All else is as with CancelMany.
func (c *Client) RerunMany(ctx context.Context, filter Filter, plan RerunPlan, audit Audit) (BulkResult, error) {
	var bad problems
	bad.rate(plan.Rate)
	return c.many(ctx, filter, bulkVerb{
		name: "rerun", sql: sqlRerunMany, audit: audit, bad: bad, dry: plan.DryRun, more: []any{cmp.Or(plan.Rate, defaultRate), nil},
	})
}

// sqlEdit returns the job's state before the edit.
const sqlEdit = stateBefore + `(drover_edit($1, $2::jsonb, why => $3, by => $4)).changed from was`

// sqlRerun also returns the queue and the kind, from the row of the old job.
const sqlRerun = `select drover_rerun(id, by => $2, why => $3, new_id => $4), queue, kind from jobs where id = $1`

// makeJob runs a statement that makes a job from a row: sqlRerun or sqlRunPeriodic. It returns the id of the new job, its
// queue and its kind. The parameter as is the id for the new job. If it is empty, the SQL function makes an id.
func (s *desk) makeJob(ctx context.Context, audit Audit, of subject, sql, from, as string) (made, queue, kind string, err error) {
	var id *string // null if the row was deleted while the function waited for it
	err = s.change(ctx, audit, of, from, []any{&id, &queue, &kind}, sql, from, audit.by(), audit.Why, pg.OrNull(as))
	switch {
	case err != nil:
		return "", "", "", err
	case id == nil:
		return "", "", "", ErrNotFound
	}
	return *id, queue, kind, nil
}
