package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
)

// Step is one measurement.
type Step string

// The steps, in the order in which they run.
const (
	Burn    Step = "burn"    // insert and run Options.Jobs jobs
	Latency Step = "latency" // from the call of Enqueue to the handler
	Retry   Step = "retry"   // how late retries start
	Idle    Step = "idle"    // the load of an idle supervisor on the server
	Memory  Step = "memory"  // the memory of jobs in flight
)

// Steps returns all steps, in order.
func Steps() []Step { return []Step{Burn, Latency, Retry, Idle, Memory} }

// Options choose the measurements. Run refuses a zero in Jobs, Workers, Queues, Samples and IdleFor.
type Options struct {
	// Config is the database; its search_path, application_name and size of the pool are replaced.
	Config *pgxpool.Config

	Jobs    int // in the burn-down
	Workers int // slots in the burn-down, of all queues together; each queue gets its share
	Queues  int // queues in the burn-down, at most Workers

	Keep     bool    // keep completed jobs instead of deleting them
	Payload  int     // bytes of text in the args of each job, next to a number
	FailRate float64 // share of the jobs whose first attempt fails, 0 to 1

	Samples int           // how many jobs each percentile is computed from
	IdleFor time.Duration // how long the idle supervisor is watched

	Steps []Step // the measurements

	// Progress is called with a line about the current step. Nil is silent.
	Progress func(string)

	// Logger is the logger of the client and its supervisors.
	Logger *slog.Logger

	// Client has more settings of the client, such as middleware and hooks. Its Logger is replaced.
	Client drover.Config
}

// Percentiles are two percentiles and the maximum of a sample, in milliseconds.
type Percentiles struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Report has the results. A figure is null if it was not measured, or if the server does not report it.
type Report struct {
	Jobs      int     `json:"jobs"`
	Workers   int     `json:"workers"`
	Queues    int     `json:"queues"`
	Retention string  `json:"retention"` // "delete" or "keep"
	Payload   int     `json:"payload_bytes"`
	FailRate  float64 `json:"fail_rate"`

	// The burn-down, from Run to the moment when no row was unfinished.
	Seconds          *float64 `json:"seconds"`
	JobsPerSecond    *float64 `json:"jobs_per_second"`
	RunsPerSecond    *float64 `json:"runs_per_second"`   // counts the injected failures' second runs
	InsertPerSecond  *float64 `json:"insert_per_second"` // encoding included
	HandlerCalls     *int64   `json:"handler_calls"`
	InjectedFailures *int64   `json:"injected_failures"`

	// The WAL of the insert and the run together, in bytes for each job. If WALImagesApart, it does not count full-page
	// images, because these depend on the time since the last checkpoint and not on the queue. Otherwise it counts
	// them.
	WALBytes       *float64 `json:"wal_bytes_per_job"`
	WALImagesApart *bool    `json:"wal_fpi_apart"`
	WALInsertBytes *float64 `json:"wal_insert_bytes_per_job"` // the part that the insert wrote
	WALRunBytes    *float64 `json:"wal_run_bytes_per_job"`    // the part that the run wrote
	WALImages      *float64 `json:"wal_fpi_per_job"`          // the number of full-page images
	WALImageBytes  *float64 `json:"wal_fpi_bytes_per_job"`    // the bytes of the full-page images
	WALTotalBytes  *float64 `json:"wal_total_bytes_per_job"`  // all WAL

	HOTShare         *float64 `json:"hot_share"` // the share of HOT updates among the claims' updates
	StatementsPerJob *float64 `json:"statements_per_job"`
	CommitsPerJob    *float64 `json:"commits_per_job"`

	Latency     *Percentiles `json:"latency_ms"`      // from the call of Enqueue to the handler
	LatencyIdle *Percentiles `json:"latency_idle_ms"` // the same, for jobs that were enqueued while every supervisor slept
	RetryLate   *Percentiles `json:"retry_late_ms"`   // from a retry's due time to its handler

	IdleStatements *float64 `json:"idle_statements_per_second"`
	IdleCommits    *float64 `json:"idle_commits_per_second"`

	RSSGrowthMiB *float64 `json:"rss_growth_mib"` // with 2,000 jobs of 1 KiB in flight

	CPUs     int               `json:"cpus"` // of this process' machine
	Go       string            `json:"go"`
	Server   string            `json:"server"`
	Settings map[string]string `json:"settings"`
	Notes    []string          `json:"notes"` // figures that could not be measured, and why
}

// ErrCount reports that handlers were called more or less often than expected for the jobs and their failures.
var ErrCount = errors.New("drover: handler calls do not add up")

