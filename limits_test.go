package drover

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// once Pause has returned no job of the scope starts in any process, however often it is paused and resumed.
func TestNothingStartsWhilePaused(t *testing.T) {
	t.Parallel()
	slow(t)
	pauses := sizeOf(t, "DROVER_PAUSES", 100)
	db := newQuietDB(t)
	var pausedAt atomic.Pointer[time.Time]
	var ran, begun, late atomic.Int64
	for range 3 {
		db.via(t, Config{}).launch(t, SupervisorConfig{Queues: []Queue{{Concurrency: 10}}, CompletedRetention: DeleteOnCompletion, Workers: handling(func(_ context.Context, job *Job, _ int) error {
			if at := pausedAt.Load(); at != nil {
				begun.Add(1)
				if job.run.startedAt.After(*at) {
					late.Add(1)
				}
			}
			ran.Add(1)
			return nil
		})})
	}
	var enough atomic.Bool
	var feeding sync.WaitGroup
	defer feeding.Wait()
	defer enough.Store(true)
	feeder := db.via(t, Config{})
	feeding.Go(func() {
		for !enough.Load() {
			if n := value[int](t, db, `select count(*) from jobs where state <> 'running'`); n < 2000 {
				feeder.enqueueJobs(t, 2000, nil)
			}
		}
	})
	scopes := []string{"queue:default", "kind:job", "all"}
	for i := range pauses {
		scope := scopes[i%len(scopes)]
		before := ran.Load()
		eventually(t, func() bool { return ran.Load() > before })
		if err := db.client.Pause(t.Context(), scope, time.Time{}, By{}); err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		pausedAt.Store(&now)
		after(t, 5*time.Millisecond)
		pausedAt.Store(nil)
		if err := db.client.Resume(t.Context(), scope, By{}); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d jobs, %d pauses; %d handlers were just being called when one returned", ran.Load(), pauses, begun.Load())
	if n := late.Load(); n > 0 {
		t.Errorf("%d jobs started after a pause", n)
	}
	if !value[bool](t, db, `select coalesce(max(attempt), 0) <= 1 and coalesce(sum(errors_total), 0) = 0 from jobs`) {
		t.Error("a pause has cost attempts")
	}
}

// Whoever holds a scope knows afterwards that nothing of it starts.
func TestNoStartOfWhatIsHeld(t *testing.T) {
	t.Parallel()
	var set runSet
	var held atomic.Pointer[holds]
	lease := newLease(t.Context(), "me", time.Now().Add(time.Hour))
	for _, c := range []struct {
		row         string
		queue, kind string
		starts      bool
	}{
		{"all", "a", "x", false},
		{"queue:a", "a", "x", false},
		{"kind:x", "a", "x", false},
		{"queue:b", "a", "x", true},
		{"kind:y", "a", "x", true},
		{"queue:x", "a", "x", true},
		{"kind:a", "a", "x", true},
		{"kind:a:x", "a", "a:x", false},
	} {
		set.hold(&held, newHolds([]heldScope{{scope: c.row, left: new(float64)}, {scope: "all"}}, []string{"x"}))
		r := &run{job: &Job{Kind: c.kind}, queue: &queueState{Queue: Queue{Name: c.queue}}, lease: lease}
		if set.start(r, &held, time.Now) != c.starts || set.has(r) != c.starts {
			t.Errorf("%s: a job of queue %s and kind %s starts: %t", c.row, c.queue, c.kind, !c.starts)
		}
	}
	r := &run{job: &Job{Kind: "x"}, queue: &queueState{}, lease: newLease(t.Context(), "me", time.Now())}
	if set.start(r, &held, time.Now) {
		t.Error("a job starts when its lease is over")
	}
	r.lease = newLease(t.Context(), "me", time.Now().Add(time.Hour))
	r.lease.cancel(ErrShutdown)
	if set.start(r, &held, time.Now) {
		t.Error("a job starts after a stop has cancelled what runs")
	}
	if newHolds([]heldScope{{scope: "all"}}, nil) != nil {
		t.Error("what was resumed is held")
	}
}

// A pause holds its scope and nothing else. Running jobs go on, and what came meanwhile starts after it.
func TestPauses(t *testing.T) {
	t.Parallel()
	for scope, held := range map[string]func(queue, kind string) bool{
		"all":           func(string, string) bool { return true },
		"queue:a":       func(queue, _ string) bool { return queue == "a" },
		"kind:x":        func(_, kind string) bool { return kind == "x" },
		"queue:nobody:": func(string, string) bool { return false },
	} {
		t.Run(scope, func(t *testing.T) {
			t.Parallel()
			var heard eventLog
			db := newTestDBWith(t, Config{Logger: quiet(), Hooks: []Hooks{heard.hooks()}})
			goOn := make(chan struct{})
			var mu sync.Mutex
			started := map[string]int{}
			handle := func(_ context.Context, job *Job) error {
				mu.Lock()
				started[job.ID]++
				mu.Unlock()
				if job.Priority == 1 {
					<-goOn
				}
				return nil
			}
			running := func(id string) bool {
				mu.Lock()
				defer mu.Unlock()
				return started[id] == 1
			}
			db.launch(t, SupervisorConfig{PollInterval: time.Hour, Queues: []Queue{{Name: "a"}, {Name: "b"}}, Workers: []Worker{dynWorker("x", WorkerOpts{}, handle), dynWorker("y", WorkerOpts{}, handle)}})
			long := db.enqueue(t, dyn{kind: "x"}, &EnqueueOpts{Queue: "a", Priority: 1})
			eventually(t, func() bool { return running(long) })

			if err := db.client.Pause(t.Context(), scope, time.Time{}, By{Who: "ada", Why: "maintenance"}); err != nil {
				t.Fatal(err)
			}
			limits, err := db.client.Limits(t.Context())
			if err != nil || len(limits) != 1 || limits[0].Scope != scope || !limits[0].InEffect || limits[0].By != "ada" || limits[0].Why != "maintenance" || limits[0].HeldUntil != nil {
				t.Errorf("Limits = %+v, %v", limits, err)
			}
			var ids, waiting []string
			for _, queue := range []string{"a", "b"} {
				for _, kind := range []string{"x", "y"} {
					id := db.enqueue(t, dyn{kind: kind}, &EnqueueOpts{Queue: queue})
					ids = append(ids, id)
					if held(queue, kind) {
						waiting = append(waiting, id)
					} else {
						eventually(t, func() bool { return running(id) })
					}
				}
			}
			close(goOn)
			db.waitFor(t, 20*time.Second, `select state = 'completed' from jobs where id = $1`, long)
			after(t, 300*time.Millisecond)
			if slices.ContainsFunc(waiting, running) {
				t.Error("a job of the scope has started")
			}
			if n := value[int](t, db, `select waiting from job_limits`); n != len(waiting) {
				t.Errorf("the view says that %d jobs wait, not %d", n, len(waiting))
			}

			if err := db.client.Resume(t.Context(), scope, By{Who: "ada"}); err != nil {
				t.Fatal(err)
			}
			for _, id := range ids {
				eventually(t, func() bool { return running(id) })
			}
			if limits, err := db.client.Limits(t.Context()); err != nil || len(limits) > 0 {
				t.Errorf("Limits = %+v, %v", limits, err)
			}
			named := func(name string) []loggedEvent {
				return slices.DeleteFunc(heard.of(""), func(e loggedEvent) bool { return e.name != name })
			}
			eventually(t, func() bool { return len(named("resumed")) == 1 })
			if got := named("paused"); len(got) != 1 || got[0].By != "ada" || got[0].Why != "maintenance" || got[0].Supervisor == "" {
				t.Errorf("paused: %+v", got)
			}
		})
	}
}

// A pause with a time ends by itself, also for supervisors that nobody notifies.
func TestAPauseEnds(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	ran := make(chan struct{}, 1)
	db.launch(t, SupervisorConfig{PollInterval: time.Hour, Workers: handling(func(context.Context, *Job, int) error {
		ran <- struct{}{}
		return nil
	})})
	if err := db.client.Pause(t.Context(), "queue:default", time.Now().Add(time.Hour), By{}); err != nil {
		t.Fatal(err)
	}
	var until time.Time
	eventually(t, func() bool { // it is refused if that time has passed by then
		until = time.Now().Add(2 * time.Second)
		err := db.client.Pause(t.Context(), "queue:default", until, By{}) // replaces the other
		if err != nil && !errors.Is(err, ErrInvalid) {
			t.Fatal(err)
		}
		return err == nil
	})
	db.enqueue(t, job{}, nil)
	receive(t, ran)
	if early := time.Until(until); early > 0 {
		t.Errorf("it started %v too early", early)
	}
}

// Who does not hear notifications follows with its heartbeat, and one that starts meanwhile before its first claim.
func TestPausesThatAreNotHeard(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	var ran atomic.Int64
	cfg := SupervisorConfig{Lease: 3 * time.Second, PollInterval: 20 * time.Millisecond, DisableNotify: true, Workers: handling(func(context.Context, *Job, int) error {
		ran.Add(1)
		return nil
	})}
	db.via(t, Config{}).launch(t, cfg)
	db.exec(t, `set drover.notify = off; select drover_pause('queue:default')`)
	db.waitFor(t, 20*time.Second, `select in_effect from job_limits`)
	db.enqueue(t, job{}, nil)
	db.via(t, Config{}).launch(t, cfg)
	db.waitFor(t, 20*time.Second, `select count(*) = 2 from drover_supervisors`)
	db.waitFor(t, 20*time.Second, `select min(beat) >= 2 from drover_supervisors`)
	if ran.Load() > 0 {
		t.Error("it started")
	}
	// By hand, and unheard again.
	db.exec(t, `delete from drover_limits`)
	eventually(t, func() bool { return ran.Load() == 1 })
}

// A supervisor that does not answer is waited for until its lease is over. Then its process starts nothing any more.
func TestPauseWaitsForTheSilent(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	silent := db.stopped(t, SupervisorConfig{Lease: 2 * time.Second})
	if err := db.client.Pause(t.Context(), "all", time.Time{}, By{}); err != nil {
		t.Fatal(err)
	}
	if l := silent.lease.Load(); time.Now().Before(l.until()) {
		t.Error("Pause returned while the lease was kept")
	}
}

// Nor does Pause return before that.
func TestPauseDoesNotReturnBeforeTheLeaseIsOver(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	silent := db.stopped(t, SupervisorConfig{Lease: time.Hour})
	db.enqueue(t, job{}, nil)
	if runs := silent.claim(t); len(runs) != 1 {
		t.Fatalf("%d jobs were claimed", len(runs))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	paused := make(chan error, 1)
	go func() { paused <- db.client.Pause(ctx, "all", time.Time{}, By{}) }()
	db.waitFor(t, 30*time.Second, `select count(*) = 1 from job_limits`)
	if value[bool](t, db, `select in_effect from job_limits`) {
		t.Error("the view says that the pause is in effect")
	}
	after(t, 200*time.Millisecond)
	cancel()
	if err := receive(t, paused); !errors.Is(err, context.Canceled) {
		t.Errorf("Pause = %v although a supervisor has a job that it may start", err)
	}
}

// A process that is frozen between claim and start gives the job up when it wakes.
func TestAFrozenProcessStartsNothingThatIsPaused(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	frozen := db.spawn(t, processSpec{Concurrency: 20, Lease: time.Second, Poll: 50 * time.Millisecond})
	for round := range 4 {
		db.enqueueErrands(t, 2000, "")
		before := frozen.said("started")
		eventually(t, func() bool { return frozen.said("started") > before+100 })
		frozen.signal(t, syscall.SIGSTOP)
		if err := db.client.Pause(t.Context(), "all", time.Time{}, By{}); err != nil {
			t.Fatal(err)
		}
		before = frozen.said("started")
		frozen.signal(t, syscall.SIGCONT)
		db.waitFor(t, 30*time.Second, `select count(*) > 0 from drover_supervisors where lost_at is null and beat > 0`)
		db.waitFor(t, 30*time.Second, `select count(*) = 0 from jobs where state = 'running'`)
		// One that was just being called may still print that it started.
		if n := frozen.said("started") - before; n > 20 {
			t.Errorf("round %d: %d jobs started after the pause", round, n)
		}
		if err := db.client.Resume(t.Context(), "all", By{}); err != nil {
			t.Fatal(err)
		}
	}
}

// The same without chance: a start compares the clock with the end of the lease, before control has told anybody of it.
func TestNoStartAfterTheLease(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, SupervisorConfig{})
	db.enqueueJobs(t, 2, nil)
	runs := s.claim(t)
	for i, starts := range []bool{true, false} {
		r := runs[i]
		now := time.Now()
		if !starts {
			s.lease.Load().keep(now)
		}
		if s.inFlight.start(r, &s.holds, func() time.Time { return now }) != starts {
			t.Errorf("starts = %v with the lease's end at %v and the start at %v", !starts, s.lease.Load().until(), now)
		}
	}
}

// A paused queue stands in nobody's way.
func TestPausedJobsStandInNobodysWay(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `alter table jobs set (autovacuum_enabled = off)`) // else the two claims may have different plans
	n := sizeOf(t, "DROVER_CLAIM_ROWS", 20_000)
	db.exec(t, `insert into jobs (id, kind, queue) select 'p' || lpad(n::text, 25, '0'), 'other', 'paused' from generate_series(1, $1) n`, n)
	idle := func(context.Context, *Job) error { return nil }
	other := db.stopped(t, SupervisorConfig{Queues: []Queue{{Name: "clean"}, {Name: "paused"}}, Workers: []Worker{dynWorker("other", WorkerOpts{}, idle), dynWorker("job", WorkerOpts{}, idle)}})
	clean := db.stopped(t, SupervisorConfig{Queues: []Queue{{Name: "clean"}}})
	if _, err := db.client.store.pause(t.Context(), "queue:paused", nil, By{}); err != nil {
		t.Fatal(err)
	}
	other.limits(t)
	if got := other.claim(t); len(got) > 0 {
		t.Fatalf("%d jobs of a paused queue were claimed", len(got))
	}
	clean.claim(t)
	p := db.planner(t)
	cost, bare := p.claimCost(t, other, true), p.claimCost(t, clean, true)
	t.Logf("%d buffers beside a paused queue of %d jobs, %d without it", cost, n, bare)
	if float64(cost) > 1.1*float64(bare) {
		t.Errorf("%d buffers for a claim beside a paused queue, more than 1.1 × %d", cost, bare)
	}
}

