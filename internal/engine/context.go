package engine

import (
	"context"
	"sync"
	"time"
)

// runContext is a handler's context. It makes the real context when the handler first needs it. A context with a
// timeout causes half of the allocations of a short job. Such a context also registers with the context of the lease,
// under a lock that all runs share. A short handler never needs it.
type runContext struct {
	Parent context.Context //nolint:containedctx // the parent of the context to make
	Until  time.Time       // the deadline of the context to make; zero: none

	mu    sync.Mutex
	made  context.Context         //nolint:containedctx // nil until it is needed
	stop  context.CancelCauseFunc // ends made
	over  context.CancelFunc      // releases the timeout of made; stop does the same
	ended bool
	cause error // why the context ended; nil: the handler has returned
}

func (c *runContext) get() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made == nil {
		c.made, c.stop = context.WithCancelCause(c.Parent)
		if !c.Until.IsZero() {
			c.made, c.over = context.WithDeadlineCause(c.made, c.Until, ErrTimeout)
		}
		if c.ended {
			c.stop(c.cause)
		}
	}
	return c.made
}

// Deadline implements context.Context.
func (c *runContext) Deadline() (time.Time, bool) { return c.get().Deadline() }

// Done implements context.Context.
func (c *runContext) Done() <-chan struct{} { return c.get().Done() }

// Err implements context.Context.
func (c *runContext) Err() error { return c.get().Err() }

// Value implements context.Context. It makes no context, because all values are the parent's. A key that is a pointer
// to an int is the exception: with such a key the package context looks for contexts of its own.
func (c *runContext) Value(key any) any {
	if _, own := key.(*int); own {
		return c.get().Value(key)
	}
	return c.Parent.Value(key)
}

// why returns the cause of the context's end; nil while it has not ended. It makes no context.
func (c *runContext) why() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made != nil {
		return context.Cause(c.made)
	}
	if cause := context.Cause(c.Parent); cause != nil {
		return cause
	}
	if !c.Until.IsZero() && !time.Now().Before(c.Until) {
		return ErrTimeout
	}
	return c.cause
}

// end ends the context.
func (c *runContext) end(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	c.ended, c.cause = true, cause
	if c.made != nil {
		c.stop(cause)
	}
}
