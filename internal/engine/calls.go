package engine

import (
	"maps"
	"sync"
	"time"

	"github.com/drover-queue/drover/internal/floors"
)

// call is a look into a queue that other supervisors expect from us, because a notification named us, or because we
// left jobs for which we had no room. A claim answers the call if it began after the call, has committed, and left room
// in the queue. If no claim answers in time, the keeper hands the call on to other supervisors.
type call struct {
	due int64     // due time of the job, in µs since 1970 by the server's clock; 0: not known, but the job is not before the floors
	by  time.Time // when to hand the call on; zero: never, because all other supervisors have been notified
	n   int       // distinguishes a call from later calls of the same queue
}

const (
	// A call waits for its answer as long as four usual claims take, but at least callPatience and at most
	// callPatienceMost.
	callPatience     = 10 * time.Millisecond
	callPatienceMost = 100 * time.Millisecond

	// If no supervisor is on call (oncall.go) when a call is handed on, the method noteFull opens no more calls of this
	// queue for nobodyPause. If nobody is on call the next time either, the pause doubles, up to nobodyMost. No job is
	// forgotten in this pause: a supervisor that gets room goes on call, and then looks for jobs by itself.
	nobodyPause = 50 * time.Millisecond
	nobodyMost  = time.Second
)

// calls has the open calls of a supervisor, at most one for each queue, and whether the last claim left room in each
// queue. It is safe for concurrent use.
type calls struct {
	mu     sync.Mutex
	n      int
	open   map[string]call
	roomy  map[string]bool // the last claim left room
	back   bool            // some queue got room since the keeper last tried to go on call
	nobody map[string]nobody
	usual  time.Duration // how long a claim takes, a moving average
	ring   func()        // wakes the keeper, which has something to do
}

// nobody is the state of a queue after a call was handed on while no supervisor was on call.
type nobody struct {
	until time.Time
	pause time.Duration
}

func newCalls() *calls {
	return &calls{open: map[string]call{}, roomy: map[string]bool{}, nobody: map[string]nobody{}, ring: func() {}}
}

// add opens a call. If the queue has an open call already, the new call gets the earlier of the two due times, and the
// earlier of the two times to hand it on.
func (c *calls) add(queue string, due int64, by time.Time) {
	c.mu.Lock()
	c.n++
	was, open := c.open[queue]
	if open {
		if due == 0 || was.due != 0 && was.due < due {
			due = was.due
		}
		if by.IsZero() || !was.by.IsZero() && was.by.Before(by) {
			by = was.by
		}
	}
	c.open[queue] = call{due: due, by: by, n: c.n}
	c.mu.Unlock()
	c.ring()
}

// answerBy returns when to hand on a call that comes now, if no claim has answered it by then.
func (c *calls) answerBy(now time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return now.Add(min(max(4*c.usual, callPatience), callPatienceMost))
}

// noteTime records how long a claim took.
func (c *calls) noteTime(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.usual += (d - c.usual) / 8
}

// asked returns the open calls.
func (c *calls) asked() map[string]call {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.open) == 0 {
		return nil
	}
	return maps.Clone(c.open)
}

// answered records a claim that left room in the queue.
func (c *calls) answered(queue string, asked call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open[queue].n == asked.n {
		delete(c.open, queue)
	}
	delete(c.nobody, queue)
	if !c.roomy[queue] {
		c.roomy[queue], c.back = true, true
		defer c.ring()
	}
}

// gotRoom reports whether a queue got room since the last attempt to go on call. If the parameter try is true, the
// caller makes an attempt now.
func (c *calls) gotRoom(try bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	back := c.back
	c.back = back && !try
	return back
}

// wantSlots makes the keeper try to go on call.
func (c *calls) wantSlots() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.back = true
}

// noteFull records that a claim filled the queue, or found it full. If the queue has an open call, noteFull makes sure
// that the call is handed on by the given time. If the parameter leaves is true, no other supervisor knows of the jobs
// that are left, so noteFull opens a call for them. During the pause after a call for which no supervisor was on call
// (nobodyPause), noteFull does neither.
func (c *calls) noteFull(queue string, leaves bool, now, by time.Time) {
	c.mu.Lock()
	c.roomy[queue] = false
	open, asked := c.open[queue]
	if asked && open.by.IsZero() {
		delete(c.open, queue) // all other supervisors have been notified
		asked = false
	}
	handOn := (asked || leaves) && !now.Before(c.nobody[queue].until)
	c.mu.Unlock()
	if handOn {
		c.add(queue, 0, by)
	}
}

// room reports whether the last claim left room in the queue.
func (c *calls) room(queue string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.roomy[queue]
}

// next returns when the next call is to be handed on; zero: there is no call.
func (c *calls) next() (at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, call := range c.open {
		if !call.by.IsZero() && (at.IsZero() || call.by.Before(at)) {
			at = call.by
		}
	}
	return at
}

// overdue returns the calls that are to be handed on now. It closes the calls of queues without room. In a queue with
// room the call stays open, because a late claim may still answer it.
func (c *calls) overdue(now time.Time) map[string]call {
	c.mu.Lock()
	defer c.mu.Unlock()
	var overdue map[string]call
	for queue, open := range c.open {
		if open.by.IsZero() || now.Before(open.by) {
			continue
		}
		if overdue == nil {
			overdue = map[string]call{}
		}
		overdue[queue] = open
		if open.by = (time.Time{}); c.roomy[queue] {
			c.open[queue] = open
		} else {
			delete(c.open, queue)
		}
	}
	return overdue
}

// handedOn records that a call was handed on, and whether a supervisor on call was notified.
func (c *calls) handedOn(queue string, told bool, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if told {
		delete(c.nobody, queue)
		return
	}
	pause := min(max(nobodyPause, 2*c.nobody[queue].pause), nobodyMost)
	c.nobody[queue] = nobody{until: now.Add(pause), pause: pause}
}

// A claim that answers a call begins to read callBack before the floor, or callBack before the due time of the call if
// that is earlier. The job of the call may lie there, because it may have committed after jobs with later due times.
const callBack = time.Second

// lower returns where a claim that answers the call begins to read a lane with floor f.
func (c call) lower(f floors.Floor) floors.Floor {
	if f.At.IsZero() {
		return f
	}
	from := f.At
	if due := time.UnixMicro(c.due); c.due != 0 && due.Before(from) {
		from = due
	}
	return floors.Floor{At: from.Add(-callBack)}
}
