package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/drive"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/plural"
)

func newRedriveCommand(a *app) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "redrive",
		Short: "Make many dead jobs due again, so many a second",
		Long: `Make many dead jobs due again, so many a second.

A redrive is a row in the database, and running supervisors carry it out. It goes on after this command ends.`,
		Example: "  drover redrive start --kind charge --rate 20 --watch",
	})
	cmd.AddCommand(newRedriveStartCommand(a), newRedriveListCommand(a), newRedriveShowCommand(a), newRedriveWatchCommand(a),
		newRedriveVerbCommand(a, "pause", "Pause a redrive: it makes no more jobs due until it is resumed", (*drover.Client).PauseRedrive),
		newRedriveVerbCommand(a, "resume", "Resume a paused redrive", (*drover.Client).ResumeRedrive),
		newRedriveVerbCommand(a, "abort", "Abort a redrive: jobs that are not due yet stay dead", (*drover.Client).AbortRedrive))
	return cmd
}

func newRedriveStartCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "start [ID...]",
		Short: "Start a redrive of the jobs that match all filter flags",
		Long: `Start a redrive of the jobs that match all filter flags. It redrives discarded jobs, or cancelled or parked jobs
if --state names one of these states.

--dry-run shows how many jobs would become due, and changes nothing. --watch shows the progress until the redrive
ends. Ctrl-C ends the watching, and the redrive goes on.`,
		Example: `  drover redrive start --kind charge --reason attempts_exhausted --dry-run
  drover redrive start --kind charge --rate 20 --per-key 5 --key-from customer.id --canary 10 --why "bank is back" --watch`,
	}
	pick, how := addFilterFlags(cmd), addRedriveFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, ids []string) error {
		if len(ids) == 0 && !givenFilter(cmd) {
			return usagef("which jobs? --all means every dead one; see %s --help for the others", cmd.CommandPath())
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

// newFailuresRedriveCommand returns the command that redrives the dead letters of one failure group.
func newFailuresRedriveCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "redrive FINGERPRINT",
		Short:   "Make all jobs due again that were discarded with a failure, so many a second",
		Example: `  drover failures redrive c0ffee00c0ffee00 --rate 20 --canary 10 --why "fixed in v1.4"`,
		Args:    args(cobra.ExactArgs(1)),
	}
	how := addRedriveFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		print := hex(args[0])
		if !isFingerprint(print) {
			return usagef("%q is not a failure's fingerprint: 16 hexadecimal digits", shorten(args[0], 40))
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
	patch         string
	by            *drover.Audit
	dryRun, watch bool
}

func addRedriveFlags(cmd *cobra.Command) *redriveFlags {
	how := &redriveFlags{}
	f := cmd.Flags()
	f.Float64Var(&how.plan.Rate, "rate", 0, "jobs of each queue that become due in a second (default 50)")
	f.IntVar(&how.plan.PerKey, "per-key", 0, "redriven jobs of one key that may be due or running together, over all supervisors (default: no cap)")
	f.StringVar(&how.plan.KeyFrom, "key-from", "", "`path` to the key in the args, such as customer.id (default: the job's concurrency key)")
	f.IntVar(&how.plan.Limit, "limit", 0, "redrive at most this many jobs; the jobs discarded first come first (default: all)")
	f.IntVar(&how.plan.Canary, "canary", 0, "redrive this many jobs first, and the others once each of these has completed or failed")
	f.IntVar(&how.plan.CanaryFailures, "canary-failures", 0, "abort the redrive if more canaries than this fail")
	f.IntVar(&how.plan.MaxAttempts, "max-attempts", 0, "new maximum of attempts (default: unchanged)")
	f.StringVar(&how.patch, "args-patch", "", "change the args by this `JSON` merge patch")
	how.by = addAuditFlags(cmd, "kept with the redrive")
	f.BoolVar(&how.dryRun, "dry-run", false, "show how many jobs would become due, and change nothing")
	f.BoolVar(&how.watch, "watch", false, "show the progress until the redrive has ended")
	return how
}

// check refuses a flag with the value zero or an empty value, because the library would take it for the default. An
// unset shell variable must not remove a limit.
func (how *redriveFlags) check(cmd *cobra.Command) error {
	for _, name := range []string{"rate", "per-key", "limit", "max-attempts"} {
		if value := cmd.Flags().Lookup(name).Value.String(); cmd.Flags().Changed(name) && (value == "0" || value == "-0") {
			return usagef("--%s: is 0; leave it out for the default", name)
		}
	}
	for _, name := range []string{"key-from", "args-patch"} {
		if cmd.Flags().Changed(name) && strings.TrimSpace(cmd.Flags().Lookup(name).Value.String()) == "" {
			return usagef("--%s: is empty", name)
		}
	}
	return nil
}

// redriveNames replaces the library's name of a refused field by its flag.
func redriveNames(err error) error {
	names := append(append(filterNames(), auditNames()...), "Rate:", "--rate:", "PerKey:", "--per-key:", "KeyFrom:", "--key-from:", "Limit:", "--limit:",
		"Canary:", "--canary:", "CanaryFailures:", "--canary-failures:", "MaxAttempts:", "--max-attempts:", "ArgsPatch:", "--args-patch:", "Plan: ", "")
	return flagNamed(err, names...)
}

func (a *app) startRedrive(ctx context.Context, pick *filterFlags, how *redriveFlags) error {
	plan := how.plan
	if how.patch != "" {
		plan.ArgsPatch = json.RawMessage(how.patch)
	}
	open := a.changing
	if how.dryRun {
		open = a.reading
	}
	return open(ctx, func(ctx context.Context, s *session) error {
		plan.Filter = pick.at(s.now)
		if print := plan.Filter.Fingerprint; print != "" {
			if err := s.knownFailure(ctx, print); err != nil {
				return err
			}
		}
		if how.dryRun {
			return a.previewRedrive(ctx, s, plan)
		}
		return a.startPlan(ctx, s, plan, how)
	})
}

func (a *app) startPlan(ctx context.Context, s *session, plan drover.RedrivePlan, how *redriveFlags) error {
	r, err := s.client.StartRedrive(ctx, plan, *how.by)
	switch {
	case err != nil:
		return err
	case r.Matched == 0:
		return a.emptyRedrive(r)
	case how.watch:
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

// noneAlive is the note about a redrive that cannot go on for now.
const noneAlive = "no supervisor is alive: it goes on when one is"

// knownFailure returns an error if there is no such failure group and no job with its fingerprint. There may be such a
// job before its group is stored.
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

// The method alive reports whether a supervisor is alive. Without a living supervisor, no redrive goes on. If the list
// of supervisors cannot be read, alive returns true.
func (s *session) alive(ctx context.Context) bool {
	list, err := s.client.Supervisors(ctx)
	return err != nil || slices.ContainsFunc(list, func(one drover.SupervisorInfo) bool { return one.State == drover.SupervisorAlive })
}

// emptyRedrive reports a redrive that has no jobs: it prints the skipped jobs and returns an error.
func (a *app) emptyRedrive(r *drover.Redrive) error {
	if a.json {
		if err := a.printJSON(r); err != nil {
			return err
		}
	} else {
		tellSkips(a.stdout, r)
	}
	if r.ID == "" {
		return errors.New("no job matches, so no redrive was started")
	}
	return fmt.Errorf("no job fits: redrive %s has nothing to do", r.ID)
}

func (a *app) tellRedrive(w io.Writer, r *drover.Redrive) {
	come := "come"
	if r.Matched == 1 {
		come = "comes"
	}
	fmt.Fprintf(w, "redrive %s: %s %s back, %g a second\n", r.ID, plural.Of(r.Matched, "job"), come, r.Rate)
	fmt.Fprintf(w, "watch it: %s\nend it:   %s\n", a.again("redrive watch", r.ID), a.again("redrive abort", r.ID))
	if r.Unkeyed > 0 {
		fmt.Fprintf(w, "without a key, so not capped: %d of %s\n", r.Unkeyed, plural.Of(r.Matched, "job"))
	}
	tellSkips(w, r)
}

// tellSkips prints which jobs a redrive skipped: for each reason the number of jobs and their first five ids.
func tellSkips(w io.Writer, r *drover.Redrive) {
	const most = 5
	var reasons []string
	ids := map[string][]string{}
	for _, skip := range r.Skips {
		if len(ids[skip.Why]) == 0 {
			reasons = append(reasons, skip.Why)
		}
		ids[skip.Why] = append(ids[skip.Why], skip.ID)
	}
	for _, why := range reasons {
		these := ids[why]
		line := fmt.Sprintf("skipped: %d %s: %s", len(these), why, strings.Join(these[:min(most, len(these))], ", "))
		if len(these) > most {
			line += ", …"
		}
		fmt.Fprintln(w, printable(line))
	}
	if more := r.Skipped - int64(len(r.Skips)); more > 0 {
		fmt.Fprintf(w, "skipped: %d more\n", more)
	}
}

func (a *app) previewRedrive(ctx context.Context, s *session, plan drover.RedrivePlan) error {
	groups, err := s.client.PreviewRedrive(ctx, plan)
	heading := []string{"JOBS", "QUEUE", "KIND", "REASON", "FINGERPRINT", "HELD", "EXPIRED", "UNKEYED", "NEWEST ERROR"}
	err = printList(a, groups, err, "no jobs", heading, func(g *drover.RedriveGroup) []string {
		return []string{
			fmt.Sprint(g.Jobs), shorten(g.Queue, 24), shorten(g.Kind, 32), string(g.Reason), g.Fingerprint,
			fmt.Sprint(g.Held), fmt.Sprint(g.Expired), fmt.Sprint(g.Unkeyed), shorten(g.Error, 60),
		}
	})
	if err != nil || a.json || len(groups) == 0 {
		return err
	}
	var sum drover.RedriveGroup
	for _, g := range groups {
		sum.Jobs, sum.Held, sum.Expired, sum.Unkeyed = sum.Jobs+g.Jobs, sum.Held+g.Held, sum.Expired+g.Expired, sum.Unkeyed+g.Unkeyed
	}
	coming := max(0, sum.Jobs-sum.Held-sum.Expired) // not negative, even if jobs are both held and expired
	fmt.Fprintf(a.stdout, "\n%s would come back%s\n", plural.Of(coming, "job"), pace(plan))
	if sum.Held+sum.Expired > 0 {
		fmt.Fprintf(a.stdout, "skipped: %d held by another redrive, %d expired\n", sum.Held, sum.Expired)
	}
	if sum.Unkeyed > 0 {
		fmt.Fprintln(a.stdout, printable(fmt.Sprintf("without a key (%s), so not capped: %d of %s", cmp.Or(plan.KeyFrom, "their concurrency key"), sum.Unkeyed, plural.Of(sum.Jobs, "job"))))
	}
	return nil
}

// pace describes a plan's rate, cap by key and canaries.
func pace(plan drover.RedrivePlan) string {
	text := fmt.Sprintf(", %g a second in each queue", cmp.Or(plan.Rate, 50))
	if plan.PerKey > 0 {
		text += fmt.Sprintf(", %d of one key at once", plan.PerKey)
	}
	if plan.Canary > 0 {
		text += fmt.Sprintf(", canaries first: %d, of which %d may fail", plan.Canary, plan.CanaryFailures)
	}
	return text
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
			return a.reading(cmd.Context(), func(ctx context.Context, s *session) error { return a.listRedrives(ctx, s, limit) })
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 20, "longest list, 1 to 1000")
	return cmd
}

func (a *app) listRedrives(ctx context.Context, s *session, limit int) error {
	list, err := s.client.Redrives(ctx, limit)
	for i := range list {
		list[i].Skips = nil // a redrive may have up to 1,000 skips; redrive watch --json prints them
	}
	heading := []string{"ID", "STATE", "RELEASED", "SKIPPED", "RATE", "FILTER", "BY", "BEGUN", "WHY"}
	return printList(a, list, err, "no redrives", heading, func(r *drover.Redrive) []string {
		return []string{
			r.ID, redriveState(r), fmt.Sprintf("%d/%d", r.Released, r.Matched), fmt.Sprint(r.Skipped), fmt.Sprintf("%g/s", r.Rate),
			shorten(filterOf(r), 60), shorten(r.By, 16), ago(r.CreatedAt, s.now), shorten(strings.Join(slices.DeleteFunc([]string{r.Why, r.Note}, func(s string) bool { return s == "" }), "; "), 60),
		}
	})
}

// filterOf returns a short form of a redrive's filter, or the reason why the filter cannot be read.
func filterOf(r *drover.Redrive) string {
	if r.Unreadable != "" {
		return "(unreadable: " + r.Unreadable + ")"
	}
	text, err := json.Marshal(r.Filter)
	if err != nil {
		return "(unreadable: " + err.Error() + ")"
	}
	return filterWords(text)
}

// filterWords turns the JSON of a filter into a short form: kind=charge queue=payments.
func filterWords(filter json.RawMessage) string {
	var fields map[string]json.RawMessage
	if json.Unmarshal(filter, &fields) != nil {
		return compact(filter)
	}
	var words []string
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		value := compact(fields[key])
		var text string
		var ids []string
		switch {
		case key == "all":
			words = append(words, "all")
			continue
		case key == "ids" && json.Unmarshal(fields[key], &ids) == nil:
			words = append(words, plural.Of(len(ids), "id"))
			continue
		case json.Unmarshal(fields[key], &text) == nil:
			value = text
		}
		words = append(words, key+"="+value)
	}
	return strings.Join(words, " ")
}

func redriveState(r *drover.Redrive) string {
	if r.Paused {
		return string(r.State) + ", paused"
	}
	return string(r.State)
}

func newRedriveShowCommand(a *app) *cobra.Command {
	return shows(a, &cobra.Command{Use: "show ID", Short: "Show a redrive and each job it skipped"}, a.showRedrive)
}

func (a *app) showRedrive(ctx context.Context, s *session, id string) error {
	r, err := s.client.Redrive(ctx, jobID(id))
	if err != nil || a.json {
		return a.answer(r, err)
	}
	next, err := s.nextHeld(ctx, r)
	if err != nil {
		return err
	}
	if next != "" {
		next += ", to see what it waits for: " + a.again("explain", next)
	}
	fmt.Fprintf(a.stdout, "redrive %s\n", r.ID)
	rows := [][]string{
		{"state", redriveState(r)},
		{"filter", filterOf(r)},
		{"released", fmt.Sprintf("%d of %d", r.Released, r.Matched)},
		{"skipped", fmt.Sprint(r.Skipped)},
		{"begun", ago(r.CreatedAt, s.now) + ", by " + r.By},
		{"why", r.Why},
		{"changed", byline(r.ChangedBy, r.ChangedWhy)}, // the last pause, resume or abort
		{"note", r.Note},
		{"next job", next},
	}
	if err := table(a.stdout, slices.DeleteFunc(rows, func(row []string) bool { return row[1] == "" })); err != nil {
		return err
	}
	if len(r.Skips) == 0 {
		return nil
	}
	fmt.Fprintln(a.stdout)
	rows = [][]string{{"SKIPPED", "REASON"}}
	for _, skip := range r.Skips {
		rows = append(rows, []string{skip.ID, shorten(skip.Why, 200)})
	}
	if err := table(a.stdout, rows); err != nil {
		return err
	}
	if more := r.Skipped - int64(len(r.Skips)); more > 0 {
		fmt.Fprintf(a.stdout, "and %d more\n", more)
	}
	return nil
}

// sqlNextHeld finds a job that the redrive holds: a dead job, or a parked job.
const sqlNextHeld = `
select id from jobs where redrive_id = $1 and (finalized_at = paced_at or state = 'parked' and isfinite(paced_at))
order by redrive_id, queue, pace_key, paced_at, id limit 1`

// nextHeld returns the id of a job that the redrive has still to make due; empty if there is none.
func (s *session) nextHeld(ctx context.Context, r *drover.Redrive) (id string, err error) {
	if r.FinishedAt != nil || r.State == drover.RedriveAborted {
		return "", nil
	}
	if err = s.pool.QueryRow(ctx, sqlNextHeld, r.ID).Scan(&id); err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return "", fmt.Errorf("look for a job of the redrive: %w", err)
	}
	return id, nil
}

