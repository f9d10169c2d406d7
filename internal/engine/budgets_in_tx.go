package engine

import (
	"context"
	"slices"
	"time"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// slotRequest is a run that settles in its handler's transaction and needs a slot of a retry budget first. The settler
// takes the slot on its own connection. If the handler's transaction took the slot, that transaction would lock rows
// until its end, and every batch with failures needs these rows. A second connection of the pool would not help,
// because the handler may hold the last free connection.
type slotRequest struct {
	wanting
	done chan error
}

// slotFor makes the settler take a slot for an outcome of r, if the outcome needs a slot.
func (e *settler) slotFor(ctx context.Context, r *Run, o *Outcome) error {
	if !e.budgets.wants(r, o) {
		return nil
	}
	a := &slotRequest{wanting{run: r, end: o}, make(chan error, 1)}
	e.Mu.Lock()
	e.asks = append(e.asks, a)
	e.Mu.Unlock()
	e.signal.poke()
	select {
	case err := <-a.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-e.Idle:
		return pg.ErrShutdown
	}
}

// reservePause is the pause before a failed reservation is tried again.
const reservePause = time.Second

// reserve takes the slots that retries and slotRequests need. It returns the runs whose outcomes can be recorded now.
// If the reservation fails, it returns only the runs that need no slot. The other runs try it again after reservePause.
func (e *settler) reserve(ctx context.Context, conn store.Session, out []*Run) []*Run {
	e.Mu.Lock()
	asks := e.asks
	e.asks = nil
	e.Mu.Unlock()
	var ends []wanting
	for _, a := range asks {
		ends = append(ends, a.wanting)
	}
	for _, r := range out {
		if e.budgets.wants(r, &r.End) {
			ends = append(ends, wanting{run: r, end: &r.End})
		}
	}
	err := e.budgets.Reserve(ctx, conn, ends)
	for _, a := range asks {
		a.done <- err
	}
	if err == nil {
		e.slots.Over(ctx, e.Shared)
		return out
	}
	e.slots.Failed(ctx, e.Shared, "taking slots of retry budgets", err)
	return slices.DeleteFunc(out, func(r *Run) bool {
		if !e.budgets.wants(r, &r.End) {
			return false
		}
		e.later(r, reservePause)
		return true
	})
}
