package demo

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Delivery is an event that the demo delivers to a customer. Each line of the file has one delivery.
type Delivery struct {
	Customer string          `json:"customer"`
	Event    string          `json:"event"`
	Path     string          `json:"url_path"` // the path of the customer's endpoint; "/hooks" if the line has no path
	Payload  json.RawMessage `json:"payload"`  // a JSON object
}

// LineError is the error of a line that cannot be read.
type LineError struct {
	Line   int // the number of the line, from 1
	Reason string
}

// Error implements error.
func (e *LineError) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Reason) }

// maxLine leaves room for the other args of a job. The args of a job may have 256 KiB.
const maxLine = 240 << 10

// ReadDeliveries reads one delivery from each line, and skips blank lines. It returns the errors of broken lines in
// broken. The result err is for an input that cannot be read.
func ReadDeliveries(in io.Reader) (good []Delivery, broken []*LineError, err error) {
	lines := bufio.NewReader(in)
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, nil, err
		}
		if n == 1 {
			line = bytes.TrimPrefix(line, []byte("\uFEFF"))
		}
		if text := bytes.TrimSpace(line); len(text) > 0 {
			d, problem := parseDelivery(text)
			if problem == nil {
				good = append(good, d)
			} else {
				broken = append(broken, &LineError{Line: n, Reason: problem.Error()})
			}
		}
		if err != nil {
			return good, broken, nil
		}
	}
}

func parseDelivery(line []byte) (Delivery, error) {
	d := Delivery{Path: "/hooks"}
	if len(line) > maxLine {
		return d, fmt.Errorf("%d bytes, at most %d are allowed", len(line), maxLine)
	}
	if !utf8.Valid(line) {
		return d, errors.New("not UTF-8")
	}
	if err := json.Unmarshal(line, &d); err != nil {
		return d, jsonProblem(err)
	}
	if err := checkWord("customer", d.Customer); err != nil {
		return d, err
	}
	if strings.Contains(d.Customer, "/") {
		return d, errors.New(`customer holds a "/"`)
	}
	if err := checkWord("event", d.Event); err != nil {
		return d, err
	}
	if err := checkWord("url_path", d.Path); err != nil {
		return d, err
	}
	if d.Path[0] != '/' {
		return d, fmt.Errorf("url_path %q does not begin with /", d.Path)
	}
	return d, d.checkPayload()
}

func jsonProblem(err error) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("not JSON: %w (byte %d)", err, syntax.Offset)
	case errors.As(err, &kind) && kind.Field == "":
		return fmt.Errorf("a JSON %s, not an object", kind.Value)
	case errors.As(err, &kind):
		return fmt.Errorf("%s is a %s, not a %s", kind.Field, kind.Value, kind.Type)
	}
	return err
}

func checkWord(field, word string) error {
	switch {
	case word == "":
		return fmt.Errorf("%s is missing", field)
	case len(word) > 256:
		return fmt.Errorf("%s is %d bytes long, at most 256 are allowed", field, len(word))
	case strings.ContainsFunc(word, unicode.IsControl):
		return fmt.Errorf("%s holds a control character", field)
	}
	return nil
}

// checkPayload refuses values that a jsonb column refuses and that are likely in files. The enqueue refuses the other
// values.
func (d *Delivery) checkPayload() error {
	if len(d.Payload) == 0 {
		return errors.New("payload is missing")
	}
	if d.Payload[0] != '{' {
		return errors.New("payload is not an object")
	}
	strs := json.NewDecoder(bytes.NewReader(d.Payload))
	strs.UseNumber()
	for {
		word, err := strs.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("payload: %w", err)
		}
		if s, ok := word.(string); ok && strings.Contains(s, "\x00") {
			return errors.New(`payload holds \u0000, which Postgres cannot store`)
		}
	}
}

// event is a delivery of this run. The receiver recognizes the event by its key.
type event struct {
	Delivery
	key string
}

// The function events returns n events. After the last delivery it begins again with the first.
func events(deliveries []Delivery, n int) []event {
	list := make([]event, n)
	for i := range list {
		list[i] = event{deliveries[i%len(deliveries)], fmt.Sprintf("evt-%06d", i+1)}
	}
	return list
}
