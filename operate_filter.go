package drover

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/drover-queue/drover/internal/engine"
)

// Filter picks jobs; all its fields that are set must fit. One and the same serves lists, counts and every verb that
// changes many jobs, in Go, SQL (drover_where) and on the command line. The zero value picks every job; a verb that
// changes jobs refuses it unless All says so.
type Filter struct {
	IDs         []string // at most 10,000; empty but not nil picks none
	Queue       string
	Kind        string
	State       State
	Reason      string // ReasonAttemptsExhausted, ...
	Class       string // of the last failed run: error, throttled, panic, timeout, decode, crash, refused
	Fingerprint string // of the last failed run
	Redrive     string // id of the redrive that took the job up last
	Error       string // part of the last failed run's text, case ignored
	Tags        []string
	Args        json.RawMessage // JSON that the args contain, as Postgres' @> has it

	CreatedAfter, CreatedBefore     time.Time // from, and up to but without
	FinalizedAfter, FinalizedBefore time.Time // the same, of jobs that have ended

	All bool // every job is meant
}

// filterDoc is a Filter as drover_where reads it.
type filterDoc struct {
	IDs             []string        `json:"ids,omitzero"`
	Queue           string          `json:"queue,omitempty"`
	Kind            string          `json:"kind,omitempty"`
	State           State           `json:"state,omitempty"`
	Reason          string          `json:"reason,omitempty"`
	Class           string          `json:"class,omitempty"`
	Fingerprint     string          `json:"fingerprint,omitempty"`
	Redrive         string          `json:"redrive,omitempty"`
	Error           string          `json:"error,omitempty"`
	Tags            []string        `json:"tags,omitempty"`
	Args            json.RawMessage `json:"args,omitempty"`
	CreatedAfter    *time.Time      `json:"created_after,omitempty"`
	CreatedBefore   *time.Time      `json:"created_before,omitempty"`
	FinalizedAfter  *time.Time      `json:"finalized_after,omitempty"`
	FinalizedBefore *time.Time      `json:"finalized_before,omitempty"`
	All             bool            `json:"all,omitempty"`
}

// checkWords refuses words that no job has: a slip of the pen would pick nothing and look like success.
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
	case "", classError, classThrottled, classPanic, classTimeout, classDecode, classCrash, engine.ClassRefused:
	default:
		bad.add("Filter.Class", "%q is no class of a failure", f.Class)
	}
}

const maxFilterIDs = 10_000

// encode checks the filter and returns it as drover_where reads it.
func (f Filter) encode(bad *problems) string {
	doc := filterDoc{
		IDs: f.IDs, Queue: f.Queue, Kind: f.Kind, State: f.State, Reason: f.Reason, Class: f.Class, Fingerprint: f.Fingerprint,
		Redrive: f.Redrive, Error: f.Error, Tags: f.Tags, Args: f.Args, All: f.All,
	}
	f.checkWords(bad)
	if len(f.IDs) > maxFilterIDs {
		bad.add("Filter.IDs", "%d ids, at most %d", len(f.IDs), maxFilterIDs)
	}
	texts := []struct{ field, value string }{
		{"Filter.Queue", f.Queue},
		{"Filter.Kind", f.Kind},
		{"Filter.Fingerprint", f.Fingerprint},
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
	for _, at := range []struct {
		field string
		value time.Time
		to    **time.Time
	}{
		{"Filter.CreatedAfter", f.CreatedAfter, &doc.CreatedAfter},
		{"Filter.CreatedBefore", f.CreatedBefore, &doc.CreatedBefore},
		{"Filter.FinalizedAfter", f.FinalizedAfter, &doc.FinalizedAfter},
		{"Filter.FinalizedBefore", f.FinalizedBefore, &doc.FinalizedBefore},
	} {
		if !at.value.IsZero() {
			*at.to = instant(bad, at.field, at.value)
		}
	}
	raw, err := json.Marshal(doc)
	if err != nil { // Args that are no JSON, told above
		return "{}"
	}
	return string(raw)
}
