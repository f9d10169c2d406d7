package drover

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	maxClaim    = 2000             // jobs in one claim
	maxComplete = 2000             // completed runs in one round trip
	maxSettle   = 500              // other outcomes in one round trip: theirs carry JSON
	tripTimeout = 15 * time.Second // of one round trip: half a default lease

	sleepAfter    = 250 * time.Millisecond // without a job, before sleepers is written
	firstPoll     = time.Millisecond       // doubled up to the poll interval
	minDueGap     = 20 * time.Millisecond  // between looks for due jobs that turn out to be other processes'
	lockedPause   = 100 * time.Millisecond // before a row that someone holds is tried again
	retryPause    = 50 * time.Millisecond  // after a failed round trip, doubled
	maxRetryPause = 5 * time.Second
)

// engine settles and claims, both in one round trip of one connection. Outcomes gather while a round trip is under
// way: none waits when idle, and batches grow under load.
type engine struct {
	sup       *Supervisor
	floors    *floors
	signal    chan struct{} // something to do
	lostLease chan struct{} // tells control that a claim was refused

	mu       sync.Mutex
	outcomes []*outcome
	poked    bool          // claim now, whatever the poll timer says
	idle     chan struct{} // closed once all is drained and settled

	// The rest is the engine goroutine's own.
	link     link
	owned    map[string]*run // claimed and not yet settled, by job id
	locked   []*outcome      // their rows were held by someone
	lockedAt time.Time       // when to try them again
	unknown  bool            // a claim's outcome is unknown: find out before the next
	failures int             // round trips in a row
	pauseTo  time.Time       // no round trip before
	pace     pace
	stopping bool
}

// pace decides when to look for jobs.
type pace struct {
	next   time.Time     // look not before
	step   time.Duration // the last wait
	idleAt time.Time     // since when nothing was found; zero while there is work
	due    time.Time     // when the next job is known to be due; zero: none known
	asleep bool          // sleepers says so
}

func newEngine(s *Supervisor) *engine {
	return &engine{
		sup: s, floors: newFloors(), signal: make(chan struct{}, 1), lostLease: make(chan struct{}, 1),
		idle: make(chan struct{}), owned: map[string]*run{}, link: link{store: s.client.store},
	}
}

// settle hands over how a run ended. It does not block.
func (e *engine) settle(o *outcome) {
	e.mu.Lock()
	e.outcomes = append(e.outcomes, o)
	e.mu.Unlock()
	e.poke()
}

// wake makes the engine look for jobs at once.
func (e *engine) wake() {
	e.mu.Lock()
	e.poked = true
	e.mu.Unlock()
	e.poke()
}

func (e *engine) poke() {
	select {
	case e.signal <- struct{}{}:
	default:
	}
}

func (e *engine) drained() <-chan struct{} { return e.idle }

// run works until claiming has ended and everything claimed is settled.
func (e *engine) run(claiming context.Context) {
	defer e.link.close()
	defer close(e.idle)
	base := context.WithoutCancel(claiming)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if claiming.Err() != nil && !e.stopping {
			e.stop()
		}
		now := e.sup.now()
		e.handBackStale(now)
		out, poked := e.take(now)
		claim := e.request(now, poked)
		switch {
		case now.Before(e.pauseTo):
			e.putBack(out)
			e.await(claiming, timer, e.pauseTo.Sub(now))
		case len(out) > 0 || claim != nil || e.unknown && !e.stopping:
			e.trip(base, out, claim)
		case e.stopping && len(e.owned) == 0 && len(e.locked) == 0:
			return
		default:
			e.await(claiming, timer, e.rest(now))
		}
	}
}

// stop closes the buffers: what has not started goes back, workers end once their job has.
func (e *engine) stop() {
	e.stopping = true
	for _, q := range e.sup.queueStates() {
		for _, r := range q.buffer.close() {
			e.settle(r.handedBack())
		}
	}
}

