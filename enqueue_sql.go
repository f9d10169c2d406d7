package drover

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/plural"
)

// sqlEnqueue stores one job, or finds it by its id. The function validates the job, and the right to call it is all
// that a producer's role needs. The parameters are only scalars and JSON text, so that any driver works.
const sqlEnqueue = `
select existing from drover_enqueue(kind => $1, args => $2::jsonb, queue => $3, priority => $4, scheduled_at => $5,
	delay => $6::interval, max_attempts => $7, retry => $8::jsonb, timeout => $9::interval, expires_at => $10, retry_until => $11,
	tags => $12::jsonb, metadata => $13::jsonb, id => $14, wake => $15, concurrency_key => $16)`

func (j *newJob) params(wake bool) []any {
	var tags any
	if j.Tags != nil {
		raw, _ := json.Marshal(j.Tags) // strings only: cannot fail
		tags = string(raw)
	}
	return []any{
		j.Kind, string(j.Args), j.Queue, j.Priority, j.ScheduledAt, pg.OrNull(j.Delay), j.MaxAttempts, pg.OrNull(string(j.Retry)),
		pg.OrNull(j.Timeout), j.ExpiresAt, j.RetryUntil, tags, pg.OrNull(string(j.Metadata)), j.ID, wake, pg.OrNull(j.ConcurrencyKey),
	}
}

// sqlEnqueuePlain is sqlEnqueue for a job that sets at most a queue, a priority and metadata. It does not call a function
// of 16 parameters, because that call costs as much as the rest of the statement. The job's id is fresh, so no conflict is
// possible. If a trigger of the application changes the id, the statement raises an error. If a trigger drops the row,
// the statement reports 0 rows. If a rule redirects the insert, the server refuses the statement, because the rule
// cannot return the columns that the statement asks for.
const sqlEnqueuePlain = `
insert into jobs (id, kind, args, queue, priority, metadata) values ($1, $2, $3::jsonb, $4, $5, $6::jsonb)
returning case when id <> $1 or tableoid = 0 then drover_refuse_unstored(array[$1]) end`

// columns returns the first parameters of sqlEnqueuePlain and sqlEnqueueUniquePlain.
func (j *newJob) columns() []any {
	return []any{j.ID, j.Kind, string(j.Args), j.Queue, j.Priority, pg.OrNull(string(j.Metadata))}
}

// enqueue stores one job and wakes sleeping supervisors: two transactions, one round trip. A role that may not write
// to jobs, such as a producer's, stores the job through the function. After the first refusal, all further jobs go
// through the function.
func (s *desk) enqueue(ctx context.Context, job *newJob) (existing bool, err error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return false, pg.Classify(err)
	}
	defer conn.Release()
	direct := (job.plain || job.plainUnique) && !s.functionsOnly.Load()
	stored, existing, err := s.enqueueOn(ctx, conn.Conn(), job, direct)
	if direct && lacksRight(err) {
		if stored {
			s.wakesBlindly.Store(true)
		} else {
			s.functionsOnly.Store(true)
			stored, existing, err = s.enqueueOn(ctx, conn.Conn(), job, false)
		}
	}
	if direct && job.plainUnique && errors.Is(err, ErrNotStored) { // another job is there: the function finds out which
		stored, existing, err = s.enqueueOn(ctx, conn.Conn(), job, false)
	}
	if err != nil && !stored {
		if job.Uniqueness != nil {
			err = uniqueError(err)
		}
		return false, err
	}
	return existing, nil // err may be from the wake-up; then the job waits one poll interval at most
}

// enqueued is the server's reply about one job.
type enqueued struct {
	rows      int64 // how many rows the insert stored
	existing  bool  // the job was there before
	committed int64 // 0 or more: the server has confirmed the commit; -1: it has not
}

