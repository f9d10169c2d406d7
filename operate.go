package drover

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
)

// RunError is one entry of a job's errors: a failed run, or an action of an operator
// (ClassOperator).
type RunError struct {
	Attempt     int       `json:"attempt"`
	ClaimSeq    int       `json:"claim_seq"`
	At          time.Time `json:"at,omitzero"`
	Class       Class     `json:"class"`
	Case        string    `json:"case,omitempty"` // the ErrorCase that matched the error
	Error       string    `json:"error"`
	Type        string    `json:"type,omitempty"` // Go type of the error
	Fingerprint string    `json:"fingerprint,omitempty"`
	DurationMS  int64     `json:"duration_ms"`
	DelayMS     int64     `json:"delay_ms,omitempty"`
	Supervisor  string    `json:"supervisor,omitempty"`
	Host        string    `json:"host,omitempty"`  // host and process id, if the process died
	Trace       string    `json:"trace,omitempty"` // of a panic, of an error that has one, or of a handler just before its timeout; only the newest run has one
	By          string    `json:"by,omitempty"`    // of an operator: who; Error is what, and why
	Job         string    `json:"job,omitempty"`   // of a Rerun: in the new job the old one's id, in the old job the new one's
}

// JobInfo is a job as stored in the table.
type JobInfo struct {
	ID          string          `json:"id"`
	Queue       string          `json:"queue"`
	Kind        string          `json:"kind"`
	State       State           `json:"state"`
	Priority    int             `json:"priority"`
	Attempt     int             `json:"attempt"`
	MaxAttempts int             `json:"max_attempts"` // the effective number
	ScheduledAt time.Time       `json:"scheduled_at"` // has no meaning for a parked job
	CreatedAt   time.Time       `json:"created_at"`
	AttemptedAt *time.Time      `json:"attempted_at,omitempty"`
	FinalizedAt *time.Time      `json:"finalized_at,omitempty"`
	ClaimedBy   string          `json:"claimed_by,omitempty"`
	Reason      Reason          `json:"discard_reason,omitempty"`
	Crashes     int             `json:"crashes,omitempty"`
	Redrives    int             `json:"redrives,omitempty"`
	Snoozes     int             `json:"snoozes,omitempty"`
	ErrorsTotal int             `json:"errors_total,omitempty"` // failed runs, including those left out of Errors
	Errors      []RunError      `json:"errors,omitempty"`       // the first 5 and the last 15
	Args        json.RawMessage `json:"args"`
	Retry       json.RawMessage `json:"retry,omitempty"` // the job's own strategy
	Tags        []string        `json:"tags,omitempty"`
	Metadata    json.RawMessage `json:"metadata,omitempty"`
	Key         string          `json:"concurrency_key,omitempty"`
	UniqueKey   string          `json:"unique_key,omitempty"` // what it is, or was, the only one of

	// Unreadable names the parts of the row that cannot be shown as they are, and the reason. Such
	// a part is nil or zero here. A time that is infinite or outside the years 1 to 9999 is
	// replaced by the nearest one inside. Empty means that the whole row was read.
	Unreadable string `json:"unreadable,omitempty"`
}

// LastError returns the text of the newest failed run, or "" if none failed.
func (j *JobInfo) LastError() string {
	for i := len(j.Errors) - 1; i >= 0; i-- {
		if j.Errors[i].Class != ClassOperator {
			return j.Errors[i].Error
		}
	}
	return ""
}

// unreadable notes a part that cannot be shown, and why.
func (j *JobInfo) unreadable(part, why string) {
	if j.Unreadable != "" {
		j.Unreadable += "; "
	}
	j.Unreadable += part + ": " + why
}

// readJSON takes JSON text from the database, "" for none, into a field. encoding/json reads no more than 10,000 levels.
func (j *JobInfo) readJSON(part, text string, to *json.RawMessage) {
	switch {
	case text == "":
	case strings.Count(text, "{")+strings.Count(text, "[") > 10_000 && !json.Valid([]byte(text)):
		j.unreadable(part, "nested too deep")
	default:
		*to = json.RawMessage(text)
	}
}

// readPart takes a row of drover_parts.
func (j *JobInfo) readPart(part, text string) {
	switch part {
	case "args":
		j.readJSON(part, text, &j.Args)
	case "retry":
		j.readJSON(part, text, &j.Retry)
	case "metadata":
		j.readJSON(part, text, &j.Metadata)
	case "errors":
		j.readErrors(text)
	case "tags":
		var tags []*string
		if text != "" && json.Unmarshal([]byte(text), &tags) != nil {
			j.unreadable(part, "not a list of words")
		}
		j.readTags(tags)
	}
}

func (j *JobInfo) readTags(tags []*string) {
	nulls := 0
	for _, tag := range tags {
		if tag != nil {
			j.Tags = append(j.Tags, *tag)
		} else {
			nulls++
		}
	}
	if nulls > 0 {
		j.unreadable("tags", fmt.Sprintf("%d of %d are null", nulls, len(tags)))
	}
}

