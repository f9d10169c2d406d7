package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-queue/drover"
)

func at(text string) time.Time {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		panic(err)
	}
	return t
}

// topNow is the time of the looks in these tests.
func topNow() time.Time { return at("2026-11-24T10:22:03Z") }

// someLook is a look at a busy database.
func someLook() *topLook {
	now := topNow()
	ago := func(d time.Duration) *time.Time {
		then := now.Add(-d)
		return &then
	}
	return &topLook{
		Database: "app", Schema: "drover", At: now,
		Queues: []topQueue{
			{Queue: "emails", Jobs: map[drover.State]int64{drover.Available: 40, drover.Running: 9, drover.Retryable: 3, drover.Discarded: 12, drover.Completed: 410000}, Estimated: []drover.State{drover.Completed}, OldestDue: ago(3 * time.Minute), Supervisors: 2},
			{Queue: "payments", Jobs: map[drover.State]int64{drover.Scheduled: 20, drover.Parked: 2}, Supervisors: 1, Paused: true},
			{Queue: "reports", Jobs: map[drover.State]int64{}, Supervisors: 1},
			{Queue: "支払い", Jobs: map[drover.State]int64{drover.Available: 7, drover.Discarded: 99}, OldestDue: ago(61 * time.Second)},
		},
		Findings: []drover.Finding{
			{Level: "critical", Name: "claim_lag", What: "queue 支払い: no live supervisor serves it", Why: "its jobs wait", Do: "start a process with this queue"},
			{Level: "warning", Name: "vacuum_held", What: "a transaction has been open for 3 hours", Do: "select pg_terminate_backend(4711)"},
		},
		Limits: []drover.Limit{{Scope: "queue:payments", HeldAt: now.Add(-8 * time.Minute), By: "ada", Why: "the bank is down", InEffect: true}},
		Failures: []topFailure{
			{Fingerprint: "c0ffee00c0ffee00", Kind: "charge", Runs: 420, Jobs: 33, LastSeen: now.Add(-20 * time.Second), Regressions: 1, Sample: "card declined: カードが拒否されました \x1b[31m"},
			{Fingerprint: "c0ffee00c0ffee01", Kind: "mail", Runs: 17, Jobs: 9, LastSeen: now.Add(-90 * time.Second), Sample: "dial tcp 10.0.0.1:25: i/o timeout after 30 seconds while the mail provider was down"},
		},
		Open: 31,
		Redrives: []topRedrive{
			{ID: "01KAJ4Y8Q3N6T0V5B7C9D1E2FG", State: drover.RedriveRunning, Rate: 20, Matched: 3000, Released: 1400, By: "ada", CreatedAt: now.Add(-70 * time.Second), Filter: []byte(`{"kind": "charge"}`)},
			{ID: "01KAJ4Y8Q3N6T0V5B7C9D1E2FH", State: drover.RedriveCanary, Paused: true, Rate: 50, Matched: 10, By: "bob", Note: "held up: 2 canaries failed", CreatedAt: now, Filter: []byte(`{}`)},
		},
		Supervisors: []drover.SupervisorInfo{
			{ID: "01KAJ4Y8Q3N6T0V5B7C9D1E2S1", Host: "worker-1", PID: 4711, Build: "v1.4.2", Queues: []string{"emails", "payments", "reports"}, State: "alive", BeatAt: now.Add(-2 * time.Second), InFlight: 9, Slots: 30, LeaseMS: 30000},
			{ID: "01KAJ4Y8Q3N6T0V5B7C9D1E2S2", Host: "worker-2", PID: 4712, Build: "v1.4.2", Queues: []string{"emails"}, State: "silent", BeatAt: now.Add(-5 * time.Minute), Slots: 10, LeaseMS: 30000},
		},
		inserted: 500_000, runs: 437,
	}
}

// earlierLook is a look ten seconds before someLook.
func earlierLook() *topLook {
	l := someLook()
	l.At = l.At.Add(-10 * time.Second)
	l.Queues[0].Jobs = map[drover.State]int64{drover.Available: 140, drover.Running: 9, drover.Retryable: 3}
	l.Redrives[0].Released = 1200
	l.Failures[0].Runs = 415
	l.inserted, l.runs = 499_877, 432
	return l
}

func newTestModel(width, height int) *topModel {
	m := newTopModel(topOptions{every: 2 * time.Second, by: drover.By{Who: "ada"}}, style{})
	m.look(earlierLook(), topNow())
	m.look(someLook(), topNow())
	m.resize(width, height)
	return m
}

