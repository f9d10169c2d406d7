package engine_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/harness"
)

// F-6: whose timeout a run has: the job's, the worker's, the supervisor's.
func TestWhoDecidesTheTimeout(t *testing.T) {
	t.Parallel()
	slow(t)
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	left := make(chan time.Duration, 1)
	handle := func(ctx context.Context, _ *drover.Job) error {
		deadline, ok := ctx.Deadline()
		if !ok {
			left <- 0
			return nil
		}
		left <- time.Until(deadline)
		return nil
	}
	db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, Timeout: 9 * time.Hour, Workers: []drover.Worker{
		harness.DynWorker("unset", drover.WorkerOpts{}, handle),
		harness.DynWorker("set", drover.WorkerOpts{Timeout: 7 * time.Hour}, handle),
		harness.DynWorker("none", drover.WorkerOpts{Timeout: drover.NoTimeout}, handle),
	}})
	for _, c := range []struct {
		kind string
		opts drover.EnqueueOpts
		want time.Duration // 0 is none
	}{
		{"unset", drover.EnqueueOpts{}, 9 * time.Hour},
		{"unset", drover.EnqueueOpts{Timeout: 11 * time.Hour}, 11 * time.Hour},
		{"unset", drover.EnqueueOpts{Timeout: drover.NoTimeout}, 0},
		{"set", drover.EnqueueOpts{}, 7 * time.Hour},
		{"set", drover.EnqueueOpts{Timeout: 3 * time.Hour}, 3 * time.Hour},
		{"set", drover.EnqueueOpts{Timeout: drover.NoTimeout}, 0},
		{"none", drover.EnqueueOpts{}, 0},
		{"none", drover.EnqueueOpts{Timeout: 5 * time.Hour}, 5 * time.Hour},
	} {
		heard.End(t, db.enqueue(t, dyn{kind: c.kind}, &c.opts))
		if got := <-left; got > c.want || got < c.want-time.Hour {
			t.Errorf("%s, %+v: %v left, want %v", c.kind, c.opts, got, c.want)
		}
	}
}

// F-6: a handler that ignores the end of its context loses its slot, and what it returns later.
func TestDeafHandlersFreeTheirSlots(t *testing.T) {
	t.Parallel()
	slow(t)
	for name, wait := range map[string]func(end *atomic.Bool){
		"blocks": func(end *atomic.Bool) {
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for !end.Load() {
				<-tick.C
			}
		},
		"never yields": func(end *atomic.Bool) {
			for !end.Load() {
				runtime.Gosched()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var heard harness.EventLog
			var end atomic.Bool
			db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
			returned := make(chan error, 2)
			deaf := func(ctx context.Context, job *drover.Job) error {
				defer func() { returned <- db.Complete(context.WithoutCancel(ctx), job) }()
				wait(&end)
				return nil
			}
			sup := db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 1}}, Workers: []drover.Worker{
				harness.DynWorker("deaf", drover.WorkerOpts{Timeout: 20 * time.Millisecond, Retry: drover.Constant{Delay: time.Hour}, RetryIf: func(error) bool { return false }}, deaf),
				harness.DynWorker("good", drover.WorkerOpts{}, func(context.Context, *drover.Job) error { return nil }),
			}})
			t.Cleanup(func() { end.Store(true) })
			id, last := db.enqueue(t, dyn{kind: "deaf"}, nil), db.enqueue(t, dyn{kind: "deaf"}, &drover.EnqueueOpts{MaxAttempts: 1})
			for range 5 {
				if e := heard.End(t, db.enqueue(t, dyn{kind: "good"}, nil)); e.Name != "completed" {
					t.Fatalf("next job = %+v", e)
				}
			}
			check := func() {
				t.Helper()
				row := db.EndRow(t, id)
				if row.State != drover.Retryable || row.Attempt != 1 || row.Total != 1 || row.Crashes != 1 || row.Errors[0].Class != drover.ClassTimeout || row.Delay < time.Hour-time.Minute {
					t.Errorf("row = %+v", row)
				}
				row = db.EndRow(t, last)
				if row.State != drover.Discarded || *row.Reason != drover.ReasonAttemptsExhausted || row.Crashes != 1 || row.Errors[0].Class != drover.ClassTimeout {
					t.Errorf("row of the last attempt = %+v", row)
				}
				if heard.Ends(id) != 1 || heard.Ends(last) != 1 || heard.End(t, id).Class != drover.ClassTimeout || heard.End(t, id).Duration < 20*time.Millisecond {
					t.Errorf("events = %+v, %+v", heard.Of(id), heard.Of(last))
				}
			}
			check()
			if stats := sup.Stats(); stats.Abandoned != 2 || stats.Running != 0 {
				t.Errorf("stats = %+v", stats)
			}
			end.Store(true)
			for range 2 {
				if err := <-returned; !errors.Is(err, drover.ErrLeaseLost) {
					t.Errorf("late CompleteTx = %v", err)
				}
			}
			heard.End(t, db.enqueue(t, dyn{kind: "good"}, nil))
			check()
		})
	}
}

