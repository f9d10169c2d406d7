package migrations

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/pgtext"
)

// Schema is the name of the schema that the migrations change, whatever the pool's search_path is. It corresponds to
// Config.Schema of a client. The schema must exist. Empty means the first schema of the search_path.
//
// Unless the name is empty, the methods open new connections, with the settings and hooks of the pool.
type Schema string

// check returns an error that matches drover.ErrInvalid if the text cannot be the name of a schema.
func (s Schema) check() error {
	if fault := pgtext.SchemaFault(string(s)); s != "" && fault != "" {
		return fmt.Errorf("%w: migrate: the schema %q: %s", pg.ErrInvalid, string(s), fault)
	}
	return nil
}

// The method own returns a new pool whose search_path is the schema alone, because goose and the files use names
// without a schema. The sessions of the given pool are not changed.
func (s Schema) own(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Pool, error) {
	config := pool.Config()
	config.MinConns, config.MinIdleConns = 0, 0
	prepare, before := config.PrepareConn, config.BeforeAcquire                 //nolint:staticcheck // deprecated, and in use
	config.BeforeAcquire = nil                                                  //nolint:staticcheck // see above
	config.PrepareConn = func(ctx context.Context, c *pgx.Conn) (bool, error) { // sets the path each time, because AfterRelease may reset a session
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
