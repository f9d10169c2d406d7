package drover_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/harness"
)

// dyn are args of a kind that is chosen at run time, so that a table can have a worker for each of its rows.
type dyn struct {
	kind string
	N    int
	S    string
}

func (d dyn) Kind() string { return d.kind }

// dynWorker handles a kind with a function that looks at nothing but the Job.
func dynWorker(kind string, opts drover.WorkerOpts, handler func(ctx context.Context, job *drover.Job) error) drover.Worker {
	return drover.WorkerOf(kind, opts, handler)
}

// quiet drops logs.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// Errors that do harm when they are handled.
type (
	panicsInError  struct{}
	panicsInUnwrap struct{}
	panicsInAs     struct{}
)

func (panicsInError) Error() string  { panic("in Error") }
func (panicsInUnwrap) Error() string { return "ok so far" }
func (panicsInUnwrap) Unwrap() error { panic("in Unwrap") }
func (panicsInAs) Error() string     { return "ok so far" }
func (panicsInAs) As(any) bool       { panic("in As") }

func wrapped(err error, times int) error {
	for i := range times {
		if err = fmt.Errorf("layer %d: %w", i, err); i%10 == 3 {
			err = errors.Join(errors.New("first"), err)
		}
	}
	return err
}

var errBoom = errors.New("boom")

// permanent is an error with a method Permanent.
type permanent bool

func (p permanent) Error() string   { return "boom" }
func (p permanent) Permanent() bool { return bool(p) }

// permanentPointer is an error whose method Permanent reads a field, so it panics on a nil pointer.
type permanentPointer struct{ permanent bool }

func (p *permanentPointer) Error() string   { return "boom" }
func (p *permanentPointer) Permanent() bool { return p.permanent }

// permanentAround is a permanent error with another one in it.
type permanentAround struct{ error }

func (p permanentAround) Unwrap() error   { return p.error }
func (p permanentAround) Permanent() bool { return true }

