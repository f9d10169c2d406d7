// Package store has the SQL statements that supervisors run, and turns their rows into Go values. It starts no
// goroutine, and it knows no handler and no retry strategy. The statements of clients are in the root package.
//
// # The files
//
// In the order of a job's life:
//
//   - session.go: Session, the connection that the statements run on, and LISTEN
//   - claim.go: the claim: lanes, floors, fences, the columns of a Job
//   - crew.go: the locks that show which supervisors are lookouts and which are on call
//   - refuse.go: jobs that the database refuses to hand out or to change
//   - settle.go: records of starts; settles (the update of a job's row); the look at jobs whose settle matched no row
//   - errors.go: one entry of the column errors
//   - tx.go: settles in a caller's transaction
//   - budgets.go: retry budgets and their slots
//   - limits.go: pauses: supervisors read them, and confirm that they follow
//   - lease.go: registration, heartbeats, epochs, the end of a supervisor's row
//   - rescue.go: the search for jobs of dead supervisors; taking back a death that was none
//   - blame.go: the evidence that deaths leave
//   - sweep.go: the search for jobs behind the floors
//   - failures.go: adds up failure groups
//   - redrive.go: one tick of the redrives
//   - periodic.go: schedules: declare, find the schedules that are due, tick
//   - activity.go: how many runs began and ended
//   - prune.go: the deletion of jobs whose retention is over or that exceed a retention by count
package store
