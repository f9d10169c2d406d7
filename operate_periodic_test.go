package drover_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/pg"
)

// tickArgs are of a kind that tests schedule.
type tickArgs struct {
	N int `json:"n"`
}

func (tickArgs) Kind() string { return "tick" }

func TestPeriodicBadInput(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	ran := 0
	for _, c := range []struct {
		field string
		p     drover.Periodic
	}{
		{"Name", drover.Periodic{Name: "", Schedule: "@daily", Args: tickArgs{}}},
		{"Name", drover.Periodic{Name: strings.Repeat("x", 129), Schedule: "@daily", Args: tickArgs{}}},
		{"Name", drover.Periodic{Name: "a\x00b", Schedule: "@daily", Args: tickArgs{}}},
		{"Schedule", drover.Periodic{Name: "a", Args: tickArgs{}}},
		{"Schedule", drover.Periodic{Name: "a", Schedule: "0 0 31 2 *", Args: tickArgs{}}},
		{"Schedule", drover.Periodic{Name: "a", Schedule: "60 * * * *", Args: tickArgs{}}},
		{"Schedule", drover.Periodic{Name: "a", Schedule: "* * * *", Args: tickArgs{}}},
		{"Schedule", drover.Periodic{Name: "a", Schedule: "0 0 * * * * *", Args: tickArgs{}}},
		{"Schedule", drover.Periodic{Name: "a", Schedule: "60 * * * * *", Args: tickArgs{}}},
		{"Schedule", drover.Periodic{Name: "a", Schedule: "0 0 0 31 2 *", Args: tickArgs{}}},
		{"Schedule", drover.Periodic{Name: "a", Schedule: strings.Repeat("1,", 600) + "1 * * * *", Args: tickArgs{}}},
		{"Schedule", drover.Periodic{Name: "a", Schedule: "*/0 * * * *", Args: tickArgs{}}},
		{"Schedule", drover.Periodic{Name: "a", Schedule: "5/15 * * * *", Args: tickArgs{}}},
		{"Schedule", drover.Periodic{Name: "a", Schedule: "30-10 * * * *", Args: tickArgs{}}},
		{"Schedule", drover.Periodic{Name: "a", Schedule: "0 0 * foo *", Args: tickArgs{}}},
		{"Schedule", drover.Periodic{Name: "a", Schedule: "0 0 * * 8", Args: tickArgs{}}},
		{"Schedule", drover.Periodic{Name: "a", Schedule: "@reboot", Args: tickArgs{}}},
		{"Schedule", drover.Periodic{Name: "a", Schedule: "@every 999ms", Args: tickArgs{}}},
		{"Schedule", drover.Periodic{Name: "a", Schedule: "@every -1h", Args: tickArgs{}}},
		{"Schedule", drover.Periodic{Name: "a", Schedule: "@every", Args: tickArgs{}}},
		{"Schedule", drover.Periodic{Name: "a", Schedule: "@every 367h367h99999h", Args: tickArgs{}}},
		{"Zone", drover.Periodic{Name: "a", Schedule: "@daily", Zone: "Europe/Berlni", Args: tickArgs{}}},
		{"Zone", drover.Periodic{Name: "a", Schedule: "@daily", Zone: "CEST", Args: tickArgs{}}},
		{"Zone", drover.Periodic{Name: "a", Schedule: "@daily", Zone: "Europe/Berlin5", Args: tickArgs{}}},
		{"Zone", drover.Periodic{Name: "a", Schedule: "@daily", Zone: "+02:00", Args: tickArgs{}}},
		{"Args", drover.Periodic{Name: "a", Schedule: "@daily"}},
		{"Args.Kind", drover.Periodic{Name: "a", Schedule: "@daily", Args: dyn{kind: strings.Repeat("k", 129)}}},
		{"Args.Kind", drover.Periodic{Name: "a", Schedule: "@daily", Args: dyn{}}},
		{"Args", drover.Periodic{Name: "a", Schedule: "@daily", Args: unmarshallable{}}},
		{"Jitter", drover.Periodic{Name: "a", Schedule: "@daily", Args: tickArgs{}, Jitter: -1}},
		{"Jitter", drover.Periodic{Name: "a", Schedule: "@daily", Args: tickArgs{}, Jitter: 25 * time.Hour}},
		{"CatchUp", drover.Periodic{Name: "a", Schedule: "@daily", Args: tickArgs{}, CatchUp: "twice"}},
		{"Overlap", drover.Periodic{Name: "a", Schedule: "@daily", Args: tickArgs{}, Overlap: "maybe"}},
		{"Opts.ID", drover.Periodic{Name: "a", Schedule: "@daily", Args: tickArgs{}, Opts: &drover.EnqueueOpts{ID: "01ARZ3NDEKTSV4RRFFQ69G5FAV"}}},
		{"Opts.ScheduledAt", drover.Periodic{Name: "a", Schedule: "@daily", Args: tickArgs{}, Opts: &drover.EnqueueOpts{ScheduledAt: time.Now()}}},
		{"Opts.ExpiresAt", drover.Periodic{Name: "a", Schedule: "@daily", Args: tickArgs{}, Opts: &drover.EnqueueOpts{ExpiresAt: time.Now()}}},
		{"Opts.DisableNotify", drover.Periodic{Name: "a", Schedule: "@daily", Args: tickArgs{}, Opts: &drover.EnqueueOpts{DisableNotify: true}}},
		{"Opts.RetryUntil", drover.Periodic{Name: "a", Schedule: "@daily", Args: tickArgs{}, Opts: &drover.EnqueueOpts{RetryUntil: time.Now()}}},
		{"Opts.Delay", drover.Periodic{Name: "a", Schedule: "@daily", Args: tickArgs{}, Opts: &drover.EnqueueOpts{Delay: 367 * 24 * time.Hour}}},
		{"Opts.MaxAttempts", drover.Periodic{Name: "a", Schedule: "@daily", Args: tickArgs{}, Opts: &drover.EnqueueOpts{MaxAttempts: -1}}},
		{"Opts.Retry.Delay", drover.Periodic{Name: "a", Schedule: "@daily", Args: tickArgs{}, Opts: &drover.EnqueueOpts{Retry: drover.Constant{Delay: -time.Second}}}},
		{"Opts.Priority", drover.Periodic{Name: "a", Schedule: "@daily", Args: tickArgs{}, Opts: &drover.EnqueueOpts{Priority: 10}}},
		{"Opts.Unique.By", drover.Periodic{Name: "a", Schedule: "@daily", Args: tickArgs{}, Opts: &drover.EnqueueOpts{Unique: &drover.Unique{By: []string{"nobody"}}}}},
		{"Opts.Unique.OnConflict", drover.Periodic{Name: "a", Schedule: "@daily", Args: tickArgs{}, Opts: &drover.EnqueueOpts{Unique: &drover.Unique{OnConflict: drover.ReplaceWaiting}}}},
		{"Opts.Metadata", drover.Periodic{Name: "a", Schedule: "@daily", Args: tickArgs{}, Opts: &drover.EnqueueOpts{Metadata: map[string]any{"drover:periodic": 1}}}},
	} {
		var invalid *drover.InvalidError
		err := db.client.SetPeriodic(t.Context(), c.p, drover.Audit{})
		if !errors.As(err, &invalid) || invalid.Field != c.field {
			t.Errorf("%+v: %v, want an *InvalidError of %s", c.p, err, c.field)
		}
		// A supervisor that declares it is refused in NewSupervisor, or in Run where only the server knows better.
		sup, err := db.client.NewSupervisor(drover.SupervisorConfig{
			Queues: []drover.Queue{{}}, Workers: []drover.Worker{drover.Handle(func(context.Context, *drover.Job, tickArgs) error { return nil }, drover.WorkerOpts{})}, Periodic: []drover.Periodic{c.p},
		})
		if err == nil {
			if ran++; ran > 3 {
				continue // each start costs a connection
			}
			err = sup.Run(t.Context())
		}
		if !errors.As(err, &invalid) || invalid.Field != "Periodic[0]."+c.field {
			t.Errorf("declared %+v: %v, want an *InvalidError of Periodic[0].%s", c.p, err, c.field)
		}
	}
	if n := value[int](t, db, `select count(*) from drover_periodic`) + value[int](t, db, `select count(*) from drover_supervisors`); n != 0 {
		t.Errorf("%d rows were written", n)
	}
}

