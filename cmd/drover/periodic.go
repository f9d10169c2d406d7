package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/jobdoc"
	"github.com/drover-queue/drover/internal/operate"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/plural"
)

func newPeriodicCommand(a *app) *cobra.Command {
	cmd := group(&cobra.Command{Use: "periodic", Short: "List, set, pause and run schedules of periodic jobs (cron)"})
	cmd.AddCommand(
		newPeriodicListCommand(a), newPeriodicShowCommand(a), newPeriodicPreviewCommand(a), newPeriodicSetCommand(a), newPeriodicPauseCommand(a),
		newPeriodicVerbCommand(a, "resume", "End the pause of a schedule; runs missed meanwhile are not made up for", "kept with the schedule", (*drover.Client).ResumePeriodic),
		newPeriodicRunCommand(a),
		newPeriodicVerbCommand(a, "delete", "Delete a schedule that was set at run time, or that no running program declares any more", "written to the server's log", (*drover.Client).DeletePeriodic),
	)
	return cmd
}

func newPeriodicListCommand(a *app) *cobra.Command {
	return lists(a, &cobra.Command{
		Use:   "list",
		Short: "List all schedules with the time of their next runs",
		Long: `List all schedules with the time of their next runs.

With --json the command prints the next ten runs of each schedule.`,
		Example: "  drover periodic list --json",
	}, a.listPeriodic)
}

func (a *app) listPeriodic(ctx context.Context, s *session) error {
	list, err := s.client.PeriodicJobs(ctx)
	heading := []string{"NAME", "KIND", "QUEUE", "SCHEDULE", "ZONE", "STATE", "NEXT", "LAST", "LAST JOB", "SKIPPED", "PROBLEM"}
	return printList(a, list, err, "no schedules", heading, func(j *drover.PeriodicJob) []string {
		next, last := "-", "-"
		if len(j.Next) > 0 {
			next = relative(j.Next[0], s.now)
		}
		if j.LastAt != nil {
			last = ago(*j.LastAt, s.now)
		}
		return []string{
			j.Name, j.Kind, j.Queue, j.Schedule, j.Zone, string(j.State), next, last, string(j.LastState),
			fmt.Sprint(j.Skipped), shorten(j.Problem, 60),
		}
	})
}

func newPeriodicShowCommand(a *app) *cobra.Command {
	return shows(a, &cobra.Command{
		Use:   "show NAME",
		Short: "Show one schedule and its next ten runs",
	}, a.showPeriodic)
}

func (a *app) showPeriodic(ctx context.Context, s *session, name string) error {
	j, err := s.client.PeriodicJob(ctx, name)
	if err != nil || a.json {
		return a.answer(j, err)
	}
	madeIn := "at run time"
	if j.Declared {
		madeIn = "in code, build " + j.Build
	}
	rows := fields{
		{"name", j.Name},
		{"kind", j.Kind},
		{"queue", j.Queue},
		{"schedule", j.Schedule + " (" + j.Zone + ")"},
		{"state", string(j.State)},
		{"made", madeIn},
		{"args", compact(j.Args)},
		{"options", compact(j.Options)},
		{"catch-up", string(j.CatchUp)},
		{"overlap", string(j.Overlap)},
		{"jobs", fmt.Sprint(j.Jobs)},
	}
	if j.JitterMS > 0 {
		rows.add("jitter", pg.Millis(j.JitterMS).String())
	}
	if j.RunAtStart {
		rows.add("run at start", "yes")
	}
	if j.PausedUntil != nil {
		rows.add("paused until", instant(*j.PausedUntil)+" ("+relative(*j.PausedUntil, s.now)+")")
	}
	rows.at("last run", j.LastAt, s.now, "")
	rows.add("last job", strings.TrimSpace(j.LastJobID+" "+string(j.LastState)))
	rows.at("skipped", j.SkippedAt, s.now, fmt.Sprintf(", %s in all, %s", plural.Of(j.Skipped, "tick"), j.SkippedWhy))
	rows.at("problem", j.ProblemAt, s.now, " "+j.Problem)
	rows.at("changed", &j.UpdatedAt, s.now, " "+byline(j.UpdatedBy, j.UpdatedWhy))
	if err := table(a.stdout, rows); err != nil {
		return err
	}
	a.printTicks(j.Next, j.State, s.now)
	return nil
}

