package drover_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
)

type Charge struct{ OrderID int64 }

func (Charge) Kind() string { return "charge" }

// README.md shows this code; docs_test.go compares the two.

// The order and its job are stored together, or neither is.
func placeOrder(ctx context.Context, tx pgx.Tx, client *drover.Client, id int64) error {
	_, err := tx.Exec(ctx, `insert into orders (id) values ($1)`, id)
	if err == nil {
		_, err = client.EnqueueTx(ctx, tx, Charge{OrderID: id}, nil)
	}
	return err
}

// The order is marked as paid and the job is completed together, or neither is.
func charge(ctx context.Context, pool *pgxpool.Pool, job *drover.Job, c Charge) error {
	if err := pay(ctx, job.ID, c.OrderID); err != nil { // job.ID is the same on every run
		return err
	}
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `update orders set paid = true where id = $1`, c.OrderID); err != nil {
			return err
		}
		return job.CompleteTx(ctx, tx) // ErrLeaseLost if another process owns the job by now
	})
}

// README.md ends here.

// chargeWorker makes the worker of the program in the example.
func chargeWorker(pool *pgxpool.Pool) drover.Worker {
	return drover.Handle(func(ctx context.Context, job *drover.Job, c Charge) error {
		return charge(ctx, pool, job, c)
	}, drover.WorkerOpts{})
}

// pay stands for the application's own code.
func pay(context.Context, string, int64) error { return nil }

func Example() {
	pool, end := migratedPool()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	_, err := pool.Exec(ctx, `create table orders (id bigint primary key, paid boolean not null default false)`)
	must(err)
	client, err := drover.New(pool, drover.Config{
		Hooks: []drover.Hooks{{Completed: func(context.Context, drover.Event) { stop() }}},
	})
	must(err)
	sup, err := client.NewSupervisor(drover.SupervisorConfig{
		Queues:  []drover.Queue{{Name: "default"}},
		Workers: []drover.Worker{chargeWorker(pool)},
	})
	must(err)
	must(pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return placeOrder(ctx, tx, client, 42) }))
	must(sup.Run(ctx))
	var paid bool
	must(pool.QueryRow(context.Background(), `select paid from orders where id = 42`).Scan(&paid))
	fmt.Println("paid:", paid)
	// Output: paid: true
}
