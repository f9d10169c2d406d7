package drover

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drover-queue/drover/internal/engine"
)

// eventLog is a subscriber that remembers its events. The zero value is ready.
type eventLog struct {
	mu     sync.Mutex
	events []loggedEvent
	byID   map[string][]loggedEvent
}

type loggedEvent struct {
	name string
	Event
}

// endEvents are the events of which every run that started has exactly one.
func endEvents() []string {
	return []string{"completed", "failed", "discarded", "snoozed", "cancelled", "released", "stale_settle", "parked"}
}

func (l *eventLog) hooks() Hooks {
	on := func(name string) func(context.Context, Event) {
		return func(_ context.Context, e Event) {
			l.mu.Lock()
			defer l.mu.Unlock()
			name := name
			if name == "released" && e.Duration == 0 { // no run ended: the job waited too long for a slot, or was paused
				name = "not_started"
			}
			if l.byID == nil {
				l.byID = map[string][]loggedEvent{}
			}
			l.events = append(l.events, loggedEvent{name, e})
			l.byID[e.JobID] = append(l.byID[e.JobID], loggedEvent{name, e})
		}
	}
	return Hooks{
		Enqueued: on("enqueued"), Claimed: on("claimed"), Started: on("started"), Completed: on("completed"),
		Failed: on("failed"), Discarded: on("discarded"), Snoozed: on("snoozed"), Cancelled: on("cancelled"),
		Released: on("released"), StaleSettle: on("stale_settle"), Rescued: on("rescued"), Redriven: on("redriven"), Parked: on("parked"), FailureReopened: on("failure_reopened"),
		Paused: on("paused"), Resumed: on("resumed"),
	}
}

// of returns the events of one job. For "" it returns the events that are about no job.
func (l *eventLog) of(id string) []loggedEvent {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.byID[id])
}

func (l *eventLog) count(id, name string) (n int) {
	for _, e := range l.of(id) {
		if e.name == name {
			n++
		}
	}
	return n
}

// ends counts a job's end events.
func (l *eventLog) ends(id string) (n int) {
	for _, e := range l.of(id) {
		if slices.Contains(endEvents(), e.name) {
			n++
		}
	}
	return n
}

// end waits for the first end event of a job.
func (l *eventLog) end(t *testing.T, id string) loggedEvent {
	t.Helper()
	return l.wait(t, id, endEvents()...)
}

// wait waits for the first event of a job with one of the names.
func (l *eventLog) wait(t *testing.T, id string, names ...string) (found loggedEvent) {
	t.Helper()
	eventually(t, func() bool {
		for _, e := range l.of(id) {
			if slices.Contains(names, e.name) {
				found = e
				return true
			}
		}
		return false
	})
	return found
}

// lockedBuffer is a bytes.Buffer that many goroutines may write to.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) Bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.buf.Bytes())
}

// everyHook is a subscriber with the same function on every event.
func everyHook(f func(context.Context, Event)) (h Hooks) {
	for i := range reflect.TypeFor[Hooks]().NumField() {
		reflect.ValueOf(&h).Elem().Field(i).Set(reflect.ValueOf(f))
	}
	return h
}

