package engine_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/store"
)

// eachOnce fails the test unless the ticks of a schedule are n different ones, a period apart without a gap.
func (db *testDB) eachOnce(t testing.TB, name string, n int, period time.Duration) {
	t.Helper()
	ticks := db.TicksMade(t, name)
	if len(ticks) != n {
		t.Errorf("%s: %d jobs for %d ticks", name, len(ticks), n)
	}
	slices.SortFunc(ticks, time.Time.Compare)
	for i := 1; i < len(ticks); i++ {
		if d := ticks[i].Sub(ticks[i-1]); d != period {
			t.Errorf("%s: tick %d is %v after the one before it", name, i, d)
		}
	}
}

// Many sessions ask for the same ticks at the same time: each makes one job.
func TestTicksOnceWhoeverAsks(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	const schedules, rounds = 4, 3
	var made atomic.Int64
	for i := range schedules {
		db.SetPeriodic(t, drover.Periodic{Name: fmt.Sprint(i), Schedule: "@every 1h", CatchUp: drover.CatchUpAll})
	}
	for range rounds {
		// By a second more, or the ticks would be the earlier ones, whose jobs exist.
		db.exec(t, `update drover_periodic set anchor = anchor - interval '50 h 1 s', next_at = next_at - interval '50 h 1 s'`)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for i := range schedules {
					f, err := db.FireOnce(t.Context(), fmt.Sprint(i), "", time.Minute)
					if err != nil {
						t.Error(err)
					}
					made.Add(int64(len(f.Jobs)))
				}
			})
		}
		all.Wait()
	}
	if n := made.Load(); n != schedules*rounds*50 || int64(value[int](t, db, `select count(*) from jobs`)) != n {
		t.Errorf("%d jobs were made, want %d", n, schedules*rounds*50)
	}
	if !value[bool](t, db, `select bool_and(next_at > now() and next_at <= now() + interval '1 h' and jobs = $1 and skipped = 0) from drover_periodic`, rounds*50) {
		t.Error(value[string](t, db, `select json_agg(p)::text from drover_periodic p`))
	}
}

// shiftClock makes schedules see what they would see if the server's clock were put forward by so much: each time in their
// rows is that much further back.
func (db *testDB) shiftClock(t testing.TB, by string) {
	t.Helper()
	db.exec(t, `update drover_periodic set anchor = anchor - $1::interval, next_at = next_at - $1::interval, last_at = last_at - $1::interval`, by)
}

