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
	MaxWaiting  = maxComplete // if more outcomes wait than this, claims pause: see overloaded
	LastSettle  = time.Second // how long a stop waits for the last outcomes; bounded, because the database may be away

	lockedPause      = 100 * time.Millisecond // the pause before an outcome whose row is locked is tried again
	mostHeld         = 50                     // after this many of these tries, the settler logs a line
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
	Worked  time.Time // when the settler last recorded or gave up a run
	passed  []string  // refused jobs with which we are done now, so they leave the list of set-aside jobs
	Trouble Trouble
	blind   error   // why the look at unsettled rows failed in the last round trip
	noting  Trouble // failures to record starts, which must not hold up the settles
	slots   Trouble // failures to take slots of retry budgets
}

func newSettler(shared *Shared, b *budgets, r *redriver) *settler {
	s := &settler{
		Shared: shared, budgets: b, redriver: r, signal: newSignal(), Idle: make(chan struct{}), Link: store.NewLine(shared.pool),
		noting: Trouble{means: "jobs with a single attempt do not start", vital: true}, slots: Trouble{means: "retries wait for their budgets", vital: true},
	}
	s.Trouble = Trouble{means: "outcomes wait in memory", vital: true, link: &s.Link}
	return s
}

// Settle takes over a run that has ended. It does not block.
func (s *settler) Settle(r *Run) {
	s.Mu.Lock()
	s.Ended = append(s.Ended, r)
	s.Mu.Unlock()
	s.signal.poke()
}

// run settles until claiming has ended and Unsettled is empty, or until ctx is done. The channel claimed is closed when
// claiming has ended. In the end, run reports the runs whose outcomes were never recorded.
func (s *settler) run(ctx context.Context, claimed <-chan struct{}) {
	defer s.Link.Close(ctx)
	defer close(s.Idle)
	defer s.unrecorded()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ended := false; ctx.Err() == nil; {
		now := s.Now()
		if s.NoteStarts(ctx, now) {
			continue
		}
		out := s.Take(now)
		rest := time.Hour
		switch {
		case now.Before(s.Trouble.Until):
			s.requeue(out)
			rest = s.Trouble.Until.Sub(now)
		case len(out) > 0 || s.asked():
			s.Trip(ctx, out)
			continue
		case ended && s.Unsettled.Len() == 0:
			s.tryRefused(ctx)
			return
		}
		if wait := s.noting.Until.Sub(now); wait > 0 {
			rest = min(rest, wait)
		}
		for _, r := range s.Locked {
			rest = min(rest, r.NotBefore.Sub(now))
		}
		timer.Reset(max(rest, 0))
		select {
		case <-timer.C:
		case <-s.signal:
		case <-claimed:
			ended, claimed = true, nil
		case <-ctx.Done():
		}
	}
}

// tryRefused makes a last try to record the outcomes that the database has refused, before the supervisor stops. It
// takes at most LastSettle.
func (s *settler) tryRefused(base context.Context) {
	if len(s.Locked) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(base, LastSettle)
	defer cancel()
	s.RetryLocked()
	s.Trip(ctx, s.Take(s.Now()))
}

// unrecorded reports the end of each run whose outcome the settler still has.
func (s *settler) unrecorded() {
	s.Mu.Lock()
	left := slices.Concat(s.Ended, s.Locked)
	s.Mu.Unlock()
	for _, r := range left {
		s.stale(r)
	}
}

// overloaded reports whether claims should pause because too many outcomes wait. Otherwise a process with very short
// handlers would claim and run far more jobs than it can settle. If it died, these jobs would run again. Their rows
// would also be in the way of other processes' claims.
func (s *settler) overloaded() bool {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return len(s.Ended)+s.RefusedRuns.Len() > MaxWaiting
}

// Take returns the runs whose outcomes go into the next round trip.
func (s *settler) Take(now time.Time) (out []*Run) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if len(s.Ended) > MaxWaiting {
		defer func() {
			if len(s.Ended) <= MaxWaiting {
				s.alarm.Wake()
			}
		}()
	}
	s.Locked = slices.DeleteFunc(s.Locked, func(r *Run) bool {
		if now.Before(r.NotBefore) {
			return false
		}
		s.Ended = append(s.Ended, r)
		return true
	})
	complete, other := 0, 0
	for i, r := range s.Ended {
		if r.End.completes() {
			complete++
		} else {
			other++
		}
		if complete == maxComplete || other == store.MaxSettle {
			out, s.Ended = s.Ended[:i+1:i+1], s.Ended[i+1:]
			return out
		}
	}
	out, s.Ended = s.Ended, nil
	return out
}

func (s *settler) requeue(out []*Run) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.Ended = append(out, s.Ended...)
}

