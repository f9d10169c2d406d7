package drovertest_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/drovertest"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

// inTest runs f as a test that has ended when inTest returns, and returns the schema that NewPool gave it.
func inTest(t *testing.T, url string, f func(t *testing.T, pool *pgxpool.Pool)) (schema string) {
	t.Helper()
	t.Run("inner", func(t *testing.T) {
		pool := drovertest.NewPool(t, url)
		schema = pool.Config().ConnConfig.RuntimeParams["search_path"]
		f(t, pool)
	})
	return schema
}

// ownURL is one that no other test uses, so that its schemas are this test's.
func ownURL(t *testing.T) string {
	t.Helper()
	url := pgtest.URL(t)
	sep := "?"
	if strings.Contains(url, "?") {
		sep = "&"
	}
	return url + sep + "connect_timeout=" + map[bool]string{true: "30", false: "31"}[t.Name() == "TestSchemasAreUsedAgain"]
}

// The next test gets the same schema, as it was new.
func TestSchemasAreUsedAgain(t *testing.T) { //nolint:paralleltest // it looks at which schema it gets
	url := ownURL(t)
	content := func(t *testing.T, pool *pgxpool.Pool) (s string) {
		t.Helper()
		if err := pool.QueryRow(t.Context(), `select concat((select count(*) from jobs), (select count(*) from drover_kinds), (select to_jsonb(s) from drover_solo s))`).Scan(&s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	var fresh string
	first := inTest(t, url, func(t *testing.T, pool *pgxpool.Pool) {
		t.Helper()
		fresh = content(t, pool)
		client := quietClient(t, pool)
		enqueue(t, client, Charge{1}, nil)
		drovertest.Drain(t.Context(), t, pool, client, drainOf(func(context.Context, *drover.Job, Charge) error { return nil }, drover.WorkerOpts{}))
		if content(t, pool) == fresh {
			t.Error("nothing was written")
		}
	})
	second := inTest(t, url, func(t *testing.T, pool *pgxpool.Pool) {
		t.Helper()
		if now := content(t, pool); now != fresh {
			t.Errorf("it has %s; new it had %s", now, fresh)
		}
		if _, err := pool.Exec(t.Context(), `create table mine (id int)`); err != nil {
			t.Error(err)
		}
	})
	if second != first {
		t.Error("it was not used again")
	}
	third := inTest(t, url, func(t *testing.T, pool *pgxpool.Pool) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), `alter table jobs alter column queue set default 'x'`); err != nil {
			t.Error(err)
		}
	})
	fourth := inTest(t, url, func(*testing.T, *pgxpool.Pool) {})
	if third == second || fourth == third {
		t.Errorf("schemas that tests have changed were used again: %s %s %s", second, third, fourth)
	}
	for _, name := range []string{second, third} {
		if exists(t, url, name) {
			t.Errorf("the schema %s was not dropped", name)
		}
	}
}

func exists(t *testing.T, url, schema string) (there bool) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context()) //nolint:errcheck // nothing is lost with this connection
	if err := conn.QueryRow(t.Context(), `select exists (select from pg_namespace where nspname = $1)`, schema).Scan(&there); err != nil {
		t.Fatal(err)
	}
	return there
}

// Tests at the same time see nothing of each other.
func TestSchemasAreApart(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	one, two := drovertest.NewPool(t, url), drovertest.NewPool(t, url)
	enqueue(t, quietClient(t, one), Charge{1}, nil)
	drovertest.RequireEnqueued(t.Context(), t, one, Charge{1})
	if jobs := drovertest.Enqueued(t.Context(), t, two, drover.Filter{}); len(jobs) != 0 {
		t.Errorf("%d jobs", len(jobs))
	}
}

// What a process has left is dropped by the next one, and what another process works with is not.
func TestLeftSchemasAreDropped(t *testing.T) { //nolint:paralleltest // the schemas that it looks for are for the first test of a process
	url := ownURL(t)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context()) //nolint:errcheck // nothing is lost with this connection
	if _, err := conn.Exec(t.Context(), `
		create schema drovertest_aaaaaaaaaa_1; create table drovertest_aaaaaaaaaa_1.jobs (id text);
		create schema drovertest_bbbbbbbbbb_1; create schema drovertest_mine;
		select pg_advisory_lock(hashtextextended('drovertest_' || 'bbbbbbbbbb', 0))`); err != nil {
		t.Fatal(err)
	}
	inTest(t, url, func(*testing.T, *pgxpool.Pool) {})
	if exists(t, url, "drovertest_aaaaaaaaaa_1") || !exists(t, url, "drovertest_bbbbbbbbbb_1") || !exists(t, url, "drovertest_mine") {
		t.Error("it dropped others than those of processes that have ended")
	}
	if _, err := conn.Exec(t.Context(), `drop schema drovertest_bbbbbbbbbb_1; drop schema drovertest_mine`); err != nil {
		t.Error(err)
	}
}

// A bad address fails the test at once.
func TestNewPoolFails(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{"postgres://127.0.0.1:1/none?connect_timeout=2": "connect", "postgres://%": "parse"} {
		if text := failure(t, func(p *probe) { drovertest.NewPool(p, url) }); !strings.Contains(text, want) {
			t.Errorf("it failed with %q", text)
		}
	}
}
