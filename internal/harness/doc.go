// Package harness has the helpers that the tests of drover and the tests of its engine share: a database with a client,
// supervisors that tests drive, rows in any state, and counts of statements, buffers and events. It has no test files,
// because no other package could use these.
//
// # The files
//
//   - harness.go: New: a database with a client; Within, Soon: waiting; Hold: a transaction that stays open
//   - supervisors.go: Start, Launch, Stopped: supervisors that run, or that a test drives part by part; Field: unexported fields
//   - rows.go: stores and reads rows: ended jobs, dead letters, rows that are refused
//   - tx.go: Ways, Beginners: all ways to enqueue, and both kinds of transactions
//   - events.go: EventLog, Logbook: keep the events and the log
//   - plans.go: Planner, Statements: plans, buffers and counts of statements
//   - periodic.go: schedules, and their ticks
//   - redrives.go: runs jobs by SQL, for redrives on a clock that the test sets
package harness
