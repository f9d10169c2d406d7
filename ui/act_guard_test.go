package ui

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
)

// everything of the database that a form may change, as one text.
const everythingSQL = `
select md5(concat((select string_agg(j::text, '|' order by id) from jobs j), (select string_agg(l::text, '|' order by scope) from drover_limits l),
	(select string_agg(g::text, '|' order by fingerprint) from drover_failure_groups g), (select string_agg(p::text, '|' order by name) from drover_periodic p),
	(select string_agg(r::text, '|' order by id) from drover_redrives r)))`

// writable are pages of richSQL that have forms, and the buttons of each with what it needs.
func writable(t *testing.T, pool *pgxpool.Pool) map[string]map[string]Action {
	t.Helper()
	return map[string]map[string]Action{
		"/job?id=" + idOf(t, pool, "state = 'retryable'"): {"Run this job now": Retry, "Cancel this job": Cancel, "Discard this job": Discard},
		"/job?id=" + deadID: {"Make this job due again": Retry},
		"/job?id=" + idOf(t, pool, "state = 'completed'"): {"Run it once more, as a new job": Retry},
		"/delete?id=" + killerID:                          {"Delete the job " + killerID + " for good": Delete},
		"/queue?name=payments":                            {"Pause queue payments": Pause},
		"/queue?name=post":                                {"Resume queue post": Pause},
		"/pauses":                                         {"Pause it: start none of these jobs": Pause, "Resume queue:post": Pause},
		"/failure?id=" + groupID:                          {"Set the status of this failure": Triage, "Set the policy of this failure": Triage},
		"/schedule?name=nightly":                          {"Pause the schedule nightly": Schedule, "Run the schedule nightly once, now": Schedule},
		"/redrive?id=" + redriveID:                        {"Pause this redrive": Redrive, "Abort this redrive: jobs that are not due yet stay dead": Redrive},
		"/start?kind=charge":                              {"Start this redrive of 1 job": Redrive},
		"/many?do=cancel&kind=charge":                     {"Cancel 5 jobs": Cancel},
		"/many?do=discard&kind=charge":                    {"Discard 5 jobs": Discard},
		"/many?do=run-now&kind=charge":                    {"Run 3 jobs now": Retry},
		"/many?do=rerun&state=completed":                  {"Rerun 1 job": Retry},
		"/many?do=delete&kind=charge":                     {"Delete 2 jobs for good": Delete},
	}
}

// Without an Authorize no page has a form that changes something, nor a link to one, and no form is taken.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	all, pool := newSite(t, Options{Authorize: ada}, richSQL)
	h := Handler(newClient(t, pool), Options{Logger: quiet()})
	before := value[string](t, pool, everythingSQL)
	for at, a := range crawl(t, h, "/") {
		if strings.Contains(a.text, `method="post"`) || strings.Contains(a.text, "<button name") || strings.Contains(a.text, "…</a>") {
			t.Errorf("%s has a form, or leads to one", at)
		}
	}
	for at, buttons := range writable(t, pool) {
		page := get(t, all, at).ok(t)
		get(t, h, at).ok(t).lacks(t, `method="post"`)
		for text := range buttons {
			a := do(t, h, request(t, page, text)).is(t, http.StatusMethodNotAllowed, "can only be read")
			if a.Header.Get("Allow") != "GET, HEAD" {
				t.Errorf("%s: Allow is %q", at, a.Header.Get("Allow"))
			}
		}
	}
	if value[string](t, pool, everythingSQL) != before {
		t.Error("something was changed")
	}
}

