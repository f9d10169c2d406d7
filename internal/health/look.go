package health

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// The SQL of a look at the health. It needs only select on drover's tables; parts that the role may not see are left out
// and listed in NotSeen. Each part has its own transaction and time limit, so that one failure does not affect the
// others, and none holds a snapshot for long.

// sqlHealthServer finds the schema of the table jobs for the other statements. An application's tables may share it.
const sqlHealthServer = `
select now(), quote_ident(n.nspname), quote_ident(current_user), current_setting('autovacuum')::bool and current_setting('track_counts')::bool
from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = 'jobs'::regclass`

// sqlHealthHolders lists what keeps dead rows in this database from being removed, the oldest first. A transaction's xid
// and snapshot decide what it could still see. In other databases a snapshot does not count, but an xid does: every
// snapshot taken here while that transaction is open reaches back to it. Among equals, the owner of the xid comes first.
//
// Left out: vacuums, which do not hold each other back; claims that wait for their turn, which is normal and ends; slots
// that the server has given up; and parallel workers, which hold what their leader does. If the role may not see a
// session's state, it cannot know whether there is a query to cancel, so the remedy is to terminate the session. A
// standby holds back through its slot, if it has one, else through its sender. Only the catalogs wait for a catalog_xmin.
const sqlHealthHolders = `
with holders(kind, pid, name, database, application, username, state, transactions, own, since, catalogs_only, query, stop) as (
	select 'session', pid, '', nullif(datname, current_database()), application_name, usename::text, coalesce(state, backend_type),
		case when datname = current_database() then greatest(age(backend_xid), age(backend_xmin)) else age(backend_xid) end,
		coalesce(age(backend_xid) >= age(backend_xmin), backend_xid is not null), xact_start, false, query,
		format(case when state is null or state like 'idle%' then 'select pg_terminate_backend(%s);' else 'select pg_cancel_backend(%s);' end, pid)
	from pg_stat_activity a
	where (datname = current_database() and num_nonnulls(backend_xid, backend_xmin) > 0 or backend_xid is not null) and pid <> pg_backend_pid() and leader_pid is null
		and (backend_type is distinct from 'walsender' or xact_start is not null)
		and not exists (select from pg_stat_progress_vacuum v where v.pid = a.pid)
		and (wait_event_type = 'Lock' and wait_event = 'advisory' and query like 'select drover_take_turn(%') is not true
	union all
	select 'prepared', null, gid, nullif(database, current_database()), '', owner::text, 'prepared', age(transaction), true, prepared, false, '',
		format('rollback prepared %L;', gid) || case when database = current_database() then '' else format(' -- in database %I', database) end
	from pg_prepared_xacts
	union all
	select 'slot', s.active_pid, s.slot_name::text, null, r.application_name, r.usename::text, case when s.active then 'active' else 'inactive' end,
		age(coalesce(s.xmin, s.catalog_xmin)), false, null, s.xmin is null, '',
		case when not s.active then format('select pg_drop_replication_slot(%L);', s.slot_name) when s.slot_type = 'logical' then format('select pg_terminate_backend(%s);', s.active_pid)
			else 'alter system set hot_standby_feedback = off; -- on the standby, then reload it' end
	from pg_replication_slots s left join pg_stat_replication r on r.pid = s.active_pid
	where num_nonnulls(s.xmin, s.catalog_xmin) > 0 and s.wal_status is distinct from 'lost'
	union all
	select 'standby', r.pid, '', null, r.application_name, r.usename::text, r.state, age(r.backend_xmin), false, null, false, '',
		'alter system set hot_standby_feedback = off; -- on the standby, then reload it'
	from pg_stat_replication r join pg_stat_activity a on a.pid = r.pid
	where r.backend_xmin is not null and a.datname is null
)
select kind, coalesce(pid, 0), name, coalesce(database, ''), coalesce(application, ''), coalesce(username, ''), coalesce(state, ''), transactions::bigint, since, catalogs_only,
	left(regexp_replace(coalesce(query, ''), '\s+', ' ', 'g'), 200), stop
from holders order by catalogs_only, transactions desc, own desc, since, kind, pid limit 20`

