package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drover-queue/drover/internal/blame"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// keeper keeps the lease, listens for notifications, and watches other supervisors. One goroutine at a time owns it,
// except for ending, mu, and the fields below mu.
type keeper struct {
	*Shared
	budgets   *budgets
	claimer   *claimer
	redriver  *redriver
	scheduler *scheduler
	Base      context.Context //nolint:containedctx // handlers see its context values
	Link      store.Line
	Listening store.Session // the connection that has sent LISTEN
	OnCall    *onCall
	timer     *time.Timer // ends the lease; nil before run
	ending    sync.Mutex  // held while the deadline is moved or checked, so that the two do not overlap
	counted   int64       // the least number of beats that our row must show; if it shows fewer, see rewound.go
	urgent    BeatPacer   // makes pauses between beats that come before their time
	silences  Silences
	Hunts     map[string]*store.Scan // the searches for the jobs of lost supervisors, by supervisor id
	orphans   *store.Scan            // the search for jobs whose owner has no row
	AllBy     time.Time              // when the next scan for orphans also reads jobs that are not due
	Sweeps    int64                  // the last turn of full sweeps (sweep.go) at which the keeper has looked
	SweepAt   time.Time              // no full sweep before this time
	behind    sweepOrder
	FloorsBy  time.Time   // while the claimer has no floors, no full sweep before this time
	Was       []PastLease // the leases that we have lost, oldest first, for UndoCrashes
	turns     blame.Turns
	Limits    *follower
	Trouble   Trouble   // failures of beats
	deaf      Trouble   // failures of LISTEN
	living    []string  // the other supervisors that were alive at the last beat; only kept if we declare schedules
	declare   bool      // the next beat declares the schedules again, because our registration may have left one out
	strays    []string  // ids that may have a row although we do not use them
	Asked     time.Time // when AskUnheard last asked, moved later if the answer took long

	mu   sync.Mutex
	stop context.CancelFunc // ends the wait for a notification
	soon bool               // beat now
	rung bool               // handle the open calls (calls.go) now
}

func newKeeper(s *Shared, b *budgets, cl *claimer, r *redriver, t *scheduler) *keeper {
	c := &keeper{Shared: s, budgets: b, claimer: cl, redriver: r, scheduler: t, Link: store.NewLine(s.pool), silences: Silences{Peers: map[string]Observation{}}, Hunts: map[string]*store.Scan{}}
	c.Limits = &follower{Shared: s, claimer: cl}
	c.OnCall = newOnCall(s, c.Limits.heard)
	c.Trouble = Trouble{means: "after most of a lease the running jobs are cancelled", vital: true, link: &c.Link}
	c.deaf = Trouble{means: "notifications are not heard, polls and heartbeats find the same later"}
	return c
}

// run sends six heartbeats (beats) a lease, and more while they fail. In between it waits for notifications.
func (c *keeper) run(ctx context.Context) {
	defer c.Link.Close(ctx)
	// The application may hold up this goroutine by a log that blocks, by Redact, or by a hook of the pool. The timer
	// ends the lease all the same.
	c.timer = time.AfterFunc(c.deadline().Sub(c.Now()), func() { c.Expire(c.Base) })
	defer func() {
		if ctx.Err() != nil { // if ctx is not done, runtime.Goexit ends the goroutine, and only the timer can end the lease
			c.timer.Stop()
		}
	}()
	period := c.Cfg.Lease / 6
	due := c.Now() // the first beat comes immediately, because it finds the other supervisors
	next := due    // the next beat: at due, or earlier if something waits for it
	c.Listens()    //nolint:contextcheck // as in wait. LISTEN comes first, and the beat finds earlier cancels
	for ctx.Err() == nil {
		c.wait(ctx, c.Sooner(c.OnCall.next(c.askAt(next), c.hears())))
		c.Expire(ctx)
		c.TendCalls(ctx)
		c.HearLimits(ctx)
		now := c.Now()
		if c.Interrupted() {
			next = c.urgent.Next(now, next)
		}
		if ctx.Err() != nil || now.Before(next) {
			c.AskUnheard(ctx)
			continue
		}
		c.urgent.Went(now, due)
		err := c.Beat(ctx)
		due = now.Add(period)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			c.Trouble.Failed(ctx, c.Shared, "heartbeat", err)
			if c.Trouble.Until.Before(due) {
				due = c.Trouble.Until
			}
		default:
			c.Trouble.Over(ctx, c.Shared)
		}
		next = due
	}
}

