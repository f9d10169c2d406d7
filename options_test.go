package drover_test

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/internal/store"
)

// every option has a test that fails when the option is ignored. Name the test of a new option here.
func TestEveryOptionHasATest(t *testing.T) {
	t.Parallel()
	named := map[string]string{
		"Config.Logger":       "TestEventsInTheLog",
		"Config.Hooks":        "TestEveryRunHasOneEnd",
		"Config.Middleware":   "TestMiddlewareIsInOrder",
		"Config.Kinds":        "TestBadInputIsRefusedBeforeSQL",
		"Config.MaxArgsBytes": "TestConfigOfAnEnqueue",
		"Config.Redact":       "TestErrorsEntriesAreSanitised",
		"Config.Schema":       "TestASchemaOfItsOwn",

		"SupervisorConfig.Queues":             "TestQueuesAreServedByName",
		"SupervisorConfig.Workers":            "TestHowARunCanEnd",
		"SupervisorConfig.Strategies":         "TestWhoDecidesTheStrategy",
		"SupervisorConfig.Timeout":            "TestWhoDecidesTheTimeout",
		"SupervisorConfig.Lease":              "TestLeaseSetsThePaceOfHeartbeats",
		"SupervisorConfig.PollInterval":       "TestPollInterval",
		"SupervisorConfig.DisableNotify":      "TestDisableNotify",
		"SupervisorConfig.DrainTimeout":       "TestDrainTimeout",
		"SupervisorConfig.CompletedRetention": "TestCompletedRetention",
		"SupervisorConfig.CancelledRetention": "TestCancelledRetention",
		"SupervisorConfig.QuarantineAfter":    "TestDeafRunsConvict",
		"SupervisorConfig.Build":              "TestBuildIsRegistered",
		"SupervisorConfig.RetryBudget":        "TestWhoseBudgetAJobSpends",
		"SupervisorConfig.Periodic":           "TestDeclaredScheduleNeedsItsSupervisor",

		"Queue.Name":        "TestQueuesAreServedByName",
		"Queue.Concurrency": "TestConcurrencyIsReachedAndNotExceeded",
		"Queue.MaxAttempts": "TestWhoDecidesMaxAttempts",
		"Queue.Retry":       "TestWhoDecidesTheStrategy",
		"Queue.RetryBudget": "TestWhoseBudgetAJobSpends",

		"Queue.CompletedRetention":    "TestRetentionOfQueues",
		"Queue.CancelledRetention":    "TestRetentionOfQueues",
		"Queue.DiscardedRetention":    "TestRetentionOfQueues",
		"Queue.ArchiveDiscardedAfter": "TestRetentionOfQueues",
		"Queue.KeepCompleted":         "TestRetentionByCount",
		"Queue.KeepDiscarded":         "TestRetentionByCount",
		"Queue.KeepArchived":          "TestRetentionByCount",

		"WorkerOpts.MaxAttempts":    "TestWhoDecidesMaxAttempts",
		"WorkerOpts.Retry":          "TestWhoDecidesTheStrategy",
		"WorkerOpts.RetryFor":       "TestRetryFor",
		"WorkerOpts.Timeout":        "TestWhoDecidesTheTimeout",
		"WorkerOpts.DiscardOnPanic": "TestHowARunCanEnd",
		"WorkerOpts.RetryIf":        "TestHowARunCanEnd",
		"WorkerOpts.RetryBudget":    "TestWhoseBudgetAJobSpends",
		"WorkerOpts.Cases":          "TestErrorCases",
		"WorkerOpts.FollowUp":       "TestFollowUpOnEveryPath",

		"ErrorCase.Name":        "TestErrorCases",
		"ErrorCase.If":          "TestErrorCases",
		"ErrorCase.Discard":     "TestErrorCases",
		"ErrorCase.Retry":       "TestErrorCases",
		"ErrorCase.MaxAttempts": "TestErrorCases",
		"FollowUp.Kind":         "TestFollowUpOnEveryPath",
		"FollowUp.Queue":        "TestFollowUpOnEveryPath",

		"Middleware.BeginEnqueue": "TestBeginEnqueue",
		"Middleware.Enqueue":      "TestMiddlewareOfEveryEnqueue",
		"Middleware.Run":          "TestMiddlewareOfARun",

		"ArchiveOpts.KeepNewest": "TestArchiveAllButTheNewest",
		"PauseOpts.Until":        "TestAPauseEndsByItself",

		"EnqueueOpts.ID":            "TestTheSameIDIsTheSameJob",
		"EnqueueOpts.Queue":         "TestTheHandlerSeesItsJob",
		"EnqueueOpts.Priority":      "TestPrioritiesInOrder",
		"EnqueueOpts.ScheduledAt":   "TestJobsWaitUntilTheyAreDue",
		"EnqueueOpts.Delay":         "TestJobsWaitUntilTheyAreDue",
		"EnqueueOpts.MaxAttempts":   "TestWhoDecidesMaxAttempts",
		"EnqueueOpts.Retry":         "TestWhoDecidesTheStrategy",
		"EnqueueOpts.Timeout":       "TestWhoDecidesTheTimeout",
		"EnqueueOpts.ExpiresAt":     "TestHowARunCanEnd",
		"EnqueueOpts.RetryUntil":    "TestHowARunCanEnd",
		"EnqueueOpts.DisableNotify": "TestDisableNotifyOfAnEnqueue",
		"Config.DisableNotify":      "TestDisableNotifyOfAnEnqueue",
		"EnqueueOpts.Tags":          "TestTheHandlerSeesItsJob",
		"EnqueueOpts.Metadata":      "TestTheHandlerSeesItsJob",

		"EnqueueOpts.Key":    "TestTheHandlerSeesItsJob",
		"EnqueueOpts.Unique": "TestUniqueKeepsOthersOut",

		"Unique.By":         "TestUniqueBy",
		"Unique.AnyArgs":    "TestUniqueBy",
		"Unique.Queue":      "TestUniqueBy",
		"Unique.Key":        "TestUniqueBy",
		"Unique.Until":      "TestUniqueUntilStarted",
		"Unique.OnConflict": "TestUniqueReplace",

		"RedrivePlan.Filter":         "TestRedrivesShareSlots",
		"RedrivePlan.Rate":           "TestRedrivesShareSlots",
		"RedrivePlan.PerKey":         "TestRedriveCapsKeys",
		"RedrivePlan.KeyFrom":        "TestRedriveCapsKeys",
		"RedrivePlan.Limit":          "TestRedrivePreviewAndLimit",
		"RedrivePlan.ID":             "TestRedriveWithAnID",
		"RedrivePlan.MaxAttempts":    "TestRedriveChangesArgs",
		"RedrivePlan.ArgsPatch":      "TestRedriveChangesArgs",
		"RedrivePlan.Canary":         "TestRedriveCanary",
		"RedrivePlan.CanaryFailures": "TestRedriveCanary",

		"Periodic.Name":       "TestPeriodicRow",
		"Periodic.Schedule":   "TestPeriodicTableOfZones",
		"Periodic.Zone":       "TestPeriodicRow",
		"Periodic.Args":       "TestPeriodicJobHasTheOptions",
		"Periodic.Opts":       "TestPeriodicJobHasTheOptions",
		"Periodic.Jitter":     "TestPeriodicJitterStaysInItsBounds",
		"Periodic.CatchUp":    "TestCatchUp",
		"Periodic.Overlap":    "TestOverlap",
		"Periodic.RunAtStart": "TestRunAtStart",
		"JobEdit.RunNow":      "TestEditOfEachField",
		"JobEdit.ScheduledAt": "TestEditOfEachField",
		"JobEdit.Delay":       "TestEditOfEachField",
		"JobEdit.Priority":    "TestEditOfEachField",
		"JobEdit.Queue":       "TestEditOfEachField",
		"JobEdit.MaxAttempts": "TestEditOfEachField",
		"JobEdit.Retry":       "TestEditOfEachField",
		"JobEdit.ArgsPatch":   "TestEditOfEachField",
		"RunOpts.ID":          "TestRerunWithAnID",
		"RerunPlan.Rate":      "TestRerunMany",
		"RerunPlan.DryRun":    "TestRerunMany",
		"ExplainOpts.Redact":  "TestExplainHidesSecrets",

		"Audit.By":  "TestJobsKeepTheAudit",
		"Audit.Why": "TestJobsKeepTheAudit", "Audit.Seen": "TestTwoPeopleWhoSawTheSame",
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[drover.Filter]()) {
		named["Filter."+field.Name] = "TestEveryKeyOfAFilter" // which has a case for each
	}
	tests := testNames(t)
	for field, test := range named {
		if !tests[test] {
			t.Errorf("%s: there is no %s", field, test)
		}
	}
	for _, of := range []reflect.Type{
		reflect.TypeFor[drover.Config](), reflect.TypeFor[drover.SupervisorConfig](), reflect.TypeFor[drover.Queue](), reflect.TypeFor[drover.WorkerOpts](), reflect.TypeFor[drover.EnqueueOpts](),
		reflect.TypeFor[drover.Filter](), reflect.TypeFor[drover.RedrivePlan](), reflect.TypeFor[drover.ErrorCase](), reflect.TypeFor[drover.FollowUp](),
		reflect.TypeFor[drover.ArchiveOpts](), reflect.TypeFor[drover.PauseOpts](), reflect.TypeFor[drover.Unique](), reflect.TypeFor[drover.Periodic](),
		reflect.TypeFor[drover.JobEdit](), reflect.TypeFor[drover.RunOpts](), reflect.TypeFor[drover.RerunPlan](), reflect.TypeFor[drover.ExplainOpts](), reflect.TypeFor[drover.Audit](), reflect.TypeFor[drover.Middleware](),
	} {
		for i := range of.NumField() {
			field := of.Name() + "." + of.Field(i).Name
			if named[field] == "" {
				t.Errorf("no test is named for %s", field)
			}
			delete(named, field)
		}
	}
	for field := range named {
		t.Errorf("there is no %s", field)
	}
}

