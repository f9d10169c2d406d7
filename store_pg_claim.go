package drover

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/drover-queue/drover/internal/floors"
	"github.com/drover-queue/drover/internal/pg"
)

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
// The time is the statement's, not the transaction's: the claim may have waited for its turn.
// When nothing was claimed it also tells when the next job of these lanes is due, of whatever kind.
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
	claimTake = `, claimed as (
	update jobs set state = 'running', attempt = attempt + 1, claim_seq = claim_seq + 1, claimed_by = $1, attempted_at = statement_timestamp()
	where id = any(array(select id from due))
	returning id, kind, queue, lane, args, attempt, claim_seq, scheduled_at,
		case
			when num_nonnulls(max_attempts, retry, timeout_ms, expires_at, retry_until, snoozes, uncounted, tags, metadata, concurrency_key) > 0
				or crashes > 0 or redrives > 0
			then json_build_object('max_attempts', max_attempts, 'retry', retry, 'timeout_ms', timeout_ms, 'expired', expires_at <= statement_timestamp(),
				'retry_left_ms', floor(extract(epoch from retry_until - statement_timestamp()) * 1000), 'snoozes', snoozes, 'uncounted', uncounted, 'tags', tags,
				'metadata', metadata, 'concurrency_key', concurrency_key, 'failures', errors_total, 'crashes', crashes, 'redrives', redrives,
				'last_delay_ms', last_delay_ms, 'last_error', case when errors_total > 0 then ` + lastError + ` end)::text
			when errors_total > 0 -- most of those that have anything; JSON would cost them as much again as their update
			then errors_total || ' ' || coalesce(last_delay_ms, 0) || ' ' || coalesce(` + lastError + `, '')
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

	unreadable error // why the rest is not known; nil: it is
}

// read takes a JSON object, or of a job that has merely failed: how often, its last delay, its last error.
func (m *moreOfJob) read(text []byte) (err error) {
	if len(text) > mostMore {
		return fmt.Errorf("%d bytes of metadata, tags and the like; at most %d", len(text), mostMore)
	}
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

// sqlClaimPlan does what pg.QuickPlan does, and tells how far the server's transactions are, for the near sweeps: what has ended by now
// the claim behind it sees. The claim's lock on its supervisor needs an id anyway. It goes behind the wait for a turn, or
// others would take that for a long transaction.
const sqlClaimPlan = pg.QuickPlan + `, extract(epoch from statement_timestamp() - now())::float8, statement_timestamp(),
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
	but        bool  // without the jobs that are set aside
	belowLane  int16 // of jobs that are named: only those of lanes below this one
}

// only is the request for some of its lanes.
func (req *claimRequest) only(lanes []int) *claimRequest {
	part := *req
	part.laneGroup, part.lanes, part.floorAt, part.floorID = nil, nil, nil, nil
	for _, i := range lanes {
		part.laneGroup, part.lanes = append(part.laneGroup, req.laneGroup[i]), append(part.lanes, req.lanes[i])
		part.floorAt, part.floorID = append(part.floorAt, req.floorAt[i]), append(part.floorID, req.floorID[i])
	}
	return &part
}

// lane is the i-th lane of the request.
func (req *claimRequest) lane(i int) floors.Lane {
	return floors.Lane{Queue: req.queues[req.groupQueue[req.laneGroup[i]-1]-1], N: req.lanes[i]}
}

// farthestDue bounds how far ahead a claimer plans: a job that is due later makes it look once an hour.
const farthestDue = time.Hour

// claimReply is what came back; committed once the pipeline has read the commit.
type claimReply struct {
	committed bool
	slept     bool // what it was to say in drover_sleepers is committed
	fenced    bool // the epoch is over: nothing was claimed, nothing can be
	outOfTurn bool // it waited for its turn in vain, and was made without
	seen      floors.Seen
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

	// mostMore is as much as a job may have beside its args. The table's own bounds are far below, so decoding more
	// would cost the other jobs of the claim their time for nothing.
	mostMore = 1 << 20
)

// cost is what a claim took, less its wait for its turn, whatever the server's clock did meanwhile.
func (r *claimReply) cost(took time.Duration) time.Duration {
	return took - min(max(r.waited, 0), took)
}

// claim takes due jobs. In the same round trip, before it, it says in drover_sleepers whether the supervisor looks by
// itself; note may be nil.
func (s session) claim(ctx context.Context, note *sleep, req *claimRequest, reply *claimReply) error {
	var p pipeline
	if note != nil {
		p.sleep(note)
		p.Call(func() { reply.slept = true })
	}
	p.Begin()
	if len(req.turns) > 0 {
		p.Query(func(rows pgx.Rows) error {
			got := false
			err := rows.Scan(&got)
			reply.outOfTurn = !got
			return err
		}, sqlTakeTurn, req.turns, req.patience)
	}
	p.Query(func(rows pgx.Rows) error {
		var waited float64
		err := rows.Scan(nil, nil, nil, nil, &waited, &reply.seen.At, &reply.seen.Oldest, &reply.seen.Own)
		reply.waited = pg.Seconds(waited)
		return err
	}, sqlClaimPlan)
	sql, args := sqlClaim, req.args()
	if req.but {
		sql = sqlClaimBut
	}
	p.claimed(reply, sql, args...)
	p.Commit()
	p.Call(func() { reply.committed = true })
	return p.Send(ctx, s.conn)
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
	p.Query(func(rows pgx.Rows) error {
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
			r.reply.nextDue = min(max(pg.Seconds(r.secondsToNext.Float64), time.Microsecond), farthestDue)
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
