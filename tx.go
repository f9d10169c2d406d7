package drover

import (
	"context"
	"database/sql"
	"fmt"
	"reflect"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Tx is what drover needs of a caller's transaction. A pgx.Tx is one, SQLTx makes one from a
// *sql.Tx, and a *pgx.Conn is one between its begin and its commit. A pool has the method too but
// is not a transaction, nor is a *pgx.Conn outside one: both are refused with an *InvalidError.
type Tx interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// checkTx refuses what would commit by itself: passing pool instead of tx is a slip that would break the promise unseen.
func checkTx(tx Tx) error {
	if v := reflect.ValueOf(tx); tx == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		return &InvalidError{Field: "tx", Reason: "is nil"}
	}
	switch tx := tx.(type) {
	case sqlTx:
		if tx.tx == nil {
			return &InvalidError{Field: "tx", Reason: "is SQLTx(nil)"}
		}
	case interface {
		Acquire(ctx context.Context) (*pgxpool.Conn, error) // a pool, or a type that embeds one
	}, interface {
		Hijack() *pgx.Conn // a pool's connection, or a type that embeds one
	}:
		return &InvalidError{Field: "tx", Reason: fmt.Sprintf("%T is not a transaction", tx)}
	case interface{ PgConn() *pgconn.PgConn }: // a *pgx.Conn, or what embeds one
		if conn := tx.PgConn(); conn != nil && conn.TxStatus() == 'I' {
			return &InvalidError{Field: "tx", Reason: fmt.Sprintf("%T is outside of any transaction", tx)}
		}
	}
	return nil
}

// SQLTx makes a Tx from a database/sql transaction, so that users of database/sql, GORM, ent, bun
// or sqlx can enqueue and settle in their transactions. It works with any Postgres driver, because
// drover passes only scalars and JSON text.
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

// CompleteTx completes the job in the handler's transaction: its rows and the completion commit
// together, or neither. Return nil after committing. If the handler returns an error after the
// commit, drover ignores it and logs a warning.
//
// If CompleteTx fails, or its transaction does not commit, the job is not completed. If the handler
// then returns nil, the run fails with ErrNotCommitted. After an error or a rollback the handler
// may settle the job in another transaction; the one that commits counts.
//
// Errors: ErrLeaseLost if the job belongs to another supervisor by now, ErrState if this run has
// settled it already. Roll back after either. A serialization failure (SQLSTATE 40001) is returned
// as the driver's error, unless the job belongs to another supervisor.
func (j *Job) CompleteTx(ctx context.Context, tx Tx) error { return j.SettleTx(ctx, tx, nil) }

// SettleTx records in the handler's transaction how the run ended. It reads err as if the handler
// had returned it: Discard, Snooze, RetryAfter, Cancel, a plain error and nil have the same
// meaning. A delay counts from this call. SettleTx is fenced like CompleteTx, with the same errors.
// After the commit drover ignores what the handler returns; if the handler returns nil without a
// commit, the run fails.
func (j *Job) SettleTx(ctx context.Context, tx Tx, err error) error {
	r := j.run
	if r == nil {
		return j.rehearsal.settle(tx, err)
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
	if err := r.settler.slotFor(ctx, o); err != nil {
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
	if o.completes() {
		return completeTx(ctx, tx, &r.fence, r.deleteCompleted)
	}
	return settleTx(ctx, tx, r.owner, o.change())
}

// EnqueueTx stores another job in the handler's transaction, if this job still belongs to the
// handler. Use it for work that only one run may enqueue. It locks the job's row until the
// transaction ends. Call it before CompleteTx or SettleTx, because afterwards the job no longer
// belongs to the handler. Errors are those of Client.EnqueueTx and CompleteTx.
func (j *Job) EnqueueTx(ctx context.Context, tx Tx, args Args, opts *EnqueueOpts) (Receipt, error) {
	if j.run == nil {
		return Receipt{}, ErrLeaseLost
	}
	if err := checkTx(tx); err != nil {
		return Receipt{}, err
	}
	r := j.run
	if err := holdTx(ctx, tx, &r.fence); err != nil {
		return Receipt{}, r.refused(ctx, tx, err)
	}
	return r.shared.client.EnqueueTx(ctx, tx, args, opts)
}
