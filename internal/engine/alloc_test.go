package engine_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/store"
)

// The allocations of a job from its claim to its settle, without the database: the run, the book, the handler's decoded
// args, the decision.
//
//nolint:paralleltest // counts the process' allocations
func TestAllocationsOfARun(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/nothing")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	c, err := drover.New(pool, drover.Config{Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	for name, end := range map[string]struct {
		handler func() error
		most    float64
	}{
		"completes": {func() error { return nil }, 6},
		"snoozes":   {func() error { return drover.Snooze(time.Second) }, 8},
	} {
		sup, err := c.NewSupervisor(drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: handling(func(context.Context, *drover.Job, int) error { return end.handler() })})
		if err != nil {
			t.Fatal(err)
		}
		e, now := harness.EngineOf(sup), time.Now()
		e.Lease.Store(engine.NewLease(t.Context(), "01JAAAAAAAAAAAAAAAAAAAAAAA"))
		e.Keeper.Kept(now)
		q := e.QueueStates()[0]
		p := &engine.Plan{Lease: e.Lease.Load(), Reply: store.ClaimReply{At: now}}
		j := store.Job{ID: "01JBBBBBBBBBBBBBBBBBBBBBBB", Kind: "job", Queue: "default", Lane: 5, Args: []byte(`{"n":1}`), Attempt: 1, ClaimSeq: 1, ScheduledAt: now}
		run := func() {
			r := e.Claimer.NewRun(&j, q, p, now)
			e.Unsettled.Add(r)
			q.Enter([]*engine.Run{r})
			if !e.Runner.RunJob(r) || r.End.Event != engine.EventCompleted && r.End.Event != engine.EventSnoozed {
				t.Fatalf("%s: %+v", name, r.End)
			}
			e.Settler.Ended = e.Settler.Ended[:0]
			e.Unsettled.Remove(r)
		}
		for range 5000 { // until slices and maps have grown
			run()
		}
		if n := testing.AllocsPerRun(2000, run); n > end.most {
			t.Errorf("a run that %s costs %.0f allocations, at most %.0f are promised", name, n, end.most)
		} else {
			t.Logf("%s: %.0f", name, n)
		}
	}
}
