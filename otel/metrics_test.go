package droverotel_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/drover-queue/drover"
	droverotel "github.com/drover-queue/drover/otel"
)

// collect returns the values of a collection, and the counts of its histograms, by instrument and attributes. It also returns
// the instruments.
func collect(t *testing.T, reader sdkmetric.Reader) (values map[string]float64, instruments map[string]metricdata.Metrics) {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	values, instruments = map[string]float64{}, map[string]metricdata.Metrics{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			instruments[m.Name] = m
			set := func(attrs attribute.Set, value float64) {
				values[m.Name+"{"+labelsOf(attrs)+"}"] += value
			}
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					set(p.Attributes, float64(p.Value))
				}
			case metricdata.Sum[float64]:
				for _, p := range data.DataPoints {
					set(p.Attributes, p.Value)
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					set(p.Attributes, p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					set(p.Attributes, float64(p.Count))
				}
			default:
				t.Errorf("%s is %T", m.Name, data)
			}
		}
	}
	return values, instruments
}

// labelsOf leaves out the attributes that all instruments of the conventions have.
func labelsOf(attrs attribute.Set) string {
	var labels []string
	for _, a := range attrs.ToSlice() {
		if key := string(a.Key); key != "messaging.system" && key != "messaging.operation.type" {
			labels = append(labels, key+"="+a.Value.String())
		}
	}
	return strings.Join(labels, ",")
}

func expectValues(t *testing.T, got, want map[string]float64) {
	t.Helper()
	for name, value := range want {
		if v, found := got[name]; !found || v != value {
			t.Errorf("%s = %v (there: %t), want %v", name, v, found, value)
		}
	}
	if t.Failed() {
		t.Log(got)
	}
}

func newMetrics(opts droverotel.Options) (*sdkmetric.ManualReader, droverotel.Options) {
	reader := sdkmetric.NewManualReader()
	opts.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	return reader, opts
}

func newTelemetry(t *testing.T, opts droverotel.Options) *droverotel.Telemetry {
	t.Helper()
	tel, err := droverotel.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return tel
}

// Jobs run, and the instruments agree with what became of them.
func TestInstrumentsOfRuns(t *testing.T) {
	t.Parallel()
	var reader *sdkmetric.ManualReader
	r := newRig(t, func(o *droverotel.Options) { reader, *o = newMetrics(*o) })
	for _, do := range []string{"done", "done", "fails", "snoozes"} {
		r.enqueue(t, t.Context(), do, nil)
	}
	items := []drover.EnqueueItem{{Args: work{"done"}}, {Args: work{}, Opts: &drover.EnqueueOpts{Queue: "q", Priority: 77}}}
	if _, err := r.client.EnqueueMany(t.Context(), items); err == nil {
		t.Fatal("no error")
	}
	failed := false
	r.run(t, r.client, 5, func(_ context.Context, _ *drover.Job, w work) error {
		switch {
		case w.Do == "fails" && !failed:
			failed = true
			return errors.New("no")
		case w.Do == "snoozes":
			return drover.Snooze(time.Hour)
		}
		return nil
	})
	got, instruments := collect(t, reader)
	const of = "drover.kind=work,messaging.destination.name=default,messaging.operation.name="
	expectValues(t, got, map[string]float64{
		"messaging.client.sent.messages{drover.in_tx=false," + of + "send}":                                                                    4,
		"messaging.client.sent.messages{drover.kind=work,error.type=invalid,messaging.destination.name=default,messaging.operation.name=send}": 1,
		"messaging.client.sent.messages{drover.kind=work,error.type=invalid,messaging.destination.name=q,messaging.operation.name=send}":       1,

		"messaging.client.operation.duration{messaging.destination.name=default,messaging.operation.name=send}": 4,
		"messaging.client.operation.duration{error.type=invalid,messaging.operation.name=send}":                 1,

		"messaging.client.consumed.messages{" + of + "process}": 5,
		"messaging.process.duration{" + of + "process}":         4,
		"messaging.process.duration{drover.kind=work,error.type=error,messaging.destination.name=default,messaging.operation.name=process}": 1,

		"drover.outcomes{kind=work,outcome=completed,queue=default,reason=}":   3,
		"drover.outcomes{kind=work,outcome=snoozed,queue=default,reason=}":     1,
		"drover.outcomes{kind=work,outcome=failed,queue=default,reason=error}": 1,
		"drover.wait{queue=default}":                                           5,
		"drover.backoff{kind=work}":                                            1,
		"drover.dead_letters{reason=crashed}":                                  0,
		"drover.quarantined{}":                                                 0,
	})
	histogram, _ := instruments["messaging.process.duration"].Data.(metricdata.Histogram[float64])
	exemplars := 0
	for _, p := range histogram.DataPoints {
		for _, e := range p.Exemplars {
			if len(e.TraceID) == 16 {
				exemplars++
			}
		}
	}
	if exemplars == 0 {
		t.Error("no exemplar names the trace of a run")
	}
}

