package drover

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// Why the database refused CompleteTx, SettleTx or EnqueueTx. A handler that hears ErrLeaseLost may return nil, for its
// job is someone else's. So it hears that only where its transaction can look. After a serialization failure the
// transaction can read nothing, and the handler gets the failure: the job may still be its own. A nil that it returns then
// completes nothing, and the fence of the settle protects the next owner.

// refused finds out why a settle or a hold in the handler's transaction failed.
func (r *run) refused(ctx context.Context, tx Tx, err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return r.matchedNothing(ctx, tx)
	}
	return pg.Classify(err)
}

// notOurs tells a second settle from a lost claim: the row matches neither. After a rollback another settle goes well.
func (r *run) notOurs() error {
	if r.txOutcome.Load() != nil && !r.lease.ended.Load() {
		return fmt.Errorf("%w: this run has settled job %s already", ErrState, r.job.ID)
	}
	return ErrLeaseLost
}

// matchedNothing explains a settle that changed no row. Its transaction is sound and can look for itself.
func (r *run) matchedNothing(ctx context.Context, tx Tx) error {
	over := r.notOurs()
	if errors.Is(over, ErrState) {
		return over
	}
	held, err := store.StillOursTx(ctx, tx, r.fence())
	if err != nil {
		return fmt.Errorf("drover: job %s was not settled, and the reason is not known: %w", r.job.ID, pg.Classify(err))
	}
	if held {
		return fmt.Errorf("drover: job %s was not settled though it may still be this run's: a trigger left its row as it was, or the transaction began before the claim", r.job.ID)
	}
	return over
}
