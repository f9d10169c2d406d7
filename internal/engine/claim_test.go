package engine_test

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/floors"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/store"
)

// A claim passes on metadata in a short form if the job has nothing else. Each other column is passed on all the same.
func TestClaimOfJobsWithMetadata(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	s := db.stopped(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 20}}, Workers: []drover.Worker{drover.Handle(func(context.Context, *drover.Job, letter) error { return nil }, drover.WorkerOpts{RetryFor: time.Hour})}})
	const metadata = `{"a": "x \"y\" é", "n": 1.50}`
	checks := map[string]func(*engine.Run, *drover.Job) bool{}
	put := func(columns, values string, check func(*engine.Run, *drover.Job) bool) {
		checks[db.put(t, "metadata, created_at, "+columns, `'`+metadata+`', now() - interval '10 min', `+values)] = check
	}
	put("queue", "'default'", func(_ *engine.Run, j *drover.Job) bool { return j.Failures == 0 && j.MaxAttempts == 20 })
	put("errors_total, last_delay_ms", "2, 5000", func(_ *engine.Run, j *drover.Job) bool { return j.Failures == 2 && j.LastDelay == 5*time.Second })
	put("crashes", "1", func(_ *engine.Run, j *drover.Job) bool { return j.Crashes == 1 })
	put("redrives", "3", func(_ *engine.Run, j *drover.Job) bool { return j.Redrives == 3 })
	put("snoozes", "4", func(_ *engine.Run, j *drover.Job) bool { return j.Snoozes == 4 })
	put("uncounted", "5", func(r *engine.Run, _ *drover.Job) bool { return *harness.Field[int](r.Task, "uncounted") == 5 })
	put("max_attempts", "6", func(_ *engine.Run, j *drover.Job) bool { return j.MaxAttempts == 6 })
	put("tags", "'{x}'", func(_ *engine.Run, j *drover.Job) bool { return slices.Equal(j.Tags, []string{"x"}) })
	put("concurrency_key", "'k'", func(_ *engine.Run, j *drover.Job) bool { return j.Key == "k" })
	put("timeout_ms", "7000", func(r *engine.Run, _ *drover.Job) bool { return r.Timeout == 7*time.Second })
	put("expires_at", "now()", func(r *engine.Run, _ *drover.Job) bool { return r.Expired })
	for range len(checks) { // a lane a claim, at the least
		for _, r := range s.claim(t) {
			j := jobOf(r)
			if string(j.Metadata) != metadata || !r.TimeBound || r.TimeLeft > 51*time.Minute || r.TimeLeft < 40*time.Minute || !checks[j.ID](r, j) {
				t.Errorf("%+v, %v left", *j, r.TimeLeft)
			}
			delete(checks, j.ID)
		}
		if len(checks) == 0 {
			return
		}
	}
	t.Errorf("%d jobs were not claimed", len(checks))
}

// F-15: columns that are far too large are not sent, because their text would take the server seconds. Values just
// below the bound are, and so is a value that is small uncompressed.
func TestLargeMetadataAreNotSent(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `alter table jobs disable trigger jobs_bounds`) // it refuses such rows
	s := db.stopped(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 100}}})
	for name, c := range map[string]struct {
		column, value string
		sent          bool
	}{
		"metadata that compress well":  {"metadata", `jsonb_build_object('x', repeat(chr(1), 2000000))`, false},
		"metadata that do not":         {"metadata", `jsonb_build_object('x', (select string_agg(md5(n::text), '') from generate_series(1, 40000) n))`, false},
		"an array":                     {"metadata", `jsonb_build_array(repeat('x', 2000000))`, false},
		"a scalar":                     {"metadata", `to_jsonb(repeat('x', 2000000))`, false},
		"tags":                         {"tags", `array['a', repeat('x', 2000000)]`, false},
		"the text of the last error":   {"errors_total, errors", `1, jsonb_build_array(jsonb_build_object('class', 'error', 'error', repeat('x', 2000000)))`, true},
		"metadata and tags together":   {"metadata, tags", `jsonb_build_object('x', repeat('x', 600000)), array[repeat('x', 600000)]`, false},
		"metadata just below":          {"metadata", `jsonb_build_object('x', repeat('x', 1000000))`, true},
		"tags just below, with a null": {"tags", `array[null, repeat('x', 1000000)]`, true},
		"small ones":                   {"metadata, tags", `'{"a": 1}', '{b}'`, true},
	} {
		db.exec(t, `truncate jobs`)
		db.exec(t, `insert into jobs (kind, `+c.column+`) values ('job', `+c.value+`)`)
		s.Claimer.Wake()
		plan := s.Claimer.Request(s.Now())
		s.Claimer.Trip(t.Context(), plan)
		if len(plan.Reply.Jobs) != 1 {
			t.Fatalf("%s: %d jobs were claimed", name, len(plan.Reply.Jobs))
		}
		switch more := plan.Reply.Jobs[0].More; {
		case c.sent && more.Unreadable != nil:
			t.Errorf("%s: %v", name, more.Unreadable)
		case !c.sent && (more.Unreadable == nil || plan.Reply.Bytes > 100), name == "the text of the last error" && plan.Reply.Bytes > 10_000:
			t.Errorf("%s: %d bytes were sent; %v", name, plan.Reply.Bytes, more.Unreadable)
		}
	}
}

