package engine_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/health"
)

// stepClockBack is what the server's clock going back by an hour looks like: all that was written before lies an hour
// ahead.
func stepClockBack(t testing.TB, db *testDB) {
	t.Helper()
	db.exec(t, `update drover_supervisors set beat_at = beat_at + interval '1 h', clock_at = clock_at + interval '1 h', started_at = started_at + interval '1 h'`)
	db.exec(t, `
update jobs set created_at = created_at + interval '1 h', scheduled_at = scheduled_at + interval '1 h',
	attempted_at = attempted_at + interval '1 h', finalized_at = finalized_at + interval '1 h'`)
}

// The server's clock goes back while there is a backlog: the jobs wait, and the log and health name the step and the jobs.
func TestJobsThatWaitForTheClockAreNamed(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	var book logbook
	other := db.via(t, drover.Config{Logger: slog.New(&book)})
	s := other.stopped(t, drover.SupervisorConfig{})
	ahead := time.Duration(0)
	s.Now = func() time.Time { return time.Now().Add(ahead) }
	pass := func(d time.Duration) {
		ahead += d
		s.Keeper.Kept(s.Now())
	}
	s.beat(t)
	db.enqueueJobs(t, 3, nil)
	db.exec(t, `insert into jobs (kind, state, attempted_at, attempt, claim_seq, created_at) values ('job', 'retryable', now(), 1, 1, now() - interval '2 h')`)
	stepClockBack(t, db)
	// Not from before the step, as far as anybody can see: due in half an hour, and in two.
	db.exec(t, `insert into jobs (kind, state, scheduled_at) values ('job', 'scheduled', now() + interval '30 min'), ('job', 'scheduled', now() + interval '2 h')`)
	lines := func() (of []string) {
		for _, line := range book.from(slog.LevelInfo) {
			if strings.Contains(line, "the server's clock has go") {
				of = append(of, line)
			}
		}
		return of
	}
	s.beat(t)
	if of := lines(); len(of) != 1 || !strings.Contains(of[0], "jobs=4") || !strings.Contains(of[0], "has gone back") {
		t.Fatalf("after one beat: %q", of)
	}
	for range 3 {
		pass(time.Second)
		s.beat(t)
	}
	if of := lines(); len(of) != 1 {
		t.Errorf("within a minute: %q", of)
	}
	pass(time.Minute)
	s.beat(t)
	if of := lines(); len(of) != 2 {
		t.Errorf("after a minute: %q", of)
	}
	if runs := s.claim(t); len(runs) != 0 {
		t.Errorf("claimed %d jobs that are not due by the server's clock", len(runs))
	}

	h := db.health(t)
	f := findingOf(t, h, "clock")
	if f.Level != health.LevelWarning || h.Clock.Waiting != 4 || h.Clock.Since == nil || !strings.Contains(f.What, "that wait until then: 4") {
		t.Fatalf("health: %+v, %+v", f, h.Clock)
	}
	if by := h.Clock.Latest.Sub(h.At); by < 50*time.Minute || by > time.Hour {
		t.Errorf("the clock is %v behind, want about an hour", by)
	}

	db.exec(t, f.Do)
	db.waitFor(t, 30*time.Second, `select count(*) = 4 from jobs where scheduled_at <= clock_timestamp()`)
	if runs := s.claim(t); len(runs) != 4 {
		t.Errorf("after what health says to do %d jobs were claimed, want 4", len(runs))
	}
	if h := db.health(t); findingOf(t, h, "clock").Level != health.LevelOK || h.Clock.Latest == nil {
		t.Errorf("health when no job waits: %+v, %+v", findingOf(t, h, "clock"), h.Clock)
	}
	pass(time.Minute)
	s.beat(t)
	if of := lines(); len(of) != 2 {
		t.Errorf("when no job waits: %q", of)
	}

	db.exec(t, `update drover_supervisors set clock_at = now()`) // it is where it was
	s.beat(t)
	s.beat(t)
	if of := lines(); len(of) != 3 || !strings.Contains(of[2], "has got to where it was") {
		t.Errorf("at the end: %q", of)
	}
	if h := db.health(t); findingOf(t, h, "clock").Level != health.LevelOK || h.Clock != (health.Clock{}) {
		t.Errorf("health at the end: %+v, %+v", findingOf(t, h, "clock"), h.Clock)
	}
}

// health is a look at the health.
func (db *testDB) health(t testing.TB) *health.Report {
	t.Helper()
	h, err := health.Look(t.Context(), poolOf(db.client))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// findingOf is the only one of a name.
func findingOf(t testing.TB, h *health.Report, name string) (of health.Finding) {
	t.Helper()
	n := 0
	for _, f := range h.Findings {
		if f.Name == name {
			of, n = f, n+1
		}
	}
	if n != 1 {
		t.Fatalf("%d findings %s: %+v", n, name, h.Findings)
	}
	return of
}

// A supervisor that starts after the step knows of it, from supervisors that live and from supervisors that have ended.
func TestNewcomersKnowThatTheClockWentBack(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]string{
		"of the living": `insert into drover_supervisors (id, lease_ms, queues, clock_at) values ('other', 10000, '{default}', now() + interval '1 h'), ('odd', 10000, '{default}', 'infinity'), ('odder', 10000, '{default}', '-infinity')`,
		"of the ended":  `insert into drover_ended_supervisors (id, host, pid, started_at, ended_at, died) values ('other', '', 1, now(), now() + interval '1 h', false), ('odd', '', 1, now(), 'infinity', false)`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newQuietDB(t)
			db.exec(t, before)
			s := db.stopped(t, drover.SupervisorConfig{})
			s.beat(t)
			db.exec(t, `delete from drover_supervisors where id <> $1`, s.Lease.Load().ID)
			s.beat(t)
			if h := db.health(t); h.Clock.Latest == nil || h.Clock.Since == nil || h.Clock.Latest.Sub(h.At) < 50*time.Minute {
				t.Errorf("health: %+v", h.Clock)
			}
		})
	}
}

// A step of the server's clock, back or on, is no silence, and hides none: beats are counted.
func TestLeasesDoNotFollowTheServersClock(t *testing.T) {
	t.Parallel()
	for name, step := range map[string]string{"back by an hour": "1 h", "on by ten minutes": "-10 min", "on by an hour": "-1 h"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newQuietDB(t)
			s := db.stopped(t, drover.SupervisorConfig{Lease: 10 * time.Minute}) // beside which the time that this takes is nothing
			ahead := time.Duration(0)
			s.Now = func() time.Time { return time.Now().Add(ahead) }
			db.exec(t, `insert into drover_supervisors (id, lease_ms, queues) values ('alive', 600000, '{default}'), ('dead', 600000, '{default}')`)
			s.beat(t)
			db.exec(t, `update drover_supervisors set beat_at = beat_at + $1::interval, clock_at = clock_at + $1::interval`, step)
			for range 8 {
				ahead += 2 * time.Minute
				s.Keeper.Kept(s.Now())
				db.exec(t, `update drover_supervisors set beat = beat + 1 where id = 'alive'`)
				s.beat(t)
			}
			if lost := value[string](t, db, `select coalesce(string_agg(id, ',' order by id), '') from drover_supervisors where lost_at is not null`) +
				value[string](t, db, `select coalesce(string_agg(id, ',' order by id), '') from drover_ended_supervisors`); lost != "dead" {
				t.Errorf("lost: %q, want only the dead one, a lease after its last beat", lost)
			}
			if s.Lease.Load().Ended.Load() {
				t.Error("our own lease was lost")
			}
		})
	}
}
