package pgtest_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestPoolsDoNotSeeEachOther(t *testing.T) {
	t.Parallel()
	a, b := pgtest.NewPool(t), pgtest.NewPool(t)
	exec(t, a, `create table jobs ()`)
	exec(t, b, `create table jobs ()`) // would fail if the schemas were the same
	for _, pool := range []*pgxpool.Pool{a, b} {
		var path, schema string
		const sqlWhere = `select current_setting('search_path'), relnamespace::regnamespace::text
			from pg_class where oid = 'jobs'::regclass`
		if err := pool.QueryRow(t.Context(), sqlWhere).Scan(&path, &schema); err != nil {
			t.Fatal(err)
		}
		if want := pgtest.Schema(pool); path != want || schema != want {
			t.Errorf("search_path %s, table in %s; want both %s", path, schema, want)
		}
	}
	if pgtest.Schema(a) == pgtest.Schema(b) {
		t.Error("two pools have one schema")
	}
}

func TestPoolSettings(t *testing.T) {
	t.Parallel()
	if n := pgtest.NewPool(t).Config().MaxConns; n != 20 {
		t.Errorf("MaxConns = %d, want 20", n)
	}
	pool := pgtest.NewPool(t, func(c *pgxpool.Config) { c.MaxConns = 3 }, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["application_name"] = "edited"
	})
	var name string
	if err := pool.QueryRow(t.Context(), `show application_name`).Scan(&name); err != nil {
		t.Fatal(err)
	}
	if n := pool.Config().MaxConns; n != 3 || name != "edited" {
		t.Errorf("MaxConns = %d, application_name = %q; want 3, edited", n, name)
	}
}

// A forgotten transaction would block the drop for ever.
func TestSchemaIsDroppedPastAForgottenTransaction(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"with a lock":  `begin; lock table jobs`,
		"with a table": `begin; create table uncommitted ()`,
		"with a row":   `begin; insert into jobs default values`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			forgotten, err := pgx.Connect(t.Context(), pgtest.URL(t))
			if err != nil {
				t.Fatal(err)
			}
			defer forgotten.Close(t.Context()) //nolint:errcheck // the drop has ended it

			var schema string
			t.Run("test", func(t *testing.T) {
				pool := pgtest.NewPool(t)
				schema = pgtest.Schema(pool)
				exec(t, pool, `create table jobs ()`)
				if _, err := forgotten.Exec(t.Context(), `set search_path to `+schema+`; `+sql); err != nil {
					t.Fatal(err)
				}
			})
			var left bool
			err = pgtest.NewPool(t).QueryRow(t.Context(),
				`select exists (select from pg_namespace where nspname = $1)`, schema).Scan(&left)
			if err != nil || left {
				t.Errorf("schema %s is there: %t, %v", schema, left, err)
			}
		})
	}
}

func exec(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}