//
func TestPrioritiesFirstThenOldestFirst(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	var want []string
	byPriority := map[int][]string{}
	for i := range 90 {
		p := 1 + (i*7)%9
		byPriority[p] = append(byPriority[p], db.enqueue(t, job{i}, &drover.EnqueueOpts{Priority: p}))
	}
	for p := 1; p <= 9; p++ {
		want = append(want, byPriority[p]...)
	}
	// A million jobs of the first priority that are not due yet would stand in the way of a claim by priority alone.
	db.exec(t, `insert into jobs (id, kind, priority, scheduled_at, state) select (select left(drover_ulid(), 10)) || lpad(n::text, 16, '0'), 'job', 1, now() + interval '1 h', 'scheduled' from generate_series(1, 2000) n`)
	got := make(chan string, 90)
	db.launch(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 1}}, Workers: handling(func(_ context.Context, j *drover.Job, _ int) error {
		got <- j.ID
		return nil
	})})
	var order []string
	for range want {
		order = append(order, receive(t, got))
	}
	if !slices.Equal(order, want) {
		t.Errorf("order:\n%v\nwant:\n%v", order, want)
	}
}

// every queue has its own slots; a queue that stands still holds up no other queue; queues come and go at run
// time.
func TestQueuesDoNotStarveEachOther(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	slots := map[string]int64{"a": 2, "b": 1, "c": 5, "d": 3}
	var mu sync.Mutex
	active, most, done := map[string]int64{}, map[string]int64{}, map[string]int{}
	release := make(chan struct{})
	var five sync.WaitGroup
	five.Add(5)
	count := func(queue string, by int64) {
		mu.Lock()
		defer mu.Unlock()
		active[queue] += by
		most[queue] = max(most[queue], active[queue])
		if by < 0 {
			done[queue]++
		}
	}
	sup := db.launch(t, drover.SupervisorConfig{
		Queues: []drover.Queue{{Name: "a", Concurrency: 2}, {Name: "b", Concurrency: 1}, {Name: "c", Concurrency: 5}},
		Workers: handling(func(_ context.Context, j *drover.Job, n int) error {
			count(j.Queue, 1)
			defer count(j.Queue, -1)
			switch {
			case j.Queue == "a":
				<-release
			case j.Queue == "c" && n < 5: // its five slots are all in use together
				five.Done()
				five.Wait()
			}
			return nil
		}),
	})
	for _, queue := range []string{"a", "b", "c", "d"} {
		db.enqueueJobs(t, 200, &drover.EnqueueOpts{Queue: queue})
	}
	all := `select count(*) = 200 from jobs where queue = $1 and state = 'completed'`
	db.waitFor(t, 20*time.Second, all, "b")
	db.waitFor(t, 20*time.Second, all, "c")
	if err := sup.AddQueue(t.Context(), drover.Queue{Name: "d", Concurrency: 3}); err != nil {
		t.Fatal(err)
	}
	db.waitFor(t, 20*time.Second, all, "d")
	if err := sup.RemoveQueue(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	id := db.enqueue(t, job{}, &drover.EnqueueOpts{Queue: "c"})
	db.waitFor(t, 30*time.Second, `select not 'c' = any(queues) and 'd' = any(queues) from drover_supervisors`)
	close(release)
	db.waitFor(t, 20*time.Second, all, "a")
	if got := value[string](t, db, `select state from jobs where id = $1`, id); got != "available" {
		t.Errorf("a job of a removed queue is %s", got)
	}
	mu.Lock()
	defer mu.Unlock()
	for queue, n := range most {
		if n > slots[queue] {
			t.Errorf("%d jobs of %s ran at once, it has %d slots", n, queue, slots[queue])
		}
	}
}

// a queue with room for a whole claim leaves part of it to the others.
func TestBusyQueueLeavesRoomInAClaim(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{Queues: []drover.Queue{{Name: "a", Concurrency: 2500}, {Name: "b", Concurrency: 5}}})
	db.exec(t, `insert into jobs (id, kind, queue) select (select left(drover_ulid(), 10)) || lpad(n::text, 16, '0'), 'job', 'a' from generate_series(1, 2500) n`)
	db.exec(t, `insert into jobs (kind, queue) select 'job', 'b' from generate_series(1, 5)`)
	n := map[string]int{}
	for _, r := range s.claim(t) {
		n[r.Queue]++
	}
	if n["a"] != engine.MaxClaim-5 || n["b"] != 5 {
		t.Errorf("claimed %v", n)
	}
}

// B-6: while fresh jobs wait, retries get at most a fifth of the claims.
func TestRetriesGetAFifthWhileFreshJobsWait(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 50}}})
	db.exec(t, `insert into jobs (kind, state, errors_total, attempt) select 'job', 'retryable', 1, 1 from generate_series(1, 1000)`)
	db.exec(t, `insert into jobs (kind) select 'job' from generate_series(1, 1000)`)
	fresh, retries := 0, 0
	for round := range 60 {
		runs := s.claim(t)
		for _, r := range runs {
			switch {
			case jobOf(r).Failures == 0:
				fresh++
			case round > 0: // nobody knows in the first that fresh jobs wait
				retries++
			}
			r.Finish()
			s.Settler.Unsettled.Remove(r)
		}
		if fresh < 1000 && retries > (round+1)*10 {
			t.Fatalf("round %d: %d fresh jobs, %d retries", round, fresh, retries)
		}
	}
	if fresh != 1000 || retries+50 != 1000 {
		t.Errorf("in 60 claims: %d fresh jobs, %d retries", fresh, retries)
	}
}

// L-4: jobs that no worker here can run are older than a job that a worker here can run.
func TestUnknownKindsDoNotHoldUpKnownOnes(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.exec(t, `insert into jobs (id, kind, scheduled_at, priority) select (select left(drover_ulid(), 10)) || lpad(n::text, 16, '0'), 'unknown', now() - interval '1 h', 1 from generate_series(1, 12000) n`)
	db.exec(t, `insert into jobs (id, kind, scheduled_at) select (select left(drover_ulid(), 10)) || lpad(n::text, 16, '0'), 'unknown', now() - interval '1 h' from generate_series(1, 12000) n`)
	s := db.stopped(t, drover.SupervisorConfig{})
	for range 3 {
		id := db.enqueue(t, job{}, nil)
		if runs := s.claim(t); len(runs) != 1 || runs[0].ID != id {
			t.Fatalf("the next claim took %d jobs", len(runs))
		}
	}
	if n := value[int](t, db, `select count(*) from jobs where kind = 'unknown' and state = 'available' and claim_seq = 0`); n != 24000 {
		t.Errorf("%d of 24,000 jobs of unknown kinds wait", n)
	}
}