// The table "how a run can end": F-1 to F-7, R-7, R-9.
func TestHowARunCanEnd(t *testing.T) {
	t.Parallel()
	never := func(error) bool { return false }
	returns := func(err error) func(context.Context, *drover.Job) error {
		return func(context.Context, *drover.Job) error { return err }
	}
	panics := func(p any) func(context.Context, *drover.Job) error {
		return func(context.Context, *drover.Job) error { panic(p) }
	}
	untilDone := func(ctx context.Context, _ *drover.Job) error {
		<-ctx.Done()
		return ctx.Err()
	}
	const byDefault = 15 * time.Second // of Exponential{}, plus up to a quarter
	type want struct {
		state     drover.State
		reason    drover.Reason
		class     drover.Class // "" for no errors entry
		text      string       // in the entry
		attempt   int
		failures  int
		snoozes   int
		uncounted int
		event     string
		least     time.Duration // delay
		most      time.Duration
		trace     bool
		unstarted bool
	}
	retried := want{
		state: drover.Retryable, class: drover.ClassError, text: "boom", attempt: 1, failures: 1, event: "failed",
		least: byDefault, most: byDefault * 5 / 4,
	}
	panicked := retried
	panicked.class, panicked.text, panicked.trace = drover.ClassPanic, "panic: ", true
	throttled := retried
	throttled.class, throttled.least, throttled.most = drover.ClassThrottled, 10*time.Minute, 12*time.Minute
	timedOut := retried
	timedOut.class, timedOut.text = drover.ClassTimeout, "deadline"
	uncounted := retried
	uncounted.attempt, uncounted.uncounted = 0, 1
	discarded := func(w want, reason drover.Reason) want {
		w.state, w.reason, w.event, w.least, w.most = drover.Discarded, reason, "discarded", -time.Hour, 24*time.Hour
		return w
	}
	unrecoverable := discarded(retried, drover.ReasonUnrecoverable)
	exhausted := discarded(retried, drover.ReasonAttemptsExhausted)
	completed := want{state: drover.Completed, attempt: 1, event: "completed", least: -time.Hour, most: 24 * time.Hour}
	snoozed := want{state: drover.Scheduled, snoozes: 1, event: "snoozed", least: time.Hour, most: time.Hour + time.Minute}
	cancelled := want{state: drover.Cancelled, class: drover.ClassError, text: "boom", attempt: 1, event: "cancelled", least: -time.Hour, most: 24 * time.Hour}
	text := func(w want, text string) want {
		w.text = text
		return w
	}

	cases := []struct {
		name   string
		opts   drover.WorkerOpts
		job    drover.EnqueueOpts
		handle func(context.Context, *drover.Job) error
		want   want
	}{
		{name: "nil", handle: returns(nil), want: completed},
		{name: "an error", handle: returns(errBoom), want: retried},
		{name: "an error on the last attempt", opts: drover.WorkerOpts{MaxAttempts: 1}, handle: returns(errBoom), want: exhausted},
		{name: "an error on the job's last attempt", opts: drover.WorkerOpts{MaxAttempts: 5}, job: drover.EnqueueOpts{MaxAttempts: 1}, handle: returns(errBoom), want: exhausted},
		{name: "an error whose Error panics", handle: returns(panicsInError{}), want: text(retried, "panic in Error method")},
		{name: "an error whose Unwrap panics", handle: returns(panicsInUnwrap{}), want: text(retried, "could not be decided")},
		{name: "an error whose As panics", handle: returns(panicsInAs{}), want: text(retried, "could not be decided")},
		{name: "an error whose Unwrap panics, RetryIf", opts: drover.WorkerOpts{RetryIf: never}, handle: returns(panicsInUnwrap{}), want: text(retried, "could not be decided")},

		{name: "RetryAfter", handle: returns(drover.RetryAfter(10*time.Minute, errBoom)), want: throttled},
		{name: "RetryAfter wrapped", handle: returns(wrapped(drover.RetryAfter(10*time.Minute, errBoom), 9)), want: throttled},
		{name: "RetryAfter beats the strategy", opts: drover.WorkerOpts{Retry: drover.Constant{Delay: time.Hour}}, handle: returns(drover.RetryAfter(10*time.Minute, errBoom)), want: throttled},
		{name: "RetryAfter on the last attempt", opts: drover.WorkerOpts{MaxAttempts: 1}, handle: returns(drover.RetryAfter(10*time.Minute, errBoom)), want: discarded(throttled, drover.ReasonAttemptsExhausted)},

		{name: "Discard", handle: returns(drover.Discard(errBoom)), want: unrecoverable},
		{name: "Discard of nil", handle: returns(drover.Discard(nil)), want: completed},
		{name: "Discard of nil on the last attempt", opts: drover.WorkerOpts{MaxAttempts: 1}, handle: returns(drover.Discard(nil)), want: completed},
		{name: "Retry of nil", handle: returns(drover.Retry(nil)), want: completed},
		{name: "RetryAfter of nil", handle: returns(drover.RetryAfter(time.Hour, nil)), want: completed},
		{name: "DontCount of nil", handle: returns(drover.DontCount(nil)), want: completed},
		{name: "Discard wrapped often", handle: returns(wrapped(drover.Discard(errBoom), 50)), want: unrecoverable},
		{name: "Discard joined", handle: returns(errors.Join(errors.New("a"), errors.Join(errors.New("b"), drover.Discard(errBoom)))), want: unrecoverable},
		{name: "Discard around Retry", handle: returns(drover.Discard(fmt.Errorf("x: %w", drover.Retry(errBoom)))), want: unrecoverable},
		{name: "Discard on the last attempt", opts: drover.WorkerOpts{MaxAttempts: 1}, handle: returns(drover.Discard(errBoom)), want: unrecoverable},

		{name: "RetryIf says no", opts: drover.WorkerOpts{RetryIf: never}, handle: returns(errBoom), want: unrecoverable},
		{name: "RetryIf says yes", opts: drover.WorkerOpts{RetryIf: func(err error) bool { return errors.Is(err, errBoom) }}, handle: returns(wrapped(errBoom, 5)), want: retried},
		{name: "RetryIf panics", opts: drover.WorkerOpts{RetryIf: func(error) bool { panic("oh") }}, handle: returns(errBoom), want: retried},
		{name: "Retry beats RetryIf", opts: drover.WorkerOpts{RetryIf: never}, handle: returns(drover.Retry(errBoom)), want: retried},
		{name: "Retry wrapped beats RetryIf", opts: drover.WorkerOpts{RetryIf: never}, handle: returns(wrapped(drover.Retry(errBoom), 30)), want: retried},
		{name: "Retry does not beat the attempts", opts: drover.WorkerOpts{MaxAttempts: 1}, handle: returns(drover.Retry(errBoom)), want: exhausted},
		{name: "RetryAfter beats RetryIf", opts: drover.WorkerOpts{RetryIf: never}, handle: returns(drover.RetryAfter(10*time.Minute, errBoom)), want: throttled},
		{name: "DontCount beats RetryIf", opts: drover.WorkerOpts{RetryIf: never}, handle: returns(drover.DontCount(errBoom)), want: uncounted},
		{name: "RetryIf is not asked about a panic", opts: drover.WorkerOpts{RetryIf: never}, handle: panics("boom"), want: panicked},
		{name: "RetryIf is asked about a returned deadline", opts: drover.WorkerOpts{RetryIf: never, Timeout: 20 * time.Millisecond}, handle: untilDone, want: discarded(timedOut, drover.ReasonUnrecoverable)},

		{name: "Permanent", handle: returns(permanent(true)), want: unrecoverable},
		{name: "Permanent wrapped and joined", handle: returns(errors.Join(errors.New("a"), wrapped(permanent(true), 5))), want: unrecoverable},
		{name: "Permanent says no", handle: returns(permanent(false)), want: retried},
		{name: "Permanent says no, and RetryIf too", opts: drover.WorkerOpts{RetryIf: never}, handle: returns(permanent(false)), want: unrecoverable},
		{name: "the outermost Permanent decides", handle: returns(fmt.Errorf("%w: %w", permanent(false), permanent(true))), want: retried},
		{name: "Permanent on a nil pointer panics", handle: returns((*permanentPointer)(nil)), want: retried},
		{name: "Permanent panics, and RetryIf says no", opts: drover.WorkerOpts{RetryIf: never}, handle: returns((*permanentPointer)(nil)), want: unrecoverable},
		{name: "Permanent beats RetryIf", opts: drover.WorkerOpts{RetryIf: func(error) bool { t.Error("RetryIf was asked about a permanent error"); return true }}, handle: returns(permanent(true)), want: unrecoverable},
		{name: "Retry beats Permanent", handle: returns(drover.Retry(permanent(true))), want: retried},
		{name: "Retry inside beats Permanent", handle: returns(permanentAround{drover.Retry(errBoom)}), want: retried},
		{name: "RetryAfter beats Permanent", handle: returns(drover.RetryAfter(10*time.Minute, permanent(true))), want: throttled},
		{name: "DontCount beats Permanent", handle: returns(drover.DontCount(permanent(true))), want: uncounted},
		{name: "Snooze beats Permanent", handle: returns(errors.Join(permanent(true), drover.Snooze(time.Hour))), want: snoozed},
		{name: "Cancel beats Permanent", handle: returns(drover.Cancel(permanent(true))), want: cancelled},
		{name: "a case beats Permanent", opts: drover.WorkerOpts{Cases: []drover.ErrorCase{{Name: "known", If: func(error) bool { return true }}}}, handle: returns(permanent(true)), want: retried},
		{name: "Permanent beats a case that does not match", opts: drover.WorkerOpts{Cases: []drover.ErrorCase{{Name: "other", If: never}}}, handle: returns(permanent(true)), want: unrecoverable},
		{name: "Permanent is not asked about a panic", handle: panics(permanent(true)), want: panicked},

		{name: "DontCount", handle: returns(drover.DontCount(errBoom)), want: uncounted},
		{name: "DontCount on the last attempt", opts: drover.WorkerOpts{MaxAttempts: 1}, handle: returns(wrapped(drover.DontCount(errBoom), 3)), want: uncounted},

		{name: "Snooze", handle: returns(drover.Snooze(time.Hour)), want: snoozed},
		{name: "Snooze wrapped, on the last attempt", opts: drover.WorkerOpts{MaxAttempts: 1, RetryIf: never}, handle: returns(wrapped(drover.Snooze(time.Hour), 5)), want: snoozed},
		{name: "Cancel", handle: returns(drover.Cancel(errBoom)), want: cancelled},
		{name: "Cancel without an error", handle: returns(wrapped(drover.Cancel(nil), 3)), want: text(cancelled, "cancel")},

		{name: "panic with a string", handle: panics("boom"), want: text(panicked, "panic: boom")},
		{name: "panic with an error", handle: panics(errBoom), want: text(panicked, "panic: boom")},
		{name: "panic with nil", handle: panics(nil), want: text(panicked, "nil")},
		{name: "panic with a struct", handle: panics(struct{ Secret string }{"s3cret"}), want: text(panicked, "panic: value of type struct")},
		{name: "panic with an error whose Error panics", handle: panics(panicsInError{}), want: text(panicked, "panic: value of type drover_test.panicsInError")},
		{name: "panic of the runtime", handle: func(context.Context, *drover.Job) error { return []error{}[len(t.Name())] }, want: text(panicked, "index out of range")},
		{name: "panic on the last attempt", opts: drover.WorkerOpts{MaxAttempts: 1}, handle: panics("boom"), want: discarded(panicked, drover.ReasonAttemptsExhausted)},
		{name: "DiscardOnPanic", opts: drover.WorkerOpts{DiscardOnPanic: true}, handle: panics("boom"), want: discarded(panicked, drover.ReasonPanic)},
		{name: "DiscardOnPanic and an error", opts: drover.WorkerOpts{DiscardOnPanic: true}, handle: returns(errBoom), want: retried},
		{name: "Goexit", handle: func(context.Context, *drover.Job) error { runtime.Goexit(); return nil }, want: text(panicked, "runtime.Goexit")},
		{name: "Goexit and DiscardOnPanic", opts: drover.WorkerOpts{DiscardOnPanic: true}, handle: func(context.Context, *drover.Job) error { runtime.Goexit(); return nil }, want: discarded(text(panicked, "runtime.Goexit"), drover.ReasonPanic)},

		{name: "past the timeout", opts: drover.WorkerOpts{Timeout: 20 * time.Millisecond}, handle: untilDone, want: timedOut},
		{name: "past the timeout, told by its cause", opts: drover.WorkerOpts{Timeout: 20 * time.Millisecond}, handle: func(ctx context.Context, _ *drover.Job) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}, want: text(timedOut, "timed out")},
		{name: "past the timeout on the last attempt", opts: drover.WorkerOpts{MaxAttempts: 1, Timeout: 20 * time.Millisecond}, handle: untilDone, want: discarded(timedOut, drover.ReasonAttemptsExhausted)},
		{name: "past the timeout, and done", opts: drover.WorkerOpts{Timeout: 20 * time.Millisecond}, handle: func(ctx context.Context, _ *drover.Job) error {
			<-ctx.Done()
			return nil
		}, want: completed},

		{name: "the strategy stops", opts: drover.WorkerOpts{Retry: drover.Custom{Func: func(drover.FailedRun) (time.Duration, bool) { return 0, false }}}, handle: returns(errBoom), want: unrecoverable},
		{name: "the strategy panics", opts: drover.WorkerOpts{Retry: drover.Custom{Func: func(drover.FailedRun) (time.Duration, bool) { panic("oh") }}}, handle: returns(errBoom), want: retried},
		{name: "the retry would come after RetryUntil", job: drover.EnqueueOpts{RetryUntil: time.Now().Add(10 * time.Second)}, handle: returns(errBoom), want: discarded(retried, drover.ReasonTimeBudget)},
		{name: "RetryAfter would come after RetryUntil", job: drover.EnqueueOpts{RetryUntil: time.Now().Add(9 * time.Minute)}, handle: returns(drover.RetryAfter(10*time.Minute, errBoom)), want: discarded(throttled, drover.ReasonTimeBudget)},
		{name: "the retry comes before RetryUntil", job: drover.EnqueueOpts{RetryUntil: time.Now().Add(time.Hour)}, handle: returns(errBoom), want: retried},
		{
			name: "expired", job: drover.EnqueueOpts{ExpiresAt: time.Now().Add(-time.Minute)}, handle: returns(nil),
			want: want{state: drover.Discarded, reason: drover.ReasonExpired, event: "discarded", least: -time.Hour, most: 24 * time.Hour, unstarted: true},
		},
		{name: "not yet expired", job: drover.EnqueueOpts{ExpiresAt: time.Now().Add(time.Hour)}, handle: returns(nil), want: completed},
	}

	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	cfg := drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: len(cases)}}} // none waits for a slot, so that it is not released and claimed again
	ids := map[string]string{}
	for _, c := range cases {
		cfg.Workers = append(cfg.Workers, dynWorker(c.name, c.opts, c.handle))
		ids[c.name] = db.enqueue(t, dyn{kind: c.name}, &c.job)
	}
	sup := db.run(t, cfg)
	for _, c := range cases {
		id := ids[c.name]
		end := heard.End(t, id)
		row := db.EndRow(t, id)
		t.Run(c.name, func(t *testing.T) {
			checkEnd(t, row.State, c.want.state, "state")
			checkEnd(t, end.Name, c.want.event, "event")
			checkEnd(t, row.Finalized, c.want.state.Final(), "finalized")
			checkEnd(t, row.Attempt, c.want.attempt, "attempt")
			checkEnd(t, row.Total, c.want.failures, "errors_total")
			checkEnd(t, row.Snoozes, c.want.snoozes, "snoozes")
			checkEnd(t, row.Uncounted, c.want.uncounted, "uncounted")
			checkEnd(t, row.Crashes, 0, "crashes")
			checkEnd(t, end.Reason, c.want.reason, "event's reason")
			if c.want.reason != "" && (row.Reason == nil || *row.Reason != c.want.reason) {
				t.Errorf("discard_reason = %v, want %q", row.Reason, c.want.reason)
			}
			if row.Delay < c.want.least-time.Millisecond || row.Delay > c.want.most+time.Second {
				t.Errorf("due %v after the run, want %v to %v", row.Delay, c.want.least, c.want.most)
			}
			if heard.Count(id, "started") != 1 != c.want.unstarted {
				t.Errorf("%d started events", heard.Count(id, "started"))
			}
			if n := heard.Ends(id); n != 1 {
				t.Errorf("%d end events, want 1: %v", n, heard.Of(id))
			}
			if !c.want.unstarted && end.Duration <= 0 {
				t.Errorf("event's duration = %v", end.Duration)
			}
			if (end.Name == "failed" || end.Name == "snoozed") && (end.Backoff < c.want.least || end.Backoff > c.want.most || time.Until(end.Next) > end.Backoff || time.Until(end.Next) < end.Backoff-time.Minute) {
				t.Errorf("event's backoff %v, next %v", end.Backoff, end.Next)
			}
			if c.want.class == "" {
				if len(row.Errors) != 0 {
					t.Errorf("errors = %+v, want none", row.Errors)
				}
				return
			}
			if len(row.Errors) != 1 {
				t.Fatalf("errors = %+v, want one", row.Errors)
			}
			e := row.Errors[0]
			checkEnd(t, e.Class, c.want.class, "class")
			checkEnd(t, end.Class, c.want.class, "event's class")
			checkEnd(t, end.Error, e.Error, "event's error")
			checkEnd(t, e.Attempt, 1, "entry's attempt")
			checkEnd(t, e.ClaimSeq, 1, "entry's claim_seq")
			checkEnd(t, e.Supervisor, drover.EngineOf(sup).Lease.Load().ID, "entry's supervisor")
			if e.Class != drover.ClassTimeout { // if the handler returns late there is a trace, on time there is none
				checkEnd(t, e.Trace != "", c.want.trace, "trace")
			}
			if !strings.Contains(e.Error, c.want.text) {
				t.Errorf("text = %q, want %q in it", e.Error, c.want.text)
			}
			if e.At.IsZero() || len(e.Fingerprint) != 16 || e.Type == "" {
				t.Errorf("entry lacks time, fingerprint or type: %+v", e)
			}
			if row.State == drover.Discarded && e.DelayMS != 0 {
				t.Errorf("entry's delay_ms = %d, and nothing comes after it", e.DelayMS)
			}
			if row.State == drover.Retryable && e.DelayMS != end.Backoff.Milliseconds() {
				t.Errorf("entry's delay_ms = %d, event's backoff %v", e.DelayMS, end.Backoff)
			}
		})
	}
}

