package ui

import (
	"encoding/xml"
	"errors"
	"html"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// quiet logs to nobody.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func newClient(t *testing.T, pool *pgxpool.Pool) *drover.Client {
	t.Helper()
	client, err := drover.New(pool, drover.Config{Logger: quiet(), MaxArgsBytes: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// newSite serves a migrated schema in which sql was run.
func newSite(t *testing.T, opts Options, sql ...string) (http.Handler, *pgxpool.Pool) {
	t.Helper()
	return newLoggedSite(t, io.Discard, opts, sql...)
}

// newLoggedSite is newSite with a client that logs.
func newLoggedSite(t *testing.T, log io.Writer, opts Options, sql ...string) (http.Handler, *pgxpool.Pool) {
	t.Helper()
	pool := pgtest.NewMigratedPool(t)
	for _, statements := range sql {
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = conn.Conn().PgConn().Exec(t.Context(), statements).ReadAll()
		conn.Release()
		if err != nil {
			t.Fatal(err)
		}
	}
	if opts.Logger == nil {
		opts.Logger = quiet()
	}
	client, err := drover.New(pool, drover.Config{Logger: slog.New(slog.NewTextHandler(log, nil)), MaxArgsBytes: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return handler(client, opts, 300*time.Millisecond), pool
}

// answer is a response with its body.
type answer struct {
	*http.Response
	at, text string
}

func get(t *testing.T, h http.Handler, at string) *answer {
	t.Helper()
	return do(t, h, httptest.NewRequestWithContext(t.Context(), http.MethodGet, at, nil))
}

func do(t *testing.T, h http.Handler, r *http.Request) *answer {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	res := w.Result()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return &answer{res, r.Method + " " + r.URL.String(), string(body)}
}

// ok asserts a page with status 200 that is well-formed and has each of the texts.
func (a *answer) ok(t *testing.T, texts ...string) *answer {
	t.Helper()
	return a.is(t, http.StatusOK, texts...)
}

func (a *answer) is(t *testing.T, status int, texts ...string) *answer {
	t.Helper()
	if a.StatusCode != status {
		t.Fatalf("%s: status %d, want %d\n%s", a.at, a.StatusCode, status, a.text)
	}
	if strings.HasPrefix(a.Header.Get("Content-Type"), "text/html") {
		wellFormed(t, a)
	}
	for _, text := range texts {
		if !strings.Contains(a.text, text) {
			t.Errorf("%s: no %q in\n%s", a.at, text, cut(a.text, 20_000))
		}
	}
	return a
}

func (a *answer) lacks(t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if strings.Contains(a.text, text) {
			t.Errorf("%s shows %q", a.at, text)
		}
	}
}

// xml reads the page. Only what a person typed into a field, and gets back in it, may have control characters.
func (a *answer) xml() *xml.Decoder {
	return xml.NewDecoder(strings.NewReader(regexp.MustCompile(`value="[^"]*"`).ReplaceAllStringFunc(a.text, func(attr string) string {
		return regexp.MustCompile(`[\x00-\x08\x0b\x0c\x0e-\x1f]`).ReplaceAllString(attr, "?")
	})))
}

// wellFormed reads the page as XML, which is stricter than a browser: every element is closed, every attribute quoted, no
// character is forbidden in XML. It also asserts one h1, ids that are there once, and a label for each field.
func wellFormed(t *testing.T, a *answer) {
	t.Helper()
	dec := a.xml()
	ids, labels, fields, h1 := map[string]int{}, map[string]bool{}, []string{}, 0
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%s is not well-formed: %v\n%s", a.at, err, cut(a.text, 20_000))
		}
		start, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		attr := map[string]string{}
		for _, at := range start.Attr {
			attr[at.Name.Local] = at.Value
			if at.Name.Local == "style" || strings.HasPrefix(at.Name.Local, "on") {
				t.Errorf("%s: <%s> has the inline attribute %s", a.at, start.Name.Local, at.Name.Local)
			}
		}
		if id := attr["id"]; id != "" {
			ids[id]++
		}
		switch start.Name.Local {
		case "h1":
			h1++
		case "label":
			labels[attr["for"]] = true
		case "input", "select", "textarea":
			if attr["type"] != "hidden" {
				fields = append(fields, attr["id"])
			}
		case "script", "style":
			if attr["src"] == "" {
				t.Errorf("%s has an inline <%s>", a.at, start.Name.Local)
			}
		}
		for _, name := range []string{"href", "src", "action"} {
			if strings.Contains(attr[name], "//") || strings.HasPrefix(attr[name], "/") {
				t.Errorf("%s: %s=%q is not relative", a.at, name, attr[name])
			}
		}
	}
	for id, n := range ids {
		if n > 1 {
			t.Errorf("%s: the id %s is there %d times", a.at, id, n)
		}
	}
	for _, id := range fields {
		if id == "" || !labels[id] {
			t.Errorf("%s: the field %q has no label", a.at, id)
		}
	}
	if h1 != 1 {
		t.Errorf("%s has %d h1", a.at, h1)
	}
}

// links are where a page leads, without its anchors.
func links(t *testing.T, a *answer) (found []string) {
	t.Helper()
	for _, match := range regexp.MustCompile(`href="([^"#][^"]*)"`).FindAllStringSubmatch(a.text, -1) {
		found = append(found, html.UnescapeString(match[1]))
	}
	for _, f := range forms(t, a) {
		maps.DeleteFunc(f.fields, func(_ string, values []string) bool { return strings.Join(values, "") == "" })
		if f.method == "get" && len(f.fields) > 0 {
			f.action += "?" + f.fields.Encode()
		}
		found = append(found, f.action)
	}
	if len(found) < 8 {
		t.Errorf("%s has %d links", a.at, len(found))
	}
	return found
}

// crawl gets every page that a link leads to, from one on, and returns the answers by address.
func crawl(t *testing.T, h http.Handler, from string) map[string]*answer {
	t.Helper()
	seen := map[string]*answer{}
	for todo := []string{from}; len(todo) > 0; todo = todo[1:] {
		at := todo[0]
		if seen[at] != nil {
			continue
		}
		a := get(t, h, at).ok(t)
		seen[at] = a
		if !strings.HasPrefix(a.Header.Get("Content-Type"), "text/html") {
			continue
		}
		base, err := url.Parse(at)
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range links(t, a) {
			to, err := base.Parse(link)
			if err != nil {
				t.Fatalf("%s links to %q: %v", at, link, err)
			}
			todo = append(todo, to.String())
		}
	}
	return seen
}

const (
	killerID  = "01KAJ4Y8Q3N6T0V5B7C9D1E2K1"
	deadID    = "01KAJ4Y8Q3N6T0V5B7C9D1E2FG"
	waitingID = "01KAJ4Y8Q3N6T0V5B7C9D1E2WA"
	redriveID = "01KAJ4Y8Q3N6T0V5B7C9D1E2RE"
	groupID   = "00c0ffee00c0ffee"
)

// richSQL has jobs in every state, something of everything that a page shows, and something that needs a person.
const richSQL = `
insert into drover_kinds (kind, max_attempts) values ('charge', 10);
insert into queues (name) values ('payments');
insert into drover_budgets (scope, retries) values ('queue:payments', 100);
insert into drover_supervisors (id, lease_ms, queues, slots, in_flight, host, pid, build, beat_at) values
	('s-alive', 3600000, '{payments}', '{"payments": 4}', '{x}', 'app-1', 7, 'v2', now()),
	('s-silent', 1000, '{payments,post}', '{}', '{}', 'app-2', 8, 'v1', now() - interval '1 h');
insert into drover_activity (at, seconds, queue, supervisor, started, waited, completed, failed, discarded)
select now() - n * interval '1 min', 60, 'payments', 's-alive', 100 + n, 4 * n, 100, 5, 0 from generate_series(1, 70) n;
select drover_periodic_set('nightly', 'report', '30 2 * * *');
select drover_pause('queue:post', 'infinity', 'ada', 'the post is on strike');
insert into drover_redrives (id, filter, rate, state, matched, released, skipped, started_by, why) values ('` + redriveID + `', '{"kind": "charge"}', 50, 'running', 400, 100, 0, 'ada', 'the bank is back');
insert into jobs (id, kind, queue, args, tags, concurrency_key, metadata, scheduled_at) values ('` + waitingID + `', 'charge', 'payments', '{"OrderID": 1}', '{vip}', 'cust/7', '{"trace": "abc"}', now() - interval '5 min');
insert into jobs (kind, queue, state, scheduled_at) values ('charge', 'payments', 'scheduled', now() + interval '1 h');
insert into jobs (kind, queue, scheduled_at) values ('letter', 'nobody', now() - interval '20 min');
insert into jobs (kind, queue, state, scheduled_at, attempt, errors_total, errors) select 'charge', 'payments', 'retryable', now() + interval '1 min', 1, 1,
	jsonb_build_array(jsonb_build_object('attempt', 1, 'at', now(), 'class', 'timeout', 'error', 'drover: run timed out', 'delay_ms', 60000));
insert into jobs (kind, queue, state, attempt, claim_seq, claimed_by, attempted_at) values ('charge', 'payments', 'running', 1, 1, 's-alive', now() - interval '2 min');
insert into jobs (kind, queue, state, scheduled_at) values ('charge', 'payments', 'parked', 'infinity');
insert into jobs (id, kind, queue, state, finalized_at, discard_reason, crashes, deaths, errors_total, errors) values ('` + killerID + `', 'resize', 'images', 'discarded', now() - interval '1 h', 'crashed', 3, 3, 1,
	'[{"attempt": 3, "class": "crash", "error": "drover: the process died while it held the job", "at": "2026-01-01T00:00:00Z", "host": "app-2, process 7"}]');
insert into jobs (kind, queue, state, finalized_at, attempted_at, attempt) values ('charge', 'payments', 'completed', now() - interval '2 days', now() - interval '2 days 1 s', 1);
insert into jobs (kind, queue, state, finalized_at) values ('charge', 'payments', 'cancelled', now());
insert into drover_failure_groups (fingerprint, kind, class, sample, first_seen, last_seen, count, jobs, last_job, status, regressed_at, regressions)
values ('` + groupID + `', 'charge', 'error', 'card declined', now() - interval '3 days', now(), 2, 1, '` + deadID + `', 'open', now(), 2);
insert into jobs (id, kind, queue, args, state, finalized_at, discard_reason, class, fingerprint, attempt, errors_total, errors)
select '` + deadID + `', 'charge', 'payments', '{"OrderID": 42, "CustomerID": 7}', 'discarded', now() - interval '40 days', 'attempts_exhausted', 'error', '` + groupID + `', 10, 2, jsonb_build_array(
	jsonb_build_object('attempt', 9, 'at', now() - interval '41 days', 'class', 'error', 'error', 'card declined', 'fingerprint', '` + groupID + `', 'delay_ms', 15000, 'duration_ms', 31),
	jsonb_build_object('attempt', 10, 'at', now() - interval '40 days', 'class', 'panic', 'error', 'card declined again', 'type', '*bank.Error', 'trace', 'goroutine 7 [running]', 'fingerprint', '` + groupID + `'));
`

// allPages are addresses of all pages about things that richSQL has.
func allPages() []string {
	return []string{
		"/", "/queue?name=payments", "/jobs", "/jobs?state=discarded", "/job?id=" + deadID, "/text?part=args&id=" + deadID, "/failures",
		"/failure?id=" + groupID, "/redrives", "/redrive?id=" + redriveID, "/periodic", "/schedule?name=nightly", "/pauses", "/supervisors",
	}
}
