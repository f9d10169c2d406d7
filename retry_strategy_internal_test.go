package drover

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/oklog/ulid/v2"

	"github.com/drover-queue/drover/internal/pg"
)

var update = flag.Bool("update", false, "rewrite the goldens in testdata") //nolint:gochecknoglobals // go test parses flags before any test runs

// Every row of the table of default strategies, jitter off, defaults included, and the horizons of R-3.
func TestRetryScheduleGoldens(t *testing.T) {
	t.Parallel()
	type row struct {
		Name   string `json:"name"`
		Waits  string `json:"waits"`
		Total  string `json:"total"`
		waits  int
		policy RetryStrategy
	}
	rows := []row{
		{Name: "exponential 15 s, max 3600 s", waits: 10, policy: Exponential{Base: 15 * time.Second, Max: 3600 * time.Second}},
		{Name: "exponential 1 s, max 3600 s", waits: 10, policy: Exponential{Base: time.Second, Max: 3600 * time.Second}},
		{Name: "exponential 100 ms, max 30 s", waits: 10, policy: Exponential{Base: 100 * time.Millisecond, Max: 30 * time.Second}},
		{Name: "exponential 2 s", waits: 5, policy: Exponential{Base: 2 * time.Second}},
		{Name: "exponential 5 s", waits: 5, policy: Exponential{Base: 5 * time.Second}},
		{Name: "exponential 1 s, times 1.5", waits: 5, policy: Exponential{Base: time.Second, Multiplier: 1.5}},
		{Name: "exponential 1 s, times 10, max 2 min", waits: 5, policy: Exponential{Base: time.Second, Multiplier: 10, Max: 2 * time.Minute}},
		{Name: "linear 60 s", waits: 4, policy: Linear{Step: 60 * time.Second}},
		{Name: "linear 1 s", waits: 4, policy: Linear{Step: time.Second}},
		{Name: "linear 60 s, max 150 s", waits: 4, policy: Linear{Step: 60 * time.Second, Max: 150 * time.Second}},
		{Name: "constant 30 s", waits: 10, policy: Constant{Delay: 30 * time.Second}},
		{Name: "constant 5 s", waits: 10, policy: Constant{Delay: 5 * time.Second}},
		{Name: "constant 60 s", waits: 10, policy: Constant{Delay: 60 * time.Second}},
		{Name: "constant 500 ms", waits: 10, policy: Constant{Delay: 500 * time.Millisecond}},
		{Name: "constant 60 s, max 45 s", waits: 2, policy: Constant{Delay: 60 * time.Second, Max: 45 * time.Second}},
		{Name: "custom, Fibonacci minutes", waits: 10, policy: fibonacciMinutes()},
		{Name: "default exponential", waits: 19, policy: Exponential{}},
		{Name: "default linear", waits: 4, policy: Linear{}},
		{Name: "default constant", waits: 4, policy: Constant{}},
	}
	for i := range rows {
		r := &rows[i]
		var waits []string
		for _, d := range Schedule(withoutJitter(r.policy), "", r.waits+1) {
			waits = append(waits, durationText(d))
		}
		r.Waits = strings.Join(waits, " ")
		r.Total = durationText(TotalDelay(r.policy, r.waits+1))
	}
	goldenJSON(t, "retry_schedules.json", rows)
}

// The stored form, with every default filled in, and back.
func TestRetryStoredGoldens(t *testing.T) {
	t.Parallel()
	fib := fibonacciMinutes()
	var got []json.RawMessage
	for _, s := range []RetryStrategy{
		nil,
		Exponential{},
		Exponential{Base: 1500 * time.Microsecond, Multiplier: 1.5, Max: 90 * time.Minute, Jitter: NoJitter},
		Exponential{Base: math.MaxInt64, Multiplier: math.MaxFloat64, Max: math.MaxInt64, Jitter: "abs:1h0m0s"},
		Linear{},
		Linear{Step: 70 * time.Second, Max: 10 * time.Minute, Jitter: FullJitter},
		Constant{},
		Every(500 * time.Millisecond),
		Constant{Delay: time.Nanosecond, Max: 10 * time.Hour, Jitter: "symmetric:1e-1"},
		Custom{Name: "fibonacci"},
		Custom{Name: "fibonacci", Func: fib.Func, Max: time.Hour, Jitter: JitterDown(0.125)},
	} {
		raw, err := encodeStrategy(s)
		if err != nil {
			t.Errorf("encodeStrategy(%+v): %v", s, err)
			continue
		}
		got = append(got, raw)
		back, err := decodeStrategy(raw, map[string]Custom{"fibonacci": {Name: "fibonacci", Func: fib.Func}})
		if err != nil {
			t.Errorf("decodeStrategy(%s): %v", raw, err)
			continue
		}
		again, err := encodeStrategy(back)
		if err != nil || !bytes.Equal(again, raw) {
			t.Errorf("%s came back as %s, %v", raw, again, err)
		}
		if c, ok := s.(Custom); ok && c.Func == nil {
			continue // it knows no waits by itself
		}
		if was, is := Schedule(s, ulids(1)[0], 20), Schedule(back, ulids(1)[0], 20); !slices.Equal(was, is) {
			t.Errorf("%s waits %v, and %v after decoding", raw, was, is)
		}
	}
	goldenJSON(t, "retry_stored.json", got)
}

