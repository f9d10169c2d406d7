package pgtest

import (
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover/internal/upsql"
)

// NewMigratedPool is NewPool on a schema with all of drover's migrations. They come as one string, which takes half the
// time that goose needs.
func NewMigratedPool(tb testing.TB, edit ...func(*pgxpool.Config)) *pgxpool.Pool {
	tb.Helper()
	sql, err := upSQL()
	if err != nil {
		tb.Fatal(err)
	}
	name := newName()
	tb.Cleanup(func() { dropSchema(tb, name) })
	admin(tb, `create schema `+name+`; set search_path to `+name+`; `+sql)
	return openPool(tb, name, edit)
}

//nolint:gochecknoglobals // the same for every test
var upSQL = sync.OnceValues(upsql.Render)
