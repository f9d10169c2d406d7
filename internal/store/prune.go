package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/pg"
)

// SQLRetain is a step of the pruner. If it fails, sqlRetainNext lists the jobs of the step, and sqlRetainThese prunes
// some of them. sqlFollowUps tries once more to enqueue follow-ups that were set aside.
const (
	SQLRetain      = `select last, deleted, archived, refused, odd, follow_ups from drover_retain($1, $2::interval, $3::interval, $4, $5)`
	sqlRetainNext  = `select ids, odd from drover_retain_next($1, $2::interval, $3::interval, $4, $5)`
	sqlRetainThese = `select deleted, archived, refused from drover_retain_these($1, $2::interval, $3::interval, $4)`
	sqlFollowUps   = `select made, refused from drover_follow_up_again($1)`
)

// retainTimeout bounds a step of the pruner. A trigger of the application may hang at some row. After the time-out the
// pruner looks for that row.
const retainTimeout = 30 * time.Second

// Retained is what one step of the pruner did. Last is the last id that it read, "" at the end of the walk.
type Retained struct {
	Last              string
	Odd               bool // the step has read ids that are larger than every ULID of today
	Deleted, Archived int64
	Refused           []RefusedRow
	FollowUps         []string // jobs whose follow-ups should be tried again
}

// RefusedRow is a job that an SQL function has set aside. If ID is empty, the row is an error that no job has caused.
type RefusedRow struct {
	ID    string `json:"id"`
	Error string `json:"error"`
	Code  string `json:"code"`
	Path  string `json:"path"`
}

// Keeping is how long the supervisor that prunes keeps completed and cancelled jobs whose queue has no retention of its
// own. The values are texts of SQL intervals. Nil means that these jobs are kept for ever.
type Keeping struct{ Completed, Cancelled *string }

// Retain looks at the next batch of ids after the given id. It deletes or archives the jobs among them whose retention
// is over. If the parameter whole is true, it also walks ids that are larger than every ULID of today.
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

// RetainNext returns the ids that Retain walks next, and whether some of them are larger than every ULID of today.
func (s Session) RetainNext(ctx context.Context, after string, keep Keeping, whole bool, batch int) (ids []string, odd bool, err error) {
	err = s.pruning(ctx, func(rows pgx.Rows) error { return rows.Scan(&ids, &odd) },
		sqlRetainNext, after, keep.Completed, keep.Cancelled, batch, whole)
	return ids, odd, err
}

// RetainThese does the same as Retain for the jobs with these ids, and for no others. If surplus is not nil, the
// retention does not matter: RetainThese deletes or archives the jobs that were completed or discarded before that
// time.
func (s Session) RetainThese(ctx context.Context, ids []string, keep Keeping, surplus *time.Time) (step Retained, err error) {
	err = s.pruning(ctx, func(rows pgx.Rows) error { return rows.Scan(&step.Deleted, &step.Archived, &step.Refused) },
		sqlRetainThese, ids, keep.Completed, keep.Cancelled, surplus)
	return step, err
}

// These statements are for retention by count. No index serves them, because each completion would have to write to
// that index. So the statements read the whole table in steps, by its primary key.
const (
	sqlKeptCounts = `
select name, coalesce(keep_completed, 0), coalesce(keep_discarded, 0), coalesce(keep_archived, 0), statement_timestamp()
from queues where num_nonnulls(keep_completed, keep_discarded, keep_archived) > 0`

	sqlEndedJobs     = endedFrom + `jobs` + endedStep
	sqlEndedArchived = endedFrom + `jobs_archive` + endedStep
	endedFrom        = `
with step as materialized (
	select id, queue, kind, state, finalized_at from `
	endedStep = ` where id > $1 order by id limit $2
)
select id, queue, kind, state = 'discarded', extract(epoch from finalized_at)::float8 from step
where state in ('completed', 'discarded') and finalized_at is not null and queue = any($3)
union all select max(id), '', '', false, null from step having count(*) = $2`

	sqlRetainArchived = `select deleted, refused from drover_retain_archived($1, $2)`
)

// KeptCount is how many ended jobs of each kind a queue keeps; 0: all. At is the server's time. The fields are the
// columns of sqlKeptCounts, in their order.
type KeptCount struct {
	Queue                          string
	Completed, Discarded, Archived int
	At                             time.Time
}

// KeptCounts returns the queues that have a retention by count.
func (s Session) KeptCounts(ctx context.Context) (all []KeptCount, err error) {
	err = s.pruning(ctx, pg.Into(&all, pgx.RowToStructByPos[KeptCount]), sqlKeptCounts)
	return all, err
}

// EndedJob is a job that was completed or discarded.
type EndedJob struct {
	ID, Queue, Kind string
	Discarded       bool
	EndedAt         float64 // seconds since 1970
}

// Ended reads the next batch of rows after the given id. Among these rows it returns the completed and discarded jobs
// of the given queues. It also returns the last id of the batch; "": the table has no more rows. If the parameter
// archive is true, it reads jobs_archive instead of jobs.
func (s Session) Ended(ctx context.Context, archive bool, after string, batch int, queues []string) (ended []EndedJob, last string, err error) {
	sql := sqlEndedJobs
	if archive {
		sql = sqlEndedArchived
	}
	err = s.pruning(ctx, func(rows pgx.Rows) error {
		var e EndedJob
		var at *float64
		switch err := rows.Scan(&e.ID, &e.Queue, &e.Kind, &e.Discarded, &at); {
		case err != nil:
			return err
		case at == nil:
			last = e.ID
		default:
			e.EndedAt = *at
			ended = append(ended, e)
		}
		return nil
	}, sql, after, batch, queues)
	return ended, last, err
}

// RetainArchived deletes these jobs from the archive for ever, if they ended before the given time.
func (s Session) RetainArchived(ctx context.Context, ids []string, before time.Time) (step Retained, err error) {
	err = s.pruning(ctx, func(rows pgx.Rows) error { return rows.Scan(&step.Deleted, &step.Refused) }, sqlRetainArchived, ids, before)
	return step, err
}

// FollowUpsAgain tries again to enqueue the follow-ups of these jobs. These follow-ups were set aside, and
// FollowUpsAgain skips a follow-up until it is time for another try. It returns how many follow-ups it enqueued, and
// which follow-ups were refused again.
func (s Session) FollowUpsAgain(ctx context.Context, ids []string) (made int64, refused []RefusedRow, err error) {
	err = s.pruning(ctx, func(rows pgx.Rows) error { return rows.Scan(&made, &refused) }, sqlFollowUps, ids)
	return made, refused, err
}

// pruning runs one statement of the pruner in a transaction.
func (s Session) pruning(ctx context.Context, read func(pgx.Rows) error, sql string, args ...any) error {
	return s.inTx(ctx, func(p *pipeline) {
		p.BoundPlan(retainTimeout)
		p.Exec(nil, pg.ConstraintsNow)
		p.Query(read, sql, args...)
	})
}
