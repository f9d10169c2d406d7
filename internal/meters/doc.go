// Package meters defines what drover measures: names, labels, and the values that come from events, supervisors and
// snapshots. The modules prometheus and otel only pass these to their libraries.
//
// # The files
//
//   - meters.go: Meter, Def, Events: names and labels of the values that come from events
//   - hooks.go: Hooks: turns each event of drover.Hooks into values for a Sink
//   - database.go: Database, Gauge, Depths: values that a scrape reads from a snapshot of the queues
//   - process.go: Process: values of the supervisors of this process
//   - names.go: Names: bounds how many values a label has
package meters
