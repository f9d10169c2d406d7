package drover

import (
	"context"
	"slices"
	"sync"
)

// registry is what supervisors of a client run.
type registry struct {
	mu   sync.Mutex
	sups map[*Supervisor]bool
}

func newRegistry() *registry { return &registry{sups: map[*Supervisor]bool{}} }

func (r *registry) add(s *Supervisor) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sups[s] = true
}

func (r *registry) remove(s *Supervisor) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sups, s)
}

// cancel ends a running job's context in this process.
func (r *registry) cancel(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := range r.sups {
		s.cancelRun(id)
	}
}

// wake tells this process' own supervisors of jobs that are due: quicker than the database can.
func (r *registry) wake(jobs ...*newJob) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := range r.sups {
		names := s.queueNames()
		if slices.ContainsFunc(jobs, func(j *newJob) bool { return j.dueNow() && slices.Contains(names, j.Queue) }) {
			s.claimer.wake()
		}
	}
}

// redrive tells this process' own supervisors that there is a redrive to carry on.
func (r *registry) redrive() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := range r.sups {
		s.redriver.poke()
	}
}

// reporter hands events to the hooks in order, in a goroutine of its own: a hook that blocks must not block jobs.
type reporter struct {
	mu     sync.Mutex
	events []told
	closed bool
	ready  chan struct{}
	once   sync.Once
}

func (r *reporter) signal() chan struct{} {
	r.once.Do(func() { r.ready = make(chan struct{}, 1) })
	return r.ready
}

func (r *reporter) tell(events ...told) {
	r.mu.Lock()
	r.events = append(r.events, events...)
	r.mu.Unlock()
	r.poke()
}

func (r *reporter) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.poke()
}

func (r *reporter) poke() {
	select {
	case r.signal() <- struct{}{}:
	default:
	}
}

func (r *reporter) run(ctx context.Context, c *Client) {
	for range r.signal() {
		r.mu.Lock()
		events, closed := r.events, r.closed
		r.events = nil
		r.mu.Unlock()
		for _, t := range events {
			c.emit(ctx, t)
		}
		if closed {
			return
		}
	}
}
