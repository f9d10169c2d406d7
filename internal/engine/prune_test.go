package engine_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// D-1
func TestPruneDeletesOldCompletedAndCancelledJobsOnly(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	const day = 24 * time.Hour
	for _, c := range []struct {
		completed, cancelled drover.Retention
		gone                 []string
	}{
		{drover.KeepFor(day), drover.KeepFor(2 * day), []string{"completed 36h", "completed 72h", "cancelled 72h"}},
		{drover.KeepForever, drover.KeepFor(day), []string{"cancelled 36h", "cancelled 72h"}},
		{drover.KeepFor(day), drover.KeepForever, []string{"completed 36h", "completed 72h"}},
		{drover.DeleteOnCompletion, drover.DeleteOnCompletion, []string{"completed 1h", "completed 36h", "completed 72h", "cancelled 1h", "cancelled 36h", "cancelled 72h"}},
	} {
		db.exec(t, `truncate jobs`)
		ids := map[string]string{}
		for name, ago := range map[string]time.Duration{"1h": time.Hour, "36h": 36 * time.Hour, "72h": 72 * time.Hour} {
			for _, state := range []string{"completed", "cancelled", "discarded", "available"} {
				ids[state+" "+name] = db.Finished(t, state, ago)
			}
		}
		if _, err := db.prune(t.Context(), engine.PruneWalk{}, store.Keeping{Completed: keepFor(c.completed), Cancelled: keepFor(c.cancelled)}); err != nil {
			t.Fatal(err)
		}
		gone := map[string]bool{}
		for _, name := range c.gone {
			gone[name] = true
		}
		for name, id := range ids {
			if there := value[bool](t, db, `select exists (select from jobs where id = $1)`, id); there == gone[name] {
				t.Errorf("completed kept %v, cancelled %v: %s is there: %v", c.completed, c.cancelled, name, there)
			}
		}
	}
}

