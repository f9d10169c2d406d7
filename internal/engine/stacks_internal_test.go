package engine

import (
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// standHere is a place that a stack names.
func standHere(over chan struct{}) { <-over }

// standThere is another.
func standThere(over chan struct{}) { <-over }

// standing returns a run whose handler stands at a place, and has all but used up its time.
func standing(place func(chan struct{}), over chan struct{}, timeout time.Duration, now time.Time) *Run {
	id := make(chan uint64)
	go func() {
		id <- goroutineID()
		place(over)
	}()
	r := &Run{Timeout: timeout, StartedAt: now.Add(time.Millisecond - time.Second), goroutine: <-id}
	r.phase.Store(phaseStarted)
	return r
}

// The stacks are of the runs whose time is almost up, each its own, and are taken once a second.
func TestStacksOfTheRightRuns(t *testing.T) {
	t.Parallel()
	over := make(chan struct{})
	defer close(over)
	now := time.Now()
	const lease = time.Hour
	here, there := standing(standHere, over, time.Second, now), standing(standThere, over, time.Second, now)
	early, never, gone := standing(standHere, over, time.Minute, now), standing(standHere, over, 0, now), standing(standHere, over, time.Second, now)
	gone.phase.Store(phaseEnded)
	var s Stacks
	sleep := takeStacks(&s, []*Run{here, there, early, never, gone}, now, lease)
	for r, place := range map[*Run]string{here: "standHere", there: "standThere"} {
		// A goroutine that has not got to its place shows another function of this test.
		if got := r.Stack(); !strings.HasPrefix(got, "goroutine ") || numberOf(got) != r.goroutine || !strings.Contains(got, place) && !strings.Contains(got, "standing") {
			t.Errorf("no %s in %q", place, got)
		}
	}
	if early.Stack() != "" || never.Stack() != "" || gone.Stack() != "" || sleep != watchInterval {
		t.Errorf("stacks of others: %q %q %q, sleep %v", early.Stack(), never.Stack(), gone.Stack(), sleep)
	}
	late := standing(standHere, over, time.Second, now)
	if takeStacks(&s, []*Run{late}, now.Add(stackPause-1), lease); late.Stack() != "" {
		t.Error("stacks are taken twice within a second")
	}
	if takeStacks(&s, []*Run{late}, s.next, lease); late.Stack() == "" {
		t.Error("none is taken when it is time")
	}
}

// The watch wakes in time for the end of a run's time, and not for each run.
func TestStacksInTime(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for left, want := range map[time.Duration]time.Duration{
		time.Hour:                             watchInterval,
		stackLead + 60*time.Millisecond:       60 * time.Millisecond,
		stackLead + time.Millisecond:          watchInterval / 10,
		stackLead + watchInterval + time.Hour: watchInterval,
	} {
		r := &Run{Timeout: 10 * time.Hour, StartedAt: now.Add(left - 10*time.Hour), goroutine: 1 << 60}
		var s Stacks
		if got := takeStacks(&s, []*Run{r}, now, time.Hour); got != want {
			t.Errorf("%v before the end: sleep %v, want %v", left, got, want)
		}
	}
}

// Taking stacks stops the process, so it must not cost the lease: many goroutines need a long one.
func TestStacksCostNoLease(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		goroutines int
		lease      time.Duration
		want       bool
	}{
		{4_000, 30 * time.Second, true},
		{5_000, 30 * time.Second, false},
		{100, time.Second, true},
		{1_000, time.Second, false},
	} {
		if got := affordable(c.goroutines, c.lease); got != c.want {
			t.Errorf("%d goroutines, lease %v: %t", c.goroutines, c.lease, got)
		}
	}
	over := make(chan struct{})
	defer close(over)
	r := standing(standHere, over, time.Second, time.Now())
	var s Stacks
	if takeStacks(&s, []*Run{r}, time.Now(), time.Microsecond); r.Stack() != "" {
		t.Error("stacks were taken although that can cost the lease")
	}
}

// A stack is bounded, however deep the handler is.
func TestStacksAreBounded(t *testing.T) {
	t.Parallel()
	over := make(chan struct{})
	var once sync.Once
	deep := make(chan struct{})
	var dive func(n int)
	dive = func(n int) {
		if n > 0 {
			dive(n - 1)
			runtime.KeepAlive(n)
			return
		}
		once.Do(func() { close(deep) })
		<-over
	}
	r := standing(func(chan struct{}) { dive(2000) }, over, time.Second, time.Now())
	defer close(over)
	<-deep
	var s Stacks
	if takeStacks(&s, []*Run{r}, time.Now(), time.Hour); r.Stack() == "" || len(r.Stack()) > mostOfStack {
		t.Errorf("a stack of %d bytes", len(r.Stack()))
	}
}
