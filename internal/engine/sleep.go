package engine

import (
	"context"
	"hash/fnv"
	"slices"
	"strconv"
	"time"

	"github.com/drover-queue/drover/internal/floors"
	"github.com/drover-queue/drover/internal/store"
)

// A claimer is awake or asleep. While awake, it looks for jobs every few milliseconds. One awake claimer with room is
// the lookout of a queue. While a queue has a lookout, enqueues send no notification. A claimer that is asleep looks
// when a notification names its supervisor, when a job is known to be due, and once in each poll interval:
// docs/adr/0051-few-are-woken.md.

// sleep decides when to look for jobs. It only computes: it reads no clock and sends nothing. The claimer's goroutine
// owns it.
type sleep struct {
	Next    time.Time     // the next look, unless a job is known to be due earlier
	Step    time.Duration // how long the last pause between two looks was
	IdleAt  time.Time     // since when looks find no job; zero while there is work
	Asleep  bool
	hearing floors.Missed
	trickle trickle
}

// pace has the intervals of a claimer's looks.
type pace struct {
	Poll, Rest time.Duration
	deaf       bool // notifications are disabled: the claimer never sleeps, and its pause doubles up to Poll, or to Rest after RestAfter without a job
}

// look is what a claim has found out, for the decision when to look again.
type look struct {
	found  int
	filled bool // the claim used all the room of some queue, so more jobs may be due
	once   bool // the claim came between two polls, because a notification or a free slot asked for it
	posted bool // the claimer is the lookout of a queue
	seen   floors.Seen
}

// setNext decides when to look again. While looks of an awake claimer find jobs, it looks again immediately. Once a
// look finds nothing, a lookout looks after 1, 2, 4, 8, 8, … ms, until it falls asleep. From then on the pause doubles
// up to the poll interval, so a pause is hardly longer than the time since a look last found a job. An awake claimer
// that is not the lookout falls asleep at the first look that finds nothing, and looks again after a poll interval.
//
// A sleeper that finds as many jobs as it has room for, or more than a trickle, looks again immediately. If a poll
// finds only a few jobs, the sleeper halves its pause. Perhaps it only took a job before a notified supervisor did.
// Then the next looks find nothing, and the pause doubles again. But if nobody is notified of these jobs, the sleeper
// halves its pause again and again, until the pause is as short as the time between two of these jobs. A look that
// something asked for does not change the time of the next poll.
func (s *sleep) setNext(l look, p pace, now time.Time) {
	if l.found > 0 {
		s.trickle.add(l.found, now)
		s.IdleAt = time.Time{}
		s.Asleep = s.Asleep && !s.trickle.over()
		switch {
		case l.filled || !s.Asleep:
			s.Next, s.Step = now, 0
		case !l.once:
			s.Step /= 2
			s.Next = now.Add(s.Step)
		}
		return
	}
	if s.IdleAt.IsZero() {
		s.IdleAt = now
	}
	if !p.deaf && !s.Asleep && !l.posted {
		s.Asleep, s.Step = true, p.Poll
		s.Next = now.Add(p.Poll)
		return
	}
	if l.once && s.Asleep {
		return
	}
	longest := p.Poll
	switch {
	case !s.Asleep && !p.deaf:
		longest = min(longest, AwakePoll)
	case now.Sub(s.IdleAt) >= RestAfter:
		longest = p.Rest
	}
	if s.Asleep {
		longest = s.hearing.Step(l.seen, now, AwakePoll, longest)
	}
	s.Step = max(firstPoll, min(2*s.Step, longest))
	s.Next = now.Add(s.Step)
}

// When a notification reports to a sleeper that another supervisor had no room, the sleeper looks again after
// missedPoll. By then each transaction that left its job to that supervisor, and so notified no other, has got its
// transaction id. So the look shows whether such a transaction is still open.
const missedPoll = 200 * time.Millisecond

