package engine_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/floors"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/internal/store"
)

// held puts so many jobs into the hands of a supervisor; they started one second ago.
func (db *testDB) held(t testing.TB, owner string, n int) {
	t.Helper()
	db.exec(t, `insert into jobs (kind, state, claimed_by, attempt, claim_seq, attempted_at)
		select 'job', 'running', $1, 1, 1, now() - interval '1 s' from generate_series(1, $2)`, owner, n)
}

// unrescued are row contents that a dead supervisor's rescue cannot get past.
func unrescued() []struct{ name, schema, row, becomes string } {
	return []struct{ name, schema, row, becomes string }{
		{
			"a trigger refuses what the job should become",
			`create trigger refuse before update on jobs for each row when (old.kind = 'bad' and new.state = 'retryable') execute function refuse()`, ``,
			`state = 'discarded' and discard_reason = 'refused'`,
		},
		{
			"a trigger refuses any change",
			`create trigger refuse before update on jobs for each row when (old.kind = 'bad') execute function refuse()`, ``,
			`state = 'running' and exists (select from drover_set_aside where path = 'rescue' and job = id)`,
		},
		{
			"a trigger takes all the time",
			`create trigger refuse before update on jobs for each row when (old.kind = 'bad') execute function refuse_late()`, ``,
			`state = 'running' and exists (select from drover_set_aside where path = 'rescue' and job = id and code = '57014')`,
		},
		{
			"a constraint", `alter table jobs add constraint odd check (kind <> 'bad' or crashes = 0) not valid`, ``,
			`state = 'discarded' and discard_reason = 'refused'`,
		},
		{
			"its errors are no array", `alter table jobs drop constraint if exists jobs_errors`, `errors = '5', crashes = 1`,
			`state = 'discarded' and discard_reason = 'refused'`,
		},
		{"no more crashes can be counted", ``, `crashes = 32767, deaths = 32767`, `state <> 'running'`},
		{"no more errors can be counted", ``, `errors_total = 2147483647`, `state <> 'running'`},
		{"garbage in its errors", ``, `crashes = 1, errors = '[5, null, "x", {"class": "crash", "duration_ms": "x", "supervisor": 5},
		{"class": "crash", "duration_ms": 1e300, "supervisor": null}, {"class": "crash"}]'`, `state = 'retryable' and crashes = 2`},
		{"no last delay that Go can hold", ``, `last_delay_ms = 9223372036854775807`, `state = 'retryable'`},
		{"claimed at no time", ``, `attempted_at = 'infinity'`, `state = 'scheduled' and errors->-1->>'class' = 'refused'`},
		{"claimed before the year 1", ``, `attempted_at = '4000-01-01 BC'`, `state = 'retryable' and crashes = 1`},
		{"never claimed", ``, `attempt = 0, max_attempts = 1`, `state = 'discarded' and attempt = 0 and discard_reason = 'crashed'`}, // it was at work at the last beat
	}
}

// F-15: whatever the database refuses about one job of a dead supervisor, the others are freed in that very beat, and its
// row is forgotten.
func TestRescuePassesWhatTheDatabaseRefuses(t *testing.T) {
	t.Parallel()
	slow(t)
	for _, c := range unrescued() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db := newQuietDB(t)
			db.Unguarded(t)
			db.exec(t, `create function refuse() returns trigger language plpgsql as $$ begin raise exception 'no'; end $$`)
			db.exec(t, `create function refuse_late() returns trigger language plpgsql as $$ begin perform pg_sleep(60); return new; end $$`)
			db.held(t, "dead", 150)
			bad := value[string](t, db, `update jobs set kind = 'bad' where id = (select id from jobs order by id offset 70 limit 1) returning id`)
			db.exec(t, c.schema)
			db.Dead(t, "dead")
			if c.row != "" {
				db.exec(t, `update jobs set `+c.row+` where id = $1`, bad)
			}
			var book harness.Logbook
			lease := time.Hour // a beat has a quarter of it to rescue
			if c.name == "a trigger takes all the time" {
				lease = 30 * time.Second // and each statement a hundredth: the walk meets some eight time-outs
			}
			s := db.via(t, drover.Config{Logger: slog.New(&book)}).stopped(t, drover.SupervisorConfig{Lease: lease})
			s.beat(t)
			if n := value[int](t, db, `select count(*) from jobs where kind = 'job' and state = 'retryable' and errors_total = 1`); n != 149 {
				t.Errorf("%d of 149 innocents are freed: %v", n, book.From(slog.LevelWarn))
			}
			for range engine.PatientBeats + 1 {
				s.beat(t)
			}
			if !value[bool](t, db, `select `+c.becomes+` from jobs where id = $1`, bad) {
				t.Errorf("the bad one: %s", value[string](t, db, `select row_to_json(j)::text from jobs j where id = $1`, bad))
			}
			if value[bool](t, db, `select exists (select from drover_supervisors where id = 'dead')`) {
				t.Error("the dead supervisor is not forgotten")
			}
			if n := strings.Count(strings.Join(book.From(slog.LevelWarn), "\n"), "the database refuses a job"); n > 1 {
				t.Errorf("%d logs about one job in a moment", n)
			}
		})
	}
}

