package ui

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/internal/tier"
)

// An answer about an error has the right status, and a sentence on the error.
func TestProblems(t *testing.T) {
	t.Parallel()
	h, _ := newSite(t, Options{}, richSQL)
	const none = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
	for _, c := range []struct {
		at     string
		status int
		text   string
	}{
		{"/nowhere", 404, "There is no such page."},
		{"/jobs/", 404, "There is no such page."},
		{"/templates/layout.html", 404, "There is no such page."},
		{"/job?id=" + none, 404, "There is none with this id."},
		{"/job?id=..%2F..%2Fx", 404, "There is none with this id."},
		{"/job?id=%00", 404, "There is none with this id."},
		{"/job?id=%ff", 404, "There is none with this id."},
		{"/job", 400, "lacks &#34;id&#34;"},
		{"/job?id=a&id=b", 400, "twice"},
		{"/text?part=args&id=" + none, 404, "none with this id"},
		{"/text?part=all&id=" + deadID, 400, "no part"},
		{"/text?part=trace&n=3&id=" + deadID, 404, "no such failure"},
		{"/text?part=trace&n=x&id=" + deadID, 404, "no such failure"},
		{"/failure?id=" + strings.Repeat("0", 16), 404, "none with this id"},
		{"/failure?id=x", 404, "none with this id"},
		{"/failures?status=dead", 400, "none of open, resolved, ignored and all"},
		{"/failures?limit=1001", 400, "from 1 to 1000"},
		{"/failures?kind=%00", 400, "Kind: "},
		{"/redrive?id=" + none, 404, "none with this id"},
		{"/redrives?limit=0", 400, "from 1 to 500"},
		{"/schedule?name=weekly", 404, "none with this name"},
		{"/queue?nme=x", 400, "knows no &#34;nme&#34;"},
		{"/jobs?sate=discarded", 400, "knows no &#34;sate&#34;"},
		{"/jobs?state=dead", 400, "State: &#34;dead&#34; is no state"},
		{"/jobs?reason=bored", 400, "Reason of the discard"},
		{"/jobs?class=first", 400, "Class of the last failure"},
		{"/jobs?state=parked&state=running", 400, "twice"},
		{"/jobs?priority=10", 400, "1 to 9"},
		{"/jobs?priority=high", 400, "1 to 9"},
		{"/jobs?kind=a%00b", 400, "Kind: NUL"},
		{"/jobs?kind=%ff", 400, "Kind: "},
		{"/jobs?tags=%00", 400, "Tags: NUL"},
		{"/jobs?args={", 400, "not JSON"},
		{"/jobs?created_after=yesterday", 400, "is not a time"},
		{"/jobs?created_after=-2h", 400, "is not a time"},
		{"/jobs?ids=" + strings.Repeat("x,", 10_001), 400, "at most 10000"},
		{"/jobs?state=discarded&after=yesterday", 400, "mark is not one of a list"},
		{"/jobs?state=discarded&after=" + deadID, 400, "mark is not one of a list"},
		{"/jobs?kind=%zz", 400, "cannot be read after its question mark"},
		{"/jobs?kind=a;b", 400, "cannot be read after its question mark"},
		{"/?x=%3Cscript%3E", 400, "knows no"},
	} {
		get(t, h, c.at).is(t, c.status, c.text).lacks(t, "drover: ", "Filter.", "SQLSTATE", "<script>")
	}
	for _, at := range []string{"/job?id=" + none, "/schedule?name=weekly", "/redrive?id=" + none, "/failure?id=x", "/api/schedule?name=weekly"} {
		get(t, h, at).is(t, 404, "It may have been deleted since").lacks(t, "archive")
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, "PROPFIND"} {
		a := do(t, h, httptest.NewRequestWithContext(t.Context(), method, "/jobs", nil)).is(t, http.StatusMethodNotAllowed, "can only be read")
		if got := a.Header.Get("Allow"); got != "GET, HEAD" {
			t.Errorf("%s: Allow is %q", method, got)
		}
	}
	head := do(t, h, httptest.NewRequestWithContext(t.Context(), http.MethodHead, "/jobs", nil))
	if head.StatusCode != http.StatusOK || head.text != "" || head.Header.Get("Content-Length") == "0" {
		t.Errorf("HEAD: %d, %d bytes", head.StatusCode, len(head.text))
	}
}

// A job that is in the archive is not found, and the answer says where it is.
func TestAJobInTheArchive(t *testing.T) {
	t.Parallel()
	h, _ := newSite(t, Options{Authorize: ada}, richSQL, `select drover_archive('{"ids": ["`+deadID+`"]}')`)
	for _, at := range []string{"/job?id=", "/delete?id=", "/api/job?id=", "/api/explanation?id="} {
		get(t, h, at+deadID).is(t, 404, "in the archive", "drover archive export --id")
	}
	for _, verb := range []string{"cancel", "discard", "redrive", "rerun", "run-now", "delete"} {
		ask(t, h, http.MethodPost, "job/"+verb+"?id="+deadID, "{}").is(t, 404, "in the archive", "drover archive restore")
	}
	ask(t, h, http.MethodPost, "job/edit?id="+deadID, `{"run_now": true}`).is(t, 404, "in the archive")
	get(t, h, "/delete?id="+noneID).ok(t).lacks(t, "in the archive")
}

