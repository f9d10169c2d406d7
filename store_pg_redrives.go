package drover

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/pg"
)

// Redrives. The work is in the SQL functions of migrations/00012_redrives.sql, because psql does the same.

const (
	sqlStartRedrive   = `select drover_redrive_start($1::jsonb)`
	sqlMarkRedrive    = `select drover_redrive_mark($1)`
	sqlPreviewRedrive = `select queue, kind, coalesce(reason, ''), coalesce(fingerprint, ''), jobs, expired, held, unkeyed, coalesce(error, '') from drover_redrive_preview($1::jsonb)`
	sqlPauseRedrive   = `select drover_redrive_pause($1, $2, by => $3, why => $4)`
	sqlAbortRedrive   = `select drover_redrive_abort($1, by => $2, why => $3)`

	// sqlRedrives moves times into the years that Go and JSON can hold.
	sqlRedrives = `
select id, state, paused_at is not null, filter::text, rate::float8, coalesce(per_key, 0), matched, released, skipped, unkeyed, skips::text,
	started_by, why, changed_by, changed_why, note,
	least(greatest(created_at, '0001-01-01 00:00:00Z'), '9999-12-31 00:00:00Z'), case when finished_at is not null then least(greatest(finished_at, '0001-01-01 00:00:00Z'), '9999-12-31 00:00:00Z') end,
	case when changed_at is not null then least(greatest(changed_at, '0001-01-01 00:00:00Z'), '9999-12-31 00:00:00Z') end, coalesce(drover_seen('redrive', id), ''),
	coalesce(key_from, ''), coalesce(max_jobs, 0), canary, canary_failures
from drover_redrives `
	sqlGetRedrive   = sqlRedrives + `where id = $1`
	sqlListRedrives = sqlRedrives + `order by id desc limit $1`
)

func (s *desk) startRedrive(ctx context.Context, plan string) (id string, err error) {
	err = s.pool.InTx(ctx, func(tx pgx.Tx) error { return tx.QueryRow(ctx, sqlStartRedrive, plan).Scan(&id) })
	return id, pg.Classify(err)
}

// markPause is how long markRedrive waits before it looks again at a redrive that is still marking. A supervisor may
// be marking its jobs, or a locked row may hold it up.
const markPause = 20 * time.Millisecond

// markRedrive marks a redrive's jobs, batch by batch, together with the supervisors.
func (s *desk) markRedrive(ctx context.Context, id string) (*Redrive, error) {
	for {
		err := s.pool.InTx(ctx, func(tx pgx.Tx) error {
			var err error
			for _, sql := range []string{pg.OnePlan, pg.ConstraintsNow} {
				if _, err = tx.Exec(ctx, sql); err != nil {
					return err
				}
			}
			_, err = tx.Exec(ctx, sqlMarkRedrive, id)
			return err
		})
		if err != nil {
			return nil, pg.Classify(err)
		}
		before, err := s.getRedrive(ctx, id)
		if err != nil || before.State != RedriveMarking || before.Paused {
			return before, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(markPause):
		}
	}
}

func (s *desk) previewRedrive(ctx context.Context, plan string) ([]RedriveGroup, error) {
	return pg.ReadAll(ctx, s.pool, pgx.RowToStructByPos[RedriveGroup], sqlPreviewRedrive, plan)
}

func (s *desk) getRedrive(ctx context.Context, id string) (*Redrive, error) {
	list, err := s.redrives(ctx, sqlGetRedrive, id)
	if err == nil && len(list) == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	return &list[0], nil
}

// sqlRedriveJobs reads at most $2 jobs of redrive $1 by jobs_redrive_idx. A job that the redrive has not made due yet
// has the redrive's mark: see drover_redrive_judge.
// A job without the mark that was neither made due nor run since the redrive began was skipped, or the redrive was aborted
// before its turn.
const sqlRedriveJobs = `
select count(*) filter (where held), count(*) filter (where not held and state in ('available', 'scheduled', 'parked')), count(*) filter (where state = 'running'),
	count(*) filter (where state = 'retryable'), count(*) filter (where state = 'completed'), count(*) filter (where not held and state = 'discarded'),
	count(*) filter (where not held and state = 'cancelled'), count(*) filter (where state = 'left'), exists (select from jobs where redrive_id = $1 offset $2)
from (
	select held, case when not held and state in ('discarded', 'cancelled', 'parked')
		and coalesce(greatest(redriven_at, attempted_at) < (select created_at from drover_redrives where id = $1), true) then 'left' else state end as state
	from (
		select state, redriven_at, attempted_at, coalesce(paced_at is not null and (state = 'parked' and isfinite(paced_at) or finalized_at = paced_at), false) as held
		from jobs where redrive_id = $1 limit $2
	) j
) j`

const mostRedriveJobs = 10_000 // so many are counted at most

func (s *desk) redriveJobs(ctx context.Context, id string) (*RedriveJobs, error) {
	counts, err := pg.ReadOnePlan(ctx, s.pool, pgx.RowToAddrOfStructByPos[RedriveJobs], sqlRedriveJobs, id, mostRedriveJobs)
	if err != nil {
		return nil, err
	}
	return counts[0], nil
}

func (s *desk) listRedrives(ctx context.Context, limit int) ([]Redrive, error) {
	return s.redrives(ctx, sqlListRedrives, limit)
}

func (s *desk) redrives(ctx context.Context, sql string, arg any) ([]Redrive, error) {
	return pg.ReadAll(ctx, s.pool, scanRedrive, sql, arg)
}

// scanRedrive reads a row of sqlRedrives.
func scanRedrive(row pgx.CollectableRow) (r Redrive, err error) {
	var filter, skips string
	err = row.Scan(&r.ID, &r.State, &r.Paused, &filter, &r.Rate, &r.PerKey, &r.Matched, &r.Released, &r.Skipped, &r.Unkeyed, &skips,
		&r.By, &r.Why, &r.ChangedBy, &r.ChangedWhy, &r.Note, &r.CreatedAt, &r.FinishedAt, &r.ChangedAt, &r.Seen, &r.KeyFrom, &r.Limit, &r.Canary, &r.CanaryFailures)
	if err != nil {
		return r, err
	}
	if r.Filter, err = decodeFilter(filter); err != nil {
		r.Unreadable = "filter: " + err.Error()
	}
	if err = json.Unmarshal([]byte(skips), &r.Skips); err != nil {
		r.Skips = nil
		r.Unreadable = strings.TrimPrefix(r.Unreadable+"; skips: "+err.Error(), "; ")
	}
	return r, nil
}

func (s *desk) pauseRedrive(ctx context.Context, id string, pause bool, audit Audit) (RedriveState, error) {
	return s.redriveVerb(ctx, audit, sqlPauseRedrive, id, pause, audit.by(), audit.Why)
}

func (s *desk) abortRedrive(ctx context.Context, id string, audit Audit) (RedriveState, error) {
	return s.redriveVerb(ctx, audit, sqlAbortRedrive, id, audit.by(), audit.Why)
}

func (s *desk) redriveVerb(ctx context.Context, audit Audit, sql, id string, args ...any) (RedriveState, error) {
	var state *RedriveState
	err := s.pool.InTx(ctx, func(tx pgx.Tx) error {
		if err := audit.requireSeen(ctx, tx, aRedrive, id); err != nil {
			return err
		}
		return tx.QueryRow(ctx, sql, append([]any{id}, args...)...).Scan(&state)
	})
	if err == nil && state == nil {
		err = ErrNotFound
	}
	if err != nil {
		return "", pg.Classify(err)
	}
	return *state, nil
}
