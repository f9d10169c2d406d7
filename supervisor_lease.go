package drover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/oklog/ulid/v2"

	"github.com/drover-queue/drover/internal/blame"
)

// lease is a supervisor's claim to its jobs under one id: what handlers' contexts hang on.
type lease struct {
	id     string
	epoch  *atomic.Int64   // of the id; never lowered
	ctx    context.Context //nolint:containedctx // the parent of handlers' contexts
	cancel context.CancelCauseFunc
	ended  atomic.Bool // lost, or not kept up
	kept   atomic.Pointer[time.Time]
	timer  *time.Timer // of its end, once a supervisor has it
	ending sync.Mutex  // it is either kept up or found to be over
}

// until is how long the lease is kept up, by this process' clock. A process that was frozen finds its end in the past before
// its control goroutine has told anybody.
func (l *lease) until() time.Time { return *l.kept.Load() }

func (l *lease) keep(until time.Time) {
	l.ending.Lock()
	defer l.ending.Unlock()
	l.kept.Store(&until)
}

// lapse loses the lease if its end has come, and reports whether it did. Else left is the time until then.
func (l *lease) lapse(now time.Time) (left time.Duration, lost bool) {
	l.ending.Lock()
	defer l.ending.Unlock()
	if left = l.until().Sub(now); left > 0 {
		return left, false
	}
	return 0, l.lose()
}

func newLease(base context.Context, id string, until time.Time) *lease {
	l := &lease{id: id, epoch: new(atomic.Int64)}
	l.keep(until)
	l.epoch.Store(1)
	l.ctx, l.cancel = context.WithCancelCause(base)
	return l
}

// renewed is the lease of the same id with a fresh context, after an outage in which nobody took it. They share the
// epoch: the claimer may be raising it just now.
func (l *lease) renewed(base context.Context) *lease {
	fresh := &lease{id: l.id, epoch: l.epoch}
	fresh.keep(l.until())
	fresh.ctx, fresh.cancel = context.WithCancelCause(base)
	return fresh
}

// raise follows what the claimer or the table says.
func (l *lease) raise(epoch int) {
	for old := l.epoch.Load(); old < int64(epoch); old = l.epoch.Load() {
		if l.epoch.CompareAndSwap(old, int64(epoch)) {
			return
		}
	}
}

// lose cancels the handlers before others may take their jobs. It reports whether nobody had.
func (l *lease) lose() bool {
	if l.ended.Swap(true) {
		return false
	}
	l.cancel(ErrLeaseLost)
	return true
}

// control keeps a supervisor's lease, hears notifications, and watches over other supervisors. One goroutine owns it.
type control struct {
	*shared
	lookout   *lookout
	settler   *settler
	redriver  *redriver
	scheduler *scheduler
	alarm     *alarm

	base      context.Context //nolint:containedctx // the values handlers see
	link      link
	listening *pgx.Conn // the connection that has sent LISTEN
	bell      string    // the supervisor that it has sent it for, and whose lock it holds
	beaten    time.Time // when the last successful beat was sent
	counted   int64     // by our row: beats, the last successful one included
	urgent    hurry     // beats that come before their time
	silences  silences
	hunts     map[string]*hunt // for the jobs of lost peers
	living    []string         // the other supervisors, as the last beat found them
	orphans   *hunt            // for jobs whose owner no row speaks for
	allBy     time.Time        // when the next such hunt also reads jobs that are not due
	sweeps    int64            // the last sweepEvery of the server's clock that was looked at
	sweepAt   time.Time        // not before
	behind    sweepOrder
	floorsBy  time.Time // nor before this as long as there are no floors
	was       string    // our last id, if others took its lease; takeBack undoes what they did
	solos     blame.SoloPace
	limits    follower
	clock     clockTrouble
	trouble   trouble   // of beats
	deaf      trouble   // of LISTEN
	strays    []string  // ids that may be registered, and are not ours
	asked     time.Time // for runs that are over, where no notification is heard
	cancels   []string  // jobs that a notification calls cancelled
}

func newControl(s *shared, k *lookout, e *settler, r *redriver, t *scheduler, a *alarm) *control {
	c := &control{
		shared: s, lookout: k, settler: e, redriver: r, scheduler: t, alarm: a, link: link{store: s.client.store},
		silences: silences{peers: map[string]observation{}}, hunts: map[string]*hunt{},
	}
	c.trouble = newTrouble(s, "after most of a lease the running jobs are cancelled", &c.link)
	c.deaf = newTrouble(s, "notifications are not heard, polls and heartbeats find the same later", nil)
	c.deaf.light = true
	return c
}