// readErrors takes the errors column. An entry that cannot be decoded says so in its Error, and the others stay.
func (j *JobInfo) readErrors(text string) {
	if json.Unmarshal([]byte(text), &j.Errors) == nil && !slices.Contains(j.Errors, RunError{}) { // a null entry is a zero RunError
		return
	}
	entries, ok := elements(text)
	if !ok {
		j.Errors = nil
		j.unreadable("errors", "not an array")
		return
	}
	j.Errors = make([]RunError, len(entries))
	odd := 0
	for i, entry := range entries {
		if !j.Errors[i].read([]byte(entry)) {
			odd++
		}
	}
	if odd > 0 {
		j.unreadable("errors", fmt.Sprintf("%d of %d entries are not as drover writes them", odd, len(entries)))
	}
}

// read decodes as many fields of an entry as it can. It reports whether that is all of them.
func (e *RunError) read(entry []byte) bool {
	*e = RunError{}
	if string(entry) != "null" && json.Unmarshal(entry, e) == nil {
		return true
	}
	*e = RunError{}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(entry, &fields); err != nil || fields == nil {
		e.Error = "(unreadable: the entry is not an object, or is nested too deep)"
		return false
	}
	var bad []string
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		one, err := json.Marshal(map[string]json.RawMessage{name: fields[name]})
		before := *e
		if err != nil || json.Unmarshal(one, e) != nil {
			*e = before
			bad = append(bad, name)
		}
	}
	e.Error = strings.TrimSpace(e.Error + " (unreadable: " + strings.Join(bad, ", ") + ")")
	return false
}

// elements splits the text of a JSON array that the server wrote. encoding/json cannot do that for every array: it
// reads no more than 10,000 levels.
func elements(text string) (all []string, ok bool) {
	text, ok = strings.CutPrefix(text, "[")
	if !ok {
		return nil, false
	}
	depth, quoted, from := 0, false, 0
	add := func(to int) {
		if element := strings.TrimSpace(text[from:to]); element != "" {
			all = append(all, element)
		}
		from = to + 1
	}
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[' || c == '{':
			depth++
		case c == ']' && depth == 0:
			add(i)
			return all, true
		case c == ']' || c == '}':
			depth--
		case c == ',' && depth == 0:
			add(i)
		}
	}
	return nil, false
}

// Job reads one job. If parts of it cannot be read, Unreadable names them; that is no error.
// Errors: ErrNotFound.
func (c *Client) Job(ctx context.Context, id string) (*JobInfo, error) {
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
	Next string    `json:"next,omitempty"` // pass it to Jobs, with the same filter, for the next page; "" at the end
}

// Jobs reads one page of jobs: at most limit (zero means 50; at most 1000). Pass "" as after for
// the first page, then Page.Next. A filter by State Discarded or by Reason lists dead letters,
// latest discarded first, from their own indexes. Other filters list jobs newest id first, by the
// primary key; a filter that matches few of them reads many rows. A job that exists throughout is
// on exactly one page, whatever is added or deleted meanwhile.
//
// A row that cannot be read does not fail the page: JobInfo.Unreadable names what is missing. Such
// a row does not match a filter by Error, Tags or Args. Errors: *InvalidError.
func (c *Client) Jobs(ctx context.Context, filter Filter, after string, limit int) (Page, error) {
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
	jobs, cursors, err := c.store.list(ctx, doc, after, limit+1)
	if badData(err) { // the filter was checked
		return Page{}, &InvalidError{Field: "after", Reason: "is not the Next of a page with this filter", Err: err}
	}
	if err != nil {
		return Page{}, fmt.Errorf("list jobs: %w", err)
	}
	page := Page{Jobs: jobs}
	if len(cursors) > limit {
		page.Jobs = jobs[:min(len(jobs), limit)]
		page.Next = cursors[limit-1]
	}
	return page, nil
}

// Count counts the jobs that match the filter. Dead letters by queue, kind, reason, class,
// fingerprint and the time of their end are counted from an index; other filters read the rows.
// Errors: *InvalidError.
func (c *Client) Count(ctx context.Context, filter Filter) (int64, error) {
	var bad problems
	doc := filter.encode(&bad)
	if err := bad.err(); err != nil {
		return 0, err
	}
	n, err := c.store.count(ctx, doc)
	if err != nil {
		return 0, fmt.Errorf("count jobs: %w", err)
	}
	return n, nil
}

// DiscardedGroup counts the dead letters of one queue, kind, reason and cause.
type DiscardedGroup struct {
	Queue            string    `json:"queue"`
	Kind             string    `json:"kind"`
	Reason           Reason    `json:"reason"`
	Class            Class     `json:"class,omitempty"`       // of the last failed run
	Fingerprint      string    `json:"fingerprint,omitempty"` // of the last failed run
	Jobs             int64     `json:"jobs"`
	FirstDiscardedAt time.Time `json:"first_discarded_at"`
	LastDiscardedAt  time.Time `json:"last_discarded_at"`
	NewestError      string    `json:"newest_error,omitempty"`
	NewestID         string    `json:"newest_id"`
}

