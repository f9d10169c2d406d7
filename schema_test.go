package drover_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/migrations"
)

// oddSchema is a name of 63 bytes that begins in an odd way and is unique.
func oddSchema(begin string) string {
	name := begin + strings.ToLower(rand.Text()[:12])
	return name + strings.Repeat("x", 63-len(name))
}

// newNamedDB is a schema with drover's tables that only Config.Schema leads to. The test's own SQL runs in it. The
// client's pool looks elsewhere.
func newNamedDB(t testing.TB, name, elsewhere string, edit ...func(*pgxpool.Config)) (db *testDB, outside *pgxpool.Pool) {
	t.Helper()
	quoted := pgx.Identifier{name}.Sanitize()
	admin := dbOn(pgtest.NewPool(t), nil)
	admin.exec(t, `create schema `+quoted)
	t.Cleanup(func() {
		if _, err := admin.Exec(context.Background(), `drop schema `+quoted+` cascade`); err != nil {
			t.Error(err)
		}
	})
	inside := admin.via(t, drover.Config{}, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["search_path"] = quoted })
	edit = append(edit, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["search_path"] = elsewhere })
	named := admin.via(t, drover.Config{Schema: name}, edit...)
	if err := migrations.Schema(name).Up(t.Context(), named.Pool); err != nil {
		t.Fatal(err)
	}
	return dbOn(inside.Pool, named.client), named.Pool
}

// constants are the texts that the compiler knows, of the packages that send statements: those with a name, and those
// within a function.
func constants(t *testing.T) (named map[string]string, all map[string]bool) {
	t.Helper()
	named, all = map[string]string{}, map[string]bool{}
	const module = "github.com/drover-queue/drover"
	known := imports{}
	for _, dir := range []string{"internal/pg", "internal/store", "internal/health", ".", "cmd/drover"} {
		fset := token.NewFileSet()
		names, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		var files []*ast.File
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(fset, name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, file)
		}
		info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{}}
		// Imported packages are empty. No statement is made of them, so the errors do not matter.
		config := types.Config{Importer: known, Error: func(error) {}}
		known[path.Join(module, dir)], _ = config.Check(path.Join(module, dir), fset, files, info)
		for _, typed := range info.Types {
			if typed.Value != nil && typed.Value.Kind() == constant.String {
				all[constant.StringVal(typed.Value)] = true
			}
		}
		for ident, object := range info.Defs {
			if c, ok := object.(*types.Const); ok && c.Val().Kind() == constant.String {
				named[dir+"."+ident.Name] = constant.StringVal(c.Val())
				all[constant.StringVal(c.Val())] = true
			}
		}
	}
	for _, text := range drover.ArchiveStatements() {
		all[text] = true
	}
	return named, all
}

// imports are the packages checked so far.
type imports map[string]*types.Package

// Import implements types.Importer.
func (im imports) Import(name string) (*types.Package, error) {
	if im[name] == nil {
		im[name] = types.NewPackage(name, path.Base(name))
		im[name].MarkComplete()
	}
	return im[name], nil
}

// Each statement in the code means the same without a search_path, once its names are qualified. A statement is what the
// server can prepare. The rest of the texts are parts of statements, or none.
func TestStatementsWithoutASearchPath(t *testing.T) {
	t.Parallel()
	schema := oddSchema(`Odd "herd"; $1 %s 'q' \ `)
	db, _ := newNamedDB(t, schema, "")
	names := pg.NewNames(schema)
	within, without := dbOn(db.Pool, harness.NewClient(t, db.Pool, drover.Config{})).Dialed(t), db.Dialed(t)
	own := regexp.MustCompile(`\b(` + strings.Join(db.IDsOf(t, `
		select relname::text from pg_class where relnamespace = quote_ident(current_schema())::regnamespace and relkind in ('r', 'v')
		union select proname::text from pg_proc where pronamespace = quote_ident(current_schema())::regnamespace order by 1`), "|") + `)\b`)
	named, all := constants(t)
	var whole []string
	for text := range all {
		if !own.MatchString(text) {
			continue
		}
		if _, err := within.Prepare(t.Context(), "", text); err != nil {
			continue
		}
		whole = append(whole, text)
		qualified := names.SQL(text)
		if _, err := without.Prepare(t.Context(), "", qualified); err != nil {
			t.Errorf("%v: %s", err, qualified)
		}
		if names.SQL(qualified) != qualified {
			t.Errorf("qualified twice: %s", names.SQL(qualified))
		}
		// The server looks up the names of a utility statement only when it runs.
		if word, _, _ := strings.Cut(strings.TrimSpace(text), " "); (word == "copy" || word == "lock") && !strings.Contains(qualified, pgx.Identifier{schema}.Sanitize()+".jobs") {
			t.Errorf("not qualified: %s", qualified)
		}
	}
	if len(whole) < 150 {
		t.Errorf("only %d statements", len(whole))
	}
	for name, text := range named {
		if statement := regexp.MustCompile(`[.](sql|SQL)\w`).MatchString(name); statement && own.MatchString(text) && !slices.ContainsFunc(whole, func(s string) bool { return strings.Contains(s, text) }) {
			t.Errorf("%s is in no statement that the server can prepare", name)
		}
	}
}

