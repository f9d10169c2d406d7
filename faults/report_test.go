package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestResumeTakesOverWhatHasPassed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	red := &report{Tier: "full", Seed: 7, dir: dir}
	for _, s := range []result{
		{Scenario: "S-1", Verdict: "pass", Faults: 3, Jobs: 10, Recovery: 2},
		{Scenario: "K-1", Verdict: "pass", Faults: 1, Lost: 5, Recovery: 9},
		{Scenario: "W-1", Verdict: "fail", Faults: 2, Jobs: 1, Error: "broken", Violations: []violation{{Invariant: "I1", Job: "A", What: "gone"}}},
	} {
		if err := red.add(s); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "report.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"2 of 3 pass", "| 6 | 11 |", "## W-1\n\nbroken", "I1: A gone", "| 0 | 2.0 s |"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("report.md lacks %q:\n%s", want, text)
		}
	}
	all := []scenario{{id: "S-1"}, {id: "K-1"}, {id: "W-1"}}
	if red.passed(all) {
		t.Error("a red run passes")
	}
	again := &report{Tier: "full", dir: dir}
	if err := again.resume(); err != nil {
		t.Fatal(err)
	}
	if again.Seed != 7 || !again.has("S-1") || !again.has("K-1") || again.has("W-1") {
		t.Errorf("resumed %+v", again)
	}
	if err := again.add(result{Scenario: "W-1", Verdict: "pass"}); err != nil || !again.passed(all) {
		t.Errorf("the second run does not pass: %v", err)
	}
	for _, other := range []*report{{Tier: "quick", dir: dir}, {Tier: "full", Seed: 8, dir: dir}, {Tier: "full"}} {
		if other.resume() == nil {
			t.Errorf("%s, seed %d: resumed", other.Tier, other.Seed)
		}
	}
}
