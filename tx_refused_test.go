package drover

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// What a handler hears when its transaction is refused, and that nil does not complete a job whose settle failed.

// skew makes the transaction's next statement fail with a serialization failure that has nothing to do with any job: two
// transactions read what the other one writes.
func (db *txDB) skew(t *testing.T, ctx context.Context, tx testTx) {
	t.Helper()
	other, err := db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.Serializable})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Rollback(ctx)
	_, read := other.Exec(ctx, `select count(*) from doctors where on_call`)
	err = errors.Join(
		tx.exec(`select count(*) from doctors where on_call`),
		tx.exec(`update doctors set on_call = false where id = 1`), read)
	_, write := other.Exec(ctx, `update doctors set on_call = false where id = 2`)
	if err := errors.Join(err, write, other.Commit(ctx)); err != nil {
		t.Errorf("write skew: %v", err)
	}
}

// serialization reports whether a handler got the database's serialization failure, and no word about its job.
func serialization(err error) bool {
	var pg *pgconn.PgError
	return !errors.Is(err, ErrLeaseLost) && !errors.Is(err, ErrState) && errors.As(err, &pg) && pg.Code == "40001"
}

// A serialization failure is returned as it is while the claim holds. A handler that takes it for a lost job and returns
// nil has not completed its job.
func TestASerializationFailureIsNoLostLease(t *testing.T) {
	t.Parallel()
	for _, retention := range []Retention{0, DeleteOnCompletion} {
		db := newTxDB(t, retention)
		db.exec(t, `create table doctors (id int primary key, on_call bool); insert into doctors values (1, true), (2, true)`)
		for _, b := range db.beginners(t) {
			for name, c := range map[string]struct {
				level string
				spoil func(ctx context.Context, j *Job, tx testTx)
			}{
				"an operator's tag": {"repeatable read", func(_ context.Context, j *Job, tx testTx) {
					if err := tx.exec(`insert into effects select 'x' from (select count(*) from jobs) j`); err != nil {
						t.Error(err)
					}
					db.exec(t, `update jobs set tags = '{seen}' where id = $1`, j.ID) //nolint:contextcheck // the test's, not the handler's
				}},
				"write skew elsewhere": {"serializable", func(ctx context.Context, _ *Job, tx testTx) { db.skew(t, ctx, tx) }},
			} {
				for what, settle := range map[string]func(context.Context, *Job, Tx) error{
					"CompleteTx": func(ctx context.Context, j *Job, tx Tx) error { return j.CompleteTx(ctx, tx) },
					"SettleTx":   func(ctx context.Context, j *Job, tx Tx) error { return j.SettleTx(ctx, tx, errNope) },
					"EnqueueTx": func(ctx context.Context, j *Job, tx Tx) error {
						_, err := j.EnqueueTx(ctx, tx, letter{"child"}, nil)
						return errors.Join(err, j.CompleteTx(ctx, tx)) // of a transaction that has failed
					},
				} {
					for _, again := range []bool{false, true} {
						name := fmt.Sprintf("%s, %s by %s, again: %t", name, what, b.name, again)
						db.exec(t, `update doctors set on_call = true`)
						end := db.once(t, func(ctx context.Context, j *Job) error {
							tx, err := b.begin(ctx, c.level)
							if err != nil {
								return err
							}
							c.spoil(ctx, j, tx)
							err = settle(ctx, j, tx.tx)
							if !serialization(err) {
								t.Errorf("%s: %v, want the serialization failure", name, err)
							}
							if err := tx.rollback(); err != nil {
								t.Error(err)
							}
							if !again {
								return nil
							}
							if tx, err = b.begin(ctx, c.level); err != nil {
								return err
							}
							return errors.Join(tx.exec(`insert into effects values ($1)`, j.ID), j.CompleteTx(ctx, tx.tx), tx.commit())
						})
						switch n := db.effects(t, end.JobID); {
						case again && (end.how != "completed" || n != 1):
							t.Errorf("%s: the second transaction ended %s with %d effects", name, end.how, n)
						case !again && (end.how != "failed" || n != 0):
							t.Errorf("%s: nil ended %s with %d effects", name, end.how, n)
						case !again:
							row := db.endRow(t, end.JobID)
							if text := row.Errors[0].Error; !strings.HasPrefix(text, ErrNotCommitted.Error()+": ") {
								t.Errorf("%s: the entry says %q", name, text)
							}
						}
					}
				}
			}
		}
	}
}

