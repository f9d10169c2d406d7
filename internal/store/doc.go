// Package store has the SQL statements that supervisors run, and turns their rows into Go values. It starts no
// goroutine, and it knows no handler and no retry strategy. The statements of clients are in the root package. Failure
// groups, redrives, schedules and retention are functions in the migrations, which the statements here call.
//
// # The files
//
// In the order of a job's life:
//
//   - session.go: Session, the connection that the statements run on; Line, which replaces it; LISTEN and
//     WaitForNotification; Borrow, inTx
//   - register.go: Register, Serve: a supervisor's row, and the policies of its queues, kinds and builds, which it
//     stores for others (queues, drover_kinds, drover_builds)
//   - crew.go: Crew: the advisory locks that show which supervisors are lookouts and which are on call; HandOn
//   - claim.go: SQLClaim: the claim, by lanes, floors and room; ClaimRequest, ClaimReply; the columns of a Job as
//     it comes back
//   - aside.go: Refuse, SetAside, Aside, TryAside: jobs that the database refuses to hand out or to change
//     (drover_set_aside); the parts of a refused claim (Candidates, ClaimThese)
//   - starts.go: Start: records that jobs with a single attempt start
//   - settle.go: Fence; Settle: completions and the update of a job's row for all other outcomes (SQLComplete,
//     SQLSettle); Look: the rows of jobs whose settle matched no row
//   - error_entry.go: ErrorEntry: one entry of the column errors
//   - settle_in_tx.go: CompleteTx, SettleTx, HoldTx: the same in a handler's transaction
//   - budgets.go: Reserve: retry budgets and their slots; registers the budgets of a supervisor
//   - pauses.go: Limits, Followed: supervisors read the pauses (drover_limits), and confirm that they follow
//   - lease.go: Beat: the heartbeat and what it reads; RaiseEpoch, NoteSilence, DeclareLost: the epoch and the
//     death of a supervisor; Gone: runs that are over; Forget: the end of its row
//   - rescue.go: Scan, Held: pages through the running jobs of a dead supervisor; Free: ends their runs, with the
//     crash; Forgive: jobs that rescues have set aside
//   - blame.go: Judge, Verdict, Background: the evidence that deaths leave (drover_ended_supervisors); TakeBack,
//     Blamed: takes back a death that did not happen; TakeSolo
//   - sweep.go: Sweep: the search for due jobs behind the floors
//   - failures.go: TendFailures: has the database add up the tallies of failure groups
//   - redrive.go: Pace: one tick of the paced redrives
//   - periodic.go: schedules: DeclareAgain, PeriodicDue (the schedules that are due), FirePeriodic (enqueues at a
//     tick)
//   - activity.go: NoteActivity: how many runs began and ended; SampleDepth
//   - prune.go: Retain: calls drover_retain, which deletes jobs whose retention is over; KeptCounts, Ended: retention
//     by count; follow-ups that are still missing
package store
