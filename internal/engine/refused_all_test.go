package engine_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/store"
)

// An outcome that is refused is kept even if the note of it in drover_set_aside is refused too.
func TestARefusedOutcomeIsNotLost(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.refuseRow(t, "new.state = 'completed'", `raise exception 'no';`)
	db.exec(t, `create function nono() returns trigger language plpgsql as $$ begin raise exception 'no note'; end $$`)
	db.exec(t, `create trigger nono before insert on drover_set_aside for each row execute function nono()`)
	s := db.via(t, drover.Config{}).stopped(t, drover.SupervisorConfig{})
	id := value[string](t, db, insertBad)
	r := s.claimAll(t, 1)[0]
	s.Settler.Settle(finished(r, nil))
	s.Settler.Trip(t.Context(), s.Settler.Take(s.Now()))
	db.exec(t, `drop trigger nono on drover_set_aside`)
	db.exec(t, `drop trigger refuse on jobs`)
	for _, o := range s.Settler.Locked {
		o.NotBefore = time.Time{}
	}
	if out := s.Settler.Take(s.Now()); len(out) > 0 {
		s.Settler.Trip(t.Context(), out)
	}
	t.Logf("job %s is %s, book %d apart %d locked %d outcomes %d", id, value[string](t, db, `select state from jobs where id = $1`, id),
		s.Settler.Unsettled.Len(), s.Settler.RefusedRuns.Len(), len(s.Settler.Locked), len(s.Settler.Ended))
	if value[string](t, db, `select state from jobs where id = $1`, id) == "running" && len(s.Settler.Locked) == 0 {
		t.Error("the outcome is lost: the job is running, and nothing waits to be written")
	}
}

// If the database refuses every settle for a while, no job is at fault: none becomes a dead letter.
func TestOutcomesThatAreAllRefusedWait(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `create function refuse() returns trigger language plpgsql as $$ begin if new.state = 'completed' then raise exception 'relation audit does not exist' using errcode = '42P01'; end if; return new; end $$`)
	db.exec(t, `create trigger refuse before update on jobs for each row execute function refuse()`)
	s := db.via(t, drover.Config{}).stopped(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 50}}})
	db.enqueueJobs(t, 50, nil)
	for _, r := range s.claimAll(t, 50) {
		s.Settler.Settle(finished(r, nil))
	}
	for range engine.SettleTries + 2 {
		s.Settler.Trouble = engine.Trouble{}
		for _, o := range s.Settler.Locked {
			o.NotBefore = time.Time{}
		}
		if out := s.Settler.Take(s.Now()); len(out) > 0 {
			s.Settler.Trip(t.Context(), out)
		}
	}
	if n := value[int](t, db, `select count(*) from jobs where discard_reason = 'refused'`); n > 0 {
		t.Errorf("%d of 50 completed jobs are discarded", n)
	}
}

// If the database refuses every claim of several supervisors, no job is at fault.
func TestClaimsThatAreAllRefusedToSeveralWait(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.exec(t, `create function refuse() returns trigger language plpgsql as $$ begin if new.state = 'running' then raise exception 'no'; end if; return new; end $$`)
	db.exec(t, `create trigger refuse before update on jobs for each row execute function refuse()`)
	db.enqueueJobs(t, 60, nil)
	for range 3 {
		db.via(t, drover.Config{}).launch(t, drover.SupervisorConfig{})
	}
	<-time.After(8 * time.Second)
	if n := value[int](t, db, `select count(*) from jobs where class = 'refused'`); n > 0 {
		t.Errorf("%d of 60 are put off", n)
	}
}

// The same with a trigger whose condition cannot be computed.
func TestClaimsThatAreAllRefusedForDataWait(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.exec(t, `create function fine() returns trigger language plpgsql as $$ begin return new; end $$`)
	db.exec(t, `create trigger fine before update on jobs for each row when (new.state = 'running' and current_setting('app.tenant', true)::int > 0) execute function fine()`)
	db.exec(t, `do $$ begin perform set_config('app.tenant', '', false); end $$`)
	db.enqueueJobs(t, 50, nil)
	edit := func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["app.tenant"] = "" }
	db.via(t, drover.Config{}, edit).launch(t, drover.SupervisorConfig{})
	<-time.After(4 * time.Second)
	if n := value[int](t, db, `select count(*) from jobs where discard_reason = 'refused'`); n > 0 {
		t.Errorf("%d of 50 are discarded", n)
	}
}

