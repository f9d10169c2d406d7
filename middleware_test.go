package drover_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/harness"
)

// The first middleware is the outermost on both ends, and what it hands on reaches the handler.
func TestMiddlewareIsInOrder(t *testing.T) {
	t.Parallel()
	type key struct{}
	var mu sync.Mutex
	var steps []string
	step := func(s string) {
		mu.Lock()
		defer mu.Unlock()
		steps = append(steps, s)
	}
	named := func(name string) drover.Middleware {
		return drover.Middleware{
			Enqueue: func(_ context.Context, item *drover.EnqueueItem) error {
				step("enqueue " + name)
				item.Opts.Tags = append(item.Opts.Tags, name)
				return nil
			},
			Run: func(ctx context.Context, job *drover.Job, next func(context.Context) error) error {
				step("run " + name + " of " + strings.Join(job.Tags, ","))
				passed, _ := ctx.Value(key{}).(string)
				err := next(context.WithValue(ctx, key{}, passed+name))
				step("ran " + name)
				return err
			},
		}
	}
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{
		Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}, Middleware: []drover.Middleware{named("a"), {}, named("b")},
	})
	db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: []drover.Worker{
		dynWorker("k", drover.WorkerOpts{}, func(ctx context.Context, _ *drover.Job) error {
			step(fmt.Sprint("handler after ", ctx.Value(key{})))
			return nil
		}),
	}})
	if e := heard.End(t, db.enqueue(t, dyn{kind: "k"}, nil)); e.Name != "completed" {
		t.Errorf("event = %+v", e)
	}
	want := []string{"enqueue a", "enqueue b", "run a of a,b", "run b of a,b", "handler after ab", "ran b", "ran a"}
	if !slices.Equal(steps, want) {
		t.Errorf("steps = %q, want %q", steps, want)
	}
}

// Every way to enqueue a job passes the middleware, with the caller's context, and leaves the caller's options alone.
func TestMiddlewareOfEveryEnqueue(t *testing.T) {
	t.Parallel()
	type key struct{}
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Middleware: []drover.Middleware{{
		Enqueue: func(ctx context.Context, item *drover.EnqueueItem) error {
			item.Opts.Metadata["from"] = ctx.Value(key{})
			item.Opts.Tags = append(item.Opts.Tags, "added")
			item.Opts.Priority = 3
			if d, ok := item.Args.(dyn); ok {
				d.S = "changed"
				item.Args = d
			}
			if u := item.Opts.Unique; u != nil {
				u.By[0] = "S"
			}
			return nil
		},
	}}})
	opts := func() *drover.EnqueueOpts {
		return &drover.EnqueueOpts{Tags: append(make([]string, 0, 4), "own"), Metadata: map[string]any{"own": 1}, Unique: &drover.Unique{By: []string{"N"}}}
	}
	given := opts()
	n := 0
	args := func() dyn { n++; return dyn{kind: "k", N: n} }
	ctx := func(from string) context.Context { return context.WithValue(t.Context(), key{}, from) }
	inTx := func(f func(drover.Tx) error) error {
		tx, err := db.Begin(t.Context())
		if err != nil {
			return err
		}
		defer tx.Rollback(t.Context())
		if err := f(tx); err != nil {
			return err
		}
		return tx.Commit(t.Context())
	}
	s := db.Stopped(t, drover.SupervisorConfig{Workers: []drover.Worker{dynWorker("parent", drover.WorkerOpts{}, doNothing)}})
	db.exec(t, `insert into jobs (kind) values ('parent')`)
	parent := drover.JobOf(s.Claim(t)[0])
	fromHandler := func(ctx context.Context, job *drover.Job) error {
		return inTx(func(tx drover.Tx) error { _, err := job.EnqueueTx(ctx, tx, args(), nil); return err })
	}
	for from, enqueue := range map[string]func(context.Context) error{
		"Enqueue":       func(ctx context.Context) error { _, err := db.client.Enqueue(ctx, args(), given); return err },
		"Enqueue, bare": func(ctx context.Context) error { _, err := db.client.Enqueue(ctx, args(), nil); return err },
		"EnqueueMany": func(ctx context.Context) error {
			_, err := db.client.EnqueueMany(ctx, []drover.EnqueueItem{{args(), nil}})
			return err
		},
		"EnqueueTx": func(ctx context.Context) error {
			return inTx(func(tx drover.Tx) error {
				_, err := db.client.EnqueueTx(ctx, tx, args(), &drover.EnqueueOpts{})
				return err
			})
		},
		"EnqueueManyTx": func(ctx context.Context) error {
			return inTx(func(tx drover.Tx) error {
				_, err := db.client.EnqueueManyTx(ctx, tx, []drover.EnqueueItem{{args(), nil}})
				return err
			})
		},
		"Job.EnqueueTx": func(ctx context.Context) error {
			return fromHandler(ctx, parent)
		},
	} {
		if err := enqueue(ctx(from)); err != nil {
			t.Fatalf("%s: %v", from, err)
		}
		stored := value[int](t, db, `select count(*) from jobs where metadata->>'from' = $1 and tags @> '{added}' and args->>'S' = 'changed' and priority = 3`, from)
		if stored != 1 {
			t.Errorf("%s: %d jobs are as the middleware left them", from, stored)
		}
	}
	if !reflect.DeepEqual(given, opts()) || given.Tags[:2][1] == "added" {
		t.Errorf("the caller's options are %+v", given)
	}
}

