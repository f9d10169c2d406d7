package drover_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/store"
)

// E-10: a handler gets these facts about its job.
func TestTheHandlerSeesItsJob(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	id := db.enqueue(t, dyn{kind: "k", N: 7}, &drover.EnqueueOpts{
		Queue: "q", Priority: 3, MaxAttempts: 4, Tags: []string{"a", "b"}, Metadata: map[string]any{"tenant": "x"},
		Key: "customer 7",
	})
	jobs := make(chan drover.Job, 10)
	db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{Name: "q"}}, Workers: []drover.Worker{
		dynWorker("k", drover.WorkerOpts{Retry: drover.Constant{Delay: 2 * time.Millisecond}}, func(_ context.Context, job *drover.Job) error {
			jobs <- drover.WithoutRun(job)
			switch drover.RunOf(job).Seq {
			case 1:
				return errBoom
			case 2:
				return drover.Snooze(0)
			case 3:
				return drover.RetryAfter(3*time.Millisecond, errors.New("busy"))
			}
			return drover.Discard(errors.New("enough"))
		}),
	}})
	heard.Wait(t, id, "discarded")
	first := <-jobs
	if first.ID != id || first.Queue != "q" || first.Kind != "k" || first.Priority != 3 || first.MaxAttempts != 4 {
		t.Errorf("first run saw %+v", first)
	}
	if first.LastError != "" || first.LastDelay != 0 || first.Failures != 0 || first.Attempt != 1 || first.ScheduledAt.IsZero() {
		t.Errorf("first run saw a past: %+v", first)
	}
	if info, err := db.client.Job(t.Context(), id); err != nil || first.Key != "customer 7" || info.Key != "customer 7" {
		t.Errorf("concurrency key %q, %+v, %v", first.Key, info, err)
	}
	var args struct{ N int }
	var metadata map[string]string
	if err := errors.Join(json.Unmarshal(first.Args, &args), json.Unmarshal(first.Metadata, &metadata)); err != nil || args.N != 7 || metadata["tenant"] != "x" || !slices.Equal(first.Tags, []string{"a", "b"}) {
		t.Errorf("args %s, metadata %s, tags %v: %v", first.Args, first.Metadata, first.Tags, err)
	}
	second, third, fourth := <-jobs, <-jobs, <-jobs
	if second.Attempt != 2 || second.LastError != "boom" || second.LastDelay != 2*time.Millisecond || second.Failures != 1 || second.Priority != 3 {
		t.Errorf("second run saw %+v", second)
	}
	if third.Attempt != 2 || third.Snoozes != 1 || third.LastError != "boom" || third.Failures != 1 {
		t.Errorf("third run saw %+v", third)
	}
	if fourth.Attempt != 3 || fourth.LastError != "busy" || fourth.Failures != 2 || fourth.LastDelay < 3*time.Millisecond || !slices.Equal(fourth.Tags, first.Tags) || string(fourth.Metadata) != string(first.Metadata) {
		t.Errorf("fourth run saw %+v", fourth)
	}
	if err := db.client.RedriveJob(t.Context(), id, nil, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	if again := <-jobs; again.Attempt != 1 || again.Redrives != 1 || again.LastError != "enough" || again.Failures != 3 {
		t.Errorf("redriven run saw %+v", again)
	}
}

