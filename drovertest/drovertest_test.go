package drovertest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/drovertest"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

type Charge struct{ OrderID int64 }

func (Charge) Kind() string { return "charge" }

type Other struct{}

func (Other) Kind() string { return "other" }

var errAccountClosed = errors.New("account closed")

func charge(_ context.Context, job *drover.Job, c Charge) error {
	switch {
	case c.OrderID == 7:
		return drover.Discard(errAccountClosed)
	case job.Attempt > 2:
		return drover.RetryAfter(time.Hour, errors.New("the bank is busy"))
	}
	return nil
}

// A handler's test needs a worker, args, and what the handler looks at.
func TestRun(t *testing.T) {
	t.Parallel()
	worker := drover.Handle(charge, drover.WorkerOpts{})
	if v := drovertest.Run(t.Context(), t, worker, Charge{42}, nil); v.Kind != drover.VerdictDone {
		t.Errorf("verdict = %+v", v)
	}
	if v := drovertest.Run(t.Context(), t, worker, Charge{7}, nil); v.Kind != drover.VerdictDiscard || !errors.Is(v.Cause, errAccountClosed) {
		t.Errorf("verdict = %+v", v)
	}
	if v := drovertest.Run(t.Context(), t, worker, Charge{42}, &drover.Job{Attempt: 3}); v.Kind != drover.VerdictRetryAfter || v.Delay != time.Hour {
		t.Errorf("verdict = %+v", v)
	}
	for name, run := range map[string]func(*probe){
		"Run":        func(p *probe) { drovertest.Run(t.Context(), p, worker, Other{}, nil) },
		"RunToEnd":   func(p *probe) { drovertest.RunToEnd(t.Context(), p, nil, worker, Other{}, nil) },
		"Mishap.Run": func(p *probe) { drovertest.Mishaps()[0].Run(t.Context(), p, nil, drover.Config{}, worker, Other{}) },
	} {
		if text := failure(t, run); !strings.Contains(text, `of kind "other"`) {
			t.Errorf("%s failed with %q", name, text)
		}
	}
}

// A transaction shows what it has enqueued before it commits, and a pool does not.
func TestRequireEnqueuedInATransaction(t *testing.T) {
	t.Parallel()
	pool := drovertest.NewPool(t, pgtest.URL(t))
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	client := newClient(t, pool)
	opts := &drover.EnqueueOpts{Queue: "payments", Priority: 2, Tags: []string{"a"}, Key: "c", Metadata: map[string]any{"by": "ada"}, MaxAttempts: 3}
	for id := int64(1); id <= 3; id++ {
		if _, err := client.EnqueueTx(t.Context(), tx, Charge{id}, opts); err != nil {
			t.Fatal(err)
		}
		opts = nil
	}
	job := drovertest.RequireEnqueued(t.Context(), t, tx, Charge{1})
	if job.Queue != "payments" || job.Priority != 2 || job.Tags[0] != "a" || job.Key != "c" || string(job.Metadata) != `{"by": "ada"}` ||
		job.MaxAttempts != 3 || job.ScheduledAt.IsZero() || string(job.Args) != `{"OrderID": 1}` || job.Kind != "charge" || job.ID == "" {
		t.Errorf("job = %+v", job)
	}
	if job := drovertest.RequireEnqueued(t.Context(), t, tx, Charge{2}); job.Queue != "default" || job.Metadata != nil || job.Tags != nil || job.MaxAttempts != 0 {
		t.Errorf("job = %+v", job)
	}
	all := drovertest.Enqueued(t.Context(), t, tx, drover.Filter{Kind: "charge"})
	if len(all) != 3 || string(all[0].Args) != `{"OrderID": 1}` || string(all[2].Args) != `{"OrderID": 3}` {
		t.Errorf("%d jobs: %+v", len(all), all)
	}
	if all := drovertest.Enqueued(t.Context(), t, pool, drover.Filter{}); len(all) != 0 {
		t.Errorf("the pool shows %+v", all)
	}
}

// Enqueued returns jobs in every state.
func TestEnqueuedShowsEveryState(t *testing.T) {
	t.Parallel()
	pool := drovertest.NewPool(t, pgtest.URL(t))
	worker := drover.Handle(func(context.Context, *drover.Job, Charge) error { return errBusy }, drover.WorkerOpts{MaxAttempts: 2})
	drovertest.RunToEnd(t.Context(), t, pool, worker, Charge{1}, nil)
	if _, err := newClient(t, pool).Enqueue(t.Context(), Charge{2}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), `update jobs set state = 'parked', scheduled_at = 'infinity' where state = 'available'`); err != nil {
		t.Fatal(err)
	}
	dead, parked := drovertest.RequireEnqueued(t.Context(), t, pool, Charge{1}), drovertest.RequireEnqueued(t.Context(), t, pool, Charge{2})
	if dead.State != drover.Discarded || dead.Attempt != 2 || len(dead.Errors) != 2 || dead.LastError() != "the bank is busy" || dead.FinalizedAt == nil {
		t.Errorf("job = %+v", dead)
	}
	if parked.State != drover.Parked || !parked.ScheduledAt.IsZero() || parked.FinalizedAt != nil {
		t.Errorf("job = %+v", parked)
	}
}

