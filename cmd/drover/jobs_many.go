package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
)

func newJobsCountCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "count [ID...]",
		Short: "Count jobs",
		Long: `Count the jobs that match all filter flags; without flags, all jobs. The number is exact. For most
filters the command reads all rows; drover stats is faster, and estimates.`,
		Example: `  drover jobs count --state discarded --finalized-after 24h
  drover jobs count --queue payments --state available`,
	}
	picked := addFilterFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, ids []string) error {
		if err := picked.check(cmd, ids); err != nil {
			return err
		}
		return flagNames(a.countJobs(cmd.Context(), picked))
	}
	return cmd
}

func (a *app) countJobs(ctx context.Context, picked *filterFlags) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	n, err := s.client.Count(ctx, picked.at(s.now))
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(struct {
			Count int64 `json:"count"`
		}{n})
	}
	fmt.Fprintln(a.stdout, n)
	return nil
}

func newJobsSummaryCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "summary",
		Short: "Count discarded jobs by queue, kind, reason and cause",
		Long: `Count discarded jobs by queue, kind, reason and cause. Failures with the same fingerprint have the
same cause. To list the jobs of a line: drover jobs list --fingerprint FINGERPRINT.`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.summary(cmd.Context()) },
	}
}

func (a *app) summary(ctx context.Context) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	groups, err := s.client.DiscardedGroups(ctx)
	if err != nil {
		return err
	}
	if a.json {
		return printList(a, "groups", groups)
	}
	if len(groups) == 0 {
		fmt.Fprintln(a.stdout, "no discarded jobs")
		return nil
	}
	rows := [][]string{{"JOBS", "QUEUE", "KIND", "REASON", "CLASS", "FINGERPRINT", "LAST", "NEWEST ERROR"}}
	for _, g := range groups {
		rows = append(rows, []string{
			fmt.Sprint(g.Jobs), g.Queue, g.Kind, string(g.Reason), string(g.Class), g.Fingerprint, ago(g.LastDiscardedAt, s.now), g.NewestError,
		})
	}
	return a.table(rows)
}

// manyVerb is a verb over all jobs that match a filter.
type manyVerb struct {
	done string                             // the past participle: cancelled
	of   func(drover.Filter) []drover.State // it changes jobs in these states
	do   func(ctx context.Context, client *drover.Client, filter drover.Filter, by drover.By) (drover.BulkResult, error)
	one  func(ctx context.Context, client *drover.Client, id string, by drover.By) (drover.State, error) // nil: ids are asked for like a filter

	check func(cmd *cobra.Command) error // reads the verb's own flags; nil: it has none
}

func newJobsCancelCommand(a *app) *cobra.Command {
	return newManyCommand(a, &cobra.Command{
		Use:   "cancel [ID...]",
		Short: "End jobs that nobody wants any more",
		Long: `End jobs that nobody wants any more. A running job ends at once: drover cancels the context of its
handler, and ignores what the handler returns. A job that has already ended stays as it is.`,
		Example: `  drover jobs cancel 01ARZ3NDEKTSV4RRFFQ69G5FAV --why "the order was withdrawn"
  drover jobs cancel --kind charge --args-contain '{"Customer": 7}' --created-after 2h`,
	}, manyVerb{
		done: "cancelled", of: unfinished,
		do: func(ctx context.Context, c *drover.Client, f drover.Filter, by drover.By) (drover.BulkResult, error) {
			return c.CancelMany(ctx, f, by)
		},
		one: func(ctx context.Context, c *drover.Client, id string, by drover.By) (drover.State, error) {
			return c.Cancel(ctx, id, by)
		},
	})
}

func newJobsDiscardCommand(a *app) *cobra.Command {
	return newManyCommand(a, &cobra.Command{
		Use:   "discard [ID...]",
		Short: "Turn unfinished jobs into dead letters",
		Long: `Turn unfinished jobs into dead letters with the reason "operator". You can look at them, and redrive
them later. A running job ends at once, as with cancel. A job that has already ended stays as it is.`,
		Example: `  drover jobs discard 01ARZ3NDEKTSV4RRFFQ69G5FAV --why "address in doubt"
  drover jobs discard --state retryable --error "no such account"`,
	}, manyVerb{
		done: "discarded", of: unfinished,
		do: func(ctx context.Context, c *drover.Client, f drover.Filter, by drover.By) (drover.BulkResult, error) {
			return c.DiscardMany(ctx, f, by)
		},
		one: func(ctx context.Context, c *drover.Client, id string, by drover.By) (drover.State, error) {
			return c.Discard(ctx, id, by)
		},
	})
}

