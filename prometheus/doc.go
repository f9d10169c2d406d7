// Package droverprom exports what drover does, and what is in its queues, as Prometheus metrics.
//
// A [Metrics] counts drover's events in this process, and reads depths from the database when Prometheus
// scrapes. It starts no goroutine and registers nothing by itself:
//
//	metrics := droverprom.New(droverprom.Options{})
//	client, err := drover.New(pool, drover.Config{Hooks: []drover.Hooks{metrics.Hooks()}})
//	metrics.Watch(client)
//	metrics.WatchSupervisor(sup)
//	prometheus.MustRegister(metrics)
//
// docs/metrics.md lists every metric. Alerts and a dashboard are in deploy/.
package droverprom

// The files of this package:
//
//   - metrics.go: Metrics, Options, New; Watch, Describe, Collect
//   - counters.go: counters and histograms of events, which Hooks adds to
//   - gauges.go: gauges, which a scrape reads from the database or from the supervisors of this process
