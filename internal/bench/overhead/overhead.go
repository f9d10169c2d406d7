// Package overhead compares the speed of drover with and without settings of the client, such as middleware. Benchmarks
// of several modules use it.
package overhead

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/bench"
	"github.com/drover-queue/drover/internal/pgdev"
)

// Compare is a Go benchmark. It compares burn-downs of no-op jobs with and without settings of the client. Each
// iteration is a pair, and the order in the pair alternates. Compare reports which share of the rate is left with the
// settings: the median, the least and the greatest share, for the runs and for the inserts.
func Compare(b *testing.B, jobs int, settings func(*testing.B) drover.Config) {
	b.Helper()
	server, err := pgdev.Start(b.Context(), pgdev.Options{
		Ways:     []pgdev.Way{pgdev.Local, pgdev.Download},
		Settings: map[string]string{"max_wal_size": "4GB", "checkpoint_timeout": "30min"},
	})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := server.Close(); err != nil {
			b.Error(err)
		}
	}()
	config, err := pgxpool.ParseConfig(server.URL())
	if err != nil {
		b.Fatal(err)
	}
	measure := func(with bool, jobs int) *bench.Report {
		o := bench.Options{Config: config, Jobs: jobs, Workers: 100, Queues: 1, Samples: 1, IdleFor: time.Second, Steps: []bench.Step{bench.Burn}, Logger: slog.New(slog.DiscardHandler)}
		if with {
			o.Client = settings(b)
			if o.Client.Logger != nil {
				o.Logger = o.Client.Logger
			}
		}
		r, err := bench.Run(context.WithoutCancel(b.Context()), o)
		if err != nil {
			b.Fatal(err)
		}
		return r
	}
	measure(true, jobs/10) // warms up the server and the process
	var runs, inserts []float64
	for b.Loop() {
		first := len(runs)%2 == 0
		one, other := measure(first, jobs), measure(!first, jobs)
		if !first {
			one, other = other, one
		}
		runs = append(runs, *one.JobsPerSecond / *other.JobsPerSecond)
		inserts = append(inserts, *one.InsertPerSecond / *other.InsertPerSecond)
		b.Logf("with: %.0f runs/s, %.0f inserts/s; without: %.0f, %.0f", *one.JobsPerSecond, *one.InsertPerSecond, *other.JobsPerSecond, *other.InsertPerSecond)
	}
	for name, ratios := range map[string][]float64{"runs": runs, "inserts": inserts} {
		slices.Sort(ratios)
		b.ReportMetric(ratios[len(ratios)/2], fmt.Sprintf("%s-left", name))
		b.ReportMetric(ratios[0], fmt.Sprintf("%s-least", name))
		b.ReportMetric(ratios[len(ratios)-1], fmt.Sprintf("%s-most", name))
	}
}
