package engine_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/floors"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// planned is a statement of the queue's with arguments as the library sends them.
type planned struct {
	name, sql string
	args      []any
	sorts     bool // may sort: a handful of ids
	rows      int  // it touches at most
}

// planClaim is when the jobs were claimed that theStatements are for.
func planClaim() time.Time { return time.Unix(1e9, 0) }

// theStatements are the statements that read or write jobs on a supervisor's connections.
func theStatements(s *still, ids []string) []planned {
	groups := s.QueueStates()[0].Groups(100)
	req := s.Claimer.Lanes(s.Lease.Load(), groups, floors.Sweep{}, nil)
	req.Rooms, req.NextDue = []int32{100}, true
	changes := make([]store.Change, len(ids))
	for i, id := range ids {
		r := &engine.Run{
			Fence: store.Fence{ID: id, Owner: req.Supervisor, Seq: 1, ClaimedAt: planClaim()}, Kind: "job", Queue: "default", Attempt: 1,
			End: engine.Outcome{State: store.Retryable, Delay: time.Minute, Class: string(drover.ClassError), Fingerprint: "00c0ffee00c0ffee", Entry: []byte(`{"class":"error","error":"no","fingerprint":"00c0ffee00c0ffee"}`)},
		}
		changes[i] = r.End.Change(r)
	}
	inTx, _ := json.Marshal(changes[0]) // strings and ints only: cannot fail
	at, ones := slices.Repeat([]time.Time{planClaim()}, len(ids)), slices.Repeat([]int32{1}, len(ids))
	sweep := s.Claimer.AllLanes()
	queues := make([]string, len(sweep.Lanes))
	for i := range queues {
		queues[i] = "default"
	}
	return []planned{
		{"claim", store.SQLClaim, req.Args(), false, 100},
		{"start", store.SQLStart, []any{ids, ones, req.Supervisor, at}, true, len(ids)},
		{"complete", store.SQLComplete, []any{ids, 1, req.Supervisor, ones, at[:1]}, true, len(ids)},
		{"complete and delete", store.SQLCompleteDelete, []any{ids, 1, req.Supervisor, ones, at[:1]}, true, len(ids)},
		{"settle", store.SQLSettle, store.SettleArgs(req.Supervisor, changes), true, len(ids)},
		{"settle in a transaction", store.SQLSettleTx, []any{req.Supervisor, string(inTx)}, true, 1},
		{"look", store.SQLLook, []any{ids}, true, len(ids)},
		{"hunt", store.SQLScan, []any{"nobody", queues, sweep.Lanes, sweep.FloorAt, sweep.FloorID, store.HuntPage, false, false, []string{store.PathRescue}}, true, 0},
		{"heartbeat", store.SQLBeat, []any{req.Supervisor, 1, ids, false, queues[:1], []int16{floors.TierStrong}, []string{"job"}}, true, 0},
		{"sweep", store.SQLSweep, []any{queues, sweep.Lanes, sweep.FloorAt, sweep.FloorID, []string{"job"}}, true, 0},
		{"hunt for orphans", store.SQLScan, []any{"", queues, sweep.Lanes, sweep.FloorAt, sweep.FloorID, store.HuntPage, false, false, []string{store.PathRescue}}, true, 0},
		{"gone", store.SQLGone, []any{req.Supervisor, ids, at}, true, len(ids)},
		{"complete in a transaction", store.SQLCompleteTx, []any{ids[0], 1, "nobody", at[0]}, false, 1},
		{"delete in a transaction", store.SQLCompleteDeleteTx, []any{ids[0], 1, "nobody", at[0]}, false, 1},
		{"hold in a transaction", store.SQLHoldTx, []any{ids[0], 1, "nobody", at[0]}, false, 1},
		{"still held in a transaction", store.SQLStillOursTx, []any{ids[0], 1, "nobody", at[0]}, false, 1},
	}
}