// F-5: every runtime.Goexit takes a goroutine with it, and no slot.
func TestGoexitsLeaveAllSlots(t *testing.T) {
	t.Parallel()
	slow(t)
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	var batch []drover.EnqueueItem
	for range 100 {
		batch = append(batch, drover.EnqueueItem{Args: dyn{kind: "exits"}})
	}
	for range 200 {
		batch = append(batch, drover.EnqueueItem{Args: dyn{kind: "good"}})
	}
	receipts, err := db.client.EnqueueMany(t.Context(), batch)
	if err != nil {
		t.Fatal(err)
	}
	// The good ones need all ten slots together to get on.
	meeting, busy := make(chan struct{}), atomic.Int64{}
	sup := db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 10}}, Workers: []drover.Worker{
		harness.DynWorker("exits", drover.WorkerOpts{MaxAttempts: 1}, func(context.Context, *drover.Job) error { runtime.Goexit(); return nil }),
		harness.DynWorker("good", drover.WorkerOpts{}, func(context.Context, *drover.Job) error {
			if busy.Add(1) == 10 {
				close(meeting)
			}
			<-meeting
			return nil
		}),
	}})
	for i, r := range receipts {
		want := "completed"
		if i < 100 {
			want = "discarded"
		}
		// Not its first end: a job that has waited in the buffer for a second, until a slot was free, was released before it ran.
		if e := heard.Wait(t, r.ID, "completed", "failed", "discarded"); e.Name != want {
			t.Fatalf("job %d = %+v", i, e)
		}
	}
	eventually(t, func() bool { return sup.Stats() == drover.Stats{} })
}

// Runs that need no handler leave room for the next claim all the same.
func TestExpiredJobsLeaveRoomForOthers(t *testing.T) {
	t.Parallel()
	slow(t)
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	var batch []drover.EnqueueItem
	for range 50 {
		batch = append(batch, drover.EnqueueItem{Args: dyn{kind: "k"}, Opts: &drover.EnqueueOpts{ExpiresAt: time.Now().Add(-time.Minute)}})
	}
	receipts, err := db.client.EnqueueMany(t.Context(), append(batch, drover.EnqueueItem{Args: dyn{kind: "k"}}))
	if err != nil {
		t.Fatal(err)
	}
	db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 1}}, Workers: []drover.Worker{
		harness.DynWorker("k", drover.WorkerOpts{}, func(context.Context, *drover.Job) error { return nil }),
	}})
	if e := heard.End(t, receipts[50].ID); e.Name != "completed" {
		t.Errorf("event = %+v", e)
	}
	// Unless the claimer hears of it, it comes by only now and then.
	sup, err := db.client.NewSupervisor(drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: []drover.Worker{harness.DynWorker("k", drover.WorkerOpts{}, doNothing)}})
	if err != nil {
		t.Fatal(err)
	}
	r := &engine.Run{Shared: harness.EngineOf(sup).Shared, From: harness.EngineOf(sup).QueueStates()[0]}
	r.From.Pending.Store(r.From.Watched.Load() + 1)
	r.Finish()
	select {
	case <-harness.EngineOf(sup).Claimer.Signal:
	default:
		t.Error("the claimer did not hear of the room")
	}
}

