package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
)

func newPeriodicCommand(a *app) *cobra.Command {
	cmd := group(&cobra.Command{Use: "periodic", Short: "List, set, pause and run schedules of periodic jobs (cron)"})
	cmd.AddCommand(
		newPeriodicListCommand(a),
		newPeriodicShowCommand(a),
		newPeriodicPreviewCommand(a),
		newPeriodicSetCommand(a),
		newPeriodicPauseCommand(a),
		newPeriodicVerbCommand(a, "resume", "End the pause of a schedule: its next run is the first one from now on", func(ctx context.Context, s *session, name string, by drover.By) error {
			return s.client.ResumePeriodic(ctx, name, by)
		}),
		newPeriodicRunCommand(a),
		newPeriodicVerbCommand(a, "delete", "Delete a schedule that was set at run time, or that no running program declares any more", func(ctx context.Context, s *session, name string, by drover.By) error {
			return s.client.DeletePeriodic(ctx, name, by)
		}),
	)
	return cmd
}

func newPeriodicListCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List all schedules, and when each runs next",
		Long: `List all schedules, and when each runs next.

With --json each schedule has its next ten runs.`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.listPeriodic(cmd.Context()) },
	}
}

func (a *app) listPeriodic(ctx context.Context) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	list, err := s.client.PeriodicJobs(ctx)
	if err != nil {
		return err
	}
	if a.json {
		return printList(a, "schedules", list)
	}
	if len(list) == 0 {
		fmt.Fprintln(a.stdout, "no schedules")
		return nil
	}
	rows := [][]string{{"NAME", "KIND", "QUEUE", "SCHEDULE", "ZONE", "STATE", "NEXT", "LAST", "LAST JOB", "SKIPPED", "PROBLEM"}}
	for i := range list {
		j := &list[i]
		next, last := "-", "-"
		if len(j.Next) > 0 {
			next = relative(j.Next[0], s.now)
		}
		if j.LastAt != nil {
			last = ago(*j.LastAt, s.now)
		}
		rows = append(rows, []string{
			j.Name, j.Kind, j.Queue, j.Schedule, j.Zone, string(j.State), next, last, string(j.LastState),
			fmt.Sprint(j.Skipped), j.Problem,
		})
	}
	return a.table(rows)
}

func newPeriodicShowCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "show NAME",
		Short: "Show one schedule and its next ten runs",
		Args:  args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.open(cmd.Context())
			if err != nil {
				return err
			}
			defer s.close()
			return a.showPeriodic(cmd.Context(), s, args[0])
		},
	}
}

func (a *app) showPeriodic(ctx context.Context, s *session, name string) error {
	j, err := s.client.PeriodicJob(ctx, name)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(j)
	}
	madeIn := "at run time"
	if j.Declared {
		madeIn = "in code, build " + j.Build
	}
	rows := [][]string{
		{"name", j.Name},
		{"kind", j.Kind},
		{"queue", j.Queue},
		{"schedule", j.Schedule + " (" + j.Zone + ")"},
		{"state", string(j.State)},
		{"made", madeIn},
		{"args", string(j.Args)},
		{"catch-up", string(j.CatchUp)},
		{"overlap", string(j.Overlap)},
		{"jobs", fmt.Sprint(j.Jobs)},
	}
	if j.JitterMS > 0 {
		rows = append(rows, []string{"jitter", millis(j.JitterMS).String()})
	}
	at := func(name string, t *time.Time, what string) {
		if t != nil {
			rows = append(rows, []string{name, instant(*t) + " (" + relative(*t, s.now) + ")" + what})
		}
	}
	at("paused until", j.PausedUntil, "")
	at("last run", j.LastAt, "")
	if j.LastJob != "" {
		rows = append(rows, []string{"last job", strings.TrimSpace(j.LastJob + " " + string(j.LastState))})
	}
	at("skipped", j.SkippedAt, fmt.Sprintf(", %s in all, %s", plural(j.Skipped, "tick"), j.SkippedWhy))
	at("problem", j.ProblemAt, " "+j.Problem)
	at("changed", &j.UpdatedAt, strings.TrimSuffix(" by "+j.UpdatedBy+": "+j.UpdatedWhy, ": "))
	if err := a.table(rows); err != nil {
		return err
	}
	a.printTicks(j.Next, s.now)
	return nil
}

