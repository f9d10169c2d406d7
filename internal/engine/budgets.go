package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// budgets takes slots of the retry budgets.
type budgets struct {
	*Shared
	scopes atomic.Pointer[[]string] // the scopes of all budgets
}

// know stores the scopes of all budgets, so that runs without a budget cost no statement.
func (b *budgets) know(scopes []string) { b.scopes.Store(&scopes) }

func (b *budgets) covers(r *Run) bool {
	scopes := b.scopes.Load()
	return scopes != nil && slices.ContainsFunc(*scopes, func(scope string) bool {
		return scope == store.ScopeAll || scope == store.KindScope(r.Kind) || scope == store.QueueScope(r.Queue)
	})
}

// wants reports whether an outcome of a run is a retry that needs a slot. An outcome also needs a new slot if the time
// of its old slot has passed and the settle has not succeeded. With the old slot, too many retries would run in a later
// period of the budget. An outcome that the handler's transaction recorded has its slot already.
func (b *budgets) wants(r *Run, o *Outcome) bool {
	if o.State != store.Retryable || o.AtOnce || r.txOutcome.Load() != nil || o.Slot != nil && b.Now().Sub(o.Slot.Taken) < o.Delay {
		return false
	}
	return b.covers(r)
}

// wanting is an outcome that may need a slot.
type wanting struct {
	run *Run
	end *Outcome
	store.WantedSlot
}

// Reserve takes a slot for each retry that needs one, in short transactions of its own. If the database refuses a
// reservation because of values of the job or of the budget, the retry takes no slot and waits for its own backoff.
// Reserve returns any other error.
func (b *budgets) Reserve(ctx context.Context, conn store.Session, ends []wanting) error {
	all := make([]wanting, 0, len(ends))
	for _, w := range ends {
		if !b.wants(w.run, w.end) {
			continue
		}
		w.WantedSlot = store.WantedSlot{Kind: w.run.Kind, Queue: w.run.Queue, Backoff: w.end.Delay}
		if w.end.Slot != nil {
			w.Backoff = w.end.Slot.Backoff
		}
		if w.run.TimeBound {
			w.Latest = new((w.run.TimeLeft - b.Now().Sub(w.run.Received)).Microseconds())
		}
		all = append(all, w)
	}
	if len(all) == 0 {
		return nil
	}
	// This puts retries of one budget next to each other, because a fault in a budget affects all of its retries.
	slices.SortStableFunc(all, func(a, b wanting) int {
		return cmp.Or(cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Kind, b.Kind))
	})
	without := func(w wanting, err error) error {
		w.end.Delay, w.end.Slot = w.Backoff, nil
		if b.seldom.Allow("reserve "+w.Queue+" "+w.Kind, b.Now()) {
			b.log.WarnContext(ctx, "retry goes without a slot of its budget", w.run.inLog(), slog.String("error", err.Error()))
		}
		return nil
	}
	tried := 0
	err := pg.Bisect(all, func(part []wanting) error {
		wanted := make([]store.WantedSlot, len(part))
		for i, w := range part {
			wanted[i] = w.WantedSlot
		}
		slots, err := conn.Reserve(ctx, wanted)
		if err != nil && (pg.TimedOut(err) || ctx.Err() != nil) {
			return errors.New("the calendar is held: " + err.Error()) // as text, so that Bisect blames no retry for it
		}
		if err != nil {
			return err
		}
		tried += len(part)
		for i, got := range slots {
			part[i].end.reserved(got, part[i].Backoff, b.Now())
		}
		return nil
	}, func(w wanting, err error) error {
		tried++
		return without(w, err)
	})
	if pg.RowsFault(err) { // no retry passed, and Bisect gave up
		for _, w := range all[tried:] {
			_ = without(w, err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("reserve retries: %w", err)
	}
	return nil
}

// reserved puts the retry off to its slot, or discards the job if there was no slot for it.
func (o *Outcome) reserved(got store.TakenSlot, backoff time.Duration, now time.Time) {
	switch {
	case got.Reason != "":
		o.Delay, o.Slot = 0, nil
		o.discard(got.Reason)
	case got.Budgeted:
		o.Delay, o.Slot = got.Delay, &BudgetSlot{backoff, now, got.DueUS}
	default: // the retry has no budget any more
		o.Delay, o.Slot = backoff, nil
	}
	var e store.ErrorEntry
	if json.Unmarshal(o.Entry, &e) != nil { // drover wrote the entry, so this cannot fail
		return
	}
	e.DelayMS = o.Delay.Milliseconds()
	if raw, err := json.Marshal(e); err == nil {
		o.Entry = raw
	}
}
