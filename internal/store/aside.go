package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/pgtext"
)

// This file is about jobs that the database refuses to hand out or to settle. migrations/00010_jobs.sql has the table
// drover_set_aside and the functions that write to it.

const (
	// sqlClaimHeads lists the jobs that SQLClaim would take. sqlClaimTails lists up to five jobs from the end of each
	// lane. Both statements read only the index and short columns. Their row locks end with the transaction.
	sqlClaimHeads    = claimMe + claimDue + sqlHeadColumns
	sqlClaimHeadsBut = claimMe + claimDueBut + sqlHeadColumns
	sqlClaimTails    = claimMe + claimQueues + notAside + claimLastOnes + sqlHeadColumns
	sqlHeadColumns   = `
select id, claim_seq, queue, kind, lane from jobs where id = any(array(select id from due)) order by id`

	// sqlClaimThese claims the jobs $4, if they are still due, from the queues $5 and lanes below $6.
	sqlClaimThese = claimMe + `lateral (
		select id from jobs
		where id = any($4::text[])
			and (finalized_at is null and state <> 'running' and scheduled_at <= statement_timestamp() and kind = any($3) and queue = any($5) and lane < $6) is true
		order by id for update skip locked
	) j
)` + claimTake + claimAges + claimMore + `, null::float8
from me left join claimed c on true`

	// sqlGiveUp takes job $3 out of the way of other jobs, if claim $4 is still its last claim. If $2 is empty, the job
	// must be waiting. Otherwise $2 is the supervisor that owns the running job, and $8 is the time of the claim; null:
	// that time is not known. The time distinguishes the job from a later job with the same id: somebody may have deleted
	// the first job and enqueued another one.
	sqlGiveUp = `
select coalesce(drover_refuse($1, id, claim_seq, $5, $6, $7), '') from (
	select id, claim_seq from jobs
	where id = $3 and claim_seq = $4 and coalesce(claimed_by, '') = $2 and (finalized_at is null) is true
		and ($8::timestamptz is null or attempted_at = $8) for update skip locked
) j`
	sqlWriteLock = `lock table only jobs in row exclusive mode`
	sqlSetAside  = `select drover_set_aside($1, jsonb_build_array(jsonb_build_object('id', $2::text, 'error', $3::text, 'code', $4::text)))`

	// sqlAside lists the jobs that claims have set aside, and whether it is time to try each of them again. The jobs whose
	// time has come are first in the list. Otherwise a thousand jobs of queues and kinds that nobody serves could crowd
	// them out of the list. sqlForgetAside deletes the entries of jobs that have ended.
	sqlForgetAside = `
delete from drover_set_aside s where path = $1 and (select j.finalized_at is null from jobs j where j.id = s.job) is not true`
	sqlAside = `
select s.job, coalesce(s.retry_at <= clock_timestamp() and j.queue = any($1) and j.kind = any($2), false), coalesce(j.lane >= 30, false)
from drover_set_aside s left join lateral (select * from jobs j where j.id = s.job limit 1) j on true where s.path = 'claim' order by 2 desc, s.retry_at, s.job limit $3`

	// sqlTryAside makes sure that only one process makes the next try. Other processes do not try the job within the next
	// minute.
	sqlTryAside = `
update drover_set_aside set retry_at = clock_timestamp() + interval '1 minute' where path = $1 and job = $2 and retry_at <= clock_timestamp()`
	sqlNoLongerAside = `delete from drover_set_aside where path = $1 and job = any($2)`
)

// Head is a job that a claim would take.
type Head struct {
	ID, Queue, Kind string
	ClaimSeq        int
	Lane            int16
	Nth             int // the job's place in its lane, from 0; the claimer fills it in
}

// Candidates lists the jobs that the request would claim. If the parameter last is true, it lists up to five jobs from
// the other end of each lane, without the jobs that are set aside.
func (s Session) Candidates(ctx context.Context, req *ClaimRequest, last bool, bound time.Duration) (heads []Head, err error) {
	sql := sqlClaimHeads
	switch {
	case last:
		sql = sqlClaimTails
	case req.SkipSetAside:
		sql = sqlClaimHeadsBut
	}
	err = s.inTx(ctx, func(p *pipeline) {
		p.BoundPlan(bound)
		p.Query(func(rows pgx.Rows) error {
			var h Head
			err := rows.Scan(&h.ID, &h.ClaimSeq, &h.Queue, &h.Kind, &h.Lane)
			heads = append(heads, h)
			return err
		}, sql, req.Args()[:11]...)
	})
	return heads, err
}

// ClaimThese claims the jobs with these ids that are still due.
func (s Session) ClaimThese(ctx context.Context, req *ClaimRequest, ids []string, bound time.Duration, reply *ClaimReply) error {
	var p pipeline
	p.Begin()
	p.BoundPlan(bound)
	p.queueClaim(reply, sqlClaimThese, req.Supervisor, req.Epoch, req.Kinds, ids, req.Queues, req.BelowLane)
	p.Commit()
	p.Call(func() { reply.Committed = true })
	return p.Send(ctx, s.Conn)
}

