package drover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drover-queue/drover/internal/pg"
)

// Retention words for SupervisorConfig.
const (
	// DeleteOnCompletion deletes a job in the statement that completes it: the fastest way. An enqueue that is repeated
	// under its id after that makes a new job (EnqueueOpts.ID). It is a word for CompletedRetention alone.
	DeleteOnCompletion time.Duration = 1

	// KeepForever keeps completed jobs for ever, and as CancelledRetention cancelled ones.
	KeepForever time.Duration = math.MaxInt64
)

// Supervisor claims jobs and runs their workers. It uses three connections of its own beside the pool's, made
// with the pool's settings and hooks (docs/configuration.md lists them), so that handlers that take every pooled one
// starve neither heartbeat nor settle.
type Supervisor struct {
	*shared
	client     *Client
	workers    map[string]*Worker
	strategies map[string]Custom

	restInterval time.Duration // the poll interval after restAfter

	changing sync.Mutex // held while a queue is added or removed, round trip included

	claimer    *claimer
	settler    *settler
	control    *control
	redriver   *redriver
	pruner     atomic.Bool // this supervisor's turn to prune
	pruneEvery time.Duration
	budgets    atomic.Pointer[[]string]  // scopes of the retry budgets there are
	solo       atomic.Pointer[soloOrder] // this supervisor's turn to run strong suspects; nil: it is not
	stopNow    chan struct{}
	stopOnce   sync.Once
	ran        atomic.Bool

	abandoned atomic.Int64
	slots     sync.WaitGroup // one for each worker; abandoned ones leave theirs to others
}

// NewSupervisor checks the configuration and returns a supervisor that runs nothing yet. Every mistake is told at
// once, as *InvalidError values joined.
func (c *Client) NewSupervisor(cfg SupervisorConfig) (*Supervisor, error) {
	var bad problems
	s := &Supervisor{
		client: c, shared: &shared{log: c.log, now: time.Now}, workers: map[string]*Worker{}, strategies: map[string]Custom{},
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
	s.beatSoon = s.control.interrupt
	s.claimer.link.Again, s.settler.link.Again = s.goneBack, s.claimer.audit.reconnected
	return s, nil
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
	s.control.takeBackAtLast(ending)
	s.reporter.close()
	reporting.Wait()
	s.log.InfoContext(base, "supervisor stopped", slog.String("supervisor", s.lease.Load().id))
	return nil
}

// StopNow makes a Run that is stopping cancel its running jobs at once instead of draining: for a second signal.
func (s *Supervisor) StopNow() { s.stopOnce.Do(func() { close(s.stopNow) }) }

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
			s.abandon(ctx, r, "handler ignores its cancelled context, job given up",
				func() *outcome { return r.cutShort(errIgnoredStop, nil) })
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
			starting.over(ctx, s.shared)
			return nil
		}
		s.control.link.Close(base)
		if ctx.Err() == nil && pg.Temporary(err) {
			starting.failed(ctx, s.shared, "starting", err)
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
	if err := s.client.desk.pool.CheckOn(checking, &s.control.link.Link); err != nil {
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
				s.abandon(ctx, r, "handler ignores its timeout, slot freed", r.abandonedOutcome)
				s.startWorker(r.queue)
			}
		}
	}
}

// abandon gives up a handler whose run has been ended for it. The log and what decides the outcome are the application's:
// they may block as its handler does.
func (s *Supervisor) abandon(ctx context.Context, r *run, why string, decide func() *outcome) {
	s.abandoned.Add(1)
	go func() {
		s.log.WarnContext(ctx, why, slog.Any("job", r.job), slog.Duration("timeout", r.timeout))
		r.decided(decide, func(o *outcome, _ bool) { s.settler.settle(o) })
	}()
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

// wait asks a strategy for the delay; a Custom that panics is replaced by the default, and told of.
func (s *Supervisor) wait(strategy RetryStrategy, f FailedRun) (time.Duration, bool) {
	d, ok, err := strategy.delay(f)
	if err != nil {
		s.log.Error("retry strategy panicked, default used", slog.Any("job", f.Job), slog.String("error", s.client.clean(errorText(err), maxErrorText)))
	}
	return d, ok
}
