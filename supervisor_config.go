package drover

import (
	"cmp"
	"math"
	"reflect"
	"runtime/debug"
	"time"

	"github.com/drover-queue/drover/internal/blame"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/pgtext"
	"github.com/drover-queue/drover/internal/store"
)

// SupervisorConfig are the settings of a supervisor. Queues and Workers are required, all other fields have defaults.
type SupervisorConfig struct {
	// Queues are the queues that the supervisor claims from.
	Queues []Queue

	// Workers handle one kind each. The supervisor leaves jobs of other kinds to other processes.
	Workers []Worker

	// Periodic are schedules, each of which makes jobs of one kind at its times. Names are unique among all schedules of
	// the database. A schedule ticks while a running supervisor declares it. If two builds declare it differently, the
	// settings of the newer build hold (see Build). Client.SetPeriodic makes schedules at run time. If only the database
	// can find a mistake, such as an unknown zone, Run returns an *InvalidError before it stores anything.
	Periodic []Periodic

	// Strategies are more Custom strategies that single jobs may refer to by name. Jobs may also refer to the Customs
	// of Workers and Queues.
	Strategies []Custom

	// Timeout bounds a run, if its worker sets no timeout. Zero means 5 minutes, NoTimeout means none; under 1 ms is an
	// error.
	Timeout time.Duration

	// Lease is how long this supervisor owns its jobs without a heartbeat before another supervisor may rescue them.
	// Zero means 30 s; under 1 s is an error. A long lease survives database outages; a short one frees a dead process'
	// jobs sooner. The supervisor sends a heartbeat six times a lease.
	Lease time.Duration

	// PollInterval is how long an idle supervisor waits at most before it looks for jobs again. Zero means 5 s. With
	// DisableNotify, zero means 250 ms, and 1 s once the supervisor has found no job for 10 s. Under 1 ms is an error.
	PollInterval time.Duration

	// DisableNotify turns LISTEN off, at the price of more polls. Use it behind a pooler that refuses LISTEN, or that
	// accepts it and passes no notification on, such as PgBouncer in transaction mode. Without DisableNotify, a supervisor
	// whose LISTEN fails polls every PollInterval and tries LISTEN again.
	DisableNotify bool

	// DrainTimeout is how long a stop waits for running jobs before it cancels their contexts. Zero means 20 s, under 1 ms
	// is an error. Handlers that ignore the cancel have another 3 s; then their jobs are released. Run returns at most 5 s
	// after the cancel, whatever handlers and database do. So with the default a stop ends within the 30 s that many
	// platforms allow.
	DrainTimeout time.Duration

	// CompletedRetention and CancelledRetention are how long completed and cancelled jobs are kept. Zero means
	// KeepFor(24 * time.Hour); under 1 s is an error. Only CompletedRetention may be DeleteOnCompletion. A Queue may
	// have its own settings. Discarded jobs are never deleted unless their Queue sets DiscardedRetention. The
	// supervisor that started first deletes the old jobs of all supervisors' queues, once a minute.
	CompletedRetention Retention
	CancelledRetention Retention

	// RetryBudget is one budget for all jobs whose kind and queue have none. Zero means no budget.
	RetryBudget RetryBudget

	// QuarantineAfter is how many processes must die while a job runs before drover discards the job, reason crashed. The
	// job must also have been the only job that had started in the last process that died. If processes often die without
	// this job, the discard takes more deaths. Ten deaths are enough in any case; each redrive allows ten more. Zero means
	// 3; 3 to 10. A run that ignores its timeout counts as a death. The supervisor that rescues the job uses its own
	// setting, so the setting should be the same in all processes.
	QuarantineAfter int

	// Build names the running version of your program. drover stores it with kinds, supervisors and schedules, and
	// compares it for FailurePark. A version that drover has not seen before counts as newer than all others. Zero means
	// the version of the main module, from the binary. Longer names are cut to 128 bytes.
	Build string
}

