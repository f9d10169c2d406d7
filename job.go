package drover

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"
)

// Args are the arguments of a job: a struct that marshals to JSON and names the job's kind. Kind must return the same
// name for every value of the type, the zero value included. A struct that embeds a type with a MarshalJSON, such as
// time.Time, inherits that method. If another field of the struct would be lost, Client.NewSupervisor and Enqueue refuse
// the type and name the field.
type Args interface {
	Kind() string
}

// Job is one run of a job, as its handler sees it. It is valid until the handler returns. Its methods may be called
// from any goroutine of the handler; changing its fields concurrently is not safe.
//
// Args and Metadata hold what jsonb keeps, not the bytes that were enqueued: the order of keys and white space change,
// the last of several equal keys stays, and numbers are written out, such as 100 for 1e2. So a signature over the
// enqueued bytes no longer matches. Sign a string, and store it in a field. JSON null, which only SQL can enqueue,
// reaches the handler as zero args. jsonb also keeps the fraction of a number such as 42.00, which therefore does not
// decode into an int.
type Job struct {
	ID          string          // ULID
	Queue       string          //
	Kind        string          //
	Args        json.RawMessage // the args as jsonb keeps them; the handler also gets them decoded
	Attempt     int             // the number of this run among the runs that count, from 1
	MaxAttempts int             // how many runs may count: the job's own limit, otherwise its worker's, otherwise its queue's, otherwise 20
	Priority    int             // 1 to 9, lower is sooner
	ScheduledAt time.Time       // when this run was due, by the server's clock
	LastError   string          // text of the last failed run's error, "" if no run failed
	LastDelay   time.Duration   // the wait before this run, 0 on the first
	Failures    int             // how many runs have failed so far
	Crashes     int             // process deaths that the job may have caused, minus later runs that the process survived
	Redrives    int             // how often an operator has redriven the job
	Snoozes     int             // how many runs ended in a snooze
	Tags        []string        //
	Metadata    json.RawMessage // nil if none

	Key string // EnqueueOpts.Key, "" if none

	task *task // nil if neither a supervisor nor Try runs the job
}

// LogValue implements slog.LogValuer. It leaves the args out, because they may hold data that must not be logged.
func (j *Job) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("id", j.ID), slog.String("queue", j.Queue), slog.String("kind", j.Kind),
		slog.Int("attempt", j.Attempt), slog.Int("max_attempts", j.MaxAttempts))
}

// inLog returns what drover's own log lines say about the job: the same as LogValue, but with the names that all lines
// have, such as job_id.
func (j *Job) inLog() slog.Attr {
	return slog.Group("", slog.String("job_id", j.ID), slog.String("queue", j.Queue), slog.String("kind", j.Kind),
		slog.Int("attempt", j.Attempt), slog.Int("max_attempts", j.MaxAttempts))
}

// State is the state of a job. Every job is in one of the states below.
type State string

// The states. A job is claimed from Available, Scheduled and Retryable as soon as it is due.
const (
	Available State = "available" // due since it was enqueued or redriven
	Scheduled State = "scheduled" // enqueued for later, or snoozed
	Retryable State = "retryable" // failed, waits for its next run
	Running   State = "running"   // claimed by a supervisor
	Parked    State = "parked"    // waits for a newer build, or for its place in a redrive
	Completed State = "completed" // final: the handler succeeded
	Discarded State = "discarded" // final: failed for good (a dead letter); kept, with its reason and errors
	Cancelled State = "cancelled" // final: cancelled, by its handler or from outside
)

// Final reports whether the job has ended.
func (s State) Final() bool { return s == Completed || s == Discarded || s == Cancelled }

// Reason is why a job was discarded, as in the column discard_reason.
type Reason string