// Jobs that commit long after they were due are behind the floors: near sweeps find them up to 20 s, the full sweep
// beyond that.
func TestLateCommitsAreFound(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 1000}}})
	ahead := time.Duration(0) // of the process' clock, so that sweeps come due
	s.Now = func() time.Time { return time.Now().Add(ahead) }
	for _, late := range []time.Duration{0, 50 * time.Millisecond, 500 * time.Millisecond, 3 * time.Second, 15 * time.Second, 25 * time.Second, time.Hour} {
		db.enqueueJobs(t, 3, nil)
		s.claim(t) // floors move past what follows
		// Behind the claim, however long ago that was.
		at := s.Claimer.Floors.Get(floors.Lane{Queue: "default", N: 5}).At.Add(-late)
		id := value[string](t, db, `insert into jobs (kind, scheduled_at) values ('job', $1) returning id`, at)
		found := func() bool {
			return slices.ContainsFunc(s.claim(t), func(r *engine.Run) bool { return r.ID == id })
		}
		ahead += time.Minute
		if late > 20*time.Second {
			if found() {
				t.Errorf("%v late: found by a claim; the floors do not bound it", late)
				continue
			}
			s.sweep(t)
		}
		if !found() {
			t.Errorf("%v late: left behind", late)
		}
	}
}

// sweep is a full sweep of this supervisor's.
func (s *still) sweep(t testing.TB) {
	t.Helper()
	conn, err := s.Keeper.Link.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l := s.Lease.Load()
	s.Keeper.SweepAt, s.Keeper.FloorsBy = time.Time{}, time.Time{}
	reply := store.BeatReply{Alive: true, Clock: float64((s.Keeper.Sweeps + 1) * engine.SweepEvery), Peers: []store.Peer{{ID: l.ID}}}
	if err := s.Keeper.Sweep(t.Context(), conn, l, reply); err != nil {
		t.Fatal(err)
	}
}

// A sweep that lowers a floor while a claim is under way must not be undone by that claim's end.
func TestSweepDuringAClaimIsNotUndone(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	s.claim(t)
	id := value[string](t, db, `insert into jobs (kind, scheduled_at) values ('job', now() - interval '1 h') returning id`)
	s.Claimer.Wake()
	underWay := s.Claimer.Request(s.Now())
	s.sweep(t)
	s.Claimer.Trip(t.Context(), underWay)
	if runs := s.claim(t); len(runs) != 1 || runs[0].ID != id {
		t.Fatalf("the next claim took %d jobs", len(runs))
	}
}

// A supervisor that starts during its first full sweep would look twice from the beginning, over all dead rows: jobs that a
// sweep holds move no floor.
func TestTheFirstClaimMovesTheFloors(t *testing.T) {
	t.Parallel()
	s := newQuietDB(t).stopped(t, drover.SupervisorConfig{})
	first := s.Claimer.Request(s.Now())
	s.beat(t)
	s.Claimer.Trip(t.Context(), first)
	if f := s.Claimer.Floors.Get(floors.Lane{Queue: "default", N: 5}); f.At.IsZero() {
		t.Error("no floor")
	}
}

// S-5: the server's clock goes back by an hour; jobs that are due then lie behind the floors.
func TestFloorInTheFutureIsDropped(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	s.claim(t)
	s.Claimer.Floors.Mu.Lock()
	for key, f := range s.Claimer.Floors.Lanes {
		s.Claimer.Floors.Lanes[key] = floors.Floor{At: f.At.Add(time.Hour)}
	}
	s.Claimer.Floors.Mu.Unlock()
	db.exec(t, `insert into jobs (kind, scheduled_at) values ('job', now() - interval '2 min')`)
	if runs := append(s.claim(t), s.claim(t)...); len(runs) != 1 {
		t.Errorf("two claims took %d jobs", len(runs))
	}
}

// A row that an operator or another claimer has locked is skipped: a claim waits for no lock.
func TestClaimPassesLockedRows(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	impatient := db.via(t, drover.Config{}, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["lock_timeout"] = "1s" })
	s := impatient.stopped(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 10}}})
	ids := db.enqueueJobs(t, 3, nil)
	db.Hold(t, `select from jobs where id = $1 for update`, ids[0])
	if runs := s.claim(t); len(runs) != 2 || runs[0].ID != ids[1] || runs[1].ID != ids[2] {
		t.Errorf("claimed %d jobs beside a locked one, want the other 2", len(runs))
	}
}

// A claim may fail at its commit, when its rows have long been read: the jobs it would have given must not run.
func TestNoJobStartsBeforeItsClaimHasCommitted(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	db.enqueueJobs(t, 1, nil)
	db.exec(t, `create function refuse() returns trigger language plpgsql as 'begin raise exception ''not at the commit''; end'`)
	db.exec(t, `create constraint trigger refuse after update on jobs deferrable initially deferred for each row execute function refuse()`)
	s.Claimer.Wake()
	s.Claimer.Trip(t.Context(), s.Claimer.Request(s.Now()))
	if n := s.QueueStates()[0].Buffer.Len(); n > 0 || s.Claimer.Refused.Failed == nil {
		t.Errorf("%d jobs are ready to start after a claim that failed (%v)", n, s.Claimer.Refused.Failed)
	}
	if s.Claimer.Doubt != nil {
		t.Error("in doubt, though the server has said that nothing was done")
	}
	db.exec(t, `drop trigger refuse on jobs`)
	s.Claimer.Refused.Failed = nil
	if runs := s.claim(t); len(runs) != 1 || runs[0].Seq != 1 {
		t.Errorf("%d runs", len(runs))
	}
}

