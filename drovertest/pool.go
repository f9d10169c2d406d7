package drovertest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover/internal/upsql"
)

// NewPool returns a pool on a schema of the test's own, with drover's tables as they are after the migrations, so that
// tests can run in parallel. url is the connection string of a test database where the role may create schemas; not
// of a transaction pooler. Each edit may change the pool's settings before the pool opens.
//
// The schema comes first in the search_path of the pool; the search_path that url may have follows. For database/sql, use
// stdlib.OpenDBFromPool of pgx, or NewURL with another driver.
//
// A schema is made and migrated once, which takes some tenths of a second, and stays in the database. Later tests use
// it again, also in other processes, and NewPool empties its tables first. If a test has changed more in a schema than
// rows, such as a table of its own, the schema is dropped instead, and so is a schema of other migrations. NewPool
// touches no schema whose name does not begin with drovertest_.
//
// End your transactions, and wait for Supervisor.Run, before the test ends: the pool is closed then. The test fails if a
// connection was not given back within 10 s.
func NewPool(t testing.TB, url string, edit ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(NewURL(t, url))
	if err != nil {
		t.Fatalf("drovertest: %v", err)
	}
	for _, change := range edit {
		change(config)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatalf("drovertest: %v", err)
	}
	t.Cleanup(func() {
		done := make(chan struct{})
		go func() {
			pool.Close() // waits for the connections
			close(done)
		}()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Errorf("drovertest: %d connections of the pool were not given back", pool.Stat().AcquiredConns())
		}
	})
	return pool
}

// NewURL is NewPool for drivers other than pgx. It returns url with two more settings: the search_path begins with the
// test's schema, and application_name is the schema's name. A session with this application_name that outlives the
// test keeps other tests out of the schema.
func NewURL(t testing.TB, url string) string {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatalf("drovertest: %v", err)
	}
	schema, conn, err := take(ctx, config)
	if err != nil {
		t.Fatalf("drovertest: getting a schema for the test: %v", err)
	}
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.Background(), time.Minute)
		defer stop()
		// The server ends a session a moment after Close, and the next test would not find this schema free.
		_, err := conn.Exec(ctx, `select pg_advisory_unlock_all()`)
		if err = errors.Join(err, conn.Close(ctx)); err != nil {
			t.Errorf("drovertest: %v", err)
		}
	})
	return inSchema(url, schema, config.RuntimeParams["search_path"])
}

// inSchema returns a connection string, a URL or key=value pairs, for sessions in a schema.
func inSchema(text, schema, path string) string {
	if path != "" {
		path = "," + path
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return text + " application_name=" + schema + " search_path='" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(schema+path) + "'"
	}
	settings := u.Query()
	settings.Set("application_name", schema)
	settings.Set("search_path", schema+path)
	u.RawQuery = strings.ReplaceAll(settings.Encode(), "+", "%20") // libpq leaves a + as it is
	return u.String()
}

// sqlSchemas finds the schemas of this package.
const sqlSchemas = `
select nspname::text from pg_namespace where nspname ~ '^drovertest_[0-9a-f]{12}_[a-z0-9]{12}$' and pg_has_role(nspowner, 'usage') order by 1`

// take returns a schema that no other test uses, and the session whose lock keeps it so. The lock needs no clean-up: it
// ends with the process.
func take(ctx context.Context, config *pgx.ConnConfig) (schema string, conn *pgx.Conn, err error) {
	conn, err = pgx.ConnectConfig(ctx, config)
	if err != nil {
		return "", nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, conn.Close(ctx))
		}
	}()
	// An emptied schema must be like a new one in all that a test sees, so nothing may hold it up for long either.
	if _, err := conn.Exec(ctx, `set lock_timeout = '10s'; set synchronous_commit = off; set search_path = pg_catalog`); err != nil {
		return "", nil, err
	}
	migrations, err := upsql.Render()
	if err != nil {
		return "", nil, err
	}
	prefix := fmt.Sprintf("drovertest_%.6x_", sha256.Sum256([]byte(migrations)))
	rows, _ := conn.Query(ctx, sqlSchemas)
	schemas, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return "", nil, err
	}
	for _, schema := range schemas {
		good, err := tryToTake(ctx, conn, schema, strings.HasPrefix(schema, prefix))
		if good || err != nil {
			return schema, conn, err
		}
	}
	schema = prefix + strings.ToLower(rand.Text()[:12])
	return schema, conn, create(ctx, conn, schema, migrations)
}

const sqlLock, sqlUnlock = `select pg_try_advisory_lock(hashtextextended($1, 0))`, `select pg_advisory_unlock(hashtextextended($1, 0))`

// sqlState reports whether sessions work in schema $1, and whether it is as it was when it was new, except its rows.
const sqlState = `
select exists (select from pg_stat_activity where application_name = $1 and datname = current_database()),
	coalesce(strpos(obj_description(to_regnamespace($1), 'pg_namespace'), format('"print": "%s"', (` + sqlPrint + `))) > 0, false)`

