package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// This file settles runs in their handlers' transactions, or only holds their claims there (EnqueueTx). It finds out
// why the database refused a settle or a hold. A handler that gets ErrLeaseLost may return nil, because its job belongs
// to another supervisor. So it gets ErrLeaseLost only if its transaction has read the row. After a serialization
// failure the transaction can read no row, and the job may still belong to this run. Then the handler gets the
// serialization failure. If the handler returns nil all the same, the run has failed (Uncommitted). If the job has
// another owner, the settle of this run does not match the row, because it compares the fence.

// SettleTx records in the handler's transaction how the run ends. It returns pg.ErrLeaseLost if the run no longer owns
// its job, and pg.ErrState if this run has settled it already.
func (r *Run) SettleTx(ctx context.Context, tx store.Tx, o Outcome) error {
	err := r.settleTx(ctx, tx, &o)
	if err == nil {
		r.txOutcome.Store(&o)
	}
	r.NoteTx(err)
	return err
}

// NoteTx records the error of the last try to settle the run in the handler's transaction; nil: it succeeded.
func (r *Run) NoteTx(err error) {
	if err == nil {
		r.txFailed.Store(nil)
	} else {
		r.txFailed.Store(&err)
	}
}

func (r *Run) settleTx(ctx context.Context, tx store.Tx, o *Outcome) error {
	if err := r.slots.slotFor(ctx, r, o); err != nil {
		return err
	}
	var became store.State
	var err error
	if o.completes() {
		became, err = store.CompleteTx(ctx, tx, r.Fence, r.DeleteCompleted)
	} else {
		became, err = store.SettleTx(ctx, tx, r.Owner, o.Change(r))
	}
	if err != nil {
		return r.refused(ctx, tx, err)
	}
	o.became(became)
	return nil
}

// HoldTx keeps the run's claim until the caller's transaction ends. It returns pg.ErrLeaseLost if the run no longer
// owns its job.
func (r *Run) HoldTx(ctx context.Context, tx store.Tx) error {
	if err := store.HoldTx(ctx, tx, r.Fence); err != nil {
		return r.refused(ctx, tx, err)
	}
	return nil
}

// refused finds out why a settle or a hold in the handler's transaction failed.
func (r *Run) refused(ctx context.Context, tx store.Tx, err error) error {
	if pg.NoRows(err) {
		return r.matchedNothing(ctx, tx)
	}
	return pg.Classify(err)
}

// notOurs returns the error of a settle that matched no row: pg.ErrState if this run has settled the job before,
// otherwise pg.ErrLeaseLost. If the first settle was rolled back, the row matches again, and notOurs is not called.
func (r *Run) notOurs() error {
	if r.txOutcome.Load() != nil && !r.Lease.Ended.Load() {
		return fmt.Errorf("%w: this run has settled job %s already", pg.ErrState, r.ID)
	}
	return pg.ErrLeaseLost
}

// matchedNothing returns the error of a settle that matched no row. The transaction has not failed, so it can read the
// row.
func (r *Run) matchedNothing(ctx context.Context, tx store.Tx) error {
	over := r.notOurs()
	if errors.Is(over, pg.ErrState) {
		return over
	}
	held, err := store.StillOursTx(ctx, tx, r.Fence)
	if err != nil {
		return fmt.Errorf("drover: job %s was not settled, and the reason is not known: %w", r.ID, pg.Classify(err))
	}
	if held {
		return fmt.Errorf("drover: job %s was not settled though it may still be this run's: a trigger left its row as it was, or the transaction began before the claim", r.ID)
	}
	return over
}
