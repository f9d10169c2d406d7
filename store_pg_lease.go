package drover

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/pg"
)

// Liveness, rescue, sweeps, sleep and pruning: all by the supervisor's control connection but where said.

// sqlRegister takes over how far the server's clock had got, from those that live and from those that have ended.
const sqlRegister = `
insert into drover_supervisors (id, lease_ms, queues, slots, host, pid, build, process, clock_at) values ($1, $2, $3, $4, $5, $6, $7, $8,
	greatest(now(), (select max(clock_at) from drover_supervisors where isfinite(clock_at)), (select max(ended_at) from drover_ended_supervisors where isfinite(ended_at))))`

// Policies stand in tables, for a rescuer, psql and the command may not know this process' code.
const (
	sqlRegisterQueue = `
insert into queues (name, max_attempts, retry, completed_retention, cancelled_retention, discarded_retention, archive_discarded_after)
values ($1, $2, $3, $4::interval, $5::interval, $6::interval, $7::interval)
on conflict (name) do update set max_attempts = excluded.max_attempts, retry = excluded.retry,
	completed_retention = excluded.completed_retention, cancelled_retention = excluded.cancelled_retention,
	discarded_retention = excluded.discarded_retention, archive_discarded_after = excluded.archive_discarded_after, updated_at = now()
where (queues.max_attempts, queues.retry, queues.completed_retention, queues.cancelled_retention, queues.discarded_retention, queues.archive_discarded_after)
	is distinct from (excluded.max_attempts, excluded.retry, excluded.completed_retention, excluded.cancelled_retention, excluded.discarded_retention, excluded.archive_discarded_after)`

	sqlRegisterKind = `
insert into drover_kinds (kind, max_attempts, retry, timeout_ms, build, follow_up_kind, follow_up_queue) values ($1, $2, $3, $4, $5, $6, $7)
on conflict (kind) do update set max_attempts = excluded.max_attempts, retry = excluded.retry, timeout_ms = excluded.timeout_ms, build = excluded.build,
	follow_up_kind = excluded.follow_up_kind, follow_up_queue = excluded.follow_up_queue, seen_at = now()`

	// A build that was seen before keeps its place: after a deploy is taken back the newest is the one taken back.
	sqlRegisterBuild = `
insert into drover_builds (build) select $1 where $1 <> '' on conflict do nothing`

	// Only beside a row in drover_supervisors: a sleeper without one would pass for awake for ever.
	sqlRegisterSleeper = `
insert into drover_sleepers (queue, supervisor) select $1, id from drover_supervisors where id = $2 on conflict do nothing`
)

// registration is what a supervisor tells of itself.
type registration struct {
	id, host, build string
	process         string // the client's
	pid             int
	lease           time.Duration
	queues          []queuePolicy
	kinds           []kindPolicy
	budgets         []budgetPolicy
	scopes          []string // of all budgets there are: what registering tells
	listens         bool
}

type queuePolicy struct {
	name        string
	slots       int
	maxAttempts *int
	retry       *string
	keep        retention
}

// retention is how long a queue keeps jobs that have ended, as SQL reads it. Nil means as the supervisor that prunes does.
type retention struct{ completed, cancelled, discarded, archived *string }

type kindPolicy struct {
	kind        string
	maxAttempts *int
	retry       *string
	timeoutMS   *int64
	followUp    string // the kind of it; "": none
	followQueue string
}

func (s session) register(ctx context.Context, reg *registration) error {
	var p pipeline
	names, slots := reg.slots()
	p.Begin()
	p.Exec(nil, pg.CheckSchema)
	p.Exec(nil, sqlRegister, reg.id, reg.lease.Milliseconds(), names, slots, reg.host, reg.pid, reg.build, reg.process)
	p.queues(reg)
	for _, k := range reg.kinds {
		p.Exec(nil, sqlRegisterKind, k.kind, k.maxAttempts, k.retry, k.timeoutMS, reg.build, pg.OrNull(k.followUp), pg.OrNull(k.followQueue))
	}
	p.Exec(nil, sqlRegisterBuild, reg.build)
	p.registerBudgets(reg.budgets, &reg.scopes)
	p.Commit()
	return p.Send(ctx, s.conn)
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
		p.Exec(nil, sqlRegisterQueue, q.name, q.maxAttempts, q.retry, q.keep.completed, q.keep.cancelled, q.keep.discarded, q.keep.archived)
		if reg.listens {
			p.Exec(nil, sqlRegisterSleeper, q.name, reg.id)
		}
	}
}

