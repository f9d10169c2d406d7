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

// work is the usual kind of job. Do selects what its handler does.
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
	return newRigOn(t, pgtest.NewMigratedPool(t), edit)
}

// newRigOn uses a schema that exists: a new one takes longer than most tests.
func newRigOn(t *testing.T, pool *pgxpool.Pool, edit func(*droverotel.Options)) *rig {
	t.Helper()
	r := &rig{pool: pool, spans: tracetest.NewInMemoryExporter(), ended: make(chan drover.Event, 100)}
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
	return r.runWorkers(t, client, ends, drover.Handle(handle, drover.WorkerOpts{Retry: drover.Constant{Delay: time.Millisecond}}))
}

func (r *rig) runWorkers(t *testing.T, client *drover.Client, ends int, workers ...drover.Worker) (events []drover.Event) {
	t.Helper()
	sup, err := client.NewSupervisor(drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: workers})
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

// metadata returns the stored metadata of a job.
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

// runOf returns the last span of a job's run.
func (r *rig) runOf(t *testing.T, jobID string) (last tracetest.SpanStub) {
	t.Helper()
	for _, span := range r.spans.GetSpans() {
		if span.SpanKind == trace.SpanKindConsumer && attributes(span.Attributes)["messaging.message.id"] == jobID {
			last = span
		}
	}
	if last.Name == "" {
		t.Fatalf("no run of %s in %v", jobID, r.spans.GetSpans().Snapshots())
	}
	return last
}

// only returns the one span of a name.
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

// Each way in which a run can end, on its span.
func TestSpanOfEachEnd(t *testing.T) {
	t.Parallel()
	secret := errors.New("the secret is 42")
	type end struct {
		ends    func() error
		verdict string
		failed  string // error.type
		delay   string
		message string
	}
	cases := map[string]end{
		"done":    {func() error { return nil }, "done", "", "", ""},
		"fails":   {func() error { return fmt.Errorf("wrapped: %w", secret) }, "error", "error", "", "wrapped: the *** is 42"},
		"panics":  {func() error { panic("secret") }, "panic", "panic", "", "panic: ***"},
		"exits":   {func() error { runtime.Goexit(); return nil }, "panic", "panic", "", "handler called runtime.Goexit"},
		"snoozes": {func() error { return drover.Snooze(time.Hour) }, "snooze", "", "3600", ""},
		"cancels": {func() error { return drover.Cancel(secret) }, "cancel", "", "", ""},
		"discard": {func() error { return drover.Discard(secret) }, "discard", "discard", "", "the *** is 42"},
		"later":   {func() error { return drover.RetryAfter(time.Minute, secret) }, "retry_after", "retry_after", "60", "the *** is 42"},
		"retry":   {func() error { return drover.Retry(secret) }, "retry", "retry", "", "the *** is 42"},
		"spared":  {func() error { return drover.DontCount(errors.New("not now")) }, "dont_count", "dont_count", "", "not now"},
		"theirs":  {func() error { return context.DeadlineExceeded }, "error", "error", "", "context deadline exceeded"},
		"broken":  {func() error { return brokenError{} }, "error", "error", "", "(the text of the error panicked)"},
	}
	r := newRig(t, func(o *droverotel.Options) {
		o.Redact = func(s string) string { return strings.ReplaceAll(s, "secret", "***") }
	})
	ids := map[string]string{}
	for do := range cases {
		ids[do] = r.enqueue(t, t.Context(), do, nil)
	}
	classes := map[string]drover.Class{}
	for _, e := range r.runWorkers(t, r.client, len(cases), drover.Handle(func(_ context.Context, _ *drover.Job, w work) error {
		return cases[w.Do].ends()
	}, drover.WorkerOpts{Retry: drover.Constant{Delay: time.Hour}})) {
		classes[e.JobID] = e.Class
	}
	for do, c := range cases {
		span := r.runOf(t, ids[do])
		got := attributes(span.Attributes)
		for key, want := range map[string]string{"drover.verdict": c.verdict, "error.type": c.failed, "drover.delay": c.delay, "drover.interrupted": ""} {
			if got[key] != want {
				t.Errorf("%s: %s = %q, want %q", do, key, got[key], want)
			}
		}
		if (classes[ids[do]] == drover.ClassPanic) != (c.failed == "panic") {
			t.Errorf("%s: the event has the class %q", do, classes[ids[do]])
		}
		if (span.Status.Code == codes.Error) != (c.failed != "") || span.Status.Description != c.message {
			t.Errorf("%s: status = %+v, want %q", do, span.Status, c.message)
		}
		if (len(span.Events) == 1) != (c.failed != "") {
			t.Fatalf("%s: %d events", do, len(span.Events))
		}
		if c.failed == "" {
			continue
		}
		exception := attributes(span.Events[0].Attributes)
		if span.Events[0].Name != "exception" || exception["exception.message"] != c.message {
			t.Errorf("%s: %s %v", do, span.Events[0].Name, exception)
		}
		if stack := exception["exception.stacktrace"]; (c.failed == "panic") != strings.Contains(stack, "spans_test.go") || strings.Contains(stack, "secret") {
			t.Errorf("%s: stack %q", do, stack)
		}
		if do == "fails" && exception["exception.type"] != "*errors.errorString" {
			t.Errorf("type %q", exception["exception.type"])
		}
	}
}

