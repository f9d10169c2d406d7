package drover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/store"
)

// Supervisor claims jobs and runs their workers. It uses three connections of its own besides the pool's, made
// with the pool's settings and hooks (docs/configuration.md lists them). So handlers that take every pooled connection
// starve neither heartbeat nor settle.
type Supervisor struct {
	client    *Client
	handler   *handler
	engine    *engine.Engine
	completed Retention // SupervisorConfig.CompletedRetention
	ran       atomic.Bool
	over      atomic.Bool
}

// NewSupervisor checks the configuration and returns a supervisor that runs nothing yet. If there are mistakes, it
// returns all of them, as joined *InvalidError values.
func (c *Client) NewSupervisor(cfg SupervisorConfig) (*Supervisor, error) {
	var bad problems
	h := &handler{client: c, workers: map[string]*Worker{}, strategies: map[string]Custom{}}
	rests := cfg.DisableNotify && cfg.PollInterval == 0
	cfg.fillIn(&bad)
	h.quarantineAfter, h.lease = cfg.QuarantineAfter, cfg.Lease
	rest := cfg.PollInterval
	if rests {
		rest = time.Second
	}
	if len(cfg.Queues) == 0 {
		bad.add("Queues", "is empty: nothing to claim from")
	}
	if len(cfg.Workers) == 0 {
		bad.add("Workers", "is empty: nothing could run")
	}
	for i, strategy := range cfg.Strategies {
		bad.strategy(fmt.Sprintf("Strategies[%d]", i), strategy)
		h.register(&bad, fmt.Sprintf("Strategies[%d]", i), strategy)
	}
	seen := map[string]bool{}
	queues := slices.Clone(cfg.Queues)
	for i := range queues {
		q := &queues[i]
		field := fmt.Sprintf("Queues[%d]", i)
		q.fillIn(&bad, field, cfg.CompletedRetention)
		if seen[q.Name] {
			bad.add(field+".Name", "%q is there twice", q.Name)
		}
		seen[q.Name] = true
		h.register(&bad, field+".Retry", q.Retry)
	}
	var kinds []string
	for i := range cfg.Workers {
		w := cfg.Workers[i]
		field := fmt.Sprintf("Workers[%d]", i)
		w.validate(&bad, field, cfg.Timeout)
		c.checkFollowUp(&bad, field, &w)
		if h.workers[w.kind] != nil && w.kind != "" {
			bad.add(field, "kind %q has a worker already", w.kind)
		}
		h.register(&bad, field+".Retry", w.opts.Retry)
		for j := range w.opts.Cases {
			h.register(&bad, fmt.Sprintf("%s.Cases[%d].Retry", field, j), w.opts.Cases[j].Retry)
		}
		h.workers[w.kind] = &w
		kinds = append(kinds, w.kind)
	}
	slices.Sort(kinds)
	for i := range queues {
		queues[i].Retry = h.resolve(&bad, fmt.Sprintf("Queues[%d].Retry", i), queues[i].Retry)
	}
	slices.SortFunc(queues, func(a, b Queue) int { return cmp.Compare(a.Name, b.Name) })
	for kind, w := range h.workers {
		w.opts.Retry = h.resolve(&bad, fmt.Sprintf("the worker of %q: Retry", kind), w.opts.Retry)
		for i := range w.opts.Cases {
			c := &w.opts.Cases[i]
			c.Retry = h.resolve(&bad, fmt.Sprintf("the worker of %q: Cases[%d].Retry", kind, i), c.Retry)
		}
	}
	schedules := c.encodeDeclared(&bad, cfg.Periodic)
	if err := bad.err(); err != nil {
		return nil, err
	}
	host, _ := os.Hostname() // only people read it, so it may be empty
	ec := engine.Config{
		Handler: h, Subscribers: c.subscribers(), Stacks: c.stacks, Log: c.log, Clean: func(text string) string { return c.clean(text, maxErrorText) },
		Keep:  store.Keeping{Completed: keepFor(cfg.CompletedRetention), Cancelled: keepFor(cfg.CancelledRetention)},
		Lease: cfg.Lease, PollInterval: cfg.PollInterval, RestInterval: rest, DrainTimeout: cfg.DrainTimeout, DisableNotify: cfg.DisableNotify,
		QuarantineAfter: cfg.QuarantineAfter, Host: host, Build: cfg.Build, Process: c.process, Schedules: schedules,
	}
	// Budgets are stored in the order of their scopes, because two supervisors that start together must not deadlock.
	ec.Budgets = appendBudget(ec.Budgets, store.ScopeAll, cfg.RetryBudget)
	for _, kind := range slices.Compact(kinds) {
		w := h.workers[kind]
		ec.Kinds = append(ec.Kinds, w.policy())
		ec.Ages = ec.Ages || w.opts.RetryFor > 0
		ec.Budgets = appendBudget(ec.Budgets, store.KindScope(kind), w.opts.RetryBudget)
	}
	for i := range queues {
		ec.Queues = append(ec.Queues, queues[i].forEngine(cfg.CompletedRetention))
	}
	return &Supervisor{client: c, handler: h, engine: engine.New(ec, c.desk.pool), completed: cfg.CompletedRetention}, nil
}

