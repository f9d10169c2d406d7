package engine

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// redriver carries on the redrives of all processes. The redriver of every supervisor ticks, and the database lets only
// one of them work at a time.
type redriver struct {
	*Shared
	signal             // makes the redriver tick: a redrive was started, a heartbeat saw a redrive under way, or a run has made room for a redriven job
	capped atomic.Bool // a redrive has a cap by key, so a job that ends may make room for another job of its key

	// Only the goroutine that ticks uses these.
	Batch   int // how many jobs one step of a tick takes up or releases: see store.Pace; fewer after a tick that was cut off
	Trouble Trouble
}

func newRedriver(s *Shared) *redriver {
	return &redriver{Shared: s, signal: newSignal(), Batch: paceBatch, Trouble: Trouble{means: "paced redrives stand still"}}
}

// ended makes the redriver tick if the end of a run may have made room for another redriven job.
func (r *redriver) ended(run *Run) {
	if run.Redrives > 0 && r.capped.Load() {
		r.poke()
	}
}

const (
	paceTimeout = 5 * time.Second       // the longest tick
	paceRetry   = time.Second           // the pause after a failed tick
	paceLeast   = 20 * time.Millisecond // the shortest pause between two ticks
	paceBatch   = 1000                  // the most jobs that one step of a tick takes up or releases
)

// run ticks while a redrive is under way. After that it waits for a poke.
func (r *redriver) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for await(ctx, timer.C, r.signal) {
		wait, idle := r.tick(ctx)
		if !await(ctx, time.After(paceLeast), nil) {
			return
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
	conn, done, err := store.Borrow(ticking, r.pool)
	var reply store.PaceReply
	if err == nil {
		reply, err = conn.Pace(ticking, r.Batch)
		done()
	}
	if err != nil {
		if ctx.Err() == nil {
			r.Failed(ctx, err)
		}
		return paceRetry, false
	}
	r.Worked(ctx, reply.Refused)
	r.capped.Store(reply.Capped)
	if reply.Released > 0 {
		r.alarm.NoteDue(r.Now())
		r.Reporter.add(&Event{Kind: EventRedriven, Supervisor: r.Lease.Load().ID, Count: int(reply.Released)})
	}
	return reply.Wait, reply.Idle
}

// Failed records a failed tick. If the tick was cut off by a time-out, the next tick works in smaller steps. Otherwise
// each tick could be cut off in the same way.
func (r *redriver) Failed(ctx context.Context, err error) {
	if errors.Is(err, context.DeadlineExceeded) || pg.SQLState(err) == "57014" {
		r.Batch = max(r.Batch/4, 1)
	}
	r.Trouble.Failed(ctx, r.Shared, "carrying on redrives", err)
}

// Worked records a tick that succeeded, and logs the jobs that the tick skipped.
func (r *redriver) Worked(ctx context.Context, refused []store.RedriveRefusal) {
	r.Batch = min(2*r.Batch, paceBatch)
	r.Trouble.Over(ctx, r.Shared)
	for _, job := range refused {
		r.log.WarnContext(ctx, "redrive skipped a job",
			slog.String("job_id", job.ID), slog.String("redrive", job.Redrive), slog.String("reason", job.Why))
	}
}