// A person who may do one thing has its buttons, and no others; a form of another thing is refused, and so is every form
// without a name.
func TestEachActionIsAskedFor(t *testing.T) {
	t.Parallel()
	all, pool := newSite(t, Options{Authorize: ada}, richSQL)
	before := value[string](t, pool, everythingSQL)
	for _, may := range []Action{Retry, Cancel, Discard, Delete, Pause, Triage, Redrive, Schedule, "nameless"} {
		h := Handler(newClient(t, pool), Options{Logger: quiet(), Authorize: func(r *http.Request, a Action) (string, bool) {
			if may == "nameless" {
				return "", true
			}
			return r.Header.Get("X-User"), a == may // ok alone does not do: the name is missing if the header is
		}})
		asBob := func(r *http.Request) *http.Request { r.Header.Set("X-User", "bob"); return r }
		for at, buttons := range writable(t, pool) {
			page := get(t, all, at).ok(t)
			mine := do(t, h, asBob(httptest.NewRequestWithContext(t.Context(), http.MethodGet, at, nil))).ok(t)
			for text, needs := range buttons {
				if has := strings.Contains(mine.text, ">"+text+"</button>"); has != (needs == may) {
					t.Errorf("%s: who may %s has the button %q: %t", at, may, text, has)
				}
				r := asBob(request(t, page, text))
				if needs == may {
					r = request(t, page, text) // without the name
				}
				do(t, h, r).is(t, http.StatusForbidden, "You may not do this: it needs the action &#34;"+string(needs)+"&#34;.", "Nothing was changed")
			}
		}
	}
	if value[string](t, pool, everythingSQL) != before {
		t.Error("something was changed")
	}
}

// A form that another site sends is refused, whatever the browser says of it.
func TestCrossSite(t *testing.T) {
	t.Parallel()
	h, pool := newSite(t, Options{Authorize: ada}, richSQL)
	before := value[string](t, pool, everythingSQL)
	for at, buttons := range writable(t, pool) {
		page := get(t, h, at).ok(t)
		for text := range buttons {
			for _, headers := range []map[string]string{
				{"Sec-Fetch-Site": "cross-site"},
				{"Sec-Fetch-Site": "same-site"},
				{"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"},
				{"Sec-Fetch-Site": "", "Origin": "https://evil.example"},
				{"Sec-Fetch-Site": "", "Origin": "null"},
				{"Sec-Fetch-Site": "", "Origin": "https://example.com.evil.example"},
			} {
				r := request(t, page, text)
				for name, value := range headers {
					r.Header.Set(name, value)
				}
				do(t, h, r).is(t, http.StatusForbidden, "was not sent from these pages").lacks(t, "evil.example")
			}
		}
	}
	if value[string](t, pool, everythingSQL) != before {
		t.Error("something was changed")
	}
	r := request(t, get(t, h, "/pauses"), "Resume queue:post") // an old browser says nothing but the origin
	r.Header.Del("Sec-Fetch-Site")
	follow(t, h, do(t, h, r)).lacks(t, "Resume queue:post")
}

