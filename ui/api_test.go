package ui

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/drover-queue/drover"
)

// readable are addresses of the API about things that richSQL has, one for each that can be read.
func readable() map[string][]string {
	return map[string][]string{
		"overview": {`"queues":[`, `"unserved":["nobody"]`, killerID, groupID, "the post is on strike", "s-alive"}, "queue?name=payments": {`"queue":"payments"`, `"parked":1`, "s-alive", `"pauses":[]`},
		"activity": {`"queue":"payments"`, `"completed":100`}, "activity?queue=post": {"[]"},
		"supervisors": {`"state":"alive"`, `"state":"silent"`}, "health": {"a due job of queue nobody has waited 20m"}, "jobs": {waitingID, deadID, killerID}, "jobs?state=discarded&queue=payments&limit=1": {deadID},
		"job?id=" + deadID: {`"OrderID":42`, "card declined again", "goroutine 7 [running]", `"seen":"0/`}, "explanation?id=" + deadID: {`"story":[`, `"next":"`, "drover jobs redrive " + deadID},
		"failures": {groupID, "card declined"}, "failures?status=resolved": {"[]"}, "failure?id=" + groupID: {`"discarded":1`, `"seen":"open"`},
		"redrives": {redriveID, `"matched":400`}, "redrive?id=" + redriveID: {`"filter":{"kind":"charge"}`, "the bank is back"}, "redrives/start?kind=charge": {`"coming":1`, `"reason":"attempts_exhausted"`},
		"periodic": {`"name":"nightly"`}, "schedule?name=nightly": {`"next":["2`, `"schedule":"30 2 * * *"`}, "pauses": {`"scope":"queue:post"`, `"by":"ada"`}, "budgets": {`"per_ms":60000`, `"mode":"defer"`},
		"jobs/cancel?kind=charge": {`"count":5`, `"filter":{"kind":"charge"}`, `"more":false`}, "jobs/discard?kind=charge": {`"count":5`}, "jobs/run-now?kind=charge": {`"count":3`}, "jobs/edit?kind=charge": {`"count":4`}, "jobs/rerun?kind=charge": {`"count":1`}, "jobs/delete?kind=charge": {`"count":2`},
	}
}

// Everything can be read, with the same address and HEAD as well, and without anything in the database.
func TestReadTheAPI(t *testing.T) {
	t.Parallel()
	h, _ := newSite(t, Options{}, richSQL)
	empty, _ := newSite(t, Options{})
	read := map[string]bool{}
	for at, texts := range readable() {
		a := ask(t, h, http.MethodGet, at, "").ok(t, texts...)
		if strings.Contains(a.text, "null") {
			t.Errorf("%s has null", at)
		}
		for _, name := range []string{"Content-Security-Policy", "X-Content-Type-Options", "Cache-Control", "Content-Length"} {
			if a.Header.Get(name) == "" {
				t.Errorf("%s has no %s", at, name)
			}
		}
		head := do(t, h, call(t, http.MethodHead, at, ""))
		if head.StatusCode != http.StatusOK || head.text != "" || head.Header.Get("Content-Type") != "application/json" {
			t.Errorf("HEAD %s: %d, %d bytes", at, head.StatusCode, len(head.text))
		}
		if a := ask(t, empty, http.MethodGet, at, ""); a.StatusCode != http.StatusOK && !strings.Contains(at, "id=") && !strings.Contains(at, "?name=") {
			t.Errorf("%s of an empty database: %d", at, a.StatusCode)
		}
		path, _, _ := strings.Cut(at, "?")
		read[path] = true
	}
	for at, of := range h.(*site).api {
		if of[http.MethodGet] != nil && !read[at] {
			t.Errorf("%s is not read here", at)
		}
	}
}

// A list is read page by page, to its end.
func TestPagesOfTheAPI(t *testing.T) {
	t.Parallel()
	h, _ := newSite(t, Options{}, `insert into jobs (kind, queue) select 'k', case when n % 2 = 0 then 'even' else 'odd' end from generate_series(1, 120) n`)
	for filter, want := range map[string][2]int{"limit=100": {120, 2}, "queue=even&kind=k": {60, 3}, "queue=none": {0, 1}, "tags=x&tags=y": {0, 1}} {
		jobs, pages, after := map[string]bool{}, 0, ""
		for pages == 0 || after != "" {
			page := decode[drover.Page](t, ask(t, h, http.MethodGet, "jobs?"+filter+"&after="+url.QueryEscape(after), "").ok(t).text)
			for i := range page.Jobs {
				jobs[page.Jobs[i].ID] = true
			}
			pages, after = pages+1, page.Next
		}
		if got := [2]int{len(jobs), pages}; got != want {
			t.Errorf("%s: %d, want %d", filter, got, want)
		}
	}
}