// O-1: over a mixed load, every run that started has exactly one end event, which says what the row says.
func TestEveryRunHasOneEnd(t *testing.T) {
	t.Parallel()
	slow(t)
	var heard, again eventLog
	broken := everyHook(func(context.Context, Event) { panic("a broken subscriber") })
	db := newTestDBWith(t, Config{Logger: quiet(), Hooks: []Hooks{heard.hooks(), broken, {}, again.hooks()}})

	db.alive(t, "someone else")
	quick := Constant{Delay: time.Millisecond}
	stale := func(ctx context.Context, job *Job) error {
		_, err := db.Exec(ctx, `update jobs set claim_seq = claim_seq + 1, claimed_by = 'someone else' where id = $1`, job.ID)
		return err
	}
	inTx := func(ctx context.Context, commit bool, settle func(Tx) error) error {
		tx, err := db.Begin(ctx)
		if err != nil {
			return err
		}
		defer tx.Rollback(ctx)
		if err := settle(tx); err != nil || !commit {
			return err
		}
		return tx.Commit(ctx)
	}
	release := make(chan struct{})
	kinds := []struct {
		kind   string
		opts   WorkerOpts
		job    EnqueueOpts
		ends   string // the end events of one job, in order
		handle func(context.Context, *Job) error
	}{
		{kind: "ok", ends: "completed"},
		{kind: "fails once", ends: "failed completed", handle: func(_ context.Context, job *Job) error {
			if job.Attempt == 1 {
				return errBoom
			}
			return nil
		}},
		{kind: "fails always", opts: WorkerOpts{MaxAttempts: 3}, ends: "failed failed discarded", handle: func(context.Context, *Job) error { return errBoom }},
		{kind: "panics", opts: WorkerOpts{MaxAttempts: 2}, ends: "failed discarded", handle: func(context.Context, *Job) error { panic("oh") }},
		{kind: "exits", opts: WorkerOpts{MaxAttempts: 2}, ends: "failed discarded", handle: func(context.Context, *Job) error { runtime.Goexit(); return nil }},
		{kind: "discards", ends: "discarded", handle: func(context.Context, *Job) error { return Discard(errBoom) }},
		{kind: "snoozes", ends: "snoozed snoozed completed", handle: func(_ context.Context, job *Job) error {
			if job.Snoozes < 2 {
				return Snooze(time.Millisecond)
			}
			return nil
		}},
		{kind: "is throttled", opts: WorkerOpts{MaxAttempts: 2}, ends: "failed discarded", handle: func(context.Context, *Job) error { return RetryAfter(time.Millisecond, errBoom) }},
		{kind: "does not count", opts: WorkerOpts{MaxAttempts: 1}, ends: "failed completed", handle: func(_ context.Context, job *Job) error {
			if job.Failures == 0 {
				return DontCount(errBoom)
			}
			return nil
		}},
		{kind: "times out", opts: WorkerOpts{MaxAttempts: 1, Timeout: 5 * time.Millisecond}, ends: "discarded", handle: func(ctx context.Context, _ *Job) error {
			<-ctx.Done()
			return ctx.Err()
		}},
		{kind: "cancels itself", ends: "cancelled", handle: func(context.Context, *Job) error { return Cancel(errBoom) }},
		{kind: "is cancelled", ends: "cancelled", handle: func(ctx context.Context, job *Job) error {
			_, err := db.client.Cancel(ctx, job.ID, Audit{})
			return err
		}},
		{kind: "is stale", ends: "stale_settle", handle: stale},
		{kind: "fails and is stale", ends: "stale_settle", handle: func(ctx context.Context, job *Job) error { return errors.Join(errBoom, stale(ctx, job)) }},
		{kind: "expires", job: EnqueueOpts{ExpiresAt: time.Now().Add(-time.Hour)}, ends: "discarded"},
		{kind: "completes in a transaction", ends: "completed", handle: func(ctx context.Context, job *Job) error {
			return inTx(ctx, true, func(tx Tx) error { return job.CompleteTx(ctx, tx) })
		}},
		{kind: "completes in a transaction, then fails", ends: "completed", handle: func(ctx context.Context, job *Job) error {
			return errors.Join(errBoom, inTx(ctx, true, func(tx Tx) error { return job.CompleteTx(ctx, tx) }))
		}},
		{kind: "discards in a transaction", ends: "discarded", handle: func(ctx context.Context, job *Job) error {
			return inTx(ctx, true, func(tx Tx) error { return job.SettleTx(ctx, tx, Discard(errBoom)) })
		}},
		{kind: "does not commit", opts: WorkerOpts{MaxAttempts: 2, RetryIf: func(error) bool { return false }}, ends: "failed discarded", handle: func(ctx context.Context, job *Job) error {
			return inTx(ctx, false, func(tx Tx) error { return job.CompleteTx(ctx, tx) })
		}},
		{kind: "is stopped", ends: "released", handle: func(ctx context.Context, _ *Job) error {
			<-ctx.Done()
			return ctx.Err()
		}},
		{kind: "ignores everything", opts: WorkerOpts{MaxAttempts: 1, Timeout: 5 * time.Millisecond}, ends: "discarded", handle: func(context.Context, *Job) error {
			<-release
			return nil
		}},
	}
	const each = 12
	cfg := SupervisorConfig{Queues: []Queue{{Concurrency: 60}}, DrainTimeout: time.Millisecond}
	var batch []EnqueueItem
	for _, k := range kinds {
		k.opts.Retry = quick
		if k.handle == nil {
			k.handle = func(context.Context, *Job) error { return nil }
		}
		cfg.Workers = append(cfg.Workers, dynWorker(k.kind, k.opts, k.handle))
	}
	for range each {
		for _, k := range kinds {
			batch = append(batch, EnqueueItem{dyn{kind: k.kind}, &k.job})
		}
	}
	receipts, err := db.client.EnqueueMany(t.Context(), batch)
	if err != nil {
		t.Fatal(err)
	}
	sup, stop := db.start(t, cfg)
	t.Cleanup(func() { close(release) })
	me := ""
	for i, r := range receipts {
		if k := kinds[i%len(kinds)]; k.kind == "is stopped" {
			me = heard.wait(t, r.ID, "started").Supervisor
		} else {
			eventually(t, func() bool { return heard.ends(r.ID) >= len(strings.Fields(k.ends)) })
		}
	}
	if n := sup.Stats().Abandoned; n < each {
		t.Errorf("%d runs abandoned, want %d", n, each)
	}
	stop()

	total := map[string]int{}
	for i, r := range receipts {
		k, events := kinds[i%len(kinds)], heard.of(r.ID)
		var ends []string
		started := 0
		for _, e := range events {
			total[e.name]++
			switch {
			case e.name == "enqueued", e.name == "not_started":
			case e.name == "started":
				started++
				if e.Attempt < 1 || e.MaxAttempts < 1 || e.Wait <= 0 || e.Supervisor != me || e.Kind != k.kind || e.Queue != "default" {
					t.Errorf("%s: started = %+v", k.kind, e)
				}
			case slices.Contains(endEvents(), e.name):
				ends = append(ends, e.name)
				checkEndEvent(t, k.kind, me, e)
			default:
				t.Errorf("%s: %q", k.kind, e.name)
			}
		}
		if got := strings.Join(ends, " "); got != k.ends || started != len(ends) && k.kind != "expires" {
			t.Errorf("%s: %d started, ends = %q, want %q", k.kind, started, got, k.ends)
		}
		for _, name := range append([]string{"enqueued", "started"}, endEvents()...) {
			if heard.count(r.ID, name) != again.count(r.ID, name) {
				t.Errorf("%s: two subscribers heard %q differently often", k.kind, name)
			}
		}
	}
	ended := 0
	for _, name := range endEvents() {
		ended += total[name]
	}
	if total["started"]+each != ended { // the expired ones did not start
		t.Errorf("%d runs started, %d ended: %v", total["started"], ended, total)
	}
	for state, want := range map[State]int{Completed: total["completed"], Discarded: total["discarded"], Cancelled: total["cancelled"]} {
		if n := value[int](t, db, `select count(*) from jobs where state = $1`, state); n != want {
			t.Errorf("%d jobs are %s, %d events", n, state, want)
		}
	}
	claimed := 0
	for _, e := range heard.of("") {
		if e.name != "claimed" || e.Count < 1 || e.Queue != "default" || e.Supervisor != me {
			t.Errorf("event without a job: %+v", e)
		}
		claimed += e.Count
	}
	if n := value[int](t, db, `select sum(claim_seq) from jobs where claimed_by is distinct from 'someone else'`); claimed < n {
		t.Errorf("%d claimed by events, %d by the table", claimed, n)
	}
}