// TableOpen returns an error if another session has locked the table jobs against writes, for example to create an
// index. No row is to blame for this error, even if it is a time-out. The parameter bound holds for TableOpen even on a
// new connection. Other statements wait for the lock already when the server prepares them, and no bound ends that.
func (s Session) TableOpen(ctx context.Context, bound time.Duration) error {
	err := s.inTx(ctx, func(p *pipeline) {
		p.BoundPlan(bound)
		p.Exec(nil, sqlWriteLock)
	})
	if pg.RowsFault(err) {
		return fmt.Errorf("the table jobs cannot be locked for a write: %v", err) //nolint:errorlint // as text, in which walks see no row's error
	}
	return err
}

// Refused is a job that the database refuses to hand out or to settle.
type Refused struct {
	Path  string
	Fence // Owner "": the job waits for a claim; ClaimedAt zero: the time of its claim is not known
	Why   error
	Later bool // Refuse makes the job due later instead of discarding it
	Aside bool // Refuse leaves the row as it is and sets the job aside, because the cause may go away
}

// SetAside is the result of Refuse for a job that it has set aside, because it could not change the job's row or should
// not change it.
const SetAside = "set aside"

// Refuse takes a job out of the way of other jobs: it discards the job, makes it due later or sets it aside. It returns
// the new state of the job or SetAside. It returns "" if the job's row no longer matches the fence, or is locked.
func (s Session) Refuse(ctx context.Context, g *Refused, bound time.Duration) (became string, err error) {
	if !g.Aside {
		err = s.inTx(ctx, func(p *pipeline) {
			p.BoundPlan(bound)
			p.Query(func(rows pgx.Rows) error { return rows.Scan(&became) }, sqlGiveUp, g.Path, g.Owner, g.ID, g.Seq, refusalText(g.Why), pg.SQLState(g.Why), g.Later,
				pgtype.Timestamptz{Time: g.ClaimedAt, Valid: !g.ClaimedAt.IsZero()})
		})
		if err == nil || !pg.RowsFault(err) || s.Conn.IsClosed() {
			return became, err
		}
	}
	if err = s.SetAside(ctx, g.Path, g.ID, g.Why); err != nil {
		return "", err
	}
	return SetAside, nil // because the caller asked for this, or because the row cannot be changed
}

// refusalText returns an error's text as drover_set_aside and the column errors hold it.
func refusalText(why error) string {
	text, _ := pgtext.Sanitize(pg.Refusal(why), 1000)
	return text
}

// SetAside lists a job in drover_set_aside. The parameter path is the step that the database refused, such as the
// claim, the settle or the rescue. After that every process skips the job in this step until it is time for another
// try.
func (s Session) SetAside(ctx context.Context, path, id string, why error) error {
	_, err := s.exec(ctx, sqlSetAside, path, id, refusalText(why), pg.SQLState(why))
	return err
}

// asideMost is how many jobs Aside returns at most.
const asideMost = 1000

// AsideJob is a job that is set aside, as a row of sqlAside.
type AsideJob struct {
	ID     string
	Due    bool // it is time for another try, and its queue and kind are ours
	Strong bool // a strong suspect, which may only run alone
}

// Aside deletes the entries of ended jobs on the path PathClaim, and returns up to asideMost of the jobs that are left
// on that path.
func (s Session) Aside(ctx context.Context, queues, kinds []string) (jobs []AsideJob, err error) {
	err = s.inTx(ctx, func(p *pipeline) {
		p.Exec(nil, pg.OnePlan)
		p.Exec(nil, sqlForgetAside, PathClaim)
		p.Query(pg.Into(&jobs, pgx.RowToStructByPos[AsideJob]), sqlAside, queues, kinds, asideMost)
	})
	return jobs, err
}

// TryAside reports whether this process may try the job again now. If the result is true, no other process tries the
// job for a minute.
func (s Session) TryAside(ctx context.Context, path, id string) (bool, error) {
	n, err := s.exec(ctx, sqlTryAside, path, id)
	return n == 1, err
}

// Passed takes jobs off the list of a path, because they were claimed, settled or rescued after all.
func (s Session) Passed(ctx context.Context, path string, ids []string) error {
	_, err := s.exec(ctx, sqlNoLongerAside, path, ids)
	return err
}

// These are values of drover_set_aside.path, the step that the database refused. The engine's pruner and the SQL
// functions use other values. PathSettle is for a settle by the job's own supervisor, and PathRescue for a settle by a
// rescuer.
const (
	PathClaim  = "claim"
	PathSettle = "settle"
	PathRescue = "rescue"
)
