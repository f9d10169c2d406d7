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

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/harness"
)

// A redrive meets rows that the database refuses to read or to change, or that others have locked.

// F-15: of a hundred dead letters one is refused. The others come back, the refused one is listed with the reason,
// and the progress reaches its end. All of it works by psql alone. Once the cause is gone another redrive takes the
// job.
func TestRedriveSkipsARefusedRow(t *testing.T) {
	t.Parallel()
	slow(t)
	const bad = `old.args @> '{"n": 7}'`
	for name, c := range map[string]struct {
		plan       drover.RedrivePlan
		setUp      func(t *testing.T, v *virtual)
		mend       string
		why        string // empty: nothing is refused
		aside      int    // rows that cannot even be taken out of its hands
		lateDuring string // hangs the refusal on the table once the jobs are marked
	}{
		"at release": {
			setUp: func(t *testing.T, v *virtual) {
				t.Helper()
				v.Refuse(t, bad+` and new.finalized_at is null`)
			},
			mend: `drop trigger no on jobs`, why: "refused: no",
		},
		"at release, by key": {
			plan: drover.RedrivePlan{PerKey: 3},
			setUp: func(t *testing.T, v *virtual) {
				t.Helper()
				v.Refuse(t, bad+` and new.finalized_at is null`)
			},
			mend: `drop trigger no on jobs`, why: "refused: no",
		},
		"a canary": {
			plan: drover.RedrivePlan{Canary: 8},
			setUp: func(t *testing.T, v *virtual) {
				t.Helper()
				v.Refuse(t, bad+` and new.finalized_at is null`)
			},
			mend: `drop trigger no on jobs`, why: "refused: no",
		},
		"marked": {
			setUp: func(t *testing.T, v *virtual) {
				t.Helper()
				v.Refuse(t, bad)
			},
			mend: `drop trigger no on jobs`, why: "refused: no",
		},
		"any change after it was marked": {
			mend: `drop trigger no on jobs`, why: "refused: no", aside: 1, lateDuring: bad,
		},
		"any change after it was marked, by key": {
			plan: drover.RedrivePlan{PerKey: 3}, mend: `drop trigger no on jobs`, why: "refused: no", aside: 1, lateDuring: bad,
		},
		"a unique index of the application's": {
			setUp: func(t *testing.T, v *virtual) {
				t.Helper()
				v.exec(t, `create unique index mine on jobs ((args->>'n')) where finalized_at is null`)
				v.exec(t, `insert into jobs (kind, queue, args) values ('other', 'elsewhere', '{"n": 7}')`)
			},
			mend: `drop index mine`, why: `refused: duplicate key value violates unique constraint "mine"`,
		},
		"redriven 32,767 times": {setUp: func(t *testing.T, v *virtual) {
			t.Helper()
			v.exec(t, `update jobs set redrives = 32767 where args @> '{"n": 7}'`)
		}},
		"a time budget far ahead": {setUp: func(t *testing.T, v *virtual) {
			t.Helper()
			v.exec(t, `update jobs set created_at = '2000-01-01', retry_until = '294276-12-31' where args @> '{"n": 7}'`)
		}},
		"born before time": {setUp: func(t *testing.T, v *virtual) {
			t.Helper()
			v.Unguarded(t)
			v.exec(t, `update jobs set created_at = '-infinity', retry_until = now() where args @> '{"n": 7}'`)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newVirtual(t)
			v.Bury(t, 100, 2)
			if c.setUp != nil {
				c.setUp(t, v)
			}
			c.plan.Filter = drover.Filter{Kind: "job"}
			r := v.redrive(t, c.plan)
			if c.lateDuring != "" {
				v.Refuse(t, c.lateDuring)
			}
			v.until(t, `select state = 'done' from drover_redrives`)
			v.until(t, `select count(*) = 0 from jobs where kind = 'job' and state in ('available', 'retryable')`)
			refused := 0
			if c.why != "" {
				refused = 1
			}
			if n := value[int](t, v.testDB, `select count(*) from jobs where state = 'completed'`); n != 100-refused {
				t.Errorf("%d came back, want %d", n, 100-refused)
			}
			r, err := v.client.Redrive(t.Context(), r.ID)
			if err != nil || r.Matched != int64(100-refused) || r.Released != r.Matched || r.Skipped != int64(refused) || len(r.Skips) != refused || r.Note != "" {
				t.Fatalf("%+v, %v", r, err)
			}
			if n := value[int](t, v.testDB, `select count(*) from drover_set_aside where path = 'redrive'`); n != c.aside {
				t.Errorf("%d set aside, want %d", n, c.aside)
			}
			if refused == 0 {
				return
			}
			id := value[string](t, v.testDB, `select id from jobs where args @> '{"n": 7}' and kind = 'job'`)
			if !slices.Equal(r.Skips, []drover.SkippedJob{{ID: id, Why: c.why}}) {
				t.Errorf("skipped %+v, want %s: %s", r.Skips, id, c.why)
			}
			if c.aside == 0 && value[bool](t, v.testDB, `select paced_at is not null from jobs where id = $1`, id) {
				t.Error("it is still in the redrive's hands")
			}
			v.exec(t, c.mend)
			if again := v.redrive(t, drover.RedrivePlan{Filter: drover.Filter{Kind: "job"}}); again.Matched != 1 || again.Skipped != 0 {
				t.Errorf("the next one: %+v", again)
			}
			v.until(t, `select count(*) = 100 from jobs where kind = 'job' and state = 'completed'`)
			if n := value[int](t, v.testDB, `select count(*) from drover_set_aside`); n != 0 {
				t.Errorf("%d are set aside still", n)
			}
		})
	}
}

