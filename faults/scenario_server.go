package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
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
			id: "S-4", what: "lock table jobs in access exclusive mode", quick: 6, full: 60, minutes: 3,
			recovery: 5 * time.Second, deathless: true, run: lockJobs,
		},
	}
}

// killServer kills the postmaster under load; every other time it is away for longer than a lease.
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

// killForgetfulServer kills it while the log of the last second is in its memory only: the log's writer stands still, and
// is killed too.
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

// terminateBackends does so for as many seconds.
func terminateBackends(ctx context.Context, w *world, seconds int) error {
	const calm = 4 * time.Second // what keepsPace compares with
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

// keepsPace compares completions a second during a fault with those before it.
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

// lockJobs holds the table for as many seconds.
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