func checkEnd[T comparable](t *testing.T, got, want T, what string) {
	t.Helper()
	if got != want {
		t.Errorf("%s = %v, want %v", what, got, want)
	}
}

type decodes struct{ N int }

func (decodes) Kind() string { return "decodes" }

// F-7: if the args do not decode, the job ends. A kind that is not known here waits.
func TestUndecodableArgsAndUnknownKinds(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	var bad []string
	for _, args := range []string{`{"N": "seven"}`, `[1]`, `"x"`, `{"N": 1e40}`, `{"N": 1.5}`} {
		bad = append(bad, value[string](t, db, `insert into jobs (kind, args) values ('decodes', $1::jsonb) returning id`, args))
	}
	unknown := db.enqueue(t, dyn{kind: "of another process"}, nil)
	good := db.enqueue(t, decodes{7}, nil)
	calls := atomic.Int64{}
	db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: []drover.Worker{
		drover.Handle(func(context.Context, *drover.Job, decodes) error { calls.Add(1); return nil }, drover.WorkerOpts{MaxAttempts: 10}),
	}})
	for _, id := range bad {
		end := heard.End(t, id)
		row := db.EndRow(t, id)
		if row.State != drover.Discarded || row.Reason == nil || *row.Reason != drover.ReasonUndecodable || row.Attempt != 1 || row.Total != 1 || row.Errors[0].Class != drover.ClassDecode {
			t.Errorf("undecodable job = %+v", row)
		}
		if end.Name != "discarded" || end.Reason != drover.ReasonUndecodable || end.Class != drover.ClassDecode {
			t.Errorf("event = %+v", end)
		}
	}
	heard.End(t, good)
	if n := calls.Load(); n != 1 {
		t.Errorf("handler called %d times, want 1", n)
	}
	if row := db.EndRow(t, unknown); row.State != drover.Available || row.ClaimSeq != 0 {
		t.Errorf("job of an unknown kind = %+v", row)
	}
	if n := len(heard.Of(unknown)); n != 1 { // enqueued
		t.Errorf("events of an unknown kind: %v", heard.Of(unknown))
	}
}

