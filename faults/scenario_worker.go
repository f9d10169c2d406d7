package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"
)

func workerScenarios() []scenario {
	return []scenario{
		{
			id: "W-1", what: "kill -9 of a random worker every second", quick: 8, full: 50, alone: true,
			recovery: 5 * time.Second, run: killOne, extra: both(noInnocent, restartsSoon),
		},
		{
			id: "W-2", what: "kill -9 of all four workers at once", quick: 2, full: 10,
			recovery: 10 * time.Second, run: killAll, extra: noInnocent,
		},
		{
			id: "W-4", what: "a stopped worker wakes after others have its jobs", quick: 2, full: 100, minutes: 12,
			recovery: 5 * time.Second, run: zombie, extra: both(noInnocent, zombiesAreRefused),
			change: zombies(0),
		},
		{
			id: "W-5", what: "the same with handlers inside CompleteTx", quick: 2, full: 100, minutes: 12,
			recovery: 5 * time.Second, run: zombie, extra: both(noInnocent, zombiesAreRefused),
			change: zombies(1),
		},
		{
			id: "W-3", what: "death between claim and start, between run and settle, after the settle's commit", quick: 6, full: 600, minutes: 12,
			recovery: 5 * time.Second, tag: "droverfail", run: dieAtPoints, extra: noInnocent,
			change: func(l *load, _ bool) { l.Failing = 0 },
		},
		{
			id: "W-6", what: "SIGTERM; of deaf handlers; followed by SIGKILL", quick: 3, full: 30,
			recovery: 5 * time.Second, run: terminate, extra: both(noInnocent, stopsAreNoDeaths),
		},
	}
}

// dieAtPoints lets a worker die at one of the library's failpoints, and starts another worker. It goes through the
// failpoints in turn.
func dieAtPoints(ctx context.Context, w *world, rounds int) error {
	for n := range rounds {
		if err := pause(ctx, 500*time.Millisecond); err != nil {
			return err
		}
		c, point := w.anyWorker(), []string{"claimed", "ran", "settled"}[n%3]
		err := w.inject("death of "+c.name+" at "+point, c.name, func() error {
			if err := os.WriteFile(armed(w.dir, c.name, point), nil, 0o600); err != nil {
				return err
			}
			return until(ctx, c.name+" died at "+point, 15*time.Second, func() (bool, error) { return !c.alive(), nil })
		})
		w.gone(c)
		if err != nil {
			return err
		}
		if _, err := w.startWorker(w.load); err != nil {
			return err
		}
	}
	return w.recovered(ctx, 15*time.Second)
}

// The function both returns a rule that checks two rules.
func both(a, b func(*history) []string) func(*history) []string {
	return func(h *history) []string { return append(a(h), b(h)...) }
}

// killOne kills a worker every second and starts another in its place.
func killOne(ctx context.Context, w *world, rounds int) error {
	for range rounds {
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
		if err := w.kill(w.anyWorker()); err != nil {
			return err
		}
	}
	return w.recovered(ctx, 15*time.Second)
}

func (w *world) kill(c *child) error {
	err := w.inject("kill -9 "+c.name, c.name, c.kill)
	w.gone(c)
	if err != nil {
		return err
	}
	_, err = w.startWorker(w.load)
	return err
}

// restartsSoon requires that a job whose process was killed for the first time is claimed again within policy.Restart.
func restartsSoon(h *history) (broken []string) {
	for _, j := range h.byJob() {
		var killed time.Time // when the worker of its first death was killed
		deaths, claimer := 0, ""
		for was, is := range j.steps() {
			claim := is.State == "running" && was.State != "running"
			if took := is.At.Sub(killed); claim && deaths == 1 && !killed.IsZero() {
				if took > h.policy.Restart {
					broken = append(broken, fmt.Sprintf("job %s was claimed again %v after its worker had been killed", j.id, took))
				}
				killed = time.Time{}
			}
			if claim {
				claimer = is.Writer
			}
			if is.ErrorsTotal > was.ErrorsTotal && is.LastClass == "crash" {
				if i := slices.IndexFunc(h.faults, func(f fault) bool { return f.Worker == claimer }); i >= 0 {
					killed = h.faults[i].Begun
				}
				deaths++
			}
		}
	}
	return broken
}