// listenAgain makes a sleeper look soon. The sleeper goes on looking often as long as a transaction is open that may
// have notified no supervisor of its job.
func (s *sleep) listenAgain(now time.Time) {
	s.hearing.Asleep(now)
	if at := now.Add(missedPoll); s.Asleep && at.Before(s.Next) {
		s.Next, s.Step = at, missedPoll/2
	}
}

// tired reports whether looks have found no job for SleepAfter, so that the claimer falls asleep.
func (s *sleep) tired(now time.Time) bool {
	return !s.IdleAt.IsZero() && now.Sub(s.IdleAt) >= SleepAfter
}

// trickle bounds how many jobs a sleeper may find in a second (rate), and how many together (burst). If it finds more,
// it wakes up, because each enqueue sends a notification while the queue has no lookout. The keeper bounds the
// notifications for other supervisors in the same way (oncall.go).
type trickle struct {
	rate, burst float64
	left        float64
	at          time.Time
}

func (t *trickle) add(n int, now time.Time) {
	t.left = max(-1, min(t.burst, t.left+t.rate*now.Sub(t.at).Seconds())-float64(n))
	t.at = now
}

func (t *trickle) over() bool { return t.left < 0 }

// lookout decides in which queues the claimer is the lookout. For each of these queues, the claimer's connection holds
// an advisory lock. Like the type sleep, this type only computes.
type lookout struct {
	posts   map[string]int64 // for each queue in which the claimer is the lookout, the key of its lock
	unknown bool             // the connection may hold locks that posts does not have
	conn    store.Session
	fullAt  map[string]time.Time // for queues in posts: since when the queue has no room; no entry: it has room
	tryAt   time.Time            // no attempt to become a lookout before this time
}

// tryEvery is the pause between two attempts to become a lookout, or to go on call: each attempt costs a statement.
const tryEvery = 100 * time.Millisecond

// change decides in which queues the claimer is the lookout from this claim on, and returns the locks to take and the
// locks to release; nil: no change. An awake claimer tries to be the lookout of each queue with room. It remains the
// lookout of a full queue for as long as the function patience allows. An enqueue that saw a lookout has notified no
// supervisor. So when the claimer stops being the lookout, the claim in the same round trip finds the jobs of all such
// enqueues that have committed.
func (o *lookout) change(awake bool, req *store.ClaimRequest, patience func(queue string) time.Duration, crews map[string]store.Crew, now time.Time) *store.Lookout {
	note := &store.Lookout{LeaveAll: o.unknown}
	stay := map[string]bool{}
	for i, queue := range req.Queues {
		crew, known := crews[queue]
		key, posted := o.posts[queue]
		switch {
		case !awake || !known || posted && key != crew.Lookout:
		case req.Rooms[i] == 0:
			stay[queue] = posted && !o.noteFull(queue, now, patience(queue))
		default:
			delete(o.fullAt, queue)
			stay[queue] = posted
			if !posted && !now.Before(o.tryAt) {
				note.Take = append(note.Take, crew.Lookout)
			}
		}
	}
	for queue, key := range o.posts {
		if !stay[queue] {
			note.Leave = append(note.Leave, key)
		}
	}
	if len(note.Take)+len(note.Leave) == 0 && !note.LeaveAll {
		return nil
	}
	return note
}

// noteChange records the result of a change, and returns the queues in which the claimer is no longer the lookout.
func (o *lookout) noteChange(note *store.Lookout, crews map[string]store.Crew, now time.Time) (left []string) {
	o.unknown = false
	for queue, key := range o.posts {
		if note.LeaveAll || slices.Contains(note.Leave, key) {
			delete(o.posts, queue)
			delete(o.fullAt, queue)
			left = append(left, queue)
		}
	}
	for queue, crew := range crews {
		if slices.Contains(note.Took, crew.Lookout) {
			o.posts[queue] = crew.Lookout
		}
	}
	if len(note.Took) < len(note.Take) {
		o.tryAt = now.Add(tryEvery)
	}
	return slices.DeleteFunc(left, func(queue string) bool { _, again := o.posts[queue]; return again })
}

