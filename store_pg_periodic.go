package drover

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// Schedules, as operators see and change them. Supervisors declare and tick them: internal/store/periodic.go.

const sqlSetPeriodic = `
select drover_periodic_set($1, $2, $3, $4::jsonb, zone => $5, options => $6::jsonb, jitter => $7::bigint * interval '1 ms', catch_up => $8, overlap => $9,
	run_at_start => $10, by => $11, why => $12) is not null`

func (s *desk) setPeriodic(ctx context.Context, p *store.SchedulePolicy, audit Audit) error {
	return s.pool.InTx(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sqlSetPeriodic, p.Name, p.Kind, p.Schedule, string(p.Args), p.Zone, string(p.Options), p.JitterMS, p.CatchUp, p.Overlap,
			p.RunAtStart, audit.by(), audit.Why)
		return pg.Classify(err)
	})
}

const (
	sqlPausePeriodic  = `select drover_periodic_pause($1, coalesce($2::timestamptz, 'infinity'), by => $3, why => $4)`
	sqlResumePeriodic = `select drover_periodic_resume($1, by => $2, why => $3)`
	sqlDeletePeriodic = `select drover_periodic_delete($1, by => $2, why => $3)`
	sqlRunPeriodic    = `select drover_periodic_run($1, by => $2, why => $3, new_id => $4)`
)

func (s *desk) pausePeriodic(ctx context.Context, name string, until *time.Time, audit Audit) error {
	return s.changePeriodic(ctx, audit, sqlPausePeriodic, name, until, audit.by(), audit.Why)
}

func (s *desk) resumePeriodic(ctx context.Context, name string, audit Audit) error {
	return s.changePeriodic(ctx, audit, sqlResumePeriodic, name, audit.by(), audit.Why)
}

func (s *desk) deletePeriodic(ctx context.Context, name string, audit Audit) error {
	return s.changePeriodic(ctx, audit, sqlDeletePeriodic, name, audit.by(), audit.Why)
}

// changePeriodic calls a function that returns whether there is such a schedule.
func (s *desk) changePeriodic(ctx context.Context, audit Audit, sql, name string, args ...any) error {
	return s.pool.InTx(ctx, func(tx pgx.Tx) error {
		if err := audit.requireSeen(ctx, tx, aSchedulesLife, name); err != nil {
			return err
		}
		var found bool
		if err := tx.QueryRow(ctx, sql, append([]any{name}, args...)...).Scan(&found); err != nil {
			return pg.Classify(err)
		}
		if !found {
			return ErrNotFound
		}
		return nil
	})
}

func (s *desk) runPeriodic(ctx context.Context, name, as string, audit Audit) (jobID string, err error) {
	err = s.pool.InTx(ctx, func(tx pgx.Tx) error {
		if err := audit.requireSeen(ctx, tx, aSchedule, name); err != nil {
			return err
		}
		var id *string
		if err := tx.QueryRow(ctx, sqlRunPeriodic, name, audit.by(), audit.Why, pg.OrNull(as)).Scan(&id); err != nil {
			return pg.Classify(err)
		}
		if id == nil {
			return ErrNotFound
		}
		jobID = *id
		return nil
	})
	return jobID, err
}

// sqlPeriodic cuts times to the years that Go and JSON can represent. The ticks after the next one are computed. A row that
// was edited by hand to a schedule that makes no sense has none.
const sqlPeriodic = `
select p.name, p.kind, p.queue, p.schedule, p.zone, p.state, p.made_in = 'code', coalesce(p.build, ''), p.args::text, p.options::text,
	extract(epoch from p.jitter)::float8, p.catch_up, p.overlap, p.run_at_start, p.jobs, p.skipped, coalesce(p.skipped_why, ''), coalesce(p.problem, ''),
	coalesce(p.last_job, ''), coalesce(p.last_state, ''), p.updated_by, p.updated_why, t.times[1], t.times[2], t.times[3], t.times[4], t.times[5], t.times[6],
	array(select least(greatest(n, '0001-01-01 00:00:00Z'), '9999-12-31 00:00:00Z') from unnest(p.next_runs) as n), coalesce(drover_seen('schedule', p.name), '')
from periodic_jobs p
cross join lateral (select array_agg(case when x.at is not null and x.at < 'infinity' then least(greatest(x.at, '0001-01-01 00:00:00Z'), '9999-12-31 00:00:00Z') end order by x.n) as times
	from unnest(array[p.last_at, p.paused_until, p.skipped_at, p.problem_at, p.created_at, p.updated_at]) with ordinality as x(at, n)) t
where $1 = '' or p.name = $1 order by p.name`

func (s *desk) periodic(ctx context.Context, name string) ([]PeriodicJob, error) {
	return pg.ReadAll(ctx, s.pool, scanPeriodic, sqlPeriodic, name)
}

func (s *desk) periodicJob(ctx context.Context, name string) (*PeriodicJob, error) {
	list, err := s.periodic(ctx, name)
	if err == nil && len(list) == 0 {
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
		&jitter, &j.CatchUp, &j.Overlap, &j.RunAtStart, &j.Jobs, &j.Skipped, &j.SkippedWhy, &j.Problem,
		&j.LastJobID, &j.LastState, &j.UpdatedBy, &j.UpdatedWhy, &j.LastAt, &j.PausedUntil, &j.SkippedAt, &j.ProblemAt, &created, &updated, &j.Next, &j.Seen)
	j.Args, j.Options, j.JitterMS = json.RawMessage(args), json.RawMessage(options), pg.Seconds(jitter).Milliseconds()
	if created != nil {
		j.CreatedAt = *created
	}
	if updated != nil {
		j.UpdatedAt = *updated
	}
	return j, err
}

const sqlPreviewPeriodic = `select drover_periodic_preview($1, $2, $3)`

func (s *desk) previewPeriodic(ctx context.Context, schedule, zone string, n int) ([]time.Time, error) {
	return pg.ReadAll(ctx, s.pool, pgx.RowTo[time.Time], sqlPreviewPeriodic, schedule, zone, n)
}
