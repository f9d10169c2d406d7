package drover

import (
	"context"
	"encoding/json"
	"errors"
	"time"

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
	jobs, err := s.jobInfos(ctx, sqlGet, id)
	if err != nil {
		return nil, err
	}
	if len(jobs) == 0 {
		return nil, ErrNotFound
	}
	return &jobs[0], nil
}

// sqlList walks the primary key downwards, or what else serves the filter.
const sqlList = jobInfoColumns + ` from drover_list($1::jsonb, $2, $3) j` + jobInfoPolicies + `order by j.id desc`

func (s *store) list(ctx context.Context, filter, after string, limit int) ([]JobInfo, error) {
	return s.jobInfos(ctx, sqlList, filter, after, limit)
}

func (s *store) jobInfos(ctx context.Context, sql string, args ...any) ([]JobInfo, error) {
	rows, err := s.pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, classify(err)
	}
	jobs, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (JobInfo, error) {
		var j JobInfo
		var errs, args, retry, metadata string
		err := row.Scan(&j.ID, &j.Queue, &j.Kind, &j.State, &j.Priority, &j.Attempt, &j.MaxAttempts, &j.ScheduledAt, &j.CreatedAt,
			&j.AttemptedAt, &j.FinalizedAt, &j.ClaimedBy, &j.DiscardReason, &j.Crashes, &j.Redrives, &j.Snoozes, &j.ErrorsTotal,
			&errs, &args, &retry, &j.Tags, &metadata, &j.ConcurrencyKey)
		if err != nil {
			return j, err
		}
		j.Args, j.Retry, j.Metadata = raw(args), raw(retry), raw(metadata)
		return j, json.Unmarshal([]byte(errs), &j.Errors)
	})
	return jobs, classify(err)
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

const sqlRedrive = `select drover_redrive($1, $2, $3::jsonb)`

func (s *store) redrive(ctx context.Context, id string, opts *RedriveOpts) (was State, found bool, err error) {
	was, found, err = s.verb(ctx, sqlRedrive, id, positive(opts.MaxAttempts), orNull(string(opts.ArgsPatch)))
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "22023" { // invalid parameter: the job's own args are no object
		err = &InvalidError{Field: "ArgsPatch", Reason: pg.Message, Err: err}
	}
	return was, found, err
}

const sqlCancel = `select drover_cancel($1, $2)`

func (s *store) cancel(ctx context.Context, id, reason string) (was State, found bool, err error) {
	return s.verb(ctx, sqlCancel, id, reason)
}

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

const sqlDeleteCompleted = `select last, deleted from drover_prune($1, $2, null, 1000, whole => true)`

func (s *store) deleteCompleted(ctx context.Context, cutoff time.Time) (total int64, err error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return 0, classify(err)
	}
	defer conn.Release()
	for after := ""; ; {
		var p pipeline
		var last *string
		var deleted int64
		p.begin()
		p.exec(nil, sqlOnePlan)
		p.query(func(rows pgx.Rows) error { return rows.Scan(&last, &deleted) }, sqlDeleteCompleted, after, cutoff)
		p.commit()
		if err := p.send(ctx, conn.Conn()); err != nil {
			return total, err
		}
		total += deleted
		if last == nil {
			return total, nil
		}
		after = *last
	}
}
