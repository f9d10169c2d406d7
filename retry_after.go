package drover

import (
	"strings"
	"time"
)

// maxRetryAfter bounds what a server may ask for. A day covers daily quotas; more is taken for a mistake, such
// as milliseconds or an instant where seconds belong, and a job that comes back after a day can be told again.
const maxRetryAfter = 24 * time.Hour

// ParseRetryAfter reads an HTTP Retry-After header (RFC 9110, section 10.2.3): whole seconds, or a
// date in any of the three HTTP formats, counted from this process' clock. It returns 0 to 24 h:
// longer waits are cut to 24 h. A date in the past, a negative number, an empty value and any other
// text give 0.
func ParseRetryAfter(value string) time.Duration {
	return parseRetryAfter(value, time.Now())
}

func parseRetryAfter(value string, now time.Time) time.Duration {
	value = strings.TrimSpace(value)
	if d, ok := wholeSeconds(value); ok {
		return d
	}
	// The layouts name GMT, the only zone HTTP allows: Go would read another zone's letters as offset 0. A
	// two-digit year is of this century until 68, then of the last, which is past.
	for _, layout := range [...]string{
		"Mon, 02 Jan 2006 15:04:05 GMT",
		"Monday, 02-Jan-06 15:04:05 GMT",
		time.ANSIC,
	} {
		if at, err := time.Parse(layout, value); err == nil {
			return min(max(at.Sub(now), 0), maxRetryAfter)
		}
	}
	return 0
}

// wholeSeconds takes any number of digits and nothing else.
func wholeSeconds(s string) (d time.Duration, ok bool) {
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, false
		}
		d = min(d*10+time.Duration(c-'0')*time.Second, maxRetryAfter)
	}
	return d, s != ""
}
