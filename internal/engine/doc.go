// Package engine runs supervisors: it claims jobs, calls handlers, records how runs ended, keeps the lease and rescues
// the jobs of dead supervisors. The SQL is in package store. Package engine reaches workers, strategies and hooks only
// through a Handler. Some names are exported only for tests.
//
// # The files
//
// What all parts use:
//
//   - config.go: Config and Queue, the engine's settings; Handler, which the root package implements; Crash; errors
//     of AddQueue
//   - engine.go: Engine: makes the parts; Run, drain, StopNow, AddQueue, RemoveQueue, Stats; every go statement
//   - shared.go: Shared, what all parts use: settings, clock, log, the list of queues, the lease, the sets of runs;
//     whether a run may begin; cancelRun; the contents of a registration; the context and the bound of a round trip
//   - outage.go: Trouble: the growing pause of a part after failures of the database; outage: one log of all these
//     failures
//   - failpoint.go: failpoint: marks the places where the fault suite may end a process; does nothing
//   - failpoint_on.go: failpoint in a build with the tag droverfail: ends the process
//
// The claimer takes due jobs:
//
//   - claim.go: claimer, Plan: plans a claim (lanes, room, turns, floors), sends it, advances the floors, makes a
//     Run of each job and puts it into the buffer of its queue (dispatch)
//   - queue.go: QueueState: the slots of a queue, and how much to claim ahead; Buffer, the runs that wait for a
//     slot; tally, counters of runs
//   - alarm.go: alarm, signal: wakes the claimer, and knows when the next job is due
//   - sleep.go: sleep: when to look for due jobs next, and when to fall asleep; lookout: the queues for which the
//     claimer is the awake supervisor; trickle; pure, except the claimer's methods at the end
//   - calls.go: calls: looks into queues on which other supervisors count; a claim answers such a call, or the keeper
//     hands it on
//   - oncall.go: onCall, for the keeper: takes call slots (advisory locks), acts on notifications of jobs (called),
//     hands on calls for which there is no room, stops listening when there is too much noise
//   - solo.go: SoloOrder: the keeper's order to the claimer to run a strong suspect alone; how long the claimer waits
//     for its other runs
//   - lost_claims.go: FindOut: looks for the jobs of a claim whose reply was lost, and raises the epoch; forgets
//     all floors
//   - at_fault.go: pickApart: finds the one job because of which the database refuses a statement over many jobs
//     (claims, starts, settles and rescues use it); refuse: takes this job out of the way of others, and logs it
//   - refused_claims.go: RefusedClaims: a claim that the database refuses is made in parts (PickApart, claimParts);
//     the list of jobs that are set aside, and their next tries (TendAside); lanes that cannot be read; how many
//     jobs a claim asks for (Asked)
//
// A run, from its start to its end:
//
//   - run.go: Run and Outcome: one claimed job, and how it ended; the causes ErrTimeout, ErrExpired and others;
//     Change: an outcome as the store settles it; runSet
//   - runner.go: runner: serves the slots, calls the handler, cancels runs whose time is up and abandons deaf
//     handlers (watch), opens and closes queues; asks for stacks (takeStacks)
//   - context.go: runContext: the handler's context, made when a handler first looks at it
//   - stacks.go: Stacks: reads the stacks of all goroutines, and picks the ones of handlers whose time is almost up
//   - starts.go: NoteStart: records the start of jobs with a single attempt, before their handlers are called
//   - events.go: Event and its kinds; report and count, which make events and counters of outcomes; logLimiter:
//     keeps lines of the log from repeating
//   - reporter.go: reporter: passes events on; each subscriber has its own line (a queue of events), which drops
//     events when it is full
//
// How outcomes are recorded:
//
//   - settle.go: settler, Settling: records outcomes, many in one round trip, until each is settled; outcomes that
//     the database refuses are tried apart (settleApart, Refused, tryRefused), locked rows again later
//   - settle_unmatched.go: found: why the settle of a run matched no row, read from its job's row: settled already,
//     in the handler's transaction, by an operator, taken over
//   - settle_in_tx.go: SettleTx, HoldTx: settles in a handler's transaction, and the reason if a settle matched no row
//   - budgets.go: budgets: takes slots of retry budgets before retries and rescues are recorded (Reserve)
//   - budgets_in_tx.go: slotRequest: the same for a settle in a handler's transaction
//
// The lease, and the other supervisors:
//
//   - lease.go: lease: a supervisor's claim to its jobs: id, epoch, and whether it has ended
//   - keeper.go: keeper: heartbeats (Beat) and what follows from their replies: which others are dead (observe), a
//     refused beat, the duties whose turn it is; LISTEN and the wait for notifications (Listens, Heard); the end of
//     a lease that was lost (Expire), and the next one (startOver)
//   - register.go: Start, Register: how a supervisor gets its row, and takes it out again at its end; declares
//     schedules again that a registration has left out
//   - silence.go: Silences: which of the other supervisors are dead, because their beats stopped; pure
//   - rescue.go: Rescue: frees the jobs of a supervisor that died (Free, decide, settleFreed), Orphaned: the jobs
//     of owners without a row; UndoCrashes: takes back crashes if we were only silent
//   - audit.go: audit: looks for jobs that run in this supervisor's name although its settler does not know them,
//     and releases them. Jobs whose owner has no row (orphans) are in sweep.go and rescue.go
//   - rewound.go: rowIsOlder: whether a supervisor's own row shows that the database has gone back to an older state;
//     rewriteCrews; BeatPacer
//   - unheard.go: AskUnheard: asks for changes of which no notification may have come: cancelled runs, pauses that are
//     over, and whether our row lists our queues
//   - healthy.go: Ailment: whether a supervisor does its work, and why not
//
// Work that one supervisor does for all, and pauses:
//
//   - holds.go: holds: which queues, kinds and jobs are paused (rows of drover_limits), and what may be claimed;
//     pure
//   - follower.go: follower: reads the pauses when they change, hands back jobs that are now paused, confirms that
//     it follows, reports EventPaused
//   - sweep.go: Sweep: the full sweep, when it is this supervisor's turn: looks for the jobs that claims and near
//     sweeps have missed, and for orphans
//   - redrive.go: redriver: carries on the paced redrives of all clients, a tick at a time
//   - periodic.go: scheduler: enqueues the jobs of all schedules, at their ticks; puts aside a schedule that fails
//   - activity.go: counts what ran, and writes it once a minute; samples the depth of queues
//   - prune.go: pruner: deletes or archives jobs that have ended, when their time is over; rows that cannot be
//     deleted; follow-ups that are still missing
//   - prune_count.go: PruneByCount: retention by count: finds ended jobs of each kind beyond the newest N (surplus,
//     a heap)
package engine
