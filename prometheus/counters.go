package droverprom

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/meters"
)

// counters count the events of this process.
type counters struct {
	counts     map[meters.Meter]*prometheus.CounterVec
	histograms map[meters.Meter]*prometheus.HistogramVec
	all        []prometheus.Collector
}

func newCounters(opts Options) counters {
	c := counters{counts: map[meters.Meter]*prometheus.CounterVec{}, histograms: map[meters.Meter]*prometheus.HistogramVec{}}
	buckets := map[meters.Meter][]float64{
		meters.RunDuration: opts.DurationBuckets, meters.Wait: opts.WaitBuckets, meters.Backoff: opts.BackoffBuckets,
	}
	for i, def := range meters.Events() {
		meter := meters.Meter(i)
		if bounds, found := buckets[meter]; found {
			c.histograms[meter] = opts.histogram(fullName(def)+"_seconds", def.Help, bounds, def.Labels...)
			c.all = append(c.all, c.histograms[meter])
			continue
		}
		c.counts[meter] = prometheus.NewCounterVec(prometheus.CounterOpts{Name: fullName(def) + "_total", Help: def.Help}, def.Labels)
		c.all = append(c.all, c.counts[meter])
		if len(def.Labels) == 0 {
			c.counts[meter].WithLabelValues()
		}
	}
	for _, reason := range meters.Reasons() {
		c.counts[meters.DeadLetters].WithLabelValues(string(reason))
	}
	return c
}

// fullName is without the suffix of a unit or a counter.
func fullName(def meters.Def) string { return "drover_" + def.Name }

func (o Options) histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	opts := prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}
	if o.NativeHistograms {
		opts.NativeHistogramBucketFactor = 1.1
		opts.NativeHistogramMaxBucketNumber = 160
		opts.NativeHistogramMinResetDuration = time.Hour
	}
	return prometheus.NewHistogramVec(opts, labels)
}

// Hooks returns the hooks for drover.Config.Hooks. Each call increments a counter; at the end of a
// run it also observes a histogram.
func (m *Metrics) Hooks() drover.Hooks {
	c := &m.counters
	return meters.Hooks(m.kinds, m.queues, func(_ context.Context, meter meters.Meter, value float64, labels ...string) {
		if histogram := c.histograms[meter]; histogram != nil {
			histogram.WithLabelValues(labels...).Observe(value)
			return
		}
		c.counts[meter].WithLabelValues(labels...).Add(value)
	})
}
