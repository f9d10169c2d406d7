package ui

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/oklog/ulid/v2"

	"github.com/drover-queue/drover"
)

// posting is something that may be posted to a database with richSQL: it is done once, and the second time refused.
type posting struct {
	needs      Action
	at, body   string
	then, late string // in the answers
}

// postings are in an order in which each finds its subject. Together they are every verb of the API.
func postings(t *testing.T, pool *pgxpool.Pool) []posting {
	t.Helper()
	started := ulid.Make().String()
	return []posting{
		{Retry, "job/run-now?id=" + idOf(t, pool, "state = 'scheduled'"), `{"why": "w"}`, `"state":"available"`, "it is available, due at"},
		{Edit, "job/edit?id=" + waitingID, `{"why": "w", "priority": 2}`, `"priority":2`, "has these values already"},
		{Edit, "jobs/edit?kind=charge", `{"why": "w", "priority": 7}`, `"changed":`, "No such job matches"},
		{Retry, "job/redrive?id=" + deadID, `{"why": "w"}`, `"redrives":1`, "it is available, due at"},
		{Retry, "jobs/rerun?state=completed", `{"why": "w", "rate": 20}`, `"changed":`, "No such job matches"},
		{Retry, "job/rerun?id=" + idOf(t, pool, "state = 'completed'"), `{"why": "w", "id": "01KAJ4Y8Q3N6T0V5B7C9D1E2N1"}`, `"id":"01KAJ4Y8Q3N6T0V5B7C9D1E2N1"`, "was rerun as"},
		{Cancel, "job/cancel?id=" + waitingID, `{"why": "w"}`, `"state":"cancelled"`, "has ended before: it is cancelled"},
		{Discard, "job/discard?id=" + idOf(t, pool, "queue = 'nobody'"), `{"why": "w"}`, `"discard_reason":"operator"`, "has ended before: it is discarded"},
		{Delete, "job/delete?id=" + killerID, `{"why": "w"}`, `{"changed":1}`, "There is no job"},
		{Triage, "failure/status?id=" + groupID, `{"why": "w", "status": "resolved"}`, `"status":"resolved"`, "is resolved now"},
		{Triage, "failure/policy?id=" + groupID, `{"why": "w", "policy": "discard"}`, `"policy":{"action":"discard"}`, "its policy discard"},
		{Redrive, "redrive/pause?id=" + redriveID, `{"why": "w"}`, `"paused":true`, "is paused now"},
		{Redrive, "redrive/resume?id=" + redriveID, `{"why": "w"}`, `"changed_by":"ada"`, "is running now"},
		{Redrive, "redrive/abort?id=" + redriveID, `{"why": "w"}`, `"state":"aborted"`, "is aborted now"},
		{Schedule, "schedule/pause?name=nightly", `{"why": "w", "for": "7d"}`, `"paused_until":`, "has been paused by ada since"},
		{Schedule, "schedule/resume?name=nightly", `{"why": "w"}`, `"state":"active"`, "is not paused: it is active"},
		{Schedule, "schedule/run-now?name=nightly", `{"why": "w", "id": "01KAJ4Y8Q3N6T0V5B7C9D1E2N2"}`, `"last_job_id":"01KAJ4Y8Q3N6T0V5B7C9D1E2N2"`, ""},
		{Pause, "pauses/pause", `{"why": "w", "scope": "kind:a:b", "for": "90m"}`, `"until":`, "kind:a:b has been paused by ada since"},
		{Pause, "pauses/resume", `{"why": "w", "scope": "kind:a:b"}`, "the post is on strike", "kind:a:b is not paused"},
		{Redrive, "redrives/start", `{"why": "w", "id": "` + started + `", "filter": {"kind": "letter"}, "rate": 20, "canary": 1, "canary_failures": 1}`, `"matched":1`, "was started before"},
		{Retry, "jobs/run-now?kind=charge", `{"why": "w"}`, `"changed":`, "No such job matches"},
		{Discard, "jobs/discard?kind=report", `{"why": "w"}`, `{"changed":1,"ids":[`, "No such job matches"},
		{Cancel, "jobs/cancel?kind=charge&queue=payments", `{"why": "w"}`, `"changed":`, "No such job matches"},
		{Delete, "jobs/delete?state=cancelled", `{"why": "w", "confirm": "delete"}`, `"changed":`, "No such job matches"},
	}
}

