package ui

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

// A database without a single job has pages that say so.
func TestPagesOfAnEmptyDatabase(t *testing.T) {
	t.Parallel()
	h, _ := newSite(t, Options{})
	for at, text := range map[string]string{
		"/": "Nothing does.", "/jobs": "No job matches.", "/jobs?state=discarded": "Dead letters", "/failures": "No failures with this status",
		"/redrives": "There was no redrive yet.", "/periodic": "There are no schedules.", "/pauses": "Nothing is paused.", "/supervisors": "No supervisor is registered",
	} {
		get(t, h, at).ok(t, text)
	}
	crawl(t, h, "/")
}

// The pages show everything that the command shows.
func TestPagesOfARichDatabase(t *testing.T) {
	t.Parallel()
	h, _ := newSite(t, Options{}, richSQL)
	get(t, h, "/").ok(t, "Quarantined", "Queues that no living supervisor serves", `href="queue?name=nobody"`, "killed their process", killerID,
		"came back", "card declined", "the post is on strike", "nobody</a> has due jobs", ">payments</a>", "supervisor alive").lacks(t, "Nothing does.")
	get(t, h, "/queue?name=payments").ok(t, "app-1, process 7", "Oldest due", `href="jobs?queue=payments&amp;state=parked"`)
	get(t, h, "/queue?name=post").ok(t, "This queue is paused by ada (the post is on strike)", "until somebody resumes it")
	get(t, h, "/jobs").ok(t, waitingID, deadID, "attempts_exhausted", `<span class="error">card declined again</span>`, `<code class="args">{&#34;OrderID&#34;`)
	get(t, h, "/jobs?state=discarded&queue=payments").ok(t, deadID, `<a href="jobs?state=discarded" aria-current="page">Dead letters</a>`).lacks(t, waitingID, killerID)
	get(t, h, "/job?id="+waitingID).ok(t, `It has been due since <time datetime="20`, "&#34;OrderID&#34;: 1", "vip", "cust/7", "Metadata", "No run has failed.")
	get(t, h, "/job?id="+deadID).ok(t, "What comes next", "2 runs have failed", "card declined again", "goroutine 7 [running]", "*bank.Error", "next run 15 s later", "after 31 ms",
		"drover jobs redrive "+deadID, `href="failure?id=`+groupID)
	get(t, h, "/text?part=args&id="+deadID).ok(t, `"OrderID": 42`)
	get(t, h, "/text?part=trace&n=2&id="+deadID).ok(t, "goroutine 7 [running]")
	get(t, h, "/failures").ok(t, "card declined", "open (came back)")
	get(t, h, "/failures?status=resolved").ok(t, "No failures").lacks(t, "card declined")
	get(t, h, "/failure?id="+groupID).ok(t, "2, in 1 job", "Came back", "none: jobs are retried as usual", ">1</a>")
	get(t, h, "/redrives").ok(t, redriveID, `<progress value="100" max="400"`, "100 of 400")
	get(t, h, "/redrive?id="+redriveID).ok(t, "6 s or more to go", "the bank is back", "&#34;kind&#34;:&#34;charge&#34;", "50 a second")
	get(t, h, "/periodic").ok(t, "nightly", "30 2 * * *", `<span class="state active">`)
	get(t, h, "/schedule?name=nightly").ok(t, "Next ticks", "02:30:00.000 UTC", "at run time")
	get(t, h, "/pauses").ok(t, "queue:post", "ada", "queue:payments", "1m0s")
	get(t, h, "/supervisors").ok(t, "s-alive", "silent", "60 min ago", "v2")
}

// Every link of every page leads to a page, under the prefix as well.
func TestEveryLinkAnswers(t *testing.T) {
	t.Parallel()
	h, _ := newSite(t, Options{}, richSQL)
	seen := crawl(t, h, "/")
	for _, at := range allPages() {
		if at != "/text?part=args&id="+deadID && seen[at] == nil { // its args are short, so nothing links to all of them
			t.Errorf("no link leads to %s", at)
		}
	}
	mux := http.NewServeMux()
	mux.Handle("/admin/drover/", http.StripPrefix("/admin/drover", h))
	for at := range crawl(t, mux, "/admin/drover/") {
		if !strings.HasPrefix(at, "/admin/drover/") {
			t.Errorf("%s is outside of the prefix", at)
		}
	}
}

