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

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/harness"
)

// D-2: pages list dead letters with the latest discarded first. They stay complete and in order
// while dead letters are added and removed, and when several were discarded at the same instant.
func TestPagesOfTheDead(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	db.exec(t, `
insert into jobs (kind, state, finalized_at, discard_reason, class, fingerprint)
select 'letter', 'discarded', now() - (n / 40) * interval '1 min', 'panic', 'error', 'f' || n % 3 from generate_series(1, 250) n`)
	db.enqueue(t, letter{}, nil)
	stay := db.IDsOf(t, `select id from jobs where state = 'discarded' order by finalized_at desc, id desc`)
	for i, tc := range []struct {
		filter drover.Filter
		limit  int
	}{{drover.Filter{State: drover.Discarded}, 7}, {drover.Filter{Reason: drover.ReasonPanic}, 40}, {drover.Filter{State: drover.Discarded, Kind: "letter"}, 1}, {drover.Filter{State: drover.Discarded}, 1000}} {
		var got []string
		for after, n := "", 0; ; n++ {
			page, err := db.client.Jobs(t.Context(), tc.filter, after, tc.limit)
			if err != nil {
				t.Fatal(err)
			}
			for _, j := range page.Jobs {
				got = append(got, j.ID)
			}
			if n%20 == 1 {
				db.put(t, "state, finalized_at, discard_reason", "'discarded', clock_timestamp(), 'panic'") // sorts before this page
				gone := page.Jobs[len(page.Jobs)-1].ID                                                      // the next page continues after this job
				db.exec(t, `update jobs set state = 'available', discard_reason = null, finalized_at = null where id = $1`, gone)
				stay = slices.DeleteFunc(stay, func(id string) bool { return id == gone })
				got = slices.DeleteFunc(got, func(id string) bool { return id == gone })
			}
			if after = page.Next; after == "" {
				break
			}
		}
		if got = slices.DeleteFunc(got, func(id string) bool { return !slices.Contains(stay, id) }); !slices.Equal(got, stay) {
			t.Errorf("case %d: %d of %d jobs, or in another order", i, len(got), len(stay))
		}
	}
	for _, after := range []string{"yesterday", "/", "soon/x", strings.Repeat("0", 26), "2030-01-01T00:00:00Z", "2030-13-01T00:00:00Z/x"} {
		var invalid *drover.InvalidError
		if _, err := db.client.Jobs(t.Context(), drover.Filter{State: drover.Discarded}, after, 1); !errors.As(err, &invalid) || invalid.Field != "after" {
			t.Errorf("after %q: %v", after, err)
		}
	}
}

