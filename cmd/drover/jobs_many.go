package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/operate"
	"github.com/drover-queue/drover/internal/plural"
)

func newJobsCountCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "count [ID...]",
		Short: "Count the jobs that match all filter flags",
		Example: `  drover jobs count --state discarded --finalized-after 24h
  drover jobs count --queue payments --state available`,
	}
	picked := addFilterFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, ids []string) error {
		if err := picked.check(cmd, ids); err != nil {
			return err
		}
		return flagNames(a.reading(cmd.Context(), func(ctx context.Context, s *session) error { return a.countJobs(ctx, s, picked.at(s.now)) }))
	}
	return cmd
}

func (a *app) countJobs(ctx context.Context, s *session, filter drover.Filter) error {
	n, err := s.client.Count(ctx, filter)
	if err != nil || a.json {
		return a.answer(struct {
			Count int64 `json:"count"`
		}{n}, err)
	}
	fmt.Fprintln(a.stdout, n)
	return nil
}

func newJobsSummaryCommand(a *app) *cobra.Command {
	return lists(a, &cobra.Command{Use: "summary", Short: "Count discarded jobs by queue, kind, reason and failure"}, a.summary)
}

func (a *app) summary(ctx context.Context, s *session) error {
	groups, err := s.client.Summary(ctx)
	if err != nil || a.json {
		return a.answer(struct {
			Groups []drover.DiscardedGroup `json:"groups"`
		}{append([]drover.DiscardedGroup{}, groups...)}, err)
	}
	heading := []string{"JOBS", "QUEUE", "KIND", "REASON", "CLASS", "FINGERPRINT", "LAST", "NEWEST ERROR"}
	return printList(a, groups, nil, "no discarded jobs", heading, func(g *drover.DiscardedGroup) []string {
		return []string{
			fmt.Sprint(g.Jobs), shorten(g.Queue, 24), shorten(g.Kind, 32), string(g.Reason), string(g.Class), g.Fingerprint, ago(g.LastDiscardedAt, s.now), shorten(g.NewestError, 60),
		}
	})
}

// manyVerb is a command that changes all jobs that match a filter.
type manyVerb struct {
	done   string                             // the past participle of the verb, such as cancelled
	states func(drover.Filter) []drover.State // the states of the jobs that the command changes
	do     func(client *drover.Client, ctx context.Context, filter drover.Filter, audit drover.Audit) (drover.BulkResult, error)
	one    func(client *drover.Client, ctx context.Context, id string, audit drover.Audit) (string, error) // changes one job and returns the result; nil: the command handles ids like a filter, and asks
	kept   string                                                                                          // where drover keeps --by and --why

	count func(client *drover.Client, ctx context.Context, filter drover.Filter) (int64, error) // counts the jobs that the command would change; nil: it would change all jobs in these states
	check func(cmd *cobra.Command) error                                                        // parses the command's own flags; nil: the command has none
}

// The function ended returns a function for manyVerb.one, for a command that ends jobs.
func ended(done string, end func(*drover.Client, context.Context, string, drover.Audit) (drover.State, error)) func(*drover.Client, context.Context, string, drover.Audit) (string, error) {
	return func(client *drover.Client, ctx context.Context, id string, audit drover.Audit) (string, error) {
		was, err := end(client, ctx, id, audit)
		if was.Final() {
			return fmt.Sprintf("had ended: %s", was), err
		}
		return fmt.Sprintf("%s, was %s", done, was), err
	}
}

func newJobsCancelCommand(a *app) *cobra.Command {
	return newManyCommand(a, &cobra.Command{
		Use:   "cancel [ID...]",
		Short: "Cancel jobs that are no longer wanted",
		Long: `Cancel jobs that are no longer wanted. A running job is cancelled immediately: its handler's context is
cancelled, and drover refuses the result of the handler. A job that has ended stays as it is.`,
		Example: `  drover jobs cancel 01ARZ3NDEKTSV4RRFFQ69G5FAV --why "the order was withdrawn"
  drover jobs cancel --kind charge --args-contain '{"Customer": 7}' --created-after 2h`,
	}, manyVerb{
		done: "cancelled", states: operate.Unfinished, do: (*drover.Client).CancelMany, one: ended("cancelled", (*drover.Client).Cancel), kept: "kept in the jobs' history",
	})
}

func newJobsDiscardCommand(a *app) *cobra.Command {
	return newManyCommand(a, &cobra.Command{
		Use:   "discard [ID...]",
		Short: "Make unfinished jobs dead letters, which you can look at and redrive",
		Long: `Make unfinished jobs dead letters, with the reason operator. You can look at them and redrive them. A running
job is discarded immediately: its handler's context is cancelled, and drover refuses the result of the handler.
A job that has ended stays as it is.`,
		Example: `  drover jobs discard 01ARZ3NDEKTSV4RRFFQ69G5FAV --why "address in doubt"
  drover jobs discard --state retryable --error "no such account"`,
	}, manyVerb{
		done: "discarded", states: operate.Unfinished, do: (*drover.Client).DiscardMany, one: ended("discarded", (*drover.Client).Discard), kept: "kept in the jobs' history",
	})
}

