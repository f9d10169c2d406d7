package drover

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"testing"
	"time"
)

// O-6: a hook that hangs costs its own events, and of memory no more than the bound; what was dropped is counted and
// logged, and the rest comes in order.
func TestAHangingHookCostsItsOwnEvents(t *testing.T) {
	t.Parallel()
	release, heard, others := make(chan struct{}), make(chan int, 1000), make(chan int)
	var logged lockedBuffer
	client, err := New(newTestDB(t).Pool, Config{Logger: slog.New(slog.NewTextHandler(&logged, nil)), Hooks: []Hooks{
		{Completed: func(_ context.Context, e Event) { <-release; heard <- e.Count }},
		{Completed: func(_ context.Context, e Event) { others <- e.Count }},
	}})
	if err != nil {
		t.Fatal(err)
	}
	r := newReporter(client)
	for _, l := range r.lines {
		go l.run(t.Context())
	}
	const n, each = 600, 64 << 10
	for i := range n { // each is made anew, or the bound would hold nothing back
		r.tell(told{eventCompleted, Event{Count: i, Metadata: bytes.Repeat([]byte{' '}, each)}}, told{eventFailed, Event{}})
		if got := <-others; got != i {
			t.Fatalf("the other subscriber heard %d, want %d", got, i)
		}
	}
	waiting, dropped := r.lines[1].waiting.Load(), r.dropped()
	if waiting > maxUntold || waiting < maxUntold/2 {
		t.Errorf("%d bytes wait", waiting)
	}
	if want := int64(n - maxUntold/(each+640)); dropped != want {
		t.Errorf("%d events were dropped, want %d", dropped, want)
	}
	if !bytes.Contains(logged.Bytes(), []byte("events are dropped")) {
		t.Errorf("log = %s", logged.Bytes())
	}
	close(release)
	r.close()
	r.wait(t.Context(), time.Now().Add(30*time.Second))
	close(heard)
	var got []int
	for i := range heard {
		got = append(got, i)
	}
	if int64(len(got)) != n-dropped || !slices.IsSorted(got) || r.dropped() != dropped || r.lines[1].waiting.Load() != 0 {
		t.Errorf("heard %d, dropped %d, in order: %v", len(got), r.dropped(), slices.IsSorted(got))
	}
}

// O-6: a hook that never returns does not keep Run from returning, and other subscribers hear everything.
func TestRunReturnsAlthoughAHookHangs(t *testing.T) {
	t.Parallel()
	slow(t)
	var heard eventLog
	var logged lockedBuffer
	release := make(chan struct{})
	db := newTestDBWith(t, Config{Logger: slog.New(slog.NewTextHandler(&logged, nil)), Hooks: []Hooks{
		{Completed: func(context.Context, Event) { <-release }}, heard.hooks(),
	}})
	t.Cleanup(func() { close(release) })
	var ids []string
	for range 10 {
		ids = append(ids, db.enqueue(t, dyn{kind: "k"}, nil))
	}
	sup, stop := db.start(t, SupervisorConfig{Queues: []Queue{{}}, Workers: []Worker{dynWorker("k", WorkerOpts{}, doNothing)}})
	for _, id := range ids {
		heard.end(t, id)
	}
	stop()
	if n := sup.Stats().DroppedEvents; n != 9 { // all but the one whose hook hangs
		t.Errorf("%d events dropped", n)
	}
	if !bytes.Contains(logged.Bytes(), []byte("a hook did not return")) {
		t.Errorf("log = %s", logged.Bytes())
	}
}

// O-6: events say whether their transaction is open, and carry the job's tags and metadata.
func TestEventsCarryTagsAndMetadata(t *testing.T) {
	t.Parallel()
	var heard eventLog
	db := newTestDBWith(t, Config{Logger: quiet(), Hooks: []Hooks{heard.hooks()}})
	opts := &EnqueueOpts{Tags: []string{"a", "b"}, Metadata: map[string]any{"trace": "4bf9"}}
	item := EnqueueItem{dyn{kind: "k"}, opts}
	ids := map[string]bool{db.enqueue(t, item.Args, opts): false}
	many, err := db.client.EnqueueMany(t.Context(), []EnqueueItem{item})
	if err != nil {
		t.Fatal(err)
	}
	ids[many[0].ID] = false
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	one, err := db.client.EnqueueTx(t.Context(), tx, item.Args, opts)
	if err != nil {
		t.Fatal(err)
	}
	if many, err = db.client.EnqueueManyTx(t.Context(), tx, []EnqueueItem{item}); err != nil {
		t.Fatal(err)
	}
	ids[one.ID], ids[many[0].ID] = true, true
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.run(t, SupervisorConfig{Queues: []Queue{{}}, Workers: []Worker{
		dynWorker("k", WorkerOpts{MaxAttempts: 1}, func(context.Context, *Job) error { return errBoom }),
	}})
	for id, inTx := range ids {
		heard.end(t, id)
		events := heard.of(id)
		if len(events) != 3 {
			t.Errorf("events = %+v", events)
		}
		for _, e := range events {
			var metadata struct{ Trace string }
			if err := json.Unmarshal(e.Metadata, &metadata); err != nil || metadata.Trace != "4bf9" || !slices.Equal(e.Tags, opts.Tags) {
				t.Errorf("%s: tags %v, metadata %s", e.name, e.Tags, e.Metadata)
			}
			if e.InTx != (inTx && e.name == "enqueued") {
				t.Errorf("%s: InTx = %v", e.name, e.InTx)
			}
		}
	}
}