// A retry that comes too late is not run, and the story of its failures stays.
func TestAJobExpiresBetweenTwoRuns(t *testing.T) {
	t.Parallel()
	slow(t)
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	id := db.enqueue(t, dyn{kind: "k"}, &drover.EnqueueOpts{ExpiresAt: time.Now().Add(time.Hour)})
	db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: []drover.Worker{
		harness.DynWorker("k", drover.WorkerOpts{Retry: drover.Constant{Delay: time.Millisecond}}, func(ctx context.Context, job *drover.Job) error {
			_, err := db.Exec(ctx, `update jobs set expires_at = now() where id = $1`, job.ID)
			return errors.Join(errBoom, err)
		}),
	}})
	if e := heard.Wait(t, id, "discarded"); e.Reason != drover.ReasonExpired || e.Class != "" {
		t.Errorf("event = %+v", e)
	}
	row := db.EndRow(t, id)
	if row.State != drover.Discarded || *row.Reason != drover.ReasonExpired || row.Attempt != 1 || row.Total != 1 || len(row.Errors) != 1 || heard.Count(id, "started") != 1 {
		t.Errorf("row = %+v", row)
	}
}

// F-13: no supervisor runs a job that was cancelled while it waited.
func TestCancelAWaitingJob(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	id := db.enqueue(t, dyn{kind: "k"}, nil)
	if was, err := db.client.Cancel(t.Context(), id, drover.Audit{Why: "not wanted"}); err != nil || was != drover.Available {
		t.Fatalf("Cancel = %v, %v", was, err)
	}
	db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: []drover.Worker{
		harness.DynWorker("k", drover.WorkerOpts{}, func(context.Context, *drover.Job) error { return nil }),
	}})
	heard.End(t, db.enqueue(t, dyn{kind: "k"}, nil))
	row := db.EndRow(t, id)
	if row.State != drover.Cancelled || row.ClaimSeq != 0 || row.Total != 0 || len(row.Errors) != 1 || row.Errors[0].Error != "cancelled: not wanted" {
		t.Errorf("row = %+v", row)
	}
	if events := heard.Of(id); len(events) != 2 || events[1].Name != "cancelled" || events[1].Error != "not wanted" {
		t.Errorf("events = %+v", events)
	}
}

// F-13: a running job that is cancelled has one end, whatever its handler makes of it.
func TestCancelARunningJob(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	// Another process' client, on connections of its own.
	config := db.Config()
	other, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Close)
	elsewhere, err := drover.New(other, drover.Config{Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]func(context.Context, *drover.Job) error{
		"its context's error": func(ctx context.Context, _ *drover.Job) error { return ctx.Err() },
		"its context's cause": func(ctx context.Context, _ *drover.Job) error { return context.Cause(ctx) },
		"nil":                 func(context.Context, *drover.Job) error { return nil },
		"an error":            func(context.Context, *drover.Job) error { return errBoom },
		"Discard":             func(context.Context, *drover.Job) error { return drover.Discard(errBoom) },
		"Snooze":              func(context.Context, *drover.Job) error { return drover.Snooze(0) },
		"Cancel":              func(context.Context, *drover.Job) error { return drover.Cancel(errBoom) },
		"RetryAfter":          func(context.Context, *drover.Job) error { return drover.RetryAfter(0, errBoom) },
		"a panic":             func(context.Context, *drover.Job) error { panic(errBoom) },
		"Goexit":              func(context.Context, *drover.Job) error { runtime.Goexit(); return nil },
		"CompleteTx":          func(ctx context.Context, job *drover.Job) error { return db.Complete(context.WithoutCancel(ctx), job) },
	}
	sup := db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 2 * len(cases)}}, Workers: harness.EndingCancelled(t, cases)})
	for by, client := range map[string]*drover.Client{"this process": db.client, "another process": elsewhere} {
		for name := range cases {
			t.Run(by+", "+name, func(t *testing.T) {
				id := db.enqueue(t, dyn{kind: name}, nil)
				heard.Wait(t, id, "started")
				if was, err := client.Cancel(t.Context(), id, drover.Audit{}); err != nil || was != drover.Running {
					t.Fatalf("Cancel = %v, %v", was, err)
				}
				end := heard.End(t, id)
				row := db.EndRow(t, id)
				if end.Name != "cancelled" || end.Attempt != 1 || end.Duration <= 0 {
					t.Errorf("event = %+v", end)
				}
				if row.State != drover.Cancelled || row.Total != 0 || len(row.Errors) != 1 || row.Errors[0].Class != "operator" || row.Errors[0].Error != "cancelled" {
					t.Errorf("row = %+v", row)
				}
				if heard.Ends(id) != 1 {
					t.Errorf("events = %+v", heard.Of(id))
				}
			})
		}
	}
	eventually(t, func() bool { return sup.Stats() == drover.Stats{} })
}