// how many runs a job has is decided by job, worker, queue and default, in this order, up as well as down.
func TestWhoDecidesMaxAttempts(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	now := drover.Constant{Delay: time.Nanosecond}
	fails := func(context.Context, *drover.Job) error { return errBoom }
	cfg := drover.SupervisorConfig{
		Queues: []drover.Queue{{Retry: now}, {Name: "seven", MaxAttempts: 7, Retry: now}},
		Workers: []drover.Worker{
			dynWorker("unset", drover.WorkerOpts{}, fails),
			dynWorker("three", drover.WorkerOpts{MaxAttempts: 3}, fails),
			dynWorker("once", drover.WorkerOpts{MaxAttempts: 1}, fails),
		},
	}
	cases := []struct {
		kind string
		opts drover.EnqueueOpts
		want int
	}{
		{"unset", drover.EnqueueOpts{}, 20},
		{"unset", drover.EnqueueOpts{Queue: "seven"}, 7},
		{"three", drover.EnqueueOpts{}, 3},
		{"three", drover.EnqueueOpts{Queue: "seven"}, 3},
		{"three", drover.EnqueueOpts{MaxAttempts: 5}, 5},
		{"three", drover.EnqueueOpts{MaxAttempts: 2}, 2},
		{"three", drover.EnqueueOpts{MaxAttempts: 1}, 1},
		{"three", drover.EnqueueOpts{MaxAttempts: 9, Queue: "seven"}, 9},
		{"unset", drover.EnqueueOpts{MaxAttempts: 25}, 25},
		{"once", drover.EnqueueOpts{}, 1},
		{"once", drover.EnqueueOpts{MaxAttempts: 4}, 4},
	}
	ids := make([]string, len(cases))
	for i, c := range cases {
		ids[i] = db.enqueue(t, dyn{kind: c.kind}, &c.opts)
	}
	db.run(t, cfg)
	for i, c := range cases {
		end := heard.Wait(t, ids[i], "discarded")
		if end.Attempt != c.want || end.MaxAttempts != c.want || heard.Count(ids[i], "started") != c.want {
			t.Errorf("%s, %+v: %d runs, event says attempt %d of %d; want %d",
				c.kind, c.opts, heard.Count(ids[i], "started"), end.Attempt, end.MaxAttempts, c.want)
		}
		info, err := db.client.Job(t.Context(), ids[i])
		if err != nil || info.MaxAttempts != c.want || info.DiscardReason != drover.ReasonAttemptsExhausted {
			t.Errorf("%s, %+v: the row says %d runs, reason %q: %v", c.kind, c.opts, info.MaxAttempts, info.DiscardReason, err)
		}
	}
}

