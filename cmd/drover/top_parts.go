package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/drover-queue/drover"
)

// topSection is a part of the screen.
type topSection int

const (
	topPersonSection topSection = iota
	topQueuesSection
	topFailuresSection
	topRedrivesSection
	topSupervisorsSection
	topSections
)

// topOrder is how the queues are sorted.
type topOrder int

const (
	byName topOrder = iota
	byLateness
	byWaiting
	byDead
	topOrders
)

func (o topOrder) String() string {
	return [...]string{"name", "lateness", "waiting jobs", "dead letters"}[o]
}

// topPart is the content of a section, before it is fitted into the screen.
type topPart struct {
	none    string // what a frame says if there are no rows
	heading []string
	numbers int // so many columns after the first are numbers
	rows    []topRow
	more    int64 // rows that were not read
}

// topRow is a row. The key finds it in the next look.
type topRow struct {
	key    string
	cells  []string
	detail string // what the row has no room for
	paused bool   // of a queue
}

// part is the content of a section in the newest look. The first columns are those that a narrow screen keeps.
func (m *topModel) part(section topSection) *topPart {
	l := m.newest()
	if l == nil {
		return &topPart{none: "no look yet"}
	}
	switch section {
	case topPersonSection:
		return personPart(l)
	case topQueuesSection:
		return m.queuesPart(l)
	case topFailuresSection:
		return m.failuresPart(l)
	case topRedrivesSection:
		return m.redrivesPart(l)
	default:
		return supervisorsPart(l)
	}
}

// personPart is what needs a person: findings, and what is paused.
func personPart(l *topLook) *topPart {
	p := &topPart{none: "nothing needs a person", heading: []string{"LEVEL", "NEEDS A PERSON"}}
	for i := range l.Findings {
		f := &l.Findings[i]
		detail := f.Why
		if f.Do != "" {
			detail = "do: " + f.Do
		}
		p.rows = append(p.rows, topRow{key: f.Name + f.What, cells: []string{f.Level, f.What}, detail: detail})
	}
	for i := range l.Limits {
		limit := &l.Limits[i]
		p.rows = append(p.rows, topRow{key: limit.Scope, cells: []string{"paused", pausedNote(limit, l.At)}, detail: "do: drover resume " + shellQuote(limit.Scope)})
	}
	return p
}

func (m *topModel) queuesPart(l *topLook) *topPart {
	p := &topPart{
		none:    "no queue has jobs or supervisors",
		heading: []string{"QUEUE", "LATE", "AVAILABLE", "RUNNING", "RETRYABLE", "DEAD", "CHANGE/S", "SCHEDULED", "PARKED", "SERVED BY", "COMPLETED"}, numbers: 10,
	}
	for _, q := range m.order.sorted(l.Queues, l.At) {
		name, detail := q.Queue, ""
		if q.Paused {
			name += " (paused)"
		}
		for i := range l.Limits {
			if l.Limits[i].Scope == "queue:"+q.Queue {
				detail = pausedNote(&l.Limits[i], l.At)
			}
		}
		p.rows = append(p.rows, topRow{key: q.Queue, paused: q.Paused, detail: detail, cells: []string{
			name, q.lateText(l.At), q.count(drover.Available), q.count(drover.Running), q.count(drover.Retryable), q.count(drover.Discarded),
			m.looks.change(q.Queue).signed(), q.count(drover.Scheduled), q.count(drover.Parked), fmt.Sprint(q.Supervisors), q.count(drover.Completed),
		}})
	}
	return p
}

// sorted is the queues in this order; those that are alike in it, by name.
func (o topOrder) sorted(queues []topQueue, at time.Time) []topQueue {
	list := slices.Clone(queues)
	slices.SortStableFunc(list, func(a, b topQueue) int {
		switch o {
		case byLateness:
			return cmp.Compare(b.late(at), a.late(at))
		case byWaiting:
			return cmp.Compare(b.waiting(), a.waiting())
		case byDead:
			return cmp.Compare(b.Jobs[drover.Discarded], a.Jobs[drover.Discarded])
		}
		return 0
	})
	return list
}

// count is a number of jobs. It begins with ~ if it is an estimate.
func (q *topQueue) count(state drover.State) string {
	text := fmt.Sprint(q.Jobs[state])
	if slices.Contains(q.Estimated, state) {
		text = "~" + text
	}
	return text
}

func (m *topModel) failuresPart(l *topLook) *topPart {
	p := &topPart{
		none: "no open failures", more: l.Open - int64(len(l.Failures)),
		heading: []string{"FINGERPRINT", "RUNS", "RUNS/S", "JOBS", "LAST SEEN", "KIND", "SAMPLE"}, numbers: 3,
	}
	for i := range l.Failures {
		f := &l.Failures[i]
		sample := f.Sample
		if f.Regressions > 0 {
			sample = "came back: " + sample
		}
		p.rows = append(p.rows, topRow{key: f.Fingerprint, detail: f.Sample, cells: []string{
			f.Fingerprint, fmt.Sprint(f.Runs), m.looks.runsOf(f.Fingerprint).String(), fmt.Sprint(f.Jobs), ago(f.LastSeen, l.At), f.Kind, sample,
		}})
	}
	return p
}

func (m *topModel) redrivesPart(l *topLook) *topPart {
	p := &topPart{none: "no redrive runs", heading: []string{"REDRIVE", "DONE", "RELEASED", "NOW/S", "STATE", "RATE", "TO GO", "BY", "NOTE"}, numbers: 3}
	for i := range l.Redrives {
		r := &l.Redrives[i]
		done, togo, state := "-", "-", string(r.State)
		if r.Matched > 0 {
			done = fmt.Sprintf("%d%%", r.Released*100/r.Matched)
		}
		if left := r.Matched - r.Released; left > 0 && r.State == drover.RedriveRunning && !r.Paused {
			togo = span(seconds(float64(left) / r.Rate))
		}
		if r.Paused {
			state = "paused, " + state
		}
		p.rows = append(p.rows, topRow{key: r.ID, detail: string(r.Filter), cells: []string{
			r.ID, done, fmt.Sprintf("%d/%d", r.Released, r.Matched), m.looks.releasedOf(r.ID).String(), state, fmt.Sprintf("%g/s", r.Rate), togo, r.By, r.Note,
		}})
	}
	return p
}

func supervisorsPart(l *topLook) *topPart {
	p := &topPart{none: "no supervisor is running", heading: []string{"SUPERVISOR", "IN USE", "SLOTS", "LAST BEAT", "STATE", "HOST", "PID", "BUILD", "QUEUES"}, numbers: 2}
	for i := range l.Supervisors {
		s := &l.Supervisors[i]
		p.rows = append(p.rows, topRow{key: s.ID, detail: "queues: " + strings.Join(s.Queues, ", "), cells: []string{
			s.ID, fmt.Sprint(s.InFlight), fmt.Sprint(s.Slots), ago(s.BeatAt, l.At), s.State, s.Host, fmt.Sprint(s.PID), s.Build, strings.Join(s.Queues, " "),
		}})
	}
	return p
}

// slots sums up the supervisors that can run jobs.
func (l *topLook) slots() (living int, used, all int64) {
	for i := range l.Supervisors {
		if s := &l.Supervisors[i]; s.State == "alive" || s.State == "draining" {
			living, used, all = living+1, used+int64(s.InFlight), all+s.Slots
		}
	}
	return living, used, all
}

// age is how old the newest look is.
func (m *topModel) age() time.Duration { return max(0, m.now.Sub(m.seen)) }
