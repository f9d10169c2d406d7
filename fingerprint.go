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

// normalizeText puts a mark in the place of every quoted string and of every word that holds a digit.
func normalizeText(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case c == '"' || c == '`':
			end := strings.IndexByte(text[i+1:], c)
			if end < 0 {
				end = len(text) - i - 2
			}
			b.WriteByte('$')
			i += end + 2
		case isWord(c):
			j, digit := i, false
			for j < len(text) && (isWord(text[j]) || digit && strings.IndexByte(".:-", text[j]) >= 0 && j+1 < len(text) && isWord(text[j+1])) {
				digit = digit || text[j] >= '0' && text[j] <= '9'
				j++
			}
			if digit {
				b.WriteByte('#')
			} else {
				b.WriteString(text[i:j])
			}
			i = j
		default:
			b.WriteByte(c)
			i++
		}
	}
	return b.String()
}

func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

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
		name, _, _ := strings.Cut(line, "(0x")
		return name
	}
	return ""
}
