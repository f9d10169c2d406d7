package drover

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/oklog/ulid/v2"
)

// EnqueueOpts are one job's settings. Nil, like the zero value, means queue "default", priority 5,
// due now, and the worker's own policies.
type EnqueueOpts struct {
	// ID is a ULID of yours. It makes the enqueue idempotent: repeating it returns the existing job,
	// as long as that job's row is kept. A completed job's row is kept for CompletedRetention. With
	// DeleteOnCompletion it is gone at once, so a repeated enqueue may store the job again and run
	// it twice; likewise after pruning, archiving and deleting. The id's time should be about now,
	// because the pruner goes by it. Empty makes a new id.
	ID string

	// Queue defaults to "default".
	Queue string

	// Priority is 1 to 9, lower is sooner. Zero means 5.
	Priority int

	// ScheduledAt is when the job is due, by the server's clock. Zero means now, and so does a time
	// in the past. It excludes Delay.
	ScheduledAt time.Time

	// Delay is how long from now the job is due, by the server's clock. Zero means now.
	Delay time.Duration

	// MaxAttempts is the total number of runs this job may have; 1 never retries. Zero means the worker's.
	MaxAttempts int

	// Retry overrides the worker's strategy for this job. Nil means the worker's. A Custom is stored
	// by its Name, which the worker's process must have registered. A process that does not know the
	// name uses the worker's strategy, and logs that.
	Retry RetryStrategy

	// Timeout bounds each run of this job. Zero means the worker's, NoTimeout none; under 1 ms is an error.
	Timeout time.Duration

	// ExpiresAt is when the job is no longer worth a run: if it is claimed later, it is discarded as
	// expired. Zero means never. It must be after ScheduledAt.
	ExpiresAt time.Time

	// RetryUntil is when to stop retrying: if the next run would be due later, the job is discarded,
	// reason time_budget. Zero means the worker's RetryFor.
	RetryUntil time.Time

	// Tags are up to 32 words to find the job by, each 1 to 128 bytes.
	Tags []string

	// Key names something that the job must not overload, such as a customer: up to 256 bytes. A
	// paced redrive can limit how many jobs of one key run at once; Key has no other effect. Zero
	// means none.
	Key string

	// Unique makes the job the only one of those that are like it. Nil means that it is not. ID is
	// looked for first: repeating it returns its own job.
	Unique *Unique

	// Metadata is marshalled to a JSON object that is kept with the args. Nil means none. Keys that
	// begin with "drover:" are refused.
	Metadata map[string]any
}

// Receipt names the row that an enqueue stored or found. If the enqueue returned no error, the row
// is in the table, whatever indexes, constraints and triggers you have put on jobs.
type Receipt struct {
	ID        string // of the job that is there: a unique job that existed before has its own
	Existing  bool   // the job existed before: under the ID that you gave, or because another one is like it
	Replaced  bool   // it existed, waited, and has got the new args and options: ReplaceWaiting
	Debounced bool   // it existed, waited, and has got the new time: Debounce
}

// Enqueue stores one job in its own transaction, and wakes one supervisor if all that serve its queue
// and kind are asleep. It takes one round trip.
//
// If an error leaves open whether the job was stored (a lost connection), repeat the call with the
// same EnqueueOpts.ID, while the job's row is kept. With DeleteOnCompletion the job may have run
// and gone by then, and the repeated call runs it again.
//
// Errors: *InvalidError before anything is written, ErrIDConflict, ErrNotStored, ErrUniqueDeadlock,
// ErrNotMigrated, ErrReadOnly. If an index, constraint or trigger of yours on jobs raises an error, you get the
// driver's error, and nothing is stored.
func (c *Client) Enqueue(ctx context.Context, args Args, opts *EnqueueOpts) (receipt Receipt, err error) {
	if len(c.begins) > 0 {
		var end func([]Receipt, error)
		ctx, end = c.begin(ctx, false, EnqueueItem{args, opts})
		defer func() { end([]Receipt{receipt}, err) }()
	}
	job, err := c.prepare(ctx, args, opts)
	if err != nil {
		return Receipt{}, err
	}
	existing, unique, err := c.store.enqueue(ctx, job)
	if err != nil {
		return Receipt{ID: job.ID}, fmt.Errorf("enqueue %s: %w", job.Kind, err)
	}
	c.running.wake(job)
	return c.enqueued(ctx, job, existing, unique, false), nil
}

