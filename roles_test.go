package drover_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/migrations"
)

// cast is a schema with the roles of docs/roles.sql, whose names do their best to break out of it.
type cast struct {
	*testDB // as a superuser
	schema  string
}

func (c *cast) name(role string) string { return c.schema + ` "` + role + `'s` }

// newCast makes the roles, migrates as the owner, and gives the rights.
func newCast(t *testing.T) *cast {
	t.Helper()
	pool := pgtest.NewPool(t)
	c := &cast{testDB: dbOn(pool, nil), schema: pgtest.Schema(pool)}
	t.Cleanup(func() {
		for _, role := range []string{"operator", "reader", "worker", "producer", "owner"} {
			name := pgx.Identifier{c.name(role)}.Sanitize()
			if _, err := c.Exec(context.Background(), "drop owned by "+name+" cascade; drop role "+name, pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Error(err)
			}
		}
	})
	c.script(t, false)
	if err := migrations.Up(t.Context(), c.pool(t, "owner")); err != nil {
		t.Fatalf("the owner cannot migrate: %v", err)
	}
	for range 2 { // again changes nothing
		c.script(t, true)
	}
	return c
}

// script runs docs/roles.sql as psql does, with these names.
func (c *cast) script(t *testing.T, migrated bool) {
	t.Helper()
	raw, err := os.ReadFile("docs/roles.sql")
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	if rights := strings.Index(text, `\if :migrated`); rights < 0 {
		t.Fatal("docs/roles.sql does not ask whether the schema is migrated")
	} else if !migrated {
		text = text[:rights]
	}
	var lines []string
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, `\`) {
			lines = append(lines, strings.Replace(line, ` \gset`, ";", 1))
		}
	}
	text = strings.Join(lines, "")
	values := map[string]string{"schema": c.schema}
	for _, role := range []string{"owner", "producer", "worker", "reader", "operator"} {
		values[role] = c.name(role)
	}
	for name, value := range values {
		text = strings.ReplaceAll(text, `:"`+name+`"`, pgx.Identifier{value}.Sanitize())
		text = strings.ReplaceAll(text, `:'`+name+`'`, "'"+strings.ReplaceAll(value, "'", "''")+"'")
	}
	if _, err := c.Exec(t.Context(), text, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("docs/roles.sql: %v", err)
	}
}

// pool is one whose connections act as a role.
func (c *cast) pool(t *testing.T, role string) *pgxpool.Pool {
	t.Helper()
	return c.samePool(t, func(config *pgxpool.Config) {
		config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "set role "+pgx.Identifier{c.name(role)}.Sanitize())
			return err
		}
	})
}

// as is a client that acts as a role.
func (c *cast) as(t *testing.T, role string, cfg drover.Config) *testDB {
	t.Helper()
	pool := c.pool(t, role)
	return dbOn(pool, harness.NewClient(t, pool, cfg))
}

// refused reports that the server denied a right.
func refused(err error) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && server.Code == "42501"
}

// X-7, E-5: each role can do all of its work. A producer enqueues. A worker claims these jobs, fails them, retries them
// within a budget, snoozes, discards with a follow-up, archives, prunes and rescues. A reader reads, an operator operates.
func TestRolesDoTheirWork(t *testing.T) {
	t.Parallel()
	slow(t)
	c := newCast(t)
	var log lockedBuffer
	cfg := drover.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}
	producer, worker, reader, operator := c.as(t, "producer", cfg), c.as(t, "worker", cfg), c.as(t, "reader", cfg), c.as(t, "operator", cfg)
	ctx := t.Context()
	ok := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}

	var well atomic.Bool
	sup, err := worker.client.NewSupervisor(drover.SupervisorConfig{
		Lease: 10 * time.Second, PollInterval: time.Minute, CompletedRetention: drover.KeepFor(time.Second), Build: "b1",
		Queues: []drover.Queue{{RetryBudget: drover.RetryBudget{Retries: 1000, Per: time.Second}, ArchiveDiscardedAfter: 30 * 24 * time.Hour}},
		Workers: []drover.Worker{drover.Handle(func(_ context.Context, j *drover.Job, _ letter) error {
			if j.Attempt == 1 && j.Snoozes == 0 {
				return drover.Snooze(time.Millisecond)
			}
			if !well.Load() {
				return errBoom
			}
			return nil
		}, drover.WorkerOpts{MaxAttempts: 2, Retry: drover.Every(time.Millisecond), FollowUp: &drover.FollowUp{Kind: "nobody"}})},
	})
	if err != nil {
		t.Fatal(err)
	}
	drover.EngineOf(sup).Pruner.Every = 10 * time.Millisecond
	run, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- sup.Run(run) }()

	// The worker sleeps; a producer wakes it.
	c.waitFor(t, time.Minute, harness.SQLAsleep)
	receipt, err := producer.client.Enqueue(ctx, letter{"a"}, nil)
	ok("Enqueue", err)
	ok("EnqueueTx", pgx.BeginFunc(ctx, producer.Pool, func(tx pgx.Tx) error {
		_, err := producer.client.EnqueueTx(ctx, tx, letter{"b"}, nil)
		return err
	}))
	_, err = producer.client.EnqueueMany(ctx, []drover.EnqueueItem{{Args: letter{"c"}}, {Args: letter{"d"}, Opts: &drover.EnqueueOpts{Delay: time.Millisecond}}})
	ok("EnqueueMany", err)
	c.waitFor(t, time.Minute, `select count(*) = 4 from jobs where state = 'discarded' and discard_reason = 'attempts_exhausted'`)
	c.waitFor(t, time.Minute, `select count(*) = 4 from jobs where kind = 'nobody'`)
	c.waitFor(t, time.Minute, `select exists (select from drover_failure_groups where jobs = 4)`)

	// A supervisor that died, and one old dead letter for the archive.
	well.Store(true)
	c.exec(t, `insert into jobs (id, kind, state, claimed_by, attempt, claim_seq, attempted_at, snoozes) values (drover_ulid_at('2020-01-01'), 'letter', 'running', 'gone', 1, 1, now(), 1)`)
	c.Dead(t, "gone")
	c.exec(t, `insert into jobs (id, kind, state, finalized_at, discard_reason) values (drover_ulid_at('2020-01-02'), 'letter', 'discarded', now() - interval '40 days', 'operator')`)
	c.waitFor(t, time.Minute, `select count(*) = 1 from jobs_archive`)
	c.waitFor(t, time.Minute, `select not exists (select from jobs where id = drover_ulid_at('2020-01-01'))`) // rescued, completed, pruned

	// Statements of a reader.
	fingerprint := value[string](t, c.testDB, `select fingerprint from drover_failure_groups limit 1`)
	for what, read := range map[string]func(*drover.Client) error{
		"Check": func(r *drover.Client) error { return r.Check(ctx) },
		"Job":   func(r *drover.Client) error { _, err := r.Job(ctx, receipt.ID); return err },
		"Jobs": func(r *drover.Client) error {
			_, err := r.Jobs(ctx, drover.Filter{State: drover.Discarded}, "", 0)
			return err
		},
		"Count":         func(r *drover.Client) error { _, err := r.Count(ctx, drover.Filter{}); return err },
		"Counts":        func(r *drover.Client) error { _, err := r.Counts(ctx); return err },
		"Summary":       func(r *drover.Client) error { _, err := r.Summary(ctx); return err },
		"FailureGroups": func(r *drover.Client) error { _, err := r.FailureGroups(ctx, drover.FailureFilter{}); return err },
		"FailureGroup":  func(r *drover.Client) error { _, err := r.FailureGroup(ctx, fingerprint); return err },
		"Pauses":        func(r *drover.Client) error { _, err := r.Pauses(ctx); return err },
		"RetryBudgets":  func(r *drover.Client) error { _, err := r.RetryBudgets(ctx); return err },
		"Redrives":      func(r *drover.Client) error { _, err := r.Redrives(ctx, 10); return err },
		"Snapshot": func(r *drover.Client) error {
			s, err := r.Snapshot(ctx)
			if err == nil && len(s.NotSeen) > 0 {
				err = fmt.Errorf("not seen: %+v", s.NotSeen)
			}
			return err
		},
		"ExportArchive": func(r *drover.Client) error { _, err := r.ExportArchive(ctx, io.Discard, drover.Filter{}); return err },
	} {
		ok("reader: "+what, read(reader.client))
		ok("operator: "+what, read(operator.client))
		if err := read(producer.client); !refused(err) && what != "Check" && what != "Snapshot" { // a Snapshot names the parts that it may not see
			t.Errorf("producer: %s: %v", what, err)
		}
	}

	// Statements of an operator, and of no other role.
	waiting := c.enqueueWaiting(t, 3)
	verbs := []struct {
		what string
		do   func(*drover.Client) error
	}{
		{"Cancel", func(o *drover.Client) error { _, err := o.Cancel(ctx, waiting[0], drover.Audit{Why: "no"}); return err }},
		{"Discard", func(o *drover.Client) error {
			_, err := o.Discard(ctx, waiting[1], drover.Audit{Why: "no"})
			return err
		}},
		{"CancelMany", func(o *drover.Client) error {
			_, err := o.CancelMany(ctx, drover.Filter{Kind: "nobody"}, drover.Audit{Why: "no"})
			return err
		}},
		{"DiscardMany", func(o *drover.Client) error {
			_, err := o.DiscardMany(ctx, drover.Filter{IDs: waiting[2:]}, drover.Audit{Why: "no"})
			return err
		}},
		{"SetFailureStatus", func(o *drover.Client) error {
			return o.SetFailureStatus(ctx, fingerprint, drover.FailureResolved, drover.Audit{By: "ann"})
		}},
		{"SetFailurePolicy", func(o *drover.Client) error {
			return o.SetFailurePolicy(ctx, fingerprint, drover.FailurePolicy{Action: drover.FailureDiscard}, drover.Audit{By: "ann"})
		}},
		{"SetFailurePolicy lifted", func(o *drover.Client) error {
			return o.SetFailurePolicy(ctx, fingerprint, drover.FailurePolicy{}, drover.Audit{By: "ann"})
		}},
		{"Pause", func(o *drover.Client) error {
			return o.Pause(ctx, drover.KindScope("letter"), nil, drover.Audit{By: "ann"})
		}},
		{"Resume", func(o *drover.Client) error {
			return o.Resume(ctx, drover.KindScope("letter"), drover.Audit{By: "ann"})
		}},
		{"Redrive", func(o *drover.Client) error {
			_, err := o.StartRedrive(ctx, drover.RedrivePlan{Filter: drover.Filter{Kind: "letter", Reason: drover.ReasonAttemptsExhausted}, PerKey: 1, KeyFrom: "to"}, drover.Audit{})
			return err
		}},
		{"Redrive of no job", func(o *drover.Client) error {
			_, err := o.StartRedrive(ctx, drover.RedrivePlan{Filter: drover.Filter{Kind: "nobody"}}, drover.Audit{})
			return err
		}},
		{"Restore", func(o *drover.Client) error {
			_, err := o.Restore(ctx, drover.Filter{All: true}, drover.Audit{})
			return err
		}},
		{"Archive", func(o *drover.Client) error {
			_, err := o.Archive(ctx, drover.Filter{State: drover.Discarded, Reason: drover.ReasonOperator}, nil, drover.Audit{})
			return err
		}},
		{"PurgeArchive", func(o *drover.Client) error {
			_, err := o.PurgeArchive(ctx, drover.Filter{All: true}, drover.Audit{})
			return err
		}},
		{"DeleteMany", func(o *drover.Client) error {
			_, err := o.DeleteMany(ctx, drover.Filter{Kind: "nobody", State: drover.Cancelled}, drover.Audit{})
			return err
		}},
	}
	for _, v := range verbs {
		for what, other := range map[string]*testDB{"reader": reader, "producer": producer} {
			if err := v.do(other.client); !refused(err) {
				t.Errorf("%s: %s: %v", what, v.what, err)
			}
		}
	}
	for _, v := range verbs {
		ok("operator: "+v.what, v.do(operator.client))
	}
	eventually(t, func() bool { // the worker may have been archiving the restored job again meanwhile
		_, err := operator.client.PurgeArchive(ctx, drover.Filter{All: true}, drover.Audit{})
		ok("operator: PurgeArchive", err)
		return value[int](t, c.testDB, `select count(*) from jobs_archive`) == 0 //nolint:contextcheck // it reads under the context of the test
	})
	c.exec(t, `select drover_redrive_start('{"filter": {"kind": "nobody"}}')`) // the worker finds that it matches no job
	c.waitFor(t, time.Minute, `select array_agg(state) = '{done}' from drover_redrives`)
	stop()
	ok("Run", <-ended)
	if text := string(log.Bytes()); strings.Contains(text, "permission denied") {
		t.Errorf("the log tells of rights that were missing:\n%s", text)
	}
}

// enqueueWaiting stores jobs that nobody works.
func (c *cast) enqueueWaiting(t *testing.T, n int) (ids []string) {
	t.Helper()
	for range n {
		ids = append(ids, value[string](t, c.testDB, `insert into jobs (kind, queue) values ('unknown', 'elsewhere') returning id`))
	}
	return ids
}

// no role can do more than its work: none but the owner makes, changes or drops anything in the schema, a producer
// touches no table, a reader changes none, a worker does not purge the archive nor decide what operators decide.
func TestRolesDoNoMore(t *testing.T) {
	t.Parallel()
	c := newCast(t)
	const outsiders = `'producer', 'worker', 'reader', 'operator'`
	for what, query := range map[string]string{
		"may make things in the schema": `has_schema_privilege(r.name, current_schema(), 'create')`,
		"owns something": `exists (select from pg_class where relowner = r.id and relnamespace = quote_ident(current_schema())::regnamespace)
			or exists (select from pg_proc where proowner = r.id and pronamespace = quote_ident(current_schema())::regnamespace)`,
		"is a member of the owner":            `pg_has_role(r.name, r.owner, 'member')`,
		"may truncate, or hang triggers on":   `exists (select from rel where has_table_privilege(r.name, oid, 'truncate, references, trigger'))`,
		"may write where migrations are kept": `has_table_privilege(r.name, 'drover_goose_version', 'insert, update, delete')`,
	} {
		c.nobody(t, what, outsiders, query)
	}
	c.nobody(t, "touches a table", `'producer'`, `exists (select from rel where has_table_privilege(r.name, oid, 'select, insert, update, delete') or has_any_column_privilege(r.name, oid, 'select, insert, update'))`)
	c.nobody(t, "writes", `'reader'`, `exists (select from rel where has_table_privilege(r.name, oid, 'insert, update, delete') or has_any_column_privilege(r.name, oid, 'insert, update'))`)
	c.nobody(t, "runs as the owner", `'reader'`, `exists (select from pg_proc where prosecdef and pronamespace = quote_ident(current_schema())::regnamespace and has_function_privilege(r.name, oid, 'execute'))`)
	c.nobody(t, "does not see all there is", `'reader', 'operator'`, `exists (select from rel where relname <> 'drover_goose_version' and not has_table_privilege(r.name, oid, 'select'))`)

	id := c.enqueueWaiting(t, 1)[0]
	own := map[string][]string{
		"producer": {
			`select from jobs`, `insert into jobs (kind) values ('k')`, `update jobs set attempt = 0`, `delete from jobs`, `select from discarded_jobs`,
			`select drover_cancel('` + id + `')`, `select drover_list()`, `select drover_delete_many('{"all": true}', confirm => 'delete')`,
			`select drover_pause('all')`, `select from job_limits`,
		},
		"reader": {
			`insert into jobs (kind) values ('k')`, `update jobs set attempt = 0`, `delete from jobs`, `select from jobs for update`,
			`select drover_enqueue('k')`, `select drover_wake('default')`, `select drover_cancel('` + id + `')`, `select drover_pace()`,
			`select drover_redrive_start('{"filter": {"all": true}}')`, `select drover_pause('all')`, `select drover_resume('all')`,
		},
		"worker": {
			`update jobs_archive set args = '{}'`, `delete from jobs_archive`, `select drover_purge('{"all": true}', 'delete for ever')`, `select drover_restore('{"all": true}')`,
			`select drover_redrive_start('{"filter": {"all": true}}')`, `insert into drover_redrives (filter) values ('{}')`, `delete from drover_budgets`, `delete from queues`,
			`delete from drover_failure_groups`, `select drover_pause('all')`, `select drover_resume('all')`, `insert into drover_limits (scope) values ('all')`, `delete from drover_limits`,
			`delete from drover_failure_groups`, `delete from drover_periodic`,
		},
		"operator": {`update drover_supervisors set beat = 0`, `delete from drover_supervisors`, `delete from drover_kinds`, `update drover_builds set build = 'x'`, `delete from drover_redrive_queues`},
	}
	for role := range maps.Keys(own) {
		db := c.as(t, role, drover.Config{})
		for _, sql := range slices.Concat(own[role], []string{
			`truncate jobs`, `drop table jobs`, `drop schema ` + c.schema + ` cascade`, `alter table jobs add column mine int`, `alter table jobs disable trigger all`,
			`create table mine ()`, `create function drover_mine() returns int language sql as 'select 1'`, `drop function drover_schema_version()`,
			`create or replace function drover_schema_version() returns int language sql as 'select 99'`, `create index on jobs (args)`,
			`create trigger mine before insert on jobs execute function drover_follow_up()`, `alter function drover_wake(text, timestamptz, text, bigint) security invoker`,
			`update drover_goose_version set version_id = 0`, `drop view discarded_jobs`, `comment on table jobs is 'mine'`,
		}) {
			tx, err := db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			_, err = tx.Exec(t.Context(), sql)
			if !refused(err) {
				t.Errorf("%s: %s: %v, want permission denied", role, sql, err)
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// nobody fails the test for each of the roles of which the condition holds.
func (c *cast) nobody(t *testing.T, what, roles, condition string) {
	t.Helper()
	rows, err := c.Query(t.Context(), `
with rel as (select oid, relname from pg_class where relnamespace = quote_ident(current_schema())::regnamespace and relkind in ('r', 'v')),
	r as (select role, n.name, to_regrole(quote_ident(n.name)) as id, $1 || ' "owner''s' as owner
		from unnest(array[`+roles+`]) as role, lateral (select $1 || ' "' || role || '''s' as name) n)
select role from r where `+condition, c.schema)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if len(names) > 0 {
		t.Errorf("%s: %q", what, names)
	}
}

// Row security on jobs, for the worker: whatever its policies, each way to enqueue stores the job. COPY does not work there.
func TestEnqueuesUnderRowSecurity(t *testing.T) {
	t.Parallel()
	c := newCast(t)
	worker := c.as(t, "worker", drover.Config{Logger: quiet()})
	c.exec(t, `alter table jobs enable row level security`)
	for _, policy := range []string{``, `create policy own on jobs using (queue = 'mine')`, `alter policy own on jobs using (true)`} {
		c.exec(t, policy)
		worker.EnqueueAll(t, func(what string, r drover.Receipt, err error) {
			if err != nil || !value[bool](t, c.testDB, `select exists (select from jobs where id = $1)`, r.ID) {
				t.Errorf("%q: %s: %+v, %v", policy, what, r, err)
			}
		})
	}
}

// An operator sets, pauses, runs and deletes schedules; a worker declares and ticks them; a reader sees them.
func TestRolesAndSchedules(t *testing.T) {
	t.Parallel()
	c := newCast(t)
	operator, worker, reader := c.as(t, "operator", drover.Config{Logger: quiet()}), c.as(t, "worker", drover.Config{Logger: quiet()}), c.as(t, "reader", drover.Config{Logger: quiet()})
	operator.SetPeriodic(t, drover.Periodic{Name: "a", Schedule: "@every 1h"})
	for name, err := range map[string]error{
		"pause":  operator.client.PausePeriodic(t.Context(), "a", time.Time{}, drover.Audit{}),
		"resume": operator.client.ResumePeriodic(t.Context(), "a", drover.Audit{}),
		"run":    ret2(operator.client.RunPeriodic(t.Context(), "a", nil, drover.Audit{})),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := operator.client.Enqueue(t.Context(), tickArgs{1}, nil); err != nil {
		t.Errorf("enqueue by hand: %v", err)
	}
	operator.exec(t, `select drover_enqueue('tick', '{"n": 2}')`)
	operator.SetPeriodic(t, drover.Periodic{Name: "unique", Opts: &drover.EnqueueOpts{Unique: &drover.Unique{}}})
	if _, err := operator.client.RunPeriodic(t.Context(), "unique", nil, drover.Audit{}); err != nil {
		t.Errorf("run a schedule of unique jobs: %v", err)
	}
	worker.run(t, harness.Ticker("", drover.Periodic{Name: "declared"}))
	operator.exec(t, `update drover_periodic set anchor = anchor - interval '1 h', next_at = next_at - interval '1 h' where name = 'a'`)
	reader.waitFor(t, 20*time.Second, `select count(*) = 1 from periodic_jobs where name = 'a' and jobs = 2`)
	if list, err := reader.client.PeriodicJobs(t.Context()); err != nil || len(list) != 3 {
		t.Errorf("%+v, %v", list, err)
	}
	if err := reader.client.PausePeriodic(t.Context(), "a", time.Time{}, drover.Audit{}); !refused(err) {
		t.Errorf("a reader pauses: %v", err)
	}
	if err := operator.client.DeletePeriodic(t.Context(), "a", drover.Audit{}); err != nil {
		t.Error(err)
	}
}
