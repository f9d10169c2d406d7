package drover

import (
	"runtime"
	"strings"
	"time"
)

// Where a handler was when its time was up. Shortly before that its stack is taken, because one that heeds its context has
// left the place afterwards.

// To take them stops the whole process, heartbeats included: by some 70 µs for each of its goroutines, measured on a busy
// machine. So it is done for at most a twentieth of the time, and not at all where it could take a hundredth of the lease.
const (
	mostStacks  = 16 << 20 // bytes
	stacksShare = 20
	leaseShare  = 100
	stackTime   = 70 * time.Microsecond
)

// affordable reports whether a process with so many goroutines may be stopped.
func affordable(goroutines int, lease time.Duration) bool {
	return time.Duration(goroutines)*stackTime <= lease/leaseShare
}

// goroutineID is the calling goroutine's number, as stack traces have it.
func goroutineID() string {
	var head [40]byte
	_, rest, _ := strings.Cut(string(head[:runtime.Stack(head[:], false)]), " ")
	id, _, _ := strings.Cut(rest, " ")
	return id
}

// stacks takes those of handlers. Owned by watch.
type stacks struct{ next time.Time }

// take notes the stacks of runs whose time is almost up.
func (s *stacks) take(runs []*run, now time.Time, lease time.Duration) {
	late := map[string]*run{}
	for _, r := range runs {
		if r.almostLate(now) && r.stack.Load() == nil && r.goroutine != "" {
			late[r.goroutine] = r
		}
	}
	if len(late) == 0 || now.Before(s.next) || !affordable(runtime.NumGoroutine(), lease) {
		return
	}
	began := time.Now()
	all := allStacks()
	s.next = now.Add(stacksShare * time.Since(began))
	for one := range strings.SplitSeq(all, "\n\n") {
		id, _, _ := strings.Cut(strings.TrimPrefix(one, "goroutine "), " ")
		if r := late[id]; r != nil {
			one = strings.Clone(one[:min(len(one), traceBuffer)])
			r.stack.Store(&one)
		}
	}
}

func allStacks() string {
	for size := 1 << 20; ; size *= 4 {
		buf := make([]byte, size)
		if n := runtime.Stack(buf, true); n < size || size >= mostStacks {
			return string(buf[:n])
		}
	}
}

// almostLate reports whether the next looks may come after the run's time, on a busy machine.
func (r *run) almostLate(now time.Time) bool {
	return r.timeout < maxTimeout && now.Sub(r.startedAt) > r.timeout-min(r.timeout/4, 5*watchInterval)
}
