package store

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/floors"
	"github.com/drover-queue/drover/internal/pg"
)

// The keeper runs these statements on its own connection. Only the epoch is raised by the claimer, on the claimer's
// connection.

// SQLBeat is a supervisor's sign of life. It also reads everything that a supervisor watches: the other supervisors,
// redrives, schedules, failure groups, budgets, and a stamp that changes with each pause and each change of a limit.
// Among the due strong suspects (jobs whose processes have died more than once) of the queues $5, lanes $6 and kinds $7
// it finds the job with the earliest due time, and returns the queue of this job. SQLBeat does not change the key of
// the supervisor's row, so claims under way do not hold up the beat. It does not change a row that other supervisors
// have declared lost.
const SQLBeat = `
with mine as (
	update drover_supervisors set beat = case when beat < 9223372036854775807 then beat + 1 else 0 end, beat_at = now(), in_flight = $3, draining = $4
	where id = $1 and epoch = $2 and lost_at is null
	returning id
)
select s.id, s.epoch, s.beat, s.lease_ms, case when s.silent_at_beat = s.beat then s.silent_ms else 0 end, s.lost_at is not null, s.queues,
	extract(epoch from now())::float8, exists (select from mine),
	exists (select from drover_redrives where finished_at is null and paused_at is null),
	exists (select from drover_failure_tallies) or exists (select from drover_failure_groups where policy = 'park')
		or exists (select from jobs where parked_build is not null and coalesce(finalized_at, 'infinity') = 'infinity'),
	array(select scope from drover_budgets), coalesce(` + sqlLimitsStamp + `, ''),
	coalesce((
		select l.queue from unnest($5::text[], $6::smallint[]) as l(queue, lane)
		cross join lateral (
			select scheduled_at from jobs
			where finalized_at is null and state <> 'running' and queue = l.queue and lane = l.lane and scheduled_at <= now() and kind = any($7)
				and id <> all(array(select job from drover_set_aside where path = 'claim'))
			order by scheduled_at, id limit 1
		) j
		order by j.scheduled_at limit 1), ''),
	(select count(*) from drover_crews c join drover_supervisors m on m.crew = c.crew and c.queue = any(m.queues) where m.id = $1), exists (select from drover_solo where supervisor = $1),
	(select extract(epoch from min(next_at) - clock_timestamp())::float8 from drover_periodic where declared_by is null or $1 = any(declared_by))
from drover_supervisors s`

// SQLGone gets the runs of supervisor $1 on which handlers still work: the jobs $2, claimed at $3. It returns the
// indexes of the runs that are over: an operator has ended the job, or the supervisor does not hold the job any more.
// So a supervisor finds cancelled runs even if a notification was lost, or if the supervisor does not listen for
// notifications.
const SQLGone = `
select f.n - 1, coalesce((select j.state = 'cancelled' or j.discard_reason = 'operator' from jobs j where j.id = f.id), false)
from unnest($2::text[], $3::timestamptz[]) with ordinality as f(id, at, n)
where not exists (select from jobs j where j.id = f.id and j.state = 'running' and j.claimed_by = $1 and j.attempted_at = f.at)`

// Peer is a supervisor as another supervisor sees it.
type Peer struct {
	ID      string
	Epoch   int
	Beat    int64
	Lease   time.Duration
	Silence time.Duration // how long the peer was silent since its last beat, as other supervisors have recorded it
	Lost    bool
	Queues  []string
}

// BeatReply is what a heartbeat has read.
type BeatReply struct {
	Alive    bool // the beat has changed our own row: we still have the lease
	Paces    bool // a redrive is under way
	Failures bool // there may be work on failure groups
	Peers    []Peer
	Clock    float64         // the server's time, in seconds since 1970
	Gone     map[int]bool    // the runs that are over, by their indexes in the parameter running of Beat; true: an operator ended the job
	Scope    []string        // scopes of all retry budgets
	Limits   string          // the stamp of the limits
	Solo     string          // the queue in which a strong suspect has been due for longest; "": none
	Crews    int             // how many rows drover_crews has for our crew and our queues
	OnCall   map[int64]int64 // the lock key of each on-call slot that the connection has got; the map's key is the lock key of the queue's first slot
	Tick     *time.Duration  // how long until the next tick of a schedule that we may tick; nil: there is no such schedule
	Turn     bool            // we have the turn to run strong suspects
}

