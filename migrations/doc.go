// Package migrations has drover's schema as SQL files for goose, and applies them.
//
// You can also run the goose command with the files of this folder:
//
//	goose -dir migrations -table drover_goose_version postgres "$DATABASE_URL" up
package migrations

// The files of this package. Each SQL file has the tables of one concept and the functions that use them. 00010_jobs.sql
// has what all other files need.
//
//   - 00010_jobs.sql: the tables jobs (its columns, checks and indexes), queues (with its retention), drover_kinds,
//     drover_supervisors and drover_crews; first of all the checks of the schema and the rights of functions
//     (drover_secure); ULIDs; the bounds of a row (drover_bounds, drover_json_fault); set-aside jobs
//     (drover_set_aside, drover_refuse, and drover_walk, which finds the one job that makes a statement fail); NOTIFY
//     (drover_wake, drover_notify); the turns of claims (drover_take_turn); the server's clock (drover_clock);
//     drover_enqueue, drover_enqueue_many and their errors (drover_refuse_clash); the view job_counts
//   - 00011_operate.sql: filters as SQL conditions (drover_where, drover_find); lists, pages, counts;
//     drover_cancel, drover_discard and drover_delete_many, for one job and for many; the views discarded_jobs and
//     discarded_summary
//   - 00012_redrives.sql: drover_redrive for one job; drover_redrives and paced redrives: plan, start, preview, the
//     mark of their jobs (drover_redrive_mark), one tick (drover_pace), caps by key, canary, skipped jobs, pause,
//     abort
//   - 00013_failures.sql: drover_failure_groups, tallies and builds: counts of each failure by the hour; status and
//     policy of a group; parked jobs (drover_unpark)
//   - 00014_budgets.sql: drover_budgets and drover_budget_slots: retry budgets, and the calendar of their slots
//     (drover_reserve)
//   - 00015_blame.sql: only two tables, without functions: drover_ended_supervisors, the evidence that deaths of
//     processes leave; drover_solo, the turn to run suspects alone
//   - 00016_retention.sql: follow-ups of discarded jobs (drover_follow_up); jobs_archive: archive, restore, purge,
//     export; the pruner's deletion of old jobs (drover_retain), with retention by count
//   - 00017_pauses.sql: drover_limits: drover_pause, drover_resume; which supervisors have confirmed a pause; the
//     check of a scope
//   - 00018_unique.sql: unique jobs: drover_unique_key, and drover_enqueue_unique, which decides what becomes of a
//     second job: existing, replaced, debounced
//   - 00019_periodic.sql: drover_periodic: schedules: cron and zones, the next ticks; declare, set, pause, run;
//     what a tick enqueues (drover_periodic_fire), catch-up and overlap
//   - 00020_edit.sql: drover_edit_jobs: edits of waiting jobs; drover_rerun_jobs: reruns of completed ones
//   - 00021_activity.sql: drover_activity: how many jobs ran, by the minute
//   - 00022_seen.sql: drover_seen, drover_require_seen: a change only if nobody has changed the row since the
//     caller saw it
//   - 00023_depth.sql: drover_sample_depth: an estimate of how many jobs wait, and its columns in drover_activity
//   - embed.go: FS, Up, Down, List, Status: applies the files with goose; its version table; the lock of two
//     migrations; errors of a search_path
//   - schema.go: Schema: checks the name of a schema, and makes a connection that migrates this schema
//   - pooler.go: checkPooler: refuses connections through a transaction pooler
