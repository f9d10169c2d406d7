// Package drive runs supervisors and waits for their results. The bench and the demo of the command, the module bench
// and the fault suite share it.
package drive

import (
	"context"
	"time"

	"github.com/drover-queue/drover"
)

// Supervise runs a supervisor until the caller calls end. The function end waits until the supervisor has stopped. The
// returned context is done with ctx, after end, or if the supervisor fails: then its cause is the supervisor's error.
func Supervise(ctx context.Context, client *drover.Client, config drover.SupervisorConfig) (_ context.Context, end func() error, err error) {
	config.DrainTimeout = time.Second
	sup, err := client.NewSupervisor(config)
	if err != nil {
		return nil, nil, err
	}
	running, fail := context.WithCancelCause(ctx)
	stopping, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { // the function end waits for this goroutine
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

// Poll calls a function again and again until it returns true.
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

// Pause waits for d. If the context is done before, it returns the context's cause.
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
