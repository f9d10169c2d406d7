package main

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/operate"
)

// editFlags are the flags of drover jobs edit that change something of a job.
type editFlags struct {
	edit             drover.JobEdit
	at, retry, patch string
}

func newJobsEditCommand(a *app) *cobra.Command {
	f := &editFlags{}
	cmd := newManyCommand(a, &cobra.Command{
		Use:   "edit [ID...]",
		Short: "Change waiting jobs: due time, priority, queue, attempts, args",
		Long: `Change waiting jobs: run them now (--run-now) or at another time (--at, --delay), with another priority, in
another queue, with more attempts or with other args. The jobs keep their ids, attempts and errors. Their
history shows the old values.

--run-now makes a job due whatever it waits for: its time, its backoff, a retry budget, or the end of its
parking. A job that runs or has ended stays as it is.`,
		Example: `  drover jobs edit 01ARZ3NDEKTSV4RRFFQ69G5FAV --run-now --why "the bank is back"
  drover jobs edit --kind charge --state retryable --run-now
  drover jobs edit --queue payments --tag vip --to-priority 1
  drover jobs edit 01ARZ3NDEKTSV4RRFFQ69G5FAV --args-patch '{"Currency": "EUR"}' --delay 10m`,
	}, manyVerb{
		done: "edited", states: operate.Editable, kept: "kept in the jobs' history", check: f.check,
		do: func(c *drover.Client, ctx context.Context, filter drover.Filter, audit drover.Audit) (drover.BulkResult, error) {
			done, err := c.EditMany(ctx, filter, f.edit, audit)
			return done, editNames(err)
		},
		one: func(c *drover.Client, ctx context.Context, id string, audit drover.Audit) (string, error) {
			changed, err := c.Edit(ctx, id, f.edit, audit)
			if !changed {
				return "not changed: it is like that already", editNames(err)
			}
			return "edited", nil
		},
	})
	flags := cmd.Flags()
	flags.BoolVar(&f.edit.RunNow, "run-now", false, "make the jobs due now")
	flags.StringVar(&f.at, "at", "", "make the jobs due at this `time`: RFC 3339")
	flags.DurationVar(&f.edit.Delay, "delay", 0, "make the jobs due in this `duration` from now, such as 10m")
	flags.IntVar(&f.edit.Priority, "to-priority", 0, "new priority, 1 to 9; lower runs sooner")
	flags.StringVar(&f.edit.Queue, "to-queue", "", "move the jobs to this `queue`")
	flags.IntVar(&f.edit.MaxAttempts, "max-attempts", 0, "new maximum of attempts; the attempts so far count")
	flags.StringVar(&f.retry, "retry", "", `new retry strategy, such as '{"type": "constant", "delay": "1m"}'`)
	flags.StringVar(&f.patch, "args-patch", "", "change the args by this `JSON` merge patch")
	return cmd
}

