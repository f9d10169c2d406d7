package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/drover-queue/drover/internal/tier"
)

type testID struct{ pkg, name string }

func (id testID) String() string { return id.pkg + " " + id.name }

func (id testID) root() testID {
	name, _, _ := strings.Cut(id.name, "/")
	return testID{id.pkg, name}
}

// event is a line of go test -json.
type event struct {
	Action, Package, Test, Output string
}

// results are the contents of one log.
type results struct {
	order  []testID // in the order in which the tests began
	tests  map[testID]*testRuns
	broken []string // packages that failed, and not only because of a failed test
	races  []string // tests or packages in which the race detector found a race
}

// testRuns are all runs of one test.
type testRuns struct {
	began    int
	ends     []string // pass, fail or skip, for each run that ended
	output   []string // the output of the last run
	failures []string // the output of the runs that failed
}

// read returns the results in the log. If the log is damaged, it returns the results up to the damaged place.
func read(path string) (*results, error) {
	log, err := os.ReadFile(path)
	if err != nil {
		return &results{}, err
	}
	return parse(bytes.NewReader(log))
}

func parse(log io.Reader) (*results, error) {
	r := &results{tests: map[testID]*testRuns{}}
	packages := map[string]*packageRun{} // the present run of each package
	for d := json.NewDecoder(log); ; {
		var e event
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			return r, nil
		} else if err != nil {
			return r, err
		}
		if e.Package == "" {
			continue // output of the compiler: the package fails after it
		}
		if packages[e.Package] == nil || e.Action == "start" {
			packages[e.Package] = &packageRun{}
		}
		if strings.HasPrefix(e.Output, "WARNING: DATA RACE") {
			r.races = append(r.races, testID{e.Package, e.Test}.String())
		}
		if e.Test != "" {
			r.add(testID{e.Package, e.Test}, e)
		}
		packages[e.Package].add(e)
		if e.Action == "fail" && e.Test == "" {
			if why := packages[e.Package].broken(); why != "" {
				r.broken = append(r.broken, e.Package+why)
			}
		}
	}
}

func (r *results) add(id testID, e event) {
	t := r.tests[id]
	if t == nil {
		t = &testRuns{}
		r.tests[id] = t
		r.order = append(r.order, id)
	}
	switch e.Action {
	case "run":
		t.began++
		t.output = nil
	case "output":
		t.output = append(t.output, e.Output)
	case "pass", "skip":
		t.ends = append(t.ends, e.Action)
	case "fail":
		t.ends = append(t.ends, e.Action)
		t.failures = append(t.failures, t.output...)
	}
}

// The method ended returns the end of the test's last run, or "" if no run has ended.
func (r *results) ended(id testID) string {
	if t := r.tests[id]; t != nil && len(t.ends) > 0 {
		return t.ends[len(t.ends)-1]
	}
	return ""
}

// packageRun is one run of a package's tests.
type packageRun struct {
	failed bool // one of its tests failed
	ended  bool // all tests have ended: go test has printed PASS or FAIL
	output []string
	after  []string // the output after all tests had ended
}

func (p *packageRun) add(e event) {
	switch {
	case e.Test != "":
		p.failed = p.failed || e.Action == "fail"
	case e.Action != "output":
	case e.Output == "PASS\n" || e.Output == "FAIL\n":
		p.ended = true
	default:
		p.output = append(p.output, e.Output)
		if p.ended && !fromGo(e.Output) {
			p.after = append(p.after, e.Output)
		}
	}
}

// fromGo reports whether go test itself prints the line at the end of a package.
func fromGo(line string) bool {
	for _, prefix := range []string{"FAIL\t", "ok  \t", "exit status ", "coverage: ", "testing: warning: "} {
		if strings.HasPrefix(line, prefix) {
			return true
		}
	}
	return false
}

// The method broken returns the reason why a package failed, or "" if the reason is a failed test. Its TestMain may
// have found a fault after the tests, or the process may have ended during a test. Another run of the failed tests
// proves nothing about such a fault.
func (p *packageRun) broken() string {
	switch {
	case !p.failed:
		return " failed, and no test of it did\n" + tail(p.output)
	case !p.ended:
		return " ended before its tests did\n" + tail(p.output)
	case len(p.after) > 0:
		return " failed after its tests\n" + tail(p.after)
	}
	return ""
}

// judge prints the flaky tests. It returns an error in each of these cases: no test ran, a test did not pass in the
// end, a test was skipped that is neither a slow test under -short nor a test for the night, the race detector found a
// race, or a package failed for another reason than a failed test. gotestsum reports some such packages as passed.
func (r *results) judge(out io.Writer) error {
	var bad []string
	passed := 0
	for _, id := range r.order {
		t := r.tests[id]
		switch r.ended(id) {
		case "pass":
			passed++
		case "skip":
			if out := strings.Join(t.output, ""); !strings.Contains(out, tier.Skipped) && !strings.Contains(out, tier.SkippedByDay) {
				bad = append(bad, "skipped: "+id.String())
			}
		case "fail":
			bad = append(bad, "failed: "+id.String())
		}
		if len(t.ends) < t.began {
			bad = append(bad, "did not end: "+id.String())
		}
	}
	for _, pkg := range r.broken {
		bad = append(bad, "package: "+pkg)
	}
	for _, where := range r.races {
		bad = append(bad, "data race: "+where)
	}
	if passed == 0 {
		bad = append(bad, "no test has passed")
	}
	r.printFlaky(out)
	if len(bad) > 0 {
		return fmt.Errorf("the results are not good:\n%s", strings.Join(bad, "\n"))
	}
	return nil
}

// printFlaky prints each test that failed and then passed, with the output of the runs that failed.
func (r *results) printFlaky(out io.Writer) {
	for _, id := range r.order {
		if id != id.root() || r.ended(id) != "pass" || !slices.Contains(r.tests[id].ends, "fail") {
			continue
		}
		fmt.Fprintln(out, "FLAKY", id)
		for _, sub := range r.order {
			if sub.root() == id {
				fmt.Fprint(out, tail(r.tests[sub].failures))
			}
		}
	}
}

// tail returns the last lines of an output.
func tail(lines []string) string { return strings.Join(lines[max(0, len(lines)-100):], "") }
