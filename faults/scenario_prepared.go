package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/oklog/ulid/v2"

	"github.com/drover-queue/drover"
)

func preparedScenarios() []scenario {
	return []scenario{{
		id: "N-6", what: "enqueues, settles, follow-ups and cancels in prepared transactions, and the server killed while they wait", quick: 6, full: 60, minutes: 6,
		recovery: 20 * time.Second, run: prepareAll,
		change: func(l *load, _ bool) { l.Prepared, l.Transactional = true, 0.6 },
	}}
}

// The function prepared calls the function do in a transaction that notifies nobody, and prepares the transaction. Then
// it calls the function wait. After that it commits the prepared transaction, even if the session or the server has
// ended since.
func prepared(ctx context.Context, pool *pgxpool.Pool, name string, wait func() error, do func(tx pgx.Tx) error) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	if _, err := tx.Exec(ctx, `set local drover.notify = off`); err != nil {
		return err
	}
	if err := do(tx); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, fmt.Sprintf(`prepare transaction '%s'`, name)); err != nil {
		return err
	}
	if err := wait(); err != nil {
		return err
	}
	return until(ctx, "the transaction "+name+" is committed", time.Minute, func() (bool, error) {
		if _, err := pool.Exec(ctx, fmt.Sprintf(`commit prepared '%s'`, name)); err == nil {
			return true, nil
		}
		var there bool // false: an earlier try has committed the transaction, and the reply was lost
		err := pool.QueryRow(ctx, `select exists (select from pg_prepared_xacts where gid = $1)`, name).Scan(&there)
		return err == nil && !there, nil
	})
}

// prepareAll prepares four transactions in each round: an enqueue of one job, an enqueue of two jobs, a discard with a
// follow-up, and a cancel. In every third round the server is killed before they are committed. Workers also settle the
// transactional jobs of the load in prepared transactions.
func prepareAll(ctx context.Context, w *world, rounds int) error {
	client, pool, err := connectClient(ctx, w.url, "preparer", 4)
	if err != nil {
		return err
	}
	defer pool.Close()
	for round := range rounds {
		w.faults = append(w.faults, fault{What: fmt.Sprintf("prepared transactions, round %d", round+1), Count: 1, Begun: time.Now()})
		wait := func() error { return pause(ctx, time.Duration(50+w.rng.Int64N(1500))*time.Millisecond) }
		if round%3 == 2 {
			wait = func() error { return errors.Join(w.server.Kill(), w.server.Restart(ctx)) }
		}
		if err := w.prepareRound(ctx, client, pool, wait); err != nil {
			return err
		}
		w.faults[len(w.faults)-1].Ended = time.Now()
		if err := resolve(ctx, pool); err != nil {
			return err
		}
		if err := w.recovered(ctx, 30*time.Second); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) prepareRound(ctx context.Context, client *drover.Client, pool *pgxpool.Pool, wait func() error) error {
	log, err := openJournal(w.dir, "calls-preparer")
	if err != nil {
		return err
	}
	batch := make([]drover.EnqueueItem, 3)
	for i, t := range w.many(len(batch), 5, "") {
		batch[i] = drover.EnqueueItem{Args: t, Opts: &drover.EnqueueOpts{ID: ulid.Make().String()}}
		log.write(call{At: time.Now(), What: "invoke", Job: batch[i].Opts.ID})
	}
	dead, unwanted := ulid.Make().String(), ulid.Make().String()
	_, err = pool.Exec(ctx, `
with mourned as (insert into drover_kinds (kind, follow_up_kind, follow_up_queue) values ('mourned', 'noop', 'default') on conflict do nothing)
insert into jobs (id, kind, queue) values ($1, 'mourned', 'nobody serves it'), ($2, 'noop', 'nobody serves it')`, dead, unwanted)
	if err != nil {
		return err
	}
	err = prepared(ctx, pool, "of the suite", wait, func(tx pgx.Tx) error {
		_, one := client.EnqueueTx(ctx, tx, batch[0].Args, batch[0].Opts)
		_, two := client.EnqueueManyTx(ctx, tx, batch[1:])
		_, discard := tx.Exec(ctx, `select drover_discard($1)`, dead)
		_, cancel := tx.Exec(ctx, `select drover_cancel($1)`, unwanted)
		return errors.Join(one, two, discard, cancel)
	})
	if err != nil {
		return err
	}
	for _, b := range batch {
		log.write(call{At: time.Now(), What: "ok", Job: b.Opts.ID})
	}
	found := w.eventually(ctx, "the jobs of a prepared transaction have run, and its verbs hold", 20*time.Second, `
select (select count(*) = 3 from jobs where id = any($1) and state = 'completed') and (select state = 'discarded' from jobs where id = $2)
	and (select state = 'cancelled' from jobs where id = $3)
	and exists (select from jobs where kind = 'noop' and args->>'job_id' = $2 and state = 'completed')`, []string{batch[0].Opts.ID, batch[1].Opts.ID, batch[2].Opts.ID}, dead, unwanted)
	return errors.Join(found, log.file.Close())
}

// resolve commits the transactions that workers had prepared when the server died, as a transaction manager does. It
// waits until all transactions that were prepared before it began are two seconds old or gone, because a worker commits
// its own within that time.
func resolve(ctx context.Context, pool *pgxpool.Pool) error {
	var began time.Time
	if err := pool.QueryRow(ctx, `select clock_timestamp()`).Scan(&began); err != nil {
		return err
	}
	return until(ctx, "all transactions of workers are committed", time.Minute, func() (bool, error) {
		left, err := collect[struct {
			Name string
			Old  bool
		}](ctx, pool, `select gid, prepared < clock_timestamp() - interval '2 s' from pg_prepared_xacts where database = current_database() and prepared <= $1`, began)
		for _, x := range left {
			if x.Old {
				_, _ = pool.Exec(ctx, fmt.Sprintf(`commit prepared '%s'`, x.Name)) // the worker may have committed it meanwhile
			}
		}
		return err == nil && len(left) == 0, nil
	})
}
