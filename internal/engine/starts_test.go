package engine_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// Jobs with a single attempt: once a handler may have begun, no other is called.

// After an outage of most of a lease the handler is cut short, and the job is discarded. Jobs that were claimed with it had
// not begun: they run.
func TestTheOnlyAttemptAfterAnOutage(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	var calls [9]atomic.Int32
	began := make(chan struct{})
	var ids []string
	for n := range calls {
		ids = append(ids, db.enqueue(t, job{n}, nil))
	}
	sup := db.launch(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 1}}, Workers: []drover.Worker{
		drover.Handle(func(ctx context.Context, _ *drover.Job, args job) error {
			if calls[args.N].Add(1); args.N == 0 {
				close(began)
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}, drover.WorkerOpts{MaxAttempts: 1}),
	}})
	<-began
	harness.EngineOf(sup.Supervisor).Lease.Load().Lose() // as the heartbeat does once it could not keep the lease up
	db.waitFor(t, time.Minute, `select count(*) = 9 from jobs where finalized_at is not null`)
	row := db.EndRow(t, ids[0])
	if row.State != drover.Discarded || *row.Reason != drover.ReasonAttemptsExhausted || row.ClaimSeq != 1 || row.Total != 1 ||
		!strings.Contains(row.Errors[0].Error, "the only attempt was cut short ("+drover.ErrLeaseLost.Error()+")") {
		t.Errorf("the one that ran: %+v", row)
	}
	for n := range calls {
		if called := calls[n].Load(); called != 1 {
			t.Errorf("job %d was called %d times", n, called)
		}
		if row := db.EndRow(t, ids[n]); n > 0 && (row.State != drover.Completed || row.Attempt != 1 || row.Total != 0) {
			t.Errorf("job %d had not begun: %+v", n, row)
		}
	}
}

// C1: a supervisor is paused between its claim and the note that a job starts. Another one rescues its jobs meanwhile, at
// any point. Either the start is noted and the job is discarded, or it is not and the handler is not called.
func TestAStartBesideARescue(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"before the look", "after the look", "after the rescue"} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			db := newQuietDB(t)
			id := db.enqueue(t, job{1}, &drover.EnqueueOpts{MaxAttempts: 1})
			a := db.stopped(t, drover.SupervisorConfig{})
			r := a.claim(t)[0]
			begins := func() bool {
				s := &engine.Start{Run: r, Noted: make(chan bool, 1)}
				a.Settler.Starts = []*engine.Start{s}
				a.Settler.NoteStarts(t.Context(), time.Now())
				return <-s.Noted
			}
			b := db.stopped(t, drover.SupervisorConfig{})
			owner, called := a.Lease.Load().ID, false
			db.exec(t, `update drover_supervisors set epoch = epoch + 1, lost_at = now() where id = $1`, owner)
			conn, err := b.Keeper.Link.Get(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if where == "before the look" {
				called = begins()
			}
			h := store.NewScan(owner, []string{"default"}, false)
			held, err := conn.Scan(t.Context(), h)
			if err != nil || len(held) != 1 {
				t.Fatal(held, err)
			}
			if where == "after the look" {
				called = begins()
			}
			h.Started = engine.StartedJobs(held)
			if left, err := b.Keeper.Free(t.Context(), conn, owner, h, held); err != nil || len(left) > 0 {
				t.Fatal(left, err)
			}
			if where == "after the rescue" {
				called = begins()
			}
			again := b.claim(t)
			if called || len(again) != 1 {
				t.Errorf("the first may call its handler: %t; claimed again: %d; %s", called, len(again),
					value[string](t, db, `select row_to_json(j)::text from jobs j where id = $1`, id))
			}
		})
	}
}

