package main

import (
	"strings"
	"testing"
	"time"
)

// Each of these judges is shown what it is there to find.
func TestJudgesOfScenarios(t *testing.T) {
	t.Parallel()
	migration := fault{What: underLoad, Begun: at(1000), Ended: at(2000)}
	gauges := func(growth int) (notes []note) {
		for n := range 1200 {
			for _, name := range []string{"w1", "w2"} {
				notes = append(notes, note{At: at(500 * n), Worker: name, Heap: 5<<20 + n*growth, Resident: 80 << 20})
			}
		}
		return notes
	}
	sizes := func(growth int) (list []tableSize) {
		for n := range 600 {
			list = append(list, tableSize{At: at(1000 * n), Bytes: 10<<20 + n*growth})
		}
		return list
	}
	shifted := func(by time.Duration) *history {
		h := &history{}
		for _, worker := range []string{"w1", "w2"} {
			l := life{h: h, v: version{Job: worker}}
			l.insert(1)
			l.claim(10, worker, worker)
			l.h.notes[len(l.h.notes)-1].At = at(12).Add(by)
			l.complete(20, false)
		}
		return h
	}
	blamed := shifted(0)
	l := life{h: blamed, v: version{Job: "C"}}
	l.insert(1)
	l.claim(10, "w1", "S1")
	l.rescue(20, "w2")

	for name, c := range map[string]struct {
		judge func(*history) []string
		h     *history
		want  string // empty: nothing is wrong
	}{
		"a migration that nobody waits for": {nothingWaitsLong, &history{faults: []fault{migration}, waits: []wait{{MS: 900}}}, ""},
		"no migration":                      {nothingWaitsLong, &history{}, "nothing was migrated"},
		"a wait for a lock":                 {nothingWaitsLong, &history{faults: []fault{migration}, waits: []wait{{MS: 1100, Waiting: "claim", For: "alter table"}}}, `"claim" waited for "alter table"`},
		"an enqueue that takes long": {nothingWaitsLong, &history{
			faults: []fault{migration}, calls: []call{{At: at(1500), What: "invoke", Job: "A"}, {At: at(5000), What: "ok", Job: "A"}},
		}, "an enqueue took"},
		"no claims for long": {nothingWaitsLong, &history{
			faults: []fault{migration}, versions: []version{{At: at(900), State: "running", Job: "A"}, {At: at(5000), State: "running", Job: "B"}},
		}, "no claim for"},
		"nothing grows":                   {nothingGrows, &history{gauges: gauges(0), sizes: sizes(0)}, ""},
		"a heap that grows":               {nothingGrows, &history{gauges: gauges(4 << 10), sizes: sizes(0)}, "live heap of w1 grows by 4.7 MB"},
		"a table that grows":              {nothingGrows, &history{gauges: gauges(0), sizes: sizes(128 << 10)}, "jobs took"},
		"nothing measured":                {nothingGrows, &history{}, "was not measured"},
		"clocks as they should be":        {clocksChangeNothing, shifted(0), ""},
		"a worker whose clock was right":  {clocksChangeNothing, shifted(-time.Hour), "was off by another"},
		"a run that is blamed on a clock": {clocksChangeNothing, blamed, "blamed on a death"},
		"workers that ran nothing":        {clocksChangeNothing, &history{}, "ran nothing"},
		"few refused transactions":        {fewRefusals, &history{faults: make([]fault, 2), rollbacks: 50}, ""},
		"many refused transactions":       {fewRefusals, &history{faults: make([]fault, 2), rollbacks: 51}, "51 transactions failed for 10 bad rows"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			said := strings.Join(c.judge(c.h), "\n")
			if c.want == "" && said != "" || !strings.Contains(said, c.want) {
				t.Errorf("said %q, want %q", said, c.want)
			}
		})
	}
}

func TestRacesAndDeadlocksAreViolations(t *testing.T) {
	t.Parallel()
	sc := scenario{id: "X"}
	for name, breach := range map[string]struct {
		invariant string
		do        func(h *history)
	}{
		"nothing":                  {"", func(*history) {}},
		"a report of the detector": {"race", func(h *history) { h.races = []string{"Read at 0x1"} }},
		"the server counts one":    {"deadlock", func(h *history) { h.deadlocks = 1 }},
		"a log tells of one":       {"deadlock", func(h *history) { h.victims = 1 }},
	} {
		h := sound()
		breach.do(h)
		found := sc.verdict(h)
		if breach.invariant == "" && len(found) == 0 {
			continue
		}
		if len(found) != 1 || found[0].Invariant != breach.invariant {
			t.Errorf("%s: found %v", name, found)
		}
	}
}

// A database that forgot commits explains only what followed from that.
func TestForgottenCommitsExplain(t *testing.T) {
	t.Parallel()
	h := &history{
		faults: []fault{{Forgotten: at(1000), Begun: at(5000), Ended: at(6000)}, {Begun: at(20_000), Ended: at(21_000)}},
		calls: []call{
			{At: at(900), What: "ok", Job: "before"},
			{At: at(2000), What: "ok", Job: "forgotten"},
			{At: at(2000), What: "unknown", Job: "unsure"},
			{At: at(9000), What: "ok", Job: "after"},
			{At: at(20_500), What: "ok", Job: "durable"},
		},
		notes:   []note{{At: at(3000), Job: "told"}, {At: at(900), Job: "told before"}},
		outside: []effect{{At: at(7000), Job: "worked on"}, {At: at(9000), Job: "worked long"}},
	}
	for _, c := range []struct {
		invariant, job string
		want           bool
	}{
		{"I1", "before", false},
		{"I1", "forgotten", true},
		{"I1", "unsure", false},
		{"I1", "after", false},
		{"I1", "durable", false},
		{"I7", "told", true},
		{"I7", "told before", false},
		{"I8", "worked on", true},
		{"I8", "worked long", false},
		{"I4", "told", false},
		{"I3", "forgotten", false},
		{"I10", "", false},
	} {
		if got := h.explained(violation{Invariant: c.invariant, Job: c.job}, 2*time.Second); got != c.want {
			t.Errorf("%s of %q: explained %v", c.invariant, c.job, got)
		}
	}
}