// EnqueueTx stores one job in the caller's transaction: the job exists if and when that commits. A
// pgx.Tx is a Tx, and SQLTx adapts a *sql.Tx. Errors are those of Enqueue; after any but an
// *InvalidError you can only roll the transaction back.
//
// If all supervisors are asleep when you call it (in a transaction that is not read committed: when
// the transaction began), the commit wakes one. A supervisor that falls asleep before the commit
// finds the job by polling: it looks about every tenth of its sleep, at least every PollInterval.
// If the transaction commits more than 20 s after the call, the job may wait for the next full
// sweep (15 s for each supervisor).
//
// A transaction that is to be prepared (two-phase commit) needs the setting drover.notify off; see
// docs/configuration.md.
//
// The hook Enqueued is called before the transaction commits, with Event.InTx.
func (c *Client) EnqueueTx(ctx context.Context, tx Tx, args Args, opts *EnqueueOpts) (receipt Receipt, err error) {
	if len(c.begins) > 0 {
		var end func([]Receipt, error)
		ctx, end = c.begin(ctx, true, EnqueueItem{args, opts})
		defer func() { end([]Receipt{receipt}, err) }()
	}
	job, err := c.prepare(ctx, args, opts)
	if err != nil {
		return Receipt{}, err
	}
	if err := checkTx(tx); err != nil {
		return Receipt{}, err
	}
	existing, unique, err := c.store.enqueueTx(ctx, tx, job)
	if err != nil {
		return Receipt{ID: job.ID}, fmt.Errorf("enqueue %s: %w", job.Kind, err)
	}
	return c.enqueued(ctx, job, existing, unique, true), nil
}

// EnqueueItem is one job for EnqueueMany.
type EnqueueItem struct {
	Args Args
	Opts *EnqueueOpts
}

// EnqueueMany stores the jobs in one transaction, all or none, and returns their receipts in the
// same order. Jobs that set no more than a queue and a priority are stored by COPY. Errors are
// those of Enqueue; every invalid job is named.
func (c *Client) EnqueueMany(ctx context.Context, items []EnqueueItem) (receipts []Receipt, err error) {
	if len(c.begins) > 0 && len(items) > 0 {
		var end func([]Receipt, error)
		ctx, end = c.begin(ctx, false, items...)
		defer func() { end(receipts, err) }()
	}
	jobs, err := c.prepareAll(ctx, items)
	if err != nil || len(jobs) == 0 {
		return nil, err
	}
	told, err := c.store.enqueueMany(ctx, jobs)
	if err != nil {
		return nil, fmt.Errorf("enqueue %d jobs: %w", len(jobs), err)
	}
	c.running.wake(jobs...)
	return c.enqueuedAll(ctx, jobs, told, false), nil
}

// EnqueueManyTx is EnqueueMany in the caller's transaction.
func (c *Client) EnqueueManyTx(ctx context.Context, tx Tx, items []EnqueueItem) (receipts []Receipt, err error) {
	if len(c.begins) > 0 && len(items) > 0 {
		var end func([]Receipt, error)
		ctx, end = c.begin(ctx, true, items...)
		defer func() { end(receipts, err) }()
	}
	jobs, err := c.prepareAll(ctx, items)
	if err != nil || len(jobs) == 0 {
		return nil, err
	}
	if err := checkTx(tx); err != nil {
		return nil, err
	}
	told, err := c.store.enqueueManyTx(ctx, tx, jobs)
	if err != nil {
		return nil, fmt.Errorf("enqueue %d jobs: %w", len(jobs), err)
	}
	return c.enqueuedAll(ctx, jobs, told, true), nil
}