// checkEndEvent checks the fields that every end event of its name must have.
func checkEndEvent(t *testing.T, kind, supervisor string, e loggedEvent) {
	t.Helper()
	failed := e.name == "failed" || e.name == "discarded" && e.Reason != ReasonExpired
	switch {
	case e.Attempt < 1 || e.MaxAttempts < e.Attempt && e.name != "failed" || e.Kind != kind || e.Queue != "default" || e.Supervisor != supervisor:
	case e.Duration <= 0 && e.Reason != ReasonExpired:
	case failed && (e.Class == "" || e.Error == ""):
	case e.name == "completed" && (e.Class != "" || e.Error != ""):
	case (e.name == "discarded") != (e.Reason != ""):
	case (e.name == "failed" || e.name == "snoozed") != (e.Backoff > 0) || e.Backoff > 0 == e.Next.IsZero():
	case e.name == "cancelled" && e.Error == "":
	default:
		return
	}
	t.Errorf("%s: %+v", kind, e)
}

// O-1: a subscriber that blocks delays neither a job nor another subscriber.
func TestABlockingHookHoldsUpNoJob(t *testing.T) {
	t.Parallel()
	var heard eventLog
	release := make(chan struct{})
	block := func(context.Context, Event) { <-release }
	blocks := Hooks{Claimed: block, Started: block, Completed: block}
	db := newTestDBWith(t, Config{Logger: quiet(), Hooks: []Hooks{blocks, heard.hooks()}})
	var batch []EnqueueItem
	for range 200 {
		batch = append(batch, EnqueueItem{Args: dyn{kind: "k"}})
	}
	receipts, err := db.client.EnqueueMany(t.Context(), batch)
	if err != nil {
		t.Fatal(err)
	}
	_, stop := db.start(t, SupervisorConfig{Queues: []Queue{{Concurrency: 2}}, Workers: []Worker{
		dynWorker("k", WorkerOpts{}, func(context.Context, *Job) error { return nil }),
	}})
	eventually(t, func() bool {
		return value[int](t, db, `select count(*) from jobs where state = 'completed'`) == len(batch)
	})
	if e := heard.end(t, receipts[0].ID); e.name != "completed" {
		t.Errorf("while one subscriber blocks, another gets %+v", e)
	}
	close(release)
	stop() // Run passes on all events before it returns
	quickest := time.Hour
	for _, r := range receipts {
		if heard.count(r.ID, "completed") != 1 {
			t.Errorf("events = %+v", heard.of(r.ID))
		}
		quickest = min(quickest, heard.end(t, r.ID).Duration)
	}
	if quickest <= 0 || quickest >= time.Millisecond {
		t.Errorf("the quickest of 200 runs took %v: durations are not below milliseconds", quickest)
	}
}

