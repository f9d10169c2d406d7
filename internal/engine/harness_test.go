package engine_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/internal/store"
	"github.com/drover-queue/drover/internal/tier"
)

// The tests of this package drive the engine with drover's own handler. Package engine cannot import drover, but
// engine_test can. The tests of the root have the same helpers in main_test.go there.

func TestMain(m *testing.M) {
	if !childProcess() { // process_test.go: tests that kill processes start this binary again
		pgtest.Main(m)
	}
}

// field is a field that only drover itself can name, or a field of such a field.
func field[T any](of any, names ...string) *T {
	v := reflect.ValueOf(of).Elem()
	for _, name := range names {
		if v.Kind() == reflect.Pointer {
			v = v.Elem()
		}
		v = v.FieldByName(name)
	}
	if v.Type() != reflect.TypeFor[T]() {
		panic(fmt.Sprintf("%v is a %v", names, v.Type()))
	}
	return (*T)(v.Addr().UnsafePointer())
}

func engineOf(s *drover.Supervisor) *engine.Engine { return *field[*engine.Engine](s, "engine") }
func configOf(c *drover.Client) *drover.Config     { return field[drover.Config](c, "cfg") }
func logOf(c *drover.Client) *slog.Logger          { return *field[*slog.Logger](c, "log") }
func poolOf(c *drover.Client) *pg.Pool             { return *field[*pg.Pool](c, "desk", "pool") }
func optsOf(w *drover.Worker) *drover.WorkerOpts   { return field[drover.WorkerOpts](w, "opts") }

// jobOf returns the job of a run, as its handler sees it.
func jobOf(r *engine.Run) *drover.Job { return field[drover.Job](r.Task, "job") }

// runOf returns the run of a job.
func runOf(j *drover.Job) *engine.Run { return field[engine.Run](j, "task", "Run") }

// decided returns the run with the outcome of a handler that returned err.
func decided(r *engine.Run, err error) *engine.Run { return finished(r, err) }

// dynWorker handles a kind with a function that reads only the Job.
func dynWorker(kind string, opts drover.WorkerOpts, handler func(ctx context.Context, job *drover.Job) error) (w drover.Worker) {
	*field[string](&w, "kind"), *optsOf(&w) = kind, opts
	*field[func(context.Context, *drover.Job) error](&w, "handle") = handler
	return w
}

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
	return engine.NewPruner(engine.NewShared(engine.Config{Log: logOf(db.client)}, poolOf(db.client))).Prune(ctx, walk, keep)
}