// F-15: a server that is late for two beats does not make a job wait for a sweep.
func TestRescueIsPatient(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.held(t, "dead", 3)
	id := value[string](t, db, `select id from jobs order by id offset 1 limit 1`)
	db.Dead(t, "dead")
	db.exec(t, `create function late() returns trigger language plpgsql as $$ begin perform pg_sleep(60); return new; end $$`)
	db.exec(t, `create trigger late before update on jobs for each row when (old.id = '`+id+`') execute function late()`)
	s := db.stopped(t, drover.SupervisorConfig{Lease: 30 * time.Second}) // each beat waits for a twelfth of it
	for n := range engine.PatientBeats - 1 {
		s.beat(t)
		if value[int](t, db, `select count(*) from jobs where state = 'running'`) != 1 || value[bool](t, db, `select exists (select from drover_set_aside)`) {
			t.Fatalf("after beat %d others wait, or the job is set aside", n+1)
		}
	}
	db.exec(t, `drop trigger late on jobs`)
	s.beat(t)
	if n := value[int](t, db, `select count(*) from jobs where state = 'retryable' and crashes = 1`); n != 3 {
		t.Errorf("%d of 3 jobs are freed", n)
	}
	s.beat(t)
	if value[bool](t, db, `select exists (select from drover_supervisors where id = 'dead')`) {
		t.Error("the dead supervisor is not forgotten")
	}
}

// F-15: a job that was set aside is tried again once its pause is over, without the supervisor's row.
func TestRescueOfWhatWasSetAside(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.held(t, "dead", 3)
	db.Dead(t, "dead")
	db.exec(t, `create function refuse() returns trigger language plpgsql as $$ begin raise exception 'no'; end $$`)
	db.exec(t, `create trigger refuse before update on jobs for each row execute function refuse()`)
	s := db.stopped(t, drover.SupervisorConfig{})
	s.beat(t)
	s.beat(t)
	if n := value[int](t, db, `select count(*) from drover_set_aside where path = 'rescue'`); n != 3 || value[bool](t, db, `select exists (select from drover_supervisors where id = 'dead')`) {
		t.Fatalf("%d jobs are set aside", n)
	}
	db.exec(t, `drop trigger refuse on jobs`)
	s.sweep(t)
	if n := value[int](t, db, `select count(*) from jobs where state = 'running'`); n != 3 {
		t.Fatalf("%d jobs still run: the pause is not over", n)
	}
	db.exec(t, `update drover_set_aside set retry_at = now()`)
	s.Keeper.AllBy = time.Time{}
	s.sweep(t)
	if n := value[int](t, db, `select count(*) from jobs where state = 'retryable' and crashes = 1`); n != 3 || value[bool](t, db, `select exists (select from drover_set_aside)`) {
		t.Errorf("%d of 3 jobs are freed, and set_aside has %d", n, value[int](t, db, `select count(*) from drover_set_aside`))
	}
}

// F-15, P-3: the marks that a death leaves on a job are kept for the jobs that pass.
func TestRescueBlamesThosePastARefusedOne(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.held(t, "dead", 20)
	db.exec(t, `update jobs set kind = 'bad' where id = (select max(id) from jobs)`)
	db.exec(t, `alter table jobs add constraint odd check (kind <> 'bad' or crashes = 0)`)
	db.Dead(t, "dead")
	db.stopped(t, drover.SupervisorConfig{}).beat(t)
	if !value[bool](t, db, `select (select array_agg(b order by b) from unnest(blamed) b) = (select array_agg(id order by id) from jobs where kind = 'job')
		from drover_ended_supervisors where id = 'dead'`) {
		t.Errorf("blamed: %s", value[string](t, db, `select blamed::text from drover_ended_supervisors`))
	}
}

