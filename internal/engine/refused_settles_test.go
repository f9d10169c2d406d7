package engine_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/harness"
)

// odd is a job whose row the application's trigger knows by its args.
const insertBad = `insert into jobs (kind, args) values ('job', '{"bad": 1}') returning id`

// F-15: an outcome that the database refuses, for whatever reason, holds up no other, and a stop does not wait for it.
func TestARefusedOutcomeHoldsUpNobody(t *testing.T) {
	t.Parallel()
	slow(t)
	for _, c := range []struct {
		name, when, do, setting string
	}{
		{"a trigger", "old.state = 'running'", `raise exception 'no';`, ""},
		{"lock_timeout", "old.state = 'running'", `perform pg_advisory_xact_lock(hashtext(tg_table_schema));`, "lock_timeout"},
		{"statement_timeout", "old.state = 'running'", `perform pg_sleep(600);`, "statement_timeout"},
		{"no time-out of the session's", "old.state = 'running'", `perform pg_sleep(600);`, ""},
		{"damage", "old.state = 'running'", `raise exception 'missing chunk' using errcode = 'XX001';`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db := newQuietDB(t)
			db.refuseRow(t, c.when, c.do)
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
			release := make(chan bool)
			edit := func(*pgxpool.Config) {}
			if c.setting != "" {
				edit = func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams[c.setting] = "300ms" }
			}
			sup := db.via(t, drover.Config{}, edit).launch(t, drover.SupervisorConfig{
				Lease: 3 * time.Second, Queues: []drover.Queue{{Concurrency: 30}},
				Workers: handling(func(_ context.Context, _ *drover.Job, n int) error {
					<-release
					if n%2 == 1 {
						return drover.Discard(errors.New("no luck"))
					}
					return nil
				}),
			})
			bad := value[string](t, db, insertBad)
			for n := range 20 { // with more attempts than one: a start that cannot be noted in time would be put off
				db.enqueue(t, job{n}, nil)
			}
			db.waitFor(t, 30*time.Second, `select count(*) = 21 from jobs where state = 'running'`)
			close(release)
			db.waitFor(t, time.Minute, `select count(*) filter (where state = 'completed') = 10 and count(*) filter (where state = 'discarded') = 10 from jobs where id <> $1`, bad)
			db.waitFor(t, time.Minute, `select count(*) = 1 from drover_set_aside where path = 'settle' and job = $1`, bad)
			sup.Stop(t)
			if n := harness.EngineOf(sup.Supervisor).Settler.Unsettled.Len(); n > 0 {
				t.Errorf("%d runs are still in the book", n)
			}
		})
	}
}

// O-1, F-15: a stop tries an outcome once more that was refused before. If the database takes it now, the run ends as it
// would have. Else the run has no other end than a stale settle, and the next supervisor frees the job.
func TestARefusedOutcomeAtAStop(t *testing.T) {
	t.Parallel()
	for cause, event := range map[string]string{"gone": "completed", "stays": "stale_settle"} {
		t.Run(cause, func(t *testing.T) {
			t.Parallel()
			var heard harness.EventLog
			db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
			db.refuseRow(t, "old.state = 'running'", `raise exception 'no';`)
			_, stop := db.Start(t, drover.SupervisorConfig{
				Queues: []drover.Queue{{}}, Workers: handling(func(context.Context, *drover.Job, int) error { return nil }),
			})
			bad := value[string](t, db, insertBad)
			db.waitFor(t, 30*time.Second, `select exists (select from drover_set_aside where path = 'settle' and job = $1)`, bad)
			if cause == "gone" {
				db.exec(t, `drop trigger refuse on jobs`)
			}
			stop()
			if all := heard.Of(bad); heard.Ends(bad) != 1 || heard.Count(bad, event) != 1 || all[len(all)-1].Duration == 0 {
				t.Errorf("the events are %+v", all)
			}
			if completed := value[bool](t, db, `select state = 'completed' from jobs where id = $1`, bad); completed != (cause == "gone") {
				t.Errorf("completed: %t", completed)
			}
		})
	}
}

