package pgtext

import (
	"bytes"
	"fmt"
	"strconv"
	"unicode/utf8"
)

const (
	// maxDigits bounds the digits of a number on either side of its point, after its exponent is applied. Postgres' numeric
	// allows 131072 digits before the point and 16383 after it. One bound is easier to remember, and no key or amount needs
	// more.
	maxDigits = 16383

	maxPathKey = 40 // bytes of an object key in a fault
)

// JSONFault returns the reason why drover cannot store raw as jsonb, with the place in raw. It returns "" if raw is
// good. The reasons are:
//
//   - it is not one JSON value, or not UTF-8
//   - a string or key holds NUL or half a surrogate pair, which JSON can write and jsonb cannot hold
//   - a number has more than 16383 digits before or after the point
//   - arrays and objects nest deeper than maxDepth
//   - it is longer than maxBytes, or would be with its numbers written out, as in jsonb: 90 KB of 1e131071 can be
//     inserted, but are 1.3 GB to read, so the row could never be claimed
//
// The spaces that jsonb adds after commas and colons do not count. maxBytes must be less than 256 MiB, the limit of
// jsonb itself. Duplicate keys are allowed, and the last one counts, as in Postgres. JSONFault reads raw once, and
// allocates only if it finds a fault.
func JSONFault(raw []byte, maxBytes, maxDepth int) string {
	if len(raw) > maxBytes {
		return fmt.Sprintf("%d bytes of JSON; at most %d", len(raw), maxBytes)
	}
	s := jsonScan{raw: raw, maxDepth: maxDepth}
	if f := s.document(); f != nil {
		return fmt.Sprintf("%s, at byte %d ($%s)", f.reason, f.at, f.path)
	}
	if size := len(raw) + s.grown; size > maxBytes {
		return fmt.Sprintf("%d bytes of JSON with numbers written out; at most %d", size, maxBytes)
	}
	return ""
}

// jsonScan walks through one JSON text. Each method starts at pos, and moves pos behind the text that it read.
type jsonScan struct {
	raw      []byte
	pos      int
	maxDepth int
	grown    int // bytes that the numbers so far will grow by when they are written out
}

// jsonFault is the reason why a text is refused. When a fault is found, each container around it adds its step in front
// of the path. So a good text costs nothing extra.
type jsonFault struct {
	reason string
	at     int
	path   string // ".items[3].name"
}

func (f *jsonFault) within(step string) *jsonFault {
	f.path = step + f.path
	return f
}

func (s *jsonScan) document() *jsonFault {
	s.space()
	if f := s.value(1); f != nil {
		return f
	}
	s.space()
	if s.pos < len(s.raw) {
		return s.unexpected("the end")
	}
	return nil
}

// value reads one value. depth is the depth of an array or object that starts here.
func (s *jsonScan) value(depth int) *jsonFault {
	switch c := s.peek(); {
	case c == '{' || c == '[':
		if depth > s.maxDepth {
			return &jsonFault{reason: fmt.Sprintf("nested deeper than %d", s.maxDepth), at: s.pos}
		}
		if c == '{' {
			return s.object(depth)
		}
		return s.array(depth)
	case c == '"':
		return s.str()
	case c == '-' || isDigit(c):
		return s.number()
	}
	for _, word := range [...]string{"true", "false", "null"} {
		if bytes.HasPrefix(s.raw[s.pos:], []byte(word)) {
			s.pos += len(word)
			return nil
		}
	}
	return s.unexpected("a value")
}

func (s *jsonScan) object(depth int) *jsonFault {
	s.pos++
	if s.space(); s.accept('}') {
		return nil
	}
	for {
		s.space()
		if s.peek() != '"' {
			return s.unexpected("a key")
		}
		start := s.pos
		if f := s.str(); f != nil {
			return f
		}
		key := s.raw[start+1 : s.pos-1]
		if s.space(); !s.accept(':') {
			return s.unexpected("a colon")
		}
		s.space()
		if f := s.value(depth + 1); f != nil {
			step, _ := Sanitize(string(key), maxPathKey)
			return f.within("." + step)
		}
		if s.space(); s.accept('}') {
			return nil
		}
		if !s.accept(',') {
			return s.unexpected("a comma or }")
		}
	}
}

func (s *jsonScan) array(depth int) *jsonFault {
	s.pos++
	if s.space(); s.accept(']') {
		return nil
	}
	for i := 0; ; i++ {
		s.space()
		if f := s.value(depth + 1); f != nil {
			return f.within("[" + strconv.Itoa(i) + "]")
		}
		if s.space(); s.accept(']') {
			return nil
		}
		if !s.accept(',') {
			return s.unexpected("a comma or ]")
		}
	}
}

