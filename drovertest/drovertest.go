// Package drovertest helps to test workers, and code that enqueues jobs. Run calls a handler
// without a database. The other functions use your database: NewPool makes a schema for a test,
// RequireEnqueued and Enqueued return what was enqueued, Drain runs jobs with all their retries but
// without waiting for them, and Mishaps let something go wrong while a job runs. Failures end the
// test, as t.Fatal does.
package drovertest

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/drover-queue/drover"
)

// Run calls a worker's handler with args, without a database, and returns what drover would read
// from its return: for example that the job is done, failed, snoozed or discarded. In job, set what
// the handler looks at, such as Attempt, LastError, Tags or Metadata; nil means a first run. In the
// handler, CompleteTx and SettleTx succeed and write nothing: see drover.Worker.Rehearse. The test
// fails if the args are of another kind than the worker's, or could not be enqueued.
func Run(ctx context.Context, t testing.TB, worker drover.Worker, args drover.Args, job *drover.Job) drover.Verdict {
	t.Helper()
	verdict, err := worker.Rehearse(ctx, args, job)
	if err != nil {
		t.Fatalf("drovertest: %v", err)
	}
	return verdict
}

// RequireEnqueued fails the test unless exactly one job of the kind of args has all the fields of
// args. It returns this job, so that you can check its queue, time, tags and so on. Jobs in every
// state count. db is a transaction, which sees what it has enqueued itself before it commits, or a
// pool, which sees what is committed. For database/sql, use drover.SQLTx.
func RequireEnqueued(ctx context.Context, t testing.TB, db drover.Tx, args drover.Args) *drover.Job {
	t.Helper()
	fields, err := json.Marshal(args)
	if err != nil {
		t.Fatalf("drovertest: args: %v", err)
	}
	jobs := Enqueued(ctx, t, db, drover.Filter{Kind: args.Kind(), Args: fields})
	if len(jobs) != 1 {
		all := Enqueued(ctx, t, db, drover.Filter{Kind: args.Kind()})
		t.Fatalf("drovertest: %d jobs of kind %q have the args %s, want 1; of this kind there are %d:%s", len(jobs), args.Kind(), fields, len(all), list(all))
	}
	return jobs[0]
}

// Enqueued returns the jobs that match a filter, oldest first: at most 1,000 of them. db is as for
// RequireEnqueued.
func Enqueued(ctx context.Context, t testing.TB, db drover.Tx, filter drover.Filter) []*drover.Job {
	t.Helper()
	doc, err := json.Marshal(filter)
	if err != nil {
		t.Fatalf("drovertest: filter: %v", err)
	}
	var text string
	if err := db.QueryRow(ctx, sqlEnqueued, string(doc)).Scan(&text); err != nil {
		t.Fatalf("drovertest: reading jobs: %v", err)
	}
	var rows []row
	if err := json.Unmarshal([]byte(text), &rows); err != nil {
		t.Fatalf("drovertest: reading jobs: %v", err)
	}
	jobs := make([]*drover.Job, len(rows))
	for i, r := range rows {
		jobs[i] = &drover.Job{
			ID: r.ID, Queue: r.Queue, Kind: r.Kind, Args: r.Args, Attempt: r.Attempt, MaxAttempts: r.MaxAttempts, Priority: r.Priority,
			ScheduledAt: r.ScheduledAt, Tags: r.Tags, Key: r.Key,
		}
		if string(r.Metadata) != "null" {
			jobs[i].Metadata = r.Metadata
		}
	}
	return jobs
}

// sqlEnqueued reads by the id of each job, as drover_list finds them; ids of one client rise with time.
const sqlEnqueued = `
select coalesce(jsonb_agg(jsonb_build_object(
	'id', j.id, 'queue', j.queue, 'kind', j.kind, 'args', j.args, 'attempt', j.attempt, 'max_attempts', coalesce(j.max_attempts, 0),
	'priority', j.priority, 'scheduled_at', case when isfinite(j.scheduled_at) then j.scheduled_at end, 'tags', j.tags, 'metadata', j.metadata,
	'concurrency_key', coalesce(j.concurrency_key, '')) order by j.id), '[]')::text
from drover_list($1::jsonb, '', 1000) j`

type row struct {
	ID          string          `json:"id"`
	Queue       string          `json:"queue"`
	Kind        string          `json:"kind"`
	Args        json.RawMessage `json:"args"`
	Attempt     int             `json:"attempt"`
	MaxAttempts int             `json:"max_attempts"`
	Priority    int             `json:"priority"`
	ScheduledAt time.Time       `json:"scheduled_at"` // zero of a parked job
	Tags        []string        `json:"tags"`
	Metadata    json.RawMessage `json:"metadata"`
	Key         string          `json:"concurrency_key"`
}

// list shows the first jobs in a failure.
func list(jobs []*drover.Job) string {
	var b strings.Builder
	for i, j := range jobs {
		if i == 10 {
			b.WriteString("\n\t…")
			break
		}
		fmt.Fprintf(&b, "\n\t%s in queue %q: %s", j.ID, j.Queue, j.Args)
	}
	return b.String()
}
