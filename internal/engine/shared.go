package engine

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// Shared has the state that all parts of an engine use.
type Shared struct {
	Cfg     Config
	Handler Handler
	pool    *pg.Pool
	log     *slog.Logger
	Kinds   []string
	Now     func() time.Time // the process' clock, for local waits only

	Changing sync.Mutex    // held while a queue is added or removed, including the round trip
	queuesMu sync.Mutex    // never held during a round trip, because the heartbeat needs it, too
	queues   []*QueueState // the slice is replaced, never changed in place
	removed  []*QueueState // queues that are no longer served, until their last runs are written as activity
	started  bool          // the goroutines of the slots are started
	closed   bool          // the queues' buffers are closed: no queue may be added

	Lease       atomic.Pointer[lease] // the lease under which claims are made
	InFlight    runSet                // handlers at work
	Unsettled   runSet                // runs that are claimed and not yet settled, except RefusedRuns
	RefusedRuns runSet                // runs whose outcomes the database refuses
	alarm       *alarm                // makes the claimer look for jobs
	calls       *calls                // the open calls: looks on which other supervisors count
	crews       atomic.Pointer[map[string]store.Crew]
	sharers     atomic.Pointer[[]string]  // the other supervisors that were alive at the last beat and serve one of our queues
	Solo        atomic.Pointer[SoloOrder] // this supervisor's turn to run strong suspects; nil: it has none
	Prunes      atomic.Bool               // this supervisor prunes: it is the oldest one alive

	holds  atomic.Pointer[holds]     // the paused scopes; nil: none. begin() reads it under the lock of InFlight
	beaten atomic.Pointer[time.Time] // when the last successful beat was sent

	rereadAside atomic.Bool // the settler has set a job aside, so the claimer must read the list

	Draining atomic.Bool
	Reporter reporter   // passes events on
	seldom   logLimiter // limits lines of the log that would repeat
	Outage   outage     // the failures of all parts, for the log
	beatSoon func()     // asks for a heartbeat before its time
	rewound  func()     // the database may have gone back to an older state: look again at all rows

	unclaimed atomic.Pointer[failure] // the claims that have failed since the last claim that was committed; nil: none
}

// NewShared returns the state that the parts of an engine share. It is made before any of the parts.
func NewShared(cfg Config, pool *pg.Pool) *Shared {
	s := &Shared{Cfg: cfg, Handler: cfg.Handler, pool: pool, log: cfg.Log, Now: time.Now, alarm: newAlarm(), calls: newCalls()}
	s.crews.Store(&map[string]store.Crew{})
	s.sharers.Store(&[]string{})
	s.Reporter = newReporter(cfg.Subscribers)
	for _, k := range cfg.Kinds {
		s.Kinds = append(s.Kinds, k.Kind)
	}
	for _, q := range cfg.Queues {
		s.queues = append(s.queues, s.newQueueState(q))
	}
	return s
}

// logDropped logs that hooks miss events, until ended is closed. The goroutines that report events do not log this
// themselves, because the log may hang, too.
func (s *Shared) logDropped(ended <-chan struct{}) {
	for {
		select {
		case <-ended:
			return
		case hooks := <-s.Reporter.full:
			if s.seldom.Allow("events "+hooks, time.Now()) {
				s.log.Error("events are dropped, because hooks are slow or hang", slog.String("hooks", hooks), slog.Int64("dropped", s.Reporter.Dropped()))
			}
		}
	}
}

// newQueueState returns the state of a queue that uses the supervisor's holds (paused scopes).
func (s *Shared) newQueueState(q Queue) *QueueState {
	state := NewQueueState(q)
	state.holds = &s.holds
	return state
}

// openKinds returns the kinds whose jobs may be claimed.
func (s *Shared) openKinds() []string {
	if h := s.holds.Load(); h != nil {
		return h.open
	}
	return s.Kinds
}

// openQueues returns the names of the queues whose jobs may be claimed.
func (s *Shared) openQueues() []string {
	return slices.DeleteFunc(s.QueueNames(), s.holds.Load().holdsQueue)
}

// deadline returns when the handlers' contexts end if no further beat succeeds: four fifths of a lease after the last
// beat. Other supervisors may take the jobs one lease after the last beat that they saw. It is safe for concurrent use.
func (s *Shared) deadline() time.Time { return s.beaten.Load().Add(s.Cfg.Lease * 4 / 5) }

// begin adds a run to InFlight. It returns false if the handler must not be called: the job is paused, the lease is
// over, or a stop has cancelled the handlers. In the last case, perhaps the job was just handed back, and a claim under
// way has taken it again. begin reads the clock itself: a process that was frozen until now has to notice that its
// lease is over, because Client.Pause has not waited for it.
func (s *Shared) begin(r *Run) bool {
	s.InFlight.mu.Lock()
	defer s.InFlight.mu.Unlock()
	now := s.Now()
	if s.holds.Load().holdsJob(r.Queue, r.Kind) || r.Lease.Ended.Load() || r.Lease.Ctx.Err() != nil || !now.Before(s.deadline()) {
		return false
	}
	r.StartedAt = now
	s.InFlight.add(r)
	return true
}