// D-2, F-11: Summary lists every group once, with its newest job. A null class or fingerprint forms
// a group of its own.
func TestSummary(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	if groups, err := db.client.Summary(t.Context()); err != nil || len(groups) != 0 {
		t.Errorf("of no job: %v, %v", groups, err)
	}
	put := func(queue, reason, class, fingerprint, at, text string) string {
		return db.put(t, "queue, state, finalized_at, discard_reason, class, fingerprint, errors", fmt.Sprintf(
			`'%s', 'discarded', '2031-01-%s+00', '%s', nullif('%s', ''), nullif('%s', ''), '[{"class": "error", "error": "%s"}, {"class": "operator", "error": "x"}]'`,
			queue, at, reason, class, fingerprint, text))
	}
	var want []string
	for n, group := range [][4]string{
		{"default", "panic", "error", "f1"},
		{"default", "panic", "error", ""},
		{"default", "panic", "", "f1"},
		{"default", "panic", "", ""},
		{"default", "panic", "crash", "f1"},
		{"default", "panic", "error", "f2"},
		{"default", "expired", "error", "f1"},
		{"post", "panic", "error", "f1"},
	} {
		put(group[0], group[1], group[2], group[3], "05", "older")
		newest := put(group[0], group[1], group[2], group[3], "09", fmt.Sprint("newest ", n)) // the next job has the same instant and another id
		if again := put(group[0], group[1], group[2], group[3], "09", fmt.Sprint("newest ", n)); again > newest {
			newest = again
		}
		put(group[0], group[1], group[2], group[3], "01", "oldest")
		want = append(want, fmt.Sprint(group, " 4 2031-01-01 2031-01-09 newest ", n, " ", newest))
	}
	db.put(t, "class, fingerprint", "'error', 'f1'")
	groups, err := db.client.Summary(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, g := range groups {
		got = append(got, fmt.Sprint([4]string{g.Queue, string(g.Reason), string(g.Class), g.Fingerprint}, " ", g.Jobs, " ", g.FirstDiscardedAt.UTC().Format(time.DateOnly), " ",
			g.LastDiscardedAt.UTC().Format(time.DateOnly), " ", g.NewestError, " ", g.NewestJobID))
	}
	slices.Sort(want)
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// inEveryState puts one job in each state, all with the tag, and returns their ids.
func (db *testDB) inEveryState(t *testing.T, tag string) map[drover.State]string {
	t.Helper()
	ids := map[drover.State]string{}
	for state, values := range map[drover.State][2]string{
		drover.Available: {"priority", "1"}, drover.Scheduled: {"state, scheduled_at", "'scheduled', now() + interval '1 h'"}, drover.Retryable: {"state", "'retryable'"},
		drover.Parked: {"state, scheduled_at", "'parked', 'infinity'"}, drover.Running: {"state, claimed_by, attempt, claim_seq", "'running', 's', 2, 3"},
		drover.Completed: {"state, finalized_at", "'completed', now()"}, drover.Discarded: {"state, finalized_at, discard_reason", "'discarded', now(), 'panic'"},
		drover.Cancelled: {"state, finalized_at", "'cancelled', now()"},
	} {
		ids[state] = db.put(t, "tags, "+values[0], "'{"+tag+"}', "+values[1])
	}
	return ids
}

// D-8: Discard works like Cancel: a job that has ended stays as it is, and a running job ends
// immediately.
func TestDiscardByAnOperator(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	for state, id := range db.inEveryState(t, "x") {
		before := value[string](t, db, `select to_jsonb(j)::text from jobs j where id = $1`, id)
		sent := notes(t, db, func() {
			if was, err := db.client.Discard(t.Context(), id, drover.Audit{Why: "bad address"}); err != nil || was != state {
				t.Errorf("Discard of %s = %s, %v", state, was, err)
			}
		})
		if state.Final() {
			if after := value[string](t, db, `select to_jsonb(j)::text from jobs j where id = $1`, id); after != before || len(heard.Of(id)) != 0 {
				t.Errorf("Discard of %s changed it to %s", state, after)
			}
			continue
		}
		j := db.Get(t, id)
		if j.State != drover.Discarded || j.DiscardReason != drover.ReasonOperator || j.FinalizedAt == nil || j.ClaimedBy != "" || j.ErrorsTotal != 0 || len(j.Errors) != 1 ||
			j.Errors[0].Class != "operator" || j.Errors[0].Error != "discarded: bad address" || j.Errors[0].At.IsZero() {
			t.Errorf("%s became %+v", state, j)
		}
		if state == drover.Running { // its supervisor would emit the event; here there is none
			if !slices.Equal(sent, []string{"cancel " + id}) || len(heard.Of(id)) != 0 {
				t.Errorf("%q, %+v for a running job", sent, heard.Of(id))
			}
		} else if e := heard.End(t, id); len(sent) != 0 || e.Name != "discarded" || e.Reason != drover.ReasonOperator || e.Error != "bad address" || heard.Ends(id) != 1 {
			t.Errorf("%q, %+v for a waiting job", sent, heard.Of(id))
		}
		if err := db.client.RedriveJob(t.Context(), id, nil, drover.Audit{}); err != nil {
			t.Errorf("redrive: %v", err)
		}
	}
	for _, id := range []string{"", "x", "00000000000000000000000000"} {
		if _, err := db.client.Discard(t.Context(), id, drover.Audit{}); !errors.Is(err, drover.ErrNotFound) {
			t.Errorf("Discard of %q: %v", id, err)
		}
	}
}

// F-13, D-8: an operator discards a running job, by id or by filter, from this process or from
// another. The handler's context ends, and its return value does not count. One event reports the
// end of the job.
func TestDiscardOfARunningJob(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	elsewhere := db.via(t, drover.Config{}).client
	cases := map[string]func(context.Context, *drover.Job) error{
		"its context's error": func(ctx context.Context, _ *drover.Job) error { return ctx.Err() },
		"nil":                 func(context.Context, *drover.Job) error { return nil },
		"an error":            func(context.Context, *drover.Job) error { return errBoom },
		"Discard":             func(context.Context, *drover.Job) error { return drover.Discard(errBoom) },
		"Cancel":              func(context.Context, *drover.Job) error { return drover.Cancel(errBoom) },
		"CompleteTx":          func(ctx context.Context, job *drover.Job) error { return db.Complete(context.WithoutCancel(ctx), job) },
	}
	sup := db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 4 * len(cases)}}, Workers: harness.EndingCancelled(t, cases)})
	for by, discard := range map[string]func(id string) error{
		"Discard": func(id string) error {
			_, err := db.client.Discard(t.Context(), id, drover.Audit{Why: "no"})
			return err
		},
		"Discard from another process": func(id string) error {
			_, err := elsewhere.Discard(t.Context(), id, drover.Audit{Why: "no"})
			return err
		},
		"DiscardMany": func(id string) error {
			_, err := db.client.DiscardMany(t.Context(), drover.Filter{IDs: []string{id}}, drover.Audit{Why: "no"})
			return err
		},
		"DiscardMany from another process": func(id string) error {
			_, err := elsewhere.DiscardMany(t.Context(), drover.Filter{IDs: []string{id}}, drover.Audit{Why: "no"})
			return err
		},
	} {
		for name := range cases {
			id := db.enqueue(t, dyn{kind: name}, nil)
			heard.Wait(t, id, "started")
			if err := discard(id); err != nil {
				t.Fatal(err)
			}
			end, row := heard.End(t, id), db.EndRow(t, id)
			if end.Name != "discarded" || end.Reason != drover.ReasonOperator || end.Attempt != 1 || end.Duration <= 0 || heard.Ends(id) != 1 {
				t.Errorf("%s, %s: events %+v", by, name, heard.Of(id))
			}
			if row.State != drover.Discarded || *row.Reason != drover.ReasonOperator || row.Total != 0 || len(row.Errors) != 1 || row.Errors[0].Error != "discarded: no" {
				t.Errorf("%s, %s: row %+v", by, name, row)
			}
		}
	}
	eventually(t, func() bool { return sup.Stats() == drover.Stats{} })
}

