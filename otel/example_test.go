package droverotel_test

import (
	"context"
	"fmt"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	droverotel "github.com/drover-queue/drover/otel"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func Example() {
	pool, end := pgtest.MigratedExample()
	defer end()
	spans := tracetest.NewInMemoryExporter() // yours sends them to a collector, in batches
	tel, err := droverotel.New(droverotel.Options{TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))})
	must(err)
	client, err := drover.New(pool, drover.Config{
		Middleware: []drover.Middleware{tel.Middleware()},
		Hooks:      []drover.Hooks{tel.Hooks()},
	})
	must(err)
	tel.Watch(client) // depths, read when metrics are collected

	_, err = client.Enqueue(context.Background(), work{}, &drover.EnqueueOpts{Queue: "payments"})
	must(err)
	for _, span := range spans.GetSpans() {
		fmt.Println(span.SpanKind, span.Name)
	}
	// Output:
	// producer send payments
}