// Each event moves an instrument. Reasons are there from the start, with 0.
func TestEveryEventIsMeasured(t *testing.T) {
	t.Parallel()
	reader, opts := newMetrics(droverotel.Options{})
	tel := newTelemetry(t, opts)
	hooks := reflect.ValueOf(tel.Hooks())
	for i := range hooks.NumField() {
		if hook, _ := hooks.Field(i).Interface().(func(context.Context, drover.Event)); hook != nil {
			hook(t.Context(), drover.Event{
				Queue: "q", Kind: "k", Count: 3, InTx: true, Duration: time.Second, Wait: time.Second, Backoff: time.Second,
				Class: drover.ClassTimeout, Reason: drover.ReasonTimeBudget,
			})
		}
	}
	got, _ := collect(t, reader)
	want := map[string]float64{
		"messaging.client.sent.messages{drover.in_tx=true,drover.kind=k,messaging.destination.name=q,messaging.operation.name=send}": 1,
		"drover.wait{queue=q}": 1, "drover.backoff{kind=k}": 1, "drover.dead_letters{reason=time_budget}": 3, "drover.dead_letters{reason=refused}": 0,
		"drover.quarantined{}": 1, "drover.redriven{}": 3, "drover.failures_reopened{}": 1,
		"drover.periodic_skipped{kind=k,queue=q}": 3, "drover.outcomes{kind=k,outcome=discarded,queue=q,reason=time_budget}": 3,
	}
	for _, outcome := range []string{"completed", "snoozed", "cancelled", "released", "stale"} {
		want["drover.outcomes{kind=k,outcome="+outcome+",queue=q,reason=}"] = 3
	}
	for _, outcome := range []string{"failed", "parked", "rescued"} {
		want["drover.outcomes{kind=k,outcome="+outcome+",queue=q,reason=timeout}"] = 3
	}
	expectValues(t, got, want)
}

// The counters of two Telemetries on one provider add up. A collection does not count again what an earlier one has read,
// for either temporality.
func TestCountersOfTwoTelemetriesAddUp(t *testing.T) {
	t.Parallel()
	total := sdkmetric.NewManualReader()
	since := sdkmetric.NewManualReader(sdkmetric.WithTemporalitySelector(func(sdkmetric.InstrumentKind) metricdata.Temporality { return metricdata.DeltaTemporality }))
	opts := droverotel.Options{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(total), sdkmetric.WithReader(since))}
	first, second := newTelemetry(t, opts).Hooks(), newTelemetry(t, opts).Hooks()
	for i, want := range []struct{ total, since float64 }{{5, 5}, {8, 3}, {8, 0}} {
		if i < 2 {
			first.Redriven(t.Context(), drover.Event{Count: 3})
		}
		if i < 1 {
			second.Redriven(t.Context(), drover.Event{Count: 2})
		}
		got, _ := collect(t, total)
		expectValues(t, got, map[string]float64{"drover.redriven{}": want.total})
		got, _ = collect(t, since)
		expectValues(t, got, map[string]float64{"drover.redriven{}": want.since})
	}
}

// For each instrument, the SDK keeps 2,000 series, and adds up the others in one more. The series that it keeps stay the
// same. Otherwise sums would fall, and differences would count jobs again.
func TestSeriesBeyondTheLimitOfTheSDK(t *testing.T) {
	t.Parallel()
	total := sdkmetric.NewManualReader()
	since := sdkmetric.NewManualReader(sdkmetric.WithTemporalitySelector(func(sdkmetric.InstrumentKind) metricdata.Temporality { return metricdata.DeltaTemporality }))
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(total), sdkmetric.WithReader(since), sdkmetric.WithCardinalityLimit(10))
	hooks := newTelemetry(t, droverotel.Options{MeterProvider: provider}).Hooks()
	var was map[string]float64
	for round := range 5 {
		for n := range 20 + round {
			hooks.Enqueued(t.Context(), drover.Event{Kind: fmt.Sprint("kind", n), Queue: "q"})
		}
		sums, _ := collect(t, total)
		for name, value := range was {
			if sums[name] < value {
				t.Errorf("%s falls from %v to %v", name, value, sums[name])
			}
		}
		was = sums
		jobs := 0.0
		added, _ := collect(t, since)
		for name, value := range added {
			if strings.HasPrefix(name, "messaging.client.sent.messages") {
				jobs += value
			}
		}
		if want := float64(20 + round); jobs != want {
			t.Errorf("%v jobs were counted, not %v", jobs, want)
		}
	}
}