// Routers strip a prefix in different ways, and a proxy strips a prefix that the program does not know.
func TestUnderAPrefix(t *testing.T) {
	t.Parallel()
	h, _ := newSite(t, Options{})
	for _, c := range []struct{ strip, at, location string }{
		{"/drover", "/drover", "drover/"},           // chi, gin and echo pass this on
		{"/a/b c", "/a/b%20c", "b%20c/"},            //
		{"/drover", "/drover/jobs", ""},             //
		{"/drover/", "/drover/", ""},                // with the slash
		{"/drover/", "/drover/jobs?kind=a%2Fb", ""}, //
		{"", "/jobs", ""},                           // nginx: location /drover/ { proxy_pass http://127.0.0.1:8700/; }
	} {
		a := get(t, http.StripPrefix(c.strip, h), c.at)
		if c.location == "" {
			a.ok(t, `href="jobs"`, `href="style.css?v=`)
		} else if got := a.is(t, http.StatusMovedPermanently).Header.Get("Location"); got != c.location {
			t.Errorf("%s leads to %q, want %q", c.at, got, c.location)
		}
	}
	server := httptest.NewServer(http.StripPrefix("/drover", h))
	defer server.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/drover", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // nothing was written
	if res.StatusCode != http.StatusOK || res.Request.URL.Path != "/drover/" {
		t.Errorf("status %d at %s", res.StatusCode, res.Request.URL)
	}
}

// A list is read page by page, and each page's address can be sent to a colleague.
func TestPagesOfTheList(t *testing.T) {
	t.Parallel()
	h, _ := newSite(t, Options{}, `insert into jobs (kind, queue) select 'k', case when n % 2 = 0 then 'even' else 'odd' end from generate_series(1, 120) n`)
	for _, c := range []struct {
		filter string
		pages  int
	}{{"", 5}, {"?queue=even&kind=k", 3}, {"?queue=none", 1}} {
		pages, at, jobs := 0, "/jobs"+c.filter, map[string]bool{}
		for at != "" {
			a := get(t, h, at).ok(t)
			pages++
			at = ""
			for _, link := range links(t, a) {
				if strings.HasPrefix(link, "job?") {
					jobs[link] = true
				}
				if strings.Contains(link, "after=") {
					at = "/" + link
					if c.filter != "" && !strings.Contains(link, "queue=even") {
						t.Errorf("the next page of %s is %s", c.filter, link)
					}
				}
			}
		}
		if want := map[string]int{"": 120, "?queue=even&kind=k": 60}[c.filter]; pages != c.pages || len(jobs) != want {
			t.Errorf("%q: %d jobs on %d pages, want %d on %d", c.filter, len(jobs), pages, want, c.pages)
		}
	}
}

// Plots have a bar for each minute or hour, and a sentence for readers who do not see them.
func TestPlots(t *testing.T) {
	t.Parallel()
	p := plotOf("three", []float64{0, 50, 100}, []float64{0, 1, 50})
	if want := (plot{"M1.5 20v-10.0M2.5 20v-20.0", "M1.5 20v-0.5M2.5 20v-10.0", 3, "three"}); p != want {
		t.Errorf("%+v, want %+v", p, want)
	}
	if p := plotOf("", nil, nil); p != (plot{}) {
		t.Errorf("of nothing: %+v", p)
	}
	h, pool := newSite(t, Options{}, richSQL, `update drover_failure_groups set hours = '{7,3}'`)
	get(t, h, "/").ok(t, `aria-label="Runs that ended, each minute of an hour: at most 105, 105 lately"`, `<span class="error">4.8 % failed</span>`)
	get(t, h, "/queue?name=payments").ok(t, "The part of them that failed: at most 4.8 %, 4.8 % lately", "How long jobs had been due when they started, on average: at most ", `<path class="bad" d="M0.5 20v-`)
	get(t, h, "/queue?name=post").ok(t, "Nothing ran, as far as it is known yet")
	get(t, h, "/failures").ok(t, "Failed runs, each hour of a day: 10 in all, at most 7 in an hour")
	get(t, h, "/failure?id="+groupID).ok(t, "Failed runs, each hour of a day: 10 in all, at most 7 in an hour")

	// A sample of a minute without due jobs is the lowest bar, and a minute without a sample is none.
	if _, err := pool.Exec(t.Context(), `insert into drover_activity (at, seconds, queue, supervisor, started, waited, completed, failed, discarded, due, retrying)
		select date_trunc('minute', now()) - n * interval '1 min' + interval '1 s', 60, 'payments', '', 0, 0, 0, 0, 0, case n when 40 then 10000 when 3 then 0 else 2500 end, 1 from unnest('{40,20,3}'::int[]) n`); err != nil {
		t.Fatal(err)
	}
	const depth = `aria-label="Jobs that were due and did not run, each minute of an hour: at most 10,000&#43;, 0 lately; not known: 54 minutes"><path d="M21.5 20v-20.0M22.5 20v-20.0M41.5 20v-5.0M42.5 20v-5.0M58.5 20v-0.5M59.5 20v-0.5"/>`
	get(t, h, "/").ok(t, depth)
	get(t, h, "/queue?name=payments").ok(t, depth)
	get(t, h, "/api/activity?queue=payments").ok(t, `"due":10000,"retrying":1`)

	// Without what ran, the rest is shown.
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `lock table drover_activity in access exclusive mode`); err != nil {
		t.Fatal(err)
	}
	get(t, h, "/").ok(t, "payments", "What needs a person", "Not seen: activity: it took longer than 300 ms.").lacks(t, `class="plot`)
}

