package engine

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/drover-queue/drover/internal/floors"
	"github.com/drover-queue/drover/internal/store"
)

// QueueState is the state of one queue in a supervisor.
type QueueState struct {
	Queue
	Buffer  Buffer
	Pending atomic.Int64 // claimed jobs whose runs have not ended
	Watched atomic.Int64 // see WatchRoom
	suspect atomic.Int64 // pending jobs of the suspect tier; the process of such a job has died once

	tally tally

	// How many handlers ran, and how long together, since Capacity last read these two.
	ranFor atomic.Int64 // nanoseconds
	RanN   atomic.Int64

	// Only the claimer's goroutine uses these.
	typical time.Duration // how long a handler runs, a moving average; 0 until a run has ended
	retries float64       // how many retries may be claimed while fresh jobs wait; each claim adds to this number: see Groups
	Full    bool          // the last claim used all the room: more fresh jobs may wait

	holds *atomic.Pointer[holds] // the holds (paused scopes) of the supervisor; nil: it has none
}

// NewQueueState returns the state of a queue that has no jobs yet.
func NewQueueState(q Queue) *QueueState { return &QueueState{Queue: q} }

// held reports whether the queue is paused: no job is claimed from it.
func (q *QueueState) held() bool { return q.holds != nil && q.holds.Load().holdsQueue(q.Name) }

// Ran records how long a handler took.
func (q *QueueState) Ran(d time.Duration) {
	q.ranFor.Add(int64(d))
	q.RanN.Add(1)
}

// Enter counts claimed jobs as pending.
func (q *QueueState) Enter(runs []*Run) {
	for _, r := range runs {
		if r.tier == floors.TierSuspect {
			q.suspect.Add(1)
		}
	}
	q.Pending.Add(int64(len(runs)))
}

// Leave stops counting a job as pending, and reports whether there is now the room for which the claimer waits.
func (q *QueueState) Leave(tier int16) bool {
	if tier == floors.TierSuspect {
		q.suspect.Add(-1)
	}
	return q.Pending.Add(-1) == q.Watched.Load()
}

const (
	// PrefetchTime bounds how many jobs the buffer holds: as many as the slots finish in this time. A larger buffer
	// would be bad, because jobs in it may be blamed if the process dies, and because they wait behind a slow job.
	PrefetchTime = 50 * time.Millisecond

	// MaxPrefetch bounds the buffer if runs take next to no time.
	MaxPrefetch = 4000

	// BufferPatience is how long a claimed job may wait for a slot before it is released.
	BufferPatience = time.Second
)

// Capacity returns how many jobs may be pending: one for each slot, and in the buffer as many as the slots finish in
// PrefetchTime, at most MaxPrefetch. Nothing is buffered before the first run has ended, and while runs take
// PrefetchTime or longer.
func (q *QueueState) Capacity() int {
	if n := q.RanN.Swap(0); n > 0 {
		mean := time.Duration(q.ranFor.Swap(0) / n)
		if q.typical == 0 {
			q.typical = mean
		}
		q.typical = max((3*q.typical+mean)/4, time.Microsecond)
	}
	if q.typical == 0 || q.typical >= PrefetchTime {
		return q.Slots
	}
	return q.Slots + int(min(int64(q.Slots)*int64(PrefetchTime)/int64(q.typical), MaxPrefetch))
}

// Congested records that claimed jobs had to wait. Until runs end again, claims take only as many jobs as there are
// free slots.
func (q *QueueState) Congested() { q.typical = BufferPatience }

// Room returns how many jobs may be claimed now.
func (q *QueueState) Room() int {
	if q.held() {
		return 0
	}
	return max(0, q.Capacity()-int(q.Pending.Load()))
}

