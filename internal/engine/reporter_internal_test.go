package engine

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// hears is a subscriber that wants one kind of event.
func hears(name string, kind EventKind, emit func(*Event)) Subscriber {
	return Subscriber{
		Name: name, Hears: func(k EventKind) bool { return k == kind },
		Emit: func(_ context.Context, e *Event) { emit(e) },
	}
}

// A subscriber that hangs costs its own events. No more of them wait than the bound allows, and the rest comes in order.
func TestAHangingSubscriberCostsItsOwnEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var logged bytes.Buffer
		release := make(chan struct{})
		var slow, quick []int
		s := NewShared(Config{Log: slog.New(slog.NewTextHandler(&logged, nil)), Subscribers: []Subscriber{
			hears("slow", EventCompleted, func(e *Event) { <-release; slow = append(slow, e.Count) }),
			hears("quick", EventCompleted, func(e *Event) { quick = append(quick, e.Count) }),
		}}, nil)
		for _, l := range s.Reporter.Lines {
			go l.Run(t.Context())
		}
		ended := make(chan struct{})
		defer close(ended)
		go s.logDropped(ended)
		const n, each = 600, 64 << 10
		labels := &Labels{Metadata: make([]byte, each)}
		for i := range n {
			s.Reporter.add(&Event{Kind: EventCompleted, Count: i, Labels: labels})
			s.Reporter.add(&Event{Kind: EventFailed})
			synctest.Wait()
		}
		if len(quick) != n || !slices.IsSorted(quick) {
			t.Errorf("the quick subscriber got %d events, want %d", len(quick), n)
		}
		want := n - 1 - mostWaiting/(&Event{Labels: labels}).size() // the first event is with the hanging subscriber
		if got := s.Reporter.Dropped(); got != int64(want) {
			t.Errorf("%d events were dropped, want %d", got, want)
		}
		if got := strings.Count(logged.String(), "events are dropped"); got != 1 || !strings.Contains(logged.String(), "hooks=slow") {
			t.Errorf("logged %d times: %s", got, logged.String())
		}
		close(release)
		s.Reporter.Close()
		if hanging := s.Reporter.wait(time.Now().Add(time.Minute)); len(hanging) != 0 {
			t.Errorf("%d lines hang", len(hanging))
		}
		if len(slow) != n-want || !slices.IsSorted(slow) || slow[len(slow)-1] != len(slow)-1 {
			t.Errorf("the slow subscriber got %d events, want the first %d in order", len(slow), n-want)
		}
	})
}

// A stop waits for subscribers until its end, and a moment if its time is over. It drops the events of a subscriber
// that hangs.
func TestAStopWaitsForSubscribersUntilItsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			left, takes time.Duration
			hangs       bool
		}{
			"in time":                      {left: 5 * time.Second, takes: 4 * time.Second},
			"too slow":                     {left: 5 * time.Second, takes: 6 * time.Second, hangs: true},
			"nothing left, and quick":      {takes: lastReport / 2},
			"the time is over, and hangs":  {left: -time.Second, takes: time.Hour, hangs: true},
			"the time is over, not at all": {left: -time.Second},
		} {
			s := NewShared(Config{Log: slog.New(slog.DiscardHandler), Subscribers: []Subscriber{
				hears("slow", EventCompleted, func(*Event) { time.Sleep(c.takes) }), //nolint:forbidigo // virtual time
				hears("quick", EventCompleted, func(*Event) {}),
			}}, nil)
			for _, l := range s.Reporter.Lines {
				go l.Run(t.Context())
			}
			s.Reporter.add(&Event{Kind: EventCompleted})
			synctest.Wait() // the first is with the subscriber
			if c.hangs {
				s.Reporter.add(&Event{Kind: EventCompleted})
			}
			s.Reporter.Close()
			began := time.Now()
			hanging := s.Reporter.wait(began.Add(c.left))
			if took := time.Since(began); took > max(c.left, lastReport) || c.hangs != (len(hanging) == 1) || c.hangs != (s.Reporter.Dropped() == 1) {
				t.Errorf("%s: the stop took %v, %d hang, %d dropped", name, took, len(hanging), s.Reporter.Dropped())
			}
			time.Sleep(time.Hour) //nolint:forbidigo // virtual time: the subscriber returns
			synctest.Wait()
			for _, l := range s.Reporter.Lines {
				if !l.ended() {
					t.Errorf("%s: a line does not end", name)
				}
			}
		}
	})
}

// A line measures an event when it comes and again when it goes. A hook that changes the event's tags must not fill the line.
func TestALineThatIsEmptyIsNotFull(t *testing.T) {
	t.Parallel()
	l := &line{ready: make(chan struct{}, 1), over: make(chan struct{})}
	for n := range 10_000 {
		labels := &Labels{Tags: make([]string, 32)}
		for i := range labels.Tags {
			labels.Tags[i] = strings.Repeat("x", 128)
		}
		if !l.add(&Event{Kind: EventStarted, Labels: labels}) {
			t.Fatalf("event %d is dropped, and nothing waits: the line counts %d bytes", n, l.bytes)
		}
		clear(labels.Tags) // the handler has read its tags
		for l.next() != nil {
		}
	}
}

// stuckLog is a log whose pipe nobody reads.
type stuckLog struct{ slog.Handler }

func (stuckLog) Enabled(context.Context, slog.Level) bool  { return true }
func (stuckLog) Handle(context.Context, slog.Record) error { select {} }

// The hooks hang, and so does the log: both write to a pipe that nobody reads. The goroutine that settles jobs must not
// hang, too.
func TestAFullLineDoesNotBlockTheSettler(t *testing.T) {
	t.Parallel()
	s := NewShared(Config{Log: slog.New(stuckLog{slog.DiscardHandler}), Subscribers: []Subscriber{{
		Name: "Config.Hooks[0]", Hears: func(EventKind) bool { return true }, Emit: func(context.Context, *Event) { select {} },
	}}}, nil)
	through := make(chan struct{})
	go func() {
		defer close(through)
		for range mostWaiting/640 + 2 {
			s.Reporter.add(&Event{Kind: EventCompleted})
		}
	}()
	select {
	case <-through:
	case <-time.After(10 * time.Second):
		t.Error("add has not returned: the caller, which settles jobs, waits for the log")
	}
}
