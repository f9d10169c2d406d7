package drover

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/drover-queue/drover/internal/pgtext"
)

const (
	maxJSONDepth = 64  // arrays and objects inside each other
	maxNameBytes = 128 // of a kind or queue; the table has the same CHECK

	maxReasonText = 500 // bytes of a foreign error or panic in an error
)

// encodeArgs is encodeJSON for a job's args, which must not be null: a nil pointer, map or slice leaves a handler
// nothing to decode.
func encodeArgs(v any, maxBytes int) (json.RawMessage, error) {
	raw, err := encodeJSON("args", v, maxBytes)
	if err != nil {
		return nil, err
	}
	if string(raw) == "null" {
		return nil, &InvalidError{Field: "args", Reason: "is null; for a job without args use an empty struct"}
	}
	return raw, nil
}

// encodeJSON marshals v and refuses, as *InvalidError, whatever jsonb would refuse or could not give back. It
// follows json.Marshal, except that <, > and & stay one byte each: jsonb stores them so, and HTML in args would
// count sixfold against maxBytes. As there, invalid UTF-8 in a Go string becomes U+FFFD; in a json.RawMessage it
// is refused. A panic while marshalling comes back as an error.
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

// checkJSON reports, as *InvalidError that says where, why raw cannot be a jsonb value of drover's.
func checkJSON(field string, raw []byte, maxBytes, maxDepth int) error {
	if fault := pgtext.JSONFault(raw, maxBytes, maxDepth); fault != "" {
		return &InvalidError{Field: field, Reason: fault}
	}
	return nil
}

// checkName reports, as *InvalidError, why s cannot be the name of a kind or queue: 1 to 128 bytes of UTF-8
// without control characters, not starting or ending in a space. Names stand in logs, metrics and shell
// commands, so what cannot be seen there is refused.
func checkName(field, s string) error {
	if s == "" {
		return &InvalidError{Field: field, Reason: "empty"}
	}
	if err := checkText(field, s, maxNameBytes); err != nil {
		return err
	}
	for at, r := range s {
		if unicode.IsControl(r) {
			return &InvalidError{Field: field, Reason: fmt.Sprintf("control character %U at byte %d", r, at)}
		}
	}
	if strings.TrimSpace(s) != s {
		return &InvalidError{Field: field, Reason: fmt.Sprintf("%q starts or ends in a space", s)}
	}
	return nil
}

// checkText reports, as *InvalidError, why s cannot be a text column's value of at most maxBytes bytes:
// invalid UTF-8 or NUL. An empty s passes.
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
