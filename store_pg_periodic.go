package drover

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

// Schedules of periodic jobs. The work is in the SQL functions of migrations/00018_periodic.sql: psql does the same, and
// only the server's zones and clock count.

// periodicDoc is a schedule as drover_periodic_declare reads it: columns of drover_periodic.
type periodicDoc struct {
	Name     string                     `json:"name"`
	Kind     string                     `json:"kind"`
	Args     json.RawMessage            `json:"args"`
	Options  map[string]json.RawMessage `json:"options"`
	Schedule string                     `json:"schedule"`
	Zone     string                     `json:"zone"`
	JitterMS int64                      `json:"jitter_ms"`
	CatchUp  string                     `json:"catch_up"`
	Overlap  string                     `json:"overlap"`
}

const sqlDeclarePeriodic = `select unnest(drover_periodic_declare($1, $2, $3::jsonb))`

// declarePeriodic stores what a supervisor declares, and reads which names others have. Without any it asks for nothing.
func (p *pipeline) declarePeriodic(reg *registration) {
	if len(reg.periodic) == 0 {
		return
	}
	raw, _ := json.Marshal(reg.periodic) // strings, numbers and JSON that was checked: cannot fail
	p.query(func(rows pgx.Rows) error {
		var name string
		err := rows.Scan(&name)
		reg.refused = append(reg.refused, name)
		return err
	}, sqlDeclarePeriodic, reg.id, reg.build, string(raw))
}

// sqlDeclareAgain passes on those of the schedules $3 whose settings are another build's.
const sqlDeclareAgain = `
select drover_periodic_declare($1, $2, jsonb_agg(d)) from jsonb_array_elements($3::jsonb) d
join drover_periodic p on p.name = d->>'name' and p.declared_by is not null and p.build <> $2 having count(*) > 0`

// declareAgain stores what a supervisor declares once more, where another build had the last word.
func (s *store) declareAgain(ctx context.Context, conn *pgx.Conn, reg *registration) error {
	raw, _ := json.Marshal(reg.periodic) // as in declarePeriodic
	var p pipeline
	p.begin()
	p.exec(nil, sqlDeclareAgain, reg.id, reg.build, string(raw))
	p.commit()
	return p.send(ctx, conn)
}

// sqlPeriodicDue lists the schedules that supervisor $1 may tick, except $2, those that are due first, by
// drover_periodic_next_idx.
const sqlPeriodicDue = `
select name, kind, coalesce(options->>'queue', 'default'), extract(epoch from next_at - clock_timestamp())::float8 from drover_periodic
where next_at is not null and (declared_by is null or $1 = any(declared_by)) and name <> all($2::text[]) order by next_at, name limit $3`

// dueSchedule is a schedule, and how long until its next tick.
type dueSchedule struct {
	name, kind, queue string
	wait              time.Duration
}

func (s *store) periodicDue(ctx context.Context, supervisor string, except []string, most int) ([]dueSchedule, error) {
	return readAll(ctx, s, func(row pgx.CollectableRow) (d dueSchedule, err error) {
		var wait float64
		err = row.Scan(&d.name, &d.kind, &d.queue, &wait)
		d.wait = seconds(wait)
		return d, err
	}, sqlPeriodicDue, supervisor, append([]string{}, except...), most)
}

// sqlFirePeriodic locks the schedule's row, so one supervisor has each tick.
const sqlFirePeriodic = `
select fired, made, missed, coalesce(why, ''), coalesce(fault, ''), coalesce(wait_s, 1e9)::float8 from drover_periodic_fire($1, $2)`

// fired is what became of the ticks of a schedule.
type fired struct {
	ours   bool     // false: nothing was due, or another supervisor is at it
	jobs   []string // that were enqueued
	missed int64    // ticks that made none
	why    string   // they were missed
	fault  string   // what the database refused
	wait   time.Duration
}

// firePeriodic is one transaction. The server ends it after bound: a connection that were cut off could hold the row locked.
func (s *store) firePeriodic(ctx context.Context, name, supervisor string, bound time.Duration) (f fired, err error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return f, err
	}
	defer conn.Release()
	var p pipeline
	p.begin()
	p.exec(nil, sqlBoundPlan, bound.Milliseconds())
	p.exec(nil, sqlConstraintsNow)
	p.query(func(rows pgx.Rows) error {
		var wait float64
		err := rows.Scan(&f.ours, &f.jobs, &f.missed, &f.why, &f.fault, &wait)
		f.wait = seconds(wait)
		return err
	}, sqlFirePeriodic, name, supervisor)
	p.commit()
	return f, p.send(ctx, conn.Conn())
}

const sqlPeriodicFailed = `select drover_periodic_failed($1, $2)`

// noteFailed writes down why a schedule could not tick.
func (s *store) noteFailed(ctx context.Context, name string, why error) error {
	_, err := s.pool.Exec(ctx, sqlPeriodicFailed, name, refusalText(why))
	return err
}

const sqlSetPeriodic = `
select drover_periodic_set($1, $2, $3, $4::jsonb, zone => $5, options => $6::jsonb, jitter => $7::bigint * interval '1 ms', catch_up => $8, overlap => $9, by => $10, why => $11)`

func (s *store) setPeriodic(ctx context.Context, d *periodicDoc, by By) error {
	options, err := json.Marshal(d.Options)
	if err != nil {
		return err
	}
	return s.inTx(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sqlSetPeriodic, d.Name, d.Kind, d.Schedule, string(d.Args), d.Zone, string(options), d.JitterMS, d.CatchUp, d.Overlap, by.Who, by.Why)
		return classify(err)
	})
}