// A refusal or a panic costs its own enqueue: nothing is written, the error names the middleware, a transaction goes on.
func TestMiddlewareRefuses(t *testing.T) {
	t.Parallel()
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Middleware: []drover.Middleware{{}, {
		Enqueue: func(_ context.Context, item *drover.EnqueueItem) error {
			switch item.Args.Kind() {
			case "refused":
				return errBoom
			case "panics":
				panic(errBoom)
			}
			return nil
		},
	}}})
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	check := func(err error, texts ...string) {
		t.Helper()
		if !errors.Is(err, errBoom) || !errors.Is(err, drover.ErrInvalid) {
			t.Errorf("error = %v", err)
		}
		for _, text := range texts {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("error = %v, without %q", err, text)
			}
		}
	}
	for kind, text := range map[string]string{
		"refused": `drover: Middleware[1].Enqueue: refused kind "refused": boom`,
		"panics":  `drover: Middleware[1].Enqueue: panicked: boom`,
	} {
		_, err := db.client.Enqueue(t.Context(), dyn{kind: kind}, nil)
		check(err, text)
		_, err = db.client.EnqueueTx(t.Context(), tx, dyn{kind: kind}, nil)
		check(err, text)
	}
	_, err = db.client.EnqueueMany(t.Context(), []drover.EnqueueItem{{Args: dyn{kind: "fine"}}, {Args: dyn{kind: "refused"}}, {Args: dyn{kind: "panics"}}})
	check(err, `items[1].Middleware[1].Enqueue: refused kind "refused"`, `items[2].Middleware[1].Enqueue: panicked`)
	if n := value[int](t, db, `select count(*) from jobs`); n != 0 {
		t.Errorf("%d jobs were written", n)
	}
	_, err = db.client.EnqueueTx(t.Context(), tx, dyn{kind: "fine"}, nil)
	if err = errors.Join(err, tx.Commit(t.Context())); err != nil {
		t.Errorf("the transaction does not go on: %v", err)
	}
	if _, err := db.client.Enqueue(t.Context(), nil, nil); err == nil || !strings.Contains(err.Error(), "Middleware[1].Enqueue: panicked") {
		t.Errorf("args that are nil: %v", err)
	}
}

