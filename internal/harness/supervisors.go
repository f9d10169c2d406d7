package harness

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/health"
	"github.com/drover-queue/drover/internal/pg"
)

// Field is a field that only drover itself can name, or a field of such a field.
func Field[T any](of any, names ...string) *T {
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

// EngineOf returns the engine of a supervisor.
func EngineOf(s *drover.Supervisor) *engine.Engine { return *Field[*engine.Engine](s, "engine") }

// PoolOf returns a client's way to the database.
func PoolOf(c *drover.Client) *pg.Pool { return *Field[*pg.Pool](c, "desk", "pool") }

// DynWorker handles a kind with a function that reads only the Job.
func DynWorker(kind string, opts drover.WorkerOpts, handler func(ctx context.Context, job *drover.Job) error) (w drover.Worker) {
	*Field[string](&w, "kind"), *Field[drover.WorkerOpts](&w, "opts") = kind, opts
	*Field[func(context.Context, *drover.Job) error](&w, "handle") = handler
	return w
}

// EndingCancelled makes a worker for each function in ends. Its handler waits until its context is cancelled, and then returns
// the result of the function.
func EndingCancelled(t testing.TB, ends map[string]func(context.Context, *drover.Job) error) (workers []drover.Worker) {
	t.Helper()
	for name, end := range ends {
		workers = append(workers, DynWorker(name, drover.WorkerOpts{}, func(ctx context.Context, job *drover.Job) error {
			<-ctx.Done()
			if cause := context.Cause(ctx); !errors.Is(cause, drover.ErrCancelled) {
				t.Errorf("%s: cause = %v", name, cause)
			}
			return end(ctx, job)
		}))
	}
	return workers
}

// job is the kind of the jobs of EnqueueJobs.
type job struct {
	N int `json:"n"`
}

func (job) Kind() string { return "job" }

// DoingNothing returns a worker for the kind "job" that completes every job.
func DoingNothing() []drover.Worker {
	return []drover.Worker{drover.Handle(func(context.Context, *drover.Job, job) error { return nil }, drover.WorkerOpts{Timeout: drover.NoTimeout})}
}

// EnqueueJobs stores n jobs in one statement, numbered from 0, and returns their ids.
func (db *DB) EnqueueJobs(t testing.TB, n int, opts *drover.EnqueueOpts) []string {
	t.Helper()
	batch := make([]drover.EnqueueItem, n)
	for i := range batch {
		batch[i] = drover.EnqueueItem{Args: job{i}, Opts: opts}
	}
	receipts, err := db.Client.EnqueueMany(t.Context(), batch)
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]string, n)
	for i := range receipts {
		ids[i] = receipts[i].ID
	}
	return ids
}

// Start runs a supervisor. The returned function stops the supervisor and waits for its end.
func (db *DB) Start(t testing.TB, cfg drover.SupervisorConfig) (sup *drover.Supervisor, stop func()) {
	t.Helper()
	sup, err := db.Client.NewSupervisor(cfg)
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

// Launched is a supervisor that a test can stop.
type Launched struct {
	*drover.Supervisor
	Cancel context.CancelFunc
	Done   chan error // gets the result of Run
}

// Launch starts a supervisor with its defaults: the kind "job" in the queue "default".
func (db *DB) Launch(t testing.TB, cfg drover.SupervisorConfig, edit ...func(*drover.Supervisor)) *Launched {
	t.Helper()
	if cfg.Workers == nil {
		cfg.Workers = DoingNothing()
	}
	if cfg.Queues == nil {
		cfg.Queues = []drover.Queue{{}}
	}
	sup, err := db.Client.NewSupervisor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range edit {
		change(sup)
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &Launched{sup, cancel, make(chan error, 1)}
	go func() { l.Done <- sup.Run(ctx) }()
	t.Cleanup(func() { l.Stop(t) })
	return l
}

// Stop stops the supervisor and waits for its end. A second call does nothing.
func (l *Launched) Stop(t testing.TB) {
	t.Helper()
	l.Cancel()
	if err, open := <-l.Done; open {
		if err != nil {
			t.Errorf("Run: %v", err)
		}
		close(l.Done)
	}
}

// Still is a registered supervisor that runs no goroutines. Tests call its parts one by one.
type Still struct {
	*engine.Engine
	Sup *drover.Supervisor
}

// Stopped registers a supervisor that runs no goroutines.
func (db *DB) Stopped(t testing.TB, cfg drover.SupervisorConfig) *Still {
	t.Helper()
	if cfg.Workers == nil {
		cfg.Workers = DoingNothing()
	}
	if cfg.Queues == nil {
		cfg.Queues = []drover.Queue{{}}
	}
	if cfg.Lease == 0 {
		cfg.Lease = 2 * time.Minute // statements may take hundredths of a lease, and some wait for seconds on a busy server
	}
	sup, err := db.Client.NewSupervisor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	e := EngineOf(sup)
	if err := e.Keeper.Start(t.Context(), context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.Keeper.Link.Close(context.Background())
		e.Claimer.Link.Close(context.Background())
		e.Settler.Link.Close(context.Background())
	})
	return &Still{e, sup}
}

// Beat runs one round of the control goroutine.
func (s *Still) Beat(t testing.TB) {
	t.Helper()
	if err := s.Keeper.Beat(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Claim runs one round of the claimer, and returns the runs that it put into the buffers.
func (s *Still) Claim(t testing.TB) (runs []*engine.Run) {
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

// LaunchPruning is like Launch, with a pruner that runs every 10 ms instead of every minute.
func (db *DB) LaunchPruning(t testing.TB, cfg drover.SupervisorConfig) {
	t.Helper()
	db.Launch(t, cfg, func(s *drover.Supervisor) { EngineOf(s).Pruner.Every = 10 * time.Millisecond })
}

// SQLAsleep returns whether supervisors are on call and none is a lookout.
const SQLAsleep = `select count(*) > 0 and bool_and(duty = 'on call') from drover_on_duty`

// Asleep waits until supervisors listen and none polls.
func (db *DB) Asleep(t testing.TB) {
	t.Helper()
	db.Soon(t, 20*time.Second, "supervisors are not asleep", SQLAsleep)
}

// OnDuty holds locks on a connection of its own, as a supervisor does. The returned function releases them.
func (db *DB) OnDuty(t testing.TB, keys ...int64) (end func()) {
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

// Health returns a health report.
func (db *DB) Health(t testing.TB) *health.Report {
	t.Helper()
	h, err := health.Look(t.Context(), PoolOf(db.Client))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// Dialed returns a new connection that is closed when the test ends.
func (db *DB) Dialed(t testing.TB) *pgx.Conn {
	t.Helper()
	conn, err := PoolOf(db.Client).Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pg.CloseConn(context.Background(), conn) })
	return conn
}
