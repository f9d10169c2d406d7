package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// printJSON prints one value on one line.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// table prints rows of cells in aligned columns; the first row is the heading. Cells are made printable.
func table(w io.Writer, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = printable(cell)
		}
		fmt.Fprintln(t, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
	}
	return t.Flush()
}

// printable is text that leaves the terminal alone: what jobs carry may be anyone's.
func printable(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case unicode.IsSpace(r):
			b.WriteByte(' ')
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// shorten cuts a cell of a table to n characters.
func shorten(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// relative says how far t is from now: "3m ago", "in 5s".
func relative(t, now time.Time) string {
	if d := t.Sub(now); d > 0 {
		return "in " + span(d)
	}
	return span(now.Sub(t)) + " ago"
}

// ago says how long before now something happened; what a clock read a moment later is 0 s old.
func ago(t, now time.Time) string {
	if !now.After(t) {
		return "0s ago"
	}
	return relative(t, now)
}

// span rounds a duration to what a person reads at a glance: 450ms, 12s, 3m, 5h, 4d.
func span(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 2*day:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d/day))
}

// seconds and millis turn a number from the database into a duration; what is beyond the longest duration becomes 290 years.
func seconds(s float64) time.Duration {
	const most = 290 * 365 * 24 * 3600.0
	if s != s { // NaN
		return 0
	}
	return time.Duration(min(max(s, -most), most) * float64(time.Second))
}

func millis(ms int64) time.Duration {
	const most = 290 * 365 * 24 * 3600 * 1000
	return time.Duration(min(max(ms, -most), most)) * time.Millisecond
}

// instant is a time in full: milliseconds tell runs apart that follow each other fast.
func instant(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }

// plural is "1 job", "3 jobs".
func plural(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// shellQuote makes s one word of a POSIX shell.
func shellQuote(s string) string {
	plain := func(r rune) bool {
		return r < 128 && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("_-./:=", r))
	}
	if s != "" && strings.TrimFunc(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
