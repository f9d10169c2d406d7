package ui

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/oklog/ulid/v2"
)

const lastEntry = `select errors->-1->>'by' || ': ' || (errors->-1->>'error') from jobs where id = $1`

func idOf(t *testing.T, pool *pgxpool.Pool, where string) string {
	t.Helper()
	return value[string](t, pool, `select id from jobs where `+where+` limit 1`)
}

// Each button of a job's page does one thing, once, and the job keeps who did it and why.
func TestActOnAJob(t *testing.T) {
	t.Parallel()
	h, pool := newSite(t, Options{Authorize: ada}, richSQL)
	for _, c := range []struct{ where, button, becomes, tells, late string }{
		{"state = 'scheduled'", "Run this job now", "available", "ada: edited", "it is available, due at"},
		{"state = 'retryable'", "Run this job now", "retryable", "ada: edited", "it is retryable, due at"},
		{"state = 'parked'", "Run this job now", "available", "ada: edited", "it is available, due at"},
		{"id = '" + deadID + "'", "Make this job due again", "available", "ada: redriven", "it is available, due at"},
		{"state = 'cancelled'", "Make this job due again", "available", "ada: redriven", "it is available, due at"},
		{"id = '" + waitingID + "'", "Cancel this job", "cancelled", "ada: cancelled", "The job has ended before: it is cancelled; ada at "},
		{"state = 'running'", "Cancel this job", "cancelled", "ada: cancelled", "The job has ended before: it is cancelled; ada at "},
		{"queue = 'nobody'", "Discard this job", "discarded", "ada: discarded", "The job has ended before: it is discarded; ada at "},
	} {
		id := idOf(t, pool, c.where)
		after := twice(t, h, "/job?id="+id, c.button, c.late, "why", "the <b>bank</b> called")
		after.ok(t, `<span class="state `+c.becomes+`">`, "by ada", "the &lt;b&gt;bank&lt;/b&gt; called")
		if entry := value[string](t, pool, lastEntry, id); !strings.HasPrefix(entry, c.tells) || !strings.HasSuffix(entry, ": the <b>bank</b> called") {
			t.Errorf("%s of %s: the job's last entry is %q", c.button, c.where, entry)
		}
		if n := value[int](t, pool, `select count(*) from jobs, jsonb_array_elements(errors) e where id = $1 and e->>'by' = 'ada'`, id); n != 1 {
			t.Errorf("%s of %s has %d entries", c.button, c.where, n)
		}
	}
}

// The form changes what is filled in, and nothing else. A wrong value changes nothing.
func TestEditAJob(t *testing.T) {
	t.Parallel()
	h, pool := newSite(t, Options{Authorize: ada}, richSQL)
	at := "/job?id=" + waitingID
	row := func() string {
		return value[string](t, pool, `select concat_ws(' ', state, queue, priority, max_attempts, args->>'OrderID', round(extract(epoch from scheduled_at - now()) / 60)) from jobs where id = $1`, waitingID)
	}
	before := row()
	for _, wrong := range [][]string{{"priority", "10"}, {"priority", "soon"}, {"due", "yesterday"}, {"max_attempts", "0"}, {"args_patch", "{"}, {"args_patch", "[]"}, {"to_queue", "a\x00b"}, {}} {
		do(t, h, request(t, get(t, h, at).ok(t), "Change this job", wrong...)).is(t, http.StatusBadRequest)
	}
	if got := row(); got != before {
		t.Fatalf("it was %s, and is %s", before, got)
	}
	old := get(t, h, at).ok(t)
	do(t, h, request(t, old, "Change this job", "due", "90m", "priority", "2", "to_queue", "email", "max_attempts", "7", "args_patch", `{"OrderID": 43}`, "why", "a slip")).is(t, http.StatusSeeOther)
	if got := row(); got != "scheduled email 2 7 43 90" {
		t.Errorf("it is %s", got)
	}
	do(t, h, request(t, old, "Change this job", "priority", "3")).is(t, http.StatusConflict, "it is scheduled, due at")
}

