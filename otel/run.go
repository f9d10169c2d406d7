package droverotel

import (
	"context"
	"errors"
	"math"
	"reflect"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/drover-queue/drover"
)

// errExit stands for what a handler returns that calls runtime.Goexit.
var errExit = errors.New("handler called runtime.Goexit")

// run puts a span around a run, whose context the handler gets.
func (t *Telemetry) run(ctx context.Context, job *drover.Job, next func(context.Context) error) (err error) {
	began := time.Now()
	inner, span := t.startRun(ctx, job)
	if inner == nil { // it panicked
		inner, span = ctx, noop.Span{}
	}
	t.measureStart(inner, job)
	returned := false
	defer func() {
		result := err
		if !returned {
			result = errExit
		}
		t.measureRun(inner, job, time.Since(began), t.endRun(inner, span, result))
	}()
	err = next(inner)
	returned = true
	return err
}

// startRun returns nothing if it panicked.
func (t *Telemetry) startRun(ctx context.Context, job *drover.Job) (inner context.Context, span trace.Span) {
	defer t.guard()
	parent, opts := t.relate(ctx, job)
	opts = append(opts, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(append(common(process),
		attribute.String(destination, text(job.Queue, maxName)),
		attribute.String(messageID, text(job.ID, maxName)),
		attribute.String(ofKind, text(job.Kind, maxName)),
		attribute.Int("drover.attempt", job.Attempt),
		attribute.Int("drover.max_attempts", job.MaxAttempts),
	)...))
	return t.start(parent, t.opts.SpanName(process, job.Queue, job.Kind), opts...)
}

// relate says how a run's span belongs to the enqueue: as its child, or in a trace of its own. It links to it in both
// cases. A span that is in the context already, of a middleware further out, stays the parent.
func (t *Telemetry) relate(ctx context.Context, job *drover.Job) (context.Context, []trace.SpanStartOption) {
	opts := make([]trace.SpanStartOption, 0, 4)
	c := carried(job.Metadata, t.fields)
	if c == nil {
		return ctx, opts
	}
	ambient := trace.SpanFromContext(ctx)
	parent := t.opts.Propagator.Extract(trace.ContextWithSpanContext(ctx, trace.SpanContext{}), c)
	created := trace.SpanContextFromContext(parent)
	if created.IsValid() {
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: created}))
	}
	switch {
	case ambient.SpanContext().IsValid():
		parent = trace.ContextWithSpan(parent, ambient)
	case created.IsValid() && t.opts.NewTrace(job, age(job)):
		opts = append(opts, trace.WithNewRoot())
	}
	return parent, opts
}

// age is the time since the enqueue. Of an id without a time it is as long as can be.
func age(job *drover.Job) time.Duration {
	id, err := ulid.ParseStrict(job.ID)
	if err != nil {
		return math.MaxInt64
	}
	return max(0, time.Since(id.Timestamp()))
}

// endRun ends the span, and returns the error.type of a run that has failed.
func (t *Telemetry) endRun(ctx context.Context, span trace.Span, err error) (failed string) {
	defer t.guard()
	defer span.End()
	verdict := drover.VerdictOf(err)
	cutShort := ""
	if verdict.Failed() {
		if cutShort = interruption(ctx, verdict, err); cutShort == "" {
			failed = failedRun(verdict, err)
		}
	}
	if !span.IsRecording() {
		return failed
	}
	switch {
	case cutShort != "":
		span.SetAttributes(attribute.String("drover.interrupted", cutShort))
	case failed != "":
		span.SetAttributes(attribute.String("drover.verdict", string(verdict.Kind)))
		cause := verdict.Cause
		if cause == nil {
			cause = err
		}
		t.fail(span, failed, cause, verdict.Trace)
	default:
		span.SetAttributes(attribute.String("drover.verdict", string(verdict.Kind)))
	}
	if verdict.Delay > 0 {
		span.SetAttributes(attribute.Float64("drover.delay", verdict.Delay.Seconds()))
	}
	return failed
}

// interruption says why a run was cut short for a reason that is not the job's: drover hands such a job back, and it has
// not failed.
func interruption(ctx context.Context, verdict drover.Verdict, err error) string {
	if verdict.Kind == drover.VerdictDiscard && !errors.Is(err, context.Canceled) {
		return "" // that counts all the same
	}
	cause := context.Cause(ctx)
	switch {
	case errors.Is(cause, drover.ErrShutdown):
		return "shutdown"
	case errors.Is(cause, drover.ErrLeaseLost):
		return "lease_lost"
	case errors.Is(cause, drover.ErrCancelled):
		return "cancelled"
	}
	return ""
}

// failedRun is the error.type of a run: a kind of drover.Verdict, or timeout.
func failedRun(verdict drover.Verdict, err error) string {
	if verdict.Kind == drover.VerdictError && errors.Is(err, context.DeadlineExceeded) {
		return "timeout"
	}
	return string(verdict.Kind)
}

// Bounds of texts in a span, in bytes: as drover stores them.
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

// clean redacts and bounds what the application says. Both its error and its Redact may panic.
func (t *Telemetry) clean(said func() string, most int) (s string) {
	defer func() {
		if recover() != nil {
			s = "(the text of the error panicked)"
		}
	}()
	s = said()
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

// typeOf is the type of the error below those that only add a text.
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
