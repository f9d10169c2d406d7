package engine_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/pg"
)

// Run waits for a server that is not there yet, as it waits for a server that goes away later, and logs it.
func TestRunWaitsForAServer(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	address, cc := "127.0.0.1:1", db.Config().ConnConfig // nobody's; a port that was free a moment ago may be another test's by now
	server := net.JoinHostPort(cc.Host, strconv.Itoa(int(cc.Port)))
	var name atomic.Pointer[string]
	name.Store(&address)
	var book harness.Logbook
	late := db.named(t, drover.Config{Logger: slog.New(&book)}, &name)
	l := late.launch(t, drover.SupervisorConfig{})
	eventually(t, func() bool { return len(book.From(slog.LevelWarn)) > 0 || len(l.Done) > 0 })
	if len(l.Done) > 0 {
		t.Fatal("Run has ended")
	}
	name.Store(&server)
	db.enqueueJobs(t, 1, nil)
	db.waitFor(t, time.Minute, `select count(*) = 1 from jobs where state = 'completed'`)
	lines := book.From(slog.LevelInfo)
	if !strings.Contains(lines[0], "this supervisor does not run yet") || !strings.Contains(lines[0], "connection refused") || !strings.Contains(lines[1], "the database answers again") {
		t.Errorf("logged %q", lines)
	}
}

// A lock that is held for longer than the application's lock_timeout is no reason not to start.
func TestRunWaitsForALock(t *testing.T) {
	t.Parallel()
	var book harness.Logbook
	db := newQuietDB(t)
	hasty := db.via(t, drover.Config{Logger: slog.New(&book)}, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["lock_timeout"] = "20ms" })
	end := db.Hold(t, `lock table drover_supervisors in access exclusive mode`)
	l := hasty.launch(t, drover.SupervisorConfig{})
	eventually(t, func() bool {
		return strings.Contains(strings.Join(book.From(slog.LevelWarn), ""), "55P03") || len(l.Done) > 0
	})
	if len(l.Done) > 0 {
		t.Fatal("Run has ended")
	}
	end()
	db.waitFor(t, time.Minute, `select count(*) = 1 from drover_supervisors`)
}

// An error that an operator has to correct ends Run immediately.
func TestRunEndsForWhatStays(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	for name, c := range map[string]struct {
		edit func(*pgxpool.Config)
		is   func(error) bool
	}{
		// A server that asks for a password refuses it, and any other server refuses the role.
		"no such role": {func(c *pgxpool.Config) { c.ConnConfig.User = "nothing" }, func(err error) bool {
			return slices.Contains([]string{"28P01", "28000"}, pg.SQLState(err))
		}},
		"no such database": {func(c *pgxpool.Config) { c.ConnConfig.Database = "nothing" }, func(err error) bool { return pg.SQLState(err) == "3D000" }},
		"no such schema": {func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["search_path"] = "nothing" }, func(err error) bool {
			return errors.Is(err, drover.ErrNotMigrated)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sup, err := db.via(t, drover.Config{}, c.edit).client.NewSupervisor(drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: harness.DoingNothing()})
			if err != nil {
				t.Fatal(err)
			}
			running, stop := context.WithTimeout(t.Context(), 30*time.Second) // a run that is not refused ends here
			defer stop()
			if err := sup.Run(running); !c.is(err) {
				t.Errorf("Run = %v", err)
			}
		})
	}
}

