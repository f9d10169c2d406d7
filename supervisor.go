package drover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"reflect"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drover-queue/drover/internal/pgtext"
)

// Retention words for SupervisorConfig.
const (
	// DeleteOnCompletion deletes a job in the statement that completes it: the fastest way. An enqueue that is repeated
	// under its id after that makes a new job (EnqueueOpts.ID). It is a word for CompletedRetention alone.
	DeleteOnCompletion time.Duration = 1

	// KeepCompleted keeps completed jobs for ever, and as CancelledRetention cancelled ones.
	KeepCompleted time.Duration = math.MaxInt64
)

// SupervisorConfig says what a supervisor runs, and how. Queues and Workers are needed, the rest has defaults.
type SupervisorConfig struct {
	// Queues are those it claims from.
	Queues []Queue

	// Workers handle the kinds it knows, one worker a kind. Jobs of other kinds are left for other processes.
	Workers []Worker

	// Strategies are Customs that single jobs may refer to by name, besides those of Workers and Queues.
	Strategies []Custom

	// Timeout bounds a run of workers that set none. Zero means 5 minutes, NoTimeout none; under 1 ms is an
	// error.
	Timeout time.Duration

	// Lease is how long this supervisor owns its jobs without a heartbeat before another may rescue them. Zero
	// means 30 s; under 1 s is an error. Long survives database outages, short frees a dead process' jobs. It
	// beats six times a lease.
	Lease time.Duration

	// PollInterval is the longest an idle supervisor goes without looking. Zero means 5 s, or with DisableNotify
	// 250 ms, and 1 s once it has found nothing for 10 s; under 1 ms is an error.
	PollInterval time.Duration

	// DisableNotify does without LISTEN, at the price of more polls: for poolers that refuse it, or that take it and
	// pass nothing on, such as PgBouncer in transaction mode. By itself a supervisor whose LISTEN fails goes on polling
	// every PollInterval and tries again.
	DisableNotify bool

	// DrainTimeout is how long a stop waits for running jobs before it cancels them. Zero means 20 s,
	// under 1 ms is an error. Handlers that ignore that have another 3 s, then their jobs are handed back. Run returns at
	// most 5 s after the cancel, whatever handlers and database do, and so within the 30 s that many platforms give.
	DrainTimeout time.Duration

	// CompletedRetention is how long completed jobs are kept, CancelledRetention cancelled ones. Zero means 24 h;
	// under 1 s is an error, but for DeleteOnCompletion, which is for completed jobs alone; see also KeepCompleted. A
	// Queue may have its own. Discarded jobs are never pruned unless their Queue says so. The supervisor that started
	// first prunes, once a minute, the queues of all.
	CompletedRetention time.Duration
	CancelledRetention time.Duration

	// RetryBudget is for jobs whose kind and queue have none, all of them together. Zero means no budget.
	RetryBudget RetryBudget

	// QuarantineAfter is how many process deaths convict a job, the last one suffered with nothing beside it: it is
	// discarded, reason crashed. Zero means 3; 3 to 10. Runs deaf to their timeout count as deaths. Should be the
	// same in all processes: who rescues decides.
	QuarantineAfter int

	// Build names the running version, for kinds, supervisors, and FailurePark: one that was not seen before is newer
	// than all others. Zero means the main module's, from the binary. Cut to 128 bytes.
	Build string
}

// Queue is one queue's settings in this supervisor.
type Queue struct {
	// Name as in EnqueueOpts.Queue. Zero means "default".
	Name string

	// Concurrency is how many of its jobs run at once here. Zero means 10; at most 10,000.
	Concurrency int

	// MaxAttempts is for jobs and workers that set none. Zero means 20.
	MaxAttempts int

	// Retry is for jobs and workers that set none. Nil means Exponential{}.
	Retry RetryStrategy

	// RetryBudget is for this queue's jobs, but for kinds that have one. Zero means no budget.
	RetryBudget RetryBudget

	// CompletedRetention and CancelledRetention are how long its jobs are kept that ended so. Zero means
	// SupervisorConfig's; bounds and words are those there. What the last supervisor to start said of a queue holds for
	// all, but for DeleteOnCompletion, which each does for itself.
	CompletedRetention time.Duration
	CancelledRetention time.Duration

	// DiscardedRetention is how long its discarded jobs are kept before they are deleted. Zero means for ever, under
	// 1 s is an error.
	DiscardedRetention time.Duration

	// ArchiveDiscardedAfter is how long its discarded jobs stay before they are moved to the archive, where
	// Client.Restore finds them. Zero means for ever, under 1 s is an error. It excludes DiscardedRetention.
	ArchiveDiscardedAfter time.Duration
}

