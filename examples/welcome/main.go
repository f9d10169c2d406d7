// The first program of README.md, which shows it from the next line on. Set DATABASE_URL and run it:
//
//	go run ./examples/welcome
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/migrations"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Welcome is a kind of job; its fields are what the handler gets.
type Welcome struct{ Name string }

func (Welcome) Kind() string { return "welcome" }

func welcome(ctx context.Context, job *drover.Job, w Welcome) error {
	fmt.Println("Welcome,", w.Name)
	return nil // done; after an error the job runs again: in about 15 s, 30 s, 1 min, …
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	pool := must(pgxpool.New(ctx, os.Getenv("DATABASE_URL")))
	if err := migrations.Up(ctx, pool); err != nil { // creates the tables jobs, queues, …
		panic(err)
	}
	client := must(drover.New(pool, drover.Config{}))
	must(client.Enqueue(ctx, Welcome{"Ann"}, nil))
	sup := must(client.NewSupervisor(drover.SupervisorConfig{
		Queues:  []drover.Queue{{Name: "default", Concurrency: 10}},
		Workers: []drover.Worker{drover.Handle(welcome, drover.WorkerOpts{})},
	}))
	if err := sup.Run(ctx); err != nil { // until Ctrl-C; then it lets running jobs finish
		panic(err)
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
