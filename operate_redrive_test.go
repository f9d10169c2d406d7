package drover_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/oklog/ulid/v2"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// virtual runs redrives on a clock that the test sets: no supervisor, no waiting.
type virtual struct {
	*testDB
	at time.Time
}

func newVirtual(t *testing.T) *virtual {
	t.Helper()
	db := newTestDB(t)
	return &virtual{db, value[time.Time](t, db, `select clock_timestamp()`)}
}

// pass lets time pass and gives the next slots.
func (v *virtual) pass(t testing.TB, d time.Duration) (released int) {
	t.Helper()
	v.at = v.at.Add(d)
	return value[int](t, v.testDB, `select released from drover_pace($1)`, v.at)
}

// work starts and ends the jobs that are due, and returns how many there were.
func (v *virtual) work(t testing.TB) int {
	t.Helper()
	return v.Work(t, v.at)
}

func TestBusiest(t *testing.T) {
	t.Parallel()
	var at []time.Time
	for i := range 101 {
		at = append(at, time.Unix(0, int64(i)*int64(20*time.Millisecond)))
	}
	if n := harness.Busiest(at, time.Second); n != 51 {
		t.Error(n)
	}
	if n := harness.Busiest(append(at, at[50]), time.Second); n != 52 {
		t.Error(n)
	}
}

// D-5: many dead jobs are redriven at 50/s. In no second more than 51 become due, although two ticks roll back and for
// a while no worker runs. Each job comes back once. DROVER_REDRIVE_JOBS=45000 runs the test at full size, in which no
// worker runs for five minutes.
func TestRedriveIsPaced(t *testing.T) {
	t.Parallel()
	slow(t)
	v := newVirtual(t)
	n := sizeOf(t, "DROVER_REDRIVE_JOBS", 4_500)
	tick := func(of45000 int) int { return of45000 * n / 45_000 }
	v.Bury(t, n, 7)
	began := time.Now()
	r, err := v.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{Kind: "job"}}, drover.Audit{Why: "the bank is back"})
	if err != nil || r.State != drover.RedriveRunning || r.Matched != int64(n) {
		t.Fatalf("%+v, %v", r, err)
	}
	t.Logf("marked in %v", time.Since(began))
	var due, starts []time.Time
	away, died := 0, 0
	ticks := 0
	for ; r.State == drover.RedriveRunning && ticks < 10_000; ticks++ {
		switch {
		case ticks == tick(300) || ticks == tick(2500): // the ticking process dies before the commit
			tx, err := v.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), `select drover_pace($1)`, v.at.Add(time.Second/4)); err != nil {
				t.Fatal(err)
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			died++
		case ticks >= tick(1000) && ticks < tick(2200): // no workers for a while: of 45,000, for five minutes
			away += v.pass(t, time.Second/4)
			continue
		}
		v.pass(t, time.Second/4)
		for range v.work(t) {
			starts = append(starts, v.at)
		}
		if ticks%500 == 0 || ticks > tick(4500) {
			if r, err = v.client.Redrive(t.Context(), r.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	if r.State != drover.RedriveDone || r.Released != int64(n) || died != 2 {
		t.Fatalf("after %d ticks %+v", ticks, r)
	}
	v.at = v.at.Add(time.Second)
	v.work(t)
	if away > 100 {
		t.Errorf("%d jobs were released while nobody worked", away)
	}
	rows, err := v.Query(t.Context(), `select scheduled_at from jobs where state = 'completed' and redrives = 1 and attempt = 1 and jsonb_array_length(errors) = 2`)
	if err != nil {
		t.Fatal(err)
	}
	if due, err = pgx.CollectRows(rows, pgx.RowTo[time.Time]); err != nil || len(due) != n {
		t.Fatalf("%d jobs came back once, %v", len(due), err)
	}
	if n := harness.Busiest(due, time.Second); n > 51 {
		t.Errorf("%d jobs due within a second", n)
	}
	// Only one job is overdue when the workers come back, not all.
	if n := harness.Busiest(starts, 999*time.Millisecond); n > 51+13 { // the test knows the starts only to a quarter of a second
		t.Errorf("%d jobs started within a second", n)
	}
}

// D-5, B-3: no more jobs of one key than PerKey are released and not yet ended, also when half of the jobs fail
// and wait for a retry.
func TestRedriveCapsKeys(t *testing.T) {
	t.Parallel()
	for name, plan := range map[string]drover.RedrivePlan{
		"concurrency key": {PerKey: 5}, "from args": {PerKey: 5, KeyFrom: "customer.id"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newVirtual(t)
			v.Bury(t, 300, 3)
			plan.Filter, plan.Rate = drover.Filter{All: true}, 1000
			r, err := v.client.StartRedrive(t.Context(), plan, drover.Audit{})
			if err != nil {
				t.Fatal(err)
			}
			rounds := 0
			for ; r.State == drover.RedriveRunning && rounds < 500; rounds++ {
				v.pass(t, time.Second/4)
				out := value[int](t, v.testDB, `select coalesce(max(n), 0) from (
					select count(*) as n from jobs where finalized_at is null and state <> 'parked' group by concurrency_key) k`)
				if out > 5 {
					t.Fatalf("%d jobs of one key are out", out)
				}
				v.exec(t, harness.VirtualStart, v.at)
				// Half of them fail, recorded as a settle records it.
				v.fail(t, `attempt = 1 and (args->>'n')::int % 2 = 0`)
				v.exec(t, harness.VirtualEnd, v.at)
				if r, err = v.client.Redrive(t.Context(), r.ID); err != nil {
					t.Fatal(err)
				}
			}
			if n := value[int](t, v.testDB, `select count(*) from jobs where state = 'completed' and redrives = 1`); r.State != drover.RedriveDone || n != 300 {
				t.Errorf("%d jobs completed in %d rounds, %+v", n, rounds, r)
			}
			if n := value[int](t, v.testDB, `select count(*) from jobs where attempt = 2`); n != 150 {
				t.Errorf("%d jobs ran twice, want 150", n)
			}
		})
	}
}