// The points jitter picks are a promise: previews made before an upgrade must hold after it.
func TestRetryJitterGoldens(t *testing.T) {
	t.Parallel()
	got := map[string][]string{}
	for _, id := range []string{"", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "01ARZ3NDEKTSV4RRFFQ69G5FAW"} {
		for a, d := range Schedule(DefaultRetry(), id, 13) {
			got[id] = append(got[id], fmt.Sprintf("%d: %v", a+1, d))
		}
	}
	goldenJSON(t, "retry_jitter.json", got)
}

func TestDefaultRetryIsFifteenSecondsDoubledToAnHour(t *testing.T) {
	t.Parallel()
	want := []byte(`{"type":"exponential","base":"15s","multiplier":2,"max":"1h","jitter":"up:0.25"}`)
	if got, err := encodeStrategy(DefaultRetry()); err != nil || !bytes.Equal(got, want) {
		t.Errorf("DefaultRetry is stored as %s, %v; want %s", got, err, want)
	}
	id := ulids(1)[0]
	explicit := Exponential{Base: 15 * time.Second, Multiplier: 2, Max: time.Hour, Jitter: JitterUp(0.25)}
	if zero, full := Schedule(Exponential{}, id, 20), Schedule(explicit, id, 20); !slices.Equal(zero, full) {
		t.Errorf("Exponential{} waits %v, with its defaults written out %v", zero, full)
	}
	for _, s := range []RetryStrategy{Linear{}, Constant{}, Custom{Func: fibonacciMinutes().Func}} {
		if with, without := Schedule(s, id, 5), Schedule(withoutJitter(s), id, 5); !slices.Equal(with, without) {
			t.Errorf("%T jitters by default: %v, want %v", s, with, without)
		}
	}
}

func TestTotalDelay(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		s    RetryStrategy
		runs int
		want time.Duration
	}{
		{Exponential{Base: 2 * time.Second}, 5, 30 * time.Second},
		{nil, 20, 43_425 * time.Second},
		{Exponential{Base: time.Second}, 11, 1023 * time.Second},
		{Exponential{}, 1, 0},
		{Exponential{}, 0, 0},
		{Exponential{}, math.MinInt, 0},
		{Every(time.Minute), 3, 2 * time.Minute},
		{Constant{Delay: math.MaxInt64, Jitter: JitterUp(1)}, math.MaxInt32, maxBackoff},
		{Linear{Jitter: FullJitter}, math.MaxInt32, maxBackoff},
		{Custom{Func: func(f FailedRun) (time.Duration, bool) { return time.Second, f.Attempt < 3 }, Jitter: JitterUp(1)}, 10, 2 * time.Second},
	} {
		if got := TotalDelay(test.s, test.runs); got != test.want {
			t.Errorf("TotalDelay(%+v, %d) = %v, want %v", test.s, test.runs, got, test.want)
		}
	}
}

// Schedule shows the waits that runs get, one after the other.
func TestScheduleIsWhatHappens(t *testing.T) {
	t.Parallel()
	id := ulids(1)[0]
	grow := func(f FailedRun) (time.Duration, bool) { return f.LastDelay + time.Second, f.Attempt < 6 }
	for _, s := range []RetryStrategy{
		Exponential{}, Linear{Jitter: FullJitter}, Constant{Jitter: EqualJitter}, Custom{Func: grow, Jitter: JitterUp(1)},
	} {
		preview := Schedule(s, id, 10)
		last := time.Duration(0)
		for i, want := range preview {
			got, ok, err := s.delay(FailedRun{Attempt: i + 1, Err: errors.New("down"), Job: &Job{ID: id}, LastDelay: last})
			if got != want || !ok || err != nil {
				t.Errorf("%T after run %d: %v, %v, %v; Schedule said %v", s, i+1, got, ok, err, want)
			}
			last = got
		}
		want := 9
		if _, custom := s.(Custom); custom {
			want = 5 // it stops there
		}
		if len(preview) != want {
			t.Errorf("%T: %d waits between 10 runs, want %d", s, len(preview), want)
		}
	}
	if got := Schedule(nil, id, 3); !slices.Equal(got, Schedule(Exponential{}, id, 3)) {
		t.Errorf("Schedule(nil) = %v, want the default's", got)
	}
	for _, runs := range []int{1, 0, -1} {
		if got := Schedule(Exponential{}, id, runs); len(got) != 0 {
			t.Errorf("Schedule for %d runs = %v, want none", runs, got)
		}
	}
}

