package drover

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// shared is what all parts of a supervisor use.
type shared struct {
	cfg   SupervisorConfig
	log   *slog.Logger
	kinds []string
	now   func() time.Time // the process' clock, for local waits only

	queuesMu sync.Mutex    // held for moments: the heartbeat must not wait for a round trip
	queues   []*queueState // replaced, never changed in place
	started  bool          // the queues' slots are served
	closed   bool          // the queues' buffers are closed: no queue may be added

	lease    atomic.Pointer[lease] // the one that claims are made under
	inFlight runSet                // handlers at work
	draining atomic.Bool
	reporter reporter  // calls the hooks
	quiet    sparingly // lines of the log that must not repeat themselves
	outage   outage    // what the parts have with the database
	beatSoon func()    // asks for a heartbeat before its time
}

// queueStates are the queues that are served now.
func (s *shared) queueStates() []*queueState {
	s.queuesMu.Lock()
	defer s.queuesMu.Unlock()
	return s.queues
}

// queueNames are their names, in order.
func (s *shared) queueNames() (names []string) {
	for _, q := range s.queueStates() {
		names = append(names, q.Name)
	}
	return names
}

// walkBound is how long a single statement of a walk may take, because other jobs wait for it.
func (s *shared) walkBound() time.Duration { return min(s.cfg.Lease/12, time.Second) }

// tripContext bounds one round trip.
func (s *shared) tripContext(base context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(base, min(tripTimeout, s.cfg.Lease/2))
}
