package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// result is what became of one scenario.
type result struct {
	Scenario   string      `json:"scenario"`
	What       string      `json:"what"`
	Rounds     int         `json:"rounds"`
	Faults     int         `json:"faults"`
	Jobs       int         `json:"jobs"`
	Runs       int         `json:"runs"`
	Duplicates int         `json:"duplicates"` // effects outside beyond one a job
	Refused    int         `json:"refused"`    // stale settles
	Lost       int         `json:"lost"`
	Recovery   float64     `json:"recovery_seconds"` // the longest
	Seconds    float64     `json:"seconds"`
	Verdict    string      `json:"verdict"` // pass, fail
	Error      string      `json:"error,omitempty"`
	Violations []violation `json:"violations,omitempty"`
}

// count fills in what the history tells without judging.
func (r *result) count(h *history) {
	jobs := h.byJob()
	for _, f := range h.faults {
		r.Faults += f.Count
		if took, recovered := recovery(jobs, f); recovered {
			r.Recovery = max(r.Recovery, took.Seconds())
		}
	}
	for _, j := range jobs {
		if j.said("ok") {
			r.Jobs++
		}
		r.Lost += len(lost(nil, j))
		r.Duplicates += max(0, len(j.outside)-1)
		for _, n := range j.notes {
			switch n.What {
			case "start":
				r.Runs++
			case "stale":
				r.Refused++
			}
		}
	}
}

func (r *result) line() string {
	text := fmt.Sprintf("%-5s %s  %3.0f s  rounds %d, faults %d, jobs %d, runs %d, duplicates %d, refused %d, lost %d, recovery %.1f s",
		r.Scenario, r.Verdict, r.Seconds, r.Rounds, r.Faults, r.Jobs, r.Runs, r.Duplicates, r.Refused, r.Lost, r.Recovery)
	if r.Verdict != "pass" {
		text += fmt.Sprintf("  %d violations  %s", len(r.Violations), r.Error)
	}
	return text
}

// shown are two violations of each invariant, unless they are what the scenario is for.
func (r *result) shown() (few []violation) {
	if r.Verdict == "pass" {
		return nil
	}
	shown := map[string]int{}
	for _, v := range r.Violations {
		if shown[v.Invariant]++; shown[v.Invariant] <= 2 {
			few = append(few, v)
		}
	}
	return few
}

// writeReport leaves report.md for people and report.json for programs.
func writeReport(dir, tier string, seed uint64, results []result) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	text, err := json.MarshalIndent(map[string]any{
		"tier": tier, "seed": seed, "at": time.Now().UTC().Format(time.RFC3339), "scenarios": results,
	}, "", "\t")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "report.json"), append(text, '\n'), 0o644); err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# Fault suite\n\nTier %s, seed %d.\n\n", tier, seed)
	b.WriteString("| scenario | fault | rounds | faults | jobs | runs | duplicates | stale refused | lost | recovery | time | verdict |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for i := range results {
		r := &results[i]
		fmt.Fprintf(&b, "| %s | %s | %d | %d | %d | %d | %d | %d | %d | %.1f s | %.0f s | %s |\n", r.Scenario, r.What, r.Rounds, r.Faults,
			r.Jobs, r.Runs, r.Duplicates, r.Refused, r.Lost, r.Recovery, r.Seconds, r.Verdict)
	}
	for i := range results {
		results[i].tell(&b)
	}
	return os.WriteFile(filepath.Join(dir, "report.md"), []byte(b.String()), 0o644)
}

// tell describes what a scenario that failed has broken.
func (r *result) tell(b *strings.Builder) {
	if r.Verdict == "pass" {
		return
	}
	fmt.Fprintf(b, "\n## %s\n\n%s\n", r.Scenario, r.Error)
	for v := range slices.Values(r.shown()) {
		fmt.Fprintf(b, "\n%s: %s %s\n\n", v.Invariant, v.Job, v.What)
		for _, line := range v.Story {
			fmt.Fprintf(b, "    %s\n", line)
		}
	}
}
