package meters

import (
	"context"
	"strconv"

	"github.com/drover-queue/drover"
)

// Sink takes one value: the growth of a counter, or the seconds for a histogram. The labels are in the order of the
// definition. The parameter labels is an array, so that an event allocates nothing.
type Sink func(ctx context.Context, m Meter, value float64, labels [MostLabels]string)

type labels = [MostLabels]string

// Hooks returns hooks that convert each event into values for the sink.
func Hooks(kinds, queues *Names, sink Sink) drover.Hooks {
	ended := func(outcome string) func(context.Context, drover.Event) {
		return func(ctx context.Context, e drover.Event) {
			queue, kind := queues.Label(e.Queue), kinds.Label(e.Kind)
			sink(ctx, Outcomes, jobs(e), labels{queue, kind, outcome, reason(outcome, e)})
			// There is no duration if the job ended without a run. If the process died, nobody knows how long the handler ran.
			if e.Duration > 0 && e.Class != drover.ClassCrash {
				sink(ctx, RunDuration, e.Duration.Seconds(), labels{queue, kind})
			}
		}
	}
	failed, discarded := ended("failed"), ended("discarded")
	return drover.Hooks{
		Enqueued: func(ctx context.Context, e drover.Event) {
			sink(ctx, Enqueued, 1, labels{queues.Label(e.Queue), kinds.Label(e.Kind), strconv.FormatBool(e.InTx)})
		},
		Started: func(ctx context.Context, e drover.Event) {
			sink(ctx, Wait, e.Wait.Seconds(), labels{queues.Label(e.Queue)})
		},
		Completed: ended("completed"),
		Failed: func(ctx context.Context, e drover.Event) {
			sink(ctx, Backoff, e.Backoff.Seconds(), labels{kinds.Label(e.Kind)})
			failed(ctx, e)
		},
		Discarded: func(ctx context.Context, e drover.Event) {
			sink(ctx, DeadLetters, jobs(e), labels{string(e.Reason)})
			discarded(ctx, e)
		},
		Parked:      ended("parked"),
		Snoozed:     ended("snoozed"),
		Cancelled:   ended("cancelled"),
		Released:    ended("released"),
		StaleSettle: ended("stale"),
		Rescued:     ended("rescued"),
		Quarantined: func(ctx context.Context, _ drover.Event) { sink(ctx, Quarantined, 1, labels{}) },
		Redriven:    func(ctx context.Context, e drover.Event) { sink(ctx, Redriven, jobs(e), labels{}) },

		FailureReopened: func(ctx context.Context, _ drover.Event) { sink(ctx, FailuresReopened, 1, labels{}) },
		PeriodicSkipped: func(ctx context.Context, e drover.Event) {
			sink(ctx, PeriodicSkipped, jobs(e), labels{queues.Label(e.Queue), kinds.Label(e.Kind)})
		},
	}
}

// reason returns the value of the label reason: the reason of a discard, the class of a failure, or "not_started" for a
// run that was handed back before its handler was called. Each of them has a bounded number of values.
func reason(outcome string, e drover.Event) string {
	switch outcome {
	case "discarded":
		return string(e.Reason)
	case "failed", "parked", "rescued":
		return string(e.Class)
	case "released":
		if e.Duration == 0 {
			return "not_started"
		}
	}
	return ""
}

// jobs returns how many jobs or ticks an event is about. One event may be about all jobs that one transaction of an
// operator's method has changed, or about all ticks that a schedule has skipped together.
func jobs(e drover.Event) float64 { return float64(max(1, e.Count)) }
