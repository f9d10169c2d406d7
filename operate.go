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

	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/pg"
)

// RunError is one entry of a job's errors: a failed run, or, with ClassOperator, something that an operator did.
type RunError struct {
	Attempt     int       `json:"attempt"`
	ClaimSeq    int       `json:"claim_seq"`
	At          time.Time `json:"at"`
	Class       Class     `json:"class"`
	Job         string    `json:"job,omitempty"`  // the other job of a rerun: the old one or the new one
	By          string    `json:"by,omitempty"`   // the operator, as in Audit; the database's user if Audit.By was empty
	Case        string    `json:"case,omitempty"` // name of the ErrorCase that matched
	Error       string    `json:"error"`
	Type        string    `json:"type,omitempty"` // Go type of the error
	Fingerprint string    `json:"fingerprint,omitempty"`
	DurationMS  float64   `json:"duration_ms"` // how long the handler ran, with a fraction
	DelayMS     int64     `json:"delay_ms,omitempty"`
	Supervisor  string    `json:"supervisor,omitempty"`
	Host        string    `json:"host,omitempty"`  // host and process id of a process that died
	Trace       string    `json:"trace,omitempty"` // only in the newest entry; see docs/outcomes.md
}

// JobInfo is a job as it stands in the table.
type JobInfo struct {
	ID            string          `json:"id"`
	Queue         string          `json:"queue"`
	Kind          string          `json:"kind"`
	State         State           `json:"state"`
	Priority      int             `json:"priority"`
	Attempt       int             `json:"attempt"`
	MaxAttempts   int             `json:"max_attempts"` // in effect: the job's own, its kind's, its queue's, or 20
	ScheduledAt   time.Time       `json:"scheduled_at"` // meaningless if the job is parked
	CreatedAt     time.Time       `json:"created_at"`
	AttemptedAt   *time.Time      `json:"attempted_at,omitempty"`
	FinalizedAt   *time.Time      `json:"finalized_at,omitempty"`
	ClaimedBy     string          `json:"claimed_by,omitempty"`
	DiscardReason Reason          `json:"discard_reason,omitempty"`
	Crashes       int             `json:"crashes,omitempty"`
	Redrives      int             `json:"redrives,omitempty"`
	Snoozes       int             `json:"snoozes,omitempty"`
	ErrorsTotal   int             `json:"errors_total,omitempty"` // failed runs, including the runs that Errors leaves out
	Errors        []RunError      `json:"errors,omitempty"`       // the first 5 and the last 15 failed runs, the first 5 and the last 5 entries of operators
	Args          json.RawMessage `json:"args"`                   // as jsonb keeps them: see Job
	Retry         json.RawMessage `json:"retry,omitempty"`        // the job's own strategy
	Tags          []string        `json:"tags,omitempty"`
	Metadata      json.RawMessage `json:"metadata,omitempty"`

	Key       string `json:"concurrency_key,omitempty"`
	UniqueKey string `json:"unique_key,omitempty"` // the job's unique key, also after its end: see Unique

	// Seen changes with each change of the job's row: see Audit.Seen. Client.Job sets it, lists do not. With it,
	// Cancel and Discard still end a job that has run since, but not a job that somebody has redriven since.
	Seen string `json:"seen,omitempty"`

	// Unreadable names the parts of the row that cannot be shown as they are, and why. Each of these parts is nil or
	// zero here, except for times: a time that is infinite or outside the years 1 to 9999 becomes the nearest time
	// inside. Empty: the whole row was read.
	Unreadable string `json:"unreadable,omitempty"`
}

// LastError is the text of the newest failed run, "" if no run failed.
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

// readJSON puts JSON text from the database into a field; "" means that there is none. encoding/json reads at most
// 10,000 levels.
func (j *JobInfo) readJSON(part, text string, to *json.RawMessage) {
	switch {
	case text == "":
	case strings.Count(text, "{")+strings.Count(text, "[") > 10_000 && !json.Valid([]byte(text)):
		j.unreadable(part, "nested too deep")
	default:
		*to = json.RawMessage(text)
	}
}

// readPart puts a row of drover_parts into the job.
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

// readErrors decodes the column errors. If an entry cannot be decoded, its Error says so, and the others stay.
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

// read decodes as many fields of an entry as it can. It reports whether it could decode all of them.
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