// Each verb has one effect, and the second request says that it came late. The name and the reason are kept.
func TestPostToTheAPI(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	h, pool := newLoggedSite(t, &log, Options{Authorize: ada}, richSQL, `delete from drover_supervisors`) // nobody has to follow a pause
	done := map[string]bool{}
	for _, p := range postings(t, pool) {
		ask(t, h, http.MethodPost, p.at, p.body).ok(t, p.then)
		once := value[string](t, pool, everythingSQL)
		ask(t, h, http.MethodPost, p.at, p.body).is(t, http.StatusConflict, p.late)
		if value[string](t, pool, everythingSQL) != once {
			t.Errorf("%s: the second one changed something", p.at)
		}
		at, _, _ := strings.Cut(p.at, "?")
		done[at] = true
	}
	for at, of := range h.(*site).api {
		if of[http.MethodPost] != nil && !done[at] && at != "jobs/enqueue" { // whose second answer is the first job
			t.Errorf("%s is not posted to here", at)
		}
	}
	for sql, want := range map[string]int{
		`select count(*) from jobs where errors->-1->>'by' = 'ada' and errors->-1->>'error' like '%: w'`:                                3, // redriven letter's is drover's
		`select count(*) from drover_failure_groups where updated_by = 'ada' and updated_why = 'w'`:                                     1,
		`select count(*) from drover_redrives where 'ada' in (started_by, changed_by) and 'w' in (why, changed_why)`:                    2,
		`select count(*) from drover_periodic where updated_by = 'ada' and updated_why = 'w'`:                                           1,
		`select count(*) from drover_limits where updated_by = 'ada' and updated_why = 'w'`:                                             1,
		`select count(*) from jobs where metadata->'drover:periodic'->>'by' = 'ada' and metadata->'drover:periodic'->>'why' = 'w'`:      1,
		`select count(*) from drover_redrives where filter = '{"kind": "letter"}' and rate = 20 and canary = 1 and canary_failures = 1`: 1,
		`select count(*) from jobs where id = '` + deadID + `' or id = '` + killerID + `' or id = '` + waitingID + `'`:                  0, // cancelled, and deleted since
	} {
		if n := value[int](t, pool, sql); n != want {
			t.Errorf("%s: %d, want %d", sql, n, want)
		}
	}
	if n := strings.Count(log.String(), "jobs deleted"); n != 2 || !strings.Contains(log.String(), "by=ada why=w") {
		t.Errorf("the log has %q", log.String())
	}
}

// A post may have the state that its sender saw: a job that has gone on since stays as it is.
func TestSeenIsHeldTo(t *testing.T) {
	t.Parallel()
	h, pool := newSite(t, Options{Authorize: ada}, richSQL)
	seen := func(at string) string {
		raw, err := json.Marshal(map[string]any{"seen": decode[struct{ Seen string }](t, ask(t, h, http.MethodGet, at, "").ok(t).text).Seen})
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSuffix(string(raw), "}")
	}
	old := seen("job?id="+deadID) + "}"
	ask(t, h, http.MethodPost, "job/redrive?id="+deadID, old).ok(t)
	ask(t, h, http.MethodPost, "job/discard?id="+deadID, "{}").ok(t)
	ask(t, h, http.MethodPost, "job/redrive?id="+deadID, old).is(t, http.StatusConflict, "the job has changed: it is discarded; ada at ")
	ask(t, h, http.MethodPost, "job/redrive?id="+deadID, seen("job?id="+deadID)+"}").ok(t)

	old = seen("job?id="+waitingID) + `, `
	ask(t, h, http.MethodPost, "job/edit?id="+waitingID, old+`"priority": 2}`).ok(t)
	ask(t, h, http.MethodPost, "job/edit?id="+waitingID, old+`"priority": 3}`).is(t, http.StatusConflict, "the job has changed")

	old = seen("failure?id=" + groupID)
	ask(t, h, http.MethodPost, "failure/status?id="+groupID, old+`, "status": "resolved"}`).ok(t)
	ask(t, h, http.MethodPost, "failure/policy?id="+groupID, old+`, "policy": "discard"}`).is(t, http.StatusConflict, "is resolved now, and its policy retry")

	old = seen("schedule?name=nightly") + "}"
	ask(t, h, http.MethodPost, "schedule/run-now?name=nightly", old).ok(t)
	ask(t, h, http.MethodPost, "schedule/run-now?name=nightly", old).is(t, http.StatusConflict, "has made the job")
	ask(t, h, http.MethodPost, "schedule/run-now?name=nightly", "{}").ok(t) // again, because somebody wants it
	if n := value[int](t, pool, `select count(*) from jobs where kind = 'report'`); n != 2 {
		t.Errorf("the schedule made %d jobs", n)
	}
}

