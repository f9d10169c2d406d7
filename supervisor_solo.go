package drover

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// solo takes, keeps and gives up the right to run strong suspects, of which one is due in queue. One supervisor has it at
// a time.
func (c *control) solo(ctx context.Context, conn *pgx.Conn, l *lease, queue string) error {
	store, now, order := c.client.store, c.now(), c.lookout.solo.Load()
	draining := c.draining.Load()
	switch {
	case order != nil && !order.over.Load():
		return nil
	case order != nil && (queue == "" || draining || !c.solos.GoesOn(now, order.ran.Load())):
		if err := store.releaseSolo(ctx, conn, l.id); err != nil {
			return err
		}
		c.solos.End(now, order.idle.Load())
		c.lookout.solo.Store(nil)
		c.lookout.wake()
		return nil
	case order == nil:
		if queue == "" || draining || !c.solos.May(now) {
			return nil
		}
		if taken, err := store.takeSolo(ctx, conn, l.id); err != nil || !taken {
			return err
		}
		c.solos.Begin(now)
	}
	c.lookout.solo.Store(&soloOrder{queue: queue, idleBy: now.Add(c.solos.Patience())})
	c.lookout.wake()
	return nil
}
