package engine_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/harness"
)

// O-1: the events add up in a run with faults. Replies of settles are lost, and one of two supervisors loses its lease and
// its jobs while its handlers work. Every run that started ends in one event all the same.
func TestEventsAddUpUnderFaults(t *testing.T) {
	t.Parallel()
	slow(t)
	var heard harness.EventLog
	hooks := drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}}
	db := newTestDBWith(t, hooks)
	cut, wire := db.cutting(t, hooks)
	work := func(ctx context.Context, job *drover.Job) error {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
		switch n := job.ID[len(job.ID)-1] % 8; {
		case n == 0 && job.Attempt == 1:
			return errBoom
		case n == 1 && job.Snoozes == 0:
			return drover.Snooze(time.Millisecond)
		case n == 2:
			return drover.Discard(errBoom)
		case n == 3:
			return drover.Cancel(errBoom)
		case n == 4 && job.Attempt == 1:
			panic("oh")
		}
		return nil
	}
	cfg := drover.SupervisorConfig{
		Queues: []drover.Queue{{Concurrency: 8, Retry: drover.Every(time.Millisecond)}}, Lease: 2 * time.Second, PollInterval: 50 * time.Millisecond, DrainTimeout: time.Second,
		Workers: []drover.Worker{harness.DynWorker("k", drover.WorkerOpts{}, work)},
	}
	_, stop := db.Start(t, cfg)
	thawed := make(chan struct{})
	thaw := sync.OnceFunc(func() { wire.thaw(); close(thawed) })
	cfg.Queues = append(cfg.Queues, drover.Queue{Name: "own"})
	cfg.Workers = append(cfg.Workers, harness.DynWorker("deaf", drover.WorkerOpts{}, func(_ context.Context, job *drover.Job) error {
		if job.Crashes == 0 {
			<-thawed
		}
		return nil
	}))
	_, stopCut := cut.Start(t, cfg)
	enqueue := func() {
		var batch []drover.EnqueueItem
		for range 500 {
			batch = append(batch, drover.EnqueueItem{Args: dyn{kind: "k"}})
		}
		if _, err := db.client.EnqueueMany(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 5 {
		wire.arm("claim_seq", "") // of a settle, or of a claim
		enqueue()
		eventually(t, func() bool { return wire.cutSoFar() > n })
	}
	enqueue()
	deaf := db.enqueue(t, dyn{kind: "deaf"}, &drover.EnqueueOpts{Queue: "own"})
	heard.Wait(t, deaf, "started")
	wire.freeze()
	defer thaw()
	db.waitFor(t, time.Minute, `select errors_total > 0 from jobs where id = $1`, deaf) // it is rescued
	thaw()
	db.waitFor(t, time.Minute, `select not exists (select from jobs where finalized_at is null)`)
	stopCut()
	stop()

	total := map[string]int{}
	for _, e := range heard.All() {
		total[e.Name]++
	}
	ended := 0
	for _, name := range harness.EndEvents() {
		ended += total[name]
	}
	t.Logf("%v", total)
	if ended != total["started"] {
		t.Errorf("%d runs started, %d ended: %v", total["started"], ended, total)
	}
	for _, name := range []string{"completed", "failed", "snoozed", "discarded", "cancelled", "stale_settle", "rescued"} {
		if total[name] == 0 {
			t.Errorf("no run ended as %s", name)
		}
	}
}
