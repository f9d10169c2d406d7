// Package engine runs supervisors: it claims jobs, calls handlers, records how runs ended, keeps the lease and rescues
// the jobs of dead supervisors. The SQL is in package store. Package engine reaches workers, strategies and hooks only
// through a Handler. Some names are exported only for tests.
//
// # The files
//
// What all parts use:
//
//   - config.go: Config; Handler, which the root package implements; errors of AddQueue
//   - engine.go: makes the parts; Run, drain, AddQueue; every go statement
//   - shared.go: Shared, what all parts use: settings, clock, log, the list of queues, the lease, the sets of runs;
//     whether a run may begin; cancels a run; the context and the bound of a round trip
//   - outage.go: the pauses of the parts after failures of the database, and one log of them
//   - failpoint.go: where the fault suite may end a process: here nothing happens
//   - failpoint_on.go: the end of the process there, in a build with the tag droverfail
//
// The claimer takes due jobs:
//
//   - claim.go: claimer: plans a claim (lanes, room, turns, floors), sends it, makes a Run of each job and puts it into the
//     buffer of its queue
//   - queue.go: QueueState, its slots, how much to claim ahead; Buffer, the runs that wait for a slot
//   - alarm.go: alarm: wakes the claimer, and knows when the next job is due
//   - sleep.go: sleep, when to look for due jobs; lookout, the queues for which the claimer is the awake supervisor
//   - calls.go: calls: looks that other supervisors count on, answered by a claim or handed on
//   - oncall.go: onCall: the keeper's part of calls: gets notifications of jobs, hands on jobs for which there is no room
//   - solo.go: SoloOrder: the keeper's order to the claimer to run a strong suspect alone
//   - sweep.go: the full sweep: looks for the jobs that claims and near sweeps have missed
//   - lost_claims.go: looks for the jobs of a claim whose reply was lost
//   - refused_claims.go: a claim that the database refuses: jobs that are set aside, lanes that cannot be read
//   - refuse.go: refusal: finds the job because of which the database refuses many, for claims, starts, settles, rescues
//
// A run, from its start to its end:
//
//   - run.go: Run and Outcome: one claimed job, and how it ended; runSet
//   - runner.go: runner: serves the slots, calls the handler, abandons deaf handlers, opens and closes queues
//   - context.go: runContext: the handler's context, made when a handler first looks at it
//   - stacks.go: the stacks of handlers whose time is almost up
//   - starts.go: notes the start of jobs with a single attempt
//   - events.go: Event; limits lines of the log that would repeat
//   - reporter.go: reporter: passes events on; each subscriber has its own line (a queue of events)
//
// How outcomes are recorded:
//
//   - settle.go: settler: records outcomes, many in one round trip, until each is settled
//   - found.go: the end of a run whose settle matched nothing, read from its job's row
//   - tx.go: settles in a handler's transaction, and the reason for a refusal
//   - budgets.go: budgets: takes slots of retry budgets before retries are recorded
//   - asks.go: the same for a handler's transaction
//
// The lease, and the other supervisors:
//
//   - lease.go: lease: a supervisor's claim to its jobs
//   - keeper.go: keeper: heartbeats and their replies, notifications, the duties whose turn it is
//   - register.go: how a supervisor gets its row, and takes it out again
//   - silence.go: which of the other supervisors are dead; pure
//   - rescue.go: frees the jobs of a supervisor that died; takes back crashes if we were only silent
//   - orphans.go: the audit: looks for jobs that run in this process' name although it does not know them
//   - rewound.go: a supervisor's own rows after the database has gone back to an older state
//   - unheard.go: asks for changes of which no notification may have come: cancelled runs, pauses that are over
//   - healthy.go: whether a supervisor does its work, and why not
//
// Work that one supervisor does for all:
//
//   - limits.go: holds: the queues, kinds and jobs that are paused; pure
//   - follower.go: follower: follows the pauses: hands back what is held, and confirms
//   - redrive.go: redriver: carries on the redrives of all clients
//   - periodic.go: scheduler: enqueues the jobs of all schedules; declares the schedules of this program
//   - activity.go: counts what ran, and writes it once a minute
//   - prune.go: pruner: deletes or archives jobs that have ended, when their time is over
//   - prune_count.go: deletes or archives ended jobs of each kind, except the newest ones
package engine
