package droverotel

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/drover-queue/drover/internal/meters"
)

// instruments are the instruments that events and the middleware change, by their meters: the instruments of the
// messaging conventions, and drover's own instruments. They keep the sums and attributes of all series. The number of
// series is bounded, because each label has a bounded number of values.
type instruments struct {
	counters   map[meters.Meter]metric.Int64ObservableCounter
	histograms map[meters.Meter]metric.Float64Histogram

	mu    sync.RWMutex
	made  map[seriesKey]*oneSeries
	order []*oneSeries // the oldest first
}

func newInstruments(meter metric.Meter) (*instruments, error) {
	in := &instruments{
		counters:   map[meters.Meter]metric.Int64ObservableCounter{},
		histograms: map[meters.Meter]metric.Float64Histogram{},
		made:       map[seriesKey]*oneSeries{},
	}
	var errs []error
	counter := func(m meters.Meter, name, unit, help string) {
		one, err := meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(help))
		in.counters[m], errs = one, append(errs, err)
	}
	histogram := func(m meters.Meter, name, help string, buckets ...float64) {
		one, err := meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(help), metric.WithExplicitBucketBoundaries(buckets...))
		in.histograms[m], errs = one, append(errs, err)
	}
	short := []float64{.005, .01, .025, .05, .075, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10} // the buckets of the conventions
	long := append(short[:len(short):len(short)], 30, 60, 300, 900, 3600)                // jobs run longer than messages
	counter(sent, "messaging.client.sent.messages", "{message}", "Jobs that this process stored, and with error.type those that it could not.")
	counter(consumed, "messaging.client.consumed.messages", "{message}", "Runs that began.")
	histogram(operated, "messaging.client.operation.duration", "How long calls of an enqueue took.", short...)
	histogram(processed, "messaging.process.duration", "How long handlers ran.", long...)
	for i, def := range meters.Events() {
		switch m := meters.Meter(i); m {
		case meters.Enqueued, meters.RunDuration: // the conventions cover these
		case meters.Backoff:
			histogram(m, name(def), def.Help, 1, 5, 15, 60, 300, 900, 3600, 6*3600, 24*3600, 3*24*3600)
		case meters.Wait:
			histogram(m, name(def), def.Help, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 3600)
		default:
			counter(m, name(def), def.Unit, def.Help)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	in.begin()
	return in, nil
}

// name returns the name of an instrument. A collector that makes a Prometheus metric of the instrument gives it the
// same name as the module prometheus does.
func name(def meters.Def) string { return "drover." + def.Name }

// begin starts the counters that alerts look at, with 0. An alert does not see the increase of a series that did not
// exist before.
func (in *instruments) begin() {
	for m, def := range meters.Events() {
		if m := meters.Meter(m); in.counters[m] != nil && len(def.Labels) == 0 {
			in.of(seriesKey{meter: m})
		}
	}
	for _, reason := range meters.Reasons() {
		in.of(seriesKey{meter: meters.DeadLetters, a: string(reason)})
	}
}

// collect passes on the sums of the counters.
func (in *instruments) collect(to metric.Observer) {
	for _, one := range in.all() {
		if counter := in.counters[one.key.meter]; counter != nil {
			to.ObserveInt64(counter, one.sum.Load(), metric.WithAttributes(attributesOf(one.key)...))
		}
	}
}

// count adds the value of an event to its instrument.
func (t *Telemetry) count(ctx context.Context, m meters.Meter, value float64, l [meters.MostLabels]string) {
	defer t.guard()
	switch m {
	case meters.RunDuration: // the middleware measures it, with the context of its span
	case meters.Enqueued:
		t.instruments.of(seriesKey{sent, l[0], l[1], "", l[2]}).take(ctx, value)
	default:
		t.instruments.of(seriesKey{m, l[0], l[1], l[2], l[3]}).take(ctx, value)
	}
}

// measureRun measures a run. ctx is the context of the run's span, so that an exemplar can name the span.
func (t *Telemetry) measureRun(ctx context.Context, like *runs, took time.Duration, failed string) {
	defer t.guard()
	one := like.processed
	if failed != "" {
		one = t.instruments.of(seriesKey{processed, like.queue, like.kind, failed, ""})
	}
	one.take(ctx, took.Seconds())
}

// The meters of the conventions, after drover's own.
const (
	sent meters.Meter = 1000 + iota
	consumed
	operated
	processed
)

// seriesKey identifies a series: the labels are in the order of the meter's definition. For a meter of the conventions
// they are queue, kind, error.type and in_tx.
type seriesKey struct {
	meter      meters.Meter
	a, b, c, d string
}

type oneSeries struct {
	key       seriesKey
	sum       atomic.Int64            // the sum of a counter; not used for a histogram
	histogram metric.Float64Histogram // nil for a counter
	attrs     []metric.RecordOption   // for a histogram, in the form of arguments, so that a call does not have to allocate them
}

// take adds a value to a counter, or records seconds in a histogram. For a counter it does not call the SDK: a
// collection reads the sum later. So an addition is some ten times cheaper than with a synchronous counter of the SDK,
// and each run makes two additions.
func (one *oneSeries) take(ctx context.Context, value float64) {
	if one.histogram == nil {
		one.sum.Add(int64(value))
		return
	}
	one.histogram.Record(ctx, value, one.attrs...)
}

func (in *instruments) of(key seriesKey) *oneSeries {
	in.mu.RLock()
	one := in.made[key]
	in.mu.RUnlock()
	if one != nil {
		return one
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if one = in.made[key]; one == nil {
		one = &oneSeries{
			key: key, histogram: in.histograms[key.meter],
			attrs: []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(attributesOf(key)...))},
		}
		in.made[key], in.order = one, append(in.order, one)
	}
	return one
}

