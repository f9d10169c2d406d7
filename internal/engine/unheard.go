package engine

import (
	"context"
	"slices"
	"time"

	"github.com/drover-queue/drover/internal/store"
)

// The keeper asks for changes of which no notification may have come: cancelled runs (if LISTEN does not work), and
// pauses that end by themselves. It also notices if its row in drover_supervisors lists other queues than it serves.

// askEvery is how often a supervisor that hears no notifications asks which of its runs are over. A heartbeat finds the
// same, but heartbeats come only six times a lease, which is too slow for a person who has cancelled a job.
const askEvery = time.Second

// hears reports whether the keeper listens for notifications: the server has accepted LISTEN on the current connection.
func (k *keeper) hears() bool {
	return !k.Listening.Closed() && k.Listening == k.Link.Current()
}

// askAt returns when the keeper has something to ask: for runs that are over, or for the limits when a pause ends. If
// the next heartbeat comes first, askAt returns its time.
func (k *keeper) askAt(next time.Time) time.Time {
	if at := k.Asked.Add(askEvery); !k.hears() && at.Before(next) {
		next = at
	}
	if at := k.Limits.Next; !at.IsZero() && at.Before(next) {
		next = at
	}
	return next
}

// HearLimits reads and applies the limits if a notification has reported a change, or if a pause ends by itself. If
// this fails, the keeper tries it again after readLimitsEvery, or with the next heartbeat.
func (k *keeper) HearLimits(ctx context.Context) {
	conn, l, now := k.Link.Current(), k.Lease.Load(), k.Now()
	if ctx.Err() != nil || !k.Limits.Due(now) {
		return
	}
	if conn.Closed() || l.Ended.Load() {
		k.Limits.retryLater(now)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, k.Cfg.Lease/6)
	defer cancel()
	if err := k.Limits.Follow(ctx, conn, l.ID); err != nil {
		k.Limits.retryLater(k.Now())
	}
}

// AskUnheard ends the contexts of runs that an operator has ended, if no notifications come. It reads only the rows of
// jobs that run here. If it fails, it reports nothing, because the next heartbeat fails with the same error and reports
// it.
func (k *keeper) AskUnheard(ctx context.Context) {
	now, conn := k.Now(), k.Link.Current()
	if ctx.Err() != nil || k.hears() || now.Before(k.Asked.Add(askEvery)) {
		return
	}
	k.Asked = now
	l := k.Lease.Load()
	running := k.InFlight.ofOwner(l.ID)
	if len(running) == 0 || conn.Closed() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, k.Cfg.Lease/6)
	defer cancel()
	gone, err := conn.Gone(ctx, l.ID, Fences(running), k.Bound())
	if err == nil {
		k.cancelGone(running, gone)
	}
	if took := k.Now().Sub(now); took > askEvery/20 { // with many runs, asking takes at most a twentieth of the time
		k.Asked = now.Add(20*took - askEvery)
	}
}

// serveAgain stores the queues again if our row lists other queues. AddQueue and RemoveQueue write to the row of the
// lease that they have read. In between, a new lease may have replaced that lease, and the row of the new lease may
// have the earlier queues.
func (k *keeper) serveAgain(ctx context.Context, conn store.Session, l *lease, reply store.BeatReply) error {
	i := slices.IndexFunc(reply.Peers, func(p store.Peer) bool { return p.ID == l.ID })
	if i < 0 || slices.Equal(reply.Peers[i].Queues, k.QueueNames()) {
		return nil
	}
	if !k.Changing.TryLock() {
		return nil // AddQueue or RemoveQueue is at work; the next heartbeat looks again
	}
	defer k.Changing.Unlock()
	reg := k.registration(l.ID, k.QueueStates())
	if err := conn.ServeOn(ctx, l.ID, reg); err != nil {
		return err
	}
	k.budgets.know(reg.Scopes)
	k.crews.Store(&reg.Crews)
	k.alarm.Wake()
	return nil
}
