package droverprom

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/meters"
)

// counters count the events of this process.
type counters struct {
	counts     []*prometheus.CounterVec   // by meters.Meter; nil for a histogram
	histograms []*prometheus.HistogramVec // by meters.Meter; nil for a counter

	mu     sync.RWMutex
	series map[key]prometheus.Metric // the series that have had an event; this map finds a series faster than the client library does
}

type key struct {
	meter  meters.Meter
	labels [meters.MostLabels]string
}

func newCounters(opts Options) *counters {
	defs := meters.Events()
	c := &counters{
		counts: make([]*prometheus.CounterVec, len(defs)), histograms: make([]*prometheus.HistogramVec, len(defs)),
		series: map[key]prometheus.Metric{},
	}
	buckets := map[meters.Meter][]float64{
		meters.RunDuration: opts.DurationBuckets, meters.Wait: opts.WaitBuckets, meters.Backoff: opts.BackoffBuckets,
	}
	for i, def := range defs {
		meter := meters.Meter(i)
		if bounds, found := buckets[meter]; found {
			c.histograms[meter] = opts.histogram(def, bounds)
			continue
		}
		c.counts[meter] = prometheus.NewCounterVec(prometheus.CounterOpts{Name: fullName(def) + "_total", Help: def.Help}, def.Labels)
		if len(def.Labels) == 0 {
			c.counts[meter].WithLabelValues()
		}
	}
	for _, reason := range meters.Reasons() {
		c.counts[meters.DeadLetters].WithLabelValues(string(reason))
	}
	return c
}

// fullName returns the name of a metric without the suffix for a unit or a counter.
func fullName(def meters.Def) string { return "drover_" + def.Name }

func (o Options) histogram(def meters.Def, buckets []float64) *prometheus.HistogramVec {
	opts := prometheus.HistogramOpts{Name: fullName(def) + "_seconds", Help: def.Help, Buckets: buckets}
	if o.NativeHistograms {
		opts.NativeHistogramBucketFactor = 1.1
		opts.NativeHistogramMaxBucketNumber = 160
		opts.NativeHistogramMinResetDuration = time.Hour
	}
	return prometheus.NewHistogramVec(opts, def.Labels)
}

// add adds a value to a counter, or observes it in a histogram.
func (c *counters) add(_ context.Context, meter meters.Meter, value float64, labels [meters.MostLabels]string) {
	at := key{meter, labels}
	c.mu.RLock()
	metric := c.series[at]
	c.mu.RUnlock()
	if metric == nil {
		metric = c.open(at)
	}
	switch m := metric.(type) {
	case prometheus.Counter:
		m.Add(value)
	case prometheus.Histogram:
		m.Observe(value)
	}
}

// open makes a series that has had no event yet.
func (c *counters) open(at key) (metric prometheus.Metric) {
	labels := at.labels[:len(meters.Events()[at.meter].Labels)]
	if histogram := c.histograms[at.meter]; histogram != nil {
		metric = histogram.WithLabelValues(labels...).(prometheus.Histogram) //nolint:forcetypeassert // NewHistogramVec makes only histograms
	} else {
		metric = c.counts[at.meter].WithLabelValues(labels...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.series[at] = metric
	return metric
}

func (c *counters) each(f func(prometheus.Collector)) {
	for i := range c.counts {
		if c.counts[i] != nil {
			f(c.counts[i])
		} else {
			f(c.histograms[i])
		}
	}
}

// Hooks returns the hooks for drover.Config.Hooks. They count each event, and observe how late a run begins, how long
// it lasts, and how long a failed job waits for its retry. They take under a microsecond and wait for nothing, even
// during a slow scrape.
func (m *Metrics) Hooks() drover.Hooks { return meters.Hooks(m.kinds, m.queues, m.counters.add) }
