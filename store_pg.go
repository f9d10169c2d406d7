package drover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/oklog/ulid/v2"
)

// All SQL of the queue is in store_pg*.go, in a job's life order: enqueue (store_pg_enqueue.go), claim and settle
// (here), liveness and rescue (store_pg_supervisors.go), what operators do (store_pg_operate.go).
//
// Names are unqualified: search_path picks the schema. Every transaction of the library's own begins with
// sqlBegin, pipelined, for where the application's default is repeatable read or serializable a quarter to nine
// tenths of the claims would fail.

const (
	sqlBegin  = `begin isolation level read committed read write`
	sqlCommit = `commit`

	// sqlOnePlan leaves the planner one sane plan whatever the statistics say. jobs goes from empty to a million
	// rows and back; a plan that a connection cached while the table filled one page scans all of it later, a
	// thousand times in one settle. Transaction-local, so it needs no session state.
	sqlOnePlan = `select set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true)`
)

// store is drover's way to the database. It is safe for concurrent use.
type store struct{ pool *pgxpool.Pool }

func newStore(pool *pgxpool.Pool) *store { return &store{pool: pool} }

// dial opens a connection of the supervisor's own beside the pool, as the pool would: handlers that take every
// pooled connection must not starve heartbeat and settle.
func (s *store) dial(ctx context.Context) (*pgx.Conn, error) {
	cfg := s.pool.Config()
	if cfg.BeforeConnect != nil {
		if err := cfg.BeforeConnect(ctx, cfg.ConnConfig); err != nil {
			return nil, err
		}
	}
	conn, err := pgx.ConnectConfig(ctx, cfg.ConnConfig)
	if err != nil {
		return nil, err
	}
	if cfg.AfterConnect != nil {
		if err := cfg.AfterConnect(ctx, conn); err != nil {
			closeConn(ctx, conn)
			return nil, err
		}
	}
	return conn, nil
}

// link is a connection of one goroutine's that comes back after it broke.
type link struct {
	store *store
	conn  *pgx.Conn
}

func (l *link) get(ctx context.Context) (*pgx.Conn, error) {
	if l.conn != nil && !l.conn.IsClosed() {
		return l.conn, nil
	}
	var err error
	l.conn, err = l.store.dial(ctx)
	return l.conn, err
}

func (l *link) close(ctx context.Context) {
	if l.conn != nil {
		closeConn(ctx, l.conn)
	}
}

func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // it is going away either way
}

// batcher is a connection, a pool or a transaction.
type batcher interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// pipeline is a row of statements in one round trip, each with what to do with its result.
type pipeline struct {
	batch pgx.Batch
	reads []func(pgx.BatchResults) error
}