// The error of the outermost Run counts as the handler's, whatever a Run does with next.
func TestMiddlewareOfARun(t *testing.T) {
	t.Parallel()
	type next = func(context.Context) error
	var handled atomic.Int32
	var seen sync.Map // by kind, the error of next
	late := make(chan func() error, 1)
	inner := map[string]func(context.Context, next) error{
		"panics":           func(context.Context, next) error { panic("in the middleware") },
		"panics after":     func(ctx context.Context, next next) error { _ = next(ctx); panic("in the middleware") },
		"calls next twice": func(ctx context.Context, next next) error { return errors.Join(next(ctx), next(ctx)) },
		"calls next twice at once": func(ctx context.Context, next next) error {
			other := make(chan error)
			go func() { other <- next(ctx) }()
			return errors.Join(next(ctx), <-other)
		},
		"calls next late": func(ctx context.Context, next next) error {
			late <- func() error { return next(ctx) }
			return nil
		},
		"completes it":    func(context.Context, next) error { return nil },
		"snoozes it":      func(context.Context, next) error { return drover.Snooze(time.Hour) },
		"drops the error": func(ctx context.Context, next next) error { _ = next(ctx); return nil },
		"wraps the error": func(ctx context.Context, next next) error { return fmt.Errorf("wrapped: %w", next(ctx)) },
		"has a goroutine": func(ctx context.Context, next next) error {
			done := make(chan error)
			go func() { done <- next(ctx) }()
			return <-done
		},
		"calls with none":  func(_ context.Context, next next) error { return next(nil) }, //nolint:contextcheck // a mistake of a user's
		"does not decode":  func(ctx context.Context, next next) error { return next(ctx) },
		"decodes others":   func(ctx context.Context, next next) error { return next(ctx) },
		"times out itself": func(ctx context.Context, _ next) error { <-ctx.Done(); return ctx.Err() },
	}
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}, Middleware: []drover.Middleware{
		{Run: func(ctx context.Context, job *drover.Job, next next) error {
			err := next(ctx)
			seen.Store(job.Kind, drover.VerdictOf(err))
			return err
		}},
		{Run: func(ctx context.Context, job *drover.Job, next next) error {
			if job.Kind == "decodes others" {
				job.Args = json.RawMessage(`{"To": "ada@example.com"}`)
			}
			return inner[job.Kind](ctx, next)
		}},
	}})
	fails := func(context.Context, *drover.Job) error { handled.Add(1); panic(errBoom) }
	discards := func(context.Context, *drover.Job) error { return drover.Discard(errBoom) }
	counts := func(context.Context, *drover.Job) error { handled.Add(1); return nil }
	decodes := func(_ context.Context, job *drover.Job) error {
		var args letter
		if err := json.Unmarshal(job.Args, &args); err != nil {
			return drover.Undecodable(err)
		}
		return nil
	}
	cases := []struct {
		kind    string
		handle  func(context.Context, *drover.Job) error
		end     string
		class   drover.Class
		verdict drover.VerdictKind // as the outer one sees it
		calls   int32              // of the handler
		text    string
	}{
		{"panics", counts, "discarded", drover.ClassPanic, drover.VerdictPanic, 0, "in the middleware"},
		{"panics after", counts, "discarded", drover.ClassPanic, drover.VerdictPanic, 1, "in the middleware"},
		{"calls next twice", counts, "discarded", drover.ClassError, drover.VerdictError, 1, "called next again"},
		{"calls next twice at once", counts, "discarded", drover.ClassError, drover.VerdictError, 1, "called next again"},
		{"calls next late", counts, "completed", "", drover.VerdictDone, 0, ""},
		{"completes it", counts, "completed", "", drover.VerdictDone, 0, ""},
		{"snoozes it", counts, "snoozed", "", drover.VerdictSnooze, 0, ""},
		{"drops the error", fails, "completed", "", drover.VerdictDone, 1, ""},
		{"wraps the error", discards, "discarded", drover.ClassError, drover.VerdictDiscard, 0, "wrapped: boom"},
		{"has a goroutine", fails, "discarded", drover.ClassPanic, drover.VerdictPanic, 1, "panic: boom"},
		{"calls with none", func(ctx context.Context, _ *drover.Job) error { return ctx.Err() }, "discarded", drover.ClassPanic, drover.VerdictPanic, 0, "nil pointer"},
		{"does not decode", decodes, "discarded", drover.ClassDecode, drover.VerdictDiscard, 0, "do not decode"},
		{"decodes others", decodes, "completed", "", drover.VerdictDone, 0, ""},
		{"times out itself", counts, "discarded", drover.ClassTimeout, drover.VerdictError, 0, "deadline"},
	}
	cfg := drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 1}}}
	for _, c := range cases {
		opts := drover.WorkerOpts{MaxAttempts: 1} // the job must not run again once its handler has begun
		if c.kind == "times out itself" {
			opts.Timeout = 20 * time.Millisecond
		}
		cfg.Workers = append(cfg.Workers, dynWorker(c.kind, opts, c.handle))
	}
	sup := db.run(t, cfg)
	for _, c := range cases {
		handled.Store(0)
		e := heard.End(t, db.enqueue(t, payloadOf{c.kind, `"no object"`}, nil))
		v, _ := seen.Load(c.kind)
		verdict, _ := v.(drover.Verdict)
		if e.Name != c.end || e.Class != c.class || !strings.Contains(e.Error, c.text) || verdict.Kind != c.verdict || handled.Load() != c.calls {
			t.Errorf("%s: handler called %d times, verdict %+v, event %+v", c.kind, handled.Load(), verdict, e)
		}
	}
	handled.Store(0)
	if err := (<-late)(); err == nil || handled.Load() != 0 {
		t.Errorf("next after the run: %v, handler called %d times", err, handled.Load())
	}
	if n := sup.Stats().Abandoned; n != 0 {
		t.Errorf("%d abandoned", n)
	}
}

