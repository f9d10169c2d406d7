package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

func TestIsTerminal(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close() //nolint:errcheck // nothing was written
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []*os.File{r, null} {
		if isTerminal(f) {
			t.Errorf("%s is taken for a terminal", f.Name())
		}
		f.Close() //nolint:errcheck // it was only read
	}
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal("no terminal can be made here: ", err)
	}
	defer terminal.Close() //nolint:errcheck // nothing was written
	if !isTerminal(terminal) {
		t.Error("a terminal is not taken for one")
	}
}

// With </dev/null there is nobody to ask, as with a pipe.
func TestNobodyIsAskedAtTheNullDevice(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	if _, err := client.Enqueue(t.Context(), charge{}, nil); err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close() //nolint:errcheck // it is only read
	var stdout, stderr bytes.Buffer
	a := &app{stdin: null, interactive: isTerminal(null), stdout: &stdout, stderr: &stderr, getenv: func(string) string { return "" }}
	if code := a.run(t.Context(), append([]string{"jobs", "cancel", "--queue", "default"}, sh.flags...)); code != 2 || strings.Contains(stderr.String(), "Type yes") {
		t.Errorf("exit code %d, want 2 and no question:\n%s", code, &stderr)
	}
}

// The error is on a line of its own. That holds after Ctrl-D too, which ends no line.
func TestTheErrorFollowsTheQuestion(t *testing.T) {
	t.Parallel()
	sh := shellOn(t, pgtest.NewMigratedPool(t))
	var stdout, stderr bytes.Buffer
	a := &app{stdin: strings.NewReader(""), interactive: true, stdout: &stdout, stderr: &stderr, getenv: func(string) string { return "" }}
	if code := a.run(t.Context(), append([]string{"jobs", "cancel", "--all"}, sh.flags...)); code != 1 || !strings.Contains(stderr.String(), "Type yes to go on: \ndrover: not confirmed") {
		t.Errorf("exit code %d:\n%s", code, &stderr)
	}
	for _, answer := range []string{"no\n", "yes\n"} { // the user has ended the line
		sh.input = answer
		if o := sh.run(t, "jobs", "cancel", "--all"); strings.Contains(o.stderr, "go on: \n") {
			t.Errorf("%q leaves a line empty:\n%s", answer, o.stderr)
		}
	}
}
