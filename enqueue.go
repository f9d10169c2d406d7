package drover

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/plural"
)

// EnqueueOpts are one job's settings. Nil means the same as the zero value: queue "default", priority 5, due now, and
// the worker's own policies.
type EnqueueOpts struct {
	// ID is a ULID that you choose. It makes the enqueue idempotent: a repeated enqueue returns the existing job, for
	// as long as the job's row is kept. A completed job's row stays for CompletedRetention. With DeleteOnCompletion the
	// row is deleted immediately, so a repeated enqueue may store the job again, and the job runs twice. The same is
	// true after the row was deleted later or archived. The time in the id should be about now, because drover sorts
	// jobs and looks for old jobs by this time. Empty means a new id. An id in lower case is stored in capitals, as the
	// receipt shows it.
	ID string

	// Queue defaults to "default".
	Queue string

	// Priority is 1 to 9; lower is sooner. Zero means 5.
	Priority int

	// ScheduledAt is when the job is due, by the server's clock. Zero means now, and so does a time in the past. Do
	// not set it together with Delay.
	ScheduledAt time.Time

	// Delay is the time from now until the job is due, by the server's clock. Zero means that the job is due now.
	Delay time.Duration

	// MaxAttempts is the total number of runs this job may have; 1 never retries. Zero means the worker's MaxAttempts.
	MaxAttempts int

	// Retry overrides the worker's strategy for this job. A Custom is stored by its Name. If the worker's process has not
	// registered a Custom of that name, the process logs that and uses the worker's strategy. Nil means the worker's
	// strategy.
	Retry RetryStrategy

	// Timeout bounds each run of this job. Zero means the worker's timeout, NoTimeout means none; under 1 ms is an
	// error.
	Timeout time.Duration

	// ExpiresAt is the time from which the job is no longer worth a run. From then on drover discards the job as expired
	// instead of running it. Zero means never. ExpiresAt must be after ScheduledAt.
	ExpiresAt time.Time

	// RetryUntil ends the retries. If the next retry would be due after this time, the job is discarded, reason
	// time_budget. Zero means that the worker's RetryFor decides.
	RetryUntil time.Time

	// Tags are up to 32 words to find the job by, each 1 to 128 bytes. Like kinds and queues, they have no control
	// characters, no invisible characters such as U+200B, and no spaces at their ends.
	Tags []string

	// Key names something that the job must not overload, such as a customer. It has at most 256 bytes. A paced redrive
	// runs at most RedrivePlan.PerKey jobs of one key at the same time, and Unique.Key compares it. Key has no other
	// effect. Zero means no key.
	Key string

	// Unique makes the enqueue store the job only if no other job is like it. Nil means that the job is not unique. If
	// there is another job like it, the receipt has the other job's id, also if you have set ID. ID is only for a
	// repeated enqueue of the same job.
	Unique *Unique

	// DisableNotify makes drover send no NOTIFY for the enqueue, nor for anything that drover does afterwards in the
	// same transaction: drover sets drover.notify to off, local to the transaction. Use it in a transaction that will
	// end with PREPARE TRANSACTION (two-phase commit), because Postgres refuses to prepare a transaction with a NOTIFY.
	// Sleeping supervisors find the job after up to PollInterval. If the transaction commits more than 20 s after the
	// call, the job may wait longer: until a supervisor's next full sweep, in which it looks through all due jobs. If n
	// supervisors run, each of them makes a full sweep every n × 15 s. Periodic.Opts must not set DisableNotify.
	DisableNotify bool

	// Metadata is marshalled to a JSON object that is kept next to the args. Nil means none. Keys that begin with
	// "drover:" are refused.
	Metadata map[string]any
}

// Receipt names the row that an enqueue stored or found. If there is no error, the table has that row, whatever
// indexes, constraints and triggers the application has put on jobs.
type Receipt struct {
	ID        string // the id of the row; if a unique job was there before, the id of that job
	Existing  bool   // the job was there before: it has the given ID, or it is like the new job (Unique)
	Replaced  bool   // the existing job got the new args and options: see ReplaceWaiting
	Debounced bool   // the existing job got the new due time: see Debounce
}

