package drover

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/drover-queue/drover/internal/pgtext"
)

// problems gathers all mistakes, so that one error reports them together.
type problems struct{ errs []error }

func (p *problems) add(field, format string, args ...any) {
	p.errs = append(p.errs, &InvalidError{Field: field, Reason: fmt.Sprintf(format, args...)})
}

func (p *problems) join(err error) {
	if err != nil {
		p.errs = append(p.errs, err)
	}
}

// at adds err to the problems, and puts field in front of the fields that err names: "Base" becomes
// "Workers[0].Retry.Base".
func (p *problems) at(field string, err error) {
	var invalid *InvalidError
	switch joined, ok := err.(interface{ Unwrap() []error }); {
	case err == nil:
	case ok:
		for _, e := range joined.Unwrap() {
			p.at(field, e)
		}
	case errors.As(err, &invalid):
		p.errs = append(p.errs, &InvalidError{Field: field + "." + invalid.Field, Reason: invalid.Reason, Err: invalid.Err})
	default:
		p.errs = append(p.errs, &InvalidError{Field: field, Reason: err.Error(), Err: err})
	}
}

func (p *problems) err() error {
	if len(p.errs) == 1 {
		return p.errs[0]
	}
	return errors.Join(p.errs...)
}

// nonNegative reports a negative duration.
func (p *problems) nonNegative(field string, d time.Duration) {
	if d < 0 {
		p.add(field, "%v is negative", d)
	}
}

// atLeast reports a duration that is set and shorter than least. The usual mistake is a number without a unit, such as
// 30 for 30 * time.Second.
func (p *problems) atLeast(field string, d, least time.Duration) {
	if d != 0 && d < least {
		p.add(field, "%v is under %v", d, least)
	}
}

// rate checks how many jobs become due in a second. Zero means the default, and passes.
func (p *problems) rate(perSecond float64) {
	if perSecond != 0 && !(perSecond >= 0.001 && perSecond <= 5000) { // false for NaN too
		p.add("Rate", "%v is not 0.001 to 5,000 a second", perSecond)
	}
}

// leastTimeout is the shortest Timeout, because the table counts milliseconds.
const leastTimeout = time.Millisecond

// attempts checks a number of runs; 0 means unset.
func (p *problems) attempts(field string, n int) {
	switch {
	case n < 0:
		p.add(field, "%d is negative; 1 means never retry", n)
	case n > math.MaxInt32:
		p.add(field, "%d is more than %d", n, math.MaxInt32)
	}
}

const (
	maxJSONDepth = 64  // how many arrays and objects may be inside each other
	maxNameBytes = 128 // bytes in the name of a kind or queue; the table has the same CHECK

	maxReasonText = 500 // bytes that are kept of the text of an error or panic that is not drover's
)

// encodeArgs is encodeJSON for a job's args. It refuses null: a nil pointer, map or slice leaves a handler nothing to
// decode.
func encodeArgs(v any, maxBytes int) (json.RawMessage, error) {
	raw, err := encodeJSON("args", v, maxBytes)
	if err != nil {
		return nil, err
	}
	if string(raw) == "null" {
		return nil, &InvalidError{Field: "args", Reason: "null; a job without args has an empty struct"}
	}
	return raw, nil
}

// encodeJSON marshals v. It returns an *InvalidError for everything that jsonb would refuse or could not give back. It
// follows json.Marshal, except that <, > and & stay one byte each: jsonb stores them like that, and otherwise each of
// them would count as six bytes against maxBytes. As with json.Marshal, invalid UTF-8 in a Go string becomes U+FFFD; in
// a json.RawMessage it is refused. A panic while marshalling is returned as an error.
func encodeJSON(field string, v any, maxBytes int) (json.RawMessage, error) {
	raw, err := marshal(field, v)
	if err != nil {
		return nil, err
	}
	if err := checkJSON(field, raw, maxBytes, maxJSONDepth); err != nil {
		return nil, err
	}
	return raw, nil
}

func marshal(field string, v any) (raw json.RawMessage, err error) {
	defer func() {
		if p := recover(); p != nil {
			text, _ := pgtext.Sanitize(recoveredText(p), maxReasonText)
			cause, _ := p.(error)
			raw, err = nil, &InvalidError{Field: field, Reason: "panic while marshalling: " + text, Err: cause}
		}
	}()
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		text, _ := pgtext.Sanitize(errorText(err), maxReasonText)
		return nil, &InvalidError{Field: field, Reason: "cannot be marshalled: " + text, Err: err}
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

// checkJSON returns an *InvalidError, with the reason and the place, if raw cannot be a jsonb value of drover's.
func checkJSON(field string, raw []byte, maxBytes, maxDepth int) error {
	if fault := pgtext.JSONFault(raw, maxBytes, maxDepth); fault != "" {
		return &InvalidError{Field: field, Reason: fault}
	}
	return nil
}

// checkName returns an *InvalidError if s cannot be the name of a kind or queue. A name has 1 to 128 bytes of UTF-8,
// and all of it can be seen.
func checkName(field, s string) error {
	if s == "" {
		return &InvalidError{Field: field, Reason: "empty"}
	}
	if err := checkText(field, s, maxNameBytes); err != nil {
		return err
	}
	return checkSeen(field, s)
}

// checkSeen returns an *InvalidError if a part of the name or tag s cannot be seen: control characters, invisible
// characters, and spaces at its ends. Names stand in logs, metrics and shell commands, and a name that looks like
// another name would hide its jobs. The functions and the trigger of 00010_jobs.sql have the same rule.
func checkSeen(field, s string) error {
	for at, r := range s {
		switch {
		case unicode.IsControl(r):
			return &InvalidError{Field: field, Reason: fmt.Sprintf("control character %U at byte %d", r, at)}
		case unseen(r):
			return &InvalidError{Field: field, Reason: fmt.Sprintf("invisible character %U at byte %d", r, at)}
		}
	}
	if strings.TrimSpace(s) != s {
		return &InvalidError{Field: field, Reason: fmt.Sprintf("%q starts or ends in a space", s)}
	}
	return nil
}

// unseen reports whether r is a mark that formats, separates or fills. The list does not grow when Unicode does,
// because SQL has to agree with it.
func unseen(r rune) bool {
	switch r {
	case 0xad, 0x61c, 0x115f, 0x1160, 0x180e, 0x3164, 0xfeff, 0xffa0:
		return true
	}
	return r >= 0x200b && r <= 0x200f || r >= 0x2028 && r <= 0x202e || r >= 0x2060 && r <= 0x206f ||
		r >= 0xfff9 && r <= 0xfffb || r >= 0xe0000 && r <= 0xe007f
}

// checkText returns an *InvalidError if s cannot be the value of a text column of at most maxBytes bytes: if it is
// longer, has invalid UTF-8, or has a NUL. An empty s passes.
func checkText(field, s string, maxBytes int) error {
	if len(s) > maxBytes {
		return &InvalidError{Field: field, Reason: fmt.Sprintf("%d bytes; at most %d", len(s), maxBytes)}
	}
	if !utf8.ValidString(s) {
		return &InvalidError{Field: field, Reason: "invalid UTF-8"}
	}
	if at := strings.IndexByte(s, 0); at >= 0 {
		return &InvalidError{Field: field, Reason: fmt.Sprintf("NUL at byte %d", at)}
	}
	return nil
}

func positive(n int) *int {
	if n > 0 {
		return &n
	}
	return nil
}