// fail ends the running jobs that match, as a settle of failed runs does: they are retried in a second.
func (v *virtual) fail(t testing.TB, fit string) {
	t.Helper()
	rows, err := v.Query(t.Context(), `select id, claim_seq, coalesce(attempted_at, '0001-01-01 00:00:00Z') from jobs where state = 'running' and `+fit)
	if err != nil {
		t.Fatal(err)
	}
	changes, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (store.Change, error) {
		r := &engine.Run{End: engine.Outcome{State: store.Retryable, Delay: time.Second, Class: string(drover.ClassError), Entry: json.RawMessage(`{"class": "error", "error": "again"}`)}}
		err := row.Scan(&r.ID, &r.Seq, &r.ClaimedAt)
		return r.End.Change(r), err
	})
	if err != nil {
		t.Fatal(err)
	}
	v.exec(t, store.SQLSettle, store.SettleArgs("w", changes)...)
}

// D-5: redrives of one queue share its slots, and none takes another's jobs.
func TestRedrivesShareSlots(t *testing.T) {
	t.Parallel()
	v := newVirtual(t)
	v.Bury(t, 600, 2)
	var all []*drover.Redrive
	for _, filter := range []drover.Filter{{Fingerprint: "f0"}, {Fingerprint: "f1"}, {All: true}} {
		r, err := v.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: filter, Rate: 100}, drover.Audit{})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	if last := all[2]; all[0].Matched != 300 || all[1].Matched != 300 || last.Matched != 0 || last.Skipped != 600 || len(last.Skips) != 600 ||
		last.Skips[0].Why != "held by redrive "+all[1].ID && last.Skips[0].Why != "held by redrive "+all[0].ID {
		t.Fatalf("%+v", all)
	}
	for range 40 {
		v.pass(t, time.Second/4)
		v.work(t)
	}
	rows, err := v.Query(t.Context(), `select scheduled_at from jobs where state = 'completed' and redrives = 1`)
	if err != nil {
		t.Fatal(err)
	}
	due, err := pgx.CollectRows(rows, pgx.RowTo[time.Time])
	if err != nil || len(due) != 600 || harness.Busiest(due, time.Second) > 101 {
		t.Errorf("%d jobs, %d in a second, %v", len(due), harness.Busiest(due, time.Second), err)
	}
	if n := value[int](t, v.testDB, `select count(*) from drover_redrives where state = 'done' and finished_at is not null`); n != 3 {
		t.Errorf("%d redrives done", n)
	}
}

// D-6: the canaries go first; when they end well the rest follows, when they fail nothing does.
func TestRedriveCanary(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		failures, allowed int
		want              drover.RedriveState
	}{
		"well": {0, 0, drover.RedriveRunning}, "one ill": {1, 0, drover.RedriveAborted}, "one may be ill": {1, 1, drover.RedriveRunning}, "two ill": {2, 1, drover.RedriveAborted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newVirtual(t)
			v.Bury(t, 50, 2)
			r, err := v.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{All: true}, Canary: 5, CanaryFailures: c.allowed}, drover.Audit{})
			if err != nil || r.State != drover.RedriveCanary {
				t.Fatal(r, err)
			}
			v.pass(t, time.Second/4)
			v.pass(t, time.Second/4)
			if r, err = v.client.Redrive(t.Context(), r.ID); err != nil || r.State != drover.RedriveCanary || r.Released != 5 {
				t.Fatalf("before they ran: %+v, %v", r, err)
			}
			v.exec(t, harness.VirtualStart, v.at)
			v.fail(t, fmt.Sprintf(`id in (select id from jobs where state = 'running' order by id limit %d)`, c.failures))
			v.exec(t, harness.VirtualEnd, v.at)
			v.pass(t, time.Second/4)
			if r, err = v.client.Redrive(t.Context(), r.ID); err != nil || r.State != c.want {
				t.Fatalf("%+v, %v, want %s", r, err, c.want)
			}
			released := v.pass(t, time.Second/4)
			if c.want == drover.RedriveAborted {
				if r, err = v.client.Redrive(t.Context(), r.ID); err != nil {
					t.Fatal(err)
				}
				if !strings.Contains(r.Note, "canaries failed: again") || released != 0 {
					t.Errorf("%d released, %q", released, r.Note)
				}
				if n := value[int](t, v.testDB, `select count(*) from jobs where state = 'discarded' and paced_at is null`); n != 45 {
					t.Errorf("%d stayed dead and free", n)
				}
			} else if released == 0 {
				t.Error("the rest did not follow")
			}
		})
	}
}

// A redrive that matches no job leaves no row, with and without a supervisor's ticks. A redrive that skips all its jobs
// stays, because it lists why.
func TestRedrivesThatMatchNothingLeaveNoRow(t *testing.T) {
	t.Parallel()
	v := newVirtual(t)
	v.Bury(t, 3, 1)
	for name, plan := range map[string]drover.RedrivePlan{
		"by kind": {Filter: drover.Filter{Kind: "nobody"}}, "by error": {Filter: drover.Filter{Error: "no such text"}, Canary: 2, Rate: 7}, "parked": {Filter: drover.Filter{State: drover.Parked}},
		"with an id": {Filter: drover.Filter{Kind: "nobody"}, ID: "01KAJ4Y8Q3N6T0V5B7C9D1E2FG"}, "no ids": {Filter: drover.Filter{IDs: []string{}}},
	} {
		r, err := v.client.StartRedrive(t.Context(), plan, drover.Audit{By: "ann", Why: "why"})
		if err != nil || r.ID != "" || r.State != drover.RedriveDone || r.Matched != 0 || !reflect.DeepEqual(r.Filter, plan.Filter) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	v.exec(t, `select drover_redrive_start('{"filter": {"kind": "nobody"}}')`)
	v.pass(t, 0)
	if list := okay(v.client.Redrives(t.Context(), 0)); len(list) != 0 {
		t.Errorf("%+v", list)
	}
	v.exec(t, `update jobs set expires_at = now()`)
	r := okay(v.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{All: true}}, drover.Audit{}))
	v.pass(t, 0)
	if list := okay(v.client.Redrives(t.Context(), 0)); len(list) != 1 || list[0].ID != r.ID || r.Skipped != 3 || r.Matched != 0 {
		t.Errorf("%+v, %+v", list, r)
	}
}