// Queue is one queue's settings in this supervisor.
type Queue struct {
	// Name is the queue's name, as in EnqueueOpts.Queue. Zero means "default".
	Name string

	// Concurrency is how many jobs of the queue run at the same time in this supervisor. Zero means 10; at most 10,000.
	Concurrency int

	// MaxAttempts is for jobs whose own options and whose worker set no MaxAttempts. Zero means 20.
	MaxAttempts int

	// Retry is for jobs whose own options and whose worker set no strategy. Nil means Exponential{}.
	Retry RetryStrategy

	// RetryBudget is for this queue's jobs, except jobs of kinds that have a budget. Zero means no budget.
	RetryBudget RetryBudget

	// CompletedRetention and CancelledRetention are how long the queue's completed and cancelled jobs are kept. Zero
	// means the setting of SupervisorConfig. Values that SupervisorConfig refuses are errors here, too. The settings
	// of the supervisor that started last hold for the queue in all processes. DeleteOnCompletion is the exception:
	// each supervisor follows its own setting.
	CompletedRetention Retention
	CancelledRetention Retention

	// DiscardedRetention is how long the queue's discarded jobs are kept before they are deleted. Zero means KeepForever,
	// under 1 s is an error.
	DiscardedRetention Retention

	// ArchiveDiscardedAfter is how long the queue's discarded jobs stay before they are moved to the archive, where
	// Client.Restore finds them. Zero means for ever, under 1 s is an error. Do not set it together with
	// DiscardedRetention.
	ArchiveDiscardedAfter time.Duration

	// KeepCompleted is how many completed jobs of each kind are kept at most. The jobs that ended last are kept.
	// Earlier jobs are deleted, about once a minute. CompletedRetention applies as well. Zero keeps all; 1 to 100,000.
	// Do not set it together with DeleteOnCompletion.
	KeepCompleted int

	// KeepDiscarded is how many of the queue's discarded jobs of each kind stay in the table jobs at most. The jobs that
	// ended last stay. Earlier jobs are moved to the archive. DiscardedRetention applies as well. Zero keeps all; 1 to
	// 100,000.
	KeepDiscarded int

	// KeepArchived is how many discarded jobs of each kind stay in the archive at most. The jobs that ended last stay.
	// Earlier jobs are deleted for ever. Zero keeps all; 1 to 100,000.
	KeepArchived int
}

func (cfg *SupervisorConfig) fillIn(bad *problems) {
	defaults := func(field string, d *time.Duration, def, least time.Duration) {
		bad.atLeast(field, *d, least)
		*d = cmp.Or(*d, def)
	}
	poll := 5 * time.Second
	if cfg.DisableNotify {
		poll = 250 * time.Millisecond
	}
	defaults("Timeout", &cfg.Timeout, 5*time.Minute, leastTimeout)
	defaults("Lease", &cfg.Lease, 30*time.Second, time.Second)
	defaults("PollInterval", &cfg.PollInterval, poll, time.Millisecond)
	defaults("DrainTimeout", &cfg.DrainTimeout, 20*time.Second, time.Millisecond)
	bad.retention("CompletedRetention", cfg.CompletedRetention, true)
	bad.retention("CancelledRetention", cfg.CancelledRetention, false)
	cfg.CompletedRetention = cmp.Or(cfg.CompletedRetention, KeepFor(24*time.Hour))
	cfg.CancelledRetention = cmp.Or(cfg.CancelledRetention, KeepFor(24*time.Hour))
	cfg.RetryBudget.fillIn(bad, "RetryBudget")
	if cfg.QuarantineAfter == 0 {
		cfg.QuarantineAfter = blame.DefaultQuarantineAfter
	}
	if cfg.QuarantineAfter < blame.DefaultQuarantineAfter || cfg.QuarantineAfter > blame.MaxDeaths {
		bad.add("QuarantineAfter", "%d is not %d to %d", cfg.QuarantineAfter, blame.DefaultQuarantineAfter, blame.MaxDeaths)
	}
	if cfg.Build == "" {
		if info, ok := debug.ReadBuildInfo(); ok {
			cfg.Build = info.Main.Version
		}
	}
	cfg.Build, _ = pgtext.Sanitize(cfg.Build, maxBuild)
}