// Kept records that a statement sent at the given time has kept the lease.
func (c *keeper) Kept(sent time.Time) {
	c.ending.Lock()
	c.beaten.Store(&sent)
	if c.timer != nil {
		c.timer.Reset(c.deadline().Sub(c.Now()))
	}
	c.ending.Unlock()
	c.Outage.Wrote(c.Base, c.Shared, sent) // last: it may log, and a log may block
}

// Sooner returns the given time, or the deadline of the lease if that comes first and the lease has not ended.
func (c *keeper) Sooner(at time.Time) time.Time {
	if end := c.deadline(); !c.Lease.Load().Ended.Load() && end.Before(at) {
		return end
	}
	return at
}

// Expire ends the lease and cancels the handlers if the deadline has passed, whatever holds up the beat.
func (c *keeper) Expire(ctx context.Context) {
	c.ending.Lock()
	l := c.Lease.Load()
	lost := !c.Now().Before(c.deadline()) && l.Lose()
	c.ending.Unlock()
	if lost {
		c.log.ErrorContext(ctx, "no heartbeat for most of a lease, running jobs are cancelled", slog.String("supervisor", l.ID))
	}
}

// Interrupt makes the next beat come immediately.
func (c *keeper) Interrupt() { c.wake(&c.soon) }

// wake sets a flag, and ends the wait for a notification.
func (c *keeper) wake(flag *bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*flag = true
	if c.stop != nil {
		c.stop()
	}
}

func (c *keeper) Interrupted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.soon
	c.soon = false
	return now
}

// wait acts on notifications until the given time, or until Interrupt, Ring or the end of ctx.
func (c *keeper) wait(ctx context.Context, until time.Time) {
	ctx, cancel := context.WithTimeout(ctx, until.Sub(c.Now()))
	defer cancel()
	c.mu.Lock()
	c.stop = cancel
	if c.soon || c.rung {
		cancel()
	}
	c.mu.Unlock()
	for ctx.Err() == nil {
		if !c.Listens() { //nolint:contextcheck // an interrupt in the middle of a statement would cost the connection
			<-ctx.Done()
			return
		}
		note, err := c.Listening.WaitForNotification(ctx)
		if err == nil {
			c.Heard(note)
			if c.Limits.Stale || c.Rung() {
				return
			}
		} else if ctx.Err() == nil {
			c.deaf.Failed(ctx, c.Shared, "listening", err)
			c.Interrupt() // the beat opens a new connection
			return
		}
	}
}

// Listens reports whether the current connection listens. On a fresh connection it sends LISTEN first. Notifications
// are only hints, for example that a job was enqueued while all supervisors slept, or that a running job was cancelled.
// Without notifications, polls and beats find the same changes.
func (c *keeper) Listens() bool {
	conn := c.Link.Current()
	if c.Cfg.DisableNotify || conn.Closed() || c.Now().Before(c.OnCall.deafBy) {
		return false
	}
	if c.Listening == conn {
		return true
	}
	ctx, cancel := context.WithDeadline(c.Base, c.Sooner(c.Now().Add(min(5*time.Second, c.Cfg.Lease/6))))
	defer cancel()
	if err := conn.Listen(ctx); err != nil {
		c.deaf.Failed(ctx, c.Shared, "listening", err)
		return false
	}
	c.deaf.Over(ctx, c.Shared)
	c.Listening = conn
	c.OnCall.goOn(ctx, conn, true)
	// Notifications that came while nobody listened are lost. So the claimer looks for jobs now, and a beat
	// looks for cancelled runs.
	c.alarm.Wake()
	c.Interrupt()
	return true
}

