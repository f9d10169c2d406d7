package drover

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// VerdictOf says of every return what the outcome of the run goes by.
func TestVerdictOf(t *testing.T) {
	t.Parallel()
	wrapped := func(err error) error { return fmt.Errorf("while charging: %w", err) }
	plain := wrapped(errBoom)
	panicked := &panicError{value: "oh", trace: "where"}
	decode := &decodeError{"args do not decode", errBoom}
	for _, c := range []struct {
		err  error
		want Verdict
		end  eventKind
	}{
		{nil, Verdict{Kind: VerdictDone}, eventCompleted},
		{plain, Verdict{Kind: VerdictError, Cause: plain}, eventFailed},
		{wrapped(Discard(errBoom)), Verdict{Kind: VerdictDiscard, Cause: errBoom}, eventDiscarded},
		{permanentError(true), Verdict{Kind: VerdictDiscard, Cause: permanentError(true)}, eventDiscarded},
		{permanentError(false), Verdict{Kind: VerdictError, Cause: permanentError(false)}, eventFailed},
		{Retry(permanentError(true)), Verdict{Kind: VerdictRetry, Cause: permanentError(true)}, eventFailed},
		{decode, Verdict{Kind: VerdictDiscard, Cause: decode}, eventDiscarded},
		{wrapped(RetryAfter(time.Minute, errBoom)), Verdict{Kind: VerdictRetryAfter, Delay: time.Minute, Cause: errBoom}, eventFailed},
		{RetryAfter(-time.Minute, nil), Verdict{Kind: VerdictRetryAfter}, eventFailed},
		{DontCount(errBoom), Verdict{Kind: VerdictDontCount, Cause: errBoom}, eventFailed},
		{wrapped(Snooze(time.Hour)), Verdict{Kind: VerdictSnooze, Delay: time.Hour}, eventSnoozed},
		{Cancel(nil), Verdict{Kind: VerdictCancel}, eventCancelled},
		{Cancel(errBoom), Verdict{Kind: VerdictCancel, Cause: errBoom}, eventCancelled},
		{panicked, Verdict{Kind: VerdictPanic, Cause: panicked, Trace: "where"}, eventFailed},
		{Snooze(time.Hour), Verdict{Kind: VerdictSnooze, Delay: time.Hour}, eventSnoozed},
		{errors.Join(errBoom, Snooze(time.Hour), Discard(errBoom)), Verdict{Kind: VerdictSnooze, Delay: time.Hour}, eventSnoozed},
		{Discard(Snooze(time.Hour)), Verdict{Kind: VerdictDiscard, Cause: Snooze(time.Hour)}, eventDiscarded},
	} {
		got := VerdictOf(c.err)
		if got.Kind != c.want.Kind || got.Delay != c.want.Delay || got.Trace != c.want.Trace || fmt.Sprint(got.Cause) != fmt.Sprint(c.want.Cause) {
			t.Errorf("VerdictOf(%v) = %+v, want %+v", c.err, got, c.want)
		}
		if failed := c.end == eventFailed || c.end == eventDiscarded; got.Failed() != failed {
			t.Errorf("VerdictOf(%v).Failed() = %v", c.err, got.Failed())
		}
		if o := bareRun().decide(c.err); o.event != c.end {
			t.Errorf("decide(%v) = event %d, want %d", c.err, o.event, c.end)
		}
	}
}

// bareRun is a started run of a job that has attempts left, outside of any supervisor.
func bareRun() *run {
	client := &Client{log: quiet()}
	r := &run{
		shared: &shared{client: client, log: client.log, now: time.Now}, worker: &Worker{}, lease: &lease{ctx: context.Background()},
		space: Job{ID: "x", Attempt: 1, MaxAttempts: 20}, strategy: DefaultRetry(),
	}
	r.job, r.lazy.parent, r.startedAt = &r.space, context.Background(), time.Now()
	r.ctx = &r.lazy
	return r
}

// What a panic leaves behind reaches VerdictOf with its stack.
func TestVerdictOfAPanic(t *testing.T) {
	t.Parallel()
	r := bareRun()
	r.worker = &Worker{handle: func(context.Context, *Job) error { panic(errBoom) }}
	v := VerdictOf(r.call())
	if v.Kind != VerdictPanic || !errors.Is(v.Cause, errBoom) || !strings.Contains(v.Trace, "TestVerdictOfAPanic") || !v.Failed() {
		t.Errorf("verdict = %+v", v)
	}
}
