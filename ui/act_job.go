package ui

import (
	"context"
	"errors"
	"fmt"

	"github.com/drover-queue/drover"
)

// jobActs are the buttons of a job's page.
func (s source) jobActs() map[string]act {
	return map[string]act{
		"run-now": {needs: Retry, fields: []string{"seen"}, run: s.onJob(func(ctx context.Context, j *drover.JobInfo, p posted) error {
			by, err := p.seenJob(j, waits(j))
			if err != nil {
				return err
			}
			_, err = s.client.Edit(ctx, j.ID, drover.JobEdit{RunNow: true}, by)
			return err
		})},
		"redrive": {needs: Retry, fields: []string{"seen"}, run: s.onJob(func(ctx context.Context, j *drover.JobInfo, p posted) error {
			by, err := p.seenJob(j, j.State == drover.Discarded || j.State == drover.Cancelled)
			if err != nil {
				return err
			}
			return s.client.RedriveJob(ctx, j.ID, nil, by)
		})},
		"cancel":  {needs: Cancel, fields: []string{"seen"}, run: s.onJob(s.end(s.client.Cancel))},
		"discard": {needs: Discard, fields: []string{"seen"}, run: s.onJob(s.end(s.client.Discard))},
		"rerun":   s.rerun(),
		"edit": {needs: Edit, fields: append(keysOf(editFields()), "seen"), run: s.onJob(func(ctx context.Context, j *drover.JobInfo, p posted) error {
			e, err := editOf(p.form)
			if err != nil {
				return err
			}
			return s.editJob(ctx, j, e, p)
		})},
	}
}

// seenJob does the same as seen for a button of a job. It returns an error if the parameter effective is false, that is,
// if the button has no effect in the present state of the job.
func (p posted) seenJob(j *drover.JobInfo, effective bool) (drover.Audit, error) {
	by, err := p.seen("")
	if err == nil && !effective {
		err = unchanged("Since you saw it, the job has changed: it is %s%s.", stateOfJob(j), lastHand(j))
	}
	return by, err
}

// lastHand describes the newest entry of a job's errors, if a person made that entry.
func lastHand(j *drover.JobInfo) string {
	if len(j.Errors) == 0 || j.Errors[len(j.Errors)-1].By == "" {
		return ""
	}
	e := j.Errors[len(j.Errors)-1]
	return fmt.Sprintf("; %s at %s: %s", e.By, stamp(e.At), e.Error) // not cut, because Redact needs the whole text
}

// stateOfJob is the job's state as a part of a sentence.
func stateOfJob(j *drover.JobInfo) string {
	if waits(j) && j.State != drover.Parked || j.State == drover.Available {
		return fmt.Sprintf("%s, due at %s", j.State, stamp(j.ScheduledAt))
	}
	return string(j.State)
}

// The function waits reports whether a job can be made due now. An available job is due already.
func waits(j *drover.JobInfo) bool {
	return j.State == drover.Scheduled || j.State == drover.Retryable || j.State == drover.Parked
}

// onJob is onSubject for a button of a job.
func (s source) onJob(do func(ctx context.Context, j *drover.JobInfo, p posted) error) func(context.Context, posted) (string, error) {
	return onSubject("job", "id", s.client.Job, do)
}

// The method end returns a function that ends a job with a method of the client, Cancel or Discard. The function
// returns an error if the job has ended before.
func (s source) end(verb func(context.Context, string, drover.Audit) (drover.State, error)) func(context.Context, *drover.JobInfo, posted) error {
	return func(ctx context.Context, j *drover.JobInfo, p posted) error {
		by := p.by
		by.Seen = p.form.Get("seen")
		was, err := verb(ctx, j.ID, by)
		if err != nil || !was.Final() {
			return err
		}
		if j, err = s.client.Job(ctx, j.ID); err != nil {
			return err
		}
		return unchanged("The job has ended before: it is %s%s.", was, lastHand(j))
	}
}

// deleteData is a job that somebody wants to delete.
type deleteData struct {
	ID  string
	Job *drover.JobInfo // nil: there is no such job
}

func (s source) deletePage(ctx context.Context, q query) (*view, error) {
	id, err := q.id("id")
	if err != nil {
		return nil, err
	}
	d := &deleteData{ID: id}
	if d.Job, err = s.client.Job(ctx, id); err != nil && (!errors.Is(err, drover.ErrNotFound) || errors.Is(err, drover.ErrArchived)) {
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
			if _, err = s.client.Job(ctx, id); errors.Is(err, drover.ErrArchived) {
				return "", err
			}
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
		return href("delete", "id", id), nil // after the change this page shows that the job is gone
	}}}
}
