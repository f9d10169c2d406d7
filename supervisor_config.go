package drover

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"runtime/debug"
	"slices"
	"time"

	"github.com/drover-queue/drover/internal/blame"
	"github.com/drover-queue/drover/internal/pgtext"
)

// tellUnservedFollowUps logs which follow-ups need another supervisor.
func (s *Supervisor) tellUnservedFollowUps(ctx context.Context) {
	queues := s.queues.names()
	for _, kind := range s.kinds {
		f := s.workers[kind].opts.FollowUp
		if f != nil && (s.workers[f.Kind] == nil || !slices.Contains(queues, f.Queue)) {
			s.log.InfoContext(ctx, "this supervisor does not serve the follow-up; another one must",
				slog.String("kind", kind), slog.String("follow_up", f.Kind), slog.String("queue", f.Queue))
		}
	}
}

// SupervisorConfig defines what a supervisor runs, and how. Queues and Workers are required, the
// rest has defaults.
type SupervisorConfig struct {
	// Queues are the queues that the supervisor claims from.
	Queues []Queue

	// Workers are one worker for each kind. Jobs of other kinds are left for other processes.
	Workers []Worker

	// Strategies are additional Customs that single jobs may refer to by name. Those of Workers and
	// Queues need not be listed.
	Strategies []Custom

	// Timeout bounds the runs of workers that set no timeout. Zero means 5 minutes, NoTimeout no limit;
	// under 1 ms is an error.
	Timeout time.Duration

	// Lease is how long this supervisor owns its jobs without a heartbeat before another may rescue
	// them. Zero means 30 s; under 1 s is an error. A long lease survives database outages; a short one
	// frees a dead process' jobs sooner. There are six heartbeats in a lease.
	Lease time.Duration

	// PollInterval is the longest time between two polls by idle supervisors. Those that hear notifications
	// and serve the same queue and kinds share it: one of them polls in each interval. Zero means 5 s, or
	// with DisableNotify 250 ms, and 1 s after 10 s without a job; under 1 ms is an error.
	PollInterval time.Duration

	// DisableNotify makes the supervisor work without LISTEN, and poll more often. Set it behind poolers
	// that refuse LISTEN, or that accept it and pass nothing on, such as PgBouncer in transaction mode.
	// Without it, a supervisor whose LISTEN fails polls every PollInterval and tries LISTEN again.
	DisableNotify bool

	// DrainTimeout is how long a stop waits for running jobs before it cancels them. Zero means 20 s;
	// under 1 ms is an error. If a handler ignores the cancel, its job is handed back after another 3 s.
	// Run returns at most 5 s after the cancel, whatever handlers and database do, and so by default
	// within the 30 s that many platforms allow.
	DrainTimeout time.Duration

	// CompletedRetention is how long completed jobs are kept: KeepFor some time, KeepForever or
	// DeleteOnCompletion. CancelledRetention is how long cancelled jobs are kept: KeepFor some time or
	// KeepForever. Zero means 24 h. A Queue may have its own. Discarded jobs are kept for ever unless
	// their Queue has a setting. Once a minute the supervisor that started first prunes the queues of all.
	CompletedRetention Retention
	CancelledRetention Retention

	// RetryBudget limits the retries of all jobs whose kind and queue have no budget, together. Zero means
	// no budget.
	RetryBudget RetryBudget

	// Periodic are schedules, each of which makes jobs of one kind at its times. Names are unique among all
	// schedules of the database. A schedule ticks while a running supervisor declares it. If two builds
	// declare it differently, the settings of the newer one hold (see Build). Client.SetPeriodic makes
	// schedules at run time. What only the database can tell about them, such as an unknown zone, Run
	// returns as an *InvalidError.
	Periodic []Periodic

	// QuarantineAfter is after how many process deaths a job is discarded, reason crashed, if it ran alone
	// at the last one (docs/crashes.md). Runs that ignore their timeout count as deaths. Zero means 3; it
	// is 3 to 10. Use the same in all processes, because the process that rescues a job decides.
	QuarantineAfter int

	// Build names the version of your program. FailurePark uses it: a build that was not seen before is
	// newer than all others. Zero means the main module's version, from the binary. It is cut to 128
	// bytes.
	Build string
}

