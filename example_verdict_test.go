package drover_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/drover-queue/drover"
)

// A metric counts failures, and a snooze is none.
func ExampleVerdictOf() {
	errBusy := errors.New("the carrier is busy")
	for _, err := range []error{
		nil,
		errBusy,
		drover.Snooze(time.Minute),
		fmt.Errorf("deliver parcel 7: %w", drover.RetryAfter(time.Hour, errBusy)),
	} {
		v := drover.VerdictOf(err)
		fmt.Println(v.Kind, v.Failed(), v.Delay, v.Cause)
	}
	// Output:
	// done false 0s <nil>
	// error true 0s the carrier is busy
	// snooze false 1m0s <nil>
	// retry_after true 1h0m0s the carrier is busy
}
