package engine

import (
	"cmp"
	"context"
	"runtime"
	"slices"
	"time"

	"github.com/drover-queue/drover/internal/blame"
	"github.com/drover-queue/drover/internal/floors"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// The pace of claims, of looks and of sleep.
const (
	MaxClaim = 2000 // the most jobs in one claim

	SleepAfter   = 250 * time.Millisecond // how long a lookout finds no job before it falls asleep: see sleep.go
	firstPoll    = time.Millisecond       // the first pause between two looks; doubled up to the poll interval
	AwakePoll    = 8 * time.Millisecond   // the longest pause of a lookout; short, because enqueues notify nobody while there is one
	TrickleRate  = 50                     // a sleeper stays asleep if it finds at most this many jobs a second: 125 looks a second would cost more
	TrickleBurst = 10                     // a sleeper stays asleep if it finds at most this many jobs together
	MinTurn      = 50                     // a claim of at least this many jobs waits for its turn: see Turns
	turnPatience = 5 * time.Second        // the longest wait for a turn: other claims take tens of milliseconds
	turnPause    = 30 * time.Second       // how long claims go without turns, after a turn did not come in time

	RestAfter = 10 * time.Second // how long looks find no job before the rest interval replaces the poll interval
)

// claimer takes due jobs for all queues in one statement, into buffers that the slots empty.
type claimer struct {
	*Shared
	*alarm
	runner *runner
	Floors *floors.Floors
	Near   *floors.Near
	Audit  *audit
	ended  chan struct{} // closed once claiming has ended

	// Only the claimer's goroutine uses the fields below.
	Link    store.Line
	Doubt   []string    // queues of a claim whose outcome is unknown; nil: none. FindOut comes before the next claim
	hunt    *store.Scan // the search for the jobs of the claim in doubt
	Trouble Trouble
	sleep
	out     lookout
	Refused RefusedClaims

	OutOfTurn time.Time // until this time claims do not wait for their turns

	wantsRoom bool      // it is time to look, but there is no room: the run that makes room will wake the claimer
	fullAt    time.Time // since when there is no room; zero while there is room
}

func newClaimer(s *Shared, w *runner) *claimer {
	c := &claimer{
		Shared: s, out: lookout{posts: map[string]int64{}, fullAt: map[string]time.Time{}}, alarm: s.alarm, runner: w, Floors: floors.New(), Near: floors.NewNear(), Audit: &audit{Shared: s, settler: w.settler}, ended: make(chan struct{}), Link: store.NewLine(s.pool),
		sleep: sleep{trickle: trickle{rate: TrickleRate, burst: TrickleBurst}}, Refused: RefusedClaims{Most: MaxClaim},
	}
	c.Trouble = Trouble{means: "no job is claimed", vital: true, link: &c.Link}
	return c
}

// run makes claims until ctx is done. Then it closes the buffers, which releases the jobs that have not started. The
// goroutines of the slots end when their jobs have ended. Round trips use the context base, which ends later.
func (c *claimer) run(ctx, base context.Context) {
	defer c.Link.Close(base)
	defer close(c.ended)
	timer := time.NewTimer(0)
	defer timer.Stop()
	c.Refused.readAt = c.Now()
	for ctx.Err() == nil {
		now := c.Now()
		c.releaseStale(now)
		rest := c.Trouble.Until.Sub(now)
		if rest <= 0 {
			if c.Doubt != nil {
				c.FindOut(base)
				continue
			}
			if c.Refused.timedOutAlone != nil {
				c.setSlowAside(base)
				continue
			}
			if c.Refused.Failed != nil {
				if c.Overstays(now) {
					c.LeavePosts(base)
					continue
				}
				c.PickApart(base)
				continue
			}
			if at := c.Refused.readAt; c.rereadAside.Swap(false) || !at.IsZero() && !now.Before(at) {
				c.TendAside(base)
			}
			c.Audit.Page(base, &c.Trouble, now)
			if plan := c.Request(now); plan != nil {
				c.Trip(base, plan)
				continue
			}
			if c.Overstays(now) {
				c.LeavePosts(base)
				continue
			}
			rest = c.rest(now)
		}
		timer.Reset(rest)
		await(ctx, timer.C, c.Signal)
	}
	c.runner.closeQueues()
	if len(c.out.posts) > 0 || c.out.unknown {
		c.LeavePosts(base)
	}
	for c.Doubt != nil && base.Err() == nil { // the jobs of a claim whose reply was lost are released, too
		timer.Reset(max(c.Trouble.Until.Sub(c.Now()), 0))
		if await(base, timer.C, nil) {
			c.FindOut(base)
		}
	}
}

// releaseStale releases the jobs in a buffer, if they have waited behind slow jobs for BufferPatience: another process
// may have a free slot.
func (c *claimer) releaseStale(now time.Time) {
	for _, q := range c.QueueStates() {
		if stale := q.Buffer.Drain(now.Add(-BufferPatience)); len(stale) > 0 {
			q.Congested() // otherwise the next claim would take the same jobs again
			c.runner.releaseAll(stale)
		}
	}
}

// claimGroup is one tier of one queue in a claim.
type claimGroup struct {
	queue *QueueState
	tier  int16
	room  int
}

// Groups divides the room of a queue. While fresh jobs wait, retries get a fifth of the room. Suspects are jobs whose
// process has died once; they get at most the square root of the slots. Strong suspects are jobs whose processes have
// died more often. They get no room here, because they run alone: see requestAlone.
func (q *QueueState) Groups(room int) []claimGroup {
	retries := room
	if q.Full {
		q.retries = min(q.retries+float64(room)/5, float64(room))
		retries = int(q.retries)
	}
	return []claimGroup{
		{q, floors.TierRetry, retries},
		{q, floors.TierSuspect, max(0, blame.SuspectRoom(q.Slots)-int(q.suspect.Load()))},
		{q, floors.TierFresh, room},
	}
}

// Lanes makes a request with the lanes of the groups, each with the floor from which the claim reads it. The near sweep
// and the open calls (calls.go) may lower a floor for this claim.
func (c *claimer) Lanes(l *lease, groups []claimGroup, sweep floors.Sweep, asked map[string]call) *store.ClaimRequest {
	req := &store.ClaimRequest{Supervisor: l.ID, Epoch: int(l.Epoch.Load()), Kinds: c.openKinds(), Ages: c.Cfg.Ages}
	for i, g := range groups {
		if n := len(req.Queues); n == 0 || req.Queues[n-1] != g.queue.Name {
			req.Queues = append(req.Queues, g.queue.Name)
		}
		req.GroupQueue = append(req.GroupQueue, int32(len(req.Queues))) //nolint:gosec // few
		req.GroupRoom = append(req.GroupRoom, int32(g.room))            //nolint:gosec // at most MaxClaim
		for priority := int16(1); priority <= 9; priority++ {
			key := floors.Lane{Queue: g.queue.Name, N: g.tier + priority}
			f := c.Near.Lower(sweep, key, c.Floors.Get(key))
			if call, ok := asked[g.queue.Name]; ok {
				f = call.lower(f)
			}
			req.LaneGroup = append(req.LaneGroup, int32(i+1))
			req.Lanes = append(req.Lanes, g.tier+priority)
			req.FloorAt = append(req.FloorAt, f.At)
			req.FloorID = append(req.FloorID, f.ID)
		}
	}
	return req
}

// AllLanes makes a request with the lanes that a full sweep looks through.
func (c *claimer) AllLanes() *store.ClaimRequest {
	var groups []claimGroup
	for _, q := range c.QueueStates() {
		for _, tier := range []int16{floors.TierFresh, floors.TierRetry, floors.TierSuspect, floors.TierStrong} {
			groups = append(groups, claimGroup{queue: q, tier: tier})
		}
	}
	return c.Lanes(c.Lease.Load(), groups, floors.Sweep{}, nil)
}

// Plan is a claim about to be made.
type Plan struct {
	Lease  *lease    // the lease at the time of the request: the keeper may replace it while the claim is under way
	floors int       // the version of the floors
	due    time.Time // the known next due time; zero: none
	Req    *store.ClaimRequest
	groups []claimGroup
	order  *SoloOrder // the order that this claim carries out, to run a strong suspect alone; nil: none
	Sweep  floors.Sweep
	asked  map[string]call // the open calls that the claim may answer
	once   bool            // the claim comes before the next poll, because something asked for it
	asleep bool            // the claimer was asleep when it planned the claim
	Reply  store.ClaimReply
	unread map[floors.Lane]bool // lanes that the claim leaves out; nil: none
}

// atDue reports whether the known due time has passed.
func (p *Plan) atDue(now time.Time) bool { return !p.due.IsZero() && !now.Before(p.due) }

// byClock reports whether the claim came with a poll or at a due time, and not because of a notification or a free slot.
func (p *Plan) byClock(now time.Time) bool { return !p.once || p.atDue(now) }

// Request plans a claim, if it is time and there is room.
func (c *claimer) Request(now time.Time) *Plan {
	l := c.Lease.Load()
	if l.Ended.Load() {
		return nil
	}
	if order := c.Solo.Load(); order != nil {
		return c.requestAlone(l, order, now)
	}
	queues := c.QueueStates()
	asked, due := c.callsWithRoom(queues, now), c.NextDue()
	c.mu.Lock()
	poked := c.Poked
	c.mu.Unlock()
	if now.Before(c.LookAt()) && !poked && len(asked) == 0 {
		return nil
	}
	if c.wantsRoom = !c.hasRoom(queues); c.wantsRoom {
		if c.fullAt.IsZero() {
			c.fullAt = now
		}
		if !due.IsZero() && !now.Before(due) {
			c.passOn(queues, now)
		}
		return nil
	}
	c.fullAt = time.Time{}
	p := &Plan{Lease: l, floors: c.Floors.Version(), Sweep: c.Near.Due(now), asked: asked, due: due, once: now.Before(c.Next), asleep: c.Asleep}
	// The claim takes the jobs whose due times have passed, so we forget these times.
	c.mu.Lock()
	c.Poked = false
	for _, known := range []*time.Time{&c.Due, &c.own} {
		if !now.Before(*known) {
			*known = time.Time{}
		}
	}
	if c.missed {
		c.missed = false
		c.listenAgain(now)
	}
	c.mu.Unlock()
	var rooms []int32
	for i, room := range ShareOut(c.Refused.Most, queues) {
		rooms = append(rooms, int32(room)) //nolint:gosec // at most MaxClaim
		p.groups = append(p.groups, queues[i].Groups(room)...)
	}
	p.Req = c.Lanes(l, p.groups, p.Sweep, asked)
	p.Req.Rooms, p.Req.NextDue = rooms, p.asleep && p.byClock(now)
	c.leaveOut(p, now)
	p.Req.Turns, p.Req.Patience = c.Turns(queues, rooms, now), min(turnPatience, c.Cfg.Lease/6)
	return p
}

// Turns returns the queues in which a claim waits until no other claim is under way. These are queues with a backlog,
// from which the claim wants many jobs. If two claims of one backlog overlap, each meets rows that the other has just
// changed. It has to look up the new version of such a row, and it locks this version although the job is taken.
// Settles skip locked rows and have to come again.
func (c *claimer) Turns(queues []*QueueState, rooms []int32, now time.Time) (turns []string) {
	if now.Before(c.OutOfTurn) {
		return nil
	}
	for i, q := range queues {
		switch {
		case rooms[i] == 0:
		case !q.Full:
			return nil // the jobs of q must not wait for another queue's turn
		case rooms[i] >= MinTurn:
			turns = append(turns, q.Name)
		}
	}
	return turns
}

// passOn opens calls (calls.go) for the jobs that are due by now, because no queue has room.
func (c *claimer) passOn(queues []*QueueState, now time.Time) {
	c.mu.Lock()
	c.Due, c.own = time.Time{}, time.Time{}
	c.mu.Unlock()
	for _, q := range queues {
		if !q.held() {
			c.calls.noteFull(q.Name, true, now, now.Add(c.patience(q.Name)))
		}
	}
}

// callsWithRoom returns the open calls (calls.go) of queues that have room. The calls of other queues are
// handed on to other supervisors.
func (c *claimer) callsWithRoom(queues []*QueueState, now time.Time) map[string]call {
	asked := c.calls.asked()
	for queue := range asked {
		i := slices.IndexFunc(queues, func(q *QueueState) bool { return q.Name == queue })
		// We set the watch before we read Pending, as in hasRoom.
		if i >= 0 && !queues[i].held() {
			if watched := queues[i].WatchRoom(); queues[i].Pending.Load() <= watched {
				continue
			}
		}
		c.calls.noteFull(queue, false, now, now.Add(c.patience(queue)))
		delete(asked, queue)
	}
	return asked
}

// requestAlone plans the claim of one strong suspect, once all other runs are settled.
func (c *claimer) requestAlone(l *lease, order *SoloOrder, now time.Time) *Plan {
	c.wantsRoom = true // so the claimer stops being the lookout in time: see Overstays
	if c.fullAt.IsZero() {
		c.fullAt = now
	}
	queues, idle := c.QueueStates(), c.Unsettled.Len() == 0
	i := slices.IndexFunc(queues, func(q *QueueState) bool { return q.Name == order.Queue && !q.held() })
	switch {
	case order.Over.Load():
		return nil
	case order.ends(i >= 0, idle, now):
		order.Over.Store(true)
		c.beatSoon()
		return nil
	case !idle:
		return nil
	}
	p := &Plan{Lease: l, order: order, groups: []claimGroup{{queues[i], floors.TierStrong, 1}}}
	p.Req = c.Lanes(l, p.groups, floors.Sweep{}, nil)
	p.Req.Rooms = []int32{1}
	c.leaveOut(p, now)
	clear(p.Req.FloorAt) // such claims are rare, so they read each lane from its beginning
	clear(p.Req.FloorID)
	return p
}

// ShareOut divides n jobs among the queues, up to the room of each. All queues get equal parts. Parts that exceed a
// queue's room go to the others.
func ShareOut(n int, queues []*QueueState) []int {
	given, room := make([]int, len(queues)), make([]int, len(queues))
	for i, q := range queues {
		room[i] = q.Room()
	}
	for open := len(queues); n > 0 && open > 0; {
		part := max(n/open, 1)
		open = 0
		for i := range queues {
			more := min(part, room[i], n)
			given[i] += more
			room[i] -= more
			n -= more
			if room[i] > 0 {
				open++
			}
		}
	}
	return given
}

// hasRoom reports whether a claim is worth its round trip. If not, the run that makes enough room wakes the claimer.
func (c *claimer) hasRoom(queues []*QueueState) bool {
	if c.runner.settler.overloaded() {
		return false // the settler wakes us when it has caught up
	}
	room := false
	for _, q := range queues {
		// WatchRoom sets the watch before we read Pending. So a run that ends in between is either counted here, or
		// sees the watch.
		if watched := q.WatchRoom(); !q.held() && q.Pending.Load() <= watched {
			room = true
		}
	}
	return room
}

// Trip sends one claim and handles its reply.
func (c *claimer) Trip(base context.Context, claim *Plan) {
	ctx, cancel := context.WithTimeout(base, min(TripTimeout, c.Cfg.Lease/2))
	defer cancel()
	conn, err := c.Link.Get(ctx)
	if err != nil {
		c.failed(base, nil, err)
		return
	}
	started := c.Now()
	c.useConn(conn)
	note := c.fallAsleep(claim, started)
	err = conn.Claim(ctx, note, claim.Req, &claim.Reply)
	c.noteChange(note, err, started)
	c.Refused.Asked(claim.rooms(), &claim.Reply, err)
	c.AfterClaim(base, claim, err, claim.Reply.Cost(c.Now().Sub(started)))
	if err != nil {
		c.failed(base, claim, err)
		return
	}
	c.unclaimed.Store(nil)
	c.Trouble.Over(base, c.Shared)
}

// failed makes the claimer repeat the claim. If a row may be at fault, the claimer repeats it in parts, otherwise after
// a pause. If p is nil, parts would not help, so the claimer makes a pause.
func (c *claimer) failed(ctx context.Context, p *Plan, err error) {
	c.out.unknown = !c.Cfg.DisableNotify // we should not be the lookout until claims work again
	c.Next = c.Now()
	f := failure{"claiming", c.Next, c.Next, err}
	if before := c.unclaimed.Load(); before != nil {
		f.since = before.since
	}
	c.unclaimed.Store(&f)
	if p != nil && pg.RowsFault(err) {
		c.Refused.Failed, c.Refused.why = p, err
		return
	}
	c.Trouble.Failed(ctx, c.Shared, "claiming", err)
}

// rooms returns how many jobs the claim asks for.
func (p *Plan) rooms() (n int) {
	for _, room := range p.Req.Rooms {
		n += int(room)
	}
	return n
}

// AfterClaim starts the claimed jobs, moves the floors and decides when to look again. No job starts before its claim
// has committed. Otherwise the job's settle could overtake the claim and match no row.
func (c *claimer) AfterClaim(ctx context.Context, p *Plan, err error, took time.Duration) {
	now := c.Now()
	reply := &p.Reply
	if reply.OutOfTurn || !reply.Committed && len(p.Req.Turns) > 0 {
		c.OutOfTurn = now.Add(turnPause)
	}
	switch {
	case !reply.Committed:
		if !pg.NotApplied(err) {
			c.Doubt = p.Req.Queues
		}
		return
	case reply.Fenced:
		p.Lease.Lose()
		c.beatSoon()
		return
	}
	if c.Near.Saw(reply.Seen) {
		c.rewound()
	}
	c.Near.Swept(p.Sweep, took, now)
	c.calls.noteTime(took)
	if p.order != nil {
		p.order.claimed(len(reply.Jobs) > 0)
	} else {
		c.sort(p)
		c.advance(p)
	}
	c.dispatch(ctx, p, now)
	if n := len(reply.Jobs); n > 0 && n <= TrickleBurst {
		runtime.Gosched() // so that the jobs start before the next look is sent
	}
	c.answer(p, now)
	c.setPace(p, now)
}

// sort puts the jobs of each queue in the order of jobs_claim_idx, because an update returns rows in any order.
func (c *claimer) sort(p *Plan) {
	slices.SortFunc(p.Reply.Jobs, func(a, b store.Job) int {
		if c := cmp.Compare(a.Lane, b.Lane); c != 0 {
			return c
		}
		if c := a.ScheduledAt.Compare(b.ScheduledAt); c != 0 {
			return c
		}
		return cmp.Compare(a.ID, b.ID)
	})
}

// advance moves the floors of the lanes that the claim read. If the claim took fewer jobs from a group than the group
// has room for, it read all lanes of the group to their end. Otherwise it read the lanes up to the lane that filled the
// group.
func (c *claimer) advance(p *Plan) {
	last := map[floors.Lane]floors.Floor{}
	counts := map[floors.Lane]int{}
	for i := range p.Reply.Jobs {
		j := &p.Reply.Jobs[i]
		key := floors.Lane{Queue: j.Queue, N: j.Lane}
		last[key] = floors.Floor{At: j.ScheduledAt, ID: j.ID}
		counts[key]++
	}
	left := 0
	for i, g := range p.groups {
		if i == 0 || g.queue != p.groups[i-1].queue {
			left = int(p.Req.Rooms[p.Req.GroupQueue[i]-1])
		}
		limit, n, final := min(g.room, left), 0, int16(0)
		for priority := int16(1); priority <= 9; priority++ {
			if count := counts[floors.Lane{Queue: g.queue.Name, N: g.tier + priority}]; count > 0 {
				n, final = n+count, priority
			}
		}
		if g.tier == floors.TierRetry {
			g.queue.retries = max(0, g.queue.retries-float64(n))
		}
		left -= n
		g.queue.Full = left == 0
		// If earlier tiers filled the room, the claim did not read the lanes of this tier.
		if limit == 0 {
			continue
		}
		if n < limit {
			final = 10 // the claim read all nine lanes to their end
		}
		for priority := int16(1); priority <= min(final, 9); priority++ {
			key := floors.Lane{Queue: g.queue.Name, N: g.tier + priority}
			if p.unread[key] {
				continue
			}
			c.Floors.Advance(key, last[key], priority < final, p.Reply.At, p.floors)
			c.Near.Read(p.Sweep, key, p.Reply.Seen)
		}
	}
}

// dispatch hands claimed jobs to the buffers of their queues.
func (c *claimer) dispatch(ctx context.Context, p *Plan, now time.Time) {
	if len(p.Reply.Jobs) > 0 {
		failpoint("claimed")
	}
	runs := map[*QueueState][]*Run{}
	for i, g := range p.groups {
		if i == 0 || g.queue != p.groups[i-1].queue {
			runs[g.queue] = nil
		}
	}
	byName := map[string]*QueueState{}
	for q := range runs {
		byName[q.Name] = q
	}
	for i := range p.Reply.Jobs {
		j := &p.Reply.Jobs[i]
		q := byName[j.Queue]
		r := c.NewRun(j, q, p, now)
		if j.Left || c.holds.Load().holdsJob(j.Queue, j.Kind) { // the reply lacks the args, or a pause has begun since the plan was made
			c.Unsettled.Add(r)
			q.Enter([]*Run{r})
			c.runner.release(r)
			continue
		}
		runs[q] = append(runs[q], r)
	}
	for q, runs := range runs {
		if len(runs) == 0 {
			continue
		}
		c.Unsettled.Add(runs...)
		q.Enter(runs)
		if !q.Buffer.Put(runs) { // the queue was removed during the claim
			for _, r := range runs {
				c.runner.release(r)
			}
		}
		c.Reporter.add(&Event{Kind: EventClaimed, Queue: q.Name, Supervisor: p.Lease.ID, Count: len(runs)})
	}
}

// NewRun makes the run of a job that the claim p has taken.
func (c *claimer) NewRun(j *store.Job, q *QueueState, p *Plan, now time.Time) *Run {
	late := p.Reply.At.Sub(j.ScheduledAt)
	r := c.Handler.NewRun(j, q.Policy, late)
	r.Fence = store.Fence{ID: j.ID, Owner: p.Lease.ID, Seq: j.ClaimSeq, ClaimedAt: p.Reply.At}
	r.Lateness = late
	// Two kinds of rows must stay, and the pruner deletes them later. While the period of a unique job lasts, its row
	// prevents other jobs with the same key. A canary's row stays because its redrive looks at it.
	r.DeleteCompleted = q.DeleteCompleted && (j.More == nil || !j.More.Keep)
	r.Shared, r.slots, r.From, r.Lease, r.tier, r.Received = c.Shared, c.runner.settler, q, p.Lease, j.Lane/10*10, now
	return r
}