// A database that is away, not migrated, of another version, or not readable says so on every page.
func TestDatabasesThatDoNotAnswer(t *testing.T) {
	t.Parallel()
	away, err := pgxpool.New(t.Context(), "postgres://drover:secret@127.0.0.1:1/app")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(away.Close)
	closed := pgtest.NewMigratedPool(t)
	closed.Close()
	older := pgtest.NewMigratedPool(t)
	if _, err := older.Exec(t.Context(), `drop table drover_limits, drover_budgets, drover_periodic, drover_redrives, drover_failure_groups cascade; alter table jobs drop column crashes cascade`); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		pool   *pgxpool.Pool
		status int
		text   string
	}{
		"away":         {away, 503, "The database cannot be reached."},
		"closed":       {closed, 503, "The application is stopping"},
		"not migrated": {pgtest.NewPool(t), 503, "drover migrate up"},
		"older":        {older, 503, "drover migrate up"},
	} {
		var log bytes.Buffer
		h := Handler(newClient(t, c.pool), Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		for _, at := range allPages() {
			if name == "older" && !slices.Contains([]string{"/", "/job?id=" + deadID, "/pauses", "/failures", "/redrives"}, at) {
				continue // this role may read all of such a page
			}
			get(t, h, at).is(t, c.status, c.text).lacks(t, "secret", "127.0.0.1", "SQLSTATE")
		}
		if !strings.Contains(log.String(), "page failed") {
			t.Errorf("%s: the log has %q", name, log.String())
		}
		get(t, h, "/style.css").ok(t)
	}
}

// A page that waits for a lock ends with its time, and gives the connection back.
func TestAPageHasATimeLimit(t *testing.T) {
	t.Parallel()
	h, pool := newSite(t, Options{})
	h.(*site).limit = 200 * time.Millisecond
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `lock table jobs`); err != nil {
		t.Fatal(err)
	}
	get(t, h, "/jobs").is(t, http.StatusGatewayTimeout, "did not answer in time")
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.(*site).limit = time.Minute
	get(t, h, "/jobs").ok(t)
}