// fillIn checks the queue's settings and fills in the defaults. The parameter completed is the supervisor's
// CompletedRetention.
func (q *Queue) fillIn(bad *problems, field string, completed Retention) {
	if q.Name == "" {
		q.Name = "default"
	}
	bad.join(checkName(field+".Name", q.Name))
	switch {
	case q.Concurrency == 0:
		q.Concurrency = 10
	case q.Concurrency < 0 || q.Concurrency > 10_000:
		bad.add(field+".Concurrency", "%d is not 1 to 10,000", q.Concurrency)
	}
	bad.attempts(field+".MaxAttempts", q.MaxAttempts)
	bad.strategy(field+".Retry", q.Retry)
	q.checkRetention(bad, field, completed)
	q.RetryBudget.fillIn(bad, field+".RetryBudget")
}

// register keeps a Custom under its name, for jobs that refer to it. The same Custom may be set in several places.
func (h *handler) register(bad *problems, field string, strategy RetryStrategy) {
	custom, ok := strategy.(Custom)
	if !ok || custom.Name == "" || custom.Func == nil {
		return
	}
	other, taken := h.strategies[custom.Name]
	if taken && reflect.ValueOf(other.Func).Pointer() != reflect.ValueOf(custom.Func).Pointer() {
		bad.add(field+".Name", "another strategy is named %q", custom.Name)
	}
	h.strategies[custom.Name] = custom
}

// resolve returns the strategy. If the strategy is a Custom with a Name and no Func, resolve returns the registered
// Custom of that name.
func (h *handler) resolve(bad *problems, field string, strategy RetryStrategy) RetryStrategy {
	custom, ok := strategy.(Custom)
	if !ok || custom.Func != nil || custom.Name == "" {
		return strategy
	}
	found, ok := h.strategies[custom.Name]
	if !ok {
		bad.add(field+".Name", "no strategy is named %q", custom.Name)
	}
	return found
}

const maxBuild = 128 // bytes

// policy returns the worker's settings in the form that is stored for other processes.
func (w *Worker) policy() store.KindPolicy {
	policy := store.KindPolicy{Kind: w.kind, MaxAttempts: positive(w.opts.MaxAttempts), Retry: stored(w.opts.Retry)}
	if w.opts.Timeout < maxTimeout {
		policy.TimeoutMS = new(w.opts.Timeout.Milliseconds())
	}
	if f := w.opts.FollowUp; f != nil {
		policy.FollowUp, policy.FollowQueue = f.Kind, f.Queue
	}
	return policy
}

// forEngine converts the queue's settings for the engine. The parameter completed is the supervisor's
// CompletedRetention.
func (q *Queue) forEngine(completed Retention) engine.Queue {
	eq := engine.Queue{
		QueuePolicy:     store.QueuePolicy{Name: q.Name, Slots: q.Concurrency, MaxAttempts: positive(q.MaxAttempts), Retry: stored(q.Retry), Keep: q.retention()},
		DeleteCompleted: cmp.Or(q.CompletedRetention, completed) == DeleteOnCompletion,
		Policy:          queueDefaults{q.MaxAttempts, q.Retry},
	}
	if b := appendBudget(nil, store.QueueScope(q.Name), q.RetryBudget); b != nil {
		eq.Budget = &b[0]
	}
	return eq
}

// appendBudget adds a budget to the budgets that a supervisor stores, unless the budget is zero.
func appendBudget(all []store.BudgetPolicy, scope string, b RetryBudget) []store.BudgetPolicy {
	if b.Retries == 0 {
		return all
	}
	return append(all, store.BudgetPolicy{Scope: scope, Retries: b.Retries, Per: b.Per, Burst: b.Burst, Discard: b.Discard})
}

// stored returns a strategy in the form in which the database keeps it. A Custom without a name has no such form, so a
// process that rescues the job uses the default.
func stored(strategy RetryStrategy) *string {
	if custom, ok := strategy.(Custom); strategy == nil || ok && custom.Name == "" {
		return nil
	}
	raw, err := encodeStrategy(strategy)
	if err != nil { // it was validated
		return nil
	}
	return new(string(raw))
}

// Retention is how long jobs that have ended are kept: KeepFor(7 * 24 * time.Hour), KeepForever or DeleteOnCompletion.
// The zero value means the default, which the comment of each field gives.
type Retention time.Duration

const (
	// DeleteOnCompletion deletes a job in the statement that completes it, which is the fastest setting. If you repeat
	// the enqueue with the job's id afterwards, it stores a new job: see EnqueueOpts.ID. Only CompletedRetention may be
	// DeleteOnCompletion. Jobs that a redrive has taken up, and unique jobs whose period is not over, are deleted
	// later.
	DeleteOnCompletion Retention = math.MinInt64

	// KeepForever keeps jobs for ever.
	KeepForever Retention = math.MaxInt64
)