// testNames are the test functions of this package and of the engine.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	var files []string
	for _, pattern := range []string{"*_test.go", "internal/engine/*_test.go"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("test files: %v, %v", found, err)
		}
		files = append(files, found...)
	}
	names := map[string]bool{}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range parsed.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				names[f.Name.Name] = true
			}
		}
	}
	return names
}

func doNothing(context.Context, *drover.Job) error { return nil }

// Jobs are claimed from the queues that are named, and from no other.
func TestQueuesAreServedByName(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	other := db.enqueue(t, dyn{kind: "k"}, &drover.EnqueueOpts{Queue: "other"})
	db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{}, {Name: "a"}, {Name: "b"}}, Workers: []drover.Worker{dynWorker("k", drover.WorkerOpts{}, doNothing)}})
	for _, queue := range []string{"", "default", "a", "b"} {
		if e := heard.End(t, db.enqueue(t, dyn{kind: "k"}, &drover.EnqueueOpts{Queue: queue})); e.Queue != queue && queue != "" {
			t.Errorf("event = %+v", e)
		}
	}
	if row := db.EndRow(t, other); row.State != drover.Available || row.ClaimSeq != 0 {
		t.Errorf("a job of another queue: %+v", row)
	}
}

// lower is sooner.
func TestPrioritiesInOrder(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	var want []int
	for _, priority := range []int{9, 1, 5, 3, 9, 1, 2} {
		want = append(want, priority)
		db.enqueue(t, dyn{kind: "k"}, &drover.EnqueueOpts{Priority: priority})
	}
	slices.Sort(want)
	got := make(chan int, len(want))
	db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 1}}, Workers: []drover.Worker{
		dynWorker("k", drover.WorkerOpts{}, func(_ context.Context, job *drover.Job) error { got <- job.Priority; return nil }),
	}})
	for i, priority := range want {
		if p := <-got; p != priority {
			t.Errorf("run %d has priority %d, want %d", i, p, priority)
		}
	}
}

