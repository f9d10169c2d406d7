package drover_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/oklog/ulid/v2"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/pgdev"
	"github.com/drover-queue/drover/internal/store"
	"github.com/drover-queue/drover/migrations"
)

// E-2: jobs that are enqueued in a transaction become visible when it commits, and only then. A
// rollback leaves none of them.
func TestEnqueueTxFollowsItsTransaction(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	for _, b := range db.Beginners(t) {
		for _, commit := range []bool{true, false} {
			ids := []string{}
			woke := woken(t, db, func() {
				tx, err := b.Begin(t.Context(), "read committed")
				if err != nil {
					t.Fatal(err)
				}
				one, err := db.client.EnqueueTx(t.Context(), tx.Tx, letter{}, nil)
				if err != nil {
					t.Error(err)
				}
				many, err := db.client.EnqueueManyTx(t.Context(), tx.Tx, []drover.EnqueueItem{{letter{}, nil}, {letter{}, &drover.EnqueueOpts{ID: ulid.Make().String()}}})
				if err != nil || len(many) != 2 {
					t.Fatal(many, err)
				}
				ids = append(ids, one.ID, many[0].ID, many[1].ID)
				if n := value[int](t, db, `select count(*) from jobs where id = any($1)`, ids); n != 0 {
					t.Errorf("%s: %d jobs can be seen before the commit", b.Name, n)
				}
				end := tx.Rollback
				if commit {
					end = tx.Commit
				}
				if err := end(); err != nil {
					t.Error(err)
				}
			})
			n := value[int](t, db, `select count(*) from jobs where id = any($1)`, ids)
			if want := map[bool]int{true: 3, false: 0}[commit]; n != want || woke != commit {
				t.Errorf("%s: commit %t: %d jobs, woken %t", b.Name, commit, n, woke)
			}
		}
	}
}

// A transaction enqueues an id of an existing job that its own snapshot does not show. EnqueueTx
// fails, because it can neither see the job nor report it as new.
func TestEnqueueTxOfAnIDThatItsSnapshotMisses(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	for _, b := range db.Beginners(t) {
		for _, level := range []string{"read committed", "repeatable read", "serializable"} {
			tx, err := b.Begin(t.Context(), level)
			if err != nil {
				t.Fatal(err)
			}
			if err := tx.Exec(`select from jobs`); err != nil { // takes the snapshot
				t.Fatal(err)
			}
			id := db.enqueue(t, letter{}, nil)
			r, err := db.client.EnqueueTx(t.Context(), tx.Tx, letter{}, &drover.EnqueueOpts{ID: id})
			if level == "read committed" && (err != nil || !r.Existing) || level != "read committed" && err == nil {
				t.Errorf("%s: %s: %+v, %v", b.Name, level, r, err)
			}
			if err := tx.Rollback(); err != nil {
				t.Error(err)
			}
		}
	}
}

// After an error of EnqueueTx the transaction can only be rolled back. A commit fails.
func TestAFailedEnqueueTxFailsItsTransaction(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	id := db.enqueue(t, letter{"a"}, nil)
	for _, b := range db.Beginners(t) {
		tx, err := b.Begin(t.Context(), "read committed")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := db.client.EnqueueTx(t.Context(), tx.Tx, letter{"b"}, &drover.EnqueueOpts{ID: id}); !errors.Is(err, drover.ErrIDConflict) {
			t.Errorf("%s: %v, want ErrIDConflict", b.Name, err)
		}
		if err := tx.Commit(); err == nil {
			t.Errorf("%s: the commit went through", b.Name)
		}
	}
}

// ended is one end event.
type ended struct {
	how string
	drover.Event
}

// endHooks returns hooks for every way in which a run ends, and the channel that receives their
// events.
func endHooks() (chan ended, []drover.Hooks) {
	ends := make(chan ended, 1000)
	tell := func(how string) func(context.Context, drover.Event) {
		return func(_ context.Context, e drover.Event) { ends <- ended{how, e} }
	}
	return ends, []drover.Hooks{{
		Completed: tell("completed"), Failed: tell("failed"), Discarded: tell("discarded"), Snoozed: tell("snoozed"),
		Cancelled: tell("cancelled"), Released: tell("released"), StaleSettle: tell("stale_settle"),
	}}
}

// txDB is a database with a supervisor. Each step of a test chooses the next job's handler.
type txDB struct {
	*testDB
	ends    chan ended
	handler chan func(context.Context, *drover.Job) error
}

func newTxDB(t *testing.T, retention drover.Retention) *txDB {
	t.Helper()
	ends, hooks := endHooks()
	db := &txDB{newTestDBWith(t, drover.Config{Logger: slog.New(slog.DiscardHandler), Hooks: hooks}), ends, make(chan func(context.Context, *drover.Job) error)}
	db.exec(t, `create table effects (job text)`)
	db.run(t, drover.SupervisorConfig{
		Queues: []drover.Queue{{}}, CompletedRetention: retention, PollInterval: 20 * time.Millisecond, DisableNotify: true,
		Workers: []drover.Worker{drover.Handle(func(ctx context.Context, j *drover.Job, _ letter) error { return (<-db.handler)(ctx, j) }, drover.WorkerOpts{
			MaxAttempts: 5, Retry: drover.Constant{Delay: time.Hour},
		})},
	})
	return db
}

// once runs a fresh job with the handler and returns how the run ended.
func (db *txDB) once(t *testing.T, handler func(context.Context, *drover.Job) error) ended {
	t.Helper()
	id := db.enqueue(t, letter{}, nil)
	db.handler <- handler
	end := <-db.ends
	if end.JobID != id {
		t.Fatalf("%s of job %s, want %s", end.how, end.JobID, id)
	}
	return end
}

func (db *txDB) effects(t *testing.T, id string) int {
	t.Helper()
	return value[int](t, db.testDB, `select count(*) from effects where job = $1`, id)
}

var errNope = errors.New("nope")