type brokenError struct{}

func (brokenError) Error() string { panic("no text") }

type permanentError struct{ error }

func (permanentError) Permanent() bool { return true }

// drover hands a run back that a stop has cut short, so the span is no error. An only attempt that was cut short has
// failed, though, and a Discard of the handler's counts.
func TestInterruptedRuns(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	jobs := map[string]struct {
		attempts int
		ends     func(context.Context) error
		outcome  string // of the job
		failed   string // error.type
	}{
		"stopped":      {5, func(ctx context.Context) error { return ctx.Err() }, "available", ""},
		"permanent":    {5, func(ctx context.Context) error { return permanentError{ctx.Err()} }, "available", ""},
		"only attempt": {1, func(ctx context.Context) error { return ctx.Err() }, "discarded", "error"},
		"discards":     {5, func(context.Context) error { return drover.Discard(errors.New("bad")) }, "discarded", "discard"},
		"gives up":     {5, func(ctx context.Context) error { return drover.Discard(ctx.Err()) }, "available", ""},
	}
	ids := map[string]string{}
	for name, j := range jobs {
		ids[name] = r.enqueue(t, t.Context(), name, &drover.EnqueueOpts{MaxAttempts: j.attempts})
	}
	started := make(chan struct{}, len(jobs))
	sup, err := r.client.NewSupervisor(drover.SupervisorConfig{
		Queues: []drover.Queue{{}}, DrainTimeout: time.Millisecond,
		Workers: []drover.Worker{drover.Handle(func(ctx context.Context, _ *drover.Job, w work) error {
			started <- struct{}{}
			<-ctx.Done()
			return jobs[w.Do].ends(ctx)
		}, drover.WorkerOpts{})},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- sup.Run(ctx) }()
	for range jobs {
		<-started
	}
	stop()
	if err := <-over; err != nil {
		t.Fatal(err)
	}
	for name, j := range jobs {
		var state string
		if err := r.pool.QueryRow(t.Context(), `select state from jobs where id = $1`, ids[name]).Scan(&state); err != nil {
			t.Fatal(err)
		}
		span := r.runOf(t, ids[name])
		interrupted := "shutdown"
		if name == "discards" {
			interrupted = ""
		}
		got := attributes(span.Attributes)
		if state != j.outcome || got["drover.interrupted"] != interrupted || got["error.type"] != j.failed || (span.Status.Code == codes.Error) != (j.failed != "") {
			t.Errorf("%s: the job is %s, the span has %v, status %v", name, state, got, span.Status)
		}
	}
}

// The other causes of a context that ends, as a handler's context has them.
func TestCausesOfInterruptions(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewInMemoryExporter()
	run := newTelemetry(t, droverotel.Options{TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))}).Middleware().Run
	cancelledBy := func(cause error) context.Context {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		return ctx
	}
	late, cancel := context.WithDeadlineCause(t.Context(), time.Now().Add(-time.Hour), errors.New("drover: run timed out"))
	defer cancel()
	for _, c := range []struct {
		ctx                 context.Context
		attempts            int
		interrupted, failed string
	}{
		{cancelledBy(drover.ErrLeaseLost), 2, "lease_lost", ""},
		{cancelledBy(drover.ErrLeaseLost), 1, "lease_lost", "error"},
		{cancelledBy(drover.ErrCancelled), 2, "cancelled", ""},
		{cancelledBy(drover.ErrCancelled), 1, "cancelled", ""},
		{cancelledBy(errors.New("own")), 2, "", "error"},
		{late, 2, "", "timeout"},
	} {
		spans.Reset()
		_ = run(c.ctx, &drover.Job{MaxAttempts: c.attempts}, func(ctx context.Context) error { return fmt.Errorf("stopped: %w", ctx.Err()) })
		got := attributes(spans.GetSpans()[0].Attributes)
		if got["drover.interrupted"] != c.interrupted || got["error.type"] != c.failed {
			t.Errorf("%v with %d attempts: %v", context.Cause(c.ctx), c.attempts, got)
		}
	}
}