// handBackStale gives up what a slow job keeps from starting: another process may have a free slot.
func (e *engine) handBackStale(now time.Time) {
	for _, q := range e.sup.queueStates() {
		for _, r := range q.buffer.drain(now.Add(-bufferPatience)) {
			e.settle(r.handedBack())
		}
	}
}

// take returns outcomes for one round trip.
func (e *engine) take(now time.Time) (out []*outcome, poked bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	poked, e.poked = e.poked, false
	if len(e.locked) > 0 && !now.Before(e.lockedAt) {
		e.outcomes = append(e.outcomes, e.locked...)
		e.locked = nil
	}
	complete, other := 0, 0
	for i, o := range e.outcomes {
		if o.completes() {
			complete++
		} else {
			other++
		}
		if complete == maxComplete || other == maxSettle {
			out, e.outcomes = e.outcomes[:i+1:i+1], e.outcomes[i+1:]
			return out, poked
		}
	}
	out, e.outcomes = e.outcomes, nil
	return out, poked
}

func (e *engine) putBack(out []*outcome) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.outcomes = append(out, e.outcomes...)
}

// rest is how long there is nothing to do.
func (e *engine) rest(now time.Time) time.Duration {
	rest := time.Hour
	if !e.stopping && e.hasRoom() {
		rest = e.lookAt().Sub(now)
	}
	if len(e.locked) > 0 {
		rest = min(rest, e.lockedAt.Sub(now))
	}
	for _, q := range e.sup.queueStates() {
		if q.buffer.len() > 0 {
			rest = min(rest, bufferPatience/4)
		}
	}
	return max(rest, 0)
}

func (e *engine) await(claiming context.Context, timer *time.Timer, rest time.Duration) {
	timer.Reset(rest)
	var stop <-chan struct{}
	if !e.stopping {
		stop = claiming.Done()
	}
	select {
	case <-timer.C:
	case <-e.signal:
	case <-stop:
	}
}

func (e *engine) hasRoom() bool {
	for _, q := range e.sup.queueStates() {
		if int(q.pending.Load()) < q.Concurrency {
			return true
		}
	}
	return false
}

// lookAt is when to look for jobs next: by the polls, or earlier for a job known to be due.
func (e *engine) lookAt() time.Time {
	if !e.pace.due.IsZero() && e.pace.due.Before(e.pace.next) {
		return e.pace.due
	}
	return e.pace.next
}

// The classes of lanes, as in the column lane: each has its own limit, in this order, and shares the queue's.
const (
	tierFresh   int16 = 0
	tierRetry   int16 = 10
	tierSuspect int16 = 20
	tierStrong  int16 = 30
)

// claimGroup is one tier of one queue in a claim.
type claimGroup struct {
	queue *queueState
	tier  int16
	room  int
}

// groups divides what a queue has room for. While fresh jobs wait, retries get a fifth; suspects come a few at a
// time always, for they may take the process with them.
func (q *queueState) groups(room int) []claimGroup {
	retries := room
	if q.full {
		q.retries = min(q.retries+float64(room)/5, float64(room))
		retries = int(q.retries)
	}
	return []claimGroup{
		{q, tierRetry, retries},
		{q, tierSuspect, int(math.Ceil(math.Sqrt(float64(room))))},
		{q, tierStrong, min(room, 1)},
		{q, tierFresh, room},
	}
}

// lanes lists the lanes of the groups with their floors, lowered by a near sweep's width.
func (e *engine) lanes(groups []claimGroup, lowered time.Duration) *claimRequest {
	l := e.sup.lease.Load()
	req := &claimRequest{supervisor: l.id, epoch: int(l.epoch.Load()), kinds: e.sup.kinds}
	for i, g := range groups {
		if n := len(req.queues); n == 0 || req.queues[n-1] != g.queue.Name {
			req.queues = append(req.queues, g.queue.Name)
		}
		req.groupQueue = append(req.groupQueue, int32(len(req.queues))) //nolint:gosec // few
		req.groupRoom = append(req.groupRoom, int32(g.room))            //nolint:gosec // at most maxClaim
		for priority := int16(1); priority <= 9; priority++ {
			f := e.floors.get(laneKey{g.queue.Name, g.tier + priority})
			if lowered > 0 && !f.at.IsZero() {
				f = floor{at: f.at.Add(-lowered)}
			}
			req.laneGroup = append(req.laneGroup, int32(i+1)) //nolint:gosec // few
			req.lanes = append(req.lanes, g.tier+priority)
			req.floorAt = append(req.floorAt, f.at)
			req.floorID = append(req.floorID, f.id)
		}
	}
	return req
}

