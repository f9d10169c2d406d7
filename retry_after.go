package drover

import (
	"strings"
	"time"
)

// maxRetryAfter bounds the wait that a server may ask for. A day covers daily quotas. A longer wait is probably a
// mistake, such as milliseconds or an instant instead of seconds. If it is not, the server can ask for another wait
// when the job runs again after a day.
const maxRetryAfter = 24 * time.Hour

// ParseRetryAfter reads an HTTP Retry-After header (RFC 9110, section 10.2.3) and returns the wait. The header holds
// whole seconds, or a date in any of the three HTTP formats, which is compared with this process' clock. The result is
// 0 to 24 h: a longer wait becomes 24 h. It is 0 for a date in the past, a negative number, an empty value and anything
// else.
func ParseRetryAfter(value string) time.Duration {
	return parseRetryAfter(value, time.Now())
}

func parseRetryAfter(value string, now time.Time) time.Duration {
	value = strings.TrimSpace(value)
	if d, ok := wholeSeconds(value); ok {
		return d
	}
	// The layouts contain GMT, the only zone that HTTP allows: Go would read any other zone's letters as offset 0. A
	// two-digit year up to 68 is in this century. A later one is in the last century, so in the past.
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

// wholeSeconds reads a text of digits only, however many, and returns at most maxRetryAfter.
func wholeSeconds(s string) (d time.Duration, ok bool) {
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, false
		}
		d = min(d*10+time.Duration(c-'0')*time.Second, maxRetryAfter)
	}
	return d, s != ""
}