// sqlHealthBlockers finds the sessions that block the ten which have waited longest for a lock on the tables $2 of schema
// $1, or on one of their rows: a session that waits for another's transaction has locked the row's place first. It follows
// the waits to sessions that wait for none, each pair once, because pg_blocking_pids stops the lock manager for a moment.
// A prepared transaction has no pid. Turns of claims are advisory locks and not included.
const sqlHealthBlockers = `
with recursive tables as (
	select oid from pg_class where relnamespace = $1::regnamespace and relkind = 'r' and relname = any($2::text[])
), drovers as (
	select oid from tables union all select indexrelid from pg_index where indrelid in (select oid from tables)
), waiting as (
	select l.pid, l.waitstart from pg_locks l
	where not l.granted and (l.database = (select oid from pg_database where datname = current_database()) and l.relation in (select oid from drovers)
		or l.locktype = 'transactionid' and exists (
			select from pg_locks t where t.pid = l.pid and t.granted and t.locktype = 'tuple' and t.relation in (select oid from tables)
				and t.database = (select oid from pg_database where datname = current_database())))
	order by l.waitstart, l.pid limit 10
), pairs(pid, blocker) as (
	select w.pid, b.pid from waiting w cross join lateral unnest(pg_blocking_pids(w.pid)) as b(pid)
	union
	select p.blocker, b.pid from pairs p cross join lateral unnest(pg_blocking_pids(p.blocker)) as b(pid)
), chains(pid, blocker) as (
	select w.pid, p.blocker from waiting w join pairs p using (pid)
	union
	select c.pid, p.blocker from chains c join pairs p on p.pid = c.blocker
)
select coalesce(a.pid, 0), coalesce(a.application_name, ''), coalesce(a.usename::text, ''), coalesce(a.state, ''), count(*), min(w.waitstart),
	case when c.blocker = 0 then 'select gid, owner, prepared from pg_prepared_xacts where database = current_database() order by prepared;' else format('select pg_terminate_backend(%s);', c.blocker) end
from chains c join waiting w using (pid) left join pg_stat_activity a on a.pid = c.blocker
where c.blocker not in (select pid from pairs) and w.waitstart is not null
group by c.blocker, a.pid, a.application_name, a.usename, a.state order by min(w.waitstart), c.blocker`

// sqlHealthTables reads what the server counts of the tables of $1, a schema. It estimates what their rows need by the
// widths that ANALYZE found, a row's overhead of 28 bytes and the fillfactor; null before the first ANALYZE. An index that
// is being built is not valid yet, and is left out.
const sqlHealthTables = `
with tables as (
	select c.oid, c.relname::text as name, c.reltoastrelid, greatest(c.reltuples, 0) as reltuples, t.n,
		coalesce((select jsonb_object_agg(option_name, option_value) from pg_options_to_table(c.reloptions)), '{}') as options
	from unnest($2::text[]) with ordinality as t(name, n)
	join pg_class c on c.relname = t.name and c.relnamespace = $1::regnamespace and c.relkind = 'r'
)
select t.name, s.n_live_tup, s.n_dead_tup,
	round(coalesce(t.options->>'autovacuum_vacuum_threshold', current_setting('autovacuum_vacuum_threshold'))::float8
		+ coalesce(t.options->>'autovacuum_vacuum_scale_factor', current_setting('autovacuum_vacuum_scale_factor'))::float8 * t.reltuples)::bigint,
	coalesce((t.options->>'autovacuum_enabled')::bool, true),
	exists (select from pg_stat_progress_vacuum v where v.relid = t.oid),
	greatest(s.last_vacuum, s.last_autovacuum),
	pg_relation_size(t.oid), pg_indexes_size(t.oid), coalesce(pg_total_relation_size(nullif(t.reltoastrelid, 0)), 0),
	(select (s.n_live_tup * (28 + sum((1 - p.null_frac) * p.avg_width)) / (coalesce(t.options->>'fillfactor', '100')::int / 100.0))::bigint
		from pg_stats p where p.schemaname = s.schemaname and p.tablename = s.relname),
	array(select quote_ident(c.relname) from pg_index i join pg_class c on c.oid = i.indexrelid
		where i.indrelid = t.oid and not i.indisvalid and not exists (
			select from pg_stat_progress_create_index p where p.datname = current_database() and coalesce(p.relid, t.oid) = t.oid)
		order by 1)
from tables t join pg_stat_user_tables s on s.relid = t.oid
order by t.n`

// tables are the tables that drover makes.
func tables() []string {
	return []string{
		"jobs", "drover_supervisors", "drover_sleepers", "queues", "drover_kinds", "drover_builds", "drover_solo", "drover_ended_supervisors", "drover_redrives", "drover_redrive_queues",
		"drover_failure_groups", "drover_failure_tallies", "drover_budgets", "drover_budget_slots", "jobs_archive", "drover_set_aside", "drover_periodic", "drover_limits",
	}
}

