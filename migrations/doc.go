// Package migrations has drover's schema as SQL files for goose, and applies them.
//
// You can also run the goose command with the files of this folder:
//
//	goose -dir migrations -table drover_goose_version postgres "$DATABASE_URL" up
package migrations

// The files of this package:
//
//   - 00010_jobs.sql: the tables jobs, queues and supervisors; the rights of roles (drover_secure); ids, enqueue,
//     NOTIFY, bounds of a row, jobs that are set aside
//   - 00011_operate.sql: lists, counts and pages; cancel, discard, delete; the views of dead letters
//   - 00012_redrives.sql: redrives: candidates, pace, progress
//   - 00013_failures.sql: failure groups, their tallies and policies; parked jobs
//   - 00014_budgets.sql: retry budgets and their slots
//   - 00015_blame.sql: the evidence that deaths of processes leave, and the orders to run suspects alone
//   - 00016_retention.sql: follow-ups; the archive and restores from it; which jobs are old enough to go
//   - 00017_limits.sql: pauses, and which supervisors have confirmed them
//   - 00018_unique.sql: unique jobs: their keys, and what becomes of a second one
//   - 00019_periodic.sql: schedules: cron, zones, ticks, what a tick enqueues
//   - 00020_edit.sql: edits of waiting jobs, reruns of completed ones
//   - 00021_activity.sql: the table of what ran, by the minute
//   - 00022_seen.sql: a change only if nobody has changed the row since the caller saw it
//   - 00023_depth.sql: an estimate of how many jobs wait
//   - embed.go: Up, Down, List: applies the files with goose
//   - schema.go: Schema: the same in a schema that you name
//   - pooler.go: refuses connections through a pooler
