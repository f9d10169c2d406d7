package drover

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/drover-queue/drover/internal/pg"
)

const jobRow = `select to_jsonb(j)::text from jobs j where id = $1`

// Each field of an edit changes its own columns and no other, and the history says what was before.
func TestEditOfEachField(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	const later = "'scheduled', '2031-01-01 00:00:00Z'"
	for name, tc := range map[string]struct {
		columns, values string
		edit            JobEdit
		changes         []string // besides errors
		holds           string
		entry           string
	}{
		"run now": {
			"state, scheduled_at", later,
			JobEdit{RunNow: true},
			[]string{"scheduled_at", "state"},
			`state = 'available' and scheduled_at between now() - interval '1 min' and now()`,
			`edited (due now, was 2031-01-01T00:00:00Z): w`,
		},
		"run a retry now": {
			"state, scheduled_at, errors_total, attempt", "'retryable', '2031-01-01 00:00:00Z', 3, 3",
			JobEdit{RunNow: true},
			[]string{"scheduled_at"},
			`state = 'retryable' and attempt = 3 and scheduled_at <= now()`, `edited (due now, was 2031-01-01T00:00:00Z): w`,
		},
		"scheduled at": {
			"priority", "5",
			JobEdit{ScheduledAt: time.Date(2030, 5, 6, 7, 8, 9, 0, time.FixedZone("", 3600))},
			[]string{"scheduled_at", "state"},
			`state = 'scheduled' and scheduled_at = '2030-05-06 06:08:09Z'`, "edited (due 2030-05-06T06:08:09Z, was ",
		},
		"scheduled in the past": {
			"state, scheduled_at", later,
			JobEdit{ScheduledAt: time.Unix(1, 0)},
			[]string{"scheduled_at", "state"},
			`state = 'available' and scheduled_at > now() - interval '1 min'`, "edited (due now, was 2031-01-01T00:00:00Z): w",
		},
		"delay": {
			"state, scheduled_at", later,
			JobEdit{Delay: time.Hour},
			[]string{"scheduled_at"},
			`state = 'scheduled' and scheduled_at between now() + interval '59 min' and now() + interval '1 h'`, "edited (due ",
		},
		"priority": {
			"state, scheduled_at", later,
			JobEdit{Priority: 1},
			[]string{"lane", "priority"},
			`priority = 1 and lane = 1`, `edited (priority 1, was 5): w`,
		},
		"queue": {
			"state, scheduled_at", later,
			JobEdit{Queue: "slow"},
			[]string{"queue"},
			`queue = 'slow'`, `edited (queue slow, was default): w`,
		},
		"max attempts": {
			"max_attempts, state, scheduled_at", "3, " + later,
			JobEdit{MaxAttempts: 7},
			[]string{"max_attempts"},
			`max_attempts = 7`, `edited (max_attempts 7, was 3): w`,
		},
		"max attempts of its worker": {
			"state, scheduled_at", later,
			JobEdit{MaxAttempts: 7},
			[]string{"max_attempts"},
			`max_attempts = 7`, `edited (max_attempts 7, was its worker's): w`,
		},
		"retry": {
			"state, scheduled_at", later,
			JobEdit{Retry: Every(time.Minute)},
			[]string{"retry"},
			`retry->>'type' = 'constant' and retry->>'delay' = '1m'`, `edited (retry): w`,
		},
		"args": {
			"args, state, scheduled_at", `'{"to": "ann", "copies": 2, "note": {"a": 1}}', ` + later,
			JobEdit{ArgsPatch: json.RawMessage(`{"to": "bob", "copies": null, "note": {"b": 2}}`)},
			[]string{"args"},
			`args = '{"to": "bob", "note": {"a": 1, "b": 2}}'`, `edited (args copies note to): w`,
		},
		"all at once": {
			"state, scheduled_at", later,
			JobEdit{RunNow: true, Priority: 9, Queue: "slow", MaxAttempts: 1, ArgsPatch: json.RawMessage(`{"to": "bob"}`)},
			[]string{"args", "lane", "max_attempts", "priority", "queue", "scheduled_at", "state"},
			`state = 'available' and queue = 'slow' and priority = 9`,
			`edited (due now, was 2031-01-01T00:00:00Z; priority 9, was 5; queue slow, was default; max_attempts 1, was its worker's; args to): w`,
		},
	} {
		id := db.put(t, tc.columns, tc.values)
		db.exec(t, `update jobs set errors = '[{"class": "error", "error": "no", "attempt": 1}]' where id = $1`, id)
		before := value[string](t, db, jobRow, id)
		if _, err := db.client.Edit(t.Context(), id, tc.edit, Audit{By: "ann", Why: "w"}); err != nil {
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
		if j := db.get(t, id); len(j.Errors) != 2 || j.Errors[0].Error != "no" || j.Errors[1].Class != ClassOperator || j.Errors[1].By != "ann" || !strings.HasPrefix(j.Errors[1].Error, tc.entry) {
			t.Errorf("%s: history %+v", name, j.Errors)
		}
	}
}

// What is like that already stays as it is, and nothing tells of it.
func TestEditThatChangesNothing(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	id := db.put(t, "priority, queue, max_attempts, retry, args, scheduled_at", `2, 'q', 3, '{"type": "constant", "delay": "1m", "jitter": "none"}', '{"to": "ann"}', now() - interval '1 min'`)
	before := value[string](t, db, jobRow, id)
	for i, e := range []JobEdit{
		{RunNow: true},
		{ScheduledAt: time.Unix(1, 0)},
		{Priority: 2, Queue: "q", MaxAttempts: 3, Retry: Every(time.Minute), ArgsPatch: json.RawMessage(`{"to": "ann", "x": null}`)},
	} {
		if changed, err := db.client.Edit(t.Context(), id, e, Audit{Why: "w"}); changed || err != nil {
			t.Errorf("%d: %t, %v", i, changed, err)
		}
		if done, err := db.client.EditMany(t.Context(), Filter{All: true}, e, Audit{Why: "w"}); done.Changed != 0 || err != nil {
			t.Errorf("%d: %+v, %v", i, done, err)
		}
	}
	if after := value[string](t, db, jobRow, id); after != before {
		t.Errorf("%s\nbecame\n%s", before, after)
	}
}

// Waiting jobs are edited, one and by filter. A job that runs or has ended stays as it is, and Edit returns its state in
// the error.
func TestEditByState(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	ctx, by := t.Context(), Audit{By: "ann", Why: "w"}
	waits := []State{Available, Scheduled, Retryable, Parked}
	for state, id := range db.inEveryState(t, "x") {
		before := value[string](t, db, jobRow, id)
		changed, err := db.client.Edit(ctx, id, JobEdit{Priority: 8}, by)
		if slices.Contains(waits, state) {
			if err != nil || !changed || value[string](t, db, `select state from jobs where id = $1 and priority = 8`, id) != string(state) {
				t.Errorf("%s: %t, %v", state, changed, err)
			}
		} else if changed || !errors.Is(err, ErrState) || !strings.Contains(err.Error(), string(state)) || value[string](t, db, jobRow, id) != before {
			t.Errorf("%s: %t, %v", state, changed, err)
		}
	}
	done, err := db.client.EditMany(ctx, Filter{Tags: []string{"x"}}, JobEdit{RunNow: true, Priority: 7}, by)
	if err != nil || done.Changed != 4 || len(done.IDs) != 4 {
		t.Errorf("by filter: %+v, %v", done, err)
	}
	other := value[string](t, db, `update jobs set priority = 3 where id = (select max(id) from jobs where priority = 7) returning id`)
	if done, err := db.client.EditMany(ctx, Filter{Tags: []string{"x"}}, JobEdit{Priority: 7}, by); err != nil || !slices.Equal(done.IDs, []string{other}) {
		t.Errorf("only %s was different: %+v, %v", other, done, err)
	}
	if n := value[int](t, db, `select count(*) from jobs where priority = 7 and state in ('available', 'retryable') and scheduled_at <= now()`); n != 4 {
		t.Errorf("%d jobs are due now", n)
	}
	for _, id := range []string{"", "x", "00000000000000000000000000"} {
		if _, err := db.client.Edit(ctx, id, JobEdit{RunNow: true}, by); !errors.Is(err, ErrNotFound) {
			t.Errorf("Edit of %q: %v", id, err)
		}
		if _, err := db.client.Rerun(ctx, id, nil, by); !errors.Is(err, ErrNotFound) {
			t.Errorf("Rerun of %q: %v", id, err)
		}
	}
	if done, err := db.client.EditMany(ctx, Filter{IDs: []string{"00000000000000000000000000"}}, JobEdit{RunNow: true}, by); len(done.Missing) != 1 || err != nil {
		t.Errorf("an unknown id: %+v, %v", done, err)
	}
}

// what makes no sense is refused with the name of the field, in Go and in SQL, before anything is written.
func TestEditIsRefused(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	id := db.put(t, "args", `'{"to": "ann"}'`)
	before := value[string](t, db, jobRow, id)
	at := time.Now().Add(time.Hour)
	for want, e := range map[string]JobEdit{
		"JobEdit": {}, "ScheduledAt": {RunNow: true, ScheduledAt: at}, "Delay": {ScheduledAt: at, Delay: time.Second}, "Delay ": {Delay: -time.Second},
		"ScheduledAt ": {ScheduledAt: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}, "Priority": {Priority: 10}, "Priority ": {Priority: -1},
		"Queue": {Queue: " x"}, "MaxAttempts": {MaxAttempts: -1}, "Retry.Delay": {Retry: Constant{Delay: -1}},
		"ArgsPatch": {ArgsPatch: json.RawMessage(`[1]`)}, "ArgsPatch ": {ArgsPatch: json.RawMessage{}},
	} {
		want := strings.TrimSpace(want)
		if _, err := db.client.Edit(t.Context(), id, e, Audit{}); !slices.Equal(fields(t, unwrapped(err)), []string{want}) {
			t.Errorf("Edit with %+v: %v, want field %s", e, err, want)
		}
		if _, err := db.client.EditMany(t.Context(), Filter{All: true}, e, Audit{}); !slices.Equal(fields(t, unwrapped(err)), []string{want}) {
			t.Errorf("EditMany with %+v: %v, want field %s", e, err, want)
		}
	}
	if _, err := db.client.EditMany(t.Context(), Filter{}, JobEdit{Priority: 11}, Audit{By: "\x00"}); !slices.Equal(fields(t, err), []string{"Priority", "Filter", "By"}) {
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

// an edit that does not fit its job is refused, alone and by filter, and the job stays as it is.
func TestEditThatDoesNotFitTheJob(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newTestDB(t)
	for name, tc := range map[string]struct {
		columns, values string
		edit            JobEdit
		want            error
	}{
		"expires before":       {"state, scheduled_at, expires_at", "'scheduled', now() + interval '1 h', now() + interval '2 h'", JobEdit{Delay: 3 * time.Hour}, ErrState},
		"has expired":          {"state, scheduled_at, expires_at", "'scheduled', now() + interval '1 h', now() - interval '1 s'", JobEdit{RunNow: true}, ErrState},
		"args are no object":   {"args", "'[1]'", JobEdit{ArgsPatch: json.RawMessage(`{"to": "x"}`)}, ErrInvalid},
		"args beyond the size": {"args", `jsonb_build_object('x', repeat('x', 25165000))`, JobEdit{ArgsPatch: json.RawMessage(`{"y": "` + strings.Repeat("y", 2000) + `"}`)}, nil},
	} {
		id := db.put(t, tc.columns, tc.values)
		before := value[string](t, db, `select md5(j::text) from jobs j where id = $1`, id)
		if _, err := db.client.Edit(t.Context(), id, tc.edit, Audit{}); err == nil || tc.want != nil && !errors.Is(err, tc.want) {
			t.Errorf("%s: %.200v", name, err)
		}
		done, err := db.client.EditMany(t.Context(), Filter{IDs: []string{id}}, tc.edit, Audit{})
		if err != nil || !slices.Equal(refusedIDs(done), []string{id}) {
			t.Errorf("%s by filter: %.200v, %v", name, done, err)
		}
		if after := value[string](t, db, `select md5(j::text) from jobs j where id = $1`, id); after != before {
			t.Errorf("%s: it is changed", name)
		}
	}
}

// unwrapped is the InvalidError, or what joins several.
func unwrapped(err error) error {
	var invalid *InvalidError
	if _, joined := err.(interface{ Unwrap() []error }); !joined && errors.As(err, &invalid) {
		return invalid
	}
	return err
}

// A rerun is a new job like the old one, and each names the other.
func TestRerun(t *testing.T) {
	t.Parallel()
	var heard eventLog
	db := newTestDBWith(t, Config{Logger: quiet(), Hooks: []Hooks{heard.hooks()}})
	id := db.put(t, `queue, args, priority, max_attempts, retry, timeout_ms, expires_at, retry_until, tags, metadata, concurrency_key, state, finalized_at, attempt, claim_seq, errors_total,
		errors, created_at, crashes, redrives, snoozes`, `'q', '{"to": "ann"}', 3, 4, '{"type": "constant", "delay": "1m"}', 5000, '2031-01-01', now() - interval '1 h' + interval '10 min',
		'{vip}', '{"trace": "x", "drover:follow_up": 1}', 'k', 'completed', now(), 2, 2, 1, '[{"class": "error", "error": "no"}]', now() - interval '1 h', 1, 1, 1`)
	receipt, err := db.client.Rerun(t.Context(), id, nil, Audit{By: "ann", Why: "the file was lost"})
	if err != nil || receipt != (Receipt{ID: receipt.ID}) || receipt.ID == id {
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
	made, old := db.get(t, receipt.ID), db.get(t, id)
	if e := made.Errors; len(e) != 1 || e[0].Class != ClassOperator || e[0].By != "ann" || e[0].Job != id || e[0].Error != "rerun of "+id+": the file was lost" {
		t.Errorf("the new job's history: %+v", e)
	}
	if e := old.Errors; old.State != Completed || len(e) != 2 || e[1].Class != ClassOperator || e[1].By != "ann" || e[1].Job != made.ID || e[1].Error != "rerun as "+made.ID+": the file was lost" {
		t.Errorf("the old job's history: %+v", e)
	}
	if e := heard.of(made.ID); len(e) != 1 || e[0].name != "enqueued" || e[0].Queue != "q" || e[0].Kind != "letter" {
		t.Errorf("events %+v", e)
	}
	again, err := db.client.Rerun(t.Context(), id, nil, Audit{})
	if err != nil || again.ID == made.ID {
		t.Errorf("a second rerun: %+v, %v", again, err)
	}
	period := db.put(t, "state, finalized_at, unique_key, unique_scope, unique_until", "'completed', now(), 'other key', 'period', now() + interval '1 h'")
	if receipt, err = db.client.Rerun(t.Context(), period, nil, Audit{}); err != nil || !value[bool](t, db, `select num_nonnulls(unique_key, unique_scope, unique_until) = 0 from jobs where id = $1`, receipt.ID) {
		t.Errorf("in its period: %+v, %v", receipt, err)
	}
	unique := db.put(t, "state, finalized_at, unique_key, unique_scope, unique_until", "'completed', now(), 'a key', 'ended', 'infinity'")
	if receipt, err = db.client.Rerun(t.Context(), unique, nil, Audit{}); err != nil || db.get(t, receipt.ID).UniqueKey != "a key" {
		t.Errorf("of a unique job: %+v, %v", receipt, err)
	}
	if _, err := db.client.Rerun(t.Context(), unique, nil, Audit{}); !errors.Is(err, ErrState) || !strings.Contains(err.Error(), receipt.ID) {
		t.Errorf("while the new job has its unique key: %v", err)
	}
	expired := db.put(t, "state, finalized_at, expires_at", "'completed', now(), now() - interval '1 s'")
	if _, err := db.client.Rerun(t.Context(), expired, nil, Audit{}); !errors.Is(err, ErrState) || !strings.Contains(err.Error(), "expired") {
		t.Errorf("expired: %v", err)
	}
	for state, id := range db.inEveryState(t, "x") {
		if _, err := db.client.Rerun(t.Context(), id, nil, Audit{}); (err == nil) != (state == Completed) || err != nil && !errors.Is(err, ErrState) {
			t.Errorf("%s: %v", state, err)
		}
	}
}

// RunPeriodic takes an id as Rerun does.
func TestRunPeriodicWithAnID(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	db.setPeriodic(t, Periodic{Name: "a", Schedule: "@yearly", Args: job{}})
	opts := &RunOpts{ID: ulid.Make().String()}
	id, err := db.client.RunPeriodic(t.Context(), "a", opts, Audit{})
	if err != nil || id != opts.ID {
		t.Fatalf("%s, %v", id, err)
	}
	for range 2 { // as the last job of its schedule, and as an older one
		if _, err := db.client.RunPeriodic(t.Context(), "a", opts, Audit{}); !errors.Is(err, ErrState) || !strings.Contains(err.Error(), "before") {
			t.Errorf("again: %v", err)
		}
		if _, err := db.client.RunPeriodic(t.Context(), "a", nil, Audit{}); err != nil {
			t.Fatal(err)
		}
	}
	other := &RunOpts{ID: db.put(t, "queue", "'other'")}
	if _, err := db.client.RunPeriodic(t.Context(), "a", other, Audit{}); !errors.Is(err, ErrIDConflict) {
		t.Errorf("the id of another job: %v", err)
	}
	if _, err := db.client.RunPeriodic(t.Context(), "a", &RunOpts{ID: "x"}, Audit{}); !slices.Equal(fields(t, unwrapped(err)), []string{"ID"}) {
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
	opts := &RunOpts{ID: strings.ToLower(ulid.Make().String())}
	receipt, err := db.client.Rerun(t.Context(), id, opts, Audit{})
	if err != nil || receipt.ID != strings.ToUpper(opts.ID) {
		t.Fatalf("%+v, %v", receipt, err)
	}
	for range 11 { // entries of operators do not make it forget
		if _, err := db.client.Rerun(t.Context(), id, nil, Audit{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.client.Rerun(t.Context(), id, opts, Audit{}); !errors.Is(err, ErrState) || !strings.Contains(err.Error(), "before") {
		t.Errorf("again: %v", err)
	}
	if _, err := db.client.Rerun(t.Context(), other, opts, Audit{}); !errors.Is(err, ErrIDConflict) {
		t.Errorf("the id of another job: %v", err)
	}
	if _, err := db.client.Rerun(t.Context(), id, &RunOpts{ID: "x"}, Audit{}); !slices.Equal(fields(t, unwrapped(err)), []string{"ID"}) {
		t.Errorf("no id: %v", err)
	}
	for _, bad := range []string{"", "x", strings.Repeat("é", 13)} { // as other functions refuse an id: by its name, without the row in the error
		if _, err := db.Exec(t.Context(), `select drover_rerun($1, new_id => $2)`, id, bad); pg.SQLState(err) != "22023" || !strings.HasPrefix(pg.Refusal(err), "drover: new_id: ") {
			t.Errorf("new_id %q: %v", bad, err)
		}
	}
	if n := value[int](t, db, `select count(*) from jobs`); n != 2+1+11 {
		t.Errorf("%d jobs", n)
	}
}

// SECURITY.md: of a reason from SQL, 1,000 characters are kept.
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

// What ParseRetryStrategy reads is what the column holds.
func TestParseRetryStrategy(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]RetryStrategy{
		`{"type": "constant", "delay": "1m"}`:           Constant{Delay: time.Minute},
		`{"type": "custom", "name": "mine"}`:            Custom{Name: "mine"},
		`{"type": "linear", "step": "2s", "max": "1h"}`: Linear{Step: 2 * time.Second, Max: time.Hour},
	} {
		if got, err := ParseRetryStrategy(text); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{``, `[]`, `{}`, `{"type": "custom"}`, `{"type": "constant", "delay": "0s"}`, `{"type": "constant", "step": "1s"}`} {
		if got, err := ParseRetryStrategy(text); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
}
