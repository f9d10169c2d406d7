package engine_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/harness"
)

// Buffered jobs are handed back with their attempt.
func TestBufferedJobsAreHandedBack(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	goOn, running := make(chan struct{}), make(chan struct{}, 4)
	db.launch(t, drover.SupervisorConfig{PollInterval: time.Hour, Queues: []drover.Queue{{Concurrency: 4}}, Workers: handling(func(_ context.Context, _ *drover.Job, n int) error {
		if n < 0 {
			running <- struct{}{}
			<-goOn
		}
		return nil
	})})
	defer close(goOn)
	db.enqueueJobs(t, 2000, nil) // runs that take no time make the buffer grow
	db.waitFor(t, 20*time.Second, `select count(*) = 0 from jobs where finalized_at is null`)
	for range 4 {
		db.enqueue(t, job{N: -1}, nil)
	}
	for range 4 {
		receive(t, running)
	}
	db.enqueueJobs(t, 50, nil)
	if err := db.client.Pause(t.Context(), drover.QueueScope("default"), nil, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	db.waitFor(t, 20*time.Second, `select count(*) = 50 from jobs where state = 'available' and attempt = 0`)
	if n := value[int](t, db, `select count(*) from jobs where state = 'running'`); n != 4 {
		t.Errorf("%d jobs run", n)
	}
}

// a pause survives restarts: a supervisor that starts sees it before its first claim.
func TestAPauseSurvivesRestarts(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	if err := db.client.Pause(t.Context(), drover.AllJobs, nil, drover.Audit{}); err != nil { // waits for nobody
		t.Fatal(err)
	}
	db.enqueue(t, job{}, nil)
	s := db.stopped(t, drover.SupervisorConfig{})
	s.Claimer.Wake()
	if plan := s.Claimer.Request(s.Now()); plan != nil {
		t.Errorf("it claims from %v", plan.Req.Queues)
	}
	if !value[bool](t, db, `select unconfirmed = '{}' from job_limits`) {
		t.Error("it has not confirmed the pause")
	}
}

// The same without chance: a start compares the clock with the end of the lease, before the keeper has noticed anything.
func TestNoStartAfterTheLease(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	var ran atomic.Int64
	s := db.stopped(t, drover.SupervisorConfig{Workers: handling(func(context.Context, *drover.Job, int) error { ran.Add(1); return nil })})
	db.enqueueJobs(t, 2, nil)
	runs := s.claim(t)
	s.Runner.RunJob(runs[0])
	s.Keeper.Kept(s.Now().Add(-s.Cfg.Lease)) // no timer has fired: the keeper does not run
	s.Runner.RunJob(runs[1])
	if ran.Load() != 1 || runs[1].End.Event != engine.EventReleased || runs[0].End.Event != engine.EventCompleted {
		t.Errorf("%d handlers were called; the second run ended as %+v", ran.Load(), runs[1].End)
	}
}

// A stop cancels the handlers and hands their jobs back. A claim that was under way may bring such a job again: no handler
// is called for it.
func TestNoStartBehindAStop(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	var ran atomic.Int64
	s := db.stopped(t, drover.SupervisorConfig{Workers: handling(func(context.Context, *drover.Job, int) error { ran.Add(1); return nil })})
	db.enqueueJobs(t, 1, nil)
	runs := s.claim(t)
	s.Lease.Load().Cancel(drover.ErrShutdown)
	s.Runner.RunJob(runs[0])
	if ran.Load() != 0 || runs[0].End.Event != engine.EventReleased {
		t.Errorf("%d handlers were called; the run ended as %+v", ran.Load(), runs[0].End)
	}
}

// A supervisor whose database was away goes on under the same id only after it follows the limits: a pause did not wait for
// it beyond its lease.
func TestALeaseThatIsRenewedFollowsFirst(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	id := db.enqueue(t, job{}, nil)
	db.pause(t, drover.AllJobs)
	held := make(chan bool, 1)
	old := s.Lease.Load()
	old.Lose()
	go func() { // ends with the beat below, or with the test
		for s.Lease.Load() == old && t.Context().Err() == nil {
		}
		held <- len(s.QueueStates()) == 1 && s.QueueStates()[0].Room() == 0
	}()
	s.beat(t)
	if !receive(t, held) {
		t.Error("it has a lease again before it follows")
	}
	s.Claimer.Wake()
	if plan := s.Claimer.Request(s.Now()); plan != nil {
		t.Errorf("it claims %s", id)
	}
}

// A process that was frozen between a heartbeat and its reply may have been given up by a pause meanwhile. It goes on under a
// fresh lease, and so after it follows the limits.
func TestALateReplyDoesNotKeepTheLease(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	old, now, calls := s.Lease.Load(), time.Now(), 0
	s.Shared.Now = func() time.Time {
		if calls++; calls == 1 {
			return now
		}
		return now.Add(s.Cfg.Lease * 9 / 10)
	}
	s.beat(t)
	if !old.Ended.Load() || s.Lease.Load() == old || s.Lease.Load().ID != old.ID {
		t.Error("the lease goes on although its end has passed")
	}
}

// While the database is away, a pause whose time is over does not make the keeper ask without a pause of its own.
func TestLimitsAreNotReadInALoop(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	s.Keeper.Link.Close(t.Context())
	now := s.Now()
	s.Keeper.Limits.Next = now.Add(-time.Second)
	s.Keeper.HearLimits(t.Context())
	if next := s.Keeper.Limits.Next; !next.After(now) || !s.Keeper.Limits.Stale {
		t.Errorf("it asks again %v ago, stale %t", now.Sub(next), s.Keeper.Limits.Stale)
	}
}

// limits makes a still supervisor follow the limits.
func (s *still) limits(t testing.TB) {
	t.Helper()
	conn, err := s.Keeper.Link.Get(t.Context())
	if err == nil {
		s.Keeper.Limits.Stale = true
		err = s.Keeper.Limits.Follow(t.Context(), conn, s.Lease.Load().ID)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Buffered jobs are handed back with their attempt, the jobs of a claim that was under way, and runs that a slot has taken.
func TestAClaimUnderWayHandsBack(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	var ran atomic.Int64
	s := db.stopped(t, drover.SupervisorConfig{Workers: handling(func(context.Context, *drover.Job, int) error { ran.Add(1); return nil })})
	db.enqueueJobs(t, 2, nil)
	taken := s.claim(t)
	db.enqueueJobs(t, 4, nil)
	s.Claimer.Wake()
	buffered := s.Claimer.Request(s.Now())
	s.Claimer.Trip(t.Context(), buffered)
	db.enqueueJobs(t, 3, nil)
	s.Claimer.Wake()
	plan := s.Claimer.Request(s.Now())
	db.pause(t, drover.KindScope("job"))
	s.limits(t)
	if n := s.QueueStates()[0].Buffer.Len(); n > 0 || len(buffered.Reply.Jobs) != 4 {
		t.Errorf("%d of %d buffered jobs wait for a slot", n, len(buffered.Reply.Jobs))
	}
	s.Claimer.Trip(t.Context(), plan)
	if n := s.QueueStates()[0].Buffer.Len(); n > 0 || len(plan.Reply.Jobs) != 3 {
		t.Errorf("%d of %d jobs of the claim wait for a slot", n, len(plan.Reply.Jobs))
	}
	for _, r := range taken {
		s.Runner.RunJob(r)
	}
	s.settle(t)
	if ran.Load() > 0 {
		t.Error("a paused job has started")
	}
	if n := value[int](t, db, `select count(*) from jobs where state = 'available' and attempt = 0 and errors_total = 0 and claim_seq = 1`); n != 9 {
		t.Errorf("%d of 9 jobs are available with their attempts", n)
	}
}

// Floors pass the jobs of a paused kind, and look again when it is resumed.
func TestAResumedKindIsFoundBehindTheFloors(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	idle := func(context.Context, *drover.Job) error { return nil }
	s := db.stopped(t, drover.SupervisorConfig{Workers: []drover.Worker{harness.DynWorker("x", drover.WorkerOpts{}, idle), harness.DynWorker("y", drover.WorkerOpts{}, idle)}})
	db.exec(t, `insert into jobs (kind, scheduled_at) select k, now() - interval '1 min' from unnest(array['x', 'y']) k`)
	db.pause(t, drover.KindScope("x"))
	s.limits(t)
	if runs := s.claim(t); len(runs) != 1 || runs[0].Kind != "y" {
		t.Fatalf("%d runs", len(runs))
	}
	if runs := s.claim(t); len(runs) > 0 {
		t.Fatalf("%d runs", len(runs))
	}
	db.exec(t, `select drover_resume($1)`, string(drover.KindScope("x")))
	s.limits(t)
	if runs := s.claim(t); len(runs) != 1 || runs[0].Kind != "x" {
		t.Errorf("%d runs", len(runs))
	}
}

// Nobody pays for pauses: on an empty table the look of the heartbeat reads no page.
func TestNoPauseCostsNoPage(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	p := db.planner(t)
	// As in the heartbeat.
	const look = `select coalesce((select count(*) || ' ' || max(version) from drover_limits), $1::text)`
	for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
		if _, err := p.Exec(t.Context(), "set plan_cache_mode = "+mode); err != nil {
			t.Fatal(err)
		}
		var plan string
		for range 2 { // the first reads the server's catalogs
			plan, _, _ = strings.Cut(p.explain(t, planned{name: "stamp " + mode, sql: look, args: []any{""}}, "analyze, buffers, timing off, summary off, costs off"), "Planning:")
		}
		if strings.Contains(plan, "Buffers:") || !strings.Contains(plan, "Seq Scan on drover_limits") {
			t.Errorf("%s:\n%s", mode, plan)
		}
	}
	if n := value[int](t, db, `select pg_relation_size('drover_limits')::int`); n > 0 {
		t.Errorf("the empty table has %d bytes", n)
	}
}