// A hook that ends its goroutine, as t.FailNow does, costs neither a job, nor a slot, nor later events.
func TestAHookThatCallsGoexit(t *testing.T) {
	t.Parallel()
	var heard eventLog
	var started, completed atomic.Int32
	exits := Hooks{
		Started:   func(context.Context, Event) { started.Add(1); runtime.Goexit() },
		Completed: func(context.Context, Event) { completed.Add(1) },
	}
	db := newTestDBWith(t, Config{Logger: quiet(), Hooks: []Hooks{heard.hooks(), exits}})
	db.run(t, SupervisorConfig{Queues: []Queue{{Concurrency: 1}}, Workers: []Worker{
		dynWorker("k", WorkerOpts{Timeout: NoTimeout}, func(context.Context, *Job) error { return nil }),
	}})
	for range 2 {
		if e := heard.end(t, db.enqueue(t, dyn{kind: "k"}, nil)); e.name != "completed" {
			t.Errorf("event = %+v", e)
		}
	}
	eventually(t, func() bool { return started.Load() == 2 && completed.Load() == 2 })
}

// O-1: each event has its line in the log, at its level and never with the args.
func TestEventsInTheLog(t *testing.T) {
	t.Parallel()
	var logged lockedBuffer
	log := slog.New(slog.NewJSONHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	db := newTestDBWith(t, Config{Logger: log})
	db.alive(t, "x")
	const secret = "secret-of-the-args"
	entered := make(chan struct{}) // "started" is logged before the handler is called
	cfg := SupervisorConfig{Queues: []Queue{{}}, DrainTimeout: time.Millisecond}
	ends := map[string]func(ctx context.Context, job *Job) error{
		"job completed": func(_ context.Context, job *Job) error {
			log.Info("from the handler", slog.Any("job", job))
			return nil
		},
		"job failed, will be retried": func(context.Context, *Job) error { return errBoom },
		"job discarded":               func(context.Context, *Job) error { return Discard(errBoom) },
		"job snoozed":                 func(context.Context, *Job) error { return Snooze(time.Hour) },
		"job cancelled":               func(context.Context, *Job) error { return Cancel(errBoom) },
		"job handed back": func(ctx context.Context, _ *Job) error {
			close(entered)
			<-ctx.Done()
			return ctx.Err()
		},
		"stale outcome refused": func(ctx context.Context, job *Job) error {
			_, err := db.Exec(ctx, `update jobs set claim_seq = claim_seq + 1, claimed_by = 'x' where id = $1`, job.ID)
			return err
		},
	}
	ids := map[string]string{}
	for message, handle := range ends {
		cfg.Workers = append(cfg.Workers, dynWorker(message, WorkerOpts{}, handle))
		ids[message] = db.enqueue(t, dyn{kind: message, S: secret}, nil)
	}
	find := func(message, id string) (found map[string]any) {
		lines := bufio.NewScanner(bytes.NewReader(logged.Bytes()))
		for lines.Scan() {
			var line map[string]any
			if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
				t.Fatalf("%s: %v", lines.Text(), err)
			}
			// A claim that is under way when the supervisor stops may take the job that was handed back, and release it
			// unstarted: that line has no duration.
			if _, ran := line["duration_ms"]; line["msg"] == message && (id == "" || line["job_id"] == id) && (found == nil || ran) {
				found = line
			}
		}
		return found
	}
	_, stop := db.start(t, cfg)
	for message, id := range ids {
		if message == "job handed back" {
			message = "job started"
		}
		eventually(t, func() bool { return find(message, id) != nil })
	}
	receive(t, entered)
	stop()
	if err := db.client.RedriveJob(t.Context(), ids["job discarded"], nil, Audit{}); err != nil {
		t.Fatal(err)
	}
	run := []string{"attempt", "duration_ms", "job_id", "kind", "max_attempts", "queue", "supervisor"}
	for _, c := range []struct {
		message, of, level string
		keys               []string
	}{
		{"job enqueued", "job completed", "DEBUG", []string{"job_id", "kind", "queue"}},
		{"jobs claimed", "", "DEBUG", []string{"count", "queue", "supervisor"}},
		{"job started", "job completed", "DEBUG", []string{"attempt", "job_id", "kind", "max_attempts", "queue", "supervisor"}},
		{"job completed", "job completed", "DEBUG", run},
		{"job failed, will be retried", "job failed, will be retried", "DEBUG", append([]string{"backoff_ms", "class", "error"}, run...)},
		{"job discarded", "job discarded", "WARN", append([]string{"class", "error", "reason"}, run...)},
		{"job snoozed", "job snoozed", "DEBUG", append([]string{"backoff_ms"}, run...)},
		{"job cancelled", "job cancelled", "INFO", append([]string{"class", "error"}, run...)},
		{"job handed back", "job handed back", "DEBUG", run},
		{"stale outcome refused", "stale outcome refused", "WARN", run},
		{"job redriven", "job discarded", "INFO", []string{"job_id"}},
	} {
		line := find(c.message, ids[c.of])
		if line == nil || line["level"] != c.level {
			t.Errorf("%s: line = %v, want level %s", c.message, line, c.level)
			continue
		}
		for _, key := range c.keys {
			if _, ok := line[key]; !ok {
				t.Errorf("%s: no %s in %v", c.message, key, line)
			}
		}
		if len(line) != len(c.keys)+3 { // time, level, msg
			t.Errorf("%s: line = %v, want keys %v", c.message, line, c.keys)
		}
	}
	for message, level := range map[string]string{"supervisor started": "INFO", "supervisor stopped": "INFO"} {
		if line := find(message, ""); line == nil || line["level"] != level {
			t.Errorf("%s: %v", message, line)
		}
	}
	line := find("from the handler", "")
	if job, ok := line["job"].(map[string]any); !ok || job["id"] != ids["job completed"] || job["kind"] != "job completed" || job["attempt"] != 1.0 || len(job) != 5 {
		t.Errorf("a job in the log is %v", line["job"])
	}
	if bytes.Contains(logged.Bytes(), []byte(secret)) {
		t.Error("args were logged")
	}
}

