package drover

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// An enqueue wakes one supervisor by name, and asks a second one to look a little later. These are the duties of a
// supervisor that is woken in that way: it looks at once; it looks once, where one look can be sure; and it wakes the
// next one if it has no room, or if it found more than it has room for.
const (
	soonAfter   = 100 * time.Millisecond // after a job was enqueued for another supervisor, to see whether that one came
	stuckAfter  = sleepAfter             // in one claim, before another supervisor is asked to look
	passEvery   = sleepAfter             // between two times that a supervisor with too much to do wakes another
	mostPollers = 24                     // supervisors that share the polls: each looks at least once in as many intervals
	cheapSweep  = 5 * time.Millisecond   // a near sweep that costs less is worth a look that can be sure
)

// doorbell gathers wake-ups for the claimer. It is safe for concurrent use; the zero value is silent.
type doorbell struct {
	mu   sync.Mutex
	rung map[string]int // wake-ups since the last look, by queue
	soon map[string]int // those that another supervisor should have answered by then
	at   time.Time      // when to look for those; zero: there are none
}

// ring notes a wake-up for a queue.
func (d *doorbell) ring(queue string, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.rung == nil {
		d.rung = map[string]int{}
	}
	d.rung[queue] += n
}

// later notes a wake-up that another supervisor was sent first. One look serves all that come until then.
func (d *doorbell) later(queue string, at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.soon == nil {
		d.soon = map[string]int{}
	}
	d.soon[queue]++
	if d.at.IsZero() {
		d.at = at
	}
}

// next is when to look because of later; zero: not.
func (d *doorbell) next() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.at
}

// ringing reports whether take would return any.
func (d *doorbell) ringing(now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.rung) > 0 || !d.at.IsZero() && !now.Before(d.at)
}

// take returns the wake-ups that the look now begun has to answer.
func (d *doorbell) take(now time.Time) map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	rung := d.rung
	if !d.at.IsZero() && !now.Before(d.at) {
		if rung == nil {
			rung = map[string]int{}
		}
		for queue, n := range d.soon {
			rung[queue] += n
		}
		d.soon, d.at = nil, time.Time{}
	}
	d.rung = nil
	return rung
}

// unanswered keeps the wake-ups of a look that could not answer them for the next one.
func (c *claimer) unanswered(p *claim) {
	for queue, n := range p.rung {
		c.bell.ring(queue, n)
	}
}

// found strikes out the wake-ups that the look has answered with a job, and reports whether that was all.
func (p *claim) found() bool {
	for i := range p.reply.jobs {
		if queue := p.reply.jobs[i].queue; p.rung[queue] > 1 {
			p.rung[queue]--
		} else {
			delete(p.rung, queue)
		}
	}
	return len(p.rung) == 0
}

// lookAgain decides whether a look that found jobs is followed by another at once. Awake it is. Asleep it need not be:
// whatever comes is announced. But there may be more, and only a look that finds nothing tells when the next job is due.
// Until then the claim's due time stands.
func (c *claimer) lookAgain(p *claim, now time.Time) bool {
	if !c.sleep.asleep || c.sleep.tooMany() || p.order != nil {
		c.next, c.step = now, 0
		return true
	}
	answered := p.found()
	filled := slices.ContainsFunc(p.groups, func(g claimGroup) bool { return g.queue.backlog })
	if !p.due.IsZero() {
		c.noteDue(p.due)
	}
	if answered && !filled && (p.due.IsZero() || p.due.After(now)) {
		return false
	}
	c.unanswered(p)
	c.next, c.step = now, c.cfg.PollInterval*mostPollers
	return true
}

// restAsleep decides when a supervisor that is woken for each job looks again by itself: in its own poll interval. If a look could not
// be sure to have found the job that it was woken for, it comes again, after 1, 2, 4, … ms, until it is.
func (c *claimer) restAsleep(p *claim, now time.Time, poll time.Duration) {
	most := poll * mostPollers
	if c.step = max(firstPoll, 2*c.step); c.step > poll {
		c.step = most
	}
	switch {
	case len(p.reply.jobs) == 0 && len(p.rung) == 0:
	case p.sweep.width >= wideSweep || len(p.rung) == 0:
		c.step = most
	default:
		c.unanswered(p)
	}
	longest := c.hearing.step(p.reply.seen, now, c.polls.wait(p.reply.seen.at, poll))
	c.next = now.Add(min(c.step, longest))
	if end := c.sleep.until; end.After(now) && end.Before(c.next) {
		c.next = end // past that it would pass for awake
	}
}

