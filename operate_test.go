package drover_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/oklog/ulid/v2"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pg"
)

// put inserts a job with the given columns and values, both in SQL, and returns its id.
func (db *testDB) put(t *testing.T, columns, values string) string {
	t.Helper()
	t.Helper()
	return value[string](t, db, `insert into jobs (kind, `+columns+`) values ('letter', `+values+`) returning id`)
}

// D-2.
func TestGetTellsAllOfAJob(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	db.exec(t, `insert into drover_kinds (kind, max_attempts) values ('letter', 7)`)
	db.exec(t, `insert into queues (name, max_attempts) values ('default', 8), ('post', 9)`)
	id := db.put(t, `queue, state, priority, attempt, claim_seq, scheduled_at, created_at, attempted_at, finalized_at, discard_reason, crashes,
redrives, snoozes, errors_total, errors, args, retry, tags, metadata, concurrency_key`, `'post', 'discarded', 3, 2, 4, '2031-01-01 00:00:00.000001+00', '2030-01-01+00',
'2032-01-01+00', '2033-01-01+00', 'crashed', 1, 5, 6, 30,
'[{"attempt": 1, "claim_seq": 1, "at": "2031-01-01T00:00:00+00:00", "class": "panic", "error": "e1", "type": "T", "fingerprint": "f",
	"duration_ms": 10, "delay_ms": 20, "supervisor": "s", "trace": "tr"}, {"class": "operator", "error": "cancelled"}]',
'{"to": "x"}', '{"type": "constant", "delay": "1s"}', '{a,b}', '{"m": 1}', 'customer 7'`)
	at := func(year int) *time.Time {
		at := time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)
		return &at
	}
	want := drover.JobInfo{
		ID: id, Queue: "post", Kind: "letter", State: drover.Discarded, Priority: 3, Attempt: 2, MaxAttempts: 7, ScheduledAt: at(2031).Add(time.Microsecond),
		CreatedAt: *at(2030), AttemptedAt: at(2032), FinalizedAt: at(2033), DiscardReason: "crashed", Crashes: 1, Redrives: 5, Snoozes: 6,
		ErrorsTotal: 30, Args: json.RawMessage(`{"to": "x"}`), Retry: json.RawMessage(`{"type": "constant", "delay": "1s"}`), Tags: []string{"a", "b"},
		Metadata: json.RawMessage(`{"m": 1}`), Key: "customer 7",
		Errors: []drover.RunError{
			{Attempt: 1, ClaimSeq: 1, At: *at(2031), Class: "panic", Error: "e1", Type: "T", Fingerprint: "f", DurationMS: 10, DelayMS: 20, Supervisor: "s", Trace: "tr"},
			{Class: "operator", Error: "cancelled"},
		},
	}
	got := db.Get(t, id)
	if !strings.HasPrefix(got.Seen, "5/") { // Seen begins with the number of redrives
		t.Errorf("seen = %q", got.Seen)
	}
	want.Seen = got.Seen
	asJSON := func(j *drover.JobInfo) string {
		for _, at := range []*time.Time{&j.ScheduledAt, &j.CreatedAt, j.AttemptedAt, j.FinalizedAt} {
			*at = at.UTC()
		}
		for i := range j.Errors {
			j.Errors[i].At = j.Errors[i].At.UTC()
		}
		raw, err := json.MarshalIndent(j, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	if got, want := asJSON(got), asJSON(&want); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	if got.LastError() != "e1" {
		t.Errorf("last error %q, want that of a run", got.LastError())
	}

	// MaxAttempts is the job's own value, else its kind's, else its queue's, else 20.
	for want, columns := range map[int][2]string{
		2: {"max_attempts, queue", "2, 'post'"}, 7: {"queue", "'post'"},
	} {
		if got := db.Get(t, db.put(t, columns[0], columns[1])).MaxAttempts; got != want {
			t.Errorf("max_attempts %d, want %d", got, want)
		}
	}
	db.exec(t, `delete from drover_kinds`)
	for queue, want := range map[string]int{"post": 9, "other": 20} {
		if got := db.Get(t, db.put(t, "queue", "'"+queue+"'")).MaxAttempts; got != want {
			t.Errorf("queue %s: max_attempts %d, want %d", queue, got, want)
		}
	}
	parked := db.Get(t, db.put(t, "state, scheduled_at", "'parked', 'infinity'"))
	if parked.State != drover.Parked || parked.ScheduledAt != parked.CreatedAt || parked.LastError() != "" {
		t.Errorf("%+v", parked)
	}
}

// An id that no row can have is not found, and finds no other job.
func TestIDsThatNoRowHas(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	db.enqueue(t, letter{}, nil)
	for _, id := range []string{"", "%", "x", ulid.Make().String(), strings.Repeat("\x00", 26), strings.Repeat("\xff", 26), strings.Repeat("9", 1<<20)} {
		_, got := db.client.Job(t.Context(), id)
		_, cancelled := db.client.Cancel(t.Context(), id, drover.Audit{})
		for _, err := range []error{got, cancelled, db.client.RedriveJob(t.Context(), id, nil, drover.Audit{})} {
			if !errors.Is(err, drover.ErrNotFound) {
				t.Errorf("%.30q: %.200v, want ErrNotFound", id, err)
			}
		}
	}
}

// Pages list dead letters in the order of their end, even if thousands of newer ones come before
// them.
func TestListOfOldDeadLetters(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	db.exec(t, `
insert into jobs (id, queue, kind, state, finalized_at, discard_reason, class, tags)
select (select left(drover_ulid(), 10)) || lpad(n::text, 16, '0'), 'q', case when n > 3000 or n = 1 then 'rare' else 'frequent' end, 'discarded', now() - n / 2 * interval '1 s', 'panic', 'panic', '{t}' from generate_series(1, 3025) n`)
	want := db.IDsOf(t, `select id from jobs where kind = 'rare' order by finalized_at desc, id desc`)
	for _, filter := range []drover.Filter{{State: drover.Discarded, Kind: "rare"}, {Reason: drover.ReasonPanic, Kind: "rare", Queue: "q"}, {State: drover.Discarded, Kind: "rare", Tags: []string{"t"}}} {
		var got []string
		for after, pages := "", 0; pages == 0 || after != ""; pages++ {
			page, err := db.client.Jobs(t.Context(), filter, after, 10)
			if err != nil {
				t.Fatal(err)
			}
			for i := range page.Jobs {
				got = append(got, page.Jobs[i].ID)
			}
			after = page.Next
		}
		if !slices.Equal(got, want) {
			t.Errorf("%+v: %d jobs, want %d in the order of their end", filter, len(got), len(want))
		}
	}
}

// D-2: each filter lists the jobs that match it, and no others.
func TestListFilters(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	db.put(t, "id, queue", "'"+strings.Repeat("1", 26)+"', 'post'")
	db.exec(t, `insert into jobs (id, kind) values (repeat('2', 26), 'parcel')`)
	db.put(t, "id, state, scheduled_at", "repeat('3', 26), 'scheduled', now() + interval '1 day'")
	db.put(t, "id, state, finalized_at, discard_reason, errors", `repeat('4', 26), 'discarded', now(), 'panic', '[{"class": "error", "error": "first"}, {"class": "error", "error": "100% of_it \\ Gone"}]'`)
	db.put(t, "id, state, finalized_at, discard_reason, errors", `repeat('5', 26), 'discarded', now(), 'expired', '[{"class": "error", "error": "1000 ofXit"}]'`)
	db.put(t, "id, tags", "repeat('6', 26), '{red,green}'")
	db.put(t, "id, state, finalized_at", "repeat('7', 26), 'cancelled', now()")
	for want, f := range map[string]drover.Filter{
		"7654321": {}, "1": {Queue: "post"}, "2": {Kind: "parcel"}, "3": {State: drover.Scheduled}, "54": {State: drover.Discarded}, "7": {State: drover.Cancelled},
		"4": {Reason: "panic"}, "6": {Tags: []string{"green"}}, "5": {Error: "OFXIT"}, "": {Tags: []string{"gre"}},
	} {
		if got := listed(t, db, f); got != want {
			t.Errorf("%+v: %q, want %q", f, got, want)
		}
	}
	for _, f := range []drover.Filter{{Error: "100% OF_IT"}, {Error: `\ gone`}, {Error: "%"}, {Error: "_"}, {Error: `\`}, {Error: "of_it", State: drover.Discarded, Reason: "panic"}} {
		if got := listed(t, db, f); got != "4" {
			t.Errorf("%+v: %q, want 4", f, got)
		}
	}
	for _, f := range []drover.Filter{{Error: "first"}, {Queue: "post", Kind: "parcel"}, {State: drover.Running}, {Queue: "'; drop table jobs; --"}} {
		if got := listed(t, db, f); got != "" {
			t.Errorf("%+v: %q, want none", f, got)
		}
	}
	_, err := db.client.Jobs(t.Context(), drover.Filter{State: "odd", Queue: "\x00", Error: "\xff", Tags: []string{strings.Repeat("t", 1025)}}, "\x00", 1001)
	want := []string{"limit", "Filter.State", "Filter.Queue", "Filter.Error", "Filter.Tags[0]", "after"}
	if got := drover.Fields(t, err); !slices.Equal(got, want) {
		t.Errorf("listed %q, want %q", got, want)
	}
	if _, err := db.client.Jobs(t.Context(), drover.Filter{}, "", -1); !errors.Is(err, drover.ErrInvalid) {
		t.Errorf("limit -1: %v", err)
	}
}

// listed returns the first characters of the ids that the filter lists.
func listed(t *testing.T, db *testDB, f drover.Filter) (ids string) {
	t.Helper()
	page, err := db.client.Jobs(t.Context(), f, "", 0)
	if err != nil {
		t.Fatalf("%+v: %v", f, err)
	}
	for _, j := range page.Jobs {
		ids += j.ID[:1]
	}
	return ids
}

// D-2: pages list every job exactly once, while other jobs are added and deleted.
func TestPagingIsComplete(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	batch := make([]drover.EnqueueItem, 250)
	for i := range batch {
		batch[i] = drover.EnqueueItem{letter{}, nil}
	}
	receipts, err := db.client.EnqueueMany(t.Context(), batch)
	if err != nil {
		t.Fatal(err)
	}
	for limit, first := range map[int]int{0: 50, 1: 1, 7: 7, 250: 250, 1000: 250} {
		seen := map[string]int{}
		last, after := "", ""
		for n := 0; ; n++ {
			page, err := db.client.Jobs(t.Context(), drover.Filter{Queue: "default"}, after, limit)
			if err != nil {
				t.Fatal(err)
			}
			if n == 0 && len(page.Jobs) < first {
				t.Errorf("limit %d: %d on the first page", limit, len(page.Jobs))
			}
			for _, j := range page.Jobs {
				seen[j.ID]++
				if last != "" && j.ID >= last {
					t.Fatalf("limit %d: %s behind %s", limit, j.ID, last)
				}
				last = j.ID
			}
			if after = page.Next; after == "" {
				break
			}
			if n%10 == 0 {
				db.enqueue(t, letter{"new"}, nil)
				db.exec(t, `delete from jobs where id = $1`, page.Jobs[0].ID) // a job that was listed
				delete(seen, page.Jobs[0].ID)
				receipts = slices.DeleteFunc(receipts, func(r drover.Receipt) bool { return r.ID == page.Jobs[0].ID })
			}
		}
		for _, r := range receipts {
			if seen[r.ID] != 1 {
				t.Errorf("limit %d: job %s listed %d times", limit, r.ID, seen[r.ID])
			}
		}
	}
	page, err := db.client.Jobs(t.Context(), drover.Filter{}, strings.Repeat("0", 26), 0)
	if err != nil || len(page.Jobs) != 0 || page.Next != "" {
		t.Errorf("below the lowest id: %+v, %v", page, err)
	}
}

// Reading a job by its id reads one row. A query plan shared with lists would scan the table for
// it.
func TestGetReadsOneRowWhateverThePlan(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newTestDB(t)
	pool := db.samePool(t, func(c *pgxpool.Config) {
		c.MaxConns = 1
		c.ConnConfig.RuntimeParams["plan_cache_mode"] = "force_generic_plan"
		c.ConnConfig.RuntimeParams["enable_seqscan"] = "off"
	})
	db.exec(t, `insert into jobs (id, kind) select (select left(drover_ulid(), 10)) || lpad(n::text, 16, '0'), 'k' from generate_series(1, 20000) n`)
	var plan []string
	rows, err := pool.Query(t.Context(), `explain `+drover.SQLGet, db.enqueue(t, letter{}, nil))
	if err == nil {
		plan, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	if text := strings.Join(plan, "\n"); err != nil || !strings.Contains(text, "Index Cond: (id = ") {
		t.Errorf("%v\n%s", err, text)
	}
}

// D-2.
func TestCounts(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	if counts, err := db.client.Counts(t.Context()); err != nil || len(counts) != 0 {
		t.Errorf("of no job: %v, %v", counts, err)
	}
	db.put(t, "scheduled_at", "'2020-01-01+00'")
	db.put(t, "scheduled_at", "'2021-01-01+00'")
	db.put(t, "state, scheduled_at", "'scheduled', now() + interval '1 day'")
	db.put(t, "state, claimed_by, scheduled_at", "'running', 's', '2020-01-01+00'")
	db.put(t, "queue, state, finalized_at, scheduled_at", "'post', 'completed', now(), '2020-01-01+00'")
	counts, err := db.client.Counts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range counts {
		due := ""
		if c.OldestDue != nil {
			due = c.OldestDue.UTC().Format(time.DateOnly)
		}
		got = append(got, fmt.Sprint(c.Queue, " ", c.State, " ", c.Jobs, " ", due))
	}
	want := []string{"default available 2 2020-01-01", "default running 1 ", "default scheduled 1 ", "post completed 1 "}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// D-3.
func TestRedriveKeepsTheJobAndItsHistory(t *testing.T) {
	t.Parallel()
	var events atomic.Int32
	db := newTestDBWith(t, drover.Config{
		Logger: slog.New(slog.DiscardHandler), Hooks: []drover.Hooks{{Redriven: func(context.Context, drover.Event) { events.Add(1) }}},
	})
	const dead = `attempt, claim_seq, max_attempts, state, finalized_at, discard_reason, errors_total, errors, created_at, scheduled_at, tags, retry`
	const deadValues = `3, 5, 3, 'discarded', now(), 'attempts_exhausted', 1, '[{"error": "e1", "class": "error"}]', now() - interval '1 day',
now() - interval '1 hour', '{a}', '{"type": "constant", "delay": "1s"}'`
	for name, tc := range map[string]struct {
		columns, values string
		opts            *drover.RedriveOpts
		row             string
	}{
		"discarded":                      {row: `max_attempts = 3 and lane = 15 and crashes = 0 and args = '{}'`},
		"nil and zero options are alike": {opts: &drover.RedriveOpts{}, row: `max_attempts = 3 and args = '{}'`},
		"MaxAttempts":                    {opts: &drover.RedriveOpts{MaxAttempts: 9}, row: `max_attempts = 9`},
		"ArgsPatch": {
			`, args`, `, '{"a": 1, "b": {"c": 2}}'`, &drover.RedriveOpts{ArgsPatch: json.RawMessage(" \n{\"b\": 3, \"d\": \"<&>\"}")},
			`args = '{"a": 1, "b": 3, "d": "<&>"}'`,
		},
		"RetryUntil starts again":                {`, retry_until`, `, now() - interval '18 hours'`, nil, `retry_until - redriven_at between interval '5:59' and interval '6:01'`},
		"RetryUntil starts again, and yet again": {`, retry_until, redriven_at`, `, now() - interval '10 hours', now() - interval '12 hours'`, nil, `retry_until - redriven_at between interval '1:59' and interval '2:01'`},
		"expires in time":                        {`, expires_at`, `, now() + interval '1 hour'`, nil, `expires_at > now()`},
		"no longer suspect":                      {`, crashes`, `, 2`, nil, `crashes = 0 and lane = 15`},
	} {
		id := db.put(t, dead+tc.columns, deadValues+tc.values)
		events.Store(0)
		woke := woken(t, db, func() {
			if err := db.client.RedriveJob(t.Context(), id, tc.opts, drover.Audit{}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
		const redriven = `
select coalesce(state = 'available' and attempt = 0 and claim_seq = 5 and redrives = 1 and redriven_at - scheduled_at < interval '1 s' and redriven_at <= clock_timestamp()
	and scheduled_at > now() - interval '1 minute' and finalized_at is null and discard_reason is null and errors_total = 1 and errors->0->>'error' = 'e1'
	and jsonb_array_length(errors) = 2 and errors->1->>'class' = 'operator' and errors->1->>'error' = 'redriven' and tags = '{a}' and retry is not null
	and %s, false) from jobs where id = $1`
		if !value[bool](t, db, fmt.Sprintf(redriven, tc.row), id) {
			t.Errorf("%s: not so: %s\n%s", name, tc.row, value[string](t, db, `select to_jsonb(j)::text from jobs j where id = $1`, id))
		}
		if !woke || events.Load() != 1 {
			t.Errorf("%s: woke %t, %d events", name, woke, events.Load())
		}
	}
	convicted := db.put(t, "state, finalized_at, discard_reason, crashes", "'discarded', now(), 'crashed', 10")
	cancelled := db.put(t, "state, finalized_at", "'cancelled', now()")
	for _, id := range []string{convicted, cancelled} {
		if err := db.client.RedriveJob(t.Context(), id, nil, drover.Audit{}); err != nil {
			t.Error(err)
		}
	}
	if !value[bool](t, db, `select crashes = 1 and lane = 25 from jobs where id = $1`, convicted) {
		t.Error("a convicted job is no suspect any more")
	}
	if !value[bool](t, db, `select state = 'available' and lane = 5 from jobs where id = $1`, cancelled) {
		t.Error("a cancelled job was not redriven")
	}
}

// D-3.
func TestRedriveRefuses(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	const dead = "state, finalized_at, discard_reason"
	const deadValues = "'discarded', now(), 'expired'"
	for name, tc := range map[string]struct {
		columns, values string
		opts            drover.RedriveOpts
		want            error
	}{
		"running":                 {columns: "state, claimed_by, redrives", values: "'running', 's', 1", want: drover.ErrState},
		"completed":               {columns: "state, finalized_at, redrives", values: "'completed', now(), 1", want: drover.ErrState},
		"never redriven, waiting": {columns: "priority", values: "5", want: drover.ErrState},
		"expired":                 {columns: dead + ", expires_at", values: deadValues + ", now() - interval '1 s'", want: drover.ErrState},
		"negative attempts":       {columns: dead, values: deadValues, opts: drover.RedriveOpts{MaxAttempts: -1}, want: drover.ErrInvalid},
		"too many attempts":       {columns: dead, values: deadValues, opts: drover.RedriveOpts{MaxAttempts: 1 << 40}, want: drover.ErrInvalid},
		"empty patch":             {columns: dead, values: deadValues, opts: drover.RedriveOpts{ArgsPatch: json.RawMessage{}}, want: drover.ErrInvalid},
		"patch of spaces":         {columns: dead, values: deadValues, opts: drover.RedriveOpts{ArgsPatch: json.RawMessage("  ")}, want: drover.ErrInvalid},
		"patch that is an array":  {columns: dead, values: deadValues, opts: drover.RedriveOpts{ArgsPatch: json.RawMessage(`[{}]`)}, want: drover.ErrInvalid},
		"patch with NUL":          {columns: dead, values: deadValues, opts: drover.RedriveOpts{ArgsPatch: json.RawMessage(`{"a": "\u0000"}`)}, want: drover.ErrInvalid},
		"patch over 256 KiB":      {columns: dead, values: deadValues, opts: drover.RedriveOpts{ArgsPatch: json.RawMessage(`{"a": "` + strings.Repeat("x", 256<<10) + `"}`)}, want: drover.ErrInvalid},
		"patch for an array":      {columns: dead + ", args", values: deadValues + ", '[1]'", opts: drover.RedriveOpts{ArgsPatch: json.RawMessage(`{"a": 1}`)}, want: drover.ErrInvalid},
		"patch for a string":      {columns: dead + ", args", values: deadValues + `, '"x"'`, opts: drover.RedriveOpts{ArgsPatch: json.RawMessage(`{"a": 1}`)}, want: drover.ErrInvalid},
	} {
		id := db.put(t, tc.columns, tc.values)
		before := value[string](t, db, `select to_jsonb(j)::text from jobs j where id = $1`, id)
		if err := db.client.RedriveJob(t.Context(), id, &tc.opts, drover.Audit{}); !errors.Is(err, tc.want) {
			t.Errorf("%s: %.200v, want %v", name, err, tc.want)
		}
		if after := value[string](t, db, `select to_jsonb(j)::text from jobs j where id = $1`, id); after != before {
			t.Errorf("%s: changed\n%s to\n%s", name, before, after)
		}
	}
	// Without a patch, the args need not be an object.
	if err := db.client.RedriveJob(t.Context(), db.put(t, dead+", args", deadValues+", '[1]'"), &drover.RedriveOpts{MaxAttempts: 1}, drover.Audit{}); err != nil {
		t.Error(err)
	}
	for _, patch := range []string{`[1]`, `"x"`, `null`} {
		id := db.put(t, dead+", args", deadValues+`, '{"a": 1}'`)
		if _, err := db.Exec(t.Context(), `select drover_redrive($1, args_patch => $2)`, id, patch); err == nil {
			t.Errorf("drover_redrive took the patch %s", patch)
		}
	}
}

// D-3: sixteen operators redrive the same job together. It is redriven once.
func TestSixteenRedrivesAtOnce(t *testing.T) {
	t.Parallel()
	var events atomic.Int32
	db := newTestDBWith(t, drover.Config{
		Logger: slog.New(slog.DiscardHandler), Hooks: []drover.Hooks{{Redriven: func(context.Context, drover.Event) { events.Add(1) }}},
	})
	id := db.put(t, "state, finalized_at, discard_reason, max_attempts", "'discarded', now(), 'panic', 2")
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if err := db.client.RedriveJob(t.Context(), id, &drover.RedriveOpts{MaxAttempts: 3}, drover.Audit{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if !value[bool](t, db, `select redrives = 1 and jsonb_array_length(errors) = 1 and max_attempts = 3 from jobs where id = $1`, id) || events.Load() != 1 {
		t.Errorf("%+v, %d events", db.Get(t, id), events.Load())
	}
	// Another redrive changes nothing while the job waits for a retry.
	db.exec(t, `update jobs set state = 'retryable', attempt = 1 where id = $1`, id)
	if err := db.client.RedriveJob(t.Context(), id, nil, drover.Audit{}); err != nil {
		t.Error(err)
	}
	if j := db.Get(t, id); j.State != drover.Retryable || j.Attempt != 1 || j.Redrives != 1 || events.Load() != 1 {
		t.Errorf("%+v, %d events", j, events.Load())
	}
}

// D-3: a redriven job starts again from its first attempt.
func TestARedrivenJobRunsAgain(t *testing.T) {
	t.Parallel()
	ends, hooks := endHooks()
	db := newTestDBWith(t, drover.Config{Logger: slog.New(slog.DiscardHandler), Hooks: hooks})
	db.run(t, drover.SupervisorConfig{
		Queues: []drover.Queue{{}}, PollInterval: 10 * time.Millisecond,
		Workers: []drover.Worker{drover.Handle(func(_ context.Context, j *drover.Job, l letter) error {
			if l.To == "mended" && j.Redrives == 1 && j.Attempt == 2 && j.Failures == 3 {
				return nil
			}
			return fmt.Errorf("attempt %d", j.Attempt)
		}, drover.WorkerOpts{MaxAttempts: 2, Retry: drover.Constant{Delay: time.Millisecond}})},
	})
	id := db.enqueue(t, letter{"broken"}, nil)
	for _, want := range []string{"failed", "discarded"} {
		if end := <-ends; end.how != want {
			t.Fatalf("%s, want %s", end.how, want)
		}
	}
	if err := db.client.RedriveJob(t.Context(), id, &drover.RedriveOpts{ArgsPatch: json.RawMessage(`{"to": "mended"}`)}, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"failed", "completed"} {
		if end := <-ends; end.how != want {
			t.Fatalf("%s after the redrive, want %s", end.how, want)
		}
	}
	var told []string
	for _, e := range db.Get(t, id).Errors {
		told = append(told, e.Error)
	}
	if want := []string{"attempt 1", "attempt 2", "redriven", "attempt 1"}; !slices.Equal(told, want) {
		t.Errorf("history %q, want %q", told, want)
	}
}

// F-13: Cancel ends a job that has not ended, and changes no job that has.
func TestCancel(t *testing.T) {
	t.Parallel()
	var events atomic.Int32
	db := newTestDBWith(t, drover.Config{
		Logger: slog.New(slog.DiscardHandler), Hooks: []drover.Hooks{{Cancelled: func(_ context.Context, e drover.Event) { events.Add(1) }}},
	})
	for state, values := range map[drover.State][2]string{
		drover.Available: {"priority", "1"}, drover.Scheduled: {"state, scheduled_at", "'scheduled', now() + interval '1 h'"}, drover.Retryable: {"state", "'retryable'"},
		drover.Parked: {"state, scheduled_at", "'parked', 'infinity'"}, drover.Running: {"state, claimed_by, attempt, claim_seq", "'running', 's', 2, 3"},
		drover.Completed: {"state, finalized_at", "'completed', now()"}, drover.Discarded: {"state, finalized_at, discard_reason", "'discarded', now(), 'panic'"},
		drover.Cancelled: {"state, finalized_at", "'cancelled', now()"},
	} {
		id := db.put(t, values[0], values[1])
		before := value[string](t, db, `select to_jsonb(j)::text from jobs j where id = $1`, id)
		events.Store(0)
		sent := notes(t, db, func() {
			if was, err := db.client.Cancel(t.Context(), id, drover.Audit{Why: "no use"}); err != nil || was != state {
				t.Errorf("Cancel of %s = %s, %v", state, was, err)
			}
		})
		j := db.Get(t, id)
		switch {
		case state.Final():
			if after := value[string](t, db, `select to_jsonb(j)::text from jobs j where id = $1`, id); after != before || events.Load() != 0 {
				t.Errorf("Cancel of %s changed it to %s", state, after)
			}
			continue
		case j.State != drover.Cancelled || j.FinalizedAt == nil || j.ClaimedBy != "" || len(j.Errors) != 1 || j.ErrorsTotal != 0 || j.LastError() != "":
			t.Errorf("%s became %+v", state, j)
		case j.Errors[0].Class != "operator" || j.Errors[0].Error != "cancelled: no use" || j.Errors[0].At.IsZero():
			t.Errorf("%s has the entry %+v", state, j.Errors[0])
		}
		// The supervisor of a running job would emit its event. Here there is no supervisor.
		if want := []string{"cancel " + id}; state == drover.Running && (!slices.Equal(sent, want) || events.Load() != 0) {
			t.Errorf("%q, %d events for a running job", sent, events.Load())
		} else if state != drover.Running && (len(sent) != 0 || events.Load() != 1) {
			t.Errorf("%q, %d events for a waiting job", sent, events.Load())
		}
		if was, err := db.client.Cancel(t.Context(), id, drover.Audit{}); err != nil || was != drover.Cancelled {
			t.Errorf("the second Cancel = %s, %v", was, err)
		}
	}
	id := db.enqueue(t, letter{}, nil)
	db.exec(t, `select drover_cancel($1, repeat('é', 10000), repeat('a', 10000))`, id)
	if e := db.Get(t, id).Errors[0]; len(e.Error) > 2000 || len(e.By) != 128 {
		t.Errorf("the entry takes %d and %d bytes", len(e.Error), len(e.By))
	}
}

// D-1: DeleteMany deletes only completed jobs that ended before the cutoff.
func TestDeleteManyByTheEnd(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	old := "now() - interval '2 days'"
	db.exec(t, `insert into jobs (id, kind, state, finalized_at) select (select left(drover_ulid(), 10)) || lpad(n::text, 16, '0'), 'old', 'completed', `+old+` from generate_series(1, 1100) n`)
	db.put(t, "id, state, finalized_at", "'7ZZZZZZZZZZZZZZZZZZZZZZZZZ', 'completed', "+old) // an id from a clock that is ahead, or an id without a time
	db.put(t, "id, state, finalized_at", "repeat('z', 26), 'completed', "+old)
	db.put(t, "id, state, finalized_at", "repeat('~', 26), 'completed', "+old)
	kept := []string{
		db.put(t, "state, finalized_at", "'completed', now()"),
		db.put(t, "state, finalized_at, discard_reason", "'discarded', "+old+", 'panic'"),
		db.put(t, "state, finalized_at", "'cancelled', "+old),
		db.put(t, "scheduled_at", old),
		db.put(t, "state, claimed_by, scheduled_at", "'running', 's', "+old),
	}
	before := func(cutoff time.Time) (int64, error) {
		done, err := db.client.DeleteMany(t.Context(), drover.Filter{State: drover.Completed, FinalizedBefore: cutoff}, drover.Audit{})
		return done.Changed, err
	}
	if n, err := before(time.Now().Add(-24 * time.Hour)); err != nil || n != 1103 {
		t.Errorf("deleted %d, %v", n, err)
	}
	if n := value[int](t, db, `select count(*) from jobs where id = any($1)`, kept); n != len(kept) {
		t.Errorf("%d of %d other jobs left", n, len(kept))
	}
	if n, err := before(time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)); err != nil || n != 1 {
		t.Errorf("of all, deleted %d, %v", n, err)
	}
	if n := value[int](t, db, `select count(*) from jobs`); n != 4 {
		t.Errorf("%d jobs left", n)
	}
	for _, cutoff := range []time.Time{time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC), time.Unix(1<<55, 0)} {
		if _, err := before(cutoff); !errors.Is(err, drover.ErrInvalid) {
			t.Errorf("cutoff in %d: %v", cutoff.Year(), err)
		}
	}
}

// drover_delete_many reads the ids in batches, and deletes the jobs that ended before the given
// time. It passes over locked rows.
func TestDeleteManyWalk(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	put := func(state string, age, ended time.Duration) string {
		return value[string](t, db, `
insert into jobs (id, kind, state, finalized_at, discard_reason) values (drover_ulid_at(now() - $2::interval), 'k', $1, now() - $3::interval,
	case when $1 = 'discarded' then 'panic' end) returning id`, state, pg.Interval(age), pg.Interval(ended))
	}
	day := 24 * time.Hour
	ids := []string{
		put("completed", 9*day, 8*day), put("cancelled", 8*day, 7*day), put("discarded", 7*day, 6*day), put("completed", 6*day, time.Hour),
		put("completed", 5*day, 4*day), put("cancelled", 4*day, time.Hour), put("completed", 3*day, 3*day), put("completed", time.Hour, 0),
	}
	type step struct {
		last    *string
		changed int
	}
	remove := func(after, state string, batch int) (s step) {
		err := db.QueryRow(t.Context(), `select last, changed from drover_delete_many(
			jsonb_build_object('state', $2::text, 'finalized_before', now() - interval '2 days'), 'delete', $1, $3)`, after, state, batch).Scan(&s.last, &s.changed)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `select from jobs where id = $1 for update`, ids[4]); err != nil {
		t.Fatal(err)
	}
	after := ""
	for i, want := range []step{{&ids[4], 1}, {nil, 1}} {
		s := remove(after, "completed", 2)
		if s.changed != want.changed || (s.last == nil) != (want.last == nil) || s.last != nil && *s.last != *want.last {
			t.Errorf("step %d: %+v, want %+v", i, s, want)
		}
		if s.last != nil {
			after = *s.last
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := remove("", "completed", 1000); s.changed != 1 { // the job whose row was locked
		t.Errorf("%+v", s)
	}
	if s := remove("", "cancelled", 1000); s.changed != 1 {
		t.Errorf("%+v", s)
	}
	if n := value[int](t, db, `select count(*) from jobs where id = any($1)`, []string{ids[2], ids[3], ids[5], ids[7]}); n != 4 {
		t.Errorf("%d of 4 left", n)
	}
}

// D-8: the SQL functions do everything from psql, with named arguments.
func TestTheFunctionsFromPSQL(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	text := func(sql string, args ...any) string {
		t.Helper()
		return value[string](t, db, `select coalesce((`+sql+`)::text, 'null')`, args...)
	}
	id := text(`select job_id from drover_enqueue(kind => 'charge', args => '{"OrderID": 42}', queue => 'payments', delay => '5 min')`)
	if got := text(`select drover_enqueue('charge', '{"OrderID": 42}', queue => 'payments', id => $1)`, id); got != "("+id+",t)" {
		t.Error(got)
	}
	for _, step := range [][2]string{
		{`drover_redrive(repeat('0', 26))`, "null"},
		{`drover_cancel(repeat('0', 26))`, "null"},
		{`drover_cancel(job_id => $1, why => 'no use', by => 'ann')`, "cancelled"},
		{`drover_cancel(job_id => $1)`, "cancelled"},
		{`drover_redrive(job_id => $1, max_attempts => 3, args_patch => '{"OrderID": 43}')`, "available"},
		{`drover_redrive($1)`, "available"},
		{`drover_edit(job_id => $1, edit => '{"priority": 2}', why => 'vip', by => 'ann')`, "(available,t)"},
		{`drover_edit($1, '{"priority": 2}')`, "(available,f)"},
		{`drover_edit(repeat('0', 26), '{"run_now": true}')`, "(,f)"},
		{`drover_rerun(repeat('0', 26))`, "null"},
		{`changed from drover_edit_many(filter => '{"kind": "charge"}', edit => '{"delay": "1 h"}', why => 'later')`, "1"},
		{`drover_cancel($1, null)`, "cancelled"},
		{`drover_discard(repeat('0', 26))`, "null"},
		{`drover_discard(j.id) from drover_enqueue('k', id => repeat('1', 26)) as e(id, was), jobs j where j.id = $1`, "cancelled"},
		{`drover_discard(repeat('1', 26), 'odd')`, "discarded"},
		{`drover_discard(repeat('1', 26))`, "discarded"},
		{`drover_redrive(repeat('1', 26))`, "available"},
		{`changed from drover_delete_many('{"kind": "k"}', confirm => 'delete')`, "0"},
		{`drover_cancel(repeat('1', 26))`, "cancelled"},
		{`changed from drover_delete_many('{"kind": "k"}', confirm => 'delete')`, "1"},
	} {
		sql, args := `select `+step[0], []any{id}
		if !strings.Contains(sql, "$1") {
			args = nil
		}
		if got := text(sql, args...); got != step[1] {
			t.Errorf("%s = %s, want %s", step[0], got, step[1])
		}
	}
	if got := text(`select string_agg(regexp_replace(e->>'error', 'due .* was [^)]*', 'due later'), '|' order by n) from jobs, jsonb_array_elements(errors) with ordinality as x(e, n)`); got != "cancelled: no use|redriven|edited (priority 2, was 5): vip|edited (due later): later|cancelled" {
		t.Error(got)
	}
	if got := text(`select args || to_jsonb(max_attempts) from jobs`); got != `[{"OrderID": 43}, 3]` {
		t.Error(got)
	}
	if got := text(`select changed from drover_delete_many(filter => '{"state": "cancelled"}', confirm => 'delete', after => '', batch => 10)`); got != "1" {
		t.Error(got)
	}
	if got := text(`select string_agg(x, ',') from drover_enqueue_many(batch => '[{"id": "01KAJ4Y8Q3N6T0V5B7C9D1E2FG", "kind": "k"},
{"id": "01KAJ4Y8Q3N6T0V5B7C9D1E2FG", "kind": "k", "delay": "5 min"}]') x`); got != "01KAJ4Y8Q3N6T0V5B7C9D1E2FG" {
		t.Error(got)
	}
	if got := text(`select state from jobs`); got != "available" {
		t.Error(got)
	}
}

// The table's constraints refuse rows in an impossible state.
func TestIllegalStatesAreRefused(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	for name, columns := range map[string][2]string{
		"waiting":   {"priority", "5"},
		"running":   {"state, claimed_by, attempt, claim_seq", "'running', 's', 1, 1"},
		"discarded": {"state, finalized_at, discard_reason", "'discarded', now(), 'panic'"},
		"parked":    {"state, scheduled_at", "'parked', 'infinity'"},
	} {
		id := db.put(t, columns[0], columns[1])
		updates := []string{
			`state = 'odd'`, `state = null`, `finalized_at = now(), state = 'available'`, `scheduled_at = '-infinity'`, `scheduled_at = null`,
			`priority = 0`, `priority = 10`, `attempt = -1`, `claim_seq = -1`, `crashes = -1`, `errors_total = -1`, `max_attempts = 0`, `max_attempts = -1`,
			`timeout_ms = 0`, `timeout_ms = -1`, `errors = '{}'`, `errors = '1'`, `errors = null`, `id = 'short'`, `id = repeat('é', 26)`, `id = null`,
			`kind = ''`, `kind = repeat('é', 65)`, `kind = null`, `queue = ''`, `queue = repeat('q', 129)`, `queue = null`, `args = null`, `lane = 5`,
			`retry = '{}'`, `retry = '1'`, `retry = '{"type": "constant", "delay": "1 s"}'`, `discard_reason = 'odd', state = 'discarded', finalized_at = now(), claimed_by = null`,
			`state = 'completed', claimed_by = null, discard_reason = null, finalized_at = null`, `state = 'cancelled', claimed_by = null, discard_reason = 'panic', finalized_at = now()`,
			`state = 'discarded', claimed_by = null, discard_reason = null, finalized_at = now()`,
			`state = 'running', claimed_by = null, discard_reason = null, finalized_at = null`,
			`state = 'retryable', claimed_by = 's', discard_reason = null, finalized_at = null`,
			`state = 'parked', claimed_by = null, discard_reason = null, finalized_at = null, scheduled_at = now()`,
			`expires_at = 'infinity'`, `retry_until = 'infinity'`, `retry_until = '-infinity'`, `tags = '{{a},{b}}'`, `tags = '{a,null}'`, `metadata = '[]'`, `metadata = 'null'`,
		}
		switch name {
		case "waiting", "parked":
			updates = append(updates, `state = 'completed'`, `state = 'running'`, `claimed_by = 's'`, `finalized_at = now()`, `discard_reason = 'panic'`)
		case "running":
			updates = append(updates, `state = 'available'`, `claimed_by = null`, `finalized_at = now()`, `discard_reason = 'panic'`, `state = 'completed', finalized_at = now()`)
		case "discarded":
			updates = append(updates, `state = 'completed'`, `claimed_by = 's'`, `finalized_at = null`, `discard_reason = null`, `state = 'available'`)
		}
		for _, update := range updates {
			if _, err := db.Exec(t.Context(), `update jobs set `+update+` where id = $1`, id); err == nil {
				t.Errorf("%s: set %s was accepted", name, update)
			}
		}
	}
	for table, values := range map[string]string{
		`queues (name)`: `('')`, `queues (name, max_attempts)`: `('q', 0)`, `queues (name, retry)`: `('q', '{}')`,
		`drover_kinds (kind)`: `(repeat('k', 129))`, `drover_kinds (kind, max_attempts)`: `('k', -1)`, `drover_kinds (kind, retry)`: `('k', '[]')`, `drover_kinds (kind, timeout_ms)`: `('k', 0)`,
		`drover_supervisors (id, lease_ms, queues)`: `('s', 0, '{}')`,
	} {
		if _, err := db.Exec(t.Context(), `insert into `+table+` values `+values); err == nil {
			t.Errorf("insert into %s values %s was accepted", table, values)
		}
	}
}

// F-11, D-8.
func TestViewsOfTheDead(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	db.exec(t, `insert into drover_kinds (kind, max_attempts) values ('letter', 7)`)
	const entry = `{"class": "error", "error": "e%d", "fingerprint": "f1", "at": "2031-01-0%dT00:00:00+00:00"}`
	operator := `{"class": "operator", "error": "redriven", "at": "2030-01-01T00:00:00+00:00"}`
	const columns = "attempt, redrives, errors_total, state, finalized_at, discard_reason, class, fingerprint, errors, tags"
	first := db.put(t, columns, fmt.Sprintf(`3, 1, 2, 'discarded', '2031-02-01+00', 'panic', 'error', 'f1', '[`+operator+`,`+entry+`,`+entry+`,`+operator+`]', '{a}'`, 1, 1, 2, 2))
	second := db.put(t, columns, fmt.Sprintf(`1, 0, 1, 'discarded', '2031-02-02+00', 'panic', 'error', 'f1', '[`+entry+`]', null`, 3, 3))
	db.put(t, columns, `0, 0, 0, 'discarded', '2031-02-03+00', 'expired', null, null, '[]', null`)
	db.put(t, "state, finalized_at", "'cancelled', now()")
	db.enqueue(t, letter{}, nil)
	if n := value[int](t, db, `select count(*) from discarded_jobs`); n != 3 {
		t.Errorf("%d discarded jobs", n)
	}
	if !value[bool](t, db, `
select queue = 'default' and kind = 'letter' and reason = 'panic' and attempts = 3 and max_attempts = 7 and last_error = 'e2' and class = 'error'
	and fingerprint = 'f1' and first_failed_at = '2031-01-01+00' and last_failed_at = '2031-01-02+00' and discarded_at = '2031-02-01+00'
	and errors_total = 2 and jsonb_array_length(errors) = 4 and redrives = 1 and tags = '{a}' and args = '{}'
from discarded_jobs where id = $1`, first) {
		t.Error(value[string](t, db, `select to_jsonb(d)::text from discarded_jobs d where id = $1`, first))
	}
	if !value[bool](t, db, `select last_error is null and first_failed_at is null and reason = 'expired' from discarded_jobs where errors = '[]'`) {
		t.Error("a job that never ran")
	}
	if !value[bool](t, db, `
select jobs = 2 and first_discarded_at = '2031-02-01+00' and last_discarded_at = '2031-02-02+00' and newest_error = 'e3' and newest_id = $1
from discarded_summary where fingerprint = 'f1' and reason = 'panic' and kind = 'letter' and queue = 'default'`, second) {
		t.Error(value[string](t, db, `select jsonb_agg(d)::text from discarded_summary d`))
	}
	if n := value[int](t, db, `select count(*) from discarded_summary`); n != 2 {
		t.Errorf("%d groups", n)
	}
}

func TestULIDsMadeBySQL(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	before := time.Now().Add(-time.Minute)
	db.exec(t, `create table made as select n, drover_ulid() as id from generate_series(1, 10000) n`)
	// The ids are unique and valid. Their order is the order in which they were made, up to a
	// millisecond.
	if !value[bool](t, db, `
with steps as (select id, lag(id) over (order by n) as previous from made)
select count(distinct id) = 10000 and bool_and(id ~ '^0[0-9A-HJKMNP-TV-Z]{25}$') and bool_and(left(id, 10) >= coalesce(left(previous, 10), '')) from steps`) {
		t.Error("not unique, not valid, or not in order")
	}
	// Each of the 16 random digits takes all 32 values about equally often: about 312 times in
	// 10,000, with a standard deviation near 18.
	if odd := value[string](t, db, `
with digits as (select at, substr(id, at, 1) as digit, count(*) as times from made, generate_series(11, 26) at group by 1, 2),
places as (select at, count(*) as values, min(times) as least, max(times) as most from digits group by 1)
select coalesce(string_agg(format('digit %s: %s values, %s to %s times', at, values, least, most), '; '), '') from places
where values <> 32 or least < 200 or most > 450`); odd != "" {
		t.Error(odd)
	}
	id, err := ulid.ParseStrict(value[string](t, db, `select drover_ulid()`))
	if err != nil || id.Timestamp().Before(before) || id.Timestamp().After(time.Now().Add(time.Minute)) {
		t.Errorf("%s made at %v, %v", id, id.Timestamp(), err)
	}
	for _, at := range []time.Time{
		time.UnixMilli(0), time.UnixMilli(1), time.UnixMilli(1<<48 - 1), time.Date(2031, 2, 3, 4, 5, 6, 789_999_000, time.UTC), time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC),
	} {
		var want ulid.ULID
		if err := want.SetTime(ulid.Timestamp(at)); err != nil {
			t.Fatal(err)
		}
		if got := value[string](t, db, `select drover_ulid_at($1)`, at); got != want.String() {
			t.Errorf("drover_ulid_at(%v) = %s, want %s", at, got, want)
		}
	}
	for at, want := range map[string]string{
		"-infinity": "00000000000000000000000000", "1969-12-31": "00000000000000000000000000", "infinity": "7ZZZZZZZZZ0000000000000000", "20000-01-01": "7ZZZZZZZZZ0000000000000000",
	} {
		if got := value[string](t, db, `select drover_ulid_at($1::text::timestamptz)`, at); got != want {
			t.Errorf("drover_ulid_at(%s) = %s, want %s", at, got, want)
		}
	}
	if !value[bool](t, db, `select drover_ulid() >= drover_ulid_at(now()) and drover_ulid() < drover_ulid_at(clock_timestamp() + interval '1 minute')`) {
		t.Error("drover_ulid and drover_ulid_at do not fit")
	}
}

// F-2, F-10: a job's history keeps its first 5 and its last 15 entries, in order. Only the newest
// keeps its stack trace.
func TestAppendErrorIsBounded(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	errs := `[]`
	for n := 1; n <= 60; n++ {
		errs = value[string](t, db, `select drover_append_error($1, jsonb_build_object('attempt', $2::int, 'trace', 'tr'))::text`, errs, n)
		var entries []drover.RunError
		if err := json.Unmarshal([]byte(errs), &entries); err != nil {
			t.Fatal(err)
		}
		var got, want []int
		for i, e := range entries {
			got = append(got, e.Attempt)
			if (e.Trace != "") != (i == len(entries)-1) {
				t.Errorf("after %d: entry %d has the trace %q", n, i, e.Trace)
			}
		}
		for i := 1; i <= n; i++ {
			if i <= 5 || i > n-15 {
				want = append(want, i)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("after %d: %d, want %d", n, got, want)
		}
	}
}

// F-2: entries of operators push no entry of a run and no stack trace out of the history. Their own
// number is bounded, too.
func TestOperatorsEntriesPushOutNoRuns(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	var runs, acts, order []int // the numbers of the entries, in the order in which they were added
	operator := map[int]bool{}
	errs := `[]`
	for n := range 120 {
		entry := fmt.Sprintf(`{"attempt": %d, "class": "panic", "trace": "tr"}`, n)
		if operator[n] = n%10 > 4 && n > 12; operator[n] {
			entry = fmt.Sprintf(`{"attempt": %d, "class": "operator"}`, n)
			acts = append(acts, n)
		} else {
			runs = append(runs, n)
		}
		order = append(order, n)
		errs = value[string](t, db, `select drover_append_error($1, $2::jsonb)::text`, errs, entry)

		var entries []drover.RunError
		if err := json.Unmarshal([]byte(errs), &entries); err != nil {
			t.Fatal(err)
		}
		keep := func(all []int, first, last int) []int {
			if len(all) <= first+last {
				return all
			}
			return slices.Concat(all[:first], all[len(all)-last:])
		}
		kept := slices.Concat(keep(runs, 5, 15), keep(acts, 5, 5))
		want := slices.DeleteFunc(slices.Clone(order), func(n int) bool { return !slices.Contains(kept, n) })
		var got []int
		for _, e := range entries {
			got = append(got, e.Attempt)
			if (e.Trace != "") != (e.Attempt == runs[len(runs)-1]) {
				t.Errorf("after %d: entry %d has the trace %q", n, e.Attempt, e.Trace)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("after %d: %d, want %d", n, got, want)
		}
	}
}

// F-2, F-10: a dead letter keeps its stack trace after a redrive, until the next run records
// another one.
func TestATraceSurvivesOperators(t *testing.T) {
	t.Parallel()
	discarded := make(chan struct{}, 1)
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{{Discarded: func(context.Context, drover.Event) { discarded <- struct{}{} }}}})
	id := db.enqueue(t, dyn{kind: "k"}, nil)
	next := make(chan struct{})
	db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: []drover.Worker{
		dynWorker("k", drover.WorkerOpts{MaxAttempts: 1}, func(context.Context, *drover.Job) error {
			<-next
			panic("again")
		}),
	}})
	traces := func() (at []int) {
		for i, e := range db.EndRow(t, id).Errors {
			if e.Trace != "" {
				at = append(at, i)
			}
		}
		return at
	}
	for n := range 3 { // each round adds an entry of a run and an entry of an operator
		next <- struct{}{}
		<-discarded
		if err := db.client.RedriveJob(t.Context(), id, nil, drover.Audit{By: "ada"}); err != nil {
			t.Fatal(err)
		}
		if got := traces(); !slices.Equal(got, []int{2 * n}) {
			t.Fatalf("after redrive %d traces are in %d", n+1, got)
		}
	}
	close(next)
}