// One row a supervisor. Silent: no beat for a lease, and nobody has taken its jobs yet.
const sqlHealthSupervisors = `
select count(*) filter (where state = 'alive'), count(*) filter (where state = 'draining'), count(*) filter (where state = 'silent'), count(*) filter (where state = 'lost')
from (
	select case when lost_at is not null then 'lost' when beat_at < now() - least(lease_ms, 1000000000000) * interval '1 ms' then 'silent' when draining then 'draining' else 'alive' end as state
	from drover_supervisors
) s`

// sqlHealthProbe looks for the first due job of every lane of every queue that was ever served, beyond the floor of $1
// seconds ago (null: none), as a claim does, by jobs_claim_idx. The rows it reads before it finds one are dead or running.
const sqlHealthProbe = `
explain (analyze, buffers, timing off, format json)
select j.id from queues q
cross join generate_series(0, 30, 10) as t(tier)
cross join generate_series(1, 9) as p(n)
cross join lateral (
	select id from jobs
	where finalized_at is null and state <> 'running' and queue = q.name and lane = (t.tier + p.n)::smallint
		and scheduled_at <= now() and (scheduled_at, id) > (coalesce(now() - $1::float8 * interval '1 s', '-infinity'), '')
	order by scheduled_at, id limit 1
) j`

// sqlHealthQueues counts due jobs, and finds the oldest, for at most 100 queues with unfinished jobs. It reads the queues
// and the due jobs of each lane from jobs_claim_idx, and counts at most $1 in each lane.
const sqlHealthQueues = `
with recursive held(name) as (
	select min(queue) from jobs where finalized_at is null
	union all
	select (select min(j.queue) from jobs j where j.finalized_at is null and j.queue > h.name) from held h where h.name is not null
), named as (
	select name from held where name is not null limit 100
)
select d.name, d.n, case when d.oldest is not null then greatest(d.oldest, '0001-01-02+00') end,
	(select count(*) from drover_supervisors s where d.name = any(s.queues) and s.lost_at is null and not s.draining and s.beat_at >= now() - least(s.lease_ms, 1000000000000) * interval '1 ms'),
	coalesce((select l.updated_by from drover_limits l where l.scope in ('all', 'queue:' || d.name, 'kind:' || d.kind) and l.held_until > now() order by l.scope desc limit 1), '')
from (
	select q.name, sum(due.n)::bigint as n, min(due.oldest) as oldest, (array_agg(due.kind order by due.oldest))[1] as kind
	from named q
	cross join generate_series(0, 30, 10) as t(tier)
	cross join generate_series(1, 9) as p(n)
	cross join lateral (
		select count(*) as n, min(scheduled_at) as oldest, max(kind) filter (where place = 1) as kind from (
			select scheduled_at, kind, row_number() over (order by scheduled_at, id) as place from jobs
			where finalized_at is null and state <> 'running' and queue = q.name and lane = (t.tier + p.n)::smallint and scheduled_at <= now()
			order by scheduled_at, id limit $1
		) j
	) due
	group by q.name
) d
order by 3 nulls last, 1`

// sqlHealthIndex measures jobs_claim_idx. It counts its live rows up to $1. If there are more, it takes the number from
// the last ANALYZE, and returns separately how many rows the table may have gained since.
const sqlHealthIndex = `
select pg_relation_size(c.oid), case when live.n < $1 then live.n else greatest(live.n, c.reltuples::bigint) end,
	case when live.n < $1 then 0 else greatest(0, pg_stat_get_live_tuples('jobs'::regclass) -
		(select greatest(reltuples, 0)::bigint from pg_class where oid = 'jobs'::regclass)) end
from pg_class c, (select count(*) as n from (select from jobs where finalized_at is null limit $1) j) live
where c.oid = (select i.indexrelid from pg_index i join pg_class x on x.oid = i.indexrelid where i.indrelid = 'jobs'::regclass and x.relname = 'jobs_claim_idx')`

// sqlHealthSetAside reads the whole table, which is small.
const sqlHealthSetAside = `
select count(*) over (), path, job, error, code, tries, least(greatest(first_at, '0001-01-02+00'), '9999-12-30+00'), least(greatest(retry_at, '0001-01-02+00'), '9999-12-30+00')
from drover_set_aside order by first_at, path, job limit 10`

// sqlHealthRefused reads the dead letters of a day by jobs_discarded_idx, $1 at most.
const sqlHealthRefused = `
select count(*) filter (where discard_reason = 'refused') from (
	select discard_reason from jobs where discard_reason is not null and finalized_at > now() - interval '1 day'
	order by finalized_at desc, id desc limit $1
) j`

