package drover

import (
	"sync"
	"time"
)

// floors are where claims begin to read, one floor per lane: the last key of jobs_claim_idx up to which the
// supervisor has read the lane. While any session holds an old snapshot, dead entries pile up at the left edge of the
// index. Without floors every claim would step over them.
//
// A job that commits late lies behind its floor. Near sweeps look there again. The full sweep finds the jobs that the
// near sweeps miss, and lowers the floor to them.
type floors struct {
	mu      sync.Mutex
	lanes   map[laneKey]floor
	lowered map[laneKey]int // the version at which a lane's floor was last lowered
	version int             // counts the calls of lower, hold and reset that changed something
	heldAt  int             // claims of an older version move no floor
}

type laneKey struct {
	queue string
	lane  int16
}

// floor is a key of the index. The zero value is before all keys.
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

// settleTime is how far behind the server's clock a floor stays when a claim has read the lane to its end.
const settleTime = time.Second

// reset forgets all floors. It is called when kinds, queues or the supervisor's identity changed, or when a claim's
// outcome is unknown.
func (f *floors) reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.lanes)
	clear(f.lowered)
	f.version++
	f.heldAt = f.version
}

// hold keeps claims under way from moving the floors. A full sweep is about to look behind the floors as they are now.
// If such a claim moved a floor afterwards, a job that commits after the claim has looked could end up behind the floor
// without being seen by the sweep.
func (f *floors) hold() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version++
	f.heldAt = f.version
}

// now returns the version that a new claim passes to advance when it has ended.
func (f *floors) now() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.version
}

// none reports whether no lane has a floor yet.
func (f *floors) none() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.lanes) == 0
}

// get returns the lane's floor.
func (f *floors) get(key laneKey) floor {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lanes[key]
}

// advance moves a lane's floor to where a claim has read. last is the last key that it claimed there, zero if none.
// If the claim read the lane to its end, the floor moves up to last or to settleTime before the claim, the later of
// the two. If it did not, the floor is last, even if that is lower: a near sweep that found more than it could take
// goes on from there. A claim that was made before the floor was lowered, or before a reset or a hold, has not seen
// the jobs behind it and changes nothing.
func (f *floors) advance(key laneKey, last floor, toEnd bool, at time.Time, version int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if version < f.heldAt || version < f.lowered[key] {
		return
	}
	old := f.lanes[key]
	if at.Before(old.at) {
		delete(f.lanes, key) // the server's clock went back: jobs that become due now would lie behind the floor
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

// lower moves a floor back to just before a job that a full sweep found behind it.
func (f *floors) lower(key laneKey, at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if found := (floor{at: at.Add(-time.Microsecond)}); found.before(f.lanes[key]) {
		f.lanes[key] = found
		f.version++
		f.lowered[key] = f.version
	}
}