func newJobsDeleteCommand(a *app) *cobra.Command {
	return newManyCommand(a, &cobra.Command{
		Use:   "delete [ID...]",
		Short: "Delete ended jobs for good",
		Long: `Delete ended jobs for good. Unfinished jobs stay. Discarded jobs stay too, unless you name them: with --state
discarded, with --reason, or by their ids.`,
		Example: `  drover jobs delete --state completed --finalized-before 1h
  drover jobs delete --reason expired --finalized-before 30d --yes`,
	}, manyVerb{
		done: "deleted", states: operate.Deletable, do: (*drover.Client).DeleteMany, kept: "kept in the server's log",
	})
}

// newManyCommand completes a command that changes jobs: it adds the flags of the filter and the function that runs. If
// the user gives only ids, and the verb has a function for one job, the command changes one job after the other and
// does not ask.
func newManyCommand(a *app, cmd *cobra.Command, v manyVerb) *cobra.Command {
	cmd.Long += `

With filter flags, the command changes the jobs that match all of them. It shows how many they are, and asks
for confirmation first. `
	if v.one == nil {
		cmd.Long += "It asks for ids as well."
	} else {
		cmd.Long += "With ids alone, it changes one job after the other, and does not ask."
	}
	picked, by := addFilterFlags(cmd), addAuditFlags(cmd, v.kept)
	var yes, ids bool
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask for confirmation")
	cmd.Flags().BoolVar(&ids, "print-ids", false, "print the id of each job that was "+v.done+", and everything else on standard error")
	cmd.RunE = func(cmd *cobra.Command, named []string) error {
		if v.check != nil {
			if err := v.check(cmd); err != nil {
				return err
			}
		}
		switch filtered := givenFilter(cmd); {
		case !filtered && len(named) == 0:
			return usagef("which jobs? Name ids or what they have in common (see --help), or say --all")
		case !filtered && v.one != nil && ids:
			return usagef("--print-ids goes with flags that pick jobs; these have ids already")
		case !filtered && v.one != nil:
			return a.changing(cmd.Context(), func(ctx context.Context, s *session) error {
				return a.each(v.done, named, func(id string) (string, error) { return v.one(s.client, ctx, id, *by) })
			})
		}
		if err := picked.check(cmd, named); err != nil {
			return err
		}
		return flagNames(a.changing(cmd.Context(), func(ctx context.Context, s *session) error {
			return a.manyJobs(ctx, s, v, picked.at(s.now), *by, yes, ids)
		}))
	}
	return cmd
}

func (a *app) manyJobs(ctx context.Context, s *session, v manyVerb, filter drover.Filter, audit drover.Audit, yes, ids bool) error {
	if !yes {
		n, err := s.countOf(ctx, filter, v)
		if err != nil {
			return err
		}
		if err := a.confirmMany(ctx, s, n, v); err != nil {
			return err
		}
	}
	bulk, err := v.do(s.client, ctx, filter, audit)
	if errors.Is(err, drover.ErrInvalid) {
		return err
	}
	changed, out := bulk.IDs, a.stdout
	if !ids {
		bulk.IDs = nil
	}
	if a.json {
		if err := a.printJSON(bulk); err != nil {
			return err
		}
	} else {
		if ids {
			for _, id := range changed {
				fmt.Fprintln(a.stdout, printable(id))
			}
			out = a.stderr
		}
		for _, id := range bulk.Missing {
			fmt.Fprintln(out, printable(id+"  "+s.whyMissing(ctx, id, backAgain)))
		}
		for _, r := range bulk.Refused {
			fmt.Fprintln(out, printable(r.ID+"  refused: "+r.Error))
		}
		fmt.Fprintf(out, "%s %s\n", plural.Of(bulk.Changed, "job"), v.done)
		if n := int64(len(changed)); ids && n < bulk.Changed {
			fmt.Fprintf(out, "only the first %s are listed\n", plural.Of(n, "id"))
		}
	}
	if err == nil && len(bulk.Refused) > 0 {
		err = fmt.Errorf("the database refused %s, for the reasons above", plural.Of(len(bulk.Refused), "job"))
		if a.json {
			err = fmt.Errorf("the database refused %s", plural.Of(len(bulk.Refused), "job"))
		}
	}
	if err == nil && len(bulk.Missing) > 0 {
		return fmt.Errorf("no job has %d of the %s", len(bulk.Missing), plural.Of(len(filter.IDs), "id"))
	}
	return err
}

// countOf counts the jobs that match the filter and that the verb would change.
func (s *session) countOf(ctx context.Context, filter drover.Filter, v manyVerb) (int64, error) {
	if v.count != nil {
		return v.count(s.client, ctx, filter)
	}
	return operate.Count(ctx, filter, v.states(filter), s.client.Count)
}

// confirmMany asks whether to change n jobs.
func (a *app) confirmMany(ctx context.Context, s *session, n int64, v manyVerb) error {
	fit := fmt.Sprintf("%s in database %q, schema %q", plural.Of(n, "job"), s.database, s.schema)
	if !a.interactive {
		return usagef("%s would be %s, and nobody is there to be asked: give --yes to do it without a question", fit, v.done)
	}
	return a.confirm(ctx, fmt.Sprintf("%s will be %s.", fit, v.done), "nothing was "+v.done)
}
