package engine

import (
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Stacks takes the stacks of handlers shortly before their time is up: a handler that heeds its context has left the
// place afterwards. All supervisors of a client share one.
//
// Taking stacks stops the whole process, heartbeats included: by some 70 µs for each of its goroutines, measured on a busy
// machine. So it is done at most once a second, for at most a twentieth of the time, and not at all if it could take a
// hundredth of the lease.
type Stacks struct {
	mu   sync.Mutex
	next time.Time
}

const (
	stackLead   = 25 * time.Millisecond // how long before the end of a handler's time; less if the time is short
	stackPause  = time.Second
	stackShare  = 20
	leaseShare  = 100
	stackTime   = 70 * time.Microsecond
	stackBytes  = 4 << 10  // of a goroutine, on average, at most
	mostStacks  = 16 << 20 // bytes
	mostOfStack = 16 << 10 // bytes of a handler's stack that are kept
)

// affordable reports whether a process with so many goroutines may be stopped.
func affordable(goroutines int, lease time.Duration) bool {
	return time.Duration(goroutines)*stackTime <= lease/leaseShare
}

// goroutineID returns the number of the calling goroutine, as stacks show it.
func goroutineID() uint64 {
	var head [40]byte
	return numberOf(string(head[:runtime.Stack(head[:], false)]))
}

// numberOf reads the number of a goroutine at the head of its stack. It is 0 if there is none.
func numberOf(stack string) uint64 {
	_, rest, _ := strings.Cut(stack, " ")
	digits, _, _ := strings.Cut(rest, " ")
	n, _ := strconv.ParseUint(digits, 10, 64)
	return n
}

// stackDue returns how long it is until the stack of the run's handler is to be taken. It returns false if it is not to
// be taken.
func (r *Run) stackDue(now time.Time) (left time.Duration, wanted bool) {
	if r.Timeout == 0 || r.goroutine == 0 || r.stack.Load() != nil {
		return 0, false
	}
	return r.Timeout - min(r.Timeout/4, stackLead) - now.Sub(r.StartedAt), true
}

// watch takes the stacks of the runs whose time is almost up, and returns how long the caller may sleep to be in time for
// the next.
func (s *Stacks) watch(runs []*Run, now time.Time, lease time.Duration) (sleep time.Duration) {
	sleep = watchInterval
	late := map[uint64]*Run{}
	for _, r := range runs {
		left, wanted := r.stackDue(now)
		switch {
		case !wanted:
		case left <= 0:
			late[r.goroutine] = r
		default:
			sleep = min(sleep, max(left, watchInterval/10))
		}
	}
	if len(late) > 0 {
		s.take(late, now, lease)
	}
	return sleep
}

// take notes the stacks of runs, by the number of their goroutines.
func (s *Stacks) take(late map[uint64]*Run, now time.Time, lease time.Duration) {
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
		r := late[numberOf(one)]
		if r == nil || r.phase.Load() != phaseStarted { // its goroutine may have gone on to another run
			continue
		}
		one = strings.Clone(one[:min(len(one), mostOfStack)])
		r.stack.Store(&one)
	}
}

// Stack returns where the run's handler was shortly before its time was up, "" if that is not known.
func (r *Run) Stack() string {
	if stack := r.stack.Load(); stack != nil {
		return *stack
	}
	return ""
}