// D-6: a canary that somebody has deleted counts as failed. A canary in the archive counts as it ended.
func TestRedriveCanariesThatAreGone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ends, goes string
		want       drover.RedriveState
		note       string
	}{
		"deleted after a failure":   {`select drover_discard($1)`, `select drover_delete_many(jsonb_build_object('ids', array[$1::text]), 'delete')`, drover.RedriveAborted, "1 of 1 canary failed: deleted"},
		"deleted while it waits":    {`select $1::text`, `delete from jobs where id = $1`, drover.RedriveAborted, "1 of 1 canary failed: deleted"},
		"archived after a failure":  {`select drover_discard($1)`, `select drover_archive(jsonb_build_object('ids', array[$1::text]))`, drover.RedriveAborted, "1 of 1 canary failed: ended"},
		"archived after completion": {`update jobs set state = 'completed', finalized_at = now() where id = $1`, `select drover_archive(jsonb_build_object('ids', array[$1::text]))`, drover.RedriveRunning, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newVirtual(t)
			v.Bury(t, 3, 1)
			r := okay(v.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{All: true}, Canary: 1}, drover.Audit{}))
			v.pass(t, time.Second/4)
			canary := value[string](t, v.testDB, `select id from jobs where finalized_at is null`)
			if err := v.client.PauseRedrive(t.Context(), r.ID, drover.Audit{}); err != nil {
				t.Fatal(err)
			}
			v.exec(t, c.ends, canary)
			v.exec(t, c.goes, canary)
			if n := value[int](t, v.testDB, `select count(*) from jobs`); n != 2 {
				t.Fatalf("%d jobs, want 2, because the canary has gone", n)
			}
			if err := v.client.ResumeRedrive(t.Context(), r.ID, drover.Audit{}); err != nil {
				t.Fatal(err)
			}
			v.pass(t, time.Second/4)
			if r = okay(v.client.Redrive(t.Context(), r.ID)); r.State != c.want || r.Note != c.note {
				t.Errorf("%s, %q, want %s, %q", r.State, r.Note, c.want, c.note)
			}
		})
	}
}

// D-4: a preview counts by kind and fingerprint and changes nothing. A limit takes the jobs that ended first.
func TestRedrivePreviewAndLimit(t *testing.T) {
	t.Parallel()
	v := newVirtual(t)
	v.Bury(t, 9, 2)
	v.exec(t, `update jobs set expires_at = now() - interval '1 minute' where args @> '{"n": 1}'`)
	plan := drover.RedrivePlan{Filter: drover.Filter{Kind: "job"}, Limit: 3}
	groups, err := v.client.PreviewRedrive(t.Context(), plan)
	want := []drover.RedriveGroup{
		{"default", "job", drover.ReasonAttemptsExhausted, "f0", 2, 0, 0, 0, "down"}, {"default", "job", drover.ReasonAttemptsExhausted, "f1", 2, 1, 0, 0, "down"},
	}
	if err != nil || !reflect.DeepEqual(groups, want) {
		t.Fatalf("%+v, %v", groups, err)
	}
	groups, err = v.client.PreviewRedrive(t.Context(), drover.RedrivePlan{Filter: plan.Filter})
	want[0].Jobs, want[1].Jobs = 4, 5
	if slices.Reverse(want); err != nil || !reflect.DeepEqual(groups, want) {
		t.Fatalf("without a limit: %+v, %v", groups, err)
	}
	if n := value[int](t, v.testDB, `select count(*) from jobs where redrive_id is not null`) + value[int](t, v.testDB, `select count(*) from drover_redrives`); n != 0 {
		t.Error("a preview left something behind")
	}
	r, err := v.client.StartRedrive(t.Context(), plan, drover.Audit{})
	if err != nil || r.Matched != 3 || !slices.Equal(r.Skips, []drover.SkippedJob{{value[string](t, v.testDB, `select id from jobs where args @> '{"n": 1}'`), "expired"}}) {
		t.Fatalf("%+v, %v", r, err)
	}
	if ns := value[string](t, v.testDB, `select string_agg(args->>'n', '' order by finalized_at) from jobs where paced_at is not null`); ns != "234" {
		t.Errorf("took %s", ns)
	}
}

