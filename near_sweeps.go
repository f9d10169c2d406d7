package drover

import (
	"sync"
	"time"
)

// nearSweeps are claims with lowered floors, for what committed late and lies behind them: three look at the last 200 ms,
// 2 s and 20 s before the floor, each for at most a tenth of the time, and no further back than anything can lie that was
// not there the last time.
//
// Jobs get the time of their own statement, and a statement that writes gets a transaction id. So whatever commits after a
// look was written by a transaction that was then in progress, or by a younger one; and where a claim of ours got its id
// before the oldest of those, it was not written before that claim. Rows that are pinned by an old snapshot and lie
// further back are not stepped over for nothing.
//
// What bears an older time than that, moved by hand or by a statement that first does something else for long, and what was
// locked while others looked has a fourth sweep, all of the 20 s, for less of the time.
type nearSweeps struct {
	mu      sync.Mutex
	windows [4]window
	sharing int            // supervisors whose near sweeps these are
	past    []transactions // as claims saw them, oldest first, pastStep apart
	usual   time.Duration  // that a claim without one takes
}

// window is one of them.
type window struct {
	width time.Duration
	every time.Duration // not more often
	part  int           // of the time, that it may take
	whole bool          // whatever is in progress
	cost  time.Duration // of its last sweep, beyond a usual claim's
	next  time.Time
	since map[laneKey]uint64 // the oldest transaction in progress when it last looked into a lane; none: not known
}

// transactions is how far the server's were when it made a claim.
type transactions struct {
	at     time.Time // by its clock, no later than what follows
	oldest uint64    // id in progress: what has a lower one the claim sees
	own    uint64    // id of the claim: whoever has a higher one got it later
}

const (
	pastStep = 100 * time.Millisecond
	pastMost = 256                    // moments
	writing  = 200 * time.Millisecond // between a statement's time and its transaction's id: its planning, on a busy server
)

func newNearSweeps() *nearSweeps {
	n := &nearSweeps{sharing: 1}
	for i, width := range []time.Duration{200 * time.Millisecond, 2 * time.Second, 20 * time.Second} {
		n.windows[i] = window{width: width, every: width / 20, part: 10}
	}
	n.windows[3] = window{width: 20 * time.Second, every: 200 * time.Millisecond, part: 200, whole: true}
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

// due is the widest near sweep whose time has come.
func (n *nearSweeps) due(now time.Time) nearSweep {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := len(n.windows) - 1; i >= 0; i-- {
		if w := &n.windows[i]; !now.Before(w.next) {
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