// F-2: every failed run is counted; the first 5 and the last 15 are kept, in order, and a trace only in the newest.
func TestErrorsAreBoundedAndInOrder(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	id := db.enqueue(t, dyn{kind: "k"}, nil)
	db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: []drover.Worker{
		dynWorker("k", drover.WorkerOpts{MaxAttempts: 25, Retry: drover.Constant{Delay: time.Millisecond}}, func(_ context.Context, job *drover.Job) error {
			panic(fmt.Sprintf("run %d", job.Attempt))
		}),
	}})
	heard.Wait(t, id, "discarded")
	row := db.EndRow(t, id)
	if row.State != drover.Discarded || *row.Reason != drover.ReasonAttemptsExhausted || row.Total != 25 || row.Attempt != 25 || len(row.Errors) != 20 {
		t.Fatalf("row = %+v", row)
	}
	for i, e := range row.Errors {
		n := i + 1
		if i >= 5 {
			n = i + 6
		}
		if e.Attempt != n || e.ClaimSeq != n || e.Error != fmt.Sprintf("panic: run %d", n) {
			t.Errorf("entry %d = attempt %d, claim_seq %d, %q; want %d", i, e.Attempt, e.ClaimSeq, e.Error, n)
		}
		if (e.Trace != "") != (i == 19) {
			t.Errorf("entry %d has a trace of %d bytes", i, len(e.Trace))
		}
	}
	if n := heard.Count(id, "failed"); n != 24 {
		t.Errorf("%d failed events, want 24", n)
	}
	// F-11: the history of a job and the summary of discarded jobs are one line of SQL each.
	n := value[int](t, db, `select count(*) from jobs, jsonb_array_elements(errors) e where id = $1 and e->>'class' = 'panic'`, id)
	if n != 20 {
		t.Errorf("history by SQL has %d entries", n)
	}
	if n := value[int](t, db, `select jobs from discarded_summary where fingerprint = $1`, row.Errors[19].Fingerprint); n != 1 {
		t.Errorf("summary counts %d", n)
	}
}