// Supervisor claims jobs and runs their workers. It uses three connections of its own beside the pool's, made
// with the pool's settings and hooks (docs/configuration.md lists them), so that handlers that take every pooled one
// starve neither heartbeat nor settle.
type Supervisor struct {
	client     *Client
	cfg        SupervisorConfig
	log        *slog.Logger
	workers    map[string]*Worker
	kinds      []string
	strategies map[string]Custom
	now        func() time.Time // the process' clock: local waits only

	restInterval time.Duration // the poll interval after restAfter

	changing sync.Mutex    // held while a queue is added or removed, round trip included
	queuesMu sync.Mutex    // held for moments: the heartbeat must not wait for a round trip of others
	queues   []*queueState // replaced, never changed in place
	started  bool          // they have workers
	closed   bool          // their buffers are closed: no queue may be added

	lease      atomic.Pointer[lease]
	inFlight   runSet // handlers at work
	claimer    *claimer
	settler    *settler
	control    *control
	redriver   *redriver
	reporter   reporter
	quiet      sparingly
	outage     outage
	pruner     atomic.Bool // this supervisor's turn to prune
	pruneEvery time.Duration
	budgets    atomic.Pointer[[]string] // scopes of the retry budgets there are
	draining   atomic.Bool
	solo       atomic.Pointer[soloOrder] // this supervisor's turn to run strong suspects; nil: it is not
	stopNow    chan struct{}
	stopOnce   sync.Once
	ran        atomic.Bool

	abandoned atomic.Int64
	slots     sync.WaitGroup // one for each worker; abandoned ones leave theirs to others
}