// A hook that panics is logged, without secrets.
func TestAPanickingHookIsLogged(t *testing.T) {
	t.Parallel()
	var logged lockedBuffer
	db := newTestDBWith(t, Config{
		Logger: slog.New(slog.NewTextHandler(&logged, nil)),
		Redact: func(s string) string { return strings.ReplaceAll(s, "hunter2", "***") },
		Hooks:  []Hooks{{Enqueued: func(context.Context, Event) { panic("with hunter2") }}},
	})
	db.enqueue(t, dyn{kind: "k"}, nil)
	if log := string(logged.Bytes()); !strings.Contains(log, "hook panicked") || !strings.Contains(log, "with ***") || strings.Contains(log, "hunter2") {
		t.Errorf("log = %s", log)
	}
}

// brokenLog is a log handler that panics whenever it is called.
type brokenLog struct{ slog.Handler }

// A log handler that panics ends neither an enqueue, nor a run, nor the process. The lines that it does not write are not lost.
func TestAPanickingLogHandler(t *testing.T) {
	t.Parallel()
	var heard eventLog
	var spare lockedBuffer
	panicking := heard.hooks()
	panicking.Enqueued = func(context.Context, Event) { panic("a hook") }
	db := newTestDBWith(t, Config{
		Logger: slog.New(brokenLog{}), Hooks: []Hooks{heard.hooks(), panicking},
		Redact: func(s string) string { return strings.ReplaceAll(s, "pointer", "***") },
	})
	own, ok := db.client.log.Handler().(contained)
	if !ok {
		t.Fatalf("the client logs by a %T", db.client.log.Handler())
	}
	own.spare = slog.NewTextHandler(&spare, nil)
	db.client.log = slog.New(own)
	_, stop := db.start(t, SupervisorConfig{Queues: []Queue{{}}, Workers: []Worker{
		dynWorker("good", WorkerOpts{}, func(context.Context, *Job) error { return nil }),
		dynWorker("bad", WorkerOpts{MaxAttempts: 1, RetryIf: func(error) bool { panic("no") }}, func(context.Context, *Job) error { return errBoom }),
		dynWorker("odd", WorkerOpts{MaxAttempts: 1}, func(context.Context, *Job) error { return (*permanentPointer)(nil) }),
	}})
	for kind, end := range map[string]string{"good": "completed", "bad": "discarded", "odd": "discarded"} {
		if e := heard.end(t, db.enqueue(t, dyn{kind: kind}, nil)); e.name != end {
			t.Errorf("%s ended %s", kind, e.name)
		}
	}
	stop()
	for _, line := range []string{"supervisor started", "hook panicked", "RetryIf panicked", "Permanent of an error panicked", "job discarded", "supervisor stopped"} {
		if !strings.Contains(string(spare.Bytes()), fmt.Sprintf("msg=%q", line)) {
			t.Errorf("%q is not in %s", line, spare.Bytes())
		}
	}
	if log := string(spare.Bytes()); !strings.Contains(log, `log_handler_panicked="runtime error: invalid memory address or nil *** dereference"`) || strings.Contains(log, "level=DEBUG") {
		t.Errorf("log = %s", log)
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
		hook, _, message := h.of(kind)
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
	if hook, _, message := h.of(engine.EventPeriodicSkipped + 1); hook != nil || message != "" {
		t.Error("an event without a hook has one")
	}
	if got := fmt.Sprint((&Job{ID: "x", Args: []byte("secret")}).LogValue()); strings.Contains(got, "secret") {
		t.Errorf("LogValue = %s", got)
	}
}

// O-6: a hook that never returns does not keep Run from returning, and other subscribers get all events.
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
	if n := sup.Stats().DroppedEvents; n != 9 { // the hook hangs with the first
		t.Errorf("%d events dropped", n)
	}
	if !bytes.Contains(logged.Bytes(), []byte("hooks did not return")) || !bytes.Contains(logged.Bytes(), []byte("Config.Hooks[0]")) {
		t.Errorf("log = %s", logged.Bytes())
	}
}

// Events that an operator's verb emits name the operator.
func TestEventsOfVerbsHaveTheAudit(t *testing.T) {
	t.Parallel()
	var heard eventLog
	db := newTestDBWith(t, Config{Logger: quiet(), Hooks: []Hooks{heard.hooks()}})
	audit := Audit{By: "ann", Why: "a test"}
	one, two := db.enqueue(t, dyn{kind: "k"}, nil), db.enqueue(t, dyn{kind: "k"}, nil)
	_, cancelled := db.client.Cancel(t.Context(), one, audit)
	redriven := db.client.RedriveJob(t.Context(), one, nil, audit)
	_, discarded := db.client.DiscardMany(t.Context(), Filter{IDs: []string{two}}, audit)
	done := db.put(t, "state, finalized_at", "'completed', now()")
	again, rerun := db.client.Rerun(t.Context(), done, nil, audit)
	if err := errors.Join(cancelled, redriven, discarded, rerun); err != nil {
		t.Fatal(err)
	}
	for id, names := range map[string]string{one: "enqueued cancelled redriven", two: "enqueued", "": "discarded", again.ID: "enqueued"} {
		var got []string
		for i, e := range heard.of(id) {
			got = append(got, e.name)
			if want := (i > 0 || id == "" || id == again.ID); want != (e.By == audit.By && e.Why == audit.Why) {
				t.Errorf("%s: by %q, why %q", e.name, e.By, e.Why)
			}
		}
		if strings.Join(got, " ") != names {
			t.Errorf("events = %q, want %q", got, names)
		}
	}
}

// O-6: events report whether their transaction is open, and carry the job's tags and metadata.
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
	tagged := db.enqueue(t, item.Args, &EnqueueOpts{Tags: []string{"a"}})
	if heard.end(t, tagged); !slices.ContainsFunc(heard.of(tagged), func(e loggedEvent) bool { return e.name == "started" && e.Metadata == nil && len(e.Tags) == 1 }) {
		t.Errorf("events = %+v", heard.of(tagged))
	}
}

// docs/events.md: Tags and Metadata are the job's, as they were enqueued, whatever middleware makes of the Job.
func TestEventsKeepTheLabelsOfTheEnqueue(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Job){
		"tags":     func(job *Job) { slices.Reverse(job.Tags) },
		"metadata": func(job *Job) { copy(job.Metadata, `{"a": 2}`) }, // as an in-place decryption would
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var heard eventLog
			db := newTestDBWith(t, Config{Logger: quiet(), Hooks: []Hooks{heard.hooks()}, Middleware: []Middleware{{
				Run: func(ctx context.Context, job *Job, next func(context.Context) error) error {
					change(job)
					return next(ctx)
				},
			}}})
			db.run(t, SupervisorConfig{Queues: []Queue{{}}, Workers: []Worker{dynWorker("k", WorkerOpts{}, doNothing)}})
			e := heard.end(t, db.enqueue(t, dyn{kind: "k"}, &EnqueueOpts{Tags: []string{"x", "y"}, Metadata: map[string]any{"a": 1}}))
			if !slices.Equal(e.Tags, []string{"x", "y"}) {
				t.Errorf("the event has tags %q, enqueued were x and y", e.Tags)
			}
			var m struct{ A int }
			if err := json.Unmarshal(e.Metadata, &m); err != nil || m.A != 1 {
				t.Errorf("the event has metadata %s, %v; enqueued was a: 1", e.Metadata, err)
			}
		})
	}
}

// Two supervisors have one client, with subscribers of which one exits, another panics, a third calls the client, and a
// fourth is slow. Every subscriber gets each end event once, and the stop is quick.
func TestEventsUnderStress(t *testing.T) {
	t.Parallel()
	slow(t)
	var good, exits, panics, calls eventLog
	after := func(l *eventLog, more func(Event)) Hooks {
		h := l.hooks()
		completed, failed := h.Completed, h.Failed
		h.Enqueued = nil // in the caller's goroutine
		h.Completed = func(ctx context.Context, e Event) { completed(ctx, e); more(e) }
		h.Failed = func(ctx context.Context, e Event) { failed(ctx, e); more(e) }
		return h
	}
	var client atomic.Pointer[Client]
	var sups [2]*Supervisor
	db := newTestDBWith(t, Config{Logger: quiet(), Hooks: []Hooks{
		after(&exits, func(Event) { runtime.Goexit() }),
		after(&panics, func(Event) { panic("x") }),
		after(&calls, func(e Event) {
			_, _ = client.Load().Job(context.Background(), e.JobID)
			_ = sups[0].Stats()
			_ = sups[0].Healthy()
			if rand.N(50) == 0 { //nolint:gosec // not a secret
				_ = sups[1].RemoveQueue(context.Background(), "none")
			}
		}),
		good.hooks(),
	}})
	client.Store(db.client)
	cfg := SupervisorConfig{Queues: []Queue{{Concurrency: 20}}, DrainTimeout: 2 * time.Second, Workers: []Worker{dynWorker("k", WorkerOpts{Retry: Constant{Delay: time.Millisecond}}, func(_ context.Context, job *Job) error {
		if rand.N(3) == 0 { //nolint:gosec // not a secret
			return errBoom
		}
		return nil
	})}}
	var stops []func()
	for i := range sups {
		sup, err := db.client.NewSupervisor(cfg)
		if err != nil {
			t.Fatal(err)
		}
		sups[i] = sup
	}
	for i := range sups {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- sups[i].Run(ctx) }()
		stops = append(stops, func() {
			cancel()
			began := time.Now()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			t.Logf("stopped after %v, dropped %d", time.Since(began), sups[i].Stats().DroppedEvents)
		})
	}
	var ids []string
	for range 20 {
		var items []EnqueueItem
		for range 50 {
			items = append(items, EnqueueItem{Args: dyn{kind: "k"}, Opts: &EnqueueOpts{Tags: []string{"a"}}})
		}
		receipts, err := db.client.EnqueueMany(t.Context(), items)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range receipts {
			ids = append(ids, r.ID)
		}
	}
	db.waitFor(t, time.Minute, `select not exists (select from jobs where finalized_at is null)`)
	for _, stop := range stops {
		stop()
	}
	for _, id := range ids {
		runs := value[int](t, db, `select claim_seq::int from jobs where id = $1`, id)
		for name, l := range map[string]*eventLog{"good": &good, "exits": &exits, "panics": &panics, "calls": &calls} {
			started := l.count(id, "started")
			if n := l.ends(id); n != runs || started != n {
				t.Errorf("%s: %d ends, %d starts of %d runs of %s: %s", name, n, started, runs, id, fmt.Sprint(l.of(id)))
				return
			}
			begun := map[string]bool{} // in the order of each supervisor: over two supervisors there is none
			for _, e := range l.of(id) {
				run := fmt.Sprint(e.Supervisor, e.Attempt)
				if e.name == "started" {
					begun[run] = true
				} else if e.name != "enqueued" && !begun[run] {
					t.Errorf("%s: an end before its start: %v", name, l.of(id))
				}
			}
		}
	}
}
