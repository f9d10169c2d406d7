package drover

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/drover-queue/drover/internal/engine"
)

// Middleware that adds nothing leaves a job what it was: one without metadata.
func TestMiddlewareThatOnlyLooks(t *testing.T) {
	t.Parallel()
	client, err := New(migratedClient(t).desk.pool.Pool, Config{Middleware: []Middleware{{Enqueue: func(_ context.Context, item *EnqueueItem) error {
		item.Opts.Metadata["tmp"] = 1
		delete(item.Opts.Metadata, "tmp")
		return nil
	}}, {Enqueue: func(_ context.Context, item *EnqueueItem) error {
		if item.Opts.Metadata == nil {
			return errBoom
		}
		item.Opts = nil
		return nil
	}}, {Enqueue: func(_ context.Context, item *EnqueueItem) error {
		if item.Opts == nil || item.Opts.Metadata == nil {
			return errBoom
		}
		return nil
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	for opts, want := range map[*EnqueueOpts]bool{nil: true, {}: true, {Metadata: map[string]any{}}: false} {
		job, err := client.prepare(t.Context(), letter{}, opts, nil)
		if err != nil || (job.Metadata == nil) != want {
			t.Errorf("%+v: metadata %s, %v", opts, job.Metadata, err)
		}
	}
}

// A Run that returns before next has does not end the run: another process may have the job by the time the handler
// returns.
func TestARunEndsWithItsHandler(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		started, release := make(chan struct{}), make(chan struct{})
		hasty := func(ctx context.Context, _ *Job, next func(context.Context) error) error {
			go func() { _ = next(ctx) }()
			<-started
			return errBoom
		}
		var ended atomic.Bool
		var end error
		go func() {
			end = wrapped(t.Context(), &Job{}, []runFunc{hasty}, func(context.Context, *Job) error {
				close(started)
				<-release
				return nil
			})
			ended.Store(true)
		}()
		synctest.Wait()
		if ended.Load() {
			t.Error("the run has ended, and its handler still works")
		}
		close(release)
		synctest.Wait()
		if !ended.Load() || !errors.Is(end, errBoom) {
			t.Errorf("ended: %v, %v", ended.Load(), end)
		}
	})
}

// Without middleware neither a run nor an enqueue allocates more than it would if there were none at all.
func TestAllocationsWithoutMiddleware(t *testing.T) { //nolint:paralleltest // it counts allocations
	task := bareTask()
	task.worker = &Worker{handle: doNothing}
	if n := testing.AllocsPerRun(100, func() { _ = task.handler.Handle(context.Background(), &task.Run) }); n != 0 {
		t.Errorf("%v allocations for a call without middleware", n)
	}
	client, err := New(migratedClient(t).desk.pool.Pool, Config{})
	if err != nil {
		t.Fatal(err)
	}
	args := Args(letter{"ada@example.com"})
	encode := testing.AllocsPerRun(100, func() { _, _ = client.encode(args, nil, nil) })
	prepare := testing.AllocsPerRun(100, func() { _, _ = client.prepare(t.Context(), args, nil, nil) })
	if prepare != encode {
		t.Errorf("%v allocations without middleware, %v for encoding alone", prepare, encode)
	}
}

// Every event has a hook, a level and a message of its own.
func TestEveryEventHasItsHook(t *testing.T) {
	t.Parallel()
	var called []string
	var h Hooks
	of := reflect.TypeFor[Hooks]()
	for i := range of.NumField() {
		name := of.Field(i).Name
		hook := func(context.Context, Event) { called = append(called, name) }
		reflect.ValueOf(&h).Elem().Field(i).Set(reflect.ValueOf(hook))
	}
	messages := map[string]bool{}
	for kind := engine.EventEnqueued; kind <= engine.EventPeriodicSkipped; kind++ {
		hook, _, message := h.lookUp(kind)
		if hook == nil || message == "" || messages[message] {
			t.Fatalf("event %d: message %q", kind, message)
		}
		messages[message] = true
		hook(t.Context(), Event{})
	}
	slices.Sort(called)
	if called = slices.Compact(called); len(called) != of.NumField() {
		t.Errorf("%d hooks, called are %v", of.NumField(), called)
	}
	if hook, _, message := h.lookUp(engine.EventPeriodicSkipped + 1); hook != nil || message != "" {
		t.Error("an event without a hook has one")
	}
	if got := fmt.Sprint((&Job{ID: "x", Args: []byte("secret")}).LogValue()); strings.Contains(got, "secret") {
		t.Errorf("LogValue = %s", got)
	}
}
