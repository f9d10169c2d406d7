package main

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func at(ms int) time.Time {
	return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(ms) * time.Millisecond)
}

// sound is a history in which nothing is wrong: job A completes in its second run, B is discarded after 22 failed
// ones, C is completed after its first owner died, F after it was dead, archived, restored and redriven, and G is pruned.
func sound() *history {
	h := &history{
		policy: policy{MaxAttempts: 22, Base: 100 * time.Millisecond, Max: 400 * time.Millisecond, Jitter: 0.25, Recovery: 2 * time.Second},
		faults: []fault{{What: "kill", Begun: at(40_000), Ended: at(40_500)}},
		resources: &resources{
			Before: gauge{Goroutines: 20, Connections: 30},
			After:  gauge{Goroutines: 21, Connections: 28},
		},
	}
	for _, id := range []string{"A", "B", "C", "F", "G"} {
		h.calls = append(h.calls, call{At: at(0), What: "invoke", Job: id}, call{At: at(1), What: "ok", Job: id})
	}
	h.calls = append(h.calls, call{At: at(0), What: "invoke", Job: "D"}, call{At: at(1), What: "fail", Job: "D"})
	h.calls = append(h.calls, call{At: at(0), What: "invoke", Job: "E"}, call{At: at(1), What: "unknown", Job: "E"})

	a := life{h: h, v: version{Job: "A", Payload: "a"}}
	a.insert(1)
	a.claim(10, "w1", "S1")
	a.fail(20, "boom A 1", 110*time.Millisecond)
	a.claim(140, "w2", "S2")
	a.complete(150, true)

	b := life{h: h, v: version{Job: "B", Payload: "b"}}
	b.insert(1)
	now := 10
	for n := 1; n <= 22; n++ {
		b.claim(now, "w1", "S1")
		delay := min(100*time.Millisecond<<(n-1), 400*time.Millisecond)
		b.fail(now+5, fmt.Sprintf("boom B %d", n), delay)
		now += 1000
	}
	b.discard()

	c := life{h: h, v: version{Job: "C", Payload: "c"}}
	c.insert(1)
	c.claim(40_000, "w1", "S1")
	c.rescue(41_000, "w2")
	c.claim(41_010, "w2", "S2")
	c.complete(41_100, false)

	f := life{h: h, v: version{Job: "F", Payload: "f"}}
	f.insert(1)
	f.claim(10, "w1", "S1")
	f.fail(20, "boom F 1", 0)
	f.discard()
	f.move(30, "DELETE")
	f.move(40, "INSERT")
	f.redrive(50, "w2")
	f.claim(60, "w1", "S1")
	f.complete(70, true)

	g := life{h: h, v: version{Job: "G", Payload: "g"}}
	g.insert(1)
	g.claim(10, "w1", "S1")
	g.complete(20, true)
	g.move(30, "DELETE")
	h.rows = slices.DeleteFunc(h.rows, func(r row) bool { return r.Job == "G" })
	return h
}

// life writes one job's history as a sound system would.
type life struct {
	h *history
	v version
}

func (l *life) write(ms int, writer string) {
	l.v.At, l.v.Begun, l.v.Written, l.v.Writer = at(ms), at(ms), at(ms), writer
	l.h.versions = append(l.h.versions, l.v)
}

func (l *life) note(ms int, what, err string) {
	l.h.notes = append(l.h.notes, note{
		At: at(ms), Worker: l.v.Writer, What: what, Job: l.v.Job, Supervisor: l.v.ClaimedBy, Attempt: l.v.Attempt, Err: err,
		Ran: what == "completed" || what == "failed",
	})
}

func (l *life) insert(ms int) {
	l.v.Op, l.v.State = "INSERT", "available"
	l.write(ms, "p1")
	l.v.Op = "UPDATE"
}

func (l *life) claim(ms int, writer, supervisor string) {
	l.v.State, l.v.ClaimedBy = "running", supervisor
	l.v.Attempt++
	l.v.ClaimSeq++
	l.write(ms, writer)
	l.note(ms, "start", "")
}

func (l *life) fail(ms int, text string, delay time.Duration) {
	l.note(ms, "end", text)
	l.note(ms, "failed", "")
	l.v.State, l.v.ClaimedBy, l.v.LastClass, l.v.LastError = "retryable", "", "error", text
	l.v.ErrorsTotal++
	l.v.LastEntry = text
	l.v.ScheduledAt = at(ms).Add(delay)
	l.write(ms, l.v.Writer)
	l.keepRow()
}

// discard makes the last failure end the job.
func (l *life) discard() {
	last := &l.h.versions[len(l.h.versions)-1]
	last.State, l.v.State = "discarded", "discarded"
	l.h.notes[len(l.h.notes)-1].What = "discarded"
	l.h.notes[len(l.h.notes)-1].What = "discarded"
	l.keepRow()
}

// move puts the row into the archive or back, as an operator does.
func (l *life) move(ms int, op string) {
	l.v.Op = op
	l.write(ms, "operator")
	l.v.Op = "UPDATE"
}

