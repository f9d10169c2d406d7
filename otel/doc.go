// Package droverotel traces jobs from the enqueue to each run, and measures them, with OpenTelemetry.
//
// A [Telemetry] needs two entries in the client's configuration, and uses the global providers:
//
//	tel, err := droverotel.New(droverotel.Options{})
//	client, err := drover.New(pool, drover.Config{
//		Middleware: []drover.Middleware{tel.Middleware()},
//		Hooks:      []drover.Hooks{tel.Hooks()},
//	})
//
// Names follow OpenTelemetry's messaging conventions. docs/tracing.md lists every span, attribute and instrument.
package droverotel

// The files of this package:
//
//   - telemetry.go: Telemetry, Options, New; Middleware, Hooks, Watch; guards against panics of the SDK
//   - enqueue.go: the span and the measurements of an enqueue; the attributes that spans share
//   - run.go: the span and the measurements of a run: its parent and link, its error, why it was cut short
//   - metadata.go: carrier: the trace context in a job's metadata: writes it at the enqueue, reads it at the run
//   - metrics.go: instruments: OpenTelemetry's instruments for all meters of internal/meters, and their attributes
