package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/drover-queue/drover"
)

func networkScenarios() []scenario {
	return []scenario{
		{
			id: "N-1", what: "every connection cut (RST) every 2 s", quick: 4, full: 150, minutes: 7,
			recovery: 2 * time.Second, deathless: true, run: cutConnections,
			change: func(l *load, _ bool) { l.Through = l.Workers },
		},
		{
			id: "N-2", what: "black hole, both directions, for two workers of four and all producers", quick: 6, full: 30,
			recovery: 5 * time.Second, run: blackHole, extra: both(noInnocent, callsReturn),
			change: func(l *load, _ bool) { l.Through = 2 },
		},
		{
			id: "N-3", what: "the reply to COMMIT of an enqueue is lost", quick: 60, full: 500,
			recovery: 5 * time.Second, deathless: true, run: loseReplies,
			change: func(l *load, full bool) {
				l.Again, l.Jobs = true, 60
				if full {
					l.Jobs = 500
				}
			},
		},
		{
			id: "N-4", what: "only the connection that hears notifications hangs", quick: 1, full: 10, alone: true,
			recovery: 5 * time.Second, deathless: true, run: hangListener, extra: pollsGoOn,
			change: func(l *load, _ bool) {
				l.Workers, l.Through, l.Producers, l.Failing, l.Poll = 1, 1, 0, 0, 2*time.Second
			},
		},
	}
}

// cutConnections cuts all connections every 2 s. There must never be more connections at the same time than the pools
// and supervisors ask for.
func cutConnections(ctx context.Context, w *world, rounds int) error {
	for range rounds {
		if err := pause(ctx, 2*time.Second); err != nil {
			return err
		}
		cut := 0
		err := w.inject("connections cut", "", func() error {
			cut = w.workerNet.cut() + w.callerNet.cut()
			return nil
		})
		w.faults[len(w.faults)-1].Count = cut
		if err != nil {
			return err
		}
		if err := w.recovered(ctx, 10*time.Second); err != nil {
			return err
		}
	}
	const own = 3 // of a supervisor besides its pool; three more are cancel requests and closing connections
	if _, most := w.workerNet.counts(); most > w.load.Workers*(w.load.Slots+poolSpare+2*own) {
		return fmt.Errorf("%d connections at once", most)
	}
	return nil
}

// blackHole makes the proxies hold back all bytes for this number of seconds.
func blackHole(ctx context.Context, w *world, seconds int) error {
	if err := pause(ctx, 2*time.Second); err != nil {
		return err
	}
	if err := w.hole(ctx, time.Duration(seconds)*time.Second); err != nil {
		return err
	}
	return w.recovered(ctx, 15*time.Second)
}

func (w *world) hole(ctx context.Context, d time.Duration) error {
	return w.inject(fmt.Sprintf("black hole for %v", d), "", func() error {
		w.workerNet.blackHole(true)
		w.callerNet.blackHole(true)
		defer w.workerNet.blackHole(false)
		defer w.callerNet.blackHole(false)
		return pause(ctx, d)
	})
}

// callsReturn requires that every enqueue returned by its deadline.
func callsReturn(h *history) (broken []string) {
	for _, j := range h.byJob() {
		for i := 1; i < len(j.calls); i++ {
			took := j.calls[i].At.Sub(j.calls[i-1].At)
			if j.calls[i-1].What == "invoke" && took > enqueueTimeout+time.Second {
				broken = append(broken, fmt.Sprintf("the enqueue of %s came back after %v", j.id, took))
			}
		}
	}
	return broken
}

// loseReplies drops this number of replies to COMMIT. Producers repeat each enqueue with the same id until its outcome
// is known.
func loseReplies(ctx context.Context, w *world, replies int) error {
	err := w.inject("replies to COMMIT lost", "", func() error {
		w.callerNet.stealCommits(replies)
		return until(ctx, "all replies are lost", 3*time.Minute, func() (bool, error) {
			stolen, _ := w.callerNet.counts()
			return stolen == replies, nil
		})
	})
	stolen, _ := w.callerNet.counts()
	w.faults[len(w.faults)-1].Count = stolen
	w.awaitProducers(ctx)
	stored := 0
	failed := w.pool.QueryRow(ctx, `select count(*) from jobs`).Scan(&stored)
	if want := w.load.Producers * w.load.Jobs; failed == nil && stored != want {
		failed = fmt.Errorf("%d rows of %d enqueues", stored, want)
	}
	return errors.Join(err, failed)
}

