// Package drovertest helps to test workers, and code that enqueues jobs.
//
//   - Run calls a handler without a database and returns its verdict.
//   - NewPool gives a test tables of its own in your Postgres.
//   - RequireEnqueued and Enqueued return the jobs that were enqueued, also in a transaction that is still open.
//   - RunToEnd and Drain run jobs with all their retries, without waiting for them; Advance lets time pass.
//   - Mishaps let something go wrong while a job runs. Your test then checks what the handler has done.
//
// A failure ends the test, as t.Fatal does. docs/testing.md is the guide.
package drovertest

// The files of this package:
//
//   - drovertest.go: Run, RunToEnd: a handler's verdicts without a database; RequireEnqueued, Enqueued: the jobs
//     that were enqueued
//   - drain.go: Drain: runs all jobs with a supervisor; Advance: lets time pass
//   - mishaps.go: Mishaps, Mishap.Run: dead processes, frozen processes, twins, stops while a job runs
//   - pool.go: NewPool, NewURL: a schema of the test's own: takes, empties, makes and drops schemas