// Jobs that an aborted redrive has not made due do not count as discarded again.
func TestRedriveJobsOfAnAbortedOne(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into jobs (kind, queue, state, finalized_at, discard_reason) select 'k', 'q', 'discarded', now(), 'panic' from generate_series(1, 6)`)
	r, err := db.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{Queue: "q"}, Rate: 1}, drover.Audit{})
	if err != nil {
		t.Fatal(err)
	}
	db.waitFor(t, 20*time.Second, `select r.released > 0 from drover_redrives r, drover_pace()`)
	db.exec(t, `update jobs set state = 'discarded', finalized_at = now(), discard_reason = 'panic', attempted_at = now() where id = (select min(id) from jobs where finalized_at is null)`)
	if err := db.client.AbortRedrive(t.Context(), r.ID, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	db.waitFor(t, 20*time.Second, `select r.finished_at is not null from drover_redrives r, drover_pace()`)
	jobs := okay(db.client.Redrive(t.Context(), r.ID)).Jobs
	if jobs.Discarded != 1 || jobs.Left < 2 || jobs.Left+jobs.Waiting != 5 {
		t.Errorf("%+v of 6 jobs, one of which was discarded again", jobs)
	}
	for most, more := range map[int]bool{5: true, 6: false, 7: false} {
		if list := okay(pg.ReadOnePlan(t.Context(), drover.PoolOf(db.client), pgx.RowToAddrOfStructByPos[drover.RedriveJobs], drover.SQLRedriveJobs, r.ID, most)); list[0].More != more {
			t.Errorf("%d of 6 are counted: %+v", most, list[0])
		}
	}
}

// D-4: a paused redrive releases no job, a resumed one goes on, and an aborted one leaves the other jobs
// discarded. After the redrive has ended, pause and resume return ErrState.
func TestRedrivePauseResumeAbort(t *testing.T) {
	t.Parallel()
	v := newVirtual(t)
	v.Bury(t, 200, 2)
	r, err := v.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{All: true}, PerKey: 90}, drover.Audit{})
	if err != nil {
		t.Fatal(err)
	}
	do := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	if v.pass(t, 0) == 0 {
		t.Fatal("nothing released")
	}
	v.pass(t, time.Second)
	v.work(t)
	do("pause", v.client.PauseRedrive(t.Context(), r.ID, drover.Audit{}))
	if n := v.pass(t, time.Second); n != 0 {
		t.Errorf("%d released while paused", n)
	}
	if got, err := v.client.Redrive(t.Context(), r.ID); err != nil || !got.Paused {
		t.Error(got, err)
	}
	do("resume", v.client.ResumeRedrive(t.Context(), r.ID, drover.Audit{}))
	if v.pass(t, time.Second) == 0 {
		t.Error("nothing released after resume")
	}
	v.exec(t, harness.VirtualStart, v.at.Add(time.Second))
	v.fail(t, `true`) // they wait for a place
	do("abort", v.client.AbortRedrive(t.Context(), r.ID, drover.Audit{Why: "enough"}))
	do("abort again", v.client.AbortRedrive(t.Context(), r.ID, drover.Audit{Why: "enough"}))
	v.pass(t, time.Second)
	got, err := v.client.Redrive(t.Context(), r.ID)
	if err != nil || got.State != drover.RedriveAborted || got.Note != "enough" || got.FinishedAt == nil {
		t.Errorf("%+v, %v", got, err)
	}
	if n := value[int](t, v.testDB, `select count(*) from jobs where paced_at is not null or state = 'parked'`); n != 0 {
		t.Errorf("the redrive still holds %d jobs", n)
	}
	counts := value[string](t, v.testDB, `select string_agg(state, ' ' order by state) from (select distinct state from jobs) s`)
	if counts != "completed discarded retryable" {
		t.Error(counts)
	}
	for what, err := range map[string]error{
		"pause": v.client.PauseRedrive(t.Context(), r.ID, drover.Audit{}), "resume": v.client.ResumeRedrive(t.Context(), r.ID, drover.Audit{}),
	} {
		if !errors.Is(err, drover.ErrState) {
			t.Errorf("%s: %v", what, err)
		}
	}
	missing := strings.Repeat("0", 26)
	for what, err := range map[string]error{
		"pause": v.client.PauseRedrive(t.Context(), missing, drover.Audit{}), "abort": v.client.AbortRedrive(t.Context(), missing, drover.Audit{}),
		"resume": v.client.ResumeRedrive(t.Context(), "x", drover.Audit{}), "get": second(v.client.Redrive(t.Context(), missing)), "get x": second(v.client.Redrive(t.Context(), "x")),
	} {
		if !errors.Is(err, drover.ErrNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// The jobs that it left can be redriven again.
	again, err := v.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{All: true}}, drover.Audit{})
	if err != nil || again.Matched == 0 || again.Skipped != 0 {
		t.Errorf("%+v, %v", again, err)
	}
	if list, err := v.client.Redrives(t.Context(), 0); err != nil || len(list) != 2 || list[0].ID != again.ID {
		t.Errorf("%+v, %v", list, err)
	}
}

func second[A, B any](_ A, b B) B { return b }

// D-4, F-13: if an operator ends a job that a redrive holds, the job stays ended, and its place is free.
func TestJobsEndedInARedrivesHands(t *testing.T) {
	t.Parallel()
	v := newVirtual(t)
	v.Bury(t, 4, 1)
	if _, err := v.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{All: true}, PerKey: 1}, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	v.pass(t, 0)
	v.exec(t, harness.VirtualStart, v.at)
	v.fail(t, `true`)
	parked := value[string](t, v.testDB, `select id from jobs where state = 'parked' and isfinite(paced_at)`)
	if was, err := v.client.Cancel(t.Context(), parked, drover.Audit{Why: "no"}); err != nil || was != drover.Parked {
		t.Fatal(was, err)
	}
	for range 40 {
		v.pass(t, time.Second/4)
		v.work(t)
	}
	if got := value[string](t, v.testDB, `select string_agg(state || n, ' ' order by state) from (select state, count(*) as n from jobs where paced_at is null group by 1) s`); got != "cancelled1 completed3" {
		t.Error(got)
	}
	if got := value[string](t, v.testDB, `select state from drover_redrives`); got != "done" {
		t.Error(got)
	}
}

// Jobs that somebody takes away from a redrive still count as matched. The redrive ends without them.
func TestJobsTakenAwayFromARedrive(t *testing.T) {
	t.Parallel()
	v := newVirtual(t)
	v.Bury(t, 4, 1)
	r, err := v.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{All: true}, Rate: 0.5}, drover.Audit{})
	if err != nil {
		t.Fatal(err)
	}
	v.pass(t, 0)
	dead := value[[]string](t, v.testDB, `select array_agg(id order by id) from jobs where state = 'discarded'`)
	if err := v.client.RedriveJob(t.Context(), dead[0], nil, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	if deleted, err := v.client.DeleteMany(t.Context(), drover.Filter{IDs: dead[1:2]}, drover.Audit{}); err != nil || deleted.Changed != 1 {
		t.Fatal(deleted, err)
	}
	if archived, err := v.client.Archive(t.Context(), drover.Filter{IDs: dead[2:3]}, nil, drover.Audit{}); err != nil || archived.Jobs != 1 {
		t.Fatal(archived, err)
	}
	for range 40 {
		v.pass(t, time.Second/4)
		v.work(t)
	}
	if r, err = v.client.Redrive(t.Context(), r.ID); err != nil || r.State != drover.RedriveDone || r.Matched != 4 || r.Released != 1 || r.Skipped != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// While somebody creates an index on the table, a redrive waits. It skips no job.
func TestARedriveWaitsForALockOfTheTable(t *testing.T) {
	t.Parallel()
	v := newVirtual(t)
	v.Bury(t, 4, 1)
	const index = `create index own on jobs (kind)`
	started := make(chan error)
	end := v.Hold(t, index)
	go func() {
		_, err := v.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{All: true}, Rate: 1000}, drover.Audit{})
		started <- err
	}()
	v.exec(t, `select pg_sleep(1.2)`) // longer than the function waits for a lock
	end()
	if err := <-started; err != nil {
		t.Error(err)
	}
	is := func(matched, released int64, note string) {
		t.Helper()
		all, err := v.client.Redrives(t.Context(), 10)
		if err != nil || len(all) != 1 || all[0].Matched != matched || all[0].Released != released || all[0].Skipped != 0 || all[0].Note != note {
			t.Errorf("%+v, %v", all, err)
		}
	}
	is(4, 0, "")
	const heldUp = "held up: canceling statement due to lock timeout"
	end = v.Hold(t, index)
	v.pass(t, time.Second)
	is(4, 0, heldUp)
	end()
	v.pass(t, time.Second)
	is(4, 4, "")

	// Supervisors mark the jobs of a redrive that psql has started.
	v.exec(t, `delete from drover_redrives`)
	v.exec(t, `delete from jobs`)
	v.Bury(t, 4, 1)
	v.exec(t, `select drover_redrive_start('{"filter": {"all": true}}')`)
	end = v.Hold(t, index)
	v.pass(t, time.Second)
	is(0, 0, heldUp)
	end()
	v.pass(t, time.Second)
	is(4, 4, "")
}

// D-5: a server's clock that goes back holds nothing up.
func TestRedriveSurvivesTheClockGoingBack(t *testing.T) {
	t.Parallel()
	v := newVirtual(t)
	v.Bury(t, 100, 1)
	if _, err := v.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{All: true}}, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	v.pass(t, time.Hour)
	v.at = v.at.Add(time.Second)
	v.work(t)
	if n := v.pass(t, -time.Hour) + v.pass(t, time.Second); n == 0 {
		t.Error("nothing is released until the clock is where it was")
	}
}

// A plan that is started twice with one id makes one redrive, also if both begin at the same time.
func TestRedriveWithAnID(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	db.Bury(t, 10, 2)
	plan := drover.RedrivePlan{ID: strings.ToLower(ulid.Make().String()), Filter: drover.Filter{All: true}, Rate: 1}
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		wg.Go(func() { _, errs[i] = db.client.StartRedrive(t.Context(), plan, drover.Audit{}) })
	}
	wg.Wait()
	started := 0
	for _, err := range errs {
		switch {
		case err == nil:
			started++
		case !errors.Is(err, drover.ErrState) || !strings.Contains(err.Error(), "was started before"):
			t.Error(err)
		}
	}
	if got := value[string](t, db, `select string_agg(id || ' ' || matched, ',') from drover_redrives`); started != 1 || got != strings.ToUpper(plan.ID)+" 10" {
		t.Errorf("%d were started: %s", started, got)
	}
	plan.ID = "x"
	if _, err := db.client.StartRedrive(t.Context(), plan, drover.Audit{}); !slices.Equal(drover.Fields(t, unwrapped(err)), []string{"ID"}) {
		t.Errorf("no id: %v", err)
	}
	for _, id := range []string{"x", "01kaj4y8q3n6t0v5b7c9d1e2fg"} { // Go looks for ids in capitals
		if _, err := db.Exec(t.Context(), `select drover_redrive_start(jsonb_build_object('id', $1::text, 'filter', '{"all": true}'::jsonb))`, id); pg.SQLState(err) != "22023" {
			t.Errorf("the id %s in SQL: %v", id, err)
		}
	}
}

// D-4: bad plans are refused before anything is written.
func TestRedriveRefusesBadPlans(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	db.Bury(t, 3, 1)
	done := db.enqueue(t, job{}, nil)
	db.exec(t, `update jobs set state = 'completed', finalized_at = now() where id = $1`, done)
	all := drover.Filter{All: true}
	for want, plan := range map[string]drover.RedrivePlan{
		"Filter":                         {},
		"Rate":                           {Filter: all, Rate: -1},
		"PerKey":                         {Filter: all, PerKey: -5},
		"Limit":                          {Filter: all, Limit: -1},
		"Canary":                         {Filter: all, Canary: -1},
		"CanaryFailures":                 {Filter: all, CanaryFailures: 1},
		"Plan: none of 3 jobs has a key": {Filter: all, PerKey: 1, KeyFrom: "customer.idd"},
		"KeyFrom":                        {Filter: all, KeyFrom: "customer"},
		"MaxAttempts":                    {Filter: all, MaxAttempts: -1},
		"ArgsPatch":                      {Filter: all, ArgsPatch: json.RawMessage(`[]`)},
	} {
		field, text, _ := strings.Cut(want, ": ")
		_, err := db.client.StartRedrive(t.Context(), plan, drover.Audit{})
		var invalid *drover.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != field || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", want, err)
		}
		if _, err := db.client.PreviewRedrive(t.Context(), plan); !strings.Contains(want, ": ") && !errors.As(err, &invalid) {
			t.Errorf("preview, %s: %v", want, err)
		}
	}
	for _, filter := range []drover.Filter{{State: drover.Running}, {IDs: []string{done}}} {
		if _, err := db.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: filter}, drover.Audit{}); !errors.Is(err, drover.ErrState) || len(filter.IDs) == 1 && !strings.Contains(err.Error(), done+" is completed") {
			t.Errorf("%+v: %v", filter, err)
		}
	}
	for _, plan := range []string{`{}`, `{"filter": {"quene": "x"}}`, `{"filter": {"all": true}, "rate": 0}`, `{"filter": {"all": true}, "speed": 5}`, `{"filter": {"all": false}}`, `{"filter": {"all": true}, "args_patch": [1]}`} {
		if _, err := db.Exec(t.Context(), `select drover_redrive_start($1)`, plan); err == nil {
			t.Errorf("%s was taken", plan)
		}
	}
	if n := value[int](t, db, `select count(*) from drover_redrives`); n != 0 {
		t.Errorf("%d redrives were begun", n)
	}
	// Unknown ids and archived jobs are listed in Skips; the other jobs are redriven.
	ghost := strings.Repeat("0", 26)
	id, away := value[string](t, db, `select min(id) from jobs where state = 'discarded'`), value[string](t, db, `select max(id) from jobs where state = 'discarded'`)
	if moved, err := db.client.Archive(t.Context(), drover.Filter{IDs: []string{away}}, nil, drover.Audit{}); err != nil || moved.Jobs != 1 {
		t.Fatalf("%+v, %v", moved, err)
	}
	r, err := db.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{IDs: []string{ghost, id, away}}}, drover.Audit{})
	if err != nil || r.Matched != 1 || !slices.Equal(r.Skips, []drover.SkippedJob{{ghost, "unknown id"}, {away, "in the archive"}}) {
		t.Errorf("%+v, %v", r, err)
	}
}

// D-3, D-4: a redriven job is the same job with fresh attempts and its history; args and attempts change as asked.
func TestRedriveChangesArgs(t *testing.T) {
	t.Parallel()
	v := newVirtual(t)
	v.Bury(t, 1, 1)
	v.exec(t, `update jobs set retry_until = created_at + interval '1 hour', max_attempts = 20, discard_reason = 'crashed', crashes = 3`)
	_, err := v.client.StartRedrive(t.Context(), drover.RedrivePlan{
		Filter: drover.Filter{All: true}, MaxAttempts: 3, ArgsPatch: json.RawMessage(`{"customer": {"name": "A"}, "n": null}`),
	}, drover.Audit{By: "ann", Why: "ticket 7"})
	if err != nil {
		t.Fatal(err)
	}
	v.pass(t, time.Second)
	got := value[string](t, v.testDB, `select concat_ws(' ', state, attempt, max_attempts, redrives, crashes, errors_total, jsonb_array_length(errors), errors->1->>'error' like 'redriven by %',
		args, discard_reason, finalized_at, retry_until = scheduled_at + interval '1 hour', redriven_at = scheduled_at) from jobs`)
	if want := `available 0 3 1 1 20 2 t {"customer": {"id": 0, "name": "A"}} t t`; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if got := value[string](t, v.testDB, `select started_by || ' ' || why from drover_redrives`); got != "ann ticket 7" {
		t.Error(got)
	}
}

// D-5: however many processes tick together, there is one pace.
func TestManyTickersPaceAsOne(t *testing.T) {
	t.Parallel()
	slow(t)
	v := newVirtual(t)
	v.Bury(t, 400, 4)
	r, err := v.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{All: true}, Rate: 200, PerKey: 20}, drover.Audit{})
	if err != nil {
		t.Fatal(err)
	}
	var tickers errgroup
	for range 8 {
		tickers.Go(func() error {
			for {
				if _, err := v.Exec(t.Context(), `select drover_pace()`); err != nil {
					return err
				}
				if got, err := v.client.Redrive(t.Context(), r.ID); err != nil || got.State == drover.RedriveDone {
					return err
				}
				if _, err := v.Exec(t.Context(), `
update jobs set state = 'completed', finalized_at = clock_timestamp() where id = any(array(
	select id from jobs where finalized_at is null and state <> 'parked' and scheduled_at <= clock_timestamp() order by id for update skip locked))`); err != nil {
					return err
				}
			}
		})
	}
	if err := tickers.Wait(); err != nil {
		t.Fatal(err)
	}
	rows, err := v.Query(t.Context(), `select scheduled_at from jobs where state = 'completed' and redrives = 1`)
	if err != nil {
		t.Fatal(err)
	}
	due, err := pgx.CollectRows(rows, pgx.RowTo[time.Time])
	if err != nil || len(due) != 400 || harness.Busiest(due, time.Second) > 201 {
		t.Errorf("%d jobs, %d in a second, %v", len(due), harness.Busiest(due, time.Second), err)
	}
}

// errgroup waits for goroutines and keeps the errors of all.
type errgroup struct {
	wg   sync.WaitGroup
	mu   sync.Mutex
	errs []error
}

func (g *errgroup) Go(f func() error) {
	g.wg.Go(func() {
		err := f()
		g.mu.Lock()
		defer g.mu.Unlock()
		g.errs = append(g.errs, err)
	})
}

func (g *errgroup) Wait() error {
	g.wg.Wait()
	return errors.Join(g.errs...)
}

// D-5: supervisors carry on a redrive that any session began. A supervisor that starts later takes over.
func TestSupervisorsCarryRedrivesOn(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	db.Bury(t, 60, 2)
	id := value[string](t, db, `select drover_redrive_start('{"filter": {"all": true}, "rate": 200, "per_key": 2, "key_from": "customer.id"}')`)
	var log harness.EventLog
	first := db.via(t, drover.Config{Hooks: []drover.Hooks{log.Hooks()}, Logger: quiet()}).launch(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: handlingAll(), Lease: 6 * time.Second})
	eventually(t, func() bool {
		return value[int](t, db, `select count(*) from jobs where state = 'completed'`) >= 10
	})
	first.Stop(t)
	db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: handlingAll(), Lease: 6 * time.Second})
	eventually(t, func() bool {
		r, err := db.client.Redrive(t.Context(), id)
		return err == nil && r.State == drover.RedriveDone && r.Released == 60
	})
	if n := value[int](t, db, `select count(*) from jobs where state = 'completed' and redrives = 1`); n != 60 {
		t.Errorf("%d jobs completed", n)
	}
}

func handlingAll() []drover.Worker {
	return []drover.Worker{dynWorker("job", drover.WorkerOpts{}, func(context.Context, *drover.Job) error { return nil })}
}

// D-3, D-6: if no worker can decode the args after the patch, the canary is discarded as undecodable. The other jobs
// keep their args, and a better patch brings all of them back.
func TestRedriveWithAPatchThatDoesNotDecode(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	db.Bury(t, 5, 1)
	db.exec(t, `create table before as select id, args from jobs`)
	db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: harness.DoingNothing()})
	plan := drover.RedrivePlan{Filter: drover.Filter{All: true}, Canary: 1, ArgsPatch: json.RawMessage(`{"N": "no"}`)}
	r, err := db.client.StartRedrive(t.Context(), plan, drover.Audit{})
	if err != nil {
		t.Fatal(err)
	}
	db.waitFor(t, time.Minute, `select state = 'aborted' from drover_redrives where id = $1`, r.ID)
	if n := value[int](t, db, `select count(*) from jobs where state = 'discarded' and discard_reason = 'undecodable' and args->>'N' = 'no'`); n != 1 {
		t.Errorf("%d jobs are undecodable, want the canary", n)
	}
	if n := value[int](t, db, `select count(*) from jobs join before using (id, args) where state = 'discarded' and discard_reason <> 'undecodable'`); n != 4 {
		t.Errorf("%d of 4 others are dead letters as before", n)
	}
	plan.ArgsPatch = json.RawMessage(`{"N": 7}`)
	if _, err := db.client.StartRedrive(t.Context(), plan, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	db.waitFor(t, time.Minute, `select count(*) = 5 from jobs where state = 'completed' and args->>'N' = '7'`)
}

// The patch is RFC 7396's.
func TestMergePatch(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	for _, c := range [][3]string{
		{`{"a":"b"}`, `{"a":"c"}`, `{"a": "c"}`},
		{`{"a":"b"}`, `{"b":"c"}`, `{"a": "b", "b": "c"}`},
		{`{"a":"b"}`, `{"a":null}`, `{}`},
		{`{"a":"b","b":"c"}`, `{"a":null}`, `{"b": "c"}`},
		{`{"a":["b"]}`, `{"a":"c"}`, `{"a": "c"}`},
		{`{"a":"c"}`, `{"a":["b"]}`, `{"a": ["b"]}`},
		{`{"a":{"b":"c"}}`, `{"a":{"b":"d","c":null}}`, `{"a": {"b": "d"}}`},
		{`{"a":[{"b":"c"}]}`, `{"a":[1]}`, `{"a": [1]}`},
		{`["a","b"]`, `["c","d"]`, `["c", "d"]`},
		{`{"a":"b"}`, `["c"]`, `["c"]`},
		{`{"a":"foo"}`, `null`, `null`},
		{`{"e":null}`, `{"a":1}`, `{"a": 1, "e": null}`},
		{`[1,2]`, `{"a":"b","c":null}`, `{"a": "b"}`},
		{`{}`, `{"a":{"bb":{"ccc":null}}}`, `{"a": {"bb": {}}}`},
	} {
		if got := value[string](t, db, `select drover_merge_patch($1, $2)::text`, c[0], c[1]); got != c[2] {
			t.Errorf("%s with %s: %s, want %s", c[0], c[1], got, c[2])
		}
	}
}

// A redrive shows the filter that it was begun with, from Go or from psql.
func TestRedriveShowsItsFilter(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	at := func(hours int) time.Time {
		return time.Date(2025, 1, 2, hours, 4, 5, 678_901_000, time.FixedZone("", 3600)) // microseconds, as Postgres has them
	}
	all := drover.Filter{
		IDs: []string{}, Queue: "q", Kind: "k", Key: "c", Priority: 3, State: drover.Discarded, Reason: drover.ReasonPanic, Class: "panic", Fingerprint: "f", Periodic: "p", Redrive: "r", UniqueKey: "u", Error: "e", Tags: []string{"a", "b"},
		Args: json.RawMessage(`{"n": 1}`), CreatedAfter: at(1), CreatedBefore: at(2), FinalizedAfter: at(3), FinalizedBefore: at(4), All: true,
	}
	for i, v := 0, reflect.ValueOf(all); i < v.NumField(); i++ {
		if v.Field(i).IsZero() {
			t.Errorf("%s is not under test", v.Type().Field(i).Name)
		}
	}
	for _, want := range []drover.Filter{{All: true}, {Kind: "k"}, all} {
		r, err := db.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: want}, drover.Audit{})
		if err != nil {
			t.Fatal(err)
		}
		got := r.Filter
		for _, of := range []*drover.Filter{&got, &want} {
			for _, at := range []*time.Time{&of.CreatedAfter, &of.CreatedBefore, &of.FinalizedAfter, &of.FinalizedBefore} {
				*at = at.UTC()
			}
		}
		if !reflect.DeepEqual(got, want) || r.Unreadable != "" {
			t.Errorf("%+v\nwant %+v; %s", got, want, r.Unreadable)
		}
	}
	id := value[string](t, db, `select drover_redrive_start('{"filter": {"kind": "k", "created_after": "2025-01-02 03:04:05+00"}}')`)
	r, err := db.client.Redrive(t.Context(), id)
	if err != nil || r.Filter.Kind != "k" || !r.Filter.CreatedAfter.Equal(time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC)) || r.Unreadable != "" {
		t.Errorf("%+v, %v", r, err)
	}
}

// a redrive's row that was changed by hand shows what can be read of it, and hides no other.
func TestOddRowsOfRedrives(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into jobs (kind, state, finalized_at, discard_reason) values ('k', 'discarded', now(), 'panic')`)
	want := map[string]string{}
	for _, tc := range []struct{ column, text, part string }{
		{"filter", `{"quene": "q"}`, "filter: "},
		{"filter", `[1]`, "filter: "},
		{"filter", `null`, "filter: "},
		{"filter", `{"created_after": "infinity"}`, "filter: "},
		{"filter", `{"kind": 7}`, "filter: "},
		{"skips", `{"id": 1}`, "skips: "},
		{"why", `odd`, ""},
	} {
		r, err := db.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{Kind: "k"}}, drover.Audit{By: "ann"})
		if err != nil {
			t.Fatal(err)
		}
		db.exec(t, `update drover_redrives set `+tc.column+` = $2 where id = $1`, r.ID, tc.text)
		want[r.ID] = tc.part
	}
	list, err := db.client.Redrives(t.Context(), 0)
	if err != nil || len(list) != len(want) {
		t.Fatalf("%d redrives, %v", len(list), err)
	}
	for _, r := range list {
		part := want[r.ID]
		if r.By != "ann" || !strings.HasPrefix(r.Unreadable, part) || (part == "") != (r.Unreadable == "") {
			t.Errorf("%+v, want an unreadable %q", r, part)
		}
		if part == "filter: " && !reflect.DeepEqual(r.Filter, drover.Filter{}) || part == "skips: " && (r.Filter.Kind != "k" || r.Skips != nil) {
			t.Errorf("%+v", r)
		}
	}
	db.exec(t, `update drover_redrives set filter = '[]', skips = '0'`)
	if r, err := db.client.Redrive(t.Context(), list[0].ID); err != nil || !strings.Contains(r.Unreadable, "; skips: ") {
		t.Errorf("%+v, %v", r, err)
	}
}

