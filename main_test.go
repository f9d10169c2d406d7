package drover_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/health"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/internal/store"
	"github.com/drover-queue/drover/internal/tier"
)

func TestMain(m *testing.M) {
	pgtest.Main(m)
}

// testDB is a migrated schema that only one test uses.
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

// alive registers a live supervisor of another process. Without its row, a full sweep would rescue the jobs that it owns.
func (db *testDB) alive(t testing.TB, id string) {
	t.Helper()
	db.exec(t, `insert into drover_supervisors (id, lease_ms, queues) values ($1, 3600000, '{default}')`, id)
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

// hold runs a statement in a transaction that stays open until end is called or the test ends.
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

// enqueue stores a job and returns its id.
func (db *testDB) enqueue(t testing.TB, args drover.Args, opts *drover.EnqueueOpts) string {
	t.Helper()
	receipt, err := db.client.Enqueue(t.Context(), args, opts)
	if err != nil {
		t.Fatal(err)
	}
	return receipt.ID
}

// run starts a supervisor that stops when the test ends.
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

// eventually waits until the condition holds. It fails the test after 30 s.
func eventually(t testing.TB, holds func() bool) {
	t.Helper()
	within(t, 30*time.Second, holds)
}

// within is like eventually, with a bound that the test chooses.
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

// health returns a health report.
func (db *testDB) health(t testing.TB) *health.Report {
	t.Helper()
	h, err := health.Look(t.Context(), drover.PoolOf(db.client))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// planned is a statement of the library with arguments as the library sends them.
type planned struct {
	name, sql string
	args      []any
}

// planner is a session that keeps its prepared statements as long as a supervisor does.
type planner struct {
	*pgx.Conn
	prepared map[string]string
}

func (db *testDB) planner(t testing.TB) *planner {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), db.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pg.CloseConn(t.Context(), conn) })
	return &planner{conn, map[string]string{}}
}

// explain runs an EXPLAIN of the prepared statement and rolls back. Its transaction begins like the library's transactions.
func (p *planner) explain(t testing.TB, st planned, options string) string {
	t.Helper()
	ctx := t.Context()
	exec := func(sql string) {
		if _, err := p.Exec(ctx, sql); err != nil {
			t.Fatalf("%s: %v", st.name, err)
		}
	}
	name, ok := p.prepared[st.name]
	if !ok {
		name = fmt.Sprint("p", len(p.prepared))
		exec("prepare " + name + " as " + st.sql)
		p.prepared[st.name] = name
	}
	exec(pg.Begin)
	defer exec("rollback")
	if st.sql == store.SQLSettle {
		exec(store.SQLSettlePlan)
	} else {
		exec(pg.OnePlan)
	}
	if st.sql == store.SQLPeriodicDue {
		exec(store.SQLPeriodicPlan)
	}
	if st.sql == drover.SQLDepths {
		exec(drover.SQLDepthsPlan)
	}
	marks := make([]string, len(st.args))
	for i := range marks {
		marks[i] = fmt.Sprint("$", i+1)
	}
	rows, err := p.Query(ctx, "explain ("+options+") execute "+name+"("+strings.Join(marks, ", ")+")",
		append([]any{pgx.QueryExecModeSimpleProtocol}, st.args...)...)
	if err != nil {
		t.Fatalf("%s: %v", st.name, err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s: %v", st.name, err)
	}
	return strings.Join(lines, "\n")
}

// fill stores n jobs. It makes the ids itself: drover_ulid would take a third of the time of the insert.
func (db *testDB) fill(t testing.TB, n int) {
	t.Helper()
	db.exec(t, `insert into jobs (id, kind, priority, scheduled_at, created_at) select (select left(drover_ulid(), 10)) || lpad(n::text, 16, '0'), 'job', 1 + n % 9, now() - n * interval '1 ms', now() from generate_series(1, $1) as n`, n)
}

// rowsForPlans returns the number of rows in plan tests. X-3 asks for 1,000,000.
func rowsForPlans(t testing.TB) int {
	t.Helper()
	return sizeOf(t, "DROVER_PLAN_ROWS", 20_000)
}

// buffersOf runs a query under EXPLAIN and rolls back. Its transaction begins like the library's transactions. It returns how
// many buffers the query touched and how often it read the whole table jobs, with the functions that it calls.
func (p *planner) buffersOf(t testing.TB, sql string) (buffers, scans int) {
	t.Helper()
	var plan string
	err := pgx.BeginFunc(t.Context(), p, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), pg.OnePlan); err != nil {
			return err
		}
		for range 2 { // only the first run reads the catalogs to plan the query
			rows, _ := tx.Query(t.Context(), `explain (analyze, buffers, costs off, timing off, summary off) `+sql)
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				return err
			}
			plan = strings.Join(lines, "\n")
		}
		if err := tx.QueryRow(t.Context(), `select pg_stat_get_xact_numscans('jobs'::regclass)`).Scan(&scans); err != nil {
			return err
		}
		return errRollback
	})
	if !errors.Is(err, errRollback) {
		t.Fatalf("%s: %v\n%s", sql, err, plan)
	}
	return buffersIn(t, plan), scans
}

