package drover

import (
	"fmt"
	"io"
	"net/http"
)

// Healthy returns nil if the supervisor works, or an error that names the problem. It is an error if Run has not been
// called or has returned, if the supervisor is still starting, if no heartbeat has reached the database for most of a
// lease, and if claiming jobs or recording outcomes has failed for a third of a lease (SupervisorConfig.Lease). The error
// wraps the database's, or ErrShutdown once Run has returned. A supervisor that drains is healthy until Run returns. So is a
// supervisor that has nothing to do, or whose jobs fail.
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

// ailment returns what is wrong, empty if nothing is, and the error behind it, if there is one.
func (s *Supervisor) ailment() (what string, err error) {
	switch {
	case !s.ran.Load():
		return "has not been started by Run", nil
	case s.over.Load():
		return "has stopped", ErrShutdown
	}
	return s.engine.Ailment()
}

// Probe returns a handler for the probes of a platform: 200 and "ok" while Healthy returns nil, else 503 and a line that
// names the problem, without the database's error. Use it for readiness and for alerts. Do not use it for liveness: a
// supervisor recovers from an outage of the database by itself. A restart does not bring the database back, and costs
// each running job an attempt.
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