// The pruner walks in batches, goes on where it stopped, and does not wait for rows that someone holds.
func TestPruneWalksInBatches(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into jobs (id, kind, state, finalized_at) select left(drover_ulid_at(now() - interval '3 days'), 10) || lpad(n::text, 16, '0'), 'job',
		case when n % 10 = 0 then 'available' else 'completed' end, case when n % 10 > 0 then now() - interval '2 days' end from generate_series(1, 3500) as n`)
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	keep := store.Keeping{Completed: keepFor(drover.KeepFor(24 * time.Hour)), Cancelled: keepFor(drover.KeepFor(24 * time.Hour))}
	step, err := store.Session{Conn: conn.Conn()}.Retain(t.Context(), "", keep, false, engine.PruneBatch)
	if err != nil || step.Deleted != 900 || step.Last == "" {
		t.Fatalf("the first batch: %+v, %v", step, err)
	}
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `select from jobs where id > $1 and state = 'completed' order by id limit 7 for update`, step.Last); err != nil {
		t.Fatal(err)
	}
	if _, err := db.prune(t.Context(), engine.PruneWalk{After: step.Last}, keep); err != nil {
		t.Fatal(err)
	}
	if n := value[int](t, db, `select count(*) from jobs where state = 'completed'`); n != 7 {
		t.Errorf("%d completed jobs are left, 7 were held", n)
	}
	if n := value[int](t, db, `select count(*) from jobs where state = 'available'`); n != 350 {
		t.Errorf("%d of 350 waiting jobs are left", n)
	}
}

// D-1, X-5: a running supervisor prunes in its turn; a queue's own retention goes first, and only a queue that says so
// loses its discarded jobs.
func TestRetentionOfQueues(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	const day = 24 * time.Hour
	want := map[string]bool{} // id to whether it stays in jobs
	put := func(queue, state string, ago time.Duration, stays bool) string {
		id := db.Ended(t, queue, state, ago)
		want[id] = stays
		return id
	}
	put("default", "completed", 36*time.Hour, false)
	put("default", "completed", 12*time.Hour, true)
	put("default", "cancelled", 3*day, false)
	put("default", "cancelled", 36*time.Hour, true)
	put("default", "discarded", 900*day, true)
	put("long", "completed", 36*time.Hour, true)
	put("long", "completed", 8*day, false)
	put("long", "cancelled", 900*day, true)
	put("short", "completed", 2*time.Hour, false)
	put("short", "cancelled", 2*time.Hour, false)
	put("short", "cancelled", time.Minute, true)
	put("trash", "discarded", 31*day, false)
	put("trash", "discarded", 29*day, true)
	stored := put("stored", "discarded", 8*day, false)
	put("stored", "discarded", 6*day, true)
	put("stored", "completed", 36*time.Hour, false)
	waits := db.enqueue(t, job{}, &drover.EnqueueOpts{Queue: "elsewhere"})
	want[waits] = true
	db.LaunchPruning(t, drover.SupervisorConfig{CompletedRetention: drover.KeepFor(day), CancelledRetention: drover.KeepFor(2 * day), Queues: []drover.Queue{
		{},
		{Name: "long", CompletedRetention: drover.KeepFor(7 * day), CancelledRetention: drover.KeepForever},
		{Name: "short", CompletedRetention: drover.KeepFor(time.Hour), CancelledRetention: drover.KeepFor(time.Hour)},
		{Name: "trash", DiscardedRetention: drover.KeepFor(30 * day)},
		{Name: "stored", ArchiveDiscardedAfter: 7 * day},
	}})
	staying := 0
	for _, stays := range want {
		if stays {
			staying++
		}
	}
	eventually(t, func() bool { return value[int](t, db, `select count(*) from jobs`) <= staying })
	for id, stays := range want {
		if there := value[bool](t, db, `select exists (select from jobs where id = $1)`, id); there != stays {
			t.Errorf("%s: there is %v, want %v", value[string](t, db, `select coalesce((select queue || ' ' || state from jobs where id = $1), 'a job that went')`, id), there, stays)
		}
	}
	if got := value[string](t, db, `select string_agg(id, ' ') from jobs_archive`); got != stored {
		t.Errorf("the archive has %s, want %s", got, stored)
	}
}

// a running supervisor keeps the newest jobs of each kind, by their end and not by their enqueue.
func TestRetentionByCount(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	want := map[string]string{} // id to where it is in the end: jobs, archive or gone
	put := func(queue, kind, state string, enqueued, ended time.Duration, where string) string {
		id := db.Ended(t, queue, state, enqueued)
		db.exec(t, `update jobs set kind = $2, finalized_at = now() - $3::interval where id = $1`, id, kind, pg.Interval(ended))
		want[id] = where
		return id
	}
	for n := range 6 {
		at := time.Duration(n+1) * time.Minute
		beyond := func(keep int, where string) string {
			if n < keep {
				return "jobs"
			}
			return where
		}
		put("counted", "a", "completed", time.Hour-at, at, beyond(2, "gone")) // the first to be enqueued ends last
		put("counted", "b", "completed", at, at, beyond(2, "gone"))
		put("counted", "a", "cancelled", at, at, "jobs")
		put("counted", "a", "discarded", at, at, []string{"jobs", "jobs", "jobs", "archive", "archive", "gone"}[n])
		put("deleting", "a", "discarded", at, at, beyond(1, "archive"))
		put("deleting", "a", "completed", at, at, "jobs")
		put("default", "a", "completed", at, at, "jobs")
		put("default", "a", "discarded", at, at, "jobs")
	}
	// Its period is not over: its row is what keeps others out.
	unique := put("counted", "c", "completed", time.Hour, time.Hour, "jobs")
	db.exec(t, `update jobs set unique_key = 'k', unique_scope = 'period', unique_until = now() + interval '1 h' where id = $1`, unique)
	put("counted", "c", "completed", time.Minute, time.Minute, "jobs")
	put("counted", "c", "completed", time.Second, time.Second, "jobs")
	waiting := db.enqueue(t, job{}, &drover.EnqueueOpts{Queue: "elsewhere"})
	want[waiting] = "jobs"
	db.LaunchPruning(t, drover.SupervisorConfig{Queues: []drover.Queue{
		{},
		{Name: "counted", KeepCompleted: 2, KeepDiscarded: 3, KeepArchived: 2},
		{Name: "deleting", KeepDiscarded: 1, DiscardedRetention: drover.KeepFor(time.Hour)},
	}})
	staying := 0
	for _, where := range want {
		if where != "gone" {
			staying++
		}
	}
	eventually(t, func() bool {
		return value[int](t, db, `select (select count(*) from jobs) + (select count(*) from jobs_archive)`) <= staying
	})
	for range 2 { // it stays like that
		if err := db.pruneByCount(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for id, where := range want {
		is := value[string](t, db, `select case when exists (select from jobs where id = $1) then 'jobs' when exists (select from jobs_archive where id = $1) then 'archive' else 'gone' end`, id)
		if is != where {
			t.Errorf("%s: %s, want %s", id, is, where)
		}
	}
}

// A job that has run again since the walk read it is none of the old ones.
func TestRetentionByCountSparesWhatEndsMeanwhile(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	old, anew := db.Finished(t, "completed", time.Hour), db.Finished(t, "discarded", 0)
	waits, cancelled := db.Finished(t, "available", time.Hour), db.Finished(t, "cancelled", time.Hour)
	got := value[string](t, db, `select format('%s %s', deleted, archived) from drover_retain_these($1, null, null, now() - interval '1 min')`, []string{old, anew, waits, cancelled})
	if left := value[[]string](t, db, `select array_agg(id order by id) from jobs`); got != "1 0" || slices.Contains(left, old) || len(left) != 3 {
		t.Errorf("pruned %s, left %v", got, left)
	}
}

// More jobs than a walk reads at a time, and more than it deletes at a time. A job that the database refuses to delete is
// set aside, and the others go.
func TestRetentionByCountOfManyJobs(t *testing.T) {
	slow(t)
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into queues (name, keep_completed) values ('default', 5)`)
	db.exec(t, `insert into jobs (id, kind, state, finalized_at) select (select left(drover_ulid(), 10)) || lpad(n::text, 16, '0'), 'job', 'completed', now() - n * interval '1 ms' from generate_series(1, 25000) as n`)
	held := value[string](t, db, `select id from jobs order by finalized_at limit 1`)
	want := append(value[[]string](t, db, `select array_agg(id) from (select id from jobs order by finalized_at desc limit 5) j`), held)
	db.exec(t, `create table mine (job text references jobs)`)
	db.exec(t, `insert into mine values ($1)`, held)
	if err := db.pruneByCount(t.Context()); err != nil {
		t.Fatal(err)
	}
	slices.Sort(want)
	if left := value[[]string](t, db, `select array_agg(id order by id) from jobs`); !slices.Equal(left, want) {
		t.Errorf("%d jobs are left: %v, want the newest 5 and the one that is held: %v", len(left), left[:min(10, len(left))], want)
	}
	if got := value[string](t, db, `select string_agg(path || ' ' || job, ',') from drover_set_aside`); got != "prune "+held {
		t.Errorf("set aside: %s", got)
	}
}