// Redact has every text that the pages redact; a text that is no JSON any more is a string; a cursor is left alone.
func TestRedactedJSON(t *testing.T) {
	t.Parallel()
	h, pool := newSite(t, Options{Redact: func(text string) string { return strings.ReplaceAll(text, "4711", "(card)") }}, richSQL, secretSQL)
	hiding := Handler(newClient(t, pool), Options{Logger: quiet(), Redact: func(text string) string { panic(text) }})
	plain, shown := Handler(newClient(t, pool), Options{Logger: quiet()}), 0
	for at := range readable() {
		ask(t, h, http.MethodGet, at, "").ok(t).lacks(t, "4711")
		ask(t, hiding, http.MethodGet, at, "").ok(t).lacks(t, "4711")
		shown += strings.Count(ask(t, plain, http.MethodGet, at, "").ok(t).text, "4711")
	}
	if shown < 30 {
		t.Errorf("without Redact the card is there %d times", shown)
	}
	ask(t, h, http.MethodGet, "job?id="+deadID, "").ok(t, `"args":{"card":"(card)"}`)
	zeros := Handler(newClient(t, pool), Options{Logger: quiet(), Redact: func(string) string { return "{" }})
	ask(t, zeros, http.MethodGet, "job?id="+strings.ToLower(deadID), "").ok(t, `"args":"{"`)
	page := decode[drover.Page](t, ask(t, zeros, http.MethodGet, "jobs?limit=1", "").ok(t).text)
	ask(t, zeros, http.MethodGet, "jobs?limit=1&after="+page.Next, "").ok(t)
}

// Each text of an answer is redacted or a name. A new field makes somebody decide which.
func TestEveryTextIsDecidedUpon(t *testing.T) {
	t.Parallel()
	names := strings.Fields(`id ids queue kind claimed_by concurrency_key tags name scope host build by updated_by type case job supervisor error_type last_job_id unconfirmed part changed_by fingerprint key_from
		zone schedule level unserved unknown until longest on_conflict queues missing seen mode title detail field state redrive periodic`) // state of a supervisor; detail is redacted before
	document := decode[map[string]any](t, string(read("assets/openapi.json")))
	for of, schema := range dig(document, "components", "schemas").(map[string]any) {
		for name, property := range dig(schema, "properties").(map[string]any) {
			if items := dig(property, "items"); items != nil {
				property = items
			}
			if kind := dig(property, "type"); kind != "string" && (kind != nil || dig(property, "$ref") != nil) || dig(property, "format") != nil {
				continue
			}
			if !somebodyWrote(name) && !slices.Contains(names, name) && !strings.Contains(" discard_reason reason class status action catch_up overlap last_state next result ", " "+name+" ") {
				t.Errorf("%s.%s is neither in somebodyWrote nor a name", of, name)
			}
		}
	}
}

// badRequest is a request that is refused, with the field that is wrong and a part of the sentence.
type badRequest struct {
	method, at, body string
	status           int
	field, detail    string
}

const noneID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"