func TestTemporaryErrors(t *testing.T) {
	t.Parallel()
	pool := &pg.Pool{Invalid: func(field, reason string, cause error) error {
		return &drover.InvalidError{Field: field, Reason: reason, Err: cause}
	}}
	for _, c := range []struct {
		err  error
		want bool
	}{
		{&pgconn.PgError{Code: "53300"}, true},
		{&pgconn.PgError{Code: "57P03"}, true},
		{&pgconn.PgError{Code: "55P03"}, true},
		{&pgconn.PgError{Code: "40P01"}, true},
		{&pgconn.PgError{Code: "28P01"}, false},
		{&pgconn.PgError{Code: "28000"}, false},
		{&pgconn.PgError{Code: "42501"}, false},
		{&pgconn.PgError{}, false},
		{&net.DNSError{Err: "no such host", IsNotFound: true}, true},
		{context.DeadlineExceeded, true},
		{pool.RefusedBy("PrepareConn", errors.New("no")), false},
		{pool.RefusedBy("AfterConnect", &pgconn.PgError{Code: "57P01"}), true},
		{errors.Join(drover.ErrPooler, &pgconn.PgError{Code: "08P01"}), false},
		{drover.ErrReadOnly, false},
		{errors.New("something else"), false},
	} {
		if got := pg.Temporary(c.err); got != c.want {
			t.Errorf("temporary(%v) = %v", c.err, got)
		}
	}
}

// L-2: a supervisor that is stopped while it registers leaves no row that passes for a supervisor, awake, for a lease.
func TestAStopDuringTheStartLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	end := db.Hold(t, `lock table drover_crews in access exclusive mode`)
	sup := db.launch(t, drover.SupervisorConfig{})
	db.waitFor(t, 30*time.Second, `select exists (select from pg_locks where relation = 'drover_crews'::regclass and not granted)`)
	sup.Cancel()
	end() // the registration that is under way goes through
	sup.Stop(t)
	if n := value[int](t, db, `select (select count(*) from drover_supervisors) + (select count(*) from drover_crews)`); n > 0 {
		t.Errorf("%d rows are left", n)
	}
}

// The reply to a registration is lost: whether it stands is not known. The next one, or the stop, takes it back.
func TestARegistrationWhoseReplyWasLost(t *testing.T) {
	t.Parallel()
	for _, stops := range []bool{false, true} {
		db := newQuietDB(t)
		cut, wire := db.cutting(t, drover.Config{})
		sup, err := cut.client.NewSupervisor(drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: harness.DoingNothing()})
		if err != nil {
			t.Fatal(err)
		}
		wire.arm("insert into drover_supervisors", "")
		harness.EngineOf(sup).Keeper.Base = context.Background()
		if err := harness.EngineOf(sup).Keeper.Register(t.Context()); err == nil || wire.cutSoFar() != 1 {
			t.Fatalf("register = %v, %d cut", err, wire.cutSoFar())
		}
		db.waitFor(t, 30*time.Second, `select count(*) = 1 from drover_supervisors`)
		want := 0
		if stops {
			harness.EngineOf(sup).Keeper.EndStrays(t.Context())
		} else if err := harness.EngineOf(sup).Keeper.Register(t.Context()); err != nil {
			t.Fatal(err)
		} else {
			want = 1
		}
		if got := value[int](t, db, `select count(*) from drover_supervisors`); got != want {
			t.Errorf("stopped %v: %d supervisors, want %d", stops, got, want)
		}
		if got := value[int](t, db, `select count(*) from drover_crews`); got != want {
			t.Errorf("stopped %v: %d pass for awake, want %d", stops, got, want)
		}
		harness.EngineOf(sup).Keeper.Link.Close(t.Context())
	}
}

// L-1: a queue that is added while the supervisor registers anew, because it had lost its lease, is in the old row. A heartbeat
// sees that the new one does not know it. So it goes for a queue that was removed.
func TestAQueueAddedNextToARegistration(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	id := s.Lease.Load().ID
	if err := s.Sup.AddQueue(t.Context(), drover.Queue{Name: "late"}); err != nil {
		t.Fatal(err)
	}
	for _, queues := range []string{`'{default}'`, `'{default,gone,late}'`} { // as a registration of before left them
		db.exec(t, `update drover_supervisors set queues = `+queues+` where id = $1`, id)
		db.exec(t, `delete from drover_crews`)
		s.Changing.Lock() // somebody adds another just now: the row may be newer than what we know
		s.beat(t)
		if value[bool](t, db, `select queues = '{default,late}' from drover_supervisors where id = $1`, id) {
			t.Error("it was overwritten under somebody who was at it")
		}
		s.Changing.Unlock()
		s.beat(t)
		if !value[bool](t, db, `select queues = '{default,late}' and slots ? 'late' and not slots ? 'gone' from drover_supervisors where id = $1`, id) {
			t.Errorf("the row says %s", value[string](t, db, `select queues::text || slots from drover_supervisors where id = $1`, id))
		}
		if got := value[string](t, db, `select string_agg(queue, ' ' order by queue) from drover_crews`); got != "default late" {
			t.Errorf("crews knows %s", got)
		}
	}
}

