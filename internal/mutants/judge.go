package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"
)

// result is the result of a run of tests.
type result struct {
	passed, failed []string
	output         map[string]string // the output of each failed test and of its subtests
	built          bool
	broken         string // why the run as a whole proves nothing: it timed out, or a server could not be started
}

// event is a line of go test -json.
type event struct {
	Action, Test, Output, FailedBuild string
}

// test runs tests of one package.
func test(ctx context.Context, root, pkg string, names []string, flags ...string) (result, error) {
	args := append([]string{"test", "-json", "-vet=off", "-count=1"}, flags...)
	args = append(args, "-run", "^("+strings.Join(names, "|")+")$", pkg)
	command := exec.CommandContext(ctx, "go", args...)
	command.Dir = root
	out, err := command.Output()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || ctx.Err() != nil) {
		return result{}, err
	}
	return parse(out)
}

func parse(out []byte) (result, error) {
	r := result{output: map[string]string{}, built: true}
	var all strings.Builder
	outputs := map[string]string{}
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 1<<24)
	red := false
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return r, fmt.Errorf("go test -json wrote %q", lines.Text())
		}
		name, _, sub := strings.Cut(e.Test, "/")
		all.WriteString(e.Output)
		outputs[name] += e.Output
		switch {
		case e.Action == "build-fail" || e.FailedBuild != "":
			r.built = false
		case e.Action == "pass" && name != "" && !sub:
			r.passed = append(r.passed, name)
		case e.Action == "fail" && name == "":
			red = true
		case e.Action == "fail" && !sub:
			r.failed = append(r.failed, name)
		}
	}
	for _, name := range r.failed {
		r.output[name] = outputs[name]
	}
	switch text := all.String(); {
	case !r.built:
		r.broken = "does not compile: " + text
	case strings.Contains(text, "panic: test timed out"):
		r.broken = "timed out"
	case red && len(r.failed) == 0:
		r.broken = "failed as a whole: " + text
	}
	return r, lines.Err()
}

// verdict records whether a test has caught a bug.
type verdict struct {
	caught    bool
	by        string // the test whose assertion failed
	assertion string
}

// judge looks for a failed assertion. An assertion about a wait that ran out of time does not count, and neither does a
// time-out of the whole run.
func judge(r result) (verdict, error) {
	if !r.built {
		return verdict{}, errors.New(r.broken)
	}
	assertion := regexp.MustCompile(`(?m)^ +(\w+_test\.go:\d+: .+)$`)
	slices.Sort(r.failed)
	said := r.broken
	for _, name := range r.failed {
		lines := assertion.FindAllStringSubmatch(r.output[name], -1)
		if len(lines) == 0 {
			continue
		}
		said = lines[len(lines)-1][1] // earlier lines may be a log
		if !ranOut(said) {
			return verdict{caught: r.broken == "", by: name, assertion: said}, nil
		}
	}
	return verdict{by: strings.Join(r.failed, ", "), assertion: said}, nil
}

// ranOut reports whether an assertion is about a wait that ran out of time: it has "not within", a duration as a person
// or Go writes it, and then a colon or the end.
func ranOut(assertion string) bool {
	return regexp.MustCompile(`: not within (a minute|\d+ m?s|(\d+(\.\d+)?(h|m|s|ms|µs|ns))+)(:|$)`).MatchString(assertion)
}

// row is the verdict as a row of the report.
func (v verdict) row(m mutant, took time.Duration) string {
	what := "**not caught**"
	if v.caught {
		what = "caught"
	}
	says := strings.Join(strings.Fields(v.assertion), " ")
	if len(says) > 160 {
		says = says[:160] + "…"
	}
	says = strings.NewReplacer("|", `\|`, "`", "'").Replace(says)
	return fmt.Sprintf("| %s: %s | %s | %s | `%s` | %d |", m.name, m.bug, what, v.by, strings.ToValidUTF8(says, ""), int(took.Seconds()))
}