// A handler whose context is not derived from the run's hears of no timeout. Its run ends as if it ignored the timeout.
func TestMiddlewareThatSwapsTheContext(t *testing.T) {
	t.Parallel()
	slow(t)
	release := make(chan struct{})
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}, Middleware: []drover.Middleware{{
		Run: func(_ context.Context, _ *drover.Job, next func(context.Context) error) error {
			return next(context.Background()) //nolint:contextcheck // a mistake of a user's
		},
	}}})
	sup := db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: []drover.Worker{
		dynWorker("k", drover.WorkerOpts{MaxAttempts: 1, Timeout: 10 * time.Millisecond}, func(ctx context.Context, _ *drover.Job) error {
			select {
			case <-ctx.Done():
			case <-release:
			}
			return ctx.Err()
		}),
	}})
	t.Cleanup(func() { close(release) })
	if e := heard.End(t, db.enqueue(t, dyn{kind: "k"}, nil)); e.Name != "discarded" || e.Class != drover.ClassTimeout || sup.Stats().Abandoned != 1 {
		t.Errorf("%d abandoned, event = %+v", sup.Stats().Abandoned, e)
	}
}

// payloadOf is a job of any kind and args.
type payloadOf struct{ kind, args string }

func (p payloadOf) Kind() string                 { return p.kind }
func (p payloadOf) MarshalJSON() ([]byte, error) { return []byte(p.args), nil }

// The database makes the jobs of a schedule: Enqueue does not see them, Run does.
func TestMiddlewareOfAPeriodicJob(t *testing.T) {
	t.Parallel()
	var asked, ran atomic.Int32
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}, Middleware: []drover.Middleware{{
		Enqueue: func(context.Context, *drover.EnqueueItem) error { asked.Add(1); return errBoom },
		Run: func(ctx context.Context, _ *drover.Job, next func(context.Context) error) error {
			ran.Add(1)
			return next(ctx)
		},
	}}})
	db.run(t, drover.SupervisorConfig{
		Queues: []drover.Queue{{}}, Workers: []drover.Worker{dynWorker("k", drover.WorkerOpts{}, doNothing)},
		Periodic: []drover.Periodic{{Name: "often", Schedule: "@every 1s", Args: dyn{kind: "k"}}},
	})
	eventually(t, func() bool { return ran.Load() > 0 })
	if asked.Load() != 0 {
		t.Errorf("Enqueue was called %d times", asked.Load())
	}
}