// A page of a job shows the buttons that its state allows.
func TestButtonsOfAJob(t *testing.T) {
	t.Parallel()
	h, pool := newSite(t, Options{Authorize: ada}, richSQL)
	for state, want := range map[string]string{
		"available": "Cancel this job,Discard this job,Change this job", "scheduled": "Run this job now,Cancel this job,Discard this job,Change this job", "retryable": "Run this job now,Cancel this job,Discard this job,Change this job",
		"parked": "Run this job now,Cancel this job,Discard this job,Change this job", "running": "Cancel this job,Discard this job", "discarded": "Make this job due again", "cancelled": "Make this job due again",
		"completed": "Run it once more, as a new job",
	} {
		a := get(t, h, "/job?id="+idOf(t, pool, "state = '"+state+"'")).ok(t)
		var has []string
		for _, f := range forms(t, a) {
			for _, b := range f.buttons {
				has = append(has, b.text)
			}
		}
		if got := strings.Join(has, ","); got != want {
			t.Errorf("%s: %s, want %s", state, got, want)
		}
		if ended := state == "discarded" || state == "cancelled" || state == "completed"; strings.Contains(a.text, "Delete this job…") != ended {
			t.Errorf("%s: the link to delete it", state)
		}
	}
}

// A job is deleted on a page of its own, which names it, and then says that it is gone.
func TestDeleteAJob(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	h, pool := newLoggedSite(t, &log, Options{Authorize: ada}, richSQL)
	at := "/delete?id=" + deadID
	text := "Delete the job " + deadID + " for good"
	get(t, h, at).ok(t, deadID, "charge", "payments", "deleted for good")
	twice(t, h, at, text, "There is no job "+deadID+" any more.", "why", "a secret in its args").ok(t, "There is no job <code>"+deadID).lacks(t, "<form")
	if n := value[int](t, pool, `select count(*) from jobs where id = $1`, deadID); n != 0 {
		t.Error("it is there")
	}
	if !strings.Contains(log.String(), "jobs deleted") || !strings.Contains(log.String(), "by=ada") || !strings.Contains(log.String(), "a secret in its args") {
		t.Errorf("the log has %q", log.String())
	}
	get(t, h, "/delete?id="+waitingID).ok(t, "Only a job that has ended can be deleted.").lacks(t, "<form")
	// It was dead when the page was opened, and somebody has made it due since.
	before := get(t, h, "/delete?id="+killerID).ok(t)
	press(t, h, "/job?id="+killerID, "Make this job due again")
	do(t, h, request(t, before, "Delete the job "+killerID+" for good")).is(t, http.StatusConflict, "this one is available")
	if n := value[int](t, pool, `select count(*) from jobs where id = $1`, killerID); n != 1 {
		t.Error("a job that waits was deleted")
	}
}

