package engine_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/harness"
)

// auditAll runs an audit from its beginning to its end, and the settles that follow from it.
func (s *still) auditAll(t testing.TB) {
	t.Helper()
	a := s.Claimer.Audit
	a.Reconnected()
	for i := 0; ; i++ {
		if i == 1000 {
			t.Fatal("the audit does not end")
		}
		a.Ended, a.Next = time.Time{}, time.Time{}
		a.Mu.Lock()
		wanted := a.Hunt != nil || !a.Due.IsZero()
		if !a.Due.IsZero() {
			a.Due = s.Now()
		}
		a.Mu.Unlock()
		if !wanted {
			break
		}
		a.Page(t.Context(), &s.Claimer.Trouble, s.Now())
	}
	s.settle(t)
}

// F-15: rows that somebody changed by hand under a living owner are given back. A job that still runs here is left alone.
func TestAuditFindsRowsChangedByHand(t *testing.T) {
	t.Parallel()
	slow(t)
	for name, change := range map[string]string{
		"claim_seq":        `claim_seq = claim_seq + 1`,
		"attempted_at":     `attempted_at = attempted_at - interval '1 s'`,
		"both":             `claim_seq = 7, attempted_at = now()`,
		"at no time":       `attempted_at = 'infinity'`,
		"due later":        `claim_seq = claim_seq + 1, scheduled_at = now() - interval '1 h', priority = 9`,
		"attempt and that": `claim_seq = claim_seq + 1, attempt = 0`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newQuietDB(t)
			db.Unguarded(t)
			db.enqueueJobs(t, 3, nil)
			s := db.stopped(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 3}}})
			runs := s.claim(t)
			bad := runs[1].ID
			db.exec(t, `update jobs set `+change+` where id = $1`, bad)
			s.auditAll(t)
			if n := value[int](t, db, `select count(*) from jobs where state = 'running'`); n != 3 {
				t.Fatalf("%d of 3 run: one was given back while its handler may be at work", n)
			}
			runs[1].Finish()
			s.settle(t, decided(runs[1], nil)) // refused: it is stale
			if n := value[int](t, db, `select count(*) from jobs where state = 'running' and id = $1`, bad); n != 1 {
				t.Fatal("the outcome was not refused")
			}
			s.auditAll(t)
			if state := value[drover.State](t, db, `select state from jobs where id = $1`, bad); state != drover.Available && state != drover.Scheduled {
				t.Errorf("it is %s", state)
			}
			if n := value[int](t, db, `select count(*) from jobs where state = 'running'`); n != 2 {
				t.Errorf("%d of the 2 others run", n)
			}
		})
	}
}

// C4: a settle that the database acknowledged and then forgot leaves the job running in the name of a supervisor that
// lives. It runs again, unless it has a single attempt and has started.
func TestAuditFindsForgottenSettles(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.enqueueJobs(t, 1, nil)
	once := db.enqueue(t, job{1}, &drover.EnqueueOpts{MaxAttempts: 1})
	s := db.stopped(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 3}}})
	runs := s.claim(t)
	db.exec(t, `update jobs set started_seq = claim_seq, max_attempts = 3 where id = $1`, once) // the state when it started counts
	db.exec(t, `create table before as select * from jobs`)
	for _, r := range runs {
		r.Finish()
		s.settle(t, decided(r, nil))
	}
	db.exec(t, `update jobs j set state = 'running', finalized_at = null, claimed_by = b.claimed_by from before b where b.id = j.id`)
	s.auditAll(t)
	if !value[bool](t, db, `select state = 'discarded' and discard_reason = 'crashed' and errors->-1->>'error' like '%only run%' and not errors->-1 ? 'host' from jobs where id = $1`, once) {
		t.Errorf("the one that must not run again: %s", value[string](t, db, `select row_to_json(j)::text from jobs j where id = $1`, once))
	}
	if n := value[int](t, db, `select count(*) from jobs where state = 'available' and attempt = 0`); n != 1 {
		t.Errorf("the other: %s", value[string](t, db, `select row_to_json(j)::text from jobs j where id <> $1`, once))
	}
}

// C4: a reconnect asks for an audit, and the claimer makes it.
func TestAuditOfARunningSupervisor(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	name := "audited " + value[string](t, db, `select current_schema()`)
	named := db.via(t, drover.Config{}, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = name })
	ran := make(chan struct{}, 10)
	sup := named.launch(t, drover.SupervisorConfig{Lease: time.Hour, Workers: handling(func(context.Context, *drover.Job, int) error { ran <- struct{}{}; return nil })})
	db.enqueueJobs(t, 1, nil)
	receive(t, ran)
	db.waitFor(t, 20*time.Second, `select state = 'completed' from jobs`)
	a := harness.EngineOf(sup.Supervisor).Claimer.Audit
	a.Mu.Lock()
	a.Ended = time.Now() // no sweep asks for one
	a.Mu.Unlock()
	db.exec(t, `update jobs set state = 'running', finalized_at = null, claimed_by = $1`, harness.EngineOf(sup.Supervisor).Lease.Load().ID)
	db.exec(t, `select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1`, name)
	select {
	case <-ran:
	case <-time.After(time.Minute):
		t.Fatal("its connections came back, and no audit has found the job that nobody knows")
	}
	db.waitFor(t, 20*time.Second, `select state = 'completed' from jobs`)
}

// An audit takes little time, and none before the last one is a minute old.
func TestAuditIsPaced(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	const rows = 5 * engine.AuditPage // in one lane: a page reads as many of each
	db.exec(t, `insert into jobs (kind, scheduled_at) select 'job', now() - n * interval '1 ms' from generate_series(1, $1::int) as n`, rows)
	var ahead time.Duration
	s.Now = func() time.Time { return time.Now().Add(ahead) }
	a := s.Claimer.Audit
	if a.Rest(s.Now()) < time.Minute {
		t.Error("it begins by itself")
	}
	s.sweep(t)
	pages := 0
	for ; a.Hunt != nil || pages == 0; pages++ {
		if rest := a.Rest(s.Now()); rest > 0 {
			if rest < (engine.AuditShare/2)*time.Millisecond {
				t.Errorf("the next page after %v", rest)
			}
			ahead += rest
		}
		a.Page(t.Context(), &s.Claimer.Trouble, s.Now())
	}
	if pages < 5 {
		t.Errorf("%d pages of at most %d rows", pages, engine.AuditPage)
	}
	s.sweep(t)
	if a.Rest(s.Now()) < time.Minute {
		t.Error("the next full sweep begins another one at once")
	}
	ahead += engine.AuditGap
	s.sweep(t)
	if a.Rest(s.Now()) > 0 {
		t.Error("no other one begins after a minute")
	}
	if n := value[int](t, db, `select count(*) from jobs where state = 'available'`); n != rows {
		t.Errorf("%d jobs are as they were", n)
	}
}
