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
		s.cancelRun(id)
	}
}

// wake tells one of this process' own supervisors of each queue and kind in which jobs are due: quicker than the database can.
func (r *registry) wake(jobs ...*newJob) {
	r.mu.Lock()
	defer r.mu.Unlock()
	told := map[[2]string]bool{}
	for s := range r.sups { // in any order
		names := s.queues.names()
		for _, j := range jobs {
			of := [2]string{j.Queue, j.Kind}
			if !told[of] && j.dueNow() && s.workers[j.Kind] != nil && !s.holds.Load().job(j.Queue, j.Kind) && slices.Contains(names, j.Queue) {
				told[of] = true
				s.claimer.ring(j.Queue)
			}
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

// tick tells this process' own supervisors to look at the schedules.
func (r *registry) tick() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := range r.sups {
		s.scheduler.poke()
	}
}

// followLimits makes this process' own supervisors that hear no notifications look at the limits.
func (r *registry) followLimits() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := range r.sups {
		if s.cfg.DisableNotify {
			s.alarm.interrupt()
		}
	}
}
