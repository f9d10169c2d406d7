package floors

import (
	"sync"
	"time"
)

// Near plans the near sweeps: claims that begin to read behind the floors, at earlier due times. There they find jobs
// that were committed late. Three near sweeps look back at most 200 ms, 2 s and 20 s from the floor. All supervisors
// together spend at most a tenth of the time on each. Most sweeps look back less far: the previous sweep has seen
// everything up to some place, and they begin there.
//
// Where is that place? A job's due time is the time of the statement that wrote it, and a statement that writes gets a
// transaction id. A row that a sweep missed was written by a transaction that was open when the sweep looked, or that
// started later. Let X be the lowest id of the transactions that were open when the sweep looked. So the transaction
// that wrote the missed row has the id X or a higher one. It got its id after each of our claims with an id below X had
// begun, and at most 200 ms (writing) after the time in the row. So the next sweep begins 200 ms before the newest of
// these claims. It does not read older rows again: they may be dead rows that an old snapshot pins.
//
// Some rows have an older time: somebody moved them by hand, a long statement wrote them late, or they were locked
// while a sweep looked. For these rows there is a fourth sweep. It always covers all of the 20 s, for at most a
// two-hundredth of the time.
type Near struct {
	mu      sync.Mutex
	Windows [4]window
	Sharing int           // how many supervisors share the near sweeps
	Past    []Seen        // the server's transactions as earlier claims saw them, oldest first, at least pastStep apart
	usual   time.Duration // how long a claim without a near sweep takes, a moving average
}

// window is one of the four near sweeps.
type window struct {
	Width time.Duration
	every time.Duration // the shortest time between two sweeps
	part  int           // the sweeps of this window may take 1/part of the time
	whole bool          // always look at the whole width, whatever transactions were open
	Cost  time.Duration // how much longer the window's last sweep took than a usual claim; at least a tenth of that sweep's time
	Next  time.Time
	since map[Lane]uint64 // by lane: the oldest transaction id in progress at the last look; no entry: unknown
}

// Seen is the server's state of transactions at a claim.
type Seen struct {
	At     time.Time // the server's clock, read no later than the two ids
	Oldest uint64    // the lowest id in progress: the claim sees all committed rows of transactions with a lower id
	Own    uint64    // the claim's own id: every higher id was given out later
}

const (
	pastStep = 100 * time.Millisecond
	pastMost = 256                    // how many claims Past keeps at most
	writing  = 200 * time.Millisecond // a transaction may get its id up to this long after the time in its rows, because the server plans the statement in between
)

// NewNear returns near sweeps that are all due.
func NewNear() *Near {
	n := &Near{Sharing: 1}
	for i, width := range []time.Duration{200 * time.Millisecond, 2 * time.Second, 20 * time.Second} {
		n.Windows[i] = window{Width: width, every: width / 20, part: 10}
	}
	n.Windows[3] = window{Width: 20 * time.Second, every: 200 * time.Millisecond, part: 200, whole: true}
	for i := range n.Windows {
		n.Windows[i].since = map[Lane]uint64{}
	}
	return n
}

// Sweep is a near sweep that a claim is to make. The zero value means none.
type Sweep struct {
	Window int
	Width  time.Duration // how far it looks back from the floor, at most
}

// Lower returns where a claim with the sweep s begins to read a lane with floor f.
func (n *Near) Lower(s Sweep, key Lane, f Floor) Floor {
	if s.Width == 0 || f.At.IsZero() {
		return f
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	low := Floor{At: f.At.Add(-s.Width)}
	if w := &n.Windows[s.Window]; !w.whole {
		for i := len(n.Past) - 1; i >= 0; i-- {
			if n.Past[i].Own >= w.since[key] {
				continue
			}
			if from := n.Past[i].At.Add(-writing); low.At.Before(from) {
				low.At = from
			}
			break
		}
	}
	if f.Before(low) {
		return f
	}
	return low
}

// Due returns the widest near sweep that is due now.
func (n *Near) Due(now time.Time) Sweep {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := len(n.Windows) - 1; i >= 0; i-- {
		if w := &n.Windows[i]; !now.Before(w.Next) {
			return Sweep{Window: i, Width: w.Width}
		}
	}
	return Sweep{}
}

// Share sets how many supervisors share the near sweeps: all supervisors that serve one of our queues, including us.
func (n *Near) Share(supervisors int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.Sharing = max(supervisors, 1)
}

// Reset forgets the transactions that earlier claims and sweeps saw.
func (n *Near) Reset() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.Past = n.Past[:0]
	for i := range n.Windows {
		clear(n.Windows[i].since)
	}
}

// Saw records the transactions that a claim saw. It reports whether this claim has a lower id than an earlier claim.
// Then the database has gone back to an older state.
func (n *Near) Saw(now Seen) (wentBack bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if last := len(n.Past) - 1; last >= 0 {
		wentBack = now.Own < n.Past[last].Own
		switch since := now.At.Sub(n.Past[last].At); {
		case since < 0: // the server's clock went back
			n.Past = n.Past[:0]
		case since < pastStep:
			return wentBack
		}
	}
	if len(n.Past) == pastMost {
		n.Past = append(n.Past[:0], n.Past[1:]...)
	}
	n.Past = append(n.Past, now)
	return wentBack
}

// Read records that a claim with the sweep s has looked into a lane, and which transaction was the oldest in progress
// then.
func (n *Near) Read(s Sweep, key Lane, seen Seen) {
	if s.Width == 0 {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range n.Windows[:s.Window+1] {
		n.Windows[i].since[key] = seen.Oldest
	}
}

// Swept records how long a claim took, with or without a sweep. After a sweep it sets when the sweep's window is due
// again. The sweep also covers the narrower windows. So Swept puts these windows off as well, and lowers their costs to
// the cost of the sweep if they are higher. The pause of a window grows with the window's cost. So all supervisors that
// share the sweeps, added up, spend at most 1/part of the time on the sweeps of this window. Each window has its own
// cost, because a wide sweep over many dead rows must not hold up the narrow sweeps, which find most of the late jobs.
func (n *Near) Swept(s Sweep, took time.Duration, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s.Width == 0 {
		n.usual += (took - n.usual) / 8
		return
	}
	cost := max(took-n.usual, took/10)
	n.Windows[s.Window].Cost = cost
	for i := range n.Windows[:s.Window+1] {
		w := &n.Windows[i]
		w.Cost = min(w.Cost, cost)
		w.Next = now.Add(max(w.Cost*time.Duration(w.part*n.Sharing-1), w.every))
	}
}