// exec queues a statement and stores how many rows it touched; n may be nil.
func (p *pipeline) exec(n *int64, sql string, args ...any) {
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
func (p *pipeline) query(read func(pgx.Rows) error, sql string, args ...any) {
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

// call runs fn where its statements' results have been read: what came before is committed.
func (p *pipeline) call(fn func()) {
	p.reads = append(p.reads, func(pgx.BatchResults) error { fn(); return nil })
}

func (p *pipeline) begin()  { p.exec(nil, sqlBegin) }
func (p *pipeline) commit() { p.exec(nil, sqlCommit) }

// send runs the pipeline. After an error the connection is out of any transaction, or closed.
func (p *pipeline) send(ctx context.Context, conn *pgx.Conn) error {
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
	if !conn.IsClosed() && conn.PgConn().TxStatus() != 'I' {
		if _, rollback := conn.Exec(ctx, "rollback"); rollback != nil {
			closeConn(ctx, conn)
		}
	}
	return classify(err)
}

// ignoreRepeat drops the error that closing a failed batch tells again.
func ignoreRepeat(first, again error) error {
	if first != nil {
		return nil
	}
	return again
}

// classify gives database errors the names that callers test for.
func classify(err error) error {
	var db interface{ SQLState() string } // of any driver: SQLTx
	if !errors.As(err, &db) {
		return err
	}
	switch code := db.SQLState(); {
	case code == "42883" || code == "42P01": // undefined function, undefined table
		return fmt.Errorf("%w (%w)", ErrNotMigrated, err)
	case code == "25006", code == "0A000" && strings.Contains(err.Error(), "recovery"): // read-only, standby
		return fmt.Errorf("%w (%w)", ErrReadOnly, err)
	case code == "26000" || code == "42P05": // a prepared statement is not there, or is there already
		return fmt.Errorf("%w (%w)", ErrPooler, err)
	case code == "DR001":
		return fmt.Errorf("%w (%w)", ErrIDConflict, err)
	case code == "DR002":
		return fmt.Errorf("%w (%w)", ErrState, err)
	}
	return err
}

// badData reports an error that the data of a statement caused, so that the same will fail again: data exceptions,
// violated constraints, limits, and what a trigger of the application's raises.
func badData(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && len(pg.Code) == 5 && slices.Contains([]string{"22", "23", "44", "54", "P0", "38", "39"}, pg.Code[:2])
}

// notApplied reports whether the statement behind err certainly changed nothing: the server said so and goes on, or
// never got it. A FATAL error tells nothing: the session is gone, and a pooler sends one for a server that may have
// committed before it went.
func notApplied(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return pgconn.SafeToRetry(err)
	}
	return pg.SeverityUnlocalized == "ERROR" && !strings.HasPrefix(pg.Code, "57") && !strings.HasPrefix(pg.Code, "08") && pg.Code != "40003"
}

const schemaVersion = 8

// sqlCheck asks nothing of drover's own, so that it works on an empty database.
const sqlCheck = `
select pg_backend_pid(), current_setting('server_version_num')::int, pg_is_in_recovery(), to_regprocedure('drover_schema_version()') is not null,
	format('looked in schema %s of database %s, search_path %s%s', coalesce(current_schema(), '(none)'), current_database(), current_setting('search_path'),
		(select '; there is one in ' || string_agg('schema ' || n.nspname || case when has_schema_privilege(n.oid, 'usage') then '' else ', which this role may not use' end, ', ')
		from (select n.oid, n.nspname from pg_proc p join pg_namespace n on n.oid = p.pronamespace where p.proname = 'drover_schema_version' order by 2 limit 5) n))`

const sqlSchemaVersion = `select drover_schema_version()`

func (s *store) check(ctx context.Context) error {
	var server, schema int
	var standby, migrated, direct bool
	var where string
	err := s.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		var pid uint32
		err := c.QueryRow(ctx, sqlCheck).Scan(&pid, &server, &standby, &migrated, &where)
		direct = pid == c.Conn().PgConn().PID()
		return err
	})
	if err == nil && !direct {
		err = s.checkPooler(ctx)
	}
	if err != nil {
		return fmt.Errorf("ask the server what it is: %w", classify(err))
	}
	switch {
	case server < 150000:
		return fmt.Errorf("%w, this is %d.%d", ErrServerTooOld, server/10000, server%10000)
	case standby:
		return ErrReadOnly
	case !migrated:
		return fmt.Errorf("%w (%s)", ErrNotMigrated, where)
	}
	if err := s.pool.QueryRow(ctx, sqlSchemaVersion).Scan(&schema); err != nil {
		return fmt.Errorf("ask for the schema's version: %w", classify(err))
	}
	if schema < schemaVersion {
		return fmt.Errorf("%w (version %d, this library needs %d; %s)", ErrNotMigrated, schema, schemaVersion, where)
	}
	return nil
}

