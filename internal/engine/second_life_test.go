package engine_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/store"
)

// Ids are the caller's: a job that has ended and left the table may come again under the same one, while the handler of
// its first life still works. The second life's first claim has the number that the first one's had, and perhaps the same
// owner. Nothing that the first handler does may reach it.

// cancelAll ends jobs that handlers work on.
func (db *testDB) cancelAll(t testing.TB, ids ...string) {
	t.Helper()
	if done, err := db.client.CancelMany(t.Context(), drover.Filter{IDs: ids}, drover.Audit{Why: "not wanted"}); err != nil || int(done.Changed) != len(ids) {
		t.Fatalf("cancelled %d of %d, %v", done.Changed, len(ids), err)
	}
}

// deleteAll makes the ids of jobs that have ended free.
func (db *testDB) deleteAll(t testing.TB, ids ...string) {
	t.Helper()
	if done, err := db.client.DeleteMany(t.Context(), drover.Filter{IDs: ids}, drover.Audit{}); err != nil || int(done.Changed) != len(ids) {
		t.Fatalf("deleted %d of %d, %v", done.Changed, len(ids), err)
	}
}

// again makes jobs under ids that others had.
func (db *testDB) again(t testing.TB, ids ...string) {
	t.Helper()
	for n, id := range ids {
		if receipt, err := db.client.Enqueue(t.Context(), job{n}, &drover.EnqueueOpts{ID: id}); err != nil || receipt.Existing {
			t.Fatalf("enqueued again: %+v, %v", receipt, err)
		}
	}
}

// secondLife has jobs that handlers work on cancelled and deleted, and enqueued again.
func (db *testDB) secondLife(t testing.TB, ids ...string) {
	t.Helper()
	db.cancelAll(t, ids...)
	db.deleteAll(t, ids...)
	db.again(t, ids...)
}

// claimAll claims n jobs.
func (s *still) claimAll(t testing.TB, n int) []*engine.Run {
	t.Helper()
	var runs []*engine.Run
	for len(runs) < n {
		runs = append(runs, s.claim(t)...)
	}
	for _, r := range runs {
		r.Ctx, r.StartedAt = t.Context(), s.Now()
	}
	return runs
}

// theRows is all that there is of jobs.
func (db *testDB) theRows(t testing.TB, ids []string) string {
	t.Helper()
	return value[string](t, db, `select jsonb_pretty(jsonb_agg(to_jsonb(j) order by id)) from jobs j where id = any($1)`, ids)
}

