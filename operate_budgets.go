package drover

import (
	"context"
	"time"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/jackc/pgx/v5"
)

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
	budgets, err := c.desk.budgets(ctx)
	return budgets, doing(err, "read retry budgets")
}

const sqlBudgets = `
select scope, retries, extract(epoch from per)::float8, burst, mode = 'discard', reserved, free, next_free from retry_budgets order by scope`

func (s *desk) budgets(ctx context.Context) ([]BudgetInfo, error) {
	return pg.ReadAll(ctx, s.pool, func(row pgx.CollectableRow) (BudgetInfo, error) {
		var b BudgetInfo
		var per float64
		err := row.Scan(&b.Scope, &b.Retries, &per, &b.Burst, &b.Discard, &b.Reserved, &b.Free, &b.NextFree)
		b.Per = pg.Seconds(per).Truncate(time.Millisecond)
		return b, err
	}, sqlBudgets)
}