// which strategy a job has is decided by job, worker, queue and default, in this order, at every retry, after a
// redrive too. R-10: the first run has no delay.
func TestWhoDecidesTheStrategy(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	ofJob, ofWorker, ofQueue := drover.Constant{Delay: 1111 * time.Microsecond}, drover.Constant{Delay: 2222 * time.Microsecond}, drover.Constant{Delay: 3333 * time.Microsecond}
	named := func(d time.Duration) func(drover.FailedRun) (time.Duration, bool) {
		return func(drover.FailedRun) (time.Duration, bool) { return d, true }
	}
	fails := func(context.Context, *drover.Job) error { return errBoom }
	cfg := drover.SupervisorConfig{
		Queues: []drover.Queue{{MaxAttempts: 4}, {Name: "q", MaxAttempts: 4, Retry: ofQueue}},
		Workers: []drover.Worker{
			dynWorker("unset", drover.WorkerOpts{}, fails),
			dynWorker("set", drover.WorkerOpts{Retry: ofWorker}, fails),
			dynWorker("shares", drover.WorkerOpts{Retry: drover.Custom{Name: "listed"}}, fails),
			dynWorker("brings", drover.WorkerOpts{Retry: drover.Custom{Name: "brought", Func: named(5555 * time.Microsecond)}}, fails),
			dynWorker("anonymous", drover.WorkerOpts{Retry: drover.Custom{Func: named(6666 * time.Microsecond)}}, fails),
		},
		Strategies: []drover.Custom{{Name: "listed", Func: named(4444 * time.Microsecond)}},
	}
	cases := []struct {
		kind string
		opts drover.EnqueueOpts
		want time.Duration
	}{
		{"unset", drover.EnqueueOpts{Queue: "q"}, ofQueue.Delay},
		{"set", drover.EnqueueOpts{}, ofWorker.Delay},
		{"set", drover.EnqueueOpts{Queue: "q"}, ofWorker.Delay},
		{"set", drover.EnqueueOpts{Queue: "q", Retry: ofJob}, ofJob.Delay},
		{"unset", drover.EnqueueOpts{Queue: "q", Retry: ofJob}, ofJob.Delay},
		{"unset", drover.EnqueueOpts{Retry: ofJob}, ofJob.Delay},
		{"shares", drover.EnqueueOpts{}, 4444 * time.Microsecond},
		{"set", drover.EnqueueOpts{Retry: drover.Custom{Name: "listed"}}, 4444 * time.Microsecond},
		{"set", drover.EnqueueOpts{Retry: drover.Custom{Name: "brought"}}, 5555 * time.Microsecond},
		{"set", drover.EnqueueOpts{Retry: drover.Custom{Name: "brought", Max: time.Millisecond}}, time.Millisecond},
		{"anonymous", drover.EnqueueOpts{Queue: "q"}, 6666 * time.Microsecond},
		{"anonymous", drover.EnqueueOpts{Retry: ofJob}, ofJob.Delay},
	}
	ids := make([]string, len(cases))
	for i, c := range cases {
		ids[i] = db.enqueue(t, dyn{kind: c.kind}, &c.opts)
	}
	byDefault := db.enqueue(t, dyn{kind: "unset"}, nil)
	db.run(t, cfg)
	if e := heard.Wait(t, byDefault, "failed"); e.Backoff < 15*time.Second || e.Backoff > 18750*time.Millisecond {
		t.Errorf("by default the backoff is %v", e.Backoff)
	}
	check := func(i int, failures int) {
		t.Helper()
		n := 0
		for _, e := range heard.Of(ids[i]) {
			if e.Name == "failed" {
				if n++; e.Backoff != cases[i].want {
					t.Errorf("%s, %+v: backoff %v, want %v", cases[i].kind, cases[i].opts, e.Backoff, cases[i].want)
				}
			}
		}
		if n != failures {
			t.Errorf("%s: %d failed events, want %d", cases[i].kind, n, failures)
		}
	}
	for i := range cases {
		heard.Wait(t, ids[i], "discarded")
		check(i, 3)
		if err := db.client.RedriveJob(t.Context(), ids[i], nil, drover.Audit{}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range cases {
		eventually(t, func() bool { return heard.Count(ids[i], "discarded") == 2 })
		check(i, 6)
	}
}

// a rescuer that does not know a job's kind keeps its own strategy, its kind's or its queue's.
func TestTheStrategySurvivesARescue(t *testing.T) {
	t.Parallel()
	db := newTestDBWith(t, drover.Config{Logger: quiet()})
	run := func(context.Context, *drover.Job) error { return nil }
	// The process that dies knew the kind; only its rows are left.
	dead, err := db.client.NewSupervisor(drover.SupervisorConfig{
		Lease:   time.Hour, // of which either may be silent for a third, or both would have died at the same time
		Queues:  []drover.Queue{{Name: "q", MaxAttempts: 9, Retry: drover.Constant{Delay: 3 * time.Minute}}},
		Workers: []drover.Worker{dynWorker("set", drover.WorkerOpts{MaxAttempts: 6, Retry: drover.Linear{Step: time.Minute}}, run), dynWorker("unset", drover.WorkerOpts{}, run)},
	})
	if err != nil {
		t.Fatal(err)
	}
	deadControl(t, dead)
	rescuer, err := db.client.NewSupervisor(drover.SupervisorConfig{Lease: time.Hour, Queues: []drover.Queue{{Name: "another"}}, Workers: []drover.Worker{dynWorker("other", drover.WorkerOpts{}, run)}})
	if err != nil {
		t.Fatal(err)
	}
	deadControl(t, rescuer)
	cases := []struct {
		kind        string
		opts        drover.EnqueueOpts
		delay       time.Duration
		maxAttempts int
	}{
		{"set", drover.EnqueueOpts{Queue: "q"}, 2 * time.Minute, 6},
		{"set", drover.EnqueueOpts{Queue: "q", Retry: drover.Constant{Delay: time.Hour}, MaxAttempts: 3}, time.Hour, 3},
		{"unset", drover.EnqueueOpts{Queue: "q"}, 3 * time.Minute, 9},
	}
	for _, c := range cases {
		id := db.enqueue(t, dyn{kind: c.kind}, &c.opts)
		// It runs for the second time, and the process died in the first run too.
		db.exec(t, `update jobs set state = 'running', claimed_by = $2, attempt = 2, claim_seq = 2, crashes = 1 where id = $1`, id, drover.EngineOf(dead).Lease.Load().ID)
		conn, err := db.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := drover.EngineOf(rescuer).Keeper.Rescue(t.Context(), store.Session{Conn: conn.Conn()}, store.Peer{ID: drover.EngineOf(dead).Lease.Load().ID, Queues: []string{"q"}}); err != nil {
			t.Fatal(err)
		}
		conn.Release()
		row := db.EndRow(t, id)
		if info, err := db.client.Job(t.Context(), id); err != nil || info.MaxAttempts != c.maxAttempts {
			t.Errorf("%s: %d attempts, want %d: %v", c.kind, info.MaxAttempts, c.maxAttempts, err)
		}
		if row.State != drover.Retryable || row.Crashes != 2 || row.Delay < c.delay-time.Second || row.Delay > c.delay+time.Second {
			t.Errorf("%s: rescued row = %+v, want it due in %v", c.kind, row, c.delay)
		}
	}
}

// deadControl registers a supervisor that is then never heard of again.
func deadControl(t *testing.T, s *drover.Supervisor) {
	t.Helper()
	drover.EngineOf(s).Keeper.Base = context.Background()
	if err := drover.EngineOf(s).Keeper.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { drover.EngineOf(s).Keeper.Link.Close(context.Background()) })
}

// a name that this process lacks is no reason to fail, but worth a line in the log.
func TestAnUnknownStrategyFallsBackToTheWorkers(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	var logged lockedBuffer
	db := newTestDBWith(t, drover.Config{Logger: slog.New(slog.NewTextHandler(&logged, nil)), Hooks: []drover.Hooks{heard.Hooks()}})
	id := db.enqueue(t, dyn{kind: "k"}, &drover.EnqueueOpts{Retry: drover.Custom{Name: "of another process"}})
	db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: []drover.Worker{
		dynWorker("k", drover.WorkerOpts{Retry: drover.Constant{Delay: time.Hour}}, func(context.Context, *drover.Job) error { return errBoom }),
	}})
	if e := heard.End(t, id); e.Name != "failed" || e.Backoff != time.Hour {
		t.Errorf("event = %+v", e)
	}
	if log := string(logged.Bytes()); !strings.Contains(log, "of another process") || !strings.Contains(log, "job_id="+id) {
		t.Errorf("log = %s", log)
	}
	if stored := value[string](t, db, `select retry->>'name' from jobs where id = $1`, id); stored != "of another process" {
		t.Errorf("the job's own strategy became %q", stored)
	}
}

