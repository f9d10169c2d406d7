package engine

import (
	"context"

	"github.com/drover-queue/drover/internal/store"
)

// takeTurns takes, keeps or releases the turn to run strong suspects. queue has a due one; empty: no queue has.
func (c *keeper) takeTurns(ctx context.Context, conn store.Session, l *lease, queue string) error {
	now, order := c.Now(), c.Solo.Load()
	draining := c.Draining.Load()
	switch {
	case order != nil && !order.Over.Load():
		return nil
	case order != nil && (queue == "" || draining || !c.turns.GoesOn(now, order.ran.Load())):
		if err := conn.ReleaseSolo(ctx, l.ID); err != nil {
			return err
		}
		c.turns.End(now, order.idle.Load())
		c.Solo.Store(nil)
		c.alarm.Wake()
		return nil
	case order == nil:
		if queue == "" || draining || !c.turns.May(now) {
			return nil
		}
		if taken, err := conn.TakeSolo(ctx, l.ID); err != nil || !taken {
			return err
		}
		c.turns.Begin(now)
	}
	c.Solo.Store(&SoloOrder{Queue: queue, IdleBy: now.Add(c.turns.Patience)})
	c.alarm.Wake()
	return nil
}
