// Package floors keeps what a supervisor knows of its lanes: where a claim begins to read, how far near sweeps look back,
// and whether a sleeper may miss a job. It is pure, and safe for concurrent use except for Missed.
package floors

import (
	"sync"
	"time"
)

// Floors are where claims begin to read, one floor per lane: the last key of jobs_claim_idx up to which the
// supervisor has read the lane. While any session holds an old snapshot, dead entries pile up at the left edge of the
// index. Without floors every claim would step over them.
//
// A job that commits late lies behind its floor. Near sweeps look there again. The full sweep finds the jobs that the
// near sweeps miss, and lowers the floor to them.
type Floors struct {
	Mu      sync.Mutex
	Lanes   map[Lane]Floor
	lowered map[Lane]int // the version at which a lane's floor was last lowered
	version int          // counts the calls of Lower, Hold and Reset that changed something
	heldAt  int          // claims that began at an older version move no floor
}

// Lane is one lane of a queue: N is its tier and priority.
type Lane struct {
	Queue string
	N     int16
}

// Floor is a key of the index. The zero value is before all keys.
type Floor struct {
	At time.Time
	ID string
}

// Before reports whether f comes before other in the index.
func (f Floor) Before(other Floor) bool {
	return f.At.Before(other.At) || f.At.Equal(other.At) && f.ID < other.ID
}

// New returns floors that begin before all keys.
func New() *Floors {
	return &Floors{Lanes: map[Lane]Floor{}, lowered: map[Lane]int{}}
}

// SettleTime is how far behind the server's clock a floor stays when a claim has read the lane to its end.
const SettleTime = time.Second

// Reset forgets all floors. It is called when kinds, queues or the supervisor's identity changed, or when a claim's
// outcome is unknown.
func (f *Floors) Reset() {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	clear(f.Lanes)
	clear(f.lowered)
	f.version++
	f.heldAt = f.version
}

// Hold keeps claims under way from moving the floors. A full sweep is about to look behind the floors as they are now.
// If such a claim moved a floor afterwards, a job that commits after the claim has looked could end up behind the floor
// without being seen by the sweep.
func (f *Floors) Hold() {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.version++
	f.heldAt = f.version
}

// Version returns the version that a new claim passes to Advance when it has ended.
func (f *Floors) Version() int {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	return f.version
}

// None reports whether no lane has a floor yet.
func (f *Floors) None() bool {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	return len(f.Lanes) == 0
}

// Get returns the lane's floor.
func (f *Floors) Get(key Lane) Floor {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	return f.Lanes[key]
}

// Advance moves a lane's floor to where a claim has read. The parameter last is the last key that the claim took
// there, zero if it took no job. If the claim read the lane to its end, the floor moves up to last or to SettleTime
// before the claim, the later of the two. If it did not, the floor becomes last, even if last is lower: a near
// sweep that found more jobs than it could take goes on from there. A claim that was made before the floor was
// lowered, or before Reset or Hold, has not seen the jobs behind the floor and changes nothing. If the server's
// clock went back, the lane loses its floor.
func (f *Floors) Advance(key Lane, last Floor, toEnd bool, at time.Time, version int) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	if version < f.heldAt || version < f.lowered[key] {
		return
	}
	old := f.Lanes[key]
	if at.Before(old.At) {
		delete(f.Lanes, key) // the server's clock went back: jobs that become due now would lie behind the floor
		return
	}
	next := old
	switch {
	case toEnd:
		for _, candidate := range []Floor{last, {At: at.Add(-SettleTime)}} {
			if next.Before(candidate) {
				next = candidate
			}
		}
	case !last.At.IsZero():
		next = last
	}
	f.Lanes[key] = next
}

// Lower moves a floor back to just before a job that a full sweep found behind it.
func (f *Floors) Lower(key Lane, at time.Time) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	if found := (Floor{At: at.Add(-time.Microsecond)}); found.Before(f.Lanes[key]) {
		f.Lanes[key] = found
		f.version++
		f.lowered[key] = f.version
	}
}
