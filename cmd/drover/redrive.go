package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
)

func newRedriveCommand(a *app) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "redrive",
		Short: "Bring many dead jobs back, at a pace",
		Long: `Bring many dead jobs back, at a pace.

A redrive is a row in the database that running supervisors carry on: this command may end, it goes on.`,
	})
	cmd.AddCommand(newRedriveStartCommand(a), newRedriveListCommand(a), newRedriveWatchCommand(a),
		newRedriveVerbCommand(a, "pause", "Make no more jobs due for now", (*drover.Client).PauseRedrive),
		newRedriveVerbCommand(a, "resume", "Go on with a paused redrive", (*drover.Client).ResumeRedrive),
		newRedriveAbortCommand(a))
	return cmd
}

func newRedriveStartCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "start [ID...]",
		Short: "Begin a redrive of all jobs that the filters pick",
		Long: `Begin a redrive of all jobs that the filters pick: discarded ones, or with --state cancelled or parked those.

--dry-run shows what would come back and changes nothing. --watch stays and shows the progress; Ctrl-C ends the showing, not the redrive.`,
		Example: `  drover redrive start --kind charge --reason attempts_exhausted --dry-run
  drover redrive start --kind charge --rate 20 --per-key 5 --key-from customer.id --canary 10 --why "bank is back" --watch`,
	}
	pick, how := addFilterFlags(cmd), addRedriveFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, ids []string) error {
		if len(ids) == 0 && !givenFilter(cmd) {
			return usagef("which jobs? --all means every dead one; see %s --help for the others", cmd.CommandPath())
		}
		if err := errors.Join(pick.check(cmd, ids), how.check(cmd)); err != nil {
			return err
		}
		return redriveNames(a.startRedrive(cmd.Context(), pick, how))
	}
	return cmd
}

// newFailuresRedriveCommand redrives the dead jobs of one failure group.
func newFailuresRedriveCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "redrive FINGERPRINT",
		Short:   "Bring back all jobs that died of a failure, at a pace",
		Example: `  drover failures redrive c0ffee00c0ffee00 --rate 20 --canary 10 --why "fixed in v1.4"`,
		Args:    args(cobra.ExactArgs(1)),
	}
	how := addRedriveFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		print := strings.ToLower(strings.TrimSpace(args[0]))
		if err := errors.Join(checkFingerprint(print), how.check(cmd)); err != nil {
			return err
		}
		return redriveNames(a.startRedrive(cmd.Context(), &filterFlags{filter: drover.Filter{Fingerprint: print}}, how))
	}
	return cmd
}

// redriveFlags say how a redrive goes.
type redriveFlags struct {
	plan          drover.RedrivePlan
	patch         string
	dryRun, watch bool
}

func addRedriveFlags(cmd *cobra.Command) *redriveFlags {
	how := &redriveFlags{}
	f := cmd.Flags()
	f.Float64Var(&how.plan.Rate, "rate", 0, "jobs a second that get due in one queue (default 50)")
	f.IntVar(&how.plan.PerKey, "per-key", 0, "jobs of one key that are out at once, over all supervisors (default no cap)")
	f.StringVar(&how.plan.KeyFrom, "key-from", "", "where in the args a job's key is, such as customer.id (default: its concurrency key)")
	f.IntVar(&how.plan.Limit, "limit", 0, "so many at most, those that ended first (default all)")
	f.IntVar(&how.plan.Canary, "canary", 0, "so many go first, and the others once these have completed")
	f.IntVar(&how.plan.CanaryFailures, "canary-failures", 0, "abort when more canaries fail than this")
	f.IntVar(&how.plan.MaxAttempts, "max-attempts", 0, "the jobs' new total of runs")
	f.StringVar(&how.patch, "args-patch", "", "JSON merge patch of the args")
	f.StringVar(&how.plan.By, "by", "", "who asks for it (default: your user name)")
	f.StringVar(&how.plan.Why, "why", "", "and why")
	f.BoolVar(&how.dryRun, "dry-run", false, "show what would come back, and change nothing")
	f.BoolVar(&how.watch, "watch", false, "show the progress until it has ended")
	return how
}

