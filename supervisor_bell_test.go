package drover

import (
	"context"
	"testing"
	"time"
)

// allHear waits until n supervisors sleep and hear.
func (db *testDB) allHear(t testing.TB, n int) {
	t.Helper()
	db.waitFor(t, 30*time.Second, `select count(*) filter (where sleeps_until > now()) = $1 from drover_sleepers`, n)
	db.waitFor(t, 30*time.Second, `select count(*) = $1 from pg_locks l join drover_supervisors s
on hashtextextended(s.id, 0) = (l.classid::bigint << 32 | l.objid::bigint) where l.locktype = 'advisory' and l.granted`, n)
}

// A job wakes one supervisor, and a second one looks a little later; the others hear nothing.
func TestOneSupervisorIsWoken(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	const sups, jobs = 8, 10
	ran := make(chan struct{}, jobs)
	for range sups {
		db.via(t, Config{}).launch(t, SupervisorConfig{PollInterval: time.Hour, Workers: handling(func(context.Context, *Job, int) error {
			ran <- struct{}{}
			return nil
		})})
	}
	db.allHear(t, sups)
	heard := db.ears(t, value[[]string](t, db, `select array(select id from drover_supervisors)`)...)
	for range jobs {
		db.enqueue(t, job{}, nil)
		receive(t, ran)
		after(t, time.Second/trickleRate)
	}
	heard.ping(t)
	// One each, and more where a claim took so long that another supervisor was asked to stand in.
	if heard.notes < jobs || heard.soon < jobs || heard.notes+heard.soon > 6*jobs {
		t.Errorf("%d jobs: %d supervisors were woken, and %d told to look later", jobs, heard.notes, heard.soon)
	}
}

// A supervisor without room passes on what it was woken for.
func TestAWakeUpIsPassedOn(t *testing.T) {
	t.Parallel()
	for name, busyToo := range map[string]bool{"all of its queues are full": false, "another queue has room": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newQuietDB(t)
			release := make(chan struct{})
			defer close(release)
			full, other := make(chan struct{}, 1), make(chan struct{}, 1)
			cfg := SupervisorConfig{PollInterval: time.Hour, Queues: []Queue{{Concurrency: 1}}, Workers: handling(func(context.Context, *Job, int) error {
				full <- struct{}{}
				<-release
				return nil
			})}
			if busyToo {
				cfg.Queues = append(cfg.Queues, Queue{Name: "idle"})
			}
			first := db.launch(t, cfg)
			db.enqueue(t, job{}, nil)
			receive(t, full)
			db.soon(t, 20*time.Second, "it has no room, and does not say so", `select count(*) = 1 from drover_sleepers where queue = 'default' and sleeps_until = '-infinity'`)
			db.via(t, Config{}).launch(t, SupervisorConfig{PollInterval: time.Hour, Workers: handling(func(context.Context, *Job, int) error {
				other <- struct{}{}
				return nil
			})})
			db.allHear2(t)
			db.exec(t, `insert into jobs (kind) values ('job')`) // announced to nobody
			heard := db.ears(t, value[string](t, db, `select max(id) from drover_supervisors`))
			first.claimer.ring("default")
			eventually(t, func() bool { heard.ping(t); return heard.notes > 0 })
			receive(t, other)
		})
	}
}

// allHear2 waits until the younger of two supervisors sleeps and both hear.
func (db *testDB) allHear2(t testing.TB) {
	t.Helper()
	db.waitFor(t, 30*time.Second, `select count(*) = 1 from drover_sleepers where queue = 'default' and sleeps_until = 'infinity'`)
	db.waitFor(t, 30*time.Second, `select count(*) = 2 from pg_locks l join drover_supervisors s
on hashtextextended(s.id, 0) = (l.classid::bigint << 32 | l.objid::bigint) where l.locktype = 'advisory' and l.granted`)
}

// If the supervisor that was woken does not come, another one looks.
func TestAFrozenSupervisorIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	frozen := db.stopped(t, SupervisorConfig{})
	if !frozen.control.listens() || frozen.control.bell == "" {
		t.Fatal("producers could not know that it listens")
	}
	db.exec(t, `update drover_sleepers set sleeps_until = 'infinity'`)
	ran := make(chan struct{}, 1)
	db.via(t, Config{}).launch(t, SupervisorConfig{PollInterval: time.Hour, Workers: handling(func(context.Context, *Job, int) error {
		ran <- struct{}{}
		return nil
	})})
	db.allHear(t, 2)
	heard := db.ears(t, frozen.lease.Load().id)
	producer := db.via(t, Config{})
	for tries := 0; heard.notes < 2; tries++ {
		if tries == 1000 { // each second another one of the two is the first
			t.Fatal("the frozen one was never woken")
		}
		producer.enqueue(t, job{}, nil)
		receive(t, ran)
		after(t, 50*time.Millisecond)
		heard.ping(t)
	}
}

