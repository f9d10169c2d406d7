package drover

import (
	"cmp"
	"context"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/drover-queue/drover/internal/blame"
	"github.com/drover-queue/drover/internal/floors"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

const (
	maxClaim = 2000 // jobs in one claim

	sleepAfter   = 250 * time.Millisecond // without a job, before drover_sleepers is written
	firstPoll    = time.Millisecond       // doubled up to the poll interval
	awakePoll    = 8 * time.Millisecond   // the longest before drover_sleepers is written: nobody notifies until then
	trickleRate  = 50                     // jobs a second that it is notified of one by one, asleep: less work than 125 looks
	trickleBurst = 10                     // and so many at once
	minTurn      = 50                     // jobs that a claim wants before it waits for its turn
	turnPatience = 5 * time.Second        // how long it waits: others' claims take tens of milliseconds
	turnPause    = 30 * time.Second       // without turns, after one did not come

	minDueGap = 20 * time.Millisecond // between looks for due jobs that turn out to be other processes'

	restAfter = 10 * time.Second // without a job, before a supervisor that hears nothing looks less often still
)

// claimer takes due jobs for all queues in one statement, into buffers that the workers empty.
type claimer struct {
	*shared
	*alarm
	runner *runner
	floors *floors.Floors
	near   *floors.Near
	audit  *audit
	ended  chan struct{} // closed once claiming has ended

	sleeping atomic.Int64 // queues in which drover_sleepers should say that we sleep

	// The rest is the claimer goroutine's own.
	link    store.Line
	doubt   []string    // queues of a claim whose outcome is unknown: find out before the next
	hunt    *store.Hunt // for what it claimed
	trouble trouble
	next    time.Time     // look not before
	step    time.Duration // the last wait
	idleAt  time.Time     // since when nothing was found; zero while there is work
	asleep  bool          // drover_sleepers says so
	until   time.Time     // and until when; zero: for good
	full    []string      // and in which queues there is no room
	hearing floors.Missed
	trickle trickle
	refused refusedClaims

	outOfTurn time.Time // wait for no turn before

	wantsRoom bool      // it is time to look, but no slot is free: a slot will signal
	fullAt    time.Time // since when; zero while there is room
}

func newClaimer(s *shared, w *runner) *claimer {
	c := &claimer{
		shared: s, alarm: s.alarm, runner: w, floors: floors.New(), near: floors.NewNear(), audit: &audit{shared: s, settler: w.settler}, ended: make(chan struct{}), link: store.NewLine(s.pool),
		refused: refusedClaims{most: maxClaim},
	}
	c.trouble = trouble{means: "no job is claimed", link: &c.link}
	return c
}

// run claims until ctx is done, then closes the buffers: what has not started goes back, workers end once their job
// has. What is under way ends with base.
func (c *claimer) run(ctx, base context.Context) {
	defer c.link.Close(base)
	defer close(c.ended)
	timer := time.NewTimer(0)
	defer timer.Stop()
	c.refused.readAt = c.now()
	for ctx.Err() == nil {
		now := c.now()
		c.handBackStale(now)
		rest := c.trouble.until.Sub(now)
		if rest <= 0 {
			if c.doubt != nil {
				c.findOut(base)
				continue
			}
			if c.refused.slow != nil {
				c.setSlowAside(base)
				continue
			}
			if c.refused.failed != nil {
				c.pickApart(base)
				continue
			}
			if at := c.refused.readAt; c.rereadAside.Swap(false) || !at.IsZero() && !now.Before(at) {
				c.tendAside(base)
			}
			c.audit.page(base, &c.trouble, now)
			if plan := c.request(now); plan != nil {
				c.trip(base, plan)
				continue
			}
			if c.fullFor(now) >= sleepAfter && !c.saysFull() {
				c.sleepFull(base)
				continue
			}
			rest = c.rest(now)
		}
		timer.Reset(rest)
		select {
		case <-timer.C:
		case <-c.signal:
		case <-ctx.Done():
		}
	}
	c.runner.closeQueues()
	if !c.cfg.DisableNotify {
		c.sleepFull(base)
	}
	for c.doubt != nil && base.Err() == nil { // what a lost reply may have claimed goes back too, or is rescued
		timer.Reset(max(c.trouble.until.Sub(c.now()), 0))
		select {
		case <-timer.C:
			c.findOut(base)
		case <-base.Done():
		}
	}
}

// handBackStale gives up what a slow job keeps from starting: another process may have a free slot.
func (c *claimer) handBackStale(now time.Time) {
	for _, q := range c.queueStates() {
		if stale := q.buffer.drain(now.Add(-bufferPatience)); len(stale) > 0 {
			q.congested() // or the next claim would take the same jobs again
			c.runner.handBack(stale)
		}
	}
}

// claimGroup is one tier of one queue in a claim.
type claimGroup struct {
	queue *queueState
	tier  int16
	room  int
}

// groups divides what a queue has room for. While fresh jobs wait, retries get a fifth. Of suspects at most the root
// of the slots are claimed at a time, of strong ones none: see requestAlone.
func (q *queueState) groups(room int) []claimGroup {
	retries := room
	if q.full {
		q.retries = min(q.retries+float64(room)/5, float64(room))
		retries = int(q.retries)
	}
	return []claimGroup{
		{q, floors.TierRetry, retries},
		{q, floors.TierSuspect, max(0, blame.SuspectRoom(q.Slots)-int(q.suspect.Load()))},
		{q, floors.TierFresh, room},
	}
}

// lanes lists the lanes of the groups with their floors, as a near sweep lowers them.
func (c *claimer) lanes(l *lease, groups []claimGroup, sweep floors.Sweep) *store.ClaimRequest {
	req := &store.ClaimRequest{Supervisor: l.id, Epoch: int(l.epoch.Load()), Kinds: c.kinds}
	for i, g := range groups {
		if n := len(req.Queues); n == 0 || req.Queues[n-1] != g.queue.Name {
			req.Queues = append(req.Queues, g.queue.Name)
		}
		req.GroupQueue = append(req.GroupQueue, int32(len(req.Queues))) //nolint:gosec // few
		req.GroupRoom = append(req.GroupRoom, int32(g.room))            //nolint:gosec // at most maxClaim
		for priority := int16(1); priority <= 9; priority++ {
			key := floors.Lane{Queue: g.queue.Name, N: g.tier + priority}
			f := c.near.Lower(sweep, key, c.floors.Get(key))
			req.LaneGroup = append(req.LaneGroup, int32(i+1))
			req.Lanes = append(req.Lanes, g.tier+priority)
			req.FloorAt = append(req.FloorAt, f.At)
			req.FloorID = append(req.FloorID, f.ID)
		}
	}
	return req
}

// allLanes is what a full sweep looks through.
func (c *claimer) allLanes() *store.ClaimRequest {
	var groups []claimGroup
	for _, q := range c.queueStates() {
		for _, tier := range []int16{floors.TierFresh, floors.TierRetry, floors.TierSuspect, floors.TierStrong} {
			groups = append(groups, claimGroup{queue: q, tier: tier})
		}
	}
	return c.lanes(c.lease.Load(), groups, floors.Sweep{})
}

// plan is a claim about to be made.
type plan struct {
	lease  *lease // as it was then: control may replace it while the claim is under way
	floors int    // their version
	due    time.Time
	req    *store.ClaimRequest
	groups []claimGroup
	order  *soloOrder // that it carries out; nil: none
	sweep  floors.Sweep
	reply  store.ClaimReply
	unread map[floors.Lane]bool // lanes that it leaves out; nil: none
}

// request asks for jobs if it is time and there is room.
func (c *claimer) request(now time.Time) *plan {
	c.mu.Lock()
	if c.poked {
		c.poked, c.next, c.step = false, now, 0
	}
	c.mu.Unlock()
	l := c.lease.Load()
	if l.ended.Load() {
		return nil
	}
	if order := c.solo.Load(); order != nil {
		return c.requestAlone(l, order, now)
	}
	if now.Before(c.lookAt()) {
		return nil
	}
	queues := c.queueStates()
	if c.wantsRoom = !c.hasRoom(queues); c.wantsRoom {
		if c.fullAt.IsZero() {
			c.fullAt = now
		}
		return nil
	}
	c.fullAt = time.Time{}
	p := &plan{lease: l, floors: c.floors.Version(), sweep: c.near.Due(now)}
	// What settles note while the claim is under way must outlive it; what is known now it will tell again.
	c.mu.Lock()
	p.due, c.due = c.due, time.Time{}
	c.mu.Unlock()
	var rooms []int32
	for i, room := range shareOut(c.refused.most, queues) {
		rooms = append(rooms, int32(room)) //nolint:gosec // at most maxClaim
		p.groups = append(p.groups, queues[i].groups(room)...)
	}
	p.req = c.lanes(l, p.groups, p.sweep)
	p.req.Rooms = rooms
	c.leaveOut(p, now)
	p.req.Turns, p.req.Patience = c.turns(queues, rooms, now), min(turnPatience, c.cfg.Lease/6)
	return p
}

// turns are the queues in which a claim waits until no other is under way: those with a backlog, of which it wants many.
// Claims that overlap follow the rows that others have just taken to their new versions and lock those before they see
// that they are running, for as long as the claim takes; the owner's settles skip what is locked and come again.
func (c *claimer) turns(queues []*queueState, rooms []int32, now time.Time) (turns []string) {
	if now.Before(c.outOfTurn) {
		return nil
	}
	for i, q := range queues {
		switch {
		case rooms[i] == 0:
		case !q.full:
			return nil // its jobs must not wait for another queue's turn
		case rooms[i] >= minTurn:
			turns = append(turns, q.Name)
		}
	}
	return turns
}

// full are the queues that it has no room for.
func (p *plan) full() []string {
	full := []string{}
	for i, room := range p.req.Rooms {
		if room == 0 {
			full = append(full, p.req.Queues[i])
		}
	}
	return full
}

// soloOrder makes the claimer run one strong suspect of a queue with nothing beside it: it claims nothing until all
// that it holds has ended and is settled, then that one, then nothing until control has decided how to go on.
type soloOrder struct {
	queue  string
	idleBy time.Time   // when it gives up waiting
	idle   atomic.Bool // nothing else was held any more
	ran    atomic.Bool // one was claimed
	over   atomic.Bool
}

// requestAlone asks for one strong suspect once nothing else is held.
func (c *claimer) requestAlone(l *lease, order *soloOrder, now time.Time) *plan {
	c.wantsRoom = true // so that drover_sleepers soon says that we take nothing
	if c.fullAt.IsZero() {
		c.fullAt = now
	}
	i := slices.IndexFunc(c.queueStates(), func(q *queueState) bool { return q.Name == order.queue })
	switch idle := c.book.len() == 0; {
	case order.over.Load():
		return nil
	case i < 0 || order.idle.Load() && idle || !order.idle.Load() && !idle && !now.Before(order.idleBy):
		order.over.Store(true)
		c.beatSoon()
		return nil
	case !idle:
		return nil
	}
	p := &plan{lease: l, order: order, groups: []claimGroup{{c.queueStates()[i], floors.TierStrong, 1}}}
	p.req = c.lanes(l, p.groups, floors.Sweep{})
	p.req.Rooms = []int32{1}
	c.leaveOut(p, now)
	clear(p.req.FloorAt) // so few look there that floors are not worth keeping
	clear(p.req.FloorID)
	return p
}

// shareOut gives each queue what it has room for, n jobs in all: an equal part first, then what others leave.
func shareOut(n int, queues []*queueState) []int {
	given, room := make([]int, len(queues)), make([]int, len(queues))
	for i, q := range queues {
		room[i] = q.room()
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

// hasRoom reports whether a claim is worth its round trip. Where it is not, a slot that gets free will say so.
func (c *claimer) hasRoom(queues []*queueState) bool {
	if c.runner.settler.behind() {
		return false // the settler will say when it has caught up
	}
	room := false
	for _, q := range queues {
		// The watch goes first: a run that ends in between is either seen here, or sees the watch.
		if watched := q.watchRoom(); q.pending.Load() <= watched {
			room = true
		}
	}
	return room
}

// trip is one claim.
func (c *claimer) trip(base context.Context, claim *plan) {
	ctx, cancel := context.WithTimeout(base, min(tripTimeout, c.cfg.Lease/2))
	defer cancel()
	conn, err := c.link.Get(ctx)
	if err != nil {
		c.failed(base, nil, err)
		return
	}
	started := c.now()
	note := c.fallAsleep(claim, started)
	err = conn.Claim(ctx, note, claim.req, &claim.reply)
	if claim.reply.Slept {
		c.fellAsleep(note, started)
	}
	c.refused.asked(claim.rooms(), &claim.reply, err)
	c.afterClaim(base, claim, err, claim.reply.Cost(c.now().Sub(started)))
	if err != nil {
		c.failed(base, claim, err)
		return
	}
	c.trouble.over(base, c.shared)
}

// failed has the claim made again: in parts if a row may be at fault, else after a pause. p is nil if parts would not
// help.
func (c *claimer) failed(ctx context.Context, p *plan, err error) {
	c.sayAnew()
	c.next = c.now()
	if p != nil && pg.RowsFault(err) {
		c.refused.failed, c.refused.why = p, err
		return
	}
	c.trouble.failed(ctx, c.shared, "claiming", err)
}

// rooms is how many jobs the claim asks for.
func (p *plan) rooms() (n int) {
	for _, room := range p.req.Rooms {
		n += int(room)
	}
	return n
}

// afterClaim starts what was claimed, moves the floors and sets the pace. No job starts before its claim has
// committed: its settle could overtake the claim and match nothing.
func (c *claimer) afterClaim(ctx context.Context, p *plan, err error, took time.Duration) {
	now := c.now()
	reply := &p.reply
	if reply.OutOfTurn || !reply.Committed && len(p.req.Turns) > 0 {
		c.outOfTurn = now.Add(turnPause)
	}
	switch {
	case !reply.Committed:
		if !pg.NotApplied(err) {
			c.doubt = p.req.Queues
		}
		return
	case reply.Fenced:
		p.lease.lose()
		c.beatSoon()
		return
	}
	if c.near.Saw(reply.Seen) {
		c.rewound()
	}
	c.near.Swept(p.sweep, took, now)
	if p.order != nil {
		p.order.ran.Store(len(reply.Jobs) > 0)
		p.order.idle.Store(true)
	} else {
		c.sort(p)
		c.advance(p)
	}
	c.dispatch(ctx, p, now)
	if n := len(reply.Jobs); n > 0 && n <= trickleBurst {
		runtime.Gosched() // so that they start before the next look is sent
	}
	c.setPace(p, now)
}

// sort puts the jobs in the order of the index: an update returns them in any.
func (c *claimer) sort(p *plan) {
	slices.SortFunc(p.reply.Jobs, func(a, b store.Job) int {
		if c := cmp.Compare(a.Lane, b.Lane); c != 0 {
			return c
		}
		if c := a.ScheduledAt.Compare(b.ScheduledAt); c != 0 {
			return c
		}
		return cmp.Compare(a.ID, b.ID)
	})
}

// advance moves the floors of the lanes that the claim read: those of a group that was not filled to their end,
// of a filled one up to the lane that filled it.
func (c *claimer) advance(p *plan) {
	last := map[floors.Lane]floors.Floor{}
	counts := map[floors.Lane]int{}
	for i := range p.reply.Jobs {
		j := &p.reply.Jobs[i]
		key := floors.Lane{Queue: j.Queue, N: j.Lane}
		last[key] = floors.Floor{At: j.ScheduledAt, ID: j.ID}
		counts[key]++
	}
	left := 0
	for i, g := range p.groups {
		if i == 0 || g.queue != p.groups[i-1].queue {
			left = int(p.req.Rooms[p.req.GroupQueue[i]-1])
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
		g.queue.full = left == 0
		if limit == 0 {
			continue // not looked at
		}
		if n < limit {
			final = 10 // all nine were read to their end
		}
		for priority := int16(1); priority <= min(final, 9); priority++ {
			key := floors.Lane{Queue: g.queue.Name, N: g.tier + priority}
			if p.unread[key] {
				continue
			}
			c.floors.Advance(key, last[key], priority < final, p.reply.At, p.floors)
			c.near.Read(p.sweep, key, p.reply.Seen)
		}
	}
}

// dispatch hands claimed jobs to their queues' workers.
func (c *claimer) dispatch(ctx context.Context, p *plan, now time.Time) {
	if len(p.reply.Jobs) > 0 {
		failpoint("claimed")
	}
	runs := map[*queueState][]*Run{}
	for i, g := range p.groups {
		if i == 0 || g.queue != p.groups[i-1].queue {
			runs[g.queue] = nil
		}
	}
	byName := map[string]*queueState{}
	for q := range runs {
		byName[q.Name] = q
	}
	for i := range p.reply.Jobs {
		j := &p.reply.Jobs[i]
		q := byName[j.Queue]
		r := c.newRun(j, q, p, now)
		if j.Left {
			c.book.add(r)
			q.enter([]*Run{r})
			c.runner.giveBack(r)
			continue
		}
		runs[q] = append(runs[q], r)
	}
	for q, runs := range runs {
		if len(runs) == 0 {
			continue
		}
		c.book.add(runs...)
		q.enter(runs)
		if !q.buffer.put(runs) { // the queue was removed meanwhile
			for _, r := range runs {
				c.runner.giveBack(r)
			}
		}
		if c.handler.Hears(ctx, EventClaimed) {
			c.reporter.tell(EngineEvent{Kind: EventClaimed, Queue: q.Name, Supervisor: p.lease.id, Count: len(runs)})
		}
	}
}

// newRun makes the run of a job that the claim p has taken.
func (c *claimer) newRun(j *store.Job, q *queueState, p *plan, now time.Time) *Run {
	r := c.handler.NewRun(j, q.Policy)
	r.Fence = store.Fence{ID: j.ID, Owner: p.lease.id, Seq: j.ClaimSeq, ClaimedAt: p.reply.At}
	r.Late, r.DeleteCompleted = p.reply.At.Sub(j.ScheduledAt), q.DeleteCompleted
	r.runner, r.from, r.lease, r.tier, r.received = c.runner, q, p.lease, j.Lane/10*10, now
	return r
}
