package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/preview"
)

func newPreviewCommand(a *app) *cobra.Command {
	var p previewFlags
	cmd := &cobra.Command{
		Use:   "preview",
		Short: "Show the waits of a retry strategy, and what it does in an outage",
		Long: `Show the waits of a retry strategy: before each attempt, and since the first failure. Where the
strategy has jitter, two bounds follow: the shortest and the longest wait of 1,000 jobs.

With --outage and --rate, the command simulates an outage of a service that the jobs call. It begins
with the first job. While it lasts, every attempt fails. Afterwards the service serves --capacity
attempts in any second, and refuses the others, which have then failed too. New jobs go on until
every job that the outage caught has ended, or until there are --jobs. The simulation shows the load
on the service, when the backlog is gone, and how many jobs are discarded.

With --budget it shows the same with a retry budget, and with --redrive the same with a redrive, at
that rate, of the jobs that are dead when the service is back.

The command uses no database. The same command line always prints the same; --seed takes other jobs.

Not simulated: how long a run takes and how many run at once (enough slots are free, at any time), a
service that falls over under too much load, Retry-After, gates, and pauses. A strategy that is a
function of your program cannot be named here: print drover.Schedule of it there.`,
		Example: `  drover preview                                         # the default strategy
  drover preview --strategy constant --delay 1m --jitter up:0.5 --max-attempts 30
  drover preview --outage 20m --rate 50 --capacity 80 --budget 2000
  drover preview --base 2s --max-attempts 8 --outage 20m --rate 50 --redrive 20 --json`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			outage, err := p.read(cmd)
			if err != nil {
				return err
			}
			return previewNames(a.preview(cmd.Context(), p, outage))
		},
	}
	p.add(cmd)
	return cmd
}

// previewFlags are a worker's settings and an outage.
type previewFlags struct {
	strategy, jitter, attempts string
	base, step, delay, most    time.Duration
	multiplier                 float64
	outage                     preview.Outage
	budget                     drover.RetryBudget
}

func (p *previewFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&p.strategy, "strategy", "exponential", "`name` of the strategy: exponential, linear or constant")
	spanVar(f, &p.base, "base", 0, "exponential: `duration` of the first wait (default 15s)")
	f.Float64Var(&p.multiplier, "multiplier", 0, "exponential: each wait is `N` times the one before (default 2)")
	spanVar(f, &p.step, "step", 0, "linear: each wait is a `duration` longer than the one before (default 1m)")
	spanVar(f, &p.delay, "delay", 0, "constant: `duration` of each wait (default 30s)")
	spanVar(f, &p.most, "max", 0, "longest wait, a `duration`, before jitter (default: exponential 1h, others none)")
	f.StringVar(&p.jitter, "jitter", "", "`jitter` of the waits: none, full, equal, up:0.25, down:0.25, symmetric:0.25 or abs:100ms (default: exponential up:0.25, others none)")
	f.StringVar(&p.attempts, "max-attempts", "20", "let a job run `N` times at most, or unlimited")
	spanVar(f, &p.outage.RetryFor, "retry-for", 0, "retry a job for this `duration` after its enqueue (default: no limit)")
	spanVar(f, &p.outage.Length, "outage", 0, "simulate an outage of this `duration`; needs --rate")
	f.Float64Var(&p.outage.Rate, "rate", 0, "outage: enqueue `N` jobs a second")
	f.IntVar(&p.outage.Jobs, "jobs", 0, "outage: enqueue `N` jobs in all (default: until the outage's jobs have ended)")
	f.IntVar(&p.outage.Capacity, "capacity", 0, "outage: afterwards the service serves `N` attempts a second (default: all)")
	f.IntVar(&p.budget.Retries, "budget", 0, "outage: show also a retry budget of `N` retries")
	spanVar(f, &p.budget.Per, "budget-per", 0, "outage: window of the budget, a `duration` (default 1m)")
	f.IntVar(&p.budget.Burst, "budget-burst", 0, "outage: `N` retries may be due at the same instant (default 1)")
	f.BoolVar(&p.budget.Discard, "budget-discard", false, "outage: discard retries over the budget")
	f.Float64Var(&p.outage.Redrive, "redrive", 0, "outage: show also a redrive of the dead jobs, `N` a second")
	f.Uint64Var(&p.outage.Seed, "seed", 0, "outage: `number` that the jobs' jitter depends on")
	complete(cmd, "strategy", "exponential", "linear", "constant")
	complete(cmd, "jitter", "none", "full", "equal", "up:0.25", "down:0.25", "symmetric:0.25", "abs:1s")
	complete(cmd, "max-attempts", "unlimited")
}

