package engine

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
	*Shared
	settler   *settler
	spawn     func(func())   // starts a goroutine
	Slots     sync.WaitGroup // counts the slots; if a goroutine is abandoned, its slot goes to the goroutine that replaces it
	Abandoned atomic.Int64   // how many handlers ignored the end of their context
}

// NewRunner returns a runner that serves no slot yet. The parameter spawn starts a goroutine.
func NewRunner(s *Shared, settler *settler, spawn func(func())) *runner {
	return &runner{Shared: s, settler: settler, spawn: spawn}
}

// start starts a goroutine for each slot of all queues.
func (w *runner) start() {
	w.queuesMu.Lock()
	defer w.queuesMu.Unlock()
	w.started = true
	for _, q := range w.queues {
		w.startQueue(q)
	}
}

// startQueue starts a goroutine for each slot of a queue.
func (w *runner) startQueue(q *QueueState) {
	w.Slots.Add(q.Slots)
	for range q.Slots {
		w.FillSlot(q)
	}
}

// FillSlot starts the goroutine of a free slot. The slot may have belonged to an abandoned handler, or to a handler
// that called runtime.Goexit.
func (w *runner) FillSlot(q *QueueState) { w.spawn(func() { w.Serve(q) }) }

// Serve runs jobs of one queue until the queue is closed.
func (w *runner) Serve(q *QueueState) {
	id := goroutineID()
	for {
		r, ok := q.Buffer.Take()
		if !ok {
			w.Slots.Done()
			return
		}
		if r.Lease.Ended.Load() { // another supervisor may take the job before a handler of ours notices
			w.release(r)
			continue
		}
		r.goroutine = id
		if !w.RunJob(r) {
			return
		}
	}
}

// RunJob starts a run, calls its handler, decides the outcome, and hands the run to the settler. It returns false if
// another goroutine serves the slot now, because the handler was abandoned or called runtime.Goexit.
func (w *runner) RunJob(r *Run) (goOn bool) {
	if !r.phase.CompareAndSwap(phaseBuffered, phaseStarted) {
		return true // the run has been released
	}
	switch {
	case r.Expired:
		w.endUnstarted(r, w.Handler.CutShort(r, ErrExpired))
		return true
	case r.Unreadable != nil:
		w.endUnstarted(r, w.Handler.CutShort(r, ErrUnreadable))
		return true
	case r.cancelRequested.Load(), // an operator has ended the job, and the settle will find this
		w.holds.Load().holdsJob(r.Queue, r.Kind):
		w.release(r)
		return true
	case r.singleAttempt() && !w.settler.NoteStart(r):
		if r.postponed.Load() {
			r.Finish()
		} else {
			w.release(r)
		}
		return true
	}
	r.Lazy.Parent = r.Lease.Ctx
	if r.Timeout > 0 {
		r.Lazy.Until = time.Now().Add(r.Timeout)
	}
	r.Ctx = &r.Lazy
	if !w.begin(r) {
		w.release(r)
		return true
	}

	var err error
	returned := false
	defer func() {
		failpoint("ran")
		defer r.Cancel(nil)
		if r.phase.Load() != phaseStarted { // the handler was abandoned
			return
		}
		// decide calls code of the application. So the run, with its timeout, ends only after decide.
		w.decide(r, err, returned, func(o Outcome, exited bool) {
			if goOn = r.EndOnce(); goOn {
				r.End = o
				w.settler.Settle(r)
				if exited {
					w.FillSlot(r.From)
				}
			}
		})
	}()
	if r.cancelRequested.Load() { // if the cancel came just now, cancelRun may not have found the run in InFlight
		r.Cancel(pg.ErrCancelled)
	}
	w.report(EventStarted, r)
	err = w.Handler.Handle(r.Ctx, r)
	returned = true
	return goOn
}

// decide asks the Handler for the outcome of a run, and passes it to the function pass. The argument exited is true if
// the goroutine ends, because the handler or Decide has called runtime.Goexit.
func (w *runner) decide(r *Run, err error, returned bool, pass func(o Outcome, exited bool)) {
	if !returned {
		pass(w.Handler.CutShort(r, ErrExit), true)
		return
	}
	var o Outcome
	decided := false
	defer func() {
		exited := false
		if !decided {
			p := recover()
			exited = p == nil
			o = w.Handler.CutShort(r, &UndecidedError{Panicked: !exited, Value: p})
		}
		pass(o, exited)
	}()
	o = w.Handler.Decide(r, err)
	decided = true
}