// a Custom gets all of these arguments, and a panic inside it leads to the default.
func TestACustomStrategySeesTheFailure(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	var logged lockedBuffer
	db := newTestDBWith(t, drover.Config{Logger: slog.New(slog.NewTextHandler(&logged, nil)), Hooks: []drover.Hooks{heard.Hooks()}})
	var mu sync.Mutex
	var failures []drover.FailedRun
	custom := drover.Custom{Func: func(f drover.FailedRun) (time.Duration, bool) {
		mu.Lock()
		defer mu.Unlock()
		failures = append(failures, f)
		switch f.Attempt {
		case 1:
			return -time.Hour, true
		case 2:
			return 4 * time.Millisecond, true
		}
		panic("in the strategy")
	}}
	id := db.enqueue(t, dyn{kind: "k"}, nil)
	db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: []drover.Worker{
		dynWorker("k", drover.WorkerOpts{Retry: custom}, func(_ context.Context, job *drover.Job) error { return fmt.Errorf("run %d: %w", job.Attempt, errBoom) }),
	}})
	eventually(t, func() bool { return heard.Count(id, "failed") == 3 })
	mu.Lock()
	defer mu.Unlock()
	for i, f := range failures {
		if f.Attempt != i+1 || f.RetryIndex != i || !errors.Is(f.Err, errBoom) || f.Job == nil || f.Job.ID != id {
			t.Errorf("failure %d = %+v", i, f)
		}
	}
	if len(failures) != 3 || failures[0].LastDelay != 0 || failures[1].LastDelay != 0 || failures[2].LastDelay != 4*time.Millisecond {
		t.Errorf("failures = %+v", failures)
	}
	row := db.EndRow(t, id)
	if row.State != drover.Retryable || row.Delay < 59*time.Second || row.Delay > 76*time.Second { // Exponential{} after attempt 3
		t.Errorf("row = %+v", row)
	}
	if !strings.Contains(string(logged.Bytes()), "in the strategy") {
		t.Error("the panic was not logged")
	}
}

type (
	ptrArgs    struct{ N int }
	nulKind    struct{}
	kindPanics struct{}
	noKind     struct{}
)

func (*ptrArgs) Kind() string   { return "pointer" }
func (nulKind) Kind() string    { return "a\x00b" }
func (kindPanics) Kind() string { panic("no kind") }
func (noKind) Kind() string     { return "" }