// checkPooler tries on two connections of its own whether what is between them and the server breaks the driver's way of
// sending statements. A pooler that is idle gives both the session that was used last; one that is busy gives the first
// another one for its second transaction.
func (s *store) checkPooler(ctx context.Context) error {
	mode := s.pool.Config().ConnConfig.DefaultQueryExecMode
	if mode != pgx.QueryExecModeCacheStatement && mode != pgx.QueryExecModeDescribeExec {
		return nil
	}
	first, err := s.dial(ctx)
	if err != nil {
		return err
	}
	defer closeConn(ctx, first)
	second, err := s.dial(ctx)
	if err != nil {
		return err
	}
	defer closeConn(ctx, second)
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

// prepareOnBoth fails unless each has its prepared statements to itself: some poolers see to it.
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

// lastError is the text of drover_last_error, without its call where the newest entry tells of a run: a function that
// pins its search_path costs as much as a claim of the row.
const lastError = `(case when errors->-1->>'class' <> 'operator' then errors->-1 else drover_last_error(errors) end)->>'error'`

// sqlClaim gives due jobs of several queues to supervisor $1, if its epoch $2 is still the current one.
//
// me: the key share lock makes a raised epoch wait for this claim and refuse later ones, and lets heartbeats pass.
// due: for every queue its groups of lanes, for every group its lanes, in the order given, each lane read from
// jobs_claim_idx beyond its floor in index order, so that LIMIT ends the scan and there is no sort; the limits of
// group and queue stop before lanes there is no room for. SKIP LOCKED lets claimers pass each other. Eligibility
// stands inside the LIMIT, or ineligible rows would fill it for ever. All of it materialized: a subquery may be executed again and claim too many.
// claimed: no indexed column changes, so the update is HOT. A join with due instead of the array becomes a scan of
// the whole table under a generic plan.
// The left join gives a row with the server's time even if nothing was due; no row at all means the epoch is over.
// When nothing was claimed it also tells when the next job of these lanes is due, of whatever kind.
const sqlClaim = `
with me as materialized (
	select now() as at from supervisors where id = $1 and epoch = $2 and lost_at is null for key share
), due as materialized (
	select j.id from me, unnest($4::text[], $5::int[]) with ordinality as q(name, room, n)
	cross join lateral (
		select j.id from unnest($6::int[], $7::int[]) with ordinality as g(q, room, n)
		cross join lateral (
			select j.id from unnest($8::int[], $9::smallint[], $10::timestamptz[], $11::text[]) as l(g, lane, floor_at, floor_id)
			cross join lateral (
				select id from jobs
				where finalized_at is null and state <> 'running' and queue = q.name and lane = l.lane
					and scheduled_at <= now() and (scheduled_at, id) > (l.floor_at, l.floor_id) and kind = any($3)
				order by scheduled_at, id limit g.room for update skip locked
			) j
			where l.g = g.n limit g.room
		) j
		where g.q = q.n limit q.room
	) j
), claimed as (
	update jobs set state = 'running', attempt = attempt + 1, claim_seq = claim_seq + 1, claimed_by = $1, attempted_at = now()
	where id = any(array(select id from due))
	returning id, kind, queue, lane, args, attempt, claim_seq, scheduled_at,
		case
			when num_nonnulls(max_attempts, retry, timeout_ms, expires_at, retry_until, snoozes, uncounted, tags, metadata, concurrency_key) > 0
				or crashes > 0 or redrives > 0
			then json_build_object('max_attempts', max_attempts, 'retry', retry, 'timeout_ms', timeout_ms, 'expired', expires_at <= now(),
				'retry_left_ms', floor(extract(epoch from retry_until - now()) * 1000), 'snoozes', snoozes, 'uncounted', uncounted, 'tags', tags,
				'metadata', metadata, 'concurrency_key', concurrency_key, 'failures', errors_total, 'crashes', crashes, 'redrives', redrives,
				'last_delay_ms', last_delay_ms, 'last_error', case when errors_total > 0 then ` + lastError + ` end)
			when errors_total > 0
			then json_build_object('failures', errors_total, 'last_delay_ms', last_delay_ms, 'last_error', ` + lastError + `)
		end as more
)
select me.at, c.id, c.kind, c.queue, c.lane, c.args, c.attempt, c.claim_seq, c.scheduled_at, c.more,
	case when c.id is null then (
		select extract(epoch from min(j.scheduled_at) - now())::float8
		from unnest($8::int[], $9::smallint[]) as l(g, lane)
		cross join lateral (
			select scheduled_at from jobs
			where finalized_at is null and state <> 'running' and queue = ($4::text[])[($6::int[])[l.g]] and lane = l.lane
				and scheduled_at > now() and scheduled_at < 'infinity'
			order by scheduled_at, id limit 1
		) j
	) end
from me left join claimed c on true`

// claimedJob is one row of a claim.
type claimedJob struct {
	id, kind, queue string
	lane            int16
	args            json.RawMessage
	attempt         int
	claimSeq        int
	scheduledAt     time.Time
	more            *moreOfJob
}

// moreOfJob is what few jobs have.
type moreOfJob struct {
	MaxAttempts int             `json:"max_attempts"`
	Retry       json.RawMessage `json:"retry"`
	TimeoutMS   int64           `json:"timeout_ms"`
	Expired     bool            `json:"expired"`
	RetryLeftMS *float64        `json:"retry_left_ms"`
	Snoozes     int             `json:"snoozes"`
	Uncounted   int             `json:"uncounted"`
	Tags        []string        `json:"tags"`
	Metadata    json.RawMessage `json:"metadata"`
	Concurrency string          `json:"concurrency_key"`
	Failures    int             `json:"failures"`
	Crashes     int             `json:"crashes"`
	Redrives    int             `json:"redrives"`
	LastDelayMS int64           `json:"last_delay_ms"`
	LastError   string          `json:"last_error"`
}

// claimRequest asks for jobs of several queues.
type claimRequest struct {
	supervisor string
	epoch      int
	kinds      []string
	queues     []string
	rooms      []int32
	groupQueue []int32 // index into queues, from 1
	groupRoom  []int32
	laneGroup  []int32 // index into the groups, from 1
	lanes      []int16
	floorAt    []time.Time
	floorID    []string
}

// claimReply is what came back; committed once the pipeline has read the commit.
type claimReply struct {
	committed bool
	fenced    bool // the epoch is over: nothing was claimed, nothing can be
	at        time.Time
	nextDue   time.Duration // 0: none known
	jobs      []claimedJob
}

func (p *pipeline) claim(req *claimRequest, reply *claimReply) {
	p.begin()
	p.exec(nil, sqlOnePlan)
	reply.fenced = true
	row := claimRow{reply: reply}
	columns := row.columns() // once: a row costs the strings that it brings, and its run
	p.query(func(rows pgx.Rows) error {
		reply.fenced = false
		if err := rows.Scan(columns...); err != nil {
			return err
		}
		return row.add()
	}, sqlClaim, req.supervisor, req.epoch, req.kinds, req.queues, req.rooms, req.groupQueue, req.groupRoom,
		req.laneGroup, req.lanes, req.floorAt, req.floorID)
	p.commit()
	p.call(func() { reply.committed = true })
}

// claimRow reads the rows of sqlClaim, one after the other.
type claimRow struct {
	reply         *claimReply
	id            pgtype.Text
	kind, queue   sameText
	lane          pgtype.Int2
	args, more    []byte
	attempt, seq  pgtype.Int4
	scheduled     pgtype.Timestamptz
	secondsToNext pgtype.Float8
}

func (r *claimRow) columns() []any {
	return []any{
		&r.reply.at, &r.id, &r.kind, &r.queue, &r.lane, &r.args, &r.attempt, &r.seq, &r.scheduled, &r.more, &r.secondsToNext,
	}
}

// add notes what the row says.
func (r *claimRow) add() error {
	if !r.id.Valid {
		if r.secondsToNext.Valid {
			r.reply.nextDue = max(time.Duration(r.secondsToNext.Float64*float64(time.Second)), time.Microsecond)
		}
		return nil
	}
	j := claimedJob{
		id: r.id.String, kind: string(r.kind), queue: string(r.queue), lane: r.lane.Int16, args: r.args,
		attempt: int(r.attempt.Int32), claimSeq: int(r.seq.Int32), scheduledAt: r.scheduled.Time,
	}
	if r.more != nil {
		j.more = &moreOfJob{}
		if err := json.Unmarshal(r.more, j.more); err != nil {
			return err
		}
	}
	r.reply.jobs = append(r.reply.jobs, j)
	return nil
}

// sameText is a column that says the same in most rows: it allocates where it changes.
type sameText string

// ScanBytes implements pgtype.BytesScanner.
func (s *sameText) ScanBytes(text []byte) error {
	if string(text) != string(*s) {
		*s = sameText(text)
	}
	return nil
}

// sqlStart notes, before their handlers are called, that jobs $1 of supervisor $3 start: those with a single attempt,
// which a rescue must not run again. $2 holds the fence of each. The update is HOT.
const sqlStart = `
with held as materialized (
	select id from jobs
	where id = any($1) and claim_seq = ($2::jsonb->>id)::int and claimed_by = $3 and state = 'running'
	order by id for update skip locked
)
update jobs set started_seq = claim_seq
where id = any(array(select id from held))
returning id`

func (p *pipeline) start(started map[string]bool, owner string, runs []*run) {
	fences := make(map[string]int, len(runs))
	for _, r := range runs {
		fences[r.job.ID] = r.claimSeq
	}
	doc, _ := json.Marshal(fences) // strings and ints only: cannot fail
	p.query(func(rows pgx.Rows) error {
		var id string
		err := rows.Scan(&id)
		started[id] = true
		return err
	}, sqlStart, ids(runs), string(doc), owner)
}

// sqlComplete ends runs of supervisor $3 that went well: ids $1, all claimed under claim_seq $2 (nearly always 1).
// By primary key, in its order, so that two verbs over the same rows cannot deadlock. SKIP LOCKED: a handler that
// holds its row in an open transaction must not hold up the rest; what was locked is tried again.
const sqlComplete = `
with held as materialized (
	select id from jobs
	where id = any($1) and claim_seq = $2 and claimed_by = $3 and state = 'running'
	order by id for update skip locked
)
update jobs set state = 'completed', finalized_at = now(), claimed_by = null
where id = any(array(select id from held))`

// sqlCompleteDelete is sqlComplete where completed jobs are not kept.
const sqlCompleteDelete = `
with held as materialized (
	select id from jobs
	where id = any($1) and claim_seq = $2 and claimed_by = $3 and state = 'running'
	order by id for update skip locked
)
delete from jobs where id = any(array(select id from held))`

func (p *pipeline) complete(n *int64, ids []string, seq int, owner string, del bool) {
	if del {
		p.exec(n, sqlCompleteDelete, ids, seq, owner)
	} else {
		p.exec(n, sqlComplete, ids, seq, owner)
	}
}

// heldColumns tell of each row that is settled whether its run failed, with which failure, and whether that is none of
// those that the row still has.
const heldColumns = `id, kind, c->>'state' as becomes, case when c ? 'failed' then c->'entry'->>'fingerprint' end as failure,
	errors_total = 0 or not errors @> jsonb_build_array(jsonb_build_object('fingerprint', c->'entry'->'fingerprint')) as fresh`

// settleRules are what failure groups decree and record, over the rows that "held" has locked.
//
// ruled: a group's policy in the place of a retry: id to state, reason and build. Nearly always null, by an index
// that is nearly always empty.
// tallied: one row for each fingerprint, appended: counting in failure_groups itself would make every settle of a
// failure wait for every other, and for each handler that has settled one in a transaction still open.
const settleRules = `, ruled as materialized (
	select jsonb_build_object('at', now()) as at, jsonb_object_agg(h.id, case g.policy
		when 'park' then jsonb_build_object('state', 'parked', 'build', g.park_build)
		else jsonb_build_object('state', 'discarded', 'reason', 'operator') end) as rules
	from held h join failure_groups g on g.fingerprint = h.failure and g.policy is not null
	where h.becomes = 'retryable'
), tallied as (
	insert into failure_tallies (fingerprint, kind, class, error_type, count, jobs, last_job, sample)
	select failure, kind, entry->>'class', coalesce(entry->>'type', ''), count, jobs, last_job,
		case when not exists (select from failure_groups g where g.fingerprint = failure) then entry->>'error' end
	from (
		select failure, min(kind) as kind, count(*) as count, count(*) filter (where fresh) as jobs, max(id) as last_job
		from held where failure is not null group by failure offset 0
	) t cross join lateral (select $2::jsonb->last_job->'entry' as entry offset 0) e
)`

// toldState is a row's state as its run's end is told: one that waits in a redrive's hands is to be retried.
const toldState = `case when state = 'parked' and parked_build is null then 'retryable' else state end`

// appendEntry is drover_append_error without its call where nothing has to go for the new entry: a function that pins
// its search_path costs more than the rest of a row's columns.
const appendEntry = `case when jsonb_array_length(errors) < 20 and (errors->-1 ? 'trace') is not true
	then errors || entry else drover_append_error(errors, entry) end`

// settleColumns is what the object $2 holds for a row's id, put into its columns, unless a rule stands before it. The
// object is searched once a row, and the row's part of it is copied once: offset 0 keeps the planner from putting the
// search in the place of each c.
//
// waits: the row goes back into a redrive's hands. One that a redrive let run within its key's cap gives its place back
// when its run fails, and waits until the redrive has one again. due_us is the slot of a retry budget: the server's own
// reading, for a delay would begin anew with this transaction. A job that is due "at once" gets the time of this
// statement, not of the transaction's start: in front of the floors.
const settleColumns = `
	(state, finalized_at, discard_reason, parked_build, claimed_by, paced_at, scheduled_at, last_delay_ms, attempt, snoozes,
		uncounted, crashes, deaths, errors_total, class, fingerprint, errors) = (
	select case when waits then 'parked' else became end,
		case when became in ('discarded', 'cancelled') then now() end,
		coalesce(rule->>'reason', c->>'reason'),
		rule->>'build',
		null,
		case when waits then coalesce(due, now()) when became <> 'parked' then paced_at end,
		case when waits or became = 'parked' then 'infinity' when c ? 'now' then clock_timestamp() else coalesce(due, scheduled_at) end,
		coalesce((c->>'delay_ms')::bigint, last_delay_ms),
		attempt - case when c ? 'give_back' then 1 else 0 end,
		case when c ? 'snoozed' then coalesce(snoozes, 0) + 1 else snoozes end,
		case when c ? 'uncounted' then coalesce(uncounted, 0) + 1 else uncounted end,
		greatest(crashes + case when c ? 'crashed' then 1 when c ? 'survived' then -1 else 0 end, 0),
		case when c ? 'crashed' then coalesce(deaths, 0) + 1 else deaths end,
		errors_total + case when c ? 'failed' then 1 else 0 end,
		coalesce(entry->>'class', class),
		coalesce(entry->>'fingerprint', fingerprint),
		case when entry is null then errors else ` + appendEntry + ` end
	from (
		select c, case when rule is null then c->'entry' else (c->'entry') - 'delay_ms' end || (select at from ruled) as entry, rule, became, paced_at is not null and became in ('retryable', 'scheduled') as waits,
			case when c ? 'due_us' then timestamptz '1970-01-01 00:00:00Z' + (c->>'due_us')::bigint * interval '1 microsecond'
				else now() + (c->>'delay_us')::bigint * interval '1 microsecond' end as due
		from (
			select c, rule, coalesce(rule->>'state', c->>'state') as became
			from (select $2::jsonb->jobs.id as c, (select rules from ruled)->jobs.id as rule offset 0) s
			offset 0
		) s
		offset 0
	) s)`

// sqlSettle ends runs of supervisor $3 in any other way: ids $1, and for each id in the object $2 what becomes of
// it. No join with jobs, so that no statistics can turn it into one; the object is searched by bisection.
const sqlSettle = `
with held as materialized (
	select ` + heldColumns + ` from jobs cross join lateral (select $2::jsonb->id as c offset 0) s
	where id = any($1) and claim_seq = (c->>'seq')::int and claimed_by = $3 and state = 'running'
	order by id for update of jobs skip locked
)` + settleRules + `
update jobs set` + settleColumns + `
where id = any(array(select id from held))
returning id, ` + toldState

// sqlSettleTx is sqlSettle for one job in its handler's transaction: scalars only, for any driver.
const sqlSettleTx = `
with held as materialized (
	select ` + heldColumns + ` from jobs cross join lateral (select $2::jsonb->id as c offset 0) s
	where id = $1 and claim_seq = (c->>'seq')::int and claimed_by = $3 and state = 'running'
	for no key update of jobs
)` + settleRules + `
update jobs set` + settleColumns + `
where id = any(array(select id from held))
returning ` + toldState

const sqlCompleteTx = `
update jobs set state = 'completed', finalized_at = now(), claimed_by = null
where id = $1 and claim_seq = $2 and claimed_by = $3 and state = 'running'
returning state`

const sqlCompleteDeleteTx = `
delete from jobs where id = $1 and claim_seq = $2 and claimed_by = $3 and state = 'running' returning 'completed'`

// sqlHoldTx keeps a run's claim until the caller's transaction ends.
const sqlHoldTx = `
select state from jobs where id = $1 and claim_seq = $2 and claimed_by = $3 and state = 'running' for no key update`

// fencedTx runs one of these in a caller's transaction and tells what the job became. A row that changed under a repeatable read or serializable
// transaction shows as a serialization failure; only another owner changes it, so that is a lost lease too.
func fencedTx(ctx context.Context, tx Tx, sql string, args ...any) (State, error) {
	var became State
	err := tx.QueryRow(ctx, sql, args...).Scan(&became)
	var db interface{ SQLState() string }
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return "", ErrLeaseLost
	case errors.As(err, &db) && db.SQLState() == "40001":
		return "", fmt.Errorf("%w (%w)", ErrLeaseLost, err)
	}
	return became, classify(err)
}

