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
//	redrive ────────► available ─┘      │            ├─► scheduled  a snooze: the run does not count
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
// A [Client] enqueues jobs and has the operators' methods; it starts nothing. [Client.NewSupervisor] makes the
// process-wide runner, and [Supervisor.Run] claims, runs and settles jobs until its context is done. [Handle] makes a
// worker from a function. The error that the function returns decides what becomes of the job: nil, a plain error,
// [Discard], [RetryAfter], [Snooze], [Cancel], [DontCount]. A [RetryStrategy] decides how long a failed job waits. A
// [Periodic] is a schedule that enqueues a job at its times.
//
// The package drovertest is for tests of workers, and of code that enqueues.
//
// The package migrations creates the schema. You can also apply its files with the goose command.
//
// docs/README.md lists the pages for users in reading order, docs/glossary.md explains the words, and docs/adr has
// the reasons for the design.
package drover

// The files of this package, in the order of a job's life. A file with methods of Client also has their SQL, at its
// end: constants sql… and methods of desk. Only the SQL of enqueues is in files of its own.
//
//   - job.go: Args; Job, which a handler gets, with CompleteTx, SettleTx and EnqueueTx; State and Reason with their
//     constants. Operators read a JobInfo instead (operate_jobs.go)
//   - client.go: Config, Client, New, Check; desk, the client's way to the database; registry, the engines that run
//     in this process
//   - errors.go: ErrNotFound and the other errors that callers branch on; InvalidError, Refusal. The errors that the
//     engine returns to this package are in internal/engine/config.go and run.go
//   - enqueue.go: EnqueueOpts, Receipt; Enqueue, EnqueueMany, EnqueueTx, EnqueueManyTx; newJob: a job as it is
//     written, and the checks and the encoding of its args, options and metadata
//   - enqueue_sql.go: the statements that store jobs: one, many, by COPY (copyStream), in a caller's transaction,
//     chunks of unique jobs (their SQL is in unique.go); whether a job was there before; wake-ups (NOTIFY)
//   - middleware.go: Middleware: functions around each enqueue and each run, and how they are nested
//   - unique.go: Unique, OnConflict, UniqueUntil, Debounce: a job that is the only one like it; its unique key, and
//     the statements sqlEnqueueUnique…
//   - validate.go: problems: gathers mistakes, so that the caller sees all of them together; checks of names,
//     texts, numbers and JSON; the encoding of values to JSON; lostField: fields of a type of args that
//     encoding/json would leave out, because an embedded type has a MarshalJSON
//   - worker.go: Worker, WorkerOpts, Handle: a kind's handler and its settings; ErrorCase; Worker.Try: a run
//     without a database; FollowUp: the job that the database enqueues when another one is discarded
//   - periodic.go: Periodic, CatchUp, Overlap: a schedule as the program declares it, and its JSON; PeriodicRun:
//     what a job knows of its schedule. The verbs are in operate_periodic.go
//   - supervisor.go: Supervisor, NewSupervisor: checks the workers and makes an engine with its kinds, queues,
//     budgets and schedules; Run, StopNow, AddQueue, RemoveQueue, Stats; Healthy, Probe
//   - supervisor_config.go: SupervisorConfig and Queue: their fields, defaults and checks; Worker.policy,
//     Queue.forEngine: the settings of kinds and queues in the form in which the engine stores them; Retention,
//     KeepFor, KeepForever, DeleteOnCompletion: how long ended jobs are kept
//   - handler.go: handler and task: the root package's answers to the engine: makes a task of a claimed job, calls
//     its handler (Handle, CutShort), decides what a crash means (Crashed)
//   - verdict.go: Verdict, VerdictOf: the meaning of a handler's return; Discard, Retry, RetryAfter, Snooze,
//     Cancel, DontCount; Class: classes of failures; the Retry-After header
//   - decide.go: draft: from a verdict to the next state of the job after a run, with its reason, its delay and the
//     entry of its errors
//   - tx.go: Tx: a caller's transaction, and its check; SQLTx for database/sql
//   - retry_strategy.go: RetryStrategy: Exponential, Linear, Constant, Custom; Jitter; their JSON
//     (ParseRetryStrategy); pure
//   - sanitize.go: the texts, types and stacks of errors and of recovered values; Redact takes secrets out
//   - telemetry.go: Hooks and the Event that they get; calls of hooks; the log lines of events and their attributes
//   - operate_filter.go: Filter: which jobs a verb is for, its checks, and its JSON
//   - operate_jobs.go: JobInfo, RunError: a job as operators read it; Job, Jobs and its pages, Count, Counts,
//     Summary of dead letters (DiscardedGroup)
//   - operate_one.go: RedriveJob, Cancel, Discard: verbs on one job by its id
//   - audit.go: Audit: the person who changes something and the reason (By, Why), and the state that this person
//     has seen (Seen); change, which runs the statement of a verb on one subject; logChange, the log line of verbs
//     that leave no row
//   - operate_many.go: CancelMany, DiscardMany, DeleteMany, BulkResult: verbs over all jobs of a Filter, batch by
//     batch
//   - operate_edit.go: JobEdit, Edit, EditMany: waiting jobs are changed; Rerun, RerunMany, RunOpts: completed jobs
//     run again under new ids
//   - operate_explain.go: Explain, Explanation: the story of a job in sentences: past runs, why it waits, what
//     comes next, advice
//   - operate_redrive.go: RedrivePlan, Redrive, StartRedrive, PreviewRedrive: many dead jobs come back at a pace;
//     PauseRedrive, ResumeRedrive, AbortRedrive. The redrive of one job is in operate_one.go
//   - operate_failures.go: FailureGroup, FailureGroups: the history of a failure by its fingerprint; FailurePolicy,
//     SetFailurePolicy, SetFailureStatus
//   - budgets.go: Scope: all jobs, a queue or a kind (QueueScope, KindScope); RetryBudget: how many retries may
//     become due, as a setting; BudgetInfo, RetryBudgets: the stored budgets, and how much of each is free
//   - operate_pause.go: Pause, Resume, Pauses, PauseOpts; waits until all supervisors have confirmed a pause
//     (UnconfirmedError)
//   - operate_archive.go: Archive, Restore, ExportArchive, PurgeArchive: the table jobs_archive; RefusedError: rows
//     that cannot be moved
//   - operate_periodic.go: PeriodicJob, PeriodicJobs: schedules as operators see them; SetPeriodic, PausePeriodic,
//     RunPeriodic, DeletePeriodic, PreviewPeriodic
//   - snapshot.go: Snapshot: the depth of each queue, suspects, quarantined jobs, jobs that are set aside, counts
//     of supervisors, open redrives, findings; Activity: the runs of the last minutes; Supervisors, SupervisorInfo
//
// CONTRIBUTING.md lists the packages around this one. These packages have one file each: internal/blame (which job
// killed a process: Death, Suspect, quarantine), internal/drive (runs a supervisor for bench), internal/fingerprint
// (the fingerprint of an error's text and stack), internal/jobdoc (a job to enqueue, read from JSON), internal/operate
// (what the command and the pages say in the same words), internal/pgurl (parses and checks a database URL, explains a
// refused connection), internal/tier (marks slow tests), internal/bench/overhead (compares speed with and without
// settings), examples/webhook (takes orders over HTTP, and calls a webhook for each) and examples/welcome.