// sqlHealthPeriodic lists schedules that have not ticked although they were due, and those whose last tick failed. What was
// declared in code and is not any more does not count.
const sqlHealthPeriodic = `
select p.name, case when p.next_at < now() - interval '1 minute' then least(greatest(p.next_at, '0001-01-02+00'), '9999-12-30+00') end,
	case when p.problem_at >= coalesce(p.last_at, '-infinity') then p.problem else '' end
from drover_periodic p
where (p.next_at < now() - interval '1 minute' or p.problem_at >= coalesce(p.last_at, '-infinity'))
	and (p.declared_by is null or exists (select from drover_supervisors s where s.id = any(p.declared_by) and s.lost_at is null))
order by p.next_at, p.name limit 10`

// sqlHealthClock finds out whether the server's clock has gone back, and counts the jobs that wait because of it, at most
// $1 in each lane.
const sqlHealthClock = `select latest, since, waiting from drover_clock($1)`

// sqlOnePlan keeps the planner from reading whole tables, whatever its statistics say. It also makes the server write
// times and numbers in a form that the driver can read in every exec mode.
const sqlOnePlan = `select set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true),
	set_config('datestyle', 'ISO', true), set_config('extra_float_digits', '1', true), set_config('statement_timeout', $1, true)`

const (
	timeout   = 2 * time.Second // of each part
	laneCount = 1000            // due jobs counted of a lane
	floorAge  = time.Second     // how far behind the server's clock a floor of an idle lane stays
)

// Effort is how much a look may read.
type Effort int

// A quick look is for metrics, which ask again and again. It looks for refused jobs only among the newest dead letters, and
// counts fewer rows of the claim index before it relies on the last ANALYZE.
const (
	Thorough Effort = 100_000
	Quick    Effort = 500
)

// Look gathers the facts and draws the conclusions. It changes nothing. It leaves out parts that take too long or that the
// role may not see, and lists them in NotSeen. It returns the database's errors as they are.
func Look(ctx context.Context, conn *pgx.Conn, effort Effort) (*Report, error) {
	h := &Report{Holders: []Holder{}, Tables: []Table{}, Claim: Claim{Queues: []Queue{}}, SetAside: SetAside{First: []SetAsideJob{}}, Schedules: []Schedule{}, NotSeen: []NotSeen{}}
	if err := h.gather(ctx, conn, effort); err != nil {
		return nil, err
	}
	h.judge()
	return h, nil
}

func (h *Report) gather(ctx context.Context, conn *pgx.Conn, effort Effort) error {
	var failed error
	look := func(part string, read func(pgx.Rows) error, sql string, args ...any) {
		if failed != nil {
			return
		}
		err := inTime(ctx, conn, read, sql, args...)
		var refused *pgconn.PgError
		switch {
		case !errors.As(err, &refused), h.schema == "": // nil, or nothing to go on with
			failed = err
		case refused.Code == "42501":
			h.NotSeen = append(h.NotSeen, NotSeen{Part: part, Why: refused.Message})
		case refused.Code == "57014" && ctx.Err() == nil:
			h.NotSeen = append(h.NotSeen, NotSeen{Part: part, Why: fmt.Sprintf("it took longer than %v", timeout), TimedOut: true})
		case refused.Code[:2] == "22" || refused.Code[:2] == "54" || refused.Code[:2] == "XX":
			h.NotSeen = append(h.NotSeen, NotSeen{Part: part, Why: refused.Message, Failed: true})
		default:
			failed = err
		}
	}
	n, c := &h.Supervisors, &h.Claim
	look("server", func(rows pgx.Rows) error { return rows.Scan(&h.At, &h.schema, &h.role, &h.Autovacuum) }, sqlHealthServer)
	look("holders", h.readHolder, sqlHealthHolders)
	look("locks", h.readBlocker, sqlHealthBlockers, h.schema, tables())
	look("tables", h.readTable, sqlHealthTables, h.schema, tables())
	look("supervisors", func(rows pgx.Rows) error { return rows.Scan(&n.Alive, &n.Draining, &n.Silent, &n.Lost) }, sqlHealthSupervisors)
	// The probes come before other reads of the index: a scan marks entries that are dead for everybody, and later scans
	// skip those.
	look("claim_floor", readProbe(&c.FloorBuffers, nil), sqlHealthProbe, floorAge.Seconds())
	look("claim_full", readProbe(&c.FullBuffers, &c.FullMS), sqlHealthProbe, nil)
	look("queues", h.readQueue, sqlHealthQueues, laneCount)
	look("claim_index", func(rows pgx.Rows) error { return rows.Scan(&c.IndexBytes, &c.Unfinished, &c.unseen) }, sqlHealthIndex, effort)
	look("set_aside", h.readSetAside, sqlHealthSetAside)
	look("refused", func(rows pgx.Rows) error { return rows.Scan(&h.SetAside.Refused) }, sqlHealthRefused, effort)
	look("periodic", func(rows pgx.Rows) error {
		var p Schedule
		err := rows.Scan(&p.Name, &p.Late, &p.Problem)
		h.Schedules = append(h.Schedules, p)
		return err
	}, sqlHealthPeriodic)
	look("clock", func(rows pgx.Rows) error { return rows.Scan(&h.Clock.Latest, &h.Clock.Since, &h.Clock.Waiting) }, sqlHealthClock, laneCount)
	return failed
}