// printTicks lists the next ticks, or prints why there are none.
func (a *app) printTicks(ticks []time.Time, state drover.PeriodicState, now time.Time) {
	if len(ticks) == 0 {
		why := ""
		switch state {
		case drover.PeriodicUndeclared:
			why = ": no running process declares it any more"
		case drover.PeriodicPaused:
			why = " until it is resumed"
		}
		fmt.Fprintln(a.stdout, "\nno next run"+why)
		return
	}
	fmt.Fprintln(a.stdout, "\nnext runs")
	for _, tick := range ticks {
		fmt.Fprintf(a.stdout, "  %s  %s\n", tick.UTC().Format(time.RFC3339), relative(tick, now))
	}
}

func newPeriodicPreviewCommand(a *app) *cobra.Command {
	var zone string
	cmd := shows(a, &cobra.Command{
		Use:     "preview SCHEDULE",
		Short:   "Show the next ten runs of a schedule without storing it",
		Example: `  drover periodic preview "30 2 * * mon-fri" --zone Europe/Berlin`,
	}, func(ctx context.Context, s *session, schedule string) error {
		ticks, err := s.client.PreviewPeriodic(ctx, schedule, zone, 10)
		if err != nil || a.json {
			return a.answer(append([]time.Time{}, ticks...), periodicFlags(err))
		}
		a.printTicks(ticks, drover.PeriodicActive, s.now)
		return nil
	})
	cmd.Flags().StringVar(&zone, "zone", "", "time zone of the schedule (default UTC)")
	return cmd
}

// periodicSet are the flags of drover periodic set.
type periodicSet struct {
	p                drover.Periodic
	opts             drover.EnqueueOpts
	job              jobdoc.Job
	args, catch, lap string
	retry, metadata  string
	unique           string
}

