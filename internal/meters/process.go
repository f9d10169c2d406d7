package meters

import (
	"slices"
	"sync"

	"github.com/drover-queue/drover"
)

// The gauges of a process.
const (
	HandlersRunning Gauge = iota
	JobsBuffered
	HandlersAbandoned
	EventsDropped
)

// OfProcess are the definitions of what runs in this process.
func OfProcess() []Def {
	return []Def{
		HandlersRunning:   {"handlers_running", "{handler}", "Handlers that run in this process.", nil, false},
		JobsBuffered:      {"jobs_buffered", "{job}", "Jobs that this process has claimed and not started.", nil, false},
		HandlersAbandoned: {"handlers_abandoned", "{handler}", "Handlers of this process that ignored the end of their context.", nil, true},
		EventsDropped:     {"events_dropped", "{event}", "Events that a subscriber of this process was not told, because one of its hooks is slow or hangs.", nil, true},
	}
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

// Collect tells the sums, or nothing if no supervisor is watched.
func (p *Process) Collect(see See) {
	p.mu.Lock()
	sups := slices.Clone(p.sups)
	p.mu.Unlock()
	if len(sups) == 0 {
		return
	}
	var sum drover.Stats
	for _, sup := range sups {
		stats := sup.Stats()
		sum.Running += stats.Running
		sum.Buffered += stats.Buffered
		sum.Abandoned += stats.Abandoned
		sum.DroppedEvents += stats.DroppedEvents
	}
	see(HandlersRunning, float64(sum.Running))
	see(JobsBuffered, float64(sum.Buffered))
	see(HandlersAbandoned, float64(sum.Abandoned))
	see(EventsDropped, float64(sum.DroppedEvents))
}