// Enqueue stores one job in a transaction of its own, usually in one round trip. If all supervisors are asleep, it
// notifies two of them.
//
// After an error that leaves the outcome open, such as a lost connection, repeat the call with the same EnqueueOpts.ID.
// This is safe only while the job's row is kept. With DeleteOnCompletion, the job may have run and been deleted by
// then. In that case the repeated call stores the job again, and the job runs twice.
//
// Errors: *InvalidError before anything is written, ErrIDConflict, ErrNotStored, ErrUniqueDeadlock, ErrNotMigrated,
// ErrReadOnly. An error of an application's own index, constraint or trigger on jobs is returned as the driver's
// error, and nothing is stored.
func (c *Client) Enqueue(ctx context.Context, args Args, opts *EnqueueOpts) (receipt Receipt, err error) {
	if len(c.layers.begins) > 0 {
		var end func([]Receipt, error)
		ctx, end = c.begin(ctx, false, EnqueueItem{args, opts})
		defer func() { end([]Receipt{receipt}, err) }()
	}
	job, err := c.prepare(ctx, args, opts, nil)
	if err != nil {
		return Receipt{}, err
	}
	existing, err := c.desk.enqueue(ctx, job)
	if err != nil {
		return Receipt{ID: job.ID}, fmt.Errorf("enqueue %s: %w", job.Kind, namesField(err))
	}
	c.running.wake(job)
	return c.enqueued(ctx, job, existing, false), nil
}

// EnqueueTx stores one job in the caller's transaction: the job exists once the transaction has committed. A pgx.Tx is
// a Tx; SQLTx adapts a *sql.Tx. If all supervisors are asleep at the call, the commit notifies two of them. A
// supervisor that falls asleep before the commit finds the job by polling, at the latest after PollInterval. If the
// transaction commits more than 20 s after the call, the job may wait longer: see EnqueueOpts.DisableNotify. A
// transaction that will end with PREPARE TRANSACTION needs DisableNotify. The hook Enqueued is called before the
// commit, with Event.InTx.
//
// EnqueueTx returns the errors of Enqueue. After an error other than an *InvalidError, the transaction can only be
// rolled back.
func (c *Client) EnqueueTx(ctx context.Context, tx Tx, args Args, opts *EnqueueOpts) (receipt Receipt, err error) {
	if len(c.layers.begins) > 0 {
		var end func([]Receipt, error)
		ctx, end = c.begin(ctx, true, EnqueueItem{args, opts})
		defer func() { end([]Receipt{receipt}, err) }()
	}
	job, err := c.prepare(ctx, args, opts, nil)
	if err != nil {
		return Receipt{}, err
	}
	if err := checkTx(tx); err != nil {
		return Receipt{}, err
	}
	existing, err := c.desk.enqueueTx(ctx, c.desk.in(tx), job)
	if err != nil {
		return Receipt{ID: job.ID}, fmt.Errorf("enqueue %s: %w", job.Kind, namesField(err))
	}
	return c.enqueued(ctx, job, existing, true), nil
}

// EnqueueItem is one job of an EnqueueMany.
type EnqueueItem struct {
	Args Args
	Opts *EnqueueOpts
}

// EnqueueMany stores the jobs in one transaction, all or none, and returns their receipts in the same order. Jobs that
// set at most a queue, a priority and metadata are stored by COPY. EnqueueMany returns the errors of Enqueue. An
// *InvalidError names every job that was refused.
func (c *Client) EnqueueMany(ctx context.Context, items []EnqueueItem) (receipts []Receipt, err error) {
	if len(c.layers.begins) > 0 && len(items) > 0 {
		var end func([]Receipt, error)
		ctx, end = c.begin(ctx, false, items...)
		defer func() { end(receipts, err) }()
	}
	jobs, err := c.prepareAll(ctx, items)
	if err != nil || len(jobs) == 0 {
		return nil, err
	}
	existing, err := c.desk.enqueueMany(ctx, jobs)
	if err != nil {
		return nil, fmt.Errorf("enqueue %s: %w", plural.Of(len(jobs), "job"), namesField(err))
	}
	c.running.wake(jobs...)
	return c.enqueuedAll(ctx, jobs, existing, false), nil
}

// EnqueueManyTx is EnqueueMany in the caller's transaction.
func (c *Client) EnqueueManyTx(ctx context.Context, tx Tx, items []EnqueueItem) (receipts []Receipt, err error) {
	if len(c.layers.begins) > 0 && len(items) > 0 {
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
	existing, err := c.desk.enqueueManyTx(ctx, c.desk.in(tx), jobs)
	if err != nil {
		return nil, fmt.Errorf("enqueue %s: %w", plural.Of(len(jobs), "job"), namesField(err))
	}
	return c.enqueuedAll(ctx, jobs, existing, true), nil
}

// newJob is a validated job on its way into the table. drover_enqueue_many takes its JSON.
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

	ConcurrencyKey string `json:"concurrency_key,omitempty"`

	Uniqueness *uniqueness `json:"uniqueness,omitempty"`
	reply      uniqueReply // the database's answer, if the job is unique

	quiet       bool // the enqueue sends no NOTIFY
	plain       bool // the job has only a kind, args, a queue, a priority and metadata, and drover has made its id
	plainUnique bool // the job is unique and otherwise plain; its args have at most 512 bytes, and Unique sets no OnConflict
}