// A middleware further in that returns early does not end the span before the handler.
func TestSpanCoversTheHandler(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	end := func(_ context.Context, e drover.Event) { r.ended <- e }
	entered, returned := make(chan struct{}), make(chan struct{})
	client, err := drover.New(r.pool, drover.Config{
		Hooks: []drover.Hooks{{Completed: end, Failed: end}},
		Middleware: []drover.Middleware{
			newTelemetry(t, r.opts).Middleware(),
			{Run: func(ctx context.Context, _ *drover.Job, next func(context.Context) error) error {
				defer close(returned)
				go func() { _ = next(ctx) }()
				<-entered
				return nil
			}},
			{Run: func(ctx context.Context, _ *drover.Job, next func(context.Context) error) error {
				close(entered)
				return next(ctx)
			}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	r.enqueue(t, t.Context(), "", nil)
	r.run(t, client, 1, func(ctx context.Context, _ *drover.Job, _ work) error {
		<-returned
		_, own := r.tracer.Start(ctx, "own")
		own.End()
		return nil
	})
	run, own := r.only(t, "process default"), r.only(t, "own")
	if own.Parent.SpanID() != run.SpanContext.SpanID() || own.EndTime.After(run.EndTime) {
		t.Errorf("the handler's span ends at %v, the run's at %v", own.EndTime, run.EndTime)
	}
}

// All runs of a young job are in the trace of its enqueue. Runs of an old job have traces of their own, with a link.
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

// The sampling decision of the producer holds for the run. The metadata keep it.
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

// With SkipUnsampled, jobs of traces that are not sampled have no metadata, and their runs begin traces.
func TestSkipUnsampled(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *droverotel.Options) { o.SkipUnsampled = true })
	never := r.opts
	never.TracerProvider = sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
	sampled, unsampled := r.client, r.newClient(t, never)
	r.client = unsampled
	skipped := r.enqueue(t, t.Context(), "", nil)
	r.client = sampled
	kept := r.enqueue(t, t.Context(), "", nil)
	if none, some := r.metadata(t, skipped), r.metadata(t, kept); none != nil || some["traceparent"] == nil {
		t.Errorf("metadata %v and %v", none, some)
	}
	r.run(t, sampled, 2, nothing)
	if run := r.runOf(t, skipped); run.Parent.IsValid() || len(run.Links) != 0 {
		t.Errorf("parent %v", run.Parent)
	}
	if run := r.runOf(t, kept); run.Parent.SpanID() != r.only(t, "send default").SpanContext.SpanID() {
		t.Errorf("parent %v", run.Parent)
	}
}

// If the caller has set a part of the trace, the enqueue adds no other part of its own.
func TestTraceOfTheCallerIsNotMixed(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	state, err := trace.ParseTraceState("a=1")
	if err != nil {
		t.Fatal(err)
	}
	ctx := trace.ContextWithRemoteSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled, TraceState: state,
	}))
	own := r.enqueue(t, ctx, "", &drover.EnqueueOpts{Metadata: map[string]any{"traceparent": "mine"}})
	other := r.enqueue(t, ctx, "", nil)
	if mine := r.metadata(t, own); mine["traceparent"] != "mine" || mine["tracestate"] != nil {
		t.Errorf("metadata %v", mine)
	}
	if theirs := r.metadata(t, other); theirs["tracestate"] != "a=1" {
		t.Errorf("metadata %v", theirs)
	}
}