// Each call of an enqueue begins and ends once, the first middleware outermost, and all functions in between get its
// context.
func TestBeginEnqueue(t *testing.T) {
	t.Parallel()
	type key struct{}
	var steps []string
	named := func(name string) drover.Middleware {
		return drover.Middleware{
			BeginEnqueue: func(ctx context.Context, call drover.EnqueueCall) (context.Context, func([]drover.Receipt, error)) {
				steps = append(steps, fmt.Sprint("begin ", name, " ", len(call.Items), " ", call.InTx))
				before, _ := ctx.Value(key{}).(string)
				return context.WithValue(ctx, key{}, before+name), func(receipts []drover.Receipt, err error) {
					steps = append(steps, fmt.Sprint("end ", name, " ", len(receipts), " ", err != nil))
				}
			},
			Enqueue: func(ctx context.Context, item *drover.EnqueueItem) error {
				item.Opts.Tags = append(item.Opts.Tags, fmt.Sprint(name, ctx.Value(key{})))
				return nil
			},
		}
	}
	hook := func(ctx context.Context, e drover.Event) {
		steps = append(steps, fmt.Sprint(e.Tags, ctx.Value(key{})))
	}
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{{Enqueued: hook}}, Middleware: []drover.Middleware{named("a"), {}, named("b")}})
	inTx := func(f func(drover.Tx) error) error {
		tx, err := db.Begin(t.Context())
		if err != nil {
			return err
		}
		defer tx.Rollback(t.Context())
		return f(tx)
	}
	ctx := t.Context()
	one := []drover.EnqueueItem{{dyn{kind: "k"}, nil}, {dyn{kind: "k"}, nil}}
	const each = "[aab bab]ab"
	for _, c := range []struct {
		name    string
		enqueue func() error
		want    []string
	}{
		{
			"Enqueue", func() error { _, err := db.client.Enqueue(ctx, dyn{kind: "k"}, nil); return err },
			[]string{"begin a 1 false", "begin b 1 false", each, "end b 1 false", "end a 1 false"},
		},
		{
			"EnqueueMany", func() error { _, err := db.client.EnqueueMany(ctx, one); return err },
			[]string{"begin a 2 false", "begin b 2 false", each, each, "end b 2 false", "end a 2 false"},
		},
		{"EnqueueTx", func() error {
			return inTx(func(tx drover.Tx) error { _, err := db.client.EnqueueTx(ctx, tx, dyn{kind: "k"}, nil); return err })
		}, []string{"begin a 1 true", "begin b 1 true", each, "end b 1 false", "end a 1 false"}},
		{"EnqueueManyTx", func() error {
			return inTx(func(tx drover.Tx) error { _, err := db.client.EnqueueManyTx(ctx, tx, one); return err })
		}, []string{"begin a 2 true", "begin b 2 true", each, each, "end b 2 false", "end a 2 false"}},
		{
			"refused", func() error { _, err := db.client.Enqueue(ctx, dyn{kind: ""}, nil); return err },
			[]string{"begin a 1 false", "begin b 1 false", "end b 0 true", "end a 0 true"},
		},
		{"nothing", func() error { _, err := db.client.EnqueueMany(ctx, nil); return err }, nil},
	} {
		steps = nil
		if err := c.enqueue(); (err != nil) != (c.name == "refused") {
			t.Errorf("%s: %v", c.name, err)
		}
		if !slices.Equal(steps, c.want) {
			t.Errorf("%s: steps %q, want %q", c.name, steps, c.want)
		}
	}
}

