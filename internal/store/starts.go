package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// SQLStart records that jobs $1 of supervisor $3 start. The supervisor sends it before it calls the handlers, and only
// for jobs with a single attempt, which must not run again after a crash. $2 and $4 are the claim_seq and the time of
// each claim. The update can be HOT.
//
// The CTE "me" finds no row after the supervisor has lost its lease, so no start is recorded then. A rescuer first
// declares the supervisor lost, and has to wait for the lock of "me" to do so. Then the rescuer reads which jobs have
// started. So a job without a recorded start cannot get one afterwards, and another supervisor may run it.
const SQLStart = `
with me as materialized (
	select from drover_supervisors where id = $3 and lost_at is null for key share
), held as materialized (
	select id from jobs
	where exists (select from me) and id = any($1) and claimed_by = $3 and state = 'running'
		and ((id, claim_seq, attempted_at) in (select unnest($1::text[]), unnest($2::int[]), unnest($4::timestamptz[]))) is true
	order by id for update skip locked
)
update jobs set started_seq = claim_seq
where id = any(array(select id from held))
returning id, attempted_at`

// Start records that jobs start. It returns the jobs whose start was recorded, each with the time of its claim. If the
// reply ends before the commit, Start returns no jobs.
func (s Session) Start(ctx context.Context, list []Fence, bound time.Duration) (noted map[string]time.Time, err error) {
	byOwner := map[string][]Fence{}
	for _, f := range list {
		byOwner[f.Owner] = append(byOwner[f.Owner], f)
	}
	var p pipeline
	read := map[string]time.Time{} // no start counts before the commit, because the database may refuse the commit
	p.Begin()
	p.BoundPlan(bound)
	for owner, some := range byOwner {
		ids, at := Claims(some)
		p.Query(func(rows pgx.Rows) error {
			var id string
			var at time.Time
			err := rows.Scan(&id, &at)
			read[id] = at
			return err
		}, SQLStart, ids, column(some, func(f *Fence) int32 { return int32(f.Seq) }), owner, at) //nolint:gosec // from the column
	}
	p.Commit()
	p.Call(func() { noted = read })
	err = p.Send(ctx, s.Conn)
	return noted, err
}
