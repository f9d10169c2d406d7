package drover_test

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
)

// README.md shows this code; readme_test.go compares the two.

type Charge struct{ OrderID int64 }

func (Charge) Kind() string { return "charge" }

// The order and its job are there together, or neither is.
func placeOrder(ctx context.Context, pool *pgxpool.Pool, client *drover.Client, orderID int64) error {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, `insert into orders (id) values ($1)`, orderID); err != nil {
		return err
	}
	if _, err := client.EnqueueTx(ctx, tx, Charge{orderID}, &drover.EnqueueOpts{Queue: "payments"}); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

func runJobs(ctx context.Context, pool *pgxpool.Pool, client *drover.Client) error {
	charge := func(ctx context.Context, job *drover.Job, c Charge) error {
		if err := pay(ctx, job.ID, c.OrderID); err != nil {
			return err // retried in 2 s, 4 s, 8 s, … each up to a quarter longer
		}
		tx, err := pool.Begin(ctx)
		if err != nil {
			return err
		}
		defer tx.Rollback(ctx)
		if _, err := tx.Exec(ctx, `update orders set paid = true where id = $1`, c.OrderID); err != nil {
			return err
		}
		if err := job.CompleteTx(ctx, tx); err != nil {
			return err // the job is someone else's by now: so is the order
		}
		return tx.Commit(ctx)
	}
	retry := drover.Exponential{Base: 2 * time.Second}
	sup, err := client.Supervisor(drover.SupervisorConfig{
		Queues:  []drover.Queue{{Name: "payments", Concurrency: 50}},
		Workers: []drover.Worker{drover.Handle(charge, drover.WorkerOpts{MaxAttempts: 10, Retry: retry})},
	})
	if err != nil {
		return err
	}
	return sup.Run(ctx) // until ctx is done: then it drains
}

// README.md ends here.

// pay stands for the application's own code.
func pay(context.Context, string, int64) error { return nil }

func Example() {
	pool, end := migratedPool()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	if _, err := pool.Exec(ctx, `create table orders (id bigint primary key, paid boolean not null default false)`); err != nil {
		panic(err)
	}
	client, err := drover.New(pool, drover.Config{
		Hooks: []drover.Hooks{{Completed: func(context.Context, drover.Event) { stop() }}},
	})
	if err != nil {
		panic(err)
	}
	if err := placeOrder(ctx, pool, client, 42); err != nil {
		panic(err)
	}
	if err := runJobs(ctx, pool, client); err != nil {
		panic(err)
	}
	var paid bool
	if err := pool.QueryRow(context.Background(), `select paid from orders where id = 42`).Scan(&paid); err != nil {
		panic(err)
	}
	fmt.Println("paid:", paid)
	// Output: paid: true
}

// README.md shows this code; readme_test.go compares the two.

// The bank is back, and so are its dead charges: 50 a second, 5 of one order at a time, 10 before all others.
func bringBack(ctx context.Context, client *drover.Client) (*drover.Redrive, error) {
	return client.Redrive(ctx, drover.RedrivePlan{
		Filter: drover.Filter{Kind: "charge", Reason: drover.ReasonAttemptsExhausted},
		Rate:   50, PerKey: 5, KeyFrom: "OrderID", Canary: 10, Why: "the bank is back",
	})
}

// README.md ends here.

func Example_redrive() {
	pool, end := migratedPool()
	defer end()
	ctx := context.Background()
	_, err := pool.Exec(ctx, `insert into jobs (kind, args, state, finalized_at, discard_reason)
		values ('charge', '{"OrderID": 42}', 'discarded', now() - interval '1 hour', 'attempts_exhausted')`)
	must(err)

	redrive, err := bringBack(ctx, clientOf(pool))
	if err != nil {
		panic(err)
	}
	fmt.Println(redrive.Matched, "job comes back:", redrive.Why)
	// Output: 1 job comes back: the bank is back
}