// Names from outside cannot fill the memory of the SDK.
func TestAttributesAreBounded(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		opts          droverotel.Options
		kinds, queues int
	}{
		{droverotel.Options{}, 1000, 100},
		{droverotel.Options{MaxKinds: 7, MaxQueues: 2}, 7, 2},
	} {
		reader, opts := newMetrics(test.opts)
		hooks := newTelemetry(t, opts).Hooks()
		for i := range 1500 {
			e := drover.Event{Queue: fmt.Sprintf("queue %d", i%200), Kind: fmt.Sprintf("kind %d", i)}
			hooks.Failed(t.Context(), e)
			hooks.Started(t.Context(), e)
		}
		kinds, queues := 0, 0
		got, _ := collect(t, reader)
		for name := range got {
			switch {
			case strings.HasPrefix(name, "drover.backoff"):
				kinds++
			case strings.HasPrefix(name, "drover.wait"):
				queues++
			}
		}
		if kinds != test.kinds+1 || queues != test.queues+1 {
			t.Errorf("%+v: %d kinds, %d queues", test.opts, kinds, queues)
		}
	}
}

// The gauges agree with the rows. There are none without a database, and while it is away.
func TestGaugesOfTheDatabase(t *testing.T) {
	t.Parallel()
	reader, opts := newMetrics(droverotel.Options{MaxAge: time.Nanosecond, Timeout: time.Minute})
	tel := newTelemetry(t, opts)
	r := newRig(t, nil)
	if got, _ := collect(t, reader); got["drover.up{}"] != 0 {
		t.Error("drover.up is there although nothing is watched")
	}
	r.exec(t, `insert into jobs (kind, queue, scheduled_at) select 'charge', 'payments', now() - interval '1 h' from generate_series(1, 3)`)
	sup, err := r.client.NewSupervisor(drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: []drover.Worker{drover.Handle(nothing, drover.WorkerOpts{})}})
	if err != nil {
		t.Fatal(err)
	}
	tel.Watch(r.client)
	tel.WatchSupervisor(sup)
	tel.WatchSupervisor(sup)
	got, _ := collect(t, reader)
	expectValues(t, got, map[string]float64{
		"drover.up{}": 1, "drover.jobs{queue=payments,state=available}": 3, "drover.jobs{queue=payments,state=running}": 0,
		"drover.supervisors{state=alive}": 0, "drover.handlers_running{}": 0, "drover.events_dropped{}": 0,
	})
	if age := got["drover.oldest_due{queue=payments}"]; age < 3600 || age > 7200 {
		t.Errorf("the oldest due job is %v s old", age)
	}
	r.exec(t, `alter table jobs rename to jobs_away`)
	got, _ = collect(t, reader)
	expectValues(t, got, map[string]float64{"drover.up{}": 0})
	if _, found := got["drover.jobs{queue=payments,state=available}"]; found {
		t.Error("a gauge of a database that does not answer")
	}
	tel.Watch(nil)
	if got, _ = collect(t, reader); len(got) == 0 || got["drover.up{}"] != 0 {
		t.Error("nothing is watched any more")
	}
}

