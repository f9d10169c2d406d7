package drover

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

// redriver carries on redrives, whoever started them: every supervisor ticks, the database lets one at a time do it.
type redriver struct {
	sup    *Supervisor
	signal chan struct{}
	capped atomic.Bool // a redriven job that ends may make room for another of its key
}

func newRedriver(s *Supervisor) *redriver { return &redriver{sup: s, signal: make(chan struct{}, 1)} }

// poke makes it look: a redrive was started, a heartbeat saw one under way, or a place got free.
func (r *redriver) poke() {
	select {
	case r.signal <- struct{}{}:
	default:
	}
}

// ended notes that a job's run has ended.
func (r *redriver) ended(job *Job) {
	if job.Redrives > 0 && r.capped.Load() {
		r.poke()
	}
}

const (
	paceTimeout = 5 * time.Second       // of one tick
	paceRetry   = time.Second           // after a failed one
	paceLeast   = 20 * time.Millisecond // between two
)

// run ticks while a redrive is under way; the heartbeat says when there is one.
func (r *redriver) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-r.signal:
		}
		wait, idle := r.tick(ctx)
		least := time.NewTimer(paceLeast)
		select {
		case <-ctx.Done():
			least.Stop()
			return
		case <-least.C:
		}
		if idle {
			timer.Stop()
		} else {
			timer.Reset(max(wait-paceLeast, 0))
		}
	}
}

func (r *redriver) tick(ctx context.Context) (wait time.Duration, idle bool) {
	ticking, cancel := context.WithTimeout(ctx, paceTimeout)
	defer cancel()
	reply, err := r.sup.client.store.pace(ticking)
	if err != nil {
		if ctx.Err() == nil {
			r.sup.log.WarnContext(ctx, "redrive did not go on, will be tried again", slog.String("error", err.Error()))
		}
		return paceRetry, false
	}
	r.capped.Store(reply.capped)
	if reply.released > 0 {
		r.sup.claimer.noteDue(r.sup.now())
		r.sup.reporter.tell(told{eventRedriven, Event{Supervisor: r.sup.lease.Load().id, Count: int(reply.released)}})
	}
	return reply.wait, reply.idle
}
