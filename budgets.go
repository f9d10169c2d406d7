package drover

import (
	"context"
	"strings"
	"time"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
	"github.com/jackc/pgx/v5"
)

// RetryBudget bounds how many retries become due in any window of the length Per, over all processes. This turns many
// failures into a steady flow of retries. The zero value sets no budget, and leaves a budget in force that another
// process or psql has stored in the table drover_budgets.
//
// A retry takes the first free slot at or after the end of its backoff. Postgres keeps a calendar of the slots, which
// are Per / Retries apart. A job uses one budget: its kind's, otherwise its queue's, otherwise the supervisor's for all
// jobs. Every retry that waits for a backoff uses a slot, including RetryAfter and rescues with a backoff. A first
// crash, a snooze and a job that is handed back use no slot.
type RetryBudget struct {
	// Retries is how many retries may become due in any window: 1 to 1,000,000, and at most one a microsecond.
	Retries int

	// Per is the length of the window, in whole milliseconds, 1 ms to 24 h. Zero means a minute.
	Per time.Duration

	// Burst is how many retries may become due in the same instant, at most Retries. So a window may hold more than
	// Retries, by up to Burst - 1. Zero means 1.
	Burst int

	// Discard discards a job, reason retry_budget, if there is no free slot within Per after its backoff. By default
	// the job waits for the next free slot, however far off. While it waits, only its RetryUntil discards it, reason
	// time_budget.
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

// Scope names the jobs that a limit is for: "all", "queue:NAME" or "kind:NAME". It has the same form in SQL and on the
// command line. A kind's scope has the jobs of that kind in every queue. A name has 1 to 128 bytes, as in EnqueueOpts.
// There is no default: the zero value is an *InvalidError.
type Scope string

// AllJobs is the scope of all jobs.
const AllJobs Scope = store.ScopeAll

// QueueScope returns the scope of a queue's jobs.
func QueueScope(name string) Scope { return Scope(store.QueueScope(name)) }

// KindScope returns the scope of a kind's jobs.
func KindScope(kind string) Scope { return Scope(store.KindScope(kind)) }

// check refuses the scopes that drover_check_scope refuses.
func (s Scope) check(bad *problems) {
	if s == AllJobs {
		return
	}
	what, name, _ := strings.Cut(string(s), ":")
	if what != "queue" && what != "kind" || name == "" {
		bad.add("scope", "%.150q is not all, queue:NAME or kind:NAME", string(s))
		return
	}
	bad.join(checkName("scope", name))
}

// BudgetInfo is a retry budget from the table drover_budgets, and how much of it is free.
type BudgetInfo struct {
	Scope Scope // "kind:charge", "queue:payments" or "all"
	RetryBudget
	Reserved int       // how many retries are due in the window of the length Per that begins now
	Free     int       // how many more retries may become due in that window
	NextFree time.Time // the first free slot
}

// RetryBudgets returns all retry budgets, sorted by scope.
func (c *Client) RetryBudgets(ctx context.Context) ([]BudgetInfo, error) {
	budgets, err := pg.ReadAll(ctx, c.desk.pool, func(row pgx.CollectableRow) (b BudgetInfo, err error) {
		var per float64
		err = row.Scan(&b.Scope, &b.Retries, &per, &b.Burst, &b.Discard, &b.Reserved, &b.Free, &b.NextFree)
		b.Per = pg.Seconds(per).Truncate(time.Millisecond)
		return b, err
	}, sqlBudgets)
	return budgets, doing(err, "read retry budgets")
}

const sqlBudgets = `
select scope, retries, extract(epoch from per)::float8, burst, mode = 'discard', reserved, free, next_free from retry_budgets order by scope`