// WatchRoom returns the largest number of pending jobs at which a claim is worth its round trip: a slot is free, or a
// quarter of the capacity is free, whichever comes first. The run that brings the number of pending jobs down to this
// value wakes the claimer.
func (q *QueueState) WatchRoom() int64 {
	q.Watched.Store(int64(max(q.Slots-1, q.Capacity()*3/4)))
	return q.Watched.Load()
}

// tally counts the runs of a queue that began and ended since the supervisor began to serve the queue. It is safe for
// concurrent use.
type tally struct{ started, waited, completed, failed, discarded atomic.Int64 } // waited is in microseconds

// read returns the counts. It reads them one after another, so they need not be from the same moment.
func (t *tally) read(queue string) store.Activity {
	return store.Activity{
		Queue: queue, Started: t.started.Load(), Waited: t.waited.Load(),
		Completed: t.completed.Load(), Failed: t.failed.Load(), Discarded: t.discarded.Load(),
	}
}

// Buffer holds claimed jobs until a slot takes them. It is safe for concurrent use; the zero value is empty.
type Buffer struct {
	Mu     sync.Mutex
	more   sync.Cond
	Runs   []*Run // the runs that wait begin at the index Head
	Head   int
	closed bool
}

// Put adds runs; a closed buffer returns false.
func (b *Buffer) Put(runs []*Run) bool {
	b.Mu.Lock()
	defer b.Mu.Unlock()
	if b.closed {
		return false
	}
	if b.Head > 0 && b.Head == len(b.Runs) {
		b.Runs, b.Head = b.Runs[:0], 0
	}
	b.Runs = append(b.Runs, runs...)
	b.cond()
	if len(runs) == 1 {
		b.more.Signal()
	} else {
		b.more.Broadcast()
	}
	return true
}

func (b *Buffer) cond() {
	if b.more.L == nil {
		b.more.L = &b.Mu
	}
}

// Take waits for a run and takes it out of the buffer; false means that the buffer is closed.
func (b *Buffer) Take() (*Run, bool) {
	b.Mu.Lock()
	defer b.Mu.Unlock()
	b.cond()
	for b.Head == len(b.Runs) {
		if b.closed {
			return nil, false
		}
		b.more.Wait()
	}
	r := b.Runs[b.Head]
	b.Runs[b.Head] = nil
	b.Head++
	return r, true
}

// Drain ends and returns all runs that wait, if the oldest of them was received before the given time.
func (b *Buffer) Drain(before time.Time) []*Run {
	b.Mu.Lock()
	defer b.Mu.Unlock()
	if b.Head == len(b.Runs) || !b.Runs[b.Head].Received.Before(before) {
		return nil
	}
	return b.Rest()
}

// Pick ends and returns the waiting runs that match.
func (b *Buffer) Pick(match func(*Run) bool) (picked []*Run) {
	b.Mu.Lock()
	defer b.Mu.Unlock()
	kept := b.Runs[:0]
	for _, r := range b.Runs[b.Head:] {
		if match(r) {
			r.Finish()
			picked = append(picked, r)
		} else {
			kept = append(kept, r)
		}
	}
	clear(b.Runs[len(kept):])
	b.Runs, b.Head = kept, 0
	return picked
}

// Close makes Take return false, which ends the goroutines of idle slots. It ends and returns the runs that wait for
// slots.
func (b *Buffer) Close() []*Run {
	b.Mu.Lock()
	defer b.Mu.Unlock()
	b.closed = true
	b.cond()
	b.more.Broadcast()
	return b.Rest()
}

// Rest ends and returns the runs that wait. Callers hold Mu.
func (b *Buffer) Rest() []*Run {
	runs := append([]*Run(nil), b.Runs[b.Head:]...)
	clear(b.Runs)
	b.Runs, b.Head = b.Runs[:0], 0
	for _, r := range runs {
		r.Finish()
	}
	return runs
}

// Len returns how many runs wait.
func (b *Buffer) Len() int {
	b.Mu.Lock()
	defer b.Mu.Unlock()
	return len(b.Runs) - b.Head
}
