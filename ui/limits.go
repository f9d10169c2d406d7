package ui

import (
	"context"

	"github.com/drover-queue/drover"
)

// limitsData is what stands in the way of jobs: pauses and retry budgets.
type limitsData struct {
	Limits  []drover.Limit
	Budgets []drover.BudgetInfo
}

func (s source) limits(ctx context.Context, q query) (*view, error) {
	if err := q.only(); err != nil {
		return nil, err
	}
	list, err := s.client.Limits(ctx)
	if err != nil {
		return nil, err
	}
	budgets, err := s.client.RetryBudgets(ctx)
	if err != nil {
		return nil, err
	}
	return &view{Title: "Limits", Data: &limitsData{list, budgets}}, nil
}
