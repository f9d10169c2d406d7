package drover

import (
	"context"
	"log/slog"
	"time"
)

const (
	pruneEvery = time.Minute
	pruneBatch = 1000
)

// prune deletes completed and cancelled jobs whose time is over. Of all supervisors the one that started first has
// the turn; two for a moment do no harm.
func (s *Supervisor) prune(ctx context.Context) {
	completed, cancelled := keepFor(s.cfg.CompletedRetention), keepFor(s.cfg.CancelledRetention)
	if completed == nil && cancelled == nil {
		return
	}
	ticker := time.NewTicker(pruneEvery)
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
		last, deleted, err := c.store.prune(ctx, conn.Conn(), after, completed, cancelled, pruneBatch)
		if err != nil || last == "" {
			return after, err
		}
		if after = last; deleted > 0 {
			c.log.DebugContext(ctx, "jobs pruned", slog.Int64("count", deleted))
		}
	}
}
