package engine_test

import (
	"math"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// F-15: a number from a row, however large, becomes a duration of the same sign, and two of them still add up.
func TestNumbersBeyondAnyDuration(t *testing.T) {
	t.Parallel()
	for s, want := range map[float64]time.Duration{
		1.5: 1500 * time.Millisecond, -2: -2 * time.Second, 0: 0, 1e18: pg.MaxSpan, -1e18: -pg.MaxSpan, math.Inf(1): pg.MaxSpan, math.Inf(-1): -pg.MaxSpan,
		math.MaxFloat64: pg.MaxSpan, 2.5e11: pg.MaxSpan,
	} {
		if got := pg.Seconds(s); got != want {
			t.Errorf("seconds(%v) = %v, want %v", s, got, want)
		}
	}
	if got := pg.Seconds(math.NaN()); got != 0 {
		t.Errorf("seconds(NaN) = %v", got)
	}
	for ms, want := range map[int64]time.Duration{1500: 1500 * time.Millisecond, -1: -time.Millisecond, math.MaxInt64: pg.MaxSpan, math.MinInt64: -pg.MaxSpan, 0: 0} {
		if got := pg.Millis(ms); got != want {
			t.Errorf("millis(%d) = %v, want %v", ms, got, want)
		}
	}
	for us, want := range map[int64]time.Duration{1: time.Microsecond, -1_500_001: -1_500_001 * time.Microsecond, math.MaxInt64: pg.MaxSpan, math.MinInt64: -pg.MaxSpan} {
		if got := pg.Span(us, time.Microsecond); got != want {
			t.Errorf("%d microseconds = %v, want %v", us, got, want)
		}
	}
	if pg.Seconds(1e300)+pg.Millis(math.MaxInt64) < 0 {
		t.Error("the sum of two overflows")
	}
	j := store.Held{Flight: pg.MaxSpan}
	for range 20 {
		j.Before = append(j.Before, store.CrashEntry{DurationMS: math.MaxInt64}, store.CrashEntry{DurationMS: math.MinInt64})
	}
	if flight := j.Suspect().Flight; flight < 0 || flight > pg.MaxSpan {
		t.Errorf("mean flight %v", flight)
	}
}

// F-15: because of a job that is due in centuries nobody looks before an hour is over; a job that was due centuries
// ago counts as due.
func TestClaimOfAFarJob(t *testing.T) {
	t.Parallel()
	for s, want := range map[float64]time.Duration{2.5e11: time.Hour, 1e300: time.Hour, 7200: time.Hour, 60: time.Minute, -1e300: time.Microsecond, 0: time.Microsecond} {
		var reply store.ClaimReply
		row := store.ClaimRow{Reply: &reply, SecondsToNext: pgtype.Float8{Float64: s, Valid: true}}
		if row.Add(); reply.NextDue != want {
			t.Errorf("%v s ahead: next due in %v, want %v", s, reply.NextDue, want)
		}
	}
}

// Whatever number a row holds: its duration has its sign, keeps the order of numbers, is as close as a duration can be,
// and two of them add up.
func FuzzSpan(f *testing.F) {
	for _, n := range []float64{0, 0.5, -1, 1e-10, 9.3e9, 9.2233720368e9, 2.5e11, 1e300, math.MaxFloat64, math.Inf(1), math.Inf(-1), math.NaN()} {
		f.Add(n, int64(n))
	}
	f.Add(0.0, int64(math.MaxInt64))
	f.Add(0.0, int64(math.MinInt64))
	f.Fuzz(func(t *testing.T, s float64, n int64) {
		for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
			got, limit := pg.Span(s, unit), float64(pg.MaxSpan/unit)
			switch {
			case got > pg.MaxSpan || got < -pg.MaxSpan || got+got > 0 != (got > 0):
				t.Fatalf("span(%v, %v) = %v", s, unit, got)
			case s != s:
				if got != 0 {
					t.Fatalf("span(NaN, %v) = %v", unit, got)
				}
			case math.Abs(s) < limit && math.Abs(float64(got)-s*float64(unit)) > 1+math.Abs(s*float64(unit))*1e-9:
				t.Fatalf("span(%v, %v) = %v", s, unit, got)
			case s > 1 && got < unit, s < -1 && got > -unit, pg.Span(s/2, unit) > got && s > 0:
				t.Fatalf("span(%v, %v) = %v: sign or order", s, unit, got)
			}
			if whole := pg.Span(n, unit); float64(n) < limit && float64(n) > -limit && (whole/unit != time.Duration(n) || whole%unit != 0) {
				t.Fatalf("span(%d, %v) = %v", n, unit, whole)
			}
		}
	})
}

// The time-outs in a row end up within the bounds of both, as a claim reads it.
func TestTimeoutsBeyondAnyDuration(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	db.exec(t, `
insert into jobs (kind, queue, args, timeout_ms, retry_until, created_at)
select 'job', 'default', '{}', t, r, '0001-01-01 00:00:00Z'
from unnest(array[1, 9223372036854775807]) t, unnest(array['0001-01-01 00:00:00Z', '9999-12-31 00:00:00Z', '294276-12-31 00:00:00Z']::timestamptz[]) r`)
	unbounded := 0
	for i := range 20 {
		runs := s.claim(t)
		for _, r := range runs {
			if r.Timeout == 0 {
				unbounded++
			}
			if r.Timeout < 0 || r.Timeout > maxTimeout || r.TimeLeft > pg.MaxSpan || r.TimeLeft < -pg.MaxSpan || r.Unreadable != nil {
				t.Errorf("timeout %v, time left %v, unreadable %v", r.Timeout, r.TimeLeft, r.Unreadable)
			}
		}
		if len(runs) == 0 && i > 5 {
			break
		}
	}
	if n := value[int](t, db, `select count(*) from jobs where state = 'running'`); n != 6 || unbounded != 3 {
		t.Errorf("claimed %d jobs of 6, %d of 3 without a timeout", n, unbounded)
	}
}

// A dead job that may be retried until the last year there is can be redriven.
func TestRedriveOfFarRetryUntil(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	for _, until := range []string{"0001-01-01 00:00:00Z", "9999-12-31 00:00:00Z", "294276-12-31 00:00:00Z"} {
		id := value[string](t, db, `
insert into jobs (kind, state, discard_reason, class, created_at, finalized_at, retry_until)
values ('job', 'discarded', 'panic', 'error', '0001-01-01 00:00:00Z', now(), '`+until+`') returning id`)
		if err := db.client.RedriveJob(t.Context(), id, nil, drover.Audit{}); err != nil {
			t.Errorf("retry until %s: %v", until, err)
		}
	}
}

// F-15: with jobs in the queue that are due in centuries or never, an idle supervisor looks as rarely as without them.
func TestIdleBesideAFarJob(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.exec(t, `insert into jobs (kind, scheduled_at, state) select 'job', d::timestamptz, 'scheduled' from unnest('{2318-12-31,2400-01-01,9999-12-31,294276-12-31,infinity}'::text[]) d`)
	traced, counted := db.traced(t, drover.Config{})
	traced.launch(t, drover.SupervisorConfig{})
	db.Asleep(t)
	counted.Since()
	began := time.Now()
	harness.After(t, 4*time.Second)
	calls, _ := counted.Since()
	// It was 40 a second; other tests' transactions make it look now and then.
	if n, took := calls[store.SQLClaim], time.Since(began).Seconds(); float64(n) > 15*took {
		t.Errorf("%d claims in %.1f s", n, took)
	}
}