// Trip makes one round trip of settles.
func (s *settler) Trip(base context.Context, out []*Run) {
	ctx, cancel := context.WithTimeout(base, min(TripTimeout, s.Cfg.Lease/2))
	defer cancel()
	conn, err := s.Link.Get(ctx)
	if err != nil {
		s.requeue(out)
		s.Trouble.Failed(base, s.Shared, "settling", err)
		return
	}
	if out = s.reserve(ctx, conn, out); len(out) == 0 {
		return
	}
	out = s.oncePerJob(out)
	trip := SettlingOf(out, 0)
	if !trip.empty() {
		if err = conn.Settle(ctx, &trip.Settlement); err == nil {
			failpoint("settled")
		}
	}
	if err != nil && !trip.Committed && pg.RowsFault(err) {
		if pg.NotApplied(err) {
			unsent(out...)
		}
		err = s.settleApart(base, out)
	} else {
		s.AfterSettle(ctx, conn, out, trip, err)
	}
	err, s.blind = cmp.Or(err, s.blind), nil
	if err != nil {
		s.Trouble.Failed(base, s.Shared, "settling", err)
		return
	}
	s.Trouble.Over(base, s.Shared)
	if len(s.passed) > 0 {
		ids := s.passed
		s.passed = nil
		if conn, err = s.Link.Get(ctx); err == nil {
			err = conn.Passed(ctx, store.PathSettle, ids)
		}
		if err != nil {
			s.passed = ids // the next round trip takes these jobs off the list
		}
	}
}

// oncePerJob keeps one outcome of each job, because store.SQLSettle returns its results by job id. If a job has a
// second outcome, of another claim, that outcome goes with the next round trip. Completions are not limited in this
// way.
func (s *settler) oncePerJob(out []*Run) []*Run {
	seen := map[string]bool{}
	return slices.DeleteFunc(out, func(r *Run) bool {
		if r.End.completes() {
			return false
		}
		twice := seen[r.ID]
		if seen[r.ID] = true; twice {
			s.tryLater(r, 0)
		}
		return twice
	})
}

