package drover

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/health"
)

// snapshot reads the supervisors and the counts, then has a look at the health.
func (s *store) snapshot(ctx context.Context) (*Snapshot, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, classify(err)
	}
	defer conn.Release()
	snap := &Snapshot{Counts: []QueueCount{}, Supervisors: []SupervisorInfo{}, Limits: []Limit{}, Findings: []Finding{}}
	if err := s.readWhole(ctx, conn.Conn(), snap); err != nil {
		return nil, err
	}
	report, err := health.Look(ctx, conn.Conn(), health.Quick)
	if err = classify(err); err != nil {
		if errors.Is(err, ErrReadOnly) {
			closeConn(ctx, conn.Conn()) // as a pipeline does
		}
		return nil, err
	}
	for _, f := range report.Findings {
		if f.Level != health.LevelOK {
			snap.Findings = append(snap.Findings, Finding(f))
		}
	}
	return snap, nil
}

// readWhole reads all but the findings. A small table is counted as it is, a large one by sqlDepths.
func (s *store) readWhole(ctx context.Context, conn *pgx.Conn, snap *Snapshot) error {
	var pages int64
	var first pipeline
	first.exec(nil, sqlBeginReading)
	first.exec(nil, sqlPlainText)
	first.query(func(rows pgx.Rows) error { return rows.Scan(&snap.At, &pages) }, sqlJobsPages)
	first.query(snap.readSupervisor, sqlSupervisors)
	first.query(func(rows pgx.Rows) error {
		l, err := readLimit(rows)
		snap.Limits = append(snap.Limits, l)
		return err
	}, sqlLimits)
	first.commit()
	if err := first.send(ctx, conn); err != nil {
		return err
	}
	var second pipeline
	second.exec(nil, sqlBeginReading)
	if pages <= smallTable {
		second.exec(nil, sqlPlainText)
		second.query(snap.readCount, sqlCounts)
	} else {
		second.exec(nil, sqlOnePlan)
		second.query(snap.readCount, sqlDepths, laneDepth, min(100, 100*float64(samplePages)/float64(pages)))
	}
	second.commit()
	return second.send(ctx, conn)
}

func (snap *Snapshot) readSupervisor(rows pgx.Rows) error {
	var i SupervisorInfo
	err := rows.Scan(&i.ID, &i.Host, &i.PID, &i.Build, &i.Queues, &i.State, &i.BeatAt, &i.InFlight, &i.Slots, &i.LeaseMS)
	snap.Supervisors = append(snap.Supervisors, i)
	return err
}

func (snap *Snapshot) readCount(rows pgx.Rows) error {
	var c QueueCount
	err := rows.Scan(&c.Queue, &c.State, &c.Jobs, &c.Estimated, &c.OldestDue)
	snap.Counts = append(snap.Counts, c)
	return err
}

const (
	smallTable  = 1000 // pages of the table, usually 8 kB each: to read that many takes a few milliseconds
	laneDepth   = 500  // unfinished jobs of a lane, or discarded jobs of a queue, that are counted in a larger table
	samplePages = 200  // of which the rest is estimated
	clockDepth  = 1000 // jobs of a lane that are counted because they wait for the server's clock
)

const sqlJobsPages = `select now(), pg_relation_size('jobs') / current_setting('block_size')::int`

// sqlSupervisors reads the whole table, which has one row for each supervisor.
const sqlSupervisors = `
select id, host, pid, build, queues,
	case when lost_at is not null then 'lost'
		when beat_at < now() - least(lease_ms, 1000000000000) * interval '1 ms' then 'silent'
		when draining then 'draining' else 'alive' end,
	least(greatest(beat_at, '0001-01-02+00'), '9999-12-30+00'), cardinality(in_flight),
	(select least(coalesce(sum((value #>> '{}')::numeric), 0), 1000000000)::bigint from jsonb_each(slots) where jsonb_typeof(value) = 'number'), lease_ms
from drover_supervisors order by started_at, id`