// A large failure that is new needs a person, and a queue that nobody serves is named once.
func TestWhatNeedsAPerson(t *testing.T) {
	t.Parallel()
	h, _ := newSite(t, Options{}, richSQL, `
insert into drover_failure_groups (fingerprint, kind, class, sample, first_seen, last_seen, count, jobs, last_job) values
	('00000000000000a1', 'mail', 'error', 'relay refused', now() - interval '10 min', now(), 20, 15, ''),
	('00000000000000a2', 'mail', 'error', 'few of it', now() - interval '10 min', now(), 19, 15, ''),
	('00000000000000a3', 'mail', 'error', 'an old one', now() - interval '2 h', now(), 900, 15, '')`)
	a := get(t, h, "/").ok(t, "mail: relay refused</a>: 20 failed runs in 15 jobs, first <time", ">nobody</a> has due jobs", `<span class="state warning">warning</span> Quarantined`, `<span class="state warning">warning</span> Paused`)
	a.lacks(t, "few of it", "an old one", "a due job of queue nobody has waited", "their processes died while they ran")
	get(t, h, "/health").ok(t, "a due job of queue nobody has waited", "jobs are quarantined")
	get(t, h, "/api/overview").ok(t, `"new":[{"fingerprint":"00000000000000a1"`, `"name":"quarantined"`)
	get(t, h, "/queue?name=payments").ok(t, "<dt>Due now</dt><dd>1</dd>", "<dt>Slots</dt><dd>4 in 1 living supervisor</dd>")
	get(t, h, "/supervisors").ok(t, ">4</td>")
}

// The page of a redrive shows its plan, and what became of its jobs.
func TestPageOfARedrive(t *testing.T) {
	t.Parallel()
	h, _ := newSite(t, Options{}, richSQL, `
update drover_redrives set canary = 5, canary_failures = 1, max_jobs = 500, per_key = 3, key_from = 'customer.id';
insert into jobs (kind, queue, redrive_id, state, finalized_at, paced_at, discard_reason, claimed_by, attempted_at, redriven_at, scheduled_at)
select 'mail', 'q', '`+redriveID+`', s, case when s in ('completed', 'cancelled', 'discarded') then now() end, case held when 'held' then now() when 'place' then timestamptz 'infinity' end, case when s = 'discarded' then 'panic' end, case when s = 'running' then 's-alive' end, case when s = 'running' then now() end, case when held <> 'left' then now() + interval '1 h' end, now() - interval '1 s'
from (values ('completed', '', 3), ('cancelled', '', 1), ('discarded', '', 2), ('discarded', 'held', 4), ('discarded', 'left', 8), ('retryable', '', 5), ('available', 'place', 6), ('running', '', 7)) v(s, held, n), generate_series(1, n)`)
	get(t, h, "/redrive?id="+redriveID).ok(t, "3 completed, 2 discarded again, 5 failed again and wait for a retry, 6 waiting, 7 running, 4 not due yet, 1 cancelled, 8 left as they were.",
		"first: 5; the redrive is aborted if more than 1 of them fail", "500 jobs", "at most 3 out together; the key is <code>customer.id</code> in the args", "by ada (the bank is back)")
	get(t, h, "/api/redrive?id="+redriveID).ok(t, `"key_from":"customer.id"`, `"limit":500`, `"canary":5`, `"canary_failures":1`, `"jobs":{"held":4,"waiting":6,"running":7,"retrying":5,"completed":3,"discarded":2,"cancelled":1,"left":8}`)
	get(t, h, "/api/redrives").ok(t).lacks(t, `"jobs":`)
	get(t, h, "/redrive?id="+redriveID).lacks(t, "Its course") // none of the jobs says when it became due
}