// Supervisor checks the configuration and returns a supervisor that runs nothing yet. Every mistake is told at
// once, as *InvalidError values joined.
func (c *Client) Supervisor(cfg SupervisorConfig) (*Supervisor, error) {
	var bad problems
	s := &Supervisor{
		client: c, log: c.log, now: time.Now, workers: map[string]*Worker{}, strategies: map[string]Custom{},
		stopNow: make(chan struct{}), pruneEvery: time.Minute,
	}
	rests := cfg.DisableNotify && cfg.PollInterval == 0
	cfg.fillIn(&bad)
	s.cfg, s.restInterval = cfg, cfg.PollInterval
	if rests {
		s.restInterval = time.Second
	}
	if len(cfg.Queues) == 0 {
		bad.add("Queues", "is empty: nothing to claim from")
	}
	if len(cfg.Workers) == 0 {
		bad.add("Workers", "is empty: nothing could run")
	}
	for i, strategy := range cfg.Strategies {
		bad.strategy(fmt.Sprintf("Strategies[%d]", i), strategy)
		s.name(&bad, fmt.Sprintf("Strategies[%d]", i), strategy)
	}
	seen := map[string]bool{}
	for i, q := range cfg.Queues {
		field := fmt.Sprintf("Queues[%d]", i)
		q.fillIn(&bad, field)
		if seen[q.Name] {
			bad.add(field+".Name", "%q is there twice", q.Name)
		}
		seen[q.Name] = true
		s.name(&bad, field+".Retry", q.Retry)
		s.queues = append(s.queues, newQueueState(q))
	}
	for i := range cfg.Workers {
		w := cfg.Workers[i]
		field := fmt.Sprintf("Workers[%d]", i)
		w.validate(&bad, field, cfg.Timeout)
		c.checkFollowUp(&bad, field, &w)
		if s.workers[w.kind] != nil && w.kind != "" {
			bad.add(field, "kind %q has a worker already", w.kind)
		}
		s.name(&bad, field+".Retry", w.opts.Retry)
		for j := range w.opts.Cases {
			s.name(&bad, fmt.Sprintf("%s.Cases[%d].Retry", field, j), w.opts.Cases[j].Retry)
		}
		s.workers[w.kind] = &w
		s.kinds = append(s.kinds, w.kind)
	}
	for i, q := range s.queues {
		q.Retry = s.named(&bad, fmt.Sprintf("Queues[%d].Retry", i), q.Retry)
	}
	for kind, w := range s.workers {
		w.opts.Retry = s.named(&bad, fmt.Sprintf("the worker of %q: Retry", kind), w.opts.Retry)
		for i := range w.opts.Cases {
			c := &w.opts.Cases[i]
			c.Retry = s.named(&bad, fmt.Sprintf("the worker of %q: Cases[%d].Retry", kind, i), c.Retry)
		}
	}
	slices.Sort(s.kinds)
	slices.SortFunc(s.queues, func(a, b *queueState) int { return cmp.Compare(a.Name, b.Name) })
	if err := bad.err(); err != nil {
		return nil, err
	}
	s.claimer, s.settler, s.control, s.redriver = newClaimer(s), newSettler(s), newControl(s), newRedriver(s)
	s.claimer.link.again, s.settler.link.again = s.goneBack, s.claimer.audit.reconnected
	return s, nil
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
	bad.completedRetention("CompletedRetention", cfg.CompletedRetention)
	cfg.CompletedRetention = cmp.Or(cfg.CompletedRetention, 24*time.Hour)
	defaults("CancelledRetention", &cfg.CancelledRetention, 24*time.Hour, leastRetention)
	cfg.RetryBudget.fillIn(bad, "RetryBudget")
	if cfg.QuarantineAfter == 0 {
		cfg.QuarantineAfter = defaultQuarantineAfter
	}
	if cfg.QuarantineAfter < defaultQuarantineAfter || cfg.QuarantineAfter > maxDeaths {
		bad.add("QuarantineAfter", "%d is not %d to %d", cfg.QuarantineAfter, defaultQuarantineAfter, maxDeaths)
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

// Run claims and runs jobs until ctx is done, then drains: it claims no more, hands back what has not started,
// waits up to DrainTimeout for what runs, cancels the rest with cause ErrShutdown and hands that back; jobs with a
// single attempt it discards instead. It returns nil after a stop, at most DrainTimeout and 5 s after ctx is done. It returns an error only if it could not
// start for something that stays as it is: ErrNotMigrated, ErrReadOnly, ErrServerTooOld, ErrPooler, an *InvalidError of
// a hook of the pool's, or the server's, such as that of a wrong password. What a database gets over is waited for, at
// the start as later: a server that refuses connections or has none left, a lock that is held too long. A Supervisor
// runs once.
//
// It returns only after every goroutine it started has, but for handlers that ignored their context:
//
//	claim   ×1  takes jobs; stops with ctx
//	work    ×n  a queue's Concurrency; stops when its queue is closed and its job has ended
//	settle  ×1  records outcomes; stops when claiming has and all is settled
//	control ×1  heartbeat, notifications, rescue, sweeps; stops after settle
//	watch   ×1  finds handlers deaf to their timeout; stops after settle
//	prune   ×1  deletes or archives old jobs that have ended; stops with ctx
//	redrive ×1  makes dead jobs due at a pace, while there is a redrive; stops with ctx
//	report  ×1  calls hooks; stops when all events are told
func (s *Supervisor) Run(ctx context.Context) error {
	if s.ran.Swap(true) {
		return errors.New("drover: a Supervisor runs once; make another")
	}
	base := context.WithoutCancel(ctx)
	if err := s.start(ctx, base); err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // stopped before it began
		}
		return err
	}
	s.client.running.add(s)
	defer s.client.running.remove(s)
	claiming, stopClaiming := context.WithCancel(ctx)
	defer stopClaiming()
	working, stopWorking := context.WithCancel(base)
	defer stopWorking()
	finishing, giveUp := context.WithCancel(base)
	defer giveUp()

	var reporting, claimingToo, whileWorking, settling sync.WaitGroup
	reporting.Go(func() { s.reporter.run(base, s.client) })
	claimingToo.Go(func() { s.prune(claiming) })
	claimingToo.Go(func() { s.redriver.run(claiming) })
	claimingToo.Go(func() { s.claimer.run(claiming, finishing) })
	whileWorking.Go(func() { s.control.run(working) })
	whileWorking.Go(func() { s.watch(working) })
	s.startQueues()
	settling.Go(func() { s.settler.run(finishing, s.claimer.ended) })
	s.log.InfoContext(ctx, "supervisor started", slog.String("supervisor", s.lease.Load().id),
		slog.Int("queues", len(s.queueStates())), slog.Int("workers", len(s.workers)))
	s.tellUnservedFollowUps(ctx)

	<-ctx.Done()
	s.draining.Store(true)
	ending, cancel := context.WithDeadline(base, s.drain(base, giveUp))
	defer cancel()
	claimingToo.Wait()
	settling.Wait()
	s.slots.Wait()
	stopWorking()
	whileWorking.Wait()
	if s.settler.book.len() == 0 && s.claimer.doubt == nil { // else our row tells a rescuer what had started
		s.control.end(ending)
	}
	s.reporter.close()
	reporting.Wait()
	s.log.InfoContext(base, "supervisor stopped", slog.String("supervisor", s.lease.Load().id))
	return nil
}

