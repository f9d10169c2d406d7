package engine

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// scheduler ticks: it enqueues periodic jobs at their times. Every supervisor has a scheduler. A tick locks the row of
// its schedule, so only one supervisor makes each tick. The scheduler sleeps until the earliest tick of any schedule.
// If an earlier tick appears while it sleeps, a heartbeat or a notification wakes it. While there is no schedule, it
// sends only one statement, an hour after its start.
type scheduler struct {
	*Shared
	Signal signal
	Next   atomic.Int64 // when the scheduler looks next, in ns since 1970 by the process' clock; 0: only if something wakes it

	// Only the goroutine that ticks uses these.
	putOff  map[string]putOff
	Trouble Trouble
}

// putOff is a schedule whose tick failed. Its next try comes later, and the other schedules go on.
type putOff struct {
	failures int
	until    time.Time
}

func newScheduler(s *Shared) *scheduler {
	return &scheduler{Shared: s, Signal: newSignal(), putOff: map[string]putOff{}, Trouble: Trouble{means: "schedules do not tick"}}
}

// poke makes the scheduler look for due schedules.
func (t *scheduler) poke() { t.Signal.poke() }

// heard gets the time of the next tick from a heartbeat. If the tick comes well before the scheduler would look by
// itself, heard makes the scheduler look. The parameter tick is how long until that tick; nil means that there is no
// schedule.
func (t *scheduler) heard(tick *time.Duration) {
	if tick == nil {
		return
	}
	at := t.Now().Add(*tick)
	if next := t.Next.Load(); next == 0 || at.Add(3*standAside).Before(time.Unix(0, next)) {
		t.poke()
	}
}

// The bounds of a look for schedules that are due, and of the ticks that follow it.
const (
	tickTimeout = 5 * time.Second // the longest tick of one schedule
	TickBound   = 4 * time.Second // the longest statement of a tick, by the server's clock
	tickRetry   = time.Second     // the pause after a failed look
	TicksAtOnce = 100             // how many schedules one look lists
	longestWait = time.Hour       // the longest sleep between two looks; heartbeats report earlier ticks
	// longestPutOff bounds the pause of a schedule that fails again and again. If such schedules take much time, the
	// pause may be longer: see putAside.
	longestPutOff = time.Minute
	// The supervisor that prunes looks as soon as a tick is due. The others look later, by standAside plus a
	// random time of up to twice standAside.
	standAside = 250 * time.Millisecond
)

// run ticks until ctx is done. Its first look comes when the first heartbeat has found a schedule, or after
// longestWait.
func (t *scheduler) run(ctx context.Context) {
	timer := time.NewTimer(longestWait)
	defer timer.Stop()
	for await(ctx, timer.C, t.Signal) {
		wait, idle := t.tick(ctx)
		timer.Stop()
		if idle {
			t.Next.Store(0)
			continue
		}
		// If all supervisors looked at the same moment, all except one would look in vain.
		if !t.Prunes.Load() {
			wait += standAside + rand.N(2*standAside) //nolint:gosec // not a secret
		}
		timer.Reset(wait)
		t.Next.Store(t.Now().Add(wait).UnixNano())
	}
}

// tick ticks all schedules that are due, and returns how long until the next tick. The result idle is true if there is
// no schedule to wait for.
func (t *scheduler) tick(ctx context.Context) (wait time.Duration, idle bool) {
	wait, later := t.stillPutOff()
	var due []store.DueSchedule
	err := t.borrow(ctx, func(ctx context.Context, conn store.Session) (err error) {
		due, err = conn.PeriodicDue(ctx, t.Lease.Load().ID, later, TicksAtOnce)
		return err
	})
	if err != nil {
		if ctx.Err() == nil {
			t.Trouble.Failed(ctx, t.Shared, "looking for schedules that are due", err)
		}
		return tickRetry, false
	}
	t.Trouble.Over(ctx, t.Shared)
	more := len(due) == TicksAtOnce && due[TicksAtOnce-1].Wait <= 0
	if !t.Prunes.Load() { // otherwise two supervisors with the same list would meet at each row
		rand.Shuffle(len(due), func(i, j int) { due[i], due[j] = due[j], due[i] }) //nolint:gosec // not a secret
	}
	for _, d := range due {
		if d.Wait <= 0 {
			d.Wait = t.fire(ctx, d)
		}
		if ctx.Err() != nil {
			return wait, false
		}
		wait = min(wait, d.Wait)
	}
	if more {
		wait = 0
	}
	return max(wait, time.Millisecond), len(due)+len(later) == 0
}

