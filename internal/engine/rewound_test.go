package engine_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/floors"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/migrations"
)

// remember keeps a copy of all of drover's tables, for goBack.
func (db *testDB) remember(t testing.TB) (tables []string) {
	t.Helper()
	tables = value[[]string](t, db, `select array_agg(tablename::text order by tablename) from pg_tables where schemaname = current_schema() and tablename <> $1`, migrations.Table)
	tx, err := db.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	for _, table := range tables {
		if _, err := tx.Exec(t.Context(), `create table before_`+table+` as table `+table); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	return tables
}

// goBack puts some tables back to what they were, in one transaction.
func (db *testDB) goBack(t testing.TB, tables ...string) {
	t.Helper()
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	do := func(sql string, args ...any) {
		t.Helper()
		if _, err := tx.Exec(t.Context(), sql, args...); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	do(`set local session_replication_role = replica`) // triggers saw these rows when they were new
	do(`select drover_lock_tables($1)`, tables)
	do(`truncate ` + strings.Join(tables, ", "))
	for _, table := range tables {
		var columns string
		if err := tx.QueryRow(t.Context(), `select string_agg(quote_ident(attname), ', ') from pg_attribute
			where attrelid = $1::text::regclass and attnum > 0 and not attisdropped and attgenerated = ''`, table).Scan(&columns); err != nil {
			t.Fatal(err)
		}
		do(fmt.Sprintf(`insert into %s (%s) overriding system value select %[2]s from before_%[1]s`, table, columns))
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// fleetLease is as long as a pause of the process may be: a supervisor that loses a lease has handlers called once more
// than their jobs' rows show.
const fleetLease = 12 * time.Second

// fleet has some supervisors under load, with jobs in every state when the tables are saved.
type fleet struct {
	db      *testDB
	lease   time.Duration
	sups    []*harness.Launched
	counted []*harness.Statements
	books   []*harness.Logbook
	tables  []string
	release chan struct{} // lets the handlers go on that were called before the database went back

	mu     sync.Mutex
	calls  map[string]int
	causes map[string]error // of handlers whose context ended
	began  map[string]bool  // handlers that have begun
}

func (f *fleet) handle(ctx context.Context, j *drover.Job, n int) error {
	f.mu.Lock()
	f.calls[j.ID]++
	first := f.calls[j.ID] == 1
	f.began[j.ID] = true
	f.mu.Unlock()
	switch n {
	case isReleased:
		if first {
			<-f.release
		}
	case staysOn: // it works on while the database goes back
		if first {
			<-ctx.Done()
			f.mu.Lock()
			f.causes[j.ID] = context.Cause(ctx)
			f.mu.Unlock()
			return ctx.Err()
		}
	case dies:
		return drover.Discard(errBoom)
	}
	return nil
}

// The jobs of a fleet do this, by their number.
const (
	done = iota
	isReleased
	staysOn
	dies
)

func (f *fleet) called(id string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[id]
}

// cause returns why the context of a job's first handler ended. The first handler may report it only after the second
// handler has returned.
func (f *fleet) cause(t testing.TB, id string) (cause error) {
	t.Helper()
	eventually(t, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		cause = f.causes[id]
		return cause != nil
	})
	return cause
}

func newFleet(t testing.TB, n int, lease time.Duration) *fleet {
	t.Helper()
	f := &fleet{db: newQuietDB(t), lease: lease, release: make(chan struct{}), calls: map[string]int{}, causes: map[string]error{}, began: map[string]bool{}}
	for range n {
		book := &harness.Logbook{}
		client, counted := f.db.traced(t, drover.Config{Logger: slog.New(book)})
		f.sups = append(f.sups, client.launch(t, drover.SupervisorConfig{
			Lease: lease, DrainTimeout: time.Millisecond, PollInterval: 500 * time.Millisecond, Workers: handling(f.handle),
			Queues: []drover.Queue{{Concurrency: 10}, {Name: "narrow", Concurrency: 1}},
		}))
		f.counted, f.books = append(f.counted, counted), append(f.books, book)
	}
	for _, sup := range f.sups {
		eventually(t, func() bool { return harness.EngineOf(sup.Supervisor).Lease.Load() != nil })
	}
	return f
}

// aged has the contents of the tables when they were saved.
type aged struct {
	completed, dead, later string   // ended, or not due
	running, waiting       []string // that completed afterwards
	once                   string   // of a single attempt: it ran, and completed afterwards
	stays                  string   // of which a handler is at work all the time
	forgotten              string   // enqueued afterwards
}

// age brings jobs into all states, remembers the tables, and lets the work and the heartbeats go on.
func (f *fleet) age(t testing.TB) (a aged) {
	t.Helper()
	db := f.db
	a.completed, a.dead = db.enqueue(t, job{done}, nil), db.enqueue(t, job{dies}, nil)
	a.later = db.enqueue(t, job{done}, &drover.EnqueueOpts{ScheduledAt: time.Now().Add(time.Hour)})
	db.waitFor(t, 30*time.Second, `select count(*) = 2 from jobs where finalized_at is not null`)
	a.once, a.stays = db.enqueue(t, job{isReleased}, &drover.EnqueueOpts{MaxAttempts: 1}), db.enqueue(t, job{staysOn}, nil)
	for range 3 * len(f.sups) { // as many of them wait for a slot
		a.running = append(a.running, db.enqueue(t, job{isReleased}, &drover.EnqueueOpts{Queue: "narrow"}))
	}
	eventually(t, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.began) == 2+2+len(f.sups)
	})
	// A job that is claimed ahead and waits too long goes back: then it waits in the table.
	db.waitFor(t, 30*time.Second, `select count(*) = $1 from jobs where queue = 'narrow' and state = 'running'`, len(f.sups))
	f.tables = db.remember(t)
	a.running = slices.DeleteFunc(a.running, func(id string) bool {
		waiting := value[bool](t, db, `select state <> 'running' from before_jobs where id = $1`, id)
		if waiting {
			a.waiting = append(a.waiting, id)
		}
		return waiting
	})
	a.forgotten = db.enqueue(t, job{done}, nil)
	close(f.release)
	db.waitFor(t, 30*time.Second, `select count(*) = 1 from jobs where state = 'running'`)
	eventually(t, func() bool {
		for _, sup := range f.sups {
			harness.EngineOf(sup.Supervisor).Keeper.Interrupt()
		}
		return value[bool](t, db, `select bool_and(s.beat > b.beat + 1) from drover_supervisors s join before_drover_supervisors b using (id)`)
	})
	return a
}

// worksAgain fails the test unless new jobs are done, and returns how long that took.
func (f *fleet) worksAgain(t testing.TB) {
	t.Helper()
	began := time.Now()
	for _, queue := range []string{"default", "narrow"} {
		id := f.db.enqueue(t, job{done}, &drover.EnqueueOpts{Queue: queue})
		f.db.Soon(t, 15*f.lease, "a new job of queue "+queue+" waits for ever", `select state = 'completed' from jobs where id = $1`, id)
	}
	t.Logf("works again after %v, with a lease of %v", time.Since(began).Round(time.Millisecond), f.lease)
}

// isCalm fails the test if anything was done again and again without a pause.
func (f *fleet) isCalm(t testing.TB, since time.Time) {
	t.Helper()
	for _, counted := range f.counted {
		calls, _ := counted.Since()
		most := 200 + 40*time.Since(since).Seconds() // a loop without a pause: hundreds a second, also on a slow machine
		for sql, n := range calls {
			if float64(n) > most {
				t.Errorf("%d times in %v: %.200s", n, time.Since(since), strings.TrimSpace(sql))
			}
		}
	}
}

// F-8, S-8: all of the tables go back under running supervisors, to beats and epochs of before.
func TestTheDatabaseGoesBack(t *testing.T) {
	t.Parallel()
	slow(t)
	f := newFleet(t, 2, fleetLease)
	a := f.age(t)
	old := value[[]string](t, f.db, `select array_agg(id) from drover_supervisors`)
	// Nobody but a claimer may raise its epoch, for that refuses the claim that it has sent. So it is the copy that gets another.
	f.db.exec(t, `update before_drover_supervisors set epoch = epoch - 1`)
	since := time.Now()
	for _, counted := range f.counted {
		counted.Since()
	}
	f.db.goBack(t, f.tables...)
	f.worksAgain(t)
	again := slices.Concat(a.running, a.waiting)
	f.db.waitFor(t, 30*f.lease, `select bool_and(state in ('completed', 'discarded')) from jobs where id <> $1`, a.later)
	for _, id := range again {
		if n := f.called(id); n != 2 || !value[bool](t, f.db, `select state = 'completed' from jobs where id = $1`, id) {
			t.Errorf("completion forgotten: called %d times, %s", n, f.db.theRows(t, []string{id}))
		}
	}
	if n := f.called(a.once); n != 1 || !value[bool](t, f.db, `select state = 'discarded' and discard_reason = 'crashed' from jobs where id = $1`, a.once) {
		t.Errorf("a single attempt: called %d times, %s", n, f.db.theRows(t, []string{a.once}))
	}
	if n, cause := f.called(a.stays), f.cause(t, a.stays); n != 2 || !errors.Is(cause, drover.ErrLeaseLost) {
		t.Errorf("at work meanwhile: called %d times, ended by %v; %s", n, cause, f.db.theRows(t, []string{a.stays}))
	}
	if f.called(a.completed) != 1 || f.called(a.dead) != 1 || f.called(a.later) != 0 {
		t.Error("what had ended or was not due ran again")
	}
	if !value[bool](t, f.db, `select not exists (select from jobs where id = $1)`, a.forgotten) {
		t.Error("a job came back that was enqueued after the state that was restored")
	}
	f.db.waitFor(t, 20*f.lease, `select count(*) = 2 and not bool_or(id = any($1)) from drover_supervisors`, old)
	f.db.waitFor(t, 20*f.lease, `select not exists (select from jobs where crashes > 0 and id <> $1)`, a.once) // no process had died
	f.isCalm(t, since)
	for _, book := range f.books {
		if n := count(book.From(slog.LevelError), engine.WentBack); n != 1 {
			t.Errorf("told %d times: %q", n, book.From(slog.LevelWarn))
		}
	}
}

// count returns how many messages contain a text.
func count(messages []string, text string) (n int) {
	for _, m := range messages {
		if strings.Contains(m, text) {
			n++
		}
	}
	return n
}

// F-8: each table goes back alone, as after a mistake in a restore. Its contents hold.
func TestATableGoesBackAlone(t *testing.T) {
	t.Parallel()
	slow(t)
	tables := newQuietDB(t).remember(t)
	for _, table := range tables {
		t.Run(table, func(t *testing.T) { // not in parallel: such subtests come last, when nothing else is left to run
			f := newFleet(t, 1, fleetLease)
			a := f.age(t)
			since := time.Now()
			f.counted[0].Since()
			f.db.goBack(t, table)
			f.worksAgain(t)
			runs := 1
			if table == "jobs" {
				// Nothing has reported it, so that a full sweep finds them: every 15 s, and the first of the time is the audit's.
				f.db.waitFor(t, 3*time.Minute, `select bool_and(state <> 'running') from jobs where id <> all($1)`, []string{a.later, a.stays})
				f.db.waitFor(t, 3*time.Minute, `select bool_and(state in ('completed', 'discarded')) from jobs where id <> all($1)`, []string{a.later, a.stays})
				runs = 2
			}
			if table == "drover_supervisors" { // it goes on under another id, and the job comes back
				f.db.waitFor(t, 10*fleetLease, `select state = 'completed' from jobs where id = $1`, a.stays)
				if n := f.called(a.stays); n != 2 {
					t.Errorf("at work meanwhile: called %d times", n)
				}
			}
			for _, id := range slices.Concat(a.running, a.waiting) {
				if n := f.called(id); n != runs || !value[bool](t, f.db, `select state = 'completed' from jobs where id = $1`, id) {
					t.Errorf("called %d times, %s", n, f.db.theRows(t, []string{id}))
				}
			}
			if f.called(a.once) != 1 || f.called(a.completed) != 1 || f.called(a.later) != 0 {
				t.Error("what must not run again has")
			}
			if table == "drover_crews" {
				f.db.waitFor(t, time.Minute, `select count(*) = 2 from drover_crews`) // of two queues
			}
			f.isCalm(t, since)
		})
	}
}

// A-1, F-8: the database forgets that an epoch was raised, and nothing else. Nobody else is there to help.
func TestARaisedEpochIsForgotten(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1, fleetLease)
	l := harness.EngineOf(f.sups[0].Supervisor).Lease.Load()
	since := time.Now()
	f.counted[0].Since()
	f.db.exec(t, `update drover_supervisors set epoch = epoch - 1`)
	f.worksAgain(t)
	if harness.EngineOf(f.sups[0].Supervisor).Lease.Load().ID == l.ID || !errors.Is(context.Cause(l.Ctx), drover.ErrLeaseLost) {
		t.Error("the lease goes on")
	}
	f.isCalm(t, since)
	if n := count(f.books[0].From(slog.LevelError), engine.WentBack); n != 1 {
		t.Errorf("told %d times: %q", n, f.books[0].From(slog.LevelWarn))
	}
}

