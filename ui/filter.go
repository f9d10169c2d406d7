package ui

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/operate"
)

// filterField is a field of drover.Filter in the form and in the address.
type filterField struct {
	key    string // in addresses, and in the filter's JSON
	label  string
	goName string
	hint   string
	words  []string // its possible values; empty for any text
	main   bool     // always shown; the other fields have to be unfolded
	take   func(*drover.Filter, []string) error
}

// filterFields are in the order of the form.
func filterFields() []filterField {
	return []filterField{
		{
			key: "state", label: "State", goName: "State", main: true, words: operate.States(),
			take: text(func(f *drover.Filter, v string) { f.State = drover.State(v) }),
		},
		{key: "queue", label: "Queue", goName: "Queue", main: true, take: text(func(f *drover.Filter, v string) { f.Queue = v })},
		{key: "kind", label: "Kind", goName: "Kind", main: true, take: text(func(f *drover.Filter, v string) { f.Kind = v })},
		{key: "error", label: "Error contains", goName: "Error", main: true, take: text(func(f *drover.Filter, v string) { f.Error = v })},
		{
			key: "reason", label: "Reason of the discard", goName: "Reason", words: operate.Reasons(),
			take: text(func(f *drover.Filter, v string) { f.Reason = drover.Reason(v) }),
		},
		{
			key: "class", label: "Class of the last failure", goName: "Class", words: operate.Classes(),
			take: text(func(f *drover.Filter, v string) { f.Class = drover.Class(v) }),
		},
		{key: "fingerprint", label: "Fingerprint of the last failure", goName: "Fingerprint", take: text(func(f *drover.Filter, v string) { f.Fingerprint = strings.ToLower(v) })},
		{key: "priority", label: "Priority", goName: "Priority", words: []string{"1", "2", "3", "4", "5", "6", "7", "8", "9"}, take: takePriority},
		{key: "concurrency_key", label: "Concurrency key", goName: "Key", take: text(func(f *drover.Filter, v string) { f.Key = v })},
		{key: "unique_key", label: "Unique key", goName: "UniqueKey", take: text(func(f *drover.Filter, v string) { f.UniqueKey = v })},
		{key: "periodic", label: "Made by the schedule", goName: "Periodic", take: text(func(f *drover.Filter, v string) { f.Periodic = v })},
		{key: "redrive", label: "Last redrive", goName: "Redrive", take: text(func(f *drover.Filter, v string) { f.Redrive = v })},
		{key: "tags", label: "Tag", goName: "Tags", hint: "fill in one, and the form has room for another", take: func(f *drover.Filter, v []string) error { f.Tags = v; return nil }},
		{key: "args", label: "Args contain", goName: "Args", hint: `JSON, such as {"Order": 42}`, take: takeArgs},
		{key: "created_after", label: "Enqueued from", goName: "CreatedAfter", hint: momentForms, take: takeTime(func(f *drover.Filter) *time.Time { return &f.CreatedAfter })},
		{key: "created_before", label: "Enqueued before", goName: "CreatedBefore", hint: momentForms, take: takeTime(func(f *drover.Filter) *time.Time { return &f.CreatedBefore })},
		{key: "finalized_after", label: "Ended from", goName: "FinalizedAfter", hint: momentForms, take: takeTime(func(f *drover.Filter) *time.Time { return &f.FinalizedAfter })},
		{key: "finalized_before", label: "Ended before", goName: "FinalizedBefore", hint: momentForms, take: takeTime(func(f *drover.Filter) *time.Time { return &f.FinalizedBefore })},
		{key: "ids", label: "Ids", goName: "IDs", hint: "separated by spaces or commas", take: takeIDs},
	}
}

func filterKeys() (keys []string) {
	for _, field := range filterFields() {
		keys = append(keys, field.key)
	}
	return keys
}

func text(set func(*drover.Filter, string)) func(*drover.Filter, []string) error {
	return func(f *drover.Filter, values []string) error {
		set(f, values[0])
		return nil
	}
}