// F-13: without LISTEN, a supervisor learns from its next heartbeat that an operator discarded its
// job.
func TestDiscardIsHeardOfWithoutListen(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	elsewhere := db.via(t, drover.Config{}).client
	started, cause := make(chan struct{}), make(chan error, 1)
	// The lease is long, because the end of a short one would end the run, too.
	sup := db.run(t, drover.SupervisorConfig{DisableNotify: true, Lease: time.Hour, Queues: []drover.Queue{{}}, Workers: []drover.Worker{
		dynWorker("long", drover.WorkerOpts{}, func(ctx context.Context, _ *drover.Job) error {
			close(started)
			<-ctx.Done()
			cause <- context.Cause(ctx)
			return ctx.Err()
		}),
	}})
	id := db.enqueue(t, dyn{kind: "long"}, nil)
	<-started
	if _, err := elsewhere.Discard(t.Context(), id, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	drover.EngineOf(sup).Keeper.Interrupt() // the next heartbeat comes immediately
	if err := receive(t, cause); !errors.Is(err, drover.ErrCancelled) {
		t.Errorf("cause = %v, want ErrCancelled", err)
	}
}

// D-8: CancelMany, DiscardMany and DeleteMany change the right jobs among jobs of every state. They
// work on more jobs than one batch holds, and with ids that no job has.
func TestVerbsOverMany(t *testing.T) {
	t.Parallel()
	const unknown = "00000000000000000000000000"
	unfinished := []drover.State{drover.Available, drover.Scheduled, drover.Retryable, drover.Parked, drover.Running}
	for name, tc := range map[string]struct {
		do      func(c *drover.Client, f drover.Filter) (drover.BulkResult, error)
		changes []drover.State // the states that change with a filter without a state
		byIDs   []drover.State
		becomes drover.State // the state afterwards; "" if the job is deleted
		entry   string
	}{
		"cancel": {
			func(c *drover.Client, f drover.Filter) (drover.BulkResult, error) {
				return c.CancelMany(t.Context(), f, drover.Audit{Why: "sold out"})
			},
			unfinished, unfinished, drover.Cancelled, "cancelled: sold out",
		},
		"discard": {
			func(c *drover.Client, f drover.Filter) (drover.BulkResult, error) {
				return c.DiscardMany(t.Context(), f, drover.Audit{Why: "sold out"})
			},
			unfinished, unfinished, drover.Discarded, "discarded: sold out",
		},
		"delete": {
			func(c *drover.Client, f drover.Filter) (drover.BulkResult, error) {
				return c.DeleteMany(t.Context(), f, drover.Audit{})
			},
			[]drover.State{drover.Completed, drover.Cancelled},
			[]drover.State{drover.Completed, drover.Cancelled, drover.Discarded},
			"", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var heard harness.EventLog
			db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
			tell := func(filter drover.Filter, ids map[drover.State]string, changes []drover.State) {
				t.Helper()
				before := map[drover.State]string{}
				for state, id := range ids {
					before[state] = value[string](t, db, `select to_jsonb(j)::text from jobs j where id = $1`, id)
				}
				told := heard.Count("", "cancelled") + heard.Count("", "discarded")
				done, err := tc.do(db.client, filter)
				if err != nil || int(done.Changed) != len(changes) {
					t.Fatalf("%+v: %+v, %v, want %d", filter, done, err, len(changes))
				}
				changed := []string{}
				for _, state := range changes {
					changed = append(changed, ids[state])
				}
				if slices.Sort(changed); !slices.Equal(slices.Sorted(slices.Values(done.IDs)), changed) {
					t.Errorf("%+v: ids %q, want %q", filter, done.IDs, changed)
				}
				if filter.IDs != nil && !slices.Equal(done.Missing, []string{unknown}) || filter.IDs == nil && done.Missing != nil {
					t.Errorf("%+v: missing %q", filter, done.Missing)
				}
				for state, id := range ids {
					row := value[*string](t, db, `select (select to_jsonb(j)::text from jobs j where id = $1)`, id)
					switch {
					case !slices.Contains(changes, state):
						if row == nil || *row != before[state] {
							t.Errorf("%+v changed what was %s", filter, state)
						}
					case tc.becomes == "":
						if row != nil {
							t.Errorf("%+v left what was %s", filter, state)
						}
					default:
						j := db.Get(t, id)
						if j.State != tc.becomes || (j.DiscardReason == drover.ReasonOperator) != (tc.becomes == drover.Discarded) || j.FinalizedAt == nil || len(j.Errors) != 1 ||
							j.Errors[0].Class != "operator" || j.Errors[0].Error != tc.entry || j.ErrorsTotal != 0 {
							t.Errorf("%+v made of %s %+v", filter, state, j)
						}
					}
				}
				// One event counts the jobs that were not running. A running job's supervisor
				// reports its end.
				if tc.becomes == "" {
					return
				}
				if events := heard.Of(""); len(events) != told+1 || events[told].Name != string(tc.becomes) || events[told].Count != len(changes)-1 ||
					events[told].Error != "sold out" || (events[told].Reason == drover.ReasonOperator) != (tc.becomes == drover.Discarded) {
					t.Errorf("%+v: events %+v", filter, events)
				}
			}
			tell(drover.Filter{Tags: []string{"a"}}, db.inEveryState(t, "a"), tc.changes)
			ids := db.inEveryState(t, "b")
			filter := drover.Filter{IDs: []string{unknown}}
			for _, id := range ids {
				filter.IDs = append(filter.IDs, id)
			}
			tell(filter, ids, tc.byIDs)

			// The filter matches more jobs than two batches hold.
			state := "state, claimed_by"
			values := "'available', null"
			if name == "delete" {
				state, values = "state, finalized_at", "'completed', now()"
			}
			db.exec(t, `insert into jobs (id, kind, queue, `+state+`) select (select left(drover_ulid(), 10)) || lpad(n::text, 16, '0'), 'letter', case n % 22 when 0 then 'other' else 'q' end, `+values+` from generate_series(1, 2200) n`)
			told := len(heard.Of(""))
			if done, err := tc.do(db.client, drover.Filter{Queue: "q"}); err != nil || done.Changed != 2100 || len(slices.Compact(done.IDs)) != 2100 {
				t.Errorf("2100 jobs: %d, %d ids, %v", done.Changed, len(done.IDs), err)
			}
			sum := 0
			for _, e := range heard.Of("")[told:] {
				sum += e.Count
			}
			if batches := len(heard.Of("")) - told; tc.becomes != "" && (batches != 3 || sum != 2100) {
				t.Errorf("%d events of %d jobs", batches, sum)
			}
			if done, err := tc.do(db.client, drover.Filter{Queue: "q"}); err != nil || done.Changed != 0 {
				t.Errorf("again: %+v, %v", done, err)
			}
			if n := value[int](t, db, `select count(*) from jobs where queue = 'other' and state = any('{available,completed}')`); n != 100 {
				t.Errorf("%d of 100 other jobs are as they were", n)
			}
		})
	}
}

