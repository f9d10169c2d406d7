package engine

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// The bounds and pauses of settles.
const (
	maxComplete = 2000        // how many completed runs one round trip settles at most
	MaxWaiting  = maxComplete // if more outcomes wait than this, claims pause (the method behind)
	LastSettle  = time.Second // a stop waits so long for the last outcomes, because the database may be away

	lockedPause      = 100 * time.Millisecond // the pause before an outcome whose row is locked is tried again
	mostHeld         = 50                     // after so many of these tries, the settler logs a line
	refusedPause     = 5 * time.Second        // the pause before a refused outcome is tried again; doubled each time
	mostRefusedPause = 10 * time.Minute
)

// settler records how runs ended. It sends an outcome immediately if it is idle. While a round trip is under way,
// outcomes gather, so batches grow under load. Whatever fails, the settler goes on until claiming has ended and
// Unsettled is empty.
type settler struct {
	*Shared
	budgets  *budgets
	redriver *redriver
	signal   signal        // the settler has something to do
	Idle     chan struct{} // closed when run returns

	Mu     sync.Mutex
	Ended  []*Run
	asks   []*slotRequest
	Starts []*Start

	// Only the settler's goroutine uses the fields below.
	Link    store.Line
	Locked  []*Run    // runs to be settled again after a pause, for example because the row was locked
	Worked  time.Time // when gone was last called
	passed  []string  // jobs whose outcomes are recorded now, so they leave the list of set-aside jobs
	Trouble Trouble
	blind   error   // why the look at unsettled rows failed in the last round trip
	noting  Trouble // failures to record starts, which must not hold up the settles
	slots   Trouble // failures to take slots of retry budgets
}

func newSettler(s *Shared, b *budgets, r *redriver) *settler {
	e := &settler{
		Shared: s, budgets: b, redriver: r, signal: newSignal(), Idle: make(chan struct{}), Link: store.NewLine(s.pool),
		noting: Trouble{means: "jobs with a single attempt do not start", vital: true}, slots: Trouble{means: "retries wait for their budgets", vital: true},
	}
	e.Trouble = Trouble{means: "outcomes wait in memory", vital: true, link: &e.Link}
	return e
}

// Settle takes over a run that has ended. It does not block.
func (e *settler) Settle(r *Run) {
	e.Mu.Lock()
	e.Ended = append(e.Ended, r)
	e.Mu.Unlock()
	e.signal.poke()
}

// run settles until claiming has ended and Unsettled is empty, or until ctx is done. The channel claimed is closed when
// claiming has ended. In the end, run reports the runs whose outcomes were never recorded.
func (e *settler) run(ctx context.Context, claimed <-chan struct{}) {
	defer e.Link.Close(ctx)
	defer close(e.Idle)
	defer e.unrecorded()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ended := false; ctx.Err() == nil; {
		now := e.Now()
		if e.NoteStarts(ctx, now) {
			continue
		}
		out := e.Take(now)
		rest := time.Hour
		switch {
		case now.Before(e.Trouble.Until):
			e.requeue(out)
			rest = e.Trouble.Until.Sub(now)
		case len(out) > 0 || e.asked():
			e.Trip(ctx, out)
			continue
		case ended && e.Unsettled.Len() == 0:
			e.tryRefused(ctx)
			return
		}
		if wait := e.noting.Until.Sub(now); wait > 0 {
			rest = min(rest, wait)
		}
		for _, r := range e.Locked {
			rest = min(rest, r.NotBefore.Sub(now))
		}
		timer.Reset(max(rest, 0))
		select {
		case <-timer.C:
		case <-e.signal:
		case <-claimed:
			ended, claimed = true, nil
		case <-ctx.Done():
		}
	}
}

// tryRefused tries the outcomes that the database has refused once more, for at most LastSettle, because the supervisor
// stops now. The cause may have gone.
func (e *settler) tryRefused(base context.Context) {
	if len(e.Locked) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(base, LastSettle)
	defer cancel()
	e.RetryLocked()
	e.Trip(ctx, e.Take(e.Now()))
}

// unrecorded reports the end of each run whose outcome the settler still has.
func (e *settler) unrecorded() {
	e.Mu.Lock()
	left := slices.Concat(e.Ended, e.Locked)
	e.Mu.Unlock()
	for _, r := range left {
		e.stale(r)
	}
}