const sqlServe = `update drover_supervisors set queues = $2, slots = $3 where id = $1`

const sqlUnserve = `delete from drover_sleepers where supervisor = $1 and queue <> all($2::text[])`

// serve changes which queues a running supervisor is known to serve.
func serve(ctx context.Context, pool *pg.Pool, id string, reg *registration) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return pg.Classify(err)
	}
	defer conn.Release()
	return session{conn.Conn()}.serveOn(ctx, id, reg)
}

func (s session) serveOn(ctx context.Context, id string, reg *registration) error {
	var p pipeline
	names, slots := reg.slots()
	p.Begin()
	p.Exec(nil, sqlServe, id, names, slots)
	p.Exec(nil, sqlUnserve, id, names)
	p.queues(reg)
	p.registerBudgets(reg.budgets, &reg.scopes)
	p.Commit()
	return p.Send(ctx, s.conn)
}

// sqlBeat is a supervisor's sign of life, and its look at all that is watched: the others, redrives, failure groups,
// budgets, and in which of the lanes $5, $6 a strong suspect that we could run has been due for longest. It does not
// touch the key, so claims under way do not hold it up; a row that others have declared lost is not revived.
const sqlBeat = `
with mine as (
	update drover_supervisors set beat = case when beat < 9223372036854775807 then beat + 1 else 0 end, beat_at = now(), in_flight = $3, draining = $4,
		clock_at = greatest(clock_at, now()), behind_since = case when clock_at >= now() + interval '10 s' then coalesce(behind_since, now()) end
	where id = $1 and epoch = $2 and lost_at is null
	returning id
)
select s.id, s.epoch, s.beat, s.lease_ms, case when s.silent_at_beat = s.beat then s.silent_ms else 0 end, s.lost_at is not null, s.queues,
	extract(epoch from now())::float8, extract(epoch from (select max(clock_at) from drover_supervisors where isfinite(clock_at)) - clock_timestamp())::float8, exists (select from mine),
	exists (select from drover_redrives where finished_at is null and paused_at is null),
	exists (select from drover_failure_tallies) or exists (select from drover_failure_groups where policy = 'park')
		or exists (select from jobs where parked_build is not null and coalesce(finalized_at, 'infinity') = 'infinity'),
	array(select scope from drover_budgets),
	coalesce((
		select l.queue from unnest($5::text[], $6::smallint[]) as l(queue, lane)
		cross join lateral (
			select scheduled_at from jobs
			where finalized_at is null and state <> 'running' and queue = l.queue and lane = l.lane and scheduled_at <= now() and kind = any($7)
				and id <> all(array(select job from drover_set_aside where path = 'claim'))
			order by scheduled_at, id limit 1
		) j
		order by j.scheduled_at limit 1), ''),
	(select count(*) from drover_sleepers where supervisor = $1 and sleeps_until is not null), exists (select from drover_solo where supervisor = $1)
from drover_supervisors s`

// sqlGone tells which of the runs that handlers of supervisor $1 work on, of jobs $2 claimed at $3, are over: ended by an
// operator, or the job is someone else's. A notification that was lost, or could not be had, is made good here.
const sqlGone = `
select f.n - 1, coalesce((select j.state = 'cancelled' or j.discard_reason = 'operator' from jobs j where j.id = f.id), false)
from unnest($2::text[], $3::timestamptz[]) with ordinality as f(id, at, n)
where not exists (select from jobs j where j.id = f.id and j.state = 'running' and j.claimed_by = $1 and j.attempted_at = f.at)`

// peer is a supervisor as another one sees it.
type peer struct {
	id      string
	epoch   int
	beat    int64
	lease   time.Duration
	silence time.Duration // that others have noted
	lost    bool
	queues  []string
}

// beatReply is what a heartbeat tells.
type beatReply struct {
	alive    bool // our own row took the beat
	paces    bool // a redrive is under way
	failures bool // failure groups are to be tended
	peers    []peer
	clock    float64       // the server's, in seconds
	behind   time.Duration // the latest that any supervisor has seen; more than 0: it has gone back
	gone     map[int]bool  // the runs that are over, by their places in what was sent, and whether an operator ended them
	scope    []string      // of the retry budgets there are
	solo     string        // a queue in which a strong suspect is due
	sleeping int64         // queues in which drover_sleepers says that we sleep
	turn     bool          // to run strong suspects: it is ours
}

