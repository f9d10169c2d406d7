package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/pg"
)

const (
	SQLRetain      = `select last, deleted, archived, refused, odd, follow_ups from drover_retain($1, $2::interval, $3::interval, $4, $5)`
	sqlRetainNext  = `select ids, odd from drover_retain_next($1, $2::interval, $3::interval, $4, $5)`
	sqlRetainThese = `select deleted, archived, refused from drover_retain_these($1, $2::interval, $3::interval)`
	sqlFollowUps   = `select made, refused from drover_follow_up_again($1)`
)

// retainTimeout bounds a step of the pruner, so that a row on which a trigger waits or loops is found.
const retainTimeout = 30 * time.Second

// Retained is what one step of the pruner did; last is "" at the end of the walk.
type Retained struct {
	Last              string
	Odd               bool // it got to ids above every ULID of today
	Deleted, Archived int64
	Refused           []RefusedRow
	FollowUps         []string // jobs whose follow-up is to be tried again
}

// RefusedRow is a row that SQL set aside. If it has no id, it is an error that is no row's fault.
type RefusedRow struct {
	ID    string `json:"id"`
	Error string `json:"error"`
	Code  string `json:"code"`
	Path  string `json:"path"`
}

// Keeping is how long the supervisor that prunes keeps completed and cancelled jobs, as SQL reads it. Nil means for ever.
type Keeping struct{ Completed, Cancelled *string }

// Retain deletes or archives old final jobs among the next ids after the given one.
func (s Session) Retain(ctx context.Context, after string, keep Keeping, whole bool, batch int) (step Retained, err error) {
	var last *string
	err = s.pruning(ctx, func(rows pgx.Rows) error {
		return rows.Scan(&last, &step.Deleted, &step.Archived, &step.Refused, &step.Odd, &step.FollowUps)
	}, SQLRetain, after, keep.Completed, keep.Cancelled, batch, whole)
	if last != nil {
		step.Last = *last
	}
	return step, err
}

// RetainNext lists the ids that retain takes up next.
func (s Session) RetainNext(ctx context.Context, after string, keep Keeping, whole bool, batch int) (ids []string, odd bool, err error) {
	err = s.pruning(ctx, func(rows pgx.Rows) error { return rows.Scan(&ids, &odd) },
		sqlRetainNext, after, keep.Completed, keep.Cancelled, batch, whole)
	return ids, odd, err
}

// RetainThese is retain for these jobs alone.
func (s Session) RetainThese(ctx context.Context, ids []string, keep Keeping) (step Retained, err error) {
	err = s.pruning(ctx, func(rows pgx.Rows) error { return rows.Scan(&step.Deleted, &step.Archived, &step.Refused) },
		sqlRetainThese, ids, keep.Completed, keep.Cancelled)
	return step, err
}

// FollowUpsAgain enqueues follow-ups that were set aside.
func (s Session) FollowUpsAgain(ctx context.Context, ids []string) (made int64, refused []RefusedRow, err error) {
	err = s.pruning(ctx, func(rows pgx.Rows) error { return rows.Scan(&made, &refused) }, sqlFollowUps, ids)
	return made, refused, err
}

// pruning is one transaction of the pruner.
func (s Session) pruning(ctx context.Context, read func(pgx.Rows) error, sql string, args ...any) error {
	var p pipeline
	p.Begin()
	p.Exec(nil, pg.BoundPlan, retainTimeout.Milliseconds())
	p.Exec(nil, pg.ConstraintsNow)
	p.Query(read, sql, args...)
	p.Commit()
	return p.Send(ctx, s.Conn)
}