// jsonb changes args as the documentation of Job and docs/sql.md say, and a handler gets them so.
func TestArgsAsPostgresKeepsThem(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	ran := make(chan string, 1)
	db.Start(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: []drover.Worker{drover.Handle(func(_ context.Context, j *drover.Job, args kept) error {
		ran <- fmt.Sprintf("%s %+v", j.Args, args)
		return nil
	}, drover.WorkerOpts{})}})
	for _, c := range []struct{ args, ran string }{
		{`'{"To":"a", "N":1,"To":"b"}'`, `{"N": 1, "To": "b"} {N:1 To:b}`},
		{`'{"N": 1e2}'`, `{"N": 100} {N:100 To:}`},
		{`'{"N": 42.00}'`, ``},
		{`jsonb_build_object('N', 42.00::int)`, `{"N": 42} {N:42 To:}`},
		{`jsonb_build_object('N', trim_scale(42.00))`, `{"N": 42} {N:42 To:}`},
		{`'null'`, `null {N:0 To:}`},
		{`null`, `{} {N:0 To:}`},
	} {
		end := heard.End(t, value[string](t, db, `select job_id from drover_enqueue('kept', `+c.args+`)`))
		switch {
		case c.ran == "":
			if end.Name != "discarded" || end.Reason != drover.ReasonUndecodable {
				t.Errorf("%s: %+v", c.args, end)
			}
		case end.Name != "completed":
			t.Errorf("%s: %+v", c.args, end)
		default:
			if got := <-ran; got != c.ran {
				t.Errorf("%s: the handler got %s, want %s", c.args, got, c.ran)
			}
		}
	}
	var refused *pgconn.PgError
	if _, err := db.Exec(t.Context(), `insert into jobs (kind, args) values ('kept', null)`); !errors.As(err, &refused) || refused.Code != "23502" {
		t.Errorf("insert of null = %v", err)
	}
}

type kept struct {
	N  int
	To string
}

func (kept) Kind() string { return "kept" }

// Handlers may take a pointer.
func TestPointerArgs(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	got := make(chan int, 1)
	id := db.enqueue(t, &ptrArgs{7}, nil)
	db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: []drover.Worker{
		drover.Handle(func(_ context.Context, _ *drover.Job, args *ptrArgs) error { got <- args.N; return nil }, drover.WorkerOpts{}),
	}})
	if e := heard.End(t, id); e.Name != "completed" || <-got != 7 {
		t.Errorf("event = %+v", e)
	}
}

