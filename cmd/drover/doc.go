// Command drover operates drover's queues. It migrates the database. It shows, edits, redrives and cancels jobs. It
// also pauses queues, and measures how fast drover is.
package main

// The files of this package:
//
//   - main.go: app: reads the command line, runs a command, prints its error, sets the exit code
//   - root.go: the tree of commands and what all of them share: flags, the check of arguments, hints
//   - session.go: session: the database that the command line names, and a client for it
//   - output.go: tables, JSON, times and durations as the command prints them
//   - confirm.go: questions before a change
//   - audit.go: --by and --why
//   - filter.go: the flags that pick jobs
//   - jobs.go: drover jobs list and show; the psql line for a job
//   - jobs_many.go: drover jobs count, summary, cancel, discard, delete: ids or a filter
//   - jobs_edit.go: drover jobs edit and rerun
//   - explain.go: drover explain
//   - enqueue.go: drover enqueue
//   - failures.go: drover failures
//   - redrive.go: drover redrive
//   - queues.go: drover queues: list, pause, resume
//   - budgets.go: drover budgets
//   - periodic.go: drover periodic
//   - archive.go: drover archive
//   - stats.go: drover stats
//   - health.go: drover health
//   - check.go: drover check, for monitoring
//   - migrate.go: drover migrate
//   - ui.go: drover ui: serves the pages
//   - ui_door.go: door: the token that a visitor of drover ui needs
//   - demo.go: drover demo
//   - bench.go: drover bench
//   - terminal_unix.go: whether a file is a terminal
//   - terminal_other.go: the same on systems that are not Unix
