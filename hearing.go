package drover

import "time"

// hearing tracks whether a sleeping supervisor may miss jobs: their transaction read drover_sleepers while the
// supervisor was still awake, so it sends no NOTIFY. While such a transaction may be open, the supervisor polls often.
//
// An enqueue gets its transaction id before it reads drover_sleepers. So an enqueue that saw us awake has a lower id
// than our claim a moment (writing) after we wrote that we sleep. A repeatable read transaction is an exception: it may
// have taken its snapshot before and write later, with a higher id. Its job waits for a poll.
type hearing struct {
	since   time.Time // when drover_sleepers was last written
	awakeTo uint64    // transactions that may have read drover_sleepers before have a lower id; 0: not known yet
	deaf    bool      // such a transaction was in progress at the last look
	deafTo  time.Time // poll often until then, after the last such transaction has ended
}

// deafFor leaves time for the widest near sweep, which comes once a second: the missed job may lie behind the floors.
const deafFor = 2 * time.Second

// asleep records that drover_sleepers has been written.
func (h *hearing) asleep(now time.Time) { h.since, h.awakeTo = now, 0 }

// step returns the longest wait between two polls, least to most. While a job may be missed, it is a tenth of the time
// since the supervisor fell asleep, otherwise most.
func (h *hearing) step(seen transactions, now time.Time, least, most time.Duration) time.Duration {
	slept := now.Sub(h.since)
	if h.awakeTo == 0 {
		if slept < writing {
			return min(most, max(least, writing-slept))
		}
		h.awakeTo = seen.own
	}
	switch {
	case seen.oldest < h.awakeTo:
		h.deaf = true
	case h.deaf:
		h.deaf, h.deafTo = false, now.Add(deafFor)
	}
	if !h.deaf && !now.Before(h.deafTo) {
		return most
	}
	return min(most, max(least, slept/10))
}
