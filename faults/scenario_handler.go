package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/drover-queue/drover"
)

func handlerScenarios() []scenario {
	alone := func(l *load, _ bool) { l.Workers, l.Producers, l.Failing = 1, 0, 0 }
	return []scenario{
		{
			id: "W-7", what: "panics of every kind and runtime.Goexit in 100 jobs on 10 slots", quick: 100, full: 100,
			recovery: 5 * time.Second, deathless: true, run: panicInSlots, extra: panicsAreTold, change: alone,
		},
		{
			id: "W-8", what: "a job that ends its process among innocents with two attempts", quick: 1, full: 4, racy: true,
			run: poison, extra: both(noInnocent, pillsAreFound),
			change: func(l *load, _ bool) { l.Producers, l.Failing = 0, 0 },
		},
		{
			id: "L-3", what: "one error that no row can hold among 500", quick: 500, full: 500, alone: true,
			recovery: 5 * time.Second, deathless: true, dirty: true, run: failTogether, extra: othersSettleSoon,
			change: func(l *load, _ bool) { l.Workers, l.Slots, l.Producers, l.Failing = 1, 500, 0, 0 },
		},
		{
			id: "L-1", what: "retry storm: so many jobs fail at once", quick: 3000, full: 45_000, alone: true,
			recovery: 5 * time.Second, deathless: true, run: storm, extra: both(stormIsFlat, claimsKeepUp),
			change: func(l *load, _ bool) { l.Failing, l.Rate = 0, 20 },
		},
		{
			id: "L-4", what: "10,000 rows of an unknown kind older than one fresh job", quick: 10_000, full: 10_000, alone: true,
			recovery: 5 * time.Second, deathless: true, run: standInFront, extra: freshStartsSoon, change: alone,
		},
	}
}

// The method many returns n tasks. Each does one of the given things, in turn.
func (w *world) many(n, ms int, do ...string) []task {
	tasks := make([]task, n)
	for i := range tasks {
		tasks[i] = task{Seed: w.rng.Uint64(), MS: ms, Do: do[i%len(do)]}
	}
	return tasks
}

const sqlAllDone = `select not exists (select from jobs where finalized_at is null and kind = 'task')`

// panicInSlots runs many panicking jobs in every slot, and then twice as many good jobs.
func panicInSlots(ctx context.Context, w *world, jobs int) error {
	err := w.inject("panics", "", func() error {
		_, err := w.enqueue(ctx, w.many(jobs, 10, "panic", "panic error", "panic nil map", "goexit"), drover.EnqueueOpts{})
		if err != nil {
			return err
		}
		return w.eventually(ctx, "all panics are over", 30*time.Second, `select count(*) = $1 from audit where last_class = 'panic' and state = 'retryable'`, jobs)
	})
	w.faults[0].Count = jobs
	if err != nil {
		return err
	}
	if _, err := w.enqueue(ctx, w.many(2*jobs, 10, ""), drover.EnqueueOpts{}); err != nil {
		return err
	}
	return w.eventually(ctx, "the next jobs run", 30*time.Second, sqlAllDone)
}

// panicsAreTold requires that each panicking job failed once, and that its entry has the class "panic".
func panicsAreTold(h *history) (broken []string) {
	panics := 0
	for _, j := range h.byJob() {
		for was, is := range j.steps() {
			if is.ErrorsTotal > was.ErrorsTotal && is.LastClass == "panic" {
				panics++
			}
		}
	}
	if panics != h.faults[0].Count {
		broken = append(broken, fmt.Sprintf("%d panics are recorded of %d", panics, h.faults[0].Count))
	}
	return broken
}

