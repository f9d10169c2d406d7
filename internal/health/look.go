package health

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

// For the statements of a look, a role needs only the right to select from drover's tables. Each part has a transaction
// and a time limit of its own. So the other parts go on if one fails, and no part holds a snapshot for long.

// sqlServer reads settings of the server, and the schema of the table jobs. The other statements look only in that
// schema, because the search_path may also lead to the tables of an application.
const sqlServer = `
select now(), quote_ident(n.nspname), quote_ident(current_user), current_setting('autovacuum')::bool and current_setting('track_counts')::bool, pg_is_in_recovery()
from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = 'jobs'::regclass`

// sqlHolders lists the transactions, replication slots and standbys for which the removal of dead rows in this database
// waits, the oldest first. A transaction holds vacuum back by its snapshot or by its transaction id (xid), whichever is
// older. If the transaction is in another database, its snapshot does not count. But its xid counts, because every
// snapshot taken here reaches back to it while the transaction is in progress. If several sessions hold vacuum back
// equally far, the owner of the xid comes first.
//
// The statement leaves out vacuums, because no vacuum waits for another. It leaves out claims that wait for their turn,
// because that wait is normal and bounded. It leaves out parallel workers, because their leader has the same snapshot,
// and slots that the server has given up. If the role may not see the state of a session, perhaps the session runs no
// query that could be cancelled, so the remedy ends the session. A standby holds vacuum back through its slot if it has
// a slot, otherwise through its sender. A slot with only a catalog_xmin holds back only the vacuum of the catalogs.
const sqlHolders = `
with holders(kind, pid, name, database, application, username, state, transactions, own, since, catalogs_only, query, stop) as (
	select 'session', pid, '', nullif(datname, current_database()), application_name, usename::text, coalesce(state, backend_type),
		case when datname = current_database() then greatest(age(backend_xid), age(backend_xmin)) else age(backend_xid) end,
		coalesce(age(backend_xid) >= age(backend_xmin), backend_xid is not null), xact_start, false, query,
		format(case when state is null or state like 'idle%' then 'select pg_terminate_backend(%s);' else 'select pg_cancel_backend(%s);' end, pid)
	from pg_stat_activity a
	where (datname = current_database() and num_nonnulls(backend_xid, backend_xmin) > 0 or backend_xid is not null) and pid <> pg_backend_pid() and leader_pid is null
		and (backend_type is distinct from 'walsender' or xact_start is not null)
		and not exists (select from pg_stat_progress_vacuum v where v.pid = a.pid)
		and (wait_event_type = 'Lock' and wait_event = 'advisory' and query ~ '^select (".*"[.])?drover_take_turn[(]') is not true
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

// sqlBlockers takes the ten sessions that have waited longest for a lock on the tables $2 of schema $1, or on one of
// their rows. A session that waits for the transaction that has locked a row also holds a tuple lock on this row, and
// the tuple lock shows the table. From each of the ten sessions the statement goes to the sessions for which that
// session waits, and on to the sessions that wait for nobody. It looks at each pair once, because pg_blocking_pids
// stops the lock manager for a moment. A prepared transaction shows as pid 0. Claims that wait for a turn do not count,
// because turns are advisory locks.
const sqlBlockers = `
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