func badReads() []badRequest {
	return []badRequest{
		{"GET", "jobs?sate=discarded", "", 400, "sate", "knows no"},
		{"GET", "jobs?state=dead", "", 400, "state", `"dead" is no state`},
		{"GET", "jobs?state=parked&state=running", "", 400, "state", "twice"},
		{"GET", "jobs?priority=x", "", 400, "priority", "1 to 9"},
		{"GET", "jobs?args={", "", 400, "args", "not JSON"},
		{"GET", "jobs?created_after=yesterday", "", 400, "created_after", "not a time"},
		{"GET", "jobs?tags=%00", "", 400, "tags[0]", "NUL"},
		{"GET", "jobs?limit=101", "", 400, "limit", "1 to 100"},
		{"GET", "jobs?state=discarded&after=yesterday", "", 400, "after", "is not the Next"},
		{"GET", "jobs?state=discarded&after=yesterday/" + noneID, "", 400, "after", "is not the Next"},
		{"GET", "jobs?state=discarded&after=" + noneID, "", 400, "after", "is not the Next"},
		{"GET", "jobs?state=discarded&after=2100-01-01T00:00:00Z/zzz", "", 400, "after", "is not the Next"},
		{"GET", "jobs?after=zzz", "", 400, "after", "is not the Next"},
		{"GET", "jobs?after=2100-01-01T00:00:00Z/" + noneID, "", 400, "after", "is not the Next"},
		{"GET", "jobs?kind=charge&after=-1", "", 400, "after", "is not the Next"},
		{"GET", "jobs?kind=%zz", "", 400, "", "cannot be read"},
		{"GET", "job", "", 400, "id", "lacks"},
		{"GET", "job?id=a&id=b", "", 400, "id", "twice"},
		{"GET", "job?id=" + noneID, "", 404, "", "none with this id"},
		{"GET", "job?id=..%2Fx", "", 404, "", "none with this id"},
		{"GET", "explanation?id=" + noneID, "", 404, "", "none with this id"},
		{"GET", "failure?id=x", "", 404, "", "none with this id"},
		{"GET", "failures?status=shut", "", 400, "status", "none of open"},
		{"GET", "failures?kind=%00", "", 400, "kind", "NUL"},
		{"GET", "schedule?name=x", "", 404, "", "none with this name"},
		{"GET", "queue?name=x", "", 404, "", "none with this name"},
		{"GET", "redrives/start", "", 400, "", "Fill in the filter"},
		{"GET", "redrives/start?kind=a&rate=0", "", 400, "rate", "0.001"},
		{"GET", "redrives/start?state=running", "", 409, "", "can be redriven"},
		{"GET", "jobs/cancel", "", 400, "", "Fill in the filter"},
		{"GET", "jobs/cancel?state=discarded", "", 400, "state", "cannot be meant"},
		{"GET", "job/cancel?id=" + waitingID, "", 405, "", "does not take GET"},
		{"GET", "nowhere", "", 404, "", "no such address"},
		{"GET", "", "", 404, "", "no such address"},
	}
}

