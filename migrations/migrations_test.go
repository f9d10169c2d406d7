package migrations_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/migrations"
)

// These tests do not check that servers older than PostgreSQL 15 are refused, because that needs such a server.

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestUpDownUpOnAnEmptyDatabase(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewPool(t)
	up(t, pool)
	first := objects(t, pool)
	if len(first) < 20 {
		t.Fatalf("Up made no more than %q", first)
	}
	down(t, pool)
	for _, name := range objects(t, pool) {
		if !strings.Contains(name, migrations.Table) {
			t.Errorf("Down left %s", name)
		}
	}
	up(t, pool)
	if again := objects(t, pool); !slices.Equal(first, again) {
		t.Errorf("the second Up made\n%q\nthe first\n%q", again, first)
	}
}

func TestUpDownUpOnAFullDatabase(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewPool(t)
	up(t, pool)
	exec(t, pool, `insert into jobs (kind, priority) select 'k', 1 + n % 9 from generate_series(1, 1000) n`)
	exec(t, pool, `insert into drover_kinds (kind) values ('k')`)
	exec(t, pool, `insert into queues (name) values ('q')`)
	exec(t, pool, `insert into drover_supervisors (id, lease_ms, queues) values ('s', 1, '{q}')`)
	exec(t, pool, `insert into drover_crews (queue, crew, kinds, lookout, on_call, polls, channel) values ('q', 1, '{k}', 1, 2, '5 s', 'c')`)
	up(t, pool) // a second Up keeps everything
	if n := value[int](t, pool, `select count(*) from jobs`); n != 1000 {
		t.Fatalf("%d jobs after the second Up", n)
	}
	down(t, pool)
	up(t, pool)
	if n := value[int](t, pool, `select count(*) from jobs`); n != 0 {
		t.Fatalf("%d jobs after Down and Up", n)
	}
}

func TestUpNamesTheForeignRelationInItsWay(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"jobs", "queues", "drover_supervisors", "discarded_jobs", "job_counts", "drover_redrives", "retry_budgets", "jobs_archive"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.NewPool(t)
			exec(t, pool, `create table `+name+` (mine int)`)
			err := migrations.Up(t.Context(), pool)
			if err == nil || !strings.Contains(err.Error(), `already has a relation named "`+name+`"`) ||
				!strings.Contains(err.Error(), pgtest.Schema(pool)) {
				t.Fatalf("Up = %v", err)
			}
			exec(t, pool, `insert into `+name+` (mine) values (1)`) // their table is not changed
			if n := value[int](t, pool, `select count(*) from pg_proc where pronamespace = quote_ident(current_schema())::regnamespace`); n != 0 {
				t.Errorf("Up left %d functions of a migration it took back", n)
			}
			exec(t, pool, `drop table `+name)
			up(t, pool)
		})
	}
}

