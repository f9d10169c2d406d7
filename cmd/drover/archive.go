package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
)

func newArchiveCommand(a *app) *cobra.Command {
	cmd := group(&cobra.Command{Use: "archive", Short: "Move ended jobs to the archive and back, export them, delete them for good"})
	cmd.AddCommand(newArchiveAddCommand(a), newArchiveRestoreCommand(a), newArchiveExportCommand(a), newArchivePurgeCommand(a))
	return cmd
}

func newArchiveAddCommand(a *app) *cobra.Command {
	var keep int
	return archiveVerb(&cobra.Command{
		Use:   "add",
		Short: "Move ended jobs to the archive",
		Long: `Move completed, discarded and cancelled jobs that match all filter flags to the table
jobs_archive, where they cost the queue nothing.

It works in batches. If you interrupt it, every job is in exactly one of the two tables; run the
command again to go on.

A job stays where it is if the archive already has its id, or if the database refuses to move it.
The command lists such jobs, and its exit code is 1. It is also 1 if no job has an id of --id.`,
		Example: `  drover archive add --state discarded --finalized-before 30d
  drover archive add --state discarded --keep 1000`,
	}, true, func(cmd *cobra.Command) {
		cmd.Flags().IntVar(&keep, "keep", 0, "leave the newest `N` matching jobs of each kind where they are")
	}, func(ctx context.Context, flags *filterFlags, by drover.By) error {
		if keep < 0 {
			return usagef("--keep %d is negative: give 0 or more", keep)
		}
		return a.move(ctx, "job", "archived", func(s *session) (drover.ArchiveResult, error) {
			return s.client.Archive(ctx, flags.at(s.now), &drover.ArchiveOpts{KeepNewest: keep}, by)
		})
	})
}

func newArchiveRestoreCommand(a *app) *cobra.Command {
	return archiveVerb(&cobra.Command{
		Use:   "restore [ID...]",
		Short: "Move jobs back from the archive",
		Long: `Move archived jobs that match all filter flags back, as they were. Discarded ones can then be
redriven. Do that soon if their queue archives discarded jobs by itself, or they are archived again.

A job stays in the archive if its id is in use again, or if the database refuses to move it. The
command lists such jobs, and the ids that are not in the archive; then the exit code is 1.`,
		Example: `  drover archive restore --kind charge --reason attempts_exhausted
  drover archive restore 01ARZ3NDEKTSV4RRFFQ69G5FAV`,
	}, true, nil, func(ctx context.Context, flags *filterFlags, by drover.By) error {
		return a.move(ctx, "archived job", "restored", func(s *session) (drover.ArchiveResult, error) { return s.client.Restore(ctx, flags.at(s.now), by) })
	})
}

func newArchiveExportCommand(a *app) *cobra.Command {
	return archiveVerb(&cobra.Command{
		Use:   "export",
		Short: "Print archived jobs as JSON, one per line",
		Long: `Print archived jobs that match all filter flags as JSON, one per line; without flags, all of
them. The number of jobs goes to standard error. Jobs that cannot be read are left out; then the
exit code is 1, and the error names them.`,
		Example: `  drover archive export --finalized-before 365d > jobs.jsonl`,
	}, false, nil, func(ctx context.Context, flags *filterFlags, _ drover.By) error {
		s, err := a.open(ctx)
		if err != nil {
			return err
		}
		defer s.close()
		out := bufio.NewWriterSize(a.stdout, 1<<16)
		n, err := s.client.ExportArchive(ctx, out, flags.at(s.now))
		err = errors.Join(err, out.Flush())
		fmt.Fprintf(a.stderr, "%s exported\n", plural(n, "job"))
		return flagNames(err)
	})
}

func newArchivePurgeCommand(a *app) *cobra.Command {
	var yes bool
	return archiveVerb(&cobra.Command{
		Use:   "purge",
		Short: "Delete archived jobs for ever",
		Long: `Delete archived jobs that match all filter flags. Nothing can bring them back.

The command shows how many jobs match, and asks first. If standard input is not a terminal, it
cannot ask: add --yes.

Jobs that the database refuses to delete stay in the archive. The error names them, and the exit
code is 1.`,
		Example: `  drover archive purge --finalized-before 365d --yes`,
	}, true, func(cmd *cobra.Command) {
		cmd.Flags().BoolVar(&yes, "yes", false, "delete without asking")
	}, func(ctx context.Context, flags *filterFlags, by drover.By) error { return a.purge(ctx, flags, by, yes) })
}

