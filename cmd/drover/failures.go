package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/operate"
	"github.com/drover-queue/drover/internal/plural"
)

func newFailuresCommand(a *app) *cobra.Command {
	cmd := group(&cobra.Command{Use: "failures", Short: "List failure groups, and decide what happens to jobs that fail this way"})
	cmd.AddCommand(
		newFailuresListCommand(a),
		newFailuresShowCommand(a),
		newFailuresStatusCommand(a, "resolve", drover.FailureResolved, "Mark failures as fixed: a failure that comes back is open again, as a regression"),
		newFailuresStatusCommand(a, "ignore", drover.FailureIgnored, "Keep counting failures, but leave them out of the list of open ones"),
		newFailuresStatusCommand(a, "reopen", drover.FailureOpen, "Make failures open again that were resolved or ignored"),
		newFailuresPolicyCommand(a),
		newFailuresRedriveCommand(a),
	)
	return cmd
}

func newFailuresListCommand(a *app) *cobra.Command {
	var filter drover.FailureFilter
	var status string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List failure groups, the last seen first",
		Long: `List failure groups, the last seen first. Without --status the list has only open groups.

With --json the command prints an array.`,
		Example: `  drover failures list --kind charge --status all`,
		Args:    args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case !slices.Contains(append(failureStatuses(), "all"), status):
				return usagef("--status %q is none of %s, all", shorten(status, 40), strings.Join(failureStatuses(), ", "))
			case filter.Limit < 1 || filter.Limit > 10_000:
				return usagef("--limit %d is not 1 to 10000", filter.Limit)
			case status != "all":
				filter.Status = drover.FailureStatus(status)
			}
			return a.reading(cmd.Context(), func(ctx context.Context, s *session) error { return a.listFailures(ctx, s, filter) })
		},
	}
	f := cmd.Flags()
	f.StringVar(&filter.Kind, "kind", "", "groups of this kind of job")
	f.StringVar(&status, "status", string(drover.FailureOpen), "groups with this status: "+strings.Join(failureStatuses(), ", ")+", all")
	f.IntVar(&filter.Limit, "limit", 50, "longest list, 1 to 10000")
	complete(cmd, "status", append(failureStatuses(), "all")...)
	return cmd
}

func failureStatuses() []string {
	return operate.Words(drover.FailureOpen, drover.FailureResolved, drover.FailureIgnored)
}

func (a *app) listFailures(ctx context.Context, s *session, filter drover.FailureFilter) error {
	groups, err := s.client.FailureGroups(ctx, filter)
	heading := []string{"FINGERPRINT", "KIND", "STATUS", "RUNS", "JOBS", "DISCARDED", "LAST SEEN", "SAMPLE"}
	return printList(a, groups, failureFlags(err), "no failures", heading, func(g *drover.FailureGroup) []string {
		return []string{
			g.Fingerprint, shorten(g.Kind, 32), statusOf(g), fmt.Sprint(g.Count), fmt.Sprint(g.Jobs), fmt.Sprint(g.Discarded),
			ago(g.LastSeen, s.now), shorten(g.Sample, 60),
		}
	})
}

// statusOf is a group's status, with a mark for a regression and with the group's policy.
func statusOf(g *drover.FailureGroup) string {
	status := string(g.Status)
	if g.Status == drover.FailureOpen && g.Regressions > 0 {
		status += " again"
	}
	if g.Policy.Action != "" {
		status += ", " + string(g.Policy.Action)
	}
	return status
}

func newFailuresShowCommand(a *app) *cobra.Command {
	return shows(a, &cobra.Command{
		Use:   "show FINGERPRINT",
		Short: "Show one failure group",
	}, a.showFailure)
}

