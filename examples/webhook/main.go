// Webhook is the smallest complete application of drover: it takes orders over HTTP and calls a webhook for each.
//
//	docker compose up -d --wait
//	export DATABASE_URL=postgres://drover:drover@localhost:5432/drover
//	go run ./examples/webhook -to https://example.com/hook
//	curl -X POST localhost:8080/orders
//
// An order and its job are stored in one transaction. Ctrl-C stops the program gracefully: running jobs are finished or
// handed back. A second Ctrl-C cancels the jobs that still run.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/migrations"
)

// OrderPlaced is the job that calls the webhook for an order.
type OrderPlaced struct {
	OrderID int64 `json:"order_id"`
}

// Kind implements drover.Args.
func (OrderPlaced) Kind() string { return "order_placed" }

func main() {
	to := flag.String("to", "http://localhost:8080/hook", "the webhook's URL; by default this program's own")
	listen := flag.String("listen", "localhost:8080", "where orders are taken")
	flag.Parse()
	if err := run(os.Getenv("DATABASE_URL"), *to, *listen); err != nil {
		slog.Error(err.Error())
		os.Exit(1)
	}
}

func run(databaseURL, to, listen string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		return errors.New("DATABASE_URL cannot be read") // err may quote its password
	}
	defer pool.Close()
	if err := migrate(ctx, pool); err != nil {
		return err
	}
	client, err := drover.New(pool, drover.Config{})
	if err != nil {
		return err
	}
	sup, err := client.NewSupervisor(drover.SupervisorConfig{
		Queues: []drover.Queue{{Name: "webhooks", Concurrency: 20}},
		Workers: []drover.Worker{
			drover.Handle(deliverTo(to), drover.WorkerOpts{
				Timeout: 10 * time.Second,
				Retry:   drover.Exponential{Base: time.Second, Max: 10 * time.Minute},
			}),
		},
	})
	if err != nil {
		return err
	}

	server := &http.Server{Addr: listen, Handler: routes(pool, client), ReadHeaderTimeout: 5 * time.Second}
	served := make(chan error, 1)
	go func() {
		defer stop() // if the server cannot listen, the program ends
		served <- server.ListenAndServe()
	}()
	context.AfterFunc(ctx, func() { stopOnSecondSignal(sup) })

	// Run returns once the running jobs have ended. Only then may the server and the pool be closed.
	err = sup.Run(ctx)
	shutdown, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err = errors.Join(err, server.Shutdown(shutdown))
	if closed := <-served; !errors.Is(closed, http.ErrServerClosed) {
		err = errors.Join(err, closed)
	}
	return err
}

func migrate(ctx context.Context, pool *pgxpool.Pool) error {
	if err := migrations.Up(ctx, pool); err != nil {
		return err
	}
	_, err := pool.Exec(ctx, `create table if not exists orders (id bigserial primary key, placed_at timestamptz not null default now())`)
	return err
}

func stopOnSecondSignal(sup *drover.Supervisor) {
	again := make(chan os.Signal, 1)
	signal.Notify(again, os.Interrupt, syscall.SIGTERM)
	<-again
	sup.StopNow()
}

func routes(pool *pgxpool.Pool, client *drover.Client) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", func(w http.ResponseWriter, r *http.Request) {
		id, err := placeOrder(r.Context(), pool, client)
		if err != nil {
			slog.ErrorContext(r.Context(), "order not placed", slog.String("error", err.Error()))
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, id)
	})
	mux.HandleFunc("POST /hook", func(_ http.ResponseWriter, r *http.Request) {
		slog.InfoContext(r.Context(), "webhook called", slog.String("job_id", r.Header.Get("Idempotency-Key")))
	})
	return mux
}

// placeOrder stores the order and its job together.
func placeOrder(ctx context.Context, pool *pgxpool.Pool, client *drover.Client) (id int64, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `insert into orders default values returning id`).Scan(&id); err != nil {
			return err
		}
		_, err := client.EnqueueTx(ctx, tx, OrderPlaced{id}, &drover.EnqueueOpts{Queue: "webhooks"})
		return err
	})
	return id, err
}

// deliverTo returns the handler. The handler may run twice for an order, so it sends a key by which the receiver
// recognizes the order.
func deliverTo(url string) func(context.Context, *drover.Job, OrderPlaced) error {
	return func(ctx context.Context, job *drover.Job, order OrderPlaced) error {
		body, err := json.Marshal(order)
		if err != nil {
			return drover.Discard(err)
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
		if err != nil {
			return drover.Discard(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", job.ID)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close() //nolint:errcheck // nothing is read from it
		return verdict(resp)
	}
}

// verdict turns the answer of the webhook into the error that the handler returns.
func verdict(resp *http.Response) error {
	err := fmt.Errorf("webhook answered %s", resp.Status)
	switch {
	case resp.StatusCode < 300:
		return nil
	case resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable:
		if wait := drover.ParseRetryAfter(resp.Header.Get("Retry-After")); wait > 0 {
			return drover.RetryAfter(wait, err)
		}
		return err
	case resp.StatusCode == http.StatusGone:
		return drover.Discard(err)
	}
	return err
}