// A queue, a kind or everything is paused until a time or for good, and resumed; the page shows the name and the reason.
func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	h, pool := newSite(t, Options{Authorize: ada}, richSQL, `delete from drover_supervisors`) // nobody has to follow
	held := `select updated_by || '/' || updated_why || '/' || case when held_until = 'infinity' then 'ever' else round(extract(epoch from held_until - now()) / 60)::text end from drover_limits where scope = $1`
	twice(t, h, "/queue?name=payments", "Pause queue payments", "queue:payments has been paused by ada since", "why", "the bank is away").ok(t, "This queue is paused by ada (the bank is away)", "until somebody resumes it")
	if got := value[string](t, pool, held, "queue:payments"); got != "ada/the bank is away/ever" {
		t.Error(got)
	}
	twice(t, h, "/queue?name=payments", "Resume queue payments", "queue:payments is not paused: ada resumed it at ").lacks(t, "paused by")
	press(t, h, "/queue?name=payments", "Pause queue payments", "for", "90m").ok(t, "in 89 min")
	if got := value[string](t, pool, held, "queue:payments"); got != "ada//90" {
		t.Error(got)
	}
	twice(t, h, "/pauses", "Pause it: start none of these jobs", "kind:a:b has been paused by ada since", "what", "kind", "name", "a:b", "why", "x").ok(t, "kind:a:b", "Resume kind:a:b")
	twice(t, h, "/pauses", "Resume kind:a:b", "kind:a:b is not paused: ada resumed it at ").lacks(t, "Resume kind:a:b")
	press(t, h, "/pauses", "Pause it: start none of these jobs", "what", "all", "for", "7d").ok(t, "Resume all")
	get(t, h, "/queue?name=payments").ok(t, "All jobs are paused by ada")
	press(t, h, "/pauses", "Resume all").lacks(t, "Resume all")
	press(t, h, "/pauses", "Resume queue:post").lacks(t, "Resume queue:post")
	for _, c := range []struct{ what, name, howLong, text string }{
		{"queue", "", "", "Which queue?"},
		{"all", "x", "", "All jobs have no name"},
		{"queue", "x", "soon", "is none of 90m"},
		{"queue", "x", "0s", "is none of 90m"},
		{"queue", "x", "2020-01-01T00:00:00Z", "past"},
		{"queue", strings.Repeat("x", 129), "", "What to pause: "},
		{"queue", "a\x00b", "", "NUL"},
	} {
		do(t, h, request(t, get(t, h, "/pauses").ok(t), "Pause it: start none of these jobs", "what", c.what, "name", c.name, "for", c.howLong)).is(t, http.StatusBadRequest, c.text)
	}
	do(t, h, postTo(t, "/pauses", url.Values{"do": {"pause"}, "what": {"tag"}, "name": {"x"}})).is(t, http.StatusBadRequest, "none of queue, kind and all")
}

// The status and the policy of a failure change once, and the second person sees what they are.
func TestActOnAFailure(t *testing.T) {
	t.Parallel()
	h, pool := newSite(t, Options{Authorize: ada}, richSQL, `insert into drover_builds (build) values ('v1')`)
	at := "/failure?id=" + groupID
	twice(t, h, at, "Set the status of this failure", "The status of this failure is resolved now, and its policy retry: ada changed it at ", "status", "resolved", "why", "fixed").ok(t, "set by ada (fixed)", "<dd>resolved")
	twice(t, h, at, "Set the status of this failure", "is ignored now", "status", "ignored")
	twice(t, h, at, "Set the policy of this failure", "its policy park: ada changed it at ", "policy", "park", "why", "until the fix").ok(t, "park until a build newer than v1", "set by ada (until the fix)")
	twice(t, h, at, "Set the policy of this failure", "its policy discard: ada changed it at ", "policy", "discard").ok(t, "<dd>discard")
	// Somebody else has changed it between the look and the press.
	before := get(t, h, at).ok(t)
	press(t, h, at, "Set the policy of this failure", "policy", "retry").ok(t, "jobs are retried as usual")
	do(t, h, request(t, before, "Set the status of this failure", "status", "open")).is(t, http.StatusConflict, "is ignored now, and its policy retry")
	if got := value[string](t, pool, `select status || '/' || updated_by from drover_failure_groups`); got != "ignored/ada" {
		t.Error(got)
	}
	for _, c := range []string{"status", "policy"} {
		f, _ := find(t, get(t, h, at), "Set the "+c+" of this failure")
		f.fields.Set(c, "x")
		f.fields.Set("do", c)
		do(t, h, postTo(t, at, f.fields)).is(t, http.StatusBadRequest, "x")
	}
}

// A policy that cannot be says why.
func TestParkWithoutABuild(t *testing.T) {
	t.Parallel()
	h, _ := newSite(t, Options{Authorize: ada}, richSQL)
	do(t, h, request(t, get(t, h, "/failure?id="+groupID).ok(t), "Set the policy of this failure", "policy", "park")).is(t, http.StatusConflict, "No supervisor has registered a build").lacks(t, "SQLSTATE")
}

