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

// A supervisor's connections are its own, not the pool's: handlers that take every pooled connection must not starve
// heartbeat and settle. But they are made as the pool makes its own, and they live no longer, so that they lead to where
// the pool's lead. docs/adr/0029-own-connections-follow-the-pool.md lists which of the pool's settings count.

// dial opens such a connection and leaves it as the pool would hand it out.
func (s *store) dial(ctx context.Context) (*pgx.Conn, error) {
	cfg := s.pool.Config()
	if cfg.BeforeConnect != nil {
		if err := cfg.BeforeConnect(ctx, cfg.ConnConfig); err != nil {
			return nil, refusedBy("BeforeConnect", err)
		}
	}
	// pgx keeps notifications for WaitForNotification only where nobody else takes them.
	cfg.ConnConfig.OnNotification = nil
	shareTime(ctx, cfg.ConnConfig)
	conn, err := pgx.ConnectConfig(ctx, cfg.ConnConfig)
	if err != nil {
		return nil, pgurl.Explain(err)
	}
	if err := handOut(ctx, cfg, conn); err != nil {
		closeConn(ctx, conn)
		return nil, err
	}
	return conn, nil
}

// handOut runs the hooks that the pool runs before it hands a new connection out.
func handOut(ctx context.Context, cfg *pgxpool.Config, conn *pgx.Conn) error {
	if cfg.AfterConnect != nil {
		if err := cfg.AfterConnect(ctx, conn); err != nil {
			return refusedBy("AfterConnect", err)
		}
	}
	name, usable := "PrepareConn", true
	switch {
	case cfg.PrepareConn != nil:
		var err error
		if usable, err = cfg.PrepareConn(ctx, conn); err != nil {
			return refusedBy(name, err)
		}
	case cfg.BeforeAcquire != nil: //nolint:staticcheck // deprecated, and in use
		name = "BeforeAcquire"
		usable = cfg.BeforeAcquire(ctx, conn) //nolint:staticcheck // see above
	}
	switch {
	case !usable:
		return refusedBy(name, errors.New("it refused a new connection"))
	case conn.PgConn().TxStatus() != 'I':
		return refusedBy(name, errors.New("it left a transaction open"))
	}
	return nil
}

// refusedBy is an error of a hook of the pool's, which drover runs on connections of its own.
func refusedBy(hook string, err error) error {
	return &InvalidError{Field: "pool." + hook, Reason: "run on a connection of drover's own: " + err.Error(), Err: err}
}

// mostDial is how long a server may take to let us in, where the pool's ConnectTimeout does not say: the name may lead to
// another one by then.
const mostDial = 4 * time.Second

// shareTime gives each of several servers its part of the time that is left. Without that, a first one that swallows
// packets would take all of it in each attempt, and the others would never be asked.
func shareTime(ctx context.Context, cfg *pgx.ConnConfig) {
	if cfg.ConnectTimeout <= 0 {
		cfg.ConnectTimeout = mostDial
	}
	end, ok := ctx.Deadline()
	if !ok {
		return
	}
	servers := []string{net.JoinHostPort(cfg.Host, fmt.Sprint(cfg.Port))}
	for _, f := range cfg.Fallbacks { // the same server is there twice where TLS is tried first
		if server := net.JoinHostPort(f.Host, fmt.Sprint(f.Port)); !slices.Contains(servers, server) {
			servers = append(servers, server)
		}
	}
	share := time.Until(end) / time.Duration(len(servers))
	if len(servers) > 1 && share > 0 {
		cfg.ConnectTimeout = min(cfg.ConnectTimeout, share)
	}
}

// link is a connection of one goroutine's that comes back after it broke. It leaves a server that turned out to be
// read-only (see pipeline.send) or that fails again and again (see trouble.failed), and it does not outlive the pool's
// MaxConnLifetime: its name may lead elsewhere by now.
type link struct {
	store *store
	conn  *pgx.Conn
	ended bool      // it was closed here
	until time.Time // when it is replaced
	again func()    // called after a reconnect; may be nil
}

// renewPause is before a connection that could not be replaced is tried to be replaced again.
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
	conn, err := l.store.dial(ctx)
	if err != nil {
		return nil, err
	}
	l.put(ctx, conn)
	if lost && l.again != nil {
		l.again()
	}
	return conn, nil
}

// renew replaces a connection at the end of its lifetime. As long as there is no new one the old one serves.
func (l *link) renew(ctx context.Context) {
	l.until = time.Now().Add(renewPause)
	if end, ok := ctx.Deadline(); ok { // the round trip that is to follow needs some of it
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(end)/2)
		defer cancel()
	}
	if conn, err := l.store.dial(ctx); err == nil {
		l.put(ctx, conn)
	}
}

// put takes a new connection, and closes the old one.
func (l *link) put(ctx context.Context, conn *pgx.Conn) {
	l.close(ctx)
	cfg := l.store.pool.Config()
	l.conn, l.ended, l.until = conn, false, time.Now().Add(maxSpan)
	if life, jitter := cfg.MaxConnLifetime, cfg.MaxConnLifetimeJitter; life > 0 {
		if jitter > 0 {
			life += rand.N(jitter) //nolint:gosec // to spread them
		}
		l.until = time.Now().Add(life)
	}
}

// close ends the connection, which the pool's BeforeClose sees, as it has seen AfterConnect.
func (l *link) close(ctx context.Context) {
	if l.conn == nil || l.ended {
		return
	}
	l.ended = true
	if hook := l.store.pool.Config().BeforeClose; hook != nil {
		hook(l.conn)
	}
	closeConn(ctx, l.conn)
}

func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // it is going away either way
}

// temporary reports an error that a server or a network may get over by itself. What an operator has to change is none:
// a wrong password, a database or a schema that is not there, a pooler that breaks the driver's way, a hook's refusal.
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
	var hook *InvalidError
	var certificate *tls.CertificateVerificationError
	var connect *pgconn.ConnectError // such as that of target_session_attrs, where there is no such server now
	return errors.As(err, &connect) && !errors.As(err, &hook) && !errors.As(err, &certificate) || pgconn.SafeToRetry(err)
}
