package ui

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/drover-queue/drover/internal/pg"
)

// words turns stored texts into texts that the pages may show.
type words struct {
	redact func(string) string
}

const (
	cellLength = 160   // how many characters a text in a table has at most
	textLength = 2_000 // how many characters a text on a job's page has at most; the link "see all" shows the whole text
)

// name shows a name, for example of a queue, a kind or a tag. It does not redact the name, because links contain it as
// well.
func (words) name(text any) string { return cut(visible(fmt.Sprint(text)), 2*cellLength) }

// The method free shows a text that may contain a secret.
func (w words) free(text any) string { return visible(w.clean(fmt.Sprint(text))) }

// cell does the same as free, and cuts the text for a table.
func (w words) cell(text any) string {
	return cut(strings.Join(strings.Fields(w.free(text)), " "), cellLength)
}

// longestLine is how many bytes args may have to be shown in a list. It has to be small, because Redact reads the whole
// args of each job in the list.
const longestLine = 8 << 10

// The method line shows args in a list. For args without a field it shows nothing, and for long args only their size.
func (w words) line(args json.RawMessage) string {
	switch {
	case len(args) > longestLine:
		return size(len(args)) + " of args"
	case len(bytes.TrimSpace(args)) <= len("{}"):
		return ""
	}
	return w.cell(string(args))
}

// piece is a part of a sentence; ISO is set if it is a time.
type piece struct{ Text, ISO string }

var timeInText = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC`)

// sentence shows a text, in which times are parts of their own, so that a browser can show them in the reader's zone.
func (w words) sentence(text string) (pieces []piece) {
	text = w.free(text)
	from := 0
	for _, at := range timeInText.FindAllStringIndex(text, -1) {
		t, err := time.Parse("2006-01-02 15:04:05 UTC", text[at[0]:at[1]])
		if err != nil {
			continue
		}
		pieces = append(pieces, piece{Text: text[from:at[0]]}, piece{text[at[0]:at[1]], t.Format(time.RFC3339)})
		from = at[1]
	}
	return append(pieces, piece{Text: text[from:]})
}

// json shows a value as JSON. It redacts the texts of the value before it encodes them.
func (w words) json(v any) (string, error) {
	raw, err := json.Marshal(w.shown(v))
	return visible(string(raw)), err
}

// clean redacts a text. If Redact panics, clean replaces the whole text, so that nothing secret is shown.
func (w words) clean(text string) (cleaned string) {
	if w.redact == nil || text == "" {
		return text
	}
	defer func() {
		if recover() != nil {
			cleaned = "(not shown: Redact panicked on this text)"
		}
	}()
	return w.redact(text)
}

// longText is a text that may have been cut.
type longText struct {
	Text string
	All  string // address of the whole text; "" if Text is the whole text
	Size string // how large the whole text is
}

// The method long redacts a text and then cuts it. In the other order, Redact might not recognise a secret that was
// cut.
func (w words) long(text, all string) longText {
	shown := w.free(text)
	if utf8.RuneCountInString(shown) <= textLength {
		return longText{Text: shown}
	}
	return longText{cut(shown, textLength), all, size(len(shown))}
}

// cut cuts a text to n characters.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	seen := 0
	for i := range text {
		if seen == n {
			return text[:i] + "…"
		}
		seen++
	}
	return text
}

// The function visible escapes characters that show nothing, or that move the text around them, such as bidi marks, NUL
// and zero-width characters. In a JSON text these escapes stand for the same characters.
func visible(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case unicode.IsPrint(r), r == '\n', r == '\t':
			b.WriteRune(r)
		case r == '\r':
			b.WriteString(`\r`)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// pretty indents JSON. JSON that is too long for a person to read stays as it is.
func pretty(raw json.RawMessage) string {
	if len(raw) == 0 || len(raw) > 64<<10 || strings.Count(string(raw), "{")+strings.Count(string(raw), "[") > 1000 {
		return string(raw)
	}
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(raw); err != nil {
		return string(raw)
	}
	return strings.TrimSpace(b.String())
}

// moment is a time as the pages show it.
type moment struct {
	ISO, Exact, Relative string
}

// The function when returns a time as the pages show it, or nil if there is no time.
func when(now time.Time, t any) *moment {
	var at time.Time
	switch t := t.(type) {
	case time.Time:
		at = t
	case *time.Time:
		if t != nil {
			at = *t
		}
	}
	if at.IsZero() {
		return nil
	}
	at = at.UTC()
	return &moment{at.Format("2006-01-02T15:04:05.000Z"), at.Format("2006-01-02 15:04:05.000 UTC"), relative(at, now)}
}

// relative is how far a time is from now: "3 min ago", "in 5 s".
func relative(t, now time.Time) string {
	switch d := t.Sub(now); {
	case d > 200*365*24*time.Hour:
		return "in ages"
	case d >= time.Second:
		return "in " + span(d)
	case d > -time.Second:
		return "now"
	default:
		return span(-d) + " ago"
	}
}

// span rounds a duration to a whole number of one unit, so that a person can read it easily.
func span(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 2*day:
		return fmt.Sprintf("%d h", d/time.Hour)
	}
	return fmt.Sprintf("%d days", d/day)
}

// millis does the same as span for a number of milliseconds from the database, which may be any number.
func millis[N int64 | float64](ms N) string { return span(max(pg.Span(ms, time.Millisecond), 0)) }

// size formats a number of bytes.
func size(n int) string {
	switch {
	case n < 10<<10:
		return count(n, "byte")
	case n < 10<<20:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d MiB", n>>20)
}

// count formats a number with its noun: "1 job", "1,234 jobs".
func count(n any, noun string) string {
	if digits := number(n); digits != "1" {
		return digits + " " + noun + "s"
	}
	return "1 " + noun
}

// number groups digits: 1,234,567.
func number(n any) string {
	digits := fmt.Sprint(n)
	sign := ""
	if strings.HasPrefix(digits, "-") {
		sign, digits = "-", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}
