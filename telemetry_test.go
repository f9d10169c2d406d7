package drover_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/harness"
)

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
func everyHook(f func(context.Context, drover.Event)) (h drover.Hooks) {
	for i := range reflect.TypeFor[drover.Hooks]().NumField() {
		reflect.ValueOf(&h).Elem().Field(i).Set(reflect.ValueOf(f))
	}
	return h
}

// O-1: over a mixed load, every run that started has exactly one end event, which says what the row says.
func TestEveryRunHasOneEnd(t *testing.T) {
	t.Parallel()
	slow(t)
	var heard, again harness.EventLog
	broken := everyHook(func(context.Context, drover.Event) { panic("a broken subscriber") })
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks(), broken, {}, again.Hooks()}})

	db.Alive(t, "someone else")
	quick := drover.Constant{Delay: time.Millisecond}
	stale := func(ctx context.Context, job *drover.Job) error {
		_, err := db.Exec(ctx, `update jobs set claim_seq = claim_seq + 1, claimed_by = 'someone else' where id = $1`, job.ID)
		return err
	}
	inTx := func(ctx context.Context, commit bool, settle func(drover.Tx) error) error {
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
		opts   drover.WorkerOpts
		job    drover.EnqueueOpts
		ends   string // the end events of one job, in order
		handle func(context.Context, *drover.Job) error
	}{
		{kind: "ok", ends: "completed"},
		{kind: "fails once", ends: "failed completed", handle: func(_ context.Context, job *drover.Job) error {
			if job.Attempt == 1 {
				return errBoom
			}
			return nil
		}},
		{kind: "fails always", opts: drover.WorkerOpts{MaxAttempts: 3}, ends: "failed failed discarded", handle: func(context.Context, *drover.Job) error { return errBoom }},
		{kind: "panics", opts: drover.WorkerOpts{MaxAttempts: 2}, ends: "failed discarded", handle: func(context.Context, *drover.Job) error { panic("oh") }},
		{kind: "exits", opts: drover.WorkerOpts{MaxAttempts: 2}, ends: "failed discarded", handle: func(context.Context, *drover.Job) error { runtime.Goexit(); return nil }},
		{kind: "discards", ends: "discarded", handle: func(context.Context, *drover.Job) error { return drover.Discard(errBoom) }},
		{kind: "snoozes", ends: "snoozed snoozed completed", handle: func(_ context.Context, job *drover.Job) error {
			if job.Snoozes < 2 {
				return drover.Snooze(time.Millisecond)
			}
			return nil
		}},
		{kind: "is throttled", opts: drover.WorkerOpts{MaxAttempts: 2}, ends: "failed discarded", handle: func(context.Context, *drover.Job) error { return drover.RetryAfter(time.Millisecond, errBoom) }},
		{kind: "does not count", opts: drover.WorkerOpts{MaxAttempts: 1}, ends: "failed completed", handle: func(_ context.Context, job *drover.Job) error {
			if job.Failures == 0 {
				return drover.DontCount(errBoom)
			}
			return nil
		}},
		{kind: "times out", opts: drover.WorkerOpts{MaxAttempts: 1, Timeout: 5 * time.Millisecond}, ends: "discarded", handle: func(ctx context.Context, _ *drover.Job) error {
			<-ctx.Done()
			return ctx.Err()
		}},
		{kind: "cancels itself", ends: "cancelled", handle: func(context.Context, *drover.Job) error { return drover.Cancel(errBoom) }},
		{kind: "is cancelled", ends: "cancelled", handle: func(ctx context.Context, job *drover.Job) error {
			_, err := db.client.Cancel(ctx, job.ID, drover.Audit{})
			return err
		}},
		{kind: "is stale", ends: "stale_settle", handle: stale},
		{kind: "fails and is stale", ends: "stale_settle", handle: func(ctx context.Context, job *drover.Job) error { return errors.Join(errBoom, stale(ctx, job)) }},
		{kind: "expires", job: drover.EnqueueOpts{ExpiresAt: time.Now().Add(-time.Hour)}, ends: "discarded"},
		{kind: "completes in a transaction", ends: "completed", handle: func(ctx context.Context, job *drover.Job) error {
			return inTx(ctx, true, func(tx drover.Tx) error { return job.CompleteTx(ctx, tx) })
		}},
		{kind: "completes in a transaction, then fails", ends: "completed", handle: func(ctx context.Context, job *drover.Job) error {
			return errors.Join(errBoom, inTx(ctx, true, func(tx drover.Tx) error { return job.CompleteTx(ctx, tx) }))
		}},
		{kind: "discards in a transaction", ends: "discarded", handle: func(ctx context.Context, job *drover.Job) error {
			return inTx(ctx, true, func(tx drover.Tx) error { return job.SettleTx(ctx, tx, drover.Discard(errBoom)) })
		}},
		{kind: "does not commit", opts: drover.WorkerOpts{MaxAttempts: 2, RetryIf: func(error) bool { return false }}, ends: "failed discarded", handle: func(ctx context.Context, job *drover.Job) error {
			return inTx(ctx, false, func(tx drover.Tx) error { return job.CompleteTx(ctx, tx) })
		}},
		{kind: "is stopped", ends: "released", handle: func(ctx context.Context, _ *drover.Job) error {
			<-ctx.Done()
			return ctx.Err()
		}},
		{kind: "ignores everything", opts: drover.WorkerOpts{MaxAttempts: 1, Timeout: 5 * time.Millisecond}, ends: "discarded", handle: func(context.Context, *drover.Job) error {
			<-release
			return nil
		}},
	}
	const each = 12
	cfg := drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 60}}, DrainTimeout: time.Millisecond}
	var batch []drover.EnqueueItem
	for _, k := range kinds {
		k.opts.Retry = quick
		if k.handle == nil {
			k.handle = func(context.Context, *drover.Job) error { return nil }
		}
		cfg.Workers = append(cfg.Workers, dynWorker(k.kind, k.opts, k.handle))
	}
	for range each {
		for _, k := range kinds {
			batch = append(batch, drover.EnqueueItem{dyn{kind: k.kind}, &k.job})
		}
	}
	receipts, err := db.client.EnqueueMany(t.Context(), batch)
	if err != nil {
		t.Fatal(err)
	}
	sup, stop := db.Start(t, cfg)
	t.Cleanup(func() { close(release) })
	me := ""
	for i, r := range receipts {
		if k := kinds[i%len(kinds)]; k.kind == "is stopped" {
			me = heard.Wait(t, r.ID, "started").Supervisor
		} else {
			eventually(t, func() bool { return heard.Ends(r.ID) >= len(strings.Fields(k.ends)) })
		}
	}
	if n := sup.Stats().Abandoned; n < each {
		t.Errorf("%d runs abandoned, want %d", n, each)
	}
	stop()

	total := map[string]int{}
	for i, r := range receipts {
		k, events := kinds[i%len(kinds)], heard.Of(r.ID)
		var ends []string
		started := 0
		for _, e := range events {
			total[e.Name]++
			checkFields(t, e)
			switch {
			case e.Name == "enqueued", e.Name == "not_started":
			case e.Name == "started":
				started++
				if e.Attempt < 1 || e.MaxAttempts < 1 || e.Wait <= 0 || e.Supervisor != me || e.Kind != k.kind || e.Queue != "default" {
					t.Errorf("%s: started = %+v", k.kind, e)
				}
			case slices.Contains(harness.EndEvents(), e.Name):
				ends = append(ends, e.Name)
				checkEndEvent(t, k.kind, me, e)
			default:
				t.Errorf("%s: %q", k.kind, e.Name)
			}
		}
		if got := strings.Join(ends, " "); got != k.ends || started != len(ends) && k.kind != "expires" {
			t.Errorf("%s: %d started, ends = %q, want %q", k.kind, started, got, k.ends)
		}
		for _, name := range append([]string{"enqueued", "started"}, harness.EndEvents()...) {
			if heard.Count(r.ID, name) != again.Count(r.ID, name) {
				t.Errorf("%s: two subscribers heard %q differently often", k.kind, name)
			}
		}
	}
	ended := 0
	for _, name := range harness.EndEvents() {
		ended += total[name]
	}
	if total["started"]+each != ended { // the expired ones did not start
		t.Errorf("%d runs started, %d ended: %v", total["started"], ended, total)
	}
	for state, want := range map[drover.State]int{drover.Completed: total["completed"], drover.Discarded: total["discarded"], drover.Cancelled: total["cancelled"]} {
		if n := value[int](t, db, `select count(*) from jobs where state = $1`, state); n != want {
			t.Errorf("%d jobs are %s, %d events", n, state, want)
		}
	}
	claimed := 0
	for _, e := range heard.Of("") {
		if e.Name != "claimed" || e.Count < 1 || e.Queue != "default" || e.Supervisor != me {
			t.Errorf("event without a job: %+v", e)
		}
		claimed += e.Count
	}
	if n := value[int](t, db, `select sum(claim_seq) from jobs where claimed_by is distinct from 'someone else'`); claimed < n {
		t.Errorf("%d claimed by events, %d by the table", claimed, n)
	}
}

// checkFields checks that docs/events.md names each field of an event that is not zero.
func checkFields(t *testing.T, e harness.LoggedEvent) {
	t.Helper()
	raw, err := os.ReadFile("docs/events.md")
	if err != nil {
		t.Fatal(err)
	}
	name := strings.ReplaceAll(e.Name, "_", "")
	if name == "notstarted" {
		name = "released"
	}
	row := regexp.MustCompile("(?mi)^\\| `" + name + "` \\|.*$").FindString(string(raw))
	head, _, _ := strings.Cut(string(raw), "\n|---|")
	named := row + head[strings.LastIndex(head, "\n"):] // the head of the first table has the fields of all runs
	for _, f := range reflect.VisibleFields(reflect.TypeFor[drover.Event]()) {
		if !reflect.ValueOf(e.Event).FieldByIndex(f.Index).IsZero() && !strings.Contains(named, "`"+f.Name+"`") {
			t.Errorf("docs/events.md does not name the field %s of %s", f.Name, e.Name)
		}
	}
}

// checkEndEvent checks the fields that every end event of its name must have.
func checkEndEvent(t *testing.T, kind, supervisor string, e harness.LoggedEvent) {
	t.Helper()
	failed := e.Name == "failed" || e.Name == "discarded" && e.Reason != drover.ReasonExpired
	switch {
	case e.Attempt < 1 || e.MaxAttempts < e.Attempt && e.Name != "failed" || e.Kind != kind || e.Queue != "default" || e.Supervisor != supervisor:
	case e.Duration <= 0 && e.Reason != drover.ReasonExpired:
	case failed && (e.Class == "" || e.Error == ""):
	case e.Name == "completed" && (e.Class != "" || e.Error != ""):
	case (e.Name == "discarded") != (e.Reason != ""):
	case (e.Name == "failed" || e.Name == "snoozed") != (e.Backoff > 0) || e.Backoff > 0 == e.Next.IsZero():
	case e.Name == "cancelled" && e.Error == "":
	default:
		return
	}
	t.Errorf("%s: %+v", kind, e)
}

