package preview

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-queue/drover"
)

func nothing(context.Context, *drover.Job, work) error { return nil }

func simulate(t *testing.T, o Outage) *Result {
	t.Helper()
	if err := o.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	r, err := o.Simulate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// T-2: outages that can be computed by hand. Ten jobs, one in each of ten seconds.
func TestOutages(t *testing.T) {
	t.Parallel()
	every := func(d time.Duration) drover.RetryStrategy { return drover.Every(d) }
	for _, c := range []struct {
		name   string
		outage Outage
		want   Result
	}{
		{
			"all come back by themselves", // attempts at 0, 20, 40 and so on, and at 1, 21, …
			Outage{Settings: Settings{Retry: every(20 * time.Second)}, Rate: 1, Jobs: 10, Length: 30 * time.Second},
			Result{Caught: 10, Attempts: 30, Drained: 19 * time.Second, PeakDown: 1, PeakBack: 1, Enqueued: 10, Completed: 10, ByAttempt: []int{10, 10, 10}},
		},
		{
			"attempts run out", // at 20 s and later all are dead
			Outage{Settings: Settings{Retry: every(10 * time.Second), MaxAttempts: 2}, Rate: 1, Jobs: 10, Length: 15 * time.Second},
			Result{Caught: 10, Attempts: 20, Dead: 5, Drained: 4 * time.Second, PeakDown: 1, PeakBack: 1, Enqueued: 10, Completed: 5, Discarded: 5, ByAttempt: []int{10, 10}},
		},
		{
			"the dead return at a pace", // the five that died by 15 s, at 15, 15.5, … 17 s: attempts begin anew
			Outage{Settings: Settings{Retry: every(10 * time.Second), MaxAttempts: 2}, Rate: 1, Jobs: 10, Length: 15 * time.Second, Redrive: 2},
			Result{Caught: 10, Attempts: 25, Drained: 4 * time.Second, PeakDown: 1, PeakBack: 3, Enqueued: 10, Completed: 10, ByAttempt: []int{15, 10}},
		},
		{
			"time runs out", // the third attempt would come 20 s after the enqueue
			Outage{Settings: Settings{Retry: every(10 * time.Second), RetryFor: 19 * time.Second}, Rate: 1, Jobs: 10, Length: 15 * time.Second},
			Result{Caught: 10, Attempts: 20, Dead: 5, Drained: 4 * time.Second, PeakDown: 1, PeakBack: 1, Enqueued: 10, Completed: 5, Discarded: 5, ByAttempt: []int{10, 10}},
		},
		{
			"a capacity refuses the rest", // 10 in the first millisecond; 10 s later 4 are served, then 4, then 2
			Outage{Settings: Settings{Retry: every(10 * time.Second)}, Rate: 10_000, Jobs: 10, Length: 5 * time.Second, Capacity: 4},
			Result{Caught: 10, Attempts: 10 + 10 + 6 + 2, Drained: 25*time.Second + 900*time.Microsecond, PeakDown: 10, PeakBack: 10, Refused: 6 + 2, Enqueued: 10, Completed: 10, ByAttempt: []int{10, 10, 6, 2}},
		},
		{
			"a budget spreads them", // ten at once; retries due at 11, 11.5, … 15.5 s by the calendar
			Outage{Settings: Settings{Retry: every(11 * time.Second), Budget: drover.RetryBudget{Retries: 2, Per: time.Second}}, Rate: 1e6, Jobs: 10, Length: 5 * time.Second},
			Result{Caught: 10, Attempts: 20, Drained: 10500 * time.Millisecond, PeakDown: 10, PeakBack: 2, Enqueued: 10, Completed: 10, ByAttempt: []int{10, 10}},
		},
		{
			"a budget discards", // one Per has two slots, of which the first begins before the retry of the second job
			Outage{Settings: Settings{Retry: every(11 * time.Second), Budget: drover.RetryBudget{Retries: 2, Per: time.Second, Discard: true}}, Rate: 1e6, Jobs: 10, Length: 5 * time.Second},
			Result{Caught: 10, Attempts: 13, Dead: 7, Drained: 7 * time.Second, PeakDown: 10, PeakBack: 2, Enqueued: 10, Completed: 3, Discarded: 7, ByAttempt: []int{10, 3}},
		},
		{
			"a budget's wait counts against the time", // slots at 11, 11.5 and 12 s
			Outage{Settings: Settings{Retry: every(11 * time.Second), RetryFor: 12 * time.Second, Budget: drover.RetryBudget{Retries: 2, Per: time.Second}}, Rate: 1e6, Jobs: 10, Length: 5 * time.Second},
			Result{Caught: 10, Attempts: 13, Dead: 7, Drained: 7 * time.Second, PeakDown: 10, PeakBack: 2, Enqueued: 10, Completed: 3, Discarded: 7, ByAttempt: []int{10, 3}},
		},
		{
			"new jobs go on until those of the outage have ended", // at 10 s; 20 more are served at once
			Outage{Settings: Settings{Retry: every(10 * time.Second)}, Rate: 2, Length: 5 * time.Second},
			Result{Caught: 10, Attempts: 20, Drained: 9500 * time.Millisecond, PeakDown: 2, PeakBack: 4, Enqueued: 30, Completed: 30, ByAttempt: []int{30, 10}},
		},
		{
			"the service is back in the middle of a second", // five attempts before, five after
			Outage{Settings: Settings{Retry: every(10 * time.Second)}, Rate: 10, Jobs: 10, Length: 500 * time.Millisecond},
			Result{Caught: 5, Attempts: 10, Drained: 9900 * time.Millisecond, PeakDown: 5, PeakBack: 5, Enqueued: 10, Completed: 10, ByAttempt: []int{10, 5}},
		},
		{
			"new jobs are refused too", // 6 of 10; at 10 s 12 of 16 are refused, at 20 s 8 of 12; the last two end at 30 s
			Outage{Settings: Settings{Retry: every(10 * time.Second)}, Rate: 10_000, Jobs: 20, Length: time.Millisecond, Capacity: 4},
			Result{
				Caught: 10, Attempts: 10 + 10 + 6 + 2, Drained: 30*time.Second - 100*time.Microsecond, PeakDown: 10, PeakBack: 16, Refused: 6 + 12 + 8,
				Delayed: 6, Enqueued: 20, Completed: 14, Waiting: 6, ByAttempt: []int{20, 16, 12, 2},
			},
		},
		{
			"all are dead before the end",
			Outage{Settings: Settings{MaxAttempts: 1}, Rate: 1, Jobs: 3, Length: time.Minute},
			Result{Caught: 3, Attempts: 3, Dead: 3, PeakDown: 1, Enqueued: 3, Discarded: 3, ByAttempt: []int{3}},
		},
	} {
		got := simulate(t, c.outage)
		got.Load = Load{}
		if !reflect.DeepEqual(*got, c.want) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", c.name, *got, c.want)
		}
	}
}