// strongLanes returns the lanes of strong suspects, each with its queue.
func strongLanes(queues []string) (of []string, lanes []int16) {
	for _, queue := range queues {
		for priority := int16(1); priority <= 9; priority++ {
			of, lanes = append(of, queue), append(lanes, floors.TierStrong+priority)
		}
	}
	return of, lanes
}

// Beat sends a sign of life, and returns the results of SQLBeat and SQLGone. The parameter running has the runs on
// which handlers work. The parameter onCall has a lock key for each queue in which the supervisor wants to go on call:
// the key of the first of the queue's slots.
func (s Session) Beat(ctx context.Context, id string, epoch int, running []Fence, draining bool, queues, kinds []string, onCall []int64) (BeatReply, error) {
	reply := BeatReply{Gone: map[int]bool{}, OnCall: map[int64]int64{}}
	of, lanes := strongLanes(queues)
	inFlight, claimed := Claims(running)
	err := s.inTx(ctx, func(p *pipeline) {
		p.Exec(nil, pg.OnePlan)
		p.Query(func(rows pgx.Rows) error {
			var other Peer
			var leaseMS, silentMS int64
			var tick *float64
			var queues []*string
			if err := rows.Scan(&other.ID, &other.Epoch, &other.Beat, &leaseMS, &silentMS, &other.Lost, &queues, &reply.Clock, &reply.Alive,
				&reply.Paces, &reply.Failures, &reply.Scope, &reply.Limits, &reply.Solo, &reply.Crews, &reply.Turn, &tick); err != nil {
				return err
			}
			if tick != nil {
				reply.Tick = new(pg.Seconds(*tick))
			}
			for _, queue := range queues {
				if queue != nil {
					other.Queues = append(other.Queues, *queue)
				}
			}
			other.Lease, other.Silence = max(pg.Millis(leaseMS), time.Second), pg.Millis(silentMS)
			reply.Peers = append(reply.Peers, other)
			return nil
		}, SQLBeat, id, epoch, inFlight, draining, of, lanes, kinds)
		if len(running) > 0 {
			p.queueGone(reply.Gone, id, inFlight, claimed)
		}
		p.goOnCall(onCall, reply.OnCall)
	})
	return reply, err
}

// queueGone queues SQLGone. It adds the runs that are over to the map, as in BeatReply.Gone.
func (p *pipeline) queueGone(gone map[int]bool, id string, ids []string, claimed []time.Time) {
	p.Query(func(rows pgx.Rows) error {
		var i int
		var cancelled bool
		err := rows.Scan(&i, &cancelled)
		gone[i] = cancelled
		return err
	}, SQLGone, id, ids, claimed)
}

// Gone returns the runs that are over, as in BeatReply, and reads nothing else.
func (s Session) Gone(ctx context.Context, id string, running []Fence, bound time.Duration) (map[int]bool, error) {
	gone := map[int]bool{}
	ids, claimed := Claims(running)
	err := s.inTx(ctx, func(p *pipeline) {
		p.BoundPlan(bound)
		p.queueGone(gone, id, ids, claimed)
	})
	return gone, err
}

// sqlRaiseEpoch makes sure that no more claims commit under the old epoch. It waits for the claims under way, because
// their key share lock conflicts with a change of the key. Later claims under the old epoch find no row. The raise is a
// sign of life, too. An epoch that is the largest number of its type cannot be raised. Then the supervisor gives up its
// lease, and goes on under another id.
const sqlRaiseEpoch = `
update drover_supervisors set epoch = case when epoch < 2147483647 then epoch + 1 else 1 end, silent_at_beat = null,
	lost_at = case when epoch = 2147483647 then now() end
where id = $1 and epoch = $2 and lost_at is null returning epoch`

const sqlEpoch = `select epoch, lost_at is not null from drover_supervisors where id = $1`

