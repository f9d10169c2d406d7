package drover

import (
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
		s.engine.Cancel(id)
	}
}

// wake tells this process' own supervisors of jobs that are due: quicker than the database can.
func (r *registry) wake(jobs ...*newJob) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := range r.sups {
		s.engine.Wake(func(queue string) bool {
			return slices.ContainsFunc(jobs, func(j *newJob) bool { return j.dueNow() && j.Queue == queue })
		})
	}
}

// redrive tells this process' own supervisors that there is a redrive to carry on.
func (r *registry) redrive() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := range r.sups {
		s.engine.Redrive()
	}
}
