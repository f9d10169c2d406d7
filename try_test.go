package drover

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// lasting is an error that no retry can correct, and reports it.
type lasting struct{}

func (lasting) Error() string   { return "lasting" }
func (lasting) Permanent() bool { return true }

// Try reads a return by the rules of the worker, as a supervisor does.
func TestTry(t *testing.T) {
	t.Parallel()
	returns := func(err error) func(context.Context, *Job) error {
		return func(context.Context, *Job) error { return err }
	}
	isBoom := func(err error) bool { return errors.Is(err, errBoom) }
	for name, c := range map[string]struct {
		opts    WorkerOpts
		handler func(context.Context, *Job) error
		job     Job
		want    Verdict
	}{
		"done":                       {handler: doNothing, want: Verdict{Kind: VerdictDone}},
		"error":                      {handler: returns(errBoom), want: Verdict{Kind: VerdictError, Cause: errBoom}},
		"discard":                    {handler: returns(Discard(errBoom)), want: Verdict{Kind: VerdictDiscard, Cause: errBoom}},
		"snooze":                     {handler: returns(Snooze(time.Hour)), want: Verdict{Kind: VerdictSnooze, Delay: time.Hour}},
		"the last attempt":           {handler: returns(errBoom), job: Job{Attempt: 20}, want: Verdict{Kind: VerdictError, Cause: errBoom}},
		"panic":                      {handler: func(context.Context, *Job) error { panic(errBoom) }, want: Verdict{Kind: VerdictPanic, Cause: errBoom}},
		"panic, discarded":           {WorkerOpts{DiscardOnPanic: true}, func(context.Context, *Job) error { panic(errBoom) }, Job{}, Verdict{Kind: VerdictDiscard, Cause: errBoom}},
		"permanent":                  {handler: returns(lasting{}), want: Verdict{Kind: VerdictDiscard, Cause: lasting{}}},
		"not by RetryIf":             {opts: WorkerOpts{RetryIf: func(error) bool { return false }}, handler: returns(errBoom), want: Verdict{Kind: VerdictDiscard, Cause: errBoom}},
		"RetryIf is not asked":       {opts: WorkerOpts{RetryIf: func(error) bool { return false }}, handler: returns(Retry(errBoom)), want: Verdict{Kind: VerdictRetry, Cause: errBoom}},
		"a case discards":            {opts: WorkerOpts{Cases: []ErrorCase{{Name: "boom", If: isBoom, Discard: true}}}, handler: returns(errBoom), want: Verdict{Kind: VerdictDiscard, Cause: errBoom}},
		"a case retries":             {opts: WorkerOpts{Cases: []ErrorCase{{Name: "all", If: func(error) bool { return true }}}}, handler: returns(lasting{}), want: Verdict{Kind: VerdictError, Cause: lasting{}}},
		"the strategy gives up":      {opts: WorkerOpts{Retry: Custom{Name: "never", Func: func(FailedRun) (time.Duration, bool) { return 0, false }}}, handler: returns(errBoom), want: Verdict{Kind: VerdictDiscard, Cause: errBoom}},
		"settled in no transaction":  {handler: func(ctx context.Context, job *Job) error { return job.CompleteTx(ctx, nil) }, want: Verdict{Kind: VerdictError}},
		"nil after a refused settle": {handler: func(ctx context.Context, job *Job) error { _ = job.CompleteTx(ctx, nil); return nil }, want: Verdict{Kind: VerdictRetry, Cause: ErrNotCommitted}},
		"enqueued in no transaction": {handler: func(ctx context.Context, job *Job) error {
			_, err := job.EnqueueTx(ctx, nil, letter{}, nil)
			return err
		}, want: Verdict{Kind: VerdictError}},
		"interrupted, and returns so": {handler: func(ctx context.Context, _ *Job) error { return ctx.Err() }, want: Verdict{Kind: VerdictError, Cause: context.Canceled}},
	} {
		ctx := t.Context()
		if strings.HasPrefix(name, "interrupted") {
			var stop context.CancelCauseFunc
			ctx, stop = context.WithCancelCause(ctx)
			stop(ErrShutdown)
		}
		got := dynWorker("k", c.opts, c.handler).Try(ctx, &c.job)
		if got.Kind != c.want.Kind || got.Delay != c.want.Delay || c.want.Cause != nil && !errors.Is(got.Cause, c.want.Cause) || (got.Trace != "") != strings.HasPrefix(name, "panic") {
			t.Errorf("%s: %+v; want %+v", name, got, c.want)
		}
	}
}

