package drover

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/store"
)

// newQuietDB is newTestDB without a log.
func newQuietDB(t testing.TB) *testDB {
	t.Helper()
	return newTestDBWith(t, Config{Logger: slog.New(slog.DiscardHandler)})
}

// via is another client, on a pool of its own, for the same schema.
func (db *testDB) via(t testing.TB, cfg Config, edit ...func(*pgxpool.Config)) *testDB {
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
	client, err := New(pool, cfg)
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

func handling(f func(ctx context.Context, job *Job, n int) error) []Worker {
	return []Worker{Handle(func(ctx context.Context, j *Job, args job) error { return f(ctx, j, args.N) }, WorkerOpts{Timeout: NoTimeout})}
}

func doingNothing() []Worker {
	return handling(func(context.Context, *Job, int) error { return nil })
}

// enqueueJobs stores n jobs in one statement, numbered from 0, and returns their ids.
func (db *testDB) enqueueJobs(t testing.TB, n int, opts *EnqueueOpts) []string {
	t.Helper()
	batch := make([]EnqueueItem, n)
	for i := range batch {
		batch[i] = EnqueueItem{Args: job{i}, Opts: opts}
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
	*Supervisor
	cancel context.CancelFunc
	done   chan error
}

func (db *testDB) launch(t testing.TB, cfg SupervisorConfig, edit ...func(*Supervisor)) *launched {
	t.Helper()
	if cfg.Workers == nil {
		cfg.Workers = doingNothing()
	}
	if cfg.Queues == nil {
		cfg.Queues = []Queue{{}}
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

// withoutAudits is for a launch: the next audit of the supervisor comes after the test. Only a test that asserts that
// nothing else happens to a job may use it, if the job runs in this supervisor's name and is not known to it: an audit
// gives such a job back. All other tests hold beside audits.
func withoutAudits(s *Supervisor) { s.engine.Claimer.Audit.Ended = time.Now().Add(24 * time.Hour) }

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

// still is a registered supervisor of which nothing runs: tests drive its parts by hand.
type still struct {
	*engine.Engine
	sup *Supervisor
}

func (db *testDB) stopped(t testing.TB, cfg SupervisorConfig) *still {
	t.Helper()
	if cfg.Workers == nil {
		cfg.Workers = doingNothing()
	}
	if cfg.Queues == nil {
		cfg.Queues = []Queue{{}}
	}
	if cfg.Lease == 0 {
		cfg.Lease = 2 * time.Minute // of which its statements get hundredths: a busy server keeps some waiting for seconds
	}
	sup, err := db.client.NewSupervisor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	e := sup.engine
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

// beat is one round of the control goroutine.
func (s *still) beat(t testing.TB) {
	t.Helper()
	if err := s.Keeper.Beat(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// claim is one round of the claimer; it returns what it put into the buffers.
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

// ids are the jobs of runs.
func ids(runs []*engine.Run) []string {
	ids, _ := store.Claims(engine.Fences(runs))
	return ids
}

// endedBy is a run that has ended so.
func endedBy(r *engine.Run, o engine.Outcome) *engine.Run {
	r.End = o
	return r
}

// jobOf is the job of a run, as its handler sees it.
func jobOf(r *engine.Run) *Job { return &taskOf(r).job }

// finished is a run whose handler has returned err; it may have settled its job in a transaction.
func finished(r *engine.Run, err error) *engine.Run {
	return endedBy(r, r.Shared.Handler.Decide(r, err))
}

// deaf is a run that was given up because its handler ignores its timeout.
func deaf(r *engine.Run) *engine.Run {
	return endedBy(r, r.Shared.Handler.CutShort(r, engine.ErrTimeout))
}

// slots is a queue with so many.
func slots(n int) engine.Queue {
	return engine.Queue{QueuePolicy: store.QueuePolicy{Slots: n}}
}

// prune is one walk of the pruner.
func (db *testDB) prune(ctx context.Context, walk engine.PruneWalk, keep store.Keeping) (engine.PruneWalk, error) {
	return engine.NewPruner(engine.NewShared(engine.Config{Log: db.client.log}, db.client.desk.pool)).Prune(ctx, walk, keep)
}

// pruneByCount is one walk by count.
func (db *testDB) pruneByCount(ctx context.Context) error {
	return engine.NewPruner(engine.NewShared(engine.Config{Log: db.client.log}, db.client.desk.pool)).PruneByCount(ctx)
}

// decided is a run whose handler has returned err.
func decided(r *engine.Run, err error) *engine.Run { return endedBy(r, taskOf(r).decide(err)) }

// settle is one round of the settler.
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
	events []told
}

func (d *diary) hooks() []Hooks {
	note := func(kind engine.EventKind) func(context.Context, Event) {
		return func(_ context.Context, e Event) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.events = append(d.events, told{kind, e})
		}
	}
	return []Hooks{{
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

// logbook keeps what is logged.
type logbook struct {
	mu      sync.Mutex
	records []slog.Record
}

func (b *logbook) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }
func (b *logbook) WithAttrs([]slog.Attr) slog.Handler               { return b }
func (b *logbook) WithGroup(string) slog.Handler                    { return b }

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

// P-5
func TestStopFinishesWhatRunsAndHandsBackTheRest(t *testing.T) {
	t.Parallel()
	var book diary
	var claimed atomic.Int64
	db := newQuietDB(t).via(t, Config{Hooks: append(book.hooks(), Hooks{Claimed: func(_ context.Context, e Event) { claimed.Add(int64(e.Count)) }})})
	started, release := make(chan struct{}, 2), make(chan struct{})
	sup := db.launch(t, SupervisorConfig{Queues: []Queue{{Concurrency: 2}}, Workers: handling(func(ctx context.Context, _ *Job, _ int) error {
		started <- struct{}{}
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})})
	// As if runs had been quick so far: jobs wait in the buffer.
	sup.engine.Claimer.Wake()
	db.waitFor(t, 30*time.Second, `select count(*) = 1 from drover_supervisors`)
	q := sup.engine.QueueStates()[0]
	for range 1000 {
		q.Ran(time.Millisecond)
	}
	db.enqueueJobs(t, 10, nil)
	receive(t, started)
	receive(t, started)
	eventually(t, func() bool { return claimed.Load() > 2 }) // they are handed back after a second, if the stop comes no sooner
	sup.cancel()
	db.waitFor(t, 30*time.Second, `select count(*) = 8 from jobs where state = 'available' and attempt = 0 and errors_total = 0`)
	close(release)
	sup.stop(t)
	if n := value[int](t, db, `select count(*) from jobs where state = 'completed'`); n != 2 {
		t.Errorf("%d of 2 running jobs were finished", n)
	}
	if n := book.count(engine.EventCompleted, ""); n != 2 {
		t.Errorf("%d of them were told", n)
	}
	if n := value[int](t, db, `select count(*) from drover_supervisors`) + value[int](t, db, `select count(*) from drover_crews`); n != 0 {
		t.Errorf("%d rows are left of it", n)
	}
}

// P-5: after the drain time handlers are cancelled, with ErrShutdown, and their jobs are due again as if nothing had been.
func TestStopCancelsHandlersAfterTheDrainTime(t *testing.T) {
	t.Parallel()
	var book diary
	db := newQuietDB(t).via(t, Config{Hooks: book.hooks()})
	started := make(chan struct{}, 3)
	sup := db.launch(t, SupervisorConfig{DrainTimeout: 50 * time.Millisecond, Workers: handling(func(ctx context.Context, _ *Job, n int) error {
		started <- struct{}{}
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), ErrShutdown) {
			t.Errorf("cause = %v", context.Cause(ctx))
		}
		if n == 2 {
			return nil // it made it
		}
		return ctx.Err()
	})})
	db.enqueueJobs(t, 3, nil)
	for range 3 {
		receive(t, started)
	}
	sup.stop(t)
	if !value[bool](t, db, `select count(*) filter (where state = 'available' and attempt = 0 and errors_total = 0 and scheduled_at <= now()) = 2
		and count(*) filter (where state = 'completed') = 1 from jobs`) {
		t.Error(value[string](t, db, `select json_agg(j)::text from jobs j`))
	}
	if book.count(engine.EventReleased, "") != 2 || book.count(engine.EventCompleted, "") != 1 {
		t.Errorf("%d released, %d completed", book.count(engine.EventReleased, ""), book.count(engine.EventCompleted, ""))
	}
}

// P-5: the second signal.
func TestStopNowDoesNotWaitForTheDrainTime(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	started := make(chan struct{}, 1)
	sup := db.launch(t, SupervisorConfig{DrainTimeout: time.Hour, Workers: handling(func(ctx context.Context, _ *Job, _ int) error {
		started <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})})
	db.enqueueJobs(t, 1, nil)
	receive(t, started)
	sup.cancel()
	sup.StopNow()
	sup.StopNow()
	if err := receive(t, sup.done); err != nil {
		t.Error(err)
	}
	close(sup.done)
	if got := value[string](t, db, `select state || attempt from jobs`); got != "available0" {
		t.Errorf("the job is %s", got)
	}
}

// P-5: a handler that never returns is left behind: its job is handed back over its head, its late result refused.
func TestStopLeavesDeafHandlersBehind(t *testing.T) {
	t.Parallel()
	slow(t)
	var book diary
	db := newQuietDB(t).via(t, Config{Hooks: book.hooks()})
	started, release, returned := make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	sup := db.launch(t, SupervisorConfig{DrainTimeout: 50 * time.Millisecond, Workers: handling(func(context.Context, *Job, int) error {
		started <- struct{}{}
		<-release
		close(returned)
		return nil
	})})
	id := db.enqueueJobs(t, 1, nil)[0]
	receive(t, started)
	began := time.Now()
	sup.stop(t)
	if d := time.Since(began); d > engine.EndPart+5*time.Second {
		t.Errorf("Run returned after %v", d)
	}
	if got := value[string](t, db, `select state || attempt from jobs`); got != "available0" {
		t.Errorf("the job is %s", got)
	}
	if sup.Stats().Abandoned != 1 {
		t.Errorf("%+v", sup.Stats())
	}
	close(release)
	receive(t, returned)
	if book.count(engine.EventReleased, id) != 1 || book.count(engine.EventCompleted, id) != 0 {
		t.Errorf("%d released, %d completed", book.count(engine.EventReleased, id), book.count(engine.EventCompleted, id))
	}
	if got := value[string](t, db, `select state || attempt from jobs`); got != "available0" {
		t.Errorf("after its handler returned the job is %s", got)
	}
}

func TestSupervisorRunsOnce(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	sup := db.launch(t, SupervisorConfig{})
	db.waitFor(t, 30*time.Second, `select count(*) = 1 from drover_supervisors`)
	if err := sup.Run(t.Context()); err == nil {
		t.Error("a second Run while the first is running is no error")
	}
	sup.stop(t)
	if err := sup.Run(t.Context()); err == nil {
		t.Error("a second Run is no error")
	}
	if err := sup.AddQueue(t.Context(), Queue{Name: "late"}); !errors.Is(err, ErrShutdown) {
		t.Errorf("AddQueue after the end = %v", err)
	}
	if n := value[int](t, db, `select count(*) from drover_crews`); n > 0 {
		t.Error("it passes for awake after its end")
	}
}

func TestStopBeforeTheStartIsNoError(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	sup, err := db.client.NewSupervisor(SupervisorConfig{Queues: []Queue{{}}, Workers: doingNothing()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := sup.Run(ctx); err != nil {
		t.Errorf("Run = %v", err)
	}
}

// A queue added while the supervisor starts or stops is served like the others, or refused; no worker is left behind.
func TestQueuesAddedAtStartAndStop(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	for round := range 8 {
		sup := db.launch(t, SupervisorConfig{})
		var adding sync.WaitGroup
		var mu sync.Mutex
		var added []string
		for i := range 4 {
			name := fmt.Sprintf("r%dq%d", round, i)
			adding.Go(func() {
				err := sup.AddQueue(t.Context(), Queue{Name: name, Concurrency: 1})
				if err == nil {
					mu.Lock()
					added = append(added, name)
					mu.Unlock()
				} else if !errors.Is(err, ErrShutdown) {
					t.Errorf("AddQueue = %v", err)
				}
			})
		}
		if round%2 == 0 {
			adding.Wait()
			for _, name := range added {
				db.enqueue(t, job{}, &EnqueueOpts{Queue: name})
			}
			db.waitFor(t, 20*time.Second, `select count(*) = 0 from jobs where finalized_at is null`)
			if got := value[int](t, db, `select max(cardinality(queues)) from drover_supervisors`); got != len(added)+1 {
				t.Errorf("%d queues are registered, %d were added", got, len(added))
			}
		}
		sup.stop(t) // would hang on a queue that nobody closes
		adding.Wait()
	}
}

// I10: a supervisor that has run leaves no goroutine and no connection.
func TestSupervisorLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	name := "leak " + value[string](t, db, `select current_schema()`)
	tagged := db.via(t, Config{}, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = name })
	db.enqueueJobs(t, 500, nil)
	for range 3 {
		sup, err := tagged.client.NewSupervisor(SupervisorConfig{Queues: []Queue{{Concurrency: 50}, {Name: "idle", Concurrency: 30}}, Workers: doingNothing()})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		// Every goroutine that Run starts inherits the label.
		go pprof.Do(ctx, pprof.Labels("test", name), func(ctx context.Context) { ended <- sup.Run(ctx) })
		db.waitFor(t, 20*time.Second, `select count(*) = 500 from jobs where state = 'completed'`)
		db.waitFor(t, 20*time.Second, `select count(*) = 1 from drover_supervisors`)
		if err := sup.RemoveQueue(t.Context(), "idle"); err != nil {
			t.Error(err)
		}
		eventually(t, func() bool { return goroutines(t, name) >= 50 }) // else they are not seen
		cancel()
		if err := receive(t, ended); err != nil {
			t.Error(err)
		}
		eventually(t, func() bool { return goroutines(t, name) == 0 })
	}
	tagged.Reset() // the pool's own
	db.waitFor(t, 30*time.Second, `select count(*) = 0 from pg_stat_activity where application_name = $1`, name)
}

// goroutines counts those that carry a label.
func goroutines(t testing.TB, label string) (n int) {
	t.Helper()
	var text bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&text, 1); err != nil {
		t.Fatal(err)
	}
	for _, group := range strings.Split(text.String(), "\n\n") {
		if strings.Contains(group, label) {
			var many int
			if _, err := fmt.Sscanf(strings.TrimSpace(group[strings.LastIndex(group[:strings.Index(group, "@")], "\n")+1:]), "%d @", &many); err != nil {
				t.Fatalf("%v in %q", err, group)
			}
			n += many
		}
	}
	return n
}

// R8 of the design: whatever the role's defaults, the queue's own transactions are read committed and read write.
func TestRoleDefaultsDoNotReachTheQueue(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ setting, to string }{
		{"default_transaction_isolation", "repeatable read"}, {"default_transaction_isolation", "serializable"}, {"default_transaction_read_only", "on"},
	} {
		t.Run(c.to, func(t *testing.T) {
			t.Parallel()
			plain := newQuietDB(t)
			var book logbook
			db := plain.via(t, Config{Logger: slog.New(&book)}, func(config *pgxpool.Config) { config.ConnConfig.RuntimeParams[c.setting] = c.to })
			for range 4 {
				db.launch(t, SupervisorConfig{PollInterval: 50 * time.Millisecond, Workers: handling(func(_ context.Context, j *Job, n int) error {
					if n%10 == 0 && j.Attempt == 1 {
						return RetryAfter(0, errors.New("again"))
					}
					return nil
				})})
			}
			for range 10 {
				db.enqueueJobs(t, 100, nil)
			}
			plain.waitFor(t, 30*time.Second, `select count(*) = 1000 from jobs where state = 'completed'`)
			if messages := book.from(slog.LevelWarn); len(messages) > 0 {
				t.Errorf("%d warnings, the first: %s", len(messages), messages[0])
			}
		})
	}
}
