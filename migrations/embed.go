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

// Up applies what is missing, in the first schema of the pool's search_path. Many processes may call it at once: one
// works, the others wait. Where drover is in a later schema of the path but not in the first it changes nothing and
// returns an error, like Down and List: two sets of tables would be two queues, one of them unserved.
func Up(ctx context.Context, pool *pgxpool.Pool) error {
	return with(ctx, pool, func(p *goose.Provider) error {
		// Up looks for work before it takes the lock, and would make its table then, in many first processes at once.
		if _, err := p.GetDBVersion(ctx); err != nil {
			return err
		}
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

// sqlSchemas is the schema that a migration goes to, and the first one of the path where drover is.
const sqlSchemas = `select coalesce(current_schema(), ''), current_setting('search_path'), coalesce((
	select s from unnest(current_schemas(false)) with ordinality as path (s, place)
	where exists (select from pg_proc where proname = 'drover_schema_version' and pronamespace = quote_ident(s)::regnamespace)
	order by place limit 1), '')`

// checkSchema tells of a search_path to nowhere, for goose would miss its table without saying why, and of one that
// reaches drover in a schema behind the first, where it would make a second queue that nobody serves.
func checkSchema(ctx context.Context, db *sql.DB) error {
	var first, path, drover string
	if err := db.QueryRowContext(ctx, sqlSchemas).Scan(&first, &path, &drover); err != nil {
		return err
	}
	switch {
	case first == "":
		return fmt.Errorf("search_path %s names no schema that exists", path)
	case drover != "" && drover != first:
		return fmt.Errorf("drover is in the schema %q already, search_path %s would put a second queue into %q: "+
			"migrate with a search_path of %[1]q alone", drover, path, first)
	}
	return nil
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