// noteFull records that a queue has no room, and reports whether it has had no room for as long as the parameter
// patience.
func (o *lookout) noteFull(queue string, now time.Time, patience time.Duration) bool {
	if o.fullAt[queue].IsZero() {
		o.fullAt[queue] = now
	}
	return now.Sub(o.fullAt[queue]) >= patience
}

// patience returns how long a full queue may take to get room again, before other supervisors are notified of its jobs:
// callPatience if runs are shorter than that, otherwise 0.
func (c *claimer) patience(queue string) time.Duration {
	for _, q := range c.QueueStates() {
		if q.Name == queue && q.typical < callPatience {
			return callPatience
		}
	}
	return 0
}

// fallAsleep puts a tired claimer to sleep, and returns the change of the queues in which it is the lookout; nil: no
// change.
func (c *claimer) fallAsleep(claim *Plan, now time.Time) *store.Lookout {
	if c.Cfg.DisableNotify {
		return nil
	}
	c.Asleep = c.Asleep || c.tired(now)
	return c.out.change(!c.Asleep && claim.order == nil, claim.Req, c.patience, *c.crews.Load(), now)
}

// noteChange records the result of a change. An enqueue that still saw us as the lookout has notified no other
// supervisor. So if we stop being the lookout of a queue while we are awake, because the queue has no room or because
// claims fail, we open a call (calls.go), which the keeper hands on to other supervisors.
func (c *claimer) noteChange(note *store.Lookout, err error, now time.Time) {
	switch {
	case note == nil:
		return
	case err != nil:
		c.out.unknown = true
		return
	}
	left := c.out.noteChange(note, *c.crews.Load(), now)
	if len(left) > 0 {
		c.hearing.Asleep(now)
	}
	if !c.Asleep {
		for _, queue := range left {
			c.calls.add(queue, 0, now)
		}
	}
}

// useConn records which connection the next statement uses. A new connection holds no locks, so we are no longer the
// lookout of any queue, and hand on a call for each of these queues.
func (c *claimer) useConn(conn store.Session) {
	if c.out.conn != conn {
		for queue := range c.out.posts {
			c.calls.add(queue, 0, c.Now())
		}
		c.out = lookout{posts: map[string]int64{}, fullAt: map[string]time.Time{}, conn: conn}
	}
}

// LeavePosts stops being the lookout of all queues. It takes a round trip of its own, because no claim is made: there
// is no room, claims fail, or the supervisor stops.
func (c *claimer) LeavePosts(base context.Context) {
	ctx, cancel := c.tripContext(base)
	defer cancel()
	conn, err := c.Link.Get(ctx)
	now := c.Now()
	if err == nil {
		c.useConn(conn)
		note := &store.Lookout{LeaveAll: true}
		err = conn.Lookout(ctx, note)
		c.noteChange(note, err, now)
	}
	if err != nil { // if the round trip succeeds, Trouble is not over: only a claim that succeeds ends Trouble
		c.Trouble.Failed(base, c.Shared, "leaving the lookout", err)
	}
}

// Overstays reports whether the claimer must stop being a lookout, because it cannot look for jobs. Either no queue has
// room, or a strong suspect is to run alone, for as long as the method patience allows; or the last claim failed.
func (c *claimer) Overstays(now time.Time) bool {
	if c.out.unknown {
		return true
	}
	if len(c.out.posts) == 0 || c.fullAt.IsZero() {
		return false
	}
	patience := time.Duration(0)
	for queue := range c.out.posts {
		patience = max(patience, c.patience(queue))
	}
	return now.Sub(c.fullAt) >= patience
}