// replaceHolds replaces the holds, under the lock that every start takes.
func (s *Shared) replaceHolds(h *holds) {
	s.InFlight.mu.Lock()
	defer s.InFlight.mu.Unlock()
	s.holds.Store(h)
}

// QueueStates returns the queues that are served now.
func (s *Shared) QueueStates() []*QueueState {
	s.queuesMu.Lock()
	defer s.queuesMu.Unlock()
	return s.queues
}

// QueueNames returns the names of the queues that are served now, in order.
func (s *Shared) QueueNames() (names []string) {
	for _, q := range s.QueueStates() {
		names = append(names, q.Name)
	}
	return names
}

// withQueue returns the list of queues with q added, and the new state of q. It does not change the list.
func (s *Shared) withQueue(q Queue) (queues []*QueueState, state *QueueState, err error) {
	s.queuesMu.Lock()
	defer s.queuesMu.Unlock()
	if s.closed {
		return nil, nil, pg.ErrShutdown
	}
	if slices.ContainsFunc(s.queues, func(other *QueueState) bool { return other.Name == q.Name }) {
		return nil, nil, ErrServed
	}
	state = s.newQueueState(q)
	queues = append(slices.Clone(s.queues), state)
	slices.SortFunc(queues, func(a, b *QueueState) int { return cmp.Compare(a.Name, b.Name) })
	return queues, state, nil
}

// withoutQueue takes a queue out of the list of queues, and returns the new list and the state of the queue. The result
// gone is nil if the queue was not in the list.
func (s *Shared) withoutQueue(name string) (queues []*QueueState, gone *QueueState) {
	s.queuesMu.Lock()
	defer s.queuesMu.Unlock()
	i := slices.IndexFunc(s.queues, func(q *QueueState) bool { return q.Name == name })
	if i < 0 {
		return s.queues, nil
	}
	gone = s.queues[i]
	s.queues = slices.Delete(slices.Clone(s.queues), i, i+1)
	s.removed = append(s.removed, gone)
	return s.queues, gone
}

// Tallied returns the queues that are served, and the removed queues whose tallies are still written.
func (s *Shared) Tallied() []*QueueState {
	s.queuesMu.Lock()
	defer s.queuesMu.Unlock()
	return slices.Concat(s.queues, s.removed)
}

// forgetRemoved forgets the removed queues for which done returns true.
func (s *Shared) forgetRemoved(done func(*QueueState) bool) {
	s.queuesMu.Lock()
	defer s.queuesMu.Unlock()
	s.removed = slices.DeleteFunc(s.removed, done)
}

// registration returns the values that the tables should have for this supervisor.
func (s *Shared) registration(id string, queues []*QueueState) *store.Registration {
	reg := &store.Registration{
		ID: id, Host: s.Cfg.Host, Build: s.Cfg.Build, PID: os.Getpid(), Process: s.Cfg.Process, Lease: s.Cfg.Lease, Listens: !s.Cfg.DisableNotify, Polls: max(s.Cfg.PollInterval, s.Cfg.RestInterval),
		Kinds: s.Cfg.Kinds, Budgets: slices.Clone(s.Cfg.Budgets),
	}
	for _, q := range queues {
		reg.Queues = append(reg.Queues, q.QueuePolicy)
		if q.Budget != nil {
			reg.Budgets = append(reg.Budgets, *q.Budget)
		}
	}
	return reg
}

// cancelRun ends the contexts of the runs of a job here. If the job waits in a buffer, it does not start.
func (s *Shared) cancelRun(id string) {
	for _, r := range s.Unsettled.OfJob(id) {
		r.cancelRequested.Store(true)
	}
	for _, r := range s.InFlight.OfJob(id) {
		r.Cancel(pg.ErrCancelled)
	}
}

// logUnread logs the lanes that a scan had to skip.
func (s *Shared) logUnread(ctx context.Context, h *store.Scan) {
	for _, lane := range h.Unread {
		if s.seldom.Allow(fmt.Sprint("unread ", lane.Key), s.Now()) {
			s.log.ErrorContext(ctx, "part of a queue cannot be read, jobs of lost supervisors may wait there",
				slog.String("queue", lane.Key.Queue), slog.Int("lane", int(lane.Key.N)), slog.String("error", lane.Err.Error()))
		}
	}
	h.Unread = nil
}

// walkBound returns how long one statement of a walk (pickApart) may take. It is short, because other jobs wait for the
// walk.
func (s *Shared) walkBound() time.Duration { return min(s.Cfg.Lease/12, time.Second) }

// tripContext returns a context for one round trip.
func (s *Shared) tripContext(base context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(base, min(TripTimeout, s.Cfg.Lease/2))
}

// roundTrip calls do with a part's connection, for at most the time of a round trip. If it cannot connect, it returns
// the error as a text. So no row is blamed for that error, even if it is a time-out.
func (s *Shared) roundTrip(base context.Context, link *store.Line, do func(context.Context, store.Session) error) error {
	ctx, cancel := s.tripContext(base)
	defer cancel()
	conn, err := link.Get(ctx)
	if err != nil {
		return fmt.Errorf("connect: %v", err) //nolint:errorlint // as text: see the comment on roundTrip
	}
	return do(ctx, conn)
}