// Every jitter on every variant, 100,000 jobs each. The bounds are written out here, not taken from the code.
func TestJitterStaysInItsBounds(t *testing.T) {
	t.Parallel()
	const wait = 40 * time.Second
	jitters := []struct {
		j      Jitter
		lo, hi time.Duration // of 40 s; hi is excluded
	}{
		{NoJitter, wait, wait + 1},
		{FullJitter, 0, wait},
		{EqualJitter, 20 * time.Second, wait},
		{JitterUp(0.25), wait, 50 * time.Second},
		{JitterUp(1), wait, 80 * time.Second},
		{JitterDown(0.25), 30 * time.Second, wait},
		{JitterDown(1), 0, wait},
		{JitterSymmetric(0.1), 36 * time.Second, 44 * time.Second},
		{JitterSymmetric(1), 0, 80 * time.Second},
		{JitterAbs(100 * time.Millisecond), wait - 100*time.Millisecond, wait + 100*time.Millisecond},
		{JitterAbs(time.Minute), 0, 100 * time.Second},
	}
	ids := ulids(100_000)
	for _, test := range jitters {
		for name, s := range map[string]RetryStrategy{
			"exponential": Exponential{Base: wait / 4, Jitter: test.j},
			"linear":      Linear{Step: wait / 2, Max: wait, Jitter: test.j},
			"constant":    Constant{Delay: wait, Jitter: test.j},
			"custom":      Custom{Func: func(FailedRun) (time.Duration, bool) { return wait, true }, Jitter: test.j},
		} {
			t.Run(fmt.Sprintf("%s/%s", name, test.j), func(t *testing.T) {
				t.Parallel()
				lo, hi := time.Duration(math.MaxInt64), time.Duration(0)
				for _, id := range ids {
					f := FailedRun{Attempt: 3, Err: errPreview, Job: &Job{ID: id}}
					d, ok, err := s.delay(f)
					if !ok || err != nil {
						t.Fatalf("job %s: %v, %v", id, ok, err)
					}
					if again, _, _ := s.delay(f); again != d {
						t.Fatalf("job %s: %v, then %v", id, d, again)
					}
					lo, hi = min(lo, d), max(hi, d)
				}
				if lo < test.lo || hi >= test.hi {
					t.Errorf("100,000 waits span %v to %v, want %v to %v", lo, hi, test.lo, test.hi)
				}
				if width := test.hi - test.lo; width > 1 && hi-lo < width*999/1000 {
					t.Errorf("100,000 waits span %v to %v, want the whole of %v to %v", lo, hi, test.lo, test.hi)
				}
			})
		}
	}
}

// A seed gave all jobs that failed in one second one jitter. ULIDs of one millisecond that count up are the
// closest ids there are.
func TestJobsThatFailTogetherComeBackApart(t *testing.T) {
	t.Parallel()
	for _, s := range []RetryStrategy{
		Exponential{Base: time.Minute}, // a window of 15 s
		Exponential{Base: time.Minute, Jitter: JitterDown(0.25)},
		Linear{Step: 30 * time.Second, Jitter: EqualJitter},
		Constant{Delay: 15 * time.Second, Jitter: FullJitter},
		Constant{Delay: time.Minute, Jitter: JitterSymmetric(0.2)},
		Constant{Delay: time.Minute, Jitter: JitterAbs(10 * time.Second)},
		Custom{Func: fibonacciMinutes().Func, Jitter: JitterUp(0.5)},
	} {
		micro, milli := map[time.Duration]bool{}, map[time.Duration]bool{}
		for _, id := range ulids(1000) {
			d := delayOf(t, s, id, 1)
			micro[d.Truncate(time.Microsecond)] = true
			milli[d.Truncate(time.Millisecond)] = true
		}
		if len(micro) <= 990 || len(milli) <= 950 {
			t.Errorf("%T: 1,000 jobs on %d microseconds and %d milliseconds, want more than 990 and 950", s, len(micro), len(milli))
		}
	}
}

// One job's retries must not repeat one point of their range either.
func TestJitterDiffersFromAttemptToAttempt(t *testing.T) {
	t.Parallel()
	id, s := ulids(1)[0], Constant{Delay: time.Hour, Jitter: FullJitter}
	seen := map[time.Duration]bool{}
	for a := 1; a <= 1000; a++ {
		seen[delayOf(t, s, id, a).Truncate(time.Millisecond)] = true
	}
	if len(seen) < 995 {
		t.Errorf("1,000 attempts wait %d different milliseconds", len(seen))
	}
}

// Capped after its jitter, every job that reached Max would come back at the same instant.
func TestJitterSurvivesTheCap(t *testing.T) {
	t.Parallel()
	const jobs = 1000
	first, last := time.Duration(math.MaxInt64), time.Duration(0)
	for _, id := range ulids(jobs) {
		d := delayOf(t, Exponential{}, id, 15)
		first, last = min(first, d), max(last, d)
	}
	if first < time.Hour || last >= 75*time.Minute || last-first < 850*time.Second {
		t.Errorf("at the cap %d jobs come back after %v to %v, want 850 s or more of 1h to 1h15m", jobs, first, last)
	}

	// A wait beyond Max must not show: a job that asked for Max waits as long.
	for _, j := range []Jitter{JitterUp(1), JitterDown(0.5), JitterSymmetric(0.3), FullJitter, EqualJitter, JitterAbs(time.Minute)} {
		at := Constant{Delay: time.Hour, Jitter: j}
		for name, s := range map[string]RetryStrategy{
			"exponential": Exponential{Max: time.Hour, Jitter: j},
			"linear":      Linear{Step: time.Hour, Max: time.Hour, Jitter: j},
			"constant":    Constant{Delay: 50 * time.Hour, Max: time.Hour, Jitter: j},
			"custom":      Custom{Func: func(FailedRun) (time.Duration, bool) { return math.MaxInt64, true }, Max: time.Hour, Jitter: j},
		} {
			for _, id := range ulids(100) {
				if got, want := delayOf(t, s, id, 20), delayOf(t, at, id, 20); got != want {
					t.Fatalf("%s, %s at the cap: %v, want %v", name, j, got, want)
				}
			}
		}
	}
}

