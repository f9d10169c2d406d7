// Package drover is a job queue inside the Postgres that your application already runs. You enqueue jobs
// in your own transactions. A job that fails is retried, kept, and can be brought back.
//
// # Guarantees
//
//   - At least once: an acknowledged enqueue is not lost, and a job runs again if its process died. So a
//     handler may run twice, and its effects outside the database must allow for that; Job.ID is the same
//     each time.
//   - One owner at a time: every write that ends a run compares a fence (id, claim_seq, claimed_by,
//     attempted_at). If the owner has lost its lease, the write changes nothing and returns ErrLeaseLost.
//     The same holds if the job is gone and another job has its id.
//   - Exactly-once effects inside the database: Job.CompleteTx commits the handler's rows and the completion
//     together, or neither.
//   - Nothing disappears: discarded jobs stay until a queue's setting or an operator removes them. Every
//     failed run is counted, and the job keeps its first 5 and last 15 errors.
//   - Postgres' clock decides whatever two processes must agree on. Processes send durations, not times.
//   - Polling finds every job. NOTIFY only makes it quicker, and everything works without LISTEN.
//
// Not promised: an order among jobs that run side by side, that a handler is called only once, and that a
// handler which ignores its context stops. Commits are as durable as the server makes them.
// docs/guarantees.md names the tests that prove each of these lines.
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
// Available, scheduled and retryable jobs are claimed as soon as they are due. No other process has to
// promote them first, so a job waits exactly as long as its strategy says. Parked jobs wait for something
// other than time: for a build that fixes their failure (FailurePark), or, in a paced redrive, for room
// among the jobs of their key.
//
// # How it is used
//
// A [Client] enqueues and operates; it starts nothing. [Client.NewSupervisor] makes the process-wide
// supervisor, and [Supervisor.Run] claims, runs and settles jobs until its context is done. [Handle] makes
// a worker from a function. The error that the function returns decides what happens to the job: nil, a
// plain error, [Discard], [RetryAfter], [Snooze], [Cancel], [DontCount]. A [RetryStrategy] decides how long
// a failed job waits.
//
// The package migrations creates the schema; so does the goose command with the files of that package.
//
// # The files
//
// In the order of a job's life:
//
//	doc.go                         this tour
//	jobs.go                        Args, Job, Config, Client, the states and the reasons of a discard
//	errors.go                      errors that callers branch on
//	enqueue.go                     EnqueueOpts; Enqueue, EnqueueMany and their twins in a caller's transaction
//	middleware.go                  Middleware: wraps enqueues and runs
//	unique.go                      Unique: a job that is the only one like it
//	validate.go                    gathers mistakes, so that all are reported at once
//	validate_args.go               refuses args and names that SQL could not take
//	worker.go                      Handle, WorkerOpts: a kind's handler and its settings
//	follow_up.go                   FollowUp: the job that the database enqueues when another one is discarded
//	supervisor.go                  Supervisor, Run, drain; every go statement
//	supervisor_config.go           SupervisorConfig, Queue: defaults, checks, and what is stored for other processes
//	supervisor_registry.go         the supervisors of a client
//	supervisor_report.go           hands events to hooks, so that one that hangs costs its own events only
//	supervisor_queue.go            a queue inside a supervisor: its slots, its buffer, how much to claim ahead
//	supervisor_claim.go            claims due jobs
//	supervisor_lookout.go          what the parts of a supervisor tell its claimer
//	supervisor_alarm.go            how they interrupt its control goroutine
//	supervisor_wake.go             when to look for due jobs, and when to sleep
//	supervisor_sleep.go            whether a supervisor is asleep, and what it says of that to others
//	supervisor_lost_claims.go      claims whose reply was lost
//	supervisor_refused_claims.go   finds the job that makes the database refuse a claim, and takes it out of the way
//	floors.go                      where a claim begins to look, so that dead rows cost nothing
//	supervisor_bell.go             which supervisor is woken next, when it looks again, and how supervisors share the polls
//	near_sweeps.go                 claims that look behind the floor, for jobs that were committed late
//	hearing.go                     how often a sleeper polls if an enqueue may have seen it awake
//	supervisor_audit.go            looks for jobs that run in this supervisor's name although it does not know them
//	supervisor_gone_back.go        what a supervisor does if the database has gone back to an older state
//	supervisor_run.go              one claimed job, from its start to its outcome
//	verdict.go                     Discard, Snooze and the others: how a handler speaks, and how it is read
//	outcome.go                     what happens to the job then
//	tx.go                          CompleteTx, SettleTx and EnqueueTx inside a handler; database/sql
//	tx_refused.go                  why CompleteTx or SettleTx was refused: a lost claim, or something else
//	supervisor_start.go            records the start of jobs with a single attempt
//	rehearse.go                    Worker.Rehearse: a handler without a database, for tests
//	supervisor_settle.go           records outcomes, many in one round trip, until each is settled
//	supervisor_budget.go           takes slots of retry budgets before retries are recorded
//	retry_strategy.go              computes the delay from the attempt; pure
//	retry_jitter.go                the random part of a delay; pure
//	retry_after.go                 reads the HTTP header Retry-After
//	sanitize.go                    cleans the texts of errors and panics, and removes the secrets
//	supervisor_lease.go            heartbeat, notifications, watching other supervisors
//	supervisor_silence.go          which of the other supervisors are dead; pure
//	supervisor_rescue.go           rescues the jobs of a dead supervisor
//	supervisor_sweep.go            the full sweep: finds jobs that floors and near sweeps have missed
//	supervisor_stacks.go           where a handler was when its time was up
//	supervisor_solo.go             the turn to run strong suspects alone
//	supervisor_unheard.go          asks for cancelled runs and added queues that no notification has announced
//	supervisor_beside.go           jobs that ran next to a convicted job no longer wait
//	operate_redrive.go             dead jobs that come back at a pace: RedrivePlan, Redrive and its verbs
//	supervisor_redrive.go          carries out redrives, whoever began them
//	operate_periodic.go            Periodic: schedules that enqueue jobs at their times, and their verbs
//	supervisor_periodic.go         ticks: enqueues periodic jobs, whoever made their schedules
//	operate_limits.go              Pause, Resume, Limits: what may not start
//	supervisor_limits.go           follows the limits: hands back what is held, and says so
//	args_shape.go                  the JSON shape of a worker's args, to check patches against
//	supervisor_prune.go            deletes or archives old jobs that have ended
//	operate_failures.go            failure groups: failures by cause, and what happens to their jobs
//	budget.go                      RetryBudget: limits the retries of all processes together
//	operate_filter.go              Filter: which jobs a verb applies to
//	operate.go                     Job, Jobs, Count, DiscardedGroups, RedriveJob, Cancel, Discard
//	operate_explain.go             Explain: a job's story in plain words, why it waits, what comes next
//	operate_many.go                CancelMany, DiscardMany, DeleteMany: verbs over all jobs that match a Filter
//	operate_edit.go                Edit, EditMany, Rerun: waiting jobs get another time or other args, completed ones run again
//	operate_archive.go             Archive, Restore, ExportArchive, PurgeArchive
//	clock.go                       reports that the server's clock has gone back
//	snapshot.go                    Snapshot: depths, supervisors, what needs a person
//	telemetry.go                   Hooks and log attributes
//	failpoint.go                   where the fault suite may end a process; does nothing here
//	failpoint_on.go                the same, built with the tag droverfail: ends the process
//	isolate.go                     finds the row that makes the database refuse a batch
//	supervisor_links.go            a supervisor's own connections: how they are made, and when they are replaced
//	supervisor_outage.go           pauses and log lines while the database is away
//	supervisor_healthy.go          Healthy, Probe: whether heartbeats, claims and settles reach the database
//	store_pg.go                    SQL: pipelines, errors, Check
//	store_pg_enqueue.go            SQL: enqueue
//	store_pg_unique.go             SQL: enqueue of unique jobs
//	store_pg_claim.go              SQL: claim
//	store_pg_settle.go             SQL: settle
//	store_pg_refused.go            SQL: jobs that the database refuses to hand out or to settle
//	store_pg_lease.go              SQL: registration, heartbeat
//	store_pg_wake.go               SQL: sleep, and waking another supervisor
//	store_pg_rescue.go             SQL: the jobs of dead supervisors
//	store_pg_blame.go              SQL: evidence of deaths, and the right to run suspects
//	store_pg_sweep.go              SQL: the full sweep
//	store_pg_retention.go          SQL: pruning
//	store_pg_failures.go           SQL: failure groups
//	store_pg_budgets.go            SQL: retry budgets
//	store_pg_operate.go            SQL: operators' verbs
//	store_pg_redrives.go           SQL: redrives
//	store_pg_periodic.go           SQL: schedules of periodic jobs
//	store_pg_limits.go             SQL: limits
//	store_pg_explain.go            SQL: what is around a job, to explain it
//	store_pg_archive.go            SQL: the archive
//	store_pg_snapshot.go           SQL: depths and supervisors
//
// Some of the logic is SQL, in migrations, next to the tables and views:
//
//	00010_jobs.sql       the tables that a claim needs; enqueue, wake; isolating a bad row
//	00011_operate.sql    filters, lists, the verbs over one job and over many
//	00012_redrives.sql   the pace of redrives
//	00013_failures.sql   failure groups and their policies
//	00014_budgets.sql    the calendar of retries
//	00015_blame.sql      records of process deaths; the decisions are in Go
//	00016_retention.sql  follow-ups, archive
//	00017_unique.sql     unique jobs: their keys, and what an enqueue does if one is there
//	00018_periodic.sql   schedules of periodic jobs, cron
//	00019_edit.sql       editing waiting jobs, running completed ones again
//	00020_limits.sql     pauses, by scope
//
// Besides this package there are
//
//	drovertest        tests of handlers, and of what was enqueued
//	ui                web pages
//	cmd/drover        the command
//	examples/webhook  a program
//	faults            the fault suite
//
// and four modules, so that a program has what they depend on only if it uses them:
//
//	prometheus        metrics for Prometheus
//	otel              traces and metrics for OpenTelemetry
//	deploy            alerts and a dashboard, with their tests
//	bench             compares drover with other queues
//
// These packages are internal:
//
//	internal/demo, internal/bench  run by the command
//	internal/pgdev                 finds or starts a Postgres for the command and the tests
//	internal/health                what holds vacuum back, the state of the tables, what a claim costs; its SQL too
//	internal/pgtext                makes text and JSON fit for Postgres
//	internal/fingerprint           finds out which failures are the same
//	internal/blame                 decides which job killed a process: evidence, suspects, conviction; with its simulation
//	internal/preview               simulates an outage for the command: a strategy, a budget, a capacity
//	internal/plot                  draws load over time as text
//	internal/drive                 runs supervisors for measurements
//	internal/meters                what both modules of metrics count
//	internal/mutants               a list of deliberate bugs
//
// docs/README.md lists the pages for users in reading order, docs/glossary.md explains the words, and
// docs/adr explains why things are as they are.
package drover
