package droverotel_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	droverotel "github.com/drover-queue/drover/otel"
)

// work is the one kind of job; Do says what its handler does.
type work struct{ Do string }

func (work) Kind() string { return "work" }

// rig is a client with telemetry, in a schema of its own.
type rig struct {
	pool   *pgxpool.Pool
	client *drover.Client
	spans  *tracetest.InMemoryExporter
	tracer trace.Tracer
	opts   droverotel.Options
	ended  chan drover.Event
}

func newRig(t *testing.T, edit func(*droverotel.Options)) *rig {
	t.Helper()
	r := &rig{pool: pgtest.NewMigratedPool(t), spans: tracetest.NewInMemoryExporter(), ended: make(chan drover.Event, 100)}
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(r.spans))
	r.tracer = provider.Tracer("application")
	r.opts = droverotel.Options{TracerProvider: provider, Timeout: time.Minute}
	if edit != nil {
		edit(&r.opts)
	}
	r.client = r.newClient(t, r.opts)
	return r
}

// newClient is another client of the same database, as of another process.
func (r *rig) newClient(t *testing.T, opts droverotel.Options) *drover.Client {
	t.Helper()
	tel, err := droverotel.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	end := func(_ context.Context, e drover.Event) { r.ended <- e }
	client, err := drover.New(r.pool, drover.Config{
		Middleware: []drover.Middleware{tel.Middleware()},
		Hooks: []drover.Hooks{tel.Hooks(), {
			Completed: end, Failed: end, Discarded: end, Snoozed: end, Cancelled: end, Released: end, StaleSettle: end,
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func (r *rig) enqueue(t *testing.T, ctx context.Context, do string, opts *drover.EnqueueOpts) string {
	t.Helper()
	receipt, err := r.client.Enqueue(ctx, work{do}, opts)
	if err != nil {
		t.Fatal(err)
	}
	return receipt.ID
}

// run starts a supervisor, waits for so many ends, and stops it.
func (r *rig) run(t *testing.T, client *drover.Client, ends int, handle func(context.Context, *drover.Job, work) error) (events []drover.Event) {
	t.Helper()
	sup, err := client.NewSupervisor(drover.SupervisorConfig{
		Queues:  []drover.Queue{{}},
		Workers: []drover.Worker{drover.Handle(handle, drover.WorkerOpts{Retry: drover.Constant{Delay: time.Millisecond}})},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- sup.Run(ctx) }()
	for range ends {
		events = append(events, <-r.ended)
	}
	stop()
	if err := <-over; err != nil {
		t.Fatal(err)
	}
	return events
}

func (r *rig) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := r.pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// metadata is what is stored of a job.
func (r *rig) metadata(t *testing.T, id string) map[string]any {
	t.Helper()
	var raw *string
	if err := r.pool.QueryRow(t.Context(), `select metadata::text from jobs where id = $1`, id).Scan(&raw); err != nil {
		t.Fatal(err)
	}
	if raw == nil {
		return nil
	}
	var all map[string]any
	if err := json.Unmarshal([]byte(*raw), &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// named returns the exported spans of a name, in the order of their ends.
func (r *rig) named(name string) (found []tracetest.SpanStub) {
	for _, span := range r.spans.GetSpans() {
		if span.Name == name {
			found = append(found, span)
		}
	}
	return found
}

// only is the one span of a name.
func (r *rig) only(t *testing.T, name string) tracetest.SpanStub {
	t.Helper()
	found := r.named(name)
	if len(found) != 1 {
		t.Fatalf("%d spans %q of %v", len(found), name, r.spans.GetSpans().Snapshots())
	}
	return found[0]
}

func attributes(list []attribute.KeyValue) map[string]string {
	all := map[string]string{}
	for _, a := range list {
		all[string(a.Key)] = a.Value.String()
	}
	return all
}

func expect(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	for key, value := range want {
		if got[key] != value {
			t.Errorf("%s: %s = %q, want %q", what, key, got[key], value)
		}
	}
	for key := range got {
		if _, found := want[key]; !found {
			t.Errorf("%s: %s = %q is not expected", what, key, got[key])
		}
	}
}

func nothing(context.Context, *drover.Job, work) error { return nil }

// A trace goes from the request through the enqueue and the metadata to the handler in another process, and on to what
// that enqueues.
func TestTraceGoesWithTheJob(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	ctx, request := r.tracer.Start(t.Context(), "request")
	id := r.enqueue(t, ctx, "", &drover.EnqueueOpts{Metadata: map[string]any{"own": 1}})
	request.End()

	consumer := r.newClient(t, r.opts)
	r.run(t, consumer, 2, func(ctx context.Context, job *drover.Job, w work) error {
		_, own := r.tracer.Start(ctx, "own")
		own.End()
		if w.Do == "" {
			_, err := consumer.Enqueue(ctx, work{"again"}, nil)
			return err
		}
		return nil
	})

	sends, runs, owns := r.named("send default"), r.named("process default"), r.named("own")
	if len(sends) != 2 || len(runs) != 2 || len(owns) != 2 {
		t.Fatalf("%d, %d and %d spans", len(sends), len(runs), len(owns))
	}
	if runs[0].SpanContext.SpanID() == owns[1].Parent.SpanID() {
		slices.Reverse(runs) // the second job may end first
	}
	trail := []tracetest.SpanStub{r.only(t, "request"), sends[0], runs[0], sends[1], runs[1], owns[1]}
	for i, span := range trail[1:] {
		if span.Parent.SpanID() != trail[i].SpanContext.SpanID() || span.SpanContext.TraceID() != request.SpanContext().TraceID() {
			t.Errorf("%s is not a child of %s", span.Name, trail[i].Name)
		}
	}
	if links := runs[0].Links; len(links) != 1 || links[0].SpanContext.SpanID() != sends[0].SpanContext.SpanID() {
		t.Errorf("the run links to %v", links)
	}
	if sends[0].SpanKind != trace.SpanKindProducer || runs[0].SpanKind != trace.SpanKindConsumer {
		t.Errorf("kinds %v and %v", sends[0].SpanKind, runs[0].SpanKind)
	}
	expect(t, "send", attributes(sends[0].Attributes), map[string]string{
		"messaging.system": "drover", "messaging.operation.name": "send", "messaging.operation.type": "send",
		"messaging.destination.name": "default", "messaging.message.id": id, "drover.kind": "work", "drover.in_tx": "false",
	})
	expect(t, "process", attributes(runs[0].Attributes), map[string]string{
		"messaging.system": "drover", "messaging.operation.name": "process", "messaging.operation.type": "process",
		"messaging.destination.name": "default", "messaging.message.id": id, "drover.kind": "work", "drover.attempt": "1",
		"drover.max_attempts": "20", "drover.verdict": "done",
	})
	stored := r.metadata(t, id)
	want := fmt.Sprintf("00-%s-%s-01", request.SpanContext().TraceID(), sends[0].SpanContext.SpanID())
	if len(stored) != 2 || stored["traceparent"] != want || stored["own"] != 1.0 {
		t.Errorf("metadata = %v", stored)
	}
}

// Each way a run can end, on its span.
func TestSpanOfEachEnd(t *testing.T) {
	t.Parallel()
	secret := errors.New("the secret is 42")
	for do, c := range map[string]struct {
		ends    func() error
		verdict string
		failed  string // error.type
		delay   string
		message string
	}{
		"done":    {func() error { return nil }, "done", "", "", ""},
		"fails":   {func() error { return fmt.Errorf("wrapped: %w", secret) }, "error", "error", "", "wrapped: the *** is 42"},
		"panics":  {func() error { panic("secret") }, "panic", "panic", "", "panic: ***"},
		"exits":   {func() error { runtime.Goexit(); return nil }, "error", "error", "", "handler called runtime.Goexit"},
		"snoozes": {func() error { return drover.Snooze(time.Hour) }, "snooze", "", "3600", ""},
		"cancels": {func() error { return drover.Cancel(secret) }, "cancel", "", "", ""},
		"discard": {func() error { return drover.Discard(secret) }, "discard", "discard", "", "the *** is 42"},
		"later":   {func() error { return drover.RetryAfter(time.Minute, secret) }, "retry_after", "retry_after", "60", "the *** is 42"},
		"retry":   {func() error { return drover.Retry(secret) }, "retry", "retry", "", "the *** is 42"},
		"spared":  {func() error { return drover.DontCount(errors.New("not now")) }, "dont_count", "dont_count", "", "not now"},
		"late":    {func() error { return context.DeadlineExceeded }, "error", "timeout", "", "context deadline exceeded"},
		"broken":  {func() error { return brokenError{} }, "error", "error", "", "(the text of the error panicked)"},
	} {
		t.Run(do, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(o *droverotel.Options) {
				o.Redact = func(s string) string { return strings.ReplaceAll(s, "secret", "***") }
			})
			r.enqueue(t, t.Context(), do, nil)
			r.exec(t, `update jobs set max_attempts = 2`)
			var first bool
			r.run(t, r.client, 1, func(ctx context.Context, _ *drover.Job, _ work) error {
				if first {
					<-ctx.Done()
					return ctx.Err()
				}
				first = true
				return c.ends()
			})
			span := r.named("process default")[0]
			got := attributes(span.Attributes)
			for key, want := range map[string]string{"drover.verdict": c.verdict, "error.type": c.failed, "drover.delay": c.delay} {
				if got[key] != want {
					t.Errorf("%s = %q, want %q", key, got[key], want)
				}
			}
			if (span.Status.Code == codes.Error) != (c.failed != "") || span.Status.Description != c.message {
				t.Errorf("status = %+v, want %q", span.Status, c.message)
			}
			if (len(span.Events) == 1) != (c.failed != "") {
				t.Fatalf("%d events", len(span.Events))
			}
			if c.failed == "" {
				return
			}
			exception := attributes(span.Events[0].Attributes)
			if span.Events[0].Name != "exception" || exception["exception.message"] != c.message {
				t.Errorf("%s %v", span.Events[0].Name, exception)
			}
			if stack := exception["exception.stacktrace"]; (do == "panics") != strings.Contains(stack, "spans_test.go") || strings.Contains(stack, "secret") {
				t.Errorf("stack %q", stack)
			}
			if do == "fails" && exception["exception.type"] != "*errors.errorString" {
				t.Errorf("type %q", exception["exception.type"])
			}
		})
	}
}

type brokenError struct{}

func (brokenError) Error() string { panic("no text") }

// A stop hands a run back: nobody's error.
func TestInterruptedRunIsNoError(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.enqueue(t, t.Context(), "", nil)
	sup, err := r.client.NewSupervisor(drover.SupervisorConfig{
		Queues: []drover.Queue{{}}, DrainTimeout: time.Millisecond,
		Workers: []drover.Worker{drover.Handle(func(ctx context.Context, _ *drover.Job, _ work) error {
			r.ended <- drover.Event{}
			<-ctx.Done()
			return ctx.Err()
		}, drover.WorkerOpts{})},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- sup.Run(ctx) }()
	<-r.ended
	stop()
	if err := <-over; err != nil {
		t.Fatal(err)
	}
	span := r.only(t, "process default")
	if got := attributes(span.Attributes); got["drover.interrupted"] != "shutdown" || got["error.type"] != "" || span.Status.Code != codes.Unset {
		t.Errorf("%v, status %v", got, span.Status)
	}
}

// All runs of a young job are in the trace of its enqueue; those of an old one have traces of their own, with a link.
func TestRetriesAndOldJobs(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	first := true
	fail := func(context.Context, *drover.Job, work) error {
		if first {
			first = false
			return errors.New("no")
		}
		return nil
	}
	r.enqueue(t, t.Context(), "", nil)
	r.run(t, r.client, 2, fail)
	send, runs := r.only(t, "send default"), r.named("process default")
	for i, run := range runs {
		if run.Parent.SpanID() != send.SpanContext.SpanID() || attributes(run.Attributes)["drover.attempt"] != fmt.Sprint(i+1) {
			t.Errorf("run %d: parent %v, %v", i+1, run.Parent, run.Attributes)
		}
	}

	r.spans.Reset()
	first = true
	id := r.enqueue(t, t.Context(), "", &drover.EnqueueOpts{ID: "01ARZ3NDEKTSV4RRFFQ69G5FAV"}) // of 2016
	if id != "01ARZ3NDEKTSV4RRFFQ69G5FAV" {
		t.Fatal(id)
	}
	r.run(t, r.client, 2, fail)
	send, runs = r.only(t, "send default"), r.named("process default")
	if len(runs) != 2 || runs[0].SpanContext.TraceID() == runs[1].SpanContext.TraceID() {
		t.Fatalf("%d runs in one trace", len(runs))
	}
	for _, run := range runs {
		if run.Parent.IsValid() || run.SpanContext.TraceID() == send.SpanContext.TraceID() || len(run.Links) != 1 ||
			run.Links[0].SpanContext.SpanID() != send.SpanContext.SpanID() {
			t.Errorf("parent %v, links %v", run.Parent, run.Links)
		}
	}
}

func TestNewTraceAndSpanName(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *droverotel.Options) {
		o.NewTrace = func(job *drover.Job, age time.Duration) bool { return job.Kind == "work" && age < time.Hour }
		o.SpanName = func(operation, queue, kind string) string { return operation + "/" + queue + "/" + kind }
	})
	r.enqueue(t, t.Context(), "", nil)
	r.run(t, r.client, 1, nothing)
	send, run := r.only(t, "send/default/work"), r.only(t, "process/default/work")
	if run.Parent.IsValid() || len(run.Links) != 1 || run.Links[0].SpanContext.TraceID() != send.SpanContext.TraceID() {
		t.Errorf("parent %v, links %v", run.Parent, run.Links)
	}
}

// What a producer decided about sampling holds for the run, and is kept in the metadata.
func TestSamplingOfTheProducerIsKept(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	sampled := r.client
	never := r.opts
	never.TracerProvider = sdktrace.NewTracerProvider(sdktrace.WithSyncer(r.spans), sdktrace.WithSampler(sdktrace.NeverSample()))
	r.client = r.newClient(t, never)
	id := r.enqueue(t, t.Context(), "", nil)
	if parent, _ := r.metadata(t, id)["traceparent"].(string); !strings.HasSuffix(parent, "-00") {
		t.Errorf("traceparent %q", parent)
	}
	r.run(t, sampled, 1, nothing)
	if spans := r.spans.GetSpans(); len(spans) != 0 {
		t.Errorf("%d spans of a trace that is not sampled", len(spans))
	}
}

// One call is one span, however many jobs it stores.
func TestBatchIsOneSpan(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	items := make([]drover.EnqueueItem, 50)
	for i := range items {
		items[i] = drover.EnqueueItem{Args: work{}}
	}
	items[3].Opts = &drover.EnqueueOpts{Queue: "other"}
	receipts, err := r.client.EnqueueMany(t.Context(), items)
	if err != nil {
		t.Fatal(err)
	}
	span := r.only(t, "send")
	expect(t, "send", attributes(span.Attributes), map[string]string{
		"messaging.system": "drover", "messaging.operation.name": "send", "messaging.operation.type": "send",
		"messaging.batch.message_count": "50", "drover.kind": "work", "drover.in_tx": "false",
	})
	for _, receipt := range receipts {
		if parent, _ := r.metadata(t, receipt.ID)["traceparent"].(string); !strings.Contains(parent, span.SpanContext.SpanID().String()) {
			t.Fatalf("traceparent %q", parent)
		}
	}
	if len(r.spans.GetSpans()) != 1 {
		t.Errorf("%d spans", len(r.spans.GetSpans()))
	}
}

// An enqueue that fails, one that finds its job, and one whose transaction rolls back.
func TestSpansOfEnqueues(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	if _, err := r.client.Enqueue(t.Context(), work{}, &drover.EnqueueOpts{Priority: 12}); err == nil {
		t.Fatal("no error")
	}
	span := r.only(t, "send default")
	if attributes(span.Attributes)["error.type"] != "invalid" || span.Status.Code != codes.Error {
		t.Errorf("%v %v", span.Attributes, span.Status)
	}

	r.spans.Reset()
	opts := &drover.EnqueueOpts{ID: "01ARZ3NDEKTSV4RRFFQ69G5FAV"}
	r.enqueue(t, t.Context(), "", opts)
	r.enqueue(t, t.Context(), "", opts)
	if found := r.named("send default"); attributes(found[0].Attributes)["drover.existing"] != "" || attributes(found[1].Attributes)["drover.existing"] != "1" {
		t.Errorf("%v", found)
	}

	r.spans.Reset()
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	receipt, err := r.client.EnqueueTx(t.Context(), tx, work{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := attributes(r.only(t, "send default").Attributes)
	if got["drover.in_tx"] != "true" || got["messaging.message.id"] != receipt.ID {
		t.Errorf("%v", got)
	}
	r.spans.Reset()
	r.run(t, r.client, 1, nothing) // of the job that was there
	if run := r.only(t, "process default"); attributes(run.Attributes)["messaging.message.id"] == receipt.ID {
		t.Error("a job ran that was rolled back")
	}
}

// Jobs without a context, or with one that somebody has made up, run in traces of their own.
func TestMetadataOfOthers(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("0", 100<<10)
	for name, metadata := range map[string]string{
		"none": `null`, "empty": `{}`, "number": `{"traceparent": 1}`, "object": `{"traceparent": {"a": []}}`, "null": `{"traceparent": null}`,
		"text": `{"traceparent": "no"}`, "long": `{"traceparent": "` + long + `"}`, "zero": `{"traceparent": "00-` + long[:32] + `-` + long[:16] + `-01"}`,
		"newline": `{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n"}`, "state": `{"tracestate": "a=b"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			r.exec(t, `insert into jobs (kind, args, metadata) values ('work', '{}', nullif($1, 'null')::jsonb)`, metadata)
			if e := r.run(t, r.client, 1, nothing)[0]; e.JobID == "" || e.Error != "" {
				t.Errorf("event %+v", e)
			}
			if span := r.only(t, "process default"); span.Parent.IsValid() || len(span.Links) != 0 {
				t.Errorf("parent %v, links %v", span.Parent, span.Links)
			}
		})
	}
}

// SQL can hand over a trace.
func TestTraceFromSQL(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.exec(t, `insert into jobs (kind, args, metadata) values ('work', '{}', '{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}')`)
	r.run(t, r.client, 1, nothing)
	if span := r.only(t, "process default"); span.SpanContext.TraceID().String() != "0af7651916cd43dd8448eb211c80319c" {
		t.Errorf("trace %v", span.SpanContext.TraceID())
	}
}

// A job of a schedule has no producer, and its run a trace of its own.
func TestPeriodicJobsBeginTraces(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	sup, err := r.client.NewSupervisor(drover.SupervisorConfig{
		Queues:   []drover.Queue{{}},
		Workers:  []drover.Worker{drover.Handle(nothing, drover.WorkerOpts{})},
		Periodic: []drover.Periodic{{Name: "often", Schedule: "@every 1s", Args: work{}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- sup.Run(ctx) }()
	<-r.ended
	stop()
	if err := <-over; err != nil {
		t.Fatal(err)
	}
	if span := r.named("process default")[0]; span.Parent.IsValid() || len(span.Links) != 0 || len(r.named("send default")) != 0 {
		t.Errorf("parent %v, links %v", span.Parent, span.Links)
	}
}

// fixed is a propagator that writes what it is given.
type fixed map[string]string

func (f fixed) Inject(_ context.Context, c propagation.TextMapCarrier) {
	for key, value := range f {
		c.Set(key, value)
	}
}

func (fixed) Extract(ctx context.Context, _ propagation.TextMapCarrier) context.Context { return ctx }

func (fixed) Fields() []string { return []string{"a", "b"} }

// What cannot be injected leaves the job alone.
func TestInjectionIsBounded(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("x", 65520)
	for name, c := range map[string]struct {
		writes fixed
		own    map[string]any
		want   []string
	}{
		"plain":    {fixed{"a": "1"}, nil, []string{"a"}},
		"taken":    {fixed{"a": "1", "b": "2"}, map[string]any{"a": 7}, []string{"a"}},
		"dynamic":  {fixed{"c": "1"}, map[string]any{"c": 7}, []string{"c"}},
		"nul":      {fixed{"a": "1\x00", "b": "2"}, nil, []string{"b"}},
		"utf8":     {fixed{"a": "\xff"}, nil, nil},
		"ours":     {fixed{"drover:periodic": "1"}, nil, nil},
		"long":     {fixed{"a": strings.Repeat("x", 8<<10+1), "b": "2"}, nil, []string{"b"}},
		"full":     {fixed{"a": "12345678"}, map[string]any{"own": big}, []string{"own"}},
		"room":     {fixed{"a": "1"}, map[string]any{"own": big[:30000], "more": []string{"x"}}, []string{"a", "more", "own"}},
		"not JSON": {fixed{"a": "1"}, map[string]any{"own": json.RawMessage(`"` + big[:10] + `"`)}, []string{"a", "own"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(o *droverotel.Options) { o.Propagator = c.writes })
			stored := r.metadata(t, r.enqueue(t, t.Context(), "", &drover.EnqueueOpts{Metadata: c.own}))
			var keys []string
			for key := range stored {
				keys = append(keys, key)
			}
			slices.Sort(keys)
			if !slices.Equal(keys, c.want) || stored["a"] != nil && c.own["a"] != nil && stored["a"] != 7.0 {
				t.Errorf("metadata has %v, want %v", keys, c.want)
			}
		})
	}
}

// Baggage stays out of the table unless the application asks for it.
func TestBaggageIsNotStored(t *testing.T) {
	t.Parallel()
	for _, asked := range []bool{false, true} {
		r := newRig(t, func(o *droverotel.Options) {
			if asked {
				o.Propagator = propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})
			}
		})
		ctx := propagation.Baggage{}.Extract(t.Context(), propagation.MapCarrier{"baggage": "customer=7"})
		stored := r.metadata(t, r.enqueue(t, ctx, "", nil))
		if _, found := stored["baggage"]; found != asked || stored["traceparent"] == nil {
			t.Errorf("asked %t: metadata %v", asked, stored)
		}
	}
}