func TestStrategiesSaturate(t *testing.T) {
	t.Parallel()
	durations := []time.Duration{0, 1, time.Second, maxBackoff - 1, maxBackoff, math.MaxInt64}
	jitters := []Jitter{"", NoJitter, JitterUp(1), JitterDown(1), JitterSymmetric(1), FullJitter, EqualJitter, JitterAbs(maxBackoff)}
	var all []RetryStrategy
	for _, d := range durations {
		for _, limit := range durations {
			for _, j := range jitters {
				all = append(all, Linear{d, limit, j}, Constant{d, limit, j},
					Custom{Func: func(FailedRun) (time.Duration, bool) { return d, true }, Max: limit, Jitter: j})
				for _, m := range []float64{0, 1, math.Nextafter(1, 2), 2, 1e300, math.MaxFloat64} {
					all = append(all, Exponential{d, m, limit, j})
				}
			}
		}
	}
	id := ulids(1)[0]
	for _, s := range all {
		if err := s.validate(); err != nil {
			t.Fatalf("%+v: %v", s, err)
		}
		for _, a := range []int{math.MinInt, -1, 0, 1, 2, 31, 32, 33, 63, 64, 65, 1024, 1 << 20, math.MaxInt32} {
			if d := delayOf(t, s, id, a); d < 0 || d > 2*maxBackoff {
				t.Fatalf("%+v after run %d waits %v", s, a, d)
			}
			if d := delayOf(t, withoutJitter(s), id, a); d < 0 || d > maxBackoff {
				t.Fatalf("%+v after run %d waits %v without jitter", s, a, d)
			}
		}
	}
	for _, s := range []RetryStrategy{Exponential{Max: math.MaxInt64, Jitter: NoJitter}, Linear{}, Every(math.MaxInt64)} {
		if d := delayOf(t, s, id, math.MaxInt32); d != maxBackoff {
			t.Errorf("%+v after 2^31-1 runs waits %v, want 100 years", s, d)
		}
	}
}

// The three formulas never let a later retry wait less than an earlier one.
func TestWaitsNeverShrink(t *testing.T) {
	t.Parallel()
	for _, s := range []RetryStrategy{
		Exponential{Multiplier: 1.01, Max: math.MaxInt64},
		Exponential{Base: 1, Multiplier: 3.7, Max: math.MaxInt64},
		Linear{Step: 777 * time.Hour},
		Linear{Step: 1},
		Constant{},
	} {
		last := time.Duration(0)
		for i, d := range Schedule(withoutJitter(s), "", 5000) {
			if d < last {
				t.Fatalf("%+v waits %v after run %d and %v before", s, d, i+1, last)
			}
			last = d
		}
	}
}

// All mistakes together, each with the field in which it was written.
func TestStrategySettingsAreRefused(t *testing.T) {
	t.Parallel()
	fn := fibonacciMinutes().Func
	for _, test := range []struct {
		s      RetryStrategy
		fields string
	}{
		{Exponential{}, ""},
		{Exponential{Multiplier: 1, Jitter: JitterUp(0)}, ""},
		{Exponential{Base: -1, Multiplier: -2, Max: -1, Jitter: "often"}, "Base Multiplier Max Jitter"},
		{Exponential{Multiplier: 0.99}, "Multiplier"},
		{Exponential{Multiplier: math.NaN()}, "Multiplier"},
		{Exponential{Multiplier: math.Inf(1)}, "Multiplier"},
		{Exponential{Multiplier: math.Inf(-1)}, "Multiplier"},
		{Linear{}, ""},
		{Linear{Step: -1, Max: -1, Jitter: JitterUp(-0.1)}, "Step Max Jitter"},
		{Constant{}, ""},
		{Constant{Delay: -1, Max: math.MinInt64, Jitter: JitterAbs(-1)}, "Delay Max Jitter"},
		{Custom{Func: fn}, ""},
		{Custom{Name: "fibonacci"}, ""},
		{Custom{Max: -1, Jitter: "up"}, "Func Max Jitter"},
		{Custom{Func: fn, Name: "a\x00b"}, "Name"},
		{Custom{Func: fn, Name: strings.Repeat("x", 129)}, "Name"},
	} {
		var got []string
		for _, err := range allErrors(test.s.validate()) {
			var invalid *InvalidError
			if !errors.As(err, &invalid) || !errors.Is(err, ErrInvalid) {
				t.Errorf("%+v: %v is no *InvalidError", test.s, err)
				continue
			}
			got = append(got, invalid.Field)
		}
		if fields := strings.Join(got, " "); fields != test.fields {
			t.Errorf("%+v: refused %q, want %q", test.s, fields, test.fields)
		}
		if raw, err := encodeStrategy(test.s); test.fields != "" && err == nil {
			t.Errorf("%+v was encoded to %s", test.s, raw)
		}
	}
}

func TestJitterSettingsAreRefused(t *testing.T) {
	t.Parallel()
	for _, j := range []Jitter{
		JitterUp(-0.1), JitterUp(1.1), JitterUp(math.NaN()), JitterUp(math.Inf(1)),
		JitterDown(-0.1), JitterDown(1.1), JitterSymmetric(2), JitterSymmetric(math.NaN()),
		JitterAbs(-time.Second), JitterAbs(maxBackoff + 1), JitterAbs(math.MinInt64),
		"up", "up:", "up:0.25:", "up:25%", "full:1", "none:", "equal:0.5", "abs", "abs:1", "Full", " full", ":", "decorrelated",
	} {
		if err := j.validate(); !errors.Is(err, ErrInvalid) {
			t.Errorf("Jitter %q: %v, want ErrInvalid", string(j), err)
		}
		if d := j.apply(time.Second, "", 1); d != time.Second {
			t.Errorf("refused jitter %q moved 1 s to %v", string(j), d)
		}
	}
	// The table's check wants digits and points: no exponents, no signs.
	for j, want := range map[Jitter]Jitter{
		"up:2.5e-1": "up:0.25", "down:+1": "down:1", "symmetric:0x1p-2": "symmetric:0.25", "abs:60s": "abs:1m", "abs:1h0m0s": "abs:1h",
		JitterUp(1e-9): "up:0.000000001", "abs:1500us": "abs:1.5ms", FullJitter: "full", EqualJitter: "equal", NoJitter: "none",
	} {
		if got := j.canonical(); got != want || j.validate() != nil {
			t.Errorf("%q is stored as %q, %v; want %q", string(j), string(got), j.validate(), string(want))
		}
	}
}

