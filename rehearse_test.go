package drover

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// noTx is a transaction that reaches no database.
type noTx struct{}

func (noTx) QueryRow(context.Context, string, ...any) pgx.Row { panic("no database") }

// A rehearsal reads a handler's return as a run does, without a database.
func TestRehearse(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		handle func(context.Context, *Job, letter) error
		want   Verdict
	}{
		"done":    {func(context.Context, *Job, letter) error { return nil }, Verdict{Kind: VerdictDone}},
		"discard": {func(context.Context, *Job, letter) error { return Discard(errBoom) }, Verdict{Kind: VerdictDiscard, Cause: errBoom}},
		"panic":   {func(context.Context, *Job, letter) error { panic(errBoom) }, Verdict{Kind: VerdictPanic}},
		"completes in a transaction": {
			func(ctx context.Context, job *Job, _ letter) error { return job.CompleteTx(ctx, noTx{}) },
			Verdict{Kind: VerdictDone},
		},
		"snoozes in a transaction": {
			func(ctx context.Context, job *Job, _ letter) error {
				return job.SettleTx(ctx, noTx{}, Snooze(time.Hour))
			},
			Verdict{Kind: VerdictSnooze, Delay: time.Hour},
		},
		"fails after its transaction": {
			func(ctx context.Context, job *Job, _ letter) error {
				return errors.Join(job.CompleteTx(ctx, noTx{}), errBoom)
			},
			Verdict{Kind: VerdictError},
		},
		"settles twice": {
			func(ctx context.Context, job *Job, _ letter) error {
				_ = job.CompleteTx(ctx, noTx{})
				return job.CompleteTx(ctx, noTx{})
			},
			Verdict{Kind: VerdictError, Cause: ErrState},
		},
		"settles in no transaction": {
			func(ctx context.Context, job *Job, _ letter) error { return job.CompleteTx(ctx, nil) },
			Verdict{Kind: VerdictError},
		},
		"enqueues": {
			func(ctx context.Context, job *Job, l letter) error {
				_, err := job.EnqueueTx(ctx, noTx{}, l, nil)
				return err
			},
			Verdict{Kind: VerdictError, Cause: ErrLeaseLost},
		},
	} {
		got, err := Handle(c.handle, WorkerOpts{}).Rehearse(t.Context(), letter{"ada"}, nil)
		if err != nil || got.Kind != c.want.Kind || got.Delay != c.want.Delay || c.want.Cause != nil && !errors.Is(got.Cause, c.want.Cause) {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, c.want)
		}
	}
}

// The handler sees the job that the test wants, and a first run where it says nothing.
func TestRehearsedJob(t *testing.T) {
	t.Parallel()
	var seen Job
	worker := Handle(func(_ context.Context, job *Job, l letter) error {
		seen = *job
		if l.To != "ada" {
			return errBoom
		}
		return nil
	}, WorkerOpts{MaxAttempts: 7})
	for _, job := range []*Job{nil, {}, {Attempt: 3, LastError: "boom", Tags: []string{"a"}, Queue: "q", MaxAttempts: 4}} {
		given := Job{}
		if job != nil {
			given = *job
		}
		if v, err := worker.Rehearse(t.Context(), letter{"ada"}, job); err != nil || v.Kind != VerdictDone {
			t.Errorf("verdict = %+v, %v", v, err)
		}
		switch {
		case seen.ID == "" || seen.Kind != "letter" || string(seen.Args) != `{"to":"ada"}` || seen.Priority != 5 || seen.ScheduledAt.IsZero():
			t.Errorf("the handler saw %+v", seen)
		case given.Attempt == 0 && (seen.Attempt != 1 || seen.MaxAttempts != 7 || seen.Queue != "default"):
			t.Errorf("the handler saw %+v", seen)
		case given.Attempt == 3 && (seen.Attempt != 3 || seen.MaxAttempts != 4 || seen.LastError != "boom" || seen.Queue != "q" || len(seen.Tags) != 1):
			t.Errorf("the handler saw %+v", seen)
		}
		if job != nil && !reflect.DeepEqual(*job, given) {
			t.Errorf("the test's own job is now %+v", job)
		}
	}
}

// What an enqueue or a supervisor would refuse is an error of the test, not a verdict.
func TestRehearseRefuses(t *testing.T) {
	t.Parallel()
	worker := Handle(func(context.Context, *Job, letter) error { return nil }, WorkerOpts{})
	for text, c := range map[string]struct {
		worker Worker
		args   Args
	}{
		`worker: is empty`:           {Worker{}, letter{}},
		`of kind "k", and the wor`:   {worker, dyn{kind: "k"}},
		`args: is nil`:               {worker, nil},
		`the handler is nil`:         {Handle[letter](nil, WorkerOpts{}), letter{}},
		`json: unsupported type`:     {dynWorker("k", WorkerOpts{}, doNothing), unencodable{}},
		`worker.Timeout: 1ns is und`: {Handle(func(context.Context, *Job, letter) error { return nil }, WorkerOpts{Timeout: 1}), letter{}},
	} {
		if v, err := c.worker.Rehearse(t.Context(), c.args, nil); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), text) || v.Kind != "" {
			t.Errorf("%s: %+v, %v", text, v, err)
		}
	}
}

type unencodable struct{ F func() }

func (unencodable) Kind() string { return "k" }