// F-9: the handler's rows and the outcome of its run commit together. The error that the handler
// returns afterwards does not count. Every verdict has the same effect through SettleTx as when the
// handler returns it.
func TestSettleTxCommitsWithTheHandlersRows(t *testing.T) {
	t.Parallel()
	db := newTxDB(t, 0)
	for name, tc := range map[string]struct {
		settle func(context.Context, *drover.Job, drover.Tx) error
		how    string
		row    string // a condition that the job's row must meet
	}{
		"CompleteTx": {
			func(ctx context.Context, j *drover.Job, tx drover.Tx) error { return j.CompleteTx(ctx, tx) }, "completed",
			`state = 'completed' and finalized_at is not null and attempt = 1 and errors = '[]' and errors_total = 0`,
		},
		"nil": {
			func(ctx context.Context, j *drover.Job, tx drover.Tx) error { return j.SettleTx(ctx, tx, nil) }, "completed",
			`state = 'completed' and attempt = 1`,
		},
		"error": {
			func(ctx context.Context, j *drover.Job, tx drover.Tx) error { return j.SettleTx(ctx, tx, errNope) }, "failed",
			`state = 'retryable' and attempt = 1 and errors_total = 1 and errors->0->>'error' = 'nope' and errors->0->>'class' = 'error'
			and (errors->0->>'delay_ms')::int = 3600000 and last_delay_ms = 3600000 and scheduled_at > now() + interval '59 minutes' and lane = 15`,
		},
		"Snooze": {
			func(ctx context.Context, j *drover.Job, tx drover.Tx) error {
				return j.SettleTx(ctx, tx, fmt.Errorf("w: %w", drover.Snooze(time.Hour)))
			}, "snoozed",
			`state = 'scheduled' and attempt = 0 and snoozes = 1 and errors = '[]' and scheduled_at > now() + interval '59 minutes'`,
		},
		"Discard": {
			func(ctx context.Context, j *drover.Job, tx drover.Tx) error {
				return j.SettleTx(ctx, tx, drover.Discard(errNope))
			}, "discarded",
			`state = 'discarded' and discard_reason = 'unrecoverable' and errors_total = 1 and finalized_at is not null`,
		},
		"RetryAfter": {
			func(ctx context.Context, j *drover.Job, tx drover.Tx) error {
				return j.SettleTx(ctx, tx, drover.RetryAfter(2*time.Hour, errNope))
			}, "failed",
			`state = 'retryable' and attempt = 1 and errors->0->>'class' = 'throttled' and last_delay_ms between 7200000 and 8640000`,
		},
		"Cancel": {
			func(ctx context.Context, j *drover.Job, tx drover.Tx) error {
				return j.SettleTx(ctx, tx, drover.Cancel(errNope))
			}, "cancelled",
			`state = 'cancelled' and errors_total = 0 and errors->0->>'error' = 'nope'`,
		},
		"DontCount": {
			func(ctx context.Context, j *drover.Job, tx drover.Tx) error {
				return j.SettleTx(ctx, tx, drover.DontCount(errNope))
			}, "failed",
			`state = 'retryable' and attempt = 0 and uncounted = 1 and errors_total = 1`,
		},
	} {
		for _, b := range db.Beginners(t) {
			for _, returned := range []error{nil, errNope, drover.Discard(errNope)} {
				name := fmt.Sprintf("%s by %s, then %v", name, b.Name, returned)
				end := db.once(t, func(ctx context.Context, j *drover.Job) error {
					tx, err := b.Begin(ctx, "read committed")
					if err != nil {
						return err
					}
					if err := tx.Exec(`insert into effects values ($1)`, j.ID); err != nil {
						t.Error(err)
					}
					if err := tc.settle(ctx, j, tx.Tx); err != nil {
						t.Errorf("%s: %v", name, err)
					}
					if state := value[string](t, db.testDB, `select state from jobs where id = $1`, j.ID); state != "running" { //nolint:contextcheck // the test's own
						t.Errorf("%s: %s before the commit", name, state)
					}
					if err := tx.Commit(); err != nil {
						t.Errorf("%s: %v", name, err)
					}
					return returned
				})
				if end.how != tc.how {
					t.Errorf("%s: ended %s: %+v", name, end.how, end.Event)
				}
				if n := db.effects(t, end.JobID); n != 1 {
					t.Errorf("%s: %d effects", name, n)
				}
				if !value[bool](t, db.testDB, `select coalesce(claimed_by is null and claim_seq = 1 and `+tc.row+`, false) from jobs where id = $1`, end.JobID) {
					t.Errorf("%s: not so in the row: %s\n%s", name, tc.row, value[string](t, db.testDB, `select to_jsonb(j)::text from jobs j where id = $1`, end.JobID))
				}
				db.exec(t, `delete from jobs where id = $1`, end.JobID)
			}
		}
	}
}

// F-9: a rollback removes the handler's rows and the outcome. Then the handler's return value
// decides, and nil counts as an error.
func TestSettleTxRolledBack(t *testing.T) {
	t.Parallel()
	for _, retention := range []drover.Retention{0, drover.DeleteOnCompletion} {
		db := newTxDB(t, retention)
		for _, b := range db.Beginners(t) {
			for _, tc := range []struct {
				settled, returned error
				how, row          string
			}{
				{nil, nil, "failed", `state = 'retryable' and errors->0->>'error' = '` + drover.ErrNotCommitted.Error() + `'`},
				{nil, errNope, "failed", `state = 'retryable' and errors->0->>'error' = 'nope'`},
				{nil, drover.Discard(errNope), "discarded", `state = 'discarded' and errors->0->>'error' = 'nope'`},
				{nil, drover.Snooze(time.Hour), "snoozed", `state = 'scheduled' and snoozes = 1`},
				{drover.Discard(errNope), nil, "failed", `state = 'retryable' and errors->0->>'error' = '` + drover.ErrNotCommitted.Error() + `'`},
				{drover.Snooze(time.Hour), drover.Cancel(nil), "cancelled", `state = 'cancelled' and snoozes is null`},
			} {
				name := fmt.Sprintf("%v by %s, then %v", tc.settled, b.Name, tc.returned)
				end := db.once(t, func(ctx context.Context, j *drover.Job) error {
					tx, err := b.Begin(ctx, "read committed")
					if err != nil {
						return err
					}
					if err := errors.Join(tx.Exec(`insert into effects values ($1)`, j.ID), j.SettleTx(ctx, tx.Tx, tc.settled), tx.Rollback()); err != nil {
						t.Errorf("%s: %v", name, err)
					}
					return tc.returned
				})
				if end.how != tc.how || db.effects(t, end.JobID) != 0 {
					t.Errorf("%s: ended %s with %d effects", name, end.how, db.effects(t, end.JobID))
				}
				if !value[bool](t, db.testDB, `select coalesce(`+tc.row+`, false) from jobs where id = $1`, end.JobID) {
					t.Errorf("%s: not so in the row: %s", name, tc.row)
				}
			}
			// After a rollback, the handler may settle in another transaction.
			end := db.once(t, func(ctx context.Context, j *drover.Job) error {
				for range 3 {
					tx, err := b.Begin(ctx, "read committed")
					if err != nil {
						return err
					}
					if err := errors.Join(j.CompleteTx(ctx, tx.Tx), tx.Rollback()); err != nil {
						t.Error(err)
					}
				}
				tx, err := b.Begin(ctx, "read committed")
				if err != nil {
					return err
				}
				return errors.Join(j.CompleteTx(ctx, tx.Tx), tx.Commit())
			})
			if end.how != "completed" {
				t.Errorf("%s: the fourth transaction ended %s", b.Name, end.how)
			}
		}
	}
}

