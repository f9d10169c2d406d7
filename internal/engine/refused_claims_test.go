package engine_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/floors"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/store"
	"github.com/drover-queue/drover/internal/tier"
)

// refuseRow makes a trigger of the application's that acts on rows whose args have the key bad.
func (db *testDB) refuseRow(t testing.TB, when, do string) {
	t.Helper()
	db.exec(t, fmt.Sprintf(`create function refuse() returns trigger language plpgsql as $$ begin if new.args ? 'bad' and %s then %s end if; return new; end $$`, when, do))
	db.exec(t, `create trigger refuse before update on jobs for each row execute function refuse()`)
}

// poison is a row that a claim cannot take, and what becomes of it.
type poison struct{ name, insert, trigger, becomes string }

const discardedByTheClaim = `state = 'discarded' and discard_reason = 'refused' and class = 'refused' and errors->-1->>'error' like 'claim refused by the database: %'`

func insertJob(columns, values string) string {
	return `insert into jobs (kind, ` + columns + `) values ('job', ` + values + `)`
}

func poisons() []poison {
	deep := strings.Repeat(`{"a":`, 10_001) + `1` + strings.Repeat(`}`, 10_001)
	return []poison{
		{"attempt at its end", insertJob("attempt", "2147483647"), "", discardedByTheClaim},
		{"claim_seq at its end", insertJob("claim_seq", "2147483647"), "", discardedByTheClaim},
		{"deep metadata", insertJob("metadata", "'"+deep+"'"), "", `state = 'discarded' and discard_reason = 'undecodable' and errors->-1->>'error' like 'row cannot be read: %'`},
		{"errors that are no entries", insertJob("errors_total, errors", `3, '[1, "x", null, {"class": {}, "error": []}]'`), "", `state = 'completed'`},
		{
			"a trigger against the claim", insertJob("args", `'{"bad": 1}'`), "new.state = 'running'",
			`state = 'scheduled' and scheduled_at > now() and class = 'refused' and attempt = 0`,
		},
		{
			"a trigger against any change", insertJob("args", `'{"bad": 1}'`), "true",
			`state = 'available' and exists (select from drover_set_aside where path = 'claim' and job = jobs.id and error = 'no')`,
		},
	}
}

// F-15: one row that the database refuses to hand out keeps no other job from running: not in its queue, not in
// another, whatever the number of supervisors.
func TestARefusedClaimHoldsUpNobody(t *testing.T) {
	t.Parallel()
	slow(t)
	for _, c := range poisons() {
		for _, supervisors := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s, %d supervisors", c.name, supervisors), func(t *testing.T) {
				t.Parallel()
				c.holdsUpNobody(t, supervisors)
			})
		}
	}
}

func (c *poison) holdsUpNobody(t *testing.T, supervisors int) {
	t.Helper()
	db := newQuietDB(t)
	db.Unguarded(t)
	if c.trigger != "" {
		db.refuseRow(t, c.trigger, `raise exception 'no';`)
	}
	db.exec(t, c.insert)
	id := value[string](t, db, `select id from jobs`)
	for range supervisors {
		db.via(t, drover.Config{}).launch(t, drover.SupervisorConfig{Queues: []drover.Queue{{}, {Name: "other"}}})
	}
	for range 10 {
		db.enqueue(t, job{1}, nil)
		db.enqueue(t, job{2}, &drover.EnqueueOpts{Queue: "other"})
	}
	db.Soon(t, time.Minute, "the others wait for the refused one", `select count(*) = 20 from jobs where state = 'completed' and id <> $1`, id)
	harness.Within(t, 2*time.Minute, func() bool { // another job has to pass, or no single one may be at fault
		db.enqueue(t, job{3}, nil)
		harness.After(t, 20*time.Millisecond)
		return value[bool](t, db, `select `+c.becomes+` from jobs where id = $1`, id)
	})
	if n := value[int](t, db, `select max(claim_seq) from jobs where id <> $1`, id); n > 2 {
		t.Errorf("an innocent was claimed %d times", n)
	}
}

// F-15: all of them together.
func TestManyRefusedClaimsHoldUpNobody(t *testing.T) {
	t.Parallel()
	slow(t)
	holdUpNobody(t, slices.Repeat(poisons(), 3))
}