// A form that is not one of the page's is refused before anything is changed.
func TestBadForms(t *testing.T) {
	t.Parallel()
	h, pool := newSite(t, Options{Authorize: ada}, richSQL)
	const none = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
	before := value[string](t, pool, everythingSQL)
	for _, c := range []struct {
		at, body string
		status   int
		text     string
	}{
		{"/job?id=" + waitingID, "", 400, "no action &#34;&#34;; it has cancel, discard, edit, redrive, rerun, run-now."},
		{"/job?id=" + waitingID, "do=delete", 400, "no action"},
		{"/job?id=" + waitingID, "do=cancel&do=discard", 400, "twice"},
		{"/job?id=" + waitingID, "do=cancel&why=a&why=b", 400, "twice"},
		{"/job?id=" + waitingID, "do=cancel&reason=x", 400, "knows no &#34;reason&#34;"},
		{"/job?id=" + waitingID, "do=cancel&id=" + deadID, 400, "knows no &#34;id&#34;"},
		{"/job?id=" + waitingID, "do=cancel;x", 400, "cannot be read"},
		{"/job?id=" + waitingID, "do=cancel&why=%zz", 400, "cannot be read"},
		{"/job?id=" + waitingID, "do=cancel&why=a%00b", 400, "Reason: NUL"},
		{"/job?id=" + waitingID, "do=cancel&why=" + strings.Repeat("x", 513), 400, "Reason: "},
		{"/job?id=" + waitingID, "do=cancel&why=" + strings.Repeat("x", mostForm), 413, "more than 16 KiB"},
		{"/job?id=" + waitingID, "do=run-now&seen=available", 409, "it is available, due at"},
		{"/job?id=" + waitingID, "do=redrive&seen=", 400, "lacks &#34;seen&#34;"},
		{"/job?id=" + waitingID, "do=rerun&seen=x&new=" + none, 409, "it is available, due at"},
		{"/job?id=" + waitingID, "do=rerun&seen=x&new=x", 400, "not a ULID"},
		{"/job?id=" + waitingID + "&x=y", "do=cancel", 400, "knows no"},
		{"/job?id=" + none, "do=cancel", 404, "none with this id"},
		{"/job", "do=cancel", 400, "lacks"},
		{"/delete?id=" + none, "do=delete", 409, "There is no job"},
		{"/delete?id=" + waitingID, "do=delete", 409, "this one is available"},
		{"/failure?id=x", "do=status&status=resolved", 404, "none with this id"},
		{"/failure?id=" + groupID, "do=status&seen=x&status=resolved", 409, "is open now"},
		{"/failure?id=" + groupID, "do=policy&policy=", 400, "lacks &#34;seen&#34;"},
		{"/schedule?name=x", "do=pause", 404, "none with this name"},
		{"/redrive?id=" + none, "do=abort", 404, "none with this id"},
		{"/redrive?id=" + redriveID, "do=resume&seen=x", 409, "The redrive is running now."},
		{"/queue?name=x", "do=resume&seen=x", 409, "queue:x is not paused"},
		{"/queue", "do=pause", 400, "lacks"},
		{"/many?do=cancel&kind=nothing", "do=cancel", 409, "No such job matches"},
		{"/jobs", "do=cancel", 405, "can only be read"},
		{"/", "do=cancel", 405, "can only be read"},
		{"/nowhere", "do=cancel", 405, "can only be read"},
		{"/style.css", "do=cancel", 405, "can only be read"},
	} {
		r := postTo(t, c.at, nil)
		r.Body = http.NoBody
		if c.body != "" {
			r = httptest.NewRequestWithContext(t.Context(), http.MethodPost, c.at, strings.NewReader(c.body))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded; charset=UTF-8")
		}
		do(t, h, r).is(t, c.status, c.text).lacks(t, "drover: ", "SQLSTATE")
	}
	for _, kind := range []string{"", "text/plain", "multipart/form-data; boundary=x", "application/json"} {
		r := postTo(t, "/job?id="+waitingID, url.Values{"do": {"cancel"}})
		r.Header.Set("Content-Type", kind)
		do(t, h, r).is(t, http.StatusUnsupportedMediaType, "not a form of these pages")
	}
	for _, method := range []string{http.MethodPut, http.MethodDelete, http.MethodPatch} {
		do(t, h, httptest.NewRequestWithContext(t.Context(), method, "/job?id="+waitingID, strings.NewReader("do=cancel"))).is(t, http.StatusMethodNotAllowed)
	}
	if value[string](t, pool, everythingSQL) != before {
		t.Error("something was changed")
	}
}

// Many people press the same button at the same time: it has one effect. Each gets the page or one sentence.
func TestAllAtOnce(t *testing.T) {
	t.Parallel()
	h, pool := newSite(t, Options{Authorize: func(r *http.Request, _ Action) (string, bool) { return cmp.Or(r.Header.Get("X-User"), "ada"), true }}, richSQL, `delete from drover_supervisors`)
	before := value[int](t, pool, `select count(*) from jobs`)
	subjects := writable(t, pool)
	var gone []string
	for _, at := range slices.Backward(slices.Sorted(maps.Keys(subjects))) {
		buttons := subjects[at]
		if strings.HasPrefix(at, "/many") || at == "/pauses" {
			continue // their subjects have buttons of their own here, or have ended by them
		}
		for _, text := range slices.Sorted(maps.Keys(buttons)) {
			page := get(t, h, at).ok(t)
			if !strings.Contains(page.text, ">"+text+"</button>") {
				gone = append(gone, text) // by the button before
				continue
			}
			fields := map[string][]string{"Set the status of this failure": {"status", "ignored"}, "Set the policy of this failure": {"policy", "discard"}}[text]
			requests := make([]*http.Request, 5)
			for i := range requests {
				if !strings.HasPrefix(at, "/start") { // of these two, the second finds no jobs that are free
					page = get(t, h, at).ok(t)
				}
				requests[i] = request(t, page, text, fields...)
				requests[i].Header.Set("X-User", fmt.Sprint("person ", i))
			}
			var wg sync.WaitGroup
			answers := make([]*answer, len(requests))
			for i, r := range requests {
				wg.Go(func() { answers[i] = do(t, h, r) })
			}
			wg.Wait()
			first := slices.IndexFunc(answers, func(a *answer) bool { return a.StatusCode == http.StatusSeeOther })
			for i, a := range answers {
				names := strings.Contains(a.text, fmt.Sprint("person ", first)) && regexp.MustCompile(`(at|since) \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC`).MatchString(a.text)
				if i != first && (!strings.HasPrefix(at, "/delete") && (a.StatusCode != http.StatusConflict || !names && !strings.HasPrefix(at, "/start"))) {
					t.Errorf("%s, %s: person %d was first, and person %d reads (%d)\n%s", at, text, first, i, a.StatusCode, a.text)
				}
			}
		}
	}
	if want := []string{"Pause this redrive", "Discard this job", "Run this job now"}; !slices.Equal(gone, want) {
		t.Errorf("%q were not there, want %q", gone, want)
	}
	for sql, want := range map[string]int{
		`select count(*) from jobs`: before + 2 - 1, // a rerun, the schedule's, and the deleted one
		`select count(*) from jobs where jsonb_path_exists(errors, '$[*].job') and state = 'completed'`:               1,
		`select max((select count(*) from jsonb_array_elements(errors) e where e->>'error' like 'rerun%')) from jobs`: 1,
		`select count(*) from drover_redrives`: 2, `select count(*) from drover_limits where held_until > now()`: 1,
	} {
		if n := value[int](t, pool, sql); n != want {
			t.Errorf("%s: %d, want %d", sql, n, want)
		}
	}
}