// behind reports whether claims should pause because too many outcomes wait. Otherwise a process with very short
// handlers would claim and run far more jobs than it can settle. If it died, these jobs would run again. Their rows
// would also be in the way of other processes' claims.
func (e *settler) behind() bool {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	return len(e.Ended)+e.RefusedRuns.Len() > MaxWaiting
}

// Take returns the runs whose outcomes go into the next round trip.
func (e *settler) Take(now time.Time) (out []*Run) {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	if len(e.Ended) > MaxWaiting {
		defer func() {
			if len(e.Ended) <= MaxWaiting {
				e.alarm.Wake()
			}
		}()
	}
	e.Locked = slices.DeleteFunc(e.Locked, func(r *Run) bool {
		if now.Before(r.NotBefore) {
			return false
		}
		e.Ended = append(e.Ended, r)
		return true
	})
	complete, other := 0, 0
	for i, r := range e.Ended {
		if r.End.completes() {
			complete++
		} else {
			other++
		}
		if complete == maxComplete || other == store.MaxSettle {
			out, e.Ended = e.Ended[:i+1:i+1], e.Ended[i+1:]
			return out
		}
	}
	out, e.Ended = e.Ended, nil
	return out
}

func (e *settler) requeue(out []*Run) {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	e.Ended = append(out, e.Ended...)
}

// Trip makes one round trip of settles.
func (e *settler) Trip(base context.Context, out []*Run) {
	ctx, cancel := context.WithTimeout(base, min(TripTimeout, e.Cfg.Lease/2))
	defer cancel()
	conn, err := e.Link.Get(ctx)
	if err != nil {
		e.requeue(out)
		e.Trouble.Failed(base, e.Shared, "settling", err)
		return
	}
	if out = e.reserve(ctx, conn, out); len(out) == 0 {
		return
	}
	out = e.oncePerJob(out)
	s := SettlingOf(out, 0)
	if !s.empty() {
		if err = conn.Settle(ctx, &s.Settlement); err == nil {
			failpoint("settled")
		}
	}
	if err != nil && !s.Committed && pg.RowsFault(err) {
		if pg.NotApplied(err) {
			unsent(out...)
		}
		err = e.settleApart(base, out)
	} else {
		e.AfterSettle(ctx, conn, out, s, err)
	}
	err, e.blind = cmp.Or(err, e.blind), nil
	if err != nil {
		e.Trouble.Failed(base, e.Shared, "settling", err)
		return
	}
	e.Trouble.Over(base, e.Shared)
	if len(e.passed) > 0 {
		ids := e.passed
		e.passed = nil
		if conn, err = e.Link.Get(ctx); err == nil {
			err = conn.Passed(ctx, store.PathSettle, ids)
		}
		if err != nil {
			e.passed = ids // the next round trip takes these jobs off the list
		}
	}
}

// oncePerJob keeps one outcome of each job, because store.SQLSettle returns its results by job id. If a job has a
// second outcome, of another claim, that outcome goes with the next round trip. Completions are not limited in this
// way.
func (e *settler) oncePerJob(out []*Run) []*Run {
	seen := map[string]bool{}
	return slices.DeleteFunc(out, func(r *Run) bool {
		if r.End.completes() {
			return false
		}
		twice := seen[r.ID]
		if seen[r.ID] = true; twice {
			e.later(r, 0)
		}
		return twice
	})
}

func (e *settler) asked() bool {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	return len(e.asks) > 0
}

// Settling has the outcomes that one round trip records, and the runs that it completes.
type Settling struct {
	store.Settlement
	completed [][]*Run // the runs of each completion
}

// FenceGroup has the values that all runs of one completion share.
type FenceGroup struct {
	Owner string
	Seq   int
	Del   bool
}

// SettlingOf makes one transaction of the outcomes: a completion for each FenceGroup of completed runs, and the changes
// of the other runs by owner.
func SettlingOf(out []*Run, bound time.Duration) *Settling {
	s := &Settling{Settlement: store.Settlement{Changes: map[string][]store.Change{}, Bound: bound, Became: map[string]store.State{}}}
	complete := map[FenceGroup][]*Run{}
	for _, r := range out {
		r.tries++
		switch {
		case r.txOutcome.Load() != nil:
			// AfterSettle looks whether the handler's transaction settled the run.
		case r.End.completes():
			key := FenceGroup{r.Owner, r.Seq, r.DeleteCompleted}
			complete[key] = append(complete[key], r)
		default:
			s.Changes[r.Owner] = append(s.Changes[r.Owner], r.End.Change(r))
		}
	}
	s.Completions = make([]store.Completion, 0, len(complete))
	for key, group := range complete {
		slices.SortFunc(group, func(a, b *Run) int { return strings.Compare(a.ID, b.ID) })
		s.Completions = append(s.Completions, key.Completion(group))
		s.completed = append(s.completed, group)
	}
	s.Committed = s.empty()
	return s
}

