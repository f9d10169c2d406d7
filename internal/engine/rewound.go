package engine

import (
	"context"
	"math"
	"time"

	"github.com/drover-queue/drover/internal/store"
)

// A database can go back to an older state while processes work on it: an asynchronous standby takes over, a server
// that commits without waiting for its log crashes, or somebody restores a backup. Then a process remembers rows that
// the database does not have any more. A supervisor suspects this if its own row counts fewer beats than it has sent
// (rowIsOlder, beatRefused), if a run's row is not as the run left it, if transaction ids fall, or if a connection
// broke.
//
// If its own row is older, the supervisor gives up its lease and goes on under another id. The commits that the
// database has lost did not use the new id. In the other cases the supervisor keeps its lease, and its claimer looks
// again at all rows: docs/adr/0028-a-database-that-goes-back.md.

// WentBack is the text in the log when a supervisor gives up its lease because its row is older than its last write.
const WentBack = "the database has gone back to an older state"

// rowIsOlder reports whether our own row, as a beat read it, counts fewer beats than we have sent. Another cause may be
// that somebody changed the row by hand.
func (k *keeper) rowIsOlder(id string, epoch int, peers []store.Peer) bool {
	for _, x := range peers {
		if x.ID != id || x.Epoch != epoch {
			continue
		}
		if x.Beat < k.counted {
			k.counted = math.MaxInt64 // until there is a new id: if registering fails, the next beat must report the same
			return true
		}
		k.counted = x.Beat + 1
	}
	return false
}

// rewriteCrews adds the rows of drover_crews that our queues lack, which may happen after a restore or a failover.
// These rows have the keys of the locks of lookouts and of supervisors on call. Without them, enqueues would notify
// nobody.
func (k *keeper) rewriteCrews(ctx context.Context, conn store.Session, l *lease, reply store.BeatReply) error {
	queues := k.QueueStates()
	if k.Cfg.DisableNotify || reply.Crews >= len(queues) {
		return nil
	}
	reg := k.registration(l.ID, queues)
	if err := conn.RewriteCrews(ctx, l.ID, reg); err != nil {
		return err
	}
	k.crews.Store(&reg.Crews)
	k.alarm.Wake()
	return nil
}

// BeatPacer makes a pause between beats that come before their time. The pause gets longer each time, because each
// early beat may ask for another early beat.
type BeatPacer struct {
	n    int       // how many early beats came in a row
	last time.Time // the last beat
}

// Next returns when to send a beat that something has asked for: immediately, or after a pause if the last beat came
// early, too. It never returns a time after the parameter planned, at which a beat comes anyway.
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

// Went records a beat that is sent now and was due at the given time.
func (h *BeatPacer) Went(now, due time.Time) {
	if h.last = now; now.Before(due) {
		h.n++
	} else {
		h.n = 0
	}
}
