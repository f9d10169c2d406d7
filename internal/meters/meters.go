package meters

import "github.com/drover-queue/drover"

// Meter identifies a value that is counted or observed when an event comes.
type Meter int

// The meters of events: counters, then histograms from RunDuration on.
const (
	Enqueued Meter = iota
	Outcomes
	DeadLetters
	PeriodicSkipped
	Quarantined
	Redriven
	FailuresReopened
	RunDuration
	Wait
	Backoff
	meters // the number of meters
)

// MostLabels is how many labels a meter of events has at most.
const MostLabels = 4

// Def describes what is measured. Name has neither the prefix drover, nor a suffix for the unit or for a counter.
// Underscores separate the words of a name.
type Def struct {
	Name   string
	Unit   string // "s", or the counted thing in braces, such as {job}; not "1", because OpenTelemetry's exporters to Prometheus add _ratio to the name of such a gauge
	Help   string
	Labels []string
	Grows  bool // the value of a Gauge only grows, so it is exported as a counter
}

// Events returns the definitions of the meters. The index of a definition is its Meter.
func Events() []Def {
	defs := [meters]Def{
		Enqueued: {
			Name: "enqueued", Unit: "{job}", Labels: []string{"queue", "kind", "in_tx"},
			Help: "Jobs that this process stored; in_tx=\"true\" are in a transaction of the caller's, which may have rolled back.",
		},
		Outcomes: {
			Name: "outcomes", Unit: "{run}", Labels: []string{"queue", "kind", "outcome", "reason"},
			Help: "Runs that ended, and jobs that ended without a run, by what became of them. Reason is that of a discard, or the class of a failure.",
		},
		DeadLetters: {
			Name: "dead_letters", Unit: "{job}", Labels: []string{"reason"},
			Help: "Jobs that this process discarded, by reason. Every reason is there from the start, so that increase() sees the first one.",
		},
		PeriodicSkipped: {
			Name: "periodic_skipped", Unit: "{tick}", Labels: []string{"queue", "kind"},
			Help: "Ticks of schedules that made no job.",
		},
		Quarantined:      {Name: "quarantined", Unit: "{job}", Help: "Jobs discarded because they kill processes or ignore their timeouts."},
		Redriven:         {Name: "redriven", Unit: "{job}", Help: "Discarded and cancelled jobs that this process made due again."},
		FailuresReopened: {Name: "failures_reopened", Unit: "{group}", Help: "Failure groups that came back after they were resolved."},
		RunDuration: {
			Name: "run_duration", Unit: "s", Labels: []string{"queue", "kind"},
			Help: "How long handlers ran, whatever the outcome.",
		},
		Wait:    {Name: "wait", Unit: "s", Labels: []string{"queue"}, Help: "From the due time of a job to the start of its run: how late it was."},
		Backoff: {Name: "backoff", Unit: "s", Labels: []string{"kind"}, Help: "Delay until the retry of a run that failed."},
	}
	return defs[:]
}

// Reasons returns all reasons of a discard, for counters that begin with 0.
func Reasons() []drover.Reason {
	return []drover.Reason{
		drover.ReasonAttemptsExhausted, drover.ReasonUnrecoverable, drover.ReasonPanic, drover.ReasonCrashed, drover.ReasonUndecodable,
		drover.ReasonExpired, drover.ReasonTimeBudget, drover.ReasonOperator, drover.ReasonRetryBudget, drover.ReasonRefused,
	}
}
