package drover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/oklog/ulid/v2"

	"github.com/drover-queue/drover/internal/pgurl"
)

// All SQL of the queue is in store_pg*.go, in the order of a job's life: enqueue (store_pg_enqueue.go), claim
// (store_pg_claim.go), settle (store_pg_settle.go), liveness (store_pg_lease.go), rescue (store_pg_rescue.go), and the
// operators' verbs (store_pg_operate.go).
//
// Names are unqualified: search_path picks the schema. Every transaction of the library's own begins with sqlBegin,
// pipelined. If it used the application's default instead, and that is repeatable read or serializable, a quarter to
// nine tenths of the claims would fail.

const (
	sqlBegin  = `begin isolation level read committed read write`
	sqlCommit = `commit`

	// sqlCommitAndBegin is sqlCommit and sqlBegin in one.
	sqlCommitAndBegin = `commit and chain`

	// sqlCheckSchema raises 3F000 if the schema was renamed: its functions then work in any schema that has its old
	// name.
	sqlCheckSchema = `select drover_check_schema()`

	// sqlOnePlan leaves the planner one sane plan, whatever the statistics are. The table jobs goes from empty to a
	// million rows and back. A plan that a connection cached while the table filled one page would later scan all of
	// it, a thousand times in one settle. The settings are local to the transaction, so they need no session state. It
	// sets plainText as well, and checks the schema.
	//
	// Claims and settles go without the check, because its call costs as much as reading a table. They need a row of
	// the supervisor in the schema. If the check fails, no supervisor can register or beat.
	sqlOnePlan   = sqlCheckSchema + `, ` + onePlanIs
	sqlQuickPlan = `select ` + onePlanIs
	onePlanIs    = `set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true), ` + plainTextIs
	plainTextIs  = `set_config('datestyle', 'ISO', true), set_config('extra_float_digits', '1', true)`

	// sqlPlainText makes the server write times and numbers in the one form that the driver can read. The exec modes
	// exec and simple_protocol get them as text, and the database or the role may have set a DateStyle such as German.
	// A transaction that reads a time or a float begins with sqlPlainText, or with a statement that contains it.
	sqlPlainText = sqlCheckSchema + `, ` + plainTextIs

	// sqlBeginReading begins a transaction that only reads for a caller. Standbys allow it.
	sqlBeginReading = `begin isolation level read committed read only`
)

// dbPool is the application's pool, and drover's own connections that are made with its settings.
type dbPool struct {
	*pgxpool.Pool
	// invalid makes the error of a setting that is wrong. It matches ErrInvalid.
	invalid func(field, reason string, cause error) error
}

// store is drover's access to the database. It is safe for concurrent use.
type store struct {
	pool          *dbPool
	functionsOnly atomic.Bool // this role may call drover_enqueue, but not write to jobs: see enqueue
	wakesBlindly  atomic.Bool // it may not read drover_sleepers, and calls drover_wake each time
}

func newStore(pool *pgxpool.Pool) *store {
	return &store{pool: &dbPool{pool, func(field, reason string, cause error) error {
		return &InvalidError{Field: field, Reason: reason, Err: cause}
	}}}
}

// pipeline has the statements of the queue, in one round trip.
type pipeline struct{ roundTrip }

// batcher is a connection, a pool or a transaction.
type batcher interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// roundTrip is a list of statements for one round trip, each with a function that reads its result.
type roundTrip struct {
	batch pgx.Batch
	reads []func(pgx.BatchResults) error
}

// exec queues a statement and stores how many rows it touched; n may be nil.
func (p *roundTrip) exec(n *int64, sql string, args ...any) {
	p.batch.Queue(sql, args...)
	p.reads = append(p.reads, func(results pgx.BatchResults) error {
		tag, err := results.Exec()
		if n != nil && err == nil {
			*n = tag.RowsAffected()
		}
		return err
	})
}

