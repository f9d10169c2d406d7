package drover

import (
	"math"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// F-15: a number from a row, however large, becomes a duration of the same sign, and two of them still add up.
func TestNumbersBeyondAnyDuration(t *testing.T) {
	t.Parallel()
	for s, want := range map[float64]time.Duration{
		1.5: 1500 * time.Millisecond, -2: -2 * time.Second, 0: 0, 1e18: maxSpan, -1e18: -maxSpan, math.Inf(1): maxSpan, math.Inf(-1): -maxSpan,
		math.MaxFloat64: maxSpan, 2.5e11: maxSpan,
	} {
		if got := seconds(s); got != want {
			t.Errorf("seconds(%v) = %v, want %v", s, got, want)
		}
	}
	if got := seconds(math.NaN()); got != 0 {
		t.Errorf("seconds(NaN) = %v", got)
	}
	for ms, want := range map[int64]time.Duration{1500: 1500 * time.Millisecond, -1: -time.Millisecond, math.MaxInt64: maxSpan, math.MinInt64: -maxSpan, 0: 0} {
		if got := millis(ms); got != want {
			t.Errorf("millis(%d) = %v, want %v", ms, got, want)
		}
	}
	if seconds(1e300)+millis(math.MaxInt64) < 0 {
		t.Error("the sum of two overflows")
	}
	j := heldJob{flight: maxSpan}
	for range 20 {
		j.before = append(j.before, crashEntry{DurationMS: math.MaxInt64}, crashEntry{DurationMS: math.MinInt64})
	}
	if flight := j.suspect().flight; flight < 0 || flight > maxSpan {
		t.Errorf("mean flight %v", flight)
	}
}

// F-15: because of a job that is due in centuries nobody looks before an hour is over; one that was due centuries ago
// counts as due.
func TestClaimOfAFarJob(t *testing.T) {
	t.Parallel()
	for s, want := range map[float64]time.Duration{2.5e11: time.Hour, 1e300: time.Hour, 7200: time.Hour, 60: time.Minute, -1e300: time.Microsecond, 0: time.Microsecond} {
		var reply claimReply
		row := claimRow{reply: &reply, secondsToNext: pgtype.Float8{Float64: s, Valid: true}}
		if row.add(); reply.nextDue != want {
			t.Errorf("%v s ahead: next due in %v, want %v", s, reply.nextDue, want)
		}
	}
}

// F-15: with a job in the queue that is due in the year 9999, an idle supervisor looks as rarely as without one.
func TestIdleBesideAFarJob(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.exec(t, `insert into jobs (kind, scheduled_at, state) values ('job', '9999-12-31', 'scheduled'), ('job', '294276-12-31', 'scheduled')`)
	traced, counted := db.traced(t, Config{})
	traced.launch(t, SupervisorConfig{})
	db.asleep(t)
	counted.since()
	after(t, 4*time.Second)
	calls, _ := counted.since()
	if n := calls[sqlClaim]; n > 60 { // it was 40 a second; other tests' transactions make it look now and then
		t.Errorf("%d claims in 4 s", n)
	}
	if !value[bool](t, db, `select bool_and(sleeps_until > now() + interval '50 min') from sleepers`) {
		t.Error("the supervisor does not sleep for an hour")
	}
}
