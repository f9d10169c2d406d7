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
	Until      string   `json:"until"`
	OnConflict string   `json:"on_conflict"`
	Longest    string   `json:"longest"` // only for debounce
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
	to := &drover.Unique{By: u.By, AnyArgs: u.AnyArgs, Queue: u.Queue, Key: u.Key, Until: drover.UniqueUntil(u.Until), OnConflict: drover.OnConflict(u.OnConflict)}
	if u.OnConflict != "debounce" && u.Longest != "" {
		return nil, &drover.InvalidError{Field: "Unique.OnConflict", Reason: "longest is for debounce"}
	}
	if u.OnConflict == "debounce" {
		longest, err := time.ParseDuration(u.Longest)
		if err != nil {
			return nil, &drover.InvalidError{Field: "Unique.OnConflict", Reason: "debounce needs longest, a duration such as 10m"}
		}
		to.OnConflict = drover.Debounce(longest)
	}
	return to, nil
}
