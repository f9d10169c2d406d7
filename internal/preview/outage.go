package preview

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/plot"
)

// Outage is an outage of a service that jobs call. It begins with the first job. While it lasts every attempt fails.
// Afterwards the service serves Capacity attempts in any second, and refuses the others: these have failed too.
type Outage struct {
	Settings
	Rate     float64       // jobs enqueued in a second
	Jobs     int           // in all; 0: until every job that the outage caught has ended
	Length   time.Duration // of the outage
	Capacity int           // attempts in any second afterwards; 0: no limit
	Redrive  float64       // the dead letters there are when the service is back return at this rate; 0: they stay dead
	Seed     uint64        // of the jitter: another one is other jobs
}

// Result is what becomes of an outage. The jobs that it caught are those that were enqueued before its end.
type Result struct {
	Caught   int           // jobs that the outage caught
	Attempts int           // of these jobs
	Dead     int           // of these jobs, at the end
	Drained  time.Duration // from the service's return until the last of these jobs ended; 0: none was left then

	PeakDown int // most attempts in any second while the service was down
	PeakBack int // most attempts in any second afterwards
	Refused  int // attempts over the capacity
	Delayed  int // jobs enqueued after the outage that were refused at least once

	Enqueued, Completed, Discarded, Waiting int // all jobs, at the end

	ByAttempt []int // attempts of all jobs by number, the first at 0; after a redrive numbers begin anew
	Load      Load
}

// Load is what the service saw over time. It has at most plot.Columns columns, each of them the worst second in a Step.
type Load struct {
	Step    time.Duration
	Columns []plot.Second
}

const second = int64(time.Second / time.Microsecond)

// job is a simulated job that has begun.
type job struct {
	waits   []time.Duration // of the attempts so far, and some more
	began   int64           // its enqueue, or its redrive: what RetryFor counts from
	attempt int             // so far
	refused bool
}

// simulation is the state of one. Times are in microseconds since the beginning of the outage.
type simulation struct {
	Outage
	back     int64 // the end of the outage
	left     int   // jobs caught that have not ended
	jobs     []job
	events   events
	dead     []int // jobs that wait for their redrive, in the order of their deaths
	returned bool  // the service is back, and the redrive has begun
	calendar *calendar
	served   []int64 // a ring of the last Capacity
	recent   []int64 // attempts of the last second
	now      int64
	seconds  seconds
	attempts int
	terms    terms
	Result
}

// The bounds of an outage's numbers.
const (
	mostRate     = 1_000_000
	mostCapacity = 1_000_000
	mostLength   = 30 * 24 * time.Hour
)

// Check returns everything that is wrong with the outage, and what Settings.Check returns.
func (o Outage) Check(ctx context.Context) error {
	bad := []error{o.Settings.Check(ctx)}
	add := func(field, format string, args ...any) {
		bad = append(bad, &drover.InvalidError{Field: field, Reason: fmt.Sprintf(format, args...)})
	}
	if !(o.Rate >= 0.001 && o.Rate <= mostRate) { // not-a-number too
		add("Rate", "%v is not 0.001 to 1,000,000 a second", o.Rate)
	}
	if o.Jobs < 0 || o.Jobs > MaxJobs {
		add("Jobs", "%d is not 1 to 1,000,000", o.Jobs)
	}
	if o.Length < time.Millisecond || o.Length > mostLength {
		add("Length", "%v is not 1 ms to 30 days", o.Length)
	}
	switch {
	case o.Capacity < 0 || o.Capacity > mostCapacity:
		add("Capacity", "%d is not 1 to 1,000,000", o.Capacity)
	case o.Capacity > 0 && o.Jobs == 0 && float64(o.Capacity) <= o.Rate:
		add("Capacity", "%d a second is not more than the %v new jobs a second: the backlog would never go away", o.Capacity, o.Rate)
	}
	if o.Redrive != 0 && !(o.Redrive >= 0.001 && o.Redrive <= 5000) { // as RedrivePlan.Rate
		add("Redrive", "%v is not 0.001 to 5,000 a second", o.Redrive)
	}
	return errors.Join(bad...)
}

// Simulate runs the outage until every job that it caught has ended. The settings must have passed Check. It returns
// ErrTooLarge, wrapped, and the error of a ctx that ends meanwhile.
func (o Outage) Simulate(ctx context.Context) (*Result, error) {
	s, err := o.run(ctx, terms{jobs: MaxJobs, attempts: MaxAttempts})
	if err != nil {
		return nil, err
	}
	return &s.Result, nil
}

// terms bound a simulation, and may watch it.
type terms struct {
	jobs, attempts int
	see            func(n int, at int64, served bool) // gets each attempt of the n-th job; may be nil
	id             func(n int) string                 // of the n-th job; nil: made from the seed
}

func (o Outage) run(ctx context.Context, terms terms) (*simulation, error) {
	s := &simulation{Outage: o, terms: terms, back: o.Length.Microseconds(), calendar: newCalendar(o.Budget)}
	caught := math.Ceil(float64(s.back) * o.Rate / float64(second))
	if o.Jobs > 0 {
		caught = min(caught, float64(o.Jobs))
	}
	if most := max(caught, float64(o.Jobs)); most > float64(terms.jobs) {
		return nil, fmt.Errorf("%w: %.0f jobs, at most %d", ErrTooLarge, most, terms.jobs)
	}
	s.Caught = int(caught)
	s.left = s.Caught
	for s.left > 0 {
		if s.attempts%4096 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err := s.step(); err != nil {
			return nil, err
		}
	}
	s.Result.Waiting = s.Enqueued - s.Completed - s.Discarded
	s.Result.Load = s.seconds.load()
	return s, nil
}