func (l *life) redrive(ms int, writer string) {
	l.v.State, l.v.Attempt, l.v.LastClass, l.v.LastError, l.v.LastEntry = "available", 0, "operator", "redriven", "redriven"
	l.v.Redrives++
	l.write(ms, writer)
}

func (l *life) rescue(ms int, writer string) {
	l.v.State, l.v.ClaimedBy, l.v.LastClass, l.v.LastError = "retryable", "", "crash", "the process died"
	l.v.LastEntry = "death"
	l.v.ErrorsTotal++
	l.write(ms, writer)
}

func (l *life) complete(ms int, transactional bool) {
	if transactional {
		l.h.inside = append(l.h.inside, effect{at(ms), l.v.Job, l.v.Writer})
	}
	l.h.outside = append(l.h.outside, effect{at(ms), l.v.Job, l.v.Writer})
	l.note(ms, "end", "")
	l.note(ms, "completed", "")
	l.v.State, l.v.ClaimedBy, l.v.Transactional = "completed", "", transactional
	l.write(ms, l.v.Writer)
	l.keepRow()
}

// keepRow makes the row what its versions say.
func (l *life) keepRow() *row {
	var texts []string
	entry := ""
	for _, v := range l.h.versions {
		if v.Job == l.v.Job && v.LastEntry != entry {
			entry = v.LastEntry
			texts = append(texts, v.LastError)
		}
	}
	if len(texts) > 20 {
		texts = slices.Concat(texts[:5], texts[len(texts)-15:])
	}
	r := l.h.row(l.v.Job)
	if r == nil {
		l.h.rows = append(l.h.rows, row{Job: l.v.Job})
		r = &l.h.rows[len(l.h.rows)-1]
	}
	r.State, r.ErrorsTotal, r.Errors = l.v.State, l.v.ErrorsTotal, texts
	return r
}

func (h *history) row(job string) *row {
	for i := range h.rows {
		if h.rows[i].Job == job {
			return &h.rows[i]
		}
	}
	return nil
}

// nth is the n-th version of a job, from 0.
func (h *history) nth(job string, n int) *version {
	for i := range h.versions {
		if h.versions[i].Job == job {
			if n == 0 {
				return &h.versions[i]
			}
			n--
		}
	}
	return nil
}

func TestCheckerFindsNothingInASoundHistory(t *testing.T) {
	t.Parallel()
	for _, v := range check(sound()) {
		t.Errorf("%s %s: %s\n%q", v.Invariant, v.Job, v.What, v.Story)
	}
}

