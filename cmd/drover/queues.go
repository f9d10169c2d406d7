package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
)

func newQueuesCommand(a *app) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "queues",
		Short: "Show the queues and the pauses; pause and resume a queue, a kind, or all jobs",
	})
	cmd.AddCommand(newQueuesListCommand(a), newQueuesPauseCommand(a), newQueuesResumeCommand(a))
	return cmd
}

func newQueuesListCommand(a *app) *cobra.Command {
	return lists(a, &cobra.Command{
		Use:   "list",
		Short: "Count the jobs of each queue, and show the pauses with name and reason",
		Long: `Count the jobs of each queue, and show the pauses with name and reason.

A number with a ~ is an estimate. The command counts up to 200 unfinished jobs and up to 200 dead letters of
a queue. It estimates larger numbers from a sample of the table.`,
		Example: "  drover queues list --json",
	}, a.listQueues)
}

func (a *app) listQueues(ctx context.Context, s *session) error {
	snap, err := s.client.Snapshot(ctx)
	if err != nil {
		return err
	}
	for _, n := range snap.NotSeen {
		if n.Part == "depths" || n.Part == "pauses" {
			fmt.Fprintln(a.stderr, printable("not seen: "+n.Part+": "+n.Why))
		}
	}
	if a.json {
		return a.printJSON(struct {
			Queues []drover.QueueDepth `json:"queues"`
			Pauses []drover.PauseInfo  `json:"pauses"`
		}{snap.Queues, snap.Pauses})
	}
	if len(snap.Queues) == 0 {
		fmt.Fprintln(a.stdout, "no queue has jobs or supervisors")
	} else if err := table(a.stdout, queueRows(snap)); err != nil {
		return err
	}
	fmt.Fprintln(a.stdout)
	return a.printPauses(snap.Pauses, snap.At)
}

// queueRows returns the rows of the table of queues.
func queueRows(snap *drover.Snapshot) [][]string {
	states := []drover.State{drover.Available, drover.Running, drover.Retryable, drover.Scheduled, drover.Parked, drover.Discarded}
	head := []string{"QUEUE", "PAUSED", "OLDEST DUE"}
	for _, state := range states {
		head = append(head, strings.ToUpper(string(state)))
	}
	rows := [][]string{head}
	for i := range snap.Queues {
		q := &snap.Queues[i]
		paused, oldest := "-", "-"
		if q.Paused {
			paused = "yes"
		}
		if q.OldestDue != nil {
			oldest = ago(*q.OldestDue, snap.At)
		}
		row := []string{q.Queue, paused, oldest}
		for _, state := range states {
			n := strconv.FormatInt(q.Jobs[state], 10)
			if q.Estimated && q.Jobs[state] > 0 {
				n = "~" + n
			}
			row = append(row, n)
		}
		rows = append(rows, row)
	}
	return rows
}

// printPauses prints the pauses.
func (a *app) printPauses(pauses []drover.PauseInfo, now time.Time) error {
	heading := []string{"PAUSED", "SINCE", "UNTIL", "NOT CONFIRMED", "BY", "WHY"}
	return printList(a, pauses, nil, "nothing is paused", heading, func(p *drover.PauseInfo) []string {
		until, unconfirmed := "resumed", "-"
		if p.Until != nil {
			until = relative(*p.Until, now)
		}
		if len(p.Unconfirmed) > 0 {
			unconfirmed = shorten(strings.Join(p.Unconfirmed, " "), 60)
		}
		return []string{string(p.Scope), ago(p.Since, now), until, unconfirmed, p.By, shorten(p.Why, 60)}
	})
}

// pauseNote describes a pause in one line.
func pauseNote(p *drover.PauseInfo, now time.Time) string {
	what := string(p.Scope)
	if p.Scope == drover.AllJobs {
		what = "all jobs"
	}
	note := what + ": paused " + ago(p.Since, now)
	if p.Until != nil {
		note += ", until " + instant(*p.Until)
	}
	note += ", by " + p.By
	if p.Why != "" {
		note += ": " + p.Why
	}
	if len(p.Unconfirmed) > 0 {
		note += "; not confirmed yet by " + strings.Join(p.Unconfirmed, ", ")
	}
	return note
}