// sqlPrint changes with everything in schema $1 except its rows. An oid and its xmin change with each change of a
// row of a catalog. Rows of pg_class are spelled out, because a truncate changes them.
const sqlPrint = `
select count(*) || md5(string_agg(x, ' ' order by x collate "C")) from (
	select concat(nspowner, nspacl) from pg_namespace where oid = to_regnamespace($1)
	union all select concat(oid, ':', xmin) from pg_proc where pronamespace = to_regnamespace($1)
	union all select concat_ws(':', oid, relname, relkind, relowner, relacl, reloptions, relrowsecurity) from pg_class where relnamespace = to_regnamespace($1)
	union all select concat(oid, ':', xmin) from pg_constraint where connamespace = to_regnamespace($1)
	union all select concat(oid, ':', xmin) from pg_type where typnamespace = to_regnamespace($1)
	union all select concat(t.oid, ':', t.xmin) from pg_trigger t join pg_class c on c.oid = tgrelid where relnamespace = to_regnamespace($1)
	union all select concat(p.oid, ':', p.xmin) from pg_policy p join pg_class c on c.oid = polrelid where relnamespace = to_regnamespace($1)
	union all select concat(r.oid, ':', r.xmin) from pg_rewrite r join pg_class c on c.oid = ev_class where relnamespace = to_regnamespace($1)
	union all select concat(d.oid, ':', d.xmin) from pg_attrdef d join pg_class c on c.oid = adrelid where relnamespace = to_regnamespace($1)
	union all select concat(attrelid, ':', attnum, ':', a.xmin) from pg_attribute a join pg_class c on c.oid = attrelid where relnamespace = to_regnamespace($1) and relkind <> 'i'
) all_of_it(x)`

// tryToTake locks a schema and empties its tables. It returns false if another test has the schema, and drops a schema
// that is not as it was when it was new.
func tryToTake(ctx context.Context, conn *pgx.Conn, schema string, fits bool) (good bool, err error) {
	var free, inUse bool
	if err := conn.QueryRow(ctx, sqlLock, schema).Scan(&free); err != nil || !free {
		return false, err
	}
	for range 10 { // a session ends a moment after its client has closed it
		if err := conn.QueryRow(ctx, sqlState, schema).Scan(&inUse, &good); err != nil {
			return false, err
		}
		if !inUse {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	switch {
	case inUse:
		good = false
	case good && fits:
		_, err := conn.Exec(ctx, strings.ReplaceAll(sqlEmpty, "SCHEMA", schema))
		return true, err
	default:
		good = false
		_, err = conn.Exec(ctx, `drop schema if exists `+schema+` cascade`)
	}
	_, unlock := conn.Exec(ctx, sqlUnlock, schema)
	return good, errors.Join(err, unlock)
}

// sqlEmpty leaves the rows that migrations have written. A delete from an empty table takes 0.05 ms and a truncate
// 0.5 ms, but a delete leaves dead rows, and from 1 MB on it is slower.
const sqlEmpty = `
do $$
declare
	t record;
	kept constant jsonb := obj_description('SCHEMA'::regnamespace, 'pg_namespace')::jsonb->'rows';
begin
	for t in select oid::regclass as name, relname from pg_class where relnamespace = 'SCHEMA'::regnamespace and relkind = 'r' loop
		execute case when pg_relation_size(t.name) > 1000000 then 'truncate ' else 'delete from ' end || t.name;
		if kept ? t.relname then
			execute format('insert into %s select * from jsonb_populate_recordset(null::%1$s, $1)', t.name) using kept->t.relname;
		end if;
	end loop;
end $$`

// create makes a schema with drover's tables, and notes in a comment what is in it.
func create(ctx context.Context, conn *pgx.Conn, schema, migrations string) error {
	if _, err := conn.Exec(ctx, sqlLock, schema); err != nil { // first: another test would drop a schema that is not finished
		return err
	}
	if _, err := conn.Exec(ctx, `create schema `+schema+`; set search_path = `+schema+`; `+migrations+`; set search_path = pg_catalog`); err != nil {
		return err
	}
	var print string
	if err := conn.QueryRow(ctx, sqlPrint, schema).Scan(&print); err != nil {
		return err
	}
	_, err := conn.Exec(ctx, strings.NewReplacer("SCHEMA", schema, "PRINT", print).Replace(sqlNote))
	return err
}

// sqlNote keeps the rows that migrations have written.
const sqlNote = `
do $$
declare
	t    record;
	has  jsonb;
	kept jsonb := '{}';
begin
	for t in select oid::regclass as name, relname from pg_class where relnamespace = 'SCHEMA'::regnamespace and relkind = 'r' loop
		execute format('select jsonb_agg(r) from %s r', t.name) into has;
		kept := kept || case when has is null then '{}' else jsonb_build_object(t.relname, has) end;
	end loop;
	execute format('comment on schema SCHEMA is %L', jsonb_build_object('print', 'PRINT', 'rows', kept));
end $$`
