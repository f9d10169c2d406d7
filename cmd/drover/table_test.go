package main

import (
	"bytes"
	"strings"
	"testing"
)

func rowsOfJobs() [][]string {
	return [][]string{
		{"ID", "QUEUE", "KIND", "STATE", "ATTEMPT", "DUE", "LAST ERROR"},
		{"01ARZ3NDEKTSV4RRFFQ69G5FAV", "payments", "charge", "discarded (panic)", "20/20", "ended 3m ago", strings.Repeat("カードが拒否されました ", 40)},
		{"01ARZ3NDEKTSV4RRFFQ69G5FAW", "支払い", strings.Repeat("k", 100), "available", "0/20", "in 5s"},
		{"01ARZ3NDEKTSV4RRFFQ69G5FAX", "e\u0301te\u0301", "mail", "retryable", "3/20", "in 5m", "timeout"},
	}
}

// C-1: a table fits a terminal of 60 to 250 columns, and an id is never cut. What does not fit is named.
func TestTablesFitTheTerminal(t *testing.T) {
	t.Parallel()
	for width := 60; width <= 250; width++ {
		var out bytes.Buffer
		if err := (&app{stdout: &out, width: width}).table(rowsOfJobs()); err != nil {
			t.Fatal(err)
		}
		text := out.String()
		for line := range strings.Lines(text) {
			if line = strings.TrimRight(line, "\n"); columns(line) > width && !strings.HasPrefix(line, "no room for ") {
				t.Errorf("%d columns in %d: %q", columns(line), width, line)
			}
		}
		for _, want := range []string{"01ARZ3NDEKTSV4RRFFQ69G5FAV", "payments", "支払い"} {
			if !strings.Contains(text, want) {
				t.Errorf("width %d: no %q in:\n%s", width, want, text)
			}
		}
		heading, _, _ := strings.Cut(text, "\n")
		for _, name := range rowsOfJobs()[0] {
			if !strings.Contains(heading, name) && !strings.Contains(text, "no room for ") {
				t.Errorf("width %d: %s is gone, and nothing says so:\n%s", width, name, text)
			}
		}
	}
}

// C-1: in a pipe nothing is cut or coloured, and wide characters keep the columns straight.
func TestTablesInAPipe(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := (&app{stdout: &out}).table(rowsOfJobs()); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	if !strings.Contains(text, strings.TrimSpace(rowsOfJobs()[1][6])) || !strings.Contains(text, rowsOfJobs()[2][2]) || strings.ContainsAny(text, "…\x1b") {
		t.Errorf("something is cut or coloured:\n%s", text)
	}
	lines := strings.Split(text, "\n")
	want := columns(lines[0][:strings.Index(lines[0], "STATE")])
	for i, state := range []string{"discarded", "available", "retryable"} {
		if before, _, found := strings.Cut(lines[i+1], state); !found || columns(before) != want {
			t.Errorf("the state is not in column %d: %q", want, lines[i+1])
		}
	}
}

func TestColours(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	a := &app{stdout: &out, width: 80, style: style{true}}
	if err := a.table([][]string{{"NAME", "STATE"}, {"a", "discarded (panic)"}, {"lost", "alive"}}); err != nil {
		t.Fatal(err)
	}
	want := "\x1b[1mNAME  STATE\x1b[0m\na     \x1b[31mdiscarded (panic)\x1b[0m\nlost  \x1b[32malive\x1b[0m\n"
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

func TestMoments(t *testing.T) {
	t.Parallel()
	now := at("2026-11-24T10:00:00Z")
	for text, want := range map[string]string{
		"2026-11-22T08:00:00+01:00": "2026-11-22T07:00:00Z",
		"2026-11-22":                "2026-11-22T00:00:00Z",
		"2026-11-22 08:30":          "2026-11-22T08:30:00Z",
		"2026-11-22T08:30":          "2026-11-22T08:30:00Z",
		"2026-11-22 08:30:15":       "2026-11-22T08:30:15Z",
		"15m":                       "2026-11-24T10:15:00Z",
		"in 15m":                    "2026-11-24T10:15:00Z",
		"15m ago":                   "2026-11-24T09:45:00Z",
		"2d ago":                    "2026-11-22T10:00:00Z",
	} {
		if got, ok := parseWhen(text, fromNow); !ok || !got.at(now).Equal(at(want)) {
			t.Errorf("%q is %v, want %s", text, got.at(now), want)
		}
	}
	for _, bad := range []string{"", "soon", "ago", "in", "15 m", "-2h", "-2h ago", "2026-02-30", "in 2h ago"} {
		if got, ok := parseWhen(bad, fromNow); ok {
			t.Errorf("%q is %v", bad, got.at(now))
		}
	}
	var m moment
	if err := m.Set("15m ago"); err != nil || !m.before(now).Equal(at("2026-11-24T09:45:00Z")) {
		t.Errorf("%v, %v", m.before(now), err)
	}
	if err := m.Set("in 15m"); err == nil {
		t.Error("a filter takes a time to come")
	}
}