// E-4: a job is not run before its time, and then it is.
func TestJobsWaitUntilTheyAreDue(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: []drover.Worker{dynWorker("k", drover.WorkerOpts{}, doNothing)}})
	for _, opts := range []drover.EnqueueOpts{
		{Delay: 300 * time.Millisecond}, {ScheduledAt: time.Now().Add(300 * time.Millisecond)}, {ScheduledAt: time.Now().Add(-time.Hour)},
	} {
		id := db.enqueue(t, dyn{kind: "k"}, &opts)
		heard.End(t, id)
		early := value[bool](t, db, `select attempted_at < scheduled_at from jobs where id = $1`, id)
		waited := value[float64](t, db, `select extract(epoch from attempted_at - created_at)::float8 from jobs where id = $1`, id)
		if early || opts.Delay > 0 && waited < opts.Delay.Seconds() {
			t.Errorf("%+v: run after %v s", opts, waited)
		}
	}
	if row := db.EndRow(t, db.enqueue(t, dyn{kind: "k"}, &drover.EnqueueOpts{Delay: time.Hour})); row.State != drover.Scheduled {
		t.Errorf("row = %+v", row)
	}
}

// Concurrency is how many jobs run at the same time: all of them, and no more.
func TestConcurrencyIsReachedAndNotExceeded(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	const n = 3
	var running, most atomic.Int64
	met := make(chan struct{})
	db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: n}}, Workers: []drover.Worker{
		dynWorker("k", drover.WorkerOpts{}, func(context.Context, *drover.Job) error {
			now := running.Add(1)
			defer running.Add(-1)
			for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
			}
			if now == n {
				select {
				case <-met:
				default:
					close(met)
				}
			}
			<-met // nobody gets on before all slots are taken
			return nil
		}),
	}})
	receipts, err := db.client.EnqueueMany(t.Context(), slices.Repeat([]drover.EnqueueItem{{Args: dyn{kind: "k"}}}, 100))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range receipts {
		heard.End(t, r.ID)
	}
	if most.Load() != n {
		t.Errorf("%d at once, want %d", most.Load(), n)
	}
}