// Where no notification is heard, a look each second cancels the job, not the next heartbeat.
func TestACancelWithoutListenIsHeard(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	started, over := make(chan struct{}), make(chan error, 1)
	db.via(t, drover.Config{}).launch(t, drover.SupervisorConfig{DisableNotify: true, Lease: time.Hour, Workers: handling(func(ctx context.Context, _ *drover.Job, _ int) error {
		close(started)
		<-ctx.Done()
		over <- context.Cause(ctx)
		return ctx.Err()
	})})
	id := db.enqueue(t, job{1}, nil)
	receive(t, started)
	if _, err := db.client.Cancel(t.Context(), id, drover.Audit{Why: "nobody wants it"}); err != nil {
		t.Fatal(err)
	}
	if cause := receive(t, over); !errors.Is(cause, drover.ErrCancelled) {
		t.Errorf("cause = %v", cause)
	}
}

// Where notifications are heard, and where nothing runs, nobody asks.
func TestNobodyAsksForCancelsInVain(t *testing.T) {
	t.Parallel()
	tr := &trips{Statements: harness.NewStatements()}
	db := newQuietDB(t).via(t, drover.Config{}, func(c *pgxpool.Config) { c.ConnConfig.Tracer = tr })
	s := db.stopped(t, drover.SupervisorConfig{})
	asked := func() bool {
		before := tr.n.Load()
		s.Keeper.Asked = time.Time{}
		s.Keeper.AskUnheard(t.Context())
		return tr.n.Load() > before
	}
	if asked() {
		t.Error("nothing runs, and it asks")
	}
	db.enqueueJobs(t, 1, nil)
	s.InFlight.Add(s.claim(t)...)
	if !asked() {
		t.Error("a job runs, nothing is heard, and it does not ask")
	}
	if !s.Keeper.Listens() {
		t.Fatal("it does not listen")
	}
	if asked() {
		t.Error("notifications are heard, and it asks")
	}
}

// The README and DrainTimeout promise that Run returns 5 s after its handlers were cancelled, whatever happens.
func TestAStopTakesWhatIsPromised(t *testing.T) {
	t.Parallel()
	slow(t)
	const closing = time.Second // see pg.CloseConn
	if engine.HandBack+engine.LastSettle+closing > engine.EndPart || engine.EndPart != 5*time.Second {
		t.Errorf("a stop may take %v and its connections another %v, promised are 5 s", engine.HandBack+engine.LastSettle, closing)
	}
	db := newQuietDB(t)
	cut, wire := db.cutting(t, drover.Config{})
	started := make(chan struct{})
	sup := cut.launch(t, drover.SupervisorConfig{DrainTimeout: time.Millisecond, Workers: handling(func(context.Context, *drover.Job, int) error {
		close(started)
		select {} // deaf
	})})
	db.enqueueJobs(t, 1, nil)
	receive(t, started)
	wire.freeze()
	defer wire.thaw()
	began := time.Now()
	sup.Cancel()
	select {
	case err := <-sup.Done:
		close(sup.Done)
		if took := time.Since(began); err != nil || took > engine.EndPart+6*time.Second { // on a machine that gives it none for a while
			t.Errorf("Run returned %v after %v", err, took)
		}
	case <-time.After(time.Minute):
		t.Fatal("Run does not return")
	}
}