// hangListener lets each connection hang once it has sent LISTEN. The connections that replace it hang as well. Before,
// during and after the fault, jobs come one by one, each to a supervisor that sleeps.
func hangListener(ctx context.Context, w *world, rounds int) error {
	net := w.workerNet
	if err := w.wakeUps(ctx, 5, 0); err != nil {
		return err
	}
	for range rounds {
		before, hungBefore := net.listeners()
		err := w.inject("the listening connection hangs", "", func() error {
			net.hangListeners(true)
			defer net.hangListeners(false)
			err := until(ctx, "it hangs", w.load.Lease, func() (bool, error) {
				_, hung := net.listeners()
				return hung > hungBefore, nil
			})
			if err != nil {
				return err
			}
			return w.wakeUps(ctx, 5, time.Second)
		})
		_, hung := net.listeners()
		w.faults[len(w.faults)-1].Count = hung - hungBefore
		if err != nil {
			return err
		}
		err = until(ctx, "it listens again", w.load.Lease, func() (bool, error) {
			after, _ := net.listeners()
			return after > before, nil
		})
		if err != nil {
			return err
		}
		if err := w.wakeUps(ctx, 5, 0); err != nil {
			return err
		}
	}
	return nil
}

// wakeUps enqueues jobs one after another. Before each job it waits until the supervisor sleeps, and then for a random
// time, which is at most the parameter later.
func (w *world) wakeUps(ctx context.Context, jobs int, later time.Duration) error {
	for range jobs {
		err := w.eventually(ctx, "the supervisor sleeps", 10*time.Second, `select count(*) > 0 and bool_and(duty = 'on call') from drover_on_duty`)
		if err != nil {
			return err
		}
		if err := pause(ctx, time.Duration(w.rng.Float64()*float64(later))); err != nil {
			return err
		}
		if _, err := w.enqueue(ctx, w.many(1, 1, ""), drover.EnqueueOpts{}); err != nil {
			return err
		}
		if err := w.eventually(ctx, "the job is done", 15*time.Second, sqlAllDone); err != nil {
			return err
		}
	}
	return nil
}

// pollsGoOn requires that jobs start immediately while the supervisor can receive notifications, and within a poll
// interval while it cannot.
func pollsGoOn(h *history) (broken []string) {
	const atOnce = 200 * time.Millisecond
	for i, f := range h.faults {
		var calm, deaf []time.Duration // calm: delays before and after the fault; deaf: delays during it
		from, to := time.Time{}, f.Ended.Add(time.Hour)
		if i > 0 {
			from = h.faults[i-1].Ended
		}
		if i < len(h.faults)-1 {
			to = h.faults[i+1].Begun
		}
		for _, j := range h.byJob() {
			for was, is := range j.steps() {
				switch {
				case was.Op != "INSERT" || was.At.Before(from) || was.At.After(to):
				case was.At.Before(f.Begun) || was.At.After(f.Ended):
					calm = append(calm, is.At.Sub(was.At))
				default:
					deaf = append(deaf, is.At.Sub(was.At))
				}
			}
		}
		if took := quantile(calm, 0.9); took > atOnce {
			broken = append(broken, fmt.Sprintf("jobs waited %v while it listened", took))
		}
		if took := quantile(deaf, 1); took > h.policy.Poll+time.Second {
			broken = append(broken, fmt.Sprintf("a job waited %v while it heard nothing, and it polls every %v", took, h.policy.Poll))
		}
		if f.Count == 0 {
			broken = append(broken, "the listening connection did not hang")
		}
	}
	return broken
}

// quantile returns the value that the given share of the values does not exceed, or zero if there are no values.
func quantile[T cmp.Ordered](all []T, share float64) (q T) {
	if len(all) == 0 {
		return q
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[max(0, int(math.Ceil(share*float64(len(sorted))))-1)]
}