// Jobs that are more than one supervisor has room for wake the others, however few notifications there were.
func TestABacklogWakesTheOthers(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	const sups = 6
	release, ran := make(chan struct{}), make(chan struct{}, 10*sups)
	defer close(release)
	for range sups {
		db.via(t, Config{}).launch(t, SupervisorConfig{PollInterval: time.Hour, Queues: []Queue{{Concurrency: 1}}, Workers: handling(func(context.Context, *Job, int) error {
			ran <- struct{}{}
			<-release
			return nil
		})})
	}
	db.allHear(t, sups)
	db.enqueueJobs(t, 10*sups, nil)
	for range sups {
		receive(t, ran)
	}
}

// In each poll interval one of the supervisors that share the polls looks, and each of them looks once a round.
func TestPollsAreShared(t *testing.T) {
	t.Parallel()
	const poll = 5 * time.Second
	begin := time.Date(2031, 5, 4, 3, 2, 1, 500, time.UTC)
	for _, of := range []int64{1, 2, 3, mostPollers - 1, mostPollers, mostPollers + 1, 64, 200} {
		looks := map[int64]int{} // by interval
		for at := range of {
			p := pollPlace{at: at, of: of}
			for now := begin; now.Sub(begin) < 3*mostPollers*poll; {
				wait := p.wait(now, poll)
				if round := time.Duration(min(of, mostPollers)) * poll; wait <= 0 || wait > round {
					t.Fatalf("place %d of %d waits %v, a round takes %v", at, of, wait, round)
				}
				now = now.Add(wait)
				looks[now.UnixNano()/int64(poll)]++
			}
		}
		first := begin.UnixNano()/int64(poll) + mostPollers + 1
		for i := first; i < first+mostPollers; i++ {
			if most := int(of/mostPollers) + 2; looks[i] == 0 || looks[i] > most {
				t.Errorf("%d supervisors look %d times in an interval, want 1 to %d", of, looks[i], most)
			}
		}
	}
	var turns pollPlaces
	if got := turns.wait(begin, poll); got != poll {
		t.Errorf("one that hears nothing waits %v", got)
	}
}

// A wake-up is answered by as many jobs as were announced, or by one look that is sure; else the look is repeated.
func TestWakeUpsAreAnswered(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, SupervisorConfig{PollInterval: 5 * time.Second})
	clock := time.Now()
	s.now = func() time.Time { return clock }
	c := s.claimer
	c.sleep.asleep, c.anew, c.sleep.full = true, false, []string{}
	look := func(woken int, costly bool) (next time.Duration) {
		t.Helper()
		for i := range c.near.windows {
			c.near.windows[i].cost, c.near.windows[i].next = 0, clock.Add(time.Hour)
			if costly {
				c.near.windows[i].cost = time.Second
			}
		}
		c.hearing = hearing{since: clock.Add(-time.Hour), awakeTo: 1} // nobody takes it for awake
		for range woken {
			c.ring("default")
		}
		plan := c.request(clock)
		if plan == nil {
			t.Fatal("it would not look")
		}
		c.trip(t.Context(), plan)
		return c.lookAt().Sub(clock)
	}
	if next := look(1, false); next < time.Second {
		t.Errorf("a look that is sure is followed by another after %v", next)
	}
	if next := look(1, true); next > 10*time.Millisecond {
		t.Errorf("a look that may have missed the job is followed by another after %v only", next)
	}
	c.bell.take(clock)
	db.exec(t, `insert into jobs (kind) values ('job')`)
	c.floors.reset()
	if next := look(1, true); next < time.Second {
		t.Errorf("a look that found the job is followed by another after %v", next)
	}
	db.exec(t, `insert into jobs (kind) values ('job')`)
	c.floors.reset()
	if next := look(2, true); next > 0 {
		t.Errorf("a look that found one job of two is followed by another after %v only", next)
	}
}

