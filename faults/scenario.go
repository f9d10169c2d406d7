package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// scenario is one scenario of the suite. The README describes them.
type scenario struct {
	id, what     string
	quick, full  int  // rounds
	minutes      int  // how long it takes in the full tier; 0: a short time. The longest scenarios begin first
	alone        bool // it runs alone, because other work on the machine would disturb its measurements
	recovery     time.Duration
	deathless    bool // no process dies, so no run may be blamed on a death
	asynchronous bool // commits are not durable
	mustLose     bool
	forgetful    bool                                      // the database forgets commits; fault.Forgotten is the time from which on it forgets them
	tag          string                                    // workers run a program that is built with this tag; empty: workers run this program
	racy         bool                                      // its handlers race on purpose
	unmeasured   bool                                      // the scenario replaces workers, so their resources before and after it cannot be compared
	clock        bool                                      // the clocks of the server and of some workers are wrong
	own          bool                                      // it needs its own cluster, because it destroys the cluster
	dirty        bool                                      // runs return error texts that the database cannot store
	change       func(l *load, full bool)                  // changes the usual load; nil: no change
	before       func(ctx context.Context, w *world) error // prepares the database instead of migrations.Up
	run          func(ctx context.Context, w *world, rounds int) error
	extra        func(h *history) []string // returns violations of other rules; may be nil
}

// scenarios returns all scenarios. The most important scenarios come first.
func scenarios() []scenario {
	var all []scenario
	for _, some := range [][]scenario{
		serverScenarios(), restoreScenarios(), workerScenarios(), networkScenarios(), handlerScenarios(), operatorScenarios(), clockScenarios(), periodicScenarios(), poolerScenarios(),
		migrationScenarios(), failoverScenarios(), producerScenarios(), rowScenarios(), herdScenarios(), preparedScenarios(), soakScenarios(),
	} {
		all = append(all, some...)
	}
	return all
}

func (sc *scenario) rounds(full bool) int {
	if full {
		return sc.full
	}
	return sc.quick
}

// load returns the usual load, with the changes of the scenario.
func (sc *scenario) load(full bool) load {
	l := load{
		Workers: 4, Slots: 10, Producers: 2, Rate: 20, Lease: 2 * time.Second, Drain: 3 * time.Second, Poll: 500 * time.Millisecond,
		Failing: 0.2, LongestRun: 300, Transactional: 0.3,
	}
	if full {
		l.Rate, l.Lease = 100, 5*time.Second
	}
	if sc.change != nil {
		sc.change(&l, full)
	}
	return l
}

// verdict returns the violations that the checker finds, and the violations of the scenario's own rules.
func (sc *scenario) verdict(h *history) []violation {
	found := check(h)
	if sc.forgetful {
		found = slices.DeleteFunc(found, func(v violation) bool { return h.explained(v, h.policy.Restart) })
	}
	for _, text := range h.races {
		found = append(found, violation{Invariant: "race", What: text})
	}
	if h.policy.EveryoneStaysAlive {
		for _, j := range h.byJob() {
			for was, is := range j.steps() {
				if is.ErrorsTotal > was.ErrorsTotal && is.LastClass == "crash" {
					found = append(found, violation{"blame", j.id, "a run is blamed on a death, but no process died", j.story()})
				}
			}
		}
	}
	if h.deadlocks+h.victims > 0 {
		found = append(found, violation{Invariant: "deadlock", What: fmt.Sprintf("the server counts %d deadlocks, logs tell of %d", h.deadlocks, h.victims)})
	}
	if sc.extra != nil {
		for _, what := range sc.extra(h) {
			found = append(found, violation{Invariant: sc.id, What: what})
		}
	}
	return found
}

// noInnocent requires that only jobs that kill their processes are quarantined.
func noInnocent(h *history) (broken []string) {
	for _, r := range h.rows {
		if r.Reason == "crashed" && !r.Lethal {
			broken = append(broken, fmt.Sprintf("job %s is convicted of killing processes", r.Job))
		}
	}
	return broken
}
