package main

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite the goldens in testdata") //nolint:gochecknoglobals // go test parses flags before any test runs

// C-1: what the screen shows. A golden for each sort of screen.
func TestTopGoldens(t *testing.T) {
	t.Parallel()
	asked := newTestModel(100, 30)
	asked.keys("j", "p")
	typed := newTestModel(80, 24)
	typed.keys("p", "y", "t", "h", "e", keySpace, "b", "a", "n", "k")
	away := newTestModel(100, 24)
	away.missed(errors.New("take a snapshot: failed to connect to `user=app database=app`: 10.0.0.5:5432 (db.internal): dial error: connect: connection refused"), topNow().Add(14*time.Second))
	first := newTopModel(topOptions{}, style{})
	first.resize(60, 8)
	failures := newTestModel(100, 16)
	failures.keys(keyTab, "j")
	colour := newTestModel(120, 40)
	colour.style = style{true}
	for name, lines := range map[string][]string{
		"narrow":   newTestModel(60, 16).screen(),
		"wide":     newTestModel(250, 50).screen(),
		"colour":   colour.screen(),
		"asked":    asked.screen(),
		"typed":    typed.screen(),
		"away":     away.screen(),
		"first":    first.screen(),
		"failures": failures.screen(),
		"pipe":     newTestModel(0, 0).frame(0),
	} {
		got := strings.Join(lines, "\n") + "\n"
		file := filepath.Join("testdata", "top_"+name+".txt")
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s is\n%s\nwant\n%s", name, got, want)
		}
	}
}