// F-15: a redrive's own counters stop at the end of their type, and it goes on.
func TestRedriveCountersStopAtTheirEnd(t *testing.T) {
	t.Parallel()
	v := newVirtual(t)
	v.Bury(t, 10, 1)
	v.exec(t, `update jobs set expires_at = now() where args @> '{"n": 1}'`)
	for _, counter := range []string{"matched", "released", "skipped", "unkeyed"} {
		v.exec(t, `alter table drover_redrives alter column `+counter+` set default 9223372036854775807`)
	}
	v.exec(t, `update jobs set concurrency_key = null where args @> '{"n": 2}'`)
	v.exec(t, `alter function drover_redrive_mark set plan_cache_mode = force_generic_plan`) // so that no part of a condition is left out because of a parameter
	v.redrive(t, drover.RedrivePlan{Filter: drover.Filter{All: true}, PerKey: 5})
	v.until(t, `select state = 'done' from drover_redrives`)
	if n := value[int](t, v.testDB, `select count(*) from jobs where state = 'completed'`); n != 9 {
		t.Errorf("%d of 9 came back", n)
	}
}

// F-15: rows that are refused while one redrive marks stop neither it nor another redrive. They lie next to each
// other, and are more than a walk takes for the rows' own fault.
func TestRedriveSkipsRowsRefusedWhileMarking(t *testing.T) {
	t.Parallel()
	v := newVirtual(t)
	v.Bury(t, 600, 1)
	v.exec(t, `update jobs set kind = 'other' where (args->>'n')::int > 500`)
	v.Refuse(t, `old.kind = 'job' and (old.args->>'n')::int between 101 and 450`)
	const start = `select drover_redrive_start(jsonb_build_object('filter', jsonb_build_object('kind', $1::text), 'rate', 100))`
	v.exec(t, start, "job")
	v.exec(t, start, "other")
	v.until(t, `select count(*) = 250 from jobs where state = 'completed'`)
	v.until(t, `select bool_and(state = 'done' and note = '') from drover_redrives`)
	if got := value[string](t, v.testDB, `select string_agg(matched || '/' || skipped || '/' || jsonb_array_length(skips), ' ' order by id) from drover_redrives`); got != "150/350/350 100/0/0" {
		t.Error(got)
	}
}

// F-15: if a whole stretch of dead letters is refused at release, those after it come back.
func TestRedriveSkipsManyRefusedRowsInARow(t *testing.T) {
	t.Parallel()
	v := newVirtual(t)
	v.Bury(t, 900, 1)
	v.redrive(t, drover.RedrivePlan{Filter: drover.Filter{All: true}, Rate: 500})
	v.Refuse(t, `(old.args->>'n')::int <= 700`)
	v.until(t, `select state = 'done' and skipped = 700 from drover_redrives`)
	v.until(t, `select count(*) = 200 from jobs where state = 'completed'`)
	if n := value[int](t, v.testDB, `select count(*) from drover_set_aside where path = 'redrive'`); n != 700 {
		t.Errorf("%d set aside", n)
	}
	// Once their pause is over they are let go by the next tick that has anything to do.
	v.exec(t, `drop trigger no on jobs`)
	v.exec(t, `update drover_set_aside set retry_at = now() - interval '1 s'`)
	v.exec(t, `insert into drover_redrives (filter, rate, state) values ('{"all": true}', 1, 'aborted')`)
	for range 7 {
		v.pass(t, time.Second/4)
		v.exec(t, `update drover_redrives set finished_at = null where filter = '{"all": true}' and state = 'aborted'`)
	}
	if n := value[int](t, v.testDB, `select count(*) from drover_set_aside`) + value[int](t, v.testDB, `select count(*) from jobs where paced_at is not null`); n != 0 {
		t.Errorf("%d are left", n)
	}
}