// The handler sees the job of the test, with the values of a first run where the test sets none.
func TestTheJobOfATry(t *testing.T) {
	t.Parallel()
	var seen Job
	var read letter
	worker := Handle(func(_ context.Context, job *Job, l letter) error {
		seen, read = *job, l
		return nil
	}, WorkerOpts{MaxAttempts: 7})
	for _, job := range []*Job{
		nil,
		{},
		{Attempt: 3, LastError: "boom", Tags: []string{"a"}, Queue: "q", MaxAttempts: 4, Kind: "letter", Priority: 1, Args: json.RawMessage(`{"to":"ada"}`)},
	} {
		want := Job{Attempt: 1, MaxAttempts: 7, Queue: "default", Kind: "letter", Priority: 5, Args: json.RawMessage("null")}
		var wantArgs letter
		if job != nil && job.Attempt != 0 {
			want, wantArgs = *job, letter{"ada"}
		}
		if v := worker.Try(t.Context(), job); v.Kind != VerdictDone {
			t.Errorf("verdict = %+v", v)
		}
		if len(seen.ID) != 26 || time.Since(seen.ScheduledAt) > time.Minute || read != wantArgs {
			t.Errorf("the handler saw %+v, %+v", seen, read)
		}
		seen.ID, seen.ScheduledAt, seen.task = "", time.Time{}, nil
		if !reflect.DeepEqual(seen, want) {
			t.Errorf("the handler saw %+v, want %+v", seen, want)
		}
		if job != nil && job.task != nil {
			t.Error("Try has changed the job of the test")
		}
	}
	if v := worker.Try(t.Context(), &Job{Args: json.RawMessage(`[1]`)}); v.Kind != VerdictDiscard {
		t.Errorf("args that do not decode: %+v", v)
	}
}

// A test with a mistake must not pass by accident, so a verdict is no way to report it.
func TestTryPanics(t *testing.T) {
	t.Parallel()
	worker := Handle(func(context.Context, *Job, letter) error { return nil }, WorkerOpts{})
	for text, try := range map[string]func(){
		"worker: is empty":             func() { Worker{}.Try(t.Context(), nil) },
		"the handler is nil":           func() { Handle[letter](nil, WorkerOpts{}).Try(t.Context(), nil) },
		`"k" is not the worker's`:      func() { worker.Try(t.Context(), &Job{Kind: "k"}) },
		"worker.Timeout: 1ns is under": func() { dynWorker("k", WorkerOpts{Timeout: 1}, doNothing).Try(t.Context(), nil) },
	} {
		func() {
			defer func() {
				if err, _ := recover().(error); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), text) {
					t.Errorf("panic %v, want %s", err, text)
				}
			}()
			try()
		}()
	}
}

// FailNow of a test is a runtime.Goexit: it ends the test, and is no verdict.
func TestAHandlerMayEndItsTry(t *testing.T) {
	t.Parallel()
	returned, done := false, make(chan struct{})
	go func() {
		defer close(done)
		dynWorker("k", WorkerOpts{}, func(context.Context, *Job) error { runtime.Goexit(); return nil }).Try(t.Context(), nil)
		returned = true
	}()
	if <-done; returned {
		t.Error("Try has returned")
	}
}

// A settle in a try has its checks and its verdict, and writes nothing. An enqueue in a try is a real one.
func TestTransactionsOfATry(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	try := func(handler func(context.Context, *Job, pgx.Tx) error) Verdict {
		return dynWorker("k", WorkerOpts{}, func(ctx context.Context, job *Job) error { return handler(ctx, job, tx) }).Try(t.Context(), nil)
	}
	if v := try(func(ctx context.Context, job *Job, tx pgx.Tx) error {
		if _, err := job.EnqueueTx(ctx, tx, letter{"ada"}, &EnqueueOpts{Queue: "q"}); err != nil {
			return err
		}
		return job.SettleTx(ctx, tx, Snooze(time.Hour))
	}); v.Kind != VerdictSnooze || v.Delay != time.Hour {
		t.Errorf("verdict = %+v", v)
	}
	var queues []string
	if err := tx.QueryRow(t.Context(), `select array_agg(queue) from jobs`).Scan(&queues); err != nil || len(queues) != 1 || queues[0] != "q" {
		t.Errorf("jobs of queues %v, %v", queues, err)
	}
	if v := try(func(ctx context.Context, job *Job, tx pgx.Tx) error {
		return errors.Join(job.CompleteTx(ctx, tx), errBoom)
	}); v.Kind != VerdictError || !errors.Is(v.Cause, errBoom) {
		t.Errorf("verdict = %+v", v)
	}
	if v := try(func(ctx context.Context, job *Job, tx pgx.Tx) error {
		return errors.Join(job.CompleteTx(ctx, tx), job.CompleteTx(ctx, tx))
	}); !errors.Is(v.Cause, ErrState) {
		t.Errorf("verdict = %+v", v)
	}
	if v := try(func(ctx context.Context, job *Job, tx pgx.Tx) error {
		_, err := job.EnqueueTx(ctx, tx, letter{"ada"}, nil)
		settled := job.CompleteTx(ctx, tx)
		_, after := job.EnqueueTx(ctx, tx, letter{"eve"}, nil)
		return errors.Join(err, settled, after)
	}); !errors.Is(v.Cause, ErrLeaseLost) {
		t.Errorf("verdict = %+v", v)
	}
}