// everything calls all methods of a client, and lets a supervisor do what it does to jobs.
func everything(t *testing.T, db *testDB, pool *pgxpool.Pool) {
	t.Helper()
	ctx := t.Context()
	c := &called{Client: db.client, left: map[string]bool{}}
	for m := range reflect.TypeFor[*drover.Client]().Methods() {
		c.left[m.Name] = true
	}
	c.ok(t, "Check", c.Check(ctx))

	// A job does what its number says.
	const (
		completes = iota
		failsOnce
		discards
		snoozes
		completesTx
		settlesTx
		waits
	)
	began := make(chan string, 1)
	in := func(settle func(pgx.Tx) error) error { return pgx.BeginFunc(context.WithoutCancel(ctx), pool, settle) }
	workers := []drover.Worker{
		drover.Handle(func(ctx context.Context, j *drover.Job, args job) error {
			switch args.N {
			case failsOnce:
				if j.Attempt == 1 {
					return errors.New("once")
				}
			case discards:
				return drover.Discard(errors.New("never"))
			case snoozes:
				if j.Snoozes == 0 {
					return drover.Snooze(time.Millisecond)
				}
			case completesTx:
				return in(func(tx pgx.Tx) error {
					_, err := j.EnqueueTx(ctx, tx, job{completes}, nil)
					return errors.Join(err, j.CompleteTx(ctx, tx))
				})
			case settlesTx:
				if j.Attempt == 1 {
					return in(func(tx pgx.Tx) error { return j.SettleTx(ctx, tx, errors.New("in a transaction")) })
				}
			case waits:
				began <- j.ID
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}, drover.WorkerOpts{
			Retry: drover.Constant{Delay: time.Millisecond}, FollowUp: &drover.FollowUp{Kind: "letter"}, RetryBudget: drover.RetryBudget{Retries: 1000, Per: time.Minute},
		}),
		drover.Handle(func(context.Context, *drover.Job, letter) error { return nil }, drover.WorkerOpts{MaxAttempts: 1}),
	}
	db.exec(t, `insert into drover_supervisors (id, lease_ms, queues, beat_at) values ('dead', 1000, '{default}', now() - interval '1 hour')`)
	db.exec(t, `insert into jobs (kind, args, state, claimed_by, attempted_at, attempt, claim_seq) values ('job', '{"n": 0}', 'running', 'dead', now() - interval '1 hour', 1, 1)`)
	sup := db.launch(t, drover.SupervisorConfig{Workers: workers, Lease: time.Second, CompletedRetention: drover.KeepFor(time.Second), Queues: []drover.Queue{{}}, Periodic: []drover.Periodic{{Name: "declared", Schedule: "@every 1h", Args: job{completes}, RunAtStart: true}}}, func(s *drover.Supervisor) { drover.EngineOf(s).Pruner.Every = 50 * time.Millisecond })
	c.did("NewSupervisor")

	one := func(args drover.Args, opts *drover.EnqueueOpts) string {
		t.Helper()
		r, err := c.Enqueue(ctx, args, opts)
		c.ok(t, "Enqueue", err)
		return r.ID
	}
	plain := one(job{completes}, nil)
	for n := failsOnce; n <= settlesTx; n++ {
		one(job{n}, &drover.EnqueueOpts{Tags: []string{"x"}, Priority: 4})
	}
	one(letter{}, &drover.EnqueueOpts{Delay: time.Millisecond})
	one(letter{}, &drover.EnqueueOpts{ScheduledAt: time.Now().Add(-time.Hour)})
	items := []drover.EnqueueItem{{job{completes}, nil}, {job{completes}, &drover.EnqueueOpts{Key: "k"}}, {job{discards}, nil}}
	_, err := c.EnqueueMany(ctx, items)
	c.ok(t, "EnqueueMany", err)
	c.ok(t, "EnqueueTx", pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := c.EnqueueTx(ctx, tx, job{completes}, nil)
		return err
	}))
	c.ok(t, "EnqueueManyTx", pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := c.EnqueueManyTx(ctx, tx, items)
		return err
	}))
	std := stdlib.OpenDBFromPool(pool)
	defer std.Close() //nolint:errcheck // it holds nothing
	tx, err := std.BeginTx(ctx, nil)
	c.ok(t, "EnqueueTx", err)
	_, err = c.EnqueueTx(ctx, drover.SQLTx(tx), job{completes}, nil)
	c.ok(t, "EnqueueTx", errors.Join(err, tx.Commit()))
	db.waitFor(t, time.Minute, `select count(*) = 0 from jobs where finalized_at is null`)
	db.waitFor(t, time.Minute, `select count(*) = 1 from drover_supervisors`) // the dead one's jobs are rescued

	long := one(job{waits}, nil)
	receive(t, began)
	_, err = c.Cancel(ctx, long, drover.Audit{})
	c.ok(t, "Cancel", err)
	c.ok(t, "AddQueue", sup.AddQueue(ctx, drover.Queue{Name: "other"}))
	one(job{completes}, &drover.EnqueueOpts{Queue: "other"})
	db.waitFor(t, time.Minute, `select count(*) = 0 from jobs where finalized_at is null`)
	c.ok(t, "RemoveQueue", sup.RemoveQueue(ctx, "other"))
	db.waitFor(t, time.Minute, `select count(*) = 0 from jobs where id = $1`, plain) // it is pruned

	db.waitFor(t, time.Minute, `select jobs = 1 from drover_periodic`) // the schedule's first tick
	c.ok(t, "SetPeriodic", c.SetPeriodic(ctx, drover.Periodic{Name: "set", Schedule: "@daily", Args: job{completes}}, drover.Audit{}))
	c.ok(t, "PausePeriodic", c.PausePeriodic(ctx, "set", time.Time{}, drover.Audit{}))
	c.ok(t, "ResumePeriodic", c.ResumePeriodic(ctx, "set", drover.Audit{}))
	_, err = c.RunPeriodic(ctx, "set", nil, drover.Audit{})
	c.ok(t, "RunPeriodic", err)
	schedules, err := c.PeriodicJobs(ctx)
	c.ok(t, "PeriodicJobs", err)
	if len(schedules) != 2 || len(schedules[1].Next) != 10 {
		t.Errorf("%+v", schedules)
	}
	_, err = c.PeriodicJob(ctx, "set")
	c.ok(t, "PeriodicJob", err)
	_, err = c.PreviewPeriodic(ctx, "@hourly", "", 3)
	c.ok(t, "PreviewPeriodic", err)
	c.ok(t, "DeletePeriodic", c.DeletePeriodic(ctx, "set", drover.Audit{}))

	later := &drover.EnqueueOpts{Queue: "unserved"}
	_, err = c.Discard(ctx, one(job{completes}, later), drover.Audit{})
	c.ok(t, "Discard", err)
	for range 3 {
		one(job{completes}, later)
	}
	_, err = c.CancelMany(ctx, drover.Filter{IDs: []string{one(job{completes}, later)}}, drover.Audit{})
	c.ok(t, "CancelMany", err)
	many, err := c.DiscardMany(ctx, drover.Filter{Queue: "unserved", State: drover.Available}, drover.Audit{})
	c.ok(t, "DiscardMany", err)
	if many.Changed != 3 {
		t.Errorf("DiscardMany: %+v", many)
	}
	dead := drover.Filter{Queue: "unserved", State: drover.Discarded}
	page, err := c.Jobs(ctx, dead, "", 10)
	c.ok(t, "Jobs", err)
	if len(page.Jobs) != 4 {
		t.Fatalf("%d dead letters, want 4", len(page.Jobs))
	}
	_, err = c.Job(ctx, page.Jobs[0].ID)
	c.ok(t, "Job", err)
	story, err := c.Explain(ctx, page.Jobs[0].ID, nil)
	c.ok(t, "Explain", err)
	if story == nil || story.Now == "" {
		t.Errorf("Explain: %+v", story)
	}
	_, err = c.Supervisors(ctx)
	c.ok(t, "Supervisors", err)
	n, err := c.Count(ctx, dead)
	c.ok(t, "Count", err)
	if n != 4 {
		t.Errorf("Count = %d", n)
	}
	_, err = c.Counts(ctx)
	c.ok(t, "Counts", err)
	_, err = c.Summary(ctx)
	c.ok(t, "Summary", err)
	c.ok(t, "RedriveJob", c.RedriveJob(ctx, page.Jobs[0].ID, nil, drover.Audit{}))
	_, err = c.Edit(ctx, page.Jobs[0].ID, drover.JobEdit{Priority: 2}, drover.Audit{})
	c.ok(t, "Edit", err)
	many, err = c.EditMany(ctx, drover.Filter{IDs: []string{page.Jobs[0].ID}}, drover.JobEdit{Priority: 3}, drover.Audit{})
	c.ok(t, "EditMany", err)
	if many.Changed != 1 {
		t.Errorf("EditMany: %+v", many)
	}
	_, err = c.Rerun(ctx, db.put(t, "queue, state, finalized_at", "'other', 'completed', now() + interval '1 h'"), nil, drover.Audit{})
	c.ok(t, "Rerun", err)
	many, err = c.RerunMany(ctx, drover.Filter{IDs: []string{db.put(t, "queue, state, finalized_at", "'other', 'completed', now() + interval '1 h'")}}, drover.RerunPlan{}, drover.Audit{})
	c.ok(t, "RerunMany", err)
	if many.Changed != 1 {
		t.Errorf("RerunMany: %+v", many)
	}
	groups, err := c.FailureGroups(ctx, drover.FailureFilter{})
	c.ok(t, "FailureGroups", err)
	if len(groups) == 0 {
		t.Fatal("no failure groups")
	}
	print := groups[0].Fingerprint
	_, err = c.FailureGroup(ctx, print)
	c.ok(t, "FailureGroup", err)
	c.ok(t, "SetFailureStatus", c.SetFailureStatus(ctx, print, drover.FailureResolved, drover.Audit{By: "me"}))
	c.ok(t, "SetFailurePolicy", c.SetFailurePolicy(ctx, print, drover.FailurePolicy{}, drover.Audit{By: "me"}))
	_, err = c.RetryBudgets(ctx)
	c.ok(t, "RetryBudgets", err)
	c.ok(t, "Pause", c.Pause(ctx, drover.KindScope("nobody"), nil, drover.Audit{}))
	_, err = c.Pauses(ctx)
	c.ok(t, "Pauses", err)
	c.ok(t, "Resume", c.Resume(ctx, drover.KindScope("nobody"), drover.Audit{}))
	_, err = c.Activity(ctx, "default")
	c.ok(t, "Activity", err)
	shot, err := c.Snapshot(ctx)
	c.ok(t, "Snapshot", err)
	if len(shot.NotSeen) > 0 {
		t.Errorf("Snapshot has not seen %+v", shot.NotSeen)
	}

	plan := drover.RedrivePlan{Filter: dead, Rate: 0.01}
	_, err = c.PreviewRedrive(ctx, plan)
	c.ok(t, "PreviewRedrive", err)
	r, err := c.StartRedrive(ctx, plan, drover.Audit{})
	c.ok(t, "StartRedrive", err)
	c.ok(t, "PauseRedrive", c.PauseRedrive(ctx, r.ID, drover.Audit{}))
	c.ok(t, "ResumeRedrive", c.ResumeRedrive(ctx, r.ID, drover.Audit{}))
	_, err = c.Redrive(ctx, r.ID)
	c.ok(t, "Redrive", err)
	_, err = c.Redrives(ctx, 10)
	c.ok(t, "Redrives", err)
	c.ok(t, "AbortRedrive", c.AbortRedrive(ctx, r.ID, drover.Audit{}))

	all := drover.Filter{State: drover.Discarded}
	moved, err := c.Archive(ctx, all, nil, drover.Audit{})
	c.ok(t, "Archive", err)
	if moved.Jobs == 0 {
		t.Error("nothing is archived")
	}
	_, err = c.ExportArchive(ctx, &bytes.Buffer{}, all)
	c.ok(t, "ExportArchive", err)
	_, err = c.Restore(ctx, drover.Filter{Kind: "job"}, drover.Audit{})
	c.ok(t, "Restore", err)
	_, err = c.PurgeArchive(ctx, all, drover.Audit{})
	c.ok(t, "PurgeArchive", err)
	_, err = c.DeleteMany(ctx, all, drover.Audit{})
	c.ok(t, "DeleteMany", err)
	sup.Stop(t)
	for name := range c.left {
		t.Errorf("%s is not called", name)
	}
}