// A queue that deletes its jobs on completion leaves none, next to a queue that keeps them; with nothing to prune by the
// supervisor's own settings.
func TestDeleteOnCompletionOfOneQueue(t *testing.T) {
	t.Parallel()
	var book diary
	db := newQuietDB(t).via(t, drover.Config{Hooks: book.hooks()})
	db.launch(t, drover.SupervisorConfig{CompletedRetention: drover.KeepForever, CancelledRetention: drover.KeepForever, Queues: []drover.Queue{
		{Name: "kept"}, {Name: "gone", CompletedRetention: drover.DeleteOnCompletion},
	}})
	kept := db.enqueue(t, job{}, &drover.EnqueueOpts{Queue: "kept"})
	gone := db.enqueue(t, job{}, &drover.EnqueueOpts{Queue: "gone"})
	eventually(t, func() bool {
		return book.count(engine.EventCompleted, kept) == 1 && book.count(engine.EventCompleted, gone) == 1
	})
	if got := value[string](t, db, `select string_agg(id, ' ') from jobs`); got != kept {
		t.Errorf("left: %s, want %s", got, kept)
	}
}

func TestRetentionIsValidated(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	all := func(r drover.Retention) drover.SupervisorConfig {
		return drover.SupervisorConfig{CompletedRetention: r, CancelledRetention: r, Queues: []drover.Queue{
			{CompletedRetention: r, CancelledRetention: r, DiscardedRetention: r},
			{Name: "stored", ArchiveDiscardedAfter: time.Duration(r)},
		}}
	}
	completed := []string{"CompletedRetention", "Queues[0].CompletedRetention"}
	others := []string{"CancelledRetention", "Queues[0].CancelledRetention", "Queues[0].DiscardedRetention", "Queues[1].ArchiveDiscardedAfter"}
	every := slices.Concat(completed, others)
	for name, c := range map[string]struct {
		cfg drover.SupervisorConfig
		bad []string
	}{
		"unset":                {all(0), nil},
		"a second":             {all(drover.KeepFor(time.Second)), nil},
		"for ever":             {all(drover.KeepForever), nil},
		"negative":             {all(drover.KeepFor(-time.Hour)), every},
		"not at all":           {all(drover.KeepFor(0)), every},
		"the least duration":   {all(drover.KeepFor(math.MinInt64)), every},
		"by conversion":        {all(drover.Retention(-time.Hour)), every},
		"no unit":              {all(30), every}, // 30 ns would delete the dead letters within a minute
		"less than a second":   {all(drover.KeepFor(time.Second - 1)), every},
		"delete on completion": {all(drover.DeleteOnCompletion), others},
		"counts": {
			drover.SupervisorConfig{Queues: []drover.Queue{{KeepCompleted: -1, KeepDiscarded: 100_001, KeepArchived: -1}, {Name: "a", KeepCompleted: 1, KeepDiscarded: 100_000, KeepArchived: 1}}},
			[]string{"Queues[0].KeepCompleted", "Queues[0].KeepDiscarded", "Queues[0].KeepArchived"},
		},
		"counted, and deleted on completion": {
			drover.SupervisorConfig{CompletedRetention: drover.DeleteOnCompletion, Queues: []drover.Queue{{KeepCompleted: 1}, {Name: "a", KeepCompleted: 1, CompletedRetention: drover.KeepFor(time.Hour)}}},
			[]string{"Queues[0].KeepCompleted"},
		},
		"archived and deleted": {drover.SupervisorConfig{Queues: []drover.Queue{{ArchiveDiscardedAfter: time.Hour, DiscardedRetention: drover.KeepFor(time.Hour)}}}, []string{"Queues[0].ArchiveDiscardedAfter"}},
	} {
		c.cfg.Workers = harness.DoingNothing()
		_, err := db.client.NewSupervisor(c.cfg)
		got := fields(t, err)
		slices.Sort(got)
		if want := slices.Sorted(slices.Values(c.bad)); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// Of all supervisors the oldest one prunes.
func TestPruningHasOneTurn(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	first, second := db.stopped(t, drover.SupervisorConfig{}), db.stopped(t, drover.SupervisorConfig{})
	if first.Lease.Load().ID > second.Lease.Load().ID {
		t.Fatal("ids do not sort by time")
	}
	first.beat(t)
	second.beat(t)
	if !first.Prunes.Load() || second.Prunes.Load() {
		t.Errorf("the turn is the first's: %v, the second's: %v", first.Prunes.Load(), second.Prunes.Load())
	}
	db.exec(t, `update drover_supervisors set lost_at = now() where id = $1`, first.Lease.Load().ID)
	second.beat(t)
	if !second.Prunes.Load() {
		t.Error("nobody has the turn of a lost one")
	}
}

// DeleteOnCompletion leaves no row, from the engine and from the handler's own transaction.
func TestDeleteOnCompletion(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	done := make(chan struct{}, 4)
	db.launch(t, drover.SupervisorConfig{CompletedRetention: drover.DeleteOnCompletion, Workers: handling(func(ctx context.Context, j *drover.Job, n int) error {
		defer func() { done <- struct{}{} }()
		if n%2 == 0 {
			return nil
		}
		tx, err := db.Begin(ctx)
		if err != nil {
			return err
		}
		defer tx.Rollback(ctx)
		if err := j.CompleteTx(ctx, tx); err != nil {
			return err
		}
		return tx.Commit(ctx)
	})})
	db.enqueueJobs(t, 4, nil)
	for range 4 {
		receive(t, done)
	}
	db.waitFor(t, 30*time.Second, `select count(*) = 0 from jobs`)
}

const aDay = 24 * time.Hour

// F-15: one job that cannot be deleted, whatever the reason, is set aside, and all others are pruned.
func TestPruneAroundAJobThatCannotBeDeleted(t *testing.T) {
	t.Parallel()
	slow(t)
	keep := store.Keeping{Completed: keepFor(drover.KeepFor(aDay)), Cancelled: keepFor(drover.KeepFor(aDay))}
	for name, c := range map[string]struct {
		hang func(t *testing.T, db *testDB, id string)
		drop string
		code string
	}{
		"foreign key": {func(t *testing.T, db *testDB, id string) {
			t.Helper()
			db.exec(t, `create table mine (job text references jobs(id))`)
			db.exec(t, `insert into mine values ($1)`, id)
		}, `drop table mine`, "23503"},
		"deferred foreign key": {func(t *testing.T, db *testDB, id string) {
			t.Helper()
			db.exec(t, `create table mine (job text references jobs(id) deferrable initially deferred)`)
			db.exec(t, `insert into mine values ($1)`, id)
		}, `drop table mine`, "23503"},
		"trigger": {func(t *testing.T, db *testDB, id string) {
			t.Helper()
			db.Refuses(t, "delete", "jobs", fmt.Sprintf("old.id = '%s'", id), "raise 'no'")
		}, `drop trigger app_delete_jobs on jobs`, "P0001"},
		"trigger that returns null": {func(t *testing.T, db *testDB, id string) {
			t.Helper()
			db.Refuses(t, "delete", "jobs", fmt.Sprintf("old.id = '%s'", id), "return null")
		}, `drop trigger app_delete_jobs on jobs`, "DR003"},
		"damage": {func(t *testing.T, db *testDB, id string) {
			t.Helper()
			db.Refuses(t, "delete", "jobs", fmt.Sprintf("old.id = '%s'", id), "raise 'missing chunk number 0' using errcode = 'XX001'")
		}, `drop trigger app_delete_jobs on jobs`, "XX001"},
		// Ends the whole step: no function can catch it. With a real one other jobs would be late, too, on a busy machine.
		"statement time-out": {func(t *testing.T, db *testDB, id string) {
			t.Helper()
			db.Refuses(t, "delete", "jobs", fmt.Sprintf("old.id = '%s'", id), "raise 'canceling statement due to statement timeout' using errcode = '57014'")
		}, `drop trigger app_delete_jobs on jobs`, "57014"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var book harness.Logbook
			db := newTestDB(t).via(t, drover.Config{Logger: slog.New(&book)})
			ids := db.Aged(t, 1100)
			bad := ids[550]
			c.hang(t, db, bad)
			prune := func(want ...string) {
				t.Helper()
				if _, err := db.prune(t.Context(), engine.PruneWalk{}, keep); err != nil {
					t.Fatal(err)
				}
				if left := value[[]string](t, db, `select coalesce(array_agg(id), '{}') from jobs`); !slices.Equal(left, want) {
					t.Fatalf("%d jobs are left, want %q", len(left), want)
				}
				if noted := db.Noted(t, "prune"); !slices.Equal(noted, want) {
					t.Fatalf("set aside: %q, want %q", noted, want)
				}
			}
			prune(bad)
			if code := value[string](t, db, `select code from drover_set_aside`); code != c.code {
				t.Errorf("set aside with %s, want %s", code, c.code)
			}
			prune(bad) // it is left alone
			if tries := value[int](t, db, `select tries from drover_set_aside`); tries != 1 {
				t.Errorf("%d tries before the pause is over", tries)
			}
			if lines := book.From(slog.LevelWarn); len(lines) != 1 {
				t.Errorf("logged %q, want it once", lines)
			}
			db.exec(t, `update drover_set_aside set retry_at = now()`)
			prune(bad)
			if tries := value[int](t, db, `select tries from drover_set_aside`); tries != 2 {
				t.Errorf("%d tries after the pause", tries)
			}
			db.exec(t, c.drop)
			db.exec(t, `update drover_set_aside set retry_at = now()`)
			prune()
		})
	}
}

// F-15: another transaction has locked a row of the application that would be deleted together with its job. The search
// for this job waits for the lock a whole second only twice: with the first batch, and with the job by itself.
func TestPruneBesideALockedRow(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newTestDB(t)
	ids := db.Aged(t, 300)
	db.exec(t, `create table mine (job text references jobs(id) on delete cascade)`)
	db.exec(t, `insert into mine values ($1)`, ids[170])
	db.Hold(t, `select from mine for update`)
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `set local statement_timeout = '8s'`)
		if err == nil {
			_, err = tx.Exec(t.Context(), `select drover_retain_these($1, '1 day', '1 day')`, ids)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := value[string](t, db, `select string_agg(s.job || s.code, '') || (select string_agg(id, '') from jobs) from drover_set_aside s`), ids[170]+"55P03"+ids[170]; got != want {
		t.Errorf("%s is left, want %s", got, want)
	}
}

// F-15: jobs after a hundred and more refused ones are pruned. If all are refused, one is noted for all of them, and
// drover_set_aside does not grow by each.
func TestPruneBehindManyThatAreRefused(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	ids := db.Aged(t, 900)
	db.exec(t, `create table mine (job text references jobs(id))`)
	db.exec(t, `insert into mine select unnest($1::text[])`, ids[:250])
	keep := store.Keeping{Completed: keepFor(drover.KeepFor(aDay)), Cancelled: nil}
	if _, err := db.prune(t.Context(), engine.PruneWalk{}, keep); err != nil {
		t.Fatal(err)
	}
	if left := value[[]string](t, db, `select array_agg(id order by id) from jobs`); !slices.Equal(left, ids[:250]) {
		t.Errorf("%d jobs are left, want 250", len(left))
	}
	if noted := db.Noted(t, "prune"); !slices.Equal(noted, ids[:250]) {
		t.Errorf("%d are set aside, want 250", len(noted))
	}
	db.exec(t, `delete from drover_set_aside`)
	if _, err := db.prune(t.Context(), engine.PruneWalk{}, keep); err != nil {
		t.Fatal(err)
	}
	if got := value[string](t, db, `select string_agg(error, ',') from drover_set_aside`); !strings.Contains(got, "249 other jobs") {
		t.Errorf("set aside: %s", got)
	}
}

// F-15: a fault in archiving never keeps jobs from being deleted, nor the other way round, be it the fault of one job
// or of everything, such as a full disk.
func TestArchivingAndDeletingFailApart(t *testing.T) {
	t.Parallel()
	for _, errcode := range []string{"23514", "53100"} {
		t.Run(errcode, func(t *testing.T) {
			t.Parallel()
			var book harness.Logbook
			db := newTestDB(t).via(t, drover.Config{Logger: slog.New(&book)})
			db.exec(t, `insert into queues (name, archive_discarded_after) values ('stored', '1 day')`)
			db.Refuses(t, "insert", "jobs_archive", "true", "raise 'no' using errcode = '"+errcode+"'")
			put := func() {
				t.Helper()
				for range 3 {
					db.Finished(t, "completed", 2*aDay)
					db.Ended(t, "stored", "discarded", 2*aDay)
				}
			}
			check := func(want string) {
				t.Helper()
				if _, err := db.prune(t.Context(), engine.PruneWalk{}, store.Keeping{Completed: keepFor(drover.KeepFor(aDay)), Cancelled: nil}); err != nil {
					t.Error(err)
				}
				if got := value[string](t, db, `select concat_ws(' ', count(*) filter (where state = 'completed'), count(*) filter (where state = 'discarded'),
					(select count(*) from jobs_archive)) from jobs`); got != want {
					t.Errorf("completed, discarded and archived are %s, want %s", got, want)
				}
			}
			put()
			check("0 3 0")
			if len(book.From(slog.LevelWarn)) == 0 {
				t.Error("nothing is logged")
			}
			db.exec(t, `drop trigger app_insert_jobs_archive on jobs_archive`)
			db.exec(t, `delete from drover_set_aside`)
			db.Refuses(t, "delete", "jobs", "old.state = 'completed'", "raise 'no' using errcode = '"+errcode+"'")
			put()
			check("3 0 6")
		})
	}
}

// F-15: an application's trigger on the archive refuses one job; the pruner archives all others, and that one later.
func TestArchivingAroundAJobThatIsRefused(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into queues (name, archive_discarded_after) values ('stored', '1 day')`)
	var ids []string
	for range 20 {
		ids = append(ids, db.Ended(t, "stored", "discarded", 2*aDay))
	}
	clash := ids[3]
	db.exec(t, `insert into jobs_archive select (jsonb_populate_record(null::jobs_archive, to_jsonb(j) || '{"archived_at": "2020-01-01"}')).* from jobs j where id = $1`, clash)
	db.Refuses(t, "insert", "jobs_archive", fmt.Sprintf("new.id = '%s'", ids[7]), "raise 'no'")
	db.LaunchPruning(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}})
	want := []string{clash, ids[7]}
	slices.Sort(want)
	eventually(t, func() bool { return slices.Equal(db.Noted(t, "archive"), want) })
	if n := value[int](t, db, `select count(*) from jobs`); n != 2 {
		t.Errorf("%d jobs are left, want 2", n)
	}
	db.exec(t, `drop trigger app_insert_jobs_archive on jobs_archive`)
	db.exec(t, `delete from jobs_archive where id = $1`, clash)
	db.exec(t, `update drover_set_aside set retry_at = now()`)
	db.waitFor(t, 20*time.Second, `select not exists (select from jobs) and not exists (select from drover_set_aside)`)
}

// The note that a job was set aside is forgotten when the job has gone by another way.
func TestNotesOfJobsThatAreGone(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	id := db.Finished(t, "completed", time.Hour)
	db.exec(t, `insert into drover_set_aside (path, job, error, code, retry_at) values
		('prune', 'gone', '', '', 'infinity'), ('claim', 'gone', '', '', 'infinity'), ('archive', $1, '', '', now() - interval '3 days'),
		('prune', $1, '', '', now() - interval '1 day'), ('claim', $1, '', '', now() - interval '3 days')`, id)
	if _, err := db.prune(t.Context(), engine.PruneWalk{}, store.Keeping{}); err != nil {
		t.Fatal(err)
	}
	if got := value[string](t, db, `select string_agg(path, ' ' order by path) from drover_set_aside where job = $1`, id); got != "claim prune" {
		t.Errorf("left: %s", got)
	}
	if n := value[int](t, db, `select count(*) from drover_set_aside`); n != 2 {
		t.Errorf("%d are set aside, want 2", n)
	}
}

// F-15: ids that are not ULIDs are pruned wherever they sort, and the pruner goes on to prune ULIDs.
func TestPruneIDsThatAreNoULIDs(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	put := func(id, state string, ago time.Duration) {
		t.Helper()
		db.exec(t, `insert into jobs (id, kind, state, finalized_at) values ($1, 'job', $2, case when $2 = 'completed' then now() - $3::interval end)`, id, state, pg.Interval(ago))
	}
	for _, id := range []string{"order-00000000000000000001", "~rder-00000000000000000001", "2024-06-01-000000000000001", "-rder-00000000000000000001", "ORDER-00000000000000000001"} {
		put(id, "completed", 2*aDay)
		put(id[:25]+"2", "completed", time.Hour)
		put(id[:25]+"3", "available", 0)
	}
	db.exec(t, `insert into jobs (id, kind) select 'zorder-' || lpad(n::text, 19, '0'), 'waits' from generate_series(1, $1) n`, engine.PruneBatch) // the walk ends among them
	keep := store.Keeping{Completed: keepFor(drover.KeepFor(aDay)), Cancelled: nil}
	walk, err := db.prune(t.Context(), engine.PruneWalk{Whole: true}, keep)
	if n := value[int](t, db, `select count(*) from jobs where kind = 'job'`); err != nil || n != 10 {
		t.Errorf("%d jobs are left, want 10; %v", n, err)
	}
	if n := value[int](t, db, `select count(*) from jobs where kind = 'job' and id like '%1'`); n != 0 {
		t.Errorf("%d of 5 old jobs are left", n)
	}
	young := db.Finished(t, "completed", 2*aDay) // a minute later
	if _, err := db.prune(t.Context(), walk, keep); err != nil || value[bool](t, db, `select exists (select from jobs where id = $1)`, young) {
		t.Errorf("a ULID is not pruned after a walk among odd ids; %v", err)
	}
	put("zzz-0000000000000000000001", "completed", 2*aDay)
	db.LaunchPruning(t, drover.SupervisorConfig{CompletedRetention: drover.KeepFor(aDay), Queues: []drover.Queue{{Name: "nothing is here"}}}) // its first walk is a whole one
	db.waitFor(t, 20*time.Second, `select not exists (select from jobs where id like 'zzz%')`)
}

// the pruner reads neither the table nor the ids of jobs that are young.
func TestPruningReadsNoYoungIDs(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `alter table jobs set (autovacuum_enabled = off)`)
	db.exec(t, `insert into jobs (id, kind) select left(drover_ulid_at(now() - interval '1 hour'), 10) || lpad(n::text, 16, '0'), 'job' from generate_series(1, $1) n`, harness.RowsForPlans(t))
	db.Finished(t, "completed", 2*aDay)
	db.exec(t, `insert into jobs (id, kind) values ('order-00000000000000000001', 'job')`)
	db.exec(t, `analyze jobs`)
	buffers, scans := db.planner(t).BuffersOf(t, `select * from drover_retain('', '1 day', '1 day')`)
	if scans > 0 || buffers > 200 {
		t.Errorf("%d buffers, %d scans of the table", buffers, scans)
	}
}

// F-15: a retention that makes no sense, set by hand, deletes nothing of its queue, and the others are pruned.
func TestARetentionThatMakesNoSense(t *testing.T) {
	t.Parallel()
	for _, garbage := range []string{
		"-10000000 months +300000001 days", // compares as a day; overflows
		"-2000 years +720001 days",         // compares as a day; lies in the future
		"2000 years -719999 days",
	} {
		t.Run(garbage, func(t *testing.T) {
			t.Parallel()
			db := newQuietDB(t)
			db.exec(t, `insert into queues (name, completed_retention, cancelled_retention, archive_discarded_after) values ('odd', $1::text::interval, $1::text::interval, $1::text::interval)`, garbage)
			db.exec(t, `insert into queues (name, completed_retention) values ('sane', '1 day')`)
			want := []string{db.Ended(t, "odd", "completed", time.Hour), db.Ended(t, "odd", "discarded", time.Hour)}
			db.Ended(t, "sane", "completed", 2*aDay)
			db.Ended(t, "default", "completed", 2*aDay)
			if _, err := db.prune(t.Context(), engine.PruneWalk{Whole: true}, store.Keeping{Completed: keepFor(drover.KeepFor(aDay)), Cancelled: nil}); err != nil {
				t.Fatal(err)
			}
			slices.Sort(want)
			if got := value[[]string](t, db, `select array_agg(id order by id) from jobs`); !slices.Equal(got, want) {
				t.Errorf("left: %q, want %q", got, want)
			}
		})
	}
}

// A dead letter that an operator brings back from the archive is not deleted for ever a minute later.
func TestARestoredDeadLetterIsNotDeleted(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into queues (name, keep_discarded, discarded_retention) values ('default', 1, '365 days')`)
	old, young := db.Finished(t, "discarded", 2*aDay), db.Finished(t, "discarded", time.Hour)
	if _, err := db.client.Archive(t.Context(), drover.Filter{IDs: []string{old}}, nil, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	if _, err := db.client.Restore(t.Context(), drover.Filter{IDs: []string{old}}, drover.Audit{By: "ann", Why: "to redrive it"}); err != nil {
		t.Fatal(err)
	}
	if err := db.pruneByCount(t.Context()); err != nil {
		t.Fatal(err)
	}
	n := value[int](t, db, `select (select count(*) from jobs where id = $1) + (select count(*) from jobs_archive where id = $1)`, old)
	if n != 1 {
		t.Errorf("the restored dead letter %s (younger: %s) is in neither table", old, young)
	}
}

// A job that has been restored, has run again and has been archived anew during the walk is among the newest.
func TestArchivedAnewDuringTheWalk(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.exec(t, `insert into queues (name, keep_archived) values ('default', 1)`)
	db.exec(t, `insert into jobs (id, kind, state, finalized_at, discard_reason)
		select left(drover_ulid_at(now() - interval '2 days'), 10) || lpad(n::text, 16, '0'), 'job', 'discarded', now() - interval '2 days' + n * interval '1 s', 'operator'
		from generate_series(1, 1100) n`)
	if _, err := db.client.Archive(t.Context(), drover.Filter{State: drover.Discarded}, nil, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	first, target := value[string](t, db, `select min(id) from jobs_archive`), value[string](t, db, `select id from jobs_archive order by id offset 1050 limit 1`)
	// The first thousand take a while, for example because of a trigger of the application's.
	db.exec(t, fmt.Sprintf(`create function dawdle() returns trigger language plpgsql as $$ begin if old.id = '%s' then perform pg_sleep(2); end if; return old; end $$`, first))
	db.exec(t, `create trigger dawdle before delete on jobs_archive for each row execute function dawdle()`)
	walked := make(chan error, 1)
	go func() { walked <- db.pruneByCount(context.WithoutCancel(t.Context())) }()
	db.waitFor(t, 20*time.Second, `select exists (select from pg_stat_activity where wait_event = 'PgSleep' and query like '%drover_retain_archived%')`)
	if _, err := db.client.Restore(t.Context(), drover.Filter{IDs: []string{target}}, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	db.exec(t, `update jobs set finalized_at = now() where id = $1`, target) // redriven, and dead again
	if _, err := db.client.Archive(t.Context(), drover.Filter{IDs: []string{target}}, nil, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	if err := <-walked; err != nil {
		t.Fatal(err)
	}
	if !value[bool](t, db, `select exists (select from jobs_archive where id = $1)`, target) {
		t.Error("the archived job that ended last is deleted")
	}
}

// The database has refused to unpark two jobs. A redrive has released one of them since, and it is
// not set aside any more.
func TestARedrivenJobIsNoLongerSetAsideAsParked(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into jobs (kind, args, state, scheduled_at, errors_total, parked_build)
		select kind, '{"n": 1}', 'parked', 'infinity', 1, 'v1' from unnest('{job,other}'::text[]) kind`)
	db.exec(t, `insert into drover_set_aside (path, job, error, code, retry_at) select 'unpark', id, 'no', 'P0001', now() + interval '1 hour' from jobs`)
	if _, err := db.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{State: drover.Parked, Kind: "job"}}, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	db.launch(t, drover.SupervisorConfig{})
	db.waitFor(t, 20*time.Second, `select state = 'completed' from jobs where kind = 'job'`)
	db.exec(t, `select drover_retain('', '1 day', '1 day')`)
	if left := value[string](t, db, `select coalesce(string_agg(state, ', '), 'no') from drover_set_aside join jobs on jobs.id = job`); left != "parked" {
		t.Errorf("%s jobs are set aside, want the parked one", left)
	}
}