// allLanes is what a full sweep looks through.
func (e *engine) allLanes() *claimRequest {
	var groups []claimGroup
	for _, q := range e.sup.queueStates() {
		for _, tier := range []int16{tierFresh, tierRetry, tierSuspect, tierStrong} {
			groups = append(groups, claimGroup{queue: q, tier: tier})
		}
	}
	return e.lanes(groups, 0)
}

// plan is a claim about to be made.
type plan struct {
	req     *claimRequest
	groups  []claimGroup
	lowered time.Duration
	reply   claimReply
}

// request asks for jobs if it is time and there is room.
func (e *engine) request(now time.Time, poked bool) *plan {
	if e.stopping || e.unknown || e.sup.lease.Load().ended.Load() {
		return nil
	}
	if poked {
		e.pace.next, e.pace.step = now, 0
	}
	if now.Before(e.lookAt()) || !e.hasRoom() {
		return nil
	}
	p := &plan{lowered: e.floors.due(now)}
	var rooms []int32
	left := maxClaim
	for _, q := range e.sup.queueStates() {
		room := min(q.room(), left)
		left -= room
		rooms = append(rooms, int32(room)) //nolint:gosec // at most maxClaim
		p.groups = append(p.groups, q.groups(room)...)
	}
	p.req = e.lanes(p.groups, p.lowered)
	p.req.rooms = rooms
	return p
}

// trip is one round trip: settle what has ended, claim what there is room for. Each in a transaction of its own.
func (e *engine) trip(base context.Context, out []*outcome, claim *plan) {
	ctx, cancel := context.WithTimeout(base, min(tripTimeout, e.sup.cfg.Lease/2))
	defer cancel()
	conn, err := e.link.get(ctx)
	if err == nil && e.unknown {
		err = e.findOut(ctx, conn)
	}
	if err != nil {
		e.putBack(out)
		e.failed(base, err)
		return
	}
	var p pipeline
	settled, err := e.settleAll(&p, out)
	if err == nil && claim != nil {
		e.fallAsleep(&p)
		p.claim(claim.req, &claim.reply)
	}
	started := e.sup.now()
	if err == nil {
		err = p.send(ctx, conn)
	}
	e.afterSettle(ctx, conn, out, settled, err)
	if claim != nil {
		e.afterClaim(base, claim, err, e.sup.now().Sub(started))
	}
	if err != nil && (settled.committed || !badData(err)) {
		e.failed(base, err)
		return
	}
	e.failures = 0
}

// failed waits before the next round trip, longer each time.
func (e *engine) failed(ctx context.Context, err error) {
	pause := min(retryPause<<min(e.failures, 10), maxRetryPause)
	e.failures++
	e.pauseTo = e.sup.now().Add(pause)
	e.sup.log.WarnContext(ctx, "round trip failed, will be tried again", slog.String("error", err.Error()), slog.Duration("in", pause))
}

// settling is what came of a round trip's settles.
type settling struct {
	committed bool
	counts    []completion
	others    map[string]bool // ids that sqlSettle ended
}

// completion is one complete statement: all runs of one owner and fence.
type completion struct {
	outcomes []*outcome
	n        int64
}

type fenceGroup struct {
	owner string
	seq   int
	del   bool
}

