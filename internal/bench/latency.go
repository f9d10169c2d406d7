package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/drive"
	"github.com/drover-queue/drover/internal/plural"
)

// arrivals notes when handlers began. It is safe for concurrent use.
type arrivals struct {
	mu   sync.Mutex
	at   map[int]time.Time
	come chan struct{} // gets one value for each arrival
}

func newArrivals(n int) *arrivals {
	return &arrivals{at: make(map[int]time.Time, n), come: make(chan struct{}, n)}
}

func (a *arrivals) note(n int, at time.Time) {
	a.mu.Lock()
	_, again := a.at[n]
	a.at[n] = at
	a.mu.Unlock()
	if !again {
		a.come <- struct{}{}
	}
}

// await waits for n more handlers to begin.
func (a *arrivals) await(ctx context.Context, n int) error {
	for range n {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-a.come:
		}
	}
	return nil
}

// latency enqueues jobs at a low rate, for a supervisor that has no other jobs. Then it enqueues jobs one by one, and
// waits before each job until the supervisor sleeps.
func (s *scratch) latency(ctx context.Context, r *Report) (err error) {
	asleep := max(s.Samples/8, 1)
	s.progress("latency: %s 20 ms apart, then %d to a supervisor that sleeps", plural.Of(s.Samples, "job"), asleep)
	n := s.Samples + asleep
	began := newArrivals(n)
	handler := func(_ context.Context, _ *drover.Job, job noop) error {
		began.note(job.N, time.Now())
		return nil
	}
	running, end, err := s.supervise(ctx, 0, handler)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()

	called := make([]time.Time, n)
	enqueue := func(i int) error {
		called[i] = time.Now()
		_, err := s.client.Enqueue(running, noop{N: i}, nil)
		return err
	}
	if err := s.awaitSleep(running); err != nil { // so that the supervisor has started
		return err
	}
	random := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // the same gaps every time
	for i := range s.Samples {
		if err := enqueue(i); err != nil {
			return err
		}
		if err := drive.Pause(running, 15*time.Millisecond+time.Duration(random.Int64N(int64(10*time.Millisecond)))); err != nil {
			return err
		}
	}
	if err := began.await(running, s.Samples); err != nil {
		return fmt.Errorf("wait for the jobs: %w", err)
	}
	for i := s.Samples; i < n; i++ {
		if err := s.awaitSleep(running); err != nil {
			return err
		}
		if err := enqueue(i); err != nil {
			return err
		}
		if err := began.await(running, 1); err != nil {
			return fmt.Errorf("wait for the jobs: %w", err)
		}
	}
	waits := make([]time.Duration, n)
	for i := range waits {
		waits[i] = began.at[i].Sub(called[i])
	}
	r.LatencyIdle = percentiles(append([]time.Duration(nil), waits[s.Samples:]...))
	r.Latency = percentiles(waits)
	return nil
}

const sqlAsleep = `select count(*) > 0 and bool_and(duty = 'on call') from drover_on_duty`

// awaitSleep waits until the supervisor is on call, which means that it sleeps.
func (s *scratch) awaitSleep(ctx context.Context) error {
	err := drive.Poll(ctx, 10*time.Millisecond, func() (asleep bool, err error) {
		err = s.meter.row(ctx, sqlAsleep).Scan(&asleep)
		return asleep, err
	})
	if err != nil {
		return fmt.Errorf("wait until the supervisor sleeps: %w", err)
	}
	return nil
}
