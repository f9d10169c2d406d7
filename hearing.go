package drover

import "time"

// hearing is whether a supervisor that says that it sleeps would hear of every job. It would not of one whose transaction
// read drover_sleepers before, and found it awake: that notifies nobody. While such a transaction may be in progress the
// supervisor looks often.
//
// Ids tell: an enqueue draws its own before it reads drover_sleepers, so who did that earlier has a lower one than a claim a
// moment after. Not so a repeatable read transaction that took its snapshot before and writes later: its job waits for a poll.
type hearing struct {
	since   time.Time // when drover_sleepers was last written
	awakeTo uint64    // who may have read it before has a lower id; 0: not known yet
	deaf    bool      // such a transaction was in progress at the last look
	deafTo  time.Time // look often for as long, behind the last of them
}

// deafFor is for the widest near sweep, which comes once a second: the job may lie behind the floors.
const deafFor = 2 * time.Second

// asleep notes that drover_sleepers has been written.
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