// D-3: a redrive of a job that waits already is refused if it carries a change, so the change is
// not lost silently.
func TestRedriveAgainWithAChange(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	id := db.enqueue(t, letter{"a"}, nil)
	if _, err := db.client.Cancel(t.Context(), id, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	if err := db.client.RedriveJob(t.Context(), id, nil, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	for _, opts := range []*drover.RedriveOpts{{MaxAttempts: 3}, {ArgsPatch: json.RawMessage(`{"To":"b"}`)}} {
		if err := db.client.RedriveJob(t.Context(), id, opts, drover.Audit{}); !errors.Is(err, drover.ErrState) {
			t.Errorf("redrive again with %+v = %v, want ErrState", opts, err)
		}
	}
	if err := db.client.RedriveJob(t.Context(), id, nil, drover.Audit{}); err != nil {
		t.Errorf("redrive again: %v", err)
	}
}

// A page of large jobs ends early, and the pages together list every job. This also holds if one of
// the rows cannot be read.
func TestPagesOfLargeJobs(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newTestDB(t)
	db.exec(t, `insert into jobs (id, kind, args) select lpad(n::text, 26, '0'), 'job', jsonb_build_object('x', repeat('a', 3500000)) from generate_series(1, 12) n`)
	for _, odd := range []bool{false, true} {
		if odd {
			db.Unguarded(t)
			db.exec(t, `update jobs set metadata = (repeat('{"a":', 11000) || '1' || repeat('}', 11000))::jsonb where id like '%08'`)
		}
		var pages []int
		var ids []string
		for after := ""; len(pages) == 0 || after != ""; {
			page, err := db.client.Jobs(t.Context(), drover.Filter{Kind: "job"}, after, 9)
			if err != nil {
				t.Fatal(err)
			}
			for _, j := range page.Jobs {
				ids = append(ids, j.ID)
				if len(j.Args) < 3_500_000 || (j.Unreadable != "") != (odd && strings.HasSuffix(j.ID, "08")) {
					t.Errorf("job %s: %d bytes of args, unreadable: %q", j.ID, len(j.Args), j.Unreadable)
				}
			}
			pages, after = append(pages, len(page.Jobs)), page.Next
		}
		if !slices.Equal(pages, []int{5, 5, 2}) || len(ids) != 12 || !slices.IsSortedFunc(ids, func(a, b string) int { return strings.Compare(b, a) }) {
			t.Errorf("odd: %t: pages of %v jobs: %v", odd, pages, ids)
		}
	}
	if page, err := db.client.Jobs(t.Context(), drover.Filter{Kind: "job"}, "", 1); err != nil || len(page.Jobs) != 1 || page.Next == "" {
		t.Errorf("a page of one: %d, %v", len(page.Jobs), err)
	}
}

// A ULID is the same in lower case, for each method that takes an id. An id that is no ULID is taken as it is.
func TestIDsInLowerCase(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	ctx, c := t.Context(), db.client
	id := func() string { return strings.ToLower(db.enqueue(t, job{}, &drover.EnqueueOpts{Delay: time.Hour})) }
	for name, verb := range map[string]struct {
		state drover.State // "": the job waits
		do    func(id string) error
	}{
		"Job":     {"", func(id string) error { _, err := c.Job(ctx, id); return err }},
		"Explain": {"", func(id string) error { _, err := c.Explain(ctx, id, nil); return err }},
		"Cancel":  {"", func(id string) error { _, err := c.Cancel(ctx, id, drover.Audit{}); return err }},
		"Discard": {"", func(id string) error { _, err := c.Discard(ctx, id, drover.Audit{}); return err }},
		"Edit": {"", func(id string) error {
			_, err := c.Edit(ctx, id, drover.JobEdit{RunNow: true}, drover.Audit{})
			return err
		}},
		"RedriveJob": {drover.Cancelled, func(id string) error { return c.RedriveJob(ctx, id, nil, drover.Audit{}) }},
		"Rerun":      {drover.Completed, func(id string) error { _, err := c.Rerun(ctx, id, nil, drover.Audit{}); return err }},
	} {
		id := id()
		if verb.state != "" {
			db.exec(t, `update jobs set state = $1, finalized_at = now() where id = upper($2)`, verb.state, id)
		}
		if err := verb.do(id); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	ids := []string{id(), id()}
	given := slices.Clone(ids)
	if done, err := c.CancelMany(ctx, drover.Filter{IDs: ids}, drover.Audit{}); err != nil || done.Changed != 2 || len(done.Missing) != 0 || !slices.Equal(ids, given) {
		t.Errorf("CancelMany: %+v, %v; its ids are %v now", done, err, ids)
	}
	r, err := c.StartRedrive(ctx, drover.RedrivePlan{Filter: drover.Filter{IDs: ids}}, drover.Audit{})
	if err != nil || r.Skipped != 0 {
		t.Fatalf("StartRedrive: %+v, %v", r, err)
	}
	db.exec(t, `select drover_pace(clock_timestamp() + interval '1 second')`)
	redrive := strings.ToLower(r.ID)
	for _, verb := range []func(context.Context, string, drover.Audit) error{c.PauseRedrive, c.ResumeRedrive, c.AbortRedrive} {
		if err := verb(ctx, redrive, drover.Audit{}); err != nil && !errors.Is(err, drover.ErrState) {
			t.Error(err)
		}
	}
	if got, err := c.Redrive(ctx, redrive); err != nil || got.ID != r.ID || got.Jobs == nil || len(got.Course) == 0 {
		t.Errorf("Redrive: %+v, %v", got, err)
	}
	if n, err := c.Count(ctx, drover.Filter{Redrive: redrive}); err != nil || n != 2 {
		t.Errorf("%d jobs of the redrive, %v", n, err)
	}
	const own = "order-00000000000000000001"
	db.exec(t, `insert into jobs (id, kind) values ($1, 'job')`, own)
	if j, err := c.Job(ctx, own); err != nil || j.ID != own {
		t.Errorf("%s: %+v, %v", own, j, err)
	}
}
