package drover

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"
)

// Liveness, rescue, sweeps, sleep and pruning: all by the supervisor's control connection but where said.

const sqlRegister = `
insert into supervisors (id, lease_ms, queues, slots, host, pid, build) values ($1, $2, $3, $4, $5, $6, $7)`

// Policies stand in tables, for a rescuer, psql and the command may not know this process' code.
const (
	sqlRegisterQueue = `
insert into queues (name, max_attempts, retry) values ($1, $2, $3)
on conflict (name) do update set max_attempts = excluded.max_attempts, retry = excluded.retry, updated_at = now()
where (queues.max_attempts, queues.retry) is distinct from (excluded.max_attempts, excluded.retry)`

	sqlRegisterKind = `
insert into kinds (kind, max_attempts, retry, timeout_ms, build) values ($1, $2, $3, $4, $5)
on conflict (kind) do update set max_attempts = excluded.max_attempts, retry = excluded.retry, timeout_ms = excluded.timeout_ms,
	build = excluded.build, seen_at = now()`

	// Only beside a row in supervisors: a sleeper without one would pass for awake for ever.
	sqlRegisterSleeper = `
insert into sleepers (queue, supervisor) select $1, id from supervisors where id = $2 on conflict do nothing`
)

// registration is what a supervisor tells of itself.
type registration struct {
	id, host, build string
	pid             int
	lease           time.Duration
	queues          []queuePolicy
	kinds           []kindPolicy
	listens         bool
}

type queuePolicy struct {
	name        string
	slots       int
	maxAttempts *int
	retry       *string
}

type kindPolicy struct {
	kind        string
	maxAttempts *int
	retry       *string
	timeoutMS   *int64
}

func (s *store) register(ctx context.Context, conn *pgx.Conn, reg *registration) error {
	var p pipeline
	names, slots := reg.slots()
	p.begin()
	p.exec(nil, sqlRegister, reg.id, reg.lease.Milliseconds(), names, slots, reg.host, reg.pid, reg.build)
	p.queues(reg)
	for _, k := range reg.kinds {
		p.exec(nil, sqlRegisterKind, k.kind, k.maxAttempts, k.retry, k.timeoutMS, reg.build)
	}
	p.commit()
	return p.send(ctx, conn)
}

// slots are the queues' names, and a JSON object of their concurrency.
func (reg *registration) slots() (names []string, doc string) {
	slots := make(map[string]int, len(reg.queues))
	for _, q := range reg.queues {
		names, slots[q.name] = append(names, q.name), q.slots
	}
	raw, _ := json.Marshal(slots) // strings and ints only: cannot fail
	return names, string(raw)
}

// queues stores the queues' policies, sorted by name as the kinds are: two that start at once must not deadlock.
func (p *pipeline) queues(reg *registration) {
	for _, q := range reg.queues {
		p.exec(nil, sqlRegisterQueue, q.name, q.maxAttempts, q.retry)
		if reg.listens {
			p.exec(nil, sqlRegisterSleeper, q.name, reg.id)
		}
	}
}

const sqlServe = `update supervisors set queues = $2, slots = $3 where id = $1`

const sqlUnserve = `delete from sleepers where supervisor = $1 and queue <> all($2::text[])`

// serve changes which queues a running supervisor is known to serve.
func (s *store) serve(ctx context.Context, id string, reg *registration) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	var p pipeline
	names, slots := reg.slots()
	p.begin()
	p.exec(nil, sqlServe, id, names, slots)
	p.exec(nil, sqlUnserve, id, names)
	p.queues(reg)
	p.commit()
	return p.send(ctx, conn.Conn())
}

// sqlBeat is a supervisor's sign of life, and its look at the others. It does not touch the key, so claims under
// way do not hold it up; a row that others have declared lost is not revived.
const sqlBeat = `
with mine as (
	update supervisors set beat = beat + 1, beat_at = now(), in_flight = $3, draining = $4
	where id = $1 and epoch = $2 and lost_at is null
	returning id
)
select s.id, s.epoch, s.beat, s.lease_ms, s.lost_at is not null, s.queues, extract(epoch from now())::float8, exists (select from mine)
from supervisors s`

// peer is a supervisor as another one sees it.
type peer struct {
	id      string
	epoch   int
	beat    int64
	leaseMS int64
	lost    bool
	queues  []string
}

// beatReply is what a heartbeat tells.
type beatReply struct {
	alive bool // our own row took the beat
	peers []peer
	clock float64 // the server's, in seconds
}