// endUnstarted ends a run whose handler is not called.
func (w *runner) endUnstarted(r *Run, o Outcome) {
	r.Finish()
	r.End = o
	w.settler.Settle(r)
}

// release ends a run whose handler was not called, so that its job becomes available again.
func (w *runner) release(r *Run) { w.endUnstarted(r, Released(r.Ran())) }

// releaseAll releases the jobs of runs that the buffer (Close, Drain, Pick) has ended before they started.
func (w *runner) releaseAll(runs []*Run) {
	for _, r := range runs {
		r.End = Released(r.Ran())
		w.settler.Settle(r)
	}
}

// watchInterval is the longest time between two looks of watch at the runs.
const watchInterval = 100 * time.Millisecond

// watch frees the slots of deaf handlers, which ignore their timeout. It also takes the stacks of handlers whose time
// is almost up.
func (w *runner) watch(ctx context.Context) {
	timer := time.NewTimer(watchInterval)
	defer timer.Stop()
	for await(ctx, timer.C, nil) {
		runs := w.InFlight.All()
		timer.Reset(takeStacks(w.Cfg.Stacks, runs, w.Now(), w.Cfg.Lease))
		for _, r := range runs {
			if r.Deaf(w.Now()) && r.EndOnce() {
				w.abandon(ctx, r, "handler ignores its timeout, slot freed", ErrTimeout)
				w.FillSlot(r.From)
			}
		}
	}
}

// abandonAll abandons all handlers that still run. It is called when the supervisor must stop.
func (w *runner) abandonAll(ctx context.Context) {
	for _, r := range w.InFlight.All() {
		if r.EndOnce() {
			w.abandon(ctx, r, "handler ignores its cancelled context, job given up", ErrIgnoredStop)
			w.Slots.Done()
		}
	}
}

// abandon settles the run of a handler that does not return. The caller has called EndOnce. The log and CutShort run
// code of the application, which may block as the handler does, so they get a goroutine of their own.
func (w *runner) abandon(ctx context.Context, r *Run, message string, why error) {
	w.Abandoned.Add(1)
	w.spawn(func() {
		r.End = w.Handler.CutShort(r, why)
		w.settler.Settle(r)
		w.log.WarnContext(ctx, message, r.inLog(), slog.Duration("timeout", r.Timeout)) // last, because a log may end the goroutine
	})
}

// open adds a new queue, and fills its slots if start was called. After closeQueues it returns false.
func (w *runner) open(queues []*QueueState, q *QueueState) bool {
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

// closeQueues releases the jobs that have not started. A slot's goroutine ends once its job has ended.
func (w *runner) closeQueues() {
	w.queuesMu.Lock()
	defer w.queuesMu.Unlock()
	w.closed = true
	for _, q := range w.queues {
		w.releaseAll(q.Buffer.Close())
	}
}

// stackDue returns how long it is until the stack of the run's handler is to be taken. The result wanted is false if no
// stack is to be taken.
func (r *Run) stackDue(now time.Time) (left time.Duration, wanted bool) {
	if r.Timeout == 0 || r.goroutine == 0 || r.stack.Load() != nil {
		return 0, false
	}
	return r.Timeout - min(r.Timeout/4, stackLead) - now.Sub(r.StartedAt), true
}

// takeStacks takes the stacks of handlers whose time is almost up, and returns how long the caller may sleep until the
// next stack is due.
func takeStacks(s *Stacks, runs []*Run, now time.Time, lease time.Duration) (sleep time.Duration) {
	sleep = watchInterval
	late := map[uint64]func(string){}
	for _, r := range runs {
		left, wanted := r.stackDue(now)
		switch {
		case !wanted:
		case left <= 0:
			late[r.goroutine] = r.noteStack
		default:
			sleep = min(sleep, max(left, watchInterval/10))
		}
	}
	if len(late) > 0 {
		s.take(late, now, lease)
	}
	return sleep
}

// noteStack stores the stack of the run's goroutine, unless the run has ended: then the goroutine may work on another
// run.
func (r *Run) noteStack(stack string) {
	if r.phase.Load() == phaseStarted {
		r.stack.Store(&stack)
	}
}

// Stack returns the stack of the run's handler from shortly before its time was up; "": it was not taken.
func (r *Run) Stack() string {
	if stack := r.stack.Load(); stack != nil {
		return *stack
	}
	return ""
}
