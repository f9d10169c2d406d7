package pgtest_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/internal/upsql"
)

// A used schema looks like a new one. This test is not parallel, because it expects the schema that one test gives back to be
// the schema of the next one.
func TestMigratedSchemasAreUsedAgain(t *testing.T) { //nolint:paralleltest // see above
	var names []string
	inTest := func(f func(t *testing.T, pool *pgxpool.Pool)) {
		t.Run("inner", func(t *testing.T) {
			pool := pgtest.NewMigratedPool(t)
			names = append(names, pgtest.Schema(pool))
			f(t, pool)
		})
	}
	var fresh map[string]string
	const used = `select n_tup_ins + n_tup_upd + n_tup_del + n_dead_tup from pg_stat_user_tables where relid = 'jobs'::regclass`
	inTest(func(t *testing.T, pool *pgxpool.Pool) {
		t.Helper()
		fresh = contents(t, pool)
		exec(t, pool, `insert into jobs (kind) select 'job' from generate_series(1, 100); update jobs set priority = 2; delete from jobs where id = (select max(id) from jobs);
			update drover_solo set supervisor = 'a'; insert into queues (name) values ('mail');
			insert into drover_failure_tallies (fingerprint, kind, class, error_type, sample, count, jobs, last_job) values ('00000000000000aa', 'job', 'error', '', '', 1, 1, '');
			truncate drover_failure_tallies; select drover_pause('all')`)
		if now := contents(t, pool); maps.Equal(now, fresh) {
			t.Error("nothing was written")
		}
	})
	inTest(func(t *testing.T, pool *pgxpool.Pool) {
		t.Helper()
		now := contents(t, pool)
		for thing, text := range now {
			if text != fresh[thing] {
				t.Errorf("%s: %s, in a new schema: %s", thing, text, fresh[thing])
			}
		}
		if len(now) != len(fresh) {
			t.Errorf("%d tables and sequences, %d in a new schema", len(now), len(fresh))
		}
		if counted := texts(t, pool, `select (`+used+`)::text`); counted[0] != "0" {
			t.Errorf("%s changes are counted", counted[0])
		}
		exec(t, pool, `alter table jobs set (fillfactor = 50)`)
	})
	inTest(func(*testing.T, *pgxpool.Pool) {})
	if names[0] != names[1] || names[1] == names[2] {
		t.Errorf("the schemas were %v; the first is to be used again, and dropped when a table has been altered", names)
	}
	gone := texts(t, pgtest.NewPool(t), `select count(*)::text from pg_namespace where nspname = '`+names[1]+`'`)
	if gone[0] != "0" {
		t.Error("the altered schema is still there")
	}
}

