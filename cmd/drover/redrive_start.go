package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
)

func newRedriveStartCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "start [ID...]",
		Short: "Begin a redrive of the jobs that match the filter flags",
		Long: `Begin a redrive of the discarded jobs that match all filter flags. With --state cancelled or
--state parked, it redrives those jobs instead.

The command shows which jobs would come back, and asks first. If standard input is not a terminal, it
cannot ask: add --yes. With --dry-run it shows the same, and changes nothing.

With --watch the command stays and shows the progress. Ctrl-C ends the display, and the redrive goes
on. To end the redrive: drover redrive abort.

If no job matches, the command says so, asks nothing, and its exit code is 0. If no job has one of the
ids, it is 1; the others are redriven all the same.`,
		Example: `  drover redrive start --kind charge --reason attempts_exhausted --dry-run
  drover redrive start --kind charge --rate 20 --canary 10 --why "bank is back" --watch
  drover redrive start --kind charge --per-key 5 --key-from customer.id`,
	}
	pick, how := addFilterFlags(cmd), addRedriveFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, ids []string) error {
		if len(ids) == 0 && !givenFilter(cmd) {
			return usagef("which jobs? Give their ids, pick some by flags (see %s --help), or say --all", cmd.CommandPath())
		}
		if err := pick.check(cmd, ids); err != nil {
			return err
		}
		if err := how.check(cmd); err != nil {
			return err
		}
		return redriveNames(a.startRedrive(cmd.Context(), pick, how))
	}
	return cmd
}

// newFailuresRedriveCommand redrives the dead jobs of one failure group.
func newFailuresRedriveCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "redrive FINGERPRINT",
		Short: "Bring back the jobs that a failure group discarded, at a pace",
		Long: `Bring back all discarded jobs whose newest failure has this fingerprint, at a pace. This is the same
as: drover redrive start --fingerprint FINGERPRINT.`,
		Example: `  drover failures redrive c0ffee00c0ffee00 --rate 20 --canary 10 --why "fixed in v1.4"`,
		Args:    args(cobra.ExactArgs(1)),
	}
	how := addRedriveFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		print := hex(args[0])
		if !isFingerprint(print) {
			return usagef("%q is not a fingerprint, which has 16 hexadecimal digits: drover failures list shows them", shorten(args[0], 40))
		}
		if err := how.check(cmd); err != nil {
			return err
		}
		pick := &filterFlags{filter: drover.Filter{Fingerprint: print}}
		return redriveNames(a.startRedrive(cmd.Context(), pick, how))
	}
	return cmd
}

// redriveFlags are the settings of a redrive.
type redriveFlags struct {
	plan          drover.RedrivePlan
	flags         *byFlags
	by            drover.By
	patch         string
	dryRun, watch bool
	yes           bool
}

func addRedriveFlags(cmd *cobra.Command) *redriveFlags {
	how := &redriveFlags{}
	f := cmd.Flags()
	f.Float64Var(&how.plan.Rate, "rate", 0, "make `N` jobs a second due in each queue (default: 50)")
	f.IntVar(&how.plan.PerKey, "per-key", 0, "let at most `N` jobs with the same key wait or run at once (default: no cap)")
	f.StringVar(&how.plan.KeyFrom, "key-from", "", "`path` of the key in the args, such as customer.id (default: the job's concurrency key)")
	f.IntVar(&how.plan.Limit, "limit", 0, "bring back at most `N` jobs, those that ended first (default: all)")
	f.IntVar(&how.plan.Canary, "canary", 0, "send `N` jobs first, and the others after these have completed")
	f.IntVar(&how.plan.CanaryFailures, "canary-failures", 0, "abort the redrive if more than `N` canaries fail")
	f.IntVar(&how.plan.MaxAttempts, "max-attempts", 0, "let each job run `N` times at most (default: its old limit)")
	f.StringVar(&how.patch, "args-patch", "", "`JSON` merge patch to apply to the args")
	how.flags = addByFlags(cmd)
	f.BoolVar(&how.dryRun, "dry-run", false, "show which jobs would come back, and change nothing")
	f.BoolVar(&how.yes, "yes", false, "go ahead without asking")
	f.BoolVar(&how.watch, "watch", false, "stay and show the progress until the redrive ends")
	return how
}

// check refuses an explicit zero or empty value, which would mean the default: an unset variable of the shell must not
// take a limit away.
func (how *redriveFlags) check(cmd *cobra.Command) error {
	for _, name := range []string{"rate", "per-key", "limit", "max-attempts"} {
		if value := cmd.Flags().Lookup(name).Value.String(); cmd.Flags().Changed(name) && (value == "0" || value == "-0") {
			return usagef("--%s is 0: leave it out for the default", name)
		}
	}
	for _, name := range []string{"key-from", "args-patch"} {
		if cmd.Flags().Changed(name) && strings.TrimSpace(cmd.Flags().Lookup(name).Value.String()) == "" {
			return usagef("--%s is empty: give a value, or leave the flag out", name)
		}
	}
	var err error
	how.by, err = how.flags.given(cmd)
	return err
}