// A schema from before the first release was made by other files. No present file can continue from it.
// If goose reads another migration's version, it leaves out the first file. Each later file then refuses to begin.
func TestALaterMigrationNeedsTheFirst(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewPool(t)
	names, err := fs.Glob(migrations.FS, "*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names[1:] {
		text, err := migrations.FS.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		up, _, _ := strings.Cut(string(text), "-- +goose Down")
		if _, err := pool.Exec(t.Context(), up); err == nil || !strings.Contains(err.Error(), "drover: the first of its migrations was skipped") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestUpRefusesWhatWasNeverReleased(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewPool(t)
	exec(t, pool, `create function drover_schema_version() returns int language sql immutable as 'select 8'`)
	before := objects(t, pool)
	err := migrations.Up(t.Context(), pool)
	if err == nil || !strings.Contains(err.Error(), "holds version 8 of drover's tables, from before the first release") {
		t.Fatalf("Up = %v", err)
	}
	after := slices.DeleteFunc(objects(t, pool), func(name string) bool { return strings.Contains(name, migrations.Table) })
	if !slices.Equal(before, after) {
		t.Errorf("it made %q of %q", after, before)
	}
}

func TestASchemaWithALongAndQuotedName(t *testing.T) {
	t.Parallel()
	// no name is used unquoted in a statement. The name has 63 bytes, so it is too long for a channel name with its prefix.
	// No other test process on the same server has the same name.
	admin := pgtest.NewPool(t)
	schema := `Drover's "herd" $1; ` + strings.Repeat("é", 14) + pgtest.Schema(admin) + "x"
	if len(schema) != 63 {
		t.Fatalf("%d bytes", len(schema))
	}
	quoted := pgx.Identifier{schema}.Sanitize()
	exec(t, admin, `create schema `+quoted)
	pool := otherPool(t, admin, quoted)
	t.Cleanup(func() {
		pool.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if _, err := admin.Exec(ctx, `drop schema `+quoted+` cascade`); err != nil {
			t.Error(err)
		}
	})
	up(t, pool)
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	channel := value[string](t, pool, `select drover_channel()`)
	if _, err := conn.Exec(t.Context(), `listen `+pgx.Identifier{channel}.Sanitize()); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, `insert into drover_crews (queue, crew, kinds, lookout, on_call, polls, channel) values ('default', 1, '{k}', 1, hashtextextended(current_schema(), 3), '5 s', drover_channel())`)
	if _, err := conn.Exec(t.Context(), `select pg_advisory_lock(hashtextextended(current_schema(), 3))`); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, `select drover_enqueue('k')`)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if note, err := conn.Conn().WaitForNotification(ctx); err != nil || !strings.HasPrefix(note.Payload, "wake ") || !strings.HasSuffix(note.Payload, " default") {
		t.Fatalf("notification %v, %v", note, err)
	}
	exec(t, pool, `unlisten *`)
	down(t, pool)
}

// With Schema, the migrations use the named schema, whatever the search_path is and whatever hooks the pool has. The pool's
// sessions keep their search_path.
func TestMigrateASchemaByName(t *testing.T) {
	t.Parallel()
	for what, hook := range map[string]func(*pgxpool.Config, string){
		"no hook": func(*pgxpool.Config, string) {},
		"PrepareConn": func(c *pgxpool.Config, path string) {
			c.PrepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) {
				_, err := conn.Exec(ctx, `set search_path to `+path)
				return err == nil, err
			}
		},
		"BeforeAcquire": func(c *pgxpool.Config, path string) {
			c.BeforeAcquire = func(ctx context.Context, conn *pgx.Conn) bool { //nolint:staticcheck // deprecated, and in use
				_, err := conn.Exec(ctx, `set search_path to `+path)
				return err == nil
			}
		},
		"AfterRelease": func(c *pgxpool.Config, _ string) {
			c.AfterRelease = func(conn *pgx.Conn) bool {
				_, err := conn.Exec(context.Background(), `reset all`)
				return err == nil
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			first := pgtest.NewPool(t)
			name := `Drover's "herd" of ` + pgtest.Schema(first)
			exec(t, first, `create schema `+pgx.Identifier{name}.Sanitize())
			t.Cleanup(func() {
				if _, err := first.Exec(context.Background(), `drop schema `+pgx.Identifier{name}.Sanitize()+` cascade`); err != nil {
					t.Error(err)
				}
			})
			config := first.Config()
			config.MaxConns = 1
			hook(config, pgtest.Schema(first))
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			there := otherPool(t, first, pgx.Identifier{name}.Sanitize())
			defer there.Close()
			for range 2 {
				if err := migrations.Schema(name).Up(t.Context(), pool); err != nil {
					t.Fatal(err)
				}
			}
			list, err := migrations.Schema(name).List(t.Context(), pool)
			if err != nil || slices.ContainsFunc(list, func(m migrations.Status) bool { return !m.Applied }) {
				t.Errorf("List = %+v, %v", list, err)
			}
			if made := objects(t, there); !slices.Contains(made, "r jobs") || !slices.Contains(made, "r "+migrations.Table) {
				t.Errorf("it made %q", made)
			}
			if path := value[string](t, pool, `select current_schema()::text`); path != pgtest.Schema(first) {
				t.Errorf("the pool works in %s now", path)
			}
			if made := objects(t, first); len(made) > 0 {
				t.Errorf("it made %q in the search_path", made)
			}
			if err := migrations.Schema(name).Down(t.Context(), pool); err != nil {
				t.Fatal(err)
			}
			if made := objects(t, there); slices.Contains(made, "r jobs") {
				t.Errorf("left: %q", made)
			}
		})
	}
}