// F-9: with DeleteOnCompletion, CompleteTx deletes the job's row in the handler's transaction.
// Other outcomes keep the row.
func TestCompleteTxWithDeleteOnCompletion(t *testing.T) {
	t.Parallel()
	db := newTxDB(t, drover.DeleteOnCompletion)
	for _, b := range db.Beginners(t) {
		for settled, how := range map[error]string{nil: "completed", drover.Discard(errNope): "discarded"} {
			end := db.once(t, func(ctx context.Context, j *drover.Job) error {
				tx, err := b.Begin(ctx, "read committed")
				if err != nil {
					return err
				}
				return errors.Join(tx.Exec(`insert into effects values ($1)`, j.ID), j.SettleTx(ctx, tx.Tx, settled), tx.Commit())
			})
			if end.how != how || db.effects(t, end.JobID) != 1 {
				t.Errorf("%s: ended %s with %d effects, want %s", b.Name, end.how, db.effects(t, end.JobID), how)
			}
			if n := value[int](t, db.testDB, `select count(*) from jobs where id = $1`, end.JobID); (n == 0) != (how == "completed") {
				t.Errorf("%s: %s: %d rows", b.Name, how, n)
			}
		}
	}
}

// F-8, F-9: another supervisor has claimed the job, so the first handler's transaction fails at
// every isolation level. The run emits no end event except stale_settle, whether its handler
// returns the error or nil. The error is ErrLeaseLost at read committed. At the other levels it is
// the database's serialization failure.
func TestSettleTxOfAJobThatWasTaken(t *testing.T) {
	t.Parallel()
	for _, retention := range []drover.Retention{0, drover.DeleteOnCompletion} {
		db := newTxDB(t, retention)
		db.Alive(t, "other")
		for _, b := range db.Beginners(t) {
			for _, level := range []string{"read committed", "repeatable read", "serializable"} {
				for what, settle := range map[string]func(context.Context, *drover.Job, drover.Tx) error{
					"CompleteTx": func(ctx context.Context, j *drover.Job, tx drover.Tx) error { return j.CompleteTx(ctx, tx) },
					"SettleTx":   func(ctx context.Context, j *drover.Job, tx drover.Tx) error { return j.SettleTx(ctx, tx, errNope) },
					"EnqueueTx": func(ctx context.Context, j *drover.Job, tx drover.Tx) error {
						_, err := j.EnqueueTx(ctx, tx, letter{"child"}, nil)
						return err
					},
				} {
					for _, ignored := range []bool{false, true} {
						name := fmt.Sprintf("%s by %s, %s, error ignored: %t", what, b.Name, level, ignored)
						end := db.once(t, func(ctx context.Context, j *drover.Job) error {
							tx, err := b.Begin(ctx, level)
							if err != nil {
								return err
							}
							if err := tx.Exec(`insert into effects select $1 from (select count(*) from jobs) j`, j.ID); err != nil {
								t.Error(err)
							}
							db.exec(t, `update jobs set claim_seq = claim_seq + 1, claimed_by = 'other' where id = $1`, j.ID) //nolint:contextcheck // the test's own
							err = settle(ctx, j, tx.Tx)
							// A heartbeat may have noticed the lost lease earlier. It then ended
							// the context with this cause.
							right := errors.Is(err, drover.ErrLeaseLost)
							if level != "read committed" {
								right = harness.Serialization(err)
							}
							if !right && (err == nil || !errors.Is(context.Cause(ctx), drover.ErrLeaseLost)) {
								t.Errorf("%s: %v", name, err)
							}
							if ignored {
								err = nil
							}
							return errors.Join(err, tx.Rollback())
						})
						if end.how != "stale_settle" || db.effects(t, end.JobID) != 0 {
							t.Errorf("%s: ended %s with %d effects", name, end.how, db.effects(t, end.JobID))
						}
						if !value[bool](t, db.testDB, `select state = 'running' and claim_seq = 2 and claimed_by = 'other' and errors = '[]' from jobs where id = $1`, end.JobID) {
							t.Errorf("%s: the new owner's row was changed", name)
						}
					}
				}
			}
		}
		if n := value[int](t, db.testDB, `select count(*) from jobs where args->>'to' = 'child'`); n != 0 {
			t.Errorf("%d children of runs that had lost their job", n)
		}
	}
}

// An operator cancels a job while it runs. Its handler can no longer complete it.
func TestCompleteTxOfACancelledJob(t *testing.T) {
	t.Parallel()
	db := newTxDB(t, 0)
	end := db.once(t, func(ctx context.Context, j *drover.Job) error {
		tx, err := db.Begin(ctx)
		if err != nil {
			return err
		}
		if was, err := db.client.Cancel(ctx, j.ID, drover.Audit{Why: "no use"}); err != nil || was != drover.Running {
			t.Errorf("Cancel = %s, %v", was, err)
		}
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), drover.ErrCancelled) {
			t.Errorf("cause %v", context.Cause(ctx))
		}
		if err := j.CompleteTx(context.WithoutCancel(ctx), tx); !errors.Is(err, drover.ErrLeaseLost) {
			t.Errorf("CompleteTx = %v", err)
		}
		return tx.Rollback(context.WithoutCancel(ctx))
	})
	if end.how != "cancelled" {
		t.Errorf("ended %s", end.how)
	}
}