// sqlTables reads the server's counts of the tables $2 in schema $1. If $3 is set, it also reads their sizes, and
// estimates the size that their live rows need from the widths that ANALYZE found, an overhead of 28 bytes a row, and
// the fillfactor. The estimate is null if the table was never analyzed. The list of invalid indexes leaves out indexes
// of a table on which a build is under way, because an index that is being built is not valid yet. The statement does
// not read pg_stat_user_tables, which reads the catalog entries of all tables of the database.
const sqlTables = `
with tables as (
	select c.oid, c.relname, c.reltoastrelid, greatest(c.reltuples, 0) as reltuples, t.n, pg_stat_get_live_tuples(c.oid) as live,
		coalesce((select jsonb_object_agg(option_name, option_value) from pg_options_to_table(c.reloptions)), '{}') as options
	from unnest($2::text[]) with ordinality as t(name, n)
	join pg_class c on c.relname = t.name and c.relnamespace = $1::regnamespace and c.relkind = 'r'
)
select t.relname::text, t.live, pg_stat_get_dead_tuples(t.oid),
	round(coalesce(t.options->>'autovacuum_vacuum_threshold', current_setting('autovacuum_vacuum_threshold'))::float8
		+ coalesce(t.options->>'autovacuum_vacuum_scale_factor', current_setting('autovacuum_vacuum_scale_factor'))::float8 * t.reltuples)::bigint,
	coalesce((t.options->>'autovacuum_enabled')::bool, true),
	exists (select from pg_stat_progress_vacuum v where v.relid = t.oid),
	greatest(pg_stat_get_last_vacuum_time(t.oid), pg_stat_get_last_autovacuum_time(t.oid)),
	array(select quote_ident(c.relname) from pg_index i join pg_class c on c.oid = i.indexrelid
		where i.indrelid = t.oid and not i.indisvalid and not exists (
			select from pg_stat_progress_create_index p where p.datname = current_database() and coalesce(p.relid, t.oid) = t.oid)
		order by 1),
	coalesce(size.heap, 0), coalesce(size.indexes, 0), coalesce(size.toast, 0), size.needed
from tables t left join lateral (
	select pg_relation_size(t.oid) as heap, pg_indexes_size(t.oid) as indexes, coalesce(pg_total_relation_size(nullif(t.reltoastrelid, 0)), 0) as toast,
		(select (t.live * (28 + sum((1 - p.null_frac) * p.avg_width)) / (coalesce(t.options->>'fillfactor', '100')::int / 100.0))::bigint
			from pg_stats p where p.schemaname = (select nspname from pg_namespace where oid = $1::regnamespace) and p.tablename = t.relname) as needed
) size on $3
order by t.n`

// The function tables lists drover's tables.
func tables() []string {
	return []string{
		"jobs", "drover_supervisors", "drover_crews", "queues", "drover_kinds", "drover_builds", "drover_solo", "drover_ended_supervisors", "drover_redrives", "drover_redrive_queues",
		"drover_failure_groups", "drover_failure_tallies", "drover_budgets", "drover_budget_slots", "drover_limits", "jobs_archive", "drover_set_aside", "drover_periodic", "drover_activity",
	}
}

// sqlSupervisors counts the supervisors by state, and the jobs that those alive and draining run. It reads the whole
// table, which has one row for each supervisor. A silent supervisor has sent no heartbeat for a lease, and no other
// supervisor has declared it lost yet.
const sqlSupervisors = `
select count(*) filter (where state = 'alive'), count(*) filter (where state = 'draining'), count(*) filter (where state = 'silent'), count(*) filter (where state = 'lost'),
	coalesce(sum(cardinality(in_flight)) filter (where state in ('alive', 'draining')), 0)
from (
	select in_flight, case when lost_at is not null then 'lost' when beat_at < now() - least(lease_ms, 1000000000000) * interval '1 ms' then 'silent' when draining then 'draining' else 'alive' end as state
	from drover_supervisors
) s`

// sqlProbe measures how much a claim reads. In every lane of every queue that was ever served it looks for the first
// due job, by jobs_claim_idx, as a claim does. It begins at a floor $1 seconds ago; null: no floor. The entries that it
// reads before it finds a job belong to dead rows or running jobs.
const sqlProbe = `
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

// Claiming is an SQL condition: the supervisor s claims jobs. It is alive and not draining.
const Claiming = `s.lost_at is null and not s.draining and s.beat_at >= now() - least(s.lease_ms, 1000000000000) * interval '1 ms'`

// sqlQueues counts the due jobs of at most 100 queues with unfinished jobs, and finds the oldest due job of each queue.
// It reads the queues, their lanes, and the due jobs of each lane from jobs_claim_idx. In each lane it counts at most
// $1 jobs. The last two columns are about pauses: which people have paused jobs of the queue, and the due time of the
// oldest due job that is not paused. The statement has to search for that job only while a kind is paused. It searches
// the first $2 due jobs of each lane.
const sqlQueues = `
with recursive queue(name) as (
	select min(queue) from jobs where finalized_at is null
	union all
	select (select min(j.queue) from jobs j where j.finalized_at is null and j.queue > h.name) from queue h where h.name is not null
), named as (
	select name, array(
		with recursive l(lane) as (
			(select lane from jobs where finalized_at is null and queue = q.name order by lane desc limit 1)
			union all
			select (select j.lane from jobs j where j.finalized_at is null and j.queue = q.name and j.lane < l.lane order by j.lane desc limit 1) from l where l.lane is not null
		)
		select lane from l where lane is not null
	) as lanes
	from queue q where name is not null limit 100
), held as materialized (
	select scope, updated_by from drover_limits where held_until > now()
)
select q.name, sum(due.n)::bigint, case when min(due.oldest) is not null then greatest(min(due.oldest), '0001-01-02+00') end,
	(select count(*) from drover_supervisors s where q.name = any(s.queues) and ` + Claiming + `),
	coalesce((select string_agg(format('%s has paused %s', h.updated_by, h.scope), ', ' order by h.scope) from held h
		where h.scope in ('all', 'queue:' || q.name) or h.scope like 'kind:%' and sum(due.n) > 0), ''),
	case when exists (select from held h where h.scope in ('all', 'queue:' || q.name)) then null
		when not exists (select from held h where h.scope like 'kind:%') then
			case when min(due.oldest) is not null then greatest(min(due.oldest), '0001-01-02+00') end
		else (
			select case when min(o.at) is not null then greatest(min(o.at), '0001-01-02+00') end
			from unnest(q.lanes) as l(lane) cross join lateral (
				select j.scheduled_at as at from (
					select scheduled_at, kind from jobs
					where finalized_at is null and state <> 'running' and queue = q.name and lane = l.lane and scheduled_at <= now()
					order by scheduled_at, id limit $2
				) j where 'kind:' || j.kind <> all(array(select scope from held)) limit 1
			) o
		) end
