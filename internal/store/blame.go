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

// sqlJudge keeps what the death of a lost supervisor is evidence of: $2 is the highest crashes of the jobs that had
// started there, $3 how many had started beside each. The first rescuer that has seen all of them says so for all: one that comes
// later finds fewer. Mass: the last signs of life were within two thirds of a lease of each other. Not a whole one: a job
// whose first death is found a lease after the last beat, and that kills again at once, leaves a beat of up to a sixth
// of a lease before, and its own first death must not spare it. Of those that died after it some are not yet declared
// lost: silent for a third of a lease will do.
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

// Verdict returns what was decided about the death of supervisor id; died is false if nothing was.
func (s Session) Verdict(ctx context.Context, id string) (d blame.Death, died bool, err error) {
	var p pipeline
	p.Begin()
	p.verdict(id, &d, &died)
	p.Commit()
	return d, died, p.Send(ctx, s.Conn)
}

func (p *pipeline) verdict(id string, d *blame.Death, died *bool) {
	p.Query(func(rows pgx.Rows) error {
		return rows.Scan(&d.Draining, &d.Mass, &d.Shared, &d.Degree, &d.Beside, died)
	}, sqlVerdict, id)
}

// Judge returns what the death of supervisor id is evidence of, as the first rescuer has decided.
func (s Session) Judge(ctx context.Context, id string, d blame.Death) (blame.Death, error) {
	var p pipeline
	var died bool
	p.Begin()
	p.Exec(nil, sqlForgetEnded)
	p.Exec(nil, sqlJudge, id, d.Degree, d.Beside)
	p.verdict(id, &d, &died)
	p.Commit()
	return d, p.Send(ctx, s.Conn)
}

// sqlBackground counts the deaths of the last $2, without supervisors $1, and the time that processes ran.
const sqlBackground = `
select count(*) filter (where died and not draining and explained_by is null and id <> all($1)),
	coalesce(sum(extract(epoch from least(ended_at, now()) - least(greatest(started_at, now() - $2::interval), ended_at, now()))), 0)::float8
from (
	select id, started_at, ended_at, died, draining, explained_by from drover_ended_supervisors
	union all
	select id, started_at, now(), false, draining, null from drover_supervisors where lost_at is null
) p
where ended_at > now() - $2::interval`

func (s Session) Background(ctx context.Context, except []string) (b blame.Background, err error) {
	var p pipeline
	var ran float64
	p.Begin()
	p.Query(func(rows pgx.Rows) error { return rows.Scan(&b.Deaths, &ran) }, sqlBackground, except, pg.Interval(blame.HistoryWindow))
	p.Commit()
	err = p.Send(ctx, s.Conn)
	b.Ran = pg.Seconds(ran)
	return b, err
}

// sqlBlame notes against which jobs a death counts, sqlExplain which job deaths are put down to: after the settle, and
// only where it found the job still held.
const (
	sqlBlame = `
update drover_ended_supervisors set blamed = blamed || array(select id from jobs where id = any($2) and errors->-1->>'class' = 'crash' and errors->-1->>'supervisor' = $1)
where id = $1`
	sqlExplain = `
update drover_ended_supervisors set explained_by = $2 where id = any($1) and exists (select from jobs where id = $2 and discard_reason = 'crashed')`
)

// Freeing is what becomes of jobs of one dead supervisor, and what that says of its death.
type Freeing struct {
	Owner     string
	Changes   []Change
	Blamed    []string            // jobs against which the death counts
	Explained map[string][]string // deaths, by the job to which they are put down
	Bound     time.Duration       // of one statement
}

// Free settles them in one transaction: blame for a job that is not settled would be wrong, and a settled job is not looked
// at again.
func (s Session) Free(ctx context.Context, f *Freeing) (settled map[string]State, err error) {
	settled = map[string]State{}
	var p pipeline
	p.Begin()
	p.Exec(nil, SQLSettlePlan)
	p.Exec(nil, pg.Bound, f.Bound.Milliseconds())
	p.settle(settled, f.Owner, f.Changes)
	if len(f.Blamed) > 0 {
		p.Exec(nil, sqlBlame, f.Owner, f.Blamed)
	}
	for _, job := range slices.Sorted(maps.Keys(f.Explained)) {
		p.Exec(nil, sqlExplain, f.Explained[job], job)
	}
	p.Commit()
	return settled, p.Send(ctx, s.Conn)
}

// sqlTakeSolo takes the turn to run strong suspects, if it is nobody's who lives. The claim behind it is fenced: whose
// turn was taken is lost, and claims nothing.
const (
	sqlTakeSolo = `
update drover_solo set supervisor = $1, taken_at = now()
where supervisor is null or supervisor = $1 or not exists (select from drover_supervisors s where s.id = drover_solo.supervisor and s.lost_at is null)`
	sqlReleaseSolo = `update drover_solo set supervisor = null where supervisor = $1`
)

func (s Session) TakeSolo(ctx context.Context, id string) (bool, error) {
	var p pipeline
	var n int64
	p.Begin()
	p.Exec(&n, sqlTakeSolo, id)
	p.Commit()
	return n == 1, p.Send(ctx, s.Conn)
}

func (s Session) ReleaseSolo(ctx context.Context, id string) error {
	var p pipeline
	p.Begin()
	p.Exec(nil, sqlReleaseSolo, id)
	p.Commit()
	return p.Send(ctx, s.Conn)
}
