package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// entrant is a contender before it has a database.
type entrant struct {
	name     string
	settings string // for the report
	workers  int
	part     int // runs the part-th part of the jobs, because it is slow
	make     func() (contender, error)
}

const droverWorkers = 200

// entrants returns all contenders.
func entrants() []entrant {
	return []entrant{
		{keepName, "200 workers, completed jobs kept, fillfactor 30 as migrated", droverWorkers, 1, func() (contender, error) { return &droverQueue{keep: true}, nil }},
		{deleteName, "200 workers, completed jobs deleted, fillfactor 45 as its documentation says", droverWorkers, 1, func() (contender, error) { return &droverQueue{}, nil }},
		{rawKeepName, "drover's table; two connections, one claims 2,000 while the other completes 2,000; no handler", 1, 1, func() (contender, error) {
			return &rawQueue{droverQueue{keep: true}}, nil
		}},
		{rawDeleteName, "the same, deleted; fillfactor 45", 1, 1, func() (contender, error) { return &rawQueue{}, nil }},
		{riverName, "2,000 workers and polls every 20 ms as its bench command, fetch cooldown 1 ms, its minimum; completed jobs kept, as always", riverBenchWorkers, 1, func() (contender, error) {
			return &riverQueue{}, nil
		}},
		{riverDefaultsName, "100 workers, else its defaults; a twentieth of the jobs", riverDefaultWorkers, 20, func() (contender, error) { return &riverQueue{defaults: true}, nil }},
	}
}

// bench is one run of the comparison.
type bench struct {
	sizes
	server    *server
	scenarios []scenario
	entrants  []entrant
	progress  func(string)
}

// run fills the report in. It returns an error only for what ends the whole run, with what was found until then.
func (b *bench) run(ctx context.Context, r *Report) error {
	for _, e := range b.entrants {
		r.Contenders = append(r.Contenders, Contender{e.name, e.settings})
	}
	warmUp := scenario{name: "warm-up", bound: 2 * time.Minute, asks: func(contender) bool { return true }, run: runBurn}
	small := b.sizes
	small.Jobs /= 10
	for _, e := range b.entrants {
		if _, err := b.trial(ctx, warmUp, small, e); ctx.Err() != nil {
			return errors.Join(context.Cause(ctx), err)
		}
	}
	for _, s := range b.scenarios {
		report := ScenarioReport{Name: s.name, Title: s.title(b.sizes), Notes: s.notes, Rounds: b.Rounds}
		if s.maxRounds > 0 {
			report.Rounds = min(report.Rounds, s.maxRounds)
		}
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
	c, err := e.make()
	if err != nil {
		return nil, err
	}
	if !s.asks(c) {
		return nil, fmt.Errorf("%w: %s", errAbsent, s.lacks)
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
	t := &trial{sizes: size, contender: c, entrant: e, url: url, server: b.server}
	if err := s.run(ctx, t); err != nil {
		return nil, err
	}
	return t.figures, nil
}
