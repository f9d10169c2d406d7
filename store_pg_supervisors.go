package drover

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
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
insert into drover_kinds (kind, max_attempts, retry, timeout_ms, build, args_shape, follow_up_kind, follow_up_queue) values ($1, $2, $3, $4, $5, $6, $7, $8)
on conflict (kind) do update set max_attempts = excluded.max_attempts, retry = excluded.retry, timeout_ms = excluded.timeout_ms, build = excluded.build,
	args_shape = excluded.args_shape, follow_up_kind = excluded.follow_up_kind, follow_up_queue = excluded.follow_up_queue, seen_at = now()`

	// A build that was seen before keeps its place: after a deploy is taken back the newest is the one taken back.
	sqlRegisterBuild = `
insert into drover_builds (build) select $1 where $1 <> '' on conflict do nothing`

	// Only beside a row in supervisors: a sleeper without one would pass for awake for ever.
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

type kindPolicy struct {
	kind        string
	maxAttempts *int
	retry       *string
	timeoutMS   *int64
	argsShape   *string
	followUp    FollowUp // of no kind: none
}

func (s *store) register(ctx context.Context, conn *pgx.Conn, reg *registration) error {
	var p pipeline
	names, slots := reg.slots()
	p.begin()
	p.exec(nil, sqlRegister, reg.id, reg.lease.Milliseconds(), names, slots, reg.host, reg.pid, reg.build, reg.process)
	p.queues(reg)
	for _, k := range reg.kinds {
		p.exec(nil, sqlRegisterKind, k.kind, k.maxAttempts, k.retry, k.timeoutMS, reg.build, k.argsShape, orNull(k.followUp.Kind), orNull(k.followUp.Queue))
	}
	p.exec(nil, sqlRegisterBuild, reg.build)
	p.registerBudgets(reg.budgets, &reg.scopes)
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
		p.exec(nil, sqlRegisterQueue, q.name, q.maxAttempts, q.retry, q.keep.completed, q.keep.cancelled, q.keep.discarded, q.keep.archived)
		if reg.listens {
			p.exec(nil, sqlRegisterSleeper, q.name, reg.id)
		}
	}
}

const sqlServe = `update drover_supervisors set queues = $2, slots = $3 where id = $1`

const sqlUnserve = `delete from drover_sleepers where supervisor = $1 and queue <> all($2::text[])`

// serve changes which queues a running supervisor is known to serve.
func (s *store) serve(ctx context.Context, id string, reg *registration) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	return s.serveOn(ctx, conn.Conn(), id, reg)
}

func (s *store) serveOn(ctx context.Context, conn *pgx.Conn, id string, reg *registration) error {
	var p pipeline
	names, slots := reg.slots()
	p.begin()
	p.exec(nil, sqlServe, id, names, slots)
	p.exec(nil, sqlUnserve, id, names)
	p.queues(reg)
	p.registerBudgets(reg.budgets, &reg.scopes)
	p.commit()
	return p.send(ctx, conn)
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
	gone     map[*run]bool // those in flight that are over, and whether an operator ended them
	scope    []string      // of the retry budgets there are
	solo     string        // a queue in which a strong suspect is due
	sleeping int64         // queues in which sleepers says that we sleep
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

func (s *store) beat(ctx context.Context, conn *pgx.Conn, id string, epoch int, running []*run, draining bool, queues, kinds []string) (beatReply, error) {
	var p pipeline
	reply := beatReply{gone: map[*run]bool{}}
	of, lanes := strongLanes(queues)
	inFlight, claimed := claims(running)
	p.begin()
	p.exec(nil, sqlOnePlan)
	p.query(func(rows pgx.Rows) error {
		var other peer
		var leaseMS, silentMS int64
		var behind *float64
		var queues []*string
		if err := rows.Scan(&other.id, &other.epoch, &other.beat, &leaseMS, &silentMS, &other.lost, &queues, &reply.clock, &behind, &reply.alive,
			&reply.paces, &reply.failures, &reply.scope, &reply.solo, &reply.sleeping, &reply.turn); err != nil {
			return err
		}
		if behind != nil {
			reply.behind = seconds(*behind)
		}
		for _, queue := range queues {
			if queue != nil {
				other.queues = append(other.queues, *queue)
			}
		}
		other.lease, other.silence = max(millis(leaseMS), time.Second), millis(silentMS)
		reply.peers = append(reply.peers, other)
		return nil
	}, sqlBeat, id, epoch, inFlight, draining, of, lanes, kinds)
	if len(running) > 0 {
		p.gone(reply.gone, id, running, inFlight, claimed)
	}
	p.commit()
	return reply, p.send(ctx, conn)
}

// gone adds to gone the runs that are over.
func (p *pipeline) gone(gone map[*run]bool, id string, running []*run, ids []string, claimed []time.Time) {
	p.query(func(rows pgx.Rows) error {
		var i int
		var cancelled bool
		err := rows.Scan(&i, &cancelled)
		gone[running[i]] = cancelled
		return err
	}, sqlGone, id, ids, claimed)
}

// gone asks for the runs that are over, and for nothing else.
func (s *store) gone(ctx context.Context, conn *pgx.Conn, id string, running []*run, bound time.Duration) (map[*run]bool, error) {
	var p pipeline
	gone := map[*run]bool{}
	ids, claimed := claims(running)
	p.begin()
	p.exec(nil, sqlBoundPlan, bound.Milliseconds())
	p.gone(gone, id, running, ids, claimed)
	p.commit()
	return gone, p.send(ctx, conn)
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

// sqlNoteSilence tells those that come after us how long a supervisor has been silent, if it still is.
const sqlNoteSilence = `
update drover_supervisors set silent_at_beat = $3, silent_ms = $4
where id = $1 and epoch = $2 and beat = $3 and lost_at is null and (silent_at_beat is distinct from $3 or silent_ms < $4)`

func (s *store) noteSilence(ctx context.Context, conn *pgx.Conn, x peer, silence time.Duration) error {
	var p pipeline
	p.begin()
	p.exec(nil, sqlNoteSilence, x.id, x.epoch, x.beat, silence.Milliseconds())
	p.commit()
	return p.send(ctx, conn)
}

// sqlDeclareLost takes a silent supervisor's lease, if it is still as it was observed. The key must change, even at the
// end of its type.
const sqlDeclareLost = `
update drover_supervisors set epoch = case when epoch < 2147483647 then epoch + 1 else 1 end, lost_at = now() where id = $1 and epoch = $2 and beat = $3 and lost_at is null`

// sqlLostSleeps lets enqueues notify others: a lost supervisor is not awake.
const sqlLostSleeps = `
delete from drover_sleepers where supervisor = $1 and exists (select from drover_supervisors where id = $1 and lost_at is not null)`

func (s *store) declareLost(ctx context.Context, conn *pgx.Conn, x peer) (bool, error) {
	var p pipeline
	var n int64
	p.begin()
	p.exec(&n, sqlDeclareLost, x.id, x.epoch, x.beat)
	p.exec(nil, sqlLostSleeps, x.id)
	p.commit()
	return n == 1, p.send(ctx, conn)
}

// sqlHunt looks through the next page of each lane, $6 rows from the key $4, $5 on, for running jobs of supervisor $1, or
// with $1 empty of owners that no row of supervisors speaks for. It returns those with the policies that apply to
// them, and the last row of a page that was full. No index serves claimed_by: it reads jobs_claim_idx, up to now
// unless $7 says to the end (the server's clock may have gone back under them). By pages, for behind a million due
// jobs a search in one statement could run out of time, again and again from the start. $8, claimed at $9, are known to be held.
// Jobs that were set aside on one of the paths $11 are left out until their pause is over.
//
// Rows may have been changed by hand, so it reads nothing that could fail: no infinite times, no numbers of another
// type. Values stored outside of the row may be damaged: if $10 is set it does not read those.
const sqlHunt = `
select j.id, j.queue, j.lane, j.scheduled_at, j.n = $6 as last, j.held, coalesce(j.claimed_by, ''),
	j.kind, j.attempt, j.claim_seq, j.attempted_at, j.crashes, j.last_delay_ms,
	coalesce(j.max_attempts, k.max_attempts, q.max_attempts, 20), case when j.held and not $10 then j.retry::text end, coalesce(k.retry, q.retry)::text,
	case when $10 then false else
		(j.id in (select f from drover_supervisors o cross join lateral unnest(o.in_flight) as f where o.id = $1 and f is not null)) is true end,
	coalesce(case when not $10 and jsonb_typeof(s.slots->j.queue) = 'number' then least(greatest((s.slots->j.queue)::numeric, 0), 1e6)::int end, 0),
	coalesce(format('%s, process %s', s.host, s.pid), ''), coalesce(j.started_seq = j.claim_seq, false), coalesce(j.deaths, 0), j.redrives,
	case when isfinite(s.beat_at) and isfinite(j.attempted_at) then greatest(extract(epoch from s.beat_at - j.attempted_at), 0) else 0 end::float8
		+ coalesce(least(s.lease_ms, 1e12), 0) / 12e3,
	case when j.held and j.crashes > 0 and not $10 then (
		select jsonb_agg(jsonb_build_object('supervisor', left(e->>'supervisor', 100), 'duration_ms',
			case when jsonb_typeof(e->'duration_ms') = 'number' then least(greatest((e->'duration_ms')::numeric, 0), 1e10)::bigint else 0 end))
		from jsonb_array_elements(case when jsonb_typeof(j.errors) = 'array' then j.errors else '[]' end) as e where e->>'class' = 'crash' and not e ? 'spared') end