// empty reports whether there is no outcome to send.
func (s *Settling) empty() bool { return len(s.Completions)+len(s.Changes) == 0 }

// Completion returns the completion of the runs of a group.
func (g FenceGroup) Completion(group []*Run) store.Completion {
	c := store.Completion{Owner: g.Owner, Seq: g.Seq, Delete: g.Del, IDs: make([]string, len(group)), Which: make([]int32, len(group))}
	known := map[time.Time]int32{}
	for i, r := range group {
		at := r.ClaimedAt
		if known[at] == 0 {
			c.At = append(c.At, at)
			known[at] = int32(len(c.At)) //nolint:gosec // at most maxComplete
		}
		c.IDs[i], c.Which[i] = r.ID, known[at]
	}
	return c
}

// AfterSettle reports the runs that were settled, and looks at the rows of the runs that were not. If the settle was
// not committed, it keeps all runs for the next round trip.
func (e *settler) AfterSettle(ctx context.Context, conn store.Session, out []*Run, s *Settling, err error) {
	switch {
	case len(out) == 0:
		return
	case !s.Committed:
		if pg.NotApplied(err) {
			unsent(out...)
		}
		e.requeue(out)
		return
	}
	var unsure []*Run
	for i, group := range s.completed {
		if int(s.Completions[i].N) == len(group) {
			e.done(group...)
		} else {
			unsure = append(unsure, group...)
		}
	}
	for _, r := range out {
		switch {
		case r.txOutcome.Load() != nil:
			unsure = append(unsure, r)
		case r.End.completes():
		case s.Became[r.ID] != "":
			r.End.became(s.Became[r.ID])
			e.done(r)
		default:
			unsure = append(unsure, r)
		}
	}
	if len(unsure) > 0 {
		e.look(ctx, conn, unsure)
	}
}

// unsent takes back the count of a try that certainly changed no row.
func unsent(out ...*Run) {
	for _, r := range out {
		r.tries--
	}
}

// settleApart settles outcomes in parts, after the database has refused them together.
func (e *settler) settleApart(base context.Context, out []*Run) error {
	a, err := pickApart(pg.BisectFailed, out, func(part []*Run) (int, error) { return len(part), e.settlePart(base, part) }, (*Run).simplify)
	e.requeue(a.rest)
	for _, b := range a.refused {
		if err != nil && !pg.RowsFault(err) { // the server is away
			e.requeue([]*Run{b.item})
		} else if fault := e.Refused(base, b.item, b.err); fault != nil {
			err = fault
		}
	}
	return err
}

// settlePart settles some outcomes in one round trip. The server ends its statements after walkBound, so a slow row
// costs little time.
func (e *settler) settlePart(base context.Context, part []*Run) error {
	return e.roundTrip(base, &e.Link, func(ctx context.Context, conn store.Session) (err error) {
		s := SettlingOf(part, e.walkBound())
		if !s.empty() {
			err = conn.Settle(ctx, &s.Settlement)
		}
		if err != nil && !s.Committed {
			if pg.NotApplied(err) {
				unsent(part...)
			}
			return err
		}
		e.AfterSettle(ctx, conn, part, s, err)
		return nil
	})
}

// SettleTries is the number of refusals of a job's outcome after which drover_refuse may discard the job, whatever its
// handler returned.
const SettleTries = 5

// Refused puts aside an outcome that the database refuses, and tries it again later. A stop tries this outcome only once
// more; another supervisor then rescues the job. From the refusal number SettleTries on, drover_refuse discards the
// job, unless the refusal is a time-out, or no other outcome was recorded since the first refusal.
func (e *settler) Refused(base context.Context, r *Run, why error) (err error) {
	e.RefusedRuns.Add(r) // first: the audit reads Unsettled, and then RefusedRuns
	e.Unsettled.Remove(r)
	if r.Refusals++; r.Refusals == 1 {
		r.refusedAt = e.Now()
	}
	became := ""
	if r.Refusals >= SettleTries && !pg.TimedOut(why) && e.Worked.After(r.refusedAt) || r.Refusals == 1 {
		// After the first refusal the job is only listed in drover_set_aside, so that people see it.
		became, err = e.refuse(base, &e.Link, r, &store.Refused{Path: store.PathSettle, Why: why, Aside: r.Refusals == 1})
	}
	if err != nil || became == "" || became == store.SetAside { // "": the row is locked or has changed; the next try finds out which
		e.later(r, min(refusedPause<<min(r.Refusals-1, 10), mostRefusedPause))
		return err
	}
	e.gone(r)
	return nil
}

