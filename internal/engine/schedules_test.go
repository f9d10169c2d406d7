package engine_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/pg"
)

// A schedule that is declared in code ticks while a supervisor declares it, and for those only.
func TestDeclaredScheduleNeedsItsSupervisor(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	ctx, c := t.Context(), db.client
	stop := db.StartTicker(t, harness.Ticker("v1", drover.Periodic{Name: "mine"}))
	db.StartTicker(t, harness.Ticker("v1"))
	if j := db.PeriodicJob(t, "mine"); j.State != drover.PeriodicActive || !j.Declared || j.Build != "v1" || len(j.Next) != 10 || j.UpdatedBy != "build v1" {
		t.Errorf("%+v", j)
	}
	if err := c.DeletePeriodic(ctx, "mine", drover.Audit{}); !errors.Is(err, drover.ErrState) {
		t.Errorf("DeletePeriodic of a schedule that a supervisor declares: %v", err)
	}
	if err := c.SetPeriodic(ctx, drover.Periodic{Name: "mine", Schedule: "@daily", Args: tickArgs{}}, drover.Audit{}); !errors.Is(err, drover.ErrState) {
		t.Errorf("SetPeriodic of a schedule that is declared in code: %v", err)
	}
	other := value[string](t, db, `select id from drover_supervisors s where not exists (select from drover_periodic p where s.id = any(p.declared_by))`)
	owner := value[string](t, db, `select declared_by[1] from drover_periodic`)
	db.exec(t, `select from drover_periodic where name = 'mine'`)
	if err := c.PausePeriodic(ctx, "mine", time.Time{}, drover.Audit{}); err != nil { // it survives the stop
		t.Fatal(err)
	}
	stop()
	// Its last word has 2 s to reach the database; else the other one declares it lost.
	db.waitFor(t, 2*time.Minute, `select not exists (select from drover_supervisors where id = $1)`, owner)
	if j := db.PeriodicJob(t, "mine"); j.State != drover.PeriodicPaused || len(j.Next) != 0 {
		t.Errorf("paused, after its supervisor has ended: %+v", j)
	}
	if err := c.ResumePeriodic(ctx, "mine", drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	if j := db.PeriodicJob(t, "mine"); j.State != drover.PeriodicUndeclared || len(j.Next) != 0 {
		t.Errorf("resumed, after its supervisor has ended: %+v", j)
	}
	db.Backdate(t, "mine", "366 days")
	for _, of := range []string{"", other} {
		if f := db.Fire(t, "mine", of); f.Ours {
			t.Errorf("supervisor %q, which does not declare it, ticks it: %+v", of, f)
		}
	}
	if f := db.Fire(t, "mine", owner); !f.Ours {
		t.Error("the supervisor that declares it does not tick it")
	}
	if err := c.DeletePeriodic(ctx, "mine", drover.Audit{}); err != nil {
		t.Errorf("DeletePeriodic of a schedule that nobody declares any more: %v", err)
	}
}

// The newest build's settings hold, whichever starts last; a deploy of the same moves no tick.
func TestNewestBuildDeclares(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	at := func(n int) drover.SupervisorConfig {
		return harness.Ticker(fmt.Sprintf("v%d", n), drover.Periodic{Name: "a", Args: tickArgs{n}, Schedule: "@every 1h"})
	}
	db.StartTicker(t, at(1))
	db.Backdate(t, "a", "10 min")
	next := db.PeriodicJob(t, "a").Next[0]
	db.StartTicker(t, at(2))
	db.StartTicker(t, at(1))
	j := db.PeriodicJob(t, "a")
	if string(j.Args) != `{"n": 2}` || j.Build != "v2" || !j.Next[0].Equal(next) {
		t.Errorf("%+v, next %v, was %v", j, j.Next[0], next)
	}
	if n := value[int](t, db, `select cardinality(declared_by) from drover_periodic`); n != 3 {
		t.Errorf("%d supervisors declare it, want 3", n)
	}
}

// A deploy that is rolled back takes its schedules with it: once no supervisor of the newer build lives, the schedules of the
// older build hold again, whether it starts anew or has lived all the time.
func TestARolledBackBuildLeavesNoSchedule(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	at := func(n int) drover.SupervisorConfig {
		cfg := harness.Ticker(fmt.Sprintf("v%d", n), drover.Periodic{Name: "a", Args: tickArgs{n}, Schedule: fmt.Sprintf("@every %dh", n)})
		cfg.Lease = time.Second // a heartbeat finds who has left
		return cfg
	}
	settled := func(n int) string {
		return fmt.Sprintf(`select build = 'v%d' and schedule = '@every %dh' and args->>'n' = '%d' from drover_periodic`, n, n, n)
	}
	stop := db.StartTicker(t, at(1))
	stop()
	stop = db.StartTicker(t, at(2))
	db.Soon(t, 20*time.Second, "the settings are of another build", settled(2))
	stop()
	db.waitFor(t, 2*time.Minute, `select count(*) = 0 from drover_supervisors`)
	db.StartTicker(t, at(1)) // anew
	db.Soon(t, 20*time.Second, "the settings are of another build", settled(1))
	stop = db.StartTicker(t, at(3))
	db.Soon(t, 20*time.Second, "the settings are of another build", settled(3))
	db.StartTicker(t, at(1)) // anew, next to the newer build
	if !value[bool](t, db, settled(3)) {
		t.Error("the newer build's settings are gone while it lives")
	}
	stop()
	db.Soon(t, 20*time.Second, "the settings of a build that has gone hold", settled(1)) // the supervisors that have lived all the time see it go
	if n := value[int](t, db, `select cardinality(declared_by) from drover_periodic`); n != 2 {
		t.Errorf("%d supervisors declare it, want 2", n)
	}
}

// Two supervisors declare a new schedule at the same time, the newer build first. Both are noted in its row, and the newer
// build's settings hold.
func TestANewScheduleIsDeclaredTwiceAtOnce(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into drover_builds (build, first_seen) values ('v1', now() - interval '1 h'), ('v2', now())`)
	for id, build := range map[string]string{"older": "v1", "newer": "v2"} {
		db.Alive(t, id)
		db.exec(t, `update drover_supervisors set build = $2 where id = $1`, id, build)
	}
	const declare = `select drover_periodic_declare($1, $2, jsonb_build_array(jsonb_build_object('name', 'a', 'kind', 'tick', 'args', jsonb_build_object('of', $1::text), 'options', '{}'::jsonb,
		'schedule', '@yearly', 'zone', 'UTC', 'jitter_ms', 0, 'catch_up', 'skip', 'overlap', 'allow')), wait => false)::text`
	first, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Rollback(context.Background()) }()
	if _, err := first.Exec(t.Context(), declare, "newer", "v2"); err != nil {
		t.Fatal(err)
	}
	second := make(chan error, 1)
	go func() {
		_, err := db.Exec(context.Background(), declare, "older", "v1")
		second <- err
	}()
	db.waitFor(t, 20*time.Second, `select exists (select from pg_stat_activity where application_name = current_schema() and wait_event_type = 'Lock')`)
	if err := first.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, second); err != nil {
		t.Fatal(err)
	}
	if got := value[string](t, db, `select declared_by::text || build || (args->>'of') from drover_periodic`); got != "{newer,older}v2newer" {
		t.Error(got)
	}
}

// A schedule that was made at run time stays, although a supervisor declares another one of its name.
func TestDeclaredBesideOneMadeAtRunTime(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.SetPeriodic(t, drover.Periodic{Name: "a", Args: tickArgs{1}})
	db.StartTicker(t, harness.Ticker("v1", drover.Periodic{Name: "a", Args: tickArgs{2}}, drover.Periodic{Name: "b"}))
	if j := db.PeriodicJob(t, "a"); j.Declared || string(j.Args) != `{"n": 1}` {
		t.Errorf("%+v", j)
	}
	if j := db.PeriodicJob(t, "b"); !j.Declared {
		t.Errorf("%+v", j)
	}
}

// A refusal of the database is noted, the schedule goes on, and so do the others.
func TestARefusedTickIsNoted(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var skipped []drover.Event
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{{PeriodicSkipped: func(_ context.Context, e drover.Event) {
		mu.Lock()
		defer mu.Unlock()
		skipped = append(skipped, e)
	}}}})
	db.exec(t, `alter table jobs add constraint mine check (args->>'n' <> '13')`)
	db.SetPeriodic(t, drover.Periodic{Name: "bad", Args: tickArgs{13}, Schedule: "@every 1h"})
	db.SetPeriodic(t, drover.Periodic{Name: "good", Args: tickArgs{1}, Schedule: "@every 1h"})
	db.SetPeriodic(t, drover.Periodic{Name: "late", Args: tickArgs{1}, Schedule: "@every 1h"})
	db.SetPeriodic(t, drover.Periodic{Name: "nonsense", Schedule: "@every 1h"})
	db.exec(t, `update drover_periodic set anchor = anchor - interval '1 h', next_at = next_at - interval '1 h' where name <> 'late'`)
	db.Backdate(t, "late", "3 h 5 min")
	db.exec(t, `update drover_periodic set schedule = 'edited by hand' where name = 'nonsense'`)
	db.run(t, harness.Ticker(""))
	db.waitFor(t, 30*time.Second, `select count(*) = 3 from drover_periodic where next_at > now()`)
	db.waitFor(t, 30*time.Second, `select count(*) = 1 from drover_periodic where name = 'nonsense' and problem like '%schedule%'`)
	j := db.PeriodicJob(t, "bad")
	if j.Jobs != 0 || !strings.Contains(j.Problem, `"mine"`) || j.ProblemAt == nil || j.Next[0].Before(time.Now()) {
		t.Errorf("%+v", j)
	}
	if n := value[int](t, db, `select count(*) from jobs where metadata->'drover:periodic'->>'name' = 'good'`); n != 1 {
		t.Errorf("the other schedule made %d jobs", n)
	}
	eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(skipped) == 2
	})
	slices.SortFunc(skipped, func(a, b drover.Event) int { return strings.Compare(a.Periodic, b.Periodic) })
	if e := skipped[0]; e.Periodic != "bad" || e.Kind != "tick" || e.Queue != "default" || e.Count != 1 || !strings.HasPrefix(e.Error, "refused: ") {
		t.Errorf("%+v", e)
	}
	if e := skipped[1]; e.Periodic != "late" || e.Count != 3 || !strings.HasPrefix(e.Error, "missed: ") {
		t.Errorf("%+v", e)
	}
}

// A tick that makes no job because its schedule asks for that is no warning in the log. A missed tick is one.
func TestASkipThatWasAskedForIsNoWarning(t *testing.T) {
	t.Parallel()
	logged := &harness.Logbook{}
	db := newTestDBWith(t, drover.Config{Logger: slog.New(logged)})
	db.SetPeriodic(t, drover.Periodic{Name: "overlap", Schedule: "@every 1h", CatchUp: drover.CatchUpAll, Overlap: drover.OverlapSkip, Opts: &drover.EnqueueOpts{Queue: "unserved"}})
	db.SetPeriodic(t, drover.Periodic{Name: "unique", Schedule: "@every 1h", CatchUp: drover.CatchUpAll, Opts: &drover.EnqueueOpts{Queue: "unserved", Unique: &drover.Unique{}}})
	db.SetPeriodic(t, drover.Periodic{Name: "late", Schedule: "@every 1h"})
	for _, name := range []string{"overlap", "unique", "late"} {
		db.Backdate(t, name, "3 h 5 min")
	}
	db.run(t, harness.Ticker(""))
	skips := func(level slog.Level) (names string) {
		for _, line := range logged.From(level) {
			for _, name := range []string{"overlap", "unique", "late"} {
				if strings.HasPrefix(line, "schedule ticked without a job") && strings.Contains(line, "periodic="+name) {
					names += name + " "
				}
			}
		}
		return names
	}
	eventually(t, func() bool { return len(strings.Fields(skips(slog.LevelInfo))) == 3 })
	if got := skips(slog.LevelWarn); got != "late " {
		t.Errorf("warned of: %s", got)
	}
}

// A schedule whose jobs take for ever to insert does not hold up the others.
func TestAStuckTickHoldsUpNobody(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.exec(t, `create function stuck() returns trigger language plpgsql as $$ begin perform pg_sleep(60); return new; end $$`)
	db.exec(t, `create trigger stuck before insert on jobs for each row when (new.args->>'n' = '13') execute function stuck()`)
	db.SetPeriodic(t, drover.Periodic{Name: "a stuck one", Args: tickArgs{13}, Schedule: "@every 1h"})
	db.SetPeriodic(t, drover.Periodic{Name: "b", Args: tickArgs{1}, Schedule: "@every 1h"})
	db.Backdate(t, "a stuck one", "1 h 10 s")
	db.Backdate(t, "b", "1 h")
	db.run(t, harness.Ticker(""))
	db.waitFor(t, 30*time.Second, `select count(*) = 1 from drover_periodic where name = 'b' and jobs = 1`)
	db.waitFor(t, 30*time.Second, `select count(*) = 1 from drover_periodic where name like 'a%' and problem is not null and next_at < now()`)
	db.exec(t, `drop trigger stuck on jobs`)
	db.waitFor(t, time.Minute, `select count(*) = 1 from drover_periodic where name like 'a%' and jobs = 1`)
}

// Restoring an older row is a catch-up. With the jobs of those ticks still there it makes none of them again; if they are
// gone, CatchUpSkip makes one at most.
func TestRestoringAnOlderSchedule(t *testing.T) {
	t.Parallel()
	for _, kept := range []bool{true, false} {
		t.Run(fmt.Sprintf("jobs kept %v", kept), func(t *testing.T) {
			t.Parallel()
			db := newQuietDB(t)
			db.SetPeriodic(t, drover.Periodic{Name: "all", Schedule: "@every 1h", CatchUp: drover.CatchUpAll})
			db.SetPeriodic(t, drover.Periodic{Name: "skip", Schedule: "@every 1h"})
			db.exec(t, `update drover_periodic set anchor = anchor - interval '20 h', next_at = next_at - interval '20 h'`)
			db.exec(t, `create table backup as select * from drover_periodic`)
			if f := db.Fire(t, "all", ""); len(f.Jobs) != 20 {
				t.Fatalf("%+v", f)
			}
			if f := db.Fire(t, "skip", ""); len(f.Jobs) != 1 {
				t.Fatalf("%+v", f)
			}
			if !kept {
				db.exec(t, `delete from jobs`)
			}
			db.exec(t, `delete from drover_periodic; insert into drover_periodic select * from backup`)
			all, skip := db.Fire(t, "all", ""), db.Fire(t, "skip", "")
			if again := len(all.Jobs); kept && again != 0 || !kept && again != 20 {
				t.Errorf("%d of 20 ticks made jobs again", again)
			}
			if again := len(skip.Jobs); kept && again != 0 || again > 1 {
				t.Errorf("with CatchUpSkip %d jobs were made again", again)
			}
			if all.Fault != "" || skip.Fault != "" {
				t.Errorf("%q, %q", all.Fault, skip.Fault)
			}
		})
	}
}

// A schedule that is deleted and made anew under the same name is another one: its ticks have jobs of their own.
func TestAScheduleMadeAnewHasItsOwnTicks(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	for i := range 2 {
		db.SetPeriodic(t, drover.Periodic{Name: "a", Schedule: "0 0 * * *"})
		db.exec(t, `update drover_periodic set next_at = date_trunc('day', now() at time zone 'UTC') at time zone 'UTC', catch_up = 'once'`)
		if f := db.Fire(t, "a", ""); len(f.Jobs) != 1 {
			t.Errorf("schedule %d: %+v", i, f)
		}
		if err := db.client.DeletePeriodic(t.Context(), "a", drover.Audit{}); err != nil {
			t.Fatal(err)
		}
	}
}

// The server's clock goes forward by an hour and back: the ticks of that hour come early, once, and then none until the
// clock reaches them again.
func TestPeriodicClockSteps(t *testing.T) {
	t.Parallel()
	for catchUp, want := range map[drover.CatchUp]int{drover.CatchUpSkip: 1, drover.CatchUpOnce: 1, drover.CatchUpAll: 60} {
		t.Run(string(catchUp), func(t *testing.T) {
			t.Parallel()
			db := newQuietDB(t)
			db.SetPeriodic(t, drover.Periodic{Name: "a", Schedule: "@every 1m", CatchUp: catchUp})
			db.Backdate(t, "a", "1 h") // as the clock sees it that was put forward
			f := db.Fire(t, "a", "")
			if len(f.Jobs) != want || int(f.Missed) != 60-want {
				t.Fatalf("after the step %d jobs, %d missed, want %d and the rest of 60", len(f.Jobs), f.Missed, want)
			}
			db.Backdate(t, "a", "-1 h") // and back
			if f := db.Fire(t, "a", ""); f.Ours {
				t.Errorf("a tick that has come already comes again: %+v", f)
			}
			if wait := time.Until(db.PeriodicJob(t, "a").Next[0]); wait < 59*time.Minute || wait > 62*time.Minute {
				t.Errorf("the next tick is %v away", wait)
			}
			db.Backdate(t, "a", "61 min 1 s") // or the tick would be one of before, whose job exists
			if f := db.Fire(t, "a", ""); len(f.Jobs) == 0 {
				t.Errorf("it does not go on: %+v", f)
			}
		})
	}
}

// A verb that holds the row and a tick do not wait for each other's outcome: a schedule that is deleted or paused does not tick.
func TestATickBesideAVerb(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	for _, verb := range []string{`select drover_periodic_pause('a')`, `select drover_periodic_delete('a')`} {
		db.SetPeriodic(t, drover.Periodic{Name: "a", Schedule: "@every 1h"})
		db.exec(t, `select drover_periodic_resume('a')`)
		db.Backdate(t, "a", "1 h")
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), verb); err != nil {
			t.Fatal(err)
		}
		if f := db.Fire(t, "a", ""); f.Ours {
			t.Errorf("while %s is under way: %+v", verb, f)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if f := db.Fire(t, "a", ""); f.Ours {
			t.Errorf("after %s: %+v", verb, f)
		}
	}
}

// The newer build has gone, and somebody holds its schedule locked in an open transaction: heartbeats go on over the same
// connection, and the older build's settings hold once the lock is gone.
func TestALockedScheduleHoldsUpNoHeartbeat(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	cfg := harness.Ticker("v1", drover.Periodic{Name: "a", Args: tickArgs{1}, Schedule: "@every 1h"})
	cfg.Lease = 3 * time.Second // the server ends the statement after a twelfth
	s := db.stopped(t, cfg)
	db.Alive(t, "newer")
	s.beat(t)
	db.exec(t, `update drover_periodic set build = 'v2', args = '{"n": 2}'`)
	db.exec(t, `delete from drover_supervisors where id = 'newer'`)
	end := db.Hold(t, `select from drover_periodic for update`)
	conn := s.Keeper.Link.Current()
	s.beat(t)
	if s.Keeper.Link.Current() != conn || conn.Closed() {
		t.Error("the lock has cost the heartbeat its connection")
	}
	end()
	s.beat(t)
	if got := value[string](t, db, `select build || ' ' || (args->>'n') from drover_periodic`); got != "v1 1" {
		t.Errorf("the schedule has %s", got)
	}
}

// rows that somebody has edited by hand to nonsense. Each keeps the error, all can be listed, health names them, and the
// schedule that is due after them ticks.
func TestNonsenseByHandHoldsUpNobody(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	edits := map[string]string{
		"cron": `schedule = '99 * * * *'`, "never": `schedule = '0 0 31 2 *'`, "every": `schedule = '@every soon'`, "zone": `zone = 'Mars/Base', schedule = '@hourly'`,
		"option": `options = '{"priority": "high"}'`, "args": `args = jsonb_build_array(repeat('[', 10))`,
	}
	for name, edit := range edits {
		db.SetPeriodic(t, drover.Periodic{Name: name, Schedule: "@every 1h"})
		db.exec(t, `update drover_periodic set `+edit+` where name = '`+name+`'`)
		db.Backdate(t, name, "1 h 30 s")
	}
	db.SetPeriodic(t, drover.Periodic{Name: "good", Schedule: "@every 1h"})
	db.Backdate(t, "good", "1 h 10 s")
	db.run(t, harness.Ticker(""))
	db.Soon(t, 20*time.Second, "the good schedule does not tick", `select jobs = 1 from drover_periodic where name = 'good'`)
	db.Soon(t, 20*time.Second, "a schedule does not keep its error", `select count(*) = 4 from drover_periodic where problem <> ''`)
	for _, name := range []string{"cron", "every", "zone", "option"} {
		if j := db.PeriodicJob(t, name); j.Problem == "" || j.Jobs != 0 {
			t.Errorf("%s: %+v", name, j)
		}
	}
	list, err := db.client.PeriodicJobs(t.Context())
	if err != nil || len(list) != len(edits)+1 {
		t.Errorf("%d schedules are listed, %v", len(list), err)
	}
	named := 0
	for _, f := range db.Health(t).Findings {
		if f.Name == "periodic" && strings.Contains(f.What, "schedule ") {
			named++
		}
	}
	if named < 4 {
		t.Errorf("health names %d schedules", named)
	}
}

// Somebody holds a schedule locked in an open transaction: a supervisor that declares it starts all the same, and declares
// it once the lock is gone. Otherwise no supervisor could register, because each one locks the rows of its kinds first.
func TestALockedScheduleHoldsUpNoStart(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	cfg := harness.Ticker("v1", drover.Periodic{Name: "a"}, drover.Periodic{Name: "b"})
	cfg.Lease = 3 * time.Second
	gone := db.stopped(t, cfg)
	db.exec(t, `delete from drover_supervisors`)
	end := db.Hold(t, `select drover_periodic_pause('a')`)
	s := db.stopped(t, cfg)
	declares := func(name string) bool {
		return value[bool](t, db, `select declared_by = array[$2] from drover_periodic where name = $1`, name, s.Lease.Load().ID)
	}
	if declares("a") || !declares("b") {
		t.Error("the lock was ignored, or has held up another schedule")
	}
	end()
	s.beat(t)
	if !declares("a") {
		t.Errorf("the schedule is declared by %v, not %s (before: %s)", value[[]string](t, db, `select declared_by from drover_periodic where name = 'a'`),
			s.Lease.Load().ID, gone.Lease.Load().ID)
	}
}

// A supervisor starts while somebody deletes its schedule, which no supervisor has declared so far. The supervisor stores
// the schedule anew with its next heartbeat.
func TestAScheduleIsDeletedDuringAStart(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	cfg := harness.Ticker("v1", drover.Periodic{Name: "a"})
	db.stopped(t, cfg)
	db.exec(t, `delete from drover_supervisors`)
	person, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = person.Rollback(context.Background()) }()
	if _, err := person.Exec(t.Context(), `select drover_periodic_delete('a')`); err != nil {
		t.Fatal(err)
	}
	s := db.stopped(t, cfg)
	if err := person.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.beat(t)
	if !value[bool](t, db, `select exists (select from drover_periodic where declared_by = array[$1])`, s.Lease.Load().ID) {
		t.Error("a supervisor runs that declares the schedule, and the schedule has no row")
	}
	// A row that is deleted by hand later does not come back.
	db.exec(t, `delete from drover_periodic`)
	s.beat(t)
	if value[int](t, db, `select count(*) from drover_periodic`) != 0 {
		t.Error("the schedule that was deleted by hand is back")
	}
}

// A schedule is made at run time and declared in code at the same time: the transaction that commits first decides.
func TestAScheduleIsMadeInTwoWaysAtOnce(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	const (
		set     = `select drover_periodic_set($1, 'tick', '@yearly')`
		declare = `select drover_periodic_declare('s', 'v1', jsonb_build_array(jsonb_build_object('name', $1::text, 'kind', 'tick', 'args', '{}'::jsonb, 'options', '{}'::jsonb,
			'schedule', '@yearly', 'zone', 'UTC', 'jitter_ms', 0, 'catch_up', 'skip', 'overlap', 'allow')))::text`
	)
	db.Alive(t, "s")
	for first, statements := range map[string][2]string{"set": {set, declare}, "declared": {declare, set}} {
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), statements[0], first); err != nil {
			t.Fatal(err)
		}
		second := make(chan error, 1)
		go func() {
			_, err := db.Exec(context.Background(), statements[1], first)
			second <- err
		}()
		db.waitFor(t, 20*time.Second, `select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')`)
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-second; (first == "declared") != (pg.SQLState(err) == "DR002") {
			t.Errorf("first it was %s: %v", first, err)
		}
		if got := value[bool](t, db, `select declared_by is not null from drover_periodic where name = $1`, first); got != (first == "declared") {
			t.Errorf("first it was %s, and then declared in code: %v", first, got)
		}
	}
}