// All mistakes of a configuration are reported together, each by the name of its field.
func TestConfigurationMistakes(t *testing.T) {
	t.Parallel()
	db := newTestDBWith(t, drover.Config{Logger: quiet()})
	ok := dynWorker("ok", drover.WorkerOpts{}, doNothing)
	with := func(opts drover.WorkerOpts) []drover.Worker { return []drover.Worker{dynWorker("k", opts, doNothing)} }
	queues := []drover.Queue{{}}
	wait := func(drover.FailedRun) (time.Duration, bool) { return 0, true }
	other := func(drover.FailedRun) (time.Duration, bool) { return 1, true }
	for name, c := range map[string]struct {
		cfg  drover.SupervisorConfig
		want []string // fields, or parts of what is said
	}{
		"nothing":                {drover.SupervisorConfig{}, []string{"Queues:", "Workers:"}},
		"the same kind twice":    {drover.SupervisorConfig{Queues: queues, Workers: []drover.Worker{ok, ok}}, []string{"Workers[1]", `"ok"`}},
		"the same queue twice":   {drover.SupervisorConfig{Queues: []drover.Queue{{}, {Name: "default"}}, Workers: []drover.Worker{ok}}, []string{"Queues[1].Name"}},
		"an empty worker":        {drover.SupervisorConfig{Queues: queues, Workers: []drover.Worker{{}, ok, {}}}, []string{"Workers[0]", "Workers[2]", "Handle"}},
		"a nil handler":          {drover.SupervisorConfig{Queues: queues, Workers: []drover.Worker{drover.Handle[decodes](nil, drover.WorkerOpts{})}}, []string{"Workers[0]", "nil"}},
		"args of interface type": {drover.SupervisorConfig{Queues: queues, Workers: []drover.Worker{drover.Handle(func(context.Context, *drover.Job, drover.Args) error { return nil }, drover.WorkerOpts{})}}, []string{"Workers[0]", "interface"}},
		"a kind that panics":     {drover.SupervisorConfig{Queues: queues, Workers: []drover.Worker{drover.Handle(func(context.Context, *drover.Job, kindPanics) error { return nil }, drover.WorkerOpts{})}}, []string{"Workers[0]", "panics"}},
		"a kind with NUL":        {drover.SupervisorConfig{Queues: queues, Workers: []drover.Worker{drover.Handle(func(context.Context, *drover.Job, nulKind) error { return nil }, drover.WorkerOpts{})}}, []string{"Workers[0].kind"}},
		"an empty kind":          {drover.SupervisorConfig{Queues: queues, Workers: []drover.Worker{drover.Handle(func(context.Context, *drover.Job, noKind) error { return nil }, drover.WorkerOpts{})}}, []string{"Workers[0].kind"}},
		"negative attempts":      {drover.SupervisorConfig{Queues: []drover.Queue{{MaxAttempts: -1}}, Workers: with(drover.WorkerOpts{MaxAttempts: -1})}, []string{"Queues[0].MaxAttempts", "Workers[0].MaxAttempts"}},
		"too many attempts":      {drover.SupervisorConfig{Queues: []drover.Queue{{MaxAttempts: math.MaxInt32 + 1}}, Workers: with(drover.WorkerOpts{MaxAttempts: math.MaxInt32 + 1})}, []string{"Queues[0].MaxAttempts", "Workers[0].MaxAttempts"}},
		"negative durations": {
			drover.SupervisorConfig{Queues: queues, Workers: with(drover.WorkerOpts{Timeout: -1, RetryFor: -1}), Timeout: -1, Lease: -1, PollInterval: -1, DrainTimeout: -1, CompletedRetention: -1, CancelledRetention: -1},
			[]string{"Workers[0].Timeout", "Workers[0].RetryFor", "drover: Timeout", "drover: Lease", "drover: PollInterval", "drover: DrainTimeout", "drover: CompletedRetention", "drover: CancelledRetention"},
		},
		"durations without a unit": {
			drover.SupervisorConfig{Queues: queues, Workers: with(drover.WorkerOpts{Timeout: 30, RetryFor: 24}), Timeout: 30, Lease: 30, PollInterval: 30, DrainTimeout: 30},
			[]string{"Workers[0].Timeout: 30ns is under 1ms", "Workers[0].RetryFor: 24ns is under 1ms", "drover: Timeout", "drover: Lease", "drover: PollInterval", "drover: DrainTimeout"},
		},
		"too short timeouts":   {drover.SupervisorConfig{Queues: queues, Workers: with(drover.WorkerOpts{Timeout: time.Millisecond - 1}), Timeout: time.Millisecond - 1}, []string{"Workers[0].Timeout", "drover: Timeout"}},
		"too short a lease":    {drover.SupervisorConfig{Queues: queues, Workers: []drover.Worker{ok}, Lease: time.Second - 1}, []string{"Lease"}},
		"concurrency":          {drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: -1}, {Name: "b", Concurrency: 10_001}}, Workers: []drover.Worker{ok}}, []string{"Queues[0].Concurrency", "Queues[1].Concurrency"}},
		"a queue's name":       {drover.SupervisorConfig{Queues: []drover.Queue{{Name: strings.Repeat("x", 129)}, {Name: "\xff"}}, Workers: []drover.Worker{ok}}, []string{"Queues[0].Name", "Queues[1].Name"}},
		"strategies' settings": {drover.SupervisorConfig{Queues: []drover.Queue{{Retry: drover.Linear{Step: -1}}}, Workers: with(drover.WorkerOpts{Retry: drover.Exponential{Base: -1, Multiplier: math.NaN(), Max: -1, Jitter: "up:2"}})}, []string{"Queues[0].Retry.Step", "Workers[0].Retry.Base", "Workers[0].Retry.Multiplier", "Workers[0].Retry.Max", "Workers[0].Retry.Jitter"}},
		"a strategy's pointer": {drover.SupervisorConfig{Queues: queues, Workers: with(drover.WorkerOpts{Retry: &drover.Exponential{}})}, []string{"Workers[0].Retry", "pointer"}},
		"a nil function":       {drover.SupervisorConfig{Queues: queues, Workers: with(drover.WorkerOpts{Retry: drover.Custom{}}), Strategies: []drover.Custom{{}}}, []string{"Workers[0].Retry.Func", "Strategies[0].Func"}},
		"two of one name":      {drover.SupervisorConfig{Queues: queues, Workers: with(drover.WorkerOpts{Retry: drover.Custom{Name: "n", Func: other}}), Strategies: []drover.Custom{{Name: "n", Func: wait}}}, []string{"Workers[0].Retry.Name", `"n"`}},
		"a name of nothing":    {drover.SupervisorConfig{Queues: []drover.Queue{{Retry: drover.Custom{Name: "gone"}}}, Workers: with(drover.WorkerOpts{Retry: drover.Custom{Name: "gone"}})}, []string{"Queues[0].Retry.Name", `"k"`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sup, err := db.client.NewSupervisor(c.cfg)
			if sup != nil || !errors.Is(err, drover.ErrInvalid) {
				t.Fatalf("Supervisor = %v, %v", sup, err)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in:\n%v", want, err)
				}
			}
		})
	}
	if _, err := drover.New(nil, drover.Config{MaxArgsBytes: -1, Kinds: []string{"", "ok", "\x00"}}); err == nil || strings.Count(err.Error(), "Config.Kinds") != 2 || !strings.Contains(err.Error(), "MaxArgsBytes") || !strings.Contains(err.Error(), "pool") {
		t.Errorf("New = %v", err)
	}
	// The same strategy may stand in several places.
	shared := drover.Custom{Name: "shared", Func: wait}
	if _, err := db.client.NewSupervisor(drover.SupervisorConfig{
		Queues: []drover.Queue{{Retry: shared}}, Workers: []drover.Worker{dynWorker("a", drover.WorkerOpts{Retry: shared}, doNothing), dynWorker("b", drover.WorkerOpts{Retry: shared}, doNothing)},
		Strategies: []drover.Custom{shared},
	}); err != nil {
		t.Errorf("a shared strategy: %v", err)
	}
}

