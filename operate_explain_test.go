package drover_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/drover-queue/drover"
)

// O-4: the obstacles of a job are found on a real server.
func TestExplainFindsWhatIsInTheWay(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	ctx := t.Context()
	says := func(id string, want ...string) {
		t.Helper()
		e, err := db.client.Explain(ctx, id, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range want {
			if text := drover.TextOf(e); !strings.Contains(text, want) {
				t.Errorf("says not %q:\n%s", want, text)
			}
		}
	}
	receipt, err := db.client.Enqueue(ctx, job{N: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	says(receipt.ID, "No living supervisor serves queue default", "enqueued in queue default")

	db.exec(t, `insert into drover_supervisors (id, lease_ms, queues, slots, crew, limits_seen) values ('elsewhere', 3600000, '{default}', '{"default": 4}', 7, 1000)`)
	db.exec(t, `insert into drover_crews (queue, crew, kinds, lookout, on_call, polls, channel) values ('default', 7, '{job}', 1, 2, '1 s', '')`)
	says(receipt.ID, "Nothing is in its way, and 1 living supervisor could run it")

	// Four jobs of the queue run in its four slots. A job of another queue takes none of them.
	db.exec(t, `with r as (insert into jobs (kind, queue, state, claimed_by, attempted_at, claim_seq, attempt)
			select 'job', case when n = 5 then 'other' else 'default' end, 'running', 'elsewhere', now(), 1, 1 from generate_series(1, 5) n returning id, queue)
		update drover_supervisors set in_flight = array(select id from r where queue = 'other' union all (select id from r where queue = 'default' limit 3))`)
	says(receipt.ID, "Nothing is in its way")
	db.exec(t, `update drover_supervisors set in_flight = array(select id from jobs where state = 'running')`)
	says(receipt.ID, "All slots of queue default are taken (4 of 4)", "drover jobs list --state running --queue default")
	db.exec(t, `delete from jobs where state = 'running'`)

	db.exec(t, `update jobs set created_at = now() + interval '1 h', scheduled_at = now() + interval '1 h' where id = $1`, receipt.ID)
	says(receipt.ID, "the server's clock has gone back", "drover health")
	db.exec(t, `update jobs set created_at = now() where id = $1`, receipt.ID)
	db.exec(t, `update jobs set state = 'retryable' where id = $1`, receipt.ID)
	for _, scope := range []string{"all", "queue:default", "kind:job"} { // the last one has the first word
		db.exec(t, `insert into drover_budgets (scope, retries) values ($1, 1)`, scope)
		says(receipt.ID, "The retry budget "+scope+" may have made the wait longer")
	}
	db.exec(t, `update jobs set state = 'available', scheduled_at = now() where id = $1`, receipt.ID)
	other := value[string](t, db, `insert into jobs (kind, scheduled_at) values ('unknown', now() + interval '1 s') returning id`)
	says(other, "none has a worker for kind unknown")
	db.exec(t, `update jobs set scheduled_at = now() - interval '1 s', kind = 'job' where kind = 'unknown'`)
	says(receipt.ID, "1 job is in front of it", "slots for 4")
	// Claims read a higher priority first, whatever became due first. They read the retries of the job's priority later.
	db.exec(t, `insert into jobs (kind, priority) values ('job', 1)`)
	db.exec(t, `insert into jobs (kind, priority, scheduled_at, errors_total) values ('job', 9, now() - interval '1 min', 0), ('job', 1, now() - interval '1 min', 1), ('job', 1, now() + interval '1 h', 0)`)
	says(receipt.ID, "2 jobs are in front of it")
	db.exec(t, `delete from jobs where priority <> 5`)
	// Only a thousand rows are counted. Some of them run, and more jobs may wait behind them.
	db.exec(t, `insert into jobs (kind, scheduled_at, state, claimed_by, attempted_at, claim_seq, attempt)
		select 'job', now() - interval '1 min', 'running', 'nobody', now(), 1, 1 from generate_series(1, 5)`)
	db.exec(t, `insert into jobs (kind, scheduled_at) select 'job', now() - interval '1 min' from generate_series(1, 1000)`)
	says(receipt.ID, "1000 jobs or more are in front of it")
	db.exec(t, `delete from jobs where scheduled_at < now() - interval '30 s'`)

	if err := db.client.Pause(ctx, drover.KindScope("job"), nil, drover.Audit{By: "ada", Why: "a test"}); err != nil {
		t.Fatal(err)
	}
	says(receipt.ID, "Kind job has been paused by ada (a test)", "drover queues resume --kind job")
	db.exec(t, `insert into drover_set_aside (path, job, error, code, retry_at) values ('claim', $1, 'no', 'P0001', now() + interval '1 h')`, receipt.ID)
	says(receipt.ID, `refuses the step "claim": no`)

	if _, err := db.client.Cancel(ctx, other, drover.Audit{By: "bob", Why: "a copy"}); err != nil {
		t.Fatal(err)
	}
	says(other, "cancelled by bob (a copy)")
	db.exec(t, `update jobs set state = 'running', claimed_by = 'nobody', attempted_at = now(), claim_seq = 1, attempt = 1 where id = $1`, receipt.ID)
	says(receipt.ID, "nobody has no row any more")

	if _, err := db.client.Explain(ctx, "01ARZ3NDEKTSV4RRFFQ69G5FAV", nil); !errors.Is(err, drover.ErrNotFound) {
		t.Errorf("an unknown job: %v", err)
	}
	db.exec(t, `update jobs set scheduled_at = 'infinity', expires_at = '290000-01-01', retry_until = '0001-01-01 00:00:00Z', state = 'scheduled', claimed_by = null where id = $1`, receipt.ID)
	says(receipt.ID, "9999-12-31") // times that Go cannot hold
}

// A dead letter that a redrive holds comes back by itself, until the redrive is paused or aborted.
func TestExplainNamesTheRedriveOfADeadLetter(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	ctx := t.Context()
	id := value[string](t, db, `insert into jobs (kind, state, finalized_at, discard_reason) values ('job', 'discarded', now(), 'attempts_exhausted') returning id`)
	says := func(want, not string) {
		t.Helper()
		e, err := db.client.Explain(ctx, id, nil)
		if err != nil {
			t.Fatal(err)
		}
		if text := drover.TextOf(e); !strings.Contains(text, want) || strings.Contains(text, not) {
			t.Errorf("says not %q, or %q:\n%s", want, not, text)
		}
	}
	const nothing = "Nothing happens to it by itself"
	says(nothing, "redrive show")
	redrive, err := db.client.StartRedrive(ctx, drover.RedrivePlan{Filter: drover.Filter{Kind: "job"}, Rate: 20}, drover.Audit{})
	if err != nil {
		t.Fatal(err)
	}
	db.exec(t, `update drover_redrives set paused_at = now()`) // a tick marks the job, and does not make it due
	db.exec(t, `select drover_pace()`)
	says("drover redrive resume "+redrive.ID, nothing)
	db.exec(t, `update drover_redrives set paused_at = null`)
	says("waits for its turn in redrive "+redrive.ID+", which releases up to 20 jobs a second", nothing)
	if err := db.client.AbortRedrive(ctx, redrive.ID, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	says(nothing, "in redrive "+redrive.ID)
}

// A queue may have a retention for dead letters. Cancelled jobs always have one.
func TestExplainKnowsTheRetention(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	for _, c := range []struct{ reason, queue, want string }{
		{"'panic'", "", "Nothing happens to it by itself."},
		{"'panic'", "discarded_retention", "drover deletes it some time after"},
		{"'panic'", "archive_discarded_after", "drover archives it some time after"},
		{"'panic'", "keep_discarded", "drover archives it some time after"},
		{"null", "", "CancelledRetention"},
	} {
		id := value[string](t, db, `insert into jobs (kind, queue, state, finalized_at, discard_reason) values ('k', $1, case when `+c.reason+` = 'panic' then 'discarded' else 'cancelled' end, now(), `+c.reason+`) returning id`, "q"+c.queue)
		if c.queue != "" {
			db.exec(t, `insert into queues (name, `+c.queue+`) values ('q`+c.queue+`', '1')`)
		}
		if e, err := db.client.Explain(t.Context(), id, nil); err != nil || !strings.Contains(e.Next, c.want) {
			t.Errorf("%v: %+v: says not %q", err, c, c.want)
		}
	}
}

// A job that has ended may still keep others out. After a deletion, the next enqueue stores a job.
func TestExplainTellsHowLongAKeyIsTaken(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	ctx := t.Context()
	for _, c := range []struct {
		until          drover.UniqueUntil
		waiting, ended string // "" says nothing
	}{
		{drover.UntilEnded, "is stored until it has ended", ""},
		{drover.UntilStarted, "is stored until it has been claimed", ""},
		{drover.UntilPassed(time.Hour), "is stored before ", "is stored before "},
	} {
		receipt, err := db.client.Enqueue(ctx, job{N: 1}, &drover.EnqueueOpts{Unique: &drover.Unique{Until: c.until}})
		if err != nil || receipt.Existing {
			t.Fatal(receipt, err)
		}
		check := func(want string) {
			t.Helper()
			e, err := db.client.Explain(ctx, receipt.ID, nil)
			if err != nil {
				t.Fatal(err)
			}
			if want == "" && strings.Contains(e.Now, "is stored") || !strings.Contains(e.Now, want) {
				t.Errorf("%s: says not %q:\n%s", c.until, want, drover.TextOf(e))
			}
		}
		check(c.waiting)
		if _, err := db.client.Cancel(ctx, receipt.ID, drover.Audit{}); err != nil {
			t.Fatal(err)
		}
		check(c.ended)
	}
	db.exec(t, `update jobs set unique_until = now() - interval '1 s' where unique_until < 'infinity'`)
	e, err := db.client.Explain(ctx, value[string](t, db, `select id from jobs where unique_until < 'infinity'`), nil)
	if err != nil || strings.Contains(e.Now, "is stored") {
		t.Errorf("%v:\n%s", err, drover.TextOf(e))
	}
}

// Redact gets each text whole, as it was written: a secret with quotes, line breaks, or beyond the place of the cut.
func TestExplainHidesSecrets(t *testing.T) {
	t.Parallel()
	const hidden = "pass \"word\"\nof the bank"
	db := newTestDB(t)
	ctx := t.Context()
	receipt, err := db.client.Enqueue(ctx, job{N: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("x ", 140) + hidden + strings.Repeat(" y", 100)
	db.exec(t, `update jobs set attempt = 1, errors_total = 1, errors = jsonb_build_array(jsonb_build_object('attempt', 1, 'at', now(), 'class', 'error', 'error', $1::text))`, text)
	if err := db.client.Pause(ctx, drover.AllJobs, nil, drover.Audit{By: "ada", Why: hidden}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		redact func(string) string
		says   string
	}{
		{nil, `(pass "word" of the bank)`},
		{func(text string) string { return strings.ReplaceAll(text, hidden, "(hidden)") }, "((hidden))"},
		{func(string) string { panic("oh no") }, "paused by ada"},
	} {
		e, err := db.client.Explain(ctx, receipt.ID, &drover.ExplainOpts{Redact: c.redact})
		if err != nil {
			t.Fatal(err)
		}
		if text := drover.TextOf(e); !strings.Contains(text, c.says) || c.redact != nil && strings.Contains(text, "word") {
			t.Errorf("says not %q:\n%s", c.says, text)
		}
	}
}