// F-8, I7: however the first life went and whatever its handler returns, alone or beside runs of the second claim.
func TestSettleOfAnEarlierLife(t *testing.T) {
	t.Parallel()
	slow(t)
	endings := []func(*engine.Run) *engine.Run{
		func(r *engine.Run) *engine.Run { return decided(r, nil) },
		func(r *engine.Run) *engine.Run { return decided(r, errBoom) },
		func(r *engine.Run) *engine.Run { return decided(r, drover.Discard(errBoom)) },
		func(r *engine.Run) *engine.Run { return decided(r, drover.Snooze(0)) },
		func(r *engine.Run) *engine.Run { return decided(r, drover.Cancel(errBoom)) },
		func(r *engine.Run) *engine.Run { return endedBy(r, engine.Released(0)) },
		deaf,
	}
	n := len(endings)
	// Each returns runs of the first life whose ids have a second by then, with as many claims.
	ways := map[string]func(t *testing.T, db *testDB, s *still) (runs, second []*engine.Run){
		"deleted": func(t *testing.T, db *testDB, s *still) (runs, second []*engine.Run) {
			t.Helper()
			runs = s.claimAll(t, n)
			db.secondLife(t, ids(runs)...)
			return runs, s.claimAll(t, n)
		},
		"pruned": func(t *testing.T, db *testDB, s *still) (runs, second []*engine.Run) {
			t.Helper()
			runs = s.claimAll(t, n)
			db.cancelAll(t, ids(runs)...)
			hence := "-1 hour"
			if _, err := db.prune(t.Context(), engine.PruneWalk{}, store.Keeping{Completed: &hence, Cancelled: &hence}); err != nil {
				t.Fatal(err)
			}
			db.again(t, ids(runs)...)
			return runs, s.claimAll(t, n)
		},
		"archived": func(t *testing.T, db *testDB, s *still) (runs, second []*engine.Run) {
			t.Helper()
			runs = s.claimAll(t, n)
			db.cancelAll(t, ids(runs)...)
			if moved, err := db.client.Archive(t.Context(), drover.Filter{IDs: ids(runs)}, nil, drover.Audit{}); err != nil || int(moved.Jobs) != n {
				t.Fatalf("archived %+v, %v", moved, err)
			}
			db.again(t, ids(runs)...)
			return runs, s.claimAll(t, n)
		},
		"restored": func(t *testing.T, db *testDB, s *still) (runs, second []*engine.Run) {
			t.Helper()
			archived := s.claimAll(t, n)
			all := drover.Filter{IDs: ids(archived)}
			for _, r := range archived {
				s.settle(t, decided(r, drover.Discard(errBoom)))
			}
			if moved, err := db.client.Archive(t.Context(), all, nil, drover.Audit{}); err != nil || int(moved.Jobs) != n {
				t.Fatalf("archived %+v, %v", moved, err)
			}
			db.again(t, all.IDs...)
			for _, r := range s.claimAll(t, n) {
				s.settle(t, endedBy(r, engine.Released(0)))
			}
			runs = s.claimAll(t, n) // the second claims
			db.cancelAll(t, all.IDs...)
			db.deleteAll(t, all.IDs...)
			if moved, err := db.client.Restore(t.Context(), all, drover.Audit{}); err != nil || int(moved.Jobs) != n {
				t.Fatalf("restored %+v, %v", moved, err)
			}
			for _, id := range all.IDs {
				if err := db.client.RedriveJob(t.Context(), id, nil, drover.Audit{}); err != nil {
					t.Fatal(err)
				}
			}
			return runs, s.claimAll(t, n)
		},
	}
	for _, retention := range []drover.Retention{0, drover.DeleteOnCompletion} {
		for name, way := range ways {
			t.Run(fmt.Sprintf("%s, completed kept for %v", name, retention), func(t *testing.T) {
				t.Parallel()
				var book diary
				db := newQuietDB(t).via(t, drover.Config{Hooks: book.hooks()})
				s := db.stopped(t, drover.SupervisorConfig{CompletedRetention: retention, Queues: []drover.Queue{{Concurrency: 10 * n}}})
				db.enqueueJobs(t, n, nil)
				first, second := way(t, db, s)
				if a, b := first[0], second[0]; a.Seq != b.Seq || a.Owner != b.Owner || s.Settler.Unsettled.Len() != 2*n {
					t.Fatalf("claims %d and %d, %d runs: this proves nothing", a.Seq, b.Seq, s.Settler.Unsettled.Len())
				}
				before := db.theRows(t, ids(first))
				var stale []*engine.Run
				for i, r := range first {
					stale = append(stale, endings[i](r))
				}
				s.settle(t, stale...)
				if after := db.theRows(t, ids(first)); after != before {
					t.Errorf("the second life changed:\n%s\n%s", before, after)
				}
				for _, r := range second {
					s.settle(t, decided(r, nil))
				}
				s.reportAll(t)
				for i, r := range first {
					if stale, completed := book.count(engine.EventStaleSettle, r.ID), book.count(engine.EventCompleted, r.ID); stale != 1 || completed != 1 {
						t.Errorf("ending %d: %d told as stale, %d as completed", i, stale, completed)
					}
				}
				if s.Settler.Unsettled.Len() > 0 {
					t.Errorf("%d runs are not settled", s.Settler.Unsettled.Len())
				}
			})
		}
	}
}

// Runs of both lives end in one round trip, in either order and in every pair of ways; so do the runs of a claim next to it.
func TestBothLivesEndInOneRoundTrip(t *testing.T) {
	t.Parallel()
	slow(t)
	endings := map[string]error{"completed": nil, "failed": errBoom, "discarded": drover.Discard(errBoom)}
	for was, first := range endings {
		for is, second := range endings {
			for _, firstFirst := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, then %s, in order: %t", was, is, firstFirst), func(t *testing.T) {
					t.Parallel()
					var book diary
					db := newQuietDB(t).via(t, drover.Config{Hooks: book.hooks()})
					s := db.stopped(t, drover.SupervisorConfig{})
					id := db.enqueueJobs(t, 1, nil)[0]
					old := s.claimAll(t, 1)[0]
					db.secondLife(t, id)
					beside := db.enqueueJobs(t, 1, nil)[0]
					batch := []*engine.Run{decided(old, first)}
					for _, r := range s.claimAll(t, 2) {
						o := decided(r, nil)
						if r.ID == id {
							o = decided(r, second)
						}
						if firstFirst {
							batch = append(batch, o)
						} else {
							batch = append([]*engine.Run{o}, batch...)
						}
					}
					s.settle(t, batch...)
					for s.Settler.Unsettled.Len() > 0 {
						s.Settler.RetryLocked()
						s.settle(t)
					}
					s.reportAll(t)
					want := map[string]drover.State{"completed": drover.Completed, "failed": drover.Retryable, "discarded": drover.Discarded}[is]
					kind := map[string]engine.EventKind{"completed": engine.EventCompleted, "failed": engine.EventFailed, "discarded": engine.EventDiscarded}[is]
					if j, err := db.client.Job(t.Context(), id); err != nil || j.State != want {
						t.Errorf("the job is %v, %v", j, err)
					}
					if book.count(engine.EventStaleSettle, id) != 1 || book.count(kind, id) != 1 || len(book.events) != 3 || book.count(engine.EventCompleted, beside) != 1 {
						t.Errorf("told: %+v", book.events)
					}
				})
			}
		}
	}
}