// Run makes the measurements. It refuses a server whose settings may lose commits. Every step is bounded in time, and
// leaves nothing in the database, even after an error. With ErrCount, the report is complete nevertheless.
func Run(ctx context.Context, o Options) (*Report, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	r := &Report{
		Jobs: o.Jobs, Workers: o.Workers, Queues: o.Queues, Retention: "delete", Payload: o.Payload, FailRate: o.FailRate,
		CPUs: runtime.NumCPU(), Go: runtime.Version(), Notes: []string{},
	}
	if o.Keep {
		r.Retention = "keep"
	}
	if err := r.describeServer(ctx, o.Config); err != nil {
		return nil, err
	}
	var wrong error
	for _, step := range Steps() {
		if !slices.Contains(o.Steps, step) {
			continue
		}
		err := o.step(ctx, r, step)
		if errors.Is(err, ErrCount) {
			wrong = errors.Join(wrong, err)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", step, err)
		}
	}
	return r, wrong
}

func (o *Options) check() error {
	for _, c := range []struct {
		bad  bool
		text string
	}{
		{o.Jobs < 1 || o.Jobs > 100_000_000, fmt.Sprintf("%d jobs: 1 to 100,000,000", o.Jobs)},
		{o.Queues < 1 || o.Queues > 1000, fmt.Sprintf("%d queues: 1 to 1,000", o.Queues)},
		{o.Workers < o.Queues, fmt.Sprintf("%d workers: at least one for each of %d queues", o.Workers, o.Queues)},
		{o.Workers > 10_000*o.Queues, fmt.Sprintf("%d workers: at most 10,000 for each of %d queues", o.Workers, o.Queues)},
		{o.Payload < 0 || o.Payload > 200<<10, fmt.Sprintf("payload of %d bytes: 0 to 204,800", o.Payload)},
		{!(o.FailRate >= 0 && o.FailRate <= 1), fmt.Sprintf("fail rate %v: 0 to 1", o.FailRate)},
		{o.Samples < 1 || o.Samples > 100_000, fmt.Sprintf("%d samples: 1 to 100,000", o.Samples)},
		{o.IdleFor < time.Second || o.IdleFor > time.Hour, fmt.Sprintf("%v of idleness: 1s to 1h", o.IdleFor)},
	} {
		if c.bad {
			return fmt.Errorf("%w: %s", ErrOptions, c.text)
		}
	}
	for _, step := range o.Steps {
		if !slices.Contains(Steps(), step) {
			return fmt.Errorf("%w: there is no step %q", ErrOptions, step)
		}
	}
	return nil
}

// ErrOptions reports options with which nothing can be measured.
var ErrOptions = errors.New("drover: cannot measure that")

// step runs one measurement in a schema of its own.
func (o *Options) step(ctx context.Context, r *Report, step Step) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, o.bound(step), fmt.Errorf("not done after %v", o.bound(step)))
	defer cancel()
	s, err := newScratch(ctx, o)
	if err != nil {
		return err
	}
	defer func() {
		left := s.drop(context.WithoutCancel(ctx))
		switch {
		case left != nil && errors.Is(err, context.Canceled):
			err = left // a schema that is left behind matters more than the interruption
		case left != nil:
			err = errors.Join(err, left)
		case err != nil && errors.Is(context.Cause(ctx), context.Canceled):
			err = context.Canceled // errors that the interruption has caused do not matter
		}
	}()
	switch step {
	case Burn:
		return s.burn(ctx, r)
	case Latency:
		return s.latency(ctx, r)
	case Retry:
		return s.retry(ctx, r)
	case Idle:
		return s.idle(ctx, r)
	case Memory:
		return s.memory(ctx, r)
	}
	return fmt.Errorf("there is no step %q", step)
}

// bound returns how long a step may take, which is far longer than the step needs on a slow machine.
func (o *Options) bound(step Step) time.Duration {
	switch step {
	case Burn:
		return 2*time.Minute + time.Duration(o.Jobs)*5*time.Millisecond
	case Idle:
		return time.Minute + 3*o.IdleFor
	case Latency, Retry, Memory:
	}
	return time.Minute + time.Duration(o.Samples)*100*time.Millisecond
}

// percentiles computes percentiles by nearest rank. It sorts the sample, which must not be empty.
func percentiles(sample []time.Duration) *Percentiles {
	slices.Sort(sample)
	at := func(p int) float64 {
		rank := (len(sample)*p + 99) / 100
		return round(float64(sample[max(rank, 1)-1].Nanoseconds())/1e6, 3)
	}
	return &Percentiles{P50: at(50), P99: at(99), Max: at(100)}
}
