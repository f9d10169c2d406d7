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

// The files of this package, in the order of a job's life:
//
//   - jobs.go: Args, Job, Config, Client and its way to the database, the states and the reasons of a discard; the
//     engines that run in this process
//   - errors.go: the errors that callers branch on; those between engine and root are in internal/engine/config.go
//   - enqueue.go: EnqueueOpts; Enqueue, EnqueueMany and their twins in a caller's transaction; newJob, a job as it is
//     written: the checks and the encoding of its args and options
//   - enqueue_sql.go: the statements that store jobs: one, many, by COPY, in a transaction; whether a job was there
//     before; wake-ups
//   - middleware.go: Middleware: functions around each enqueue and each run
//   - unique.go: Unique: a job that is the only one like it; the SQL of its enqueue
//   - validate.go: gathers mistakes, so that the caller sees all of them together; checks args, names and texts
//     before they meet SQL; fields of args that encoding/json would leave out
//   - worker.go: Handle, WorkerOpts: a kind's handler and its settings; FollowUp: the job that the database enqueues
//     when another one is discarded
//   - periodic.go: Periodic: a schedule as the program declares it, and what a job knows of its schedule
//   - supervisor.go: Supervisor: makes an engine of its configuration; Healthy, Probe: whether it does its work
//   - supervisor_config.go: SupervisorConfig, Queue, Retention: their defaults, and what other processes read of them
//   - handler.go: answers the engine: the policies of a job, the call of its handler, what a crash means, events;
//     Worker.Try does the same without a database
//   - verdict.go: the meaning of a handler's return: Discard, Snooze and the others, VerdictOf; classes of failures;
//     the Retry-After header
//   - decide.go: the next state of a job after a run
//   - tx.go: CompleteTx, SettleTx and EnqueueTx inside a handler; database/sql
//   - retry_strategy.go: attempt to delay, and the random share of it; pure
//   - sanitize.go: reads the texts of errors and panics, and takes the secrets out
//   - telemetry.go: Hooks, Event and log attributes
//   - operate_filter.go: Filter: which jobs a verb is for, also as JSON
//   - operate_jobs.go: the jobs as operators read them: JobInfo, Jobs and its pages, Count, Counts, Summary
//   - operate.go: RedriveJob, Cancel, Discard: verbs on one job
//   - audit.go: Audit: the person who changes something, the reason, and the state that this person has seen
//   - operate_many.go: CancelMany, DiscardMany, DeleteMany: verbs over all that a Filter picks
//   - operate_edit.go: JobEdit, Edit, EditMany, Rerun: jobs that wait are changed, completed ones run again
//   - operate_explain.go: Explain: the story of a job, why it waits, what comes next
//   - operate_redrive.go: dead jobs that come back at a pace: RedrivePlan, Redrive and its verbs
//   - operate_failures.go: failure groups: the history of a failure, and the policy for its jobs
//   - budget.go: Scope: the jobs that a limit is for; RetryBudget: how many retries may become due
//   - operate_budgets.go: RetryBudgets: the budgets, and how much of each is free
//   - operate_pause.go: Pause, Resume, Pauses
//   - operate_archive.go: Archive, Restore, ExportArchive, PurgeArchive
//   - operate_periodic.go: schedules at run time: PeriodicJob, which operators see, and the verbs over it
//   - snapshot.go: Snapshot, Activity, Supervisors: the state of the queues, the runs of the last minutes, the
//     supervisors, the findings for a person
