package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
)

func newRedriveCommand(a *app) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "redrive",
		Short: "Bring many dead letters back at a pace",
		Long: `Bring many dead letters (discarded jobs) back at a pace.

"start" records a redrive in the database, and the running supervisors carry it out. So it goes on
when the command has ended.`,
	})
	cmd.AddCommand(newRedriveStartCommand(a), newRedriveListCommand(a), newRedriveShowCommand(a), newRedriveWatchCommand(a),
		newRedriveVerbCommand(a, "pause", "Pause a redrive: make no more jobs due for now", (*drover.Client).PauseRedrive),
		newRedriveVerbCommand(a, "resume", "Go on with a paused redrive", (*drover.Client).ResumeRedrive),
		newRedriveVerbCommand(a, "abort", "End a redrive: the jobs that it has not made due stay as they are", (*drover.Client).AbortRedrive))
	return cmd
}

type redriveVerb func(*drover.Client, context.Context, string, drover.By) error

func newRedriveVerbCommand(a *app, verb, short string, do redriveVerb) *cobra.Command {
	cmd := &cobra.Command{
		Use:   verb + " ID",
		Short: short,
		Args:  args(cobra.ExactArgs(1)),
	}
	by := addByFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		by, err := by.given(cmd)
		if err != nil {
			return err
		}
		return redriveNames(a.changeRedrive(cmd.Context(), jobID(args[0]), by, do))
	}
	return cmd
}

func (a *app) changeRedrive(ctx context.Context, id string, by drover.By, do redriveVerb) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	if err := do(s.client, ctx, id, by); err != nil {
		return err
	}
	r, err := s.client.Redrive(ctx, id)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(r)
	}
	fmt.Fprintf(a.stdout, "redrive %s: %s, %d of %d released\n", r.ID, redriveState(r), r.Released, r.Matched)
	return nil
}