func TestCustomSeesTheFailure(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	job := &Job{ID: ulids(1)[0]}
	var got FailedRun
	s := Custom{Func: func(f FailedRun) (time.Duration, bool) { got = f; return f.LastDelay + time.Second, true }}
	d, ok, err := s.delay(FailedRun{Attempt: 4, Err: fmt.Errorf("fetch: %w", down), Job: job, LastDelay: time.Minute})
	if d != 61*time.Second || !ok || err != nil {
		t.Errorf("delay = %v, %v, %v; want 1m1s", d, ok, err)
	}
	if got.Attempt != 4 || got.RetryIndex != 3 || !errors.Is(got.Err, down) || got.Job != job || got.LastDelay != time.Minute {
		t.Errorf("Func saw %+v", got)
	}
}

func TestCustomMayStopAndMayNotWaitBackwards(t *testing.T) {
	t.Parallel()
	stop := Custom{Func: func(FailedRun) (time.Duration, bool) { return time.Minute, false }, Jitter: JitterUp(1)}
	if d, ok, err := stop.delay(FailedRun{Attempt: 1, Err: errPreview}); d != 0 || ok || err != nil {
		t.Errorf("stop = %v, %v, %v; want 0, false", d, ok, err)
	}
	for _, j := range []Jitter{"", FullJitter, JitterUp(1), JitterSymmetric(1)} {
		back := Custom{Func: func(FailedRun) (time.Duration, bool) { return math.MinInt64, true }, Jitter: j}
		if d := delayOf(t, back, ulids(1)[0], 1); d != 0 {
			t.Errorf("a negative wait with jitter %q became %v", string(j), d)
		}
	}
}

func TestCustomThatCannotBeAskedFallsBackToTheDefault(t *testing.T) {
	t.Parallel()
	id := ulids(1)[0]
	f := FailedRun{Attempt: 3, Err: errPreview, Job: &Job{ID: id}}
	for name, fn := range map[string]func(FailedRun) (time.Duration, bool){
		"panics":            func(FailedRun) (time.Duration, bool) { panic("out of range") },
		"panics with error": func(FailedRun) (time.Duration, bool) { panic(errors.New("out of range")) },
		"runs off a ladder": func(f FailedRun) (time.Duration, bool) { return []time.Duration{1, 2}[f.RetryIndex], true },
	} {
		d, ok, err := Custom{Name: "ladder", Func: fn}.delay(f)
		if want := delayOf(t, Exponential{}, id, 3); d != want || !ok {
			t.Errorf("%s: %v, %v; want the default's %v", name, d, ok, want)
		}
		if err == nil || !strings.Contains(err.Error(), `"ladder": panic: `) || !strings.Contains(err.Error(), "out of range") {
			t.Errorf("%s: err = %v, want the panic", name, err)
		}
	}
	bounded := Custom{Func: func(FailedRun) (time.Duration, bool) { panic("no") }, Max: time.Second, Jitter: NoJitter}
	if d, _, _ := bounded.delay(f); d != time.Second {
		t.Errorf("the fallback waits %v, want the Custom's Max", d)
	}
	if d, ok, err := (Custom{Name: "ladder"}).delay(f); d != delayOf(t, Exponential{}, id, 3) || !ok || !errors.Is(err, errUnknownStrategy) {
		t.Errorf("without Func: %v, %v, %v", d, ok, err)
	}
}

