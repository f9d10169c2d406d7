package engine

import (
	"sync/atomic"
	"time"
)

// SoloOrder is the keeper's order to the claimer to run one strong suspect of a queue alone. A strong suspect is a job
// whose processes have died twice or more. The claimer claims nothing until all its runs are settled. Then it claims
// the suspect, and nothing more until the keeper has decided how to go on.
type SoloOrder struct {
	Queue  string
	IdleBy time.Time   // when the claimer stops waiting for its other runs to end
	idle   atomic.Bool // all other runs were settled
	ran    atomic.Bool // a strong suspect was claimed
	Over   atomic.Bool
}

// ends reports whether the order is over: the suspect is settled, the queue is paused or no longer served, or the other
// runs have not ended in time. The parameter open is true if jobs of the queue may start, and idle is true if all runs
// are settled.
func (o *SoloOrder) ends(open, idle bool, now time.Time) bool {
	return !open || o.idle.Load() && idle || !o.idle.Load() && !idle && !now.Before(o.IdleBy)
}

// claimed records that the claim was made. The parameter ran is whether it took a suspect.
func (o *SoloOrder) claimed(ran bool) {
	o.ran.Store(ran)
	o.idle.Store(true)
}

// rest returns how much longer the claimer waits for its other runs to end. If it does not wait any more, the result is
// an hour.
func (o *SoloOrder) rest(now time.Time) time.Duration {
	if o.idle.Load() || o.Over.Load() {
		return time.Hour
	}
	return o.IdleBy.Sub(now)
}
