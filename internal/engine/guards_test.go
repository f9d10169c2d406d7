package engine_test

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/harness"
)

// The cost of a job, in counts: they are the same on a busy machine. wal_test.go counts bytes of WAL and the share of HOT
// claims, plan_test.go the shapes of plans.

// Allocations are counted for the whole process, so that nothing may run next to this.
//
//nolint:paralleltest // see above
func TestAllocationsOfAJob(t *testing.T) {
	slow(t)
	db := newQuietDB(t)
	const jobs = 20_000
	fill := func() {
		db.exec(t, `insert into jobs (id, kind, args) select (select left(drover_ulid(), 10)) || lpad(n::text, 16, '0'), 'job', jsonb_build_object('n', n) from generate_series(1, $1) n`, jobs)
	}
	var ran atomic.Int64
	fill()
	sup := db.launch(t, drover.SupervisorConfig{
		Queues: []drover.Queue{{Concurrency: 200}}, CompletedRetention: drover.DeleteOnCompletion,
		Workers: []drover.Worker{drover.Handle(func(context.Context, *drover.Job, job) error { ran.Add(1); return nil }, drover.WorkerOpts{})},
	})
	empty := func() bool { return ran.Load() == jobs && value[bool](t, db, `select not exists (select from jobs)`) }
	eventually(t, empty) // statements are prepared, buffers have grown
	ran.Store(0)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fill()
	harness.EngineOf(sup.Supervisor).Claimer.Wake()
	eventually(t, empty)
	runtime.ReadMemStats(&after)
	perJob := float64(after.Mallocs-before.Mallocs) / jobs
	t.Logf("%.1f allocations, %d bytes a job", perJob, (after.TotalAlloc-before.TotalAlloc)/jobs)
	if perJob > 12 {
		t.Errorf("%.1f allocations a job, at most 12 are promised: go test -run %s -memprofile mem.out -memprofilerate 4096 tells where", perJob, t.Name())
	}
}

// trips counts round trips and the statements in them, except statements that only frame transactions.
type trips struct {
	*harness.Statements
	n atomic.Int64
}

func (c *trips) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	c.n.Add(1)
	return ctx
}

// Claims and settles grow with the load.
func TestStatementsUnderLoad(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	const jobs = 20_000
	db.exec(t, `insert into jobs (id, kind, args) select (select left(drover_ulid(), 10)) || lpad(n::text, 16, '0'), 'job', jsonb_build_object('n', n) from generate_series(1, $1) n`, jobs)
	counted := trips{Statements: harness.NewStatements()}
	traced := db.via(t, drover.Config{}, func(c *pgxpool.Config) { c.ConnConfig.Tracer = &counted })
	traced.launch(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 200}}})
	db.waitFor(t, time.Minute, `select count(*) = 0 from jobs where finalized_at is null`)
	perThousand := func(n int64) float64 { return float64(n) * 1000 / jobs }
	calls, _ := counted.Since()
	sent := 0
	for _, n := range calls {
		sent += n
	}
	statements, trips := perThousand(int64(sent)), perThousand(counted.n.Load())
	t.Logf("%.1f statements in %.1f round trips for 1,000 jobs", statements, trips)
	if statements > 10 || trips > 10 {
		t.Errorf("%.1f statements in %.1f round trips for 1,000 jobs, at most 10 are promised", statements, trips)
	}
}

// claimCost is how many buffers the supervisor's next claim would touch, with its floors or from the left edge.
func (p *planner) claimCost(t testing.TB, s *still, floors bool) (buffers int) {
	t.Helper()
	st := theStatements(s, []string{"none"})[0]
	if !floors {
		clear(st.args[9].([]time.Time))
		clear(st.args[10].([]string))
	}
	for range 2 { // the second has behind it what is read once
		buffers = harness.BuffersIn(t, p.explain(t, st, "analyze, buffers, timing off"))
	}
	return buffers
}

