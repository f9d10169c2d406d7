package drover_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/pg"
)

// startsOf counts the runs of each job.
type startsOf struct {
	mu sync.Mutex
	n  map[string]int
}

func (s *startsOf) add(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n == nil {
		s.n = map[string]int{}
	}
	s.n[id]++
}

func (s *startsOf) once(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n[id] == 1
}

// a pause holds its scope and nothing else. Running jobs go on, and jobs that came meanwhile start after it.
func TestPauses(t *testing.T) {
	t.Parallel()
	for scope, held := range map[drover.Scope]func(queue, kind string) bool{
		drover.AllJobs:                 func(string, string) bool { return true },
		drover.QueueScope("a"):         func(queue, _ string) bool { return queue == "a" },
		drover.KindScope("x"):          func(_, kind string) bool { return kind == "x" },
		drover.QueueScope("nobody's:"): func(string, string) bool { return false },
	} {
		t.Run(string(scope), func(t *testing.T) {
			t.Parallel()
			var heard harness.EventLog
			db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
			goOn := make(chan struct{})
			var started startsOf
			handle := func(_ context.Context, job *drover.Job) error {
				started.add(job.ID)
				if job.Priority == 1 {
					<-goOn
				}
				return nil
			}
			db.launch(t, drover.SupervisorConfig{PollInterval: time.Hour, Queues: []drover.Queue{{Name: "a"}, {Name: "b"}}, Workers: []drover.Worker{dynWorker("x", drover.WorkerOpts{}, handle), dynWorker("y", drover.WorkerOpts{}, handle)}})
			long := db.enqueue(t, dyn{kind: "x"}, &drover.EnqueueOpts{Queue: "a", Priority: 1})
			eventually(t, func() bool { return started.once(long) })

			if err := db.client.Pause(t.Context(), scope, nil, drover.Audit{By: "ada", Why: "maintenance"}); err != nil {
				t.Fatal(err)
			}
			pauses, err := db.client.Pauses(t.Context())
			if err != nil || len(pauses) != 1 || pauses[0].Scope != scope || pauses[0].Unconfirmed == nil || len(pauses[0].Unconfirmed) > 0 || pauses[0].By != "ada" ||
				pauses[0].Why != "maintenance" || pauses[0].Until != nil || time.Since(pauses[0].Since).Abs() > time.Minute || !pauses[0].UpdatedAt.Equal(pauses[0].Since) {
				t.Errorf("Pauses = %+v, %v", pauses, err)
			}
			var all, waiting []string
			for _, queue := range []string{"a", "b"} {
				for _, kind := range []string{"x", "y"} {
					id := db.enqueue(t, dyn{kind: kind}, &drover.EnqueueOpts{Queue: queue})
					all = append(all, id)
					if held(queue, kind) {
						waiting = append(waiting, id)
					} else {
						eventually(t, func() bool { return started.once(id) })
					}
				}
			}
			close(goOn)
			db.waitFor(t, 20*time.Second, `select state = 'completed' from jobs where id = $1`, long)
			harness.After(t, 300*time.Millisecond)
			if slices.ContainsFunc(waiting, started.once) {
				t.Error("a job of the scope has started")
			}
			if err := db.client.Resume(t.Context(), scope, drover.Audit{By: "bob"}); err != nil {
				t.Fatal(err)
			}
			for _, id := range all {
				eventually(t, func() bool { return started.once(id) })
			}
			if pauses, err := db.client.Pauses(t.Context()); err != nil || pauses == nil || len(pauses) > 0 {
				t.Errorf("Pauses = %+v, %v", pauses, err)
			}
			if by := value[string](t, db, `select updated_by from drover_limits`); by != "bob" {
				t.Errorf("%s has resumed it", by)
			}
			named := func(name string) []harness.LoggedEvent {
				return slices.DeleteFunc(slices.Clone(heard.Of("")), func(e harness.LoggedEvent) bool { return e.Name != name })
			}
			eventually(t, func() bool { return len(named("resumed")) == 1 })
			if got := named("paused"); len(got) != 1 || got[0].Scope != scope || got[0].By != "ada" || got[0].Why != "maintenance" || got[0].Supervisor == "" {
				t.Errorf("paused: %+v", got)
			}
			if got := named("resumed"); got[0].Scope != scope || got[0].By != "bob" {
				t.Errorf("resumed: %+v", got)
			}
		})
	}
}

