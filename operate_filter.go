package drover

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/drover-queue/drover/internal/pgtext"
)

// Filter picks the jobs that match all its fields that are set. Lists, counts and every method that changes many jobs
// use the same filter, in Go, in SQL (drover_where) and on the command line. drover_where reads the filter's JSON. The
// zero value picks every job; a method that changes jobs refuses it unless All is set.
type Filter struct {
	IDs         []string        `json:"ids,omitzero"` // at most 10,000 ids; an empty slice that is not nil picks no job
	Queue       string          `json:"queue,omitempty"`
	Kind        string          `json:"kind,omitempty"`
	Key         string          `json:"concurrency_key,omitempty"` // EnqueueOpts.Key
	Priority    int             `json:"priority,omitempty"`        // 1 to 9; zero: any
	State       State           `json:"state,omitempty"`
	Reason      Reason          `json:"reason,omitempty"`
	Class       Class           `json:"class,omitempty"`       // class of the last failed run, or ClassRefused; ClassOperator is an error
	Fingerprint string          `json:"fingerprint,omitempty"` // fingerprint of the last failed run
	Periodic    string          `json:"periodic,omitempty"`    // name of the schedule that made the job
	Redrive     string          `json:"redrive,omitempty"`     // id of the last redrive that took the job up
	UniqueKey   string          `json:"unique_key,omitempty"`  // JobInfo.UniqueKey; ended jobs keep their key
	Error       string          `json:"error,omitempty"`       // part of the last failed run's text; case is ignored
	Tags        []string        `json:"tags,omitempty"`
	Args        json.RawMessage `json:"args,omitempty"` // JSON that the args contain, as with Postgres' operator @>

	// The job was enqueued at CreatedAfter or later, and before CreatedBefore. It ended at FinalizedAfter or later, and
	// before FinalizedBefore.
	CreatedAfter    time.Time `json:"created_after,omitzero"`
	CreatedBefore   time.Time `json:"created_before,omitzero"`
	FinalizedAfter  time.Time `json:"finalized_after,omitzero"`
	FinalizedBefore time.Time `json:"finalized_before,omitzero"`

	All bool `json:"all,omitempty"` // confirms that every job is meant
}

// checkWords refuses words that no job has. A filter with a typing error would pick nothing, and that would look like
// success.
func (f Filter) checkWords(bad *problems) {
	switch f.State {
	case "", Available, Scheduled, Retryable, Running, Parked, Completed, Discarded, Cancelled:
	default:
		bad.add("Filter.State", "%q is no state", f.State)
	}
	switch f.Reason {
	case "", ReasonAttemptsExhausted, ReasonUnrecoverable, ReasonPanic, ReasonCrashed, ReasonUndecodable, ReasonExpired,
		ReasonTimeBudget, ReasonOperator, ReasonRetryBudget, ReasonRefused:
	default:
		bad.add("Filter.Reason", "%q is no reason of a discard", f.Reason)
	}
	switch f.Class {
	case "", ClassError, ClassThrottled, ClassPanic, ClassTimeout, ClassDecode, ClassCrash, ClassRefused:
	default:
		bad.add("Filter.Class", "%q is no class of a failure", f.Class)
	}
	if f.Priority < 0 || f.Priority > 9 {
		bad.add("Filter.Priority", "%d is not 1 to 9", f.Priority)
	}
}

const maxFilterIDs = 10_000

// encode checks the filter and returns it in the form that drover_where reads.
func (f Filter) encode(bad *problems) string {
	f.checkWords(bad)
	if len(f.IDs) > maxFilterIDs {
		bad.add("Filter.IDs", "%d ids, at most %d", len(f.IDs), maxFilterIDs)
	}
	f.Redrive, f.IDs = pgtext.ID(f.Redrive), slices.Clone(f.IDs) // the caller's list stays as it is
	for i, id := range f.IDs {
		f.IDs[i] = pgtext.ID(id)
	}
	texts := []struct{ field, value string }{
		{"Filter.Queue", f.Queue},
		{"Filter.Kind", f.Kind},
		{"Filter.Key", f.Key},
		{"Filter.Fingerprint", f.Fingerprint},
		{"Filter.Periodic", f.Periodic},
		{"Filter.Redrive", f.Redrive},
		{"Filter.UniqueKey", f.UniqueKey},
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
	for _, at := range []struct {
		field string
		value *time.Time
	}{
		{"Filter.CreatedAfter", &f.CreatedAfter},
		{"Filter.CreatedBefore", &f.CreatedBefore},
		{"Filter.FinalizedAfter", &f.FinalizedAfter},
		{"Filter.FinalizedBefore", &f.FinalizedBefore},
	} {
		if !at.value.IsZero() {
			*at.value = *instant(bad, at.field, *at.value)
		}
	}
	raw, err := json.Marshal(f)
	if err != nil { // invalid Args or a year out of range, reported above
		return "{}"
	}
	return string(raw)
}

// decodeFilter reads a filter that the database has stored.
func decodeFilter(text string) (f Filter, err error) {
	if text == "null" {
		return f, errors.New("it is null")
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return Filter{}, err
	}
	return f, nil
}
