package engine

import (
	"sync"
	"time"
)

// alarm makes the claimer look for jobs. It is safe for concurrent use.
type alarm struct {
	Signal chan struct{} // something to do

	mu    sync.Mutex
	anew  bool      // drover_sleepers may say something else than the claimer has written there
	Poked bool      // claim now, whatever the poll timer says
	Due   time.Time // when the next job is known to be due; zero: none known
}

func newAlarm() *alarm { return &alarm{Signal: make(chan struct{}, 1)} }

// Wake makes the claimer look for jobs without delay.
func (a *alarm) Wake() {
	a.mu.Lock()
	a.Poked = true
	a.mu.Unlock()
	a.poke()
}

// SayAnew makes the next claim write drover_sleepers: rows were added, or a write's reply was lost.
func (a *alarm) SayAnew() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.anew = true
}

// NoteDue remembers that a job of ours will be due then.
func (a *alarm) NoteDue(at time.Time) {
	a.mu.Lock()
	sooner := a.Due.IsZero() || at.Before(a.Due)
	if sooner {
		a.Due = at
	}
	a.mu.Unlock()
	if sooner {
		a.poke()
	}
}

// poke makes the claimer see whether there is something to do.
func (a *alarm) poke() {
	select {
	case a.Signal <- struct{}{}:
	default:
	}
}
