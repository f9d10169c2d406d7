package engine

import (
	"context"
	"log/slog"
	"time"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// ActivityEvery is how often the tallies are written.
const ActivityEvery = time.Minute

// activity writes what the tallies gained since the last time. While the database does not take it, the time gets longer.
type activity struct {
	*Shared
	since   time.Time
	written map[*QueueState]store.Activity
}

func newActivity(s *Shared) *activity { return &activity{s, s.Now(), map[*QueueState]store.Activity{}} }

func (a *activity) run(ctx context.Context) {
	timer := time.NewTicker(ActivityEvery)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			a.Write(ctx)
		}
	}
}

// Write writes what the tallies gained. The supervisor that prunes also deletes rows that are too old.
func (a *activity) Write(base context.Context) {
	now, id := a.Now(), a.Lease.Load().ID
	sums := map[*QueueState]store.Activity{}
	var gains []store.Activity
	for _, q := range a.QueueStates() {
		sums[q] = q.tally.read(q.Name)
		if gain := sums[q].Since(a.written[q]); gain != (store.Activity{Queue: q.Name}) {
			gains = append(gains, gain)
		}
	}
	if prunes := a.Prunes.Load(); len(gains) > 0 || prunes {
		ctx, cancel := a.tripContext(base)
		defer cancel()
		if err := store.NoteActivity(ctx, a.pool, id, now.Sub(a.since), gains, prunes); err != nil {
			if pg.Answered(err) { // else the log has a line about an outage
				a.seldom.log(base, a.log, slog.LevelWarn, "activity", "how many jobs ran could not be written, the plots wait for it", slog.String("error", err.Error()))
			}
			return
		}
	}
	a.since, a.written = now, sums
}
