package droverotel

import (
	"context"
	"errors"
	"math"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/drover-queue/drover"
)

var errExit = errors.New("handler called runtime.Goexit")

// run puts a span around a run. The handler gets the span's context.
func (t *Telemetry) run(ctx context.Context, job *drover.Job, next func(context.Context) error) (err error) {
	began := time.Now()
	like := t.runsLike(job)
	inner, span := t.startRun(ctx, job, like, began)
	if inner == nil { // startRun panicked before the span began
		inner, span = ctx, noop.Span{}
	}
	like.consumed.sum.Add(1)
	returned := false
	defer func() {
		took := time.Since(began)
		t.measureRun(inner, like, took, t.endRun(inner, span, job, returned, err))
	}()
	err = next(inner) // a panic of the handler is an error here
	returned = true
	return err
}

// startRun begins the span of a run. It returns nil if something panicked before the span began.
func (t *Telemetry) startRun(ctx context.Context, job *drover.Job, like *runs, began time.Time) (inner context.Context, span trace.Span) {
	defer t.guard()
	parent, opts := t.relate(ctx, job, like.begin, began)
	name := like.name
	if t.named {
		name = t.opts.SpanName(process, job.Queue, job.Kind)
	}
	inner, span = t.start(parent, name, opts...)
	if span.IsRecording() {
		span.SetAttributes(attribute.String(messageID, text(job.ID, maxName)), attribute.Int("drover.attempt", job.Attempt),
			attribute.Int("drover.max_attempts", job.MaxAttempts))
	}
	return inner, span
}

// runsLike returns the data that all runs of the job's queue and kind share. It makes them once, unless there are too
// many queues or kinds.
func (t *Telemetry) runsLike(job *drover.Job) *runs {
	key := [2]string{job.Queue, job.Kind}
	t.ran.RLock()
	like := t.runs[key]
	t.ran.RUnlock()
	if like != nil {
		return like
	}
	like = &runs{name: conventional(process, job.Queue, job.Kind), queue: t.queues.Label(job.Queue), kind: t.kinds.Label(job.Kind)}
	like.begin = []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(append(common(process),
		attribute.String(destination, text(job.Queue, maxName)), attribute.String(ofKind, text(job.Kind, maxName)))...)}
	like.consumed = t.instruments.of(seriesKey{consumed, like.queue, like.kind, "", ""})
	like.processed = t.instruments.of(seriesKey{processed, like.queue, like.kind, "", ""})
	if like.queue == job.Queue && like.kind == job.Kind {
		t.ran.Lock()
		defer t.ran.Unlock()
		t.runs[key] = like
	}
	return like
}

// runs is what the runs of a queue and kind share.
type runs struct {
	name        string                  // the name of the span, by the conventions
	begin       []trace.SpanStartOption // the span's kind and attributes; a sampler may decide by them
	queue, kind string                  // labels
	consumed    *oneSeries
	processed   *oneSeries // of the runs that did not fail
}

// relate decides whether a run's span is a child of the enqueue's span, or begins a trace of its own. In both cases the
// span links to the enqueue. If the context has a span already, from a middleware further out, that span stays the
// parent. relate returns opts, with one more option for a link and one for a new trace, if there are any.
func (t *Telemetry) relate(ctx context.Context, job *drover.Job, opts []trace.SpanStartOption, began time.Time) (context.Context, []trace.SpanStartOption) {
	c := carried(job.Metadata, t.fields)
	if c == nil {
		return ctx, opts
	}
	ambient, empty := trace.SpanFromContext(ctx), ctx
	inside := ambient.SpanContext().IsValid()
	if inside {
		empty = trace.ContextWithSpanContext(ctx, trace.SpanContext{}) // a propagator that finds nothing returns the context that it got, so this context must have no span
	}
	parent := t.opts.Propagator.Extract(empty, c)
	created := trace.SpanContextFromContext(parent)
	if _, known := t.opts.Propagator.(propagation.TraceContext); !known && (parent == nil || parent.Done() != ctx.Done()) {
		parent = trace.ContextWithRemoteSpanContext(ctx, created) // or the handler would not learn that its time is over
	}
	if created.IsValid() {
		opts = append(slices.Clip(opts), trace.WithLinks(trace.Link{SpanContext: created})) // a copy, because all runs share opts
	}
	switch {
	case inside:
		parent = trace.ContextWithSpan(parent, ambient)
	case created.IsValid() && t.opts.NewTrace(job, age(job, began)):
		opts = append(opts, trace.WithNewRoot())
	}
	return parent, opts
}