// strongLanes are those of strong suspects.
func strongLanes(queues []string) (of []string, lanes []int16) {
	for _, queue := range queues {
		for priority := int16(1); priority <= 9; priority++ {
			of, lanes = append(of, queue), append(lanes, tierStrong+priority)
		}
	}
	return of, lanes
}

func (s session) beat(ctx context.Context, id string, epoch int, running []fence, draining bool, queues, kinds []string) (beatReply, error) {
	var p pipeline
	reply := beatReply{gone: map[int]bool{}}
	of, lanes := strongLanes(queues)
	inFlight, claimed := claims(running)
	p.Begin()
	p.Exec(nil, pg.OnePlan)
	p.Query(func(rows pgx.Rows) error {
		var other peer
		var leaseMS, silentMS int64
		var behind *float64
		var queues []*string
		if err := rows.Scan(&other.id, &other.epoch, &other.beat, &leaseMS, &silentMS, &other.lost, &queues, &reply.clock, &behind, &reply.alive,
			&reply.paces, &reply.failures, &reply.scope, &reply.solo, &reply.sleeping, &reply.turn); err != nil {
			return err
		}
		if behind != nil {
			reply.behind = pg.Seconds(*behind)
		}
		for _, queue := range queues {
			if queue != nil {
				other.queues = append(other.queues, *queue)
			}
		}
		other.lease, other.silence = max(pg.Millis(leaseMS), time.Second), pg.Millis(silentMS)
		reply.peers = append(reply.peers, other)
		return nil
	}, sqlBeat, id, epoch, inFlight, draining, of, lanes, kinds)
	if len(running) > 0 {
		p.gone(reply.gone, id, inFlight, claimed)
	}
	p.Commit()
	return reply, p.Send(ctx, s.conn)
}

// gone adds to gone the runs that are over.
func (p *pipeline) gone(gone map[int]bool, id string, ids []string, claimed []time.Time) {
	p.Query(func(rows pgx.Rows) error {
		var i int
		var cancelled bool
		err := rows.Scan(&i, &cancelled)
		gone[i] = cancelled
		return err
	}, sqlGone, id, ids, claimed)
}

// gone asks for the runs that are over, and for nothing else.
func (s session) gone(ctx context.Context, id string, running []fence, bound time.Duration) (map[int]bool, error) {
	var p pipeline
	gone := map[int]bool{}
	ids, claimed := claims(running)
	p.Begin()
	p.Exec(nil, pg.BoundPlan, bound.Milliseconds())
	p.gone(gone, id, ids, claimed)
	p.Commit()
	return gone, p.Send(ctx, s.conn)
}

// sqlRaiseEpoch ends every claim begun under the old epoch: it waits for those under way, for their key share
// lock conflicts with a change of the key, and later ones find no row. It is a sign of life, too. At the end of the
// type the supervisor gives up its lease and goes on under another id.
const sqlRaiseEpoch = `
update drover_supervisors set epoch = case when epoch < 2147483647 then epoch + 1 else 1 end, silent_at_beat = null,
	lost_at = case when epoch = 2147483647 then now() end
where id = $1 and epoch = $2 and lost_at is null returning epoch`

const sqlEpoch = `select epoch, lost_at is not null from drover_supervisors where id = $1`

// raiseEpoch returns the new epoch, or ErrLeaseLost.
func (s session) raiseEpoch(ctx context.Context, id string, epoch int) (int, error) {
	var p pipeline
	var now int
	lost := true
	p.Begin()
	p.Exec(nil, sqlRaiseEpoch, id, epoch)
	p.Query(func(rows pgx.Rows) error { return rows.Scan(&now, &lost) }, sqlEpoch, id)
	p.Commit()
	if err := p.Send(ctx, s.conn); err != nil {
		return 0, err
	}
	if lost || now <= epoch {
		return 0, ErrLeaseLost
	}
	return now, nil
}

// sqlNoteSilence tells those that come after us how long a supervisor has been silent, if it still is.
const sqlNoteSilence = `
update drover_supervisors set silent_at_beat = $3, silent_ms = $4
where id = $1 and epoch = $2 and beat = $3 and lost_at is null and (silent_at_beat is distinct from $3 or silent_ms < $4)`

func (s session) noteSilence(ctx context.Context, x peer, silence time.Duration) error {
	var p pipeline
	p.Begin()
	p.Exec(nil, sqlNoteSilence, x.id, x.epoch, x.beat, silence.Milliseconds())
	p.Commit()
	return p.Send(ctx, s.conn)
}

