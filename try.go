package drover

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/drover-queue/drover/internal/store"
)

// Try calls the worker's handler once, without a database, and returns what a supervisor would make of its return. It
// is for tests. The package drovertest has more for them.
//
// The verdict is what VerdictOf returns, after the worker's own rules: an error that Cases, RetryIf or the strategy would
// not retry, and a panic with DiscardOnPanic, are VerdictDiscard, and a Permanent error that one of the Cases would
// retry is VerdictError. Neither attempts nor RetryFor run out. The worker's timeout and middleware do not apply: end ctx
// to see what the handler makes of that.
//
// The handler gets a copy of job. Kind is the worker's. ID, Queue, Priority, Attempt, MaxAttempts and ScheduledAt have
// the values of a first run where they are zero in job, and empty Args are zero args. Nil means a first run of zero
// args.
//
// In the handler, Job.CompleteTx and Job.SettleTx check their transaction and write nothing. If the handler then
// returns nil, the settle decides the verdict, and else the error: Try does not know whether the transaction commits. Further settles return ErrState. Job.EnqueueTx enqueues in its
// transaction, in the schema that search_path picks.
//
// Try panics with an *InvalidError for a worker that Client.NewSupervisor would refuse, and for a job of another kind.
// If the handler calls runtime.Goexit, for example by t.FailNow of the test, the caller's goroutine ends.
func (w Worker) Try(ctx context.Context, job *Job) Verdict {
	var bad problems
	w.validate(&bad, "worker", 0)
	if job == nil {
		job = &Job{}
	}
	if w.handle != nil && job.Kind != "" && job.Kind != w.kind {
		bad.add("job.Kind", "%q is not the worker's, %q", job.Kind, w.kind)
	}
	if err := bad.err(); err != nil {
		panic(err)
	}
	trial := &trial{}
	client := &Client{desk: newDesk(nil, ""), cfg: Config{MaxArgsBytes: defaultMaxArgs}, running: newRegistry(), log: slog.Default()}
	h := &handler{client: client, trial: trial}
	t := &task{handler: h, worker: &w, strategy: orDefault(w.opts.Retry), job: *job}
	j := &t.job
	j.ID, j.Queue, j.Kind, j.Priority = cmp.Or(j.ID, ulid.Make().String()), cmp.Or(j.Queue, "default"), w.kind, cmp.Or(j.Priority, 5)
	j.Attempt, j.MaxAttempts = cmp.Or(j.Attempt, 1), cmp.Or(j.MaxAttempts, w.opts.MaxAttempts, defaultMaxAttempts)
	if j.ScheduledAt.IsZero() {
		j.ScheduledAt = time.Now()
	}
	if len(j.Args) == 0 {
		j.Args = json.RawMessage("null")
	}
	t.Task, j.task, t.Ctx = t, t, ctx
	t.share()
	err := h.Handle(ctx, &t.Run)
	switch failed := t.Uncommitted(); {
	case err == nil && trial.settled:
		err = trial.as
	case err == nil && failed != nil:
		err = Retry(failed)
	}
	v := VerdictOf(err)
	switch o := t.decide(err); {
	case o.State == store.Discarded && o.Reason != string(ReasonAttemptsExhausted):
		v.Kind = VerdictDiscard
	case o.State == store.Retryable && v.Kind == VerdictDiscard:
		v.Kind = VerdictError
	}
	return v
}
