package droverotel

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pg"
)

// Operations, by the names and types of the messaging conventions.
const (
	send    = "send"
	process = "process"
)

// Attributes of several spans and instruments.
const (
	destination = "messaging.destination.name"
	messageID   = "messaging.message.id"
	ofKind      = "drover.kind"
	inTx        = "drover.in_tx"
	errorType   = "error.type"
)

// common returns the attributes of an operation. The slice has room for the attributes of a span.
func common(operation string) []attribute.KeyValue {
	return append(make([]attribute.KeyValue, 0, 8), attribute.String("messaging.system", "drover"),
		attribute.String("messaging.operation.name", operation), attribute.String("messaging.operation.type", operation))
}

// batch describes the jobs of an enqueue before they are stored. A field is empty if the jobs differ in it.
type batch struct {
	queue, kind string
	jobs        int
}

func batchOf(items []drover.EnqueueItem) (b batch) {
	b.jobs = len(items)
	for i, item := range items {
		queue, kind := queueAndKind(item)
		if i == 0 {
			b.queue, b.kind = queue, kind
		}
		if b.queue != queue {
			b.queue = ""
		}
		if b.kind != kind {
			b.kind = ""
		}
	}
	return b
}

// queueAndKind returns the queue and kind of a job that drover has not validated yet.
func queueAndKind(item drover.EnqueueItem) (queue, kind string) {
	defer func() { _ = recover() }() // Kind of a nil pointer panics; the enqueue refuses such args
	queue = "default"
	if item.Opts != nil && item.Opts.Queue != "" {
		queue = item.Opts.Queue
	}
	if item.Args != nil {
		kind = item.Args.Kind()
	}
	return queue, kind
}

// beginEnqueue makes one span for each call, however many jobs the call stores. Each job carries the context of that span.
func (t *Telemetry) beginEnqueue(ctx context.Context, call drover.EnqueueCall) (inner context.Context, end func([]drover.Receipt, error)) {
	defer t.guard()
	began := time.Now()
	b := batchOf(call.Items)
	attrs := append(common(send), attribute.Bool(inTx, call.InTx))
	if b.queue != "" {
		attrs = append(attrs, attribute.String(destination, text(b.queue, maxName)))
	}
	if b.kind != "" {
		attrs = append(attrs, attribute.String(ofKind, text(b.kind, maxName)))
	}
	if b.jobs > 1 {
		attrs = append(attrs, attribute.Int("messaging.batch.message_count", b.jobs))
	}
	inner, span := t.start(ctx, t.opts.SpanName(send, b.queue, b.kind), trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(attrs...))
	return context.WithValue(inner, callKey{t}, &injection{}), func(receipts []drover.Receipt, err error) {
		t.endEnqueue(span, call.Items, receipts, err)
		t.measureEnqueue(inner, b, call.Items, time.Since(began), err)
	}
}

func (t *Telemetry) endEnqueue(span trace.Span, items []drover.EnqueueItem, receipts []drover.Receipt, err error) {
	defer t.guard()
	defer span.End()
	if !span.IsRecording() {
		return
	}
	if err != nil {
		t.fail(span, failedEnqueue(err), err, "")
		return
	}
	existing := 0
	for _, receipt := range receipts {
		if receipt.Existing {
			existing++
		}
	}
	if existing > 0 {
		span.SetAttributes(attribute.Int("drover.existing", existing))
	}
	if len(items) == 1 && len(receipts) == 1 {
		span.SetAttributes(attribute.String(messageID, receipts[0].ID))
	}
}

// measureEnqueue measures the call, and counts its jobs if it failed. The hook Enqueued counts the jobs that were
// stored.
func (t *Telemetry) measureEnqueue(ctx context.Context, b batch, items []drover.EnqueueItem, took time.Duration, err error) {
	defer t.guard()
	failed := ""
	if err != nil {
		failed = failedEnqueue(err)
		for _, item := range items {
			queue, kind := queueAndKind(item)
			t.instruments.of(seriesKey{sent, t.queues.Label(queue), t.kinds.Label(kind), failed, ""}).take(ctx, 1)
		}
	}
	t.instruments.of(seriesKey{operated, t.queues.Label(b.queue), "", failed, ""}).take(ctx, took.Seconds())
}

// failedEnqueue returns the error.type of an enqueue.
func failedEnqueue(err error) string {
	switch code := pg.SQLState(err); {
	case errors.Is(err, drover.ErrInvalid):
		return "invalid"
	case errors.Is(err, drover.ErrIDConflict):
		return "id_conflict"
	case errors.Is(err, drover.ErrNotStored):
		return "not_stored"
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case len(code) == 5:
		return code
	}
	return "_OTHER"
}
