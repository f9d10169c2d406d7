package drover_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/migrations"
)

func ExampleNew() {
	ctx := context.Background()
	pool, end := migratedPool()
	defer end()

	client, err := drover.New(pool, drover.Config{Kinds: []string{"parcel"}})
	if err != nil {
		panic(err)
	}
	fmt.Println(client.Check(ctx))
	// Output: <nil>
}

// A client that needs no search_path: behind a pooler that takes none, or in transactions that have another one.
func ExampleConfig_schema() {
	ctx := context.Background()
	pool, end := pgtest.Example()
	defer end()
	schema := "Job Queue of " + pgtest.Schema(pool)
	_, err := pool.Exec(ctx, `create schema "`+schema+`"`)
	must(err)
	defer pool.Exec(ctx, `drop schema "`+schema+`" cascade`) //nolint:errcheck // the database goes with the test

	must(migrations.Schema(schema).Up(ctx, pool))
	client, err := drover.New(pool, drover.Config{Schema: schema})
	must(err)
	_, err = client.Enqueue(ctx, Parcel{Number: 7}, nil)
	fmt.Println(client.Check(ctx), err)
	// Output: <nil> <nil>
}

func ExampleClient_Check() {
	ctx := context.Background()
	pool, end := migratedPool()
	defer end()
	client, err := drover.New(pool, drover.Config{})
	must(err)

	if err := client.Check(ctx); errors.Is(err, drover.ErrNotMigrated) {
		fmt.Println("run the migrations first")
	} else {
		fmt.Println("ready")
	}
	// Output: ready
}

func ExampleClient_Enqueue() {
	ctx := context.Background()
	client, end := newClient()
	defer end()

	receipt, err := client.Enqueue(ctx, Parcel{Number: 7}, &drover.EnqueueOpts{
		Queue:       "deliveries",
		Delay:       time.Hour,
		MaxAttempts: 5,
		Retry:       drover.Every(time.Minute),
	})
	if err != nil {
		panic(err)
	}

	job, err := client.Job(ctx, receipt.ID)
	must(err)
	fmt.Println(job.Queue, job.Kind, job.State, string(job.Args))
	// Output: deliveries parcel scheduled {"Number": 7, "Address": ""}
}

// With an id of the caller's the enqueue may be repeated, such as after an error that left its outcome open.
func ExampleClient_Enqueue_idempotent() {
	ctx := context.Background()
	client, end := newClient()
	defer end()

	opts := &drover.EnqueueOpts{ID: "01KAJ4Y8Q3N6T0V5B7C9D1E2FG"}
	for range 2 {
		receipt, err := client.Enqueue(ctx, Parcel{Number: 7}, opts)
		fmt.Println(receipt.ID, receipt.Existing, err)
	}
	_, err := client.Enqueue(ctx, Parcel{Number: 8}, opts)
	fmt.Println(errors.Is(err, drover.ErrIDConflict))
	// Output:
	// 01KAJ4Y8Q3N6T0V5B7C9D1E2FG false <nil>
	// 01KAJ4Y8Q3N6T0V5B7C9D1E2FG true <nil>
	// true
}

// Every mistake is reported, before anything is written.
func ExampleClient_Enqueue_refused() {
	client, end := newClient()
	defer end()

	_, err := client.Enqueue(context.Background(), Parcel{}, &drover.EnqueueOpts{Priority: 11, Delay: -time.Second})
	fmt.Println(errors.Is(err, drover.ErrInvalid))
	fmt.Println(err)
	// Output:
	// true
	// drover: Priority: 11 is not 1 to 9
	// drover: Delay: -1s is negative
}

func ExampleClient_EnqueueTx() {
	ctx := context.Background()
	pool, end := migratedPool()
	defer end()
	client, err := drover.New(pool, drover.Config{})
	must(err)

	// The job is there if and when the rest of the transaction is.
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `create table parcels as select 7 as number`); err != nil {
			return err
		}
		_, err := client.EnqueueTx(ctx, tx, Parcel{Number: 7}, nil)
		return err
	})
	if err != nil {
		panic(err)
	}

	page, err := client.Jobs(ctx, drover.Filter{}, "", 0)
	must(err)
	fmt.Println(len(page.Jobs), page.Jobs[0].State)
	// Output: 1 available
}

func ExampleClient_EnqueueMany() {
	ctx := context.Background()
	client, end := newClient()
	defer end()

	var batch []drover.EnqueueItem
	for n := range 1000 {
		batch = append(batch, drover.EnqueueItem{Args: Parcel{Number: n}})
	}
	receipts, err := client.EnqueueMany(ctx, batch)
	fmt.Println(len(receipts), err)
	// Output: 1000 <nil>
}

func ExampleClient_EnqueueManyTx() {
	ctx := context.Background()
	pool, end := migratedPool()
	defer end()
	client, err := drover.New(pool, drover.Config{})
	must(err)

	tx, err := pool.Begin(ctx)
	must(err)
	_, err = client.EnqueueManyTx(ctx, tx, []drover.EnqueueItem{
		{Args: Parcel{Number: 1}},
		{Args: Parcel{Number: 2}, Opts: &drover.EnqueueOpts{Priority: 1}},
	})
	must(err)
	must(tx.Rollback(ctx))

	page, err := client.Jobs(ctx, drover.Filter{}, "", 0)
	must(err)
	fmt.Println(len(page.Jobs))
	// Output: 0
}

// The transaction of database/sql, and so of GORM, ent, bun and sqlx, whatever its driver.
func ExampleSQLTx() {
	ctx := context.Background()
	pool, end := migratedPool()
	defer end()
	client, err := drover.New(pool, drover.Config{})
	must(err)
	db := stdlib.OpenDBFromPool(pool)
	defer func() { must(db.Close()) }()

	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		panic(err)
	}
	defer tx.Rollback()
	receipt, err := client.EnqueueTx(ctx, drover.SQLTx(tx), Parcel{Number: 7}, nil)
	if err != nil {
		panic(err)
	}
	if err := tx.Commit(); err != nil {
		panic(err)
	}

	job, err := client.Job(ctx, receipt.ID)
	must(err)
	fmt.Println(job.State)
	// Output: available
}
