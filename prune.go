package drover

import (
	"context"
	"log/slog"
	"time"
)

const pruneBatch = 1000

// prune deletes or archives jobs that have ended and whose time is over. Of all supervisors the one that started first
// has the turn, for the queues of all; two for a moment do no harm.
func (s *Supervisor) prune(ctx context.Context) {
	completed, cancelled := keepFor(s.cfg.CompletedRetention), keepFor(s.cfg.CancelledRetention)
	ticker := time.NewTicker(s.pruneEvery)
	defer ticker.Stop()
	for after, rounds := "", 0; ; rounds++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if !s.pruner.Load() {
			continue
		}
		if rounds%60 == 0 {
			after = "" // what was too young an hour ago
		}
		var err error
		if after, err = s.client.pruneWalk(ctx, after, completed, cancelled); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "pruning failed, will be tried again", slog.String("error", err.Error()))
		}
	}
}

// keepFor is a retention as SQL wants it; nil is for ever.
func keepFor(d time.Duration) *string {
	if d == KeepCompleted {
		return nil
	}
	text := interval(d)
	return &text
}

// pruneWalk walks on from an id until nothing is left to walk, in small transactions, and returns the last id.
func (c *Client) pruneWalk(ctx context.Context, after string, completed, cancelled *string) (string, error) {
	conn, err := c.store.pool.Acquire(ctx)
	if err != nil {
		return after, err
	}
	defer conn.Release()
	for {
		step, err := c.store.retain(ctx, conn.Conn(), after, completed, cancelled, pruneBatch)
		if step.deleted+step.archived > 0 {
			c.log.DebugContext(ctx, "jobs pruned", slog.Int64("deleted", step.deleted), slog.Int64("archived", step.archived))
		}
		if err != nil || step.last == "" {
			return after, err
		}
		after = step.last
	}
}

// retention is how long a queue's jobs are kept, as SQL wants it; nil leaves it to the supervisor that prunes.
type retention struct{ completed, cancelled, discarded, archived *string }

func (q *Queue) retention() retention {
	own := func(d time.Duration) *string { // for ever is a setting too, over the supervisor's
		if d == 0 {
			return nil
		}
		text := interval(d)
		return &text
	}
	return retention{own(q.CompletedRetention), own(q.CancelledRetention), own(q.DiscardedRetention), own(q.ArchiveDiscardedAfter)}
}

// checkRetention checks how long the queue's jobs are kept.
func (q *Queue) checkRetention(bad *problems, field string) {
	bad.completedRetention(field+".CompletedRetention", q.CompletedRetention)
	bad.atLeast(field+".CancelledRetention", q.CancelledRetention, leastRetention)
	bad.atLeast(field+".DiscardedRetention", q.DiscardedRetention, leastRetention)
	bad.atLeast(field+".ArchiveDiscardedAfter", q.ArchiveDiscardedAfter, leastRetention)
	if q.DiscardedRetention > 0 && q.ArchiveDiscardedAfter > 0 {
		bad.add(field+".ArchiveDiscardedAfter", "contradicts DiscardedRetention: a discarded job is archived or deleted")
	}
}