// check fails the test where a plan reads the whole table, the claim sorts, or each row is compared with every claim.
func (p *planner) check(t testing.TB, st planned, when string) {
	t.Helper()
	plan := p.explain(t, st, "costs off")
	if regexp.MustCompile(`Seq Scan on (jobs|failure_)`).MatchString(plan) || !regexp.MustCompile(`jobs_(claim_idx|pkey)`).MatchString(plan) ||
		!st.sorts && strings.Contains(plan, "Sort") || strings.Contains(st.sql, ") is true") && !strings.Contains(plan, "hashed SubPlan") {
		t.Errorf("%s, %s:\n%s", st.name, when, plan)
	}
}

// X-3, B75: one sane plan, whatever the statistics say and however the statement was planned.
func TestPlans(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	ids := []string{"01K00000000000000000000000", "01K00000000000000000000001"}
	check := func(when string) {
		t.Helper()
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			p := db.planner(t)
			if _, err := p.Exec(t.Context(), "set plan_cache_mode = "+mode); err != nil {
				t.Fatal(err)
			}
			for _, st := range theStatements(s, ids) {
				p.check(t, st, when+", "+mode)
			}
		}
		db.checkPrune(t, when)
	}
	db.exec(t, `alter table jobs set (autovacuum_enabled = off)`)
	db.exec(t, `insert into drover_failure_groups (fingerprint, kind, class, first_seen, last_seen, count, jobs, last_job)
		select lpad(to_hex(n), 16, '0'), 'job', 'error', now(), now(), 1, 1, '' from generate_series(1, 10000) n`)
	check("no statistics")
	db.exec(t, `analyze jobs`)
	check("analyzed empty")
	db.Fill(t, harness.RowsForPlans(t))
	check("filled since")
	db.exec(t, `analyze jobs`)
	check("analyzed full")
	db.exec(t, `update jobs set state = 'completed', finalized_at = now()`)
	db.exec(t, `analyze jobs`)
	check("analyzed with nothing but completed jobs")
}

// C5: a hunt checks each running job against a list of thousands.
func TestTheHuntHashesItsLists(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	check := func(when string) {
		t.Helper()
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			p := db.planner(t)
			if _, err := p.Exec(t.Context(), "set plan_cache_mode = "+mode); err != nil {
				t.Fatal(err)
			}
			for _, st := range theStatements(s, []string{"01K00000000000000000000000"}) {
				if st.sql != store.SQLScan {
					continue
				}
				plan := p.explain(t, st, "verbose, costs off")
				subplan, hashed, searched := "", 0, 0
				for line := range strings.Lines(plan) {
					if found := regexp.MustCompile(`^\s*(SubPlan \d+)$`).FindStringSubmatch(strings.TrimRight(line, "\n")); found != nil {
						subplan = found[1]
					}
					for _, list := range []string{`unnest\(o(_\d+)?\.in_flight\)`, `Output: a(_\d+)?\.job`} {
						switch {
						case subplan == "" || !regexp.MustCompile(list).MatchString(line):
						case strings.Contains(plan, "(hashed "+subplan+")"):
							hashed++
						default:
							searched++
						}
					}
				}
				if hashed < 2 || searched > 0 || strings.Contains(plan, "ANY (s.in_flight)") {
					t.Errorf("%s, %s, %s: %d lists are hashed, %d searched:\n%s", st.name, when, mode, hashed, searched, plan)
				}
			}
		}
	}
	check("no statistics")
	db.exec(t, `insert into drover_supervisors (id, lease_ms, queues, in_flight) select 's' || n, 1000, '{default}', array(select drover_ulid() from generate_series(1, 2000)) from generate_series(1, 20) n`)
	db.exec(t, `insert into drover_set_aside (path, job, error, code, retry_at) select 'rescue', n::text, '', '', now() from generate_series(1, 5000) n`)
	db.Fill(t, 5000)
	check("filled since")
	db.exec(t, `analyze jobs`)
	db.exec(t, `analyze drover_supervisors`)
	db.exec(t, `analyze drover_set_aside`)
	check("analyzed")
}

