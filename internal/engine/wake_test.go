package engine_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/floors"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// ears hear what the queue notifies.
type ears struct {
	*pgx.Conn
	echo     string // its own channel
	echoed   bool
	notes    int
	payloads []string // of the notifications that heard counted last
	coming   []string
}

func (db *testDB) ears(t testing.TB) *ears {
	t.Helper()
	e := &ears{}
	config := db.Config().ConnConfig
	config.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) {
		if n.Channel == e.echo {
			e.echoed = true
		} else {
			e.notes++
			e.coming = append(e.coming, n.Payload)
		}
	}
	var err error
	if e.Conn, err = pgx.ConnectConfig(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pg.CloseConn(t.Context(), e.Conn) })
	e.echo = fmt.Sprintf("echo %d", e.PgConn().PID())
	for _, channel := range []string{value[string](t, db, store.SQLListen), e.echo} {
		if _, err := e.Exec(t.Context(), "listen "+pgx.Identifier{channel}.Sanitize()); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

// heard counts the notifications since the last call. Its own one comes after all that were committed before. Those may be
// late, because a session notifies the listeners only after its commit.
func (e *ears) heard(t testing.TB) int {
	t.Helper()
	e.echoed = false
	if _, err := e.Exec(t.Context(), "select pg_notify($1, '')", e.echo); err != nil || !e.echoed {
		t.Fatalf("%v; its own notification has come: %t", err, e.echoed)
	}
	n := e.notes
	e.notes, e.payloads, e.coming = 0, e.coming, nil
	return n
}

// dozing is a supervisor of one queue that runs no goroutines; its clock stands still between its polls.
type dozing struct {
	*still
	db    *testDB
	ears  *ears
	queue string
	clock time.Time
}

// hears passes on to it what its ears have heard, and reports whether there was anything.
func (d *dozing) hears(t testing.TB) bool {
	t.Helper()
	d.ears.heard(t)
	heard := false
	for _, note := range d.ears.payloads {
		d.Keeper.Heard(note)
		heard = heard || strings.HasSuffix(note, " "+d.queue)
	}
	return heard
}

func (db *testDB) dozing(t testing.TB, queue string) *dozing {
	t.Helper()
	d := &dozing{still: db.stopped(t, drover.SupervisorConfig{Queues: []drover.Queue{{Name: queue}}}), db: db, ears: db.ears(t), queue: queue, clock: time.Now()}
	d.Now = func() time.Time { return d.clock }
	if _, err := d.Keeper.Link.Get(t.Context()); err != nil || !d.Keeper.Listens() {
		t.Fatalf("%v, or it does not listen", err)
	}
	d.poll(t)
	d.Keeper.TendCalls(t.Context())
	return d
}

// doze makes it as if it had found nothing for some time, and no job were there.
func (d *dozing) doze(t testing.TB, idle time.Duration) {
	t.Helper()
	d.db.exec(t, `delete from jobs where queue = $1`, d.queue)
	c := d.Claimer
	c.Asleep, c.IdleAt, c.Step, c.Next = false, d.clock, engine.AwakePoll, d.clock
	d.poll(t) // it is the lookout from now on
	c.IdleAt, c.Next = d.clock.Add(-idle), d.clock
	d.ears.heard(t)
}

// poll makes the next look, at its time, and reports whether it claimed a job. Floors do not matter here.
func (d *dozing) poll(t testing.TB) bool {
	t.Helper()
	if at := d.Claimer.LookAt(); at.After(d.clock) && !d.Claimer.Asked() {
		d.clock = at
	}
	d.Claimer.Floors.Reset()
	plan := d.Claimer.Request(d.clock)
	if plan == nil {
		t.Error("the claimer would not claim")
		return false
	}
	d.Claimer.Trip(t.Context(), plan)
	q := d.QueueStates()[0]
	q.Buffer.Mu.Lock()
	defer q.Buffer.Mu.Unlock()
	for _, r := range q.Buffer.Rest() {
		d.Settler.Unsettled.Remove(r)
	}
	return len(plan.Reply.Jobs) > 0
}

// beside runs f at a random moment of a poll, or a little before or after it.
func (d *dozing) beside(t testing.TB, f func()) (claimed bool) {
	t.Helper()
	start, lead := make(chan struct{}), time.Duration(rand.Int64N(int64(2*time.Millisecond))) //nolint:gosec // any moment
	var other sync.WaitGroup
	pollFirst := rand.IntN(2) == 0 //nolint:gosec // likewise
	other.Go(func() {
		<-start
		if pollFirst {
			<-time.After(lead)
		}
		f()
	})
	close(start)
	if !pollFirst {
		<-time.After(lead)
	}
	claimed = d.poll(t)
	other.Wait()
	return claimed
}

// tryMany makes the tries of one way, in several queues at a time.
func tryMany(t *testing.T, try func(t *testing.T, db *testDB, d *dozing) (lost string)) {
	t.Helper()
	db := newQuietDB(t)
	const streams = 4
	for i := range streams {
		queue := fmt.Sprint("q", i)
		t.Run(queue, func(t *testing.T) {
			t.Parallel()
			d, tries, lost := db.dozing(t, queue), sizeOf(t, "DROVER_WAKE_TRIES", 300)/streams, 0
			for range tries {
				if how := try(t, db, d); how != "" {
					lost++
					t.Log(how)
				}
				if t.Failed() {
					return
				}
			}
			if lost > 0 {
				t.Errorf("%d of %d wake-ups were lost", lost, tries)
			}
		})
	}
}

// A job enqueued while a supervisor falls asleep is claimed by its last look, or a notification follows.
func TestEnqueueWhileFallingAsleep(t *testing.T) {
	t.Parallel()
	tryMany(t, func(t *testing.T, db *testDB, d *dozing) string {
		t.Helper()
		d.doze(t, engine.SleepAfter)
		claimed := d.beside(t, func() {
			if _, err := db.client.Enqueue(t.Context(), job{}, &drover.EnqueueOpts{Queue: d.queue}); err != nil {
				t.Error(err)
			}
		})
		notified := d.hears(t)
		if notified && !claimed {
			claimed = d.poll(t)
		}
		if claimed {
			return ""
		}
		return fmt.Sprintf("not claimed, notified: %v", notified)
	})
}

// A transaction looks for sleepers before its job can be seen: if it began while the supervisor was awake, the job is
// found by the polls, no later after its commit than it is old, and two of the last polls before it fell asleep.
func TestEnqueueTxWhileFallingAsleep(t *testing.T) {
	t.Parallel()
	slow(t)
	for _, isolation := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead} {
		t.Run(string(isolation), func(t *testing.T) {
			t.Parallel()
			tryMany(t, func(t *testing.T, db *testDB, d *dozing) string {
				t.Helper()
				d.doze(t, engine.SleepAfter-time.Duration(rand.IntN(3))*engine.AwakePoll) //nolint:gosec // any moment
				tx, err := db.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: isolation})
				if err != nil {
					t.Error(err)
					return ""
				}
				check := func(err error) {
					if err != nil {
						t.Error(err)
					}
				}
				var began time.Time // when it has looked for a lookout
				at := d.clock       // of a step
				steps := []func(){
					func() {
						_, err := tx.Exec(t.Context(), "select from jobs limit 1") // repeatable read sees the tables so until its end
						check(err)
					},
					func() {
						began = at
						_, err := db.client.EnqueueTx(t.Context(), tx, job{}, &drover.EnqueueOpts{Queue: d.queue})
						check(err)
					},
					func() { check(tx.Commit(t.Context())) },
				}
				claimed := false
				for _, step := range steps {
					for range rand.IntN(4) { //nolint:gosec // any number of polls in between
						d.poll(t)
					}
					if at = d.clock; rand.IntN(2) == 0 { //nolint:gosec // both ways
						step()
						continue
					}
					at = d.Claimer.LookAt()
					claimed = d.beside(t, step)
				}
				committed := d.clock
				notified := d.hears(t)
				for !claimed && !t.Failed() {
					claimed = d.poll(t)
				}
				age, waited := committed.Sub(began), d.clock.Sub(committed)
				if notified && waited > 0 || waited > age+2*engine.AwakePoll {
					return fmt.Sprintf("notified: %v, age %v, found after %v", notified, age, waited)
				}
				return ""
			})
		})
	}
}