// buffersIn returns how many buffers a plan touched in total.
func buffersIn(t testing.TB, plan string) int {
	t.Helper()
	found := regexp.MustCompile(`Buffers: shared (?:hit=(\d+))? ?(?:read=(\d+))?`).FindStringSubmatch(plan)
	if found == nil {
		t.Fatalf("no buffers in\n%s", plan)
	}
	hit, _ := strconv.Atoi(found[1])
	read, _ := strconv.Atoi(found[2])
	return hit + read
}

var errRollback = errors.New("roll back")

// ticker returns the settings of a supervisor that runs jobs of tickArgs and declares the schedules.
func ticker(build string, declared ...drover.Periodic) drover.SupervisorConfig {
	for i := range declared {
		if declared[i].Args == nil {
			declared[i].Args = tickArgs{}
		}
		if declared[i].Schedule == "" {
			declared[i].Schedule = "@yearly"
		}
	}
	return drover.SupervisorConfig{
		Queues: []drover.Queue{{}}, Build: build, Periodic: declared,
		Workers: []drover.Worker{drover.Handle(func(context.Context, *drover.Job, tickArgs) error { return nil }, drover.WorkerOpts{})},
	}
}

// startTicker starts a supervisor and waits until it is registered.
func (db *testDB) startTicker(t *testing.T, cfg drover.SupervisorConfig) (stop func()) {
	t.Helper()
	sup, stop := db.start(t, cfg)
	eventually(t, func() bool { return drover.EngineOf(sup).Lease.Load() != nil })
	return stop
}

func (db *testDB) periodicJob(t testing.TB, name string) *drover.PeriodicJob {
	t.Helper()
	j, err := db.client.PeriodicJob(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// waitFor polls the database until a condition holds.
func (db *testDB) waitFor(t testing.TB, atMost time.Duration, sql string, args ...any) {
	t.Helper()
	db.soon(t, atMost, fmt.Sprintf("not within %v: %s", atMost, sql), sql, args...)
}

// soon is like waitFor, with a message that the test chooses.
func (db *testDB) soon(t testing.TB, atMost time.Duration, complaint, sql string, args ...any) {
	t.Helper()
	if !looked(atMost, 20*time.Millisecond, func() bool { return value[bool](t, db, sql, args...) }) {
		t.Fatal(complaint)
	}
}

// sqlAsleep returns whether supervisors are on call and none is a lookout.
const sqlAsleep = `select count(*) > 0 and bool_and(duty = 'on call') from drover_on_duty`

// asleep waits until supervisors listen and none polls.
func (db *testDB) asleep(t testing.TB) {
	t.Helper()
	db.waitFor(t, 20*time.Second, sqlAsleep)
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

// onDuty holds locks on a connection of its own, as a supervisor does. The returned function releases them.
func (db *testDB) onDuty(t testing.TB, keys ...int64) (end func()) {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), db.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pg.CloseConn(t.Context(), conn) })
	for _, key := range keys {
		if _, err := conn.Exec(t.Context(), `select pg_advisory_lock($1)`, key); err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		if _, err := conn.Exec(t.Context(), `select pg_advisory_unlock_all()`); err != nil {
			t.Error(err)
		}
	}
}

