package droverotel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/meters"
)

// Options are the settings of a Telemetry. The zero value is a good start.
type Options struct {
	// TracerProvider makes the spans. Nil means the global provider, even if that is set later.
	TracerProvider trace.TracerProvider

	// MeterProvider makes the instruments. Nil means the global provider, even if that is set later.
	MeterProvider metric.MeterProvider

	// Propagator carries the context of an enqueue in the job's metadata. Nil means propagation.TraceContext{}:
	// traceparent and tracestate of the W3C. The global propagator is not used: in most applications it also carries
	// baggage, and metadata stay in a table. An empty composite carries nothing.
	Propagator propagation.TextMapPropagator

	// SkipUnsampled stores nothing for an enqueue whose trace is not sampled, so its jobs cost less: docs/tracing.md has
	// figures. The runs of these jobs begin traces of their own, and the sampler decides about each trace. Set it if that
	// sampler records few of the traces that begin in this process, such as TraceIDRatioBased(0.01) of the SDK. By default
	// the decision of the enqueue is stored, and the runs follow it.
	SkipUnsampled bool

	// NewTrace reports whether a run begins a trace of its own, which links to the enqueue, instead of continuing the
	// trace of the enqueue. The parameter age is the time since the enqueue, by the id of the job. Nil means that a run
	// begins a trace of its own if the enqueue was more than an hour ago.
	NewTrace func(job *drover.Job, age time.Duration) bool

	// SpanName returns the name of a span. operation is send or process. If a batch has several kinds, kind is empty. If
	// it has several queues, queue is empty. Nil means the name by the conventions, which is operation and queue, such as
	// "process payments".
	SpanName func(operation, queue, kind string) string

	// Redact removes secrets from error texts and stacks before they become part of a span. Nil keeps them as they are.
	// Set it to the function that drover.Config.Redact has. If it panics, a fixed text replaces the whole text.
	Redact func(string) string

	// MaxKinds is how many kinds get an attribute of their own in metrics. All later kinds share the value
	// "other". Zero means 1000.
	MaxKinds int

	// MaxQueues is how many queues get an attribute of their own in metrics. Other queues share the value "other". Zero
	// means 100. Gauges of the database name the first queues in the order of their names, so set the same value in
	// each process that watches the database.
	MaxQueues int

	// MaxAge is how long collections of metrics use the values of one read of the database. Zero means 5 s.
	MaxAge time.Duration

	// Timeout ends a read of the database. Zero means 5 s.
	Timeout time.Duration
}

func (o Options) withDefaults() (Options, error) {
	if o.MaxKinds < 0 || o.MaxQueues < 0 || o.MaxAge < 0 || o.Timeout < 0 {
		return o, errors.New("droverotel: Options: MaxKinds, MaxQueues, MaxAge and Timeout must not be negative")
	}
	if o.TracerProvider == nil {
		o.TracerProvider = otel.GetTracerProvider()
	}
	if o.MeterProvider == nil {
		o.MeterProvider = otel.GetMeterProvider()
	}
	if o.Propagator == nil {
		o.Propagator = propagation.TraceContext{}
	}
	if o.NewTrace == nil {
		o.NewTrace = func(_ *drover.Job, age time.Duration) bool { return age > time.Hour }
	}
	if o.SpanName == nil {
		o.SpanName = conventional
	}
	o.MaxKinds = cmp.Or(o.MaxKinds, 1000)
	o.MaxQueues = cmp.Or(o.MaxQueues, 100)
	o.MaxAge = cmp.Or(o.MaxAge, 5*time.Second)
	o.Timeout = cmp.Or(o.Timeout, 5*time.Second)
	return o, nil
}

// conventional returns the name of a span by the conventions.
func conventional(operation, queue, _ string) string {
	if queue == "" {
		return operation
	}
	return operation + " " + queue
}

// scope is the instrumentation scope of the spans and instruments.
const scope = "github.com/drover-queue/drover/otel"

// schema is the version of the conventions that the names follow.
const schema = "https://opentelemetry.io/schemas/1.43.0"