// Heard acts on the text of a notification.
func (c *keeper) Heard(payload string) {
	verb, what, _ := strings.Cut(payload, " ")
	switch verb {
	case "wake", "pass", "all":
		c.OnCall.called(verb, what)
	case "cancel":
		c.cancelRun(what)
	case "redrive":
		c.redriver.poke()
	case "limits":
		c.Limits.Stale = true
	case "periodic":
		c.scheduler.poke()
	}
}

// Ring makes the keeper handle the open calls (calls.go) now.
func (c *keeper) Ring() { c.wake(&c.rung) }

// Rung reports whether there are calls to handle, or whether too many notifications were for other supervisors.
func (c *keeper) Rung() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rung || c.OnCall.noise.over()
}

// TendCalls hands on the calls that were not answered in time, and goes on call. If too many notifications were for
// other supervisors, the keeper stops listening.
func (c *keeper) TendCalls(ctx context.Context) {
	c.mu.Lock()
	c.rung = false
	c.mu.Unlock()
	if c.hears() && c.OnCall.tooLoud() {
		if c.Link.Current().Unlisten(ctx) == nil {
			c.Listening = store.Session{}
		}
	}
	c.OnCall.tend(ctx, c.Link.Current(), c.hears())
}

// Beat is one heartbeat: it sends a sign of life, looks at the other supervisors, rescues jobs, and sweeps.
func (c *keeper) Beat(ctx context.Context) error {
	l := c.Lease.Load()
	sent := c.Now()
	beating, cancel := context.WithTimeout(ctx, c.Sooner(sent.Add(c.Cfg.Lease/6)).Sub(sent))
	defer cancel()
	conn, err := c.Link.Get(beating)
	running, epoch := c.InFlight.under(l.ID), int(l.Epoch.Load())
	var reply store.BeatReply
	if err == nil {
		firsts := c.OnCall.missing(c.hears())
		reply, err = conn.Beat(beating, l.ID, epoch, Fences(running), c.Draining.Load(), c.openQueues(), c.openKinds(), slices.Collect(maps.Values(firsts)))
		c.OnCall.went(conn, firsts, reply.OnCall, err)
	}
	if err != nil {
		c.Expire(ctx)
		return err
	}
	c.Expire(ctx) // if the deadline has passed, a Client.Pause has not waited for us, so the lease must end here
	// The steps after the sign of life may read much, and must leave time for the next beat.
	ctx, cancelRest := context.WithTimeout(ctx, c.Cfg.Lease/3)
	defer cancelRest()
	switch {
	case !reply.Alive:
		return c.beatRefused(ctx, conn, l, epoch)
	case c.rowIsOlder(l.ID, epoch, reply.Peers):
		return c.startOver(ctx, l, WentBack)
	}
	c.budgets.know(reply.Scope)
	c.silences.Beat(sent.Sub(*c.beaten.Load()) > c.Cfg.Lease/3, c.Now())
	c.Kept(sent)
	if l.Ended.Load() {
		// The database was away, and no supervisor took our jobs: we go on under the same id, with fresh contexts. A
		// Client.Pause may have returned when this lease ended, so we read the limits before we renew the lease.
		c.Limits.anew()
		if err := c.Limits.Follow(ctx, conn, l.ID); err != nil {
			return err
		}
		c.Lease.Store(l.renewed(c.Base)) //nolint:contextcheck // handlers' contexts outlive this one
		c.alarm.Wake()
	}
	c.cancelGone(running, reply.Gone)
	if reply.Paces {
		c.redriver.poke()
	}
	c.Limits.heard(reply.Limits)
	c.scheduler.heard(reply.Tick)
	return c.afterBeat(ctx, conn, l, reply)
}

