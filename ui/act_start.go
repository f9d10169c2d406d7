package ui

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/drover-queue/drover"
)

// Some forms make a new job or a new redrive. For these forms the page chooses the id of the new job or redrive. If a
// browser sends the form twice, even to two processes, the second form has no effect. See drover.RunOpts.

// newID returns the id that the page has chosen for the new job or redrive.
func (p posted) newID() (string, error) {
	id := p.form.Get("new")
	if id == "" {
		return "", bad("The form lacks %q.", "new")
	}
	return id, nil
}

// rerun is the button that runs a completed job once more.
func (s source) rerun() act {
	return act{needs: Retry, fields: []string{"new", "seen"}, run: func(ctx context.Context, p posted) (string, error) {
		id, err := p.query.id("id")
		if err != nil {
			return "", err
		}
		as, err := p.newID()
		if err != nil {
			return "", err
		}
		by, err := p.seen("")
		if err != nil {
			return "", err
		}
		receipt, err := s.client.Rerun(ctx, id, &drover.RunOpts{ID: as}, by)
		return href("job", "id", receipt.ID), err
	}}
}

// startData is a redrive that may be started: the jobs that it would take up, and its pace.
type startData struct {
	New, Address, List     string
	Picks                  drover.Filter
	Groups                 []drover.RedriveGroup
	all                    []drover.RedriveGroup
	Coming                 int64 // how many jobs become due again
	Held, Expired, Unkeyed int64
	Rate                   float64
	Longest                string // how long the queue with the most jobs takes at least
	Hidden                 []input
	Pace                   []input
}

// paceFields are the parts of a plan besides its filter.
func paceFields() []input {
	return []input{
		{Key: "rate", Label: "Rate", Hint: "jobs a second in each queue; empty: 50"},
		{Key: "canary", Label: "Canaries", Hint: "this many go first, and the others once each of these has completed or failed"},
		{Key: "canary_failures", Label: "Canaries that may fail", Hint: "more of them abort the redrive"},
		{Key: "limit", Label: "At most", Hint: "jobs, those that ended first; empty: all"},
		{Key: "per_key", Label: "For each key", Hint: "at most so many jobs out at once; empty: no cap"},
		{Key: "key_from", Label: "Where the key is in the args", Hint: "such as customer.id; empty: the concurrency key"},
	}
}

// readPlan reads a plan from an address.
func (q query) readPlan() (plan drover.RedrivePlan, address string, err error) {
	known := filterKeys()
	var pairs []string
	for _, field := range paceFields() {
		known = append(known, field.Key)
		value, err := q.one(field.Key)
		if err != nil {
			return plan, "", err
		}
		if value != "" {
			pairs = append(pairs, field.Key, value)
		}
	}
	if err = q.checkKeys(known...); err != nil {
		return plan, "", err
	}
	if plan.Filter, err = q.filter(); err != nil {
		return plan, "", err
	}
	if empty(plan.Filter) {
		return plan, "", bad("Fill in the filter first: without one this would mean every dead letter.")
	}
	for key, to := range map[string]*int{"canary": &plan.Canary, "canary_failures": &plan.CanaryFailures, "limit": &plan.Limit, "per_key": &plan.PerKey} {
		const most = 1<<31 - 1
		if *to, err = q.number(key, 0, most); err != nil {
			return plan, "", err
		}
	}
	if plan.Rate, err = readRate(q.Get("rate")); err != nil {
		return plan, "", err
	}
	plan.KeyFrom = q.Get("key_from")
	return plan, "start?" + q.filterAddress(pairs...), nil
}

// start loads the page that shows what a redrive would do before it is started.
func (s source) start(ctx context.Context, q query) (*view, error) {
	plan, address, err := q.readPlan()
	if err != nil {
		return nil, err
	}
	groups, err := s.client.PreviewRedrive(ctx, plan)
	if err != nil {
		return nil, err
	}
	d := &startData{Picks: plan.Filter, New: ulid.Make().String(), Address: address, List: "jobs?" + q.filterAddress(), Groups: groups[:min(len(groups), mostEntries)], all: groups, Rate: cmp.Or(plan.Rate, 50)}
	queues := map[string]int64{}
	for _, g := range groups {
		coming := g.Jobs - g.Held - g.Expired
		d.Coming, d.Held, d.Expired, d.Unkeyed = d.Coming+coming, d.Held+g.Held, d.Expired+g.Expired, d.Unkeyed+g.Unkeyed
		queues[g.Queue] += coming
	}
	if plan.PerKey == 0 {
		d.Unkeyed = 0
	}
	var most int64
	for _, n := range queues {
		most = max(most, n)
	}
	d.Longest = span(time.Duration(min(float64(most)/d.Rate, 1e8) * float64(time.Second)))
	for _, key := range filterKeys() {
		for _, value := range q.Values[key] {
			if value != "" {
				d.Hidden = append(d.Hidden, input{Key: key, Value: value})
			}
		}
	}
	for _, in := range paceFields() {
		in.ID, in.Value = "p-"+in.Key, q.Get(in.Key)
		d.Pace = append(d.Pace, in)
	}
	return &view{Title: "Start a redrive", Data: d}, nil
}

func (s source) startActs() map[string]act {
	return map[string]act{"start": {needs: Redrive, fields: []string{"new"}, run: func(ctx context.Context, p posted) (string, error) {
		plan, _, err := p.query.readPlan()
		if err != nil {
			return "", err
		}
		if plan.ID, err = p.newID(); err != nil {
			return "", err
		}
		return href("redrive", "id", plan.ID), s.startPlan(ctx, plan, p.by)
	}}}
}

// startPlan starts a redrive. The library stores the redrive first, and then marks its jobs. startPlan waits at most
// s.patience for the marking, because the page of the redrive shows how far the redrive is.
func (s source) startPlan(ctx context.Context, plan drover.RedrivePlan, by drover.Audit) error {
	short, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	r, err := s.client.StartRedrive(short, plan, by)
	if err == nil && r.ID == "" {
		return unchanged("No job matches the filter any more, so no redrive was started.")
	}
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		if _, readErr := s.client.Redrive(ctx, plan.ID); readErr == nil {
			return nil
		}
	}
	return err
}

// readRate reads how many jobs become due in a second. An empty text gives zero, which means the library's default. The
// client checks the bounds.
func readRate(text string) (rate float64, err error) {
	if text == "" {
		return 0, nil
	}
	if rate, err = strconv.ParseFloat(text, 64); err != nil || rate == 0 {
		return 0, badAt("rate", "Rate: %q is not 0.001 to 5,000 a second.", cut(text, 40))
	}
	return rate, nil
}