// step runs the next attempt, of a new job before a retry.
func (s *simulation) step() error {
	arrives, due := s.arrival(), int64(math.MaxInt64)
	if len(s.events) > 0 {
		due = s.events[0].at
	}
	if next := min(arrives, due); !s.returned && next >= s.back {
		s.comeBack()
		return nil
	}
	if s.attempts++; s.attempts > s.terms.attempts {
		return fmt.Errorf("%w: over %d attempts in the first %v", ErrTooLarge, s.terms.attempts, time.Duration(s.now)*time.Microsecond)
	}
	if due < arrives {
		e := s.events.pop()
		s.now = e.at
		s.attempt(e.n)
		return nil
	}
	if len(s.jobs) == s.terms.jobs {
		return fmt.Errorf("%w: the backlog is not gone after %d jobs", ErrTooLarge, s.terms.jobs)
	}
	s.now = arrives
	s.Enqueued++
	s.jobs = append(s.jobs, job{began: arrives})
	s.attempt(len(s.jobs) - 1)
	return nil
}

// arrival is when the next job is enqueued.
func (s *simulation) arrival() int64 {
	if s.Outage.Jobs > 0 && len(s.jobs) == s.Outage.Jobs {
		return math.MaxInt64
	}
	return moment(len(s.jobs), s.Rate)
}

// moment is when the n-th comes, at a rate a second.
func moment(n int, rate float64) int64 { return int64(math.Round(float64(n) / rate * float64(second))) }

// comeBack begins the redrive of the jobs that are dead.
func (s *simulation) comeBack() {
	s.returned, s.recent = true, nil
	for i, n := range s.dead {
		at := s.back + moment(i, s.Redrive)
		s.Discarded--
		s.Dead--
		s.jobs[n].began, s.jobs[n].attempt = at, 0
		s.events.push(event{at, n})
	}
	s.dead = nil
}

func (s *simulation) attempt(n int) {
	j := &s.jobs[n]
	if j.attempt++; j.attempt > len(s.ByAttempt) {
		s.ByAttempt = append(s.ByAttempt, 0)
	}
	s.ByAttempt[j.attempt-1]++
	if n < s.Caught {
		s.Attempts++
	}
	served := s.serve()
	s.count(served)
	if s.terms.see != nil {
		s.terms.see(n, s.now, served)
	}
	if served {
		s.Completed++
		s.ended(n)
		return
	}
	if s.now >= s.back {
		s.Refused++
		if n >= s.Caught && !j.refused {
			j.refused = true
			s.Delayed++
		}
	}
	s.retry(n)
}

// serve reports whether the service accepts an attempt now.
func (s *simulation) serve() bool {
	switch {
	case s.now < s.back:
		return false
	case s.Capacity == 0:
		return true
	case len(s.served) < s.Capacity:
		s.served = append(s.served, s.now)
		return true
	}
	oldest := &s.served[s.Completed%s.Capacity]
	if s.now-*oldest < second {
		return false
	}
	*oldest = s.now
	return true
}

// retry is the end of a failed attempt, decided as a supervisor does.
func (s *simulation) retry(n int) {
	j := &s.jobs[n]
	wait, ok := s.wait(n)
	if ok && s.RetryFor > 0 && s.now-j.began+wait > s.RetryFor.Microseconds() {
		ok = false
	}
	due := s.now + wait
	if ok && s.calendar != nil {
		latest := int64(math.MaxInt64)
		if s.RetryFor > 0 {
			latest = s.RetryFor.Microseconds() - (s.now - j.began)
		}
		due, ok = s.calendar.reserve(s.now, wait, latest)
	}
	if ok {
		s.events.push(event{due, n})
		return
	}
	s.Discarded++
	j.waits = nil
	if n < s.Caught {
		s.Dead++
	}
	if s.Redrive > 0 && !s.returned {
		s.dead = append(s.dead, n)
		return
	}
	s.ended(n)
}

// wait is the strategy's wait after the newest attempt. It reports false after the last one.
func (s *simulation) wait(n int) (micros int64, ok bool) {
	j := &s.jobs[n]
	if j.attempt >= s.Settings.attempts() {
		return 0, false
	}
	if j.attempt > len(j.waits) {
		runs := min(max(2*j.attempt, 8), s.Settings.attempts())
		j.waits = drover.Schedule(s.Retry, s.id(n), runs)
	}
	if j.attempt > len(j.waits) { // a Custom has stopped
		return 0, false
	}
	return j.waits[j.attempt-1].Microseconds(), true
}

func (s *simulation) id(n int) string {
	if s.terms.id != nil {
		return s.terms.id(n)
	}
	return jobID(s.Seed, n)
}

func (s *simulation) ended(n int) {
	s.jobs[n].waits = nil
	if n < s.Caught {
		s.left--
		s.Drained = max(0, time.Duration(s.now-s.back)*time.Microsecond)
	}
}

// count notes an attempt in the load.
func (s *simulation) count(served bool) {
	first := 0
	for first < len(s.recent) && s.now-s.recent[first] >= second {
		first++
	}
	s.recent = append(s.recent[first:], s.now)
	s.seconds.add(s.now/second, served)
	if s.returned {
		s.PeakBack = max(s.PeakBack, len(s.recent))
	} else {
		s.PeakDown = max(s.PeakDown, len(s.recent))
	}
}
