package migrations_test

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/migrations"
)

// Statements lock tables in orders of their own: that of their text at first, that of a cached plan later. A migration
// that waited for one table while it held another was in a deadlock with one of them.
func TestMigrationsHoldNothingWhileTheyWait(t *testing.T) {
	t.Parallel()
	tables := map[int64][]string{
		2: {"jobs"}, 3: {"kinds"}, 4: {"jobs", "kinds", "queues"}, 5: {"supervisors", "jobs"}, 6: {"jobs"}, 8: {"kinds", "jobs", "queues"},
	}
	for i, name := range files(t)[1:] {
		text, err := fs.ReadFile(migrations.FS, name)
		if err != nil {
			t.Fatal(err)
		}
		up, _, _ := strings.Cut(string(text), "-- +goose Down")
		if regexp.MustCompile(`(?m)^(alter table|create trigger|drop view|drop index)`).MatchString(up) && tables[int64(i+2)] == nil {
			t.Errorf("%s changes what is there and is not in this test", name)
		}
	}
	for version, tables := range tables {
		for _, held := range tables {
			t.Run(fmt.Sprintf("%d behind %s", version, held), func(t *testing.T) {
				t.Parallel()
				pool, provider := migratedTo(t, version-1)
				for _, to := range []int64{version, version - 1} {
					other, err := pool.Begin(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					if _, err := other.Exec(t.Context(), `lock table `+held+` in row share mode`); err != nil {
						t.Fatal(err)
					}
					done := make(chan error, 1)
					go func() { // ends with the migration, which is waited for below
						migrate := provider.UpTo
						if to < version {
							migrate = provider.DownTo
						}
						_, err := migrate(t.Context(), to)
						done <- err
					}()
					waits := `select exists (select from pg_locks where relation = '` + held + `'::regclass and not granted)`
					for end := time.Now().Add(time.Minute); !value[bool](t, pool, waits); {
						if time.Now().After(end) {
							t.Fatal("the migration does not wait")
						}
					}
					for _, next := range slices.DeleteFunc(slices.Clone(tables), func(name string) bool { return name == held }) {
						if _, err := other.Exec(t.Context(), `lock table `+next+` in row exclusive mode`); err != nil {
							t.Errorf("%s after %s, beside the migration to version %d: %v", next, held, to, err)
						}
					}
					if err := other.Rollback(t.Context()); err != nil {
						t.Fatal(err)
					}
					if err := <-done; err != nil {
						t.Errorf("the migration to version %d: %v", to, err)
					}
				}
			})
		}
	}
}

// Behind a transaction that does not end, a migration gives up, and tells whose it is.
func TestLockTablesGivesUp(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewPool(t)
	up(t, pool)
	holder, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback(t.Context())
	var pid int
	if err := holder.QueryRow(t.Context(), `select pg_backend_pid() from (select count(*) from queues) q`).Scan(&pid); err != nil {
		t.Fatal(err)
	}
	for name, sql := range map[string]string{
		"its own patience": `begin; select drover_lock_tables('{jobs,queues}', '100 ms'); commit`,
		"the session's":    `begin; set local lock_timeout = '100 ms'; select drover_lock_tables('{jobs,queues}'); commit`,
	} {
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = conn.Exec(t.Context(), sql)
		var refused *pgconn.PgError
		if !errors.As(err, &refused) || refused.Code != "55P03" || !strings.Contains(refused.Hint, fmt.Sprint(pid)) {
			t.Errorf("%s: %v, want lock_not_available with a hint to process %d", name, err, pid)
		}
		if _, err := conn.Exec(t.Context(), `rollback`); err != nil {
			t.Fatal(err)
		}
		conn.Release()
	}
	exec(t, pool, `begin; set local lock_timeout = '1234ms'; select drover_lock_tables('{jobs,kinds}'); do $$ begin
		assert current_setting('lock_timeout') = '1234ms', 'the time-out is not as it was';
	end $$; commit`)
}