// FAULTS W-3, N-3: a claim commits and its reply is lost. The epoch is raised, and the claimed jobs are handed back
// and run once.
func TestClaimWhoseReplyWasLostIsHandedBack(t *testing.T) {
	t.Parallel()
	plain := newQuietDB(t)
	plain.audit(t)
	db, wire := plain.cutting(t, drover.Config{})
	var runs, active, most atomic.Int64
	db.launch(t, drover.SupervisorConfig{Workers: handling(func(_ context.Context, _ *drover.Job, n int) error {
		if n == 0 {
			return nil
		}
		most.Store(max(most.Load(), active.Add(1)))
		defer active.Add(-1)
		runs.Add(1)
		return nil
	})})
	plain.enqueue(t, job{0}, nil)
	plain.waitFor(t, 20*time.Second, `select count(*) = 1 from jobs where state = 'completed'`)
	for round := range 3 {
		wire.arm(store.SQLClaim[:80], `"n": 777`)
		id := plain.enqueue(t, job{777}, nil)
		plain.waitFor(t, 20*time.Second, `select state = 'completed' from jobs where id = $1`, id)
		if wire.cutSoFar() != round+1 {
			t.Fatal("no connection was cut")
		}
		if !value[bool](t, plain, `select claim_seq = 2 and attempt = 1 and errors_total = 0 from jobs where id = $1`, id) {
			t.Error(value[string](t, plain, `select row_to_json(j)::text from jobs j where id = $1`, id))
		}
	}
	if got := value[int](t, plain, `select epoch from drover_supervisors`); got != 4 {
		t.Errorf("after three lost replies the epoch is %d", got)
	}
	if runs.Load() != 3 || most.Load() != 1 {
		t.Errorf("%d runs of 3 jobs, up to %d at once", runs.Load(), most.Load())
	}
	plain.checkAudit(t)
}

// loseClaim makes a claim in the supervisor's name whose reply nobody reads.
func (s *still) loseClaim(t testing.TB, db *testDB) {
	t.Helper()
	s.Claimer.Wake()
	lost := s.Claimer.Request(s.Now())
	if lost == nil {
		t.Fatal("the claimer would not claim")
	}
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if err := (store.Session{Conn: conn.Conn()}).Claim(t.Context(), nil, lost.Req, &lost.Reply); err != nil {
		t.Fatal(err)
	}
	lost.Reply = store.ClaimReply{}
	s.Claimer.AfterClaim(t.Context(), lost, context.DeadlineExceeded, 0)
	if s.Claimer.Doubt == nil {
		t.Fatal("the claimer is in no doubt")
	}
}

// The database is away for most of a lease while a claim's outcome is unknown: handlers learn that the lease is lost,
// but no other supervisor took it, and the keeper goes on under the same id. The claimed jobs must not stay in its name
// for ever.
func TestDoubtOutlivesALeaseThatWasNotKeptUp(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	ids := db.enqueueJobs(t, 5, nil)
	s.loseClaim(t, db)
	s.Lease.Load().Lose()
	s.Claimer.FindOut(t.Context())
	s.beat(t)
	s.settle(t)
	if n := value[int](t, db, `select count(*) from jobs where id = any($1) and state = 'available' and attempt = 0`, ids); n != 5 {
		t.Fatalf("%d of 5 jobs were handed back", n)
	}
	if s.Lease.Load().Ended.Load() {
		t.Fatal("control has not renewed the lease")
	}
	if runs := s.claim(t); len(runs) != 5 {
		t.Errorf("the next claim took %d jobs", len(runs))
	}
}

// The same, but the reply to the raise of the epoch is lost, too: the keeper finds the epoch in the table.
func TestEpochRaisedUnheardIsFoundByTheHeartbeat(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	first := s.Lease.Load()
	db.exec(t, `update drover_supervisors set epoch = epoch + 1`)
	db.enqueueJobs(t, 1, nil)
	s.Claimer.Wake()
	s.Claimer.Trip(t.Context(), s.Claimer.Request(s.Now())) // fenced
	if !first.Ended.Load() {
		t.Fatal("a fenced claim ends the lease")
	}
	s.beat(t) // refused
	if !s.Keeper.Interrupted() {
		t.Error("the next beat does not come at once")
	}
	s.beat(t)
	if l := s.Lease.Load(); l.ID != first.ID || l.Ended.Load() || l.Epoch.Load() != 2 {
		t.Fatalf("the lease is %s, epoch %d, ended %v", l.ID, l.Epoch.Load(), l.Ended.Load())
	}
	if runs := s.claim(t); len(runs) != 1 {
		t.Errorf("the next claim took %d jobs", len(runs))
	}
	if n := value[int](t, db, `select beat from drover_supervisors`); n != 1 {
		t.Errorf("%d beats got through", n)
	}
}

// One look lists a thousand jobs; a supervisor may have claimed more than that and know them all.
func TestDoubtSeesPastTheJobsThatAreKnown(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 1500}}})
	db.exec(t, `insert into jobs (kind) select 'job' from generate_series(1, 1200)`)
	if n := len(s.claim(t)); n != 1200 {
		t.Fatalf("claimed %d", n)
	}
	ids := db.enqueueJobs(t, 3, nil)
	s.loseClaim(t, db)
	s.Claimer.FindOut(t.Context())
	s.settle(t)
	if n := value[int](t, db, `select count(*) from jobs where id = any($1) and state = 'available'`, ids); n != 3 {
		t.Errorf("%d of 3 jobs were handed back", n)
	}
	if n := value[int](t, db, `select count(*) from jobs where state = 'running'`); n != 1200 {
		t.Errorf("%d of the 1,200 known ones are still running", n)
	}
}