// settleAll queues the settles in one transaction: a statement for each fence among the completed runs (nearly
// always one), and one for each owner among the others.
func (e *engine) settleAll(p *pipeline, out []*outcome) (*settling, error) {
	s := &settling{others: map[string]bool{}}
	complete := map[fenceGroup][]*outcome{}
	others := map[string][]*outcome{}
	for _, o := range out {
		o.run.tries++
		switch r := o.run; {
		case r.txOutcome.Load() != nil:
			// The handler's transaction settled it, or did not: afterSettle looks.
		case o.completes():
			key := fenceGroup{r.owner, r.claimSeq, r.deleteCompleted}
			complete[key] = append(complete[key], o)
		default:
			others[r.owner] = append(others[r.owner], o)
		}
	}
	if len(complete)+len(others) == 0 {
		s.committed = true
		return s, nil
	}
	p.begin()
	p.exec(nil, sqlOnePlan)
	s.counts = make([]completion, 0, len(complete))
	for key, group := range complete {
		ids := make([]string, len(group))
		for i, o := range group {
			ids[i] = o.run.job.ID
		}
		slices.Sort(ids)
		s.counts = append(s.counts, completion{outcomes: group})
		p.complete(&s.counts[len(s.counts)-1].n, ids, key.seq, key.owner, key.del)
	}
	for owner, group := range others {
		if err := p.settle(s.others, owner, group); err != nil {
			return s, err
		}
	}
	p.commit()
	p.call(func() { s.committed = true })
	return s, nil
}

// afterSettle tells of what was settled, looks after what was not, and keeps the rest for the next round trip.
func (e *engine) afterSettle(ctx context.Context, conn *pgx.Conn, out []*outcome, s *settling, err error) {
	switch {
	case len(out) == 0:
		return
	case !s.committed && badData(err):
		e.bisect(ctx, conn, out)
		return
	case !s.committed:
		e.putBack(out)
		return
	}
	var unsure []*outcome
	for _, c := range s.counts {
		if int(c.n) == len(c.outcomes) {
			e.done(c.outcomes...)
		} else {
			unsure = append(unsure, c.outcomes...)
		}
	}
	for _, o := range out {
		switch {
		case o.run.txOutcome.Load() != nil:
			unsure = append(unsure, o)
		case o.completes():
		case s.others[o.run.job.ID]:
			e.done(o)
		default:
			unsure = append(unsure, o)
		}
	}
	if len(unsure) > 0 {
		e.look(ctx, conn, unsure)
	}
}

// bisect settles the halves of a batch that the database refused for its data, down to the one that is to blame;
// that one is settled with a stub in the place of its error entry.
func (e *engine) bisect(ctx context.Context, conn *pgx.Conn, out []*outcome) {
	parts := [][]*outcome{out[:len(out)/2], out[len(out)/2:]}
	if len(out) == 1 {
		if out[0].stub {
			e.sup.log.ErrorContext(ctx, "outcome refused by the database", slog.Any("job", out[0].run.job))
			e.forget(out[0])
			return
		}
		out[0].stubEntry()
		parts = [][]*outcome{out}
	}
	for _, part := range parts {
		if len(part) == 0 {
			continue
		}
		var p pipeline
		s, err := e.settleAll(&p, part)
		if err == nil {
			err = p.send(ctx, conn)
		}
		e.afterSettle(ctx, conn, part, s, err)
	}
}

// look finds out about runs whose settle matched no row: settled before (a reply was lost), in the handler's own
// transaction, cancelled, held by someone, or not ours any more.
func (e *engine) look(ctx context.Context, conn *pgx.Conn, unsure []*outcome) {
	ids := make([]string, len(unsure))
	for i, o := range unsure {
		ids[i] = o.run.job.ID
	}
	var p pipeline
	seen := map[string]seenJob{}
	p.begin()
	p.exec(nil, sqlOnePlan)
	p.look(ids, seen)
	p.commit()
	if err := p.send(ctx, conn); err != nil {
		e.putBack(unsure)
		return
	}
	for _, o := range unsure {
		row, exists := seen[o.run.job.ID]
		switch o.found(row, exists) {
		case foundSettled:
			e.done(o)
		case foundInTx:
			e.done(o.inTx())
		case foundNotCommitted:
			e.putBack([]*outcome{o.notCommitted()})
		case foundHeld:
			e.locked = append(e.locked, o)
			e.lockedAt = e.sup.now().Add(lockedPause)
		case foundCancelled:
			e.done(o.cancelled())
		case foundStale:
			e.forget(o)
			e.sup.reporter.tell(o.tell(eventStaleSettle))
		}
	}
}