// query queues a statement and reads its rows.
func (p *roundTrip) query(read func(pgx.Rows) error, sql string, args ...any) {
	p.batch.Queue(sql, args...)
	p.reads = append(p.reads, func(results pgx.BatchResults) error {
		rows, err := results.Query()
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			if err := read(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	})
}

// readAll runs a query on the pool and collects its rows. The query has a read-only transaction of its own, which
// begins with sqlPlainText.
func readAll[T any](ctx context.Context, p *dbPool, row pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	return readWith(ctx, p, sqlPlainText, row, sql, args...)
}

// readOnePlan is readAll for a query that needs sqlOnePlan.
func readOnePlan[T any](ctx context.Context, p *dbPool, row pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	return readWith(ctx, p, sqlOnePlan, row, sql, args...)
}

func readWith[T any](ctx context.Context, p *dbPool, settings string, row pgx.RowToFunc[T], sql string, args ...any) (list []T, err error) {
	conn, err := p.Acquire(ctx)
	if err != nil {
		return nil, classify(err)
	}
	defer conn.Release()
	var trip roundTrip
	trip.beginReading()
	trip.exec(nil, settings)
	trip.batch.Queue(sql, args...)
	trip.reads = append(trip.reads, func(results pgx.BatchResults) error {
		rows, err := results.Query()
		if err == nil {
			list, err = pgx.CollectRows(rows, row)
		}
		return err
	})
	trip.commit()
	return list, trip.send(ctx, conn.Conn())
}

// call runs fn once the results of the statements before it have been read. After a commit, they are committed by then.
func (p *roundTrip) call(fn func()) {
	p.reads = append(p.reads, func(pgx.BatchResults) error { fn(); return nil })
}

func (p *roundTrip) begin()        { p.exec(nil, sqlBegin) }
func (p *roundTrip) beginReading() { p.exec(nil, sqlBeginReading) }
func (p *roundTrip) commit()       { p.exec(nil, sqlCommit) }

// send runs the pipeline. After an error the connection is out of any transaction, or closed. If the server is
// read-only, send closes the connection, even one of the pool's: the pool would go on handing it out.
func (p *roundTrip) send(ctx context.Context, conn *pgx.Conn) error {
	results := conn.SendBatch(ctx, &p.batch)
	var err error
	for _, read := range p.reads {
		if err = read(results); err != nil {
			break
		}
	}
	err = errors.Join(err, ignoreRepeat(err, results.Close()))
	if err == nil {
		return nil
	}
	err = classify(err)
	if errors.Is(err, ErrReadOnly) {
		closeConn(ctx, conn) // the next connection looks the name up again, which may lead to a primary by then
	}
	if !conn.IsClosed() && conn.PgConn().TxStatus() != 'I' {
		if _, rollback := conn.Exec(ctx, "rollback"); rollback != nil {
			closeConn(ctx, conn)
		}
	}
	return err
}

// ignoreRepeat drops the error that closing a failed batch returns a second time.
func ignoreRepeat(first, again error) error {
	if first != nil {
		return nil
	}
	return again
}

// classify wraps database errors in the errors of this package that callers test for.
func classify(err error) error {
	err = pgurl.Explain(err)
	var db interface{ SQLState() string } // of any driver: SQLTx
	if !errors.As(err, &db) {
		return err
	}
	switch code := db.SQLState(); {
	case code == "42883" || code == "42P01" || code == "3F000": // undefined function, undefined table, renamed schema
		return fmt.Errorf("%w (%w)", ErrNotMigrated, err)
	case code == "25006": // read-only
		return fmt.Errorf("%w (%w)", ErrReadOnly, err)
	case code == "0A000" && refusedBegin(err):
		return fmt.Errorf("%w%s (%w)", ErrReadOnly, aStandby, err)
	case code == "26000" || code == "42P05": // a prepared statement is missing, or exists already
		return fmt.Errorf("%w (%w)", ErrPooler, err)
	case code == "DR001":
		return fmt.Errorf("%w (%w)", ErrIDConflict, err)
	case code == "DR002":
		return fmt.Errorf("%w (%w)", ErrState, err)
	case code == "DR003":
		return fmt.Errorf("%w (%w)", ErrNotStored, err)
	}
	return err
}

// aStandby follows the text of ErrReadOnly if the server is known to be a standby.
const aStandby = ": it is a standby, changes go to the primary"

// refusedBegin reports whether a standby has refused "begin read write". Many errors share its SQLSTATE (feature not
// supported), and its words depend on lc_messages. But no other error with this SQLSTATE names the server's function
// that checks a transaction's settings, among the errors that drover's statements can get.
func refusedBegin(err error) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && server.Routine == "call_bool_check_hook"
}

// badData reports whether the data of a statement caused the error, so that the same data will fail again: data
// exceptions, violated constraints, limits, and errors that a trigger of the application raises.
func badData(err error) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && len(server.Code) == 5 && slices.Contains([]string{"22", "23", "44", "54", "P0", "38", "39"}, server.Code[:2])
}