// StopNow makes a Run that is stopping cancel its running jobs at once instead of draining: for a second signal.
func (s *Supervisor) StopNow() { s.stopOnce.Do(func() { close(s.stopNow) }) }

const maxBuild = 128 // bytes

// What a stop takes after the running jobs were cancelled, whatever the database does: endPart in all.
const (
	handBack   = 3 * time.Second // until jobs are handed back over their handlers' heads
	lastSettle = time.Second     // for the last outcomes: a database that is away must not keep the process
	endPart    = 5 * time.Second // the rest is for connections to close, and to sign off
)

var errIgnoredStop = errors.New("the handler has not returned since")

// drain waits for the running jobs, then cancels them, then gives up on them. It returns when the rest must have ended.
func (s *Supervisor) drain(ctx context.Context, giveUp func()) (end time.Time) {
	idle := s.settler.idle
	timer := time.NewTimer(s.cfg.DrainTimeout)
	defer timer.Stop()
	select {
	case <-idle:
		return time.Now().Add(endPart)
	case <-timer.C:
	case <-s.stopNow:
	}
	end = time.Now().Add(endPart)
	s.lease.Load().cancel(ErrShutdown)
	timer.Reset(handBack)
	select {
	case <-idle:
		return end
	case <-timer.C:
	}
	for _, r := range s.inFlight.all() {
		if r.end() {
			s.abandoned.Add(1)
			s.log.WarnContext(ctx, "handler ignores its cancelled context, job given up", slog.Any("job", r.job))
			s.settler.settle(r.cutShort(errIgnoredStop, nil))
			s.slots.Done()
		}
	}
	timer.Reset(lastSettle)
	select {
	case <-idle:
	case <-timer.C:
		giveUp()
		s.log.ErrorContext(ctx, "outcomes could not be recorded, others will rescue the jobs", slog.Int("count", s.settler.book.len()))
	}
	return end
}

// start checks the server and registers. What the database may get over by itself is tried again until ctx is done.
func (s *Supervisor) start(ctx, base context.Context) error {
	s.control.base = base
	starting := trouble{means: "this supervisor does not run yet"}
	for {
		err := s.tryStart(ctx, base)
		if err == nil {
			starting.over(ctx, s)
			return nil
		}
		s.control.link.close(base)
		if ctx.Err() == nil && temporary(err) {
			starting.failed(ctx, s, "starting", err)
			timer := time.NewTimer(starting.until.Sub(s.now()))
			select {
			case <-timer.C:
				continue
			case <-ctx.Done():
				timer.Stop()
			}
		}
		s.control.endStrays(base)
		return err
	}
}

const (
	startTimeout  = 30 * time.Second // of one try
	startPatience = 2 * time.Second  // for a registration under way when the supervisor is to stop
)

// tryStart lets a registration end that is under way when ctx is done: cut off, it could be committed later all the same,
// as the row of a supervisor that does not exist.
func (s *Supervisor) tryStart(ctx, base context.Context) error {
	checking, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := s.client.store.checkOn(checking, &s.control.link); err != nil {
		return err
	}
	registering, cancel := context.WithTimeout(base, startTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		timer := time.NewTimer(startPatience)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel()
		case <-registering.Done():
		}
	})()
	s.changing.Lock()
	defer s.changing.Unlock()
	if err := s.control.register(registering); err != nil {
		return fmt.Errorf("register supervisor: %w", err)
	}
	return nil
}

// startQueues starts the workers of all queues.
func (s *Supervisor) startQueues() {
	s.queuesMu.Lock()
	defer s.queuesMu.Unlock()
	s.started = true
	for _, q := range s.queues {
		s.startQueue(q)
	}
}

// startQueue starts a queue's workers.
func (s *Supervisor) startQueue(q *queueState) {
	s.slots.Add(q.Concurrency)
	for range q.Concurrency {
		s.startWorker(q)
	}
}

