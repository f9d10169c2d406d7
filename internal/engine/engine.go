package engine

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// Engine is one supervisor.
type Engine struct {
	*Shared
	Claimer   *claimer
	Settler   *settler
	Keeper    *keeper
	Redriver  *redriver
	Scheduler *scheduler
	Pruner    *pruner
	Runner    *runner
	Budgets   *budgets
	Activity  *activity
	stopNow   chan struct{}
	stopOnce  sync.Once
}

// New returns an engine that does not run yet.
func New(cfg Config, pool *pg.Pool) *Engine {
	s := NewShared(cfg, pool)
	e := &Engine{Shared: s, stopNow: make(chan struct{}), Redriver: newRedriver(s), Scheduler: newScheduler(s), Pruner: NewPruner(s), Budgets: &budgets{Shared: s}, Activity: newActivity(s)}
	e.Settler = newSettler(s, e.Budgets, e.Redriver)
	e.Runner = NewRunner(s, e.Settler, func(f func()) { go f() })
	e.Claimer = newClaimer(s, e.Runner)
	e.Keeper = newKeeper(s, e.Budgets, e.Claimer, e.Redriver, e.Scheduler)
	s.beatSoon, s.rewound, s.calls.ring = e.Keeper.Interrupt, e.Claimer.rewound, e.Keeper.Ring
	e.Claimer.Link.Again = s.rewound                   // the claimer's new connection may lead to an older state
	e.Settler.Link.Again = e.Claimer.Audit.Reconnected // so may the settler's: the database may have forgotten settles
	return e
}

// Run claims and runs jobs until ctx is done, then drains. It calls started once the supervisor is registered. It
// returns an error only if it could not start. The list below has the engine's goroutines. Run starts all of them
// except work, which the function in New starts. That function also starts a goroutine for each handler that is given
// up, which settles the run.
//
//	claim   ×1  takes jobs; stops with ctx
//	work    ×n  a queue's slots; stops when its queue is closed and its job has ended
//	settle  ×1  records outcomes; stops when claiming has ended and all is settled
//	keep    ×1  heartbeat, notifications, rescue, sweeps; stops after settle
//	watch   ×1  finds handlers deaf to their timeout; stops after settle
//	prune   ×1  deletes or archives old jobs that have ended; stops with ctx
//	redrive ×1  makes dead jobs due at a pace, while there is a redrive; stops with ctx
//	tick    ×1  enqueues periodic jobs, while there is a schedule; stops with ctx
//	count   ×1  writes how many jobs ran, once a minute; stops with ctx, and writes again after settle
//	dropped ×1  logs that hooks miss events; stops when Run returns, unless the log hangs
//	report  ×n  a subscriber's hooks; stops when it has passed on all events. If a hook hangs, Run does not wait for it
func (e *Engine) Run(ctx context.Context, started func(context.Context)) error {
	base := context.WithoutCancel(ctx)
	if err := e.Keeper.Start(ctx, base); err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // ctx ended before Run began its work
		}
		return err
	}
	claiming, stopClaiming := context.WithCancel(ctx)
	defer stopClaiming()
	working, stopWorking := context.WithCancel(base)
	defer stopWorking()
	finishing, giveUp := context.WithCancel(base)
	defer giveUp()

	ended := make(chan struct{})
	defer close(ended)
	go e.logDropped(ended)
	for _, l := range e.Reporter.Lines {
		go e.report(base, l)
	}
	var untilStop, whileWorking, settling sync.WaitGroup
	untilStop.Go(func() { e.Pruner.run(claiming) })
	untilStop.Go(func() { e.Redriver.run(claiming) })
	untilStop.Go(func() { e.Scheduler.run(claiming) })
	untilStop.Go(func() { e.Activity.run(claiming) })
	untilStop.Go(func() { e.Claimer.run(claiming, finishing) })
	whileWorking.Go(func() { e.Keeper.run(working) })
	whileWorking.Go(func() { e.Runner.watch(working) })
	e.Runner.start()
	settling.Go(func() { e.Settler.run(finishing, e.Claimer.ended) })
	e.log.InfoContext(ctx, "supervisor started", slog.String("supervisor", e.Lease.Load().ID),
		slog.Int("queues", len(e.QueueStates())), slog.Int("workers", len(e.Kinds)))
	started(ctx)

	<-ctx.Done()
	e.Draining.Store(true)
	e.Keeper.Ring() // this makes the keeper leave its call slots
	end := e.drain(base, giveUp)
	ending, cancel := context.WithDeadline(base, end)
	defer cancel()
	untilStop.Wait()
	settling.Wait()
	e.Runner.Slots.Wait()
	stopWorking()
	whileWorking.Wait()
	if e.Unsettled.Len() == 0 && e.Claimer.Doubt == nil { // otherwise the row stays, because a rescuer reads it
		e.Keeper.end(ending)
	}
	e.Keeper.EndStrays(ending)
	e.Keeper.UndoAtLast(ending)
	e.Activity.Write(ending) // last, because the steps above matter more if the database is slow
	e.Reporter.Close()
	for _, l := range e.Reporter.wait(end) {
		if l.Name != "" {
			e.log.ErrorContext(base, "hooks did not return; the supervisor stops without them, and their events are lost", slog.String("hooks", l.Name))
		}
	}
	e.log.InfoContext(base, "supervisor stopped", slog.String("supervisor", e.Lease.Load().ID))
	return nil
}