func newJobsDeleteCommand(a *app) *cobra.Command {
	return newManyCommand(a, &cobra.Command{
		Use:   "delete [ID...]",
		Short: "Delete ended jobs for good",
		Long: `Delete ended jobs for good. Unfinished jobs stay. Dead letters stay too, unless you name them by
--state discarded, by --reason, or by their ids.`,
		Example: `  drover jobs delete --state completed --finalized-before 1h
  drover jobs delete --reason expired --finalized-before 30d --yes`,
	}, manyVerb{
		done: "deleted", of: deletable,
		do: func(ctx context.Context, c *drover.Client, f drover.Filter, by drover.By) (drover.BulkResult, error) {
			return c.DeleteMany(ctx, f, by)
		},
	})
}

// newManyCommand gives a command the filter's flags. With ids alone the verb changes one job at a time, without asking.
func newManyCommand(a *app, cmd *cobra.Command, v manyVerb) *cobra.Command {
	if v.one == nil {
		cmd.Long += `

The command changes the jobs that match all filter flags and, if you give ids, have one of them. It
shows how many there are, and asks first.`
	} else {
		cmd.Long += `

If you give only ids, the command changes one job at a time and does not ask. If you give filter
flags (--id is one), it changes the jobs that match all of them and, if you also give ids, have one
of them. Then it shows how many there are, and asks first.`
	}
	cmd.Long += "\n\nIf standard input is not a terminal, the command cannot ask: add --yes."
	picked, by := addFilterFlags(cmd), addByFlags(cmd)
	var yes, dryRun bool
	cmd.Flags().BoolVar(&yes, "yes", false, "go ahead without asking")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show how many jobs would be "+v.done+", and change nothing")
	cmd.RunE = func(cmd *cobra.Command, ids []string) error {
		by, err := by.given(cmd)
		if err == nil && v.check != nil {
			err = v.check(cmd)
		}
		if err != nil {
			return err
		}
		switch filtered := givenFilter(cmd); {
		case !filtered && len(ids) == 0:
			return usagef("which jobs? Give their ids, pick some by flags (see %s --help), or say --all", cmd.CommandPath())
		case !filtered && v.one != nil && !dryRun:
			return a.eachJob(cmd.Context(), v, ids, by)
		}
		if err := picked.check(cmd, ids); err != nil {
			return err
		}
		if dryRun {
			return flagNames(a.dryMany(cmd.Context(), v, picked))
		}
		return flagNames(a.manyJobs(cmd.Context(), v, picked, by, yes))
	}
	return cmd
}

// dryMany shows how many jobs a verb would change.
func (a *app) dryMany(ctx context.Context, v manyVerb, picked *filterFlags) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	filter := picked.at(s.now)
	n, err := s.countOf(ctx, filter, v.of(filter))
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(struct {
			Matched int64 `json:"matched"`
		}{n})
	}
	fmt.Fprintf(a.stdout, "%s would be %s\n", plural(n, "job"), v.done)
	return nil
}

func (a *app) eachJob(ctx context.Context, v manyVerb, ids []string, by drover.By) error {
	edited := false // set by the hook, because the call also succeeds for a job that is like that already
	s, err := a.open(ctx, drover.Hooks{Edited: func(context.Context, drover.Event) { edited = true }})
	if err != nil {
		return err
	}
	defer s.close()
	return a.each(v.done, ids, func(id string) (string, error) {
		edited = false
		was, err := v.one(ctx, s.client, id, by)
		if v.check != nil && !edited {
			return "not changed: it is like that already", err
		}
		if was.Final() {
			return fmt.Sprintf("not changed: it is already %s", was), err
		}
		return fmt.Sprintf("%s, was %s", v.done, was), err
	})
}

