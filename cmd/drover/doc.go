// Command drover operates drover's queues. It migrates the database. It shows, edits, redrives and cancels jobs. It
// also pauses queues, and measures how fast drover is.
package main

// The files of this package. A file of a command has its cobra commands (new…Command), its flags, and what it prints.
//
//   - main.go: main, app: reads the command line, runs a command, prints its error, sets the exit code; usage
//     errors
//   - root.go: the tree of commands, the help, the version, and what all commands share: flags, the check of
//     arguments, hints, completion of flags by the shell
//   - session.go: session: the database that the command line names, a client for it, and the errors of a
//     connection (no schema, not migrated)
//   - output.go: printJSON, table, fields, printList: tables, JSON, times, durations and cut texts as the command prints
//     them; sink, the standard output
//   - confirm.go: confirm: a yes-or-no question before a change
//   - audit.go: addAuditFlags: --by and --why
//   - filter.go: filterFlags: the flags that pick jobs (--state, --queue, --kind, --created-before and others),
//     their checks and values; moment and jobID: a time and an id on the command line
//   - jobs_list.go: drover jobs, and drover jobs list: a page of jobs, and the columns of the list
//   - jobs_show.go: drover jobs show: one job with its errors, whether it is set aside, why it waits; the psql line
//     for a job
//   - jobs_redrive.go: drover jobs redrive ID…: single jobs, --max-attempts, --args-patch; each: runs a verb on one
//     id after another and prints the results. Paced redrives are in redrive.go
//   - jobs_many.go: drover jobs count, summary, cancel, discard, delete: by ids or by a filter, with a question
//     before a change
//   - jobs_edit.go: drover jobs edit and rerun: their flags (--to-queue, --to-priority, --run-now, --at and others)
//     and checks
//   - explain.go: drover explain ID: the story of a job; finds an id by its beginning
//   - enqueue.go: drover enqueue: one job from flags, or many from lines of JSON; errors with line and field
//   - failures.go: drover failures list, show, status, policy: failure groups
//   - redrive.go: drover redrive start, preview, list, show, watch, pause, resume, abort: paced redrives of many
//     dead jobs; drover failures redrive; --per-key, --canary, --dry-run and others
//   - queues.go: drover queues list, pause, resume: scopeFlags: --kind, --all or the name of a queue; the end of a
//     pause; the wait for its confirmation
//   - budgets.go: drover budgets: the table of retry budgets
//   - periodic.go: drover periodic list, show, preview, set, pause, resume, run, delete: schedules
//   - archive.go: drover archive add, restore, export, purge: dead letters in the archive
//   - stats.go: drover stats: queues, supervisors, kinds that nobody serves, discarded jobs, with
//     SQL of its own
//   - health.go: drover health: prints the report of internal/health
//   - check.go: drover check, for monitoring: thresholds, alerts, the exit code
//   - migrate.go: drover migrate up, down, status: the migrations that are applied or pending; a question that
//     names the rows which a down would delete
//   - ui.go: drover ui: serves the pages: its address, its token, its warnings
//   - ui_door.go: door: the token that a visitor of drover ui needs, and the cookie for it
//   - demo.go: drover demo: its flags, and the file of deliveries; the story is in internal/demo
//   - bench.go: drover bench: its flags, its database, and the printed results; the measurements are in
//     internal/bench
//   - terminal_unix.go: isTerminal: whether a file is a terminal
//   - terminal_other.go: the same on systems that are not Unix
