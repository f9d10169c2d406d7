package drover

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/pg"
)

// Why the database refused CompleteTx, SettleTx or EnqueueTx. A handler that hears ErrLeaseLost may return nil, for its
// job is someone else's. So it hears that only where somebody has looked. As to the job, what a handler returns never
// completes a run whose settle failed.

// refused finds out why a settle or a hold in the handler's transaction failed.
func (r *run) refused(ctx context.Context, tx Tx, err error) error {
	var db interface{ SQLState() string } // of any driver: SQLTx
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return r.matchedNothing(ctx, tx)
	case errors.As(err, &db) && db.SQLState() == "40001" && r.sup.settler.claimOver(ctx, r):
		return fmt.Errorf("%w (%w)", r.notOurs(), err)
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
	var held bool
	if err := tx.QueryRow(ctx, sqlStillOursTx, r.job.ID, r.claimSeq, r.owner, r.attemptedAt).Scan(&held); err != nil {
		return fmt.Errorf("drover: job %s was not settled, and the reason is not known: %w", r.job.ID, pg.Classify(err))
	}
	if held {
		return fmt.Errorf("drover: job %s was not settled though it may still be this run's: a trigger left its row as it was, or the transaction began before the claim", r.job.ID)
	}
	return over
}

// inquiry is a run that asks whether its claim is over. Its own transaction cannot look any more.
type inquiry struct {
	run  *run
	over chan bool
}

// claimOver reports whether the claim of a run is certainly over. It looks by the settler's connection: the handler's
// transaction may hold the last one of the pool.
func (e *settler) claimOver(ctx context.Context, r *run) bool {
	if r.phase.Load() == phaseEnded {
		return true // the supervisor has given it up
	}
	q := &inquiry{r, make(chan bool, 1)}
	e.mu.Lock()
	e.inquiries = append(e.inquiries, q)
	e.mu.Unlock()
	e.poke()
	select {
	case over := <-q.over:
		return over
	case <-ctx.Done():
	case <-e.idle:
	}
	return false
}

// answer looks for all that ask. If that fails, nothing is known, and nobody hears that its claim is over.
func (e *settler) answer(ctx context.Context, conn *pgx.Conn) {
	e.mu.Lock()
	asking := e.inquiries
	e.inquiries = nil
	e.mu.Unlock()
	if len(asking) == 0 {
		return
	}
	ids := make([]string, len(asking))
	for i, q := range asking {
		ids[i] = q.run.job.ID
	}
	seen, alive, err := e.lookAt(ctx, conn, ids)
	for _, q := range asking {
		row := seen[q.run.job.ID]
		q.over <- err == nil && !(row.heldBy(q.run) && alive[q.run.owner])
	}
}
