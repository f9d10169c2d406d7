package store

import (
	"context"
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
// lease before its death. So their last signs are at least five sixths of a lease apart. These two deaths are not a
// mass, because the job has to answer for both. A process that died a little later may not be declared lost yet. So the
// statement also counts a process that has been silent for a third of a lease. The column shared is true if another
// supervisor ran in the same process.
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

// sqlTakeBack takes back the crash that the supposed death of supervisor $1 has added to jobs $2. Drover uses it when
// that supervisor turns out to be alive. A job that was discarded because of this crash becomes retryable, except in
// two cases: the handler may have begun the job's only attempt, or another job has its unique key by now. Jobs whose
// rows another session has locked stay in the column blamed, for a later try.
const sqlTakeBack = `
with dead as materialized (
	select id from drover_ended_supervisors where id = $1 for update
), held as materialized (
	select j.id from jobs j where j.id = any($2) and exists (select from dead) order by j.id for update skip locked
), wronged as materialized (
	select j.id, j.discard_reason = 'crashed' and coalesce(j.max_attempts, k.max_attempts, q.max_attempts, 20) > 1
		and j.started_seq is distinct from j.claim_seq and drover_last_error(j.errors)->>'supervisor' = $1
		and (case when j.unique_scope = 'ended' then drover_unique_owner(j.unique_key, j.id) end) is null as back
	from jobs j left join drover_kinds k on k.kind = j.kind left join queues q on q.name = j.queue
	where j.id = any(array(select id from held))
), acquitted as (
	update jobs j set crashes = greatest(j.crashes - 1, 0), deaths = greatest(j.deaths - 1, 0),
		state = case when w.back then 'retryable' else j.state end,
		scheduled_at = case when w.back then clock_timestamp() else j.scheduled_at end,
		finalized_at = case when w.back then null else j.finalized_at end,
		discard_reason = case when w.back then null else j.discard_reason end,
		paced_at = case when w.back then null else j.paced_at end, -- the job leaves its redrive; back is null if it was not discarded
		errors = drover_append_error(j.errors, jsonb_build_object('at', now(), 'class', 'operator', 'supervisor', $1,
			'error', 'crash taken back: the process was not dead'))
	from wronged w where w.id = j.id and j.id = any(array(select id from held))
), done as materialized (
	select id from held
	union all
	select b from unnest($2::text[]) as b where (select true from jobs j where j.id = b) is null
)
update drover_ended_supervisors e set blamed = array(
	select b from unnest(e.blamed) with ordinality as x(b, n) where (b in (select id from done)) is not true order by n)
where e.id = $1`

const (
	// sqlBlamed is the first step when crashes are taken back. It records that the supervisor did not die, and returns the
	// jobs against which the death counts, in the order of their ids.
	sqlBlamed = `
with alive as (
	update drover_ended_supervisors set died = false, explained_by = null where id = $1 and (died or explained_by is not null)
)
select distinct b from drover_ended_supervisors, unnest(blamed) as b where id = $1 and b is not null order by b`

	sqlDropBlamed = `update drover_ended_supervisors set blamed = array(select b from unnest(blamed) as b where b <> $2) where id = $1`

	// sqlForgotten reports whether the rescue of supervisor $1 is over. It is over if the row of the supervisor is gone,
	// and none of its running jobs is set aside on path $2. Jobs that are set aside are freed by a full sweep, later. The
	// statement has a scalar subquery, so that the planner uses the primary key of jobs.
	sqlForgotten = `
select not exists (select from drover_supervisors where id = $1)
	and not exists (select from drover_set_aside a where a.path = $2 and (select j.state = 'running' and j.claimed_by = $1 from jobs j where j.id = a.job))`
)

// Blamed records that a supervisor did not die. It returns the jobs against which its death counts. The result all is
// false while the rescue goes on, because more jobs may follow.
func (s Session) Blamed(ctx context.Context, id string, bound time.Duration) (jobs []string, all bool, err error) {
	err = s.inTx(ctx, func(p *pipeline) {
		p.BoundPlan(bound)
		p.Query(func(rows pgx.Rows) error { return rows.Scan(&all) }, sqlForgotten, id, PathRescue)
		p.Query(pg.Into(&jobs, pgx.RowTo[string]), sqlBlamed, id)
	})
	if err != nil {
		return nil, false, err
	}
	return jobs, all, nil
}

// TakeBack takes back the crash that the supposed death of a living supervisor has added to jobs, in one transaction.
func (s Session) TakeBack(ctx context.Context, id string, jobs []string, bound time.Duration) error {
	return s.inTx(ctx, func(p *pipeline) {
		p.BoundPlan(bound)
		p.Exec(nil, sqlTakeBack, id, jobs)
	})
}

// LeaveBlame takes a job off the list of jobs against which the death of supervisor id counts. The job keeps its crash.
func (s Session) LeaveBlame(ctx context.Context, id, job string) error {
	_, err := s.exec(ctx, sqlDropBlamed, id, job)
	return err
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
