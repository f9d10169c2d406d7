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

// Each statement locks its tables in its own order: first in the order of its text, later in the order of a cached plan. If a
// migration waited for one table while it held another, it could be in a deadlock with such a statement.
func TestMigrationsHoldNothingWhileTheyWait(t *testing.T) {
	t.Parallel()
	type step struct{ from, to int64 }
	tables := map[step][]string{
		{16, 17}: {}, // these are triggers on the table that the migration makes
		{17, 16}: {"drover_limits"},
		{21, 20}: {"drover_activity"},
		{22, 23}: {"drover_activity"},
		{23, 22}: {"drover_activity"},
		{21, 22}: {}, // these only make functions
		{19, 18}: {"drover_periodic"},
		{15, 16}: {"jobs"},
		{16, 15}: {"jobs", "jobs_archive"},
		{15, 14}: {"drover_ended_supervisors", "drover_solo"},
		{14, 13}: {"drover_budgets", "drover_budget_slots"},
		{13, 12}: {"jobs", "drover_failure_groups", "drover_failure_tallies", "drover_builds"},
		{12, 11}: {"drover_redrives", "drover_redrive_queues"},
	}
	for _, name := range files(t)[1:] {
		text, err := fs.ReadFile(migrations.FS, name)
		if err != nil {
			t.Fatal(err)
		}
		up, back, _ := strings.Cut(string(text), "-- +goose Down")
		version := number(t, name)
		for _, part := range []struct {
			sql string
			step
		}{{up, step{version - 1, version}}, {back, step{version, version - 1}}} {
			if regexp.MustCompile(`(?m)^(alter table|create trigger|drop table|drop trigger|drop index)`).MatchString(part.sql) && tables[part.step] == nil {
				t.Errorf("%s changes what is there and is not in this test: %+v", name, part.step)
			}
		}
	}
	for step, tables := range tables {
		for _, held := range tables {
			t.Run(fmt.Sprintf("%d to %d behind %s", step.from, step.to, held), func(t *testing.T) {
				t.Parallel()
				pool, provider := migratedTo(t, step.from)
				other, err := pool.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if _, err := other.Exec(t.Context(), `lock table `+held+` in row share mode`); err != nil {
					t.Fatal(err)
				}
				done := make(chan error, 1)
				go func() { // ends with the migration, and the test waits for that below
					migrate := provider.UpTo
					if step.to < step.from {
						migrate = provider.DownTo
					}
					_, err := migrate(t.Context(), step.to)
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
						t.Errorf("%s after %s: %v", next, held, err)
					}
				}
				if err := other.Rollback(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := <-done; err != nil {
					t.Errorf("the migration: %v", err)
				}
			})
		}
	}
}

// If a transaction does not end, a migration gives up, and its error names the owner of the transaction.
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
	exec(t, pool, `begin; set local lock_timeout = '1234ms'; select drover_lock_tables('{jobs,drover_kinds}'); do $$ begin
		assert current_setting('lock_timeout') = '1234ms', 'the time-out is not as it was';
	end $$; commit`)
}
