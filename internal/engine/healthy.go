package engine

import (
	"fmt"
	"time"
)

// Ailment returns what keeps the engine from its work, and the database's error behind it, which may be nil. The text
// is empty if the engine works; otherwise it follows the words "the supervisor". A part may fail for a third of a
// lease: it has tried several times by then. A heartbeat that has not failed but is late shows only after most of a
// lease, when the running jobs are cancelled.
func (s *Shared) Ailment() (what string, err error) {
	now, l := s.Now(), s.Lease.Load()
	failing, found := s.Outage.vital(now.Add(-s.Cfg.Lease))
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