// notApplied reports whether the statement behind err certainly changed nothing: the server refused it and goes on, or
// never got it. A FATAL error proves nothing: the session is gone, and a pooler sends one on behalf of a server that
// may have committed before it went away.
func notApplied(err error) bool {
	var server *pgconn.PgError
	if !errors.As(err, &server) {
		return pgconn.SafeToRetry(err)
	}
	return server.SeverityUnlocalized == "ERROR" && !strings.HasPrefix(server.Code, "57P") && !strings.HasPrefix(server.Code, "08") && server.Code != "40003"
}

const (
	schemaVersion   = 16
	firstMigratable = 10 // an older schema is from before the first release; no migration here continues it
)

// maxSpan is the longest duration read from a column. Two of them still add up.
const maxSpan = 100 * 365 * 24 * time.Hour

// span turns a number from the database into a duration. Every such number goes through it, because a row may hold any
// number. A duration longer than maxSpan becomes maxSpan. A plain conversion would overflow, often to a negative
// duration.
func span[N int64 | float64](n N, unit time.Duration) time.Duration {
	switch limit := N(maxSpan / unit); {
	case n >= limit:
		return maxSpan
	case n <= -limit:
		return -maxSpan
	case n != n: // NaN
		return 0
	}
	whole := time.Duration(n)
	return whole*unit + time.Duration((n-N(whole))*N(unit))
}

func seconds(s float64) time.Duration { return span(s, time.Second) }
func millis(ms int64) time.Duration   { return span(ms, time.Millisecond) }

// sqlCheck uses nothing of drover's own, so it works on an empty database.
const sqlCheck = `
select pg_backend_pid(), current_setting('server_version_num')::int, pg_is_in_recovery(), to_regprocedure('drover_schema_version()') is not null,
	format('looked in schema %s of database %s, search_path %s%s', coalesce(current_schema(), '(none)'), current_database(), current_setting('search_path'),
		(select '; there is one in ' || string_agg('schema ' || n.nspname || case when has_schema_privilege(n.oid, 'usage') then '' else ', which this role may not use' end, ', ')
		from (select n.oid, n.nspname from pg_proc p join pg_namespace n on n.oid = p.pronamespace where p.proname = 'drover_schema_version' order by 2 limit 5) n))`

const sqlSchemaVersion = `select drover_schema_version()`

// sqlOtherRelations checks the schema. It lists the relations that the session finds in another schema than drover's
// functions, such as an application's own table jobs. Its list of names has all of drover's relations.
const sqlOtherRelations = `
select drover_check_schema()::text, current_setting('session_replication_role') = 'replica', n.nspname::text, coalesce((
	select string_agg(format('%s.%I', c.relnamespace::regnamespace, c.relname), ', ' order by c.relname)
	from unnest('{jobs,queues,drover_kinds,drover_supervisors,drover_sleepers,drover_set_aside,discarded_jobs,discarded_summary,job_counts,
		drover_redrives,drover_redrive_queues,drover_ended_supervisors,drover_solo,drover_failure_groups,drover_failure_tallies,drover_builds,
		failures,drover_budgets,drover_budget_slots,retry_budgets,jobs_archive}'::text[]) as name
	join pg_class c on c.oid = to_regclass(name) where c.relnamespace <> n.oid), '')
from pg_proc p join pg_namespace n on n.oid = p.pronamespace where p.oid = to_regproc('drover_schema_version')`

// sqlWhichSchema returns the schema in which the session finds drover.
const sqlWhichSchema = `
select coalesce((select n.nspname from pg_proc p join pg_namespace n on n.oid = p.pronamespace where p.oid = to_regprocedure('drover_schema_version()')), '')::text`

// check uses a connection of drover's own, so it meets the same errors as a supervisor would. The pool's connections
// must lead to the same schema, or jobs would be enqueued in one and claimed from another.
func (p *dbPool) check(ctx context.Context) error {
	link := link{pool: p}
	defer link.close(ctx)
	if err := p.checkOn(ctx, &link); err != nil {
		return err
	}
	var ours, pools string
	err := link.conn.QueryRow(ctx, sqlWhichSchema).Scan(&ours)
	if err == nil {
		err = p.QueryRow(ctx, sqlWhichSchema).Scan(&pools)
	}
	switch {
	case err != nil:
		return fmt.Errorf("ask where drover is: %w", classify(err))
	case ours != pools:
		return p.invalid("pool", fmt.Sprintf("its connections find drover in schema %q, a supervisor's own, made with its settings and hooks, in %q: "+
			"set search_path in the connection string, or for the role", pools, ours), nil)
	}
	return nil
}

