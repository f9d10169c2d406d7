package health

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// testDB is a migrated schema that one test has for itself.
type testDB struct{ *pgxpool.Pool }

func newTestDB(t testing.TB) *testDB {
	t.Helper()
	return &testDB{pgtest.NewMigratedPool(t)}
}

// look is what Look returns on a connection of the pool.
func (db *testDB) look(ctx context.Context) (*Report, error) {
	conn, err := db.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	return Look(ctx, conn.Conn(), Thorough)
}

// health looks until every part was seen in time, of which a busy server may keep one waiting.
func (db *testDB) health(t testing.TB) (h *Report) {
	t.Helper()
	eventually(t, func() bool {
		h = db.glance(t)
		return !slices.ContainsFunc(h.NotSeen, func(n NotSeen) bool { return n.TimedOut })
	})
	return h
}

// glance looks once.
func (db *testDB) glance(t testing.TB) *Report {
	t.Helper()
	h, err := db.look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func (db *testDB) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// value reads one value.
func value[T any](t testing.TB, db *testDB, sql string, args ...any) (v T) {
	t.Helper()
	if err := db.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// via is another pool for the same schema.
func (db *testDB) via(t testing.TB, edit func(*pgxpool.Config)) *testDB {
	t.Helper()
	config := db.Config()
	edit(config)
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return &testDB{pool}
}

// calling names the connections of a pool.
func calling(name string) func(*pgxpool.Config) {
	return func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["application_name"] = name }
}

// hold runs a statement in a transaction that stays open until it is ended, at the latest with the test.
func (db *testDB) hold(t testing.TB, sql string) (end func()) {
	t.Helper()
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	end = func() { _ = tx.Rollback(context.Background()) }
	t.Cleanup(end)
	if _, err := tx.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return end
}

// snapshot is held by a transaction in which it is read: what has died since, no vacuum removes.
const snapshot = `set transaction isolation level repeatable read; select from jobs limit 1`

// eventually waits until the condition holds, and fails the test if it does not within 30 s.
func eventually(t testing.TB, holds func() bool) {
	t.Helper()
	within(t, 30*time.Second, holds)
}

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
