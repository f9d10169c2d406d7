package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	gooselock "github.com/pressly/goose/v3/lock"

	"github.com/drover-queue/drover/migrations"
)

func migrationScenarios() []scenario {
	return []scenario{{
		id: "S-6", what: "16 processes migrate an empty database at once; a migration under load, processes of before and after it at work", quick: 1, full: 10,
		alone: true, recovery: 5 * time.Second, deathless: true, unmeasured: true, run: migrate, extra: nothingWaitsLong,
	}}
}

// longestWait is how long a migration may make a session wait. longestPause is the longest time without any enqueue,
// claim or outcome. The second bound is longer, because a busy machine causes pauses, too.
const longestWait, longestPause = time.Second, 3 * time.Second

// sampleWaits records every 20 ms which session waits for which other session, until ctx is done.
func (w *world) sampleWaits(ctx context.Context) error {
	log, err := openJournal(w.dir, "waits")
	if err != nil {
		return err
	}
	for pause(ctx, 20*time.Millisecond) == nil {
		rows, err := w.pool.Query(ctx, `
select (extract(epoch from clock_timestamp() - l.waitstart) * 1000)::int, a.query, coalesce((
	select string_agg(b.query, '; ') from pg_stat_activity b where b.pid = any(pg_blocking_pids(l.pid))), '')
from pg_locks l join pg_stat_activity a using (pid) where not l.granted and l.waitstart is not null and a.datname = current_database()`)
		if err != nil {
			continue
		}
		waits, _ := pgx.CollectRows(rows, pgx.RowToStructByPos[wait])
		for _, each := range waits {
			log.write(each)
		}
	}
	return log.file.Close()
}

// runMigrator is the main function of a process that migrates and ends. With spec.Next it applies nextMigration as
// well.
func runMigrator() error {
	var spec producerSpec
	if err := asChild(&spec); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pool, err := connect(ctx, spec.URL, spec.Name, 2)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := migrations.Up(ctx, pool); err != nil || !spec.Next {
		return err
	}
	return applyNext(ctx, pool)
}

// nextMigration stands for a migration of a later version, until there is such a version. It takes the locks that a new
// column, a new index and a replaced function need.
const nextMigration = `-- +goose Up
select drover_lock_tables('{jobs,queues}');
alter table jobs add column later text;
alter table queues add column later text;
create index jobs_later_idx on jobs (later) where later is not null;
create or replace function drover_schema_version() returns int language sql immutable as 'select %[1]d';
select drover_secure();
-- +goose Down
select drover_lock_tables('{jobs,queues}');
alter table jobs drop column later;
alter table queues drop column later;
create or replace function drover_schema_version() returns int language sql immutable as 'select %[1]d - 1';
`

// applyNext applies nextMigration, one process at a time.
func applyNext(ctx context.Context, pool *pgxpool.Pool) error {
	names, err := fs.Glob(migrations.FS, "*.sql")
	if err != nil {
		return err
	}
	files := fstest.MapFS{}
	for _, name := range names {
		text, err := migrations.FS.ReadFile(name)
		if err != nil {
			return err
		}
		files[name] = &fstest.MapFile{Data: text}
	}
	version, err := strconv.Atoi(slices.Max(names)[:5])
	if err != nil {
		return err
	}
	files[fmt.Sprintf("%05d_next.sql", version+1)] = &fstest.MapFile{Data: fmt.Appendf(nil, nextMigration, version+1)}
	locker, err := gooselock.NewPostgresSessionLocker()
	if err != nil {
		return err
	}
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close() //nolint:errcheck // this does not close the pool
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithTableName(migrations.Table),
		goose.WithSessionLocker(locker), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return err
	}
	_, err = provider.Up(ctx)
	return err
}

// migrators runs n processes that migrate one database at the same time.
func (w *world) migrators(database string, n int, next bool) error {
	all := make([]*child, n)
	var errs []error
	for i := range all {
		name := fmt.Sprintf("m%d", i+1)
		c, err := startChild(w.program, "migrator", name, producerSpec{URL: database, Name: name, Next: next}, w.childErrors())
		if err != nil {
			return err
		}
		all[i] = c
	}
	for _, c := range all {
		<-c.ended
		if code := c.cmd.ProcessState.ExitCode(); code != 0 {
			errs = append(errs, fmt.Errorf("%s of %d ended with %d", c.name, n, code))
		}
	}
	return errors.Join(errs...)
}

