package drover_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/oklog/ulid/v2"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

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
	if data.SQL == drover.SQLEnqueueMany {
		tr.batches.Add(1)
	}
	return ctx
}

func (tr *tracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// E-5, E-9: a plain job is enqueued without a function if the role may write to jobs, also if it has metadata. If the role may not, or may not
// see who sleeps, it is refused once. Its job is there once all the same, and wakes a supervisor.
func TestPlainJobsTakeNoFunction(t *testing.T) {
	t.Parallel()
	direct, byFunction := []string{drover.SQLEnqueuePlain, drover.SQLWakeAsleep}, []string{drover.SQLEnqueue, drover.SQLWakeNow}
	blindly, refused := []string{drover.SQLEnqueuePlain, drover.SQLWakeNow}, []string{"rollback"}
	const functions = `execute on function drover_enqueue, drover_wake`
	for i, c := range []struct {
		name, grants string
		first, later []string
	}{
		{"may all", functions + `; insert, select on jobs; select on drover_crews`, direct, direct},
		{"may not write", functions + `; select on drover_crews`, slices.Concat(direct[:1], refused, byFunction), byFunction},
		{"may not see who sleeps", functions + `; insert, select on jobs`, slices.Concat(direct, refused), blindly},
		{"may wake nobody", `insert, select on jobs; select on drover_crews`, slices.Concat(direct, refused), slices.Concat(blindly, refused)},
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
			sent := harness.NewStatements()
			as := db.via(t, drover.Config{}, func(config *pgxpool.Config) {
				config.ConnConfig.Tracer = sent
				config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
					_, err := conn.Exec(ctx, `set role `+role)
					return err
				}
			})
			enqueue := func(want []string, opts *drover.EnqueueOpts) (told bool) {
				told = woken(t, db, func() {
					_, _ = as.Exec(t.Context(), "select") // a connection is there
					sent.Since()
					as.enqueue(t, letter{}, opts)
				})
				calls, _ := sent.Since()
				if got := slices.Sorted(maps.Keys(calls)); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
					t.Errorf("sent %q, want %q", got, want)
				}
				return told
			}
			enqueue(c.first, nil)
			if told := enqueue(c.later, &drover.EnqueueOpts{Metadata: map[string]any{"a": "b"}}); told != strings.Contains(c.grants, functions) {
				t.Errorf("woke: %t", told)
			}
			if n := value[int](t, db, `select count(*) from jobs where kind = 'letter' and queue = 'default' and priority = 5 and state = 'available'`); n != 2 {
				t.Errorf("%d jobs of 2", n)
			}
			if got := value[string](t, db, `select string_agg(coalesce(metadata::text, 'none'), ', ' order by id) from jobs`); got != `none, {"a": "b"}` {
				t.Errorf("metadata: %s", got)
			}
		})
	}
}