// afterBeat runs the steps of a beat after the sign of life. If a step fails, afterBeat logs the error and goes on with
// the next step. It returns an error only if the connection is gone or no time is left.
func (c *keeper) afterBeat(ctx context.Context, conn store.Session, l *lease, reply store.BeatReply) error {
	for _, step := range []struct {
		name string
		run  func() error
	}{
		{"following the limits", func() error { return c.Limits.Follow(ctx, conn, l.ID) }},
		{"registering the queues", func() error { return c.serveAgain(ctx, conn, l, reply) }},
		{"watching the others", func() error {
			// This bound leaves time for the other steps, however many jobs there are to rescue.
			ctx, cancel := context.WithTimeout(ctx, c.Cfg.Lease/4)
			defer cancel()
			return c.observe(ctx, conn, l, reply)
		}},
		{"declaring the schedules again", func() error { return c.declareAgain(ctx, conn, l, reply.Peers) }},
		{"tending failure groups", func() error {
			if !reply.Failures || !c.Prunes.Load() {
				return nil
			}
			return c.tendFailures(ctx, conn)
		}},
		{"writing what the tables have forgotten", func() error { return c.rewriteCrews(ctx, conn, l, reply) }},
		{"the turn to run strong suspects", func() error { return c.takeTurns(ctx, conn, l, reply) }},
		{"taking back a death", func() error { return c.UndoCrashes(ctx, conn, c.Bound(), c.Cfg.Lease/12) }},
		{"full sweep", func() error { return c.Sweep(ctx, conn, l, reply) }},
	} {
		err := step.run()
		if conn.Closed() || ctx.Err() != nil {
			return fmt.Errorf("%s: %w", step.name, errors.Join(err, ctx.Err()))
		}
		if err != nil && c.seldom.Allow(step.name+pg.SQLState(err), c.Now()) {
			c.log.WarnContext(ctx, step.name+" failed, goes on with the next beat", slog.String("error", err.Error()))
		}
	}
	return nil
}

// takeTurns takes, keeps or releases the turn to run strong suspects. Only one supervisor has that turn at a time.
func (c *keeper) takeTurns(ctx context.Context, conn store.Session, l *lease, reply store.BeatReply) error {
	now, order := c.Now(), c.Solo.Load()
	wanted := reply.Solo != "" && !c.Draining.Load()
	switch {
	case order != nil && !order.Over.Load():
		return nil
	case order != nil && (!wanted || !c.turns.GoesOn(now, order.ran.Load())):
		if err := conn.ReleaseSolo(ctx, l.ID); err != nil {
			return err
		}
		c.turns.End(now, order.idle.Load())
		c.Solo.Store(nil)
		c.alarm.Wake()
		return nil
	case order == nil && (!wanted || !c.turns.May(now)):
		if !reply.Turn {
			return nil
		}
		return conn.ReleaseSolo(ctx, l.ID) // the database went back to a state in which the turn is ours
	case order == nil:
		if taken, err := conn.TakeSolo(ctx, l.ID); err != nil || !taken {
			return err
		}
		c.turns.Begin(now)
	}
	c.Solo.Store(&SoloOrder{Queue: reply.Solo, IdleBy: now.Add(c.turns.Patience)})
	c.alarm.Wake()
	return nil
}

// Bound returns how long a statement over many jobs may take. Suppose that one job of 500 makes each statement that
// contains it time out. The walk that finds this job meets some twenty time-outs, and a beat should have time for all
// of them.
func (c *keeper) Bound() time.Duration { return max(c.Cfg.Lease/100, 50*time.Millisecond) }

// tendFailures adds up the failures that settles have recorded, reports the failure groups that came back, and makes
// parked jobs due if the build that they wait for is running now. The supervisor that prunes calls it, and so does each
// supervisor that stops. Two supervisors may run it at the same time.
func (c *keeper) tendFailures(ctx context.Context, conn store.Session) error {
	reopened, err := conn.TendFailures(ctx)
	if err != nil {
		return err
	}
	for _, g := range reopened {
		c.report(EventFailureReopened, &Run{
			Fence: store.Fence{ID: g.LastJob, Owner: c.Lease.Load().ID}, Kind: g.Kind,
			End: Outcome{Class: g.Class, Text: g.Sample, Fingerprint: g.Fingerprint},
		})
	}
	return nil
}