// Pause does not return while a supervisor may start jobs. If ctx ends first, the error names it, and the pause stays.
func TestPauseNamesWhoHasNotConfirmed(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	silent := db.Stopped(t, drover.SupervisorConfig{Lease: time.Hour})
	id := silent.Lease.Load().ID
	db.enqueue(t, job{}, nil)
	if runs := silent.Claim(t); len(runs) != 1 {
		t.Fatalf("%d jobs were claimed", len(runs))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err := db.client.Pause(ctx, drover.AllJobs, nil, drover.Audit{})
	var unconfirmed *drover.UnconfirmedError
	if !errors.As(err, &unconfirmed) || !slices.Equal(unconfirmed.Supervisors, []string{id}) || unconfirmed.Scope != drover.AllJobs || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), id) {
		t.Errorf("Pause = %v although a supervisor has a job that it may start", err)
	}
	pauses, err := db.client.Pauses(t.Context())
	if err != nil || len(pauses) != 1 || !slices.Equal(pauses[0].Unconfirmed, []string{id}) {
		t.Errorf("Pauses = %+v, %v", pauses, err)
	}
	silent.Beat(t)
	if !value[bool](t, db, `select unconfirmed = '{}' from job_limits`) {
		t.Error("it has not confirmed with its heartbeat")
	}
	// A ctx that is done from the beginning stores nothing.
	gone, end := context.WithCancel(t.Context())
	end()
	if err := db.client.Pause(gone, drover.QueueScope("a"), nil, drover.Audit{}); !errors.Is(err, context.Canceled) || errors.As(err, &unconfirmed) && unconfirmed.Scope == "queue:a" {
		t.Errorf("Pause = %v", err)
	}
}

// pausing a queue of many jobs writes one row, and nothing of the jobs changes.
func TestAPauseWritesOneRow(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `alter table jobs set (autovacuum_enabled = off)`)
	db.exec(t, `insert into jobs (id, kind, queue) select 'p' || lpad(n::text, 25, '0'), 'job', 'emails' from generate_series(1, 500) n`)
	const changes = `select string_agg(format('%s %s', relname, n_tup_ins + n_tup_upd + n_tup_del), ', ' order by relname) from pg_stat_xact_user_tables
		where schemaname = current_schema() and n_tup_ins + n_tup_upd + n_tup_del > 0`
	tx, err := db.planner(t).Begin(t.Context()) // a session of its own, that has counted nothing yet
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	var written string
	var scans int64
	if _, err := tx.Exec(t.Context(), `select drover_pause('queue:emails')`); err != nil {
		t.Fatal(err)
	}
	if err := tx.QueryRow(t.Context(), changes).Scan(&written); err != nil || written != "drover_limits 1" {
		t.Errorf("a pause writes %s, %v", written, err)
	}
	if err := tx.QueryRow(t.Context(), `select pg_stat_get_xact_numscans('jobs'::regclass)`).Scan(&scans); err != nil || scans > 0 {
		t.Errorf("a pause reads the whole table: %v", err)
	}
	if err := tx.QueryRow(t.Context(), `select count(*) from job_limits, pg_stat_get_xact_tuples_returned('jobs'::regclass) n where n > 10`).Scan(&scans); err != nil || scans > 0 {
		t.Errorf("the view reads jobs: %v", err)
	}
}

// Rows that somebody writes by hand are followed, or refused.
func TestLimitsByHand(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	for _, bad := range []string{
		`'nonsense', now(), 'infinity'`, `'queue:', now(), 'infinity'`, `'kind', now(), 'infinity'`, `'key:a/b', now(), 'infinity'`, `'queue:a', null, 'infinity'`,
		`'queue:a', now(), null`, `'queue:a', 'infinity', 'infinity'`, `'queue:a', now(), '-infinity'`, `'queue:' || repeat('a', 129), now(), 'infinity'`,
	} {
		if _, err := db.Exec(t.Context(), `insert into drover_limits (scope, held_at, held_until) values (`+bad+`)`); pg.SQLState(err) != "23514" {
			t.Errorf("%s: %v", bad, err)
		}
	}
	ran := make(chan struct{}, 1)
	db.launch(t, drover.SupervisorConfig{PollInterval: time.Hour, Workers: handling(func(context.Context, *drover.Job, int) error {
		ran <- struct{}{}
		return nil
	})})
	db.exec(t, `insert into drover_limits (scope, held_at, held_until) values ('all', '0044-03-15 BC', 'infinity')`)
	db.waitFor(t, 20*time.Second, `select unconfirmed = '{}' from job_limits`)
	if pauses, err := db.client.Pauses(t.Context()); err != nil || len(pauses) != 1 {
		t.Errorf("Pauses = %+v, %v", pauses, err)
	}
	db.enqueue(t, job{}, nil)
	harness.After(t, 100*time.Millisecond)
	select {
	case <-ran:
		t.Fatal("it started")
	default:
	}
	db.exec(t, `update drover_limits set held_until = now() where scope = 'all'`)
	receive(t, ran)
	db.exec(t, `update drover_limits set held_until = 'infinity' where scope = 'all'`)
	db.waitFor(t, 20*time.Second, `select unconfirmed = '{}' from job_limits`)
	db.enqueue(t, job{}, nil)
	db.exec(t, `truncate drover_limits`)
	receive(t, ran)
}

