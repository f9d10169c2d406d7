// Package drover is a job queue inside the Postgres that an application already runs: jobs are enqueued in the
// application's own transactions, and a job that fails is retried, kept and brought back in ways one can rely on.
//
// # Guarantees
//
//   - At least once: an enqueue that was acknowledged is not lost, and a job runs again when its process died. So
//     a handler may run twice, and what it does outside the database must bear that; Job.ID is the same each time.
//   - One owner at a time: whatever ends a run compares a fence (id, claim_seq, claimed_by, attempted_at). The write of an
//     owner that has lost its lease changes nothing and says so: ErrLeaseLost, or the database's serialization failure in a
//     transaction at a higher isolation level. So does that of a handler whose job has gone, though another job came under the
//     same id.
//   - Exactly-once effects inside the database: Job.CompleteTx commits the handler's rows and the completion
//     together, or neither.
//   - Nothing disappears: discarded jobs stay, unless a queue or an operator says otherwise. Every failed run is counted, and the first 5
//     and the last 15 stay in the job's errors, whatever becomes of it.
//   - Postgres' clock decides whatever two processes must agree on. Processes send durations, not instants.
//   - Polling is the truth, NOTIFY a hint: all works where LISTEN does not.
//
// Not promised: an order among jobs that run side by side, that a handler is never called twice, and that a handler
// which ignores its context stops. Commits are as durable as the server makes them. docs/guarantees.md names the tests that
// prove each of these lines.
//
// # A job's life
//
//	enqueue ────────► available ─┐                   ┌─► completed  kept for a day, or deleted at once
//	enqueue, later ─► scheduled ─┼─► running ─settle─┼─► retryable  due again after its backoff
//	redrive ────────► available ─┘      │            ├─► scheduled  a snooze: the attempt is given back
//	                                    │            ├─► discarded  with its reason and its errors
//	                                    │            └─► cancelled
//	                                    └─ its process died: a rescue makes it retryable or discarded
//
// Available, scheduled and retryable jobs are claimed as soon as they are due: nothing promotes them, so the delay
// that a strategy asked for is the delay that happens. The state parked is for jobs that wait for something other
// than time: for a build that mends what they fail with (FailurePark), or for a place among the jobs of their key in a
// paced redrive.
//
// # How it is used
//
// A [Client] enqueues and operates; it starts nothing. [Client.NewSupervisor] makes the process-wide runner, and
// [Supervisor.Run] claims, runs and settles jobs until its context is done. [Handle] makes a worker of a function;
// the error that the function returns decides what becomes of the job: nil, a plain error, [Discard], [RetryAfter],
// [Snooze], [Cancel], [DontCount]. A [RetryStrategy] decides how long a failed job waits. A [Periodic] is a schedule that
// enqueues a job at its times.
//
// The package drovertest tests workers, and code that enqueues.
//
// The schema comes from the package migrations, or from its files by the goose command.
//
// docs/README.md lists the pages for users in reading order, docs/glossary.md explains the words, and docs/adr says why
// things are as they are.
package drover