// F-15: damaged values stored outside of a row stop neither the hunt nor the rescue of the others.
func TestRescueOfADamagedRow(t *testing.T) {
	t.Parallel()
	for _, column := range []string{"errors", "retry", "args"} {
		t.Run(column, func(t *testing.T) {
			t.Parallel()
			db := newQuietDB(t)
			db.held(t, "dead", 30)
			db.exec(t, `alter table jobs alter column errors set storage external, alter column retry set storage external, alter column args set storage external`)
			bad := value[string](t, db, `select max(id) from jobs`)
			db.exec(t, `alter table jobs drop constraint jobs_retry`)
			db.exec(t, fmt.Sprintf(`update jobs set crashes = 1, %s = jsonb_build_array(jsonb_build_object('class', 'crash', 'error', repeat('x', 9000))) where id = $1`, column), bad)
			db.Dead(t, "dead")
			pgtest.Damage(t, db.Pool)
			s := db.stopped(t, drover.SupervisorConfig{})
			s.beat(t)
			s.beat(t)
			if n := value[int](t, db, `select count(*) from jobs where state = 'retryable' and id <> $1`, bad); n != 29 {
				t.Errorf("%d of 29 innocents are freed", n)
			}
			if value[bool](t, db, `select state = 'running' and not exists (select from drover_set_aside) from jobs where id = $1`, bad) {
				t.Error("the damaged one still runs, and nobody knows")
			}
		})
	}
}

// F-15: garbage in one row does not change what a hunt reads of the other rows in its lane.
func TestHuntReadsGarbage(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.held(t, "dead", 2)
	db.exec(t, `update jobs set crashes = 1, errors = '[{"class": "crash", "duration_ms": 1500, "supervisor": "old"}]'`)
	db.exec(t, `update jobs set errors = '[5, null, {"class": "crash", "duration_ms": "x", "supervisor": 5}, {"class": "crash", "duration_ms": 1e300}]'
		where id = (select min(id) from jobs)`)
	db.Dead(t, "dead")
	db.exec(t, `update drover_supervisors set slots = '{"default": 10, "other": "x"}', in_flight = in_flight || null::text`)
	db.stopped(t, drover.SupervisorConfig{})
	h := store.NewScan("dead", []string{"default"}, false)
	held, err := store.Session{Conn: db.Dialed(t)}.Scan(t.Context(), h)
	if err != nil || len(held) != 2 || len(h.Unread) > 0 {
		t.Fatalf("%d jobs, %v, %v", len(held), h.Unread, err)
	}
	slices.SortFunc(held, func(a, b store.Held) int { return strings.Compare(a.ID, b.ID) })
	if got, want := fmt.Sprint(held[0].Before, held[1].Before), "[{5 0} { 10000000000}] [{old 1500}]"; got != want {
		t.Errorf("crashes before: %s, want %s", got, want)
	}
	if !held[1].InFlight || held[1].Slots != 10 {
		t.Errorf("in flight %v, %d slots", held[1].InFlight, held[1].Slots)
	}
}

// C5: a process with very many running handlers is rescued in a few beats, and its death is taken back in a few more.
func TestRescueOfOneLargeProcess(t *testing.T) {
	t.Parallel()
	slow(t)
	const n = 10_000
	db := newQuietDB(t)
	db.exec(t, `insert into jobs (id, kind, queue, state, claimed_by, attempt, claim_seq, attempted_at)
		select (select left(drover_ulid(), 10)) || lpad(n::text, 16, '0'), 'job', case when n % 2 = 0 then 'default' else 'other' end, 'running', 'dead', 1, 1, now() from generate_series(1, $1) n`, n)
	db.exec(t, `insert into drover_supervisors (id, lease_ms, queues, slots, in_flight, lost_at)
		values ('dead', 30000, '{default,other}', '{"default": 5000, "other": 5000}', (select array_agg(id) from jobs), now())`)
	s := db.stopped(t, drover.SupervisorConfig{Queues: []drover.Queue{{}, {Name: "other"}}})
	for beats := 0; value[bool](t, db, `select exists (select from drover_supervisors where id = 'dead')`); beats++ {
		if beats == 12 { // two leases
			t.Fatalf("%d still run", value[int](t, db, `select count(*) from jobs where state = 'running'`))
		}
		s.beat(t)
	}
	if free := value[int](t, db, `select count(*) from jobs where state = 'retryable' and crashes = 1`); free != n {
		t.Errorf("%d of %d are freed", free, n)
	}
	if blamed := value[int](t, db, `select cardinality(blamed) from drover_ended_supervisors where id = 'dead'`); blamed != n {
		t.Errorf("%d of %d are blamed", blamed, n)
	}
	s.Keeper.NoteLost("dead")
	for beats := 0; len(s.Keeper.Was) > 0; beats++ {
		if beats == 12 {
			t.Fatalf("%d still have a crash", value[int](t, db, `select count(*) from jobs where crashes > 0`))
		}
		s.beat(t)
	}
	if free := value[int](t, db, `select count(*) from jobs where crashes = 0 and deaths = 0`); free != n {
		t.Errorf("%d of %d have their crash back", free, n)
	}
}