// migrate lets many processes migrate an empty database together, many times. Then four processes migrate the database
// under load.
func migrate(ctx context.Context, w *world, rounds int) error {
	reference, err := w.migrateEmpty(ctx, "reference", 1)
	if err != nil {
		return err
	}
	for n := range rounds {
		err := w.inject("16 processes migrate an empty database", "", func() error {
			schema, err := w.migrateEmpty(ctx, fmt.Sprint(n), 16)
			if err == nil && schema != reference {
				err = fmt.Errorf("16 processes made %q, which one did not, and not %q", without(schema, reference), without(reference, schema))
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return w.migrateUnderLoad(ctx)
}

// The function without returns the lines of text that other does not have.
func without(text, other string) []string {
	has := strings.Split(other, "\n")
	return slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool { return slices.Contains(has, line) })
}

// sqlSchema lists the objects of a schema, and the migrations that were recorded.
const sqlSchema = `
select string_agg(what, E'\n' order by what) from (
	select relkind::text || ' ' || relname from pg_class where relnamespace = 'public'::regnamespace
	union all
	select 'function ' || oid::regprocedure || md5(prosrc) from pg_proc where pronamespace = 'public'::regnamespace
	union all
	select 'trigger ' || tgname from pg_trigger where not tgisinternal
	union all
	select 'constraint ' || conname || pg_get_constraintdef(oid) from pg_constraint where connamespace = 'public'::regnamespace
	union all
	select 'version ' || version_id || ' ' || count(*) from drover_goose_version group by version_id
) as all_of_it (what)`

// migrateEmpty lets this number of processes migrate a new database, and returns the result of sqlSchema.
func (w *world) migrateEmpty(ctx context.Context, name string, processes int) (schema string, err error) {
	name = "faults_S-6_" + name
	if _, err := w.pool.Exec(ctx, fmt.Sprintf(`create database %q`, name)); err != nil {
		return "", err
	}
	u, err := url.Parse(w.url)
	if err != nil {
		return "", err
	}
	u.Path = name
	if err := w.migrators(u.String(), processes, false); err != nil {
		return "", err
	}
	conn, err := pgx.Connect(ctx, u.String())
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx) //nolint:errcheck // nothing is lost with this connection
	err = conn.QueryRow(ctx, sqlSchema).Scan(&schema)
	return schema, err
}

// migrateUnderLoad is a deploy. Four processes of this version migrate while processes of the old version work. Then
// processes of both versions work, and at the end the old processes stop.
func (w *world) migrateUnderLoad(ctx context.Context) error {
	if err := pause(ctx, 2*time.Second); err != nil {
		return err
	}
	old := slices.Clone(w.workers)
	sampling, stop := context.WithCancel(ctx)
	sampled := make(chan error, 1)
	go func() { sampled <- w.sampleWaits(sampling) }() // ends with sampling
	err := w.inject(underLoad, "", func() error { return w.migrators(w.url, 4, true) })
	stop()
	if err := errors.Join(err, <-sampled); err != nil {
		return err
	}
	for range w.load.Workers {
		if _, err := w.startWorker(w.load); err != nil {
			return err
		}
	}
	err = w.eventually(ctx, "old and new binaries work side by side", 20*time.Second, `
select count(distinct writer) = $1 from audit where state = 'running' and at > $2`, 2*w.load.Workers, time.Now())
	for _, c := range old {
		err = errors.Join(err, w.stopInTime(c, w.load.Drain+10*time.Second))
	}
	return err
}

const underLoad = "migration under load"

// nothingWaitsLong requires that during the migration no session waited long for a lock, and that enqueues, claims and
// outcomes went on.
func nothingWaitsLong(h *history) (broken []string) {
	i := slices.IndexFunc(h.faults, func(f fault) bool { return f.What == underLoad })
	if i < 0 {
		return []string{"nothing was migrated under load"}
	}
	during := h.faults[i]
	longer := func(what string, from, to time.Time) {
		if to.Sub(from) > longestPause && from.Before(during.Ended) && to.After(during.Begun) {
			broken = append(broken, fmt.Sprintf("%s: %v during the migration", what, to.Sub(from)))
		}
	}
	for _, each := range h.waits {
		if time.Duration(each.MS)*time.Millisecond > longestWait {
			broken = append(broken, fmt.Sprintf("for %d ms %.100q waited for %.100q", each.MS, each.Waiting, each.For))
		}
	}
	for _, j := range h.byJob() {
		for i := 1; i < len(j.calls); i++ {
			longer("an enqueue took", j.calls[i-1].At, j.calls[i].At)
		}
	}
	var claim, end time.Time
	for _, v := range slices.SortedFunc(slices.Values(h.versions), func(a, b version) int { return a.At.Compare(b.At) }) {
		switch {
		case v.State == "running":
			longer("no claim for", claim, v.At)
			claim = v.At
		case v.Op == "UPDATE":
			longer("no outcome for", end, v.At)
			end = v.At
		}
	}
	return broken
}
