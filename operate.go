package drover

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/oklog/ulid/v2"
)

// RunError is one entry of a job's errors: a failed run, or with Class operator what an operator did.
type RunError struct {
	Attempt     int       `json:"attempt"`
	ClaimSeq    int       `json:"claim_seq"`
	At          time.Time `json:"at"`
	Class       string    `json:"class"` // error, throttled, panic, timeout, decode, crash, operator
	Error       string    `json:"error"`
	Type        string    `json:"type,omitempty"` // Go type of the error
	Fingerprint string    `json:"fingerprint,omitempty"`
	DurationMS  int64     `json:"duration_ms"`
	DelayMS     int64     `json:"delay_ms,omitempty"`
	Supervisor  string    `json:"supervisor,omitempty"`
	Host        string    `json:"host,omitempty"`  // and process id, of a process that died
	Trace       string    `json:"trace,omitempty"` // of a panic, in the newest entry only
}

// JobInfo is a job as it stands in the table.
type JobInfo struct {
	ID            string          `json:"id"`
	Queue         string          `json:"queue"`
	Kind          string          `json:"kind"`
	State         State           `json:"state"`
	Priority      int             `json:"priority"`
	Attempt       int             `json:"attempt"`
	MaxAttempts   int             `json:"max_attempts"` // effective
	ScheduledAt   time.Time       `json:"scheduled_at"` // of a parked job meaningless
	CreatedAt     time.Time       `json:"created_at"`
	AttemptedAt   *time.Time      `json:"attempted_at,omitempty"`
	FinalizedAt   *time.Time      `json:"finalized_at,omitempty"`
	ClaimedBy     string          `json:"claimed_by,omitempty"`
	DiscardReason string          `json:"discard_reason,omitempty"`
	Crashes       int             `json:"crashes,omitempty"`
	Redrives      int             `json:"redrives,omitempty"`
	Snoozes       int             `json:"snoozes,omitempty"`
	ErrorsTotal   int             `json:"errors_total,omitempty"` // failed runs, those left out of Errors included
	Errors        []RunError      `json:"errors,omitempty"`       // the first 5 and the last 15
	Args          json.RawMessage `json:"args"`
	Retry         json.RawMessage `json:"retry,omitempty"` // the job's own strategy
	Tags          []string        `json:"tags,omitempty"`
	Metadata      json.RawMessage `json:"metadata,omitempty"`

	ConcurrencyKey string `json:"concurrency_key,omitempty"`
}

// LastError is the text of the newest failed run, "" if none failed.
func (j *JobInfo) LastError() string {
	for i := len(j.Errors) - 1; i >= 0; i-- {
		if j.Errors[i].Class != "operator" {
			return j.Errors[i].Error
		}
	}
	return ""
}

// Get reads one job. Errors: ErrNotFound.
func (c *Client) Get(ctx context.Context, id string) (*JobInfo, error) {
	if !isID(id) {
		return nil, fmt.Errorf("get job %q: %w", id, ErrNotFound)
	}
	job, err := c.store.get(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("get job %s: %w", id, err)
	}
	return job, nil
}

// isID reports whether a row could have the id; the table takes any text of a ULID's length.
func isID(id string) bool {
	return len(id) == ulid.EncodedSize && checkText("id", id, ulid.EncodedSize) == nil
}

// Page is one page of a list.
type Page struct {
	Jobs []JobInfo `json:"jobs"`
	Next string    `json:"next,omitempty"` // give it to List for the next page; "" at the end
}

// List reads jobs, newest id first: at most limit (zero means 50; at most 1000), from below the id after ("" begins
// at the newest). It walks the primary key, so a filter that fits few jobs reads far.
func (c *Client) List(ctx context.Context, filter Filter, after string, limit int) (Page, error) {
	var bad problems
	switch {
	case limit == 0:
		limit = 50
	case limit < 0 || limit > 1000:
		bad.add("limit", "%d is not 1 to 1000", limit)
	}
	doc := filter.encode(&bad)
	bad.join(checkText("after", after, 1024))
	if err := bad.err(); err != nil {
		return Page{}, err
	}
	jobs, err := c.store.list(ctx, doc, after, limit+1)
	if err != nil {
		return Page{}, fmt.Errorf("list jobs: %w", err)
	}
	page := Page{Jobs: jobs}
	if len(jobs) > limit {
		page.Jobs = jobs[:limit]
		page.Next = jobs[limit-1].ID
	}
	return page, nil
}

