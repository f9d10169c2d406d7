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
	"github.com/drover-queue/drover/internal/plural"
)

func newArchiveCommand(a *app) *cobra.Command {
	cmd := group(&cobra.Command{Use: "archive", Short: "Move ended jobs to the archive and back, export or delete them"})
	cmd.AddCommand(newArchiveAddCommand(a), newArchiveRestoreCommand(a), newArchiveExportCommand(a), newArchivePurgeCommand(a))
	return cmd
}

func newArchiveAddCommand(a *app) *cobra.Command {
	var keep int
	var by *drover.Audit
	return archiveVerb(&cobra.Command{
		Use:   "add",
		Short: "Move ended jobs to the archive",
		Long: `Move completed, discarded and cancelled jobs from the table jobs to the table jobs_archive, if they match
all filter flags. The command works in batches. If it is interrupted, every job is in one of the two
tables.

A job stays where it is if the archive has its id already, or if the database refuses to move it. The
command lists such jobs, and ids that no job has. Its exit code is then 1.`,
		Example: `  drover archive add --state discarded --finalized-before 30d
  drover archive add --state discarded --keep 1000`,
	}, true, func(cmd *cobra.Command) {
		cmd.Flags().IntVar(&keep, "keep", 0, "do not move the newest `N` matching jobs of each kind")
		by = addAuditFlags(cmd, "kept in the archive")
	}, func(cmd *cobra.Command, flags *filterFlags) error {
		if keep < 0 {
			return usagef("--keep %d is negative", keep)
		}
		return a.changing(cmd.Context(), func(ctx context.Context, s *session) error {
			moved, err := s.client.Archive(ctx, flags.at(s.now), &drover.ArchiveOpts{KeepNewest: keep}, *by)
			return a.printMoved(ctx, s, "archived", backAgain, moved, err)
		})
	})
}

func newArchiveRestoreCommand(a *app) *cobra.Command {
	var by *drover.Audit
	return archiveVerb(&cobra.Command{
		Use:     "restore [ID...]",
		Short:   "Move jobs back from the archive, unchanged",
		Example: `  drover archive restore --kind charge --reason attempts_exhausted`,
	}, true, func(cmd *cobra.Command) {
		by = addAuditFlags(cmd, "kept in the server's log")
	}, func(cmd *cobra.Command, flags *filterFlags) error {
		return a.changing(cmd.Context(), func(ctx context.Context, s *session) error {
			moved, err := s.client.Restore(ctx, flags.at(s.now), *by)
			return a.printMoved(ctx, s, "restored", "it is not in the archive", moved, err)
		})
	})
}

func newArchiveExportCommand(a *app) *cobra.Command {
	return archiveVerb(&cobra.Command{
		Use:     "export",
		Short:   "Print the jobs of the archive, each as a line of JSON",
		Example: `  drover archive export --finalized-before 365d > jobs.jsonl`,
	}, false, nil, func(cmd *cobra.Command, flags *filterFlags) error {
		return a.reading(cmd.Context(), func(ctx context.Context, s *session) error {
			out := bufio.NewWriterSize(a.stdout, 1<<16)
			n, err := s.client.ExportArchive(ctx, out, flags.at(s.now))
			err = errors.Join(err, out.Flush())
			fmt.Fprintf(a.stderr, "%s exported\n", plural.Of(n, "job"))
			return flagNames(err)
		})
	})
}

