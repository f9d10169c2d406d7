package drover

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/oklog/ulid/v2"

	"github.com/drover-queue/drover/internal/store"
)

// testTx is a transaction of either kind.
type testTx struct {
	tx               Tx
	commit, rollback func() error
	exec             func(sql string, args ...any) error
}

// complete completes the job in a transaction of its own.
func (db *testDB) complete(ctx context.Context, job *Job) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { return job.CompleteTx(ctx, tx) })
}

// beginner begins transactions of one kind.
type beginner struct {
	name  string
	begin func(ctx context.Context, level string) (testTx, error)
}

// beginners are pgx and database/sql.
func (db *testDB) beginners(t *testing.T) []beginner {
	t.Helper()
	std := stdlib.OpenDBFromPool(db.Pool)
	t.Cleanup(func() { _ = std.Close() })
	levels := map[string]sql.IsolationLevel{
		"read committed": sql.LevelReadCommitted, "repeatable read": sql.LevelRepeatableRead, "serializable": sql.LevelSerializable,
	}
	return []beginner{
		{"pgx", func(ctx context.Context, level string) (testTx, error) {
			tx, err := db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.TxIsoLevel(level)})
			return testTx{
				tx, func() error { return tx.Commit(ctx) }, func() error { return tx.Rollback(ctx) },
				func(sql string, args ...any) error { _, err := tx.Exec(ctx, sql, args...); return err },
			}, err
		}},
		{"database/sql", func(ctx context.Context, level string) (testTx, error) {
			tx, err := std.BeginTx(ctx, &sql.TxOptions{Isolation: levels[level]})
			return testTx{
				SQLTx(tx), tx.Commit, tx.Rollback,
				func(sql string, args ...any) error { _, err := tx.ExecContext(ctx, sql, args...); return err },
			}, err
		}},
	}
}

// E-2: what is enqueued in a transaction is there if and when that commits.
func TestEnqueueTxFollowsItsTransaction(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	for _, b := range db.beginners(t) {
		for _, commit := range []bool{true, false} {
			ids := []string{}
			woke := woken(t, db, func() {
				tx, err := b.begin(t.Context(), "read committed")
				if err != nil {
					t.Fatal(err)
				}
				one, err := db.client.EnqueueTx(t.Context(), tx.tx, letter{}, nil)
				if err != nil {
					t.Error(err)
				}
				many, err := db.client.EnqueueManyTx(t.Context(), tx.tx, []EnqueueItem{{letter{}, nil}, {letter{}, &EnqueueOpts{ID: ulid.Make().String()}}})
				if err != nil || len(many) != 2 {
					t.Fatal(many, err)
				}
				ids = append(ids, one.ID, many[0].ID, many[1].ID)
				if n := value[int](t, db, `select count(*) from jobs where id = any($1)`, ids); n != 0 {
					t.Errorf("%s: %d jobs can be seen before the commit", b.name, n)
				}
				end := tx.rollback
				if commit {
					end = tx.commit
				}
				if err := end(); err != nil {
					t.Error(err)
				}
			})
			n := value[int](t, db, `select count(*) from jobs where id = any($1)`, ids)
			if want := map[bool]int{true: 3, false: 0}[commit]; n != want || woke != commit {
				t.Errorf("%s: commit %t: %d jobs, woken %t", b.name, commit, n, woke)
			}
		}
	}
}

// A transaction whose snapshot is older than the job of that id cannot say what it is; it must not say it is new.
func TestEnqueueTxOfAnIDThatItsSnapshotMisses(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	for _, b := range db.beginners(t) {
		for _, level := range []string{"read committed", "repeatable read", "serializable"} {
			tx, err := b.begin(t.Context(), level)
			if err != nil {
				t.Fatal(err)
			}
			if err := tx.exec(`select from jobs`); err != nil { // takes the snapshot
				t.Fatal(err)
			}
			id := db.enqueue(t, letter{}, nil)
			r, err := db.client.EnqueueTx(t.Context(), tx.tx, letter{}, &EnqueueOpts{ID: id})
			if level == "read committed" && (err != nil || !r.Existing) || level != "read committed" && err == nil {
				t.Errorf("%s: %s: %+v, %v", b.name, level, r, err)
			}
			if err := tx.rollback(); err != nil {
				t.Error(err)
			}
		}
	}
}

