package migrations

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/pgtext"
)

// Schema is the schema that the migrations go to, whatever the pool's search_path is: what Config.Schema is for a client.
// It has to exist. Empty means the first schema of the search_path.
//
// While one of its methods works, it has connections of its own, made with the pool's settings and hooks.
type Schema string

// check refuses, with an error that matches drover.ErrInvalid, what cannot be a schema's name.
func (s Schema) check() error {
	if fault := pgtext.SchemaFault(string(s)); s != "" && fault != "" {
		return fmt.Errorf("%w: migrate: the schema %q: %s", pg.ErrInvalid, string(s), fault)
	}
	return nil
}

// own returns a pool whose search_path is the schema alone. The files and goose name what they make without a schema. The
// given pool's sessions stay as they are.
func (s Schema) own(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Pool, error) {
	config := pool.Config()
	config.MinConns, config.MinIdleConns = 0, 0
	prepare, before := config.PrepareConn, config.BeforeAcquire                 //nolint:staticcheck // deprecated, and in use
	config.BeforeAcquire = nil                                                  //nolint:staticcheck // see above
	config.PrepareConn = func(ctx context.Context, c *pgx.Conn) (bool, error) { // each time, because AfterRelease may reset a session
		switch {
		case prepare != nil:
			if usable, err := prepare(ctx, c); !usable || err != nil {
				return usable, err
			}
		case before != nil && !before(ctx, c):
			return false, nil
		}
		_, err := c.Exec(ctx, `set search_path to `+pgx.Identifier{string(s)}.Sanitize())
		return err == nil, err
	}
	return pgxpool.NewWithConfig(ctx, config)
}
