package ui

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/operate"
)

// pauseActs are the buttons that pause and resume. The parameter scope reads the scope from a form, and back returns
// the address of the page that shows the scope.
func (s source) pauseActs(fields []string, scope func(posted) (drover.Scope, error), back func(posted) string) map[string]act {
	return map[string]act{
		"pause": {needs: Pause, fields: append(slices.Clone(fields), "for"), run: func(ctx context.Context, p posted) (string, error) {
			what, err := scope(p)
			if err != nil {
				return "", err
			}
			until, err := readUntil("for", p.form.Get("for"))
			if err != nil {
				return "", err
			}
			held, err := s.paused(ctx, what)
			if err == nil && held != nil {
				err = unchanged("%s has been paused by %s since %s.", what, held.By, stamp(held.Since))
			}
			if err != nil {
				return "", err
			}
			p.by.Seen = drover.NotPaused // a pause that somebody else has set stays as it is
			return back(p), s.pause(ctx, what, until, p.by)
		}},
		"resume": {needs: Pause, fields: append(slices.Clone(fields), "seen"), run: func(ctx context.Context, p posted) (string, error) {
			what, err := scope(p)
			if err != nil {
				return "", err
			}
			now := ""
			if p.blind && p.form.Get("seen") == "" {
				held, err := s.paused(ctx, what)
				if err == nil && held == nil {
					err = unchanged("%s is not paused.", what)
				}
				if err != nil {
					return "", err
				}
				now = held.Seen
			}
			by, err := p.seen(now)
			if err != nil {
				return "", err
			}
			return back(p), s.client.Resume(ctx, what, by)
		}},
	}
}

// pause pauses a scope. It waits at most s.patience until the supervisors follow the pause, because the page shows
// whether they follow.
func (s source) pause(ctx context.Context, scope drover.Scope, until time.Time, by drover.Audit) error {
	short, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	err := s.client.Pause(short, scope, &drover.PauseOpts{Until: until}, by)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		if held, readErr := s.paused(ctx, scope); readErr == nil && held != nil && held.By == by.By && held.Why == by.Why {
			return nil // the database has stored our pause; the pause of another person would have another name or reason
		}
	}
	return err
}

// The method paused returns the pause of a scope, or nil if there is none.
func (s source) paused(ctx context.Context, scope drover.Scope) (*drover.PauseInfo, error) {
	list, err := s.client.Pauses(ctx)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(list, func(p drover.PauseInfo) bool { return p.Scope == scope }); i >= 0 {
		return &list[i], nil
	}
	return nil, nil //nolint:nilnil // it is no error that there is no pause
}

func (s source) queueActs() map[string]act {
	return s.pauseActs(nil, func(p posted) (drover.Scope, error) {
		name, err := p.query.id("name")
		return drover.QueueScope(name), err
	}, func(p posted) string { return href("queue", "name", p.query.Get("name")) })
}

func (s source) pauseActsOfAll() map[string]act {
	return s.pauseActs([]string{"what", "name"}, func(p posted) (drover.Scope, error) {
		if err := p.query.checkKeys(); err != nil {
			return "", err
		}
		what, name := p.form.Get("what"), p.form.Get("name")
		switch {
		case what == "all" && name == "":
			return drover.AllJobs, nil
		case what == "all":
			return "", bad("All jobs have no name: leave it empty, or choose a queue or a kind.")
		case what == "queue" && name != "":
			return drover.QueueScope(name), nil
		case what == "kind" && name != "":
			return drover.KindScope(name), nil
		case what == "queue" || what == "kind":
			return "", bad("Which %s? Fill in its name.", what)
		}
		return "", bad("%q is none of queue, kind and all.", cut(what, 40))
	}, func(posted) string { return "pauses" })
}

