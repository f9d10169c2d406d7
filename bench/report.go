package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Report has all results of a run, and its conditions.
type Report struct {
	Taken      string            `json:"taken"`
	Machine    Machine           `json:"machine"`
	Versions   map[string]string `json:"versions"`
	Settings   map[string]string `json:"settings"` // of the server
	Sizes      sizes             `json:"sizes"`
	Contenders []Contender       `json:"contenders"`
	Scenarios  []ScenarioReport  `json:"scenarios"`
	Ended      string            `json:"ended,omitempty"` // why the run ended early
}

// Contender has the settings of a contender.
type Contender struct {
	Name     string `json:"name"`
	Settings string `json:"settings"`
	Version  string `json:"version,omitempty"` // empty if Report.Versions has it
}

func (r *Report) setVersion(contender, version string) {
	for i := range r.Contenders {
		if r.Contenders[i].Name == contender {
			r.Contenders[i].Version = version
		}
	}
}

// ScenarioReport has the results of one scenario.
type ScenarioReport struct {
	Name    string       `json:"name"`
	Title   string       `json:"title"`
	Notes   []string     `json:"notes,omitempty"`
	Rounds  int          `json:"rounds"`
	Results []Result     `json:"results"`
	Ratios  []RatioValue `json:"ratios"`
}

// Result has the figures of one contender.
type Result struct {
	Contender string   `json:"contender"`
	Figures   []Figure `json:"figures"`
	Reason    string   `json:"reason,omitempty"` // why there are no figures, or no figures from later rounds
	Failed    bool     `json:"failed,omitempty"` // Reason is an error
}

// Figure is one quantity over the rounds.
type Figure struct {
	Name   string    `json:"name"`
	Unit   string    `json:"unit"`
	Values []float64 `json:"values"` // by round
	Median float64   `json:"median"`
	Min    float64   `json:"min"`
	Max    float64   `json:"max"`
}

// RatioValue is a comparison of medians.
type RatioValue struct {
	Text   string  `json:"text"`
	Value  float64 `json:"value"`
	Wanted string  `json:"wanted,omitempty"`
}

// take adds one round's figures.
func (r *Result) take(figures []figure) {
	for _, f := range figures {
		i := slices.IndexFunc(r.Figures, func(g Figure) bool { return g.Name == f.name })
		if i < 0 {
			r.Figures = append(r.Figures, Figure{Name: f.name, Unit: f.unit})
			i = len(r.Figures) - 1
		}
		g := &r.Figures[i]
		g.Values = append(g.Values, f.value)
		g.Median, g.Min, g.Max = median(g.Values), slices.Min(g.Values), slices.Max(g.Values)
	}
}

func (r *Result) figure(name string) (Figure, bool) {
	i := slices.IndexFunc(r.Figures, func(f Figure) bool { return f.Name == name })
	if i < 0 {
		return Figure{}, false
	}
	return r.Figures[i], true
}

// median returns the median. For an even number of values, this is the mean of the middle two.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

// ratio compares the medians of a figure of two contenders. A larger ratio is better for the first contender.
type ratio struct {
	of, against string
	figure      string
	wanted      string
	lower       bool // the figure is better when it is lower
}

// ratiosOf computes the ratios. It leaves out a ratio if one of its two figures is missing.
func ratiosOf(ratios []ratio, results []Result) []RatioValue {
	values := []RatioValue{}
	find := func(contender, name string) (Figure, bool) {
		i := slices.IndexFunc(results, func(r Result) bool { return r.Contender == contender })
		if i < 0 {
			return Figure{}, false
		}
		return results[i].figure(name)
	}
	for _, r := range ratios {
		of, ok := find(r.of, r.figure)
		against, both := find(r.against, r.figure)
		if !ok || !both || of.Median <= 0 || against.Median <= 0 {
			continue
		}
		value, verb := of.Median/against.Median, "against"
		if r.lower {
			value, verb = against.Median/of.Median, "quicker than"
		}
		text := fmt.Sprintf("%s: %s %s %s", r.figure, r.of, verb, r.against)
		values = append(values, RatioValue{Text: text, Value: value, Wanted: r.wanted})
	}
	return values
}

// write prints the report for people.
func (r *Report) write(w io.Writer) error {
	p := &printer{w: w}
	p.line("%s, %d CPUs (%s), memory %s", r.Machine.System, r.Machine.CPUs, r.Machine.CPU, r.Machine.Memory)
	p.line("versions: %s", pairs(r.Versions))
	p.line("server: %s", pairs(r.Settings))
	for _, c := range r.Contenders {
		if c.Version != "" {
			c.Settings = c.Version + "; " + c.Settings
		}
		p.line("%s: %s", c.Name, c.Settings)
	}
	for i := range r.Scenarios {
		r.Scenarios[i].write(p)
	}
	if r.Ended != "" {
		p.line("\nNot complete: %s", r.Ended)
	}
	return p.err
}

func (s *ScenarioReport) write(p *printer) {
	p.line("\n%s: %s (%s)\n", s.Name, s.Title, counted(s.Rounds, "round", "rounds"))
	table := tabwriter.NewWriter(p, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "\t \tmedian\tmin – max\tunit\t\n")
	for _, result := range s.Results {
		for _, f := range result.Figures {
			fmt.Fprintf(table, "%s\t%s\t%s\t%s – %s\t%s\t\n", result.Contender, f.Name, number(f.Median), number(f.Min), number(f.Max), f.Unit)
		}
		if len(result.Figures) == 0 {
			fmt.Fprintf(table, "%s\t–\t–\t–\t\t\n", result.Contender)
		}
	}
	p.failed(table.Flush())
	for _, result := range s.Results {
		if result.Reason != "" {
			p.line("  %s: %s", result.Contender, result.Reason)
		}
	}
	for _, ratio := range s.Ratios {
		wanted := ""
		if ratio.Wanted != "" {
			wanted = ", wanted " + ratio.Wanted
		}
		p.line("  %s: %s ×%s", ratio.Text, number(ratio.Value), wanted)
	}
	for _, note := range s.Notes {
		p.line("  %s", note)
	}
}

// printer keeps the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) Write(b []byte) (int, error) {
	n, err := p.w.Write(b)
	p.failed(err)
	return n, err
}

func (p *printer) failed(err error) {
	if p.err == nil {
		p.err = err
	}
}

func (p *printer) line(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

func pairs(m map[string]string) string {
	var b strings.Builder
	for i, name := range slices.Sorted(maps.Keys(m)) {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(name + " " + cmp.Or(m[name], "(none)"))
	}
	return b.String()
}

func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// number formats a value with three digits, or with all digits before the point, in groups of three.
func number(v float64) string {
	switch {
	case v < 10:
		return strconv.FormatFloat(v, 'f', 2, 64)
	case v < 100:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	digits := strconv.FormatFloat(v, 'f', 0, 64)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