func TestDecodeStrategy(t *testing.T) {
	t.Parallel()
	fib := Custom{Name: "fibonacci", Func: fibonacciMinutes().Func, Max: 21 * time.Minute, Jitter: FullJitter}
	named := map[string]Custom{"fibonacci": fib, "hollow": {Name: "hollow"}}
	for _, test := range []struct {
		raw  string
		want string // as it is encoded again; "" where it is refused
	}{
		{`{"type":"exponential"}`, `{"type":"exponential","base":"15s","multiplier":2,"max":"1h","jitter":"up:0.25"}`},
		{`{"jitter":"none","max":"60s","base":"1500ms","type":"exponential","multiplier":1}`, `{"type":"exponential","base":"1.5s","multiplier":1,"max":"1m","jitter":"none"}`},
		{`{"type":"linear","step":"5s","max":"1m"}`, `{"type":"linear","step":"5s","max":"1m","jitter":"none"}`},
		{` {"type":"constant","delay":"30s"} `, `{"type":"constant","delay":"30s","jitter":"none"}`},
		{`{"type":"custom","name":"fibonacci"}`, `{"type":"custom","name":"fibonacci","max":"21m","jitter":"full"}`},
		{`{"type":"custom","name":"fibonacci","max":"5m","jitter":"equal"}`, `{"type":"custom","name":"fibonacci","max":"5m","jitter":"equal"}`},

		{``, ""},
		{`null`, ""},
		{`[]`, ""},
		{`"exponential"`, ""},
		{`{}`, ""},
		{`{"type":"Exponential"}`, ""},
		{`{"Type":"exponential"}`, ""},
		{`{"type":"fibonacci"}`, ""},
		{`{"type":7}`, ""},
		{`{"type":"exponential"} {}`, ""},
		{`{"type":"exponential","Base":"1s"}`, ""},
		{`{"type":"exponential","step":"1s"}`, ""},
		{`{"type":"exponential","base":"0s"}`, ""},
		{`{"type":"exponential","base":"-1s"}`, ""},
		{`{"type":"exponential","base":"soon"}`, ""},
		{`{"type":"exponential","base":15}`, ""},
		{`{"type":"exponential","base":null}`, ""},
		{`{"type":"exponential","base":"9999999h"}`, ""},
		{`{"type":"exponential","multiplier":"2"}`, ""},
		{`{"type":"exponential","multiplier":0}`, ""},
		{`{"type":"exponential","multiplier":1e999}`, ""},
		{`{"type":"exponential","jitter":"up:2"}`, ""},
		{`{"type":"exponential","jitter":""}`, ""},
		{`{"type":"linear","multiplier":2}`, ""},
		{`{"type":"constant","name":"fibonacci"}`, ""},
		{`{"type":"custom","name":"fibonacci","delay":"1s"}`, ""},
	} {
		s, err := decodeStrategy([]byte(test.raw), named)
		if test.want == "" {
			if !errors.Is(err, ErrInvalid) || errors.Is(err, errUnknownStrategy) || s != nil {
				t.Errorf("%s: %v, %v; want ErrInvalid", test.raw, s, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", test.raw, err)
			continue
		}
		if got, err := encodeStrategy(s); err != nil || string(got) != test.want {
			t.Errorf("%s is %s, %v; want %s", test.raw, got, err, test.want)
		}
	}
	for _, name := range []string{"ladder", "hollow"} {
		raw := fmt.Sprintf(`{"type":"custom","name":%q,"max":"5m"}`, name)
		if s, err := decodeStrategy([]byte(raw), named); !errors.Is(err, errUnknownStrategy) || errors.Is(err, ErrInvalid) || s != nil {
			t.Errorf("%s: %v, %v; want errUnknownStrategy", raw, s, err)
		}
	}
	if raw, err := encodeStrategy(Custom{Func: fib.Func}); !errors.Is(err, ErrInvalid) {
		t.Errorf("a nameless Custom was stored as %s, %v", raw, err)
	}
}

func FuzzStrategy(f *testing.F) {
	f.Add(byte(0), int64(0), 0.0, int64(0), byte(0), 0.0, int64(0), int32(1), "01ARZ3NDEKTSV4RRFFQ69G5FAV")
	f.Add(byte(0), int64(math.MaxInt64), math.MaxFloat64, int64(math.MaxInt64), byte(1), 1.0, int64(0), int32(math.MaxInt32), "")
	f.Add(byte(0), int64(1), math.NaN(), int64(0), byte(2), math.NaN(), int64(0), int32(0), "x")
	f.Add(byte(1), int64(math.MaxInt64), 0.0, int64(0), byte(3), 1.0, int64(0), int32(math.MaxInt32), "x")
	f.Add(byte(1), int64(3), 0.0, int64(-1), byte(4), 0.0, int64(0), int32(-7), "x")
	f.Add(byte(2), int64(maxBackoff+255), 0.0, int64(0), byte(5), 0.0, int64(0), int32(3), "x")
	f.Add(byte(3), int64(math.MinInt64), 0.0, int64(1), byte(6), 0.0, int64(maxBackoff), int32(3), "x")
	f.Fuzz(func(t *testing.T, variant byte, length int64, multiplier float64, limit int64, kind byte, share float64, abs int64, attempt int32, id string) {
		jitter := [...]Jitter{"", JitterUp(share), JitterDown(share), JitterSymmetric(share), FullJitter, EqualJitter, JitterAbs(time.Duration(abs)), NoJitter}[kind%8]
		d, bound := time.Duration(length), time.Duration(limit)
		s := [...]RetryStrategy{
			Exponential{d, multiplier, bound, jitter},
			Linear{d, bound, jitter},
			Constant{d, bound, jitter},
			Custom{Name: "fixed", Func: func(FailedRun) (time.Duration, bool) { return d, true }, Max: bound, Jitter: jitter},
		}[variant%4]
		if err := s.validate(); err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("%+v: %v is not ErrInvalid", s, err)
			}
			return
		}
		raw := delayOf(t, withoutJitter(s), id, int(attempt))
		if raw < 0 || raw > maxBackoff || bound > 0 && raw > bound {
			t.Fatalf("%+v after run %d: %v before jitter", s, attempt, raw)
		}
		got, most := delayOf(t, s, id, int(attempt)), 2*raw
		if kind%8 == 6 {
			most = raw + time.Duration(abs)
		}
		if got < 0 || got > most {
			t.Fatalf("%+v after run %d: %v, %v before jitter", s, attempt, got, raw)
		}
		stored, err := encodeStrategy(s)
		if err != nil {
			t.Fatalf("%+v is valid and not encoded: %v", s, err)
		}
		back, err := decodeStrategy(stored, map[string]Custom{"fixed": {Func: func(FailedRun) (time.Duration, bool) { return d, true }}})
		if err != nil {
			t.Fatalf("%s: %v", stored, err)
		}
		if again := delayOf(t, back, id, int(attempt)); again != got {
			t.Fatalf("%s waits %v, and %v after decoding", stored, got, again)
		}
	})
}

