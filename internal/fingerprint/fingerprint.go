// Package fingerprint recognizes failures that are the same.
package fingerprint

import (
	"fmt"
	"hash/fnv"
	"strings"
	"time"
)

// Of returns the fingerprint of a failure. Failures have the same fingerprint if they have the same kind of job and type of
// error, and if their texts differ only in numbers, ids, addresses and quoted values. The fingerprint of a panic also depends
// on its place, the top frame of the trace.
func Of(kind, errType, text, trace string) string {
	h := fnv.New64a()
	for _, part := range []string{kind, errType, normalizeText(text), topFrame(trace)} {
		h.Write([]byte(part))
		h.Write([]byte{0})
	}
	return fmt.Sprintf("%016x", h.Sum64())
}

// maxNormalized is how many bytes of a normalized text distinguish failures.
const maxNormalized = 1 << 10

// maxQuoting is the depth to which quotes within quotes are read.
const maxQuoting = 3

// normalizeText replaces parts of a text that differ from job to job by a mark: quoted values, words with a digit, ids,
// addresses, hosts, URLs and paths. It keeps parts that distinguish causes: codes (HTTP statuses, exit statuses, SQLSTATE,
// error numbers), quoted names of columns, constraints, tables and the like, and the keys, codes and messages of JSON.
func normalizeText(text string) string {
	var b strings.Builder
	normalize(&b, text, maxQuoting)
	return b.String()
}

func normalize(b *strings.Builder, text string, depth int) {
	for i := 0; i < len(text) && b.Len() < maxNormalized; {
		c, inWord, before, rest := text[i], i > 0 && isWord(text[i-1]), text[:i], text[i:]
		switch {
		case c == '"' || c == '`' || c == '\'' && !inWord && closes(rest):
			n := quoted(rest)
			if depth > 0 && n > 1 && namesCause(before, text[i+n:]) {
				b.WriteByte(c)
				normalize(b, rest[1:n-1], depth-1)
				b.WriteByte(c)
			} else {
				b.WriteByte('$')
			}
			i += n
			continue
		case c == '-' && !inWord && len(rest) > 1 && isDigit(rest[1]):
			i++ // the sign is left out, so that a negative number is like any other
			continue
		}
		n, mark := 0, byte('#')
		if !inWord {
			n, mark = place(before, rest)
		}
		switch {
		case n > 0:
			b.WriteByte(mark)
		case isUUID(rest):
			b.WriteByte('#')
			n = uuidLen
		case isWord(c):
			var digit bool
			if n, digit = word(rest); digit && !isCode(before, rest[:n]) || inDate(before, rest[:n], rest[n:]) {
				b.WriteByte('#')
			} else {
				b.WriteString(rest[:n])
			}
		default:
			b.WriteByte(c)
			n = 1
		}
		i += n
	}
}

// namesCause reports whether a quoted text distinguishes causes, by the text before and behind the quotes. A text that
// distinguishes them is a key of JSON, the value of a key that names the cause, an error within an error, or a name in
// a schema.
func namesCause(before, behind string) bool {
	if before := strings.TrimRight(before, " \n"); strings.HasPrefix(behind, ":") && (strings.HasSuffix(before, "{") || strings.HasSuffix(before, ",")) {
		return true
	}
	for _, end := range []string{
		"column ", "constraint ", "relation ", "table ", "index ", "function ", "field ", "schema ", "type ", "for key ", "desc = ",
	} {
		if strings.HasSuffix(before, end) {
			return true
		}
	}
	value := strings.TrimRight(before, " ")
	for _, end := range []string{
		`code":`, `type":`, `"error":`, `"message":`, `"status":`, `"reason":`, `"param":`, `"field":`, `"title":`, `"detail":`,
	} {
		if strings.HasSuffix(value, end) {
			return true
		}
	}
	return false
}

// isCode reports whether a number is a code that distinguishes causes: a short number behind a word such as code.
func isCode(before, number string) bool {
	name := strings.TrimRight(before, ` :="-(`)
	at := len(name)
	for at > 0 && isWord(name[at-1]) {
		at--
	}
	switch strings.ToLower(name[at:]) {
	case "sqlstate":
		return len(number) == 5
	case "status", "code", "statuscode", "status_code", "http":
		return len(number) <= 5 && strings.Trim(number, "0123456789") == ""
	case "error", "errno":
		return len(number) <= 5 && strings.Trim(number, "0123456789") == "" && len(before)-len(name) == 1 && before[len(name)] == ' '
	}
	return false
}

// inDate reports whether a word is a weekday or a month in a written date. A month must be next to the number of a day, and a
// weekday must be in front of such a date, because "sun" and "may" are also plain words.
func inDate(before, name, behind string) bool {
	next := strings.TrimLeft(behind, " ,")
	switch {
	case next == behind && next != "":
		return false
	case isMonth(name):
		number := before[len(strings.TrimRight(strings.TrimRight(before, " "), "0123456789")):]
		if day := strings.TrimRight(number, " "); len(day) > 0 && len(day) <= 2 && !startsWord(next) {
			return true
		}
		day, _ := word(next)
		return day > 0 && day <= 2 && isDigit(next[day-1]) && !startsWord(strings.TrimLeft(next[day:], " "))
	case isWeekday(name):
		n, digit := word(next)
		then := strings.TrimLeft(next[n:], " ")
		m, _ := word(then)
		return digit && (isMonth(then[:m]) || strings.ContainsAny(next[:n], "-:")) || isMonth(next[:n]) && then != "" && isDigit(then[0])
	}
	return false
}

// startsWord reports whether s begins with a word that is not a number.
func startsWord(s string) bool { return s != "" && isWord(s[0]) && !isDigit(s[0]) }

