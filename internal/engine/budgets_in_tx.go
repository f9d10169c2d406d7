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
func (s *settler) slotFor(ctx context.Context, r *Run, o *Outcome) error {
	if !s.budgets.wants(r, o) {
		return nil
	}
	a := &slotRequest{wanting{run: r, end: o}, make(chan error, 1)}
	s.Mu.Lock()
	s.asks = append(s.asks, a)
	s.Mu.Unlock()
	s.signal.poke()
	select {
	case err := <-a.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-s.Idle:
		return pg.ErrShutdown
	}
}

// reservePause is the pause before a failed reservation is tried again.
const reservePause = time.Second

// reserve takes the slots that retries and slotRequests need. It returns the runs whose outcomes can be recorded now.
// If the reservation fails, it returns only the runs that need no slot. The other runs try it again after reservePause.
func (s *settler) reserve(ctx context.Context, conn store.Session, out []*Run) []*Run {
	s.Mu.Lock()
	asks := s.asks
	s.asks = nil
	s.Mu.Unlock()
	var ends []wanting
	for _, a := range asks {
		ends = append(ends, a.wanting)
	}
	for _, r := range out {
		if s.budgets.wants(r, &r.End) {
			ends = append(ends, wanting{run: r, end: &r.End})
		}
	}
	err := s.budgets.Reserve(ctx, conn, ends)
	for _, a := range asks {
		a.done <- err
	}
	if err == nil {
		s.slots.Over(ctx, s.Shared)
		return out
	}
	s.slots.Failed(ctx, s.Shared, "taking slots of retry budgets", err)
	return slices.DeleteFunc(out, func(r *Run) bool {
		if !s.budgets.wants(r, &r.End) {
			return false
		}
		s.tryLater(r, reservePause)
		return true
	})
}