// T-2: whatever the outage, no job is lost, no second has more served than the capacity, and a seed is the whole chance.
func TestOutagesKeepTheirPromises(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		chance := rand.New(rand.NewPCG(seed, 2)) //nolint:gosec // the same every time
		o := anyOutage(chance)
		if err := o.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		var served []int64
		most, ends := 0, map[int]int{} // most served in any second; how often each job was served
		s, err := o.run(t.Context(), terms{jobs: MaxJobs, attempts: MaxAttempts, see: func(n int, at int64, ok bool) {
			if !ok {
				return
			}
			ends[n]++
			served = append(served, at)
			recent := len(served) - 1
			for recent > 0 && at-served[recent-1] < second {
				recent--
			}
			most = max(most, len(served)-recent)
		}})
		if err != nil {
			t.Fatalf("%+v: %v", o, err)
		}
		r := s.Result
		attempts := 0
		for _, n := range r.ByAttempt {
			attempts += n
		}
		redriven := r.ByAttempt[0] - r.Enqueued
		switch {
		case r.Completed+r.Discarded+r.Waiting != r.Enqueued || r.Waiting != len(s.events) || r.Waiting < 0:
			t.Errorf("%+v: lost: %+v, %d wait", o, r, len(s.events))
		case len(served) != r.Completed || len(ends) != r.Completed || len(served) > 0 && served[0] < o.Length.Microseconds():
			t.Errorf("%+v: %d of %d jobs were served, first at %d", o, len(ends), r.Completed, served[0])
		case o.Capacity > 0 && most > o.Capacity:
			t.Errorf("%+v: %d served in a second", o, most)
		case r.Attempts > attempts || r.Attempts < r.Caught || redriven < 0 || redriven > 0 && o.Redrive == 0 || r.Dead > min(r.Discarded, r.Caught):
			t.Errorf("%+v: %+v", o, r)
		case r.Refused > 0 != (o.Capacity > 0 && r.PeakBack > o.Capacity):
			t.Errorf("%+v: %d refused, %d at worst", o, r.Refused, r.PeakBack)
		case o.Jobs > 0 && r.Enqueued > o.Jobs:
			t.Errorf("%+v: enqueued %d", o, r.Enqueued)
		}
		again, err := o.Simulate(t.Context())
		if err != nil || !reflect.DeepEqual(r, *again) {
			t.Errorf("%+v: %+v, and again %+v, %v", o, r, again, err)
		}
	}
}

