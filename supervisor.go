package drover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Supervisor claims jobs and runs their workers. It uses three connections of its own besides the
// pool, with the pool's settings and hooks (docs/configuration.md lists them). So handlers that
// take every pooled connection do not starve heartbeats and settles.
type Supervisor struct {
	shared
	alarm      alarm
	claimer    *claimer
	settler    *settler
	control    *control
	redriver   *redriver
	scheduler  *scheduler
	pruneEvery time.Duration
	stopNow    chan struct{}
	stopOnce   sync.Once
	ran        atomic.Bool // Run was called

	abandoned atomic.Int64
	slots     sync.WaitGroup // one for each worker; abandoned ones leave theirs to others
}

// shared is what every part of a supervisor needs: its settings, its clock, its lease, what runs, and where it logs and
// tells. It holds no part: a part that needs another one gets it in its constructor.
type shared struct {
	client       *Client
	cfg          SupervisorConfig
	restInterval time.Duration // the poll interval after restAfter
	workers      map[string]*Worker
	kinds        []string // of workers, sorted
	strategies   map[string]Custom
	periodic     []periodicDoc // declared in code, by name
	log          *slog.Logger
	now          func() time.Time // the process' clock: local waits only

	queues   queueSet
	inFlight runSet // handlers at work
	lease    atomic.Pointer[lease]
	budgets  atomic.Pointer[[]string] // scopes of the retry budgets there are
	holds    atomic.Pointer[holds]    // what may not start; nil: nothing
	pruner   atomic.Bool              // this supervisor started before all others: it prunes, and ticks first
	draining atomic.Bool
	over     atomic.Bool // Run returns

	reporter reporter
	quiet    sparingly
	outage   outage
}

// NewSupervisor checks the configuration and returns a supervisor. It starts nothing; call Run. It
// reports all mistakes at once, as *InvalidError values joined.
func (c *Client) NewSupervisor(cfg SupervisorConfig) (*Supervisor, error) {
	var bad problems
	s := &Supervisor{
		shared:  shared{client: c, log: c.log, now: time.Now, workers: map[string]*Worker{}, strategies: map[string]Custom{}, reporter: newReporter(c)},
		stopNow: make(chan struct{}), pruneEvery: time.Minute,
	}
	rests := cfg.DisableNotify && cfg.PollInterval == 0
	cfg.fillIn(&bad)
	s.cfg, s.restInterval = cfg, cfg.PollInterval
	if rests {
		s.restInterval = time.Second
	}
	if len(cfg.Queues) == 0 {
		bad.add("Queues", "is empty: the supervisor needs a queue to claim from")
	}
	if len(cfg.Workers) == 0 {
		bad.add("Workers", "is empty: the supervisor needs a worker to run jobs")
	}
	for i, strategy := range cfg.Strategies {
		bad.strategy(fmt.Sprintf("Strategies[%d]", i), strategy)
		s.name(&bad, fmt.Sprintf("Strategies[%d]", i), strategy)
	}
	lookout := newLookout(&s.shared)
	seen := map[string]bool{}
	for i, q := range cfg.Queues {
		field := fmt.Sprintf("Queues[%d]", i)
		q.fillIn(&bad, field)
		if seen[q.Name] {
			bad.add(field+".Name", "%q is used twice", q.Name)
		}
		seen[q.Name] = true
		s.name(&bad, field+".Retry", q.Retry)
		s.queues.list = append(s.queues.list, newQueueState(q, lookout.wake, &s.holds))
	}
	for i := range cfg.Workers {
		w := cfg.Workers[i]
		field := fmt.Sprintf("Workers[%d]", i)
		w.validate(&bad, field, cfg.Timeout)
		c.checkFollowUp(&bad, field, &w)
		if s.workers[w.kind] != nil && w.kind != "" {
			bad.add(field, "kind %q already has a worker", w.kind)
		}
		s.name(&bad, field+".Retry", w.opts.Retry)
		for j := range w.opts.Cases {
			s.name(&bad, fmt.Sprintf("%s.Cases[%d].Retry", field, j), w.opts.Cases[j].Retry)
		}
		s.workers[w.kind] = &w
		s.kinds = append(s.kinds, w.kind)
	}
	s.resolveNames(&bad)
	s.periodic = c.encodeDeclared(&bad, cfg.Periodic)
	slices.Sort(s.kinds)
	slices.SortFunc(s.queues.list, func(a, b *queueState) int { return cmp.Compare(a.Name, b.Name) })
	if err := bad.err(); err != nil {
		return nil, err
	}
	s.assemble(lookout)
	return s, nil
}

