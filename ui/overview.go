package ui

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/drover-queue/drover"
)

// overview is what the first page shows: the findings that need a person, then the queues.
type overview struct {
	Findings    []drover.Finding
	Quarantined []drover.QuarantinedJob
	CameBack    []drover.FailureGroup
	New         []drover.FailureGroup // open failures with many failed runs that began within the last hour
	Unserved    []string              // queues with due jobs that no living supervisor serves
	Pauses      []drover.PauseInfo
	NotSeen     []drover.NotSeen
	Queues      []queueRow
	States      []drover.State
	Living      int // how many supervisors are alive

	snap *drover.Snapshot
}

// Total is how many jobs all queues together have in these states. It begins with "~" if the number of one queue may be
// an estimate.
func (o *overview) Total(states ...drover.State) string {
	sum, about := int64(0), ""
	for i := range o.Queues {
		for _, state := range states {
			sum += o.Queues[i].Jobs[state]
			if o.Queues[i].About(state) {
				about = "~"
			}
		}
	}
	return about + number(sum)
}

// Oldest is when the job that has waited longest became due; nil if no job waits.
func (o *overview) Oldest() *time.Time {
	if len(o.Queues) == 0 {
		return nil
	}
	return o.Queues[0].OldestDue // the queue with the longest wait is the first
}

// Calm reports whether nothing needs a person.
func (o *overview) Calm() bool {
	return len(o.Findings)+len(o.Quarantined)+len(o.CameBack)+len(o.New)+len(o.Unserved)+len(o.Pauses)+len(o.NotSeen) == 0
}

// queueRow is a queue with its jobs by state.
type queueRow struct {
	drover.QueueDepth
	Serving int   // how many living supervisors serve the queue
	Slots   int64 // how many slots these supervisors have for the queue
	Ran     *ran  // nil: no job ran within the last hour
}

// About reports whether the number of jobs in a state may be an estimate. drover counts up to 200 unfinished jobs of a
// queue, and up to 200 dead jobs. So smaller numbers are exact, and larger numbers may be estimates.
func (r queueRow) About(state drover.State) bool {
	const counted = 200
	dead := r.Jobs[drover.Discarded]
	if state == drover.Discarded {
		return r.Estimated && dead >= counted
	}
	unfinished := -dead
	for _, n := range r.Jobs {
		unfinished += n
	}
	return r.Estimated && unfinished >= counted
}

// Cells has the number of jobs in each state, in the order of depthStates.
func (r queueRow) Cells() (cells []int64) {
	for _, state := range depthStates() {
		cells = append(cells, r.Jobs[state])
	}
	return cells
}

// depthStates are the states that a snapshot counts.
func depthStates() []drover.State {
	return []drover.State{drover.Available, drover.Scheduled, drover.Retryable, drover.Running, drover.Parked, drover.Discarded}
}

const (
	fewJobs = 10 // how many jobs or groups the overview names

	// A failure needs a person if it began less than youngFailure ago and has at least manyFailures failed runs.
	youngFailure = time.Hour
	manyFailures = 20
)

// look is a snapshot with the list of supervisors.
type look struct {
	*drover.Snapshot
	supervisors []drover.SupervisorInfo
}

func (s source) look(ctx context.Context) (l look, err error) {
	if l.Snapshot, err = s.client.Snapshot(ctx); err != nil {
		return l, err
	}
	l.supervisors, err = s.client.Supervisors(ctx)
	return l, err
}

// The method serving returns how many living supervisors a queue has, and how many slots they have for it.
func (l look) serving(queue string) (n int, slots int64) {
	for i := range l.supervisors {
		if l.supervisors[i].State == drover.SupervisorAlive && slices.Contains(l.supervisors[i].Queues, queue) {
			n++
			slots += l.supervisors[i].QueueSlots[queue]
		}
	}
	return n, slots
}

// rows has every queue. The queue with the longest wait is the first.
func (l look) rows() []queueRow {
	rows := make([]queueRow, len(l.Queues))
	for i, q := range l.Queues {
		rows[i].QueueDepth = q
		rows[i].Serving, rows[i].Slots = l.serving(q.Queue)
	}
	slices.SortStableFunc(rows, func(a, b queueRow) int { return compareDue(a.OldestDue, b.OldestDue) })
	return rows
}