// redriveNames is flagNames for the fields of a RedrivePlan.
func redriveNames(err error) error {
	names := append(filterNames(), "Rate:", "--rate:", "PerKey:", "--per-key:", "KeyFrom:", "--key-from:", "Limit:", "--limit:",
		"Canary:", "--canary:", "CanaryFailures:", "--canary-failures:", "MaxAttempts:", "--max-attempts:", "ArgsPatch:", "--args-patch:", "Plan: ", "")
	if !errors.Is(err, drover.ErrInvalid) {
		return err
	}
	return usagef("%s", strings.NewReplacer(names...).Replace(err.Error()))
}

func (a *app) startRedrive(ctx context.Context, pick *filterFlags, how *redriveFlags) error {
	plan := how.plan
	if how.patch != "" {
		plan.ArgsPatch = json.RawMessage(how.patch)
	}
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	plan.Filter = pick.at(s.now)
	if print := plan.Filter.Fingerprint; print != "" {
		if err := s.knownFailure(ctx, print); err != nil {
			return err
		}
	}
	if how.dryRun {
		_, err := a.previewRedrive(ctx, s, plan)
		return err
	}
	if !how.yes {
		if some, err := a.confirmRedrive(ctx, s, plan); !some || err != nil {
			return err
		}
	}
	r, err := s.client.StartRedrive(ctx, plan, how.by)
	if err != nil {
		return err
	}
	if err := a.follow(ctx, s, r, how.watch); err != nil {
		return err
	}
	return unknownIDs(r)
}

// confirmRedrive shows which jobs would come back, and asks. It asks nothing, and returns false, if there are none.
func (a *app) confirmRedrive(ctx context.Context, s *session, plan drover.RedrivePlan) (bool, error) {
	shown := *a
	if a.json { // stdout is for the one value of the result
		shown.json, shown.stdout, shown.width, shown.style = false, a.stderr, 0, style{}
	}
	coming, err := shown.previewRedrive(ctx, s, plan)
	if err != nil {
		return false, err
	}
	if coming == 0 {
		if a.json {
			if err := printList(a, "groups", []drover.RedriveGroup{}); err != nil {
				return false, err
			}
		}
		return false, s.noneToRedrive(ctx, plan.Filter.IDs)
	}
	fit := fmt.Sprintf("%s in database %q, schema %q", plural(coming, "job"), s.database, s.schema)
	if !a.interactive {
		return false, usagef("%s would come back. Standard input is not a terminal, so the command cannot ask: add --yes to confirm", fit)
	}
	return true, a.confirm(ctx, fit+" will come back"+pace(plan)+".", "nothing was redriven")
}

// noneToRedrive is an error if ids were given: someone expected these jobs to be dead letters.
func (s *session) noneToRedrive(ctx context.Context, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	missing, err := s.missing(ctx, ids)
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return fmt.Errorf("%d of %s not found: %s", len(missing), plural(int64(len(ids)), "id"), firstOf(missing))
	}
	return errors.New("none of these jobs can be redriven now: drover explain ID says what a job waits for")
}

// follow reports a redrive that has begun.
func (a *app) follow(ctx context.Context, s *session, r *drover.Redrive, watch bool) error {
	switch {
	case r.Matched == 0:
		return a.emptyRedrive(r)
	case watch:
		if !a.json {
			a.tellRedrive(a.stderr, r)
		}
		return a.watchRedrive(ctx, s, r.ID)
	case a.json:
		return a.printJSON(r)
	}
	a.tellRedrive(a.stdout, r)
	if !s.alive(ctx) {
		fmt.Fprintln(a.stdout, noneAlive)
	}
	return nil
}

// unknownID is the reason of a skip for an id that no job has.
const unknownID = "unknown id"

