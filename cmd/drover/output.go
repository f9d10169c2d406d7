package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode"
)

// printJSON prints one value on one line.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// printList prints a list in the shape that all lists have: an object with the list under its name. "jobs list", which has
// pages, adds the place of the next one.
func printList[T any](a *app, name string, list []T) error {
	if list == nil {
		list = []T{}
	}
	return a.printJSON(map[string][]T{name: list})
}

// printable escapes what could control the terminal: text in jobs may come from anyone.
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

// ago says how long before now something happened. A time after now is "0s ago": two clock reads may differ a little.
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

// seconds and millis turn a number from the database into a duration, of 290 years at most: more may not fit.
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

// instant is a time in full, with milliseconds, so that two fast runs of a job differ.
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

// printLines prints lines that are printable already.
func (a *app) printLines(lines []string) error {
	_, err := fmt.Fprintln(a.stdout, strings.Join(lines, "\n"))
	return err
}
