package ui

import (
	"context"

	"github.com/oklog/ulid/v2"

	"github.com/drover-queue/drover"
)

// scheduleData is a schedule, and the id of the job that the button "run now" makes.
type scheduleData struct {
	*drover.PeriodicJob
	New string
}

func (s source) schedule(ctx context.Context, q query) (*view, error) {
	name, job, err := subject(ctx, q, "name", s.client.PeriodicJob)
	if err != nil {
		return nil, err
	}
	return &view{Title: "Schedule " + visible(name), Data: &scheduleData{job, ulid.Make().String()}}, nil
}
