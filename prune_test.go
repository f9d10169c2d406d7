package drover

import (
	"context"
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
		last, err := db.client.pruneWalk(t.Context(), "", keepFor(c.completed), keepFor(c.cancelled))
		if err != nil {
			t.Fatal(err)
		}
		_ = last
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
	day := keepFor(24 * time.Hour)
	last, deleted, err := db.client.store.prune(t.Context(), conn.Conn(), "", day, day, pruneBatch)
	if err != nil || deleted != 900 || last == "" {
		t.Fatalf("the first batch deleted %d up to %q, %v", deleted, last, err)
	}
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `select from jobs where id > $1 and state = 'completed' order by id limit 7 for update`, last); err != nil {
		t.Fatal(err)
	}
	if _, err := db.client.pruneWalk(t.Context(), last, day, day); err != nil {
		t.Fatal(err)
	}
	if n := value[int](t, db, `select count(*) from jobs where state = 'completed'`); n != 7 {
		t.Errorf("%d completed jobs are left, 7 were held", n)
	}
	if n := value[int](t, db, `select count(*) from jobs where state = 'available'`); n != 350 {
		t.Errorf("%d of 350 waiting jobs are left", n)
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
