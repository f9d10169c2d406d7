package engine

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// ActivityEvery is the time between two writes of the tallies (queue.go) to the database.
const ActivityEvery = time.Minute

// activity writes the growth of the tallies since the last write. If a write fails, the next write covers a longer
// time.
type activity struct {
	*Shared
	since   time.Time
	written map[*QueueState]store.Activity
}

func newActivity(s *Shared) *activity { return &activity{s, s.Now(), map[*QueueState]store.Activity{}} }

func (a *activity) run(ctx context.Context) {
	timer := time.NewTicker(ActivityEvery)
	defer timer.Stop()
	for await(ctx, timer.C, nil) {
		a.Write(ctx)
	}
}

// Write writes the growth of the tallies. In the supervisor that prunes, it also deletes old rows of drover_activity,
// and samples how many jobs wait in each queue. Write forgets a removed queue once none of its jobs is pending and its
// tally has not changed since the last write.
func (a *activity) Write(base context.Context) {
	now, id := a.Now(), a.Lease.Load().ID
	sums := map[*QueueState]store.Activity{}
	byName := map[string]store.Activity{} // a queue that was removed and added again has two tallies, and one row
	for _, q := range a.Tallied() {
		sums[q] = q.tally.read(q.Name)
		if gain := sums[q].Since(a.written[q]); gain != (store.Activity{Queue: q.Name}) {
			byName[q.Name] = gain.Plus(byName[q.Name])
		}
	}
	gains := slices.Collect(maps.Values(byName))
	if prunes := a.Prunes.Load(); len(gains) > 0 || prunes {
		ctx, cancel := a.tripContext(base)
		defer cancel()
		if err := store.NoteActivity(ctx, a.pool, id, now.Sub(a.since), gains, prunes); err != nil {
			if pg.Answered(err) { // if the server did not answer, other parts log the outage
				a.seldom.log(base, a.log, slog.LevelWarn, "activity", "how many jobs ran could not be written, the plots wait for it", slog.String("error", err.Error()))
			}
			return
		}
	}
	a.forgetRemoved(func(q *QueueState) bool {
		return q.Pending.Load() == 0 && q.tally.read(q.Name) == a.written[q]
	})
	a.since, a.written = now, sums
	if a.Prunes.Load() && !a.Draining.Load() {
		a.sampleDepth(base)
	}
}

// sampleDepth records how many jobs wait in each queue.
func (a *activity) sampleDepth(base context.Context) {
	ctx, cancel := a.tripContext(base)
	defer cancel()
	if err := store.SampleDepth(ctx, a.pool); err != nil && pg.Answered(err) {
		a.seldom.log(base, a.log, slog.LevelWarn, "depth", "how many jobs wait could not be counted, the plots have a gap", slog.String("error", err.Error()))
	}
}