func badPosts() []badRequest {
	return []badRequest{
		{"POST", "jobs", "{}", 405, "", "does not take POST"},
		{"PUT", "job/cancel?id=" + waitingID, "{}", 405, "", "does not take PUT"},
		{"POST", "job/sell?id=" + waitingID, "{}", 404, "", "no such address"},
		{"POST", "job/cancel", "{}", 400, "id", "lacks"},
		{"POST", "job/cancel?id=" + noneID, "{}", 404, "", "none with this id"},
		{"POST", "job/cancel?id=" + waitingID, "", 400, "", "too early"},
		{"POST", "job/cancel?id=" + waitingID, "[]", 400, "", "not a JSON object"},
		{"POST", "job/cancel?id=" + waitingID, "{", 400, "", "too early"},
		{"POST", "job/cancel?id=" + waitingID, "{'why': 1}", 400, "", "not JSON"},
		{"POST", "job/cancel?id=" + waitingID, "{} {}", 400, "", "goes on"},
		{"POST", "job/cancel?id=" + waitingID, "{}]", 400, "", "goes on"},
		{"POST", "job/cancel?id=" + waitingID, `{"Why": "x"}`, 400, "Why", "not a field here; there are seen, why"},
		{"POST", "job/cancel?id=" + waitingID, `{"why": "x", "why": "y"}`, 400, "why", "twice"},
		{"POST", "job/cancel?id=" + waitingID, `{"why": 7}`, 400, "why", "not a string"},
		{"POST", "job/cancel?id=" + waitingID, `{"why": "a\u0000b"}`, 400, "why", "NUL"},
		{"POST", "job/cancel?id=" + waitingID, "{\"why\": \"\xff\"}", 400, "", "not UTF-8"},
		{"POST", "job/cancel?id=" + waitingID, `{"why": "` + strings.Repeat("x", 513) + `"}`, 400, "why", "512"},
		{"POST", "job/cancel?id=" + waitingID, `{"why": "` + strings.Repeat("x", mostForm) + `"}`, 413, "", "16 KiB"},
		{"POST", "job/cancel?id=" + waitingID, `{"seen": "available/0"}`, 409, "", "the job has changed: it is available"},
		{"POST", "jobs/enqueue", `{"kind": "charge", "why": "x"}`, 400, "why", "not a field here"},
		{"POST", "job/rerun?id=" + waitingID, `{"id": "x"}`, 400, "id", "not a ULID"},
		{"POST", "job/edit?id=" + waitingID, `{"run_now": true, "delay": "1m"}`, 400, "delay", "contradicts run_now and scheduled_at"},
		{"POST", "jobs/cancel", "{}", 400, "", "Fill in the filter"},
		{"GET", "jobs/delete?args={}", "", 400, "", "Fill in the filter first"},
		{"POST", "jobs/delete?args={}", `{"confirm": "delete"}`, 400, "", "Fill in the filter first"},
		{"POST", "jobs/cancel?state=dead", "{}", 400, "state", "cannot be meant"},
		{"POST", "jobs/delete?kind=charge", "{}", 400, "confirm", "Type the word delete"},
		{"POST", "jobs/delete?kind=charge", `{"confirm": "yes"}`, 400, "confirm", "Type the word delete"},
		{"POST", "jobs/delete?kind=charge", `{"confirm": true}`, 400, "confirm", "not a string"},
		{"POST", "pauses/pause", "{}", 400, "scope", "none of all"},
		{"POST", "pauses/pause", `{"scope": "tag:x"}`, 400, "scope", "none of all"},
		{"POST", "pauses/pause", `{"scope": "queue:x", "for": "soon"}`, 400, "for", "is none of 90m"},
		{"POST", "pauses/pause", `{"scope": "queue:` + strings.Repeat("x", 129) + `"}`, 400, "scope", ""},
		{"POST", "failure/policy?id=" + groupID, `{"policy": "x"}`, 400, "policy", "is neither"},
		{"POST", "failure/policy?id=" + groupID, `{}`, 400, "", "Choose a policy"},
		{"POST", "failure/status?id=" + groupID, `{"status": "x"}`, 400, "status", "is none of"},
		{"POST", "redrives/start", "{}", 400, "filter", "is empty"},
		{"POST", "redrives/start", `{"filter": {}}`, 400, "filter", "is empty"},
		{"POST", "redrives/start", `{"filter": null}`, 400, "filter", "not a JSON object"},
		{"POST", "redrives/start", `{"filter": {"sate": "discarded"}}`, 400, "filter.sate", "not a field here"},
		{"POST", "redrives/start", `{"filter": {"state": "dead"}}`, 400, "filter.state", "is no state"},
		{"POST", "redrives/start", `{"filter": {"tags": "x"}}`, 400, "filter.tags", "not a list of strings"},
		{"POST", "redrives/start", `{"filter": {"priority": 1.5}}`, 400, "filter.priority", "not a whole number"},
		{"POST", "redrives/start", `{"filter": {"created_after": "1 h"}}`, 400, "filter.created_after", "not a time"},
		{"POST", "redrives/start", `{"filter": {"ids": ["a", "\u0000"]}}`, 400, "filter.ids[1]", "NUL"},
		{"POST", "redrives/start", `{"filter": {"kind": "charge"}, "rate": 9000}`, 400, "rate", "0.001 to 5,000"},
		{"POST", "redrives/start", `{"filter": {"kind": "charge"}, "rate": "fast"}`, 400, "rate", "not a number"},
		{"POST", "redrives/start", `{"filter": {"kind": "charge"}, "canary_failures": 1}`, 400, "canary_failures", "needs canary"},
		{"POST", "redrives/start", `{"filter": {"kind": "charge"}, "key_from": "x"}`, 400, "key_from", "needs per_key"},
		{"POST", "redrives/start", `{"filter": {"kind": "charge"}, "args_patch": 7}`, 400, "args_patch", "not a JSON object"},
		{"POST", "redrives/start", `{"filter": {"kind": "charge"}, "id": "x"}`, 400, "id", "not a ULID"},
		{"POST", "redrives/start", `{"filter": {"state": "running"}}`, 409, "", "can be redriven"},
		{"POST", "redrives/start", `{"filter": {"kind": "nobody"}}`, 409, "", "No job matches the filter any more"},
	}
}

// An address or a body that cannot be read says what is wrong with which field, and changes nothing.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	h, pool := newSite(t, Options{Authorize: ada}, richSQL)
	before := value[string](t, pool, everythingSQL)
	for _, c := range append(badReads(), badPosts()...) {
		a := ask(t, h, c.method, c.at, c.body).is(t, c.status)
		a.lacks(t, "drover: ", "Filter.", "SQLSTATE")
		p := decode[problemDocument](t, a.text)
		if p.Result != nil || strings.Contains(a.text, `"result"`) || p.Status != c.status || p.Title != http.StatusText(c.status) || p.Field != c.field || !strings.Contains(p.Detail, c.detail) {
			t.Errorf("%s %s %s: %+v, want the field %q and %q", c.method, c.at, cut(c.body, 200), p, c.field, c.detail)
		}
	}
	if value[string](t, pool, everythingSQL) != before {
		t.Error("something was changed")
	}
}
