package drover_test

import (
	"fmt"
	"time"

	"github.com/drover-queue/drover"
)

// waits are those of five jobs that fail at the same time.
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
