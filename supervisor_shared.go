package drover

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

// shared is what all parts of an engine use.
type shared struct {
	cfg     EngineConfig
	handler Handler
	pool    *pg.Pool
	log     *slog.Logger
	kinds   []string
	now     func() time.Time // the process' clock, for local waits only

	changing sync.Mutex    // held while a queue is added or removed, round trip included
	queuesMu sync.Mutex    // held for moments: the heartbeat must not wait for a round trip
	queues   []*queueState // replaced, never changed in place
	started  bool          // the queues' slots are served
	closed   bool          // the queues' buffers are closed: no queue may be added

	lease    atomic.Pointer[lease]     // the one that claims are made under
	inFlight runSet                    // handlers at work
	book     runSet                    // claimed and not yet settled
	apart    runSet                    // not in the book: the database refuses their outcomes
	alarm    *alarm                    // makes the claimer look for jobs
	solo     atomic.Pointer[soloOrder] // this supervisor's turn to run strong suspects; nil: it is not
	prunes   atomic.Bool               // this supervisor's turn to prune

	rereadAside atomic.Bool // others have set a job aside: the claimer reads the list

	draining atomic.Bool
	reporter reporter  // passes events on
	quiet    sparingly // lines of the log that must not repeat themselves
	outage   outage    // what the parts have with the database
	beatSoon func()    // asks for a heartbeat before its time
	rewound  func()    // the database may have gone back: look again at all rows
}

func newShared(cfg EngineConfig, pool *pg.Pool) *shared {
	s := &shared{cfg: cfg, handler: cfg.Handler, pool: pool, log: cfg.Log, now: time.Now, alarm: newAlarm()}
	for _, k := range cfg.Kinds {
		s.kinds = append(s.kinds, k.Kind)
	}
	for _, q := range cfg.Queues {
		s.queues = append(s.queues, newQueueState(q))
	}
	return s
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

// with is the list of queues with another one.
func (s *shared) with(q EngineQueue) (queues []*queueState, state *queueState, err error) {
	s.queuesMu.Lock()
	defer s.queuesMu.Unlock()
	if s.closed {
		return nil, nil, pg.ErrShutdown
	}
	if slices.ContainsFunc(s.queues, func(other *queueState) bool { return other.Name == q.Name }) {
		return nil, nil, ErrServed
	}
	state = newQueueState(q)
	queues = append(slices.Clone(s.queues), state)
	slices.SortFunc(queues, func(a, b *queueState) int { return cmp.Compare(a.Name, b.Name) })
	return queues, state, nil
}

// without takes a queue off the list. gone is nil if it is not there.
func (s *shared) without(name string) (queues []*queueState, gone *queueState) {
	s.queuesMu.Lock()
	defer s.queuesMu.Unlock()
	i := slices.IndexFunc(s.queues, func(q *queueState) bool { return q.Name == name })
	if i < 0 {
		return s.queues, nil
	}
	gone = s.queues[i]
	s.queues = slices.Delete(slices.Clone(s.queues), i, i+1)
	return s.queues, gone
}

// registration is what the tables should say of this supervisor.
func (s *shared) registration(id string, queues []*queueState) *store.Registration {
	reg := &store.Registration{
		ID: id, Host: s.cfg.Host, Build: s.cfg.Build, PID: os.Getpid(), Process: s.cfg.Process, Lease: s.cfg.Lease, Listens: !s.cfg.DisableNotify,
		Kinds: s.cfg.Kinds, Budgets: slices.Clone(s.cfg.Budgets),
	}
	for _, q := range queues {
		reg.Queues = append(reg.Queues, q.QueuePolicy)
		if q.Budget != nil {
			reg.Budgets = append(reg.Budgets, *q.Budget)
		}
	}
	return reg
}

// cancelRun ends the context of a job that runs here, and keeps one from starting that waits in a buffer.
func (s *shared) cancelRun(id string) {
	for _, r := range s.book.of(id) {
		r.unwanted.Store(true)
	}
	for _, r := range s.inFlight.of(id) {
		r.cancel(pg.ErrCancelled)
	}
}

// logRefused logs what became of a job that the database refuses, and sends the hooks an event if it was discarded.
func (s *shared) logRefused(ctx context.Context, path string, r *Run, became string, why error) {
	text := s.cfg.Clean(pg.Refusal(why))
	s.quiet.log(ctx, s.log, slog.LevelError, path+r.ID, "the database refuses a job, the others go on", slog.String("path", path),
		slog.String("id", r.ID), slog.String("queue", r.Queue), slog.String("kind", r.Kind), slog.String("became", became), slog.String("error", text))
	if became == string(store.Discarded) {
		s.report(EventDiscarded, &Run{
			Fence: store.Fence{ID: r.ID, Owner: s.lease.Load().id}, Queue: r.Queue, Kind: r.Kind,
			End: Outcome{State: store.Discarded, Class: classRefused, Text: text, Reason: reasonRefused},
		})
	}
}

// logUnread logs the lanes that a hunt had to skip.
func (s *shared) logUnread(ctx context.Context, h *store.Hunt) {
	for _, lane := range h.Unread {
		if s.quiet.may(fmt.Sprint("unread ", lane.Key), s.now()) {
			s.log.ErrorContext(ctx, "part of a queue cannot be read, jobs of lost supervisors may wait there",
				slog.String("queue", lane.Key.Queue), slog.Int("lane", int(lane.Key.N)), slog.String("error", lane.Err.Error()))
		}
	}
	h.Unread = nil
}

// walkBound is how long a single statement of a walk may take, because other jobs wait for it.
func (s *shared) walkBound() time.Duration { return min(s.cfg.Lease/12, time.Second) }

// tripContext bounds one round trip.
func (s *shared) tripContext(base context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(base, min(tripTimeout, s.cfg.Lease/2))
}
