// Package store has the statements that supervisors run: rows in, rows out. It starts no goroutine, and it knows no
// handler and no strategy. The statements of clients are in the root package.
//
// # The files
//
// By a job's life:
//
//   - session.go: Session, the connection that the statements run on, and LISTEN
//   - claim.go: the claim: lanes, floors, fences, the columns of a Job
//   - crew.go: the locks that show who is awake and who is on call
//   - refuse.go: jobs that the database refuses to hand out or to change
//   - settle.go: starts, settles (the update of a job's row), and the look at a row whose settle matched nothing
//   - errors.go: one entry of the column errors
//   - tx.go: settles in a caller's transaction
//   - budgets.go: retry budgets and their slots
//   - limits.go: pauses: supervisors read them, and confirm that they follow
//   - lease.go: registration, heartbeats, epochs, the end of a supervisor's row
//   - rescue.go: the search for jobs of the dead, and taking a death back
//   - blame.go: the evidence that deaths leave
//   - sweep.go: the search for jobs behind the floors
//   - failures.go: adds up failure groups
//   - redrive.go: one tick of the redrives
//   - periodic.go: schedules: declare, find the schedules that are due, tick
//   - activity.go: the runs of a minute
//   - prune.go: jobs whose time is over, and those beyond a count
package store
