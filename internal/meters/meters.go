// Package meters says what drover measures: names, labels, and how they are read from events, from a
// supervisor and from a snapshot. The modules prometheus and otel only hand that to their libraries.
package meters

import "github.com/drover-queue/drover"

// Meter is one of the things that are counted when an event comes.
type Meter int

// The meters of events.
const (
	Enqueued Meter = iota
	Outcomes
	DeadLetters
	PeriodicSkipped
	Quarantined
	Redriven
	Edited
	FailuresReopened
	RunDuration
	Wait
	Backoff
)

// Def describes what is measured. Name is without the prefix drover, its words divided by underscores, as
// is a Prometheus name without unit and _total.
type Def struct {
	Name   string
	Unit   string // "s", or what is counted in braces
	Help   string
	Labels []string
	Grows  bool // of a Gauge: it is a counter that is read
}

// Events are the definitions of the meters: of counters up to FailuresReopened, then of histograms.
func Events() []Def {
	return []Def{
		Enqueued: {
			"enqueued", "{job}", "Jobs that this process stored; in_tx=\"true\" are in a transaction of the caller's, which may have rolled back.",
			[]string{"queue", "kind", "in_tx"},
			false,
		},
		Outcomes: {
			"outcomes", "{run}", "Runs that ended, and jobs that ended without a run, by what became of them. Reason is that of a discard, or how a run failed.",
			[]string{"queue", "kind", "outcome", "reason"},
			false,
		},
		DeadLetters: {
			"dead_letters", "{job}", "Jobs that this process discarded, by reason. Every reason is there from the start, so that increase() sees the first one.",
			[]string{"reason"},
			false,
		},
		PeriodicSkipped:  {"periodic_skipped", "{tick}", "Ticks of schedules that made no job.", []string{"queue", "kind"}, false},
		Quarantined:      {"quarantined", "{job}", "Jobs discarded because they kill processes or ignore their timeouts.", nil, false},
		Redriven:         {"redriven", "{job}", "Dead letters that this process made due again.", nil, false},
		Edited:           {"edited", "{job}", "Waiting jobs that an operator changed through this process.", nil, false},
		FailuresReopened: {"failures_reopened", "{group}", "Failure groups that came back after they were resolved.", nil, false},
		RunDuration:      {"run_duration", "s", "How long handlers ran, whatever the outcome.", []string{"queue", "kind"}, false},
		Wait:             {"wait", "s", "From the due time of a job to the start of its run.", []string{"queue"}, false},
		Backoff:          {"backoff", "s", "Delay until the retry of a run that failed.", []string{"kind"}, false},
	}
}

// Reasons are all words of a discard, for counters that begin with 0.
func Reasons() []drover.Reason {
	return []drover.Reason{
		drover.ReasonAttemptsExhausted, drover.ReasonUnrecoverable, drover.ReasonPanic, drover.ReasonCrashed, drover.ReasonUndecodable,
		drover.ReasonExpired, drover.ReasonTimeBudget, drover.ReasonOperator, drover.ReasonRetryBudget, drover.ReasonRefused,
	}
}
