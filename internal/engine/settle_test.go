package engine_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/store"
)

// A cutter stands between a client and the server. Armed, it waits for the reply to the next COMMIT on a connection that
// has sent a certain text, and cuts that connection instead of passing it on: the server has done it, the client
// cannot know.
type cutter struct {
	listener net.Listener
	server   string
	mu       sync.Mutex
	sent     string // by the client, ever
	replied  string // by the server, in the reply to be cut; empty: anything
	armed    bool
	cuts     int
	gate     sync.RWMutex // held while nothing passes
}

// freeze lets nothing pass, in either direction, until thaw.
func (c *cutter) freeze() { c.gate.Lock() }
func (c *cutter) thaw()   { c.gate.Unlock() }

// passes waits while nothing may pass.
func (c *cutter) passes() {
	c.gate.RLock()
	defer c.gate.RUnlock()
}

// cutting returns a client whose connections go through a cutter.
func (db *testDB) cutting(t testing.TB, cfg drover.Config) (*testDB, *cutter) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cc := db.Config().ConnConfig
	if cc.Host == "" || cc.Host[0] == '/' {
		t.Fatalf("the server is on %q, not on a TCP port", cc.Host)
	}
	c := &cutter{listener: listener, server: net.JoinHostPort(cc.Host, strconv.Itoa(int(cc.Port)))}
	var open sync.WaitGroup
	open.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			open.Go(func() { c.serve(conn) })
		}
	})
	t.Cleanup(func() { _ = listener.Close(); open.Wait() })
	return db.via(t, cfg, func(config *pgxpool.Config) {
		addr := listener.Addr().(*net.TCPAddr)
		cc := config.ConnConfig
		cc.Host, cc.Port, cc.TLSConfig, cc.Fallbacks = "127.0.0.1", uint16(addr.Port), nil, nil //nolint:gosec // a port
	}), c
}

// arm makes it cut one connection that has sent a text, at a reply that holds another.
func (c *cutter) arm(sent, replied string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent, c.replied, c.armed = sent, replied, true
}

func (c *cutter) cutSoFar() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cuts
}

func (c *cutter) serve(client net.Conn) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("tcp", c.server)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	var mu sync.Mutex
	var heard bytes.Buffer // all that this client has sent
	go func() {
		defer func() { _ = server.Close() }()
		buf := make([]byte, 64<<10)
		for {
			n, err := client.Read(buf)
			mu.Lock()
			heard.Write(buf[:n])
			mu.Unlock()
			c.passes()
			if _, werr := server.Write(buf[:n]); err != nil || werr != nil {
				return
			}
		}
	}()
	ready := []byte{'Z', 0, 0, 0, 5, 'I'}
	var held []byte
	buf := make([]byte, 64<<10)
	for {
		n, err := server.Read(buf)
		held = append(held, buf[:n]...)
		mu.Lock()
		text := heard.Bytes()
		c.mu.Lock()
		watching := c.armed && bytes.Contains(text, []byte(c.sent))
		whole := !watching || err != nil || bytes.HasSuffix(held, ready)
		cut := watching && whole && bytes.Contains(held, []byte("COMMIT\x00")) && bytes.Contains(held, []byte(c.replied))
		if cut {
			c.armed = false
			c.cuts++
		}
		c.mu.Unlock()
		mu.Unlock()
		if cut {
			return
		}
		if whole {
			c.passes()
			if _, werr := client.Write(held); err != nil || werr != nil {
				return
			}
			held = held[:0]
		}
	}
}

// queryCounter counts the round trips of batches by a text that one of their statements holds.
type queryCounter struct {
	text    string
	batches atomic.Int64
}

type batchKey struct{}

func (q *queryCounter) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return context.WithValue(ctx, batchKey{}, new(bool))
}

func (q *queryCounter) TraceBatchQuery(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	if seen, ok := ctx.Value(batchKey{}).(*bool); ok && !*seen && data.SQL == q.text {
		*seen = true
		q.batches.Add(1)
	}
}

func (q *queryCounter) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

