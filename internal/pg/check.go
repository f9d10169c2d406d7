package pg

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/oklog/ulid/v2"
)

// SchemaVersion is the version of the schema that this library needs.
const (
	SchemaVersion   = 23
	firstMigratable = 10 // an older schema is from before the first release; no migration here continues it
)

// sqlCheck reads what kind of server this is, and whether the session finds drover. It uses nothing of drover's own, so
// it works on an empty database. $1 is Config.Schema, empty if it is not set.
const sqlCheck = `
select pg_backend_pid(), current_setting('server_version_num')::int, pg_is_in_recovery(), to_regprocedure('drover_schema_version()') is not null,
	quote_ident(current_database()), exists (select from pg_namespace where nspname = $1),
	format('looked in schema %s, search_path %s', coalesce(quote_ident(current_schema()), '(none)'), current_setting('search_path')),
	(` + SQLInstalledIn + `)`

// SQLInstalledIn returns a text such as "drover is installed in: public", empty if drover is nowhere in the database.
const SQLInstalledIn = `
select coalesce('drover is installed in: ' || string_agg(format('%I', n.nspname) || case when has_schema_privilege(n.oid, 'usage') then '' else ' (this role may not use it)' end, ', '), '')
from (select n.oid, n.nspname from pg_proc p join pg_namespace n on n.oid = p.pronamespace where p.proname = 'drover_schema_version' order by 2 limit 5) n`

const sqlSchemaVersion = `select drover_schema_version()`

// sqlOtherRelations checks the schema. It looks for names of drover's relations that lead the session to another schema
// than drover's functions, for example to an application's own table jobs. The list must have all of drover's
// relations.
const sqlOtherRelations = `
select drover_check_schema()::text, current_setting('session_replication_role') = 'replica', n.nspname::text, coalesce((
	select string_agg(format('%s.%I', c.relnamespace::regnamespace, c.relname), ', ' order by c.relname)
	from unnest('{jobs,queues,drover_kinds,drover_supervisors,drover_crews,drover_on_duty,drover_set_aside,discarded_jobs,discarded_summary,job_counts,
		drover_redrives,drover_redrive_queues,drover_ended_supervisors,drover_solo,drover_failure_groups,drover_failure_tallies,drover_builds,
		failures,drover_budgets,drover_budget_slots,retry_budgets,jobs_archive,
		drover_limits,job_limits,drover_periodic,periodic_jobs,drover_activity}'::text[]) as name
	join pg_class c on c.oid = to_regclass(name) where c.relnamespace <> n.oid), '')
from pg_proc p join pg_namespace n on n.oid = p.pronamespace where p.oid = to_regproc('drover_schema_version')`

// sqlRelationsIn is used instead of sqlOtherRelations if Config.Schema is set. Then each name leads to that schema, so
// only the functions are left to check.
const sqlRelationsIn = `
select drover_check_schema()::text, current_setting('session_replication_role') = 'replica', '', ''`

// sqlWhichSchema returns the schema in which the session finds drover; "": none.
const sqlWhichSchema = `
select coalesce((select n.nspname from pg_proc p join pg_namespace n on n.oid = p.pronamespace where p.oid = to_regprocedure('drover_schema_version()')), '')::text`

// Check checks the server and the schema. It uses a connection of drover's own, so it meets the same errors as a
// supervisor would. It also checks that the pool's connections lead to the same schema: otherwise jobs would be
// enqueued in one schema and claimed from another.
func (p *Pool) Check(ctx context.Context) error {
	link := Link{Pool: p}
	defer link.Close(ctx)
	if err := p.CheckOn(ctx, &link); err != nil {
		return err
	}
	var ours, pools string
	err := link.Conn.QueryRow(ctx, sqlWhichSchema).Scan(&ours)
	if err == nil {
		err = p.QueryRow(ctx, sqlWhichSchema).Scan(&pools)
	}
	switch {
	case err != nil:
		return fmt.Errorf("ask where drover is: %w", Classify(err))
	case ours != pools && p.Names != nil:
		return p.Invalid("pool", fmt.Sprintf("its connections find no drover in schema %q, a supervisor's own, made with its settings and hooks, do", ours), nil)
	case ours != pools:
		return p.Invalid("pool", fmt.Sprintf("its connections find drover in schema %q, a supervisor's own, made with its settings and hooks, in %q: "+
			"set search_path in the connection string, or for the role", pools, ours), nil)
	}
	return nil
}

// CheckOn checks the server to which the link leads. If the server is a standby, it returns ErrReadOnly after all other
// checks.
func (p *Pool) CheckOn(ctx context.Context, link *Link) error {
	var server, version int
	var standby, migrated, direct bool
	var found place
	conn, err := link.Get(ctx)
	if err == nil {
		var pid uint32
		err = conn.QueryRow(ctx, sqlCheck, p.Names.Schema()).Scan(&pid, &server, &standby, &migrated, &found.database, &found.there, &found.looked, &found.installed)
		direct = pid == conn.PgConn().PID()
	}
	if err == nil && !direct {
		err = p.checkPooler(ctx)
	}
	if err != nil {
		return fmt.Errorf("ask the server what it is: %w", Classify(err))
	}
	switch {
	case server < 150000:
		return fmt.Errorf("%w, this is %d.%d", ErrServerTooOld, server/10000, server%10000)
	case !migrated:
		return p.notMigrated(found, "")
	}
	if err := conn.QueryRow(ctx, sqlSchemaVersion).Scan(&version); err != nil {
		return fmt.Errorf("ask for the schema's version: %w", Classify(err))
	}
	if version < firstMigratable {
		return p.notMigrated(found, fmt.Sprintf("version %d is from before the first release: take it down with the files that made it, or drop its schema, then migrate", version))
	}
	if version < SchemaVersion {
		return p.notMigrated(found, fmt.Sprintf("version %d, this library needs %d", version, SchemaVersion))
	}
	if err := p.checkRelations(ctx, conn); err != nil || !standby {
		return err
	}
	return fmt.Errorf("%w%s", ErrReadOnly, aStandby) // last: a caller that only reads can ignore it
}