// The method all returns the series, always in the same order. The SDK has a limit, and adds up the series that it
// observes beyond this limit. These series have to be the same in each collection: otherwise sums would fall, and
// deltas would count jobs again.
func (in *instruments) all() []*oneSeries {
	in.mu.RLock()
	defer in.mu.RUnlock()
	return in.order
}

func attributesOf(key seriesKey) (attrs []attribute.KeyValue) {
	labels := []string{key.a, key.b, key.c, key.d}
	if key.meter < sent {
		for i, label := range meters.Events()[key.meter].Labels {
			attrs = append(attrs, attribute.String(label, labels[i]))
		}
		return attrs
	}
	operation := send
	if key.meter == consumed || key.meter == processed {
		operation = process
	}
	attrs = common(operation)
	for i, name := range []string{destination, ofKind, errorType, inTx} {
		switch {
		case labels[i] == "":
		case name == inTx:
			attrs = append(attrs, attribute.Bool(inTx, labels[i] == "true"))
		default:
			attrs = append(attrs, attribute.String(name, labels[i]))
		}
	}
	return attrs
}

// observe makes the instruments of the process and the database. Each collection of metrics reads them, and the counters.
func (t *Telemetry) observe(meter metric.Meter) error {
	ofProcess, err := newObserved(meter, meters.OfProcess())
	if err != nil {
		return err
	}
	depths, err := newObserved(meter, meters.Depths())
	if err != nil {
		return err
	}
	all := slices.Concat(ofProcess.all, depths.all)
	for _, counter := range t.instruments.counters {
		all = append(all, counter)
	}
	_, err = meter.RegisterCallback(func(ctx context.Context, to metric.Observer) error {
		defer t.guard()
		t.instruments.collect(to)
		t.process.Collect(ofProcess.see(to))
		t.database.Collect(ctx, depths.see(to))
		return nil
	}, all...)
	return err
}

// observed has asynchronous instruments; a meters.Gauge is the index of each.
type observed struct {
	defs []meters.Def
	each []metric.Float64Observable
	all  []metric.Observable
}

func newObserved(meter metric.Meter, defs []meters.Def) (o observed, err error) {
	o.defs = defs
	for _, def := range defs {
		var one metric.Float64Observable
		if def.Grows {
			one, err = meter.Float64ObservableCounter(name(def), metric.WithUnit(def.Unit), metric.WithDescription(def.Help))
		} else {
			one, err = meter.Float64ObservableGauge(name(def), metric.WithUnit(def.Unit), metric.WithDescription(def.Help))
		}
		if err != nil {
			return o, err
		}
		o.each, o.all = append(o.each, one), append(o.all, one)
	}
	return o, nil
}

func (o observed) see(to metric.Observer) meters.See {
	return func(g meters.Gauge, value float64, labels ...string) {
		attrs := make([]attribute.KeyValue, 0, len(labels))
		for i, label := range labels {
			attrs = append(attrs, attribute.String(o.defs[g].Labels[i], label))
		}
		to.ObserveFloat64(o.each[g], value, metric.WithAttributes(attrs...))
	}
}