// F-9: a job that a handler enqueues with Job.EnqueueTx exists only if the handler's transaction
// commits.
func TestJobEnqueueTx(t *testing.T) {
	t.Parallel()
	db := newTxDB(t, 0)
	for _, b := range db.Beginners(t) {
		for _, commit := range []bool{true, false} {
			var child drover.Receipt
			end := db.once(t, func(ctx context.Context, j *drover.Job) error {
				tx, err := b.Begin(ctx, "read committed")
				if err != nil {
					return err
				}
				if child, err = j.EnqueueTx(ctx, tx.Tx, payload{j.ID}, &drover.EnqueueOpts{Queue: "next"}); err != nil {
					t.Error(err)
				}
				if err := j.CompleteTx(ctx, tx.Tx); err != nil {
					t.Error(err)
				}
				if _, err := j.EnqueueTx(ctx, tx.Tx, payload{j.ID}, nil); !errors.Is(err, drover.ErrState) || errors.Is(err, drover.ErrLeaseLost) {
					t.Errorf("EnqueueTx behind CompleteTx = %v, want ErrState", err)
				}
				if commit {
					return tx.Commit()
				}
				return tx.Rollback()
			})
			n := value[int](t, db.testDB, `select count(*) from jobs where id = $1 and queue = 'next' and args = to_jsonb($2::text)`, child.ID, end.JobID)
			if commit && (n != 1 || end.how != "completed") || !commit && (n != 0 || end.how != "failed") {
				t.Errorf("%s: commit %t: %d children, ended %s", b.Name, commit, n, end.how)
			}
		}
	}
}

// F-9: a run settles once. A second settle fails with ErrState. After a rollback the run may settle
// again.
func TestASecondSettleInOneRun(t *testing.T) {
	t.Parallel()
	for _, retention := range []drover.Retention{0, drover.DeleteOnCompletion} {
		db := newTxDB(t, retention)
		for _, b := range db.Beginners(t) {
			for _, level := range []string{"read committed", "repeatable read", "serializable"} {
				name := fmt.Sprintf("%s, %s, kept for %v", b.Name, level, retention)
				twice := func(j *drover.Job, tx harness.TestTx) {
					for _, err := range []error{j.CompleteTx(context.Background(), tx.Tx), j.SettleTx(context.Background(), tx.Tx, errNope)} {
						if !errors.Is(err, drover.ErrState) || errors.Is(err, drover.ErrLeaseLost) || err.Error() != "drover: not in a state for this: this run has settled job "+j.ID+" already" {
							t.Errorf("%s: %v, want ErrState", name, err)
						}
					}
				}
				end := db.once(t, func(ctx context.Context, j *drover.Job) error {
					for _, commit := range []bool{false, true} {
						tx, err := b.Begin(ctx, level)
						if err != nil {
							return err
						}
						if err := j.CompleteTx(ctx, tx.Tx); err != nil {
							t.Errorf("%s: %v", name, err)
						}
						twice(j, tx)
						if !commit {
							err = tx.Rollback()
						} else {
							err = tx.Commit()
						}
						if err != nil {
							t.Errorf("%s: %v", name, err)
						}
					}
					tx, err := b.Begin(ctx, level)
					if err != nil {
						return err
					}
					twice(j, tx)
					return tx.Rollback()
				})
				if end.how != "completed" {
					t.Errorf("%s: ended %s", name, end.how)
				}
			}
		}
	}
}

// A Job that no handler was given cannot be settled: its methods return ErrLeaseLost.
func TestAJobOutsideItsRunSettlesNothing(t *testing.T) {
	t.Parallel()
	j := &drover.Job{ID: ulid.Make().String()}
	_, enqueued := j.EnqueueTx(t.Context(), nil, letter{}, nil)
	for _, err := range []error{j.CompleteTx(t.Context(), nil), j.SettleTx(t.Context(), nil, errNope), enqueued} {
		if !errors.Is(err, drover.ErrLeaseLost) {
			t.Errorf("%v, want ErrLeaseLost", err)
		}
	}
}

// store.SQLSettle reads every key of the document that SettleTx sends.
func TestChangesAreWhatTheSQLReads(t *testing.T) {
	t.Parallel()
	n, text, at := int64(1), "t", time.Now()
	raw, err := json.Marshal(store.Change{ID: "id", Seq: 1, ClaimedAt: &at, State: "retryable", Reason: text, DelayUS: &n, DelayMS: &n, DueUS: &n, AtOnce: true, GiveBack: true, Snoozed: true, Uncounted: true, Crashed: true, Survived: true, Failed: true, Class: text, Fingerprint: text, Entry: json.RawMessage(`{}`)})
	if err != nil {
		t.Fatal(err)
	}
	var keys map[string]any
	if err := json.Unmarshal(raw, &keys); err != nil {
		t.Fatal(err)
	}
	var unread []string
	for key := range keys {
		if !regexp.MustCompile(`[(\s]` + key + ` (text|int|bigint|bool|timestamptz)[,)]`).MatchString(store.SQLSettleTx) {
			unread = append(unread, key)
		}
	}
	if slices.Sort(unread); len(unread) > 0 {
		t.Errorf("not read: %q", unread)
	}
}

// F-9: a pool is refused as a transaction. The job would be completed outside of the handler's
// transaction.
func TestAPoolIsNoTransaction(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	if _, err := db.client.EnqueueTx(t.Context(), db.Pool, letter{}, nil); !errors.Is(err, drover.ErrInvalid) {
		t.Errorf("EnqueueTx(pool) = %v, want ErrInvalid", err)
	}
	if _, err := db.client.EnqueueManyTx(t.Context(), nil, []drover.EnqueueItem{{Args: letter{}}}); !errors.Is(err, drover.ErrInvalid) {
		t.Errorf("EnqueueManyTx(nil) = %v, want ErrInvalid", err)
	}
	completes := func(ctx context.Context, job *drover.Job) error { return job.CompleteTx(ctx, db.Pool) }
	if v := dynWorker("k", drover.WorkerOpts{}, completes).Try(t.Context(), nil); !errors.Is(v.Cause, drover.ErrInvalid) {
		t.Errorf("CompleteTx(pool) = %v, want ErrInvalid", v.Cause)
	}
}

// skew makes the transaction's next statement fail with a serialization failure that concerns no
// job. Two transactions each read a row that the other one writes.
func (db *txDB) skew(t *testing.T, ctx context.Context, tx harness.TestTx) {
	t.Helper()
	other, err := db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.Serializable})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Rollback(ctx)
	_, read := other.Exec(ctx, `select count(*) from doctors where on_call`)
	err = errors.Join(
		tx.Exec(`select count(*) from doctors where on_call`),
		tx.Exec(`update doctors set on_call = false where id = 1`), read)
	_, write := other.Exec(ctx, `update doctors set on_call = false where id = 2`)
	if err := errors.Join(err, write, other.Commit(ctx)); err != nil {
		t.Errorf("write skew: %v", err)
	}
}

