package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/oklog/ulid/v2"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/health"
	"github.com/drover-queue/drover/internal/pg"
)

func serverScenarios() []scenario {
	return []scenario{
		{
			id: "K-1", what: "negative control: S-1 without durable commits must lose jobs", quick: 1, full: 3,
			asynchronous: true, mustLose: true, run: killForgetfulServer,
		},
		{
			id: "S-1", what: "kill -9 of the postmaster, pauses shorter and longer than the lease", quick: 2, full: 10, minutes: 3,
			recovery: 5 * time.Second, deathless: true, run: killServer,
		},
		{
			id: "S-2", what: "pg_terminate_backend of a random connection every 50 ms", quick: 8, full: 60, minutes: 2,
			recovery: 2 * time.Second, deathless: true, run: terminateBackends, extra: keepsPace,
		},
		{
			id: "S-3", what: "a forgotten transaction while dead rows pile up", quick: 60_000, full: 1_000_000, alone: true,
			recovery: 5 * time.Second, deathless: true, run: holdSnapshot,
			change: func(l *load, _ bool) { l.Workers, l.Slots, l.Producers, l.Failing = 1, 50, 0, 0 },
		},
		{
			id: "S-4", what: "lock table jobs in access exclusive mode", quick: 6, full: 60, minutes: 3,
			recovery: 5 * time.Second, deathless: true, run: lockJobs,
		},
	}
}

// killServer kills the postmaster under load. In every second round, the server stays away for longer than a lease.
func killServer(ctx context.Context, w *world, rounds int) error {
	for n := range rounds {
		if err := pause(ctx, 2*time.Second+time.Duration(w.rng.IntN(500))*time.Millisecond); err != nil {
			return err
		}
		away := time.Duration(200+w.rng.IntN(500)) * time.Millisecond
		if n%2 == 1 {
			away += w.load.Lease
		}
		err := w.inject(fmt.Sprintf("postmaster killed, away for %v", away), "", func() error {
			return errors.Join(w.server.Kill(), pause(ctx, away), w.server.Restart(ctx))
		})
		if err != nil {
			return err
		}
		if err := w.recovered(ctx, 30*time.Second); err != nil {
			return err
		}
	}
	return nil
}

// killForgetfulServer kills the server while the WAL of the last second is only in memory. To do so, it stops the WAL
// writer process for a second, kills the server, and then kills the WAL writer.
func killForgetfulServer(ctx context.Context, w *world, rounds int) error {
	for range rounds {
		if err := pause(ctx, 2*time.Second); err != nil {
			return err
		}
		var writer int
		if err := w.pool.QueryRow(ctx, `select pid from pg_stat_activity where backend_type = 'walwriter'`).Scan(&writer); err != nil {
			return err
		}
		err := w.inject("postmaster killed, the last second's log unwritten", "", func() error {
			return errors.Join(syscall.Kill(writer, syscall.SIGSTOP), pause(ctx, time.Second),
				w.server.Kill(), syscall.Kill(writer, syscall.SIGKILL), w.server.Restart(ctx))
		})
		if err != nil {
			return err
		}
		if err := w.recovered(ctx, 30*time.Second); err != nil {
			return err
		}
	}
	return nil
}

// terminateBackends terminates sessions of workers and producers for this number of seconds.
func terminateBackends(ctx context.Context, w *world, seconds int) error {
	const calm = 4 * time.Second // keepsPace compares the fault with this time
	if err := pause(ctx, calm); err != nil {
		return err
	}
	killed := 0
	err := w.inject("backends terminated", "", func() error {
		for end := time.Now().Add(time.Duration(seconds) * time.Second); time.Now().Before(end); killed++ {
			_, err := w.pool.Exec(ctx, `
select pg_terminate_backend(pid) from pg_stat_activity
where datname = current_database() and application_name ~ '^[wp][0-9]' order by md5(pid::text || $1) limit 1`, fmt.Sprint(w.rng.Uint64()))
			if err := errors.Join(err, pause(ctx, 50*time.Millisecond)); err != nil {
				return err
			}
		}
		return nil
	})
	w.faults[len(w.faults)-1].Count = killed
	if err != nil {
		return err
	}
	return w.recovered(ctx, 10*time.Second)
}

// keepsPace compares the completions a second during the fault with the completions a second before it.
func keepsPace(h *history) []string {
	f := h.faults[0]
	var before, during int
	first := f.Begun
	for _, v := range h.versions {
		if v.At.Before(first) {
			first = v.At
		}
		switch {
		case v.State != "completed":
		case v.At.Before(f.Begun):
			before++
		case v.At.Before(f.Ended):
			during++
		}
	}
	was, is := float64(before)/f.Begun.Sub(first).Seconds(), float64(during)/f.Ended.Sub(f.Begun).Seconds()
	if is < 0.3*was {
		return []string{fmt.Sprintf("%.1f jobs/s during the fault, %.1f before", is, was)}
	}
	return nil
}

// lockJobs locks the table jobs for this number of seconds.
func lockJobs(ctx context.Context, w *world, seconds int) error {
	if err := pause(ctx, time.Second); err != nil {
		return err
	}
	if err := w.lock(ctx, time.Duration(seconds)*time.Second); err != nil {
		return err
	}
	return w.recovered(ctx, 15*time.Second)
}