// F-15: a budget with unusable numbers holds up neither a rescue nor a settle: its retries go by their own backoff.
func TestReservationsOfABrokenBudget(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into drover_budgets (scope, retries) values ('kind:job', 60)`)
	s, runs := db.failing(t, 150, drover.SupervisorConfig{})
	db.exec(t, `alter table drover_budget_slots add constraint broken check (scope <> 'kind:job')`)
	outcomes := make([]*engine.Run, len(runs))
	for i, r := range runs {
		outcomes[i] = decided(r, errBoom)
	}
	s.beat(t) // to know the budget
	s.settle(t, outcomes...)
	if n := value[int](t, db, `select count(*) from jobs where state = 'retryable' and errors_total = 1`); n != 150 {
		t.Errorf("%d of 150 outcomes are settled", n)
	}
	db.exec(t, `delete from jobs`)
	db.held(t, "dead", 20)
	db.exec(t, `update jobs set crashes = 1`) // so that they have a backoff
	db.Dead(t, "dead")
	s.beat(t)
	if n := value[int](t, db, `select count(*) from jobs where state = 'retryable' and crashes = 2 and scheduled_at > now()`); n != 20 {
		t.Errorf("%d of 20 jobs are rescued", n)
	}
}

// F-15: of many reservations only that one fails whose numbers are at fault.
func TestAReservationThatOverflows(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s, runs := db.failing(t, 20, drover.SupervisorConfig{RetryBudget: drover.RetryBudget{Retries: 100}})
	var outcomes []*engine.Run
	for _, r := range runs {
		o := decided(r, errBoom)
		outcomes = append(outcomes, o)
	}
	latest := time.Duration(1<<63 - 1)
	outcomes[7].TimeBound, outcomes[7].TimeLeft = true, latest
	conn, err := s.Settler.Link.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	outcomes[7].End.Delay = latest
	if err := s.Budgets.Reserve(t.Context(), conn, engine.WantingEnds(outcomes)); err != nil {
		t.Fatal(err)
	}
	slots := 0
	for i, o := range outcomes {
		if o.End.Slot != nil && i != 7 {
			slots++
		}
	}
	if slots != 19 {
		t.Errorf("%d of 19 have slots", slots)
	}
}

// F-15: while the calendar is held, a rescue frees what needs no slot of it.
func TestRescueWhileTheCalendarIsHeld(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into drover_budgets (scope, retries) values ('all', 60)`)
	db.held(t, "dead", 20)
	db.exec(t, `update jobs set crashes = 1 where id in (select id from jobs order by id limit 5)`)
	db.Dead(t, "dead")
	s := db.stopped(t, drover.SupervisorConfig{Lease: 10 * time.Minute}) // a statement has a hundredth of it, and the wait for the calendar is no part of that
	end := db.Hold(t, `lock table drover_budget_slots`)
	s.beat(t)
	if n := value[int](t, db, `select count(*) from jobs where state = 'retryable'`); n < 15 {
		t.Errorf("%d of 15 jobs are freed that need no slot", n)
	}
	end()
	s.beat(t)
	if n := value[int](t, db, `select count(*) from jobs where state = 'retryable'`); n != 20 {
		t.Errorf("%d of 20 jobs are freed", n)
	}
}