// Many post the same at the same time: it has one effect, and all other answers say so.
func TestPostAllAtOnce(t *testing.T) {
	t.Parallel()
	h, pool := newSite(t, Options{Authorize: ada}, richSQL, `delete from drover_supervisors`)
	for _, p := range postings(t, pool) {
		if p.needs == Retry && strings.HasPrefix(p.at, "jobs/") {
			continue // two of them share its jobs
		}
		requests := make([]*http.Request, 4)
		for i := range requests {
			requests[i] = call(t, http.MethodPost, p.at, p.body)
		}
		var wg sync.WaitGroup
		status := make([]int, len(requests))
		for i, r := range requests {
			wg.Go(func() { status[i] = do(t, h, r).StatusCode })
		}
		wg.Wait()
		if slices.Sort(status); status[0] != http.StatusOK || status[3] > http.StatusConflict {
			t.Errorf("%s: %d", p.at, status)
		}
		if strings.Contains(p.body, `"id"`) && status[1] == http.StatusOK {
			t.Errorf("%s: %d, and one id makes one thing", p.at, status)
		}
	}
	for sql, want := range map[string]int{`select count(*) from drover_redrives`: 2, `select count(*) from jobs where kind = 'report'`: 1, `select count(*) from drover_limits where held_until > now()`: 1} {
		if n := value[int](t, pool, sql); n != want {
			t.Errorf("%s: %d, want %d", sql, n, want)
		}
	}
}