// psql has no Go, so the functions refuse the same.
func TestPeriodicBadInputInSQL(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	set := func(args string) string { return `select drover_periodic_set(` + args + `)` }
	for _, c := range []struct{ field, sql string }{
		{"name", set(`'', 'k', '@daily'`)},
		{"name", set(`null, 'k', '@daily'`)},
		{"name", set(`repeat('n', 129), 'k', '@daily'`)},
		{"name", set(`e'a\u200b', 'k', '@daily'`)},
		{"kind", set(`'a', repeat('k', 129), '@daily'`)},
		{"kind", set(`'a', null, '@daily'`)},
		{"schedule", set(`'a', 'k', null`)},
		{"schedule", set(`'a', 'k', ''`)},
		{"schedule", set(`'a', 'k', '0 0 31 2 *'`)},
		{"schedule", set(`'a', 'k', '0 0 0 30 feb *'`)},
		{"schedule", set(`'a', 'k', '* * * *'`)},
		{"schedule", set(`'a', 'k', '@every 999ms'`)},
		{"schedule", set(`'a', 'k', '@every 9000h'`)},
		{"schedule", set(`'a', 'k', repeat('1,', 600) || '1 * * * *'`)},
		{"zone", set(`'a', 'k', '@daily', zone => 'Mars/Base'`)},
		{"zone", set(`'a', 'k', '@daily', zone => 'CEST'`)},
		{"zone", set(`'a', 'k', '@daily', zone => 'Etc/GMT+13'`)},
		{"zone", set(`'a', 'k', '@daily', zone => 'Etc/GMT-15'`)},
		{"jitter", set(`'a', 'k', '@daily', jitter => '25 hours'`)},
		{"jitter", set(`'a', 'k', '@daily', jitter => '-1 s'`)},
		{"catch_up", set(`'a', 'k', '@daily', catch_up => 'twice'`)},
		{"overlap", set(`'a', 'k', '@daily', overlap => 'maybe'`)},
		{"options", set(`'a', 'k', '@daily', options => '[]'`)},
		{"options", set(`'a', 'k', '@daily', options => '{"priority": "high"}'`)},
		{"options.prio", set(`'a', 'k', '@daily', options => '{"prio": 3}'`)},
		{"options.id", set(`'a', 'k', '@daily', options => '{"id": "01ARZ3NDEKTSV4RRFFQ69G5FAV"}'`)},
		{"options.expires_at", set(`'a', 'k', '@daily', options => '{"expires_at": "2030-01-01"}'`)},
		{"options.retry_until", set(`'a', 'k', '@daily', options => '{"retry_until": "2030-01-01"}'`)},
		{"options.unique", set(`'a', 'k', '@daily', options => '{"unique": {}}'`)},
		{"options.uniqueness.by", set(`'a', 'k', '@daily', options => '{"uniqueness": {"by": ["nobody"]}}'`)},
		{"options.uniqueness.on_conflict", set(`'a', 'k', '@daily', options => '{"uniqueness": {"on_conflict": "debounce", "longest": "1 h"}}'`)},
		{"options.priority", set(`'a', 'k', '@daily', options => '{"priority": 10}'`)},
		{"options.delay", set(`'a', 'k', '@daily', options => '{"delay": "-1 s"}'`)},
		{"options.max_attempts", set(`'a', 'k', '@daily', options => '{"max_attempts": 0}'`)},
		{"options.retry", set(`'a', 'k', '@daily', options => '{"retry": {"type": "never"}}'`)},
		{"options.timeout", set(`'a', 'k', '@daily', options => '{"timeout": "0 s"}'`)},
		{"options.tags", set(`'a', 'k', '@daily', options => '{"tags": "x"}'`)},
		{"options.metadata", set(`'a', 'k', '@daily', options => '{"metadata": {"drover:periodic": 1}}'`)},
		{"options.queue", set(`'a', 'k', '@daily', options => '{"queue": ""}'`)},
		{"options.tags", set(`'a', 'k', '@daily', options => '{"tags": ["x", ""]}'`)},
		{"options.tags", set(`'a', 'k', '@daily', options => '{"tags": [null]}'`)},
		{"options.tags", set(`'a', 'k', '@daily', options => jsonb_build_object('tags', array_fill('x'::text, array[33]))`)},
		{"options.metadata", set(`'a', 'k', '@daily', options => jsonb_build_object('metadata', jsonb_build_object('m', repeat('x', 131000)))`)},
		{"args", set(`'a', 'k', '@daily', args => (repeat('[', 65) || repeat(']', 65))::jsonb`)},
		{"args", set(`'a', 'k', '@daily', args => ('[' || repeat('1e131071,', 300) || '1]')::jsonb`)},
		{"schedule", set(`'a', 'k', '@every ' || repeat('0s', 500) || '5s'`)},
		{"n", `select drover_periodic_preview('@daily', n => 1001)`},
		{"after", `select drover_periodic_preview('@daily', after => 'infinity')`},
		{"after", `select drover_periodic_preview('@daily', after => '-infinity')`},
		{"after", `select drover_periodic_preview('@every 5s', after => null)`},
		{"zone", `select drover_periodic_preview('@daily', 'Mars/Base')`},
		{"until", `select drover_periodic_pause('a', now() - interval '1 s')`},
	} {
		_, err := db.Exec(t.Context(), c.sql)
		if pg.SQLState(err) != "22023" || !strings.HasPrefix(pg.Refusal(err), "drover: "+c.field+": ") {
			t.Errorf("%s: %v, want 22023 and the field %s", c.sql, err, c.field)
		}
	}
	if n := value[int](t, db, `select count(*) from drover_periodic`); n != 0 {
		t.Errorf("%d rows were written", n)
	}
}

