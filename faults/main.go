// Command faults breaks processes, servers and networks under drover and judges what becomes of the jobs by a history
// that the library does not write. README.md says how to run it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
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
	full    bool
	seed    uint64
	dir     string // of all journals
	program string // what children run
	server  *pgdev.Server
}

var errRed = errors.New("not every scenario passed")

func runSuite() error {
	tier := flag.String("tier", "quick", "quick: under 5 minutes; full: all the counts of the specification")
	only := flag.String("scenario", "", "ids of scenarios, such as W-1,S-1; empty: all")
	seed := flag.Uint64("seed", 0, "replays the random choices of a run; 0: a fresh one")
	report := flag.String("report", "", "a directory for report.md and report.json")
	flag.Parse()
	chosen, err := choose(*only)
	if err != nil {
		return err
	}
	if *tier != "quick" && *tier != "full" {
		return fmt.Errorf("--tier %s: want quick or full", *tier)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s := &suite{full: *tier == "full", seed: *seed}
	for s.seed == 0 {
		s.seed = rand.Uint64() >> 1
	}
	if s.program, err = os.Executable(); err != nil {
		return err
	}
	if s.dir, err = os.MkdirTemp("", "drover-faults-"); err != nil {
		return err
	}
	fmt.Printf("tier %s, seed %d (--seed %d replays it)\n", *tier, s.seed, s.seed)
	results, err := s.run(ctx, chosen)
	if *report != "" {
		err = errors.Join(err, writeReport(*report, *tier, s.seed, results))
	}
	for _, r := range results {
		if r.Verdict != "pass" {
			return errors.Join(err, errRed, fmt.Errorf("journals and logs are in %s", s.dir))
		}
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

func choose(only string) (chosen []scenario, err error) {
	all := scenarios()
	if only == "" {
		return all, nil
	}
	for _, id := range strings.Split(only, ",") {
		i := slices.IndexFunc(all, func(sc scenario) bool { return sc.id == id })
		if i < 0 {
			return nil, fmt.Errorf("--scenario %s: there is none", id)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// run takes the scenarios one after another, on one cluster.
func (s *suite) run(ctx context.Context, chosen []scenario) (results []result, err error) {
	s.server, err = pgdev.Start(ctx, pgdev.Options{
		Ways:     []pgdev.Way{pgdev.Local, pgdev.Download}, // what can be killed
		Settings: map[string]string{"max_connections": "400", "deadlock_timeout": "50ms"},
	})
	if err != nil {
		return nil, err
	}
	for i := range chosen {
		if ctx.Err() != nil {
			break
		}
		r := s.judge(ctx, &chosen[i])
		results = append(results, r)
		fmt.Println(r.line())
		for _, v := range r.shown() {
			fmt.Printf("    %s %s %s\n", v.Invariant, v.Job, v.What)
			for _, line := range v.Story {
				fmt.Println("        " + line)
			}
		}
	}
	return results, errors.Join(ctx.Err(), s.server.Close())
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
		r.Error, r.Lost = err.Error(), 0 // an unfinished history says nothing of losses
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

// play returns the history also when the scenario failed, if there is one.
func (s *suite) play(ctx context.Context, sc *scenario, rounds int) (h *history, err error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute)
	defer cancel()
	program, err := s.programFor(ctx, sc.tag)
	if err != nil {
		return nil, err
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
		h, _ := w.history(ctx) // unfinished, good for counts
		return h, err
	}
	return w.finish(ctx)
}

// programFor is what the children of a scenario run: this program, or one built with a tag.
func (s *suite) programFor(ctx context.Context, tag string) (string, error) {
	if tag == "" {
		return s.program, nil
	}
	program := filepath.Join(s.dir, "with-"+tag)
	build := exec.CommandContext(ctx, "go", "build", "-tags", tag, "-o", program, "github.com/drover-queue/drover/faults")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build -tags %s: %w\n%s", tag, err, out)
	}
	return program, nil
}