// elements splits the text of a JSON array that the server wrote. encoding/json cannot split every array, because it
// reads at most 10,000 levels.
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

// Job reads one job. It is no error if parts of the job cannot be read: JobInfo.Unreadable names them. Errors:
// ErrNotFound.
func (c *Client) Job(ctx context.Context, id string) (*JobInfo, error) {
	if !isID(id) {
		return nil, fmt.Errorf("get job %q: %w", id, ErrNotFound)
	}
	job, err := c.desk.get(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("get job %s: %w", id, err)
	}
	return job, nil
}

// isID reports whether a row could have the id. The table takes any text of a ULID's length.
func isID(id string) bool {
	return len(id) == ulid.EncodedSize && checkText("id", id, ulid.EncodedSize) == nil
}

// Page is one page of a list.
type Page struct {
	Jobs []JobInfo `json:"jobs"`
	Next string    `json:"next,omitempty"` // pass it to Jobs, with the same filter, to read the next page; "" at the end
}

// Jobs reads a page of jobs: at most limit of them (zero means 50; at most 1000). after is the Next of the page
// before; "" begins at the top. A page ends early once its jobs have 16 MiB.
//
// Dead letters, which the filter picks by State Discarded or a Reason, come latest discarded first, from their own
// indexes. All other jobs come newest id first, along the primary key, so a filter that matches few of them reads
// far. A job that is there throughout is on exactly one page, whatever arrives or goes meanwhile.
//
// A row that cannot be read does not fail the page: JobInfo.Unreadable says what is missing. But it does not match a
// filter by Error, Tags or Args. Errors: *InvalidError.
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
	page, err := c.desk.list(ctx, doc, after, limit)
	if pg.BadData(err) { // after is at fault, because the filter was checked
		return Page{}, &InvalidError{Field: "after", Reason: "is not the Next of a page of this filter", Err: err}
	}
	if err != nil {
		return Page{}, fmt.Errorf("list jobs: %w", err)
	}
	return page, nil
}

// Count counts the jobs that the filter picks. If it picks dead letters by nothing but queue, kind, reason, class,
// fingerprint and the time of their end, an index is enough. All other filters read the rows. Errors: *InvalidError.
func (c *Client) Count(ctx context.Context, filter Filter) (int64, error) {
	var bad problems
	doc := filter.encode(&bad)
	if err := bad.err(); err != nil {
		return 0, err
	}
	n, err := c.desk.count(ctx, doc)
	if err != nil {
		return 0, fmt.Errorf("count jobs: %w", err)
	}
	return n, nil
}

// QueueCount is how many jobs of one queue are in one state.
type QueueCount struct {
	Queue     string     `json:"queue"`
	State     State      `json:"state"`
	Jobs      int64      `json:"jobs"`
	OldestDue *time.Time `json:"oldest_due,omitempty"` // due time of the waiting job that is due longest; nil if none is
}

// Counts counts all jobs by queue and state. It reads the whole table.
func (c *Client) Counts(ctx context.Context) ([]QueueCount, error) {
	counts, err := c.desk.counts(ctx)
	if err != nil {
		return nil, fmt.Errorf("count jobs: %w", err)
	}
	return counts, nil
}

// DiscardedGroup counts the dead letters of one queue and kind that have the same reason and the same cause of
// failure.
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
	NewestJobID      string    `json:"newest_job_id"`
}

// Summary counts the dead letters by queue, kind, reason and the failure of their last run, largest group first. It
// reads an index: a million dead letters take less than a second.
func (c *Client) Summary(ctx context.Context) ([]DiscardedGroup, error) {
	groups, err := c.desk.summary(ctx)
	if err != nil {
		return nil, fmt.Errorf("sum up discarded jobs: %w", err)
	}
	return groups, nil
}

// RedriveOpts change a job when it is redriven. Nil changes nothing.
type RedriveOpts struct {
	// MaxAttempts is the job's new total of runs, counted from the redrive. Zero leaves it as it is.
	MaxAttempts int

	// ArgsPatch is a JSON merge patch (RFC 7396) for the args, which must be an object: its keys replace theirs, and
	// null removes a key. If the worker cannot decode the result, the job is discarded again, as undecodable, and
	// another redrive may repair it. Nil leaves the args as they are.
	ArgsPatch json.RawMessage
}