// F-12: the first life's settle was done, but its reply was lost. Sent again, it is known as its own, and leaves the
// second life alone.
func TestSettleWhoseReplyWasLostBeforeTheSecondLife(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]struct {
		err  error
		kind engine.EventKind
	}{"completed": {nil, engine.EventCompleted}, "discarded": {drover.Discard(errBoom), engine.EventDiscarded}} {
		for _, retention := range []drover.Retention{0, drover.DeleteOnCompletion} {
			t.Run(fmt.Sprintf("%s, completed kept for %v", name, retention), func(t *testing.T) {
				t.Parallel()
				var book diary
				db := newQuietDB(t).via(t, drover.Config{Hooks: book.hooks()})
				s := db.stopped(t, drover.SupervisorConfig{CompletedRetention: retention})
				id := db.enqueueJobs(t, 1, nil)[0]
				out := []*engine.Run{decided(s.claimAll(t, 1)[0], end.err)}
				conn, err := s.Settler.Link.Get(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if err := conn.Settle(t.Context(), &engine.SettlingOf(out, 0).Settlement); err != nil {
					t.Fatal(err)
				}
				s.Settler.AfterSettle(t.Context(), conn, out, &engine.Settling{}, context.DeadlineExceeded) // nobody has read that
				db.exec(t, `delete from jobs where id = $1 and finalized_at is not null`, id)
				db.again(t, id)
				second := s.claimAll(t, 1)[0]
				before := db.theRows(t, []string{id})
				s.settle(t)
				if after := db.theRows(t, []string{id}); after != before {
					t.Errorf("the second life changed:\n%s\n%s", before, after)
				}
				if !s.Settler.Unsettled.Has(second) || s.Settler.Unsettled.Len() != 1 {
					t.Errorf("%d runs are held", s.Settler.Unsettled.Len())
				}
				s.reportAll(t)
				if book.count(end.kind, id) != 1 || len(book.events) != 1 {
					t.Errorf("told: %+v", book.events)
				}
			})
		}
	}
}

// F-8, F-9: the first handler's transaction fails, however early its snapshot.
func TestTransactionOfAnEarlierLife(t *testing.T) {
	t.Parallel()
	slow(t)
	for _, retention := range []drover.Retention{0, drover.DeleteOnCompletion} {
		db := newQuietDB(t)
		s := db.stopped(t, drover.SupervisorConfig{CompletedRetention: retention, Queues: []drover.Queue{{Concurrency: 1000}}})
		for _, b := range db.Beginners(t) {
			for _, level := range []string{"read committed", "repeatable read", "serializable"} {
				for what, settle := range map[string]func(context.Context, *drover.Job, drover.Tx) error{
					"CompleteTx": func(ctx context.Context, j *drover.Job, tx drover.Tx) error { return j.CompleteTx(ctx, tx) },
					"SettleTx":   func(ctx context.Context, j *drover.Job, tx drover.Tx) error { return j.SettleTx(ctx, tx, errBoom) },
					"EnqueueTx": func(ctx context.Context, j *drover.Job, tx drover.Tx) error {
						_, err := j.EnqueueTx(ctx, tx, letter{"child"}, nil)
						return err
					},
				} {
					for _, early := range []bool{true, false} {
						name := fmt.Sprintf("%s by %s, %s, snapshot of the first life: %t", what, b.Name, level, early)
						id := db.enqueueJobs(t, 1, nil)[0]
						first := s.claimAll(t, 1)[0]
						tx, err := b.Begin(t.Context(), level)
						if err != nil {
							t.Fatal(err)
						}
						look := func() {
							if err := tx.Exec(`select from jobs where id = $1`, id); err != nil {
								t.Error(err)
							}
						}
						if early {
							look()
						}
						db.secondLife(t, id)
						second := s.claimAll(t, 1)[0]
						if !early {
							look()
						}
						before := db.theRows(t, []string{id})
						// In a snapshot of the first life the job's row cannot be locked.
						if err, failed := settle(t.Context(), jobOf(first), tx.Tx), early && level != "read committed"; failed && !harness.Serialization(err) || !failed && !errors.Is(err, drover.ErrLeaseLost) {
							t.Errorf("%s: %v", name, err)
						}
						_ = tx.Commit() // some have failed by then
						if after := db.theRows(t, []string{id}); after != before {
							t.Errorf("%s: the second life changed:\n%s\n%s", name, before, after)
						}
						s.settle(t, decided(second, nil), decided(first, nil))
					}
				}
			}
		}
		if n := value[int](t, db, `select count(*) from jobs where kind <> 'job'`); n != 0 {
			t.Errorf("%d children of runs that had lost their job", n)
		}
	}
}

