package drover

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

// tickArgs are of a kind that tests schedule.
type tickArgs struct {
	N int `json:"n"`
}

func (tickArgs) Kind() string { return "tick" }

// setPeriodic stores a schedule that comes once a year, so that it ticks when a test says so.
func (db *testDB) setPeriodic(t testing.TB, p Periodic) {
	t.Helper()
	if p.Schedule == "" {
		p.Schedule = "@yearly"
	}
	if p.Args == nil {
		p.Args = tickArgs{}
	}
	if err := db.client.SetPeriodic(t.Context(), p, By{Who: "test"}); err != nil {
		t.Fatal(err)
	}
}

// backdate moves a schedule's next tick, and what @every counts from, into the past.
func (db *testDB) backdate(t testing.TB, name, by string) {
	t.Helper()
	db.exec(t, `update drover_periodic set anchor = anchor - $2::interval, next_at = next_at - $2::interval where name = $1`, name, by)
}

// ticksMade are the ticks of a schedule that have a job, in their order, as seconds after the first.
func (db *testDB) ticksMade(t testing.TB, name string) []time.Time {
	t.Helper()
	return value[[]time.Time](t, db, `select coalesce(array_agg((metadata->'drover:periodic'->>'tick')::timestamptz order by id), '{}') from jobs
		where metadata->'drover:periodic'->>'name' = $1`, name)
}

