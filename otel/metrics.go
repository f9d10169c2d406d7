package droverotel

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/meters"
)

// instruments are the synchronous instruments: the ones of the messaging conventions, and drover's own by their meters.
type instruments struct {
	sent, consumed     metric.Int64Counter
	operation, process metric.Float64Histogram

	counts     map[meters.Meter]metric.Int64Counter
	histograms map[meters.Meter]metric.Float64Histogram
	sets       *sets
}

func newInstruments(meter metric.Meter) (in instruments, err error) {
	in.sets = &sets{made: map[setKey]*labelled{}}
	in.counts, in.histograms = map[meters.Meter]metric.Int64Counter{}, map[meters.Meter]metric.Float64Histogram{}
	errs := make([]error, 4, 20)
	short := []float64{.005, .01, .025, .05, .075, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10} // the buckets of the conventions
	long := append(short[:len(short):len(short)], 30, 60, 300, 900, 3600)                // jobs run longer than messages
	in.sent, errs[0] = meter.Int64Counter("messaging.client.sent.messages", metric.WithUnit("{message}"),
		metric.WithDescription("Jobs that this process stored, and with error.type those that it could not."))
	in.consumed, errs[1] = meter.Int64Counter("messaging.client.consumed.messages", metric.WithUnit("{message}"),
		metric.WithDescription("Runs that began."))
	in.operation, errs[2] = meter.Float64Histogram("messaging.client.operation.duration", metric.WithUnit("s"),
		metric.WithDescription("How long calls of an enqueue took."), metric.WithExplicitBucketBoundaries(short...))
	in.process, errs[3] = meter.Float64Histogram("messaging.process.duration", metric.WithUnit("s"),
		metric.WithDescription("How long handlers ran."), metric.WithExplicitBucketBoundaries(long...))

	own := []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 3600}
	for i, def := range meters.Events() {
		var err error
		switch m := meters.Meter(i); m {
		case meters.Enqueued, meters.RunDuration: // the conventions cover these
		case meters.Backoff:
			in.histograms[m], err = meter.Float64Histogram(name(def), metric.WithUnit(def.Unit), metric.WithDescription(def.Help),
				metric.WithExplicitBucketBoundaries(1, 5, 15, 60, 300, 900, 3600, 6*3600, 24*3600, 3*24*3600))
		case meters.Wait:
			in.histograms[m], err = meter.Float64Histogram(name(def), metric.WithUnit(def.Unit), metric.WithDescription(def.Help),
				metric.WithExplicitBucketBoundaries(own...))
		default:
			in.counts[m], err = meter.Int64Counter(name(def), metric.WithUnit(def.Unit), metric.WithDescription(def.Help))
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return in, err
	}
	in.begin()
	return in, nil
}

// name returns the name of an instrument. A collector that makes a Prometheus metric of the instrument gives it the
// same name as the module prometheus does.
func name(def meters.Def) string { return "drover." + def.Name }

// begin adds 0 to the counters that alerts look at. An alert does not see the increase of a series that did not exist
// before.
func (in *instruments) begin() {
	for m, def := range meters.Events() {
		if count := in.counts[meters.Meter(m)]; count != nil && len(def.Labels) == 0 {
			count.Add(context.Background(), 0)
		}
	}
	for _, reason := range meters.Reasons() {
		in.counts[meters.DeadLetters].Add(context.Background(), 0, in.sets.of(setKey{meter: meters.DeadLetters, a: string(reason)}).add...)
	}
}

// count adds the value of an event to its instrument.
func (t *Telemetry) count(ctx context.Context, m meters.Meter, value float64, l [meters.MostLabels]string) {
	defer t.guard()
	switch in := &t.instruments; {
	case m == meters.Enqueued:
		in.sent.Add(ctx, int64(value), in.sets.of(setKey{sent, l[0], l[1], "", l[2]}).add...)
	case m == meters.RunDuration: // the middleware measures it, with the context of its span
	case in.histograms[m] != nil:
		in.histograms[m].Record(ctx, value, in.sets.of(setKey{m, l[0], l[1], l[2], l[3]}).record...)
	default:
		in.counts[m].Add(ctx, int64(value), in.sets.of(setKey{m, l[0], l[1], l[2], l[3]}).add...)
	}
}

// measureStart counts a run that begins.
func (t *Telemetry) measureStart(ctx context.Context, job *drover.Job) {
	defer t.guard()
	t.instruments.consumed.Add(ctx, 1, t.instruments.sets.of(setKey{consumed, t.queues.Label(job.Queue), t.kinds.Label(job.Kind), "", ""}).add...)
}

// measureRun measures a run. ctx is the context of the run's span, so that an exemplar can name the span.
func (t *Telemetry) measureRun(ctx context.Context, job *drover.Job, took time.Duration, failed string) {
	defer t.guard()
	t.instruments.process.Record(ctx, took.Seconds(),
		t.instruments.sets.of(setKey{processed, t.queues.Label(job.Queue), t.kinds.Label(job.Kind), failed, ""}).record...)
}

// The meters of the conventions, after drover's own.
const (
	sent meters.Meter = 1000 + iota
	consumed
	operated
	processed
)

// setKey identifies the attributes of a measurement: the labels in the order of the meter's definition. For a meter of
// the conventions they are queue, kind, error.type and in_tx.
type setKey struct {
	meter      meters.Meter
	a, b, c, d string
}

// sets keeps the attributes that were made. Their number is bounded, because each label has a bounded number of values.
type sets struct {
	mu   sync.RWMutex
	made map[setKey]*labelled
}

// labelled has the attributes of a measurement in the form of arguments for an instrument's methods, so that a call
// does not have to allocate them.
type labelled struct {
	add    []metric.AddOption
	record []metric.RecordOption
}

func (s *sets) of(key setKey) *labelled {
	s.mu.RLock()
	option := s.made[key]
	s.mu.RUnlock()
	if option != nil {
		return option
	}
	attrs := metric.WithAttributeSet(attribute.NewSet(attributesOf(key)...))
	option = &labelled{[]metric.AddOption{attrs}, []metric.RecordOption{attrs}}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made[key] = option
	return option
}

func attributesOf(key setKey) (attrs []attribute.KeyValue) {
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

// observe makes the asynchronous instruments. Each collection of metrics reads them.
func (t *Telemetry) observe(meter metric.Meter) error {
	ofProcess, err := newObserved(meter, meters.OfProcess())
	if err != nil {
		return err
	}
	depths, err := newObserved(meter, meters.Depths())
	if err != nil {
		return err
	}
	_, err = meter.RegisterCallback(func(ctx context.Context, to metric.Observer) error {
		defer t.guard()
		t.process.Collect(ofProcess.see(to))
		t.database.Collect(ctx, depths.see(to))
		return nil
	}, append(ofProcess.all, depths.all...)...)
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
