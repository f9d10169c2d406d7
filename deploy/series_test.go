package deploy_test

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// series is one of Prometheus', with a sample each 15 s.
type series struct {
	labels labels.Labels
	at     func(time.Duration) float64
}

// store is as much of a Prometheus as its engine needs.
type store []series

const step = 15 * time.Second

// growing has an hour of each series of a scrape: a counter grows by what it is each 15 s, a gauge stays.
func growing(families []*dto.MetricFamily) (s store) {
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			add := func(suffix string, value float64, grows bool, more ...string) {
				set := map[string]string{model.MetricNameLabel: family.GetName() + suffix, "job": "app", "instance": "app-1:8080"}
				for _, l := range metric.GetLabel() {
					set[l.GetName()] = l.GetValue()
				}
				for pair := range slices.Chunk(more, 2) {
					set[pair[0]] = pair[1]
				}
				s = append(s, series{labels.FromMap(set), func(t time.Duration) float64 {
					if grows {
						return value * t.Seconds() / step.Seconds()
					}
					return value
				}})
			}
			switch {
			case metric.GetCounter() != nil:
				add("", metric.GetCounter().GetValue(), true)
			case metric.GetGauge() != nil:
				add("", metric.GetGauge().GetValue(), false)
			case metric.GetHistogram() != nil:
				h := metric.GetHistogram()
				add("_count", float64(h.GetSampleCount()), true)
				add("_sum", h.GetSampleSum(), true)
				for _, b := range h.GetBucket() {
					add("_bucket", float64(b.GetCumulativeCount()), true, "le", strconv.FormatFloat(b.GetUpperBound(), 'g', -1, 64))
				}
				add("_bucket", float64(h.GetSampleCount()), true, "le", "+Inf")
			}
		}
	}
	return s
}

// run is the answer to a query at a time.
func (s store) run(t *testing.T, query string, at time.Duration) promql.Vector {
	t.Helper()
	engine := promql.NewEngine(promql.EngineOpts{
		MaxSamples: 1e6, Timeout: time.Minute, EnableAtModifier: true, Parser: parser.NewParser(parser.Options{}),
	})
	defer func() {
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	}()
	q, err := engine.NewInstantQuery(t.Context(), s, nil, query, time.Unix(0, 0).Add(at))
	if err != nil {
		t.Fatalf("%v\n%s", err, query)
	}
	defer q.Close()
	result := q.Exec(t.Context())
	vector, err := result.Vector()
	if err != nil {
		t.Fatalf("%v\n%s", err, query)
	}
	if len(result.Warnings) > 0 {
		t.Errorf("%v\n%s", result.Warnings.AsErrors(), query)
	}
	return slices.Clone(vector)
}

// Querier implements storage.Queryable.
func (s store) Querier(mint, maxt int64) (storage.Querier, error) { return querier{s, mint, maxt}, nil }

type querier struct {
	store      store
	mint, maxt int64
}

func (q querier) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	var found []storage.Series
	for _, series := range q.store {
		if slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(series.labels.Get(m.Name)) }) {
			continue
		}
		var samples []chunks.Sample
		for at := max(0, q.mint); at <= q.maxt; at++ {
			if at%step.Milliseconds() == 0 {
				samples = append(samples, sample{at, series.at(time.Duration(at) * time.Millisecond)})
				at += step.Milliseconds() - 1
			}
		}
		found = append(found, storage.NewListSeries(series.labels, samples))
	}
	return &set{found, -1}
}

func (querier) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

func (querier) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

func (querier) Close() error { return nil }

type set struct {
	series []storage.Series
	at     int
}

func (s *set) Next() bool                      { s.at++; return s.at < len(s.series) }
func (s *set) At() storage.Series              { return s.series[s.at] }
func (*set) Err() error                        { return nil }
func (*set) Warnings() annotations.Annotations { return nil }

type sample struct {
	t int64
	f float64
}

func (s sample) T() int64                    { return s.t }
func (sample) ST() int64                     { return 0 }
func (s sample) F() float64                  { return s.f }
func (sample) H() *histogram.Histogram       { return nil }
func (sample) FH() *histogram.FloatHistogram { return nil }
func (sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample         { return s }

// with is a series of a job "app".
func with(name string, at func(time.Duration) float64, pairs ...string) series {
	set := map[string]string{model.MetricNameLabel: name, "job": "app", "instance": "app-1:8080"}
	for pair := range slices.Chunk(pairs, 2) {
		set[pair[0]] = pair[1]
	}
	return series{labels.FromMap(maps.Clone(set)), at}
}

func is(value float64) func(time.Duration) float64 {
	return func(time.Duration) float64 { return value }
}

// grows is a counter with so many a minute.
func grows(perMinute float64) func(time.Duration) float64 {
	return func(t time.Duration) float64 { return perMinute * t.Minutes() }
}