// A start is noted before the supervisor is declared lost: that waits for the note, and the rescue sees it.
func TestDeclaringLostWaitsForAStart(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.enqueue(t, job{1}, &drover.EnqueueOpts{MaxAttempts: 1})
	a := db.stopped(t, drover.SupervisorConfig{})
	r := a.claim(t)[0]
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), pg.Begin); err != nil {
		t.Fatal(err)
	}
	if err := conn.QueryRow(t.Context(), store.SQLStart, []string{r.ID}, []int{r.Seq}, r.Owner, []time.Time{r.ClaimedAt}).Scan(nil, nil); err != nil {
		t.Fatal(err)
	}
	impatient := db.via(t, drover.Config{}, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["lock_timeout"] = "100ms" })
	if _, err := impatient.Exec(t.Context(), `update drover_supervisors set epoch = epoch + 1, lost_at = now()`); pg.SQLState(err) != "55P03" {
		t.Errorf("declared lost beside a start: %v", err)
	}
	if _, err := conn.Exec(t.Context(), `commit`); err != nil {
		t.Fatal(err)
	}
}

// A start that the database refuses at the commit is not noted, and its handler is not called.
func TestAStartThatIsNotCommitted(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `create function refuse() returns trigger language plpgsql as $$ begin
		if new.args->>'n' = '1' then raise exception 'not this one'; end if;
		return null; end $$`)
	db.exec(t, `create constraint trigger refuse after update of started_seq on jobs deferrable initially deferred for each row execute function refuse()`)
	once := &drover.EnqueueOpts{MaxAttempts: 1}
	bad, good := db.enqueue(t, job{1}, once), db.enqueue(t, job{2}, once)
	s := db.stopped(t, drover.SupervisorConfig{})
	starts := map[string]*engine.Start{}
	for _, r := range s.claim(t) {
		starts[r.ID] = &engine.Start{Run: r, Noted: make(chan bool, 1)}
		s.Settler.Starts = append(s.Settler.Starts, starts[r.ID])
	}
	s.Settler.NoteStarts(t.Context(), time.Now())
	if <-starts[bad].Noted {
		t.Error("it starts though its start was refused")
	}
	if !<-starts[good].Noted {
		t.Error("the other does not start")
	}
}

// Where the lease is over by the time the start is noted, the handler is not called: it could only be cut short.
func TestAStartThatIsNotedTooLate(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.enqueue(t, job{1}, &drover.EnqueueOpts{MaxAttempts: 1})
	s := db.stopped(t, drover.SupervisorConfig{})
	r := s.claim(t)[0]
	for range 50 { // of two ready channels either may be read
		noted := make(chan bool, 1)
		go func() { noted <- s.Settler.NoteStart(r) }()
		var waits *engine.Start
		eventually(t, func() bool {
			s.Settler.Mu.Lock()
			defer s.Settler.Mu.Unlock()
			if len(s.Settler.Starts) == 1 {
				waits, s.Settler.Starts = s.Settler.Starts[0], nil
			}
			return waits != nil
		})
		r.Lease.Cancel(drover.ErrShutdown)
		waits.Noted <- true
		if <-noted {
			t.Fatal("it starts")
		}
	}
}

// P-2, P-3: a death that is taken back brings back no job that may run only once.
func TestTheOnlyAttemptIsNotTakenBack(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	id := db.enqueue(t, job{}, nil)
	db.exec(t, `update jobs set state = 'running', claimed_by = 'paused', claim_seq = 1, attempt = 1, started_seq = 1, attempted_at = now()`)
	db.Dead(t, "paused")
	s := db.stopped(t, drover.SupervisorConfig{})
	s.beat(t)
	s.beat(t)
	s.Keeper.NoteLost("paused")
	conn, err := s.Keeper.Link.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Keeper.UndoCrashes(t.Context(), conn, s.Keeper.Bound(), s.Cfg.Lease/12); err != nil {
		t.Fatal(err)
	}
	if !value[bool](t, db, `select state = 'discarded' and discard_reason = 'crashed' and crashes = 0 from jobs where id = $1`, id) {
		t.Error(value[string](t, db, `select row_to_json(j)::text from jobs j where id = $1`, id))
	}
}