func (s *store) beat(ctx context.Context, conn *pgx.Conn, id string, epoch int, inFlight []string, draining bool) (beatReply, error) {
	var p pipeline
	var reply beatReply
	p.begin()
	p.query(func(rows pgx.Rows) error {
		var other peer
		if err := rows.Scan(&other.id, &other.epoch, &other.beat, &other.leaseMS, &other.lost, &other.queues, &reply.clock, &reply.alive); err != nil {
			return err
		}
		reply.peers = append(reply.peers, other)
		return nil
	}, sqlBeat, id, epoch, inFlight, draining)
	p.commit()
	return reply, p.send(ctx, conn)
}

// sqlRaiseEpoch ends every claim begun under the old epoch: it waits for those under way, for their key share
// lock conflicts with a change of the key, and later ones find no row.
const sqlRaiseEpoch = `
update supervisors set epoch = epoch + 1 where id = $1 and epoch = $2 and lost_at is null returning epoch`

const sqlEpoch = `select epoch, lost_at is not null from supervisors where id = $1`

// raiseEpoch returns the new epoch, or ErrLeaseLost.
func (s *store) raiseEpoch(ctx context.Context, conn *pgx.Conn, id string, epoch int) (int, error) {
	var p pipeline
	var now int
	lost := true
	p.begin()
	p.exec(nil, sqlRaiseEpoch, id, epoch)
	p.query(func(rows pgx.Rows) error { return rows.Scan(&now, &lost) }, sqlEpoch, id)
	p.commit()
	if err := p.send(ctx, conn); err != nil {
		return 0, err
	}
	if lost || now <= epoch {
		return 0, ErrLeaseLost
	}
	return now, nil
}

// sqlDeclareLost takes a silent supervisor's lease, if it is still as it was observed.
const sqlDeclareLost = `
update supervisors set epoch = epoch + 1, lost_at = now() where id = $1 and epoch = $2 and beat = $3 and lost_at is null`

// sqlLostSleeps lets enqueues notify others: a lost supervisor is not awake.
const sqlLostSleeps = `
delete from sleepers where supervisor = $1 and exists (select from supervisors where id = $1 and lost_at is not null)`

func (s *store) declareLost(ctx context.Context, conn *pgx.Conn, x peer) (bool, error) {
	var p pipeline
	var n int64
	p.begin()
	p.exec(&n, sqlDeclareLost, x.id, x.epoch, x.beat)
	p.exec(nil, sqlLostSleeps, x.id)
	p.commit()
	return n == 1, p.send(ctx, conn)
}

// sqlHeldBy lists running jobs of supervisor $1 with the policies that apply to them. No index serves claimed_by:
// it reads jobs_claim_idx lane by lane, up to now unless $3 says to read it all (the server's clock may have gone
// back under them), and leaves out the ids $4.
const sqlHeldBy = `
select j.id, j.queue, j.kind, j.attempt, j.claim_seq, j.crashes, j.last_delay_ms,
	coalesce(j.max_attempts, k.max_attempts, q.max_attempts, 20), j.retry::text, coalesce(k.retry, q.retry)::text,
	coalesce(j.id = any(s.in_flight), false), coalesce((s.slots->>j.queue)::int, 0),
	coalesce(format('%s, process %s', s.host, s.pid), '')
from unnest($2::text[]) as w(queue)
cross join generate_series(0, 3) as tier(n)
cross join generate_series(1, 9) as priority(n)
cross join lateral (
	select * from jobs
	where finalized_at is null and queue = w.queue and lane = tier.n * 10 + priority.n
		and ($3 or scheduled_at <= now() + interval '1 minute')
		and state = 'running' and claimed_by = $1 and id <> all($4)
	limit 1000 -- maxHeld
) j
left join kinds k on k.kind = j.kind
left join queues q on q.name = j.queue
left join supervisors s on s.id = $1
limit 1000`

// maxHeld is how many sqlHeldBy lists.
const maxHeld = 1000

// heldJob is a running job of a supervisor that cannot end it.
type heldJob struct {
	id, queue, kind string
	attempt         int
	claimSeq        int
	crashes         int
	lastDelay       time.Duration
	maxAttempts     int
	retry           *string // the job's own strategy
	policy          *string // its kind's or queue's
	inFlight        bool    // its handler was running at the last beat
	slots           int     // of its queue there
	host            string
}

