package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second Ctrl-C ends the process immediately
	var err error
	if os.Getenv(envChild) != "" {
		err = runChild(ctx, os.Stdin, os.Stdout)
	} else {
		err = run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	}
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are the command line.
type options struct {
	sizes
	out, plots string
	scenarios  []string
	contenders []string
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	quick := flags.Bool("quick", false, "small sizes: done in under three minutes")
	jobs := flags.Int("jobs", 0, "jobs of a burn-down (200,000; quick 25,000)")
	rounds := flags.Int("rounds", 0, "rounds (5; quick 2); all of them in burn, half in most scenarios")
	flags.StringVar(&o.out, "out", "", "write the figures to this file, as JSON")
	flags.StringVar(&o.plots, "plots", "", "draw plots into this directory, as SVG")
	var names []string
	for _, s := range scenarios() {
		names = append(names, s.name)
	}
	flags.Func("scenario", "only this one; may be repeated: "+strings.Join(names, ", "), among(&o.scenarios, names))
	names = nil
	for _, e := range entrants() {
		names = append(names, e.name)
	}
	flags.Func("contender", "only this one; may be repeated: "+strings.Join(names, ", "), among(&o.contenders, names))
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	o.sizes = fullSizes()
	if *quick {
		o.sizes = quickSizes()
	}
	if *jobs != 0 {
		o.Jobs = *jobs
	}
	if *rounds != 0 {
		o.Rounds = *rounds
	}
	switch {
	case flags.NArg() > 0:
		return o, fmt.Errorf("unexpected %q", flags.Args())
	case o.Jobs < 100 || o.Jobs > 10_000_000:
		return o, fmt.Errorf("%d jobs: 100 to 10,000,000", o.Jobs)
	case o.Rounds < 1 || o.Rounds > 100:
		return o, fmt.Errorf("%d rounds: 1 to 100", o.Rounds)
	}
	return o, nil
}

// The function among returns the parser of a flag that may be given several times. It refuses a value that is not among
// the names.
func among(values *[]string, names []string) func(string) error {
	return func(v string) error {
		if !slices.Contains(names, v) {
			return errors.New("there is no such one: " + strings.Join(names, ", "))
		}
		*values = append(*values, v)
		return nil
	}
}

// The function chosen returns the elements that have one of the given names. Without names it returns all elements.
func chosen[T any](all []T, names []string, name func(T) string) []T {
	return slices.DeleteFunc(all, func(v T) bool { return len(names) > 0 && !slices.Contains(names, name(v)) })
}

// errFailed reports that the figures are not complete.
var errFailed = errors.New("a contender failed")

// run runs the comparisons and writes the report. After a Ctrl-C it reports the results so far.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	b := &bench{
		sizes:     o.sizes,
		scenarios: chosen(scenarios(), o.scenarios, func(s scenario) string { return s.name }),
		progress:  func(line string) { fmt.Fprintln(stderr, time.Now().Format(time.TimeOnly), line) },
	}
	b.entrants = takingPart(chosen(entrants(), o.contenders, func(e entrant) string { return e.name }), b.scenarios)
	if len(b.entrants) == 0 {
		return errors.New("none of the contenders takes part in any of the scenarios")
	}
	b.progress("starting a Postgres")
	big := slices.ContainsFunc(b.scenarios, func(s scenario) bool { return s.name == "big" })
	if b.server, err = startServer(ctx, big); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.server.close(context.WithoutCancel(ctx))) }()
	r := &Report{Taken: time.Now().UTC().Format(time.RFC3339), Sizes: o.sizes}
	if err := b.server.describe(ctx, r); err != nil {
		return err
	}
	if err := b.run(ctx, r); err != nil {
		r.Ended = err.Error()
	}
	if err := errors.Join(r.write(stdout), r.save(o)); err != nil {
		return err
	}
	switch {
	case r.Ended != "":
		return errors.New(r.Ended)
	case r.failed():
		return errFailed
	}
	return nil
}

// save writes the files that were asked for.
func (r *Report) save(o options) error {
	if o.out != "" {
		doc, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(o.out, append(doc, '\n'), 0o644); err != nil {
			return err
		}
	}
	if o.plots != "" {
		return r.draw(o.plots)
	}
	return nil
}

func (r *Report) failed() bool {
	return slices.ContainsFunc(r.Scenarios, func(s ScenarioReport) bool {
		return slices.ContainsFunc(s.Results, func(r Result) bool { return r.Failed })
	})
}
