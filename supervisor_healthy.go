package drover

import (
	"fmt"
	"io"
	"net/http"
	"time"
)

// Healthy returns nil if the supervisor works, or else what is wrong with it: it does not run yet or
// any more, no heartbeat has reached the database for most of a lease, or what it does there, such
// as claiming jobs or recording outcomes, has failed for a third of a lease (SupervisorConfig.Lease).
// The error wraps the database's. Healthy reads nothing, takes no time, and may be called at any
// time from any goroutine. A supervisor that drains is healthy until Run returns.
//
// A supervisor gets over an outage of the database by itself, so do not let an unhealthy one be
// restarted: see Probe.
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

// ailment is what is wrong, empty if nothing is, and the database's error behind it.
func (s *Supervisor) ailment() (what string, err error) {
	now, l := s.now(), s.lease.Load()
	failing, any := s.outage.longest(now.Add(-s.cfg.Lease))
	if any {
		err = failing.err
	}
	since := func(at time.Time) time.Duration { return now.Sub(at).Round(time.Millisecond) }
	switch {
	case !s.ran.Load():
		return "has not been started by Run", nil
	case s.over.Load():
		return "has stopped", nil
	case l == nil:
		return "is still starting", err
	case l.ended.Load() || !now.Before(l.until()):
		return fmt.Sprintf("has no lease: its heartbeats have not reached the database for %v", since(l.until().Add(-s.cfg.Lease*4/5))), err
	case any && since(failing.since) > s.cfg.Lease/3:
		return fmt.Sprintf("has failed at %s for %v", failing.what, since(failing.since)), err
	}
	return "", nil
}

// Probe returns a handler for the probes of a platform or a load balancer: 200 and "ok" while Healthy
// returns nil, else 503 and a line that says what is wrong, without the database's error. Use it to
// alert or to hold a rollout back. As a liveness probe it would do harm: a restart does not bring
// the database back, and each one costs the jobs that run an attempt.
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
