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
// A [Client] enqueues and operates; it starts nothing. [Client.Supervisor] makes the process-wide runner, and
// [Supervisor.Run] claims, runs and settles jobs until its context is done. [Handle] makes a worker of a function;
// the error that the function returns decides what becomes of the job: nil, a plain error, [Discard], [RetryAfter],
// [Snooze], [Cancel], [DontCount]. A [RetryStrategy] decides how long a failed job waits.
//
// The schema comes from the package migrations, or from its files by the goose command.
//
// # The files
//
// In the order of a job's life:
//
//	doc.go                         this tour
//	jobs.go                        Args, Job, Config, Client, the states and the reasons of a discard
//	errors.go                      what callers branch on
//	enqueue.go                     EnqueueOpts; Enqueue, EnqueueMany and their twins in a caller's transaction
//	validate.go                    gathers mistakes, so that all are told at once
//	validate_args.go               what is refused of args and names before it meets SQL
//	args_lost.go                   fields of args that encoding/json would leave out
//	worker.go                      Handle, WorkerOpts: a kind's handler and its settings
//	follow_up.go                   FollowUp: the job that the database enqueues when another one is discarded
//	supervisor.go                  Supervisor, Run, drain; every go statement
//	supervisor_config.go           SupervisorConfig, Queue: what they mean when unset, and what is told of them to other processes
//	supervisor_registry.go         the supervisors of a client, and the hooks of its own events
//	supervisor_queue.go            a queue inside a supervisor: its slots, its buffer, how much to claim ahead
//	supervisor_claim.go            takes due jobs
//	supervisor_wake.go             when to look for due jobs, and what sleepers are told
//	supervisor_lost_claims.go      claims whose reply was lost
//	supervisor_refused_claims.go   finds the job because of which the database refuses a claim, and takes it out of the way
//	floors.go                      where a claim begins to look, so that dead rows cost nothing
//	near_sweeps.go                 claims that look behind it, for what committed late
//	hearing.go                     how often a sleeper looks, where an enqueue may have taken it for awake
//	supervisor_audit.go            looks for jobs that run in this process' name although it does not know them
//	supervisor_gone_back.go        what a supervisor does where the database has gone back to an older state
//	supervisor_run.go              one claimed job, from its start to its outcome
//	outcome.go                     what a handler returned, and what that makes of the job
//	tx.go                          CompleteTx, SettleTx and EnqueueTx inside a handler; database/sql
//	tx_refused.go                  why one of these was refused: a lost claim, or something else
//	supervisor_start.go            notes the start of jobs with a single attempt
//	supervisor_settle.go           records outcomes, many in one round trip, until each is settled
//	supervisor_budget.go           takes slots of retry budgets before retries are recorded
//	retry_strategy.go              attempt to delay; pure
//	retry_jitter.go                the random share of a delay; pure
//	retry_after.go                 the HTTP header
//	sanitize.go                    reads the texts of errors and panics, and takes the secrets out
//	supervisor_lease.go            heartbeat, notifications, watching the others
//	supervisor_silence.go          which of the other supervisors are dead; pure
//	supervisor_rescue.go           what becomes of the jobs of a supervisor that died
//	supervisor_sweep.go            the full sweep: looks for what floors and near sweeps have passed over
//	supervisor_solo.go             the turn to run strong suspects alone
//	supervisor_unheard.go          asks for what nobody may have said: cancelled runs, queues added in passing
//	blame.go                       which job killed a process: evidence, suspects, conviction; pure
//	operate_redrive.go             dead jobs that come back at a pace: RedrivePlan, Redrive and its verbs
//	supervisor_redrive.go          carries redrives on, whoever began them
//	supervisor_prune.go            deletes or archives jobs that have ended, when their time is over
//	operate_failures.go            failure groups: what is known of a failure, and what becomes of its jobs
//	budget.go                      RetryBudget: so many retries in any minute, in every process together
//	operate_filter.go              Filter: which jobs a verb is for
//	operate.go                     Get, List, Count, Counts, Summary, RedriveJob, Cancel, Discard
//	operate_many.go                CancelMany, DiscardMany, DeleteMany: verbs over all that a Filter picks
//	operate_archive.go             Archive, Restore, ExportArchive, PurgeArchive
//	alerts.go                      Alerts: which thresholds are reached
//	clock.go                       the server's clock has gone back: tells of it
//	health.go                      Health: what holds vacuum back, how the tables are, what a claim costs
//	telemetry.go                   Hooks and log attributes
//	failpoint.go                   where the fault suite may end a process: here nothing happens
//	failpoint_on.go                what happens where it is built with droverfail
//	isolate.go                     finds the row because of which the database refuses a batch
//	supervisor_links.go            a supervisor's own connections: how they are made, and when they are replaced
//	supervisor_outage.go           what its parts have with the database: pauses, and one log of it
//	store_pg.go                    SQL: pipelines, errors, Check
//	store_pg_enqueue.go            SQL: enqueue
//	store_pg_claim.go              SQL: claim
//	store_pg_settle.go             SQL: settle
//	store_pg_refused.go            SQL: jobs that the database refuses to hand out or to settle
//	store_pg_lease.go              SQL: registration, heartbeat, sleep
//	store_pg_rescue.go             SQL: the jobs of the dead
//	store_pg_blame.go              SQL: evidence of deaths, and the turn to run suspects
//	store_pg_sweep.go              SQL: the full sweep
//	store_pg_retention.go          SQL: pruning
//	store_pg_failures.go           SQL: failure groups
//	store_pg_budgets.go            SQL: retry budgets
//	store_pg_operate.go            SQL: what operators do
//	store_pg_redrives.go           SQL: redrives
//	store_pg_archive.go            SQL: the archive and alerts
//	store_pg_health.go             SQL: health
//
// Some of the logic is SQL, in migrations, beside the tables and views:
//
//	00010_jobs.sql       the tables that a claim needs; enqueue, wake; what isolates a bad row
//	00011_operate.sql    filters, lists, the verbs over one job and over many
//	00012_redrives.sql   the pace of redrives
//	00013_failures.sql   failure groups and their policies
//	00014_budgets.sql    the calendar of retries
//	00015_blame.sql      what is known of deaths; who judges is in Go
//	00016_retention.sql  follow-ups, archive, alerts
//
// The command is in cmd/drover, a program in examples/webhook, the fault suite in faults. The rest is internal: internal/demo and internal/bench,
// which the command runs, and internal/pgdev, which finds or starts a Postgres for them and for the tests;
// internal/pgurl reads connection strings, internal/pgtext makes text and JSON fit for Postgres, internal/fingerprint tells which failures are the same,
// internal/drive runs supervisors for those that measure, internal/mutants is a list of deliberate bugs. The module bench compares with others.
//
// docs/README.md lists the pages for users in reading order, docs/glossary.md explains the words, and docs/adr says why
// things are as they are.
package drover
