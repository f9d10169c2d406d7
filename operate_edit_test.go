package drover_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/pg"
)

const jobRow = `select to_jsonb(j)::text from jobs j where id = $1`

// Each field of an edit changes its own columns and no others. The history keeps the values from
// before.
func TestEditOfEachField(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	const later = "'scheduled', '2031-01-01 00:00:00Z'"
	for name, tc := range map[string]struct {
		columns, values string
		edit            drover.JobEdit
		changes         []string // the columns that change, besides errors
		holds           string
		entry           string
	}{
		"run now": {
			"state, scheduled_at", later,
			drover.JobEdit{RunNow: true},
			[]string{"scheduled_at", "state"},
			`state = 'available' and scheduled_at between now() - interval '1 min' and now()`,
			`edited (due now, was 2031-01-01T00:00:00Z): w`,
		},
		"run a retry now": {
			"state, scheduled_at, errors_total, attempt", "'retryable', '2031-01-01 00:00:00Z', 3, 3",
			drover.JobEdit{RunNow: true},
			[]string{"scheduled_at"},
			`state = 'retryable' and attempt = 3 and scheduled_at <= now()`, `edited (due now, was 2031-01-01T00:00:00Z): w`,
		},
		"scheduled at": {
			"priority", "5",
			drover.JobEdit{ScheduledAt: time.Date(2030, 5, 6, 7, 8, 9, 0, time.FixedZone("", 3600))},
			[]string{"scheduled_at", "state"},
			`state = 'scheduled' and scheduled_at = '2030-05-06 06:08:09Z'`, "edited (due 2030-05-06T06:08:09Z, was ",
		},
		"scheduled in the past": {
			"state, scheduled_at", later,
			drover.JobEdit{ScheduledAt: time.Unix(1, 0)},
			[]string{"scheduled_at", "state"},
			`state = 'available' and scheduled_at > now() - interval '1 min'`, "edited (due now, was 2031-01-01T00:00:00Z): w",
		},
		"delay": {
			"state, scheduled_at", later,
			drover.JobEdit{Delay: time.Hour},
			[]string{"scheduled_at"},
			`state = 'scheduled' and scheduled_at between now() + interval '59 min' and now() + interval '1 h'`, "edited (due ",
		},
		"priority": {
			"state, scheduled_at", later,
			drover.JobEdit{Priority: 1},
			[]string{"lane", "priority"},
			`priority = 1 and lane = 1`, `edited (priority 1, was 5): w`,
		},
		"queue": {
			"state, scheduled_at", later,
			drover.JobEdit{Queue: "slow"},
			[]string{"queue"},
			`queue = 'slow'`, `edited (queue slow, was default): w`,
		},
		"max attempts": {
			"max_attempts, state, scheduled_at", "3, " + later,
			drover.JobEdit{MaxAttempts: 7},
			[]string{"max_attempts"},
			`max_attempts = 7`, `edited (max_attempts 7, was 3): w`,
		},
		"max attempts of its worker": {
			"state, scheduled_at", later,
			drover.JobEdit{MaxAttempts: 7},
			[]string{"max_attempts"},
			`max_attempts = 7`, `edited (max_attempts 7, was its worker's): w`,
		},
		"retry": {
			"state, scheduled_at", later,
			drover.JobEdit{Retry: drover.Every(time.Minute)},
			[]string{"retry"},
			`retry->>'type' = 'constant' and retry->>'delay' = '1m'`, `edited (retry): w`,
		},
		"args": {
			"args, state, scheduled_at", `'{"to": "ann", "copies": 2, "note": {"a": 1}}', ` + later,
			drover.JobEdit{ArgsPatch: json.RawMessage(`{"to": "bob", "copies": null, "note": {"b": 2}}`)},
			[]string{"args"},
			`args = '{"to": "bob", "note": {"a": 1, "b": 2}}'`, `edited (args copies note to): w`,
		},
		"all at once": {
			"state, scheduled_at", later,
			drover.JobEdit{RunNow: true, Priority: 9, Queue: "slow", MaxAttempts: 1, ArgsPatch: json.RawMessage(`{"to": "bob"}`)},
			[]string{"args", "lane", "max_attempts", "priority", "queue", "scheduled_at", "state"},
			`state = 'available' and queue = 'slow' and priority = 9`,
			`edited (due now, was 2031-01-01T00:00:00Z; priority 9, was 5; queue slow, was default; max_attempts 1, was its worker's; args to): w`,
		},
	} {
		id := db.put(t, tc.columns, tc.values)
		db.exec(t, `update jobs set errors = '[{"class": "error", "error": "no", "attempt": 1}]' where id = $1`, id)
		before := value[string](t, db, jobRow, id)
		if _, err := db.client.Edit(t.Context(), id, tc.edit, drover.Audit{By: "ann", Why: "w"}); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		changed := value[[]string](t, db, `select coalesce(array_agg(n.key order by n.key), '{}') from jobs j, jsonb_each(to_jsonb(j)) n
			where j.id = $1 and n.key <> 'errors' and n.value <> $2::jsonb->n.key`, id, before)
		if !slices.Equal(changed, tc.changes) {
			t.Errorf("%s: changed %q, want %q", name, changed, tc.changes)
		}
		if !value[bool](t, db, `select `+tc.holds+` from jobs where id = $1`, id) {
			t.Errorf("%s: %s", name, value[string](t, db, jobRow, id))
		}
		if j := db.Get(t, id); len(j.Errors) != 2 || j.Errors[0].Error != "no" || j.Errors[1].Class != drover.ClassOperator || j.Errors[1].By != "ann" || !strings.HasPrefix(j.Errors[1].Error, tc.entry) {
			t.Errorf("%s: history %+v", name, j.Errors)
		}
	}
}

// An edit to the values that a job already has changes nothing, and adds no entry to its history.
func TestEditThatChangesNothing(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	id := db.put(t, "priority, queue, max_attempts, retry, args, scheduled_at", `2, 'q', 3, '{"type": "constant", "delay": "1m", "jitter": "none"}', '{"to": "ann"}', now() - interval '1 min'`)
	before := value[string](t, db, jobRow, id)
	for i, e := range []drover.JobEdit{
		{RunNow: true},
		{ScheduledAt: time.Unix(1, 0)},
		{Priority: 2, Queue: "q", MaxAttempts: 3, Retry: drover.Every(time.Minute), ArgsPatch: json.RawMessage(`{"to": "ann", "x": null}`)},
	} {
		if changed, err := db.client.Edit(t.Context(), id, e, drover.Audit{Why: "w"}); changed || err != nil {
			t.Errorf("%d: %t, %v", i, changed, err)
		}
		if done, err := db.client.EditMany(t.Context(), drover.Filter{All: true}, e, drover.Audit{Why: "w"}); done.Changed != 0 || err != nil {
			t.Errorf("%d: %+v, %v", i, done, err)
		}
	}
	if after := value[string](t, db, jobRow, id); after != before {
		t.Errorf("%s\nbecame\n%s", before, after)
	}
}

// Edit and EditMany change waiting jobs. A job that runs or has ended stays as it is, and Edit
// returns its state in the error.
func TestEditByState(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	ctx, by := t.Context(), drover.Audit{By: "ann", Why: "w"}
	waits := []drover.State{drover.Available, drover.Scheduled, drover.Retryable, drover.Parked}
	for state, id := range db.inEveryState(t, "x") {
		before := value[string](t, db, jobRow, id)
		changed, err := db.client.Edit(ctx, id, drover.JobEdit{Priority: 8}, by)
		if slices.Contains(waits, state) {
			if err != nil || !changed || value[string](t, db, `select state from jobs where id = $1 and priority = 8`, id) != string(state) {
				t.Errorf("%s: %t, %v", state, changed, err)
			}
		} else if changed || !errors.Is(err, drover.ErrState) || !strings.Contains(err.Error(), string(state)) || value[string](t, db, jobRow, id) != before {
			t.Errorf("%s: %t, %v", state, changed, err)
		}
	}
	done, err := db.client.EditMany(ctx, drover.Filter{Tags: []string{"x"}}, drover.JobEdit{RunNow: true, Priority: 7}, by)
	if err != nil || done.Changed != 4 || len(done.IDs) != 4 {
		t.Errorf("by filter: %+v, %v", done, err)
	}
	other := value[string](t, db, `update jobs set priority = 3 where id = (select max(id) from jobs where priority = 7) returning id`)
	if done, err := db.client.EditMany(ctx, drover.Filter{Tags: []string{"x"}}, drover.JobEdit{Priority: 7}, by); err != nil || !slices.Equal(done.IDs, []string{other}) {
		t.Errorf("only %s was different: %+v, %v", other, done, err)
	}
	if n := value[int](t, db, `select count(*) from jobs where priority = 7 and state in ('available', 'retryable') and scheduled_at <= now()`); n != 4 {
		t.Errorf("%d jobs are due now", n)
	}
	for _, id := range []string{"", "x", "00000000000000000000000000"} {
		if _, err := db.client.Edit(ctx, id, drover.JobEdit{RunNow: true}, by); !errors.Is(err, drover.ErrNotFound) {
			t.Errorf("Edit of %q: %v", id, err)
		}
		if _, err := db.client.Rerun(ctx, id, nil, by); !errors.Is(err, drover.ErrNotFound) {
			t.Errorf("Rerun of %q: %v", id, err)
		}
	}
	if done, err := db.client.EditMany(ctx, drover.Filter{IDs: []string{"00000000000000000000000000"}}, drover.JobEdit{RunNow: true}, by); len(done.Missing) != 1 || err != nil {
		t.Errorf("an unknown id: %+v, %v", done, err)
	}
}

