package store

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/pg"
)

// pipeline is a pg.Pipeline to which the files of this package add methods for their statements.
type pipeline struct{ pg.Pipeline }

// Session is a connection on which a supervisor's statements run.
type Session struct{ Conn pg.Conn }

// Closed reports whether there is no open connection.
func (s Session) Closed() bool { return s.Conn == nil || s.Conn.IsClosed() }

// Line is the connection of one goroutine. If the connection is broken, Get makes a new one.
type Line struct{ pg.Link }

// NewLine returns a line that connects at its first use, with the settings of the pool.
func NewLine(pool *pg.Pool) Line { return Line{pg.Link{Pool: pool}} }

// Current returns the present connection, which may be broken, without making a new one.
func (l *Line) Current() Session { return Session{l.Conn} }

// Get returns the connection, or a new one. Call it only between round trips, because it may close the old connection.
func (l *Line) Get(ctx context.Context) (Session, error) {
	conn, err := l.Link.Get(ctx)
	return Session{conn}, err
}

// SQLListen returns the name of drover's notification channel.
const SQLListen = `select drover_channel()`

// Listen subscribes the connection to drover's channel.
func (s Session) Listen(ctx context.Context) error {
	var channel string
	err := s.Conn.QueryRow(ctx, SQLListen).Scan(&channel)
	if err == nil {
		_, err = s.Conn.Exec(ctx, "listen "+pgx.Identifier{channel}.Sanitize())
	}
	return err
}

// Unlisten ends the subscription of Listen.
func (s Session) Unlisten(ctx context.Context) error {
	_, err := s.Conn.Exec(ctx, "unlisten *")
	return err
}

// WaitForNotification waits until the server sends a notification, and returns its text.
func (s Session) WaitForNotification(ctx context.Context) (text string, err error) {
	note, err := s.Conn.WaitForNotification(ctx)
	if err != nil {
		return "", err
	}
	return note.Payload, nil
}

// Borrow takes a connection of the pool. The result done gives it back.
func Borrow(ctx context.Context, pool *pg.Pool) (s Session, done func(), err error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return Session{}, nil, pg.Classify(err)
	}
	return Session{conn.Conn()}, conn.Release, nil
}

// inTx sends the statements that the function add puts into p, as one transaction and in one round trip.
func (s Session) inTx(ctx context.Context, add func(p *pipeline)) error {
	var p pipeline
	p.Begin()
	add(&p)
	p.Commit()
	return p.Send(ctx, s.Conn)
}

// exec runs one statement in a transaction of its own, and returns how many rows the statement touched.
func (s Session) exec(ctx context.Context, sql string, args ...any) (n int64, err error) {
	err = s.inTx(ctx, func(p *pipeline) { p.Exec(&n, sql, args...) })
	return n, err
}