func (q *queryCounter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (q *queryCounter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestCompletionsShareRoundTrips(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	counter := &queryCounter{text: store.SQLComplete}
	traced := db.via(t, drover.Config{}, func(c *pgxpool.Config) { c.ConnConfig.Tracer = counter })
	db.enqueueJobs(t, 500, nil)
	release := make(chan struct{})
	sup := traced.launch(t, drover.SupervisorConfig{
		Queues:  []drover.Queue{{Concurrency: 500}},
		Workers: handling(func(context.Context, *drover.Job, int) error { <-release; return nil }),
	})
	eventually(t, func() bool { return sup.Stats().Running == 500 })
	// The first round trip lasts until all have ended, at whatever pace they get their time.
	end := db.Hold(t, `lock table jobs in exclusive mode`)
	close(release)
	eventually(t, func() bool { return sup.Stats().Running == 0 })
	end()
	db.waitFor(t, 20*time.Second, `select count(*) = 500 from jobs where state = 'completed'`)
	if n := counter.batches.Load(); n > 50 {
		t.Errorf("500 completions took %d round trips", n)
	}
}

// F-8, I7: whatever a run that was taken away says, the row stays, and only stale_settle reports it.
func TestStaleSettleChangesNothing(t *testing.T) {
	t.Parallel()
	slow(t)
	const again = "claim_seq = claim_seq + 1" // handed back and claimed again by the same supervisor
	for what, err := range map[string]error{
		"completed": nil, "failed": errors.New("no"), "discarded": drover.Discard(errors.New("no")), "snoozed": drover.Snooze(time.Minute), "cancelled": drover.Cancel(nil),
	} {
		for _, taken := range []string{
			"claim_seq = claim_seq + 1, claimed_by = 'someone else'", // rescued and claimed again
			"claimed_by = 'someone else'",                            // the same claim_seq, after a failover that lost a commit
			again,
			"state = 'retryable', claimed_by = null, scheduled_at = now() + interval '1 h'",            // rescued, and not claimed again
			"state = 'discarded', discard_reason = 'crashed', finalized_at = now(), claimed_by = null", // rescued, and convicted
		} {
			t.Run(what+" after "+taken, func(t *testing.T) {
				t.Parallel()
				var book diary
				db := newQuietDB(t).via(t, drover.Config{Hooks: book.hooks()})
				id := db.enqueueJobs(t, 1, nil)[0]
				release := make(chan struct{})
				started := make(chan struct{}, 1)
				// It learns that neither from a heartbeat nor from a claim before the run has ended.
				cfg := drover.SupervisorConfig{Lease: time.Hour, Queues: []drover.Queue{{Concurrency: 1}}, Workers: handling(func(context.Context, *drover.Job, int) error {
					started <- struct{}{}
					<-release
					return err
				})}
				if taken == again {
					db.launch(t, cfg, withoutAudits)
				} else {
					db.launch(t, cfg)
				}
				receive(t, started)
				if taken != again { // its next life would rescue the job, which is still in its name
					db.exec(t, `update drover_supervisors set lost_at = now(), epoch = epoch + 1`) // a rescuer does this first
				}
				db.Alive(t, "someone else")
				db.exec(t, `update jobs set `+taken)
				before := value[string](t, db, `select row_to_json(j)::text from jobs j`)
				close(release)
				ends := []engine.EventKind{engine.EventCompleted, engine.EventFailed, engine.EventDiscarded, engine.EventSnoozed, engine.EventCancelled, engine.EventReleased}
				eventually(t, func() bool {
					return book.count(engine.EventStaleSettle, id) == 1 || slices.ContainsFunc(ends, func(kind engine.EventKind) bool { return book.count(kind, id) > 0 })
				})
				if after := value[string](t, db, `select row_to_json(j)::text from jobs j`); after != before {
					t.Errorf("the row changed:\n%s\n%s", before, after)
				}
				for _, kind := range ends {
					if n := book.count(kind, id); n > 0 {
						t.Errorf("%d events of kind %d", n, kind)
					}
				}
			})
		}
	}
}

// A completion waits for no lock: one round trip completes the jobs whose rows are free, and the others are
// tried again later.
func TestCompletionsPassLockedRows(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	impatient := db.via(t, drover.Config{}, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["lock_timeout"] = "1s" })
	s, runs := impatient.failing(t, 3, drover.SupervisorConfig{})
	holder, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback(t.Context())
	if _, err := holder.Exec(t.Context(), `select from jobs where id = $1 for update`, runs[0].ID); err != nil {
		t.Fatal(err)
	}
	s.settle(t, decided(runs[0], nil), decided(runs[1], nil), decided(runs[2], nil))
	if n := value[int](t, db, `select count(*) from jobs where state = 'completed'`); n != 2 {
		t.Errorf("%d jobs are completed beside a locked one, want 2", n)
	}
	if runs[0].Refusals != 0 {
		t.Error("the completion has waited for the locked row until the time-out")
	}
}

// L-3: where the database refuses one row, the others of its batch are settled immediately, and that one with a note.
func TestABadRowIsFoundByHalves(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `alter table jobs add check (not errors @? '$[*] ? (@.error == "poison")')`)
	const n = 20
	s, runs := db.failing(t, n, drover.SupervisorConfig{})
	outcomes := make([]*engine.Run, n)
	for i, r := range runs {
		outcomes[i] = decided(r, errBoom)
	}
	outcomes[13] = decided(runs[13], errors.New("poison"))
	s.settle(t, outcomes...)
	if left := value[int](t, db, `select count(*) from jobs where state <> 'retryable'`); left != 0 {
		t.Errorf("%d of %d jobs are not settled by one trip", left, n)
	}
	if text := value[string](t, db, `select coalesce(errors->0->>'error', 'none') from jobs where id = $1`, runs[13].ID); text != "outcome could not be encoded" {
		t.Errorf("the refused one tells %q", text)
	}
}