// The word that a run is to be cancelled may come late: when an operator has redriven the job and it runs again.
func TestACancelMeantForAnEarlierRun(t *testing.T) {
	t.Parallel()
	slow(t)
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	id := db.enqueue(t, dyn{kind: "k"}, nil)
	sup := db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: []drover.Worker{
		harness.DynWorker("k", drover.WorkerOpts{MaxAttempts: 2}, func(ctx context.Context, job *drover.Job) error {
			if runOf(job).Seq > 1 {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}),
	}})
	heard.Wait(t, id, "started")
	harness.EngineOf(sup).Keeper.Heard("cancel " + id)
	heard.Wait(t, id, "completed")
	if row := db.EndRow(t, id); row.State != drover.Completed || row.Attempt != 1 || row.ClaimSeq != 2 || len(row.Errors) != 0 {
		t.Errorf("row = %+v", row)
	}
	if heard.Count(id, "released") != 1 || heard.Ends(id) != 2 {
		t.Errorf("events = %+v", heard.Of(id))
	}
	once := db.enqueue(t, dyn{kind: "k"}, &drover.EnqueueOpts{MaxAttempts: 1})
	heard.Wait(t, once, "started")
	harness.EngineOf(sup).Keeper.Heard("cancel " + once)
	heard.Wait(t, once, "discarded")
	if row := db.EndRow(t, once); row.State != drover.Discarded || row.ClaimSeq != 1 || len(row.Errors) != 1 {
		t.Errorf("the one with a single attempt = %+v", row)
	}
}

// A stop is not the job's fault: a run that it cut short is due again immediately, with its attempt. Only a job with a single
// attempt must not run again: it is discarded, and an entry says why.
func TestHowARunEndsInAStop(t *testing.T) {
	t.Parallel()
	slow(t)
	for _, attempts := range []int{1, 2} {
		t.Run(fmt.Sprint(attempts), func(t *testing.T) {
			t.Parallel()
			testHowARunEndsInAStop(t, attempts)
		})
	}
}

