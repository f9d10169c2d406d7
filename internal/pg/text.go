package pg

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"
)

// Interval is d as Postgres reads it, rounded up to its microsecond.
func Interval(d time.Duration) string {
	us := d / time.Microsecond
	if d%time.Microsecond > 0 && us < math.MaxInt64 {
		us++
	}
	return fmt.Sprintf("%d microseconds", us)
}

// MaxSpan is the longest duration read from a column. Two of them still add up.
const MaxSpan = 100 * 365 * 24 * time.Hour

// Span turns a number from the database into a duration. Every such number goes through it, because a row may hold any
// number. A duration longer than MaxSpan becomes MaxSpan. A plain conversion would overflow, often to a negative
// duration.
func Span[N int64 | float64](n N, unit time.Duration) time.Duration {
	switch limit := N(MaxSpan / unit); {
	case n >= limit:
		return MaxSpan
	case n <= -limit:
		return -MaxSpan
	case n != n: // NaN
		return 0
	}
	whole := time.Duration(n)
	return whole*unit + time.Duration((n-N(whole))*N(unit))
}

// Seconds is Span of a number of seconds.
func Seconds(s float64) time.Duration { return Span(s, time.Second) }

// Millis is Span of a number of milliseconds.
func Millis(ms int64) time.Duration { return Span(ms, time.Millisecond) }

// OrNull is a text as the parameter of a statement, nil for an empty one. It is no *string: pgx asks the codec that an
// application has registered for the parameter's type to write a pointer, and sends a string as it is.
func OrNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// ShellQuote makes s one word of a POSIX shell.
func ShellQuote(s string) string {
	plain := func(r rune) bool {
		return r < 128 && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("_-./:=", r))
	}
	if s != "" && strings.TrimFunc(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
