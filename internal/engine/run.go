package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// The reasons for Handler.CutShort: why a run was cut short.
var (
	ErrTimeout     = errors.New("drover: run timed out")              // the handler ignores its timeout; also the cause of the context's end
	ErrExpired     = errors.New("drover: expired before a run")       // the job's ExpiresAt had passed at the claim
	ErrExit        = errors.New("handler called runtime.Goexit")      // the handler's goroutine ends
	ErrUnreadable  = errors.New("row cannot be read")                 // see Run.Unreadable
	ErrIgnoredStop = errors.New("the handler has not returned since") // its context has ended, and the supervisor must stop
)

// UndecidedError reports why Handler.Decide did not return.
type UndecidedError struct {
	Panicked bool
	Value    any // the value of the panic; nil: Decide called runtime.Goexit
}

// Error implements error.
func (e *UndecidedError) Error() string { return "outcome could not be decided" }

// Run is one claimed job until it is settled. NewRun and Crashed of the Handler fill in the fields from Task to
// TimeLeft, and Labels. The claimer fills in the fence, DeleteCompleted, Lateness, and the fields from Shared to
// Received.
type Run struct {
	store.Fence     // the claim; settles compare it
	Task        any // the larger value that the run is part of

	Queue, Kind     string
	Attempt         int
	MaxAttempts     int
	Crashes         int
	Redrives        int
	Timeout         time.Duration // 0: none
	Expired         bool
	Unreadable      error         // why the row could not be read in full; nil: it was read in full
	TimeBound       bool          // TimeLeft is valid: the job may be retried only for a limited time
	TimeLeft        time.Duration // how long, from the claim on, the job may be retried
	DeleteCompleted bool
	Labels          *Labels       // the labels of the job, for events; nil: the job has none, or they are not known
	Lateness        time.Duration // how long the job had been due at the claim, by the server's clock

	// End is how the run ended. Once it is set, it belongs to the settler or to the rescuer.
	End Outcome

	Shared          *Shared
	slots           slotter     // takes slots of retry budgets
	From            *QueueState // the queue that the run was claimed from
	Lease           *lease
	tier            int16 // the tier of the job's lane
	Received        time.Time
	StartedAt       time.Time
	Ctx             context.Context        //nolint:containedctx // a run is one call of a handler
	Lazy            runContext             // Ctx points to Lazy once the run has started
	goroutine       uint64                 // the number of the goroutine that runs the handler; 0: not known
	stack           atomic.Pointer[string] // see the method Stack
	phase           atomic.Int32
	cancelRequested atomic.Bool             // an operator has ended the job
	postponed       atomic.Bool             // the start was refused, and the row changed
	txOutcome       atomic.Pointer[Outcome] // the outcome that SettleTx recorded in the handler's transaction; nil: none
	txFailed        atomic.Pointer[error]   // why the last SettleTx failed; nil: it did not fail

	// Only the settler uses these.
	txSeenOpen *Outcome  // the former txOutcome, if the handler's transaction was still open after the end of the run
	tries      int       // how many settles were sent
	held       int       // how often a settle found the row locked
	simpler    bool      // End was simplified, because the database refused it
	Refusals   int       // how often Refused was called for the outcome
	refusedAt  time.Time // when the database first refused the outcome
	NotBefore  time.Time // no try to settle comes before this time
}

// Labels are the tags and metadata of a job, as the enqueue set them. Events show them.
type Labels struct {
	Tags     []string
	Metadata []byte // a JSON object; nil: none
}

// slotter takes a slot of a retry budget for an outcome, if the outcome needs a slot.
type slotter interface {
	slotFor(ctx context.Context, r *Run, o *Outcome) error
}

// Outcome is how a run ended, and what its row becomes.
type Outcome struct {
	State       store.State
	Reason      string        // why the job is discarded
	Class       string        // the class of the failure; "": none
	Text        string        // the text of the failure's error, as stored
	Fingerprint string        // the fingerprint of the failure; "": none
	Entry       []byte        // the new element of the column errors, a store.ErrorEntry; nil: none
	Delay       time.Duration // how long until the next run
	AtOnce      bool          // the next run is due now
	GiveBack    bool          // the attempt is given back: it does not count
	Snoozed     bool
	Uncounted   bool // the handler returned DontCount
	Crashed     bool // the process died, or the handler ignored its timeout
	Quarantined bool // the job is discarded because of its crashes
	MaxAttempts int  // the job's new MaxAttempts for events; 0: the same as the run's
	Duration    time.Duration
	Event       EventKind

	Slot *BudgetSlot // the slot of a retry budget; nil: none
}