// check parses the flags. It refuses zero values, because the library would take them for flags that were not given.
func (f *editFlags) check(cmd *cobra.Command) error {
	changed := cmd.Flags().Changed
	times := []string{"run-now", "at", "delay"}
	all := append(slices.Clone(times), "to-priority", "to-queue", "max-attempts", "retry", "args-patch")
	given := slices.DeleteFunc(times, func(name string) bool { return !changed(name) })
	switch {
	case !slices.ContainsFunc(all, changed):
		return usagef("what is to change? Give one of --%s", strings.Join(all, ", --"))
	case len(given) > 1:
		return usagef("--%s contradict each other: give one of them", strings.Join(given, " and --"))
	case changed("run-now") && !f.edit.RunNow:
		return usagef("--run-now=false changes nothing: leave it out")
	case changed("delay") && f.edit.Delay <= 0:
		return usagef("--delay %v is not positive; --run-now makes jobs due now", f.edit.Delay)
	case changed("to-priority") && (f.edit.Priority < 1 || f.edit.Priority > 9):
		return usagef("--to-priority %d is not 1 to 9", f.edit.Priority)
	case changed("to-queue") && f.edit.Queue == "":
		return usagef("--to-queue is empty")
	case changed("max-attempts") && f.edit.MaxAttempts < 1:
		return usagef("--max-attempts %d is not 1 or more", f.edit.MaxAttempts)
	}
	if changed("at") {
		at, err := time.Parse(time.RFC3339, f.at)
		if err != nil || at.IsZero() {
			return usagef("--at %q is not a time such as 2026-01-31T12:00:00Z", shorten(f.at, 40))
		}
		f.edit.ScheduledAt = at
	}
	if changed("retry") {
		strategy, err := drover.ParseRetryStrategy(f.retry)
		if err != nil {
			return usagef("--retry: %v", err)
		}
		f.edit.Retry = strategy
	}
	if changed("args-patch") {
		var object map[string]json.RawMessage
		if json.Unmarshal([]byte(f.patch), &object) != nil || object == nil {
			return usagef("--args-patch is not a JSON object")
		}
		f.edit.ArgsPatch = json.RawMessage(f.patch)
	}
	return nil
}

// editNames replaces the library's name of a refused field by its flag.
func editNames(err error) error {
	names := append(append(filterNames(), auditNames()...), "ScheduledAt:", "--at:", "Delay:", "--delay:", "Priority:", "--to-priority:", "Queue:", "--to-queue:",
		"MaxAttempts:", "--max-attempts:", "ArgsPatch:", "--args-patch:")
	return flagNamed(err, names...)
}

func newJobsRerunCommand(a *app) *cobra.Command {
	var plan drover.RerunPlan
	cmd := newManyCommand(a, &cobra.Command{
		Use:   "rerun [ID...]",
		Short: "Run completed jobs again, as new jobs",
		Long: `Enqueue completed jobs again. Each becomes a new job with the same kind, args, queue and options. The histories
of the old job and of the new job name each other. To run discarded or cancelled jobs again, use drover jobs
redrive or drover redrive start: they stay the same jobs.

With ids alone, the new jobs are due now, and each run of the command makes more jobs. With filter flags, so
many of the new jobs become due in a second (--rate), and no job is rerun twice: jobs that were rerun before
stay as they are, and so do jobs that are reruns themselves, unless --id names them. So after an interruption
the same command goes on.`,
		Example: `  drover jobs rerun 01ARZ3NDEKTSV4RRFFQ69G5FAV --why "the label was lost"
  drover jobs rerun --kind label --finalized-after 2h --rate 10 --why "the labels were blank"`,
	}, manyVerb{
		done: "rerun", states: func(drover.Filter) []drover.State { return []drover.State{drover.Completed} }, kept: "kept in the history of both jobs",
		count: func(c *drover.Client, ctx context.Context, filter drover.Filter) (int64, error) {
			would, err := c.RerunMany(ctx, filter, drover.RerunPlan{Rate: plan.Rate, DryRun: true}, drover.Audit{})
			return would.Changed, err
		},
		do: func(c *drover.Client, ctx context.Context, filter drover.Filter, audit drover.Audit) (drover.BulkResult, error) {
			return c.RerunMany(ctx, filter, plan, audit)
		},
		one: func(c *drover.Client, ctx context.Context, id string, audit drover.Audit) (string, error) {
			receipt, err := c.Rerun(ctx, id, nil, audit)
			return "rerun as " + receipt.ID, err
		},
		check: func(cmd *cobra.Command) error {
			switch rate := cmd.Flags().Changed("rate"); {
			case rate && plan.Rate == 0: // the library would take it for the default
				return usagef("--rate 0 is not 0.001 to 5,000 a second")
			case rate && !givenFilter(cmd):
				return usagef("--rate goes with flags that pick jobs; with ids alone, the jobs are due now")
			}
			return nil
		},
	})
	cmd.Flags().Float64Var(&plan.Rate, "rate", 0, "jobs that become due in a second (default 50)")
	return cmd
}