// KeepFor keeps jobs for d after they have ended. If d is under 1 s, NewSupervisor returns an *InvalidError. That
// includes KeepFor(0). To get the default, leave the setting zero. To delete jobs as they complete, use
// DeleteOnCompletion.
func KeepFor(d time.Duration) Retention {
	if d <= 0 {
		return -1
	}
	return Retention(d)
}

// String implements fmt.Stringer.
func (r Retention) String() string {
	switch r {
	case DeleteOnCompletion:
		return "DeleteOnCompletion"
	case KeepForever:
		return "KeepForever"
	}
	return time.Duration(r).String()
}

// leastRetention is the shortest retention, except DeleteOnCompletion.
const leastRetention = time.Second

// retention checks a retention. It accepts DeleteOnCompletion only for completed jobs.
func (p *problems) retention(field string, r Retention, completed bool) {
	switch {
	case r == 0 || r == DeleteOnCompletion && completed:
	case r == DeleteOnCompletion:
		p.add(field, "DeleteOnCompletion is for completed jobs alone")
	case r < 0:
		p.add(field, "is not over 0: KeepFor takes %v or more, and KeepForever keeps all", leastRetention)
	case r < Retention(leastRetention):
		p.add(field, "%v is under %v", r, leastRetention)
	}
}

// interval returns the retention in the form that SQL takes. For DeleteOnCompletion it is 1 µs, so that the
// pruner deletes completed jobs that have stayed in the table.
func (r Retention) interval() string {
	if r == DeleteOnCompletion {
		return pg.Interval(time.Microsecond)
	}
	return pg.Interval(time.Duration(r))
}

// keepFor returns a retention in the form that SQL takes; nil means for ever.
func keepFor(r Retention) *string {
	if r == KeepForever {
		return nil
	}
	return new(r.interval())
}

// retention returns how long the queue's jobs are kept, in the form that SQL takes. A nil field means the setting of
// the supervisor that deletes old jobs.
func (q *Queue) retention() store.Retention {
	own := func(r Retention) *string { // KeepForever is a setting, too, and overrides the setting of the supervisor
		if r == 0 {
			return nil
		}
		return new(r.interval())
	}
	return store.Retention{
		Completed: own(q.CompletedRetention), Cancelled: own(q.CancelledRetention), Discarded: own(q.DiscardedRetention),
		Archived:      own(Retention(q.ArchiveDiscardedAfter)),
		KeepCompleted: positive(q.KeepCompleted), KeepDiscarded: positive(q.KeepDiscarded), KeepArchived: positive(q.KeepArchived),
	}
}

// mostKept bounds KeepCompleted, KeepDiscarded and KeepArchived, because the pruner has the end times of all these jobs
// in memory.
const mostKept = 100_000

// checkRetention checks how long the queue's jobs are kept.
func (q *Queue) checkRetention(bad *problems, field string, completed Retention) {
	bad.retention(field+".CompletedRetention", q.CompletedRetention, true)
	bad.retention(field+".CancelledRetention", q.CancelledRetention, false)
	bad.retention(field+".DiscardedRetention", q.DiscardedRetention, false)
	bad.atLeast(field+".ArchiveDiscardedAfter", q.ArchiveDiscardedAfter, leastRetention)
	if q.DiscardedRetention > 0 && q.ArchiveDiscardedAfter > 0 {
		bad.add(field+".ArchiveDiscardedAfter", "contradicts DiscardedRetention: a discarded job is archived or deleted")
	}
	for _, k := range []struct {
		name string
		n    int
	}{{"KeepCompleted", q.KeepCompleted}, {"KeepDiscarded", q.KeepDiscarded}, {"KeepArchived", q.KeepArchived}} {
		if k.n < 0 || k.n > mostKept {
			bad.add(field+"."+k.name, "%d is not 1 to %d", k.n, mostKept)
		}
	}
	if q.KeepCompleted > 0 && cmp.Or(q.CompletedRetention, completed) == DeleteOnCompletion {
		bad.add(field+".KeepCompleted", "contradicts DeleteOnCompletion: no completed job is kept")
	}
}