// sqlDeclareLost takes a silent supervisor's lease, if it is still as it was observed. The key must change, even at the
// end of its type.
const sqlDeclareLost = `
update drover_supervisors set epoch = case when epoch < 2147483647 then epoch + 1 else 1 end, lost_at = now() where id = $1 and epoch = $2 and beat = $3 and lost_at is null`

// sqlLostSleeps lets enqueues notify others: a lost supervisor is not awake.
const sqlLostSleeps = `
delete from drover_sleepers where supervisor = $1 and exists (select from drover_supervisors where id = $1 and lost_at is not null)`

func (s session) declareLost(ctx context.Context, x peer) (bool, error) {
	var p pipeline
	var n int64
	p.Begin()
	p.Exec(&n, sqlDeclareLost, x.id, x.epoch, x.beat)
	p.Exec(nil, sqlLostSleeps, x.id)
	p.Commit()
	return n == 1, p.Send(ctx, s.conn)
}

// sqlForget ends a supervisor's rows: a stop, or a rescue that found nothing more. sqlEnded keeps its time.
const (
	sqlEnded = `
insert into drover_ended_supervisors (id, process, host, pid, started_at, ended_at, draining)
select id, process, host, pid, started_at, now(), draining from drover_supervisors where id = $1 and lost_at is null
on conflict (id) do nothing`
	sqlForget        = `delete from drover_supervisors where id = $1`
	sqlForgetSleeper = `delete from drover_sleepers where supervisor = $1`
)

func (s session) forget(ctx context.Context, id string) error {
	var p pipeline
	p.Begin()
	p.Exec(nil, sqlReleaseSolo, id)
	p.Exec(nil, sqlForgetEnded)
	p.Exec(nil, sqlEnded, id)
	p.Exec(nil, sqlForget, id) // drover_supervisors before drover_sleepers, as everywhere
	p.Exec(nil, sqlForgetSleeper, id)
	p.Commit()
	return p.Send(ctx, s.conn)
}

// sqlFallAsleep says for how long a supervisor looks at nothing by itself; $2 null is for good. In queues $3 it has no
// room: there is no use in waking it. Written on transitions only: rows that change all the time rot while someone
// holds an old snapshot.
const (
	sqlFallAsleep = `
update drover_sleepers set sleeps_until = case when queue = any($3) then '-infinity' else coalesce(now() + $2::interval, 'infinity') end
where supervisor = $1`
	sqlWakeUp = `
update drover_sleepers set sleeps_until = null where supervisor = $1 and sleeps_until is not null`
)

// sleep is what drover_sleepers is to say of a supervisor.
type sleep struct {
	supervisor string
	asleep     bool
	lasts      time.Duration // 0: for good
	full       []string      // queues without room
}

func (p *pipeline) sleep(note *sleep) {
	p.Begin()
	if note.asleep {
		var lasts *string
		if note.lasts > 0 {
			text := pg.Interval(note.lasts)
			lasts = &text
		}
		p.Exec(nil, sqlFallAsleep, note.supervisor, lasts, note.full)
	} else {
		p.Exec(nil, sqlWakeUp, note.supervisor)
	}
	p.Commit()
}

// sleep says it in a round trip of its own.
func (s session) sleep(ctx context.Context, note *sleep) error {
	var p pipeline
	p.sleep(note)
	return p.Send(ctx, s.conn)
}

// reassert writes rows of the supervisor's again: that it is awake in some queues, and that the turn to run strong
// suspects is not its own.
func (s session) reassert(ctx context.Context, id string, awake []string, releaseSolo bool) error {
	var p pipeline
	p.Begin()
	for _, queue := range awake {
		p.Exec(nil, sqlRegisterSleeper, queue, id)
	}
	if releaseSolo {
		p.Exec(nil, sqlReleaseSolo, id)
	}
	p.Commit()
	return p.Send(ctx, s.conn)
}

const sqlListen = `select drover_channel()`

// listen subscribes the connection to drover's channel.
func (s session) listen(ctx context.Context) error {
	var channel string
	err := s.conn.QueryRow(ctx, sqlListen).Scan(&channel)
	if err == nil {
		_, err = s.conn.Exec(ctx, "listen "+pgx.Identifier{channel}.Sanitize())
	}
	return err
}

// epoch returns a supervisor's epoch, and whether its lease is lost, or its row is gone.
func (s session) epoch(ctx context.Context, id string) (epoch int, lost bool, err error) {
	lost = true
	err = s.conn.QueryRow(ctx, sqlEpoch, id).Scan(&epoch, &lost)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return epoch, lost, err
}
