package ui

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/drover-queue/drover"
)

// jobActs are the buttons of a job's page.
func (s source) jobActs() map[string]act {
	return map[string]act{
		"run-now": {needs: Retry, fields: []string{"seen"}, run: s.onJob(func(ctx context.Context, j *drover.JobInfo, p posted) error {
			if !p.seen(shapeOf(j)) || !waits(j) {
				return unchanged("Since you saw it, the job has changed: it is %s.", stateOfJob(j))
			}
			_, err := s.client.Edit(ctx, j.ID, drover.JobEdit{RunNow: true}, p.by)
			return err
		})},
		"redrive": {needs: Retry, fields: []string{"seen"}, run: s.onJob(func(ctx context.Context, j *drover.JobInfo, p posted) error {
			if !p.seen(shapeOf(j)) || j.State != drover.Discarded && j.State != drover.Cancelled {
				return unchanged("Since you saw it, the job has changed: it is %s.", stateOfJob(j))
			}
			return s.client.RedriveJob(ctx, j.ID, nil, p.by)
		})},
		"cancel":  {needs: Cancel, fields: []string{"seen"}, run: s.onJob(s.end(s.client.Cancel))},
		"discard": {needs: Discard, fields: []string{"seen"}, run: s.onJob(s.end(s.client.Discard))},
		"rerun":   s.rerun(),
		"edit": {needs: Edit, fields: append(editKeys(), "seen"), run: s.onJob(func(ctx context.Context, j *drover.JobInfo, p posted) error {
			e, err := editOf(p.form)
			if err != nil {
				return err
			}
			return s.editJob(ctx, j, e, p)
		})},
	}
}

// shapeOf changes with each run, redrive and due time of a job, and with each edit, which leaves an entry: a button that is
// pressed twice, or on an old page, does nothing to a job that has gone on since.
func shapeOf(j *drover.JobInfo) string {
	var newest int64
	for _, e := range j.Errors {
		newest = max(newest, e.At.UnixMicro())
	}
	return fmt.Sprintf("%s%s/%d/%d/%d/%d", lifeOf(j), j.State, j.Attempt, j.ErrorsTotal, j.ScheduledAt.UnixMicro(), newest)
}

// lifeOf begins a shape, and changes with each redrive alone.
func lifeOf(j *drover.JobInfo) string { return fmt.Sprintf("%d/", j.Redrives) }

// stateOfJob is the state in a sentence.
func stateOfJob(j *drover.JobInfo) string {
	if waits(j) && j.State != drover.Parked || j.State == drover.Available {
		return fmt.Sprintf("%s, due at %s", j.State, stamp(j.ScheduledAt))
	}
	return string(j.State)
}

// waits reports whether a job can be made due now. One that is available is due.
func waits(j *drover.JobInfo) bool {
	return j.State == drover.Scheduled || j.State == drover.Retryable || j.State == drover.Parked
}

// onJob reads the job, and leads back to its page.
func (s source) onJob(do func(ctx context.Context, j *drover.JobInfo, p posted) error) func(context.Context, posted) (string, error) {
	return func(ctx context.Context, p posted) (string, error) {
		id, err := p.query.id("id")
		if err != nil {
			return "", err
		}
		job, err := s.client.Job(ctx, id)
		if err != nil {
			return "", err
		}
		return href("job", "id", id), do(ctx, job, p)
	}
}

// end ends a job, and is refused if it has ended before.
func (source) end(verb func(context.Context, string, drover.Audit) (drover.State, error)) func(context.Context, *drover.JobInfo, posted) error {
	return func(ctx context.Context, j *drover.JobInfo, p posted) error {
		// A form ends a job that has started or failed since, too, but not a job that somebody has redriven.
		if p.blind && !p.seen(shapeOf(j)) || !p.blind && p.form.Has("seen") && !strings.HasPrefix(p.form.Get("seen"), lifeOf(j)) {
			return unchanged("Since you saw it, the job has changed: it is %s.", stateOfJob(j))
		}
		was, err := verb(ctx, j.ID, p.by)
		if err == nil && was.Final() {
			return unchanged("The job has ended before: it is %s.", was)
		}
		return err
	}
}

// deleteData is a job that somebody wants to delete.
type deleteData struct {
	ID  string
	Job *drover.JobInfo // nil: there is none
}

func (s source) deletePage(ctx context.Context, q query) (*view, error) {
	id, err := q.id("id")
	if err != nil {
		return nil, err
	}
	d := &deleteData{ID: id}
	if d.Job, err = s.client.Job(ctx, id); err != nil && !errors.Is(err, drover.ErrNotFound) {
		return nil, err
	}
	return &view{Title: "Delete job " + visible(id), Data: d}, nil
}

func (s source) deleteActs() map[string]act {
	return map[string]act{"delete": {needs: Delete, run: func(ctx context.Context, p posted) (string, error) {
		id, err := p.query.id("id")
		if err != nil {
			return "", err
		}
		done, err := s.client.DeleteMany(ctx, drover.Filter{IDs: []string{id}}, p.by)
		switch {
		case err != nil:
			return "", err
		case len(done.Missing) > 0:
			return "", unchanged("There is no job %s any more.", id)
		case len(done.Refused) > 0:
			return "", unchanged("The database refuses to delete the job: %s.", done.Refused[0].Error)
		case done.Changed == 0:
			job, err := s.client.Job(ctx, id)
			if err != nil {
				return "", err
			}
			return "", unchanged("Only a job that has ended can be deleted, and this one is %s.", job.State)
		}
		return href("delete", "id", id), nil // which says that it is gone
	}}}
}
