package drover

import (
	"cmp"
	"context"
	"time"

	"github.com/oklog/ulid/v2"
)

// Rehearse calls the worker's handler once without a database, and returns what drover would read
// from its return. It is for tests: see the package drovertest. The args are checked and encoded as
// by an enqueue, and decoded for the handler. A panic is a VerdictPanic. The job that the handler
// sees is a copy of job, with Kind and Args set; ID, Queue, Priority, Attempt, MaxAttempts and
// ScheduledAt have the values of a first run if they are zero in job. A nil job means a first run.
//
// In the handler, Job.CompleteTx and Job.SettleTx write nothing. The first call succeeds, and
// further ones return ErrState; if the handler then returns nil, the verdict is that of SettleTx.
// Job.EnqueueTx returns ErrLeaseLost. The worker's timeout, RetryIf and Cases, and middleware, do
// not apply.
//
// Errors: *InvalidError for args that an enqueue would refuse, or of another kind than the worker's.
func (w Worker) Rehearse(ctx context.Context, args Args, job *Job) (Verdict, error) {
	var bad problems
	w.validate(&bad, "worker", 0)
	kind, err := kindOf(args)
	if err != nil {
		bad.add("args", "%v", err)
	} else if kind != w.kind && w.handle != nil {
		bad.add("args", "are of kind %q, and the worker handles %q", kind, w.kind)
	}
	var encoded []byte
	if err == nil {
		encoded, err = encodeArgs(args, maxArgsBytes)
		bad.join(err)
	}
	if err := bad.err(); err != nil {
		return Verdict{}, err
	}
	own := Job{}
	if job != nil {
		own = *job
	}
	own.ID, own.Queue, own.Priority = cmp.Or(own.ID, ulid.Make().String()), cmp.Or(own.Queue, "default"), cmp.Or(own.Priority, 5)
	own.Attempt, own.MaxAttempts = cmp.Or(own.Attempt, 1), cmp.Or(own.MaxAttempts, w.opts.MaxAttempts, defaultMaxAttempts)
	if own.ScheduledAt.IsZero() {
		own.ScheduledAt = time.Now()
	}
	own.Kind, own.Args, own.run, own.rehearsal = kind, encoded, nil, &rehearsal{}
	returned := through(ctx, &own, nil, w.handle)
	if r := own.rehearsal; returned == nil && r.settled {
		returned = r.as
	}
	return VerdictOf(returned), nil
}

// rehearsal is what a handler has settled without a database.
type rehearsal struct {
	settled bool
	as      error
}

// settle stands in for SettleTx; a job of nobody's has lost its lease.
func (r *rehearsal) settle(tx Tx, err error) error {
	if r == nil {
		return ErrLeaseLost
	}
	if err := checkTx(tx); err != nil {
		return err
	}
	if r.settled {
		return ErrState
	}
	r.settled, r.as = true, err
	return nil
}