// F-15: a job whose outcome is refused again and again becomes a dead letter in the end; one whose outcome passes is
// no longer set aside.
func TestARefusedOutcomeEnds(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	var book diary
	client := db.via(t, drover.Config{Hooks: book.hooks()})
	db.refuseRow(t, "new.state = 'completed'", `raise exception 'not completed';`)
	s := client.stopped(t, drover.SupervisorConfig{})
	first, second := value[string](t, db, insertBad), value[string](t, db, insertBad)
	runs := s.claimAll(t, 2)
	for _, r := range runs {
		finished(r, nil).End.Duration = time.Second
		s.Settler.Settle(r)
	}
	again := func() {
		for _, o := range s.Settler.Locked {
			o.NotBefore = time.Time{}
		}
		s.Settler.Trip(t.Context(), s.Settler.Take(s.Now()))
	}
	again()
	if n := value[int](t, db, `select count(*) from drover_set_aside where path = 'settle' and error = 'not completed'`); n != 2 {
		t.Errorf("%d are set aside", n)
	}
	if s.Settler.Unsettled.Len() != 0 || s.Settler.RefusedRuns.Len() != 2 {
		t.Errorf("%d in the book, %d apart", s.Settler.Unsettled.Len(), s.Settler.RefusedRuns.Len())
	}
	db.exec(t, `update jobs set args = '{}' where id = $1`, second) // the trigger lets it pass now
	for range engine.SettleTries {
		other := db.enqueue(t, job{1}, nil) // a settle that is recorded meanwhile proves that not all are refused
		for _, r := range s.claimAll(t, 1) {
			if r.ID != other {
				t.Fatalf("claimed %s, want %s", r.ID, other)
			}
			s.Settler.Settle(finished(r, nil))
		}
		again()
	}
	if got := value[drover.Reason](t, db, `select discard_reason || ': ' || (errors->-1->>'error') from jobs where id = $1`, first); got != "refused: settle refused by the database: not completed" {
		t.Errorf("the one: %s", got)
	}
	if got := value[string](t, db, `select state from jobs where id = $1`, second); got != "completed" {
		t.Errorf("the other is %s", got)
	}
	again()
	if n := value[int](t, db, `select count(*) from drover_set_aside where job = $1`, second); n > 0 {
		t.Error("the one that passed is still set aside")
	}
	s.reportAll(t)
	if book.count(engine.EventDiscarded, first) != 1 || book.count(engine.EventCompleted, second) != 1 {
		t.Errorf("events: %+v", book.events)
	}
	for _, e := range book.events {
		if e.event.JobID == first && e.event.Duration != time.Second {
			t.Errorf("the end of a run of 1 s: %+v", e.event)
		}
	}
	if len(s.Settler.Locked) != 0 || s.Settler.RefusedRuns.Len() != 0 {
		t.Error("something is still to be tried")
	}
}

// F-15: a row that the application keeps is completed where it cannot be deleted.
func TestACompletedJobThatCannotBeDeletedIsKept(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `create table invoices (job text references jobs (id))`)
	kept := value[string](t, db, insertBad)
	db.exec(t, `insert into invoices values ($1)`, kept)
	db.enqueueJobs(t, 20, nil)
	sup := db.launch(t, drover.SupervisorConfig{CompletedRetention: drover.DeleteOnCompletion})
	db.waitFor(t, 20*time.Second, `select count(*) = 1 and bool_and(state = 'completed' and id = $1) from jobs`, kept)
	sup.Stop(t)
}

// F-15: counters at their type's end stay there, whatever is written.
func TestCountersSaturate(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.Unguarded(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	db.enqueueJobs(t, 4, nil)
	db.exec(t, `update jobs set errors_total = 2147483647, snoozes = 2147483647, uncounted = 2147483647, crashes = 32767, deaths = 32767, lane = default`)
	db.exec(t, `update jobs set crashes = 0 where id in (select id from jobs order by id limit 3)`)
	runs := s.claimAll(t, 3)
	crashed := finished(runs[2], drover.Retry(engine.ErrTimeout))
	crashed.End.Crashed = true
	s.settle(t, finished(runs[0], drover.Snooze(time.Hour)), finished(runs[1], drover.DontCount(errors.New("x"))), crashed)
	if n := value[int](t, db, `select count(*) from jobs where state in ('scheduled', 'retryable') and errors_total = 2147483647 and snoozes = 2147483647 and uncounted = 2147483647 and deaths = 32767`); n != 3 {
		t.Errorf("%d of 3 settled: %s", n, value[string](t, db, `select string_agg(row_to_json(j)::text, ' ') from jobs j`))
	}
}

// F-15: the start of a job with a single attempt cannot be written down: it is put off and not run, and others start.
func TestARefusedStartHoldsUpNobody(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.refuseRow(t, "new.started_seq is distinct from old.started_seq", `raise exception 'no start';`)
	var book harness.Logbook
	// One claim takes all of them, the bad one in the middle: its start is noted together with others.
	db.exec(t, `insert into jobs (kind, args, max_attempts, scheduled_at) select 'job', '{"n": 1}', 1, now() - n * interval '1 s' from generate_series(1, 20) n`)
	bad := value[string](t, db, `insert into jobs (kind, args, max_attempts, scheduled_at) values ('job', '{"bad": 1, "n": 2}', 1, now() - interval '10.5 s') returning id`)
	sup := db.via(t, drover.Config{Logger: slog.New(&book)}).launch(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 30}}, Workers: handling(func(_ context.Context, j *drover.Job, _ int) error {
		if string(j.Args) != `{"n": 1}` {
			return fmt.Errorf("%s has started", j.Args)
		}
		return nil
	})})
	const innocent = `(select count(*) from jobs where id <> $1 and jsonb_array_length(errors) > 0) + (select count(*) from drover_set_aside where job <> $1)`
	db.waitFor(t, time.Minute, `select (select count(*) = 20 from jobs where state = 'completed') or `+innocent+` > 0`, bad) // a job that is noted too late is put off for 15 s
	if n := value[int](t, db, `select `+innocent, bad); n > 0 {
		t.Fatalf("the starts of %d others count as refused", n)
	}
	db.waitFor(t, time.Minute, `select state = 'scheduled' and attempt = 0 and errors->-1->>'error' = 'claim refused by the database: no start'
		or state = 'available' and attempt = 0 and exists (select from drover_set_aside where path = 'claim' and job = jobs.id and error = 'no start') from jobs where id = $1`, bad)
	sup.Stop(t)
	if lines := fmt.Sprint(book.From(slog.LevelError)); lines == "[]" {
		t.Error("nothing is logged")
	}
}