// called notes which methods were called.
type called struct {
	*drover.Client
	left map[string]bool
}

func (c *called) did(method string) { delete(c.left, method) }

func (c *called) ok(t *testing.T, method string, err error) {
	t.Helper()
	if c.did(method); err != nil {
		t.Errorf("%s: %v", method, err)
	}
}

// recorder keeps every text that is sent.
type recorder struct {
	mu    sync.Mutex
	texts map[string]bool
}

func (r *recorder) note(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.texts[text] = true
}

// TraceQueryStart implements pgx.QueryTracer.
func (r *recorder) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	r.note(d.SQL)
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (*recorder) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart implements pgx.BatchTracer.
func (*recorder) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

// TraceBatchQuery implements pgx.BatchTracer.
func (r *recorder) TraceBatchQuery(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchQueryData) {
	r.note(d.SQL)
}

// TraceBatchEnd implements pgx.BatchTracer.
func (*recorder) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// reset forgets what was sent so far, such as by migrations.
func (r *recorder) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.texts = map[string]bool{}
}

// sentAre reports what was sent and is none of the statements, nor the driver's own.
func (r *recorder) sentAre(t *testing.T, statements map[string]bool) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.texts) < 60 {
		t.Errorf("only %d statements were sent", len(r.texts))
	}
	for text := range r.texts {
		if !statements[text] && !regexp.MustCompile(`^(begin|commit|rollback|-- ping|listen "drover_.*)$|^begin isolation level`).MatchString(text) {
			t.Errorf("it sent something else than the statements in the code, with the schema in front of names: %q", text)
		}
	}
}