// D-1, D-8: DeleteMany deletes dead letters only if the filter asks for them, and never an
// unfinished job. In SQL, deleting dead letters needs a confirmation.
func TestDeleteManyIsCareful(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newTestDB(t)
	db.inEveryState(t, "x")
	for _, f := range []drover.Filter{{All: true}, {Kind: "letter"}, {Class: "error"}, {State: drover.Completed}} {
		if _, err := db.client.DeleteMany(t.Context(), f, drover.Audit{}); err != nil {
			t.Error(err)
		}
		if n := value[int](t, db, `select count(*) from jobs where state = 'discarded'`); n != 1 {
			t.Fatalf("%+v deleted a dead letter", f)
		}
	}
	for _, state := range []drover.State{drover.Available, drover.Scheduled, drover.Retryable, drover.Running, drover.Parked} {
		if _, err := db.client.DeleteMany(t.Context(), drover.Filter{State: state}, drover.Audit{}); !errors.Is(err, drover.ErrInvalid) {
			t.Errorf("%s: %v", state, err)
		}
	}
	for _, call := range []string{`drover_delete_many('{"state": "discarded"}')`, `drover_delete_many('{"state": "discarded"}', null)`, `drover_delete_many('{"state": "discarded"}', 'yes')`} {
		var server *pgconn.PgError
		if _, err := db.Exec(t.Context(), `select `+call); !errors.As(err, &server) || server.Code != "22023" || !strings.Contains(server.Hint, "confirm") {
			t.Errorf("%s: %v", call, err)
		}
	}
	// Two jobs match the filter. Between them are more other jobs than one batch reads.
	db.exec(t, `
insert into jobs (id, kind, state, finalized_at, discard_reason) select (select left(drover_ulid(), 10)) || lpad(n::text, 16, '0'), 'letter', 'discarded', now() + n * interval '1 ms', case n when 25000 then 'panic' else 'crashed' end
from generate_series(1, 25000) n`)
	if n, err := db.client.Count(t.Context(), drover.Filter{Reason: drover.ReasonPanic}); err != nil || n != 2 {
		t.Errorf("%d to delete, %v", n, err)
	}
	if page, err := db.client.Jobs(t.Context(), drover.Filter{Reason: drover.ReasonPanic}, "", 1); err != nil || len(page.Jobs) != 1 || page.Next == "" {
		t.Errorf("%+v, %v", page, err)
	} else if page, err = db.client.Jobs(t.Context(), drover.Filter{Reason: drover.ReasonPanic}, page.Next, 1); err != nil || len(page.Jobs) != 1 || page.Next != "" {
		t.Errorf("the second page: %+v, %v", page, err)
	}
	if done, err := db.client.DeleteMany(t.Context(), drover.Filter{Reason: drover.ReasonPanic}, drover.Audit{}); err != nil || done.Changed != 2 {
		t.Errorf("by reason: %+v, %v", done, err)
	}
	if done, err := db.client.DeleteMany(t.Context(), drover.Filter{State: drover.Discarded}, drover.Audit{}); err != nil || done.Changed != 24_999 {
		t.Errorf("the others: %+v, %v", done, err)
	}
	if n := value[int](t, db, `select count(*) from jobs`); n != 5 {
		t.Errorf("%d unfinished jobs left", n)
	}
}

