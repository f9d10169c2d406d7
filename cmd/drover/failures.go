package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
)

func newFailuresCommand(a *app) *cobra.Command {
	cmd := group(&cobra.Command{
		Use: "failures", Short: "Show failures by cause, and decide what happens to their jobs",
		Long: `Show failures by cause, and decide what happens to their jobs.

Failures with the same fingerprint have the same cause, and form a failure group.`,
	})
	cmd.AddCommand(
		newFailuresListCommand(a),
		newFailuresShowCommand(a),
		newFailuresStatusCommand(a, "resolve", drover.FailureResolved, "Mark a failure as fixed; if it comes back it is open again, as a regression"),
		newFailuresStatusCommand(a, "ignore", drover.FailureIgnored, "Take a failure off the list of open ones, and go on counting it"),
		newFailuresStatusCommand(a, "reopen", drover.FailureOpen, "Undo a resolve or an ignore"),
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
		Short: "List failure groups, latest seen first",
		Long:  `List the open failure groups, latest seen first. For others, or all: --status.`,
		Args:  args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case !slices.Contains(append(failureStatuses(), "all"), status):
				return usagef("--status %q is none of %s, all", shorten(status, 40), strings.Join(failureStatuses(), ", "))
			case filter.Limit < 1 || filter.Limit > 10_000:
				return usagef("--limit %d is not in 1 to 10000", filter.Limit)
			case status != "all":
				filter.Status = drover.FailureStatus(status)
			}
			return a.listFailures(cmd.Context(), filter)
		},
	}
	f := cmd.Flags()
	f.StringVar(&filter.Kind, "kind", "", "failure groups of the kind of this `name`")
	f.StringVar(&status, "status", string(drover.FailureOpen), "failure groups with this `status`: "+strings.Join(failureStatuses(), ", ")+", all")
	f.IntVar(&filter.Limit, "limit", 50, "list at most `N` groups, 1 to 10000")
	complete(cmd, "status", append(failureStatuses(), "all")...)
	return cmd
}

func failureStatuses() []string {
	return words(drover.FailureOpen, drover.FailureResolved, drover.FailureIgnored)
}

func (a *app) listFailures(ctx context.Context, filter drover.FailureFilter) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	groups, err := s.client.FailureGroups(ctx, filter)
	if err != nil {
		return failureFlags(err)
	}
	if a.json {
		return printList(a, "failures", groups)
	}
	if len(groups) == 0 {
		if filter.Status == drover.FailureOpen {
			fmt.Fprintln(a.stdout, "no open failures; --status all lists the others too")
			return nil
		}
		fmt.Fprintln(a.stdout, "no failures")
		return nil
	}
	rows := [][]string{{"FINGERPRINT", "KIND", "STATUS", "RUNS", "JOBS", "DISCARDED", "LAST SEEN", "SAMPLE"}}
	for i := range groups {
		g := &groups[i]
		rows = append(rows, []string{
			g.Fingerprint, g.Kind, statusOf(g), fmt.Sprint(g.Count), fmt.Sprint(g.Jobs), fmt.Sprint(g.Discarded),
			ago(g.LastSeen, s.now), g.Sample,
		})
	}
	return a.table(rows)
}

// statusOf is a group's status, whether it has come back, and its policy.
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
	return &cobra.Command{
		Use:   "show FINGERPRINT",
		Short: "Show one failure group: its numbers, a sample error, its policy",
		Args:  args(cobra.ExactArgs(1)),
		RunE:  func(cmd *cobra.Command, args []string) error { return a.showFailure(cmd.Context(), hex(args[0])) },
	}
}

