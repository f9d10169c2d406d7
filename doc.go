// Package drover is a job queue inside the Postgres that an application already runs. Jobs are enqueued in the
// application's own transactions. A job that fails is retried, kept and brought back in ways that you can rely on.
//
// # Guarantees
//
//   - At least once: an enqueue that was acknowledged is not lost, and a job runs again if its process died. So a
//     handler may run twice for one job. Make its effects outside the database idempotent, for example with Job.ID,
//     which is the same in each run.
//   - One owner at a time: every write that ends a run compares a fence (id, claim_seq, claimed_by, attempted_at). If
//     an owner has lost its lease, its write changes nothing and returns ErrLeaseLost. In a transaction above read
//     committed, it may return the database's serialization failure instead. The same happens if the job's row is
//     gone, even if another job has its id now.
//   - Exactly-once effects inside the database: Job.CompleteTx commits the handler's rows and the completion
//     together, or neither.
//   - Nothing disappears: discarded jobs stay, unless the settings of their queue or an operator remove them. Every
//     failed run is counted. The first 5 and the last 15 stay in the job's errors, whatever becomes of the job.
//   - Postgres' clock decides everything that two processes must agree on. Processes send durations, not instants.
//   - Supervisors poll, and NOTIFY is only a hint: everything works where LISTEN does not.
//
// Not promised: an order among jobs that run at the same time; that a handler is called only once; that a handler
// stops if it ignores its context. Commits are as durable as the server makes them. docs/guarantees.md names the
// tests that prove each of these lines.
//
// # A job's life
//
//	enqueue ────────► available ─┐                   ┌─► completed  kept for a day, or deleted immediately
//	enqueue, later ─► scheduled ─┼─► running ─settle─┼─► retryable  due again after its backoff
//	redrive ────────► available ─┘      │            ├─► scheduled  a snooze: the attempt is given back
//	                                    │            ├─► discarded  with its reason and its errors
//	                                    │            └─► cancelled
//	                                    └─ its process died: a rescue makes it retryable or discarded
//
// Available, scheduled and retryable jobs are claimed as soon as they are due. Nothing has to promote them first, so
// the delay that a strategy asks for is the delay that happens. A job in the state parked waits for something other
// than time: for a build that fixes its failure (FailurePark), or for a place among the jobs of its key in a paced
// redrive.
//
// # How it is used
//
// A [Client] enqueues and operates; it starts nothing. [Client.NewSupervisor] makes the process-wide runner, and
// [Supervisor.Run] claims, runs and settles jobs until its context is done. [Handle] makes a worker from a function.
// The error that the function returns decides what becomes of the job: nil, a plain error, [Discard], [RetryAfter],
// [Snooze], [Cancel], [DontCount]. A [RetryStrategy] decides how long a failed job waits. A [Periodic] is a schedule
// that enqueues a job at its times.
//
// The package drovertest is for tests of workers, and of code that enqueues.
//
// The package migrations creates the schema. You can also apply its files with the goose command.
//
// docs/README.md lists the pages for users in reading order, docs/glossary.md explains the words, and docs/adr has
// the reasons for the design.
package drover