// While the supervisor still holds the job, a settle returns the database's serialization failure
// unchanged. A handler that returns nil after it has not completed its job: the run fails.
func TestASerializationFailureIsNoLostLease(t *testing.T) {
	t.Parallel()
	for _, retention := range []drover.Retention{0, drover.DeleteOnCompletion} {
		db := newTxDB(t, retention)
		db.exec(t, `create table doctors (id int primary key, on_call bool); insert into doctors values (1, true), (2, true)`)
		for _, b := range db.Beginners(t) {
			for name, c := range map[string]struct {
				level string
				spoil func(ctx context.Context, j *drover.Job, tx harness.TestTx)
			}{
				"an operator's tag": {"repeatable read", func(_ context.Context, j *drover.Job, tx harness.TestTx) {
					if err := tx.Exec(`insert into effects select 'x' from (select count(*) from jobs) j`); err != nil {
						t.Error(err)
					}
					db.exec(t, `update jobs set tags = '{seen}' where id = $1`, j.ID) //nolint:contextcheck // the test's, not the handler's
				}},
				"write skew elsewhere": {"serializable", func(ctx context.Context, _ *drover.Job, tx harness.TestTx) { db.skew(t, ctx, tx) }},
			} {
				for what, settle := range map[string]func(context.Context, *drover.Job, drover.Tx) error{
					"CompleteTx": func(ctx context.Context, j *drover.Job, tx drover.Tx) error { return j.CompleteTx(ctx, tx) },
					"SettleTx":   func(ctx context.Context, j *drover.Job, tx drover.Tx) error { return j.SettleTx(ctx, tx, errNope) },
					"EnqueueTx": func(ctx context.Context, j *drover.Job, tx drover.Tx) error {
						_, err := j.EnqueueTx(ctx, tx, letter{"child"}, nil)
						return errors.Join(err, j.CompleteTx(ctx, tx)) // the transaction has failed before
					},
				} {
					for _, again := range []bool{false, true} {
						name := fmt.Sprintf("%s, %s by %s, again: %t", name, what, b.Name, again)
						db.exec(t, `update doctors set on_call = true`)
						end := db.once(t, func(ctx context.Context, j *drover.Job) error {
							tx, err := b.Begin(ctx, c.level)
							if err != nil {
								return err
							}
							c.spoil(ctx, j, tx)
							err = settle(ctx, j, tx.Tx)
							if !harness.Serialization(err) {
								t.Errorf("%s: %v, want the serialization failure", name, err)
							}
							if err := tx.Rollback(); err != nil {
								t.Error(err)
							}
							if !again {
								return nil
							}
							if tx, err = b.Begin(ctx, c.level); err != nil {
								return err
							}
							return errors.Join(tx.Exec(`insert into effects values ($1)`, j.ID), j.CompleteTx(ctx, tx.Tx), tx.Commit())
						})
						switch n := db.effects(t, end.JobID); {
						case again && (end.how != "completed" || n != 1):
							t.Errorf("%s: the second transaction ended %s with %d effects", name, end.how, n)
						case !again && (end.how != "failed" || n != 0):
							t.Errorf("%s: nil ended %s with %d effects", name, end.how, n)
						case !again:
							row := db.EndRow(t, end.JobID)
							if text := row.Errors[0].Error; !strings.HasPrefix(text, drover.ErrNotCommitted.Error()+": ") {
								t.Errorf("%s: the entry says %q", name, text)
							}
						}
					}
				}
			}
		}
	}
}

// After a failed settle, nil from the handler does not complete the job, whatever made the settle
// fail.
func TestNilAfterAFailedSettle(t *testing.T) {
	t.Parallel()
	for _, retention := range []drover.Retention{0, drover.DeleteOnCompletion} {
		db := newTxDB(t, retention)
		db.exec(t, `create function keep() returns trigger language plpgsql as $$ begin
				if old.tags = '{kept}' then return null; end if;
				if tg_op = 'DELETE' then return old; end if;
				return new;
			end $$;
			create trigger keep before update of finalized_at or delete on jobs for each row execute function keep()`)
		for name, fails := range map[string]func(ctx context.Context, j *drover.Job, tx pgx.Tx) error{
			"a pool for a transaction": func(ctx context.Context, j *drover.Job, _ pgx.Tx) error { return j.CompleteTx(ctx, db.Pool) },
			"nil for a transaction":    func(ctx context.Context, j *drover.Job, _ pgx.Tx) error { return j.SettleTx(ctx, nil, errNope) },
			"after an error": func(ctx context.Context, j *drover.Job, tx pgx.Tx) error {
				_, _ = tx.Exec(ctx, `select 1 / 0`)
				return j.CompleteTx(ctx, tx)
			},
			"after the rollback": func(ctx context.Context, j *drover.Job, tx pgx.Tx) error {
				_ = tx.Rollback(ctx)
				return j.CompleteTx(ctx, tx)
			},
			"a context that is over": func(ctx context.Context, j *drover.Job, tx pgx.Tx) error {
				ctx, cancel := context.WithCancel(ctx)
				cancel()
				return j.CompleteTx(ctx, tx)
			},
			"a trigger that keeps the row": func(ctx context.Context, j *drover.Job, tx pgx.Tx) error {
				db.exec(t, `update jobs set tags = '{kept}' where id = $1`, j.ID) //nolint:contextcheck // the test's, not the handler's
				err := j.CompleteTx(ctx, tx)
				_ = tx.Rollback(ctx)                                          // it holds the row
				db.exec(t, `update jobs set tags = null where id = $1`, j.ID) //nolint:contextcheck // the test's, not the handler's
				if err == nil || errors.Is(err, drover.ErrLeaseLost) || !strings.Contains(err.Error(), "a trigger") {
					t.Errorf("a row that a trigger keeps: %v", err)
				}
				return err
			},
			"one that succeeded, rolled back": func(ctx context.Context, j *drover.Job, tx pgx.Tx) error {
				first, err := db.Begin(ctx)
				if err != nil {
					return err
				}
				if err := errors.Join(j.CompleteTx(ctx, first), first.Rollback(ctx)); err != nil {
					t.Error(err)
				}
				_ = tx.Rollback(ctx)
				return j.CompleteTx(ctx, tx)
			},
		} {
			end := db.once(t, func(ctx context.Context, j *drover.Job) error {
				tx, err := db.Begin(ctx)
				if err != nil {
					return err
				}
				defer tx.Rollback(context.WithoutCancel(ctx))
				if err := fails(ctx, j, tx); err == nil {
					t.Errorf("%s: no error", name)
				}
				return nil
			})
			if row := db.EndRow(t, end.JobID); end.how != "failed" || row.State != drover.Retryable || !strings.HasPrefix(row.Errors[0].Error, drover.ErrNotCommitted.Error()+": ") {
				t.Errorf("%s: ended %s: %+v", name, end.how, row)
			}
		}
		// After a failed settle, an error from the handler decides, and so does a transaction that
		// commits.
		end := db.once(t, func(ctx context.Context, j *drover.Job) error {
			if err := j.CompleteTx(ctx, db.Pool); err == nil {
				t.Error("no error")
			}
			return drover.Snooze(time.Hour)
		})
		if end.how != "snoozed" {
			t.Errorf("Snooze after a failed settle: %s", end.how)
		}
		end = db.once(t, func(ctx context.Context, j *drover.Job) error {
			tx, err := db.Begin(ctx)
			if err != nil {
				return err
			}
			if err := j.CompleteTx(ctx, tx); err != nil {
				t.Error(err)
			}
			if err := j.CompleteTx(ctx, db.Pool); err == nil {
				t.Error("no error")
			}
			return tx.Commit(ctx)
		})
		if end.how != "completed" {
			t.Errorf("a settle that commits, with a failed one after it: %s", end.how)
		}
	}
}