// docs/tracing.md has a row for each instrument, with its attributes and unit, and for no other. The same is true of the
// attributes of spans.
func TestTablesOfTheDocument(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../docs/tracing.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| `((?:drover|messaging)\\.[\\w.]+)` \\| (?:counter|histogram|gauge) \\|([^|]*)\\|([^|]*)\\|").FindAllStringSubmatch(string(raw), -1) {
		line := row[1] + " " + strings.Trim(row[3], " `")
		for _, attr := range regexp.MustCompile("`([\\w.]+)`").FindAllStringSubmatch(row[2], -1) {
			line += " " + attr[1]
		}
		documented = append(documented, line)
	}
	slices.Sort(documented)

	reader, exported := everything(t)
	_, instruments := collect(t, reader)
	compareWithPrometheus(t, instruments)
	var want []string
	for name, m := range instruments {
		attrs := map[string]bool{}
		for _, set := range sets(m) {
			for _, a := range set.ToSlice() {
				attrs[string(a.Key)] = true
			}
		}
		line := name + " " + m.Unit
		for _, a := range strings.Fields(order(attrs)) {
			line += " " + a
		}
		want = append(want, line)
	}
	slices.Sort(want)
	if len(want) < 25 || !slices.Equal(documented, want) {
		t.Errorf("docs/tracing.md has\n%s\nmeasured are\n%s", strings.Join(documented, "\n"), strings.Join(want, "\n"))
	}

	rows := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([\\w.]+)` \\| (?:send|process|send, process) \\|").FindAllStringSubmatch(string(raw), -1) {
		rows[row[1]] = true
	}
	for attr := range exported {
		if !rows[attr] {
			t.Errorf("docs/tracing.md lacks the attribute %s", attr)
		}
		delete(rows, attr)
	}
	for attr := range rows {
		t.Errorf("no span has the attribute %s", attr)
	}
}

// order lists attributes as the document does. It names the attributes that all instruments of the conventions have only once.
func order(attrs map[string]bool) string {
	var names []string
	for name := range attrs {
		if name != "messaging.system" && name != "messaging.operation.type" && name != "messaging.operation.name" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func sets(m metricdata.Metrics) (all []attribute.Set) {
	switch data := m.Data.(type) {
	case metricdata.Sum[int64]:
		for _, p := range data.DataPoints {
			all = append(all, p.Attributes)
		}
	case metricdata.Sum[float64]:
		for _, p := range data.DataPoints {
			all = append(all, p.Attributes)
		}
	case metricdata.Gauge[float64]:
		for _, p := range data.DataPoints {
			all = append(all, p.Attributes)
		}
	case metricdata.Histogram[float64]:
		for _, p := range data.DataPoints {
			all = append(all, p.Attributes)
		}
	}
	return all
}

// everything gives each instrument a value, and returns all attributes of spans.
func everything(t *testing.T) (reader *sdkmetric.ManualReader, exported map[string]bool) {
	t.Helper()
	var tel *droverotel.Telemetry
	r := newRig(t, func(o *droverotel.Options) {
		reader, *o = newMetrics(*o)
		tel = newTelemetry(t, *o)
	})
	if err := r.client.Pause(t.Context(), drover.QueueScope("paused"), nil, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	// Of over 1,000 queues, a snapshot has the first ones only, so drover.not_seen has a value.
	r.exec(t, `insert into jobs (kind, queue, scheduled_at) select 'old', 'old ' || n, now() - interval '1 h' from generate_series(1, 1001) n`)
	hooks := reflect.ValueOf(tel.Hooks())
	for i := range hooks.NumField() {
		if hook, _ := hooks.Field(i).Interface().(func(context.Context, drover.Event)); hook != nil {
			hook(t.Context(), drover.Event{Queue: "q", Kind: "k", Backoff: 1, Wait: 1, Duration: 1})
		}
	}
	sup, err := r.client.NewSupervisor(drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: []drover.Worker{drover.Handle(nothing, drover.WorkerOpts{})}})
	if err != nil {
		t.Fatal(err)
	}
	tel.Watch(r.client)
	tel.WatchSupervisor(sup)

	id := r.enqueue(t, t.Context(), "snoozes", nil)
	r.enqueue(t, t.Context(), "snoozes", &drover.EnqueueOpts{ID: id})
	_, _ = r.client.Enqueue(t.Context(), work{}, &drover.EnqueueOpts{Priority: 77})
	if _, err := r.client.EnqueueMany(t.Context(), []drover.EnqueueItem{{Args: work{"fails"}}, {Args: work{}}}); err != nil {
		t.Fatal(err)
	}
	r.run(t, r.client, 3, func(_ context.Context, job *drover.Job, w work) error {
		switch w.Do {
		case "snoozes":
			return drover.Snooze(time.Hour)
		case "fails":
			return drover.Discard(errors.New("no"))
		}
		return nil
	})
	exported = map[string]bool{"drover.interrupted": true} // TestInterruptedRunIsNoError
	for _, span := range r.spans.GetSpans() {
		for _, a := range span.Attributes {
			exported[string(a.Key)] = true
		}
	}
	return reader, exported
}

// compareWithPrometheus checks that alerts and dashboards for the module prometheus work here, too: a collector makes the same names
// of drover's own instruments. The conventions have words for the two that are left out.
func compareWithPrometheus(t *testing.T, instruments map[string]metricdata.Metrics) {
	t.Helper()
	raw, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for name, m := range instruments {
		if !strings.HasPrefix(name, "drover.") {
			continue
		}
		prom := strings.ReplaceAll(name, ".", "_")
		if m.Unit == "s" {
			prom += "_seconds"
		}
		switch data := m.Data.(type) {
		case metricdata.Gauge[float64]:
			if m.Unit == "1" {
				prom += "_ratio"
			}
		case metricdata.Sum[int64]:
			prom += "_total"
		case metricdata.Sum[float64]:
			if data.IsMonotonic {
				prom += "_total"
			}
		}
		got = append(got, prom)
	}
	for _, row := range regexp.MustCompile("(?m)^\\| `(drover_\\w+)` \\|").FindAllStringSubmatch(string(raw), -1) {
		if row[1] != "drover_enqueued_total" && row[1] != "drover_run_duration_seconds" {
			want = append(want, row[1])
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("instruments become\n%s\nthe module prometheus has\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