func newRedriveWatchCommand(a *app) *cobra.Command {
	return shows(a, &cobra.Command{
		Use:   "watch ID",
		Short: "Show a redrive's progress until it has ended",
		Long: `Show a redrive's progress until it has ended. Ctrl-C ends the watching, and the redrive goes on. If the
connection is lost, the command tries to connect again for up to a minute.

With --json it prints the redrive once, as it is now.`,
		Example: "  drover redrive watch 01ARZ3NDEKTSV4RRFFQ69G5FAV",
	}, a.watchRedrive)
}

// watchInterval is the time between two queries of the watcher.
const watchInterval = 500 * time.Millisecond

// watchPatience is how long the watcher tries to restore a lost connection.
const watchPatience = time.Minute

// watchStill is how long a redrive may make nothing due before the watcher names the command that shows why. For a slow
// redrive this time is longer: three times the pause between two of its jobs.
const watchStill = 5 * time.Second

// watchRedrive shows the progress of a redrive until the redrive ends. On a terminal it shows a moving bar. Elsewhere
// it prints a line after each change.
func (a *app) watchRedrive(ctx context.Context, s *session, id string) error {
	id = jobID(id)
	moving := a.moving
	var lost time.Time
	released, since := int64(-1), time.Now()
	for shown := ""; ; {
		r, err := s.client.Redrive(ctx, id)
		if ctx.Err() == nil && connectionLost(err) && shown != "" && (lost.IsZero() || time.Since(lost) < watchPatience) {
			if lost.IsZero() {
				lost = time.Now()
				fmt.Fprintln(a.stderr, "\nthe connection is lost, trying again; the redrive goes on: "+strings.ReplaceAll(message(err), "\n", " "))
			}
			_ = drive.Pause(ctx, watchInterval) // the next read meets the end of ctx
			continue
		}
		switch {
		case ctx.Err() != nil:
			return a.leave(ctx, id)
		case errors.Is(err, drover.ErrNotFound):
			return err
		case err != nil:
			return fmt.Errorf("the redrive goes on, but cannot be watched: %w", err)
		}
		lost = time.Time{}
		if a.json {
			return a.printJSON(r)
		}
		line := progress(r)
		if r.FinishedAt == nil && !s.alive(ctx) {
			line += "  " + noneAlive
		}
		if r.Released != released || r.Paused || r.FinishedAt != nil {
			released, since = r.Released, time.Now()
		} else if time.Since(since) > max(watchStill, pg.Seconds(3/r.Rate)) {
			line += "  nothing becomes due: " + a.again("redrive show", id)
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
			tellSkips(a.stdout, r)
			if r.State == drover.RedriveAborted {
				return fmt.Errorf("the redrive was aborted")
			}
			return nil
		}
		_ = drive.Pause(ctx, watchInterval)
	}
}