// The course of a redrive has how many jobs became due and how many ended, in time steps. The longer the redrive, the
// longer its steps. Client.Redrive reads a bounded number of jobs for it.
func TestRedriveCourse(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	const id = "01KAJ4Y8Q3N6T0V5B7C9D1E2RE"
	db.exec(t, `insert into drover_redrives (id, filter, rate, state, matched, started_by, created_at) values ('`+id+`', '{"queue": "q"}', 1, 'running', 12, 'ada', now() - interval '1 h')`)
	if r := okay(db.client.Redrive(t.Context(), id)); len(r.Course) != 0 {
		t.Errorf("a redrive without jobs has a course: %+v", r.Course)
	}
	at := func(s string) string { return `(select created_at from drover_redrives) + ` + s + ` * interval '1 s'` }
	db.exec(t, `insert into jobs (kind, queue, redrive_id, state, redriven_at, attempted_at, finalized_at, discard_reason)
		select 'k', 'q', '`+id+`', case when n % 5 = 0 then 'discarded' else 'completed' end, `+at(`(10 + n / 2)`)+`, `+at(`(12 + n / 2)`)+`, `+at(`(12.5 + n / 2)`)+`, case when n % 5 = 0 then 'panic' end from generate_series(0, 9) n`)
	db.exec(t, `insert into jobs (kind, queue, redrive_id, state, finalized_at, discard_reason, redriven_at, paced_at) select 'k', 'q', '`+id+`', 'discarded', `+at(`-60`)+`, 'panic', `+at(`-90`)+`, `+at(`-60`))     // held, from an earlier redrive
	db.exec(t, `insert into jobs (kind, queue, redrive_id, state, scheduled_at, attempted_at, finalized_at, created_at) select 'k', 'q', '`+id+`', 'completed', `+at(`15`)+`, `+at(`15`)+`, `+at(`16`)+`, `+at(`-90`)) // was parked
	text := func() (all string) {
		r := okay(db.client.Redrive(t.Context(), id))
		for _, s := range r.Course {
			all += fmt.Sprintf("%v+%v: %d %d %d, ", s.At.Sub(r.CreatedAt), s.Seconds, s.Due, s.Completed, s.Discarded)
		}
		return all
	}
	if got, want := text(), "10s+1: 2 0 0, 11s+1: 2 0 0, 12s+1: 2 1 1, 13s+1: 2 2 0, 14s+1: 2 1 1, 15s+1: 1 2 0, 16s+1: 0 3 0, "; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	db.exec(t, `insert into jobs (kind, queue, redrive_id, state, redriven_at, scheduled_at) select 'k', 'q', '`+id+`', 'available', `+at(`(10 + n * 0.1)`)+`, now() from generate_series(0, 2399) n`)
	if r := okay(db.client.Redrive(t.Context(), id)); len(r.Course) != 48 || r.Course[0].Seconds != 5 || r.Course[47].Due != 50 {
		t.Errorf("of four minutes: %d steps, %+v", len(r.Course), r.Course)
	}

	db.exec(t, `insert into jobs (kind, queue, redrive_id, state, redriven_at, finalized_at) select 'k', 'q', '`+id+`', 'completed', now(), now() from generate_series(1, 20000)`)
	db.exec(t, `vacuum analyze jobs`)
	due := int64(0)
	for _, s := range okay(db.client.Redrive(t.Context(), id)).Course {
		due += s.Due
	}
	if due == 0 || due > drover.MostRedriveJobs {
		t.Errorf("%d jobs were looked at", due)
	}
	if n, scans := db.planner(t).BuffersOf(t, strings.NewReplacer("$1", "'"+id+"'", "$2", "1000").Replace(drover.SQLRedriveCourse)); n > 1100 || scans != 0 {
		t.Errorf("a thousand jobs cost %d buffers, the table was read %d times", n, scans)
	}
}

