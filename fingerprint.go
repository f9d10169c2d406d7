package drover

import (
	"fmt"
	"hash/fnv"
	"strings"
)

// fingerprint names what went wrong: failures of one kind with one type of error, whose texts differ only in
// numbers, ids, addresses and quoted values, share it. A panic also tells its place by the top frame of its trace.
func fingerprint(kind, errType, text, trace string) string {
	h := fnv.New64a()
	for _, part := range []string{kind, errType, normalizeText(text), topFrame(trace)} {
		h.Write([]byte(part))
		h.Write([]byte{0})
	}
	return fmt.Sprintf("%016x", h.Sum64())
}

// maxNormalized is how many bytes of a normalized text tell failures apart.
const maxNormalized = 1 << 10

// normalizeText puts a mark in the place of every quoted value and of every word that holds a digit.
func normalizeText(text string) string {
	var b strings.Builder
	for i := 0; i < len(text) && b.Len() < maxNormalized; {
		c, inWord := text[i], i > 0 && isWord(text[i-1])
		switch {
		case c == '"' || c == '`' || c == '\'' && !inWord && closes(text[i:]):
			b.WriteByte('$')
			i += quoted(text[i:])
		case c == '-' && !inWord && i+1 < len(text) && isDigit(text[i+1]):
			i++ // a negative number is a number
		case isUUID(text[i:]):
			b.WriteByte('#')
			i += uuidLen
		case isWord(c):
			n, digit := word(text[i:])
			if digit {
				b.WriteByte('#')
			} else {
				b.WriteString(text[i : i+n])
			}
			i += n
		default:
			b.WriteByte(c)
			i++
		}
	}
	return b.String()
}

// word is the length of the word that s begins with. From its first digit on it takes in what joins the parts of
// numbers, times, addresses and ids.
func word(s string) (n int, digit bool) {
	for n < len(s) {
		switch {
		case isWord(s[n]):
			digit = digit || isDigit(s[n])
			n++
		case digit && joins(s[n:]):
			n++
		default:
			return n, digit
		}
	}
	return n, digit
}

// joins reports whether s goes on with the next part of a number.
func joins(s string) bool {
	switch next := s[1:]; {
	case next == "":
		return false
	case s[0] == ',' || s[0] == '+':
		return isDigit(next[0])
	case s[0] == ':' && next[0] == ':': // IPv6
		return len(next) > 1 && isWord(next[1])
	}
	return strings.IndexByte(".:-", s[0]) >= 0 && isWord(s[1])
}

// quoted is the length of the quoted value that s begins with; an open one goes to the end.
func quoted(s string) int {
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == s[0]:
			return i + 1
		case s[i] == '\\' && s[0] == '"':
			i++
		}
	}
	return len(s)
}

// closes tells a single quote from an apostrophe: its other half ends a word.
func closes(s string) bool {
	end := strings.IndexByte(s[1:], '\'') + 1
	return end > 0 && (end+1 == len(s) || !isWord(s[end+1]))
}

const uuidLen = 36

// isUUID reports whether s begins with a UUID in its usual form, which may begin with letters only.
func isUUID(s string) bool {
	if len(s) < uuidLen || len(s) > uuidLen && isWord(s[uuidLen]) {
		return false
	}
	for i := range uuidLen {
		dash := i == 8 || i == 13 || i == 18 || i == 23
		if dash != (s[i] == '-') || !dash && !isHex(s[i]) {
			return false
		}
	}
	return true
}

func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

func isHex(c byte) bool { return isDigit(c) || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F' }

// topFrame is the function that panicked: the first in the trace behind the runtime's own.
func topFrame(trace string) string {
	if _, after, ok := strings.Cut(trace, "\npanic("); ok {
		trace = after
		if _, trace, ok = strings.Cut(trace, "\n"); ok { // the rest of panic(…)
			_, trace, _ = strings.Cut(trace, "\n") // its file
		}
	} else {
		return ""
	}
	for _, line := range strings.Split(trace, "\n") {
		if line == "" || line[0] == '\t' || strings.HasPrefix(line, "runtime.") {
			continue
		}
		return line[:max(0, strings.LastIndexByte(line, '('))] // without its arguments: they are addresses
	}
	return ""
}

// isFingerprint reports whether a failure group could have the fingerprint.
func isFingerprint(s string) bool {
	for i := range len(s) {
		if !isHex(s[i]) {
			return false
		}
	}
	return len(s) == 16
}