// the first case that knows an error decides, over the strategies and numbers of job, worker and queue.
func TestErrorCases(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	errBusy, errGone := errors.New("busy"), errors.New("gone")
	var errOdd error = longTypeName[map[fiftyFiveBytesOfATypeNameThatIsLongForNoReasonAtAllButThis]fiftyFiveBytesOfATypeNameThatIsLongForNoReasonAtAllButThis]{strings.Repeat("x", 5000)}
	is := func(target error) func(error) bool { return func(err error) bool { return errors.Is(err, target) } }
	named := strings.Repeat("n", drover.MaxCaseName)
	opts := drover.WorkerOpts{
		MaxAttempts: 2, Retry: drover.Constant{Delay: time.Hour},
		Cases: []drover.ErrorCase{
			{Name: "panics", If: func(error) bool { panic("oh") }, Discard: true},
			{Name: "busy", If: is(errBusy), Retry: drover.Custom{Name: "slow"}, MaxAttempts: drover.Unlimited},
			{Name: "gone", If: is(errGone), Discard: true},
			{Name: "gone, too late", If: is(errGone)},
			{Name: named, If: is(errOdd), MaxAttempts: 1},
		},
		RetryIf: func(err error) bool { return errors.Is(err, errBoom) },
	}
	slow := drover.Custom{Name: "slow", Func: func(f drover.FailedRun) (time.Duration, bool) { return 2 * time.Hour, errors.Is(f.Err, errBusy) }}
	returns := map[string]error{
		"plain": errBoom, "busy": fmt.Errorf("wrapped: %w", errBusy), "gone": errGone, "odd": errOdd,
		"unknown": errors.New("unknown"), "verdict": drover.Retry(errGone), "panics": nil,
	}
	cfg := drover.SupervisorConfig{Queues: []drover.Queue{{}}, Strategies: []drover.Custom{slow}}
	for kind, err := range returns {
		cfg.Workers = append(cfg.Workers, dynWorker(kind, opts, func(context.Context, *drover.Job) error {
			if err == nil {
				panic(errGone)
			}
			return err
		}))
	}
	db.run(t, cfg)
	for _, c := range []struct {
		kind    string
		job     drover.EnqueueOpts
		attempt int // before the run
		state   drover.State
		reason  drover.Reason
		named   string
		delay   time.Duration
		most    int // MaxAttempts of the event; zero means the worker's
	}{
		{kind: "plain", state: drover.Retryable, delay: time.Hour},
		{kind: "plain", attempt: 1, state: drover.Discarded, reason: drover.ReasonAttemptsExhausted},
		{kind: "busy", state: drover.Retryable, named: "busy", delay: 2 * time.Hour, most: drover.Unlimited},
		{kind: "busy", job: drover.EnqueueOpts{Retry: drover.Constant{Delay: time.Minute}, MaxAttempts: 1}, attempt: 1_000_000, state: drover.Retryable, named: "busy", delay: 2 * time.Hour, most: drover.Unlimited},
		{kind: "busy", job: drover.EnqueueOpts{RetryUntil: time.Now().Add(time.Minute)}, state: drover.Discarded, reason: drover.ReasonTimeBudget, named: "busy", most: drover.Unlimited},
		{kind: "gone", state: drover.Discarded, reason: drover.ReasonUnrecoverable, named: "gone"},
		{kind: "odd", state: drover.Discarded, reason: drover.ReasonAttemptsExhausted, named: named, most: 1},
		{kind: "unknown", state: drover.Discarded, reason: drover.ReasonUnrecoverable}, // RetryIf's
		{kind: "verdict", state: drover.Retryable, delay: time.Hour},                   // it says so itself
		{kind: "panics", state: drover.Retryable, delay: time.Hour},                    // not the handler's error
	} {
		c.job.Delay = time.Hour
		id := db.enqueue(t, dyn{kind: c.kind}, &c.job)
		db.exec(t, `update jobs set attempt = $2, scheduled_at = clock_timestamp() where id = $1`, id, c.attempt)
		db.exec(t, `select drover_wake('default')`)
		if end := heard.End(t, id); end.MaxAttempts != cmp.Or(c.most, opts.MaxAttempts) {
			t.Errorf("%s after %d: event %s says at most %d, want %d", c.kind, c.attempt, end.Name, end.MaxAttempts, cmp.Or(c.most, opts.MaxAttempts))
		}
		row := db.EndRow(t, id)
		reason := drover.Reason("")
		if row.Reason != nil {
			reason = *row.Reason
		}
		if row.State != c.state || reason != c.reason || row.Errors[0].Case != c.named || c.delay > 0 && row.Delay.Round(time.Minute) != c.delay {
			t.Errorf("%s after %d: %s %s, case %q, in %v; want %+v", c.kind, c.attempt, row.State, reason, row.Errors[0].Case, row.Delay, c)
		}
	}
	if n := value[int](t, db, `select max(pg_column_size(e - 'trace')) from jobs, jsonb_array_elements(errors) e`); n > 1024 {
		t.Errorf("the largest entry has %d bytes without its trace, want at most 1024", n)
	}
}