from unnest($2::text[], $3::smallint[], $4::timestamptz[], $5::text[]) as l(queue, lane, from_at, from_id)
cross join lateral (
	select *, state = 'running' and ((id, attempted_at) in (select unnest($8::text[]), unnest($9::timestamptz[]))) is not true and case when $1 = ''
			then not exists (select from drover_supervisors o where o.id = claimed_by) else claimed_by = $1 end
			and (id in (select a.job from drover_set_aside a where a.path = any($11) and a.retry_at > now())) is not true as held
	from (
		select *, row_number() over (order by scheduled_at, id) as n from (
			select id, queue, lane, scheduled_at, state, claimed_by, kind, attempt, claim_seq, crashes, last_delay_ms, max_attempts, retry,
				started_seq, deaths, redrives, attempted_at, errors from jobs
			where finalized_at is null and queue = l.queue and lane = l.lane and (scheduled_at, id) > (l.from_at, l.from_id)
				and scheduled_at <= case when $7 then 'infinity' else now() + interval '1 minute' end
			order by scheduled_at, id limit $6
		) page
	) numbered
) j
left join drover_kinds k on k.kind = j.kind
left join queues q on q.name = j.queue
left join drover_supervisors s on s.id = j.claimed_by
where j.held or j.n = $6`

// hunt is a search for running jobs that goes on where it was.
type hunt struct {
	owner  string // empty: whoever no row of supervisors speaks for
	all    bool   // beyond now, too
	own    bool   // the supervisor's own
	lanes  []huntLane
	page   int           // rows of a lane that are read at a time
	bound  time.Duration // of one statement; zero: the session's
	found  []heldJob
	unread []unreadLane // skipped

	// Only for a rescue: what the jobs found show, and how many are freed at a time.
	started   map[string]bool
	death     death
	part      int
	convicted []conviction // whose innocents wait still
}

// huntLane is a lane, and where in it the search goes on. A due time may be infinite.
type huntLane struct {
	key    laneKey
	fromAt pgtype.Timestamptz
	fromID string
}

// unreadLane is a lane that the database cannot read.
type unreadLane struct {
	key laneKey
	err error
}

// huntPage is how many rows of a lane are read at a time: some 20 ms. If that takes too long, fewer rows are read,
// down to leastHuntPage.
const (
	huntPage      = 20_000
	leastHuntPage = 100
)

// laneFromStart begins in front of all rows, also of those before the year 1.
func laneFromStart(key laneKey) huntLane {
	return huntLane{key: key, fromAt: pgtype.Timestamptz{Valid: true, InfinityModifier: pgtype.NegativeInfinity}}
}

func newHunt(owner string, queues []string, all bool) *hunt {
	h := &hunt{owner: owner, all: all, page: huntPage, part: maxSettle}
	for _, queue := range queues {
		for _, tier := range []int16{tierFresh, tierRetry, tierSuspect, tierStrong} {
			for priority := int16(1); priority <= 9; priority++ {
				h.lanes = append(h.lanes, laneFromStart(laneKey{queue, tier + priority}))
			}
		}
	}
	return h
}

// ended reports whether all lanes were read to their end.
func (h *hunt) ended() bool { return len(h.lanes) == 0 }

// heldJob is a running job of a supervisor that cannot end it.
type heldJob struct {
	id, queue, kind string
	attempt         int
	claimSeq        int
	attemptedAt     pgtype.Timestamptz
	crashes         int
	lastDelay       time.Duration
	maxAttempts     int
	retry           *string // the job's own strategy
	policy          *string // its kind's or queue's
	inFlight        bool    // its handler was running at the last beat
	slots           int     // of its queue there
	host            string
	owner           string
	startedSeq      bool          // a start was noted under this claim
	flight          time.Duration // from the claim to the death, which was half a beat after the last one
	deaths          int
	redrives        int
	before          []crashEntry // deaths that count against it
}

// unfenced reports whether no settle can name the time of the claim, such as infinity: somebody has changed the row
// by hand.
func (j *heldJob) unfenced() bool { return j.attemptedAt.Valid && j.attemptedAt.Time.IsZero() }

// once reports whether the job must not run again if its handler may have begun. Whoever claimed it decides, by noting the
// start: the settings in the tables may have changed since.
func (j *heldJob) once() bool { return j.startedSeq || j.maxAttempts == 1 }

// crashEntry is what a hunt reads of an errors entry of that class.
type crashEntry struct {
	Supervisor string `json:"supervisor"`
	DurationMS int64  `json:"duration_ms"`
}

// hunt reads one page of each lane of h and moves h on. It leaves out the known runs. If a lane cannot be read, the
// others still are. That lane is read again without the columns that may be stored outside of a row, and with fewer
// rows if it takes too long; if that fails too, it is skipped.
func (s *store) hunt(ctx context.Context, conn *pgx.Conn, h *hunt, known []*run) ([]heldJob, error) {
	var held []heldJob
	var rest []huntLane
	tried := 0
	read := func(lanes []huntLane, bare bool) error {
		if err := timeFor(ctx, h.bound); err != nil {
			return err
		}
		more, full, err := s.huntLanes(ctx, conn, h, lanes, known, bare)
		if err != nil {
			return err
		}
		held, rest, tried = append(held, more...), append(rest, full...), tried+len(lanes)
		return nil
	}
	err := isolate(h.lanes, func(lanes []huntLane) error { return read(lanes, false) }, func(lane huntLane, err error) error {
		if sqlState(err) == "57014" && h.page > leastHuntPage {
			h.page = max(h.page/8, leastHuntPage)
			rest, tried = append(rest, lane), tried+1
			return nil
		}
		again := read([]huntLane{lane}, true)
		if again != nil && rowsFault(again) {
			h.unread = append(h.unread, unreadLane{lane.key, err})
			tried++
			return nil
		}
		return again
	})
	h.lanes = append(rest, h.lanes[tried:]...)
	h.found = append(h.found, held...)
	return held, err
}

// huntLanes returns the jobs on the next page of the lanes, and the lanes that have more.
func (s *store) huntLanes(ctx context.Context, conn *pgx.Conn, h *hunt, lanes []huntLane, known []*run, bare bool) (held []heldJob, rest []huntLane, err error) {
	var p pipeline
	var queues, fromID []string
	var numbers []int16
	var fromAt []pgtype.Timestamptz
	for _, l := range lanes {
		queues, numbers = append(queues, l.key.queue), append(numbers, l.key.lane)
		fromAt, fromID = append(fromAt, l.fromAt), append(fromID, l.fromID)
	}
	knownIDs, knownAt := claims(known)
	p.begin()
	if h.bound > 0 {
		p.exec(nil, sqlBoundPlan, h.bound.Milliseconds())
	} else {
		p.exec(nil, sqlOnePlan)
	}
	p.query(func(rows pgx.Rows) error {
		var j heldJob
		var at huntLane
		var last, isHeld bool
		var lastDelayMS *int64
		var flight float64
		var before []byte
		err := rows.Scan(&j.id, &j.queue, &at.key.lane, &at.fromAt, &last, &isHeld, &j.owner,
			&j.kind, &j.attempt, &j.claimSeq, &j.attemptedAt, &j.crashes, &lastDelayMS,
			&j.maxAttempts, &j.retry, &j.policy, &j.inFlight, &j.slots, &j.host,
			&j.startedSeq, &j.deaths, &j.redrives, &flight, &before)
		if before != nil && err == nil {
			err = json.Unmarshal(before, &j.before)
		}
		if err != nil {
			return &rowError{err}
		}
		if lastDelayMS != nil {
			j.lastDelay = millis(*lastDelayMS)
		}
		j.flight = seconds(flight)
		if last {
			at.key.queue, at.fromID = j.queue, j.id
			rest = append(rest, at)
		}
		if isHeld {
			held = append(held, j)
		}
		return nil
	}, sqlHunt, h.owner, queues, numbers, fromAt, fromID, h.page, h.all, knownIDs, knownAt, bare, h.asidePaths())
	p.commit()
	if err := p.send(ctx, conn); err != nil {
		return nil, nil, err
	}
	return held, rest, nil
}

// asidePaths are the paths of set_aside whose jobs the hunt leaves alone. A rescuer also tries what the owner could
// not settle.
func (h *hunt) asidePaths() []string {
	if h.own {
		return []string{pathRescue, pathSettle}
	}
	return []string{pathRescue}
}

// sqlForgive forgets the jobs that were set aside on a rescue and no longer run.
const sqlForgive = `
delete from drover_set_aside a where path = $1 and not exists (select from jobs j where j.id = a.job and j.state = 'running')`

func (s *store) forgive(ctx context.Context, conn *pgx.Conn, bound time.Duration) error {
	var p pipeline
	p.begin()
	p.exec(nil, sqlBoundPlan, bound.Milliseconds())
	p.exec(nil, sqlForgive, pathRescue)
	p.commit()
	return p.send(ctx, conn)
}

// sqlJudge keeps what the death of a lost supervisor is evidence of: $2 is the highest crashes of the jobs that had
// started there, $3 how many had started beside each. The first rescuer that has seen all of them says so for all: one that comes
// later finds fewer. Mass: the last signs of life were within two thirds of a lease of each other. Not a whole one: a job
// whose first death is found a lease after the last beat, and that kills again at once, leaves a beat of up to a sixth
// of a lease before, and its own first death must not spare it. Of those that died after it some are not yet declared
// lost: silent for a third of a lease will do.
const (
	sqlJudge = `