// Run claims and runs jobs until ctx is done. Then it drains: it claims no more jobs, releases the jobs that have not
// started, and waits up to DrainTimeout for running handlers. After that it cancels the contexts of the remaining
// handlers with the cause ErrShutdown and releases their jobs. Jobs with a single attempt are discarded instead. Run
// returns nil after a stop, at most DrainTimeout plus 5 s after ctx is done. All its goroutines have ended then, except
// handlers that ignored their context and hooks that have not returned. A Logger that blocks holds Run up. A Supervisor
// runs once.
//
// Run returns an error only if it cannot start and waiting would not help: ErrNotMigrated, ErrReadOnly,
// ErrServerTooOld, ErrPooler, an *InvalidError for a schedule that the database refuses or for a hook of the pool that
// changes a setting that drover needs, or an error of the server, such as its error for a wrong password. A second
// call is an error, too. If the server refuses connections or has no connections left, or if a lock is held too long,
// Run waits, at the start and later.
func (s *Supervisor) Run(ctx context.Context) error {
	if s.ran.Swap(true) {
		return errors.New("drover: a Supervisor runs once; make another")
	}
	s.client.running.add(s.engine)
	defer s.over.Store(true)
	defer s.client.running.remove(s.engine)
	return periodicError(s.engine.Run(ctx, s.logUnservedFollowUps))
}

// logUnservedFollowUps logs which follow-ups need another supervisor.
func (s *Supervisor) logUnservedFollowUps(ctx context.Context) {
	for _, kind := range slices.Sorted(maps.Keys(s.handler.workers)) {
		f := s.handler.workers[kind].opts.FollowUp
		if f != nil && (s.handler.workers[f.Kind] == nil || !s.engine.Serves(f.Queue)) {
			s.client.log.InfoContext(ctx, "follow-up is not served here, another supervisor must",
				slog.String("kind", kind), slog.String("follow_up", f.Kind), slog.String("queue", f.Queue))
		}
	}
}

// StopNow makes a Run that is stopping cancel its running jobs immediately, without draining. Call it, for example, on a
// second signal.
func (s *Supervisor) StopNow() { s.engine.StopNow() }

// AddQueue starts claiming from another queue. Errors: *InvalidError for a mistake in q, ErrShutdown.
func (s *Supervisor) AddQueue(ctx context.Context, q Queue) error {
	var bad problems
	q.fillIn(&bad, "Queue", s.completed)
	served := func() { bad.add("Queue.Name", "%q is served already", q.Name) }
	if s.engine.Serves(q.Name) {
		served()
	}
	if err := bad.err(); err != nil {
		return err
	}
	err := s.engine.AddQueue(ctx, q.forEngine(s.completed))
	switch {
	case errors.Is(err, engine.ErrServed): // another call has added the queue a moment ago
		served()
		return bad.err()
	case err == nil || errors.Is(err, ErrShutdown):
		return err
	}
	return fmt.Errorf("add queue %s: %w", q.Name, err)
}

// RemoveQueue stops claiming from a queue. Jobs that have not started are released, running jobs go on. A name that is
// not served is an *InvalidError.
func (s *Supervisor) RemoveQueue(ctx context.Context, name string) error {
	err := s.engine.RemoveQueue(ctx, name)
	switch {
	case errors.Is(err, engine.ErrNotServed):
		return &InvalidError{Field: "name", Reason: fmt.Sprintf("%q is not served here", name)}
	case err != nil:
		return fmt.Errorf("remove queue %s: %w", name, err)
	}
	return nil
}

// Stats are a supervisor's current figures.
type Stats struct {
	Running       int   // handlers at work
	Buffered      int   // jobs that are claimed and have not started
	Abandoned     int64 // handlers that ignored the end of their context, since Run was called
	DroppedEvents int64 // events that slow or hanging hooks, or a slow log, did not get, since Run was called
}

// Stats returns the supervisor's current figures. It may be called at any time.
func (s *Supervisor) Stats() Stats {
	running, buffered, abandoned, dropped := s.engine.Stats()
	return Stats{running, buffered, abandoned, dropped}
}

// Healthy returns nil if the supervisor works, or an error that names the problem. There are four such problems: Run
// has not been called or has returned; the supervisor is still starting; no heartbeat has reached the database for most
// of a lease; claiming jobs or recording outcomes has failed for a third of a lease (SupervisorConfig.Lease). The error
// wraps the database's error, or ErrShutdown once Run has returned. A supervisor that drains is healthy until Run
// returns. So is a supervisor that has nothing to do, or whose jobs fail.
//
// Healthy reads only memory, and may be called at any time from any goroutine.
func (s *Supervisor) Healthy() error {
	what, err := s.ailment()
	switch {
	case what == "":
		return nil
	case err != nil:
		return fmt.Errorf("drover: the supervisor %s: %w", what, err)
	}
	return fmt.Errorf("drover: the supervisor %s", what)
}

// ailment returns a text that names the problem, and the error that caused it, if any. The text is empty if the supervisor
// is healthy.
func (s *Supervisor) ailment() (what string, err error) {
	switch {
	case !s.ran.Load():
		return "has not been started by Run", nil
	case s.over.Load():
		return "has stopped", ErrShutdown
	}
	return s.engine.Ailment()
}

// Probe returns a handler for the probes of a platform: 200 and "ok" while Healthy returns nil, otherwise 503 and a
// line that names the problem, without the database's error. Use it for readiness and for alerts. Do not use it for
// liveness: a supervisor recovers from an outage of the database by itself. A restart does not bring the database back,
// and costs each running job an attempt.
func (s *Supervisor) Probe() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		if what, _ := s.ailment(); what != "" {
			http.Error(w, "the supervisor "+what, http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, "ok\n") // the client may have gone
	})
}