// done tells of settled runs.
func (e *engine) done(outcomes ...*outcome) {
	for _, o := range outcomes {
		e.forget(o)
		if o.state == Retryable || o.state == Scheduled {
			e.noteDue(e.sup.now().Add(o.delay))
		}
		if e.sup.client.listens(o.run.lease.ctx, o.event) {
			e.sup.reporter.tell(o.tell(o.event))
		}
	}
}

func (e *engine) forget(o *outcome) {
	if e.owned[o.run.job.ID] == o.run {
		delete(e.owned, o.run.job.ID)
	}
}

// afterClaim starts what was claimed, moves the floors and sets the pace. No job starts before its claim has
// committed: its settle could overtake the claim and match nothing.
func (e *engine) afterClaim(ctx context.Context, p *plan, err error, took time.Duration) {
	now := e.sup.now()
	reply := &p.reply
	switch {
	case !reply.committed:
		e.unknown = err != nil && !notApplied(err)
		return
	case reply.fenced:
		e.sup.lease.Load().lose()
		select {
		case e.lostLease <- struct{}{}:
		default:
		}
		return
	}
	if p.lowered > 0 {
		e.floors.swept(p.lowered, took, now)
	}
	e.dispatch(ctx, p, now)
	e.setPace(len(reply.jobs), reply.nextDue, now)
}

// dispatch hands claimed jobs to their queues' workers, in the order they were due.
func (e *engine) dispatch(ctx context.Context, p *plan, now time.Time) {
	jobs := p.reply.jobs
	slices.SortFunc(jobs, func(a, b claimedJob) int {
		if c := cmp.Compare(a.lane, b.lane); c != 0 {
			return c
		}
		if c := a.scheduledAt.Compare(b.scheduledAt); c != 0 {
			return c
		}
		return cmp.Compare(a.id, b.id)
	})
	lease := e.sup.lease.Load()
	byQueue := map[string][]*run{}
	last := map[laneKey]floor{}
	counts := map[laneKey]int{}
	for i := range jobs {
		j := &jobs[i]
		key := laneKey{j.queue, j.lane}
		last[key] = floor{j.scheduledAt, j.id}
		counts[key]++
	}
	e.advance(p, last, counts)
	for _, g := range p.groups {
		q := g.queue
		if g.tier != tierRetry { // once a queue
			continue
		}
		for i := range jobs {
			if jobs[i].queue == q.Name {
				r := e.sup.newRun(&jobs[i], q, lease, p.reply.at, now)
				e.owned[r.job.ID] = r
				byQueue[q.Name] = append(byQueue[q.Name], r)
			}
		}
		runs := byQueue[q.Name]
		if len(runs) == 0 {
			continue
		}
		q.pending.Add(int64(len(runs)))
		if !q.buffer.put(runs) { // the queue was removed meanwhile
			for _, r := range runs {
				r.finish()
				e.settle(r.handedBack())
			}
		}
		if e.sup.client.listens(ctx, eventClaimed) {
			e.sup.reporter.tell(told{eventClaimed, Event{Queue: q.Name, Supervisor: lease.id, Count: len(runs)}})
		}
	}
}

// advance moves the floors of the lanes that the claim read: those of a group that was not filled to their end.
func (e *engine) advance(p *plan, last map[laneKey]floor, counts map[laneKey]int) {
	var left int
	for i, g := range p.groups {
		if g.tier == tierRetry {
			left = int(p.req.rooms[p.req.groupQueue[i]-1])
			g.queue.full = false
		}
		limit, n, final := min(g.room, left), 0, int16(0)
		for priority := int16(1); priority <= 9; priority++ {
			if c := counts[laneKey{g.queue.Name, g.tier + priority}]; c > 0 {
				n, final = n+c, priority
			}
		}
		left -= n
		if limit == 0 {
			continue // not looked at
		}
		if n < limit {
			final = 10
		}
		for priority := int16(1); priority <= min(final, 9); priority++ {
			key := laneKey{g.queue.Name, g.tier + priority}
			e.floors.advance(key, last[key], priority < final, p.reply.at)
		}
		if g.tier == tierRetry {
			g.queue.retries = max(0, g.queue.retries-float64(n))
		}
		if left == 0 {
			g.queue.full = true
		}
	}
}

