package engine_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// fullest returns the largest number of the times that lie in one window of the given length. The end of a
// window does not belong to it.
func fullest(times []time.Time, window time.Duration) (most int) {
	times = slices.Clone(times)
	slices.SortFunc(times, time.Time.Compare)
	first := 0
	for i, at := range times {
		for !at.Before(times[first].Add(window)) {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

func TestTheFullestWindowIsFound(t *testing.T) {
	t.Parallel()
	var times []time.Time
	for i := range 300 {
		times = append(times, time.UnixMicro(int64(i)*600_000))
	}
	if n := fullest(times, time.Minute); n != 100 {
		t.Errorf("100 a minute in steps: %d", n)
	}
	if n := fullest(append(times, time.UnixMicro(90_000_001)), time.Minute); n != 101 {
		t.Errorf("and one between: %d", n)
	}
	if n := fullest([]time.Time{time.UnixMicro(59_999_999), time.UnixMicro(0), time.UnixMicro(60_000_000)}, time.Minute); n != 2 {
		t.Errorf("a window straddles none of the clock's minutes: %d", n)
	}
}

// retries returns the times at which the failed jobs are due again, or were.
func (db *testDB) retries(t testing.TB, where string, args ...any) []time.Time {
	t.Helper()
	rows, err := db.Query(t.Context(), `select scheduled_at from jobs where errors_total > 0 and discard_reason is null and `+where, args...)
	if err != nil {
		t.Fatal(err)
	}
	times, err := pgx.CollectRows(rows, pgx.RowTo[time.Time])
	if err != nil {
		t.Fatal(err)
	}
	return times
}

// failOnce is a worker of a kind whose jobs fail in their first run.
func failOnce(kind string, retry drover.RetryStrategy, budget drover.RetryBudget) drover.Worker {
	return harness.DynWorker(kind, drover.WorkerOpts{Retry: retry, RetryBudget: budget}, func(_ context.Context, job *drover.Job) error {
		if job.Failures == 0 {
			return errBoom
		}
		return nil
	})
}

// B-1: 100 retries in 60 s on the queue payments. 300 jobs fail in 8 processes. The 101st retry is at least 60 s after
// the first, whatever the backoffs. No job is retried before its backoff is over, and none is lost.
func TestNoWindowHoldsMoreThanTheBudget(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	var batch []drover.EnqueueItem
	for range 100 {
		for _, kind := range []string{"soon", "jitter", "later"} {
			batch = append(batch, drover.EnqueueItem{Args: dyn{kind: kind}, Opts: &drover.EnqueueOpts{Queue: "payments"}})
		}
	}
	if _, err := db.client.EnqueueMany(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	for range 8 {
		db.via(t, drover.Config{}).launch(t, drover.SupervisorConfig{
			Queues: []drover.Queue{{Name: "payments", RetryBudget: drover.RetryBudget{Retries: 100, Per: time.Minute}}},
			Workers: []drover.Worker{
				failOnce("soon", drover.Constant{Delay: 5 * time.Millisecond}, drover.RetryBudget{}),
				failOnce("jitter", drover.Exponential{Base: 10 * time.Second, Jitter: drover.FullJitter}, drover.RetryBudget{}),
				failOnce("later", drover.Constant{Delay: time.Hour}, drover.RetryBudget{}),
			},
		})
	}
	db.waitFor(t, 30*time.Second, `select count(*) = 300 from jobs where errors_total = 1 and state in ('retryable', 'completed')`)
	times := db.retries(t, `true`)
	if n := fullest(times, time.Minute); len(times) != 300 || n != 100 {
		t.Errorf("%d retries, %d in one minute, want 300 and 100", len(times), n)
	}
	soon := db.retries(t, `kind <> 'later'`)
	slices.SortFunc(soon, time.Time.Compare)
	if first, last := soon[0], soon[100]; last.Sub(first) < time.Minute {
		t.Errorf("the 101st retry comes %v after the first", last.Sub(first))
	}
	if n := value[int](t, db, `select count(*) from jobs where scheduled_at < created_at + case kind when 'later' then interval '1 hour' else interval '5 ms' end`); n > 0 {
		t.Errorf("%d retries come before their backoff", n)
	}
	// The history, and the strategy at the next failure, get the wait that really happens.
	if n := value[int](t, db, `select count(*) from jobs where (errors->0->>'delay_ms')::bigint is distinct from last_delay_ms
		or abs(extract(epoch from scheduled_at - (errors->0->>'at')::timestamptz) - last_delay_ms / 1000.0) > 5`); n > 0 {
		t.Errorf("%d jobs are told of another wait than theirs", n)
	}
}

// B-2: 10,000 jobs fail together. With a budget of 500 a second their retries become a ramp, whatever their
// backoffs.
func TestTenThousandFailuresBecomeARamp(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	kinds := []string{"same", "jitter", "by id"}
	began := time.Now()
	db.exec(t, `insert into jobs (id, kind) select (select left(drover_ulid(), 10)) || lpad(n::text, 16, '0'), ($1::text[])[1 + n % 3] from generate_series(1, 10000) n`, kinds)
	for range 8 {
		db.via(t, drover.Config{}).launch(t, drover.SupervisorConfig{
			RetryBudget: drover.RetryBudget{Retries: 500, Per: time.Second},
			Queues:      []drover.Queue{{Concurrency: 50}},
			Workers: []drover.Worker{
				failOnce("same", drover.Constant{Delay: time.Hour}, drover.RetryBudget{}),
				failOnce("jitter", drover.Constant{Delay: time.Hour, Jitter: drover.JitterUp(0.001)}, drover.RetryBudget{}),
				failOnce("by id", drover.Custom{Func: func(f drover.FailedRun) (time.Duration, bool) {
					return time.Hour + time.Duration(f.Job.ID[25])*10*time.Millisecond, true
				}}, drover.RetryBudget{}),
			},
		})
	}
	db.waitFor(t, 3*time.Minute, `select count(*) = 10000 from jobs where state = 'retryable'`)
	took := time.Since(began) // no two failed further apart, and their backoffs differ by less than 5 s
	times := db.retries(t, `true`)
	n := fullest(times, time.Second)
	if len(times) != 10000 || n > 500 {
		t.Errorf("%d retries, %d in one second, want 10,000 and 500", len(times), n)
	}
	if n < 500 && took < 14*time.Second { // on a slower machine fewer than 500 jobs fail in a second, and no retry has to wait for a slot
		t.Errorf("%d retries in the fullest second, want 500", n)
	}
	if n := value[int](t, db, `select count(*) from jobs where scheduled_at < created_at + interval '1 hour'`); n > 0 {
		t.Errorf("%d retries come before their backoff", n)
	}
	// The ramp has no holes: the time from the first retry to the last is at most the time of 10,000 slots, plus the
	// largest difference of the backoffs, plus the time in which the jobs failed.
	d := value[float64](t, db, `select extract(epoch from max(scheduled_at) - min(scheduled_at))::float8 from jobs`)
	if longest := 20*time.Second + 5*time.Second + took; d > longest.Seconds() {
		t.Errorf("the ramp is %v s long, want at most %v", d, longest)
	}
}

// fail settles runs as failed.
func (s *still) fail(t testing.TB, runs ...*engine.Run) {
	t.Helper()
	outcomes := make([]*engine.Run, len(runs))
	for i, r := range runs {
		outcomes[i] = decided(r, errBoom)
	}
	s.settle(t, outcomes...)
}

// B-1: with Discard, a job is discarded if the window that begins after its backoff has no free slot.
func TestASpentBudgetDiscards(t *testing.T) {
	t.Parallel()
	var book diary
	db := newQuietDB(t).via(t, drover.Config{Hooks: book.hooks()})
	s, runs := db.failing(t, 300, drover.SupervisorConfig{Queues: []drover.Queue{{RetryBudget: drover.RetryBudget{Retries: 100, Discard: true}, Retry: drover.Constant{}}}})
	s.fail(t, runs...)
	times := db.retries(t, `state = 'retryable'`)
	if n := fullest(times, time.Minute); len(times) != 100 || n != 100 {
		t.Errorf("%d retries, %d in one minute, want 100", len(times), n)
	}
	const discarded = `select count(*) from jobs where state = 'discarded' and discard_reason = $1 and finalized_at is not null
		and errors->0->>'error' = 'boom' and not errors->0 ? 'delay_ms' and last_delay_ms is null`
	if n := value[int](t, db, discarded, drover.ReasonRetryBudget); n != 200 {
		t.Errorf("%d jobs discarded as %s, want 200", n, drover.ReasonRetryBudget)
	}
	s.reportAll(t)
	if failed, gone := book.count(engine.EventFailed, ""), book.count(engine.EventDiscarded, ""); failed != 100 || gone != 200 {
		t.Errorf("%d told as failed, %d as discarded", failed, gone)
	}
}

// A job takes its slot from its kind's budget, otherwise from its queue's, otherwise from the supervisor's.
func TestWhoseBudgetAJobSpends(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	var heard harness.EventLog
	client := db.via(t, drover.Config{Hooks: []drover.Hooks{heard.Hooks()}})
	hour := drover.Constant{Delay: time.Hour}
	client.run(t, drover.SupervisorConfig{
		RetryBudget: drover.RetryBudget{Retries: 1, Per: 24 * time.Hour},
		Queues:      []drover.Queue{{Name: "a", RetryBudget: drover.RetryBudget{Retries: 2, Burst: 2, Per: 24 * time.Hour}}, {Name: "b"}},
		Workers:     []drover.Worker{failOnce("x", hour, drover.RetryBudget{Retries: 3, Burst: 3, Per: 24 * time.Hour, Discard: true}), failOnce("y", hour, drover.RetryBudget{})},
	})
	for _, job := range []struct{ kind, queue string }{{"x", "a"}, {"x", "b"}, {"y", "a"}, {"y", "b"}, {"y", "b"}} {
		heard.Wait(t, client.enqueue(t, dyn{kind: job.kind}, &drover.EnqueueOpts{Queue: job.queue}), "failed")
	}
	const spent = `select string_agg(format('%s %s', scope, n), ', ' order by scope) from (select scope, sum(bit_count(used)) as n from drover_budget_slots group by 1) s`
	if got, want := value[string](t, db, spent), "all 2, kind:x 2, queue:a 1"; got != want {
		t.Errorf("spent: %s, want %s", got, want)
	}
	budgets, err := client.client.RetryBudgets(t.Context())
	if err != nil || len(budgets) != 3 {
		t.Fatal(budgets, err)
	}
	want := []drover.BudgetInfo{
		{Scope: "all", RetryBudget: drover.RetryBudget{Retries: 1, Per: 24 * time.Hour, Burst: 1, Discard: false}},
		{Scope: "kind:x", RetryBudget: drover.RetryBudget{Retries: 3, Per: 24 * time.Hour, Burst: 3, Discard: true}},
		{Scope: "queue:a", RetryBudget: drover.RetryBudget{Retries: 2, Per: 24 * time.Hour, Burst: 2, Discard: false}},
	}
	for i, b := range budgets {
		if b.Scope != want[i].Scope || b.RetryBudget != want[i].RetryBudget {
			t.Errorf("budget %+v, want %+v", b, want[i])
		}
	}
}

// B-1: the rest of a budget can be read.
func TestRemainingBudget(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s, runs := db.failing(t, 30, drover.SupervisorConfig{
		RetryBudget: drover.RetryBudget{Retries: 100, Per: 24 * time.Hour}, // a slot every 14 min 24 s
		Queues:      []drover.Queue{{Retry: drover.Constant{Delay: time.Millisecond}}},
	})
	left := func() drover.BudgetInfo {
		t.Helper()
		budgets, err := db.client.RetryBudgets(t.Context())
		if err != nil || len(budgets) != 1 {
			t.Fatal(budgets, err)
		}
		return budgets[0]
	}
	if b := left(); b.Reserved != 0 || b.Free != 100 {
		t.Errorf("before any retry: %+v", b)
	}
	s.fail(t, runs...)
	b := left()
	last := slices.MaxFunc(db.retries(t, `true`), time.Time.Compare)
	if b.Reserved < 29 || b.Reserved+b.Free != 100 || !b.NextFree.Equal(last.Add(24*time.Hour/100)) {
		t.Errorf("after 30 retries, the last at %v: %+v", last, b)
	}
	db.exec(t, `update drover_budgets set retries = 10`) // a changed budget has a calendar of its own, in which no slot is taken
	if b := left(); b.Retries != 10 || b.Reserved != 0 || b.Free != 10 {
		t.Errorf("of a changed budget: %+v", b)
	}
}

// A budget that was changed in psql applies to the next failure. A new budget applies from the next heartbeat on. A
// budget that was removed applies to no job.
func TestABudgetChangedByHandApplies(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s, runs := db.failing(t, 40, drover.SupervisorConfig{Queues: []drover.Queue{{RetryBudget: drover.RetryBudget{Retries: 10, Discard: true}, Retry: drover.Constant{}}}})
	outcome := func(which []*engine.Run, want string) {
		t.Helper()
		s.fail(t, which...)
		got := value[string](t, db, `select string_agg(format('%s %s', n, s), ', ' order by s) from (
			select coalesce(discard_reason, state) as s, count(*) as n from jobs where id = any($1) group by 1) x`, ids(which))
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	outcome(runs[:10], "10 retryable")
	db.exec(t, `update drover_budgets set retries = 1, per_ms = 86400000`)
	outcome(runs[10:20], "9 retry_budget, 1 retryable")
	db.exec(t, `delete from drover_budgets`)
	outcome(runs[20:30], "10 retryable")
	s.beat(t)
	db.exec(t, `insert into drover_budgets (scope, retries, per_ms, discard) values ('all', 2, 86400000, true)`)
	s.beat(t)
	outcome(runs[30:], "8 retry_budget, 2 retryable")
}

// A job that waits for no backoff uses no slot, and a job that ends uses none either.
func TestWhatSpendsABudget(t *testing.T) {
	t.Parallel()
	slow(t)
	for _, tc := range []struct {
		name  string
		err   error
		spent int
	}{
		{"completed", nil, 0},
		{"error", errBoom, 1},
		{"RetryAfter", drover.RetryAfter(time.Minute, errBoom), 1},
		{"DontCount", drover.DontCount(errBoom), 1},
		{"Snooze", drover.Snooze(time.Minute), 0},
		{"Discard", drover.Discard(errBoom), 0},
		{"Cancel", drover.Cancel(errBoom), 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			db := newQuietDB(t)
			s, runs := db.failing(t, 2, drover.SupervisorConfig{RetryBudget: drover.RetryBudget{Retries: 100}})
			s.settle(t, decided(runs[0], tc.err), endedBy(runs[1], engine.Released(0)))
			if n := value[int](t, db, `select coalesce(sum(bit_count(used)), 0) from drover_budget_slots`); n != tc.spent {
				t.Errorf("%d slots spent, want %d", n, tc.spent)
			}
			if n := value[int](t, db, `select count(*) from jobs where state = 'running'`); n > 0 {
				t.Errorf("%d jobs are not settled", n)
			}
		})
	}
}

// B-1: a rescue takes a slot, too, if the job then waits for a backoff. After its first crash a job does not
// wait, so it takes none.
func TestRescuesSpendABudget(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into jobs (kind, state, claimed_by, attempt, claim_seq, attempted_at, crashes)
		select 'job', 'running', 'dead', 1, 1, now(), n % 2 from generate_series(1, 20) n`)
	db.Dead(t, "dead")
	s := db.stopped(t, drover.SupervisorConfig{RetryBudget: drover.RetryBudget{Retries: 4, Per: time.Hour, Discard: true}, Queues: []drover.Queue{{Retry: drover.Constant{}}}})
	s.beat(t)
	got := value[string](t, db, `select string_agg(format('%s %s after %s', n, s, crashes), ', ' order by crashes, s) from (
		select crashes, coalesce(discard_reason, state) as s, count(*) as n from jobs group by 1, 2) x`)
	if want := "10 retryable after 0, 6 retry_budget after 2, 4 retryable after 2"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// If no slot before a job's RetryUntil is free, the job is discarded. It takes no later slot, so other jobs can
// have them.
func TestNoSlotBeforeRetryUntil(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s, runs := db.failing(t, 5, drover.SupervisorConfig{
		RetryBudget: drover.RetryBudget{Retries: 3, Burst: 3, Per: 24 * time.Hour}, Queues: []drover.Queue{{Retry: drover.Constant{Delay: time.Second}}},
	}, &drover.EnqueueOpts{RetryUntil: time.Now().Add(12 * time.Hour)}, nil)
	s.fail(t, runs...)
	if n := value[int](t, db, `select count(*) from jobs where state = 'retryable' and retry_until < scheduled_at`); n > 0 {
		t.Errorf("%d retries come after their RetryUntil", n)
	}
	if n := value[int](t, db, `select count(*) from jobs where retry_until is null and state = 'retryable'`); n != 5 {
		t.Errorf("%d of 5 jobs without a limit are retried", n)
	}
	if spent, retried := value[int](t, db, `select sum(bit_count(used)) from drover_budget_slots`), value[int](t, db, `select count(*) from jobs where state = 'retryable'`); spent != retried {
		t.Errorf("%d slots for %d retries", spent, retried)
	}
	if n := value[int](t, db, `select count(*) from jobs where discard_reason = $1`, drover.ReasonTimeBudget); n < 2 {
		t.Errorf("%d of 5 are discarded for their RetryUntil, though 3 slots are a day apart from the next", n)
	}
}

// A run settled in its handler's transaction takes its slot outside of it: such handlers have every connection of the
// pool, and no handler waits for the commit of another.
func TestSettleTxTakesItsSlotOutsideTheTransaction(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	const n = 4
	small := db.via(t, drover.Config{}, func(c *pgxpool.Config) { c.MaxConns = n })
	var settled sync.WaitGroup
	settled.Add(n)
	small.enqueueJobs(t, n, nil)
	small.launch(t, drover.SupervisorConfig{
		Queues: []drover.Queue{{Concurrency: n, RetryBudget: drover.RetryBudget{Retries: 1}, Retry: drover.Constant{Delay: time.Hour}}},
		Workers: handling(func(ctx context.Context, j *drover.Job, _ int) error {
			return pgx.BeginFunc(ctx, small, func(tx pgx.Tx) error {
				err := j.SettleTx(ctx, tx, errBoom)
				settled.Done()
				settled.Wait() // all transactions are open, and have changed their job
				return err
			})
		}),
	})
	db.waitFor(t, 20*time.Second, `select count(*) = $1 from jobs where state = 'retryable' and errors->0->>'error' = 'boom'`, n)
	if times := db.retries(t, `true`); fullest(times, time.Minute) != 1 {
		t.Errorf("retries at %v, want a minute between them", times)
	}
}

// A handler that settles in a transaction waits for a slot no longer than its context says.
func TestSettleTxGivesUpWithItsContext(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s, runs := db.failing(t, 1, drover.SupervisorConfig{RetryBudget: drover.RetryBudget{Retries: 1}})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error { return jobOf(runs[0]).SettleTx(ctx, tx, errBoom) }) // its settler does not run
	if !errors.Is(err, context.Canceled) {
		t.Errorf("SettleTx = %v", err)
	}
	close(s.Settler.Idle)
	err = pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error { return jobOf(runs[0]).SettleTx(t.Context(), tx, errBoom) })
	if !errors.Is(err, drover.ErrShutdown) {
		t.Errorf("SettleTx = %v", err)
	}
}

// The server's clock decides: processes whose clocks are hours apart share one calendar.
func TestBudgetsGoByTheServersClock(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	cfg := drover.SupervisorConfig{RetryBudget: drover.RetryBudget{Retries: 10}, Queues: []drover.Queue{{Retry: drover.Constant{Delay: time.Second}}}}
	for _, skew := range []time.Duration{-5 * time.Hour, 0, 5 * time.Hour} {
		s, runs := db.failing(t, 20, cfg)
		s.Now = func() time.Time { return time.Now().Add(skew) }
		s.fail(t, runs...)
	}
	times := db.retries(t, `true`)
	if n := fullest(times, time.Minute); len(times) != 60 || n != 10 {
		t.Errorf("%d retries, %d in a minute, want 60 and 10", len(times), n)
	}
	if n := value[int](t, db, `select count(*) from jobs where scheduled_at not between created_at and created_at + interval '7 minutes'`); n > 0 {
		t.Errorf("%d of 60 retries are not in the next 7 minutes", n)
	}
}

// reserveCounter counts reservations.
type reserveCounter struct{ n atomic.Int64 }

func (c *reserveCounter) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (c *reserveCounter) TraceBatchQuery(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchQueryData) {
	if d.SQL == store.SQLReserve || d.SQL == store.SQLReserveBriefly {
		c.n.Add(1)
	}
}
func (c *reserveCounter) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}
func (c *reserveCounter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (c *reserveCounter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

// B-2: jobs without a budget cost no further statement, and jobs with a budget cost none while they succeed.
func TestNoBudgetNoStatement(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		budget  drover.RetryBudget
		err     error
		reserve int64
	}{
		{"failures without a budget", drover.RetryBudget{}, errBoom, 0},
		{"successes with one", drover.RetryBudget{Retries: 1}, nil, 0},
		{"failures with one", drover.RetryBudget{Retries: 1}, errBoom, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var counted reserveCounter
			db := newQuietDB(t)
			db.exec(t, `insert into drover_budgets (scope, retries) values ('queue:another', 1), ('kind:another', 1)`)
			traced := db.via(t, drover.Config{}, func(c *pgxpool.Config) { c.ConnConfig.Tracer = &counted })
			s, runs := traced.failing(t, 20, drover.SupervisorConfig{Queues: []drover.Queue{{RetryBudget: tc.budget}}})
			outcomes := make([]*engine.Run, len(runs))
			for i, r := range runs {
				outcomes[i] = decided(r, tc.err)
			}
			s.settle(t, outcomes...)
			if n := value[int](t, db, `select count(*) from jobs where state = 'running'`); n > 0 || counted.n.Load() != tc.reserve {
				t.Errorf("%d statements to reserve, want %d; %d jobs are not settled", counted.n.Load(), tc.reserve, n)
			}
		})
	}
}

// F-12: while the database refuses slots, the outcomes that need no slot are settled. The others are settled
// afterwards.
func TestSlotsThatCannotBeHad(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	s, runs := db.failing(t, 4, drover.SupervisorConfig{RetryBudget: drover.RetryBudget{Retries: 100}})
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `lock table drover_budget_slots`); err != nil {
		t.Fatal(err)
	}
	s.settle(t, decided(runs[0], nil), decided(runs[1], errBoom), decided(runs[2], drover.Snooze(time.Hour)), decided(runs[3], errBoom))
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	const counts = `select string_agg(format('%s %s', n, state), ', ' order by state) from (select state, count(*) as n from jobs group by 1) x`
	if got, want := value[string](t, db, counts), "1 completed, 2 running, 1 scheduled"; got != want {
		t.Errorf("while slots cannot be had: %s, want %s", got, want)
	}
	s.Settler.Trip(t.Context(), s.Settler.Take(s.Now().Add(time.Minute)))
	if got, want := value[string](t, db, counts), "1 completed, 2 retryable, 1 scheduled"; got != want {
		t.Errorf("afterwards: %s, want %s", got, want)
	}
}

// If a settle is tried again and the time of its slot is still to come, it keeps the slot. If that time has passed, it
// takes a new slot, at least one backoff from now.
func TestASlotIsUsedInTimeOrNotAtAll(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s, runs := db.failing(t, 1, drover.SupervisorConfig{RetryBudget: drover.RetryBudget{Retries: 100}, Queues: []drover.Queue{{Retry: drover.Constant{Delay: time.Minute}}}})
	conn, err := s.Settler.Link.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	o := decided(runs[0], errBoom)
	reserve := func() engine.BudgetSlot {
		t.Helper()
		if err := s.Budgets.Reserve(t.Context(), conn, engine.WantingEnds([]*engine.Run{o})); err != nil || o.End.Slot == nil {
			t.Fatalf("reserve: %v, %+v", err, o)
		}
		return *o.End.Slot
	}
	first := reserve()
	if again := reserve(); again != first {
		t.Errorf("a slot ahead is given up: %+v, then %+v", first, again)
	}
	o.End.Slot.Taken = o.End.Slot.Taken.Add(-10 * time.Minute)
	if late := reserve(); late.DueUS <= first.DueUS || late.Backoff != time.Minute || o.End.Delay > 2*time.Minute {
		t.Errorf("a slot that has passed: %+v, then %+v in %v", first, late, o.End.Delay)
	}
}

// model is the calendar as one would write it down: which slots are taken.
type model map[string]map[int64]bool

// take finds the first free slot from a time on, and before stop (0: whenever), counting one by one.
func (m model) take(scope string, b drover.RetryBudget, from, stop int64) (due int64, ok bool) {
	per, r, burst := b.Per.Microseconds(), int64(b.Retries), int64(max(b.Burst, 1))
	dueOf := func(n int64) int64 { n -= n % burst; return n/r*per + n%r*per/r }
	n := from / per * r
	for dueOf(n) < from {
		n++
	}
	for m[scope][n] {
		n++
	}
	if due = dueOf(n); stop > 0 && due >= stop {
		return 0, false
	}
	if m[scope] == nil {
		m[scope] = map[int64]bool{}
	}
	m[scope][n] = true
	return due, true
}

// Batches of any size, in budgets of any size, get what a calendar kept by hand would give them.
func TestReservationsAgainstAModel(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	conn, err := harness.PoolOf(db.client).Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer pg.CloseConn(t.Context(), conn)
	random := rand.New(rand.NewPCG(3, 100)) //nolint:gosec // the same every time
	for range 12 {
		db.exec(t, `truncate drover_budgets, drover_budget_slots`)
		budgets := map[string]drover.RetryBudget{}
		for _, scope := range []string{"all", "kind:k1", "kind:k2", "queue:q1", "queue:q2"} {
			if random.IntN(3) == 0 && scope != "all" {
				continue
			}
			b := drover.RetryBudget{Retries: 1 + random.IntN(3000), Per: time.Duration(1+random.IntN(100)) * 777 * time.Millisecond, Discard: random.IntN(3) == 0 && scope != "all"}
			b.Burst = 1 + random.IntN(min(b.Retries, 7))
			budgets[scope] = b
			db.exec(t, store.SQLRegisterBudget, scope, b.Retries, b.Per.Milliseconds(), b.Burst, b.Discard)
		}
		calendar := model{}
		dues := map[string][]time.Time{}
		for range 5 {
			wanting := make([]store.WantedSlot, 1+random.IntN(700))
			for i := range wanting {
				wanting[i].Kind, wanting[i].Queue = fmt.Sprintf("k%d", random.IntN(4)), fmt.Sprintf("q%d", random.IntN(4))
				wanting[i].Backoff = time.Duration(random.IntN(100)*random.IntN(100)) * time.Millisecond
				if random.IntN(5) == 0 {
					latest := wanting[i].Backoff.Microseconds() + random.Int64N(2_000_000)
					wanting[i].Latest = &latest
				}
			}
			wanting[0].Kind, wanting[0].Queue, wanting[0].Latest = "other", "other", nil // granted: it shows the server's clock
			slots, err := store.Session{Conn: conn}.Reserve(t.Context(), wanting)
			if err != nil {
				t.Fatal(err)
			}
			now := slots[0].DueUS - slots[0].Delay.Microseconds()
			order := make([]int, len(wanting))
			for i := range order {
				order[i] = i
			}
			slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(wanting[a].Backoff, wanting[b].Backoff) })
			for _, i := range order {
				w, got := wanting[i], slots[i]
				scope := "all"
				for _, s := range []string{"queue:" + w.Queue, "kind:" + w.Kind} {
					if budgets[s].Retries > 0 {
						scope = s
					}
				}
				b, from := budgets[scope], now+w.Backoff.Microseconds()
				stop, reason := int64(0), drover.Reason("")
				if w.Latest != nil {
					stop, reason = now+*w.Latest+1, drover.ReasonTimeBudget
				}
				if spent := from + b.Per.Microseconds(); b.Discard && (stop == 0 || spent < stop) {
					stop, reason = spent, drover.ReasonRetryBudget
				}
				due, ok := calendar.take(scope, b, from, stop)
				if ok {
					reason = ""
					dues[scope] = append(dues[scope], time.UnixMicro(due))
				}
				if got.DueUS != due || drover.Reason(got.Reason) != reason || ok && got.Delay.Microseconds() != due-now {
					t.Fatalf("%s %+v, wanted %+v: got %+v, want due %d, reason %q", scope, b, w, got, due, reason)
				}
			}
		}
		for scope, times := range dues {
			if b := budgets[scope]; fullest(times, b.Per) > b.Retries+b.Burst-1 || b.Burst == 1 && fullest(times, b.Per) > b.Retries || fullest(times, time.Microsecond) > b.Burst {
				t.Errorf("%s %+v: %d in a window, %d in an instant", scope, b, fullest(times, b.Per), fullest(times, time.Microsecond))
			}
		}
	}
}

// B-1: reservations in any order, from many processes together, wait for each other and give no slot twice.
func TestReservationsAtOnce(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into drover_budgets (scope, retries, per_ms) values ('kind:k0', 40, 1000), ('kind:k1', 40, 1000), ('queue:q0', 40, 1000), ('all', 40, 1000)`)
	var processes sync.WaitGroup
	var mu sync.Mutex
	dues := map[string][]time.Time{}
	for p := range uint64(8) {
		processes.Go(func() {
			conn, err := harness.PoolOf(db.client).Dial(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			defer pg.CloseConn(t.Context(), conn)
			random := rand.New(rand.NewPCG(p, 8)) //nolint:gosec // the same every time
			for range 10 {
				wanting := make([]store.WantedSlot, 50)
				for i := range wanting {
					wanting[i].Kind, wanting[i].Queue = fmt.Sprintf("k%d", random.IntN(3)), fmt.Sprintf("q%d", random.IntN(2))
					wanting[i].Backoff = time.Duration(random.IntN(60)) * time.Second
				}
				slots, err := store.Session{Conn: conn}.Reserve(t.Context(), wanting)
				for pg.TimedOut(err) && t.Context().Err() == nil { // another may hold the calendar for long: a settler comes again, too
					slots, err = store.Session{Conn: conn}.Reserve(t.Context(), wanting)
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for i, got := range slots {
					job := wanting[i]
					scope := "all"
					if job.Kind != "k2" {
						scope = job.Kind
					} else if job.Queue == "q0" {
						scope = job.Queue
					}
					dues[scope] = append(dues[scope], time.UnixMicro(got.DueUS))
				}
				mu.Unlock()
			}
		})
	}
	processes.Wait()
	for scope, times := range dues {
		if n := fullest(times, time.Second); n > 40 {
			t.Errorf("%s: %d in one second", scope, n)
		}
	}
}

// A calendar's past goes; its future stays.
func TestOldSlotsAreDeleted(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s, runs := db.failing(t, 1, drover.SupervisorConfig{RetryBudget: drover.RetryBudget{Retries: 1000, Per: time.Second}})
	db.exec(t, `insert into drover_budget_slots (scope, retries, per_ms, burst, chunk) select 'all', 1000, 1000, 1, extract(epoch from now())::bigint + n from generate_series(-300, 300) n`)
	db.exec(t, `insert into drover_budget_slots (scope, retries, per_ms, burst, chunk) values ('queue:gone', 1, 1000, 1, 1)`)
	o := decided(runs[0], errBoom)
	o.End.Delay = time.Hour // a chunk that is not there yet
	s.settle(t, o)
	if n := value[int](t, db, `select count(*) from drover_budget_slots`); n < 300+30 || n > 300+100 {
		t.Errorf("%d chunks are left, want those from about a minute ago on", n)
	}
}
