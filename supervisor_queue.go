package drover

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/drover-queue/drover/internal/floors"
)

// queueState is one queue in a supervisor: its buffer, its slots, its pace.
type queueState struct {
	EngineQueue
	buffer  buffer
	pending atomic.Int64 // claimed, and not ended
	watched atomic.Int64 // see watchRoom
	suspect atomic.Int64 // of the pending, those whose process died once

	// The handlers' time since the last look, for the bound on the buffer.
	ranFor atomic.Int64 // nanoseconds
	ranN   atomic.Int64

	// Owned by the engine.
	typical time.Duration // of a run; 0 until one has ended
	retries float64       // share of claims that retries have saved up
	full    bool          // the last claim took all there was room for: fresh jobs may wait
}

func newQueueState(q EngineQueue) *queueState { return &queueState{EngineQueue: q} }

// ran notes how long a handler took.
func (q *queueState) ran(d time.Duration) {
	q.ranFor.Add(int64(d))
	q.ranN.Add(1)
}

// enter takes places for claimed jobs.
func (q *queueState) enter(runs []*Run) {
	for _, r := range runs {
		if r.tier == floors.TierSuspect {
			q.suspect.Add(1)
		}
	}
	q.pending.Add(int64(len(runs)))
}

// leave gives a claimed job's place back, and reports whether that makes the room the claimer waits for.
func (q *queueState) leave(tier int16) bool {
	if tier == floors.TierSuspect {
		q.suspect.Add(-1)
	}
	return q.pending.Add(-1) == q.watched.Load()
}

const (
	// prefetchTime bounds the buffer: what waits in it is blamed if the process dies, and sits out a slow job.
	prefetchTime = 50 * time.Millisecond

	// maxPrefetch bounds it where runs take next to no time.
	maxPrefetch = 4000

	// bufferPatience is how long a claimed job may wait for a slot before it is handed back.
	bufferPatience = time.Second
)

// capacity is how many jobs may be claimed and not ended: the slots, and what they get through in prefetchTime.
func (q *queueState) capacity() int {
	if n := q.ranN.Swap(0); n > 0 {
		mean := time.Duration(q.ranFor.Swap(0) / n)
		if q.typical == 0 {
			q.typical = mean
		}
		q.typical = max((3*q.typical+mean)/4, time.Microsecond)
	}
	if q.typical == 0 || q.typical >= prefetchTime {
		return q.Slots
	}
	return q.Slots + int(min(int64(q.Slots)*int64(prefetchTime)/int64(q.typical), maxPrefetch))
}

// congested notes that claimed jobs had to wait: until runs end again there is no reason to claim ahead.
func (q *queueState) congested() { q.typical = bufferPatience }

// room is how many jobs may be claimed now.
func (q *queueState) room() int { return max(0, q.capacity()-int(q.pending.Load())) }

// watchRoom is the number of pending jobs from which down a claim is worth its round trip: a slot is free, or a
// quarter of the buffer. The run that ends there signals the claimer.
func (q *queueState) watchRoom() int64 {
	q.watched.Store(int64(max(q.Slots-1, q.capacity()*3/4)))
	return q.watched.Load()
}

// buffer holds claimed jobs until a worker takes them. It is safe for concurrent use; the zero value is empty.
type buffer struct {
	mu     sync.Mutex
	more   sync.Cond
	runs   []*Run // from head on
	head   int
	closed bool
}

// put adds runs; a closed buffer returns false.
func (b *buffer) put(runs []*Run) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	if b.head > 0 && b.head == len(b.runs) {
		b.runs, b.head = b.runs[:0], 0
	}
	b.runs = append(b.runs, runs...)
	b.cond()
	if len(runs) == 1 {
		b.more.Signal()
	} else {
		b.more.Broadcast()
	}
	return true
}

func (b *buffer) cond() {
	if b.more.L == nil {
		b.more.L = &b.mu
	}
}

// take waits for a run; false means the buffer is closed.
func (b *buffer) take() (*Run, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cond()
	for b.head == len(b.runs) {
		if b.closed {
			return nil, false
		}
		b.more.Wait()
	}
	r := b.runs[b.head]
	b.runs[b.head] = nil
	b.head++
	return r, true
}

// drain takes what waits, if its oldest has waited since before the given time.
func (b *buffer) drain(before time.Time) []*Run {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.head == len(b.runs) || !b.runs[b.head].received.Before(before) {
		return nil
	}
	return b.rest()
}

// close ends the workers that wait and returns what waited.
func (b *buffer) close() []*Run {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.cond()
	b.more.Broadcast()
	return b.rest()
}

// rest ends and returns the runs that wait. Callers hold mu.
func (b *buffer) rest() []*Run {
	runs := append([]*Run(nil), b.runs[b.head:]...)
	clear(b.runs)
	b.runs, b.head = b.runs[:0], 0
	for _, r := range runs {
		r.finish()
	}
	return runs
}

func (b *buffer) len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.runs) - b.head
}