// place describes where a check has looked for drover, for its error.
type place struct {
	database  string // quoted as in SQL
	there     bool   // the schema of Config.Schema exists
	looked    string // where search_path led
	installed string // the result of SQLInstalledIn
}

// notMigratedError matches ErrNotMigrated. Its text names the schema of Config.Schema, and the remedy for that schema.
type notMigratedError struct{ text string }

func (e *notMigratedError) Error() string { return e.text }
func (e *notMigratedError) Unwrap() error { return ErrNotMigrated }

// notMigrated returns the error for tables that are missing, or that have an older version.
func (p *Pool) notMigrated(found place, version string) error {
	schema := p.Names.Schema()
	if schema == "" {
		detail := fmt.Sprintf("%s of database %s", found.looked, found.database)
		if version != "" {
			detail = version + "; " + detail
		}
		if found.installed != "" {
			detail += "; " + found.installed
		}
		return fmt.Errorf("%w (%s)", ErrNotMigrated, detail)
	}
	if !found.there {
		text := fmt.Sprintf("drover: there is no schema %q in database %s (Config.Schema); to make it: drover migrate up --create-schema --schema %s",
			schema, found.database, ShellQuote(schema))
		if found.installed != "" {
			text += ". " + found.installed
		}
		return &notMigratedError{text}
	}
	if version != "" {
		version = " (" + version + ")"
	}
	return &notMigratedError{fmt.Sprintf("drover: schema %q of database %s is not migrated%s; call migrations.Schema(%q).Up, or run: drover migrate up --schema %s",
		schema, found.database, version, schema, ShellQuote(schema))}
}

// checkRelations checks that the session finds drover's tables in the schema where drover's functions work, and that
// drover's triggers fire.
func (p *Pool) checkRelations(ctx context.Context, conn Conn) error {
	var home, others string
	var replica bool
	sql := sqlOtherRelations
	if p.Names != nil {
		sql = sqlRelationsIn
	}
	if err := conn.QueryRow(ctx, sql).Scan(nil, &replica, &home, &others); err != nil {
		return fmt.Errorf("look for drover's tables: %w", Classify(err))
	}
	if replica {
		return p.Invalid("pool", "its sessions have session_replication_role = replica, in which no trigger fires: follow-ups would be lost", nil)
	}
	if others != "" {
		return p.Invalid("pool", fmt.Sprintf("its search_path finds %s in front of drover's in schema %q: "+
			"give drover a pool with the search_path %[2]q alone, or rename yours", others, home), nil)
	}
	return nil
}

// checkPooler tries on two connections of its own whether a pooler in front of the server breaks the driver's way of
// sending statements. Such a pooler may give a connection another session for each transaction. If the pooler is idle,
// both connections get the session that was used last. If the pooler is busy, the first connection gets another session
// for its second transaction. In both cases a statement reaches the wrong session, and checkPooler returns an error.
func (p *Pool) checkPooler(ctx context.Context) error {
	mode := p.Config().ConnConfig.DefaultQueryExecMode
	if mode != pgx.QueryExecModeCacheStatement && mode != pgx.QueryExecModeDescribeExec {
		return nil
	}
	one, two := Link{Pool: p}, Link{Pool: p}
	defer one.Close(ctx)
	defer two.Close(ctx)
	first, err := one.Get(ctx)
	if err != nil {
		return err
	}
	second, err := two.Get(ctx)
	if err != nil {
		return err
	}
	if mode == pgx.QueryExecModeCacheStatement {
		return prepareOnBoth(ctx, first.PgConn(), second.PgConn())
	}
	var pids [3]int // DescribeExec sends a statement in one transaction and its values in the next
	for i, conn := range []Conn{first, second, first} {
		if err := conn.QueryRow(ctx, `select pg_backend_pid()`, pgx.QueryExecModeSimpleProtocol).Scan(&pids[i]); err != nil {
			return err
		}
	}
	if pids[0] == pids[1] || pids[0] != pids[2] {
		return ErrPooler
	}
	return nil
}

// prepareOnBoth prepares a statement of the same name on both connections. It fails unless each connection has its
// prepared statements to itself, which some poolers ensure.
func prepareOnBoth(ctx context.Context, first, second *pgconn.PgConn) error {
	name := "drover_" + ulid.Make().String()
	if _, err := first.Prepare(ctx, name, `select 1`, nil); err != nil {
		return err
	}
	result := first.ExecPrepared(ctx, name, nil, nil, nil).Read()
	if _, err := second.Prepare(ctx, name, `select 1`, nil); result.Err == nil {
		result.Err = err
	}
	return errors.Join(result.Err, first.Deallocate(ctx, name)) // a session that others use must not keep the statement
}