// A refused @every names the shortest and the longest period, whatever is wrong with the duration.
func TestARefusedPeriodNamesItsBounds(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	for _, period := range []string{"0.1s", "999ms", "0s", "-1h", "", "1d", "1", "9000h", "10000000000s"} {
		schedule := "@every " + period
		err := db.client.SetPeriodic(t.Context(), drover.Periodic{Name: "a", Schedule: schedule, Args: tickArgs{}}, drover.Audit{})
		_, inSQL := db.Exec(t.Context(), `select drover_periodic_set('a', 'k', $1)`, schedule)
		_, preview := db.client.PreviewPeriodic(t.Context(), schedule, "", 1)
		for who, err := range map[string]error{"Go": err, "SQL": inSQL, "a preview": preview} {
			if err == nil || !strings.Contains(err.Error(), "at least 1s and at most 8784h") {
				t.Errorf("%q in %s: %v, want the bounds", schedule, who, err)
			}
		}
	}
	for _, bound := range []string{"@every 1s", "@every 8784h"} {
		if err := db.client.SetPeriodic(t.Context(), drover.Periodic{Name: "a", Schedule: bound, Args: tickArgs{}}, drover.Audit{}); err != nil {
			t.Errorf("%s: %v", bound, err)
		}
	}
}

// In a Turkish database, lower('I') is another letter than i. Schedules have English words all the same.
func TestSchedulesInATurkishDatabase(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	if !value[bool](t, db, `select exists (select from pg_collation where collname = 'tr-x-icu')`) {
		t.Fatal("this server was built without ICU, so the test cannot run")
	}
	for schedule, words := range map[string]string{"0 2 * * FRI": "0 2 * * 5", "0 2 1 APR,JUL FRI": "0 2 1 4,7 5", "@DAILY": "0 0 * * *", "@EVERY 90S": "@every 90s"} {
		// The collation of the parameter takes the place of the database's.
		got := value[time.Time](t, db, `select drover_periodic_preview($1::text collate "tr-x-icu", n => 1, after => '2026-11-29 00:00:00Z')`, schedule)
		if want := value[time.Time](t, db, `select drover_periodic_preview($1, n => 1, after => '2026-11-29 00:00:00Z')`, words); !got.Equal(want) {
			t.Errorf("%s: %s, want %s", schedule, got, want)
		}
	}
}