// A client with a schema needs no search_path, reads and writes nothing of another drover's that is in front of its own,
// and sends its statements with the name in front of each of drover's. All of it works with odd names.
func TestASchemaOfItsOwn(t *testing.T) {
	t.Parallel()
	slow(t)
	for _, begin := range []string{`Odd "herd"; $1 %s 'q' \ `, `"`, `a.b `, `drover_ÄÖ--/*`} {
		t.Run(begin, func(t *testing.T) {
			t.Parallel()
			decoy := newQuietDB(t)
			other := pgtest.Schema(decoy.Pool)
			seen := recorder{texts: map[string]bool{}}
			name := oddSchema(begin)
			db, pool := newNamedDB(t, name, other+", public", func(c *pgxpool.Config) {
				c.ConnConfig.Tracer = &seen
				c.ConnConfig.RuntimeParams["track_functions"] = "all"
				c.ConnConfig.RuntimeParams["application_name"] = "client of " + other
			})
			touched := func(schema string) int {
				return value[int](t, decoy, `select coalesce(sum(seq_scan + coalesce(idx_scan, 0) + n_tup_ins + n_tup_upd + n_tup_del), 0)
					+ (select coalesce(sum(calls), 0) from pg_stat_user_functions where schemaname = $1) from pg_stat_user_tables where schemaname = $1`, schema)
			}
			decoy.waitFor(t, time.Minute, `select count(*) = 0 from pg_stat_activity where query like $1`, `create schema `+other+`;%`)
			before, used := touched(other), touched(name)
			seen.reset()
			everything(t, db, pool)
			pool.Close()
			decoy.waitFor(t, time.Minute, `select count(*) = 0 from pg_stat_activity where application_name = $1`, "client of "+other)
			if after := touched(other); after != before {
				t.Errorf("%d rows, scans or calls in the other schema", after-before)
			}
			if after := touched(name); after < used+100 {
				t.Errorf("only %d rows, scans and calls are counted in its own schema", after-used)
			}
			names, statements := pg.NewNames(name), map[string]bool{}
			_, all := constants(t)
			for text := range all {
				statements[names.SQL(text)] = true
			}
			seen.sentAre(t, statements)
			listen := `listen ` + pgx.Identifier{value[string](t, db, `select drover_channel()`)}.Sanitize()
			if !seen.texts[listen] {
				t.Errorf("not sent: %s", listen)
			}
		})
	}
}