// More jobs than one look lists: all of them are handed back.
func TestDoubtIsNotOverBeforeAllIsHandedBack(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 1500}}})
	db.exec(t, `insert into jobs (kind) select 'job' from generate_series(1, 1300)`)
	s.loseClaim(t, db)
	for range 10 {
		if s.Claimer.Doubt == nil {
			break
		}
		s.Claimer.FindOut(t.Context())
		for s.Settler.Unsettled.Len() > 0 {
			s.settle(t)
		}
	}
	if n := value[int](t, db, `select count(*) from jobs where state = 'available' and attempt = 0`); n != 1300 {
		t.Errorf("%d of 1,300 jobs were handed back", n)
	}
}

// The keeper may take a new lease while a claim is under way: its jobs belong to the old one, and so does its
// fencing.
func TestClaimUnderAReplacedLease(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	old := s.Lease.Load()
	db.enqueueJobs(t, 1, nil)
	s.Claimer.Wake()
	underWay := s.Claimer.Request(s.Now())
	if err := s.Keeper.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Claimer.Trip(t.Context(), underWay)
	q := s.QueueStates()[0]
	if r := q.Buffer.Runs[q.Buffer.Head]; r.Owner != old.ID || r.Lease != old {
		t.Errorf("the run is %s's, it was claimed by %s", r.Owner, old.ID)
	}
	q.Pending.Store(0) // the claimer sees room again
	s.Claimer.Wake()
	underWay = s.Claimer.Request(s.Now())
	db.exec(t, `update drover_supervisors set lost_at = now(), epoch = epoch + 1 where id = $1`, underWay.Lease.ID)
	if err := s.Keeper.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Claimer.Trip(t.Context(), underWay)
	if !underWay.Lease.Ended.Load() || s.Lease.Load().Ended.Load() {
		t.Error("a fenced claim ended another lease than its own")
	}
}

// A settle records when its retry is due. A claim under way that looked earlier must not delete this time. A claim
// that was planned when this time had passed deletes it, and records the next due time.
func TestRetryNotedDuringAClaimIsNotForgotten(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	s.Claimer.Wake()
	underWay := s.Claimer.Request(s.Now())
	due := s.Now().Add(10 * time.Minute)
	s.Claimer.NoteDue(due)
	s.Claimer.Trip(t.Context(), underWay)
	if got := s.Claimer.Due; !got.Equal(due) {
		t.Errorf("the next job is due at %v, the settle noted %v", got, due)
	}
	later := db.enqueue(t, job{}, &drover.EnqueueOpts{Delay: time.Hour})
	s.claim(t)
	if got := s.Claimer.Due; !got.Equal(due) {
		t.Errorf("a claim for another job has changed the next due time from %v to %v", due, got)
	}
	s.Claimer.NoteDue(s.Now())
	s.claim(t)
	if d := s.Claimer.Due.Sub(s.Now()); d < 50*time.Minute || d > time.Hour {
		t.Errorf("job %s is due in an hour, the claimer looks in %v", later, d)
	}
}

// The lease is over: another supervisor may have a job in the buffer before its handler could notice.
func TestBufferedJobsOfALostLeaseAreNotStarted(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{Workers: handling(func(context.Context, *drover.Job, int) error {
		t.Error("a handler ran")
		return nil
	})})
	db.enqueueJobs(t, 3, nil)
	runs := s.claim(t)
	s.Lease.Load().Lose()
	q := s.QueueStates()[0]
	q.Buffer.Put(runs)
	s.Runner.Slots.Add(1)
	go s.Runner.Serve(q)
	eventually(t, func() bool { return q.Pending.Load() == 0 })
	q.Buffer.Close()
	s.Runner.Slots.Wait()
	s.settle(t)
	if n := value[int](t, db, `select count(*) from jobs where state = 'available' and attempt = 0`); n != 3 {
		t.Errorf("%d of 3 jobs were handed back", n)
	}
}

// A job that slow jobs keep from starting goes back after a while, so that another process can take it; its attempt is given
// back, and it is not claimed again before there is a slot.
func TestJobsThatCannotStartAreHandedBack(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	release := make(chan struct{})
	started := make(chan struct{}, 100)
	sup := db.launch(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 2}}, Workers: handling(func(_ context.Context, _ *drover.Job, n int) error {
		if n == 1 {
			started <- struct{}{}
			<-release
		}
		return nil
	})})
	db.enqueueJobs(t, 50, &drover.EnqueueOpts{Queue: "default"}) // number 1 blocks a slot, the others are quick: the buffer grows
	db.waitFor(t, time.Minute, `select count(*) = 49 from jobs where state = 'completed'`)
	db.enqueue(t, job{1}, nil)
	receive(t, started)
	receive(t, started)
	// However slow the quick ones were: it claims ahead.
	q := harness.EngineOf(sup.Supervisor).QueueStates()[0]
	for range 50 {
		for range 1000 {
			q.Ran(time.Microsecond)
		}
		harness.EngineOf(sup.Supervisor).Claimer.Wake()
		eventually(t, func() bool { return q.RanN.Load() == 0 })
	}
	db.exec(t, `insert into jobs (kind) select 'job' from generate_series(1, 20)`)
	db.waitFor(t, time.Minute, `select count(*) = 20 from jobs where state = 'available' and attempt = 0 and claim_seq = 1`)
	before := value[int](t, db, `select sum(claim_seq) from jobs`)
	harness.After(t, 2*engine.BufferPatience)
	if now := value[int](t, db, `select sum(claim_seq) from jobs`); now != before {
		t.Errorf("claimed again and again: %d claims more", now-before)
	}
	if stats := sup.Stats(); stats.Running != 2 || stats.Buffered != 0 {
		t.Errorf("%+v", stats)
	}
	close(release)
	db.waitFor(t, time.Minute, `select count(*) = 71 from jobs where state = 'completed' and attempt = 1`)
}