// assemble makes the parts. A part can call those that are made before it; lookout and alarm are how it calls the others.
func (s *Supervisor) assemble(k *lookout) {
	s.redriver = newRedriver(&s.shared, k.noteDue)
	s.settler = newSettler(&s.shared, k, s.redriver, &s.alarm)
	s.claimer = newClaimer(&s.shared, k, s.settler, &s.alarm)
	s.scheduler = newScheduler(&s.shared)
	s.control = newControl(&s.shared, k, s.settler, s.redriver, s.scheduler, &s.alarm)
}

// Run claims and runs jobs until ctx is done. Then it drains: it claims no more, hands back the
// jobs that it has not started, and waits up to DrainTimeout for running handlers. It cancels those
// that still run, with the cause ErrShutdown, and hands their jobs back; jobs with a single attempt
// are discarded instead. After a stop Run returns nil, at most DrainTimeout and 5 s after ctx is
// done. A Supervisor runs once.
//
// Run returns an error only if it cannot start because of something that an operator has to change:
// ErrNotMigrated, ErrReadOnly, ErrServerTooOld, ErrPooler, an *InvalidError from one of the pool's
// hooks, or a server error such as that of a wrong password. For what may pass by itself Run waits,
// at the start as later: a server that refuses connections or has none left, a lock that is held
// too long.
//
// Run returns only after every goroutine that it started has ended, except those of handlers that
// ignored their context, and of hooks that have not returned:
//
//	claim   ×1  takes jobs; stops with ctx
//	work    ×n  a queue's Concurrency; stops when its queue is closed and its job has ended
//	settle  ×1  records outcomes; stops when claiming has stopped and all are settled
//	control ×1  heartbeat, notifications, rescue, sweeps; stops after settle
//	watch   ×1  finds handlers that ignore their timeout; stops after settle
//	prune   ×1  deletes or archives old jobs that have ended; stops with ctx
//	redrive ×1  makes dead jobs due at a pace, while there is a redrive; stops with ctx
//	tick    ×1  enqueues periodic jobs, while there is a schedule; stops with ctx
//	report  ×n  the log's, and one for each of Config.Hooks; stops when all events are reported
func (s *Supervisor) Run(ctx context.Context) error {
	if s.ran.Swap(true) {
		return errors.New("drover: a Supervisor runs only once: make a new one")
	}
	defer s.over.Store(true)
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

	var claimingToo, whileWorking, settling sync.WaitGroup
	for _, l := range s.reporter.lines {
		go l.run(base) // the reporter waits for it
	}
	claimingToo.Go(func() { s.prune(claiming, s.pruneEvery) })
	claimingToo.Go(func() { s.redriver.run(claiming) })
	claimingToo.Go(func() { s.scheduler.run(claiming) })
	claimingToo.Go(func() { s.claimer.run(claiming, finishing) })
	whileWorking.Go(func() { s.control.run(working) })
	whileWorking.Go(func() { s.watch(working) })
	s.startQueues()
	settling.Go(func() { s.settler.run(finishing, s.claimer.ended) })
	s.log.InfoContext(ctx, "supervisor started", slog.String("supervisor", s.lease.Load().id),
		slog.Int("queues", len(s.queues.states())), slog.Int("workers", len(s.workers)))
	s.tellUnservedFollowUps(ctx)

	<-ctx.Done()
	s.draining.Store(true)
	end := s.drain(base, giveUp)
	ending, cancel := context.WithDeadline(base, end)
	defer cancel()
	claimingToo.Wait()
	settling.Wait()
	s.slots.Wait()
	stopWorking()
	whileWorking.Wait()
	s.lease.Load().timer.Stop()                              // nobody keeps it up any more
	if s.settler.book.len() == 0 && s.claimer.doubt == nil { // else our row tells a rescuer what had started
		s.control.end(ending)
	}
	s.reporter.close()
	s.reporter.wait(base, end)
	s.log.InfoContext(base, "supervisor stopped", slog.String("supervisor", s.lease.Load().id))
	return nil
}

