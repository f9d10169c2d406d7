package engine

import (
	"context"
	"sync/atomic"

	"github.com/drover-queue/drover/internal/pg"
)

// lease is a supervisor's claim to its jobs under one id. The handlers' contexts end with it.
type lease struct {
	ID     string
	Epoch  *atomic.Int64   // the epoch of our row, as far as we know; never lowered
	Ctx    context.Context //nolint:containedctx // the parent of handlers' contexts
	Cancel context.CancelCauseFunc
	Ended  atomic.Bool // another supervisor has declared us lost, or we did not renew the lease in time
}

// NewLease returns a lease that handlers run under from now on.
func NewLease(base context.Context, id string) *lease {
	l := &lease{ID: id, Epoch: new(atomic.Int64)}
	l.Epoch.Store(1)
	l.Ctx, l.Cancel = context.WithCancelCause(base)
	return l
}

// renewed returns a lease of the same id with a fresh context. It is used after an outage in which no other supervisor
// declared us lost. Both leases share the epoch, because the claimer may be raising it at the same moment.
func (l *lease) renewed(base context.Context) *lease {
	fresh := &lease{ID: l.ID, Epoch: l.Epoch}
	fresh.Ctx, fresh.Cancel = context.WithCancelCause(base)
	return fresh
}

// Raise raises the epoch to the given number. It never lowers the epoch.
func (l *lease) Raise(epoch int) {
	for old := l.Epoch.Load(); old < int64(epoch); old = l.Epoch.Load() {
		if l.Epoch.CompareAndSwap(old, int64(epoch)) {
			return
		}
	}
}

// Lose ends the lease and cancels its handlers. It must be called before other supervisors may take the jobs. Lose
// reports whether this call has ended the lease.
func (l *lease) Lose() bool {
	if l.Ended.Swap(true) {
		return false
	}
	l.Cancel(pg.ErrLeaseLost)
	return true
}