func testHowARunEndsInAStop(t *testing.T, attempts int) {
	t.Helper()
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	released := harness.EndRow{State: drover.Available}
	if attempts == 1 {
		released = harness.EndRow{State: drover.Discarded, Attempt: 1, Total: 1}
	}
	deaf := make(chan struct{})
	cases := map[string]struct {
		end  func(ctx context.Context) error
		want harness.EndRow
	}{
		"its context's error":      {func(ctx context.Context) error { return ctx.Err() }, released},
		"its context's cause":      {context.Cause, released},
		"an error":                 {func(context.Context) error { return errBoom }, released},
		"a panic":                  {func(context.Context) error { panic("oh") }, released},
		"RetryAfter":               {func(context.Context) error { return drover.RetryAfter(time.Hour, errBoom) }, released},
		"Discard of its context's": {func(ctx context.Context) error { return drover.Discard(fmt.Errorf("x: %w", ctx.Err())) }, released},
		"Discard":                  {func(context.Context) error { return fmt.Errorf("x: %w", drover.Discard(errBoom)) }, harness.EndRow{State: drover.Discarded, Attempt: 1, Total: 1}},
		"nil":                      {func(context.Context) error { return nil }, harness.EndRow{State: drover.Completed, Attempt: 1}},
		"Snooze":                   {func(context.Context) error { return drover.Snooze(time.Hour) }, harness.EndRow{State: drover.Scheduled}},
		"Cancel":                   {func(context.Context) error { return drover.Cancel(errBoom) }, harness.EndRow{State: drover.Cancelled, Attempt: 1}},
		"nothing, it works on":     {func(context.Context) error { <-deaf; return nil }, released},
	}
	t.Cleanup(func() { close(deaf) })
	cfg := drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: len(cases)}}, DrainTimeout: 20 * time.Millisecond}
	ids := map[string]string{}
	for name, c := range cases {
		ids[name] = db.enqueue(t, dyn{kind: name}, nil)
		cfg.Workers = append(cfg.Workers, harness.DynWorker(name, drover.WorkerOpts{MaxAttempts: attempts, RetryIf: func(error) bool { return false }}, func(ctx context.Context, _ *drover.Job) error {
			<-ctx.Done()
			if cause := context.Cause(ctx); !errors.Is(cause, drover.ErrShutdown) {
				t.Errorf("%s: cause = %v", name, cause)
			}
			return c.end(ctx)
		}))
	}
	_, stop := db.Start(t, cfg)
	for name := range cases {
		heard.Wait(t, ids[name], "started")
	}
	stop()
	for name, c := range cases {
		row := db.EndRow(t, ids[name])
		if row.State != c.want.State || row.Attempt != c.want.Attempt || row.Total != c.want.Total || row.ClaimSeq != 1 {
			t.Errorf("%s: row = %+v", name, row)
		}
		if row.State == drover.Discarded && name != "Discard" {
			text := row.Errors[0].Error
			if !strings.Contains(text, "the only attempt was cut short ("+drover.ErrShutdown.Error()+")") {
				t.Errorf("%s: the entry says %q", name, text)
			}
			if want := drover.ReasonAttemptsExhausted; *row.Reason != want && !strings.HasPrefix(name, "Discard") {
				t.Errorf("%s: discarded, %s", name, *row.Reason)
			}
		}
		if n := heard.Ends(ids[name]); n != 1 || c.want.State == drover.Available != (heard.Count(ids[name], "released") == 1) {
			t.Errorf("%s: events = %+v", name, heard.Of(ids[name]))
		}
	}
}

// timeOut takes the slot of a handler as if it had ignored its timeout. That is what watch does, at a moment of the test's.
func timeOut(t *testing.T, s *drover.Supervisor, id string) {
	t.Helper()
	runs := harness.EngineOf(s).InFlight.OfJob(id)
	if len(runs) != 1 || !runs[0].EndOnce() {
		t.Fatalf("%d runs of the job are at work", len(runs))
	}
	harness.EngineOf(s).Runner.Abandoned.Add(1)
	harness.EngineOf(s).Settler.Settle(deaf(runs[0]))
	harness.EngineOf(s).Runner.FillSlot(runs[0].From)
}

// F-9: where a handler that was given up commits in the end, the row decides which events there are.
func TestADeafHandlerCommitsInTheEnd(t *testing.T) {
	t.Parallel()
	slow(t)
	for name, c := range map[string]struct {
		retention drover.Retention
		settle    error
		commit    bool
		want      drover.State // "" is no row
		event     string
	}{
		"completes":             {settle: nil, commit: true, want: drover.Completed, event: "completed"},
		"completes and deletes": {settle: nil, commit: true, retention: drover.DeleteOnCompletion, event: "completed"},
		"discards":              {settle: drover.Discard(errBoom), commit: true, want: drover.Discarded, event: "discarded"},
		"fails":                 {settle: drover.RetryAfter(time.Hour, errBoom), commit: true, want: drover.Retryable, event: "failed"},
		"snoozes":               {settle: drover.Snooze(time.Hour), commit: true, want: drover.Scheduled, event: "snoozed"},
		"rolls back":            {settle: nil, want: drover.Retryable, event: "failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var heard harness.EventLog
			db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
			release, settled, committed := make(chan struct{}), make(chan struct{}), make(chan error, 1)
			sup := db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, CompletedRetention: c.retention, Workers: []drover.Worker{
				harness.DynWorker("deaf", drover.WorkerOpts{Timeout: time.Hour, Retry: drover.Constant{Delay: time.Hour}}, func(ctx context.Context, job *drover.Job) (err error) {
					defer func() { committed <- err }()
					ctx = context.WithoutCancel(ctx)
					tx, err := db.Begin(ctx)
					if err != nil {
						return err
					}
					defer tx.Rollback(ctx)
					err = job.SettleTx(ctx, tx, c.settle)
					close(settled)
					<-release
					if err == nil && c.commit {
						err = tx.Commit(ctx)
					}
					return err
				}),
				harness.DynWorker("good", drover.WorkerOpts{}, func(context.Context, *drover.Job) error { return nil }),
			}})
			id := db.enqueue(t, dyn{kind: "deaf"}, nil)
			receive(t, settled)
			timeOut(t, sup, id)
			// Its outcome is tried, and found locked, while others pass.
			for range 3 {
				heard.End(t, db.enqueue(t, dyn{kind: "good"}, nil))
			}
			if n := heard.Ends(id); n != 0 {
				t.Errorf("told before it ended: %+v", heard.Of(id))
			}
			close(release)
			if err := <-committed; err != nil {
				t.Fatal(err)
			}
			if e := heard.End(t, id); e.Name != c.event {
				t.Errorf("event = %+v", e)
			}
			if c.want == "" {
				if n := value[int](t, db, `select count(*) from jobs where id = $1`, id); n != 0 {
					t.Error("the row is still there")
				}
			} else if row := db.EndRow(t, id); row.State != c.want {
				t.Errorf("row = %+v", row)
			}
			heard.End(t, db.enqueue(t, dyn{kind: "good"}, nil))
			if n := heard.Ends(id); n != 1 {
				t.Errorf("events = %+v", heard.Of(id))
			}
		})
	}
}