// The lease stays lost until the supervisor has a new id, however its old row goes on.
func TestGoingOnUnderANewIDIsTriedAgain(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	for range 3 {
		s.beat(t)
	}
	old := s.Lease.Load().ID
	db.exec(t, `update drover_supervisors set beat = 1`)
	db.exec(t, `create function refuse() returns trigger language plpgsql as $$ begin raise exception 'no'; end $$`)
	db.exec(t, `create trigger refuse before insert on drover_supervisors for each row execute function refuse()`)
	for range 4 {
		if err := s.Keeper.Beat(t.Context()); err == nil {
			t.Fatal("it has registered")
		}
	}
	db.exec(t, `drop trigger refuse on drover_supervisors`)
	s.beat(t)
	if s.Lease.Load().ID == old || s.Lease.Load().Ended.Load() {
		t.Error("it goes on under its old id")
	}
}

// Beats that are called for all the time come at growing distances, and the next one in time forgets that.
func TestHurriedBeatsArePaced(t *testing.T) {
	t.Parallel()
	var h engine.BeatPacer
	const period = 5 * time.Second
	start := time.Now()
	now, due := start, start.Add(period)
	beats := 0
	for now.Before(start.Add(time.Minute)) && beats < 1000 {
		next := h.Next(now, due)
		if next.After(now) {
			now = next
		}
		h.Went(now, due)
		due = now.Add(period)
		beats++
	}
	if beats < 10 || beats > 70 {
		t.Errorf("%d beats in a minute", beats)
	}
	h.Went(due, due)
	if next := h.Next(due, due.Add(period)); !next.Equal(due) {
		t.Errorf("after a beat in time the next one waits for %v", next.Sub(due))
	}
}