func (m *topModel) keys(keys ...key) (acts []topAction) {
	for _, k := range keys {
		if act := m.key(k); act != nil {
			acts = append(acts, *act)
		}
	}
	return acts
}

// A rate is a difference of two looks, and unknown if either has only an estimate, or if a counter was lost.
func TestTopRates(t *testing.T) {
	t.Parallel()
	h := history{}.add(earlierLook()).add(someLook())
	for name, c := range map[string]struct{ got, want string }{
		"enqueued": {h.enqueued().String(), "12"},
		"failed":   {h.failed().String(), "0.5"},
		"emails":   {h.change("emails").signed(), "-10"},
		"payments": {h.change("payments").signed(), "0"},
		"new":      {history{}.add(someLook()).change("emails").signed(), "-"},
		"redrive":  {h.releasedOf("01KAJ4Y8Q3N6T0V5B7C9D1E2FG").String(), "20"},
		"unknown":  {h.releasedOf("x").String(), "-"},
		"failure":  {h.runsOf("c0ffee00c0ffee00").String(), "0.5"},
		"up":       {rate{3.14, true}.signed(), "+3.1"},
	} {
		if c.got != c.want {
			t.Errorf("%s: %s, want %s", name, c.got, c.want)
		}
	}
	reset := someLook()
	reset.At, reset.inserted = reset.At.Add(2*time.Second), 5
	reset.Queues[0].Estimated = []drover.State{drover.Available}
	h = h.add(reset)
	if r := h.enqueued(); r.known {
		t.Errorf("a counter that fell makes the rate %v", r)
	}
	if r := h.change("emails"); r.known {
		t.Errorf("an estimate makes the rate %v", r)
	}
	if back := h.add(earlierLook()); len(back) != 1 {
		t.Errorf("%d looks after the clock went back", len(back))
	}
}

// The history is short, but has two looks even if they are far apart.
func TestTopHistory(t *testing.T) {
	t.Parallel()
	var h history
	for i := range 100 {
		l := someLook()
		l.At = l.At.Add(time.Duration(i) * 2 * time.Second)
		h = h.add(l)
	}
	if len(h) != 8 {
		t.Errorf("%d looks, want those of 15 s", len(h))
	}
	late := someLook()
	late.At = late.At.Add(time.Hour)
	if h = h.add(late); len(h) != 2 {
		t.Errorf("%d looks after an outage", len(h))
	}
}

func TestTopMoves(t *testing.T) {
	t.Parallel()
	m := newTestModel(100, 30)
	marked := func() string {
		p := m.part(m.focus)
		return p.rows[m.marks[m.focus].in(p)].key
	}
	for i, c := range []struct {
		key  key
		want string
	}{
		{keyUp, "emails"},
		{keyDown, "支払い"},
		{"j", "payments"},
		{"k", "支払い"},
		{"j", "payments"},
		{"j", "reports"},
		{keyDown, "reports"},
		{"s", "reports"}, // by waiting jobs; the mark stays on its row
		{"s", "reports"},
		{keyUp, "payments"},
		{keyTab, "c0ffee00c0ffee00"},
		{"j", "c0ffee00c0ffee01"},
		{keyBackTab, "payments"},
		{keyBackTab, "claim_lag" + "queue 支払い: no live supervisor serves it"},
		{keyBackTab, "01KAJ4Y8Q3N6T0V5B7C9D1E2S1"},
	} {
		m.key(c.key)
		if got := marked(); got != c.want {
			t.Errorf("step %d, %s: %q is marked, want %q", i, c.key, got, c.want)
		}
	}
	m.focus = topQueuesSection
	gone := someLook()
	gone.At, gone.Queues = gone.At.Add(time.Second), gone.Queues[:1]
	m.look(gone, topNow())
	if got := marked(); got != "emails" {
		t.Errorf("%q is marked after its row has gone", got)
	}
	gone = &topLook{At: gone.At.Add(time.Second)}
	m.look(gone, topNow())
	if acts := m.keys("j", "p", "y", keyEnter); len(acts) > 0 || m.note != "" && !strings.Contains(m.note, "no queue") {
		t.Errorf("%v, %q", acts, m.note)
	}
}