// The additions of a test to its schema are gone in the next test, and so are statistics: they would influence its plans.
func TestAdditionsToASchemaAreRemoved(t *testing.T) { //nolint:paralleltest // as above
	additions := []string{
		`create table effects (id bigint generated always as identity primary key, job text references jobs, at date not null default now())`,
		`create index on effects (job)`,
		`create table "Odd Name" (like jobs including all)`,
		`create view busy as select * from jobs where state = 'running'`,
		`create sequence numbers`,
		`create type mood as enum ('good', 'bad')`,
		`create domain short as text check (length(value) < 10)`,
		`create function refuse() returns trigger language plpgsql as $$ begin return null; end $$`,
		`create procedure nothing() language sql as ''`,
		`create trigger refuse before delete on jobs for each row execute function refuse()`,
		`create trigger later after insert on queues referencing new table as n for each statement execute function refuse()`,
		`alter table jobs add constraint "small ""args""" check (pg_column_size(args) < 1000) not valid`,
		`alter table queues add constraint one_per_limit unique (max_attempts)`,
		`create policy mine on jobs using (true)`,
		`create unique index one_at_a_time on jobs (kind) where state = 'running'`,
		`create index on jobs ((args->>'Order'))`,
		`create statistics pairs on kind, queue from jobs`,
		`insert into jobs (kind) select 'job' from generate_series(1, 1000)`,
		`analyze jobs, queues`,
	}
	var name string
	var fresh []string
	state := func(t *testing.T, pool *pgxpool.Pool) []string {
		t.Helper()
		all := append(catalogue(t, pool), texts(t, pool, `select concat(relname, ' ', reltuples, ' ', relpages) from pg_class where relkind = 'r' and relnamespace = current_schema()::regnamespace`)...)
		// These lines say of a table that it has triggers. Postgres leaves that as it is when the last trigger goes.
		return slices.DeleteFunc(all, func(thing string) bool { return strings.HasPrefix(thing, "relation r ") })
	}
	t.Run("inner", func(t *testing.T) {
		pool := pgtest.NewMigratedPool(t)
		name, fresh = pgtest.Schema(pool), state(t, pool)
		for _, sql := range additions {
			exec(t, pool, sql)
		}
		if stats := texts(t, pool, `select tablename from pg_stats where schemaname = current_schema()`); len(stats) < 20 {
			t.Errorf("statistics of %q", stats)
		}
	})
	t.Run("inner", func(t *testing.T) {
		pool := pgtest.NewMigratedPool(t)
		if again := pgtest.Schema(pool); again != name {
			t.Fatalf("the schemas were %s and %s, want the first one again", name, again)
		}
		now := state(t, pool)
		for _, thing := range now {
			if !slices.Contains(fresh, thing) {
				t.Errorf("left: %s", thing)
			}
		}
		for _, thing := range fresh {
			if !slices.Contains(now, thing) {
				t.Errorf("gone: %s", thing)
			}
		}
		if stats := texts(t, pool, `select tablename from pg_stats where schemaname = current_schema()`); len(stats) > 0 {
			t.Errorf("statistics of %q", stats)
		}
	})
}

// If a session outlives its test, no other test gets the schema.
func TestSchemasWithASessionAreDropped(t *testing.T) { //nolint:paralleltest // as above
	var schema string
	var session *pgx.Conn
	t.Run("inner", func(t *testing.T) {
		pool := pgtest.NewMigratedPool(t)
		schema = pgtest.Schema(pool)
		var err error
		if session, err = pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig); err != nil {
			t.Fatal(err)
		}
	})
	defer session.Close(t.Context()) //nolint:errcheck // nothing is lost with this connection
	if now := pgtest.Schema(pgtest.NewMigratedPool(t)); now == schema {
		t.Error("the schema was given to another test")
	}
}

// To make or to empty a schema takes no lock in other schemas. Otherwise it would wait for other tests, and be ended together
// with the sessions that they leave.
func TestSchemasAreMadeAlone(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewMigratedPool(t)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if _, err := tx.Exec(t.Context(), `lock table jobs, queues in access exclusive mode`); err != nil {
		t.Fatal(err)
	}
	schema := pgtest.Schema(pgtest.NewPool(t)) + "_new"
	conn, err := pgx.Connect(t.Context(), pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context()) //nolint:errcheck // nothing is lost with it
	defer exec(t, pool, `drop schema if exists `+schema+` cascade`)
	if err := upsql.Create(t.Context(), conn, schema); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `set lock_timeout = '1s'`); err != nil {
		t.Fatal(err)
	}
	note, err := upsql.Describe(t.Context(), conn, schema)
	if err != nil {
		t.Fatal(err)
	}
	if good, err := upsql.Reset(t.Context(), conn, schema, note); !good || err != nil {
		t.Error(good, err)
	}
}

// contents returns the rows of each table and the state of each sequence.
func contents(t *testing.T, pool *pgxpool.Pool) map[string]string {
	t.Helper()
	all := map[string]string{"sequences": strings.Join(texts(t, pool, `select concat_ws(' ', sequencename, last_value) from pg_sequences where schemaname = current_schema() order by 1`), ", ")}
	for _, table := range texts(t, pool, `select relname from pg_class where relnamespace = current_schema()::regnamespace and relkind = 'r'`) {
		rows := texts(t, pool, `select to_jsonb(t)::text from `+table+` t`)
		slices.Sort(rows)
		for _, row := range rows {
			all[table] += row + "\n"
		}
	}
	return all
}
