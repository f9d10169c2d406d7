package migrations

import (
	"context"
	"errors"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ErrPooler reports a pooler that may give each transaction to another server connection. A
// migration takes a session lock, which such a pooler would leave on a server connection that other
// clients use.
var ErrPooler = errors.New("a transaction pooler is between this process and the server: migrate over a direct connection, or one in the pooler's session mode")

// checkPooler looks for a transaction pooler before anything is done. A direct connection knows the process that serves
// it. A pooler's session mode gives each of two connections a process of its own; its transaction mode gives both the
// process that was used last, or the first one another process for its second transaction.
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
	defer first.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it is going away either way
	second, err := dial(ctx, pool)
	if err != nil {
		return err
	}
	defer second.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it is going away either way
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

// serverOf asks which process answers.
func serverOf(ctx context.Context, conn *pgx.Conn) (pid uint64, err error) {
	results, err := conn.PgConn().Exec(ctx, `select pg_backend_pid()`).ReadAll() // as no prepared statement
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(string(results[0].Rows[0][0]), 10, 32)
}

// dial opens a connection of its own, as the pool would.
func dial(ctx context.Context, pool *pgxpool.Pool) (*pgx.Conn, error) {
	config := pool.Config()
	if config.BeforeConnect != nil {
		if err := config.BeforeConnect(ctx, config.ConnConfig); err != nil {
			return nil, err
		}
	}
	return pgx.ConnectConfig(ctx, config.ConnConfig)
}