// The table shows others how long the lease is, and there are six heartbeats in a lease.
func TestLeaseSetsThePaceOfHeartbeats(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newTestDBWith(t, drover.Config{Logger: quiet()})
	db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, Lease: 3 * time.Second, Workers: []drover.Worker{dynWorker("k", drover.WorkerOpts{}, doNothing)}})
	eventually(t, func() bool { // by default the eighth comes after 35 s
		return value[int](t, db, `select count(*) from drover_supervisors where lease_ms = 3000 and beat >= 8`) == 1
	})
}

// countClaims is a tracer that counts claims.
type countClaims struct{ n atomic.Int64 }

func (*countClaims) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (*countClaims) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (*countClaims) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}
func (*countClaims) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}
func (c *countClaims) TraceBatchQuery(_ context.Context, _ *pgx.Conn, q pgx.TraceBatchQueryData) {
	if q.SQL == store.SQLClaim {
		c.n.Add(1)
	}
}

// An idle supervisor looks every PollInterval: by default, without LISTEN, 100 looks would take over a minute.
func TestPollInterval(t *testing.T) {
	t.Parallel()
	slow(t)
	var claims countClaims
	pool := pgtest.NewMigratedPool(t, func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = &claims })
	client, err := drover.New(pool, drover.Config{Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	db := dbOn(pool, client)
	db.run(t, drover.SupervisorConfig{
		Queues: []drover.Queue{{}}, PollInterval: 5 * time.Millisecond, DisableNotify: true, Workers: []drover.Worker{dynWorker("k", drover.WorkerOpts{}, doNothing)},
	})
	eventually(t, func() bool { return claims.n.Load() >= 100 })
}

// Without LISTEN a supervisor says so to nobody and hears nothing, and finds jobs all the same.
func TestDisableNotify(t *testing.T) {
	t.Parallel()
	for _, disabled := range []bool{true, false} {
		var heard harness.EventLog
		seen := harness.NewStatements()
		db := newQuietDB(t).via(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}}, func(c *pgxpool.Config) { c.ConnConfig.Tracer = seen })
		db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, DisableNotify: disabled, Workers: []drover.Worker{dynWorker("k", drover.WorkerOpts{}, doNothing)}})
		heard.End(t, db.enqueue(t, dyn{kind: "k"}, nil))
		// By another's hand: no word reaches this process.
		id := value[string](t, db, `insert into jobs (kind) values ('k') returning id`)
		heard.End(t, id)
		if n := value[int](t, db, `select count(*) from drover_crews`); n == 0 != disabled {
			t.Errorf("DisableNotify %v: %d rows in sleepers", disabled, n)
		}
		listening := func() bool {
			_, n := seen.Since()
			return n > 0
		}
		if disabled {
			if listening() {
				t.Error("a session has sent LISTEN")
			}
		} else {
			eventually(t, listening)
		}
	}
}