// checkPrune sees whether the functions of the pruner, whose plans plpgsql keeps, ever read the whole table.
func (db *testDB) checkPrune(t testing.TB, when string) {
	t.Helper()
	conn := db.planner(t)
	for _, call := range slices.Repeat([]string{
		`select last from drover_retain('', '1 h', '1 h', 1000)`,
		`select last from drover_delete_many('{"state": "completed", "finalized_before": "2000-01-01"}', confirm => 'delete')`,
	}, 8) {
		err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), pg.OnePlan); err != nil {
				return err
			}
			if _, err := tx.Exec(t.Context(), call); err != nil {
				return err
			}
			var scans int
			err := tx.QueryRow(t.Context(), `select pg_stat_get_xact_numscans('jobs'::regclass)`).Scan(&scans)
			if scans > 0 {
				t.Errorf("%s, %s: %d scans of the whole table", call, when, scans)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A plan that was made and kept while the table was empty must not read all of it once it is full: that was a thousand
// scans in one settle.
func TestPlansMadeOnAnEmptyTableStayCheap(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	db.exec(t, `alter table jobs set (autovacuum_enabled = off)`)
	p := db.planner(t)
	var ids []string
	for i := range 100 {
		ids = append(ids, fmt.Sprintf("01K%023d", i))
	}
	for range 10 {
		for _, st := range theStatements(s, ids) {
			p.explain(t, st, "analyze, buffers")
		}
	}
	db.Fill(t, max(50_000, harness.RowsForPlans(t)))
	owner := s.Lease.Load().ID
	db.exec(t, `update jobs set state = 'running', claimed_by = $1, claim_seq = 1, attempt = 1, attempted_at = $2
		where id in (select id from jobs order by id limit 100)`, owner, planClaim())
	rows, err := db.Query(t.Context(), `select id from jobs where claimed_by = $1`, owner)
	if err != nil {
		t.Fatal(err)
	}
	if ids, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
		t.Fatal(err)
	}
	for _, st := range theStatements(s, ids) {
		if st.rows == 0 {
			continue // these read all due jobs by their nature
		}
		plan := p.explain(t, st, "analyze, buffers, timing off")
		if buffers, most := harness.BuffersIn(t, plan), 60+40*st.rows; buffers > most {
			t.Errorf("%s: %d buffers for %d rows:\n%s", st.name, buffers, st.rows, plan)
		}
	}
}

// D-2: dead letters are listed, counted, summed up and picked from their own indexes, whatever the statistics say: few
// of them among many finished jobs, and many. With DROVER_PLAN_ROWS=1000000 it shows the milliseconds too.
func TestPlansOfTheDead(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.exec(t, `alter table jobs set (autovacuum_enabled = off)`)
	n := harness.RowsForPlans(t)
	type bound struct {
		sql  string
		most int // buffers
	}
	pages := []bound{
		{`select * from drover_list('{"state": "discarded"}')`, 400},
		{`select * from drover_list('{"state": "discarded", "kind": "k3"}')`, 3000},
		{`select * from drover_list('{"reason": "panic", "error": "refused"}')`, 3000},
		{`select * from drover_list('{"state": "discarded", "fingerprint": "f7"}')`, 4000},
		{`select * from drover_list('{"reason": "panic", "queue": "q2", "kind": "k7", "class": "error", "fingerprint": "f7"}')`, 3000},
		{`select * from drover_delete_many('{"state": "discarded", "kind": "k3"}', 'delete', batch => 50)`, 5000},
		{`select * from drover_cancel_many('{"kind": "k3"}', batch => 50)`, 3000},
	}
	all := []bound{
		{`select drover_count('{"state": "discarded"}')`, 2 * n},
		{`select drover_count('{"state": "discarded", "kind": "k3"}')`, n},
		{`select * from discarded_summary`, 2 * n},
	}
	check := func(when string, bounds ...bound) {
		t.Helper()
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			p := db.planner(t)
			if _, err := p.Exec(t.Context(), "set plan_cache_mode = "+mode); err != nil {
				t.Fatal(err)
			}
			for _, b := range bounds {
				began := time.Now()
				buffers, scans := p.BuffersOf(t, b.sql)
				if scans > 0 || buffers > b.most {
					t.Errorf("%s, %s, %s: %d buffers (at most %d), %d scans of the table", b.sql, when, mode, buffers, b.most, scans)
				}
				if n >= 1_000_000 {
					t.Logf("%s, %s: %d buffers, %v", b.sql, when, buffers, time.Since(began)/2)
				}
			}
		}
	}
	// The jobs that came after the statistics have ended after the jobs of the statistics, however fast the machine is.
	fill := func(n int, ago string) {
		db.exec(t, `
insert into jobs (kind, queue, state, finalized_at, discard_reason, class, fingerprint, errors)
select 'k' || n % 20, 'q' || n % 5, 'discarded', now() - $2::interval - n * interval '1 ms', (array['attempts_exhausted', 'panic', 'unrecoverable'])[1 + n % 3],
	case when n % 50 > 0 then 'error' end, case when n % 50 > 0 then 'f' || n % 40 end,
	jsonb_build_array(jsonb_build_object('class', 'error', 'error', 'connection refused ' || n)) from generate_series(1, $1) n`, n, ago)
	}
	check("no statistics", pages...)
	db.exec(t, `analyze jobs`)
	check("analyzed empty", pages...)
	db.exec(t, `insert into jobs (kind, queue, state, finalized_at, class) select 'k' || n % 20, 'q' || n % 5, 'completed', now() - interval '1 h', 'error' from generate_series(1, $1) n`, n)
	fill(100, "1 h")
	few := make([]bound, 0, len(pages)+len(all))
	for _, b := range append(pages[:6:6], all...) {
		few = append(few, bound{b.sql, 1500})
	}
	check("a hundred among finished ones, no statistics", few...)
	db.exec(t, `vacuum analyze jobs`)
	check("a hundred among finished ones", few...)
	db.exec(t, `delete from jobs where state = 'completed'`)
	fill(n, "0")
	check("many, statistics of before", pages...)
	db.exec(t, `vacuum analyze jobs`)
	check("many", append(pages, all...)...)
}

