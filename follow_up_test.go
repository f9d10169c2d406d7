package drover_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/store"
)

// followUps are the follow-ups that wait, by the job they are for.
func (db *testDB) followUps(t testing.TB) map[string][]drover.DiscardedJob {
	t.Helper()
	rows, err := db.Query(t.Context(), `select args from jobs where metadata ? 'drover:follow_up'`)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]drover.DiscardedJob{}
	docs, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		t.Fatal(err)
	}
	for _, doc := range docs {
		var d drover.DiscardedJob
		if err := json.Unmarshal(doc, &d); err != nil {
			t.Fatal(err)
		}
		all[d.JobID] = append(all[d.JobID], d)
	}
	return all
}

// F-14: on every path into discarded, the same transaction enqueues the follow-up, once.
func TestFollowUpOnEveryPath(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	follow := &drover.FollowUp{Kind: "after", Queue: "alarms"}
	returns := func(err error) func(context.Context, *drover.Job) error {
		return func(context.Context, *drover.Job) error { return err }
	}
	cfg := drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: []drover.Worker{
		dynWorker("fails", drover.WorkerOpts{MaxAttempts: 1, FollowUp: follow}, returns(errBoom)),
		dynWorker("discards", drover.WorkerOpts{FollowUp: follow}, returns(drover.Discard(errBoom))),
		dynWorker("panics", drover.WorkerOpts{DiscardOnPanic: true, FollowUp: follow}, func(context.Context, *drover.Job) error { panic("oh") }),
		dynWorker("in its transaction", drover.WorkerOpts{FollowUp: follow}, func(ctx context.Context, job *drover.Job) error {
			return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { return job.SettleTx(ctx, tx, drover.Discard(errBoom)) })
		}),
		drover.Handle(func(context.Context, *drover.Job, job) error { return nil }, drover.WorkerOpts{FollowUp: follow}),
		dynWorker("no follow-up", drover.WorkerOpts{}, returns(drover.Discard(errBoom))),
		dynWorker("retried", drover.WorkerOpts{FollowUp: follow}, returns(errBoom)),
		dynWorker("completed", drover.WorkerOpts{FollowUp: follow}, doNothing),
		dynWorker("by hand", drover.WorkerOpts{FollowUp: follow}, doNothing),
		dynWorker("cancelled", drover.WorkerOpts{FollowUp: follow}, returns(drover.Cancel(nil))),
	}}
	db.run(t, cfg)
	want := map[string]drover.DiscardedJob{}
	ended := func(id, kind string, reason drover.Reason, text string, class drover.Class, attempts int) {
		heard.End(t, id)
		want[id] = drover.DiscardedJob{Queue: "default", JobKind: kind, Reason: reason, Error: text, Class: class, Attempts: attempts}
	}
	ended(db.enqueue(t, dyn{kind: "fails", N: 7}, nil), "fails", drover.ReasonAttemptsExhausted, "boom", drover.ClassError, 1)
	ended(db.enqueue(t, dyn{kind: "fails"}, &drover.EnqueueOpts{MaxAttempts: 9, RetryUntil: time.Now().Add(time.Second)}), "fails", drover.ReasonTimeBudget, "boom", drover.ClassError, 1)
	ended(db.enqueue(t, dyn{kind: "discards"}, nil), "discards", drover.ReasonUnrecoverable, "boom", drover.ClassError, 1)
	ended(db.enqueue(t, dyn{kind: "panics"}, nil), "panics", drover.ReasonPanic, "panic: oh", drover.ClassPanic, 1)
	ended(db.enqueue(t, dyn{kind: "in its transaction"}, nil), "in its transaction", drover.ReasonUnrecoverable, "boom", drover.ClassError, 1)
	expired := value[string](t, db, `insert into jobs (kind, expires_at) values ('fails', now() - interval '1 s') returning id`)
	ended(expired, "fails", drover.ReasonExpired, "", "", 0)
	undecodable := value[string](t, db, `insert into jobs (kind, args) values ('job', '"no object"') returning id`)
	heard.End(t, undecodable)
	for _, kind := range []string{"no follow-up", "retried", "completed", "cancelled"} {
		heard.End(t, db.enqueue(t, dyn{kind: kind}, nil))
	}
	byHand := db.enqueue(t, dyn{kind: "by hand"}, &drover.EnqueueOpts{Delay: time.Hour})
	const discard = `update jobs set state = 'discarded', discard_reason = 'operator', finalized_at = now() where id = $1`
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), discard, byHand); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if db.followUps(t)[byHand] != nil {
		t.Error("a discard that was rolled back has a follow-up")
	}
	db.exec(t, discard, byHand)
	db.exec(t, `update jobs set discard_reason = 'panic' where id = $1`, byHand) // it is discarded already
	want[byHand] = drover.DiscardedJob{Queue: "default", JobKind: "by hand", Reason: "operator"}

	got := db.followUps(t)
	if d := got[undecodable]; len(d) != 1 || d[0].Reason != drover.ReasonUndecodable || string(d[0].Args) != `"no object"` {
		t.Errorf("undecodable: %+v", d)
	}
	delete(got, undecodable)
	if a, b := slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)); !slices.Equal(a, b) {
		t.Errorf("follow-ups for %q, want %q", a, b)
	}
	for id, w := range want {
		if len(got[id]) != 1 {
			t.Errorf("%s, %s: %d follow-ups", w.JobKind, w.Reason, len(got[id]))
			continue
		}
		g := got[id][0]
		if (g.Fingerprint != "") != (w.Class != "") || g.DiscardedAt.IsZero() || !json.Valid(g.Args) {
			t.Errorf("%s, %s: %+v", w.JobKind, w.Reason, g)
		}
		g.JobID, g.Fingerprint, g.Args, g.DiscardedAt = "", "", nil, time.Time{}
		if fmt.Sprint(g) != fmt.Sprint(w) {
			t.Errorf("%+v, want %+v", g, w)
		}
	}
	if !value[bool](t, db, `select bool_and(queue = 'alarms' and kind = 'after' and state = 'available' and scheduled_at <= now()) from jobs where metadata ? 'drover:follow_up'`) {
		t.Error("not all follow-ups are where they should be")
	}

	// Redriven and discarded again: another one.
	again := db.enqueue(t, dyn{kind: "discards"}, nil)
	heard.End(t, again)
	if err := db.client.RedriveJob(t.Context(), again, nil, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return len(db.followUps(t)[again]) == 2 })
}

