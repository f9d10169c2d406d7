package preview

import (
	"cmp"
	"math"
	"math/bits"
	"time"

	"github.com/drover-queue/drover"
)

// calendar is the calendar of a retry budget, filled by the rule of drover_reserve in migrations/00014_budgets.sql: a retry
// takes the first free slot at or after its backoff. Times are in microseconds.
type calendar struct {
	retries, per, burst int64
	discard             bool

	chunks map[int64]*chunk
	full   map[int64]int64 // a chunk without a free slot, and one after it that may have some
	prune  int             // at so many chunks, those of the past are forgotten
}

const chunkSlots = 1024

// chunk has a bit for each slot that is taken.
type chunk struct {
	used [chunkSlots / 64]uint64
	n    int
}

// newCalendar returns nil for no budget.
func newCalendar(b drover.RetryBudget) *calendar {
	if b == (drover.RetryBudget{}) {
		return nil
	}
	return &calendar{
		retries: int64(b.Retries), per: cmp.Or(b.Per, time.Minute).Microseconds(), burst: int64(cmp.Or(b.Burst, 1)), discard: b.Discard,
		chunks: map[int64]*chunk{}, full: map[int64]int64{}, prune: chunkSlots,
	}
}

// slot is drover_slot: the first slot that is due at or after a time.
func (c *calendar) slot(at int64) int64 {
	return (at/c.per*c.retries + (at%c.per*c.retries+c.per-1)/c.per + c.burst - 1) / c.burst * c.burst
}

// due is drover_slot_due.
func (c *calendar) due(slot int64) int64 {
	first := slot - slot%c.burst
	return first/c.retries*c.per + first%c.retries*c.per/c.retries
}

// reserve takes a slot for a retry with this backoff, and returns when it is due. It reports false if there is none by
// latest, which is drover_reserve's, or in the Per of a budget that discards.
func (c *calendar) reserve(now, backoff, latest int64) (due int64, ok bool) {
	slot, stop := c.slot(now+backoff), int64(math.MaxInt64)
	if latest < math.MaxInt64 {
		stop = c.slot(now + latest + 1)
	}
	if c.discard {
		stop = min(stop, c.slot(now+backoff+c.per))
	}
	if slot = c.free(slot); slot >= stop {
		return 0, false
	}
	c.take(slot, now)
	return c.due(slot), true
}

// free is the first free slot from this one on.
func (c *calendar) free(slot int64) int64 {
	for {
		n := c.open(slot / chunkSlots)
		slot = max(slot, n*chunkSlots)
		held := c.chunks[n]
		if held == nil {
			return slot
		}
		if i, ok := held.free(int(slot % chunkSlots)); ok {
			return n*chunkSlots + int64(i)
		}
		slot = (n + 1) * chunkSlots
	}
}

// open is the first chunk from n on that is not full. It shortens the way for the next time.
func (c *calendar) open(n int64) int64 {
	last := n
	for next, full := c.full[last]; full; next, full = c.full[last] {
		last = next
	}
	for n != last {
		n, c.full[n] = c.full[n], last
	}
	return last
}

func (c *calendar) take(slot, now int64) {
	n := slot / chunkSlots
	held := c.chunks[n]
	if held == nil {
		held = &chunk{}
		c.chunks[n] = held
		c.forget(now)
	}
	held.used[slot%chunkSlots/64] |= 1 << (slot % 64)
	if held.n++; held.n == chunkSlots {
		delete(c.chunks, n)
		c.full[n] = n + 1
	}
}

// forget drops the chunks whose slots are past.
func (c *calendar) forget(now int64) {
	if len(c.chunks) < c.prune {
		return
	}
	for n := range c.chunks {
		if c.due((n+1)*chunkSlots) < now {
			delete(c.chunks, n)
		}
	}
	c.prune = max(chunkSlots, 2*len(c.chunks))
}

// free is the first free slot of the chunk from this one on.
func (h *chunk) free(from int) (int, bool) {
	for word := from / 64; word < len(h.used); word++ {
		open := ^h.used[word]
		if word == from/64 {
			open &= math.MaxUint64 << (from % 64)
		}
		if open != 0 {
			return word*64 + bits.TrailingZeros64(open), true
		}
	}
	return 0, false
}