// invalid edits are refused in Go and in SQL, before anything is written. The error names the
// field.
func TestEditIsRefused(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	id := db.put(t, "args", `'{"to": "ann"}'`)
	before := value[string](t, db, jobRow, id)
	at := time.Now().Add(time.Hour)
	for want, e := range map[string]drover.JobEdit{
		"JobEdit": {}, "ScheduledAt": {RunNow: true, ScheduledAt: at}, "Delay": {ScheduledAt: at, Delay: time.Second}, "Delay ": {Delay: -time.Second},
		"ScheduledAt ": {ScheduledAt: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}, "Priority": {Priority: 10}, "Priority ": {Priority: -1},
		"Queue": {Queue: " x"}, "MaxAttempts": {MaxAttempts: -1}, "Retry.Delay": {Retry: drover.Constant{Delay: -1}},
		"ArgsPatch": {ArgsPatch: json.RawMessage(`[1]`)}, "ArgsPatch ": {ArgsPatch: json.RawMessage{}},
	} {
		want := strings.TrimSpace(want)
		if _, err := db.client.Edit(t.Context(), id, e, drover.Audit{}); !slices.Equal(drover.Fields(t, unwrapped(err)), []string{want}) {
			t.Errorf("Edit with %+v: %v, want field %s", e, err, want)
		}
		if _, err := db.client.EditMany(t.Context(), drover.Filter{All: true}, e, drover.Audit{}); !slices.Equal(drover.Fields(t, unwrapped(err)), []string{want}) {
			t.Errorf("EditMany with %+v: %v, want field %s", e, err, want)
		}
	}
	if _, err := db.client.EditMany(t.Context(), drover.Filter{}, drover.JobEdit{Priority: 11}, drover.Audit{By: "\x00"}); !slices.Equal(drover.Fields(t, err), []string{"Priority", "Filter", "By"}) {
		t.Errorf("all mistakes: %v", err)
	}
	for edit, want := range map[string]string{
		`[]`: "edit", `{}`: "edit", `{"run_now": false, "queue": null}`: "edit", `{"prioritaet": 1}`: "edit: has no prioritaet", `{"run_now": 1}`: "run_now",
		`{"run_now": true, "delay": "1 s"}`: "run_now", `{"scheduled_at": "2030-01-01", "delay": "1 s"}`: "delay", `{"delay": "-1 s"}`: "delay",
		`{"priority": 0}`: "priority", `{"queue": ""}`: "queue", `{"max_attempts": 0}`: "max_attempts", `{"retry": {"type": "x"}}`: "retry",
		`{"args_patch": [1]}`: "args_patch", `{"priority": "high"}`: "priority: ", `{"max_attempts": 1.5}`: "max_attempts: ", `{"delay": "soon"}`: "delay: ",
		`{"scheduled_at": "2030-13-01"}`: "scheduled_at: ", `{"priority": false, "queue": "x"}`: "priority: ",
	} {
		for _, call := range []string{`select drover_edit($2, $1)`, `select drover_edit_many(jsonb_build_object('ids', jsonb_build_array($2::text)), $1)`} {
			if _, err := db.Exec(t.Context(), call, edit, id); pg.SQLState(err) != "22023" || !strings.Contains(err.Error(), "drover: "+want) {
				t.Errorf("%s with %s: %v", call, edit, err)
			}
		}
	}
	if after := value[string](t, db, jobRow, id); after != before {
		t.Errorf("it is changed: %s", after)
	}
}

// an edit that is invalid for its job is refused by Edit and EditMany. The job stays as it is.
func TestEditThatDoesNotFitTheJob(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newTestDB(t)
	for name, tc := range map[string]struct {
		columns, values string
		edit            drover.JobEdit
		want            error
	}{
		"expires before":       {"state, scheduled_at, expires_at", "'scheduled', now() + interval '1 h', now() + interval '2 h'", drover.JobEdit{Delay: 3 * time.Hour}, drover.ErrState},
		"has expired":          {"state, scheduled_at, expires_at", "'scheduled', now() + interval '1 h', now() - interval '1 s'", drover.JobEdit{RunNow: true}, drover.ErrState},
		"args are no object":   {"args", "'[1]'", drover.JobEdit{ArgsPatch: json.RawMessage(`{"to": "x"}`)}, drover.ErrInvalid},
		"args beyond the size": {"args", `jsonb_build_object('x', repeat('x', 25165000))`, drover.JobEdit{ArgsPatch: json.RawMessage(`{"y": "` + strings.Repeat("y", 2000) + `"}`)}, nil},
	} {
		id := db.put(t, tc.columns, tc.values)
		before := value[string](t, db, `select md5(j::text) from jobs j where id = $1`, id)
		if _, err := db.client.Edit(t.Context(), id, tc.edit, drover.Audit{}); err == nil || tc.want != nil && !errors.Is(err, tc.want) {
			t.Errorf("%s: %.200v", name, err)
		}
		done, err := db.client.EditMany(t.Context(), drover.Filter{IDs: []string{id}}, tc.edit, drover.Audit{})
		if err != nil || !slices.Equal(refusedIDs(done), []string{id}) {
			t.Errorf("%s by filter: %.200v, %v", name, done, err)
		}
		if after := value[string](t, db, `select md5(j::text) from jobs j where id = $1`, id); after != before {
			t.Errorf("%s: it is changed", name)
		}
	}
}

// unwrapped returns the InvalidError in err, or the error that joins several of them.
func unwrapped(err error) error {
	var invalid *drover.InvalidError
	if _, joined := err.(interface{ Unwrap() []error }); !joined && errors.As(err, &invalid) {
		return invalid
	}
	return err
}

