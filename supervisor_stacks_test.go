package drover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// stuckHere is a place that a trace names.
func stuckHere(over func() bool) {
	for !over() {
		<-time.After(10 * time.Millisecond)
	}
}

// stuckThere is another.
func stuckThere(over func() bool) {
	for !over() {
		<-time.After(10 * time.Millisecond)
	}
}

// A job that timed out says where its handler was, whether or not the handler heeds its context.
func TestATimeoutTellsWhereTheHandlerWas(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	var end atomic.Bool
	t.Cleanup(func() { end.Store(true) })
	db.launch(t, SupervisorConfig{Workers: []Worker{
		dynWorker("heeds", WorkerOpts{Timeout: 5 * time.Second}, func(ctx context.Context, j *Job) error {
			stuckHere(func() bool { return ctx.Err() != nil && j.run.stack.Load() != nil }) // the watch may be late
			return ctx.Err()
		}),
		dynWorker("deaf", WorkerOpts{Timeout: time.Second}, func(context.Context, *Job) error { stuckThere(end.Load); return nil }),
		dynWorker("fails", WorkerOpts{}, func(context.Context, *Job) error { return errBoom }),
	}})
	for kind, want := range map[string]string{"heeds": "stuckHere", "deaf": "stuckThere", "fails": ""} {
		id := db.enqueue(t, dyn{kind: kind}, nil)
		db.waitFor(t, 30*time.Second, `select state = 'retryable' from jobs where id = $1`, id)
		newest := db.get(t, id).Errors[0]
		if !strings.Contains(newest.Trace, want) || (want == "") != (newest.Trace == "") {
			t.Errorf("%s (%s): no %q in the trace %q", kind, newest.Class, want, newest.Trace)
		}
	}
}

// The stacks are those of the runs whose time is up, each its own, and are taken once, for a part of the time.
func TestStacksAreOfTheRight(t *testing.T) {
	t.Parallel()
	var end atomic.Bool
	defer end.Store(true)
	start := func(place func(func() bool)) string {
		id := make(chan string)
		go func() {
			id <- goroutineID()
			place(end.Load)
		}()
		return <-id
	}
	now := time.Now()
	here, there := &run{goroutine: start(stuckHere), timeout: time.Second}, &run{goroutine: start(stuckThere), timeout: time.Second}
	early := &run{goroutine: start(stuckHere), timeout: time.Minute}
	never := &run{goroutine: start(stuckHere), timeout: maxTimeout}
	for _, r := range []*run{here, there, early, never} {
		r.startedAt = now.Add(-950 * time.Millisecond)
	}
	runs := []*run{here, there, early, never}
	eventually(t, func() bool { // they have got there
		there := 0
		for one := range strings.SplitSeq(allStacks(), "\n\n") {
			if slices.ContainsFunc(runs, func(r *run) bool {
				return strings.HasPrefix(one, "goroutine "+r.goroutine+" ") && strings.Contains(one, ".stuck")
			}) {
				there++
			}
		}
		return there == len(runs)
	})
	var s stacks
	const lease = time.Hour
	s.take(runs, now, lease)
	for r, want := range map[*run]string{here: "stuckHere", there: "stuckThere"} {
		if got := r.stack.Load(); got == nil || !strings.HasPrefix(*got, "goroutine "+r.goroutine+" ") || !strings.Contains(*got, want) {
			t.Errorf("no %s in %v", want, got)
		}
	}
	if early.stack.Load() != nil || never.stack.Load() != nil {
		t.Error("a stack was taken before the time is up")
	}
	early.timeout = time.Second
	if s.take(runs, now, lease); early.stack.Load() != nil || !s.next.After(now) {
		t.Errorf("stacks are taken again at once; the next at %v", s.next)
	}
	if s.take(runs, s.next, lease); early.stack.Load() == nil {
		t.Error("none is taken when it is time")
	}
}

// To take stacks stops the process, so it must not cost the lease: many goroutines need a long one.
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
	r := &run{goroutine: goroutineID(), timeout: time.Second, startedAt: time.Now().Add(-time.Second)}
	var s stacks
	if s.take([]*run{r}, time.Now(), time.Microsecond); r.stack.Load() != nil {
		t.Error("stacks were taken although that can cost the lease")
	}
}

// traced is an error with a stack, as the usual packages make them.
type traced struct {
	error
	line int
}

func (e traced) Format(f fmt.State, _ rune) {
	if f.Flag('+') {
		fmt.Fprintf(f, "%s\nmain.load\n\t/src/load.go:%d", e.Error(), 12+e.line)
		return
	}
	fmt.Fprint(f, e.Error())
}

// plain formats itself, without a stack.
type plain struct{ error }

func (e plain) Format(f fmt.State, _ rune) { fmt.Fprint(f, e.Error()) }

// The stack that an error brings is kept, wherever it is in the chain, and does not split its failure group.
func TestAnErrorKeepsItsStack(t *testing.T) {
	t.Parallel()
	const want = "boom\nmain.load\n\t/src/load.go:12"
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"itself":      {traced{errBoom, 0}, want},
		"wrapped":     {fmt.Errorf("load: %w", RetryAfter(time.Second, traced{errBoom, 0})), want},
		"joined":      {errors.Join(errBoom, plain{errBoom}, traced{errBoom, 0}), want},
		"none":        {plain{errBoom}, ""},
		"it panics":   {badUnwrap{}, ""},
		"a long ring": {&looping{}, ""},
		"nil":         {nil, ""},
	} {
		if got := ownStack(c.err); got != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
	db := newQuietDB(t)
	db.enqueueJobs(t, 2, nil)
	s := db.stopped(t, SupervisorConfig{})
	var entries []RunError
	for i, r := range s.claimAll(t, 2) {
		var e RunError
		if err := json.Unmarshal(r.outcomeOf(traced{errBoom, i}).entry, &e); err != nil {
			t.Fatal(err)
		}
		entries = append(entries, e)
	}
	if a, b := entries[0], entries[1]; a.Trace != want || b.Trace == a.Trace || a.Fingerprint == "" || a.Fingerprint != b.Fingerprint {
		t.Errorf("%+v", entries)
	}
}