// RedriveJob makes one discarded or cancelled job due again, now. The job keeps its id and its errors, and its
// attempts begin anew. Its history keeps who did it and why. If the job was redriven before and waits, it stays as it
// is.
//
// Errors: ErrNotFound; ErrState if the job runs, is completed, has expired, or waits and was never redriven; if it
// waits after a redrive and opts would change it; or if another job has its unique key; *InvalidError.
func (c *Client) RedriveJob(ctx context.Context, id string, opts *RedriveOpts, audit Audit) error {
	var bad problems
	if opts == nil {
		opts = &RedriveOpts{}
	}
	bad.attempts("MaxAttempts", opts.MaxAttempts)
	bad.join(c.checkPatch(opts.ArgsPatch))
	audit.checkOne(&bad)
	if err := bad.err(); err != nil {
		return err
	}
	if !isID(id) {
		return fmt.Errorf("redrive job %q: %w", id, ErrNotFound)
	}
	was, found, err := c.desk.redrive(ctx, id, opts, audit)
	if err != nil {
		return fmt.Errorf("redrive job %s: %w", id, err)
	}
	if !found {
		return fmt.Errorf("redrive job %s: %w", id, ErrNotFound)
	}
	if was == Discarded || was == Cancelled {
		c.emit(ctx, told{engine.EventRedriven, Event{JobID: id, By: audit.By, Why: audit.Why}})
	}
	return nil
}

// Cancel ends a job that nobody wants any more, and returns the state that the job was in. The job's history keeps
// who did it and why. Cancelling a job that has ended changes nothing.
//
// A running job is final immediately: its handler's context is cancelled with ErrCancelled, and whatever the handler
// returns is refused. In this process the context is cancelled directly, in other processes by a notification. A
// process that hears no notifications asks about once a second. A process that only believes it hears them, behind a
// pooler, finds out by its next heartbeat: at most a sixth of its lease later.
//
// Errors: ErrNotFound, *InvalidError.
func (c *Client) Cancel(ctx context.Context, id string, audit Audit) (State, error) {
	return c.endJob(ctx, "cancel", sqlCancel, id, audit, told{kind: engine.EventCancelled})
}

// Discard ends a job as a dead letter, reason ReasonOperator: for a job that somebody has to look at before it runs
// again. All else is as with Cancel. Errors: ErrNotFound, *InvalidError.
func (c *Client) Discard(ctx context.Context, id string, audit Audit) (State, error) {
	return c.endJob(ctx, "discard", sqlDiscard, id, audit, told{engine.EventDiscarded, Event{Reason: ReasonOperator}})
}

func (c *Client) endJob(ctx context.Context, verb, sql, id string, audit Audit, t told) (State, error) {
	var bad problems
	audit.checkOne(&bad)
	if err := bad.err(); err != nil {
		return "", err
	}
	if !isID(id) {
		return "", fmt.Errorf("%s job %q: %w", verb, id, ErrNotFound)
	}
	was, found, err := c.desk.verb(ctx, sql, aJobsLife, id, audit, audit.Why, audit.by())
	if err != nil {
		return "", fmt.Errorf("%s job %s: %w", verb, id, err)
	}
	if !found {
		return "", fmt.Errorf("%s job %s: %w", verb, id, ErrNotFound)
	}
	switch {
	case was == Running: // its owner emits the event
		c.running.cancel(id)
	case !was.Final():
		t.event.JobID, t.event.Error, t.event.By, t.event.Why = id, audit.Why, audit.By, audit.Why
		c.emit(ctx, t)
	}
	return was, nil
}

// BudgetInfo is a retry budget from the table drover_budgets, and how much of it is free.
type BudgetInfo struct {
	Scope Scope // "kind:charge", "queue:payments" or "all"
	RetryBudget
	Reserved int       // how many retries are due in the Per that begins now
	Free     int       // how many more may become due in it
	NextFree time.Time // the first free slot
}

// RetryBudgets returns all retry budgets, sorted by scope.
func (c *Client) RetryBudgets(ctx context.Context) ([]BudgetInfo, error) {
	budgets, err := c.desk.budgets(ctx)
	if err != nil {
		return nil, fmt.Errorf("read retry budgets: %w", err)
	}
	return budgets, nil
}
