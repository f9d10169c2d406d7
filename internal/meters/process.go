package meters

import (
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

// OfProcess returns the definitions of what runs in this process, by Gauge.
func OfProcess() []Def {
	defs := [gaugesOfProcess]Def{
		Healthy:           {Name: "supervisors_healthy", Unit: "{supervisor}", Help: "Watched supervisors of this process, by whether Supervisor.Healthy returns nil.", Labels: []string{"healthy"}},
		HandlersRunning:   {Name: "handlers_running", Unit: "{handler}", Help: "Handlers that run in this process."},
		JobsBuffered:      {Name: "jobs_buffered", Unit: "{job}", Help: "Jobs that this process has claimed and not started."},
		HandlersAbandoned: {Name: "handlers_abandoned", Unit: "{handler}", Help: "Handlers of this process that ignored the end of their context.", Grows: true},
		EventsDropped:     {Name: "events_dropped", Unit: "{event}", Help: "Events that a subscriber of this process did not get, because one of its hooks is slow or hangs.", Grows: true},
	}
	return defs[:]
}

// Process adds up the figures of the supervisors of this process.
type Process struct {
	mu   sync.Mutex
	sups []*drover.Supervisor
}

// Watch adds a supervisor, once.
func (p *Process) Watch(sup *drover.Supervisor) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Contains(p.sups, sup) {
		p.sups = append(p.sups, sup)
	}
}

// Collect passes on the sums, or nothing if no supervisor is watched.
func (p *Process) Collect(see See) {
	p.mu.Lock()
	sups := slices.Clone(p.sups)
	p.mu.Unlock()
	if len(sups) == 0 {
		return
	}
	var sum drover.Stats
	var healthy float64
	for _, sup := range sups {
		if sup.Healthy() == nil {
			healthy++
		}
		stats := sup.Stats()
		sum.Running += stats.Running
		sum.Buffered += stats.Buffered
		sum.Abandoned += stats.Abandoned
		sum.DroppedEvents += stats.DroppedEvents
	}
	see(Healthy, healthy, "true")
	see(Healthy, float64(len(sups))-healthy, "false")
	see(HandlersRunning, float64(sum.Running))
	see(JobsBuffered, float64(sum.Buffered))
	see(HandlersAbandoned, float64(sum.Abandoned))
	see(EventsDropped, float64(sum.DroppedEvents))
}
