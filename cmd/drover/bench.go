package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/drover-queue/drover/internal/bench"
	"github.com/drover-queue/drover/internal/pgdev"
	"github.com/drover-queue/drover/internal/pgurl"
	"github.com/drover-queue/drover/internal/plural"
)

func newBenchCommand(a *app) *cobra.Command {
	o := bench.Options{}
	var retention string
	var only []string
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure the queue on this machine or on your server",
		Long: `Measure the queue through the public API. The command makes empty schemas of its own, and drops them at
the end. Without --url and DATABASE_URL it finds or starts a Postgres, and stops it again.

The steps:

  burn     insert the jobs, and run them all on one supervisor: speed, WAL, HOT share of the claims,
           statements
  latency  time from the call of Enqueue to the handler: at a low rate, and if the supervisor sleeps
  retry    how late second attempts begin
  idle     statements of a supervisor that has no jobs
  memory   growth of the process with 2,000 running jobs of 1 KiB

wal_bytes_per_job is the WAL of inserting and running a job, without full-page images. These depend on the
last checkpoint, so the report has them in a line of their own.

Nobody else should use the server meanwhile, because WAL and commits are counted for the whole server.`,
		Example: `  drover bench
  drover bench --retention keep --jobs 500000 --queues 5 --only burn
  drover bench --fail-rate 1 --only burn --only retry --json | tail -1 | jq .runs_per_second`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch retention {
			case "delete":
			case "keep":
				o.Keep = true
			default:
				return usagef("--retention %q is neither delete nor keep", retention)
			}
			o.Steps = bench.Steps()
			if len(only) > 0 {
				o.Steps = nil
			}
			for _, step := range only {
				o.Steps = append(o.Steps, bench.Step(strings.TrimSpace(step)))
			}
			return a.bench(cmd.Context(), o)
		},
	}
	all := make([]string, 0, len(bench.Steps()))
	for _, step := range bench.Steps() {
		all = append(all, string(step))
	}
	hideSchema(cmd)
	f := cmd.Flags()
	f.IntVar(&o.Jobs, "jobs", 200_000, "number of jobs that the step burn runs")
	f.IntVar(&o.Workers, "workers", 200, "jobs that run at the same time in the step burn, over all queues")
	f.IntVar(&o.Queues, "queues", 1, "number of queues in the step burn")
	f.StringVar(&retention, "retention", "delete", "what happens to completed jobs: delete or keep")
	f.IntVar(&o.Payload, "payload", 0, "size of each job's args in bytes")
	f.Float64Var(&o.FailRate, "fail-rate", 0, "share of the jobs whose first attempt fails, from 0 to 1")
	f.IntVar(&o.Samples, "samples", 200, "number of jobs that each percentile is computed from")
	f.DurationVar(&o.IdleFor, "idle-for", 10*time.Second, "how long to watch an idle supervisor")
	f.StringArrayVar(&only, "only", nil, "run only this `step`: "+strings.Join(all, ", ")+"; repeat the flag for several (default: all)")
	complete(cmd, "retention", "delete", "keep")
	complete(cmd, "only", all...)
	return cmd
}