// A transaction of the first handler's that has completed the job and is still open holds the row: nobody can delete it.
// Once it is rolled back, and the job had a second life since, what the handler returns is stale.
func TestTransactionRolledBackBeforeTheSecondLife(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	id := db.enqueueJobs(t, 1, nil)[0]
	first := s.claimAll(t, 1)[0]
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if err := jobOf(first).CompleteTx(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	impatient := db.via(t, drover.Config{}, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["lock_timeout"] = "100ms" })
	if _, err := impatient.client.Cancel(t.Context(), id, drover.Audit{}); err == nil {
		t.Fatal("cancelled beside an open completion")
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.secondLife(t, id)
	s.claimAll(t, 1)
	before := db.theRows(t, []string{id})
	s.settle(t, decided(first, nil))
	s.settle(t) // a look has put it back
	if after := db.theRows(t, []string{id}); after != before {
		t.Errorf("the second life changed:\n%s\n%s", before, after)
	}
}

// A job with a single attempt: the first life's start is not noted in the second, and its handler not called, though both
// wait for the same round trip.
func TestStartOfAnEarlierLife(t *testing.T) {
	t.Parallel()
	for _, together := range []bool{true, false} {
		t.Run(fmt.Sprintf("together: %t", together), func(t *testing.T) {
			t.Parallel()
			db := newQuietDB(t)
			s := db.stopped(t, drover.SupervisorConfig{})
			id := db.enqueueJobs(t, 1, &drover.EnqueueOpts{MaxAttempts: 1})[0]
			first := &engine.Start{Run: s.claimAll(t, 1)[0], Noted: make(chan bool, 1)}
			db.secondLife(t, id)
			second := &engine.Start{Run: s.claimAll(t, 1)[0], Noted: make(chan bool, 1)}
			s.Settler.Starts = []*engine.Start{first}
			if together {
				s.Settler.Starts = append(s.Settler.Starts, second)
			}
			s.Settler.NoteStarts(t.Context(), s.Now())
			if <-first.Noted {
				t.Error("the first life starts")
			}
			if together {
				if !<-second.Noted {
					t.Error("the second life does not start")
				}
			} else if !value[bool](t, db, `select started_seq is null from jobs`) {
				t.Error("the second life is noted as started")
			}
		})
	}
}

// A claim of the second life whose reply was lost is handed back, though a run of that id is known.
func TestLostClaimOfASecondLife(t *testing.T) {
	t.Parallel()
	var book diary
	db := newQuietDB(t).via(t, drover.Config{Hooks: book.hooks()})
	s := db.stopped(t, drover.SupervisorConfig{})
	id := db.enqueueJobs(t, 1, nil)[0]
	first := s.claimAll(t, 1)[0]
	db.secondLife(t, id)
	s.loseClaim(t, db)
	s.Claimer.FindOut(t.Context())
	s.settle(t)
	if !value[bool](t, db, `select state = 'available' and attempt = 0 and claim_seq = 1 from jobs where id = $1`, id) {
		t.Fatal(db.theRows(t, []string{id}))
	}
	second := s.claimAll(t, 1)[0]
	s.settle(t, decided(first, nil))
	s.settle(t, decided(second, nil))
	s.reportAll(t)
	if book.count(engine.EventStaleSettle, id) != 1 || book.count(engine.EventCompleted, id) != 1 {
		t.Errorf("told: %+v", book.events)
	}
}

// I9, FAULTS W-4: the heartbeat cancels the first handler, and not the second, though both are this supervisor's.
func TestTheHandlerOfAnEarlierLifeIsTold(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	first, second := make(chan context.Context, 1), make(chan context.Context, 1)
	release := make(chan struct{})
	// Nobody listens, and no beat comes by itself between the two lives.
	sup := db.launch(t, drover.SupervisorConfig{DisableNotify: true, PollInterval: 10 * time.Millisecond, Lease: 10 * time.Minute, Workers: handling(func(ctx context.Context, _ *drover.Job, n int) error {
		if n == 7 {
			first <- ctx
		} else {
			second <- ctx
		}
		<-release
		return nil
	})})
	id := db.enqueue(t, job{7}, nil)
	earlier := receive(t, first)
	db.via(t, drover.Config{}).secondLife(t, id) // a client knows the supervisors of its own
	later := receive(t, second)
	harness.EngineOf(sup.Supervisor).Keeper.Interrupt()
	receive(t, earlier.Done())
	if cause := context.Cause(earlier); !errors.Is(cause, drover.ErrLeaseLost) {
		t.Errorf("the first handler was told %v", cause)
	}
	if err := later.Err(); err != nil {
		t.Errorf("the second handler was told %v", context.Cause(later))
	}
	close(release)
	db.waitFor(t, 20*time.Second, `select state = 'completed' and claim_seq = 1 from jobs where id = $1`, id)
}

// The whole of it: a handler that ignores its context returns while the handler of the second life works.
func TestSecondLifeOfAnIDBesideADeafHandler(t *testing.T) {
	t.Parallel()
	for name, returned := range map[string]error{"completes": nil, "fails": errBoom} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var book diary
			db := newQuietDB(t).via(t, drover.Config{Hooks: book.hooks()})
			first, second := make(chan struct{}), make(chan struct{})
			started := make(chan int, 2)
			db.launch(t, drover.SupervisorConfig{Workers: handling(func(_ context.Context, _ *drover.Job, n int) error {
				started <- n
				if n == 7 {
					<-first
					return returned
				}
				<-second
				return nil
			})})
			id := db.enqueue(t, job{7}, nil)
			receive(t, started)
			db.secondLife(t, id)
			receive(t, started)
			before := db.theRows(t, []string{id})
			close(first)
			eventually(t, func() bool {
				return book.count(engine.EventStaleSettle, id)+book.count(engine.EventCompleted, id)+book.count(engine.EventFailed, id) > 0
			})
			if after := db.theRows(t, []string{id}); after != before {
				t.Errorf("the second life changed:\n%s\n%s", before, after)
			}
			close(second)
			eventually(t, func() bool { return book.count(engine.EventCompleted, id) == 1 })
			if n := book.count(engine.EventStaleSettle, id); n != 1 {
				t.Errorf("%d told as stale", n)
			}
		})
	}
}