func TestPauseASchedule(t *testing.T) {
	t.Parallel()
	h, pool := newSite(t, Options{Authorize: ada}, richSQL)
	at := "/schedule?name=nightly"
	twice(t, h, at, "Pause the schedule nightly", "The schedule has been paused by ada since", "why", "the report is wrong", "for", "7d").ok(t, "paused", "until <time", "by ada (the report is wrong)")
	twice(t, h, at, "Resume the schedule nightly", "The schedule is not paused: it is active, and ada changed it at ", "why", "fixed").ok(t, "by ada (fixed)", `<span class="state active">`)
	press(t, h, at, "Pause the schedule nightly").ok(t, "until somebody resumes it")
	if got := value[string](t, pool, `select updated_by || '/' || updated_why from drover_periodic`); got != "ada/" {
		t.Error(got)
	}

	// The pause of a schedule can be seen and ended while no process declares the schedule.
	if got := value[string](t, pool, `update drover_periodic set declared_by = '{gone}', build = 'b' returning name`); got != "nightly" {
		t.Error(got)
	}
	twice(t, h, at, "Resume the schedule nightly", "The schedule is not paused: it is undeclared, and ada changed it at ").ok(t, `<span class="state undeclared">`)
}

func TestActOnARedrive(t *testing.T) {
	t.Parallel()
	h, pool := newSite(t, Options{Authorize: ada}, richSQL)
	at := "/redrive?id=" + redriveID
	twice(t, h, at, "Pause this redrive", "The redrive is paused now: ada changed it at ", "why", "slowly").ok(t, "running</span> paused", "by ada (slowly)")
	twice(t, h, at, "Resume this redrive", "The redrive is running now: ada changed it at ").lacks(t, "</span> paused")
	press(t, h, at, "Pause this redrive")
	twice(t, h, at, "Abort this redrive: jobs that are not due yet stay dead", "The redrive is aborted now: ada changed it at ", "why", "wrong ones").ok(t, "aborted", "by ada (wrong ones)").lacks(t, "<form")
	if got := value[string](t, pool, `select changed_by || '/' || changed_why from drover_redrives`); got != "ada/wrong ones" {
		t.Error(got)
	}
}

