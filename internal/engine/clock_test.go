package engine_test

import (
	"strings"
	"testing"
	"time"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/floors"
	"github.com/drover-queue/drover/internal/health"
)

// stepClock makes the database and a supervisor look as if the server's clock had gone back by so much: all that was
// written before lies ahead.
func stepClock(t testing.TB, db *testDB, s *still, back time.Duration) {
	t.Helper()
	db.exec(t, `update drover_supervisors set beat_at = beat_at + $1::interval, started_at = started_at + $1::interval`, back)
	db.exec(t, `
update jobs set created_at = created_at + $1::interval, scheduled_at = scheduled_at + $1::interval,
	attempted_at = attempted_at + $1::interval, finalized_at = finalized_at + $1::interval`, back)
	s.Claimer.Floors.Mu.Lock()
	defer s.Claimer.Floors.Mu.Unlock()
	for key, f := range s.Claimer.Floors.Lanes {
		s.Claimer.Floors.Lanes[key] = floors.Floor{At: f.At.Add(back)}
	}
}

// The server's clock goes back while there is a backlog: the jobs wait, and health names them and the remedy.
func TestJobsThatWaitForTheClockAreNamed(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	s.claim(t)
	db.enqueueJobs(t, 3, nil)
	db.exec(t, `insert into jobs (kind, state, attempted_at, attempt, claim_seq, created_at) values ('job', 'retryable', now(), 1, 1, now() - interval '2 h')`)
	stepClock(t, db, s, time.Hour)
	// Not from before the step, as far as anybody can see: due in half an hour, and in two.
	db.exec(t, `insert into jobs (kind, state, scheduled_at) values ('job', 'scheduled', now() + interval '30 min'), ('job', 'scheduled', now() + interval '2 h')`)
	if runs := s.claim(t); len(runs) != 0 {
		t.Errorf("claimed %d jobs that are not due by the server's clock", len(runs))
	}

	h := db.Health(t)
	f := findingOf(t, h, "clock")
	if f.Level != health.LevelWarning || h.Clock.Waiting != 4 || h.Clock.Latest == nil || !strings.HasSuffix(f.What, "from now: 4") {
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
	if h := db.Health(t); findingOf(t, h, "clock").Level != health.LevelOK || h.Clock != (health.Clock{}) {
		t.Errorf("health when no job waits: %+v, %+v", findingOf(t, h, "clock"), h.Clock)
	}
}

// The server's clock goes back and on again. Supervisors find all jobs that are due by it, each time.
func TestJobsAreFoundAfterTheClockHasStepped(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	s.claim(t) // floors
	db.enqueueJobs(t, 3, nil)
	stepClock(t, db, s, time.Hour)
	db.enqueueJobs(t, 2, nil)
	if runs := append(s.claim(t), s.claim(t)...); len(runs) != 2 {
		t.Errorf("with the clock an hour back %d jobs were claimed, want the 2 new ones", len(runs))
	}
	stepClock(t, db, s, -time.Hour)
	if runs := append(s.claim(t), s.claim(t)...); len(runs) != 3 {
		t.Errorf("with the clock where it was %d jobs were claimed, want the first 3", len(runs))
	}
	if h := db.Health(t); findingOf(t, h, "clock").Level != health.LevelOK {
		t.Errorf("health: %+v", h.Clock)
	}
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
			db.exec(t, `update drover_supervisors set beat_at = beat_at + $1::interval`, step)
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