// How a span begins is made once for each queue and kind.
func TestSpansOfTwoQueues(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewInMemoryExporter()
	tel := newTelemetry(t, droverotel.Options{TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))})
	run := tel.Middleware().Run
	for _, queue := range []string{"a", "b", "a"} {
		if err := run(t.Context(), &drover.Job{Queue: queue, Kind: "k"}, func(context.Context) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, span := range spans.GetSpans() {
		got = append(got, span.Name+" of "+attributes(span.Attributes)["messaging.destination.name"])
	}
	if want := []string{"process a of a", "process b of b", "process a of a"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
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

// Enqueues that fail, find their job, or are rolled back.
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
	if _, err := r.pool.Exec(t.Context(), `alter table jobs add constraint mine check (queue <> 'closed')`); err != nil {
		t.Fatal(err)
	}
	if _, err := r.client.Enqueue(t.Context(), work{}, &drover.EnqueueOpts{Queue: "closed"}); err == nil {
		t.Fatal("no error")
	}
	if got := attributes(r.only(t, "send closed").Attributes)["error.type"]; got != "23514" {
		t.Errorf("error.type is %q, want the SQLSTATE", got)
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

// Metadata of jobs from SQL may be anything. The jobs run all the same: in the trace that the metadata name, or in a new one
// if nobody can read it.
func TestMetadataOfOthers(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("0", 100<<10)
	const theirs = "0af7651916cd43dd8448eb211c80319c"
	r := newRig(t, nil)
	ids := map[string]string{}
	rows := map[string]string{
		"none": `null`, "empty": `{}`, "number": `{"traceparent": 1}`, "object": `{"traceparent": {"a": []}}`, "null": `{"traceparent": null}`,
		"text": `{"traceparent": "no"}`, "long": `{"traceparent": "` + long + `"}`, "zero": `{"traceparent": "00-` + long[:32] + `-` + long[:16] + `-01"}`,
		"newline": `{"traceparent": "00-` + theirs + `-b7ad6b7169203331-01\n"}`, "state": `{"tracestate": "a=b"}`,
		"good": `{"traceparent": "00-` + theirs + `-b7ad6b7169203331-01"}`, "quote": `{"traceparent": "00-` + theirs[:30] + `\"-b7ad6b7169203331-01"}`,
	}
	for name, metadata := range rows {
		var id string
		err := r.pool.QueryRow(t.Context(), `insert into jobs (kind, args, metadata) values ('work', '{}', nullif($1, 'null')::jsonb) returning id`, metadata).Scan(&id)
		if err != nil {
			t.Fatal(err)
		}
		ids[name] = id
	}
	for _, e := range r.run(t, r.client, len(rows), nothing) {
		if e.Error != "" {
			t.Errorf("event %+v", e)
		}
	}
	for name, id := range ids {
		span := r.runOf(t, id)
		if good := name == "good"; span.Parent.IsValid() != good || (len(span.Links) == 1) != good || (span.SpanContext.TraceID().String() == theirs) != good {
			t.Errorf("%s: parent %v, links %v", name, span.Parent, span.Links)
		}
	}
}

// failed is the kind of a follow-up.
type failed struct{ drover.DiscardedJob }

func (failed) Kind() string { return "failed" }

// The database makes the jobs of schedules and follow-ups. They have no enqueue, so their runs begin traces. A rerun has the
// metadata of the old job, so it is in the old job's trace.
func TestJobsOfTheDatabase(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	worker := drover.Handle(func(_ context.Context, _ *drover.Job, w work) error {
		if w.Do == "dies" {
			return drover.Discard(errors.New("no"))
		}
		return nil
	}, drover.WorkerOpts{FollowUp: &drover.FollowUp{Kind: "failed"}})
	audit := drover.Audit{By: "test"}
	if err := r.client.SetPeriodic(t.Context(), drover.Periodic{Name: "often", Schedule: "@every 24h", Args: work{}}, audit); err != nil {
		t.Fatal(err)
	}
	scheduled, err := r.client.RunPeriodic(t.Context(), "often", nil, audit)
	if err != nil {
		t.Fatal(err)
	}
	old := r.enqueue(t, t.Context(), "", nil)
	dies := r.enqueue(t, t.Context(), "dies", nil)
	followUp := ""
	workers := []drover.Worker{worker, drover.Handle(func(_ context.Context, job *drover.Job, f failed) error {
		if f.JobID == dies {
			followUp = job.ID
		}
		return nil
	}, drover.WorkerOpts{})}
	r.runWorkers(t, r.client, 4, workers...)
	again, err := r.client.Rerun(t.Context(), old, nil, audit)
	if err != nil {
		t.Fatal(err)
	}
	r.runWorkers(t, r.client, 1, workers...)

	for _, id := range []string{scheduled, followUp} {
		if span := r.runOf(t, id); span.Parent.IsValid() || len(span.Links) != 0 {
			t.Errorf("%s: parent %v, links %v", attributes(span.Attributes)["drover.kind"], span.Parent, span.Links)
		}
	}
	if was, is := r.runOf(t, old), r.runOf(t, again.ID); again.ID == old || is.Parent.SpanID() != was.Parent.SpanID() || len(is.Links) != 1 {
		t.Errorf("the rerun has the parent %v, the old run %v", is.Parent, was.Parent)
	}
	if sends := r.named("send default"); len(sends) != 2 {
		t.Errorf("%d sends", len(sends))
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

// A field that cannot be injected changes nothing of the job.
func TestInjectionIsBounded(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("x", 65520)
	pool := pgtest.NewMigratedPool(t)
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
			r := newRigOn(t, pool, func(o *droverotel.Options) { o.Propagator = c.writes })
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
	pool := pgtest.NewMigratedPool(t)
	for _, asked := range []bool{false, true} {
		r := newRigOn(t, pool, func(o *droverotel.Options) {
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
