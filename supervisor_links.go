package drover

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover/internal/pgurl"
)

// A supervisor has connections of its own, outside the pool: handlers that take every pooled connection must not starve
// heartbeat and settle. It makes them as the pool makes its connections, and they live no longer. So they lead to the
// same server as the pool's. docs/adr/0029-own-connections-follow-the-pool.md lists which of the pool's settings count.

// dial opens a connection of drover's own, in the state in which the pool would hand it out.
func (p *dbPool) dial(ctx context.Context) (*pgx.Conn, error) {
	cfg := p.Config()
	if cfg.BeforeConnect != nil {
		if err := cfg.BeforeConnect(ctx, cfg.ConnConfig); err != nil {
			return nil, p.refusedBy("BeforeConnect", err)
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
		closeConn(ctx, conn)
		return nil, err
	}
	return conn, nil
}

// handOut runs the hooks that the pool runs before it hands a new connection out.
func (p *dbPool) handOut(ctx context.Context, cfg *pgxpool.Config, conn *pgx.Conn) error {
	if cfg.AfterConnect != nil {
		if err := cfg.AfterConnect(ctx, conn); err != nil {
			return p.refusedBy("AfterConnect", err)
		}
	}
	name, usable := "PrepareConn", true
	switch {
	case cfg.PrepareConn != nil:
		var err error
		if usable, err = cfg.PrepareConn(ctx, conn); err != nil {
			return p.refusedBy(name, err)
		}
	case cfg.BeforeAcquire != nil: //nolint:staticcheck // deprecated, and in use
		name = "BeforeAcquire"
		usable = cfg.BeforeAcquire(ctx, conn) //nolint:staticcheck // see above
	}
	switch {
	case !usable:
		return p.refusedBy(name, errors.New("it refused a new connection"))
	case conn.PgConn().TxStatus() != 'I':
		return p.refusedBy(name, errors.New("it left a transaction open"))
	}
	return nil
}

// refusedBy wraps an error of one of the pool's hooks, which drover runs on connections of its own.
func (p *dbPool) refusedBy(hook string, err error) error {
	return p.invalid("pool."+hook, "run on a connection of drover's own: "+err.Error(), err)
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

// link is the connection of one goroutine, which reconnects after it broke. It leaves a server that turned out to be
// read-only (see pipeline.send) or that fails again and again (see trouble.failed). It does not outlive the pool's
// MaxConnLifetime, because the server's name may lead to another server by then.
type link struct {
	pool  *dbPool
	conn  *pgx.Conn
	ended bool      // close has closed it
	until time.Time // when it is replaced
	again func()    // called after a reconnect; may be nil
}

// renewPause is the pause before the next attempt to replace a connection that could not be replaced.
const renewPause = time.Minute

// get returns the connection, or a new one. It is called between round trips.
func (l *link) get(ctx context.Context) (*pgx.Conn, error) {
	lost := l.conn != nil && l.conn.IsClosed()
	if l.conn != nil && !lost {
		if !time.Now().Before(l.until) {
			l.renew(ctx)
		}
		return l.conn, nil
	}
	conn, err := l.pool.dial(ctx)
	if err != nil {
		return nil, err
	}
	l.put(ctx, conn)
	if lost && l.again != nil {
		l.again()
	}
	return conn, nil
}

// renew replaces a connection at the end of its lifetime. It keeps the old one if it cannot open a new one.
func (l *link) renew(ctx context.Context) {
	l.until = time.Now().Add(renewPause)
	if end, ok := ctx.Deadline(); ok { // the round trip that follows needs the other half
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(end)/2)
		defer cancel()
	}
	if conn, err := l.pool.dial(ctx); err == nil {
		l.put(ctx, conn)
	}
}

// put closes the old connection and takes a new one. The new one's lifetime is the pool's MaxConnLifetime, plus up to
// MaxConnLifetimeJitter; without a MaxConnLifetime it is maxSpan.
func (l *link) put(ctx context.Context, conn *pgx.Conn) {
	l.close(ctx)
	cfg := l.pool.Config()
	l.conn, l.ended, l.until = conn, false, time.Now().Add(maxSpan)
	if life, jitter := cfg.MaxConnLifetime, cfg.MaxConnLifetimeJitter; life > 0 {
		if jitter > 0 {
			life += rand.N(jitter) //nolint:gosec // it only spreads them
		}
		l.until = time.Now().Add(life)
	}
}

// close closes the connection. It runs the pool's BeforeClose first, because AfterConnect has run on the connection,
// too.
func (l *link) close(ctx context.Context) {
	if l.conn == nil || l.ended {
		return
	}
	l.ended = true
	if hook := l.pool.Config().BeforeClose; hook != nil {
		hook(l.conn)
	}
	closeConn(ctx, l.conn)
}

func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // it is going away either way
}

// temporary reports whether a server or a network may get over an error by itself. It is false for errors that an
// operator has to fix: a wrong password, a missing database or schema, a pooler that breaks the driver's way of sending
// statements, or a hook's refusal.
func temporary(err error) bool {
	for _, lasting := range []error{ErrNotMigrated, ErrPooler, ErrReadOnly, ErrServerTooOld} {
		if errors.Is(err, lasting) {
			return false
		}
	}
	var server *pgconn.PgError
	if errors.As(err, &server) {
		// Connection, transaction, resources, locks and states, an operator's intervention, the system.
		return len(server.Code) == 5 && slices.Contains([]string{"08", "40", "53", "55", "57", "58"}, server.Code[:2])
	}
	var network net.Error
	if errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.ECONNREFUSED) {
		return true
	}
	var certificate *tls.CertificateVerificationError
	var connect *pgconn.ConnectError // for example, no server now has the target_session_attrs asked for
	return errors.As(err, &connect) && !errors.Is(err, ErrInvalid) && !errors.As(err, &certificate) || pgconn.SafeToRetry(err)
}
