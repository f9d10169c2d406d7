package drover

import (
	"sync"
	"sync/atomic"
	"time"
)

// lookout is what a supervisor knows of where it has looked for jobs, and when to look again. The claimer looks;
// any part may tell it what calls for a look. It is safe for concurrent use.
type lookout struct {
	signal chan struct{} // the claimer has something to do
	floors *floors
	near   *nearSweeps
	audit  *audit
	bell   doorbell
	polls  pollPlaces
	solo   atomic.Pointer[soloOrder] // to run strong suspects; nil: none

	sleeping atomic.Int64 // queues in which sleepers should say that we sleep
	reread   atomic.Bool  // somebody has set a job aside, so the list is to be read again

	mu    sync.Mutex
	anew  bool      // sleepers may say something else than the claimer has written
	poked bool      // claim now, whatever the poll timer says
	due   time.Time // when the next job is known to be due; zero: none known
}

func newLookout(s *shared) *lookout {
	k := &lookout{signal: make(chan struct{}, 1), floors: newFloors(), near: newNearSweeps()}
	k.audit = newAudit(s, k.poke)
	return k
}

// poke makes the claimer see whether there is something to do.
func (k *lookout) poke() {
	select {
	case k.signal <- struct{}{}:
	default:
	}
}

// wake makes the claimer look for jobs at once.
func (k *lookout) wake() {
	k.mu.Lock()
	k.poked = true
	k.mu.Unlock()
	k.poke()
}

// sayAnew makes the next claim write sleepers: rows were added, or a write's reply was lost.
func (k *lookout) sayAnew() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.anew = true
}

// sayOnce reports whether that was wanted since the last call.
func (k *lookout) sayOnce() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	anew := k.anew
	k.anew = false
	return anew
}

// noteDue remembers that a job of ours will be due then.
func (k *lookout) noteDue(at time.Time) {
	k.mu.Lock()
	sooner := k.due.IsZero() || at.Before(k.due)
	if sooner {
		k.due = at
	}
	k.mu.Unlock()
	if sooner {
		k.poke()
	}
}

// ring makes the claimer look for a job that was enqueued to this queue.
func (k *lookout) ring(queue string) {
	k.bell.ring(queue, 1)
	k.wake()
}

// ringLater makes it look a little later: another supervisor was woken, and may be dead, frozen or full.
func (k *lookout) ringLater(queue string, now time.Time) {
	k.bell.later(queue, now.Add(soonAfter))
	k.poke()
}

// distrust forgets where jobs have been looked for, and what sleepers says.
func (k *lookout) distrust() {
	k.floors.reset()
	k.near.reset()
	k.sayAnew()
	k.wake()
}

// goneBack looks again at all rows: those that came back behind the floors, and those that run in our name.
func (k *lookout) goneBack() {
	k.distrust()
	k.audit.reconnected()
}