// the look for schedules that are due, and the heartbeat's look for the next tick, read by drover_periodic_next_idx
// however many schedules there are, whatever the statistics say. 10,000 schedules are due or come later.
func TestPlansOfTheLookForSchedules(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.exec(t, `alter table drover_periodic set (autovacuum_enabled = off)`)
	due := planned{"due", store.SQLPeriodicDue, []any{"somebody", []string{}, engine.TicksAtOnce}, false, 0}
	beat := planned{"beat", store.SQLBeat, []any{"somebody", 1, []string{}, false, []string{"default"}, []int16{floors.TierStrong}, []string{"job"}}, false, 0}
	check := func(when string) {
		t.Helper()
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			p := db.planner(t)
			if _, err := p.Exec(t.Context(), "set plan_cache_mode = "+mode); err != nil {
				t.Fatal(err)
			}
			for _, st := range []planned{due, beat} {
				plan := p.explain(t, st, "costs off")
				if !strings.Contains(plan, "drover_periodic_next_idx") || strings.Contains(plan, "Seq Scan on drover_periodic") || st.name == "due" && strings.Contains(plan, "Sort") {
					t.Errorf("%s, %s, %s:\n%s", st.name, when, mode, plan)
				}
			}
		}
	}
	check("no statistics")
	db.exec(t, `analyze drover_periodic`)
	check("analyzed empty")
	db.exec(t, `insert into drover_periodic (name, kind, schedule, next_at) select n, 'k', '@daily', now() + (n - 5000) * interval '1 s' from generate_series(1, 10000) as n`)
	check("filled since")
	db.exec(t, `analyze drover_periodic`)
	check("analyzed full")
	p := db.planner(t)
	for _, st := range []planned{due} {
		plan := p.explain(t, st, "analyze, buffers, costs off, timing off, summary off")
		if n := regexp.MustCompile(`^\w+ .*\n.*\s+Buffers: shared hit=(\d+)`).FindStringSubmatch(plan); n == nil {
			t.Errorf("no buffers in\n%s", plan)
		} else if read, _ := strconv.Atoi(n[1]); read > 250 {
			t.Errorf("a look at 100 of 10,000 schedules reads %d buffers:\n%s", read, plan)
		}
	}
}