// statements counts the statements that a supervisor sends, except begin, commit and the settings of a transaction.
type statements struct {
	mu    sync.Mutex
	calls map[string]int
	conns map[*pgx.Conn]bool // connections that have sent LISTEN
	deaf  int                // heartbeats on other connections
}

func newStatements() *statements {
	return &statements{calls: map[string]int{}, conns: map[*pgx.Conn]bool{}}
}

func (s *statements) note(conn *pgx.Conn, sql string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if strings.HasPrefix(sql, "listen ") {
		s.conns[conn] = true
	}
	if sql == store.SQLBeat && !s.conns[conn] {
		s.deaf++
	}
	if !slices.Contains([]string{pg.Begin, pg.Commit, pg.CommitAndBegin, pg.OnePlan, pg.QuickPlan, store.SQLClaimPlan, store.SQLSettlePlan, pg.BoundPlan}, sql) {
		s.calls[sql]++
	}
}

// since returns the calls since the last call of since, and how many connections have sent LISTEN so far.
func (s *statements) since() (calls map[string]int, listening int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls, s.calls = s.calls, map[string]int{}
	return calls, len(s.conns)
}

func (s *statements) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (s *statements) TraceBatchQuery(_ context.Context, conn *pgx.Conn, d pgx.TraceBatchQueryData) {
	s.note(conn, d.SQL)
}

func (s *statements) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

func (s *statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (s *statements) TraceQueryStart(ctx context.Context, conn *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	s.note(conn, d.SQL)
	return ctx
}

// after waits for a duration, for tests in which time itself is the event.
func after(t testing.TB, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}

// dead inserts a lost supervisor. All jobs that it had claimed are in flight.
func (db *testDB) dead(t testing.TB, id string) {
	t.Helper()
	db.exec(t, `insert into drover_supervisors (id, lease_ms, queues, slots, in_flight, lost_at)
		values ($1, 1000, '{default}', '{"default": 10}', (select coalesce(array_agg(id), '{}') from jobs where claimed_by = $1), now())`, id)
}

// dialed returns a new connection that is closed when the test ends.
func dialed(t testing.TB, db *testDB) *pgx.Conn {
	t.Helper()
	conn, err := drover.PoolOf(db.client).Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pg.CloseConn(context.Background(), conn) })
	return conn
}

// farMinute returns a schedule that ticks each hour, next in half an hour. So no new tick comes while a test checks earlier ones.
func farMinute() string { return fmt.Sprintf("%d * * * *", (time.Now().Minute()+30)%60) }

// finished stores a job that ended some time ago. Its id has the same time.
func (db *testDB) finished(t testing.TB, state string, ago time.Duration) string {
	t.Helper()
	return value[string](t, db, `insert into jobs (id, kind, state, created_at, finalized_at, discard_reason)
		select left(drover_ulid_at(now() - $2::interval), 10) || right(drover_ulid(), 16), 'job', $1, now() - $2::interval,
			case when $1 in ('completed', 'cancelled', 'discarded') then now() - $2::interval end, case when $1 = 'discarded' then 'operator' end
		returning id`, state, pg.Interval(ago))
}

