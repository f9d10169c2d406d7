package drover

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// scheduler ticks: it enqueues periodic jobs at their times. Every supervisor has one, and the row of a schedule, which a
// tick locks, lets one of them do it. It sleeps until the next tick of all; heartbeats and notifications tell of earlier
// ones. While there is no schedule it asks for nothing.
type scheduler struct {
	*shared
	signal chan struct{}
	next   atomic.Int64 // when it looks again, in nanoseconds by the process' clock; 0: not by itself

	// Only the goroutine that ticks uses these.
	putOff  map[string]putOff
	trouble trouble
}

// putOff is a schedule that could not tick, and whose turn is to come later: the others go on.
type putOff struct {
	failures int
	until    time.Time
}

func newScheduler(s *shared) *scheduler {
	return &scheduler{
		shared: s, signal: make(chan struct{}, 1), putOff: map[string]putOff{},
		trouble: newTrouble(s, "schedules do not tick", nil),
	}
}

// poke makes it look.
func (t *scheduler) poke() {
	select {
	case t.signal <- struct{}{}:
	default:
	}
}

// heard makes it look if the next tick, as a heartbeat found it, comes well before it would look by itself.
func (t *scheduler) heard(ticks *float64) {
	if ticks == nil {
		return
	}
	at := t.now().Add(seconds(*ticks))
	if next := t.next.Load(); next == 0 || at.Add(3*standAside).Before(time.Unix(0, next)) {
		t.poke()
	}
}

const (
	tickTimeout = 5 * time.Second // of one schedule
	tickBound   = 4 * time.Second // of its statement, by the server's clock
	tickRetry   = time.Second     // after a look that failed
	ticksAtOnce = 100             // schedules that one look lists
	longestWait = time.Hour       // without a look, as heartbeats tell of everything
	// The pause of a schedule that fails again and again: longer than a look at a list of those, so that others get their turn.
	longestPutOff = time.Minute
	standAside    = 250 * time.Millisecond // others leave the first supervisor that long, and each up to as much again twice
)

// run ticks until ctx is done. The first heartbeat says whether there is a schedule.
func (t *scheduler) run(ctx context.Context) {
	timer := time.NewTimer(longestWait)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-t.signal:
		}
		wait, idle := t.tick(ctx)
		timer.Stop()
		if idle {
			t.next.Store(0)
			continue
		}
		// All would come at the same moment, and all but one in vain.
		if !t.pruner.Load() {
			wait += standAside + rand.N(2*standAside) //nolint:gosec // not a secret
		}
		timer.Reset(wait)
		t.next.Store(t.now().Add(wait).UnixNano())
	}
}

// tick deals with all that is due, and returns how long until the next tick.
func (t *scheduler) tick(ctx context.Context) (wait time.Duration, idle bool) {
	looking, cancel := context.WithTimeout(ctx, tickTimeout)
	defer cancel()
	wait = longestWait
	var later []string
	for name, off := range t.putOff {
		switch left := off.until.Sub(t.now()); {
		case left > 0:
			later = append(later, name)
			wait = min(wait, left)
		case left < -longestWait: // it is not due any more: deleted, paused, or another one has ticked it
			delete(t.putOff, name)
		}
	}
	due, err := t.client.store.periodicDue(looking, t.lease.Load().id, later, ticksAtOnce)
	if err != nil {
		if ctx.Err() == nil {
			t.trouble.failed(ctx, "looking for schedules that are due", err)
		}
		return tickRetry, false
	}
	t.trouble.over(ctx)
	more := len(due) == ticksAtOnce && due[ticksAtOnce-1].wait <= 0
	if !t.pruner.Load() { // two that go through the same list in the same order meet at each row
		rand.Shuffle(len(due), func(i, j int) { due[i], due[j] = due[j], due[i] }) //nolint:gosec // not a secret
	}
	for _, d := range due {
		if d.wait <= 0 {
			d.wait = t.fire(ctx, d)
		}
		if ctx.Err() != nil {
			return wait, false
		}
		wait = min(wait, d.wait)
	}
	if more {
		wait = 0
	}
	return max(wait, time.Millisecond), len(due)+len(later) == 0
}