const (
	sqlPausePeriodic  = `select drover_periodic_pause($1, coalesce($4::timestamptz, 'infinity'), by => $2, why => $3)`
	sqlResumePeriodic = `select drover_periodic_resume($1, by => $2, why => $3)`
	sqlDeletePeriodic = `select drover_periodic_delete($1, by => $2, why => $3)`
	sqlRunPeriodic    = `select drover_periodic_run($1, by => $2, why => $3, new_id => nullif($4, ''))`
)

func (s *store) pausePeriodic(ctx context.Context, name string, until *time.Time, by By) error {
	return s.changePeriodic(ctx, sqlPausePeriodic, name, by.Who, by.Why, until)
}

func (s *store) resumePeriodic(ctx context.Context, name string, by By) error {
	return s.changePeriodic(ctx, sqlResumePeriodic, name, by.Who, by.Why)
}

func (s *store) deletePeriodic(ctx context.Context, name string, by By) error {
	return s.changePeriodic(ctx, sqlDeletePeriodic, name, by.Who, by.Why)
}

// changePeriodic calls a function that tells whether there is such a schedule.
func (s *store) changePeriodic(ctx context.Context, sql string, args ...any) error {
	return s.inTx(ctx, func(tx pgx.Tx) error {
		var found bool
		if err := tx.QueryRow(ctx, sql, args...).Scan(&found); err != nil {
			return classify(err)
		}
		if !found {
			return ErrNotFound
		}
		return nil
	})
}

func (s *store) runPeriodic(ctx context.Context, name, as string, by By) (job string, err error) {
	err = s.inTx(ctx, func(tx pgx.Tx) error {
		var id *string
		if err := tx.QueryRow(ctx, sqlRunPeriodic, name, by.Who, by.Why, as).Scan(&id); err != nil {
			return classify(err)
		}
		if id == nil {
			return ErrNotFound
		}
		job = *id
		return nil
	})
	return job, err
}

// sqlPeriodic cuts times to the years that Go and JSON can tell. The ticks after the next one are computed: a row that was
// edited by hand to a schedule that makes no sense has none.
const sqlPeriodic = `
select p.name, p.kind, p.queue, p.schedule, p.zone, p.state, p.made_in = 'code', coalesce(p.build, ''), p.args::text, p.options::text,
	extract(epoch from p.jitter)::float8, p.catch_up, p.overlap, p.jobs, p.skipped, coalesce(p.skipped_why, ''), coalesce(p.problem, ''),
	coalesce(p.last_job, ''), coalesce(p.last_state, ''), p.updated_by, p.updated_why, t.times[1], t.times[2], t.times[3], t.times[4], t.times[5], t.times[6],
	case when p.state <> 'undeclared' and p.next_at is not null then array(select least(greatest(n, '0001-01-01 00:00:00Z'), '9999-12-31 00:00:00Z')
		from drover_periodic_upcoming(p.name) as n) end
from periodic_jobs p
cross join lateral (select array_agg(case when x.at is not null and x.at < 'infinity' then least(greatest(x.at, '0001-01-01 00:00:00Z'), '9999-12-31 00:00:00Z') end order by x.n) as times
	from unnest(array[p.last_at, p.paused_until, p.skipped_at, p.problem_at, p.created_at, p.updated_at]) with ordinality as x(at, n)) t
where $1 = '' or p.name = $1 order by p.name`

func (s *store) periodic(ctx context.Context, name string) ([]PeriodicJob, error) {
	return readAll(ctx, s, scanPeriodic, sqlPeriodic, name)
}

func (s *store) periodicJob(ctx context.Context, name string) (*PeriodicJob, error) {
	list, err := s.periodic(ctx, name)
	if err == nil && (len(list) == 0 || name == "") {
		err = ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	return &list[0], nil
}

func scanPeriodic(row pgx.CollectableRow) (j PeriodicJob, err error) {
	var args, options string
	var jitter float64
	var created, updated *time.Time
	err = row.Scan(&j.Name, &j.Kind, &j.Queue, &j.Schedule, &j.Zone, &j.State, &j.Declared, &j.Build, &args, &options,
		&jitter, &j.CatchUp, &j.Overlap, &j.Jobs, &j.Skipped, &j.SkippedWhy, &j.Problem,
		&j.LastJob, &j.LastState, &j.UpdatedBy, &j.UpdatedWhy, &j.LastAt, &j.PausedUntil, &j.SkippedAt, &j.ProblemAt, &created, &updated, &j.Next)
	j.Args, j.Options, j.JitterMS = json.RawMessage(args), json.RawMessage(options), seconds(jitter).Milliseconds()
	if created != nil {
		j.CreatedAt = *created
	}
	if updated != nil {
		j.UpdatedAt = *updated
	}
	return j, err
}

const sqlPreviewPeriodic = `select drover_periodic_preview($1, $2, $3)`

func (s *store) previewPeriodic(ctx context.Context, schedule, zone string, n int) ([]time.Time, error) {
	return readAll(ctx, s, pgx.RowTo[time.Time], sqlPreviewPeriodic, schedule, zone, n)
}

// unknownSchedule reports a name that no schedule can have, which the server could not even take.
func unknownSchedule(name string) bool {
	return errors.Is(checkName("name", name), ErrInvalid)
}