// An error of a claim that belongs to no job is met again after a pause, not immediately.
func TestAFailingRoundTripIsNotRepeatedAtOnce(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.exec(t, `create sequence looks`)
	db.exec(t, `create function nono() returns trigger language plpgsql as $$ begin perform nextval('looks'); raise exception 'no'; end $$`)
	db.exec(t, `create trigger nono before update on jobs for each statement execute function nono()`)
	db.via(t, drover.Config{}).launch(t, drover.SupervisorConfig{})
	<-time.After(4 * time.Second)
	n := value[int](t, db, `select last_value from looks`)
	t.Logf("%d failed claims in 4 s", n)
	if n > 50 {
		t.Error("more than 50 failed claims in 4 s: there is no pause between them")
	}
}

// After a lock of the whole table under a lock_timeout, every lane is claimed from again.
func TestATableLockLeavesNoLaneOut(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	edit := func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["lock_timeout"] = "50ms" }
	db.via(t, drover.Config{}, edit).launch(t, drover.SupervisorConfig{})
	db.enqueueJobs(t, 1, nil)
	db.waitFor(t, time.Minute, `select count(*) = 1 from jobs where state = 'completed'`)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `lock table jobs in access exclusive mode`); err != nil {
		t.Fatal(err)
	}
	<-time.After(4 * time.Second)
	if err := tx.Commit(context.Background()); err != nil {
		t.Fatal(err)
	}
	db.enqueueJobs(t, 20, nil)
	// A lane that is left out is left out for a minute.
	db.Soon(t, time.Minute, "jobs wait although the lock is gone", `select count(*) = 21 from jobs where state = 'completed'`)
}

// A supervisor of another queue leaves a job that is set aside where it is.
func TestWhatIsSetAsideIsTriedByWhoServesIt(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.refuseRow(t, "true", `raise exception 'no';`)
	id := value[string](t, db, insertBad)
	db.exec(t, `insert into drover_set_aside (path, job, error, code, tries, retry_at) values ('claim', $1, 'no', 'P0001', 9, now())`, id)
	db.via(t, drover.Config{}).launch(t, drover.SupervisorConfig{Queues: []drover.Queue{{Name: "other"}}})
	<-time.After(3 * time.Second)
	if value[int](t, db, `select count(*) from drover_set_aside`) == 0 {
		t.Error("a supervisor that does not serve its queue took it off the list")
	}
}

// The look for lost claims does not give back a job whose outcome waits to be written.
func TestALostClaimLeavesRefusedOutcomesAlone(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.refuseRow(t, "new.state = 'completed'", `raise exception 'no';`)
	s := db.via(t, drover.Config{}).stopped(t, drover.SupervisorConfig{})
	id := value[string](t, db, insertBad)
	r := s.claimAll(t, 1)[0]
	s.Settler.Settle(finished(r, nil))
	s.Settler.Trip(t.Context(), s.Settler.Take(s.Now()))
	db.exec(t, `update drover_set_aside set retry_at = now()`) // 15 s later
	s.Claimer.Doubt = []string{"default"}
	for range 3 {
		if s.Claimer.Doubt != nil {
			s.Claimer.FindOut(t.Context())
		}
	}
	if out := s.Settler.Take(s.Now()); len(out) > 0 {
		s.Settler.Trip(t.Context(), out)
	}
	if got := value[string](t, db, `select state from jobs where id = $1`, id); got != "running" {
		t.Errorf("a job that has run and whose outcome waits is %s: it runs again", got)
	}
}

// A job that was discarded because it was refused begins anew after a redrive.
func TestARedriveForgetsRefusals(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	id := value[string](t, db, insertBad)
	for range 13 {
		db.exec(t, `select drover_refuse('claim', $1, 0, 'no', 'P0001', true)`, id)
	}
	if got := value[string](t, db, `select state from jobs where id = $1`, id); got != "discarded" {
		t.Fatal(got)
	}
	db.exec(t, `select drover_redrive($1)`, id)
	if got := value[string](t, db, `select drover_refuse('claim', $1, 0, 'no', 'P0001', true)`, id); got == "discarded" {
		t.Error("discarded by the first refusal after the redrive")
	}
}

