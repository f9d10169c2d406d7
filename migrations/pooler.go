package migrations

import (
	"context"
	"errors"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ErrPooler is the error of a migration behind a transaction pooler, which may run each transaction of a client on
// another server connection. A migration takes a session lock. A transaction pooler would leave that lock on a server
// connection that other clients use.
var ErrPooler = errors.New("a transaction pooler is between this process and the server: migrate over a direct connection, or one in the pooler's session mode")

// checkPooler looks for a transaction pooler before the migration does anything. On a direct connection, the driver
// knows the server process that serves it. For other connections, checkPooler opens two and compares their server
// processes. In session mode, a pooler gives each of the two connections its own server process. In transaction mode,
// it gives both connections the process that was used last, or it gives the first connection another process for its
// second transaction.
func checkPooler(ctx context.Context, pool *pgxpool.Pool) error {
	direct := false
	err := pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		pid, err := serverOf(ctx, c.Conn())
		direct = pid == uint64(c.Conn().PgConn().PID())
		return err
	})
	if err != nil || direct {
		return err
	}
	first, err := dial(ctx, pool)
	if err != nil {
		return err
	}
	defer first.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the connection is not used any more
	second, err := dial(ctx, pool)
	if err != nil {
		return err
	}
	defer second.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the connection is not used any more
	var pids [3]uint64
	for i, conn := range []*pgx.Conn{first, second, first} {
		if pids[i], err = serverOf(ctx, conn); err != nil {
			return err
		}
	}
	if pids[0] == pids[1] || pids[0] != pids[2] {
		return ErrPooler
	}
	return nil
}

// serverOf returns the id of the server process that answers.
func serverOf(ctx context.Context, conn *pgx.Conn) (pid uint64, err error) {
	results, err := conn.PgConn().Exec(ctx, `select pg_backend_pid()`).ReadAll() // not as a prepared statement
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(string(results[0].Rows[0][0]), 10, 32)
}

// dial opens a new connection with the pool's settings and hooks.
func dial(ctx context.Context, pool *pgxpool.Pool) (*pgx.Conn, error) {
	config := pool.Config()
	if config.BeforeConnect != nil {
		if err := config.BeforeConnect(ctx, config.ConnConfig); err != nil {
			return nil, err
		}
	}
	return pgx.ConnectConfig(ctx, config.ConnConfig)
}