// RaiseEpoch raises a supervisor's epoch and returns the new one. Errors: pg.ErrLeaseLost, or an error of the database.
func (s Session) RaiseEpoch(ctx context.Context, id string, epoch int) (int, error) {
	var now int
	lost := true
	err := s.inTx(ctx, func(p *pipeline) {
		p.Exec(nil, sqlRaiseEpoch, id, epoch)
		p.Query(func(rows pgx.Rows) error { return rows.Scan(&now, &lost) }, sqlEpoch, id)
	})
	if err != nil {
		return 0, err
	}
	if lost || now <= epoch {
		return 0, pg.ErrLeaseLost
	}
	return now, nil
}

// sqlNoteSilence records how long a supervisor has been silent, if it is still silent. A supervisor that starts later
// reads this time, and does not count the silence from zero.
const sqlNoteSilence = `
update drover_supervisors set silent_at_beat = $3, silent_ms = $4
where id = $1 and epoch = $2 and beat = $3 and lost_at is null and (silent_at_beat is distinct from $3 or silent_ms < $4)`

// NoteSilence records how long x has been silent, unless x has given a sign of life since, or a longer silence is
// recorded already.
func (s Session) NoteSilence(ctx context.Context, x Peer, silence time.Duration) error {
	_, err := s.exec(ctx, sqlNoteSilence, x.ID, x.Epoch, x.Beat, silence.Milliseconds())
	return err
}

// sqlDeclareLost takes a silent supervisor's lease, if its row is still as it was observed. The epoch has to change,
// because only a change of the key waits for the claims under way. After the largest number of its type, the epoch
// begins again at 1.
const sqlDeclareLost = `
update drover_supervisors set epoch = case when epoch < 2147483647 then epoch + 1 else 1 end, lost_at = now() where id = $1 and epoch = $2 and beat = $3 and lost_at is null`

// DeclareLost takes the lease of x. It returns false if the row of x is no longer as it was observed.
func (s Session) DeclareLost(ctx context.Context, x Peer) (bool, error) {
	n, err := s.exec(ctx, sqlDeclareLost, x.ID, x.Epoch, x.Beat)
	return n == 1, err
}

// sqlForget deletes a supervisor's row. A supervisor deletes its own row when it stops. A rescuer deletes the row of a
// dead supervisor once it finds no more jobs of that supervisor. sqlEnded records when a supervisor stopped.
const (
	sqlEnded = `
insert into drover_ended_supervisors (id, process, host, pid, started_at, ended_at, draining)
select id, process, host, pid, started_at, now(), draining from drover_supervisors where id = $1 and lost_at is null
on conflict (id) do nothing`
	sqlForget = `delete from drover_supervisors where id = $1`
)

// Forget deletes a supervisor's row, and frees the turn to run strong suspects if the supervisor has it. It also
// deletes crews without supervisors, and the records of supervisors that ended more than a day ago.
func (s Session) Forget(ctx context.Context, id string) error {
	return s.inTx(ctx, func(p *pipeline) {
		p.Exec(nil, sqlReleaseSolo, id)
		p.Exec(nil, sqlForgetEnded)
		p.Exec(nil, sqlEnded, id)
		p.Exec(nil, sqlForget, id)
		p.Exec(nil, sqlForgetCrews)
	})
}

// RewriteCrews adds the rows of drover_crews that are missing for a supervisor's queues. They may be missing after the
// database has gone back to an older state.
func (s Session) RewriteCrews(ctx context.Context, id string, reg *Registration) error {
	return s.inTx(ctx, func(p *pipeline) {
		for _, q := range reg.Queues {
			p.Exec(nil, sqlRegisterCrew, q.Name, id, reg.crew(), pg.Interval(reg.Polls))
		}
		p.readCrews(id, &reg.Crews)
	})
}

// Epoch returns a supervisor's epoch, and whether its lease is lost. If the supervisor has no row, its lease is lost,
// too.
func (s Session) Epoch(ctx context.Context, id string) (epoch int, lost bool, err error) {
	lost = true
	err = s.Conn.QueryRow(ctx, sqlEpoch, id).Scan(&epoch, &lost)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return epoch, lost, err
}
