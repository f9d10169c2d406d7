package drovertest_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/drovertest"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/internal/tier"
)

// ownDatabase returns the URL of a database that no other test uses, and a session in it.
func ownDatabase(t *testing.T) (url string, conn *pgx.Conn) {
	t.Helper()
	admin := connect(t, pgtest.URL(t))
	name := strings.ToLower(t.Name())
	if _, err := admin.Exec(t.Context(), `create database `+name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := admin.Exec(context.Background(), `drop database `+name+` with (force)`); err != nil {
			t.Error(err)
		}
	})
	config, err := pgx.ParseConfig(pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	url = fmt.Sprintf("host=%s port=%d user=%s password='%s' dbname=%s sslmode=disable", config.Host, config.Port, config.User, config.Password, name)
	return url, connect(t, url)
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// inTest runs f as a test that has ended when inTest returns, and returns the schema that NewPool gave it.
func inTest(t *testing.T, url string, f func(t *testing.T, pool *pgxpool.Pool)) (schema string) {
	t.Helper()
	t.Run("inner", func(t *testing.T) {
		pool := drovertest.NewPool(t, url)
		schema = schemaOf(pool)
		f(t, pool)
	})
	return schema
}

func schemaOf(pool *pgxpool.Pool) string {
	schema, _, _ := strings.Cut(pool.Config().ConnConfig.RuntimeParams["search_path"], ",")
	return schema
}

// rows returns all rows of drover's tables.
func rowsOf(t *testing.T, pool *pgxpool.Pool) (all string) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), `
		select string_agg(relname || ' ' || query_to_xml('select to_jsonb(t) from ' || oid::regclass || ' t', false, false, '')::text, E'\n' order by relname)
		from pg_class where relkind = 'r' and relnamespace = current_schema()::regnamespace`).Scan(&all); err != nil {
		t.Fatal(err)
	}
	return all
}

// A schema that is used again looks like a new one, whatever a test has done with its rows.
func TestSchemasAreUsedAgain(t *testing.T) {
	t.Parallel()
	url, conn := ownDatabase(t)
	var fresh string
	first := inTest(t, url, func(t *testing.T, pool *pgxpool.Pool) {
		t.Helper()
		fresh = rowsOf(t, pool)
		client := newClient(t, pool)
		enqueue(t, client, Charge{1}, nil)
		drovertest.Drain(t.Context(), t, pool, client, drainOf(func(context.Context, *drover.Job, Charge) error { return errBusy }, drover.WorkerOpts{MaxAttempts: 2}))
		if err := client.Pause(t.Context(), drover.QueueScope("default"), nil, drover.Audit{}); err != nil {
			t.Error(err)
		}
		if _, err := pool.Exec(t.Context(), `delete from drover_solo; delete from drover_crews where false`); err != nil {
			t.Error(err)
		}
		if now := rowsOf(t, pool); now == fresh || !strings.Contains(now, "busy") {
			t.Error("nothing was written")
		}
	})
	second := inTest(t, url, func(t *testing.T, pool *pgxpool.Pool) {
		t.Helper()
		if now := rowsOf(t, pool); now != fresh {
			t.Errorf("it has\n%s\nnew it had\n%s", now, fresh)
		}
		if _, err := pool.Exec(t.Context(), `insert into jobs (kind) select 'charge' from generate_series(1, 4000)`); err != nil {
			t.Error(err)
		}
	})
	var size int
	third := inTest(t, url, func(t *testing.T, pool *pgxpool.Pool) {
		t.Helper()
		if err := pool.QueryRow(t.Context(), `select pg_relation_size('jobs')`).Scan(&size); err != nil || size != 0 {
			t.Errorf("jobs has %d bytes, %v", size, err)
		}
		if now := rowsOf(t, pool); now != fresh {
			t.Errorf("it has\n%s\nnew it had\n%s", now, fresh)
		}
	})
	if first != second || first != third {
		t.Errorf("the schemas are %s, %s, %s", first, second, third)
	}
	_ = conn
}