// printTicks lists the next runs.
func (a *app) printTicks(ticks []time.Time, now time.Time) {
	if len(ticks) == 0 {
		fmt.Fprintln(a.stdout, "\nno next run")
		return
	}
	fmt.Fprintln(a.stdout, "\nnext runs")
	for _, tick := range ticks {
		fmt.Fprintf(a.stdout, "  %s  %s\n", tick.UTC().Format(time.RFC3339), relative(tick, now))
	}
}

func newPeriodicPreviewCommand(a *app) *cobra.Command {
	var zone string
	cmd := &cobra.Command{
		Use:     "preview SCHEDULE",
		Short:   "Show when a schedule would run next, and store nothing",
		Example: `  drover periodic preview "30 2 * * mon-fri" --zone Europe/Berlin`,
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.open(cmd.Context())
			if err != nil {
				return err
			}
			defer s.close()
			ticks, err := s.client.PreviewPeriodic(cmd.Context(), args[0], zone, 10)
			if err != nil {
				return periodicFlags(err)
			}
			if a.json {
				return printList(a, "ticks", ticks)
			}
			a.printTicks(ticks, s.now)
			return nil
		},
	}
	cmd.Flags().StringVar(&zone, "zone", "", "time zone of the schedule (default UTC)")
	return cmd
}

// rawArgs are args of the command line.
type rawArgs struct {
	kind string
	doc  json.RawMessage
}

func (r rawArgs) Kind() string                 { return r.kind }
func (r rawArgs) MarshalJSON() ([]byte, error) { return r.doc, nil }

// argsOf reads args: JSON, or @ and the name of a file, or @- for standard input.
func (a *app) argsOf(text string) (json.RawMessage, error) {
	raw := []byte(text)
	if name, isFile := strings.CutPrefix(text, "@"); isFile {
		var err error
		if name == "-" {
			raw, err = io.ReadAll(a.stdin)
		} else {
			raw, err = os.ReadFile(name)
		}
		if err != nil {
			return nil, usagef("--args: %w", err)
		}
	}
	raw = bytes.TrimSpace(raw)
	if !json.Valid(raw) {
		return nil, usagef("--args: is no JSON")
	}
	return raw, nil
}

func newPeriodicSetCommand(a *app) *cobra.Command {
	var p drover.Periodic
	var opts drover.EnqueueOpts
	var kind, doc, catchUp, overlap string
	cmd := &cobra.Command{
		Use:   "set NAME --kind KIND --schedule SCHEDULE",
		Short: "Make a schedule at run time, or change one",
		Long: `Make a schedule at run time, or change one: all its settings are those of this command line. It prints the next ten runs.

A schedule that a program declares in code is changed there; pause it with drover periodic pause.`,
		Example: `  drover periodic set nightly --kind report --schedule "0 2 * * *" --zone Europe/Berlin --queue reports
  drover periodic set sync --kind sync --schedule "@every 90s" --overlap skip`,
		Args: args(cobra.ExactArgs(1)),
	}
	f := cmd.Flags()
	f.StringVar(&kind, "kind", "", "kind of the jobs")
	f.StringVar(&p.Schedule, "schedule", "", "five cron fields, @daily and the like, or @every and a duration")
	f.StringVar(&p.Zone, "zone", "", "time zone of the fields (default UTC)")
	f.StringVar(&doc, "args", "{}", "args of each job: JSON, or @ and the name of a file, or @- for standard input")
	spanVar(f, &p.Jitter, "jitter", 0, "each job is due at a random time so long after its tick")
	f.StringVar(&catchUp, "catch-up", "skip", "what becomes of missed ticks: skip, once, all")
	f.StringVar(&overlap, "overlap", "allow", "skip: no job while the last one has not ended")
	f.StringVar(&opts.Queue, "queue", "", "queue of the jobs (default default)")
	f.IntVar(&opts.Priority, "priority", 0, "1 to 9, lower is sooner (default 5)")
	spanVar(f, &opts.Delay, "delay", 0, "each job is due so long after its tick")
	f.IntVar(&opts.MaxAttempts, "max-attempts", 0, "how many runs each job may have (default: its worker's)")
	spanVar(f, &opts.Timeout, "timeout", 0, "bound of each run (default: its worker's)")
	f.StringArrayVar(&opts.Tags, "tag", nil, "a word to find the jobs by; may be repeated")
	f.StringVar(&opts.Key, "key", "", "key of the jobs")
	complete(cmd, "catch-up", words(drover.CatchUpSkip, drover.CatchUpOnce, drover.CatchUpAll)...)
	complete(cmd, "overlap", words(drover.OverlapAllow, drover.OverlapSkip)...)
	flags := addByFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		by, err := flags.given(cmd)
		if err != nil {
			return err
		}
		raw, err := a.argsOf(doc)
		if err != nil {
			return err
		}
		p.Name, p.Args, p.Opts, p.CatchUp, p.Overlap = args[0], rawArgs{kind, raw}, &opts, drover.CatchUp(catchUp), drover.Overlap(overlap)
		s, err := a.open(cmd.Context())
		if err != nil {
			return err
		}
		defer s.close()
		if err := s.client.SetPeriodic(cmd.Context(), p, by); err != nil {
			return periodicFlags(err)
		}
		return a.showPeriodic(cmd.Context(), s, p.Name)
	}
	return cmd
}

func newPeriodicPauseCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pause NAME",
		Short: "Let a schedule run no job, until a time or until it is resumed",
		Example: `  drover periodic pause nightly --until 2026-03-01T06:00:00Z --why "the bank is down"
  drover periodic pause nightly --until 2h`,
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
		return a.changePeriodic(cmd.Context(), args[0], "paused", func(ctx context.Context, s *session) error {
			return s.client.PausePeriodic(ctx, args[0], until(s.now), by)
		})
	}
	return cmd
}

func newPeriodicVerbCommand(a *app, verb, short string, do func(context.Context, *session, string, drover.By) error) *cobra.Command {
	cmd := &cobra.Command{Use: verb + " NAME", Short: short, Args: args(cobra.ExactArgs(1))}
	flags := addByFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		by, err := flags.given(cmd)
		if err != nil {
			return err
		}
		return a.changePeriodic(cmd.Context(), args[0], strings.TrimSuffix(verb, "e")+"ed", func(ctx context.Context, s *session) error {
			return do(ctx, s, args[0], by)
		})
	}
	return cmd
}

// changedPeriodic is what a verb prints with --json.
type changedPeriodic struct {
	Name   string `json:"name"`
	Result string `json:"result"`
	Job    string `json:"job,omitempty"`
}

func (a *app) changePeriodic(ctx context.Context, name, result string, do func(context.Context, *session) error) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	if err := do(ctx, s); err != nil {
		return periodicFlags(err)
	}
	return a.printPeriodic(changedPeriodic{Name: name, Result: result})
}

func (a *app) printPeriodic(c changedPeriodic) error {
	if a.json {
		return a.printJSON(c)
	}
	fmt.Fprintln(a.stdout, printable(strings.TrimSpace(c.Name+"  "+c.Result+"  "+c.Job)))
	return nil
}

func newPeriodicRunCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run NAME",
		Short: "Enqueue a job of a schedule now, besides its own times",
		Args:  args(cobra.ExactArgs(1)),
	}
	flags := addByFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		by, err := flags.given(cmd)
		if err != nil {
			return err
		}
		s, err := a.open(cmd.Context())
		if err != nil {
			return err
		}
		defer s.close()
		job, err := s.client.RunPeriodic(cmd.Context(), args[0], nil, by)
		if err != nil {
			return periodicFlags(err)
		}
		return a.printPeriodic(changedPeriodic{args[0], "enqueued", job})
	}
	return cmd
}

// periodicFlags makes an argument that the library refused a wrong use, and calls it by its flag.
func periodicFlags(err error) error {
	if !errors.Is(err, drover.ErrInvalid) {
		return err
	}
	return usagef("%s", strings.NewReplacer("Schedule:", "--schedule:", "Zone:", "--zone:", "Jitter:", "--jitter:", "CatchUp:", "--catch-up:", "Overlap:", "--overlap:",
		"Args.Kind:", "--kind:", "Args:", "--args:", "Opts.Queue:", "--queue:", "Opts.Priority:", "--priority:", "Opts.Delay:", "--delay:", "Opts.MaxAttempts:", "--max-attempts:",
		"Opts.Timeout:", "--timeout:", "Opts.Tags", "--tag", "Opts.Key:", "--key:", "Name:", "NAME:", "until:", "--until:", "by.Who:", "--by:", "by.Why:", "--why:").Replace(err.Error()))
}