// A null is no setting, in a schedule as in drover_enqueue.
func TestPeriodicNullsInSQL(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `select drover_periodic_set('a', 'tick', '@daily', args => null, zone => null, jitter => null, catch_up => null, overlap => null, run_at_start => null,
		options => '{"queue": null, "tags": null, "metadata": null, "retry": null, "uniqueness": null}')`)
	db.exec(t, `update drover_periodic set next_at = now()`)
	if f := db.Fire(t, "a", ""); len(f.Jobs) != 1 || f.Fault != "" {
		t.Errorf("%+v", f)
	}
	db.exec(t, `select drover_periodic_pause('a', until => null)`)
	if !value[bool](t, db, `select paused_until = 'infinity' and next_at is null from drover_periodic`) {
		t.Error("a pause until null is none")
	}
}

type unmarshallable struct{ C chan int }

func (unmarshallable) Kind() string { return "tick" }

func TestPeriodicRow(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	ctx, c := t.Context(), db.client
	db.SetPeriodic(t, drover.Periodic{
		Name: "nightly", Schedule: "30 2 * * *", Zone: "Europe/Berlin", Args: tickArgs{7}, Jitter: time.Minute, CatchUp: drover.CatchUpOnce, Overlap: drover.OverlapSkip,
		Opts: &drover.EnqueueOpts{
			Queue: "reports", Priority: 3, Delay: time.Hour, MaxAttempts: 4, Retry: drover.Constant{Delay: time.Second}, Timeout: time.Minute,
			Tags: []string{"x"}, Key: "k", Metadata: map[string]any{"mine": 1},
		},
	})
	j, err := c.PeriodicJob(ctx, "nightly")
	if err != nil {
		t.Fatal(err)
	}
	if j.Kind != "tick" || j.Queue != "reports" || j.Zone != "Europe/Berlin" || j.State != drover.PeriodicActive || j.Declared || len(j.Next) != 10 ||
		j.JitterMS != 60_000 || j.CatchUp != drover.CatchUpOnce || j.Overlap != drover.OverlapSkip || j.UpdatedBy != "test" || string(j.Args) != `{"n": 7}` {
		t.Errorf("%+v", j)
	}
	preview, err := c.PreviewPeriodic(ctx, "30 2 * * *", "Europe/Berlin", 10)
	if err != nil || !slices.EqualFunc(preview, j.Next, time.Time.Equal) {
		t.Errorf("PreviewPeriodic = %v, %v, the row has %v", preview, err, j.Next)
	}
	// Setting it again with other args moves no tick; another schedule does.
	next := j.Next[0]
	db.SetPeriodic(t, drover.Periodic{Name: "nightly", Schedule: "30 2 * * *", Zone: "Europe/Berlin", Args: tickArgs{8}, Opts: &drover.EnqueueOpts{Queue: "reports"}})
	db.SetPeriodic(t, drover.Periodic{Name: "often", Schedule: "@every 1h"})
	db.Backdate(t, "often", "10 min")
	was := value[time.Time](t, db, `select next_at from drover_periodic where name = 'often'`)
	db.SetPeriodic(t, drover.Periodic{Name: "often", Schedule: "@every 1h", Args: tickArgs{9}})
	list, err := c.PeriodicJobs(ctx)
	if err != nil || len(list) != 2 || !list[0].Next[0].Equal(next) || string(list[0].Args) != `{"n": 8}` || list[0].CatchUp != drover.CatchUpSkip || !list[1].Next[0].Equal(was) {
		t.Fatalf("%+v, %v", list, err)
	}
	for verb, err := range map[string]error{
		"pause": c.PausePeriodic(ctx, "no such", time.Time{}, drover.Audit{}), "resume": c.ResumePeriodic(ctx, "", drover.Audit{}), "delete": c.DeletePeriodic(ctx, "a\x00", drover.Audit{}),
		"run": func() error { _, err := c.RunPeriodic(ctx, "no such", nil, drover.Audit{}); return err }(), "get": func() error { _, err := c.PeriodicJob(ctx, ""); return err }(),
	} {
		if !errors.Is(err, drover.ErrNotFound) {
			t.Errorf("%s: %v, want ErrNotFound", verb, err)
		}
	}
	if err := c.DeletePeriodic(ctx, "nightly", drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	if f := db.Fire(t, "nightly", ""); f.Ours {
		t.Errorf("a deleted schedule ticks: %+v", f)
	}
}

// A job of a schedule has all its options, and says which schedule and tick made it.
func TestPeriodicJobHasTheOptions(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.SetPeriodic(t, drover.Periodic{
		Name: "a", Args: tickArgs{7}, Schedule: "@every 1h",
		Opts: &drover.EnqueueOpts{
			Queue: "reports", Priority: 3, Delay: time.Hour, MaxAttempts: 4, Retry: drover.Constant{Delay: time.Second}, Timeout: time.Minute,
			Tags: []string{"x"}, Key: "k", Metadata: map[string]any{"mine": 1},
		},
	})
	db.Backdate(t, "a", "1 h")
	f := db.Fire(t, "a", "")
	if len(f.Jobs) != 1 || f.Missed != 0 || f.Fault != "" || f.Wait < 59*time.Minute || f.Wait > time.Hour {
		t.Fatalf("%+v", f)
	}
	if !value[bool](t, db, `select queue = 'reports' and priority = 3 and max_attempts = 4 and retry->>'delay' = '1s' and timeout_ms = 60000 and tags = '{x}'
		and concurrency_key = 'k' and metadata->>'mine' = '1' and args = '{"n": 7}' and scheduled_at between now() + interval '59 min' and now() + interval '1 h'
		and state = 'scheduled' from jobs where id = $1`, f.Jobs[0]) {
		t.Errorf("%s", value[string](t, db, `select to_json(j)::text from jobs j`))
	}
	job := drover.Job{Metadata: []byte(value[string](t, db, `select metadata::text from jobs`))}
	run, ok := job.Periodic()
	if !ok || run.Name != "a" || run.ByHand || time.Since(run.Tick) > time.Minute || f.Jobs[0] != value[string](t, db, `select drover_periodic_id(name, generation, $1) from drover_periodic`, run.Tick) {
		t.Errorf("Periodic() = %+v, %v", run, ok)
	}
	for _, metadata := range []string{``, `{}`, `{"drover:periodic": 3}`, `[]`, `{"mine": {"name": "a"}}`} {
		if run, ok := (&drover.Job{Metadata: []byte(metadata)}).Periodic(); ok {
			t.Errorf("Periodic() of %s = %+v", metadata, run)
		}
	}
	// Callers cannot pass a job off as a schedule's.
	if _, err := db.client.Enqueue(t.Context(), tickArgs{}, &drover.EnqueueOpts{Metadata: map[string]any{"drover:periodic": map[string]any{"name": "a", "tick": "b"}}}); !errors.Is(err, drover.ErrInvalid) {
		t.Errorf("Enqueue: %v", err)
	}
	if _, err := db.Exec(t.Context(), `select drover_enqueue('tick', metadata => '{"drover:periodic": {"name": "a", "tick": "b"}}')`); pg.SQLState(err) != "22023" {
		t.Errorf("drover_enqueue: %v", err)
	}
}

// a tick that finds another job like its own makes none, and its row, its reply and a run by hand name the job.
// The next tick after that job's end makes one.
func TestPeriodicUnique(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	holder := db.enqueue(t, tickArgs{7}, &drover.EnqueueOpts{Unique: &drover.Unique{By: []string{"n"}}})
	db.SetPeriodic(t, drover.Periodic{Name: "a", Args: tickArgs{7}, Schedule: "@every 1h", Opts: &drover.EnqueueOpts{Unique: &drover.Unique{By: []string{"n"}}}})
	why := "unique: job " + holder + " is there"
	db.Backdate(t, "a", "1 h")
	if f := db.Fire(t, "a", ""); len(f.Jobs) != 0 || f.Missed != 1 || f.Why != why || f.Fault != "" {
		t.Errorf("next to the job: %+v", f)
	}
	if p, err := db.client.PeriodicJob(t.Context(), "a"); err != nil || p.Skipped != 1 || p.SkippedWhy != why || p.LastJobID != "" {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := db.client.RunPeriodic(t.Context(), "a", nil, drover.Audit{}); !errors.Is(err, drover.ErrState) || !strings.Contains(err.Error(), holder) {
		t.Errorf("by hand: %v", err)
	}
	if _, err := db.client.Cancel(t.Context(), holder, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	db.Backdate(t, "a", "1 h")
	f := db.Fire(t, "a", "")
	if len(f.Jobs) != 1 || f.Missed != 0 {
		t.Fatalf("after its end: %+v", f)
	}
	if again, err := db.client.Enqueue(t.Context(), tickArgs{7}, &drover.EnqueueOpts{Unique: &drover.Unique{By: []string{"n"}}}); err != nil || again.ID != f.Jobs[0] {
		t.Errorf("an enqueue next to the tick's job: %+v, %v", again, err)
	}
	// The same tick again, as after a restore of the schedule's row: it made its job before.
	db.exec(t, `update drover_periodic set next_at = last_at, jobs = 0, last_job = null`)
	if f := db.Fire(t, "a", ""); len(f.Jobs) != 0 || f.Missed != 0 || f.Fault != "" {
		t.Errorf("the same tick again: %+v", f)
	}
}

// The period of a tick's job begins at the tick, however late the job was enqueued. So with a period that is as long as
// the time between two ticks, each tick makes a job.
func TestPeriodicUniqueForAPeriod(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	opts := &drover.EnqueueOpts{Unique: &drover.Unique{Until: drover.UntilPassed(time.Hour)}}
	db.SetPeriodic(t, drover.Periodic{Name: "a", Args: tickArgs{7}, Schedule: "@every 1h", CatchUp: drover.CatchUpAll, Opts: opts})
	db.Backdate(t, "a", "3 h 10 s")
	f := db.Fire(t, "a", "")
	if len(f.Jobs) != 3 || f.Missed != 0 {
		t.Fatalf("three ticks: %+v", f)
	}
	if !value[bool](t, db, `select j.unique_until = p.next_at from jobs j, drover_periodic p where j.id = p.last_job`) {
		t.Error("the period does not end with the next tick")
	}
	if r := db.Unique(t, tickArgs{7}, *opts.Unique); r.ID != f.Jobs[2] {
		t.Errorf("an enqueue during the period: %+v", r)
	}
	db.Backdate(t, "a", "59 min 55 s")
	db.exec(t, `update jobs set unique_until = unique_until - interval '59 min 55 s'`)
	if f := db.Fire(t, "a", ""); len(f.Jobs) != 1 || f.Missed != 0 {
		t.Errorf("the next tick: %+v", f)
	}
}

// A missed tick makes no job if it lies in the period of the last job, also if that period is over by now. A job that
// was made by hand after the tick does not keep it out, and neither does a job with another key.
func TestPeriodicMissedTicksInAPeriod(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	p := drover.Periodic{
		Name: "a", Args: tickArgs{7}, Schedule: "@every 1h", CatchUp: drover.CatchUpAll,
		Opts: &drover.EnqueueOpts{Queue: "q", Key: "k", Unique: &drover.Unique{Queue: true, Key: true, Until: drover.UntilPassed(3 * time.Hour)}},
	}
	db.SetPeriodic(t, p)
	db.Backdate(t, "a", "8 h 10 s")
	f := db.Fire(t, "a", "")
	if len(f.Jobs) != 3 || f.Missed != 5 || f.Why != "unique: job "+f.Jobs[2]+" is there" {
		t.Errorf("ticks for 8 hours: %+v", f)
	}
	// The last period began at the seventh tick. Of the next ticks, the first lies in it.
	db.Backdate(t, "a", "4 h")
	db.exec(t, `update jobs set unique_until = unique_until - interval '4 h'`)
	if f := db.Fire(t, "a", ""); len(f.Jobs) != 1 || f.Missed != 3 {
		t.Errorf("ticks for 4 hours more: %+v", f)
	}
	// Other args are another key.
	p.Args = tickArgs{8}
	db.SetPeriodic(t, p)
	db.Backdate(t, "a", "1 h")
	if f := db.Fire(t, "a", ""); len(f.Jobs) != 1 || f.Missed != 0 {
		t.Errorf("a tick with other args: %+v", f)
	}
	// Made by hand half an hour after the first of four ticks, with a period that is over.
	db.exec(t, `delete from jobs`)
	p.Opts.Unique.Until = drover.UntilPassed(time.Hour)
	db.SetPeriodic(t, p)
	if _, err := db.client.RunPeriodic(t.Context(), "a", nil, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	db.Backdate(t, "a", "4 h")
	db.exec(t, `update jobs set unique_until = unique_until - interval '2 h 30 min'`)
	if f := db.Fire(t, "a", ""); len(f.Jobs) != 4 || f.Missed != 0 {
		t.Errorf("after a run by hand: %+v", f)
	}
}

// A tick whose job could not be stored because of a lock that was not to be had, as while somebody creates an index, stays
// due. One that a trigger refuses does not.
func TestALockTimeOutLosesNoTick(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `select drover_periodic_set('a', 'job', '@every 1h', catch_up => 'all')`)
	db.exec(t, `update drover_periodic set anchor = anchor - interval '3 h', next_at = next_at - interval '3 h'`)
	due := value[time.Time](t, db, `select next_at from drover_periodic`)
	end := db.Hold(t, `lock table jobs in share mode`)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `set local lock_timeout = '100ms'`); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select from drover_periodic_fire('a')`); pg.SQLState(err) != "55P03" {
		t.Errorf("under the lock: %v", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	end()
	if now := value[time.Time](t, db, `select next_at from drover_periodic`); !now.Equal(due) {
		t.Errorf("the schedule went on from %v to %v", due, now)
	}
	db.exec(t, `create function refuse() returns trigger language plpgsql as $$ begin
		if (select count(*) from jobs) = 1 then raise exception 'one is enough'; end if; return new; end $$`)
	db.exec(t, `create trigger refuse before insert on jobs for each row execute function refuse()`)
	db.exec(t, `select from drover_periodic_fire('a')`)
	if got := value[string](t, db, `select jobs || ' ' || (next_at > now()) || ' ' || problem from drover_periodic`); got != "1 true one is enough" {
		t.Errorf("behind a refused tick: %s", got)
	}
}

// the first tick of a new schedule is when it is stored. Nothing else makes it tick again: no restart, no deploy, no
// other settings. A schedule that was deleted is new.
func TestRunAtStart(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	schedule := drover.Periodic{Name: "a", Schedule: "@every 1h", RunAtStart: true, CatchUp: drover.CatchUpAll}
	ticks := func(want int, when string) {
		t.Helper()
		for _, name := range []string{"a", "cron"} {
			f := db.Fire(t, name, "")
			if len(f.Jobs) != want || f.Missed != 0 || want > 0 && f.Wait > time.Hour {
				t.Errorf("%s, %s: %+v, want %d jobs", name, when, f, want)
			}
		}
	}
	set := func(edit func(*drover.Periodic)) {
		t.Helper()
		for name, at := range map[string]string{"a": "@every 1h", "cron": harness.FarMinute()} {
			p := schedule
			p.Name, p.Schedule = name, at
			edit(&p)
			db.SetPeriodic(t, p)
		}
	}
	set(func(*drover.Periodic) {})
	if j := db.PeriodicJob(t, "cron"); !j.RunAtStart || time.Until(j.Next[0]) > 0 || time.Until(j.Next[1]) < 20*time.Minute {
		t.Errorf("%+v", j)
	}
	ticks(1, "new")
	made := db.TicksMade(t, "a")
	if next := db.PeriodicJob(t, "a").Next[0]; len(made) != 1 || next.Sub(made[0]) != time.Hour {
		t.Errorf("the first tick was at %v, the next is at %v", made, next)
	}
	set(func(*drover.Periodic) {})
	ticks(0, "set again")
	set(func(p *drover.Periodic) { p.Args, p.Overlap = tickArgs{2}, drover.OverlapSkip })
	ticks(0, "with other settings")
	set(func(p *drover.Periodic) { p.Zone = "Europe/Berlin" })
	ticks(0, "in another zone")
	set(func(p *drover.Periodic) { p.RunAtStart = false })
	set(func(p *drover.Periodic) { p.RunAtStart = true })
	ticks(0, "switched off and on")
	for _, name := range []string{"a", "cron"} {
		if err := db.client.DeletePeriodic(t.Context(), name, drover.Audit{}); err != nil {
			t.Fatal(err)
		}
	}
	set(func(*drover.Periodic) {})
	ticks(1, "deleted and set")
}

// In code, the supervisor that stores a schedule that runs at its start ticks it. A restart of the same build, or of a newer
// one, does not.
func TestRunAtStartOfADeclaredSchedule(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	for i, build := range []string{"v1", "v1", "v2"} {
		stop := db.StartTicker(t, harness.Ticker(build, drover.Periodic{Name: "declared", Schedule: "@every 1h", RunAtStart: true}))
		db.waitFor(t, 10*time.Second, `select jobs = 1 from drover_periodic where name = 'declared'`)
		stop()
		if n := value[int](t, db, `select jobs from drover_periodic where name = 'declared' and next_at > now() + interval '59 min'`); n != 1 {
			t.Errorf("start %d: %d jobs", i, n)
		}
	}
}

// attempts, strategy, timeout and priority that a schedule sets apply to its jobs' runs, over the worker's.
func TestOptionsOfAScheduleApply(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	type seen struct {
		attempts, max, priority int
		timeout, delay          time.Duration
	}
	runs := make(chan seen, 10)
	db.run(t, drover.SupervisorConfig{
		Queues: []drover.Queue{{Name: "reports"}},
		Workers: []drover.Worker{drover.Handle(func(ctx context.Context, j *drover.Job, _ tickArgs) error {
			deadline, _ := ctx.Deadline()
			runs <- seen{j.Attempt, j.MaxAttempts, j.Priority, time.Until(deadline), j.LastDelay}
			return errBoom
		}, drover.WorkerOpts{MaxAttempts: 9, Retry: drover.Constant{Delay: time.Hour}, Timeout: time.Hour})},
		Periodic: []drover.Periodic{{
			Name: "a", Schedule: "@every 1h", Args: tickArgs{}, RunAtStart: true,
			Opts: &drover.EnqueueOpts{Queue: "reports", Priority: 2, MaxAttempts: 3, Retry: drover.Constant{Delay: 10 * time.Millisecond, Jitter: drover.NoJitter}, Timeout: 10 * time.Minute},
		}},
	})
	for attempt := 1; attempt <= 3; attempt++ {
		got, delay := receive(t, runs), time.Duration(0)
		if attempt > 1 {
			delay = 10 * time.Millisecond
		}
		if got.attempts != attempt || got.max != 3 || got.priority != 2 || got.delay != delay || got.timeout > 10*time.Minute || got.timeout < 5*time.Minute {
			t.Fatalf("run %d: %+v", attempt, got)
		}
	}
	db.waitFor(t, 10*time.Second, `select count(*) = 1 from jobs where state = 'discarded' and discard_reason = 'attempts_exhausted' and errors_total = 3`)
	// The hooks hear of the enqueue, and which schedule it was.
	id := value[string](t, db, `select id from jobs`)
	eventually(t, func() bool {
		return slices.ContainsFunc(heard.Of(id), func(e harness.LoggedEvent) bool {
			return e.Name == "enqueued" && e.Periodic == "a" && e.Queue == "reports" && e.Kind == "tick" && e.Supervisor != ""
		})
	})
}

// dstCase is a row of testdata/dst.json: the ticks of a schedule around a change of a zone's clocks.
type dstCase struct {
	What     string      `json:"what"`
	Zone     string      `json:"zone"`
	Schedule string      `json:"schedule"`
	After    time.Time   `json:"after"`
	Ticks    []time.Time `json:"ticks"`
}

// wallClock finds ticks without any of the code under test and without the server's zones. It walks from minute to minute,
// or from second to second if the schedule has six fields, and reads each zone's clock on the wall with Go's package time.
func wallClock(t testing.TB, schedule, zone string, after time.Time, n int) (ticks []time.Time) {
	t.Helper()
	loc, err := time.LoadLocation(zone)
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(schedule)
	set := func(field string, least, most int) map[int]bool {
		found := map[int]bool{}
		for part := range strings.SplitSeq(field, ",") {
			span, step, _ := strings.Cut(part, "/")
			lo, hi, isRange := strings.Cut(span, "-")
			from, to, by := least, most, 1
			if span != "*" {
				from, _ = strconv.Atoi(lo)
				if to = from; isRange {
					to, _ = strconv.Atoi(hi)
				}
			}
			if step != "" {
				by, _ = strconv.Atoi(step)
			}
			for ; from <= to; from += by {
				found[from] = true
			}
		}
		return found
	}
	step, seconds := time.Minute, map[int]bool{0: true}
	if len(fields) == 6 {
		step, seconds, fields = time.Second, set(fields[0], 0, 59), fields[1:]
	}
	minutes, hours := set(fields[0], 0, 59), set(fields[1], 0, 23)
	days, months, weekdays := set(fields[2], 1, 31), set(fields[3], 1, 12), set(fields[4], 0, 7)
	weekdays[0] = weekdays[0] || weekdays[7]
	either := fields[2][0] != '*' && fields[4][0] != '*'
	matches := func(wall time.Time) bool { // except the second. Its fields show the clock on the wall, its zone does not
		day, weekday := days[wall.Day()], weekdays[int(wall.Weekday())]
		return minutes[wall.Minute()] && hours[wall.Hour()] && months[int(wall.Month())] && (day && weekday || either && (day || weekday))
	}
	onTheWall := func(at time.Time) time.Time {
		l := at.In(loc)
		return time.Date(l.Year(), l.Month(), l.Day(), l.Hour(), l.Minute(), l.Second(), 0, time.UTC)
	}
	begin := after.Truncate(time.Minute)
	latest := onTheWall(begin.Add(-26 * time.Hour)) // that the wall has shown
	for at := begin.Add(-26 * time.Hour); at.Before(begin); at = at.Add(time.Minute) {
		if wall := onTheWall(at); wall.After(latest) {
			latest = wall
		}
	}
	latest = latest.Add(time.Minute - step)
	for at := begin; len(ticks) < n; at = at.Add(step) {
		wall, tick := onTheWall(at), false
		switch {
		case at.Second() == 0 && wall.Sub(latest) == step && !matches(wall): // no second of this minute; clocks change between minutes
			latest, at = wall.Add(time.Minute-step), at.Add(time.Minute-step)
			continue
		case wall.After(latest):
			for missing := latest.Add(step); !missing.After(wall); missing = missing.Add(step) {
				tick = tick || seconds[missing.Second()] && matches(missing) // more than one where clocks were put forward
			}
			latest = wall
		default: // it was shown before
			tick = len(hours) == 24 && seconds[wall.Second()] && matches(wall)
		}
		if tick && at.After(after) {
			ticks = append(ticks, at)
		}
	}
	return ticks
}

func TestPeriodicTableOfZones(t *testing.T) {
	t.Parallel()
	const file = "testdata/dst.json"
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var table []dstCase
	if err := json.Unmarshal(raw, &table); err != nil {
		t.Fatal(err)
	}
	db := newTestDB(t)
	zones := map[string]bool{}
	for i, c := range table {
		zones[c.Zone] = true
		walked := wallClock(t, c.Schedule, c.Zone, c.After, len(c.Ticks))
		if drover.Updates() {
			table[i].Ticks = walked
			continue
		}
		if !slices.EqualFunc(walked, c.Ticks, time.Time.Equal) {
			t.Errorf("%s: the table has %v, a walk from minute to minute %v", c.What, c.Ticks, walked)
		}
		got, err := readTicks(t, db, c.Schedule, c.Zone, c.After, len(c.Ticks))
		if err != nil || !slices.EqualFunc(got, c.Ticks, time.Time.Equal) {
			t.Errorf("%s: %s in %s: %v, want %v (%v)", c.What, c.Schedule, c.Zone, got, c.Ticks, err)
		}
	}
	if len(table) < 15 || len(zones) < 5 {
		t.Errorf("%d rows of %d zones", len(table), len(zones))
	}
	if drover.Updates() {
		raw, err := json.MarshalIndent(table, "", "\t")
		if err == nil {
			err = os.WriteFile(file, append(raw, '\n'), 0o644)
		}
		t.Fatalf("%s is written anew: %v", file, err)
	}
}

func readTicks(t testing.TB, db *testDB, schedule, zone string, after time.Time, n int) (ticks []time.Time, err error) {
	t.Helper()
	err = db.QueryRow(t.Context(), `select drover_periodic_ticks($1, $2, $3, $3, $4)`, schedule, zone, after, n).Scan(&ticks)
	for i := range ticks {
		ticks[i] = ticks[i].UTC()
	}
	return ticks, err
}

// Any schedule, in any of these zones, around their changes: the database finds what a walk along the clock on the wall does.
func TestPeriodicTicksAreThoseOfTheWallClock(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	rng := rand.New(rand.NewPCG(1, 18)) //nolint:gosec // the same each time
	pick := func(of ...string) string { return of[rng.IntN(len(of))] }
	field := func(least, most int) string {
		lo := least + rng.IntN(most-least+1)
		hi := lo + rng.IntN(most-lo+1)
		return pick("*", "*", fmt.Sprintf("*/%d", 1+rng.IntN(30)), fmt.Sprint(lo), fmt.Sprintf("%d-%d", lo, hi), fmt.Sprintf("%d,%d", hi, lo),
			fmt.Sprintf("%d-%d/%d", lo, hi, 1+rng.IntN(7)))
	}
	around := []struct{ zone, at string }{
		{"Europe/Berlin", "2025-03-30T01:00:00Z"},
		{"Europe/Berlin", "2025-10-26T01:00:00Z"},
		{"America/New_York", "2025-03-09T07:00:00Z"},
		{"America/New_York", "2025-11-02T06:00:00Z"},
		{"Australia/Lord_Howe", "2025-04-05T15:00:00Z"},
		{"Australia/Lord_Howe", "2025-10-04T15:30:00Z"},
		{"Africa/Casablanca", "2024-03-10T02:00:00Z"},
		{"Africa/Casablanca", "2024-04-14T02:00:00Z"},
		{"Asia/Kolkata", "2025-03-30T01:00:00Z"},
		{"Asia/Beirut", "2022-10-29T21:00:00Z"},
		{"America/Havana", "2025-03-09T05:00:00Z"},
		{"America/St_Johns", "2010-11-07T02:31:00Z"},
		{"Pacific/Apia", "2011-12-30T10:00:00Z"},
		{"UTC", "2024-02-29T00:00:00Z"},
	}
	for range sizeOf(t, "DROVER_CRON_CASES", 200) {
		schedule := strings.Join([]string{
			field(0, 59), field(0, 23), pick("*", "*", "1-7", "*/2", "26-31"), "*", pick("*", "*", "0", "6,7", "*/2"),
		}, " ")
		if rng.IntN(10) == 0 { // such a walk is sixty times as long
			schedule = strings.Join([]string{field(0, 59), field(0, 59), field(0, 23), "* * *"}, " ")
		}
		c := around[rng.IntN(len(around))]
		at, err := time.Parse(time.RFC3339, c.at)
		if err != nil {
			t.Fatal(err)
		}
		after := at.Add(time.Duration(rng.IntN(29*3600)-26*3600) * time.Second)
		got, err := readTicks(t, db, schedule, c.zone, after, 5)
		if want := wallClock(t, schedule, c.zone, after, 5); err != nil || !slices.EqualFunc(got, want, time.Time.Equal) {
			t.Errorf("%s in %s after %v: %v, %v, want %v", schedule, c.zone, after, got, err, want)
		}
	}
}
