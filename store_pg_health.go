package drover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/drover-queue/drover/internal/floors"
	"github.com/drover-queue/drover/internal/pg"
)

// What a look at the health reads. Nothing here needs more than select on drover's tables; what a role may not see is
// left out and told of. Each part has a transaction and a time limit of its own, so that one that fails leaves the
// others, and none holds a snapshot for long.

// sqlHealthServer finds jobs, whose schema the others go by: an application's tables may share it.
const sqlHealthServer = `
select now(), quote_ident(n.nspname), quote_ident(current_user), current_setting('autovacuum')::bool and current_setting('track_counts')::bool, pg_is_in_recovery()
from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = 'jobs'::regclass`

// sqlHealthHolders lists what the removal of dead rows in this database waits for, the oldest first: what a transaction
// could still see is what its xid and its snapshot say. In other databases a snapshot does not count, but an xid does: every
// snapshot taken here while it is in progress reaches back to it. Of those that hold back equally the one whose xid it is
// comes first. Not among it: vacuums, which wait for each other in nothing, claims that wait for their turn, which is normal
// and has an end, and slots that the server has given up. A parallel worker holds what its leader does. Of a session whose
// state the role may not see nobody knows whether it runs a query to cancel: it is terminated. A standby holds by its slot, if it has one, else by its sender.
// Only the catalogs wait for a catalog_xmin.
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

// sqlHealthBlockers finds who holds up the ten sessions that have waited longest for a lock on the tables $2 of schema $1,
// or on a row of them: who waits for another's transaction has locked the row's place first. It follows whom they wait for
// to those who wait for nobody, each pair once: pg_blocking_pids stops the lock manager for a moment. A prepared
// transaction has no pid. A turn is an advisory lock, and no matter of this.
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
// widths that ANALYZE found, a row's overhead of 28 bytes and the fillfactor; null where nothing was analyzed. An index
// that is being built is not valid yet either.
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

