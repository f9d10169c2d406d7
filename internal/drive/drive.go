// Package drive runs supervisors and waits for what they do: what drover bench and the module bench share.
package drive

import (
	"context"
	"time"

	"github.com/drover-queue/drover"
)

// Supervise runs a supervisor until end is called, which waits for it. The context that comes back is done when the
// supervisor fails, with its error as the cause.
func Supervise(ctx context.Context, client *drover.Client, config drover.SupervisorConfig) (_ context.Context, end func() error, err error) {
	config.DrainTimeout = time.Second
	sup, err := client.NewSupervisor(config)
	if err != nil {
		return nil, nil, err
	}
	running, fail := context.WithCancelCause(ctx)
	stopping, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { // end waits for it
		err := sup.Run(stopping)
		if err != nil {
			fail(err)
		}
		ended <- err
	}()
	return running, func() error {
		stop()
		err := <-ended
		fail(nil)
		return err
	}, nil
}

// Poll asks again and again until the answer is yes.
func Poll(ctx context.Context, every time.Duration, done func() (bool, error)) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if yes, err := done(); yes || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// Pause waits, or returns why the context is done.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
