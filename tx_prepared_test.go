package drover

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover/internal/pgdev"
	"github.com/drover-queue/drover/migrations"
)

// newPreparingDB is a database of a server of its own that lets transactions be prepared, which is not the default.
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
	return newTestDBOn(t, pool, Config{Logger: slog.New(slog.DiscardHandler)})
}

// prepare does something in a transaction with drover.notify as given, and prepares it.
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

// settled is a job whose handler settles it in a transaction that is prepared.
type settled struct {
	With string `json:"with"`
}

func (settled) Kind() string { return "settled" }

// Whatever drover does in a caller's transaction can be prepared with drover.notify off, and is found once it is committed;
// with notifications Postgres refuses.
func TestTransactionsThatArePrepared(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newPreparingDB(t)
	ran, ends, inHandler := make(chan int, 20), make(chan string, 20), make(chan string, 20)
	commit := func(name string) { db.exec(t, `commit prepared '`+name+`'`) }
	db.launch(t, SupervisorConfig{Lease: time.Second, PollInterval: 200 * time.Millisecond, Workers: []Worker{
		Handle(func(_ context.Context, _ *Job, j job) error { ran <- j.N; return nil }, WorkerOpts{FollowUp: &FollowUp{Kind: "followed"}}),
		dynWorker("followed", WorkerOpts{}, func(context.Context, *Job) error { ran <- 100; return nil }),
		Handle(func(ctx context.Context, _ *Job, _ blocked) error {
			inHandler <- "blocked"
			<-ctx.Done()
			ends <- context.Cause(ctx).Error()
			return ctx.Err()
		}, WorkerOpts{}),
		Handle(func(ctx context.Context, j *Job, s settled) error {
			err := db.prepare(ctx, "settle "+s.With, "off", func(tx pgx.Tx) error {
				switch s.With {
				case "enqueue":
					_, err := j.EnqueueTx(ctx, tx, job{50}, nil)
					return errors.Join(err, j.CompleteTx(ctx, tx))
				case "discard":
					return j.SettleTx(ctx, tx, Discard(errors.New("enough")))
				}
				return j.CompleteTx(ctx, tx)
			})
			if err != nil {
				t.Errorf("%s: %v", s.With, err)
				return err
			}
			_, err = db.Exec(ctx, `commit prepared 'settle `+s.With+`'`)
			return err
		}, WorkerOpts{FollowUp: &FollowUp{Kind: "followed"}}),
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
			_, err := db.client.EnqueueTx(t.Context(), tx, job{2}, &EnqueueOpts{Delay: time.Millisecond})
			return err
		},
		"enqueue many": func(tx pgx.Tx) error {
			_, err := db.client.EnqueueManyTx(t.Context(), tx, []EnqueueItem{{job{3}, nil}, {job{3}, nil}})
			return err
		},
		"follow-up": verb(`update jobs set state = 'discarded', discard_reason = 'operator', finalized_at = now() where id = $1`, dead()),
		"cancel":    verb(`select drover_cancel($1)`, running),
	} {
		db.asleep(t)
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
	if how := receive(t, ends); how != ErrCancelled.Error() {
		t.Errorf("the cancelled handler ended with %q", how)
	}
	for with, state := range map[string]State{"complete": Completed, "enqueue": Completed, "discard": Discarded} {
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

// DisableNotify in Go does what the setting does, for its transaction alone.
func TestDisableNotifyOfAnEnqueue(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	db.onDuty(t, db.crew(t, "default", "letter").OnCall)
	quiet, opts := db.via(t, Config{DisableNotify: true}).client, &EnqueueOpts{DisableNotify: true}
	inTx := func(do func(tx pgx.Tx) error) func() error {
		return func() error { return pgx.BeginFunc(t.Context(), db, do) }
	}
	for name, enqueue := range map[string]func() error{
		"Enqueue": func() error { _, err := db.client.Enqueue(t.Context(), letter{}, opts); return err },
		"EnqueueMany": func() error {
			_, err := db.client.EnqueueMany(t.Context(), []EnqueueItem{{letter{}, opts}})
			return err
		},
		"EnqueueTx": inTx(func(tx pgx.Tx) error {
			_, err := db.client.EnqueueTx(t.Context(), tx, letter{}, opts)
			_, then := db.client.EnqueueTx(t.Context(), tx, letter{}, nil) // it holds until the end of the transaction
			return errors.Join(err, then)
		}),
		"EnqueueManyTx": inTx(func(tx pgx.Tx) error {
			_, err := db.client.EnqueueManyTx(t.Context(), tx, []EnqueueItem{{letter{}, nil}, {letter{}, opts}})
			return err
		}),
		"Config": func() error { _, err := quiet.Enqueue(t.Context(), letter{}, nil); return err },
		"Config, EnqueueMany": func() error {
			_, err := quiet.EnqueueMany(t.Context(), []EnqueueItem{{letter{}, nil}, {letter{}, &EnqueueOpts{Delay: time.Millisecond}}})
			return err
		},
		"Config, unique": func() error {
			_, err := quiet.Enqueue(t.Context(), letter{To: "a"}, &EnqueueOpts{Unique: &Unique{}})
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