func (s *store) heldBy(ctx context.Context, conn *pgx.Conn, owner string, queues, except []string, all bool) ([]heldJob, error) {
	if except == nil {
		except = []string{} // null would compare with nothing
	}
	var p pipeline
	var held []heldJob
	p.begin()
	p.exec(nil, sqlOnePlan)
	p.query(func(rows pgx.Rows) error {
		var j heldJob
		var lastDelayMS *int64
		err := rows.Scan(&j.id, &j.queue, &j.kind, &j.attempt, &j.claimSeq, &j.crashes, &lastDelayMS,
			&j.maxAttempts, &j.retry, &j.policy, &j.inFlight, &j.slots, &j.host)
		if lastDelayMS != nil {
			j.lastDelay = time.Duration(*lastDelayMS) * time.Millisecond
		}
		held = append(held, j)
		return err
	}, sqlHeldBy, owner, queues, all, except)
	p.commit()
	return held, p.send(ctx, conn)
}

// sqlForget ends a supervisor's rows: a stop, or a rescue that found nothing more.
const (
	sqlForget        = `delete from supervisors where id = $1`
	sqlForgetSleeper = `delete from sleepers where supervisor = $1`
)

func (s *store) forget(ctx context.Context, conn *pgx.Conn, id string) error {
	var p pipeline
	p.begin()
	p.exec(nil, sqlForgetSleeper, id)
	p.exec(nil, sqlForget, id)
	p.commit()
	return p.send(ctx, conn)
}

// sqlSweep looks for due jobs at or behind the floors: transactions that committed late. A plain SELECT, no locks.
// It gives the first key of each lane; the lane's floor goes back to it.
const sqlSweep = `
select l.queue, l.lane, j.scheduled_at
from unnest($1::text[], $2::smallint[], $3::timestamptz[], $4::text[]) as l(queue, lane, floor_at, floor_id)
cross join lateral (
	select scheduled_at, id from jobs
	where finalized_at is null and state <> 'running' and queue = l.queue and lane = l.lane
		and scheduled_at <= now() and (scheduled_at, id) <= (l.floor_at, l.floor_id) and kind = any($5)
	order by scheduled_at, id limit 1
) j`

// sqlOrphans finds owners that no row of supervisors speaks for any more: nobody would rescue their jobs. Lane by
// lane, so that it does not read a million jobs that are not due yet.
const sqlOrphans = `
select distinct j.claimed_by
from unnest($1::text[], $2::smallint[]) as w(queue, lane)
cross join lateral (
	select claimed_by from jobs
	where finalized_at is null and queue = w.queue and lane = w.lane and scheduled_at <= now() + interval '1 minute'
		and state = 'running' and not exists (select from supervisors s where s.id = jobs.claimed_by)
	limit 1000
) j`

// straggler is a due job behind a floor.
type straggler struct {
	lane laneKey
	at   time.Time
}

func (s *store) sweep(ctx context.Context, conn *pgx.Conn, req *claimRequest) (behind []straggler, orphaned []string, err error) {
	var p pipeline
	queues := make([]string, len(req.lanes))
	for i, g := range req.laneGroup {
		queues[i] = req.queues[req.groupQueue[g-1]-1]
	}
	p.begin()
	p.exec(nil, sqlOnePlan)
	p.query(func(rows pgx.Rows) error {
		var found straggler
		err := rows.Scan(&found.lane.queue, &found.lane.lane, &found.at)
		behind = append(behind, found)
		return err
	}, sqlSweep, queues, req.lanes, req.floorAt, req.floorID, req.kinds)
	p.query(func(rows pgx.Rows) error {
		var owner string
		err := rows.Scan(&owner)
		orphaned = append(orphaned, owner)
		return err
	}, sqlOrphans, queues, req.lanes)
	p.commit()
	return behind, orphaned, p.send(ctx, conn)
}

// sqlFallAsleep says until when a supervisor looks at nothing by itself; $3 null is for good. Written on
// transitions only: rows that change all the time rot while someone holds an old snapshot.
const (
	sqlFallAsleep = `
update sleepers set sleeps_until = coalesce(now() + $2::interval, 'infinity') where supervisor = $1`
	sqlWakeUp = `
update sleepers set sleeps_until = null where supervisor = $1 and sleeps_until is not null`
)

const sqlListen = `select drover_channel()`

const sqlPrune = `select last, deleted from drover_prune($1, now() - $2::interval, now() - $3::interval, $4)`

// prune deletes old final jobs among the next ids after the given one; last is "" at the end of the walk.
func (s *store) prune(ctx context.Context, conn *pgx.Conn, after string, completed, cancelled *string, batch int) (last string, deleted int64, err error) {
	var p pipeline
	var walked *string
	p.begin()
	p.exec(nil, sqlOnePlan)
	p.query(func(rows pgx.Rows) error { return rows.Scan(&walked, &deleted) }, sqlPrune, after, completed, cancelled, batch)
	p.commit()
	err = p.send(ctx, conn)
	if walked != nil {
		last = *walked
	}
	return last, deleted, err
}