// A form that waits for a lock ends with the time of a request; a pause that not everybody follows yet is shown as such.
func TestFormsHaveATimeLimit(t *testing.T) {
	t.Parallel()
	h, pool := newSite(t, Options{Authorize: ada}, richSQL)
	page := get(t, h, "/job?id="+waitingID).ok(t)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `select from jobs where id = $1 for update`, waitingID); err != nil {
		t.Fatal(err)
	}
	h.(*site).limit = 200 * time.Millisecond
	do(t, h, request(t, page, "Cancel this job")).is(t, http.StatusGatewayTimeout, "did not answer in time")
	h.(*site).limit = time.Minute
	press(t, h, "/queue?name=payments", "Pause queue payments").ok(t, "This queue is paused by ada") // s-alive never follows
	get(t, h, "/pauses").ok(t, "not everywhere yet")
}

// A role that may only read gets a sentence on the right that it lacks, and a panic in Authorize changes nothing.
func TestFormsThatFail(t *testing.T) {
	t.Parallel()
	h, pool := newSite(t, Options{Authorize: ada}, richSQL)
	page := get(t, h, "/job?id="+waitingID).ok(t)
	var log bytes.Buffer
	broken := Handler(newClient(t, pool), Options{Logger: slog.New(slog.NewTextHandler(&log, nil)), Authorize: func(*http.Request, Action) (string, bool) { panic("no session") }})
	do(t, broken, request(t, page, "Cancel this job")).is(t, http.StatusInternalServerError, "because of a mistake in it").lacks(t, "no session")
	get(t, broken, "/job?id="+waitingID).is(t, http.StatusInternalServerError, "because of a mistake in it")
	if !strings.Contains(log.String(), "no session") {
		t.Errorf("the log has %q", log.String())
	}
	if _, err := pool.Exec(t.Context(), `create function deny() returns trigger language plpgsql as $$ begin raise exception 'permission denied' using errcode = '42501'; end $$;
		create trigger deny before update on jobs for each row execute function deny()`); err != nil {
		t.Fatal(err)
	}
	do(t, h, request(t, page, "Cancel this job")).is(t, http.StatusServiceUnavailable, "may not change", "rights of the operator")
}

// The pages with their forms are as well-formed, and lead nowhere else, under a prefix too.
func TestEveryLinkOfAWritableSite(t *testing.T) {
	t.Parallel()
	h, pool := newSite(t, Options{Authorize: ada}, richSQL)
	before := value[string](t, pool, everythingSQL)
	mux := http.NewServeMux()
	mux.Handle("/admin/drover/", http.StripPrefix("/admin/drover", h))
	for at := range crawl(t, mux, "/admin/drover/") {
		if !strings.HasPrefix(at, "/admin/drover/") {
			t.Errorf("%s is outside of the prefix", at)
		}
	}
	if value[string](t, pool, everythingSQL) != before {
		t.Error("to look changed something")
	}
	for at := range writable(t, pool) {
		for _, f := range forms(t, get(t, h, at).ok(t)) {
			for _, b := range f.buttons {
				if b.text == "" || strings.Contains(b.text, "%") {
					t.Errorf("%s: a button says %q", at, b.text)
				}
			}
		}
	}
	press(t, mux, "/admin/drover/job?id="+waitingID, "Cancel this job").ok(t, "cancelled")
}

