package drover

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/drover-queue/drover/internal/pg"
)

// Operators work through the same SQL functions and views that users of psql have.

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

// sqlGet and sqlList are two statements, because a plan that serves both would walk the table. sqlGetBare is for a
// row that sqlGet cannot read as a whole.
const (
	sqlGet     = jobInfoColumns + jobInfoParts + jobSeen + ` from jobs j` + jobInfoPolicies + `where j.id = $1`
	sqlGetBare = jobInfoColumns + jobSeen + ` from jobs j` + jobInfoPolicies + `where j.id = $1`
	jobSeen    = `, format('%s/%s', j.redrives, j.xmin)` // as drover_seen computes it
	sqlParts   = `select part, coalesce(value, ''), coalesce(why, '') from drover_parts($1)`
)

func (s *desk) get(ctx context.Context, id string) (*JobInfo, error) {
	job, err := s.queryJob(ctx, sqlGet, id, true)
	if pg.RowsFault(err) && ctx.Err() == nil {
		job, err = s.getOdd(ctx, id)
	}
	return job, err
}

func (s *desk) queryJob(ctx context.Context, sql, id string, parts bool) (*JobInfo, error) {
	jobs, err := pg.ReadAll(ctx, s.pool, func(row pgx.CollectableRow) (*JobInfo, error) {
		var seen string
		j, err := scanJobInfo(row, parts, &seen)
		j.Seen = seen
		return j, err
	}, sql, id)
	if err == nil && len(jobs) == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	return jobs[0], nil
}

// getOdd reads as much as it can of a row that cannot be read as a whole.
func (s *desk) getOdd(ctx context.Context, id string) (*JobInfo, error) {
	j, err := s.queryJob(ctx, sqlGetBare, id, false)
	if err != nil {
		return nil, err
	}
	_, err = pg.ReadAll(ctx, s.pool, func(row pgx.CollectableRow) (none struct{}, err error) {
		var part, value, why string
		switch err := row.Scan(&part, &value, &why); {
		case err != nil:
			return none, err
		case why != "":
			j.unreadable(part, why)
		default:
			j.readPart(part, value)
		}
		return none, nil
	}, sqlParts, id)
	switch {
	case pg.RowsFault(err) && ctx.Err() == nil:
		j.unreadable("args, errors, metadata, retry, tags", pg.Refusal(err))
	case err != nil:
		return nil, err
	}
	return j, nil
}

// sqlList keeps the order in which drover_list finds the jobs, and returns the cursor of each. sqlListBare returns
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

// listOdd reads a page with rows that cannot be read as a whole. It reads these rows part by part.
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
	// The rows are read one by one. A row whose text is too large to send costs a second at each try, and halving
	// would try it often.
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