// no end of attempts, but an end of time.
func TestUnlimitedAttempts(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: []drover.Worker{
		dynWorker("k", drover.WorkerOpts{MaxAttempts: drover.Unlimited, Retry: drover.Constant{Delay: time.Hour}}, func(context.Context, *drover.Job) error { return errBoom }),
	}})
	put := func(attempt int, until string) string {
		return value[string](t, db, `insert into jobs (kind, attempt, retry_until) values ('k', $1, now() + $2::interval) returning id`, attempt, until)
	}
	for id, want := range map[string]drover.Reason{
		put(2_000_000_000, "2 hours"):      "",
		put(2_000_000_000, "30 min"):       drover.ReasonTimeBudget,
		put(drover.Unlimited-1, "2 hours"): drover.ReasonAttemptsExhausted, // of what an int holds
	} {
		heard.End(t, id)
		if got := value[drover.Reason](t, db, `select coalesce(discard_reason, '') from jobs where id = $1`, id); got != want {
			t.Errorf("reason %q, want %q", got, want)
		}
	}
}

func TestErrorCasesAreValidated(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	yes := func(error) bool { return true }
	for field, c := range map[string]drover.ErrorCase{
		"Name":        {If: yes},
		"If":          {Name: "c"},
		"Discard":     {Name: "c", If: yes, Discard: true, MaxAttempts: 1},
		"Retry.Delay": {Name: "c", If: yes, Retry: drover.Constant{Delay: -1}},
		"MaxAttempts": {Name: "c", If: yes, MaxAttempts: -1},
	} {
		_, err := db.client.NewSupervisor(drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: []drover.Worker{dynWorker("k", drover.WorkerOpts{Cases: []drover.ErrorCase{c}}, doNothing)}})
		var invalid *drover.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != "Workers[0].Cases[0]."+field {
			t.Errorf("%s: %v", field, err)
		}
	}
	twice := []drover.ErrorCase{{Name: "c", If: yes}, {Name: "c", If: yes}}
	_, err := db.client.NewSupervisor(drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: []drover.Worker{dynWorker("k", drover.WorkerOpts{Cases: twice}, doNothing)}})
	var invalid *drover.InvalidError
	if !errors.As(err, &invalid) || invalid.Field != "Workers[0].Cases[1].Name" {
		t.Errorf("one name twice: %v", err)
	}
	long := drover.ErrorCase{Name: strings.Repeat("n", drover.MaxCaseName+1), If: yes}
	if _, err := db.client.NewSupervisor(drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: []drover.Worker{dynWorker("k", drover.WorkerOpts{Cases: []drover.ErrorCase{long}}, doNothing)}}); !errors.Is(err, drover.ErrInvalid) {
		t.Errorf("a long name: %v", err)
	}
}