// While a trigger refuses the rescue of every job of a dead supervisor, no job is at fault.
func TestRescuesThatAreAllRefusedWait(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `create function refuse() returns trigger language plpgsql as $$ begin raise exception 'no'; end $$`)
	db.held(t, "dead", 80)
	db.exec(t, `create trigger refuse before update on jobs for each row when (new.state = 'retryable') execute function refuse()`)
	db.Dead(t, "dead")
	s := db.via(t, drover.Config{}).stopped(t, drover.SupervisorConfig{Lease: 30 * time.Second})
	s.beat(t)
	if n := value[int](t, db, `select count(*) from jobs where discard_reason = 'refused'`); n > 0 {
		t.Errorf("%d of 80 are discarded", n)
	}
}

// A strong suspect that is set aside does not keep the one of another queue from its turn.
func TestWhatIsSetAsideStarvesNoSuspect(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.exec(t, `insert into jobs (kind, queue, crashes, errors_total, scheduled_at) values ('job', 'a', 3, 3, now() - interval '1 hour'), ('job', 'b', 3, 3, now() - interval '1 minute')`)
	t.Log(value[string](t, db, `select string_agg(queue || ' ' || lane, ', ') from jobs`))
	db.exec(t, `insert into drover_set_aside (path, job, error, code, tries, retry_at) select 'claim', id, 'no', 'P0001', 9, now() + interval '1 day' from jobs where queue = 'a'`)
	db.via(t, drover.Config{}).launch(t, drover.SupervisorConfig{Lease: 3 * time.Second, Queues: []drover.Queue{{Name: "a"}, {Name: "b"}}})
	db.Soon(t, 3*time.Minute, "the healthy suspect waits", `select state = 'completed' from jobs where queue = 'b'`) // the other one is set aside for a day
}

// A strong suspect that was set aside is tried again alone, never next to others.
func TestAStrongSuspectSetAsideRunsAlone(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.enqueue(t, job{1}, nil)
	sup := db.via(t, drover.Config{}).stopped(t, drover.SupervisorConfig{})
	sup.claimAll(t, 1) // runs, as far as the book says
	id := value[string](t, db, `insert into jobs (kind, args, crashes, errors_total) values ('job', '{"n": 2}', 3, 3) returning id`)
	db.exec(t, `insert into drover_set_aside (path, job, error, code, tries, retry_at) values ('claim', $1, 'no', 'P0001', 9, now() - interval '1 s')`, id)
	sup.Claimer.TendAside(t.Context())
	if got := value[string](t, db, `select state || ' lane ' || lane from jobs where id = $1`, id); got[:7] == "running" {
		t.Errorf("a strong suspect is %s beside %d others", got, sup.Settler.Unsettled.Len()-1)
	}
}

// A lock that passes does not cost a failure its text.
func TestALockLeavesTheErrorsText(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	edit := func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["lock_timeout"] = "50ms" }
	s := db.via(t, drover.Config{}, edit).stopped(t, drover.SupervisorConfig{})
	id := db.enqueue(t, job{1}, nil)
	r := s.claimAll(t, 1)[0]
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `lock table jobs in share mode`); err != nil { // create index
		t.Fatal(err)
	}
	s.Settler.Settle(finished(r, fmt.Errorf("card 4242 was declined")))
	s.Settler.Trip(t.Context(), s.Settler.Take(s.Now()))
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, o := range s.Settler.Locked {
		o.NotBefore = time.Time{}
	}
	s.Settler.Trip(t.Context(), s.Settler.Take(s.Now()))
	if got := value[string](t, db, `select errors->-1->>'error' from jobs`); got != "card 4242 was declined" {
		t.Errorf("%v: the error is recorded as %q", id, got)
	}
}

// Rows that each run into a time-out do not hold up another queue for long.
func TestAWalkThatTakesItsTimeLetsOthersGo(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.exec(t, `create sequence timeouts`)
	db.refuseRow(t, "new.state = 'running'", `perform nextval('timeouts'); perform pg_sleep(600);`)
	db.exec(t, `insert into jobs (kind) values ('job')`)
	db.exec(t, `insert into jobs (kind, args) select 'job', '{"bad": 1}' from generate_series(1, 40)`)
	db.via(t, drover.Config{}).launch(t, drover.SupervisorConfig{Lease: 6 * time.Second, Queues: []drover.Queue{{Concurrency: 50}, {Name: "other"}}})
	db.waitFor(t, time.Minute, `select count(*) = 1 from jobs where state = 'completed'`)
	id := db.enqueue(t, job{2}, &drover.EnqueueOpts{Queue: "other"})
	before := value[int](t, db, `select last_value from timeouts`)
	db.waitFor(t, 5*time.Minute, `select state = 'completed' from jobs where id::text = $1::text`, id)
	// Of half a second each, however slow the machine is besides.
	if n := value[int](t, db, `select last_value from timeouts`) - before; n > 24 { // two leases; it was seven
		t.Errorf("it waited for %d time-outs, more than two leases", n)
	}
}