// inTime runs a query in a transaction of its own, with the time limit of a part.
func inTime(ctx context.Context, conn *pgx.Conn, read func(pgx.Rows) error, sql string, args ...any) error {
	var limit, query pgx.Batch // apart: a statement that is being prepared waits for locks already
	limit.Queue(`begin isolation level read committed read write`)
	limit.Queue(sqlOnePlan, strconv.FormatInt(timeout.Milliseconds(), 10))
	query.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		defer rows.Close()
		for rows.Next() {
			if err := read(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	})
	query.Queue(`commit`)
	err := conn.SendBatch(ctx, &limit).Close()
	if err == nil {
		err = conn.SendBatch(ctx, &query).Close()
	}
	if err != nil && !conn.IsClosed() && conn.PgConn().TxStatus() != 'I' {
		if _, rollback := conn.Exec(ctx, "rollback"); rollback != nil {
			_ = conn.Close(ctx) // with the transaction; err says what happened
		}
	}
	return err
}

func (h *Report) readHolder(rows pgx.Rows) error {
	var o Holder
	err := rows.Scan(&o.Kind, &o.PID, &o.Name, &o.Database, &o.Application, &o.User, &o.State, &o.Transactions, &o.Since, &o.CatalogsOnly, &o.Query, &o.Do)
	h.Holders = append(h.Holders, o)
	return err
}

func (h *Report) readBlocker(rows pgx.Rows) error {
	b := blocker{holder: Holder{Kind: "session"}}
	o := &b.holder
	err := rows.Scan(&o.PID, &o.Application, &o.User, &o.State, &b.sessions, &b.since, &o.Do)
	if o.PID == 0 {
		o.Kind, o.Name = "prepared", "(of pg_prepared_xacts)"
	}
	h.blockers = append(h.blockers, b)
	return err
}

func (h *Report) readTable(rows pgx.Rows) error {
	var t Table
	err := rows.Scan(&t.Name, &t.LiveRows, &t.DeadRows, &t.VacuumThreshold, &t.Autovacuum, &t.Vacuuming, &t.VacuumedAt, &t.TableBytes, &t.IndexBytes, &t.ToastBytes, &t.NeededBytes, &t.InvalidIndexes)
	h.Tables = append(h.Tables, t)
	return err
}

func (h *Report) readQueue(rows pgx.Rows) error {
	var q Queue
	err := rows.Scan(&q.Queue, &q.Due, &q.OldestDue, &q.Supervisors, &q.PausedBy)
	h.Claim.Queues = append(h.Claim.Queues, q)
	return err
}

func (h *Report) readSetAside(rows pgx.Rows) error {
	var r SetAsideJob
	err := rows.Scan(&h.SetAside.Rows, &r.Path, &r.Job, &r.Error, &r.Code, &r.Tries, &r.FirstAt, &r.RetryAt)
	h.SetAside.First = append(h.SetAside.First, r)
	return err
}

// readProbe reads a plan's cost; ms may be nil.
func readProbe(buffers *int64, ms *float64) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		var doc []byte
		if err := rows.Scan(&doc); err != nil {
			return err
		}
		var plans []struct {
			Plan struct {
				Hit  int64 `json:"Shared Hit Blocks"`
				Read int64 `json:"Shared Read Blocks"`
			}
			Time float64 `json:"Execution Time"`
		}
		if err := json.Unmarshal(doc, &plans); err != nil || len(plans) != 1 {
			return fmt.Errorf("a plan that cannot be read: %s: %w", doc, err)
		}
		*buffers = plans[0].Plan.Hit + plans[0].Plan.Read
		if ms != nil {
			*ms = plans[0].Time
		}
		return nil
	}
}