// enqueueOn stores the job, commits, and then looks for sleeping supervisors. If it looked before the commit, a
// supervisor could fall asleep between the look and the commit. This supervisor would not have seen the job, and nobody
// would wake it.
func (s *desk) enqueueOn(ctx context.Context, conn pg.Conn, job *newJob, direct bool) (stored, existing bool, err error) {
	var p pg.Pipeline
	sent := enqueued{rows: 1, committed: -1}
	p.Begin()
	switch {
	case direct && job.plainUnique:
		job.reply = uniqueReply{ID: job.ID, Result: "stored"}
		p.Exec(nil, sqlEnqueueUniquePlan)
		p.Exec(&sent.rows, sqlEnqueueUniquePlain, append(job.columns(), job.Uniqueness.plain(job.Args)...)...)
	case direct:
		p.Exec(&sent.rows, sqlEnqueuePlain, job.columns()...)
	case job.Uniqueness != nil:
		doc, err := json.Marshal(job)
		if err != nil {
			return false, false, fmt.Errorf("encode job: %w", err)
		}
		job.Uniqueness.send(&p, doc, &job.reply, job.quiet)
	default:
		p.Query(func(rows pgx.Rows) error { return rows.Scan(&sent.existing) }, sqlEnqueue, job.params(false)...)
	}
	p.Exec(&sent.committed, pg.CommitAndBegin)
	switch {
	case job.quiet:
	case s.wakesBlindly.Load() || s.functionsOnly.Load():
		wake(&p, job)
	case job.plainUnique:
		p.Exec(nil, sqlWakeForUnique, job.Queue, job.Kind, job.ID)
	case !direct:
		wake(&p, job)
	default:
		p.Exec(nil, sqlWakeAsleep, job.Queue, job.Kind)
	}
	p.Commit()
	if err = p.Send(ctx, conn); sent.rows != 1 {
		return false, false, ErrNotStored
	}
	return sent.committed >= 0, sent.existing, err
}

// lacksRight reports whether the role lacks a right that the statement needs.
func lacksRight(err error) bool { return pg.SQLState(err) == "42501" }

// refusesCopy reports whether the table refuses COPY, because of row security.
func refusesCopy(err error) bool {
	return pg.SQLState(err) == "0A000" && !errors.Is(err, ErrReadOnly)
}

const (
	// sqlWakeAsleep calls the function only if there is no lookout (an awake supervisor with room). Reading drover_crews
	// costs half as much as the call.
	sqlWakeAsleep = `select drover_wake($1, null, $2) where (` + sqlNoLookout + `)`

	// sqlWakeForUnique is sqlWakeAsleep for a unique job. It also checks that the job was stored, because the enqueue
	// stores no job if there is another job like it.
	sqlWakeForUnique = `select drover_wake($1, null, $2) where exists (select from jobs where id = $3) and (` + sqlNoLookout + `)`

	sqlNoLookout = `
select bool_and(pg_try_advisory_lock_shared(lookout) and pg_advisory_unlock_shared(lookout)) from drover_crews where queue = $1 and $2 = any(kinds)`

	sqlWakeNow = `select drover_wake($1, null, $2)`
	sqlWakeIn  = `select drover_wake($1, now() + $3::interval, $2)`
	sqlWakeAt  = `select drover_wake($1, $3::timestamptz, $2)`
)

func wake(p *pg.Pipeline, job *newJob) {
	switch {
	case job.ScheduledAt != nil:
		p.Exec(nil, sqlWakeAt, job.Queue, job.Kind, *job.ScheduledAt)
	case job.Delay != "":
		p.Exec(nil, sqlWakeIn, job.Queue, job.Kind, job.Delay)
	default:
		p.Exec(nil, sqlWakeNow, job.Queue, job.Kind)
	}
}

// sqlDisableNotify makes a setting that ends with the caller's transaction.
const sqlDisableNotify = `select set_config('drover.notify', 'off', true)`

// disableNotify keeps the caller's transaction from notifying supervisors.
func disableNotify(ctx context.Context, tx Tx) error {
	return pg.Classify(tx.QueryRow(ctx, sqlDisableNotify).Scan(new(string)))
}

func (s *desk) enqueueTx(ctx context.Context, tx Tx, job *newJob) (existing bool, err error) {
	if job.quiet {
		if err := disableNotify(ctx, tx); err != nil {
			return false, err
		}
	}
	if job.Uniqueness != nil {
		doc, err := json.Marshal(job)
		if err != nil {
			return false, fmt.Errorf("encode job: %w", err)
		}
		job.reply, err = askUnique(ctx, tx, doc)
		return false, err
	}
	err = tx.QueryRow(ctx, sqlEnqueue, job.params(true)...).Scan(&existing)
	return existing, pg.Classify(err)
}