// A start that can be neither noted nor refused is tried again after a pause, not immediately.
func TestAStartThatIsRefusedIsNotRepeatedAtOnce(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.refuseRow(t, "(new.started_seq is distinct from old.started_seq or new.class = 'refused')", `raise exception 'no';`)
	id := value[string](t, db, `insert into jobs (kind, args, max_attempts) values ('job', '{"bad": 1}', 1) returning id`)
	db.via(t, drover.Config{}).launch(t, drover.SupervisorConfig{})
	<-time.After(4 * time.Second)
	n := value[int](t, db, `select claim_seq from jobs where id = $1`, id)
	t.Logf("%d claims in 4 s; set aside: %s", n, value[string](t, db, `select string_agg(path || ' tries ' || tries, ',') from drover_set_aside`))
	if n > 10 {
		t.Error("more than 10 claims in 4 s: there is no pause between them")
	}
}

// Of more than a thousand jobs that are set aside, none is tried before its time, and others run.
func TestMoreThanAThousandSetAside(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.refuseRow(t, "true", `raise exception 'no';`)
	db.exec(t, `insert into jobs (kind, args) select 'job', '{"bad": 1}' from generate_series(1, 1300)`)
	db.exec(t, `insert into drover_set_aside (path, job, error, code, tries, retry_at) select 'claim', id, 'no', 'P0001', 9, now() + interval '1 day' from jobs`)
	db.via(t, drover.Config{}).launch(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 50}}})
	for n := range 5 { // with a look each at least
		db.enqueueJobs(t, 1, nil)
		db.waitFor(t, time.Minute, `select count(*) = $1 from jobs where state = 'completed'`, n+1)
	}
	if got := value[string](t, db, `select count(*) || ' of ' || max(tries) || ' tries' from drover_set_aside`); got != "1300 of 9 tries" {
		t.Errorf("set aside now: %s, want what it was", got)
	}
}

// Healthy jobs run behind as many refused ones as a claim takes, and more.
func TestRefusedJobsAtTheHeadOfAQueue(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ slots, bad int }{{1, 1}, {1, 3}, {10, 1}, {10, 30}, {50, 120}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			t.Parallel()
			db := newQuietDB(t)
			db.refuseRow(t, "new.state = 'running'", `raise exception 'no';`)
			db.exec(t, `insert into jobs (kind, args, scheduled_at) select 'job', '{"bad": 1}', now() - interval '1 minute' from generate_series(1, $1)`, c.bad)
			db.enqueueJobs(t, 20, nil)
			db.via(t, drover.Config{}).launch(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: c.slots}}})
			db.Soon(t, 30*time.Second, "not all healthy jobs have run", `select count(*) = 20 from jobs where state = 'completed'`)
		})
	}
}

// While somebody creates an index, no job can be claimed or settled, and no job is at fault. Afterwards all of them run.
func TestWhileTheTableIsLockedNoJobIsAtFault(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	release := make(chan struct{})
	sup := db.via(t, drover.Config{}).launch(t, drover.SupervisorConfig{
		Lease: 2 * time.Second, Queues: []drover.Queue{{Concurrency: 20}},
		Workers: handling(func(context.Context, *drover.Job, int) error { <-release; return nil }),
	})
	db.enqueueJobs(t, 5, nil)
	eventually(t, func() bool { return sup.Stats().Running == 5 })
	db.enqueueJobs(t, 40, &drover.EnqueueOpts{Delay: time.Second})
	unlock := db.Hold(t, `lock table jobs in share mode`)
	close(release)
	for locked := time.Now(); time.Since(locked) < 8*time.Second; <-time.After(100 * time.Millisecond) { // a round trip takes at most a second
		if aside := value[string](t, db, `select coalesce(string_agg(path || ': ' || error, ', '), '') from drover_set_aside`); aside != "" {
			t.Fatalf("after %v a job is set aside: %s", time.Since(locked), aside)
		}
	}
	unlock()
	db.Soon(t, 10*time.Second, "jobs wait although the lock is gone", `select count(*) = 45 from jobs where state = 'completed'`)
}