// A schema in which a test has changed more than rows is not used again.
func TestChangedSchemasAreDropped(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	url, conn := ownDatabase(t)
	last := inTest(t, url, func(*testing.T, *pgxpool.Pool) {})
	for _, change := range []string{
		`create table mine (id int)`,
		`alter table jobs alter column queue set default 'x'`,
		`alter table jobs disable trigger jobs_bounds`,
		`create or replace function drover_schema_version() returns int language sql immutable as 'select 99'`,
		`drop index jobs_claim_idx`,
		`insert into jobs (kind) values ('charge'); analyze jobs`, // statistics make plans
		`drop table drover_solo`,
		`drop schema drovertest_mine cascade; create schema drovertest_mine`, // someone else's: the test's own stays
	} {
		if _, err := conn.Exec(t.Context(), `create schema if not exists drovertest_mine`); err != nil {
			t.Fatal(err)
		}
		if now := inTest(t, url, func(t *testing.T, pool *pgxpool.Pool) {
			t.Helper()
			if _, err := pool.Exec(t.Context(), change); err != nil {
				t.Errorf("%s: %v", change, err)
			}
		}); now != last {
			t.Errorf("before %s: the test got %s, not %s", change, now, last)
		}
		before := last
		last = inTest(t, url, func(*testing.T, *pgxpool.Pool) {})
		if keeps := strings.Contains(change, "drovertest_mine"); (before == last) != keeps || exists(t, conn, before) != keeps {
			t.Errorf("after %s: %s, then %s", change, before, last)
		}
	}
	if !exists(t, conn, "drovertest_mine") {
		t.Error("a schema of another name was dropped")
	}
}

func exists(t *testing.T, conn *pgx.Conn, schema string) (there bool) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), `select exists (select from pg_namespace where nspname = $1)`, schema).Scan(&there); err != nil {
		t.Fatal(err)
	}
	return there
}

// A process that died leaves schemas that are not finished, or of older migrations: they are dropped, and the schemas
// that others work with are not.
func TestLeftSchemasAreDropped(t *testing.T) {
	t.Parallel()
	url, conn := ownDatabase(t)
	const left, locked, open = "drovertest_00000000000a_aaaaaaaaaaaa", "drovertest_00000000000a_bbbbbbbbbbbb", "drovertest_00000000000a_cccccccccccc"
	for _, schema := range []string{left, locked, open} {
		if _, err := conn.Exec(t.Context(), `create schema `+schema+`; create table `+schema+`.jobs (id text)`); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := conn.Exec(t.Context(), `select pg_advisory_lock(hashtextextended($1, 0))`, locked); err != nil {
		t.Fatal(err)
	}
	connect(t, url+" application_name="+open)
	const older = "drovertest_00000000000b_aaaaaaaaaaaa" // in order, and of other migrations
	now := inTest(t, url, func(*testing.T, *pgxpool.Pool) {})
	if _, err := conn.Exec(t.Context(), `alter schema `+now+` rename to `+older); err != nil {
		t.Fatal(err)
	}
	inTest(t, url, func(*testing.T, *pgxpool.Pool) {})
	if exists(t, conn, older) {
		t.Error("a schema of other migrations was kept")
	}
	if exists(t, conn, left) || !exists(t, conn, locked) || !exists(t, conn, open) {
		t.Errorf("there are: left %v, locked %v, open %v", exists(t, conn, left), exists(t, conn, locked), exists(t, conn, open))
	}
}

// A role needs no more than the right to create schemas. It sees the sessions of other roles, too.
func TestSchemasOfAPlainRole(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	url, conn := ownDatabase(t)
	const role = "drovertest_plain"
	if _, err := conn.Exec(t.Context(), `create role `+role+` login password 'x'; grant create on database testschemasofaplainrole to `+role); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // before the database goes
		if _, err := conn.Exec(context.Background(), `drop owned by `+role+` cascade; drop role `+role); err != nil {
			t.Error(err)
		}
	})
	plain := url + " user=" + role + " password=x"
	schema := inTest(t, plain, func(t *testing.T, pool *pgxpool.Pool) {
		t.Helper()
		enqueue(t, newClient(t, pool), Charge{1}, nil)
	})
	other := connect(t, url+" application_name="+schema)
	if now := inTest(t, plain, func(*testing.T, *pgxpool.Pool) {}); now == schema {
		t.Error("it got a schema where a session works")
	}
	if err := other.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `comment on schema `+schema+` is 'mine'`); err != nil {
		t.Fatal(err)
	}
	inTest(t, plain, func(t *testing.T, _ *pgxpool.Pool) {
		t.Helper()
		drovertest.NewPool(t, plain) // this one looks at all that the first one has left
	})
	if exists(t, conn, schema) {
		t.Error("a schema with another comment was kept")
	}
}

