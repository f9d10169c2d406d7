package drover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/oklog/ulid/v2"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/pgtext"
)

// RunError is one entry of a job's errors. Usually it is a failed run. With ClassOperator it is an action of an
// operator, with ClassRefused a refusal by the database.
type RunError struct {
	Attempt     int       `json:"attempt"`
	ClaimSeq    int       `json:"claim_seq"`
	At          time.Time `json:"at"`
	Class       Class     `json:"class"`
	Job         string    `json:"job,omitempty"`  // the other job of a rerun: the old or the new job
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

// JobInfo is a job as its row in the table shows it.
type JobInfo struct {
	ID            string          `json:"id"`
	Queue         string          `json:"queue"`
	Kind          string          `json:"kind"`
	State         State           `json:"state"`
	Priority      int             `json:"priority"`
	Attempt       int             `json:"attempt"`
	MaxAttempts   int             `json:"max_attempts"` // the limit in effect: the job's own, otherwise its kind's, its queue's, or 20
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
	Args          json.RawMessage `json:"args"`                   // the args as jsonb keeps them: see Job
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
	// inside. If the database cannot read one of args, errors, metadata, retry and tags, all five are missing. Empty:
	// the whole row was read.
	Unreadable string `json:"unreadable,omitempty"`
}

// LastError returns the text of the newest entry of Errors that is not an operator's, "" if there is none.
func (j *JobInfo) LastError() string {
	for i := len(j.Errors) - 1; i >= 0; i-- {
		if j.Errors[i].Class != ClassOperator {
			return j.Errors[i].Error
		}
	}
	return ""
}

// unreadable records which part cannot be shown, and why.
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

// readErrors decodes the column errors. If a part of an entry cannot be decoded, the entry's Error names this part, and
// all else stays.
func (j *JobInfo) readErrors(text string) {
	if json.Unmarshal([]byte(text), &j.Errors) == nil && !slices.Contains(j.Errors, RunError{}) { // a null entry is a zero RunError
		return
	}
	var entries []json.RawMessage
	if json.Unmarshal([]byte(text), &entries) != nil {
		j.Errors = nil
		j.unreadable("errors", "not an array, or nested too deep")
		return
	}
	j.Errors = make([]RunError, len(entries))
	odd := 0
	for i, entry := range entries {
		if !j.Errors[i].read(entry) {
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
		e.Error = "(unreadable: the entry is not an object)"
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

// Job reads one job. It is no error if parts of the job cannot be read: JobInfo.Unreadable names them. In all methods
// that take an id, and in Filter, a ULID may be in lower case. Errors: ErrNotFound, ErrArchived.
func (c *Client) Job(ctx context.Context, id string) (*JobInfo, error) {
	if !isID(id) {
		return nil, fmt.Errorf("get job %q: %w", id, ErrNotFound)
	}
	id = pgtext.ID(id)
	job, err := c.desk.get(ctx, id)
	return job, doing(c.desk.archived(ctx, id, err), "get job %s", id)
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

// Jobs reads a page of jobs: at most limit of them (zero means 50; at most 1000). The parameter after is the Next of
// the page before; "" means the first page. A page ends early once its jobs have 16 MiB.
//
// If the filter picks dead letters (by State Discarded or a Reason), the job that was discarded last comes first.
// drover has indexes for this order. With any other filter, the job with the newest id comes first, and Jobs follows
// the primary key. So it reads many rows if the filter matches few. A job that matches while you read all the pages is
// on exactly one of them, even if other jobs are added or deleted between two pages.
//
// A row that cannot be read does not fail the page: JobInfo.Unreadable names the missing parts. But such a row does
// not match a filter by Error, Tags or Args. Errors: *InvalidError.
func (c *Client) Jobs(ctx context.Context, filter Filter, after string, limit int) (Page, error) {
	var bad problems
	limit = bad.limit("limit", limit, 1000)
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

// Count counts the jobs that the filter picks. If the filter picks dead letters and sets no field except queue, kind,
// reason, class, fingerprint and the time of the end, Count only reads an index. With any other filter it reads the
// rows. Errors: *InvalidError.
func (c *Client) Count(ctx context.Context, filter Filter) (int64, error) {
	var bad problems
	doc := filter.encode(&bad)
	if err := bad.err(); err != nil {
		return 0, err
	}
	n, err := oneRow(pg.ReadAll(ctx, c.desk.pool, pgx.RowTo[int64], sqlCount, doc))
	if err != nil {
		return 0, fmt.Errorf("count jobs: %w", err)
	}
	return *n, nil
}

// QueueCount is how many jobs of one queue are in one state.
type QueueCount struct {
	Queue     string     `json:"queue"`
	State     State      `json:"state"`
	Jobs      int64      `json:"jobs"`
	OldestDue *time.Time `json:"oldest_due,omitempty"` // due time of the waiting job that has been due longest; nil if no job is due
}

// Counts counts all jobs by queue and state. It reads the whole table.
func (c *Client) Counts(ctx context.Context) ([]QueueCount, error) {
	counts, err := pg.ReadAll(ctx, c.desk.pool, pgx.RowToStructByPos[QueueCount], sqlCounts)
	return counts, doing(err, "count jobs")
}

// DiscardedGroup counts the dead letters of one queue and kind that have the same reason, and whose last failed run has
// the same class and fingerprint.
type DiscardedGroup struct {
	Queue            string    `json:"queue"`
	Kind             string    `json:"kind"`
	Reason           Reason    `json:"reason"`
	Class            Class     `json:"class,omitempty"`       // class of the last failed run
	Fingerprint      string    `json:"fingerprint,omitempty"` // fingerprint of the last failed run
	Jobs             int64     `json:"jobs"`
	FirstDiscardedAt time.Time `json:"first_discarded_at"`
	LastDiscardedAt  time.Time `json:"last_discarded_at"`
	NewestError      string    `json:"newest_error,omitempty"`
	NewestJobID      string    `json:"newest_job_id"`
}

// Summary counts the dead letters by queue, kind, reason, class and fingerprint, largest group first. It reads only an
// index: a million dead letters take less than a second.
func (c *Client) Summary(ctx context.Context) ([]DiscardedGroup, error) {
	// ReadOnePlan makes the view use its index. Otherwise, without statistics, the planner would read the table.
	groups, err := pg.ReadOnePlan(ctx, c.desk.pool, pgx.RowToStructByPos[DiscardedGroup], sqlSummary)
	return groups, doing(err, "sum up discarded jobs")
}

// jobInfoColumns are the columns of a JobInfo, for a job that is joined with the policies of its kind and its queue.
// Times are moved into the range of time.Time and JSON. The last column names the times that were moved.
const (
	jobInfoColumns = `
select j.id, j.queue, j.kind, j.state, j.priority, j.attempt, coalesce(j.max_attempts, k.max_attempts, q.max_attempts, 20),
	case when j.state = 'parked' and j.scheduled_at = 'infinity' then least(greatest(j.created_at, '0001-01-01+00'), '9999-12-31 23:59:59.999999+00')
		else least(greatest(j.scheduled_at, '0001-01-01+00'), '9999-12-31 23:59:59.999999+00') end,
	least(greatest(j.created_at, '0001-01-01+00'), '9999-12-31 23:59:59.999999+00'),
	case when j.attempted_at is not null then least(greatest(j.attempted_at, '0001-01-01+00'), '9999-12-31 23:59:59.999999+00') end,
	case when j.finalized_at is not null then least(greatest(j.finalized_at, '0001-01-01+00'), '9999-12-31 23:59:59.999999+00') end,
	coalesce(j.claimed_by, ''), coalesce(j.discard_reason, ''), j.crashes, j.redrives, coalesce(j.snoozes, 0), j.errors_total, coalesce(j.concurrency_key, ''),
	coalesce(j.unique_key, ''),
	concat_ws('; ',
		case when j.state <> 'parked' and j.scheduled_at not between '0001-01-01+00' and '9999-12-31 23:59:59.999999+00' then 'scheduled_at is ' || j.scheduled_at end,
		case when j.created_at not between '0001-01-01+00' and '9999-12-31 23:59:59.999999+00' then 'created_at is ' || j.created_at end,
		case when j.attempted_at not between '0001-01-01+00' and '9999-12-31 23:59:59.999999+00' then 'attempted_at is ' || j.attempted_at end,
		case when j.finalized_at not between '0001-01-01+00' and '9999-12-31 23:59:59.999999+00' then 'finalized_at is ' || j.finalized_at end)`
	jobInfoParts    = `, j.errors::text, j.args::text, coalesce(j.retry::text, ''), coalesce(j.metadata::text, ''), j.tags`
	jobInfoPolicies = `
left join drover_kinds k on k.kind = j.kind
left join queues q on q.name = j.queue
`
)

// sqlGet and sqlList are two statements, because a plan that served both would read the whole table. sqlGetBare is for
// a row that sqlGet cannot read as a whole.
const (
	sqlGet     = jobInfoColumns + jobInfoParts + jobSeen + ` from jobs j` + jobInfoPolicies + `where j.id = $1`
	sqlGetBare = jobInfoColumns + jobSeen + ` from jobs j` + jobInfoPolicies + `where j.id = $1`
	jobSeen    = `, format('%s/%s', j.redrives, j.xmin)` // computed as in drover_seen
)

func (s *desk) get(ctx context.Context, id string) (*JobInfo, error) {
	job, why := s.queryJob(ctx, sqlGet, id, true)
	if !pg.RowsFault(why) || ctx.Err() != nil {
		return job, why
	}
	job, err := s.queryJob(ctx, sqlGetBare, id, false)
	if err == nil {
		job.unreadable("args, errors, metadata, retry, tags", pg.Refusal(why))
	}
	return job, err
}

func (s *desk) queryJob(ctx context.Context, sql, id string, parts bool) (*JobInfo, error) {
	return oneRow(pg.ReadOnePlan(ctx, s.pool, func(row pgx.CollectableRow) (JobInfo, error) {
		var seen string
		j, err := scanJobInfo(row, parts, &seen)
		j.Seen = seen
		return *j, err
	}, sql, id))
}

// sqlList keeps the order in which drover_list finds the jobs, and returns the cursor of each job. sqlListBare returns
// only ids and cursors.
const (
	sqlList = jobInfoColumns + jobInfoParts + `, drover_cursor($1::jsonb, j.finalized_at, j.id)
from drover_list($1::jsonb, $2, $3) with ordinality as j` + jobInfoPolicies + `order by j.ordinality`
	sqlListBare = `
select j.id, drover_cursor($1::jsonb, j.finalized_at, j.id) from drover_list($1::jsonb, $2, $3) with ordinality as j order by j.ordinality`
)

// pageBytes bounds how much a page of jobs reads. The page ends with the job that exceeds the bound.
const pageBytes = 16 << 20

var errPageFull = errors.New("the page is full")

// list reads a page. It asks for one more row than the page has, only to see whether there are more.
func (s *desk) list(ctx context.Context, filter, after string, limit int) (page Page, err error) {
	reading, stop := context.WithCancel(ctx)
	defer stop()
	page.Jobs = []JobInfo{}
	left, last, full := pageBytes, "", false
	_, err = pg.ReadAll(reading, s.pool, func(row pgx.CollectableRow) (none struct{}, err error) {
		if len(page.Jobs) == limit {
			page.Next = last
			return none, nil
		}
		if left <= 0 {
			page.Next, full = last, true
			stop() // this closes the connection; otherwise the server would still send the other rows
			return none, errPageFull
		}
		for _, value := range row.RawValues() {
			left -= len(value)
		}
		job, err := scanJobInfo(row, true, &last)
		page.Jobs = append(page.Jobs, *job)
		return none, err
	}, sqlList, filter, after, limit+1)
	switch {
	case full && ctx.Err() == nil:
		return page, nil
	case pg.RowsFault(err) && ctx.Err() == nil:
		return s.listOdd(ctx, filter, after, limit)
	}
	return page, err
}

// listOdd reads a page job by job, because some of its rows cannot be read as a whole.
func (s *desk) listOdd(ctx context.Context, filter, after string, limit int) (page Page, err error) {
	var cursors []string
	ids, err := pg.ReadAll(ctx, s.pool, func(row pgx.CollectableRow) (id string, err error) {
		var cursor string
		err = row.Scan(&id, &cursor)
		cursors = append(cursors, cursor)
		return id, err
	}, sqlListBare, filter, after, limit+1)
	if err != nil {
		return page, err
	}
	// A search by halves would read a bad row many times, and a row whose text is too large to send costs a second each
	// time.
	page.Jobs = []JobInfo{}
	left := pageBytes
	for i, id := range ids {
		if i == limit || left <= 0 {
			page.Next = cursors[i-1]
			break
		}
		j, err := s.get(ctx, id)
		switch {
		case errors.Is(err, ErrNotFound):
			continue
		case pg.RowsFault(err) && ctx.Err() == nil:
			j = &JobInfo{ID: id, Unreadable: "the row: " + pg.Refusal(err)}
		case err != nil:
			return Page{}, err
		}
		page.Jobs = append(page.Jobs, *j)
		left -= len(j.Args) + len(j.Metadata)
		for i := range j.Errors {
			left -= len(j.Errors[i].Error) + len(j.Errors[i].Trace)
		}
	}
	return page, nil
}

// scanJobInfo reads jobInfoColumns, and jobInfoParts if the parameter parts is true. It reads the columns after them
// into the pointers in more.
func scanJobInfo(row pgx.CollectableRow, parts bool, more ...any) (*JobInfo, error) {
	var j JobInfo
	var errs, args, retry, metadata string
	var tags pgtype.FlatArray[*string]
	to := []any{
		&j.ID, &j.Queue, &j.Kind, &j.State, &j.Priority, &j.Attempt, &j.MaxAttempts, &j.ScheduledAt, &j.CreatedAt,
		&j.AttemptedAt, &j.FinalizedAt, &j.ClaimedBy, &j.DiscardReason, &j.Crashes, &j.Redrives, &j.Snoozes, &j.ErrorsTotal,
		&j.Key, &j.UniqueKey, &j.Unreadable,
	}
	if parts {
		to = append(to, &errs, &args, &retry, &metadata, &tags)
	}
	if err := row.Scan(append(to, more...)...); err != nil {
		return &j, &pg.RowError{Err: err}
	}
	for _, at := range []*time.Time{&j.ScheduledAt, &j.CreatedAt, j.AttemptedAt, j.FinalizedAt} {
		if at != nil && (at.Year() < 0 || at.Year() > 9999) { // possible in the local time zone, though not in UTC
			*at = at.UTC()
		}
	}
	if parts {
		j.readJSON("args", args, &j.Args)
		j.readJSON("retry", retry, &j.Retry)
		j.readJSON("metadata", metadata, &j.Metadata)
		j.readErrors(errs)
		j.readTags(tags)
	}
	return &j, nil
}

const sqlCounts = `
select queue, state, jobs, case when oldest_due is not null then least(greatest(oldest_due, '0001-01-02+00'), '9999-12-30+00') end
from job_counts order by queue, state`

const sqlCount = `select drover_count($1::jsonb)`

const sqlSummary = `
select queue, kind, reason, coalesce(class, ''), coalesce(fingerprint, ''), jobs,
	least(greatest(first_discarded_at, '0001-01-02+00'), '9999-12-30+00'), least(greatest(last_discarded_at, '0001-01-02+00'), '9999-12-30+00'),
	coalesce(newest_error, ''), newest_id
from discarded_summary order by jobs desc, queue, kind, reason, class, fingerprint`