func isMonth(s string) bool {
	for m := time.January; m <= time.December; m++ {
		if s == m.String() || s == m.String()[:3] {
			return true
		}
	}
	return false
}

func isWeekday(s string) bool {
	for d := time.Sunday; d <= time.Saturday; d++ {
		if s == d.String() || s == d.String()[:3] {
			return true
		}
	}
	return false
}

// place returns the length of the place that s begins with, or 0 if s begins with none. A place is a URL or a path
// (with the mark $), or a host or an email address (with the mark #). The parameter before is the text in front of s.
func place(before, s string) (n int, mark byte) {
	for _, end := range []string{"dial tcp ", "dial udp ", "dial tcp4 ", "dial tcp6 ", "lookup "} {
		if strings.HasSuffix(before, end) {
			return piece(s), '#'
		}
	}
	if n = bracketed(s); n > 0 {
		return n, '#'
	}
	n = piece(s)
	switch t := s[:n]; {
	case strings.Contains(t, "://"):
		return n, '$'
	case strings.HasPrefix(t, "/") && n > 1 && isWord(t[1]), strings.Count(t, "/") > 1 && isWord(t[0]), isFile(t):
		return n, '$'
	case isWord(s[0]) && strings.Contains(strings.Trim(t, "@"), "@"), isHost(before, t):
		return n, '#'
	}
	return 0, 0
}

// bracketed returns the length of the IPv6 address in brackets that s begins with, its port included.
func bracketed(s string) int {
	end := strings.IndexByte(s[:min(len(s), 64)], ']')
	if end < 0 || s[0] != '[' || strings.Count(s[:end], ":") < 2 {
		return 0
	}
	address, _, _ := strings.Cut(s[1:end], "%")
	if strings.Trim(address, "0123456789abcdefABCDEF:.") != "" {
		return 0
	}
	n := end + 1
	if n+1 < len(s) && s[n] == ':' && isDigit(s[n+1]) {
		for n++; n < len(s) && isDigit(s[n]); n++ {
		}
	}
	return n
}

// maxPiece is the longest URL, path or host that is recognized.
const maxPiece = 2 << 10

// piece returns the length of the beginning of s, up to a space or to the punctuation before it.
func piece(s string) int {
	s = s[:min(len(s), maxPiece)]
	n := strings.IndexAny(s, " \t\r\n\"'`<>(){},;|")
	if n < 0 {
		n = len(s)
	}
	for n > 0 && strings.IndexByte(".:!?", s[n-1]) >= 0 {
		n--
	}
	return n
}

// isFile reports whether t is a relative path of a file, such as data/report.csv.
func isFile(t string) bool {
	_, name, found := strings.Cut(t, "/")
	return found && isWord(t[0]) && strings.Contains(strings.Trim(name, "."), ".")
}

// isHost reports whether t is a DNS name, with or without a port. Names in code, of events and of fields, such as
// order.created, have the same form. So without a port, the text before t must point to a host.
func isHost(before, t string) bool {
	host, port, hasPort := strings.Cut(t, ":")
	labels := strings.Split(host, ".")
	last := labels[len(labels)-1]
	if len(labels) < 2 || labels[0] == "" || len(last) < 2 || strings.Trim(last, "abcdefghijklmnopqrstuvwxyz") != "" ||
		strings.Trim(host, "abcdefghijklmnopqrstuvwxyz0123456789.-") != "" {
		return false
	}
	if hasPort {
		return port != "" && strings.Trim(port, "0123456789") == ""
	}
	front := strings.TrimRight(before, " :=([")
	if front != "" && strings.HasSuffix(before, " (") && isDigit(front[len(front)-1]) { // an address stands before the name
		return true
	}
	at := len(front)
	for at > 0 && isWord(front[at-1]) {
		at--
	}
	switch strings.ToLower(front[at:]) {
	case "host", "hostname", "server", "domain", "addr", "address", "peer", "proxy", "relay", "endpoint", "upstream", "mx":
		return true
	case "to", "from", "at", "via", "by", "with", "on":
		return len(labels) > 2
	}
	return strings.Contains(before, "certificate is valid for ")
}

// word returns the length of the word that s begins with. From the first digit on, the word includes the characters that join
// the parts of numbers, times, addresses and ids.
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

// joins reports whether s begins with a separator and the next part of a number.
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

// quoted returns the length of the quoted value that s begins with. Without a closing quote, the value goes to the end.
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

// closes reports whether a single quote has a closing half, which ends a word. Otherwise it is an apostrophe.
func closes(s string) bool {
	end := strings.IndexByte(s[1:], '\'') + 1
	return end > 0 && (end+1 == len(s) || !isWord(s[end+1]))
}

const uuidLen = 36

// isUUID reports whether s begins with a UUID in its usual form. A UUID may begin with letters, so it needs its own check.
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

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isHex(c byte) bool { return isDigit(c) || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F' }

// topFrame returns the function that panicked: the first function in the trace that is not the runtime's.
func topFrame(trace string) string {
	if _, after, ok := strings.Cut(trace, "\npanic("); ok {
		trace = after
		if _, trace, ok = strings.Cut(trace, "\n"); ok { // skips the line of panic(…)
			_, trace, _ = strings.Cut(trace, "\n") // skips the line of its file
		}
	} else {
		return ""
	}
	for _, line := range strings.Split(trace, "\n") {
		if line == "" || line[0] == '\t' || strings.HasPrefix(line, "runtime.") {
			continue
		}
		return line[:max(0, strings.LastIndexByte(line, '('))] // without the arguments, which are addresses
	}
	return ""
}

// Valid reports whether the text has the form of a fingerprint.
func Valid(s string) bool {
	for i := range len(s) {
		if !isHex(s[i]) {
			return false
		}
	}
	return len(s) == 16
}