// F-15: an abort that one row refuses ends, and its other jobs are free.
func TestRedriveAbortBesideARefusedRow(t *testing.T) {
	t.Parallel()
	v := newVirtual(t)
	v.Bury(t, 50, 1)
	r := v.redrive(t, drover.RedrivePlan{Filter: drover.Filter{All: true}})
	v.Refuse(t, `old.args @> '{"n": 20}'`)
	if err := v.client.AbortRedrive(t.Context(), r.ID, drover.Audit{Why: "enough"}); err != nil {
		t.Fatal(err)
	}
	v.pass(t, 0)
	if got, err := v.client.Redrive(t.Context(), r.ID); err != nil || got.FinishedAt == nil || got.Note != "enough" {
		t.Errorf("%+v, %v", got, err)
	}
	if n := value[int](t, v.testDB, `select count(*) from jobs where paced_at is not null`); n != 1 {
		t.Errorf("it holds %d jobs", n)
	}
	if again := v.redrive(t, drover.RedrivePlan{Filter: drover.Filter{All: true}}); again.Matched != 49 || again.Skipped != 1 {
		t.Errorf("the next one: %+v", again)
	}
}

// F-15: of the jobs that nobody claims one cannot be taken back: the others are, and that one stays due.
func TestRedriveTakesBackBesideARefusedRow(t *testing.T) {
	t.Parallel()
	v := newVirtual(t)
	v.Bury(t, 80, 1)
	v.redrive(t, drover.RedrivePlan{Filter: drover.Filter{All: true}, Rate: 30})
	v.pass(t, 0)
	v.Refuse(t, `old.args @> '{"n": 9}' and new.state = 'parked'`)
	v.pass(t, 2*time.Second)
	if got := value[string](t, v.testDB, `select string_agg(state || ' ' || n, ', ' order by state) from (select state, count(*) as n from jobs group by 1) s`); got != "available 2, discarded 50, parked 28" {
		t.Errorf("%s; want two that are due: the probe, and the one that cannot be taken back", got)
	}
	v.exec(t, `drop trigger no on jobs`)
	v.until(t, `select count(*) = 80 from jobs where state = 'completed'`)
}

// F-15: a capped job that has ended and cannot be taken off the list of its key holds up no other of that key.
func TestRedriveFreesAKeyBesideARefusedRow(t *testing.T) {
	t.Parallel()
	v := newVirtual(t)
	v.Bury(t, 20, 1)
	v.redrive(t, drover.RedrivePlan{Filter: drover.Filter{All: true}, PerKey: 2})
	v.Refuse(t, `old.args @> '{"n": 1}' and old.state = 'completed'`)
	v.until(t, `select count(*) = 20 from jobs where state = 'completed'`)
	v.until(t, `select state = 'done' and skipped = 0 and released = 20 from drover_redrives`)
}

