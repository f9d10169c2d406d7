package drover

import (
	"context"

	"github.com/drover-queue/drover/internal/store"
)

// takeTurns takes, keeps and gives up the turn to run strong suspects, of which one is due in queue.
func (c *control) takeTurns(ctx context.Context, conn store.Session, l *lease, queue string) error {
	now, order := c.now(), c.solo.Load()
	draining := c.draining.Load()
	switch {
	case order != nil && !order.over.Load():
		return nil
	case order != nil && (queue == "" || draining || !c.turns.GoesOn(now, order.ran.Load())):
		if err := conn.ReleaseSolo(ctx, l.id); err != nil {
			return err
		}
		c.turns.End(now, order.idle.Load())
		c.solo.Store(nil)
		c.alarm.wake()
		return nil
	case order == nil:
		if queue == "" || draining || !c.turns.May(now) {
			return nil
		}
		if taken, err := conn.TakeSolo(ctx, l.id); err != nil || !taken {
			return err
		}
		c.turns.Begin(now)
	}
	c.solo.Store(&soloOrder{queue: queue, idleBy: now.Add(c.turns.Patience)})
	c.alarm.wake()
	return nil
}
