// Package migrations holds drover's schema as goose SQL files and applies them.
//
// The goose command does the same with the files of this folder:
//
//	goose -dir migrations -table drover_goose_version postgres "$DATABASE_URL" up
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

// FS holds the migrations, for applications that run goose themselves.
//
//go:embed *.sql
var FS embed.FS

// Table is the version table of drover's own: in an application's goose table drover's numbers would be taken for
// the application's, and skipped.
const Table = "drover_goose_version"

// Status is one migration and whether it has been applied.
type Status struct {
	Version int64  `json:"version"`
	File    string `json:"file"`
	Applied bool   `json:"applied"`
}

// Up applies what is missing, in the schema that the pool's search_path picks. Many processes may call it at once:
// one works, the others wait.
func Up(ctx context.Context, pool *pgxpool.Pool) error {
	return with(ctx, pool, func(p *goose.Provider) error {
		_, err := p.Up(ctx)
		return err
	})
}

// Down takes all migrations back. All jobs go with their tables.
func Down(ctx context.Context, pool *pgxpool.Pool) error {
	return with(ctx, pool, func(p *goose.Provider) error {
		_, err := p.DownTo(ctx, 0)
		return err
	})
}

// List tells every migration and whether it has been applied.
func List(ctx context.Context, pool *pgxpool.Pool) (list []Status, err error) {
	err = with(ctx, pool, func(p *goose.Provider) error {
		statuses, err := p.Status(ctx)
		for _, s := range statuses {
			list = append(list, Status{Version: s.Source.Version, File: s.Source.Path, Applied: s.State == goose.StateApplied})
		}
		return err
	})
	return list, err
}

func with(ctx context.Context, pool *pgxpool.Pool, fn func(*goose.Provider) error) (err error) {
	db := stdlib.OpenDBFromPool(pool)
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := checkSchema(ctx, db); err != nil {
		return fmt.Errorf("drover: migrate: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, FS,
		goose.WithTableName(Table), goose.WithSessionLocker(schemaLock{}), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("drover: migrate: %w", err)
	}
	if err := fn(provider); err != nil {
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Hint != "" {
			return fmt.Errorf("drover: migrate: %w; %s", err, pg.Hint)
		}
		return fmt.Errorf("drover: migrate: %w", err)
	}
	return nil
}

// checkSchema tells of a search_path to nowhere, for goose would miss its table without saying why.
func checkSchema(ctx context.Context, db *sql.DB) error {
	var found bool
	var path string
	err := db.QueryRowContext(ctx, `select current_schema() is not null, current_setting('search_path')`).Scan(&found, &path)
	if err == nil && !found {
		err = fmt.Errorf("search_path %s names no schema that exists", path)
	}
	return err
}

// schemaLock lets one process migrate a schema at a time, and many schemas of a database at once: goose's own lock
// is one for all of them, and looks again only after five seconds. It is a session's, for a lock on a table would
// need a table, made in whatever order many first processes come.
type schemaLock struct{}

var _ lock.SessionLocker = schemaLock{}

const (
	sqlTryLock = `select pg_try_advisory_lock(hashtextextended('drover ' || current_schema(), 0))`
	sqlUnlock  = `select pg_advisory_unlock(hashtextextended('drover ' || current_schema(), 0))`

	lockPause = 50 * time.Millisecond
)

// SessionLock waits for the lock until ctx is done. It asks again and again: a statement that waits in the server
// holds a snapshot, which an index built concurrently would wait for in turn.
func (schemaLock) SessionLock(ctx context.Context, conn *sql.Conn) error {
	for {
		var locked bool
		if err := conn.QueryRowContext(ctx, sqlTryLock).Scan(&locked); err != nil || locked {
			return err
		}
		select {
		case <-time.After(lockPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// SessionUnlock gives the lock back; a session that ends does so too.
func (schemaLock) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	_, err := conn.ExecContext(ctx, sqlUnlock)
	return err
}
