package demo

import (
	"flag"
	"os"
	"strings"
	"testing"
	"unicode/utf8"
)

var update = flag.Bool("update", false, "rewrite the goldens in testdata") //nolint:gochecknoglobals // go test parses flags before any test runs

// D-5: the plot shows served and failed requests, columns beyond the top, and the limit.
func TestPlot(t *testing.T) {
	t.Parallel()
	paced := make([]second, 150) // three seconds in each column
	for i := range paced {
		paced[i].served = i % 60
	}
	paced[75].failed = 1
	var got strings.Builder
	for _, test := range []struct {
		name    string
		seconds []second
	}{
		{"nothing", nil},
		{"a herd", []second{{22, 900}, {0, 450}, {}, {1, 0}, {0, 1}, {59, 1}, {60, 0}, {61, 3}, {120, 0}, {120, 1}, {121, 0}}},
		{"long", paced},
	} {
		got.WriteString(test.name + "\n")
		for _, line := range plot(test.seconds, 60) {
			if n := utf8.RuneCountInString(line); n > 80 {
				t.Errorf("%s: a line of %d columns", test.name, n)
			}
			got.WriteString(line + "\n")
		}
	}
	const golden = "testdata/plot.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(got.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("got\n%swant\n%s", got.String(), want)
	}
}
