package main

import (
	"context"
	"errors"
	"fmt"
	"time"
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
	}
}

// cutConnections cuts them every 2 s. Afterwards there must not have been more of them than pools and supervisors ask for.
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
	const own = 3 // of a supervisor beside the pool, and as many again for cancel requests and connections on their way out
	if _, most := w.workerNet.counts(); most > w.load.Workers*(w.load.Slots+poolSpare+2*own) {
		return fmt.Errorf("%d connections at once", most)
	}
	return nil
}

// blackHole swallows everything for as many seconds.
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

// callsReturn holds where every enqueue came back by its deadline.
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

// loseReplies drops as many replies to COMMIT. Each enqueue is repeated under its id until its outcome is known.
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
	for _, p := range w.producers {
		select {
		case <-p.ended:
		case <-ctx.Done():
		}
	}
	stored := 0
	failed := w.pool.QueryRow(ctx, `select count(*) from jobs`).Scan(&stored)
	if want := w.load.Producers * w.load.Jobs; failed == nil && stored != want {
		failed = fmt.Errorf("%d rows of %d enqueues", stored, want)
	}
	return errors.Join(err, failed)
}