// BudgetSlot is a retry's place in its budget's calendar.
type BudgetSlot struct {
	Backoff time.Duration // the delay that the strategy returned
	Taken   time.Time     // when the slot was taken, by this process' clock
	DueUS   int64         // the due time in µs since 1970 by the server's clock; we only send it back to the server
}

// Released returns the outcome of a run that did not take place, or that was cut short for a reason that has nothing to
// do with the job.
func Released(took time.Duration) Outcome {
	return Outcome{State: store.Available, AtOnce: true, GiveBack: true, Event: EventReleased, Duration: took}
}

// Reasons and a class that the engine itself writes into the tables.
const (
	reasonOperator = "operator"
	reasonRefused  = "refused"
	ClassRefused   = "refused"
)

// completes reports whether store.SQLComplete, which completes many jobs, can record the outcome.
func (o *Outcome) completes() bool { return o.State == store.Completed }

func (o *Outcome) discard(reason string) {
	o.State, o.Reason, o.Event = store.Discarded, reason, EventDiscarded
}

// became records the new state of the row. This state differs from the outcome if the failure group has a policy that
// replaces a retry.
func (o *Outcome) became(state store.State) {
	switch {
	case o.State != store.Retryable:
	case state == store.Discarded:
		o.discard(reasonOperator)
	case state == store.Parked:
		o.State, o.Event = store.Parked, EventParked
	}
}

// due returns when the next run is due, by this process' clock.
func (o *Outcome) due(now time.Time) time.Time {
	if o.Slot != nil {
		now = o.Slot.Taken
	}
	return now.Add(o.Delay)
}

// Change returns the outcome o of the run r in the form that store.SQLSettle takes.
func (o *Outcome) Change(r *Run) store.Change {
	c := store.Change{
		ID: r.ID, Seq: int32(r.Seq), State: o.State, Reason: o.Reason, //nolint:gosec // an int in the table
		AtOnce: o.AtOnce, GiveBack: o.GiveBack, Snoozed: o.Snoozed, Uncounted: o.Uncounted, Crashed: o.Crashed, Survived: r.survived(o),
		Failed: o.Class != "" && o.State != store.Cancelled,
	}
	if !r.ClaimedAt.IsZero() {
		c.ClaimedAt = &r.ClaimedAt
	}
	if o.Entry != nil {
		c.Class, c.Fingerprint, c.Entry = o.Class, o.Fingerprint, o.Entry
	}
	if (o.State == store.Retryable || o.State == store.Scheduled) && !o.AtOnce {
		us, ms := o.Delay.Microseconds(), o.Delay.Milliseconds()
		if c.DelayUS = &us; o.Slot != nil {
			c.DueUS, c.DelayUS = &o.Slot.DueUS, nil
		}
		if o.State == store.Retryable {
			c.DelayMS = &ms
		}
	}
	return c
}

// survived reports whether a crash must be taken off the job: the job has crashes, and the process has outlived this
// run. A completed job needs no such correction.
func (r *Run) survived(o *Outcome) bool {
	return r.Crashes > 0 && !o.Crashed && !r.StartedAt.IsZero() && o.Event != EventReleased && !o.completes()
}

// inLog returns what a log line says about the job of a run. It leaves the args out, because they may hold data that
// must not be logged.
func (r *Run) inLog() slog.Attr {
	return slog.Group("", slog.String("job_id", r.ID), slog.String("queue", r.Queue), slog.String("kind", r.Kind),
		slog.Int("attempt", r.Attempt), slog.Int("max_attempts", r.MaxAttempts))
}

// EndOnce ends a run that has started, and takes it out of InFlight. The slot's goroutine, watch and abandonAll call
// EndOnce; only one of these calls returns true.
func (r *Run) EndOnce() bool {
	if !r.phase.CompareAndSwap(phaseStarted, phaseEnded) {
		return false
	}
	r.Shared.InFlight.Remove(r)
	r.From.Ran(r.Ran())
	r.leave()
	return true
}