// F-15: the same with a row that is larger, as text, than the server can send.
func TestAClaimOfAHugeRowHoldsUpNobody(t *testing.T) { //nolint:paralleltest // rows of a gigabyte disturb other tests
	tier.Nightly(t, "the server writes rows of 1.2 GB as text: seconds and gigabytes, next to which tests that wait for real time fail")
	huge := poison{"args of 1.2 GB", insertJob("args", `('{"x": [`+strings.Repeat("1e131071,", 9000)+`1]}')::jsonb`), "", discardedByTheClaim}
	huge.holdsUpNobody(t, 1)
	huge.holdsUpNobody(t, 3)
	holdUpNobody(t, append(slices.Repeat(poisons(), 3), huge))
}

func holdUpNobody(t *testing.T, refused []poison) {
	t.Helper()
	db := newQuietDB(t)
	db.Unguarded(t)
	db.refuseRow(t, "new.state = 'running'", `raise exception 'no';`)
	for part := range slices.Chunk(refused, len(poisons())) {
		for _, c := range part {
			db.exec(t, c.insert)
		}
		db.enqueueJobs(t, 100, nil)
	}
	db.exec(t, `update jobs set kind = 'poison' where attempt > 0 or claim_seq > 0 or metadata is not null or args ? 'bad' or pg_column_size(args) > 1000`)
	innocents := value[int](t, db, `select count(*) from jobs where kind = 'job'`)
	db.launch(t, drover.SupervisorConfig{Workers: append(harness.DoingNothing(), harness.DynWorker("poison", drover.WorkerOpts{}, doNothing))})
	db.waitFor(t, 2*time.Minute, `select count(*) = $1 from jobs where state = 'completed'`, innocents)
	db.waitFor(t, 2*time.Minute, `select count(*) = 0 from jobs where scheduled_at <= now() and finalized_at is null`)
}

// F-15: a row for which the claim waits, for a lock or for ever, costs the others one time-out.
func TestAClaimThatWaitsForARow(t *testing.T) {
	t.Parallel()
	slow(t)
	for _, c := range []struct{ name, do, setting string }{
		{"lock_timeout", `perform pg_advisory_xact_lock(hashtext(tg_table_schema));`, "lock_timeout"},
		{"statement_timeout", `perform pg_sleep(600);`, "statement_timeout"},
		{"no time-out of the session's", `perform pg_sleep(600);`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db := newQuietDB(t)
			db.refuseRow(t, "true", c.do)
			holder, err := db.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer holder.Release()
			if _, err := holder.Exec(t.Context(), `select pg_advisory_lock(hashtext(current_schema()))`); err != nil {
				t.Fatal(err)
			}
			defer func() {
				_, _ = holder.Exec(context.Background(), `select pg_advisory_unlock(hashtext(current_schema()))`)
			}()
			db.exec(t, `insert into jobs (kind, args) values ('job', '{"bad": 1}')`)
			edit := func(*pgxpool.Config) {}
			if c.setting != "" {
				edit = func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams[c.setting] = "1s" }
			}
			db.via(t, drover.Config{}, edit).launch(t, drover.SupervisorConfig{Lease: 6 * time.Second, Queues: []drover.Queue{{}, {Name: "other"}}})
			for range 10 {
				db.enqueue(t, job{1}, nil)
				db.enqueue(t, job{2}, &drover.EnqueueOpts{Queue: "other"})
			}
			db.waitFor(t, 20*time.Second, `select count(*) = 20 from jobs where state = 'completed'`)
			db.waitFor(t, 20*time.Second, `select count(*) = 1 from drover_set_aside where path = 'claim'`)
		})
	}
}

// F-15: if the only job due takes too long to claim, it is set aside too. No other job can pass and so prove it at fault,
// and each claim of it would take the server that long again.
func TestTheOnlyJobDueIsTooSlowToClaim(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.refuseRow(t, "new.state = 'running'", `perform pg_sleep(600);`)
	bad := value[string](t, db, `insert into jobs (kind, args) values ('job', '{"bad": 1}') returning id`)
	s := db.via(t, drover.Config{}, func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["statement_timeout"] = "100ms" }).stopped(t, drover.SupervisorConfig{})
	s.Claimer.Wake()
	s.Claimer.Trip(t.Context(), s.Claimer.Request(s.Now()))
	s.Claimer.PickApart(t.Context())
	if got := fmt.Sprint(s.Claimer.Refused.Aside); got != "["+bad+"]" {
		t.Fatalf("left out of claims: %s, want %s", got, bad)
	}
	if !value[bool](t, db, `select state = 'available' and code = '57014' and retry_at > now() from jobs j join drover_set_aside s on s.job = j.id and s.path = 'claim'`) {
		t.Error(value[string](t, db, `select concat(j.state, ' ', s) from jobs j left join drover_set_aside s on s.job = j.id`))
	}
}

