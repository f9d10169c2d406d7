package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/tier"
)

func TestMain(m *testing.M) {
	if os.Getenv(envChild) != "" { // a worker process of the scenario processes
		if err := runChild(context.Background(), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	flag.Bool("update", false, "rewrite the files in testdata")
	flag.Parse()
	os.Exit(m.Run())
}

func newServer(t *testing.T) *server {
	t.Helper()
	s, err := startServer(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// The stories share a server: starting one takes longer than most of them.
func TestOnAServer(t *testing.T) {
	t.Parallel()
	tier.Nightly(t, "it runs each benchmark in small, which the night runs in full")
	server := newServer(t)
	t.Run("every job runs exactly once", func(t *testing.T) { everyJobRunsExactlyOnce(t, server) })
	t.Run("every scenario", func(t *testing.T) { everyScenario(t, server) })
	t.Run("interruption", func(t *testing.T) { interruption(t, server) })
}

// The rows after a burn-down show that every job ran, and none twice. A burn that counts anything but one call a job is
// an error by itself.
func everyJobRunsExactlyOnce(t *testing.T, server *server) {
	t.Helper()
	const n = 2000
	for name, left := range map[string]struct {
		sql  string
		rows int
	}{
		keepName:          {`select count(*) from jobs where state = 'completed' and attempt = 1 and claim_seq = 1`, n},
		deleteName:        {`select count(*) from jobs`, 0},
		rawKeepName:       {`select count(*) from jobs where state = 'completed' and attempt = 1 and claim_seq = 1`, n},
		rawDeleteName:     {`select count(*) from jobs`, 0},
		riverName:         {`select count(*) from river_job where state = 'completed' and attempt = 1`, n},
		riverDefaultsName: {`select count(*) from river_job where state = 'completed' and attempt = 1`, n / 20},
	} {
		t.Run(name, func(t *testing.T) {
			e := entrantOf(t, name)
			b := &bench{server: server}
			scenario := scenario{
				bound: time.Minute,
				run: func(ctx context.Context, t *trial) error {
					if err := runBurn(ctx, t); err != nil {
						return err
					}
					conn, err := pgx.Connect(ctx, t.url)
					if err != nil {
						return err
					}
					defer closeConn(ctx, conn)
					var rows int
					if err := conn.QueryRow(ctx, left.sql).Scan(&rows); err != nil {
						return err
					}
					if rows != left.rows {
						return fmt.Errorf("%d rows, want %d", rows, left.rows)
					}
					return nil
				},
			}
			figures, err := b.trial(t.Context(), scenario, sizes{Jobs: n}, e)
			if err != nil {
				t.Fatal(err)
			}
			if len(figures) != 1 || figures[0].value <= 0 {
				t.Errorf("figures: %v", figures)
			}
		})
	}
	if left := databases(t, server); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func entrantOf(t *testing.T, name string) entrant {
	t.Helper()
	all := entrants()
	i := slices.IndexFunc(all, func(e entrant) bool { return e.name == name })
	if i < 0 {
		t.Fatalf("no contender %q", name)
	}
	return all[i]
}

func databases(t *testing.T, s *server) []string {
	t.Helper()
	rows, err := s.admin.Query(context.Background(), `select datname from pg_database where datname like 'bench%'`)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// broken is a contender that can do nothing but be set up, and nothing beyond a burn-down.
type broken struct{}

func (broken) setUp(context.Context, string) error                   { return nil }
func (broken) insert(context.Context, int) error                     { return errors.New("the printer is on fire") }
func (broken) close(context.Context) error                           { return nil }
func (broken) burn(context.Context, int, int) (time.Duration, error) { return 0, nil }

// Every scenario gives all its figures, with a contender in the field that fails and another that is not there.
func everyScenario(t *testing.T, server *server) {
	t.Helper()
	want := map[string][]string{
		"burn":      {figureBurn},
		"held":      {figureBurn, figureRows, figureHeld, figureHeldShare, figureRowsShare},
		"late":      {figureUp, allJobs + figureP50, allJobs + figureP99, lateCommits + figureP50, lateCommits + figureMax}, // of 250 and of 50
		"fail":      {figureBurn, figureFailing, figureFailingShare},
		"latency":   {figureP50, figureMax, sameClient + figureP50, sameClient + figureMax},
		"lateness":  {figureP50, figureMax},
		"enqueue":   {figureSingle, figureSingleMany, figureBulk, figureBulkMany},
		"processes": {"1 process", "2 processes", figureProcessShare},
		"big":       {figureBurn, figureBig, figureBigShare},
	}
	if server.statements {
		want["big"] = append(want["big"], figureBuffersEmpty, figureBuffersBig, figureBuffersShare)
	}
	all := scenarios()
	for i := range all {
		contenders := []string{keepName, "broken", "absent"}
		if slices.Contains(all[i].contenders, riverName) {
			contenders = append(contenders, riverName)
		}
		all[i].contenders = contenders
	}
	var told []string
	b := &bench{
		sizes: sizes{
			Jobs: 500, Dead: 500, Samples: 10, Enqueue: 50 * time.Millisecond, Future: 1000, Finished: 1000, Processes: []int{1, 2}, Rounds: 1,
		},
		server: server, scenarios: all, progress: func(line string) { told = append(told, line) },
		entrants: []entrant{
			{name: "broken", workers: 1, part: 1, make: func(context.Context) (contender, error) { return broken{}, nil }},
			{name: "absent", workers: 1, part: 1, make: func(context.Context) (contender, error) { return nil, fmt.Errorf("%w: nobody is at home", errAbsent) }},
			entrantOf(t, keepName), entrantOf(t, riverName),
		},
	}
	var r Report
	if err := b.run(t.Context(), &r); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(told[:3], []string{"warm-up: broken", "warm-up: absent", "warm-up: " + keepName}) {
		t.Errorf("told: %q", told)
	}
	if len(r.Scenarios) != len(want) {
		t.Errorf("%d scenarios, want %d", len(r.Scenarios), len(want))
	}
	for _, s := range r.Scenarios {
		reason := "does not implement main."
		if s.Name == "burn" {
			reason = "the printer is on fire"
		}
		for _, result := range s.Results {
			switch result.Contender {
			case "broken":
				if !result.Failed || !strings.Contains(result.Reason, reason) {
					t.Errorf("%s: broken: %+v", s.Name, result)
				}
			case "absent":
				if result.Failed || !strings.Contains(result.Reason, "nobody is at home") {
					t.Errorf("%s: absent: %+v", s.Name, result)
				}
			default:
				var names []string
				for _, f := range result.Figures {
					names = append(names, f.Name)
					if f.Median <= 0 {
						t.Errorf("%s: %+v", s.Name, f)
					}
				}
				if result.Reason != "" || !slices.Equal(names, want[s.Name]) {
					t.Errorf("%s: %v, want %v; %s", s.Name, names, want[s.Name], result.Reason)
				}
			}
		}
	}
	if !r.failed() {
		t.Error("a contender failed, and the report does not say so")
	}
}

// An interruption ends the run, drops its database, and keeps what was found before.
func interruption(t *testing.T, server *server) {
	t.Helper()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	atWork := scenario{
		name: "second", title: func(sizes) string { return "" }, contenders: []string{keepName}, bound: time.Minute,
		rounds: func(asked int) int { return asked },
		run: func(ctx context.Context, t *trial) error {
			if err := t.insert(ctx, t.Jobs); err != nil {
				return err
			}
			interrupt()
			_, err := t.burn(ctx, t.Jobs, t.workers)
			return err
		},
	}
	first := scenarios()[0]
	b := &bench{
		sizes: sizes{Jobs: 200, Rounds: 1}, server: server, scenarios: []scenario{first, atWork, first},
		progress: func(string) {}, entrants: []entrant{entrantOf(t, keepName)},
	}
	var r Report
	if err := b.run(ctx, &r); !errors.Is(err, context.Canceled) {
		t.Errorf("run = %v, want context.Canceled", err)
	}
	if len(r.Scenarios) != 2 || len(r.Scenarios[0].Results[0].Figures) != 1 {
		t.Errorf("%+v", r.Scenarios)
	}
	if left := databases(t, server); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	o, err := parse([]string{"--quick", "--rounds", "7", "--jobs", "1000", "--scenario", "burn", "--scenario", "big", "--contender", "river defaults"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	want := quickSizes()
	want.Rounds, want.Jobs = 7, 1000
	if fmt.Sprint(o.sizes) != fmt.Sprint(want) || !slices.Equal(o.scenarios, []string{"burn", "big"}) || !slices.Equal(o.contenders, []string{"river defaults"}) {
		t.Errorf("%+v", o)
	}
	for _, args := range [][]string{{"--scenario", "nap"}, {"--contender", "abacus"}, {"--jobs", "1"}, {"--rounds", "-1"}, {"now"}} {
		if _, err := parse(args, io.Discard); err == nil {
			t.Errorf("%q is taken", args)
		}
	}
}

// The error for an unknown name lists the known names.
func TestParseTellsTheNames(t *testing.T) {
	t.Parallel()
	_, err := parse([]string{"--scenario", "nap"}, io.Discard)
	for _, s := range scenarios() {
		if err == nil || !strings.Contains(err.Error(), s.name) {
			t.Errorf("%v: no %s", err, s.name)
		}
	}
}

// A contender that is in none of the chosen scenarios is neither warmed up nor reported. With nobody left there is
// nothing to start.
func TestTakingPart(t *testing.T) {
	t.Parallel()
	named := func(name string) []scenario {
		return chosen(scenarios(), []string{name}, func(s scenario) string { return s.name })
	}
	var names []string
	for _, e := range takingPart(entrants(), named("fail")) {
		names = append(names, e.name)
	}
	if !slices.Equal(names, []string{keepName, deleteName, riverName}) {
		t.Errorf("in fail: %q", names)
	}
	if err := run(t.Context(), []string{"--scenario", "big", "--contender", riverName}, io.Discard, io.Discard); err == nil {
		t.Error("river is not in big, and the run does not say so")
	}
}

// The 99th percentile of fewer than 100 values is their largest, and is not called a percentile.
func TestPercentiles(t *testing.T) {
	t.Parallel()
	for n, want := range map[int][]figure{
		1:   {{"p50", "ms", 1}, {"max", "ms", 1}},
		99:  {{"p50", "ms", 50}, {"max", "ms", 99}},
		100: {{"p50", "ms", 50}, {"p99", "ms", 99}},
		200: {{"p50", "ms", 100}, {"p99", "ms", 198}},
	} {
		sample := make([]time.Duration, n)
		for i := range sample {
			sample[i] = time.Duration(n-i) * time.Millisecond
		}
		var tr trial
		tr.addPercentiles(everyJob, sample)
		if !slices.Equal(tr.figures, want) {
			t.Errorf("of %d: %v, want %v", n, tr.figures, want)
		}
	}
}

// Each scenario's contenders and ratios name contenders there are.
func TestNames(t *testing.T) {
	t.Parallel()
	var names []string
	for _, e := range entrants() {
		names = append(names, e.name)
	}
	for _, s := range scenarios() {
		for _, name := range s.contenders {
			if !slices.Contains(names, name) {
				t.Errorf("%s: no contender %q", s.name, name)
			}
		}
		for _, r := range s.ratios {
			if !slices.Contains(s.contenders, r.of) || !slices.Contains(s.contenders, r.against) {
				t.Errorf("%s: %s or %s does not take part", s.name, r.of, r.against)
			}
		}
	}
}
