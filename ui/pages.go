package ui

import (
	"context"
	"time"

	"github.com/drover-queue/drover"
)

// source loads the data of the pages through the public methods of a client. It renders nothing.
type source struct {
	client   *drover.Client
	patience time.Duration // bounds the wait for a part of a page that the page can leave out
}

// patience bounds how long a page waits for a count, or for a change that goes on even if the page does not wait.
const patience = 3 * time.Second

// pages has the page of each address.
func (s source) pages(w words) map[string]page {
	return map[string]page{
		"/":            {menu: "Overview", template: "overview.html", live: true, cost: 102, shared: true, load: s.overview},
		"/queue":       {menu: "Overview", template: "queue.html", live: true, cost: 94, shared: true, load: s.queue, acts: s.queueActs()},
		"/jobs":        {menu: "Jobs", template: "jobs.html", live: true, cost: 4, load: s.jobs},
		"/job":         {menu: "Jobs", template: "job.html", live: true, cost: 12, load: jobPage{s, w}.load, acts: s.jobActs()},
		"/delete":      {menu: "Jobs", template: "delete.html", load: s.deletePage, acts: s.deleteActs()},
		"/many":        {menu: "Jobs", template: "many.html", load: s.many, acts: s.manyActs()},
		"/text":        {load: jobPage{s, w}.text},
		"/failures":    {menu: "Failures", template: "failures.html", live: true, cost: 4, load: s.failures},
		"/failure":     {menu: "Failures", template: "failure.html", live: true, cost: 4, load: s.failure, acts: s.failureActs()},
		"/start":       {menu: "Redrives", template: "start.html", load: s.start, acts: s.startActs()},
		"/redrives":    {menu: "Redrives", template: "redrives.html", live: true, cost: 4, load: s.redrives},
		"/redrive":     {menu: "Redrives", template: "redrive.html", live: true, cost: 12, load: s.redrive, acts: s.redriveActs()},
		"/periodic":    {menu: "Periodic", template: "periodic.html", live: true, cost: 4, load: listed("Periodic jobs", s.client.PeriodicJobs)},
		"/schedule":    {menu: "Periodic", template: "schedule.html", live: true, cost: 4, load: s.schedule, acts: s.scheduleActs()},
		"/pauses":      {menu: "Pauses", template: "pauses.html", live: true, cost: 8, load: s.pausesPage, acts: s.pauseActsOfAll()},
		"/health":      {menu: "Health", template: "health.html", live: true, cost: 94, shared: true, load: s.healthPage},
		"/supervisors": {menu: "Supervisors", template: "supervisors.html", live: true, cost: 4, load: listed("Supervisors", s.client.Supervisors)},
	}
}

// The function listed returns a function that loads a page with a list, whose address has no keys.
func listed[T any](title string, list func(context.Context) ([]T, error)) func(context.Context, query) (*view, error) {
	return func(ctx context.Context, q query) (*view, error) {
		if err := q.checkKeys(); err != nil {
			return nil, err
		}
		all, err := list(ctx)
		return &view{Title: title, Data: all}, err
	}
}
