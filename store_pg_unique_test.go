package drover

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// the look by key uses the index, whatever the statistics say and however the statement
// was planned.
func TestPlansOfUniqueEnqueues(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.exec(t, `alter table jobs set (autovacuum_enabled = off)`)
	args := json.RawMessage(`{"n": 7}`)
	direct := planned{name: "unique", sql: sqlEnqueueUniquePlain, args: append([]any{"01K00000000000000000000000", "job", string(args), "default", 5}, (&uniqueness{By: []string{"n"}}).plain(args)...)}
	check := func(when string) {
		t.Helper()
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			p := db.planner(t)
			if _, err := p.Exec(t.Context(), "set plan_cache_mode = "+mode+"; set enable_seqscan = off"); err != nil {
				t.Fatal(err)
			}
			if plan := p.explain(t, direct, "costs off"); !strings.Contains(plan, "using jobs_unique_idx") || !strings.Contains(plan, "Index Cond: (unique_key = ") || strings.Contains(plan, "Seq Scan on jobs") {
				t.Errorf("%s, %s:\n%s", when, mode, plan)
			}
			for _, call := range []string{
				`select drover_enqueue_unique('{"id": "01K00000000000000000000001", "kind": "job", "args": {"n": 1000001}, "uniqueness": {}}')`,
				`select drover_enqueue_unique('[{"id": "01K00000000000000000000002", "kind": "job", "args": {"n": 1000001}, "uniqueness": {}}, {"id": "01K00000000000000000000003", "kind": "job", "args": {"n": -1}, "uniqueness": {}}]')`,
				`select drover_unique_owner('01K00000000000000000000000')`,
			} {
				p.buffersOf(t, call) // reads the catalogs
				if buffers, scans := p.buffersOf(t, call); scans > 0 || buffers > 200 {
					t.Errorf("%s, %s, %s: %d buffers, %d scans of the table", call, when, mode, buffers, scans)
				}
			}
		}
	}
	check("no statistics")
	db.exec(t, `analyze jobs`)
	check("analyzed empty")
	db.exec(t, `insert into jobs (kind, args, unique_key, unique_scope, unique_until) select 'job', jsonb_build_object('n', i), format('"job" {"n": %s}', i), 'ended', 'infinity'
		from generate_series(1000000, 1000000 + $1) i`, rowsForPlans(t))
	check("filled since")
	db.exec(t, `analyze jobs`)
	check("analyzed full")
	db.exec(t, `update jobs set state = 'completed', finalized_at = now()`)
	db.exec(t, `analyze jobs`)
	check("analyzed with nothing but completed jobs")
}

// Claims of jobs that are unique until they have ended are HOT, like the claims of all other jobs
// (TestClaimsAreHOT).
func TestClaimsOfUniqueJobsAreHOT(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `alter table jobs set (autovacuum_enabled = off)`)
	db.exec(t, `select drover_enqueue_unique((select jsonb_agg(jsonb_build_object('id', drover_ulid(), 'kind', 'job', 'args', jsonb_build_object('n', n), 'uniqueness', '{}'::jsonb)) from generate_series(1, 1000) n))`)
	s := db.stopped(t, SupervisorConfig{Queues: []Queue{{Concurrency: 10_000}}})
	n := 0
	for n < 1000 {
		n += len(s.claim(t))
	}
	if got := db.hot(t, s); got < 0.99 {
		t.Errorf("%.1f %% of the claims were HOT", 100*got)
	}
}

// An enqueue of a unique job reads a few pages by its key, whatever is in the table and whatever
// the statistics say.
func TestUniqueEnqueuesReadFewPages(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.exec(t, `alter table jobs set unlogged`)
	fill := func(n int) {
		db.exec(t, `insert into jobs (kind, args, unique_key, unique_scope, unique_until) select 'job', jsonb_build_object('n', i),
			format('"job" {"n": %s}', i), 'ended', 'infinity' from generate_series(1000000, 1000000 + $1) i`, n)
	}
	tx, err := db.Begin(t.Context()) // one session, so that its plans are from when the table was empty
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	cost := func(n int) int {
		t.Helper()
		rows, err := tx.Query(t.Context(), `explain (analyze, buffers, timing off) select drover_enqueue_unique(jsonb_build_object('id', drover_ulid(), 'kind', 'job',
			'args', jsonb_build_object('n', `+fmt.Sprint(n)+`), 'uniqueness', '{}'::jsonb))`)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return buffersIn(t, strings.Join(plan, "\n"))
	}
	for n := range 10 {
		cost(n)
	}
	fill(30_000)
	for _, n := range []int{20, 1_010_000} { // the first job is stored, the second one is there
		least := cost(n) // reads the catalogs, and again whenever other tests have made many tables meanwhile
		for i := range 10 {
			least = min(least, cost(n+1+i))
		}
		if least > 150 {
			t.Errorf("%d: %d buffers of a table of 30,000 jobs", n, least)
		}
	}
}

// a unique job without other options takes no function, and a second round trip only if
// another job is there. Then no supervisor is woken.
func TestPlainUniqueJobsTakeNoFunction(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	sent := newStatements()
	as := db.via(t, Config{}, func(config *pgxpool.Config) { config.ConnConfig.Tracer = sent })
	direct := []string{sqlEnqueueUniquePlan, sqlEnqueueUniquePlain, sqlWakeForUnique}
	for _, c := range []struct {
		name  string
		args  parcel
		opts  EnqueueOpts
		want  []string
		wakes bool
	}{
		{"the first one", parcel{N: 1}, EnqueueOpts{}, direct, true},
		{"another one is there", parcel{N: 1}, EnqueueOpts{}, slices.Concat(direct, []string{sqlEnqueueUnique}), false},
		{"with another option", parcel{N: 2}, EnqueueOpts{MaxAttempts: 2}, []string{sqlEnqueueUnique, sqlWakeNow}, true},
		{"long args", parcel{N: 3, To: strings.Repeat("x", 600)}, EnqueueOpts{}, []string{sqlEnqueueUnique, sqlWakeNow}, true},
	} {
		told := woken(t, db, func() {
			_, _ = as.Exec(t.Context(), "select") // a connection is there
			sent.since()
			as.unique(t, c.args, Unique{}, c.opts)
		})
		calls, _ := sent.since()
		if got := slices.Sorted(maps.Keys(calls)); !slices.Equal(got, slices.Sorted(slices.Values(c.want))) || told != c.wakes {
			t.Errorf("%s: sent %q, woken %v; want %q, %v", c.name, got, told, c.want, c.wakes)
		}
	}
}