// rest returns for how long the claimer has nothing to do.
func (c *claimer) rest(now time.Time) time.Duration {
	rest := time.Hour
	if c.Lease.Load().Ended.Load() {
		return RetryPause // the claimer waits until the keeper has a lease again
	}
	switch {
	case !c.wantsRoom:
		rest = c.LookAt().Sub(now)
	case len(c.out.posts) > 0:
		rest = callPatience - now.Sub(c.fullAt)
	}
	switch order, due := c.Solo.Load(), c.NextDue(); {
	case order != nil:
		rest = min(rest, order.rest(now))
	case c.wantsRoom && !due.IsZero():
		rest = min(rest, due.Sub(now)) // at that time the claimer hands the due job on
	}
	for _, q := range c.QueueStates() {
		if q.Buffer.Len() > 0 {
			rest = min(rest, BufferPatience/4)
		}
	}
	if at := c.Refused.readAt; !at.IsZero() {
		rest = min(rest, at.Sub(now))
	}
	rest = min(rest, c.Audit.Rest(now))
	return max(rest, 0)
}

// LookAt returns when to look for jobs next: at the next poll, or earlier if a job is known to be due.
func (c *claimer) LookAt() time.Time {
	at := c.Next
	if due := c.NextDue(); !due.IsZero() && due.Before(at) {
		at = due
	}
	return at
}

// setPace decides after a claim when to look again.
func (c *claimer) setPace(p *Plan, now time.Time) {
	l := look{found: len(p.Reply.Jobs), once: p.once, posted: len(c.out.posts) > 0, seen: p.Reply.Seen}
	for _, g := range p.groups {
		l.filled = l.filled || g.queue.Full
	}
	defer func() { c.asleep.Store(c.Asleep) }()
	c.setNext(l, pace{Poll: c.Cfg.PollInterval, Rest: c.Cfg.RestInterval, deaf: c.Cfg.DisableNotify}, now)
	if p.Reply.NextDue == 0 {
		return
	}
	due := now.Add(p.Reply.NextDue)
	if p.atDue(now) && l.found == 0 && p.Reply.NextDue < minDueGap {
		due = now.Add(minDueGap)
	}
	switch {
	case c.isOwn(due):
		c.NoteOwn(due)
	case !c.Asleep || c.looksAt(due) || l.found > 0 && p.byClock(now):
		c.NoteDue(due)
	}
}

// samePair is how long the same two supervisors look for jobs when they become due (looksAt). It is longer than the
// default poll interval, so each of the two usually learns the next due time from a poll of its own.
const samePair = 10 * time.Second

// looksAt reports whether this supervisor looks for jobs at a due time that all supervisors have read. Only two of them
// look at each of these times. Hashes of the ids and of the period (samePair) in which the due time lies decide which
// two, so all supervisors come to the same result.
func (c *claimer) looksAt(due time.Time) bool {
	period := strconv.FormatInt(due.UnixNano()/int64(samePair), 10)
	hash := func(id string) uint64 {
		h := fnv.New64a()
		_, _ = h.Write([]byte(period + id))
		return h.Sum64()
	}
	own, before := hash(c.Lease.Load().ID), 0
	for _, id := range *c.sharers.Load() {
		if hash(id) < own {
			before++
		}
	}
	return before < 2
}

// answer records which calls (calls.go) the claim has answered, and which calls must be handed on.
func (c *claimer) answer(p *Plan, now time.Time) {
	if p.order != nil || c.Cfg.DisableNotify {
		return
	}
	for i, g := range p.groups {
		if i > 0 && g.queue == p.groups[i-1].queue {
			continue
		}
		q := g.queue
		room := p.Req.Rooms[p.Req.GroupQueue[i]-1] > 0
		if room && !q.Full {
			c.calls.answered(q.Name, p.asked[q.Name])
			continue
		}
		c.calls.noteFull(q.Name, p.asleep && (room || p.atDue(now)), now, now.Add(c.patience(q.Name)))
	}
}
