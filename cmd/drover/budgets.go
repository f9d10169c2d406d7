package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

func newBudgetsCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "budgets",
		Short: "Show the retry budgets, and how many retries each has left",
		Long: `Show the retry budgets, and how many retries each has left in the window that begins now.

A retry counts against one budget: the budget of the job's kind if there is one, else the budget of its
queue, else the budget of all jobs.`,
		Example: "  drover budgets --json",
		Args:    args(cobra.NoArgs),
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.reading(cmd.Context(), a.budgets) },
	}
}

// budgetInfo is one retry budget.
type budgetInfo struct {
	Scope    string    `json:"scope"`
	Retries  int       `json:"retries"`
	PerMS    int64     `json:"per_ms"`
	Burst    int       `json:"burst"`
	Mode     string    `json:"mode"`     // defer or discard: whether a retry over the budget waits or ends its job
	Reserved int       `json:"reserved"` // how many retries are due in the window that begins now
	Free     int       `json:"free"`
	NextFree time.Time `json:"next_free"`
}

func (a *app) budgets(ctx context.Context, s *session) error {
	found, err := s.client.RetryBudgets(ctx)
	if err != nil {
		return err
	}
	list := make([]budgetInfo, len(found))
	for i, b := range found {
		mode := "defer"
		if b.Discard {
			mode = "discard"
		}
		list[i] = budgetInfo{string(b.Scope), b.Retries, b.Per.Milliseconds(), b.Burst, mode, b.Reserved, b.Free, b.NextFree}
	}
	heading := []string{"BUDGET", "RETRIES", "BURST", "OVER IT", "RESERVED", "FREE", "NEXT FREE"}
	return printList(a, list, "no retry budgets", heading, func(b *budgetInfo) []string {
		return []string{
			b.Scope, fmt.Sprintf("%d per %v", b.Retries, millis(b.PerMS)), fmt.Sprint(b.Burst), b.Mode, fmt.Sprint(b.Reserved), fmt.Sprint(b.Free), relative(b.NextFree, s.now),
		}
	})
}
