package drover

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

func TestChunksAreBounded(t *testing.T) {
	t.Parallel()
	job := func(args, metadata int) *newJob {
		return &newJob{Args: make(json.RawMessage, args), Metadata: make(json.RawMessage, metadata)}
	}
	repeat := func(n int, j *newJob) []*newJob { return slices.Repeat([]*newJob{j}, n) }
	for name, tc := range map[string]struct {
		jobs []*newJob
		want int
	}{
		"none":                     {nil, 0},
		"one":                      {repeat(1, job(10, 0)), 1},
		"up to the number":         {repeat(maxBatchJobs, job(10, 0)), maxBatchJobs},
		"beyond the number":        {repeat(maxBatchJobs+1, job(10, 0)), maxBatchJobs},
		"up to the bytes":          {repeat(8, job(1<<20, 0)), 8},
		"beyond the bytes":         {repeat(9, job(1<<20, 0)), 8},
		"metadata counts":          {repeat(9, job(1<<20-1, 2)), 7},
		"bigger than all of it":    {repeat(2, job(maxBatchBytes+1, 0)), 1},
		"a big one behind a small": {append(repeat(1, job(1, 0)), job(maxBatchBytes, 0)), 1},
	} {
		if got := chunkLen(tc.jobs); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}

// tracer counts statements and COPYs.
type tracer struct{ copies, copied, batches atomic.Int32 }

func (tr *tracer) TraceCopyFromStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceCopyFromStartData) context.Context {
	tr.copies.Add(1)
	return ctx
}

func (tr *tracer) TraceCopyFromEnd(_ context.Context, _ *pgx.Conn, data pgx.TraceCopyFromEndData) {
	tr.copied.Add(int32(data.CommandTag.RowsAffected())) //nolint:gosec // few
}

func (tr *tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if data.SQL == sqlEnqueueMany {
		tr.batches.Add(1)
	}
	return ctx
}

func (tr *tracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// E-5, E-9: a plain job takes no function where the role may write to jobs. One that may not, or may not see who sleeps,
// is refused once; what it enqueues is there once, and wakes.
func TestPlainJobsTakeNoFunction(t *testing.T) {
	t.Parallel()
	direct, byFunction := []string{sqlEnqueuePlain, sqlWakeAsleep}, []string{sqlEnqueue, sqlWakeNow}
	blindly, refused := []string{sqlEnqueuePlain, sqlWakeNow}, []string{"rollback"}
	const functions = `execute on function drover_enqueue, drover_wake`
	for i, c := range []struct {
		name, grants string
		first, later []string
	}{
		{"may all", functions + `; insert on jobs; select on sleepers`, direct, direct},
		{"may not write", functions + `; select on sleepers`, slices.Concat(direct[:1], refused, byFunction), byFunction},
		{"may not see who sleeps", functions + `; insert on jobs`, slices.Concat(direct, refused), blindly},
		{"may wake nobody", `insert on jobs; select on sleepers`, slices.Concat(direct, refused), slices.Concat(blindly, refused)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db := newTestDB(t)
			schema := pgtest.Schema(db.Pool)
			role := fmt.Sprintf("%s_role_%d", schema, i)
			db.exec(t, `create role `+role)
			t.Cleanup(func() {
				if _, err := db.Exec(context.Background(), `drop owned by `+role+` cascade; drop role `+role, pgx.QueryExecModeSimpleProtocol); err != nil {
					t.Error(err)
				}
			})
			db.exec(t, `grant usage on schema `+schema+` to `+role)
			for what := range strings.SplitSeq(c.grants, "; ") {
				db.exec(t, `grant `+what+` to `+role)
			}
			sent := newStatements()
			as := db.via(t, Config{}, func(config *pgxpool.Config) {
				config.ConnConfig.Tracer = sent
				config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
					_, err := conn.Exec(ctx, `set role `+role)
					return err
				}
			})
			enqueue := func(want []string) (told bool) {
				told = woken(t, db, func() {
					_, _ = as.Exec(t.Context(), "select") // a connection is there
					sent.since()
					as.enqueue(t, letter{}, nil)
				})
				calls, _ := sent.since()
				if got := slices.Sorted(maps.Keys(calls)); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
					t.Errorf("sent %q, want %q", got, want)
				}
				return told
			}
			enqueue(c.first)
			if told := enqueue(c.later); told != strings.Contains(c.grants, functions) {
				t.Errorf("woke: %t", told)
			}
			if n := value[int](t, db, `select count(*) from jobs where kind = 'letter' and queue = 'default' and priority = 5 and state = 'available'`); n != 2 {
				t.Errorf("%d jobs of 2", n)
			}
		})
	}
}

