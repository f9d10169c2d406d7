package meters

import (
	"context"
	"strconv"

	"github.com/drover-queue/drover"
)

// Sink takes what an event says: n more for a counter, a value in seconds for a histogram. The labels are
// in the order of the definition.
type Sink func(ctx context.Context, m Meter, value float64, labels ...string)

// Hooks reads events.
func Hooks(kinds, queues *Names, sink Sink) drover.Hooks {
	ended := func(outcome string) func(context.Context, drover.Event) {
		return func(ctx context.Context, e drover.Event) {
			queue, kind := queues.Label(e.Queue), kinds.Label(e.Kind)
			sink(ctx, Outcomes, jobs(e), queue, kind, outcome, why(outcome, e))
			// No handler ran for a job that ended without a run, and nobody knows how long one ran whose process died.
			if e.Duration > 0 && e.Class != drover.ClassCrash && outcome != "rescued" {
				sink(ctx, RunDuration, e.Duration.Seconds(), queue, kind)
			}
		}
	}
	failed, discarded := ended("failed"), ended("discarded")
	return drover.Hooks{
		Enqueued: func(ctx context.Context, e drover.Event) {
			sink(ctx, Enqueued, 1, queues.Label(e.Queue), kinds.Label(e.Kind), strconv.FormatBool(e.InTx))
		},
		Started: func(ctx context.Context, e drover.Event) {
			sink(ctx, Wait, e.Wait.Seconds(), queues.Label(e.Queue))
		},
		Completed: ended("completed"),
		Failed: func(ctx context.Context, e drover.Event) {
			sink(ctx, Backoff, e.Backoff.Seconds(), kinds.Label(e.Kind))
			failed(ctx, e)
		},
		Discarded: func(ctx context.Context, e drover.Event) {
			sink(ctx, DeadLetters, jobs(e), string(e.Reason))
			discarded(ctx, e)
		},
		Parked:      ended("parked"),
		Snoozed:     ended("snoozed"),
		Cancelled:   ended("cancelled"),
		Released:    ended("released"),
		StaleSettle: ended("stale"),
		Rescued:     ended("rescued"),
		Quarantined: func(ctx context.Context, _ drover.Event) { sink(ctx, Quarantined, 1) },
		Redriven:    func(ctx context.Context, e drover.Event) { sink(ctx, Redriven, jobs(e)) },
		Edited:      func(ctx context.Context, e drover.Event) { sink(ctx, Edited, jobs(e)) },

		FailureReopened: func(ctx context.Context, _ drover.Event) { sink(ctx, FailuresReopened, 1) },
		PeriodicSkipped: func(ctx context.Context, e drover.Event) {
			sink(ctx, PeriodicSkipped, jobs(e), queues.Label(e.Queue), kinds.Label(e.Kind))
		},
	}
}

// why is the reason of a discard, or how a run failed; both are closed sets of words.
func why(outcome string, e drover.Event) string {
	switch outcome {
	case "discarded":
		return string(e.Reason)
	case "failed", "parked", "rescued":
		return string(e.Class)
	}
	return ""
}

// jobs is how many an event is about: those of one verb or one tick come as one event.
func jobs(e drover.Event) float64 { return float64(max(1, e.Count)) }