func unknownIDs(r *drover.Redrive) error {
	var unknown []string
	for _, skip := range r.Skips {
		if skip.Why == unknownID {
			unknown = append(unknown, skip.ID)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	return fmt.Errorf("%d of %s not found: %s", len(unknown), plural(int64(len(r.Filter.IDs)), "id"), firstOf(unknown))
}

// firstOf is the first of some ids.
func firstOf(ids []string) string {
	const most = 5
	if len(ids) > most {
		return strings.Join(ids[:most], ", ") + ", …"
	}
	return strings.Join(ids, ", ")
}

// noneAlive is what the command prints if nothing can carry out the redrive for now.
const noneAlive = "no supervisor is alive: the redrive goes on when one starts"

// knownFailure is an error unless the failure group exists, or a dead job has its fingerprint before the group is added.
func (s *session) knownFailure(ctx context.Context, print string) error {
	_, err := s.client.FailureGroup(ctx, print)
	if !errors.Is(err, drover.ErrNotFound) {
		return err
	}
	n, countErr := s.client.Count(ctx, drover.Filter{Fingerprint: print})
	if countErr != nil || n > 0 {
		return countErr
	}
	return err
}

// alive reports whether a supervisor can carry out redrives. It is true too if the database does not say.
func (s *session) alive(ctx context.Context) bool {
	var alive bool
	err := s.pool.QueryRow(ctx, sqlAlive).Scan(&alive)
	return err != nil || alive
}

// Reads the whole table, which has one row a supervisor.
const sqlAlive = `
select exists (select from drover_supervisors where lost_at is null and not draining and beat_at >= now() - least(lease_ms, 1000000000000) * interval '1 ms')`

// emptyRedrive reports a redrive that matched no job.
func (a *app) emptyRedrive(r *drover.Redrive) error {
	if a.json {
		return a.printJSON(r)
	}
	tellSkips(a.stdout, r)
	fmt.Fprintf(a.stdout, "no job matches: redrive %s has nothing to do\n", r.ID)
	return nil
}

func (a *app) tellRedrive(w io.Writer, r *drover.Redrive) {
	fmt.Fprintf(w, "redrive %s: %s will become due, %g a second\n", r.ID, plural(r.Matched, "job"), r.Rate)
	fmt.Fprintf(w, "watch it: %s\nend it:   %s\n", a.again("redrive watch", r.ID), a.again("redrive abort", r.ID))
	if r.Unkeyed > 0 {
		fmt.Fprintf(w, "%d of %s have no key, so --per-key does not limit them\n", r.Unkeyed, plural(r.Matched, "job"))
	}
	tellSkips(w, r)
}

// tellSkips prints which jobs a redrive left dead: for each reason the number, and the first ids.
func tellSkips(w io.Writer, r *drover.Redrive) {
	var reasons []string
	ids := map[string][]string{}
	for _, skip := range r.Skips {
		if len(ids[skip.Why]) == 0 {
			reasons = append(reasons, skip.Why)
		}
		ids[skip.Why] = append(ids[skip.Why], skip.ID)
	}
	for _, why := range reasons {
		fmt.Fprintln(w, printable(fmt.Sprintf("skipped: %d %s: %s", len(ids[why]), why, firstOf(ids[why]))))
	}
	if more := r.Skipped - int64(len(r.Skips)); more > 0 {
		fmt.Fprintf(w, "skipped: %d more\n", more)
	}
}

// previewRedrive shows which jobs would come back, and returns how many.
func (a *app) previewRedrive(ctx context.Context, s *session, plan drover.RedrivePlan) (coming int64, err error) {
	groups, err := s.client.PreviewRedrive(ctx, plan)
	if err != nil {
		return 0, err
	}
	var sum drover.RedriveGroup
	rows := [][]string{{"JOBS", "QUEUE", "KIND", "REASON", "FINGERPRINT", "HELD", "EXPIRED", "UNKEYED", "NEWEST ERROR"}}
	for _, g := range groups {
		sum.Jobs, sum.Held, sum.Expired, sum.Unkeyed = sum.Jobs+g.Jobs, sum.Held+g.Held, sum.Expired+g.Expired, sum.Unkeyed+g.Unkeyed
		sum.Unpatchable += g.Unpatchable
		rows = append(rows, []string{
			fmt.Sprint(g.Jobs), g.Queue, g.Kind, string(g.Reason), g.Fingerprint,
			fmt.Sprint(g.Held), fmt.Sprint(g.Expired), fmt.Sprint(g.Unkeyed), g.Error,
		})
	}
	coming = sum.Jobs - sum.Held - sum.Expired - sum.Unpatchable
	if a.json {
		return coming, printList(a, "groups", groups)
	}
	if len(groups) == 0 {
		fmt.Fprintln(a.stdout, "no job matches")
		return 0, nil
	}
	if err := a.table(rows); err != nil {
		return 0, err
	}
	fmt.Fprintf(a.stdout, "\n%s would come back", plural(coming, "job"))
	if int64(plan.Limit) == coming {
		fmt.Fprint(a.stdout, ", as many as --limit allows")
	}
	fmt.Fprintln(a.stdout, pace(plan))
	a.tellSums(plan, &sum)
	return coming, nil
}

// tellSums says what a redrive would skip.
func (a *app) tellSums(plan drover.RedrivePlan, sum *drover.RedriveGroup) {
	if sum.Held+sum.Expired > 0 {
		fmt.Fprintf(a.stdout, "skipped: %d held by another redrive, %d expired\n", sum.Held, sum.Expired)
	}
	if sum.Unpatchable > 0 {
		fmt.Fprintf(a.stdout, "skipped: %d whose args are no object, so --args-patch does not fit\n", sum.Unpatchable)
	}
	if sum.Unkeyed > 0 {
		fmt.Fprintln(a.stdout, printable(fmt.Sprintf("%d of %d have no key (%s), so --per-key does not limit them", sum.Unkeyed, sum.Jobs, cmp.Or(plan.KeyFrom, "their concurrency key"))))
	}
}

// pace is how a plan's jobs come back.
func pace(plan drover.RedrivePlan) string {
	text := fmt.Sprintf(", %g a second in each queue", cmp.Or(plan.Rate, 50))
	if plan.PerKey > 0 {
		text += fmt.Sprintf(", at most %d of one key at once", plan.PerKey)
	}
	if plan.Canary > 0 {
		text += fmt.Sprintf(", %d of them first as canaries, of which %d may fail", plan.Canary, plan.CanaryFailures)
	}
	return text
}
