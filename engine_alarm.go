package drover

import (
	"sync"
	"time"
)

// alarm makes the claimer look for jobs. It is safe for concurrent use.
type alarm struct {
	signal chan struct{} // something to do

	mu    sync.Mutex
	anew  bool      // drover_sleepers may say something else than the claimer has written there
	poked bool      // claim now, whatever the poll timer says
	due   time.Time // when the next job is known to be due; zero: none known
}

func newAlarm() *alarm { return &alarm{signal: make(chan struct{}, 1)} }

// wake makes the claimer look for jobs without delay.
func (a *alarm) wake() {
	a.mu.Lock()
	a.poked = true
	a.mu.Unlock()
	a.poke()
}

// sayAnew makes the next claim write drover_sleepers: rows were added, or a write's reply was lost.
func (a *alarm) sayAnew() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.anew = true
}

// noteDue remembers that a job of ours will be due then.
func (a *alarm) noteDue(at time.Time) {
	a.mu.Lock()
	sooner := a.due.IsZero() || at.Before(a.due)
	if sooner {
		a.due = at
	}
	a.mu.Unlock()
	if sooner {
		a.poke()
	}
}

// poke makes the claimer see whether there is something to do.
func (a *alarm) poke() {
	select {
	case a.signal <- struct{}{}:
	default:
	}
}