func TestTopPauses(t *testing.T) {
	t.Parallel()
	pause := topAction{queue: "emails", pause: true, by: drover.By{Who: "ada", Why: "drover top"}}
	bank := topAction{queue: "emails", pause: true, by: drover.By{Who: "ada", Why: "a bänk"}}
	resume := topAction{queue: "payments", by: drover.By{Who: "ada", Why: "drover top"}}
	for i, c := range []struct {
		keys []key
		want []topAction
	}{
		{[]key{"p", "y", keyEnter}, []topAction{pause}},
		{[]key{"p", "Y", "a", keySpace, "b", "ä", "n", "q", keyBackspace, "k", keyEnter}, []topAction{bank}},
		{[]key{"p", "n", "y", keyEnter}, nil},
		{[]key{"p", "q", keyEnter}, nil},
		{[]key{"p", keyEnter, keyEscape, "y", keyEnter}, nil},
		{[]key{"p", "y", "w", keyEscape, keyEnter}, nil},
		{[]key{"p", "y", keyBackspace, keyEnter}, []topAction{pause}},
		{[]key{"j", "j", "p", "y", keyEnter}, []topAction{resume}},
		{[]key{keyTab, "p", "y", keyEnter}, nil},
		{[]key{"p", "y", keyEnter, "p", "y", keyEnter}, []topAction{pause}}, // one at a time
	} {
		m := newTestModel(100, 30)
		if got := m.keys(c.keys...); !slices.Equal(got, c.want) {
			t.Errorf("case %d: %v, want %v", i, got, c.want)
		}
		if m.done {
			t.Errorf("case %d leaves", i)
		}
	}
	m := newTestModel(100, 30)
	m.acted(m.keys("p", "y", keyEnter)[0], errors.New("drover: permission\ndenied"))
	if want := "not done: pause queue emails: permission denied"; m.note != want || m.busy != "" {
		t.Errorf("%q, want %q", m.note, want)
	}
	if m.key(keyInterrupt); !m.done {
		t.Error("Ctrl-C does not leave")
	}
	m = newTestModel(100, 30)
	if m.keys("p", "y", keyInterrupt); !m.done {
		t.Error("Ctrl-C does not leave a question")
	}
}

// What a terminal sends becomes keys, whatever it is and however it is cut.
func TestTopKeys(t *testing.T) {
	t.Parallel()
	const sent = "j\x1b[A\x1bOBé支 \x1b[1;5C\x1b[Z\t\r\n\x7f\b\x01\x00\xff\x03"
	want := []key{"j", keyUp, keyDown, "é", "支", keySpace, keyTab, keyBackTab, keyTab, keyEnter, keyEnter, keyBackspace, keyBackspace, keyInterrupt}
	for cut := range len(sent) {
		first, rest := readKeys([]byte(sent[:cut]))
		second, left := readKeys(append(slices.Clone(rest), sent[cut:]...))
		if got := append(first, second...); len(left) > 0 || !slices.Equal(got, want) && !slices.Contains(got, keyEscape) {
			t.Errorf("cut at %d: %v and %q, want %v", cut, got, left, want)
		}
	}
	if keys, _ := readKeys([]byte("\x1b")); !slices.Equal(keys, []key{keyEscape}) {
		t.Errorf("escape is %v", keys)
	}
}

func FuzzTopKeys(f *testing.F) {
	f.Add([]byte("p y\x1b[A\x1b"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		keys, rest := readKeys(slices.Clone(raw))
		if len(rest) > 15 {
			t.Errorf("%d bytes are left", len(rest))
		}
		m := newTestModel(80, 24)
		m.keys(keys...)
		if lines := m.screen(); len(lines) != 24 {
			t.Errorf("%d lines", len(lines))
		}
	})
}

// Every size has exactly its lines, none of them too wide, whatever has the focus.
func TestTopFitsEverySize(t *testing.T) {
	t.Parallel()
	many := someLook()
	for i := range 50 {
		many.Queues = append(many.Queues, topQueue{Queue: fmt.Sprintf("tenant-%02d-%s", i, strings.Repeat("長", i%40)), Jobs: map[drover.State]int64{drover.Available: 1 << 40}})
	}
	for _, look := range []*topLook{someLook(), many, {At: topNow()}, nil} {
		for _, height := range []int{1, 5, 6, 9, 16, 24, 60} {
			for _, width := range []int{15, 20, 40, 59, 60, 61, 80, 100, 250} {
				for focus := range topSections {
					m := newTopModel(topOptions{}, style{})
					if look != nil {
						m.look(look, topNow())
					}
					m.focus = focus
					m.keys("j", "j", "j")
					m.missed(errors.New("dial tcp: "+strings.Repeat("カ", 200)), topNow().Add(time.Minute))
					m.resize(width, height)
					lines := m.screen()
					if len(lines) != height {
						t.Fatalf("%d lines in %d×%d", len(lines), width, height)
					}
					for _, line := range lines {
						if columns(line) > width {
							t.Fatalf("%d columns in %d×%d: %q", columns(line), width, height, line)
						}
					}
				}
			}
		}
	}
}
