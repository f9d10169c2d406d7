package drover

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
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

	// sqlCommitAndBegin is sqlCommit and sqlBegin in one.
	sqlCommitAndBegin = `commit and chain`

	// sqlOnePlan leaves the planner one sane plan whatever the statistics say. jobs goes from empty to a million
	// rows and back; a plan that a connection cached while the table filled one page scans all of it later, a
	// thousand times in one settle. Transaction-local, so it needs no session state.
	sqlOnePlan = `select set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true)`
)

// store is drover's way to the database. It is safe for concurrent use.
type store struct {
	pool          *pgxpool.Pool
	functionsOnly atomic.Bool // this role may call drover_enqueue, and not write to jobs: see enqueue
}

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
				'last_delay_ms', last_delay_ms, 'last_error', case when errors_total > 0 then ` + lastError + ` end)::text
			when errors_total > 0 -- most of those that have anything; JSON would cost them as much again as their update
			then errors_total || ' ' || coalesce(last_delay_ms, 0) || ' ' || coalesce(` + lastError + `, '')
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

// read takes a JSON object, or of a job that has merely failed: how often, its last delay, its last error.
func (m *moreOfJob) read(text []byte) (err error) {
	if text[0] == '{' {
		return json.Unmarshal(text, m)
	}
	failures, rest, _ := strings.Cut(string(text), " ")
	delay, last, _ := strings.Cut(rest, " ")
	m.LastError = last
	if m.Failures, err = strconv.Atoi(failures); err != nil {
		return err
	}
	m.LastDelayMS, err = strconv.ParseInt(delay, 10, 64)
	return err
}

// sqlTakeTurn goes before a claim that others would run into: see claimer.turns. The lock ends with the transaction, and
// the wait for it is bounded, so that a session that hangs with the lock holds nobody up.
const sqlTakeTurn = `select drover_take_turn($1, $2)`

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
	turns      []string // queues in which it waits for its turn
	patience   time.Duration
}

// claimReply is what came back; committed once the pipeline has read the commit.
type claimReply struct {
	committed bool
	fenced    bool // the epoch is over: nothing was claimed, nothing can be
	outOfTurn bool // it waited for its turn in vain, and was made without
	at        time.Time
	nextDue   time.Duration // 0: none known
	jobs      []claimedJob
}