// startWorker starts one in a free slot, also in that of one that an abandoned handler or runtime.Goexit took.
func (s *Supervisor) startWorker(q *queueState) {
	go s.workOn(q)
}

// workOn runs jobs of one queue until it is closed.
func (s *Supervisor) workOn(q *queueState) {
	for {
		r, ok := q.buffer.take()
		if !ok {
			s.slots.Done()
			return
		}
		if r.lease.ended.Load() { // it may be someone else's before its handler could notice
			r.finish()
			s.handBack([]*run{r})
			continue
		}
		if !s.runJob(r) {
			return
		}
	}
}

// watchInterval is how exactly deaf handlers are noticed.
const watchInterval = 100 * time.Millisecond

// watch frees the slots of handlers that ignore the end of their context after their timeout.
func (s *Supervisor) watch(ctx context.Context) {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, r := range s.inFlight.all() {
			if r.deaf(s.now()) && r.end() {
				s.abandoned.Add(1)
				s.log.WarnContext(ctx, "handler ignores its timeout, slot freed", slog.Any("job", r.job), slog.Duration("timeout", r.timeout))
				s.settler.settle(r.abandonedOutcome())
				s.startWorker(r.queue)
			}
		}
	}
}

// AddQueue starts claiming from another queue. Errors: *InvalidError for a mistake in q, ErrShutdown.
func (s *Supervisor) AddQueue(ctx context.Context, q Queue) error {
	var bad problems
	q.fillIn(&bad, "Queue")
	s.changing.Lock()
	defer s.changing.Unlock()
	s.queuesMu.Lock()
	old, closed := s.queues, s.closed
	s.queuesMu.Unlock()
	if closed {
		return ErrShutdown
	}
	for _, other := range old {
		if other.Name == q.Name {
			bad.add("Queue.Name", "%q is served already", q.Name)
		}
	}
	if err := bad.err(); err != nil {
		return err
	}
	state := newQueueState(q)
	queues := append(slices.Clone(old), state)
	slices.SortFunc(queues, func(a, b *queueState) int { return cmp.Compare(a.Name, b.Name) })
	l := s.lease.Load()
	if l != nil {
		reg := s.registration(l.id, queues)
		if err := s.client.store.serve(ctx, l.id, reg); err != nil {
			return fmt.Errorf("add queue %s: %w", q.Name, err)
		}
		s.knowBudgets(reg.scopes)
	}
	if !s.open(queues, state) {
		return ErrShutdown
	}
	if s.lease.Load() != l { // registered anew meanwhile, perhaps without the queue
		s.control.interrupt()
	}
	s.claimer.sayAnew()
	s.claimer.wake()
	return nil
}

// open puts a new queue in place, with its workers once there are any. After closeQueues it returns false.
func (s *Supervisor) open(queues []*queueState, q *queueState) bool {
	s.queuesMu.Lock()
	defer s.queuesMu.Unlock()
	if s.closed {
		return false
	}
	s.queues = queues
	if s.started {
		s.startQueue(q)
	}
	return true
}

// RemoveQueue stops claiming from a queue; what waits in the buffer is handed back, what runs goes on. A name
// that is not served is an *InvalidError.
func (s *Supervisor) RemoveQueue(ctx context.Context, name string) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	old := s.queueStates()
	i := slices.IndexFunc(old, func(q *queueState) bool { return q.Name == name })
	if i < 0 {
		return &InvalidError{Field: "name", Reason: fmt.Sprintf("%q is not served here", name)}
	}
	gone := old[i]
	queues := slices.Delete(slices.Clone(old), i, i+1)
	s.queuesMu.Lock()
	s.queues = queues
	s.queuesMu.Unlock()
	s.handBack(gone.buffer.close())
	if l := s.lease.Load(); l != nil {
		if err := s.client.store.serve(ctx, l.id, s.registration(l.id, queues)); err != nil {
			return fmt.Errorf("remove queue %s: %w", name, err)
		}
	}
	return nil
}

func (s *Supervisor) queueStates() []*queueState {
	s.queuesMu.Lock()
	defer s.queuesMu.Unlock()
	return s.queues
}

// closeQueues ends the workers once their jobs have ended, and hands back what has not started.
func (s *Supervisor) closeQueues() {
	s.queuesMu.Lock()
	defer s.queuesMu.Unlock()
	s.closed = true
	for _, q := range s.queues {
		s.handBack(q.buffer.close())
	}
}

