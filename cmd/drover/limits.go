package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
)

// untilFlag is until when something is paused.
type untilFlag struct{ text string }

func addUntilFlag(cmd *cobra.Command) *untilFlag {
	var f untilFlag
	cmd.Flags().StringVar(&f.text, "until", "", "the pause ends at this `time`: "+whenForms+" (default: until it is resumed)")
	return &f
}

// given returns the end of a pause that begins now; the zero time: none.
func (f *untilFlag) given(cmd *cobra.Command) (func(now time.Time) time.Time, error) {
	if cmd.Flags().Changed("until") && f.text == "" {
		return nil, usagef("--until: is empty")
	}
	if f.text == "" {
		return func(time.Time) time.Time { return time.Time{} }, nil
	}
	end, ok := parseWhen(f.text, fromNow)
	if !ok || (!end.absolute && end.offset <= 0) {
		return nil, usagef("--until %q is not a time to come: write %s", shorten(f.text, 40), whenForms)
	}
	return end.at, nil
}

func newPauseCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pause SCOPE",
		Short: "Start no more jobs of a queue, of a kind, or at all",
		Long: `Start no more jobs of a queue, of a kind, or at all, in all processes. SCOPE is queue:NAME, kind:NAME
or all. Jobs that run go on, and jobs are enqueued as ever.

The command returns when the pause is in effect: every living process has said that it starts no such
job any more. That takes moments. A process that does not answer is waited for until its lease is over.`,
		Example: `  drover pause queue:emails --why "the mail provider is down"
  drover pause kind:webhook --until 30m
  drover pause all --until 2026-03-01T06:00:00Z`,
		Args: args(cobra.ExactArgs(1)),
	}
	end := addUntilFlag(cmd)
	flags := addByFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		by, err := flags.given(cmd)
		if err != nil {
			return err
		}
		until, err := end.given(cmd)
		if err != nil {
			return err
		}
		return a.changeLimit(cmd.Context(), args[0], "paused", func(ctx context.Context, s *session) error {
			return s.client.Pause(ctx, args[0], until(s.now), by)
		})
	}
	return cmd
}

func newResumeCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "resume SCOPE",
		Short:   "Start jobs again that were paused",
		Long:    "Start jobs again that were paused. SCOPE is queue:NAME, kind:NAME or all, as it was paused.",
		Example: `  drover resume queue:emails --why "the mail provider is back"`,
		Args:    args(cobra.ExactArgs(1)),
	}
	flags := addByFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		by, err := flags.given(cmd)
		if err != nil {
			return err
		}
		return a.changeLimit(cmd.Context(), args[0], "resumed", func(ctx context.Context, s *session) error {
			return s.client.Resume(ctx, args[0], by)
		})
	}
	return cmd
}

// changeLimit pauses or resumes a scope, then says what is paused.
func (a *app) changeLimit(ctx context.Context, scope, done string, change func(context.Context, *session) error) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	if err := change(ctx, s); err != nil {
		var invalid *drover.InvalidError
		if errors.As(err, &invalid) {
			return &usageError{err}
		}
		return err
	}
	limits, err := s.client.Limits(ctx)
	if err != nil {
		return err
	}
	if a.json {
		return printList(a, "limits", limits)
	}
	fmt.Fprintf(a.stdout, "%s %s\n", printable(scope), done)
	if hint, err := s.unknownScope(ctx, scope); err != nil {
		return err
	} else if hint != "" {
		fmt.Fprintln(a.stderr, printable(hint))
	}
	for i := range limits {
		fmt.Fprintln(a.stdout, printable(pausedNote(&limits[i], s.now)))
	}
	return nil
}

// sqlNames lists what supervisors have registered.
const sqlNames = `
select 'queue:' || name from queues union select 'kind:' || kind from drover_kinds order by 1`

const sqlKnownScope = `select drover_known_scope($1)`

// unknownScope warns if nobody knows the scope, and names those with a similar name; "" if somebody does.
func (s *session) unknownScope(ctx context.Context, scope string) (string, error) {
	var known bool
	if err := s.pool.QueryRow(ctx, sqlKnownScope, scope).Scan(&known); err != nil || known {
		return "", err
	}
	var names []string
	if err := s.pool.QueryRow(ctx, `select array(`+sqlNames+`)`).Scan(&names); err != nil {
		return "", err
	}
	similar := &cobra.Command{SuggestionsMinimumDistance: 2}
	for _, name := range names {
		similar.AddCommand(&cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}})
	}
	warning := "warning: no supervisor has ever served " + scope
	if near := similar.SuggestionsFor(scope); len(near) > 0 {
		warning += "; there is " + strings.Join(near, ", ")
	}
	return warning, nil
}

func newLimitsCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "limits",
		Short: "List what is paused, since when and until when, by whom and why",
		Args:  args(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return a.limits(cmd.Context()) },
	}
}

func (a *app) limits(ctx context.Context) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	list, err := s.client.Limits(ctx)
	if err != nil {
		return err
	}
	if a.json {
		return printList(a, "limits", list)
	}
	if len(list) == 0 {
		fmt.Fprintln(a.stdout, "nothing is paused")
		return nil
	}
	rows := [][]string{{"PAUSED", "SINCE", "UNTIL", "IN EFFECT", "BY", "WHY"}}
	for i := range list {
		l := &list[i]
		until, effect := "resumed", "yes"
		if l.HeldUntil != nil {
			until = relative(*l.HeldUntil, s.now)
		}
		if !l.InEffect {
			effect = "not yet"
		}
		rows = append(rows, []string{l.Scope, ago(l.HeldAt, s.now), until, effect, l.By, l.Why})
	}
	return a.table(rows)
}

// pausedNote says what is paused.
func pausedNote(l *drover.Limit, now time.Time) string {
	note := l.Scope + ": paused " + ago(l.HeldAt, now)
	if l.Scope == "all" {
		note = "all jobs: paused " + ago(l.HeldAt, now)
	}
	if l.HeldUntil != nil {
		note += ", until " + instant(*l.HeldUntil)
	}
	note += ", by " + l.By
	if l.Why != "" {
		note += ": " + l.Why
	}
	if !l.InEffect {
		note += "; not in effect yet"
	}
	return note
}