// A redrive with the state parked brings parked jobs back: all of them, or the jobs whose ids it names. Without the state,
// it refuses the id of a parked job.
func TestRedriveOfParkedJobs(t *testing.T) {
	t.Parallel()
	v := newVirtual(t)
	v.exec(t, `insert into jobs (id, kind, state, scheduled_at, fingerprint, parked_build, errors_total, attempt)
		select repeat(n::text, 26), 'job', 'parked', 'infinity', '00000000000000aa', 'b1', 1, 1 from generate_series(1, 3) n`)
	first, second := strings.Repeat("1", 26), strings.Repeat("2", 26)
	redrive := func(filter drover.Filter, want string) {
		t.Helper()
		r, err := v.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: filter}, drover.Audit{})
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			v.pass(t, time.Second/4)
		}
		if got := value[string](t, v.testDB, `select string_agg(state || ' ' || attempt, ', ' order by id) from jobs`); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
		if r, err = v.client.Redrive(t.Context(), r.ID); err != nil || r.State != drover.RedriveDone || r.Skipped != 0 {
			t.Errorf("%+v, %v", r, err)
		}
	}
	if _, err := v.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{IDs: []string{first}}}, drover.Audit{}); !errors.Is(err, drover.ErrState) || !strings.Contains(err.Error(), first+" is parked") {
		t.Errorf("without the state: %v", err)
	}
	redrive(drover.Filter{State: drover.Parked, IDs: []string{first, second}}, "retryable 1, retryable 1, parked 1")
	v.exec(t, `delete from jobs where state = 'retryable'`) // due jobs that nobody claims would hold up the others of their kind
	redrive(drover.Filter{State: drover.Parked}, "retryable 1")
}

