package drover

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// RetryBudget bounds how many retries are due in any time of a length, over all processes, so that many failures at
// once become a ramp. Zero means no budget: one that stands in the table budgets, from another process or psql, stays.
//
// A retry takes the first free slot at or after its backoff in a calendar that Postgres keeps: slots are Per / Retries
// apart. A job spends from one budget: its kind's, else its queue's, else the supervisor's for all. What waits for
// its backoff spends, RetryAfter and a rescue with a backoff included; a first crash, Snooze and jobs handed back do not.
type RetryBudget struct {
	// Retries is how many may be due in any Per: 1 to 1,000,000, and at most one a microsecond.
	Retries int

	// Per is the length of the window, in whole milliseconds, 1 ms to 24 h. Zero means a minute.
	Per time.Duration

	// Burst is how many may be due in the same instant, at most Retries. A window may then hold Burst - 1 more. Zero
	// means 1.
	Burst int

	// Discard discards a job, reason retry_budget, if the Per after its backoff has no free slot. By default it
	// waits for the next one, however far off; only its RetryUntil discards it then, reason time_budget.
	Discard bool
}

func (b *RetryBudget) fillIn(bad *problems, field string) {
	if *b == (RetryBudget{}) {
		return
	}
	if b.Per == 0 {
		b.Per = time.Minute
	}
	if b.Per < time.Millisecond || b.Per > 24*time.Hour || b.Per%time.Millisecond != 0 {
		bad.add(field+".Per", "%v is not 1 ms to 24 h in whole milliseconds", b.Per)
	} else if b.Retries < 1 || b.Retries > 1_000_000 || int64(b.Retries) > b.Per.Microseconds() {
		bad.add(field+".Retries", "%d is not 1 to 1,000,000, or more than one a microsecond", b.Retries)
	}
	if b.Burst == 0 {
		b.Burst = 1
	}
	if b.Burst < 0 || b.Burst > max(b.Retries, 1) {
		bad.add(field+".Burst", "%d is not 1 to Retries", b.Burst)
	}
}

// The scopes of budgets, as in the table.
const scopeAll = "all"

func kindScope(kind string) string   { return "kind:" + kind }
func queueScope(queue string) string { return "queue:" + queue }

// budgetPolicy is a row of budgets.
type budgetPolicy struct {
	scope string
	RetryBudget
}

// budgetPolicies are this supervisor's budgets, sorted by scope: two that start at once must not deadlock.
func (s *Supervisor) budgetPolicies(queues []*queueState) (policies []budgetPolicy) {
	add := func(scope string, b RetryBudget) {
		if b.Retries > 0 {
			policies = append(policies, budgetPolicy{scope, b})
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

// reserve takes a slot for each retry that needs one, in short transactions of its own. If a reservation fails
// because of the numbers of its job or of its budget, that retry goes without a slot, by its own backoff. Any other
// error is returned.
func (s *Supervisor) reserve(ctx context.Context, conn *pgx.Conn, outcomes []*outcome) error {
	wanting := make([]wantedSlot, 0, len(outcomes))
	for _, o := range outcomes {
		if !s.wantsSlot(o) {
			continue
		}
		w := wantedSlot{o: o, backoff: o.delay}
		if o.slot != nil {
			w.backoff = o.slot.backoff
		}
		if o.run.timeBound {
			left := (o.run.timeLeft - s.now().Sub(o.run.claimedAt)).Microseconds()
			w.latest = &left
		}
		wanting = append(wanting, w)
	}
	if len(wanting) == 0 {
		return nil
	}
	// Retries of one budget are put next to each other: a fault in a budget concerns all of its retries.
	slices.SortStableFunc(wanting, func(a, b wantedSlot) int {
		return cmp.Or(cmp.Compare(a.o.run.job.Queue, b.o.run.job.Queue), cmp.Compare(a.o.run.job.Kind, b.o.run.job.Kind))
	})
	without := func(w wantedSlot, err error) error {
		w.o.delay, w.o.slot = w.backoff, nil
		if s.quiet.may("reserve "+w.o.run.job.Queue+" "+w.o.run.job.Kind, s.now()) {
			s.log.WarnContext(ctx, "retry goes without a slot of its budget", slog.Any("job", w.o.run.job), slog.String("error", err.Error()))
		}
		return nil
	}
	tried := 0
	err := isolate(wanting, func(part []wantedSlot) error {
		slots, err := s.client.store.reserve(ctx, conn, part)
		if err != nil && (timedOut(err) || ctx.Err() != nil) {
			return errors.New("the calendar is held: " + err.Error()) // as text, so that isolate blames no retry for it
		}
		if err != nil {
			return err
		}
		tried += len(part)
		for i, got := range slots {
			part[i].o.reserved(got, part[i].backoff, s.now())
		}
		return nil
	}, func(w wantedSlot, err error) error {
		tried++
		return without(w, err)
	})
	if rowsFault(err) { // all of them failed
		for _, w := range wanting[tried:] {
			_ = without(w, err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("reserve retries: %w", err)
	}
	return nil
}

// reserved puts the retry off to its slot, or discards it if there was none for it.
func (o *outcome) reserved(got takenSlot, backoff time.Duration, now time.Time) {
	switch {
	case got.reason != "":
		o.delay, o.slot = 0, nil
		o.discard(got.reason)
	case got.budgeted:
		o.delay, o.slot = got.delay, &slot{backoff, now, got.dueUS}
	default: // its budget is gone
		o.delay, o.slot = backoff, nil
	}
	var e entry
	if json.Unmarshal(o.entry, &e) != nil { // ours: cannot fail
		return
	}
	e.DelayMS = o.delay.Milliseconds()
	if raw, err := json.Marshal(e); err == nil {
		o.entry = raw
	}
}

// due is when the next run is due, by this process' clock.
func (o *outcome) due(now time.Time) time.Time {
	if o.slot != nil {
		now = o.slot.taken
	}
	return now.Add(o.delay)
}

// BudgetInfo is a retry budget as it stands in the table, and what is left of it.
type BudgetInfo struct {
	Scope string // "kind:charge", "queue:payments" or "all"
	RetryBudget
	Reserved int       // retries due in the Per that begins now
	Free     int       // that may still become due in it
	NextFree time.Time // the first free slot
}

// RetryBudgets reads all retry budgets, by scope.
func (c *Client) RetryBudgets(ctx context.Context) ([]BudgetInfo, error) {
	budgets, err := c.store.budgets(ctx)
	if err != nil {
		return nil, fmt.Errorf("read retry budgets: %w", err)
	}
	return budgets, nil
}
