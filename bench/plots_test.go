package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPlots(t *testing.T) {
	t.Parallel()
	r := exampleReport()
	r.Scenarios = append(r.Scenarios,
		ScenarioReport{Name: "none", Results: []Result{{Contender: bullmqName, Reason: "is not there"}}},
		ScenarioReport{Name: "processes", Title: "together", Results: []Result{{Contender: keepName, Figures: []Figure{
			{Name: "1 process", Unit: jobsPerSecond, Median: 100, Min: 90, Max: 110},
			{Name: "16 processes", Unit: jobsPerSecond, Median: 95, Min: 90, Max: 100},
			{Name: figureProcessShare, Unit: shareOfOwn, Median: 0.95, Min: 0.9, Max: 1},
		}}}},
	)
	dir := filepath.Join(t.TempDir(), "plots")
	if err := r.save(options{plots: dir}); err != nil {
		t.Fatal(err)
	}
	for name, parts := range map[string][]string{
		"burn.svg":      {">burn-down<", ">drover keep<", ">river<", ">100,000<", "jobs/s"},
		"latency.svg":   {">p50<", ">drover keep<", "ms"},
		"processes.svg": {">together<", ">drover keep<", "processes"},
	} {
		svg, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		}
		for _, part := range parts {
			if !strings.Contains(string(svg), part) {
				t.Errorf("%s: no %s", name, part)
			}
		}
	}
	if files, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(files) != 3 {
		t.Errorf("%v, %v: a scenario without figures has a plot", files, err)
	}
}
