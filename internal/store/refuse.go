package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/pgtext"
)

// Jobs that the database refuses to hand out or to settle: migrations/00010_jobs.sql has the table drover_set_aside and the
// function that writes to it.

const (
	// sqlClaimHeads lists the jobs that sqlClaim would take. It reads only the index and the short columns. Its locks
	// end with its transaction.
	sqlClaimHeads    = claimMe + claimDue + sqlHeadColumns
	sqlClaimHeadsBut = claimMe + claimDueBut + sqlHeadColumns
	sqlClaimTails    = claimMe + claimQueues + notAside + claimLastOnes + sqlHeadColumns
	sqlHeadColumns   = `
select id, claim_seq, queue, kind, lane from jobs where id = any(array(select id from due)) order by id`

	// sqlClaimThese claims the jobs $4, if they are still due, from the queues $5.
	sqlClaimThese = claimMe + `lateral (
		select id from jobs
		where id = any($4::text[]) and finalized_at is null and state <> 'running' and scheduled_at <= statement_timestamp() and kind = any($3) and queue = any($5) and lane < $6
		order by id for update skip locked
	) j
)` + claimTake + `, null::float8
from me left join claimed c on true`

	// sqlGiveUp takes job $3 out of the way of others, if claim $4 is still its last: a job that waits if owner $2 is
	// empty, else a job that this owner runs.
	sqlGiveUp = `
select coalesce(drover_refuse($1, id, claim_seq, $5, $6, $7), '') from (
	select id, claim_seq from jobs
	where id = $3 and claim_seq = $4 and coalesce(claimed_by, '') = $2 and finalized_at is null for update skip locked
) j`
	sqlSetAside = `select drover_set_aside($1, jsonb_build_array(jsonb_build_object('id', $2::text, 'error', $3::text, 'code', $4::text)))`

	// sqlAside lists what is set aside on a path, and whether its pause is over. sqlForgetAside forgets jobs that
	// have ended.
	sqlForgetAside = `
delete from drover_set_aside s where path = $1 and not exists (select from jobs j where j.id = s.job and j.finalized_at is null)`
	sqlAside = `
select s.job, coalesce(s.retry_at <= clock_timestamp() and j.queue = any($1) and j.kind = any($2), false), coalesce(j.lane >= 30, false)
from drover_set_aside s left join jobs j on j.id = s.job where s.path = 'claim' order by s.retry_at, s.job limit $3`

	// sqlTryAside gives one process the next try.
	sqlTryAside = `
update drover_set_aside set retry_at = clock_timestamp() + interval '1 minute' where path = $1 and job = $2 and retry_at <= clock_timestamp()`
	sqlNoLongerAside = `delete from drover_set_aside where path = $1 and job = any($2)`
)

// Head is a job that a claim would take.
type Head struct {
	ID, Queue, Kind string
	ClaimSeq        int
	Lane            int16
	Nth             int // of its lane
}

func (s Session) Heads(ctx context.Context, req *ClaimRequest, last bool, bound time.Duration) (heads []Head, err error) {
	var p pipeline
	sql := sqlClaimHeads
	switch {
	case last:
		sql = sqlClaimTails
	case req.But:
		sql = sqlClaimHeadsBut
	}
	p.Begin()
	p.Bound(bound)
	p.Query(func(rows pgx.Rows) error {
		var h Head
		err := rows.Scan(&h.ID, &h.ClaimSeq, &h.Queue, &h.Kind, &h.Lane)
		heads = append(heads, h)
		return err
	}, sql, req.Args()...)
	p.Commit()
	return heads, p.Send(ctx, s.Conn)
}

// ClaimThese claims certain jobs.
func (s Session) ClaimThese(ctx context.Context, req *ClaimRequest, ids []string, bound time.Duration, reply *ClaimReply) error {
	var p pipeline
	p.Begin()
	p.Bound(bound)
	p.claimed(reply, sqlClaimThese, req.Supervisor, req.Epoch, req.Kinds, ids, req.Queues, req.BelowLane)
	p.Commit()
	p.Call(func() { reply.Committed = true })
	return p.Send(ctx, s.Conn)
}

// Refused is a job that the database refuses to hand out or to settle.
type Refused struct {
	Path, Owner, ID string // owner is empty if the job waits
	Seq             int
	Why             error
	Later           bool // put it off rather than discard it
	Aside           bool // leave its row as it is: what was in the way may pass
}

// SetAside is what became of a job whose row cannot be changed.
const SetAside = "set aside"

// GiveUp returns what became of the job: a state, setAside, or nothing if the job has changed meanwhile.
func (s Session) GiveUp(ctx context.Context, g *Refused, bound time.Duration) (became string, err error) {
	if !g.Aside {
		var p pipeline
		p.Begin()
		p.Bound(bound)
		p.Query(func(rows pgx.Rows) error { return rows.Scan(&became) }, sqlGiveUp, g.Path, g.Owner, g.ID, g.Seq, g.words(), pg.SQLState(g.Why), g.Later)
		p.Commit()
		if err = p.Send(ctx, s.Conn); err == nil || !pg.RowsFault(err) || s.Conn.IsClosed() {
			return became, err
		}
	}
	return SetAside, s.SetAside(ctx, g.Path, g.ID, g.Why) // not even reading its row works
}

func (g *Refused) words() string { return refusalText(g.Why) }

// refusalText is an error's text as drover_set_aside and errors hold it.
func refusalText(why error) string {
	text, _ := pgtext.Sanitize(pg.Refusal(why), 1000)
	return text
}

func (s Session) SetAside(ctx context.Context, path, id string, why error) error {
	var p pipeline
	p.Begin()
	p.Exec(nil, sqlSetAside, path, id, refusalText(why), pg.SQLState(why))
	p.Commit()
	return p.Send(ctx, s.Conn)
}

// asideMost is how many rows of a path are read at most.
const asideMost = 1000

// AsideJob is a job that is set aside.
type AsideJob struct {
	ID     string
	Due    bool // to be tried again, by a supervisor of its queue and kind
	Strong bool // it may only run alone
}

func (s Session) Aside(ctx context.Context, queues, kinds []string) (jobs []AsideJob, err error) {
	var p pipeline
	p.Begin()
	p.Exec(nil, sqlForgetAside, PathClaim)
	p.Query(func(rows pgx.Rows) error {
		var j AsideJob
		err := rows.Scan(&j.ID, &j.Due, &j.Strong)
		jobs = append(jobs, j)
		return err
	}, sqlAside, queues, kinds, asideMost)
	p.Commit()
	return jobs, p.Send(ctx, s.Conn)
}

// TryAside reports whether this process may try the job again.
func (s Session) TryAside(ctx context.Context, path, id string) (bool, error) {
	var p pipeline
	var n int64
	p.Begin()
	p.Exec(&n, sqlTryAside, path, id)
	p.Commit()
	return n == 1, p.Send(ctx, s.Conn)
}

// Passed takes jobs that went through off the list.
func (s Session) Passed(ctx context.Context, path string, ids []string) error {
	var p pipeline
	p.Begin()
	p.Exec(nil, sqlNoLongerAside, path, ids)
	p.Commit()
	return p.Send(ctx, s.Conn)
}

// The paths in drover_set_aside that belong to single jobs of a supervisor.
const (
	PathClaim  = "claim"
	PathSettle = "settle"
	PathRescue = "rescue"
)