// After an error the transaction can only be rolled back, and says so.
func TestAFailedEnqueueTxFailsItsTransaction(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	id := db.enqueue(t, letter{"a"}, nil)
	for _, b := range db.beginners(t) {
		tx, err := b.begin(t.Context(), "read committed")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := db.client.EnqueueTx(t.Context(), tx.tx, letter{"b"}, &EnqueueOpts{ID: id}); !errors.Is(err, ErrIDConflict) {
			t.Errorf("%s: %v, want ErrIDConflict", b.name, err)
		}
		if err := tx.commit(); err == nil {
			t.Errorf("%s: the commit went through", b.name)
		}
	}
}

// ended is one end event.
type ended struct {
	how string
	Event
}

// endHooks tell of all ends of runs.
func endHooks() (chan ended, []Hooks) {
	ends := make(chan ended, 1000)
	tell := func(how string) func(context.Context, Event) {
		return func(_ context.Context, e Event) { ends <- ended{how, e} }
	}
	return ends, []Hooks{{
		Completed: tell("completed"), Failed: tell("failed"), Discarded: tell("discarded"), Snoozed: tell("snoozed"),
		Cancelled: tell("cancelled"), Released: tell("released"), StaleSettle: tell("stale_settle"),
	}}
}

// txDB is a database with a supervisor whose handler each test step chooses.
type txDB struct {
	*testDB
	ends    chan ended
	handler chan func(context.Context, *Job) error
}

func newTxDB(t *testing.T, retention Retention) *txDB {
	t.Helper()
	ends, hooks := endHooks()
	db := &txDB{newTestDBWith(t, Config{Logger: slog.New(slog.DiscardHandler), Hooks: hooks}), ends, make(chan func(context.Context, *Job) error)}
	db.exec(t, `create table effects (job text)`)
	db.run(t, SupervisorConfig{
		Queues: []Queue{{}}, CompletedRetention: retention, PollInterval: 20 * time.Millisecond, DisableNotify: true,
		Workers: []Worker{Handle(func(ctx context.Context, j *Job, _ letter) error { return (<-db.handler)(ctx, j) }, WorkerOpts{
			MaxAttempts: 5, Retry: Constant{Delay: time.Hour},
		})},
	})
	return db
}

