package drover

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Tx is what drover needs of a caller's transaction. A pgx.Tx is one, SQLTx makes one of a *sql.Tx, and a *pgx.Conn is
// one between its begin and its commit. A pool has the method too but is no transaction, nor is a *pgx.Conn outside of
// one: both are refused with an *InvalidError.
type Tx interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// checkTx refuses what would commit by itself: pool in the place of tx is a slip that would break the promise unseen.
func checkTx(tx Tx) error {
	if v := reflect.ValueOf(tx); tx == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		return &InvalidError{Field: "tx", Reason: "is nil"}
	}
	switch tx := tx.(type) {
	case sqlTx:
		if tx.tx == nil {
			return &InvalidError{Field: "tx", Reason: "is SQLTx(nil)"}
		}
	case *pgxpool.Pool, *pgxpool.Conn:
		return &InvalidError{Field: "tx", Reason: fmt.Sprintf("%T is no transaction", tx)}
	case interface{ PgConn() *pgconn.PgConn }: // a *pgx.Conn, or what embeds one
		if conn := tx.PgConn(); conn != nil && conn.TxStatus() == 'I' {
			return &InvalidError{Field: "tx", Reason: fmt.Sprintf("%T is outside of any transaction", tx)}
		}
	}
	return nil
}

// SQLTx makes a database/sql transaction a Tx, so that users of database/sql, GORM, ent, bun or sqlx settle and
// enqueue in theirs. Any Postgres driver will do: only scalars and JSON text travel.
func SQLTx(tx *sql.Tx) Tx { return sqlTx{tx} }

type sqlTx struct{ tx *sql.Tx }

func (t sqlTx) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	return sqlRow{t.tx.QueryRowContext(ctx, query, args...)}
}

type sqlRow struct{ row *sql.Row }

// Scan speaks of a missing row as pgx does.
func (r sqlRow) Scan(dest ...any) error {
	err := r.row.Scan(dest...)
	if err == sql.ErrNoRows {
		return pgx.ErrNoRows
	}
	return err
}

// CompleteTx completes the job in the handler's transaction: its rows and the completion commit together, or
// neither. Return nil after committing. An error returned after the commit is ignored, with a warning in the log.
//
// If CompleteTx fails, or its transaction does not commit, the job is not completed, and a handler that returns nil all the
// same fails the run with ErrNotCommitted. After an error or a rollback it may settle the job in another transaction: the
// one that commits counts.
//
// Errors: ErrLeaseLost if the job is someone else's by now, ErrState if this run has settled it already; roll back. A
// serialization failure (SQLSTATE 40001) is returned as the driver's error, unless the job is someone else's.
func (j *Job) CompleteTx(ctx context.Context, tx Tx) error { return j.SettleTx(ctx, tx, nil) }

// SettleTx records in the handler's transaction how the run ended: err is read as if the handler returned it, so
// that Discard, Snooze, RetryAfter, Cancel, a plain error or nil do what they do there. A delay counts from this call. It is
// fenced like CompleteTx, with the same errors; what the handler returns after committing is ignored likewise, and a nil
// without a commit fails the run.
func (j *Job) SettleTx(ctx context.Context, tx Tx, err error) error {
	r := j.run
	if r == nil {
		return ErrLeaseLost
	}
	failed := r.trySettleTx(ctx, tx, err)
	if failed == nil {
		r.txFailed.Store(nil)
	} else {
		r.txFailed.Store(&failed)
	}
	return failed
}

func (r *run) trySettleTx(ctx context.Context, tx Tx, err error) error {
	if err := checkTx(tx); err != nil {
		return err
	}
	o := r.decide(err)
	if err := r.sup.settler.slotFor(ctx, o); err != nil {
		return err
	}
	became, err := r.settleTx(ctx, tx, o)
	if err != nil {
		return r.refused(ctx, tx, err)
	}
	o.became(became)
	r.txOutcome.Store(o)
	return nil
}

func (r *run) settleTx(ctx context.Context, tx Tx, o *outcome) (State, error) {
	switch {
	case o.completes() && r.deleteCompleted:
		return fencedTx(ctx, tx, sqlCompleteDeleteTx, r.job.ID, r.claimSeq, r.owner, r.attemptedAt)
	case o.completes():
		return fencedTx(ctx, tx, sqlCompleteTx, r.job.ID, r.claimSeq, r.owner, r.attemptedAt)
	}
	doc, err := json.Marshal(o.change())
	if err != nil {
		return "", fmt.Errorf("encode outcome: %w", err)
	}
	return fencedTx(ctx, tx, sqlSettleTx, r.owner, string(doc))
}

// EnqueueTx stores another job in the handler's transaction if this job is still the handler's: for work that
// must be enqueued by one run only. It holds the job's row until the transaction ends. It comes before CompleteTx or
// SettleTx, after which the job is nobody's any more. Errors as Client.EnqueueTx, and those of CompleteTx.
func (j *Job) EnqueueTx(ctx context.Context, tx Tx, args Args, opts *EnqueueOpts) (Receipt, error) {
	if j.run == nil {
		return Receipt{}, ErrLeaseLost
	}
	if err := checkTx(tx); err != nil {
		return Receipt{}, err
	}
	r := j.run
	if _, err := fencedTx(ctx, tx, sqlHoldTx, r.job.ID, r.claimSeq, r.owner, r.attemptedAt); err != nil {
		return Receipt{}, r.refused(ctx, tx, err)
	}
	return r.sup.client.EnqueueTx(ctx, tx, args, opts)
}