// sqlEnqueueMany stores a JSON array of jobs, and returns the ids that were there before.
const sqlEnqueueMany = `
select coalesce(jsonb_agg(e), '[]')::text from drover_enqueue_many($1::jsonb, $2) as e`

const (
	maxBatchJobs  = 1000    // jobs in one statement
	maxBatchBytes = 8 << 20 // bytes of args and metadata in one statement, unless a single job has more; jsonb holds at most 256 MiB
)

// enqueueManyTx stores the jobs in chunks, sorted by id, so that two batches of the same ids do not deadlock. For
// each id it counts the jobs that were not stored. In each unique job it stores the database's reply.
func (s *desk) enqueueManyTx(ctx context.Context, tx Tx, jobs []*newJob) (map[string]int, error) {
	existing := map[string]int{}
	if slices.ContainsFunc(jobs, func(j *newJob) bool { return j.quiet }) {
		if err := disableNotify(ctx, tx); err != nil {
			return nil, err
		}
	}
	jobs, unique := apart(jobs)
	slices.SortStableFunc(jobs, func(a, b *newJob) int { return cmp.Compare(a.ID, b.ID) })
	for len(jobs) > 0 {
		chunk := jobs[:chunkLen(jobs)]
		jobs = jobs[len(chunk):]
		doc, err := json.Marshal(chunk)
		if err != nil {
			return nil, fmt.Errorf("encode jobs: %w", err)
		}
		var found string
		if err := tx.QueryRow(ctx, sqlEnqueueMany, string(doc), true).Scan(&found); err != nil {
			return nil, pg.Classify(err)
		}
		var ids []string
		if err := json.Unmarshal([]byte(found), &ids); err != nil {
			return nil, fmt.Errorf("read existing ids: %w", err)
		}
		for _, id := range ids {
			existing[id]++
		}
	}
	return existing, enqueueUniqueManyTx(ctx, tx, unique)
}

// enqueueUniqueManyTx stores unique jobs in chunks, one statement for each. Within a statement, the database takes the
// unique keys in order. If there are several chunks, enqueueUniqueManyTx sorts all jobs by their keys first. Otherwise
// two batches of several chunks could deadlock.
func enqueueUniqueManyTx(ctx context.Context, tx Tx, jobs []*newJob) error {
	if chunkLen(jobs) < len(jobs) {
		keys := make(map[*newJob]string, len(jobs))
		for _, job := range jobs {
			keys[job] = job.Uniqueness.sortKey(job.Kind, job.Args, job.Queue, job.ConcurrencyKey)
		}
		slices.SortStableFunc(jobs, func(a, b *newJob) int { return cmp.Compare(keys[a], keys[b]) })
	}
	for len(jobs) > 0 {
		chunk := jobs[:chunkLen(jobs)]
		jobs = jobs[len(chunk):]
		doc, err := json.Marshal(chunk)
		if err != nil {
			return fmt.Errorf("encode jobs: %w", err)
		}
		replies, err := askUniqueMany(ctx, tx, doc, len(chunk))
		if err != nil {
			return err
		}
		for i, job := range chunk {
			job.reply = replies[i]
		}
	}
	return nil
}

// apart returns the jobs that are not unique and the jobs that are unique, in new slices.
func apart(jobs []*newJob) (others, unique []*newJob) {
	others = make([]*newJob, 0, len(jobs))
	for _, job := range jobs {
		if job.Uniqueness != nil {
			unique = append(unique, job)
		} else {
			others = append(others, job)
		}
	}
	return others, unique
}

// chunkLen is how many of the jobs go into one statement.
func chunkLen(jobs []*newJob) int {
	size := 0
	for n, job := range jobs[:min(len(jobs), maxBatchJobs)] {
		if size += len(job.Args) + len(job.Metadata); n > 0 && size > maxBatchBytes {
			return n
		}
	}
	return min(len(jobs), maxBatchJobs)
}

