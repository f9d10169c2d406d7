package meters

import (
	"errors"
	"slices"
	"sync"

	"github.com/drover-queue/drover"
)

// The gauges of a process.
const (
	Healthy Gauge = iota
	HandlersRunning
	JobsBuffered
	HandlersAbandoned
	EventsDropped
	gaugesOfProcess
)

// OfProcess returns the definitions of the gauges of this process. The index of a definition is its Gauge.
func OfProcess() []Def {
	defs := [gaugesOfProcess]Def{
		Healthy:           {Name: "supervisors_healthy", Unit: "{supervisor}", Help: "Watched supervisors of this process, by whether Supervisor.Healthy returns nil. A supervisor that has stopped is not counted.", Labels: []string{"healthy"}},
		HandlersRunning:   {Name: "handlers_running", Unit: "{handler}", Help: "Handlers that run in this process."},
		JobsBuffered:      {Name: "jobs_buffered", Unit: "{job}", Help: "Jobs that this process has claimed and not started."},
		HandlersAbandoned: {Name: "handlers_abandoned", Unit: "{handler}", Help: "Handlers of this process that ignored the end of their context.", Grows: true},
		EventsDropped:     {Name: "events_dropped", Unit: "{event}", Help: "Events that a subscriber of this process did not get, because one of its hooks is slow or hangs.", Grows: true},
	}
	return defs[:]
}

// Process adds up the figures of the supervisors of this process.
type Process struct {
	mu      sync.Mutex
	watched bool // Watch was called with a supervisor, which may have stopped since
	sups    []*drover.Supervisor
	stopped drover.Stats // the sums of the supervisors that have stopped, because counters must not go back
}

// Watch adds a supervisor, once. It ignores a supervisor that has stopped: Collect may have added up its figures
// already.
func (p *Process) Watch(sup *drover.Supervisor) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Contains(p.sups, sup) && !errors.Is(sup.Healthy(), drover.ErrShutdown) {
		p.watched, p.sups = true, append(p.sups, sup)
	}
}

// Collect passes on the sums, or nothing if no supervisor was ever watched. A supervisor that has stopped counts
// neither as healthy nor as unhealthy. Only its counters stay in the sums.
func (p *Process) Collect(see See) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.watched {
		return
	}
	var running drover.Stats
	var healthy, unhealthy float64
	p.sups = slices.DeleteFunc(p.sups, func(sup *drover.Supervisor) bool {
		err := sup.Healthy()
		over := errors.Is(err, drover.ErrShutdown)
		sum := &running
		switch {
		case over:
			sum = &p.stopped
		case err == nil:
			healthy++
		default:
			unhealthy++
		}
		stats := sup.Stats() // read after Healthy: the counters of a supervisor that has stopped do not change
		sum.Running += stats.Running
		sum.Buffered += stats.Buffered
		sum.Abandoned += stats.Abandoned
		sum.DroppedEvents += stats.DroppedEvents
		return over
	})
	see(Healthy, healthy, "true")
	see(Healthy, unhealthy, "false")
	see(HandlersRunning, float64(running.Running))
	see(JobsBuffered, float64(running.Buffered))
	see(HandlersAbandoned, float64(running.Abandoned+p.stopped.Abandoned))
	see(EventsDropped, float64(running.DroppedEvents+p.stopped.DroppedEvents))
}