func newArchivePurgeCommand(a *app) *cobra.Command {
	var yes bool
	var by *drover.Audit
	return archiveVerb(&cobra.Command{
		Use:   "purge",
		Short: "Delete jobs from the archive for good",
		Long: `Delete jobs from the table jobs_archive for good, if they match all filter flags. The command asks first,
and then works in batches. It needs --yes if standard input is not a terminal.

A job stays if the database refuses to delete it. The command lists such jobs, and its exit code is then
1.`,
		Example: `  drover archive purge --finalized-before 365d --yes`,
	}, true, func(cmd *cobra.Command) {
		cmd.Flags().BoolVar(&yes, "yes", false, "do not ask for confirmation")
		by = addAuditFlags(cmd, "kept in the server's log")
	}, func(cmd *cobra.Command, flags *filterFlags) error {
		if !yes && !a.interactive {
			return usagef("nobody can be asked here: --yes deletes without a question")
		}
		return a.changing(cmd.Context(), func(ctx context.Context, s *session) error {
			return flagNames(a.purge(ctx, s, flags.at(s.now), yes, *by))
		})
	})
}

// archiveVerb completes a command of drover archive: it adds the flags of the filter and the command's own flags.
func archiveVerb(cmd *cobra.Command, needsFilter bool, own func(*cobra.Command), do func(*cobra.Command, *filterFlags) error) *cobra.Command {
	flags := addFilterFlags(cmd)
	if own != nil {
		own(cmd)
	}
	if !strings.HasSuffix(cmd.Use, "[ID...]") {
		cmd.Args = args(cobra.NoArgs)
	}
	cmd.RunE = func(cmd *cobra.Command, ids []string) error {
		if needsFilter && len(ids) == 0 && !givenFilter(cmd) {
			return usagef("which jobs? --all means every one; see %s --help for the others", cmd.CommandPath())
		}
		if err := flags.check(cmd, ids); err != nil {
			return err
		}
		if state := flags.filter.State; state != "" && !state.Final() {
			return usagef("--state %s: only jobs that have ended can be archived", state)
		}
		return do(cmd, flags)
	}
	return cmd
}

// printMoved prints how many jobs were moved between the tables jobs and jobs_archive, and which jobs were not moved. The
// parameter present is the reason for a job that the move did not find and that is in the table jobs. The parameter err
// is the error of the move.
func (a *app) printMoved(ctx context.Context, s *session, done, present string, moved drover.ArchiveResult, err error) error {
	if a.json {
		if printErr := a.printJSON(moved); err == nil {
			err = printErr
		}
	} else {
		fmt.Fprintf(a.stdout, "%s %s\n", plural.Of(moved.Jobs, "job"), done)
		for _, id := range moved.Missing {
			fmt.Fprintln(a.stdout, printable(id+"  not "+done+": "+s.whyMissing(ctx, id, present)))
		}
		for _, id := range moved.Conflicts {
			fmt.Fprintln(a.stdout, printable(id+"  not "+done+": the id is there already"))
		}
		for _, r := range moved.Refused {
			fmt.Fprintln(a.stdout, printable(r.ID+"  not "+done+": "+r.Error))
		}
	}
	if left := len(moved.Missing) + len(moved.Conflicts) + len(moved.Refused); err == nil && left > 0 {
		err = fmt.Errorf("%s not %s", plural.Of(left, "job"), done)
	}
	return flagNames(err)
}

func (a *app) purge(ctx context.Context, s *session, filter drover.Filter, yes bool, audit drover.Audit) error {
	if !yes {
		n, err := s.client.ExportArchive(ctx, io.Discard, filter)
		var unread *drover.RefusedError
		switch {
		case errors.As(err, &unread): // the purge deletes the unreadable jobs as well
			n += int64(len(unread.Refused))
		case err != nil:
			return err
		}
		question := fmt.Sprintf("This deletes %s from the archive of database %q, schema %q, for ever.", plural.Of(n, "job"), s.database, s.schema)
		if err := a.confirm(ctx, question, "nothing was deleted"); err != nil {
			return err
		}
	}
	n, err := s.client.PurgeArchive(ctx, filter, audit)
	if a.json {
		if printErr := a.printJSON(struct {
			Deleted int64 `json:"deleted"`
		}{n}); err == nil {
			err = printErr
		}
	} else {
		fmt.Fprintf(a.stdout, "%s deleted\n", plural.Of(n, "job"))
	}
	return err
}