// E-3: jobs with no option, or with metadata alone, go by COPY, the rest in as few statements as there may be.
func TestPlainJobsGoByCopy(t *testing.T) {
	t.Parallel()
	slow(t)
	tr := &tracer{}
	db := newTestDBOn(t, pgtest.NewMigratedPool(t, func(c *pgxpool.Config) { c.ConnConfig.Tracer = tr }), drover.Config{MaxArgsBytes: 2 << 20})
	var batch []drover.EnqueueItem
	for range 3000 {
		batch = append(batch, drover.EnqueueItem{letter{}, nil}, drover.EnqueueItem{letter{}, &drover.EnqueueOpts{Queue: "post", Priority: 1}})
	}
	for _, opts := range []*drover.EnqueueOpts{
		{ID: "01KAJ4Y8Q3N6T0V5B7C9D1E2FG"},
		{Delay: 1},
		{ScheduledAt: time.Now()},
		{MaxAttempts: 1},
		{MaxAttempts: 2},
		{Retry: drover.Exponential{}},
		{Timeout: time.Millisecond},
		{ExpiresAt: time.Now()},
		{RetryUntil: time.Now()},
		{Tags: []string{"a"}},
		{Tags: []string{"a"}, Metadata: map[string]any{}},
	} {
		batch = append(batch, drover.EnqueueItem{letter{}, opts})
	}
	for _, metadata := range []map[string]any{{}, {"a": "b"}} {
		batch = append(batch, drover.EnqueueItem{letter{}, &drover.EnqueueOpts{Metadata: metadata}})
	}
	if _, err := db.client.EnqueueMany(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	if tr.copies.Load() != 1 || tr.copied.Load() != 6002 || tr.batches.Load() != 1 {
		t.Errorf("%d COPYs of %d jobs, %d statements", tr.copies.Load(), tr.copied.Load(), tr.batches.Load())
	}
	if n := value[int](t, db, `select count(*) from jobs`); n != 6013 {
		t.Errorf("%d jobs", n)
	}
	if n := value[int](t, db, `select count(*) from jobs where metadata in ('{}', '{"a": "b"}')`); n != 3 {
		t.Errorf("%d jobs with metadata", n)
	}
	// 9 MiB of args do not go into one document.
	tr.batches.Store(0)
	batch = nil
	for range 9 {
		batch = append(batch, drover.EnqueueItem{letter{strings.Repeat("x", 1<<20)}, &drover.EnqueueOpts{Tags: []string{"big"}}})
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

// garbled is a codec that writes every value as another one.
type garbled struct{ pgtype.Codec }

func (c garbled) PlanEncode(m *pgtype.Map, oid uint32, format int16, _ any) pgtype.EncodePlan {
	return garbledPlan{c.Codec.PlanEncode(m, oid, format, `"garbled"`)}
}

type garbledPlan struct{ plain pgtype.EncodePlan }

func (p garbledPlan) Encode(_ any, buf []byte) ([]byte, error) {
	return p.plain.Encode(`"garbled"`, buf)
}

// E-3: an application registers codecs of its own. They see no value of a job, however it is enqueued, and are there
// afterwards.
func TestCodecsOfTheApplication(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec,
		pgx.QueryExecModeSimpleProtocol,
	} {
		pool := db.samePool(t, func(c *pgxpool.Config) {
			c.ConnConfig.DefaultQueryExecMode, c.MaxConns = mode, 1
			c.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
				for _, name := range []string{"jsonb", "json", "text"} {
					known, _ := conn.TypeMap().TypeForName(name)
					conn.TypeMap().RegisterType(&pgtype.Type{Name: name, OID: known.OID, Codec: garbled{known.Codec}})
				}
				return nil
			}
		})
		other := dbOn(pool, harness.NewClient(t, pool, drover.Config{}))
		for _, way := range other.Ways(t) {
			for holds, opts := range map[string]*drover.EnqueueOpts{
				`queue = 'default' and metadata is null`: nil,
				`queue = 'q' and priority = 3`:           {Queue: "q", Priority: 3},
				`metadata = '{"by": "<ann>"}' and tags = '{a}' and retry->>'type' = 'constant' and concurrency_key = 'k'`: {
					Metadata: map[string]any{"by": "<ann>"}, Tags: []string{"a"}, Retry: drover.Every(time.Second), Key: "k",
				},
			} {
				r, err := way.Enqueue(t.Context(), letter{"<x>"}, opts)
				if err != nil || !value[bool](t, db, `select kind = 'letter' and args = '{"to": "<x>"}' and `+holds+` from jobs where id = $1`, r.ID) {
					t.Errorf("%v, %s, %s: %v", mode, way.Name, holds, err)
				}
			}
		}
		err := pool.AcquireFunc(t.Context(), func(c *pgxpool.Conn) error {
			if known, _ := c.Conn().TypeMap().TypeForOID(pgtype.JSONBOID); reflect.TypeOf(known.Codec) != reflect.TypeFor[garbled]() {
				t.Errorf("%v: the connection has %T", mode, known.Codec)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// obstacle is something an application puts on jobs, and what an enqueue must make of it.
type obstacle struct {
	name    string
	ddl     []string
	refuses func(way string, err error) bool
}

// code reports whether err has one of these SQLSTATEs.
func code(err error, codes ...string) bool { return slices.Contains(codes, pg.SQLState(err)) }

// obstacles are in the way of each enqueue of the kind letter; only the first passes the unique index.
func obstacles() []obstacle {
	notStored := func(_ string, err error) bool { return errors.Is(err, drover.ErrNotStored) }
	// COPY knows no rules and stores the row. An upsert is refused where there is a rule, and so is RETURNING unless the
	// rule's own statement returns something.
	rule := func(way string, err error) bool {
		return err == nil && way == "EnqueueMany" || code(err, "0A000", "XX000")
	}
	trigger := func(body string) []string {
		return []string{
			`create function hang() returns trigger language plpgsql as $$ begin ` + body + ` end $$`,
			`create trigger hang before insert on jobs for each row when (new.kind = 'letter') execute function hang()`,
		}
	}
	return []obstacle{
		{"a unique index", []string{
			`create unique index on jobs ((args->>'to')) where kind = 'letter'`, `insert into jobs (kind, args) values ('letter', '{"to": "x"}')`,
		}, func(_ string, err error) bool { return code(err, "23505") }},
		{"a deferred unique constraint", []string{
			`alter table jobs add column addressee text generated always as (case when kind = 'letter' then args->>'to' end) stored`,
			`alter table jobs add unique (addressee) deferrable initially deferred`, `insert into jobs (kind, args) values ('letter', '{"to": "x"}')`,
		}, func(_ string, err error) bool { return code(err, "23505") }},
		{"a trigger that drops the row", trigger(`return null;`), notStored},
		{"a trigger that changes the id", trigger(`new.id := drover_ulid(); return new;`), notStored},
		{"a trigger that raises", trigger(`raise exception 'no letters';`), func(_ string, err error) bool { return code(err, "P0001") }},
		{"a deferred trigger that raises", []string{
			`create function hang() returns trigger language plpgsql as $$ begin raise exception 'no letters'; end $$`,
			`create constraint trigger hang after insert on jobs deferrable initially deferred for each row when (new.kind = 'letter') execute function hang()`,
		}, func(_ string, err error) bool { return code(err, "P0001") }},
		{"a rule that does nothing", []string{`create rule hang as on insert to jobs where new.kind = 'letter' do instead nothing`}, rule},
		{"a rule for all that does nothing", []string{`create rule hang as on insert to jobs do instead nothing`}, rule},
		{"a rule that inserts elsewhere", []string{
			`create table elsewhere (like jobs)`, `create rule hang as on insert to jobs do instead insert into elsewhere select new.*`,
		}, rule},
		{"a rule that inserts elsewhere and returns it", []string{
			`create table elsewhere (like jobs)`, `create rule hang as on insert to jobs do instead insert into elsewhere select new.* returning elsewhere.*`,
		}, rule},
	}
}

// E-13, F-15: an application hangs an index, a trigger, a constraint or a rule on jobs. No enqueue returns a receipt for a
// row that is not there, none leaves a row behind an error, and a job that was there before is found as ever.
func TestReceiptsAreRows(t *testing.T) {
	t.Parallel()
	slow(t)
	for _, o := range obstacles() {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			db := newTestDB(t)
			there := db.enqueue(t, letter{"there"}, nil)
			for _, ddl := range o.ddl {
				db.exec(t, ddl)
			}
			before := value[int](t, db, `select count(*) from jobs`)
			for _, way := range db.Ways(t) {
				for what, opts := range map[string]*drover.EnqueueOpts{"plain": nil, "with options": {Delay: time.Hour}, "with an id": {ID: ulid.Make().String()}} {
					r, err := way.Enqueue(t.Context(), letter{"x"}, opts)
					name := way.Name
					if opts != nil {
						name += " " + what
					}
					if !o.refuses(name, err) {
						t.Errorf("%s, %s: %+v, %v", way.Name, what, r, err)
					}
					if n := value[int](t, db, `select count(*) from jobs where id = $1`, r.ID); err == nil && n != 1 {
						t.Errorf("%s, %s: a receipt for a row that is not there", way.Name, what)
					}
					if err == nil {
						db.exec(t, `delete from jobs where id = $1`, r.ID)
					}
					if n := value[int](t, db, `select count(*) from jobs`); n != before {
						t.Errorf("%s, %s: %d rows behind an error", way.Name, what, n-before)
					}
				}
				again, err := way.Enqueue(t.Context(), letter{"there"}, &drover.EnqueueOpts{ID: there})
				switch {
				case strings.Contains(o.name, "rule"):
					if !code(err, "0A000") {
						t.Errorf("%s: the job that is there: %+v, %v", way.Name, again, err)
					}
				case strings.Contains(o.name, "before"), strings.Contains(o.name, "the row"), strings.Contains(o.name, "the id"), o.name == "a trigger that raises":
					// The trigger comes before the look for a conflict, and may have its way with the id.
				case err != nil || again != (drover.Receipt{ID: there, Existing: true}):
					t.Errorf("%s: the job that is there: %+v, %v", way.Name, again, err)
				}
			}
			for _, sql := range []string{
				`select drover_enqueue('letter', '{"to": "x"}')`,
				`select drover_enqueue_many('[{"id": "01KAJ4Y8Q3N6T0V5B7C9D1E2FG", "kind": "letter", "args": {"to": "x"}}]')`,
			} {
				if _, err := db.Exec(t.Context(), sql); !o.refuses(sql, pg.Classify(err)) {
					t.Errorf("%s: %v", sql, err)
				}
			}
			if n := value[int](t, db, `select count(*) from jobs`); n != before {
				t.Errorf("%d rows behind errors", n-before)
			}
		})
	}
}

// E-13: a trigger that drops some rows of a batch, or lets a row in under another id, refuses all of it. A trigger that
// changes only columns that it may change refuses nothing, and the batch still goes by COPY.
func TestATriggerInABatch(t *testing.T) {
	t.Parallel()
	tr := &tracer{}
	db := newTestDBOn(t, pgtest.NewMigratedPool(t, func(c *pgxpool.Config) { c.ConnConfig.Tracer = tr }), drover.Config{})
	db.exec(t, `create function hang() returns trigger language plpgsql as $$ begin
		case new.args->>'to' when 'nobody' then return null; when 'other' then new.id := drover_ulid(); else new.priority := 7; end case;
		return new; end $$`)
	db.exec(t, `create trigger hang before insert on jobs for each row execute function hang()`)
	for _, to := range []string{"nobody", "other"} {
		for _, opts := range []*drover.EnqueueOpts{nil, {MaxAttempts: 2}} {
			if _, err := db.client.EnqueueMany(t.Context(), []drover.EnqueueItem{{letter{"a"}, opts}, {letter{to}, opts}, {letter{"b"}, opts}}); !errors.Is(err, drover.ErrNotStored) {
				t.Errorf("%s: %v", to, err)
			}
		}
	}
	if n := value[int](t, db, `select count(*) from jobs`); n != 0 {
		t.Errorf("%d jobs of refused batches", n)
	}
	tr.copies.Store(0)
	if _, err := db.client.EnqueueMany(t.Context(), []drover.EnqueueItem{{letter{"nobody"}, nil}, {letter{"nobody"}, nil}}); !errors.Is(err, drover.ErrNotStored) || tr.copies.Load() != 1 {
		t.Errorf("a COPY of no row: %v, %d COPYs", err, tr.copies.Load())
	}
	tr.copies.Store(0)
	receipts, err := db.client.EnqueueMany(t.Context(), []drover.EnqueueItem{{letter{"a"}, nil}, {letter{"b"}, nil}})
	if err != nil || tr.copies.Load() != 1 {
		t.Fatalf("%v, %d COPYs", err, tr.copies.Load())
	}
	for _, r := range receipts {
		if p := value[int](t, db, `select priority from jobs where id = $1`, r.ID); p != 7 {
			t.Errorf("priority %d", p)
		}
	}
}

// A trigger may drop a row of a COPY, so EnqueueMany counts the rows. It finds them by primary key, even while the table
// is so small that Postgres would rather read all of it: a connection keeps that plan when the table has grown.
func TestABatchWithATriggerIsCountedByPrimaryKey(t *testing.T) {
	t.Parallel()
	db := newTestDBOn(t, pgtest.NewMigratedPool(t, func(c *pgxpool.Config) { c.MaxConns = 1 }), drover.Config{})
	db.exec(t, `create function pass() returns trigger language plpgsql as $$ begin return new; end $$`)
	db.exec(t, `create trigger pass before insert on jobs for each row execute function pass()`)
	scans := func() int {
		db.exec(t, `select pg_stat_force_next_flush()`)
		return value[int](t, db, `select pg_stat_get_numscans('jobs'::regclass)`)
	}
	before := scans()
	for range 7 { // Postgres makes a plan for each of the first five calls, and then keeps one
		if _, err := db.client.EnqueueMany(t.Context(), []drover.EnqueueItem{{letter{"a"}, nil}, {letter{"b"}, nil}}); err != nil {
			t.Fatal(err)
		}
	}
	if n := scans() - before; n != 0 {
		t.Errorf("7 batches read the whole table %d times", n)
	}
}

// E-6, E-13: the job that was in the way of an insert is deleted before it is looked at. A trigger stands for the other
// session: its own insert comes between.
func TestTheJobInTheWayIsDeleted(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	// The first insert of a round is dropped, as if for a conflict with a row that is gone at the next look.
	db.exec(t, `create table rounds (id text)`)
	db.exec(t, `create function hang() returns trigger language plpgsql as $$ begin
		if exists (select from rounds r where r.id = new.id) then return new; end if;
		insert into rounds values (new.id);
		return null; end $$`)
	db.exec(t, `create trigger hang before insert on jobs for each row when (new.max_attempts = 2) execute function hang()`)
	for _, way := range db.Ways(t) {
		r, err := way.Enqueue(t.Context(), letter{}, &drover.EnqueueOpts{MaxAttempts: 2})
		if err != nil || r.Existing || value[int](t, db, `select count(*) from jobs where id = $1`, r.ID) != 1 {
			t.Errorf("%s: %+v, %v", way.Name, r, err)
		}
	}
	first, second := ulid.Make().String(), ulid.Make().String()
	receipts, err := db.client.EnqueueMany(t.Context(), []drover.EnqueueItem{
		{letter{}, &drover.EnqueueOpts{ID: first, MaxAttempts: 2}}, {letter{}, &drover.EnqueueOpts{ID: second}}, {letter{}, &drover.EnqueueOpts{ID: first}},
	})
	if err != nil || receipts[0].Existing || receipts[1].Existing || !receipts[2].Existing {
		t.Errorf("%+v, %v", receipts, err)
	}
}

// the look by key uses the index, whatever the statistics say and however the statement
// was planned.
func TestPlansOfUniqueEnqueues(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.exec(t, `alter table jobs set (autovacuum_enabled = off)`)
	args := json.RawMessage(`{"n": 7}`)
	direct := planned{name: "unique", sql: drover.SQLEnqueueUniquePlain, args: append([]any{"01K00000000000000000000000", "job", string(args), "default", 5, nil}, drover.UniqueArgs(args, "n")...)}
	check := func(when string) {
		t.Helper()
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			p := db.planner(t)
			if _, err := p.Exec(t.Context(), "set plan_cache_mode = "+mode+"; set enable_seqscan = off"); err != nil {
				t.Fatal(err)
			}
			if plan := p.explain(t, direct, "costs off"); !strings.Contains(plan, "using jobs_unique_idx") || !strings.Contains(plan, "Index Cond: (unique_key = ") || strings.Contains(plan, "Seq Scan on jobs") {
				t.Errorf("%s, %s:\n%s", when, mode, plan)
			}
			for _, call := range []string{
				`select drover_enqueue_unique('{"id": "01K00000000000000000000001", "kind": "job", "args": {"n": 1000001}, "uniqueness": {}}')`,
				`select drover_enqueue_unique('[{"id": "01K00000000000000000000002", "kind": "job", "args": {"n": 1000001}, "uniqueness": {}}, {"id": "01K00000000000000000000003", "kind": "job", "args": {"n": -1}, "uniqueness": {}}]')`,
				`select drover_unique_owner('"job" {"n": 1000001}', '01K00000000000000000000000')`,
			} {
				p.BuffersOf(t, call) // reads the catalogs
				buffers, scans := p.BuffersOf(t, call)
				// Other tests change their schemas, and then the server reads its catalogs anew.
				for tries := 0; buffers > 200 && tries < 50; tries++ {
					buffers, scans = p.BuffersOf(t, call)
				}
				if scans > 0 || buffers > 200 {
					t.Errorf("%s, %s, %s: %d buffers, %d scans of the table", call, when, mode, buffers, scans)
				}
			}
		}
	}
	check("no statistics")
	db.exec(t, `analyze jobs`)
	check("analyzed empty")
	db.exec(t, `insert into jobs (kind, args, unique_key, unique_scope, unique_until) select 'job', jsonb_build_object('n', i), format('"job" {"n": %s}', i), 'ended', 'infinity'
		from generate_series(1000000, 1000000 + $1) i`, harness.RowsForPlans(t))
	check("filled since")
	db.exec(t, `analyze jobs`)
	check("analyzed full")
	db.exec(t, `update jobs set state = 'completed', finalized_at = now()`)
	db.exec(t, `analyze jobs`)
	check("analyzed with nothing but completed jobs")
}

// An enqueue of a unique job reads a few pages by its key, whatever is in the table and whatever
// the statistics say.
func TestUniqueEnqueuesReadFewPages(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.exec(t, `alter table jobs set unlogged`)
	fill := func(n int) {
		db.exec(t, `insert into jobs (kind, args, unique_key, unique_scope, unique_until) select 'job', jsonb_build_object('n', i),
			format('"job" {"n": %s}', i), 'ended', 'infinity' from generate_series(1000000, 1000000 + $1) i`, n)
	}
	tx, err := db.Begin(t.Context()) // one session, so that its plans are from when the table was empty
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	cost := func(n int) int {
		t.Helper()
		rows, err := tx.Query(t.Context(), `explain (analyze, buffers, timing off) select drover_enqueue_unique(jsonb_build_object('id', drover_ulid(), 'kind', 'job',
			'args', jsonb_build_object('n', `+fmt.Sprint(n)+`), 'uniqueness', '{}'::jsonb))`)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return harness.BuffersIn(t, strings.Join(plan, "\n"))
	}
	for n := range 10 {
		cost(n)
	}
	fill(30_000)
	for _, n := range []int{20, 1_010_000} { // the first job is stored, the second one is there
		least := cost(n) // reads the catalogs, and again whenever other tests have made many tables meanwhile
		for i := range 10 {
			least = min(least, cost(n+1+i))
		}
		if least > 150 {
			t.Errorf("%d: %d buffers of a table of 30,000 jobs", n, least)
		}
	}
}

// An enqueue of jobs that are there reads a few pages for each of them, even if the session made its plans when the
// table was small.
func TestRepeatedEnqueuesReadFewPages(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	const repeat = `select drover_enqueue_many((select jsonb_agg(jsonb_build_object('id', 'TWICE' || lpad(n::text, 21, '0'), 'kind', 'job')) from generate_series(1, 20) n))`
	for _, sql := range []string{
		repeat, `analyze jobs`, repeat, repeat, repeat, repeat, repeat, repeat, repeat, repeat,
		`insert into jobs (id, kind) select 'A' || lpad(i::text, 25, '0'), 'job' from generate_series(1, 30000) i`,
		`delete from jobs where id like 'TWICE%'`, repeat, // now they are behind the others
	} {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	least := math.MaxInt // other tests change their schemas, and then the server reads its catalogs anew
	for range 10 {
		rows, _ := tx.Query(t.Context(), `explain (analyze, buffers, timing off) `+repeat)
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		least = min(least, harness.BuffersIn(t, strings.Join(plan, "\n")))
	}
	if least > 20*20 {
		t.Errorf("%d buffers for 20 jobs of a table of 30,000", least)
	}
}

// a unique job without other options takes no function, and a second round trip only if
// another job is there. Then no supervisor is woken.
func TestPlainUniqueJobsTakeNoFunction(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	sent := harness.NewStatements()
	as := db.via(t, drover.Config{}, func(config *pgxpool.Config) { config.ConnConfig.Tracer = sent })
	direct := []string{drover.SQLEnqueueUniquePlan, drover.SQLEnqueueUniquePlain, drover.SQLWakeForUnique}
	for _, c := range []struct {
		name  string
		args  parcel
		opts  drover.EnqueueOpts
		want  []string
		wakes bool
	}{
		{"the first one", parcel{N: 1}, drover.EnqueueOpts{}, direct, true},
		{"another one is there", parcel{N: 1}, drover.EnqueueOpts{}, slices.Concat(direct, []string{drover.SQLEnqueueUnique}), false},
		{"with metadata", parcel{N: 4}, drover.EnqueueOpts{Metadata: map[string]any{"a": "b"}}, direct, true},
		{"with another option", parcel{N: 2}, drover.EnqueueOpts{MaxAttempts: 2}, []string{drover.SQLEnqueueUnique, drover.SQLWakeNow}, true},
		{"long args", parcel{N: 3, To: strings.Repeat("x", 600)}, drover.EnqueueOpts{}, []string{drover.SQLEnqueueUnique, drover.SQLWakeNow}, true},
	} {
		told := woken(t, db, func() {
			_, _ = as.Exec(t.Context(), "select") // a connection is there
			sent.Since()
			as.Unique(t, c.args, drover.Unique{}, c.opts)
		})
		calls, _ := sent.Since()
		if got := slices.Sorted(maps.Keys(calls)); !slices.Equal(got, slices.Sorted(slices.Values(c.want))) || told != c.wakes {
			t.Errorf("%s: sent %q, woken %v; want %q, %v", c.name, got, told, c.want, c.wakes)
		}
	}
	if n := value[int](t, db, `select count(*) from jobs where metadata = '{"a": "b"}'`); n != 1 {
		t.Errorf("%d jobs with metadata", n)
	}
}

// The trigger that looks at metadata is not called for a trace's: it would cost an enqueue more than the row. It is called
// for metadata that may be too long as text, or may have a key of drover's own.
func TestSmallMetadataCallNoTrigger(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	called := func(metadata string) int {
		t.Helper()
		tx, err := db.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(t.Context()) }()
		if _, err := tx.Exec(t.Context(), `set local track_functions = 'all'`); err != nil {
			t.Fatal(err)
		}
		calls := func() (n int) { // of the session, which may have had other transactions
			const sql = `select coalesce(sum(calls), 0) from pg_stat_xact_user_functions where funcid = 'drover_bounds'::regproc`
			if err := tx.QueryRow(t.Context(), sql).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		before := calls()
		if _, err := tx.Exec(t.Context(), `insert into jobs (kind, metadata) select 'k', $1::text::jsonb from generate_series(1, 3)`, metadata); err != nil {
			t.Fatal(err)
		}
		return calls() - before
	}
	const parent = `"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"`
	for metadata, want := range map[string]int{
		`{` + parent + `}`: 0, `{` + parent + `, "tracestate": "a=1", "tenant": {"id": [7]}}`: 0,
		`{}`: 0, `{"traceparent": "00-\"drover:"}`: 0, // a trace is not even written out as text
		`{"a": "` + strings.Repeat("x", 600) + `"}`: 3, `{"drover:follow_up": 1}`: 3, `{` + parent + `, "drover:follow_up": 1}`: 3,
		`{"n": 1e5000}`: 3, `{"n": [-1e-5000]}`: 3, `{"traceparent": 1e5000}`: 3, `{"traceparent": {"n": 1e5000}}`: 3,
		`{"traceparent": "00-` + strings.Repeat("x", 600) + `"}`: 3,
	} {
		if n := called(metadata); n != want {
			t.Errorf("%d calls for three jobs with %.80s, want %d", n, metadata, want)
		}
	}
}

// One call of the SQL functions takes time in proportion to the number of jobs. If each job were compared with all
// others, 32 times as many jobs would take several hundred times as long. The server counts the processor time of a
// call. On a busy machine the clock counts the time of others, too: nearly none next to a small call, and a multiple
// of its own time next to a large one.
func TestTimeOfLargeBatchesInSQL(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	var spent time.Duration
	config := db.Config().ConnConfig.Copy()
	usage := regexp.MustCompile(`([0-9.]+) s user, ([0-9.]+) s system, [0-9.]+ s elapsed`)
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if found := usage.FindStringSubmatch(n.Detail); found != nil {
			for _, seconds := range found[1:] {
				d, _ := time.ParseDuration(seconds + "s")
				spent += d
			}
		}
	}
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pg.CloseConn(t.Context(), conn) })
	if _, err := conn.Exec(t.Context(), `set client_min_messages = log; set log_statement_stats = on`); err != nil {
		t.Fatal(err)
	}
	took := func(jobs, made int, more string) time.Duration {
		spent = 0
		if _, err := conn.Exec(t.Context(), `select count(*) from drover_enqueue_many((select jsonb_agg(jsonb_build_object('id', 'LARGE' || to_char(n, 'FM000000000000000000000'), 'kind', 'job', 'args', n)`+more+`)
			from generate_series($1::int, $1::int + $2::int - 1) n))`, made, jobs); err != nil {
			t.Fatal(err)
		}
		if spent == 0 {
			t.Fatal("the server has not counted its processor time")
		}
		return spent
	}
	const small, large = 1_000, 32_000
	for i, more := range []string{``, ` || '{"uniqueness": {}}'`} {
		made := i * 1_000_000
		least := time.Hour
		for range 5 {
			least = min(least, took(small, made, more))
			made += small
		}
		for _, which := range []string{"new", "repeated"} {
			all := took(large, made, more)
			if all > 150*least {
				t.Errorf("%d %s jobs%s took %v, and %d took %v", large, which, more, all, small, least)
			}
		}
	}
}
