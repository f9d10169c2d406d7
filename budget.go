package drover

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// RetryBudget bounds how many retries are due in any time of a length, over all processes, so that many failures at
// once become a ramp. Zero means no budget: one that stands in the table drover_budgets, from another process or psql, stays.
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

func kindScope(kind string) string { return "kind:" + kind }

func queueScope(queue string) string { return "queue:" + queue }

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
