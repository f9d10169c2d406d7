package pgtext

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestSanitizeText(t *testing.T) { // F-10
	t.Parallel()
	for name, tc := range map[string]struct {
		in        string
		maxBytes  int
		want      string
		truncated bool
	}{
		"empty":                         {"", 10, "", false},
		"plain":                         {"connection refused", 100, "connection refused", false},
		"as long as allowed":            {"0123456789", 10, "0123456789", false},
		"other control characters stay": {"a\tb\r\n\x1b[31m", 100, "a\tb\r\n\x1b[31m", false},
		"NUL":                           {"a\x00b", 100, "a\uFFFDb", false},
		"every NUL":                     {"\x00\x00", 100, "\uFFFD\uFFFD", false},
		"a run of invalid bytes":        {"a\xff\xfe\xfdb", 100, "a\uFFFDb", false},
		"NUL between invalid bytes":     {"\xff\x00\xff", 100, "\uFFFD\uFFFD\uFFFD", false},
		"lone surrogate in bytes":       {"a\xed\xa0\x80b", 100, "a\uFFFDb", false},
		"surrogate pair in bytes":       {"\xed\xa0\xbd\xed\xb8\x80", 100, "\uFFFD", false},
		"overlong NUL":                  {"a\xc0\x80b", 100, "a\uFFFDb", false},
		"beyond U+10FFFF":               {"\xf4\x90\x80\x80", 100, "\uFFFD", false},
		"half a rune at the end":        {"caf\xc3", 100, "caf\uFFFD", false},
		"U+FFFD of the text's own":      {"a\uFFFDb", 100, "a\uFFFDb", false},

		"cut":                               {strings.Repeat("x", 12365), 37, strings.Repeat("x", 19) + "… [+12346 bytes]", true},
		"cut between runes":                 {strings.Repeat("ü", 50), 30, strings.Repeat("ü", 7) + "… [+86 bytes]", true},
		"cut between wide runes":            {strings.Repeat("😀", 20), 29, strings.Repeat("😀", 3) + "… [+68 bytes]", true},
		"only the mark fits":                {strings.Repeat("x", 100), 16, "… [+100 bytes]", true},
		"no room for a mark":                {"überlang", 4, "übe", true},
		"no room for a rune":                {"😀😀", 3, "", true},
		"no room at all":                    {"x", 0, "", true},
		"negative bound":                    {"x", -1, "", true},
		"longer once made valid":            {strings.Repeat("\x00x", 10), 20, "\uFFFDx… [+18 bytes]", true},
		"cut inside a run of invalid bytes": {strings.Repeat("\xff", 100), 20, "\uFFFD… [+80 bytes]", true},
		"counts bytes of the original":      {"\xff\xff\xff" + strings.Repeat("x", 97), 20, "\uFFFDx… [+96 bytes]", true},
		"a rune that straddles the cut":     {strings.Repeat("x", 19) + "😀", 20, "xxxxx… [+18 bytes]", true},
		"an invalid byte behind the cut":    {strings.Repeat("x", 30) + "\xff", 20, "xxxxx… [+26 bytes]", true},
		"no room for U+FFFD and a mark":     {"\x00" + strings.Repeat("x", 29), 16, "… [+30 bytes]", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, truncated := Sanitize(tc.in, tc.maxBytes)
			if got != tc.want || truncated != tc.truncated {
				t.Errorf("sanitizeText = %q, %v; want %q, %v", got, truncated, tc.want, tc.truncated)
			}
		})
	}
}

// A text of 50 MB costs no more memory than the part that is kept, whatever it contains.
//
//nolint:paralleltest // counts the process' allocations
func TestSanitizeTextOfFiftyMegabytes(t *testing.T) { // F-10
	const size, bound = 50 << 20, 1 << 10
	for name, unit := range map[string]string{
		"ascii": "x", "runes": "ü", "NUL": "\x00", "invalid": "\xff", "invalid in turns": "\xffa", "half runes": "\xf0\x9f\x98a",
	} {
		huge := strings.Repeat(unit, size/len(unit))
		var got string
		var truncated bool
		cut := func() { got, truncated = Sanitize(huge, bound) }
		if n := testing.AllocsPerRun(10, cut); n > 6 {
			t.Errorf("%s: %v allocations, want a handful", name, n)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		cut()
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 { // the rest of the process may allocate too
			t.Errorf("%s: %d bytes allocated for a result of %d", name, n, len(got))
		}
		if !truncated || len(got) > bound || !strings.HasSuffix(got, " bytes]") {
			t.Errorf("%s: got %d bytes ending in %q, truncated %v", name, len(got), got[len(got)-20:], truncated)
		}
	}
}

func FuzzSanitizeText(f *testing.F) { // F-10
	f.Add("plain", 10)
	f.Add("a\x00b\xff\xfe", 3)
	f.Add("\xed\xa0\x80"+strings.Repeat("ü", 40), 40)
	f.Add(strings.Repeat("\xff", 100), 50)
	f.Add("😀😀😀", 5)
	f.Fuzz(func(t *testing.T, in string, maxBytes int) {
		maxBytes %= 1 << 16
		got, truncated := Sanitize(in, maxBytes)
		if !utf8.ValidString(got) || strings.Contains(got, "\x00") {
			t.Errorf("%q is not clean", got)
		}
		if len(got) > max(maxBytes, 0) {
			t.Errorf("%d bytes, bound %d", len(got), maxBytes)
		}
		if whole := cleanAll(in); !truncated && got != whole {
			t.Errorf("got %q, want %q", got, whole)
		}
		if again, cut := Sanitize(got, maxBytes); again != got || cut {
			t.Errorf("a second pass changes %q to %q, truncated %v", got, again, cut)
		}
		if at := strings.LastIndex(got, "… [+"); truncated && at >= 0 && strings.HasSuffix(got, " bytes]") && !strings.Contains(in, "… [+") {
			var dropped int
			if _, err := fmt.Sscanf(got[at:], "… [+%d bytes]", &dropped); err != nil {
				t.Fatalf("mark of %q: %v", got, err)
			}
			if dropped <= 0 || dropped > len(in) || cleanAll(in[:len(in)-dropped]) != got[:at] {
				t.Errorf("%q says that %d of %d bytes are missing", got, dropped, len(in))
			}
		}
	})
}

// cleanAll is a simple implementation without a bound, to compare with.
func cleanAll(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