// O-1: a subscriber that blocks delays neither a job nor another subscriber.
func TestABlockingHookHoldsUpNoJob(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	release := make(chan struct{})
	block := func(context.Context, drover.Event) { <-release }
	blocks := drover.Hooks{Claimed: block, Started: block, Completed: block}
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{blocks, heard.Hooks()}})
	var batch []drover.EnqueueItem
	for range 200 {
		batch = append(batch, drover.EnqueueItem{Args: dyn{kind: "k"}})
	}
	receipts, err := db.client.EnqueueMany(t.Context(), batch)
	if err != nil {
		t.Fatal(err)
	}
	_, stop := db.Start(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 2}}, Workers: []drover.Worker{
		dynWorker("k", drover.WorkerOpts{}, func(context.Context, *drover.Job) error { return nil }),
	}})
	eventually(t, func() bool {
		return value[int](t, db, `select count(*) from jobs where state = 'completed'`) == len(batch)
	})
	if e := heard.End(t, receipts[0].ID); e.Name != "completed" {
		t.Errorf("while one subscriber blocks, another gets %+v", e)
	}
	close(release)
	stop() // Run passes on all events before it returns
	quickest := time.Hour
	for _, r := range receipts {
		if heard.Count(r.ID, "completed") != 1 {
			t.Errorf("events = %+v", heard.Of(r.ID))
		}
		quickest = min(quickest, heard.End(t, r.ID).Duration)
	}
	if quickest <= 0 || quickest >= time.Millisecond {
		t.Errorf("the quickest of 200 runs took %v: durations are not below milliseconds", quickest)
	}
}