// newJob is a validated job on its way into the table. Its JSON is what drover_enqueue_many takes.
type newJob struct {
	ID          string          `json:"id"`
	Kind        string          `json:"kind"`
	Args        json.RawMessage `json:"args"`
	Queue       string          `json:"queue"`
	Priority    int             `json:"priority"`
	ScheduledAt *time.Time      `json:"scheduled_at,omitempty"`
	Delay       string          `json:"delay,omitempty"`
	MaxAttempts *int            `json:"max_attempts,omitempty"`
	Retry       json.RawMessage `json:"retry,omitempty"`
	Timeout     string          `json:"timeout,omitempty"`
	ExpiresAt   *time.Time      `json:"expires_at,omitempty"`
	RetryUntil  *time.Time      `json:"retry_until,omitempty"`
	Tags        []string        `json:"tags,omitempty"`
	Metadata    json.RawMessage `json:"metadata,omitempty"`
	Key         string          `json:"concurrency_key,omitempty"`
	Uniqueness  *uniqueness     `json:"uniqueness,omitempty"`

	plain bool // no more than an id of ours, queue, priority, kind and args
}

func (j *newJob) dueNow() bool { return j.ScheduledAt == nil && j.Delay == "" }

func (c *Client) prepareAll(ctx context.Context, items []EnqueueItem) ([]*newJob, error) {
	var bad problems
	jobs := make([]*newJob, 0, len(items))
	for i, item := range items {
		job, err := c.prepare(ctx, item.Args, item.Opts)
		if err != nil {
			bad.at(fmt.Sprintf("items[%d]", i), err)
		}
		jobs = append(jobs, job)
	}
	if err := bad.err(); err != nil {
		return nil, err
	}
	return jobs, nil
}

// encode validates one job.
func (c *Client) encode(args Args, opts *EnqueueOpts) (*newJob, error) {
	var bad problems
	if opts == nil {
		opts = &EnqueueOpts{}
	}
	job := &newJob{ID: opts.ID, Queue: opts.Queue, Priority: opts.Priority, Tags: opts.Tags, Key: opts.Key}
	c.encodeArgs(&bad, job, args)
	job.encodeOptions(&bad, opts)
	job.encodeUnique(&bad, opts.Unique)
	if err := bad.err(); err != nil {
		return nil, err
	}
	job.plain = opts.ID == "" && job.ScheduledAt == nil && job.Delay == "" && job.MaxAttempts == nil && job.Retry == nil &&
		job.Timeout == "" && job.ExpiresAt == nil && job.RetryUntil == nil && job.Tags == nil && job.Metadata == nil && job.Key == "" &&
		job.Uniqueness == nil
	return job, nil
}

func (c *Client) encodeArgs(bad *problems, job *newJob, args Args) {
	kind, err := kindOf(args)
	if err != nil {
		bad.add("args", "%v", err)
		return
	}
	job.Kind = kind
	bad.join(checkName("kind", kind))
	if len(c.kinds) > 0 && !c.kinds[kind] {
		bad.add("kind", "%q is not among Config.Kinds", kind)
	}
	job.Args, err = encodeArgs(args, c.cfg.MaxArgsBytes)
	bad.join(err)
}

func (j *newJob) encodeOptions(bad *problems, opts *EnqueueOpts) {
	if j.Queue == "" {
		j.Queue = "default"
	}
	bad.join(checkName("Queue", j.Queue))
	switch {
	case j.Priority == 0:
		j.Priority = 5
	case j.Priority < 1 || j.Priority > 9:
		bad.add("Priority", "%d is not 1 to 9", j.Priority)
	}
	if j.ID = bad.newID(j.ID); j.ID == "" {
		j.ID = ulid.Make().String()
	}
	if !opts.ScheduledAt.IsZero() {
		j.ScheduledAt = instant(bad, "ScheduledAt", opts.ScheduledAt)
		if opts.Delay != 0 {
			bad.add("Delay", "contradicts ScheduledAt")
		}
	}
	bad.nonNegative("Delay", opts.Delay)
	if opts.Delay > 0 {
		j.Delay = interval(opts.Delay)
	}
	bad.attempts("MaxAttempts", opts.MaxAttempts)
	if opts.MaxAttempts > 0 {
		j.MaxAttempts = new(opts.MaxAttempts)
	}
	if mistakes := len(bad.errs); opts.Retry != nil {
		if bad.strategy("Retry", opts.Retry); len(bad.errs) == mistakes {
			j.Retry = encodeOwn(bad, "Retry", opts.Retry)
		}
	}
	bad.atLeast("Timeout", opts.Timeout, leastTimeout)
	if opts.Timeout > 0 {
		j.Timeout = interval(min(opts.Timeout, maxTimeout))
	}
	if !opts.ExpiresAt.IsZero() {
		j.ExpiresAt = instant(bad, "ExpiresAt", opts.ExpiresAt)
		if !opts.ExpiresAt.After(opts.ScheduledAt) {
			bad.add("ExpiresAt", "is not after ScheduledAt: the job could never run")
		}
	}
	if !opts.RetryUntil.IsZero() {
		j.RetryUntil = instant(bad, "RetryUntil", opts.RetryUntil)
	}
	bad.tags("Tags", opts.Tags)
	bad.join(checkText("Key", opts.Key, 256))
	j.encodeMetadata(bad, "Metadata", opts.Metadata)
}