// A job that expired before its run needs no handler, but it takes a place: the claimer must learn when the
// place is free.
func TestExpiredJobsMakeRoom(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into jobs (kind, expires_at) select 'job', now() - interval '1 min' from generate_series(1, 30)`)
	db.enqueueJobs(t, 3, nil)
	db.launch(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 1}}})
	db.waitFor(t, 30*time.Second, `select count(*) filter (where discard_reason = 'expired') = 30 and count(*) filter (where state = 'completed') = 3 from jobs`)
}

// P-1: jobs whose processes died leave slots to other jobs, also if slots become free one by one.
func TestSuspectsLeaveSlotsToOthers(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into jobs (kind, crashes) select 'job', 1 + n % 2 from generate_series(1, 100) n`)
	db.exec(t, `insert into jobs (kind) select 'job' from generate_series(1, 1000)`)
	s := db.stopped(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 16}}})
	running := s.claim(t)
	for range 40 { // each run that ends frees one slot
		i := slices.IndexFunc(running, func(r *engine.Run) bool { return r.Crashes == 0 })
		if i < 0 {
			t.Fatalf("all %d running jobs were in crashes", len(running))
		}
		r := running[i]
		r.Finish()
		s.settle(t, decided(r, nil))
		running = append(slices.Delete(running, i, i+1), s.claim(t)...)
	}
	crashes := map[int]int{}
	for _, r := range running {
		crashes[r.Crashes]++
	}
	if crashes[1] > 4 || crashes[2] > 0 {
		t.Errorf("running by crashes: %v, want at most 4 of one and none of two", crashes)
	}
}

// A search behind a backlog goes on where it was: a page is read to its end, whatever the time allows.
func TestHuntGoesOnPageByPage(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.exec(t, `insert into jobs (kind, scheduled_at) select 'other', now() - interval '1 hour' from generate_series(1, $1)`, store.HuntPage+10)
	db.exec(t, `insert into jobs (kind, state, claimed_by, claim_seq, attempt) values ('job', 'running', 'nobody', 1, 1)`)
	s := db.stopped(t, drover.SupervisorConfig{})
	conn, err := s.Keeper.Link.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, owner := range []string{"nobody", ""} { // the owner's, and an orphan's
		h := store.NewScan(owner, []string{"default"}, false)
		first, err := conn.Scan(t.Context(), h)
		if err != nil || len(first) != 0 || len(h.Lanes) != 1 {
			t.Fatalf("first page: %v, %v, %d lanes to go on with", first, err, len(h.Lanes))
		}
		second, err := conn.Scan(t.Context(), h)
		if err != nil || len(second) != 1 || second[0].Owner != "nobody" || !h.Ended() {
			t.Fatalf("second page: %v, %v, %d lanes to go on with", second, err, len(h.Lanes))
		}
	}
}

// takeTurn holds the turn of the queue "default" until it is ended.
func (db *testDB) takeTurn(t testing.TB) (end func()) {
	t.Helper()
	return db.Hold(t, store.SQLTakeTurn, []string{"default"}, time.Second)
}

// Claims of a backlog wait for one another, and each sees the jobs that the previous claim has left.
func TestClaimsOfABacklogTakeTurns(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.enqueueJobs(t, 4*engine.MinTurn, nil)
	name := "turns " + value[string](t, db, `select current_schema()`)
	named := db.via(t, drover.Config{}, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = name })
	queues := []drover.Queue{{Concurrency: 2 * engine.MinTurn}}
	first, second := named.stopped(t, drover.SupervisorConfig{Queues: queues}), named.stopped(t, drover.SupervisorConfig{Queues: queues})
	for _, s := range []*still{first, second} {
		s.QueueStates()[0].Full = true // its last claim was
	}
	end := db.takeTurn(t)
	claimed := make(chan int)
	for _, s := range []*still{first, second} {
		s.Claimer.Wake()
		plan := s.Claimer.Request(s.Now())
		plan.Req.Patience = engine.TripTimeout * 4 / 5 // until both have been seen to wait
		go func() {
			s.Claimer.Trip(t.Context(), plan)
			claimed <- len(plan.Reply.Jobs)
		}()
	}
	eventually(t, func() bool {
		if n := value[int](t, db, `select count(*) from jobs where state = 'running'`); n > 0 {
			t.Fatalf("%d jobs were claimed out of turn", n)
		}
		return value[int](t, db, `select count(*) from pg_stat_activity where wait_event = 'advisory' and application_name = $1`, name) == 2
	})
	end()
	if n, m := receive(t, claimed), receive(t, claimed); n != 2*engine.MinTurn || m != 2*engine.MinTurn {
		t.Errorf("claimed %d and %d jobs of %d", n, m, 4*engine.MinTurn)
	}
}

// A session that hangs while it has the turn holds up only a claim now and then, and only briefly.
func TestClaimDoesWithoutItsTurn(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.enqueueJobs(t, 5*engine.MinTurn, nil)
	counted, sent := db.traced(t, drover.Config{})
	s := counted.stopped(t, drover.SupervisorConfig{Lease: 12 * time.Second, Queues: []drover.Queue{{Concurrency: engine.MinTurn}}}) // of 6 s for a claim it waits 2
	db.takeTurn(t)
	for n, want := range []int{0, 1, 0} { // the queue is not known to be full; it is; another turn would not come either
		sent.Since()
		runs := s.claim(t)
		if len(runs) != engine.MinTurn {
			t.Fatalf("claim %d: %d jobs", n, len(runs))
		}
		for _, r := range runs {
			r.Finish()
		}
		if calls, _ := sent.Since(); calls[store.SQLTakeTurn] != want {
			t.Errorf("claim %d waited for %d turns, want %d", n, calls[store.SQLTakeTurn], want)
		}
	}
	s.Claimer.OutOfTurn = s.Now()
	sent.Since()
	s.claim(t)
	if calls, _ := sent.Since(); calls[store.SQLTakeTurn] != 1 {
		t.Error("waits for no turn any more")
	}
}