func (s *Supervisor) queueNames() (names []string) {
	for _, q := range s.queueStates() {
		names = append(names, q.Name)
	}
	return names
}

// giveUp makes room again for jobs that were claimed and cannot be taken, and hands them back.
func (s *Supervisor) giveUp(runs []*run) {
	for _, r := range runs {
		r.finish()
	}
	s.handBack(runs)
}

// handBack returns jobs that have not started.
func (s *Supervisor) handBack(runs []*run) {
	for _, r := range runs {
		s.settler.settle(r.handedBack())
	}
}

// cancelRun ends the context of a job that runs here, and keeps one from starting that waits in a buffer.
func (s *Supervisor) cancelRun(id string) {
	for _, r := range s.settler.book.of(id) {
		r.unwanted.Store(true)
	}
	for _, r := range s.inFlight.of(id) {
		r.cancel(ErrCancelled)
	}
}

// Stats are a supervisor's figures of the moment.
type Stats struct {
	Running   int   // handlers at work
	Buffered  int   // claimed, not started
	Abandoned int64 // handlers that ignored the end of their context, since Run
}

// Stats may be called at any time.
func (s *Supervisor) Stats() Stats {
	stats := Stats{Running: s.inFlight.len(), Abandoned: s.abandoned.Load()}
	for _, q := range s.queueStates() {
		stats.Buffered += q.buffer.len()
	}
	return stats
}

// registration is what the tables should say of this supervisor.
func (s *Supervisor) registration(id string, queues []*queueState) *registration {
	host, _ := os.Hostname() // for people; empty will do
	reg := &registration{
		id: id, host: host, build: s.cfg.Build, pid: os.Getpid(), process: s.client.process, lease: s.cfg.Lease, listens: !s.cfg.DisableNotify,
		budgets: s.budgetPolicies(queues),
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

// wait asks a strategy for the delay; a Custom that panics is replaced by the default, and told of.
func (s *Supervisor) wait(strategy RetryStrategy, f Failure) (time.Duration, bool) {
	d, ok, err := strategy.delay(f)
	if err != nil {
		s.log.Error("retry strategy panicked, default used", slog.Any("job", f.Job), slog.String("error", s.client.clean(errorText(err), maxErrorText)))
	}
	return d, ok
}

// registry is what supervisors of a client run.
type registry struct {
	mu   sync.Mutex
	sups map[*Supervisor]bool
}

func newRegistry() *registry { return &registry{sups: map[*Supervisor]bool{}} }

func (r *registry) add(s *Supervisor) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sups[s] = true
}

func (r *registry) remove(s *Supervisor) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sups, s)
}

// cancel ends a running job's context in this process.
func (r *registry) cancel(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := range r.sups {
		s.cancelRun(id)
	}
}

// wake tells this process' own supervisors of jobs that are due: quicker than the database can.
func (r *registry) wake(jobs ...*newJob) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := range r.sups {
		names := s.queueNames()
		if slices.ContainsFunc(jobs, func(j *newJob) bool { return j.dueNow() && slices.Contains(names, j.Queue) }) {
			s.claimer.wake()
		}
	}
}

// redrive tells this process' own supervisors that there is a redrive to carry on.
func (r *registry) redrive() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := range r.sups {
		s.redriver.poke()
	}
}

// reporter hands events to the hooks in order, in a goroutine of its own: a hook that blocks must not block jobs.
type reporter struct {
	mu     sync.Mutex
	events []told
	closed bool
	ready  chan struct{}
	once   sync.Once
}

func (r *reporter) signal() chan struct{} {
	r.once.Do(func() { r.ready = make(chan struct{}, 1) })
	return r.ready
}

func (r *reporter) tell(events ...told) {
	r.mu.Lock()
	r.events = append(r.events, events...)
	r.mu.Unlock()
	r.poke()
}

func (r *reporter) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.poke()
}

func (r *reporter) poke() {
	select {
	case r.signal() <- struct{}{}:
	default:
	}
}

func (r *reporter) run(ctx context.Context, c *Client) {
	for range r.signal() {
		r.mu.Lock()
		events, closed := r.events, r.closed
		r.events = nil
		r.mu.Unlock()
		for _, t := range events {
			c.emit(ctx, t)
		}
		if closed {
			return
		}
	}
}
