package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/harness"
)

// A redrive shares its jobs with others who act on them: some jobs it must let be, and others it must not lose.

// until lets time pass, work done, until the condition holds.
func (v *virtual) until(t testing.TB, sql string) {
	t.Helper()
	for range 400 {
		if value[bool](t, v.testDB, sql) {
			return
		}
		v.pass(t, time.Second/4)
		v.work(t)
	}
	t.Fatalf("not within 100 s: %s\n%s", sql, value[string](t, v.testDB, `select string_agg(format('%s %s released %s of %s %s', id, state, released, matched, note), E'\n') from drover_redrives`))
}

func (v *virtual) redrive(t testing.TB, plan drover.RedrivePlan) *drover.Redrive {
	t.Helper()
	r, err := v.client.StartRedrive(t.Context(), plan, drover.Audit{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A supervisor makes all ticks in one session, so a plan may be from a time when the table was small. A tick still reads
// only its own jobs.
func TestTicksOfARedriveReadFewPages(t *testing.T) {
	t.Parallel()
	slow(t)
	v := newVirtual(t)
	v.exec(t, `alter table jobs set (autovacuum_enabled = off)`) // it would end the old plans
	session, err := v.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer session.Release()
	redrive := func() {
		t.Helper()
		v.exec(t, `insert into jobs (kind, state, finalized_at, discard_reason, concurrency_key) select 'job', 'discarded', now() - interval '1 min', 'panic', 'key' || i % 5 from generate_series(1, 20) i`)
		v.redrive(t, drover.RedrivePlan{Filter: drover.Filter{Kind: "job", State: drover.Discarded}, Rate: 3, PerKey: 3})
	}
	tick := func() int {
		t.Helper()
		v.at = v.at.Add(time.Second / 2)
		rows, _ := session.Query(t.Context(), `explain (analyze, buffers, costs off, timing off) select drover_pace($1)`, v.at)
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		v.exec(t, `update jobs set state = 'completed', finalized_at = now() where kind = 'job' and finalized_at is null`)
		return harness.BuffersIn(t, strings.Join(plan, "\n"))
	}
	redrive()
	v.exec(t, `analyze jobs`)
	for range 14 {
		tick()
	}
	v.exec(t, `insert into jobs (id, kind, queue) select 'Z' || lpad(i::text, 25, '0'), 'other', 'other' from generate_series(1, 30000) i`)
	for _, plans := range []string{`select`, `discard plans`} { // with the old plans, then with new plans, as after a change of some table
		redrive()
		if _, err := session.Exec(t.Context(), plans); err != nil {
			t.Fatal(err)
		}
		least := tick() // reads the catalogs, and again whenever other tests have made many tables meanwhile
		for range 6 {
			least = min(least, tick())
		}
		if left := value[int](t, v.testDB, `select count(*) from jobs where kind = 'job' and state = 'discarded'`); least > 1000 || left == 20 {
			t.Errorf("%s: %d buffers of a table of 30,000 other jobs; %d jobs left", plans, least, left)
		}
	}
}

// D-5: a job that a redrive has released and done with is nobody's to take back.
func TestRedriveLetsTheJobsOfEndedOnesBe(t *testing.T) {
	t.Parallel()
	v := newVirtual(t)
	v.Bury(t, 60, 1)
	v.redrive(t, drover.RedrivePlan{Filter: drover.Filter{All: true}, Limit: 20, Rate: 100})
	v.pass(t, 0)
	v.redrive(t, drover.RedrivePlan{Filter: drover.Filter{All: true}, Rate: 20})
	v.pass(t, time.Second/4)
	v.pass(t, 2*time.Second) // workers are busy
	if n := value[int](t, v.testDB, `select count(*) from jobs j join drover_redrives r on r.id = j.redrive_id where r.state = 'done' and j.state = 'parked'`); n > 0 {
		t.Fatalf("%d jobs of an ended redrive are parked", n)
	}
	v.until(t, `select count(*) = 60 from jobs where state = 'completed'`)
}

// D-6: canaries that nobody claimed in time go again.
func TestRedriveCanariesThatWereTakenBackGoAgain(t *testing.T) {
	t.Parallel()
	v := newVirtual(t)
	v.Bury(t, 30, 1)
	v.redrive(t, drover.RedrivePlan{Filter: drover.Filter{All: true}, Canary: 5})
	v.pass(t, 0)
	v.pass(t, 2*time.Second)
	if n := value[int](t, v.testDB, `select count(*) from jobs where state = 'parked'`); n != 4 {
		t.Fatalf("%d taken back, want all but one", n)
	}
	v.until(t, `select count(*) = 30 from jobs where state = 'completed' and redrives = 1`)
}

// D-6: a redrive whose dead jobs went another way does not wait for canaries that are none.
func TestRedriveSmallerThanItsCanary(t *testing.T) {
	t.Parallel()
	v := newVirtual(t)
	v.Bury(t, 3, 1)
	v.redrive(t, drover.RedrivePlan{Filter: drover.Filter{All: true}, Rate: 1, Canary: 10})
	v.pass(t, 0)
	if err := v.client.RedriveJob(t.Context(), value[string](t, v.testDB, `select max(id) from jobs where state = 'discarded'`), nil, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	v.until(t, `select state = 'done' from drover_redrives`)
}

// D-5: a job that others made run is theirs, and holds up no other redrive.
func TestRedriveLetsRunningJobsBe(t *testing.T) {
	t.Parallel()
	v := newVirtual(t)
	v.Bury(t, 10, 1)
	v.exec(t, `insert into jobs (kind, state, scheduled_at) select 'parked', 'parked', 'infinity' from generate_series(1, 3)`)
	v.redrive(t, drover.RedrivePlan{Filter: drover.Filter{State: drover.Parked}})
	v.exec(t, `update jobs set state = 'running', claimed_by = 'elsewhere', scheduled_at = now(), queue = 'default' where kind = 'parked' and id = (select min(id) from jobs where kind = 'parked')`)
	v.redrive(t, drover.RedrivePlan{Filter: drover.Filter{All: true}})
	v.pass(t, 0)
	v.pass(t, time.Second/4)
	if n := value[int](t, v.testDB, `select count(*) from jobs where state = 'running' and claimed_by = 'elsewhere'`); n != 1 {
		t.Error("the running job was touched")
	}
	if n := value[int](t, v.testDB, `select count(*) from jobs where kind = 'job' and redrives = 1`); n != 10 {
		t.Errorf("%d of 10 of the other redrive", n)
	}
}

// D-5, F-4: a released job whose run failed waits for its backoff, even if others are late next to it.
func TestRedriveLetsBackoffsBe(t *testing.T) {
	t.Parallel()
	v := newVirtual(t)
	v.Bury(t, 30, 1)
	v.redrive(t, drover.RedrivePlan{Filter: drover.Filter{All: true}, Rate: 10})
	v.pass(t, 0)
	failed := value[string](t, v.testDB, `select id from jobs where state = 'available' order by scheduled_at limit 1`)
	v.exec(t, `update jobs set state = 'retryable', attempt = 1, claim_seq = claim_seq + 1, scheduled_at = $2::timestamptz + interval '1 hour' where id = $1`, failed, v.at)
	v.pass(t, 3*time.Second)
	if got := value[string](t, v.testDB, `select state || ' ' || extract(epoch from scheduled_at - $2::timestamptz)::int from jobs where id = $1`, failed, v.at); got != "retryable 3597" {
		t.Error(got)
	}
}

// D-5: a kind that nobody works waits alone.
func TestRedriveOfAKindThatNobodyWorks(t *testing.T) {
	t.Parallel()
	v := newVirtual(t)
	v.Bury(t, 100, 1)
	v.exec(t, `update jobs set kind = 'gone' where (args->>'n')::int <= 5`) // the oldest
	v.redrive(t, drover.RedrivePlan{Filter: drover.Filter{All: true}, Rate: 20})
	for range 60 {
		v.pass(t, time.Second/4)
		v.exec(t, harness.VirtualStart+` and kind = 'job'`, v.at)
		v.exec(t, harness.VirtualEnd, v.at)
	}
	if n := value[int](t, v.testDB, `select count(*) from jobs where kind = 'job' and state = 'completed'`); n != 95 {
		t.Errorf("%d of 95 came back", n)
	}
	if n := value[int](t, v.testDB, `select count(*) from jobs where kind = 'gone' and state = 'available'`); n != 1 {
		t.Errorf("%d of the others are due, want one", n)
	}
	v.until(t, `select count(*) = 100 from jobs where state = 'completed'`) // somebody comes
}

// B-3: jobs that an aborted redrive has out count for their keys until they have ended.
func TestRedriveAfterAnAbortKeepsTheCap(t *testing.T) {
	t.Parallel()
	v := newVirtual(t)
	v.Bury(t, 20, 1)
	first := v.redrive(t, drover.RedrivePlan{Filter: drover.Filter{All: true}, PerKey: 3})
	v.pass(t, 0)
	v.exec(t, harness.VirtualStart, v.at.Add(time.Second))
	if err := v.client.AbortRedrive(t.Context(), first.ID, drover.Audit{Why: "slower"}); err != nil {
		t.Fatal(err)
	}
	v.pass(t, time.Second/4)
	second := v.redrive(t, drover.RedrivePlan{Filter: drover.Filter{All: true}, PerKey: 3})
	if second.Matched != 17 {
		t.Fatalf("%+v", second)
	}
	v.pass(t, time.Second/4)
	v.pass(t, time.Second/4)
	if n := value[int](t, v.testDB, `select count(*) from jobs where finalized_at is null and state <> 'parked'`); n != 3 {
		t.Errorf("%d of one key are out", n)
	}
	v.until(t, `select count(*) = 20 from jobs where state = 'completed'`)
	v.pass(t, time.Second)
	if got := value[int](t, v.testDB, `select count(*) from drover_redrives where finished_at is not null`); got != 2 {
		t.Errorf("%d of 2 redrives have finished", got)
	}
}

// D-7: a job that sat out the end of a redrive in the archive is as it was, and in nobody's hands: to be archived again, pruned,
// and redriven.
func TestRedriveOfRestoredJobs(t *testing.T) {
	t.Parallel()
	for _, end := range []drover.RedriveState{drover.RedriveDone, drover.RedriveAborted} {
		t.Run(string(end), func(t *testing.T) {
			t.Parallel()
			v := newVirtual(t)
			v.Bury(t, 4, 1)
			v.exec(t, `update jobs set id = overlay(id placing left(drover_ulid_at(now() - interval '2 hours'), 10) from 1 for 10)`)
			first := v.redrive(t, drover.RedrivePlan{Filter: drover.Filter{All: true}, Rate: 1})
			if moved, err := v.client.Archive(t.Context(), drover.Filter{State: drover.Discarded}, nil, drover.Audit{}); err != nil || moved.Jobs != 4 {
				t.Fatal(moved, err)
			}
			if end == drover.RedriveAborted {
				if err := v.client.AbortRedrive(t.Context(), first.ID, drover.Audit{}); err != nil {
					t.Fatal(err)
				}
			}
			v.until(t, fmt.Sprintf(`select state = '%s' and finished_at is not null from drover_redrives`, end))
			const marked = `select count(*) from %s where discard_reason is not null and paced_at = finalized_at and redrive_id = $1`
			ids := value[[]string](t, v.testDB, `select array_agg(id order by id) from jobs_archive`)
			v.enqueue(t, job{}, &drover.EnqueueOpts{ID: ids[0]}) // another life: the old one stays where it is
			for range 2 {
				if moved, err := v.client.Restore(t.Context(), drover.Filter{All: true}, drover.Audit{}); err != nil || moved.Jobs != 3 || !slices.Equal(moved.Conflicts, ids[:1]) {
					t.Fatal(moved, err)
				}
				for table, want := range map[string]int{"jobs": 3, "jobs_archive": 1} {
					if n := value[int](t, v.testDB, fmt.Sprintf(marked, table), first.ID); n != want {
						t.Errorf("%d rows of %s are as they were, want %d", n, table, want)
					}
				}
				if moved, err := v.client.Archive(t.Context(), drover.Filter{IDs: ids[1:]}, nil, drover.Audit{}); err != nil || moved.Jobs != 3 {
					t.Fatal(moved, err)
				}
			}
			if moved, err := v.client.Restore(t.Context(), drover.Filter{IDs: ids[1:]}, drover.Audit{}); err != nil || moved.Jobs != 3 {
				t.Fatal(moved, err)
			}
			v.exec(t, `insert into queues (name, discarded_retention) values ('default', '1 second'), ('keep', null)`)
			v.exec(t, `update jobs set queue = 'keep' where id <> $1`, ids[3])
			if n := value[int](t, v.testDB, `select deleted from drover_retain('', '1 day', '1 day')`); n != 1 {
				t.Errorf("%d jobs deleted, want one", n)
			}
			if r := v.redrive(t, drover.RedrivePlan{Filter: drover.Filter{All: true}}); r.Matched != 2 || r.Skipped != 0 {
				t.Errorf("%+v", r)
			}
		})
	}
}

// D-1: the pruner leaves what a redrive holds.
func TestPruningLeavesWhatARedriveHolds(t *testing.T) {
	t.Parallel()
	v := newVirtual(t)
	v.Bury(t, 3, 1)
	v.exec(t, `insert into queues (name, discarded_retention) values ('default', '1 second')`)
	v.exec(t, `update jobs set id = overlay(id placing left(drover_ulid_at(now() - interval '2 hours'), 10) from 1 for 10)`)
	r := v.redrive(t, drover.RedrivePlan{Filter: drover.Filter{All: true}, Rate: 1})
	const prune = `select deleted from drover_retain('', '1 day', '1 day')`
	if n := value[int](t, v.testDB, prune); n != 0 {
		t.Errorf("%d jobs deleted that a redrive holds", n)
	}
	if err := v.client.AbortRedrive(t.Context(), r.ID, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	v.pass(t, 0)
	if n := value[int](t, v.testDB, prune); n != 3 {
		t.Errorf("%d jobs deleted, want 3", n)
	}
}

// D-6: the pruner leaves the canaries of a redrive, which may be paused. A canary that fails and is then deleted would
// look as if it had completed.
func TestPruningLeavesCanaries(t *testing.T) {
	t.Parallel()
	v := newVirtual(t)
	v.Bury(t, 3, 1)
	v.exec(t, `insert into queues (name, discarded_retention) values ('default', '0')`)
	r := v.redrive(t, drover.RedrivePlan{Filter: drover.Filter{All: true}, Canary: 1})
	v.pass(t, time.Second/4)
	if err := v.client.PauseRedrive(t.Context(), r.ID, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	v.exec(t, `update jobs set state = 'discarded', discard_reason = 'unrecoverable', errors_total = errors_total + 1, finalized_at = now() - interval '1 hour',
		id = overlay(id placing left(drover_ulid_at(now() - interval '2 hours'), 10) from 1 for 10) where state = 'available'`)
	v.exec(t, `update drover_redrives set canaries = (select jsonb_build_object(id, 0) from jobs where discard_reason = 'unrecoverable')`)
	const prune = `select deleted from drover_retain('', '1 day', '1 day')`
	if n := value[int](t, v.testDB, prune); n != 0 {
		t.Errorf("%d jobs deleted, among them the canary", n)
	}
	if err := v.client.ResumeRedrive(t.Context(), r.ID, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	v.pass(t, time.Second/4)
	if r, err := v.client.Redrive(t.Context(), r.ID); err != nil || r.State != drover.RedriveAborted {
		t.Errorf("%+v, %v, want it aborted, because its canary has failed", r, err)
	}
	if n := value[int](t, v.testDB, prune); n == 0 {
		t.Error("the canary stays after the end of its redrive")
	}
}

// D-6: a queue that deletes jobs on completion keeps the jobs of a redrive until the pruner comes. Otherwise a redrive could
// not distinguish a canary that has completed from a canary that somebody has deleted.
func TestCanariesAreNotDeletedOnCompletion(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ columns, values string }{
		"dead":   {"state, finalized_at, discard_reason", "'discarded', now(), 'panic'"},
		"parked": {"state, scheduled_at, metadata", `'parked', 'infinity', '{"a": 1}'`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newQuietDB(t)
			for range 3 {
				db.put(t, c.columns, c.values)
			}
			db.launch(t, drover.SupervisorConfig{CompletedRetention: drover.DeleteOnCompletion, Workers: []drover.Worker{harness.DynWorker("letter", drover.WorkerOpts{}, doNothing)}})
			filter := drover.Filter{All: true}
			if name == "parked" {
				filter = drover.Filter{State: drover.Parked}
			}
			if _, err := db.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: filter, Canary: 1}, drover.Audit{}); err != nil {
				t.Fatal(err)
			}
			db.waitFor(t, 30*time.Second, `select finished_at is not null from drover_redrives`)
			if got := value[string](t, db, `select state || note from drover_redrives`); got != "done" {
				t.Fatal(got)
			}
			db.waitFor(t, 30*time.Second, `select count(*) = 0 from jobs where state <> 'completed'`)
			if n := value[int](t, db, `select deleted from drover_retain('', '1 us', '1 day')`); n != 3 {
				t.Errorf("the pruner deletes %d jobs after the end of the redrive, want 3", n)
			}
		})
	}
}

// D-10: a job that was parked while its group's policy was being lifted comes back.
func TestUnparkWhatTheLiftedPolicyParkedLast(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	db.exec(t, `insert into drover_builds (build) values ('v1')`)
	db.exec(t, `insert into drover_failure_groups (fingerprint, kind, class, first_seen, last_seen, count, jobs, last_job, policy, park_build)
		values ('00000000000000aa', 'job', 'error', now(), now(), 1, 1, '', 'park', 'v1'), ('00000000000000bb', 'job', 'error', now(), now(), 1, 1, '', null, null)`)
	db.exec(t, `insert into jobs (kind, state, scheduled_at, fingerprint, parked_build, errors_total)
		values ('job', 'parked', 'infinity', '00000000000000aa', 'v1', 1), ('job', 'parked', 'infinity', '00000000000000bb', 'v1', 1)`)
	if n := value[int](t, db, `select drover_unpark()`); n != 1 {
		t.Errorf("%d came back", n)
	}
	if got := value[string](t, db, `select fingerprint from jobs where state = 'retryable'`); got != "00000000000000bb" {
		t.Error(got)
	}
}

// O-1: a failed run of a capped job is reported as failed: it will be retried.
func TestFailuresOfCappedJobsAreTold(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	db.Bury(t, 1, 1)
	var log harness.EventLog
	told := db.via(t, drover.Config{Hooks: []drover.Hooks{log.Hooks()}, Logger: quiet()})
	if _, err := db.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{All: true}, PerKey: 1}, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	var runs atomic.Int64
	told.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{Retry: drover.Every(time.Millisecond)}}, Lease: 6 * time.Second, Workers: []drover.Worker{
		harness.DynWorker("job", drover.WorkerOpts{}, func(context.Context, *drover.Job) error {
			if runs.Add(1) == 1 {
				return errors.New("not yet")
			}
			return nil
		}),
	}})
	eventually(t, func() bool { return value[int](t, db, `select count(*) from jobs where state = 'completed'`) == 1 })
	id := value[string](t, db, `select id from jobs`)
	eventually(t, func() bool { return log.Count(id, "completed") == 1 })
	if failed, parked := log.Count(id, "failed"), log.Count(id, "parked"); failed != 1 || parked != 0 {
		t.Errorf("told %d times failed, %d times parked", failed, parked)
	}
}