// All jobs of a filter: the page counts, asks, does it once, and then counts the jobs that are left.
func TestActOnMany(t *testing.T) {
	t.Parallel()
	h, pool := newSite(t, Options{Authorize: ada}, richSQL, `
insert into jobs (kind, queue) select 'mail', 'q1' from generate_series(1, 1200);
insert into jobs (kind, queue, state, finalized_at) select 'mail', 'q1', 'completed', now() from generate_series(1, 7);
insert into jobs (kind, queue, state, scheduled_at) select 'mail', 'q2', 'scheduled', now() + interval '1 h' from generate_series(1, 3);
insert into jobs (kind, queue, state, finalized_at, discard_reason) select 'mail', 'q3', 'discarded', now(), 'panic' from generate_series(1, 4)`)
	count := func(where string) int { return value[int](t, pool, `select count(*) from jobs where `+where) }
	has := func(at string, wants ...string) {
		t.Helper()
		a := get(t, h, at).ok(t)
		for _, want := range []string{"Run them all now…", "Change them all…", "Rerun them all…", "Cancel them all…", "Discard them all…", "Delete them all…"} {
			if strings.Contains(a.text, want) != strings.Contains(strings.Join(wants, " "), want) {
				t.Errorf("%s: the link %q", at, want)
			}
		}
	}
	has("/jobs")
	has("/jobs?kind=mail", "Run them all now…", "Change them all…", "Rerun them all…", "Cancel them all…", "Discard them all…", "Delete them all…")
	has("/jobs?state=completed", "Rerun them all…", "Delete them all…")
	has("/jobs?state=running", "Cancel them all…", "Discard them all…")
	for _, c := range []struct{ at, button, word, left string }{
		{"/many?do=run-now&kind=mail&queue=q2", "Run 3 jobs now", "", "scheduled_at > now() and kind = 'mail'"},
		{"/many?do=edit&kind=mail&queue=q2", "Change 3 jobs", "", "priority <> 2 and kind = 'mail' and queue = 'q2'"},
		{"/many?do=rerun&kind=mail&state=completed", "Rerun 7 jobs", "", "state = 'completed' and kind = 'mail' and errors = '[]'"},
		{"/many?do=cancel&kind=mail&queue=q1", "Cancel 1,207 jobs", "", "state = 'available' and queue = 'q1'"},
		{"/many?do=discard&kind=mail&queue=q2", "Discard 3 jobs", "", "state <> 'discarded' and queue = 'q2'"},
		{"/many?do=delete&kind=mail&queue=q1&state=completed", "Delete 7 jobs for good", "delete", "state = 'completed' and queue = 'q1'"},
		{"/many?do=delete&queue=q3&state=discarded", "Delete 4 jobs for good", "delete", "queue = 'q3'"},
	} {
		fields := []string{"why", "no longer wanted"}
		if c.word != "" {
			for _, word := range []string{"", "yes", "Delete"} {
				do(t, h, request(t, get(t, h, c.at).ok(t), c.button, "word", word)).is(t, http.StatusBadRequest, "Type the word delete")
			}
			fields = append(fields, "word", c.word)
		}
		if strings.Contains(c.at, "do=edit") {
			fields = append(fields, "priority", "2")
		}
		before := count("true")
		after := twice(t, h, c.at, c.button, "No such job matches the filter any more.", fields...)
		if strings.Contains(c.at, "rerun") {
			before += 7
		}
		if c.word == "" && count("true") != before {
			t.Errorf("%s: jobs are gone, or there are too many", c.at)
		}
		if n := count(c.left); n != 0 {
			t.Errorf("%s: %d jobs are left", c.at, n)
		}
		if !strings.Contains(after.text, "No job that this could change matches it now.") && !strings.Contains(c.at, "run-now") && !strings.Contains(c.at, "edit") {
			t.Errorf("%s: afterwards it shows\n%s", c.at, after.text)
		}
	}
	if n := count(`errors->-1->>'by' = 'ada' and errors->-1->>'error' like '%: no longer wanted'`); n != 1203+7 {
		t.Errorf("%d jobs keep who did it and why", n)
	}
	get(t, h, "/many?do=delete&kind=mail").ok(t, "Delete 1,207 jobs for good") // no dead letters: the filter does not name them
	for at, text := range map[string]string{
		"/many?do=cancel": "Fill in the filter first", "/many?do=cancel&kind=": "Fill in the filter first", "/many?do=delete&args={}": "Fill in the filter first", "/many?do=cancel&args=%20{%20}": "Fill in the filter first", "/many?kind=mail": "none of cancel", "/many?do=sell&kind=mail": "none of cancel",
		"/many?do=cancel&sate=x": "knows no", "/many?do=delete&state=running": "A job that is running", "/many?do=cancel&state=dead": "A job that is dead",
	} {
		get(t, h, at).is(t, http.StatusBadRequest, text)
		do(t, h, postTo(t, at, url.Values{"do": {"cancel"}})).is(t, http.StatusBadRequest)
	}
	do(t, h, postTo(t, "/many?do=cancel&state=running", url.Values{"do": {"discard"}})).is(t, http.StatusBadRequest, "not about the same")
	if n := count("state = 'running'"); n != 1 {
		t.Error("a running job was ended")
	}
}