// Eight processes tick, and are killed at random while far more is due than one tick; the clock goes forward by an hour
// and back. Each tick makes one job or is counted as skipped, as its schedule says. DROVER_TICK_ROUNDS sets the kills.
func TestTicksOnceWhoeverDies(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.exec(t, `create table effects (job text not null, pid int not null, at timestamptz not null default clock_timestamp())`)
	rounds := sizeOf(t, "DROVER_TICK_ROUNDS", 4)
	for name, catchUp := range map[string]drover.CatchUp{"all": drover.CatchUpAll, "all too": drover.CatchUpAll, "once": drover.CatchUpOnce, "skip": drover.CatchUpSkip} {
		db.SetPeriodic(t, drover.Periodic{Name: name, Schedule: "@every 4s", Args: errand{}, CatchUp: catchUp})
	}
	spec := processSpec{Concurrency: 4, Lease: time.Second, Poll: 50 * time.Millisecond, Drain: time.Second}
	processes := make([]*process, 8)
	for i := range processes {
		processes[i] = db.spawn(t, spec)
	}
	pick := func(n int) int { return rand.IntN(n) } //nolint:gosec // not a secret
	kill := func(wait time.Duration) {
		harness.After(t, wait) // a heartbeat finds what is due in up to 170 ms
		i := pick(len(processes))
		processes[i].kill(t)
		processes[i] = db.spawn(t, spec)
	}
	const caughtUp = `select bool_and(next_at > now() - interval '4 s') from drover_periodic`
	db.waitFor(t, 30*time.Second, `select count(*) = 8 from drover_supervisors`)
	for round := range rounds {
		// By a tenth more than whole periods, or the ticks would be the earlier ones, whose jobs exist.
		if round%4 != 2 {
			db.shiftClock(t, "120.1 s")
			kill(time.Duration(10+pick(200)) * time.Millisecond)
			db.waitFor(t, 20*time.Second, caughtUp)
			continue
		}
		db.shiftClock(t, "1 h 0.1 s")
		kill(time.Duration(10+pick(200)) * time.Millisecond)
		db.waitFor(t, 20*time.Second, caughtUp)
		db.shiftClock(t, "-1 h")
		made := value[int](t, db, `select sum(jobs) from drover_periodic`)
		kill(300 * time.Millisecond)
		if now := value[int](t, db, `select sum(jobs) from drover_periodic`); now != made {
			t.Errorf("%d jobs for an hour that has ticked before", now-made)
		}
		db.shiftClock(t, "1 h")
	}
	db.waitFor(t, 20*time.Second, caughtUp)
	db.exec(t, `select count(drover_periodic_pause(name)) from drover_periodic`)
	due := 0
	for _, name := range []string{"all", "all too", "once", "skip"} {
		j := db.PeriodicJob(t, name)
		// By arithmetic, not by what drover counts.
		ticks := value[int](t, db, `select round(extract(epoch from last_at - anchor) / 4)::int from drover_periodic where name = $1`, name)
		jobs := value[int](t, db, `select count(*) from jobs where metadata->'drover:periodic'->>'name' = $1`, name)
		t.Logf("schedule %s: %d ticks, %d jobs, %d skipped", name, ticks, jobs, j.Skipped)
		due += ticks
		if jobs+int(j.Skipped) != ticks || int(j.Jobs) != jobs || j.Problem != "" {
			t.Errorf("schedule %s: %d ticks were due, %d have jobs, %d by its row, %d were skipped, problem %q", name, ticks, jobs, j.Jobs, j.Skipped, j.Problem)
		}
		if steps := (rounds + 1) / 4; strings.HasPrefix(name, "all") && (int(j.Skipped) < steps*800 || int(j.Skipped) > steps*802) {
			t.Errorf("schedule %s skipped %d ticks; of each of %d hours 100 of 900 are made good", name, j.Skipped, steps)
		}
	}
	if due < 1000*rounds/8 {
		t.Errorf("%d ticks only", due)
	}
	db.waitFor(t, 30*time.Second, `select count(*) = 0 from jobs where claim_seq = 0`) // jobs of killed processes may wait longer for their end
}

// The server dies while schedules tick. With CatchUpAll each tick has one job when it is back.
func TestTicksOnceAlthoughTheServerDies(t *testing.T) {
	t.Parallel()
	slow(t)
	server, db := newServer(t)
	const schedules = 3
	for i := range schedules {
		db.SetPeriodic(t, drover.Periodic{Name: fmt.Sprint(i), Schedule: "@every 1s", CatchUp: drover.CatchUpAll})
	}
	for range 2 {
		db.run(t, drover.SupervisorConfig{
			Queues: []drover.Queue{{}}, Lease: 2 * time.Second, PollInterval: 100 * time.Millisecond,
			Workers: []drover.Worker{drover.Handle(func(context.Context, *drover.Job, tickArgs) error { return nil }, drover.WorkerOpts{})},
		})
	}
	for range 3 {
		db.Backdate(t, "0", "40.1 s")
		harness.After(t, 300*time.Millisecond)
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
		harness.After(t, 1500*time.Millisecond) // ticks come due
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		db.Reset() // it does not ask connections that were in use a moment ago whether they are alive
		eventually(t, func() bool { return db.Ping(t.Context()) == nil })
		n := value[int](t, db, `select jobs from drover_periodic where name = '1'`)
		db.waitFor(t, 30*time.Second, `select bool_and(jobs > $1 and next_at > now() - interval '1 s') from drover_periodic`, n+1)
	}
	for i := 1; i < schedules; i++ { // 0 was moved
		if n := value[int](t, db, `select jobs from drover_periodic where name = $1`, fmt.Sprint(i)); n < 4 {
			t.Errorf("schedule %d made %d jobs only", i, n)
		}
		db.exec(t, `select drover_periodic_pause($1)`, fmt.Sprint(i))
		db.eachOnce(t, fmt.Sprint(i), value[int](t, db, `select jobs from drover_periodic where name = $1`, fmt.Sprint(i)), time.Second)
	}
	if n := value[int](t, db, `select sum(skipped) from drover_periodic`); n != 0 {
		t.Errorf("%d ticks were skipped", n)
	}
}

