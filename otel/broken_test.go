package droverotel_test

import (
	"context"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	droverotel "github.com/drover-queue/drover/otel"
)

type (
	badExporter   struct{}
	badPropagator struct{ fixed }
	losing        struct{ fixed } // a propagator that returns a context of its own
	losingNil     struct{ fixed }
	badTracers    struct{ noop.TracerProvider }
	badTracer     struct{ noop.Tracer }
	nilTracers    struct{ noop.TracerProvider }
	nilSpans      struct{ noop.TracerProvider }
	nilSpan       struct{ noop.Tracer }
	nilMeters     struct{ metric.MeterProvider }
)

func (badExporter) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { panic("export") }
func (badExporter) Shutdown(context.Context) error                             { return nil }

func (badPropagator) Inject(_ context.Context, c propagation.TextMapCarrier) {
	c.Set("a", "half")
	panic("inject")
}

func (badPropagator) Extract(context.Context, propagation.TextMapCarrier) context.Context {
	panic("extract")
}

func (losing) Extract(context.Context, propagation.TextMapCarrier) context.Context {
	return context.Background()
}
func (losingNil) Extract(context.Context, propagation.TextMapCarrier) context.Context { return nil }

func (badTracers) Tracer(string, ...trace.TracerOption) trace.Tracer { return badTracer{} }
func (nilTracers) Tracer(string, ...trace.TracerOption) trace.Tracer { return nil }
func (nilSpans) Tracer(string, ...trace.TracerOption) trace.Tracer   { return nilSpan{} }
func (nilMeters) Meter(string, ...metric.MeterOption) metric.Meter   { return nil }

func (badTracer) Start(context.Context, string, ...trace.SpanStartOption) (context.Context, trace.Span) {
	panic("start")
}

func (nilSpan) Start(context.Context, string, ...trace.SpanStartOption) (context.Context, trace.Span) {
	return nil, nil
}

// Telemetry that panics, or returns nil or another context, costs no job, and the handler has its deadline.
func TestBrokenTelemetryCostsNoJob(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewMigratedPool(t)
	for name, breaks := range map[string]func(*droverotel.Options){
		"exporter": func(o *droverotel.Options) {
			o.TracerProvider = sdktrace.NewTracerProvider(sdktrace.WithSyncer(badExporter{}))
		},
		"propagator": func(o *droverotel.Options) { o.Propagator = badPropagator{} },
		"tracer":     func(o *droverotel.Options) { o.TracerProvider = badTracers{} },
		"lost":       func(o *droverotel.Options) { o.Propagator = losing{} },
		"nil":        func(o *droverotel.Options) { o.Propagator = losingNil{} },
		"no span":    func(o *droverotel.Options) { o.TracerProvider = nilSpans{} },
		"name":       func(o *droverotel.Options) { o.SpanName = func(string, string, string) string { panic("name") } },
		"all global": func(o *droverotel.Options) { *o = droverotel.Options{} },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRigOn(t, pool, breaks)
			id := r.enqueue(t, t.Context(), "", &drover.EnqueueOpts{Metadata: map[string]any{"own": 1}})
			if stored := r.metadata(t, id); stored["own"] != 1.0 || stored["a"] != nil {
				t.Errorf("metadata = %v", stored)
			}
			r.exec(t, `update jobs set metadata = metadata || '{"a": "x"}' where id = $1`, id)
			handle := func(ctx context.Context, _ *drover.Job, _ work) error {
				if _, bounded := ctx.Deadline(); !bounded {
					return errors.New("the handler has no deadline")
				}
				return nil
			}
			if e := r.run(t, r.client, 1, handle)[0]; e.JobID != id || e.Error != "" {
				t.Errorf("event %+v", e)
			}
		})
	}
}

// stuck are exporters that return only once it is closed.
type stuck chan struct{}

func (s stuck) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error {
	<-s
	return nil
}

func (s stuck) Shutdown(context.Context) error { return nil }

type stuckMetrics struct{ stuck }

func (s stuckMetrics) Export(context.Context, *metricdata.ResourceMetrics) error {
	<-s.stuck
	return nil
}
func (stuckMetrics) ForceFlush(context.Context) error { return nil }
func (stuckMetrics) Temporality(kind sdkmetric.InstrumentKind) metricdata.Temporality {
	return sdkmetric.DefaultTemporalitySelector(kind)
}

func (stuckMetrics) Aggregation(kind sdkmetric.InstrumentKind) sdkmetric.Aggregation {
	return sdkmetric.DefaultAggregationSelector(kind)
}

// With exporters that never return, jobs are enqueued and run: the batch processor drops spans.
func TestStuckExportersCostNoJob(t *testing.T) {
	t.Parallel()
	exporter := make(stuck)
	tracers := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter,
		sdktrace.WithMaxQueueSize(1), sdktrace.WithMaxExportBatchSize(1), sdktrace.WithBatchTimeout(time.Millisecond)))
	measures := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewPeriodicReader(stuckMetrics{exporter}, sdkmetric.WithInterval(time.Millisecond))))
	defer func() {
		close(exporter)
		_, _ = tracers.Shutdown(context.Background()), measures.Shutdown(context.Background())
	}()
	r := newRig(t, func(o *droverotel.Options) { o.TracerProvider, o.MeterProvider = tracers, measures })
	const jobs = 30
	for range jobs {
		r.enqueue(t, t.Context(), "", nil)
	}
	for _, e := range r.run(t, r.client, jobs, nothing) {
		if e.Error != "" {
			t.Errorf("event %+v", e)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]droverotel.Options{
		"MaxKinds": {MaxKinds: -1}, "MaxQueues": {MaxQueues: -1}, "MaxAge": {MaxAge: -1}, "Timeout": {Timeout: -1},
		"no tracer": {TracerProvider: nilTracers{}}, "no meter": {MeterProvider: nilMeters{}},
		"panics": {Propagator: (*propagation.TraceContext)(nil)},
	} {
		if tel, err := droverotel.New(opts); err == nil || tel != nil {
			t.Errorf("%s is taken", name)
		}
	}
}

// A program with telemetry compiles in OpenTelemetry's API and what drover and that need. The SDK stays with the tests.
func TestCompilesInTheAPIOnly(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	allowed := []string{
		"github.com/drover-queue/drover", "github.com/drover-queue/drover/otel",
		"github.com/jackc/pgx/v5", "github.com/oklog/ulid/v2", "github.com/jackc/pgpassfile", "github.com/jackc/pgservicefile",
		"github.com/jackc/puddle/v2", "golang.org/x/sync", "golang.org/x/text", // drover's
		"go.opentelemetry.io/otel", "go.opentelemetry.io/otel/trace", "go.opentelemetry.io/otel/metric", "go.opentelemetry.io/otel/log", "go.opentelemetry.io/auto/sdk",
		"github.com/cespare/xxhash/v2", "github.com/go-logr/logr", "github.com/go-logr/stdr",
	}
	modules := strings.Fields(string(out))
	for _, module := range modules {
		if !slices.Contains(allowed, module) {
			t.Errorf("it compiles in %s", module)
			allowed = append(allowed, module)
		}
	}
	if !slices.Contains(modules, "go.opentelemetry.io/otel/trace") {
		t.Error("it does not use OpenTelemetry")
	}
}
