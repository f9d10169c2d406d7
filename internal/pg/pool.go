package pg

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
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
	return p.checkEncoding(conn)
}

// checkEncoding refuses a connection on which texts would change: see OtherEncoding.
func (p *Pool) checkEncoding(conn *pgx.Conn) error {
	if wrong := OtherEncoding(conn.PgConn()); wrong != "" {
		return p.Invalid("pool", wrong, nil)
	}
	return nil
}

// OtherEncoding returns why texts would change on a connection; "" if they would not. The driver sends and expects
// UTF-8, but the role or the database may set client_encoding. Then the server would convert what is UTF-8 already: a
// handler would get other args than the job has, and two enqueues would compute two unique keys for the same args.
// SQL_ASCII converts nothing. Some poolers do not report the setting.
func OtherEncoding(conn *pgconn.PgConn) string {
	switch encoding := conn.ParameterStatus("client_encoding"); encoding {
	case "", "UTF8", "SQL_ASCII":
		return ""
	default:
		return fmt.Sprintf("its session has client_encoding %s, so other characters would be stored and read: set client_encoding=UTF8 in the connection string", encoding)
	}
}

// CloseConn closes a connection, and waits a second for that at most.
func CloseConn(ctx context.Context, conn Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // the connection is given up in any case
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

// Acquire takes a connection of the pool.
func (p *Pool) Acquire(ctx context.Context) (Pooled, error) {
	conn, err := p.Pool.Acquire(ctx)
	if err != nil {
		return Pooled{}, err
	}
	if err := p.checkEncoding(conn.Conn()); err != nil {
		conn.Release()
		return Pooled{}, err
	}
	return Pooled{conn, p.Names}, nil
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

// Conn returns the connection, with drover's names qualified.
func (p Pooled) Conn() Conn { return p.names.On(p.conn.Conn()) }

// Release gives the connection back.
func (p Pooled) Release() { p.conn.Release() }

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
