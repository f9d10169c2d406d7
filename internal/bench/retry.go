package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/drive"
	"github.com/drover-queue/drover/internal/plural"
)

// retry lets jobs fail once, with waits of 5 to 500 ms, and measures how late their second attempts begin.
func (s *scratch) retry(ctx context.Context, r *Report) (err error) {
	s.progress("retry: failing once: %s", plural.Of(s.Samples, "job"))
	offset, err := s.meter.clockOffset(ctx)
	if err != nil {
		return err
	}
	began := newArrivals(s.Samples)
	late := make([]time.Duration, s.Samples) // each handler writes one element, which is read after that handler's arrival
	handler := func(_ context.Context, job *drover.Job, args noop) error {
		now := time.Now()
		if job.Attempt == 1 {
			return errInjected
		}
		late[args.N] = now.Add(offset).Sub(job.ScheduledAt)
		began.note(args.N, now)
		return nil
	}
	running, end, err := s.supervise(ctx, 0, handler)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	for i := range s.Samples {
		wait := 5*time.Millisecond + time.Duration(i)*495*time.Millisecond/time.Duration(max(s.Samples-1, 1))
		if _, err := s.client.Enqueue(running, noop{N: i}, &drover.EnqueueOpts{Retry: drover.Constant{Delay: wait}}); err != nil {
			return err
		}
		if err := drive.Pause(running, 10*time.Millisecond); err != nil {
			return err
		}
	}
	if err := began.await(running, s.Samples); err != nil {
		return fmt.Errorf("wait for the retries: %w", err)
	}
	r.RetryLate = percentiles(late)
	return nil
}

// clockOffset returns how far the server's clock is ahead of this machine's clock. It makes some round trips and uses
// the quickest, so the result is wrong by at most half the time of that round trip.
func (m *meter) clockOffset(ctx context.Context) (offset time.Duration, err error) {
	quickest := time.Hour
	for range 20 {
		var server time.Time
		sent := time.Now()
		if err := m.row(ctx, `select clock_timestamp()`).Scan(&server); err != nil {
			return 0, fmt.Errorf("read the server's clock: %w", err)
		}
		if trip := time.Since(sent); trip < quickest {
			quickest, offset = trip, server.Sub(sent.Add(trip/2))
		}
	}
	return offset, nil
}