func (a *app) showFailure(ctx context.Context, print string) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	g, err := s.client.FailureGroup(ctx, print)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(g)
	}
	rows := [][]string{
		{"fingerprint", g.Fingerprint},
		{"kind", g.Kind},
		{"status", statusOf(g)},
		{"class", string(g.Class)},
		{"runs", fmt.Sprint(g.Count)},
		{"jobs", fmt.Sprintf("%d (now %d discarded, %d parked)", g.Jobs, g.Discarded, g.Parked)},
		{"last job", g.LastJob},
	}
	at := func(name string, t *time.Time, by string) {
		if t != nil {
			rows = append(rows, []string{name, instant(*t) + " (" + ago(*t, s.now) + ")" + by})
		}
	}
	at("first seen", &g.FirstSeen, "")
	at("last seen", &g.LastSeen, "")
	at("resolved", g.ResolvedAt, "")
	at("came back", g.RegressedAt, fmt.Sprintf(", %s in all", plural(int64(g.Regressions), "time")))
	by := ""
	if g.UpdatedBy != "" {
		by = " by " + g.UpdatedBy
	}
	if g.UpdatedWhy != "" {
		by += ": " + g.UpdatedWhy
	}
	at("changed", g.UpdatedAt, by)
	if g.Policy.Build != "" {
		rows = append(rows, []string{"parked until", "a build newer than " + g.Policy.Build})
	}
	if g.ErrorType != "" {
		rows = append(rows, []string{"type", g.ErrorType})
	}
	if err := a.table(rows); err != nil {
		return err
	}
	fmt.Fprintln(a.stdout, "\nsample")
	indent(a, g.Sample)
	fmt.Fprintf(a.stdout, "\nthe last job:  %s\n", a.again("jobs show", g.LastJob))
	return nil
}

func newFailuresStatusCommand(a *app, verb string, status drover.FailureStatus, short string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   verb + " FINGERPRINT...",
		Short: short,
		Args:  args(cobra.MinimumNArgs(1)),
	}
	by := addByFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, prints []string) error {
		by, err := by.given(cmd)
		if err != nil {
			return err
		}
		return a.eachFailure(cmd.Context(), prints, string(status), func(ctx context.Context, s *session, print string) error {
			return s.client.SetFailureStatus(ctx, print, status, by)
		})
	}
	return cmd
}

func newFailuresPolicyCommand(a *app) *cobra.Command {
	var build string
	cmd := &cobra.Command{
		Use:   "policy FINGERPRINT discard|park|retry",
		Short: "Decide what happens to jobs that fail in this way from now on",
		Long: `Decide what happens to jobs that fail in this way from now on. Every process follows the policy.

  discard  Such jobs are discarded at once, with the reason "operator".
  park     Such jobs wait until a supervisor with a newer build starts, and spend no attempt.
           Then they become due, 50 a second, and the policy ends.
  retry    Such jobs are retried as usual. Those that are parked become due, 50 a second.`,
		Example: `  drover failures policy c0ffee00c0ffee00 park --build v1.4.2 --by ann`,
		Args:    args(cobra.ExactArgs(2)),
	}
	by := addByFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		policy := drover.FailurePolicy{Action: drover.FailureAction(args[1]), Build: build}
		switch {
		case !slices.Contains([]string{"discard", "park", "retry"}, args[1]):
			return usagef("policy %q is none of discard, park, retry", shorten(args[1], 40))
		case build != "" && policy.Action != drover.FailurePark:
			return usagef("--build is only for the policy park: leave it out")
		case args[1] == "retry":
			policy.Action = ""
		}
		by, err := by.given(cmd)
		if err != nil {
			return err
		}
		return a.eachFailure(cmd.Context(), args[:1], args[1], func(ctx context.Context, s *session, print string) error {
			return s.client.SetFailurePolicy(ctx, print, policy, by)
		})
	}
	cmd.Flags().StringVar(&build, "build", "", "the `build` that has the fault; it must be the newest one (default: the newest one)")
	return cmd
}

// changed is the result for one failure group.
type changed struct {
	Fingerprint string `json:"fingerprint"`
	Result      string `json:"result,omitempty"`
	Error       string `json:"error,omitempty"`
}

// eachFailure does one thing to each group and prints the result. After an unknown or refused one it goes on with the
// next, and returns an error at the end.
func (a *app) eachFailure(ctx context.Context, prints []string, result string, do func(context.Context, *session, string) error) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	all, failed := make([]changed, len(prints)), 0
	for i, print := range prints {
		all[i] = changed{Fingerprint: print, Result: result}
		err := do(ctx, s, hex(print))
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
		if err := printList(a, "failures", all); err != nil {
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %s not changed, for the reasons above", failed, plural(int64(len(prints)), "failure group"))
	}
	return nil
}

// failureFlags is flagNames for the fields of failure groups.
func failureFlags(err error) error {
	if !errors.Is(err, drover.ErrInvalid) {
		return err
	}
	return usagef("%s", strings.NewReplacer("FailureFilter.Kind:", "--kind:", "by.Who:", "--by:", "by.Why:", "--why:", "policy.Build:", "--build:").Replace(err.Error()))
}