// F-4: a job that only snoozes does not loop unseen, and never runs out of attempts.
func TestSnoozesAreCounted(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	id := db.enqueue(t, dyn{kind: "k"}, nil)
	seen := make(chan drover.Job, 10)
	db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: []drover.Worker{
		dynWorker("k", drover.WorkerOpts{MaxAttempts: 2}, func(_ context.Context, job *drover.Job) error {
			seen <- *job
			if job.Snoozes < 4 {
				return drover.Snooze(time.Duration(-job.Snoozes))
			}
			return nil
		}),
	}})
	heard.Wait(t, id, "completed")
	for i := range 5 {
		if job := <-seen; job.Attempt != 1 || job.Snoozes != i || job.Failures != 0 || job.LastError != "" {
			t.Errorf("run %d saw attempt %d, %d snoozes, %d failures", i, job.Attempt, job.Snoozes, job.Failures)
		}
	}
	if row := db.EndRow(t, id); row.Attempt != 1 || row.ClaimSeq != 5 || row.Snoozes != 4 {
		t.Errorf("row = %+v", row)
	}
}

// F-4: DontCount gives back 100 runs of a job; then they count.
func TestDontCountHasACap(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	var runs atomic.Int64
	id := db.enqueue(t, dyn{kind: "k"}, nil)
	db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: []drover.Worker{
		dynWorker("k", drover.WorkerOpts{MaxAttempts: 2, Retry: drover.Constant{Delay: time.Nanosecond}}, func(context.Context, *drover.Job) error {
			if runs.Add(1) > 150 { // so many runs happen only if the cap does not work
				return drover.Discard(errBoom)
			}
			return drover.DontCount(errBoom)
		}),
	}})
	db.waitFor(t, 2*time.Minute, `select state = 'discarded' from jobs where id = $1`, id) // a hundred runs, one by one
	if row := db.EndRow(t, id); row.Total != 102 || row.Uncounted != 100 || row.Attempt != 2 || *row.Reason != drover.ReasonAttemptsExhausted {
		t.Errorf("row = %+v", row)
	}
}

