package drover

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/pg"
)

// Limits on what may start. The functions of migrations/00017_limits.sql write them, as they do for psql.

const (
	sqlPause  = `select drover_pause($1, coalesce($2::timestamptz, 'infinity'), $3, $4)`
	sqlResume = `select drover_resume($1, $2, $3)`

	sqlUnconfirmed = `select drover_unconfirmed($1)`
)

// pause returns the number of the change.
func (s *desk) pause(ctx context.Context, scope Scope, until *time.Time, audit Audit) (number int64, err error) {
	err = s.pool.InTx(ctx, func(tx pgx.Tx) error {
		if err := audit.requireSeen(ctx, tx, aPause, string(scope)); err != nil {
			return err
		}
		return tx.QueryRow(ctx, sqlPause, string(scope), until, audit.by(), audit.Why).Scan(&number)
	})
	return number, pg.Classify(err)
}

// resume reports whether the scope was paused.
func (s *desk) resume(ctx context.Context, scope Scope, audit Audit) (paused bool, err error) {
	err = s.pool.InTx(ctx, func(tx pgx.Tx) error {
		if err := audit.requireSeen(ctx, tx, aPause, string(scope)); err != nil {
			return err
		}
		return tx.QueryRow(ctx, sqlResume, string(scope), audit.by(), audit.Why).Scan(&paused)
	})
	return paused, pg.Classify(err)
}

// unconfirmed returns the supervisors that may not follow a change yet.
func (s *desk) unconfirmed(ctx context.Context, number int64) (ids []string, err error) {
	err = s.pool.QueryRow(ctx, sqlUnconfirmed, number).Scan(&ids)
	return ids, pg.Classify(err)
}

// sqlPauses reads a table with a row for each scope that was ever paused.
const sqlPauses = `
select scope, greatest(held_at, '0001-01-01 00:00:00Z'), case when held_until < 'infinity' then least(held_until, '9999-12-31 00:00:00Z') end,
	unconfirmed, updated_by, updated_why, least(greatest(updated_at, '0001-01-01 00:00:00Z'), '9999-12-31 00:00:00Z'), drover_seen('pause', scope)
from job_limits order by scope limit $1`

// mostPauses bounds what Pauses and Snapshot list.
const mostPauses = 1000

func readPause(row pgx.CollectableRow) (p PauseInfo, err error) {
	err = row.Scan(&p.Scope, &p.Since, &p.Until, &p.Unconfirmed, &p.By, &p.Why, &p.UpdatedAt, &p.Seen)
	return p, err
}

func (s *desk) pauses(ctx context.Context) ([]PauseInfo, error) {
	return pg.ReadAll(ctx, s.pool, readPause, sqlPauses, mostPauses)
}