func TestSixteenProcessesMigrateAtOnce(t *testing.T) {
	t.Parallel()
	first := pgtest.NewPool(t)
	var wg sync.WaitGroup
	errs := make([]error, 16)
	for i := range errs {
		pool := otherPool(t, first, pgtest.Schema(first))
		wg.Go(func() {
			defer pool.Close()
			errs[i] = migrations.Up(t.Context(), pool)
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			t.Errorf("process %d: %v", i, err)
		}
	}
	if n := value[int](t, first, `select count(*) from `+migrations.Table+` where version_id > 0`); n != len(files(t)) {
		t.Errorf("%d migrations recorded, want %d", n, len(files(t)))
	}
	if n := value[int](t, first, `select count(*) from jobs`); n != 0 {
		t.Error(n)
	}
}

func TestUpWaitsForOneThatIsAtWorkInItsSchemaOnly(t *testing.T) {
	t.Parallel()
	held, free := pgtest.NewPool(t), pgtest.NewPool(t)
	conn, err := held.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	const lock = `hashtextextended('drover ' || current_schema(), 0)`
	if _, err := conn.Exec(t.Context(), `select pg_advisory_lock(`+lock+`)`); err != nil {
		t.Fatal(err)
	}
	waiting, giveUp := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- migrations.Up(waiting, held) }()
	up(t, free)
	giveUp()
	if err := <-done; err == nil || !strings.Contains(err.Error(), context.Canceled.Error()) {
		t.Fatalf("an Up that was called off = %v", err)
	}
	if made := objects(t, held); len(made) > 0 {
		t.Errorf("without the lock it made %q", made)
	}
	if _, err := conn.Exec(t.Context(), `select pg_advisory_unlock(`+lock+`)`); err != nil {
		t.Fatal(err)
	}
	up(t, held)
}

