package engine

import (
	"context"
	"slices"
	"time"

	"github.com/drover-queue/drover/internal/store"
)

// The keeper asks for things that no notification may have brought: cancelled runs (if LISTEN does not work), changed
// queues that its row in drover_supervisors lacks, and pauses that are over.

// askEvery is how often a supervisor that hears no notifications asks which of its runs are over. A heartbeat finds the
// same, but it comes only six times a lease, which is too late for a person who has cancelled a job.
const askEvery = time.Second

// hears reports whether the server has accepted LISTEN on the current connection.
func (c *keeper) hears() bool {
	return !c.Listening.Closed() && c.Listening == c.Link.Current()
}

// askAt returns when to ask for runs that are over or when a pause ends, or the time of the next heartbeat if that comes
// first.
func (c *keeper) askAt(next time.Time) time.Time {
	if at := c.Asked.Add(askEvery); !c.hears() && at.Before(next) {
		next = at
	}
	if at := c.Limits.Next; !at.IsZero() && at.Before(next) {
		next = at
	}
	return next
}

// HearLimits reads and applies the limits as soon as a notification reports a change, and when a pause ends by itself.
// If this fails, it is tried again after a while, or with the next heartbeat.
func (c *keeper) HearLimits(ctx context.Context) {
	conn, l, now := c.Link.Current(), c.Lease.Load(), c.Now()
	if ctx.Err() != nil || !c.Limits.Due(now) {
		return
	}
	if conn.Closed() || l.Ended.Load() {
		c.Limits.later(now)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, c.Cfg.Lease/6)
	defer cancel()
	if err := c.Limits.Follow(ctx, conn, l.ID); err != nil {
		c.Limits.later(c.Now())
	}
}

// AskUnheard ends the contexts of runs that an operator has ended, if no notifications come. It reads only the rows of
// jobs that run here. If it fails, it reports nothing, because the next heartbeat fails with the same error and reports
// it.
func (c *keeper) AskUnheard(ctx context.Context) {
	now, conn := c.Now(), c.Link.Current()
	if ctx.Err() != nil || c.hears() || now.Before(c.Asked.Add(askEvery)) {
		return
	}
	c.Asked = now
	l := c.Lease.Load()
	running := c.InFlight.under(l.ID)
	if len(running) == 0 || conn.Closed() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, c.Cfg.Lease/6)
	defer cancel()
	gone, err := conn.Gone(ctx, l.ID, Fences(running), c.Bound())
	if err == nil {
		c.cancelGone(running, gone)
	}
	if took := c.Now().Sub(now); took > askEvery/20 { // with many runs it takes at most a twentieth of the time
		c.Asked = now.Add(20*took - askEvery)
	}
}

// serveAgain stores the queues again if our row lists other queues. AddQueue and RemoveQueue write to the row of the
// lease that they have read. Meanwhile a new lease, registered with the earlier queues, may have replaced that
// lease.
func (c *keeper) serveAgain(ctx context.Context, conn store.Session, l *lease, reply store.BeatReply) error {
	i := slices.IndexFunc(reply.Peers, func(p store.Peer) bool { return p.ID == l.ID })
	if i < 0 || slices.Equal(reply.Peers[i].Queues, c.QueueNames()) {
		return nil
	}
	if !c.Changing.TryLock() {
		return nil // AddQueue or RemoveQueue is at work; the next heartbeat looks again
	}
	defer c.Changing.Unlock()
	reg := c.registration(l.ID, c.QueueStates())
	if err := conn.ServeOn(ctx, l.ID, reg); err != nil {
		return err
	}
	c.budgets.know(reg.Scopes)
	c.crews.Store(&reg.Crews)
	c.alarm.Wake()
	return nil
}
