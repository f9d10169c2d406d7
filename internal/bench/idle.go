package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/drive"
)

// idle counts the statements and commits of a supervisor without a job.
func (s *scratch) idle(ctx context.Context, r *Report) (err error) {
	s.progress("idle: watching a supervisor for %v", s.IdleFor)
	if err := s.meter.extend(ctx, r); err != nil {
		return err
	}
	handler := func(context.Context, *drover.Job, noop) error { return nil }
	running, end, err := drive.Supervise(ctx, s.client, drover.SupervisorConfig{
		Queues: []drover.Queue{{}}, Workers: []drover.Worker{drover.Handle(handler, drover.WorkerOpts{})},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	if err := s.awaitSleep(running); err != nil {
		return err
	}
	// At first the supervisor's polls are still getting rarer, and sessions report their commits up to ten seconds
	// late.
	if err := drive.Pause(running, s.IdleFor+s.IdleFor/5); err != nil {
		return err
	}
	before, err := s.meter.read(running)
	if err != nil {
		return err
	}
	if err := drive.Pause(running, s.IdleFor); err != nil {
		return err
	}
	after, err := s.meter.read(running)
	if err != nil {
		return err
	}
	spent := after.since(before)
	r.IdleCommits = per(max(spent.commits, 0), s.IdleFor.Seconds(), 2)
	if s.meter.statements != "" {
		r.IdleStatements = per(spent.statements, s.IdleFor.Seconds(), 2)
	}
	return nil
}

const inFlight = 2000

// memory measures how much the process grows while many jobs run.
func (s *scratch) memory(ctx context.Context, r *Report) (err error) {
	s.progress("memory: %d jobs in flight", inFlight)
	if _, err := rss(); err != nil {
		r.note("no rss_growth_mib: " + err.Error())
		return nil
	}
	fill := filler(1 << 10)
	for range inFlight / 200 {
		batch := make([]drover.EnqueueItem, 200)
		for i := range batch {
			batch[i].Args = noop{N: i, Fill: fill()}
		}
		if _, err := s.client.EnqueueMany(ctx, batch); err != nil {
			return err
		}
	}
	debug.FreeOSMemory() // memory that earlier steps have left would hide the growth
	before, err := rss()
	if err != nil {
		return err
	}
	var calls atomic.Int64
	release := make(chan struct{})
	handler := func(_ context.Context, _ *drover.Job, args noop) error {
		calls.Add(1)
		<-release
		runtime.KeepAlive(args)
		return nil
	}
	running, end, err := s.supervise(ctx, inFlight, handler)
	if err != nil {
		return err
	}
	defer func() {
		close(release)
		err = errors.Join(err, end())
	}()
	err = drive.Poll(running, 5*time.Millisecond, func() (bool, error) { return calls.Load() == inFlight, nil })
	if err != nil {
		return fmt.Errorf("wait for the jobs: %w", err)
	}
	after, err := rss()
	if err != nil {
		return err
	}
	r.RSSGrowthMiB = new(round(float64(after-before)/(1<<20), 1))
	return nil
}

// rss returns the resident memory of this process, from a file that only Linux has.
func rss() (int64, error) {
	raw, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, fmt.Errorf("read the resident memory: %w", err)
	}
	fields := strings.Fields(string(raw))
	if len(fields) < 2 {
		return 0, fmt.Errorf("read the resident memory: %q", raw)
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}
