package engine

import (
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Stacks takes the stacks of handlers shortly before their time is up. A later stack would not show where the handler
// spent its time, because a handler that obeys its context has moved on by then. All supervisors of a client share one
// Stacks.
//
// Taking stacks stops the whole process, heartbeats included, for some 70 µs per goroutine (measured on a busy
// machine). So Stacks stops it at most once a second, for at most a twentieth of the time, and never if the stop could
// take more than a hundredth of the lease.
type Stacks struct {
	mu   sync.Mutex
	next time.Time
}

const (
	stackLead   = 25 * time.Millisecond // how long before the timeout a stack is taken; at most a quarter of the timeout
	stackPause  = time.Second
	stackShare  = 20
	leaseShare  = 100
	stackTime   = 70 * time.Microsecond
	stackBytes  = 4 << 10  // room for the stack of each goroutine; if the stacks need more, the last ones are cut off
	mostStacks  = 16 << 20 // the most bytes of all stacks together
	mostOfStack = 16 << 10 // the most bytes that are kept of a handler's stack
)

// affordable reports whether a process with this number of goroutines may be stopped to take stacks.
func affordable(goroutines int, lease time.Duration) bool {
	return time.Duration(goroutines)*stackTime <= lease/leaseShare
}

// goroutineID returns the number of the calling goroutine, as stacks show it.
func goroutineID() uint64 {
	var head [40]byte
	return numberOf(string(head[:runtime.Stack(head[:], false)]))
}

// numberOf reads the number of a goroutine at the head of its stack. It returns 0 if there is no number.
func numberOf(stack string) uint64 {
	_, rest, _ := strings.Cut(stack, " ")
	digits, _, _ := strings.Cut(rest, " ")
	n, _ := strconv.ParseUint(digits, 10, 64)
	return n
}

// take takes all stacks, if that is allowed now. The keys of the map wanted are the numbers of goroutines. Each
// function in the map gets the stack of its goroutine.
func (s *Stacks) take(wanted map[uint64]func(stack string), now time.Time, lease time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := runtime.NumGoroutine()
	if now.Before(s.next) || !affordable(n, lease) {
		return
	}
	began := time.Now()
	buf := make([]byte, min(64<<10+n*stackBytes, mostStacks))
	all := string(buf[:runtime.Stack(buf, true)])
	s.next = now.Add(max(stackPause, stackShare*time.Since(began)))
	for one := range strings.SplitSeq(all, "\n\n") {
		if note := wanted[numberOf(one)]; note != nil {
			note(strings.Clone(one[:min(len(one), mostOfStack)]))
		}
	}
}