// F-15: jobs that a forgotten transaction has locked hold up neither the marking nor the release of the others, however
// slow the redrive: those marked are passed over, those not marked are skipped after ten seconds.
func TestRedriveGoesPastLockedRows(t *testing.T) {
	t.Parallel()
	v := newVirtual(t)
	v.Bury(t, 10, 1)
	v.exec(t, `insert into jobs (kind, queue, state, finalized_at, discard_reason) select 'other', 'other', 'discarded', now() - interval '1 day', 'operator' from generate_series(1, 3)`)
	v.redrive(t, drover.RedrivePlan{Filter: drover.Filter{Kind: "job"}, Rate: 1})
	unlock := v.Hold(t, `select from jobs where (args->>'n')::int <= 3 or kind = 'other' and id = (select min(id) from jobs where kind = 'other') for update`)
	other := value[string](t, v.testDB, `select drover_redrive_start('{"filter": {"kind": "other"}}')`)
	for range 80 {
		v.pass(t, time.Second/4)
		v.work(t)
	}
	if n := value[int](t, v.testDB, `select count(*) from jobs where kind = 'job' and state = 'completed'`); n != 7 {
		t.Errorf("%d of the 7 others came back", n)
	}
	const progress = `select concat_ws(' ', state, matched, skipped, skips->0->>'why') from drover_redrives where id = $1`
	if got := value[string](t, v.testDB, progress, other); got != "marking 2 0" {
		t.Error(got)
	}
	v.exec(t, `update drover_redrives set locked = (select jsonb_object_agg(key, clock_timestamp() - interval '11 s') from jsonb_object_keys(locked) as k(key)) where id = $1`, other)
	v.pass(t, time.Second/4)
	if got := value[string](t, v.testDB, progress, other); got != "done 2 1 locked by another transaction" && got != "running 2 1 locked by another transaction" {
		t.Error(got)
	}
	unlock()
	v.until(t, `select count(*) = 10 from jobs where kind = 'job' and state = 'completed'`)
}

// F-15: a filter that matches next to nothing, begun from psql over many dead letters: each step looks at a bounded number
// of them, gets on though nothing matches, and another redrive gives slots meanwhile.
func TestRedriveWithASelectiveFilterMarksInSteps(t *testing.T) {
	t.Parallel()
	slow(t)
	v := newVirtual(t)
	v.exec(t, `insert into jobs (id, kind, state, finalized_at, discard_reason, errors, errors_total)
		select (select left(drover_ulid(), 10)) || lpad(n::text, 16, '0'), 'job', 'discarded', now() - interval '1 day' + n * interval '1 ms', 'attempts_exhausted',
			jsonb_build_array(jsonb_build_object('class', 'error', 'error', case when n > 14990 then 'needle' else 'hay' end)), 1 from generate_series(1, 15000) n`)
	v.exec(t, `insert into jobs (kind, queue, state, finalized_at, discard_reason) select 'other', 'second', 'discarded', now() - interval '2 days', 'operator' from generate_series(1, 20)`)
	v.exec(t, `analyze jobs`)
	id := value[string](t, v.testDB, `select drover_redrive_start('{"filter": {"error": "needle"}}')`)
	for _, batch := range []int{1, 2} { // few rows at a time, or a fast machine is through in the time of a step
		before := value[string](t, v.testDB, `select concat_ws(' ', marked_at at time zone 'utc', marked_id) from drover_redrives where id = $1`, id)
		if !value[bool](t, v.testDB, `select more from drover_redrive_mark($1, $2)`, id, batch) {
			t.Fatal("it ended with the first step")
		}
		if got := value[string](t, v.testDB, `select state || ' ' || matched from drover_redrives where id = $1 and concat_ws(' ', marked_at at time zone 'utc', marked_id) collate "C" > $2`, id, before); got != "marking 0" {
			t.Errorf("after a step of %d: %s", batch, got)
		}
	}
	if n := value[int](t, v.testDB, `select count(*) from jobs, drover_redrives r where r.id = $1 and (finalized_at, jobs.id) <= (r.marked_at, r.marked_id)`, id); n == 0 || n > 14_990 {
		t.Errorf("two steps got past %d rows", n)
	}
	v.exec(t, `select drover_redrive_start('{"filter": {"kind": "other"}}')`)
	for value[int](t, v.testDB, `select released from drover_redrives where id <> $1`, id) == 0 {
		if got := value[string](t, v.testDB, `select state from drover_redrives where id = $1`, id); got != "marking" {
			t.Fatalf("the other one has waited until the first was %s", got)
		}
		v.exec(t, `select drover_pace($1, 1)`, v.at) // 1: so that the first has not ended on a fast machine
		v.at = v.at.Add(time.Second / 4)
	}
	for range 2000 {
		if value[string](t, v.testDB, `select state from drover_redrives where id = $1`, id) != "marking" {
			break
		}
		v.pass(t, time.Second/4)
	}
	if got, err := v.client.Redrive(t.Context(), id); err != nil || got.State == drover.RedriveMarking || got.Matched != 10 {
		t.Errorf("%+v, %v", got, err)
	}
}

