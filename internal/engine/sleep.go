package engine

import (
	"context"
	"slices"
	"time"

	"github.com/drover-queue/drover/internal/store"
)

// rest returns how long the claimer has nothing to do.
func (c *claimer) rest(now time.Time) time.Duration {
	rest := time.Hour
	if c.Lease.Load().Ended.Load() {
		return RetryPause // until the keeper has a lease again
	}
	switch {
	case !c.wantsRoom:
		rest = c.LookAt().Sub(now)
	case !c.saysFull():
		rest = SleepAfter - c.fullFor(now)
	}
	if order := c.Solo.Load(); order != nil && !order.idle.Load() && !order.Over.Load() {
		rest = min(rest, order.IdleBy.Sub(now))
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
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.Due.IsZero() && c.Due.Before(c.Next) {
		return c.Due
	}
	return c.Next
}

// fullFor returns how long there has been no room.
func (c *claimer) fullFor(now time.Time) time.Duration {
	if !c.wantsRoom || c.fullAt.IsZero() {
		return 0
	}
	return now.Sub(c.fullAt)
}

// saysFull reports whether drover_sleepers shows all our queues as full. With notifications off it returns true.
func (c *claimer) saysFull() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.Cfg.DisableNotify || c.Asleep && !c.anew && slices.Equal(c.full, c.QueueNames())
}

// sleepFull writes into drover_sleepers that this supervisor has no room, or has stopped claiming. Else it would count as
// awake, and enqueues would notify no supervisor with a free slot. The first claim with room corrects the row.
func (c *claimer) sleepFull(base context.Context) {
	ctx, cancel := context.WithTimeout(base, min(TripTimeout, c.Cfg.Lease/2))
	defer cancel()
	all := c.QueueNames()
	c.mu.Lock()
	c.anew = false
	c.mu.Unlock()
	conn, err := c.Link.Get(ctx)
	if err == nil {
		err = conn.Sleep(ctx, &store.Sleep{Supervisor: c.Lease.Load().ID, Asleep: true, Full: all})
	}
	if err != nil {
		c.SayAnew()
		c.Trouble.Failed(base, c.Shared, "falling asleep", err)
		return
	}
	c.Trouble.Over(base, c.Shared)
	c.says(true, time.Time{}, all)
}

// says notes what drover_sleepers now shows of us.
func (c *claimer) says(asleep bool, until time.Time, full []string) {
	c.Asleep, c.until, c.full = asleep, until, full
	if asleep {
		c.sleeping.Store(int64(len(c.QueueNames())))
	} else {
		c.sleeping.Store(0)
	}
}

// setPace decides when to look again: immediately while there are jobs, then after 1, 2, 4, 8, 8, … ms. Once asleep, the
// pause doubles up to the poll interval. So a pause is at most about as long as nothing has been found.
func (c *claimer) setPace(p *Plan, now time.Time) {
	if n := len(p.Reply.Jobs); n > 0 {
		c.Next, c.Step, c.IdleAt = now, 0, time.Time{}
		c.trickle.add(n, now)
		return
	}
	if c.IdleAt.IsZero() {
		c.IdleAt = now
	}
	longest := c.Cfg.PollInterval
	switch {
	case !c.Asleep && !c.Cfg.DisableNotify:
		longest = min(longest, AwakePoll)
	case now.Sub(c.IdleAt) >= RestAfter:
		longest = c.Cfg.RestInterval
	}
	if c.Asleep {
		longest = c.hearing.Step(p.Reply.Seen, now, AwakePoll, longest)
	}
	c.Step = max(firstPoll, min(2*c.Step, longest))
	c.Next = now.Add(c.Step)
	if p.Reply.NextDue == 0 {
		return
	}
	due := now.Add(p.Reply.NextDue)
	if missed := !p.due.IsZero() && !now.Before(p.due); missed && p.Reply.NextDue < minDueGap {
		due = now.Add(minDueGap)
	}
	c.NoteDue(due)
}

// trickle is how many more jobs a sleeper may find before it should wake up, because each costs a notification.
type trickle struct {
	left float64
	at   time.Time
}

func (t *trickle) add(n int, now time.Time) {
	t.left = max(-1, min(TrickleBurst, t.left+TrickleRate*now.Sub(t.at).Seconds())-float64(n))
	t.at = now
}

func (t *trickle) over() bool { return t.left < 0 }

// fallAsleep returns what to write into drover_sleepers: that this supervisor sleeps, once it has found nothing for a
// while, or that it is awake, once it finds more than a trickle. The claim in the same round trip closes the gap: it finds
// the job of each enqueue that committed before and saw nobody asleep.
//
// A sleep until a known job is due ends then, and producers take us for awake. So the claim at that time writes it
// again. Queues without room in this claim are written as full; a claim follows when a slot becomes free.
func (c *claimer) fallAsleep(claim *Plan, now time.Time) *store.Sleep {
	idle := !c.IdleAt.IsZero() && now.Sub(c.IdleAt) >= SleepAfter
	asleep := idle || c.Asleep && !c.trickle.over()
	over := !c.until.IsZero() && !now.Before(c.until)
	c.mu.Lock()
	anew := c.anew
	c.anew = false
	c.mu.Unlock()
	full := claim.full()
	if c.Cfg.DisableNotify || asleep == c.Asleep && !anew && (!asleep || !over && slices.Equal(full, c.full)) {
		return nil
	}
	note := &store.Sleep{Supervisor: claim.Lease.ID, Asleep: asleep, Full: full}
	if asleep && claim.due.After(now) {
		note.Lasts = claim.due.Sub(now)
	}
	return note
}

// fellAsleep notes that drover_sleepers was written.
func (c *claimer) fellAsleep(note *store.Sleep, now time.Time) {
	var until time.Time
	if note.Lasts > 0 {
		until = now.Add(note.Lasts)
	}
	c.says(note.Asleep, until, note.Full)
	c.hearing.Asleep(now)
}
