package droverprom_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/fingerprint"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/internal/tier"
	droverprom "github.com/drover-queue/drover/prometheus"
)

// The kinds are named after what becomes of them.
type (
	done     struct{}
	fails    struct{}
	dies     struct{}
	panics   struct{}
	snoozes  struct{}
	unwanted struct{}
	late     struct{}
	stolen   struct{}
	held     struct{}
	idle     struct{}
	parks    struct{}
)

func (done) Kind() string     { return "done" }
func (fails) Kind() string    { return "fails" }
func (dies) Kind() string     { return "dies" }
func (panics) Kind() string   { return "panics" }
func (snoozes) Kind() string  { return "snoozes" }
func (unwanted) Kind() string { return "unwanted" }
func (late) Kind() string     { return "late" }
func (stolen) Kind() string   { return "stolen" }
func (held) Kind() string     { return "held" }
func (idle) Kind() string     { return "idle" }
func (parks) Kind() string    { return "parks" }

func worker[T drover.Args](run func(ctx context.Context, id string) error) drover.Worker {
	return drover.Handle(func(ctx context.Context, job *drover.Job, _ T) error { return run(ctx, job.ID) },
		drover.WorkerOpts{Retry: drover.Constant{Delay: time.Hour}})
}

func returns(err error) func(context.Context, string) error {
	return func(context.Context, string) error { return err }
}

func write(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

func newClient(t *testing.T, pool *pgxpool.Pool, hooks ...drover.Hooks) *drover.Client {
	t.Helper()
	client, err := drover.New(pool, drover.Config{Hooks: hooks})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func enqueue(t *testing.T, client *drover.Client, args drover.Args, opts *drover.EnqueueOpts) {
	t.Helper()
	if _, err := client.Enqueue(t.Context(), args, opts); err != nil {
		t.Fatal(err)
	}
}

// gather returns the value of each series, and the count of each histogram, by its name and its sorted labels.
func gather(t *testing.T, m prometheus.Collector) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(m); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			var labels []string
			for _, l := range metric.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			values[family.GetName()+"{"+strings.Join(labels, ",")+"}"] = metric.GetCounter().GetValue() + metric.GetGauge().GetValue() +
				float64(metric.GetHistogram().GetSampleCount())
		}
	}
	return values
}

// expect compares some of the values.
func expect(t *testing.T, got, want map[string]float64) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if value, found := got[name]; !found || value != want[name] {
			t.Errorf("%s = %v (there: %t), want %v", name, value, found, want[name])
		}
	}
	if t.Failed() {
		for _, name := range slices.Sorted(maps.Keys(got)) {
			t.Log(name, got[name])
		}
	}
}