from named q
cross join unnest(q.lanes) as l(lane)
cross join lateral (
	select count(*) as n, min(scheduled_at) as oldest from (
		select scheduled_at from jobs
		where finalized_at is null and state <> 'running' and queue = q.name and lane = l.lane and scheduled_at <= now()
		order by scheduled_at, id limit $1
	) j
) due
group by q.name, q.lanes order by 3 nulls last, 1`

// ClaimIndex is an SQL expression for jobs_claim_idx. The search_path may also lead to an index of an application.
const ClaimIndex = `(select i.indexrelid from pg_index i join pg_class x on x.oid = i.indexrelid where i.indrelid = 'jobs'::regclass and x.relname = 'jobs_claim_idx')`

// sqlIndex measures jobs_claim_idx. It counts up to $1 live rows. If there are more, it takes their number from the
// last ANALYZE, and returns in a third column by how many rows the table may have grown since.
const sqlIndex = `
select pg_relation_size(c.oid), case when live.n < $1 then live.n else greatest(live.n, c.reltuples::bigint) end,
	case when live.n < $1 then 0 else greatest(0, pg_stat_get_live_tuples('jobs'::regclass) -
		(select greatest(reltuples, 0)::bigint from pg_class where oid = 'jobs'::regclass)) end
from pg_class c, (select count(*) as n from (select from jobs where finalized_at is null limit $1) j) live
where c.oid = ` + ClaimIndex

// sqlSetAside reads the ten jobs that were set aside first, and counts all of them. It reads the whole table, which is
// small.
const sqlSetAside = `
select count(*) over (), path, job, error, code, tries, least(greatest(first_at, '0001-01-02+00'), '9999-12-30+00'), least(greatest(retry_at, '0001-01-02+00'), '9999-12-30+00')
from drover_set_aside order by first_at, path, job limit 10`

// sqlRefused counts the jobs that were discarded in the last day with the reason refused, up to $1. It looks at up to
// $1 refused jobs of each queue and kind, whenever they were discarded.
const sqlRefused = `select count(*) from drover_newest_dead('refused', $1) where finalized_at > now() - interval '1 day'`

// sqlPeriodic lists three sorts of schedules: schedules that have been due for a minute and have not ticked, schedules
// that have no next tick although nobody has paused them for good, and schedules whose last tick failed. It leaves out
// schedules from code that no living supervisor declares any more. It reads the whole table, which has one row for each
// schedule.
const sqlPeriodic = `
select p.name, case when p.next_at < now() - interval '1 minute' then least(greatest(p.next_at, '0001-01-02+00'), '9999-12-30+00') end,
	p.next_at is null, case when p.problem_at >= coalesce(p.last_at, '-infinity') then p.problem else '' end
from drover_periodic p
where (p.next_at < now() - interval '1 minute' or p.next_at is null and p.paused_until is distinct from 'infinity' or p.problem_at >= coalesce(p.last_at, '-infinity'))
	and (p.declared_by is null or exists (select from drover_supervisors s where s.id = any(p.declared_by) and s.lost_at is null))
