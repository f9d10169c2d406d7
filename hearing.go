package drover

import "time"

// hearing tracks jobs that a sleeping supervisor will not be notified of: their transaction read
// drover_sleepers while we were still awake, so it sends no NOTIFY. While such a transaction may be
// open, the supervisor polls often.
//
// An enqueue gets its transaction id before it reads drover_sleepers, so one that saw us awake has
// a lower id than our next claim. A repeatable read transaction that took its snapshot before and
// writes later is an exception: its job waits for a poll.
type hearing struct {
	since   time.Time // when drover_sleepers was last written
	awakeTo uint64    // transactions that saw us awake have a lower id; 0: not known yet
	deaf    bool      // such a transaction was in progress at the last look
	deafTo  time.Time // poll often until then, after the last such transaction has ended
}

// deafFor covers the widest near sweep, which comes once a second: the job may lie behind the
// floors.
const deafFor = 2 * time.Second

// asleep notes that sleepers has been written.
func (h *hearing) asleep(now time.Time) { h.since, h.awakeTo = now, 0 }

// step is the longest wait between two polls: a tenth of the sleep where something may not be heard.
func (h *hearing) step(seen transactions, now time.Time, poll time.Duration) time.Duration {
	slept := now.Sub(h.since)
	if h.awakeTo == 0 {
		if slept < writing {
			return min(poll, max(awakePoll, writing-slept))
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
		return poll
	}
	return min(poll, max(awakePoll, slept/10))
}
