// Package jobdoc reads a job to enqueue from JSON, for the command and the web API.
package jobdoc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/drover-queue/drover"
)

// Job is a job to enqueue. Its fields in JSON have the same names as the parameters of the SQL function drover_enqueue.
// A duration is written as in Go, such as 1h30m.
type Job struct {
	Kind        string          `json:"kind"`
	Args        json.RawMessage `json:"args"` // nil means {}
	ID          string          `json:"id"`
	Queue       string          `json:"queue"`
	Priority    int             `json:"priority"`
	ScheduledAt time.Time       `json:"scheduled_at"`
	Delay       string          `json:"delay"`
	MaxAttempts int             `json:"max_attempts"`
	Retry       json.RawMessage `json:"retry"`
	Timeout     string          `json:"timeout"`
	ExpiresAt   time.Time       `json:"expires_at"`
	RetryUntil  time.Time       `json:"retry_until"`
	Tags        []string        `json:"tags"`
	Metadata    json.RawMessage `json:"metadata"`
	Key         string          `json:"concurrency_key"`
	Uniqueness  *Unique         `json:"uniqueness"`
}

// Unique is drover.Unique with the names that the parameter uniqueness of drover_enqueue has.
type Unique struct {
	By         []string `json:"by"`
	AnyArgs    bool     `json:"any_args"`
	Queue      bool     `json:"queue"`
	Key        bool     `json:"key"`
	Until      *string  `json:"until"`       // nil means ended
	OnConflict *string  `json:"on_conflict"` // nil means keep
	Longest    string   `json:"longest"`     // only for debounce
}

// RawArgs are args that are JSON already.
type RawArgs struct {
	Of  string // the kind
	Doc json.RawMessage
}

// Kind implements drover.Args.
func (a RawArgs) Kind() string { return a.Of }

// MarshalJSON implements json.Marshaler.
func (a RawArgs) MarshalJSON() ([]byte, error) { return a.Doc, nil }

// Item returns the job for Client.EnqueueMany. An error is an *InvalidError that names the field.
func (j *Job) Item() (item drover.EnqueueItem, err error) {
	opts := &drover.EnqueueOpts{
		ID: j.ID, Queue: j.Queue, Priority: j.Priority, ScheduledAt: j.ScheduledAt, MaxAttempts: j.MaxAttempts, ExpiresAt: j.ExpiresAt,
		RetryUntil: j.RetryUntil, Tags: j.Tags, Key: j.Key,
	}
	for _, d := range []struct {
		field, text string
		to          *time.Duration
	}{{"Delay", j.Delay, &opts.Delay}, {"Timeout", j.Timeout, &opts.Timeout}} {
		if d.text == "" {
			continue
		}
		if *d.to, err = time.ParseDuration(d.text); err != nil || *d.to <= 0 {
			return item, &drover.InvalidError{Field: d.field, Reason: fmt.Sprintf("%.40q is not a duration such as 90s or 1h30m", d.text)}
		}
	}
	if len(j.Retry) > 0 && string(j.Retry) != "null" {
		if opts.Retry, err = drover.ParseRetryStrategy(string(j.Retry)); err != nil {
			return item, err
		}
	}
	if len(j.Metadata) > 0 && string(j.Metadata) != "null" {
		d := json.NewDecoder(bytes.NewReader(j.Metadata))
		d.UseNumber() // an integer of 20 digits must stay an integer
		if err := d.Decode(&opts.Metadata); err != nil {
			return item, &drover.InvalidError{Field: "Metadata", Reason: "is not a JSON object"}
		}
	}
	if j.Uniqueness != nil {
		if opts.Unique, err = j.Uniqueness.unique(); err != nil {
			return item, err
		}
	}
	if j.Args == nil {
		j.Args = json.RawMessage(`{}`)
	}
	return drover.EnqueueItem{Args: RawArgs{j.Kind, j.Args}, Opts: opts}, nil
}

func (u *Unique) unique() (*drover.Unique, error) {
	to := &drover.Unique{By: u.By, AnyArgs: u.AnyArgs, Queue: u.Queue, Key: u.Key}
	if u.Until != nil {
		if to.Until = drover.UniqueUntil(*u.Until); to.Until == "" {
			return nil, &drover.InvalidError{Field: "Unique.Until", Reason: "is empty"}
		}
	}
	conflict := "keep"
	if u.OnConflict != nil {
		conflict = *u.OnConflict
	}
	if conflict != "debounce" && u.Longest != "" {
		return nil, &drover.InvalidError{Field: "Unique.OnConflict", Reason: "longest is for debounce"}
	}
	switch conflict {
	case "keep", "replace":
		to.OnConflict = drover.OnConflict(conflict)
	case "debounce":
		longest, err := time.ParseDuration(u.Longest)
		if err != nil {
			return nil, &drover.InvalidError{Field: "Unique.OnConflict", Reason: "debounce needs longest, a duration such as 10m"}
		}
		to.OnConflict = drover.Debounce(longest)
	default:
		return nil, &drover.InvalidError{Field: "Unique.OnConflict", Reason: fmt.Sprintf("%.40q is not keep, replace or debounce", conflict)}
	}
	return to, nil
}

// Names are pairs for strings.NewReplacer. In the text of a refusal, they replace the names that Go has for a job's
// fields and values by the names that JSON has.
func Names() []string {
	return append([]string{
		"Queue:", "queue:", "Priority:", "priority:", "ScheduledAt:", "scheduled_at:", "Delay:", "delay:", "MaxAttempts:", "max_attempts:", "Timeout:", "timeout:",
		"ExpiresAt:", "expires_at:", "RetryUntil:", "retry_until:", "Tags", "tags", "Metadata", "metadata", "Unique.By", "uniqueness.by", "Unique.AnyArgs", "uniqueness.any_args",
		"Unique.Queue", "uniqueness.queue", "Unique.Key", "uniqueness.key", "Unique.Until", "uniqueness.until", "Unique.OnConflict", "uniqueness.on_conflict",
		"Key:", "concurrency_key:", "ULID:", "ULID:", "ID:", "id:",
	}, Reasons()...)
}

// Reasons are the pairs of Names for the reason of a refusal alone, without the field in front of it.
func Reasons() []string {
	return []string{
		"contradicts ScheduledAt", "contradicts scheduled_at", "not after ScheduledAt", "not after scheduled_at", "contradicts AnyArgs", "contradicts any_args",
		"nil means all the args, AnyArgs none", "leave it out to compare all the args; any_args compares none of them", "the job has no Key", "the job has no concurrency_key",
		"Debounce needs Delay or ScheduledAt", "debounce needs delay or scheduled_at", "is not KeepExisting", "is not keep",
	}
}