// F-14: the rescuer need not know the kind.
func TestFollowUpOfACrash(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into drover_kinds (kind, follow_up_kind, follow_up_queue) values ('elsewhere', 'after', 'default')`)
	id := value[string](t, db, `insert into jobs (kind, max_attempts, state, claimed_by, attempt, claim_seq, started_seq, attempted_at)
		values ('elsewhere', 1, 'running', 'dead', 1, 1, 1, now()) returning id`)
	db.exec(t, `insert into drover_supervisors (id, lease_ms, queues, slots, in_flight, lost_at) values ('dead', 1000, '{default}', '{"default": 1}', array[$1], now())`, id)
	db.Stopped(t, drover.SupervisorConfig{}).Beat(t)
	got := db.followUps(t)[id]
	if len(got) != 1 || got[0].Class != drover.ClassCrash || got[0].Attempts != 1 || got[0].Reason == "" {
		t.Errorf("follow-ups: %+v", got)
	}
}

// chargeFailed is what a user makes of a DiscardedJob.
type chargeFailed struct{ drover.DiscardedJob }

func (chargeFailed) Kind() string { return "charge_failed" }

// F-14: a discard by psql wakes the supervisors of the follow-up's queue, which run it with all it should know.
func TestAFollowUpWakesItsQueue(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	got := make(chan chargeFailed, 1)
	db.launch(t, drover.SupervisorConfig{Queues: []drover.Queue{{Name: "alarms"}}, PollInterval: time.Hour, Workers: []drover.Worker{
		drover.Handle(func(_ context.Context, _ *drover.Job, args chargeFailed) error { got <- args; return nil }, drover.WorkerOpts{}),
		dynWorker("charge", drover.WorkerOpts{FollowUp: &drover.FollowUp{Kind: "charge_failed", Queue: "alarms"}}, doNothing),
	}})
	db.Asleep(t)
	id := value[string](t, db, `insert into jobs (kind, queue, args) values ('charge', 'nobody serves it', '{"OrderID": 42}') returning id`)
	ear, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer ear.Release()
	if _, err := ear.Exec(t.Context(), `listen "`+value[string](t, db, `select drover_channel()`)+`"`); err != nil {
		t.Fatal(err)
	}
	db.exec(t, `update jobs set state = 'discarded', discard_reason = 'operator', finalized_at = now() where id = $1`, id)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if note, err := ear.Conn().WaitForNotification(ctx); err != nil || !wakes(note.Payload, "alarms") {
		t.Errorf("notification %+v, %v", note, err)
	}
	if _, err := ear.Exec(t.Context(), `unlisten *`); err != nil {
		t.Error(err)
	}
	if d := receive(t, got); d.JobID != id || d.JobKind != "charge" || d.Queue != "nobody serves it" || string(d.Args) != `{"OrderID": 42}` || d.Reason != "operator" {
		t.Errorf("args = %+v", d)
	}
}

// A supervisor says at its start which follow-ups it leaves to others.
func TestFollowUpsOfOtherSupervisors(t *testing.T) {
	t.Parallel()
	var logged lockedBuffer
	db := newTestDBWith(t, drover.Config{Logger: slog.New(slog.NewJSONHandler(&logged, nil))})
	worker := func(kind string, f *drover.FollowUp) drover.Worker {
		return dynWorker(kind, drover.WorkerOpts{FollowUp: f}, doNothing)
	}
	sup := db.launch(t, drover.SupervisorConfig{Queues: []drover.Queue{{}, {Name: "alarms"}}, Workers: []drover.Worker{
		worker("served", &drover.FollowUp{Kind: "told"}), worker("also served", &drover.FollowUp{Kind: "told", Queue: "alarms"}), worker("told", nil),
		worker("of an unknown kind", &drover.FollowUp{Kind: "refund", Queue: "alarms"}), worker("to an unserved queue", &drover.FollowUp{Kind: "told", Queue: "far"}),
	}})
	eventually(t, func() bool { return bytes.Contains(logged.Bytes(), []byte("supervisor started")) })
	sup.Stop(t)
	got := map[string]string{}
	for lines := json.NewDecoder(bytes.NewReader(logged.Bytes())); lines.More(); {
		var line map[string]any
		if err := lines.Decode(&line); err != nil {
			t.Fatal(err)
		}
		if line["msg"] == "follow-up is not served here, another supervisor must" {
			got[fmt.Sprint(line["kind"])] = fmt.Sprint(line["level"], " ", line["follow_up"], " ", line["queue"])
		}
	}
	want := map[string]string{"of an unknown kind": "INFO refund alarms", "to an unserved queue": "INFO told far"}
	if !maps.Equal(got, want) {
		t.Errorf("logged %q, want %q", got, want)
	}
}

// Two kinds that follow each other come to an end.
func TestChainsOfFollowUpsEnd(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into drover_kinds (kind, follow_up_kind, follow_up_queue) values ('a', 'b', 'default'), ('b', 'a', 'default')`)
	db.exec(t, `insert into jobs (kind) values ('a')`)
	for range 6 {
		db.exec(t, `update jobs set state = 'discarded', discard_reason = 'operator', finalized_at = now() where finalized_at is null`)
	}
	if got := value[string](t, db, `select string_agg(kind || coalesce(metadata->>'drover:follow_up', ''), ' ' order by metadata->>'drover:follow_up' nulls first) from jobs`); got != "a b1 a2 b3" {
		t.Errorf("jobs: %s", got)
	}
	// These rows are stored only if the bounds are not checked.
	db.exec(t, `alter table jobs disable trigger jobs_bounds`)
	for _, junk := range []string{`{"drover:follow_up": "x"}`, `{"drover:follow_up": 1e30}`, `{"drover:follow_up": null}`} { // of psql's making
		db.exec(t, `insert into jobs (kind, metadata) values ('a', $1)`, junk)
	}
	db.exec(t, `update jobs set state = 'discarded', discard_reason = 'operator', finalized_at = now() where finalized_at is null`)
	if n := value[int](t, db, `select count(*) from jobs where finalized_at is null`); n != 2 {
		t.Errorf("%d follow-ups, want 2", n)
	}
}