order by p.next_at, p.name limit 10`

// sqlClock counts the jobs that wait because the server's clock has gone back, among the first $1 jobs of each lane
// that are due later.
const sqlClock = `select latest, waiting from drover_clock($1)`

// sqlLockTimeout bounds the wait for a lock to 0.3 s, unless the application's own bound is shorter. If somebody has
// locked the table jobs, several parts wait for the same lock, one after another.
const sqlLockTimeout = `
select set_config('lock_timeout', '300ms', true) where current_setting('lock_timeout')::interval not between interval '1 us' and interval '300 ms'`

// onStandby is the text of NotSeen.Why for a part that only the primary knows.
const onStandby = "this server is a standby"

const (
	partTimeout  = 2 * time.Second
	briefTimeout = 4 * time.Second // for all parts of Brief; a scrape of metrics has 5 s
	laneCount    = 1000            // jobs of a lane that are counted (due ones), or searched by sqlQueues and sqlClock
	liveCount    = 100_000         // rows of jobs_claim_idx that are counted
	deadCount    = 100_000         // refused jobs of a queue and kind that are looked at
)

// Part is one statement of a look.
type Part struct {
	Name string // the name of the part in NotSeen
	Read func(pgx.Rows) error
	SQL  string
	Args []any
	Plan string // another statement that sets up the planner, after pg.OnePlan; "": none
}

// Look reads the facts and draws the conclusions. It changes nothing, and each part ends after 2 s at the latest. A
// part that takes longer, or that the role may not read, is no error: NotSeen lists it. The role needs the right to
// select from drover's tables. Only a member of pg_read_all_stats sees since when sessions of other roles hold vacuum
// back, and the queries of these sessions. On a standby NotSeen also lists the parts that only the primary knows.
// Errors: pg.ErrNotMigrated, or an error of the database.
func Look(ctx context.Context, pool *pg.Pool) (*Report, error) {
	h := New()
	c := &h.Claim
	err := h.look(ctx, pool, []Part{
		// The probes come before the statements that scan lanes from the beginning. Such a scan removes index entries
		// that are dead for every transaction, so the probes would not meet these entries any more.
		{Name: "claim_floor", Read: readProbe(&c.FloorBuffers, nil), SQL: sqlProbe, Args: []any{floors.SettleTime.Seconds()}},
		{Name: "claim_full", Read: readProbe(&c.FullBuffers, &c.FullMS), SQL: sqlProbe, Args: []any{nil}},
		{Name: "queues", Read: h.readQueue, SQL: sqlQueues, Args: []any{laneCount, laneCount}},
	})
	if err != nil {
		return nil, err
	}
	h.judge()
	return h, nil
}

// Brief does the same as Look, for callers that come back every few seconds. It reads little of large tables, and no
// sizes of tables. Instead of Look's parts about queues and the cost of a claim, it reads the parts in the parameter
// first. They have to fill FloorBuffers and FullBuffers of Claim, and Queues with all queues that have a due job. Brief
// keeps the 100 queues that have waited longest. A part waits 0.3 s for a lock at most, and all parts together take 4 s
// at most; NotSeen lists the parts that got no time.
func (h *Report) Brief(ctx context.Context, pool *pg.Pool, first ...Part) error {
	h.brief = true
	if err := h.look(ctx, pool, first); err != nil {
		return err
	}
	c := &h.Claim
	slices.SortStableFunc(c.Queues, func(a, b Queue) int { return a.OldestDue.Compare(*b.OldestDue) })
	c.Queues = c.Queues[:min(len(c.Queues), 100)]
	h.judge()
	return nil
}

// look reads the parts in the parameter first, and the parts that Look and Brief share.
func (h *Report) look(ctx context.Context, pool *pg.Pool, first []Part) error {
	soon, live, dead := laneCount, liveCount, deadCount
	if h.brief {
		soon, live, dead = 20, 0, 1000
		h.until = time.Now().Add(briefTimeout)
	}
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return pg.Classify(err)
	}
	defer conn.Release()
	server := func(rows pgx.Rows) error {
		return rows.Scan(&h.At, &h.schema, &h.role, &h.Autovacuum, &h.standby)
	}
	if err := h.read(ctx, conn.Conn(), Part{Name: "server", Read: server, SQL: sqlServer}); err != nil {
		return err
	}
	n, c := &h.Supervisors, &h.Claim
	for _, part := range append(first,
		Part{Name: "holders", Read: pg.Into(&h.Holders, pgx.RowToStructByPos[Holder]), SQL: sqlHolders},
		Part{Name: "locks", Read: h.readBlocker, SQL: sqlBlockers, Args: []any{h.schema, tables()}},
		Part{Name: "tables", Read: pg.Into(&h.Tables, pgx.RowToStructByPos[Table]), SQL: sqlTables, Args: []any{h.schema, tables(), !h.brief}},
		Part{Name: "supervisors", Read: func(rows pgx.Rows) error { return rows.Scan(&n.Alive, &n.Draining, &n.Silent, &n.Lost, &n.InFlight) }, SQL: sqlSupervisors},
		Part{Name: "claim_index", Read: func(rows pgx.Rows) error { return rows.Scan(&c.IndexBytes, &c.Unfinished, &c.unseen) }, SQL: sqlIndex, Args: []any{live}},
		Part{Name: "set_aside", Read: h.readSetAside, SQL: sqlSetAside},
		Part{Name: "refused", Read: func(rows pgx.Rows) error { return rows.Scan(&h.SetAside.Refused) }, SQL: sqlRefused, Args: []any{dead}},
		Part{Name: "periodic", Read: pg.Into(&h.Schedules, pgx.RowToStructByPos[Schedule]), SQL: sqlPeriodic},
		Part{Name: "clock", Read: func(rows pgx.Rows) error { return rows.Scan(&h.Clock.Latest, &h.Clock.Waiting) }, SQL: sqlClock, Args: []any{soon}},
	) {
		if err := h.read(ctx, conn.Conn(), part); err != nil {
			return err
		}
	}
	return nil
}

// read reads one part. If the part cannot be read, the method adds it to NotSeen. It returns other errors.
func (h *Report) read(ctx context.Context, conn pg.Conn, part Part) error {
	if h.standby && slices.Contains([]string{"holders", "tables", "claim_floor", "claim_full", "claim_index", "clock"}, part.Name) {
		h.NotSeen = append(h.NotSeen, NotSeen{Part: part.Name, Why: onStandby})
		return nil
	}
	most := partTimeout
	if h.brief {
		most = min(most, time.Until(h.until).Truncate(time.Millisecond))
	}
	if most <= 0 {
		h.NotSeen = append(h.NotSeen, NotSeen{Part: part.Name, Why: "the parts before it took too long", TimedOut: true})
		return nil
	}
	// The time limit goes in an earlier round trip, because even the preparation of a statement may wait for locks.
	var limit, query pg.Pipeline
	limit.BeginReading()
	limit.Exec(nil, pg.OnePlan)
	limit.Exec(nil, `select set_config('statement_timeout', $1, true)`, fmt.Sprint(most.Milliseconds()))
	if h.brief {
		limit.Exec(nil, sqlLockTimeout)
	}
	if part.Plan != "" {
		limit.Exec(nil, part.Plan)
	}
	query.Query(part.Read, part.SQL, part.Args...)
	query.Commit()
	err := limit.Send(ctx, conn)
	if err == nil {
		err = query.Send(ctx, conn)
	}
	var refused *pgconn.PgError
	if !errors.As(err, &refused) || h.schema == "" { // without the schema no other part can be read
		return err
	}
	missing := NotSeen{Part: part.Name, Why: refused.Message}
	switch {
	case refused.Code == "42501": // the role may not read this part
	case refused.Code == "55P03" || refused.Code == "40001": // a lock, or the replay on a standby, was in the way
		missing.TimedOut = true
	case refused.Code == "57014" && ctx.Err() == nil:
		missing.Why, missing.TimedOut = fmt.Sprintf("it took longer than %v", most), true
	case refused.Code[:2] == "22" || refused.Code[:2] == "54" || refused.Code[:2] == "XX":
		missing.Failed = true
	default:
		return err
	}
	h.NotSeen = append(h.NotSeen, missing)
	return nil
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

func (h *Report) readQueue(rows pgx.Rows) error {
	var q Queue
	err := rows.Scan(&q.Queue, &q.Due, &q.OldestDue, &q.Supervisors, &q.Paused, &q.OldestOpen)
	h.Claim.Queues = append(h.Claim.Queues, q)
	return err
}

func (h *Report) readSetAside(rows pgx.Rows) error {
	var r AsideJob
	err := rows.Scan(&h.SetAside.Rows, &r.Path, &r.ID, &r.Error, &r.Code, &r.Tries, &r.FirstAt, &r.RetryAt)
	h.SetAside.First = append(h.SetAside.First, r)
	return err
}

// readProbe returns a function that reads how many pages a plan has read, and how long it took; ms may be nil.
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