// FAULTS S-5, I9: a delay counts from the server's now, however far off the process' clock is.
func TestDelaysGoByTheServersClock(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	for _, skew := range []time.Duration{-5 * time.Hour, 5 * time.Hour} {
		s, runs := db.failing(t, 2, drover.SupervisorConfig{Queues: []drover.Queue{{Retry: drover.Every(time.Minute)}}})
		s.Now = func() time.Time { return time.Now().Add(skew) }
		s.settle(t, decided(runs[0], errBoom), decided(runs[1], drover.Snooze(time.Minute)))
	}
	if n := value[int](t, db, `select count(*) from jobs where scheduled_at - now() between '0 s' and '1 min' and state in ('retryable', 'scheduled')`); n != 4 {
		t.Errorf("%d of 4 jobs are due within the next minute", n)
	}
}

// F-12, W-3: the reply to a settle's commit is lost; the settle is sent again and recognised as its own.
func TestSettleWhoseReplyWasLostIsKnownAsItsOwn(t *testing.T) {
	t.Parallel()
	slow(t)
	for what, end := range map[string]struct {
		err   error
		sql   string
		keep  drover.Retention
		kind  engine.EventKind
		state string
	}{
		"completed":             {nil, store.SQLComplete, 0, engine.EventCompleted, "completed"},
		"completed and deleted": {nil, store.SQLCompleteDelete, drover.DeleteOnCompletion, engine.EventCompleted, ""},
		"failed":                {errors.New("no"), store.SQLSettle, 0, engine.EventFailed, "retryable"},
		"snoozed":               {drover.Snooze(time.Hour), store.SQLSettle, 0, engine.EventSnoozed, "scheduled"},
		"discarded":             {drover.Discard(errors.New("no")), store.SQLSettle, 0, engine.EventDiscarded, "discarded"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			plain := newQuietDB(t)
			var book diary
			db, wire := plain.cutting(t, drover.Config{Hooks: book.hooks()})
			var runs atomic.Int64
			db.launch(t, drover.SupervisorConfig{CompletedRetention: end.keep, Workers: handling(func(context.Context, *drover.Job, int) error {
				runs.Add(1)
				return end.err
			})})
			id := plain.enqueueJobs(t, 1, nil)[0] // the statement must have been sent once, or its text is not seen
			eventually(t, func() bool { return book.count(end.kind, id) == 1 })
			wire.arm(end.sql[len(end.sql)-60:], "")
			id = plain.enqueueJobs(t, 1, nil)[0]
			eventually(t, func() bool { return book.count(end.kind, id) == 1 })
			if n := wire.cutSoFar(); n != 1 {
				t.Errorf("%d connections were cut", n)
			}
			if n := book.count(engine.EventStaleSettle, ""); n > 0 {
				t.Errorf("%d settles passed for stale", n)
			}
			if n := runs.Load(); n != 2 {
				t.Errorf("%d runs of 2 jobs", n)
			}
			if end.state == "" {
				if n := value[int](t, plain, `select count(*) from jobs`); n > 0 {
					t.Errorf("%d rows are left", n)
				}
			} else if got := value[string](t, plain, `select state || errors_total from jobs where id = $1`, id); got[:len(end.state)] != end.state {
				t.Errorf("the row is %s", got)
			}
		})
	}
}

