package drovertest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover/migrations"
)

// NewPool returns a pool for a schema of the test's own, with empty drover tables, so that tests
// can run in parallel. url is the URL of a test database in which the role may create schemas. Each
// edit may change the pool's settings before the pool opens. The schema is the whole search_path of
// the pool, and the application_name of its sessions.
//
// Migrations run for the first tests of a process. When a test has ended, its tables are emptied
// for the next one, which takes some hundredths of a second. A schema is dropped instead if the
// test has failed, has changed more in it than rows, or has sessions there that do not end within a
// second. The next process drops the schemas that are left at the end of a process. End your
// transactions, and wait for Supervisor.Run, before the test ends: the pool is closed then, and the
// test fails if a connection was not given back within 10 s.
func NewPool(t testing.TB, url string, edit ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatalf("drovertest: %v", err)
	}
	ctx := context.Background() // t.Context() has ended when the test cleans up
	d, err := databaseOf(ctx, url)
	if err != nil {
		t.Fatalf("drovertest: %v", err)
	}
	s, err := d.take(ctx)
	if err != nil {
		t.Fatalf("drovertest: making a schema: %v", err)
	}
	for _, change := range edit {
		change(config)
	}
	config.ConnConfig.RuntimeParams["search_path"] = s.name
	config.ConnConfig.RuntimeParams["application_name"] = s.name
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		t.Fatalf("drovertest: %v", err)
	}
	t.Cleanup(func() {
		if !closed(pool) {
			t.Errorf("drovertest: %d connections of the pool were not given back", pool.Stat().AcquiredConns())
		}
		if err := d.giveBack(ctx, s, !t.Failed()); err != nil {
			t.Errorf("drovertest: the schema %s: %v", s.name, err)
		}
	})
	return pool
}

// closed closes a pool, which waits for its connections. It reports whether they came back.
func closed(pool *pgxpool.Pool) bool {
	done := make(chan struct{})
	go func() {
		pool.Close()
		close(done)
	}()
	select {
	case <-done:
		return true
	case <-time.After(10 * time.Second):
		return false
	}
}

// databases are those that this process makes schemas in.
//
//nolint:gochecknoglobals // tests share nothing but package variables
var databases struct {
	mu    sync.Mutex
	byURL map[string]*database
}

// database is one of them. Its session lasts as long as the process, and has a lock that says so.
type database struct {
	url, process string

	mu    sync.Mutex
	owner *pgx.Conn
	free  []*schema
	made  int
}

// schema has drover's tables.
type schema struct {
	name  string
	print string // of all that is in it but rows
	empty string // makes it as it was
}

func databaseOf(ctx context.Context, url string) (*database, error) {
	databases.mu.Lock()
	defer databases.mu.Unlock()
	if d := databases.byURL[url]; d != nil {
		return d, nil
	}
	owner, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	d := &database{url: url, process: strings.ToLower(rand.Text()[:10]), owner: owner}
	if _, err := owner.Exec(ctx, `select pg_advisory_lock(hashtextextended('drovertest_' || $1, 0))`, d.process); err != nil {
		return nil, errors.Join(err, owner.Close(ctx))
	}
	if err := d.dropLeft(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("dropping the schemas of processes that have ended: %w", err), owner.Close(ctx))
	}
	if databases.byURL == nil {
		databases.byURL = map[string]*database{}
	}
	databases.byURL[url] = d
	return d, nil
}

// dropLeft drops the schemas of processes that have ended.
func (d *database) dropLeft(ctx context.Context) error {
	rows, err := d.owner.Query(ctx, `select nspname::text, split_part(nspname, '_', 2) from pg_namespace where nspname ~ '^drovertest_[a-z0-9]{10}_[0-9]+$'`)
	if err != nil {
		return err
	}
	left, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ Name, Process string }])
	if err != nil {
		return err
	}
	for _, l := range left {
		const key = `hashtextextended('drovertest_' || $1, 0)`
		var ended bool
		if err := d.owner.QueryRow(ctx, `select pg_try_advisory_lock(`+key+`)`, l.Process).Scan(&ended); err != nil {
			return err
		}
		if !ended {
			continue
		}
		if err := d.drop(ctx, l.Name); err != nil {
			return err
		}
		if _, err := d.owner.Exec(ctx, `select pg_advisory_unlock(`+key+`)`, l.Process); err != nil {
			return err
		}
	}
	return nil
}

// drop drops a schema, unless something holds it for long.
func (d *database) drop(ctx context.Context, name string) error {
	_, err := d.owner.Exec(ctx, `set lock_timeout = '10s'; drop schema if exists `+name+` cascade`)
	return err
}

