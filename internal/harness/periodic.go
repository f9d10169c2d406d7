package harness

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/store"
)

// TickArgs are of a kind that tests schedule.
type TickArgs struct {
	N int `json:"n"`
}

// Kind implements drover.Args.
func (TickArgs) Kind() string { return "tick" }

// Ticker returns the settings of a supervisor that runs jobs of TickArgs and declares the schedules.
func Ticker(build string, declared ...drover.Periodic) drover.SupervisorConfig {
	for i := range declared {
		if declared[i].Args == nil {
			declared[i].Args = TickArgs{}
		}
		if declared[i].Schedule == "" {
			declared[i].Schedule = "@yearly"
		}
	}
	return drover.SupervisorConfig{
		Queues: []drover.Queue{{}}, Build: build, Periodic: declared,
		Workers: []drover.Worker{drover.Handle(func(context.Context, *drover.Job, TickArgs) error { return nil }, drover.WorkerOpts{})},
	}
}

// StartTicker starts a supervisor and waits until it is registered.
func (db *DB) StartTicker(t testing.TB, cfg drover.SupervisorConfig) (stop func()) {
	t.Helper()
	sup, stop := db.Start(t, cfg)
	Eventually(t, func() bool { return EngineOf(sup).Lease.Load() != nil })
	return stop
}

// PeriodicJob reads a schedule.
func (db *DB) PeriodicJob(t testing.TB, name string) *drover.PeriodicJob {
	t.Helper()
	j, err := db.Client.PeriodicJob(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// SetPeriodic stores a schedule that comes once a year by default, so that it ticks only when a test makes it tick.
func (db *DB) SetPeriodic(t testing.TB, p drover.Periodic) {
	t.Helper()
	if p.Schedule == "" {
		p.Schedule = "@yearly"
	}
	if p.Args == nil {
		p.Args = TickArgs{}
	}
	if err := db.Client.SetPeriodic(t.Context(), p, drover.Audit{By: "test"}); err != nil {
		t.Fatal(err)
	}
}

// Backdate moves a schedule's next tick, and the anchor from which @every counts, into the past.
func (db *DB) Backdate(t testing.TB, name, by string) {
	t.Helper()
	db.exec(t, `update drover_periodic set anchor = anchor - $2::interval, next_at = next_at - $2::interval where name = $1`, name, by)
}

// TicksMade returns the times of those ticks of a schedule that made a job, in order.
func (db *DB) TicksMade(t testing.TB, name string) []time.Time {
	t.Helper()
	return value[[]time.Time](t, db, `select coalesce(array_agg((metadata->'drover:periodic'->>'tick')::timestamptz order by id), '{}') from jobs
		where metadata->'drover:periodic'->>'name' = $1`, name)
}

// Fire ticks one schedule, as a supervisor does.
func (db *DB) Fire(t testing.TB, name, supervisor string) store.Fired {
	t.Helper()
	f, err := db.FireOnce(t.Context(), name, supervisor, engine.TickBound)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// FireOnce is like Fire, with a bound that the test chooses. It returns the error.
func (db *DB) FireOnce(ctx context.Context, name, supervisor string, bound time.Duration) (store.Fired, error) {
	conn, done, err := store.Borrow(ctx, PoolOf(db.Client))
	if err != nil {
		return store.Fired{}, err
	}
	defer done()
	return conn.FirePeriodic(ctx, name, supervisor, bound)
}

// FarMinute returns a schedule that ticks each hour, next in half an hour. So no new tick comes while a test checks earlier ones.
func FarMinute() string { return fmt.Sprintf("%d * * * *", (time.Now().Minute()+30)%60) }