// D-8: another transaction holds some rows. The other jobs are changed first, and these rows after
// their release.
func TestVerbsOverManyWaitForLockedRowsLast(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	ids := db.EnqueueJobs(t, 5, nil)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `select from jobs where id = any($1) for update`, []string{ids[1], ids[3]}); err != nil {
		t.Fatal(err)
	}
	var locked []string
	var changed int
	err = db.QueryRow(t.Context(), `select changed, locked from drover_discard_many('{"kind": "job"}', batch => 2, after => $1)`, ids[0]).Scan(&changed, &locked)
	if err != nil || changed != 1 || !slices.Equal(locked, ids[1:2]) {
		t.Errorf("a batch of two behind the first: %d changed, %q locked, %v", changed, locked, err)
	}
	type result struct {
		done drover.BulkResult
		err  error
	}
	ended := make(chan result, 1)
	go func() {
		done, err := db.client.CancelMany(context.WithoutCancel(t.Context()), drover.Filter{Kind: "job"}, drover.Audit{})
		ended <- result{done, err}
	}()
	eventually(t, func() bool { return value[int](t, db, `select count(*) from jobs where state = 'cancelled'`) == 2 })
	// One of the two locked jobs is completed before its release, so it stays as it is.
	if _, err := tx.Exec(t.Context(), `update jobs set state = 'completed', finalized_at = now() where id = $1`, ids[3]); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := receive(t, ended); r.err != nil || r.done.Changed != 3 {
		t.Errorf("%+v", r)
	}
	if states := db.IDsOf(t, `select state from jobs order by id`); !slices.Equal(states, []string{"cancelled", "cancelled", "discarded", "completed", "cancelled"}) {
		t.Errorf("%q", states)
	}
}

