package drover

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Tx is a transaction of the caller's: a pgx.Tx, what embeds one, SQLTx of a *sql.Tx, or a *pgx.Conn between its begin
// and its commit. drover asks its connection, by its method Conn or PgConn, whether a transaction is open, and
// otherwise refuses it with an *InvalidError before it sends anything. So it refuses a pool, whatever type wraps it, a
// mock, and a transaction that has ended or not begun.
type Tx interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// checkTx refuses what would commit each statement by itself. Only the connection knows: a type that wraps a pool looks
// like one that wraps a transaction. A transaction that has failed passes, and the server's error says so.
func checkTx(tx Tx) (err error) {
	refuse := func(reason string, under error) error {
		return &InvalidError{Field: "tx", Reason: reason + "; hand in a pgx.Tx that is open, or SQLTx of a *sql.Tx", Err: under}
	}
	defer func() { // a nil that is embedded, or a connection that was given back
		if p := recover(); p != nil {
			err = refuse(fmt.Sprintf("%T panics when asked for its connection: %s", tx, recoveredText(p)), nil)
		}
	}()
	if v := reflect.ValueOf(tx); tx == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		return refuse("is nil", nil)
	}
	var conn *pgconn.PgConn
	switch tx := tx.(type) {
	case sqlTx:
		if tx.tx == nil {
			return refuse("is SQLTx(nil)", nil)
		}
		return nil
	case interface{ PgConn() *pgconn.PgConn }: // a *pgx.Conn, or what embeds one
		conn = tx.PgConn()
	case interface{ Conn() *pgx.Conn }:
		if c := tx.Conn(); c != nil {
			conn = c.PgConn()
		}
	}
	switch {
	case conn == nil:
		return refuse(fmt.Sprintf("%T has no connection that says whether a transaction is open", tx), nil)
	case conn.TxStatus() != 'T' && conn.TxStatus() != 'E':
		return refuse(fmt.Sprintf("%T is outside of any transaction", tx), pgx.ErrTxClosed)
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
