package drover_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

// These tests are about jobs that a verb over many jobs comes back to by their ids, because they were locked.

func newWalk(t *testing.T) (*pgxpool.Pool, *drover.Client) {
	t.Helper()
	pool := pgtest.NewMigratedPool(t)
	client, err := drover.New(pool, drover.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return pool, client
}

func ask[T any](t *testing.T, pool *pgxpool.Pool, sql string, args ...any) (answer T) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql, args...).Scan(&answer); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return answer
}

func do(t *testing.T, on interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}, sql string, args ...any) {
	t.Helper()
	if _, err := on.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// hold executes a statement in a transaction, which keeps its locks.
func hold(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) pgx.Tx {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	do(t, tx, sql, args...)
	return tx
}

// waitBehind returns once some session waits for a lock of the transaction.
func waitBehind(t *testing.T, pool *pgxpool.Pool, tx pgx.Tx) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ask[bool](t, pool, `select exists (select from pg_locks where not granted and $1::int = any(pg_blocking_pids(pid)))`, tx.Conn().PgConn().PID()); {
		if time.Now().After(end) {
			t.Fatal("nobody waits for the transaction")
		}
	}
}

func commit(t *testing.T, tx pgx.Tx) {
	t.Helper()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// result is what a verb has returned.
type result struct {
	drover.BulkResult
	err error
}

const buried = `insert into jobs (kind, state, finalized_at, discard_reason) `

// A cancelled job comes back and dies while DeleteMany waits for another one. It is a dead letter now, and the filter
// does not name dead letters.
func TestDeleteManySparesWhatDiedMeanwhile(t *testing.T) {
	t.Parallel()
	pool, client := newWalk(t)
	const cancelled = `insert into jobs (kind, state, finalized_at) values ('job', 'cancelled', now()) returning id`
	first, second, third := ask[string](t, pool, cancelled), ask[string](t, pool, cancelled), ask[string](t, pool, cancelled)
	busy := hold(t, pool, `select from jobs where id = any($1) for update`, []string{first, third})
	redrive := hold(t, pool, `select drover_redrive($1)`, second)
	done := make(chan result, 1)
	go func() {
		r, err := client.DeleteMany(t.Context(), drover.Filter{Kind: "job"}, drover.Audit{})
		done <- result{r, err}
	}()
	waitBehind(t, pool, busy)
	commit(t, redrive)
	do(t, pool, `update jobs set state = 'discarded', discard_reason = 'panic', finalized_at = now() where id = $1`, second)
	commit(t, busy)
	if r := <-done; r.err != nil || r.Changed != 2 || len(r.Refused) > 0 {
		t.Errorf("deleted %+v, error %v", r.BulkResult, r.err)
	}
	if left := ask[string](t, pool, `select coalesce(string_agg(id || ' ' || state, ', '), 'nothing') from jobs`); left != second+" discarded" {
		t.Errorf("left: %s", left)
	}
}

// A verb waits for a dead letter that is locked, however many others lie before it.
func TestVerbsOverManyReachALockedDeadLetter(t *testing.T) {
	t.Parallel()
	pool, client := newWalk(t)
	do(t, pool, buried+`select 'other', 'discarded', now() - interval '1 hour', 'panic' from generate_series(1, 10001)`)
	id := ask[string](t, pool, buried+`values ('job', 'discarded', now(), 'panic') returning id`)
	busy := hold(t, pool, `select from jobs where id = $1 for update`, id)
	done := make(chan result, 1)
	go func() {
		r, err := client.DeleteMany(t.Context(), drover.Filter{Kind: "job", State: drover.Discarded}, drover.Audit{})
		done <- result{r, err}
	}()
	waitBehind(t, pool, busy)
	commit(t, busy)
	if r := <-done; r.err != nil || r.Changed != 1 || ask[int](t, pool, `select count(*) from jobs where id = $1`, id) > 0 {
		t.Errorf("deleted %+v, error %v", r.BulkResult, r.err)
	}
}

// A rerun that is late keeps its rate, although the database refuses a job and so the others go in parts.
func TestLateRerunsInPartsKeepTheirDistance(t *testing.T) {
	t.Parallel()
	pool, client := newWalk(t)
	do(t, pool, `insert into jobs (kind, args, state, finalized_at) select 'job', to_jsonb(n), 'completed', now() from generate_series(1, 64) n`)
	do(t, pool, `create function delay() returns trigger language plpgsql as $$ begin
		if new.args = '60' then raise exception 'no'; end if;
		if new.args = '1' then perform pg_sleep(0.4); end if;
		return new; end $$`)
	do(t, pool, `create trigger delay before insert on jobs for each row execute function delay()`)
	if r, err := client.RerunMany(t.Context(), drover.Filter{Kind: "job"}, drover.RerunPlan{Rate: 100}, drover.Audit{}); err != nil || r.Changed != 63 || len(r.Refused) != 1 {
		t.Fatalf("reran %+v, error %v", r, err)
	}
	const least = `select min(gap)::float8 from (select extract(epoch from scheduled_at - lag(scheduled_at) over (order by scheduled_at)) * 1000 as gap from jobs where finalized_at is null) g`
	if gap := ask[float64](t, pool, least); gap < 10 {
		t.Errorf("two jobs become due within %v ms; at 100 a second, want 10", gap)
	}
}
