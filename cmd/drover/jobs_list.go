package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
)

func newJobsCommand(a *app) *cobra.Command {
	cmd := group(&cobra.Command{Use: "jobs", Short: "List, show, count, redrive, edit, rerun, cancel, discard and delete jobs"})
	cmd.AddCommand(
		newJobsListCommand(a), newJobsShowCommand(a), newJobsCountCommand(a), newJobsSummaryCommand(a),
		newJobsRedriveCommand(a), newJobsEditCommand(a), newJobsRerunCommand(a), newJobsCancelCommand(a), newJobsDiscardCommand(a), newJobsDeleteCommand(a),
	)
	return cmd
}

func newJobsListCommand(a *app) *cobra.Command {
	var after string
	var limit int
	cmd := &cobra.Command{
		Use:   "list [ID...]",
		Short: "List jobs, newest first",
		Long: `List the jobs that match all filter flags, newest first. With --state discarded or --reason, the job that was
discarded last comes first.

Dead letters have indexes of their own. For other jobs, a filter that matches few of them makes the server
read many rows.

With --json the command prints {"jobs": [...], "next": PLACE}. Give next to --after for the next page; the
last page has none.`,
		Example: `  drover jobs list --state discarded --reason attempts_exhausted
  drover jobs list --queue payments --error timeout --limit 200
  drover jobs list --state discarded --limit 1000 --json | jq -r '.jobs[].id' | xargs -r drover jobs redrive  # one page`,
	}
	picked := addFilterFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, ids []string) error {
		if err := picked.check(cmd, ids); err != nil {
			return err
		}
		if limit < 1 || limit > 1000 {
			return usagef("--limit %d is not 1 to 1000", limit)
		}
		return flagNames(a.reading(cmd.Context(), func(ctx context.Context, s *session) error {
			return a.listJobs(ctx, s, picked.at(s.now), jobID(after), limit)
		}))
	}
	cmd.Flags().IntVar(&limit, "limit", 50, "jobs on a page, 1 to 1000")
	cmd.Flags().StringVar(&after, "after", "", "show the next page: the `place` that the page before printed; use the same filter")
	return cmd
}

// flagNames turns a refused argument into a usage error that names the flag.
func flagNames(err error) error {
	names := append(append(filterNames(), auditNames()...), "ArgsPatch:", "--args-patch:", "MaxAttempts:", "--max-attempts:", "Rate: ", "--rate ")
	return flagNamed(err, names...)
}

func (a *app) listJobs(ctx context.Context, s *session, filter drover.Filter, after string, limit int) error {
	page, err := s.client.Jobs(ctx, filter, after, limit)
	if err != nil {
		return err
	}
	if page.Next != "" {
		defer fmt.Fprintf(a.stderr, "%d shown, more with --after %s\n", len(page.Jobs), page.Next)
	}
	if a.json {
		page.Jobs = append([]drover.JobInfo{}, page.Jobs...)
		return a.printJSON(page)
	}
	heading := []string{"ID", "QUEUE", "KIND", "STATE", "ATTEMPT", "DUE", "LAST ERROR"}
	return printList(a, page.Jobs, nil, "no jobs", heading, func(j *drover.JobInfo) []string {
		return []string{
			j.ID, shorten(j.Queue, 24), shorten(j.Kind, 32), stateOf(j), attempts("/", j),
			due(j, s.now), shorten(lastError(j), 60),
		}
	})
}

// lastError is the last column of a list of jobs: the job's newest error, and which parts of the job cannot be read.
func lastError(j *drover.JobInfo) string {
	switch text := j.LastError(); {
	case j.Unreadable == "":
		return text
	case text == "":
		return "(unreadable: " + j.Unreadable + ")"
	default:
		return text + " (unreadable: " + j.Unreadable + ")"
	}
}

// stateOf is the job's state, with the reason if the job was discarded.
func stateOf(j *drover.JobInfo) string {
	if j.DiscardReason != "" {
		return fmt.Sprintf("%s (%s)", j.State, j.DiscardReason)
	}
	return string(j.State)
}

// The function due describes the time of a job in a list: when it ended, when its present run began, or when it is due.
func due(j *drover.JobInfo, now time.Time) string {
	switch {
	case j.FinalizedAt != nil:
		return "ended " + ago(*j.FinalizedAt, now)
	case j.State == drover.Running && j.AttemptedAt != nil:
		return "began " + ago(*j.AttemptedAt, now)
	case j.State == drover.Parked:
		return "-"
	}
	return relative(j.ScheduledAt, now)
}