// Finish ends a run whose handler was not called.
func (r *Run) Finish() {
	r.phase.Store(phaseEnded)
	r.leave()
}

// leave makes room for the next claim.
func (r *Run) leave() {
	if r.From.Leave(r.tier) {
		r.Shared.alarm.Wake() // we do not wait for the next poll: if other queues had room and no job, that poll may be far off
	}
}

// Cancel ends the handler's context.
func (r *Run) Cancel(cause error) { r.Lazy.end(cause) }

// singleAttempt reports whether the job has a single attempt. Such a job must not run again once its handler may have
// begun, unless the handler itself asks for that.
func (r *Run) singleAttempt() bool { return r.MaxAttempts == 1 }

// Ran returns how long the handler has run; 0: it was not called.
func (r *Run) Ran() time.Duration {
	if r.StartedAt.IsZero() {
		return 0
	}
	return r.Shared.Now().Sub(r.StartedAt)
}

// Cause returns why the handler's context has ended; nil: it has not.
func (r *Run) Cause() error {
	if r.Ctx == &r.Lazy {
		return r.Lazy.why()
	}
	return context.Cause(r.Ctx)
}

// OutOfTime reports whether a retry after the delay d would come too late, because the job may be retried only until a
// certain time.
func (r *Run) OutOfTime(d time.Duration) bool {
	return r.TimeBound && r.Shared.Now().Sub(r.Received)+d > r.TimeLeft
}

// Uncommitted returns the failure of a run whose handler returned nil although its SettleTx failed. It returns nil if
// no SettleTx failed, or a later one succeeded.
func (r *Run) Uncommitted() error {
	if r.txFailed.Load() == nil || r.txOutcome.Load() != nil {
		return nil
	}
	return r.notCommitted()
}

// notCommitted returns the failure of a run whose handler's transaction did not settle it as intended.
func (r *Run) notCommitted() error {
	if failed := r.txFailed.Load(); failed != nil {
		return fmt.Errorf("%w: %w", pg.ErrNotCommitted, *failed)
	}
	return pg.ErrNotCommitted
}

// A handler counts as deaf, and its job as crashed, if it goes on for a grace period after its timeout. That period is
// as long as the timeout, within these bounds. The lower bound is for busy machines, on which a handler that obeys its
// context may be late by tenths of a second.
const (
	leastDeafGrace = time.Second
	deafGrace      = 5 * time.Second
)

// Deaf reports whether the handler has ignored its timeout for so long that it counts as deaf.
func (r *Run) Deaf(now time.Time) bool {
	if r.Timeout == 0 {
		return false
	}
	grace := max(min(r.Timeout, deafGrace), leastDeafGrace)
	return now.Sub(r.StartedAt) > r.Timeout+grace
}

const (
	phaseBuffered int32 = iota
	phaseStarted
	phaseEnded
)

// runSet is a set of runs. One job may have several runs: an abandoned handler may still work when the next run starts.
type runSet struct {
	mu   sync.Mutex
	runs map[*Run]struct{}
}

func (s *runSet) Add(runs ...*Run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(runs...)
}

// add does the same as Add. Callers hold mu.
func (s *runSet) add(runs ...*Run) {
	if s.runs == nil {
		s.runs = map[*Run]struct{}{}
	}
	for _, r := range runs {
		s.runs[r] = struct{}{}
	}
}

func (s *runSet) Remove(r *Run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.runs, r)
}

func (s *runSet) Has(r *Run) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, found := s.runs[r]
	return found
}

func (s *runSet) All() []*Run {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.runs))
}

// ofOwner returns the runs that were claimed under the given supervisor id.
func (s *runSet) ofOwner(owner string) []*Run {
	return slices.DeleteFunc(s.All(), func(r *Run) bool { return r.Owner != owner })
}

// OfJob returns the runs of one job.
func (s *runSet) OfJob(id string) []*Run {
	return slices.DeleteFunc(s.All(), func(r *Run) bool { return r.ID != id })
}

func (s *runSet) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.runs)
}

// Fences returns the fences of the runs.
func Fences(runs []*Run) []store.Fence {
	list := make([]store.Fence, len(runs))
	for i, r := range runs {
		list[i] = r.Fence
	}
	return list
}