// readUntil reads a time in the future. An empty value gives the zero time.
func readUntil(field, value string) (time.Time, error) {
	if value == "" {
		return time.Time{}, nil
	}
	if at, err := readDate(value); err == nil {
		return at, nil // drover refuses a time in the past
	}
	ahead, err := operate.Span(value)
	if err != nil || ahead <= 0 {
		return time.Time{}, badAt(field, "%q is none of 90m, 24h, 7d, and no time like 2026-01-31 or 2026-01-31T12:00:00Z.", cut(value, 40))
	}
	return time.Now().Add(ahead), nil
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// failureActs are the buttons of a failure.
func (s source) failureActs() map[string]act {
	change := func(field string, is func(*drover.FailureGroup) string, set func(ctx context.Context, id, to string, by drover.Audit) error) act {
		return act{needs: Triage, fields: []string{"seen", field}, run: onSubject("failure", "id", s.client.FailureGroup, func(ctx context.Context, group *drover.FailureGroup, p posted) error {
			to := p.form.Get(field)
			by, err := p.seen(group.Seen)
			if err == nil && is(group) == to {
				err = unchanged("The status of this failure is %s now, and its policy %s%s.", group.Status, policyOf(group), handOfGroup(group))
			}
			if err != nil {
				return err
			}
			return set(ctx, group.Fingerprint, to, by)
		})}
	}
	return map[string]act{
		"status": change("status", func(g *drover.FailureGroup) string { return string(g.Status) }, func(ctx context.Context, id, to string, by drover.Audit) error {
			return s.client.SetFailureStatus(ctx, id, drover.FailureStatus(to), by)
		}),
		"policy": change("policy", policyOf, func(ctx context.Context, id, to string, by drover.Audit) error {
			switch to {
			case "retry":
				to = ""
			case "":
				return bad("Choose a policy.")
			}
			return s.client.SetFailurePolicy(ctx, id, drover.FailurePolicy{Action: drover.FailureAction(to)}, by)
		}),
	}
}

// handOfGroup names the person who changed a group last.
func handOfGroup(g *drover.FailureGroup) string {
	if g.UpdatedAt == nil {
		return ""
	}
	back := ""
	if g.Status == drover.FailureOpen && g.RegressedAt != nil && g.RegressedAt.After(*g.UpdatedAt) {
		back = ", and it came back at " + stamp(*g.RegressedAt)
	}
	return fmt.Sprintf(": %s changed it at %s%s", g.UpdatedBy, stamp(*g.UpdatedAt), back)
}

// policyOf is the name that a group's policy has in the form.
func policyOf(g *drover.FailureGroup) string {
	if g.Policy.Action == "" {
		return "retry"
	}
	return string(g.Policy.Action)
}

// scheduleActs are the buttons of a schedule.
func (s source) scheduleActs() map[string]act {
	change := func(fields []string, do func(ctx context.Context, j *drover.PeriodicJob, p posted) error) act {
		return act{needs: Schedule, fields: append(fields, "seen"), run: onSubject("schedule", "name", s.client.PeriodicJob, func(ctx context.Context, j *drover.PeriodicJob, p posted) (err error) {
			if p.by, err = p.seen(j.Seen); err != nil {
				return err
			}
			return do(ctx, j, p)
		})}
	}
	return map[string]act{
		"pause": change([]string{"for"}, func(ctx context.Context, j *drover.PeriodicJob, p posted) error {
			until, err := readUntil("for", p.form.Get("for"))
			if err != nil {
				return err
			}
			if j.State == drover.PeriodicPaused {
				return unchanged("The schedule has been paused by %s since %s.", j.UpdatedBy, stamp(j.UpdatedAt))
			}
			return s.client.PausePeriodic(ctx, j.Name, until, p.by)
		}),
		"run-now": change([]string{"new"}, func(ctx context.Context, j *drover.PeriodicJob, p posted) error {
			as, err := p.newID()
			if err != nil {
				return err
			}
			_, err = s.client.RunPeriodic(ctx, j.Name, &drover.RunOpts{ID: as}, p.by)
			return err
		}),
		"resume": change(nil, func(ctx context.Context, j *drover.PeriodicJob, p posted) error {
			if j.State != drover.PeriodicPaused {
				return unchanged("The schedule is not paused: it is %s, and %s changed it at %s.", j.State, j.UpdatedBy, stamp(j.UpdatedAt))
			}
			return s.client.ResumePeriodic(ctx, j.Name, p.by)
		}),
	}
}

// redriveActs are the buttons of a redrive.
func (s source) redriveActs() map[string]act {
	change := func(paused bool, verb func(context.Context, string, drover.Audit) error, both bool) act {
		return act{needs: Redrive, fields: []string{"seen"}, run: onSubject("redrive", "id", s.client.Redrive, func(ctx context.Context, r *drover.Redrive, p posted) error {
			by, err := p.seen(r.Seen)
			if err == nil && (!goesOn(r) || r.Paused != paused && !both) {
				err = unchanged("The redrive is %s now%s.", stateOfRedrive(r), handOfRedrive(r))
			}
			if err != nil {
				return err
			}
			return verb(ctx, r.ID, by)
		})}
	}
	return map[string]act{
		"pause":  change(false, s.client.PauseRedrive, false),
		"resume": change(true, s.client.ResumeRedrive, false),
		"abort":  change(false, s.client.AbortRedrive, true),
	}
}

// handOfRedrive names the person who changed a redrive last.
func handOfRedrive(r *drover.Redrive) string {
	if r.ChangedAt == nil {
		return ""
	}
	return fmt.Sprintf(": %s changed it at %s", r.ChangedBy, stamp(*r.ChangedAt))
}

// goesOn reports whether a redrive can still be paused or aborted.
func goesOn(r *drover.Redrive) bool {
	return r.State == drover.RedriveMarking || r.State == drover.RedriveCanary || r.State == drover.RedriveRunning
}

func stateOfRedrive(r *drover.Redrive) string {
	if r.Paused {
		return "paused"
	}
	return string(r.State)
}