// stillPutOff returns the schedules that are put off, and how long until the first of them may be tried again.
func (t *scheduler) stillPutOff() (wait time.Duration, names []string) {
	wait = longestWait
	for name, off := range t.putOff {
		switch left := off.until.Sub(t.Now()); {
		case left > 0:
			names = append(names, name)
			wait = min(wait, left)
		case left < -longestWait: // the schedule is no longer due: it was deleted or paused, or another supervisor ticked it
			delete(t.putOff, name)
		}
	}
	return wait, names
}

// borrow runs fn on a connection of the pool.
func (t *scheduler) borrow(ctx context.Context, fn func(context.Context, store.Session) error) error {
	ctx, cancel := context.WithTimeout(ctx, tickTimeout)
	defer cancel()
	conn, done, err := store.Borrow(ctx, t.pool)
	if err != nil {
		return err
	}
	defer done()
	return fn(ctx, conn)
}

// fire ticks one schedule, and returns how long until the next look at this schedule.
func (t *scheduler) fire(ctx context.Context, d store.DueSchedule) time.Duration {
	owner := t.Lease.Load().ID
	began := t.Now()
	var f store.Fired
	err := t.borrow(ctx, func(ctx context.Context, conn store.Session) (err error) {
		f, err = conn.FirePeriodic(ctx, d.Name, owner, TickBound)
		return err
	})
	if err != nil {
		if ctx.Err() != nil {
			return 0
		}
		return t.failed(ctx, d, err, t.Now().Sub(began))
	}
	delete(t.putOff, d.Name)
	if !f.Ours {
		return standAside
	}
	t.reportTicks(d, owner, f)
	return f.Wait
}

// putAside puts off a schedule whose tick has failed, and returns the pause. The parameter took is how long the tick
// took. The pause grows with each failure. It is also so long that all failing schedules together take at most half of
// the time, however many of them time out. The other half is left for the other schedules.
func (t *scheduler) putAside(name string, took time.Duration) (pause time.Duration) {
	off := putOff{failures: t.putOff[name].failures + 1}
	t.putOff[name] = off // stored now, because the next line counts the schedules in putOff
	pause = max(growingTo(longestPutOff, off.failures-1), 2*took*time.Duration(len(t.putOff)))
	off.until = t.Now().Add(pause)
	t.putOff[name] = off
	return pause
}

// failed puts off a schedule whose tick failed as a whole, for example because of a time-out. The tick stays due. The
// schedule's row gets the reason.
func (t *scheduler) failed(ctx context.Context, d store.DueSchedule, err error, took time.Duration) time.Duration {
	pause, why := t.putAside(d.Name, took), t.Cfg.Clean(pg.Refusal(err))
	t.seldom.log(ctx, t.log, slog.LevelWarn, "periodic "+d.Name, "schedule could not tick, will be tried again",
		slog.String("periodic", d.Name), slog.String("error", why))
	err = t.borrow(ctx, func(ctx context.Context, conn store.Session) error {
		return conn.NotePeriodicFailed(ctx, d.Name, why)
	})
	if err != nil {
		t.seldom.log(ctx, t.log, slog.LevelWarn, "periodic note "+d.Name, "the reason why a schedule could not tick is not noted in its row",
			slog.String("periodic", d.Name), slog.String("error", err.Error()))
	}
	return pause
}

// reportTicks emits the events of a schedule's ticks.
func (t *scheduler) reportTicks(d store.DueSchedule, owner string, f store.Fired) {
	e := Event{Queue: d.Queue, JobKind: d.Kind, Supervisor: owner, Periodic: d.Name}
	for _, id := range f.Jobs {
		made := e
		made.Kind, made.JobID = EventEnqueued, id
		t.Reporter.add(&made)
	}
	if len(f.Jobs) > 0 && slices.Contains(t.QueueNames(), d.Queue) {
		t.alarm.Wake() // this is quicker than a notification
	}
	skipped := e
	skipped.Kind = EventPeriodicSkipped
	if f.Missed > 0 {
		skipped.Count, skipped.End.Text = int(f.Missed), f.Why
		t.Reporter.add(&skipped)
	}
	if f.Fault != "" {
		skipped.Count, skipped.End.Text = 1, "refused: "+t.Cfg.Clean(f.Fault)
		t.Reporter.add(&skipped)
	}
}