// look finds out why the settles of some runs matched no row. Perhaps an earlier try has settled the run, and its reply
// was lost, or the handler's transaction has settled it. Or an operator has ended the job, another session has locked
// its row, or the job is not ours any more.
func (e *settler) look(ctx context.Context, conn store.Session, unsure []*Run) {
	ids := make([]string, len(unsure))
	for i, r := range unsure {
		ids[i] = r.ID
	}
	seen, alive, err := conn.Look(ctx, ids)
	if err != nil {
		unsent(unsure...)
		e.requeue(unsure)
		e.blind = err
		return
	}
	for _, r := range unsure {
		if l := r.Lease; !alive[l.ID] && !l.Ended.Load() {
			l.Lose() // the keeper finds this out with the next beat
			e.beatSoon()
		}
		row, exists := seen[r.ID]
		switch r.found(row, exists) {
		case foundSettled:
			if row.LastClaimedBy(r.Fence) {
				r.End.became(row.State)
			}
			e.done(r)
		case foundInTx:
			if r.End.Class != "" {
				e.log.WarnContext(ctx, "handler failed after it had settled its job in a transaction, which stands",
					slog.Any("job", r), slog.String("error", r.End.Text))
			}
			r.endInTx()
			e.done(r)
		case foundNotCommitted:
			unsent(r)
			r.txSeenOpen = r.txOutcome.Swap(nil)
			if r.End.completes() { // the handler returned nil, but its commit failed. After an error, the outcome stays
				r.End, r.simpler, r.held = e.Handler.CutShort(r, r.notCommitted()), false, 0
			}
			e.requeue([]*Run{r})
		case foundHeld:
			unsent(r)
			if r.held++; r.held == mostHeld {
				e.log.WarnContext(ctx, "an outcome cannot be recorded yet, will be tried again: a transaction has locked the row of the job, or a trigger or row security blocks the update",
					slog.Any("job", r))
			}
			e.later(r, lockedPause)
		case foundEnded:
			r.endByOperator(row)
			e.done(r)
		case foundStale:
			e.gone(r)
			e.stale(r)
			if exists && !r.Lease.Ended.Load() {
				e.rewound() // other supervisors take no job while we have the lease, so the database may have gone back
			}
		}
	}
}

// stale reports a run whose outcome is not recorded. A run that has not started did not take place.
func (e *settler) stale(r *Run) {
	if !r.StartedAt.IsZero() || r.End.Event != EventReleased {
		e.report(EventStaleSettle, r)
	}
}

// later makes the settler try a run again after a pause.
func (e *settler) later(r *Run, pause time.Duration) {
	r.NotBefore = e.Now().Add(pause)
	e.Locked = append(e.Locked, r)
}

// gone forgets a run whose outcome is recorded, or whose job belongs to another supervisor now.
func (e *settler) gone(r *Run) {
	e.Worked = e.Now()
	e.Unsettled.Remove(r)
	if r.Refusals > 0 {
		e.RefusedRuns.Remove(r)
		e.passed = append(e.passed, r.ID)
	}
}

// done forgets settled runs, reports them to the subscribers, and wakes the parts that wait for them.
func (e *settler) done(runs ...*Run) {
	for _, r := range runs {
		e.gone(r)
		e.redriver.ended(r)
		if r.End.State == store.Retryable || r.End.State == store.Scheduled {
			e.dueAgain(r)
		}
		e.reportEnd(r)
	}
	if e.Solo.Load() != nil {
		e.alarm.poke() // the claimer may be waiting until the last run is settled
	}
}

// dueAgain makes the claimer look for the job of a run when the job is due again. If the supervisor is stopping and the
// job is due now, it notifies another supervisor.
func (e *settler) dueAgain(r *Run) {
	now := e.Now()
	due := r.End.due(now)
	e.alarm.NoteOwn(due)
	if e.Draining.Load() && !due.After(now) {
		e.calls.add(r.Queue, 0, now)
	}
}

// RetryLocked ends the pauses of the runs in Locked.
func (e *settler) RetryLocked() {
	for _, o := range e.Locked {
		o.NotBefore = time.Time{}
	}
}
