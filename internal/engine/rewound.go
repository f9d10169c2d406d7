package engine

import (
	"context"
	"math"
	"time"

	"github.com/drover-queue/drover/internal/store"
)

// A database can go back to an older state while processes work on it: an asynchronous standby takes over, a server that
// commits without waiting for its log crashes, somebody restores a backup. Then a process remembers rows that the database
// has never had. A supervisor notices it in four ways: its own row counts fewer beats (rowIsOlder, beatRefused), a run's
// row is not as the run left it, transaction ids fall, or a connection broke.
//
// If its own row is older, the lease is lost, and the supervisor goes on under another id, which no forgotten commit
// has used. Otherwise the lease is still ours, and the claimer looks again at all rows:
// docs/adr/0028-a-database-that-goes-back.md.

// WentBack is the logged reason for giving up a lease whose row is older than its supervisor's last write.
const WentBack = "the database has gone back to an older state"

// rowIsOlder reports whether our own row, as a beat found it, counts fewer beats than we have sent. Somebody
// may have changed it by hand, too.
func (c *keeper) rowIsOlder(id string, epoch int, peers []store.Peer) bool {
	for _, x := range peers {
		if x.ID != id || x.Epoch != epoch {
			continue
		}
		if x.Beat < c.counted {
			c.counted = math.MaxInt64 // until there is a new id: if registering fails, the next beat must report the same
			return true
		}
		c.counted = x.Beat + 1
	}
	return false
}

// rewriteCrews adds the missing rows of our crews (the locks for lookouts and for supervisors on call) after a
// restore or failover. Without them, enqueues would notify nobody.
func (c *keeper) rewriteCrews(ctx context.Context, conn store.Session, l *lease, reply store.BeatReply) error {
	queues := c.QueueStates()
	if c.Cfg.DisableNotify || reply.Crews >= len(queues) {
		return nil
	}
	reg := c.registration(l.ID, queues)
	if err := conn.RewriteCrews(ctx, l.ID, reg); err != nil {
		return err
	}
	c.crews.Store(&reg.Crews)
	c.alarm.Wake()
	return nil
}

// BeatPacer makes a pause between beats that come before their time. The pause gets longer each time, because each such
// beat may lead to the request for another.
type BeatPacer struct {
	n    int       // how many such beats came in a row
	last time.Time // the last beat
}

// Next returns when to beat because something waits for it: immediately, unless the last beat came early, too.
func (h *BeatPacer) Next(now, planned time.Time) time.Time {
	at := now
	if h.n > 0 {
		at = h.last.Add(growing(h.n - 1))
	}
	if planned.Before(at) {
		return planned
	}
	return at
}

// Went records a beat that was due at the given time.
func (h *BeatPacer) Went(now, due time.Time) {
	if h.last = now; now.Before(due) {
		h.n++
	} else {
		h.n = 0
	}
}