// pruneByCount makes one walk by count.
func (db *testDB) pruneByCount(ctx context.Context) error {
	return engine.NewPruner(engine.NewShared(engine.Config{Log: logOf(db.client)}, poolOf(db.client))).PruneByCount(ctx)
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

func newClientOn(t testing.TB, pool *pgxpool.Pool, cfg drover.Config) *drover.Client {
	t.Helper()
	client, err := drover.New(pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// testDB is a migrated schema that one test has for itself.
type testDB struct {
	*pgxpool.Pool
	client *drover.Client
}

func newTestDB(t testing.TB) *testDB {
	t.Helper()
	return newTestDBWith(t, drover.Config{})
}

func newTestDBWith(t testing.TB, cfg drover.Config) *testDB {
	t.Helper()
	pool := pgtest.NewMigratedPool(t)
	client, err := drover.New(pool, cfg)
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

// alive registers a supervisor that seems to run in another process. A full sweep rescues the jobs of an owner without
// a row.
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

// run starts a supervisor and ends it with the test.
func (db *testDB) run(t testing.TB, cfg drover.SupervisorConfig) *drover.Supervisor {
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

// within does the same as eventually, with a bound that the test sets.
func within(t testing.TB, bound time.Duration, holds func() bool) {
	t.Helper()
	if !looked(bound, 5*time.Millisecond, holds) {
		t.Fatalf("not within %v", bound)
	}
}

// looked looks again and again until the condition holds, and reports whether it did before the bound. Looks take processor time
// that other tests need. So after a second there are five times fewer of them.
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

// tend does what a supervisor does with its heartbeats, and returns the groups that came back.
func (db *testDB) tend(t testing.TB) []store.Reopened {
	t.Helper()
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	reopened, err := store.Session{Conn: conn.Conn()}.TendFailures(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return reopened
}

// theGroup returns the only failure group that exists.
func (db *testDB) theGroup(t testing.TB) drover.FailureGroup {
	t.Helper()
	groups, err := db.client.FailureGroups(t.Context(), drover.FailureFilter{})
	if err != nil || len(groups) != 1 {
		t.Fatalf("groups: %+v, %v; want one", groups, err)
	}
	return groups[0]
}

// tickArgs are of a kind that tests schedule.
type tickArgs struct {
	N int `json:"n"`
}

func (tickArgs) Kind() string { return "tick" }

// setPeriodic stores a schedule that comes once a year, so that it ticks when a test says so.
func (db *testDB) setPeriodic(t testing.TB, p drover.Periodic) {
	t.Helper()
	if p.Schedule == "" {
		p.Schedule = "@yearly"
	}
	if p.Args == nil {
		p.Args = tickArgs{}
	}
	if err := db.client.SetPeriodic(t.Context(), p, drover.Audit{By: "test"}); err != nil {
		t.Fatal(err)
	}
}

// backdate moves a schedule's next tick, and what @every counts from, into the past.
func (db *testDB) backdate(t testing.TB, name, by string) {
	t.Helper()
	db.exec(t, `update drover_periodic set anchor = anchor - $2::interval, next_at = next_at - $2::interval where name = $1`, name, by)
}

// ticksMade returns the ticks of a schedule that made a job, in order, as seconds after the first tick.
func (db *testDB) ticksMade(t testing.TB, name string) []time.Time {
	t.Helper()
	return value[[]time.Time](t, db, `select coalesce(array_agg((metadata->'drover:periodic'->>'tick')::timestamptz order by id), '{}') from jobs
		where metadata->'drover:periodic'->>'name' = $1`, name)
}

func (db *testDB) fire(t testing.TB, name, supervisor string) store.Fired {
	t.Helper()
	f, err := db.fireOnce(t.Context(), name, supervisor, engine.TickBound)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// fireOnce ticks one schedule, as a supervisor does.
func (db *testDB) fireOnce(ctx context.Context, name, supervisor string, bound time.Duration) (store.Fired, error) {
	conn, done, err := store.Borrow(ctx, poolOf(db.client))
	if err != nil {
		return store.Fired{}, err
	}
	defer done()
	return conn.FirePeriodic(ctx, name, supervisor, bound)
}

// bury stores n discarded jobs of one queue, with concurrency keys of so many customers.
func (db *testDB) bury(t testing.TB, n, customers int) {
	t.Helper()
	db.exec(t, `
insert into jobs (id, queue, kind, args, state, attempt, finalized_at, discard_reason, class, fingerprint, errors_total, errors, concurrency_key)
select drover_ulid(), 'default', 'job', jsonb_build_object('n', i, 'customer', jsonb_build_object('id', i % $2)), 'discarded', 20,
	now() - (($1 - i) * interval '1 millisecond') - interval '1 hour', 'attempts_exhausted', 'error', 'f' || i % 2, 20,
	jsonb_build_array(jsonb_build_object('class', 'error', 'error', 'down', 'at', now())), 'c' || i % $2
from generate_series(1, $1::int) as i`, n, customers)
	db.exec(t, `analyze jobs`)
}

// busiest returns the largest number of the instants that lie in one window of the given length, both ends
// included.
func busiest(instants []time.Time, window time.Duration) (most int) {
	slices.SortFunc(instants, time.Time.Compare)
	first := 0
	for last, at := range instants {
		for at.Sub(instants[first]) > window {
			first++
		}
		most = max(most, last-first+1)
	}
	return most
}

// put stores a job as SQL has it and returns its id: columns and values as in an insert.
func (db *testDB) put(t *testing.T, columns, values string) string {
	t.Helper()
	return value[string](t, db, `insert into jobs (kind, `+columns+`) values ('letter', `+values+`) returning id`)
}

func (db *testDB) get(t *testing.T, id string) *drover.JobInfo {
	t.Helper()
	job, err := db.client.Job(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return job
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

// endRow is a job's row after the end of a run.
type endRow struct {
	State     drover.State
	Reason    *drover.Reason
	Attempt   int
	ClaimSeq  int
	Total     int
	Crashes   int
	Snoozes   int
	Uncounted int
	Delay     time.Duration // from the settle until it is due
	Errors    []drover.RunError
	Finalized bool
}

func (db *testDB) endRow(t *testing.T, id string) (r endRow) {
	t.Helper()
	var errs []byte
	var delay float64
	err := db.QueryRow(t.Context(), `
select state, discard_reason, attempt, claim_seq, errors_total, crashes, coalesce(snoozes, 0), coalesce(uncounted, 0),
	extract(epoch from scheduled_at - coalesce((errors->-1->>'at')::timestamptz, attempted_at, now()))::float8, errors, finalized_at is not null
from jobs where id = $1`, id).Scan(&r.State, &r.Reason, &r.Attempt, &r.ClaimSeq, &r.Total, &r.Crashes, &r.Snoozes, &r.Uncounted, &delay, &errs, &r.Finalized)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(errs, &r.Errors); err != nil {
		t.Fatal(err)
	}
	r.Delay = time.Duration(delay * float64(time.Second))
	return r
}

var errBoom = errors.New("boom")

// waitFor polls the database until a condition holds.
func (db *testDB) waitFor(t testing.TB, atMost time.Duration, sql string, args ...any) {
	t.Helper()
	db.soon(t, atMost, fmt.Sprintf("not within %v: %s", atMost, sql), sql, args...)
}

// soon does the same as waitFor, with a message that the test sets.
func (db *testDB) soon(t testing.TB, atMost time.Duration, complaint, sql string, args ...any) {
	t.Helper()
	if !looked(atMost, 20*time.Millisecond, func() bool { return value[bool](t, db, sql, args...) }) {
		t.Fatal(complaint)
	}
}

// newQuietDB does the same as newTestDB, without a log.
func newQuietDB(t testing.TB) *testDB {
	t.Helper()
	return newTestDBWith(t, drover.Config{Logger: slog.New(slog.DiscardHandler)})
}

// via returns another client, on a pool of its own, for the same schema.
func (db *testDB) via(t testing.TB, cfg drover.Config, edit ...func(*pgxpool.Config)) *testDB {
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
	client, err := drover.New(pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &testDB{pool, client}
}

// job is the kind of most tests of the engine; handling makes its worker.
type job struct {
	N int `json:"n"`
}

func (job) Kind() string { return "job" }

func handling(f func(ctx context.Context, job *drover.Job, n int) error) []drover.Worker {
	return []drover.Worker{drover.Handle(func(ctx context.Context, j *drover.Job, args job) error { return f(ctx, j, args.N) }, drover.WorkerOpts{Timeout: drover.NoTimeout})}
}

func doingNothing() []drover.Worker {
	return handling(func(context.Context, *drover.Job, int) error { return nil })
}

// enqueueJobs stores n jobs in one statement, numbered from 0, and returns their ids.
func (db *testDB) enqueueJobs(t testing.TB, n int, opts *drover.EnqueueOpts) []string {
	t.Helper()
	batch := make([]drover.EnqueueItem, n)
	for i := range batch {
		batch[i] = drover.EnqueueItem{Args: job{i}, Opts: opts}
	}
	receipts, err := db.client.EnqueueMany(t.Context(), batch)
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]string, n)
	for i := range receipts {
		ids[i] = receipts[i].ID
	}
	return ids
}

// launched is a supervisor that its test stops itself.
type launched struct {
	*drover.Supervisor
	cancel context.CancelFunc
	done   chan error
}

func (db *testDB) launch(t testing.TB, cfg drover.SupervisorConfig, edit ...func(*drover.Supervisor)) *launched {
	t.Helper()
	if cfg.Workers == nil {
		cfg.Workers = doingNothing()
	}
	if cfg.Queues == nil {
		cfg.Queues = []drover.Queue{{}}
	}
	sup, err := db.client.NewSupervisor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range edit {
		change(sup)
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &launched{sup, cancel, make(chan error, 1)}
	go func() { l.done <- sup.Run(ctx) }()
	t.Cleanup(func() { l.stop(t) })
	return l
}

// withoutAudits is an option of launch: the next audit of the supervisor comes after the test. An audit gives back a
// job that runs in the supervisor's name and is not known to it. Only a test that asserts that nothing happens to such
// a job may use this option. All other tests pass with audits.
func withoutAudits(s *drover.Supervisor) {
	engineOf(s).Claimer.Audit.Ended = time.Now().Add(24 * time.Hour)
}

// stop ends the supervisor and waits for it; a second call does nothing.
func (l *launched) stop(t testing.TB) {
	t.Helper()
	l.cancel()
	if err, open := <-l.done; open {
		if err != nil {
			t.Errorf("Run: %v", err)
		}
		close(l.done)
	}
}

// still is a registered supervisor that runs no goroutines: tests call its parts by hand.
type still struct {
	*engine.Engine
	sup *drover.Supervisor
}

func (db *testDB) stopped(t testing.TB, cfg drover.SupervisorConfig) *still {
	t.Helper()
	if cfg.Workers == nil {
		cfg.Workers = doingNothing()
	}
	if cfg.Queues == nil {
		cfg.Queues = []drover.Queue{{}}
	}
	if cfg.Lease == 0 {
		cfg.Lease = 2 * time.Minute // of which its statements get hundredths: a busy server keeps some waiting for seconds
	}
	sup, err := db.client.NewSupervisor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	e := engineOf(sup)
	if err := e.Keeper.Start(t.Context(), context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.Keeper.Link.Close(context.Background())
		e.Claimer.Link.Close(context.Background())
		e.Settler.Link.Close(context.Background())
	})
	return &still{e, sup}
}

// beat makes one beat of the keeper.
func (s *still) beat(t testing.TB) {
	t.Helper()
	if err := s.Keeper.Beat(t.Context()); err != nil {
		t.Fatal(err)
	}
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

// claim makes one round of the claimer, and returns the runs that it put into the buffers.
func (s *still) claim(t testing.TB) (runs []*engine.Run) {
	t.Helper()
	s.Claimer.Wake()
	plan := s.Claimer.Request(s.Now())
	if plan == nil {
		t.Fatal("the claimer would not claim")
	}
	s.Claimer.Trip(t.Context(), plan)
	if s.Claimer.Trouble.Failures > 0 {
		t.Fatal("the claim failed")
	}
	for _, q := range s.QueueStates() {
		q.Buffer.Mu.Lock()
		runs = append(runs, q.Buffer.Runs[q.Buffer.Head:]...)
		q.Buffer.Head = len(q.Buffer.Runs)
		q.Buffer.Mu.Unlock()
	}
	return runs
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

// logbook keeps the lines of the log.
type logbook struct {
	mu      sync.Mutex
	records []slog.Record
}

func (b *logbook) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

func (b *logbook) WithAttrs([]slog.Attr) slog.Handler { return b }

func (b *logbook) WithGroup(string) slog.Handler { return b }

func (b *logbook) Handle(_ context.Context, r slog.Record) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.records = append(b.records, r)
	return nil
}

// from returns the messages of a level or above.
func (b *logbook) from(level slog.Level) (messages []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.records {
		if r.Level >= level {
			text := r.Message
			r.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
			messages = append(messages, text)
		}
	}
	return messages
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

// eventLog is a subscriber that remembers its events. The zero value is ready.
type eventLog struct {
	mu     sync.Mutex
	events []loggedEvent
	byID   map[string][]loggedEvent
}

type loggedEvent struct {
	name string
	drover.Event
}

// endEvents are the kinds of end events: every run that started has exactly one.
func endEvents() []string {
	return []string{"completed", "failed", "discarded", "snoozed", "cancelled", "released", "stale_settle", "parked"}
}

func (l *eventLog) hooks() drover.Hooks {
	on := func(name string) func(context.Context, drover.Event) {
		return func(_ context.Context, e drover.Event) {
			l.mu.Lock()
			defer l.mu.Unlock()
			name := name
			if name == "released" && e.Duration == 0 { // no run ended: the job waited too long for a slot, or was paused
				name = "not_started"
			}
			if l.byID == nil {
				l.byID = map[string][]loggedEvent{}
			}
			l.events = append(l.events, loggedEvent{name, e})
			l.byID[e.JobID] = append(l.byID[e.JobID], loggedEvent{name, e})
		}
	}
	return drover.Hooks{
		Enqueued: on("enqueued"), Claimed: on("claimed"), Started: on("started"), Completed: on("completed"),
		Failed: on("failed"), Discarded: on("discarded"), Snoozed: on("snoozed"), Cancelled: on("cancelled"),
		Released: on("released"), StaleSettle: on("stale_settle"), Rescued: on("rescued"), Redriven: on("redriven"), Parked: on("parked"), FailureReopened: on("failure_reopened"),
		Paused: on("paused"), Resumed: on("resumed"),
	}
}

// of returns the events of one job; "" means the events that are about no job.
func (l *eventLog) of(id string) []loggedEvent {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.byID[id])
}

func (l *eventLog) count(id, name string) (n int) {
	for _, e := range l.of(id) {
		if e.name == name {
			n++
		}
	}
	return n
}

// ends counts a job's end events.
func (l *eventLog) ends(id string) (n int) {
	for _, e := range l.of(id) {
		if slices.Contains(endEvents(), e.name) {
			n++
		}
	}
	return n
}

// end waits for the first end event of a job.
func (l *eventLog) end(t *testing.T, id string) loggedEvent {
	t.Helper()
	return l.wait(t, id, endEvents()...)
}

// wait waits for the first event of a job with one of the names.
func (l *eventLog) wait(t *testing.T, id string, names ...string) (found loggedEvent) {
	t.Helper()
	eventually(t, func() bool {
		for _, e := range l.of(id) {
			if slices.Contains(names, e.name) {
				found = e
				return true
			}
		}
		return false
	})
	return found
}

// serialization reports whether a handler got the database's serialization failure, and no word about its job.
func serialization(err error) bool {
	var pg *pgconn.PgError
	return !errors.Is(err, drover.ErrLeaseLost) && !errors.Is(err, drover.ErrState) && errors.As(err, &pg) && pg.Code == "40001"
}

// testTx is a transaction of either kind.
type testTx struct {
	tx               drover.Tx
	commit, rollback func() error
	exec             func(sql string, args ...any) error
}

// complete completes the job in a transaction of its own.
func (db *testDB) complete(ctx context.Context, job *drover.Job) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { return job.CompleteTx(ctx, tx) })
}

// beginner begins transactions of one kind.
type beginner struct {
	name  string
	begin func(ctx context.Context, level string) (testTx, error)
}

// beginners are pgx and database/sql.
func (db *testDB) beginners(t *testing.T) []beginner {
	t.Helper()
	std := stdlib.OpenDBFromPool(db.Pool)
	t.Cleanup(func() { _ = std.Close() })
	levels := map[string]sql.IsolationLevel{
		"read committed": sql.LevelReadCommitted, "repeatable read": sql.LevelRepeatableRead, "serializable": sql.LevelSerializable,
	}
	return []beginner{
		{"pgx", func(ctx context.Context, level string) (testTx, error) {
			tx, err := db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.TxIsoLevel(level)})
			return testTx{
				tx, func() error { return tx.Commit(ctx) }, func() error { return tx.Rollback(ctx) },
				func(sql string, args ...any) error { _, err := tx.Exec(ctx, sql, args...); return err },
			}, err
		}},
		{"database/sql", func(ctx context.Context, level string) (testTx, error) {
			tx, err := std.BeginTx(ctx, &sql.TxOptions{Isolation: levels[level]})
			return testTx{
				drover.SQLTx(tx), tx.Commit, tx.Rollback,
				func(sql string, args ...any) error { _, err := tx.ExecContext(ctx, sql, args...); return err },
			}, err
		}},
	}
}

// parcel is the job of these tests.
type parcel struct {
	N    int    `json:"n"`
	To   string `json:"to,omitempty"`
	Note any    `json:"note,omitempty"`
}

func (parcel) Kind() string { return "job" }

// unique enqueues a job and returns its receipt.
func (db *testDB) unique(t testing.TB, args drover.Args, u drover.Unique, more ...drover.EnqueueOpts) drover.Receipt {
	t.Helper()
	opts := drover.EnqueueOpts{}
	if len(more) > 0 {
		opts = more[0]
	}
	opts.Unique = &u
	receipt, err := db.client.Enqueue(t.Context(), args, &opts)
	if err != nil {
		t.Fatal(err)
	}
	return receipt
}

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

// way is one way to enqueue a job.
type way struct {
	name    string
	enqueue func(context.Context, drover.Args, *drover.EnqueueOpts) (drover.Receipt, error)
}

// ways lists all ways to enqueue; each ends with a commit.
func (db *testDB) ways(t *testing.T) []way {
	t.Helper()
	std := stdlib.OpenDBFromPool(db.Pool)
	t.Cleanup(func() { _ = std.Close() })
	one := func(receipts []drover.Receipt, err error) (drover.Receipt, error) {
		if err != nil || len(receipts) != 1 {
			return drover.Receipt{}, errors.Join(err, fmt.Errorf("%d receipts", len(receipts)))
		}
		return receipts[0], nil
	}
	return []way{
		{"Enqueue", db.client.Enqueue},
		{"EnqueueTx", func(ctx context.Context, args drover.Args, opts *drover.EnqueueOpts) (r drover.Receipt, err error) {
			err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
				r, err = db.client.EnqueueTx(ctx, tx, args, opts)
				return err
			})
			return r, err
		}},
		{"EnqueueTx of database/sql", func(ctx context.Context, args drover.Args, opts *drover.EnqueueOpts) (drover.Receipt, error) {
			tx, err := std.BeginTx(ctx, nil)
			if err != nil {
				return drover.Receipt{}, err
			}
			defer tx.Rollback()
			r, err := db.client.EnqueueTx(ctx, drover.SQLTx(tx), args, opts)
			if err != nil {
				return r, err
			}
			return r, tx.Commit()
		}},
		{"EnqueueMany", func(ctx context.Context, args drover.Args, opts *drover.EnqueueOpts) (drover.Receipt, error) {
			return one(db.client.EnqueueMany(ctx, []drover.EnqueueItem{{Args: args, Opts: opts}}))
		}},
		{"EnqueueManyTx", func(ctx context.Context, args drover.Args, opts *drover.EnqueueOpts) (r drover.Receipt, err error) {
			err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
				r, err = one(db.client.EnqueueManyTx(ctx, tx, []drover.EnqueueItem{{Args: args, Opts: opts}}))
				return err
			})
			return r, err
		}},
	}
}

// idsOf runs a query for ids.
func (db *testDB) idsOf(t testing.TB, sql string, args ...any) []string {
	t.Helper()
	rows, _ := db.Query(t.Context(), sql, args...)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s %v: %v", sql, args, err)
	}
	return ids
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

// virtualStart starts the jobs that are due, as a claim does; virtualEnd ends all jobs that run.
const virtualStart = `
update jobs set state = 'running', claimed_by = 'w', attempt = attempt + 1, claim_seq = claim_seq + 1, attempted_at = $1
where finalized_at is null and state in ('available', 'scheduled', 'retryable') and queue = 'default' and scheduled_at <= $1`

const virtualEnd = `
update jobs set state = 'completed', claimed_by = null, finalized_at = $1 where finalized_at is null and state = 'running' and queue = 'default'`

// work starts and ends the jobs that are due, and returns how many they were.
func (v *virtual) work(t testing.TB) int {
	t.Helper()
	tag, err := v.Exec(t.Context(), virtualStart, v.at)
	if err != nil {
		t.Fatal(err)
	}
	v.exec(t, virtualEnd, v.at)
	return int(tag.RowsAffected())
}

func handlingAll() []drover.Worker {
	return []drover.Worker{dynWorker("job", drover.WorkerOpts{}, func(context.Context, *drover.Job) error { return nil })}
}