// A hook that ends its goroutine, as t.FailNow does, costs neither a job, nor a slot, nor later events.
func TestAHookThatCallsGoexit(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	var started, completed atomic.Int32
	exits := drover.Hooks{
		Started:   func(context.Context, drover.Event) { started.Add(1); runtime.Goexit() },
		Completed: func(context.Context, drover.Event) { completed.Add(1) },
	}
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks(), exits}})
	db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 1}}, Workers: []drover.Worker{
		dynWorker("k", drover.WorkerOpts{Timeout: drover.NoTimeout}, func(context.Context, *drover.Job) error { return nil }),
	}})
	for range 2 {
		if e := heard.End(t, db.enqueue(t, dyn{kind: "k"}, nil)); e.Name != "completed" {
			t.Errorf("event = %+v", e)
		}
	}
	eventually(t, func() bool { return started.Load() == 2 && completed.Load() == 2 })
}

// O-1: a paced redrive does not fill the log: the jobs that it makes due several times a second are logged at debug.
func TestAPacedRedriveInTheLog(t *testing.T) {
	t.Parallel()
	var logged lockedBuffer
	db := newTestDBWith(t, drover.Config{Logger: slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	db.exec(t, `insert into jobs (kind, state, finalized_at, discard_reason) values ('job', 'discarded', now(), 'operator')`)
	if _, err := db.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{Kind: "job"}}, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	_, stop := db.Start(t, drover.SupervisorConfig{
		Queues: []drover.Queue{{}}, Workers: []drover.Worker{dynWorker("job", drover.WorkerOpts{}, func(context.Context, *drover.Job) error { return nil })},
	})
	eventually(t, func() bool { return bytes.Contains(logged.Bytes(), []byte(`level=DEBUG msg="job redriven"`)) })
	stop()
	if bytes.Contains(logged.Bytes(), []byte(`level=INFO msg="job redriven"`)) {
		t.Errorf("%s", logged.Bytes())
	}
}

// O-1: each event has its line in the log, at its level and never with the args.
func TestEventsInTheLog(t *testing.T) {
	t.Parallel()
	var logged lockedBuffer
	log := slog.New(slog.NewJSONHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	db := newTestDBWith(t, drover.Config{Logger: log})
	db.Alive(t, "x")
	const secret = "secret-of-the-args"
	entered := make(chan struct{}) // "started" is logged before the handler is called
	cfg := drover.SupervisorConfig{Queues: []drover.Queue{{}}, DrainTimeout: time.Millisecond}
	ends := map[string]func(ctx context.Context, job *drover.Job) error{
		"job completed": func(_ context.Context, job *drover.Job) error {
			log.Info("from the handler", slog.Any("job", job))
			return nil
		},
		"job failed, will be retried": func(context.Context, *drover.Job) error { return errBoom },
		"job discarded":               func(context.Context, *drover.Job) error { return drover.Discard(errBoom) },
		"job snoozed":                 func(context.Context, *drover.Job) error { return drover.Snooze(time.Hour) },
		"job cancelled":               func(context.Context, *drover.Job) error { return drover.Cancel(errBoom) },
		"job handed back": func(ctx context.Context, _ *drover.Job) error {
			close(entered)
			<-ctx.Done()
			return ctx.Err()
		},
		"stale outcome refused": func(ctx context.Context, job *drover.Job) error {
			_, err := db.Exec(ctx, `update jobs set claim_seq = claim_seq + 1, claimed_by = 'x' where id = $1`, job.ID)
			return err
		},
	}
	ids := map[string]string{}
	for message, handle := range ends {
		cfg.Workers = append(cfg.Workers, dynWorker(message, drover.WorkerOpts{}, handle))
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
	_, stop := db.Start(t, cfg)
	for message, id := range ids {
		if message == "job handed back" {
			message = "job started"
		}
		eventually(t, func() bool { return find(message, id) != nil })
	}
	receive(t, entered)
	stop()
	if err := db.client.RedriveJob(t.Context(), ids["job discarded"], nil, drover.Audit{}); err != nil {
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
	db := newTestDBWith(t, drover.Config{
		Logger: slog.New(slog.NewTextHandler(&logged, nil)),
		Redact: func(s string) string { return strings.ReplaceAll(s, "hunter2", "***") },
		Hooks:  []drover.Hooks{{Enqueued: func(context.Context, drover.Event) { panic("with hunter2") }}},
	})
	db.enqueue(t, dyn{kind: "k"}, nil)
	if log := string(logged.Bytes()); !strings.Contains(log, "hook panicked") || !strings.Contains(log, "with ***") || strings.Contains(log, "hunter2") {
		t.Errorf("log = %s", log)
	}
}

// An application that makes two clients may fill the same list of hooks anew for the second.
func TestAClientKeepsItsHooks(t *testing.T) {
	t.Parallel()
	var heard atomic.Int32
	hooks := []drover.Hooks{{Enqueued: func(context.Context, drover.Event) { heard.Add(1) }}}
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: hooks})
	hooks[0] = drover.Hooks{}
	db.enqueue(t, dyn{kind: "k"}, nil)
	if heard.Load() != 1 {
		t.Error("the client lost its hooks")
	}
}

// brokenLog is a log handler that panics whenever it is called.
type brokenLog struct{ slog.Handler }

// A log handler that panics ends neither an enqueue, nor a run, nor the process. The lines that it does not write are not lost.
func TestAPanickingLogHandler(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	var spare lockedBuffer
	panicking := heard.Hooks()
	panicking.Enqueued = func(context.Context, drover.Event) { panic("a hook") }
	db := newTestDBWith(t, drover.Config{
		Logger: slog.New(brokenLog{}), Hooks: []drover.Hooks{heard.Hooks(), panicking},
		Redact: func(s string) string { return strings.ReplaceAll(s, "pointer", "***") },
	})
	if !drover.LogSpareTo(db.client, slog.NewTextHandler(&spare, nil)) {
		t.Fatal("a panic of the log handler would end the process")
	}
	_, stop := db.Start(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: []drover.Worker{
		dynWorker("good", drover.WorkerOpts{}, func(context.Context, *drover.Job) error { return nil }),
		dynWorker("bad", drover.WorkerOpts{MaxAttempts: 1, RetryIf: func(error) bool { panic("no") }}, func(context.Context, *drover.Job) error { return errBoom }),
		dynWorker("odd", drover.WorkerOpts{MaxAttempts: 1}, func(context.Context, *drover.Job) error { return (*permanentPointer)(nil) }),
	}})
	for kind, end := range map[string]string{"good": "completed", "bad": "discarded", "odd": "discarded"} {
		if e := heard.End(t, db.enqueue(t, dyn{kind: kind}, nil)); e.Name != end {
			t.Errorf("%s ended %s", kind, e.Name)
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

// O-6: a hook that never returns does not keep Run from returning, and other subscribers get all events.
func TestRunReturnsAlthoughAHookHangs(t *testing.T) {
	t.Parallel()
	slow(t)
	var heard harness.EventLog
	var logged lockedBuffer
	release := make(chan struct{})
	db := newTestDBWith(t, drover.Config{Logger: slog.New(slog.NewTextHandler(&logged, nil)), Hooks: []drover.Hooks{
		{Completed: func(context.Context, drover.Event) { <-release }}, heard.Hooks(),
	}})
	t.Cleanup(func() { close(release) })
	var ids []string
	for range 10 {
		ids = append(ids, db.enqueue(t, dyn{kind: "k"}, nil))
	}
	sup, stop := db.Start(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: []drover.Worker{dynWorker("k", drover.WorkerOpts{}, doNothing)}})
	for _, id := range ids {
		heard.End(t, id)
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
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	audit := drover.Audit{By: "ann", Why: "a test"}
	one, two := db.enqueue(t, dyn{kind: "k"}, nil), db.enqueue(t, dyn{kind: "k"}, nil)
	_, cancelled := db.client.Cancel(t.Context(), one, audit)
	redriven := db.client.RedriveJob(t.Context(), one, nil, audit)
	_, discarded := db.client.DiscardMany(t.Context(), drover.Filter{IDs: []string{two}}, audit)
	done := db.put(t, "state, finalized_at", "'completed', now()")
	again, rerun := db.client.Rerun(t.Context(), done, nil, audit)
	set := db.client.SetPeriodic(t.Context(), drover.Periodic{Name: "nightly", Schedule: "@daily", Args: dyn{kind: "report"}, Opts: &drover.EnqueueOpts{Queue: "slow"}}, audit)
	extra, run := db.client.RunPeriodic(t.Context(), "nightly", nil, audit)
	if err := errors.Join(cancelled, redriven, discarded, rerun, set, run); err != nil {
		t.Fatal(err)
	}
	for id, names := range map[string]string{one: "enqueued cancelled redriven", two: "enqueued", "": "discarded", again.ID: "enqueued", extra: "enqueued"} {
		var got []string
		for i, e := range heard.Of(id) {
			got = append(got, e.Name)
			if want := (i > 0 || id == "" || id == again.ID || id == extra); want != (e.By == audit.By && e.Why == audit.Why) {
				t.Errorf("%s: by %q, why %q", e.Name, e.By, e.Why)
			}
		}
		if strings.Join(got, " ") != names {
			t.Errorf("events = %q, want %q", got, names)
		}
	}
	for _, e := range heard.Of(extra) {
		if e.Periodic != "nightly" || e.Kind != "report" || e.Queue != "slow" {
			t.Errorf("a schedule was run by hand: %+v", e)
		}
	}
}

// O-6: events report whether their transaction is open, and carry the job's tags and metadata.
func TestEventsCarryTagsAndMetadata(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	opts := &drover.EnqueueOpts{Tags: []string{"a", "b"}, Metadata: map[string]any{"trace": "4bf9"}}
	item := drover.EnqueueItem{dyn{kind: "k"}, opts}
	ids := map[string]bool{db.enqueue(t, item.Args, opts): false}
	many, err := db.client.EnqueueMany(t.Context(), []drover.EnqueueItem{item})
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
	if many, err = db.client.EnqueueManyTx(t.Context(), tx, []drover.EnqueueItem{item}); err != nil {
		t.Fatal(err)
	}
	ids[one.ID], ids[many[0].ID] = true, true
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: []drover.Worker{
		dynWorker("k", drover.WorkerOpts{MaxAttempts: 1}, func(context.Context, *drover.Job) error { return errBoom }),
	}})
	for id, inTx := range ids {
		heard.End(t, id)
		events := heard.Of(id)
		if len(events) != 3 {
			t.Errorf("events = %+v", events)
		}
		for _, e := range events {
			var metadata struct{ Trace string }
			if err := json.Unmarshal(e.Metadata, &metadata); err != nil || metadata.Trace != "4bf9" || !slices.Equal(e.Tags, opts.Tags) {
				t.Errorf("%s: tags %v, metadata %s", e.Name, e.Tags, e.Metadata)
			}
			if e.InTx != (inTx && e.Name == "enqueued") {
				t.Errorf("%s: InTx = %v", e.Name, e.InTx)
			}
		}
	}
	tagged := db.enqueue(t, item.Args, &drover.EnqueueOpts{Tags: []string{"a"}})
	if heard.End(t, tagged); !slices.ContainsFunc(heard.Of(tagged), func(e harness.LoggedEvent) bool { return e.Name == "started" && e.Metadata == nil && len(e.Tags) == 1 }) {
		t.Errorf("events = %+v", heard.Of(tagged))
	}
}

// docs/events.md: Tags and Metadata are the job's, as they were enqueued, whatever middleware makes of the Job.
func TestEventsKeepTheLabelsOfTheEnqueue(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*drover.Job){
		"tags":     func(job *drover.Job) { slices.Reverse(job.Tags) },
		"metadata": func(job *drover.Job) { copy(job.Metadata, `{"a": 2}`) }, // as an in-place decryption would
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var heard harness.EventLog
			db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}, Middleware: []drover.Middleware{{
				Run: func(ctx context.Context, job *drover.Job, next func(context.Context) error) error {
					change(job)
					return next(ctx)
				},
			}}})
			db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: []drover.Worker{dynWorker("k", drover.WorkerOpts{}, doNothing)}})
			e := heard.End(t, db.enqueue(t, dyn{kind: "k"}, &drover.EnqueueOpts{Tags: []string{"x", "y"}, Metadata: map[string]any{"a": 1}}))
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
	var good, exits, panics, calls harness.EventLog
	after := func(l *harness.EventLog, more func(drover.Event)) drover.Hooks {
		h := l.Hooks()
		completed, failed := h.Completed, h.Failed
		h.Enqueued = nil // in the caller's goroutine
		h.Completed = func(ctx context.Context, e drover.Event) { completed(ctx, e); more(e) }
		h.Failed = func(ctx context.Context, e drover.Event) { failed(ctx, e); more(e) }
		return h
	}
	var client atomic.Pointer[drover.Client]
	var sups [2]*drover.Supervisor
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{
		after(&exits, func(drover.Event) { runtime.Goexit() }),
		after(&panics, func(drover.Event) { panic("x") }),
		after(&calls, func(e drover.Event) {
			_, _ = client.Load().Job(context.Background(), e.JobID)
			_ = sups[0].Stats()
			_ = sups[0].Healthy()
			if rand.N(50) == 0 { //nolint:gosec // not a secret
				_ = sups[1].RemoveQueue(context.Background(), "none")
			}
		}),
		good.Hooks(),
	}})
	client.Store(db.client)
	cfg := drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 20}}, DrainTimeout: 2 * time.Second, Workers: []drover.Worker{dynWorker("k", drover.WorkerOpts{Retry: drover.Constant{Delay: time.Millisecond}}, func(_ context.Context, job *drover.Job) error {
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
		var items []drover.EnqueueItem
		for range 50 {
			items = append(items, drover.EnqueueItem{Args: dyn{kind: "k"}, Opts: &drover.EnqueueOpts{Tags: []string{"a"}}})
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
		for name, l := range map[string]*harness.EventLog{"good": &good, "exits": &exits, "panics": &panics, "calls": &calls} {
			started := l.Count(id, "started")
			if n := l.Ends(id); n != runs || started != n {
				t.Errorf("%s: %d ends, %d starts of %d runs of %s: %s", name, n, started, runs, id, fmt.Sprint(l.Of(id)))
				return
			}
			begun := map[string]bool{} // in the order of each supervisor: over two supervisors there is none
			for _, e := range l.Of(id) {
				run := fmt.Sprint(e.Supervisor, e.Attempt)
				if e.Name == "started" {
					begun[run] = true
				} else if e.Name != "enqueued" && !begun[run] {
					t.Errorf("%s: an end before its start: %v", name, l.Of(id))
				}
			}
		}
	}
}
