package store

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/blame"
	"github.com/drover-queue/drover/internal/pg"
)

// sqlJudge records the evidence that the death of the lost supervisor $1 gives. $2 is the highest crash count among the
// jobs that had started at that supervisor. $3 is one less than the number of these jobs. The first rescuer that has
// seen all of these jobs records the evidence for all rescuers. A later rescuer would see fewer jobs, because some are
// already freed.
//
// The column mass is true if another process died at about the same time: the last sign of life of that process came
// less than two thirds of a lease before or after the last sign of this process. A whole lease would be too much,
// because one job may kill two processes in succession. The rescuers find the first process dead a lease after its last
// beat. If the job then kills a second process immediately, the last beat of the second process came up to a sixth of a
// lease before its death. These two deaths are not a mass, because the job has to answer for both. A process that died
// a little later may not be declared lost yet. So the statement also counts a process that has been silent for a third
// of a lease. The column shared is true if another supervisor ran in the same process.
const (
	sqlJudge = `
insert into drover_ended_supervisors (id, process, host, pid, started_at, ended_at, died, draining, degree, beside, mass, shared)
select s.id, s.process, s.host, s.pid, s.started_at, s.at, true, s.draining, $2, $3,
	exists (select from drover_ended_supervisors o
		where o.died and not o.draining and o.id <> s.id and coalesce(o.process, o.id) <> coalesce(s.process, s.id)
			and case when isfinite(o.ended_at) then abs(extract(epoch from o.ended_at - s.at)) * 1000 < s.ms * 2 / 3 end)
	or exists (select from drover_supervisors o
		where not o.draining and o.id <> s.id and coalesce(o.process, o.id) <> coalesce(s.process, s.id)
			and (o.lost_at is not null or o.beat_at < now() - least(o.lease_ms, 1000000000000) / 3 * interval '1 ms')
			and case when isfinite(o.beat_at) then abs(extract(epoch from o.beat_at - s.at)) * 1000 < s.ms * 2 / 3 end),
	exists (select from drover_supervisors o where o.id <> s.id and o.process = s.process)
	or exists (select from drover_ended_supervisors o where o.id <> s.id and o.process = s.process and o.ended_at > s.at - s.ms * interval '1 ms')
from (
	select *, case when isfinite(beat_at) then beat_at else now() end as at, least(lease_ms, 1000000000000) as ms
	from drover_supervisors where id = $1
	order by epoch desc limit 1
) s
on conflict (id) do nothing`

	sqlVerdict = `select draining, mass, shared, degree, beside, died from drover_ended_supervisors where id = $1`

	sqlForgetEnded = `
delete from drover_ended_supervisors where id in (select id from drover_ended_supervisors where ended_at < now() - interval '1 day' order by id for update skip locked)`
)

// Verdict returns the evidence that a rescuer has recorded about the death of supervisor id. The result died is false
// if no rescuer has recorded the death, or if a death was taken back because the supervisor lives.
func (s Session) Verdict(ctx context.Context, id string) (d blame.Death, died bool, err error) {
	err = s.inTx(ctx, func(p *pipeline) { p.verdict(id, &d, &died) })
	return d, died, err
}

func (p *pipeline) verdict(id string, d *blame.Death, died *bool) {
	p.Query(func(rows pgx.Rows) error {
		return rows.Scan(&d.Draining, &d.Mass, &d.Shared, &d.Degree, &d.Beside, died)
	}, sqlVerdict, id)
}

// Judge returns the evidence that the death of supervisor id gives, as the first rescuer has recorded it. The parameter
// d is the evidence that the calling rescuer has seen. Judge records d if no rescuer has recorded evidence before.
// Judge also deletes the records of supervisors that ended more than a day ago.
func (s Session) Judge(ctx context.Context, id string, d blame.Death) (blame.Death, error) {
	var died bool
	err := s.inTx(ctx, func(p *pipeline) {
		p.Exec(nil, sqlForgetEnded)
		p.Exec(nil, sqlJudge, id, d.Degree, d.Beside)
		p.verdict(id, &d, &died)
	})
	return d, err
}