// check refuses what says the contrary of what it would do: a variable that is not set must not mean the default.
func (how *redriveFlags) check(cmd *cobra.Command) error {
	for _, name := range []string{"rate", "per-key", "limit", "max-attempts", "key-from", "args-patch", "by"} {
		flag := cmd.Flags().Lookup(name)
		if value := flag.Value.String(); flag.Changed && (value == "" || value == "0") {
			return usagef("--%s is %s; leave it out for the default", name, cmp.Or(value, "empty"))
		}
	}
	return nil
}

// checkFingerprint refuses what no failure can have.
func checkFingerprint(print string) error {
	if len(print) != 16 || strings.Trim(print, "0123456789abcdef") != "" {
		return usagef("%q is not a fingerprint: 16 hexadecimal digits", shorten(print, 40))
	}
	return nil
}

// redriveNames calls what the library refused by its flag.
func redriveNames(err error) error {
	names := append(filterNames(), "Rate:", "--rate:", "PerKey:", "--per-key:", "KeyFrom:", "--key-from:", "Limit:", "--limit:",
		"Canary:", "--canary:", "CanaryFailures:", "--canary-failures:", "MaxAttempts:", "--max-attempts:", "ArgsPatch:", "--args-patch:", "By:", "--by:", "Why:", "--why:", "Plan: ", "")
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
	if me, err := user.Current(); plan.By == "" && err == nil {
		plan.By = me.Username
	}
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	plan.Filter = pick.at(s.now)
	if how.dryRun {
		return a.previewRedrive(ctx, s, plan)
	}
	r, err := s.client.Redrive(ctx, plan)
	if err != nil {
		return err
	}
	if a.json && !how.watch {
		if err := a.printJSON(r); err != nil {
			return err
		}
	} else {
		a.tellStarted(r)
	}
	switch {
	case r.Matched == 0:
		return fmt.Errorf("no job comes back")
	case how.watch:
		return a.watchRedrive(ctx, s, r.ID)
	}
	return nil
}

// tellStarted says what was begun, on standard error: --watch and --json have standard output for the end.
func (a *app) tellStarted(r *drover.Redrive) {
	fmt.Fprintf(a.stderr, "redrive %s: %s come back, %g a second and queue", r.ID, plural(r.Matched, "job"), r.Rate)
	if r.PerKey > 0 {
		fmt.Fprintf(a.stderr, ", at most %d of one key at once", r.PerKey)
	}
	fmt.Fprintf(a.stderr, "\nwatch it: %s\nend it:   %s\n", a.again("redrive watch", r.ID), a.again("redrive abort", r.ID))
	if r.Unkeyed > 0 {
		fmt.Fprintf(a.stderr, "%s of them have no key, and are not capped\n", plural(r.Unkeyed, "job"))
	}
	why := map[string][]string{}
	for _, skip := range r.Skips {
		why[skip.Why] = append(why[skip.Why], skip.ID)
	}
	for _, reason := range slices.Sorted(maps.Keys(why)) {
		ids := why[reason]
		fmt.Fprintf(a.stderr, "%d skipped, %s: %s", len(ids), printable(reason), strings.Join(ids[:min(len(ids), 5)], " "))
		if len(ids) > 5 {
			fmt.Fprint(a.stderr, " …")
		}
		fmt.Fprintln(a.stderr)
	}
	if more := r.Skipped - int64(len(r.Skips)); more > 0 {
		fmt.Fprintf(a.stderr, "%d more skipped\n", more)
	}
}