// Count is how many jobs of one queue are in one state.
type Count struct {
	Queue     string     `json:"queue"`
	State     State      `json:"state"`
	Jobs      int64      `json:"jobs"`
	OldestDue *time.Time `json:"oldest_due,omitempty"` // of those due and waiting
}

// Counts counts all jobs by queue and state. It reads the whole table.
func (c *Client) Counts(ctx context.Context) ([]Count, error) {
	counts, err := c.store.counts(ctx)
	if err != nil {
		return nil, fmt.Errorf("count jobs: %w", err)
	}
	return counts, nil
}

// RedriveOpts change a job as it is redriven. Nil changes nothing.
type RedriveOpts struct {
	// MaxAttempts is the job's new total of runs, counted from the redrive. Zero leaves it.
	MaxAttempts int

	// ArgsPatch is a JSON object whose keys replace those of the args, which must be an object too. Nil leaves them.
	ArgsPatch json.RawMessage
}

// RedriveJob makes one discarded or cancelled job due again, now: same id, attempts fresh, errors kept. A job that
// was redriven and waits stays as it is. Errors: ErrNotFound; ErrState for one that runs, is completed or has
// expired, or that waits and opts would change; *InvalidError.
func (c *Client) RedriveJob(ctx context.Context, id string, opts *RedriveOpts) error {
	var bad problems
	if opts == nil {
		opts = &RedriveOpts{}
	}
	bad.attempts("", opts.MaxAttempts, 0)
	if opts.ArgsPatch != nil {
		if err := checkJSON("ArgsPatch", opts.ArgsPatch, c.cfg.MaxArgsBytes, maxJSONDepth); err != nil {
			bad.join(err)
		} else if bytes.TrimLeft(opts.ArgsPatch, " \t\r\n")[0] != '{' {
			bad.add("ArgsPatch", "is not a JSON object")
		}
	}
	if err := bad.err(); err != nil {
		return err
	}
	if !isID(id) {
		return fmt.Errorf("redrive job %q: %w", id, ErrNotFound)
	}
	was, found, err := c.store.redrive(ctx, id, opts)
	if err != nil {
		return fmt.Errorf("redrive job %s: %w", id, err)
	}
	if !found {
		return fmt.Errorf("redrive job %s: %w", id, ErrNotFound)
	}
	if was == Discarded || was == Cancelled {
		c.emit(ctx, told{eventRedriven, Event{JobID: id}})
	}
	return nil
}

// Cancel ends a job that nobody wants any more; reason may be empty. A running one is final at once: its handler's
// context is cancelled with ErrCancelled, in this process directly, in others by a notification, and whatever it
// returns is refused. Cancelling a job that has ended changes nothing. It returns the state the job was in.
// Errors: ErrNotFound.
func (c *Client) Cancel(ctx context.Context, id, reason string) (State, error) {
	if !isID(id) {
		return "", fmt.Errorf("cancel job %q: %w", id, ErrNotFound)
	}
	reason, _ = sanitizeText(reason, 256)
	was, found, err := c.store.cancel(ctx, id, reason)
	if err != nil {
		return "", fmt.Errorf("cancel job %s: %w", id, err)
	}
	if !found {
		return "", fmt.Errorf("cancel job %s: %w", id, ErrNotFound)
	}
	switch {
	case was == Running:
		c.running.cancel(id)
	case !was.Final():
		c.emit(ctx, told{eventCancelled, Event{JobID: id, Error: reason}})
	}
	return was, nil
}

// DeleteCompleted deletes completed jobs that ended before the cutoff, in small transactions, and never any other.
// It walks the whole primary key and returns how many.
func (c *Client) DeleteCompleted(ctx context.Context, cutoff time.Time) (int64, error) {
	var bad problems
	cutoff = *instant(&bad, "cutoff", cutoff)
	if err := bad.err(); err != nil {
		return 0, err
	}
	deleted, err := c.store.deleteCompleted(ctx, cutoff)
	if err != nil {
		return deleted, fmt.Errorf("delete completed jobs: %w", err)
	}
	return deleted, nil
}