// If a count takes too long, the page says "more than" the number so far.
func TestCountOfMany(t *testing.T) {
	t.Parallel()
	h, pool := newSite(t, Options{Authorize: ada}, richSQL)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `lock table jobs`); err != nil {
		t.Fatal(err)
	}
	get(t, h, "/many?do=cancel&kind=charge").ok(t, "It picks an unknown number of jobs that this would change; to count them all takes too long", "Cancel an unknown number of jobs")
	d := manyData{Count: 1200, More: true} // only some of the states were counted
	if got := d.Jobs(); got != "more than 1,200 jobs" {
		t.Error(got)
	}
}

// A job that the database refuses to change is named, and the others are changed.
func TestManyRefused(t *testing.T) {
	t.Parallel()
	h, pool := newSite(t, Options{Authorize: ada, Redact: func(text string) string { return strings.ReplaceAll(text, "s3cret", "***") }}, richSQL, `
create function refuse() returns trigger language plpgsql as $$ begin raise exception 'not <this> one: s3cret' using errcode = '23514'; end $$;
create trigger refuse before update on jobs for each row when (old.id = '`+waitingID+`') execute function refuse()`)
	do(t, h, request(t, get(t, h, "/many?do=cancel&kind=charge"), "Cancel 5 jobs")).is(t, http.StatusConflict, "4 jobs were changed. The database refuses 1, such as "+waitingID, "not &lt;this&gt; one: ***").lacks(t, "s3cret")
	if n := value[int](t, pool, `select count(*) from jobs where kind = 'charge' and finalized_at is null`); n != 1 {
		t.Errorf("%d are left", n)
	}
}

// A completed job is run again once, however often the button is pressed, and so is a schedule.
func TestRunOnceMore(t *testing.T) {
	t.Parallel()
	h, pool := newSite(t, Options{Authorize: ada}, richSQL)
	done := idOf(t, pool, "state = 'completed'")
	jobs := func() int { return value[int](t, pool, `select count(*) from jobs`) }
	before := jobs()
	twice(t, h, "/job?id="+done, "Run it once more, as a new job", "Since you saw it, the job has changed: it is completed; ada at ", "why", "the label was lost").ok(t, "rerun of "+done, "by ada", "the label was lost", `<span class="state available">`)
	at := "/schedule?name=nightly"
	twice(t, h, at, "Run the schedule nightly once, now", ", and it has made the job ", "why", "month end").ok(t, "<span class=\"state available\">")
	if got := value[string](t, pool, `select metadata->'drover:periodic'->>'by' || '/' || (metadata->'drover:periodic'->>'why') from jobs where kind = 'report'`); got != "ada/month end" {
		t.Error(got)
	}
	if n := jobs() - before; n != 2 {
		t.Errorf("%d new jobs", n)
	}
	press(t, h, "/job?id="+done, "Run it once more, as a new job") // a page that was opened again means it again
	press(t, h, at, "Run the schedule nightly once, now")
	if n := jobs() - before; n != 4 {
		t.Errorf("%d new jobs", n)
	}
	for _, a := range []string{"/job?id=" + done, at} {
		for _, verb := range []string{"rerun", "run-now"} {
			if a := do(t, h, postTo(t, a, url.Values{"do": {verb}})); a.StatusCode == http.StatusSeeOther {
				t.Errorf("%s %s without an id: %d", a.at, verb, a.StatusCode)
			}
		}
	}
	if n := jobs() - before; n != 4 {
		t.Errorf("%d new jobs", n)
	}
}