// Without a schema, what is sent is what stands in the code.
func TestWithoutASchemaStatementsAreAsWritten(t *testing.T) {
	t.Parallel()
	slow(t)
	seen := recorder{texts: map[string]bool{}}
	db := newQuietDB(t)
	traced := db.via(t, drover.Config{}, func(c *pgxpool.Config) { c.ConnConfig.Tracer = &seen })
	everything(t, dbOn(db.Pool, traced.client), traced.Pool)
	_, all := constants(t)
	seen.sentAre(t, all)
}

// A schema that does not exist, or has no drover in it, is named by whatever meets it first.
func TestASchemaThatIsNotThere(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t) // migrated, and first in the search_path: nobody falls back to it
	empty := pgtest.Schema(pgtest.NewPool(t))
	for _, schema := range []string{"Nowhere 'Land'", empty} {
		named := db.via(t, drover.Config{Schema: schema})
		sup, err := named.client.NewSupervisor(drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: harness.DoingNothing()})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		_, plain := named.client.Enqueue(ctx, letter{}, nil)
		_, other := named.client.Enqueue(ctx, letter{}, &drover.EnqueueOpts{Tags: []string{"x"}})
		_, many := named.client.EnqueueMany(ctx, []drover.EnqueueItem{{letter{}, nil}})
		_, counts := named.client.Counts(ctx)
		_, shot := named.client.Snapshot(ctx)
		check, run := named.client.Check(ctx), sup.Run(ctx)
		for what, err := range map[string]error{
			"Check": check, "Run": run, "Enqueue": plain, "Enqueue with options": other, "EnqueueMany": many, "Counts": counts, "Snapshot": shot,
		} {
			if !errors.Is(err, drover.ErrNotMigrated) || !strings.Contains(err.Error(), schema) {
				t.Errorf("%s in %q: %v", what, schema, err)
			}
		}
		database := value[string](t, db, `select quote_ident(current_database())`)
		missing := `drover: there is no schema "Nowhere 'Land'" in database ` + database +
			` (Config.Schema); to make it: drover migrate up --create-schema --schema 'Nowhere '\''Land'\'''. drover is installed in: `
		bare := fmt.Sprintf("drover: schema %q of database %s is not migrated; call migrations.Schema(%[1]q).Up, or run: drover migrate up --schema %[1]s", empty, database)
		for what, err := range map[string]error{"Check": check, "Run": run} {
			if got := err.Error(); schema == empty && got != bare || schema != empty && !strings.HasPrefix(got, missing) {
				t.Errorf("%s in %q: %s", what, schema, got)
			}
		}
	}
	if err := migrations.Schema("Nowhere 'Land'").Up(t.Context(), db.Pool); err == nil || !strings.Contains(err.Error(), "Nowhere 'Land'") {
		t.Errorf("Up: %v", err)
	}
	if n := value[int](t, db, `select count(*) from jobs`); n > 0 {
		t.Errorf("%d jobs went to the search_path", n)
	}
}

