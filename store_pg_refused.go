package drover

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

// head is a job that a claim would take.
type head struct {
	id, queue, kind string
	claimSeq        int
	lane            int16
	nth             int // of its lane
}

func (s session) heads(ctx context.Context, req *claimRequest, last bool, bound time.Duration) (heads []head, err error) {
	var p pipeline
	sql := sqlClaimHeads
	switch {
	case last:
		sql = sqlClaimTails
	case req.but:
		sql = sqlClaimHeadsBut
	}
	p.Begin()
	p.Bound(bound)
	p.Query(func(rows pgx.Rows) error {
		var h head
		err := rows.Scan(&h.id, &h.claimSeq, &h.queue, &h.kind, &h.lane)
		heads = append(heads, h)
		return err
	}, sql, req.args()...)
	p.Commit()
	return heads, p.Send(ctx, s.conn)
}

// claimThese claims certain jobs.
func (s session) claimThese(ctx context.Context, req *claimRequest, ids []string, bound time.Duration, reply *claimReply) error {
	var p pipeline
	p.Begin()
	p.Bound(bound)
	p.claimed(reply, sqlClaimThese, req.supervisor, req.epoch, req.kinds, ids, req.queues, req.belowLane)
	p.Commit()
	p.Call(func() { reply.committed = true })
	return p.Send(ctx, s.conn)
}

// givenUp is a job that the database refuses to hand out or to settle.
type givenUp struct {
	path, owner, id string // owner is empty if the job waits
	seq             int
	why             error
	later           bool // put it off rather than discard it
	aside           bool // leave its row as it is: what was in the way may pass
}

// setAside is what became of a job whose row cannot be changed.
const setAside = "set aside"

// giveUp returns what became of the job: a state, setAside, or nothing if the job has changed meanwhile.
func (s session) giveUp(ctx context.Context, g *givenUp, bound time.Duration) (became string, err error) {
	if !g.aside {
		var p pipeline
		p.Begin()
		p.Bound(bound)
		p.Query(func(rows pgx.Rows) error { return rows.Scan(&became) }, sqlGiveUp, g.path, g.owner, g.id, g.seq, g.words(), pg.SQLState(g.why), g.later)
		p.Commit()
		if err = p.Send(ctx, s.conn); err == nil || !pg.RowsFault(err) || s.conn.IsClosed() {
			return became, err
		}
	}
	return setAside, s.setAside(ctx, g.path, g.id, g.why) // not even reading its row works
}

func (g *givenUp) words() string { return refusalText(g.why) }

// refusalText is an error's text as drover_set_aside and errors hold it.
func refusalText(why error) string {
	text, _ := pgtext.Sanitize(pg.Refusal(why), 1000)
	return text
}

func (s session) setAside(ctx context.Context, path, id string, why error) error {
	var p pipeline
	p.Begin()
	p.Exec(nil, sqlSetAside, path, id, refusalText(why), pg.SQLState(why))
	p.Commit()
	return p.Send(ctx, s.conn)
}

// asideMost is how many rows of a path are read at most.
const asideMost = 1000

// asideJob is a job that is set aside.
type asideJob struct {
	id     string
	due    bool // to be tried again, by a supervisor of its queue and kind
	strong bool // it may only run alone
}

func (s session) aside(ctx context.Context, queues, kinds []string) (jobs []asideJob, err error) {
	var p pipeline
	p.Begin()
	p.Exec(nil, sqlForgetAside, pathClaim)
	p.Query(func(rows pgx.Rows) error {
		var j asideJob
		err := rows.Scan(&j.id, &j.due, &j.strong)
		jobs = append(jobs, j)
		return err
	}, sqlAside, queues, kinds, asideMost)
	p.Commit()
	return jobs, p.Send(ctx, s.conn)
}

// tryAside reports whether this process may try the job again.
func (s session) tryAside(ctx context.Context, path, id string) (bool, error) {
	var p pipeline
	var n int64
	p.Begin()
	p.Exec(&n, sqlTryAside, path, id)
	p.Commit()
	return n == 1, p.Send(ctx, s.conn)
}

// passed takes jobs that went through off the list.
func (s session) passed(ctx context.Context, path string, ids []string) error {
	var p pipeline
	p.Begin()
	p.Exec(nil, sqlNoLongerAside, path, ids)
	p.Commit()
	return p.Send(ctx, s.conn)
}