// The application is asked once for each action of a page, also if that looks into a session store.
func TestAuthorizeIsAskedOnce(t *testing.T) {
	t.Parallel()
	asked := map[Action]int{}
	h, _ := newSite(t, Options{Authorize: func(_ *http.Request, a Action) (string, bool) { asked[a]++; return "ada", true }}, richSQL)
	for _, at := range []string{"/job?id=" + deadID, "/pauses", "/failure?id=" + groupID, "/jobs?kind=charge"} {
		clear(asked)
		get(t, h, at).ok(t)
		for a, n := range asked {
			if n != 1 {
				t.Errorf("%s: asked %d times whether one may %s", at, n, a)
			}
		}
	}
	clear(asked)
	if get(t, h, "/").ok(t); len(asked) != 0 {
		t.Errorf("a page without forms asks %v", asked)
	}
}

// A button on an old page does not end the job that somebody has brought back, nor the pause that somebody has begun since.
func TestAnOldPageDoesNothingToWhatCameAfter(t *testing.T) {
	t.Parallel()
	h, pool := newSite(t, Options{Authorize: func(*http.Request, Action) (string, bool) { return "ann", true }}, richSQL)
	client := newClient(t, pool)
	at := "/job?id=" + waitingID
	old := get(t, h, at).ok(t)
	do(t, h, request(t, old, "Discard this job")).is(t, http.StatusSeeOther)
	if err := client.RedriveJob(t.Context(), waitingID, nil, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	do(t, h, request(t, old, "Discard this job")).is(t, http.StatusConflict, "Since you saw it, the job has changed")
	do(t, h, request(t, old, "Cancel this job")).is(t, http.StatusConflict, "Since you saw it, the job has changed")
	press(t, h, at, "Discard this job")

	for _, page := range []string{"/queue?name=emails", "/pauses"} {
		press(t, h, "/queue?name=emails", "Pause queue emails")
		button := "Resume queue emails"
		if page == "/pauses" {
			button = "Resume queue:emails"
		}
		old := get(t, h, page).ok(t)
		value[any](t, pool, `select drover_resume('queue:emails')`)
		value[any](t, pool, `select drover_pause('queue:emails', by => 'bob')`)
		do(t, h, request(t, old, button)).is(t, http.StatusConflict, "has been paused by bob since")
		press(t, h, page, button)
	}
}

// A reason may have several lines. The second person reads all of it, and no part of a secret.
func TestTheReasonOfTheFirstPerson(t *testing.T) {
	t.Parallel()
	const secret = "sk_live_51H8xAbCdEfGhIjKlMnOpQrStUvW" //nolint:gosec // made up
	h, pool := newSite(t, Options{Authorize: ada, Redact: func(text string) string { return strings.ReplaceAll(text, secret, "(secret)") }}, richSQL)
	client := newClient(t, pool)
	by := drover.Audit{By: "bob", Why: "first: drover: line\n" + strings.Repeat("x ", 125) + secret + strings.Repeat(" y", 20) + " the end"}
	at := "/job?id=" + waitingID
	first, old := get(t, h, at).ok(t), get(t, h, at).ok(t)
	if _, err := client.Edit(t.Context(), waitingID, drover.JobEdit{Priority: 3}, by); err != nil {
		t.Fatal(err)
	}
	const sentence = "Since you saw it, the job has changed: it is "
	do(t, h, request(t, old, "Change this job", "priority", "2")).is(t, http.StatusConflict, sentence+"available, due at ", "; bob at ", "first: drover: line", "(secret)", "the end").lacks(t, secret[:8])
	if _, err := client.Cancel(t.Context(), waitingID, by); err != nil {
		t.Fatal(err)
	}
	do(t, h, request(t, first, "Change this job", "priority", "2")).is(t, http.StatusConflict, sentence+"cancelled; bob at ", "first: drover: line", "(secret)", "the end").lacks(t, secret[:8])
}

// A pause that could not be stored in time is not taken for a pause that somebody else has set meanwhile.
func TestThePauseOfSomebodyElse(t *testing.T) {
	t.Parallel()
	h, pool := newSite(t, Options{Authorize: ada}, richSQL)
	r := request(t, get(t, h, "/queue?name=emails").ok(t), "Pause queue emails")
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `select pg_advisory_xact_lock(hashtextextended(drover_channel() || ' limits', 0))`); err != nil {
		t.Fatal(err)
	}
	var form sync.WaitGroup
	form.Go(func() { do(t, h, r).is(t, http.StatusGatewayTimeout, "did not answer in time") })
	for range 1000 { // the form waits for its turn
		if value[bool](t, pool, `select exists (select from pg_locks l join pg_stat_activity using (pid) where locktype = 'advisory' and not granted and application_name = current_setting('application_name'))`) {
			break
		}
	}
	// Bob's pause passes by the turn: so it is there when the form gives up.
	if _, err := pool.Exec(t.Context(), `begin; set local session_replication_role = replica;
		insert into drover_limits (scope, held_at, held_until, updated_by) values ('queue:emails', now(), 'infinity', 'bob'); commit`); err != nil {
		t.Error(err)
	}
	form.Wait()
}