// Two pauses that commit in the other order than they began are both followed. A change by hand takes its turn too.
func TestPausesTogether(t *testing.T) {
	t.Parallel()
	for name, second := range map[string]func(*testDB) error{
		"two pauses": func(db *testDB) error {
			return db.client.Pause(context.Background(), drover.QueueScope("b"), nil, drover.Audit{})
		},
		"a change by hand": func(db *testDB) error {
			_, err := db.Exec(context.Background(), `update drover_limits set held_at = now(), held_until = 'infinity' where scope = 'queue:b'`)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newQuietDB(t)
			db.launch(t, drover.SupervisorConfig{Queues: []drover.Queue{{Name: "a"}, {Name: "b"}}})
			db.exec(t, `insert into drover_limits (scope) values ('queue:b')`)
			end := db.Hold(t, `select drover_pause('queue:a')`)
			done := make(chan error, 1)
			go func() { done <- second(db) }() // ends below
			eventually(t, func() bool {
				select {
				case err := <-done:
					t.Fatalf("the second change has a number and is committed before the first: %v", err)
				default:
				}
				return value[bool](t, db, `select exists (select from pg_locks where locktype = 'advisory' and not granted and database = (select oid from pg_database where datname = current_database()))`)
			})
			end() // it is rolled back: nobody waits for its number
			if err := receive(t, done); err != nil {
				t.Fatal(err)
			}
			db.waitFor(t, 20*time.Second, `select count(*) = 1 and bool_and(unconfirmed = '{}') from job_limits`)
		})
	}
}

