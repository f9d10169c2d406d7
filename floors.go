package drover

import (
	"iter"
	"sync"
	"time"
)

// floors bound where a claim looks. Dead entries pile up at the left edge of jobs_claim_idx while
// any session holds an old snapshot. In each lane a supervisor looks only beyond its floor, the
// last key up to which it has seen everything.
//
// A job that is committed late may lie behind the floor. Near sweeps look for it again. The full
// sweep finds what they miss, and lowers the floor to it.
type floors struct {
	mu      sync.Mutex
	lanes   map[laneKey]floor
	lowered map[laneKey]int // the version since which a lane's floor is lower
	version int             // changes by others than claims so far
	heldAt  int             // claims of an older version move no floor
}

type laneKey struct {
	queue string
	lane  int16
}

// The tiers of lanes, as in the column lane: a priority is added to each. A claim has a limit for each tier, in this order,
// and they share the queue's.
const (
	tierFresh   int16 = 0
	tierRetry   int16 = 10
	tierSuspect int16 = 20
	tierStrong  int16 = 30
)

// lanesOf are a queue's lanes in some tiers, nine in each, in order. Without tiers they are all 36.
func lanesOf(queue string, tiers ...int16) iter.Seq[laneKey] {
	if len(tiers) == 0 {
		tiers = []int16{tierFresh, tierRetry, tierSuspect, tierStrong}
	}
	return func(yield func(laneKey) bool) {
		for _, tier := range tiers {
			for priority := range int16(9) {
				if !yield(laneKey{queue, tier + 1 + priority}) {
					return
				}
			}
		}
	}
}

// floor is a key of the index; the zero value stands before all.
type floor struct {
	at time.Time
	id string
}

func (f floor) before(other floor) bool {
	return f.at.Before(other.at) || f.at.Equal(other.at) && f.id < other.id
}

func newFloors() *floors {
	return &floors{lanes: map[laneKey]floor{}, lowered: map[laneKey]int{}}
}

// settleTime is how far behind the server's clock a floor stays where a lane was read to its end.
const settleTime = time.Second

// reset forgets all: kinds, queues or the supervisor's identity changed, or a claim's outcome is unknown.
func (f *floors) reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.lanes)
	clear(f.lowered)
	f.version++
	f.heldAt = f.version
}

// hold keeps claims under way from moving the floors: a full sweep that looks now behind them as they are would not see
// what commits after such a claim has looked, and lies behind them once it has ended.
func (f *floors) hold() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version++
	f.heldAt = f.version
}

// now is the version that a claim is made of, for advance.
func (f *floors) now() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.version
}

// none reports that no claim has moved a floor yet.
func (f *floors) none() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.lanes) == 0
}

// get is the lane's floor.
func (f *floors) get(key laneKey) floor {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lanes[key]
}

// advance notes what a claim saw of a lane. last is the last key claimed in it, zero if none. A lane that was read
// to its end has its floor at the last key or settleTime before the claim; one that was not, at the last key, also
// where that is behind the floor: a near sweep that found more than it could take goes on from there. A claim made
// before the floor was lowered, or all were reset or held, has not seen what is there.
func (f *floors) advance(key laneKey, last floor, toEnd bool, at time.Time, version int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if version < f.heldAt || version < f.lowered[key] {
		return
	}
	old := f.lanes[key]
	if at.Before(old.at) {
		delete(f.lanes, key) // the server's clock went back: what is due now was behind the floor
		return
	}
	next := old
	switch {
	case toEnd:
		for _, candidate := range []floor{last, {at: at.Add(-settleTime)}} {
			if next.before(candidate) {
				next = candidate
			}
		}
	case !last.at.IsZero():
		next = last
	}
	f.lanes[key] = next
}

// lower puts a floor back before a key that a full sweep found.
func (f *floors) lower(key laneKey, at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if found := (floor{at: at.Add(-time.Microsecond)}); found.before(f.lanes[key]) {
		f.lanes[key] = found
		f.version++
		f.lowered[key] = f.version
	}
}
