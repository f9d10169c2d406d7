package drover

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Filter picks the jobs that match all its fields that are set. Lists, counts and every verb over
// many jobs use the same filter, in Go, in SQL (drover_where) and on the command line. The zero
// value picks every job, but a verb that changes jobs refuses it unless All is set.
type Filter struct {
	IDs         []string        `json:"ids,omitzero"` // at most 10,000; empty but not nil picks none
	Queue       string          `json:"queue,omitempty"`
	Kind        string          `json:"kind,omitempty"`
	State       State           `json:"state,omitempty"`
	Priority    int             `json:"priority,omitempty"` // 1 to 9; zero means any
	Reason      Reason          `json:"reason,omitempty"`
	Class       Class           `json:"class,omitempty"`           // of the last failed run
	Fingerprint string          `json:"fingerprint,omitempty"`     // of the last failed run
	Key         string          `json:"concurrency_key,omitempty"` // EnqueueOpts.Key
	UniqueKey   string          `json:"unique_key,omitempty"`      // as the column unique_key has it
	Periodic    string          `json:"periodic,omitempty"`        // name of the schedule that made the job
	Redrive     string          `json:"redrive,omitempty"`         // id of the last redrive that took the job up
	Error       string          `json:"error,omitempty"`           // part of the last failed run's text, in any case
	Tags        []string        `json:"tags,omitempty"`
	Args        json.RawMessage `json:"args,omitempty"` // JSON that the args contain, as Postgres' operator @> defines it

	// These pick by the time of the enqueue, and for jobs that have ended by that of their end. After
	// means from this time on, Before means earlier than this.
	CreatedAfter    time.Time `json:"created_after,omitzero"`
	CreatedBefore   time.Time `json:"created_before,omitzero"`
	FinalizedAfter  time.Time `json:"finalized_after,omitzero"`
	FinalizedBefore time.Time `json:"finalized_before,omitzero"`

	All bool `json:"all,omitempty"` // every job is meant
}

// checkWords refuses words and priorities that no job has: a slip of the pen would pick nothing and look like success.
func (f Filter) checkWords(bad *problems) {
	switch f.State {
	case "", Available, Scheduled, Retryable, Running, Parked, Completed, Discarded, Cancelled:
	default:
		bad.add("Filter.State", "%q is not a state", f.State)
	}
	switch f.Reason {
	case "", ReasonAttemptsExhausted, ReasonUnrecoverable, ReasonPanic, ReasonCrashed, ReasonUndecodable, ReasonExpired,
		ReasonTimeBudget, ReasonOperator, ReasonRetryBudget, ReasonRefused:
	default:
		bad.add("Filter.Reason", "%q is not a reason of a discard", f.Reason)
	}
	switch f.Class {
	case "", ClassError, ClassThrottled, ClassPanic, ClassTimeout, ClassDecode, ClassCrash, ClassRefused:
	default:
		bad.add("Filter.Class", "%q is not a class of a failure", f.Class)
	}
	if f.Priority < 0 || f.Priority > 9 {
		bad.add("Filter.Priority", "%d is not 1 to 9, or 0 for any", f.Priority)
	}
}

const maxFilterIDs = 10_000

// encode checks the filter and returns it as drover_where reads it, which is its JSON.
func (f Filter) encode(bad *problems) string {
	f.checkWords(bad)
	if len(f.IDs) > maxFilterIDs {
		bad.add("Filter.IDs", "has %d ids, and may have at most %d", len(f.IDs), maxFilterIDs)
	}
	texts := []struct{ field, value string }{
		{"Filter.Queue", f.Queue},
		{"Filter.Kind", f.Kind},
		{"Filter.Fingerprint", f.Fingerprint},
		{"Filter.Key", f.Key},
		{"Filter.UniqueKey", f.UniqueKey},
		{"Filter.Periodic", f.Periodic},
		{"Filter.Redrive", f.Redrive},
		{"Filter.Error", f.Error},
	}
	for i, id := range f.IDs {
		texts = append(texts, struct{ field, value string }{fmt.Sprintf("Filter.IDs[%d]", i), id})
	}
	for i, tag := range f.Tags {
		texts = append(texts, struct{ field, value string }{fmt.Sprintf("Filter.Tags[%d]", i), tag})
	}
	for _, text := range texts {
		bad.join(checkText(text.field, text.value, 1024))
	}
	if f.Args != nil {
		bad.join(checkJSON("Filter.Args", f.Args, 1<<20, maxJSONDepth))
	}
	for _, t := range f.times() {
		if !t.at.IsZero() {
			*t.at = *instant(bad, t.field, *t.at)
		}
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(f.Args, &fields) == nil && len(fields) == 0 {
		f.Args = nil // {} matches every job: a verb must take it for an empty filter
	}
	raw, err := json.Marshal(f)
	if err != nil { // Args that are not JSON, or a year that JSON cannot hold: reported above
		return "{}"
	}
	return string(raw)
}

// filterTime is one of a filter's times.
type filterTime struct {
	field string
	at    *time.Time
}

func (f *Filter) times() []filterTime {
	return []filterTime{
		{"Filter.CreatedAfter", &f.CreatedAfter},
		{"Filter.CreatedBefore", &f.CreatedBefore},
		{"Filter.FinalizedAfter", &f.FinalizedAfter},
		{"Filter.FinalizedBefore", &f.FinalizedBefore},
	}
}

// parseFilter reads a filter that is stored, such as a redrive's. psql may have stored it, or a newer version: what
// cannot be read is left out, and never fails the read.
func parseFilter(text string) (f Filter) {
	var keys map[string]json.RawMessage
	if json.Unmarshal([]byte(text), &keys) != nil {
		return f
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		value := keys[key]
		if strings.HasSuffix(key, "_after") || strings.HasSuffix(key, "_before") {
			value = finite(value)
		}
		one, err := json.Marshal(map[string]json.RawMessage{key: value})
		before := f
		if err != nil || json.Unmarshal(one, &f) != nil {
			f = before
		}
	}
	for _, t := range f.times() {
		*t.at = t.at.UTC()
	}
	return f
}

// finite puts the nearest time that time.Time and JSON can hold in the place of an infinite one.
func finite(value json.RawMessage) json.RawMessage {
	switch string(value) {
	case `"infinity"`:
		return json.RawMessage(`"9999-12-31T23:59:59.999999Z"`)
	case `"-infinity"`:
		return json.RawMessage(`"0001-01-01T00:00:00.000001Z"`) // the first instant is the zero time, which is none
	}
	return value
}