// register takes a fresh id. A registration whose reply was lost may stand, and would pass for a supervisor that is awake
// for as long as nobody declares it lost: the next one takes it out of the tables, or a stop does.
func (c *control) register(ctx context.Context) error {
	conn, err := c.link.get(ctx)
	if err != nil {
		return err
	}
	for _, stray := range c.strays {
		if err := c.client.store.forget(ctx, conn, stray); err != nil {
			return err
		}
	}
	id, sent := ulid.Make().String(), c.now()
	c.strays = []string{id}
	reg := c.registration(id, c.queues.states())
	if err := c.client.store.register(ctx, conn, reg); err != nil {
		if notApplied(err) {
			c.strays = nil
		}
		return periodicError(err)
	}
	c.strays = nil
	c.knowBudgets(reg.scopes)
	c.tellUndeclared(ctx, reg.refused)
	c.beaten, c.counted = sent, 0
	c.solos = blame.SoloPace{}
	c.floorsBy = sent.Add(c.cfg.Lease / 2)
	c.lookout.solo.Store(nil)
	if err := c.readLimits(ctx, conn, id); err != nil {
		c.strays = []string{id} // nobody has heard of it yet
		return err
	}
	c.take(newLease(c.base, id, c.deadline())) //nolint:contextcheck // handlers' contexts outlive this one
	c.lookout.distrust()
	return nil
}

// run beats six times a lease, and more often while beats fail. In between it waits for notifications.
func (c *control) run(ctx context.Context) {
	defer c.link.close(ctx)
	period := c.cfg.Lease / 6
	due := c.now() // the first tells how the others look
	next := due    // or earlier, where something waits for it
	c.listens()    //nolint:contextcheck // before that, which finds what is cancelled until then; an interrupt would cost the connection
	for ctx.Err() == nil {
		c.wait(ctx, c.sooner(c.askAt(next)))
		c.expire(c.lease.Load(), c.now())
		c.hearLimits(ctx)
		c.passClaims(ctx)
		c.askCancelled(ctx)
		now := c.now()
		if c.alarm.interrupted() {
			next = c.urgent.next(now, next)
		}
		if ctx.Err() != nil || now.Before(next) {
			c.askUnheard(ctx)
			continue
		}
		c.urgent.went(now, due)
		err := c.beat(ctx)
		due = now.Add(period)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			c.trouble.failed(ctx, "heartbeat", err)
			if c.trouble.until.Before(due) {
				due = c.trouble.until
			}
		default:
			c.trouble.over(ctx)
		}
		next = due
	}
}

// deadline is when handlers must be told that the lease is not kept up: others may take the jobs a lease after the
// last beat that they saw.
func (c *control) deadline() time.Time { return c.beaten.Add(c.cfg.Lease * 4 / 5) }

// sooner is the given time, or the deadline if that comes first and handlers have not been told yet.
func (c *control) sooner(at time.Time) time.Time {
	if end := c.deadline(); !c.lease.Load().ended.Load() && end.Before(at) {
		return end
	}
	return at
}

// expire cancels the handlers if the lease has not been kept up, whatever holds up the beat. It returns how long it still is.
func (c *control) expire(l *lease, now time.Time) (left time.Duration) {
	left, lost := l.lapse(now)
	if lost {
		c.log.ErrorContext(c.base, "no heartbeat for most of a lease; running jobs are cancelled", slog.String("supervisor", l.id))
	}
	return left
}

// take makes a lease the supervisor's. A timer lets it expire as well, because the application may hold up the control
// goroutine: by a log that blocks, a retry strategy, Redact, a hook of the pool.
func (c *control) take(l *lease) {
	l.timer = time.AfterFunc(c.cfg.Lease, func() {
		if c.over.Load() || l.ended.Load() {
			return
		}
		if left := c.expire(l, time.Now()); left > 0 {
			l.timer.Reset(left)
		}
	})
	c.lease.Store(l)
	l.timer.Reset(time.Until(l.until()))
}

