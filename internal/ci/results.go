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

// results are what one log holds.
type results struct {
	order    []testID            // in the order in which they began
	ends     map[testID][]string // pass, fail or skip, for each time a test ran to its end
	began    map[testID]int      // how often a test began
	output   map[testID][]string
	failures []string // packages that failed though none of their tests did
}

func read(path string) (*results, error) {
	log, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parse(bytes.NewReader(log))
}

func parse(log io.Reader) (*results, error) {
	r := &results{ends: map[testID][]string{}, began: map[testID]int{}, output: map[testID][]string{}}
	failed := map[string]bool{} // packages with a failed test since they began
	for d := json.NewDecoder(log); ; {
		var e event
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			return r, nil
		} else if err != nil {
			return nil, err
		}
		id := testID{e.Package, e.Test}
		switch e.Action {
		case "start":
			failed[e.Package] = false
		case "run":
			if r.began[id] == 0 {
				r.order = append(r.order, id)
			}
			r.began[id]++
		case "output":
			r.output[id] = append(r.output[id], e.Output)
		case "pass", "fail", "skip":
			switch {
			case e.Test != "":
				r.ends[id] = append(r.ends[id], e.Action)
				failed[e.Package] = failed[e.Package] || e.Action == "fail"
			case e.Action == "fail" && !failed[e.Package] && !slices.Contains(r.failures, e.Package):
				r.failures = append(r.failures, e.Package)
			}
		}
	}
}

// ended returns how the test ended when it ran last, or "" if it never did.
func (r *results) ended(id testID) string {
	ends := r.ends[id]
	if len(ends) == 0 {
		return ""
	}
	return ends[len(ends)-1]
}

// judge returns an error unless tests ran, none was skipped except slow ones under -short, each that began also passed
// in the end, and no package failed by itself, as one does whose TestMain exits with 1. gotestsum takes such a
// package for good.
func (r *results) judge(out io.Writer) error {
	var bad []string
	passed := 0
	for _, id := range r.order {
		said := strings.Join(r.output[id], "")
		switch {
		case len(r.ends[id]) < r.began[id]:
			bad = append(bad, "did not end: "+id.String())
		case r.ended(id) == "fail":
			bad = append(bad, "failed: "+id.String())
		case r.ended(id) == "skip" && !strings.Contains(said, tier.Skipped):
			bad = append(bad, "skipped: "+id.String())
		case r.ended(id) == "pass":
			passed++
		}
	}
	for _, pkg := range r.failures {
		bad = append(bad, "failed without a failed test: "+pkg+"\n"+tail(r.output[testID{pkg, ""}], 100))
	}
	if passed == 0 {
		bad = append(bad, "no test has passed")
	}
	r.tellFlaky(out)
	if len(bad) > 0 {
		return fmt.Errorf("the results are not good:\n%s", strings.Join(bad, "\n"))
	}
	return nil
}

// tellFlaky prints each test that failed and then passed, with its output and that of its subtests.
func (r *results) tellFlaky(out io.Writer) {
	for _, id := range r.order {
		if id != id.root() || r.ended(id) != "pass" || !slices.Contains(r.ends[id], "fail") {
			continue
		}
		fmt.Fprintln(out, "FLAKY", id)
		for _, sub := range r.order {
			if sub.root() == id && slices.Contains(r.ends[sub], "fail") {
				fmt.Fprint(out, tail(r.output[sub], 100))
			}
		}
	}
}

func tail(lines []string, n int) string { return strings.Join(lines[max(0, len(lines)-n):], "") }