// longTypeName is a type whose name alone would fill much of an entry.
type longTypeName[T any] struct{ text string }

func (e longTypeName[T]) Error() string { return e.text }

type fiftyFiveBytesOfATypeNameThatIsLongForNoReasonAtAllButThis struct{}

// F-10: the column errors is valid, bounded and without secrets, whatever handlers return.
func TestErrorsEntriesAreSanitised(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	redact := func(s string) string {
		if strings.Contains(s, "panic the redactor") {
			panic(secret)
		}
		return strings.ReplaceAll(s, secret, "***")
	}
	big := strings.Repeat("0123456789abcdef ", 50<<20/17)
	cases := []struct {
		name string
		err  error
		want string // the beginning of the text
		mark bool   // it shows that it was cut
	}{
		{name: "nul", err: errors.New("a\x00b"), want: "a\uFFFDb"},
		{name: "invalid utf-8", err: errors.New("a\xff\xfe\xc3b"), want: "a\uFFFDb"},
		{name: "half a surrogate", err: errors.New("a\xed\xa0\x80b"), want: "a\uFFFDb"},
		{name: "nothing but nul", err: errors.New("\x00\x00"), want: "\uFFFD"},
		{name: "empty", err: errors.New(""), want: ""},
		{name: "50 MB", err: errors.New(big), want: "0123456789abcdef 01", mark: true},
		{name: "50 MB of NUL", err: errors.New(strings.Repeat("\x00", 50<<20)), want: "\uFFFD\uFFFD", mark: true},
		{name: "quotes", err: errors.New(strings.Repeat(`"\<>&`, 1000)), want: `"\<>&`, mark: true},
		{name: "long type", err: longTypeName[map[fiftyFiveBytesOfATypeNameThatIsLongForNoReasonAtAllButThis]fiftyFiveBytesOfATypeNameThatIsLongForNoReasonAtAllButThis]{strings.Repeat("x", 5000)}, want: "xxx", mark: true},
		{name: "a secret", err: errors.New("password " + secret + " refused"), want: "password *** refused"},
		{name: "a secret at the cut", err: errors.New(strings.Repeat("x", drover.MaxErrorText-25) + secret + strings.Repeat("y", 100)), want: "xxx", mark: true},
		{name: "the redactor panics", err: errors.New("panic the redactor " + secret), want: "[redaction failed]"},
	}
	var heard harness.EventLog
	var logged lockedBuffer
	db := newTestDBWith(t, drover.Config{Redact: redact, Logger: slog.New(slog.NewJSONHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug})), Hooks: []drover.Hooks{heard.Hooks()}})
	cfg := drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: len(cases) + 21}}} // no job has to wait behind 50 MB: it would be released
	ids := map[string]string{}
	for _, c := range cases {
		cfg.Workers = append(cfg.Workers, dynWorker(c.name, drover.WorkerOpts{}, func(context.Context, *drover.Job) error { return c.err }))
		ids[c.name] = db.enqueue(t, dyn{kind: c.name}, nil)
	}
	cfg.Workers = append(cfg.Workers, dynWorker("long", drover.WorkerOpts{}, func(_ context.Context, job *drover.Job) error {
		return errors.New("job " + strings.Repeat("7", 1+int(job.ID[25])%9) + strings.Repeat(" and so on", 200))
	}))
	var long []string
	for range 20 {
		long = append(long, db.enqueue(t, dyn{kind: "long"}, nil))
	}
	cfg.Workers = append(cfg.Workers, dynWorker("panics", drover.WorkerOpts{}, func(context.Context, *drover.Job) error { panic(secret + "\x00") }))
	ids["panics"] = db.enqueue(t, dyn{kind: "panics"}, nil)
	db.run(t, cfg)
	for _, c := range cases {
		end := heard.End(t, ids[c.name])
		e := db.EndRow(t, ids[c.name]).Errors[0]
		if !strings.HasPrefix(e.Error, c.want) || !c.mark && e.Error != c.want && c.want != "\uFFFD" {
			t.Errorf("%s: text = %.80q, want %q", c.name, e.Error, c.want)
		}
		if strings.Contains(e.Error, "bytes]") != c.mark || len(e.Error) > drover.MaxErrorText || !utf8.ValidString(e.Error) {
			t.Errorf("%s: text of %d bytes: %q", c.name, len(e.Error), e.Error)
		}
		if end.Error != e.Error {
			t.Errorf("%s: event's error %.80q is not the entry's", c.name, end.Error)
		}
		if c.err.Error() != "" && strings.Contains(e.Error, "hunt") {
			t.Errorf("%s: part of the secret is left: %q", c.name, e.Error)
		}
	}
	prints := map[string]bool{}
	for _, id := range long {
		heard.End(t, id)
		prints[db.EndRow(t, id).Errors[0].Fingerprint] = true
	}
	if len(prints) != 1 {
		t.Errorf("texts that differ in numbers, and so in where they are cut, have %d fingerprints", len(prints))
	}
	heard.End(t, ids["panics"])
	if e := db.EndRow(t, ids["panics"]).Errors[0]; e.Error != "panic: ***\uFFFD" || len(e.Trace) > drover.MaxErrorTrace || !strings.Contains(e.Trace, "TestErrorsEntriesAreSanitised") {
		t.Errorf("panic's entry = %+v", e)
	}
	if n := value[int](t, db, `select max(pg_column_size(e - 'trace')) from jobs, jsonb_array_elements(errors) e`); n > 1024 {
		t.Errorf("the largest entry has %d bytes without its trace, want at most 1024", n)
	}
	if bytes.Contains(logged.Bytes(), []byte("hunt")) {
		t.Error("the secret was logged")
	}
}