// wait hears notifications until the given time, an interrupt, or the end.
func (c *control) wait(ctx context.Context, until time.Time) {
	ctx, cancel := context.WithTimeout(ctx, until.Sub(c.now()))
	defer cancel()
	c.alarm.waits(cancel)
	for ctx.Err() == nil {
		if !c.listens() { //nolint:contextcheck // an interrupt in the middle of a statement would cost the connection
			<-ctx.Done()
			return
		}
		note, err := c.listening.WaitForNotification(ctx)
		if err == nil {
			c.heard(note.Payload)
			if c.limits.stale {
				return
			}
			if len(c.cancels) == 1 { // more may come with it
				defer time.AfterFunc(cancelsTogether, cancel).Stop()
			}
		} else if ctx.Err() == nil {
			c.deaf.failed(ctx, "listening", err)
			c.alarm.interrupt() // the beat makes a new one
			return
		}
	}
}

// listens sends LISTEN on a fresh connection. Notifications are hints: a job was enqueued while all slept, or a
// running one was cancelled. Without them the polls find the same.
func (c *control) listens() bool {
	conn := c.link.conn
	if c.cfg.DisableNotify || conn == nil || conn.IsClosed() {
		return false
	}
	if id := c.lease.Load().id; c.listening == conn && c.bell == id {
		return true
	}
	c.lookout.polls.places.Store(nil)
	ctx, cancel := context.WithDeadline(c.base, c.sooner(c.now().Add(min(5*time.Second, c.cfg.Lease/6))))
	defer cancel()
	id := c.lease.Load().id
	fresh, was := c.listening != conn, c.bell
	if fresh {
		was = ""
	}
	known, err := c.client.store.hear(ctx, conn, id, was)
	if err != nil {
		c.deaf.failed(ctx, "listening", err)
		return false
	}
	c.deaf.over(ctx)
	if c.listening, c.bell = conn, ""; known {
		c.bell = id
	}
	// What came before, while nobody listened: the claimer finds jobs, and a beat what was cancelled.
	c.lookout.wake()
	if fresh {
		c.alarm.interrupt()
	}
	return true
}

// heard acts on a notification's text.
func (c *control) heard(payload string) {
	verb, what, _ := strings.Cut(payload, " ")
	switch verb {
	case "wake":
		if slices.Contains(c.queues.names(), what) {
			c.lookout.ring(what)
		}
	case "soon":
		if slices.Contains(c.queues.names(), what) {
			c.lookout.ringLater(what, c.now())
		}
	case "cancel":
		if len(c.settler.book.of(what)) > 0 {
			c.cancels = append(c.cancels, what)
		}
	case "redrive":
		c.redriver.poke()
	case "periodic":
		c.scheduler.poke()
	case "limits":
		c.limits.stale = true
	}
}

// beat is one round: sign of life, look at the others, rescue, sweep.
func (c *control) beat(ctx context.Context) error {
	l := c.lease.Load()
	sent := c.now()
	beating, cancel := context.WithTimeout(ctx, c.sooner(sent.Add(c.cfg.Lease/6)).Sub(sent))
	defer cancel()
	conn, err := c.link.get(beating)
	running, epoch := c.inFlight.under(l.id), int(l.epoch.Load())
	var reply beatReply
	if err == nil {
		reply, err = c.client.store.beat(beating, conn, l.id, epoch, fences(running), c.draining.Load(), c.openQueues(), c.openKinds())
	}
	if err != nil {
		c.expire(l, c.now())
		return err
	}
	// What follows may read much, and must leave time for the next beat.
	ctx, cancelRest := context.WithTimeout(ctx, c.cfg.Lease/3)
	defer cancelRest()
	switch {
	case !reply.alive:
		return c.refused(ctx, conn, l, epoch)
	case c.forgotten(l.id, epoch, reply.peers):
		return c.startOver(ctx, l, wentBack)
	}
	c.knowBudgets(reply.scope)
	c.silences.beat(sent.Sub(c.beaten) > c.cfg.Lease/3, c.now())
	c.beaten = sent
	l.keep(c.deadline())
	if l.ended.Load() {
		// The database was away and nobody took the jobs: go on under the same id, with fresh contexts. Others may have
		// waited for the end of this lease to be sure of a pause, so the limits come first.
		if err := c.readLimits(ctx, conn, l.id); err != nil {
			return err
		}
		c.take(l.renewed(c.base)) //nolint:contextcheck // handlers' contexts outlive this one
		c.lookout.wake()
	}
	c.tellGone(running, reply)
	c.sharePolls(conn, l, reply)
	if reply.paces {
		c.redriver.poke()
	}
	c.scheduler.heard(reply.ticks)
	c.limits.stale = c.limits.stale || reply.limits != c.limits.stamp
	return c.afterBeat(ctx, conn, l, reply)
}