// take returns a schema that nobody uses, a new one if there is none.
func (d *database) take(ctx context.Context) (*schema, error) {
	d.mu.Lock()
	if n := len(d.free); n > 0 {
		s := d.free[n-1]
		d.free = d.free[:n-1]
		d.mu.Unlock()
		return s, nil
	}
	d.made++
	s := &schema{name: fmt.Sprintf("drovertest_%s_%d", d.process, d.made)}
	_, err := d.owner.Exec(ctx, `create schema `+s.name)
	d.mu.Unlock()
	if err != nil {
		return nil, err
	}
	config, err := pgxpool.ParseConfig(d.url)
	if err != nil {
		return nil, err
	}
	config.ConnConfig.RuntimeParams["search_path"] = s.name
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	if err := migrations.Up(ctx, pool); err != nil {
		return nil, err
	}
	if err := s.note(ctx, pool); err != nil {
		return nil, err
	}
	return s, nil
}

// sqlTables are those that tests write to, and those of them that migrations have written to.
const sqlTables = `
select c.relname::text, (xpath('/row/has/text()', query_to_xml(format('select exists (select from %s) as has', c.oid::regclass), false, true, '')))[1]::text = 'true'
from pg_class c where c.relkind = 'r' and c.relnamespace = current_schema()::regnamespace and c.relname <> $1`

// note remembers what is in a new schema.
func (s *schema) note(ctx context.Context, pool *pgxpool.Pool) error {
	rows, err := pool.Query(ctx, sqlTables, migrations.Table)
	if err != nil {
		return err
	}
	tables, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct {
		Name string
		Has  bool
	}])
	if err != nil {
		return err
	}
	var names, again []string
	for _, table := range tables {
		name := s.name + "." + pgx.Identifier{table.Name}.Sanitize()
		names = append(names, name)
		if table.Has {
			kept := s.name + "." + pgx.Identifier{"drovertest_" + table.Name}.Sanitize()
			if _, err := pool.Exec(ctx, `create table `+kept+` as table `+name); err != nil {
				return err
			}
			again = append(again, `; insert into `+name+` table `+kept)
		}
	}
	s.empty = `truncate ` + strings.Join(names, ", ") + ` restart identity` + strings.Join(again, "")
	return pool.QueryRow(ctx, sqlPrint, s.name).Scan(&s.print)
}

// sqlPrint changes with everything in schema $1 but the rows.
const sqlPrint = `
select count(*) || md5(string_agg(x, ' ' order by x)) from (
	select concat(oid, ':', xmin) from pg_proc where pronamespace = $1::regnamespace
	union all select concat(oid, ':', relname, relkind, reloptions, relacl) from pg_class where relnamespace = $1::regnamespace
	union all select concat(oid, ':', xmin) from pg_constraint where connamespace = $1::regnamespace
	union all select concat(t.oid, ':', t.xmin) from pg_trigger t join pg_class c on c.oid = t.tgrelid where c.relnamespace = $1::regnamespace
	union all select concat(a.attrelid, ':', a.attnum, ':', a.xmin) from pg_attribute a join pg_class c on c.oid = a.attrelid where c.relnamespace = $1::regnamespace
	union all select concat(oid, ':', xmin) from pg_type where typnamespace = $1::regnamespace
	union all select concat(p.oid, ':', p.xmin) from pg_policy p join pg_class c on c.oid = p.polrelid where c.relnamespace = $1::regnamespace
) all_of_it(x)`

// sqlSessions counts what still works in schema $1: the server ends a session a moment after its client has.
const sqlSessions = `select count(*) from pg_stat_activity where application_name = $1 and datname = current_database()`

// giveBack empties a schema for the next test, or drops it.
func (d *database) giveBack(ctx context.Context, s *schema, reuse bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if reuse {
		for range 20 {
			var sessions int
			if err := d.owner.QueryRow(ctx, sqlSessions, s.name).Scan(&sessions); err != nil {
				return err
			}
			if reuse = sessions == 0; reuse {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	var now string
	if reuse {
		if err := d.owner.QueryRow(ctx, sqlPrint, s.name).Scan(&now); err != nil {
			return err
		}
	}
	if now != s.print {
		return d.drop(ctx, s.name)
	}
	if _, err := d.owner.Exec(ctx, `set lock_timeout = '10s'; `+s.empty); err != nil {
		return errors.Join(err, d.drop(ctx, s.name))
	}
	d.free = append(d.free, s)
	return nil
}