// D-8: jobs are cancelled and discarded by filter while others are claimed and settled. Each job
// ends once, in one state, and is reported once.
func TestVerbsOverManyRaceWithRuns(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	var mu sync.Mutex
	cancelled, discarded := 0, 0 // the jobs that were counted in events without a JobID
	count := func(n *int) func(context.Context, drover.Event) {
		return func(_ context.Context, e drover.Event) {
			if e.JobID == "" {
				mu.Lock()
				*n += e.Count
				mu.Unlock()
			}
		}
	}
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks(), {Cancelled: count(&cancelled), Discarded: count(&discarded)}}})
	ids := db.EnqueueJobs(t, 3000, nil)
	l := db.launch(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 50}}})
	one := func(name string) (n int) {
		for _, id := range ids {
			n += heard.Count(id, name)
		}
		return n
	}
	eventually(t, func() bool { return one("completed") > 100 })
	done, err := db.client.CancelMany(t.Context(), drover.Filter{Kind: "job", IDs: ids[:1000]}, drover.Audit{})
	if err != nil {
		t.Fatal(err)
	}
	dead, err := db.client.DiscardMany(t.Context(), drover.Filter{Kind: "job"}, drover.Audit{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return value[int](t, db, `select count(*) from jobs where finalized_at is null`) == 0 })
	l.Stop(t)
	counts := map[drover.State]int{}
	for _, state := range []drover.State{drover.Completed, drover.Cancelled, drover.Discarded} {
		counts[state] = value[int](t, db, `select count(*) from jobs where state = $1`, state)
	}
	if int64(counts[drover.Cancelled]) != done.Changed || int64(counts[drover.Discarded]) != dead.Changed || counts[drover.Completed]+counts[drover.Cancelled]+counts[drover.Discarded] != len(ids) {
		t.Errorf("%v, cancelled %d, discarded %d", counts, done.Changed, dead.Changed)
	}
	if n := one("completed"); n != counts[drover.Completed] {
		t.Errorf("%d reported as completed, %d are", n, counts[drover.Completed])
	}
	// A job that was claimed and not yet started ends without a run. Its supervisor reports its
	// end.
	if n := one("cancelled") + cancelled; n != counts[drover.Cancelled] {
		t.Errorf("%d reported as cancelled, %d are", n, counts[drover.Cancelled])
	}
	if n := one("discarded") + discarded; n != counts[drover.Discarded] {
		t.Errorf("%d reported as discarded, %d are", n, counts[drover.Discarded])
	}
	if one("stale_settle") != 0 {
		t.Error("an operator's verb was taken for a lost lease")
	}
}