// F-15: a row that cannot be read is skipped while marking, and a limit is filled by the next.
func TestRedriveSkipsAnUnreadableRow(t *testing.T) {
	t.Parallel()
	v := newVirtual(t)
	v.Bury(t, 30, 1)
	v.exec(t, `update jobs set tags = '{x}'`)
	// Reading the error of one row fails, as damaged data would.
	v.exec(t, `create function damaged(errors jsonb) returns jsonb language plpgsql as $$
		begin if errors->0->>'error' = 'damaged' then raise exception 'missing chunk' using errcode = 'XX001'; end if; return errors->0; end $$`)
	v.exec(t, `create or replace function drover_last_error(errors jsonb) returns jsonb language sql as 'select damaged(errors)'`)
	v.exec(t, `update jobs set errors = '[{"error": "damaged"}]' where args @> '{"n": 3}'`)
	r := v.redrive(t, drover.RedrivePlan{Filter: drover.Filter{Error: "down"}, Limit: 5, PerKey: 2})
	if r.Matched != 5 || r.Skipped != 1 || r.Skips[0].Why != "refused: missing chunk" {
		t.Errorf("%+v", r)
	}
	if ns := value[string](t, v.testDB, `select string_agg(args->>'n', ' ' order by finalized_at) from jobs where paced_at is not null`); ns != "1 2 4 5 6" {
		t.Errorf("took %s", ns)
	}
	v.until(t, `select state = 'done' and released = 5 from drover_redrives`)
}

// Any other fault of one redrive or one queue is noted there, stops no other, and the note goes with the cause.
func TestRedriveThatIsHeldUpHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	v := newVirtual(t)
	v.Bury(t, 40, 1)
	v.exec(t, `update jobs set kind = 'held' where (args->>'n')::int <= 10`)
	held := v.redrive(t, drover.RedrivePlan{Filter: drover.Filter{Kind: "held"}})
	v.redrive(t, drover.RedrivePlan{Filter: drover.Filter{Kind: "job"}})
	v.exec(t, `alter table drover_redrives add constraint mine check (released = 0 or filter->>'kind' <> 'held')`)
	v.exec(t, `insert into drover_redrive_queues (queue, note) values ('a', 'none yet')`)
	v.exec(t, `alter table drover_redrive_queues add constraint mine check (queue <> 'a' or note <> '')`)
	v.until(t, `select count(*) = 30 from jobs where state = 'completed'`)
	if got := value[string](t, v.testDB, `select note from drover_redrives where id = $1`, held.ID); !strings.HasPrefix(got, "held up: ") {
		t.Errorf("note %q", got)
	}
	v.exec(t, `alter table drover_redrives drop constraint mine`)
	v.exec(t, `alter table drover_redrive_queues drop constraint mine`)
	v.until(t, `select bool_and(state = 'done' and note = '') from drover_redrives`)
	if n := value[int](t, v.testDB, `select count(*) from drover_redrive_queues where note <> ''`); n != 0 {
		t.Errorf("%d queues are noted as held up", n)
	}
	v.until(t, `select count(*) = 40 from jobs where state = 'completed'`)
}

// F-15: supervisors log a skipped job once, and go on.
func TestSupervisorsLogASkippedJobOnce(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	db.Bury(t, 60, 1)
	db.Refuse(t, `old.args @> '{"n": 20}' and new.finalized_at is null`)
	var books [2]harness.Logbook
	var sups [2]*harness.Launched
	for i := range books {
		sups[i] = db.via(t, drover.Config{Logger: slog.New(&books[i])}).launch(t, drover.SupervisorConfig{Workers: handlingAll(), Lease: 30 * time.Second})
	}
	db.exec(t, `select drover_redrive_start('{"filter": {"kind": "job"}, "rate": 200}')`)
	db.waitFor(t, time.Minute, `select state = 'done' from drover_redrives`)
	db.waitFor(t, time.Minute, `select count(*) = 59 from jobs where state = 'completed'`)
	for _, sup := range sups {
		sup.Stop(t) // whichever skipped it logs that after the commit
	}
	said := slices.Concat(books[0].From(slog.LevelWarn), books[1].From(slog.LevelWarn))
	said = slices.DeleteFunc(said, func(s string) bool { return !strings.Contains(s, "redrive") })
	id := value[string](t, db, `select id from jobs where state = 'discarded'`)
	if len(said) != 1 || !strings.Contains(said[0], "redrive skipped a job") || !strings.Contains(said[0], id) || !strings.Contains(said[0], "refused: no") {
		t.Errorf("logged: %q", said)
	}
}

