package pg

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Acquire takes a connection of the pool.
func (p *Pool) Acquire(ctx context.Context) (Pooled, error) {
	conn, err := p.Pool.Acquire(ctx)
	return Pooled{conn, p.Names}, err
}

// Query calls the pool's Query with drover's names qualified.
func (p *Pool) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return p.Pool.Query(ctx, p.Names.SQL(sql), args...)
}

// QueryRow calls the pool's QueryRow with drover's names qualified.
func (p *Pool) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return p.Pool.QueryRow(ctx, p.Names.SQL(sql), args...)
}

// Pooled is a connection of the application's pool.
type Pooled struct {
	conn  *pgxpool.Conn
	names *Names
}

// Conn returns the connection.
func (p Pooled) Conn() Conn { return p.names.On(p.conn.Conn()) }

// Release gives the connection back.
func (p Pooled) Release() { p.conn.Release() }

// Exec sends a statement with drover's names qualified.
func (p Pooled) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return p.conn.Exec(ctx, p.names.SQL(sql), args...)
}

// QueryRow sends a statement with drover's names qualified.
func (p Pooled) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return p.conn.QueryRow(ctx, p.names.SQL(sql), args...)
}

// BeginTx begins a transaction in which drover's names are qualified.
func (p Pooled) BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error) {
	tx, err := p.conn.BeginTx(ctx, options)
	if err != nil {
		return nil, err
	}
	return p.names.tx(tx), nil
}

// Pgx returns the driver's connection, which does not qualify names.
func (p Pooled) Pgx() *pgx.Conn { return p.conn.Conn() }