// A rerun is a new job with the settings of the old one. Each of the two names the other.
func TestRerun(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	id := db.put(t, `queue, args, priority, max_attempts, retry, timeout_ms, expires_at, retry_until, tags, metadata, concurrency_key, state, finalized_at, attempt, claim_seq, errors_total,
		errors, created_at, crashes, redrives, snoozes`, `'q', '{"to": "ann"}', 3, 4, '{"type": "constant", "delay": "1m"}', 5000, '2031-01-01', now() - interval '1 h' + interval '10 min',
		'{vip}', '{"trace": "x", "drover:follow_up": 1}', 'k', 'completed', now(), 2, 2, 1, '[{"class": "error", "error": "no"}]', now() - interval '1 h', 1, 1, 1`)
	receipt, err := db.client.Rerun(t.Context(), id, nil, drover.Audit{By: "ann", Why: "the file was lost"})
	if err != nil || receipt != (drover.Receipt{ID: receipt.ID}) || receipt.ID == id {
		t.Fatalf("%+v, %v", receipt, err)
	}
	differ := value[[]string](t, db, `select array_agg(n.key order by n.key) from jobs j, jobs o, jsonb_each(to_jsonb(j)) n where j.id = $1 and o.id = $2 and n.value <> to_jsonb(o)->n.key`, receipt.ID, id)
	if want := strings.Fields("attempt claim_seq crashes created_at errors errors_total finalized_at id lane redrives retry_until scheduled_at snoozes state"); !slices.Equal(differ, want) {
		t.Errorf("they differ in %q", differ)
	}
	if !value[bool](t, db, `select state = 'available' and attempt = 0 and errors_total = 0 and lane = 3 and scheduled_at <= now()
		and abs(extract(epoch from retry_until - now() - interval '10 min')) < 60 from jobs where id = $1`, receipt.ID) {
		t.Errorf("the new job: %s", value[string](t, db, jobRow, receipt.ID))
	}
	made, old := db.Get(t, receipt.ID), db.Get(t, id)
	if e := made.Errors; len(e) != 1 || e[0].Class != drover.ClassOperator || e[0].By != "ann" || e[0].Job != id || e[0].Error != "rerun of "+id+": the file was lost" {
		t.Errorf("the new job's history: %+v", e)
	}
	if e := old.Errors; old.State != drover.Completed || len(e) != 2 || e[1].Class != drover.ClassOperator || e[1].By != "ann" || e[1].Job != made.ID || e[1].Error != "rerun as "+made.ID+": the file was lost" {
		t.Errorf("the old job's history: %+v", e)
	}
	if e := heard.Of(made.ID); len(e) != 1 || e[0].Name != "enqueued" || e[0].Queue != "q" || e[0].Kind != "letter" {
		t.Errorf("events %+v", e)
	}
	again, err := db.client.Rerun(t.Context(), id, nil, drover.Audit{})
	if err != nil || again.ID == made.ID {
		t.Errorf("a second rerun: %+v, %v", again, err)
	}
	period := db.put(t, "state, finalized_at, unique_key, unique_scope, unique_until", "'completed', now(), 'other key', 'period', now() + interval '1 h'")
	if receipt, err = db.client.Rerun(t.Context(), period, nil, drover.Audit{}); err != nil || !value[bool](t, db, `select num_nonnulls(unique_key, unique_scope, unique_until) = 0 from jobs where id = $1`, receipt.ID) {
		t.Errorf("in its period: %+v, %v", receipt, err)
	}
	unique := db.put(t, "state, finalized_at, unique_key, unique_scope, unique_until", "'completed', now(), 'a key', 'ended', 'infinity'")
	if receipt, err = db.client.Rerun(t.Context(), unique, nil, drover.Audit{}); err != nil || db.Get(t, receipt.ID).UniqueKey != "a key" {
		t.Errorf("of a unique job: %+v, %v", receipt, err)
	}
	if _, err := db.client.Rerun(t.Context(), unique, nil, drover.Audit{}); !errors.Is(err, drover.ErrState) || !strings.Contains(err.Error(), receipt.ID) {
		t.Errorf("while the new job has its unique key: %v", err)
	}
	expired := db.put(t, "state, finalized_at, expires_at", "'completed', now(), now() - interval '1 s'")
	if _, err := db.client.Rerun(t.Context(), expired, nil, drover.Audit{}); !errors.Is(err, drover.ErrState) || !strings.Contains(err.Error(), "expired") {
		t.Errorf("expired: %v", err)
	}
	for state, id := range db.inEveryState(t, "x") {
		if _, err := db.client.Rerun(t.Context(), id, nil, drover.Audit{}); (err == nil) != (state == drover.Completed) || err != nil && !errors.Is(err, drover.ErrState) {
			t.Errorf("%s: %v", state, err)
		}
	}
}

// RerunMany reruns the completed jobs of a filter at the plan's rate, in several batches. Each job
// is rerun once, even if an earlier call was interrupted or the call is repeated.
func TestRerunMany(t *testing.T) {
	t.Parallel()
	slow(t)
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	ctx, by := t.Context(), drover.Audit{By: "ann", Why: "blank labels"}
	labels := drover.Filter{Kind: "label"}
	db.exec(t, `insert into jobs (kind, queue, args, state, finalized_at) select 'label', 'q' || n % 2, jsonb_build_object('n', n), 'completed', now() from generate_series(1, 1200) n`)
	db.exec(t, `insert into jobs (kind) values ('label')`)
	db.Finished(t, "completed", time.Hour) // a job of another kind
	rows := func() int { return value[int](t, db, `select count(*) from jobs`) }
	before := rows()
	if would, err := db.client.RerunMany(ctx, labels, drover.RerunPlan{DryRun: true}, drover.Audit{}); err != nil || would.Changed != 1200 || would.IDs != nil || rows() != before {
		t.Fatalf("a dry run: %d changed, %d rows, %v", would.Changed, rows(), err)
	}
	// An earlier rerun was interrupted after its first batch.
	db.exec(t, `select drover_rerun_many('{"kind": "label"}', batch => 100)`)
	old := value[[]string](t, db, `select array_agg(id) from jobs where errors->0->>'error' like 'rerun of%'`)
	at := value[time.Time](t, db, `select clock_timestamp()`)
	done, err := db.client.RerunMany(ctx, labels, drover.RerunPlan{Rate: 100}, by)
	if err != nil || done.Changed != 1100 || len(done.IDs) != 1100 || done.Refused != nil {
		t.Fatalf("%d changed, %d ids, %v, refused %+v", done.Changed, len(done.IDs), err, done.Refused)
	}
	if n := value[int](t, db, `select count(distinct args) from jobs where id = any($1)`, append(old, done.IDs...)); n != 1200 {
		t.Errorf("%d different jobs", n)
	}
	first, last := value[time.Time](t, db, `select min(scheduled_at) from jobs where id = any($1)`, done.IDs), value[time.Time](t, db, `select max(scheduled_at) from jobs where id = any($1)`, done.IDs)
	if first.Before(at) || last.Sub(at) < 10990*time.Millisecond {
		t.Errorf("1,100 jobs at 100 a second are due from %v to %v after the call", first.Sub(at), last.Sub(at))
	}
	if n := value[int](t, db, `select max(n) from (select count(*) n from jobs where id = any($1) and scheduled_at > $2::timestamptz + interval '2 s' group by floor(extract(epoch from scheduled_at))) s`, done.IDs, at); n > 101 {
		t.Errorf("%d jobs are due within one second", n)
	}
	if n := value[int](t, db, `select count(*) from jobs j join jobs o on o.id = j.errors->0->>'job' where j.id = any($1) and j.state in ('scheduled', 'available') and (j.state = 'available') = (j.scheduled_at <= j.created_at)
		and (j.kind, j.queue, j.args) = (o.kind, o.queue, o.args) and j.errors->0->>'by' = 'ann' and o.errors->-1->>'job' = j.id and o.errors->-1->>'error' = 'rerun as ' || j.id || ': blank labels'`, done.IDs); n != 1100 {
		t.Errorf("%d of the new jobs are like their old ones", n)
	}
	if slices.ContainsFunc(done.IDs, func(id string) bool { return heard.Count(id, "enqueued") != 1 }) {
		t.Error("a job has not one event")
	}
	if e := heard.Of(done.IDs[0]); len(e) != 1 || e[0].Kind != "label" || e[0].Queue != value[string](t, db, `select queue from jobs where id = $1`, done.IDs[0]) || e[0].By != "ann" {
		t.Errorf("events of the first: %+v", e)
	}
	db.exec(t, `update jobs set state = 'completed', finalized_at = now() where kind = 'label' and finalized_at is null`)
	if again, err := db.client.RerunMany(ctx, labels, drover.RerunPlan{}, by); err != nil || again.Changed != 1 { // the job that was available
		t.Errorf("once more: %+v, %v", again, err)
	}
	twice := drover.Filter{IDs: done.IDs[:2]}
	if again, err := db.client.RerunMany(ctx, twice, drover.RerunPlan{}, by); err != nil || again.Changed != 2 {
		t.Errorf("reruns that are named: %+v, %v", again, err)
	}
	if again, err := db.client.RerunMany(ctx, twice, drover.RerunPlan{}, by); err != nil || again.Changed != 0 {
		t.Errorf("reruns that are named twice: %+v, %v", again, err)
	}
}