// A statement time-out of the application's that is shorter than the wait shortens the wait, and does not end the claim.
func TestTurnUnderAStatementTimeout(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.enqueueJobs(t, engine.MinTurn, nil)
	db.takeTurn(t)
	// The wait gets half of it, which is less than its patience.
	s := db.via(t, drover.Config{}, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["statement_timeout"] = "8s" }).
		stopped(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: engine.MinTurn}}})
	s.QueueStates()[0].Full = true
	if n := len(s.claim(t)); n != engine.MinTurn || s.Claimer.OutOfTurn.IsZero() {
		t.Errorf("claimed %d jobs, out of turn until %v", n, s.Claimer.OutOfTurn)
	}
}

// A claim that fails for any reason may have failed because of its wait: the next claim does not wait.
func TestClaimThatFailsTakesNoTurn(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: engine.MinTurn}}})
	s.Claimer.Wake()
	s.Claimer.Trip(t.Context(), s.Claimer.Request(s.Now())) // its connection is there
	s.QueueStates()[0].Full = true
	s.Claimer.Wake()
	plan := s.Claimer.Request(s.Now())
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	s.Claimer.Trip(gone, plan)
	if len(plan.Req.Turns) != 1 || s.Claimer.Trouble.Failures != 1 || s.Claimer.OutOfTurn.IsZero() {
		t.Errorf("turns %q, %d failures, out of turn until %v", plan.Req.Turns, s.Claimer.Trouble.Failures, s.Claimer.OutOfTurn)
	}
}

// The wait does not count as a cost of a near sweep, which would then come again too rarely. Jobs that expire during
// the wait are expired.
func TestWaitForATurnIsNoPartOfTheClaim(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.exec(t, `insert into jobs (kind, expires_at) select 'job', now() + interval '1 s' from generate_series(1, $1)`, engine.MinTurn)
	db.takeTurn(t)
	s := db.stopped(t, drover.SupervisorConfig{Lease: 12 * time.Second, Queues: []drover.Queue{{Concurrency: engine.MinTurn}}})
	s.QueueStates()[0].Full = true
	s.Claimer.Wake()
	plan := s.Claimer.Request(s.Now())
	began := s.Now()
	s.Claimer.Trip(t.Context(), plan)
	waited := s.Now().Sub(began)
	if plan.Sweep.Width == 0 || waited < plan.Req.Patience {
		t.Fatalf("a sweep of %v that waited %v proves nothing", plan.Sweep.Width, waited)
	}
	if cost := s.Claimer.Near.Windows[plan.Sweep.Window].Cost; cost > waited-plan.Req.Patience/2 {
		t.Errorf("a sweep that waited %v is said to have taken %v", waited, cost)
	}
	if len(plan.Reply.Jobs) != engine.MinTurn || !plan.Reply.Jobs[0].More.Expired {
		t.Errorf("%d jobs, or not told that they have expired: %+v", len(plan.Reply.Jobs), plan.Reply.Jobs[0].More)
	}
}

// The wait is measured by the server's clock, which may step meanwhile: a near sweep must not be said to have taken hours, or
// to have taken less than nothing.
func TestClockStepsInTheWaitForATurn(t *testing.T) {
	t.Parallel()
	for waited, want := range map[time.Duration]time.Duration{
		0: time.Second, 600 * time.Millisecond: 400 * time.Millisecond, time.Hour: 0, -time.Hour: time.Second,
	} {
		if got := (&store.ClaimReply{Waited: waited}).Cost(time.Second); got != want {
			t.Errorf("of a second, %v of it in the queue: %v, want %v", waited, got, want)
		}
	}
}

// A queue without a backlog waits for no other one's turn.
func TestTurnBesideAnIdleQueue(t *testing.T) {
	t.Parallel()
	s := newQuietDB(t).stopped(t, drover.SupervisorConfig{Queues: []drover.Queue{{Name: "a"}, {Name: "b"}, {Name: "c"}}})
	queues := s.QueueStates()
	queues[0].Full, queues[1].Full = true, true
	for _, c := range []struct {
		rooms []int32
		want  []string
	}{
		{[]int32{engine.MinTurn, engine.MinTurn - 1, 0}, []string{"a"}},
		{[]int32{engine.MinTurn, engine.MinTurn, 0}, []string{"a", "b"}},
		{[]int32{engine.MinTurn, engine.MinTurn, 1}, nil},
		{[]int32{0, 0, 0}, nil},
	} {
		if got := s.Claimer.Turns(queues, c.rooms, s.Now()); !slices.Equal(got, c.want) {
			t.Errorf("room for %v: turns in %q, want %q", c.rooms, got, c.want)
		}
	}
}

// A claimer that wants few jobs is in nobody's way.
func TestFewJobsWaitForNoTurn(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.enqueueJobs(t, 3*engine.MinTurn, nil)
	counted, sent := db.traced(t, drover.Config{})
	s := counted.stopped(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: engine.MinTurn - 1}}})
	db.takeTurn(t)
	for range 2 {
		for _, r := range s.claim(t) {
			r.Finish()
		}
	}
	if calls, _ := sent.Since(); calls[store.SQLTakeTurn] != 0 || calls[store.SQLClaim] != 2 {
		t.Errorf("%d claims waited for %d turns", calls[store.SQLClaim], calls[store.SQLTakeTurn])
	}
}