// F-15: a job that collides with a running one waits until that one has ended, then runs.
func TestAClaimThatAnIndexRefuses(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `create unique index one_at_a_time on jobs ((args->>'u')) where state = 'running'`)
	var at atomic.Int64
	db.launch(t, drover.SupervisorConfig{Workers: []drover.Worker{harness.DynWorker("u", drover.WorkerOpts{}, func(context.Context, *drover.Job) error {
		if at.Add(1) > 1 {
			return drover.Discard(errors.New("two at a time"))
		}
		defer at.Add(-1)
		return nil
	}), harness.DynWorker("other", drover.WorkerOpts{}, doNothing)}})
	db.exec(t, `insert into jobs (kind, args) select 'u', '{"u": 7}' from generate_series(1, 3)`)
	db.exec(t, `insert into jobs (kind, args) select 'other', '{}' from generate_series(1, 100)`)
	db.waitFor(t, 20*time.Second, `select count(*) = 100 from jobs where kind = 'other' and state = 'completed'`)
	eventually(t, func() bool {
		db.exec(t, `update jobs set scheduled_at = now() where class = 'refused' and state = 'scheduled'`)
		return value[int](t, db, `select count(*) from jobs where kind = 'u' and state = 'completed'`) == 3
	})
}

// F-15: if everything is refused no row is at fault: nothing is put off or discarded, and all jobs run afterwards.
func TestClaimsThatAreAllRefusedWait(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	var book harness.Logbook
	db.exec(t, `create function refuse() returns trigger language plpgsql as $$ begin if new.state = 'running' then raise exception 'not today'; end if; return new; end $$`)
	db.exec(t, `create trigger refuse before update on jobs for each row execute function refuse()`)
	sup := db.via(t, drover.Config{Logger: slog.New(&book)}).launch(t, drover.SupervisorConfig{})
	db.enqueueJobs(t, 30, nil)
	eventually(t, func() bool { return len(book.From(slog.LevelWarn)) > 0 })
	end := time.Now().Add(3 * time.Second)
	eventually(t, func() bool { return time.Now().After(end) })
	if !value[bool](t, db, `select count(*) = 30 from jobs where state = 'available' and errors = '[]'`) || value[int](t, db, `select count(*) from drover_set_aside`) > 0 {
		t.Fatalf("while all is refused: %s", value[string](t, db, `select string_agg(distinct state || ' ' || errors::text, ', ') from jobs`))
	}
	if lines := book.From(slog.LevelWarn); len(lines) > 1 {
		t.Errorf("%d lines in three seconds: %v", len(lines), lines)
	}
	db.exec(t, `drop trigger refuse on jobs`)
	db.waitFor(t, 2*time.Minute, `select count(*) = 30 from jobs where state = 'completed'`)
	eventually(t, func() bool {
		return strings.Contains(fmt.Sprint(book.From(slog.LevelInfo)), "the database answers again")
	})
	sup.Stop(t)
}

// F-15: a new process leaves alone the jobs that others have set aside. When a pause is over one process tries that
// job by itself, and once it passes claims are as they were.
func TestWhatIsSetAsideIsLeftAloneThenTriedAgain(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.refuseRow(t, "true", `raise exception 'no';`)
	bad := value[string](t, db, `insert into jobs (kind, args) values ('job', '{"bad": 1}') returning id`)
	db.exec(t, `select drover_set_aside('claim', jsonb_build_array(jsonb_build_object('id', $1::text, 'error', 'no', 'code', 'P0001')))`, bad)
	db.exec(t, `update drover_set_aside set retry_at = now() + interval '1 hour'`)
	var book harness.Logbook
	sup := db.via(t, drover.Config{Logger: slog.New(&book)}).launch(t, drover.SupervisorConfig{})
	db.enqueueJobs(t, 20, nil)
	db.waitFor(t, 2*time.Minute, `select count(*) = 20 from jobs where state = 'completed'`)
	if lines := book.From(slog.LevelWarn); len(lines) > 0 {
		t.Fatalf("it fell over what was known: %v", lines)
	}
	db.exec(t, `update drover_set_aside set retry_at = now()`)
	db.Soon(t, 2*time.Minute, "it is not tried by itself", `select tries = 2 and retry_at > now() + interval '20 s' from drover_set_aside`)
	db.exec(t, `drop trigger refuse on jobs`)
	db.exec(t, `update drover_set_aside set retry_at = now()`)
	db.waitFor(t, 2*time.Minute, `select state = 'completed' from jobs where id = $1`, bad)
	db.waitFor(t, 2*time.Minute, `select count(*) = 0 from drover_set_aside`)
	sup.Stop(t)
	if n := len(harness.EngineOf(sup.Supervisor).Claimer.Refused.Aside); n > 1 {
		t.Errorf("%d jobs are left out of claims", n)
	}
}