// A look that fails is a failed round trip: the settler waits before the next.
func TestALookThatFailsIsNotRepeatedAtOnce(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.enqueueJobs(t, 1, nil)
	impatient := db.via(t, drover.Config{}, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["lock_timeout"] = "100ms" })
	s := impatient.stopped(t, drover.SupervisorConfig{})
	r := s.claimAll(t, 1)[0]
	db.exec(t, `update jobs set attempted_at = attempted_at - interval '1 s'`)
	end := db.Hold(t, `lock table drover_supervisors in access exclusive mode`) // which the look reads, and the settle does not
	s.settle(t, decided(r, nil))
	if s.Settler.Trouble.Failures != 1 {
		t.Errorf("%d failures are known", s.Settler.Trouble.Failures)
	}
	end()
	s.settle(t)
	if s.Settler.Trouble.Failures != 0 || s.Settler.Unsettled.Len() != 0 {
		t.Error("it does not go on")
	}
}

// Jobs that came back lie behind the floors. A claimer that has a new connection looks again from the start; so does a
// claimer that sees transaction ids fall, behind a pooler that keeps its connection.
func TestAfterAReconnectFloorsAreNotTrusted(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	resettable, reset := db.resettable(t)
	sup := resettable.launch(t, drover.SupervisorConfig{Lease: time.Hour, PollInterval: 100 * time.Millisecond}) // no sweep, no beat
	eventually(t, func() bool { return !harness.EngineOf(sup.Supervisor).Claimer.Floors.None() })
	id := value[string](t, db, `insert into jobs (kind, scheduled_at) values ('job', now() - interval '1 h') returning id`)
	reset()
	db.Soon(t, 30*time.Second, "the job behind the floors is not found", `select state = 'completed' from jobs where id = $1`, id)
}