// IDs lists the jobs that changed, and Changed counts them. An application's trigger may keep a row
// from changing.
func TestIDsAreOfJobsThatChanged(t *testing.T) {
	t.Parallel()
	for name, verb := range map[string]func(*testDB) (drover.BulkResult, error){
		"delete": func(db *testDB) (drover.BulkResult, error) {
			return db.client.DeleteMany(t.Context(), drover.Filter{Kind: "ended"}, drover.Audit{})
		},
		"cancel": func(db *testDB) (drover.BulkResult, error) {
			return db.client.CancelMany(t.Context(), drover.Filter{Kind: "waits"}, drover.Audit{})
		},
		"discard": func(db *testDB) (drover.BulkResult, error) {
			return db.client.DiscardMany(t.Context(), drover.Filter{Kind: "waits"}, drover.Audit{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newQuietDB(t)
			db.exec(t, `insert into jobs (kind, tags) values ('waits', '{}'), ('waits', '{held}')`)
			db.exec(t, `insert into jobs (kind, tags, state, finalized_at) values ('ended', '{}', 'completed', now()), ('ended', '{held}', 'completed', now())`)
			db.exec(t, `create function hold_back() returns trigger language plpgsql as $$ begin return case when 'held' = any(old.tags) then null when tg_op = 'DELETE' then old else new end; end $$`)
			db.exec(t, `create trigger hold_back before update or delete on jobs for each row execute function hold_back()`)
			got, err := verb(db)
			t.Logf("%+v %v", got, err)
			if int64(len(got.IDs)) != got.Changed {
				t.Errorf("%d changed, and IDs are %q", got.Changed, got.IDs)
			}
		})
	}
}

// blocks waits until another session waits for a lock of a transaction.
func (db *testDB) blocks(t testing.TB, tx pgx.Tx) {
	t.Helper()
	db.waitFor(t, 30*time.Second, `select exists (select from pg_locks where not granted and $1::int = any(pg_blocking_pids(pid)))`, tx.Conn().PgConn().PID())
}

// behind commits a transaction as soon as another session waits for one of its locks.
func (db *testDB) behind(t testing.TB, tx pgx.Tx) {
	t.Helper()
	db.blocks(t, tx)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// begun executes a statement in a transaction that stays open.
func (db *testDB) begun(t testing.TB, sql string, args ...any) pgx.Tx {
	t.Helper()
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	if _, err := tx.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
	return tx
}

// deleting calls DeleteMany in a goroutine.
func (db *testDB) deleting(t testing.TB, f drover.Filter) <-chan drover.BulkResult {
	t.Helper()
	done := make(chan drover.BulkResult, 1)
	go func() {
		r, err := db.client.DeleteMany(t.Context(), f, drover.Audit{})
		if err != nil {
			t.Error(err)
		}
		done <- r
	}()
	return done
}

// A cancelled job comes back and dies while DeleteMany waits for another one. It is a dead letter now, and the filter
// does not name dead letters.
func TestDeleteManySparesWhatDiedMeanwhile(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	first, second, third := db.Finished(t, "cancelled", time.Hour), db.Finished(t, "cancelled", time.Hour), db.Finished(t, "cancelled", time.Hour)
	busy := db.begun(t, `select from jobs where id = any($1) for update`, []string{first, third})
	redrive := db.begun(t, `select drover_redrive($1)`, second)
	done := db.deleting(t, drover.Filter{Kind: "job"})
	db.blocks(t, busy)
	if err := redrive.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.exec(t, `update jobs set state = 'discarded', discard_reason = 'panic', finalized_at = now() where id = $1`, second)
	db.behind(t, busy)
	if r := receive(t, done); r.Changed != 2 || len(r.Refused) > 0 {
		t.Errorf("deleted %+v", r)
	}
	if left := value[string](t, db, `select coalesce(string_agg(id || ' ' || state, ', '), 'nothing') from jobs`); left != second+" discarded" {
		t.Errorf("left: %s", left)
	}
}

// A verb waits for a dead letter that is locked, however many others lie before it.
func TestVerbsOverManyReachALockedDeadLetter(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	const buried = `insert into jobs (kind, state, finalized_at, discard_reason) `
	db.exec(t, buried+`select 'other', 'discarded', now() - interval '1 hour', 'panic' from generate_series(1, 10001)`)
	id := value[string](t, db, buried+`values ('job', 'discarded', now(), 'panic') returning id`)
	busy := db.begun(t, `select from jobs where id = $1 for update`, id)
	done := db.deleting(t, drover.Filter{Kind: "job", State: drover.Discarded})
	db.behind(t, busy)
	if r := receive(t, done); r.Changed != 1 || value[int](t, db, `select count(*) from jobs where id = $1`, id) > 0 {
		t.Errorf("deleted %+v", r)
	}
}