// A walk that is slower than its rate lets no jobs catch up together, neither in a batch nor in the next one.
func TestRerunManyAfterAStall(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.exec(t, `insert into jobs (kind, args, state, finalized_at) select 'label', jsonb_build_object('n', n), 'completed', now() from generate_series(1, 60) n`)
	db.exec(t, `create function stall() returns trigger language plpgsql as $$ begin perform pg_sleep(0.3); return new; end $$;
create trigger stall before insert on jobs for each row when ((new.args->>'n')::int in (10, 40)) execute function stall()`)
	var made []string
	after, starts := new(string), (*time.Time)(nil)
	for after != nil {
		var ids []string
		row := db.QueryRow(t.Context(), `select ids, last, next from drover_rerun_many('{"kind": "label"}', rate => 200, batch => 20, after => $1, starts => $2)`, *after, starts)
		if err := row.Scan(&ids, &after, &starts); err != nil {
			t.Fatal(err)
		}
		made = append(made, ids...)
	}
	if len(made) != 60 {
		t.Fatalf("%d jobs were rerun", len(made))
	}
	if gap := value[float64](t, db, `select min(gap) from (select extract(epoch from scheduled_at - lag(scheduled_at) over (order by scheduled_at)) * 1000 as gap from jobs where id = any($1)) g`, made); gap < 4.99 {
		t.Errorf("two jobs are due %v ms one after the other, at 200 a second", gap)
	}
}