// The supervisor stops while a handler runs, and the handler's settle fails. The run does not count
// as failed: the supervisor hands the job back.
func TestAFailedSettleInAStop(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	id := db.enqueue(t, dyn{kind: "k"}, nil)
	_, stop := db.Start(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, DrainTimeout: 20 * time.Millisecond, Workers: []drover.Worker{
		dynWorker("k", drover.WorkerOpts{MaxAttempts: 2}, func(ctx context.Context, j *drover.Job) error {
			<-ctx.Done()
			if err := j.CompleteTx(ctx, db.Pool); err == nil {
				t.Error("no error")
			}
			return nil
		}),
	}})
	heard.Wait(t, id, "started")
	stop()
	if row := db.EndRow(t, id); row.State != drover.Available || row.Attempt != 0 || row.Total != 0 {
		t.Errorf("row = %+v", row)
	}
}

// A transaction whose snapshot is older than the claim cannot see the claim. CompleteTx fails with
// an error that names this cause, and not with ErrLeaseLost.
func TestSettleInASnapshotBeforeTheClaim(t *testing.T) {
	t.Parallel()
	db := newTxDB(t, 0)
	for _, b := range db.Beginners(t) {
		tx, err := b.Begin(t.Context(), "repeatable read")
		if err != nil {
			t.Fatal(err)
		}
		if err := tx.Exec(`insert into effects select 'x' from (select count(*) from jobs) j`); err != nil {
			t.Fatal(err)
		}
		end := db.once(t, func(ctx context.Context, j *drover.Job) error {
			if err := j.CompleteTx(ctx, tx.Tx); err == nil || errors.Is(err, drover.ErrLeaseLost) || !strings.Contains(err.Error(), "before the claim") {
				t.Errorf("%s: %v", b.Name, err)
			}
			return errors.Join(tx.Rollback())
		})
		if end.how != "failed" {
			t.Errorf("%s: ended %s", b.Name, end.how)
		}
	}
}

// C3: SettleTx counts delays from the time of its call, however long ago its transaction began.
func TestSettleTxCountsFromItsCall(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newTxDB(t, 0)
	for _, b := range db.Beginners(t) {
		for name, c := range map[string]struct {
			err error
			row string // a condition of the row; $2 is the time when SettleTx was called
		}{
			"an error":        {errNope, `scheduled_at >= $2::timestamptz + interval '1 hour' and (errors->-1->>'at')::timestamptz >= $2::timestamptz and (select min(at) >= $2::timestamptz from drover_failure_tallies where last_job = $1)`},
			"RetryAfter":      {drover.RetryAfter(time.Hour, errNope), `scheduled_at >= $2::timestamptz + last_delay_ms * interval '1 ms'`},
			"RetryAfter now":  {drover.RetryAfter(0, errNope), `scheduled_at >= $2::timestamptz`},
			"Snooze":          {drover.Snooze(time.Hour), `scheduled_at >= $2::timestamptz + interval '1 hour'`},
			"Snooze, for now": {drover.Snooze(0), `scheduled_at >= $2::timestamptz`},
			"Discard":         {drover.Discard(errNope), `finalized_at >= $2::timestamptz and (errors->-1->>'at')::timestamptz >= $2::timestamptz`},
			"Cancel":          {drover.Cancel(errNope), `finalized_at >= $2::timestamptz`},
			"nil":             {nil, `finalized_at >= $2::timestamptz`},
		} {
			var called time.Time
			end := db.once(t, func(ctx context.Context, j *drover.Job) error {
				tx, err := b.Begin(ctx, "read committed")
				if err != nil {
					return err
				}
				err = errors.Join(tx.Exec(`select pg_sleep(0.05)`), tx.Tx.QueryRow(ctx, `select clock_timestamp()`).Scan(&called))
				if err = errors.Join(err, j.SettleTx(ctx, tx.Tx, c.err)); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				// The row is read before the commit: a job that is due now may run right after it.
				var right bool
				if err := tx.Tx.QueryRow(ctx, `select coalesce(`+c.row+`, false) from jobs where id = $1 and $2::timestamptz is not null`, j.ID, called).Scan(&right); err != nil || !right {
					t.Errorf("%s by %s: %t, %v", name, b.Name, right, err)
				}
				if err := tx.Exec(`update jobs set scheduled_at = 'infinity' where id = $1 and finalized_at is null`, j.ID); err != nil {
					t.Error(err)
				}
				return tx.Commit()
			})
			if end.how == "" {
				t.Errorf("%s: no end", name)
			}
		}
	}
}

// hands is an application's type that wraps a pool or a transaction and passes queries on to it.
type hands[T any] struct{ Of T }

func (h hands[T]) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return any(h.Of).(drover.Tx).QueryRow(ctx, sql, args...)
}

// lazy is a transaction that has not begun yet, so it has no connection.
type lazy struct{ drover.Tx }

func (lazy) Conn() *pgx.Conn { return nil }