func (p *pipeline) claim(req *claimRequest, reply *claimReply) {
	p.begin()
	p.exec(nil, sqlOnePlan)
	if len(req.turns) > 0 {
		p.query(func(rows pgx.Rows) error {
			got := false
			err := rows.Scan(&got)
			reply.outOfTurn = !got
			return err
		}, sqlTakeTurn, req.turns, req.patience)
	}
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
		if err := j.more.read(r.more); err != nil {
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
// which a rescue must not run again. $2 and $4 are the claim_seq and the time of each claim. The update is HOT.
const sqlStart = `
with held as materialized (
	select id from jobs
	where id = any($1) and claimed_by = $3 and state = 'running'
		and ((id, claim_seq, attempted_at) in (select unnest($1::text[]), unnest($2::int[]), unnest($4::timestamptz[]))) is true
	order by id for update skip locked
)
update jobs set started_seq = claim_seq
where id = any(array(select id from held))
returning id, attempted_at`

// start queues sqlStart, and notes of which jobs' claims the start was written down.
func (p *pipeline) start(started map[string]time.Time, owner string, runs []*run) {
	ids, at := claims(runs)
	seqs := make([]int32, len(runs))
	for i, r := range runs {
		seqs[i] = int32(r.claimSeq) //nolint:gosec // from the column
	}
	p.query(func(rows pgx.Rows) error {
		var id string
		var at time.Time
		err := rows.Scan(&id, &at)
		started[id] = at
		return err
	}, sqlStart, ids, seqs, owner, at)
}

// sqlComplete ends runs of supervisor $3 that went well: ids $1, all claimed under claim_seq $2 (nearly always 1), each
// at that of the times $5 which $4 says. By primary key, in its order, so that two verbs over the same rows cannot deadlock. SKIP LOCKED: a
// handler that holds its row in an open transaction must not hold up the rest; what was locked is tried again.
// "is true" keeps the planner from a join: the pairs are hashed once, and each row found by its id is looked up.
const sqlComplete = `
with held as materialized (
	select id from jobs
	where id = any($1) and claim_seq = $2 and claimed_by = $3 and state = 'running'
		and ((id, attempted_at) in (select unnest($1::text[]), ($5::timestamptz[])[unnest($4::int[])])) is true
	order by id for update skip locked
)
update jobs set state = 'completed', finalized_at = now(), claimed_by = null
where id = any(array(select id from held))`

// sqlCompleteDelete is sqlComplete where completed jobs are not kept.
const sqlCompleteDelete = `
with held as materialized (
	select id from jobs
	where id = any($1) and claim_seq = $2 and claimed_by = $3 and state = 'running'
		and ((id, attempted_at) in (select unnest($1::text[]), ($5::timestamptz[])[unnest($4::int[])])) is true
	order by id for update skip locked
)
delete from jobs where id = any(array(select id from held))`

// complete queues one of these and stores how many it completed. The runs have one owner and one claim_seq.
func (p *pipeline) complete(n *int64, runs []*run, del bool) {
	ids, which := make([]string, len(runs)), make([]int32, len(runs))
	var at []time.Time // of few claims: pgx allocates for a time that it sends, and not for a small number
	known := map[time.Time]int32{}
	for i, r := range runs {
		if known[r.attemptedAt] == 0 {
			at = append(at, r.attemptedAt)
			known[r.attemptedAt] = int32(len(at)) //nolint:gosec // at most maxComplete
		}
		ids[i], which[i] = r.job.ID, known[r.attemptedAt]
	}
	sql := sqlComplete
	if del {
		sql = sqlCompleteDelete
	}
	p.exec(n, sql, ids, runs[0].claimSeq, runs[0].owner, which, at)
}

// settleHeld locks the rows of "c", each with what becomes of it, in the order of their ids: that of the array. A row is
// found in a subquery that locks it, which no planner can turn into a join.
//
// fresh: the failure is none of those that the row still has.
const settleHeld = `
	cross join lateral (
		select kind, paced_at is not null as paced, case when c.failed then nullif(c.fingerprint, '') end as failure,
			errors_total = 0 or not errors @> jsonb_build_array(jsonb_build_object('fingerprint', c.fingerprint)) as fresh
		from jobs where id = c.id and claim_seq = c.seq and claimed_by = $1 and attempted_at is not distinct from c.claimed_at and state = 'running'
		for `

// settleRules are what failure groups decree and record, over the rows that "held" has locked.
//
// ruled: a group's policy in the place of a retry: id to state, reason and build. Nearly always null, by an index
// that is nearly always empty. And how a new errors entry begins.
// tallied: one row for each fingerprint, appended: counting in failure_groups itself would make every settle of a
// failure wait for every other, and for each handler that has settled one in a transaction still open. Its entry is the
// last job's: ids have 26 bytes.
const settleRules = `
	) j
), ruled as materialized (
	select '[{"at": ' || to_json(now())::text || ', ' as head, jsonb_object_agg(h.id, case g.policy
		when 'park' then jsonb_build_object('state', 'parked', 'build', g.park_build)
		else jsonb_build_object('state', 'discarded', 'reason', 'operator') end) as rules
	from held h join failure_groups g on g.fingerprint = h.failure and g.policy is not null
	where h.state = 'retryable'
), tallied as (
	insert into failure_tallies (fingerprint, kind, class, error_type, count, jobs, last_job, sample)
	select failure, kind, entry->>'class', coalesce(entry->>'type', ''), count, jobs, last_job,
		case when not exists (select from failure_groups g where g.fingerprint = failure) then entry->>'error' end
	from (
		select failure, min(kind) as kind, count(*) as count, count(*) filter (where fresh) as jobs, max(id) as last_job,
			substr(max((id || entry) collate "C"), 27)::jsonb as entry
		from held where failure is not null group by failure offset 0
	) t
)`

// toldState is a row's state as its run's end is told: one that waits in a redrive's hands is to be retried.
const toldState = `case when j.state = 'parked' and j.parked_build is null then 'retryable' else j.state end`

// settleUpdate puts what "held" says into the rows' columns, unless a rule stands before it. It is the one join of claim
// and settle: of two sides that are both as long as held, whatever the statistics say, and hashed (sqlSettlePlan).
//
// waits: the row goes back into a redrive's hands. One that a redrive let run within its key's cap gives its place back
// when its run fails, and waits until the redrive has one again. due_us is the slot of a retry budget: the server's own
// reading, for a delay would begin anew with this transaction. A job that is due "at once" gets the time of this
// statement, not of the transaction's start: in front of the floors.
//
// added: the new entry, with the time, as an array. drover_append_error is called only where something has to go for it:
// a function that pins its search_path costs more than the rest of a row's columns.
const settleUpdate = `
update jobs j set
	state = case when h.waits then 'parked' else h.became end,
	finalized_at = case when h.became in ('discarded', 'cancelled') then now() end,
	discard_reason = h.reason,
	parked_build = h.build,
	claimed_by = null,
	paced_at = case when h.waits then coalesce(h.due, now()) when h.became <> 'parked' then j.paced_at end,
	scheduled_at = case when h.waits or h.became = 'parked' then 'infinity' when h.at_once then clock_timestamp() else coalesce(h.due, j.scheduled_at) end,
	last_delay_ms = coalesce(h.delay_ms, j.last_delay_ms),
	attempt = j.attempt - case when h.give_back then 1 else 0 end,
	snoozes = case when h.snoozed then coalesce(j.snoozes, 0) + 1 else j.snoozes end,
	uncounted = case when h.uncounted then coalesce(j.uncounted, 0) + 1 else j.uncounted end,
	crashes = greatest(j.crashes + case when h.crashed then 1 when h.survived then -1 else 0 end, 0),
	deaths = case when h.crashed then coalesce(j.deaths, 0) + 1 else j.deaths end,
	errors_total = j.errors_total + case when h.failed then 1 else 0 end,
	class = coalesce(h.class, j.class),
	fingerprint = coalesce(h.fingerprint, j.fingerprint),
	errors = case when h.added is null then j.errors
		when jsonb_array_length(j.errors) = 0 then h.added
		when jsonb_array_length(j.errors) < 20 and (j.errors->-1 ? 'trace') is not true then j.errors || h.added
		else drover_append_error(j.errors, h.added->0) end
from (
	select id, became, coalesce(rule->>'reason', nullif(reason, '')) as reason, rule->>'build' as build, became in ('retryable', 'scheduled') and paced as waits,
		case when due_us is not null then timestamptz '1970-01-01 00:00:00Z' + due_us * interval '1 microsecond'
			else now() + delay_us * interval '1 microsecond' end as due,
		delay_ms, at_once, give_back, snoozed, uncounted, crashed, survived, failed, nullif(class, '') as class, nullif(fingerprint, '') as fingerprint,
		case when rule is null then entry_at else entry_at #- '{0,delay_ms}' end as added
	from (
		select *, coalesce(rule->>'state', state) as became, ((select head from ruled) || right(nullif(entry, ''), -1) || ']')::jsonb as entry_at
		from (select *, (select rules from ruled)->id as rule from held) s
	) s
	offset 0
) h
where j.id = h.id and j.id = any(array(select id from held))
returning `

// sqlSettlePlan is sqlOnePlan for sqlSettle, which has to join: by a hash of either side.
const sqlSettlePlan = `
select set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true),
	set_config('enable_nestloop', 'off', true), set_config('enable_mergejoin', 'off', true)`

// sqlSettle ends runs of supervisor $1 in any other way, each as the arrays say: typed arrays, for a JSON document that is
// searched for each row costs more than the rest. Empty texts are none; a column of which no row has anything is null.
const sqlSettle = `
with held as materialized (
	select * from unnest($2::text[], $3::int[], $4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[],
		$9::bool[], $10::bool[], $11::bool[], $12::bool[], $13::bool[], $14::bool[], $15::bool[], $16::text[], $17::text[], $18::text[],
		$19::timestamptz[]) as c(id, seq, state, reason, delay_us, delay_ms, due_us,
		at_once, give_back, snoozed, uncounted, crashed, survived, failed, class, fingerprint, entry, claimed_at)` +
	settleHeld + `update skip locked` + settleRules + settleUpdate + `j.id, ` + toldState

// sqlSettleTx is sqlSettle for one job in its handler's transaction: scalars only, for any driver.
const sqlSettleTx = `
with held as materialized (
	select * from jsonb_to_record($2::jsonb)
		as c(id text, seq int, state text, reason text, delay_us bigint, delay_ms bigint, due_us bigint,
		at_once bool, give_back bool, snoozed bool, uncounted bool, crashed bool, survived bool, failed bool, class text, fingerprint text, entry text,
		claimed_at timestamptz)` +
	settleHeld + `no key update` + settleRules + settleUpdate + toldState

const sqlCompleteTx = `
update jobs set state = 'completed', finalized_at = now(), claimed_by = null
where id = $1 and claim_seq = $2 and claimed_by = $3 and attempted_at = $4 and state = 'running'
returning state`

const sqlCompleteDeleteTx = `
delete from jobs where id = $1 and claim_seq = $2 and claimed_by = $3 and attempted_at = $4 and state = 'running' returning 'completed'`

// sqlHoldTx keeps a run's claim until the caller's transaction ends.
const sqlHoldTx = `
select state from jobs where id = $1 and claim_seq = $2 and claimed_by = $3 and attempted_at = $4 and state = 'running' for no key update`

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
	ID          string          `json:"id"`
	Seq         int32           `json:"seq"`
	ClaimedAt   *time.Time      `json:"claimed_at,omitempty"`
	State       State           `json:"state"`
	Reason      string          `json:"reason,omitempty"`
	DelayUS     *int64          `json:"delay_us,omitempty"`
	DelayMS     *int64          `json:"delay_ms,omitempty"`
	DueUS       *int64          `json:"due_us,omitempty"`
	AtOnce      bool            `json:"at_once,omitempty"`
	GiveBack    bool            `json:"give_back,omitempty"`
	Snoozed     bool            `json:"snoozed,omitempty"`
	Uncounted   bool            `json:"uncounted,omitempty"`
	Crashed     bool            `json:"crashed,omitempty"`
	Survived    bool            `json:"survived,omitempty"`
	Failed      bool            `json:"failed,omitempty"`
	Class       string          `json:"class,omitempty"`
	Fingerprint string          `json:"fingerprint,omitempty"`
	Entry       json.RawMessage `json:"entry,omitempty"`
}

func (o *outcome) change() change {
	c := change{
		ID: o.run.job.ID, Seq: int32(o.run.claimSeq), State: o.state, Reason: o.reason, //nolint:gosec // an int of the table's
		AtOnce: o.now, GiveBack: o.giveBack, Snoozed: o.snoozed, Uncounted: o.uncounted, Crashed: o.crashed, Survived: o.survived(),
		Failed: o.class != "" && o.state != Cancelled,
	}
	if !o.run.attemptedAt.IsZero() {
		c.ClaimedAt = &o.run.attemptedAt
	}
	if o.entry != nil {
		c.Class, c.Fingerprint, c.Entry = o.class, o.fingerprint, o.entry
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

// settle queues sqlSettle and notes what the jobs became. No two outcomes are of one job.
func (p *pipeline) settle(settled map[string]State, owner string, outcomes []*outcome) {
	changes := make([]change, len(outcomes))
	for i, o := range outcomes {
		changes[i] = o.change()
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Compare(a.ID, b.ID) })
	var row struct {
		id    string
		state sameText
	}
	p.query(func(rows pgx.Rows) error {
		err := rows.Scan(&row.id, &row.state)
		settled[row.id] = State(row.state)
		return err
	}, sqlSettle, owner,
		column(changes, func(c *change) string { return c.ID }), column(changes, func(c *change) int32 { return c.Seq }),
		column(changes, func(c *change) string { return string(c.State) }), column(changes, func(c *change) string { return c.Reason }),
		column(changes, func(c *change) *int64 { return c.DelayUS }), column(changes, func(c *change) *int64 { return c.DelayMS }),
		column(changes, func(c *change) *int64 { return c.DueUS }), column(changes, func(c *change) bool { return c.AtOnce }),
		column(changes, func(c *change) bool { return c.GiveBack }), column(changes, func(c *change) bool { return c.Snoozed }),
		column(changes, func(c *change) bool { return c.Uncounted }), column(changes, func(c *change) bool { return c.Crashed }),
		column(changes, func(c *change) bool { return c.Survived }), column(changes, func(c *change) bool { return c.Failed }),
		column(changes, func(c *change) string { return c.Class }), column(changes, func(c *change) string { return c.Fingerprint }),
		column(changes, func(c *change) string { return string(c.Entry) }),
		column(changes, func(c *change) *time.Time { return c.ClaimedAt }))
}

// column is one value of each change; nil, which is null, where none has any.
func column[T comparable](changes []change, of func(*change) T) []T {
	values := make([]T, len(changes))
	var zero T
	some := false
	for i := range changes {
		values[i] = of(&changes[i])
		some = some || values[i] != zero
	}
	if !some {
		return nil
	}
	return values
}

// sqlLook tells what has become of jobs, for a settle that matched fewer rows than it sent or whose reply was lost.
const sqlLook = `select id, state, claim_seq, attempted_at, coalesce(claimed_by, ''), coalesce(discard_reason, '') from jobs where id = any($1)`

type seenJob struct {
	state       State
	claimSeq    int
	attemptedAt pgtype.Timestamptz
	owner       string
	reason      string // of a discard
}

// lastClaimedBy reports whether nobody has claimed the job since the run.
func (j *seenJob) lastClaimedBy(r *run) bool {
	return j.claimSeq == r.claimSeq && j.attemptedAt.Time.Equal(r.attemptedAt)
}

func (p *pipeline) look(ids []string, seen map[string]seenJob) {
	p.query(func(rows pgx.Rows) error {
		var id string
		var j seenJob
		if err := rows.Scan(&id, &j.state, &j.claimSeq, &j.attemptedAt, &j.owner, &j.reason); err != nil {
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