// The names of the schemas that have drover are quoted as in SQL, so that a comma or a blank in one is no end of it.
func TestSchemasThatHaveDroverAreQuoted(t *testing.T) {
	t.Parallel()
	name := oddSchema(`! Duty "Night", `) // sorts first: the error names five schemas
	_, pool := newNamedDB(t, name, "")
	want := `drover is installed in: ` + pgx.Identifier{name}.Sanitize()
	for _, schema := range []string{"", "Nowhere"} {
		if err := harness.NewClient(t, pool, drover.Config{Schema: schema}).Check(t.Context()); !errors.Is(err, drover.ErrNotMigrated) || !strings.Contains(err.Error(), want) {
			t.Errorf("Config.Schema %q: %v, want %q", schema, err, want)
		}
	}
}

// A schema with an older version gets the remedy for that schema too.
func TestAnOldSchemaOfItsOwn(t *testing.T) {
	t.Parallel()
	name := oddSchema("It's old ")
	db, _ := newNamedDB(t, name, "")
	db.exec(t, `create or replace function drover_schema_version() returns int language sql immutable as 'select 12'`)
	err := db.client.Check(t.Context())
	if !errors.Is(err, drover.ErrNotMigrated) {
		t.Fatalf("Check: %v", err)
	}
	for _, want := range []string{"version 12", fmt.Sprintf("migrations.Schema(%q).Up", name), `drover migrate up --schema 'It'\''s old `} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in: %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "call migrations.Up") {
		t.Errorf("the remedy is for another schema: %v", err)
	}
}

