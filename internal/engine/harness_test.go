package engine_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/pgdev"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/internal/store"
	"github.com/drover-queue/drover/internal/tier"
	"github.com/drover-queue/drover/migrations"
)

// The tests of this package drive the engine with drover's own handler. Package engine cannot import drover, but
// engine_test can. The helpers that the tests of the root also use are in package harness.

func TestMain(m *testing.M) {
	if !childProcess() { // process_test.go: tests that kill processes start this binary again
		pgtest.Main(m)
	}
}

func configOf(c *drover.Client) *drover.Config { return harness.Field[drover.Config](c, "cfg") }
func logOf(c *drover.Client) *slog.Logger      { return *harness.Field[*slog.Logger](c, "log") }

func optsOf(w *drover.Worker) *drover.WorkerOpts { return harness.Field[drover.WorkerOpts](w, "opts") }

// jobOf returns the job of a run, as its handler sees it.
func jobOf(r *engine.Run) *drover.Job { return harness.Field[drover.Job](r.Task, "job") }

// runOf returns the run of a job.
func runOf(j *drover.Job) *engine.Run { return harness.Field[engine.Run](j, "task", "Run") }

// decided returns the run with the outcome of a handler that returned err.
func decided(r *engine.Run, err error) *engine.Run { return finished(r, err) }

// emitted is an event on its way to the hooks.
type emitted struct {
	kind  engine.EventKind
	event drover.Event
}

// keepFor returns a retention in the form that SQL takes; nil means for ever.
func keepFor(r drover.Retention) *string {
	if r == drover.KeepForever {
		return nil
	}
	text := pg.Interval(time.Duration(r))
	if r == drover.DeleteOnCompletion {
		text = pg.Interval(time.Microsecond)
	}
	return &text
}

// maxTimeout stands in the table for NoTimeout.
const maxTimeout = 100 * 365 * 24 * time.Hour

// pause pauses a scope and does not wait for any supervisor to confirm it.
func (db *testDB) pause(t testing.TB, scope drover.Scope) {
	t.Helper()
	db.exec(t, `select drover_pause($1, 'infinity', 'test', '')`, string(scope))
}

// prune makes one walk of the pruner.
func (db *testDB) prune(ctx context.Context, walk engine.PruneWalk, keep store.Keeping) (engine.PruneWalk, error) {
	return engine.NewPruner(engine.NewShared(engine.Config{Log: logOf(db.client)}, harness.PoolOf(db.client))).Prune(ctx, walk, keep)
}

// pruneByCount makes one walk by count.
func (db *testDB) pruneByCount(ctx context.Context) error {
	return engine.NewPruner(engine.NewShared(engine.Config{Log: logOf(db.client)}, harness.PoolOf(db.client))).PruneByCount(ctx)
}

// failing returns a supervisor that runs no goroutines (type still), and the runs of n claimed jobs for each of
// the options.
func (db *testDB) failing(t testing.TB, n int, cfg drover.SupervisorConfig, options ...*drover.EnqueueOpts) (*still, []*engine.Run) {
	t.Helper()
	if options == nil {
		options = []*drover.EnqueueOpts{nil}
	}
	for _, opts := range options {
		db.enqueueJobs(t, n, opts)
	}
	n *= len(options)
	if cfg.Queues == nil {
		cfg.Queues = []drover.Queue{{}}
	}
	cfg.Queues[0].Concurrency = n
	s := db.stopped(t, cfg)
	var runs []*engine.Run
	for len(runs) < n {
		runs = append(runs, s.claim(t)...)
	}
	for _, r := range runs {
		r.Ctx = t.Context()
	}
	return s, runs
}

// letter is the job of these tests.
type letter struct {
	To string `json:"to"`
}

func (letter) Kind() string { return "letter" }

// fields lists the fields of all *InvalidError in err, and fails if there is anything else in it.
func fields(t *testing.T, err error) (names []string) {
	t.Helper()
	switch e := err.(type) { //nolint:errorlint // takes the tree apart
	case nil:
	case *drover.InvalidError:
		names = append(names, e.Field)
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			names = append(names, fields(t, err)...)
		}
	default:
		t.Errorf("%T is no *InvalidError: %v", err, err)
	}
	return names
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

