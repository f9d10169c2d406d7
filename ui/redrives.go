package ui

import (
	"context"
	"time"

	"github.com/drover-queue/drover"
)

// redrivesData are redrives, newest first.
type redrivesData struct {
	Redrives []redriveData
	More     string // address of a longer list; "" if the list has all redrives
}

// redriveData is a redrive and how far it is.
type redriveData struct {
	drover.Redrive
	Left  string // how long it takes at least; "" if that is not known
	Shown []drover.SkippedJob
	Runs  bool // the redrive has not ended
	Plots *course
}

const (
	fewRedrives  = 25
	mostRedrives = 500
)

func (s source) redrives(ctx context.Context, q query) (*view, error) {
	if err := q.checkKeys("limit"); err != nil {
		return nil, err
	}
	limit, err := q.number("limit", fewRedrives, mostRedrives)
	if err != nil {
		return nil, err
	}
	list, err := s.client.Redrives(ctx, limit)
	if err != nil {
		return nil, err
	}
	d := &redrivesData{}
	for i := range list {
		d.Redrives = append(d.Redrives, *progressOf(&list[i]))
	}
	if len(list) == limit && limit < mostRedrives {
		d.More = href("redrives", "limit", mostRedrives)
	}
	return &view{Title: "Redrives", Data: d}, nil
}

func (s source) redrive(ctx context.Context, q query) (*view, error) {
	id, r, err := subject(ctx, q, "id", s.client.Redrive)
	if err != nil {
		return nil, err
	}
	return &view{Title: "Redrive " + visible(id), Data: progressOf(r)}, nil
}

func progressOf(r *drover.Redrive) *redriveData {
	d := &redriveData{Redrive: *r, Shown: r.Skips[:min(len(r.Skips), mostEntries)], Runs: goesOn(r), Plots: courseOf(r.Course)}
	if left := r.Matched - r.Released; left > 0 && r.Rate > 0 && r.State == drover.RedriveRunning && !r.Paused {
		d.Left = span(time.Duration(min(float64(left)/r.Rate, 1e8)) * time.Second)
	}
	return d
}