// The bound on the wait is no business of the rest of the transaction.
func TestTurnLeavesTheLockTimeout(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	for _, want := range []bool{true, false} {
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(t.Context())
		var got bool
		var timeout string
		if _, err := tx.Exec(t.Context(), `set local lock_timeout = '7s'`); err != nil {
			t.Fatal(err)
		}
		if err := tx.QueryRow(t.Context(), store.SQLTakeTurn, []string{"b", "a", "b"}, time.Millisecond).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if err := tx.QueryRow(t.Context(), `show lock_timeout`).Scan(&timeout); err != nil {
			t.Fatal(err)
		}
		if got != want || timeout != "7s" {
			t.Errorf("turn %t, want %t; lock_timeout is %s", got, want, timeout)
		}
	}
}

// The past of a job that has merely failed travels as plain text, the past of any other as JSON: both give the handler
// the same, whatever the error's text looks like.
func TestClaimTellsOfFailures(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	for _, text := range []string{"no", "", " ", `{"failures": 7} 2 3`, "1 2 3\nnext line", "ünï"} {
		entry, err := json.Marshal([]map[string]any{{"class": "error", "error": text}})
		if err != nil {
			t.Fatal(err)
		}
		db.exec(t, `truncate jobs`)
		for _, tags := range []string{"null", "array['x']"} { // the second has more of a past
			db.exec(t, `insert into jobs (kind, state, attempt, errors_total, last_delay_ms, errors, tags)
				values ('job', 'retryable', 2, 3, 1500, $1::jsonb, `+tags+`)`, string(entry))
		}
		runs := s.claim(t)
		if len(runs) != 2 {
			t.Fatalf("%d jobs", len(runs))
		}
		for _, r := range runs {
			if j := jobOf(r); j.LastError != text || j.LastDelay != 1500*time.Millisecond || j.Failures != 3 || j.Attempt != 3 {
				t.Errorf("last error %q, want %q; last delay %v, %d failures, attempt %d, tags %v", j.LastError, text, j.LastDelay, j.Failures, j.Attempt, j.Tags)
			}
			r.Finish()
		}
	}
}

// A job that was taken by hand has counted no claim: such a row is freed like any other that nobody speaks for.
func TestOrphanThatWasNeverClaimed(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into jobs (kind, state, claimed_by) values ('job', 'running', 'ghost')`)
	s := db.stopped(t, drover.SupervisorConfig{})
	s.sweep(t)
	if state := value[drover.State](t, db, `select state from jobs`); state == drover.Running {
		t.Error("it is still running")
	}
}

// A sweep that steps over too much ends before it costs the supervisor its connection, and comes again no sooner than any
// other that took so long.
func TestSweepIsBounded(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		lease   time.Duration
		timeout string
	}{
		"by the lease":                 {8 * time.Second, "0"}, // of which a sweep gets a quarter
		"by the session's own timeout": {time.Minute, "2s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newQuietDB(t).via(t, drover.Config{}, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["statement_timeout"] = test.timeout })
			s := db.stopped(t, drover.SupervisorConfig{Lease: test.lease})
			s.sweep(t) // it is prepared: that too waits for the lock, until the beat's end
			conn := s.Keeper.Link.Current()
			db.Hold(t, `lock table jobs`)
			l := s.Lease.Load()
			s.Keeper.SweepAt, s.Keeper.FloorsBy = time.Time{}, time.Time{}
			reply := store.BeatReply{Alive: true, Clock: float64((s.Keeper.Sweeps + 1) * engine.SweepEvery), Peers: []store.Peer{{ID: l.ID}}}
			var looks []time.Time // at the clock
			s.Now = func() time.Time { looks = append(looks, time.Now()); return looks[len(looks)-1] }
			if err := s.Keeper.Sweep(t.Context(), conn, l, reply); err == nil {
				t.Fatal("a sweep of a locked table")
			}
			end := looks[len(looks)-1]
			took := end.Sub(looks[0])
			if next := s.Keeper.SweepAt.Sub(end); conn.Closed() || next < 8*took || took > 20*time.Second {
				t.Errorf("after %v: closed %t, the next sweep in %v", took, conn.Closed(), next)
			}
		})
	}
}

// If no worker has RetryFor, the claim of a job that was enqueued for later returns no More.
func TestDelayedJobsAreLean(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{Workers: []drover.Worker{harness.DynWorker("k", drover.WorkerOpts{}, doNothing)}})
	db.enqueue(t, dyn{kind: "k"}, &drover.EnqueueOpts{Delay: time.Millisecond})
	db.exec(t, `select pg_sleep(0.01)`)
	s.Claimer.Wake()
	plan := s.Claimer.Request(s.Now())
	s.Claimer.Trip(t.Context(), plan)
	if len(plan.Reply.Jobs) != 1 {
		t.Fatal("no job was claimed")
	}
	if more := plan.Reply.Jobs[0].More; more != nil {
		t.Errorf("the claim returned %+v for a RetryFor that nobody set", *more)
	}
}

// A job that sets nothing has no More, however it was enqueued.
func TestJobsOfATransactionAreLean(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if _, err := tx.Exec(t.Context(), `select pg_sleep(0.01)`); err != nil {
		t.Fatal(err)
	}
	if _, err := db.client.EnqueueTx(t.Context(), tx, dyn{kind: "k"}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := db.client.EnqueueManyTx(t.Context(), tx, []drover.EnqueueItem{{Args: dyn{kind: "k"}}}); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := value[int](t, db, `select count(*) from jobs where scheduled_at <> created_at`); n != 0 {
		t.Errorf("%d of 2 jobs are claimed as if they had been enqueued for later: a More each, for a RetryFor that nobody set", n)
	}
}
