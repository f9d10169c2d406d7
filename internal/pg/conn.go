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

// Pool is the application's pool, and drover's own connections that are made with its settings.
type Pool struct {
	*pgxpool.Pool
	Names *Names // nil: search_path picks the schema
	// Invalid makes the error of a setting that is wrong. It matches ErrInvalid.
	Invalid func(field, reason string, cause error) error
}

// A supervisor has connections of its own, outside the pool: handlers that take every pooled connection must not starve
// heartbeat and settle. It makes these connections as the pool does, and they live no longer than the pool's
// connections. So they lead to the same server. docs/adr/0029-own-connections-follow-the-pool.md lists which of the
// pool's settings count.

// Dial opens a connection of drover's own, in the state in which the pool would hand it out.
func (p *Pool) Dial(ctx context.Context) (*pgx.Conn, error) {
	cfg := p.Config()
	if cfg.BeforeConnect != nil {
		if err := cfg.BeforeConnect(ctx, cfg.ConnConfig); err != nil {
			return nil, p.RefusedBy("BeforeConnect", err)
		}
	}
	// pgx keeps notifications for WaitForNotification only if there is no such handler.
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

// handOut runs the hooks that the pool runs before it hands a new connection out.
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

// RefusedBy wraps an error of one of the pool's hooks, which drover runs on connections of its own.
func (p *Pool) RefusedBy(hook string, err error) error {
	return p.Invalid("pool."+hook, "run on a connection of drover's own: "+err.Error(), err)
}

// mostDial is the connect timeout if the pool has no ConnectTimeout. By then the server's name may lead to another
// server.
const mostDial = 4 * time.Second

// shareTime gives each of several servers an equal part of the time that is left. Otherwise a first server that
// swallows packets would take all of the time in each attempt, and the others would never be tried.
func shareTime(ctx context.Context, cfg *pgx.ConnConfig) {
	if cfg.ConnectTimeout <= 0 {
		cfg.ConnectTimeout = mostDial
	}
	end, ok := ctx.Deadline()
	if !ok {
		return
	}
	servers := []string{net.JoinHostPort(cfg.Host, fmt.Sprint(cfg.Port))}
	for _, f := range cfg.Fallbacks { // lists the same server twice if TLS is tried first
		if server := net.JoinHostPort(f.Host, fmt.Sprint(f.Port)); !slices.Contains(servers, server) {
			servers = append(servers, server)
		}
	}
	share := time.Until(end) / time.Duration(len(servers))
	if len(servers) > 1 && share > 0 {
		cfg.ConnectTimeout = min(cfg.ConnectTimeout, share)
	}
}

// Link is the connection of one goroutine. It reconnects after the connection broke, and after Pipeline.Send closed the
// connection because the server turned out to be read-only. The first Get after the pool's MaxConnLifetime replaces the
// connection, because the server's name may lead to another server by then.
type Link struct {
	Pool  *Pool
	Conn  Conn
	raw   *pgx.Conn // the same, for the pool's hook
	ended bool      // Close has closed it
	Until time.Time // when it is replaced
	Again func()    // called after a reconnect; may be nil
}

// renewPause is the pause before the next attempt to replace a connection that could not be replaced.
const renewPause = time.Minute

// Get returns the connection, or a new one. It is called between round trips.
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
	if end, ok := ctx.Deadline(); ok { // the round trip that follows needs the other half
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(end)/2)
		defer cancel()
	}
	if conn, err := l.Pool.Dial(ctx); err == nil {
		l.put(ctx, conn)
	}
}

// put closes the old connection and uses a new one. The lifetime of the new connection is the pool's MaxConnLifetime,
// plus up to MaxConnLifetimeJitter; without a MaxConnLifetime it is MaxSpan.
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

// Close closes the connection. It runs the pool's BeforeClose first, because AfterConnect has run on the connection,
// too.
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
	_ = conn.Close(ctx) // it is going away either way
}

// ErrNoTime says that a statement was not sent, because it would have been cut off.
var ErrNoTime = errors.New("no time left for the statement")

// TimeFor returns ErrNoTime if a statement that takes d would be cut off, which would cost the connection.
func TimeFor(ctx context.Context, d time.Duration) error {
	if end, ok := ctx.Deadline(); ctx.Err() != nil || ok && time.Until(end) < d {
		return ErrNoTime
	}
	return nil
}