// Jobs with every outcome that one process can cause run, and the counters agree with the rows.
func TestOutcomesAgreeWithTheRows(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewMigratedPool(t)
	metrics := droverprom.New(droverprom.Options{Timeout: time.Minute})
	ended := make(chan string, 100)
	end := func(_ context.Context, e drover.Event) { ended <- e.Kind }
	client := newClient(t, pool, metrics.Hooks(), drover.Hooks{
		Completed: end, Failed: end, Discarded: end, Snoozed: end, Cancelled: end, Released: end, StaleSettle: end, Rescued: end, Parked: end,
	})
	metrics.Watch(client)
	for range 3 {
		for _, args := range []drover.Args{done{}, fails{}, dies{}, snoozes{}, unwanted{}, late{}, stolen{}, held{}, parks{}} {
			enqueue(t, client, args, nil)
		}
		enqueue(t, client, panics{}, &drover.EnqueueOpts{MaxAttempts: 1})
		enqueue(t, client, idle{}, &drover.EnqueueOpts{Queue: "idle"})
		enqueue(t, client, held{}, &drover.EnqueueOpts{Queue: "narrow"}) // one runs; the others are claimed ahead, or not at all
	}
	// A process that is alive and takes jobs away, and a dead process, which ran a job with one attempt and one with more.
	write(t, pool, `update jobs set expires_at = now() - interval '1 min' where kind = 'late'`)
	write(t, pool, `insert into drover_supervisors (id, lease_ms, queues, beat_at) values ('thief', 3600000, '{}', now())`)
	write(t, pool, `with held as (
			insert into jobs (kind, max_attempts, state, claimed_by, attempt, claim_seq, started_seq, attempted_at)
			values ('crashes', 1, 'running', 'dead', 1, 1, 1, now()), ('freed', 5, 'running', 'dead', 1, 1, null, now()) returning id)
		insert into drover_supervisors (id, lease_ms, queues, slots, in_flight, lost_at)
		select 'dead', 1000, '{default}', '{"default": 2}', array_agg(id), now() from held`)

	write(t, pool, `insert into drover_failure_groups (fingerprint, kind, class, first_seen, last_seen, count, jobs, last_job, policy, park_build)
		values ($1, 'parks', 'error', now(), now(), 1, 1, 'x', 'park', 'B')`, fingerprint.Of("parks", "*errors.errorString", "no", ""))

	running := make(chan bool, 4)
	sup, err := client.NewSupervisor(drover.SupervisorConfig{
		Queues: []drover.Queue{{Name: "default", Concurrency: 50}, {Name: "narrow", Concurrency: 1}}, Build: "B", DrainTimeout: 50 * time.Millisecond,
		Workers: []drover.Worker{
			worker[done](returns(nil)),
			worker[fails](returns(errors.New("no"))),
			worker[parks](returns(errors.New("no"))),
			worker[dies](returns(drover.Discard(errors.New("never")))),
			worker[panics](func(context.Context, string) error { panic("no") }),
			worker[snoozes](returns(drover.Snooze(time.Hour))),
			worker[unwanted](returns(drover.Cancel(errors.New("not wanted")))),
			worker[late](returns(nil)),
			worker[stolen](func(ctx context.Context, id string) error {
				_, err := pool.Exec(ctx, `update jobs set claim_seq = claim_seq + 1, claimed_by = 'thief' where id = $1`, id)
				return err
			}),
			worker[held](func(ctx context.Context, _ string) error {
				running <- true
				<-ctx.Done()
				return ctx.Err()
			}),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	metrics.WatchSupervisor(sup)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	stopped := make(chan error, 1)
	go func() { stopped <- sup.Run(ctx) }()
	for range 4 {
		<-running
	}
	for ends := map[string]int{}; ends["crashes"] == 0 || ends["freed"] == 0 || len(ends) < 11 || sum(ends) < 9*3+2; {
		ends[<-ended]++
	}
	expect(t, gather(t, metrics), map[string]float64{"drover_handlers_running{}": 4, "drover_supervisors_healthy{true}": 1})
	stop()
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	if _, err := client.DiscardMany(t.Context(), drover.Filter{Queue: "idle"}, drover.Audit{}); err != nil {
		t.Fatal(err)
	}

	got := gather(t, metrics)
	want := map[string]float64{
		"drover_dead_letters_total{operator}": 3, "drover_dead_letters_total{refused}": 0,
		"drover_outcomes_total{,discarded,,operator}": 3,
		"drover_wait_seconds{default}":                9 * 3, "drover_backoff_seconds{fails}": 3,
		"drover_enqueued_total{false,done,default}": 3, "drover_run_duration_seconds{done,default}": 3,
		"drover_handlers_running{}": 0, "drover_supervisors_healthy{false}": 0,
	}
	for _, c := range []struct {
		kind, outcome, reason, state string
		jobs                         float64
	}{
		{"done", "completed", "", "completed", 3},
		{"fails", "failed", "error", "retryable", 3},
		{"parks", "parked", "error", "parked", 3},
		{"dies", "discarded", "unrecoverable", "discarded", 3},
		{"panics", "discarded", "attempts_exhausted", "discarded", 3},
		{"snoozes", "snoozed", "", "scheduled", 3},
		{"unwanted", "cancelled", "", "cancelled", 3},
		{"late", "discarded", "expired", "discarded", 3},
		{"stolen", "stale", "", "running", 3},
		{"held", "released", "", "available", 3},
		{"crashes", "discarded", "crashed", "discarded", 1},
		{"freed", "rescued", "crash", "retryable", 1},
	} {
		want[fmt.Sprintf("drover_outcomes_total{%s,%s,default,%s}", c.kind, c.outcome, c.reason)] = c.jobs
		if c.state == "discarded" {
			want["drover_dead_letters_total{"+c.reason+"}"] += c.jobs
		}
		var rows float64
		if err := pool.QueryRow(t.Context(), `select count(*) from jobs where kind = $1 and state = $2 and queue = 'default'`, c.kind, c.state).Scan(&rows); err != nil {
			t.Fatal(err)
		}
		if rows != c.jobs {
			t.Errorf("%v rows of kind %s are %s, want %v", rows, c.kind, c.state, c.jobs)
		}
	}
	expect(t, got, want)
	for _, kind := range []string{"crashes", "freed", "late"} {
		if name := "drover_run_duration_seconds{" + kind + ",default}"; got[name] != 0 {
			t.Errorf("%s = %v, but nobody knows how long it ran", name, got[name])
		}
	}
	// Each run that began has one outcome. The rest are jobs that ended without a run, and runs of the process that died.
	begun, runs := got["drover_wait_seconds{default}"]+got["drover_wait_seconds{narrow}"], 0.0
	for name, value := range got {
		labels, is := strings.CutPrefix(name, "drover_outcomes_total{")
		part := strings.Split(strings.TrimSuffix(labels, "}"), ",") // kind, outcome, queue, reason
		if is && part[2] != "" && part[3] != "expired" && part[3] != "not_started" && part[0] != "crashes" && part[0] != "freed" {
			runs += value
		}
	}
	if begun != runs || begun != 9*3+1 {
		t.Errorf("%v runs began, %v ended", begun, runs)
	}
	if problems, err := testutil.GatherAndLint(registered(t, metrics)); err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}

// run starts a supervisor, watches it, and waits until it works. stop ends it.
func run(t *testing.T, client *drover.Client, metrics *droverprom.Metrics, worker drover.Worker) (sup *drover.Supervisor, stop func()) {
	t.Helper()
	sup, err := client.NewSupervisor(drover.SupervisorConfig{
		Queues: []drover.Queue{{}}, Workers: []drover.Worker{worker}, DrainTimeout: time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	metrics.WatchSupervisor(sup)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- sup.Run(ctx) }()
	for deadline := time.Now().Add(time.Minute); sup.Healthy() != nil; <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Error(sup.Healthy())
			break
		}
	}
	return sup, func() {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// A process that has stopped one supervisor and runs another one works: DroverUnhealthy must not fire until the process ends.
func TestStoppedSupervisorsAreNotUnhealthy(t *testing.T) {
	t.Parallel()
	client := newClient(t, pgtest.NewMigratedPool(t))
	metrics := droverprom.New(droverprom.Options{})
	never, err := client.NewSupervisor(drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: []drover.Worker{worker[done](returns(nil))}})
	if err != nil {
		t.Fatal(err)
	}
	if n, found := gather(t, metrics)["drover_handlers_running{}"]; found {
		t.Errorf("no supervisor is watched, and %v handlers run", n)
	}
	for range 2 { // as after a change of the configuration
		old, stop := run(t, client, metrics, worker[done](returns(nil)))
		expect(t, gather(t, metrics), map[string]float64{"drover_supervisors_healthy{true}": 1, "drover_supervisors_healthy{false}": 0})
		stop()
		for range 2 { // the first scrape lets go of it
			expect(t, gather(t, metrics), map[string]float64{
				"drover_supervisors_healthy{true}": 0, "drover_supervisors_healthy{false}": 0, "drover_events_dropped_total{}": 0,
			})
			metrics.WatchSupervisor(old)
		}
	}
	metrics.WatchSupervisor(never)
	expect(t, gather(t, metrics), map[string]float64{"drover_supervisors_healthy{true}": 0, "drover_supervisors_healthy{false}": 1})
}

// The counters of a supervisor that has stopped stay, and are added once.
func TestCountersOfAStoppedSupervisorStay(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	client := newClient(t, pgtest.NewMigratedPool(t))
	metrics := droverprom.New(droverprom.Options{})
	runs, hold := make(chan struct{}), make(chan struct{})
	defer close(hold)
	sup, stop := run(t, client, metrics, worker[held](func(context.Context, string) error {
		close(runs)
		<-hold
		return nil
	}))
	enqueue(t, client, held{}, nil)
	<-runs
	expect(t, gather(t, metrics), map[string]float64{"drover_handlers_abandoned_total{}": 0, "drover_handlers_running{}": 1})
	stop()
	for range 3 {
		expect(t, gather(t, metrics), map[string]float64{"drover_handlers_abandoned_total{}": 1, "drover_handlers_running{}": 0})
		metrics.WatchSupervisor(sup)
	}
}

func sum(counts map[string]int) (n int) {
	for _, count := range counts {
		n += count
	}
	return n
}

func registered(t *testing.T, m prometheus.Collector) *prometheus.Registry {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(m); err != nil {
		t.Fatal(err)
	}
	return registry
}

// Each event moves its counter, with every job that it is about. Of Hooks only what a gauge shows is left out.
func TestEveryEventIsCounted(t *testing.T) {
	t.Parallel()
	metrics := droverprom.New(droverprom.Options{})
	hooks := reflect.ValueOf(metrics.Hooks())
	shown := []string{"Claimed", "Paused", "Resumed"}
	for i := range hooks.NumField() {
		name := hooks.Type().Field(i).Name
		hook, _ := hooks.Field(i).Interface().(func(context.Context, drover.Event))
		if hook == nil != slices.Contains(shown, name) {
			t.Errorf("%s is counted: %t", name, hook != nil)
		}
		if hook != nil {
			hook(t.Context(), drover.Event{
				Queue: "q", Kind: "k", Count: 3, InTx: true, Duration: time.Second, Wait: time.Second, Backoff: time.Second,
				Class: drover.ClassTimeout, Reason: drover.ReasonTimeBudget,
			})
		}
	}
	want := map[string]float64{
		"drover_enqueued_total{true,k,q}": 1, "drover_wait_seconds{q}": 1, "drover_backoff_seconds{k}": 1,
		"drover_run_duration_seconds{k,q}": 9, "drover_dead_letters_total{time_budget}": 3, "drover_quarantined_total{}": 1,
		"drover_redriven_total{}": 3, "drover_failures_reopened_total{}": 1, "drover_periodic_skipped_total{k,q}": 3,
		"drover_outcomes_total{k,discarded,q,time_budget}": 3,
	}
	for _, outcome := range []string{"completed", "snoozed", "cancelled", "released", "stale"} {
		want["drover_outcomes_total{k,"+outcome+",q,}"] = 3
	}
	for _, outcome := range []string{"failed", "parked", "rescued"} {
		want["drover_outcomes_total{k,"+outcome+",q,timeout}"] = 3
	}
	expect(t, gather(t, metrics), want)
}

// Once its series are there, an event allocates nothing: it is on the way of every job.
//
//nolint:paralleltest // it counts allocations
func TestAnEventAllocatesNothing(t *testing.T) {
	hooks := droverprom.New(droverprom.Options{}).Hooks()
	e := drover.Event{Queue: "q", Kind: "k", Duration: time.Second, Wait: time.Second, InTx: true}
	ctx := t.Context()
	for name, hook := range map[string]func(context.Context, drover.Event){"enqueued": hooks.Enqueued, "started": hooks.Started, "completed": hooks.Completed} {
		hook(ctx, e)
		if n := testing.AllocsPerRun(100, func() { hook(ctx, e) }); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// Names from outside cannot fill Prometheus.
func TestLabelsAreBounded(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		opts          droverprom.Options
		kinds, queues int
	}{
		{droverprom.Options{}, 1000, 100},
		{droverprom.Options{MaxKinds: 7, MaxQueues: 2}, 7, 2},
	} {
		metrics := droverprom.New(test.opts)
		hooks := metrics.Hooks()
		var all sync.WaitGroup
		for part := range 5 {
			all.Go(func() {
				for i := range 1000 {
					e := drover.Event{Queue: fmt.Sprintf("queue %d", i%200), Kind: fmt.Sprintf("kind %d", part*1000+i)}
					hooks.Failed(t.Context(), e)
					hooks.Started(t.Context(), e)
				}
			})
		}
		all.Wait()
		hooks.Completed(t.Context(), drover.Event{Kind: "\xff", Queue: "q"})
		kinds, queues, total := 0, 0, 0.0
		for name, value := range gather(t, metrics) {
			switch {
			case strings.HasPrefix(name, "drover_backoff_seconds"):
				kinds, total = kinds+1, total+value
			case strings.HasPrefix(name, "drover_wait_seconds"):
				queues++
			}
		}
		if kinds != test.kinds+1 || queues != test.queues+1 || total != 5000 {
			t.Errorf("%+v: %d kinds, %d queues, %v events", test.opts, kinds, queues, total)
		}
	}
	hooks := droverprom.New(droverprom.Options{}).Hooks()
	hooks.Completed(t.Context(), drover.Event{Kind: "\xff", Queue: "\xff"}) // Prometheus takes UTF-8 only
}

func TestOptionsOfHistograms(t *testing.T) {
	t.Parallel()
	metrics := droverprom.New(droverprom.Options{
		DurationBuckets: []float64{1, 2}, WaitBuckets: []float64{1, 2, 3}, BackoffBuckets: []float64{1}, NativeHistograms: true,
	})
	metrics.Hooks().Failed(t.Context(), drover.Event{Duration: time.Second, Backoff: time.Second})
	metrics.Hooks().Started(t.Context(), drover.Event{Wait: time.Second})
	families, err := registered(t, metrics).Gather()
	if err != nil {
		t.Fatal(err)
	}
	buckets := map[string]int{}
	for _, family := range families {
		if h := family.GetMetric()[0].GetHistogram(); h != nil {
			buckets[family.GetName()] = len(h.GetBucket())
			if len(h.GetPositiveSpan()) == 0 {
				t.Errorf("%s is not native", family.GetName())
			}
		}
	}
	want := map[string]int{"drover_run_duration_seconds": 2, "drover_wait_seconds": 3, "drover_backoff_seconds": 1}
	if !maps.Equal(buckets, want) {
		t.Errorf("buckets: %v, want %v", buckets, want)
	}
	for _, bad := range []droverprom.Options{
		{MaxKinds: -1}, {MaxQueues: -1}, {MaxAge: -1}, {Timeout: -1}, {WaitBuckets: []float64{2, 1}},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%+v is taken", bad)
				}
			}()
			metrics := droverprom.New(bad)
			metrics.Hooks().Started(t.Context(), drover.Event{}) // buckets are checked when a histogram is first used
		}()
	}
}

// docs/metrics.md has a row for each metric, with its labels, and for no other.
func TestTableOfTheDocument(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(drover_\\w+)` \\|[^|]*\\|([^|]*)\\|").FindAllStringSubmatch(string(raw), -1) {
		labels := regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(row[2], -1)
		name := row[1]
		for _, l := range labels {
			name += " " + l[1]
		}
		got = append(got, name)
	}
	descs := make(chan *prometheus.Desc, 100)
	droverprom.New(droverprom.Options{}).Describe(descs)
	close(descs)
	for desc := range descs {
		parts := regexp.MustCompile(`fqName: "(\w+)".*variableLabels: \{([\w,]*)\}`).FindStringSubmatch(desc.String())
		want = append(want, strings.TrimSpace(parts[1]+" "+strings.ReplaceAll(parts[2], ",", " ")))
	}
	slices.Sort(got)
	slices.Sort(want)
	if len(want) == 0 || !slices.Equal(got, want) {
		t.Errorf("docs/metrics.md has\n%s\nexported are\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