// sharePolls notes our place among those that share the polls, as long as we would hear of a job.
func (c *control) sharePolls(conn *pgx.Conn, l *lease, reply beatReply) {
	if c.listening != conn || c.bell != l.id {
		c.lookout.polls.places.Store(nil)
		return
	}
	places := make([]pollPlace, 0, len(reply.places)/2)
	for pair := range slices.Chunk(reply.places, 2) {
		places = append(places, pollPlace{at: pair[0], of: pair[1]})
	}
	c.lookout.polls.places.Store(&places)
}

// afterBeat runs the steps of a beat after the sign of life. A step that fails is logged, and does not keep later
// ones from running. It returns an error only if the connection is gone or no time is left.
func (c *control) afterBeat(ctx context.Context, conn *pgx.Conn, l *lease, reply beatReply) error {
	for _, step := range []struct {
		name string
		run  func() error
	}{
		{"following the limits", func() error { return c.followLimits(ctx, conn, l.id) }},
		{"registering the queues", func() error { return c.serveAgain(ctx, conn, l, reply) }},
		{"watching the others", func() error {
			// However many jobs there are to rescue, some of the time is left to the other steps.
			ctx, cancel := context.WithTimeout(ctx, c.cfg.Lease/4)
			defer cancel()
			return c.observe(ctx, conn, l, reply)
		}},
		{"adding failures to their groups", func() error {
			if !reply.failures || !c.pruner.Load() {
				return nil
			}
			return c.tendFailures(ctx, conn)
		}},
		{"writing rows again that the database has lost", func() error { return c.reassert(ctx, conn, l, reply) }},
		{"the turn to run strong suspects", func() error { return c.solo(ctx, conn, l, reply.solo) }},
		{"taking back a death", func() error { return c.takeBack(ctx, conn) }},
		{"full sweep", func() error { return c.sweep(ctx, conn, l, reply) }},
		{"looking for jobs that wait for the server's clock", func() error { return c.tellClock(ctx, conn, reply.behind) }},
	} {
		err := step.run()
		if conn.IsClosed() || ctx.Err() != nil {
			return fmt.Errorf("%s: %w", step.name, errors.Join(err, ctx.Err()))
		}
		if err != nil && c.quiet.may(step.name+sqlState(err), c.now()) {
			c.log.WarnContext(ctx, step.name+" failed; tried again with the next heartbeat", slog.String("error", err.Error()))
		}
	}
	return nil
}

// errNoTime ends a step early; the next beat goes on with it.
var errNoTime = errors.New("no time left before the next heartbeat")

// timeFor returns errNoTime if a statement that takes d would be cut off, which would cost the connection.
func timeFor(ctx context.Context, d time.Duration) error {
	if end, ok := ctx.Deadline(); ctx.Err() != nil || ok && time.Until(end) < d {
		return errNoTime
	}
	return nil
}

// bound is how long a statement over many jobs may take. The walk that finds one job among 500 meets some twenty
// time-outs if that job causes them, and a beat should have room for all of these.
func (c *control) bound() time.Duration { return max(c.cfg.Lease/100, 50*time.Millisecond) }

// tendFailures adds what settles have recorded to the failure groups, tells which came back, and makes parked jobs due
// whose build has come. One supervisor at a time does so, the one that prunes; two would not harm.
func (c *control) tendFailures(ctx context.Context, conn *pgx.Conn) error {
	reopened, due, err := c.client.store.tendFailures(ctx, conn)
	if due > 0 {
		c.lookout.wake() // this session holds our own bell: drover_wake takes us for dead
	}
	if err != nil {
		return err
	}
	for _, g := range reopened {
		c.reporter.tell(g.tellReopened(c.lease.Load().id))
	}
	return nil
}

// tellGone ends the contexts of runs whose jobs are not ours any more. One that settled its job in a transaction of
// its own may work on.
func (c *control) tellGone(running []*run, reply beatReply) {
	for _, r := range running {
		cancelled, gone := reply.gone[&r.fence]
		if !gone || r.txOutcome.Load() != nil || !c.inFlight.has(r) {
			continue
		}
		if cancelled {
			r.cancel(ErrCancelled)
		} else {
			r.cancel(ErrLeaseLost)
			c.lookout.goneBack() // for nobody may take it while we have the lease
		}
	}
}