// scanJobInfo reads jobInfoColumns, then jobInfoParts if parts is set, and the columns after them into more.
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
		if at != nil && (at.Year() < 0 || at.Year() > 9999) { // in the local time zone, though not in UTC
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

func (s *desk) counts(ctx context.Context) ([]QueueCount, error) {
	return pg.ReadAll(ctx, s.pool, func(row pgx.CollectableRow) (QueueCount, error) {
		var c QueueCount
		err := row.Scan(&c.Queue, &c.State, &c.Jobs, &c.OldestDue)
		return c, err
	}, sqlCounts)
}

const sqlCount = `select drover_count($1::jsonb)`

func (s *desk) count(ctx context.Context, filter string) (int64, error) {
	list, err := pg.ReadAll(ctx, s.pool, pgx.RowTo[int64], sqlCount, filter)
	if err != nil {
		return 0, err
	}
	return list[0], nil
}

const sqlSummary = `
select queue, kind, reason, coalesce(class, ''), coalesce(fingerprint, ''), jobs,
	least(greatest(first_discarded_at, '0001-01-02+00'), '9999-12-30+00'), least(greatest(last_discarded_at, '0001-01-02+00'), '9999-12-30+00'),
	coalesce(newest_error, ''), newest_id
from discarded_summary order by jobs desc, queue, kind, reason, class, fingerprint`

// summary makes the view use its index. Without statistics, the planner would rather read the table.
func (s *desk) summary(ctx context.Context) ([]DiscardedGroup, error) {
	return pg.ReadOnePlan(ctx, s.pool, pgx.RowToStructByPos[DiscardedGroup], sqlSummary)
}

const sqlRedrive = stateBefore + `drover_redrive($1, $2, $3::jsonb, by => $4, why => $5) from was`

func (s *desk) redrive(ctx context.Context, id string, opts *RedriveOpts, audit Audit) (was State, found bool, err error) {
	was, found, err = s.verb(ctx, sqlRedrive, aJob, id, audit, positive(opts.MaxAttempts), pg.OrNull(string(opts.ArgsPatch)), audit.by(), audit.Why)
	return was, found, patchFault(err)
}

// patchFault turns an error of a verb that patches args into an *InvalidError, if the job's own args are no object.
func patchFault(err error) error {
	var server *pgconn.PgError
	if errors.As(err, &server) && server.Code == "22023" { // invalid parameter: everything else was checked before
		return &InvalidError{Field: "ArgsPatch", Reason: pg.Refusal(err), Err: err}
	}
	return err
}

// stateBefore reads the state of job $1 and locks its row, by primary key, before one of the functions changes it.
// The functions return only the state after the change.
const (
	stateBefore = `with was as materialized (select state from jobs where id = $1 for update) select state, `
	sqlCancel   = stateBefore + `drover_cancel($1, $2, $3) from was`
	sqlDiscard  = stateBefore + `drover_discard($1, $2, $3) from was`
)

// verb runs one of these functions, and returns the state that the job was in.
func (s *desk) verb(ctx context.Context, sql string, of subject, id string, audit Audit, args ...any) (was State, found bool, err error) {
	err = s.pool.InTx(ctx, func(tx pgx.Tx) error {
		if err := audit.requireSeen(ctx, tx, of, id); err != nil {
			return err
		}
		err := tx.QueryRow(ctx, sql, append([]any{id}, args...)...).Scan(&was, nil)
		if found = err == nil; errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return pg.Classify(err)
	})
	return was, found, namesField(err)
}

// sqlEdit returns the job's state before the edit.
const sqlEdit = stateBefore + `(drover_edit($1, $2::jsonb, why => $3, by => $4)).changed from was`

func (s *desk) edit(ctx context.Context, id, edit string, audit Audit) (was State, changed bool, err error) {
	err = s.pool.InTx(ctx, func(tx pgx.Tx) error {
		if err := audit.requireSeen(ctx, tx, aJob, id); err != nil {
			return err
		}
		err := tx.QueryRow(ctx, sqlEdit, id, edit, audit.Why, audit.by()).Scan(&was, &changed)
		if errors.Is(err, pgx.ErrNoRows) {
			return ErrNotFound
		}
		return pg.Classify(err)
	})
	return was, changed, namesField(patchFault(err))
}

// sqlRerun also returns the queue and the kind, from the row of the old job.
const sqlRerun = `select drover_rerun(id, why => $2, by => $3, new_id => $4), queue, kind from jobs where id = $1`

// rerun returns the id of the new job, its queue and its kind. The id is as; if as is empty, the SQL function makes
// one.
func (s *desk) rerun(ctx context.Context, id, as string, audit Audit) (made, queue, kind string, err error) {
	err = s.pool.InTx(ctx, func(tx pgx.Tx) error {
		if err := audit.requireSeen(ctx, tx, aJob, id); err != nil {
			return err
		}
		var name *string // null if the job was deleted while the function waited for its row
		err := tx.QueryRow(ctx, sqlRerun, id, audit.Why, audit.by(), pg.OrNull(as)).Scan(&name, &queue, &kind)
		switch {
		case errors.Is(err, pgx.ErrNoRows), err == nil && name == nil:
			return ErrNotFound
		case err != nil:
			return pg.Classify(err)
		}
		made = *name
		return nil
	})
	return made, queue, kind, namesField(err)
}

// The statements that change many jobs, one batch each. $1 is the filter, $2 where to go on, $3 whether to wait
// for rows that other transactions have locked, $4 and $5 who does it and why, and $6 the edit.
const (
	sqlCancelMany  = `select changed, running, locked, last, refused::text, ids from drover_cancel_many($1::jsonb, after => $2, wait => $3, by => $4, why => $5)`
	sqlDiscardMany = `select changed, running, locked, last, refused::text, ids from drover_discard_many($1::jsonb, after => $2, wait => $3, by => $4, why => $5)`
	sqlEditMany    = `select changed, null::text[], locked, last, refused::text, ids from drover_edit_many($1::jsonb, $6::jsonb, after => $2, wait => $3, by => $4, why => $5)`
	sqlDeleteMany  = `select changed, null::text[], locked, last, refused::text, ids from drover_delete_many($1::jsonb, 'delete', after => $2, wait => $3, by => $4, why => $5)`
)

// bulkBatch is what one batch did.
type bulkBatch struct {
	changed int
	ids     []string // of the changed jobs
	running []string // the changed jobs that were running
	locked  []string // jobs that other transactions have locked
	refused []Refusal
	last    *string // where the next batch goes on; nil at the end
}

// bulk runs one batch. more are the parameters that only this verb has.
func (s *desk) bulk(ctx context.Context, sql, filter, after string, wait bool, audit Audit, more ...any) (b bulkBatch, err error) {
	args := append([]any{filter, after, wait, audit.by(), audit.Why}, more...)
	err = s.pool.InTx(ctx, func(tx pgx.Tx) error {
		var refused string
		if _, err := tx.Exec(ctx, pg.ConstraintsNow); err != nil { // so that no refusal follows the line in the log
			return pg.Classify(err)
		}
		if err := tx.QueryRow(ctx, sql, args...).Scan(&b.changed, &b.running, &b.locked, &b.last, &refused, &b.ids); err != nil {
			return pg.Classify(err)
		}
		return json.Unmarshal([]byte(refused), &b.refused)
	})
	return b, err
}

const sqlSeek = `select coalesce(ids, '{}'), last from drover_seek($1::jsonb, $2, $3)`

// seek lists the jobs that the next batch of a verb would change, and returns where the batch after that goes on.
func (s *desk) seek(ctx context.Context, verb, filter, after string) (ids []string, last *string, err error) {
	err = s.pool.QueryRow(ctx, sqlSeek, filter, verb, after).Scan(&ids, &last)
	return ids, last, pg.Classify(err)
}

const sqlUnknown = `select drover_unknown($1::jsonb)`

// unknown lists the ids in the filter that no job has.
func (s *desk) unknown(ctx context.Context, filter string) ([]string, error) {
	rows, err := s.pool.Query(ctx, sqlUnknown, filter)
	if err != nil {
		return nil, pg.Classify(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return ids, pg.Classify(err)
}

const sqlBudgets = `
select scope, retries, extract(epoch from per)::float8, burst, mode = 'discard', reserved, free, next_free from retry_budgets order by scope`

func (s *desk) budgets(ctx context.Context) ([]BudgetInfo, error) {
	return pg.ReadAll(ctx, s.pool, func(row pgx.CollectableRow) (BudgetInfo, error) {
		var b BudgetInfo
		var per float64
		err := row.Scan(&b.Scope, &b.Retries, &per, &b.Burst, &b.Discard, &b.Reserved, &b.Free, &b.NextFree)
		b.Per = pg.Seconds(per).Truncate(time.Millisecond)
		return b, err
	}, sqlBudgets)
}