// A redrive's course is two plots: jobs that became due, and jobs that ended.
func TestPlotsOfARedrive(t *testing.T) {
	t.Parallel()
	h, _ := newSite(t, Options{}, richSQL, `
update drover_redrives set created_at = now() - interval '1 h';
insert into jobs (kind, queue, redrive_id, state, redriven_at, finalized_at, discard_reason)
select 'mail', 'q', '`+redriveID+`', case when n < 10 then 'discarded' else 'completed' end, now() - interval '30 min' + n / 10 * interval '1 s', now() - interval '29 min 57 s' + n / 20 * interval '1 s', case when n < 10 then 'panic' end from generate_series(0, 59) n`)
	get(t, h, "/redrive?id="+redriveID).ok(t, `aria-label="Jobs that became due, a bar for each 1 s: at most 10 a second"><path d="M0.5 20v-20.0M1.5 20v-20.0M2.5 20v-20.0M3.5 20v-20.0M4.5 20v-20.0M5.5 20v-20.0"/><path class="bad" d=""/>`,
		`viewBox="0 0 60 20"`, `aria-label="Jobs that ended, a bar for each 1 s: at most 20 a second, 10 discarded again"><path d="M3.5 20v-20.0M4.5 20v-20.0M5.5 20v-20.0"/><path class="bad" d="M3.5 20v-10.0"/>`)
	get(t, h, "/api/redrive?id="+redriveID).ok(t, `"seconds":1,"due":10,"completed":10,"discarded":10}`)
	get(t, h, "/api/redrives").ok(t).lacks(t, `"course":`)
}

// A role that may not read what ran, or a database that lacks the table, hides the plots and nothing else.
func TestPlotsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	_, pool := newSite(t, Options{}, richSQL)
	schema := pgtest.Schema(pool)
	role := schema + "_reader"
	exec := func(sql string) {
		t.Helper()
		if _, err := pool.Exec(context.Background(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	exec(fmt.Sprintf(`create role %s; grant usage on schema %s to %[1]s; grant select on all tables in schema %[2]s to %[1]s; grant execute on all functions in schema %[2]s to %[1]s; revoke select on drover_activity from %[1]s`, role, schema))
	t.Cleanup(func() { exec(`drop owned by ` + role + `; drop role ` + role) })
	cfg := pool.Config()
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "set role "+role)
		return err
	}
	reader, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	guest := Handler(newClient(t, reader), Options{Logger: quiet()})
	get(t, guest, "/").ok(t, "payments", "What needs a person", "Not seen: activity: the role may not read the table drover_activity.").lacks(t, `class="plot`)
	get(t, guest, "/queue?name=payments").ok(t, "app-1", "the role may not read the table drover_activity").lacks(t, `class="plot`, "Nothing ran")
	get(t, guest, "/api/overview").ok(t, `"payments"`)
	get(t, guest, "/api/activity").is(t, http.StatusServiceUnavailable, "may not read")

	exec(`drop table drover_activity`)
	owner := Handler(newClient(t, pool), Options{Logger: quiet()})
	get(t, owner, "/").ok(t, "payments", "What needs a person", "Not seen: activity: the database has no such table; run drover migrate up.")
	get(t, owner, "/queue?name=payments").ok(t, "app-1", "the database has no such table")
}

// A list shows args as one line: redacted, then cut. Args that are too long for that show their size, and none show nothing.
func TestArgsInAList(t *testing.T) {
	t.Parallel()
	w := words{redact: func(text string) string { return strings.ReplaceAll(text, "4711", "(card)") }}
	for args, want := range map[string]string{
		"": "", "{}": "", " { } ": "{ }", `{"card": "4711"}`: `{"card": "(card)"}`,
		`{"a": "` + strings.Repeat("x", 200) + `4711"}`:          `{"a": "` + strings.Repeat("x", cellLength-7) + "…",
		`{"a": "` + strings.Repeat("x", cellLength-9) + `4711"}`: `{"a": "` + strings.Repeat("x", cellLength-9) + "(c…",
		`{"a": "` + strings.Repeat("x", longestLine) + `4711"}`:  size(longestLine+13) + " of args",
		"{\n\"a\": \"<b>\u202e\"}":                               `{ "a": "<b>\u202e"}`,
	} {
		if got := w.line(json.RawMessage(args)); got != want {
			t.Errorf("%.40s: %s, want %s", args, got, want)
		}
	}
}
