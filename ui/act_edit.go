package ui

import (
	"context"
	"encoding/json"
	"time"

	"github.com/drover-queue/drover"
)

// changes are the fields of a waiting job that may be edited, with the types that the API takes. A form has the fields
// as texts.
type changes struct {
	RunNow      bool            `json:"run_now"`
	ScheduledAt time.Time       `json:"scheduled_at"`
	Delay       string          `json:"delay"`
	Priority    int             `json:"priority"`
	Queue       string          `json:"queue"`
	MaxAttempts int             `json:"max_attempts"`
	Retry       json.RawMessage `json:"retry"`
	ArgsPatch   json.RawMessage `json:"args_patch"`
}

// edit returns the changes as the library takes them. It does not check most values, because the client checks them.
func (c *changes) edit() (e drover.JobEdit, err error) {
	e = drover.JobEdit{RunNow: c.RunNow, ScheduledAt: c.ScheduledAt, Priority: c.Priority, Queue: c.Queue, MaxAttempts: c.MaxAttempts, ArgsPatch: c.ArgsPatch}
	if c.Delay != "" {
		if e.Delay, err = time.ParseDuration(c.Delay); err != nil || e.Delay <= 0 {
			return e, badAt("delay", "delay: %q is not a duration such as 90s or 1h30m.", cut(c.Delay, 40))
		}
	}
	if len(c.Retry) > 0 && string(c.Retry) != "null" {
		e.Retry, err = drover.ParseRetryStrategy(string(c.Retry))
	}
	return e, err
}

// editFields are the fields of the forms that edit jobs.
func editFields() []input {
	return []input{
		{ID: "e-due", Key: "due", Label: "Due", Hint: "from now: 90m, 24h, 7d; or a time such as 2026-01-31T12:00:00Z"},
		{ID: "e-priority", Key: "priority", Label: "Priority", Hint: "1 to 9, lower is sooner"},
		{ID: "e-queue", Key: "to_queue", Label: "Queue", Hint: "the job moves there"},
		{ID: "e-max", Key: "max_attempts", Label: "Attempts in all", Hint: "with the attempts that it has had"},
		{ID: "e-patch", Key: "args_patch", Label: "Change of the args", Hint: `a JSON merge patch (RFC 7396), such as {"Order": 43}`},
	}
}

// editOf reads the fields of a form. An empty field leaves the job as it is.
func editOf(form query) (e drover.JobEdit, err error) {
	if e.ScheduledAt, err = readUntil("due", form.Get("due")); err != nil {
		return e, err
	}
	if e.Priority, err = form.number("priority", 0, 9); err != nil {
		return e, err
	}
	if e.MaxAttempts, err = form.number("max_attempts", 0, drover.Unlimited); err != nil {
		return e, err
	}
	e.Queue = form.Get("to_queue")
	if patch := form.Get("args_patch"); patch != "" {
		if !json.Valid([]byte(patch)) {
			return e, badAt("args_patch", `Change of the args: that is not JSON, such as {"Order": 43}.`)
		}
		e.ArgsPatch = json.RawMessage(patch)
	}
	return e, nil
}

// editJob edits the job, if the job has not changed since the page showed it.
func (s source) editJob(ctx context.Context, j *drover.JobInfo, e drover.JobEdit, p posted) error {
	by, err := p.seenJob(j, editable(j))
	if err != nil {
		return err
	}
	changed, err := s.client.Edit(ctx, j.ID, e, by)
	if err == nil && !changed {
		return unchanged("The job has these values already.")
	}
	return err
}

// editable reports whether the job waits.
func editable(j *drover.JobInfo) bool { return waits(j) || j.State == drover.Available }
