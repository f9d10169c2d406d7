package drover

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/pg"
)

// RedriveOpts change a job when it is redriven. Nil changes nothing.
type RedriveOpts struct {
	// MaxAttempts is the job's new total of runs, counted from the redrive. Zero leaves it as it is.
	MaxAttempts int

	// ArgsPatch is a JSON merge patch (RFC 7396) for the args. Both must be objects. The keys of the patch replace the
	// keys of the args, and null removes a key. If the worker cannot decode the result, the job is discarded again, as
	// undecodable, and another redrive may repair it. Nil leaves the args as they are.
	ArgsPatch json.RawMessage
}

// RedriveJob makes one discarded or cancelled job due again, now. The job keeps its id and its errors, and its attempts
// begin anew. Its history keeps who did it and why. If the job was redriven before and waits, it stays as it is.
//
// Errors: ErrNotFound, ErrArchived, *InvalidError, and ErrState in these cases:
//
//   - the job runs, is completed or has expired
//   - the job waits and was never redriven
//   - the job waits after a redrive, and opts would change it
//   - another job has the unique key of this job
func (c *Client) RedriveJob(ctx context.Context, id string, opts *RedriveOpts, audit Audit) error {
	var bad problems
	if opts == nil {
		opts = &RedriveOpts{}
	}
	bad.attempts("MaxAttempts", opts.MaxAttempts)
	bad.join(c.checkPatch(opts.ArgsPatch))
	id, err := audit.checkChange(&bad, "redrive job", id)
	if err != nil {
		return err
	}
	was, err := c.desk.verb(ctx, sqlRedrive, aJob, id, audit, positive(opts.MaxAttempts), pg.OrNull(string(opts.ArgsPatch)), audit.by(), audit.Why)
	if err != nil {
		return doing(patchFault(err), "redrive job %s", id)
	}
	if was == Discarded || was == Cancelled {
		c.emit(ctx, emission{engine.EventRedriven, Event{JobID: id, By: audit.By, Why: audit.Why}})
	}
	return nil
}

// Cancel ends a job that nobody wants any more, and returns the state that the job was in. The job's history keeps
// who did it and why. Cancelling a job that has ended changes nothing.
//
// A running job gets its final state immediately. Its handler's context is cancelled with ErrCancelled, and the outcome
// of its run is refused, whatever the handler returns. A supervisor of this client cancels the context directly. Other
// supervisors get a notification. A supervisor that receives no notifications asks the database about once a second.
// Behind a pooler, a supervisor may not know that it receives none. Then it learns of the cancel with its next
// heartbeat: at most a sixth of its lease later.
//
// Errors: ErrNotFound, ErrArchived, *InvalidError.
func (c *Client) Cancel(ctx context.Context, id string, audit Audit) (State, error) {
	return c.endJob(ctx, "cancel", sqlCancel, id, audit, emission{kind: engine.EventCancelled})
}

// Discard ends a job as a dead letter, reason ReasonOperator. Use it for a job that somebody has to look at before it
// runs again. In all other ways it works like Cancel. Errors: ErrNotFound, ErrArchived, *InvalidError.
func (c *Client) Discard(ctx context.Context, id string, audit Audit) (State, error) {
	return c.endJob(ctx, "discard", sqlDiscard, id, audit, emission{engine.EventDiscarded, Event{Reason: ReasonOperator}})
}

func (c *Client) endJob(ctx context.Context, verb, sql, id string, audit Audit, t emission) (State, error) {
	id, err := audit.checkChange(new(problems), verb+" job", id)
	if err != nil {
		return "", err
	}
	was, err := c.desk.verb(ctx, sql, aJobsLife, id, audit, audit.Why, audit.by())
	if err != nil {
		return "", doing(err, "%s job %s", verb, id)
	}
	switch {
	case was == Running: // its owner emits the event
		c.running.cancel(id)
	case !was.Final():
		t.event.JobID, t.event.Error, t.event.By, t.event.Why = id, audit.Why, audit.By, audit.Why
		c.emit(ctx, t)
	}
	return was, nil
}

// checkPatch refuses a patch that is not a JSON object.
func (c *Client) checkPatch(patch json.RawMessage) error {
	if patch == nil {
		return nil
	}
	if err := checkJSON("ArgsPatch", patch, c.cfg.MaxArgsBytes, maxJSONDepth); err != nil {
		return err
	}
	if bytes.TrimLeft(patch, " \t\r\n")[0] != '{' {
		return &InvalidError{Field: "ArgsPatch", Reason: "is not a JSON object"}
	}
	return nil
}

// Operators work through the same SQL functions and views that users of psql have.

const sqlRedrive = stateBefore + `drover_redrive($1, $2, $3::jsonb, by => $4, why => $5) from was`

// patchFault turns an error of a verb that patches args into an *InvalidError, if the job's own args are no object.
func patchFault(err error) error {
	var server *pgconn.PgError
	if errors.As(err, &server) && server.Code == "22023" { // invalid parameter: the job's own args are at fault, because all else was checked before
		return &InvalidError{Field: "ArgsPatch", Reason: pg.Refusal(err), Err: err}
	}
	return err
}

// stateBefore reads the state of job $1 and locks its row, by primary key, before one of the functions changes it.
// The functions return only the state after the change.
const (
	stateBefore = `with was as materialized (select state from jobs where id = $1 for update) select state, `
	sqlCancel   = stateBefore + `drover_cancel($1, $2, $3) from was`
	sqlDiscard  = stateBefore + `drover_discard($1, $2, $3) from was`
)

// verb runs one of the statements that begin with stateBefore, and returns the state that the job was in.
func (s *desk) verb(ctx context.Context, sql string, of subject, id string, audit Audit, args ...any) (was State, err error) {
	err = s.change(ctx, audit, of, id, []any{&was, nil}, sql, append([]any{id}, args...)...)
	return was, namesField(err)
}