// A job that the database refuses to settle or to start is given up under its own claim alone: not the job that was
// enqueued under its id meanwhile, and that the same supervisor runs under the same number.
func TestOnlyTheRefusedLifeIsGivenUp(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	id := db.enqueueJobs(t, 1, nil)[0]
	first := s.claimAll(t, 1)[0]
	db.secondLife(t, id)
	second := s.claimAll(t, 1)[0]
	if first.ID != second.ID || first.Seq != second.Seq || first.Owner != second.Owner || first.ClaimedAt.Equal(second.ClaimedAt) {
		t.Fatalf("%+v and %+v", first.Fence, second.Fence)
	}
	for _, path := range []func(r *engine.Run) error{
		func(r *engine.Run) error { return s.Settler.StartRefused(t.Context(), r, errBoom, false) },
		func(r *engine.Run) error {
			o := decided(r, nil)
			o.Refusals, s.Settler.Worked = engine.SettleTries, s.Now().Add(time.Hour)
			return s.Settler.Refused(t.Context(), o, errBoom)
		},
	} {
		if err := path(first); err != nil {
			t.Fatal(err)
		}
		if row := value[string](t, db, `select state || ' ' || claim_seq from jobs where id = $1`, id); row != "running 1" {
			t.Fatalf("the second life is %s", row)
		}
	}
	if err := s.Settler.StartRefused(t.Context(), second, errBoom, false); err != nil || value[bool](t, db, `select state = 'running' from jobs where id = $1`, id) {
		t.Errorf("the refused life is not given up: %v", err)
	}
}
