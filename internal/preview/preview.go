// Package preview computes what a retry strategy does: the schedule of its waits, and the load of an outage. It needs no
// database. The waits are the library's own; only the rule of retry budgets is written again, from SQL.
package preview

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/drover-queue/drover"
)

// The bounds of a simulation: about 400 MB, and about 10 s.
const (
	MaxJobs     = 1_000_000
	MaxAttempts = 20_000_000
)

// ErrTooLarge means that a simulation would exceed MaxJobs or MaxAttempts.
var ErrTooLarge = errors.New("drover: the simulation is too large")

// Settings are how a worker retries. Zero values have the library's defaults.
type Settings struct {
	Retry       drover.RetryStrategy
	MaxAttempts int
	RetryFor    time.Duration
	Budget      drover.RetryBudget
}

func (s Settings) attempts() int { return cmp.Or(s.MaxAttempts, 20) }

// work is a job of no work.
type work struct{}

// Kind implements drover.Args.
func (work) Kind() string { return "preview" }

// Check returns what a worker with these settings would be refused for. The field of each *drover.InvalidError is that of
// drover.WorkerOpts.
func (s Settings) Check(ctx context.Context) error {
	worker := drover.Handle(func(context.Context, *drover.Job, work) error { return nil }, drover.WorkerOpts{
		Retry: s.Retry, MaxAttempts: s.MaxAttempts, RetryFor: s.RetryFor, RetryBudget: s.Budget,
	})
	_, err := worker.Rehearse(ctx, work{}, nil)
	return belowWorker(err)
}

// belowWorker takes the "worker." off the fields.
func belowWorker(err error) error {
	var all []error
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			all = append(all, belowWorker(e))
		}
		return errors.Join(all...)
	}
	var invalid *drover.InvalidError
	if !errors.As(err, &invalid) {
		return err
	}
	return &drover.InvalidError{Field: strings.TrimPrefix(invalid.Field, "worker."), Reason: invalid.Reason, Err: invalid.Err}
}

// Wait is the wait before one attempt. Least and Most are the shortest and the longest of SampleJobs jobs.
type Wait struct {
	Attempt int // from 2
	Wait    Range
	Since   Range // the first failure
}

// Range is a time without jitter, and the bounds of its jitter.
type Range struct{ Plain, Least, Most time.Duration }

// SampleJobs is how many jobs the bounds of a schedule are from.
const SampleJobs = 1000

// Schedule returns the waits of a job that fails every time: of at most most attempts, and none that RetryFor rules out.
func (s Settings) Schedule(most int) []Wait {
	runs := min(s.attempts(), most+1)
	list := make([]Wait, 0, max(runs-1, 0))
	for n := range SampleJobs {
		since := time.Duration(0)
		for i, wait := range drover.Schedule(s.Retry, jobID(0, n), runs) {
			since = add(since, wait)
			if i == len(list) {
				list = append(list, Wait{
					Attempt: i + 2, Wait: Range{0, wait, wait}, Since: Range{drover.TotalDelay(s.Retry, i+2), since, since},
				})
				list[i].Wait.Plain = list[i].Since.Plain - drover.TotalDelay(s.Retry, i+1)
			}
			list[i].Wait.widen(wait)
			list[i].Since.widen(since)
		}
	}
	for i, w := range list {
		if s.RetryFor > 0 && w.Since.Least > s.RetryFor {
			return list[:i]
		}
	}
	return list
}

func (r *Range) widen(d time.Duration) { r.Least, r.Most = min(r.Least, d), max(r.Most, d) }

// add stops at the longest duration.
func add(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// jobID is the id of a simulated job. Jitter is a hash of it.
func jobID(seed uint64, n int) string { return fmt.Sprintf("preview-%d-%d", seed, n) }