// F-12: an outcome that the database refuses because of its data holds up nobody. It is recorded without the data.
func TestOneRefusedOutcomeInABatch(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	db.exec(t, `alter table jobs add check (not errors @? '$[*] ? (@.error == "poison")')`)
	const n = 500
	batch := make([]drover.EnqueueItem, n)
	for i := range batch {
		batch[i].Args = dyn{kind: "k", N: i}
	}
	receipts, err := db.client.EnqueueMany(t.Context(), batch)
	if err != nil {
		t.Fatal(err)
	}
	poison := receipts[321].ID
	// All end at the same time, so that they are settled together.
	all := make(chan struct{})
	running := atomic.Int64{}
	db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: n}}, Workers: []drover.Worker{
		dynWorker("k", drover.WorkerOpts{MaxAttempts: 5}, func(_ context.Context, job *drover.Job) error {
			if running.Add(1) == n {
				close(all)
			}
			<-all
			switch {
			case job.ID == poison:
				return errors.New("poison")
			case job.ID[25]%2 == 0:
				return nil
			}
			return errBoom
		}),
	}})
	for _, r := range receipts {
		heard.End(t, r.ID)
	}
	if left := value[int](t, db, `select count(*) from jobs where state not in ('completed', 'retryable')`); left != 0 {
		t.Errorf("%d jobs were not settled", left)
	}
	row := db.EndRow(t, poison)
	if row.State != drover.Retryable || row.Total != 1 || row.Errors[0].Class != drover.ClassError || row.Errors[0].Error == "poison" || row.Delay < 14*time.Second {
		t.Errorf("refused job = %+v", row)
	}
	for _, r := range receipts {
		if heard.Ends(r.ID) != 1 {
			t.Errorf("%d end events", heard.Ends(r.ID))
		}
	}
}

// F-12: a trigger of the application's that raises an exception over one row does not stop the others.
func TestATriggerThatRefusesOneRow(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	db.exec(t, `create function refuse() returns trigger language plpgsql as $$
		begin if new.errors::text like '%poison%' then raise exception 'no'; end if; return new; end $$`)
	db.exec(t, `create trigger refuse before update on jobs for each row execute function refuse()`)
	db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: []drover.Worker{
		dynWorker("bad", drover.WorkerOpts{}, func(context.Context, *drover.Job) error { return errors.New("poison") }),
		dynWorker("good", drover.WorkerOpts{}, doNothing),
	}})
	bad := db.enqueue(t, dyn{kind: "bad"}, nil)
	heard.Wait(t, bad, "started")
	heard.End(t, db.enqueue(t, dyn{kind: "good"}, nil))
	heard.End(t, bad)
	if text := value[string](t, db, `select errors->-1->>'error' from jobs where id = $1`, bad); text != "outcome could not be encoded" {
		t.Errorf("error = %q", text)
	}
}