// read returns the outage with its settings but without the budget; its length is 0 if none is asked for.
func (p *previewFlags) read(cmd *cobra.Command) (preview.Outage, error) {
	o := p.outage
	given := cmd.Flags().Changed
	for _, name := range []string{"base", "multiplier", "step", "delay", "max", "retry-for", "outage", "rate", "jobs", "capacity", "budget", "budget-per", "budget-burst", "redrive"} {
		if value := cmd.Flags().Lookup(name).Value.String(); given(name) && (value == "0" || value == "-0" || value == "0s") {
			return o, usagef("--%s is 0: leave it out for the default", name)
		}
	}
	if given("jitter") && p.jitter == "" {
		return o, usagef("--jitter is empty: give a value, or leave the flag out")
	}
	var err error
	if o.Retry, err = p.retry(cmd); err != nil {
		return o, err
	}
	if o.MaxAttempts, err = strconv.Atoi(p.attempts); p.attempts == "unlimited" {
		o.MaxAttempts, err = drover.Unlimited, nil
	}
	if err != nil || o.MaxAttempts == 0 {
		return o, usagef("--max-attempts %q is not a number of at least 1, or unlimited", shorten(p.attempts, 40))
	}
	if given("outage") {
		if !given("rate") {
			return o, usagef("--outage needs --rate: how many jobs are enqueued in a second")
		}
		return o, nil
	}
	for _, name := range []string{"rate", "jobs", "capacity", "budget", "budget-per", "budget-burst", "budget-discard", "redrive", "seed"} {
		if given(name) {
			return o, usagef("--%s is for an outage: give its length with --outage", name)
		}
	}
	return o, nil
}

// retry is the strategy of the command line. A setting of another strategy is a mistake.
func (p *previewFlags) retry(cmd *cobra.Command) (drover.RetryStrategy, error) {
	own := map[string][]string{"exponential": {"base", "multiplier"}, "linear": {"step"}, "constant": {"delay"}}
	if own[p.strategy] == nil {
		return nil, usagef("--strategy %q is none of exponential, linear, constant", shorten(p.strategy, 40))
	}
	for _, name := range []string{"exponential", "linear", "constant"} {
		for _, flag := range own[name] {
			if name != p.strategy && cmd.Flags().Changed(flag) {
				return nil, usagef("--%s is a setting of the strategy %s, and this is %s: add --strategy %s, or leave it out", flag, name, p.strategy, name)
			}
		}
	}
	switch jitter := drover.Jitter(p.jitter); p.strategy {
	case "linear":
		return drover.Linear{Step: p.step, Max: p.most, Jitter: jitter}, nil
	case "constant":
		return drover.Constant{Delay: p.delay, Max: p.most, Jitter: jitter}, nil
	default:
		return drover.Exponential{Base: p.base, Multiplier: p.multiplier, Max: p.most, Jitter: jitter}, nil
	}
}

// previewNames is flagNames for the fields of WorkerOpts and of an outage.
func previewNames(err error) error {
	if !errors.Is(err, drover.ErrInvalid) {
		return err
	}
	return usagef("%s", strings.NewReplacer("Retry.Base:", "--base:", "Retry.Multiplier:", "--multiplier:", "Retry.Step:", "--step:",
		"Retry.Delay:", "--delay:", "Retry.Max:", "--max:", "Retry.Jitter:", "--jitter:", "MaxAttempts:", "--max-attempts:",
		"RetryFor:", "--retry-for:", "RetryBudget.Retries:", "--budget:", "RetryBudget.Per:", "--budget-per:",
		"RetryBudget.Burst:", "--budget-burst:", "Rate:", "--rate:", "Jobs:", "--jobs:", "Length:", "--outage:",
		"Capacity:", "--capacity:", "Redrive:", "--redrive:").Replace(err.Error()))
}

func (a *app) preview(ctx context.Context, p previewFlags, o preview.Outage) error {
	info := previewInfo{Strategy: p.strategy, MaxAttempts: o.MaxAttempts, RetryForMS: o.RetryFor.Milliseconds()}
	cases := p.cases(o)
	everything := cases[len(cases)-1].outage // with the budget and the redrive, so that all mistakes are told at once
	check := everything.Check
	if o.Length == 0 {
		check = everything.Settings.Check
	}
	if err := check(ctx); err != nil {
		return err
	}
	info.Schedule = scheduleInfo(o.Schedule(mostWaits))
	if o.Length == 0 {
		return a.printPreview(&info)
	}
	info.Outage = &outageInfo{LengthMS: o.Length.Milliseconds(), Rate: o.Rate, Capacity: o.Capacity}
	for _, c := range cases {
		result, err := c.outage.Simulate(ctx)
		if errors.Is(err, preview.ErrTooLarge) {
			return usagef("%w: try a tenth of --rate, --capacity, --jobs, --budget and --redrive; shares and times stay about the same", err)
		}
		if err != nil {
			return err
		}
		info.Outage.add(c, result)
	}
	return a.printPreview(&info)
}

// previewCase is one of the lines that are compared.
type previewCase struct {
	name   string
	outage preview.Outage
}

// cases are the outage without and with the budget, and without and with the redrive.
func (p *previewFlags) cases(o preview.Outage) []previewCase {
	redrive := o.Redrive
	o.Redrive = 0
	cases := []previewCase{{"no budget", o}}
	if p.budget != (drover.RetryBudget{}) {
		with := o
		with.Budget = p.budget
		per := time.Minute
		if p.budget.Per != 0 {
			per = p.budget.Per
		}
		cases = append(cases, previewCase{fmt.Sprintf("budget %d per %s", p.budget.Retries, length(per)), with})
	}
	if redrive == 0 {
		return cases
	}
	all := make([]previewCase, 0, 2*len(cases))
	for _, c := range cases {
		with := c
		with.name += ", redrive " + strconv.FormatFloat(redrive, 'f', -1, 64) + "/s"
		with.outage.Redrive = redrive
		all = append(all, c, with)
	}
	return all
}
