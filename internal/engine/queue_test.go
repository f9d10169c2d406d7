package engine_test

import (
	"sync"
	"testing"
	"time"

	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/floors"
)

func TestSlowJobsAreNotClaimedAhead(t *testing.T) {
	t.Parallel()
	q := engine.NewQueueState(slots(10))
	if got := q.Capacity(); got != 10 {
		t.Errorf("before any run has ended the capacity is %d", got)
	}
	for range 8 { // a few looks, as its mean moves by a quarter each
		q.Ran(time.Millisecond)
		q.Capacity()
	}
	if got := q.Capacity(); got < 400 || got > 520 {
		t.Errorf("with runs of 1 ms the capacity is %d", got)
	}
	for range 100 {
		q.Ran(0)
		q.Capacity()
	}
	if got := q.Capacity(); got != 10+engine.MaxPrefetch {
		t.Errorf("with runs of no time the capacity is %d", got)
	}
	for range 20 {
		q.Ran(engine.PrefetchTime + 20*time.Millisecond)
		q.Capacity()
	}
	if got := q.Capacity(); got != 10 {
		t.Errorf("with slow runs the capacity is %d", got)
	}
}

// Jobs that were handed back because slow ones kept them from starting must not be taken again immediately.
func TestCongestedQueueClaimsNothingAhead(t *testing.T) {
	t.Parallel()
	q := engine.NewQueueState(slots(2))
	q.Ran(time.Microsecond)
	if q.Capacity() <= 2 {
		t.Fatal("no prefetch for fast runs")
	}
	q.Pending.Store(2)
	q.Congested()
	if got := q.Room(); got != 0 {
		t.Errorf("with both slots taken there is room for %d", got)
	}
}

// The end of a run that makes room is either seen by the claimer's look, or signals it. Missed, the queue stands still.
func TestRoomIsNeverMissed(t *testing.T) {
	t.Parallel()
	for range 20_000 {
		q := engine.NewQueueState(slots(2))
		q.Pending.Store(3)
		var left sync.WaitGroup
		signals := make(chan struct{}, 2)
		for range 2 { // the third runs on: one slot is free
			left.Go(func() {
				if q.Leave(floors.TierFresh) {
					signals <- struct{}{}
				}
			})
		}
		watched := q.WatchRoom()
		seen := q.Pending.Load() <= watched
		left.Wait()
		if !seen && len(signals) == 0 {
			t.Fatal("a slot is free, and the claimer has not heard of it")
		}
	}
}

func TestBufferGivesEachRunToOneWorker(t *testing.T) {
	t.Parallel()
	var b engine.Buffer
	q := engine.NewQueueState(slots(4))
	const total = 2000
	var workers sync.WaitGroup
	var mu sync.Mutex
	taken := map[*engine.Run]int{}
	take := func(r *engine.Run) {
		mu.Lock()
		defer mu.Unlock()
		taken[r]++
	}
	for range 4 {
		workers.Go(func() {
			for {
				r, ok := b.Take()
				if !ok {
					return
				}
				take(r)
			}
		})
	}
	s := engine.NewShared(engine.Config{}, nil)
	long := time.Now()
	for i := range total {
		q.Pending.Add(1)
		if !b.Put([]*engine.Run{{From: q, Shared: s, Received: long}}) {
			t.Fatal("an open buffer refused a run")
		}
		if i%100 == 0 {
			for _, r := range b.Drain(long.Add(time.Second)) {
				take(r)
			}
		}
	}
	for _, r := range b.Close() {
		take(r)
	}
	workers.Wait()
	if len(taken) != total {
		t.Errorf("%d of %d runs came out", len(taken), total)
	}
	for _, n := range taken {
		if n != 1 {
			t.Fatalf("a run came out %d times", n)
		}
	}
	if b.Put([]*engine.Run{{From: q}}) {
		t.Error("a closed buffer took a run")
	}
	if b.Len() != 0 {
		t.Errorf("a closed buffer holds %d", b.Len())
	}
}

// one queue's room must not take all of a claim.
func TestShareOut(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ room, want []int }{
		{[]int{}, []int{}},
		{[]int{5, 7}, []int{5, 7}},
		{[]int{4000, 10, 0}, []int{1990, 10, 0}},
		{[]int{0, 10, 4000}, []int{0, 10, 1990}},
		{[]int{5000, 5000}, []int{1000, 1000}},
		{[]int{5000, 1, 5000}, []int{1000, 1, 999}},
	} {
		queues := make([]*engine.QueueState, len(c.room))
		for i, n := range c.room {
			queues[i] = engine.NewQueueState(slots(n))
		}
		got, sum := engine.ShareOut(engine.MaxClaim, queues), 0
		for i := range got {
			sum += got[i]
			if got[i] < c.want[i]-1 || got[i] > c.want[i]+1 {
				t.Errorf("room %v: shares %v, want %v", c.room, got, c.want)
				break
			}
		}
		if sum > engine.MaxClaim {
			t.Errorf("room %v: %d jobs in one claim", c.room, sum)
		}
	}
	many := make([]*engine.QueueState, 3000)
	for i := range many {
		many[i] = engine.NewQueueState(slots(10))
	}
	sum := 0
	for _, n := range engine.ShareOut(engine.MaxClaim, many) {
		sum += n
	}
	if sum != engine.MaxClaim {
		t.Errorf("3,000 queues share %d", sum)
	}
}