func TestTransactionIDsThatFallAreNoticed(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	s.claim(t)
	id := value[string](t, db, `insert into jobs (kind, scheduled_at) values ('job', now() - interval '1 h') returning id`)
	s.Claimer.Near.Past = []floors.Seen{{At: time.Now().Add(-time.Minute), Oldest: 1 << 60, Own: 1 << 60}}
	s.claim(t)
	if runs := s.claim(t); len(runs) != 1 || runs[0].ID != id {
		t.Errorf("%d jobs were claimed", len(runs))
	}
}

// C4, F-8: a settle was acknowledged and is forgotten, and the connection ends by a reset while nothing is under way: the
// next write fails before a byte of it is sent, so that no claim is in doubt.
func TestForgottenSettleAndAReset(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	resettable, reset := db.resettable(t)
	ran := make(chan string, 10)
	sup := resettable.launch(t, drover.SupervisorConfig{Lease: time.Hour, Workers: handling(func(_ context.Context, j *drover.Job, _ int) error { ran <- j.ID; return nil })})
	id := db.enqueue(t, job{1}, nil)
	receive(t, ran)
	db.waitFor(t, 30*time.Second, `select state = 'completed' from jobs`)
	eventually(t, func() bool { return harness.EngineOf(sup.Supervisor).Settler.Unsettled.Len() == 0 }) // the reply has come: an audit passes what the settler knows
	db.exec(t, `update jobs set state = 'running', finalized_at = null, claimed_by = $1`, harness.EngineOf(sup.Supervisor).Lease.Load().ID)
	reset()
	if again := receive(t, ran); again != id {
		t.Errorf("%s ran", again)
	}
	db.waitFor(t, 30*time.Second, `select state = 'completed' from jobs`)
}