func (a *app) manyJobs(ctx context.Context, v manyVerb, picked *filterFlags, by drover.By, yes bool) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	filter := picked.at(s.now)
	if !yes {
		n, err := s.countOf(ctx, filter, v.of(filter))
		if err != nil {
			return err
		}
		if n == 0 {
			return a.noneOf(ctx, s, filter, v)
		}
		if err := a.confirmMany(ctx, s, n, v); err != nil {
			return err
		}
	}
	bulk, err := v.do(ctx, s.client, filter, by)
	if errors.Is(err, drover.ErrInvalid) {
		return err
	}
	return a.printBulk(bulk, v, filter, err)
}

// noneOf reports that no job is to be changed. There is nothing to ask, and nothing is changed: a job that begins to match
// meanwhile was not meant. Unknown ids are an error.
func (a *app) noneOf(ctx context.Context, s *session, filter drover.Filter, v manyVerb) error {
	missing, err := s.missing(ctx, filter.IDs)
	if err != nil {
		return err
	}
	return a.printBulk(drover.BulkResult{Missing: missing}, v, filter, nil)
}

// sqlMissing looks each id up by the primary key.
const sqlMissing = `
select array(select given.id from unnest($1::text[]) as given(id) where not exists (select from jobs where jobs.id = given.id) order by 1)`

// missing are the ids that no job has.
func (s *session) missing(ctx context.Context, ids []string) (missing []string, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	if err := s.pool.QueryRow(ctx, sqlMissing, ids).Scan(&missing); err != nil {
		return nil, fmt.Errorf("look for the ids: %w", err)
	}
	return missing, nil
}

// printBulk reports what was changed, and what was not. The error is that of the change, or says that something was not.
func (a *app) printBulk(bulk drover.BulkResult, v manyVerb, filter drover.Filter, err error) error {
	if a.json {
		if err := a.printJSON(bulk); err != nil {
			return err
		}
	} else {
		for _, id := range bulk.Missing {
			fmt.Fprintln(a.stdout, printable(id+"  no such job"))
		}
		for _, r := range bulk.Refused {
			fmt.Fprintln(a.stdout, printable(r.ID+"  refused: "+r.Error))
		}
		none := ""
		if bulk.Changed == 0 && len(bulk.Missing)+len(bulk.Refused) == 0 && err == nil {
			none = "no job matches: "
		}
		fmt.Fprintf(a.stdout, "%s%s %s\n", none, plural(bulk.Changed, "job"), v.done)
	}
	if err == nil && len(bulk.Refused) > 0 {
		err = fmt.Errorf("the database refused %s, for the reasons above", plural(int64(len(bulk.Refused)), "job"))
		if a.json {
			err = fmt.Errorf("the database refused %s", plural(int64(len(bulk.Refused)), "job"))
		}
	}
	if err == nil && len(bulk.Missing) > 0 {
		return fmt.Errorf("%d of %s not found", len(bulk.Missing), plural(int64(len(filter.IDs)), "id"))
	}
	return err
}

// unfinished are the states of jobs that can be cancelled or discarded.
func unfinished(drover.Filter) []drover.State {
	return []drover.State{drover.Available, drover.Scheduled, drover.Retryable, drover.Running, drover.Parked}
}

// deletable are the states of jobs that can be deleted: dead letters only if the filter names them.
func deletable(f drover.Filter) []drover.State {
	ended := []drover.State{drover.Completed, drover.Cancelled}
	if f.State == drover.Discarded || f.Reason != "" || len(f.IDs) > 0 {
		ended = append(ended, drover.Discarded)
	}
	return ended
}

// countOf counts the jobs that match the filter and are in one of the states.
func (s *session) countOf(ctx context.Context, filter drover.Filter, states []drover.State) (n int64, err error) {
	for _, state := range states {
		if filter.State != "" && filter.State != state {
			continue
		}
		one := filter
		one.State = state
		of, err := s.client.Count(ctx, one)
		if err != nil {
			return 0, err
		}
		n += of
	}
	return n, nil
}

// confirmMany shows how many jobs would change, and asks.
func (a *app) confirmMany(ctx context.Context, s *session, n int64, v manyVerb) error {
	fit := fmt.Sprintf("%s in database %q, schema %q", plural(n, "job"), s.database, s.schema)
	if !a.interactive {
		return usagef("%s would be %s. Standard input is not a terminal, so the command cannot ask: add --yes to confirm", fit, v.done)
	}
	return a.confirm(ctx, fmt.Sprintf("%s will be %s.", fit, v.done), "nothing was "+v.done)
}