// While a transaction is in progress that found a supervisor awake, that looks every tenth of its sleep. Floors are not at
// issue here.
func TestEnqueueTxThatOutlastsFallingAsleep(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	d := db.dozing(t, "q")
	d.doze(t, engine.SleepAfter)
	var asleep time.Time
	if err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		if _, err := db.client.EnqueueTx(t.Context(), tx, job{}, &drover.EnqueueOpts{Queue: "q"}); err != nil {
			return err
		}
		for asleep = d.clock; d.clock.Sub(asleep) < 10*time.Second; {
			d.poll(t)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if !d.Claimer.Asleep || d.ears.heard(t) > 0 {
		t.Fatal("it notified, or nobody was asleep")
	}
	committed := d.clock
	for !d.poll(t) {
		if t.Failed() {
			return
		}
	}
	if age, waited := committed.Sub(asleep), d.clock.Sub(committed); waited > age/10 {
		t.Errorf("found %v after its commit, asleep for %v", waited, age)
	}
}

// A supervisor that sleeps hears of jobs, however they are enqueued: the polls alone would take a minute.
func TestSleepingSupervisorIsWoken(t *testing.T) {
	t.Parallel()
	slow(t)
	ways := map[string]func(t *testing.T, db *testDB){
		"Enqueue":     func(t *testing.T, db *testDB) { t.Helper(); db.enqueue(t, job{}, nil) },
		"EnqueueMany": func(t *testing.T, db *testDB) { t.Helper(); db.enqueueJobs(t, 1, nil) },
		"EnqueueTx": func(t *testing.T, db *testDB) {
			t.Helper()
			err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
				_, err := db.client.EnqueueTx(t.Context(), tx, job{}, nil)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		},
		"psql": func(t *testing.T, db *testDB) { t.Helper(); db.exec(t, `select drover_enqueue('job')`) },
		"a job due earlier than the one it sleeps for": func(t *testing.T, db *testDB) {
			t.Helper()
			db.enqueue(t, job{}, &drover.EnqueueOpts{Delay: 50 * time.Millisecond})
		},
	}
	type sleeper struct {
		*testDB
		ran chan struct{}
	}
	sleepers := map[string]sleeper{}
	for name := range ways { // they fall asleep at the same time, and in one test: it does little else
		s := sleeper{newQuietDB(t), make(chan struct{}, 1)}
		s.enqueue(t, job{}, &drover.EnqueueOpts{Delay: time.Hour})
		s.launch(t, drover.SupervisorConfig{PollInterval: time.Minute, Workers: handling(func(context.Context, *drover.Job, int) error {
			s.ran <- struct{}{}
			return nil
		})})
		sleepers[name] = s
	}
	for _, s := range sleepers {
		s.Asleep(t)
	}
	harness.After(t, 6*time.Second) // the polls, doubled, are six seconds apart by now
	for name, enqueue := range ways {
		s := sleepers[name]
		enqueued := time.Now()
		enqueue(t, s.via(t, drover.Config{})) // another process
		receive(t, s.ran)
		if d := time.Since(enqueued); d > 4*time.Second {
			t.Errorf("%s: started after %v", name, d)
		}
	}
}

// However close to the moment of falling asleep a job is enqueued, it is found.
func TestNoWakeUpIsLostWhileFallingAsleep(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	other := db.via(t, drover.Config{})
	var queues []drover.Queue
	for i := range 8 {
		queues = append(queues, drover.Queue{Name: fmt.Sprint("q", i), Concurrency: 1})
	}
	var tries sync.WaitGroup
	for _, q := range queues {
		ran := make(chan struct{}, 1)
		db.launch(t, drover.SupervisorConfig{Queues: []drover.Queue{q}, PollInterval: time.Minute, Workers: handling(func(context.Context, *drover.Job, int) error {
			ran <- struct{}{}
			return nil
		})})
		tries.Go(func() {
			batch := make([]drover.EnqueueItem, engine.TrickleBurst+2) // that keep it awake
			for i := range batch {
				batch[i] = drover.EnqueueItem{Args: job{}, Opts: &drover.EnqueueOpts{Queue: q.Name}}
			}
			for range 15 {
				if _, err := other.client.EnqueueMany(t.Context(), batch); err != nil {
					t.Error(err)
					return
				}
				for range batch {
					<-ran
				}
				<-time.After(engine.SleepAfter - 15*time.Millisecond + time.Duration(rand.IntN(40))*time.Millisecond) //nolint:gosec // any moment
				enqueued := time.Now()
				if _, err := other.client.Enqueue(t.Context(), job{}, &drover.EnqueueOpts{Queue: q.Name}); err != nil {
					t.Error(err)
					return
				}
				select {
				case <-ran:
				case <-time.After(20 * time.Second):
					t.Error("a job was not found for 20 s")
					return
				}
				if d := time.Since(enqueued); d > 3*time.Second {
					t.Errorf("a job was found after %v", d)
				}
			}
		})
	}
	tries.Wait()
}

// A few jobs a second are notified one by one, and the supervisor stays asleep. With more jobs it wakes up and
// looks by itself.
func TestATrickleDoesNotWake(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	ran := make(chan struct{}, 100)
	db.launch(t, drover.SupervisorConfig{PollInterval: time.Minute, Workers: handling(func(context.Context, *drover.Job, int) error {
		ran <- struct{}{}
		return nil
	})})
	db.Asleep(t)
	heard, other := db.ears(t), db.via(t, drover.Config{})
	for range engine.TrickleBurst {
		enqueued := time.Now()
		other.enqueue(t, job{}, nil)
		receive(t, ran)
		if d := time.Since(enqueued); d > 3*time.Second {
			t.Errorf("started after %v", d)
		}
		harness.After(t, time.Second/engine.TrickleRate)
	}
	heard.heard(t)
	wakes := slices.DeleteFunc(heard.payloads, func(note string) bool { return !strings.HasPrefix(note, "wake ") }) // a call that is answered late is passed on as well
	if asleep := value[bool](t, db, harness.SQLAsleep); !asleep || len(wakes) != engine.TrickleBurst {
		t.Errorf("%d jobs called %q, asleep: %t", engine.TrickleBurst, wakes, asleep)
	}
	other.enqueueJobs(t, 3*engine.TrickleBurst, nil)
	db.Soon(t, 30*time.Second, "many jobs at once did not wake it", `select exists (select from drover_on_duty where duty = 'lookout')`)
}

// A queue that is added to a supervisor that sleeps has somebody on call, too, and so has a queue of a supervisor that registers anew.
func TestQueueAddedInSleepIsOnCall(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	sup := db.launch(t, drover.SupervisorConfig{PollInterval: time.Minute, Lease: 6 * time.Second}) // a beat each second
	db.Asleep(t)
	if err := sup.AddQueue(t.Context(), drover.Queue{Name: "more"}); err != nil {
		t.Fatal(err)
	}
	const both = `select count(distinct queue) = 2 and bool_and(duty = 'on call') from drover_on_duty`
	db.waitFor(t, 30*time.Second, both)
	old := value[string](t, db, `select id from drover_supervisors`)
	db.exec(t, `update drover_supervisors set lost_at = now(), epoch = epoch + 1`)
	db.waitFor(t, 30*time.Second, `select bool_and(id <> $1) from drover_supervisors`, old)
	db.waitFor(t, 30*time.Second, both)
}

func TestWithoutNotifyThePollsFindJobs(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	ran := make(chan struct{}, 1)
	db.launch(t, drover.SupervisorConfig{DisableNotify: true, PollInterval: 200 * time.Millisecond, Workers: handling(func(context.Context, *drover.Job, int) error {
		ran <- struct{}{}
		return nil
	})})
	db.waitFor(t, 30*time.Second, `select count(*) = 1 from drover_supervisors`)
	harness.After(t, 600*time.Millisecond)
	db.via(t, drover.Config{}).enqueue(t, job{}, nil)
	receive(t, ran)
	if n := value[int](t, db, `select count(*) from drover_crews`); n > 0 {
		t.Errorf("%d crews would be notified in vain", n)
	}
}

// Nobody is notified of a cancel before LISTEN: the first heartbeat has to come behind it, and finds it.
func TestFirstHeartbeatListens(t *testing.T) {
	t.Parallel()
	seen := harness.NewStatements()
	db := newQuietDB(t).via(t, drover.Config{}, func(c *pgxpool.Config) { c.ConnConfig.Tracer = seen })
	db.launch(t, drover.SupervisorConfig{})
	db.waitFor(t, 20*time.Second, `select count(*) = 1 from drover_supervisors where beat > 0`)
	if _, listening := seen.Since(); listening != 1 || seen.Deaf() > 0 {
		t.Errorf("%d connections listen, %d heartbeats went before LISTEN", listening, seen.Deaf())
	}
}

// traced returns another client, whose statements are counted.
func (db *testDB) traced(t testing.TB, cfg drover.Config) (*testDB, *harness.Statements) {
	t.Helper()
	counted := harness.NewStatements()
	return db.via(t, cfg, func(c *pgxpool.Config) { c.ConnConfig.Tracer = counted }), counted
}

// An idle supervisor sends nothing but a heartbeat, a look for jobs, a sweep where it is its turn
// and a step of the pruner, each as rarely as it must, with the default settings: half a statement a second, or 1.3
// where it hears no notifications.
func TestIdleSupervisorIsQuiet(t *testing.T) {
	t.Parallel()
	slow(t)
	const window = 16 * time.Second
	cases := []struct {
		name string
		cfg  drover.SupervisorConfig
		look time.Duration
		most float64 // statements a second
	}{
		{"LISTEN", drover.SupervisorConfig{}, 5 * time.Second, 0.5},
		{"without LISTEN", drover.SupervisorConfig{DisableNotify: true}, time.Second, 1.3},
	}
	type idle struct {
		*testDB
		book    harness.Logbook
		counted *harness.Statements
		every   map[string]time.Duration
	}
	supervisors := make([]*idle, len(cases))
	for i, c := range cases { // they wait at the same time, and in one test: it does little else
		s := &idle{testDB: newQuietDB(t)}
		traced, counted := s.traced(t, drover.Config{Logger: slog.New(&s.book)})
		sup := traced.launch(t, c.cfg)
		s.counted = counted
		s.every = map[string]time.Duration{store.SQLBeat: harness.EngineOf(sup.Supervisor).Cfg.Lease / 6, store.SQLClaim: c.look, store.SQLSweep: engine.SweepEvery * time.Second, store.SQLRetain: harness.EngineOf(sup.Supervisor).Pruner.Every}
		rate := 0.0
		for _, period := range s.every {
			rate += 1 / period.Seconds()
		}
		if rate > c.most {
			t.Errorf("%s: %.3f statements a second, may be %v", c.name, rate, c.most)
		}
		supervisors[i] = s
	}
	harness.After(t, engine.RestAfter+time.Second) // the polls double up to their interval
	// And come more often while a transaction of any test is in progress that may have found it awake.
	id := value[int64](t, supervisors[0].testDB, `select pg_current_xact_id()::text::bigint`)
	supervisors[0].waitFor(t, 3*time.Minute, `select pg_snapshot_xmin(pg_current_snapshot())::text::bigint > $1`, id)
	harness.After(t, 2*floors.LookFor)
	began := make([]time.Time, len(cases))
	for i, s := range supervisors {
		began[i] = time.Now()
		s.counted.Since()
	}
	harness.After(t, window)
	for i, s := range supervisors {
		calls, _ := s.counted.Since()
		took := time.Since(began[i]) // more, if this goroutine was not woken in time
		for sql, n := range calls {
			if period := s.every[sql]; period == 0 || n > int(took/period)+1 {
				t.Errorf("%s: in %v, %d times:\n%s", cases[i].name, took, n, sql)
			}
		}
		if calls[store.SQLBeat] == 0 || calls[store.SQLClaim] == 0 {
			t.Errorf("%s: %d heartbeats and %d looks in %v", cases[i].name, calls[store.SQLBeat], calls[store.SQLClaim], took)
		}
		if messages := s.book.From(slog.LevelWarn); len(messages) > 0 {
			t.Errorf("%s: %d warnings, the first: %s", cases[i].name, len(messages), messages[0])
		}
	}
}

// A supervisor listens on one connection, however many queues it serves, and on none where it must not.
func TestOneConnectionListens(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	for want, cfg := range []drover.SupervisorConfig{{DisableNotify: true}, {}} {
		traced, counted := db.traced(t, drover.Config{})
		cfg.Queues = []drover.Queue{{Name: "a"}, {Name: "b"}, {Name: "c"}}
		cfg.Lease = time.Hour // a beat that took a sixth of it would cost the connection
		sup := traced.launch(t, cfg)
		db.waitFor(t, 30*time.Second, `select count(*) = 1 from drover_supervisors`)
		if err := sup.AddQueue(t.Context(), drover.Queue{Name: "d"}); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() bool { // several beats
			harness.EngineOf(sup.Supervisor).Keeper.Interrupt()
			return value[bool](t, db, `select bool_and(beat > 3) from drover_supervisors`)
		})
		if _, listening := counted.Since(); listening != want {
			t.Errorf("%d connections listen, want %d", listening, want)
		}
		sup.Stop(t)
	}
}

