// Package drivers tests SQLTx with a driver that is not pgx. It is a module of its own, so that drover's go.mod does not
// name that driver.
package drivers

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/lib/pq"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

type letter struct {
	To string `json:"to"`
}

func (letter) Kind() string { return "letter" }

// open returns a database of lib/pq and drover's pool, both on the same new schema.
func open(t *testing.T) (*sql.DB, *pgxpool.Pool, *drover.Client) {
	t.Helper()
	pool := pgtest.NewMigratedPool(t)
	config := pool.Config().ConnConfig
	passwordForPQ(t, pool, config.Password)
	db, err := sql.Open("postgres", fmt.Sprintf("host='%s' port=%d user='%s' password='%s' dbname='%s' sslmode=disable search_path='%s'",
		config.Host, config.Port, config.User, config.Password, config.Database, pgtest.Schema(pool)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	client, err := drover.New(pool, drover.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return db, pool, client
}

var once sync.Once //nolint:gochecknoglobals // the tests have one server

// passwordForPQ stores the role's password again if the server made its hash with few iterations, as a server for tests
// may do. lib/pq refuses such a hash.
func passwordForPQ(t *testing.T, pool *pgxpool.Pool, password string) {
	t.Helper()
	once.Do(func() {
		var few bool
		err := pool.QueryRow(t.Context(), `select exists (select from pg_authid where rolname = current_user and rolpassword like 'SCRAM-SHA-256$1:%')`).Scan(&few)
		if err == nil && few { // else the role may not read this
			_, err = pool.Exec(t.Context(), `alter role current_user password '`+strings.ReplaceAll(password, "'", "''")+`'`)
			if err != nil {
				t.Error(err)
			}
		}
	})
}

func begin(t *testing.T, db *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

func count(t *testing.T, pool *pgxpool.Pool, condition string) (n int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), `select count(*) from jobs where `+condition).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// Every option reaches its column, in jobs that are enqueued singly, as unique jobs and in batches.
func TestEnqueueTx(t *testing.T) {
	t.Parallel()
	db, pool, client := open(t)
	at := time.Date(2131, 2, 3, 4, 5, 6, 7000, time.FixedZone("", 3600))
	opts := drover.EnqueueOpts{
		Queue: "post", Priority: 9, ScheduledAt: at, MaxAttempts: 3, Retry: drover.Linear{Step: 90 * time.Second}, Timeout: 1500 * time.Millisecond,
		ExpiresAt: at.Add(time.Hour), RetryUntil: at.Add(2 * time.Hour), Tags: []string{"a", `"<&>'{,}\`, "ü"}, Metadata: map[string]any{"trace": "<x>"}, Key: "Zoë's",
	}
	unique, delayed := opts, opts
	unique.Unique = &drover.Unique{}
	delayed.ScheduledAt, delayed.Delay, delayed.ExpiresAt, delayed.RetryUntil = time.Time{}, time.Hour, time.Time{}, time.Time{}
	const all = `queue = 'post' and priority = 9 and max_attempts = 3 and retry = '{"type": "linear", "step": "1m30s", "jitter": "none"}' and timeout_ms = 1500
		and tags = array['a', '"<&>''{,}\', 'ü'] and metadata = '{"trace": "<x>"}' and concurrency_key = 'Zoë''s' and args = '{"to": "Zoë\\''s"}'`
	const times = ` and scheduled_at = '2131-02-03 03:05:06.000007+00' and expires_at = '2131-02-03 04:05:06.000007+00' and retry_until = '2131-02-03 05:05:06.000007+00'`
	args := letter{`Zoë\'s`}
	for name, c := range map[string]struct {
		opts      drover.EnqueueOpts
		condition string
	}{
		"plain":   {drover.EnqueueOpts{}, `queue = 'default' and args = '{"to": "Zoë\\''s"}'`},
		"all":     {opts, all + times},
		"unique":  {unique, all + times + ` and unique_key is not null`},
		"delayed": {delayed, all + ` and scheduled_at = created_at + interval '1 hour'`},
	} {
		tx := begin(t, db)
		r, err := client.EnqueueTx(t.Context(), drover.SQLTx(tx), args, &c.opts)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if c.opts.Unique != nil {
			again, err := client.EnqueueTx(t.Context(), drover.SQLTx(tx), args, &c.opts)
			if err != nil || !again.Existing || again.ID != r.ID {
				t.Errorf("%s: enqueued again: %+v, %v", name, again, err)
			}
		}
		if err := tx.Commit(); err != nil {
			t.Error(err)
		}
		if count(t, pool, `id = '`+r.ID+`' and `+c.condition) != 1 {
			t.Errorf("%s: the row is not as asked for", name)
		}
	}
	tx := begin(t, db)
	many, err := client.EnqueueManyTx(t.Context(), drover.SQLTx(tx), []drover.EnqueueItem{{Args: args, Opts: &opts}, {Args: letter{"b"}}})
	if err != nil || len(many) != 2 || tx.Commit() != nil || count(t, pool, `id = '`+many[0].ID+`' and `+all+times) != 1 || count(t, pool, `id = '`+many[1].ID+`'`) != 1 {
		t.Errorf("a batch: %v, %v", many, err)
	}

	tx = begin(t, db)
	if r, err := client.EnqueueTx(t.Context(), drover.SQLTx(tx), args, nil); err != nil || tx.Rollback() != nil || count(t, pool, `id = '`+r.ID+`'`) != 0 {
		t.Errorf("after a rollback: %v", err)
	}
}

// An error of the server is the error of this package for which callers test, with the driver's error in it.
func TestErrorsOfTheServer(t *testing.T) {
	t.Parallel()
	db, _, client := open(t)
	tx := begin(t, db)
	r, err := client.EnqueueTx(t.Context(), drover.SQLTx(tx), letter{"a"}, nil)
	if err != nil || tx.Commit() != nil {
		t.Fatal(err)
	}
	tx = begin(t, db)
	if _, err := client.EnqueueTx(t.Context(), drover.SQLTx(tx), letter{"b"}, &drover.EnqueueOpts{ID: r.ID}); !errors.Is(err, drover.ErrIDConflict) {
		t.Errorf("another job with this id: %v", err)
	}

	// Two transactions store two unique jobs in the other order.
	one, other := begin(t, db), begin(t, db)
	unique := func(tx *sql.Tx, to string) error {
		_, err := client.EnqueueTx(t.Context(), drover.SQLTx(tx), letter{to}, &drover.EnqueueOpts{Unique: &drover.Unique{}})
		return err
	}
	if err := errors.Join(unique(one, "x"), unique(other, "y")); err != nil {
		t.Fatal(err)
	}
	var ended sync.WaitGroup
	results := make([]error, 2)
	ended.Go(func() { results[0] = errors.Join(unique(one, "y"), one.Rollback()) })
	ended.Go(func() { results[1] = errors.Join(unique(other, "x"), other.Rollback()) })
	ended.Wait()
	if !errors.Is(errors.Join(results...), drover.ErrUniqueDeadlock) {
		t.Errorf("a deadlock: %v", results)
	}
}

// A handler works in a transaction of lib/pq. With the commit its row is there, the run is completed, and the next job is
// enqueued. A second settle of the same run is refused.
func TestHandlersTransactions(t *testing.T) {
	t.Parallel()
	db, pool, client := open(t)
	if _, err := pool.Exec(t.Context(), `create table sent (job text)`); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	send := func(ctx context.Context, job *drover.Job, l letter) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if _, err := tx.ExecContext(ctx, `insert into sent values ($1)`, job.ID); err != nil {
			return err
		}
		if l.To == "next" {
			if _, err := job.EnqueueTx(ctx, drover.SQLTx(tx), letter{"late"}, nil); err != nil {
				return err
			}
			if err := job.CompleteTx(ctx, drover.SQLTx(tx)); err != nil {
				return err
			}
		} else if err := job.SettleTx(ctx, drover.SQLTx(tx), drover.Discard(errors.New("no such address"))); err != nil {
			return err
		}
		if err := job.CompleteTx(ctx, drover.SQLTx(tx)); !errors.Is(err, drover.ErrState) && !errors.Is(err, drover.ErrLeaseLost) {
			t.Errorf("settled twice: %v", err)
		}
		if err := tx.Commit(); err != nil || l.To == "next" {
			return err
		}
		stop()
		return nil
	}
	sup, err := client.NewSupervisor(drover.SupervisorConfig{
		Queues: []drover.Queue{{Name: "default", Concurrency: 1}}, Workers: []drover.Worker{drover.Handle(send, drover.WorkerOpts{})},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Enqueue(ctx, letter{"next"}, nil); err != nil {
		t.Fatal(err)
	}
	if err := sup.Run(ctx); err != nil || !errors.Is(ctx.Err(), context.Canceled) {
		t.Error(err, ctx.Err())
	}
	if count(t, pool, `state = 'completed' and args->>'to' = 'next'`) != 1 || count(t, pool, `state = 'discarded' and args->>'to' = 'late' and errors->0->>'error' = 'no such address'`) != 1 ||
		count(t, pool, `id in (select job from sent)`) != 2 {
		t.Error("the two jobs or their rows are not as the handlers left them")
	}
}