func (a *app) previewRedrive(ctx context.Context, s *session, plan drover.RedrivePlan) error {
	groups, err := s.client.PreviewRedrive(ctx, plan)
	if err != nil {
		return err
	}
	if a.json {
		if groups == nil {
			groups = []drover.RedriveGroup{}
		}
		return a.printJSON(groups)
	}
	if len(groups) == 0 {
		fmt.Fprintln(a.stdout, "no jobs")
		return nil
	}
	var total, skipped int64
	rows := [][]string{{"JOBS", "QUEUE", "KIND", "REASON", "FINGERPRINT", "EXPIRED", "HELD", "NO KEY", "NEWEST ERROR"}}
	for _, g := range groups {
		total, skipped = total+g.Jobs, skipped+g.Expired+g.Held
		rows = append(rows, []string{fmt.Sprint(g.Jobs), shorten(g.Queue, 24), shorten(g.Kind, 32), g.Reason, g.Fingerprint, fmt.Sprint(g.Expired), fmt.Sprint(g.Held), fmt.Sprint(g.Unkeyed), shorten(g.Error, 60)})
	}
	if err := table(a.stdout, rows); err != nil {
		return err
	}
	fmt.Fprintf(a.stdout, "\n%s would come back, %g a second and queue", plural(total-skipped, "job"), cmp.Or(plan.Rate, 50))
	if plan.Limit > 0 && int64(plan.Limit) < total-skipped {
		fmt.Fprintf(a.stdout, ", the first %d by --limit", plan.Limit)
	}
	fmt.Fprintln(a.stdout)
	return nil
}

func newRedriveListCommand(a *app) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List redrives, newest first",
		Args:  args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 || limit > 1000 {
				return usagef("--limit %d is not 1 to 1000", limit)
			}
			return a.listRedrives(cmd.Context(), limit)
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 20, "at most so many, 1 to 1000")
	return cmd
}

func (a *app) listRedrives(ctx context.Context, limit int) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	list, err := s.client.Redrives(ctx, limit)
	if err != nil {
		return err
	}
	if a.json {
		if list == nil {
			list = []drover.Redrive{}
		}
		for i := range list {
			list[i].Skips = nil
		}
		return a.printJSON(list)
	}
	if len(list) == 0 {
		fmt.Fprintln(a.stdout, "no redrives")
		return nil
	}
	rows := [][]string{{"ID", "STATE", "RELEASED", "SKIPPED", "RATE", "FILTER", "BY", "BEGUN", "WHY"}}
	for _, r := range list {
		rows = append(rows, []string{
			r.ID, redriveState(&r), fmt.Sprintf("%d/%d", r.Released, r.Matched), fmt.Sprint(r.Skipped), fmt.Sprintf("%g/s", r.Rate), shorten(filterText(r.Filter), 40),
			shorten(r.By, 16), ago(r.CreatedAt, s.now), shorten(strings.TrimSpace(r.Why+" "+r.Note), 60),
		})
	}
	return table(a.stdout, rows)
}

// filterText is a filter in a few words: kind=charge queue=payments.
func filterText(raw json.RawMessage) string {
	var keys map[string]any
	if json.Unmarshal(raw, &keys) != nil {
		return compact(raw)
	}
	var words []string
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		words = append(words, fmt.Sprintf("%s=%v", key, keys[key]))
	}
	return strings.Join(words, " ")
}

func redriveState(r *drover.Redrive) string {
	if r.Paused {
		return string(r.State) + ", paused"
	}
	return string(r.State)
}

func newRedriveWatchCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "watch ID",
		Short: "Show a redrive's progress until it has ended",
		Long: `Show a redrive's progress until it has ended. Ctrl-C ends the showing, not the redrive. A lost connection is
waited for, half a minute.

With --json it prints the redrive once, as it stands.`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.open(cmd.Context())
			if err != nil {
				return err
			}
			defer s.close()
			return a.watchRedrive(cmd.Context(), s, jobID(args[0]))
		},
	}
}

// watchInterval is between looks at a redrive.
const watchInterval = 500 * time.Millisecond

// lostPatience is how long a watch waits for a database that went away.
const lostPatience = 30 * time.Second

const sqlAnyoneAlive = `
select exists (select from supervisors where lost_at is null and not draining and beat_at >= now() - lease_ms * interval '1 ms')`