func FuzzDecodeStrategy(f *testing.F) {
	f.Add([]byte(`{"type":"exponential","base":"15s","multiplier":2,"max":"1h","jitter":"up:0.25"}`))
	f.Add([]byte(`{"type":"linear","step":"1m","jitter":"abs:100ms"}`))
	f.Add([]byte(`{"type":"constant","delay":"1µs","max":"1ns","jitter":"symmetric:1e-5"}`))
	f.Add([]byte(`{"type":"custom","name":"fibonacci","jitter":"equal"}`))
	f.Add([]byte(`{"type":"custom","name":"ladder"}`))
	f.Add([]byte(`{"type":"exponential","Base":"1s","base":"-1s","step":null}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		named := map[string]Custom{"fibonacci": fibonacciMinutes()}
		s, err := decodeStrategy(raw, named)
		if err != nil {
			if s != nil || !errors.Is(err, ErrInvalid) && !errors.Is(err, errUnknownStrategy) {
				t.Fatalf("%q: %v, %v", raw, s, err)
			}
			return
		}
		if err := s.validate(); err != nil {
			t.Fatalf("%q decodes to what is refused: %v", raw, err)
		}
		stored, err := encodeStrategy(s)
		if err != nil {
			t.Fatalf("%q: %v", raw, err)
		}
		back, err := decodeStrategy(stored, named)
		if err != nil {
			t.Fatalf("%q is stored as %s: %v", raw, stored, err)
		}
		if again, err := encodeStrategy(back); err != nil || !bytes.Equal(again, stored) {
			t.Fatalf("%q is stored as %s, then as %s, %v", raw, stored, again, err)
		}
	})
}

// fibonacciMinutes waits 1, 2, 3, 5, 8, 13 and then 21 minutes.
func fibonacciMinutes() Custom {
	return Custom{
		Name: "fibonacci",
		Func: func(f FailedRun) (time.Duration, bool) {
			a, b := time.Minute, 2*time.Minute
			for range min(f.RetryIndex, 40) {
				a, b = b, a+b
			}
			return a, true
		},
		Max: 21 * time.Minute,
	}
}

// ulids are the same n ids at every call, all of one millisecond and counting up.
func ulids(n int) []string {
	entropy := ulid.Monotonic(rand.NewChaCha8([32]byte{}), 1)
	ids := make([]string, n)
	for i := range ids {
		ids[i] = ulid.MustNew(1_700_000_000_000, entropy).String()
	}
	return ids
}

func delayOf(t *testing.T, s RetryStrategy, id string, attempt int) time.Duration {
	t.Helper()
	d, ok, err := s.delay(FailedRun{Attempt: attempt, Err: errPreview, Job: &Job{ID: id}})
	if !ok || err != nil {
		t.Fatalf("%T after run %d: %v, %v", s, attempt, ok, err)
	}
	return d
}

// allErrors takes a joined error apart.
func allErrors(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// goldenJSON compares got with testdata/name, or writes it there under -update.
func goldenJSON(t *testing.T, name string, got any) {
	t.Helper()
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(got); err != nil {
		t.Fatal(err)
	}
	golden(t, name, out.String())
}

// golden compares a text with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; after a look at the difference run go test -run %s -update\ngot:\n%s\nwant:\n%s", path, t.Name(), got, want)
	}
}

// The documents' numbers of the default strategy are computed from the strategy itself, with its jitter.
func TestFiguresOfTheDefaultRetry(t *testing.T) {
	t.Parallel()
	totals := make([]float64, 10_000) // hours between the first run and the last
	for i := range totals {
		for _, wait := range Schedule(DefaultRetry(), fmt.Sprintf("01ARZ3NDEKTSV4RRFFQ%07d", i), defaultMaxAttempts) {
			totals[i] += wait.Hours()
		}
	}
	slices.Sort(totals)
	total := fmt.Sprintf("%.0f to %.0f hours", totals[len(totals)/100], totals[len(totals)*99/100])
	bare := Schedule(Exponential{Jitter: NoJitter}, "", defaultMaxAttempts)
	short := func(d time.Duration) string {
		if d < time.Minute {
			return fmt.Sprintf("%d s", d/time.Second)
		}
		return fmt.Sprintf("%d min", d/time.Minute)
	}
	waits := fmt.Sprintf("after %s, %s, %s and so on up to %.0f h", short(bare[0]), short(bare[1]), short(bare[2]), bare[len(bare)-1].Hours())
	for file, figures := range map[string][]string{
		"docs/retries.md": {fmt.Sprintf("run %d times over %s", defaultMaxAttempts, total), waits},
		"docs/outage.md":  {fmt.Sprintf("by default %d runs over %s", defaultMaxAttempts, total)},
		"CHANGELOG.md":    {fmt.Sprintf("default is %d runs over %s", defaultMaxAttempts, total)},
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, figure := range figures {
			if !strings.Contains(strings.Join(strings.Fields(string(text)), " "), figure) {
				t.Errorf("%s does not say %q", file, figure)
			}
		}
	}
}

// strategies returns retry strategies of every kind, some of them at their bounds.
func strategies() []RetryStrategy {
	all := []RetryStrategy{nil, Custom{Name: "n"}, Custom{Name: strings.Repeat("é", 64), Max: time.Hour, Jitter: FullJitter}, Every(time.Nanosecond)}
	jitters := []Jitter{
		"", NoJitter, FullJitter, EqualJitter, JitterUp(0), JitterUp(1), JitterUp(0.25), JitterUp(1e-9), JitterDown(0.5), JitterSymmetric(1.0 / 3),
		JitterAbs(0), JitterAbs(1), JitterAbs(1500), JitterAbs(90*time.Second + 1), JitterAbs(maxBackoff), "up:2.5e-1", "abs:1us", "abs:1.5h",
	}
	durations := []time.Duration{0, 1, 999, 1500, time.Millisecond, 1500 * time.Millisecond, time.Hour + time.Nanosecond, maxBackoff, NoTimeout}
	for _, j := range jitters {
		for _, d := range durations {
			all = append(all, Exponential{Base: d, Max: d, Jitter: j}, Linear{Step: d, Max: d, Jitter: j}, Constant{Delay: d, Max: d, Jitter: j})
		}
	}
	for _, m := range []float64{1, 1.0000001, 2, 1e21, 1e300} {
		all = append(all, Exponential{Multiplier: m})
	}
	return all
}

// drover_strategy_ok accepts every strategy that Go encodes, and Go decodes every strategy that it
// accepts.
func TestStoredStrategiesPassTheCheck(t *testing.T) {
	t.Parallel()
	pool := migratedClient(t).desk.pool
	known := map[string]Custom{"n": {Name: "n", Func: func(FailedRun) (time.Duration, bool) { return 0, true }}}
	var good []string
	for _, s := range strategies() {
		raw, err := encodeStrategy(s)
		if err != nil {
			t.Errorf("%+v: %v", s, err)
			continue
		}
		good = append(good, string(raw))
	}
	for _, raw := range accepted(t, pool, good, false) {
		t.Errorf("%s was refused", raw)
	}
	garbage := []string{
		`null`, `1`, `"exponential"`, `[]`, `{}`, `{"type": "odd"}`, `{"type": null}`, `{"type": 1}`, `{"type": "EXPONENTIAL"}`, `{"type": "exponential", "odd": 1}`,
		`{"type": "exponential", "step": "1s"}`, `{"type": "linear", "base": "1s"}`, `{"type": "constant", "multiplier": 2}`, `{"type": "constant", "name": "n"}`,
		`{"type": "custom"}`, `{"type": "custom", "name": ""}`, `{"type": "custom", "name": 1}`, `{"type": "custom", "name": null}`, `{"type": "custom", "name": "n", "delay": "1s"}`,
		`{"type": "exponential", "multiplier": 0.9}`, `{"type": "exponential", "multiplier": "2"}`, `{"type": "exponential", "multiplier": 1e400}`, `{"type": "exponential", "multiplier": null}`,
		`{"type": "custom", "name": "` + strings.Repeat("n", 2000) + `"}`,
	}
	for _, d := range []string{
		`""`, `"0s"`, `"0"`, `"1"`, `"s"`, `"-1s"`, `"+1s"`, `"1 s"`, `" 1s"`, `"1s "`, `"1.s"`, `"1.2.3s"`, `"..s"`, `"1d"`, `"1S"`, `"soon"`, `null`, `15`, `{}`, `"1s\n"`, `"0.0s"`,
	} {
		garbage = append(garbage, `{"type": "exponential", "base": `+d+`}`, `{"type": "linear", "step": `+d+`}`, `{"type": "constant", "delay": `+d+`}`,
			`{"type": "constant", "max": `+d+`}`)
	}
	for _, j := range []string{
		`""`, `"zigzag"`, `"up"`, `"up:"`, `"up:1.1"`, `"up:-0.1"`, `"up:x"`, `"up:.5"`, `"up:NaN"`, `"full:1"`, `"none:"`, `"abs"`, `"abs:1"`, `"abs:-1s"`, `null`, `0.25`, `"up:0.25 "`, `"UP:0.25"`,
	} {
		garbage = append(garbage, `{"type": "constant", "jitter": `+j+`}`)
	}
	for _, raw := range accepted(t, pool, garbage, true) {
		t.Errorf("%s was accepted", raw)
	}

	// Bytes of good strategies are cut out, copied or replaced. A worker can read each result that
	// drover_strategy_ok accepts.
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same every time
	var mutants []string
	for len(mutants) < 20000 {
		raw := []byte(good[r.IntN(len(good))])
		at := r.IntN(len(raw))
		switch r.IntN(3) {
		case 0:
			raw = slices.Delete(raw, at, min(at+1+r.IntN(3), len(raw)))
		case 1:
			raw = slices.Insert(raw, at, raw[r.IntN(len(raw))])
		case 2:
			raw[at] = `0123456789.:smhnuµ"{},ex-`[r.IntN(25)]
		}
		if json.Valid(raw) && checkJSON("", raw, 1<<20, maxJSONDepth) == nil {
			mutants = append(mutants, string(raw))
		}
	}
	for _, raw := range accepted(t, pool, mutants, true) {
		_, err := decodeStrategy([]byte(raw), known)
		tooLong := strings.Contains(fmt.Sprint(err), "is not a duration") || strings.Contains(fmt.Sprint(err), "0 to 100 years") // no regular expression checks this bound
		if err != nil && !errors.Is(err, errUnknownStrategy) && !tooLong {
			t.Errorf("%s was accepted, but: %v", raw, err)
		}
	}
}

// accepted lists the strategies for which drover_strategy_ok returns ok.
func accepted(t *testing.T, pool *pg.Pool, raw []string, ok bool) []string {
	t.Helper()
	rows, _ := pool.Query(t.Context(), `select r from unnest($1::text[]) as r where coalesce(drover_strategy_ok(r::jsonb), false) = $2`, raw, ok)
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func withoutJitter(s RetryStrategy) RetryStrategy {
	switch s := s.(type) {
	case Exponential:
		s.Jitter = NoJitter
		return s
	case Linear:
		s.Jitter = NoJitter
		return s
	case Constant:
		s.Jitter = NoJitter
		return s
	case Custom:
		s.Jitter = NoJitter
		return s
	}
	return s
}