// anyOutage is a small outage of any shape.
func anyOutage(chance *rand.Rand) Outage {
	upTo := func(d time.Duration) time.Duration { return time.Duration(1 + chance.Int64N(int64(d))) }
	jitters := []drover.Jitter{"", drover.NoJitter, drover.FullJitter, drover.EqualJitter, drover.JitterSymmetric(0.5)}
	jitter := jitters[chance.IntN(len(jitters))]
	strategies := []drover.RetryStrategy{
		nil,
		drover.Exponential{Base: upTo(time.Minute), Max: upTo(time.Hour), Jitter: jitter},
		drover.Linear{Step: upTo(time.Minute), Jitter: jitter},
		drover.Constant{Delay: upTo(time.Minute), Jitter: jitter},
	}
	o := Outage{
		Settings: Settings{Retry: strategies[chance.IntN(len(strategies))], MaxAttempts: chance.IntN(25)},
		Rate:     0.5 + 10*chance.Float64(), Length: time.Second + upTo(3*time.Minute), Seed: chance.Uint64(),
	}
	if chance.IntN(2) == 0 {
		o.Jobs = 1 + chance.IntN(5000)
	}
	if chance.IntN(3) > 0 {
		o.Capacity = int(o.Rate) + 1 + chance.IntN(20)
	}
	if chance.IntN(3) == 0 {
		o.RetryFor = upTo(time.Hour)
	}
	if chance.IntN(2) == 0 {
		o.Budget = drover.RetryBudget{Retries: 1 + chance.IntN(1000), Discard: chance.IntN(2) == 0}
		o.Budget.Burst = 1 + chance.IntN(o.Budget.Retries)
	}
	if chance.IntN(2) == 0 {
		o.Redrive = 0.5 + 50*chance.Float64()
	}
	return o
}

// T-2: jitter spreads what comes back together, and a budget bounds it.
func TestWhatHelps(t *testing.T) {
	t.Parallel()
	base := Outage{Settings: Settings{Retry: drover.Every(time.Minute)}, Rate: 1e6, Jobs: 6000, Length: 90 * time.Second}
	herd := simulate(t, base)
	base.Retry = drover.Constant{Delay: time.Minute, Jitter: drover.JitterUp(0.5)}
	spread := simulate(t, base)
	base.Budget = drover.RetryBudget{Retries: 3000}
	bounded := simulate(t, base)
	if herd.PeakBack != 6000 || spread.PeakBack < 150 || spread.PeakBack > 300 || bounded.PeakBack != 50 {
		t.Errorf("peaks: %d, with jitter %d, with a budget of 50 a second %d", herd.PeakBack, spread.PeakBack, bounded.PeakBack)
	}
}