// A thousand jobs that are set aside, and that no supervisor serves, do not keep another one from
// its next try.
func TestWhatIsSetAsideIsTriedBehindJobsThatNobodyServes(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into jobs (kind) select 'gone' from generate_series(1, 1000)`)
	id := value[string](t, db, `insert into jobs (kind, args) values ('job', '{"n": 1}') returning id`)
	db.exec(t, `insert into drover_set_aside (path, job, error, code, retry_at)
		select 'claim', id, 'no', 'P0001', now() - case kind when 'gone' then interval '1 hour' else interval '1 s' end from jobs`)
	s := db.stopped(t, drover.SupervisorConfig{})
	s.Claimer.TendAside(t.Context())
	if got := value[string](t, db, `select state from jobs where id = $1`, id); got != "running" {
		t.Errorf("its pause is over, and it is %s", got)
	}
	if n := value[int](t, db, `select count(*) from drover_set_aside`); n != 1000 {
		t.Errorf("%d jobs are set aside, want the thousand that nobody serves", n)
	}
}

// F-15: cancelled or deleted, a job is set aside no more.
func TestWhatIsSetAsideCanBeCancelled(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.refuseRow(t, "new.state = 'running' or new.errors <> '[]' and new.state <> 'cancelled'", `raise exception 'no';`)
	bad := value[string](t, db, `insert into jobs (kind, args) values ('job', '{"bad": 1}') returning id`)
	s := db.stopped(t, drover.SupervisorConfig{})
	db.enqueueJobs(t, 3, nil)
	s.Claimer.Wake()
	s.Claimer.Trip(t.Context(), s.Claimer.Request(s.Now()))
	s.Claimer.PickApart(t.Context())
	if got := fmt.Sprint(s.Claimer.Refused.Aside); got != "["+bad+"]" {
		t.Fatalf("left out of claims: %s, want %s", got, bad)
	}
	if was, err := db.client.Cancel(t.Context(), bad, drover.Audit{}); err != nil || was != drover.Available {
		t.Fatal(was, err)
	}
	s.Claimer.ReadAside(t.Context())
	if len(s.Claimer.Refused.Aside) > 0 || value[int](t, db, `select count(*) from drover_set_aside`) > 0 {
		t.Error("a cancelled job is still set aside")
	}
}

// A row that no read gets past, damaged or hidden behind a policy that fails: its lane is left out, the others go on.
func TestALaneThatCannotBeRead(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `create function readable(kind text) returns boolean language plpgsql as $$
		begin if kind = 'damaged' then raise exception 'invalid page' using errcode = 'XX001'; end if; return true; end $$`)
	db.exec(t, `insert into jobs (kind, priority) values ('damaged', 3)`)
	schema := value[string](t, db, `select current_schema()`)
	role := "reads_" + strings.ToLower(schema)
	db.exec(t, `create role `+role)
	t.Cleanup(func() { _, _ = db.Exec(context.Background(), `drop owned by `+role+`; drop role `+role) })
	db.exec(t, `grant usage on schema `+schema+` to `+role+`; grant all on all tables in schema `+schema+` to `+role+`; grant execute on all functions in schema `+schema+` to `+role)
	db.exec(t, `alter table jobs enable row level security; create policy readable on jobs using (readable(kind))`)
	var book harness.Logbook
	db.via(t, drover.Config{Logger: slog.New(&book)}, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["role"] = role }).launch(t, drover.SupervisorConfig{
		Queues: []drover.Queue{{}, {Name: "other"}}, Workers: append(harness.DoingNothing(), harness.DynWorker("damaged", drover.WorkerOpts{}, doNothing)),
	})
	for range 10 {
		db.enqueue(t, job{1}, nil)
		db.enqueue(t, job{2}, &drover.EnqueueOpts{Queue: "other", Priority: 3})
	}
	db.waitFor(t, 20*time.Second, `select count(*) = 20 from jobs where state = 'completed'`)
	if lines := fmt.Sprint(book.From(slog.LevelError)); !strings.Contains(lines, "their lane is left out") || !strings.Contains(lines, "invalid page") {
		t.Errorf("log: %s", lines)
	}
}

// A claim that brings too much, or too late, is followed by smaller ones, and these by larger ones again.
func TestClaimsAskForWhatTheyCanTake(t *testing.T) {
	t.Parallel()
	reply := func(jobs, bytes int) *store.ClaimReply {
		return &store.ClaimReply{Committed: true, Jobs: make([]store.Job, jobs), Bytes: bytes}
	}
	r := engine.RefusedClaims{Most: engine.MaxClaim}
	for _, c := range []struct {
		name  string
		n     int
		reply *store.ClaimReply
		err   error
		want  int
	}{
		{"usual", 2000, reply(2000, 1<<20), nil, 2000},
		{"large", 2000, reply(2000, 512<<20), nil, 250},
		{"just right", 250, reply(250, 60<<20), nil, 250},
		{"a time-out", 250, &store.ClaimReply{}, fmt.Errorf("timeout: %w", context.DeadlineExceeded), 125},
		{"small, not filled", 125, reply(3, 300), nil, 125},
		{"small and filled", 125, reply(125, 12500), nil, 250},
		{"one huge job", 250, reply(1, 200<<20), nil, 1},
		{"refused", 1, &store.ClaimReply{}, errors.New("no"), 1},
		{"filled", 1, reply(1, 100), nil, 2},
	} {
		if r.Asked(c.n, c.reply, c.err); r.Most != c.want {
			t.Errorf("%s: the next asks for %d, want %d", c.name, r.Most, c.want)
		}
	}
}

// F-15: a job that is set aside gives nobody work: no full sweep lowers a floor for it, and no supervisor empties itself to run
// it alone.
func TestWhatIsSetAsideGivesNobodyWork(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into jobs (kind, crashes, scheduled_at) values ('job', 2, now() - interval '1 hour'), ('job', 0, now() - interval '1 hour')`)
	s := db.stopped(t, drover.SupervisorConfig{})
	ask := func() (solo string, stragglers int) {
		t.Helper()
		conn, err := s.Keeper.Link.Get(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		l := s.Lease.Load()
		reply, err := conn.Beat(t.Context(), l.ID, int(l.Epoch.Load()), nil, false, s.QueueNames(), s.Kinds, nil)
		if err != nil {
			t.Fatal(err)
		}
		var lanes []store.SweepLane
		for _, lane := range []int16{floors.TierFresh + 5, floors.TierStrong + 5} {
			lanes = append(lanes, store.SweepLane{Key: floors.Lane{Queue: "default", N: lane}, Floor: floors.Floor{At: time.Now().Add(time.Hour)}})
		}
		behind, _, err := conn.Sweep(t.Context(), lanes, s.Kinds, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		return reply.Solo, len(behind)
	}
	if solo, stragglers := ask(); solo != "default" || stragglers != 2 {
		t.Fatalf("before: solo %q, %d stragglers", solo, stragglers)
	}
	db.exec(t, `insert into drover_set_aside (path, job, error, code, retry_at) select 'claim', id, 'no', '', now() from jobs`)
	if solo, stragglers := ask(); solo != "" || stragglers != 0 {
		t.Errorf("set aside: solo %q, %d stragglers", solo, stragglers)
	}
}

// F-15: a job that is too large to come back before the claim's time is over is set aside once the doubt is over. If the
// server's limit ends its claim while other jobs pass, it is put off first.
func TestAJobTooLargeToClaim(t *testing.T) { //nolint:paralleltest // a row of 180 MB disturbs other tests
	tier.Nightly(t, "the server writes a row of 180 MB again and again, until the claim's time is over; TestTheOnlyJobDueIsTooSlowToClaim has a slow trigger instead")
	db := newQuietDB(t)
	db.Unguarded(t)
	bad := value[string](t, db, `insert into jobs (kind, metadata) values ('job', jsonb_build_object('x', repeat(chr(1), 30000000))) returning id`)
	db.launch(t, drover.SupervisorConfig{Lease: time.Second, Queues: []drover.Queue{{}, {Name: "other"}}})
	for range 10 {
		db.enqueue(t, job{1}, nil)
		db.enqueue(t, job{2}, &drover.EnqueueOpts{Queue: "other"})
	}
	db.waitFor(t, 3*time.Minute, `select count(*) = 20 from jobs where state = 'completed' and id <> $1`, bad)
	db.waitFor(t, 3*time.Minute, `select exists (select from drover_set_aside where path = 'claim' and job = $1) or state in ('discarded', 'completed') from jobs where id = $1`, bad)
}
