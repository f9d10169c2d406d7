package engine

import (
	"sync/atomic"
	"time"
)

// SoloOrder makes the claimer run one strong suspect (a job whose processes have died twice or more) of a queue alone.
// The claimer claims nothing until all its runs are settled. It then claims the suspect, and nothing more until the
// keeper has decided how to go on.
type SoloOrder struct {
	Queue  string
	IdleBy time.Time   // when the claimer stops waiting for its other runs to end
	idle   atomic.Bool // all other runs were settled
	ran    atomic.Bool // a suspect was claimed
	Over   atomic.Bool
}

// ends reports whether the claimer has carried the order out, or cannot: the suspect is settled, the queue is not open,
// or the other runs have not ended in time. The parameter idle is true if all runs are settled.
func (o *SoloOrder) ends(open, idle bool, now time.Time) bool {
	return !open || o.idle.Load() && idle || !o.idle.Load() && !idle && !now.Before(o.IdleBy)
}

// claimed records that the claim was made, and whether there was a suspect.
func (o *SoloOrder) claimed(ran bool) {
	o.ran.Store(ran)
	o.idle.Store(true)
}

// rest returns how much longer the claimer waits for its other runs to end. It is an hour if the wait is over.
func (o *SoloOrder) rest(now time.Time) time.Duration {
	if o.idle.Load() || o.Over.Load() {
		return time.Hour
	}
	return o.IdleBy.Sub(now)
}