func TestOutageIsChecked(t *testing.T) {
	t.Parallel()
	good := Outage{Rate: 10, Length: time.Minute, Capacity: 11}
	for _, c := range []struct {
		change func(*Outage)
		want   string
	}{
		{func(*Outage) {}, ""},
		{func(o *Outage) { o.Rate = 0 }, "Rate: 0 is not 0.001"},
		{func(o *Outage) { o.Jobs = -1 }, "Jobs: -1 is not 1"},
		{func(o *Outage) { o.Length = 0 }, "Length: 0s is not 1 ms"},
		{func(o *Outage) { o.Capacity = -1 }, "Capacity: -1 is not 1"},
		{func(o *Outage) { o.Capacity = 10 }, "Capacity: 10 a second is not more than the 10 new jobs a second"},
		{func(o *Outage) { o.Capacity, o.Jobs = 10, 100 }, ""},
		{func(o *Outage) { o.Redrive = 5001 }, "Redrive: 5001 is not 0.001 to 5,000 a second"},
		{func(o *Outage) { o.Rate, o.MaxAttempts = -1, -1 }, "MaxAttempts: -1 is negative; 1 means never retry\ndrover: Rate: -1 is not"},
	} {
		o := good
		c.change(&o)
		switch err := o.Check(t.Context()); {
		case err == nil && c.want != "", err != nil && (c.want == "" || !strings.Contains(err.Error(), c.want)):
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}

// What is too large ends soon, with an error; so does a simulation that nobody waits for.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]Outage{
		"1001 jobs, at most 1000":                 {Rate: 1001, Length: time.Second},
		"over 5000 attempts in the first ":        {Rate: 1000, Jobs: 10, Length: time.Hour, Settings: Settings{Retry: drover.Every(1), MaxAttempts: drover.Unlimited}},
		"the backlog is not gone after 1000 jobs": {Rate: 100, Length: time.Second, Capacity: 101, Settings: Settings{Retry: drover.Every(time.Hour)}},
	} {
		if _, err := o.run(t.Context(), terms{jobs: 1000, attempts: 5000}); !errors.Is(err, ErrTooLarge) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if _, err := (Outage{Rate: 50, Length: 24 * time.Hour}).Simulate(t.Context()); !errors.Is(err, ErrTooLarge) {
		t.Errorf("4,320,000 jobs: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (Outage{Rate: 1, Length: time.Second}).Simulate(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// The load keeps the worst second, however often its columns are halved.
func TestLoadKeepsTheWorstSecond(t *testing.T) {
	t.Parallel()
	var s seconds
	for at := range int64(10_000) {
		s.add(at, true)
	}
	for range 7 {
		s.add(10_000, false)
	}
	load := s.load()
	worst := 0
	for _, c := range load.Columns {
		worst = max(worst, c.Failed)
	}
	if n := len(load.Columns); n > 66 || n < 33 || load.Step != 256*time.Second || worst != 7 {
		t.Errorf("%d columns of %v, at worst %d", n, load.Step, worst)
	}
}

func TestEventsComeInOrder(t *testing.T) {
	t.Parallel()
	chance := rand.New(rand.NewPCG(1, 1)) //nolint:gosec // the same every time
	var h events
	for n := range 1000 {
		h.push(event{chance.Int64N(300), n})
	}
	var got []event
	for len(h) > 0 {
		got = append(got, h.pop())
	}
	if !slices.IsSortedFunc(got, func(a, b event) int {
		if a.before(b) {
			return -1
		}
		return 1
	}) || len(got) != 1000 {
		t.Errorf("%d events, not in order", len(got))
	}
}

func BenchmarkSimulate(b *testing.B) {
	for _, jobs := range []int{10_000, 1_000_000} {
		b.Run(fmt.Sprint(jobs), func(b *testing.B) {
			o := Outage{Rate: float64(jobs) / 2000, Jobs: jobs, Length: 20 * time.Minute}
			for b.Loop() {
				r, err := o.Simulate(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(r.Enqueued), "jobs/op")
			}
		})
	}
}
