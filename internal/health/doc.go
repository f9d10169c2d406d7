// Package health finds causes of a slow queue in Postgres: sessions that hold vacuum back, dead rows, the cost of a
// claim, late jobs. It changes nothing in the database.
//
// # The files
//
//   - report.go: Report and its parts (Table, Holder, Claim, Queue, Finding), as the command and the pages show
//     them; only types
//   - look.go: Look, Brief: read the facts: the statements over drover's tables and Postgres' statistics, and what
//     they return
//   - judge.go: draws the conclusions from a Report: judgeHolders, judgeTables and others: levels, thresholds,
//     sentences, what to do
package health
