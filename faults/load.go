package main

import (
	"math/rand/v2"
	"time"

	"github.com/drover-queue/drover"
)

// task is a job of the load. Seed and the number of the attempt decide how a run behaves, whatever process it runs in.
type task struct {
	Seed uint64 `json:"seed"`
	Do   string `json:"do,omitempty"`   // "": an effect outside of the database; tx: also an effect in the database; other values: see misbehave
	MS   int    `json:"ms"`             // how long a run takes
	Dead bool   `json:"dead,omitempty"` // every run fails
}

// Kind implements drover.Args.
func (task) Kind() string { return "task" }

// noop is a job that does nothing, to measure how many jobs run in a second. The audit ignores it.
type noop struct{}

// Kind implements drover.Args.
func (noop) Kind() string { return "noop" }

// load describes what producers enqueue and workers run.
type load struct {
	Workers, Slots int
	Producers      int
	Rate           int // how many jobs each producer enqueues in a second
	Lease          time.Duration
	Poll           time.Duration
	Failing        float64 // the share of runs that fail; with 0, no job has task.Dead either
	LongestRun     int     // ms
	Long           float64 // the share of jobs whose runs take longRun
	Transactional  float64 // the share of jobs that use CompleteTx
	Prepared       bool    // workers prepare these transactions, and then commit them
	Deaf           bool    // handlers never return
	Drain          time.Duration
	Through        int              // how many workers connect through the proxy
	Again          bool             // a producer repeats an enqueue with the same id until its outcome is known
	Jobs           int              // how many jobs each producer enqueues; 0: it enqueues until it is stopped
	Retention      drover.Retention // the retention of completed jobs; 0: longer than any scenario
	Deafened       bool             // workers do not use LISTEN
	ClockErrors    []time.Duration  // the clock errors of the first workers
	Schedules      bool             // workers declare schedules
}

// longRun is how long a long run takes. When a stopped process goes on, it needs less time than this to notice that it has
// lost its jobs.
const longRun = 3 * time.Second

const (
	backoffBase   = 100 * time.Millisecond
	backoffMax    = 400 * time.Millisecond // with this bound, 22 runs take 10 s
	backoffJitter = 0.25
	maxAttempts   = 22 // more attempts than a row keeps errors
)

func backoff() drover.RetryStrategy {
	return drover.Exponential{Base: backoffBase, Max: backoffMax, Jitter: drover.JitterUp(backoffJitter)}
}

// newTask returns a random job of the load.
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

// The method fails reports whether the run of an attempt fails.
func (t *task) fails(attempt int, share float64) bool {
	return t.Dead || rand.New(rand.NewPCG(t.Seed, uint64(attempt))).Float64() < share //nolint:gosec // small and positive
}
