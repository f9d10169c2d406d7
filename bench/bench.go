package main

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"
)

// entrant is a contender before it has a database.
type entrant struct {
	name     string
	settings string // for the report
	workers  int
	part     int // it runs 1/part of the jobs; more than 1 for a slow contender
	make     func(context.Context) (contender, error)
}

const droverWorkers = 200

// ownWorkers names the scenarios in which drover has another number of workers.
const ownWorkers = " (latency, lateness and late: 10, its default; processes: 100 each)"

// entrants returns all contenders.
func entrants() []entrant {
	drover := func(keep bool) func(context.Context) (contender, error) {
		return func(context.Context) (contender, error) { return &droverQueue{keep: keep}, nil }
	}
	raw := func(keep bool) func(context.Context) (contender, error) {
		return func(context.Context) (contender, error) { return &rawQueue{droverQueue{keep: keep}}, nil }
	}
	river := func(defaults bool) func(context.Context) (contender, error) {
		return func(context.Context) (contender, error) { return &riverQueue{defaults: defaults}, nil }
	}
	node := func(name string) func(context.Context) (contender, error) {
		return func(ctx context.Context) (contender, error) { return newNodeQueue(ctx, name) }
	}
	return []entrant{
		{keepName, "200 workers" + ownWorkers + ", completed jobs kept, fillfactor 30 as migrated", droverWorkers, 1, drover(true)},
		{deleteName, "200 workers" + ownWorkers + ", completed jobs deleted, fillfactor 45 as its documentation says", droverWorkers, 1, drover(false)},
		{
			rawKeepName, "drover's table; two connections, one claims 2,000 while the other completes 2,000; no handler; completed jobs kept", 1, 1,
			raw(true),
		},
		{rawDeleteName, "the same, completed jobs deleted; fillfactor 45", 1, 1, raw(false)},
		{
			riverName,
			"2,000 workers and a poll every 20 ms as in its bench command (latency, lateness and late: 100; there and for failing jobs 1 ms, its minimum, which slows a burn-down); fetch cooldown 1 ms, its minimum; keeps completed jobs",
			riverBenchWorkers, 1, river(false),
		},
		{riverDefaultsName, "100 workers, else its defaults; keeps completed jobs; a twentieth of the jobs", riverDefaultWorkers, 20, river(true)},
		{graphileName, "local queue of 2,000, 24 jobs at once, no delay before completions; deletes completed jobs", 1, 1, node(graphileName)},
		{graphileDefaultsName, "its defaults; deletes completed jobs; a twentieth of the jobs", 1, 20, node(graphileDefaultsName)},
		{bullmqName, "two workers of 32 jobs at once; completed jobs deleted; a twentieth of the jobs", 1, 20, node(bullmqName)},
		{bullmqDefaultsName, "its defaults; keeps completed jobs; a hundredth of the jobs", 1, 100, node(bullmqDefaultsName)},
	}
}

// takingPart returns the entrants that one of the scenarios asks for.
func takingPart(all []entrant, scenarios []scenario) []entrant {
	return slices.DeleteFunc(all, func(e entrant) bool {
		return !slices.ContainsFunc(scenarios, func(s scenario) bool { return slices.Contains(s.contenders, e.name) })
	})
}

// bench is one run of the comparison.
type bench struct {
	sizes
	server    *server
	scenarios []scenario
	entrants  []entrant
	progress  func(string)
	report    *Report // the report that run fills in
}

// run fills the report in. It returns an error only if the whole run has to end early. Even then the report has the
// results so far.
func (b *bench) run(ctx context.Context, r *Report) error {
	b.report = r
	for _, e := range b.entrants {
		r.Contenders = append(r.Contenders, Contender{Name: e.name, Settings: e.settings})
	}
	warmUp := scenario{name: "warm-up", bound: 2 * time.Minute, run: runBurn}
	small := b.sizes
	small.Jobs /= 10
	for _, e := range b.entrants {
		b.progress("warm-up: " + e.name)
		if _, err := b.trial(ctx, warmUp, small, e); ctx.Err() != nil {
			return errors.Join(context.Cause(ctx), err)
		}
	}
	for _, s := range b.scenarios {
		report := ScenarioReport{Name: s.name, Title: s.title(b.sizes), Notes: s.notes, Rounds: s.rounds(b.Rounds)}
		err := b.scenario(ctx, s, &report)
		report.Ratios = ratiosOf(s.ratios, report.Results)
		r.Scenarios = append(r.Scenarios, report)
		if err != nil {
			return err
		}
	}
	return nil
}

// scenario runs the rounds of one scenario, each beginning with another contender.
func (b *bench) scenario(ctx context.Context, s scenario, report *ScenarioReport) error {
	var field []entrant
	for _, e := range b.entrants {
		if slices.Contains(s.contenders, e.name) {
			field = append(field, e)
			report.Results = append(report.Results, Result{Contender: e.name})
		}
	}
	for round := range report.Rounds {
		for i := range field {
			k := (i + round) % len(field)
			result := &report.Results[k]
			if result.Reason != "" {
				continue
			}
			b.progress(fmt.Sprintf("%s: round %d of %d: %s", s.name, round+1, report.Rounds, field[k].name))
			figures, err := b.trial(ctx, s, b.sizes, field[k])
			if ctx.Err() != nil {
				return errors.Join(context.Cause(ctx), err)
			}
			if err != nil {
				result.Reason = err.Error()
				result.Failed = !errors.Is(err, errAbsent)
				continue
			}
			result.take(figures)
		}
	}
	return nil
}

// errAbsent reports a contender that does not take part.
var errAbsent = errors.New("does not take part")

// trial lets one contender run once, in a fresh database.
func (b *bench) trial(ctx context.Context, s scenario, size sizes, e entrant) (_ []figure, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.bound, fmt.Errorf("not done after %v", s.bound))
	defer cancel()
	c, err := e.make(ctx)
	if err != nil {
		return nil, err
	}
	if s.asks != nil && !reflect.TypeOf(c).Implements(s.asks) {
		return nil, fmt.Errorf("%T does not implement %v", c, s.asks)
	}
	url, drop, err := b.server.createDatabase(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, drop()) }()
	defer func() { err = errors.Join(err, c.close(context.WithoutCancel(ctx))) }()
	if err := c.setUp(ctx, url); err != nil {
		return nil, fmt.Errorf("set up: %w", err)
	}
	if v, ok := c.(versioner); ok {
		b.report.setVersion(e.name, v.version())
	}
	t := &trial{sizes: size, contender: c, entrant: e, url: url, server: b.server}
	if err := s.run(ctx, t); err != nil {
		return nil, err
	}
	return t.figures, nil
}