// E-7: a job that waits for later, has ended, is for others or is dead does not stand in the way of a claim. The
// measure is a claim from a queue that has none of it, in the same table: its indexes are as deep.
func TestCostOfAClaim(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.exec(t, `alter table jobs set (autovacuum_enabled = off)`)
	db.exec(t, `alter table jobs set unlogged`) // is filled sooner
	n := sizeOf(t, "DROVER_CLAIM_ROWS", 50_000) // with 1000000 it takes a minute, and every claim the same
	full := db.stopped(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 1000}}})
	clean := db.stopped(t, drover.SupervisorConfig{Queues: []drover.Queue{{Name: "clean", Concurrency: 1000}}})
	p := db.planner(t)
	t.Logf("%4d buffers: an idle claim on an empty table", p.claimCost(t, full, true))
	check := func(what string, most float64) {
		t.Helper()
		full.claim(t) // floors move
		clean.claim(t)
		cost, bare := p.claimCost(t, full, true), p.claimCost(t, clean, true)
		t.Logf("%4d buffers: an idle claim %s; %d from a queue without", cost, what, bare)
		if float64(cost) > most*float64(bare) {
			t.Errorf("%d buffers for an idle claim %s, more than %.1f × the %d of one from a queue without", cost, what, most, bare)
		}
	}
	// Ids are made here: drover_ulid() would take most of the time.
	db.exec(t, `insert into jobs (id, kind, priority, state, scheduled_at)
		select 'f' || lpad(n::text, 25, '0'), 'job', 1 + n % 9, 'scheduled', now() + interval '1 h' + n * interval '1 s' from generate_series(1, $1) n`, 3*n/10)
	db.exec(t, `insert into jobs (id, kind, priority, state, finalized_at)
		select 'e' || lpad(n::text, 25, '0'), 'job', 1 + n % 9, 'completed', now() from generate_series(1, $1) n`, 15*n/100)
	check("among future and finished rows", 1.3)
	db.exec(t, `insert into jobs (id, kind, priority, scheduled_at)
		select 'u' || lpad(n::text, 25, '0'), 'unknown', 1 + n % 9, now() - interval '1 min' - n * interval '1 ms' from generate_series(1, $1) n`, n)
	check("beside rows of an unknown kind", 2)

	db.Hold(t, snapshot)
	db.exec(t, `delete from jobs where kind = 'unknown'`)
	check("beside dead rows", 1.3)
	if cost := p.claimCost(t, full, false); cost < n/10 {
		t.Errorf("%d buffers without floors: there are no dead rows in the way, and all this proves nothing", cost)
	} else {
		t.Logf("%4d buffers: the same without floors", cost)
	}
	db.exec(t, `insert into jobs (kind, queue, scheduled_at) select 'job', q, now() from generate_series(1, 100), unnest(array['default', 'clean']) q`)
	cost, bare := p.claimCost(t, full, true), p.claimCost(t, clean, true)
	t.Logf("%4d buffers: a claim of 100 jobs beside all this; %d from a queue without", cost, bare)
	if float64(cost) > 1.3*float64(bare) {
		t.Errorf("%d buffers for a claim of 100 jobs, more than 1.3 × the %d of one from a queue without such rows", cost, bare)
	}
}

// dead rows and finished ones do not stand in the way of a heartbeat, whatever the statistics say. One that
// reads them all comes too late, and the handlers' jobs are taken for abandoned.
func TestCostOfAHeartbeat(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.exec(t, `alter table jobs set (autovacuum_enabled = off)`)
	s := db.stopped(t, drover.SupervisorConfig{})
	var beat planned
	for _, st := range theStatements(s, []string{"none"}) {
		if st.name == "heartbeat" {
			beat = st
		}
	}
	cost := func(mode string) int {
		p := db.planner(t)
		if _, err := p.Exec(t.Context(), `set plan_cache_mode = `+mode); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			p.explain(t, beat, "analyze, buffers, timing off")
		}
		return harness.BuffersIn(t, p.explain(t, beat, "analyze, buffers, timing off"))
	}
	bare := cost("force_custom_plan")
	db.Hold(t, snapshot)
	db.exec(t, `insert into jobs (id, kind) select 'f' || lpad(n::text, 25, '0'), 'job' from generate_series(1, 20000) n`)
	db.exec(t, `update jobs set state = 'running', claimed_by = 'x', attempt = 1, claim_seq = 1`)
	db.exec(t, `update jobs set state = 'completed', claimed_by = null, finalized_at = now()`)
	// A job that an operator discarded while a policy had it parked stays, and shows still what it waited for.
	db.exec(t, `insert into jobs (id, kind, state, scheduled_at, finalized_at, discard_reason, parked_build)
		select 'p' || lpad(n::text, 25, '0'), 'job', 'discarded', 'infinity', now(), 'operator', 'v1' from generate_series(1, 20000) n`)
	for _, when := range []string{"", "analyze jobs"} {
		db.exec(t, when)
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			got := cost(mode)
			t.Logf("%d buffers for a heartbeat beside dead rows, %d without (%q, %s)", got, bare, when, mode)
			if got > bare+50 {
				t.Error("too many")
			}
		}
	}
}