// A completion that was rolled back and then overtaken by an operator's cancel did not take place.
func TestCancelAfterARolledBackCompletion(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	id := db.enqueue(t, dyn{kind: "k"}, nil)
	db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: []drover.Worker{
		harness.DynWorker("k", drover.WorkerOpts{}, func(ctx context.Context, job *drover.Job) error {
			tx, err := db.Begin(ctx)
			if err != nil {
				return err
			}
			err = errors.Join(job.CompleteTx(ctx, tx), tx.Rollback(ctx))
			_, cancelled := db.client.Cancel(ctx, job.ID, drover.Audit{})
			return errors.Join(err, cancelled)
		}),
	}})
	if e := heard.End(t, id); e.Name != "cancelled" {
		t.Errorf("event = %+v", e)
	}
	if row := db.EndRow(t, id); row.State != drover.Cancelled {
		t.Errorf("row = %+v", row)
	}
}

// F-8: where completed jobs are deleted, a row that is gone is not taken for one's own completion.
func TestARowThatSomeoneElseCompleted(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	id := db.enqueue(t, dyn{kind: "k"}, nil)
	db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, CompletedRetention: drover.DeleteOnCompletion, Workers: []drover.Worker{
		harness.DynWorker("k", drover.WorkerOpts{}, func(ctx context.Context, job *drover.Job) error {
			runOf(job).Lease.Lose() // others rescue the job, complete it and, as here, delete it
			_, err := db.Exec(context.WithoutCancel(ctx), `delete from jobs where id = $1`, job.ID)
			return err
		}),
	}})
	if e := heard.End(t, id); e.Name != "stale_settle" {
		t.Errorf("event = %+v", e)
	}
}

// F-8: one stale run among many that are settled together makes none of the others stale.
func TestAStaleRunAmongMany(t *testing.T) {
	t.Parallel()
	for name, retention := range map[string]drover.Retention{"kept": 0, "deleted": drover.DeleteOnCompletion} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var heard harness.EventLog
			db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
			db.Alive(t, "x")
			const n = 50
			receipts, err := db.client.EnqueueMany(t.Context(), slices.Repeat([]drover.EnqueueItem{{Args: dyn{kind: "k"}}}, n))
			if err != nil {
				t.Fatal(err)
			}
			stale := receipts[17].ID
			all, running := make(chan struct{}), atomic.Int64{}
			db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: n}}, CompletedRetention: retention, Workers: []drover.Worker{
				harness.DynWorker("k", drover.WorkerOpts{}, func(ctx context.Context, job *drover.Job) (err error) {
					if job.ID == stale {
						_, err = db.Exec(ctx, `update jobs set claim_seq = claim_seq + 1, claimed_by = 'x' where id = $1`, job.ID)
					}
					if running.Add(1) == n {
						close(all)
					}
					<-all
					return err
				}),
			}})
			for _, r := range receipts {
				want := "completed"
				if r.ID == stale {
					want = "stale_settle"
				}
				if e := heard.End(t, r.ID); e.Name != want {
					t.Errorf("event = %+v, want %s", e, want)
				}
			}
		})
	}
}