// Telemetry makes the spans and measurements of clients. Its methods may be called at any time, from any
// goroutine. It starts no goroutine.
//
// If a provider, exporter, propagator or function of Options panics, its span or measurement is
// lost, and the job goes on. OpenTelemetry's error handler gets the panic, at most once a minute.
type Telemetry struct {
	opts          Options
	fields        []string // the fields of metadata that the propagator writes
	tracer        trace.Tracer
	instruments   *instruments
	kinds, queues *meters.Names
	named         bool // Options.SpanName is set
	ran           sync.RWMutex
	runs          map[[2]string]*runs // the key is queue and kind
	process       meters.Process
	database      meters.Database
	reported      atomic.Int64 // when the last panic was, in seconds
}

// New makes a Telemetry. It fails if an option is negative, or if a provider fails, panics, or returns nil.
func New(opts Options) (t *Telemetry, err error) {
	defer func() {
		if p := recover(); p != nil {
			t, err = nil, fmt.Errorf("droverotel: a provider or the propagator panicked: %v", p)
		}
	}()
	named := opts.SpanName != nil
	if opts, err = opts.withDefaults(); err != nil {
		return nil, err
	}
	t = &Telemetry{
		named: named, runs: map[[2]string]*runs{},
		opts: opts, fields: opts.Propagator.Fields(), tracer: opts.TracerProvider.Tracer(scope, trace.WithSchemaURL(schema)),
		kinds: &meters.Names{Most: opts.MaxKinds}, queues: &meters.Names{Most: opts.MaxQueues},
	}
	if t.tracer == nil {
		return nil, errors.New("droverotel: Options.TracerProvider returned no tracer")
	}
	t.database.MaxAge, t.database.Timeout, t.database.MostQueues = opts.MaxAge, opts.Timeout, opts.MaxQueues
	meter := opts.MeterProvider.Meter(scope, metric.WithSchemaURL(schema))
	if meter == nil {
		return nil, errors.New("droverotel: Options.MeterProvider returned no meter")
	}
	if t.instruments, err = newInstruments(meter); err == nil {
		err = t.observe(meter)
	}
	if err != nil {
		return nil, fmt.Errorf("droverotel: %w", err)
	}
	return t, nil
}

// Middleware makes the spans, puts the context of an enqueue into the job's metadata, and makes the measurements that
// belong to spans. Put it first in drover.Config.Middleware, so that its spans cover the others.
func (t *Telemetry) Middleware() drover.Middleware {
	return drover.Middleware{BeginEnqueue: t.beginEnqueue, Enqueue: t.inject, Run: t.run}
}

// Hooks returns the hooks for drover.Config.Hooks. They count and measure each event.
func (t *Telemetry) Hooks() drover.Hooks { return meters.Hooks(t.kinds, t.queues, t.count) }

// Watch makes each collection of metrics read the client's database: depths, ages, supervisors, pauses, redrives,
// findings. Another call replaces the client; with nil, collections read no database any more.
func (t *Telemetry) Watch(client *drover.Client) { t.database.Watch(client) }

// WatchSupervisor makes each collection of metrics read a supervisor of this process: its health, the handlers that it
// runs, and the events that a slow hook missed. Call it once for each supervisor.
func (t *Telemetry) WatchSupervisor(sup *drover.Supervisor) { t.process.Watch(sup) }

// guard recovers a panic of the application's telemetry. Each function that calls telemetry defers it.
func (t *Telemetry) guard() {
	if p := recover(); p != nil {
		t.report(p)
	}
}

func (t *Telemetry) report(p any) {
	now := time.Now().Unix()
	last := t.reported.Load()
	if now-last < 60 || !t.reported.CompareAndSwap(last, now) {
		return
	}
	defer func() { _ = recover() }() // the error handler belongs to the application, and so may the text of p
	otel.Handle(fmt.Errorf("droverotel: telemetry panicked, jobs go on: %v", p))
}

// start begins a span. If the tracer returns no span or no context, start returns ctx and a span that does nothing.
func (t *Telemetry) start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	inner, span := t.tracer.Start(ctx, name, opts...)
	if span == nil || inner == nil {
		return ctx, noop.Span{}
	}
	return inner, span
}