// resettable returns a client whose connections can be reset. No statement is under way then, so that no claim is
// in doubt.
func (db *testDB) resettable(t testing.TB) (client *testDB, reset func()) {
	t.Helper()
	var broken atomic.Pointer[atomic.Bool]
	broken.Store(&atomic.Bool{})
	return db.via(t, drover.Config{}, func(c *pgxpool.Config) {
		dial := c.ConnConfig.DialFunc
		c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return &resetConn{Conn: conn, broken: broken.Load()}, err
		}
	}), func() { broken.Swap(&atomic.Bool{}).Store(true) }
}

// resetConn is a connection that the other side has reset, once it is broken.
type resetConn struct {
	net.Conn
	broken *atomic.Bool
}

func (c *resetConn) Write(b []byte) (int, error) {
	if c.broken.Load() {
		return 0, syscall.ECONNRESET
	}
	return c.Conn.Write(b)
}

// C4: an outcome is refused because the row is as an earlier claim left it, which ran in our name too. Nobody else would
// ever give it back, and no connection broke.
func TestARefusedOutcomeAsksForAnAudit(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	started, release := make(chan struct{}, 10), make(chan struct{})
	db.launch(t, drover.SupervisorConfig{Lease: time.Hour, Workers: handling(func(context.Context, *drover.Job, int) error {
		started <- struct{}{}
		<-release
		return nil
	})})
	db.enqueueJobs(t, 1, nil)
	receive(t, started)
	db.exec(t, `update jobs set attempted_at = attempted_at - interval '1 s'`)
	close(release)
	db.Soon(t, 30*time.Second, "nobody gives the job back", `select state = 'completed' from jobs`)
}

// A handler is at work under a claim that the database has forgotten; the row is as an earlier claim of ours left it. A
// look for a lost claim must not give the job back while the handler works.
func TestLostClaimBesideAForgottenOne(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	id := db.enqueueJobs(t, 1, nil)[0]
	first := s.claimAll(t, 1)[0]
	db.exec(t, `create table before_jobs as table jobs`)
	first.Finish()
	s.settle(t, decided(first, drover.RetryAfter(0, errBoom)))
	db.exec(t, `update jobs set scheduled_at = now()`)
	second := s.claimAll(t, 1)[0]
	db.goBack(t, "jobs")
	s.loseClaim(t, db)
	s.Claimer.FindOut(t.Context())
	s.settle(t)
	if !value[bool](t, db, `select state = 'running' from jobs where id = $1`, id) {
		t.Fatalf("given back while its handler is at work: %s", db.theRows(t, []string{id}))
	}
	second.Finish()
	s.settle(t, decided(second, nil))
	s.auditAll(t)
	if !value[bool](t, db, `select state = 'available' and attempt = 0 from jobs where id = $1`, id) {
		t.Errorf("not given back: %s", db.theRows(t, []string{id}))
	}
}

// The turn to run strong suspects is of who took it. If an older state says that it is ours, the next beat gives it up.
func TestATurnThatCameBackIsGivenUp(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	db.exec(t, `update drover_solo set supervisor = $1`, s.Lease.Load().ID)
	s.beat(t)
	if value[bool](t, db, `select exists (select from drover_solo where supervisor is not null)`) {
		t.Error("others can never take it")
	}
}

// An older state lacks the crew, so enqueues would never notify a supervisor again.
func TestACrewThatIsMissingIsWrittenAnew(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	was := value[string](t, db, `select drover_crews::text from drover_crews`)
	db.exec(t, `delete from drover_crews`)
	s.beat(t)
	if now := value[string](t, db, `select drover_crews::text from drover_crews`); now != was {
		t.Errorf("%s, was %s", now, was)
	}
}
