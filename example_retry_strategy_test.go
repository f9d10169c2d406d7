package drover_test

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/drover-queue/drover"
)

func ExampleExponential() {
	// Chosen for one worker in WorkerOpts.Retry, or for one job in EnqueueOpts.Retry.
	retry := drover.Exponential{Base: 2 * time.Second, Max: time.Minute, Jitter: drover.NoJitter}
	fmt.Println(drover.Schedule(retry, "01ARZ3NDEKTSV4RRFFQ69G5FAV", 8))
	// Output: [2s 4s 8s 16s 32s 1m0s 1m0s]
}

func ExampleLinear() {
	retry := drover.Linear{Step: time.Minute}
	fmt.Println(drover.Schedule(retry, "01ARZ3NDEKTSV4RRFFQ69G5FAV", 5))
	// Output: [1m0s 2m0s 3m0s 4m0s]
}

func ExampleConstant() {
	retry := drover.Constant{Delay: 10 * time.Second, Jitter: drover.EqualJitter}
	for _, wait := range drover.Schedule(retry, "01ARZ3NDEKTSV4RRFFQ69G5FAV", 4) {
		fmt.Println(wait >= 5*time.Second && wait < 10*time.Second)
	}
	// Output:
	// true
	// true
	// true
}

func ExampleEvery() {
	fmt.Println(drover.Schedule(drover.Every(5*time.Second), "01ARZ3NDEKTSV4RRFFQ69G5FAV", 4))
	// Output: [5s 5s 5s]
}

// Fibonacci minutes up to 21, and no retry for a file that is not there.
func ExampleCustom() {
	fibonacci := drover.Custom{
		Name: "fibonacci",
		Func: func(f drover.FailedRun) (time.Duration, bool) {
			if errors.Is(f.Err, fs.ErrNotExist) {
				return 0, false
			}
			wait, next := time.Minute, 2*time.Minute
			for range min(f.RetryIndex, 10) {
				wait, next = next, wait+next
			}
			return wait, true
		},
		Max: 21 * time.Minute,
	}
	fmt.Println(drover.Schedule(fibonacci, "01ARZ3NDEKTSV4RRFFQ69G5FAV", 10))
	// Output: [1m0s 2m0s 3m0s 5m0s 8m0s 13m0s 21m0s 21m0s 21m0s]
}

// The default, with the jitter that this very job will get.
func ExampleSchedule() {
	for i, wait := range drover.Schedule(drover.DefaultRetry(), "01ARZ3NDEKTSV4RRFFQ69G5FAV", 5) {
		fmt.Printf("after run %d: %v\n", i+1, wait.Round(time.Millisecond))
	}
	// Output:
	// after run 1: 16.926s
	// after run 2: 32.01s
	// after run 3: 1m10.806s
	// after run 4: 2m12.119s
}

func ExampleTotalDelay() {
	fmt.Println(drover.TotalDelay(drover.DefaultRetry(), 20))
	fmt.Println(drover.TotalDelay(drover.Exponential{Base: 2 * time.Second}, 5))
	// Output:
	// 12h3m45s
	// 30s
}

func ExampleParseRetryAfter() {
	fmt.Println(drover.ParseRetryAfter("120"))
	fmt.Println(drover.ParseRetryAfter("Sun, 06 Nov 1994 08:49:37 GMT")) // past
	fmt.Println(drover.ParseRetryAfter("tomorrow"))
	// Output:
	// 2m0s
	// 0s
	// 0s
}

// A strategy from a flag or a file of settings.
func ExampleParseRetryStrategy() {
	strategy, err := drover.ParseRetryStrategy(`{"type": "linear", "step": "10s", "max": "1m", "jitter": "none"}`)
	fmt.Println(drover.TotalDelay(strategy, 4), err)
	// Output: 1m0s <nil>
}

// waits are the waits of five jobs that fail at the same time.
func waits(jitter drover.Jitter) (waits []time.Duration) {
	retry := drover.Constant{Delay: time.Minute, Jitter: jitter}
	for _, job := range []string{"A", "B", "C", "D", "E"} {
		for _, wait := range drover.Schedule(retry, job, 2) {
			waits = append(waits, wait.Round(time.Second))
		}
	}
	return waits
}

func ExampleJitterUp() {
	fmt.Println(drover.JitterUp(0.25), waits(drover.JitterUp(0.25)))
	// Output: up:0.25 [1m3s 1m10s 1m11s 1m13s 1m8s]
}

func ExampleJitterDown() {
	fmt.Println(drover.JitterDown(0.25), waits(drover.JitterDown(0.25)))
	// Output: down:0.25 [48s 55s 56s 58s 53s]
}

func ExampleJitterSymmetric() {
	fmt.Println(drover.JitterSymmetric(0.25), waits(drover.JitterSymmetric(0.25)))
	// Output: symmetric:0.25 [51s 1m6s 1m6s 1m12s 1m1s]
}

func ExampleJitterAbs() {
	fmt.Println(drover.JitterAbs(10*time.Second), waits(drover.JitterAbs(10*time.Second)))
	// Output: abs:10s [54s 1m4s 1m4s 1m8s 1m0s]
}

func ExampleDefaultRetry() {
	fmt.Println(drover.TotalDelay(drover.DefaultRetry(), 20) == drover.TotalDelay(drover.Exponential{}, 20))
	// Output: true
}