// sqlCounts reads the whole table.
const sqlCounts = `
select queue, state, jobs, false, case when oldest_due is not null then least(greatest(oldest_due, '0001-01-02+00'), '9999-12-30+00') end
from job_counts order by queue, state`

// sqlDepths counts at most $1 unfinished jobs of each lane by jobs_claim_idx, and at most $1 discarded jobs of each queue
// by jobs_discarded_groups_idx. Both indexes lead from one queue to the next without a look at the jobs between them. Where
// it stops counting, and for the completed and the cancelled, which have no index, it estimates from a sample of the
// table's pages, $2 percent of them. They are the same pages each time, so that an estimate does not jump. The server's
// statistics of the two columns together would be finer, but only the owner may read them, and they come with an ANALYZE.
const sqlDepths = `
with recursive lanes(queue, lane) as (
	(select queue, lane from jobs where finalized_at is null order by queue, lane limit 1)
	union all
	select j.queue, j.lane from lanes l cross join lateral (
		select queue, lane from jobs where finalized_at is null and (queue, lane) > (l.queue, l.lane) order by queue, lane limit 1
	) j
), first as materialized (
	select l.queue, l.lane, j.state, j.jobs, j.oldest from lanes l cross join lateral (
		select state, count(*) as jobs, min(scheduled_at) filter (where state <> 'running' and scheduled_at <= now()) as oldest from (
			select state, scheduled_at from jobs where finalized_at is null and queue = l.queue and lane = l.lane order by scheduled_at, id limit $1
		) j group by state
	) j
), oldest as materialized (
	select l.queue, j.state, j.scheduled_at as oldest from lanes l cross join lateral (
		select state, scheduled_at from jobs
		where finalized_at is null and state <> 'running' and queue = l.queue and lane = l.lane and scheduled_at <= now() order by scheduled_at, id limit 1
	) j
	union all
	select queue, state, oldest from first where oldest is not null
), dead(queue) as (
	(select queue from jobs where discard_reason is not null order by queue, kind limit 1)
	union all
	select j.queue from dead d cross join lateral (
		select queue from jobs where discard_reason is not null and queue > d.queue order by queue, kind limit 1
	) j
), counted as materialized (
	select queue, state, sum(jobs)::bigint as jobs from first group by queue, state
	union all
	select d.queue, 'discarded', (select count(*) from (
		select from jobs j where j.discard_reason is not null and j.queue = d.queue order by j.queue, j.kind limit $1) j) from dead d
), beyond as materialized (
	select queue, false as dead from first group by queue, lane having sum(jobs) >= $1
	union
	select queue, true from counted where state = 'discarded' and jobs >= $1
), sampled as materialized (
	select queue, state, round(count(*) * 100 / $2::float8)::bigint as jobs from jobs tablesample system ($2::float8) repeatable (1) group by queue, state
), depths as (
	select queue, state, coalesce(c.jobs, 0) as counted, coalesce(s.jobs, 0) as sampled,
		state in ('completed', 'cancelled') or exists (select from beyond b where b.queue = k.queue and b.dead = (k.state = 'discarded')) as estimated
	from (select queue, state from counted union select queue, state from sampled) k
	left join counted c using (queue, state) left join sampled s using (queue, state)
)
select queue, state, case when estimated then greatest(counted, sampled) else counted end, estimated,
	(select least(greatest(min(o.oldest), '0001-01-02+00'), '9999-12-30+00') from oldest o where o.queue = d.queue and o.state = d.state having count(*) > 0)
from depths d where counted > 0 or estimated
order by queue, state`

// sqlClock returns how many jobs wait because the server's clock has gone back; it counts at most $1 of each lane.
const sqlClock = `select waiting from drover_clock($1)`

func (s *store) waitForClock(ctx context.Context, conn *pgx.Conn, bound time.Duration) (waits int64, err error) {
	var p pipeline
	p.begin()
	p.exec(nil, sqlBoundPlan, bound.Milliseconds())
	p.query(func(rows pgx.Rows) error { return rows.Scan(&waits) }, sqlClock, clockDepth)
	p.commit()
	return waits, p.send(ctx, conn)
}