func (s source) overview(ctx context.Context, q query) (*view, error) {
	if err := q.checkKeys(); err != nil {
		return nil, err
	}
	now, err := s.look(ctx)
	if err != nil {
		return nil, err
	}
	o := &overview{Findings: now.Findings, Quarantined: now.Quarantined, Pauses: now.Pauses, NotSeen: now.NotSeen, Queues: now.rows(), States: depthStates(), Living: now.Supervisors.Alive, snap: now.Snapshot}
	if o.CameBack, err = s.client.FailureGroups(ctx, drover.FailureFilter{Status: drover.FailureOpen, Regressed: true, Limit: fewJobs}); err != nil {
		return nil, err
	}
	if o.New, err = s.newFailures(ctx, now.At); err != nil {
		return nil, err
	}
	activity, missing, err := s.activity(ctx)
	if err != nil {
		return nil, err
	}
	o.NotSeen = append(o.NotSeen, missing...)
	for i, row := range o.Queues {
		o.Queues[i].Ran = activity[row.Queue]
		if row.OldestDue != nil && row.Serving == 0 {
			o.Unserved = append(o.Unserved, row.Queue)
		}
	}
	o.Findings = slices.DeleteFunc(slices.Clone(o.Findings), o.shownElsewhere)
	return &view{Title: "Overview", At: now.At, Data: o}, nil
}

// shownElsewhere reports whether the page has an article of its own about a finding.
func (o *overview) shownElsewhere(f drover.Finding) bool {
	if f.Name == "quarantined" {
		return len(o.Quarantined) > 0
	}
	return f.Name == "claim_lag" && slices.ContainsFunc(o.Unserved, func(queue string) bool {
		return strings.HasPrefix(f.What, "a due job of queue "+queue+" has waited ")
	})
}

// newFailures are open failures that began a short time ago and have many failed runs. The failure with the most failed
// runs is the first.
func (s source) newFailures(ctx context.Context, now time.Time) ([]drover.FailureGroup, error) {
	groups, err := s.client.FailureGroups(ctx, drover.FailureFilter{Status: drover.FailureOpen, Limit: fewGroups})
	if err != nil {
		return nil, err
	}
	groups = slices.DeleteFunc(groups, func(g drover.FailureGroup) bool {
		return g.Count < manyFailures || g.FirstSeen.Before(now.Add(-youngFailure)) || g.Regressions > 0
	})
	slices.SortStableFunc(groups, func(a, b drover.FailureGroup) int { return cmp.Compare(b.Count, a.Count) })
	return groups[:min(len(groups), fewJobs)], nil
}

// compareDue sorts the earliest time first, and nil last.
func compareDue(a, b *time.Time) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return 1
	case b == nil:
		return -1
	}
	return a.Compare(*b)
}

// queueData is a queue's own page.
type queueData struct {
	queueRow
	Known       bool // false: the queue has no jobs and no supervisor; a schedule or a deleted job may still name it
	States      []drover.State
	Supervisors []drover.SupervisorInfo
	Pauses      []drover.PauseInfo // the pauses that keep its jobs from starting
	Held        bool               // the queue itself is paused, so it can be resumed
	Seen        string             // PauseInfo.Seen of the queue's own pause
	NotSeen     []drover.NotSeen   // the reason why Ran is missing
}

func (s source) queue(ctx context.Context, q query) (*view, error) {
	name, err := q.id("name")
	if err != nil {
		return nil, err
	}
	now, err := s.look(ctx)
	if err != nil {
		return nil, err
	}
	d := &queueData{queueRow: queueRow{QueueDepth: drover.QueueDepth{Queue: name, Jobs: map[drover.State]int64{}}}, States: depthStates()}
	d.Known = slices.ContainsFunc(now.NotSeen, func(n drover.NotSeen) bool { return n.Part == "depths" })
	for _, row := range now.rows() {
		if row.Queue == name {
			d.queueRow, d.Known = row, true
		}
	}
	activity, missing, err := s.activity(ctx, name)
	if err != nil {
		return nil, err
	}
	d.Ran, d.NotSeen = activity[name], missing
	for i := range now.Pauses {
		switch p := &now.Pauses[i]; p.Scope {
		case drover.QueueScope(name):
			d.Held, d.Seen = true, p.Seen
			fallthrough
		case drover.AllJobs:
			d.Pauses = append(d.Pauses, *p)
		}
	}
	for _, i := range now.supervisors {
		if slices.Contains(i.Queues, name) {
			d.Supervisors = append(d.Supervisors, i)
		}
	}
	return &view{Title: "Queue " + visible(name), At: now.At, Data: d}, nil
}

func (s source) healthPage(ctx context.Context, q query) (*view, error) {
	if err := q.checkKeys(); err != nil {
		return nil, err
	}
	snap, err := s.client.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	return &view{Title: "Health", At: snap.At, Data: snap}, nil
}
