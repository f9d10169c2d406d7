// Package store has the statements that supervisors run: rows in, rows out. It starts no goroutine, and it knows no handler
// and no strategy. The root package has the statements of clients, in store_pg_*.go.
package store

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/pg"
)

// pipeline has the statements of the queue, in one round trip.
type pipeline struct{ pg.Pipeline }

// Session is a connection on which a supervisor's statements run.
type Session struct{ Conn *pgx.Conn }

func (s Session) Closed() bool { return s.Conn == nil || s.Conn.IsClosed() }

// Line is the connection of one goroutine, which comes back after it broke.
type Line struct{ pg.Link }

// Current is the connection that get returned last.
func (l *Line) Current() Session { return Session{l.Conn} }

func (l *Line) Get(ctx context.Context) (Session, error) {
	conn, err := l.Link.Get(ctx)
	return Session{conn}, err
}
