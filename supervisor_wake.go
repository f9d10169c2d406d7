package drover

import (
	"context"
	"slices"
	"time"
)

// rest is how long there is nothing to do.
func (c *claimer) rest(now time.Time) time.Duration {
	rest := time.Hour
	if c.lease.Load().ended.Load() {
		return retryPause // until control has a lease again
	}
	switch {
	case c.sleep.fullAt.IsZero():
		rest = c.lookAt().Sub(now)
	case !c.saysFull():
		rest = c.sleep.fullAt.Add(sleepAfter).Sub(now)
	}
	if at := c.bell.next(); !at.IsZero() {
		rest = min(rest, at.Sub(now))
	}
	if order := c.solo.Load(); order != nil && !order.idle.Load() && !order.over.Load() {
		rest = min(rest, order.idleBy.Sub(now))
	}
	for _, q := range c.queues.states() {
		if q.buffer.len() > 0 {
			rest = min(rest, bufferPatience/4)
		}
	}
	if at := c.refused.readAt; !at.IsZero() {
		rest = min(rest, at.Sub(now))
	}
	rest = min(rest, c.audit.rest(now))
	return max(rest, 0)
}

// lookAt is when to look for jobs next: by the polls, or earlier for a job known to be due.
func (c *claimer) lookAt() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.next
	if !c.due.IsZero() && c.due.Before(c.next) {
		at = c.due
	}
	if soon := c.bell.next(); !soon.IsZero() && soon.Before(at) {
		at = soon
	}
	return at
}

// mustSayFull reports whether it is time to say in sleepers that there is no room: after a while, or at once if a job
// waits that was announced to this supervisor.
func (c *claimer) mustSayFull(now time.Time) bool {
	if c.sleep.fullAt.IsZero() {
		return false
	}
	return now.Sub(c.sleep.fullAt) >= sleepAfter && !c.saysFull() || !c.cfg.DisableNotify && c.bell.ringing(now)
}

// saysFull reports whether sleepers says of all queues that there is no room, or need not say it.
func (c *claimer) saysFull() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cfg.DisableNotify || c.sleep.asleep && !c.anew && slices.Equal(c.sleep.full, c.queues.names())
}

// sleepFull writes to drover_sleepers that this supervisor takes no jobs, for now or for good. Otherwise it would count as
// awake, and enqueues would not notify supervisors that have a free slot. The first claim with room reverts that.
func (c *claimer) sleepFull(base context.Context) {
	ctx, cancel := context.WithTimeout(base, c.tripBound())
	defer cancel()
	now, all := c.now(), c.queues.names()
	rung := c.bell.take(now)
	c.sayOnce()
	row := &sleepRow{id: c.lease.Load().id, asleep: true, full: all, pass: c.sleep.pass(all, rung)}
	conn, err := c.link.get(ctx)
	if err == nil {
		err = c.client.store.sleep(ctx, conn, row)
	}
	if row.said {
		c.said(row, rung, now)
	}
	if err != nil {
		for queue, n := range rung {
			c.bell.ring(queue, n)
		}
		c.sayAnew()
		c.trouble.failed(base, "falling asleep", err)
		return
	}
	c.trouble.over(base)
}

// say decides what sleepers is to say with this claim, nil: nothing new.
func (c *claimer) say(claim *claim, now time.Time) *sleepRow {
	if anew := c.sayOnce(); !c.cfg.DisableNotify {
		return c.sleep.say(claim, anew, now)
	}
	return nil
}

// said notes what was written, which other supervisors it has woken, and of how many queues the tables should say it.
func (c *claimer) said(row *sleepRow, rung map[string]int, now time.Time) {
	answered(rung, row.pass)
	c.sleep.wrote(row, now)
	n := 0
	if row.asleep {
		n = len(c.queues.names())
	}
	c.sleeping.Store(int64(n))
}

// setPace decides when to look again: at once while there is more, then after 1, 2, 4, 8, 8, … ms, and once asleep
// doubling on up to the poll interval. A job whose transaction was silent for d is found at most d after its commit.
func (c *claimer) setPace(p *claim, now time.Time) {
	n := len(p.reply.jobs)
	c.sleep.found(n, now)
	if n > 0 && c.lookAgain(p, now) {
		return
	}
	longest := c.cfg.PollInterval
	switch {
	case !c.sleep.asleep && !c.cfg.DisableNotify:
		longest = min(longest, awakePoll)
	case now.Sub(c.sleep.idleAt) >= restAfter:
		longest = c.restInterval
	}
	if c.sleep.asleep {
		c.restAsleep(p, now, longest)
	} else {
		c.step = max(firstPoll, min(2*c.step, longest))
		c.next = now.Add(c.step)
	}
	if p.reply.nextDue == 0 {
		return
	}
	due := now.Add(p.reply.nextDue)
	if missed := !p.due.IsZero() && !now.Before(p.due); missed && p.reply.nextDue < minDueGap {
		due = now.Add(minDueGap)
	}
	c.noteDue(due)
}
