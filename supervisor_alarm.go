package drover

import (
	"context"
	"sync"
)

// alarm is how other parts of a supervisor interrupt its control goroutine, which mostly waits for notifications. It
// is safe for concurrent use; the zero value is silent.
type alarm struct {
	mu    sync.Mutex
	stop  context.CancelFunc // ends the wait; nil: there was none yet
	beat  bool               // beat at once
	stuck bool               // the claimer is
}

// interrupt makes the next beat come at once.
func (a *alarm) interrupt() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.beat = true
	if a.stop != nil {
		a.stop()
	}
}

// standIn makes control ask another supervisor to look for jobs: the claimer is stuck, for example in a claim of a job
// that takes the server seconds to read. Nobody else would look if this one had said that it is awake.
func (a *alarm) standIn() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stuck = true
	if a.stop != nil {
		a.stop()
	}
}

// waits notes how to end the wait that begins now, and ends it if somebody was earlier.
func (a *alarm) waits(stop context.CancelFunc) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stop = stop
	if a.beat || a.stuck {
		stop()
	}
}

// interrupted reports whether a beat has been asked for since the last call.
func (a *alarm) interrupted() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	beat := a.beat
	a.beat = false
	return beat
}

// claimerStuck reports whether the claimer has asked for a stand-in since the last call.
func (a *alarm) claimerStuck() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	stuck := a.stuck
	a.stuck = false
	return stuck
}