// launchPruning is like launch, with a pruner that runs every 10 ms instead of every minute.
func (db *testDB) launchPruning(t testing.TB, cfg drover.SupervisorConfig) {
	t.Helper()
	cfg.Workers = doingNothing()
	sup, err := db.client.NewSupervisor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	drover.EngineOf(sup).Pruner.Every = 10 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- sup.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// ended stores a job of a queue that ended some time ago.
func (db *testDB) ended(t testing.TB, queue, state string, ago time.Duration) string {
	t.Helper()
	id := db.finished(t, state, ago)
	db.exec(t, `update jobs set queue = $2 where id = $1`, id, queue)
	return id
}

// aged stores n completed jobs that ended two days ago, and returns their ids in the order of the pruner's walk.
func (db *testDB) aged(t testing.TB, n int) []string {
	t.Helper()
	return value[[]string](t, db, `with aged as (
		insert into jobs (id, kind, state, created_at, finalized_at)
		select left(drover_ulid_at(now() - interval '2 days'), 10) || lpad(n::text, 16, '0'), 'job', 'completed', now() - interval '2 days', now() - interval '2 days'
		from generate_series(1, $1) n returning id) select array_agg(id order by id) from aged`, n)
}

// refuses adds a trigger to a table, as an application might. The trigger runs the code in does for rows that match a condition.
func (db *testDB) refuses(t testing.TB, event, table, fits, does string) {
	t.Helper()
	name := "app_" + strings.ToLower(strings.Fields(event)[0]) + "_" + table
	result := "new"
	if event == "delete" {
		result = "old"
	}
	db.exec(t, fmt.Sprintf(`create function %s() returns trigger language plpgsql as $$ begin if %s then %s; end if; return %s; end $$`, name, fits, does, result))
	db.exec(t, fmt.Sprintf(`create trigger %s before %s on %s for each row execute function %[1]s()`, name, event, table))
}

// noted returns the jobs that drover has set aside on a path.
func (db *testDB) noted(t testing.TB, path string) []string {
	t.Helper()
	return value[[]string](t, db, `select coalesce(array_agg(job order by job), '{}') from drover_set_aside where path = $1`, path)
}

const aDay = 24 * time.Hour

// unguarded removes the table's CHECKs, as the owner or a restored dump might.
func (db *testDB) unguarded(t testing.TB) {
	t.Helper()
	pgtest.DropChecks(t, db.Pool)
}

// start runs a supervisor. The returned function stops the supervisor and waits for its end.
func (db *testDB) start(t *testing.T, cfg drover.SupervisorConfig) (sup *drover.Supervisor, stop func()) {
	t.Helper()
	sup, err := db.client.NewSupervisor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := sup.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return sup, stop
}

// endingCancelled makes a worker for each function in ends. Its handler waits until its context is cancelled, and then returns
// the result of the function.
func endingCancelled(t *testing.T, ends map[string]func(context.Context, *drover.Job) error) (workers []drover.Worker) {
	t.Helper()
	for name, end := range ends {
		workers = append(workers, dynWorker(name, drover.WorkerOpts{}, func(ctx context.Context, job *drover.Job) error {
			<-ctx.Done()
			if cause := context.Cause(ctx); !errors.Is(cause, drover.ErrCancelled) {
				t.Errorf("%s: cause = %v", name, cause)
			}
			return end(ctx, job)
		}))
	}
	return workers
}

// newQuietDB is like newTestDB, without a log.
func newQuietDB(t testing.TB) *testDB {
	t.Helper()
	return newTestDBWith(t, drover.Config{Logger: slog.New(slog.DiscardHandler)})
}

// via returns another client for the same schema, on a pool of its own.
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

// launched is a supervisor that a test can stop.
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

// stop stops the supervisor and waits for its end. A second call does nothing.
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

// still is a registered supervisor that runs no goroutines. Tests call its parts one by one.
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
		cfg.Lease = 2 * time.Minute // statements may take hundredths of a lease, and some wait for seconds on a busy server
	}
	sup, err := db.client.NewSupervisor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	e := drover.EngineOf(sup)
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

// beat runs one round of the control goroutine.
func (s *still) beat(t testing.TB) {
	t.Helper()
	if err := s.Keeper.Beat(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// claim runs one round of the claimer, and returns the runs that it put into the buffers.
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

// prune runs one walk of the pruner.
func (db *testDB) prune(ctx context.Context, walk engine.PruneWalk, keep store.Keeping) (engine.PruneWalk, error) {
	return drover.Prune(ctx, db.client, walk, keep)
}

// logbook is a log handler that keeps all records.
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

// enqueueAll enqueues a job in every way, without options and with a tag.
func (db *testDB) enqueueAll(t *testing.T, each func(what string, r drover.Receipt, err error)) {
	t.Helper()
	for _, way := range db.ways(t) {
		for _, opts := range []*drover.EnqueueOpts{nil, {Tags: []string{"x"}}} {
			r, err := way.enqueue(t.Context(), letter{}, opts)
			each(fmt.Sprintf("%s, %+v", way.name, opts), r, err)
		}
	}
}

// refuse adds a trigger to jobs. The trigger refuses an update if the condition on old and new holds.
func (db *testDB) refuse(t testing.TB, when string) {
	t.Helper()
	db.exec(t, `create or replace function no() returns trigger language plpgsql as $$ begin raise exception 'no'; end $$`)
	db.exec(t, `create or replace trigger no before update on jobs for each row when (`+when+`) execute function no()`)
}
