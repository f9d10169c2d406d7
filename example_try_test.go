package drover_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/drover-queue/drover"
)

// A handler alone, without a database.
func ExampleWorker_Try() {
	worker := drover.Handle(func(_ context.Context, job *drover.Job, c Charge) error {
		if job.Attempt > 2 {
			return drover.Discard(errors.New("account closed"))
		}
		return errors.New("the bank is busy")
	}, drover.WorkerOpts{})
	for attempt := 2; attempt <= 3; attempt++ {
		v := worker.Try(context.Background(), &drover.Job{Attempt: attempt, Args: []byte(`{"OrderID": 42}`)})
		fmt.Println(worker.Kind(), v.Kind, v.Cause)
	}
	// Output:
	// charge error the bank is busy
	// charge discard account closed
}