// sqlBackground counts the deaths within the last $2 (an interval) of which no job is the recorded cause. It leaves out
// the deaths of the supervisors $1. It also adds up how long processes ran within that interval.
const sqlBackground = `
select count(*) filter (where died and not draining and explained_by is null and id <> all($1)),
	coalesce(sum(extract(epoch from least(ended_at, now()) - least(greatest(started_at, now() - $2::interval), ended_at, now()))), 0)::float8
from (
	select id, started_at, ended_at, died, draining, explained_by from drover_ended_supervisors
	union all
	select id, started_at, now(), false, draining, null from drover_supervisors where lost_at is null
) p
where ended_at > now() - $2::interval`

// Background returns how many deaths within the last blame.HistoryWindow have no job as their recorded cause, and for
// how long processes ran within that window. It does not count the deaths of the supervisors in the parameter except.
func (s Session) Background(ctx context.Context, except []string) (b blame.Background, err error) {
	var ran float64
	err = s.inTx(ctx, func(p *pipeline) {
		p.Query(func(rows pgx.Rows) error { return rows.Scan(&b.Deaths, &ran) }, sqlBackground, except, pg.Interval(blame.HistoryWindow))
	})
	b.Ran = pg.Seconds(ran)
	return b, err
}

// sqlBlame records against which jobs a death counts. sqlExplain records which job counts as the cause of deaths. Both
// run after the settle in the same transaction, and skip jobs that the settle did not change.
const (
	sqlBlame = `
update drover_ended_supervisors set blamed = blamed || array(select id from jobs where id = any($2) and errors->-1->>'class' = 'crash' and errors->-1->>'supervisor' = $1)
where id = $1`
	sqlExplain = `
update drover_ended_supervisors set explained_by = $2 where id = any($1) and exists (select from jobs where id = $2 and (discard_reason = 'crashed') is true)`
)

// Freeing has the outcomes of jobs of one dead supervisor, and says which jobs get the blame for its death.
type Freeing struct {
	Owner     string
	Changes   []Change
	Blamed    []string            // jobs that the death counts against
	Explained map[string][]string // for each quarantined job: the supervisors whose deaths it has caused
	Bound     time.Duration       // how long each statement may take
}

// Free settles the jobs and records the blame in one transaction. With two transactions, one of them could fail after
// the other has committed. A job would then be blamed that is not settled, or a job would be settled without its blame.
// No rescuer looks at a settled job again. Free returns the new state of each job that it settled.
func (s Session) Free(ctx context.Context, f *Freeing) (settled map[string]State, err error) {
	settled = map[string]State{}
	err = s.inTx(ctx, func(p *pipeline) {
		p.Exec(nil, SQLSettlePlan)
		p.Exec(nil, pg.Bound, f.Bound.Milliseconds())
		p.settle(settled, f.Owner, f.Changes)
		if len(f.Blamed) > 0 {
			p.Exec(nil, sqlBlame, f.Owner, f.Blamed)
		}
		for _, job := range slices.Sorted(maps.Keys(f.Explained)) {
			p.Exec(nil, sqlExplain, f.Explained[job], job)
		}
	})
	return settled, err
}

// sqlTakeSolo takes the turn to run strong suspects, unless another living supervisor has it. Another supervisor takes
// the turn only after the holder of the turn has lost its lease. The claims of the holder are fenced by then, so the
// holder claims no more jobs.
const (
	sqlTakeSolo = `
update drover_solo set supervisor = $1, taken_at = now()
where supervisor is null or supervisor = $1 or not exists (select from drover_supervisors s where s.id = drover_solo.supervisor and s.lost_at is null)`
	sqlReleaseSolo = `update drover_solo set supervisor = null where supervisor = $1`
)

// TakeSolo takes the turn to run strong suspects. It returns false if another living supervisor has it.
func (s Session) TakeSolo(ctx context.Context, id string) (bool, error) {
	n, err := s.exec(ctx, sqlTakeSolo, id)
	return n == 1, err
}

// ReleaseSolo frees the turn to run strong suspects, if the supervisor has it.
func (s Session) ReleaseSolo(ctx context.Context, id string) error {
	_, err := s.exec(ctx, sqlReleaseSolo, id)
	return err
}