// A BeginEnqueue that panics, at either end, or returns nothing, costs no job.
func TestBeginEnqueueOnlyLooks(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	begin := func(f func(ctx context.Context) (context.Context, func([]drover.Receipt, error))) drover.Middleware {
		return drover.Middleware{BeginEnqueue: func(ctx context.Context, _ drover.EnqueueCall) (context.Context, func([]drover.Receipt, error)) {
			return f(ctx)
		}}
	}
	ended := 0
	db := newTestDBWith(t, drover.Config{Logger: slog.New(slog.NewTextHandler(&log, nil)), Middleware: []drover.Middleware{
		begin(func(ctx context.Context) (context.Context, func([]drover.Receipt, error)) {
			return ctx, func([]drover.Receipt, error) { ended++ }
		}),
		begin(func(context.Context) (context.Context, func([]drover.Receipt, error)) { panic("at the begin") }),
		begin(func(context.Context) (context.Context, func([]drover.Receipt, error)) { return nil, nil }),
		begin(func(ctx context.Context) (context.Context, func([]drover.Receipt, error)) {
			return ctx, func([]drover.Receipt, error) { panic("at the end") }
		}),
	}})
	receipt, err := db.client.Enqueue(t.Context(), dyn{kind: "k"}, nil)
	if err != nil || value[int](t, db, `select count(*) from jobs where id = $1`, receipt.ID) != 1 || ended != 1 {
		t.Errorf("err = %v, ended %d times", err, ended)
	}
	for _, want := range []string{"at the begin", "at the end"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%q is not logged:\n%s", want, log.String())
		}
	}
}

// A job with a single attempt runs at most once, and a job has as many runs as its row allows, whatever a middleware
// writes into its Job.
func TestMiddlewareDoesNotChangeAttempts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*drover.Job)
		opts   drover.EnqueueOpts
	}{
		"MaxAttempts": {func(job *drover.Job) { job.MaxAttempts = 5 }, drover.EnqueueOpts{MaxAttempts: 1}},
		"Attempt":     {func(job *drover.Job) { job.Attempt = 0 }, drover.EnqueueOpts{MaxAttempts: 1}}, // counted from 0 for another library
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newTestDBWith(t, drover.Config{Logger: quiet(), Middleware: []drover.Middleware{{
				Run: func(ctx context.Context, job *drover.Job, next func(context.Context) error) error {
					c.change(job)
					return next(ctx)
				},
			}}})
			db.launch(t, drover.SupervisorConfig{Workers: []drover.Worker{dynWorker("k", drover.WorkerOpts{Retry: drover.Constant{Delay: time.Hour}}, func(context.Context, *drover.Job) error { return errBoom })}})
			id := db.enqueue(t, dyn{kind: "k"}, &c.opts)
			db.waitFor(t, 20*time.Second, `select attempt > 0 and state <> 'running' from jobs where id = $1`, id)
			if got := value[string](t, db, `select state from jobs where id = $1`, id); got != "discarded" {
				t.Errorf("after its only attempt the job is %s", got)
			}
		})
	}
}

// BeginEnqueue cannot change a job.
func TestBeginEnqueueChangesNothing(t *testing.T) {
	t.Parallel()
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Middleware: []drover.Middleware{{
		BeginEnqueue: func(ctx context.Context, call drover.EnqueueCall) (context.Context, func([]drover.Receipt, error)) {
			slices.SortFunc(call.Items, func(a, b drover.EnqueueItem) int { return b.Args.(dyn).N - a.Args.(dyn).N }) // to report the largest
			return ctx, func(receipts []drover.Receipt, _ error) { slices.Reverse(receipts) }
		},
	}}})
	receipts, err := db.client.EnqueueMany(t.Context(), []drover.EnqueueItem{{Args: dyn{kind: "k", N: 1}}, {Args: dyn{kind: "k", N: 2}}})
	if err != nil {
		t.Fatal(err)
	}
	if n := value[int](t, db, `select (args->>'N')::int from jobs where id = $1`, receipts[0].ID); n != 1 {
		t.Errorf("the first receipt is of the item %d", n)
	}
}
