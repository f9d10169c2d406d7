package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover"
)

func periodicScenarios() []scenario {
	return []scenario{{
		id: "L-10", what: "schedules declared by 8 workers that are killed, then the server's clock steps by an hour, back, and on again; rounds are kills", quick: 6, full: 100, minutes: 4,
		clock: true, unmeasured: true, recovery: 5 * time.Second, before: countTicks, run: tickOn, extra: noInnocent,
		change: func(l *load, _ bool) { l.Workers, l.Producers, l.Rate, l.Schedules = 8, 1, 10, true },
	}}
}

// tick is a job of a schedule. The audit ignores it, as it ignores a noop, because no producer has enqueued it.
type tick struct {
	MS int `json:"ms"` // how long a run takes
}

// Kind implements drover.Args.
func (tick) Kind() string { return "tick" }

const everyTick = 4 * time.Second // if more than a thousand ticks are missed together, drover does not count all

// schedules returns schedules that differ in which of their ticks may make no job.
func schedules() []drover.Periodic {
	return []drover.Periodic{
		{Name: "all", Schedule: "@every 4s", Args: tick{}, CatchUp: drover.CatchUpAll},
		{Name: "skip", Schedule: "@every 4s", Args: tick{}, CatchUp: drover.CatchUpSkip},
		{Name: "slow", Schedule: "@every 4s", Args: tick{MS: 6000}, CatchUp: drover.CatchUpAll, Overlap: drover.OverlapSkip},
	}
}

// countTicks makes the table in which handlers record the ticks of their jobs.
func countTicks(ctx context.Context, w *world) error {
	if err := knowClockError(ctx, w); err != nil {
		return err
	}
	_, err := w.pool.Exec(ctx, `create table ticked (schedule text not null, tick timestamptz not null, job text not null)`)
	return err
}

// ticked is the handler of a tick. It records the schedule and the tick of its job.
func (w *worker) ticked(ctx context.Context, job *drover.Job, t tick) error {
	run, ok := job.Periodic()
	if !ok {
		return fmt.Errorf("job %s does not know its schedule", job.ID)
	}
	if err := pause(ctx, time.Duration(t.MS)*time.Millisecond); err != nil {
		return err
	}
	_, err := w.pool.Exec(ctx, `insert into ticked (schedule, tick, job) values ($1, $2, $3)`, run.Name, run.Tick, job.ID)
	return err
}

// tickOn kills workers one by one, and then all of them together. Until then, a tick may be skipped only if the
// schedule's last job has not ended, or if a newer tick is due too. Then the clock goes forward, back, and forward
// again.
func tickOn(ctx context.Context, w *world, rounds int) error {
	for range rounds {
		if err := errors.Join(pause(ctx, time.Second), w.kill(w.anyWorker())); err != nil {
			return err
		}
	}
	if err := killAll(ctx, w, 1); err != nil {
		return err
	}
	if err := w.ticksAreTold(ctx, 0); err != nil {
		return fmt.Errorf("before the clock's first step: %w", err)
	}
	// After each kill the producer goes on for a second, because I11 asks for a job that was claimed after the kill.
	for _, to := range []time.Duration{longStep, 0, longStep} {
		if err := errors.Join(w.moveClock(ctx, to), pause(ctx, 2*time.Second), w.kill(w.anyWorker()), pause(ctx, time.Second)); err != nil {
			return err
		}
	}
	return errors.Join(w.ticksAreTold(ctx, int64(longStep/everyTick)), w.pauseSchedules(ctx))
}

// pauseSchedules pauses the schedules, so that no new jobs come while the workers stop.
func (w *world) pauseSchedules(ctx context.Context) error {
	var errs []error
	for _, p := range schedules() {
		errs = append(errs, w.client.PausePeriodic(ctx, p.Name, time.Time{}, drover.Audit{}))
	}
	return errors.Join(append(errs, w.eventually(ctx, "no job of a schedule is left", time.Minute, `select not exists (select from jobs where kind = 'tick' and finalized_at is null)`))...)
}

// tally has counts of what became of the ticks of a schedule.
type tally struct {
	Name    string
	Due     int64 // how many ticks there were up to the last handled tick, by arithmetic and not by drover's count
	Made    int64 // how many ticks have a job
	Twice   int64 // how many ticks have several jobs
	Skipped int64 // how many ticks drover has counted as skipped
	Unseen  int64 // how many ticks have a completed job that no handler has recorded
	Ghosts  int64 // how many ticks a handler has recorded that have no job
}

// sqlTallies reads all counts in one statement, because schedules go on ticking.
const sqlTallies = `
with made as (
	select metadata->'drover:periodic'->>'name' as name, (metadata->'drover:periodic'->>'tick')::timestamptz as tick, count(*) as jobs,
		bool_and(state = 'completed') and not exists (select from ticked t where t.job = any(array_agg(j.id))) as unseen
	from jobs j where kind = 'tick' group by 1, 2
)
select p.name, round(extract(epoch from p.last_at - p.anchor) / 4)::bigint,
	(select count(*) from made m where m.name = p.name), (select count(*) from made m where m.name = p.name and m.jobs > 1), p.skipped,
	(select count(*) from made m where m.name = p.name and m.unseen),
	(select count(*) from ticked t where t.schedule = p.name and not exists (select from jobs j where j.id = t.job and (j.metadata->'drover:periodic'->>'tick')::timestamptz = t.tick))
from drover_periodic p order by p.name`

// ticksAreTold waits until the jobs of ticks have run. It requires that each tick made one job, or is reported as
// skipped. The parameter most is how many ticks of the schedule "all" may be skipped.
func (w *world) ticksAreTold(ctx context.Context, most int64) error {
	err := w.eventually(ctx, "the jobs of ticks have run", time.Minute,
		`select not exists (select from jobs where kind = 'tick' and finalized_at is null and scheduled_at < clock_timestamp() - interval '5 s')`)
	if err != nil {
		return err
	}
	rows, _ := w.pool.Query(ctx, sqlTallies) // CollectRows returns its error
	tallies, err := pgx.CollectRows(rows, pgx.RowToStructByPos[tally])
	if err != nil {
		return err
	}
	if len(tallies) != len(schedules()) {
		return fmt.Errorf("%d schedules, want %d", len(tallies), len(schedules()))
	}
	var errs []error
	for _, t := range tallies {
		if t.Made+t.Skipped != t.Due || t.Twice+t.Unseen+t.Ghosts > 0 || t.Made == 0 ||
			t.Name == "all" && t.Skipped > most || t.Name == "slow" && t.Skipped == 0 || t.Name == "skip" && t.Skipped < most/2 {
			errs = append(errs, fmt.Errorf("the ticks of a schedule: %+v", t))
		}
	}
	return errors.Join(errs...)
}