// P-5: running jobs have DrainTimeout, not the default of 20 s, and not less.
func TestDrainTimeout(t *testing.T) {
	t.Parallel()
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
	release := make(chan struct{})
	cfg := drover.SupervisorConfig{Queues: []drover.Queue{{}}, DrainTimeout: 30 * time.Millisecond, Workers: []drover.Worker{
		dynWorker("waits", drover.WorkerOpts{}, func(ctx context.Context, _ *drover.Job) error {
			<-ctx.Done()
			return ctx.Err()
		}),
		dynWorker("ends", drover.WorkerOpts{}, func(ctx context.Context, _ *drover.Job) error {
			<-release
			return ctx.Err()
		}),
	}}
	_, stop := db.Start(t, cfg)
	id := db.enqueue(t, dyn{kind: "waits"}, nil)
	heard.Wait(t, id, "started")
	asked := time.Now()
	stop()
	if took := time.Since(asked); took > 15*time.Second {
		t.Errorf("the stop took %v", took)
	}
	if e := heard.End(t, id); e.Name != "released" {
		t.Errorf("event = %+v", e)
	}

	db.exec(t, `delete from jobs`)
	cfg.DrainTimeout = time.Hour
	sup, stop := db.Start(t, cfg)
	id = db.enqueue(t, dyn{kind: "ends"}, nil)
	heard.Wait(t, id, "started")
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stop()
	}()
	eventually(t, drover.EngineOf(sup).Draining.Load)
	close(release)
	<-stopped
	if e := heard.End(t, id); e.Name != "completed" {
		t.Errorf("event = %+v", e)
	}
}

func TestCompletedRetention(t *testing.T) {
	t.Parallel()
	for retention, want := range map[drover.Retention]int{0: 1, drover.KeepForever: 1, drover.KeepFor(time.Hour): 1, drover.DeleteOnCompletion: 0} {
		var heard harness.EventLog
		db := newTestDBWith(t, drover.Config{Logger: quiet(), Hooks: []drover.Hooks{heard.Hooks()}})
		db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, CompletedRetention: retention, Workers: []drover.Worker{dynWorker("k", drover.WorkerOpts{}, doNothing)}})
		id := db.enqueue(t, dyn{kind: "k"}, nil)
		if e := heard.End(t, id); e.Name != "completed" {
			t.Errorf("event = %+v", e)
		}
		if n := value[int](t, db, `select count(*) from jobs where id = $1`, id); n != want {
			t.Errorf("CompletedRetention %v: %d rows left, want %d", retention, n, want)
		}
	}
}

// The supervisor's own retention is for queues that have none.
func TestCancelledRetention(t *testing.T) {
	t.Parallel()
	for retention, want := range map[drover.Retention]int{0: 1, drover.KeepFor(time.Hour): 0, drover.KeepForever: 2} {
		db := newQuietDB(t)
		db.Finished(t, "cancelled", 2*time.Hour)
		db.Finished(t, "cancelled", 48*time.Hour)
		sign := db.Finished(t, "completed", 48*time.Hour)
		db.LaunchPruning(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, CancelledRetention: retention})
		db.waitFor(t, 30*time.Second, `select not exists (select from jobs where id = $1)`, sign)
		if n := value[int](t, db, `select count(*) from jobs where state = 'cancelled'`); n != want {
			t.Errorf("CancelledRetention %v: %d left, want %d", retention, n, want)
		}
	}
}

