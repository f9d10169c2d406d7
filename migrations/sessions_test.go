package migrations_test

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/internal/tier"
	"github.com/drover-queue/drover/migrations"
)

// with returns a pool whose sessions begin with other settings, as a database or a role may set them.
func with(t *testing.T, pool *pgxpool.Pool, settings map[string]string) *pgxpool.Pool {
	t.Helper()
	config := pool.Config()
	config.MaxConns = 2
	for name, value := range settings {
		config.ConnConfig.RuntimeParams[name] = value
	}
	other, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Close)
	return other
}

// gooseIn returns a goose provider that keeps its versions in the table. With "" it uses the default table of the goose
// command.
func gooseIn(t *testing.T, pool *pgxpool.Pool, table string) *goose.Provider {
	t.Helper()
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	options := []goose.ProviderOption{goose.WithDisableGlobalRegistry(true)}
	if table != "" {
		options = append(options, goose.WithTableName(table))
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, migrations.FS, options...)
	if err != nil {
		t.Fatal(err)
	}
	return provider
}

// The schema does not depend on the settings of the sessions, and the sessions keep their settings.
func TestUpInAnySession(t *testing.T) {
	t.Parallel()
	for _, settings := range []map[string]string{
		{"standard_conforming_strings": "off", "escape_string_warning": "off", "backslash_quote": "off"},
		{"default_transaction_isolation": "serializable", "default_transaction_read_only": "on"},
		{"client_encoding": "LATIN1", "datestyle": "German", "intervalstyle": "sql_standard", "timezone": "Asia/Kolkata", "extra_float_digits": "-15", "plpgsql.extra_errors": "all"},
	} {
		t.Run(fmt.Sprint(settings), func(t *testing.T) {
			t.Parallel()
			plain := pgtest.NewPool(t)
			pool := with(t, plain, settings)
			config := pool.Config()
			config.MaxConns = 1
			one, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(one.Close)
			up(t, one)
			for name := range settings {
				if got, want := value[string](t, one, `show `+name), value[string](t, pool, `show `+name); got != want {
					t.Errorf("%s is %s afterwards, was %s", name, got, want)
				}
			}
			if !value[bool](t, plain, `select drover_strategy_ok('{"type": "constant", "delay": "30µs"}')`) {
				t.Error("µs is no unit")
			}
			if settings["standard_conforming_strings"] != "" {
				// Such a session also reads the literals of the functions in its own way, so they have no backslash.
				if names := values(t, plain, `select proname::text from pg_proc where pronamespace = quote_ident(current_schema())::regnamespace and regexp_replace(prosrc, E'E\'[^\']*\'', '', 'g') ~ E'\\\\'`); len(names) > 0 {
					t.Errorf("literals with a backslash and no E in front: %v", names)
				}
				exec(t, pool, `select drover_enqueue('kind'), drover_periodic_set('nightly', 'kind', E'*/5 2\t* * mon-fri')`)
				if _, err := pool.Exec(t.Context(), `select drover_enqueue('a' || chr(7))`); err == nil || !strings.Contains(err.Error(), "cannot be seen") {
					t.Errorf("a kind with a bell: %v", err)
				}
			}
		})
	}
}