// checkOn checks the server that the link leads to.
func (p *dbPool) checkOn(ctx context.Context, link *link) error {
	var server, schema int
	var standby, migrated, direct bool
	var where string
	conn, err := link.get(ctx)
	if err == nil {
		var pid uint32
		err = conn.QueryRow(ctx, sqlCheck).Scan(&pid, &server, &standby, &migrated, &where)
		direct = pid == conn.PgConn().PID()
	}
	if err == nil && !direct {
		err = p.checkPooler(ctx)
	}
	if err != nil {
		return fmt.Errorf("ask the server what it is: %w", classify(err))
	}
	switch {
	case server < 150000:
		return fmt.Errorf("%w, this is %d.%d", ErrServerTooOld, server/10000, server%10000)
	case !migrated:
		return fmt.Errorf("%w (%s)", ErrNotMigrated, where)
	}
	if err := conn.QueryRow(ctx, sqlSchemaVersion).Scan(&schema); err != nil {
		return fmt.Errorf("ask for the schema's version: %w", classify(err))
	}
	if schema < firstMigratable {
		return fmt.Errorf("%w (version %d is from before the first release: take it down with the files that made it, or drop its schema, then migrate; %s)", ErrNotMigrated, schema, where)
	}
	if schema < schemaVersion {
		return fmt.Errorf("%w (version %d, this library needs %d; %s)", ErrNotMigrated, schema, schemaVersion, where)
	}
	if err := p.checkRelations(ctx, conn); err != nil || !standby {
		return err
	}
	return fmt.Errorf("%w%s", ErrReadOnly, aStandby) // last: a caller who only reads can ignore it
}

// checkRelations checks that the session's search_path finds drover's tables in the schema where drover's functions
// work, and that drover's triggers fire.
func (p *dbPool) checkRelations(ctx context.Context, conn *pgx.Conn) error {
	var home, others string
	var replica bool
	if err := conn.QueryRow(ctx, sqlOtherRelations).Scan(nil, &replica, &home, &others); err != nil {
		return fmt.Errorf("look for drover's tables: %w", classify(err))
	}
	if replica {
		return p.invalid("pool", "its sessions have session_replication_role = replica, in which no trigger fires: follow-ups would be lost", nil)
	}
	if others != "" {
		return p.invalid("pool", fmt.Sprintf("its search_path finds %s in front of drover's in schema %q: "+
			"give drover a pool with the search_path %[2]q alone, or rename yours", others, home), nil)
	}
	return nil
}

// checkPooler tries on two connections of its own whether a pooler in front of the server breaks the driver's way of
// sending statements. An idle pooler gives both connections the session that was used last. A busy pooler gives the
// first connection another session for its second transaction.
func (p *dbPool) checkPooler(ctx context.Context) error {
	mode := p.Config().ConnConfig.DefaultQueryExecMode
	if mode != pgx.QueryExecModeCacheStatement && mode != pgx.QueryExecModeDescribeExec {
		return nil
	}
	one, two := link{pool: p}, link{pool: p}
	defer one.close(ctx)
	defer two.close(ctx)
	first, err := one.get(ctx)
	if err != nil {
		return err
	}
	second, err := two.get(ctx)
	if err != nil {
		return err
	}
	if mode == pgx.QueryExecModeCacheStatement {
		return prepareOnBoth(ctx, first.PgConn(), second.PgConn())
	}
	var pids [3]int // DescribeExec sends a statement in one transaction and its values in the next
	for i, conn := range []*pgx.Conn{first, second, first} {
		if err := conn.QueryRow(ctx, `select pg_backend_pid()`, pgx.QueryExecModeSimpleProtocol).Scan(&pids[i]); err != nil {
			return err
		}
	}
	if pids[0] == pids[1] || pids[0] != pids[2] {
		return ErrPooler
	}
	return nil
}

// prepareOnBoth fails unless each connection has its prepared statements to itself. Some poolers ensure that.
func prepareOnBoth(ctx context.Context, first, second *pgconn.PgConn) error {
	name := "drover_" + ulid.Make().String()
	if _, err := first.Prepare(ctx, name, `select 1`, nil); err != nil {
		return err
	}
	result := first.ExecPrepared(ctx, name, nil, nil, nil).Read()
	if _, err := second.Prepare(ctx, name, `select 1`, nil); result.Err == nil {
		result.Err = err
	}
	return errors.Join(result.Err, first.Deallocate(ctx, name)) // a session that is not ours alone must not keep it
}
