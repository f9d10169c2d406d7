package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/oklog/ulid/v2"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pgurl"
)

// producerSpec is the configuration of a producer process.
type producerSpec struct {
	URL, Name, Dir string
	Seed           uint64
	Load           load
	Next           bool // for a migrator: it applies nextMigration, too
}

const (
	enqueuers      = 4 // several, because an enqueue that waits for its deadline must not stop the producer
	enqueueTimeout = 5 * time.Second
)

// produce enqueues at a steady rate until SIGTERM.
func produce(spec *producerSpec) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log, err := openJournal(spec.Dir, "calls-"+spec.Name)
	if err != nil {
		return err
	}
	client, pool, err := connectClient(ctx, spec.URL, spec.Name, enqueuers)
	if err != nil {
		return err
	}
	defer pool.Close()
	tasks := make(chan task)
	var all sync.WaitGroup
	for range enqueuers {
		all.Go(func() {
			for t := range tasks {
				spec.enqueue(client, log, t)
			}
		})
	}
	rng := rand.New(rand.NewPCG(spec.Seed, 1))
	tick := time.NewTicker(time.Second / time.Duration(spec.Load.Rate))
	defer tick.Stop()
	for n := 0; spec.Load.Jobs == 0 || n < spec.Load.Jobs; n++ {
		t := spec.Load.newTask(rng)
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		tasks <- t
	}
	close(tasks)
	all.Wait()
	return nil
}

// enqueue enqueues one job. It finishes even if the producer is being stopped.
func (spec *producerSpec) enqueue(client *drover.Client, log *journal, t task) {
	id := ulid.Make().String()
	for {
		ctx, cancel := context.WithTimeout(context.Background(), enqueueTimeout)
		log.write(call{At: time.Now(), What: "invoke", Job: id})
		_, err := client.Enqueue(ctx, t, &drover.EnqueueOpts{ID: id})
		cancel()
		answer := call{At: time.Now(), What: answerOf(err), Job: id}
		if err != nil {
			answer.Err = err.Error()
		}
		log.write(answer)
		if !spec.Load.Again || answer.What == "ok" {
			return
		}
	}
}

// answerOf returns how an enqueue with this error ended. After an error of severity ERROR, the enqueue was rolled back.
// After FATAL or a lost connection, the outcome is unknown.
func answerOf(err error) string {
	var db *pgconn.PgError
	switch {
	case err == nil:
		return "ok"
	case pgconn.SafeToRetry(err), errors.Is(err, drover.ErrInvalid):
		return "fail"
	case errors.As(err, &db) && db.Severity == "ERROR":
		return "fail"
	}
	return "unknown"
}

// connect makes a pool. Its sessions have the name of the process as their application_name, by which the audit
// recognizes them.
func connect(ctx context.Context, url, name string, most int) (*pgxpool.Pool, error) {
	config, err := pgurl.Parse(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns, config.MaxConnIdleTime, config.HealthCheckPeriod = int32(most), 2*time.Second, time.Second //nolint:gosec // most is about a dozen; the short times make the pool shrink soon
	config.ConnConfig.RuntimeParams["application_name"] = name
	return pgxpool.NewWithConfig(ctx, config)
}

func runProducer() error {
	var spec producerSpec
	if err := asChild(&spec); err != nil {
		return err
	}
	if err := produce(&spec); err != nil {
		return fmt.Errorf("producer %s (%d): %w", spec.Name, os.Getpid(), err)
	}
	return nil
}

// connectClient makes a pool as connect does, and a client that uses the pool.
func connectClient(ctx context.Context, url, name string, most int) (*drover.Client, *pgxpool.Pool, error) {
	pool, err := connect(ctx, url, name, most)
	if err != nil {
		return nil, nil, err
	}
	client, err := quietClient(pool)
	if err != nil {
		pool.Close()
	}
	return client, pool, err
}

// quietClient makes a client that logs nothing, because the journals record what happens to jobs.
func quietClient(pool *pgxpool.Pool) (*drover.Client, error) {
	return drover.New(pool, drover.Config{Logger: slog.New(slog.DiscardHandler)})
}