// enqueueMany stores plain jobs by COPY, and the others through the function. COPY
// cannot use a column's default in some rows only, and cannot skip a row whose id exists already. A role that may not
// write to jobs, such as a producer's, stores all jobs through the function. So does a role under row security, because
// Postgres refuses COPY there.
func (s *desk) enqueueMany(ctx context.Context, jobs []*newJob) (map[string]int, error) {
	var plain, others []*newJob
	for _, job := range jobs {
		if job.plain {
			plain = append(plain, job)
		} else {
			others = append(others, job)
		}
	}
	existing, err := s.copyAndEnqueue(ctx, plain, others)
	if len(plain) > 0 && (lacksRight(err) || refusesCopy(err)) {
		plain, others = nil, jobs
		existing, err = s.copyAndEnqueue(ctx, plain, others)
	}
	// If the unique jobs of this batch have deadlocked with another batch of several chunks, a repetition of this batch
	// usually succeeds.
	for again := 0; again < 2 && deadlocked(err); again++ {
		existing, err = s.copyAndEnqueue(ctx, plain, others)
	}
	if err != nil {
		return nil, err
	}
	s.wakeQueues(ctx, jobs)
	return existing, nil
}

func (s *desk) copyAndEnqueue(ctx context.Context, plain, others []*newJob) (existing map[string]int, err error) {
	if len(plain) == 0 {
		err = s.pool.InTx(ctx, func(tx pgx.Tx) error {
			existing, err = s.enqueueManyTx(ctx, tx, others)
			return err
		})
		return existing, err
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, pg.Classify(err)
	}
	defer conn.Release()
	var begin pg.Pipeline
	changeable := false
	begin.Begin()
	begin.Exec(nil, sqlLockJobs)
	begin.Query(func(rows pgx.Rows) error { return rows.Scan(&changeable) }, sqlTriggersBefore)
	if err := begin.Send(ctx, conn.Conn()); err != nil {
		return nil, err
	}
	defer pg.RollBack(ctx, conn.Conn())
	if err := copyJobs(ctx, conn.Pgx(), s.pool.Names, plain); err != nil {
		return nil, pg.Classify(err)
	}
	if changeable {
		if err := allStored(ctx, conn.Conn(), plain); err != nil {
			return nil, err
		}
	}
	if existing, err = s.enqueueManyTx(ctx, conn.Conn(), others); err != nil {
		return nil, err
	}
	_, err = conn.Conn().Exec(ctx, pg.Commit)
	return existing, pg.Classify(err)
}

const (
	// sqlLockJobs takes the lock that COPY takes, so that no trigger is created before the COPY is committed.
	sqlLockJobs = `lock table only jobs in row exclusive mode`

	// sqlTriggersBefore asks whether jobs has a trigger before insert for each row. Such a trigger may drop rows or change
	// their ids, and COPY cannot return what it stored. Rules need no check, because COPY ignores them.
	sqlTriggersBefore = `select exists (select from pg_trigger where tgrelid = 'jobs'::regclass and tgtype & 7 = 7 and tgenabled <> 'D')`

	// sqlCountStored finds the jobs by primary key. It needs pg.QuickPlan: otherwise a plan that was made when the
	// table was small would read the whole table.
	sqlCountStored = `select count(*) from jobs where id = any($1)`
)

// allStored returns ErrNotStored for a batch if a trigger dropped a row or changed an id.
func allStored(ctx context.Context, conn pg.Conn, jobs []*newJob) error {
	ids := make([]string, len(jobs))
	for i, job := range jobs {
		ids[i] = job.ID
	}
	var n int
	var count pg.Pipeline
	count.Exec(nil, pg.QuickPlan)
	count.Query(func(rows pgx.Rows) error { return rows.Scan(&n) }, sqlCountStored, ids)
	if err := count.Send(ctx, conn); err != nil {
		return err
	}
	if n != len(jobs) {
		return fmt.Errorf("no row of %d of %s: %w", len(jobs)-n, plural.Of(len(jobs), "job"), ErrNotStored)
	}
	return nil
}

// sqlCopyJobs and sqlCopyJobsMetadata take rows as copyStream writes them.
const (
	sqlCopyJobs         = `copy jobs (id, kind, args, queue, priority) from stdin (format binary)`
	sqlCopyJobsMetadata = `copy jobs (id, kind, args, queue, priority, metadata) from stdin (format binary)`
)

