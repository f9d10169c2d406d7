package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/drover-queue/drover/internal/pgdev"
)

func main() {
	var err error
	switch role := slices.Concat(os.Args, []string{""})[1]; role {
	case "worker":
		err = runWorker()
	case "producer":
		err = runProducer()
	case "migrator":
		err = runMigrator()
	default:
		err = runSuite()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		os.Exit(1)
	}
}

// suite is one run of the command.
type suite struct {
	full   bool
	seed   uint64
	dir    string // the directory of all journals
	builds *builds
	server *pgdev.Server // the server of this lane

	clockFile string // the file with the clock error of a server with a wrong clock
}

var errRed = errors.New("not every scenario passed")

func runSuite() error {
	tier := flag.String("tier", "quick", "quick: about 4 minutes; full: all the counts, with the race detector")
	only := flag.String("scenario", "", "ids of scenarios, such as W-1,S-1; empty: all")
	seed := flag.Uint64("seed", 0, "replays the random choices of a run; 0: a fresh one, or with --resume that of the report")
	out := flag.String("report", "", "a directory for report.md and report.json")
	resume := flag.Bool("resume", false, "do not run again what passed in the report of the same tier and seed")
	lanes := flag.Int("lanes", 3, "how many scenarios run side by side")
	flag.Parse()
	chosen, err := choose(*only)
	if err != nil {
		return err
	}
	if *tier != "quick" && *tier != "full" {
		return fmt.Errorf("--tier %s: want quick or full", *tier)
	}
	if *lanes < 1 {
		return fmt.Errorf("--lanes %d: want one at least", *lanes)
	}
	r := &report{dir: *out, Tier: *tier, Seed: *seed}
	if *resume {
		if err := r.resume(); err != nil {
			return err
		}
	}
	for r.Seed == 0 {
		r.Seed = rand.Uint64() >> 1
	}
	s := &suite{full: *tier == "full", seed: r.Seed}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if s.dir, err = os.MkdirTemp("", "drover-faults-"); err != nil {
		return err
	}
	if s.builds, err = newBuilds(s.dir); err != nil {
		return err
	}
	fmt.Printf("tier %s, seed %d (--seed %d replays it)\n", r.Tier, r.Seed, r.Seed)
	err = s.run(ctx, chosen, *lanes, r)
	if r.passed(chosen) && err == nil {
		return os.RemoveAll(s.dir)
	}
	return errors.Join(err, errRed, fmt.Errorf("journals and logs are in %s", s.dir))
}