func TestBuildIsRegistered(t *testing.T) {
	t.Parallel()
	db := newTestDBWith(t, drover.Config{Logger: quiet()})
	db.run(t, drover.SupervisorConfig{Queues: []drover.Queue{{}}, Build: "v1.2.3", Workers: []drover.Worker{dynWorker("k", drover.WorkerOpts{}, doNothing)}})
	eventually(t, func() bool {
		return value[int](t, db, `select count(*) from drover_supervisors s, drover_kinds k where s.build = 'v1.2.3' and k.build = 'v1.2.3' and k.kind = 'k'`) == 1
	})
}

// A field path counts the queues as the caller wrote them.
func TestAnUnknownStrategyIsNamedByItsQueue(t *testing.T) {
	t.Parallel()
	_, err := newTestDB(t).client.NewSupervisor(drover.SupervisorConfig{Workers: harness.DoingNothing(), Queues: []drover.Queue{{Name: "z", Retry: drover.Custom{Name: "missing"}}, {Name: "a"}}})
	var invalid *drover.InvalidError
	if !errors.As(err, &invalid) || invalid.Field != "Queues[0].Retry.Name" {
		t.Errorf("%v", err)
	}
}

func TestBadBudgets(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	for _, tc := range []struct {
		budget drover.RetryBudget
		field  string
	}{
		{drover.RetryBudget{Per: time.Second}, "Retries"},
		{drover.RetryBudget{Discard: true}, "Retries"},
		{drover.RetryBudget{Retries: -1}, "Retries"},
		{drover.RetryBudget{Retries: 1_000_001}, "Retries"},
		{drover.RetryBudget{Retries: 1001, Per: time.Millisecond}, "Retries"},
		{drover.RetryBudget{Retries: 1, Per: time.Microsecond}, "Per"},
		{drover.RetryBudget{Retries: 1, Per: time.Second + 1}, "Per"},
		{drover.RetryBudget{Retries: 1, Per: -time.Second}, "Per"},
		{drover.RetryBudget{Retries: 1, Per: 25 * time.Hour}, "Per"},
		{drover.RetryBudget{Retries: 1, Burst: 2}, "Burst"},
		{drover.RetryBudget{Retries: 1, Burst: -1}, "Burst"},
	} {
		for field, cfg := range map[string]drover.SupervisorConfig{
			"RetryBudget":            {RetryBudget: tc.budget, Queues: []drover.Queue{{}}, Workers: harness.DoingNothing()},
			"Queues[0].RetryBudget":  {Queues: []drover.Queue{{RetryBudget: tc.budget}}, Workers: harness.DoingNothing()},
			"Workers[0].RetryBudget": {Queues: []drover.Queue{{}}, Workers: []drover.Worker{dynWorker("k", drover.WorkerOpts{RetryBudget: tc.budget}, doNothing)}},
		} {
			_, err := db.client.NewSupervisor(cfg)
			var invalid *drover.InvalidError
			if !errors.As(err, &invalid) || invalid.Field != field+"."+tc.field {
				t.Errorf("%+v: %v, want one about %s.%s", tc.budget, err, field, tc.field)
			}
		}
	}
	for _, budget := range []drover.RetryBudget{{Retries: 1_000_000, Per: time.Second}, {Retries: 1000, Per: time.Millisecond, Burst: 1000}, {Retries: 1, Per: 24 * time.Hour}} {
		if _, err := db.client.NewSupervisor(drover.SupervisorConfig{RetryBudget: budget, Queues: []drover.Queue{{}}, Workers: harness.DoingNothing()}); err != nil {
			t.Errorf("%+v: %v", budget, err)
		}
	}
}