// A look for jobs that are due is followed by others until one finds nothing, because only that one tells when the next job is
// due. Other jobs may become due between two looks, as those of a redrive do.
func TestJobsThatBecomeDueOneAfterTheOther(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, SupervisorConfig{PollInterval: time.Hour})
	clock := time.Now()
	s.now = func() time.Time { return clock }
	c := s.claimer
	c.sleep.asleep, c.anew, c.sleep.full = true, false, []string{}
	look := func(finds int) (next time.Duration) {
		t.Helper()
		c.hearing = hearing{since: clock.Add(-time.Hour), awakeTo: 1} // nobody takes it for awake
		claimed := s.settler.book.len()
		request := c.request(clock)
		if request == nil {
			t.Fatal("it would not look")
		}
		c.trip(t.Context(), request)
		if n := s.settler.book.len() - claimed; n != finds {
			t.Fatalf("found %d jobs, want %d", n, finds)
		}
		return c.lookAt().Sub(clock)
	}
	db.exec(t, `insert into jobs (kind, scheduled_at) values ('job', now() + interval '30 min')`)
	for n := range 3 {
		db.exec(t, `insert into jobs (kind) values ('job')`)
		if n == 0 {
			c.noteDue(clock)
		}
		if next := look(1); next > 0 {
			t.Fatalf("look %d is followed by another after %v", n, next)
		}
	}
	if next := look(0); next < 20*time.Minute || next > 30*time.Minute {
		t.Errorf("the next look comes after %v", next)
	}
}

// A supervisor that is stuck in a claim had said that it is awake. Another one is asked to look, and enqueues wake that one.
func TestAStuckSupervisorIsStoodInFor(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.launch(t, SupervisorConfig{PollInterval: time.Hour})
	db.allHear(t, 1)
	heard := db.ears(t, value[string](t, db, `select id from drover_supervisors`))
	db.exec(t, `
create function hang() returns trigger language plpgsql as $$
begin
	perform pg_sleep(8);
	return new;
end
$$;
create trigger hang before update on jobs for each row when (new.queue = 'hang') execute function hang();
insert into jobs (kind, queue) values ('job', 'hang')`)
	db.via(t, Config{}).launch(t, SupervisorConfig{PollInterval: time.Hour, Queues: []Queue{{}, {Name: "hang"}}})
	db.soon(t, 30*time.Second, "it is stuck, and passes for awake", `
select count(*) = 1 from drover_sleepers where queue = 'default' and sleeps_until = '-infinity' and exists (select from pg_stat_activity where wait_event = 'PgSleep')`)
	heard.ping(t)
	woken := heard.notes
	db.via(t, Config{}).enqueue(t, job{}, nil)
	heard.ping(t)
	if woken == 0 || heard.notes == woken {
		t.Errorf("%d supervisors were woken when one was stuck, %d by an enqueue then", woken, heard.notes-woken)
	}
	db.soon(t, 30*time.Second, "it does not say that it looks again", `select count(*) = 0 from drover_sleepers where sleeps_until = '-infinity'`)
}

// Without any notification one of the idle supervisors looks in each poll interval.
func TestIdleSupervisorsTakeTurnsToPoll(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	const poll, jobs = 500 * time.Millisecond, 8
	ran := make(chan struct{}, jobs)
	for range 3 {
		db.via(t, Config{}).launch(t, SupervisorConfig{PollInterval: poll, Lease: 3 * time.Second, Workers: handling(func(context.Context, *Job, int) error {
			ran <- struct{}{}
			return nil
		})})
	}
	db.allHear(t, 3)
	after(t, 4*time.Second) // until looks come at full intervals, and heartbeats have told the places
	begun := time.Now()
	for range jobs {
		db.exec(t, `insert into jobs (kind) values ('job')`)
		receive(t, ran)
	}
	if took := time.Since(begun); took > 4*jobs*poll {
		t.Errorf("%d jobs that nobody announced took %v, with a poll interval of %v", jobs, took, poll)
	}
}

// Parked jobs become due by a statement of the supervisor itself, in the session that holds its own bell.
func TestASupervisorHearsOfJobsThatItReleases(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	ran := make(chan struct{}, 1)
	db.launch(t, SupervisorConfig{PollInterval: time.Hour, Lease: 3 * time.Second, Build: "b1", Workers: handling(func(context.Context, *Job, int) error {
		ran <- struct{}{}
		return nil
	})})
	db.allHear(t, 1)
	after(t, 2*time.Second) // until it looks seldom
	for range 3 {
		db.exec(t, `insert into jobs (kind, state, scheduled_at, parked_build, errors_total, attempt) values ('job', 'parked', 'infinity', '', 1, 1)`)
		receive(t, ran)
		after(t, 2*time.Second)
	}
}
