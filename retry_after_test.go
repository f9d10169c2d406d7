package drover

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestParseRetryAfter(t *testing.T) { // F-4
	t.Parallel()
	now := time.Date(2026, time.March, 1, 12, 0, 0, 250_000_000, time.FixedZone("", -5*3600)) // 17:00:00.25 GMT
	for value, want := range map[string]time.Duration{
		"0":                      0,
		"1":                      time.Second,
		"120":                    2 * time.Minute,
		" 120 ":                  2 * time.Minute,
		"\t007\t":                7 * time.Second,
		"86399":                  24*time.Hour - time.Second,
		"86400":                  24 * time.Hour,
		"86401":                  24 * time.Hour,
		"1772384400000":          24 * time.Hour, // an instant in milliseconds
		"9223372036854775807":    24 * time.Hour,
		strings.Repeat("9", 999): 24 * time.Hour,

		"Sun, 01 Mar 2026 17:01:00 GMT":     59*time.Second + 750*time.Millisecond,
		"Sunday, 01-Mar-26 17:01:00 GMT":    59*time.Second + 750*time.Millisecond,
		"Sun Mar  1 17:01:00 2026":          59*time.Second + 750*time.Millisecond,
		"  Sun, 01 Mar 2026 17:01:00 GMT  ": 59*time.Second + 750*time.Millisecond,
		"Sun, 01 Mar 2026 17:00:00 GMT":     0, // a quarter second ago
		"Sun, 01 Mar 2026 16:00:00 GMT":     0,
		"Sun Nov  6 08:49:37 1994":          0,
		"Sunday, 06-Nov-94 08:49:37 GMT":    0,
		"Mon, 02 Mar 2026 17:00:00 GMT":     24*time.Hour - 250*time.Millisecond,
		"Tue, 03 Mar 2026 17:00:00 GMT":     24 * time.Hour,
		"Fri, 31 Dec 9999 23:59:59 GMT":     24 * time.Hour,
		"Mon, 01 Jan 0001 00:00:00 GMT":     0,

		"":                              0,
		" ":                             0,
		"-1":                            0,
		"+1":                            0,
		"1.5":                           0,
		"1e3":                           0,
		"0x10":                          0,
		"1 2":                           0,
		"120s":                          0,
		"99999999999x":                  0,
		"١٢٠":                           0, // digits, but not ASCII
		"soon":                          0,
		"Sun, 01 Mar 2026 17:01:00 CET": 0,
		"2026-03-01T17:01:00Z":          0,
		"Sun, 32 Mar 2026 17:01:00 GMT": 0,
		"120, 240":                      0,
		"Sun, 01 Mar 2026 17:01:00":     0,
	} {
		if got := parseRetryAfter(value, now); got != want {
			t.Errorf("%q = %v, want %v", value, got, want)
		}
	}
}

// Whole seconds: the date may be up to one before the clock it was made of.
func TestParseRetryAfterCountsFromThisClock(t *testing.T) { // F-4
	t.Parallel()
	in := time.Now().Add(time.Hour).UTC()
	got := ParseRetryAfter(in.Format("Mon, 02 Jan 2006 15:04:05 GMT"))
	if got <= 0 || got > time.Hour {
		t.Errorf("a date an hour ahead = %v", got)
	}
}

func FuzzParseRetryAfter(f *testing.F) {
	for _, value := range []string{
		"120", "-1", "", "99999999999999999999", "Sun, 01 Mar 2026 17:01:00 GMT", "Sunday, 01-Mar-26 17:01:00 GMT", "Sun Mar  1 17:01:00 2026", "1.5",
	} {
		f.Add(value, int64(1_772_384_400))
		f.Add(value, int64(math.MinInt64))
	}
	f.Fuzz(func(t *testing.T, value string, unix int64) {
		now := time.Unix(unix, 0)
		got := parseRetryAfter(value, now)
		if got < 0 || got > maxRetryAfter {
			t.Fatalf("%q at %v = %v", value, now, got)
		}
		if padded := parseRetryAfter(" "+value+"\t", now); padded != got {
			t.Fatalf("%q = %v, with spaces around it %v", value, got, padded)
		}
	})
}