func (w *world) lock(ctx context.Context, d time.Duration) error {
	return w.inject(fmt.Sprintf("jobs locked for %v", d), "", func() error {
		tx, err := w.pool.Begin(ctx)
		if err != nil {
			return err
		}
		defer tx.Rollback(ctx)
		if _, err := tx.Exec(ctx, `lock table jobs in access exclusive mode`); err != nil {
			return err
		}
		return errors.Join(pause(ctx, d), tx.Commit(ctx))
	})
}

// holdSnapshot leaves a transaction open while no-op jobs produce this number of dead rows. It compares the speed of
// the jobs with the speed in a twin, where no such transaction is open. It measures both in turns, so that other work
// of the machine disturbs both equally.
func holdSnapshot(ctx context.Context, w *world, dead int) (err error) {
	twin, err := w.twin(ctx)
	if twin != nil {
		defer func() { err = errors.Join(err, twin.close()) }()
	}
	if err != nil {
		return err
	}
	conn, err := connect(ctx, w.url, forgotten, 1)
	if err != nil {
		return err
	}
	defer conn.Close()
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	var pid int
	if err := tx.QueryRow(ctx, `select pg_backend_pid()`).Scan(&pid); err != nil {
		return err
	}
	err = w.inject("a snapshot is held", "", func() error {
		const windows = 5
		for range windows {
			if _, _, err := sideBySide(ctx, w, twin, dead/2/windows); err != nil { // each job leaves two dead rows
				return err
			}
		}
		err := w.eventually(ctx, "the dead rows have piled up", 30*time.Second,
			`select n_dead_tup >= $1 from pg_stat_user_tables where relname = 'jobs'`, dead)
		if err != nil {
			return err
		}
		if err := keepsClaiming(ctx, w, twin); err != nil {
			return err
		}
		return errors.Join(w.healthNames(ctx, pid), tx.Rollback(ctx))
	})
	if err != nil {
		return err
	}
	if _, err := w.enqueue(ctx, w.many(20, 10, ""), drover.EnqueueOpts{}); err != nil {
		return err
	}
	return w.recovered(ctx, 10*time.Second)
}

// keepsClaiming compares the median speeds of the two worlds over a few windows of time. Before it returns an error, it
// compares them over three times as many windows.
func keepsClaiming(ctx context.Context, w, twin *world) error {
	const few, jobs = 5, 15_000
	var held, free []float64
	for _, more := range []int{few, 2 * few} {
		for range more {
			a, b, err := sideBySide(ctx, w, twin, jobs)
			if err != nil {
				return err
			}
			held, free = append(held, a), append(free, b)
		}
		if quantile(held, 0.5) >= 0.9*quantile(free, 0.5) {
			return keepsBeating(w, twin)
		}
	}
	return fmt.Errorf("%.0f jobs/s were claimed while a snapshot was held, %.0f where none was", quantile(held, 0.5), quantile(free, 0.5))
}

// keepsBeating requires that heartbeats were late no more often than in the twin, because a supervisor must not lose
// its jobs because of dead rows.
func keepsBeating(w, twin *world) error {
	const lost = "no heartbeat for most of a lease"
	is, err := countLines(w.dir, lost, "log-")
	was, failed := countLines(twin.dir, lost, "log-")
	if is > was {
		return fmt.Errorf("%q was said %d times while a snapshot was held, %d times where none was", lost, is, was)
	}
	return errors.Join(err, failed)
}

// forgotten is the name of the session that holds a snapshot.
const forgotten = "forgotten"

// sideBySide runs this number of no-op jobs first in one world and then in the other. It returns both rates in jobs a
// second.
func sideBySide(ctx context.Context, a, b *world, jobs int) (rateA, rateB float64, err error) {
	if rateA, err = a.workOff(ctx, jobs); err != nil {
		return 0, 0, err
	}
	rateB, err = b.workOff(ctx, jobs)
	return rateA, rateB, err
}

// workOff runs no-op jobs. It counts them by the worker's own notes, because queries would slow down the measured work.
func (w *world) workOff(ctx context.Context, jobs int) (rate float64, err error) {
	noops := func() (all []note, err error) {
		all, err = w.notes(w.workers[0])
		return slices.DeleteFunc(all, func(n note) bool { return n.What != "noops" }), err
	}
	before, err := noops()
	if err != nil {
		return 0, err
	}
	ids := make([]string, jobs) // the suite makes the ids, because the server would take longer
	for i := range ids {
		ids[i] = ulid.Make().String()
	}
	_, err = w.pool.Exec(ctx, `
with stored as (insert into jobs (id, kind) select id, 'noop' from unnest($1::text[]) i(id) returning 1)
select drover_wake('default') from (select count(*) from stored) s`, ids)
	if err != nil {
		return 0, err
	}
	err = until(ctx, "the jobs are worked off", time.Minute, func() (bool, error) {
		all, err := noops()
		if n := len(all); n == len(before)+jobs/noopStep {
			first, last := all[len(before)], all[n-1]
			rate = float64(last.Count-first.Count) / last.At.Sub(first.At).Seconds()
		}
		return rate > 0, err
	})
	return rate, err
}

// health returns the same report as the command drover health.
func (w *world) health(ctx context.Context) (*health.Report, error) {
	return health.Look(ctx, &pg.Pool{Pool: w.pool})
}

// healthNames requires that the report of drover health names the session that holds the snapshot.
func (w *world) healthNames(ctx context.Context, pid int) error {
	h, err := w.health(ctx)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(h.Holders, func(o health.Holder) bool { return o.PID == pid && o.Application == forgotten }) {
		return fmt.Errorf("session %d (%s) holds vacuum back, and the health says %+v", pid, forgotten, h.Holders)
	}
	return nil
}