// The method leave prints how to abort the redrive, and ends the watching.
func (a *app) leave(ctx context.Context, id string) error {
	fmt.Fprintf(a.stderr, "\nthe redrive goes on; to end it: %s\n", a.again("redrive abort", id))
	return ctx.Err()
}

// connectionLost reports whether another try may help: whether the server did not answer, is overloaded or is shutting
// down.
func connectionLost(err error) bool {
	var db *pgconn.PgError
	if errors.As(err, &db) {
		return slices.ContainsFunc([]string{"08", "53", "57"}, func(class string) bool { return strings.HasPrefix(db.Code, class) })
	}
	return err != nil && !errors.Is(err, drover.ErrNotFound)
}

// progress returns one line with a bar, the number of jobs, and the time that the redrive needs at least to release the
// other jobs.
func progress(r *drover.Redrive) string {
	const width = 30
	done := 0.0
	if r.Matched > 0 {
		done = float64(r.Released) / float64(r.Matched)
	}
	filled := int(done * width)
	line := fmt.Sprintf("%s%s %3.0f%%  %d/%d  %s", strings.Repeat("█", filled), strings.Repeat("░", width-filled), done*100, r.Released, r.Matched, redriveState(r))
	if r.Skipped > 0 {
		line += fmt.Sprintf("  %d skipped", r.Skipped)
	}
	if strings.HasPrefix(r.Note, "held up: ") {
		line += "  " + shorten(r.Note, 80)
	}
	if left := r.Matched - r.Released; left > 0 && r.State == drover.RedriveRunning && !r.Paused {
		line += "  at least " + span(pg.Seconds(float64(left)/r.Rate))
	}
	return line
}

func newRedriveVerbCommand(a *app, verb, short string, do func(*drover.Client, context.Context, string, drover.Audit) error) *cobra.Command {
	var by *drover.Audit
	cmd := &cobra.Command{
		Use:   verb + " ID",
		Short: short,
		Args:  args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return redriveNames(a.changing(cmd.Context(), func(ctx context.Context, s *session) error {
				if err := do(s.client, ctx, jobID(args[0]), *by); err != nil {
					return err
				}
				return a.printChanged(ctx, s, jobID(args[0]))
			}))
		},
	}
	by = addAuditFlags(cmd, "kept with the redrive")
	return cmd
}

func (a *app) printChanged(ctx context.Context, s *session, id string) error {
	r, err := s.client.Redrive(ctx, id)
	if err != nil || a.json {
		return a.answer(r, err)
	}
	fmt.Fprintf(a.stdout, "redrive %s: %s, %d of %d released\n", r.ID, redriveState(r), r.Released, r.Matched)
	return nil
}