// A redrive: the dry run, its pace, then the start, which is one however often the form is sent.
func TestStartARedrive(t *testing.T) {
	t.Parallel()
	h, pool := newSite(t, Options{Authorize: ada}, richSQL, `
insert into jobs (kind, queue, state, finalized_at, discard_reason) select 'mail', 'q' || n % 2, 'discarded', now(), 'panic' from generate_series(1, 600) n;
insert into jobs (kind, queue, state, finalized_at, discard_reason, expires_at) values ('mail', 'q0', 'discarded', now(), 'expired', now() - interval '1 h')`)
	if !strings.Contains(get(t, h, "/failure?id="+groupID).ok(t).text, `href="start?fingerprint=`+groupID+`"`) {
		t.Error("no link from the failure")
	}
	get(t, h, "/jobs?kind=mail&state=discarded").ok(t, `href="start?kind=mail&amp;state=discarded"`)
	get(t, h, "/start?fingerprint="+groupID).ok(t, "card declined again", "1 job would come back, 50 a second")
	// The pace is a form of its own, which shows the dry run again.
	a := get(t, h, "/start?kind=mail").ok(t, ">300</td>", "600 jobs would come back, 50 a second in each queue: 6 s or more", "Expired: 1.")
	f, _ := find(t, a, "Show what this redrive would do")
	for key, value := range map[string]string{"rate": "20", "canary": "10", "canary_failures": "2", "limit": "500"} {
		if !f.fields.Has(key) {
			t.Errorf("no field %s", key)
		}
		f.fields.Set(key, value)
	}
	at := "/" + f.action + "?" + f.fields.Encode()
	get(t, h, at).ok(t, "500 jobs would come back, 20 a second in each queue: 12 s or more")
	before := get(t, h, at).ok(t)
	first, second := request(t, before, "Start this redrive of 500 jobs", "why", "the bank is back"), request(t, before, "Start this redrive of 500 jobs")
	follow(t, h, do(t, h, first)).ok(t, "by ada (the bank is back)", "20 a second", "Pause this redrive")
	started := value[string](t, pool, `select id from drover_redrives where id <> $1`, redriveID)
	for value[string](t, pool, `select state from drover_redrives where id = $1`, started) == "marking" { // the page waits only a moment for this
		value[any](t, pool, `select drover_redrive_mark($1)`, started)
	}
	get(t, h, "/redrive?id="+started).ok(t, "0 of 500")
	do(t, h, second).is(t, http.StatusConflict, "was started before")
	if got := value[string](t, pool, `select count(*) || '/' || min(started_by) || '/' || min(why) || '/' || min(canary) || '/' || min(canary_failures) from drover_redrives where id <> $1`, redriveID); got != "1/ada/the bank is back/10/2" {
		t.Error(got)
	}
	get(t, h, "/start?kind=mail").ok(t, "Held by another redrive: 500.", "Start this redrive of 100 jobs")
	for at, text := range map[string]string{
		"/start": "Fill in the filter first", "/start?args={}": "Fill in the filter first", "/start?rate=5": "Fill in the filter first", "/start?kind=mail&rate=fast": "Rate: ", "/start?kind=mail&rate=0": "Rate: ", "/start?kind=mail&rate=9000": "Rate: 9000",
		"/start?kind=mail&canary=-1": "canary", "/start?kind=mail&canary_failures=1": "Canaries that may fail", "/start?kind=mail&key_from=x": "Where the key is", "/start?kind=mail&per_key=1": "None of 601 jobs has a key",
		"/start?kind=mail&limit=x": "limit", "/start?kind=mail&sate=x": "knows no", "/start?kind=mail&rate=1&rate=2": "twice",
	} {
		a := get(t, h, at)
		a.is(t, http.StatusBadRequest, text).lacks(t, "SQLSTATE", "drover: ")
		do(t, h, postTo(t, at, url.Values{"do": {"start"}, "new": {ulid.Make().String()}})).is(t, http.StatusBadRequest, text)
	}
	get(t, h, "/start?state=running").is(t, http.StatusConflict, "Only discarded, cancelled and parked jobs can be redriven")
	do(t, h, postTo(t, "/start?kind=mail", url.Values{"do": {"start"}})).is(t, http.StatusBadRequest, "lacks")
	if n := value[int](t, pool, `select count(*) from drover_redrives`); n != 2 {
		t.Errorf("%d redrives", n)
	}
}

