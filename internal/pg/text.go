package pg

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"
)

// Interval returns d as the text of an SQL interval, rounded up to a microsecond.
func Interval(d time.Duration) string {
	us := d / time.Microsecond
	if d%time.Microsecond > 0 && us < math.MaxInt64 {
		us++
	}
	return fmt.Sprintf("%d microseconds", us)
}

// MaxSpan is the longest duration that drover reads from a column. The sum of two such durations does not overflow.
const MaxSpan = 100 * 365 * 24 * time.Hour

// Span converts a number from the database into a duration. Every such number goes through Span, because a row may hold
// any number. A duration longer than MaxSpan becomes MaxSpan, and NaN becomes 0. A plain conversion would overflow,
// often to a negative duration.
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

// Seconds converts a number of seconds with Span.
func Seconds(s float64) time.Duration { return Span(s, time.Second) }

// Millis converts a number of milliseconds with Span.
func Millis(ms int64) time.Duration { return Span(ms, time.Millisecond) }

// OrNull returns a text as the parameter of a statement; nil if the text is empty. The result is a string and not a
// *string, because pgx sends a string as it is. It would pass a pointer to the codec for the parameter's type, which
// may be the application's own.
func OrNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// ShellQuote returns s quoted as one word of a POSIX shell, if it needs quotes.
func ShellQuote(s string) string {
	plain := func(r rune) bool {
		return r < 128 && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("_-./:=", r))
	}
	if s != "" && strings.TrimFunc(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
