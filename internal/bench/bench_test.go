package bench

import (
	"testing"
	"time"
)

func TestPercentiles(t *testing.T) {
	t.Parallel()
	sample := make([]time.Duration, 200)
	for i := range sample {
		sample[len(sample)-1-i] = time.Duration(i+1) * time.Millisecond
	}
	if got := *percentiles(sample); got != (Percentiles{P50: 100, P99: 198, Max: 200}) {
		t.Errorf("%+v", got)
	}
	if got := *percentiles([]time.Duration{1500 * time.Microsecond}); got != (Percentiles{P50: 1.5, P99: 1.5, Max: 1.5}) {
		t.Errorf("%+v", got)
	}
}

// The handlers fail as expected: as often as fails picks, spread evenly.
func TestFailures(t *testing.T) {
	t.Parallel()
	for _, rate := range []float64{0, 0.001, 0.1, 1. / 3, 0.5, 0.99, 1} {
		s := &scratch{Options: &Options{Jobs: 10_000, FailRate: rate}}
		var failed, inFirstHalf int64
		for n := range s.Jobs {
			if s.fails(n) {
				failed++
				if n < s.Jobs/2 {
					inFirstHalf++
				}
			}
		}
		if failed != s.failures(s.Jobs) {
			t.Errorf("rate %v: %d jobs fail, %d are expected", rate, failed, s.failures(s.Jobs))
		}
		if d := failed - 2*inFirstHalf; d < -1 || d > 1 {
			t.Errorf("rate %v: %d of %d in the first half", rate, inFirstHalf, failed)
		}
	}
}

func TestCounters(t *testing.T) {
	t.Parallel()
	before := counters{wal: 100, images: 1, commits: 10, statements: 20, asked: 2}
	after := counters{wal: 350, images: 4, commits: 18, statements: 31, asked: 5}
	if got := after.since(before); got != (counters{wal: 250, images: 3, commits: 5, statements: 8}) {
		t.Errorf("%+v", got)
	}
}

func TestRSS(t *testing.T) {
	t.Parallel()
	n, err := rss()
	if err == nil && n < 1<<20 {
		t.Errorf("%d bytes", n)
	}
}