// D-3: a pool or a connection without a transaction is refused, even behind another type. It
// commits each statement by itself, so the job would be stored although the caller's own work
// fails.
func TestWhatIsNoTransaction(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	ctx := t.Context()
	conn, begun := db.Dialed(t), db.Dialed(t)
	pooled := func() *pgxpool.Conn {
		c, err := db.Acquire(ctx)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Release)
		return c
	}
	tx := func(sql string) pgx.Tx {
		tx, err := db.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(ctx)) })
		_, _ = tx.Exec(ctx, sql)
		return tx
	}
	given, over, open := pooled(), tx(``), tx(``)
	given.Release()
	_ = over.Rollback(ctx)
	savepoint, err := open.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	byHand := pooled()
	_, err = byHand.Exec(ctx, `begin`)
	_, err2 := begun.Exec(ctx, `begin`)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	refused := map[string]drover.Tx{
		"nil": nil, "SQLTx(nil)": drover.SQLTx(nil), "no connection": (*pgx.Conn)(nil), "an empty connection": new(pgx.Conn),
		"a pool": db.Pool, "a pool embedded": struct{ *pgxpool.Pool }{db.Pool}, "a pool behind a method": hands[*pgxpool.Pool]{db.Pool},
		"a connection outside": conn, "one outside, wrapped": struct{ *pgx.Conn }{conn}, "a pool's outside": pooled(), "a pool's, given back": given,
		"nil embedded": struct{ pgx.Tx }{}, "a transaction behind a method": hands[pgx.Tx]{open}, "one that names no connection": lazy{open},
		"one ended in SQL": tx(`commit`), "one ended in SQL, embedded": struct{ pgx.Tx }{tx(`rollback`)},
	}
	for what, tx := range refused {
		_, one := db.client.EnqueueTx(ctx, tx, job{1}, nil)
		_, many := db.client.EnqueueManyTx(ctx, tx, []drover.EnqueueItem{{Args: job{1}}})
		for name, err := range map[string]error{"EnqueueTx": one, "EnqueueManyTx": many} {
			var invalid *drover.InvalidError
			if !errors.As(err, &invalid) || invalid.Field != "tx" || !strings.Contains(invalid.Reason, "hand in a pgx.Tx") {
				t.Errorf("%s with %s = %v", name, what, err)
			}
			if strings.Contains(what, "ended") && !errors.Is(err, pgx.ErrTxClosed) {
				t.Errorf("%s with %s = %v", name, what, err)
			}
		}
	}
	for what, tx := range map[string]drover.Tx{
		"a transaction": open, "one embedded": struct{ pgx.Tx }{open}, "a savepoint": savepoint,
		"a connection in one": begun, "a pool's connection in one": byHand,
	} {
		if _, err := db.client.EnqueueTx(ctx, tx, job{1}, nil); err != nil {
			t.Errorf("EnqueueTx with %s = %v", what, err)
		}
	}
	var server *pgconn.PgError
	if _, err := db.client.EnqueueTx(ctx, tx(`select 1 / 0`), job{1}, nil); !errors.As(err, &server) || server.Code != "25P02" {
		t.Errorf("EnqueueTx with a transaction that failed = %v", err)
	}
	if _, err := db.client.EnqueueTx(ctx, over, job{1}, nil); !errors.Is(err, pgx.ErrTxClosed) { // its connection may serve another transaction by now
		t.Errorf("EnqueueTx with a transaction that is over = %v", err)
	}
	if n := value[int](t, db, `select count(*) from jobs`); n > 0 {
		t.Errorf("%d jobs are stored", n)
	}
	ended := make(chan error, 3*len(refused))
	db.launch(t, drover.SupervisorConfig{Workers: handling(func(ctx context.Context, j *drover.Job, _ int) error {
		for _, tx := range refused {
			_, err := j.EnqueueTx(ctx, tx, job{2}, nil)
			ended <- err
			ended <- j.SettleTx(ctx, tx, drover.Snooze(0))
			ended <- j.CompleteTx(ctx, tx)
		}
		return drover.Discard(errors.New("enough"))
	})})
	id := db.enqueue(t, job{1}, nil)
	for range cap(ended) {
		if err := receive(t, ended); !errors.Is(err, drover.ErrInvalid) {
			t.Errorf("in a handler = %v", err)
		}
	}
	db.Soon(t, time.Minute, "the job has changed, or runs for ever", `select state = 'discarded' from jobs where id = '`+id+`'`)
}