// Nothing is changed without an Authorize, for somebody who may do other things or has no name, from another site, or in
// another type.
func TestRefusedPosts(t *testing.T) {
	t.Parallel()
	h, pool := newSite(t, Options{Authorize: ada}, richSQL)
	reading := Handler(newClient(t, pool), Options{Logger: quiet()})
	before := value[string](t, pool, everythingSQL)
	for _, p := range postings(t, pool) {
		a := ask(t, reading, http.MethodPost, p.at, p.body).is(t, http.StatusMethodNotAllowed)
		if want := map[bool]string{true: "GET, HEAD"}[strings.HasPrefix(p.at, "jobs/") || p.at == "redrives/start"]; a.Header.Get("Allow") != want || a.Header["Allow"] == nil {
			t.Errorf("%s: Allow is %q", p.at, a.Header["Allow"])
		}
		others := Handler(newClient(t, pool), Options{Logger: quiet(), Authorize: func(_ *http.Request, a Action) (string, bool) { return "bob", a != p.needs }})
		nameless := Handler(newClient(t, pool), Options{Logger: quiet(), Authorize: func(*http.Request, Action) (string, bool) { return "", true }})
		for _, h := range []http.Handler{others, nameless} {
			ask(t, h, http.MethodPost, p.at, p.body).is(t, http.StatusForbidden, `needs the action \"`+string(p.needs)+`\"`)
		}
		for _, headers := range []map[string]string{{"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "https://evil.example"}, {"Origin": "null"}} {
			r := call(t, http.MethodPost, p.at, p.body)
			for name, value := range headers {
				r.Header.Set(name, value)
			}
			a := do(t, h, r).is(t, http.StatusForbidden, "Another site sent this")
			follows(t, a, http.MethodPost, p.at)
		}
		for _, kind := range []string{"", "text/plain", "application/x-www-form-urlencoded", "application/json5"} {
			r := call(t, http.MethodPost, p.at, p.body)
			r.Header.Set("Content-Type", kind)
			a := do(t, h, r).is(t, http.StatusUnsupportedMediaType, "application/json")
			follows(t, a, http.MethodPost, p.at)
		}
		if strings.Contains(p.at, "?id=") || strings.Contains(p.at, "?name=") {
			at, _, _ := strings.Cut(p.at, "=")
			a := ask(t, h, http.MethodPost, at+"=01ARZ3NDEKTSV4RRFFQ69G5FAV", p.body)
			if a.StatusCode != http.StatusNotFound && at != "job/delete?id" {
				t.Errorf("%s: %d for an unknown one", at, a.StatusCode)
			}
		}
	}
	if value[string](t, pool, everythingSQL) != before {
		t.Error("something was changed")
	}
}

// A database that is away, late, or refuses the role, and a panic, are problems of every operation.
func TestProblemsOfEveryOperation(t *testing.T) {
	t.Parallel()
	h, pool := newSite(t, Options{Authorize: ada}, richSQL)
	away, err := pgxpool.New(t.Context(), "postgres://drover:secret@127.0.0.1:1/app")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(away.Close)
	var log bytes.Buffer
	lost := newClient(t, away)
	if _, err := pool.Exec(t.Context(), `create function deny() returns trigger language plpgsql as $$ begin raise exception 'permission denied' using errcode = '42501'; end $$;
create trigger deny before update on jobs for each row execute function deny()`); err != nil {
		t.Fatal(err)
	}
	ask(t, h, http.MethodPost, "job/cancel?id="+waitingID, "{}").is(t, http.StatusServiceUnavailable, "may not change drover's tables")
	h.(*site).limit = time.Nanosecond
	broken := Handler(lost, Options{Authorize: ada}).(*site)
	broken.log = quiet()
	for _, of := range broken.api {
		for method, op := range of {
			if method == http.MethodGet {
				op.load = func(context.Context, query) (any, error) { panic("oh no") }
			} else {
				op.begin = func() (body, doing) { panic("oh no") }
			}
		}
	}
	offline := Handler(lost, Options{Authorize: ada})
	offline.(*site).log = quiet()
	type request struct{ method, at, body string }
	var all []request
	for at := range readable() {
		all = append(all, request{http.MethodGet, at, ""})
	}
	for _, p := range postings(t, pool) {
		all = append(all, request{http.MethodPost, p.at, p.body})
	}
	for _, r := range all {
		ask(t, offline, r.method, r.at, r.body).is(t, http.StatusServiceUnavailable, "cannot be reached").lacks(t, "secret", "127.0.0.1")
		ask(t, h, r.method, r.at, r.body).is(t, http.StatusGatewayTimeout)
		ask(t, broken, r.method, r.at, r.body).is(t, http.StatusInternalServerError, "because of a mistake in it").lacks(t, "oh no")
	}
	if log.Len() > 0 {
		t.Error(log.String())
	}
}

// A job is enqueued with options, in the form of drover enqueue --lines. The same id makes no second job.
func TestEnqueueByTheAPI(t *testing.T) {
	t.Parallel()
	h, pool := newSite(t, Options{Authorize: func(_ *http.Request, a Action) (string, bool) { return "ada", a == Enqueue }})
	const job = `{"kind": "charge", "args": {"Order": 7}, "id": "01KAJ4Y8Q3N6T0V5B7C9D1E2N9", "queue": "payments", "priority": 3, "delay": "1h", "max_attempts": 4,
		"retry": {"type": "constant", "delay": "1m"}, "timeout": "90s", "tags": ["a"], "metadata": {"big": 12345678901234567890}, "concurrency_key": "c"}`
	ask(t, h, http.MethodPost, "jobs/enqueue", job).ok(t, `{"id":"01KAJ4Y8Q3N6T0V5B7C9D1E2N9","existing":false,`)
	ask(t, h, http.MethodPost, "jobs/enqueue", job).ok(t, `"existing":true`)
	got := value[string](t, pool, `select concat_ws(' ', count(*), min(queue), min(priority), min(max_attempts), min(args::text), min(retry::text), min(timeout_ms), min(metadata::text), bool_and(scheduled_at > now())) from jobs`)
	if want := `1 payments 3 4 {"Order": 7} {"type": "constant", "delay": "1m", "jitter": "none"} 90000 {"big": 12345678901234567890} t`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for range 2 {
		ask(t, h, http.MethodPost, "jobs/enqueue", `{"kind": "report", "uniqueness": {}}`).ok(t, `"id":"`)
	}
	if n := value[int](t, pool, `select count(*) from jobs where kind = 'report'`); n != 1 {
		t.Errorf("%d jobs are unique", n)
	}
	large := `{"kind": "charge", "args": {"a": "` + strings.Repeat("x", 1<<20) + `"}}` // more than other bodies may have
	ask(t, h, http.MethodPost, "jobs/enqueue", large).ok(t)
	for body, field := range map[string]string{
		`{"args": {}}`: "kind", `{"kind": "x", "priority": 10}`: "priority", `{"kind": "x", "delay": "soon"}`: "delay", `{"kind": "x", "retry": {"type": "odd"}}`: "retry",
		`{"kind": "x", "uniqueness": {"bye": []}}`: "uniqueness", `{"kind": "x", "uniqueness": {"until": "never"}}`: "uniqueness.until", `{"kind": "x", "queue": "a\u0000"}`: "queue",
	} {
		p := decode[problemDocument](t, ask(t, h, http.MethodPost, "jobs/enqueue", body).is(t, http.StatusBadRequest).text)
		if !strings.HasPrefix(p.Field, field) {
			t.Errorf("%s: %+v", body, p)
		}
	}
	ask(t, h, http.MethodPost, "jobs/enqueue", `{"kind": "x", "uniqueness": {"key": true}}`).is(t, http.StatusBadRequest, "uniqueness.key: the job has no concurrency_key.")
	ask(t, h, http.MethodPost, "jobs/cancel?kind=charge", `{}`).is(t, http.StatusForbidden)
}

// A verb that stopped halfway says how far it came.
func TestHalfOfMany(t *testing.T) {
	t.Parallel()
	h, _ := newSite(t, Options{Authorize: ada, Redact: func(text string) string { return strings.ReplaceAll(text, "s3cret", "***") }}, richSQL, `
create function refuse() returns trigger language plpgsql as $$ begin raise exception 'not this one: s3cret' using errcode = '23514'; end $$;
create trigger refuse before update on jobs for each row when (old.id = '`+waitingID+`') execute function refuse()`)
	a := ask(t, h, http.MethodPost, "jobs/cancel?kind=charge", "{}").is(t, http.StatusConflict, "4 jobs were changed", `"result":{"changed":4,"ids":["`, `"refused":[{"id":"`+waitingID, "not this one: ***")
	a.lacks(t, "s3cret")
}

// A body is either read as encoding/json reads it, or refused with one sentence and 400. E-7.
func FuzzReadBody(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"filter": {"kind": "a", "tags": ["x"], "args": {"a": [1]}, "created_after": "2026-01-31T12:00:00Z"}, "rate": 20.5, "canary": 3, "why": "x", "id": ""}`, `{"filter": {"filter": {}}}`, `{"filter": null}`,
		`{"rate": 1e999}`, `{"canary": 1.0}`, `{"why": "a", "why": "b"}`, `{"Why": "a"}`, `{} {}`, `[]`, `{"why": "\ud800"}`, "{\"why\": \"\xff\"}", `{"args_patch":{"a":{"b":null}},}`, ` {"why"` + "\u00a0" + `: "x"}`, `{"a`, `{"why":}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		type plan struct {
			Filter    drover.Filter   `json:"filter"`
			Rate      float64         `json:"rate"`
			Canary    int             `json:"canary"`
			ArgsPatch json.RawMessage `json:"args_patch"`
			Why       string          `json:"why"`
			ID        string          `json:"id"`
		}
		var got, want plan
		fields := bodyOf(&got)
		fields["filter"] = bodyOf(&got.Filter)
		if err := fields.read(raw); err != nil {
			var p problem
			if !errors.As(err, &p) || p.Status != http.StatusBadRequest || p.What == "" || p.What != visible(p.What) || p.Field != visible(p.Field) {
				t.Fatalf("%q: %#v", raw, err)
			}
			return
		}
		dec := json.NewDecoder(bytes.NewReader(raw))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&want); err != nil || dec.More() {
			t.Fatalf("%q was read: %v", raw, err)
		}
		is, err := json.Marshal(got)
		should, wantErr := json.Marshal(want)
		if err != nil && wantErr != nil {
			return // a year that JSON cannot hold
		}
		if !bytes.Equal(is, should) {
			t.Fatalf("%q is %s, want %s", raw, is, should)
		}
	})
}

// The fields of drover are named as the sender has named them.
func TestPathsOfFields(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"Filter.IDs[3]": "filter.ids[3]", "Filter.Key": "filter.concurrency_key", "Filter": "filter", "by.Why": "why", "by.Who": "", "PerKey": "per_key", "CanaryFailures": "canary_failures",
		"ID": "id", "after": "after", "FailureFilter.Kind": "kind", "scope": "scope", "Plan": "", "policy.Action": "policy",
	} {
		if got := fieldPath("filter.", name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

// Somebody who may not act does not make the handler read a body.
func TestNoBodyIsReadWithoutLeave(t *testing.T) {
	t.Parallel()
	h, _ := newSite(t, Options{Authorize: func(*http.Request, Action) (string, bool) { return "", false }})
	body := strings.NewReader("{}")
	r := call(t, http.MethodPost, "jobs/enqueue", "")
	r.Body = io.NopCloser(body)
	do(t, h, r).is(t, http.StatusForbidden, "enqueue")
	if body.Len() != 2 {
		t.Errorf("%d bytes are left", body.Len())
	}
}
