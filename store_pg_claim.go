package drover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// lastError is the text of drover_last_error, without its call where the newest entry tells of a run: a function that
// pins its search_path costs as much as a claim of the row.
const lastError = `left((case when errors->-1->>'class' <> 'operator' then errors->-1 else drover_last_error(errors) end)->>'error', 20000)`

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
// The time is the statement's, not the transaction's: the claim may have waited for its turn.
// When nothing was claimed it also tells when the next job of these lanes is due, of whatever kind.
// A value far beyond the bounds of jobs_bounds is not read: the server takes seconds to write it out as text, cannot be
// interrupted, and all jobs of the claim would wait.
const sqlClaim = claimMe + claimDue + claimTake + claimNextDue

// sqlClaimBut is sqlClaim without the jobs that are set aside. It is used only while there are any. A subquery for each
// job keeps the order of the index; a join might not.
const sqlClaimBut = claimMe + claimDueBut + claimTake + claimNextDue

const (
	claimMe = `
with me as materialized (
	select statement_timestamp() as at from drover_supervisors where id = $1 and epoch = $2 and lost_at is null for key share
), due as materialized (
	select j.id from me, `
	claimDue    = claimQueues + claimLanes
	claimDueBut = claimQueues + notAside + claimLanes
	notAside    = ` and (select true from drover_set_aside a where a.path = 'claim' and a.job = jobs.id) is null`
	claimQueues = `unnest($4::text[], $5::int[]) with ordinality as q(name, room, n)
	cross join lateral (
		select j.id from unnest($6::int[], $7::int[]) with ordinality as g(q, room, n)
		cross join lateral (
			select j.id from unnest($8::int[], $9::smallint[], $10::timestamptz[], $11::text[]) as l(g, lane, floor_at, floor_id)
			cross join lateral (
				select id from jobs
				where finalized_at is null and state <> 'running' and queue = q.name and lane = l.lane
					and scheduled_at <= statement_timestamp() and (scheduled_at, id) > (l.floor_at, l.floor_id) and kind = any($3)`
	claimLanes = `
				order by scheduled_at, id limit g.room for update skip locked
			) j
			where l.g = g.n limit g.room
		) j
		where g.q = q.n limit q.room
	) j
)`
	// The other end of the lanes, a few jobs of each.
	claimLastOnes = `
				order by scheduled_at desc, id desc limit least(g.room, 5) for update skip locked
			) j
			where l.g = g.n limit g.room
		) j
		where g.q = q.n limit q.room
	) j
)`
	// How long ago the job was enqueued, or last made due by a redrive, in ms. Infinite times cannot be subtracted. date_part
	// computes in float8, which costs less than extract.
	sinceEnqueue = `(date_part('epoch', statement_timestamp() - least(greatest(created_at, redriven_at, '0001-01-01+00'), '9999-12-30+00')) * 1000)::bigint`

	claimTake = `, claimed as (
	update jobs set state = 'running', attempt = attempt + 1, claim_seq = claim_seq + 1, claimed_by = $1, attempted_at = statement_timestamp(),
		unique_until = case when unique_scope = 'started' then null else unique_until end
	where id = any(array(select id from due))
	returning id, kind, queue, lane, case when pg_column_size(args) <= 2048 or pg_column_size(args #> '{}') <= 25165824 then args end as args,
		attempt, claim_seq, scheduled_at,
		case
			when pg_column_size(metadata #> '{}') > 524288 or pg_column_size(tags) > 16384 or pg_column_size(retry) > 4096 or pg_column_size(errors) > 1048576 then ''
			when num_nonnulls(max_attempts, retry, timeout_ms, expires_at, retry_until, snoozes, uncounted, tags, metadata, concurrency_key) > 0
				or crashes > 0 or redrives > 0 or unique_scope = 'period'
			then json_build_object('max_attempts', max_attempts, 'retry', retry, 'timeout_ms', timeout_ms, 'expired', expires_at <= statement_timestamp(),
				'retry_left_ms', floor(extract(epoch from retry_until - statement_timestamp()) * 1000), 'snoozes', snoozes, 'uncounted', uncounted, 'tags', tags,
				'metadata', metadata, 'concurrency_key', concurrency_key, 'failures', errors_total, 'crashes', crashes, 'redrives', redrives,
				'last_delay_ms', last_delay_ms, 'age_ms', ` + sinceEnqueue + `, 'unique_period', unique_scope = 'period', 'last_error', case when errors_total > 0 then ` + lastError + ` end)::text
			when errors_total > 0 -- most of those that have anything; JSON would cost them as much again as their update
			then errors_total || ' ' || coalesce(last_delay_ms, 0) || ' ' || ` + sinceEnqueue + ` || ' ' || coalesce(` + lastError + `, '')
			when scheduled_at <> created_at then '0 0 ' || ` + sinceEnqueue + ` || ' ' -- enqueued for later
		end as more
)
select me.at, c.id, c.kind, c.queue, c.lane, c.args, c.attempt, c.claim_seq, c.scheduled_at, c.more`
	claimNextDue = `,
	case when c.id is null then (
		select extract(epoch from min(j.scheduled_at) - statement_timestamp())::float8
		from unnest($8::int[], $9::smallint[]) as l(g, lane)
		cross join lateral (
			select scheduled_at from jobs
			where finalized_at is null and state <> 'running' and queue = ($4::text[])[($6::int[])[l.g]] and lane = l.lane
				and scheduled_at > statement_timestamp() and scheduled_at < 'infinity'
			order by scheduled_at, id limit 1
		) j
	) end
from me left join claimed c on true`
)