// poison puts one job that kills its process among innocent jobs. It starts a worker for each killed worker, until all
// jobs have ended.
func poison(ctx context.Context, w *world, rounds int) error {
	for n := range rounds {
		tasks := w.many(innocents, 100, "")
		tasks[w.rng.IntN(innocents/4)].Do = []string{"exit", "overflow", "race", "hog"}[n%4]
		if _, err := w.enqueue(ctx, tasks, drover.EnqueueOpts{MaxAttempts: 2}); err != nil {
			return err
		}
		err := until(ctx, "all jobs have ended", 2*time.Minute, func() (bool, error) {
			for _, c := range slices.Clone(w.workers) {
				if c.alive() {
					continue
				}
				w.gone(c)
				if err := w.inject("a job ended "+c.name, c.name, func() error { return nil }); err != nil {
					return false, err
				}
				if _, err := w.startWorker(w.load); err != nil {
					return false, err
				}
			}
			return w.isSo(ctx, sqlAllDone)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

const innocents = 2000

// pillsAreFound requires that every lethal job is quarantined after few deaths.
func pillsAreFound(h *history) (broken []string) {
	pills := 0
	for _, r := range h.rows {
		switch {
		case !r.Lethal && r.State != "completed":
			broken = append(broken, fmt.Sprintf("innocent job %s is %s %s", r.Job, r.State, r.Reason))
		case r.Lethal && r.Reason != "crashed":
			broken = append(broken, fmt.Sprintf("lethal job %s is %s %s", r.Job, r.State, r.Reason))
		}
		if r.Lethal {
			pills++
		}
	}
	if deaths := len(h.faults); deaths > 3*pills {
		broken = append(broken, fmt.Sprintf("%d processes died of %d jobs", deaths, pills))
	}
	return broken
}

// failTogether lets jobs fail at about the same time, one of them with an error text that the database cannot store.
func failTogether(ctx context.Context, w *world, jobs int) error {
	tasks := w.many(jobs, 10, "fail")
	tasks[w.rng.IntN(jobs)].Do = "dirty"
	err := w.inject("an error that no row can hold", "", func() error {
		if _, err := w.enqueue(ctx, tasks, drover.EnqueueOpts{}); err != nil {
			return err
		}
		return w.eventually(ctx, "all failures are recorded", 30*time.Second, `select count(*) = $1 from jobs where errors_total = 1`, jobs)
	})
	if err != nil {
		return err
	}
	_, err = w.enqueue(ctx, w.many(10, 10, ""), drover.EnqueueOpts{})
	return err
}

// othersSettleSoon requires that every failed run is recorded in its row within a second.
func othersSettleSoon(h *history) (broken []string) {
	for _, j := range h.byJob() {
		var ended time.Time
		for _, n := range j.notes {
			if n.What == "end" && n.Attempt == 1 {
				ended = n.At
			}
		}
		for was, is := range j.steps() {
			if took := is.At.Sub(ended); is.ErrorsTotal > was.ErrorsTotal && took > time.Second {
				broken = append(broken, fmt.Sprintf("the failed run of %s was in its row after %v", j.id, took))
			}
		}
	}
	return broken
}

// stormLasts returns two times for this number of jobs: the lead, in which all of them fail, and the spread, the time
// after it over which their retries are due.
func stormLasts(jobs int) (lead, spread time.Duration) {
	if jobs >= 45_000 {
		return time.Minute, time.Minute
	}
	return 2 * time.Second, 10 * time.Second
}

// storm lets jobs fail together, next to the usual load, and waits until their retries are done.
func storm(ctx context.Context, w *world, jobs int) error {
	if err := pause(ctx, 10*time.Second); err != nil { // claimsKeepUp compares the storm with this time
		return err
	}
	lead, spread := stormLasts(jobs)
	w.policy.Base, w.policy.Max, w.policy.Jitter = lead, lead, spread.Seconds()/lead.Seconds()
	err := w.inject("jobs fail at once", "", func() error {
		_, err := w.enqueue(ctx, w.many(jobs, 1, "fail"), drover.EnqueueOpts{
			Retry: drover.Constant{Delay: lead + spread/2, Jitter: drover.JitterAbs(spread / 2)},
		})
		if err != nil {
			return err
		}
		return w.eventually(ctx, "all have failed, and no other job waits behind them", lead, `
select count(*) filter (where errors_total = 1) = $1
    and count(*) filter (where state = 'available' and scheduled_at < now() - interval '100 ms') = 0 from jobs`, jobs)
	})
	w.faults[0].Count = jobs
	if err != nil {
		return err
	}
	return w.eventually(ctx, "all retries are done", lead+spread+10*time.Second,
		`select not exists (select from jobs where finalized_at is null and errors_total > 0)`)
}

// stormIsFlat requires that the retries that are due in a second exceed an even spread by at most a fifth. If they are
// spread over a minute, at most 2 % of the retries are due in one second.
func stormIsFlat(h *history) (broken []string) {
	var dues []time.Time
	for _, j := range h.byJob() {
		for was, is := range j.steps() {
			if is.ErrorsTotal > was.ErrorsTotal {
				dues = append(dues, is.ScheduledAt)
			}
		}
	}
	_, spread := stormLasts(len(dues))
	most := int(1.2 * float64(len(dues)) / spread.Seconds())
	first, seconds := slices.MinFunc(dues, time.Time.Compare), map[time.Duration]int{}
	for _, due := range dues {
		seconds[due.Sub(first).Truncate(time.Second)]++
	}
	for second, n := range seconds {
		if n > most {
			broken = append(broken, fmt.Sprintf("%d of %d retries are due in the second %v after the first, at most %d should be", n, len(dues), second, most))
		}
	}
	return broken
}

// claimsKeepUp requires that supervisors claim jobs that become due during the storm as soon after their due times as
// before it. The storm begins when all jobs have failed and no other job waits behind them.
func claimsKeepUp(h *history) (broken []string) {
	f := h.faults[0]
	var calm, stormy []time.Duration
	for _, j := range h.byJob() {
		for was, is := range j.steps() {
			if is.State != "running" || was.State == "running" {
				continue
			}
			waited := is.At.Sub(was.ScheduledAt)
			switch {
			case is.At.Before(f.Begun):
				calm = append(calm, waited)
			case was.ScheduledAt.After(f.Ended):
				stormy = append(stormy, waited)
			}
		}
	}
	is, was := quantile(stormy, 0.99), quantile(calm, 0.99)
	if is > 5*was {
		broken = append(broken, fmt.Sprintf("99 %% of the claims came within %v in the storm, within %v before it", is, was))
	}
	return broken
}

// standInFront inserts rows of a kind that nobody runs, and then a job that is due later than all of them.
func standInFront(ctx context.Context, w *world, rows int) error {
	err := w.inject("rows of an unknown kind", "", func() error {
		_, err := w.pool.Exec(ctx, `
insert into jobs (kind, scheduled_at) select 'unknown', now() - interval '1 hour' from generate_series(1, $1)`, rows)
		return err
	})
	w.faults[0].Count = rows
	if err != nil {
		return err
	}
	if _, err := w.enqueue(ctx, w.many(1, 10, ""), drover.EnqueueOpts{}); err != nil {
		return err
	}
	return w.recovered(ctx, 10*time.Second)
}

// freshStartsSoon requires that every job is claimed within two poll intervals.
func freshStartsSoon(h *history) (broken []string) {
	for _, j := range h.byJob() {
		for was, is := range j.steps() {
			if took := is.At.Sub(was.At); was.Op == "INSERT" && took > 2*h.policy.Poll {
				broken = append(broken, fmt.Sprintf("job %s waited %v", j.id, took))
			}
		}
	}
	return broken
}
