package drover

import (
	"context"
	"database/sql"
	"fmt"
	"reflect"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Tx is a transaction of the caller: a pgx.Tx, a type that embeds one, SQLTx of a *sql.Tx, or a *pgx.Conn between its
// begin and its commit. drover gets the connection from the method Conn or PgConn and checks that a transaction is
// open on it. Otherwise it returns an *InvalidError before it sends anything. So it refuses a pool (even in a
// wrapper), a mock, and a transaction that has ended or has not begun.
type Tx interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// checkTx refuses a tx on which each statement would commit by itself. It checks the connection, because a type that
// wraps a pool looks like a type that wraps a transaction. A transaction that has failed passes: the server returns an
// error for its next statement.
func checkTx(tx Tx) (err error) {
	refuse := func(reason string, under error) error {
		return &InvalidError{Field: "tx", Reason: reason + "; hand in a pgx.Tx that is open, or SQLTx of a *sql.Tx", Err: under}
	}
	defer func() { // an embedded nil, or a connection that was returned to its pool
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
	case interface{ PgConn() *pgconn.PgConn }: // a *pgx.Conn, or a type that embeds one
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

// SQLTx makes a database/sql transaction a Tx, so that users of database/sql, GORM, ent, bun or sqlx can settle and
// enqueue in their transactions. It works with any Postgres driver, because drover sends only scalars and JSON text.
// drover cannot check whether such a transaction is open; a nil tx is refused with an *InvalidError.
func SQLTx(tx *sql.Tx) Tx { return sqlTx{tx} }

type sqlTx struct{ tx *sql.Tx }

func (t sqlTx) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	return sqlRow{t.tx.QueryRowContext(ctx, query, args...)}
}

type sqlRow struct{ row *sql.Row }

// Scan returns pgx.ErrNoRows for a missing row.
func (r sqlRow) Scan(dest ...any) error {
	err := r.row.Scan(dest...)
	if err == sql.ErrNoRows {
		return pgx.ErrNoRows
	}
	return err
}

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
