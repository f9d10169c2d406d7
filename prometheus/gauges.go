package droverprom

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/drover-queue/drover/internal/meters"
)

// gauges are read from the database, or from the supervisors of this process, when somebody scrapes.
type gauges struct {
	descs []*prometheus.Desc
	types []prometheus.ValueType
}

func newGauges(defs []meters.Def) (g gauges) {
	for _, def := range defs {
		name, kind := fullName(def), prometheus.GaugeValue
		if def.Unit == "s" {
			name += "_seconds"
		}
		if def.Grows {
			name, kind = name+"_total", prometheus.CounterValue
		}
		g.descs = append(g.descs, prometheus.NewDesc(name, def.Help, def.Labels, nil))
		g.types = append(g.types, kind)
	}
	return g
}

func (g gauges) describe(ch chan<- *prometheus.Desc) {
	for _, desc := range g.descs {
		ch <- desc
	}
}

func (g gauges) see(ch chan<- prometheus.Metric) meters.See {
	return func(i meters.Gauge, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(g.descs[i], g.types[i], value, labels...)
	}
}

// collect reads the gauges and sends them to the scrape.
func (m *Metrics) collect(ch chan<- prometheus.Metric) {
	m.process.Collect(m.ofProcess.see(ch))
	m.database.Collect(context.Background(), m.depths.see(ch)) // prometheus.Collector passes no context
}
