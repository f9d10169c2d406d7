package engine

import (
	"context"
	"slices"
	"time"

	"github.com/drover-queue/drover/internal/store"
)

// follower reads the limits (pauses) and applies them to this supervisor. The keeper's goroutine owns it.
//
// A pause is exact because each supervisor confirms the changes that it has applied. It confirms a pause only when no
// job of the paused scope can start any more. For this the follower replaces the holds (the paused scopes) under the
// lock that every start takes (Shared.begin), and hands back the buffered jobs of these scopes. A claim that is under
// way hands back such jobs as well. A process that does not answer starts no job once its lease has ended by that
// process' clock. So Client.Pause waits until each supervisor has confirmed, or its lease has ended.
type follower struct {
	*Shared
	claimer   *claimer
	Stale     bool      // the limits have changed since the last look, or may have
	stamp     string    // the stamp of the limits that we read last: a text that differs after each change of the limits
	number    int64     // the number of the newest change of these limits
	confirmed int64     // the number that we have confirmed in our row
	Next      time.Time // when to read the limits again: when the first hold ends, or after a failed read; zero: no such time
	known     map[string]bool
}

// confirmAgain makes the next look confirm the limits again. It is called when we have a new id, or renew a lease that
// had ended.
func (f *follower) confirmAgain() { f.Stale, f.confirmed = true, 0 }

// Due reports whether the limits must be read now.
func (f *follower) Due(now time.Time) bool {
	return f.Stale || !f.Next.IsZero() && !now.Before(f.Next)
}

// Follow reads the limits if they may have changed, applies them, and then confirms that it has applied them. If the
// database does not answer, the keeper calls Follow again: after readLimitsEvery, or with the next heartbeat.
func (f *follower) Follow(ctx context.Context, conn store.Session, id string) error {
	if !f.Due(f.Now()) && f.confirmed == f.number {
		return nil
	}
	limits, err := conn.Limits(ctx)
	if err != nil {
		return err
	}
	now := f.Now()
	f.Stale, f.stamp, f.number, f.Next = false, limits.Stamp, limits.Number, time.Time{}
	for _, l := range limits.Rows {
		if end := now.Add(l.Left); l.Held && l.Left > 0 && (f.Next.IsZero() || end.Before(f.Next)) {
			f.Next = end
		}
	}
	f.hold(newHolds(limits.Rows, f.Kinds))
	f.reportChanges(limits.Rows, id)
	if f.confirmed == f.number {
		return nil
	}
	if err := conn.Followed(ctx, id, f.number); err != nil {
		return err
	}
	f.confirmed = f.number
	return nil
}

// hold keeps the jobs of the scopes in h from starting. When it returns, no such job can start.
func (f *follower) hold(h *holds) {
	was := f.holds.Load()
	if was.same(h) {
		return
	}
	f.replaceHolds(h)
	for _, q := range f.QueueStates() {
		held := q.Buffer.Pick(func(r *Run) bool { return h.holdsJob(r.Queue, r.Kind) })
		f.claimer.runner.releaseAll(held)
	}
	if was.frees(h) {
		f.claimer.resetFloors() // floors may have passed jobs of a held kind; in a held queue they do not move
		return
	}
	f.alarm.Wake()
}

// reportChanges emits an event for each scope that was not held at the last look and is held now, and for each scope
// that is not held any more.
func (f *follower) reportChanges(limits []store.Limit, supervisor string) {
	held := map[string]bool{}
	for scope := range f.known {
		if !slices.ContainsFunc(limits, func(l store.Limit) bool { return l.Scope == scope }) {
			limits = append(limits, store.Limit{Scope: scope}) // somebody has deleted the limit's row by hand
		}
	}
	for _, l := range limits {
		e := Event{Kind: EventPaused, Scope: l.Scope, By: l.By, Why: l.Why, Supervisor: supervisor}
		switch known := f.known[l.Scope]; {
		case l.Held:
			held[l.Scope] = true
			if known {
				continue
			}
		case known:
			e.Kind = EventResumed
		default:
			continue
		}
		f.Reporter.add(&e)
	}
	f.known = held
}

// heard makes the next look read the limits if the given stamp differs from the stamp that we know.
func (f *follower) heard(stamp string) { f.Stale = f.Stale || stamp != f.stamp }

// readLimitsEvery is the pause between tries to read the limits while the database does not answer.
const readLimitsEvery = time.Second

// retryLater makes the next try come after a pause, because the last try failed.
func (f *follower) retryLater(now time.Time) { f.Stale, f.Next = true, now.Add(readLimitsEvery) }