// newPreparingDB returns a database on its own server, which allows prepared transactions. They are
// off by default.
func newPreparingDB(t *testing.T) *testDB {
	t.Helper()
	server, err := pgdev.Start(t.Context(), pgdev.Options{
		Ways: []pgdev.Way{pgdev.Local, pgdev.Download}, Settings: map[string]string{"max_prepared_transactions": "20"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	config, err := pgxpool.ParseConfig(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.RuntimeParams["search_path"] = "prepared"
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := pool.Exec(t.Context(), `create schema prepared`); err != nil {
		t.Fatal(err)
	}
	if err := migrations.Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	return newTestDBOn(t, pool, drover.Config{Logger: slog.New(slog.DiscardHandler)})
}

// prepare runs do in a transaction with the given value of drover.notify, and prepares the
// transaction.
func (db *testDB) prepare(ctx context.Context, name, notify string, do func(tx pgx.Tx) error) error {
	conn, err := db.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, `select set_config('drover.notify', $1, true)`, notify); err != nil {
		return err
	}
	if err := do(tx); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `prepare transaction '`+name+`'`)
	return err
}

// blocked is a job that runs until it is cancelled.
type blocked struct{}

func (blocked) Kind() string { return "blocked" }

// settled is a job whose handler settles it in a prepared transaction.
type settled struct {
	With string `json:"with"`
}

func (settled) Kind() string { return "settled" }

// With drover.notify off, a caller's transaction that enqueues, settles or cancels can be prepared.
// Supervisors find its changes once it is committed. With notifications on, Postgres refuses to
// prepare it.
func TestTransactionsThatArePrepared(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newPreparingDB(t)
	ran, ends, inHandler := make(chan int, 20), make(chan string, 20), make(chan string, 20)
	commit := func(name string) { db.exec(t, `commit prepared '`+name+`'`) }
	db.launch(t, drover.SupervisorConfig{Lease: time.Second, PollInterval: 200 * time.Millisecond, Workers: []drover.Worker{
		drover.Handle(func(_ context.Context, _ *drover.Job, j job) error { ran <- j.N; return nil }, drover.WorkerOpts{FollowUp: &drover.FollowUp{Kind: "followed"}}),
		dynWorker("followed", drover.WorkerOpts{}, func(context.Context, *drover.Job) error { ran <- 100; return nil }),
		drover.Handle(func(ctx context.Context, _ *drover.Job, _ blocked) error {
			inHandler <- "blocked"
			<-ctx.Done()
			ends <- context.Cause(ctx).Error()
			return ctx.Err()
		}, drover.WorkerOpts{}),
		drover.Handle(func(ctx context.Context, j *drover.Job, s settled) error {
			err := db.prepare(ctx, "settle "+s.With, "off", func(tx pgx.Tx) error {
				switch s.With {
				case "enqueue":
					_, err := j.EnqueueTx(ctx, tx, job{50}, nil)
					return errors.Join(err, j.CompleteTx(ctx, tx))
				case "discard":
					return j.SettleTx(ctx, tx, drover.Discard(errors.New("enough")))
				}
				return j.CompleteTx(ctx, tx)
			})
			if err != nil {
				t.Errorf("%s: %v", s.With, err)
				return err
			}
			_, err = db.Exec(ctx, `commit prepared 'settle `+s.With+`'`)
			return err
		}, drover.WorkerOpts{FollowUp: &drover.FollowUp{Kind: "followed"}}),
	}})
	db.enqueue(t, blocked{}, nil)
	receive(t, inHandler)
	running := value[string](t, db, `select id from jobs where kind = 'blocked'`)
	dead := func() string {
		return value[string](t, db, `insert into jobs (kind, queue) values ('job', 'nobody serves it') returning id`)
	}
	verb := func(sql, id string) func(pgx.Tx) error {
		return func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), sql, id)
			return err
		}
	}
	for name, do := range map[string]func(pgx.Tx) error{
		"enqueue": func(tx pgx.Tx) error { _, err := db.client.EnqueueTx(t.Context(), tx, job{1}, nil); return err },
		"enqueue later": func(tx pgx.Tx) error {
			_, err := db.client.EnqueueTx(t.Context(), tx, job{2}, &drover.EnqueueOpts{Delay: time.Millisecond})
			return err
		},
		"enqueue many": func(tx pgx.Tx) error {
			_, err := db.client.EnqueueManyTx(t.Context(), tx, []drover.EnqueueItem{{job{3}, nil}, {job{3}, nil}})
			return err
		},
		"follow-up": verb(`update jobs set state = 'discarded', discard_reason = 'operator', finalized_at = now() where id = $1`, dead()),
		"cancel":    verb(`select drover_cancel($1)`, running),
	} {
		db.Asleep(t)
		if err := db.prepare(t.Context(), name, "on", do); err == nil || !strings.Contains(err.Error(), "NOTIFY") {
			t.Errorf("%s with notifications: %v, want that it cannot be prepared", name, err)
		}
		if err := db.prepare(t.Context(), name, "off", do); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		commit(name)
		want := map[string]int{"enqueue": 1, "enqueue later": 1, "enqueue many": 2, "follow-up": 1}[name]
		for range want {
			receive(t, ran)
		}
	}
	if how := receive(t, ends); how != drover.ErrCancelled.Error() {
		t.Errorf("the cancelled handler ended with %q", how)
	}
	for with, state := range map[string]drover.State{"complete": drover.Completed, "enqueue": drover.Completed, "discard": drover.Discarded} {
		db.enqueue(t, settled{with}, nil)
		if with != "complete" {
			receive(t, ran)
		}
		db.waitFor(t, 20*time.Second, `select count(*) = 1 from jobs where kind = 'settled' and args->>'with' = $1 and state = $2 and claim_seq = 1`, with, string(state))
	}
	if err := db.prepare(t.Context(), "odd", "maybe", func(tx pgx.Tx) error {
		_, err := db.client.EnqueueTx(t.Context(), tx, job{1}, nil)
		return err
	}); err == nil || !strings.Contains(err.Error(), "boolean") {
		t.Errorf("drover.notify = maybe: %v", err)
	}
	if err := db.prepare(t.Context(), "given up", "off", func(tx pgx.Tx) error {
		_, err := db.client.EnqueueTx(t.Context(), tx, job{77}, nil)
		return err
	}); err != nil {
		t.Error(err)
	}
	db.exec(t, `rollback prepared 'given up'`)
	if n := value[int](t, db, `select (select count(*) from pg_prepared_xacts) + (select count(*) from jobs where args->>'n' = '77')`); n != 0 {
		t.Errorf("%d transactions are prepared still, or have left a job", n)
	}
}

// DisableNotify in Go sends no notification, like the setting drover.notify. It applies to one
// transaction: the next transaction of the same session notifies again.
func TestDisableNotifyOfAnEnqueue(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	db.OnDuty(t, db.crew(t, "default", "letter").OnCall)
	quiet, opts := db.via(t, drover.Config{DisableNotify: true}).client, &drover.EnqueueOpts{DisableNotify: true}
	inTx := func(do func(tx pgx.Tx) error) func() error {
		return func() error { return pgx.BeginFunc(t.Context(), db, do) }
	}
	for name, enqueue := range map[string]func() error{
		"Enqueue": func() error { _, err := db.client.Enqueue(t.Context(), letter{}, opts); return err },
		"EnqueueMany": func() error {
			_, err := db.client.EnqueueMany(t.Context(), []drover.EnqueueItem{{letter{}, opts}})
			return err
		},
		"EnqueueTx": inTx(func(tx pgx.Tx) error {
			_, err := db.client.EnqueueTx(t.Context(), tx, letter{}, opts)
			_, then := db.client.EnqueueTx(t.Context(), tx, letter{}, nil) // DisableNotify lasts until the transaction ends
			return errors.Join(err, then)
		}),
		"EnqueueManyTx": inTx(func(tx pgx.Tx) error {
			_, err := db.client.EnqueueManyTx(t.Context(), tx, []drover.EnqueueItem{{letter{}, nil}, {letter{}, opts}})
			return err
		}),
		"Config": func() error { _, err := quiet.Enqueue(t.Context(), letter{}, nil); return err },
		"Config, EnqueueMany": func() error {
			_, err := quiet.EnqueueMany(t.Context(), []drover.EnqueueItem{{letter{}, nil}, {letter{}, &drover.EnqueueOpts{Delay: time.Millisecond}}})
			return err
		},
		"Config, unique": func() error {
			_, err := quiet.Enqueue(t.Context(), letter{To: "a"}, &drover.EnqueueOpts{Unique: &drover.Unique{}})
			return err
		},
		"Config, EnqueueTx": inTx(func(tx pgx.Tx) error {
			_, err := quiet.EnqueueTx(t.Context(), tx, letter{}, nil)
			return err
		}),
	} {
		if told := notes(t, db, func() {
			if err := enqueue(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}); told != nil {
			t.Errorf("%s: %q", name, told)
		}
	}
	if told := notes(t, db, func() {
		if err := inTx(func(tx pgx.Tx) error {
			_, err := db.client.EnqueueTx(t.Context(), tx, letter{}, nil)
			return err
		})(); err != nil {
			t.Error(err)
		}
	}); len(told) != 1 {
		t.Errorf("another transaction of the same sessions: %q", told)
	}
}