// killAll kills all workers together, and starts the same number of new workers.
func killAll(ctx context.Context, w *world, rounds int) error {
	for range rounds {
		if err := pause(ctx, 2*time.Second); err != nil {
			return err
		}
		all := slices.Clone(w.workers)
		err := w.inject("kill -9 of all workers", "", func() error {
			var errs []error
			for _, c := range all {
				errs = append(errs, c.signal(syscall.SIGKILL))
			}
			for _, c := range all {
				<-c.ended
				w.gone(c)
			}
			return errors.Join(errs...)
		})
		for range all {
			_, failed := w.startWorker(w.load)
			err = errors.Join(err, failed)
		}
		if err != nil {
			return err
		}
		if err := w.recovered(ctx, 20*time.Second); err != nil {
			return err
		}
	}
	return nil
}

// zombies returns a load of few jobs, because half of the workers are stopped most of the time. Some jobs run for
// longer than a worker that goes on takes to notice that it has lost them.
func zombies(transactional float64) func(*load, bool) {
	return func(l *load, _ bool) { l.Rate, l.Transactional, l.Long = 20, transactional, 0.04 }
}

// zombie stops this number of workers for a while, two at a time.
func zombie(ctx context.Context, w *world, rounds int) error {
	for range rounds / 2 {
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
		n := w.rng.IntN(len(w.workers))
		if err := w.sleepThrough(ctx, w.workers[n], w.workers[(n+1)%len(w.workers)]); err != nil {
			return err
		}
	}
	return w.recovered(ctx, 10*time.Second)
}

