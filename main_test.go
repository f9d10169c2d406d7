package drover_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/internal/store"
	"github.com/drover-queue/drover/internal/tier"
)

func TestMain(m *testing.M) {
	pgtest.Main(m)
}

// testDB is a migrated schema that only one test uses.
type testDB struct {
	*harness.DB
	client *drover.Client
}

// dbOn returns the testDB of a pool and a client.
func dbOn(pool *pgxpool.Pool, client *drover.Client) *testDB {
	return &testDB{&harness.DB{Pool: pool, Client: client}, client}
}

func newTestDBWith(t testing.TB, cfg drover.Config) *testDB {
	t.Helper()
	db := harness.New(t, cfg)
	return &testDB{db, db.Client}
}

// via returns another client for the same schema, on a pool of its own.
func (db *testDB) via(t testing.TB, cfg drover.Config, edit ...func(*pgxpool.Config)) *testDB {
	t.Helper()
	other := db.Via(t, cfg, edit...)
	return &testDB{other, other.Client}
}

// eventually waits until the condition holds. It fails the test after 30 s.
func eventually(t testing.TB, holds func() bool) {
	t.Helper()
	harness.Within(t, 30*time.Second, holds)
}

// waitFor polls the database until a condition holds.
func (db *testDB) waitFor(t testing.TB, atMost time.Duration, sql string, args ...any) {
	t.Helper()
	db.Soon(t, atMost, fmt.Sprintf("not within %v: %s", atMost, sql), sql, args...)
}

// run starts a supervisor that stops when the test ends.
func (db *testDB) run(t testing.TB, cfg drover.SupervisorConfig) *drover.Supervisor {
	t.Helper()
	sup, _ := db.Start(t, cfg)
	return sup
}

func (db *testDB) launch(t testing.TB, cfg drover.SupervisorConfig, edit ...func(*drover.Supervisor)) *harness.Launched {
	t.Helper()
	return db.Launch(t, cfg, edit...)
}

// planner is a session that keeps its prepared statements as long as a supervisor does.
type planner struct{ *harness.Planner }

func (db *testDB) planner(t testing.TB) *planner {
	t.Helper()
	return &planner{db.Planner(t)}
}

// explain runs an EXPLAIN of the statement, prepared and in a transaction like the library's.
func (p *planner) explain(t testing.TB, st planned, options string) string {
	t.Helper()
	if st.sql == drover.SQLDepths {
		return p.Explain(t, st.name, st.sql, st.args, options, drover.SQLDepthsPlan)
	}
	return p.Explain(t, st.name, st.sql, st.args, options)
}

func newTestDB(t testing.TB) *testDB {
	t.Helper()
	return newTestDBWith(t, drover.Config{})
}

func (db *testDB) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// value runs a query and returns its only value.
func value[T any](t testing.TB, db *testDB, sql string, args ...any) (v T) {
	t.Helper()
	if err := db.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// slow marks a test that go test -short skips.
func slow(t *testing.T) {
	t.Helper()
	tier.Slow(t)
}

// sizeOf is tier.Size.
func sizeOf(t testing.TB, name string, usual int) int {
	t.Helper()
	return tier.Size(t, name, usual)
}

// enqueue stores a job and returns its id.
func (db *testDB) enqueue(t testing.TB, args drover.Args, opts *drover.EnqueueOpts) string {
	t.Helper()
	receipt, err := db.client.Enqueue(t.Context(), args, opts)
	if err != nil {
		t.Fatal(err)
	}
	return receipt.ID
}

// planned is a statement of the library with arguments as the library sends them.
type planned struct {
	name, sql string
	args      []any
}

// crew stores a crew of the given kinds in a queue. It returns the keys of the crew's locks, which nobody holds.
func (db *testDB) crew(t testing.TB, queue string, kinds ...string) (c store.Crew) {
	t.Helper()
	if err := db.QueryRow(t.Context(), `
insert into drover_crews (queue, crew, kinds, lookout, on_call, polls, channel)
select $1::text, hashtextextended($2::text[]::text, 0), $2, hashtextextended(current_schema() || $1 || $2::text, 1), hashtextextended(current_schema() || $1 || $2::text, 2), '1 min', drover_channel()
returning lookout, on_call`, queue, kinds).Scan(&c.Lookout, &c.OnCall); err != nil {
		t.Fatal(err)
	}
	return c
}

const aDay = 24 * time.Hour

// newQuietDB is like newTestDB, without a log.
func newQuietDB(t testing.TB) *testDB {
	t.Helper()
	return newTestDBWith(t, drover.Config{Logger: slog.New(slog.DiscardHandler)})
}

// job is the kind of most tests of the engine; handling makes its worker.
type job struct {
	N int `json:"n"`
}

func (job) Kind() string { return "job" }

func handling(f func(ctx context.Context, job *drover.Job, n int) error) []drover.Worker {
	return []drover.Worker{drover.Handle(func(ctx context.Context, j *drover.Job, args job) error { return f(ctx, j, args.N) }, drover.WorkerOpts{Timeout: drover.NoTimeout})}
}

// prune runs one walk of the pruner.
func (db *testDB) prune(ctx context.Context, walk engine.PruneWalk, keep store.Keeping) (engine.PruneWalk, error) {
	return drover.Prune(ctx, db.client, walk, keep)
}

// receive waits for a value. It fails the test after 30 s.
func receive[T any](t testing.TB, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(30 * time.Second):
		t.Fatal("nothing came within 30 s")
	}
	return v
}