// F-15: a job that the database refuses to change keeps its crash. The others get theirs back, the walk ends, and the beat
// goes on to the sweep.
func TestTakeBackPassesWhatTheDatabaseRefuses(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into jobs (kind, crashes, deaths, errors_total) select case n when 30 then 'bad' else 'job' end, 1, 1, 1 from generate_series(1, 51) n`)
	db.exec(t, `insert into drover_ended_supervisors (id, host, pid, started_at, ended_at, died, blamed)
		values ('dead', '', 0, now(), now(), true, (select array_agg(id) || null::text || 'no such job'::text from jobs))`)
	db.exec(t, `alter table jobs add constraint odd check (kind <> 'bad' or crashes = 1)`)
	var book harness.Logbook
	s := db.via(t, drover.Config{Logger: slog.New(&book)}).stopped(t, drover.SupervisorConfig{})
	s.Keeper.NoteLost("dead")
	s.beat(t)
	if n := value[int](t, db, `select count(*) from jobs where kind = 'job' and crashes = 0 and deaths = 0`); n != 50 {
		t.Errorf("%d of 50 have their crash back", n)
	}
	if len(s.Keeper.Was) > 0 {
		t.Error("it does not end")
	}
	if !value[bool](t, db, `select not died and not exists (select from unnest(blamed) b where b is not null) from drover_ended_supervisors`) {
		t.Errorf("still blamed: %s", value[string](t, db, `select blamed::text from drover_ended_supervisors`))
	}
	if log := strings.Join(book.From(slog.LevelWarn), "\n"); strings.Count(log, "crash not taken back") != 1 {
		t.Errorf("log: %s", log)
	}
}

// A server that is too slow for some moments leaves no job its crash for good. A job whose write always takes too long is
// given up after some beats.
func TestTakeBackIsPatient(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `create table busy (); insert into busy default values`)
	db.exec(t, `create function stall() returns trigger language plpgsql as $$ begin if exists (select from busy) then perform pg_sleep(60); end if; return new; end $$`)
	db.exec(t, `create trigger stall before update on jobs for each row execute function stall()`)
	db.exec(t, `insert into jobs (kind, crashes, deaths, errors_total) values ('job', 1, 1, 1)`)
	db.exec(t, `insert into drover_ended_supervisors (id, host, pid, started_at, ended_at, died, blamed)
		select id, '', 0, now(), now(), true, (select array_agg(id) from jobs) from unnest('{dead,too}'::text[]) as id`)
	var book harness.Logbook
	s := db.via(t, drover.Config{Logger: slog.New(&book)}).stopped(t, drover.SupervisorConfig{Lease: 4 * time.Second})
	s.Keeper.NoteLost("dead")
	s.beat(t)
	if n := value[int](t, db, `select cardinality(blamed) from drover_ended_supervisors where id = 'dead'`); n != 1 || len(s.Keeper.Was) != 1 {
		t.Error("a job is given up after its first time-out")
	}
	db.exec(t, `delete from busy`)
	s.beat(t)
	if !value[bool](t, db, `select crashes = 0 and deaths = 0 from jobs`) || len(s.Keeper.Was) > 0 {
		t.Errorf("not taken back: %s", value[string](t, db, `select row_to_json(j)::text from jobs j`))
	}
	db.exec(t, `insert into busy default values`)
	s.Keeper.Was = []engine.PastLease{{ID: "too", Late: map[string]int{value[string](t, db, `select id from jobs`): engine.PatientBeats - 1}}}
	s.beat(t)
	if n := value[int](t, db, `select cardinality(blamed) from drover_ended_supervisors where id = 'too'`); n > 0 || len(s.Keeper.Was) > 0 {
		t.Error("it tries for ever")
	}
	if log := strings.Join(book.From(slog.LevelWarn), "\n"); strings.Count(log, "crash not taken back") != 1 {
		t.Errorf("log: %s", log)
	}
}

// A step of the beat that fails keeps no later one from running.
func TestBeatGoesOnBehindAStepThatFails(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into jobs (kind, crashes) values ('job', 2)`)
	db.exec(t, `insert into jobs (kind, state, claimed_by, attempt, claim_seq, attempted_at) values ('job', 'running', 'nobody', 1, 1, now())`)
	var book harness.Logbook
	s := db.via(t, drover.Config{Logger: slog.New(&book)}).stopped(t, drover.SupervisorConfig{})
	db.exec(t, `alter table drover_solo add constraint nobody check (supervisor is null)`)
	db.exec(t, `alter table drover_ended_supervisors add constraint living check (died)`)
	db.exec(t, `insert into drover_ended_supervisors (id, host, pid, started_at, ended_at, died) values ('dead', '', 0, now(), now(), true)`)
	s.Keeper.NoteLost("dead")
	for range 3 {
		s.Keeper.SweepAt, s.Keeper.FloorsBy, s.Keeper.Sweeps = time.Time{}, time.Time{}, 0
		s.beat(t)
	}
	if n := value[int](t, db, `select count(*) from jobs where state = 'retryable' and crashes = 1`); n != 1 {
		t.Error("it has not swept")
	}
	log := book.From(slog.LevelWarn)
	if n := strings.Count(strings.Join(log, "\n"), "failed, goes on with the next beat"); n != 2 {
		t.Errorf("%d logs about two steps that fail: %s", n, strings.Join(log, "\n"))
	}
}

