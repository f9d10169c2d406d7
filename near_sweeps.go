package drover

import (
	"sync"
	"time"
)

// nearSweeps are claims with lowered floors. They find jobs that were committed late, behind the
// floors. Three of them look at the last 200 ms, 2 s and 20 s before the floor, each for at most a
// tenth of the time. They look back no further than a new job can lie since the last look.
//
// A job carries the time of its own statement, and a statement that writes gets a transaction id. A
// row that a look missed was written by a transaction that was open at that time, or that started
// later. So it is newer than any claim of ours whose transaction id is below the oldest one that
// was open. The sweeps need not step over rows further back that an old snapshot pins.
//
// Some rows carry an older time: moved by hand, written late in a long statement, or locked while
// we looked. A fourth sweep covers the full 20 s for them, but runs rarely.
type nearSweeps struct {
	mu      sync.Mutex
	windows [4]window
	sharing int            // supervisors that share these sweeps
	past    []transactions // seen by claims, oldest first, pastStep apart
	usual   time.Duration  // duration of a claim without a near sweep
}

// window is one of the near sweeps.
type window struct {
	width time.Duration
	every time.Duration // shortest time between two sweeps
	part  int           // of the time, that it may take
	whole bool          // whatever is in progress
	cost  time.Duration // of its last sweep, beyond a usual claim's
	next  time.Time
	since map[laneKey]uint64 // the oldest transaction in progress when it last looked into a lane; none: not known
}

// transactions is how far the server's transaction ids were when it made a claim.
type transactions struct {
	at     time.Time // by the server's clock, no later than the ids below
	oldest uint64    // oldest id in progress: the claim sees all rows of lower ids
	own    uint64    // id of the claim: transactions with a higher one got it later
}

const (
	pastStep = 100 * time.Millisecond
	pastMost = 256                    // moments
	writing  = 200 * time.Millisecond // between a statement's time and its transaction's id: its planning, on a busy server
)

func newNearSweeps() *nearSweeps {
	n := &nearSweeps{sharing: 1}
	for i, width := range []time.Duration{200 * time.Millisecond, 2 * time.Second, wideSweep} {
		n.windows[i] = window{width: width, every: width / 20, part: 10}
	}
	n.windows[3] = window{width: wideSweep, every: 200 * time.Millisecond, part: 200, whole: true}
	for i := range n.windows {
		n.windows[i].since = map[laneKey]uint64{}
	}
	return n
}

// nearSweep is one as it is to be done; the zero value is none.
type nearSweep struct {
	window int
	width  time.Duration // back from the floor, at most
}

// lower is where a claim with this sweep looks in place of a lane's floor.
func (n *nearSweeps) lower(s nearSweep, key laneKey, f floor) floor {
	if s.width == 0 || f.at.IsZero() {
		return f
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	low := floor{at: f.at.Add(-s.width)}
	if w := &n.windows[s.window]; !w.whole {
		for i := len(n.past) - 1; i >= 0; i-- {
			if n.past[i].own >= w.since[key] {
				continue
			}
			if from := n.past[i].at.Add(-writing); low.at.Before(from) {
				low.at = from
			}
			break
		}
	}
	if f.before(low) {
		return f
	}
	return low
}

// wideSweep is how far back a look reaches that finds all that commits late and is to be found by a near sweep.
const wideSweep = 20 * time.Second

// due is the widest near sweep whose time has come. A look that answers a wake-up takes a wide one before its time, if
// that is cheap: then one look is enough.
func (n *nearSweeps) due(now time.Time, woken bool) nearSweep {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := len(n.windows) - 1; i >= 0; i-- {
		if w := &n.windows[i]; !now.Before(w.next) || woken && w.width >= wideSweep && w.cost < cheapSweep {
			return nearSweep{window: i, width: w.width}
		}
	}
	return nearSweep{}
}

// share tells among how many supervisors, those that serve one of our queues, the near sweeps are divided.
func (n *nearSweeps) share(supervisors int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sharing = max(supervisors, 1)
}

// reset forgets what was in progress when.
func (n *nearSweeps) reset() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.past = n.past[:0]
	for i := range n.windows {
		clear(n.windows[i].since)
	}
}

// saw notes what a claim says of the server's transactions. It reports whether the database has gone back: a claim has a
// higher id than the claims before it.
func (n *nearSweeps) saw(now transactions) (wentBack bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if last := len(n.past) - 1; last >= 0 {
		wentBack = now.own < n.past[last].own
		switch since := now.at.Sub(n.past[last].at); {
		case since < 0: // the server's clock went back
			n.past = n.past[:0]
		case since < pastStep:
			return wentBack
		}
	}
	if len(n.past) == pastMost {
		n.past = append(n.past[:0], n.past[1:]...)
	}
	n.past = append(n.past, now)
	return wentBack
}

// read notes that a claim with this sweep has looked into a lane, and what was in progress then.
func (n *nearSweeps) read(s nearSweep, key laneKey, seen transactions) {
	if s.width == 0 {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range n.windows[:s.window+1] {
		n.windows[i].since[key] = seen.oldest
	}
}

// swept notes what a claim took, with a sweep or without. Narrower sweeps are done with it, and cost no more. Each comes
// again when its own cost is its part of the time, together with those of the supervisors that share them. A wide sweep
// over many dead rows must not hold up the narrow ones, which find most of what commits late.
func (n *nearSweeps) swept(s nearSweep, took time.Duration, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s.width == 0 {
		n.usual += (took - n.usual) / 8
		return
	}
	cost := max(took-n.usual, took/10)
	n.windows[s.window].cost = cost
	for i := range n.windows[:s.window+1] {
		w := &n.windows[i]
		w.cost = min(w.cost, cost)
		w.next = now.Add(max(w.cost*time.Duration(w.part*n.sharing-1), w.every))
	}
}
