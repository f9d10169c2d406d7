package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
)

func newQueuesCommand(a *app) *cobra.Command {
	cmd := group(&cobra.Command{Use: "queues", Short: "List queues, one on a line, and pause and resume them"})
	cmd.AddCommand(
		newQueuesListCommand(a),
		newQueuesVerbCommand(newPauseCommand(a), "pause", "Start no more jobs of a queue: the same as drover pause queue:NAME"),
		newQueuesVerbCommand(newResumeCommand(a), "resume", "Start the jobs of a queue again: the same as drover resume queue:NAME"),
	)
	return cmd
}

func newQueuesListCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the queues that have jobs or supervisors, the latest one first",
		Long: `List the queues that have jobs or supervisors, one on a line, the one with the longest wait first.

In a large table a number that begins with ~ is an estimate. More about the same jobs: drover stats.`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.listQueues(cmd.Context()) },
	}
}

func (a *app) listQueues(ctx context.Context) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	snap, err := s.client.Snapshot(ctx)
	if err != nil {
		return err
	}
	queues := byLateness.sorted(topQueues(snap), snap.At)
	if a.json {
		return printList(a, "queues", queues)
	}
	if len(queues) == 0 {
		fmt.Fprintln(a.stdout, "no queue has jobs or supervisors")
		return nil
	}
	rows := [][]string{{"QUEUE", "LATE", "AVAILABLE", "RUNNING", "RETRYABLE", "DEAD", "SCHEDULED", "PARKED", "COMPLETED", "CANCELLED", "SERVED BY", "PAUSED"}}
	for _, q := range queues {
		paused := "-"
		if q.Paused {
			paused = "yes"
		}
		rows = append(rows, []string{
			q.Queue, q.lateText(snap.At), q.count(drover.Available), q.count(drover.Running), q.count(drover.Retryable), q.count(drover.Discarded),
			q.count(drover.Scheduled), q.count(drover.Parked), q.count(drover.Completed), q.count(drover.Cancelled), fmt.Sprint(q.Supervisors), paused,
		})
	}
	return a.table(rows)
}

// lateText is how long the oldest due job has waited; "-" if none waits.
func (q *topQueue) lateText(at time.Time) string {
	if q.OldestDue == nil {
		return "-"
	}
	return span(q.late(at))
}

// newQueuesVerbCommand is a verb for scopes, with the name of a queue in the place of the scope.
func newQueuesVerbCommand(cmd *cobra.Command, verb, short string) *cobra.Command {
	of := cmd.RunE
	cmd.Use, cmd.Short, cmd.Long, cmd.Example = verb+" NAME", short, "", ""
	cmd.RunE = func(cmd *cobra.Command, names []string) error { return of(cmd, []string{"queue:" + names[0]}) }
	return cmd
}