// change is what sqlSettle does to one row. Absent keys change nothing.
type change struct {
	Seq       int             `json:"seq"`
	State     State           `json:"state"`
	Reason    string          `json:"reason,omitempty"`
	Now       bool            `json:"now,omitempty"`
	DelayUS   *int64          `json:"delay_us,omitempty"`
	DelayMS   *int64          `json:"delay_ms,omitempty"`
	GiveBack  bool            `json:"give_back,omitempty"`
	Snoozed   bool            `json:"snoozed,omitempty"`
	Uncounted bool            `json:"uncounted,omitempty"`
	Crashed   bool            `json:"crashed,omitempty"`
	Survived  bool            `json:"survived,omitempty"`
	Failed    bool            `json:"failed,omitempty"`
	Entry     json.RawMessage `json:"entry,omitempty"`
	DueUS     *int64          `json:"due_us,omitempty"`
}

func (o *outcome) change() change {
	c := change{
		Seq: o.run.claimSeq, State: o.state, Reason: o.reason, Now: o.now, GiveBack: o.giveBack,
		Snoozed: o.snoozed, Uncounted: o.uncounted, Crashed: o.crashed, Survived: o.survived(), Entry: o.entry,
		Failed: o.class != "" && o.state != Cancelled,
	}
	if (o.state == Retryable || o.state == Scheduled) && !o.now {
		us, ms := o.delay.Microseconds(), o.delay.Milliseconds()
		if c.DelayUS = &us; o.slot != nil {
			c.DueUS, c.DelayUS = &o.slot.dueUS, nil
		}
		if o.state == Retryable {
			c.DelayMS = &ms
		}
	}
	return c
}