// healthTables are the tables that drover makes.
func healthTables() []string {
	return []string{
		"jobs", "drover_supervisors", "drover_sleepers", "queues", "drover_kinds", "drover_builds", "drover_solo", "drover_ended_supervisors", "drover_redrives", "drover_redrive_queues",
		"drover_failure_groups", "drover_failure_tallies", "drover_budgets", "drover_budget_slots", "jobs_archive", "drover_set_aside",
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
// seconds ago (null: none), as a claim does, by jobs_claim_idx. What it reads before it finds one is dead or runs.
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

// sqlHealthQueues tells of at most 100 queues with unfinished jobs how many are due, and since when. jobs_claim_idx gives
// the queues and the due jobs of each lane, of which it counts $1 at most.
const sqlHealthQueues = `
with recursive held(name) as (
	select min(queue) from jobs where finalized_at is null
	union all
	select (select min(j.queue) from jobs j where j.finalized_at is null and j.queue > h.name) from held h where h.name is not null
), named as (
	select name from held where name is not null limit 100
)
select q.name, sum(due.n)::bigint, case when min(due.oldest) is not null then greatest(min(due.oldest), '0001-01-02+00') end,
	(select count(*) from drover_supervisors s where q.name = any(s.queues) and s.lost_at is null and not s.draining and s.beat_at >= now() - least(s.lease_ms, 1000000000000) * interval '1 ms')
from named q
cross join generate_series(0, 30, 10) as t(tier)
cross join generate_series(1, 9) as p(n)
cross join lateral (
	select count(*) as n, min(scheduled_at) as oldest from (
		select scheduled_at from jobs
		where finalized_at is null and state <> 'running' and queue = q.name and lane = (t.tier + p.n)::smallint and scheduled_at <= now()
		order by scheduled_at, id limit $1
	) j
) due
group by q.name order by 3 nulls last, 1`

// sqlHealthIndex measures jobs_claim_idx. It counts its live rows up to $1, and beyond goes by the last ANALYZE, to which
// may come what the table has grown by since.
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

// sqlClock tells whether the server's clock has gone back, and counts at most $1 jobs a lane that wait because of it.
const sqlClock = `select latest, since, waiting from drover_clock($1)`

// onStandby is why a part is not seen that only the primary knows.
const onStandby = "this server is a standby"

const (
	healthDeadCount = 100_000         // dead letters looked through for refused ones
	healthTimeout   = 2 * time.Second // of each part
	healthLaneCount = 1000            // due jobs counted of a lane
	healthLiveCount = 100_000         // rows counted of the claim index
)

// health gathers the facts. What takes too long or may not be seen is left out and told in NotSeen.
func (s *desk) health(ctx context.Context) (*Health, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, pg.Classify(err)
	}
	defer conn.Release()
	h := &Health{Holders: []Holder{}, Tables: []TableHealth{}, Claim: ClaimHealth{Queues: []QueueHealth{}}, SetAside: SetAsideHealth{First: []SetAside{}}, NotSeen: []NotSeen{}}
	var failed error
	look := func(part string, read func(pgx.Rows) error, sql string, args ...any) {
		if failed != nil {
			return
		}
		if h.standby && slices.Contains([]string{"holders", "tables", "claim_floor", "claim_full", "claim_index", "clock"}, part) {
			h.NotSeen = append(h.NotSeen, NotSeen{Part: part, Why: onStandby})
			return
		}
		// In a round trip of its own: a statement that is being prepared waits for locks already.
		var limit, query pg.Pipeline
		limit.BeginReading()
		limit.Exec(nil, pg.OnePlan)
		limit.Exec(nil, `select set_config('statement_timeout', $1, true)`, fmt.Sprint(healthTimeout.Milliseconds()))
		query.Query(read, sql, args...)
		query.Commit()
		err := limit.Send(ctx, conn.Conn())
		if err == nil {
			err = query.Send(ctx, conn.Conn())
		}
		var refused *pgconn.PgError
		switch {
		case !errors.As(err, &refused), h.schema == "": // nil, or nothing to go on with
			failed = err
		case refused.Code == "42501":
			h.NotSeen = append(h.NotSeen, NotSeen{Part: part, Why: refused.Message})
		case refused.Code == "57014" && ctx.Err() == nil:
			h.NotSeen = append(h.NotSeen, NotSeen{Part: part, Why: fmt.Sprintf("it took longer than %v", healthTimeout), TimedOut: true})
		case refused.Code[:2] == "22" || refused.Code[:2] == "54" || refused.Code[:2] == "XX":
			h.NotSeen = append(h.NotSeen, NotSeen{Part: part, Why: refused.Message, Failed: true})
		default:
			failed = err
		}
	}
	n, c := &h.Supervisors, &h.Claim
	look("server", func(rows pgx.Rows) error { return rows.Scan(&h.At, &h.schema, &h.role, &h.Autovacuum, &h.standby) }, sqlHealthServer)
	look("holders", h.readHolder, sqlHealthHolders)
	look("locks", h.readBlocker, sqlHealthBlockers, h.schema, healthTables())
	look("tables", h.readTable, sqlHealthTables, h.schema, healthTables())
	look("supervisors", func(rows pgx.Rows) error { return rows.Scan(&n.Alive, &n.Draining, &n.Silent, &n.Lost) }, sqlHealthSupervisors)
	// The probes come first: a look from the beginning clears away what is dead to all, and would hide it from them.
	look("claim_floor", readProbe(&c.FloorBuffers, nil), sqlHealthProbe, floors.SettleTime.Seconds())
	look("claim_full", readProbe(&c.FullBuffers, &c.FullMS), sqlHealthProbe, nil)
	look("queues", h.readQueue, sqlHealthQueues, healthLaneCount)
	look("claim_index", func(rows pgx.Rows) error { return rows.Scan(&c.IndexBytes, &c.Unfinished, &c.unseen) }, sqlHealthIndex, healthLiveCount)
	look("set_aside", h.readSetAside, sqlHealthSetAside)
	look("refused", func(rows pgx.Rows) error { return rows.Scan(&h.SetAside.Refused) }, sqlHealthRefused, healthDeadCount)
	look("clock", func(rows pgx.Rows) error { return rows.Scan(&h.Clock.Latest, &h.Clock.Since, &h.Clock.Waiting) }, sqlClock, healthLaneCount)
	if failed != nil {
		return nil, failed
	}
	return h, nil
}

func (h *Health) readHolder(rows pgx.Rows) error {
	var o Holder
	err := rows.Scan(&o.Kind, &o.PID, &o.Name, &o.Database, &o.Application, &o.User, &o.State, &o.Transactions, &o.Since, &o.CatalogsOnly, &o.Query, &o.Do)
	h.Holders = append(h.Holders, o)
	return err
}

func (h *Health) readBlocker(rows pgx.Rows) error {
	b := blocker{holder: Holder{Kind: "session"}}
	o := &b.holder
	err := rows.Scan(&o.PID, &o.Application, &o.User, &o.State, &b.sessions, &b.since, &o.Do)
	if o.PID == 0 {
		o.Kind, o.Name = "prepared", "(of pg_prepared_xacts)"
	}
	h.blockers = append(h.blockers, b)
	return err
}

func (h *Health) readTable(rows pgx.Rows) error {
	var t TableHealth
	err := rows.Scan(&t.Name, &t.LiveRows, &t.DeadRows, &t.VacuumThreshold, &t.Autovacuum, &t.Vacuuming, &t.VacuumedAt, &t.TableBytes, &t.IndexBytes, &t.ToastBytes, &t.NeededBytes, &t.InvalidIndexes)
	h.Tables = append(h.Tables, t)
	return err
}

func (h *Health) readQueue(rows pgx.Rows) error {
	var q QueueHealth
	err := rows.Scan(&q.Queue, &q.Due, &q.OldestDue, &q.Supervisors)
	h.Claim.Queues = append(h.Claim.Queues, q)
	return err
}

func (h *Health) readSetAside(rows pgx.Rows) error {
	var r SetAside
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
