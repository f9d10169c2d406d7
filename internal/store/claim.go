package store

import (
	"bytes"
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

// lastError is an expression for the first 8192 characters of the error text in the entry that drover_last_error
// returns. It calls that function only if an operator has written the newest entry, because the call of a function that
// pins its search_path costs as much as the claim of a row. Texts that drover has written are shorter than the bound.
const lastError = `left((case when errors->-1->>'class' <> 'operator' then errors->-1 else drover_last_error(errors) end)->>'error', 8192)`

// SQLClaim gives due jobs of several queues to supervisor $1, if its epoch $2 is still the current one.
//
// The CTE "me" locks the supervisor's row with a key share lock, so a raise of the epoch waits until this claim has
// ended. Claims with the old epoch that come after the raise find no row. Heartbeats do not wait for the lock.
//
// The CTE "due" goes through the queues, through the groups of lanes of each queue, and through the lanes of each
// group, in the given order. It reads each lane from jobs_claim_idx, beyond its floor and in index order. So LIMIT ends
// the scan, and the server sorts nothing. When the LIMIT of the group or of the queue is reached, the scan does not
// read the lanes that come after. SKIP LOCKED lets claimers pass each other. The conditions that a job must meet stand
// in the same subquery as the LIMIT. Otherwise rows that do not meet them would use up the LIMIT in every claim. The
// CTEs are materialized, because the server may execute a subquery twice, and would then claim too many jobs.
//
// The CTE "claimed" changes no indexed column, so the update can be HOT. It cannot be HOT for a job that is unique
// until it has started, because the update takes such a job out of jobs_unique_idx. If $12 is true, the statement also
// returns the age of jobs that were enqueued for later. The update compares ids with an array, because with a join to
// the CTE "due" a generic plan would scan the whole table.
//
// The left join returns a row with the server's time even if no job was due. If there is no row at all, the epoch is
// over. The time is when the statement began and not when the transaction began, because the claim may have waited for
// its turn in between. If no job was claimed, or $13 is true, the rows also have the time until the next job of these
// lanes is due, whatever its kind. The server looks for that job once, because the subquery does not depend on the
// claimed jobs.
const SQLClaim = claimMe + claimDue + claimTake + `$12 and ` + claimAges + claimMore + claimNextDue

// sqlClaimBut is SQLClaim without the jobs that are set aside. Claims use it only while there are such jobs. A subquery
// looks for each job in drover_set_aside, because a join might not keep the order of the index.
const sqlClaimBut = claimMe + claimDueBut + claimTake + `$12 and ` + claimAges + claimMore + claimNextDue

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
	// claimLastOnes reads up to five jobs of each lane, from the end of the lane.
	claimLastOnes = `
				order by scheduled_at desc, id desc limit least(g.room, 5) for update skip locked
			) j
			where l.g = g.n limit g.room
		) j
		where g.q = q.n limit q.room
	) j
)`
	// sinceEnqueue is how long ago the job was enqueued or last redriven, in ms. An earlier time than the year 1 counts as
	// the year 1, and a later time than the year 9999 as the year 9999, because infinite times cannot be subtracted.
	// date_part computes in float8, which costs less than extract.
	sinceEnqueue = `(date_part('epoch', statement_timestamp() - least(greatest(created_at, redriven_at, '0001-01-01+00'), '9999-12-30+00')) * 1000)::bigint`

	// rawSize is how many bytes metadata and tags take uncompressed. For 20 MB of control characters the server computes
	// this number within 15 ms. If it wrote these values as text (120 MB), it would need two seconds, and could not be
	// interrupted in this time. oddSize reports whether rawSize is larger than mostMore. It looks at the compressed sizes
	// first, which costs nothing. No compression makes a value more than 255 times smaller, so oddSize needs no rawSize
	// for a small value.
	rawSize = `(pg_column_size(coalesce(metadata, '{}') || '{}') + pg_column_size(coalesce(tags, '{}') || '{}'))`
	oddSize = `num_nonnulls(metadata, tags) > 0 and coalesce(pg_column_size(metadata), 0) + coalesce(pg_column_size(tags), 0) > 4096 and ` + rawSize + ` > 1048576` // mostMore

	claimTake = `, claimed as (
	update jobs set state = 'running', attempt = attempt + 1, claim_seq = claim_seq + 1, claimed_by = $1, attempted_at = statement_timestamp(),
		unique_until = case when unique_scope = 'started' then null else unique_until end
	where id = any(array(select id from due))
	returning id, kind, queue, lane, args, attempt, claim_seq, scheduled_at,
		case
			when num_nonnulls(max_attempts, retry, timeout_ms, expires_at, retry_until, snoozes, uncounted, tags, metadata, concurrency_key, redrive_id) > 0
				or crashes > 0 or redrives > 0 or unique_scope = 'period'
			then case
			when ` + oddSize + ` then '!' || ` + rawSize + `
			-- The job has metadata, such as a trace, and no other rare column. JSON of all columns would double the cost of the
			-- job.
			when metadata is not null and num_nonnulls(max_attempts, retry, timeout_ms, expires_at, retry_until, snoozes, uncounted, tags, metadata, concurrency_key, redrive_id) = 1
				and crashes = 0 and redrives = 0 and errors_total = 0 and unique_scope is distinct from 'period'
			then 'm' || ` + sinceEnqueue + ` || ' ' || metadata
			else json_build_object('max_attempts', max_attempts, 'retry', retry, 'timeout_ms', timeout_ms, 'expired', expires_at <= statement_timestamp(),
				'retry_left_ms', floor(extract(epoch from retry_until - statement_timestamp()) * 1000), 'snoozes', snoozes, 'uncounted', uncounted, 'tags', tags,
				'metadata', metadata, 'concurrency_key', concurrency_key, 'failures', errors_total, 'crashes', crashes, 'redrives', redrives,
				'last_delay_ms', last_delay_ms, 'age_ms', ` + sinceEnqueue + `, 'keep', unique_scope = 'period' or redrive_id is not null, 'last_error', case when errors_total > 0 then ` + lastError + ` end)::text end
			when errors_total > 0 -- true for most jobs that have run before; JSON would cost as much as the update itself
			then errors_total || ' ' || coalesce(last_delay_ms, 0) || ' ' || ` + sinceEnqueue + ` || ' ' || coalesce(` + lastError + `, '')
			when `
	claimAges = `scheduled_at <> created_at` // true for a job that was enqueued for later
	claimMore = ` then '0 0 ' || ` + sinceEnqueue + ` || ' '
		end as more
)
select me.at, c.id, c.kind, c.queue, c.lane, c.args, c.attempt, c.claim_seq, c.scheduled_at, c.more`
	claimNextDue = `,
	case when c.id is null or $13 then (
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

// Job is one row of a claim.
type Job struct {
	ID, Kind, Queue string
	Lane            int16
	Args            json.RawMessage
	Attempt         int
	ClaimSeq        int
	ScheduledAt     time.Time
	More            *More
	Left            bool // the claim did not keep its Args and More, because the reply was too large
}

// More has the columns that few jobs set.
type More struct {
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
	Keep        bool            `json:"keep"` // the job's row has to stay after its completion

	Unreadable error // why the other fields are not known; nil: they are known
}

// read parses the column "more" of SQLClaim. It is a JSON object, or one of three shorter forms. The text "!" with a
// size means that the values are too large. The letter "m" precedes the age and the metadata of a job that has no other
// values. A text that begins with a digit has the number of the job's failures, its last delay, its age and its last
// error.
func (m *More) read(text []byte) (err error) {
	size := strconv.Itoa(len(text))
	if text[0] == '!' { // the server did not send the values, only their size
		size = string(text[1:])
	}
	if text[0] == '!' || len(text) > mostMore {
		return fmt.Errorf("%s bytes of metadata, tags and the like; at most %d", size, mostMore)
	}
	if text[0] == '{' {
		if err := json.Unmarshal(text, m); err != nil || string(m.Metadata) != "null" {
			return err
		}
		m.Metadata = nil // the job has none
		return nil
	}
	if text[0] == 'm' {
		age, metadata, _ := bytes.Cut(text[1:], []byte{' '})
		if string(metadata) != "null" {
			m.Metadata = bytes.Clone(metadata) // text belongs to the driver
		}
		if len(metadata) > 10_000 { // a jsonb of this size may be nested more deeply than encoding/json reads
			if err := json.Unmarshal(metadata, &m.Metadata); err != nil {
				return err
			}
		}
		m.AgeMS, err = strconv.ParseInt(string(age), 10, 64)
		return err
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

// SQLTakeTurn comes before a claim of many jobs of a backlog, so that no two of these claims overlap. The engine's
// method Turns explains why. SQLTakeTurn takes locks that end with the transaction. It waits for them no longer than
// $2, so a session that hangs with one of these locks does not stop the other claims.
const SQLTakeTurn = `select drover_take_turn($1, $2)`

// SQLClaimPlan does what pg.QuickPlan does. It also returns how long the transaction has waited for its turn. For the
// near sweeps it returns the id of the oldest transaction that is in progress, and its own id. The claim that follows
// sees all rows of transactions that are older than that oldest one. SQLClaimPlan gives the transaction an id, which
// the claim needs anyway for its lock on the supervisor's row. SQLClaimPlan comes after the wait for a turn. Otherwise
// the transaction would have an id during the wait, and other supervisors would take it for a transaction that has
// written and stays open.
const SQLClaimPlan = pg.QuickPlan + `, extract(epoch from statement_timestamp() - now())::float8, statement_timestamp(),
	pg_snapshot_xmin(pg_current_snapshot())::text::bigint, pg_current_xact_id()::text::bigint`

// ClaimRequest asks for jobs of several queues.
type ClaimRequest struct {
	Supervisor   string
	Epoch        int
	Kinds        []string
	Queues       []string
	Rooms        []int32
	GroupQueue   []int32 // index into Queues, from 1
	GroupRoom    []int32
	LaneGroup    []int32 // index into GroupQueue, from 1
	Lanes        []int16
	FloorAt      []time.Time
	FloorID      []string
	Turns        []string // queues in which the claim waits for its turn
	Patience     time.Duration
	NextDue      bool  // look for the next due time even if jobs were claimed
	SkipSetAside bool  // do not claim jobs that are set aside
	Ages         bool  // return the ages of jobs that were enqueued for later; set if some worker bounds the time of its retries
	BelowLane    int16 // for ClaimThese: only jobs of lanes below this one
}

// Only returns a request for the lanes with these indexes.
func (req *ClaimRequest) Only(lanes []int) *ClaimRequest {
	part := *req
	part.LaneGroup, part.Lanes, part.FloorAt, part.FloorID = nil, nil, nil, nil
	for _, i := range lanes {
		part.LaneGroup, part.Lanes = append(part.LaneGroup, req.LaneGroup[i]), append(part.Lanes, req.Lanes[i])
		part.FloorAt, part.FloorID = append(part.FloorAt, req.FloorAt[i]), append(part.FloorID, req.FloorID[i])
	}
	return &part
}

// Lane returns the i-th lane of the request.
func (req *ClaimRequest) Lane(i int) floors.Lane {
	return floors.Lane{Queue: req.Queues[req.GroupQueue[req.LaneGroup[i]-1]-1], N: req.Lanes[i]}
}

// farthestDue is the upper bound of ClaimReply.NextDue. If the next job is due later, the claimer looks again after
// this time.
const farthestDue = time.Hour

// ClaimReply is the result of a claim. Committed is set once the pipeline has read the commit.
type ClaimReply struct {
	Committed bool
	Fenced    bool // the epoch is over: no job was claimed, and none can be
	OutOfTurn bool // the claim's turn did not come in time, and the claim went on without it
	Seen      floors.Seen
	Waited    time.Duration // how long the claim waited for its turn, by the server's clock
	At        time.Time
	NextDue   time.Duration // how long until the next job is due; 0: none is known, or the claim did not look for it
	Jobs      []Job
	Bytes     int // the size of Args and More, including the jobs with Left
}

const (
	// LargeReply is how many bytes a claim should return at most. After a larger reply the next claim asks for fewer
	// jobs.
	LargeReply = 64 << 20

	// mostReply is how many bytes of a reply are kept. The claimer gives back the jobs beyond it.
	mostReply = 256 << 20

	// mostMore bounds the text of a job's More. The checks of the table allow far less. Decoding a longer text would
	// only take time from the other jobs of the claim.
	mostMore = 1 << 20
)

// Cost returns how long a claim took without the wait for its turn. The parameter took includes that wait. The result
// lies between 0 and took, even if the server's clock was changed during the claim.
func (r *ClaimReply) Cost(took time.Duration) time.Duration {
	return took - min(max(r.Waited, 0), took)
}

// Claim takes due jobs. Before that, in the same round trip, it takes and releases locks with which this connection is
// the lookout of queues (crew.go). The parameter lookout may be nil.
func (s Session) Claim(ctx context.Context, lookout *Lookout, req *ClaimRequest, reply *ClaimReply) error {
	var p pipeline
	p.Begin()
	if lookout != nil {
		p.queueLookout(lookout)
	}
	if len(req.Turns) > 0 {
		p.Query(func(rows pgx.Rows) error {
			got := false
			err := rows.Scan(&got)
			reply.OutOfTurn = !got
			return err
		}, SQLTakeTurn, req.Turns, req.Patience)
	}
	p.Query(func(rows pgx.Rows) error {
		var waited float64
		err := rows.Scan(nil, nil, nil, nil, &waited, &reply.Seen.At, &reply.Seen.Oldest, &reply.Seen.Own)
		reply.Waited = pg.Seconds(waited)
		return err
	}, SQLClaimPlan)
	sql, args := SQLClaim, req.Args()
	if req.SkipSetAside {
		sql = sqlClaimBut
	}
	p.queueClaim(reply, sql, args...)
	p.Commit()
	p.Call(func() { reply.Committed = true })
	return p.Send(ctx, s.Conn)
}

// Args returns the parameters of SQLClaim. The statements of Candidates take all of them except the last two.
func (req *ClaimRequest) Args() []any {
	return []any{
		req.Supervisor, req.Epoch, req.Kinds, req.Queues, req.Rooms, req.GroupQueue, req.GroupRoom, req.LaneGroup, req.Lanes, req.FloorAt, req.FloorID, req.Ages, req.NextDue,
	}
}

// queueClaim queues a statement that claims, and reads its rows.
func (p *pipeline) queueClaim(reply *ClaimReply, sql string, args ...any) {
	reply.Fenced = true
	row := ClaimRow{Reply: reply}
	columns := row.columns() // one set for all rows, so that a row allocates only its strings
	p.Query(func(rows pgx.Rows) error {
		reply.Fenced = false
		if err := rows.Scan(columns...); err != nil {
			return err
		}
		row.Add()
		return nil
	}, sql, args...)
}

// ClaimRow reads the rows of a claim, one after another.
type ClaimRow struct {
	Reply         *ClaimReply
	id            pgtype.Text
	kind, queue   sameText
	lane          pgtype.Int2
	args, more    []byte
	attempt, seq  pgtype.Int4
	scheduled     pgtype.Timestamptz
	SecondsToNext pgtype.Float8
}

func (r *ClaimRow) columns() []any {
	return []any{
		&r.Reply.At, &r.id, &r.kind, &r.queue, &r.lane, &r.args, &r.attempt, &r.seq, &r.scheduled, &r.more, &r.SecondsToNext,
	}
}

// Add adds the row to the reply. If the More of a job cannot be read, the job is still claimed, and More.Unreadable has
// the error.
func (r *ClaimRow) Add() {
	if r.SecondsToNext.Valid {
		r.Reply.NextDue = min(max(pg.Seconds(r.SecondsToNext.Float64), time.Microsecond), farthestDue)
	}
	if !r.id.Valid {
		return
	}
	j := Job{
		ID: r.id.String, Kind: string(r.kind), Queue: string(r.queue), Lane: r.lane.Int16, Args: r.args,
		Attempt: int(r.attempt.Int32), ClaimSeq: int(r.seq.Int32), ScheduledAt: r.scheduled.Time,
	}
	if r.more != nil {
		j.More = &More{}
		if err := j.More.read(r.more); err != nil {
			j.More = &More{Unreadable: err}
		}
	}
	if r.Reply.Bytes += len(r.args) + len(r.more); r.Reply.Bytes > mostReply {
		j.Args, j.More, j.Left = nil, nil, true
	}
	r.Reply.Jobs = append(r.Reply.Jobs, j)
}

// sameText is a column with the same value in most rows. It allocates only when the value changes.
type sameText string

// ScanBytes implements pgtype.BytesScanner.
func (s *sameText) ScanBytes(text []byte) error {
	if string(text) != string(*s) {
		*s = sameText(text)
	}
	return nil
}
