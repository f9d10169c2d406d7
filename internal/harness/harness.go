package harness

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

// DB is a migrated schema that only one test uses.
type DB struct {
	*pgxpool.Pool
	Client *drover.Client
}

// New returns a new schema and a client for it.
func New(t testing.TB, cfg drover.Config) *DB {
	t.Helper()
	pool := pgtest.NewMigratedPool(t)
	return &DB{pool, NewClient(t, pool, cfg)}
}

// NewClient returns a client for a pool.
func NewClient(t testing.TB, pool *pgxpool.Pool, cfg drover.Config) *drover.Client {
	t.Helper()
	client, err := drover.New(pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// Via returns another client for the same schema, on a pool of its own.
func (db *DB) Via(t testing.TB, cfg drover.Config, edit ...func(*pgxpool.Config)) *DB {
	t.Helper()
	config := db.Config()
	for _, change := range edit {
		change(config)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &DB{pool, NewClient(t, pool, cfg)}
}

func (db *DB) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// value runs a query and returns its only value.
func value[T any](t testing.TB, db *DB, sql string, args ...any) (v T) {
	t.Helper()
	if err := db.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// Hold runs a statement in a transaction that stays open until end is called or the test ends.
func (db *DB) Hold(t testing.TB, sql string, args ...any) (end func()) {
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

// Eventually waits until the condition holds. It fails the test after 30 s.
func Eventually(t testing.TB, holds func() bool) {
	t.Helper()
	Within(t, 30*time.Second, holds)
}

// Within is like Eventually, with a bound that the test chooses.
func Within(t testing.TB, bound time.Duration, holds func() bool) {
	t.Helper()
	if !looked(bound, 5*time.Millisecond, holds) {
		t.Fatalf("not within %v", bound)
	}
}

// The function looked looks again and again until the condition holds, and reports whether it did before the bound.
// Looks take processor time that other tests need. So after a second there are five times fewer of them.
func looked(bound, pause time.Duration, holds func() bool) bool {
	for began := time.Now(); !holds(); {
		waited := time.Since(began)
		if waited > bound {
			return false
		}
		next := pause
		if waited > time.Second {
			next *= 5
		}
		<-time.After(next)
	}
	return true
}

// Soon polls the database until a condition holds. Otherwise it fails the test with a complaint.
func (db *DB) Soon(t testing.TB, atMost time.Duration, complaint, sql string, args ...any) {
	t.Helper()
	if !looked(atMost, 20*time.Millisecond, func() bool { return value[bool](t, db, sql, args...) }) {
		t.Fatal(complaint)
	}
}

// After waits for a duration, for tests in which time itself is the event.
func After(t testing.TB, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}