// DiscardedGroups counts the dead letters by queue, kind, reason and fingerprint, largest group
// first. It reads an index: a million dead letters take less than a second.
func (c *Client) DiscardedGroups(ctx context.Context) ([]DiscardedGroup, error) {
	groups, err := c.store.summary(ctx)
	if err != nil {
		return nil, fmt.Errorf("sum up discarded jobs: %w", err)
	}
	return groups, nil
}

// By is who changes something, and why. It is the last argument of every verb that changes jobs,
// redrives, failure groups or schedules. drover stores it: in the job's errors, as part of the entry
// that the verb adds; in the row of the redrive, of the failure group, of the schedule or of the
// archived job. A deletion
// leaves no row, so it goes into the log of the client and of the server. A verb that changes nothing
// stores nothing.
type By struct {
	// Who is a person or a program: up to 128 bytes. Zero means the database user.
	Who string

	// Why is for people who read it later: up to 512 bytes. Zero means no reason.
	Why string
}

const (
	maxWho = 128 // bytes
	maxWhy = 512
)

func (b By) check(bad *problems) {
	bad.join(checkText("by.Who", b.Who, maxWho))
	bad.join(checkText("by.Why", b.Why, maxWhy))
}

// RedriveOpts change a job as it is redriven. Nil changes nothing.
type RedriveOpts struct {
	// MaxAttempts is how many runs the job may have, counted from the redrive. Zero changes nothing.
	MaxAttempts int

	// ArgsPatch is a JSON merge patch (RFC 7396) for the args, which must be an object: its keys replace
	// those of the args, and null removes a key. A patch is refused if the kind's worker could not decode
	// the result. Nil changes nothing.
	ArgsPatch json.RawMessage
}

// RedriveJob makes one discarded or cancelled job due again, now. The job keeps its id and its
// errors, and its attempts begin anew. A job that already waits after a redrive stays as it is.
//
// Errors: ErrNotFound; ErrState if the job runs, is completed or has expired, or if it waits after
// a redrive and opts would change it; *InvalidError.
func (c *Client) RedriveJob(ctx context.Context, id string, opts *RedriveOpts, by By) error {
	var bad problems
	if opts == nil {
		opts = &RedriveOpts{}
	}
	bad.attempts("MaxAttempts", opts.MaxAttempts)
	bad.join(c.checkPatch(opts.ArgsPatch))
	by.check(&bad)
	if err := bad.err(); err != nil {
		return err
	}
	if !isID(id) {
		return fmt.Errorf("redrive job %q: %w", id, ErrNotFound)
	}
	was, found, err := c.store.redrive(ctx, id, opts, by)
	if err != nil {
		return fmt.Errorf("redrive job %s: %w", id, err)
	}
	if !found {
		return fmt.Errorf("redrive job %s: %w", id, ErrNotFound)
	}
	if was == Discarded || was == Cancelled {
		c.emit(ctx, told{eventRedriven, Event{JobID: id, By: by.Who, Why: by.Why}})
	}
	return nil
}

// Cancel ends a job that nobody wants any more. It returns the state that the job was in. Cancelling a
// job that has ended changes nothing. Errors: ErrNotFound, *InvalidError.
//
// A running job ends at once: its handler's context is cancelled with ErrCancelled, and its result
// is refused. In other processes the handler learns of it by a notification. A process without
// notifications asks about once a second. A process behind a pooler that drops notifications finds
// out with its next heartbeat, at most a sixth of its lease later.
func (c *Client) Cancel(ctx context.Context, id string, by By) (State, error) {
	return c.endJob(ctx, "cancel", sqlCancel, id, by, told{kind: eventCancelled})
}

// Discard ends a job as a dead letter, reason ReasonOperator: for a job that somebody should look at
// before it runs again. Otherwise it works like Cancel. Errors: ErrNotFound, *InvalidError.
func (c *Client) Discard(ctx context.Context, id string, by By) (State, error) {
	return c.endJob(ctx, "discard", sqlDiscard, id, by, told{eventDiscarded, Event{Reason: ReasonOperator}})
}

func (c *Client) endJob(ctx context.Context, verb, sql, id string, by By, t told) (State, error) {
	var bad problems
	by.check(&bad)
	if err := bad.err(); err != nil {
		return "", err
	}
	if !isID(id) {
		return "", fmt.Errorf("%s job %q: %w", verb, id, ErrNotFound)
	}
	was, found, err := c.store.verb(ctx, sql, id, by.Why, by.Who)
	if err != nil {
		return "", fmt.Errorf("%s job %s: %w", verb, id, err)
	}
	if !found {
		return "", fmt.Errorf("%s job %s: %w", verb, id, ErrNotFound)
	}
	switch {
	case was == Running: // its owner tells
		c.running.cancel(id)
	case !was.Final():
		t.event.JobID, t.event.By, t.event.Why = id, by.Who, by.Why
		c.emit(ctx, t)
	}
	return was, nil
}