// A supervisor whose database was away goes on under the same id only once it follows the limits: whoever paused did not
// wait for it beyond its lease.
func TestALeaseThatIsRenewedFollowsFirst(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, SupervisorConfig{})
	db.enqueue(t, job{}, nil)
	if _, err := db.client.store.pause(t.Context(), "all", nil, By{}); err != nil {
		t.Fatal(err)
	}
	s.lease.Load().lose()
	follows := make(chan bool)
	go func() { // ends with the beat below
		for s.lease.Load().ended.Load() && t.Context().Err() == nil {
			runtime.Gosched()
		}
		follows <- s.holds.Load().job("default", "job")
	}()
	s.beat(t)
	if !receive(t, follows) {
		t.Error("it has a lease again before it follows")
	}
}

// While the database is away, a pause whose time is over does not make control ask without a pause of its own.
func TestLimitsAreNotAskedForInALoop(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, SupervisorConfig{})
	s.control.link.close(t.Context())
	now := s.now()
	s.control.asked, s.control.limits.next = now, now.Add(-time.Second)
	s.control.hearLimits(t.Context())
	if at := s.control.askAt(now.Add(time.Hour)); !at.After(now) {
		t.Errorf("it asks again %v ago", now.Sub(at))
	}
}

// Limits that somebody writes by hand are followed, or refused; they stop nothing else.
func TestLimitsByHand(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	for _, bad := range []string{
		`'nonsense', now(), 'infinity'`, `'queue:', now(), 'infinity'`, `'kind', now(), 'infinity'`, `'key:a/b', now(), 'infinity'`, `'queue:a', null, 'infinity'`,
		`'queue:a', now(), null`, `'queue:a', 'infinity', 'infinity'`, `'queue:a', now(), '-infinity'`, `'queue:' || repeat('a', 129), now(), 'infinity'`,
	} {
		if _, err := db.Exec(t.Context(), `insert into drover_limits (scope, held_at, held_until) values (`+bad+`)`); sqlState(err) != "23514" {
			t.Errorf("%s: %v", bad, err)
		}
	}
	ran := make(chan struct{}, 1)
	db.launch(t, SupervisorConfig{PollInterval: time.Hour, Workers: handling(func(context.Context, *Job, int) error {
		ran <- struct{}{}
		return nil
	})})
	db.exec(t, `insert into drover_limits (scope, held_at, held_until) values ('all', '0044-03-15 BC', 'infinity')`)
	db.waitFor(t, 20*time.Second, `select in_effect from job_limits`)
	if limits, err := db.client.Limits(t.Context()); err != nil || len(limits) != 1 {
		t.Errorf("Limits = %+v, %v", limits, err)
	}
	db.enqueue(t, job{}, nil)
	after(t, 100*time.Millisecond)
	select {
	case <-ran:
		t.Fatal("it started")
	default:
	}
	db.exec(t, `truncate drover_limits`)
	receive(t, ran)
}