// Two people rerun the same jobs together. Each job is rerun once.
func TestTwoRerunTheSame(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into jobs (kind, state, finalized_at) select 'label', 'completed', now() from generate_series(1, 300) n`)
	ends := make(chan drover.BulkResult, 4)
	for range cap(ends) {
		go func() {
			done, err := db.client.RerunMany(context.WithoutCancel(t.Context()), drover.Filter{Kind: "label"}, drover.RerunPlan{}, drover.Audit{})
			if err != nil {
				t.Error(err)
			}
			ends <- done
		}()
	}
	var sum int64
	for range cap(ends) {
		sum += receive(t, ends).Changed
	}
	if n := value[int](t, db, `select count(*) from jobs where state <> 'completed'`); n != 300 || sum != 300 {
		t.Errorf("300 jobs became %d; the calls say %d", n, sum)
	}
}

// A job that cannot be rerun is refused with the reason, and the others are rerun. An invalid plan
// changes nothing.
func TestRerunManyRefuses(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	ctx := t.Context()
	good := db.put(t, "state, finalized_at", "'completed', now()")
	expired := db.put(t, "state, finalized_at, expires_at", "'completed', now(), now() - interval '1 s'")
	late := db.put(t, "state, finalized_at, expires_at", "'completed', now(), now() + interval '100 s'") // its rerun would be the third, due in 2,000 s
	unique := db.put(t, "state, finalized_at, unique_key, unique_scope, unique_until", "'completed', now(), 'a key', 'ended', 'infinity'")
	owner, err := db.client.Rerun(ctx, unique, nil, drover.Audit{})
	if err != nil {
		t.Fatal(err)
	}
	db.exec(t, `update jobs set errors = '[]' where id = $1`, unique)
	done, err := db.client.RerunMany(ctx, drover.Filter{Kind: "letter"}, drover.RerunPlan{Rate: 0.001}, drover.Audit{})
	if err != nil || done.Changed != 1 || len(done.Refused) != 3 {
		t.Fatalf("%+v, %v", done, err)
	}
	why := map[string]string{expired: "expired at", late: "expires at", unique: owner.ID + " has its unique key"}
	for _, r := range done.Refused {
		if !strings.Contains(r.Error, why[r.ID]) || why[r.ID] == "" {
			t.Errorf("%+v", r)
		}
	}
	if db.Get(t, good).Errors[0].Job != done.IDs[0] {
		t.Errorf("%+v", db.Get(t, good).Errors)
	}
	before := value[string](t, db, `select string_agg(to_jsonb(j)::text, ' ' order by id) from jobs j`)
	for field, call := range map[string]func() (drover.BulkResult, error){
		"Filter": func() (drover.BulkResult, error) {
			return db.client.RerunMany(ctx, drover.Filter{}, drover.RerunPlan{}, drover.Audit{})
		},
		"Rate": func() (drover.BulkResult, error) {
			return db.client.RerunMany(ctx, drover.Filter{All: true}, drover.RerunPlan{Rate: math.NaN()}, drover.Audit{})
		},
		"Rate ": func() (drover.BulkResult, error) {
			return db.client.RerunMany(ctx, drover.Filter{All: true}, drover.RerunPlan{Rate: 5001}, drover.Audit{})
		},
		"Filter ": func() (drover.BulkResult, error) {
			return db.client.RerunMany(ctx, drover.Filter{State: drover.Cancelled}, drover.RerunPlan{}, drover.Audit{})
		},
		"Filter  ": func() (drover.BulkResult, error) {
			return db.client.RerunMany(ctx, drover.Filter{State: drover.Cancelled}, drover.RerunPlan{DryRun: true}, drover.Audit{})
		},
	} {
		if done, err := call(); done.Changed != 0 || !slices.Equal(drover.Fields(t, unwrapped(err)), []string{strings.TrimSpace(field)}) {
			t.Errorf("%s: %+v, %v", field, done, err)
		}
	}
	for _, rate := range []string{"0", "null", "'NaN'", "5001"} {
		if _, err := db.Exec(ctx, `select drover_rerun_many('{"all": true}', rate => `+rate+`)`); pg.SQLState(err) != "22023" {
			t.Errorf("rate %s: %v", rate, err)
		}
	}
	if after := value[string](t, db, `select string_agg(to_jsonb(j)::text, ' ' order by id) from jobs j`); after != before {
		t.Errorf("%s\nbecame\n%s", before, after)
	}
}

// RunPeriodic accepts an id for the new job, as Rerun does. A second call with that id makes no
// job.
func TestRunPeriodicWithAnID(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	db.SetPeriodic(t, drover.Periodic{Name: "a", Schedule: "@yearly", Args: job{}})
	opts := &drover.RunOpts{ID: ulid.Make().String()}
	id, err := db.client.RunPeriodic(t.Context(), "a", opts, drover.Audit{})
	if err != nil || id != opts.ID {
		t.Fatalf("%s, %v", id, err)
	}
	for range 2 { // first the id is the last job of its schedule, then an older one
		if _, err := db.client.RunPeriodic(t.Context(), "a", opts, drover.Audit{}); !errors.Is(err, drover.ErrState) || !strings.Contains(err.Error(), "before") {
			t.Errorf("again: %v", err)
		}
		if _, err := db.client.RunPeriodic(t.Context(), "a", nil, drover.Audit{}); err != nil {
			t.Fatal(err)
		}
	}
	other := &drover.RunOpts{ID: db.put(t, "queue", "'other'")}
	if _, err := db.client.RunPeriodic(t.Context(), "a", other, drover.Audit{}); !errors.Is(err, drover.ErrIDConflict) {
		t.Errorf("the id of another job: %v", err)
	}
	if _, err := db.client.RunPeriodic(t.Context(), "a", &drover.RunOpts{ID: "x"}, drover.Audit{}); !slices.Equal(drover.Fields(t, unwrapped(err)), []string{"ID"}) {
		t.Errorf("no id: %v", err)
	}
	if n := value[int](t, db, `select jobs from drover_periodic`); n != 3 {
		t.Errorf("the schedule counts %d jobs", n)
	}
}

// A call that is repeated with the same id makes one job. An id that another job has is refused.
func TestRerunWithAnID(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	const done = "'completed', now()"
	id, other := db.put(t, "state, finalized_at", done), db.put(t, "state, finalized_at", done)
	opts := &drover.RunOpts{ID: strings.ToLower(ulid.Make().String())}
	receipt, err := db.client.Rerun(t.Context(), id, opts, drover.Audit{})
	if err != nil || receipt.ID != strings.ToUpper(opts.ID) {
		t.Fatalf("%+v, %v", receipt, err)
	}
	for range 11 { // many later entries in the history must not hide the first rerun
		if _, err := db.client.Rerun(t.Context(), id, nil, drover.Audit{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.client.Rerun(t.Context(), id, opts, drover.Audit{}); !errors.Is(err, drover.ErrState) || !strings.Contains(err.Error(), "before") {
		t.Errorf("again: %v", err)
	}
	if _, err := db.client.Rerun(t.Context(), other, opts, drover.Audit{}); !errors.Is(err, drover.ErrIDConflict) {
		t.Errorf("the id of another job: %v", err)
	}
	if _, err := db.client.Rerun(t.Context(), id, &drover.RunOpts{ID: "x"}, drover.Audit{}); !slices.Equal(drover.Fields(t, unwrapped(err)), []string{"ID"}) {
		t.Errorf("no id: %v", err)
	}
	for _, bad := range []string{"", "x", strings.Repeat("é", 13)} { // the error names new_id and leaves out the row, as in other functions
		if _, err := db.Exec(t.Context(), `select drover_rerun($1, new_id => $2)`, id, bad); pg.SQLState(err) != "22023" || !strings.HasPrefix(pg.Refusal(err), "drover: new_id: ") {
			t.Errorf("new_id %q: %v", bad, err)
		}
	}
	if n := value[int](t, db, `select count(*) from jobs`); n != 2+1+11 {
		t.Errorf("%d jobs", n)
	}
}

// SECURITY.md: drover keeps 1,000 characters of a reason that was given in SQL.
func TestRerunCutsALongReason(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	id := db.put(t, "state, finalized_at", "'completed', now()")
	db.exec(t, `select drover_rerun($1, why => repeat('x', 100000))`, id)
	if n := value[int](t, db, `select max(length(errors::text)) from jobs`); n > 1500 {
		t.Errorf("%d characters of errors", n)
	}
	if n := value[int](t, db, `select count(*) from jobs where strpos(errors::text, repeat('x', 1000)) > 0`); n != 2 {
		t.Errorf("%d jobs have the reason", n)
	}
}

// ParseRetryStrategy reads the JSON that the column retry holds.
func TestParseRetryStrategy(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]drover.RetryStrategy{
		`{"type": "constant", "delay": "1m"}`:           drover.Constant{Delay: time.Minute},
		`{"type": "custom", "name": "mine"}`:            drover.Custom{Name: "mine"},
		`{"type": "linear", "step": "2s", "max": "1h"}`: drover.Linear{Step: 2 * time.Second, Max: time.Hour},
	} {
		if got, err := drover.ParseRetryStrategy(text); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{``, `[]`, `{}`, `{"type": "custom"}`, `{"type": "constant", "delay": "0s"}`, `{"type": "constant", "step": "1s"}`} {
		if got, err := drover.ParseRetryStrategy(text); !errors.Is(err, drover.ErrInvalid) {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
}

// idle runs a supervisor of the queue default. It has scanned for jobs up to the present, and its
// poll interval is an hour.
func (db *testDB) idle(t *testing.T, cfg drover.SupervisorConfig) {
	t.Helper()
	cfg.PollInterval = time.Hour
	db.run(t, cfg)
	db.enqueue(t, dyn{kind: "first"}, nil)
	db.waitFor(t, 30*time.Second, `select exists (select from jobs where kind = 'first' and state = 'completed')`)
	db.Asleep(t)
}

// An idle supervisor starts an edited job soon, although its floors (the times from which its
// claims scan) have passed the job's old place. The job was due later, or was overdue in a queue
// without a supervisor. A full sweep would find it too, but sweeps come with heartbeats, and there
// is none here.
func TestEditedJobStartsSoon(t *testing.T) {
	t.Parallel()
	slow(t)
	started := make(chan string, 10)
	db := newQuietDB(t)
	note := func(_ context.Context, j *drover.Job) error { started <- j.ID; return nil }
	db.idle(t, drover.SupervisorConfig{Lease: time.Hour, Queues: []drover.Queue{{}}, Workers: []drover.Worker{
		dynWorker("first", drover.WorkerOpts{}, func(context.Context, *drover.Job) error { return nil }), dynWorker("edited", drover.WorkerOpts{}, note),
	}})
	one := func(e drover.JobEdit) func(string) error {
		return func(id string) error { _, err := db.client.Edit(t.Context(), id, e, drover.Audit{}); return err }
	}
	for name, tc := range map[string]struct {
		opts drover.EnqueueOpts
		do   func(id string) error
	}{
		"run now":             {drover.EnqueueOpts{Delay: 24 * time.Hour}, one(drover.JobEdit{RunNow: true})},
		"sooner":              {drover.EnqueueOpts{Delay: 24 * time.Hour}, one(drover.JobEdit{Delay: 300 * time.Millisecond})},
		"in the past":         {drover.EnqueueOpts{Delay: 24 * time.Hour}, one(drover.JobEdit{ScheduledAt: time.Now().Add(-time.Hour)})},
		"to another queue":    {drover.EnqueueOpts{Queue: "elsewhere"}, one(drover.JobEdit{Queue: "default"})},
		"with other priority": {drover.EnqueueOpts{Queue: "elsewhere"}, one(drover.JobEdit{Queue: "default", Priority: 2})},
		"by filter": {drover.EnqueueOpts{Delay: 24 * time.Hour}, func(id string) error {
			_, err := db.client.EditMany(t.Context(), drover.Filter{IDs: []string{id}}, drover.JobEdit{RunNow: true}, drover.Audit{})
			return err
		}},
	} {
		id := db.enqueue(t, dyn{kind: "edited"}, &tc.opts)
		if tc.opts.Queue != "" { // the job has been overdue for an hour
			db.exec(t, `update jobs set scheduled_at = now() - interval '1 h', created_at = now() - interval '1 h' where id = $1`, id)
		}
		db.Asleep(t)
		if err := tc.do(id); err != nil {
			t.Fatal(err)
		}
		if got := receive(t, started); got != id {
			t.Errorf("%s: job %s, want %s", name, got, id)
		}
		db.waitFor(t, 30*time.Second, `select state = 'completed' from jobs where id = $1`, id)
	}
}

// A due job keeps its place when an edit makes it run now. When an edit changes its priority or
// queue, the job goes to the end of its new lane.
func TestEditedJobsPlaceInItsLane(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	old := db.put(t, "scheduled_at", "now() - interval '1 h'")
	if _, err := db.client.Edit(t.Context(), old, drover.JobEdit{RunNow: true, MaxAttempts: 3}, drover.Audit{}); err != nil || !value[bool](t, db, `select scheduled_at < now() - interval '50 min' from jobs where id = $1`, old) {
		t.Errorf("it lost its place: %v", err)
	}
	for _, e := range []drover.JobEdit{{Priority: 1}, {Queue: "q"}} {
		id := db.put(t, "scheduled_at", "now() - interval '1 h'")
		before := value[time.Time](t, db, `select clock_timestamp()`)
		if _, err := db.client.Edit(t.Context(), id, e, drover.Audit{}); err != nil || value[time.Time](t, db, `select scheduled_at from jobs where id = $1`, id).Before(before) {
			t.Errorf("%+v: behind the floors of its new lane: %v", e, err)
		}
	}
}

// Edit waits for a claim that holds the job. If the claim commits, Edit finds a running job. If it
// is rolled back, Edit changes the job.
func TestEditMeetsAClaim(t *testing.T) {
	t.Parallel()
	for name, claimed := range map[string]bool{"committed": true, "rolled back": false} {
		for verb, do := range map[string]func(db *testDB, id string) (changed bool, err error){
			"Edit": func(db *testDB, id string) (bool, error) {
				_, err := db.client.Edit(t.Context(), id, drover.JobEdit{ArgsPatch: json.RawMessage(`{"to": "bob"}`)}, drover.Audit{})
				return err == nil, err
			},
			"EditMany": func(db *testDB, id string) (bool, error) {
				done, err := db.client.EditMany(t.Context(), drover.Filter{IDs: []string{id}}, drover.JobEdit{ArgsPatch: json.RawMessage(`{"to": "bob"}`)}, drover.Audit{})
				return done.Changed == 1, err
			},
		} {
			db := newQuietDB(t)
			id := db.enqueue(t, letter{"ann"}, nil)
			tx, err := db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), `update jobs set state = 'running', claimed_by = 's', claim_seq = 1, attempt = 1, attempted_at = now() where id = $1`, id); err != nil {
				t.Fatal(err)
			}
			type result struct {
				changed bool
				err     error
			}
			ended := make(chan result, 1)
			go func() {
				changed, err := do(db, id)
				ended <- result{changed, err}
			}()
			db.waiting(t)
			if claimed {
				err = tx.Commit(t.Context())
			} else {
				err = tx.Rollback(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			got := receive(t, ended)
			if got.changed == claimed || verb == "Edit" && claimed != errors.Is(got.err, drover.ErrState) || (verb == "EditMany" || !claimed) && got.err != nil {
				t.Errorf("%s, the claim %s: %+v", verb, name, got)
			}
			if to := value[string](t, db, `select args->>'to' from jobs where id = $1`, id); (to == "bob") == claimed {
				t.Errorf("%s, the claim %s: args to %s", verb, name, to)
			}
		}
	}
}

// Supervisors run jobs while operators cancel and edit them. Each job ends once, and its history
// has only entries of changes that happened.
func TestEditsBesideRunsAndCancels(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	ids := db.EnqueueJobs(t, 300, &drover.EnqueueOpts{Delay: time.Hour})
	var runs [300]atomic.Int32
	db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 20}}, Workers: handling(func(_ context.Context, _ *drover.Job, n int) error { runs[n].Add(1); return nil })})
	errs := make(chan error, 4)
	edits := func(e drover.JobEdit) {
		for i := range ids {
			if _, err := db.client.Edit(t.Context(), ids[(i*7)%len(ids)], e, drover.Audit{By: "ann"}); err != nil && !errors.Is(err, drover.ErrState) {
				errs <- err
				return
			}
		}
		errs <- nil
	}
	go edits(drover.JobEdit{Priority: 3})
	go edits(drover.JobEdit{RunNow: true, Priority: 4})
	go func() {
		_, err := db.client.EditMany(t.Context(), drover.Filter{Kind: "job"}, drover.JobEdit{Delay: time.Millisecond, MaxAttempts: 3}, drover.Audit{})
		errs <- err
	}()
	go func() {
		for i := 0; i < len(ids); i += 3 {
			if _, err := db.client.Cancel(t.Context(), ids[i], drover.Audit{}); err != nil {
				errs <- err
				return
			}
		}
		errs <- nil
	}()
	for range 4 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	db.waitFor(t, 30*time.Second, `select count(*) = 300 from jobs where state in ('completed', 'cancelled')`)
	// A supervisor may give a claim back when the job has waited a second for a slot.
	if n := value[int](t, db, `select count(*) from jobs where state = 'completed' and attempt <> 1 or jsonb_path_exists(errors, '$[*] ? (@.class != "operator")')`); n > 0 {
		t.Errorf("%d jobs ran again or failed", n)
	}
	for i := range runs {
		if n := runs[i].Load(); n > 1 {
			t.Errorf("job %d ran %d times", i, n)
		}
	}
	if n := value[int](t, db, `select count(*) from jobs, jsonb_array_elements(errors) with ordinality e(e, n) where e->>'error' like 'edited%' and exists (
		select from jsonb_array_elements(errors) with ordinality f(e, n) where f.e->>'error' = 'cancelled' and f.n < e.n)`); n > 0 {
		t.Errorf("%d jobs were edited after their end", n)
	}
}

// EditMany changes more jobs than one batch holds. It edits rows that other transactions hold last,
// and lists rows that the database refuses.
func TestEditManyPassesRefusedAndLockedJobs(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	ids := db.EnqueueJobs(t, 2500, &drover.EnqueueOpts{Delay: time.Hour})
	cursed, locked, odd := ids[100], ids[1200], ids[2000]
	db.refusing(t, "update", cursed)
	db.exec(t, `update jobs set args = '[]' where id = $1`, odd)
	end := db.Hold(t, `select from jobs where id = $1 for update`, locked)
	edit := drover.JobEdit{RunNow: true, ArgsPatch: json.RawMessage(`{"n": 7}`)}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	type result struct {
		done drover.BulkResult
		err  error
	}
	ended := make(chan result, 1)
	go func() {
		done, err := db.client.EditMany(ctx, drover.Filter{Kind: "job"}, edit, drover.Audit{Why: "w"})
		ended <- result{done, err}
	}()
	db.waitFor(t, 30*time.Second, `select count(*) = 2497 from jobs where state = 'available' and args->>'n' = '7' and errors->-1->>'error' like '%: w'`)
	db.waiting(t)
	end()
	got := receive(t, ended)
	want := []string{cursed, odd}
	if got.err != nil || got.done.Changed != 2498 || !slices.Equal(refusedIDs(got.done), want) {
		t.Errorf("%d changed, %+v refused, %v", got.done.Changed, got.done.Refused, got.err)
	}
	// Another transaction keeps its lock on a row. EditMany waits no longer than its context.
	defer db.Hold(t, `select from jobs where id = $1 for update`, locked)()
	until, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		done, err := db.client.EditMany(until, drover.Filter{IDs: []string{locked, ids[0]}}, drover.JobEdit{Priority: 1}, drover.Audit{})
		ended <- result{done, err}
	}()
	db.waitFor(t, 30*time.Second, `select priority = 1 from jobs where id = $1`, ids[0])
	db.waiting(t)
	stop()
	if got := receive(t, ended); got.done.Changed != 1 || !errors.Is(got.err, context.Canceled) {
		t.Errorf("a row that is held: %+v, %v", got.done, got.err)
	}
}

// A retry waits for its slot in the retry budget. An operator's RunNow starts it immediately, and
// the slot stays taken.
func TestRunNowJumpsTheRetryBudget(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	ran := make(chan int, 10)
	db.run(t, drover.SupervisorConfig{
		Queues: []drover.Queue{{RetryBudget: drover.RetryBudget{Retries: 1, Per: 24 * time.Hour}}},
		Workers: []drover.Worker{dynWorker("weak", drover.WorkerOpts{Retry: drover.Every(time.Second)}, func(_ context.Context, j *drover.Job) error {
			ran <- j.Attempt
			if j.Attempt == 1 {
				return errBoom
			}
			return nil
		})},
	})
	ids := []string{db.enqueue(t, dyn{kind: "weak"}, nil), db.enqueue(t, dyn{kind: "weak"}, nil)}
	db.waitFor(t, 30*time.Second, `select count(*) = 2 from jobs where errors_total = 1`)
	late := value[string](t, db, `select id from jobs where scheduled_at > now() + interval '12 h' order by scheduled_at desc limit 1`)
	reserved := value[string](t, db, `select string_agg(used::text, ' ') from drover_budget_slots`)
	if !slices.Contains(ids, late) {
		t.Fatal("no job waits for its slot")
	}
	if _, err := db.client.Edit(t.Context(), late, drover.JobEdit{RunNow: true}, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	db.waitFor(t, 30*time.Second, `select state = 'completed' and attempt = 2 and errors_total = 1 from jobs where id = $1`, late)
	if now := value[string](t, db, `select string_agg(used::text, ' ') from drover_budget_slots`); now != reserved {
		t.Error("the calendar has changed")
	}
}

// A policy or a redrive has parked the job. An edit of its time ends the park. Other edits leave
// the job parked, and a redrive finds it in its new queue.
func TestEditOfAParkedJob(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	edit := func(id string, e drover.JobEdit) {
		t.Helper()
		if changed, err := db.client.Edit(t.Context(), id, e, drover.Audit{}); !changed || err != nil {
			t.Errorf("%+v: %t, %v", e, changed, err)
		}
	}
	holds := func(id, condition string) {
		t.Helper()
		if !value[bool](t, db, `select `+condition+` from jobs where id = $1`, id) {
			t.Errorf("not %s: %s", condition, value[string](t, db, jobRow, id))
		}
	}
	const parked = "state, scheduled_at, errors_total, attempt, parked_build"
	policy := db.put(t, parked, `'parked', 'infinity', 2, 2, 'b1'`)
	edit(policy, drover.JobEdit{Priority: 1, ArgsPatch: json.RawMessage(`{"to": "x"}`)})
	holds(policy, `state = 'parked' and scheduled_at = 'infinity' and parked_build = 'b1' and priority = 1`)
	edit(policy, drover.JobEdit{RunNow: true})
	holds(policy, `state = 'retryable' and scheduled_at <= now() and parked_build is null and attempt = 2 and errors->-1->>'error' = 'edited (due now, was parked)'`)

	redrive := value[string](t, db, `insert into drover_redrives (filter, rate, per_key, state) values ('{"kind": "letter"}', 50, 1, 'running') returning id`)
	const held = "state, scheduled_at, redrive_id, pace_key, paced_at"
	keyed := db.put(t, held, `'parked', 'infinity', '`+redrive+`', 'k', now()`)
	edit(keyed, drover.JobEdit{Delay: time.Hour})
	holds(keyed, `state = 'scheduled' and scheduled_at > now() and paced_at = 'infinity'`) // the key's cap counts it
	unkeyed := db.put(t, held, `'parked', 'infinity', '`+redrive+`', '', now()`)
	edit(unkeyed, drover.JobEdit{RunNow: true})
	holds(unkeyed, `state = 'available' and paced_at is null`)
	moved := db.put(t, held, `'parked', 'infinity', '`+redrive+`', 'other', now()`)
	edit(moved, drover.JobEdit{Queue: "q"})
	holds(moved, `state = 'parked' and queue = 'q'`)
	db.exec(t, `select drover_pace()`)
	holds(moved, `state = 'available' and scheduled_at < now() + interval '10 s'`)
}

// An edit moves a job that a redrive has made due to another queue. The redrive no longer waits for
// it.
func TestEditTakesAJobOutOfItsQueuesRedrive(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	id := db.put(t, "scheduled_at", "now()")
	db.exec(t, `insert into drover_redrive_queues (queue, released) values ('default', jsonb_build_object($1::text, 0))`, id)
	db.exec(t, `insert into drover_redrives (filter, rate, state) values ('{"kind": "letter"}', 50, 'running')`)
	if _, err := db.client.Edit(t.Context(), id, drover.JobEdit{Queue: "q"}, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	db.exec(t, `select drover_pace(clock_timestamp() + interval '10 s')`)
	if left := value[string](t, db, `select released::text from drover_redrive_queues where queue = 'default'`); left != "{}" {
		t.Errorf("it still waits for %s", left)
	}
}

// An edit of a job that was set aside removes the mark, so the job is tried immediately.
func TestEditOfAJobThatIsSetAside(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	id := db.put(t, "priority", "5")
	db.exec(t, `insert into drover_set_aside (path, job, error, code, retry_at) values ('claim', $1, 'no', 'P0001', now() + interval '1 h')`, id)
	if _, err := db.client.Edit(t.Context(), id, drover.JobEdit{ArgsPatch: json.RawMessage(`{"to": "x"}`)}, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	if n := value[int](t, db, `select count(*) from drover_set_aside`); n > 0 {
		t.Error("it is still set aside")
	}
}

// An edit of a unique job's args or queue changes its unique key. An enqueue with the new args
// finds the job, and an enqueue with the old args does not.
func TestEditOfAUniqueJob(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	long := strings.Repeat("x", 300)
	n := 0
	for name, tc := range map[string]struct {
		unique drover.Unique
		to     string
		edit   drover.JobEdit
		stays  bool // the edit changes no part of the unique key
	}{
		"all the args":          {unique: drover.Unique{}, edit: drover.JobEdit{ArgsPatch: json.RawMessage(`{"to": "new"}`)}},
		"all the args, a hash":  {unique: drover.Unique{Until: drover.UntilStarted}, to: long, edit: drover.JobEdit{ArgsPatch: json.RawMessage(`{"to": "new"}`)}},
		"a field":               {unique: drover.Unique{By: []string{"to"}}, edit: drover.JobEdit{ArgsPatch: json.RawMessage(`{"to": "new"}`)}},
		"a field and the queue": {unique: drover.Unique{By: []string{"to"}, Queue: true}, edit: drover.JobEdit{Queue: "slow"}},
		"queue, key, args":      {unique: drover.Unique{Queue: true, Key: true, Until: drover.UntilPassed(time.Hour)}, edit: drover.JobEdit{Queue: "slow", ArgsPatch: json.RawMessage(`{"to": "new"}`)}},
		"no args, the queue":    {unique: drover.Unique{AnyArgs: true, Queue: true}, edit: drover.JobEdit{Queue: "slow"}},
		"no args":               {unique: drover.Unique{AnyArgs: true}, edit: drover.JobEdit{Queue: "slow", ArgsPatch: json.RawMessage(`{"to": "new"}`)}, stays: true},
		"another queue only":    {unique: drover.Unique{}, edit: drover.JobEdit{Queue: "slow"}, stays: true},
	} {
		n++
		args := map[string]any{"to": tc.to, "n": n}
		opts := &drover.EnqueueOpts{Delay: time.Hour, Key: "k", Unique: &tc.unique}
		kind := fmt.Sprint("kind ", n)
		id := db.enqueue(t, anyArgs{kind, args}, opts)
		if _, err := db.client.Edit(t.Context(), id, tc.edit, drover.Audit{}); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		edited, again := map[string]any{"to": tc.to, "n": n}, *opts
		if tc.edit.ArgsPatch != nil {
			edited["to"] = "new"
		}
		again.Queue = tc.edit.Queue
		if r, err := db.client.Enqueue(t.Context(), anyArgs{kind, edited}, &again); err != nil || r.ID != id {
			t.Errorf("%s: an enqueue with the new args: %+v, %v", name, r, err)
		}
		if r, err := db.client.Enqueue(t.Context(), anyArgs{kind, args}, opts); err != nil || (r.ID == id) != tc.stays {
			t.Errorf("%s: an enqueue with the old args: %+v, %v", name, r, err)
		}
	}
}

// anyArgs are args of any kind with any fields.
type anyArgs struct {
	kind string
	doc  map[string]any
}

func (a anyArgs) Kind() string                 { return a.kind }
func (a anyArgs) MarshalJSON() ([]byte, error) { return json.Marshal(a.doc) }

// A transaction holds a unique key and then waits for the job that an edit gives this key. Postgres ends the edit's
// transaction because of the deadlock, and the edit is repeated.
func TestEditInADeadlock(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	opts := &drover.EnqueueOpts{Delay: time.Hour, Unique: &drover.Unique{By: []string{"to"}}}
	id := db.enqueue(t, anyArgs{"mail", map[string]any{"to": "ann"}}, opts)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	_, err = tx.Exec(t.Context(), `set local deadlock_timeout = '1min'`) // so Postgres never ends this one
	if err == nil {
		_, err = db.client.EnqueueTx(t.Context(), tx, anyArgs{"mail", map[string]any{"to": "bob"}}, opts)
	}
	if err != nil {
		t.Fatal(err)
	}
	edited := make(chan error, 1)
	go func() {
		_, err := db.client.Edit(t.Context(), id, drover.JobEdit{ArgsPatch: json.RawMessage(`{"to": "bob"}`)}, drover.Audit{})
		edited <- err
	}()
	db.waiting(t)
	if _, err = tx.Exec(t.Context(), `select from jobs where id = $1 for update`, id); err == nil {
		err = tx.Rollback(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := <-edited; err != nil {
		t.Error(err)
	}
}

// An edit would give a job the unique key of another job, or a key that drover cannot compute. The
// job stays as it is, and EditMany edits the others. EditMany does not wait for an open transaction
// that has enqueued the same key.
func TestEditToAUniqueKeyThatIsTaken(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	ctx := t.Context()
	unique := &drover.EnqueueOpts{Delay: time.Hour, Unique: &drover.Unique{By: []string{"to"}}}
	owner := db.enqueue(t, anyArgs{"mail", map[string]any{"to": "ann"}}, unique)
	other := db.enqueue(t, anyArgs{"mail", map[string]any{"to": "bob"}}, unique)
	plain := db.enqueue(t, anyArgs{"mail", map[string]any{"to": "cid"}}, &drover.EnqueueOpts{Delay: time.Hour})
	edit := drover.JobEdit{RunNow: true, ArgsPatch: json.RawMessage(`{"to": "ann"}`)}
	before := value[string](t, db, jobRow, other)
	if _, err := db.client.Edit(ctx, other, edit, drover.Audit{}); !errors.Is(err, drover.ErrState) || !strings.Contains(err.Error(), owner) {
		t.Errorf("to a key that is taken: %v", err)
	}
	done, err := db.client.EditMany(ctx, drover.Filter{Kind: "mail"}, edit, drover.Audit{})
	if err != nil || done.Changed != 2 || !slices.Equal(refusedIDs(done), []string{other}) || !strings.Contains(done.Refused[0].Error, owner) {
		t.Errorf("by filter: %+v, %v", done, err)
	}
	if after := value[string](t, db, jobRow, other); after != before || db.Get(t, plain).State != drover.Available || db.Get(t, owner).State != drover.Available {
		t.Errorf("afterwards: %s", after)
	}
	hashed := db.enqueue(t, anyArgs{"mail", map[string]any{"to": strings.Repeat("x", 300), "n": 1}}, unique)
	if _, err := db.client.Edit(ctx, hashed, drover.JobEdit{ArgsPatch: json.RawMessage(`{"n": 2}`)}, drover.Audit{}); !errors.Is(err, drover.ErrState) || !strings.Contains(err.Error(), "not known") {
		t.Errorf("a hash of some fields: %v", err)
	}
	if _, err := db.client.Edit(ctx, hashed, drover.JobEdit{RunNow: true}, drover.Audit{}); err != nil {
		t.Errorf("its time: %v", err)
	}
	tx, err := db.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := db.client.EnqueueTx(ctx, tx, anyArgs{"mail", map[string]any{"to": "dan"}}, unique); err != nil {
		t.Fatal(err)
	}
	short, stop := context.WithTimeout(ctx, 20*time.Second)
	defer stop()
	done, err = db.client.EditMany(short, drover.Filter{IDs: []string{other, plain}}, drover.JobEdit{ArgsPatch: json.RawMessage(`{"to": "dan"}`)}, drover.Audit{})
	if err != nil || done.Changed != 1 || !slices.Equal(refusedIDs(done), []string{other}) {
		t.Errorf("while an open transaction has the key: %+v, %v", done, err)
	}
}

// A redrive has made a job due, and an operator has put it off. The job keeps its new time, even
// when the redrive takes back the jobs that nobody has started.
func TestRedriveLeavesRescheduledJobsAlone(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	redrive := value[string](t, db, `insert into drover_redrives (filter, rate, state) values ('{"kind": "letter"}', 50, 'running') returning id`)
	var ids []string
	for range 3 {
		ids = append(ids, db.put(t, "redrive_id, scheduled_at", "'"+redrive+"', now() - interval '1 min'"))
	}
	db.exec(t, `insert into drover_redrive_queues (queue, released) select 'default', jsonb_object_agg(i, 0) from unnest($1::text[]) i`, ids)
	if _, err := db.client.Edit(t.Context(), ids[2], drover.JobEdit{Delay: time.Hour}, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	db.exec(t, `select drover_pace()`)
	states := value[[]string](t, db, `select array_agg(state order by state) from jobs where id = any($1)`, ids[:2])
	if !slices.Contains(states, "parked") {
		t.Fatalf("it took nothing back: %q", states)
	}
	if j := db.Get(t, ids[2]); j.State != drover.Scheduled || time.Until(j.ScheduledAt) < 30*time.Minute {
		t.Errorf("the job that was put off is %s, due %v", j.State, j.ScheduledAt)
	}
}

// An edit that makes a job due before the next poll wakes a sleeping supervisor. Other edits wake
// none.
func TestEditWakesASleeper(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	db.OnDuty(t, db.crew(t, "default", "letter").OnCall)
	for name, tc := range map[string]struct {
		edit  drover.JobEdit
		wakes bool
	}{
		"run now":       {drover.JobEdit{RunNow: true}, true},
		"later":         {drover.JobEdit{Delay: 2 * time.Hour}, false},
		"before a poll": {drover.JobEdit{Delay: 30 * time.Second}, true},
		"the same":      {drover.JobEdit{Priority: 5}, false},
	} {
		for _, many := range []bool{false, true} {
			id := db.enqueue(t, letter{}, &drover.EnqueueOpts{Delay: 90 * time.Minute})
			sent := notes(t, db, func() {
				var err error
				if many {
					_, err = db.client.EditMany(t.Context(), drover.Filter{IDs: []string{id}}, tc.edit, drover.Audit{})
				} else {
					_, err = db.client.Edit(t.Context(), id, tc.edit, drover.Audit{})
				}
				if err != nil {
					t.Error(err)
				}
			})
			if slices.ContainsFunc(sent, func(note string) bool { return wakes(note, "default") }) != tc.wakes {
				t.Errorf("%s, many %v: %q", name, many, sent)
			}
		}
	}
}

// An edit may give a job the unique key of another job whose period is over.
func TestEditToAUniqueKeyWhosePeriodIsOver(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	old := db.enqueue(t, parcel{N: 1}, &drover.EnqueueOpts{Unique: &drover.Unique{Until: drover.UntilPassed(time.Hour)}})
	db.exec(t, `update jobs set unique_until = now() - interval '1 s'`)
	id := db.enqueue(t, parcel{N: 2}, &drover.EnqueueOpts{Unique: &drover.Unique{}})
	if changed, err := db.client.Edit(t.Context(), id, drover.JobEdit{ArgsPatch: json.RawMessage(`{"n": 1}`)}, drover.Audit{}); err != nil || !changed {
		t.Errorf("%v, %v", changed, err)
	}
	if !value[bool](t, db, `select unique_until is null from jobs where id = $1`, old) {
		t.Error("the older job still has the key")
	}
}

// A rerun that is late keeps its rate, although the database refuses a job and so the others go in parts.
func TestLateRerunsInPartsKeepTheirDistance(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into jobs (kind, args, state, finalized_at) select 'job', to_jsonb(n), 'completed', now() from generate_series(1, 64) n`)
	db.exec(t, `create function delay() returns trigger language plpgsql as $$ begin
		if new.args = '60' then raise exception 'no'; end if;
		if new.args = '1' then perform pg_sleep(0.4); end if;
		return new; end $$`)
	db.exec(t, `create trigger delay before insert on jobs for each row execute function delay()`)
	if r, err := db.client.RerunMany(t.Context(), drover.Filter{Kind: "job"}, drover.RerunPlan{Rate: 100}, drover.Audit{}); err != nil || r.Changed != 63 || len(r.Refused) != 1 {
		t.Fatalf("reran %+v, error %v", r, err)
	}
	const least = `select min(gap)::float8 from (select extract(epoch from scheduled_at - lag(scheduled_at) over (order by scheduled_at)) * 1000 as gap from jobs where finalized_at is null) g`
	if gap := value[float64](t, db, least); gap < 10 {
		t.Errorf("two jobs become due within %v ms; at 100 a second, want 10", gap)
	}
}