// statement_timeout does not end a migration that waits for its turn.
func TestUpOutlastsTheStatementTimeout(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	pool := pgtest.NewPool(t)
	provider := gooseIn(t, pool, migrations.Table)
	before := int64(0)
	for _, source := range provider.ListSources() {
		raw, err := fs.ReadFile(migrations.FS, source.Path)
		if err != nil {
			t.Fatal(err)
		}
		if ups, _, _ := strings.Cut(string(raw), "+goose Down"); strings.Contains(ups, "select drover_lock_tables('{jobs}')") {
			break
		}
		before = source.Version
	}
	if _, err := provider.UpTo(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	holder, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := holder.Exec(t.Context(), `lock table jobs in row exclusive mode`); err != nil {
		t.Fatal(err)
	}
	hasty := with(t, pool, map[string]string{"statement_timeout": "2s", "application_name": "hasty " + pgtest.Schema(pool)})
	done := make(chan error, 1)
	go func() { done <- migrations.Up(t.Context(), hasty) }() // ends with the migration, and the test waits for that below
	waited := `select exists (select from pg_sleep(0.1), pg_stat_activity where application_name = 'hasty ` + pgtest.Schema(pool) + `' and query ~ '^select drover_lock_tables' and state = 'active' and query_start < clock_timestamp() - interval '3 s')`
	for !value[bool](t, pool, waited) {
		if len(done) > 0 {
			t.Fatalf("it did not wait: %v", <-done)
		}
	}
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// The goose command runs with the settings of its session.
func TestGooseWithoutConformingStrings(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	plain := pgtest.NewPool(t)
	provider := gooseIn(t, with(t, plain, map[string]string{"standard_conforming_strings": "off"}), migrations.Table)
	if _, err := provider.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	odd := objects(t, plain)
	if _, err := provider.DownTo(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	up(t, plain)
	if usual := objects(t, plain); fmt.Sprint(usual) != fmt.Sprint(odd) {
		t.Errorf("made %q, usually %q", odd, usual)
	}
}

// A user of goose first tries goose without -table. On an empty schema this works, and later errors explain how to go on.
func TestGooseWithoutATable(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewPool(t)
	provider := gooseIn(t, pool, "")
	if _, err := provider.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, listErr := migrations.List(t.Context(), pool)
	for _, err := range []error{migrations.Up(t.Context(), pool), migrations.Down(t.Context(), pool), listErr} {
		if err == nil || !strings.Contains(err.Error(), `goose -dir migrations postgres "$DATABASE_URL" up`) || !strings.Contains(err.Error(), "alter table goose_db_version rename to "+migrations.Table) {
			t.Errorf("after goose without -table: %v", err)
		}
	}
	if _, err := provider.Up(t.Context()); err != nil { // the command that the error names
		t.Error(err)
	}
	if _, err := gooseIn(t, pool, migrations.Table).Up(t.Context()); err == nil || !strings.Contains(err.Error(), `goose -dir migrations -table goose_db_version postgres`) {
		t.Errorf("goose with another table: %v", err)
	}
	if err := migrations.Up(t.Context(), pool); err == nil || !strings.Contains(err.Error(), `goose -dir migrations -table goose_db_version postgres`) {
		t.Errorf("Up next to an empty table of drover's: %v", err)
	}
	exec(t, pool, `drop table `+migrations.Table)
	exec(t, pool, `alter table goose_db_version rename to `+migrations.Table) // the other remedy in the error
	up(t, pool)
	if _, err := gooseIn(t, pool, "").Up(t.Context()); err == nil || !strings.Contains(err.Error(), `goose -dir migrations -table drover_goose_version postgres "$DATABASE_URL" up`) {
		t.Errorf("goose without -table, next to drover's own: %v", err)
	}
	list, err := migrations.List(t.Context(), pool)
	if err != nil || len(list) == 0 || !list[len(list)-1].Applied {
		t.Errorf("List = %+v, %v", list, err)
	}
}

// With an application's goose table, goose would take drover's numbers for the application's. So nothing is done.
func TestGooseInAnApplicationsTable(t *testing.T) {
	t.Parallel()
	for _, theirs := range []string{"1, 2, 3", "9", "10, 11, 12, 13", "20260101000000"} {
		t.Run(theirs, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.NewPool(t)
			exec(t, pool, `create table goose_db_version (id int generated by default as identity primary key, version_id bigint not null, is_applied boolean not null, tstamp timestamp not null default now())`)
			exec(t, pool, `insert into goose_db_version (version_id, is_applied) select v, true from unnest(array[0, `+theirs+`]::bigint[]) v`)
			before := objects(t, pool)
			_, err := gooseIn(t, pool, "").Up(t.Context())
			if err == nil || theirs[0] != '2' && !strings.Contains(err.Error(), `goose -dir migrations -table drover_goose_version postgres "$DATABASE_URL" up`) {
				t.Errorf("goose without -table: %v", err)
			}
			if after := objects(t, pool); fmt.Sprint(before) != fmt.Sprint(after) {
				t.Errorf("made %q, there was %q", after, before)
			}
			if n := value[int](t, pool, `select count(*) from goose_db_version`); n != 2+strings.Count(theirs, ",") {
				t.Errorf("%d versions", n)
			}
			if _, err := gooseIn(t, pool, "herd_versions").Up(t.Context()); err != nil { // a table of its own, with any name
				t.Error(err)
			}
			if err := migrations.Up(t.Context(), pool); err == nil || !strings.Contains(err.Error(), "goose with another -table") {
				t.Errorf("Up = %v", err)
			}
		})
	}
}

// Many processes start after a rename, with different settings. One repairs the functions, and the others find them repaired.
func TestUpAfterARename(t *testing.T) {
	t.Parallel()
	plain := pgtest.NewMigratedPool(t)
	name := pgtest.Schema(plain)
	renamed := pgx.Identifier{name + ` "new" Ü`}.Sanitize()
	exec(t, plain, `alter schema `+name+` rename to `+renamed)
	pool := with(t, plain, map[string]string{"search_path": renamed, "default_transaction_isolation": "serializable", "default_transaction_read_only": "on"})
	errs := make(chan error)
	for range 8 {
		go func() { errs <- migrations.Up(t.Context(), pool) }()
	}
	for range 8 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	for _, fn := range values(t, pool, `select oid::regprocedure::text from pg_proc where pronamespace = quote_ident(current_schema())::regnamespace
		and proname <> 'drover_secure' and format('search_path=%I, pg_temp', current_schema()) <> all(coalesce(proconfig, '{}'))`) {
		t.Errorf("%s still has the old name", fn)
	}
	exec(t, pool, `select drover_check_schema()`)
	exec(t, plain, `alter schema `+renamed+` rename to `+name)
	down(t, plain) // repairs the functions too
}
