package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// minDueGap is the pause before the next look for due jobs, if a look at a due time found that another process had
// taken the job.
const minDueGap = 20 * time.Millisecond

// signal wakes the goroutine that receives from it. If it is poked several times before that goroutine comes, this
// counts once.
type signal chan struct{}

func newSignal() signal { return make(signal, 1) }

func (s signal) poke() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// await waits for the tick of a timer, or for the signal if it is not nil. It returns false if ctx is done first.
func await(ctx context.Context, tick <-chan time.Time, s signal) bool {
	select {
	case <-ctx.Done():
		return false
	case <-tick:
	case <-s:
	}
	return true
}

// alarm makes the claimer look for jobs. It is safe for concurrent use.
type alarm struct {
	Signal signal      // the claimer has something to do
	asleep atomic.Bool // the claimer is asleep

	mu     sync.Mutex
	Poked  bool      // the claimer must look, whether or not the poll timer is due
	missed bool      // enqueues may have found a lookout (sleep.go) without room, and have notified no other supervisor
	Due    time.Time // when the next job is known to be due; zero: none known
	own    time.Time // the earliest due time of a job of which other supervisors may not know; zero: none
	last   time.Time // the latest time that was passed to NoteOwn; the field own has only the earliest one
}

func newAlarm() *alarm { return &alarm{Signal: newSignal()} }

// Wake makes the claimer look for jobs without delay.
func (a *alarm) Wake() {
	a.mu.Lock()
	a.Poked = true
	a.mu.Unlock()
	a.poke()
}

// Missed records that an open transaction may have notified no supervisor of its job. Until that transaction has ended,
// a sleeping claimer looks more often.
func (a *alarm) Missed() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.missed = true
}

// NoteDue remembers when a job will be due, unless an earlier time is known already.
func (a *alarm) NoteDue(at time.Time) { a.note(&a.Due, at) }

// NoteOwn remembers the due time of a job of which other supervisors may not know. It is a job that we have settled, or
// a job for which a notification named us.
func (a *alarm) NoteOwn(at time.Time) {
	a.mu.Lock()
	if at.After(a.last) {
		a.last = at
	}
	a.mu.Unlock()
	a.note(&a.own, at)
}

// isOwn reports whether other supervisors may not know of the job that is due at the given time.
func (a *alarm) isOwn(due time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !due.After(a.last.Add(minDueGap)) // not exactly a.last, because the times are estimates
}

func (a *alarm) note(known *time.Time, at time.Time) {
	a.mu.Lock()
	sooner := known.IsZero() || at.Before(*known)
	if sooner {
		*known = at
	}
	a.mu.Unlock()
	if sooner {
		a.poke()
	}
}

// NextDue returns the earliest time at which a job is known to be due; zero: no such time is known.
func (a *alarm) NextDue() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.Due.IsZero() || !a.own.IsZero() && a.own.Before(a.Due) {
		return a.own
	}
	return a.Due
}

// poke makes the claimer check whether it has something to do.
func (a *alarm) poke() { a.Signal.poke() }