// refused finds out why our row did not take a beat with an epoch. Either the claimer raised the epoch, perhaps without
// having heard of it: the next beat has it. Or others have declared us lost, or the database has forgotten the epoch.
func (c *control) refused(ctx context.Context, conn *pgx.Conn, l *lease, sent int) error {
	epoch, lost, err := c.client.store.epoch(ctx, conn, l.id)
	switch {
	case err != nil:
		return err
	case lost:
		return c.startOver(ctx, l, "lease lost")
	case epoch < sent:
		return c.startOver(ctx, l, wentBack)
	}
	l.raise(epoch)
	c.alarm.interrupt()
	return nil
}

// startOver gives up the lease, and goes on under another id.
func (c *control) startOver(ctx context.Context, l *lease, why string) error {
	l.lose()                                      // before a log that may block
	if c.quiet.may("start over "+l.id, c.now()) { // registering may fail, and be tried again
		c.log.ErrorContext(ctx, why+"; running jobs are cancelled", slog.String("supervisor", l.id))
	}
	if err := c.register(ctx); err != nil {
		return err
	}
	c.was = l.id
	return nil
}

// observe looks at the other supervisors: it declares lost those that are dead, rescues the jobs of those that are lost,
// and notes the silence of others. What the database refuses is logged, and waits for the next beat; an error is returned
// only if the connection is gone.
func (c *control) observe(ctx context.Context, conn *pgx.Conn, l *lease, reply beatReply) error {
	now, served := c.now(), c.queues.names()
	seen := map[string]bool{}
	first, sharing := l.id, 0
	for _, x := range reply.peers {
		seen[x.id] = true
		if !x.lost {
			first = min(first, x.id)
			if slices.ContainsFunc(x.queues, func(q string) bool { return slices.Contains(served, q) }) {
				sharing++
			}
		}
		if x.id == l.id {
			continue
		}
		silence := c.silences.of(x, now)
		if silence.note {
			if err := c.client.store.noteSilence(ctx, conn, x, silence.lasts); err != nil {
				continue // the next beat reports it
			}
		}
		if silence.dead && !x.lost {
			lost, err := c.client.store.declareLost(ctx, conn, x)
			if conn.IsClosed() {
				return err
			}
			if err != nil && c.quiet.may("declare lost "+x.id, now) {
				c.log.WarnContext(ctx, "could not mark a silent supervisor as lost", slog.String("supervisor", x.id), slog.String("error", err.Error()))
			}
			if err != nil || !lost {
				continue
			}
			x.lost = true
			c.log.WarnContext(ctx, "supervisor fell silent; its jobs are being rescued", slog.String("supervisor", x.id))
		}
		if x.lost {
			err := c.rescue(ctx, conn, x)
			if conn.IsClosed() {
				return err
			}
			if err != nil && c.quiet.may("rescue "+x.id+sqlState(err), now) {
				c.log.WarnContext(ctx, "rescue interrupted; it goes on with the next heartbeat", slog.String("supervisor", x.id), slog.String("error", err.Error()))
			}
		}
	}
	maps.DeleteFunc(c.silences.peers, func(id string, _ observation) bool { return !seen[id] })
	maps.DeleteFunc(c.hunts, func(id string, _ *hunt) bool { return !seen[id] })
	c.lookout.near.share(sharing)
	c.pruner.Store(first == l.id)
	return c.declareAgain(ctx, conn, l, reply.peers)
}

// end takes this supervisor out of the tables. If that fails others find it silent, with nothing to rescue.
func (c *control) end(ctx context.Context) {
	c.signOff(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return errors.Join(c.tendFailures(ctx, conn), c.client.store.forget(ctx, conn, c.lease.Load().id))
	})
}

// endStrays takes registrations out of the tables that may stand although the supervisor never ran.
func (c *control) endStrays(ctx context.Context) {
	if len(c.strays) == 0 {
		return
	}
	c.signOff(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		for _, id := range c.strays {
			err = errors.Join(err, c.client.store.forget(ctx, conn, id))
		}
		return err
	})
}

func (c *control) signOff(ctx context.Context, forget func(context.Context, *pgx.Conn) error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	link := link{store: c.client.store}
	defer link.close(ctx)
	conn, err := link.get(ctx)
	if err == nil {
		err = forget(ctx, conn)
	}
	if err != nil {
		c.log.WarnContext(ctx, "supervisor could not report its end; others rescue its jobs after a lease", slog.String("error", err.Error()))
	}
}
