package engine

import (
	"context"
	"math"
	"time"

	"github.com/drover-queue/drover/internal/store"
)

// A database can go back to an older state under the processes that work on it: an asynchronous standby takes over, a
// server that commits without waiting for its log crashes, somebody restores a backup. What a process remembers of the
// tables may then never have been. A supervisor sees it by its own row (forgotten, refused), by a run whose row is not as
// the run left it, by transaction ids that fall, and must suspect it wherever a connection broke.
//
// By its row, the lease is lost: it goes on under another id, which no forgotten commit has ever seen. Otherwise the lease
// holds, and it looks again at what it would have passed over: docs/adr/0028-a-database-that-goes-back.md.

const WentBack = "the database has gone back to an older state"

// rowIsOlder reports whether our own row, as a beat found it, counts fewer beats than it has had. Somebody
// may have changed it by hand, too.
func (c *keeper) rowIsOlder(id string, epoch int, peers []store.Peer) bool {
	for _, x := range peers {
		if x.ID != id || x.Epoch != epoch {
			continue
		}
		if x.Beat < c.counted {
			c.counted = math.MaxInt64 // until there is a new id: registering may fail, and these beats count
			return true
		}
		c.counted = x.Beat + 1
	}
	return false
}

// rewriteOwnRows puts right what the tables say of this supervisor, for they may be of an older state: that it is awake while it
// sleeps, or nothing of it, so that enqueues would notify nobody; or that the turn to run strong suspects is ours.
func (c *keeper) rewriteOwnRows(ctx context.Context, conn store.Session, l *lease, reply store.BeatReply) error {
	sleepless := reply.Sleeping < c.claimer.sleeping.Load()
	idle := reply.Turn && c.Solo.Load() == nil
	if !sleepless && !idle {
		return nil
	}
	var queues []string
	if sleepless {
		queues = c.QueueNames()
	}
	err := conn.RewriteRows(ctx, l.ID, queues, idle)
	if sleepless {
		c.alarm.SayAnew()
		c.alarm.Wake()
	}
	return err
}

// BeatPacer makes a pause between beats that come before their time, longer each time: what calls for them may do so again
// after each.
type BeatPacer struct {
	n    int       // such beats in a row
	last time.Time // the last beat
}

// Next is when to beat because something waits for it: at once, unless the last beat had such a reason too.
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

// Went notes a beat that was due at a time.
func (h *BeatPacer) Went(now, due time.Time) {
	if h.last = now; now.Before(due) {
		h.n++
	} else {
		h.n = 0
	}
}