// The period of a job is over, so it keeps no key. Other args, which another job is unique by, are no conflict.
func TestNewArgsAfterItsOwnPeriod(t *testing.T) {
	t.Parallel()
	patch := json.RawMessage(`{"n": 2}`)
	for name, change := range map[string]func(t *testing.T, db *testDB, id string) error{
		"edit": func(t *testing.T, db *testDB, id string) error {
			t.Helper()
			_, err := db.client.Edit(t.Context(), id, drover.JobEdit{ArgsPatch: patch}, drover.Audit{})
			return err
		},
		"redrive of the job": func(t *testing.T, db *testDB, id string) error {
			t.Helper()
			db.exec(t, `update jobs set state = 'discarded', discard_reason = 'operator', finalized_at = now() where id = $1`, id)
			return db.client.RedriveJob(t.Context(), id, &drover.RedriveOpts{ArgsPatch: patch}, drover.Audit{})
		},
		"paced redrive": func(t *testing.T, db *testDB, id string) error {
			t.Helper()
			db.exec(t, `update jobs set state = 'discarded', discard_reason = 'operator', finalized_at = now() where id = $1`, id)
			r, err := db.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{IDs: []string{id}}, ArgsPatch: patch}, drover.Audit{})
			for i := 0; err == nil && r.State != drover.RedriveDone && i < 10; i++ {
				db.exec(t, `select drover_pace(clock_timestamp() + $1 * interval '1 s')`, i)
				r, err = db.client.Redrive(t.Context(), r.ID)
			}
			if err == nil && len(r.Skips) > 0 {
				err = errors.New(r.Skips[0].Why)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newQuietDB(t)
			id := db.Unique(t, parcel{N: 1}, drover.Unique{By: []string{"n"}, Until: drover.UntilPassed(time.Hour)}).ID
			db.exec(t, `update jobs set unique_until = now() - interval '1 s'`)
			other := db.Unique(t, parcel{N: 2}, drover.Unique{By: []string{"n"}})
			if err := change(t, db, id); err != nil {
				t.Error(err)
			}
			if n := value[int](t, db, `select (args->>'n')::int from jobs where id = $1 and finalized_at is null`, id); n != 2 {
				t.Errorf("n is %d", n)
			}
			if again := db.Unique(t, parcel{N: 2}, drover.Unique{By: []string{"n"}}); again.ID != other.ID {
				t.Errorf("%+v, want %s", again, other.ID)
			}
		})
	}
}