// A handler that holds its own row in an open transaction must not hold up the settles of others.
func TestLockedRowDoesNotHoldUpOtherSettles(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.enqueueJobs(t, 50, nil)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	release := make(chan struct{})
	locked := make(chan struct{})
	db.launch(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 50}}, Workers: handling(func(ctx context.Context, j *drover.Job, n int) error {
		if n == 7 {
			_, err := tx.Exec(ctx, `select from jobs where id = $1 for update`, j.ID)
			close(locked)
			return err
		}
		<-release
		return nil
	})})
	receive(t, locked)
	close(release)
	db.waitFor(t, 30*time.Second, `select count(*) = 49 from jobs where state = 'completed'`)
	if n := value[int](t, db, `select count(*) from jobs where state = 'running' and (args->>'n')::int = 7`); n != 1 {
		t.Fatal("the locked row was settled")
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.waitFor(t, 30*time.Second, `select count(*) = 50 from jobs where state = 'completed'`)
}

// A settle that finds its row locked must not take what comes of the lock for its own doing.
func TestLockedRowThatIsTakenAwayIsStale(t *testing.T) {
	t.Parallel()
	for name, byRescuer := range map[string]bool{"by a rescuer": true, "by hand": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var book diary
			db := newQuietDB(t).via(t, drover.Config{Hooks: book.hooks()})
			s := db.stopped(t, drover.SupervisorConfig{})
			id := db.enqueueJobs(t, 1, nil)[0]
			r := s.claim(t)[0]
			err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
				if byRescuer {
					if _, err := tx.Exec(t.Context(), `update drover_supervisors set lost_at = now(), epoch = epoch + 1`); err != nil {
						return err
					}
				}
				_, err := tx.Exec(t.Context(), `update jobs set claim_seq = claim_seq + 1, claimed_by = 'someone else'`)
				s.settle(t, endedBy(r, engine.Outcome{State: store.Completed, Event: engine.EventCompleted}))
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if len(s.Settler.Locked) != 1 {
				t.Fatal("the settle of a locked row is not kept for later")
			}
			s.Settler.RetryLocked()
			s.settle(t)
			s.reportAll(t)
			if book.count(engine.EventStaleSettle, id) != 1 || book.count(engine.EventCompleted, id) > 0 {
				t.Errorf("%d told as stale, %d as completed", book.count(engine.EventStaleSettle, id), book.count(engine.EventCompleted, id))
			}
			if r.Lease.Ended.Load() != byRescuer {
				t.Errorf("lease ended: %v", r.Lease.Ended.Load())
			}
		})
	}
}

// F-12: while the database refuses, nothing is lost and nothing runs twice; afterwards all of it is recorded.
func TestSettleIsTriedAgainWhileTheDatabaseRefuses(t *testing.T) {
	t.Parallel()
	var book diary
	db := newQuietDB(t).via(t, drover.Config{Hooks: book.hooks()})
	db.exec(t, `create function refuse() returns trigger language plpgsql as $$
		begin raise exception 'disk full' using errcode = '53100'; end $$;
		create trigger refuse before update on jobs for each row when (new.state = 'completed') execute function refuse()`)
	db.enqueueJobs(t, 20, nil)
	var runs atomic.Int64
	db.launch(t, drover.SupervisorConfig{Workers: handling(func(context.Context, *drover.Job, int) error { runs.Add(1); return nil })})
	eventually(t, func() bool { return runs.Load() == 20 })
	db.exec(t, `drop trigger refuse on jobs`)
	db.waitFor(t, 20*time.Second, `select count(*) = 20 from jobs where state = 'completed' and claim_seq = 1`)
	eventually(t, func() bool { return book.count(engine.EventCompleted, "") == 20 })
	if runs.Load() != 20 || book.count(engine.EventStaleSettle, "") > 0 {
		t.Errorf("%d runs, %d stale settles", runs.Load(), book.count(engine.EventStaleSettle, ""))
	}
}

// claims and settles work however pgx sends statements: some modes know no types of parameters.
func TestRunInEveryExecMode(t *testing.T) {
	t.Parallel()
	slow(t)
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			db := newQuietDB(t)
			via := db.via(t, drover.Config{}, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			for _, retention := range []drover.Retention{0, drover.DeleteOnCompletion} {
				sup := via.launch(t, drover.SupervisorConfig{CompletedRetention: retention, Workers: handling(func(_ context.Context, j *drover.Job, n int) error {
					if n == 1 && j.Attempt == 1 {
						return drover.RetryAfter(0, errors.New("boom"))
					}
					return nil
				})})
				ids := db.enqueueJobs(t, 3, nil)
				done := 3
				if retention == drover.DeleteOnCompletion {
					done = 0
				}
				db.waitFor(t, 20*time.Second, `select count(*) = $2 and count(*) filter (where state = 'completed') = $2 from jobs where id = any($1)`, ids, done)
				sup.Stop(t)
			}
		})
	}
}