// Queue is one queue's settings in this supervisor.
type Queue struct {
	// Name is the queue's name, as in EnqueueOpts.Queue. Zero means "default".
	Name string

	// Concurrency is how many of its jobs this supervisor runs at once. Zero means 10; at most 10,000.
	Concurrency int

	// MaxAttempts applies to jobs and workers that set none. Zero means 20.
	MaxAttempts int

	// Retry applies to jobs and workers that set none. Nil means Exponential{}.
	Retry RetryStrategy

	// RetryBudget limits the retries of this queue's jobs, except kinds with their own budget. Zero
	// means the supervisor's.
	RetryBudget RetryBudget

	// CompletedRetention and CancelledRetention are how long its completed and cancelled jobs are kept, as
	// in SupervisorConfig. Zero means SupervisorConfig's. The setting of the last supervisor to start
	// applies to all, except DeleteOnCompletion, which applies to each by itself.
	CompletedRetention Retention
	CancelledRetention Retention

	// DiscardedRetention is how long its discarded jobs are kept before they are deleted: KeepFor some
	// time or KeepForever. Zero means for ever.
	DiscardedRetention Retention

	// ArchiveDiscardedAfter is how long its discarded jobs stay before they are moved to the archive, from
	// which Client.Restore brings them back. Zero means for ever; under 1 s is an error. It excludes
	// DiscardedRetention.
	ArchiveDiscardedAfter time.Duration
}

// Retention is how long jobs are kept after they have ended: KeepFor some time, or one of the words
// below. It is text, such as "24h0m0s" or "forever", so your own settings can hold it too. The zero
// value means the default of the field.
type Retention string

const (
	// KeepForever keeps jobs for ever.
	KeepForever Retention = "forever"

	// DeleteOnCompletion deletes a job in the statement that completes it. It is the fastest setting. If
	// an enqueue is repeated under the same id after that, it makes a new job (see EnqueueOpts.ID). It is
	// only for completed jobs.
	DeleteOnCompletion Retention = "delete on completion"
)

// KeepFor keeps jobs for d, which is at least 1 s.
func KeepFor(d time.Duration) Retention { return Retention(d.String()) }

// check refuses what is no retention; deletes is whether DeleteOnCompletion is one here.
func (r Retention) check(bad *problems, field string, deletes bool) {
	if r == "" || r == KeepForever || deletes && r == DeleteOnCompletion {
		return
	}
	switch d, err := time.ParseDuration(string(r)); {
	case r == DeleteOnCompletion:
		bad.add(field, "cannot be DeleteOnCompletion, which is for completed jobs")
	case err != nil:
		bad.add(field, "%q is neither a duration such as 24h nor %q", string(r), KeepForever)
	case d < leastRetention:
		bad.add(field, "%v is under %v", d, leastRetention)
	}
}

// interval is the retention as SQL wants it; nil is for ever.
func (r Retention) interval() *string {
	d, err := time.ParseDuration(string(r))
	switch {
	case r == DeleteOnCompletion:
		d = 0
	case err != nil: // KeepForever: others were refused
		return nil
	}
	text := interval(d)
	return &text
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
	cfg.CompletedRetention.check(bad, "CompletedRetention", true)
	cfg.CompletedRetention = cmp.Or(cfg.CompletedRetention, KeepFor(24*time.Hour))
	cfg.CancelledRetention.check(bad, "CancelledRetention", false)
	cfg.CancelledRetention = cmp.Or(cfg.CancelledRetention, KeepFor(24*time.Hour))
	cfg.RetryBudget.fillIn(bad, "RetryBudget")
	if cfg.QuarantineAfter == 0 {
		cfg.QuarantineAfter = blame.QuarantineAfter
	}
	if cfg.QuarantineAfter < blame.QuarantineAfter || cfg.QuarantineAfter > blame.MaxDeaths {
		bad.add("QuarantineAfter", "%d is not %d to %d", cfg.QuarantineAfter, blame.QuarantineAfter, blame.MaxDeaths)
	}
	if cfg.Build == "" {
		if info, ok := debug.ReadBuildInfo(); ok {
			cfg.Build = info.Main.Version
		}
	}
	cfg.Build, _ = pgtext.Sanitize(cfg.Build, maxBuild)
}