// age returns the time from the enqueue to the start of the run, or the longest duration if the id has no time.
func age(job *drover.Job, began time.Time) time.Duration {
	id, err := ulid.ParseStrict(job.ID)
	if err != nil {
		return math.MaxInt64
	}
	return max(0, began.Sub(id.Timestamp()))
}

// endRun ends the span, and returns the error.type of a run that has failed.
func (t *Telemetry) endRun(ctx context.Context, span trace.Span, job *drover.Job, returned bool, err error) (failed string) {
	defer t.guard()
	defer span.End()
	verdict := drover.Verdict{Kind: drover.VerdictPanic, Cause: errExit} // drover treats a runtime.Goexit like a panic
	if returned {
		verdict = drover.VerdictOf(err)
	} else {
		verdict.Trace = string(debug.Stack())
	}
	cut := interruption(ctx, verdict, err)
	if verdict.Failed() && (cut == "" || job.MaxAttempts == 1 && cut != cancelled) { // a run that was cut short counts as failed if it is the only attempt, unless it was cancelled
		failed = failedRun(ctx, verdict)
	}
	if !span.IsRecording() {
		return failed
	}
	if cut == "" {
		span.SetAttributes(attribute.String("drover.verdict", string(verdict.Kind)))
	} else {
		span.SetAttributes(attribute.String("drover.interrupted", cut))
	}
	if verdict.Delay > 0 {
		span.SetAttributes(attribute.Float64("drover.delay", verdict.Delay.Seconds()))
	}
	if failed != "" {
		t.fail(span, failed, verdict.Cause, verdict.Trace)
	}
	return failed
}

// Values of drover.interrupted.
const (
	shutdown  = "shutdown"
	leaseLost = "lease_lost"
	cancelled = "cancelled"
)

// interruption returns why a run was cut short, if drover hands the job back because of that. It returns "" for a run
// that ended by itself. A run whose handler returned Discard counts as ended by itself, unless the error wraps
// context.Canceled. A run whose error has a method Permanent does not. Both have VerdictDiscard: with a method
// Permanent, verdict.Cause is err itself; with Discard, it is the error inside of err.
func interruption(ctx context.Context, verdict drover.Verdict, err error) string {
	if !verdict.Failed() || verdict.Kind == drover.VerdictDiscard && !errors.Is(err, context.Canceled) && !errors.Is(verdict.Cause, err) {
		return ""
	}
	cause := context.Cause(ctx)
	switch {
	case errors.Is(cause, drover.ErrShutdown):
		return shutdown
	case errors.Is(cause, drover.ErrLeaseLost):
		return leaseLost
	case errors.Is(cause, drover.ErrCancelled):
		return cancelled
	}
	return ""
}

// failedRun returns the error.type of a run: the kind of its verdict, or timeout if the run's time was over.
func failedRun(ctx context.Context, verdict drover.Verdict) string {
	if verdict.Kind == drover.VerdictError && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return "timeout"
	}
	return string(verdict.Kind)
}

// Bounds of texts in a span, in bytes.
const (
	maxName  = 256
	maxError = 4 << 10
	maxStack = 16 << 10
)

// fail records an error on a span, with an exception as event.
func (t *Telemetry) fail(span trace.Span, failed string, err error, stack string) {
	message := t.clean(func() string { return err.Error() }, maxError)
	span.SetAttributes(attribute.String(errorType, failed))
	span.SetStatus(codes.Error, message)
	exception := append(make([]attribute.KeyValue, 0, 3), attribute.String("exception.type", typeOf(err)), attribute.String("exception.message", message))
	if stack != "" {
		exception = append(exception, attribute.String("exception.stacktrace", t.clean(func() string { return stack }, maxStack)))
	}
	span.AddEvent("exception", trace.WithAttributes(exception...))
}

// clean redacts and bounds a text of the application. The functions write and Options.Redact may panic.
func (t *Telemetry) clean(write func() string, most int) (s string) {
	defer func() {
		if recover() != nil {
			s = "(the text of the error panicked)"
		}
	}()
	s = write()
	if t.opts.Redact != nil {
		s = t.opts.Redact(s)
	}
	return text(s, most)
}

// text makes a text valid and bounds it.
func text(s string, most int) string {
	if len(s) > most {
		s = s[:most]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// typeOf returns the type of an error, without wrappers that only add a text.
func typeOf(err error) string {
	for {
		name := reflect.TypeOf(err).String()
		inner := errors.Unwrap(err)
		if inner == nil || name != "*fmt.wrapError" && !strings.HasPrefix(name, "*drover.") {
			return name
		}
		err = inner
	}
}
