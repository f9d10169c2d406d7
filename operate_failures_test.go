package drover_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/drover-queue/drover"
)

// The dead letters of a group are counted by an index that begins with their queue, whatever queues, reasons and classes they
// have. The newest quarantined jobs are found in the same way.
func TestDeadLettersAreFoundByTheirKind(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	db.exec(t, `
insert into jobs (id, queue, kind, state, finalized_at, discard_reason, class, fingerprint)
select (select left(drover_ulid(), 10)) || lpad(n::text, 16, '0'), 'q' || n % 3, 'k' || n % 5, 'discarded', now() - n % 97 * interval '1 s', (array['attempts_exhausted', 'panic', 'crashed'])[1 + n % 7 % 3], (array['error', 'panic', 'crash', null])[1 + n % 11 % 4],
	case when n % 13 > 0 then lpad(to_hex(n % 4), 16, '0') end
from generate_series(1, 2000) n`)
	db.exec(t, `insert into drover_failure_groups (fingerprint, kind, class, first_seen, last_seen, count, jobs, last_job)
select lpad(to_hex(n), 16, '0'), 'k' || n, 'error', now(), now(), 1, 1, '' from generate_series(0, 5) n`)
	wrong := value[string](t, db, `select coalesce(string_agg(format('%s: %s, not %s', fingerprint, discarded, counted), '; '), '')
from (select f.fingerprint, f.discarded, (select count(*) from jobs j where j.kind = f.kind and j.fingerprint = f.fingerprint and j.discard_reason is not null) as counted from failures f) f where discarded <> counted`)
	if n := value[int](t, db, `select count(*) from failures where discarded > 30`); wrong != "" || n != 4 {
		t.Errorf("%d groups have dead letters; %s", n, wrong)
	}
	got := value[string](t, db, `select string_agg(id, ',' order by finalized_at desc, id desc) from drover_newest_dead('crashed', 20)`)
	want := value[string](t, db, `select string_agg(id, ',' order by finalized_at desc, id desc) from (select * from jobs where discard_reason = 'crashed' order by finalized_at desc, id desc limit 20) j`)
	if got != want {
		t.Errorf("quarantined: %s, want %s", got, want)
	}
	if s := db.snapshot(t); len(s.Quarantined) != 10 || !strings.HasPrefix(want, s.Quarantined[0].ID) {
		t.Errorf("the snapshot has %+v", s.Quarantined)
	}
}

// A kind may have more quarantined jobs than are looked at.
func TestTheNewestQuarantinedOfMany(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into jobs (kind, state, finalized_at, discard_reason, class, fingerprint) select 'k', 'discarded', now() - n * interval '1 s', 'crashed', 'crash', 'f' from generate_series(1, 1001) n`)
	if !value[bool](t, db, `select (select finalized_at from drover_newest_dead('crashed', 1)) = max(finalized_at) from jobs`) {
		t.Error("another job than the newest is found")
	}
}

// Failures that are all different fill no table: beyond 10,000 groups they are counted by kind.
func TestFailureGroupsAreBounded(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into drover_failure_groups (fingerprint, kind, class, first_seen, last_seen, count, jobs, last_job)
		select lpad(to_hex(n), 16, '0'), 'k', 'error', now(), now(), 1, 1, '' from generate_series(1, 9999) n`)
	db.exec(t, `insert into drover_failure_tallies (fingerprint, kind, class, error_type, sample, count, jobs, last_job)
		select lpad(to_hex(n), 16, '0'), 'k' || n % 2, 'error', '', 'text', 2, 1, '' from generate_series(9999, 10010) n`)
	db.Tend(t)
	if got := value[string](t, db, `select count(*) || ' groups, ' || sum(count) || ' runs, ' || count(*) filter (where sample like 'more kinds%') || ' beyond' from drover_failure_groups`); got != "10002 groups, 10023 runs, 2 beyond" {
		t.Error(got)
	}
}