// StopNow makes a stopping Run cancel its running jobs at once instead of draining. Call it, for
// example, on a second signal.
func (s *Supervisor) StopNow() { s.stopOnce.Do(func() { close(s.stopNow) }) }

// What a stop takes after the running jobs were cancelled, whatever the database does: endPart in all.
const (
	handBack   = 3 * time.Second // until jobs are handed back over their handlers' heads
	lastSettle = time.Second     // for the last outcomes: a database that is away must not keep the process
	endPart    = 5 * time.Second // the rest is for connections to close, and to sign off
)

var errIgnoredStop = errors.New("the handler did not return after its context was cancelled")

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
			s.abandon(ctx, r, "handler ignores its cancelled context; the supervisor stops without it",
				func() *outcome { return r.cutShort(errIgnoredStop, nil) })
			s.slots.Done()
		}
	}
	timer.Reset(lastSettle)
	select {
	case <-idle:
	case <-timer.C:
		giveUp()
		s.log.ErrorContext(ctx, "the outcomes of jobs could not be recorded; another supervisor will rescue the jobs", slog.Int("count", s.settler.book.len()))
	}
	return end
}

// start checks the server and registers. What the database may get over by itself is tried again until ctx is done.
func (s *Supervisor) start(ctx, base context.Context) error {
	s.control.base = base
	starting := newTrouble(&s.shared, "this supervisor does not run yet", nil)
	for {
		err := s.tryStart(ctx, base)
		if err == nil {
			starting.over(ctx)
			return nil
		}
		s.control.link.close(base)
		if ctx.Err() == nil && temporary(err) {
			starting.failed(ctx, "starting", err)
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
	s.queues.changing.Lock()
	defer s.queues.changing.Unlock()
	if err := s.control.register(registering); err != nil {
		return fmt.Errorf("register supervisor: %w", err)
	}
	return nil
}

// startQueues starts the workers of all queues.
func (s *Supervisor) startQueues() {
	s.queues.mu.Lock()
	defer s.queues.mu.Unlock()
	s.queues.started = true
	for _, q := range s.queues.list {
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
	id := goroutineID()
	for {
		r, ok := q.buffer.take()
		if !ok {
			s.slots.Done()
			return
		}
		if r.lease.ended.Load() { // it may be someone else's before its handler could notice
			r.finish()
			s.settler.handBack([]*run{r})
			continue
		}
		r.goroutine = id
		if !s.runJob(r) {
			return
		}
	}
}

// watchInterval is how exactly deaf handlers are noticed.
const watchInterval = 100 * time.Millisecond

// watch notes where handlers are when their time is up, and frees the slots of those that ignore the end of their context
// after their timeout.
func (s *Supervisor) watch(ctx context.Context) {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	var stacks stacks
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		runs := s.inFlight.all()
		stacks.take(runs, s.now(), s.cfg.Lease)
		for _, r := range runs {
			if r.deaf(s.now()) && r.end() {
				s.abandon(ctx, r, "handler ignores its timeout; its slot is free for another job", r.abandonedOutcome)
				s.startWorker(r.queue)
			}
		}
	}
}

// abandon gives up a handler whose run has been ended for it. The log and what decides the outcome are the application's: they
// may block as its handler does.
func (s *Supervisor) abandon(ctx context.Context, r *run, why string, decide func() *outcome) {
	s.abandoned.Add(1)
	go func() {
		s.log.WarnContext(ctx, why, slog.Any("job", r.job), slog.Duration("timeout", r.timeout))
		r.decided(decide, func(o *outcome, _ bool) { s.settler.settle(o) })
	}()
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

// Stats are a supervisor's current figures.
type Stats struct {
	Running   int   // handlers that run
	Buffered  int   // jobs that are claimed and not started
	Abandoned int64 // since Run: handlers that ignored the end of their context

	// DroppedEvents counts, since Run, the events that a subscriber was not told, because one of its hooks
	// is slow or hangs. See Hooks.
	DroppedEvents int64
}

// Stats returns the supervisor's current figures. It may be called at any time.
func (s *Supervisor) Stats() Stats {
	stats := Stats{Running: s.inFlight.len(), Abandoned: s.abandoned.Load(), DroppedEvents: s.reporter.dropped()}
	for _, q := range s.queues.states() {
		stats.Buffered += q.buffer.len()
	}
	return stats
}