// once runs a fresh job with the handler and returns how the run ended.
func (db *txDB) once(t *testing.T, handler func(context.Context, *Job) error) ended {
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

// F-9: the handler's rows and how its run ended commit together, whatever the handler returns afterwards; every
// verdict does in its transaction what it does when it is returned.
func TestSettleTxCommitsWithTheHandlersRows(t *testing.T) {
	t.Parallel()
	db := newTxDB(t, 0)
	for name, tc := range map[string]struct {
		settle func(context.Context, *Job, Tx) error
		how    string
		row    string // condition of the row
	}{
		"CompleteTx": {
			func(ctx context.Context, j *Job, tx Tx) error { return j.CompleteTx(ctx, tx) }, "completed",
			`state = 'completed' and finalized_at is not null and attempt = 1 and errors = '[]' and errors_total = 0`,
		},
		"nil": {
			func(ctx context.Context, j *Job, tx Tx) error { return j.SettleTx(ctx, tx, nil) }, "completed",
			`state = 'completed' and attempt = 1`,
		},
		"error": {
			func(ctx context.Context, j *Job, tx Tx) error { return j.SettleTx(ctx, tx, errNope) }, "failed",
			`state = 'retryable' and attempt = 1 and errors_total = 1 and errors->0->>'error' = 'nope' and errors->0->>'class' = 'error'
			and (errors->0->>'delay_ms')::int = 3600000 and last_delay_ms = 3600000 and scheduled_at > now() + interval '59 minutes' and lane = 15`,
		},
		"Snooze": {
			func(ctx context.Context, j *Job, tx Tx) error {
				return j.SettleTx(ctx, tx, fmt.Errorf("w: %w", Snooze(time.Hour)))
			}, "snoozed",
			`state = 'scheduled' and attempt = 0 and snoozes = 1 and errors = '[]' and scheduled_at > now() + interval '59 minutes'`,
		},
		"Discard": {
			func(ctx context.Context, j *Job, tx Tx) error { return j.SettleTx(ctx, tx, Discard(errNope)) }, "discarded",
			`state = 'discarded' and discard_reason = 'unrecoverable' and errors_total = 1 and finalized_at is not null`,
		},
		"RetryAfter": {
			func(ctx context.Context, j *Job, tx Tx) error {
				return j.SettleTx(ctx, tx, RetryAfter(2*time.Hour, errNope))
			}, "failed",
			`state = 'retryable' and attempt = 1 and errors->0->>'class' = 'throttled' and last_delay_ms between 7200000 and 8640000`,
		},
		"Cancel": {
			func(ctx context.Context, j *Job, tx Tx) error { return j.SettleTx(ctx, tx, Cancel(errNope)) }, "cancelled",
			`state = 'cancelled' and errors_total = 0 and errors->0->>'error' = 'nope'`,
		},
		"DontCount": {
			func(ctx context.Context, j *Job, tx Tx) error { return j.SettleTx(ctx, tx, DontCount(errNope)) }, "failed",
			`state = 'retryable' and attempt = 0 and uncounted = 1 and errors_total = 1`,
		},
	} {
		for _, b := range db.beginners(t) {
			for _, returned := range []error{nil, errNope, Discard(errNope)} {
				name := fmt.Sprintf("%s by %s, then %v", name, b.name, returned)
				end := db.once(t, func(ctx context.Context, j *Job) error {
					tx, err := b.begin(ctx, "read committed")
					if err != nil {
						return err
					}
					if err := tx.exec(`insert into effects values ($1)`, j.ID); err != nil {
						t.Error(err)
					}
					if err := tc.settle(ctx, j, tx.tx); err != nil {
						t.Errorf("%s: %v", name, err)
					}
					if state := value[string](t, db.testDB, `select state from jobs where id = $1`, j.ID); state != "running" { //nolint:contextcheck // the test's own
						t.Errorf("%s: %s before the commit", name, state)
					}
					if err := tx.commit(); err != nil {
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

// F-9: without a commit neither the rows nor the end are there; what the handler returned counts, and nil is an error.
func TestSettleTxRolledBack(t *testing.T) {
	t.Parallel()
	for _, retention := range []Retention{0, DeleteOnCompletion} {
		db := newTxDB(t, retention)
		for _, b := range db.beginners(t) {
			for _, tc := range []struct {
				settled, returned error
				how, row          string
			}{
				{nil, nil, "failed", `state = 'retryable' and errors->0->>'error' = '` + ErrNotCommitted.Error() + `'`},
				{nil, errNope, "failed", `state = 'retryable' and errors->0->>'error' = 'nope'`},
				{nil, Discard(errNope), "discarded", `state = 'discarded' and errors->0->>'error' = 'nope'`},
				{nil, Snooze(time.Hour), "snoozed", `state = 'scheduled' and snoozes = 1`},
				{Discard(errNope), nil, "failed", `state = 'retryable' and errors->0->>'error' = '` + ErrNotCommitted.Error() + `'`},
				{Snooze(time.Hour), Cancel(nil), "cancelled", `state = 'cancelled' and snoozes is null`},
			} {
				name := fmt.Sprintf("%v by %s, then %v", tc.settled, b.name, tc.returned)
				end := db.once(t, func(ctx context.Context, j *Job) error {
					tx, err := b.begin(ctx, "read committed")
					if err != nil {
						return err
					}
					if err := errors.Join(tx.exec(`insert into effects values ($1)`, j.ID), j.SettleTx(ctx, tx.tx, tc.settled), tx.rollback()); err != nil {
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
			// A second transaction may do what the first one did not.
			end := db.once(t, func(ctx context.Context, j *Job) error {
				for range 3 {
					tx, err := b.begin(ctx, "read committed")
					if err != nil {
						return err
					}
					if err := errors.Join(j.CompleteTx(ctx, tx.tx), tx.rollback()); err != nil {
						t.Error(err)
					}
				}
				tx, err := b.begin(ctx, "read committed")
				if err != nil {
					return err
				}
				return errors.Join(j.CompleteTx(ctx, tx.tx), tx.commit())
			})
			if end.how != "completed" {
				t.Errorf("%s: the fourth transaction ended %s", b.name, end.how)
			}
		}
	}
}

// F-9: where completed jobs are not kept CompleteTx deletes the row with the handler's own; other ends keep it.
func TestCompleteTxWithDeleteOnCompletion(t *testing.T) {
	t.Parallel()
	db := newTxDB(t, DeleteOnCompletion)
	for _, b := range db.beginners(t) {
		for settled, how := range map[error]string{nil: "completed", Discard(errNope): "discarded"} {
			end := db.once(t, func(ctx context.Context, j *Job) error {
				tx, err := b.begin(ctx, "read committed")
				if err != nil {
					return err
				}
				return errors.Join(tx.exec(`insert into effects values ($1)`, j.ID), j.SettleTx(ctx, tx.tx, settled), tx.commit())
			})
			if end.how != how || db.effects(t, end.JobID) != 1 {
				t.Errorf("%s: ended %s with %d effects, want %s", b.name, end.how, db.effects(t, end.JobID), how)
			}
			if n := value[int](t, db.testDB, `select count(*) from jobs where id = $1`, end.JobID); (n == 0) != (how == "completed") {
				t.Errorf("%s: %s: %d rows", b.name, how, n)
			}
		}
	}
}

// F-8, F-9: whoever lost the job fails its transaction, at every isolation level, and tells nothing but stale_settle,
// whether its handler returns the error or nil. Where the transaction can look, the error is ErrLeaseLost.
func TestSettleTxOfAJobThatWasTaken(t *testing.T) {
	t.Parallel()
	for _, retention := range []Retention{0, DeleteOnCompletion} {
		db := newTxDB(t, retention)
		db.alive(t, "other")
		for _, b := range db.beginners(t) {
			for _, level := range []string{"read committed", "repeatable read", "serializable"} {
				for what, settle := range map[string]func(context.Context, *Job, Tx) error{
					"CompleteTx": func(ctx context.Context, j *Job, tx Tx) error { return j.CompleteTx(ctx, tx) },
					"SettleTx":   func(ctx context.Context, j *Job, tx Tx) error { return j.SettleTx(ctx, tx, errNope) },
					"EnqueueTx": func(ctx context.Context, j *Job, tx Tx) error {
						_, err := j.EnqueueTx(ctx, tx, letter{"child"}, nil)
						return err
					},
				} {
					for _, ignored := range []bool{false, true} {
						name := fmt.Sprintf("%s by %s, %s, error ignored: %t", what, b.name, level, ignored)
						end := db.once(t, func(ctx context.Context, j *Job) error {
							tx, err := b.begin(ctx, level)
							if err != nil {
								return err
							}
							if err := tx.exec(`insert into effects select $1 from (select count(*) from jobs) j`, j.ID); err != nil {
								t.Error(err)
							}
							db.exec(t, `update jobs set claim_seq = claim_seq + 1, claimed_by = 'other' where id = $1`, j.ID) //nolint:contextcheck // the test's own
							err = settle(ctx, j, tx.tx)
							// A heartbeat may have found it out before, and have ended the context, for the same cause.
							right := errors.Is(err, ErrLeaseLost)
							if level != "read committed" {
								right = serialization(err)
							}
							if !right && (err == nil || !errors.Is(context.Cause(ctx), ErrLeaseLost)) {
								t.Errorf("%s: %v", name, err)
							}
							if ignored {
								err = nil
							}
							return errors.Join(err, tx.rollback())
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

// A job that was cancelled meanwhile is nobody's to settle.
func TestCompleteTxOfACancelledJob(t *testing.T) {
	t.Parallel()
	db := newTxDB(t, 0)
	end := db.once(t, func(ctx context.Context, j *Job) error {
		tx, err := db.Begin(ctx)
		if err != nil {
			return err
		}
		if was, err := db.client.Cancel(ctx, j.ID, Audit{Why: "no use"}); err != nil || was != Running {
			t.Errorf("Cancel = %s, %v", was, err)
		}
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), ErrCancelled) {
			t.Errorf("cause %v", context.Cause(ctx))
		}
		if err := j.CompleteTx(context.WithoutCancel(ctx), tx); !errors.Is(err, ErrLeaseLost) {
			t.Errorf("CompleteTx = %v", err)
		}
		return tx.Rollback(context.WithoutCancel(ctx))
	})
	if end.how != "cancelled" {
		t.Errorf("ended %s", end.how)
	}
}

// F-9: the next job is there if and only if the run's transaction commits.
func TestJobEnqueueTx(t *testing.T) {
	t.Parallel()
	db := newTxDB(t, 0)
	for _, b := range db.beginners(t) {
		for _, commit := range []bool{true, false} {
			var child Receipt
			end := db.once(t, func(ctx context.Context, j *Job) error {
				tx, err := b.begin(ctx, "read committed")
				if err != nil {
					return err
				}
				if child, err = j.EnqueueTx(ctx, tx.tx, payload{j.ID}, &EnqueueOpts{Queue: "next"}); err != nil {
					t.Error(err)
				}
				if err := j.CompleteTx(ctx, tx.tx); err != nil {
					t.Error(err)
				}
				if _, err := j.EnqueueTx(ctx, tx.tx, payload{j.ID}, nil); !errors.Is(err, ErrState) || errors.Is(err, ErrLeaseLost) {
					t.Errorf("EnqueueTx behind CompleteTx = %v, want ErrState", err)
				}
				if commit {
					return tx.commit()
				}
				return tx.rollback()
			})
			n := value[int](t, db.testDB, `select count(*) from jobs where id = $1 and queue = 'next' and args = to_jsonb($2::text)`, child.ID, end.JobID)
			if commit && (n != 1 || end.how != "completed") || !commit && (n != 0 || end.how != "failed") {
				t.Errorf("%s: commit %t: %d children, ended %s", b.name, commit, n, end.how)
			}
		}
	}
}

// F-9: a run settles once, and is told so the second time; after a rollback it may settle again.
func TestASecondSettleInOneRun(t *testing.T) {
	t.Parallel()
	for _, retention := range []Retention{0, DeleteOnCompletion} {
		db := newTxDB(t, retention)
		for _, b := range db.beginners(t) {
			for _, level := range []string{"read committed", "repeatable read", "serializable"} {
				name := fmt.Sprintf("%s, %s, kept for %v", b.name, level, retention)
				twice := func(j *Job, tx testTx) {
					for _, err := range []error{j.CompleteTx(context.Background(), tx.tx), j.SettleTx(context.Background(), tx.tx, errNope)} {
						if !errors.Is(err, ErrState) || errors.Is(err, ErrLeaseLost) || err.Error() != "drover: not in a state for this: this run has settled job "+j.ID+" already" {
							t.Errorf("%s: %v, want ErrState", name, err)
						}
					}
				}
				end := db.once(t, func(ctx context.Context, j *Job) error {
					for _, commit := range []bool{false, true} {
						tx, err := b.begin(ctx, level)
						if err != nil {
							return err
						}
						if err := j.CompleteTx(ctx, tx.tx); err != nil {
							t.Errorf("%s: %v", name, err)
						}
						twice(j, tx)
						if !commit {
							err = tx.rollback()
						} else {
							err = tx.commit()
						}
						if err != nil {
							t.Errorf("%s: %v", name, err)
						}
					}
					tx, err := b.begin(ctx, level)
					if err != nil {
						return err
					}
					twice(j, tx)
					return tx.rollback()
				})
				if end.how != "completed" {
					t.Errorf("%s: ended %s", name, end.how)
				}
			}
		}
	}
}

// Outside a handler a Job is nobody's.
func TestAJobOutsideItsRunSettlesNothing(t *testing.T) {
	t.Parallel()
	j := &Job{ID: ulid.Make().String()}
	_, enqueued := j.EnqueueTx(t.Context(), nil, letter{}, nil)
	for _, err := range []error{j.CompleteTx(t.Context(), nil), j.SettleTx(t.Context(), nil, errNope), enqueued} {
		if !errors.Is(err, ErrLeaseLost) {
			t.Errorf("%v, want ErrLeaseLost", err)
		}
	}
}

// What SettleTx sends is what store.SQLSettle reads: no key that nobody knows.
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

// F-9: a pool in the place of a transaction would complete the job outside the handler's.
func TestAPoolIsNoTransaction(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	if _, err := db.client.EnqueueTx(t.Context(), db.Pool, letter{}, nil); !errors.Is(err, ErrInvalid) {
		t.Errorf("EnqueueTx(pool) = %v, want ErrInvalid", err)
	}
	if _, err := db.client.EnqueueManyTx(t.Context(), nil, []EnqueueItem{{Args: letter{}}}); !errors.Is(err, ErrInvalid) {
		t.Errorf("EnqueueManyTx(nil) = %v, want ErrInvalid", err)
	}
	if err := (&Job{task: &task{}}).CompleteTx(t.Context(), db.Pool); !errors.Is(err, ErrInvalid) {
		t.Errorf("CompleteTx(pool) = %v, want ErrInvalid", err)
	}
}