insert into drover_ended_supervisors (id, process, host, pid, started_at, ended_at, died, draining, degree, beside, mass, shared)
select s.id, s.process, s.host, s.pid, s.started_at, s.at, true, s.draining, $2, $3,
	exists (select from drover_ended_supervisors o
		where o.died and not o.draining and o.id <> s.id and coalesce(o.process, o.id) <> coalesce(s.process, s.id)
			and case when isfinite(o.ended_at) then abs(extract(epoch from o.ended_at - s.at)) * 1000 < s.ms * 2 / 3 end)
	or exists (select from drover_supervisors o
		where not o.draining and o.id <> s.id and coalesce(o.process, o.id) <> coalesce(s.process, s.id)
			and (o.lost_at is not null or o.beat_at < now() - least(o.lease_ms, 1000000000000) / 3 * interval '1 ms')
			and case when isfinite(o.beat_at) then abs(extract(epoch from o.beat_at - s.at)) * 1000 < s.ms * 2 / 3 end),
	exists (select from drover_supervisors o where o.id <> s.id and o.process = s.process)
	or exists (select from drover_ended_supervisors o where o.id <> s.id and o.process = s.process and o.ended_at > s.at - s.ms * interval '1 ms')
from (
	select *, case when isfinite(beat_at) then beat_at else now() end as at, least(lease_ms, 1000000000000) as ms
	from drover_supervisors where id = $1
	order by epoch desc limit 1
) s
on conflict (id) do nothing`

	sqlVerdict = `select draining, mass, shared, degree, beside from drover_ended_supervisors where id = $1`

	sqlForgetEnded = `