// report passes events on to one subscriber until the reporter is closed. If a hook ends the goroutine, a new goroutine
// takes over.
func (e *Engine) report(ctx context.Context, l *line) {
	defer func() {
		if !l.ended() {
			go e.report(ctx, l)
		}
	}()
	l.Run(ctx)
}

// StopNow makes a Run that is stopping cancel its running jobs immediately instead of draining.
func (e *Engine) StopNow() { e.stopOnce.Do(func() { close(e.stopNow) }) }

// The bounds of a stop after it has cancelled the running jobs. Whatever the database does, this part of a stop takes
// EndPart at most.
const (
	HandBack = 3 * time.Second // after this time jobs are released although their handlers have not returned
	EndPart  = 5 * time.Second // HandBack, then LastSettle, and the time to close connections and to remove our row
)

// drain waits for the running jobs, cancels the jobs that go on, and abandons handlers that do not return. It returns
// the time by which the rest of the stop must have ended.
func (e *Engine) drain(ctx context.Context, giveUp func()) (end time.Time) {
	idle := e.Settler.Idle
	timer := time.NewTimer(e.Cfg.DrainTimeout)
	defer timer.Stop()
	select {
	case <-idle:
		return time.Now().Add(EndPart)
	case <-timer.C:
	case <-e.stopNow:
	}
	end = time.Now().Add(EndPart)
	e.Lease.Load().Cancel(pg.ErrShutdown)
	timer.Reset(HandBack)
	select {
	case <-idle:
		return end
	case <-timer.C:
	}
	e.Runner.abandonAll(ctx)
	timer.Reset(LastSettle)
	select {
	case <-idle:
	case <-timer.C:
		giveUp()
		e.log.ErrorContext(ctx, "outcomes could not be recorded, others will rescue the jobs", slog.Int("count", e.Unsettled.Len()))
	}
	return end
}

// Serves reports whether the engine claims from a queue.
func (e *Engine) Serves(queue string) bool { return slices.Contains(e.QueueNames(), queue) }

// AddQueue starts claiming from another queue. Errors: ErrServed, pg.ErrShutdown, or an error of the database.
func (e *Engine) AddQueue(ctx context.Context, q Queue) error {
	e.Changing.Lock()
	defer e.Changing.Unlock()
	queues, state, err := e.withQueue(q)
	if err != nil {
		return err
	}
	l := e.Lease.Load()
	if l != nil {
		reg := e.registration(l.ID, queues)
		if err := store.Serve(ctx, e.pool, l.ID, reg); err != nil {
			return err
		}
		e.Budgets.know(reg.Scopes)
		e.crews.Store(&reg.Crews)
	}
	if !e.Runner.open(queues, state) {
		return pg.ErrShutdown
	}
	if e.Lease.Load() != l { // the keeper has a new id, perhaps registered without the queue: then the next beat adds the queue
		e.Keeper.Interrupt()
	}
	e.alarm.Wake()
	return nil
}

// RemoveQueue stops claiming from a queue. It releases the jobs that wait in the buffer; running jobs go on. Errors:
// ErrNotServed, or an error of the database.
func (e *Engine) RemoveQueue(ctx context.Context, name string) error {
	e.Changing.Lock()
	defer e.Changing.Unlock()
	queues, gone := e.withoutQueue(name)
	if gone == nil {
		return ErrNotServed
	}
	e.Runner.releaseAll(gone.Buffer.Close())
	if l := e.Lease.Load(); l != nil {
		return store.Serve(ctx, e.pool, l.ID, e.registration(l.ID, queues))
	}
	return nil
}

// Call makes the engine look for a job that this process has enqueued. It returns false if the engine has no room for
// the job, or does not claim jobs of this queue and kind now.
func (e *Engine) Call(queue, kind string) bool {
	if e.Draining.Load() || e.Lease.Load() == nil || !slices.Contains(e.openKinds(), kind) || !slices.Contains(e.openQueues(), queue) || !e.calls.room(queue) {
		return false
	}
	if e.alarm.asleep.Load() {
		e.calls.add(queue, 0, e.calls.answerBy(e.Now()))
		e.alarm.poke()
	} else {
		e.alarm.Wake()
	}
	return true
}

// Redrive makes the engine look for redrives to carry on.
func (e *Engine) Redrive() { e.Redriver.poke() }

// FollowLimits makes the engine read the limits (pauses), if it does not listen for notifications.
func (e *Engine) FollowLimits() {
	if e.Cfg.DisableNotify {
		e.Keeper.Interrupt()
	}
}

// Tick makes the engine look for schedules that are due.
func (e *Engine) Tick() { e.Scheduler.poke() }

// Cancel ends the context of a job that runs here. If the job waits in a buffer, it does not start.
func (e *Engine) Cancel(id string) { e.cancelRun(id) }

// Stats returns how many handlers are at work, how many claimed jobs have not started, how many handlers have ignored
// the end of their context since Run began, and how many events were dropped since then.
func (e *Engine) Stats() (running, buffered int, abandoned, dropped int64) {
	for _, q := range e.QueueStates() {
		buffered += q.Buffer.Len()
	}
	return e.InFlight.Len(), buffered, e.Runner.Abandoned.Load(), e.Reporter.Dropped()
}
