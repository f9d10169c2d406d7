package store

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/pg"
)

// Supervisors show by advisory locks of their connections which of them are lookouts and which are on call. A lock
// writes no row, and ends with its connection.

// CallSlots is how many supervisors of a crew may be on call in a queue. The SQL function drover_wake uses the same
// number.
const CallSlots = 8

// Crew has the keys of the locks of one crew: the supervisors that serve the same kinds in a queue.
type Crew struct {
	Lookout int64 // the key of the lock that the awake supervisor (the lookout) holds
	OnCall  int64 // the key of the first of CallSlots locks; each supervisor on call holds one
}

const (
	sqlRegisterCrew = `
insert into drover_crews as c (queue, crew, kinds, lookout, on_call, polls, channel)
select $1, s.crew, $3::text[], hashtextextended(format('%s lookout %s %s', drover_channel(), $1::text, s.crew), 0),
	hashtextextended(format('%s on call %s %s', drover_channel(), $1::text, s.crew), 0), $4::interval, drover_channel()
from drover_supervisors s where s.id = $2 and s.crew is not null
on conflict (queue, crew) do update set polls = excluded.polls where c.polls < excluded.polls`

	// sqlForgetCrews skips a row that another session has locked. The next supervisor that stops deletes that row.
	sqlForgetCrews = `
delete from drover_crews where (queue, crew) in (
	select c.queue, c.crew from drover_crews c
	where not exists (select from drover_supervisors s where s.crew = c.crew and c.queue = any(s.queues)) for update skip locked)`

	sqlCrews = `
select c.queue, c.lookout, c.on_call from drover_crews c join drover_supervisors s on s.crew = c.crew and c.queue = any(s.queues) where s.id = $1`

	sqlTakeLookout = `select k from unnest($1::bigint[]) as k where pg_try_advisory_lock(k)`
	sqlLeaveAll    = `select pg_advisory_unlock_all()`

	// sqlLeave first checks which of the locks this session holds. Behind a transaction pooler the statement may run in
	// another session. There the server would log a warning for each lock that the session does not hold.
	sqlLeave = `
select pg_advisory_unlock(k) from unnest($1::bigint[]) as k
where exists (select from pg_locks where pid = pg_backend_pid() and locktype = 'advisory' and objsubid = 1 and classid::bigint << 32 | objid::bigint = k)`

	// sqlGoOnCall takes a free slot in each queue whose slots begin at one of $1.
	sqlGoOnCall = `
select first, (select first + i from generate_series(0, $2 - 1) as i where pg_try_advisory_lock(first + i) limit 1)
from unnest($1::bigint[]) as first`

	sqlHandOn = `select drover_wake($1, to_timestamp($2::float8 / 1000000), passes => $3)`
)

// readCrews queues the query for a supervisor's crews, and stores each crew under its queue.
func (p *pipeline) readCrews(id string, crews *map[string]Crew) {
	*crews = map[string]Crew{}
	p.Query(func(rows pgx.Rows) error {
		var queue string
		var c Crew
		err := rows.Scan(&queue, &c.Lookout, &c.OnCall)
		(*crews)[queue] = c
		return err
	}, sqlCrews, id)
}

// Lookout has the keys of the locks with which a claim's connection becomes the lookout of queues (Take), or
// stops being their lookout (Leave).
type Lookout struct {
	Take, Leave []int64
	LeaveAll    bool    // leave all locks first, because the caller does not know which locks the connection holds
	Took        []int64 // filled in: the keys of the locks that the connection got
}

// queueLookout queues the changes of l. Advisory locks take effect immediately, and not with the commit. So an enqueue
// that still saw this connection as the lookout came before the statements that follow. These statements find its job
// if the enqueue has committed.
func (p *pipeline) queueLookout(l *Lookout) {
	if l.LeaveAll {
		p.Exec(nil, sqlLeaveAll)
	}
	if len(l.Leave) > 0 {
		p.Exec(nil, sqlLeave, l.Leave)
	}
	if len(l.Take) > 0 {
		p.Query(pg.Into(&l.Took, pgx.RowTo[int64]), sqlTakeLookout, l.Take)
	}
}

// Lookout takes and leaves the locks of lookouts in a round trip of its own. Claim can do the same before it claims.
func (s Session) Lookout(ctx context.Context, l *Lookout) error {
	return s.inTx(ctx, func(p *pipeline) { p.queueLookout(l) })
}

// goOnCall queues sqlGoOnCall. For each slot that the connection gets, it adds the slot to the map got, under the first
// slot of the queue.
func (p *pipeline) goOnCall(firsts []int64, got map[int64]int64) {
	if len(firsts) == 0 {
		return
	}
	p.Query(func(rows pgx.Rows) error {
		var first int64
		var slot *int64
		err := rows.Scan(&first, &slot)
		if slot != nil {
			got[first] = *slot
		}
		return err
	}, sqlGoOnCall, firsts, CallSlots)
}

// GoOnCall takes a free slot in each queue whose slots begin at one of firsts. The map got has each slot that the
// connection got, under the first slot of the queue. GoOnCall also returns the stamp of the limits, because a
// supervisor that does not listen for notifications learns of a pause in this way.
func (s Session) GoOnCall(ctx context.Context, firsts []int64) (got map[int64]int64, limits string, err error) {
	got = map[int64]int64{}
	err = s.inTx(ctx, func(p *pipeline) {
		p.goOnCall(firsts, got)
		p.Query(func(rows pgx.Rows) error { return rows.Scan(&limits) }, `select coalesce(`+sqlLimitsStamp+`, '')`)
	})
	return got, limits, err
}

// HandOn notifies other supervisors of due jobs. The parameter due is the time from which the jobs are due, in µs since
// 1970. HandOn reports whether it has notified a supervisor on call. The parameter slot is our own slot; 0: we are not
// on call. If leave is true, HandOn gives up the slot first, so that later enqueues do not notify us. An enqueue that
// has still seen us on call may commit later. The notified supervisors find its job when they look again (the engine's
// missedPoll).
func (s Session) HandOn(ctx context.Context, queue string, due, slot int64, leave bool) (told bool, err error) {
	err = s.inTx(ctx, func(p *pipeline) {
		if leave && slot != 0 {
			p.Exec(nil, sqlLeave, []int64{slot})
		}
		p.Query(func(rows pgx.Rows) error { return rows.Scan(&told) }, sqlHandOn, queue, due, slot)
	})
	return told, err
}

// LeaveAll gives up all locks of the connection.
func (s Session) LeaveAll(ctx context.Context) error {
	_, err := s.exec(ctx, sqlLeaveAll)
	return err
}
