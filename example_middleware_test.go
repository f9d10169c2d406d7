package drover_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
)

// Keys of contexts, as the application has them.
type (
	traceKey  struct{}
	tenantKey struct{}
)

var errNoTenant = errors.New("the context has no tenant")

// docs/middleware.md shows this code; docs_test.go compares the two.

// tracing carries the trace of an enqueue to the runs of its job. With OpenTelemetry, Enqueue
// injects the span's context into a map, and Run extracts it and starts a span.
func tracing() drover.Middleware {
	return drover.Middleware{
		Enqueue: func(ctx context.Context, item *drover.EnqueueItem) error {
			if trace, ok := ctx.Value(traceKey{}).(string); ok {
				item.Opts.Metadata["traceparent"] = trace
			}
			return nil
		},
		Run: func(ctx context.Context, job *drover.Job, next func(context.Context) error) error {
			var carried struct{ Traceparent string }
			_ = json.Unmarshal(job.Metadata, &carried) // a job from psql has no metadata
			err := next(context.WithValue(ctx, traceKey{}, carried.Traceparent))
			v := drover.VerdictOf(err)
			fmt.Println("span of", carried.Traceparent, "ends:", v.Kind, "failed:", v.Failed())
			return err
		},
	}
}

// docs/middleware.md goes on.

// tenants refuses jobs that belong to nobody, and gives handlers the tenant of their job.
func tenants() drover.Middleware {
	return drover.Middleware{
		Enqueue: func(ctx context.Context, item *drover.EnqueueItem) error {
			tenant, ok := ctx.Value(tenantKey{}).(string)
			if !ok {
				return errNoTenant
			}
			item.Opts.Key = tenant
			return nil
		},
		Run: func(ctx context.Context, job *drover.Job, next func(context.Context) error) error {
			return next(context.WithValue(ctx, tenantKey{}, job.Key))
		},
	}
}

// docs/middleware.md goes on.

// timed reports how long each enqueue took, of one job or of many.
func timed() drover.Middleware {
	return drover.Middleware{
		BeginEnqueue: func(ctx context.Context, call drover.EnqueueCall) (context.Context, func([]drover.Receipt, error)) {
			began := time.Now()
			return ctx, func(_ []drover.Receipt, err error) {
				quick := time.Since(began) < time.Minute
				fmt.Println(len(call.Items), "jobs, in a transaction:", call.InTx, "quick:", quick, "error:", err)
			}
		},
	}
}

// docs/middleware.md goes on.

// dryRun prints jobs instead of running them.
func dryRun() drover.Middleware {
	return drover.Middleware{
		Run: func(_ context.Context, job *drover.Job, _ func(context.Context) error) error {
			fmt.Printf("would run %s %s\n", job.Kind, job.Args)
			return nil
		},
	}
}

// docs/middleware.md ends here.

// runThrough enqueues a parcel with ctx and runs it once, both through middleware.
func runThrough(ctx context.Context, pool *pgxpool.Pool, deliver func(context.Context, *drover.Job, Parcel) error, middleware ...drover.Middleware) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := func(context.Context, drover.Event) { stop() }
	client, err := drover.New(pool, drover.Config{
		Middleware: middleware,
		Hooks:      []drover.Hooks{{Completed: ended, Snoozed: ended, Failed: ended, Discarded: ended}},
	})
	must(err)
	if _, err := client.Enqueue(ctx, Parcel{7, "Lake Road 1"}, nil); err != nil {
		return err
	}
	sup, err := client.NewSupervisor(drover.SupervisorConfig{
		Queues:  []drover.Queue{{}},
		Workers: []drover.Worker{drover.Handle(deliver, drover.WorkerOpts{})},
	})
	must(err)
	return sup.Run(ctx)
}

// A trace goes with the job, from the request that enqueues it to the handler.
func ExampleMiddleware() {
	pool, end := migratedPool()
	defer end()
	deliver := func(ctx context.Context, _ *drover.Job, _ Parcel) error {
		fmt.Println("the handler's trace is", ctx.Value(traceKey{}))
		return drover.Snooze(time.Minute)
	}
	request := context.WithValue(context.Background(), traceKey{}, "00-4bf92f35")
	must(runThrough(request, pool, deliver, tracing()))
	// Output:
	// the handler's trace is 00-4bf92f35
	// span of 00-4bf92f35 ends: snooze failed: false
}

// Each job belongs to a tenant, and its handler knows which.
func ExampleMiddleware_tenant() {
	pool, end := migratedPool()
	defer end()
	deliver := func(ctx context.Context, _ *drover.Job, p Parcel) error {
		fmt.Println("parcel", p.Number, "of", ctx.Value(tenantKey{}))
		return nil
	}
	err := runThrough(context.Background(), pool, deliver, tenants())
	fmt.Println(err)
	fmt.Println(errors.Is(err, errNoTenant), errors.Is(err, drover.ErrInvalid))

	must(runThrough(context.WithValue(context.Background(), tenantKey{}, "Ada Ltd"), pool, deliver, tenants()))
	// Output:
	// drover: Middleware[0].Enqueue: refused kind "parcel": the context has no tenant
	// true true
	// parcel 7 of Ada Ltd
}

// One call of an enqueue is timed once.
func ExampleMiddleware_timing() {
	pool, end := migratedPool()
	defer end()
	client, err := drover.New(pool, drover.Config{Middleware: []drover.Middleware{timed()}})
	must(err)
	_, err = client.EnqueueMany(context.Background(), []drover.EnqueueItem{{Args: Parcel{7, "Lake Road 1"}}, {Args: Parcel{8, "Lake Road 2"}}})
	must(err)
	// Output:
	// 2 jobs, in a transaction: false quick: true error: <nil>
}

// A test double stands in for all handlers.
func ExampleMiddleware_testDouble() {
	pool, end := migratedPool()
	defer end()
	deliver := func(context.Context, *drover.Job, Parcel) error { panic("a van drives off") }
	must(runThrough(context.Background(), pool, deliver, dryRun()))
	// Output:
	// would run parcel {"Number": 7, "Address": "Lake Road 1"}
}
