package main

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
)

// editFlags are what jobs edit changes.
type editFlags struct {
	edit      drover.JobEdit
	at, patch string
}

// names are the flags, those that say when the job is due first.
func (f *editFlags) names() (times, all []string) {
	times = []string{"run-now", "at", "delay"}
	return times, append(slices.Clone(times), "to-priority", "to-queue", "max-attempts", "args-patch")
}

func newJobsEditCommand(a *app) *cobra.Command {
	f := &editFlags{}
	cmd := newManyCommand(a, &cobra.Command{
		Use:   "edit [ID...]",
		Short: "Change waiting jobs: when they are due, priority, queue, attempts, args",
		Long: `Change jobs that wait: run them now (--run-now), at another time (--at, --delay), with another
priority, in another queue, with more attempts or with other args. They keep their ids, attempts and
errors, and their history keeps what was before.

--run-now runs a job whatever it waits for: its time, its backoff, a slot of a retry budget, or what
it is parked for. A running or ended job stays as it is.`,
		Example: `  drover jobs edit 01ARZ3NDEKTSV4RRFFQ69G5FAV --run-now --why "the bank is back"
  drover jobs edit --kind charge --state retryable --run-now
  drover jobs edit --queue payments --tag vip --to-priority 1
  drover jobs edit 01ARZ3NDEKTSV4RRFFQ69G5FAV --args-patch '{"Currency": "EUR"}' --delay 10m`,
	}, manyVerb{
		done: "edited", of: editable, check: f.check,
		do: func(ctx context.Context, c *drover.Client, filter drover.Filter, by drover.By) (drover.BulkResult, error) {
			return c.EditMany(ctx, filter, f.edit, by)
		},
		one: func(ctx context.Context, c *drover.Client, id string, by drover.By) (drover.State, error) {
			return c.Edit(ctx, id, f.edit, by)
		},
	})
	flags := cmd.Flags()
	flags.BoolVar(&f.edit.RunNow, "run-now", false, "make the jobs due now")
	flags.StringVar(&f.at, "at", "", "make the jobs due at this `time`: "+whenForms)
	spanVar(flags, &f.edit.Delay, "delay", 0, "make the jobs due in this `duration` from now, such as 10m")
	flags.IntVar(&f.edit.Priority, "to-priority", 0, "give the jobs the priority `N`, 1 to 9; lower is sooner")
	flags.StringVar(&f.edit.Queue, "to-queue", "", "move the jobs to the queue of this `name`")
	flags.IntVar(&f.edit.MaxAttempts, "max-attempts", 0, "let each job run `N` times in all at most")
	flags.StringVar(&f.patch, "args-patch", "", "`JSON` object whose keys replace those of the args")
	return cmd
}

// check reads the flags. It refuses what would be taken for a flag that was not given.
func (f *editFlags) check(cmd *cobra.Command) error {
	changed := cmd.Flags().Changed
	times, all := f.names()
	given := slices.DeleteFunc(slices.Clone(times), func(name string) bool { return !changed(name) })
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
		return usagef("--to-queue is empty: give a name, or leave the flag out")
	case changed("max-attempts") && f.edit.MaxAttempts < 1:
		return usagef("--max-attempts %d: must be at least 1", f.edit.MaxAttempts)
	}
	if changed("at") {
		at, ok := parseWhen(f.at, fromNow)
		if !ok || (at.absolute && at.time.IsZero()) || (!at.absolute && at.offset <= 0) {
			return usagef("--at %q is not a time: write it like %s", shorten(f.at, 40), whenForms)
		}
		f.edit.ScheduledAt, f.edit.Delay = at.time, at.offset
	}
	if changed("args-patch") {
		var err error
		f.edit.ArgsPatch, err = argsPatch(f.patch)
		return err
	}
	return nil
}

// argsPatch reads --args-patch.
func argsPatch(text string) (json.RawMessage, error) {
	patch := json.RawMessage(strings.TrimSpace(text))
	var object map[string]json.RawMessage
	if json.Unmarshal(patch, &object) != nil || object == nil {
		return nil, usagef("--args-patch is not a JSON object: write it like '{\"Currency\": \"EUR\"}'")
	}
	return patch, nil
}

// editable are the states of jobs that can be edited.
func editable(drover.Filter) []drover.State {
	return []drover.State{drover.Available, drover.Scheduled, drover.Retryable, drover.Parked}
}

func newJobsRerunCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rerun ID...",
		Short: "Run completed jobs again, as new jobs",
		Long: `Enqueue completed jobs again, due now: each as a new job with the same kind, args, queue and options.
The history of each job names the other.

The command goes through the ids one by one and prints the new id of each. If an id is unknown or a
job is refused, it goes on with the others, and the exit code is 1. Running the command again makes
more jobs.

Discarded and cancelled jobs come back with drover jobs redrive, as the same jobs.`,
		Example: `  drover jobs rerun 01ARZ3NDEKTSV4RRFFQ69G5FAV --why "the label was lost"`,
		Args:    args(cobra.MinimumNArgs(1)),
	}
	by := addByFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, ids []string) error {
		by, err := by.given(cmd)
		if err != nil {
			return err
		}
		s, err := a.open(cmd.Context())
		if err != nil {
			return err
		}
		defer s.close()
		return a.each("rerun", ids, func(id string) (string, error) {
			receipt, err := s.client.Rerun(cmd.Context(), id, nil, by)
			return "rerun as " + receipt.ID, err
		})
	}
	return cmd
}
