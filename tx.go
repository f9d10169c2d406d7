package drover

import (
	"context"
	"database/sql"
	"fmt"
	"reflect"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/drover-queue/drover/internal/pg"
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
	if wrong := pg.OtherEncoding(conn); wrong != "" {
		return &InvalidError{Field: "tx", Reason: wrong}
	}
	return nil
}

// SQLTx makes a database/sql transaction a Tx, so that users of database/sql, GORM, ent, bun or sqlx can settle and
// enqueue in their transactions. It works with any Postgres driver, because drover sends only scalars and JSON text.
// drover cannot check whether such a transaction is open, or which client_encoding its session has. A nil tx is refused
// with an *InvalidError.
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