// A supervisor without a free slot is no lookout: otherwise enqueues would not notify a supervisor with free
// slots.
func TestAFullSupervisorIsNoLookout(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	release, started := make(chan struct{}), make(chan struct{}, 4)
	db.launch(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 2}}, Workers: handling(func(context.Context, *drover.Job, int) error {
		started <- struct{}{}
		<-release
		return nil
	})})
	for n := range 2 {
		db.enqueue(t, job{n}, nil)
		receive(t, started)
	}
	db.Soon(t, 30*time.Second, "it has no room, and is the lookout", `select not exists (select from drover_on_duty where duty = 'lookout')`)
	close(release)
	db.enqueue(t, job{2}, nil) // and it is notified again
	receive(t, started)
}

// Many producers wake up sleeping supervisors, and are not slowed down by notifications from then on.
func TestManyProducersDoNotNotifyWhoIsAwake(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	other := db.via(t, drover.Config{})
	heard := db.ears(t)
	var sups []*harness.Launched
	for range 4 {
		sups = append(sups, db.launch(t, drover.SupervisorConfig{PollInterval: time.Minute}))
	}
	db.waitFor(t, time.Minute, `select count(*) = 4 and bool_and(duty = 'on call') from drover_on_duty`)
	heard.heard(t)
	const producers, each = 16, 100
	for _, all := range []bool{false, true} { // from their sleep, and then while one is awake
		if all {
			db.waitFor(t, time.Minute, `select count(*) = $1 from jobs where state = 'completed'`, producers*each)
			for _, sup := range sups { // on a busy machine they find no job for a while, and fall asleep in between
				sup.Stop(t)
			}
			db.dozing(t, "default").doze(t, 0) // is the lookout, and stays so
			heard.heard(t)
		}
		var producing sync.WaitGroup
		for range producers {
			producing.Go(func() {
				for range each {
					if _, err := other.client.Enqueue(t.Context(), job{}, nil); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		producing.Wait()
		notes := heard.heard(t)
		t.Logf("awake: %v, %d enqueues sent %d notifications", all, producers*each, notes)
		if most := map[bool]int{false: producers * each / 2, true: 0}[all]; notes > most || !all && notes == 0 {
			t.Errorf("awake: %v, %d enqueues sent %d notifications", all, producers*each, notes)
		}
	}
}

// fullBesideIdle launches a supervisor whose queue busy has its one job at work until release is closed, and whose queue
// idle has nothing to do.
func (db *testDB) fullBesideIdle(t testing.TB) (release chan struct{}, started chan int) {
	t.Helper()
	release, started = make(chan struct{}), make(chan int, 2)
	db.launch(t, drover.SupervisorConfig{
		PollInterval: time.Minute, Queues: []drover.Queue{{Name: "busy", Concurrency: 1}, {Name: "idle"}},
		Workers: handling(func(_ context.Context, _ *drover.Job, n int) error {
			started <- n
			<-release
			return nil
		}),
	})
	db.enqueue(t, job{1}, &drover.EnqueueOpts{Queue: "busy"})
	receive(t, started)
	return release, started
}

// a slot that gets free is used immediately, also where another queue has room and nothing to do.
func TestFreeSlotIsUsedBesideAnIdleQueue(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	release, started := db.fullBesideIdle(t)
	db.enqueue(t, job{2}, &drover.EnqueueOpts{Queue: "busy"})
	db.Asleep(t)
	harness.After(t, 6*time.Second) // the polls, doubled, are six seconds apart by now
	freed := time.Now()
	close(release)
	receive(t, started)
	if d := time.Since(freed); d > 4*time.Second {
		t.Errorf("started %v after the slot got free", d)
	}
}

// A supervisor that has got room again goes on call. Otherwise no enqueue would wake it.
func TestQueueWithRoomAgainIsWoken(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	release, started := db.fullBesideIdle(t)
	db.Asleep(t)
	db.enqueue(t, job{3}, &drover.EnqueueOpts{Queue: "busy"}) // it is notified, has no room, and is not on call from then on
	const onCall = `select bool_or(queue = 'busy') from drover_on_duty`
	db.waitFor(t, 20*time.Second, `select not (`+onCall+`)`)
	close(release)
	receive(t, started)
	db.waitFor(t, 20*time.Second, onCall)
	db.via(t, drover.Config{}).enqueue(t, job{2}, &drover.EnqueueOpts{Queue: "busy"})
	receive(t, started)
}

// A supervisor that stops takes nothing any more: while it drains others are woken.
func TestDrainingSupervisorIsNotTakenForAwake(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	release, started := make(chan struct{}), make(chan struct{}, 1)
	stopping := db.launch(t, drover.SupervisorConfig{Workers: handling(func(context.Context, *drover.Job, int) error {
		started <- struct{}{}
		<-release
		return nil
	})})
	db.enqueue(t, job{}, nil)
	receive(t, started)
	stopping.Cancel()
	db.waitFor(t, 20*time.Second, `select not exists (select from drover_on_duty)`)
	close(release)
}

// While a forgotten transaction keeps dead rows, jobs are found as soon as without it: the near sweeps find
// the jobs of transactions, which are behind the floors of a busy queue when they commit.
func TestHeldSnapshotDelaysNoLateCommit(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.Hold(t, snapshot)
	db.exec(t, `insert into jobs (id, kind) select (select left(drover_ulid(), 10)) || lpad(n::text, 16, '0'), 'job' from generate_series(1, 30000) n`)
	db.exec(t, `delete from jobs`)
	const n = 300
	var mu sync.Mutex
	late := make(map[int]time.Duration, n) // from the commit to the start
	started := func(i int, at time.Time) {
		mu.Lock()
		defer mu.Unlock()
		late[i] += time.Duration(at.UnixNano())
	}
	committed := func(i int, at time.Time) {
		mu.Lock()
		defer mu.Unlock()
		late[i] -= time.Duration(at.UnixNano())
	}
	var running sync.WaitGroup
	running.Add(n)
	db.launch(t, drover.SupervisorConfig{PollInterval: time.Minute, Queues: []drover.Queue{{Concurrency: 50}}, Workers: handling(func(_ context.Context, _ *drover.Job, i int) error {
		started(i, time.Now())
		running.Done()
		return nil
	})})
	other := db.via(t, drover.Config{})
	var producing sync.WaitGroup
	for p := range 6 {
		producing.Go(func() {
			for i := p; i < n; i += 6 {
				var err error
				if p < 3 {
					_, err = other.client.Enqueue(t.Context(), job{i}, nil)
				} else {
					err = pgx.BeginFunc(t.Context(), other, func(tx pgx.Tx) error {
						_, err := other.client.EnqueueTx(t.Context(), tx, job{i}, nil)
						<-time.After(20 * time.Millisecond) // the application does this besides
						return err
					})
				}
				if err != nil {
					t.Error(err)
					return
				}
				committed(i, time.Now())
			}
		})
	}
	producing.Wait()
	running.Wait()
	mu.Lock()
	defer mu.Unlock()
	for i, d := range late {
		if d > 3*time.Second { // a near sweep of 2 s comes every 100 ms
			t.Errorf("job %d started %v after its commit", i, d)
		}
	}
}

// twoOnCall returns two supervisors of a queue that sleep and are on call.
func twoOnCall(t *testing.T) (db *testDB, a, b *dozing) {
	t.Helper()
	db = newQuietDB(t)
	a, b = db.dozing(t, "q"), db.dozing(t, "q")
	for _, d := range []*dozing{a, b} {
		d.doze(t, engine.SleepAfter)
		d.poll(t)
		d.ears.heard(t)
	}
	return db, a, b
}

// fill takes or frees all slots of a supervisor.
func (d *dozing) fill(busy bool) {
	q := d.QueueStates()[0]
	if q.Pending.Store(0); busy {
		q.Pending.Store(int64(q.Slots))
	}
}

// onCall lists the sessions that an enqueue may notify, and how many there are.
func (db *testDB) onCall(t testing.TB) int {
	t.Helper()
	return value[int](t, db, `select count(*) from drover_on_duty where duty = 'on call'`)
}

// A supervisor that is notified and has no room leaves its slot and notifies the others. It comes back when it has room,
// and looks then: enqueues in between have not notified it.
func TestACallWithoutRoomIsHandedOn(t *testing.T) {
	t.Parallel()
	db, a, b := twoOnCall(t)
	if n := db.onCall(t); n != 2 {
		t.Fatalf("%d are on call", n)
	}
	for _, d := range []*dozing{a, b} {
		d.fill(true)
	}
	db.via(t, drover.Config{}).enqueue(t, job{1}, &drover.EnqueueOpts{Queue: "q"})
	if !a.hears(t) || !b.hears(t) {
		t.Fatal("nobody was notified")
	}
	handOn := func(d *dozing) {
		d.clock = d.clock.Add(time.Second)
		d.Claimer.Request(d.clock)
		d.Keeper.TendCalls(t.Context())
	}
	handOn(a)
	if n := db.onCall(t); n != 1 {
		t.Errorf("%d are on call, want the other one", n)
	}
	b.ears.heard(t)
	if len(b.ears.payloads) != 1 || !strings.HasPrefix(b.ears.payloads[0], "pass ") {
		t.Errorf("handed on: %q", b.ears.payloads)
	}
	handOn(b)
	if a.ears.heard(t); db.onCall(t) != 0 || !slices.ContainsFunc(a.ears.payloads, func(note string) bool { return strings.HasPrefix(note, "all ") }) {
		t.Errorf("%d are on call, at the end %q", db.onCall(t), a.ears.payloads)
	}
	handOn(a)
	handOn(b)
	if a.ears.heard(t); len(a.ears.payloads) > 0 {
		t.Errorf("two full supervisors go on: %q", a.ears.payloads)
	}

	b.fill(false)
	b.Claimer.Wake() // as the run does whose slot is free now
	if !b.poll(t) {
		t.Error("the job was not found")
	}
	b.clock = b.clock.Add(time.Second)
	b.Keeper.TendCalls(t.Context())
	if n := db.onCall(t); n != 1 || !b.Claimer.Asked() {
		t.Errorf("%d are on call, and it looks: %v", n, b.Claimer.Asked())
	}
}

// A supervisor that has room and is not on call is notified of jobs for which no supervisor on call has room.
func TestAllAreToldIfNobodyIsOnCall(t *testing.T) {
	t.Parallel()
	db, full, free := twoOnCall(t)
	enqueue := func() { db.via(t, drover.Config{}).enqueue(t, job{1}, &drover.EnqueueOpts{Queue: "q"}) }
	handOn := func(d *dozing) {
		d.clock = d.clock.Add(time.Second)
		d.Claimer.Request(d.clock)
		d.Keeper.TendCalls(t.Context())
	}
	free.fill(true)
	enqueue()
	free.hears(t)
	handOn(free)
	if full.hears(t); !full.poll(t) || db.onCall(t) != 1 {
		t.Fatalf("%d are on call", db.onCall(t))
	}
	free.fill(false)
	free.Claimer.Wake()
	free.poll(t)
	free.ears.heard(t)
	full.fill(true)
	enqueue()
	full.hears(t)
	handOn(full)
	free.hears(t)
	if !free.Claimer.Asked() || !free.poll(t) {
		t.Error("the one with room has not looked")
	}
}

// A lookout that gets full hands on the jobs of enqueues that saw it. Those are committed by then, so no job is lost
// between the two.
func TestEnqueueWhileTheLookoutFills(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	const streams = 4
	for i := range streams {
		queue := fmt.Sprint("q", i)
		t.Run(queue, func(t *testing.T) {
			t.Parallel()
			lookout, other, lost := db.dozing(t, queue), db.dozing(t, queue), 0
			other.doze(t, engine.SleepAfter)
			other.poll(t)
			tries := sizeOf(t, "DROVER_WAKE_TRIES", 300) / streams
			for range tries {
				db.exec(t, `delete from jobs where queue = $1`, queue)
				lookout.fill(false)
				lookout.doze(t, 0)
				lookout.fill(true)
				other.ears.heard(t)
				lookout.alongside(t, func() {
					if _, err := db.client.Enqueue(t.Context(), job{}, &drover.EnqueueOpts{Queue: queue}); err != nil {
						t.Error(err)
					}
				}, func() {
					lookout.Claimer.LeavePosts(t.Context())
					lookout.Keeper.TendCalls(t.Context())
				})
				other.hears(t)
				if !other.Claimer.Asked() || !other.poll(t) {
					lost++
				}
				other.clock = other.clock.Add(time.Second)
				other.Keeper.TendCalls(t.Context())
				if t.Failed() {
					return
				}
			}
			if lost > 0 {
				t.Errorf("%d of %d wake-ups were lost", lost, tries)
			}
		})
	}
}

// alongside runs both at about the same time.
func (d *dozing) alongside(t testing.TB, f, g func()) {
	t.Helper()
	lead := time.Duration(rand.Int64N(int64(2 * time.Millisecond))) //nolint:gosec // any moment
	var other sync.WaitGroup
	first, second := f, g
	if rand.IntN(2) == 0 { //nolint:gosec // likewise
		first, second = g, f
	}
	other.Go(first)
	<-time.After(lead)
	second()
	other.Wait()
}

// A supervisor that hears too many notifications for others does not listen for a while. It asks for a slot instead, and
// listens again when it has one.
func TestWhoHearsTooMuchStopsListening(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	d := db.dozing(t, "q")
	d.fill(true)
	onCall := value[int64](t, db, `select on_call from drover_crews`)
	d.Keeper.Heard(fmt.Sprintf("wake %d %d 0 0 q", value[int64](t, db, `select (select on_call from drover_crews) + i from generate_series(0, 7) i
		where (select on_call from drover_crews) + i in (select classid::bigint << 32 | objid::bigint from pg_locks where locktype = 'advisory' and mode = 'ExclusiveLock')`), 0))
	later := func() {
		d.clock = d.clock.Add(time.Second)
		d.Claimer.Request(d.clock)
		d.Keeper.TendCalls(t.Context())
	}
	if later(); db.onCall(t) != 0 {
		t.Fatal("it is on call, and has no room")
	}
	end := db.OnDuty(t, onCall, onCall+1, onCall+2, onCall+3, onCall+4, onCall+5, onCall+6, onCall+7)
	d.fill(false)
	d.Claimer.Wake()
	d.poll(t)
	for range 50 { // of others
		d.Keeper.Heard(fmt.Sprintf("wake %d %d 0 0 q", onCall, onCall+1))
	}
	later()
	if d.Keeper.Listens() || d.Keeper.Listening != (store.Session{}) {
		t.Error("it listens on")
	}
	end()
	later()
	if db.onCall(t) != 1 || !d.Claimer.Asked() || !d.Keeper.Listens() {
		t.Errorf("%d are on call, and it looks: %v", db.onCall(t), d.Claimer.Asked())
	}
}

// A notification makes only those look whose slots it names, and of a queue that they serve.
func TestNotificationsForOthers(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	d := db.dozing(t, "q")
	d.doze(t, engine.SleepAfter)
	d.poll(t)
	slot := value[int64](t, db, `select key from (select (c.on_call + i) as key from drover_crews c, generate_series(0, 7) i) k
		where not (pg_try_advisory_lock_shared(key) and pg_advisory_unlock_shared(key))`)
	for note, looks := range map[string]bool{
		fmt.Sprintf("wake %d %d 0 0 q", slot+1, slot+2): false,
		fmt.Sprintf("wake %d %d 0 0 other", slot, slot): false,
		fmt.Sprintf("pass %d %d 0 0 q", slot-1, slot+1): false,
		"wake": false, "wake x y z": false, "all 0 0 other": false, "": false,
		fmt.Sprintf("wake %d %d 0 0 q", slot+1, slot): true,
		fmt.Sprintf("pass %d %d 0 0 q", slot, slot+1): true,
		"all 0 0 q": true,
	} {
		d.Keeper.Heard(note)
		if got := d.Claimer.Asked(); got != looks {
			t.Errorf("%q: it looks: %v", note, got)
		}
		if d.Claimer.Asked() {
			d.poll(t)
		}
	}
	d.Keeper.Heard(fmt.Sprintf("wake %d %d %d 60000000 q", slot, slot, time.Now().Add(time.Minute).UnixMicro()))
	if due := d.Claimer.NextDue().Sub(d.clock); d.Claimer.Asked() || due < 59*time.Second || due > 61*time.Second {
		t.Errorf("a job that is due in a minute: it looks %v, and again in %v", d.Claimer.Asked(), due)
	}
}

// A supervisor whose claims fail is no lookout: enqueues notify others.
func TestWhoseClaimsFailIsNoLookout(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{Workers: harness.DoingNothing()})
	lookout := func() bool {
		return value[bool](t, db, `select exists (select from drover_on_duty where duty = 'lookout')`)
	}
	s.claim(t)
	if !lookout() {
		t.Fatal("it is awake, and not the lookout")
	}
	db.exec(t, `create function nono() returns trigger language plpgsql as $$ begin raise exception 'no'; end $$`)
	db.exec(t, `create trigger nono before update on jobs for each statement execute function nono()`)
	for range 3 {
		s.Claimer.Wake()
		plan := s.Claimer.Request(s.Now())
		if plan == nil {
			t.Fatal("no claim")
		}
		s.Claimer.Trip(t.Context(), plan)
		if !s.Claimer.Overstays(s.Now()) {
			t.Fatal("it would stay the lookout")
		}
		s.Claimer.LeavePosts(t.Context())
		if lookout() {
			t.Error("it is the lookout still")
		}
		s.Claimer.Refused.Failed = nil
	}
}

// A transaction saw a lookout that has no room any more, and commits after this has handed on. The supervisor that was
// notified instead looks again for as long as the transaction is open.
func TestEnqueueTxThatOutlastsTheLookout(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	d := db.dozing(t, "q")
	d.doze(t, engine.SleepAfter)
	d.poll(t)
	for range 20 { // until its polls are rare
		d.poll(t)
	}
	lookout, onCall := value[int64](t, db, `select lookout from drover_crews`), value[int64](t, db, `select key from (select (c.on_call + i) as key from drover_crews c, generate_series(0, 7) i) k
		where not (pg_try_advisory_lock_shared(key) and pg_advisory_unlock_shared(key))`)
	fills := db.OnDuty(t, lookout)
	var asleep time.Time
	if err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		if _, err := db.client.EnqueueTx(t.Context(), tx, job{}, &drover.EnqueueOpts{Queue: "q"}); err != nil {
			return err
		}
		fills()
		d.Keeper.Heard(fmt.Sprintf("pass %d %d 0 0 q", onCall, onCall))
		for asleep = d.clock; d.clock.Sub(asleep) < 10*time.Second; {
			d.poll(t)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if d.hears(t) {
		t.Fatal("the transaction has notified")
	}
	committed := d.clock
	for !d.poll(t) {
		if t.Failed() {
			return
		}
	}
	if age, waited := committed.Sub(asleep), d.clock.Sub(committed); waited > age/10 {
		t.Errorf("found %v after its commit, %v after the notification", waited, age)
	}
}