func choose(only string) (chosen []scenario, err error) {
	all := scenarios()
	if only == "" {
		return all, nil
	}
	for _, id := range strings.Split(only, ",") {
		i := slices.IndexFunc(all, func(sc scenario) bool { return sc.id == id })
		if i < 0 {
			var list strings.Builder
			for _, sc := range all {
				fmt.Fprintf(&list, "\n%s  %s", sc.id, sc.what)
			}
			return nil, fmt.Errorf("--scenario %s: there is none; there are%s", id, &list)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// run runs the scenarios in several lanes at the same time. The longest scenarios begin first. At the end it runs the
// scenarios that need the whole machine, one by one. Scenarios with a heavy load run one after another in the first
// lane. The second lane runs scenarios with a heavy load only after all other scenarios have begun, because two cores
// are too few for three heavy scenarios together.
func (s *suite) run(ctx context.Context, chosen []scenario, lanes int, r *report) error {
	chosen = slices.DeleteFunc(chosen, func(sc scenario) bool { return r.has(sc.id) })
	s.prepare(ctx, chosen)
	if lanes == 1 {
		return s.lane(ctx, queueOf(chosen), r)
	}
	slices.SortStableFunc(chosen, func(a, b scenario) int { return b.minutes - a.minutes })
	var heavy, light, alone []scenario
	for _, sc := range chosen {
		switch l := sc.load(s.full); {
		case sc.alone:
			alone = append(alone, sc)
		case l.Producers*l.Rate > lightLoad:
			heavy = append(heavy, sc)
		default:
			light = append(light, sc)
		}
	}
	hard, easy, errs := queueOf(heavy), queueOf(light), make([]error, lanes+1)
	var all sync.WaitGroup
	for i := range lanes {
		all.Go(func() {
			switch i {
			case 0:
				errs[i] = errors.Join(s.lane(ctx, hard, r), s.lane(ctx, easy, r))
			case 1:
				errs[i] = errors.Join(s.lane(ctx, easy, r), s.lane(ctx, hard, r))
			default:
				errs[i] = s.lane(ctx, easy, r)
			}
		})
	}
	all.Wait()
	errs[lanes] = s.lane(ctx, queueOf(alone), r)
	return errors.Join(errs...)
}

// lightLoad is how many jobs a second a light load has at most. A scenario with a light load may run next to any other
// scenario.
const lightLoad = 50

func queueOf(scenarios []scenario) <-chan scenario {
	queue := make(chan scenario, len(scenarios))
	for _, sc := range scenarios {
		queue <- sc
	}
	close(queue)
	return queue
}

// lane runs scenarios one after another, on its own cluster.
func (s *suite) lane(ctx context.Context, queue <-chan scenario, r *report) (err error) {
	lane := *s
	defer func() {
		if lane.server != nil {
			err = errors.Join(err, lane.server.Close())
		}
	}()
	for sc := range queue {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if lane.server == nil {
			if lane.server, err = startServer(ctx, nil); err != nil {
				return err
			}
		}
		result := lane.judge(ctx, &sc)
		if ctx.Err() != nil {
			return ctx.Err() // an interrupted scenario has no result
		}
		if err := r.add(result); err != nil {
			return err
		}
	}
	return nil
}

// startServer starts a cluster with env in its environment. It uses no other kind of server, because the suite can kill
// only a cluster.
func startServer(ctx context.Context, env []string) (*pgdev.Server, error) {
	return pgdev.Start(ctx, pgdev.Options{
		Ways:     []pgdev.Way{pgdev.Local, pgdev.Download},
		Settings: map[string]string{"max_connections": "600", "deadlock_timeout": "50ms", "max_prepared_transactions": "20"},
		Env:      env,
	})
}

// judge runs one scenario from an empty database to its verdict.
func (s *suite) judge(ctx context.Context, sc *scenario) result {
	began := time.Now()
	r := result{Scenario: sc.id, What: sc.what, Rounds: sc.rounds(s.full), Verdict: "fail"}
	h, err := s.play(ctx, sc, r.Rounds)
	r.Seconds = time.Since(began).Seconds()
	if h != nil {
		r.count(h)
	}
	switch {
	case err != nil:
		r.Error, r.Lost = err.Error(), 0 // an unfinished history does not show which jobs are lost
	case h != nil:
		r.Violations = sc.verdict(h)
	}
	switch {
	case err != nil:
	case r.Faults == 0:
		r.Error = "no fault was injected"
	case sc.mustLose && !slices.ContainsFunc(r.Violations, func(v violation) bool { return v.Invariant == "I1" }):
		r.Error = "nothing was lost, or the checker did not see it"
	case sc.mustLose || len(r.Violations) == 0:
		r.Verdict = "pass"
	}
	return r
}

// play runs a scenario and returns its history. If the scenario failed, it returns the history so far, or nil if there
// is none.
func (s *suite) play(ctx context.Context, sc *scenario, rounds int) (h *history, err error) {
	ctx, cancel := context.WithTimeout(ctx, 25*time.Minute)
	defer cancel()
	program, err := s.builds.get(ctx, sc.build(s.full))
	if err != nil {
		return nil, err
	}
	if sc.clock {
		own, err := s.withWrongClock(ctx)
		if err != nil {
			return nil, err
		}
		s = own
		defer func() { err = errors.Join(err, own.server.Close()) }()
	}
	if sc.own {
		own := *s
		if own.server, err = startServer(ctx, nil); err != nil {
			return nil, err
		}
		s = &own
		defer func() { err = errors.Join(err, own.server.Close()) }()
	}
	w, err := newWorld(ctx, s, sc, program)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if err := w.start(ctx); err != nil {
		return nil, err
	}
	if err := sc.run(ctx, w, rounds); err != nil {
		h, _ := w.history(ctx) // unfinished, so the suite uses it only for counts
		return h, err
	}
	return w.finish(ctx)
}
