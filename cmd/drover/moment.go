package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// when is a time as people type it: a point in time, or so far from now.
type when struct {
	absolute bool
	time     time.Time     // if absolute
	offset   time.Duration // negative: ago
}

// A plain duration means one or the other, as the flag says.
const (
	beforeNow = -1
	fromNow   = 1
)

// parseWhen reads a time: RFC 3339, a date with or without an hour (UTC), "15m ago", "in 2h", or a plain duration. It
// reports whether the text is one of these.
func parseWhen(text string, plain time.Duration) (when, bool) {
	text = strings.TrimSpace(text)
	for _, layout := range []string{time.RFC3339, time.DateOnly, "2006-01-02 15:04", "2006-01-02T15:04", time.DateTime, "2006-01-02T15:04:05"} {
		if t, err := time.Parse(layout, text); err == nil {
			return when{absolute: true, time: t}, true
		}
	}
	if span, found := strings.CutSuffix(text, " ago"); found {
		text, plain = span, beforeNow
	} else if span, found := strings.CutPrefix(text, "in "); found {
		text, plain = span, fromNow
	}
	d, err := parseSpan(strings.TrimSpace(text))
	if err != nil || d < 0 {
		return when{}, false
	}
	return when{offset: plain * d}, true
}

// at is the time, by the server's clock.
func (w when) at(now time.Time) time.Time {
	if w.absolute {
		return w.time
	}
	return now.Add(w.offset)
}

// The forms of a time that the flags take.
const (
	momentForms = "2026-01-31T12:00:00Z, the date 2026-01-31 (UTC), or how long ago, such as 90m, 24h, 7d"
	whenForms   = "2026-01-31T12:00:00Z, the date 2026-01-31 (UTC), or how long from now, such as 90m or 7d"
)

// moment is a flag for a time in the past: a plain duration is how long ago.
type moment struct {
	text string
	when when
}

// Set reads the flag.
func (m *moment) Set(text string) error {
	*m = moment{text: text}
	var ok bool
	if m.when, ok = parseWhen(text, beforeNow); !ok || m.when.offset > 0 {
		return fmt.Errorf("write a time of RFC 3339 such as %s", momentForms)
	}
	return nil
}

// String returns the text given.
func (m *moment) String() string { return m.text }

// Type is the placeholder that the help shows.
func (m *moment) Type() string { return "time" }

// before is the time, or zero if the flag was not given. A filter takes zero for "not given", so a given zero becomes
// the next microsecond. No job is that old, so this changes no result.
func (m *moment) before(now time.Time) time.Time {
	switch {
	case m.text == "":
		return time.Time{}
	case !m.when.absolute:
		return m.when.at(now)
	case m.when.time.Before(time.Time{}.Add(time.Microsecond)) && !m.when.time.Before(time.Time{}):
		return time.Time{}.Add(time.Microsecond)
	}
	return m.when.time
}

// parseSpan reads a duration, which may be a number of days, such as 7d.
func parseSpan(text string) (time.Duration, error) {
	if days, found := strings.CutSuffix(text, "d"); found {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			return time.Duration(n) * 24 * time.Hour, nil
		}
	}
	return time.ParseDuration(text)
}

// spanValue is a flag that is a duration, as parseSpan reads it.
type spanValue time.Duration

func spanVar(flags *pflag.FlagSet, to *time.Duration, name string, value time.Duration, usage string) {
	*to = value
	flags.Var((*spanValue)(to), name, usage)
}

// Set reads the flag.
func (d *spanValue) Set(text string) error {
	read, err := parseSpan(text)
	if err != nil {
		return fmt.Errorf("%q is not a duration such as 90s, 1h30m or 7d", shorten(text, 40))
	}
	*d = spanValue(read)
	return nil
}

// String is the duration as the help shows a default.
func (d *spanValue) String() string { return time.Duration(*d).String() }

// Type is the placeholder that the help shows.
func (*spanValue) Type() string { return "duration" }
