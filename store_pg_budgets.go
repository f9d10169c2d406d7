package drover

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/pg"
)

// Retry budgets: their policies, and the slots that failing batches take.

// budgetPolicy is a row of drover_budgets.
type budgetPolicy struct {
	scope          string
	retries, burst int
	per            time.Duration
	discard        bool
}

const sqlRegisterBudget = `
insert into drover_budgets (scope, retries, per_ms, burst, discard) values ($1, $2, $3, $4, $5)
on conflict (scope) do update set retries = excluded.retries, per_ms = excluded.per_ms, burst = excluded.burst, discard = excluded.discard, updated_at = now()
where (drover_budgets.retries, drover_budgets.per_ms, drover_budgets.burst, drover_budgets.discard) is distinct from (excluded.retries, excluded.per_ms, excluded.burst, excluded.discard)`

const sqlBudgetScopes = `select scope from drover_budgets`

// registerBudgets stores policies and reads which there are, from other processes and psql too. It comes last: a
// pipeline that fails has read none.
func (p *pipeline) registerBudgets(policies []budgetPolicy, scopes *[]string) {
	for _, b := range policies {
		p.Exec(nil, sqlRegisterBudget, b.scope, b.retries, b.per.Milliseconds(), b.burst, b.discard)
	}
	p.Query(func(rows pgx.Rows) error {
		var scope string
		err := rows.Scan(&scope)
		*scopes = append(*scopes, scope)
		return err
	}, sqlBudgetScopes)
}

// sqlReserve takes slots, in a transaction of its own before the settle: rows that every failing batch wants are held
// for as long as a commit takes, and not for that of a settle.
const sqlReserve = `select n, coalesce(due_us, 0), coalesce(delay_us, 0), coalesce(reason, '') from drover_reserve($1, $2, $3, $4)`

// sqlReserveBriefly does not wait for the log, so that the next batch need not either: a crash that loses the slots
// loses the settle behind them in the log, too. A lock held from psql must not hold up settles for long.
const sqlReserveBriefly = `select set_config('synchronous_commit', 'off', true), set_config('lock_timeout', $1, true)`

// wantedSlot is a retry in need of a slot.
type wantedSlot struct {
	kind, queue string
	backoff     time.Duration
	latest      *int64 // microseconds until its RetryUntil; nil: none
}

// takenSlot is what came of it; the zero value says that no budget applies.
type takenSlot struct {
	budgeted bool
	dueUS    int64
	delay    time.Duration
	reason   string // of a discard: there was no slot
}

func (s session) reserve(ctx context.Context, wanting []wantedSlot) ([]takenSlot, error) {
	kinds, queues := make([]string, len(wanting)), make([]string, len(wanting))
	delays, latest := make([]int64, len(wanting)), make([]*int64, len(wanting))
	for i, w := range wanting {
		kinds[i], queues[i] = w.kind, w.queue
		delays[i], latest[i] = w.backoff.Microseconds(), w.latest
		if w.backoff%time.Microsecond > 0 {
			delays[i]++ // never earlier than the strategy says
		}
	}
	slots := make([]takenSlot, len(wanting))
	var p pipeline
	p.Begin()
	p.Exec(nil, sqlReserveBriefly, strconv.FormatInt(reserveWait(ctx).Milliseconds(), 10))
	p.Exec(nil, pg.OnePlan)
	p.Query(func(rows pgx.Rows) error {
		var n int
		var us int64
		got := takenSlot{budgeted: true}
		if err := rows.Scan(&n, &got.dueUS, &us, &got.reason); err != nil {
			return err
		}
		got.delay = pg.Span(us, time.Microsecond)
		slots[n-1] = got
		return nil
	}, sqlReserve, kinds, queues, delays, latest)
	p.Commit()
	return slots, p.Send(ctx, s.conn)
}

// reserveWait is how long a reservation waits for a lock: a second, or a third of the time that is left, if that is
// less.
func reserveWait(ctx context.Context) time.Duration {
	wait := time.Second
	if end, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(end)/3)
	}
	return max(wait, time.Millisecond)
}
