package ui

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/drover-queue/drover"
)

// overview is what the first page shows: what needs a person, then the queues.
type overview struct {
	Findings    []drover.Finding
	Quarantined []drover.JobInfo // the newest jobs that have killed their process
	More        bool             // there are more of them
	CameBack    []drover.FailureGroup
	Unserved    []string // queues with due jobs that no living supervisor serves
	Limits      []drover.Limit
	Queues      []queueRow
	States      []drover.State
	Living      int      // supervisors
	Unknown     []string // what took too long to find out

	snap *drover.Snapshot
}

// Calm reports whether nothing needs a person.
func (o *overview) Calm() bool {
	return len(o.Findings)+len(o.Quarantined)+len(o.CameBack)+len(o.Unserved)+len(o.Limits)+len(o.Unknown) == 0
}

// queueRow is a queue with its jobs by state.
type queueRow struct {
	Name      string
	Cells     []drover.QueueCount // one for each of allStates, in their order
	OldestDue *time.Time
	Serving   int // living supervisors
	Paused    bool
}

func allStates() []drover.State {
	return []drover.State{
		drover.Available, drover.Scheduled, drover.Retryable, drover.Running, drover.Parked, drover.Discarded, drover.Completed, drover.Cancelled,
	}
}

const fewJobs = 10 // jobs or groups that the overview names

func (s source) overview(ctx context.Context, q query) (*view, error) {
	if err := q.only(); err != nil {
		return nil, err
	}
	snap, err := s.client.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	o := &overview{Findings: snap.Findings, Limits: snap.Limits, Queues: queueRows(snap), States: allStates(), snap: snap}
	if err := s.lookAtDeadLetters(ctx, o); err != nil {
		return nil, err
	}
	for _, row := range o.Queues {
		if row.OldestDue != nil && !serves(snap, row.Name) {
			o.Unserved = append(o.Unserved, row.Name)
		}
	}
	for i := range snap.Supervisors {
		if snap.Supervisors[i].State == "alive" {
			o.Living++
		}
	}
	return &view{Title: "Overview", At: snap.At, Data: o}, nil
}

// deadLetterTime bounds each look at the dead letters: both read an index of all of them.
const deadLetterTime = 3 * time.Second

// lookAtDeadLetters finds the newest quarantined jobs, and the open failure groups that had been resolved.
func (s source) lookAtDeadLetters(ctx context.Context, o *overview) error {
	for _, part := range []struct {
		name string
		look func(context.Context) error
	}{
		{"quarantined jobs", func(ctx context.Context) error {
			killers, err := s.client.Jobs(ctx, drover.Filter{Reason: drover.ReasonCrashed}, "", fewJobs)
			o.Quarantined, o.More = killers.Jobs, killers.Next != ""
			return err
		}},
		{"failures that came back", func(ctx context.Context) error {
			open, err := s.client.FailureGroups(ctx, drover.FailureFilter{Status: drover.FailureOpen})
			o.CameBack = slices.DeleteFunc(open, func(g drover.FailureGroup) bool { return g.Regressions == 0 })
			o.CameBack = o.CameBack[:min(len(o.CameBack), fewJobs)]
			return err
		}},
	} {
		short, cancel := context.WithTimeout(ctx, s.patience)
		err := part.look(short)
		late := short.Err() != nil && ctx.Err() == nil
		cancel()
		if late {
			o.Unknown = append(o.Unknown, part.name)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// serves reports whether a living supervisor claims from the queue.
func serves(snap *drover.Snapshot, queue string) bool {
	return slices.ContainsFunc(snap.Supervisors, func(i drover.SupervisorInfo) bool {
		return i.State == "alive" && slices.Contains(i.Queues, queue)
	})
}

// queueRows has a row for every queue that has jobs or a supervisor, the longest wait first.
func queueRows(snap *drover.Snapshot) []queueRow {
	rows := map[string]*queueRow{}
	row := func(name string) *queueRow {
		if rows[name] == nil {
			rows[name] = &queueRow{Name: name, Cells: make([]drover.QueueCount, len(allStates()))}
		}
		return rows[name]
	}
	for _, c := range snap.Counts {
		r := row(c.Queue)
		if i := slices.Index(allStates(), c.State); i >= 0 {
			r.Cells[i] = c
		}
		if c.OldestDue != nil && (r.OldestDue == nil || c.OldestDue.Before(*r.OldestDue)) {
			r.OldestDue = c.OldestDue
		}
	}
	for _, i := range snap.Supervisors {
		for _, queue := range i.Queues {
			if i.State == "alive" {
				row(queue).Serving++
			}
		}
	}
	for _, l := range snap.Limits {
		for name, r := range rows {
			r.Paused = r.Paused || l.Scope == "all" || l.Scope == "queue:"+name
		}
	}
	all := []queueRow{}
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		all = append(all, *rows[name])
	}
	slices.SortStableFunc(all, func(a, b queueRow) int { return compareDue(a.OldestDue, b.OldestDue) })
	return all
}

// compareDue puts the earliest first, and nil last.
func compareDue(a, b *time.Time) int {
	switch {
	case a != nil && b != nil:
		return a.Compare(*b)
	case a == nil && b == nil:
		return 0
	}
	return cmp.Compare(boolInt(a == nil), boolInt(b == nil))
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// queueData is a queue's own page.
type queueData struct {
	queueRow
	States      []drover.State
	Supervisors []drover.SupervisorInfo
	Limits      []drover.Limit // that hold its jobs
	Held        bool           // itself, so that it can be resumed
	Seen        string         // its own pause
}

// Unknown reports whether nothing is known of the queue. A schedule or a deleted job may still name it.
func (d *queueData) Unknown() bool {
	return len(d.Supervisors) == 0 && !slices.ContainsFunc(d.Cells, func(c drover.QueueCount) bool { return c.Jobs > 0 })
}

func (s source) queue(ctx context.Context, q query) (*view, error) {
	name, err := q.id("name")
	if err != nil {
		return nil, err
	}
	snap, err := s.client.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	d := &queueData{queueRow: queueRow{Name: name, Cells: make([]drover.QueueCount, len(allStates()))}, States: allStates()}
	rows := queueRows(snap)
	if i := slices.IndexFunc(rows, func(r queueRow) bool { return r.Name == name }); i >= 0 {
		d.queueRow = rows[i]
	}
	for _, l := range snap.Limits {
		if l.Scope == "all" || l.Scope == "queue:"+name {
			d.Limits = append(d.Limits, l)
			if l.Scope != "all" {
				d.Held, d.Seen = true, shapeOfLimit(&l)
			}
		}
	}
	for _, i := range snap.Supervisors {
		if slices.Contains(i.Queues, name) {
			d.Supervisors = append(d.Supervisors, i)
		}
	}
	return &view{Title: "Queue " + visible(name), At: snap.At, Data: d}, nil
}

// supervisorsData are the processes.
type supervisorsData struct {
	Supervisors []drover.SupervisorInfo
}

func (s source) supervisors(ctx context.Context, q query) (*view, error) {
	if err := q.only(); err != nil {
		return nil, err
	}
	snap, err := s.client.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	return &view{Title: "Supervisors", At: snap.At, Data: &supervisorsData{snap.Supervisors}}, nil
}
