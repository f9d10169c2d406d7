package drover

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"
)

// What operators do: through the same SQL functions and views that psql has.

// sqlList walks the primary key downwards; a filter for discarded jobs is served by jobs_discarded_idx instead
// where the planner finds that cheaper.
const sqlList = `
select j.id, j.queue, j.kind, j.state, j.priority, j.attempt, coalesce(j.max_attempts, k.max_attempts, q.max_attempts, 20),
	case when j.scheduled_at = 'infinity' then j.created_at else j.scheduled_at end, j.created_at, j.attempted_at, j.finalized_at,
	coalesce(j.claimed_by, ''), coalesce(j.discard_reason, ''), j.crashes, j.redrives, coalesce(j.snoozes, 0), j.errors_total,
	j.errors::text, j.args::text, coalesce(j.retry::text, ''), j.tags, coalesce(j.metadata::text, '')
from jobs j
left join kinds k on k.kind = j.kind
left join queues q on q.name = j.queue
where ($1 = '' or j.id = $1) and ($2 = '' or j.queue = $2) and ($3 = '' or j.kind = $3) and ($4 = '' or j.state = $4)
	and ($5 = '' or j.discard_reason = $5) and ($6 = '' or j.errors->-1->>'error' ilike '%' || $6 || '%')
	and ($7 = '' or $7 = any(j.tags)) and ($8 = '' or j.id < $8)
order by j.id desc limit $9`

type listQuery struct {
	id, after string
	filter    Filter
	limit     int
}

func (s *store) list(ctx context.Context, q listQuery) ([]JobInfo, error) {
	f := q.filter
	rows, err := s.pool.Query(ctx, sqlList, q.id, f.Queue, f.Kind, string(f.State), f.Reason, likeLiteral(f.Error), f.Tag, q.after, q.limit)
	if err != nil {
		return nil, classify(err)
	}
	jobs, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (JobInfo, error) {
		var j JobInfo
		var errs, args, retry, metadata string
		err := row.Scan(&j.ID, &j.Queue, &j.Kind, &j.State, &j.Priority, &j.Attempt, &j.MaxAttempts, &j.ScheduledAt, &j.CreatedAt,
			&j.AttemptedAt, &j.FinalizedAt, &j.ClaimedBy, &j.DiscardReason, &j.Crashes, &j.Redrives, &j.Snoozes, &j.ErrorsTotal,
			&errs, &args, &retry, &j.Tags, &metadata)
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

// likeLiteral escapes what like would read as a pattern.
func likeLiteral(s string) string {
	var out []byte
	for i := range len(s) {
		if s[i] == '\\' || s[i] == '%' || s[i] == '_' {
			out = append(out, '\\')
		}
		out = append(out, s[i])
	}
	return string(out)
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
	return s.verb(ctx, sqlRedrive, id, positive(opts.MaxAttempts), orNull(string(opts.ArgsPatch)))
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

const sqlDeleteCompleted = `select last, deleted from drover_prune($1, $2, null, 1000)`

func (s *store) deleteCompleted(ctx context.Context, cutoff time.Time) (total int64, err error) {
	for after := ""; ; {
		var last *string
		var deleted int64
		err := s.inTx(ctx, func(tx pgx.Tx) error {
			return tx.QueryRow(ctx, sqlDeleteCompleted, after, cutoff).Scan(&last, &deleted)
		})
		total += deleted
		if err != nil || last == nil {
			return total, classify(err)
		}
		after = *last
	}
}
