package ui

import (
	"context"

	"github.com/drover-queue/drover"
)

// pausesData has what may keep jobs from starting: pauses and retry budgets.
type pausesData struct {
	Pauses  []drover.PauseInfo
	Budgets []drover.BudgetInfo
}

func (s source) pausesPage(ctx context.Context, q query) (*view, error) {
	if err := q.checkKeys(); err != nil {
		return nil, err
	}
	list, err := s.client.Pauses(ctx)
	if err != nil {
		return nil, err
	}
	budgets, err := s.client.RetryBudgets(ctx)
	if err != nil {
		return nil, err
	}
	return &view{Title: "Pauses and retry budgets", Data: &pausesData{list, budgets}}, nil
}