func (db *testDB) fire(t testing.TB, name, supervisor string) fired {
	t.Helper()
	f, err := db.client.store.firePeriodic(t.Context(), name, supervisor, tickBound)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestPeriodicBadInput(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	type nan struct{ tickArgs }
	_ = nan{}
	for _, c := range []struct {
		field string
		p     Periodic
	}{
		{"Name", Periodic{Name: "", Schedule: "@daily", Args: tickArgs{}}},
		{"Name", Periodic{Name: strings.Repeat("x", 129), Schedule: "@daily", Args: tickArgs{}}},
		{"Name", Periodic{Name: "a\x00b", Schedule: "@daily", Args: tickArgs{}}},
		{"Schedule", Periodic{Name: "a", Args: tickArgs{}}},
		{"Schedule", Periodic{Name: "a", Schedule: "0 0 31 2 *", Args: tickArgs{}}},
		{"Schedule", Periodic{Name: "a", Schedule: "60 * * * *", Args: tickArgs{}}},
		{"Schedule", Periodic{Name: "a", Schedule: "* * * *", Args: tickArgs{}}},
		{"Schedule", Periodic{Name: "a", Schedule: "0 * * * * *", Args: tickArgs{}}},
		{"Schedule", Periodic{Name: "a", Schedule: "*/0 * * * *", Args: tickArgs{}}},
		{"Schedule", Periodic{Name: "a", Schedule: "5/15 * * * *", Args: tickArgs{}}},
		{"Schedule", Periodic{Name: "a", Schedule: "30-10 * * * *", Args: tickArgs{}}},
		{"Schedule", Periodic{Name: "a", Schedule: "0 0 * foo *", Args: tickArgs{}}},
		{"Schedule", Periodic{Name: "a", Schedule: "0 0 * * 8", Args: tickArgs{}}},
		{"Schedule", Periodic{Name: "a", Schedule: "@reboot", Args: tickArgs{}}},
		{"Schedule", Periodic{Name: "a", Schedule: "@every 999ms", Args: tickArgs{}}},
		{"Schedule", Periodic{Name: "a", Schedule: "@every -1h", Args: tickArgs{}}},
		{"Schedule", Periodic{Name: "a", Schedule: "@every", Args: tickArgs{}}},
		{"Schedule", Periodic{Name: "a", Schedule: "@every 367h367h99999h", Args: tickArgs{}}},
		{"Zone", Periodic{Name: "a", Schedule: "@daily", Zone: "Europe/Berlni", Args: tickArgs{}}},
		{"Zone", Periodic{Name: "a", Schedule: "@daily", Zone: "CEST", Args: tickArgs{}}},
		{"Zone", Periodic{Name: "a", Schedule: "@daily", Zone: "Europe/Berlin5", Args: tickArgs{}}},
		{"Zone", Periodic{Name: "a", Schedule: "@daily", Zone: "+02:00", Args: tickArgs{}}},
		{"Args", Periodic{Name: "a", Schedule: "@daily"}},
		{"Args", Periodic{Name: "a", Schedule: "@daily", Args: unmarshallable{}}},
		{"Jitter", Periodic{Name: "a", Schedule: "@daily", Args: tickArgs{}, Jitter: -1}},
		{"Jitter", Periodic{Name: "a", Schedule: "@daily", Args: tickArgs{}, Jitter: 25 * time.Hour}},
		{"CatchUp", Periodic{Name: "a", Schedule: "@daily", Args: tickArgs{}, CatchUp: "twice"}},
		{"Overlap", Periodic{Name: "a", Schedule: "@daily", Args: tickArgs{}, Overlap: "maybe"}},
		{"Opts.ID", Periodic{Name: "a", Schedule: "@daily", Args: tickArgs{}, Opts: &EnqueueOpts{ID: "01ARZ3NDEKTSV4RRFFQ69G5FAV"}}},
		{"Opts.ScheduledAt", Periodic{Name: "a", Schedule: "@daily", Args: tickArgs{}, Opts: &EnqueueOpts{ScheduledAt: time.Now()}}},
		{"Opts.ExpiresAt", Periodic{Name: "a", Schedule: "@daily", Args: tickArgs{}, Opts: &EnqueueOpts{ExpiresAt: time.Now()}}},
		{"Opts.RetryUntil", Periodic{Name: "a", Schedule: "@daily", Args: tickArgs{}, Opts: &EnqueueOpts{RetryUntil: time.Now()}}},
		{"Opts.Unique", Periodic{Name: "a", Schedule: "@daily", Args: tickArgs{}, Opts: &EnqueueOpts{Unique: &Unique{}}}},
		{"Opts.Priority", Periodic{Name: "a", Schedule: "@daily", Args: tickArgs{}, Opts: &EnqueueOpts{Priority: 10}}},
		{"Opts.Metadata", Periodic{Name: "a", Schedule: "@daily", Args: tickArgs{}, Opts: &EnqueueOpts{Metadata: map[string]any{"drover:periodic": 1}}}},
	} {
		var invalid *InvalidError
		err := db.client.SetPeriodic(t.Context(), c.p, By{})
		if !errors.As(err, &invalid) || invalid.Field != c.field {
			t.Errorf("%+v: %v, want an *InvalidError of %s", c.p, err, c.field)
		}
		// A supervisor that declares it is refused in NewSupervisor, or in Run where only the server knows better.
		sup, err := db.client.NewSupervisor(SupervisorConfig{
			Queues: []Queue{{}}, Workers: []Worker{Handle(func(context.Context, *Job, tickArgs) error { return nil }, WorkerOpts{})}, Periodic: []Periodic{c.p},
		})
		if err == nil {
			err = sup.Run(t.Context())
		}
		if !errors.As(err, &invalid) || invalid.Field != "Periodic[0]."+c.field {
			t.Errorf("declared %+v: %v, want an *InvalidError of Periodic[0].%s", c.p, err, c.field)
		}
	}
	if n := value[int](t, db, `select count(*) from drover_periodic`) + value[int](t, db, `select count(*) from drover_supervisors`); n != 0 {
		t.Errorf("%d rows were written", n)
	}
}

type unmarshallable struct{ C chan int }

func (unmarshallable) Kind() string { return "tick" }

func TestPeriodicRow(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	ctx, c := t.Context(), db.client
	db.setPeriodic(t, Periodic{
		Name: "nightly", Schedule: "30 2 * * *", Zone: "Europe/Berlin", Args: tickArgs{7}, Jitter: time.Minute, CatchUp: CatchUpOnce, Overlap: OverlapSkip,
		Opts: &EnqueueOpts{
			Queue: "reports", Priority: 3, Delay: time.Hour, MaxAttempts: 4, Retry: Constant{Delay: time.Second}, Timeout: time.Minute,
			Tags: []string{"x"}, Key: "k", Metadata: map[string]any{"mine": 1},
		},
	})
	j, err := c.PeriodicJob(ctx, "nightly")
	if err != nil {
		t.Fatal(err)
	}
	if j.Kind != "tick" || j.Queue != "reports" || j.Zone != "Europe/Berlin" || j.State != PeriodicActive || j.Declared || len(j.Next) != 10 ||
		j.JitterMS != 60_000 || j.CatchUp != CatchUpOnce || j.Overlap != OverlapSkip || j.UpdatedBy != "test" || string(j.Args) != `{"n": 7}` {
		t.Errorf("%+v", j)
	}
	preview, err := c.PreviewPeriodic(ctx, "30 2 * * *", "Europe/Berlin", 10)
	if err != nil || !slices.EqualFunc(preview, j.Next, time.Time.Equal) {
		t.Errorf("PreviewPeriodic = %v, %v, the row has %v", preview, err, j.Next)
	}
	// Setting it again with other args moves no tick; another schedule does.
	next := j.Next[0]
	db.setPeriodic(t, Periodic{Name: "nightly", Schedule: "30 2 * * *", Zone: "Europe/Berlin", Args: tickArgs{8}, Opts: &EnqueueOpts{Queue: "reports"}})
	db.setPeriodic(t, Periodic{Name: "often", Schedule: "@every 1h"})
	db.backdate(t, "often", "10 min")
	was := value[time.Time](t, db, `select next_at from drover_periodic where name = 'often'`)
	db.setPeriodic(t, Periodic{Name: "often", Schedule: "@every 1h", Args: tickArgs{9}})
	list, err := c.PeriodicJobs(ctx)
	if err != nil || len(list) != 2 || !list[0].Next[0].Equal(next) || string(list[0].Args) != `{"n": 8}` || list[0].CatchUp != CatchUpSkip || !list[1].Next[0].Equal(was) {
		t.Fatalf("%+v, %v", list, err)
	}
	for verb, err := range map[string]error{
		"pause": c.PausePeriodic(ctx, "no such", time.Time{}, By{}), "resume": c.ResumePeriodic(ctx, "", By{}), "delete": c.DeletePeriodic(ctx, "a\x00", By{}),
		"run": func() error { _, err := c.RunPeriodic(ctx, "no such", nil, By{}); return err }(), "get": func() error { _, err := c.PeriodicJob(ctx, ""); return err }(),
	} {
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %v, want ErrNotFound", verb, err)
		}
	}
	if err := c.DeletePeriodic(ctx, "nightly", By{}); err != nil {
		t.Fatal(err)
	}
	if f := db.fire(t, "nightly", ""); f.ours {
		t.Errorf("a deleted schedule ticks: %+v", f)
	}
}

