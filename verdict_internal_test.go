package drover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

var errBoom = errors.New("boom")

// letter is the kind of most jobs.
type letter struct {
	To string `json:"to"`
}

func (letter) Kind() string { return "letter" }

func doNothing(context.Context, *Job) error { return nil }

// quiet drops logs.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// migratedClient returns a client of a schema that only one test uses.
func migratedClient(t testing.TB) *Client {
	t.Helper()
	client, err := New(pgtest.NewMigratedPool(t), Config{Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// permanentError reports whether a retry could help.
type permanentError bool

func (p permanentError) Error() string   { return fmt.Sprintf("permanent: %t", bool(p)) }
func (p permanentError) Permanent() bool { return bool(p) }

// brokenPermanent panics when it is asked.
type brokenPermanent struct{ error }

func (brokenPermanent) Permanent() bool { panic("no answer") }

// bareTask is a started run of a job that has attempts left, outside of any supervisor.
func bareTask() *task {
	client := &Client{log: quiet()}
	t := &task{handler: &handler{client: client}, worker: &Worker{}, strategy: DefaultRetry(), job: Job{ID: "x", Attempt: 1, MaxAttempts: 20}}
	t.Task, t.job.task = t, t
	t.share()
	t.Shared, t.Ctx, t.StartedAt = engine.NewShared(engine.Config{}, nil), context.Background(), time.Now()
	return t
}

// VerdictOf returns for every error what the outcome of the run goes by.
func TestVerdictOf(t *testing.T) {
	t.Parallel()
	wrapped := func(err error) error { return fmt.Errorf("while charging: %w", err) }
	plain := wrapped(errBoom)
	panicked := &panicError{value: "oh", trace: "where"}
	decode := &decodeError{"args do not decode", errBoom}
	broken := brokenPermanent{errBoom}
	for _, c := range []struct {
		err  error
		want Verdict
		end  engine.EventKind
	}{
		{nil, Verdict{Kind: VerdictDone}, engine.EventCompleted},
		{Discard(nil), Verdict{Kind: VerdictDone}, engine.EventCompleted},
		{RetryAfter(time.Minute, nil), Verdict{Kind: VerdictDone}, engine.EventCompleted},
		{plain, Verdict{Kind: VerdictError, Cause: plain}, engine.EventFailed},
		{wrapped(Discard(errBoom)), Verdict{Kind: VerdictDiscard, Cause: errBoom}, engine.EventDiscarded},
		{permanentError(true), Verdict{Kind: VerdictDiscard, Cause: permanentError(true)}, engine.EventDiscarded},
		{wrapped(permanentError(true)), Verdict{Kind: VerdictDiscard, Cause: wrapped(permanentError(true))}, engine.EventDiscarded},
		{permanentError(false), Verdict{Kind: VerdictError, Cause: permanentError(false)}, engine.EventFailed},
		{broken, Verdict{Kind: VerdictError, Cause: broken}, engine.EventFailed},
		{Retry(permanentError(true)), Verdict{Kind: VerdictRetry, Cause: permanentError(true)}, engine.EventFailed},
		{decode, Verdict{Kind: VerdictDiscard, Cause: decode}, engine.EventDiscarded},
		{Retry(decode), Verdict{Kind: VerdictDiscard, Cause: decode}, engine.EventDiscarded},
		{errors.Join(decode, Snooze(time.Hour)), Verdict{Kind: VerdictSnooze, Delay: time.Hour}, engine.EventSnoozed},
		{wrapped(RetryAfter(time.Minute, errBoom)), Verdict{Kind: VerdictRetryAfter, Delay: time.Minute, Cause: errBoom}, engine.EventFailed},
		{RetryAfter(-time.Minute, errBoom), Verdict{Kind: VerdictRetryAfter, Cause: errBoom}, engine.EventFailed},
		{DontCount(errBoom), Verdict{Kind: VerdictDontCount, Cause: errBoom}, engine.EventFailed},
		{wrapped(Snooze(time.Hour)), Verdict{Kind: VerdictSnooze, Delay: time.Hour}, engine.EventSnoozed},
		{Cancel(nil), Verdict{Kind: VerdictCancel}, engine.EventCancelled},
		{Cancel(errBoom), Verdict{Kind: VerdictCancel, Cause: errBoom}, engine.EventCancelled},
		{panicked, Verdict{Kind: VerdictPanic, Cause: panicked, Trace: "where"}, engine.EventFailed},
		{Discard(panicked), Verdict{Kind: VerdictDiscard, Cause: panicked, Trace: "where"}, engine.EventDiscarded},
		{errors.Join(errBoom, Snooze(time.Hour), Discard(errBoom)), Verdict{Kind: VerdictSnooze, Delay: time.Hour}, engine.EventSnoozed},
		{Discard(Snooze(time.Hour)), Verdict{Kind: VerdictDiscard, Cause: Snooze(time.Hour)}, engine.EventDiscarded},
	} {
		got := VerdictOf(c.err)
		if got.Kind != c.want.Kind || got.Delay != c.want.Delay || got.Trace != c.want.Trace || fmt.Sprint(got.Cause) != fmt.Sprint(c.want.Cause) {
			t.Errorf("VerdictOf(%v) = %+v, want %+v", c.err, got, c.want)
		}
		if failed := c.end == engine.EventFailed || c.end == engine.EventDiscarded; got.Failed() != failed {
			t.Errorf("VerdictOf(%v).Failed() = %v", c.err, got.Failed())
		}
		if o := bareTask().decide(c.err); o.Event != c.end {
			t.Errorf("decide(%v) = event %d, want %d", c.err, o.Event, c.end)
		}
	}
}

// The panic of a handler reaches VerdictOf with its stack.
func TestVerdictOfAPanic(t *testing.T) {
	t.Parallel()
	task := bareTask()
	task.worker = &Worker{handle: func(context.Context, *Job) error { panic(errBoom) }}
	v := VerdictOf(task.handler.Handle(t.Context(), &task.Run))
	if v.Kind != VerdictPanic || !errors.Is(v.Cause, errBoom) || !strings.Contains(v.Trace, "TestVerdictOfAPanic") || !v.Failed() {
		t.Errorf("verdict = %+v", v)
	}
}

func TestParseRetryAfter(t *testing.T) { // F-4
	t.Parallel()
	now := time.Date(2026, time.March, 1, 12, 0, 0, 250_000_000, time.FixedZone("", -5*3600)) // 17:00:00.25 GMT
	for value, want := range map[string]time.Duration{
		"0":                      0,
		"1":                      time.Second,
		"120":                    2 * time.Minute,
		" 120 ":                  2 * time.Minute,
		"\t007\t":                7 * time.Second,
		"86399":                  24*time.Hour - time.Second,
		"86400":                  24 * time.Hour,
		"86401":                  24 * time.Hour,
		"1772384400000":          24 * time.Hour, // an instant in milliseconds
		"9223372036854775807":    24 * time.Hour,
		strings.Repeat("9", 999): 24 * time.Hour,

		"Sun, 01 Mar 2026 17:01:00 GMT":     59*time.Second + 750*time.Millisecond,
		"Sunday, 01-Mar-26 17:01:00 GMT":    59*time.Second + 750*time.Millisecond,
		"Sun Mar  1 17:01:00 2026":          59*time.Second + 750*time.Millisecond,
		"  Sun, 01 Mar 2026 17:01:00 GMT  ": 59*time.Second + 750*time.Millisecond,
		"Sun, 01 Mar 2026 17:00:00 GMT":     0, // a quarter second ago
		"Sun, 01 Mar 2026 16:00:00 GMT":     0,
		"Sun Nov  6 08:49:37 1994":          0,
		"Sunday, 06-Nov-94 08:49:37 GMT":    0,
		"Mon, 02 Mar 2026 17:00:00 GMT":     24*time.Hour - 250*time.Millisecond,
		"Tue, 03 Mar 2026 17:00:00 GMT":     24 * time.Hour,
		"Fri, 31 Dec 9999 23:59:59 GMT":     24 * time.Hour,
		"Mon, 01 Jan 0001 00:00:00 GMT":     0,

		"":                              0,
		" ":                             0,
		"-1":                            0,
		"+1":                            0,
		"1.5":                           0,
		"1e3":                           0,
		"0x10":                          0,
		"1 2":                           0,
		"120s":                          0,
		"99999999999x":                  0,
		"١٢٠":                           0, // digits, but not ASCII
		"soon":                          0,
		"Sun, 01 Mar 2026 17:01:00 CET": 0,
		"2026-03-01T17:01:00Z":          0,
		"Sun, 32 Mar 2026 17:01:00 GMT": 0,
		"120, 240":                      0,
		"Sun, 01 Mar 2026 17:01:00":     0,
	} {
		if got := parseRetryAfter(value, now); got != want {
			t.Errorf("%q = %v, want %v", value, got, want)
		}
	}
}

// Whole seconds: the date may be up to one before the clock it was made of.
func TestParseRetryAfterCountsFromThisClock(t *testing.T) { // F-4
	t.Parallel()
	in := time.Now().Add(time.Hour).UTC()
	got := ParseRetryAfter(in.Format("Mon, 02 Jan 2006 15:04:05 GMT"))
	if got <= 0 || got > time.Hour {
		t.Errorf("a date an hour ahead = %v", got)
	}
}

func FuzzParseRetryAfter(f *testing.F) {
	for _, value := range []string{
		"120", "-1", "", "99999999999999999999", "Sun, 01 Mar 2026 17:01:00 GMT", "Sunday, 01-Mar-26 17:01:00 GMT", "Sun Mar  1 17:01:00 2026", "1.5",
	} {
		f.Add(value, int64(1_772_384_400))
		f.Add(value, int64(math.MinInt64))
	}
	f.Fuzz(func(t *testing.T, value string, unix int64) {
		now := time.Unix(unix, 0)
		got := parseRetryAfter(value, now)
		if got < 0 || got > maxRetryAfter {
			t.Fatalf("%q at %v = %v", value, now, got)
		}
		if padded := parseRetryAfter(" "+value+"\t", now); padded != got {
			t.Fatalf("%q = %v, with spaces around it %v", value, got, padded)
		}
	})
}

// F-4: jobs that one server sent away do not come back together.
func TestThrottledDelayStaysInItsBounds(t *testing.T) {
	t.Parallel()
	distinct := map[time.Duration]bool{}
	for _, d := range []time.Duration{0, 1, time.Millisecond, time.Second, 30 * time.Second, 24 * time.Hour, maxBackoff, math.MaxInt64} {
		for i := range 1000 {
			got := throttledDelay(fmt.Sprintf("job %d", i), 1+i%7, d)
			capped := min(d, maxBackoff)
			if got < capped || got > capped+capped/5 {
				t.Fatalf("throttledDelay(%v) = %v", d, got)
			}
			if d == 30*time.Second {
				distinct[got] = true
			}
		}
	}
	if len(distinct) < 990 {
		t.Errorf("%d distinct delays of 1000", len(distinct))
	}
	var v *verdict
	if !errors.As(RetryAfter(-time.Hour, errBoom), &v) || v.delay != 0 {
		t.Errorf("negative RetryAfter = %v", v.delay)
	}
}