// The same through database/sql.
func TestRequireEnqueuedOfDatabaseSQL(t *testing.T) {
	t.Parallel()
	pool := drovertest.NewPool(t, pgtest.URL(t))
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := newClient(t, pool).EnqueueTx(t.Context(), drover.SQLTx(tx), Charge{1}, nil); err != nil {
		t.Fatal(err)
	}
	drovertest.RequireEnqueued(t.Context(), t, drover.SQLTx(tx), Charge{1})
}

// RequireEnqueued compares values. It does not take a part of a list or of an object for the whole.
func TestRequireEnqueuedComparesValues(t *testing.T) {
	t.Parallel()
	pool := drovertest.NewPool(t, pgtest.URL(t))
	client := newClient(t, pool)
	if _, err := client.Enqueue(t.Context(), Mail{To: []int64{1, 2}, Fields: map[string]any{"a": 1, "b": 2.0}}, nil); err != nil {
		t.Fatal(err)
	}
	for _, other := range []Mail{
		{To: []int64{1}, Fields: map[string]any{"a": 1, "b": 2}},
		{To: []int64{}, Fields: map[string]any{"a": 1, "b": 2}},
		{To: []int64{2, 1}, Fields: map[string]any{"a": 1, "b": 2}},
		{To: []int64{1, 2}, Fields: map[string]any{"a": 1}},
		{To: []int64{1, 2}, Fields: map[string]any{}},
	} {
		if text := failure(t, func(p *probe) { drovertest.RequireEnqueued(t.Context(), p, pool, other) }); !strings.Contains(text, "0 jobs of kind") {
			t.Errorf("%+v: it failed with %q", other, text)
		}
	}
	drovertest.RequireEnqueued(t.Context(), t, pool, Mail{To: []int64{1, 2}, Fields: map[string]any{"b": 2, "a": 1}})
	drovertest.RequireEnqueued(t.Context(), t, pool, MailTo{1, 2})
	if all := drovertest.Enqueued(t.Context(), t, pool, drover.Filter{Args: []byte(`{"To": [1]}`)}); len(all) != 1 {
		t.Errorf("a filter by a part of the args finds %d jobs", len(all))
	}
}

// RequireEnqueued looks at all jobs, also if more than a thousand newer ones match the filter and have other args.
func TestRequireEnqueuedAmongManyJobs(t *testing.T) {
	t.Parallel()
	pool := drovertest.NewPool(t, pgtest.URL(t))
	client := newClient(t, pool)
	receipt, err := client.Enqueue(t.Context(), MailTo{1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	many := make([]drover.EnqueueItem, 1100)
	for i := range many {
		many[i].Args = MailTo{1, int64(i)}
	}
	if _, err := client.EnqueueMany(t.Context(), many); err != nil {
		t.Fatal(err)
	}
	if job := drovertest.RequireEnqueued(t.Context(), t, pool, MailTo{1}); job.ID != receipt.ID {
		t.Errorf("it found %s, want %s", job.ID, receipt.ID)
	}
	if all := drovertest.Enqueued(t.Context(), t, pool, drover.Filter{Kind: "mail"}); len(all) != 1101 {
		t.Errorf("there are %d jobs", len(all))
	}
}

type Mail struct {
	To     []int64
	Fields map[string]any
}

func (Mail) Kind() string { return "mail" }

// MailTo is Mail with one of its fields.
type MailTo []int64

func (MailTo) Kind() string { return "mail" }

func (m MailTo) MarshalJSON() ([]byte, error) { return json.Marshal(map[string][]int64{"To": m}) }

// A failure says what is there instead.
func TestRequireEnqueuedFails(t *testing.T) {
	t.Parallel()
	pool := drovertest.NewPool(t, pgtest.URL(t))
	client := newClient(t, pool)
	for _, id := range []int64{1, 2, 2} {
		if _, err := client.Enqueue(t.Context(), Charge{id}, nil); err != nil {
			t.Fatal(err)
		}
	}
	for order, want := range map[int64]string{1: "", 2: "2 jobs of kind", 4: `0 jobs of kind "charge" have the args {"OrderID":4}, want 1; of this kind there are 3:`} {
		text := failure(t, func(p *probe) { drovertest.RequireEnqueued(t.Context(), p, pool, Charge{order}) })
		if !strings.Contains(text, want) || (want == "") != (text == "") || want != "" && !strings.Contains(text, `{"OrderID": 1}`) {
			t.Errorf("order %d: it failed with %q", order, text)
		}
	}
	if text := failure(t, func(p *probe) { drovertest.Enqueued(t.Context(), p, pool, drover.Filter{State: "odd"}) }); !strings.Contains(text, "odd") {
		t.Errorf("it failed with %q", text)
	}
}

func newClient(t *testing.T, pool *pgxpool.Pool) *drover.Client {
	t.Helper()
	client, err := drover.New(pool, drover.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// probe is a test that only notes how it fails.
type probe struct {
	testing.TB
	text string
}

func (p *probe) Fatalf(format string, args ...any) {
	p.text = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func failure(t *testing.T, f func(*probe)) string {
	t.Helper()
	p := &probe{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(p)
	}()
	<-done
	return p.text
}