// A schedule ticks within a second of its time, in every process that lives.
func TestTicksComeOnTime(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	late := make(chan time.Duration, 1000)
	for range 3 {
		db.run(t, drover.SupervisorConfig{Lease: time.Hour, Queues: []drover.Queue{{}}, Workers: []drover.Worker{drover.Handle(func(_ context.Context, j *drover.Job, _ tickArgs) error {
			run, _ := j.Periodic()
			late <- time.Since(run.Tick)
			return nil
		}, drover.WorkerOpts{})}})
	}
	db.SetPeriodic(t, drover.Periodic{Name: "a", Schedule: "@every 1s"}) // they hear of it by a notification, of its ticks by no heartbeat
	onTime := 0
	for n := 1; onTime < 8 || onTime < n/3; n++ { // the machine may be late for a while, and not all the time
		d := receive(t, late)
		t.Logf("a job started %v after its tick", d)
		if d <= time.Second {
			onTime++
		}
		if n == 60 {
			t.Fatalf("%d of 60 jobs started within a second of their ticks", onTime)
		}
	}
}

func TestCatchUp(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		schedule     string
		late         string
		catchUp      drover.CatchUp
		jobs, missed int
	}{
		{"@every 1h", "30 s", drover.CatchUpSkip, 0, 0},                // nothing is due
		{"@every 1h", "1 h", drover.CatchUpSkip, 1, 0},                 // on time
		{"@every 1h", "1 h 30 s", drover.CatchUpSkip, 1, 0},            // within the minute
		{"@every 1h", "1 h 90 s", drover.CatchUpSkip, 0, 1},            // missed
		{"@every 1h", "10 h 90 s", drover.CatchUpSkip, 0, 10},          //
		{"@every 1h", "10 h", drover.CatchUpSkip, 1, 9},                // the last one is on time
		{"@every 1h", "10 h 90 s", drover.CatchUpOnce, 1, 9},           //
		{"@every 1h", "10 h 90 s", drover.CatchUpAll, 10, 0},           //
		{"@every 1h", "100 h 90 s", drover.CatchUpAll, 100, 0},         //
		{"@every 1h", "101 h 90 s", drover.CatchUpAll, 100, 1},         //
		{"@every 1m", "90 days", drover.CatchUpSkip, 1, 1000},          // more are not counted
		{"@every 1m", "90 days", drover.CatchUpOnce, 1, 1000},          //
		{"@every 1m", "90 days", drover.CatchUpAll, 100, 1000},         //
		{harness.FarMinute(), "400 days", drover.CatchUpOnce, 1, 1000}, //
	} {
		t.Run(fmt.Sprintf("%s %s %s", c.schedule, c.late, c.catchUp), func(t *testing.T) {
			t.Parallel()
			db := newQuietDB(t)
			db.SetPeriodic(t, drover.Periodic{Name: "a", Schedule: c.schedule, CatchUp: c.catchUp})
			db.Backdate(t, "a", c.late)
			f := db.Fire(t, "a", "")
			if len(f.Jobs) != c.jobs || int(f.Missed) != c.missed && !(c.missed == 1000 && f.Missed >= 900) {
				t.Fatalf("%d jobs, %d missed (%s), want %d and %d", len(f.Jobs), f.Missed, f.Why, c.jobs, c.missed)
			}
			if f.Missed > 0 && !strings.HasPrefix(f.Why, "missed: the oldest was due at ") {
				t.Errorf("why: %q", f.Why)
			}
			var ticks []time.Time
			if ticks = db.TicksMade(t, "a"); c.jobs > 0 && time.Since(ticks[len(ticks)-1]) > time.Hour+2*time.Minute {
				t.Errorf("the last job is for %v, not for the newest tick", ticks[len(ticks)-1])
			}
			if strings.HasPrefix(c.schedule, "@every") && c.jobs > 1 {
				every, _ := time.ParseDuration(strings.TrimPrefix(c.schedule, "@every "))
				db.eachOnce(t, "a", c.jobs, every)
			}
			if !value[bool](t, db, `select next_at > now() and jobs = $1 and skipped = $2 from drover_periodic`, c.jobs, f.Missed) {
				t.Error(value[string](t, db, `select to_json(p)::text from drover_periodic p`))
			}
			if again := db.Fire(t, "a", ""); again.Ours {
				t.Errorf("it ticks again: %+v", again)
			}
		})
	}
}

