// Package migrations holds drover's schema as goose SQL files and applies them.
//
// The goose command does the same with the files of this folder:
//
//	goose -dir migrations -table drover_goose_version postgres "$DATABASE_URL" up
package migrations

import (
	"context"
	"embed"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

// FS holds the migrations, for applications that run goose themselves.
//
//go:embed *.sql
var FS embed.FS //nolint:gochecknoglobals // what go:embed needs

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
	return with(pool, func(p *goose.Provider) error {
		_, err := p.Up(ctx)
		return err
	})
}

// Down takes all migrations back. All jobs go with their tables.
func Down(ctx context.Context, pool *pgxpool.Pool) error {
	return with(pool, func(p *goose.Provider) error {
		_, err := p.DownTo(ctx, 0)
		return err
	})
}

// List tells every migration and whether it has been applied.
func List(ctx context.Context, pool *pgxpool.Pool) (list []Status, err error) {
	err = with(pool, func(p *goose.Provider) error {
		statuses, err := p.Status(ctx)
		for _, s := range statuses {
			list = append(list, Status{Version: s.Source.Version, File: s.Source.Path, Applied: s.State == goose.StateApplied})
		}
		return err
	})
	return list, err
}

func with(pool *pgxpool.Pool, fn func(*goose.Provider) error) (err error) {
	db := stdlib.OpenDBFromPool(pool)
	defer func() { err = errors.Join(err, db.Close()) }()
	// A session lock: goose's table lock would need a table, made in whatever order many first processes come.
	locker, err := lock.NewPostgresSessionLocker()
	if err != nil {
		return fmt.Errorf("drover: migrate: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, FS,
		goose.WithTableName(Table), goose.WithSessionLocker(locker), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("drover: migrate: %w", err)
	}
	if err := fn(provider); err != nil {
		return fmt.Errorf("drover: migrate: %w", err)
	}
	return nil
}