delete from drover_ended_supervisors where id in (select id from drover_ended_supervisors where ended_at < now() - interval '1 day' order by id for update skip locked)`
)

// judge returns what the death of supervisor id is evidence of: as it was first judged.
func (s *store) judge(ctx context.Context, conn *pgx.Conn, id string, d death) (death, error) {
	var p pipeline
	p.begin()
	p.exec(nil, sqlForgetEnded)
	p.exec(nil, sqlJudge, id, d.degree, d.beside)
	p.query(func(rows pgx.Rows) error { return rows.Scan(&d.draining, &d.mass, &d.shared, &d.degree, &d.beside) }, sqlVerdict, id)
	p.commit()
	return d, p.send(ctx, conn)
}

// sqlBackground counts the deaths of the last $2, without supervisors $1, and the time that processes ran.
const sqlBackground = `
select count(*) filter (where died and not draining and explained_by is null and id <> all($1)),
	coalesce(sum(extract(epoch from least(ended_at, now()) - least(greatest(started_at, now() - $2::interval), ended_at, now()))), 0)::float8
from (
	select id, started_at, ended_at, died, draining, explained_by from drover_ended_supervisors
	union all
	select id, started_at, now(), false, draining, null from drover_supervisors where lost_at is null
) p
where ended_at > now() - $2::interval`

func (s *store) background(ctx context.Context, conn *pgx.Conn, except []string) (b background, err error) {
	var p pipeline
	var ran float64
	p.begin()
	p.query(func(rows pgx.Rows) error { return rows.Scan(&b.deaths, &ran) }, sqlBackground, except, interval(historyWindow))
	p.commit()
	err = p.send(ctx, conn)
	b.time = seconds(ran)
	return b, err
}

// sqlBlame notes against which jobs a death counts, sqlExplain which job deaths are put down to: after the settle, and
// only where it found the job still held.
const (
	sqlBlame = `