func (a *app) showFailure(ctx context.Context, s *session, print string) error {
	g, err := s.client.FailureGroup(ctx, hex(print))
	if err != nil || a.json {
		return a.answer(g, err)
	}
	rows := fields{
		{"fingerprint", g.Fingerprint},
		{"kind", g.Kind},
		{"status", statusOf(g)},
		{"class", string(g.Class)},
		{"runs", fmt.Sprint(g.Count)},
		{"jobs", fmt.Sprintf("%d, now %d discarded, %d parked", g.Jobs, g.Discarded, g.Parked)},
		{"last job", g.LastJobID},
	}
	rows.at("first seen", &g.FirstSeen, s.now, "")
	rows.at("last seen", &g.LastSeen, s.now, "")
	rows.at("resolved", g.ResolvedAt, s.now, "")
	rows.at("came back", g.RegressedAt, s.now, fmt.Sprintf(", %s in all", plural.Of(g.Regressions, "time")))
	rows.at("changed", g.UpdatedAt, s.now, " "+byline(g.UpdatedBy, g.UpdatedWhy))
	if g.Policy.Build != "" {
		rows.add("parked until", "a build newer than "+g.Policy.Build)
	}
	rows.add("type", g.ErrorType)
	if err := table(a.stdout, rows); err != nil {
		return err
	}
	fmt.Fprintln(a.stdout, "\nsample")
	indent(a, g.Sample)
	fmt.Fprintf(a.stdout, "\nthe last job:  %s\n", a.again("jobs show", g.LastJobID))
	return nil
}

func newFailuresStatusCommand(a *app, verb string, status drover.FailureStatus, short string) *cobra.Command {
	var by *drover.Audit
	cmd := &cobra.Command{
		Use:   verb + " FINGERPRINT...",
		Short: short,
		Args:  args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, prints []string) error {
			return a.changing(cmd.Context(), func(ctx context.Context, s *session) error {
				return a.eachFailure(prints, string(status), func(print string) error {
					return s.client.SetFailureStatus(ctx, print, status, *by)
				})
			})
		},
	}
	by = addAuditFlags(cmd, "kept with the group")
	return cmd
}

func newFailuresPolicyCommand(a *app) *cobra.Command {
	var by *drover.Audit
	var build string
	cmd := &cobra.Command{
		Use:   "policy FINGERPRINT discard|park|retry",
		Short: "Decide what happens to jobs that fail this way from now on",
		Long: `Decide what happens to jobs that fail this way from now on. The policy holds in every process immediately:

  discard  drover discards the jobs without a retry, with the reason operator
  park     the jobs wait, and keep their attempts, until a supervisor of a new build starts; then they
           become due, 50 a second, and the policy ends
  retry    drover retries the jobs as usual; jobs that are parked become due, 50 a second`,
		Example: `  drover failures policy c0ffee00c0ffee00 park --build v1.4.2 --by ann`,
		Args:    args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			policy := drover.FailurePolicy{Action: drover.FailureAction(args[1]), Build: build}
			switch {
			case !slices.Contains([]string{"discard", "park", "retry"}, args[1]):
				return usagef("policy %q is none of discard, park, retry", shorten(args[1], 40))
			case build != "" && policy.Action != drover.FailurePark:
				return usagef("--build goes with park")
			case args[1] == "retry":
				policy.Action = ""
			}
			return a.changing(cmd.Context(), func(ctx context.Context, s *session) error {
				return a.eachFailure(args[:1], args[1], func(print string) error {
					return s.client.SetFailurePolicy(ctx, print, policy, *by)
				})
			})
		},
	}
	by = addAuditFlags(cmd, "kept with the group")
	cmd.Flags().StringVar(&build, "build", "", "the build that has the bug; an error if a newer build is known (default: the newest build)")
	return cmd
}

// changed is the output for one changed failure group with --json.
type changed struct {
	Fingerprint string `json:"fingerprint"`
	Result      string `json:"result,omitempty"`
	Error       string `json:"error,omitempty"`
}

// eachFailure changes each group and prints the results. If a group is unknown or its change is refused, it goes on
// with the next group, and returns an error at the end.
func (a *app) eachFailure(prints []string, result string, do func(string) error) error {
	all, failed := make([]changed, len(prints)), 0
	for i, print := range prints {
		all[i] = changed{Fingerprint: print, Result: result}
		err := do(hex(print))
		if errors.Is(err, drover.ErrInvalid) || stops(err) {
			return failureFlags(err)
		}
		if err != nil {
			failed++
			all[i] = changed{Fingerprint: print, Error: refusal(fmt.Sprintf("%q", print), err)}
		}
		if !a.json {
			fmt.Fprintln(a.stdout, printable(print+"  "+all[i].Result+all[i].Error))
		}
	}
	if a.json {
		if err := a.printJSON(all); err != nil {
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %s not changed", failed, plural.Of(len(prints), "failure group"))
	}
	return nil
}

// failureFlags turns a refused argument into a usage error that names the flag.
func failureFlags(err error) error {
	names := append(auditNames(), "FailureFilter.Kind:", "--kind:", "policy.Build:", "--build:")
	return flagNamed(err, names...)
}