// F-6: when a handler is taken for deaf. One that is only slow to notice must not be.
func TestWhenAHandlerIsDeaf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ timeout, deaf time.Duration }{
		{time.Millisecond, time.Second + time.Millisecond},
		{time.Second, 2 * time.Second},
		{3 * time.Second, 6 * time.Second},
		{time.Hour, time.Hour + 5*time.Second},
	} {
		r := &engine.Run{Timeout: c.timeout, StartedAt: time.Unix(1e9, 0)}
		if r.Deaf(r.StartedAt.Add(c.deaf)) || !r.Deaf(r.StartedAt.Add(c.deaf+1)) {
			t.Errorf("timeout %v: not deaf after %v exactly", c.timeout, c.deaf)
		}
	}
	r := &engine.Run{StartedAt: time.Unix(1e9, 0)}
	if r.Deaf(r.StartedAt.Add(maxTimeout)) {
		t.Error("deaf without a timeout")
	}
}

// F-13: a job that is cancelled while it waits for a slot does not start.
func TestCancelOfABufferedJob(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	release := make(chan struct{})
	db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 1}}, Workers: []drover.Worker{
		harness.DynWorker("fast", drover.WorkerOpts{}, doNothing),
		harness.DynWorker("block", drover.WorkerOpts{}, func(context.Context, *drover.Job) error { <-release; return nil }),
		harness.DynWorker("victim", drover.WorkerOpts{}, doNothing),
	}})
	for range 5 { // so that jobs are claimed ahead
		heard.End(t, db.enqueue(t, dyn{kind: "fast"}, nil))
	}
	receipts, err := db.client.EnqueueMany(t.Context(), []drover.EnqueueItem{{Args: dyn{kind: "block"}}, {Args: dyn{kind: "victim"}}})
	if err != nil {
		t.Fatal(err)
	}
	blocking, victim := receipts[0].ID, receipts[1].ID
	heard.Wait(t, blocking, "started")
	if _, err := db.client.Cancel(t.Context(), victim, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	close(release)
	heard.End(t, blocking)
	heard.End(t, db.enqueue(t, dyn{kind: "fast"}, nil)) // behind the victim
	if heard.Count(victim, "started") > 0 {
		t.Error("a cancelled job was started")
	}
	if state := value[string](t, db, `select state from jobs where id = $1`, victim); state != "cancelled" {
		t.Errorf("state = %s", state)
	}
}

// F-6, P-5: a deaf handler is given up although its job was cancelled, redriven and run again meanwhile.
func TestADeafHandlerBesideTheNextRun(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newTestDBWith(t, drover.Config{Logger: quiet()})
	release, started := make(chan struct{}), make(chan struct{})
	defer close(release)
	var runs atomic.Int32
	sup := db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 2}}, DrainTimeout: 100 * time.Millisecond, Workers: []drover.Worker{
		harness.DynWorker("deaf", drover.WorkerOpts{Timeout: 300 * time.Millisecond}, func(context.Context, *drover.Job) error {
			if runs.Add(1) == 1 {
				close(started)
				<-release
			}
			return nil
		}),
	}})
	id := db.enqueue(t, dyn{kind: "deaf"}, nil)
	<-started
	if _, err := db.client.Cancel(t.Context(), id, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	if err := db.client.RedriveJob(t.Context(), id, nil, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return value[string](t, db, `select state from jobs where id = $1`, id) == "completed" })
	eventually(t, func() bool { return sup.Stats().Abandoned == 1 })
}