// A job that a redrive has made due is replaced by an enqueue into a queue without other jobs of the redrive. When the
// job fails, it waits for its redrive, which finds it in its new queue.
func TestRedriveFindsAReplacedJobInItsNewQueue(t *testing.T) {
	t.Parallel()
	v := newVirtual(t)
	by := []string{"n"}
	id := v.Unique(t, parcel{N: 1}, drover.Unique{By: by}, drover.EnqueueOpts{Key: "c"}).ID
	v.exec(t, `update jobs set state = 'discarded', discard_reason = 'operator', finalized_at = now() - interval '1 min'`)
	r, err := v.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{All: true}, PerKey: 1}, drover.Audit{})
	if err != nil {
		t.Fatal(err)
	}
	state := func() string { return value[string](t, v.testDB, `select state from jobs where id = $1`, id) }
	pass := func(until string) {
		t.Helper()
		for range 20 {
			if v.pass(t, time.Second/4); state() == until {
				return
			}
		}
		t.Fatalf("the job is %s, want %s", state(), until)
	}
	pass("available")
	if again := v.Unique(t, parcel{N: 1}, drover.Unique{By: by, OnConflict: drover.ReplaceWaiting}, drover.EnqueueOpts{Key: "c", Queue: "other"}); !again.Replaced {
		t.Fatalf("%+v", again)
	}
	v.exec(t, `update jobs set state = 'running', claimed_by = 'w', attempt = 1, claim_seq = claim_seq + 1, attempted_at = $1`, v.at)
	v.fail(t, `true`)
	if state() != "parked" {
		t.Fatalf("after its run it is %s", state())
	}
	pass("retryable")
	v.exec(t, `update jobs set state = 'completed', claimed_by = null, finalized_at = $1`, v.at)
	v.pass(t, time.Second/4)
	if r, err = v.client.Redrive(t.Context(), r.ID); err != nil || r.State != drover.RedriveDone {
		t.Errorf("%+v, %v", r, err)
	}
}