// E-3: what needs no option goes by COPY, the rest in as few statements as there may be.
func TestPlainJobsGoByCopy(t *testing.T) {
	t.Parallel()
	tr := &tracer{}
	db := newTestDBOn(t, pgtest.NewPool(t, func(c *pgxpool.Config) { c.ConnConfig.Tracer = tr }), Config{MaxArgsBytes: 2 << 20})
	var batch []Batch
	for range 3000 {
		batch = append(batch, Batch{letter{}, nil}, Batch{letter{}, &EnqueueOpts{Queue: "post", Priority: 1}})
	}
	for _, opts := range []*EnqueueOpts{
		{ID: "01KAJ4Y8Q3N6T0V5B7C9D1E2FG"},
		{Delay: 1},
		{ScheduledAt: time.Now()},
		{MaxAttempts: 1},
		{MaxRetries: 1},
		{Retry: Exponential{}},
		{Timeout: time.Millisecond},
		{ExpiresAt: time.Now()},
		{RetryUntil: time.Now()},
		{Tags: []string{"a"}},
		{Metadata: map[string]any{}},
	} {
		batch = append(batch, Batch{letter{}, opts})
	}
	if _, err := db.client.EnqueueMany(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	if tr.copies.Load() != 1 || tr.copied.Load() != 6000 || tr.batches.Load() != 1 {
		t.Errorf("%d COPYs of %d jobs, %d statements", tr.copies.Load(), tr.copied.Load(), tr.batches.Load())
	}
	if n := value[int](t, db, `select count(*) from jobs`); n != 6011 {
		t.Errorf("%d jobs", n)
	}
	// 9 MiB of args do not go into one document.
	tr.batches.Store(0)
	batch = nil
	for range 9 {
		batch = append(batch, Batch{letter{strings.Repeat("x", 1<<20)}, &EnqueueOpts{Tags: []string{"big"}}})
	}
	if _, err := db.client.EnqueueMany(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	if n := tr.batches.Load(); n != 2 {
		t.Errorf("9 MiB in %d statements", n)
	}
	if n := value[int](t, db, `select count(*) from jobs where tags = '{big}' and args->>'to' = repeat('x', 1 << 20)`); n != 9 {
		t.Errorf("%d big jobs", n)
	}
}

// E-3: whatever the sizes of the reads, the rows arrive as they are; one row is bigger than pgconn's buffer.
func TestCopyStream(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	var jobs []*newJob
	for i, to := range []string{"", "é\u2028\"<&>", strings.Repeat("x", 200<<10), "last"} {
		job, err := db.client.encode(letter{to}, &EnqueueOpts{Queue: fmt.Sprint("q", i), Priority: i + 1})
		if err != nil {
			t.Fatal(err)
		}
		jobs = append(jobs, job)
	}
	whole, err := io.ReadAll(newCopyStream(jobs))
	if err != nil {
		t.Fatal(err)
	}
	if err := iotest.TestReader(newCopyStream(jobs), whole); err != nil {
		t.Error(err)
	}
	if err := db.client.store.inTx(t.Context(), func(tx pgx.Tx) error { return copyJobs(t.Context(), tx, jobs) }); err != nil {
		t.Fatal(err)
	}
	for _, j := range jobs {
		if !value[bool](t, db, `select kind = $2 and queue = $3 and priority = $4 and args = $5::jsonb and state = 'available' from jobs where id = $1`,
			j.ID, j.Kind, j.Queue, j.Priority, string(j.Args)) {
			t.Errorf("%s of queue %s arrived as another", j.ID, j.Queue)
		}
	}
}