// Bad input is refused before anything is written. A group that does not exist is ErrNotFound.
func TestFailureVerbsRefuseBadInput(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	ctx, c := t.Context(), db.client
	const print = "00c0ffee00c0ffee"
	_, list := c.FailureGroups(ctx, drover.FailureFilter{Kind: "\x00", Status: "shut", Limit: 10_001})
	for what, err := range map[string]error{
		"list":   list,
		"status": c.SetFailureStatus(ctx, print, "shut", drover.Audit{By: "\xff"}),
		"action": c.SetFailurePolicy(ctx, print, drover.FailurePolicy{Action: "explode"}, drover.Audit{}),
		"build":  c.SetFailurePolicy(ctx, print, drover.FailurePolicy{Action: drover.FailureDiscard, Build: "A"}, drover.Audit{}),
	} {
		if !errors.Is(err, drover.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, print := range []string{print, "", "no such", print + "0", "\x00"} {
		_, get := c.FailureGroup(ctx, print)
		for what, err := range map[string]error{
			"get": get, "status": c.SetFailureStatus(ctx, print, drover.FailureOpen, drover.Audit{}), "policy": c.SetFailurePolicy(ctx, print, drover.FailurePolicy{}, drover.Audit{}),
		} {
			if !errors.Is(err, drover.ErrNotFound) {
				t.Errorf("%s of %q: %v", what, print, err)
			}
		}
	}
	db.exec(t, `insert into drover_failure_groups (fingerprint, kind, class, first_seen, last_seen, count, jobs, last_job) values ($1, 'k', 'error', now(), now(), 1, 1, '')`, print)
	if err := c.SetFailurePolicy(ctx, print, drover.FailurePolicy{Action: drover.FailurePark}, drover.Audit{}); !errors.Is(err, drover.ErrState) {
		t.Errorf("park with no build known: %v", err)
	}
	db.exec(t, `insert into drover_builds (build, first_seen) values ('A', now() - interval '1 h'), ('B', now())`)
	if err := c.SetFailurePolicy(ctx, print, drover.FailurePolicy{Action: drover.FailurePark, Build: "A"}, drover.Audit{}); !errors.Is(err, drover.ErrState) {
		t.Errorf("park for a build older than the newest: %v", err)
	}
}

// F-15: one odd tally is dropped, and stops neither the others nor the jobs that a newer build releases.
func TestOneOddTallyStopsNoOther(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		odd  string // of the last of 300 tallies
		want string
	}{
		"a fingerprint that is none":  {`fingerprint = 'nonsense'`, "299 runs, 0 left"},
		"a text that a check refuses": {`sample = 'poison', fingerprint = '00000000000000bb'`, "299 runs, 0 left"},
		"a count at its type's end":   {`count = 2147483647, jobs = 2147483647`, "2147483946 runs, 0 left"},
		"after the end of time":       {`at = 'infinity'`, "300 runs, 0 left"},
		"before its beginning":        {`at = '-infinity'`, "300 runs, 0 left"},
		"one that cannot be deleted":  {`sample = 'stays'`, "299 runs, 1 left"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newQuietDB(t)
			db.exec(t, `alter table drover_failure_groups add check (sample not like '%poison%')`)
			db.exec(t, `insert into drover_failure_tallies (fingerprint, kind, class, error_type, sample, count, jobs, last_job)
				select '00000000000000aa', 'k', 'error', '', 'text', 1, 1, '' from generate_series(1, 300)`)
			db.exec(t, `update drover_failure_tallies set `+c.odd+` where id = (select max(id) from drover_failure_tallies)`)
			db.exec(t, `create function no() returns trigger language plpgsql as $$ begin raise exception 'no'; end $$`)
			db.exec(t, `create trigger no before delete on drover_failure_tallies for each row when (old.sample = 'stays') execute function no()`)
			for range 2 {
				db.Tend(t)
			}
			if got := value[string](t, db, `select (select sum(count) from drover_failure_groups) || ' runs, ' || (select count(*) from drover_failure_tallies) || ' left'`); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			groups, err := db.client.FailureGroups(t.Context(), drover.FailureFilter{})
			if err != nil || len(groups) != 1 {
				t.Errorf("%+v, %v", groups, err)
			}
		})
	}
}