// newServer starts a server that a test may kill, and returns it with a database in it.
func newServer(t *testing.T) (*pgdev.Server, *testDB) {
	t.Helper()
	server, err := pgdev.Start(t.Context(), pgdev.Options{Ways: []pgdev.Way{pgdev.Local}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	pool, err := pgxpool.New(context.Background(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if err := migrations.Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	return server, dbOn(pool, harness.NewClient(t, pool, drover.Config{Logger: quiet()}))
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
	return p.Explain(t, st.name, st.sql, st.args, options)
}

// enqueueJobs stores n jobs in one statement, numbered from 0, and returns their ids.
func (db *testDB) enqueueJobs(t testing.TB, n int, opts *drover.EnqueueOpts) []string {
	t.Helper()
	return db.EnqueueJobs(t, n, opts)
}

// still is a registered supervisor that runs no goroutines. Tests call its parts one by one.
type still struct{ *harness.Still }

func (db *testDB) stopped(t testing.TB, cfg drover.SupervisorConfig) *still {
	t.Helper()
	return &still{db.Stopped(t, cfg)}
}

// beat runs one round of the control goroutine.
func (s *still) beat(t testing.TB) {
	t.Helper()
	s.Beat(t)
}

// claim runs one round of the claimer, and returns the runs that it put into the buffers.
func (s *still) claim(t testing.TB) []*engine.Run {
	t.Helper()
	return s.Claim(t)
}

// work starts and ends the jobs that are due, and returns how many there were.
func (v *virtual) work(t testing.TB) int {
	t.Helper()
	return v.Work(t, v.at)
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

// snapshot is held by a transaction in which it is read: no vacuum removes a row that has died since.
const snapshot = `set transaction isolation level repeatable read; select from jobs limit 1`

// enqueue stores a job and returns its id.
func (db *testDB) enqueue(t testing.TB, args drover.Args, opts *drover.EnqueueOpts) string {
	t.Helper()
	receipt, err := db.client.Enqueue(t.Context(), args, opts)
	if err != nil {
		t.Fatal(err)
	}
	return receipt.ID
}

// tickArgs are of a kind that tests schedule.
type tickArgs struct {
	N int `json:"n"`
}

func (tickArgs) Kind() string { return "tick" }

// put stores a job as SQL has it and returns its id: columns and values as in an insert.
func (db *testDB) put(t *testing.T, columns, values string) string {
	t.Helper()
	return value[string](t, db, `insert into jobs (kind, `+columns+`) values ('letter', `+values+`) returning id`)
}

func doNothing(context.Context, *drover.Job) error { return nil }

// dyn are args of a kind that is chosen at run time, so that a table can have a worker for each of its rows.
type dyn struct {
	kind string
	N    int
	S    string
}

func (d dyn) Kind() string { return d.kind }

// quiet drops logs.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

var errBoom = errors.New("boom")

// newQuietDB does the same as newTestDB, without a log.
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

// withoutAudits is an option of launch: the next audit of the supervisor comes after the test. An audit gives back a
// job that runs in the supervisor's name and is not known to it. Only a test that asserts that nothing happens to such
// a job may use this option. All other tests pass with audits.
func withoutAudits(s *drover.Supervisor) {
	harness.EngineOf(s).Claimer.Audit.Ended = time.Now().Add(24 * time.Hour)
}

// takeBack takes the death of a supervisor back, in one beat.
func (s *still) takeBack(ctx context.Context, id string) error {
	conn, err := s.Keeper.Link.Get(ctx)
	if err != nil {
		return err
	}
	s.Keeper.NoteLost(id)
	if err := s.Keeper.UndoCrashes(ctx, conn, time.Minute, time.Minute); err != nil || len(s.Keeper.Was) == 0 {
		return err
	}
	return fmt.Errorf("the death of %s is not taken back", id)
}

// ids returns the ids of the runs' jobs.
func ids(runs []*engine.Run) []string {
	ids, _ := store.Claims(engine.Fences(runs))
	return ids
}

// endedBy returns the run with the given outcome.
func endedBy(r *engine.Run, o engine.Outcome) *engine.Run {
	r.End = o
	return r
}

// finished is a run whose handler has returned err; it may have settled its job in a transaction.
func finished(r *engine.Run, err error) *engine.Run {
	return endedBy(r, r.Shared.Handler.Decide(r, err))
}

// deaf returns a run that was abandoned because its handler ignores its timeout.
func deaf(r *engine.Run) *engine.Run {
	return endedBy(r, r.Shared.Handler.CutShort(r, engine.ErrTimeout))
}

// slots returns a queue with so many slots.
func slots(n int) engine.Queue {
	return engine.Queue{QueuePolicy: store.QueuePolicy{Slots: n}}
}

// settle makes one round of the settler.
func (s *still) settle(t testing.TB, runs ...*engine.Run) {
	t.Helper()
	for _, r := range runs {
		s.Settler.Settle(r)
	}
	s.Settler.Trip(t.Context(), s.Settler.Take(s.Now()))
}

// reportAll passes on all events that wait, and ends the reporter.
func (s *still) reportAll(t testing.TB) {
	t.Helper()
	s.Reporter.Close()
	for _, l := range s.Reporter.Lines {
		l.Run(t.Context())
	}
}

// diary keeps the events of a client.
type diary struct {
	mu     sync.Mutex
	events []emitted
}

func (d *diary) hooks() []drover.Hooks {
	note := func(kind engine.EventKind) func(context.Context, drover.Event) {
		return func(_ context.Context, e drover.Event) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.events = append(d.events, emitted{kind, e})
		}
	}
	return []drover.Hooks{{
		Started: note(engine.EventStarted), Completed: note(engine.EventCompleted), Failed: note(engine.EventFailed), Discarded: note(engine.EventDiscarded), Quarantined: note(engine.EventQuarantined),
		Snoozed: note(engine.EventSnoozed), Cancelled: note(engine.EventCancelled), Released: note(engine.EventReleased), StaleSettle: note(engine.EventStaleSettle),
		Rescued: note(engine.EventRescued), Parked: note(engine.EventParked), FailureReopened: note(engine.EventFailureReopened),
	}}
}

// count counts the events of a kind, of one job if id is not empty.
func (d *diary) count(kind engine.EventKind, id string) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range d.events {
		if e.kind == kind && (id == "" || e.event.JobID == id) {
			n++
		}
	}
	return n
}

// receive waits for a value.
func receive[T any](t testing.TB, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(30 * time.Second):
		t.Fatal("nothing came within 30 s")
	}
	return v
}

// parcel is the job of these tests.
type parcel struct {
	N    int    `json:"n"`
	To   string `json:"to,omitempty"`
	Note any    `json:"note,omitempty"`
}

func (parcel) Kind() string { return "job" }

// stores checks whether a job like the one of the receipt would be stored now, and takes it back.
func (db *testDB) stores(t testing.TB, args drover.Args, u drover.Unique) (stored bool) {
	t.Helper()
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	r, err := db.client.EnqueueTx(t.Context(), tx, args, &drover.EnqueueOpts{Unique: &u})
	if err != nil {
		t.Fatal(err)
	}
	return !r.Existing
}

// virtual runs redrives on a clock that the test sets: no supervisor, no waiting.
type virtual struct {
	*testDB
	at time.Time
}

func newVirtual(t *testing.T) *virtual {
	t.Helper()
	db := newTestDB(t)
	return &virtual{db, value[time.Time](t, db, `select clock_timestamp()`)}
}

// pass lets time pass and gives the next slots.
func (v *virtual) pass(t testing.TB, d time.Duration) (released int) {
	t.Helper()
	v.at = v.at.Add(d)
	return value[int](t, v.testDB, `select released from drover_pace($1)`, v.at)
}

func handlingAll() []drover.Worker {
	return []drover.Worker{harness.DynWorker("job", drover.WorkerOpts{}, func(context.Context, *drover.Job) error { return nil })}
}
