package drover

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/fingerprint"
	"github.com/drover-queue/drover/internal/pg"
)

// Failure groups, as operators see and change them. Supervisors add them up: internal/store/failures.go.

// failureColumns moves times into the years that Go and JSON can hold.
const failureColumns = `
select fingerprint, kind, class, error_type, sample,
	least(greatest(first_seen, '0001-01-01 00:00:00Z'), '9999-12-31 00:00:00Z'), least(greatest(last_seen, '0001-01-01 00:00:00Z'), '9999-12-31 00:00:00Z'),
	count, jobs, last_job, status,
	case when resolved_at is not null then least(greatest(resolved_at, '0001-01-01 00:00:00Z'), '9999-12-31 00:00:00Z') end, case when regressed_at is not null then least(greatest(regressed_at, '0001-01-01 00:00:00Z'), '9999-12-31 00:00:00Z') end,
	regressions, coalesce(policy, ''), coalesce(park_build, ''),
	case when updated_at is not null then least(greatest(updated_at, '0001-01-01 00:00:00Z'), '9999-12-31 00:00:00Z') end, updated_by, updated_why, discarded, parked,
	drover_hours(hours, last_seen, now(), 0)`

// sqlFailures reads the whole table, which is small. The view counts the discarded jobs of the groups within the limit.
const sqlFailures = failureColumns + `, '' from failures
where ($1 = '' or kind = $1) and ($2 = '' or status = $2) and (not $4 or regressions > 0) order by last_seen desc, fingerprint limit $3`

func (s *desk) failures(ctx context.Context, f FailureFilter) ([]FailureGroup, error) {
	return pg.ReadAll(ctx, s.pool, scanFailure, sqlFailures, f.Kind, string(f.Status), f.Limit, f.Regressed)
}

const sqlFailure = failureColumns + `, drover_seen('failure', fingerprint) from failures where fingerprint = $1`

func (s *desk) failure(ctx context.Context, group string) (*FailureGroup, error) {
	if !fingerprint.Valid(group) {
		return nil, ErrNotFound
	}
	groups, err := pg.ReadAll(ctx, s.pool, scanFailure, sqlFailure, group)
	if err == nil && len(groups) == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	return &groups[0], nil
}

func scanFailure(row pgx.CollectableRow) (g FailureGroup, err error) {
	err = row.Scan(&g.Fingerprint, &g.Kind, &g.Class, &g.ErrorType, &g.Sample, &g.FirstSeen, &g.LastSeen, &g.Count, &g.Jobs, &g.LastJobID,
		&g.Status, &g.ResolvedAt, &g.RegressedAt, &g.Regressions, &g.Policy.Action, &g.Policy.Build, &g.UpdatedAt, &g.UpdatedBy, &g.UpdatedWhy,
		&g.Discarded, &g.Parked, &g.Hourly, &g.Seen)
	slices.Reverse(g.Hourly)
	return g, err
}

const sqlFailureStatus = `select drover_failure_status($1, $2, by => $3, why => $4) is not null`

func (s *desk) setFailureStatus(ctx context.Context, group string, status FailureStatus, audit Audit) error {
	return s.changeFailure(ctx, group, audit, sqlFailureStatus, group, string(status), audit.by(), audit.Why)
}

const sqlFailurePolicy = `select drover_failure_policy($1, $2, build => $3, by => $4, why => $5)`

func (s *desk) setFailurePolicy(ctx context.Context, group string, policy FailurePolicy, audit Audit) error {
	return s.changeFailure(ctx, group, audit, sqlFailurePolicy, group, pg.OrNull(string(policy.Action)), pg.OrNull(policy.Build), audit.by(), audit.Why)
}

// changeFailure calls a function that reports whether the group exists.
func (s *desk) changeFailure(ctx context.Context, group string, audit Audit, sql string, args ...any) error {
	if !fingerprint.Valid(group) {
		return ErrNotFound
	}
	return s.pool.InTx(ctx, func(tx pgx.Tx) error {
		if err := audit.requireSeen(ctx, tx, aFailure, group); err != nil {
			return err
		}
		var found bool
		if err := tx.QueryRow(ctx, sql, args...).Scan(&found); err != nil {
			return pg.Classify(err)
		}
		if !found {
			return ErrNotFound
		}
		return nil
	})
}
