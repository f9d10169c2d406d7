package drover

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drover-queue/drover/internal/pg"
)

// runner calls handlers: it has a goroutine for each slot of each queue.
type runner struct {
	*shared
	settler   *settler
	spawn     func(func())   // starts a goroutine
	slots     sync.WaitGroup // one for each worker; abandoned ones leave theirs to others
	abandoned atomic.Int64   // handlers that ignored the end of their context
}

func newRunner(s *shared, settler *settler, spawn func(func())) *runner {
	return &runner{shared: s, settler: settler, spawn: spawn}
}

// start starts the workers of all queues.
func (w *runner) start() {
	w.queuesMu.Lock()
	defer w.queuesMu.Unlock()
	w.started = true
	for _, q := range w.queues {
		w.startQueue(q)
	}
}

// startQueue starts the workers of a queue.
func (w *runner) startQueue(q *queueState) {
	w.slots.Add(q.Slots)
	for range q.Slots {
		w.startWorker(q)
	}
}

// startWorker starts one worker in a free slot. The slot may have belonged to an abandoned handler, or to a handler that
// called runtime.Goexit.
func (w *runner) startWorker(q *queueState) { w.spawn(func() { w.work(q) }) }

// work runs jobs of one queue until the queue is closed.
func (w *runner) work(q *queueState) {
	for {
		r, ok := q.buffer.take()
		if !ok {
			w.slots.Done()
			return
		}
		if r.lease.ended.Load() { // it may be someone else's before its handler could notice
			w.giveBack(r)
			continue
		}
		if !w.runJob(r) {
			return
		}
	}
}

// runJob is the life of a run: start, call, decide, settle. It returns false if its goroutine has been replaced, because
// the handler was abandoned or called runtime.Goexit.
func (w *runner) runJob(r *Run) (goOn bool) {
	if !r.phase.CompareAndSwap(phaseBuffered, phaseStarted) {
		return true // handed back meanwhile
	}
	switch {
	case r.Expired:
		w.endUnstarted(r, w.handler.CutShort(r, ErrExpired))
		return true
	case r.Unreadable != nil:
		w.endUnstarted(r, w.handler.CutShort(r, ErrUnreadable))
		return true
	case r.unwanted.Load(): // its row says so, and refuses this
		w.giveBack(r)
		return true
	case r.once() && !w.settler.noteStart(r):
		if r.putOff.Load() {
			r.finish()
		} else {
			w.giveBack(r)
		}
		return true
	}
	r.startedAt = w.now()
	r.lazy.parent = r.lease.ctx
	if r.Timeout > 0 {
		r.lazy.until = time.Now().Add(r.Timeout)
	}
	r.ctx = &r.lazy

	var err error
	returned := false
	defer func() {
		failpoint("ran")
		defer r.cancel(nil)
		if r.phase.Load() != phaseStarted { // it was given up
			return
		}
		// This calls code of the application, so it belongs to the run and its timeout.
		w.decide(r, err, returned, func(o Outcome, exited bool) {
			if goOn = r.endOnce(); goOn {
				r.End = o
				w.settler.settle(r)
				if exited {
					w.startWorker(r.from)
				}
			}
		})
	}()
	w.inFlight.add(r)
	if r.unwanted.Load() { // since a moment: cancelRun may not have found it yet
		r.cancel(pg.ErrCancelled)
	}
	if w.handler.Hears(r.ctx, EventStarted) {
		w.handler.Tell(r.ctx, &EngineEvent{Kind: EventStarted, Run: r})
	}
	err = w.handler.Handle(r.ctx, r)
	returned = true
	return goOn
}

// decide asks for the outcome of a run, and passes it on. exited is whether the goroutine ends, because the handler or
// code that decides has called runtime.Goexit.
func (w *runner) decide(r *Run, err error, returned bool, pass func(o Outcome, exited bool)) {
	if !returned {
		pass(w.handler.CutShort(r, ErrExit), true)
		return
	}
	var o Outcome
	decided := false
	defer func() {
		exited := false
		if !decided {
			p := recover()
			exited = p == nil
			o = w.handler.CutShort(r, &UndecidedError{Panicked: !exited, Value: p})
		}
		pass(o, exited)
	}()
	o = w.handler.Decide(r, err)
	decided = true
}

// endUnstarted ends a run whose handler is not called.
func (w *runner) endUnstarted(r *Run, o Outcome) {
	r.finish()
	r.End = o
	w.settler.settle(r)
}

// giveBack ends a run that has not started, and hands its job back.
func (w *runner) giveBack(r *Run) { w.endUnstarted(r, HandedBack(r.Ran())) }

// handBack hands back the jobs of runs that have ended without having started.
func (w *runner) handBack(runs []*Run) {
	for _, r := range runs {
		r.End = HandedBack(r.Ran())
		w.settler.settle(r)
	}
}

// watchInterval is how exactly deaf handlers are noticed.
const watchInterval = 100 * time.Millisecond

// watch frees the slots of handlers that ignore the end of their context after their timeout.
func (w *runner) watch(ctx context.Context) {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, r := range w.inFlight.all() {
			if r.deaf(w.now()) && r.endOnce() {
				w.abandon(ctx, r, "handler ignores its timeout, slot freed", ErrTimeout)
				w.startWorker(r.from)
			}
		}
	}
}

// abandonAll gives up the handlers that still run when the supervisor must stop.
func (w *runner) abandonAll(ctx context.Context) {
	for _, r := range w.inFlight.all() {
		if r.endOnce() {
			w.abandon(ctx, r, "handler ignores its cancelled context, job given up", ErrIgnoredStop)
			w.slots.Done()
		}
	}
}

// abandon gives up a handler whose run has been ended for it. The log and what decides the outcome are the application's:
// they may block as its handler does.
func (w *runner) abandon(ctx context.Context, r *Run, message string, why error) {
	w.abandoned.Add(1)
	w.spawn(func() {
		w.log.WarnContext(ctx, message, slog.Any("job", r), slog.Duration("timeout", r.Timeout))
		r.End = w.handler.CutShort(r, why)
		w.settler.settle(r)
	})
}

// open puts a new queue in place, with its workers once there are any. After closeQueues it returns false.
func (w *runner) open(queues []*queueState, q *queueState) bool {
	w.queuesMu.Lock()
	defer w.queuesMu.Unlock()
	if w.closed {
		return false
	}
	w.queues = queues
	if w.started {
		w.startQueue(q)
	}
	return true
}

// closeQueues ends the workers once their jobs have ended, and hands back what has not started.
func (w *runner) closeQueues() {
	w.queuesMu.Lock()
	defer w.queuesMu.Unlock()
	w.closed = true
	for _, q := range w.queues {
		w.handBack(q.buffer.close())
	}
}