// passOn wakes another supervisor for the queues of which this one has just claimed all that it has room for, but not
// often: that one does the same.
func (c *claimer) passOn(base context.Context, p *claim, now time.Time) {
	if c.cfg.DisableNotify || now.Before(c.passAt) || p.order != nil {
		return
	}
	queues := map[string]string{} // and a kind that waits there
	for i := range p.reply.jobs {
		j := &p.reply.jobs[i]
		queues[j.queue] = j.kind
	}
	for _, g := range p.groups {
		if !g.queue.backlog {
			delete(queues, g.queue.Name)
		}
	}
	if len(queues) == 0 {
		return
	}
	c.passAt = now.Add(passEvery)
	ctx, cancel := context.WithTimeout(base, c.tripBound())
	defer cancel()
	conn, err := c.link.get(ctx)
	if err == nil {
		names, kinds := make([]string, 0, len(queues)), make([]*string, 0, len(queues))
		for _, queue := range slices.Sorted(maps.Keys(queues)) {
			kind := queues[queue]
			names, kinds = append(names, queue), append(kinds, &kind)
		}
		err = c.client.store.wakeAnother(ctx, conn, p.lease.id, names, kinds)
	}
	if err != nil {
		c.trouble.failed(base, "waking another supervisor", err)
	}
}

// answered strikes out the wake-ups that another supervisor was sent.
func answered(rung map[string]int, passed []string) {
	for _, queue := range passed {
		delete(rung, queue)
	}
}

// passClaims says in sleepers that this supervisor takes nothing for now, and wakes another one. The claimer's next claim
// says again what is true. An error is the next heartbeat's to log.
func (c *control) passClaims(ctx context.Context) {
	stuck := c.alarm.claimerStuck()
	if conn := c.link.conn; stuck && !c.cfg.DisableNotify && conn != nil && !conn.IsClosed() {
		ctx, cancel := context.WithTimeout(ctx, c.cfg.Lease/6)
		defer cancel()
		all := c.queues.names()
		_ = c.client.store.sleep(ctx, conn, &sleepRow{id: c.lease.Load().id, asleep: true, full: all, pass: all})
		c.lookout.sayAnew()
		c.lookout.wake()
	}
}

// pollPlaces are a supervisor's places among those that share its polls: those asleep that serve the same queue and the same kinds.
// One of them looks in each poll interval.
type pollPlaces struct {
	places atomic.Pointer[[]pollPlace] // nil: it hears no notifications, and polls by itself
}

// pollPlace is the supervisor's place in one queue, from 0, and how many there are.
type pollPlace struct{ at, of int64 }

// wait is how long it is, at this time of the server's, until the supervisor's next interval.
func (t *pollPlaces) wait(at time.Time, poll time.Duration) time.Duration {
	wait := poll * mostPollers
	places := t.places.Load()
	if places == nil {
		return poll
	}
	for _, p := range *places {
		wait = min(wait, p.wait(at, poll))
	}
	return wait
}

func (p pollPlace) wait(at time.Time, poll time.Duration) time.Duration {
	sharers := min(p.of, mostPollers)
	if sharers <= 1 {
		return poll
	}
	// Where more supervisors share the polls than mostPollers, several have the same interval, and take it one after the other.
	round, every := time.Duration(p.at/sharers), time.Duration((p.of+sharers-1)/sharers)
	since := time.Duration(at.UnixNano()) - poll*round/every
	interval := int64(since / poll)
	ahead := (p.at%sharers - interval%sharers + sharers) % sharers
	if ahead == 0 {
		ahead = sharers
	}
	return time.Duration(interval+ahead)*poll - since
}