// Names that try to be markup, addresses or terminal codes are paused and resumed like others.
func TestHostileNamesInForms(t *testing.T) {
	t.Parallel()
	h, pool := newSite(t, Options{Authorize: ada})
	for _, name := range []string{`../x`, `..`, `%2e%2e/x`, `<script>alert(1)</script>`, `"><img src=x>`, `javascript:alert(1)`, `a'b"c`, `{{.}}`, `a&b=c#d?e+f g`, `kind:x`, `</form><form>`} {
		at := "/queue?name=" + url.QueryEscape(name)
		press(t, h, at, "Pause queue "+visible(name)).lacks(t, "<script>", "<img")
		if n := value[int](t, pool, `select count(*) from drover_limits where scope = $1 and held_until > now()`, "queue:"+name); n != 1 {
			t.Errorf("%q is not paused", name)
		}
		press(t, h, "/pauses", "Resume queue:"+visible(name)).lacks(t, "<script>", "<img")
		if n := value[int](t, pool, `select count(*) from drover_limits where held_until > now()`); n != 0 {
			t.Errorf("%q is not resumed", name)
		}
		if _, err := pool.Exec(t.Context(), `insert into jobs (kind, queue, tags) values ($1, $1, array[$1])`, name); err != nil {
			t.Fatal(err)
		}
		press(t, h, "/many?do=cancel&tags="+url.QueryEscape(name)+"&kind="+url.QueryEscape(name), "Cancel 1 job").lacks(t, "<script>", "<img")
		if n := value[int](t, pool, `select count(*) from jobs where kind = $1 and state = 'cancelled'`, name); n != 1 {
			t.Errorf("the job of %q is not cancelled", name)
		}
	}
}

// A page that was opened before the job came back, ran and died again does not bring it back once more.
func TestAnOldPage(t *testing.T) {
	t.Parallel()
	h, pool := newSite(t, Options{Authorize: ada}, richSQL)
	old := get(t, h, "/job?id="+deadID).ok(t)
	press(t, h, "/job?id="+deadID, "Make this job due again")
	if _, err := pool.Exec(t.Context(), `select drover_discard($1)`, deadID); err != nil {
		t.Fatal(err)
	}
	do(t, h, request(t, old, "Make this job due again")).is(t, http.StatusConflict, "the job has changed: it is discarded; ")
	press(t, h, "/job?id="+deadID, "Make this job due again").ok(t, `<span class="state available">`)
}

// Two people edit a job: the second one learns that what they saw is not there any more.
func TestAnEditIsSeen(t *testing.T) {
	t.Parallel()
	h, pool := newSite(t, Options{Authorize: ada}, richSQL)
	old := get(t, h, "/job?id="+waitingID).ok(t)
	press(t, h, "/job?id="+waitingID, "Change this job", "priority", "2")
	do(t, h, request(t, old, "Change this job", "priority", "3")).is(t, http.StatusConflict, "the job has changed")
	if p := value[int](t, pool, `select priority from jobs where id = $1`, waitingID); p != 2 {
		t.Errorf("priority %d", p)
	}
}

// A redrive that takes long to find its jobs has been stored all the same, and its page says how far it is.
func TestStartASlowRedrive(t *testing.T) {
	t.Parallel()
	h, pool := newSite(t, Options{Authorize: ada}, richSQL)
	page := get(t, h, "/start?kind=charge").ok(t)
	press := func() *answer { return do(t, h, request(t, page, "Start this redrive of 1 job")) }
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `savepoint s; lock table jobs`); err != nil {
		t.Fatal(err)
	}
	press().is(t, http.StatusGatewayTimeout, "did not answer in time") // it could not even be stored
	if _, err := tx.Exec(t.Context(), `rollback to s; select from jobs where id = '`+deadID+`' for update`); err != nil {
		t.Fatal(err)
	}
	follow(t, h, press()).ok(t, `<span class="state marking">`, "by ada")
}
