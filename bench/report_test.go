package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

func TestMedian(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{[]float64{7}, 7},
		{[]float64{3, 1, 2}, 2},
		{[]float64{4, 1, 3, 2}, 2.5},
		{[]float64{5, 5, 1, 9, 100}, 5},
	} {
		before := append([]float64(nil), c.values...)
		if got := median(c.values); got != c.want {
			t.Errorf("median(%v) = %v, want %v", c.values, got, c.want)
		}
		if !reflect.DeepEqual(before, c.values) {
			t.Errorf("median changed the order of the rounds: %v", c.values)
		}
	}
}

func TestResultTakesRounds(t *testing.T) {
	t.Parallel()
	var r Result
	r.take([]figure{{"a", "jobs/s", 10}, {"b", "ms", 1}})
	r.take([]figure{{"a", "jobs/s", 30}, {"b", "ms", 4}})
	r.take([]figure{{"a", "jobs/s", 20}})
	want := []Figure{
		{Name: "a", Unit: "jobs/s", Values: []float64{10, 30, 20}, Median: 20, Min: 10, Max: 30},
		{Name: "b", Unit: "ms", Values: []float64{1, 4}, Median: 2.5, Min: 1, Max: 4},
	}
	if !reflect.DeepEqual(r.Figures, want) {
		t.Errorf("%+v", r.Figures)
	}
}

// A ratio is more than one when the first contender is better, whether more or less of the figure is better; without
// one of its sides it is left out.
func TestRatios(t *testing.T) {
	t.Parallel()
	results := []Result{
		{Contender: "x", Figures: []Figure{{Name: "rate", Median: 300}, {Name: "wait", Median: 2}, {Name: "none", Median: 0}}},
		{Contender: "y", Figures: []Figure{{Name: "rate", Median: 100}, {Name: "wait", Median: 50}, {Name: "none", Median: 1}}},
		{Contender: "absent", Reason: "is not there"},
	}
	got := ratiosOf([]ratio{
		{of: "x", against: "y", figure: "rate", wanted: "≥ 2"},
		{of: "x", against: "y", figure: "wait", lower: true},
		{of: "x", against: "absent", figure: "rate"},
		{of: "unknown", against: "y", figure: "rate"},
		{of: "x", against: "y", figure: "none", lower: true},
	}, results)
	want := []RatioValue{
		{Text: "rate: x against y", Value: 3, Wanted: "≥ 2"},
		{Text: "wait: x quicker than y", Value: 25},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
}

func TestNumber(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{
		0: "0.00", 0.996: "1.00", 3.456: "3.46", 10: "10.0", 99.94: "99.9", 100: "100", 999.6: "1,000", 12345: "12,345", 1234567: "1,234,567",
	} {
		if got := number(v); got != want {
			t.Errorf("number(%v) = %q, want %q", v, got, want)
		}
	}
}

// exampleReport has one of everything: rounds, a contender that is not there, a contender that failed, ratios, an
// interruption.
func exampleReport() *Report {
	rate := func(median, low, high float64) []Figure {
		return []Figure{{Name: figureBurn, Unit: jobsPerSecond, Values: []float64{low, median, high}, Median: median, Min: low, Max: high}}
	}
	r := &Report{
		Taken:      "2000-01-02T03:04:05Z",
		Machine:    Machine{CPUs: 2, CPU: "Example 1", Memory: "16 kB", System: "linux/amd64"},
		Versions:   map[string]string{"river": "v1", "go": "go1"},
		Settings:   map[string]string{"fsync": "on", "shared_preload_libraries": ""},
		Sizes:      quickSizes(),
		Contenders: []Contender{{Name: keepName, Settings: "kept"}, {Name: bullmqName, Settings: "tuned", Version: "bullmq 1"}},
		Scenarios: []ScenarioReport{{
			Name: "burn", Title: "burn-down", Rounds: 3, Notes: []string{"A note."},
			Results: []Result{
				{Contender: keepName, Figures: rate(100_000, 90_000, 101_000)},
				{Contender: riverName, Figures: rate(25_000, 24_000, 26_500), Reason: "out of connections", Failed: true},
				{Contender: bullmqName, Reason: "does not take part: there is no node"},
			},
		}, {
			Name: "latency", Title: "idle", Rounds: 1,
			Results: []Result{{Contender: keepName, Figures: []Figure{
				{Name: figureP50, Unit: "ms", Values: []float64{1.234}, Median: 1.234, Min: 1.234, Max: 1.234},
				{Name: sameClient + figureMax, Unit: "ms", Values: []float64{5}, Median: 5, Min: 5, Max: 5},
			}}},
			Ratios: []RatioValue{},
		}},
		Ended: "context canceled",
	}
	r.Scenarios[0].Ratios = ratiosOf([]ratio{{of: keepName, against: riverName, figure: figureBurn, wanted: "≥ 3.5"}}, r.Scenarios[0].Results)
	return r
}

func TestReportForPeople(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := exampleReport().write(&out); err != nil {
		t.Fatal(err)
	}
	golden(t, "report.txt", out.Bytes())
}

func TestReportAsJSON(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "out.json")
	if err := exampleReport().save(options{out: path}); err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "report.json", doc)
	var back Report
	if err := json.Unmarshal(doc, &back); err != nil {
		t.Fatal(err)
	}
	if want := exampleReport(); !reflect.DeepEqual(&back, want) {
		t.Errorf("read back: %+v\nwant %+v", &back, want)
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if flag.Lookup("update").Value.String() == "true" {
		if err := os.WriteFile(path, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (go test -update rewrites it):\n%s", path, got)
	}
}

// A reader that has gone away is an error of the report, and not swallowed.
func TestReportToAClosedPipe(t *testing.T) {
	t.Parallel()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(read.Close(), write.Close()); err != nil {
		t.Fatal(err)
	}
	if err := exampleReport().write(write); err == nil {
		t.Error("no error")
	}
}
