package pg

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
)

// Link is the connection of one goroutine. Get makes a new connection if the old one has broken, or if Pipeline.Send
// has closed it because the server is read-only. The first Get after the pool's MaxConnLifetime also replaces the
// connection, because the server's name may lead to another server by then.
type Link struct {
	Pool  *Pool
	Conn  Conn
	raw   *pgx.Conn // the same connection, for the pool's hook
	ended bool      // Close has closed the connection
	Until time.Time // when to replace the connection
	Again func()    // called when Get has replaced a broken connection; may be nil
}

// renewPause is the pause between two attempts to replace a connection at the end of its lifetime, if the first attempt
// fails.
const renewPause = time.Minute

// Get returns the connection, or a new one. Call it only between round trips, because it may close the old connection.
func (l *Link) Get(ctx context.Context) (Conn, error) {
	lost := l.Conn != nil && l.Conn.IsClosed()
	if l.Conn != nil && !lost {
		if !time.Now().Before(l.Until) {
			l.renew(ctx)
		}
		return l.Conn, nil
	}
	conn, err := l.Pool.Dial(ctx)
	if err != nil {
		return nil, err
	}
	l.put(ctx, conn)
	if lost && l.Again != nil {
		l.Again()
	}
	return l.Conn, nil
}

// renew replaces a connection at the end of its lifetime. It keeps the old one if it cannot open a new one.
func (l *Link) renew(ctx context.Context) {
	l.Until = time.Now().Add(renewPause)
	if end, ok := ctx.Deadline(); ok { // the round trip that follows needs the other half of the time
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(end)/2)
		defer cancel()
	}
	if conn, err := l.Pool.Dial(ctx); err == nil {
		l.put(ctx, conn)
	}
}

// put closes the old connection and uses conn from now on. The lifetime of conn is the pool's MaxConnLifetime, plus up
// to MaxConnLifetimeJitter; without a MaxConnLifetime it is MaxSpan.
func (l *Link) put(ctx context.Context, conn *pgx.Conn) {
	l.Close(ctx)
	cfg := l.Pool.Config()
	l.Conn, l.raw, l.ended, l.Until = l.Pool.Names.On(conn), conn, false, time.Now().Add(MaxSpan)
	if life, jitter := cfg.MaxConnLifetime, cfg.MaxConnLifetimeJitter; life > 0 {
		if jitter > 0 {
			life += rand.N(jitter) //nolint:gosec // it only spreads the reconnects
		}
		l.Until = time.Now().Add(life)
	}
}

// Close closes the connection. It runs the pool's BeforeClose first, as the pool does for connections on which
// AfterConnect has run.
func (l *Link) Close(ctx context.Context) {
	if l.Conn == nil || l.ended {
		return
	}
	l.ended = true
	if hook := l.Pool.Config().BeforeClose; hook != nil {
		hook(l.raw)
	}
	CloseConn(ctx, l.Conn)
}

// ErrNoTime is the error of a statement that was not sent, because the context would have cut it off.
var ErrNoTime = errors.New("no time left for the statement")

// TimeFor returns ErrNoTime if a statement that takes d would be cut off, which would cost the connection.
func TimeFor(ctx context.Context, d time.Duration) error {
	if end, ok := ctx.Deadline(); ctx.Err() != nil || ok && time.Until(end) < d {
		return ErrNoTime
	}
	return nil
}
