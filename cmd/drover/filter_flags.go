package main

import (
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
)

// filterFlags are the flags of verbs that change many jobs. All that are given must fit.
type filterFlags struct {
	filter drover.Filter
	state  string
	older  time.Duration
}

func (f *filterFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVar(&f.filter.IDs, "id", nil, "the job of this id, or those of several")
	flags.StringVar(&f.filter.Queue, "queue", "", "jobs of this queue")
	flags.StringVar(&f.filter.Kind, "kind", "", "jobs of this kind")
	flags.StringVar(&f.state, "state", "", "jobs in this state")
	flags.StringVar(&f.filter.Reason, "reason", "", "jobs discarded for this reason")
	flags.StringVar(&f.filter.Fingerprint, "fingerprint", "", "jobs whose last failed run has this fingerprint")
	flags.StringVar(&f.filter.Error, "error", "", "jobs whose newest error has this text in it, case ignored")
	flags.StringSliceVar(&f.filter.Tags, "tag", nil, "jobs with this tag, or with all of several")
	flags.DurationVar(&f.older, "older", 0, "jobs that ended longer ago, such as 720h")
	flags.BoolVar(&f.filter.All, "all", false, "every job")
	complete(cmd, "state", finalStates()...)
	complete(cmd, "reason", reasons()...)
}

// finalStates are what --state takes here.
func finalStates() []string {
	return []string{string(drover.Completed), string(drover.Discarded), string(drover.Cancelled)}
}

// check refuses what cannot be meant, before anything is opened.
func (f *filterFlags) check(cmd *cobra.Command, needed bool) error {
	f.filter.State = drover.State(f.state)
	given := false
	for _, name := range []string{"id", "queue", "kind", "state", "reason", "fingerprint", "error", "tag", "older", "all"} {
		given = given || cmd.Flags().Changed(name)
	}
	switch {
	case needed && !given:
		return usagef("which jobs? --all means every one; see %s --help for the others", cmd.CommandPath())
	case f.state != "" && !slices.Contains(finalStates(), f.state):
		return usagef("--state %q is none of %s", shorten(f.state, 40), strings.Join(finalStates(), ", "))
	case f.filter.Reason != "" && !slices.Contains(reasons(), f.filter.Reason):
		return usagef("--reason %q is none of %s", shorten(f.filter.Reason, 40), strings.Join(reasons(), ", "))
	case cmd.Flags().Changed("older") && f.older <= 0:
		return usagef("--older %v is not positive", f.older)
	}
	for i, id := range f.filter.IDs {
		f.filter.IDs[i] = jobID(id)
	}
	return nil
}

// at is the filter, with --older counted by the server's clock.
func (f *filterFlags) at(now time.Time) drover.Filter {
	filter := f.filter
	if f.older > 0 {
		filter.FinalizedBefore = now.Add(-f.older)
	}
	return filter
}