update drover_ended_supervisors set blamed = blamed || array(select id from jobs where id = any($2) and errors->-1->>'class' = 'crash' and errors->-1->>'supervisor' = $1)
where id = $1`
	sqlExplain = `
update drover_ended_supervisors set explained_by = $2 where id = any($1) and exists (select from jobs where id = $2 and discard_reason = 'crashed')`
)

// sqlBeside lists the jobs against which the deaths $1 counted that job $2 was convicted of. sqlHurry makes those among jobs
// $1 due that wait because of the deaths $2; by primary key. It passes rows that are locked: they keep their backoff.
const (
	sqlBeside = `
select distinct b from drover_ended_supervisors e, unnest(e.blamed) as b where e.id = any($1) and e.explained_by = $2 and b <> $2 order by b`
	sqlHurry = `
with held as materialized (
	select id from jobs
	where id = any($1) and state = 'retryable' and scheduled_at > clock_timestamp()
		and errors->-1->>'class' = 'crash' and errors->-1->>'supervisor' = any($2)
	order by id for update skip locked
)
update jobs set scheduled_at = clock_timestamp() where id = any(array(select id from held))`
)

func (s *store) beside(ctx context.Context, conn *pgx.Conn, v conviction) (jobs []string, err error) {
	var p pipeline
	p.begin()
	p.query(func(rows pgx.Rows) error {
		var job string
		err := rows.Scan(&job)
		jobs = append(jobs, job)
		return err
	}, sqlBeside, v.deaths, v.job)
	p.commit()
	return jobs, p.send(ctx, conn)
}

func (s *store) hurry(ctx context.Context, conn *pgx.Conn, v conviction, jobs []string, bound time.Duration) error {
	var p pipeline
	p.begin()
	p.exec(nil, sqlBoundPlan, bound.Milliseconds())
	p.exec(nil, sqlHurry, jobs, v.deaths)
	p.commit()
	return p.send(ctx, conn)
}

// sqlTakeBack undoes what the death of supervisor $1 counted against jobs $2, because that supervisor lives: suspects lose
// that crash, and a job that was discarded because of it comes back, unless its only attempt was under way. Rows that
// someone holds stay in blamed.
const sqlTakeBack = `
with dead as materialized (
	select id from drover_ended_supervisors where id = $1 for update
), held as materialized (
	select j.id from jobs j where j.id = any($2) and exists (select from dead) order by j.id for update skip locked
), wronged as materialized (
	select j.id, j.discard_reason = 'crashed' and coalesce(j.max_attempts, k.max_attempts, q.max_attempts, 20) > 1
		and j.started_seq is distinct from j.claim_seq and drover_last_error(j.errors)->>'supervisor' = $1 as back
	from jobs j left join drover_kinds k on k.kind = j.kind left join queues q on q.name = j.queue
	where j.id = any(array(select id from held))
), acquitted as (
	update jobs j set crashes = greatest(j.crashes - 1, 0), deaths = greatest(j.deaths - 1, 0),
		state = case when w.back then 'retryable' else j.state end,
		scheduled_at = case when w.back then clock_timestamp() else j.scheduled_at end,
		finalized_at = case when w.back then null else j.finalized_at end,
		discard_reason = case when w.back then null else j.discard_reason end,
		paced_at = case when w.back then null else j.paced_at end, -- no redrive's any more; back is null of one that was not discarded
		errors = drover_append_error(j.errors, jsonb_build_object('at', now(), 'class', 'operator', 'supervisor', $1,
			'error', 'crash taken back: the process was not dead'))
	from wronged w where w.id = j.id
), done as materialized (
	select id from held
	union all
	select b from unnest($2::text[]) as b where not exists (select from jobs j where j.id = b)
)
update drover_ended_supervisors e set blamed = array(
	select b from unnest(e.blamed) with ordinality as x(b, n) where (b in (select id from done)) is not true order by n)