// Two pauses that commit in the other order than they began are both followed.
func TestPausesAtOnce(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.launch(t, SupervisorConfig{Queues: []Queue{{Name: "a"}, {Name: "b"}}})
	first, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer first.Rollback(t.Context())
	if _, err := first.Exec(t.Context(), `select drover_pause('queue:a')`); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- db.client.Pause(t.Context(), "queue:b", time.Time{}, By{}) }()
	select {
	case err := <-done:
		t.Fatalf("the second change has a number and is committed before the first: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	if err := first.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, done); err != nil {
		t.Fatal(err)
	}
	if !value[bool](t, db, `select count(*) = 2 and bool_and(in_effect) from job_limits`) {
		t.Error("not both are in effect")
	}
}

func TestPauseRefusesWhatCannotBePaused(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	for _, scope := range []string{"", "queue", "queue:", "emails", "key:a/b", "QUEUE:a", "kind:" + string(make([]byte, 129))} {
		var invalid *InvalidError
		if err := db.client.Pause(t.Context(), scope, time.Time{}, By{}); !errors.As(err, &invalid) || invalid.Field != "scope" {
			t.Errorf("Pause(%q) = %v", scope, err)
		}
		if err := db.client.Resume(t.Context(), scope, By{}); !errors.As(err, &invalid) || invalid.Field != "scope" {
			t.Errorf("Resume(%q) = %v", scope, err)
		}
		if _, err := db.Exec(t.Context(), `select drover_pause($1)`, fmt.Sprintf("%.10s", scope)); len(scope) < 10 && sqlState(err) != "22023" {
			t.Errorf("drover_pause(%q): %v", scope, err)
		}
	}
	var invalid *InvalidError
	if err := db.client.Pause(t.Context(), "all", time.Now().Add(-time.Minute), By{}); !errors.As(err, &invalid) || invalid.Field != "until" {
		t.Errorf("until is past: %v", err)
	}
	if value[int](t, db, `select count(*) from drover_limits`) > 0 {
		t.Error("something was stored")
	}
}

// limits makes a still supervisor follow the limits.
func (s *still) limits(t testing.TB) {
	t.Helper()
	conn, err := s.control.link.get(t.Context())
	if err == nil {
		s.control.limits.stale = true
		err = s.control.followLimits(t.Context(), conn, s.lease.Load().id)
	}
	if err != nil {
		t.Fatal(err)
	}
}