// The next tick is computed from the row's tick: a late one does not move those after it.
func TestTicksDoNotDrift(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.SetPeriodic(t, drover.Periodic{Name: "a", Schedule: "@every 1h"})
	anchor := value[time.Time](t, db, `select anchor from drover_periodic`)
	for i := range 3 {
		db.exec(t, `update drover_periodic set anchor = anchor - interval '1 h 17 s', next_at = next_at - interval '1 h 17 s'`)
		anchor = anchor.Add(-time.Hour - 17*time.Second)
		if f := db.Fire(t, "a", ""); len(f.Jobs) != 1 {
			t.Fatalf("%+v", f)
		}
		if next := value[time.Time](t, db, `select next_at from drover_periodic`); next.Sub(anchor)%time.Hour != 0 {
			t.Fatalf("after %d late ticks the next one is %v after a whole hour", i+1, next.Sub(anchor)%time.Hour)
		}
	}
}

func TestOverlap(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.SetPeriodic(t, drover.Periodic{Name: "skip", Schedule: "@every 1h", Overlap: drover.OverlapSkip, CatchUp: drover.CatchUpAll})
	db.SetPeriodic(t, drover.Periodic{Name: "allow", Schedule: "@every 1h"})
	tick := func(name, late string) store.Fired {
		db.Backdate(t, name, late+" 1 s") // or the ticks would be the earlier ones, whose jobs exist
		return db.Fire(t, name, "")
	}
	if f := tick("skip", "3 h"); len(f.Jobs) != 1 || f.Missed != 2 || !strings.HasPrefix(f.Why, "overlap: job "+f.Jobs[0]) {
		t.Fatalf("of three ticks at once %+v", f)
	}
	for _, state := range []string{"available", "retryable", "parked"} {
		db.exec(t, `update jobs set state = $1, scheduled_at = 'infinity'`, state)
		if f := tick("skip", "1 h"); len(f.Jobs) != 0 || f.Missed != 1 {
			t.Errorf("while the last job is %s: %+v", state, f)
		}
		var refused error
		if _, refused = db.client.RunPeriodic(t.Context(), "skip", nil, drover.Audit{}); refused == nil || !strings.Contains(refused.Error(), "has not ended") {
			t.Errorf("RunPeriodic while the last job is %s: %v", state, refused)
		}
	}
	for _, end := range []string{
		`update jobs set state = 'completed', finalized_at = now()`,
		`update jobs set state = 'discarded', discard_reason = 'panic', finalized_at = now() where finalized_at is null`,
		`delete from jobs`,
	} {
		db.exec(t, end)
		if f := tick("skip", "1 h"); len(f.Jobs) != 1 || f.Missed != 0 {
			t.Errorf("after %s: %+v", end, f)
		}
	}
	for range 2 {
		if f := tick("allow", "1 h"); len(f.Jobs) != 1 {
			t.Errorf("with overlap: %+v", f)
		}
	}
}

