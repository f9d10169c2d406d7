package drover

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/drover-queue/drover/internal/engine"
)

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
