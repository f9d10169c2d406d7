package drover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// budgetPolicies are this supervisor's budgets, sorted by scope: two that start at once must not deadlock.
func (s *Supervisor) budgetPolicies(queues []*queueState) (policies []store.BudgetPolicy) {
	add := func(scope string, b RetryBudget) {
		if b.Retries > 0 {
			policies = append(policies, store.BudgetPolicy{Scope: scope, Retries: b.Retries, Per: b.Per, Burst: b.Burst, Discard: b.Discard})
		}
	}
	add(scopeAll, s.cfg.RetryBudget)
	for _, kind := range s.kinds { // sorted, as the queues are
		add(kindScope(kind), s.workers[kind].opts.RetryBudget)
	}
	for _, q := range queues {
		add(queueScope(q.Name), q.RetryBudget)
	}
	return policies
}

// knowBudgets remembers which budgets there are, so that a queue without one asks the database nothing.
func (s *Supervisor) knowBudgets(scopes []string) { s.budgets.Store(&scopes) }

func (s *Supervisor) budgeted(j *Job) bool {
	scopes := s.budgets.Load()
	return scopes != nil && slices.ContainsFunc(*scopes, func(scope string) bool {
		return scope == scopeAll || scope == kindScope(j.Kind) || scope == queueScope(j.Queue)
	})
}

// slot is a retry's place in its budget's calendar.
type slot struct {
	backoff time.Duration // what the strategy asked for
	taken   time.Time     // when, by this process' clock
	dueUS   int64         // microseconds since 1970 by the server's clock, which goes back to it unread
}

// wantsSlot reports whether the outcome is a retry that needs a slot. A slot whose time has passed while the settle
// did not get through is lost: to use it late would break the window that it is late in. What the handler's
// transaction settled, as far as is known, has one.
func (s *Supervisor) wantsSlot(o *outcome) bool {
	if o.state != Retryable || o.now || o.run.txOutcome.Load() != nil || o.slot != nil && s.now().Sub(o.slot.taken) < o.delay {
		return false
	}
	return s.budgeted(o.run.job)
}

// wanting is an outcome that needs a slot.
type wanting struct {
	o *outcome
	store.WantedSlot
}

// reserve takes a slot for each retry that needs one, in short transactions of its own. If a reservation fails
// because of the numbers of its job or of its budget, that retry goes without a slot, by its own backoff. Any other
// error is returned.
func (s *Supervisor) reserve(ctx context.Context, conn store.Session, outcomes []*outcome) error {
	all := make([]wanting, 0, len(outcomes))
	for _, o := range outcomes {
		if !s.wantsSlot(o) {
			continue
		}
		w := wanting{o: o, WantedSlot: store.WantedSlot{Kind: o.run.job.Kind, Queue: o.run.job.Queue, Backoff: o.delay}}
		if o.slot != nil {
			w.Backoff = o.slot.backoff
		}
		if o.run.timeBound {
			left := (o.run.timeLeft - s.now().Sub(o.run.claimedAt)).Microseconds()
			w.Latest = &left
		}
		all = append(all, w)
	}
	if len(all) == 0 {
		return nil
	}
	// Retries of one budget are put next to each other: a fault in a budget concerns all of its retries.
	slices.SortStableFunc(all, func(a, b wanting) int {
		return cmp.Or(cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Kind, b.Kind))
	})
	without := func(w wanting, err error) error {
		w.o.delay, w.o.slot = w.Backoff, nil
		if s.quiet.may("reserve "+w.Queue+" "+w.Kind, s.now()) {
			s.log.WarnContext(ctx, "retry goes without a slot of its budget", slog.Any("job", w.o.run.job), slog.String("error", err.Error()))
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
			part[i].o.reserved(got, part[i].Backoff, s.now())
		}
		return nil
	}, func(w wanting, err error) error {
		tried++
		return without(w, err)
	})
	if pg.RowsFault(err) { // all of them failed
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

// ask is a run that settles in its handler's transaction and needs a slot of a retry budget first. The handler's
// transaction must not hold what every failing batch wants, and it may hold the pool's last connection.
type ask struct {
	o    *outcome
	done chan error
}

// slotFor takes a slot for the outcome by the settler's connection.
func (e *settler) slotFor(ctx context.Context, o *outcome) error {
	if !e.sup.wantsSlot(o) {
		return nil
	}
	a := &ask{o, make(chan error, 1)}
	e.mu.Lock()
	e.asks = append(e.asks, a)
	e.mu.Unlock()
	e.poke()
	select {
	case err := <-a.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-e.idle:
		return ErrShutdown
	}
}

// reservePause is before a reservation is tried again that the database refused.
const reservePause = time.Second

// reserve takes the slots that retries and asks need. It returns the outcomes that can be settled: if it fails, those
// that need none.
func (e *settler) reserve(ctx context.Context, conn store.Session, out []*outcome) []*outcome {
	e.mu.Lock()
	asks := e.asks
	e.asks = nil
	e.mu.Unlock()
	var wanting []*outcome
	for _, a := range asks {
		wanting = append(wanting, a.o)
	}
	for _, o := range out {
		if e.sup.wantsSlot(o) {
			wanting = append(wanting, o)
		}
	}
	err := e.sup.reserve(ctx, conn, wanting)
	for _, a := range asks {
		a.done <- err
	}
	if err == nil {
		e.slots.over(ctx, e.shared)
		return out
	}
	e.slots.failed(ctx, e.shared, "taking slots of retry budgets", err)
	return slices.DeleteFunc(out, func(o *outcome) bool {
		if !e.sup.wantsSlot(o) {
			return false
		}
		e.later(o, reservePause)
		return true
	})
}
