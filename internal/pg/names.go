package pg

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Names writes a schema in front of drover's names, just before a statement is sent to the server. The statements in
// the code have no schema. A nil *Names leaves them as they are, and search_path picks the schema.
// docs/adr/0039-names-are-qualified-where-statements-leave.md has the reasons.
type Names struct {
	schema string
	prefix string   // the schema as SQL has it, with the dot
	texts  sync.Map // from statement to qualified statement
	known  atomic.Int32
}

// mostTexts bounds how many qualified statements Names keeps. drover has about 200, but the statements on the archive
// contain a number from the caller, so there may be more.
const mostTexts = 1000

// NewNames returns the Names for a schema; nil if schema is empty.
func NewNames(schema string) *Names {
	if schema == "" {
		return nil
	}
	return &Names{schema: schema, prefix: pgx.Identifier{schema}.Sanitize() + "."}
}

// Schema returns the schema's name; "": search_path picks the schema.
func (n *Names) Schema() string {
	if n == nil {
		return ""
	}
	return n.schema
}

// Table returns the name of one of drover's relations, with its schema, in the driver's form.
func (n *Names) Table(name string) pgx.Identifier {
	if n == nil {
		return pgx.Identifier{name}
	}
	return pgx.Identifier{n.schema, name}
}

// SQL returns the statement with the schema in front of drover's names. It keeps the results for up to mostTexts
// statements.
func (n *Names) SQL(text string) string {
	if n == nil {
		return text
	}
	if known, ok := n.texts.Load(text); ok {
		qualified, _ := known.(string)
		return qualified
	}
	qualified := qualify(text, n.prefix)
	if n.known.Load() < mostTexts {
		if _, loaded := n.texts.LoadOrStore(text, qualified); !loaded {
			n.known.Add(1)
		}
	}
	return qualified
}

// Querier has the method that drover needs of a caller's transaction.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// In returns tx in a wrapper that qualifies drover's names in each statement.
func (n *Names) In(tx Querier) Querier {
	if n == nil {
		return tx
	}
	return namedQuerier{tx, n}
}

type namedQuerier struct {
	tx    Querier
	names *Names
}

func (q namedQuerier) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return q.tx.QueryRow(ctx, q.names.SQL(sql), args...)
}

// Conn is a connection for drover's statements: a *pgx.Conn, or a wrapper around it that qualifies drover's names.
type Conn interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	WaitForNotification(ctx context.Context) (*pgconn.Notification, error)
	Config() *pgx.ConnConfig
	PgConn() *pgconn.PgConn
	IsClosed() bool
	Close(ctx context.Context) error
}

// On returns conn in a wrapper that qualifies drover's names in each statement.
func (n *Names) On(conn *pgx.Conn) Conn {
	if n == nil {
		return conn
	}
	return &namedConn{conn, n}
}

type namedConn struct {
	*pgx.Conn
	names *Names
}

func (c *namedConn) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return c.Conn.Exec(ctx, c.names.SQL(sql), args...)
}

func (c *namedConn) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return c.Conn.Query(ctx, c.names.SQL(sql), args...)
}

func (c *namedConn) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return c.Conn.QueryRow(ctx, c.names.SQL(sql), args...)
}

func (c *namedConn) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	for _, q := range b.QueuedQueries {
		q.SQL = c.names.SQL(q.SQL)
	}
	return c.Conn.SendBatch(ctx, b)
}

// tx returns tx in a wrapper that qualifies drover's names in each statement.
func (n *Names) tx(tx pgx.Tx) pgx.Tx {
	if n == nil {
		return tx
	}
	return namedTx{tx, n}
}

type namedTx struct {
	pgx.Tx
	names *Names
}

func (t namedTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return t.Tx.Exec(ctx, t.names.SQL(sql), args...)
}

func (t namedTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return t.Tx.Query(ctx, t.names.SQL(sql), args...)
}

func (t namedTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return t.Tx.QueryRow(ctx, t.names.SQL(sql), args...)
}