func TestUpNeedsOneConnection(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewPool(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
	up(t, pool)
	if n := value[int](t, pool, `select drover_schema_version()`); int64(n) != newest(t) {
		t.Errorf("drover_schema_version() = %d, the last migration is %d: it has to raise it", n, newest(t))
	}
	// The lock is released although the connection stays open.
	if n := value[int](t, pool, `select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()`); n != 0 {
		t.Errorf("%d advisory locks left", n)
	}
}

// newest returns the number of the last migration. The first number is 10, because files with smaller numbers were never
// released.
func newest(t *testing.T) int64 {
	t.Helper()
	all := files(t)
	return number(t, all[len(all)-1])
}

// number returns the version in a migration's name. goose and drover's check accept gaps between versions.
func number(t *testing.T, file string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(file[:5], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// files returns the names of the migrations in order.
func files(t *testing.T) []string {
	t.Helper()
	names, err := fs.Glob(migrations.FS, "*.sql")
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	return names
}

func TestList(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewPool(t)
	for _, applied := range []bool{false, true, false} {
		list, err := migrations.List(t.Context(), pool)
		if err != nil {
			t.Fatal(err)
		}
		var want []migrations.Status
		for _, file := range files(t) {
			want = append(want, migrations.Status{Version: number(t, file), File: file, Applied: applied})
		}
		if !slices.Equal(list, want) {
			t.Fatalf("List = %+v, want %+v", list, want)
		}
		if applied {
			down(t, pool)
		} else {
			up(t, pool)
		}
	}
}

func TestUpWithoutASchema(t *testing.T) {
	t.Parallel()
	first := pgtest.NewPool(t)
	pool := otherPool(t, first, "no_such_schema")
	defer pool.Close()
	err := migrations.Up(t.Context(), pool)
	if err == nil || !strings.HasPrefix(err.Error(), "drover: migrate: ") || !strings.Contains(err.Error(), "no_such_schema names no schema") {
		t.Fatalf("Up = %v", err)
	}
}

// An application has two pools, and drover is in a later schema of the second pool's search_path. No second queue is made.
func TestUpBehindAnotherSchema(t *testing.T) {
	t.Parallel()
	const firstName = `The app's "own"`
	theirs := pgtest.NewPool(t)
	up(t, theirs)
	app := pgx.Identifier{pgtest.Schema(theirs) + firstName}.Sanitize()
	exec(t, theirs, `create schema `+app)
	t.Cleanup(func() {
		if _, err := theirs.Exec(context.Background(), `drop schema `+app+` cascade`); err != nil {
			t.Error(err)
		}
	})
	behind := otherPool(t, theirs, app+", no_such_schema, "+pgtest.Schema(theirs))
	defer behind.Close()
	_, listErr := migrations.List(t.Context(), behind)
	for _, err := range []error{migrations.Up(t.Context(), behind), migrations.Down(t.Context(), behind), listErr} {
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("drover is in the schema %q already", pgtest.Schema(theirs))) ||
			!strings.Contains(err.Error(), fmt.Sprintf("a second queue into %q", pgtest.Schema(theirs)+firstName)) {
			t.Errorf("behind another schema: %v", err)
		}
	}
	if made := objects(t, behind); len(made) > 0 {
		t.Errorf("made %q", made)
	}

	before := otherPool(t, theirs, pgtest.Schema(theirs)+", "+app)
	defer before.Close()
	up(t, before)
	own := otherPool(t, theirs, app) // another schema is another queue
	defer own.Close()
	up(t, own)
	up(t, behind) // now drover is in the first schema of the path, so that one is used
}

func TestEmbeddedFilesAreThoseOnDisk(t *testing.T) {
	t.Parallel()
	onDisk, err := fs.Glob(os.DirFS("."), "*.sql")
	if err != nil {
		t.Fatal(err)
	}
	embedded, err := fs.Glob(migrations.FS, "*")
	if err != nil || !slices.Equal(onDisk, embedded) {
		t.Fatalf("embedded %q, on disk %q, %v", embedded, onDisk, err)
	}
	for _, name := range onDisk {
		want, _ := os.ReadFile(name)
		got, err := migrations.FS.ReadFile(name)
		if err != nil || string(got) != string(want) {
			t.Errorf("%s differs from the file on disk: %v", name, err)
		}
		if !strings.Contains(string(got), "\n-- +goose Up\n") || !strings.Contains(string(got), "\n-- +goose Down\n") {
			t.Errorf("%s has no Up or no Down", name)
		}
	}
}

// only the roles that the owner has named may call functions with the owner's rights. No object of the caller can replace
// an object that such a function uses.
func TestFunctionsGiveNoRightsAway(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewPool(t)
	up(t, pool)
	for what, where := range map[string]string{
		"security definer, and executable by everybody": `prosecdef and has_function_privilege('public', oid, 'execute')`,
		"without a search_path of its own":              `not coalesce(proconfig::text like '%search_path=' || case when proname = 'drover_secure' then 'pg_catalog' else current_schema() end || ', pg_temp%', false)`,
		"for its owner, and executable by everybody":    `proname = 'drover_secure' and has_function_privilege('public', oid, 'execute')`,
	} {
		names := values(t, pool, `select oid::regprocedure::text from pg_proc where pronamespace = quote_ident(current_schema())::regnamespace and `+where)
		if len(names) > 0 {
			t.Errorf("%s: %q", what, names)
		}
	}
	definers := values(t, pool, `select proname::text from pg_proc where pronamespace = quote_ident(current_schema())::regnamespace and prosecdef order by 1`)
	if want := []string{"drover_enqueue", "drover_enqueue_many", "drover_enqueue_unique", "drover_wake"}; !slices.Equal(definers, want) {
		t.Errorf("security definer: %q, want %q", definers, want)
	}
}

func TestEverythingIsCommented(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewPool(t)
	up(t, pool)
	for _, query := range []string{
		`select relname::text from pg_class where relnamespace = quote_ident(current_schema())::regnamespace and relkind in ('r', 'v')
			and relname <> 'drover_goose_version' and obj_description(oid, 'pg_class') is null`,
		`select proname::text from pg_proc where pronamespace = quote_ident(current_schema())::regnamespace and obj_description(oid, 'pg_proc') is null`,
		`select attname::text from pg_attribute where attrelid = 'jobs'::regclass and attnum > 0 and col_description(attrelid, attnum) is null`,
	} {
		if names := values(t, pool, query); len(names) > 0 {
			t.Errorf("without a comment: %q", names)
		}
	}
}

// Text in an index is ordered by its bytes. With a locale, the C library of the machine would order it. A standby with another
// C library would then miss rows after a promotion.
func TestIndexedTextIsOrderedByBytes(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewPool(t)
	up(t, pool)
	names := values(t, pool, `
select i.indexrelid::regclass || ', column ' || a.attname
from pg_index i join pg_class c on c.oid = i.indrelid join pg_attribute a on a.attrelid = i.indexrelid
where c.relnamespace = quote_ident(current_schema())::regnamespace and c.relname <> '`+migrations.Table+`'
	and a.attcollation not in (0, (select oid from pg_collation where collname = 'C' and collnamespace = 'pg_catalog'::regnamespace))
order by 1`)
	if len(names) > 0 {
		t.Errorf("ordered by a locale: %q", names)
	}
}

// migratedTo makes a schema of a version, and returns the provider that continues from there.
func migratedTo(t *testing.T, version int64) (*pgxpool.Pool, *goose.Provider) {
	t.Helper()
	pool := pgtest.NewPool(t)
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	provider, err := goose.NewProvider(goose.DialectPostgres, db, migrations.FS, goose.WithTableName(migrations.Table), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := provider.UpTo(t.Context(), version); err != nil {
		t.Fatal(err)
	}
	return pool, provider
}

func up(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	if err := migrations.Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
}

func down(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	if err := migrations.Down(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
}

// otherPool is a pool of another process on the same database.
func otherPool(t *testing.T, pool *pgxpool.Pool, searchPath string) *pgxpool.Pool {
	t.Helper()
	config := pool.Config()
	config.MaxConns = 2
	config.ConnConfig.RuntimeParams["search_path"] = searchPath
	other, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	return other
}

// objects lists the objects of the schema.
func objects(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	return values(t, pool, `
select relkind::text || ' ' || relname from pg_class where relnamespace = quote_ident(current_schema())::regnamespace
union all
select 'function ' || oid::regprocedure from pg_proc where pronamespace = quote_ident(current_schema())::regnamespace
union all
select 'constraint ' || conname || ' ' || pg_get_constraintdef(oid) from pg_constraint where connamespace = quote_ident(current_schema())::regnamespace
order by 1`)
}

func exec(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func value[T any](t *testing.T, pool *pgxpool.Pool, sql string) (v T) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func values(t *testing.T, pool *pgxpool.Pool, sql string) []string {
	t.Helper()
	rows, _ := pool.Query(t.Context(), sql)
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return list
}
