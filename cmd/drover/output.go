package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/drover-queue/drover/internal/demo"
)

// sink is the standard output of every command. Commands do not check its errors, because run checks them at the end.
type sink struct {
	app  *app
	to   io.Writer
	stop context.CancelFunc // ends the command

	mu  sync.Mutex
	err error // the first error; after this error nothing more is written to the output
}

// Write writes to the output until a write fails. After that, a command that changes something prints the rest of its
// report on standard error, so that the report is not lost. If the output is a closed pipe (as with | head), the rest
// is not printed: a command that only reads ends, and a command that changes something goes on.
func (s *sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		_, s.err = s.to.Write(p)
	}
	switch {
	case s.err == nil:
	case s.closed() && !s.app.changes:
		s.stop()
		return 0, s.err
	case s.closed():
	case s.app.changes:
		return s.app.stderr.Write(p)
	default:
		return 0, s.err
	}
	return len(p), nil
}

func (s *sink) closed() bool { return errors.Is(s.err, syscall.EPIPE) }

// The method end returns the error of a command: err, the error of the output, or both.
func (s *sink) end(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if file, ok := s.to.(*os.File); ok && s.err == nil {
		s.err = file.Close() // some file systems report only here that the disk is full
	}
	ours := errors.Is(err, s.err) || errors.Is(err, context.Canceled) || errors.Is(err, demo.ErrInterrupted)
	switch {
	case s.err == nil || err != nil && !ours:
		return err
	case s.closed() && !s.app.changes:
		return nil
	case s.closed():
		return err
	case s.app.changes:
		return errors.Join(fmt.Errorf("standard output cannot be written; the rest of the report is on standard error: %w", s.err), err)
	}
	return fmt.Errorf("the output cannot be written: %w", s.err)
}

// printJSON prints one value on one line.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// The method answer ends a command that has failed with err, or else prints its result as JSON.
func (a *app) answer(v any, err error) error {
	if err != nil {
		return err
	}
	return a.printJSON(v)
}

// printList prints a list as a JSON array, or as a table with a row for each element. Instead of an empty table it prints
// the text none. The parameter err is the error of reading the list.
func printList[T any](a *app, list []T, err error, none string, heading []string, row func(*T) []string) error {
	if err != nil || a.json {
		return a.answer(append([]T{}, list...), err)
	}
	if len(list) == 0 {
		fmt.Fprintln(a.stdout, none)
		return nil
	}
	rows := [][]string{heading}
	for i := range list {
		rows = append(rows, row(&list[i]))
	}
	return table(a.stdout, rows)
}

// table prints rows of cells in aligned columns. The first row is the heading. table escapes control characters in the
// cells.
func table(w io.Writer, rows [][]string) error {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = printable(cell)
		}
		fmt.Fprintln(t, strings.Join(cells, "\t")) // the tab before an empty last cell has to stay, because tabwriter ends a column at a line without it
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(b.String()) {
		if _, err := fmt.Fprintln(w, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}

// fields are the rows of a table that shows one thing. A row has the name of a field and its value.
type fields [][]string

// add adds a row, unless the value is empty.
func (f *fields) add(name, value string) {
	if value != "" {
		*f = append(*f, []string{name, value})
	}
}

// The method at adds a row with a time in the past, followed by the text more. If t is nil, at adds no row.
func (f *fields) at(name string, t *time.Time, now time.Time, more string) {
	if t != nil {
		f.add(name, instant(*t)+" ("+ago(*t, now)+")"+more)
	}
}

// printable escapes control characters, so that a text cannot control the terminal. Text in jobs may come from anybody.
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

// relative formats the time between t and now: "3m ago", "in 5s".
func relative(t, now time.Time) string {
	if d := t.Sub(now); d > 0 {
		return "in " + span(d)
	}
	return span(now.Sub(t)) + " ago"
}

// The function ago formats how long before now something happened. A time just after now gives "0s ago", because now
// was read before t. A later time gives "in 5m": the server's clock has gone back.
func ago(t, now time.Time) string {
	if d := t.Sub(now); d >= 0 && d < 10*time.Second {
		return "0s ago"
	}
	return relative(t, now)
}

// span rounds a duration for people: 0.31ms, 450ms, 12s, 3m, 5h, 4d.
func span(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case 0 < d && d < 10*time.Millisecond:
		return fmt.Sprintf("%.2gms", float64(d.Microseconds())/1000)
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

// instant formats a time in UTC with milliseconds, because several runs may begin within a second.
func instant(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }

// byline names who changed something, and why: "by ann: the bank is back". Both may be empty.
func byline(by, why string) string {
	switch {
	case by == "":
		return why
	case why == "":
		return "by " + by
	}
	return "by " + by + ": " + why
}