// cancelGone ends the contexts of runs whose jobs are not ours any more. The keys of the map over are the indexes of
// these runs. Its value is true if an operator ended the job. A handler that settled its job in its own transaction may
// work on.
func (c *keeper) cancelGone(running []*Run, over map[int]bool) {
	for i, r := range running {
		cancelled, gone := over[i]
		if !gone || r.txOutcome.Load() != nil || !c.InFlight.Has(r) {
			continue
		}
		if cancelled {
			r.Cancel(pg.ErrCancelled)
		} else {
			r.Cancel(pg.ErrLeaseLost)
			c.rewound() // other supervisors take no job while we have the lease, so the database may have gone back
		}
	}
}

// beatRefused finds out why a beat did not match our row. Perhaps the claimer has raised the epoch, and does not know
// yet that this succeeded. Then the next beat uses the raised epoch. If another supervisor has declared us lost, or the
// database has gone back to a state with an older epoch, we start over.
func (c *keeper) beatRefused(ctx context.Context, conn store.Session, l *lease, sent int) error {
	epoch, lost, err := conn.Epoch(ctx, l.ID)
	switch {
	case err != nil:
		return err
	case lost:
		return c.startOver(ctx, l, "lease lost")
	case epoch < sent:
		return c.startOver(ctx, l, WentBack)
	}
	l.Raise(epoch)
	c.Interrupt()
	return nil
}

// startOver gives up the lease, and registers under a new id.
func (c *keeper) startOver(ctx context.Context, l *lease, why string) error {
	l.Lose()                                         // before a log that may block
	if c.seldom.Allow("start over "+l.ID, c.Now()) { // startOver comes again if registering fails
		c.log.ErrorContext(ctx, why+", running jobs are cancelled", slog.String("supervisor", l.ID))
	}
	c.NoteLost(l.ID) // so that a stop takes back the crashes counted for this lease even if registering fails
	return c.Register(ctx)
}

// observe looks at the other supervisors. It declares dead supervisors lost, rescues the jobs of lost supervisors, and
// notes how long others have been silent. If the database refuses a step, observe logs the error and leaves the step to
// the next beat. It returns an error only if the connection is gone.
func (c *keeper) observe(ctx context.Context, conn store.Session, l *lease, reply store.BeatReply) error {
	now, served := c.Now(), c.QueueNames()
	seen := map[string]bool{}
	first, sharers := l.ID, []string{}
	for _, x := range reply.Peers {
		seen[x.ID] = true
		if !x.Lost {
			first = min(first, x.ID)
			if slices.ContainsFunc(x.Queues, func(q string) bool { return slices.Contains(served, q) }) {
				sharers = append(sharers, x.ID)
			}
		}
		if x.ID == l.ID {
			continue
		}
		silence := c.silences.Of(x, now)
		if silence.Note {
			if err := conn.NoteSilence(ctx, x, silence.lasts); err != nil {
				continue // the next beat reports it
			}
		}
		if silence.Dead && !x.Lost {
			lost, err := conn.DeclareLost(ctx, x)
			if conn.Closed() {
				return err
			}
			if err != nil && c.seldom.Allow("declare lost "+x.ID, now) {
				c.log.WarnContext(ctx, "silent supervisor could not be declared lost", slog.String("supervisor", x.ID), slog.String("error", err.Error()))
			}
			if err != nil || !lost {
				continue
			}
			x.Lost = true
			c.log.WarnContext(ctx, "supervisor fell silent, its jobs are rescued", slog.String("supervisor", x.ID))
		}
		if x.Lost {
			err := c.Rescue(ctx, conn, x)
			if conn.Closed() {
				return err
			}
			if err != nil && c.seldom.Allow("rescue "+x.ID+pg.SQLState(err), now) {
				c.log.WarnContext(ctx, "rescue goes on with the next beat", slog.String("supervisor", x.ID), slog.String("error", err.Error()))
			}
		}
	}
	maps.DeleteFunc(c.silences.Peers, func(id string, _ Observation) bool { return !seen[id] })
	maps.DeleteFunc(c.Hunts, func(id string, _ *store.Scan) bool { return !seen[id] })
	c.claimer.Near.Share(len(sharers))
	sharers = slices.DeleteFunc(sharers, func(id string) bool { return id == l.ID })
	c.sharers.Store(&sharers)
	c.Prunes.Store(first == l.ID)
	return nil
}