// A job of a schedule has all its options, and says which schedule and tick made it.
func TestPeriodicJobHasTheOptions(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.setPeriodic(t, Periodic{
		Name: "a", Args: tickArgs{7}, Schedule: "@every 1h",
		Opts: &EnqueueOpts{
			Queue: "reports", Priority: 3, Delay: time.Hour, MaxAttempts: 4, Retry: Constant{Delay: time.Second}, Timeout: time.Minute,
			Tags: []string{"x"}, Key: "k", Metadata: map[string]any{"mine": 1},
		},
	})
	db.backdate(t, "a", "1 h")
	f := db.fire(t, "a", "")
	if len(f.jobs) != 1 || f.missed != 0 || f.fault != "" || f.wait < 59*time.Minute || f.wait > time.Hour {
		t.Fatalf("%+v", f)
	}
	if !value[bool](t, db, `select queue = 'reports' and priority = 3 and max_attempts = 4 and retry->>'delay' = '1s' and timeout_ms = 60000 and tags = '{x}'
		and concurrency_key = 'k' and metadata->>'mine' = '1' and args = '{"n": 7}' and scheduled_at between now() + interval '59 min' and now() + interval '1 h'
		and state = 'scheduled' from jobs where id = $1`, f.jobs[0]) {
		t.Errorf("%s", value[string](t, db, `select to_json(j)::text from jobs j`))
	}
	job := Job{Metadata: []byte(value[string](t, db, `select metadata::text from jobs`))}
	run, ok := job.Periodic()
	if !ok || run.Name != "a" || run.ByHand || time.Since(run.Tick) > time.Minute || f.jobs[0] != value[string](t, db, `select drover_periodic_id(name, generation, $1) from drover_periodic`, run.Tick) {
		t.Errorf("Periodic() = %+v, %v", run, ok)
	}
	for _, metadata := range []string{``, `{}`, `{"drover:periodic": 3}`, `[]`, `{"mine": {"name": "a"}}`} {
		if run, ok := (&Job{Metadata: []byte(metadata)}).Periodic(); ok {
			t.Errorf("Periodic() of %s = %+v", metadata, run)
		}
	}
	// Callers cannot pass a job off as a schedule's.
	if _, err := db.client.Enqueue(t.Context(), tickArgs{}, &EnqueueOpts{Metadata: map[string]any{"drover:periodic": map[string]any{"name": "a", "tick": "b"}}}); !errors.Is(err, ErrInvalid) {
		t.Errorf("Enqueue: %v", err)
	}
	if _, err := db.Exec(t.Context(), `select drover_enqueue('tick', metadata => '{"drover:periodic": {"name": "a", "tick": "b"}}')`); sqlState(err) != "22023" {
		t.Errorf("drover_enqueue: %v", err)
	}
}

// A tick whose job could not be stored because of a lock that was not to be had, as while somebody creates an index, stays
// due. One that a trigger refuses does not.
func TestALockTimeOutLosesNoTick(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `select drover_periodic_set('a', 'job', '@every 1h', catch_up => 'all')`)
	db.exec(t, `update drover_periodic set anchor = anchor - interval '3 h', next_at = next_at - interval '3 h'`)
	due := value[time.Time](t, db, `select next_at from drover_periodic`)
	end := db.hold(t, `lock table jobs in share mode`)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `set local lock_timeout = '100ms'`); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select from drover_periodic_fire('a')`); sqlState(err) != "55P03" {
		t.Errorf("under the lock: %v", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	end()
	if now := value[time.Time](t, db, `select next_at from drover_periodic`); !now.Equal(due) {
		t.Errorf("the schedule went on from %v to %v", due, now)
	}
	db.exec(t, `create function refuse() returns trigger language plpgsql as $$ begin
		if (select count(*) from jobs) = 1 then raise exception 'one is enough'; end if; return new; end $$`)
	db.exec(t, `create trigger refuse before insert on jobs for each row execute function refuse()`)
	db.exec(t, `select from drover_periodic_fire('a')`)
	if got := value[string](t, db, `select jobs || ' ' || (next_at > now()) || ' ' || problem from drover_periodic`); got != "1 true one is enough" {
		t.Errorf("behind a refused tick: %s", got)
	}
}
