package floors

import "time"

// Missed tracks whether a sleeping supervisor may miss jobs. Suppose that an enqueue saw a lookout (an awake supervisor
// with room). Then its transaction sends no NOTIFY. If the lookout has left before the commit, the supervisor may miss
// the job. While such a transaction may be open, the supervisor polls often.
//
// An enqueue gets its transaction id before it looks whether there is a lookout. So an enqueue that saw the lookout has
// a lower id than a claim of ours that begins a moment (the constant writing) after the lookout has left.
type Missed struct {
	since         time.Time // when the lookout left
	unheardBefore uint64    // transactions that may have seen the lookout have a lower id; 0: not known yet
	missing       bool      // a transaction that may have seen the lookout was in progress at the last look
	until         time.Time // poll often until this time, although the last of these transactions has ended
}

// LookFor is how long the supervisor polls often after the last of these transactions has ended. The missed job may lie
// behind the floors, and the widest near sweep, which finds it there, comes only once a second.
const LookFor = 2 * time.Second

// Asleep records that a lookout has left now.
func (h *Missed) Asleep(now time.Time) { h.since, h.unheardBefore = now, 0 }

// Step returns the longest wait before the next poll. The wait is at least the parameter least, and at most the
// parameter most. In the first moment (the constant writing) after the lookout has left, it is the rest of that moment.
// After that, while a job may be missed, the wait is a tenth of the time since the lookout left. Otherwise it is the
// parameter most.
func (h *Missed) Step(seen Seen, now time.Time, least, most time.Duration) time.Duration {
	slept := now.Sub(h.since)
	if h.unheardBefore == 0 {
		if slept < writing {
			return min(most, max(least, writing-slept))
		}
		h.unheardBefore = seen.Own
	}
	switch {
	case seen.Oldest < h.unheardBefore:
		h.missing = true
	case h.missing:
		h.missing, h.until = false, now.Add(LookFor)
	}
	if !h.missing && !now.Before(h.until) {
		return most
	}
	return min(most, max(least, slept/10))
}