// Tests at the same time have schemas of their own.
func TestSchemasAreApart(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	one, two := drovertest.NewPool(t, url), drovertest.NewPool(t, url)
	enqueue(t, newClient(t, one), Charge{1}, nil)
	drovertest.RequireEnqueued(t.Context(), t, one, Charge{1})
	if jobs := drovertest.Enqueued(t.Context(), t, two, drover.Filter{}); len(jobs) != 0 {
		t.Errorf("%d jobs", len(jobs))
	}
}

// NewURL leads any driver into the schema, and keeps the search_path that was there behind it.
func TestNewURL(t *testing.T) {
	t.Parallel()
	config, err := pgx.ParseConfig(pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	pairs := fmt.Sprintf("host=%s port=%d user=%s password='%s' dbname=%s sslmode=disable", config.Host, config.Port, config.User, config.Password, config.Database)
	address := fmt.Sprintf("postgres://%s:%s@/%s?host=%s&port=%d&sslmode=disable", config.User, config.Password, config.Database, config.Host, config.Port)
	for _, url := range []string{pairs, pairs + ` search_path='"o''dd", public'`, address, address + "&search_path=pg_catalog,%20public"} {
		db, err := sql.Open("pgx", drovertest.NewURL(t, strings.ReplaceAll(url, `''`, `\'`)))
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close() //nolint:errcheck // nothing is lost with it
		var path, name, schema string
		if err := db.QueryRowContext(t.Context(), `select current_setting('search_path'), current_setting('application_name'), current_schema()`).Scan(&path, &name, &schema); err != nil {
			t.Fatal(err)
		}
		first, rest, _ := strings.Cut(path, ",")
		if name != first || schema != first || (rest != "") != strings.Contains(url, "search_path") || rest != "" && !strings.HasSuffix(rest, ", public") {
			t.Errorf("%s: search_path %s, application_name %s, schema %s", url, path, name, schema)
		}
		if _, err := db.ExecContext(t.Context(), `insert into jobs (kind) values ('charge')`); err != nil {
			t.Error(err)
		}
	}
}

// An edit changes the pool, and so do settings of the pool in the address.
func TestNewPoolIsEdited(t *testing.T) {
	t.Parallel()
	pool := drovertest.NewPool(t, pgtest.URL(t), func(config *pgxpool.Config) { config.MaxConns = 3 })
	if n := pool.Config().MaxConns; n != 3 {
		t.Errorf("%d connections", n)
	}
	config, err := pgx.ParseConfig(pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	url := fmt.Sprintf("postgres://%s:%s@/%s?host=%s&port=%d&sslmode=disable&pool_max_conns=2", config.User, config.Password, config.Database, config.Host, config.Port)
	if n := drovertest.NewPool(t, url).Config().MaxConns; n != 2 {
		t.Errorf("%d connections, and the address says 2", n)
	}
}

// A bad address fails the test immediately.
func TestNewPoolFails(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{"postgres://127.0.0.1:1/none?connect_timeout=2": "connect", "postgres://%": "parse"} {
		if text := failure(t, func(p *probe) { drovertest.NewPool(p, url) }); !strings.Contains(text, want) {
			t.Errorf("it failed with %q", text)
		}
	}
}
