// Package health finds causes of a slow queue in Postgres: sessions that hold vacuum back, dead rows, the cost of a
// claim, late jobs. It changes nothing in the database.
//
// # The files
//
//   - report.go: Report and its parts, as the command and the pages show them
//   - look.go: reads the facts: the statements, and what they return
//   - judge.go: draws the conclusions: levels, thresholds, what to do
package health