// encodeOwn is the stored form of a job's own strategy: a Custom needs a name, functions cannot be stored.
func encodeOwn(bad *problems, field string, strategy RetryStrategy) json.RawMessage {
	raw, err := encodeStrategy(strategy)
	bad.at(field, err)
	return raw
}

func (j *newJob) encodeMetadata(bad *problems, field string, metadata map[string]any) {
	if metadata == nil {
		return
	}
	for key := range metadata {
		if len(key) >= 7 && key[:7] == "drover:" {
			bad.add(field, "key %q: keys that begin with drover: are drover's own", key)
		}
	}
	raw, err := encodeJSON(field, metadata, 64<<10)
	bad.join(err)
	j.Metadata = raw
}

// maxTimeout stands in the table for NoTimeout: a hundred years.
const maxTimeout = 100 * 365 * 24 * time.Hour

// instant refuses times that Postgres or JSON cannot hold.
func instant(bad *problems, field string, t time.Time) *time.Time {
	t = t.UTC() // first: the year may be another there
	if y := t.Year(); y < 1 || y > 9999 {
		bad.add(field, "year %d is not 1 to 9999", y)
	}
	return &t
}

// interval is d as Postgres reads it, rounded up to its microsecond.
func interval(d time.Duration) string {
	us := d / time.Microsecond
	if d%time.Microsecond > 0 && us < math.MaxInt64 {
		us++
	}
	return fmt.Sprintf("%d microseconds", us)
}

// kindOf asks for the kind; a nil pointer and a panicking Kind method are errors.
func kindOf(args Args) (kind string, err error) {
	if args == nil {
		return "", fmt.Errorf("is nil")
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("its Kind method panics: %v", r)
		}
	}()
	return args.Kind(), nil
}

// enqueued makes the receipt; unique is only of a unique job.
func (c *Client) enqueued(ctx context.Context, job *newJob, existing bool, unique *uniqueReply, inTx bool) Receipt {
	receipt := Receipt{ID: job.ID, Existing: existing}
	if unique != nil {
		receipt = unique.receipt()
	}
	if !receipt.Existing {
		c.emit(ctx, enqueuedEvent(job, inTx))
	}
	return receipt
}

// enqueuedAll makes the receipts. Of several jobs of one id in a batch those that were not stored are all but the first,
// or all.
func (c *Client) enqueuedAll(ctx context.Context, jobs []*newJob, told batchReply, inTx bool) []Receipt {
	receipts := make([]Receipt, len(jobs))
	unique := len(told.unique)
	for i, job := range slices.Backward(jobs) {
		if job.Uniqueness != nil {
			unique--
			receipts[i] = told.unique[unique].receipt()
			continue
		}
		receipts[i].ID = job.ID
		if told.existing[job.ID] > 0 {
			receipts[i].Existing = true
			told.existing[job.ID]--
		}
	}
	for i, job := range jobs {
		if !receipts[i].Existing {
			c.emit(ctx, enqueuedEvent(job, inTx))
		}
	}
	return receipts
}