func copyJobs(ctx context.Context, conn *pgx.Conn, names *pg.Names, jobs []*newJob) error {
	stream, sql := newCopyStream(jobs), sqlCopyJobs
	columns := []string{"id", "kind", "args", "queue", "priority", "metadata"}[:stream.fields]
	if stream.fields == 6 {
		sql = sqlCopyJobsMetadata
	}
	tracer, traced := conn.Config().Tracer.(pgx.CopyFromTracer)
	if traced {
		ctx = tracer.TraceCopyFromStart(ctx, conn, pgx.TraceCopyFromStartData{
			TableName: names.Table("jobs"), ColumnNames: columns,
		})
	}
	tag, err := conn.PgConn().CopyFrom(ctx, stream, names.SQL(sql))
	if traced {
		tracer.TraceCopyFromEnd(ctx, conn, pgx.TraceCopyFromEndData{CommandTag: tag, Err: err})
	}
	if n := tag.RowsAffected(); err == nil && n != int64(len(jobs)) {
		return fmt.Errorf("no row of %d of %s: %w", int64(len(jobs))-n, plural.Of(len(jobs), "job"), ErrNotStored)
	}
	return err
}

// copyStream is a reader of the rows for sqlCopyJobs, or for sqlCopyJobsMetadata if a job has metadata. pgx's own
// CopyFrom first asks the server for the types of the columns, which is a round trip. It also makes a dozen allocations
// a row to find out how to write the values. copyStream knows the types and how to write them.
type copyStream struct {
	jobs   []*newJob // the jobs whose rows are not in buf yet
	fields uint16
	buf    bytes.Buffer // rows that Read has not returned yet
}

func newCopyStream(jobs []*newJob) *copyStream {
	s := &copyStream{jobs: jobs, fields: 5}
	if slices.ContainsFunc(jobs, func(j *newJob) bool { return j.Metadata != nil }) {
		s.fields = 6
	}
	s.buf.WriteString("PGCOPY\n\377\r\n\000" + "\000\000\000\000" + "\000\000\000\000") // no flags, no extension
	return s
}

func (s *copyStream) Read(p []byte) (int, error) {
	for s.buf.Len() < len(p) && len(s.jobs) > 0 {
		s.buf.Write(s.jobs[0].appendCopyRow(s.buf.AvailableBuffer(), s.fields))
		if s.jobs = s.jobs[1:]; len(s.jobs) == 0 {
			s.buf.WriteString("\377\377") // the end
		}
	}
	return s.buf.Read(p)
}

// appendCopyRow appends the number of fields. For each field it then appends the length, and the bytes that the
// receive function of its type reads.
func (j *newJob) appendCopyRow(b []byte, fields uint16) []byte {
	b = binary.BigEndian.AppendUint16(b, fields)
	b = appendCopyText(b, j.ID)
	b = appendCopyText(b, j.Kind)
	b = appendCopyJSON(b, j.Args)
	b = appendCopyText(b, j.Queue)
	b = binary.BigEndian.AppendUint32(b, 2)
	b = binary.BigEndian.AppendUint16(b, uint16(j.Priority)) //nolint:gosec // 1 to 9
	switch {
	case fields == 5:
		return b
	case j.Metadata == nil:
		return binary.BigEndian.AppendUint32(b, math.MaxUint32) // null
	}
	return appendCopyJSON(b, j.Metadata)
}

func appendCopyJSON(b []byte, doc []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(1+len(doc))) //nolint:gosec // at most MaxArgsBytes
	return append(append(b, 1), doc...)                      // the version of jsonb's format
}

func appendCopyText(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...) //nolint:gosec // an id or a name
}

// wakeQueues looks for sleeping supervisors after the commit, once for each queue and kind with jobs due now. If it
// fails, the jobs start one poll interval later at most.
func (s *desk) wakeQueues(ctx context.Context, jobs []*newJob) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return
	}
	defer conn.Release()
	var p pg.Pipeline
	p.Begin()
	seen := map[[2]string]bool{}
	for _, job := range jobs {
		if of := [2]string{job.Queue, job.Kind}; !job.quiet && job.ScheduledAt == nil && job.Delay == "" && !seen[of] {
			seen[of] = true
			wake(&p, job)
		}
	}
	if p.Commit(); len(seen) > 0 {
		_ = p.Send(ctx, conn.Conn())
	}
}
