// Package operate has what the command and the web pages say about drover in the same words.
package operate

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/drover-queue/drover"
)

// States are the values of a filter's state.
func States() []string {
	return Words(drover.Available, drover.Scheduled, drover.Retryable, drover.Running, drover.Parked, drover.Completed, drover.Discarded, drover.Cancelled)
}

// Reasons are the reasons for which this version discards jobs.
func Reasons() []string {
	return Words(
		drover.ReasonAttemptsExhausted, drover.ReasonUnrecoverable, drover.ReasonPanic, drover.ReasonCrashed,
		drover.ReasonUndecodable, drover.ReasonExpired, drover.ReasonTimeBudget, drover.ReasonRetryBudget, drover.ReasonRefused, drover.ReasonOperator,
	)
}

// Classes are the classes of failures.
func Classes() []string {
	return Words(drover.ClassError, drover.ClassThrottled, drover.ClassPanic, drover.ClassTimeout, drover.ClassDecode, drover.ClassCrash, drover.ClassRefused)
}

// Words turns constants into strings.
func Words[T ~string](of ...T) []string {
	all := make([]string, len(of))
	for i, word := range of {
		all[i] = string(word)
	}
	return all
}

// Unfinished are the states of jobs that can be cancelled or discarded.
func Unfinished(drover.Filter) []drover.State {
	return []drover.State{drover.Available, drover.Scheduled, drover.Retryable, drover.Running, drover.Parked}
}

// Editable are the states of jobs that can be edited.
func Editable(drover.Filter) []drover.State {
	return []drover.State{drover.Available, drover.Scheduled, drover.Retryable, drover.Parked}
}

// Deletable are the states of jobs that may be deleted. Dead letters may be deleted only if the filter names their
// state, a reason or ids.
func Deletable(f drover.Filter) []drover.State {
	ended := []drover.State{drover.Completed, drover.Cancelled}
	if f.State == drover.Discarded || f.Reason != "" || len(f.IDs) > 0 {
		ended = append(ended, drover.Discarded)
	}
	return ended
}

// Count counts the jobs that match the filter and are in one of the states. It counts one state after the other. If one
// count fails, n has the jobs of the states that were counted before.
func Count(ctx context.Context, filter drover.Filter, states []drover.State, count func(context.Context, drover.Filter) (int64, error)) (n int64, err error) {
	asked := filter.State
	for _, state := range states {
		if asked != "" && asked != state {
			continue
		}
		filter.State = state
		of, err := count(ctx, filter)
		if err != nil {
			return n, err
		}
		n += of
	}
	return n, nil
}

// Span parses a duration as Go writes it, or a number of days, such as 7d.
func Span(text string) (time.Duration, error) {
	if days, found := strings.CutSuffix(text, "d"); found {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			return time.Duration(n) * 24 * time.Hour, nil
		}
	}
	return time.ParseDuration(text)
}

// Budget is a retry budget in JSON.
type Budget struct {
	Scope    string    `json:"scope"`
	Retries  int       `json:"retries"`
	PerMS    int64     `json:"per_ms"`
	Burst    int       `json:"burst"`
	Mode     string    `json:"mode"`     // defer or discard: whether a retry over the budget waits or ends its job
	Reserved int       `json:"reserved"` // how many retries are due in the window that begins now
	Free     int       `json:"free"`
	NextFree time.Time `json:"next_free"`
}

// Budgets turns budgets into their JSON.
func Budgets(of []drover.BudgetInfo) []Budget {
	all := make([]Budget, len(of))
	for i, b := range of {
		mode := "defer"
		if b.Discard {
			mode = "discard"
		}
		all[i] = Budget{string(b.Scope), b.Retries, b.Per.Milliseconds(), b.Burst, mode, b.Reserved, b.Free, b.NextFree}
	}
	return all
}
