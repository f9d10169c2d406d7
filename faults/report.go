package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// result is the result of one scenario.
type result struct {
	Scenario   string      `json:"scenario"`
	What       string      `json:"what"`
	Rounds     int         `json:"rounds"`
	Faults     int         `json:"faults"`
	Jobs       int         `json:"jobs"`
	Runs       int         `json:"runs"`
	Duplicates int         `json:"duplicates"` // how many times a job repeated its effect outside of the database
	Refused    int         `json:"refused"`    // how many stale settles were refused
	Lost       int         `json:"lost"`
	Recovery   float64     `json:"recovery_seconds"` // the longest recovery
	Seconds    float64     `json:"seconds"`
	StartedMS  [2]float64  `json:"start_p99_ms"` // from a job's insert to its claim, before and after the first fault
	Measured   string      `json:"measured,omitempty"`
	Verdict    string      `json:"verdict"` // pass, fail
	Error      string      `json:"error,omitempty"`
	Violations []violation `json:"violations,omitempty"`
}

// count fills in the numbers from the history. It does not judge them.
func (r *result) count(h *history) {
	jobs := h.byJob()
	if r.Scenario == "L-9" {
		r.Measured = fmt.Sprintf("%d transactions failed", h.rollbacks)
	}
	if len(h.faults) > 0 {
		before, after := h.startDelays()
		r.StartedMS = [2]float64{quantile(before, 0.99).Seconds() * 1000, quantile(after, 0.99).Seconds() * 1000}
	}
	for _, f := range h.faults {
		if r.Scenario == "L-11" {
			r.Measured = f.What
		}
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
	if strings.HasPrefix(r.Scenario, "L-8") || r.Scenario == "L-9" {
		text += fmt.Sprintf("; 99 of 100 start within %.1f ms, %.1f before the first fault", r.StartedMS[1], r.StartedMS[0])
	}
	if r.Measured != "" {
		text += "; " + r.Measured
	}
	if r.Verdict != "pass" {
		text += fmt.Sprintf("  %d violations  %s", len(r.Violations), r.Error)
	}
	return text
}

// The method shown returns up to two violations of each invariant. It returns none if the scenario passed, because then
// its violations are intended.
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

// report has the results of all scenarios. The suite writes the report again after each scenario.
type report struct {
	Tier      string    `json:"tier"`
	Seed      uint64    `json:"seed"`
	At        time.Time `json:"at"`
	Totals    result    `json:"totals"`
	Scenarios []result  `json:"scenarios"`

	dir string // empty: the suite writes no report
	mu  sync.Mutex
}

// resume takes over the results of the scenarios that passed in an earlier run.
func (r *report) resume() error {
	if r.dir == "" {
		return errors.New("--resume: of which --report?")
	}
	text, err := os.ReadFile(filepath.Join(r.dir, "report.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var earlier report
	if err := errors.Join(err, json.Unmarshal(text, &earlier)); err != nil {
		return fmt.Errorf("--resume: %w", err)
	}
	if earlier.Tier != r.Tier || r.Seed != 0 && earlier.Seed != r.Seed {
		return fmt.Errorf("--resume: the report is of tier %s, seed %d", earlier.Tier, earlier.Seed)
	}
	r.Seed = earlier.Seed
	r.Scenarios = slices.DeleteFunc(earlier.Scenarios, func(s result) bool { return s.Verdict != "pass" })
	return nil
}

// The method has reports whether there is a result of the scenario.
func (r *report) has(id string) bool {
	return slices.ContainsFunc(r.Scenarios, func(s result) bool { return s.Scenario == id })
}

// The method passed reports whether all of these scenarios have passed.
func (r *report) passed(chosen []scenario) bool {
	return !slices.ContainsFunc(chosen, func(sc scenario) bool {
		return !slices.ContainsFunc(r.Scenarios, func(s result) bool { return s.Scenario == sc.id && s.Verdict == "pass" })
	})
}

// add prints a result and writes the report.
func (r *report) add(s result) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Println(s.line())
	for _, v := range s.shown() {
		fmt.Printf("    %s %s %s\n", v.Invariant, v.Job, v.What)
		for _, line := range v.Story {
			fmt.Println("        " + line)
		}
	}
	r.Scenarios = append(r.Scenarios, s)
	return r.write()
}

// write writes report.md for people and report.json for programs.
func (r *report) write() error {
	if r.dir == "" {
		return nil
	}
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return err
	}
	r.At, r.Totals = time.Now().UTC().Truncate(time.Second), total(r.Scenarios)
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(r.dir, "report.json"), append(text, '\n'), 0o644); err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# Fault suite\n\nTier %s, seed %d.\n\n", r.Tier, r.Seed)
	b.WriteString("| scenario | fault | rounds | faults | jobs | runs | duplicates | stale refused | lost | recovery | time | verdict |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, s := range append(slices.Clone(r.Scenarios), r.Totals) {
		fmt.Fprintf(&b, "| %s | %s | %d | %d | %d | %d | %d | %d | %d | %.1f s | %.0f s | %s |\n", s.Scenario, s.What, s.Rounds, s.Faults,
			s.Jobs, s.Runs, s.Duplicates, s.Refused, s.Lost, s.Recovery, s.Seconds, s.Verdict)
	}
	for i := range r.Scenarios {
		r.Scenarios[i].violated(&b)
	}
	return os.WriteFile(filepath.Join(r.dir, "report.md"), []byte(b.String()), 0o644)
}

// total sums up the results. Its recovery is the longest recovery of all scenarios. The losses and the recovery of K-1
// do not count, because K-1 is the negative control.
func total(scenarios []result) result {
	sum, red := result{Scenario: "all", What: "the longest recovery; losses without K-1's"}, 0
	for i := range scenarios {
		s := &scenarios[i]
		sum.Rounds += s.Rounds
		sum.Faults += s.Faults
		sum.Jobs += s.Jobs
		sum.Runs += s.Runs
		sum.Duplicates += s.Duplicates
		sum.Refused += s.Refused
		if s.Scenario != "K-1" {
			sum.Lost += s.Lost
			sum.Recovery = max(sum.Recovery, s.Recovery)
		}
		sum.Seconds += s.Seconds
		if s.Verdict != "pass" {
			red++
		}
	}
	sum.Verdict = fmt.Sprintf("%d of %d pass", len(scenarios)-red, len(scenarios))
	return sum
}

// The method violated describes the invariants that a failed scenario has broken.
func (r *result) violated(b *strings.Builder) {
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
