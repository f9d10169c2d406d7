package main

import (
	"math/rand/v2"
	"time"

	"github.com/drover-queue/drover"
)

// task is a job of the load. A run's behavior follows from Seed and the attempt, in whatever process it runs.
type task struct {
	Seed uint64 `json:"seed"`
	Do   string `json:"do,omitempty"`   // "": an effect outside; tx: an effect in the database too; else see misbehave
	MS   int    `json:"ms"`             // how long a run takes
	Dead bool   `json:"dead,omitempty"` // every run fails
}

// Kind implements drover.Args.
func (task) Kind() string { return "task" }

// noop is a job for measurements of jobs a second. The audit ignores it.
type noop struct{}

// Kind implements drover.Args.
func (noop) Kind() string { return "noop" }

// load describes what producers enqueue and workers run.
type load struct {
	Workers, Slots int
	Producers      int
	Rate           int // jobs a second of each producer
	Lease          time.Duration
	Poll           time.Duration
	Failing        float64 // share of runs that fail; with 0, no job has task.Dead either
	LongestRun     int     // ms
	Long           float64 // share of jobs whose runs take longRun
	Transactional  float64 // share of jobs
	Prepared       bool    // these transactions are prepared
	Deaf           bool    // handlers never return
	Drain          time.Duration
	Through        int              // so many workers go through the proxy
	Again          bool             // an enqueue with unknown outcome is repeated with its id until the outcome is known
	Jobs           int              // of each producer; 0: until it is stopped
	Retention      drover.Retention // of completed jobs; 0: longer than any scenario
	Deafened       bool             // workers do without LISTEN
	ClockErrors    []time.Duration  // of the first workers
	Schedules      bool             // workers declare schedules
}

// longRun is longer than the time in which a process that was stopped and goes on notices that it has lost its jobs.
const longRun = 3 * time.Second

const (
	backoffBase   = 100 * time.Millisecond
	backoffMax    = 400 * time.Millisecond // 22 runs in 10 s
	backoffJitter = 0.25
	maxAttempts   = 22 // more than the errors that a row keeps
)

func backoff() drover.RetryStrategy {
	return drover.Exponential{Base: backoffBase, Max: backoffMax, Jitter: drover.JitterUp(backoffJitter)}
}

// newTask draws a job.
func (l *load) newTask(rng *rand.Rand) task {
	t := task{Seed: rng.Uint64(), MS: 1 + rng.IntN(l.LongestRun), Dead: l.Failing > 0 && rng.IntN(500) == 0}
	if rng.Float64() < l.Transactional {
		t.Do = "tx"
	}
	switch {
	case t.Dead:
		t.MS = 1
	case rng.Float64() < l.Long:
		t.MS = int(longRun.Milliseconds())
	}
	return t
}

// fails reports whether a run fails.
func (t *task) fails(attempt int, share float64) bool {
	return t.Dead || rand.New(rand.NewPCG(t.Seed, uint64(attempt))).Float64() < share //nolint:gosec // small and positive
}