// A job that has run and is not settled yet runs again if the process dies: a settler that falls behind holds up the claims.
func TestClaimsWaitForTheSettler(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 10}}})
	db.enqueueJobs(t, 1, nil)
	waiting := &engine.Run{Shared: s.Shared, End: engine.Outcome{State: store.Completed}}
	s.Settler.Ended = slices.Repeat([]*engine.Run{waiting}, engine.MaxWaiting+1)
	s.Claimer.Wake()
	if s.Claimer.Request(s.Now()) != nil {
		t.Fatalf("a claim beside %d outcomes that wait", engine.MaxWaiting+1)
	}
	s.Claimer.Poked = false // the job that has woken it waits for room
	for len(s.Settler.Ended) > engine.MaxWaiting {
		if s.Claimer.Poked {
			t.Fatal("claims go on before the settler has caught up")
		}
		s.Settler.Take(s.Now())
	}
	if s.Claimer.Request(s.Now()) == nil {
		t.Error("no claim once the settler has caught up")
	}
}

// A server that comes back is looked for soon, and not by all at the same moment.
func TestTroubleIsShortAndSpread(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	now := time.Now()
	s.Now = func() time.Time { return now }
	pauses := map[time.Duration]bool{}
	for range 20 {
		var trouble engine.Trouble
		for n := range 20 {
			trouble.Failed(t.Context(), s.Shared, "a test", errors.New("refused"))
			longest := min(engine.RetryPause<<min(n, 10), engine.MaxRetryPause)
			if pause := trouble.Until.Sub(now); pause > longest || pause <= longest/2 {
				t.Fatalf("%v after %d failures, want up to %v", pause, n+1, longest)
			}
		}
		pauses[trouble.Until.Sub(now)] = true
	}
	if len(pauses) < 10 {
		t.Errorf("20 supervisors would come back at %d moments", len(pauses))
	}
}

// A trigger, or a policy of row security, that leaves the row as it is looks like a lock that is never given back. The log
// reports it, and once that is repaired, the outcome is recorded without another run.
func TestAnOutcomeThatChangesNothingIsReported(t *testing.T) {
	t.Parallel()
	slow(t)
	var book harness.Logbook
	db := newTestDBWith(t, drover.Config{Logger: slog.New(&book)})
	db.Refuses(t, "delete", "jobs", "true", "return null")
	var calls atomic.Int32
	db.launch(t, drover.SupervisorConfig{CompletedRetention: drover.DeleteOnCompletion, Workers: handling(func(context.Context, *drover.Job, int) error {
		calls.Add(1)
		return nil
	})})
	id := db.enqueue(t, job{1}, nil)
	eventually(t, func() bool {
		log := strings.Join(book.From(slog.LevelWarn), "")
		return strings.Contains(log, "row security blocks the update") && strings.Contains(log, id)
	})
	db.exec(t, `drop trigger app_delete_jobs on jobs`)
	db.waitFor(t, 30*time.Second, `select not exists (select from jobs)`)
	if n := calls.Load(); n != 1 {
		t.Errorf("the handler was called %d times", n)
	}
}

// W-3: the reply to a settle is lost that a policy changed: the events report what the row became.
func TestPolicyOfASettleWhoseReplyWasLost(t *testing.T) {
	t.Parallel()
	plain := newQuietDB(t)
	var book diary
	db, wire := plain.cutting(t, drover.Config{Hooks: book.hooks()})
	db.launch(t, drover.SupervisorConfig{Workers: handling(func(context.Context, *drover.Job, int) error { return errors.New("boom") })})
	first := plain.enqueueJobs(t, 1, nil)[0]
	eventually(t, func() bool { return book.count(engine.EventFailed, first) == 1 })
	plain.Tend(t)
	if err := plain.client.SetFailurePolicy(t.Context(), plain.TheGroup(t).Fingerprint, drover.FailurePolicy{Action: drover.FailureDiscard}, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	wire.arm(store.SQLSettle[len(store.SQLSettle)-60:], "")
	id := plain.enqueueJobs(t, 1, nil)[0]
	eventually(t, func() bool { return book.count(engine.EventDiscarded, id) == 1 })
	if n := wire.cutSoFar(); n != 1 || book.count(engine.EventFailed, id) != 0 || book.count(engine.EventStaleSettle, id) != 0 {
		t.Errorf("%d connections cut, told: %+v", n, book.events)
	}
	plain.Tend(t)
	if g := plain.TheGroup(t); g.Count != 2 || g.Jobs != 2 {
		t.Errorf("%+v", g)
	}
}