// F-15: counters of a group stop at the end of their type, and a group with odd times can be read.
func TestOddFailureGroup(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into drover_failure_groups (fingerprint, kind, class, first_seen, last_seen, count, jobs, last_job, status, resolved_at, regressions)
		values ('00000000000000aa', 'k', 'error', '-infinity', '-infinity', 9223372036854775807, 9223372036854775807, '', 'resolved', '-infinity', 2147483647)`)
	db.exec(t, `insert into drover_failure_tallies (fingerprint, kind, class, error_type, sample, count, jobs, last_job) values ('00000000000000aa', 'k', 'error', '', 'text', 2, 2, '')`)
	if back := db.Tend(t); len(back) != 1 {
		t.Errorf("%d came back", len(back))
	}
	if g := db.TheGroup(t); g.Count != 1<<63-1 || g.Jobs != 1<<63-1 || g.Regressions != math.MaxInt32 || g.Status != drover.FailureOpen || g.ResolvedAt != nil || g.FirstSeen.Year() != 1 {
		t.Errorf("%+v", g)
	}
	db.exec(t, `update drover_failure_groups set last_seen = 'infinity', regressed_at = '294000-01-01', updated_at = '-infinity', status = 'resolved', resolved_at = 'infinity'`)
	g, err := db.client.FailureGroup(t.Context(), "00000000000000aa")
	if err != nil || g.LastSeen.Year() != 9999 || g.ResolvedAt.Year() != 9999 || g.RegressedAt.Year() != 9999 || g.UpdatedAt.Year() != 1 {
		t.Errorf("%+v, %v", g, err)
	}
	if _, err := db.client.FailureGroups(t.Context(), drover.FailureFilter{}); err != nil {
		t.Error(err)
	}
}

// F-15: if the database refuses to change a parked job, the job is set aside. If a parked job is locked, it is passed
// over. The jobs of other builds after them come back. The refused job is tried again after its pause.
func TestUnparkBesideARefusedAndALockedJob(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into drover_builds (build, first_seen) values ('a', now() - interval '3 h'), ('b', now() - interval '2 h'), ('c', now() - interval '1 h')`)
	db.exec(t, `insert into jobs (kind, state, scheduled_at, fingerprint, parked_build, errors_total, args)
		select 'job', 'parked', 'infinity', '00000000000000aa', (array['a', 'b', 'c'])[greatest(1, n - 1)], 1, jsonb_build_object('n', n) from generate_series(1, 4) n`)
	db.Refuse(t, `old.args @> '{"n": 1}'`)
	unlock := db.Hold(t, `select from jobs where args @> '{"n": 2}' for update`)
	const states = `select string_agg(args->>'n', ' ' order by args->>'n') from jobs where state = 'retryable'`
	db.Tend(t)
	if got := value[string](t, db, states); got != "3 4" {
		t.Errorf("came back: %s", got)
	}
	const aside = `select string_agg(path || ' ' || error || ' ' || tries, ', ') from drover_set_aside`
	if got := value[string](t, db, aside); got != "unpark no 1" {
		t.Errorf("set aside: %s", got)
	}
	unlock()
	db.Tend(t)
	if got := value[string](t, db, states) + "; " + value[string](t, db, aside); got != "2 3 4; unpark no 1" {
		t.Errorf("then %s", got)
	}
	db.exec(t, `update drover_set_aside set retry_at = now()`)
	db.Tend(t)
	if got := value[string](t, db, aside); got != "unpark no 2" {
		t.Errorf("after its pause: %s", got)
	}
	db.exec(t, `drop trigger no on jobs`)
	db.exec(t, `update drover_set_aside set retry_at = now()`)
	db.Tend(t)
	if got := value[string](t, db, states+` and not exists (select from drover_set_aside)`); got != "1 2 3 4" {
		t.Errorf("in the end %s", got)
	}
}