// F-13: a cancel from elsewhere is heard of without LISTEN too, by the heartbeat.
func TestCancelIsHeardOfWithoutListen(t *testing.T) {
	t.Parallel()
	db := newTestDBWith(t, drover.Config{Logger: quiet()})
	elsewhere, err := drover.New(db.Pool, drover.Config{Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	started, cause := make(chan struct{}), make(chan error, 1)
	// A lease that ended before the heartbeat heard of it would end the run, too.
	sup := db.run(t, drover.SupervisorConfig{DisableNotify: true, Lease: time.Hour, Queues: []drover.Queue{{}}, Workers: []drover.Worker{
		harness.DynWorker("long", drover.WorkerOpts{}, func(ctx context.Context, _ *drover.Job) error {
			close(started)
			<-ctx.Done()
			cause <- context.Cause(ctx)
			return ctx.Err()
		}),
	}})
	id := db.enqueue(t, dyn{kind: "long"}, nil)
	<-started
	if _, err := elsewhere.Cancel(t.Context(), id, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	harness.EngineOf(sup).Keeper.Interrupt() // the next beat comes immediately
	if err := receive(t, cause); !errors.Is(err, drover.ErrCancelled) {
		t.Errorf("cause = %v, want ErrCancelled", err)
	}
}

// A handler's context is made when it is first looked at, and is then what it would have been from the start.
func TestContextThatIsMadeLate(t *testing.T) {
	t.Parallel()
	type key struct{}
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		timeout time.Duration
		happens func(r *engine.Run, lose context.CancelCauseFunc)
		err     error // nil: it has not ended
		cause   error
	}{
		"nothing has happened":  {happens: func(*engine.Run, context.CancelCauseFunc) {}, timeout: time.Hour},
		"without a timeout":     {happens: func(*engine.Run, context.CancelCauseFunc) {}},
		"the timeout is over":   {happens: func(*engine.Run, context.CancelCauseFunc) {}, timeout: time.Nanosecond, err: context.DeadlineExceeded, cause: engine.ErrTimeout},
		"cancelled":             {happens: func(r *engine.Run, _ context.CancelCauseFunc) { r.Cancel(drover.ErrCancelled) }, timeout: time.Hour, err: context.Canceled, cause: drover.ErrCancelled},
		"cancelled twice":       {happens: func(r *engine.Run, _ context.CancelCauseFunc) { r.Cancel(drover.ErrCancelled); r.Cancel(boom) }, err: context.Canceled, cause: drover.ErrCancelled},
		"the handler was done":  {happens: func(r *engine.Run, _ context.CancelCauseFunc) { r.Cancel(nil) }, timeout: time.Hour, err: context.Canceled, cause: context.Canceled},
		"the lease was lost":    {happens: func(_ *engine.Run, lose context.CancelCauseFunc) { lose(drover.ErrLeaseLost) }, timeout: time.Hour, err: context.Canceled, cause: drover.ErrLeaseLost},
		"done, then lease lost": {happens: func(r *engine.Run, lose context.CancelCauseFunc) { r.Cancel(nil); lose(drover.ErrLeaseLost) }, err: context.Canceled},
	} {
		for _, late := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, looked at afterwards: %v", name, late), func(t *testing.T) {
				t.Parallel()
				lease, lose := context.WithCancelCause(context.WithValue(t.Context(), key{}, "value"))
				defer lose(nil)
				r := &engine.Run{}
				r.Lazy.Parent = lease
				if c.timeout > 0 {
					r.Lazy.Until = time.Now().Add(c.timeout)
				}
				r.Ctx = &r.Lazy
				if !late {
					_ = r.Ctx.Done()
				}
				c.happens(r, lose)
				child, stop := context.WithCancel(r.Ctx)
				defer stop()
				for _, ctx := range []context.Context{r.Ctx, child} {
					if c.err != nil {
						receive(t, ctx.Done())
					}
					if err := ctx.Err(); !errors.Is(err, c.err) {
						t.Errorf("Err = %v, want %v", err, c.err)
					}
					if cause := context.Cause(ctx); c.cause != nil && !errors.Is(cause, c.cause) {
						t.Errorf("Cause = %v, want %v", cause, c.cause)
					}
					if at, ok := ctx.Deadline(); ok != (c.timeout > 0) || ok && !at.Equal(r.Lazy.Until) {
						t.Errorf("Deadline = %v, %v", at, ok)
					}
					if v := ctx.Value(key{}); v != "value" {
						t.Errorf("Value = %v", v)
					}
				}
			})
		}
	}
}
