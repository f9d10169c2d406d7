package drover

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// What operators do: through the same SQL functions and views that psql has.

// jobInfoColumns are a job as people want to see it; it is joined with its kind's and its queue's policies.
const (
	jobInfoColumns = `
select j.id, j.queue, j.kind, j.state, j.priority, j.attempt, coalesce(j.max_attempts, k.max_attempts, q.max_attempts, 20),
	case when j.scheduled_at = 'infinity' then j.created_at else j.scheduled_at end, j.created_at, j.attempted_at, j.finalized_at,
	coalesce(j.claimed_by, ''), coalesce(j.discard_reason, ''), j.crashes, j.redrives, coalesce(j.snoozes, 0), j.errors_total,
	j.errors::text, j.args::text, coalesce(j.retry::text, ''), j.tags, coalesce(j.metadata::text, ''), coalesce(j.concurrency_key, '')`
	jobInfoPolicies = `
left join kinds k on k.kind = j.kind
left join queues q on q.name = j.queue
`
)

// sqlGet stands apart from sqlList: one plan for both would be one that walks the table.
const sqlGet = jobInfoColumns + ` from jobs j` + jobInfoPolicies + `where j.id = $1`

func (s *store) get(ctx context.Context, id string) (*JobInfo, error) {
	rows, err := s.pool.Query(ctx, sqlGet, id)
	if err != nil {
		return nil, classify(err)
	}
	job, err := pgx.CollectOneRow(rows, func(row pgx.CollectableRow) (*JobInfo, error) { return scanJobInfo(row) })
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, ErrNotFound
	}
	return job, classify(err)
}

// sqlList keeps the order in which drover_list finds them, and tells where each stands.
const sqlList = jobInfoColumns + `, drover_cursor($1::jsonb, j.finalized_at, j.id)
from drover_list($1::jsonb, $2, $3) with ordinality as j` + jobInfoPolicies + `order by j.ordinality`

func (s *store) list(ctx context.Context, filter, after string, limit int) (jobs []JobInfo, cursors []string, err error) {
	rows, err := s.pool.Query(ctx, sqlList, filter, after, limit)
	if err != nil {
		return nil, nil, classify(err)
	}
	jobs, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (JobInfo, error) {
		var cursor string
		job, err := scanJobInfo(row, &cursor)
		cursors = append(cursors, cursor)
		return *job, err
	})
	return jobs, cursors, classify(err)
}

// scanJobInfo reads jobInfoColumns and what stands behind them.
func scanJobInfo(row pgx.CollectableRow, more ...any) (*JobInfo, error) {
	var j JobInfo
	var errs, args, retry, metadata string
	err := row.Scan(append([]any{
		&j.ID, &j.Queue, &j.Kind, &j.State, &j.Priority, &j.Attempt, &j.MaxAttempts, &j.ScheduledAt, &j.CreatedAt,
		&j.AttemptedAt, &j.FinalizedAt, &j.ClaimedBy, &j.DiscardReason, &j.Crashes, &j.Redrives, &j.Snoozes, &j.ErrorsTotal,
		&errs, &args, &retry, &j.Tags, &metadata, &j.ConcurrencyKey,
	}, more...)...)
	if err != nil {
		return &j, err
	}
	j.Args, j.Retry, j.Metadata = raw(args), raw(retry), raw(metadata)
	return &j, json.Unmarshal([]byte(errs), &j.Errors)
}

// raw is JSON text, nil if empty.
func raw(text string) json.RawMessage {
	if text == "" {
		return nil
	}
	return json.RawMessage(text)
}

const sqlCounts = `select queue, state, jobs, oldest_due from job_counts order by queue, state`

func (s *store) counts(ctx context.Context) ([]Count, error) {
	rows, err := s.pool.Query(ctx, sqlCounts)
	if err != nil {
		return nil, classify(err)
	}
	counts, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Count, error) {
		var c Count
		err := row.Scan(&c.Queue, &c.State, &c.Jobs, &c.OldestDue)
		return c, err
	})
	return counts, classify(err)
}

const sqlCount = `select drover_count($1::jsonb)`

func (s *store) count(ctx context.Context, filter string) (n int64, err error) {
	err = s.pool.QueryRow(ctx, sqlCount, filter).Scan(&n)
	return n, classify(err)
}

const sqlSummary = `
select queue, kind, reason, coalesce(class, ''), coalesce(fingerprint, ''), jobs, first_discarded_at, last_discarded_at,
	coalesce(newest_error, ''), newest_id
from discarded_summary order by jobs desc, queue, kind, reason, class, fingerprint`

// summary holds the view to its index: without statistics the planner would rather read the table.
func (s *store) summary(ctx context.Context) (groups []DiscardedGroup, err error) {
	err = s.inTx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, sqlOnePlan); err != nil {
			return classify(err)
		}
		rows, err := tx.Query(ctx, sqlSummary)
		if err != nil {
			return classify(err)
		}
		groups, err = pgx.CollectRows(rows, pgx.RowToStructByPos[DiscardedGroup])
		return classify(err)
	})
	return groups, err
}

const sqlRedrive = `select drover_redrive($1, $2, $3::jsonb)`

func (s *store) redrive(ctx context.Context, id string, opts *RedriveOpts) (was State, found bool, err error) {
	was, found, err = s.verb(ctx, sqlRedrive, id, positive(opts.MaxAttempts), orNull(string(opts.ArgsPatch)))
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "22023" { // invalid parameter: the job's own args are no object
		err = &InvalidError{Field: "ArgsPatch", Reason: refusal(err), Err: err}
	}
	return was, found, err
}

const (
	sqlCancel  = `select drover_cancel($1, $2)`
	sqlDiscard = `select drover_discard($1, $2)`
)

// verb calls a function that tells the state a job was in, null for no such job.
func (s *store) verb(ctx context.Context, sql string, args ...any) (was State, found bool, err error) {
	err = s.inTx(ctx, func(tx pgx.Tx) error {
		var state *string
		if err := tx.QueryRow(ctx, sql, args...).Scan(&state); err != nil {
			return classify(err)
		}
		if found = state != nil; found {
			was = State(*state)
		}
		return nil
	})
	return was, found, err
}

// The verbs over many jobs, a batch at a time: $1 the filter, $2 why, $3 where to go on, $4 whether to wait for rows that
// others hold.
const (
	sqlCancelMany  = `select changed, running, locked, last from drover_cancel_many($1::jsonb, $2, $3, wait => $4)`
	sqlDiscardMany = `select changed, running, locked, last from drover_discard_many($1::jsonb, $2, $3, wait => $4)`
	sqlDeleteMany  = `select changed, null::text[], locked, last from drover_delete_many($1::jsonb, $2, $3, wait => $4)`
)

// bulkBatch is what one batch did.
type bulkBatch struct {
	changed int
	running []string // of those changed
	locked  []string // others hold them
	last    *string  // where the next batch goes on; nil at the end
}

func (s *store) bulk(ctx context.Context, sql, filter, why, after string, wait bool) (b bulkBatch, err error) {
	err = s.inTx(ctx, func(tx pgx.Tx) error {
		return classify(tx.QueryRow(ctx, sql, filter, why, after, wait).Scan(&b.changed, &b.running, &b.locked, &b.last))
	})
	return b, err
}

const sqlUnknown = `select drover_unknown($1::jsonb)`

// unknown lists those of the filter's ids that no job has.
func (s *store) unknown(ctx context.Context, filter string) ([]string, error) {
	rows, err := s.pool.Query(ctx, sqlUnknown, filter)
	if err != nil {
		return nil, classify(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return ids, classify(err)
}