// A secret is not cut in two before it is looked for, and an unique key is args.
func TestNothingIsCutBeforeItIsRedacted(t *testing.T) {
	t.Parallel()
	const secret = "sk_live_51H8xAbCdEfGhIjKlMnOpQrStUvW" //nolint:gosec // made up
	redact := func(text string) string { return strings.ReplaceAll(text, secret, "(secret)") }
	h, pool := newSite(t, Options{Redact: redact})
	client := newClient(t, pool)
	receipt, err := client.Enqueue(t.Context(), cardArgs{Card: secret}, &drover.EnqueueOpts{Unique: &drover.Unique{}})
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("x ", 140) + secret + strings.Repeat(" y", 200)
	if _, err := pool.Exec(t.Context(), `update jobs set state = 'retryable', attempt = 1, errors_total = 1, scheduled_at = now() + interval '1 h',
		errors = jsonb_build_array(jsonb_build_object('attempt', 1, 'at', now(), 'class', 'error', 'error', $1::text, 'trace', $1::text))`, text); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{"/job?id=", "/api/job?id=", "/api/explanation?id="} {
		get(t, h, at+receipt.ID).ok(t).lacks(t, secret[:16])
	}
}

type cardArgs struct {
	Card string `json:"card"`
}

func (cardArgs) Kind() string { return "card" }

// A secret with quotes and line breaks is known before a text is encoded as JSON, flattened or cut.
func TestRedactBeforeATextIsChanged(t *testing.T) {
	t.Parallel()
	const hidden = "pass \"word\"\nof the bank"
	redact := func(text string) string { return strings.ReplaceAll(text, hidden, "(secret)") }
	h, pool := newSite(t, Options{Authorize: ada, Redact: redact}, richSQL)
	if _, err := pool.Exec(t.Context(), `update jobs set errors = jsonb_build_array(jsonb_build_object('attempt', 1, 'at', now(), 'class', 'error', 'error', $1::text, 'trace', $1::text)) where id = $2`, hidden, deadID); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), `update drover_redrives set filter = jsonb_build_object('error', $1::text)`, hidden); err != nil {
		t.Fatal(err)
	}
	redrive := value[string](t, pool, `select id from drover_redrives limit 1`)
	inError := "error=" + url.QueryEscape(hidden)
	for _, at := range []string{"/text?part=errors&id=" + deadID, "/job?id=" + deadID, "/api/job?id=" + deadID, "/api/explanation?id=" + deadID, "/redrive?id=" + redrive, "/redrives", "/api/redrive?id=" + redrive, "/many?do=discard&" + inError} {
		get(t, h, at).ok(t, "(secret)").lacks(t, `word\"`, "&#34;word", "of the bank")
	}
	get(t, h, "/start?"+inError).ok(t, `{&#34;error&#34;:&#34;(secret)&#34;}`) // its form has to send the filter as it is
}