// A tick that was cut off asks for less the next time. Failing ticks are logged when they begin, once a minute, and once
// more when ticks work again.
func TestFailingTicksAreLoggedOnceAMinute(t *testing.T) {
	t.Parallel()
	var book harness.Logbook
	db := newQuietDB(t).via(t, drover.Config{Logger: slog.New(&book)})
	r := db.stopped(t, drover.SupervisorConfig{}).Redriver
	now := time.Now()
	r.Now = func() time.Time { return now }
	timeout := fmt.Errorf("pace: %w", context.DeadlineExceeded)
	var batches []int
	for _, err := range []error{errors.New("no"), timeout, timeout, &pgconn.PgError{Code: "57014"}, timeout, timeout, timeout, nil, nil, timeout} {
		if err != nil {
			r.Failed(t.Context(), err)
		} else {
			r.Worked(t.Context(), nil)
			r.Outage.Wrote(t.Context(), r.Shared, now.Add(1)) // as the next heartbeat does
		}
		now = now.Add(5 * time.Second)
		batches = append(batches, r.Batch)
	}
	if want := []int{1000, 250, 62, 15, 3, 1, 1, 2, 4, 1}; !slices.Equal(batches, want) {
		t.Errorf("batches %v, want %v", batches, want)
	}
	now = now.Add(time.Minute)
	r.Failed(t.Context(), timeout)
	var said []string
	for _, text := range book.From(slog.LevelInfo) {
		if strings.Contains(text, "database") {
			said = append(said, strings.Join(strings.Fields(text)[:3], " "))
		}
	}
	if want := []string{"database trouble, will", "the database answers", "database trouble, will"}; !slices.Equal(said, want) {
		t.Errorf("logged %q, want %q", said, want)
	}
}

// A tick with a small batch lets few jobs go, and the redrive still gets to its end.
func TestRedriveInSmallSteps(t *testing.T) {
	t.Parallel()
	v := newVirtual(t)
	v.Bury(t, 60, 3)
	v.exec(t, `select drover_redrive_start('{"filter": {"all": true}, "rate": 1000}')`)
	for range 500 {
		v.at = v.at.Add(time.Second / 4)
		if n := value[int](t, v.testDB, `select released from drover_pace($1, 3)`, v.at); n > 3 {
			t.Fatalf("%d let go in one tick", n)
		}
		if v.work(t); value[bool](t, v.testDB, `select state = 'done' from drover_redrives`) {
			break
		}
	}
	v.until(t, `select count(*) = 60 from jobs where state = 'completed'`)
}

// D-4: which jobs a redrive is for does not depend on DateStyle and TimeZone, neither in the session that begins it
// nor in the sessions that carry it on.
func TestRedriveInAnyDateStyle(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	for _, c := range [][2]string{{"ISO, MDY", "UTC"}, {"SQL, DMY", "Europe/Dublin"}, {"SQL, DMY", "Asia/Kolkata"}, {"Postgres, MDY", "Asia/Manila"}, {"German", "Asia/Shanghai"}} {
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.Background()) }()
		if _, err := tx.Exec(t.Context(), `select set_config('datestyle', $1, true), set_config('timezone', $2, true)`, c[0], c[1]); err != nil {
			t.Fatal(err)
		}
		var fits, first, last string
		err = tx.QueryRow(t.Context(), `select drover_redrive_candidates(r) from (select '{"all": true}'::jsonb as filter, timestamptz '2026-07-01 12:00:00Z' as created_at) f,
			jsonb_populate_record(null::drover_redrives, to_jsonb(f)) r`).Scan(&fits)
		if err == nil {
			err = tx.QueryRow(t.Context(), `select string_agg(j.n::text, ' ') from (values (1, timestamptz '2026-07-01 11:59:59Z', 'x'), (2, '2026-07-01 12:00:01Z', 'x')) as j(n, finalized_at, discard_reason) where `+fits).Scan(&first)
		}
		if err != nil || first != "1" {
			t.Errorf("%v: jobs %s were dead when it began, %v", c, first, err)
		}
		err = tx.QueryRow(t.Context(), `select (drover_redrive_plan(jsonb_build_object('filter', jsonb_build_object('finalized_after', (timestamptz '2026-02-01 00:00Z')::text)))).filter->>'finalized_after'`).Scan(&last)
		if at, bad := time.Parse(time.RFC3339Nano, last); err != nil || bad != nil {
			t.Errorf("%v: a filter's time is kept as %q, %v, %v", c, last, at, err)
		}
	}
}