// Whatever the reason of a failed settle: nil does not complete the job.
func TestNilAfterAFailedSettle(t *testing.T) {
	t.Parallel()
	for _, retention := range []Retention{0, DeleteOnCompletion} {
		db := newTxDB(t, retention)
		db.exec(t, `create function keep() returns trigger language plpgsql as $$ begin
				if old.tags = '{kept}' then return null; end if;
				if tg_op = 'DELETE' then return old; end if;
				return new;
			end $$;
			create trigger keep before update of finalized_at or delete on jobs for each row execute function keep()`)
		for name, fails := range map[string]func(ctx context.Context, j *Job, tx pgx.Tx) error{
			"a pool for a transaction": func(ctx context.Context, j *Job, _ pgx.Tx) error { return j.CompleteTx(ctx, db.Pool) },
			"nil for a transaction":    func(ctx context.Context, j *Job, _ pgx.Tx) error { return j.SettleTx(ctx, nil, errNope) },
			"after an error": func(ctx context.Context, j *Job, tx pgx.Tx) error {
				_, _ = tx.Exec(ctx, `select 1 / 0`)
				return j.CompleteTx(ctx, tx)
			},
			"after the rollback": func(ctx context.Context, j *Job, tx pgx.Tx) error {
				_ = tx.Rollback(ctx)
				return j.CompleteTx(ctx, tx)
			},
			"a context that is over": func(ctx context.Context, j *Job, tx pgx.Tx) error {
				ctx, cancel := context.WithCancel(ctx)
				cancel()
				return j.CompleteTx(ctx, tx)
			},
			"a trigger that keeps the row": func(ctx context.Context, j *Job, tx pgx.Tx) error {
				db.exec(t, `update jobs set tags = '{kept}' where id = $1`, j.ID) //nolint:contextcheck // the test's, not the handler's
				err := j.CompleteTx(ctx, tx)
				_ = tx.Rollback(ctx)                                          // it holds the row
				db.exec(t, `update jobs set tags = null where id = $1`, j.ID) //nolint:contextcheck // the test's, not the handler's
				if err == nil || errors.Is(err, ErrLeaseLost) || !strings.Contains(err.Error(), "a trigger") {
					t.Errorf("a row that a trigger keeps: %v", err)
				}
				return err
			},
			"one that succeeded, rolled back": func(ctx context.Context, j *Job, tx pgx.Tx) error {
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
			end := db.once(t, func(ctx context.Context, j *Job) error {
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
			if row := db.endRow(t, end.JobID); end.how != "failed" || row.State != Retryable || !strings.HasPrefix(row.Errors[0].Error, ErrNotCommitted.Error()+": ") {
				t.Errorf("%s: ended %s: %+v", name, end.how, row)
			}
		}
		// What the handler says instead counts, and so does a transaction that commits after all.
		end := db.once(t, func(ctx context.Context, j *Job) error {
			if err := j.CompleteTx(ctx, db.Pool); err == nil {
				t.Error("no error")
			}
			return Snooze(time.Hour)
		})
		if end.how != "snoozed" {
			t.Errorf("Snooze after a failed settle: %s", end.how)
		}
		end = db.once(t, func(ctx context.Context, j *Job) error {
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
			t.Errorf("a failed settle beside one that commits: %s", end.how)
		}
	}
}

// A failed settle in a run that a stop cut short is the stop's doing: the job is handed back.
func TestAFailedSettleInAStop(t *testing.T) {
	t.Parallel()
	var heard eventLog
	db := newTestDBWith(t, Config{Logger: quiet(), Hooks: []Hooks{heard.hooks()}})
	id := db.enqueue(t, dyn{kind: "k"}, nil)
	_, stop := db.start(t, SupervisorConfig{Queues: []Queue{{}}, DrainTimeout: 20 * time.Millisecond, Workers: []Worker{
		dynWorker("k", WorkerOpts{MaxAttempts: 2}, func(ctx context.Context, j *Job) error {
			<-ctx.Done()
			if err := j.CompleteTx(ctx, db.Pool); err == nil {
				t.Error("no error")
			}
			return nil
		}),
	}})
	heard.wait(t, id, "started")
	stop()
	if row := db.endRow(t, id); row.State != Available || row.Attempt != 0 || row.Total != 0 {
		t.Errorf("row = %+v", row)
	}
}

// A transaction whose snapshot is older than the claim sees no claim, and can say nothing about the lease.
func TestSettleInASnapshotBeforeTheClaim(t *testing.T) {
	t.Parallel()
	db := newTxDB(t, 0)
	for _, b := range db.beginners(t) {
		tx, err := b.begin(t.Context(), "repeatable read")
		if err != nil {
			t.Fatal(err)
		}
		if err := tx.exec(`insert into effects select 'x' from (select count(*) from jobs) j`); err != nil {
			t.Fatal(err)
		}
		end := db.once(t, func(ctx context.Context, j *Job) error {
			if err := j.CompleteTx(ctx, tx.tx); err == nil || errors.Is(err, ErrLeaseLost) || !strings.Contains(err.Error(), "before the claim") {
				t.Errorf("%s: %v", b.name, err)
			}
			return errors.Join(tx.rollback())
		})
		if end.how != "failed" {
			t.Errorf("%s: ended %s", b.name, end.how)
		}
	}
}

// C3: SettleTx counts from its call, however long ago its transaction began.
func TestSettleTxCountsFromItsCall(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newTxDB(t, 0)
	for _, b := range db.beginners(t) {
		for name, c := range map[string]struct {
			err error
			row string // with $2, when SettleTx was called
		}{
			"an error":        {errNope, `scheduled_at >= $2::timestamptz + interval '1 hour' and (errors->-1->>'at')::timestamptz >= $2::timestamptz and (select min(at) >= $2::timestamptz from drover_failure_tallies where last_job = $1)`},
			"RetryAfter":      {RetryAfter(time.Hour, errNope), `scheduled_at >= $2::timestamptz + last_delay_ms * interval '1 ms'`},
			"RetryAfter now":  {RetryAfter(0, errNope), `scheduled_at >= $2::timestamptz`},
			"Snooze":          {Snooze(time.Hour), `scheduled_at >= $2::timestamptz + interval '1 hour'`},
			"Snooze, for now": {Snooze(0), `scheduled_at >= $2::timestamptz`},
			"Discard":         {Discard(errNope), `finalized_at >= $2::timestamptz and (errors->-1->>'at')::timestamptz >= $2::timestamptz`},
			"Cancel":          {Cancel(errNope), `finalized_at >= $2::timestamptz`},
			"nil":             {nil, `finalized_at >= $2::timestamptz`},
		} {
			var called time.Time
			end := db.once(t, func(ctx context.Context, j *Job) error {
				tx, err := b.begin(ctx, "read committed")
				if err != nil {
					return err
				}
				err = errors.Join(tx.exec(`select pg_sleep(0.05)`), tx.tx.QueryRow(ctx, `select clock_timestamp()`).Scan(&called))
				if err = errors.Join(err, j.SettleTx(ctx, tx.tx, c.err)); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				// The row tells before the commit: a job that is due at once may run by then.
				var right bool
				if err := tx.tx.QueryRow(ctx, `select coalesce(`+c.row+`, false) from jobs where id = $1 and $2::timestamptz is not null`, j.ID, called).Scan(&right); err != nil || !right {
					t.Errorf("%s by %s: %t, %v", name, b.name, right, err)
				}
				if err := tx.exec(`update jobs set scheduled_at = 'infinity' where id = $1 and finalized_at is null`, j.ID); err != nil {
					t.Error(err)
				}
				return tx.commit()
			})
			if end.how == "" {
				t.Errorf("%s: no end", name)
			}
		}
	}
}

// hands is a type of a caller's that stands in front of a pool or a transaction.
type hands[T any] struct{ Of T }

func (h hands[T]) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return any(h.Of).(Tx).QueryRow(ctx, sql, args...)
}

// lazy is one that has yet to begin, and names no connection.
type lazy struct{ Tx }

func (lazy) Conn() *pgx.Conn { return nil }

// D-3: what commits each statement by itself is refused, whatever type stands in front of it: a job would be stored, or
// completed, though its handler fails.
func TestWhatIsNoTransaction(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	ctx := t.Context()
	conn, begun := dialed(t, db), dialed(t, db)
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
	refused := map[string]Tx{
		"nil": nil, "SQLTx(nil)": SQLTx(nil), "no connection": (*pgx.Conn)(nil), "an empty connection": new(pgx.Conn),
		"a pool": db.Pool, "a pool embedded": struct{ *pgxpool.Pool }{db.Pool}, "a pool behind a method": hands[*pgxpool.Pool]{db.Pool},
		"a connection outside": conn, "one outside, wrapped": struct{ *pgx.Conn }{conn}, "a pool's outside": pooled(), "a pool's, given back": given,
		"nil embedded": struct{ pgx.Tx }{}, "a transaction behind a method": hands[pgx.Tx]{open}, "one that names no connection": lazy{open},
		"one ended in SQL": tx(`commit`), "one ended in SQL, embedded": struct{ pgx.Tx }{tx(`rollback`)},
	}
	for what, tx := range refused {
		_, one := db.client.EnqueueTx(ctx, tx, job{1}, nil)
		_, many := db.client.EnqueueManyTx(ctx, tx, []EnqueueItem{{Args: job{1}}})
		for name, err := range map[string]error{"EnqueueTx": one, "EnqueueManyTx": many} {
			var invalid *InvalidError
			if !errors.As(err, &invalid) || invalid.Field != "tx" || !strings.Contains(invalid.Reason, "hand in a pgx.Tx") {
				t.Errorf("%s with %s = %v", name, what, err)
			}
			if strings.Contains(what, "ended") && !errors.Is(err, pgx.ErrTxClosed) {
				t.Errorf("%s with %s = %v", name, what, err)
			}
		}
	}
	for what, tx := range map[string]Tx{
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
	if _, err := db.client.EnqueueTx(ctx, over, job{1}, nil); !errors.Is(err, pgx.ErrTxClosed) { // its connection may be in another one
		t.Errorf("EnqueueTx with a transaction that is over = %v", err)
	}
	if n := value[int](t, db, `select count(*) from jobs`); n > 0 {
		t.Errorf("%d jobs are stored", n)
	}
	ended := make(chan error, 3*len(refused))
	db.launch(t, SupervisorConfig{Workers: handling(func(ctx context.Context, j *Job, _ int) error {
		for _, tx := range refused {
			_, err := j.EnqueueTx(ctx, tx, job{2}, nil)
			ended <- err
			ended <- j.SettleTx(ctx, tx, Snooze(0))
			ended <- j.CompleteTx(ctx, tx)
		}
		return Discard(errors.New("enough"))
	})})
	id := db.enqueue(t, job{1}, nil)
	for range cap(ended) {
		if err := receive(t, ended); !errors.Is(err, ErrInvalid) {
			t.Errorf("in a handler = %v", err)
		}
	}
	db.soon(t, time.Minute, "the job has changed, or runs for ever", `select state = 'discarded' from jobs where id = '`+id+`'`)
}
