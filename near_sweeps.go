package drover

import (
	"sync"
	"time"
)

// nearSweeps are claims with lowered floors. They find jobs that committed late and lie behind the floors. Three of
// them look at the last 200 ms, 2 s and 20 s before the floor, each for at most a tenth of the time. They look back
// only as far as a row can lie that the previous sweep did not see.
//
// A job's due time is the time of its own statement, and a statement that writes gets a transaction id. A row that a
// sweep missed was written by a transaction that was open when the sweep looked, or that started later. So it is newer
// than any claim of ours with an id below the oldest one that was open. Older rows that a snapshot pins are not read
// again.
//
// Some rows carry an older time: they were moved by hand, written late in a long statement, or locked while a sweep
// looked. A fourth sweep covers all of the 20 s for them, for at most a two-hundredth of the time.
type nearSweeps struct {
	mu      sync.Mutex
	windows [4]window
	sharing int            // how many supervisors share the near sweeps
	past    []transactions // as claims saw them, oldest first, at least pastStep apart
	usual   time.Duration  // how long a claim without a near sweep takes, a moving average
}

// window is one of the four near sweeps.
type window struct {
	width time.Duration
	every time.Duration // the shortest time between two sweeps
	part  int           // a sweep may take one part in so many of the time
	whole bool          // always look at the whole width, whatever transactions were open
	cost  time.Duration // how much longer its last sweep took than a usual claim
	next  time.Time
	since map[laneKey]uint64 // oldest transaction id in progress when it last looked into a lane; no entry: unknown
}

// transactions is the server's state of transactions at a claim.
type transactions struct {
	at     time.Time // the server's clock, read no later than the two ids
	oldest uint64    // lowest id in progress: the claim sees all committed rows with a lower id
	own    uint64    // the claim's own id: any higher id was given out later
}

const (
	pastStep = 100 * time.Millisecond
	pastMost = 256                    // how many claims past keeps
	writing  = 200 * time.Millisecond // from a statement's time to its transaction's id: planning, on a busy server
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

// nearSweep is a near sweep that a claim is to do. The zero value means none.
type nearSweep struct {
	window int
	width  time.Duration // how far back from the floor, at most
}

// lower returns where a claim with this sweep begins to read a lane with floor f.
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

// due returns the widest near sweep that is due now.
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

// share sets how many supervisors share the near sweeps: all that serve one of our queues.
func (n *nearSweeps) share(supervisors int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sharing = max(supervisors, 1)
}

// reset forgets which transactions were in progress at which time.
func (n *nearSweeps) reset() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.past = n.past[:0]
	for i := range n.windows {
		clear(n.windows[i].since)
	}
}

// saw records the transactions that a claim saw. It reports whether the database has gone back to an older state:
// otherwise each claim has a higher id than the claims before it.
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

// read records that a claim with this sweep has looked into a lane, and the oldest transaction in progress then.
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

// swept records how long a claim took, with a sweep or without, and sets when the windows are due again. A sweep covers
// the narrower ones too, which cost no more than it did. A window is due again once its own cost, for all supervisors
// that share the sweeps, is no more than its part of the time. A wide sweep over many dead rows must not hold up the
// narrow ones, which find most of the late jobs.
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