// scopeFlags are the flags that choose which jobs to pause or resume.
type scopeFlags struct {
	kind string
	all  bool
}

func addScopeFlags(cmd *cobra.Command) *scopeFlags {
	f := &scopeFlags{}
	cmd.Flags().StringVar(&f.kind, "kind", "", "all jobs of this kind in every queue")
	cmd.Flags().BoolVar(&f.all, "all", false, "all jobs")
	return f
}

// scope returns the scope that the command line names: a queue, a kind, or all jobs.
func (f *scopeFlags) scope(cmd *cobra.Command, names []string) (drover.Scope, error) {
	kind := cmd.Flags().Changed("kind")
	switch given := len(names) + len(slices.DeleteFunc([]bool{kind, f.all}, func(is bool) bool { return !is })); {
	case given == 0:
		return "", usagef("what? Give the name of a queue, --kind KIND or --all: usage: %s", cmd.UseLine())
	case given > 1:
		return "", usagef("give one of: the name of a queue, --kind KIND, --all: usage: %s", cmd.UseLine())
	case f.all:
		return drover.AllJobs, nil
	case kind && f.kind == "":
		return "", usagef("--kind: is empty")
	case kind:
		return drover.KindScope(f.kind), nil
	case names[0] == "":
		return "", usagef("the name of the queue is empty")
	}
	return drover.QueueScope(names[0]), nil
}

func newQueuesPauseCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pause NAME | --kind KIND | --all",
		Short: "Pause a queue, a kind, or all jobs: no more of them start",
		Long: `Pause a queue, a kind, or all jobs. No process starts them until you resume. Running jobs go on, and you can
enqueue as usual.

The command returns once every living supervisor has confirmed the pause. From then on no paused job can
start. This usually takes moments. If a process does not answer, the command waits until its lease has
expired. If you stop the command earlier, the pause stays, and the command names the supervisors that have not
confirmed it.`,
		Example: `  drover queues pause emails --why "the mail provider is down"
  drover queues pause --kind webhook --until 30m
  drover queues pause --all --until 2026-03-01T06:00:00Z`,
		Args: args(cobra.MaximumNArgs(1)),
	}
	pick := addScopeFlags(cmd)
	until := moment{ahead: true}
	cmd.Flags().Var(&until, "until", "end of the pause: RFC 3339, or how long from now, such as 30m, 2h, 7d (default: when it is resumed)")
	by := addAuditFlags(cmd, "kept with the pause")
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		return a.changePause(cmd, pick, names, func(ctx context.Context, s *session, scope drover.Scope) (string, error) {
			defer a.afterAWhile("waiting until every supervisor has confirmed, at most a lease of one that does not answer; drover queues list names it")()
			return "paused", s.client.Pause(ctx, scope, &drover.PauseOpts{Until: until.at(s.now)}, *by)
		})
	}
	return cmd
}

func newQueuesResumeCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "resume NAME | --kind KIND | --all",
		Short:   "End the pause of a queue, of a kind, or of all jobs",
		Example: `  drover queues resume emails --why "the mail provider is back"`,
		Args:    args(cobra.MaximumNArgs(1)),
	}
	pick := addScopeFlags(cmd)
	by := addAuditFlags(cmd, "kept with the pause")
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		return a.changePause(cmd, pick, names, func(ctx context.Context, s *session, scope drover.Scope) (string, error) {
			before, err := s.client.Pauses(ctx)
			if err != nil {
				return "", err
			}
			// If the user has misspelt the name, the queue or kind that the user meant stays paused. So the output must show
			// that nothing was resumed.
			done := "was not paused"
			if slices.ContainsFunc(before, func(p drover.PauseInfo) bool { return p.Scope == scope }) {
				done = "resumed"
			}
			return done, s.client.Resume(ctx, scope, *by)
		})
	}
	return cmd
}