// settle queues sqlSettle and notes what the jobs became.
func (p *pipeline) settle(settled map[string]State, owner string, outcomes []*outcome) error {
	ids := make([]string, len(outcomes))
	changes := make(map[string]change, len(outcomes))
	for i, o := range outcomes {
		ids[i] = o.run.job.ID
		changes[o.run.job.ID] = o.change()
	}
	doc, err := json.Marshal(changes)
	if err != nil {
		return fmt.Errorf("encode outcomes: %w", err)
	}
	p.query(func(rows pgx.Rows) error {
		var id string
		var became State
		err := rows.Scan(&id, &became)
		settled[id] = became
		return err
	}, sqlSettle, ids, string(doc), owner)
	return nil
}

// sqlLook tells what has become of jobs, for a settle that matched fewer rows than it sent or whose reply was lost.
const sqlLook = `select id, state, claim_seq, coalesce(claimed_by, ''), coalesce(discard_reason, '') from jobs where id = any($1)`

type seenJob struct {
	state    State
	claimSeq int
	owner    string
	reason   string // of a discard
}

func (p *pipeline) look(ids []string, seen map[string]seenJob) {
	p.query(func(rows pgx.Rows) error {
		var id string
		var j seenJob
		if err := rows.Scan(&id, &j.state, &j.claimSeq, &j.owner, &j.reason); err != nil {
			return err
		}
		seen[id] = j
		return nil
	}, sqlLook, ids)
}

// sqlAlive lists the supervisors whose lease nobody has taken. Read after sqlLook: whoever takes a job takes the lease
// first, and then its owner is not among these.
const sqlAlive = `select distinct id from supervisors where lost_at is null`

func (p *pipeline) alive(ids map[string]bool) {
	p.query(func(rows pgx.Rows) error {
		var id string
		err := rows.Scan(&id)
		ids[id] = true
		return err
	}, sqlAlive)
}