// F-15: running jobs of unknown owners are rescued whatever their times are.
func TestOrphansOfOddTimes(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.Unguarded(t)
	for _, due := range []string{"now()", "now() + interval '2 days'", "'infinity'", "'-infinity'", "'0400-01-01 BC'", "'290000-01-01'"} {
		for _, at := range []string{"now()", "null", "'infinity'", "'-infinity'", "'0400-01-01 BC'", "'0001-01-01 00:00:00Z'", "'290000-01-01'"} {
			db.exec(t, fmt.Sprintf(`insert into jobs (kind, state, claimed_by, attempt, claim_seq, scheduled_at, attempted_at) values ('job', 'running', 'nobody', 1, 1, %s, %s)`, due, at))
		}
	}
	s := db.stopped(t, drover.SupervisorConfig{})
	s.sweep(t)
	if left := value[string](t, db, `select coalesce(string_agg(format('%s %s', scheduled_at, attempted_at), ', '), '') from jobs where state = 'running'`); left != "" {
		t.Errorf("still running: %s", left)
	}
	db.exec(t, `insert into jobs (kind, state, claimed_by, attempt, claim_seq, scheduled_at, attempted_at) values ('job', 'running', 'nobody', 1, 1, 'infinity', now())`)
	for range 2 { // they are dear: an hour passes first
		s.sweep(t)
		if value[int](t, db, `select count(*) from jobs where state = 'running'`) != 1 {
			t.Fatal("every sweep reads beyond now")
		}
	}
	s.Keeper.AllBy = time.Now()
	s.sweep(t)
	if value[int](t, db, `select count(*) from jobs where state = 'running'`) != 0 {
		t.Error("it is not found after an hour either")
	}
}

// P-2: the death of a supervisor whose row is gone is evidence like any other. If its lease, which nobody knows, passed for
// endless, the job's runs would seem so long that no row of deaths could convict it.
func TestTheFlightOfAnOrphanIsKnown(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	id := value[string](t, db, `insert into jobs (kind, state, claimed_by, attempt, claim_seq, started_seq, max_attempts, attempted_at)
		values ('job', 'running', 'nobody', 1, 1, 1, 2, now()) returning id`)
	db.stopped(t, drover.SupervisorConfig{}).sweep(t)
	if ms := value[float64](t, db, `select (errors->-1->>'duration_ms')::float8 from jobs where id = $1 and errors->-1->>'class' = 'crash'`, id); ms > 60_000 {
		t.Errorf("it is said to have run for %v ms", ms)
	}
}

// P-2, F-15: a job that was set aside while its supervisor was rescued, as on a server that was too slow for a moment, is judged
// by that death all the same: it does not kill one process more for it. If the supervisor turned out to live, or ended by
// itself, nothing is held against the job.
func TestAJobThatWasSetAsideIsJudgedByTheSameDeath(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		died, mass bool
		state      string
	}{"it died": {died: true, state: "discarded crashed 3"}, "among others": {died: true, mass: true, state: "retryable  2"}, "it lived": {state: "retryable  2"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newQuietDB(t)
			db.exec(t, `insert into drover_ended_supervisors (id, host, pid, started_at, ended_at, died, mass, degree)
				values ('dead', 'machine', 7, now() - interval '1 minute', now() - interval '30 s', $1, $2, 2)`, test.died, test.mass)
			id := value[string](t, db, `
				insert into jobs (kind, state, claimed_by, attempt, claim_seq, attempted_at, crashes, deaths, errors_total, errors)
				select 'job', 'running', 'dead', 3, 3, ended_at - interval '100 ms', 2, 2, 2, $1 from drover_ended_supervisors returning id`,
				`[{"at": "2026-01-01T00:00:00Z", "class": "crash", "supervisor": "a", "duration_ms": 100}, {"at": "2026-01-01T00:00:01Z", "class": "crash", "supervisor": "b", "duration_ms": 100}]`)
			db.stopped(t, drover.SupervisorConfig{}).sweep(t)
			is := value[string](t, db, `select concat_ws(' ', state, coalesce(discard_reason, ''), crashes) from jobs where id = $1`, id)
			entry := value[string](t, db, `select concat_ws(' after ', errors->-1->>'host', round((errors->-1->>'duration_ms')::numeric)) from jobs where id = $1`, id)
			if is != test.state || entry != "machine, process 7 after 100" {
				t.Errorf("the job is %s, want %s; the entry tells of %s ms", is, test.state, entry)
			}
		})
	}
}