// sleepThrough stops workers with SIGSTOP until other workers have completed some of their jobs. Then it lets the
// stopped workers go on.
func (w *world) sleepThrough(ctx context.Context, sleepers ...*child) error {
	stopped := make([]time.Time, len(sleepers))
	for i, c := range sleepers {
		if err := w.untilLongRun(ctx, c); err != nil {
			return err
		}
		stopped[i] = time.Now()
		if err := c.signal(syscall.SIGSTOP); err != nil {
			return err
		}
	}
	for i, c := range sleepers {
		err := w.eventually(ctx, "another worker completed a job of "+c.name, 10*w.load.Lease, sqlTakenOver, c.name, stopped[i])
		if err := errors.Join(err, c.signal(syscall.SIGCONT)); err != nil {
			return err
		}
		w.faults = append(w.faults, fault{
			What: "SIGSTOP until others have its jobs: " + c.name, Worker: c.name, Count: 1, Begun: stopped[i], Ended: time.Now(),
		})
	}
	for i, c := range sleepers {
		err := until(ctx, c.name+" is told that its outcome is stale", 15*time.Second, func() (bool, error) {
			notes, err := w.notes(c)
			return slices.ContainsFunc(notes, func(n note) bool { return n.What == "stale" && n.At.After(stopped[i]) }), err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// untilLongRun waits until a worker has just begun a long run.
func (w *world) untilLongRun(ctx context.Context, c *child) error {
	return until(ctx, c.name+" runs a long job", 20*time.Second, func() (bool, error) {
		var job string
		var attempt int
		if err := w.pool.QueryRow(ctx, sqlClaimedLong, c.name).Scan(&job, &attempt); err != nil {
			return false, err // usually pgx.ErrNoRows, and until tries again
		}
		notes, err := w.notes(c)
		return slices.ContainsFunc(notes, func(n note) bool { return n.What == "start" && n.Job == job && n.Attempt == attempt }), err
	})
}

// sqlClaimedLong returns a long job that worker $1 has just claimed, and that is due even if the clock has gone back.
const sqlClaimedLong = `
select j.id, j.attempt from jobs j join audit a on a.job = j.id and a.claim_seq = j.claim_seq and a.state = 'running'
where j.state = 'running' and (j.args->>'ms')::int > 1000 and a.writer = $1
	and j.attempted_at between now() - interval '1 s' and now() and j.scheduled_at <= now()
order by j.attempted_at limit 1`

// sqlTakenOver returns whether other workers have, after $2, ended a run of worker $1 and completed its job. Only runs
// under the present lease of worker $1 count, not runs that it lost with an earlier lease.
const sqlTakenOver = `
select exists (
	select from audit mine
	join audit rescue on rescue.job = mine.job and rescue.claim_seq = mine.claim_seq and rescue.state <> 'running'
		and rescue.last_class = 'crash' and rescue.at > $2
	join audit theirs on theirs.job = mine.job and theirs.claim_seq > mine.claim_seq and theirs.state = 'completed'
		and theirs.writer <> mine.writer
	where mine.writer = $1 and mine.state = 'running'
		and mine.claimed_by = (select claimed_by from audit where writer = $1 and state = 'running' order by n desc limit 1)
)`

// zombiesAreRefused looks at each worker that was stopped and went on. It requires that the handlers of the worker were
// cancelled immediately, because the lease was lost, and that its outcomes were refused.
func zombiesAreRefused(h *history) (broken []string) {
	for _, f := range h.faults {
		cancelled, refused := 0, 0
		for _, n := range h.notes {
			if n.Worker != f.Worker || n.At.Before(f.Begun) { // if the worker slept until the end, it has no notes after this
				continue
			}
			switch n.What {
			case "cancelled":
				if n.At.Sub(f.Ended) <= time.Second && n.Err == "drover: lease lost" {
					cancelled++
				}
			case "stale":
				refused++
			}
		}
		if cancelled == 0 {
			broken = append(broken, f.What+": no handler was cancelled within a second of waking")
		}
		if refused == 0 {
			broken = append(broken, f.What+": no outcome was refused")
		}
	}
	return broken
}

// terminate stops a worker in each round, in three different ways in turn.
func terminate(ctx context.Context, w *world, rounds int) error {
	for n := range rounds {
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
		var err error
		switch n % 3 {
		case 0:
			c := w.anyWorker()
			err = w.inject("SIGTERM "+c.name, c.name, func() error { return w.stopInTime(c, w.load.Drain+10*time.Second) })
		case 1:
			err = w.terminateDeaf(ctx)
		case 2:
			c := w.anyWorker()
			err = w.inject("SIGTERM, SIGKILL after 100 ms "+c.name, "", func() error {
				return errors.Join(c.signal(syscall.SIGTERM), pause(ctx, 100*time.Millisecond), c.kill())
			})
			w.gone(c)
		}
		if err != nil {
			return err
		}
		if n%3 != 1 {
			if _, err := w.startWorker(w.load); err != nil {
				return err
			}
		}
	}
	return w.recovered(ctx, 15*time.Second)
}

// stopInTime stops a worker. The worker must end by itself within the time for the drain, 5 s for cancelled handlers,
// and 2 s for outcomes.
func (w *world) stopInTime(c *child, atMost time.Duration) error {
	err := c.stop(atMost)
	w.gone(c)
	return err
}

// terminateDeaf stops a worker whose handlers never return.
func (w *world) terminateDeaf(ctx context.Context) error {
	deaf := w.load
	deaf.Deaf = true
	c, err := w.startWorker(deaf)
	if err != nil {
		return err
	}
	err = until(ctx, c.name+" runs jobs in all its slots", 30*time.Second, func() (bool, error) {
		notes, err := w.notes(c)
		started := 0
		for _, n := range notes {
			if n.What == "start" {
				started++
			}
		}
		return started >= deaf.Slots, err
	})
	if err != nil {
		return err
	}
	return w.inject("SIGTERM of deaf handlers "+c.name, c.name, func() error { return w.stopInTime(c, deaf.Drain+10*time.Second) })
}

// stopsAreNoDeaths requires that no run is blamed on the end of a worker that was stopped and ended in time.
func stopsAreNoDeaths(h *history) (broken []string) {
	for _, j := range h.byJob() {
		claimer := ""
		for was, is := range j.steps() {
			if is.State == "running" && was.State != "running" {
				claimer = is.Writer
			}
			stopped := slices.ContainsFunc(h.faults, func(f fault) bool { return f.Worker == claimer })
			if stopped && is.ErrorsTotal > was.ErrorsTotal && is.LastClass == "crash" {
				broken = append(broken, fmt.Sprintf("job %s: a run is blamed on the end of %s", j.id, claimer))
			}
		}
	}
	return broken
}
