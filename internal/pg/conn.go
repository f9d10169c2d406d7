package pg

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover/internal/pgurl"
)

// Pool is the application's pool. It also opens connections of drover's own, with the pool's settings.
type Pool struct {
	*pgxpool.Pool
	Names *Names // nil: search_path picks the schema
	// Invalid makes the error of a wrong setting. The error matches ErrInvalid.
	Invalid func(field, reason string, cause error) error
}

// A supervisor has connections of its own, outside the pool, because handlers may take every connection of the pool,
// and heartbeats and settles must go on. It makes these connections as the pool does, and they live no longer than the
// pool's connections. So they lead to the same server. docs/adr/0029-own-connections-follow-the-pool.md lists which of
// the pool's settings count.

// Dial opens a connection of drover's own, in the state in which the pool would hand it out.
func (p *Pool) Dial(ctx context.Context) (*pgx.Conn, error) {
	cfg := p.Config()
	if cfg.BeforeConnect != nil {
		if err := cfg.BeforeConnect(ctx, cfg.ConnConfig); err != nil {
			return nil, p.RefusedBy("BeforeConnect", err)
		}
	}
	// pgx keeps notifications for WaitForNotification only if OnNotification is not set.
	cfg.ConnConfig.OnNotification = nil
	shareTime(ctx, cfg.ConnConfig)
	conn, err := pgx.ConnectConfig(ctx, cfg.ConnConfig)
	if err != nil {
		return nil, pgurl.Explain(err)
	}
	if err := p.handOut(ctx, cfg, conn); err != nil {
		CloseConn(ctx, conn)
		return nil, err
	}
	return conn, nil
}

// handOut runs the hooks that the pool runs before it hands out a new connection.
func (p *Pool) handOut(ctx context.Context, cfg *pgxpool.Config, conn *pgx.Conn) error {
	if cfg.AfterConnect != nil {
		if err := cfg.AfterConnect(ctx, conn); err != nil {
			return p.RefusedBy("AfterConnect", err)
		}
	}
	name, usable := "PrepareConn", true
	switch {
	case cfg.PrepareConn != nil:
		var err error
		if usable, err = cfg.PrepareConn(ctx, conn); err != nil {
			return p.RefusedBy(name, err)
		}
	case cfg.BeforeAcquire != nil: //nolint:staticcheck // deprecated, and in use
		name = "BeforeAcquire"
		usable = cfg.BeforeAcquire(ctx, conn) //nolint:staticcheck // see above
	}
	switch {
	case !usable:
		return p.RefusedBy(name, errors.New("it refused a new connection"))
	case conn.PgConn().TxStatus() != 'I':
		return p.RefusedBy(name, errors.New("it left a transaction open"))
	}
	return nil
}

// RefusedBy wraps an error of one of the pool's hooks. drover runs these hooks on connections of its own.
func (p *Pool) RefusedBy(hook string, err error) error {
	return p.Invalid("pool."+hook, "run on a connection of drover's own: "+err.Error(), err)
}

// mostDial is the connect timeout if the pool has no ConnectTimeout. It is short, because the next attempt looks up the
// server's name again, which may lead to another server by then.
const mostDial = 4 * time.Second

// shareTime sets the connect timeout. It gives each of several servers an equal part of the time that is left.
// Otherwise a first server that does not answer at all would take all of the time in each attempt, and the other
// servers would never be tried.
func shareTime(ctx context.Context, cfg *pgx.ConnConfig) {
	if cfg.ConnectTimeout <= 0 {
		cfg.ConnectTimeout = mostDial
	}
	end, ok := ctx.Deadline()
	if !ok {
		return
	}
	servers := []string{net.JoinHostPort(cfg.Host, fmt.Sprint(cfg.Port))}
	for _, f := range cfg.Fallbacks { // Fallbacks has a server twice if the driver tries TLS first
		if server := net.JoinHostPort(f.Host, fmt.Sprint(f.Port)); !slices.Contains(servers, server) {
			servers = append(servers, server)
		}
	}
	share := time.Until(end) / time.Duration(len(servers))
	if len(servers) > 1 && share > 0 {
		cfg.ConnectTimeout = min(cfg.ConnectTimeout, share)
	}
}

// Link is the connection of one goroutine. Get makes a new one after the connection broke, or after Pipeline.Send
// closed it because the server turned out to be read-only. The first Get after the pool's MaxConnLifetime also replaces
// the connection, because the server's name may lead to another server by then.
type Link struct {
	Pool  *Pool
	Conn  Conn
	raw   *pgx.Conn // the same connection, for the pool's hook
	ended bool      // Close has closed the connection
	Until time.Time // when to replace the connection
	Again func()    // Get calls it after it has replaced a broken connection; may be nil
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

// CloseConn closes a connection, and waits a second for that at most.
func CloseConn(ctx context.Context, conn Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // the connection is given up in any case
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