// changePause pauses or resumes the scope that the command line names: it calls the function change, which returns its
// result as a word, such as "paused".
func (a *app) changePause(cmd *cobra.Command, pick *scopeFlags, names []string, change func(context.Context, *session, drover.Scope) (string, error)) error {
	scope, err := pick.scope(cmd, names)
	if err != nil {
		return err
	}
	return a.changing(cmd.Context(), func(ctx context.Context, s *session) error {
		done, err := change(ctx, s, scope)
		if err != nil {
			return pauseNames(scope, err)
		}
		return a.printChange(ctx, s, scope, done)
	})
}

// printChange prints that a scope was paused or resumed, and then the pauses.
func (a *app) printChange(ctx context.Context, s *session, scope drover.Scope, done string) error {
	pauses, err := s.client.Pauses(ctx)
	if err != nil || a.json {
		return a.answer(pauses, err)
	}
	fmt.Fprintln(a.stdout, printable(string(scope)+" "+done))
	if err := a.warnOfUnknown(ctx, s, scope); err != nil {
		return err
	}
	for i := range pauses {
		fmt.Fprintln(a.stdout, printable(pauseNote(&pauses[i], s.now)))
	}
	return nil
}

// afterAWhile prints a note after half a second, unless the caller calls stop before that. A call of stop waits until
// the note is printed or cancelled.
func (a *app) afterAWhile(note string) (stop func()) {
	printed := make(chan struct{})
	timer := time.AfterFunc(500*time.Millisecond, func() {
		defer close(printed)
		fmt.Fprintln(a.stderr, note)
	})
	return func() {
		if !timer.Stop() {
			<-printed
		}
	}
}

// pauseNames replaces the library's name of a refused field by its flag.
func pauseNames(scope drover.Scope, err error) error {
	named := "the name of the queue:"
	if strings.HasPrefix(string(scope), "kind:") {
		named = "--kind:"
	}
	names := append(auditNames(), "scope:", named, "Until:", "--until:", "drover: ", "")
	return flagNamed(err, names...)
}

const (
	sqlKnownScope = `select drover_known_scope($1)`

	// sqlNames lists the queues and kinds that supervisors have registered.
	sqlNames = `select array(select 'queue:' || name from queues union select 'kind:' || kind from drover_kinds order by 1)`
)

// warnOfUnknown prints a warning with similar names if no supervisor has ever served the scope.
func (a *app) warnOfUnknown(ctx context.Context, s *session, scope drover.Scope) error {
	var known bool
	if err := s.pool.QueryRow(ctx, sqlKnownScope, string(scope)).Scan(&known); err != nil {
		return fmt.Errorf("look for %s: %w", scope, err)
	}
	if known {
		return nil
	}
	var names []string
	if err := s.pool.QueryRow(ctx, sqlNames).Scan(&names); err != nil {
		return fmt.Errorf("list what is served: %w", err)
	}
	similar := &cobra.Command{SuggestionsMinimumDistance: 2}
	for _, name := range names {
		similar.AddCommand(&cobra.Command{Use: strings.ReplaceAll(name, " ", "_"), Run: func(*cobra.Command, []string) {}})
	}
	warning := "warning: no supervisor has ever served " + string(scope)
	switch near := similar.SuggestionsFor(string(scope)); {
	case len(near) > 0:
		warning += "; there is " + strings.Join(near, ", ")
	case strings.HasPrefix(string(scope), "queue:queue:"):
		warning += "; give the name of a queue alone"
	case strings.HasPrefix(string(scope), "queue:kind:"):
		warning += "; a kind is given with --kind"
	case scope == "queue:all":
		warning += "; all jobs are given with --all"
	}
	fmt.Fprintln(a.stderr, printable(warning))
	return nil
}
