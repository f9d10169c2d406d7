package drover

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/drover-queue/drover/internal/store"
)

// RetryBudget bounds how many retries become due in any window of the length Per, over all processes. So many failures
// together turn into a steady flow of retries. The zero value sets no budget. A budget that another process or psql has
// stored in the table drover_budgets stays in force.
//
// A retry takes the first free slot at or after the end of its backoff. Postgres keeps a calendar of the slots, which
// are Per / Retries apart. A job uses one budget: its kind's, else its queue's, else the supervisor's for all. Every
// retry that waits for a backoff uses a slot, including RetryAfter and rescues with a backoff. A first crash, a snooze
// and a job that is handed back do not.
type RetryBudget struct {
	// Retries is how many retries may become due in any Per: 1 to 1,000,000, and at most one a microsecond.
	Retries int

	// Per is the length of the window, in whole milliseconds, 1 ms to 24 h. Zero means a minute.
	Per time.Duration

	// Burst is how many retries may become due in the same instant, at most Retries. A window may then hold Burst - 1
	// more. Zero means 1.
	Burst int

	// Discard discards a job, reason retry_budget, if there is no free slot within Per after its backoff. By default
	// the job waits for the next free slot, however far off. Then only its RetryUntil discards it, reason time_budget.
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

// reserved puts the retry off to its slot, or discards the job if there was no slot for it.
func (o *outcome) reserved(got store.TakenSlot, backoff time.Duration, now time.Time) {
	switch {
	case got.Reason != "":
		o.delay, o.slot = 0, nil
		o.discard(got.Reason)
	case got.Budgeted:
		o.delay, o.slot = got.Delay, &slot{backoff, now, got.DueUS}
	default: // its budget is gone
		o.delay, o.slot = backoff, nil
	}
	var e entry
	if json.Unmarshal(o.entry, &e) != nil { // drover wrote the entry, so this cannot fail
		return
	}
	e.DelayMS = o.delay.Milliseconds()
	if raw, err := json.Marshal(e); err == nil {
		o.entry = raw
	}
}

// due returns when the next run is due, by this process' clock.
func (o *outcome) due(now time.Time) time.Time {
	if o.slot != nil {
		now = o.slot.taken
	}
	return now.Add(o.delay)
}

// BudgetInfo is a retry budget from the table drover_budgets, and how much of it is free.
type BudgetInfo struct {
	Scope string // "kind:charge", "queue:payments" or "all"
	RetryBudget
	Reserved int       // how many retries are due in the Per that begins now
	Free     int       // how many more may become due in it
	NextFree time.Time // the first free slot
}

// RetryBudgets returns all retry budgets, sorted by scope.
func (c *Client) RetryBudgets(ctx context.Context) ([]BudgetInfo, error) {
	budgets, err := c.desk.budgets(ctx)
	if err != nil {
		return nil, fmt.Errorf("read retry budgets: %w", err)
	}
	return budgets, nil
}
