// Package bench measures the queue on a real server, through the public API and nothing else. drover bench prints its
// report. Each step works in an empty schema of its own, which it drops.
//
// # The files
//
//   - bench.go: Run, Options, Step, Report, Percentiles: the steps, their bounds and their results
//   - burn.go: the step that runs many jobs to their end, with or without failures; WAL and HOT updates of it
//   - latency.go: the step that measures the time from an enqueue to the start, with an awake and with a sleeping
//     supervisor
//   - retry.go: the step that measures how late retries are; how far the server's clock is ahead
//   - idle.go: the steps for an idle supervisor's statements, and for the memory of running jobs
//   - meter.go: meter: reads the server's settings and counters, with extensions if there are any
//   - scratch.go: scratch: the schema of a step, its supervisor, and its end
package bench