// a worker's RetryFor counts from the enqueue or the last redrive, however the job came to this run. The job's own
// RetryUntil wins.
func TestRetryFor(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	const ago = `now() - interval '2 hours'`
	cases := map[string]struct {
		columns, values string
		ends            bool
	}{
		"new":                           {`created_at, scheduled_at`, `now(), now()`, false},
		"30 minutes old":                {`created_at, scheduled_at`, `now() - interval '30 min', now() - interval '30 min'`, false},
		"late at its first run":         {`created_at, scheduled_at`, ago + `, ` + ago, true},
		"enqueued for later":            {`created_at, scheduled_at`, ago + `, now()`, true},
		"failed before":                 {`created_at, scheduled_at, attempt, errors_total, last_delay_ms, errors`, ago + `, now(), 1, 1, 15000, '[{"class": "error", "error": "2 3"}]'`, true},
		"failed before, 30 minutes old": {`created_at, scheduled_at, attempt, errors_total`, `now() - interval '30 min', now(), 1, 1`, false},
		"has tags":                      {`created_at, scheduled_at, tags`, ago + `, now(), '{a}'`, true},
		"redriven":                      {`created_at, scheduled_at, redrives, redriven_at, errors_total`, ago + `, now(), 1, now(), 3`, false},
		"redriven two hours ago":        {`created_at, scheduled_at, redrives, redriven_at`, `now() - interval '1 day', now(), 1, ` + ago, true},
		"RetryUntil is later":           {`created_at, scheduled_at, retry_until`, ago + `, now(), now() + interval '1 hour'`, false},
		"RetryUntil is sooner":          {`created_at, scheduled_at, retry_until`, `now(), now(), now() + interval '1 s'`, true},
		"enqueued in the year 1":        {`created_at, scheduled_at`, `'0001-01-01+00', now()`, true},
	}
	ids := map[string]string{}
	for name, c := range cases {
		ids[name] = value[string](t, db, `insert into jobs (kind, `+c.columns+`) values ('fails', `+c.values+`) returning id`)
	}
	ids["without a bound"] = value[string](t, db, `insert into jobs (kind, created_at, scheduled_at) values ('unbounded', `+ago+`, now()) returning id`)
	fails, retry := func(context.Context, *drover.Job) error { return errBoom }, drover.Constant{Delay: 10 * time.Minute} // so that none runs twice
	db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: []drover.Worker{
		dynWorker("fails", drover.WorkerOpts{RetryFor: time.Hour, MaxAttempts: drover.Unlimited, Retry: retry}, fails), dynWorker("unbounded", drover.WorkerOpts{Retry: retry}, fails),
	}})
	eventually(t, func() bool {
		return value[int](t, db, `select count(*) from jobs where state not in ('retryable', 'discarded')`) == 0
	})
	for name, id := range ids {
		job, want := db.Get(t, id), drover.Retryable
		if cases[name].ends {
			want = drover.Discarded
		}
		if job.State != want || want == drover.Discarded && job.DiscardReason != drover.ReasonTimeBudget || job.Attempt == 0 {
			t.Errorf("%s: %s (%s) after attempt %d, want %s", name, job.State, job.DiscardReason, job.Attempt, want)
		}
		if name == "failed before" && job.Errors[len(job.Errors)-1].Error != "boom" {
			t.Errorf("%+v", job.Errors)
		}
	}
}

// stuckHere is a place that a trace names.
func stuckHere(over func() bool) {
	for !over() {
		<-time.After(10 * time.Millisecond)
	}
}

// stuckThere is another.
func stuckThere(over func() bool) {
	for !over() {
		<-time.After(10 * time.Millisecond)
	}
}

// The entry of a run that timed out shows where its handler was, whether or not the handler heeds its context.
func TestATimeoutShowsWhereTheHandlerWas(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	var end atomic.Bool
	t.Cleanup(func() { end.Store(true) })
	db.launch(t, drover.SupervisorConfig{Queues: []drover.Queue{{Retry: drover.Every(time.Hour)}}, Workers: []drover.Worker{
		dynWorker("heeds", drover.WorkerOpts{Timeout: 2 * time.Second}, func(ctx context.Context, j *drover.Job) error {
			stuckHere(func() bool { return ctx.Err() != nil && drover.RunOf(j).Stack() != "" }) // the watch may be late
			return ctx.Err()
		}),
		dynWorker("deaf", drover.WorkerOpts{Timeout: time.Second}, func(context.Context, *drover.Job) error { stuckThere(end.Load); return nil }),
		dynWorker("fails", drover.WorkerOpts{}, func(context.Context, *drover.Job) error { return errBoom }),
	}})
	for kind, want := range map[string]string{"heeds": "stuckHere", "deaf": "stuckThere", "fails": ""} {
		id := db.enqueue(t, dyn{kind: kind}, nil)
		db.waitFor(t, 30*time.Second, `select state = 'retryable' from jobs where id = $1`, id)
		newest := db.Get(t, id).Errors[0]
		if !strings.Contains(newest.Trace, want) || (want == "") != (newest.Trace == "") {
			t.Errorf("%s (%s): no %q in the trace %q", kind, newest.Class, want, newest.Trace)
		}
	}
}

// The history of a job shows how long its runs took, below a millisecond too.
func TestEntriesHaveDurationsBelowAMillisecond(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	sup := db.launch(t, drover.SupervisorConfig{Queues: []drover.Queue{{Retry: drover.Every(time.Hour)}}, Workers: handling(func(context.Context, *drover.Job, int) error { return errBoom })})
	ids := db.EnqueueJobs(t, 50, nil)
	db.waitFor(t, 30*time.Second, `select count(*) = 50 from jobs where state = 'retryable'`)
	sup.Stop(t)
	below := 0
	for _, id := range ids {
		if took := db.Get(t, id).Errors[0].DurationMS; took > 0 && took < 1 {
			below++
		}
	}
	if below == 0 {
		t.Error("none of 50 runs took less than a millisecond")
	}
}
