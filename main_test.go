package drover

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/internal/tier"
)

func TestMain(m *testing.M) {
	if !childProcess() { // story_process_test.go: tests that kill processes start this binary again
		pgtest.Main(m)
	}
}

// testDB is a migrated schema that one test has for itself.
type testDB struct {
	*pgxpool.Pool
	client *Client
}

func newTestDB(t testing.TB) *testDB {
	t.Helper()
	return newTestDBWith(t, Config{})
}

func newTestDBWith(t testing.TB, cfg Config) *testDB {
	t.Helper()
	pool := pgtest.NewMigratedPool(t)
	client, err := New(pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &testDB{pool, client}
}

func (db *testDB) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// alive registers a supervisor that is somewhere else and lives. A full sweep rescues the jobs of an owner without a row.
func (db *testDB) alive(t testing.TB, id string) {
	t.Helper()
	db.exec(t, `insert into drover_supervisors (id, lease_ms, queues) values ($1, 3600000, '{default}')`, id)
}

// value reads one value.
func value[T any](t testing.TB, db *testDB, sql string, args ...any) (v T) {
	t.Helper()
	if err := db.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// slow marks a test that go test -short leaves out.
func slow(t *testing.T) {
	t.Helper()
	tier.Slow(t)
}

// sizeOf is tier.Size.
func sizeOf(t testing.TB, name string, usual int) int {
	t.Helper()
	return tier.Size(t, name, usual)
}

// hold runs a statement in a transaction that stays open until it is ended, at the latest with the test.
func (db *testDB) hold(t testing.TB, sql string, args ...any) (end func()) {
	t.Helper()
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	end = func() { _ = tx.Rollback(context.Background()) }
	t.Cleanup(end)
	if _, err := tx.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return end
}

// snapshot is held by a transaction in which it is read: what has died since, no vacuum removes.
const snapshot = `set transaction isolation level repeatable read; select from jobs limit 1`

// enqueue stores a job and returns its id.
func (db *testDB) enqueue(t testing.TB, args Args, opts *EnqueueOpts) string {
	t.Helper()
	receipt, err := db.client.Enqueue(t.Context(), args, opts)
	if err != nil {
		t.Fatal(err)
	}
	return receipt.ID
}

// run starts a supervisor and ends it with the test.
func (db *testDB) run(t testing.TB, cfg SupervisorConfig) *Supervisor {
	t.Helper()
	sup, err := db.client.NewSupervisor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- sup.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return sup
}

// eventually waits until the condition holds, and fails the test if it does not within 30 s.
func eventually(t testing.TB, holds func() bool) {
	t.Helper()
	within(t, 30*time.Second, holds)
}

// within is eventually with a bound of the test's own.
func within(t testing.TB, bound time.Duration, holds func() bool) {
	t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	end := time.After(bound)
	for !holds() {
		select {
		case <-ticker.C:
		case <-end:
			t.Fatalf("not within %v", bound)
		}
	}
}
