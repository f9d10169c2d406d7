package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/drover-queue/drover/internal/operate"
	"github.com/drover-queue/drover/internal/pg"
)

func newBudgetsCommand(a *app) *cobra.Command {
	return lists(a, &cobra.Command{
		Use:   "budgets",
		Short: "Show the retry budgets, and how many retries each has left",
		Long: `Show the retry budgets, and how many retries each has left in the window that begins now.

A retry counts against one budget: the budget of the job's kind if there is one, else the budget of its
queue, else the budget of all jobs.`,
		Example: "  drover budgets --json",
	}, a.budgets)
}

func (a *app) budgets(ctx context.Context, s *session) error {
	found, err := s.client.RetryBudgets(ctx)
	heading := []string{"BUDGET", "RETRIES", "BURST", "OVER IT", "RESERVED", "FREE", "NEXT FREE"}
	return printList(a, operate.Budgets(found), err, "no retry budgets", heading, func(b *operate.Budget) []string {
		return []string{
			b.Scope, fmt.Sprintf("%d per %v", b.Retries, pg.Millis(b.PerMS)), fmt.Sprint(b.Burst), b.Mode, fmt.Sprint(b.Reserved), fmt.Sprint(b.Free), relative(b.NextFree, s.now),
		}
	})
}
