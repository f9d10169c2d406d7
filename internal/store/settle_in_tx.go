package store

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// SQLCompleteTx completes the job of a run in a caller's transaction. finalized_at is the statement's time, because
// the transaction may have begun long before.
const SQLCompleteTx = `
update jobs set state = 'completed', finalized_at = statement_timestamp(), claimed_by = null
where id = $1 and claim_seq = $2 and claimed_by = $3 and attempted_at = $4 and state = 'running'
returning state`

// SQLCompleteDeleteTx is used instead of SQLCompleteTx for a job that is not kept after completion.
const SQLCompleteDeleteTx = `
delete from jobs where id = $1 and claim_seq = $2 and claimed_by = $3 and attempted_at = $4 and state = 'running' returning 'completed'`

// SQLHoldTx keeps a run's claim until the caller's transaction ends.
const SQLHoldTx = `
select state from jobs where id = $1 and claim_seq = $2 and claimed_by = $3 and attempted_at = $4 and state = 'running' for no key update`

// SQLStillOursTx reports whether a claim may still be valid after one of the statements above has found no row. If a
// repeatable read or serializable transaction began before the claim, it may not see the claim, so the answer is true.
const SQLStillOursTx = `
select exists (select from jobs where id = $1 and claim_seq = $2 and claimed_by = $3 and attempted_at = $4 and state = 'running')
	or current_setting('transaction_isolation') in ('repeatable read', 'serializable') and now() < $4`

// Tx is a caller's transaction.
type Tx interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// CompleteTx completes a run's job in a caller's transaction, and deletes it if del is true. It returns the new state
// of the job. This function and the functions below return the errors of the driver. If no row matched, the error is
// pgx.ErrNoRows.
func CompleteTx(ctx context.Context, tx Tx, f Fence, del bool) (became State, err error) {
	sql := SQLCompleteTx
	if del {
		sql = SQLCompleteDeleteTx
	}
	return fencedTx(ctx, tx, sql, f)
}

// SettleTx ends a run of supervisor owner with any outcome except completion, in a caller's transaction. It returns the
// new state of the job.
func SettleTx(ctx context.Context, tx Tx, owner string, c Change) (became State, err error) {
	doc, err := json.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("encode outcome: %w", err)
	}
	err = tx.QueryRow(ctx, SQLSettleTx, owner, string(doc)).Scan(&became)
	return became, err
}

// HoldTx locks a run's job until the transaction ends, so that the run keeps its claim until then.
func HoldTx(ctx context.Context, tx Tx, f Fence) error {
	_, err := fencedTx(ctx, tx, SQLHoldTx, f)
	return err
}

// StillOursTx reports whether the claim may still be valid after a statement has found no row: see SQLStillOursTx.
func StillOursTx(ctx context.Context, tx Tx, f Fence) (held bool, err error) {
	err = tx.QueryRow(ctx, SQLStillOursTx, f.ID, f.Seq, f.Owner, f.ClaimedAt).Scan(&held)
	return held, err
}

func fencedTx(ctx context.Context, tx Tx, sql string, f Fence) (became State, err error) {
	err = tx.QueryRow(ctx, sql, f.ID, f.Seq, f.Owner, f.ClaimedAt).Scan(&became)
	return became, err
}