// The start of a job with one attempt waits for a lock of the whole table.
func TestAStartWaitsForALockOfTheTable(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.enqueue(t, job{1}, &drover.EnqueueOpts{MaxAttempts: 1})
	s := db.via(t, drover.Config{}).stopped(t, drover.SupervisorConfig{Lease: 2 * time.Second})
	start := &engine.Start{Run: s.claim(t)[0], Noted: make(chan bool, 1)}
	s.Settler.Starts = []*engine.Start{start}
	unlock := db.Hold(t, `lock table jobs in share mode`)
	s.Settler.NoteStarts(t.Context(), s.Now())
	unlock()
	if n := value[int](t, db, `select count(*) from drover_set_aside`); n > 0 || len(start.Noted) > 0 {
		t.Fatalf("%d jobs set aside, %d starts answered", n, len(start.Noted))
	}
	s.Settler.NoteStarts(t.Context(), s.Now().Add(time.Minute)) // after its pause
	if !<-start.Noted {
		t.Error("the job does not start although the lock is gone")
	}
}

// The rescue of a dead supervisor's jobs waits for a lock of the whole table.
func TestARescueWaitsForALockOfTheTable(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.held(t, "dead", 3)
	db.Dead(t, "dead")
	s := db.via(t, drover.Config{}).stopped(t, drover.SupervisorConfig{Lease: 30 * time.Second})
	unlock := db.Hold(t, `lock table jobs in share mode`)
	for range engine.PatientBeats + 1 {
		s.beat(t)
	}
	unlock()
	if n := value[int](t, db, `select count(*) from drover_set_aside`); n > 0 {
		t.Fatalf("%d jobs are set aside", n)
	}
	s.beat(t)
	if n := value[int](t, db, `select count(*) from jobs where state = 'retryable'`); n != 3 {
		t.Errorf("%d of 3 jobs are freed", n)
	}
}

// A crash is taken back after a lock of the whole table, however long the lock lasts.
func TestATakeBackWaitsForALockOfTheTable(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	id := value[string](t, db, `insert into jobs (kind, crashes, deaths, errors_total) values ('job', 1, 1, 1) returning id`)
	db.exec(t, `insert into drover_ended_supervisors (id, host, pid, started_at, ended_at, died, blamed) values ('dead', '', 0, now(), now(), true, array[$1])`, id)
	s := db.via(t, drover.Config{}).stopped(t, drover.SupervisorConfig{Lease: 30 * time.Second})
	s.Keeper.Was = []engine.PastLease{{ID: "dead", Late: map[string]int{id: engine.PatientBeats - 1}}}
	unlock := db.Hold(t, `lock table jobs in share mode`)
	s.beat(t)
	unlock()
	s.beat(t)
	if !value[bool](t, db, `select crashes = 0 and deaths = 0 from jobs`) || len(s.Keeper.Was) > 0 {
		t.Errorf("not taken back: %s", value[string](t, db, `select row_to_json(j)::text from jobs j`))
	}
}

// The pruner waits for a lock of the whole table.
func TestThePrunerWaitsForALockOfTheTable(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.exec(t, `insert into queues (name, archive_discarded_after) values ('default', interval '1 hour') on conflict (name) do update set archive_discarded_after = excluded.archive_discarded_after`)
	for _, state := range []string{"completed", "discarded"} {
		db.Finished(t, state, 72*time.Hour)
	}
	kept := store.Keeping{Completed: keepFor(drover.KeepFor(time.Hour))}
	unlock := db.Hold(t, `lock table jobs in share mode`)
	if _, err := db.prune(t.Context(), engine.PruneWalk{}, kept); err != nil {
		t.Error(err)
	}
	unlock()
	if n := value[int](t, db, `select count(*) from drover_set_aside`); n > 0 {
		t.Fatalf("%d jobs are set aside", n)
	}
	if _, err := db.prune(t.Context(), engine.PruneWalk{}, kept); err != nil {
		t.Error(err)
	}
	if n := value[int](t, db, `select count(*) from jobs`); n > 0 {
		t.Errorf("%d jobs are left", n)
	}
}