func (s *settler) asked() bool {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return len(s.asks) > 0
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
func (s *settler) AfterSettle(ctx context.Context, conn store.Session, out []*Run, trip *Settling, err error) {
	switch {
	case len(out) == 0:
		return
	case !trip.Committed:
		if pg.NotApplied(err) {
			unsent(out...)
		}
		s.requeue(out)
		return
	}
	var unsure []*Run
	for i, group := range trip.completed {
		if int(trip.Completions[i].N) == len(group) {
			s.done(group...)
		} else {
			unsure = append(unsure, group...)
		}
	}
	for _, r := range out {
		switch {
		case r.txOutcome.Load() != nil:
			unsure = append(unsure, r)
		case r.End.completes():
		case trip.Became[r.ID] != "":
			r.End.became(trip.Became[r.ID])
			s.done(r)
		default:
			unsure = append(unsure, r)
		}
	}
	if len(unsure) > 0 {
		s.look(ctx, conn, unsure)
	}
}

// unsent takes back the count of a try that certainly changed no row.
func unsent(out ...*Run) {
	for _, r := range out {
		r.tries--
	}
}

// settleApart settles outcomes in parts, after the database has refused them together.
func (s *settler) settleApart(base context.Context, out []*Run) error {
	if err := s.tableOpen(base, &s.Link); err != nil {
		s.requeue(out)
		return err
	}
	a, err := pickApart(pg.BisectFailed, out, func(part []*Run) (int, error) { return len(part), s.settlePart(base, part) }, (*Run).simplify)
	s.requeue(a.rest)
	for _, b := range a.refused {
		if err != nil && !pg.RowsFault(err) { // the server is away, so the job cannot be put aside now
			s.requeue([]*Run{b.item})
		} else if fault := s.Refused(base, b.item, b.err); fault != nil {
			err = fault
		}
	}
	return err
}

// settlePart settles some outcomes in one round trip. The server ends its statements after walkBound, so a slow row
// costs little time.
func (s *settler) settlePart(base context.Context, part []*Run) error {
	return s.roundTrip(base, &s.Link, func(ctx context.Context, conn store.Session) (err error) {
		trip := SettlingOf(part, s.walkBound())
		if !trip.empty() {
			err = conn.Settle(ctx, &trip.Settlement)
		}
		if err != nil && !trip.Committed {
			if pg.NotApplied(err) {
				unsent(part...)
			}
			return err
		}
		s.AfterSettle(ctx, conn, part, trip, err)
		return nil
	})
}

// SettleTries is the number of refusals of a job's outcome after which drover_refuse may discard the job, whatever its
// handler returned.
const SettleTries = 5

// Refused puts aside an outcome that the database refuses, and tries it again later. When the supervisor stops, it
// tries the outcome once more (tryRefused). If that fails, another supervisor rescues the job. After SettleTries
// refusals, drover_refuse discards the job, unless the last refusal is a time-out, or no other outcome was recorded
// since the first refusal.
func (s *settler) Refused(base context.Context, r *Run, why error) (err error) {
	s.RefusedRuns.Add(r) // first: the audit reads Unsettled and then RefusedRuns, and has to find the run in one of them
	s.Unsettled.Remove(r)
	if r.Refusals++; r.Refusals == 1 {
		r.refusedAt = s.Now()
	}
	became := ""
	if r.Refusals >= SettleTries && !pg.TimedOut(why) && s.Worked.After(r.refusedAt) || r.Refusals == 1 {
		// After the first refusal the job is only listed in drover_set_aside, so that people see it.
		became, err = s.refuse(base, &s.Link, r, &store.Refused{Path: store.PathSettle, Why: why, Aside: r.Refusals == 1})
	}
	if err != nil || became == "" || became == store.SetAside { // "": the row is locked or has changed; the next try finds out which
		s.tryLater(r, min(refusedPause<<min(r.Refusals-1, 10), mostRefusedPause))
		return err
	}
	s.forget(r)
	return nil
}

// look finds out what became of runs whose settles may have matched no row: a completion returns only how many of its
// runs matched. Perhaps an earlier try has settled the run, and its reply was lost, or the handler's transaction has
// settled it. Or an operator has ended the job, another session has locked its row, or the job is not ours any more.
func (s *settler) look(ctx context.Context, conn store.Session, unsure []*Run) {
	ids := make([]string, len(unsure))
	for i, r := range unsure {
		ids[i] = r.ID
	}
	seen, alive, err := conn.Look(ctx, ids)
	if err != nil {
		unsent(unsure...)
		s.requeue(unsure)
		s.blind = err
		return
	}
	for _, r := range unsure {
		if l := r.Lease; !alive[l.ID] && !l.Ended.Load() {
			l.Lose() // the keeper finds this out with the next beat
			s.beatSoon()
		}
		row, exists := seen[r.ID]
		switch r.found(row, exists) {
		case foundSettled:
			if row.LastClaimedBy(r.Fence) {
				r.End.became(row.State)
			}
			s.done(r)
		case foundInTx:
			if r.End.Class != "" {
				s.log.WarnContext(ctx, "handler failed after it had settled its job in a transaction, which stands",
					r.inLog(), slog.String("error", r.End.Text))
			}
			r.endInTx()
			s.done(r)
		case foundNotCommitted:
			unsent(r)
			r.txSeenOpen = r.txOutcome.Swap(nil)
			if r.End.completes() { // the handler returned nil, but its transaction has not committed. If the handler returned an error, its outcome stays
				r.End, r.simpler, r.held = s.Handler.CutShort(r, r.notCommitted()), false, 0
			}
			s.requeue([]*Run{r})
		case foundHeld:
			unsent(r)
			if r.held++; r.held == mostHeld {
				s.log.WarnContext(ctx, "an outcome cannot be recorded yet, will be tried again: a transaction has locked the row of the job, or a trigger or row security blocks the update",
					r.inLog())
			}
			s.tryLater(r, lockedPause)
		case foundEnded:
			r.endByOperator(row)
			s.done(r)
		case foundStale:
			s.forget(r)
			s.stale(r)
			if exists && !r.Lease.Ended.Load() {
				s.rewound() // other supervisors take no job while we have the lease, so the database may have gone back
			}
		}
	}
}

// stale reports a run whose outcome is not recorded. It reports nothing if the job had not started and was only
// released.
func (s *settler) stale(r *Run) {
	if !r.StartedAt.IsZero() || r.End.Event != EventReleased {
		s.report(EventStaleSettle, r)
	}
}

// tryLater makes the settler try a run again after a pause.
func (s *settler) tryLater(r *Run, pause time.Duration) {
	r.NotBefore = s.Now().Add(pause)
	s.Locked = append(s.Locked, r)
}

// forget takes a run off the lists of unsettled runs, because its job is settled, or discarded by drover_refuse, or not
// ours any more.
func (s *settler) forget(r *Run) {
	s.Worked = s.Now()
	s.Unsettled.Remove(r)
	if r.Refusals > 0 {
		s.RefusedRuns.Remove(r)
		s.passed = append(s.passed, r.ID)
	}
}

// done forgets settled runs, reports them to the subscribers, and wakes the parts that wait for them.
func (s *settler) done(runs ...*Run) {
	for _, r := range runs {
		s.forget(r)
		s.redriver.ended(r)
		if r.End.State == store.Retryable || r.End.State == store.Scheduled {
			s.dueAgain(r)
		}
		s.reportEnd(r)
	}
	if s.Solo.Load() != nil {
		s.alarm.poke() // the claimer may be waiting until the last run is settled
	}
}

// dueAgain makes the claimer look for the job of a run when the job is due again. If the supervisor is stopping and the
// job is due now, it notifies another supervisor.
func (s *settler) dueAgain(r *Run) {
	now := s.Now()
	due := r.End.due(now)
	s.alarm.NoteOwn(due)
	if s.Draining.Load() && !due.After(now) {
		s.calls.add(r.Queue, 0, now)
	}
}

// RetryLocked ends the pauses of the runs in Locked.
func (s *settler) RetryLocked() {
	for _, o := range s.Locked {
		o.NotBefore = time.Time{}
	}
}