// A discard does not fail for args that leave no room for more.
func TestAFollowUpOfHugeArgs(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into drover_kinds (kind, follow_up_kind, follow_up_queue) values ('a', 'b', 'default')`)
	id := value[string](t, db, `insert into jobs (kind, args) values ('a', to_jsonb(repeat('x', 20000000))) returning id`)
	db.exec(t, `update jobs set state = 'discarded', discard_reason = 'operator', finalized_at = now() where id = $1`, id)
	if got := db.followUps(t)[id]; len(got) != 1 || string(got[0].Args) != "null" {
		t.Errorf("%d follow-ups", len(got))
	}
}

func TestFollowUpIsValidated(t *testing.T) {
	t.Parallel()
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Kinds: []string{"k", "known"}})
	for _, c := range []struct {
		follow drover.FollowUp
		field  string
	}{
		{drover.FollowUp{}, "Kind"},
		{drover.FollowUp{Kind: "k"}, "Kind"},
		{drover.FollowUp{Kind: "unknown"}, "Kind"},
		{drover.FollowUp{Kind: "known", Queue: strings.Repeat("q", 129)}, "Queue"},
		{drover.FollowUp{Kind: "known"}, ""},
	} {
		_, err := db.client.NewSupervisor(drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: []drover.Worker{dynWorker("k", drover.WorkerOpts{FollowUp: &c.follow}, doNothing)}})
		var invalid *drover.InvalidError
		if (err != nil) != (c.field != "") || err != nil && (!errors.As(err, &invalid) || invalid.Field != "Workers[0].FollowUp."+c.field) {
			t.Errorf("%+v: %v", c.follow, err)
		}
	}
}

const discardAll = `update jobs set state = 'discarded', discard_reason = 'operator', finalized_at = now() where finalized_at is null and kind = 'a'`

// following is a schema in which a job of kind a is followed by one of kind b.
func following(t testing.TB, cfg drover.Config) *testDB {
	t.Helper()
	db := newTestDBWith(t, cfg)
	db.exec(t, `insert into drover_kinds (kind, follow_up_kind, follow_up_queue) values ('a', 'b', 'default')`)
	return db
}

// F-15: whatever is stored under drover's own key, the job is discarded, and a chain of follow-ups ends.
func TestFollowUpOfOddMetadata(t *testing.T) {
	t.Parallel()
	db := following(t, drover.Config{Logger: quiet()})
	db.Unguarded(t)
	for metadata, depth := range map[string]int{
		`{"drover:follow_up": -1e300}`: 1, `{"drover:follow_up": "x"}`: 1, `{"drover:follow_up": 1e400}`: 0, `{"drover:follow_up": {"drover:follow_up": [1]}}`: 1,
		`{"drover:follow_up": -5}`: 1, `{"drover:follow_up": 2147483648}`: 0, `{"drover:follow_up": 1e-16000}`: 1, `{"drover:follow_up": 3}`: 0, `{"drover:follow_up": 2}`: 3,
		`{"drover:follow_up": true}`: 1, `{}`: 1,
	} {
		db.exec(t, `truncate jobs`)
		db.exec(t, `insert into jobs (kind, metadata) select 'a', m::jsonb from (values ($1::text)) v(m)`, metadata)
		db.exec(t, discardAll)
		if got := value[int](t, db, `select coalesce((select (metadata->>'drover:follow_up')::int from jobs where kind = 'b'), 0)`); got != depth {
			t.Errorf("%s: the follow-up has depth %d, want %d", metadata, got, depth)
		}
	}
}

// F-15: a discard never fails because of its follow-up. The follow-up is set aside and logged. Once the database
// takes it, the supervisor that prunes enqueues it.
func TestARefusedFollowUp(t *testing.T) {
	t.Parallel()
	for name, does := range map[string]string{"trigger": "raise 'no'", "trigger that returns null": "return null"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var book harness.Logbook
			db := following(t, drover.Config{Logger: slog.New(&book)})
			db.Refuses(t, "insert", "jobs", "new.kind = 'b' and new.args->'args' @> '{\"bad\": true}'", does)
			db.exec(t, `insert into jobs (kind, args) select 'a', jsonb_build_object('bad', n = 3) from generate_series(1, 5) n`)
			bad := value[string](t, db, `select id from jobs where args @> '{"bad": true}'`)
			db.exec(t, discardAll)
			if n := len(db.followUps(t)); n != 4 {
				t.Errorf("%d follow-ups, want 4", n)
			}
			if noted := db.Noted(t, "follow-up"); !slices.Equal(noted, []string{bad}) {
				t.Errorf("set aside: %q", noted)
			}
			db.exec(t, `update drover_set_aside set retry_at = now()`)
			db.LaunchPruning(t, drover.SupervisorConfig{Queues: []drover.Queue{{Name: "elsewhere"}}})
			db.waitFor(t, 20*time.Second, `select tries = 2 from drover_set_aside`)
			eventually(t, func() bool { return len(book.From(slog.LevelWarn)) == 1 })
			if line := book.From(slog.LevelWarn)[0]; !strings.Contains(line, bad) {
				t.Errorf("logged: %s", line)
			}
			db.exec(t, `drop trigger app_insert_jobs on jobs`)
			db.exec(t, `update drover_set_aside set retry_at = now()`)
			db.waitFor(t, 20*time.Second, `select not exists (select from drover_set_aside)`)
			if got := db.followUps(t)[bad]; len(got) != 1 || got[0].Reason != drover.ReasonOperator || string(got[0].Args) != `{"bad": true}` {
				t.Errorf("follow-ups: %+v", got)
			}
			if lines := book.From(slog.LevelWarn); len(lines) != 1 {
				t.Errorf("logged %q", lines)
			}
		})
	}
}

// The pruner leaves a dead letter whose follow-up is set aside, whatever its queue's retention is: the follow-up is made
// from it.
func TestARefusedFollowUpKeepsItsJob(t *testing.T) {
	t.Parallel()
	for name, queue := range map[string]string{"deleted": "discarded_retention", "archived": "archive_discarded_after"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := following(t, drover.Config{Logger: quiet()})
			db.exec(t, `insert into queues (name, `+queue+`) values ('default', '0') on conflict (name) do update set `+queue+` = '0'`)
			db.Refuses(t, "insert", "jobs", "new.kind = 'b'", "raise 'no'")
			id := value[string](t, db, `insert into jobs (id, kind) values (overlay(drover_ulid() placing left(drover_ulid_at(now() - interval '1 hour'), 10) from 1 for 10), 'a') returning id`)
			db.exec(t, discardAll)
			prune := func() {
				t.Helper()
				db.exec(t, `update drover_set_aside set retry_at = now()`)
				if _, err := db.prune(t.Context(), engine.PruneWalk{}, store.Keeping{}); err != nil {
					t.Fatal(err)
				}
			}
			prune()
			if n, noted := value[int](t, db, `select count(*) from jobs`), db.Noted(t, "follow-up"); n != 1 || !slices.Equal(noted, []string{id}) {
				t.Errorf("%d jobs, %q set aside, want the dead letter and its follow-up", n, noted)
			}
			db.exec(t, `drop trigger app_insert_jobs on jobs`)
			prune()
			if got := db.followUps(t)[id]; len(got) != 1 {
				t.Errorf("follow-ups: %+v", got)
			}
			prune()
			if n := value[int](t, db, `select count(*) from jobs where kind = 'a'`); n != 0 {
				t.Error("the dead letter stays after its follow-up was enqueued")
			}
		})
	}
}

// F-15: a follow-up that a trigger holds up for longer than a statement may last is found among others.
func TestARefusedFollowUpThatTimesOut(t *testing.T) {
	t.Parallel()
	slow(t)
	db := following(t, drover.Config{Logger: quiet()})
	db.Refuses(t, "insert", "jobs", "new.kind = 'b'", "raise 'no'")
	db.exec(t, `insert into jobs (kind, args) select 'a', to_jsonb(n) from generate_series(1, 5) n`)
	db.exec(t, discardAll)
	db.exec(t, `drop trigger app_insert_jobs on jobs`)
	db.exec(t, `drop function app_insert_jobs`)
	db.Refuses(t, "insert", "jobs", "new.kind = 'b' and new.args->'args' = '3'", "perform pg_sleep(3600)")
	db.exec(t, `update drover_set_aside set retry_at = now()`)
	hasty := db.via(t, drover.Config{Logger: quiet()}, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["statement_timeout"] = "1s" })
	if _, err := hasty.prune(t.Context(), engine.PruneWalk{}, store.Keeping{}); err != nil {
		t.Fatal(err)
	}
	if n, noted := len(db.followUps(t)), value[string](t, db, `select string_agg(concat_ws(' ', code, tries), ',') from drover_set_aside`); n != 4 || noted != "57014 2" {
		t.Errorf("%d follow-ups, set aside: %s", n, noted)
	}
}

// A follow-up that was set aside is dropped once its job is gone, or redriven, or its kind asks for none.
func TestFollowUpsNobodyNeeds(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"deleted": `delete from jobs`, "redriven": `select drover_redrive(id) from jobs`, "no follow-up": `update drover_kinds set follow_up_kind = null, follow_up_queue = null`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := following(t, drover.Config{Logger: quiet()})
			db.Refuses(t, "insert", "jobs", "new.kind = 'b'", "raise 'no'")
			db.exec(t, `insert into jobs (kind) values ('a')`)
			db.exec(t, discardAll)
			db.exec(t, `update drover_set_aside set retry_at = now()`)
			db.exec(t, `drop trigger app_insert_jobs on jobs`)
			db.exec(t, sql)
			if _, err := db.prune(t.Context(), engine.PruneWalk{}, store.Keeping{}); err != nil {
				t.Fatal(err)
			}
			if n, notes := len(db.followUps(t)), db.Noted(t, "follow-up"); n != 0 || len(notes) != 0 {
				t.Errorf("%d follow-ups, %q set aside", n, notes)
			}
		})
	}
}

// F-15: parts of the dead job that cannot be read are left out of its follow-up.
func TestFollowUpOfADamagedJob(t *testing.T) {
	t.Parallel()
	db := following(t, drover.Config{Logger: quiet()})
	args := value[string](t, db, `insert into jobs (kind) values ('a') returning id`)
	db.damage(t, "jobs", args)
	errs := value[string](t, db, `insert into jobs (kind, args) values ('a', '{"n": 1}') returning id`)
	db.exec(t, `alter table jobs drop constraint jobs_errors`)
	db.exec(t, `update jobs set errors = '{}' where id = $1`, errs)
	db.exec(t, discardAll)
	got := db.followUps(t)
	if d := got[args]; len(d) != 1 || string(d[0].Args) != "null" || d[0].Reason != drover.ReasonOperator {
		t.Errorf("damaged args: %+v", d)
	}
	if d := got[errs]; len(d) != 1 || string(d[0].Args) != `{"n": 1}` || d[0].Error != "" {
		t.Errorf("damaged errors: %+v", d)
	}
}

// A role that may discard, but neither enqueue nor set aside, discards all the same, with a warning.
func TestADiscardByARoleThatMayDoNothingElse(t *testing.T) {
	t.Parallel()
	db := following(t, drover.Config{Logger: quiet()})
	id := value[string](t, db, `insert into jobs (kind) values ('a') returning id`)
	role := "only_" + strings.ToLower(id)
	db.exec(t, `create role `+role)
	t.Cleanup(func() {
		if _, err := db.Exec(context.Background(), `drop owned by `+role+`; drop role `+role); err != nil {
			t.Error(err)
		}
	})
	db.exec(t, `grant usage on schema `+value[string](t, db, `select quote_ident(current_schema())`)+` to `+role)
	db.exec(t, `grant select, update on jobs to `+role)
	db.exec(t, `grant select on drover_kinds to `+role)
	if err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `set local role `+role); err != nil {
			return err
		}
		_, err := tx.Exec(t.Context(), discardAll)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if got := value[string](t, db, `select string_agg(state, ' ') from jobs`); got != "discarded" {
		t.Errorf("jobs: %s", got)
	}
}

// If a trigger of the application removes dead jobs immediately, their follow-ups stay.
func TestFollowUpOfAJobThatIsGoneAtOnce(t *testing.T) {
	t.Parallel()
	db := following(t, drover.Config{Logger: quiet()})
	db.exec(t, `create function away() returns trigger language plpgsql as $$ begin delete from jobs where id = new.id; return null; end $$`)
	db.exec(t, `create trigger away after update on jobs for each row when (new.state = 'discarded') execute function away()`)
	id := value[string](t, db, `insert into jobs (kind, args) values ('a', '{"n": 1}') returning id`)
	db.exec(t, discardAll)
	if got := db.followUps(t)[id]; len(got) != 1 || string(got[0].Args) != `{"n": 1}` {
		t.Errorf("follow-ups: %+v", got)
	}
}