func newPeriodicSetCommand(a *app) *cobra.Command {
	var set periodicSet
	cmd := &cobra.Command{
		Use:   "set NAME --kind KIND --schedule SCHEDULE",
		Short: "Create a schedule, or change one",
		Long: `Create a schedule, or change one, and print its next ten runs. The command replaces all settings: a setting
without a flag gets its default.

This does not change a schedule that a program declares in its code: change the code. You can pause such a
schedule with drover periodic pause.`,
		Example: `  drover periodic set nightly --kind report --schedule "0 2 * * *" --zone Europe/Berlin --queue reports
  drover periodic set sync --kind sync --schedule "@every 90s" --overlap skip`,
		Args: args(cobra.ExactArgs(1)),
	}
	f := cmd.Flags()
	f.StringVar(&set.job.Kind, "kind", "", "kind of the jobs")
	f.StringVar(&set.p.Schedule, "schedule", "", "five cron fields; or six, the first for seconds; or @hourly, @daily, @weekly, @monthly, @yearly; or @every and a duration")
	f.StringVar(&set.p.Zone, "zone", "", "time zone of the cron fields (default UTC)")
	f.StringVar(&set.args, "args", "{}", "args of each job: JSON, or @FILE, or @- for standard input")
	f.DurationVar(&set.p.Jitter, "jitter", 0, "delay each job by a random time up to this duration")
	f.StringVar(&set.catch, "catch-up", "skip", "how to catch up on missed runs: skip (none), once (one job for all of them), all (the last 100)")
	f.StringVar(&set.lap, "overlap", "allow", "whether to enqueue a job while the last one has not ended: allow, skip")
	f.BoolVar(&set.p.RunAtStart, "run-at-start", false, "run a new schedule immediately, too")
	f.StringVar(&set.opts.Queue, "queue", "", "queue of the jobs (default: the queue named default)")
	f.IntVar(&set.opts.Priority, "priority", 0, "priority of the jobs, 1 to 9; lower runs sooner (default 5)")
	f.DurationVar(&set.opts.Delay, "delay", 0, "delay each job by this duration")
	f.IntVar(&set.opts.MaxAttempts, "max-attempts", 0, "most attempts of each job (default: the worker's)")
	f.StringVar(&set.retry, "retry", "", `retry strategy of the jobs, such as '{"type": "constant", "delay": "1m"}' (default: the worker's)`)
	f.DurationVar(&set.opts.Timeout, "timeout", 0, "longest duration of each run (default: the worker's)")
	f.StringArrayVar(&set.opts.Tags, "tag", nil, "add this `tag` to the jobs; repeat the flag for several")
	f.StringVar(&set.opts.Key, "key", "", "concurrency key of the jobs")
	f.StringVar(&set.metadata, "metadata", "", "metadata of each job: a JSON object, or @FILE")
	f.StringVar(&set.unique, "unique", "", `make no job while another one like it is there: {} for the defaults, or settings such as '{"by": ["Order"], "until": "started"}'`)
	complete(cmd, "catch-up", operate.Words(drover.CatchUpSkip, drover.CatchUpOnce, drover.CatchUpAll)...)
	complete(cmd, "overlap", operate.Words(drover.OverlapAllow, drover.OverlapSkip)...)
	by := addAuditFlags(cmd, "kept with the schedule")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		for _, name := range []string{"zone", "queue", "retry", "key", "metadata", "unique"} { // an unset shell variable must not mean the default
			if flag := cmd.Flags().Lookup(name); flag.Changed && flag.Value.String() == "" {
				return usagef("--%s: is empty", name)
			}
		}
		p, err := set.periodic(a, args[0])
		if err != nil {
			return err
		}
		return a.changing(cmd.Context(), func(ctx context.Context, s *session) error {
			if err := s.client.SetPeriodic(ctx, p, *by); err != nil {
				return periodicFlags(err)
			}
			for _, scope := range []drover.Scope{drover.KindScope(set.job.Kind), drover.QueueScope(cmp.Or(set.opts.Queue, "default"))} {
				if err := a.warnOfUnknown(ctx, s, scope); err != nil {
					return err
				}
			}
			return a.showPeriodic(ctx, s, p.Name)
		})
	}
	return cmd
}

// periodic parses the flags, and returns the schedule to store.
func (set *periodicSet) periodic(a *app, name string) (p drover.Periodic, err error) {
	if set.job.Args, err = a.readJSON("args", set.args); err != nil {
		return p, err
	}
	if set.metadata != "" {
		if set.job.Metadata, err = a.readJSON("metadata", set.metadata); err != nil {
			return p, err
		}
		if string(set.job.Metadata) == "null" { // in a line of drover enqueue --lines, the value null means no metadata; this flag refuses it
			return p, usagef("--metadata: is not a JSON object")
		}
	}
	if set.unique != "" {
		if err := strictly([]byte(set.unique), &set.job.Uniqueness); err != nil {
			return p, usagef("--unique: %v", err)
		}
	}
	set.job.Retry = json.RawMessage(set.retry)
	item, err := set.job.Item()
	if err != nil {
		return p, enqueueNames(err)
	}
	set.opts.Metadata, set.opts.Unique, set.opts.Retry = item.Opts.Metadata, item.Opts.Unique, item.Opts.Retry
	p = set.p
	p.Name, p.Args, p.Opts, p.CatchUp, p.Overlap = name, item.Args, &set.opts, drover.CatchUp(set.catch), drover.Overlap(set.lap)
	return p, nil
}

