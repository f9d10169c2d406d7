package engine

import (
	"testing"
	"time"

	"github.com/drover-queue/drover/internal/store"
)

// Once replaceHolds has returned, no job of a held scope starts, and none of another scope is held up.
func TestNoStartOfAHeldJob(t *testing.T) {
	t.Parallel()
	s := NewShared(Config{Lease: time.Minute, Kinds: []store.KindPolicy{{Kind: "a"}, {Kind: "b"}, {Kind: "x"}}}, nil)
	now := time.Now()
	s.beaten.Store(&now)
	start := func(queue, kind string) bool {
		r := &Run{Queue: queue, Kind: kind, Lease: NewLease(t.Context(), "me")}
		began := s.begin(r)
		if began == r.StartedAt.IsZero() || began != s.InFlight.Has(r) {
			t.Errorf("began %t, started at %v, in flight %t", began, r.StartedAt, s.InFlight.Has(r))
		}
		return began
	}
	for _, c := range []struct {
		scope       string
		queue, kind string
		starts      bool
	}{
		{"all", "a", "x", false},
		{"queue:a", "a", "x", false},
		{"kind:x", "a", "x", false},
		{"queue:b", "a", "x", true},
		{"kind:y", "a", "x", true},
		{"queue:x", "a", "x", true},
		{"kind:a", "a", "x", true},
		{"kind:a:x", "a", "a:x", false},
		{"queue:", "a", "x", true},
		{"nonsense", "a", "x", true},
	} {
		s.replaceHolds(newHolds([]store.Limit{{Scope: c.scope, Held: true}, {Scope: "all"}}, s.Kinds))
		if start(c.queue, c.kind) != c.starts {
			t.Errorf("%s: a job of queue %s and kind %s starts: %t", c.scope, c.queue, c.kind, !c.starts)
		}
	}
	s.replaceHolds(newHolds([]store.Limit{{Scope: "all"}}, s.Kinds))
	if s.holds.Load() != nil || !start("a", "x") {
		t.Error("a scope that was resumed is held")
	}
	early := now.Add(-time.Minute)
	s.beaten.Store(&early)
	if start("a", "x") {
		t.Error("a job starts after the end of the lease")
	}
}

// Held kinds are not claimed, and a supervisor whose kinds are all held claims nothing.
func TestWhatMayBeClaimed(t *testing.T) {
	t.Parallel()
	kinds := []string{"a", "b"}
	one := newHolds([]store.Limit{{Scope: "kind:a", Held: true}, {Scope: "kind:z", Held: true}}, kinds)
	if len(one.open) != 1 || one.open[0] != "b" || one.holdsQueue("q") {
		t.Errorf("%+v", one)
	}
	both := newHolds([]store.Limit{{Scope: "kind:a", Held: true}, {Scope: "kind:b", Held: true}}, kinds)
	if !both.holdsQueue("q") {
		t.Error("a supervisor claims although all its kinds are paused")
	}
	if queue := newHolds([]store.Limit{{Scope: "queue:a", Held: true}}, kinds); queue.frees(nil) || !one.frees(both) || !both.frees(one) || both.frees(both) || !one.frees(nil) || !one.frees(queue) || (*holds)(nil).frees(one) {
		t.Error("whether a kind is freed is mixed up")
	}
	if one.same(both) || one.same(nil) || !one.same(newHolds([]store.Limit{{Scope: "kind:z", Held: true}, {Scope: "kind:a", Held: true}}, kinds)) {
		t.Error("changes are mixed up")
	}
}

// Picked runs end, the others keep their order.
func TestPickFromABuffer(t *testing.T) {
	t.Parallel()
	var b Buffer
	q := NewQueueState(Queue{})
	var runs []*Run
	for _, kind := range []string{"a", "b", "a", "c"} {
		runs = append(runs, &Run{Kind: kind, From: q, Shared: NewShared(Config{}, nil)})
	}
	b.Put(runs)
	if r, _ := b.Take(); r != runs[0] {
		t.Fatal("not the first")
	}
	if picked := b.Pick(func(r *Run) bool { return r.Kind == "a" }); len(picked) != 1 || picked[0] != runs[2] || runs[2].phase.Load() != phaseEnded || runs[1].phase.Load() != phaseBuffered {
		t.Errorf("picked %v", picked)
	}
	b.Put(runs[:1])
	for i, want := range []*Run{runs[1], runs[3], runs[0]} {
		if r, _ := b.Take(); r != want {
			t.Errorf("%d: %+v", i, r)
		}
	}
	if b.Len() != 0 {
		t.Error("some are left")
	}
}
