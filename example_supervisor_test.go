package drover_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/drover-queue/drover"
)

// A supervisor's configuration is checked as a whole.
func ExampleClient_NewSupervisor() {
	client, end := newClient()
	defer end()

	deliver := func(context.Context, *drover.Job, Parcel) error { return nil }
	_, err := client.NewSupervisor(drover.SupervisorConfig{
		Queues:  []drover.Queue{{Name: "deliveries", Concurrency: 20_000}},
		Workers: []drover.Worker{drover.Handle(deliver, drover.WorkerOpts{MaxAttempts: -1})},
		Lease:   time.Millisecond,
	})
	fmt.Println(err)
	// Output:
	// drover: Lease: 1ms is under 1s
	// drover: Queues[0].Concurrency: 20000 is not 1 to 10,000
	// drover: Workers[0].MaxAttempts: -1 is negative; 1 means never retry
}

// The first signal drains, a second one cancels what still runs.
func ExampleSupervisor_Run() {
	client, end := newClient()
	defer end()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	deliver := func(_ context.Context, _ *drover.Job, p Parcel) error {
		fmt.Println("delivered", p.Number)
		stop() // for the example; a program waits for its signal
		return nil
	}
	sup, err := client.NewSupervisor(drover.SupervisorConfig{
		Queues:  []drover.Queue{{Name: "deliveries", Concurrency: 20}, {Name: "invoices"}},
		Workers: []drover.Worker{drover.Handle(deliver, drover.WorkerOpts{})},
	})
	if err != nil {
		panic(err)
	}

	_, err = client.Enqueue(ctx, Parcel{Number: 7}, &drover.EnqueueOpts{Queue: "deliveries"})
	must(err)
	fmt.Println(sup.Run(ctx))
	// Output:
	// delivered 7
	// <nil>
}

// Cancelled handlers learn why by their context's cause.
func ExampleSupervisor_StopNow() {
	client, end := newClient()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()

	var sup *drover.Supervisor
	deliver := func(ctx context.Context, _ *drover.Job, _ Parcel) error {
		stop()        // the first signal
		sup.StopNow() // the second
		<-ctx.Done()
		fmt.Println(context.Cause(ctx))
		return ctx.Err()
	}
	sup, err := client.NewSupervisor(drover.SupervisorConfig{
		Queues:  []drover.Queue{{}},
		Workers: []drover.Worker{drover.Handle(deliver, drover.WorkerOpts{})},
	})
	must(err)
	receipt, err := client.Enqueue(ctx, Parcel{Number: 7}, nil)
	must(err)
	must(sup.Run(ctx))

	job, err := client.Job(context.Background(), receipt.ID)
	must(err)
	fmt.Println(job.State, "attempts:", job.Attempt)
	// Output:
	// drover: supervisor is stopping
	// available attempts: 0
}

// Queues come and go while a supervisor runs.
func ExampleSupervisor_AddQueue() {
	client, end := newClient()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()

	var sup *drover.Supervisor
	deliver := func(ctx context.Context, job *drover.Job, p Parcel) error {
		fmt.Println(job.Queue, p.Number)
		if job.Queue == "express" {
			stop()
			return nil
		}
		return sup.AddQueue(ctx, drover.Queue{Name: "express", Concurrency: 5})
	}
	sup, err := client.NewSupervisor(drover.SupervisorConfig{
		Queues:  []drover.Queue{{Name: "deliveries"}},
		Workers: []drover.Worker{drover.Handle(deliver, drover.WorkerOpts{})},
	})
	must(err)
	for n, queue := range []string{"express", "deliveries"} {
		_, err := client.Enqueue(ctx, Parcel{Number: n}, &drover.EnqueueOpts{Queue: queue})
		must(err)
	}
	must(sup.Run(ctx))
	// Output:
	// deliveries 1
	// express 0
}

func ExampleSupervisor_RemoveQueue() {
	client, end := newClient()
	defer end()

	deliver := func(context.Context, *drover.Job, Parcel) error { return nil }
	sup, err := client.NewSupervisor(drover.SupervisorConfig{
		Queues:  []drover.Queue{{Name: "deliveries"}, {Name: "express"}},
		Workers: []drover.Worker{drover.Handle(deliver, drover.WorkerOpts{})},
	})
	must(err)

	ctx := context.Background()
	fmt.Println(sup.RemoveQueue(ctx, "express"))
	fmt.Println(sup.RemoveQueue(ctx, "express"))
	// Output:
	// <nil>
	// drover: name: "express" is not served here
}

func ExampleSupervisor_Stats() {
	client, end := newClient()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()

	var sup *drover.Supervisor
	deliver := func(context.Context, *drover.Job, Parcel) error {
		fmt.Println("running:", sup.Stats().Running)
		stop()
		return nil
	}
	sup, err := client.NewSupervisor(drover.SupervisorConfig{
		Queues:  []drover.Queue{{}},
		Workers: []drover.Worker{drover.Handle(deliver, drover.WorkerOpts{})},
	})
	must(err)
	_, err = client.Enqueue(ctx, Parcel{Number: 7}, nil)
	must(err)
	must(sup.Run(ctx))
	fmt.Println("running:", sup.Stats().Running)
	// Output:
	// running: 1
	// running: 0
}