// archiveVerb completes a command with the filter's flags and its own. A command that changes something gets --by and
// --why, and refuses to run without a filter.
func archiveVerb(cmd *cobra.Command, changes bool, own func(*cobra.Command), do func(context.Context, *filterFlags, drover.By) error) *cobra.Command {
	flags, by := addFilterFlags(cmd), &byFlags{}
	if changes {
		by = addByFlags(cmd)
	}
	if own != nil {
		own(cmd)
	}
	if !strings.HasSuffix(cmd.Use, "[ID...]") {
		cmd.Args = args(cobra.NoArgs)
	}
	cmd.RunE = func(cmd *cobra.Command, ids []string) error {
		if changes && len(ids) == 0 && !givenFilter(cmd) {
			return usagef("which jobs? Pick some by flags (see %s --help), or say --all", cmd.CommandPath())
		}
		if err := flags.check(cmd, ids); err != nil {
			return err
		}
		if state := flags.filter.State; state != "" && !state.Final() {
			return usagef("--state %s: the archive has only ended jobs: completed, discarded, cancelled", state)
		}
		by, err := by.given(cmd)
		if err != nil {
			return err
		}
		return do(cmd.Context(), flags, by)
	}
	return cmd
}

// move moves jobs between the two tables and reports the result.
func (a *app) move(ctx context.Context, noun, done string, do func(*session) (drover.ArchiveResult, error)) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	moved, err := do(s)
	if a.json {
		if printErr := a.printJSON(moved); err == nil {
			err = printErr
		}
	} else {
		fmt.Fprintf(a.stdout, "%s %s\n", plural(moved.Jobs, "job"), done)
		for _, id := range moved.Missing {
			fmt.Fprintln(a.stdout, printable(id+"  not "+done+": there is no such "+noun))
		}
		for _, id := range moved.Conflicts {
			fmt.Fprintln(a.stdout, printable(id+"  not "+done+": another job has this id there"))
		}
		for _, r := range moved.Refused {
			fmt.Fprintln(a.stdout, printable(r.ID+"  not "+done+": "+r.Error))
		}
	}
	if left := len(moved.Missing) + len(moved.Conflicts) + len(moved.Refused); err == nil && left > 0 {
		err = fmt.Errorf("%s not %s", plural(int64(left), "job"), done)
	}
	return flagNames(err)
}

func (a *app) purge(ctx context.Context, flags *filterFlags, by drover.By, yes bool) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	if !yes {
		n, err := s.client.ExportArchive(ctx, io.Discard, flags.at(s.now))
		var unread *drover.RefusedError
		switch {
		case errors.As(err, &unread): // the purge also deletes jobs that cannot be read
			n += int64(len(unread.Refused))
		case err != nil:
			return flagNames(err)
		}
		if n == 0 {
			return a.tellPurged(0)
		}
		if !a.interactive {
			return usagef("standard input is not a terminal, so the command cannot ask whether to delete %s: add --yes to delete without asking", plural(n, "job"))
		}
		question := fmt.Sprintf("This deletes %s from the archive of database %q, schema %q, for ever.", plural(n, "job"), s.database, s.schema)
		if err := a.confirm(ctx, question, "nothing was deleted"); err != nil {
			return err
		}
	}
	n, err := s.client.PurgeArchive(ctx, flags.at(s.now), by)
	if printErr := a.tellPurged(n); err == nil {
		err = printErr
	}
	return flagNames(err)
}

func (a *app) tellPurged(n int64) error {
	if a.json {
		return a.printJSON(struct {
			Deleted int64 `json:"deleted"`
		}{n})
	}
	fmt.Fprintf(a.stdout, "%s deleted\n", plural(n, "job"))
	return nil
}