func (s *jsonScan) str() *jsonFault {
	s.pos++
	for s.pos < len(s.raw) {
		switch c := s.raw[s.pos]; {
		case c == '"':
			s.pos++
			return nil
		case c == '\\':
			if f := s.escape(); f != nil {
				return f
			}
		case c < ' ':
			return &jsonFault{reason: "not JSON: an unescaped control character", at: s.pos}
		case c < utf8.RuneSelf:
			s.pos++
		default:
			r, size := utf8.DecodeRune(s.raw[s.pos:])
			if r == utf8.RuneError && size == 1 {
				return &jsonFault{reason: "invalid UTF-8", at: s.pos}
			}
			s.pos += size
		}
	}
	return s.unexpected("a closing quote")
}

func (s *jsonScan) escape() *jsonFault {
	start := s.pos
	s.pos++
	switch s.peek() {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.pos++
		return nil
	}
	r, ok := s.hex4()
	switch {
	case !ok:
		return &jsonFault{reason: "not JSON: an unknown escape", at: start}
	case r == 0:
		return &jsonFault{reason: `NUL (\u0000), which jsonb cannot hold`, at: start}
	case 0xD800 <= r && r < 0xDC00 && s.accept('\\'):
		if low, ok := s.hex4(); ok && 0xDC00 <= low && low < 0xE000 {
			return nil
		}
	}
	if 0xD800 <= r && r < 0xE000 {
		return &jsonFault{reason: fmt.Sprintf(`half a surrogate pair (\u%04x)`, r), at: start}
	}
	return nil
}

// hex4 reads uXXXX, the part of an escape behind the backslash.
func (s *jsonScan) hex4() (r rune, ok bool) {
	if len(s.raw)-s.pos < 5 || s.raw[s.pos] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(s.raw[s.pos+1:s.pos+5]), 16, 16)
	if err != nil {
		return 0, false
	}
	s.pos += 5
	return rune(n), true
}

func (s *jsonScan) number() *jsonFault {
	start := s.pos
	sign := 0
	if s.accept('-') {
		sign = 1
	}
	leading := s.peek()
	whole := s.digits()
	if whole == 0 || whole > 1 && leading == '0' {
		return &jsonFault{reason: "not JSON: a malformed number", at: start}
	}
	fraction := 0
	if s.accept('.') {
		if fraction = s.digits(); fraction == 0 {
			return s.unexpected("a digit")
		}
	}
	exponent := 0
	if s.accept('e') || s.accept('E') {
		minus := s.accept('-')
		if !minus {
			s.accept('+')
		}
		first := s.pos
		if s.digits() == 0 {
			return s.unexpected("a digit")
		}
		for _, c := range s.raw[first:s.pos] {
			exponent = min(exponent*10+int(c-'0'), 1<<24) // bounded, far beyond the limit that is checked below
		}
		if minus {
			exponent = -exponent
		}
	}
	before, after := max(whole+exponent, 1), max(fraction-exponent, 0)
	if before > maxDigits || after > maxDigits {
		return &jsonFault{reason: fmt.Sprintf("a number with more than %d digits before or after the point", maxDigits), at: start}
	}
	written := sign + before + after
	if after > 0 {
		written++ // the point
	}
	s.grown += max(written-(s.pos-start), 0)
	return nil
}

func (s *jsonScan) digits() (n int) {
	for ; isDigit(s.peek()); n++ {
		s.pos++
	}
	return n
}

func (s *jsonScan) space() {
	for c := s.peek(); c == ' ' || c == '\t' || c == '\n' || c == '\r'; c = s.peek() {
		s.pos++
	}
}

func (s *jsonScan) accept(c byte) bool {
	if s.peek() != c {
		return false
	}
	s.pos++
	return true
}

// peek returns the next byte, or 0 at the end. A NUL byte is not valid JSON either, so 0 is never ambiguous.
func (s *jsonScan) peek() byte {
	if s.pos >= len(s.raw) {
		return 0
	}
	return s.raw[s.pos]
}

func (s *jsonScan) unexpected(want string) *jsonFault {
	if s.pos >= len(s.raw) {
		return &jsonFault{reason: "not JSON: it ends where " + want + " should be", at: s.pos}
	}
	r, _ := utf8.DecodeRune(s.raw[s.pos:])
	return &jsonFault{reason: fmt.Sprintf("not JSON: %q where %s should be", r, want), at: s.pos}
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }
