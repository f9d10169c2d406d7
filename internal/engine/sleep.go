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

// A claimer is awake or asleep. Awake, it looks for jobs every few milliseconds. One awake claimer with room is the
// lookout of a queue; while there is one, enqueues send no notification. Asleep, a claimer looks when a
// notification names it, when a job is known to be due, and once in each poll interval:
// docs/adr/0051-few-are-woken.md.

// sleep decides when to look for jobs. It is pure; the claimer's goroutine owns it.
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
	deaf       bool // no notification comes, so the claimer never sleeps, and looks at each poll
}

// look has what a claim has seen.
type look struct {
	found  int
	filled bool // the claim used all the room of some queue, so more jobs may be due
	once   bool // the claim came between two polls, because a notification or a free slot asked for it
	posted bool // the claimer is the lookout of a queue
	seen   floors.Seen
}

// after decides when to look again: immediately while there are jobs, then after 1, 2, 4, 8, 8, … ms. Once asleep, the
// pause doubles up to the poll interval. So a pause is hardly longer than the time since a look last found a job. A
// look that was asked for does not change the next poll, unless it finds more than a trickle. A claimer that is awake
// and not the lookout falls asleep at the first look that finds nothing.
func (s *sleep) after(l look, p pace, now time.Time) {
	if l.found > 0 {
		s.trickle.add(l.found, now)
		s.IdleAt = time.Time{}
		s.Asleep = s.Asleep && !s.trickle.over()
		if !l.once || l.filled || !s.Asleep {
			s.Next, s.Step = now, 0
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

// When a sleeper hears that a lookout had no room, it looks again after missedPoll. By then each transaction that
// saw this lookout has got its transaction id. So the look shows whether such a transaction is still open.
const missedPoll = 200 * time.Millisecond

// listenAgain makes a sleeper look soon. While a transaction is open that may have notified no supervisor of its job,
// the sleeper then looks often.
func (s *sleep) listenAgain(now time.Time) {
	s.hearing.Asleep(now)
	if at := now.Add(missedPoll); s.Asleep && at.Before(s.Next) {
		s.Next, s.Step = at, missedPoll/2
	}
}

// tired reports whether the claimer has found no job for so long that it falls asleep.
func (s *sleep) tired(now time.Time) bool {
	return !s.IdleAt.IsZero() && now.Sub(s.IdleAt) >= SleepAfter
}

// trickle bounds how many jobs a sleeper may find in a second, and how many together. If it finds more, it should wake
// up, because each job costs a notification. The keeper bounds the notifications that are for others in the same way
// (oncall.go).
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

// lookout decides of which queues the claimer's connection is the lookout. Like the type sleep, it is pure.
type lookout struct {
	posts   map[string]int64 // for each queue of which it is the lookout, the key of the lock that the connection holds
	unknown bool             // the connection may hold locks that posts does not have
	conn    store.Session
	fullAt  map[string]time.Time // since when a queue of which it is the lookout has no room; no entry: it has room
	tryAt   time.Time            // another claimer is the lookout: no attempt to become it before this time
}

// tryEvery is how often an awake claimer tries to become the lookout: each try costs a statement.
const tryEvery = 100 * time.Millisecond

// change decides of which queues the claimer is the lookout from this claim on, and returns the locks to take and to
// leave; nil: no change. An awake claimer is the lookout of queues with room. It remains the lookout of a full queue
// for a while (the parameter patience). Enqueues that saw a lookout have notified no supervisor. If the claimer stops
// being the lookout, the claim in the same round trip finds the jobs of all such enqueues that have committed.
func (o *lookout) change(awake bool, req *store.ClaimRequest, patience func(queue string) time.Duration, crews map[string]store.Crew, now time.Time) *store.Lookout {
	note := &store.Lookout{LeaveAll: o.unknown}
	stay := map[string]bool{}
	for i, queue := range req.Queues {
		crew, known := crews[queue]
		key, posted := o.posts[queue]
		switch {
		case !awake || !known || posted && key != crew.Lookout:
		case req.Rooms[i] == 0:
			stay[queue] = posted && !o.full(queue, now, patience(queue))
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

// changed records the result of a change, and returns the queues of which the claimer is no longer the lookout.
func (o *lookout) changed(note *store.Lookout, crews map[string]store.Crew, now time.Time) (left []string) {
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

// full records that a queue has no room, and reports whether it has had no room for the given time.
func (o *lookout) full(queue string, now time.Time, patience time.Duration) bool {
	if o.fullAt[queue].IsZero() {
		o.fullAt[queue] = now
	}
	return now.Sub(o.fullAt[queue]) >= patience
}

// patience is how long a full queue may take to get room again before other supervisors are notified of its jobs.
func (c *claimer) patience(queue string) time.Duration {
	for _, q := range c.QueueStates() {
		if q.Name == queue && q.typical < callPatience {
			return callPatience
		}
	}
	return 0
}

// fallAsleep decides whether the claimer sleeps, and of which queues it is the lookout.
func (c *claimer) fallAsleep(claim *Plan, now time.Time) *store.Lookout {
	if c.Cfg.DisableNotify {
		return nil
	}
	c.Asleep = c.Asleep || c.tired(now)
	return c.out.change(!c.Asleep && claim.order == nil, claim.Req, c.patience, *c.crews.Load(), now)
}

// changed records the result of a change. If we are no longer the lookout of a queue because it has no room, or because
// claims fail, enqueues that still saw us have notified no other supervisor. So we open a call (calls.go), which the
// keeper hands on to other supervisors.
func (c *claimer) changed(note *store.Lookout, err error, now time.Time) {
	switch {
	case note == nil:
		return
	case err != nil:
		c.out.unknown = true
		return
	}
	left := c.out.changed(note, *c.crews.Load(), now)
	if len(left) > 0 {
		c.hearing.Asleep(now)
	}
	if !c.Asleep {
		for _, queue := range left {
			c.calls.add(queue, 0, now)
		}
	}
}

// on records which connection the next statement uses. A new connection holds no locks.
func (c *claimer) on(conn store.Session) {
	if c.out.conn != conn {
		for queue := range c.out.posts {
			c.calls.add(queue, 0, c.Now())
		}
		c.out = lookout{posts: map[string]int64{}, fullAt: map[string]time.Time{}, conn: conn}
	}
}

// LeavePosts stops being the lookout of any queue. It needs a round trip of its own, because no claim is made: there is
// no room, or no job is to be claimed.
func (c *claimer) LeavePosts(base context.Context) {
	ctx, cancel := c.tripContext(base)
	defer cancel()
	conn, err := c.Link.Get(ctx)
	now := c.Now()
	if err == nil {
		c.on(conn)
		note := &store.Lookout{LeaveAll: true}
		err = conn.Lookout(ctx, note)
		c.changed(note, err, now)
	}
	if err != nil { // if the round trip succeeds, Trouble is not over: only a claim that succeeds ends it
		c.Trouble.Failed(base, c.Shared, "leaving the lookout", err)
	}
}

// Overstays reports whether the claimer is the lookout of queues although it cannot look for jobs: all queues are full,
// or the last claim failed.
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

// rest returns how long the claimer has nothing to do.
func (c *claimer) rest(now time.Time) time.Duration {
	rest := time.Hour
	if c.Lease.Load().Ended.Load() {
		return RetryPause // until the keeper has a lease again
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
		rest = min(rest, due.Sub(now)) // to hand the due job on
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

// setPace decides when to look again after a claim.
func (c *claimer) setPace(p *Plan, now time.Time) {
	l := look{found: len(p.Reply.Jobs), once: p.once, posted: len(c.out.posts) > 0, seen: p.Reply.Seen}
	for _, g := range p.groups {
		l.filled = l.filled || g.queue.Full
	}
	defer func() { c.asleep.Store(c.Asleep) }()
	c.after(l, pace{Poll: c.Cfg.PollInterval, Rest: c.Cfg.RestInterval, deaf: c.Cfg.DisableNotify}, now)
	if p.Reply.NextDue == 0 {
		return
	}
	due := now.Add(p.Reply.NextDue)
	if missed := !p.due.IsZero() && !now.Before(p.due); missed && p.Reply.NextDue < minDueGap {
		due = now.Add(minDueGap)
	}
	if !c.Asleep || c.looksAt(due) {
		c.NoteDue(due)
	}
}

// All supervisors read the same due times, and two of them look for jobs at each. looksAt reports whether this
// supervisor is one of the two. Hashes decide, so all supervisors come to the same result.
func (c *claimer) looksAt(due time.Time) bool {
	second := strconv.FormatInt(due.Unix(), 10)
	hash := func(id string) uint64 {
		h := fnv.New64a()
		_, _ = h.Write([]byte(second + id))
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

// answer records which calls (calls.go) the claim has answered, and which calls are to be handed on.
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
		due := !p.due.IsZero() && !now.Before(p.due)
		c.calls.full(q.Name, p.asleep && (room || due), now, now.Add(c.patience(q.Name)))
	}
}

// Asked reports whether something asks for a look before the next poll.
func (c *claimer) Asked() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.Poked || len(c.calls.asked()) > 0
}