// claimedJob is one row of a claim.
type claimedJob struct {
	id, kind, queue string
	lane            int16
	args            json.RawMessage
	attempt         int
	claimSeq        int
	scheduledAt     time.Time
	more            *moreOfJob
	left            bool // its args were not kept: the reply was too large
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
	AgeMS       int64           `json:"age_ms"`
	Period      bool            `json:"unique_period"`

	unreadable error // why the rest is not known; nil: it is
}

// errTooLarge is why a row is not read that passes the bounds of the table.
var errTooLarge = errors.New("its args, metadata or tags are larger than the table jobs allows")

// read takes a JSON object, or of a job that has merely failed or waited: how often it failed, its last delay, its age,
// its last error.
func (m *moreOfJob) read(text []byte) (err error) {
	if len(text) == 0 {
		return errTooLarge
	}
	if len(text) > mostMore {
		return fmt.Errorf("metadata, tags and other fields have %d bytes, and may have at most %d", len(text), mostMore)
	}
	if text[0] == '{' {
		return json.Unmarshal(text, m)
	}
	failures, rest, _ := strings.Cut(string(text), " ")
	delay, rest, _ := strings.Cut(rest, " ")
	age, last, _ := strings.Cut(rest, " ")
	m.LastError = last
	if m.Failures, err = strconv.Atoi(failures); err != nil {
		return err
	}
	if m.LastDelayMS, err = strconv.ParseInt(delay, 10, 64); err != nil {
		return err
	}
	m.AgeMS, err = strconv.ParseInt(age, 10, 64)
	return err
}

// sqlTakeTurn comes before a claim of a backlog, so that claims do not collide: see claimer.turns. The lock ends with the
// transaction. The wait for it is bounded, so a session that hangs while it has the lock does not block others.
const sqlTakeTurn = `select drover_take_turn($1, $2)`

// sqlClaimPlan does what sqlBoundPlan does, and returns how far the server's transaction ids are, for the near sweeps. The
// claim that follows sees everything committed by now. The claim's lock on its supervisor needs a transaction id anyway.
// This runs after the wait for a turn; otherwise the waiting transaction would look like a long-running one to others.
const sqlClaimPlan = sqlBoundPlan + `, extract(epoch from statement_timestamp() - now())::float8, statement_timestamp(),
	pg_snapshot_xmin(pg_current_snapshot())::text::bigint, pg_current_xact_id()::text::bigint`

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
	bound      time.Duration // of the statement
	but        bool          // without the jobs that are set aside
	belowLane  int16         // of jobs that are named: only those of lanes below this one
}

// farthestDue bounds how far ahead a claimer plans: a job that is due later makes it look once an hour.
const farthestDue = time.Hour

