package droverprom

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/meters"
)

// Options are the settings of a Metrics. The zero value is a good start.
type Options struct {
	// MaxKinds is how many kinds get a label of their own. Kinds that come later share the label "other". Zero means 1000.
	// Each kind costs about 25 series for each queue that it uses.
	MaxKinds int

	// MaxQueues is how many queues get a label of their own. Other queues share the label "other". Zero means 100. Each
	// queue costs about 30 series. Metrics of the database name the first queues in the order of their names, so set
	// the same value in each process that watches the database.
	MaxQueues int

	// DurationBuckets are the upper bounds of drover_run_duration_seconds, in seconds and ascending. Nil means 15 buckets
	// from 5 ms to 1 h.
	DurationBuckets []float64

	// WaitBuckets are the same for drover_wait_seconds. Nil means 15 buckets from 5 ms to 1 h.
	WaitBuckets []float64

	// BackoffBuckets are the same for drover_backoff_seconds. Nil means 10 buckets from 1 s to 3 days.
	BackoffBuckets []float64

	// NativeHistograms exports each histogram as a native histogram, too. Its buckets are narrow: each bound is at most
	// 10 % above the bound before. The dashboard in deploy/ needs the classic buckets. A Prometheus that scrapes native
	// histograms does not scrape the classic buckets, unless its always_scrape_classic_histograms is set.
	NativeHistograms bool

	// MaxAge is how long scrapes use the values that an earlier scrape has read from the database. So several
	// Prometheus servers cause no more reads than one. Zero means 5 s.
	MaxAge time.Duration

	// Timeout ends a read of the database. Zero means 5 s. It should be shorter than Prometheus'
	// scrape_timeout, which is 10 s by default.
	Timeout time.Duration
}

// withDefaults fills in the defaults. It panics if an option is negative, because that is a mistake of the programmer.
func (o Options) withDefaults() Options {
	if o.MaxKinds < 0 || o.MaxQueues < 0 || o.MaxAge < 0 || o.Timeout < 0 {
		panic(fmt.Sprintf("droverprom: an option is negative: %+v", o))
	}
	runs := []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 3600}
	for buckets, standard := range map[*[]float64][]float64{
		&o.DurationBuckets: runs,
		&o.WaitBuckets:     runs,
		&o.BackoffBuckets:  {1, 5, 15, 60, 300, 900, 3600, 6 * 3600, 24 * 3600, 3 * 24 * 3600},
	} {
		if *buckets == nil {
			*buckets = standard
		}
		*buckets = slices.Clone(*buckets)
	}
	o.MaxKinds = cmp.Or(o.MaxKinds, 1000)
	o.MaxQueues = cmp.Or(o.MaxQueues, 100)
	o.MaxAge = cmp.Or(o.MaxAge, 5*time.Second)
	o.Timeout = cmp.Or(o.Timeout, 5*time.Second)
	return o
}

// Metrics is a prometheus.Collector. Its methods may be called at any time, from any goroutine.
type Metrics struct {
	kinds, queues *meters.Names
	counters      *counters

	process           meters.Process
	database          meters.Database
	ofProcess, depths gauges
}

// New makes the metrics, and panics if an option is negative or a list of buckets does not ascend.
// Register them with any registry. A process with two databases makes two Metrics, and registers
// each with prometheus.WrapRegistererWith and a label of its own.
func New(opts Options) *Metrics {
	opts = opts.withDefaults()
	m := &Metrics{
		kinds: &meters.Names{Most: opts.MaxKinds}, queues: &meters.Names{Most: opts.MaxQueues},
		counters:  newCounters(opts),
		ofProcess: newGauges(meters.OfProcess()),
		depths:    newGauges(meters.Depths()),
	}
	m.database.MaxAge, m.database.Timeout, m.database.MostQueues = opts.MaxAge, opts.Timeout, opts.MaxQueues
	return m
}

// Watch makes scrapes read the client's database: depths, ages, supervisors, pauses, redrives, findings. Before the
// first call, these metrics and drover_up are missing. Another call replaces the client.
func (m *Metrics) Watch(client *drover.Client) { m.database.Watch(client) }

// WatchSupervisor adds a supervisor of this process: the handlers that it runs, and its health. Call it for each supervisor.
func (m *Metrics) WatchSupervisor(sup *drover.Supervisor) { m.process.Watch(sup) }

// Describe is part of prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	m.counters.each(func(c prometheus.Collector) { c.Describe(ch) })
	m.ofProcess.describe(ch)
	m.depths.describe(ch)
}

// Collect is part of prometheus.Collector. It reads the database at most once in Options.MaxAge, and waits at most
// Options.Timeout for it. Without an answer, drover_up is 0, and the other metrics of the database are missing. A part
// that cannot be read is missing too, and drover_not_seen names it.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.counters.each(func(c prometheus.Collector) { c.Collect(ch) })
	m.collect(ch)
}
