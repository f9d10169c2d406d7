package drover

import (
	"context"
	"log/slog"
	"time"
)

// redriver carries on redrives, whoever started them: every supervisor ticks, the database lets one at a time do it.
type redriver struct {
	sup    *Supervisor
	signal chan struct{}
}

func newRedriver(s *Supervisor) *redriver { return &redriver{sup: s, signal: make(chan struct{}, 1)} }

// poke makes it look: a redrive was started, or a heartbeat saw one under way.
func (r *redriver) poke() {
	select {
	case r.signal <- struct{}{}:
	default:
	}
}

const (
	paceTimeout = 5 * time.Second // of one tick
	paceRetry   = time.Second     // after a failed one
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
		if idle {
			timer.Stop()
		} else {
			timer.Reset(wait)
		}
	}
}

func (r *redriver) tick(ctx context.Context) (wait time.Duration, idle bool) {
	ticking, cancel := context.WithTimeout(ctx, paceTimeout)
	defer cancel()
	wait, idle, released, err := r.sup.client.store.pace(ticking)
	if err != nil {
		if ctx.Err() == nil {
			r.sup.log.WarnContext(ctx, "redrive did not go on, will be tried again", slog.String("error", err.Error()))
		}
		return paceRetry, false
	}
	if released > 0 {
		r.sup.claimer.noteDue(r.sup.now())
		r.sup.reporter.tell(told{eventRedriven, Event{Supervisor: r.sup.lease.Load().id, Count: int(released)}})
	}
	return wait, idle
}