// An orphan that was found stays found if the database is away when it is to be judged.
func TestOrphansAreKeptInAnOutage(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into jobs (kind, state, claimed_by, attempt, claim_seq, attempted_at) values ('job', 'running', 'a', 1, 1, now()), ('job', 'running', 'b', 1, 1, now())`)
	s := db.stopped(t, drover.SupervisorConfig{})
	conn, err := harness.PoolOf(db.client).Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h := store.NewScan("", []string{"default"}, true)
	if found, err := (store.Session{Conn: conn}).Scan(t.Context(), h); err != nil || len(found) != 2 {
		t.Fatal(found, err)
	}
	pg.CloseConn(t.Context(), conn)
	if err := s.Keeper.Orphaned(t.Context(), store.Session{Conn: conn}, h); err == nil || len(h.Found) != 2 {
		t.Errorf("%d of 2 jobs are left for the next time, %v", len(h.Found), err)
	}
}

// F-15: one lane that cannot be read keeps no other from being swept.
func TestSweepPassesALaneThatCannotBeRead(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `create function readable(kind text) returns bool language plpgsql as $$ begin if kind = 'bad' then raise 'damaged' using errcode = 'XX001'; end if; return true; end $$`)
	role := "sweeper_" + value[string](t, db, `select current_schema()`)
	schema := value[string](t, db, `select current_schema()`)
	db.exec(t, fmt.Sprintf(`create role %s; grant usage on schema %s to %[1]s; grant all on all tables in schema %[2]s to %[1]s; grant execute on all functions in schema %[2]s to %[1]s`, role, schema))
	t.Cleanup(func() {
		_, _ = db.Exec(context.Background(), fmt.Sprintf(`drop owned by %s cascade; drop role %[1]s`, role)) // the schema goes with it
	})
	var book harness.Logbook
	s := db.via(t, drover.Config{Logger: slog.New(&book)}, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["role"] = role }).stopped(t, drover.SupervisorConfig{})
	db.exec(t, `insert into jobs (kind, priority, state, claimed_by, attempt, claim_seq, attempted_at, scheduled_at) values
		('job', 1, 'running', 'nobody', 1, 1, now(), now() - interval '1 h'), ('bad', 3, 'running', 'nobody', 1, 1, now(), now() - interval '1 h'),
		('job', 7, 'running', 'nobody', 1, 1, now(), now() - interval '1 h')`)
	db.exec(t, `alter table jobs enable row level security`)
	db.exec(t, `create policy odd on jobs using (readable(kind))`)
	s.sweep(t)
	s.Keeper.AllBy = time.Now().Add(time.Hour)
	s.sweep(t)
	if n := value[int](t, db, `select count(*) from jobs where state = 'retryable'`); n != 2 {
		t.Errorf("%d of 2 jobs in other lanes are rescued", n)
	}
	db.exec(t, `insert into jobs (kind, priority, scheduled_at) values ('job', 7, now() - interval '1 h')`)
	key := floors.Lane{Queue: "default", N: 7}
	s.Claimer.Floors.Lanes[key] = floors.Floor{At: time.Now(), ID: ""}
	s.sweep(t)
	if f := s.Claimer.Floors.Get(key); !f.At.Before(time.Now().Add(-time.Minute)) {
		t.Errorf("a job behind a floor is not found: %v", f)
	}
	if n := strings.Count(strings.Join(book.From(slog.LevelError), "\n"), "cannot be swept"); n != 1 {
		t.Errorf("%d logs about one lane:\n%s", n, strings.Join(book.From(slog.LevelWarn), "\n"))
	}
}

// F-15: a supervisor's row that somebody changed by hand stops neither the beats nor the rescues of others.
func TestSupervisorsRowsChangedByHand(t *testing.T) {
	t.Parallel()
	slow(t)
	for name, change := range map[string]string{
		"a huge lease":           `lease_ms = 9223372036854775807`,
		"no lease":               `lease_ms = 0`,
		"the last epoch":         `epoch = 2147483647`,
		"the last beat":          `beat = 9223372036854775807`,
		"no queues":              `queues = '{}'`,
		"queues that are null":   `queues = '{default,null}'`,
		"queues in two rows":     `queues = '{{default,other},{a,b}}'`,
		"slots that are none":    `slots = '"x"'`,
		"slots that are garbage": `slots = '{"default": "x", "other": 1e300}'`,
		"huge slots":             `slots = '{"default": 1e300}'`,
		"in flight nulls":        `in_flight = '{null,null}'`,
		"a last beat at no time": `beat_at = 'infinity', started_at = 'infinity'`,
		"a last beat never":      `beat_at = '-infinity', started_at = '-infinity'`,
		"a huge silence":         `silent_at_beat = beat, silent_ms = 9223372036854775807`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newQuietDB(t)
			db.exec(t, `alter table drover_supervisors drop constraint drover_supervisors_lease_ms_check`)
			for _, owner := range []string{"dead", "odd"} {
				db.held(t, owner, 5)
				db.Dead(t, owner)
			}
			db.exec(t, `update jobs set crashes = 2 where id in (select min(id) from jobs group by claimed_by)`)
			db.exec(t, `insert into drover_supervisors (id, lease_ms, queues) values ('silent', 1000, '{default}')`)
			db.exec(t, `update drover_supervisors set `+change+` where id <> 'dead'`)
			s := db.stopped(t, drover.SupervisorConfig{})
			for range 3 {
				s.beat(t)
			}
			if n := value[int](t, db, `select count(*) from jobs where state <> 'running'`); n != 10 {
				t.Errorf("%d of 10 jobs are rescued", n)
			}
			if value[bool](t, db, `select exists (select from drover_supervisors where id in ('dead', 'odd'))`) {
				t.Error("they are not forgotten")
			}
			lost, err := store.Session{Conn: db.Dialed(t)}.DeclareLost(t.Context(), store.Peer{
				ID: "silent", Epoch: value[int](t, db, `select epoch from drover_supervisors where id = 'silent'`), Beat: value[int64](t, db, `select beat from drover_supervisors where id = 'silent'`),
			})
			if err != nil || !lost {
				t.Errorf("declared lost: %v, %v", lost, err)
			}
		})
	}
}

// A supervisor whose epoch is at the end of its type goes on under another id, and one whose beat is begins anew.
func TestTheEndsOfEpochAndBeat(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	l := s.Lease.Load()
	db.exec(t, `update drover_supervisors set beat = 9223372036854775807`)
	s.beat(t)
	if n := value[int64](t, db, `select beat from drover_supervisors`); n != 0 {
		t.Errorf("the beat is %d", n)
	}
	db.exec(t, `update drover_supervisors set epoch = 2147483647`)
	l.Raise(2147483647)
	s.Claimer.Doubt = []string{"default"}
	s.Claimer.FindOut(t.Context())
	s.beat(t)
	if s.Lease.Load().ID == l.ID {
		t.Error("it keeps its id")
	}
	s.beat(t)
	s.beat(t)
	if n := value[int](t, db, `select count(*) from drover_supervisors`); n != 1 {
		t.Errorf("%d supervisors", n)
	}
}

// A beat without time for the longer try does not count towards giving the job up: it has not been tried.
func TestTakeBackWithoutTimeGivesNothingUp(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `create function slow() returns trigger language plpgsql as $$ begin perform pg_sleep(0.1); return new; end $$`)
	db.exec(t, `create trigger slow before update on jobs for each row execute function slow()`)
	db.exec(t, `insert into jobs (kind, crashes, deaths, errors_total) values ('job', 1, 1, 1), ('job', 1, 1, 1)`)
	db.exec(t, `insert into drover_ended_supervisors (id, host, pid, started_at, ended_at, died, blamed) values ('dead', '', 0, now(), now(), true, (select array_agg(id) from jobs))`)
	s := db.stopped(t, drover.SupervisorConfig{})
	s.Keeper.NoteLost("dead")
	conn, err := s.Keeper.Link.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range engine.PatientBeats + 1 {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if err := s.Keeper.UndoCrashes(ctx, conn, 50*time.Millisecond, time.Minute); !errors.Is(err, pg.ErrNoTime) {
			t.Errorf("takeBack = %v, want no time", err)
		}
		cancel()
	}
	if n := value[int](t, db, `select cardinality(blamed) from drover_ended_supervisors`); n != 2 || len(s.Keeper.Was) != 1 {
		t.Fatalf("%d of 2 jobs are still blamed", n)
	}
	if err := s.Keeper.UndoCrashes(t.Context(), conn, 50*time.Millisecond, 10*time.Second); err != nil || len(s.Keeper.Was) > 0 {
		t.Errorf("takeBack = %v, left %v", err, s.Keeper.Was)
	}
	if n := value[int](t, db, `select count(*) from jobs where crashes = 0 and deaths = 0`); n != 2 {
		t.Errorf("%d of 2 have their crash back", n)
	}
}