func TestPeriodicJitterStaysInItsBounds(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.SetPeriodic(t, drover.Periodic{Name: "a", Schedule: "@every 1h", CatchUp: drover.CatchUpAll, Jitter: 20 * time.Hour})
	db.exec(t, `update drover_periodic set anchor = anchor - interval '50 h', next_at = next_at - interval '50 h'`)
	// Those that are due in the past are due now, so only the last ones show where in the 20 hours they fell.
	if f := db.Fire(t, "a", ""); len(f.Jobs) != 50 {
		t.Fatalf("%+v", f)
	}
	const due = `select count(*) from jobs where metadata->'drover:periodic' is not null and `
	if n := value[int](t, db, due+`scheduled_at - (metadata->'drover:periodic'->>'tick')::timestamptz not between '0' and '20 h' and scheduled_at > created_at`); n != 0 {
		t.Errorf("%d jobs are due outside of the jitter", n)
	}
	if n := value[int](t, db, due+`scheduled_at > now()`); n < 3 || n > 17 { // 10 of the last 20 on average
		t.Errorf("%d jobs are due later", n)
	}
}

func TestPausePeriodic(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	ctx, c := t.Context(), db.client
	db.SetPeriodic(t, drover.Periodic{Name: "a", Schedule: "@every 1h", CatchUp: drover.CatchUpAll})
	state := func() *drover.PeriodicJob {
		j, err := c.PeriodicJob(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		return j
	}
	if err := c.PausePeriodic(ctx, "a", time.Time{}, drover.Audit{By: "ann", Why: "the bank is down"}); err != nil {
		t.Fatal(err)
	}
	if j := state(); j.State != drover.PeriodicPaused || len(j.Next) != 0 || j.PausedUntil != nil || j.UpdatedBy != "ann" || j.UpdatedWhy != "the bank is down" {
		t.Errorf("%+v", j)
	}
	db.Backdate(t, "a", "5 h")
	if f := db.Fire(t, "a", ""); f.Ours {
		t.Errorf("it ticks although it is paused: %+v", f)
	}
	if job, err := c.RunPeriodic(ctx, "a", nil, drover.Audit{By: "bob", Why: "now"}); err != nil || value[string](t, db, `select metadata->'drover:periodic'->>'by' from jobs where id = $1`, job) != "bob" {
		t.Errorf("RunPeriodic: %v", err)
	}
	job := drover.Job{Metadata: []byte(value[string](t, db, `select metadata::text from jobs`))}
	if run, ok := job.Periodic(); !ok || !run.ByHand || run.Name != "a" {
		t.Errorf("%+v", run)
	}
	if err := c.ResumePeriodic(ctx, "a", drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	// The ticks of the pause are not missed, nor made good.
	if j := state(); j.State != drover.PeriodicActive || j.Next[0].Before(time.Now()) || j.Next[0].After(time.Now().Add(time.Hour)) || j.Skipped != 0 {
		t.Errorf("%+v", j)
	}
	until := time.Now().Add(150 * time.Minute).Truncate(time.Microsecond)
	if err := c.PausePeriodic(ctx, "a", until, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	if j := state(); j.State != drover.PeriodicPaused || !j.PausedUntil.Equal(until) || j.Next[0].Before(until) || j.Next[0].After(until.Add(time.Hour)) {
		t.Errorf("%+v", j)
	}
	// The pause is over.
	db.exec(t, `update drover_periodic set anchor = anchor - interval '4 h', next_at = next_at - interval '4 h', paused_until = paused_until - interval '4 h'`)
	if f := db.Fire(t, "a", ""); len(f.Jobs) < 1 || len(f.Jobs) > 2 || f.Missed != 0 {
		t.Errorf("after the pause %+v", f)
	}
	if j := state(); j.State != drover.PeriodicActive || j.PausedUntil != nil {
		t.Errorf("%+v", j)
	}
	if err := c.PausePeriodic(ctx, "a", time.Now().Add(-time.Minute), drover.Audit{}); err == nil || !strings.Contains(err.Error(), "until: ") {
		t.Errorf("a pause until a minute ago: %v", err)
	}
	// Null, such as the answer of a query without a row, is no time: as drover_pause has it.
	db.exec(t, `select drover_periodic_pause('a', until => null)`)
	if j := state(); j.State != drover.PeriodicPaused || j.PausedUntil != nil {
		t.Errorf("until null: %+v", j)
	}
}

// A schedule whose next tick is far away costs no statement, because there are heartbeats anyway. A schedule that ticks costs
// each supervisor a look for each tick, and one of them the tick.
func TestSchedulesCostLittle(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.SetPeriodic(t, drover.Periodic{Name: "far"})
	traced, counted := db.traced(t, drover.Config{Logger: quiet()})
	sup := traced.run(t, harness.Ticker(""))
	looks := func() (n int) {
		calls, _ := counted.Since()
		return calls[store.SQLPeriodicDue] + calls[store.SQLFirePeriodic]
	}
	eventually(t, func() bool { return looks() > 0 }) // the first heartbeat says that there is one
	eventually(t, func() bool { return harness.EngineOf(sup).Scheduler.Next.Load() != 0 })
	harness.After(t, time.Second) // a second look, for a second heartbeat before that
	looks()
	harness.After(t, 11*time.Second) // two heartbeats
	if n := looks(); n != 0 {
		t.Errorf("%d statements for a schedule that ticks in months", n)
	}
	db.SetPeriodic(t, drover.Periodic{Name: "near", Schedule: "@every 1s"})
	db.waitFor(t, 20*time.Second, `select count(*) = 1 from drover_periodic where name = 'near' and jobs >= 1`)
	ticks := func() int { return value[int](t, db, `select jobs + skipped from drover_periodic where name = 'near'`) }
	was := ticks()
	looks()
	db.waitFor(t, 20*time.Second, `select jobs >= $1 from drover_periodic where name = 'near'`, was+6)
	if n, made := looks(), ticks()-was; n > made*3 {
		t.Errorf("%d statements for %d ticks", n, made)
	}
}

// More schedules are due together than one look lists, and in the second case the first of them cannot tick: all others do,
// without the help of a heartbeat.
func TestManySchedulesAtOnce(t *testing.T) {
	t.Parallel()
	slow(t)
	for _, bad := range []int{0, engine.TicksAtOnce + 5} {
		db := newQuietDB(t)
		const good = 2*engine.TicksAtOnce + 20
		db.exec(t, `insert into drover_periodic (name, kind, schedule, next_at)
			select case when n <= $2 then 'bad ' else 'good ' end || n, 'tick', case when n <= $2 then 'nonsense' else $3 end, now() - interval '1 s' + n * interval '1 ms'
			from generate_series(1, $1::int + $2::int) as n`, good, bad, harness.FarMinute())
		cfg := harness.Ticker("")
		cfg.Lease = time.Hour
		db.run(t, cfg)
		db.Soon(t, time.Minute, "schedules behind others do not tick", `select count(*) = $1 from drover_periodic where name like 'good%' and jobs = 1 and next_at > now()`, good)
		if n := value[int](t, db, `select count(*) from drover_periodic where name like 'bad%' and problem is null`); n != 0 {
			t.Errorf("%d schedules that make no sense do not say so", n)
		}
	}
}

// A heartbeat finds the next tick: the scheduler looks if it would not by itself, or well after that tick. Without a
// schedule it does not.
func TestAHeartbeatFindsTheNextTick(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	looks := func() bool {
		s.beat(t)
		select {
		case <-s.Scheduler.Signal:
			return true
		default:
			return false
		}
	}
	if looks() {
		t.Error("it looks for schedules where there is none")
	}
	db.SetPeriodic(t, drover.Periodic{Name: "a", Schedule: "@every 1h"})
	if !looks() {
		t.Error("it does not hear of a schedule")
	}
	s.Scheduler.Next.Store(time.Now().Add(50 * time.Minute).UnixNano())
	if looks() {
		t.Error("it looks for a tick that comes after its own look")
	}
	s.Scheduler.Next.Store(time.Now().Add(70 * time.Minute).UnixNano())
	if !looks() {
		t.Error("it does not hear of a tick before its own look")
	}
	db.exec(t, `update drover_periodic set declared_by = '{another}'`)
	if looks() {
		t.Error("it looks for a tick of another supervisor")
	}
}
