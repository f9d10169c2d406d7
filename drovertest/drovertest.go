package drovertest

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
)

// Run calls a worker's handler with args, without a database, and returns the verdict that a supervisor would reach,
// such as done, error, snooze or discard. In job, set the fields that the handler reads, such as Attempt, LastError,
// Tags or Metadata; nil means a first run. Run sets its Kind and Args by args. The handler's context is ctx. See
// drover.Worker.Try.
func Run(ctx context.Context, t testing.TB, worker drover.Worker, args drover.Args, job *drover.Job) drover.Verdict {
	t.Helper()
	requireKind(t, worker, args)
	encoded, err := json.Marshal(args)
	if err != nil {
		t.Fatalf("drovertest: args: %v", err)
	}
	own := drover.Job{}
	if job != nil {
		own = *job
	}
	own.Kind, own.Args = args.Kind(), encoded
	return worker.Try(ctx, &own)
}

// requireKind fails the test if the worker does not handle the kind of args, because no handler would run.
func requireKind(t testing.TB, worker drover.Worker, args drover.Args) {
	t.Helper()
	if args.Kind() != worker.Kind() {
		t.Fatalf("drovertest: the args are of kind %q, and the worker handles %q", args.Kind(), worker.Kind())
	}
}

// check fails the test if err is not nil.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("drovertest: %v", err)
	}
}

// RunToEnd enqueues a job and lets a supervisor run it until it has ended, like Drain. It returns the job as its row in
// the table shows it. opts are the options of the enqueue; nil means the queue "default", due now. pool is a pool of
// the test's own schema. Nothing is logged. If your client has a configuration that matters, such as middleware, call
// Enqueue and Drain instead.
func RunToEnd(ctx context.Context, t testing.TB, pool *pgxpool.Pool, worker drover.Worker, args drover.Args, opts *drover.EnqueueOpts) *drover.JobInfo {
	t.Helper()
	requireKind(t, worker, args)
	client, err := drover.New(pool, drover.Config{Logger: slog.New(slog.DiscardHandler)})
	check(t, err)
	receipt, err := client.Enqueue(ctx, args, opts)
	check(t, err)
	queue := ""
	if opts != nil {
		queue = opts.Queue
	}
	Drain(ctx, t, pool, client, drover.SupervisorConfig{Queues: []drover.Queue{{Name: queue}}, Workers: []drover.Worker{worker}})
	job, err := client.Job(ctx, receipt.ID)
	check(t, err)
	return job
}

// RequireEnqueued fails the test unless exactly one job of the kind of args has all the fields of args, with equal
// values. It does not compare fields that the JSON of args leaves out, such as empty ones with the tag omitempty. It
// returns the job, so that you can check its queue, time, tags and so on. Jobs in every state count. db is a
// transaction or a pool. A transaction also sees the jobs that it has enqueued itself and not committed yet. For
// database/sql, use drover.SQLTx.
func RequireEnqueued(ctx context.Context, t testing.TB, db drover.Tx, args drover.Args) *drover.JobInfo {
	t.Helper()
	fields, err := json.Marshal(args)
	if err != nil {
		t.Fatalf("drovertest: args: %v", err)
	}
	jobs := enqueued(ctx, t, db, drover.Filter{Kind: args.Kind(), Args: fields}, string(fields))
	if len(jobs) != 1 {
		all := Enqueued(ctx, t, db, drover.Filter{Kind: args.Kind()})
		t.Fatalf("drovertest: %d jobs of kind %q have the args %s, want 1; of this kind there are %d:%s", len(jobs), args.Kind(), fields, len(all), list(all))
	}
	return jobs[0]
}

// Enqueued returns the jobs that a filter picks, all of them, in the order of their ids. The ids of one client rise
// with time. The zero filter picks all jobs. db is as for RequireEnqueued. The ScheduledAt of a parked job is zero.
func Enqueued(ctx context.Context, t testing.TB, db drover.Tx, filter drover.Filter) []*drover.JobInfo {
	t.Helper()
	return enqueued(ctx, t, db, filter, nil)
}

// enqueued returns the jobs that a filter picks. If fields is not nil, it leaves out jobs whose args differ in one of
// the fields of this JSON text.
func enqueued(ctx context.Context, t testing.TB, db drover.Tx, filter drover.Filter, fields any) []*drover.JobInfo {
	t.Helper()
	doc, err := json.Marshal(filter)
	if err != nil {
		t.Fatalf("drovertest: filter: %v", err)
	}
	var text string
	if err := db.QueryRow(ctx, sqlEnqueued, string(doc), fields).Scan(&text); err != nil {
		t.Fatalf("drovertest: reading jobs: %v", err)
	}
	var jobs []*drover.JobInfo
	if err := json.Unmarshal([]byte(text), &jobs); err != nil {
		t.Fatalf("drovertest: reading jobs: %v", err)
	}
	slices.SortFunc(jobs, func(a, b *drover.JobInfo) int { return strings.Compare(a.ID, b.ID) })
	return jobs
}

// sqlEnqueued returns JSON text, so that any driver works. It leaves out nulls and the infinite due time of parked
// jobs. A filter by args also finds jobs whose lists have more elements, so $2 is compared as well, field by field. The
// page has room for all jobs, because a job with equal args might come after the end of a smaller page.
const sqlEnqueued = `
select coalesce(jsonb_agg((select jsonb_object_agg(key, value) from jsonb_each(to_jsonb(j)) where value not in ('null', '"infinity"'))), '[]')::text
from drover_list($1::jsonb, '', 2147483647) j
where $2::jsonb is null or case when jsonb_typeof($2::jsonb) = 'object' then j.args || $2::jsonb = j.args else j.args = $2::jsonb end`

// list describes the first jobs, for the text of a failure.
func list(jobs []*drover.JobInfo) string {
	var b strings.Builder
	for i, j := range jobs {
		if i == 10 {
			b.WriteString("\n\t…")
			break
		}
		fmt.Fprintf(&b, "\n\t%s in queue %q, %s: %s", j.ID, j.Queue, j.State, j.Args)
	}
	return b.String()
}