func (q *Queue) fillIn(bad *problems, field string) {
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
	q.checkRetention(bad, field)
	q.RetryBudget.fillIn(bad, field+".RetryBudget")
}

// name makes a Custom known by its name to jobs that refer to it. The same one may stand in several places.
func (s *Supervisor) name(bad *problems, field string, strategy RetryStrategy) {
	custom, ok := strategy.(Custom)
	if !ok || custom.Name == "" || custom.Func == nil {
		return
	}
	other, taken := s.strategies[custom.Name]
	if taken && reflect.ValueOf(other.Func).Pointer() != reflect.ValueOf(custom.Func).Pointer() {
		bad.add(field+".Name", "another strategy is named %q", custom.Name)
	}
	s.strategies[custom.Name] = custom
}

// named replaces a Custom that stands for another by its name.
func (s *Supervisor) named(bad *problems, field string, strategy RetryStrategy) RetryStrategy {
	custom, ok := strategy.(Custom)
	if !ok || custom.Func != nil || custom.Name == "" {
		return strategy
	}
	found, ok := s.strategies[custom.Name]
	if !ok {
		bad.add(field+".Name", "no strategy is named %q", custom.Name)
	}
	return found
}

// resolveNames replaces each strategy that is only a name by the one of that name in SupervisorConfig.Strategies.
func (s *Supervisor) resolveNames(bad *problems) {
	for i, q := range s.queues.list {
		q.Retry = s.named(bad, fmt.Sprintf("Queues[%d].Retry", i), q.Retry)
	}
	for kind, w := range s.workers {
		w.opts.Retry = s.named(bad, fmt.Sprintf("the worker of %q: Retry", kind), w.opts.Retry)
		for i := range w.opts.Cases {
			c := &w.opts.Cases[i]
			c.Retry = s.named(bad, fmt.Sprintf("the worker of %q: Cases[%d].Retry", kind, i), c.Retry)
		}
	}
}

const maxBuild = 128 // bytes

// registration is what the tables should say of this supervisor.
func (s *shared) registration(id string, queues []*queueState) *registration {
	host, _ := os.Hostname() // for people; empty will do
	reg := &registration{
		id: id, host: host, build: s.cfg.Build, pid: os.Getpid(), process: s.client.process, lease: s.cfg.Lease, listens: !s.cfg.DisableNotify,
		budgets: s.budgetPolicies(queues), periodic: s.periodic,
	}
	for _, q := range queues {
		reg.queues = append(reg.queues, queuePolicy{q.Name, q.Concurrency, positive(q.MaxAttempts), stored(q.Retry), q.retention()})
	}
	for _, kind := range s.kinds {
		w := s.workers[kind]
		var ms *int64
		if w.opts.Timeout < maxTimeout {
			n := w.opts.Timeout.Milliseconds()
			ms = &n
		}
		policy := kindPolicy{
			kind: kind, maxAttempts: positive(w.opts.MaxAttempts), retry: stored(w.opts.Retry), timeoutMS: ms, argsShape: w.shape,
		}
		if w.opts.FollowUp != nil {
			policy.followUp = *w.opts.FollowUp
		}
		reg.kinds = append(reg.kinds, policy)
	}
	return reg
}

func positive(n int) *int {
	if n > 0 {
		return &n
	}
	return nil
}

// stored is a strategy's public form. A Custom without a name has none: a rescuer uses the default for it.
func stored(strategy RetryStrategy) *string {
	if custom, ok := strategy.(Custom); strategy == nil || ok && custom.Name == "" {
		return nil
	}
	raw, err := encodeStrategy(strategy)
	if err != nil { // it was validated
		return nil
	}
	text := string(raw)
	return &text
}