// No name gets as far as the server that would lead somewhere else there.
func TestBadSchemas(t *testing.T) {
	t.Parallel()
	pool := drover.PoolOf(offline(t, drover.Config{})).Pool
	for _, schema := range []string{" \t", strings.Repeat("é", 32), "a\x00b", "a\xffb", "$user"} {
		_, err := drover.New(pool, drover.Config{Schema: schema})
		if got := drover.Fields(t, err); !slices.Equal(got, []string{"Config.Schema"}) {
			t.Errorf("New, %q: %v", schema, err)
		}
		_, list := migrations.Schema(schema).List(t.Context(), pool)
		for _, err := range []error{migrations.Schema(schema).Up(t.Context(), pool), migrations.Schema(schema).Down(t.Context(), pool), list} {
			if !errors.Is(err, drover.ErrInvalid) {
				t.Errorf("migrations, %q: %v", schema, err)
			}
		}
	}
	if _, err := drover.New(pool, drover.Config{Schema: strings.Repeat("é", 31) + "\""}); err != nil {
		t.Errorf("a name of 63 bytes: %v", err)
	}
}

// Config.Schema goes by the name that the schema has now. If its functions still have the name from before a rename, they
// would work elsewhere.
func TestARenamedSchemaOfItsOwn(t *testing.T) {
	t.Parallel()
	old := oddSchema("Old ")
	db, pool := newNamedDB(t, old, "")
	now := "New" + old[3:]
	rename := func(from, to string) {
		db.exec(t, `alter schema `+pgx.Identifier{from}.Sanitize()+` rename to `+pgx.Identifier{to}.Sanitize())
	}
	rename(old, now)
	defer rename(now, old)
	renamed := harness.NewClient(t, pool, drover.Config{Schema: now})
	for name, client := range map[string]*drover.Client{"old": db.client, "new": renamed} {
		if err := client.Check(t.Context()); !errors.Is(err, drover.ErrNotMigrated) {
			t.Errorf("Check by the %s name: %v", name, err)
		}
	}
	if _, err := renamed.Enqueue(t.Context(), letter{}, &drover.EnqueueOpts{Tags: []string{"x"}}); !errors.Is(err, drover.ErrNotMigrated) || !strings.Contains(err.Error(), "drover_secure()") {
		t.Errorf("Enqueue: %v", err)
	}
	if err := migrations.Schema(now).Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	if err := renamed.Check(t.Context()); err != nil {
		t.Errorf("Check, mended: %v", err)
	}
}

// The pool's connections and a supervisor's own lead to two databases.
func TestCheckLooksForTheSchemaOnThePool(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	var dials atomic.Int32
	split := db.via(t, drover.Config{Schema: pgtest.Schema(db.Pool)}, func(c *pgxpool.Config) {
		c.BeforeConnect = func(_ context.Context, conn *pgx.ConnConfig) error {
			if dials.Add(1) > 1 { // the first is drover's own
				conn.Database = "template1"
			}
			return nil
		}
	})
	if err := split.client.Check(t.Context()); !errors.Is(err, drover.ErrInvalid) || !strings.Contains(err.Error(), "find no drover in schema") {
		t.Errorf("Check = %v", err)
	}
}

// Two schemas whose names begin alike, and are as long as names may be, have two channels.
func TestSchemasDoNotWakeEachOther(t *testing.T) {
	t.Parallel()
	name := oddSchema("Alike ")
	one, _ := newNamedDB(t, name[:62]+"1", "")
	two, _ := newNamedDB(t, name[:62]+"2", "")
	var across []string
	if !woken(t, one, func() {
		across = notes(t, two, func() { one.enqueue(t, letter{}, nil) })
	}) {
		t.Error("the sleeper is not woken")
	}
	if len(across) > 0 {
		t.Errorf("the other schema hears %q", across)
	}
}