// A mistake in one page is one 500, with the stack in the log.
func TestAPanicIsOneErrorPage(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	h, _ := newSite(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	h.(*site).pages["/pauses"] = page{template: "limits.html", load: func(context.Context, query) (*view, error) { panic("oh no") }}
	h.(*site).pages["/periodic"] = page{template: "periodic.html", load: func(context.Context, query) (*view, error) { return &view{Data: "no such field"}, nil }}
	for _, at := range []string{"/pauses", "/periodic"} {
		get(t, h, at).is(t, http.StatusInternalServerError, "because of a mistake in it").lacks(t, "oh no", "goroutine")
	}
	if !strings.Contains(log.String(), "oh no") || !strings.Contains(log.String(), "serve.go") {
		t.Errorf("the log has %q", log.String())
	}
	get(t, h, "/jobs").ok(t)
}

// secretSQL puts a card's number into every text of richSQL that somebody wrote.
const secretSQL = `
update jobs set args = '{"card": "4711"}', metadata = '{"card": "4711"}', errors = '[{"attempt": 10, "at": "2026-01-01T00:00:00Z", "class": "error", "error": "card 4711 declined", "trace": "at 4711"}]' where id = '` + deadID + `';
update drover_failure_groups set sample = 'card 4711 declined';
update drover_redrives set filter = '{"args": {"card": "4711"}}', note = 'held up: card 4711', why = 'for 4711';
update drover_periodic set args = '{"card": "4711"}', problem = 'card 4711', problem_at = now();
select drover_pause('queue:post', 'infinity', 'ada', 'for 4711')`

// Redact sees whole texts, of everything that a person or a program wrote; a Redact that panics hides the text.
func TestRedactedTexts(t *testing.T) {
	t.Parallel()
	pages := append(allPages(), "/text?id="+deadID+"&part=errors", "/text?id="+deadID+"&part=trace&n=1", "/queue?name=post")
	h, pool := newSite(t, Options{Redact: func(text string) string { return strings.ReplaceAll(text, "4711", "(card)") }}, richSQL, secretSQL)
	hiding := Handler(newClient(t, pool), Options{Logger: quiet(), Redact: func(text string) string { panic(text) }})
	plain, shown := Handler(newClient(t, pool), Options{Logger: quiet()}), 0
	for _, at := range pages {
		get(t, h, at).ok(t).lacks(t, "4711")
		get(t, hiding, at).ok(t).lacks(t, "4711")
		shown += strings.Count(get(t, plain, at).ok(t).text, "4711")
	}
	if shown < 15 {
		t.Errorf("without Redact the card is shown %d times", shown)
	}
}

// Names that try to be markup, paths or terminal codes are shown, and lead to their own pages.
func TestHostileTexts(t *testing.T) {
	t.Parallel()
	names := []string{
		`../x`, `..`, `%2e%2e/x`, `<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `javascript:alert(1)`, `a'b"c`, `{{.}}`, `a&b=c#d?e+f g`,
		"\u202egnp.exe", "a\u200bb\u2066", "tab\there", "line\nbreak", "\u0007bell", "\U000e0001tag", strings.Repeat("wide ", 20), `</title></pre>--><!--`,
	}
	h, pool := newSite(t, Options{})
	for i, name := range names {
		id := "01KAJ4Y8Q3N6T0V5B7C9D1E" + string(rune('A'+i/10)) + string(rune('A'+i%10)) + "0"
		tags := []string{}
		if visible(name) == name && strings.TrimSpace(name) == name && !strings.ContainsAny(name, "\t\n") { // the table takes no other tags
			tags = append(tags, name)
		}
		if _, err := pool.Exec(t.Context(), `
			insert into jobs (id, kind, queue, state, finalized_at, discard_reason, class, concurrency_key, tags, args, metadata, errors_total, errors)
			values ($1, $2::text, $2::text, 'discarded', now(), 'crashed', 'crash', $2::text, $3::text[], jsonb_build_object($2::text, $2::text), jsonb_build_object($2::text, $2::text), 1,
				jsonb_build_array(jsonb_build_object('attempt', 1, 'at', now(), 'class', $2::text, 'error', $2::text, 'trace', $2::text, 'type', $2::text, 'by', $2::text, 'host', $2::text, 'case', $2::text, 'job', $2::text)))`, id, name, tags); err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		a := get(t, h, "/job?id="+id).ok(t)
		a.lacks(t, "<script>", "<img", "\u202e", "\u200b", "\u2066", "\u0007", "\U000e0001")
		for _, page := range []string{"/queue?name=", "/jobs?kind=", "/jobs?concurrency_key=", "/jobs?tags="} {
			get(t, h, page+url.QueryEscape(name)).ok(t).lacks(t, "<script>", "<img")
		}
		get(t, h, "/jobs?kind="+url.QueryEscape(name)).ok(t, id)
	}
	get(t, h, "/jobs?state=discarded").ok(t, `\u202egnp.exe`, `a\u200bb\u2066`, `\u0007bell`, `\udb40\udc01tag`, `&lt;script&gt;alert(1)`)
	crawl(t, h, "/")
}

// Rows that drover never writes are shown as far as they can be, and large ones are cut with a way to see all.
func TestLargeTexts(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	h, _ := newSite(t, Options{}, `
insert into jobs (id, kind, args, errors, errors_total, state, finalized_at, discard_reason) values ('`+deadID+`', 'k', jsonb_build_object('x', repeat('<b>', 1400000) || 'the end'),
	(select jsonb_agg(jsonb_build_object('attempt', n, 'at', now(), 'class', 'error', 'error', 'failure number ' || n || repeat(' &', 1100))) from generate_series(1, 10000) n), 10000, 'discarded', now(), 'panic')`)
	a := get(t, h, "/job?id="+deadID).ok(t, "failure number 10000 ", "failure number 9951 ", "9,950 older ones", "See all of it (4101 KiB)", "10,000 runs have failed")
	a.lacks(t, "failure number 9950 ", "the end")
	if len(a.text) > 800_000 {
		t.Errorf("the page has %d bytes", len(a.text))
	}
	for _, link := range []string{"/text?id=" + deadID + "&part=args", "/text?id=" + deadID + "&part=errors"} {
		all := get(t, h, link).ok(t)
		if !strings.HasPrefix(all.Header.Get("Content-Type"), "text/plain") || !strings.Contains(all.text, map[bool]string{true: "the end", false: "failure number 1 "}[strings.HasSuffix(link, "args")]) {
			t.Errorf("%s: %s, %d bytes", link, all.Header.Get("Content-Type"), len(all.text))
		}
	}
	get(t, h, "/text?n=7&part=error&id="+deadID).ok(t, "failure number 7 ")
	get(t, h, "/jobs").ok(t, "failure number 10000")
	get(t, h, "/").ok(t)
}

// Rows that drover never writes fail no page.
func TestOddRows(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	h, pool := newSite(t, Options{Logger: slog.Default()})
	pgtest.DropChecks(t, pool)
	for _, row := range pgtest.OddRows() {
		if row.Slow || row.Damaged {
			continue // the reads behind the pages have a test of them
		}
		id := pgtest.PutOdd(t, pool, row)
		a := get(t, h, "/job?id="+url.QueryEscape(id)).ok(t)
		if row.Unreadable != "" && !strings.Contains(a.text, "Unreadable") {
			t.Errorf("%s: the page does not say what is unreadable", row.Name)
		}
		ask(t, h, "GET", "job?id="+url.QueryEscape(id), "").ok(t)
		ask(t, h, "GET", "explanation?id="+url.QueryEscape(id), "").ok(t)
	}
	get(t, h, "/").ok(t)
	get(t, h, "/jobs").ok(t)
	get(t, h, "/jobs?state=discarded").ok(t)
	ask(t, h, "GET", "jobs?limit=100", "").ok(t)
}
