package migrations_test

import (
	"testing"
	"time"
)

// A claim locks its supervisor's row, then those of jobs. A migration that changed jobs first, and then waited for the claim
// to let go of supervisors, ended in a deadlock.
func TestMigrationsLockInTheOrderOfClaims(t *testing.T) {
	t.Parallel()
	pool, provider := migratedTo(t, 4)
	for _, to := range []int64{5, 4} {
		claim, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := claim.Exec(t.Context(), `select from supervisors for key share`); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			var err error
			if to == 5 {
				_, err = provider.UpTo(t.Context(), to)
			} else {
				_, err = provider.DownTo(t.Context(), to)
			}
			done <- err
		}()
		const waits = `select exists (select from pg_locks where relation = 'supervisors'::regclass and not granted)`
		for end := time.Now().Add(time.Minute); !value[bool](t, pool, waits); {
			if time.Now().After(end) {
				t.Fatal("the migration waits for nothing")
			}
		}
		if _, err := claim.Exec(t.Context(), `select from jobs for update skip locked`); err != nil {
			t.Errorf("the claim beside the migration to version %d: %v", to, err)
		}
		if err := claim.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Errorf("the migration to version %d: %v", to, err)
		}
	}
}
