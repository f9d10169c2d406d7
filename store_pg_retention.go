package drover

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/pg"
)

const (
	sqlRetain      = `select last, deleted, archived, refused, odd, follow_ups from drover_retain($1, $2::interval, $3::interval, $4, $5)`
	sqlRetainNext  = `select ids, odd from drover_retain_next($1, $2::interval, $3::interval, $4, $5)`
	sqlRetainThese = `select deleted, archived, refused from drover_retain_these($1, $2::interval, $3::interval)`
	sqlFollowUps   = `select made, refused from drover_follow_up_again($1)`
)

// retainTimeout bounds a step of the pruner, so that a row on which a trigger waits or loops is found.
const retainTimeout = 30 * time.Second

// retained is what one step of the pruner did; last is "" at the end of the walk.
type retained struct {
	last              string
	odd               bool // it got to ids above every ULID of today
	deleted, archived int64
	refused           []refusedRow
	followUps         []string // jobs whose follow-up is to be tried again
}

// refusedRow is a row that SQL set aside. If it has no id, it is an error that is no row's fault.
type refusedRow struct {
	ID    string `json:"id"`
	Error string `json:"error"`
	Code  string `json:"code"`
	Path  string `json:"path"`
}

// keeping is how long the supervisor that prunes keeps completed and cancelled jobs, as SQL reads it. Nil means for ever.
type keeping struct{ completed, cancelled *string }

// retain deletes or archives old final jobs among the next ids after the given one.
func (s session) retain(ctx context.Context, after string, keep keeping, whole bool, batch int) (step retained, err error) {
	var last *string
	err = s.pruning(ctx, func(rows pgx.Rows) error {
		return rows.Scan(&last, &step.deleted, &step.archived, &step.refused, &step.odd, &step.followUps)
	}, sqlRetain, after, keep.completed, keep.cancelled, batch, whole)
	if last != nil {
		step.last = *last
	}
	return step, err
}

// retainNext lists the ids that retain takes up next.
func (s session) retainNext(ctx context.Context, after string, keep keeping, whole bool, batch int) (ids []string, odd bool, err error) {
	err = s.pruning(ctx, func(rows pgx.Rows) error { return rows.Scan(&ids, &odd) },
		sqlRetainNext, after, keep.completed, keep.cancelled, batch, whole)
	return ids, odd, err
}

// retainThese is retain for these jobs alone.
func (s session) retainThese(ctx context.Context, ids []string, keep keeping) (step retained, err error) {
	err = s.pruning(ctx, func(rows pgx.Rows) error { return rows.Scan(&step.deleted, &step.archived, &step.refused) },
		sqlRetainThese, ids, keep.completed, keep.cancelled)
	return step, err
}

// followUpsAgain enqueues follow-ups that were set aside.
func (s session) followUpsAgain(ctx context.Context, ids []string) (made int64, refused []refusedRow, err error) {
	err = s.pruning(ctx, func(rows pgx.Rows) error { return rows.Scan(&made, &refused) }, sqlFollowUps, ids)
	return made, refused, err
}

// pruning is one transaction of the pruner.
func (s session) pruning(ctx context.Context, read func(pgx.Rows) error, sql string, args ...any) error {
	var p pipeline
	p.Begin()
	p.Exec(nil, pg.BoundPlan, retainTimeout.Milliseconds())
	p.Exec(nil, pg.ConstraintsNow)
	p.Query(read, sql, args...)
	p.Commit()
	return p.Send(ctx, s.conn)
}
