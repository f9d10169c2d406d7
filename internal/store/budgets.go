package store

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/pg"
)

// This file is about retry budgets: their policies, and the slots that retries take.

// BudgetPolicy is a row of drover_budgets.
type BudgetPolicy struct {
	Scope          string
	Retries, Burst int
	Per            time.Duration
	Discard        bool
}

// ScopeAll is the scope of a budget of all jobs.
const ScopeAll = "all"

// KindScope is the scope of a kind's budget.
func KindScope(kind string) string { return "kind:" + kind }

// QueueScope is the scope of a queue's budget.
func QueueScope(queue string) string { return "queue:" + queue }

// SQLRegisterBudget stores the policy of a budget. It writes nothing if the row has these values already.
const SQLRegisterBudget = `
insert into drover_budgets (scope, retries, per_ms, burst, discard) values ($1, $2, $3, $4, $5)
on conflict (scope) do update set retries = excluded.retries, per_ms = excluded.per_ms, burst = excluded.burst, discard = excluded.discard, updated_at = now()
where (drover_budgets.retries, drover_budgets.per_ms, drover_budgets.burst, drover_budgets.discard) is distinct from (excluded.retries, excluded.per_ms, excluded.burst, excluded.discard)`

const sqlBudgetScopes = `select scope from drover_budgets`

// registerBudgets stores policies and reads the scopes of all budgets, including budgets from other processes and from
// psql. The query for the scopes comes after the policies. So registerBudgets reads no scopes if the database refuses a
// policy.
func (p *pipeline) registerBudgets(policies []BudgetPolicy, scopes *[]string) {
	for _, b := range policies {
		p.Exec(nil, SQLRegisterBudget, b.Scope, b.Retries, b.Per.Milliseconds(), b.Burst, b.Discard)
	}
	p.Query(pg.Into(scopes, pgx.RowTo[string]), sqlBudgetScopes)
}

// SQLReserve takes slots of retry budgets. It runs in a transaction of its own before the settle, because it locks rows
// that every batch with failures needs. So these rows are not locked while a settle runs.
const SQLReserve = `select n, coalesce(due_us, 0), coalesce(delay_us, 0), coalesce(reason, '') from drover_reserve($1, $2, $3, $4)`

// SQLReserveBriefly makes the commit return before the server has written its log to disk, so that the next batch waits
// less for the locked rows. A crash of the server may lose the slots. Then it also loses the settle, because the settle
// comes after the slots in the log. SQLReserveBriefly also bounds each wait for a lock by $1 ms, because a session of
// psql that holds a lock must not hold up settles for long.
const SQLReserveBriefly = `select set_config('synchronous_commit', 'off', true), set_config('lock_timeout', $1, true)`

// WantedSlot is a retry that needs a slot.
type WantedSlot struct {
	Kind, Queue string
	Backoff     time.Duration
	Latest      *int64 // microseconds until the job's RetryUntil; nil: the job has no RetryUntil
}

// TakenSlot is the slot that a retry got. The zero value means that no budget applies to the retry.
type TakenSlot struct {
	Budgeted bool
	DueUS    int64 // the due time, in microseconds since 1970 by the server's clock
	Delay    time.Duration
	Reason   string // the discard reason of a job for which there was no slot; "": there was a slot
}

// Reserve takes a slot for each retry to which a budget applies. The results are in the order of the parameter wanting.
func (s Session) Reserve(ctx context.Context, wanting []WantedSlot) ([]TakenSlot, error) {
	kinds, queues := make([]string, len(wanting)), make([]string, len(wanting))
	delays, latest := make([]int64, len(wanting)), make([]*int64, len(wanting))
	for i, w := range wanting {
		kinds[i], queues[i] = w.Kind, w.Queue
		delays[i], latest[i] = w.Backoff.Microseconds(), w.Latest
		if w.Backoff%time.Microsecond > 0 {
			delays[i]++ // so the retry never comes earlier than the strategy asks for
		}
	}
	slots := make([]TakenSlot, len(wanting))
	err := s.inTx(ctx, func(p *pipeline) {
		p.Exec(nil, SQLReserveBriefly, strconv.FormatInt(reserveWait(ctx).Milliseconds(), 10))
		p.Exec(nil, pg.OnePlan)
		p.Query(func(rows pgx.Rows) error {
			var n int
			var us int64
			got := TakenSlot{Budgeted: true}
			if err := rows.Scan(&n, &got.DueUS, &us, &got.Reason); err != nil {
				return err
			}
			got.Delay = pg.Span(us, time.Microsecond)
			slots[n-1] = got
			return nil
		}, SQLReserve, kinds, queues, delays, latest)
	})
	return slots, err
}

// reserveWait returns how long a reservation may wait for a lock: a second, but at most a third of the time until the
// deadline of ctx, and at least a millisecond.
func reserveWait(ctx context.Context) time.Duration {
	wait := time.Second
	if end, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(end)/3)
	}
	return max(wait, time.Millisecond)
}
