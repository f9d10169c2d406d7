package pgtext

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// Sanitize turns s into a text that Postgres accepts as text and as a jsonb string. Each NUL and each run of invalid
// UTF-8 becomes U+FFFD. The result has at most maxBytes bytes. A longer text is cut on a rune boundary, and ends in a
// mark that counts the bytes of s left out ("… [+12345 bytes]"). If there is no room even for the mark, the mark is
// left out. The result truncated is true if s was cut. Sanitize reads at most 2*maxBytes bytes of s, however long s is.
func Sanitize(s string, maxBytes int) (out string, truncated bool) {
	maxBytes = max(maxBytes, 0)
	if len(s) <= maxBytes && utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 {
		return s, false
	}
	text := make([]byte, 0, min(len(s)+utf8.UTFMax, maxBytes))
	room := maxBytes - len(dropMark(len(s)))
	kept, keptOf := 0, 0 // kept is the longest prefix of text that leaves room for the mark; keptOf is the length of its source in s
	for pos := 0; pos < len(s); {
		r, size := utf8.DecodeRuneInString(s[pos:])
		if r == utf8.RuneError && size == 1 {
			size = invalidRun(s[pos:], maxBytes)
		}
		if r == 0 {
			r = utf8.RuneError
		}
		if pos >= maxBytes || len(text)+utf8.RuneLen(r) > maxBytes {
			if room < 0 {
				return string(text), true
			}
			return string(text[:kept]) + dropMark(len(s)-keptOf), true
		}
		text = utf8.AppendRune(text, r)
		pos += size
		if len(text) <= room {
			kept, keptOf = len(text), pos
		}
	}
	return string(text), false
}

// invalidRun counts the bytes at the start of s that are not UTF-8. It counts no further than most.
func invalidRun(s string, most int) (n int) {
	for n < min(len(s), most) {
		if r, size := utf8.DecodeRuneInString(s[n:]); r != utf8.RuneError || size != 1 {
			break
		}
		n++
	}
	return n
}

func dropMark(bytes int) string { return "… [+" + strconv.Itoa(bytes) + " bytes]" }