where e.id = $1`

const (
	// sqlBlamed begins the take-back: it notes that the supervisor did not die. It returns the jobs that the death
	// counts against, in the order of their ids.
	sqlBlamed = `
with dead as (
	update drover_ended_supervisors set died = false, explained_by = null where id = $1 returning blamed
)
select distinct b from dead, unnest(blamed) as b where b is not null order by b`

	sqlDropBlamed = `update drover_ended_supervisors set blamed = array(select b from unnest(blamed) as b where b <> $2) where id = $1`

	// sqlForgotten asks whether the rescue of supervisor $1 is over.
	sqlForgotten = `select not exists (select from drover_supervisors where id = $1)`

	sqlAnyBlamed = `select exists (select from unnest(blamed) as b where b is not null) from drover_ended_supervisors where id = $1`
)

// takeBack reports whether everything that the mistaken death counted against jobs is undone: while the rescue goes
// on there may be more. If the database refuses to change a job's row, refused is called, and the job keeps its
// crash.
func (s *store) takeBack(ctx context.Context, conn *pgx.Conn, id string, bound time.Duration, refused func(job string, err error)) (done bool, err error) {
	var p pipeline
	var blamed []string
	p.begin()
	p.exec(nil, sqlOnePlan)
	p.query(func(rows pgx.Rows) error { return rows.Scan(&done) }, sqlForgotten, id)
	p.query(func(rows pgx.Rows) error {
		var job string
		err := rows.Scan(&job)
		blamed = append(blamed, job)
		return err
	}, sqlBlamed, id)
	p.commit()
	if err := p.send(ctx, conn); err != nil {
		return false, err
	}
	for part := range slices.Chunk(blamed, maxSettle) {
		err := isolate(part, func(jobs []string) error {
			if err := timeFor(ctx, 2*bound); err != nil {
				return err
			}
			var p pipeline
			p.begin()
			p.exec(nil, sqlBoundPlan, bound.Milliseconds())
			p.exec(nil, sqlTakeBack, id, jobs)
			p.commit()
			return p.send(ctx, conn)
		}, func(job string, err error) error {
			if err := timeFor(ctx, bound); err != nil {
				return err
			}
			refused(job, err)
			var p pipeline
			p.begin()
			p.exec(nil, sqlDropBlamed, id, job)
			p.commit()
			return p.send(ctx, conn)
		})
		if err != nil {
			return false, err
		}
	}
	left := false
	p = pipeline{}
	p.begin()
	p.query(func(rows pgx.Rows) error { return rows.Scan(&left) }, sqlAnyBlamed, id)
	p.commit()
	err = p.send(ctx, conn)
	return done && !left, err
}

// sqlTakeSolo takes the turn to run strong suspects, if it is nobody's who lives. The claim behind it is fenced: whose
// turn was taken is lost, and claims nothing.
const (
	sqlTakeSolo = `