// The reasons of a discard.
const (
	ReasonAttemptsExhausted Reason = "attempts_exhausted" // MaxAttempts runs failed
	ReasonUnrecoverable     Reason = "unrecoverable"      // ended by Discard, a Permanent error, RetryIf, an ErrorCase or the strategy
	ReasonPanic             Reason = "panic"              // its handler panicked, and its worker has DiscardOnPanic
	ReasonCrashed           Reason = "crashed"            // processes died while it ran
	ReasonUndecodable       Reason = "undecodable"        // its args do not decode into its worker's type
	ReasonExpired           Reason = "expired"            // ExpiresAt passed before a run
	ReasonTimeBudget        Reason = "time_budget"        // the next run would have come after RetryUntil or RetryFor
	ReasonOperator          Reason = "operator"           // ended by Client.Discard, DiscardMany or the policy of a failure group
	ReasonRetryBudget       Reason = "retry_budget"       // its RetryBudget had no free slot, and has Discard
	ReasonRefused           Reason = "refused"            // the database refuses to read or change its row; see its last error
)

// CompleteTx completes the job in the handler's transaction: the handler's rows and the completion commit together, or
// not at all. Commit, then return nil. If the handler returns an error after the commit, the error is ignored, with a
// warning in the log.
//
// If CompleteTx fails, or its transaction does not commit, the job is not completed. A handler that then returns nil
// fails the run with ErrNotCommitted. After an error or a rollback the handler may settle the job in another
// transaction. The transaction that commits counts.
//
// Errors: ErrLeaseLost if the run no longer owns its job, ErrState if this run has settled it already. Roll back after
// either error. A serialization failure (SQLSTATE 40001) is returned as the driver's error, even if another owner's
// write to the job caused it. Roll back and begin again: if the run no longer owns its job, the next transaction
// returns ErrLeaseLost. If tx is no open transaction, the error is an *InvalidError.
func (j *Job) CompleteTx(ctx context.Context, tx Tx) error { return j.SettleTx(ctx, tx, nil) }

// SettleTx records in the handler's transaction how the run ended. It reads err as if the handler had returned err, so
// Discard, Snooze, RetryAfter, Cancel, a plain error and nil have the same effect. A delay counts from this call.
//
// SettleTx is fenced like CompleteTx and returns the same errors. After the commit, the handler's own error is ignored,
// as with CompleteTx. If the handler returns nil without a commit, the run fails with ErrNotCommitted.
func (j *Job) SettleTx(ctx context.Context, tx Tx, err error) error {
	t := j.task
	if t == nil {
		return ErrLeaseLost
	}
	if err := checkTx(tx); err != nil {
		t.NoteTx(err)
		return err
	}
	if trial := t.handler.trial; trial != nil {
		return trial.settle(j.ID, err)
	}
	in := t.handler.client.desk.in(tx)
	if t.handler.client.cfg.DisableNotify { // a follow-up would send a NOTIFY
		if err := disableNotify(ctx, in); err != nil {
			t.NoteTx(err)
			return err
		}
	}
	return t.SettleTx(ctx, in, t.decide(err))
}

// EnqueueTx enqueues another job in the handler's transaction, if this job still belongs to the handler's run. Use it
// for work that only one run may enqueue. EnqueueTx locks this job's row until the transaction ends. Call it before
// CompleteTx or SettleTx: after them the job no longer belongs to the run. EnqueueTx returns the errors of
// Client.EnqueueTx and of CompleteTx.
func (j *Job) EnqueueTx(ctx context.Context, tx Tx, args Args, opts *EnqueueOpts) (Receipt, error) {
	t := j.task
	if t == nil {
		return Receipt{}, ErrLeaseLost
	}
	if err := checkTx(tx); err != nil {
		return Receipt{}, err
	}
	if trial := t.handler.trial; trial != nil {
		if trial.settled {
			return Receipt{}, ErrLeaseLost
		}
	} else if err := t.HoldTx(ctx, t.handler.client.desk.in(tx)); err != nil {
		return Receipt{}, err
	}
	return t.handler.client.EnqueueTx(ctx, tx, args, opts)
}

// trial records how a handler that Try has called settles its job.
type trial struct {
	settled bool
	as      error // the argument of SettleTx
}

func (tr *trial) settle(id string, err error) error {
	if tr.settled {
		return fmt.Errorf("%w: this run has settled job %s already", ErrState, id)
	}
	tr.settled, tr.as = true, err
	return nil
}