func (a *app) bench(ctx context.Context, o bench.Options) (err error) {
	if a.schema != "" {
		return usagef("--schema: the measurement makes schemas of its own")
	}
	config, source, end, err := a.benchDatabase(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	o.Config, o.Logger = config, a.logger()
	o.Progress = func(line string) { fmt.Fprintln(a.stderr, line) }
	report, err := bench.Run(ctx, o)
	if errors.Is(err, bench.ErrOptions) {
		return &usageError{err}
	}
	if report == nil {
		return err
	}
	if a.json {
		return errors.Join(err, a.printJSON(report))
	}
	return errors.Join(err, a.printBench(report, source))
}

// benchDatabase returns the database that the command line names. If it names none, benchDatabase starts a server, and
// the result end stops that server.
func (a *app) benchDatabase(ctx context.Context) (config *pgxpool.Config, source string, end func() error, err error) {
	if a.databaseURL() != "" {
		config, err := a.poolConfig()
		return config, "the given database", func() error { return nil }, err
	}
	server, err := a.startPostgres(ctx)
	if err != nil {
		return nil, "", nil, err
	}
	if config, err = pgurl.Parse(server.URL()); err != nil {
		return nil, "", nil, errors.Join(err, server.Close())
	}
	return config, server.Source(), server.Close, nil
}

// startPostgres starts a server that counts statements with pg_stat_statements. If that fails because the extension is
// not installed, it starts a server without the extension. The settings make sure that no checkpoint runs during a
// measurement.
func (a *app) startPostgres(ctx context.Context) (*pgdev.Server, error) {
	options := pgdev.Options{
		Ways:     []pgdev.Way{pgdev.Local, pgdev.Docker, pgdev.Download},
		Log:      func(line string) { fmt.Fprintln(a.stderr, line) },
		Settings: map[string]string{"max_wal_size": "4GB", "checkpoint_timeout": "30min", "shared_preload_libraries": "pg_stat_statements"},
	}
	server, err := pgdev.Start(ctx, options)
	if err == nil || ctx.Err() != nil {
		return server, err
	}
	delete(options.Settings, "shared_preload_libraries")
	return pgdev.Start(ctx, options)
}

// printBench prints each measured value with its name in words and with its JSON key.
func (a *app) printBench(r *bench.Report, source string) error {
	rows := [][]string{{"MEASURED", "", "JSON KEY"}}
	number := func(name string, v *float64, unit, key string) {
		if v != nil {
			rows = append(rows, []string{name, strconv.FormatFloat(*v, 'f', -1, 64) + unit, key})
		}
	}
	spread := func(name string, p *bench.Percentiles, key string) {
		if p != nil {
			rows = append(rows, []string{name, fmt.Sprintf("p50 %v  p99 %v  max %v ms", p.P50, p.P99, p.Max), key})
		}
	}
	images := "without full-page images"
	if r.WALImagesApart != nil && !*r.WALImagesApart {
		images = "with full-page images"
	}
	number("insert", r.InsertPerSecond, " jobs/s", "insert_per_second")
	number("burn-down", r.Seconds, " s", "seconds")
	number("burn-down", r.JobsPerSecond, " jobs/s", "jobs_per_second")
	if r.FailRate > 0 {
		number("runs, failed ones too", r.RunsPerSecond, " runs/s", "runs_per_second")
	}
	number("WAL "+images, r.WALBytes, " B/job", "wal_bytes_per_job")
	number("  of the insert", r.WALInsertBytes, " B/job", "wal_insert_bytes_per_job")
	number("  of the run", r.WALRunBytes, " B/job", "wal_run_bytes_per_job")
	number("full-page images", r.WALImages, " a job", "wal_fpi_per_job")
	number("  their bytes", r.WALImageBytes, " B/job", "wal_fpi_bytes_per_job")
	number("WAL in all", r.WALTotalBytes, " B/job", "wal_total_bytes_per_job")
	number("claims that were HOT", r.HOTShare, "", "hot_share")
	number("statements", r.StatementsPerJob, " a job", "statements_per_job")
	number("commits", r.CommitsPerJob, " a job", "commits_per_job")
	spread("enqueue to handler", r.Latency, "latency_ms")
	spread("  supervisor asleep", r.LatencyIdle, "latency_idle_ms")
	spread("retries begin late by", r.RetryLate, "retry_late_ms")
	number("idle statements", r.IdleStatements, " a second", "idle_statements_per_second")
	number("idle commits", r.IdleCommits, " a second", "idle_commits_per_second")
	number("2,000 jobs in flight", r.RSSGrowthMiB, " MiB", "rss_growth_mib")
	fmt.Fprintf(a.stdout, "%s, %s, %s, retention %s, payload %d B, fail rate %v\n",
		plural.Of(r.Jobs, "job"), plural.Of(r.Workers, "worker"), plural.Of(r.Queues, "queue"), r.Retention, r.Payload, r.FailRate)
	fmt.Fprintf(a.stdout, "%s, %s, PostgreSQL %s, %s\n", plural.Of(r.CPUs, "CPU"), r.Go, r.Server, source)
	for _, name := range slices.Sorted(maps.Keys(r.Settings)) {
		fmt.Fprintf(a.stdout, "%s=%s ", name, r.Settings[name])
	}
	fmt.Fprint(a.stdout, "\n\n")
	if err := table(a.stdout, rows); err != nil {
		return err
	}
	for _, note := range r.Notes {
		fmt.Fprintln(a.stdout, "note: "+printable(note))
	}
	return nil
}
