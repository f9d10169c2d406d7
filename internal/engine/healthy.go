package engine

import (
	"fmt"
	"time"
)

// Ailment returns a text with the reason why the engine does not do its work, and the database's error that caused
// this, or nil. The text is empty if the engine works. Otherwise it is the rest of a sentence that begins with "the
// supervisor". A part counts as failing after a third of a lease, because it has tried several times by then. A
// heartbeat that has not failed, but is late, counts only after most of a lease, when the running jobs are cancelled.
func (s *Shared) Ailment() (what string, err error) {
	now, l := s.Now(), s.Lease.Load()
	lately := now.Add(-s.Cfg.Lease)
	failing, found := s.Outage.vital(lately)
	// While a lock holds up every claim, other round trips of the claimer succeed in between, and end its Trouble. A
	// single failure does not count: perhaps there was nothing to claim since.
	if f := s.unclaimed.Load(); f != nil && f.last.After(f.since) && f.last.After(lately) && (!found || f.since.Before(failing.since)) {
		failing, found = *f, true
	}
	switch {
	case l == nil:
		return "is still starting", failing.err
	case l.Ended.Load() || !now.Before(s.deadline()):
		return fmt.Sprintf("has no lease: no heartbeat has reached the database for %v", now.Sub(*s.beaten.Load()).Round(time.Millisecond)), failing.err
	case found && now.Sub(failing.since) > s.Cfg.Lease/3:
		return fmt.Sprintf("has failed at %s for %v", failing.what, now.Sub(failing.since).Round(time.Millisecond)), failing.err
	}
	return "", nil
}