// fire ticks one schedule, and returns when it is to be looked at again.
func (t *scheduler) fire(ctx context.Context, d dueSchedule) time.Duration {
	firing, cancel := context.WithTimeout(ctx, tickTimeout)
	defer cancel()
	owner := t.lease.Load().id
	f, err := t.client.store.firePeriodic(firing, d.name, owner, tickBound)
	if err != nil {
		if ctx.Err() != nil {
			return 0
		}
		return t.failed(ctx, d, err)
	}
	delete(t.putOff, d.name)
	if !f.ours {
		return standAside
	}
	t.tell(d, owner, f)
	return f.wait
}

// failed puts a schedule off that the database did not let tick as a whole, for example because of a time-out: its tick
// stays due, and its row says why.
func (t *scheduler) failed(ctx context.Context, d dueSchedule, err error) time.Duration {
	was := t.putOff[d.name]
	pause := growingTo(longestPutOff, was.failures)
	t.putOff[d.name] = putOff{was.failures + 1, t.now().Add(pause)}
	t.quiet.log(ctx, t.log, slog.LevelWarn, "periodic "+d.name, "schedule could not tick, will be tried again",
		slog.String("periodic", d.name), slog.String("error", err.Error()))
	noting, cancel := context.WithTimeout(ctx, tickTimeout)
	defer cancel()
	if err := t.client.store.noteFailed(noting, d.name, err); err != nil {
		t.quiet.log(ctx, t.log, slog.LevelWarn, "periodic note "+d.name, "why a schedule could not tick is not noted in its row",
			slog.String("periodic", d.name), slog.String("error", err.Error()))
	}
	return pause
}

// tell reports what a schedule's ticks came to.
func (t *scheduler) tell(d dueSchedule, owner string, f fired) {
	e := Event{Queue: d.queue, Kind: d.kind, Supervisor: owner, Periodic: d.name}
	for _, id := range f.jobs {
		made := e
		made.JobID = id
		t.reporter.tell(told{eventEnqueued, made})
	}
	if len(f.jobs) > 0 {
		t.client.running.wake(&newJob{Queue: d.queue, Kind: d.kind}) // quicker than a notification
	}
	if f.missed > 0 {
		skipped := e
		skipped.Count, skipped.Error = int(f.missed), f.why
		t.reporter.tell(told{eventPeriodicSkipped, skipped})
	}
	if f.fault != "" {
		failed := e
		failed.Count, failed.Error = 1, "refused: "+t.client.clean(f.fault, maxErrorText)
		t.reporter.tell(told{eventPeriodicSkipped, failed})
	}
}

// declareAgain stores the schedules of this supervisor once more when another one has left. That may have been the last one
// of a newer build, whose settings end with it: a deploy was rolled back.
func (c *control) declareAgain(ctx context.Context, conn *pgx.Conn, l *lease, peers []peer) error {
	if len(c.cfg.Periodic) == 0 {
		return nil
	}
	var living []string
	for _, x := range peers {
		if !x.lost && x.id != l.id {
			living = append(living, x.id)
		}
	}
	left := slices.ContainsFunc(c.living, func(id string) bool { return !slices.Contains(living, id) })
	if left {
		reg := c.registration(l.id, nil)
		if err := c.client.store.declareAgain(ctx, conn, reg); err != nil {
			if conn.IsClosed() {
				return err
			}
			c.quiet.log(ctx, c.log, slog.LevelWarn, "declare again", "schedules could not be declared again; it is tried with the next heartbeat", slog.String("error", err.Error()))
			return nil
		}
	}
	c.living = living
	return nil
}

// tellUndeclared logs which schedules of this supervisor are not used.
func (c *control) tellUndeclared(ctx context.Context, names []string) {
	for _, name := range names {
		c.log.WarnContext(ctx, "schedule is not used: one that was made at run time has its name; delete that one, or rename this",
			slog.String("periodic", name))
	}
}