// bad input is refused with the field named, and nothing is stored.
func TestPauseRefuses(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	for _, scope := range []drover.Scope{"", "queue", "queue:", "emails", "key:a/b", "QUEUE:a", "kind:" + drover.Scope(make([]byte, 129)), drover.QueueScope(strings.Repeat("a", 129)), drover.KindScope("a\x01"), drover.KindScope(" a"), "all:", "kind:\u200ba", "kind:\xff"} {
		var invalid *drover.InvalidError
		if err := db.client.Pause(t.Context(), scope, nil, drover.Audit{}); !errors.As(err, &invalid) || invalid.Field != "scope" {
			t.Errorf("Pause(%q) = %v", scope, err)
		}
		if err := db.client.Resume(t.Context(), scope, drover.Audit{}); !errors.As(err, &invalid) || invalid.Field != "scope" {
			t.Errorf("Resume(%q) = %v", scope, err)
		}
		if !utf8.ValidString(string(scope)) || strings.Contains(string(scope), "\x00") { // no text of Postgres
			continue
		}
		for _, sql := range []string{`select drover_pause($1)`, `select drover_resume($1)`} {
			if _, err := db.Exec(t.Context(), sql, string(scope)); pg.SQLState(err) != "22023" || !strings.Contains(err.Error(), "scope: ") {
				t.Errorf("%s of %q: %v", sql, scope, err)
			}
		}
	}
	var invalid *drover.InvalidError
	for _, until := range []time.Time{time.Now().Add(-time.Minute), time.Date(10001, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(-3, 1, 1, 0, 0, 0, 0, time.UTC)} {
		if err := db.client.Pause(t.Context(), drover.AllJobs, &drover.PauseOpts{Until: until}, drover.Audit{}); !errors.As(err, &invalid) || invalid.Field != "Until" {
			t.Errorf("until %v: %v", until, err)
		}
	}
	for _, sql := range []string{`select drover_pause('all', now() - interval '1 s')`, `select drover_pause('all', '-infinity')`, `select drover_pause(null)`} {
		if _, err := db.Exec(t.Context(), sql); pg.SQLState(err) != "22023" {
			t.Errorf("%s: %v", sql, err)
		}
	}
	if err := db.client.Pause(t.Context(), drover.AllJobs, nil, drover.Audit{By: "a\x01"}); !errors.As(err, &invalid) || invalid.Field != "By" {
		t.Errorf("By: %v", err)
	}
	if value[int](t, db, `select count(*) from drover_limits`) > 0 {
		t.Error("something was stored")
	}
}

// A typo is noticed: the function warns about names that nobody has served, and pauses them all the same.
func TestPauseWarnsOfAnUnknownScope(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	var notices []string
	warned := db.samePool(t, func(c *pgxpool.Config) {
		c.ConnConfig.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { notices = append(notices, n.Message) }
		c.MaxConns = 1
	})
	db.exec(t, `insert into queues (name) values ('emails')`)
	for scope, want := range map[string]int{"queue:email": 1, "queue:emails": 0, "kind:mail": 1, "all": 0} {
		notices = nil
		if _, err := warned.Exec(t.Context(), `select drover_pause($1)`, scope); err != nil || len(notices) != want {
			t.Errorf("%s: %q, %v", scope, notices, err)
		}
	}
}

// Snapshot and health show the pause, and call nothing late because of it.
func TestPausedJobsAreNotLate(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.Alive(t, "someone")
	due := func(kind, queue string, ago int) {
		db.exec(t, `insert into jobs (kind, queue, scheduled_at) values ($1, $2, now() - $3 * interval '1 min')`, kind, queue, ago)
	}
	depth := func(s *drover.Snapshot, queue string) (of drover.QueueDepth) {
		for _, q := range s.Queues {
			if q.Queue == queue {
				of = q
			}
		}
		return of
	}
	due("a", "emails", 60)
	due("b", "emails", 20)
	due("a", "default", 30)
	s := db.snapshot(t)
	if s.Level != drover.LevelWarning || depth(s, "emails").OldestDue == nil || depth(s, "emails").Paused || len(s.Pauses) != 0 || s.Pauses == nil {
		t.Errorf("before: %+v", s)
	}
	number, err := drover.StorePause(t.Context(), db.client, drover.KindScope("a"), drover.Audit{By: "ada", Why: "slow"})
	if err != nil || number == 0 {
		t.Fatal(number, err)
	}
	s = db.snapshot(t)
	if emails := depth(s, "emails"); emails.OldestDue == nil || s.At.Sub(*emails.OldestDue).Round(time.Minute) != 20*time.Minute || emails.Jobs[drover.Available] != 2 || emails.Paused {
		t.Errorf("kind a is paused: %+v", emails)
	}
	if q := depth(s, "default"); q.OldestDue != nil {
		t.Errorf("kind a is paused: %+v", q)
	}
	late := 0
	for _, f := range s.Findings {
		if f.Name == "claim_lag" {
			late++
			if !strings.Contains(f.What, "queue emails has waited 20m") {
				t.Errorf("%+v", f)
			}
		}
	}
	if late != 1 || len(s.Pauses) != 1 || s.Pauses[0].Scope != "kind:a" || s.Pauses[0].By != "ada" || !slices.Equal(s.Pauses[0].Unconfirmed, []string{"someone"}) {
		t.Errorf("%d are late, pauses %+v", late, s.Pauses)
	}
	if _, err := drover.StorePause(t.Context(), db.client, drover.QueueScope("emails"), drover.Audit{By: "bob"}); err != nil {
		t.Fatal(err)
	}
	s = db.snapshot(t)
	if s.Level != drover.LevelOK || !depth(s, "emails").Paused || depth(s, "emails").OldestDue != nil || len(s.Pauses) != 2 {
		t.Errorf("all is paused that is late: %+v", s)
	}
	var said []string
	for _, f := range db.Health(t).Findings {
		if f.Name == "paused" {
			said = append(said, fmt.Sprint(f.Level, " ", f.What))
		}
	}
	if want := []string{"ok due jobs of queue emails wait: ada has paused kind:a, bob has paused queue:emails", "ok due jobs of queue default wait: ada has paused kind:a"}; !slices.Equal(said, want) {
		t.Errorf("health: %q, want %q", said, want)
	}
	// Nobody claims, and nothing may be claimed: a stop of all processes in a pause is no alarm.
	db.exec(t, `delete from drover_supervisors`)
	if s = db.snapshot(t); s.Level != drover.LevelOK {
		t.Errorf("%+v", s.Findings)
	}
}