// setPace decides when to look again: at once while there is more, then after 1, 2, 4, … ms up to the poll
// interval, so that a job whose transaction was silent for d is found at most d after its commit.
func (e *engine) setPace(found int, nextDue time.Duration, now time.Time) {
	p := &e.pace
	if found > 0 {
		if p.asleep {
			p.step = 0 // the next trip says that it is awake
		}
		p.next, p.step, p.idleAt, p.due = now, 0, time.Time{}, time.Time{}
		return
	}
	if p.idleAt.IsZero() {
		p.idleAt = now
	}
	missed := !p.due.IsZero() && !now.Before(p.due)
	p.due = time.Time{}
	if nextDue > 0 {
		p.due = now.Add(nextDue)
		if missed && nextDue < minDueGap {
			p.due = now.Add(minDueGap)
		}
	}
	p.step = max(firstPoll, min(2*p.step, e.sup.cfg.PollInterval))
	p.next = now.Add(p.step)
}

// noteDue remembers a job of ours that will be due before anything else known.
func (e *engine) noteDue(at time.Time) {
	if e.pace.due.IsZero() || at.Before(e.pace.due) {
		e.pace.due = at
	}
}

// fallAsleep says in sleepers that this supervisor does not look by itself any more, once it has found nothing for
// a while, and that it does again, once it has found something. The claim behind it in the same round trip is the
// look that closes the gap: whoever committed before it saw nobody asleep, and is found by it.
func (e *engine) fallAsleep(p *pipeline) {
	if e.sup.cfg.DisableNotify {
		return
	}
	now, id := e.sup.now(), e.sup.lease.Load().id
	idle := !e.pace.idleAt.IsZero() && now.Sub(e.pace.idleAt) >= sleepAfter
	if idle == e.pace.asleep {
		return
	}
	p.begin()
	if idle {
		var until *string
		if !e.pace.due.IsZero() {
			text := interval(max(e.pace.due.Sub(now), 0))
			until = &text
		}
		p.exec(nil, sqlFallAsleep, id, until)
	} else {
		p.exec(nil, sqlWakeUp, id)
	}
	p.commit()
	p.call(func() { e.pace.asleep = idle })
}

// findOut ends the doubt about a claim whose reply was lost. First the epoch is raised, until that is answered: then
// no such claim can commit any more, where a look alone could come before its commit. Only then a look at what is
// held in this supervisor's name and not known to it, to hand that back.
func (e *engine) findOut(ctx context.Context, conn *pgx.Conn) error {
	l := e.sup.lease.Load()
	if l.ended.Load() {
		e.unknown = false // all of it is for others to rescue
		return nil
	}
	store := e.sup.client.store
	epoch, err := store.raiseEpoch(ctx, conn, l.id, int(l.epoch.Load()))
	if errors.Is(err, ErrLeaseLost) {
		l.lose()
		e.unknown = false
		return nil
	}
	if err != nil {
		return err
	}
	l.epoch.Store(int64(epoch))
	e.floors.reset()
	var queues []string
	for _, q := range e.sup.queueStates() {
		queues = append(queues, q.Name)
	}
	held, err := store.heldBy(ctx, conn, l.id, queues, false)
	if err != nil {
		return err
	}
	for i := range held {
		if e.owned[held[i].id] == nil {
			r := e.sup.unstarted(&held[i], l)
			e.owned[r.job.ID] = r
			e.settle(r.handedBack())
		}
	}
	e.unknown = len(held) >= maxHeld // there may be more
	return nil
}