func newPeriodicPauseCommand(a *app) *cobra.Command {
	until := moment{ahead: true}
	cmd := &cobra.Command{
		Use:   "pause NAME",
		Short: "Pause a schedule, until a time or until it is resumed",
		Example: `  drover periodic pause nightly --until 2030-03-01T06:00:00Z --why "the bank is down"
  drover periodic pause nightly --until 2h`,
		Args: args(cobra.ExactArgs(1)),
	}
	cmd.Flags().Var(&until, "until", "end of the pause: RFC 3339, or how long from now, such as 90m, 2h, 7d (default: when it is resumed)")
	by := addAuditFlags(cmd, "kept with the schedule")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.changePeriodic(cmd.Context(), args[0], "paused", func(ctx context.Context, s *session) error {
			return s.client.PausePeriodic(ctx, args[0], until.at(s.now), *by)
		})
	}
	return cmd
}

func newPeriodicVerbCommand(a *app, verb, short, kept string, do func(*drover.Client, context.Context, string, drover.Audit) error) *cobra.Command {
	cmd := &cobra.Command{Use: verb + " NAME", Short: short, Args: args(cobra.ExactArgs(1))}
	by := addAuditFlags(cmd, kept)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.changePeriodic(cmd.Context(), args[0], strings.TrimSuffix(verb, "e")+"ed", func(ctx context.Context, s *session) error {
			return do(s.client, ctx, args[0], *by)
		})
	}
	return cmd
}

func newPeriodicRunCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run NAME",
		Short: "Enqueue an extra job of a schedule now",
		Args:  args(cobra.ExactArgs(1)),
	}
	by := addAuditFlags(cmd, "kept in the job's metadata")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.changing(cmd.Context(), func(ctx context.Context, s *session) error {
			id, err := s.client.RunPeriodic(ctx, args[0], nil, *by)
			if err != nil {
				return periodicFlags(err)
			}
			return a.printPeriodic(changedPeriodic{args[0], "enqueued", id})
		})
	}
	return cmd
}

// changedPeriodic is the output for a changed schedule with --json.
type changedPeriodic struct {
	Name   string `json:"name"`
	Result string `json:"result"`
	JobID  string `json:"job_id,omitempty"`
}

func (a *app) changePeriodic(ctx context.Context, name, result string, do func(context.Context, *session) error) error {
	return a.changing(ctx, func(ctx context.Context, s *session) error {
		if err := do(ctx, s); err != nil {
			return periodicFlags(err)
		}
		return a.printPeriodic(changedPeriodic{Name: name, Result: result})
	})
}

func (a *app) printPeriodic(c changedPeriodic) error {
	if a.json {
		return a.printJSON(c)
	}
	fmt.Fprintln(a.stdout, printable(strings.TrimSpace(c.Name+"  "+c.Result+"  "+c.JobID)))
	return nil
}

// periodicFlags turns a refused argument into a usage error that names the flag.
func periodicFlags(err error) error {
	names := append(auditNames(), "Schedule:", "--schedule:", "Zone:", "--zone:", "Jitter:", "--jitter:", "CatchUp:", "--catch-up:", "Overlap:", "--overlap:",
		"Args.Kind:", "--kind:", "Args:", "--args:", "Opts.Queue:", "--queue:", "Opts.Priority:", "--priority:", "Opts.Delay:", "--delay:", "Opts.MaxAttempts:", "--max-attempts:",
		"Opts.Timeout:", "--timeout:", "Opts.Tags", "--tag", "Opts.Key:", "--key:", "Opts.Metadata:", "--metadata:", "Opts.Unique.By", "--unique: by",
		"Opts.Unique.AnyArgs", "--unique: any_args", "Opts.Unique.Queue", "--unique: queue", "Opts.Unique.Key", "--unique: key", "Opts.Unique.Until", "--unique: until",
		"Opts.Unique.OnConflict", "--unique: on_conflict", "Name:", "NAME:", "until:", "--until:", "the job has no Key", "the job has no --key")
	return flagNamed(err, append(names, jobdoc.Names()...)...)
}
