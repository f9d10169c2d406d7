package droverotel_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/bench/overhead"
	droverotel "github.com/drover-queue/drover/otel"
)

// onePercent is an SDK as most services have it: it samples 1 % of traces, exports spans in batches, and collects metrics.
func onePercent(b *testing.B) droverotel.Options {
	b.Helper()
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(.01))),
		sdktrace.WithBatcher(tracetest.NewNoopExporter()))
	reader := sdkmetric.NewManualReader()
	b.Cleanup(func() { _ = tracers.Shutdown(context.Background()) })
	return droverotel.Options{TracerProvider: tracers, MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), Timeout: time.Minute}
}

// The share of the rate that is left with spans and measurements.
func BenchmarkOverhead(b *testing.B) {
	for name, skip := range map[string]bool{"default": false, "SkipUnsampled": true} {
		b.Run(name, func(b *testing.B) {
			overhead.Compare(b, 40_000, func(b *testing.B) drover.Config {
				b.Helper()
				opts := onePercent(b)
				opts.SkipUnsampled = skip
				tel, err := droverotel.New(opts)
				if err != nil {
					b.Fatal(err)
				}
				return drover.Config{Middleware: []drover.Middleware{tel.Middleware()}, Hooks: []drover.Hooks{tel.Hooks()}}
			})
		})
	}
}

// The cost of the middleware itself, without the database. docs/tracing.md has the figures.
func BenchmarkMiddleware(b *testing.B) {
	for name, opts := range map[string]droverotel.Options{
		"none":      {},
		"sdk at 1%": onePercent(b),
	} {
		tel, err := droverotel.New(opts)
		if err != nil {
			b.Fatal(err)
		}
		m := tel.Middleware()
		items := []drover.EnqueueItem{{Args: work{}}}
		receipts := []drover.Receipt{{ID: "01ARZ3NDEKTSV4RRFFQ69G5FAV"}}
		b.Run(name+"/enqueue", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				ctx, end := m.BeginEnqueue(b.Context(), drover.EnqueueCall{Items: items})
				item := drover.EnqueueItem{Args: work{}, Opts: &drover.EnqueueOpts{Metadata: map[string]any{}}}
				_ = m.Enqueue(ctx, &item)
				end(receipts, nil)
			}
		})
		for run, job := range map[string]*drover.Job{"run": unsampled(traceparent), "run without metadata": unsampled("")} {
			b.Run(name+"/"+run, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					_ = m.Run(b.Context(), job, func(context.Context) error { return nil })
				}
			})
		}
	}
}

const traceparent = `{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"}`

// unsampled is a job that was just enqueued.
func unsampled(metadata string) *drover.Job {
	return &drover.Job{ID: ulid.Make().String(), Kind: "work", Queue: "default", Attempt: 1, Metadata: []byte(metadata)}
}

// asked counts how often a job's context is written and read.
type asked struct {
	propagation.TraceContext
	written atomic.Int64
}

func (a *asked) Inject(ctx context.Context, c propagation.TextMapCarrier) {
	a.written.Add(1)
	a.TraceContext.Inject(ctx, c)
}

// The jobs of a call get the same context, so the propagator writes it once. The next call gets its own.
func TestContextIsWrittenOnceForACall(t *testing.T) {
	t.Parallel()
	propagator := &asked{}
	r := newRig(t, func(o *droverotel.Options) { o.Propagator = propagator })
	parents := map[any]bool{}
	for range 2 {
		receipts, err := r.client.EnqueueMany(t.Context(), slices.Repeat([]drover.EnqueueItem{{Args: work{}}}, 30))
		if err != nil {
			t.Fatal(err)
		}
		for _, receipt := range receipts {
			parents[r.metadata(t, receipt.ID)["traceparent"]] = true
		}
	}
	if n := propagator.written.Load(); n != 2 || len(parents) != 2 || parents[nil] {
		t.Errorf("written %d times for two calls, as %v", n, parents)
	}
}

// A run of a trace that is not sampled allocates little more than OpenTelemetry does: the traceparent, its carrier, and the
// options of the span. Without a traceparent, only OpenTelemetry allocates.
func TestAllocationsOfARun(t *testing.T) { //nolint:paralleltest // it counts allocations
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample())))
	_, opts := newMetrics(droverotel.Options{TracerProvider: tracers})
	tel := newTelemetry(t, opts)
	m, hooks := tel.Middleware(), tel.Hooks()
	next := func(context.Context) error { return nil }
	for metadata, most := range map[string]float64{traceparent: 11, "": 3} {
		job := unsampled(metadata)
		if n := testing.AllocsPerRun(1000, func() { _ = m.Run(t.Context(), job, next) }); n > most {
			t.Errorf("%v allocations with the metadata %s", n, metadata)
		}
	}
	inner, end := m.BeginEnqueue(t.Context(), drover.EnqueueCall{Items: make([]drover.EnqueueItem, 2)})
	defer end(nil, nil)
	item := drover.EnqueueItem{Opts: &drover.EnqueueOpts{Metadata: map[string]any{}}}
	if n := testing.AllocsPerRun(1000, func() {
		clear(item.Opts.Metadata)
		_ = m.Enqueue(inner, &item)
	}); n != 0 {
		t.Errorf("%v allocations for the trace of a job, besides its map", n)
	}
	e := drover.Event{Queue: "default", Kind: "work", Duration: time.Second, Wait: time.Second}
	for name, hook := range map[string]func(context.Context, drover.Event){
		"Enqueued": hooks.Enqueued, "Started": hooks.Started, "Completed": hooks.Completed,
	} {
		if n := testing.AllocsPerRun(1000, func() { hook(t.Context(), e) }); n != 0 {
			t.Errorf("%v allocations for %s", n, name)
		}
	}
}
