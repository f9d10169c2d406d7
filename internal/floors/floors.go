package floors

import (
	"sync"
	"time"
)

// Floors has one floor for each lane: the last key of jobs_claim_idx up to which the supervisor has read the lane.
// Claims begin to read there. While any session holds an old snapshot, dead entries pile up at the beginning of each
// lane in the index. Without floors every claim would step over them.
//
// A job that commits late lies behind its floor. Near sweeps look there again. The full sweep finds the jobs that the
// near sweeps miss, and lowers the floor to them.
type Floors struct {
	Mu      sync.Mutex
	Lanes   map[Lane]Floor
	lowered map[Lane]int // the version that a lane's floor got when it was last lowered
	version int          // counts the calls of Hold and Reset, and the calls of Lower that lowered a floor
	heldAt  int          // claims that began at an older version move no floor
}

// Lane is one lane of a queue. N is its tier plus its priority.
type Lane struct {
	Queue string
	N     int16
}

// Floor is a key of jobs_claim_idx within its lane. The zero value is before all keys.
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

// Reset forgets all floors. It is called when the supervisor has registered, when a kind is no longer paused, when the
// database may have gone back to an older state, and when a claim's outcome is unknown.
func (f *Floors) Reset() {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	clear(f.Lanes)
	clear(f.lowered)
	f.version++
	f.heldAt = f.version
}

// Hold keeps the claims under way from moving the floors. A full sweep calls it before it looks behind the floors as
// they are now. Suppose that a claim under way moved a floor afterwards, and that a job was committed after the claim
// had looked. Then the job could lie behind the floor, and the sweep would not have seen it.
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

// Advance moves a lane's floor to where a claim has read. The parameter last is the key of the last job that the claim
// took there, zero if it took none. If the claim read the lane to its end (toEnd), the floor moves up to last, or to
// SettleTime before the claim if that is later. Otherwise the floor becomes last, even if last is lower: a near sweep
// that found more jobs than it could take goes on from there. If the claim began before the floor was lowered, or
// before Reset or Hold, Advance changes nothing, because the claim has not seen the jobs behind the new floor. If the
// server's clock went back, the lane loses its floor.
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
