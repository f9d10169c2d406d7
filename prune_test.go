package drover

import (
	"context"
	"slices"
	"testing"
	"time"
)

// finished stores a job that ended some time ago, with an id of its time.
func (db *testDB) finished(t testing.TB, state string, ago time.Duration) string {
	t.Helper()
	return value[string](t, db, `insert into jobs (id, kind, state, created_at, finalized_at, discard_reason)
		select left(drover_ulid_at(now() - $2::interval), 10) || right(drover_ulid(), 16), 'job', $1, now() - $2::interval,
			case when $1 in ('completed', 'cancelled', 'discarded') then now() - $2::interval end, case when $1 = 'discarded' then 'operator' end
		returning id`, state, interval(ago))
}

// D-1
func TestPruneDeletesOldCompletedAndCancelledJobsOnly(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	const day = 24 * time.Hour
	for _, c := range []struct {
		completed, cancelled time.Duration
		gone                 []string
	}{
		{day, 2 * day, []string{"completed 36h", "completed 72h", "cancelled 72h"}},
		{KeepCompleted, day, []string{"cancelled 36h", "cancelled 72h"}},
		{day, KeepCompleted, []string{"completed 36h", "completed 72h"}},
		{DeleteOnCompletion, DeleteOnCompletion, []string{"completed 1h", "completed 36h", "completed 72h", "cancelled 1h", "cancelled 36h", "cancelled 72h"}},
	} {
		db.exec(t, `truncate jobs`)
		ids := map[string]string{}
		for name, ago := range map[string]time.Duration{"1h": time.Hour, "36h": 36 * time.Hour, "72h": 72 * time.Hour} {
			for _, state := range []string{"completed", "cancelled", "discarded", "available"} {
				ids[state+" "+name] = db.finished(t, state, ago)
			}
		}
		if _, err := db.client.prune(t.Context(), pruneWalk{}, keeping{keepFor(c.completed), keepFor(c.cancelled)}); err != nil {
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
	keep := keeping{keepFor(24 * time.Hour), keepFor(24 * time.Hour)}
	step, err := db.client.store.retain(t.Context(), conn.Conn(), "", keep, false, pruneBatch)
	if err != nil || step.deleted != 900 || step.last == "" {
		t.Fatalf("the first batch: %+v, %v", step, err)
	}
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `select from jobs where id > $1 and state = 'completed' order by id limit 7 for update`, step.last); err != nil {
		t.Fatal(err)
	}
	if _, err := db.client.prune(t.Context(), pruneWalk{after: step.last}, keep); err != nil {
		t.Fatal(err)
	}
	if n := value[int](t, db, `select count(*) from jobs where state = 'completed'`); n != 7 {
		t.Errorf("%d completed jobs are left, 7 were held", n)
	}
	if n := value[int](t, db, `select count(*) from jobs where state = 'available'`); n != 350 {
		t.Errorf("%d of 350 waiting jobs are left", n)
	}
}

// launchPruning is launch with a pruner that does not wait a minute.
func (db *testDB) launchPruning(t testing.TB, cfg SupervisorConfig) {
	t.Helper()
	cfg.Workers = doingNothing()
	sup, err := db.client.Supervisor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	sup.pruneEvery = 10 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- sup.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// ended stores a job of a queue that ended some time ago.
func (db *testDB) ended(t testing.TB, queue, state string, ago time.Duration) string {
	t.Helper()
	id := db.finished(t, state, ago)
	db.exec(t, `update jobs set queue = $2 where id = $1`, id, queue)
	return id
}

// D-1, X-5: a running supervisor prunes in its turn; a queue's own retention goes first, and only a queue that says so
// loses its discarded jobs.
func TestRetentionOfQueues(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	const day = 24 * time.Hour
	want := map[string]bool{} // id to whether it stays in jobs
	put := func(queue, state string, ago time.Duration, stays bool) string {
		id := db.ended(t, queue, state, ago)
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
	waits := db.enqueue(t, job{}, &EnqueueOpts{Queue: "elsewhere"})
	want[waits] = true
	db.launchPruning(t, SupervisorConfig{CompletedRetention: day, CancelledRetention: 2 * day, Queues: []Queue{
		{},
		{Name: "long", CompletedRetention: 7 * day, CancelledRetention: KeepCompleted},
		{Name: "short", CompletedRetention: time.Hour, CancelledRetention: time.Hour},
		{Name: "trash", DiscardedRetention: 30 * day},
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

// A queue that deletes its jobs on completion leaves none, beside one that keeps them; with nothing to prune by the
// supervisor's own settings.
func TestDeleteOnCompletionOfOneQueue(t *testing.T) {
	t.Parallel()
	var book diary
	db := newQuietDB(t).via(t, Config{Hooks: book.hooks()})
	db.launch(t, SupervisorConfig{CompletedRetention: KeepCompleted, CancelledRetention: KeepCompleted, Queues: []Queue{
		{Name: "kept"}, {Name: "gone", CompletedRetention: DeleteOnCompletion},
	}})
	kept := db.enqueue(t, job{}, &EnqueueOpts{Queue: "kept"})
	gone := db.enqueue(t, job{}, &EnqueueOpts{Queue: "gone"})
	eventually(t, func() bool { return book.count(eventCompleted, kept) == 1 && book.count(eventCompleted, gone) == 1 })
	if got := value[string](t, db, `select string_agg(id, ' ') from jobs`); got != kept {
		t.Errorf("left: %s, want %s", got, kept)
	}
}

func TestRetentionIsValidated(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	all := func(d time.Duration) SupervisorConfig {
		return SupervisorConfig{CompletedRetention: d, CancelledRetention: d, Queues: []Queue{
			{CompletedRetention: d, CancelledRetention: d, DiscardedRetention: d},
			{Name: "stored", ArchiveDiscardedAfter: d},
		}}
	}
	completed := []string{"CompletedRetention", "Queues[0].CompletedRetention"}
	others := []string{"CancelledRetention", "Queues[0].CancelledRetention", "Queues[0].DiscardedRetention", "Queues[1].ArchiveDiscardedAfter"}
	every := slices.Concat(completed, others)
	for name, c := range map[string]struct {
		cfg SupervisorConfig
		bad []string
	}{
		"unset":                {all(0), nil},
		"a second":             {all(time.Second), nil},
		"for ever":             {all(KeepCompleted), nil},
		"negative":             {all(-time.Hour), every},
		"no unit":              {all(30), every}, // 30 ns would delete the dead letters within a minute
		"less than a second":   {all(time.Second - 1), every},
		"delete on completion": {all(DeleteOnCompletion), others},
		"archived and deleted": {SupervisorConfig{Queues: []Queue{{ArchiveDiscardedAfter: time.Hour, DiscardedRetention: time.Hour}}}, []string{"Queues[0].ArchiveDiscardedAfter"}},
	} {
		c.cfg.Workers = doingNothing()
		_, err := db.client.Supervisor(c.cfg)
		got := fields(t, err)
		slices.Sort(got)
		if want := slices.Sorted(slices.Values(c.bad)); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// Of all supervisors the one that started first prunes.
func TestPruningHasOneTurn(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	first, second := db.stopped(t, SupervisorConfig{}), db.stopped(t, SupervisorConfig{})
	if first.lease.Load().id > second.lease.Load().id {
		t.Fatal("ids do not sort by time")
	}
	first.beat(t)
	second.beat(t)
	if !first.pruner.Load() || second.pruner.Load() {
		t.Errorf("the turn is the first's: %v, the second's: %v", first.pruner.Load(), second.pruner.Load())
	}
	db.exec(t, `update supervisors set lost_at = now() where id = $1`, first.lease.Load().id)
	second.beat(t)
	if !second.pruner.Load() {
		t.Error("nobody has the turn of a lost one")
	}
}

// DeleteOnCompletion leaves no row, from the engine and from the handler's own transaction.
func TestDeleteOnCompletion(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	done := make(chan struct{}, 4)
	db.launch(t, SupervisorConfig{CompletedRetention: DeleteOnCompletion, Workers: handling(func(ctx context.Context, j *Job, n int) error {
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
	db.waitFor(t, 10*time.Second, `select count(*) = 0 from jobs`)
}