// each history is broken by hand in one way.
func TestCheckerFindsEachBreach(t *testing.T) {
	t.Parallel()
	gone := func(job string) func(r row) bool { return func(r row) bool { return r.Job == job } }
	for name, test := range map[string]struct {
		want   string
		damage func(h *history)
	}{
		"acknowledged and lost": {"I1", func(h *history) { h.rows = slices.DeleteFunc(h.rows, gone("B")) }},
		"stored twice":          {"I2", func(h *history) { h.versions = append(h.versions, *h.nth("E2", 0)) }},
		"failed but there":      {"I2", func(h *history) { h.rows = append(h.rows, row{Job: "D", State: "scheduled"}) }},
		"failed, but there for a while": {"I2", func(h *history) {
			made := *h.nth("G", 0)
			made.Job = "D"
			gone := made
			gone.Op = "DELETE"
			h.versions = append(h.versions, made, gone)
		}},
		"nobody enqueued it":       {"I2", func(h *history) { h.rows = append(h.rows, row{Job: "X", State: "scheduled"}) }},
		"due and not done":         {"I3", func(h *history) { h.rows = append(h.rows, row{Job: "E", State: "available", Due: true}) }},
		"running for ever":         {"I3", func(h *history) { h.rows = append(h.rows, row{Job: "E", State: "running"}) }},
		"the fence stands still":   {"I4", func(h *history) { h.nth("A", 3).ClaimSeq, h.nth("A", 4).ClaimSeq = 1, 1 }},
		"the fence goes back":      {"I4", func(h *history) { h.nth("A", 4).ClaimSeq = 1 }},
		"a completed job changes":  {"I4", func(h *history) { v := *h.nth("A", 4); v.State = "available"; h.versions = append(h.versions, v) }},
		"claimed while it runs":    {"I4", func(h *history) { v := *h.nth("C", 1); v.ClaimedBy = "S9"; h.insertAfter("C", 1, v) }},
		"redriven twice at once":   {"I4", func(h *history) { h.nth("F", 5).Redrives, h.nth("F", 6).Redrives, h.nth("F", 7).Redrives = 2, 2, 2 }},
		"a live job is redriven":   {"I4", func(h *history) { h.nth("A", 4).Redrives = 1 }},
		"the dead come to life":    {"I4", func(h *history) { h.nth("F", 5).Redrives, h.nth("F", 6).Redrives, h.nth("F", 7).Redrives = 0, 0, 0 }},
		"one attempt too many":     {"I5", func(h *history) { h.nth("B", 43).Attempt = 23 }},
		"args change":              {"I5", func(h *history) { h.nth("A", 4).Payload = "other" }},
		"a failure is not counted": {"I6", func(h *history) { h.row("B").ErrorsTotal-- }},
		"a failure leaves no entry": {"I6", func(h *history) {
			h.nth("C", 2).LastEntry, h.nth("C", 3).LastEntry, h.nth("C", 4).LastEntry = "", "", ""
			h.row("C").Errors = nil
		}},
		"an error is gone":              {"I6", func(h *history) { h.row("B").Errors = h.row("B").Errors[1:] }},
		"an error has another text":     {"I6", func(h *history) { h.row("B").Errors = slices.Clone(h.row("B").Errors); h.row("B").Errors[0] = "?" }},
		"an error that no run returned": {"I6", func(h *history) { h.nth("A", 2).LastError = "?"; h.row("A").Errors = []string{"?"} }},
		"settled by another process":    {"I7", func(h *history) { h.nth("A", 4).Writer = "w1" }},
		"settled by an older supervisor of the same process": {"I7", func(h *history) {
			for i := range h.notes {
				if h.notes[i].What == "completed" && h.notes[i].Job == "A" {
					h.notes[i].Supervisor = "S1"
				}
			}
		}},
		"failed by an older supervisor of the same process": {"I7", func(h *history) {
			i := slices.IndexFunc(h.notes, func(n note) bool { return n.What == "failed" && n.Job == "B" })
			h.notes[i].Supervisor = "S0"
		}},
		"an effect twice in the database": {"I8", func(h *history) { h.inside = append(h.inside, h.inside[0]) }},
		"an effect twice of a pruned job": {"I8", func(h *history) { h.inside = append(h.inside, effect{at(1), "G", "w1"}) }},
		"no effect in the database":       {"I8", func(h *history) { h.inside = nil }},
		"an effect of a discarded job":    {"I8", func(h *history) { h.inside = append(h.inside, effect{at(1), "B", "w1"}) }},
		"no effect outside":               {"I8", func(h *history) { h.outside = h.outside[1:] }},
		"two effects of one claim": {"I8", func(h *history) {
			h.outside = append(h.outside, effect{at(1), "A", "w1"}, effect{at(1), "A", "w1"})
		}},
		"retried too soon": {"I9", func(h *history) { h.nth("A", 2).ScheduledAt = at(20).Add(90 * time.Millisecond) }},
		"retried too late": {"I9", func(h *history) { h.nth("A", 2).ScheduledAt = at(20).Add(130 * time.Millisecond) }},
		"goroutines leak":  {"I10", func(h *history) { h.resources.After.Goroutines = 40 }},
		"an idle transaction is left": {"I10", func(h *history) {
			h.resources.After.IdleInTx = 1
		}},
		"a run ends twice": {"I12", func(h *history) {
			h.notes = append(h.notes, note{Worker: "w1", What: "stale", Job: "F", Supervisor: "S1", Ran: true})
		}},
		"a run has no end": {"I12", func(h *history) {
			h.policy.EveryoneStaysAlive = true
			h.notes = slices.DeleteFunc(h.notes, func(n note) bool { return n.Job == "C" })
			h.notes = append(h.notes, note{Worker: "w1", What: "start", Job: "F"})
		}},
		"no recovery":     {"I11", func(h *history) { h.faults[0].Ended = at(90_000) }},
		"a late recovery": {"I11", func(h *history) { h.policy.Recovery = 100 * time.Millisecond }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := sound()
			second := life{h: h, v: version{Job: "E2", Payload: "e"}} // enqueued twice under one id, stored once
			h.calls = append(h.calls, call{What: "invoke", Job: "E2"}, call{What: "unknown", Job: "E2"}, call{What: "invoke", Job: "E2"}, call{What: "ok", Job: "E2"})
			second.insert(1)
			second.keepRow()
			test.damage(h)
			var found []string
			for _, v := range check(h) {
				found = append(found, v.Invariant)
				t.Log(v.Invariant, v.Job, v.What)
			}
			if len(found) == 0 || slices.ContainsFunc(found, func(i string) bool { return i != test.want }) {
				t.Errorf("found %v, want %s alone", found, test.want)
			}
		})
	}
}

// insertAfter puts a version behind the n-th of a job.
func (h *history) insertAfter(job string, n int, v version) {
	last := *h.nth(job, n)
	i := slices.Index(h.versions, last)
	h.versions = slices.Insert(h.versions, i+1, v)
}

// Operators' entries have a bound of their own, and push out none of a run.
func TestKeptEntries(t *testing.T) {
	t.Parallel()
	var all []entry
	for n := range 24 {
		all = append(all, entry{fmt.Sprint(n), false}, entry{fmt.Sprint("by ", n), n%2 == 0})
	}
	got := kept(all)
	if len(got) != 20+10 || got[0] != "0" || !slices.Contains(got, "by 22") || slices.Contains(got, "by 10") || slices.Contains(got, "5") {
		t.Errorf("%d: %q", len(got), got)
	}
}