update drover_solo set supervisor = $1, taken_at = now()
where supervisor is null or supervisor = $1 or not exists (select from drover_supervisors s where s.id = drover_solo.supervisor and s.lost_at is null)`
	sqlReleaseSolo = `update drover_solo set supervisor = null where supervisor = $1`
)

func (s *store) takeSolo(ctx context.Context, conn *pgx.Conn, id string) (bool, error) {
	var p pipeline
	var n int64
	p.begin()
	p.exec(&n, sqlTakeSolo, id)
	p.commit()
	return n == 1, p.send(ctx, conn)
}

func (s *store) releaseSolo(ctx context.Context, conn *pgx.Conn, id string) error {
	var p pipeline
	p.begin()
	p.exec(nil, sqlReleaseSolo, id)
	p.commit()
	return p.send(ctx, conn)
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

func (s *store) forget(ctx context.Context, conn *pgx.Conn, id string) error {
	var p pipeline
	p.begin()
	p.exec(nil, sqlReleaseSolo, id)
	p.exec(nil, sqlForgetEnded)
	p.exec(nil, sqlEnded, id)
	p.exec(nil, sqlForget, id) // supervisors before sleepers, as everywhere
	p.exec(nil, sqlForgetSleeper, id)
	p.commit()
	return p.send(ctx, conn)
}

// sqlSweep looks for due jobs at or behind the floors: transactions that committed late. A plain SELECT, no locks.
// It gives the lanes that are not empty, as far as a hunt reads them, and of each the first such key: its floor goes
// back to it.
const sqlSweep = `
select l.queue, l.lane, j.scheduled_at
from unnest($1::text[], $2::smallint[], $3::timestamptz[], $4::text[]) as l(queue, lane, floor_at, floor_id)
cross join lateral (
	select scheduled_at, id from jobs
	where finalized_at is null and queue = l.queue and lane = l.lane and scheduled_at <= now() + interval '1 minute'
	order by scheduled_at, id limit 1
) entry
left join lateral (
	select scheduled_at, id from jobs
	where finalized_at is null and state <> 'running' and queue = l.queue and lane = l.lane
		and scheduled_at <= now() and (scheduled_at, id) >= (entry.scheduled_at, entry.id) and (scheduled_at, id) <= (l.floor_at, l.floor_id)
		and kind = any($5) and id <> all(array(select job from drover_set_aside where path = 'claim'))
	order by scheduled_at, id limit 1
) j on true`

// straggler is a due job behind a floor.
type straggler struct {
	lane laneKey
	at   time.Time
}

// sqlBound makes the server end each statement of the transaction after so many ms, or by the session's own stricter
// time-out: a context that ends a statement costs the connection. sqlBoundPlan does that and what sqlOnePlan does.
const (
	boundIs = `set_config('statement_timeout',
	ceil(extract(epoch from least(nullif(current_setting('statement_timeout')::interval, interval '0'), $1 * interval '1 ms')) * 1000)::text, true)`

	sqlBound     = `select ` + boundIs
	sqlBoundPlan = sqlOnePlan + `, ` + boundIs
)

// sweepLane is a lane, and the floor that a full sweep looks behind.
type sweepLane struct {
	key   laneKey
	floor floor
}

// sweep returns what is behind the floors, and the lanes in which there is anything. It takes no longer than the bound: it
// steps over all that has died, on the connection that has to beat.
func (s *store) sweep(ctx context.Context, conn *pgx.Conn, swept []sweepLane, kinds []string, bound time.Duration) (behind []straggler, lanes []huntLane, err error) {
	var p pipeline
	var queues, floorID []string
	var numbers []int16
	var floorAt []time.Time
	for _, l := range swept {
		queues, numbers = append(queues, l.key.queue), append(numbers, l.key.lane)
		floorAt, floorID = append(floorAt, l.floor.at), append(floorID, l.floor.id)
	}
	p.begin()
	p.exec(nil, sqlBoundPlan, bound.Milliseconds())
	p.query(func(rows pgx.Rows) error {
		var key laneKey
		var at *time.Time
		if err := rows.Scan(&key.queue, &key.lane, &at); err != nil {
			return &rowError{err}
		}
		lanes = append(lanes, laneFromStart(key))
		if at != nil {
			behind = append(behind, straggler{key, *at})
		}
		return nil
	}, sqlSweep, queues, numbers, floorAt, floorID, kinds)
	p.commit()
	if err := p.send(ctx, conn); err != nil {
		return nil, nil, err
	}
	return behind, lanes, nil
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

const sqlListen = `select drover_channel()`

const (
	sqlRetain      = `select last, deleted, archived, refused, odd, follow_ups from drover_retain($1, $2::interval, $3::interval, $4, $5)`
	sqlRetainNext  = `select ids, odd from drover_retain_next($1, $2::interval, $3::interval, $4, $5)`
	sqlRetainThese = `select deleted, archived, refused from drover_retain_these($1, $2::interval, $3::interval)`
	sqlFollowUps   = `select made, refused from drover_follow_up_again($1)`
)

// retainTimeout bounds a step of the pruner, so that a row on which a trigger waits or loops is found.
const retainTimeout = 30 * time.Second

// retained is what one step of the pruner did; last is "" at the end of the walk.
type retained struct {
	last              string
	odd               bool // it got to ids above every ULID of today
	deleted, archived int64
	refused           []refusedRow
	followUps         []string // jobs whose follow-up is to be tried again
}

// refusedRow is a row that SQL set aside. If it has no id, it is an error that is no row's fault.
type refusedRow struct {
	Refusal
	Code string `json:"code"`
	Path string `json:"path"`
}

// retain deletes or archives old final jobs among the next ids after the given one.
func (s *store) retain(ctx context.Context, conn *pgx.Conn, after string, keep keeping, whole bool, batch int) (step retained, err error) {
	var last *string
	err = s.pruning(ctx, conn, func(rows pgx.Rows) error {
		return rows.Scan(&last, &step.deleted, &step.archived, &step.refused, &step.odd, &step.followUps)
	}, sqlRetain, after, keep.completed, keep.cancelled, batch, whole)
	if last != nil {
		step.last = *last
	}
	return step, err
}

// retainNext lists the ids that retain takes up next.
func (s *store) retainNext(ctx context.Context, conn *pgx.Conn, after string, keep keeping, whole bool, batch int) (ids []string, odd bool, err error) {
	err = s.pruning(ctx, conn, func(rows pgx.Rows) error { return rows.Scan(&ids, &odd) },
		sqlRetainNext, after, keep.completed, keep.cancelled, batch, whole)
	return ids, odd, err
}

// retainThese is retain for these jobs alone.
func (s *store) retainThese(ctx context.Context, conn *pgx.Conn, ids []string, keep keeping) (step retained, err error) {
	err = s.pruning(ctx, conn, func(rows pgx.Rows) error { return rows.Scan(&step.deleted, &step.archived, &step.refused) },
		sqlRetainThese, ids, keep.completed, keep.cancelled)
	return step, err
}

// followUpsAgain enqueues follow-ups that were set aside.
func (s *store) followUpsAgain(ctx context.Context, conn *pgx.Conn, ids []string) (made int64, refused []refusedRow, err error) {
	err = s.pruning(ctx, conn, func(rows pgx.Rows) error { return rows.Scan(&made, &refused) }, sqlFollowUps, ids)
	return made, refused, err
}

// pruning is one transaction of the pruner.
func (s *store) pruning(ctx context.Context, conn *pgx.Conn, read func(pgx.Rows) error, sql string, args ...any) error {
	var p pipeline
	p.begin()
	p.exec(nil, sqlBoundPlan, retainTimeout.Milliseconds())
	p.exec(nil, sqlConstraintsNow)
	p.query(read, sql, args...)
	p.commit()
	return p.send(ctx, conn)
}