// watchRedrive shows a bar that moves, where a person looks on, and otherwise a line each time something has changed.
func (a *app) watchRedrive(ctx context.Context, s *session, id string) error {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	moving := a.moving
	lost := time.Time{} // since when the database does not answer
	for shown := ""; ; {
		r, err := s.client.GetRedrive(ctx, id)
		switch {
		case err == nil:
			lost = time.Time{}
		case ctx.Err() != nil || errors.Is(err, drover.ErrNotFound) || !lost.IsZero() && time.Since(lost) > lostPatience:
			return fmt.Errorf("%w; the redrive, if there is one, goes on: %s", err, a.again("redrive watch", id))
		case lost.IsZero():
			lost = time.Now()
			fmt.Fprintf(a.stderr, "\nthe database does not answer, tried again for %s: %v\n", span(lostPatience), err)
			fallthrough
		default:
			select {
			case <-ctx.Done():
			case <-ticker.C:
			}
			continue
		}
		if a.json {
			return a.printJSON(r)
		}
		line := progress(r)
		var alive bool
		if err := s.pool.QueryRow(ctx, sqlAnyoneAlive).Scan(&alive); err == nil && !alive {
			line += "  no supervisor is alive"
		}
		switch {
		case moving:
			fmt.Fprintf(a.stderr, "\r\x1b[K%s", line)
		case line != shown:
			fmt.Fprintln(a.stderr, line)
		}
		shown = line
		if r.FinishedAt != nil || r.State == drover.RedriveAborted {
			if moving {
				fmt.Fprintln(a.stderr)
			}
			fmt.Fprintf(a.stdout, "redrive %s is %s: %d released, %d skipped", r.ID, r.State, r.Released, r.Skipped)
			if r.Note != "" {
				fmt.Fprintf(a.stdout, ": %s", printable(r.Note))
			}
			fmt.Fprintln(a.stdout)
			if r.State == drover.RedriveAborted {
				return fmt.Errorf("the redrive was aborted")
			}
			return nil
		}
		select {
		case <-ctx.Done():
			fmt.Fprintf(a.stderr, "\nthe redrive goes on; end it: %s\n", a.again("redrive abort", id))
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// progress is one line: a bar, how many, how long it may take.
func progress(r *drover.Redrive) string {
	const width = 30
	done := 0.0
	if r.Matched > 0 {
		done = float64(r.Released) / float64(r.Matched)
	}
	filled := int(done * width)
	line := fmt.Sprintf("%s%s %3.0f%%  %d/%d  %s", strings.Repeat("█", filled), strings.Repeat("░", width-filled), done*100, r.Released, r.Matched, redriveState(r))
	if left := r.Matched - r.Released; left > 0 && r.State == drover.RedriveRunning && !r.Paused {
		line += "  at least " + span(time.Duration(float64(left)/r.Rate*float64(time.Second)))
	}
	return line
}

func newRedriveVerbCommand(a *app, verb, short string, do func(*drover.Client, context.Context, string) error) *cobra.Command {
	return &cobra.Command{
		Use:   verb + " ID",
		Short: short,
		Args:  args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.changeRedrive(cmd.Context(), jobID(args[0]), do)
		},
	}
}

func newRedriveAbortCommand(a *app) *cobra.Command {
	var why string
	cmd := &cobra.Command{
		Use:   "abort ID",
		Short: "End a redrive: what it has not made due stays dead",
		Args:  args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.changeRedrive(cmd.Context(), jobID(args[0]), func(c *drover.Client, ctx context.Context, id string) error {
				return c.AbortRedrive(ctx, id, why)
			})
		},
	}
	cmd.Flags().StringVar(&why, "why", "", "why, for whoever reads the list")
	return cmd
}

func (a *app) changeRedrive(ctx context.Context, id string, do func(*drover.Client, context.Context, string) error) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	if err := do(s.client, ctx, id); err != nil {
		return err
	}
	r, err := s.client.GetRedrive(ctx, id)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(r)
	}
	fmt.Fprintf(a.stdout, "redrive %s: %s, %d of %d released\n", r.ID, redriveState(r), r.Released, r.Matched)
	return nil
}