func ExampleHooks() {
	pool, end := migratedPool()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()

	hooks := drover.Hooks{
		Failed: func(_ context.Context, e drover.Event) {
			fmt.Printf("%s: run %d failed (%s: %s), next in %v\n", e.Kind, e.Attempt, e.Class, e.Error, e.Backoff)
		},
		Completed: func(_ context.Context, e drover.Event) {
			fmt.Printf("%s: run %d completed\n", e.Kind, e.Attempt)
			stop()
		},
	}
	client, err := drover.New(pool, drover.Config{Hooks: []drover.Hooks{hooks}})
	must(err)

	deliver := func(_ context.Context, job *drover.Job, _ Parcel) error {
		if job.Attempt == 1 {
			return fmt.Errorf("nobody at home")
		}
		return nil
	}
	sup, err := client.NewSupervisor(drover.SupervisorConfig{
		Queues:  []drover.Queue{{}},
		Workers: []drover.Worker{drover.Handle(deliver, drover.WorkerOpts{Retry: drover.Every(10 * time.Millisecond)})},
	})
	must(err)
	_, err = client.Enqueue(ctx, Parcel{Number: 7}, nil)
	must(err)
	must(sup.Run(ctx))
	// Output:
	// parcel: run 1 failed (error: nobody at home), next in 10ms
	// parcel: run 2 completed
}

// Completed jobs stay for a week, except where a queue says otherwise.
func ExampleKeepFor() {
	cfg := drover.SupervisorConfig{
		CompletedRetention: drover.KeepFor(7 * 24 * time.Hour),
		Queues: []drover.Queue{
			{Name: "metrics", CompletedRetention: drover.DeleteOnCompletion},
			{Name: "payments", CompletedRetention: drover.KeepForever, DiscardedRetention: drover.KeepFor(365 * 24 * time.Hour)},
		},
	}
	fmt.Println("default:", cfg.CompletedRetention)
	for _, q := range cfg.Queues {
		fmt.Println(q.Name+":", q.CompletedRetention)
	}
	// Output:
	// default: 168h0m0s
	// metrics: DeleteOnCompletion
	// payments: KeepForever
}

// A program reports in its own way why a supervisor does not work.
func ExampleSupervisor_Healthy() {
	client, end := newClient()
	defer end()

	deliver := func(context.Context, *drover.Job, Parcel) error { return nil }
	sup, err := client.NewSupervisor(drover.SupervisorConfig{
		Queues:  []drover.Queue{{Name: "deliveries"}},
		Workers: []drover.Worker{drover.Handle(deliver, drover.WorkerOpts{})},
	})
	must(err)
	fmt.Println(sup.Healthy())
	// Output:
	// drover: the supervisor has not been started by Run
}

// A platform asks whether a process can work before it goes on with a rollout.
func ExampleSupervisor_Probe() {
	client, end := newClient()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()

	var sup *drover.Supervisor
	ready := func() (int, string) { // the answer of http.Handle("/ready", sup.Probe())
		answer := httptest.NewRecorder()
		sup.Probe().ServeHTTP(answer, httptest.NewRequestWithContext(ctx, http.MethodGet, "/ready", nil))
		return answer.Code, strings.TrimSpace(answer.Body.String())
	}
	deliver := func(context.Context, *drover.Job, Parcel) error {
		fmt.Println(ready())
		stop()
		return nil
	}
	sup, err := client.NewSupervisor(drover.SupervisorConfig{
		Queues:  []drover.Queue{{Name: "deliveries"}},
		Workers: []drover.Worker{drover.Handle(deliver, drover.WorkerOpts{})},
	})
	must(err)
	fmt.Println(ready())
	_, err = client.Enqueue(ctx, Parcel{Number: 7}, &drover.EnqueueOpts{Queue: "deliveries"})
	must(err)
	must(sup.Run(ctx))
	// Output:
	// 503 the supervisor has not been started by Run
	// 200 ok
}

// A hundred retries a minute for all kinds of the queue, in every process together.
func ExampleClient_RetryBudgets() {
	pool, end := migratedPool()
	defer end()
	client := clientOf(pool)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()

	deliver := func(context.Context, *drover.Job, Parcel) error {
		stop() // only for the example
		return nil
	}
	sup, err := client.NewSupervisor(drover.SupervisorConfig{
		Queues:  []drover.Queue{{Name: "default", RetryBudget: drover.RetryBudget{Retries: 100, Per: time.Minute}}},
		Workers: []drover.Worker{drover.Handle(deliver, drover.WorkerOpts{})},
	})
	must(err)
	_, err = client.Enqueue(ctx, Parcel{Number: 7}, nil)
	must(err)
	must(sup.Run(ctx))

	budgets, err := client.RetryBudgets(context.Background())
	must(err)
	for _, b := range budgets {
		fmt.Printf("%s: %d per %v, %d free\n", b.Scope, b.Retries, b.Per, b.Free)
	}
	// Output:
	// queue:default: 100 per 1m0s, 100 free
}