func (j *newJob) dueNow() bool { return j.ScheduledAt == nil && j.Delay == "" }

// prepareAll prepares each item. Its error names every bad item.
func (c *Client) prepareAll(ctx context.Context, items []EnqueueItem) ([]*newJob, error) {
	var bad problems
	jobs := make([]*newJob, 0, len(items))
	var before lastMetadata
	for i, b := range items {
		job, err := c.prepare(ctx, b.Args, b.Opts, &before)
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

// encode validates one job, and encodes its args and options. The parameter before has the metadata of an earlier job
// of the batch; it is nil for a single enqueue.
func (c *Client) encode(args Args, opts *EnqueueOpts, before *lastMetadata) (*newJob, error) {
	var bad problems
	if opts == nil {
		opts = &EnqueueOpts{}
	}
	job := &newJob{quiet: opts.DisableNotify || c.cfg.DisableNotify, ID: opts.ID, Queue: opts.Queue, Priority: opts.Priority, Tags: opts.Tags, ConcurrencyKey: opts.Key}
	c.encodeArgs(&bad, job, args)
	job.encodeOptions(&bad, opts, before)
	job.Uniqueness = opts.Unique.encode(&bad, job.Args, job.ConcurrencyKey, !job.dueNow())
	if err := bad.err(); err != nil {
		return nil, err
	}
	bare := opts.ID == "" && job.ScheduledAt == nil && job.Delay == "" && job.MaxAttempts == nil && job.Retry == nil &&
		job.Timeout == "" && job.ExpiresAt == nil && job.RetryUntil == nil && job.Tags == nil && job.ConcurrencyKey == ""
	if u := job.Uniqueness; u == nil {
		job.plain = bare
	} else {
		// The key contains the args as Postgres writes them. For args over 512 bytes, this text may be much longer than
		// the args. Jobs with such args go through drover_unique_key, which checks the args before it makes the text.
		job.plainUnique = bare && u.OnConflict == "" && len(job.Args) <= 512
	}
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
	if lost := c.lostField(args); lost != "" {
		bad.add("args", "%s", lost)
	}
	job.Args, err = encodeArgs(args, c.cfg.MaxArgsBytes)
	bad.join(err)
}

// lostField reports a field of args that encoding/json would leave out; "" if there is none. It checks each type once, and
// remembers the result.
func (c *Client) lostField(args Args) string {
	t := reflect.TypeOf(args)
	lost, known := c.lost.Load(t)
	if !known {
		lost, _ = c.lost.LoadOrStore(t, lostField(t, false))
	}
	text, _ := lost.(string)
	return text
}

func (j *newJob) encodeOptions(bad *problems, opts *EnqueueOpts, before *lastMetadata) {
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
	if j.ID == "" {
		j.ID = ulid.Make().String()
	} else if parsed, err := ulid.ParseStrict(j.ID); err != nil {
		bad.add("ID", "%q is not a ULID: %v", j.ID, err)
	} else {
		j.ID = parsed.String() // in capitals, because ids are compared in capitals
	}
	if !opts.ScheduledAt.IsZero() {
		j.ScheduledAt = instant(bad, "ScheduledAt", opts.ScheduledAt)
		if opts.Delay != 0 {
			bad.add("Delay", "contradicts ScheduledAt")
		}
	}
	bad.nonNegative("Delay", opts.Delay)
	if opts.Delay > 0 {
		j.Delay = pg.Interval(opts.Delay)
	}
	bad.attempts("MaxAttempts", opts.MaxAttempts)
	if opts.MaxAttempts > 0 {
		j.MaxAttempts = new(opts.MaxAttempts)
	}
	j.Retry = encodeOwn(bad, opts.Retry)
	bad.atLeast("Timeout", opts.Timeout, leastTimeout)
	if opts.Timeout > 0 {
		j.Timeout = pg.Interval(min(opts.Timeout, maxTimeout))
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
	if len(opts.Tags) > 32 {
		bad.add("Tags", "%d tags, at most 32", len(opts.Tags))
	}
	for i, tag := range opts.Tags {
		field := fmt.Sprintf("Tags[%d]", i)
		if tag == "" {
			bad.add(field, "is empty")
		}
		if err := checkText(field, tag, 128); err != nil {
			bad.join(err)
		} else {
			bad.join(checkSeen(field, tag))
		}
	}
	bad.join(checkText("Key", opts.Key, 256))
	j.encodeMetadata(bad, "Metadata", opts.Metadata, before)
}

// encodeOwn returns the stored form of a job's own strategy; nil if it has none. A Custom needs a name, because
// functions cannot be stored.
func encodeOwn(bad *problems, strategy RetryStrategy) json.RawMessage {
	mistakes := len(bad.errs)
	if bad.strategy("Retry", strategy); strategy == nil || len(bad.errs) > mistakes {
		return nil
	}
	raw, err := encodeStrategy(strategy)
	bad.at("Retry", err)
	return raw
}

func (j *newJob) encodeMetadata(bad *problems, field string, metadata map[string]any, before *lastMetadata) {
	if metadata == nil {
		return
	}
	if before.same(metadata) {
		j.Metadata = before.raw
		return
	}
	mistakes := len(bad.errs)
	for key := range metadata {
		if len(key) >= 7 && key[:7] == "drover:" {
			bad.add(field, "key %q: keys that begin with \"drover:\" are drover's own", key)
		}
	}
	raw, err := encodeJSON(field, metadata, 64<<10)
	bad.join(err)
	j.Metadata = raw
	if len(bad.errs) == mistakes {
		before.keep(metadata, raw)
	}
}

// lastMetadata keeps the metadata of an earlier job of the batch, and the JSON of that metadata, so that equal metadata
// are encoded once. It keeps only metadata of at most four strings. Often all jobs of a batch have the same metadata,
// such as the id of a trace. lastMetadata keeps the strings and not the map, because middleware may change the map.
type lastMetadata struct {
	pairs [4][2]string
	n     int // how many elements of pairs are set; 0 means that no metadata is kept
	raw   json.RawMessage
}

func (l *lastMetadata) same(metadata map[string]any) bool {
	if l == nil || l.n == 0 || len(metadata) != l.n {
		return false
	}
	for _, pair := range l.pairs[:l.n] {
		if value, ok := metadata[pair[0]].(string); !ok || value != pair[1] {
			return false
		}
	}
	return true
}

func (l *lastMetadata) keep(metadata map[string]any, raw json.RawMessage) {
	if l == nil {
		return
	}
	l.n = 0
	if len(metadata) > len(l.pairs) {
		return
	}
	n := 0
	for key, value := range metadata {
		text, ok := value.(string)
		if !ok {
			return
		}
		l.pairs[n] = [2]string{key, text}
		n++
	}
	l.n, l.raw = n, raw
}

// maxTimeout is how the table stores NoTimeout: a hundred years.
const maxTimeout = 100 * 365 * 24 * time.Hour

// instant returns t in UTC. If Postgres or JSON cannot hold t, it reports a mistake.
func instant(bad *problems, field string, t time.Time) *time.Time {
	t = t.UTC() // before the check, because the year may differ in UTC
	if y := t.Year(); y < 1 || y > 9999 {
		bad.add(field, "year %d is not 1 to 9999", y)
	}
	return &t
}

// kindOf calls args.Kind. It returns an error if args is nil, or if the method panics, for example because it is
// called on a nil pointer.
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

func (c *Client) enqueued(ctx context.Context, job *newJob, existing, inTx bool) Receipt {
	receipt := Receipt{ID: job.ID, Existing: existing}
	if job.Uniqueness != nil {
		receipt = job.receipt()
	}
	if !receipt.Existing {
		c.emit(ctx, enqueuedEvent(job, inTx))
	}
	return receipt
}

// receipt makes the receipt of a unique job from the reply of the database.
func (j *newJob) receipt() Receipt {
	r := j.reply
	return Receipt{ID: r.ID, Existing: r.Result != "stored", Replaced: r.Result == "replaced", Debounced: r.Result == "debounced"}
}

// enqueuedAll makes the receipts, and emits an event for each stored job. The map existing counts, for each id, the
// jobs of this batch that were not stored. If several jobs of a batch have the same id, either none of them was stored,
// or only the first. So the loop counts down from the last job.
func (c *Client) enqueuedAll(ctx context.Context, jobs []*newJob, existing map[string]int, inTx bool) []Receipt {
	receipts := make([]Receipt, len(jobs))
	for i, job := range slices.Backward(jobs) {
		if job.Uniqueness != nil {
			receipts[i] = job.receipt()
			continue
		}
		receipts[i].ID = job.ID
		if existing[job.ID] > 0 {
			receipts[i].Existing = true
			existing[job.ID]--
		}
	}
	for i, job := range jobs {
		if !receipts[i].Existing {
			c.emit(ctx, enqueuedEvent(job, inTx))
		}
	}
	return receipts
}
