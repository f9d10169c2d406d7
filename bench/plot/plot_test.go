package plot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the goldens in testdata") //nolint:gochecknoglobals // go test parses flags before any test runs

func TestGolden(t *testing.T) {
	t.Parallel()
	for name, draw := range map[string]func(io.Writer) error{
		"bars": func(w io.Writer) error {
			return Bars(w, "200,000 no-op jobs, burnt down", "jobs/s", []Group{
				{"rows kept", []Bar{{"drover", 113200, 109800, 116900}, {"river", 29100, 26400, 32000}, {"bullmq defaults", 118, 112, 131}}},
				{"rows deleted", []Bar{{"drover", 148000, 141000, 155000}, {"graphile-worker", 61200, 57400, 68300}, {"bullmq", 2410, 2380, 2440}}},
			})
		},
		"bars_small": func(w io.Writer) error {
			return Bars(w, "Enqueue → start, idle, p50", "ms", []Group{{"", []Bar{{"drover", 1.234, 0.9, 1.5}, {"river", 48.2, 48.2, 48.2}}}})
		},
		"bars_odd": func(w io.Writer) error {
			return Bars(w, strings.Repeat("a title without an end ", 10), `<b>&"`, []Group{
				{"", nil},
				{"zeros \x00 & <more>", []Bar{{"", 0, 0, 0}, {strings.Repeat("long ", 30), 0, 0, 0}, {"漢字の名前", 0, 0, 0}}},
			})
		},
		"bars_none": func(w io.Writer) error { return Bars(w, "Nothing", "jobs/s", nil) },
		"lines": func(w io.Writer) error {
			return Lines(w, "Throughput by processes", "processes", "jobs/s", []Series{
				{"drover keep", []float64{1, 2, 4, 8, 16}, []float64{113000, 131000, 128000, 122000, 117000}},
				{"drover delete", []float64{1, 2, 4, 8, 16}, []float64{145000, 158000, 151000, 149000, 146000}},
				{"river", []float64{1, 2, 4, 8, 16}, []float64{29000, 33000, 31000, 30000, 28500}},
				{"graphile-worker", []float64{1, 2, 4}, []float64{61000, 66000, 29000}},
			})
		},
		"lines_odd": func(w io.Writer) error {
			flat := []Series{{strings.Repeat("long ", 30), []float64{3}, []float64{-2e14}}, {"<&>", []float64{1e15, 3}, []float64{0, 0}}}
			for i := range 20 {
				flat = append(flat, Series{string(rune('a' + i)), []float64{5}, []float64{1e15}})
			}
			return Lines(w, "Odd", "", "", flat)
		},
		"lines_zero": func(w io.Writer) error {
			return Lines(w, "Zero", "s", "ms", []Series{{"only", []float64{0}, []float64{0}}})
		},
		"lines_none": func(w io.Writer) error { return Lines(w, "Nothing", "s", "jobs/s", nil) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got bytes.Buffer
			if err := draw(&got); err != nil {
				t.Fatal(err)
			}
			wellFormed(t, got.Bytes())
			path := filepath.Join("testdata", name+".svg")
			if *update {
				if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil || !bytes.Equal(got.Bytes(), want) {
				t.Errorf("%s is not what is drawn now (%v)", path, err)
			}
		})
	}
}

// wellFormed also refuses a number that is none.
func wellFormed(t *testing.T, svg []byte) {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(svg))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		element, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		for _, a := range element.Attr {
			if strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") {
				t.Errorf("<%s %s=%q>", element.Name.Local, a.Name.Local, a.Value)
			}
		}
	}
}

func TestWhatCannotBeDrawn(t *testing.T) {
	t.Parallel()
	var w bytes.Buffer
	for name, b := range map[string]Bar{
		"NaN":      {"", math.NaN(), math.NaN(), math.NaN()},
		"NaN min":  {"", 1, math.NaN(), 1},
		"infinite": {"", 1, 1, math.Inf(1)},
		"huge":     {"", 2e15, 1, 2e15},
		"negative": {"", -1, -1, -1},
		"below":    {"", 1, 2, 3},
		"above":    {"", 4, 2, 3},
	} {
		if err := Bars(&w, "", "", []Group{{"", []Bar{{"fine", 1, 1, 1}, b}}}); !errors.Is(err, ErrValue) {
			t.Errorf("%s: Bars = %v", name, err)
		}
	}
	for name, s := range map[string]Series{
		"NaN":       {"", []float64{1}, []float64{math.NaN()}},
		"infinite":  {"", []float64{math.Inf(-1)}, []float64{1}},
		"no points": {},
		"unequal":   {"", []float64{1, 2}, []float64{1}},
	} {
		if err := Lines(&w, "", "", "", []Series{{"fine", []float64{1}, []float64{1}}, s}); !errors.Is(err, ErrValue) {
			t.Errorf("%s: Lines = %v", name, err)
		}
	}
	if w.Len() != 0 {
		t.Errorf("written: %s", w.String())
	}
}

func TestLabelsKeepApart(t *testing.T) {
	t.Parallel()
	for _, heights := range [][]float64{{0}, {50, 50, 50}, {300, 0, 299, 1}, {300, 300, 300, 300}, {10, 12, 11, 200, 13}} {
		moved := apart(heights, 0, 300)
		slices.Sort(moved)
		for i, at := range moved {
			if at < 0 || at > 300 || i > 0 && at-moved[i-1] < row-1e-9 {
				t.Errorf("apart(%v) = %v", heights, moved)
			}
		}
	}
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{
		0: "0", 145123: "145,123", 1e15: "1,000,000,000,000,000", 999.96: "1,000", 61.25: "61.2", 1.234: "1.23", 0.01234: "0.0123", 1e-9: "0.000000", -12: "−12.0",
	} {
		if got := number(v); got != want {
			t.Errorf("number(%v) = %q, want %q", v, got, want)
		}
	}
}

// Whatever the numbers are, ticks are few, round and in order, and labels differ.
func FuzzScale(f *testing.F) {
	f.Add(0.0, 145123.0)
	f.Add(-3e-7, 1e15)
	f.Add(1e15, 1e15)
	f.Add(0.0, 5e-324)
	f.Fuzz(func(t *testing.T, a, b float64) {
		if check("", a, b) != nil {
			return
		}
		s := newScale(min(a, b), max(a, b), 0, 100, true)
		if len(s.ticks) < 2 || len(s.ticks) > 9 {
			t.Fatalf("%v to %v: ticks %v", a, b, s.ticks)
		}
		for _, v := range []float64{a, b} {
			if p := s.at(v); !(p >= -1e-6 && p <= 100+1e-6) {
				t.Errorf("%v to %v: %v is at %v", a, b, v, p)
			}
		}
		for i := range s.ticks[1:] {
			if s.ticks[i] >= s.ticks[i+1] || s.label(s.ticks[i]) == s.label(s.ticks[i+1]) {
				t.Errorf("%v to %v: ticks %v", a, b, s.ticks)
			}
		}
	})
}