// claimReply is what came back; committed once the pipeline has read the commit.
type claimReply struct {
	committed bool
	fenced    bool // the epoch is over: nothing was claimed, nothing can be
	outOfTurn bool // it waited for its turn in vain, and was made without
	seen      transactions
	waited    time.Duration // for its turn, by the server's clock
	at        time.Time
	nextDue   time.Duration // 0: none known
	jobs      []claimedJob
	bytes     int // of args, and of the columns that few jobs set
}

const (
	// largeReply is how many bytes a claim should bring; after a larger reply the next claim asks for fewer jobs.
	largeReply = 64 << 20

	// mostReply is how many bytes of a claim are kept; jobs beyond that are handed back.
	mostReply = 256 << 20

	// mostMore is how much a job may have besides its args. The table's own bounds are far below, so decoding more
	// would only cost the other jobs of the claim time.
	mostMore = 1 << 20
)

// cost is what a claim took, less its wait for its turn, whatever the server's clock did meanwhile.
func (r *claimReply) cost(took time.Duration) time.Duration {
	return took - min(max(r.waited, 0), took)
}

// claim sends a claim. What drover_sleepers is to say goes first, in the same round trip; nil is nothing.
func (s *store) claim(ctx context.Context, conn *pgx.Conn, sleep *sleepRow, req *claimRequest, reply *claimReply) error {
	var p pipeline
	if sleep != nil {
		p.sleep(sleep)
	}
	p.claim(req, reply)
	return p.send(ctx, conn)
}

// claim queues a claim in a transaction of its own.
func (p *pipeline) claim(req *claimRequest, reply *claimReply) {
	p.begin()
	if len(req.turns) > 0 {
		p.query(func(rows pgx.Rows) error {
			got := false
			err := rows.Scan(&got)
			reply.outOfTurn = !got
			return err
		}, sqlTakeTurn, req.turns, req.patience)
	}
	p.query(func(rows pgx.Rows) error {
		var waited float64
		err := rows.Scan(nil, nil, nil, nil, nil, &waited, &reply.seen.at, &reply.seen.oldest, &reply.seen.own)
		reply.waited = seconds(waited)
		return err
	}, sqlClaimPlan, req.bound.Milliseconds())
	sql, args := sqlClaim, req.args()
	if req.but {
		sql = sqlClaimBut
	}
	p.claimed(reply, sql, args...)
	p.commit()
	p.call(func() { reply.committed = true })
}

func (req *claimRequest) args() []any {
	return []any{
		req.supervisor, req.epoch, req.kinds, req.queues, req.rooms, req.groupQueue, req.groupRoom, req.laneGroup, req.lanes, req.floorAt, req.floorID,
	}
}

// claimed queues a statement that claims, and reads its rows.
func (p *pipeline) claimed(reply *claimReply, sql string, args ...any) {
	reply.fenced = true
	row := claimRow{reply: reply}
	columns := row.columns() // once: a row costs the strings that it brings, and its run
	p.query(func(rows pgx.Rows) error {
		reply.fenced = false
		if err := rows.Scan(columns...); err != nil {
			return err
		}
		row.add()
		return nil
	}, sql, args...)
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

// add takes the row into the reply. A job whose row cannot be read in full is claimed all the same, and notes why.
func (r *claimRow) add() {
	if !r.id.Valid {
		if r.secondsToNext.Valid {
			r.reply.nextDue = min(max(seconds(r.secondsToNext.Float64), time.Microsecond), farthestDue)
		}
		return
	}
	j := claimedJob{
		id: r.id.String, kind: string(r.kind), queue: string(r.queue), lane: r.lane.Int16, args: r.args,
		attempt: int(r.attempt.Int32), claimSeq: int(r.seq.Int32), scheduledAt: r.scheduled.Time,
	}
	if r.more != nil {
		j.more = &moreOfJob{}
		if err := j.more.read(r.more); err != nil {
			j.more = &moreOfJob{unreadable: err}
		}
	}
	if r.args == nil {
		j.more = &moreOfJob{unreadable: errTooLarge}
	}
	if r.reply.bytes += len(r.args) + len(r.more); r.reply.bytes > mostReply {
		j.args, j.more, j.left = nil, nil, true
	}
	r.reply.jobs = append(r.reply.jobs, j)
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