// O-4: a group counts its failed runs by the hour. Late failures go into the hour in which they happened.
func TestFailuresByTheHour(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	tally := func(hoursAgo, count int) {
		t.Helper()
		db.exec(t, `insert into drover_failure_tallies (fingerprint, at, kind, class, error_type, sample, count, jobs, last_job)
			values ('00000000000000aa', date_trunc('hour', now(), 'UTC') + interval '1 minute' - $1 * interval '1 hour', 'k', 'error', '', 'text', $2, 1, '')`, hoursAgo, count)
		db.exec(t, `select count(*) from drover_failures_add()`)
	}
	hours := func() (got string) {
		t.Helper()
		g, err := db.client.FailureGroup(t.Context(), "00000000000000aa")
		if err != nil || len(g.Hourly) != 24 {
			t.Fatal(g, err)
		}
		for i, n := range g.Hourly {
			if n > 0 {
				got += fmt.Sprintf("%d:%d ", 23-i, n)
			}
		}
		return got
	}
	var began time.Time
	for {
		now := value[time.Time](t, db, `select date_trunc('hour', now(), 'UTC')`)
		if now.Equal(began) {
			break // no hour of the clock ended meanwhile
		}
		began = now
		db.exec(t, `delete from drover_failure_groups`)
		for _, c := range []struct {
			hoursAgo, count int
			want            string
		}{
			{5, 3, "5:3 "}, {5, 1, "5:4 "}, {2, 7, "5:4 2:7 "}, {4, 2, "5:4 4:2 2:7 "}, {23, 1, "23:1 5:4 4:2 2:7 "}, {24, 9, "23:1 5:4 4:2 2:7 "}, {0, 6, "23:1 5:4 4:2 2:7 0:6 "},
		} {
			tally(c.hoursAgo, c.count)
			if got := hours(); got != c.want && began.Equal(value[time.Time](t, db, `select date_trunc('hour', now(), 'UTC')`)) {
				t.Errorf("%d failures %d hours ago: %s, want %s", c.count, c.hoursAgo, got, c.want)
			}
		}
	}
	for odd, want := range map[string]string{
		`hours = '{9223372036854775807,null}', last_seen = now()`: "0:9223372036854775807 ", `hours = '{1,2,3}', last_seen = 'infinity'`: "2:3 1:2 0:1 ", `hours = '{1}', last_seen = '-infinity'`: "0:1 ",
	} {
		db.exec(t, `update drover_failure_groups set `+odd)
		tally(0, 1)
		if got := hours(); got != want {
			t.Errorf("%s: %q, want %q", odd, got, want)
		}
	}
}

// Somebody has locked a failure group and is about to change it. A supervisor that adds up failures meanwhile does not
// wait for this person, and the two are in no deadlock.
func TestALockedGroupIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	const print = "00000000000000aa"
	for name, lock := range map[string]string{
		"a change that requires what was seen": `select drover_require_seen('failure', $1, drover_seen('failure', $1))`,
		"by hand":                              `select from drover_failure_groups where fingerprint = $1 for update`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newQuietDB(t)
			db.exec(t, `insert into drover_failure_groups (fingerprint, kind, class, first_seen, last_seen, count, jobs, last_job) values ($1, 'k', 'error', now(), now(), 1, 1, '')`, print)
			db.exec(t, `insert into drover_failure_tallies (fingerprint, kind, class, error_type, count, jobs, last_job) values ($1, 'k', 'error', '', 1, 1, '')`, print)
			person, err := db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = person.Rollback(context.Background()) }()
			if _, err := person.Exec(t.Context(), lock, print); err != nil {
				t.Fatal(err)
			}

			supervisor := db.Dialed(t)
			added := make(chan error, 1)
			go func() {
				_, err := supervisor.Exec(t.Context(), `select count(*) from drover_failures_add()`)
				added <- err
			}()
			eventually(t, func() bool {
				return len(added) == 1 || value[bool](t, db, `select pg_blocking_pids($1) <> '{}'`, supervisor.PgConn().PID())
			})
			if len(added) == 0 {
				t.Error("the supervisor waits for the person")
			}
			if _, err := person.Exec(t.Context(), `select drover_failure_status($1, 'ignored')`, print); err != nil {
				t.Errorf("the person: %v", err)
			}
			if err := person.Commit(t.Context()); err != nil {
				t.Errorf("the person: %v", err)
			}
			if err := receive(t, added); err != nil {
				t.Errorf("the supervisor: %v", err)
			}
			db.Tend(t)
			if g := db.TheGroup(t); g.Count != 2 || g.Status != drover.FailureIgnored {
				t.Errorf("%+v", g)
			}
		})
	}
}