func takePriority(f *drover.Filter, values []string) error {
	n, err := strconv.Atoi(values[0])
	if err != nil || n < 1 || n > 9 {
		return bad("Priority: %q is not a number from 1 to 9.", cut(values[0], 40))
	}
	f.Priority = n
	return nil
}

func takeArgs(f *drover.Filter, values []string) error {
	if !json.Valid([]byte(values[0])) {
		return bad(`Args contain: that is not JSON, such as {"Order": 42}.`)
	}
	if strings.Join(strings.Fields(values[0]), "") == "{}" {
		return nil // a filter with {} would pick all jobs whose args are an object
	}
	f.Args = json.RawMessage(values[0])
	return nil
}

func takeIDs(f *drover.Filter, values []string) error {
	f.IDs = strings.FieldsFunc(strings.Join(values, " "), func(r rune) bool { return r == ',' || r == ' ' || r == '\n' || r == '\r' || r == '\t' })
	return nil
}

func takeTime(to func(*drover.Filter) *time.Time) func(*drover.Filter, []string) error {
	return func(f *drover.Filter, values []string) error {
		at, ok := readMoment(values[0], time.Now())
		if !ok {
			return bad("%q is not a time. Write %s.", cut(values[0], 40), momentForms)
		}
		*to(f) = at
		return nil
	}
}

// filter reads the filter of an address. An empty value means that the form's field was left empty. filter does not
// check words such as a state, because the client checks them.
func (q query) filter() (f drover.Filter, err error) {
	for _, field := range filterFields() {
		values := slices.DeleteFunc(slices.Clone(q.Values[field.key]), func(v string) bool { return v == "" })
		if len(values) == 0 {
			continue
		}
		if len(values) > 1 && field.key != "tags" && field.key != "ids" {
			return f, badAt(field.key, "The address has %q twice.", field.key)
		}
		if err := field.take(&f, values); err != nil {
			var wrong problem
			if errors.As(err, &wrong) {
				wrong.Field = field.key
				err = wrong
			}
			return f, err
		}
	}
	return f, nil
}

// The function empty reports whether a filter picks every job.
func empty(f drover.Filter) bool { return reflect.ValueOf(f).IsZero() }

// filterAddress is the query of an address: the filter without empty fields, and the pairs in more.
func (q query) filterAddress(more ...string) string {
	values := url.Values{}
	for _, key := range filterKeys() {
		for _, value := range q.Values[key] {
			if value != "" {
				values.Add(key, value)
			}
		}
	}
	for i := 0; i+1 < len(more); i += 2 {
		values.Set(more[i], more[i+1])
	}
	return values.Encode()
}

// input is a field of a form as the page shows it.
type input struct {
	ID, Key, Label, Hint, Value string
	Words                       []option
}

// keysOf returns the keys of fields.
func keysOf(fields []input) (keys []string) {
	for _, field := range fields {
		keys = append(keys, field.Key)
	}
	return keys
}

type option struct {
	Value    string
	Selected bool
}

// inputs returns the fields of the filter's form with the values of the address. The result main has the fields that are
// always shown. The result more has the other fields, and unfolded is true if one of these has a value.
func (q query) inputs() (main, more []input, unfolded bool) {
	for _, field := range filterFields() {
		values := slices.DeleteFunc(slices.Clone(q.Values[field.key]), func(v string) bool { return v == "" })
		if field.key == "ids" {
			values = []string{strings.Join(values, " ")}
		} else if field.key == "tags" || len(values) == 0 {
			values = append(values, "")
		}
		for i, value := range values {
			in := input{ID: fmt.Sprintf("f-%s-%d", field.key, i), Key: field.key, Label: field.label, Hint: field.hint, Value: value}
			for _, word := range field.words {
				in.Words = append(in.Words, option{word, word == value})
			}
			if field.main {
				main = append(main, in)
			} else {
				more = append(more, in)
				unfolded = unfolded || value != ""
			}
		}
	}
	return main, more, unfolded
}
