package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/pg"
)

// This file is about the schedules of periodic jobs, which supervisors declare and tick. SQL functions in
// migrations/00019_periodic.sql do the work. So psql can do the same, and drover uses only the time zones and the clock
// of the server.

// SchedulePolicy is a schedule that a supervisor declares in code. Its JSON has the columns of drover_periodic.
type SchedulePolicy struct {
	Name       string          `json:"name"`
	Kind       string          `json:"kind"`
	Args       json.RawMessage `json:"args"`
	Options    json.RawMessage `json:"options"` // as parameters of drover_enqueue
	Schedule   string          `json:"schedule"`
	Zone       string          `json:"zone"`
	JitterMS   int64           `json:"jitter_ms"`
	CatchUp    string          `json:"catch_up"`
	Overlap    string          `json:"overlap"`
	RunAtStart bool            `json:"run_at_start"`
}

const sqlDeclarePeriodic = `select unnest(drover_periodic_declare($1, $2, $3::jsonb, wait => false))`

// declarePeriodic stores the schedules that a supervisor declares. It stores them in the order of their names, so that
// two supervisors that start together do not deadlock. It adds to the parameter taken the names that already belong to
// schedules made at run time. It skips schedules whose rows are locked, because otherwise no supervisor could register
// while a row is locked. DeclareAgain stores the skipped schedules later. If there are no schedules, declarePeriodic
// sends no statement.
func (p *pipeline) declarePeriodic(id, build string, schedules []SchedulePolicy, taken *[]string) {
	if len(schedules) == 0 {
		return
	}
	*taken = nil
	p.Query(pg.Into(taken, pgx.RowTo[string]), sqlDeclarePeriodic, id, build, scheduleDoc(schedules))
}

// scheduleDoc returns the schedules as a JSON array.
func scheduleDoc(schedules []SchedulePolicy) string {
	raw, _ := json.Marshal(schedules) // strings, numbers and JSON that was checked: cannot fail
	return string(raw)
}

// sqlDeclareAgain stores the schedules among $3 whose rows have another build's settings, or do not list this
// supervisor in declared_by. If $4 is true, it also stores the schedules that have no row.
const sqlDeclareAgain = `
select drover_periodic_declare($1, $2, jsonb_agg(d)) from jsonb_array_elements($3::jsonb) d
left join drover_periodic p on p.name = d->>'name'
where case when p.name is null then $4 else p.declared_by is not null and (p.build <> $2 or $1 <> all(p.declared_by)) end having count(*) > 0`

// DeclareAgain stores schedules of a supervisor again: the schedules that another build has changed, and the schedules
// that the supervisor's registration has skipped. If the parameter first is true, this is the first call after a
// registration. Then DeclareAgain also stores schedules without a row, because the registration skips a schedule that
// somebody is just deleting. The server ends the statement after bound, because another session may have locked the row
// of a schedule.
func (s Session) DeclareAgain(ctx context.Context, id, build string, schedules []SchedulePolicy, first bool, bound time.Duration) error {
	return s.inTx(ctx, func(p *pipeline) {
		p.BoundPlan(bound)
		p.Exec(nil, sqlDeclareAgain, id, build, scheduleDoc(schedules), first)
	})
}

// SQLPeriodicPlan makes the planner use the index. Without these settings, and while the table has no statistics, the
// planner would read all schedules and sort them.
const SQLPeriodicPlan = pg.OnePlan + `, set_config('enable_sort', 'off', true), set_config('enable_bitmapscan', 'off', true)`

// SQLPeriodicDue lists at most $3 schedules that supervisor $1 may tick, in the order of their next ticks. It leaves
// out the schedules $2. It reads drover_periodic_next_idx.
const SQLPeriodicDue = `
select name, kind, coalesce(options->>'queue', 'default'), extract(epoch from next_at - clock_timestamp())::float8 from drover_periodic
where next_at is not null and (declared_by is null or $1 = any(declared_by)) and name <> all($2::text[]) order by next_at, name limit $3`

// DueSchedule is a schedule, and how long until its next tick.
type DueSchedule struct {
	Name, Kind, Queue string
	Wait              time.Duration
}

// PeriodicDue returns schedules that a supervisor may tick, in the order of their next ticks. It leaves out the
// schedules named in except. The parameter most bounds their number.
func (s Session) PeriodicDue(ctx context.Context, supervisor string, except []string, most int) (due []DueSchedule, err error) {
	var p pipeline
	p.BeginReading()
	p.Exec(nil, SQLPeriodicPlan)
	p.Query(func(rows pgx.Rows) error {
		var d DueSchedule
		var wait float64
		err := rows.Scan(&d.Name, &d.Kind, &d.Queue, &wait)
		d.Wait = pg.Seconds(wait)
		due = append(due, d)
		return err
	}, SQLPeriodicDue, supervisor, append([]string{}, except...), most)
	p.Commit()
	return due, p.Send(ctx, s.Conn)
}

// SQLFirePeriodic locks the schedule's row, so that only one supervisor makes each tick.
const SQLFirePeriodic = `
select fired, made, missed, coalesce(why, ''), coalesce(fault, ''), coalesce(wait_s, 1e9)::float8 from drover_periodic_fire($1, $2)`

// Fired is the result of the ticks of a schedule.
type Fired struct {
	Ours   bool     // false: no tick was due, or another supervisor is ticking the schedule
	Jobs   []string // ids of the jobs that were enqueued
	Missed int64    // how many ticks made no job
	Why    string   // why these ticks made no job
	Fault  string   // the error, if the database refused a job
	Wait   time.Duration
}

// FirePeriodic makes all due ticks of a schedule, in one transaction. The server ends the statement after bound. It
// would not be enough to close the connection, because the server could go on and keep the row locked.
func (s Session) FirePeriodic(ctx context.Context, name, supervisor string, bound time.Duration) (f Fired, err error) {
	err = s.inTx(ctx, func(p *pipeline) {
		p.BoundPlan(bound)
		p.Exec(nil, pg.ConstraintsNow)
		p.Query(func(rows pgx.Rows) error {
			var wait float64
			err := rows.Scan(&f.Ours, &f.Jobs, &f.Missed, &f.Why, &f.Fault, &wait)
			f.Wait = pg.Seconds(wait)
			return err
		}, SQLFirePeriodic, name, supervisor)
	})
	return f, err
}

const sqlPeriodicFailed = `select drover_periodic_failed($1, $2)`

// NotePeriodicFailed writes into a schedule's row why the schedule could not tick.
func (s Session) NotePeriodicFailed(ctx context.Context, name, why string) error {
	_, err := s.exec(ctx, sqlPeriodicFailed, name, why)
	return err
}
