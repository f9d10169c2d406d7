package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/oklog/ulid/v2"

	"github.com/drover-queue/drover"
)

func producerScenarios() []scenario {
	return []scenario{{
		id: "L-6", what: "64 producers enqueue under one id at the same moment, and half of them roll back", quick: 100, full: 10_000, alone: true,
		recovery: 5 * time.Second, deathless: true, run: raceForIDs, extra: runsOnce,
		change: func(l *load, _ bool) { l.Producers, l.Failing, l.Workers = 0, 0, 1 },
	}}
}

// racers is how many producers enqueue a job with the same id.
const racers = 64

// raceForIDs lets the racers race for one id in each round. A stored job runs and ends while other racers still ask for
// its id.
func raceForIDs(ctx context.Context, w *world, rounds int) error {
	client, pool, err := connectClient(ctx, w.url, "racers", racers)
	if err != nil {
		return err
	}
	defer pool.Close()
	log, err := openJournal(w.dir, "calls-racers")
	if err != nil {
		return err
	}
	err = w.inject("one id for 64 producers", "", func() error {
		for range rounds {
			r := idRace{pool: pool, client: client, log: log, id: ulid.Make().String(), task: w.many(1, 1, "")[0]}
			if err := r.run(ctx, w.rng.Perm(racers)); err != nil {
				return err
			}
		}
		return nil
	})
	w.faults[0].Count = rounds * racers / 2
	if err := errors.Join(err, log.file.Close()); err != nil {
		return err
	}
	if _, err := w.enqueue(ctx, w.many(1, 1, ""), drover.EnqueueOpts{}); err != nil {
		return err
	}
	return w.recovered(ctx, 10*time.Second)
}

// runsOnce requires that each job was claimed exactly once.
func runsOnce(h *history) (broken []string) {
	for _, j := range h.byJob() {
		if n := j.claims(); n != 1 {
			broken = append(broken, fmt.Sprintf("job %s was claimed %d times", j.id, n))
		}
	}
	return broken
}

// idRace is one round. All racers have begun their transactions before one of them enqueues.
type idRace struct {
	pool   *pgxpool.Pool
	client *drover.Client
	log    *journal
	id     string
	task   task
}

// run runs the round. Half of the racers commit. run returns an error unless exactly one of the racers that commit gets
// the answer that it has stored the job.
func (r *idRace) run(ctx context.Context, order []int) error {
	var ready, all sync.WaitGroup
	start, errs, stored := make(chan struct{}), make([]error, racers), make([]bool, racers)
	r.log.write(call{At: time.Now(), What: "invoke", Job: r.id})
	ready.Add(racers)
	for i, place := range order {
		all.Go(func() { stored[i], errs[i] = r.enqueue(ctx, place%2 == 0, place%3, &ready, start) })
	}
	ready.Wait()
	close(start)
	all.Wait()
	n := 0
	for _, yes := range stored {
		if yes {
			n++
		}
	}
	if err := errors.Join(errs...); err != nil || n != 1 {
		return errors.Join(fmt.Errorf("%d of those that enqueued %s and committed are told that they have stored it", n, r.id), err)
	}
	r.log.write(call{At: time.Now(), What: "ok", Job: r.id})
	return nil
}

var errRollBack = errors.New("rolled back")

// enqueue reports whether this racer has stored the job and committed.
func (r *idRace) enqueue(ctx context.Context, commit bool, way int, ready *sync.WaitGroup, start <-chan struct{}) (stored bool, err error) {
	begun := sync.OnceFunc(ready.Done)
	defer begun() // also if the transaction fails earlier
	err = pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
		begun()
		<-start
		var err error
		if stored, err = r.insert(ctx, tx, way); err == nil && !commit {
			err = errRollBack
		}
		return err
	})
	if errors.Is(err, errRollBack) {
		return false, nil
	}
	return stored && err == nil, err
}

// insert enqueues a job with the id in one of three ways.
func (r *idRace) insert(ctx context.Context, tx pgx.Tx, way int) (stored bool, err error) {
	opts := &drover.EnqueueOpts{ID: r.id}
	var existing bool
	switch way {
	case 0:
		receipt, err := r.client.EnqueueTx(ctx, tx, r.task, opts)
		return !receipt.Existing, err
	case 1:
		receipts, err := r.client.EnqueueManyTx(ctx, tx, []drover.EnqueueItem{{Args: r.task, Opts: opts}})
		return err == nil && !receipts[0].Existing, err
	}
	err = tx.QueryRow(ctx, `select existing from drover_enqueue(kind => 'task', args => $1, id => $2)`, r.task, r.id).Scan(&existing)
	return !existing, err
}
