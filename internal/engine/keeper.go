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

// keeper keeps the lease, listens for notifications, and watches other supervisors. One goroutine at a time owns its
// fields, except the two mutexes and the fields below mu.
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
	urgent    BeatPacer   // makes pauses between early beats
	silences  Silences
	Hunts     map[string]*store.Scan // the searches for the jobs of lost supervisors, by supervisor id
	orphans   *store.Scan            // the search for jobs whose owner has no row
	AllBy     time.Time              // when the next scan for orphans also reads jobs that are not due
	Sweeps    int64                  // the last turn of full sweeps (sweep.go) with which the keeper is done: it began a sweep, or the turn was not ours
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
	Asked     time.Time // when AskUnheard last asked; a later time if the answer took long, so that the next question comes later

	mu   sync.Mutex
	stop context.CancelFunc // ends the wait for a notification
	soon bool               // a beat is wanted now
	rung bool               // the open calls (calls.go) must be handled now
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
func (k *keeper) run(ctx context.Context) {
	defer k.Link.Close(ctx)
	// The application may hold up this goroutine by a log that blocks, by Redact, or by a hook of the pool. The timer
	// ends the lease all the same.
	k.timer = time.AfterFunc(k.deadline().Sub(k.Now()), func() { k.Expire(k.Base) })
	defer func() {
		if ctx.Err() != nil { // otherwise runtime.Goexit is ending this goroutine, and from now on only the timer can end the lease
			k.timer.Stop()
		}
	}()
	period := k.Cfg.Lease / 6
	due := k.Now() // the first beat comes immediately, because it finds the other supervisors
	next := due    // the next beat: at due, or earlier if something waits for it
	k.Listens()    //nolint:contextcheck // see wait. After LISTEN the first beat finds the cancels that came before LISTEN
	for ctx.Err() == nil {
		k.wait(ctx, k.Sooner(k.OnCall.next(k.askAt(next), k.hears())))
		k.Expire(ctx)
		k.TendCalls(ctx)
		k.HearLimits(ctx)
		now := k.Now()
		if k.Interrupted() {
			next = k.urgent.Next(now, next)
		}
		if ctx.Err() != nil || now.Before(next) {
			k.AskUnheard(ctx)
			continue
		}
		k.urgent.Went(now, due)
		err := k.Beat(ctx)
		due = now.Add(period)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			k.Trouble.Failed(ctx, k.Shared, "heartbeat", err)
			if k.Trouble.Until.Before(due) {
				due = k.Trouble.Until
			}
		default:
			k.Trouble.Over(ctx, k.Shared)
		}
		next = due
	}
}

// Kept records that a statement sent at the given time has kept the lease.
func (k *keeper) Kept(sent time.Time) {
	k.ending.Lock()
	k.beaten.Store(&sent)
	if k.timer != nil {
		k.timer.Reset(k.deadline().Sub(k.Now()))
	}
	k.ending.Unlock()
	k.Outage.Wrote(k.Base, k.Shared, sent) // last: it may log, and a log may block
}

// Sooner returns the given time, or the deadline of the lease if that comes first and the lease has not ended.
func (k *keeper) Sooner(at time.Time) time.Time {
	if end := k.deadline(); !k.Lease.Load().Ended.Load() && end.Before(at) {
		return end
	}
	return at
}

// Expire ends the lease and cancels the handlers if the deadline has passed, whatever holds up the beat.
func (k *keeper) Expire(ctx context.Context) {
	k.ending.Lock()
	l := k.Lease.Load()
	lost := !k.Now().Before(k.deadline()) && l.Lose()
	k.ending.Unlock()
	if lost {
		k.log.ErrorContext(ctx, "no heartbeat for most of a lease, running jobs are cancelled", slog.String("supervisor", l.ID))
	}
}

// Interrupt makes the next beat come immediately, or after a pause if the last beat was early, too (BeatPacer).
func (k *keeper) Interrupt() { k.wake(&k.soon) }

// wake sets a flag, and ends the wait for a notification.
func (k *keeper) wake(flag *bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	*flag = true
	if k.stop != nil {
		k.stop()
	}
}

func (k *keeper) Interrupted() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.soon
	k.soon = false
	return now
}

// wait acts on notifications until the given time, or until Interrupt, Ring or the end of ctx. It also returns if the
// limits have changed, if too many notifications are for other supervisors, or if the connection fails.
func (k *keeper) wait(ctx context.Context, until time.Time) {
	ctx, cancel := context.WithTimeout(ctx, until.Sub(k.Now()))
	defer cancel()
	k.mu.Lock()
	k.stop = cancel
	if k.soon || k.rung {
		cancel()
	}
	k.mu.Unlock()
	for ctx.Err() == nil {
		if !k.Listens() { //nolint:contextcheck // an interrupt in the middle of a statement would cost the connection
			<-ctx.Done()
			return
		}
		note, err := k.Listening.WaitForNotification(ctx)
		if err == nil {
			k.Heard(note)
			if k.Limits.Stale || k.Rung() {
				return
			}
		} else if ctx.Err() == nil {
			k.deaf.Failed(ctx, k.Shared, "listening", err)
			k.Interrupt() // the beat opens a new connection
			return
		}
	}
}

// Listens reports whether the current connection listens. On a fresh connection it sends LISTEN first. Notifications
// are only hints, for example that a job was enqueued while all supervisors slept, or that a running job was cancelled.
// Without notifications, polls and beats find the same changes.
func (k *keeper) Listens() bool {
	conn := k.Link.Current()
	if k.Cfg.DisableNotify || conn.Closed() || k.Now().Before(k.OnCall.deafBy) {
		return false
	}
	if k.Listening == conn {
		return true
	}
	ctx, cancel := context.WithDeadline(k.Base, k.Sooner(k.Now().Add(min(5*time.Second, k.Cfg.Lease/6))))
	defer cancel()
	if err := conn.Listen(ctx); err != nil {
		k.deaf.Failed(ctx, k.Shared, "listening", err)
		return false
	}
	k.deaf.Over(ctx, k.Shared)
	k.Listening = conn
	k.OnCall.goOn(ctx, conn, true)
	// Notifications that came while nobody listened are lost. So the claimer looks for jobs now, and a beat
	// looks for cancelled runs.
	k.alarm.Wake()
	k.Interrupt()
	return true
}

// Heard acts on the text of a notification.
func (k *keeper) Heard(payload string) {
	verb, what, _ := strings.Cut(payload, " ")
	switch verb {
	case "wake", "pass", "all":
		k.OnCall.called(verb, what)
	case "cancel":
		k.cancelRun(what)
	case "redrive":
		k.redriver.poke()
	case "limits":
		k.Limits.Stale = true
	case "periodic":
		k.scheduler.poke()
	}
}

// Ring makes the keeper handle the open calls (calls.go) now.
func (k *keeper) Ring() { k.wake(&k.rung) }

// Rung reports whether there are calls to handle, or too many notifications were for other supervisors.
func (k *keeper) Rung() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.rung || k.OnCall.noise.over()
}

// TendCalls hands on the calls that were not answered in time, and takes free call slots (oncall.go). If too many
// notifications were for other supervisors, the keeper stops listening.
func (k *keeper) TendCalls(ctx context.Context) {
	k.mu.Lock()
	k.rung = false
	k.mu.Unlock()
	if k.hears() && k.OnCall.tooLoud() {
		if k.Link.Current().Unlisten(ctx) == nil {
			k.Listening = store.Session{}
		}
	}
	k.OnCall.tend(ctx, k.Link.Current(), k.hears())
}

// Beat is one heartbeat: it sends a sign of life, looks at the other supervisors, rescues jobs, and sweeps.
func (k *keeper) Beat(ctx context.Context) error {
	l := k.Lease.Load()
	sent := k.Now()
	beating, cancel := context.WithTimeout(ctx, k.Sooner(sent.Add(k.Cfg.Lease/6)).Sub(sent))
	defer cancel()
	conn, err := k.Link.Get(beating)
	running, epoch := k.InFlight.ofOwner(l.ID), int(l.Epoch.Load())
	var reply store.BeatReply
	if err == nil {
		firsts := k.OnCall.missing(k.hears())
		reply, err = conn.Beat(beating, l.ID, epoch, Fences(running), k.Draining.Load(), k.openQueues(), k.openKinds(), slices.Collect(maps.Values(firsts)))
		k.OnCall.noteSlots(conn, firsts, reply.OnCall, err)
	}
	if err != nil {
		k.Expire(ctx)
		return err
	}
	k.Expire(ctx) // the beat succeeded. But if the deadline passed before, a Client.Pause may have returned without waiting for our runs, so the lease must end
	// The steps after the sign of life may read much, and must leave time for the next beat.
	ctx, cancelRest := context.WithTimeout(ctx, k.Cfg.Lease/3)
	defer cancelRest()
	switch {
	case !reply.Alive:
		return k.beatRefused(ctx, conn, l, epoch)
	case k.rowIsOlder(l.ID, epoch, reply.Peers):
		return k.startOver(ctx, l, WentBack)
	}
	k.budgets.know(reply.Scope)
	k.silences.Beat(sent.Sub(*k.beaten.Load()) > k.Cfg.Lease/3, k.Now())
	k.Kept(sent)
	if l.Ended.Load() {
		// The database was away, and no supervisor took our jobs: we go on under the same id, with fresh contexts. A
		// Client.Pause may have returned when this lease ended, so we read the limits before we renew the lease.
		k.Limits.confirmAgain()
		if err := k.Limits.Follow(ctx, conn, l.ID); err != nil {
			return err
		}
		k.Lease.Store(l.renewed(k.Base)) //nolint:contextcheck // handlers' contexts outlive this one
		k.alarm.Wake()
	}
	k.cancelGone(running, reply.Gone)
	if reply.Paces {
		k.redriver.poke()
	}
	k.Limits.heard(reply.Limits)
	k.scheduler.heard(reply.Tick)
	return k.afterBeat(ctx, conn, l, reply)
}

// afterBeat runs the steps of a beat after the sign of life. If a step fails, afterBeat logs the error and goes on with
// the next step. It returns an error only if the connection is gone or no time is left.
func (k *keeper) afterBeat(ctx context.Context, conn store.Session, l *lease, reply store.BeatReply) error {
	for _, step := range []struct {
		name string
		run  func() error
	}{
		{"following the limits", func() error { return k.Limits.Follow(ctx, conn, l.ID) }},
		{"registering the queues", func() error { return k.serveAgain(ctx, conn, l, reply) }},
		{"watching the others", func() error {
			// This bound leaves time for the other steps, however many jobs there are to rescue.
			ctx, cancel := context.WithTimeout(ctx, k.Cfg.Lease/4)
			defer cancel()
			return k.observe(ctx, conn, l, reply)
		}},
		{"declaring the schedules again", func() error { return k.declareAgain(ctx, conn, l, reply.Peers) }},
		{"tending failure groups", func() error {
			if !reply.Failures || !k.Prunes.Load() {
				return nil
			}
			return k.tendFailures(ctx, conn)
		}},
		{"writing what the tables have forgotten", func() error { return k.rewriteCrews(ctx, conn, l, reply) }},
		{"the turn to run strong suspects", func() error { return k.takeTurns(ctx, conn, l, reply) }},
		{"taking back a death", func() error { return k.UndoCrashes(ctx, conn, k.Bound(), k.Cfg.Lease/12) }},
		{"full sweep", func() error { return k.Sweep(ctx, conn, l, reply) }},
	} {
		err := step.run()
		if conn.Closed() || ctx.Err() != nil {
			return fmt.Errorf("%s: %w", step.name, errors.Join(err, ctx.Err()))
		}
		if err != nil && k.seldom.Allow(step.name+pg.SQLState(err), k.Now()) {
			k.log.WarnContext(ctx, step.name+" failed, goes on with the next beat", slog.String("error", err.Error()))
		}
	}
	return nil
}

// takeTurns takes, keeps or releases the turn to run strong suspects. Only one supervisor has that turn at a time.
func (k *keeper) takeTurns(ctx context.Context, conn store.Session, l *lease, reply store.BeatReply) error {
	now, order := k.Now(), k.Solo.Load()
	wanted := reply.Solo != "" && !k.Draining.Load()
	switch {
	case order != nil && !order.Over.Load():
		return nil
	case order != nil && (!wanted || !k.turns.GoesOn(now, order.ran.Load())):
		if err := conn.ReleaseSolo(ctx, l.ID); err != nil {
			return err
		}
		k.turns.End(now, order.idle.Load())
		k.Solo.Store(nil)
		k.alarm.Wake()
		return nil
	case order == nil && (!wanted || !k.turns.May(now)):
		if !reply.Turn {
			return nil
		}
		return conn.ReleaseSolo(ctx, l.ID) // the database went back to a state in which the turn is ours
	case order == nil:
		if taken, err := conn.TakeSolo(ctx, l.ID); err != nil || !taken {
			return err
		}
		k.turns.Begin(now)
	}
	k.Solo.Store(&SoloOrder{Queue: reply.Solo, IdleBy: now.Add(k.turns.Patience)})
	k.alarm.Wake()
	return nil
}

// Bound returns how long a statement over many jobs may take. Suppose that one of 500 jobs is so slow that every
// statement over this job times out. The walk that finds the job meets some twenty time-outs, and a beat should have
// time for all of them.
func (k *keeper) Bound() time.Duration { return max(k.Cfg.Lease/100, 50*time.Millisecond) }

// tendFailures adds up the failures that settles have recorded, reports the failure groups that came back, and makes
// parked jobs due if the build that they wait for is running now. The supervisor that prunes calls it, and so does each
// supervisor that stops. Two supervisors may run it at the same time.
func (k *keeper) tendFailures(ctx context.Context, conn store.Session) error {
	reopened, err := conn.TendFailures(ctx)
	if err != nil {
		return err
	}
	for _, g := range reopened {
		k.report(EventFailureReopened, &Run{
			Fence: store.Fence{ID: g.LastJob, Owner: k.Lease.Load().ID}, Kind: g.Kind,
			End: Outcome{Class: g.Class, Text: g.Sample, Fingerprint: g.Fingerprint},
		})
	}
	return nil
}

// cancelGone ends the contexts of runs whose jobs are not ours any more. The map byIndex has an entry for each of these
// runs, by its index in running: true if an operator ended the job. A handler that settled its job in its own
// transaction may work on.
func (k *keeper) cancelGone(running []*Run, byIndex map[int]bool) {
	for i, r := range running {
		cancelled, gone := byIndex[i]
		if !gone || r.txOutcome.Load() != nil || !k.InFlight.Has(r) {
			continue
		}
		if cancelled {
			r.Cancel(pg.ErrCancelled)
		} else {
			r.Cancel(pg.ErrLeaseLost)
			k.rewound() // other supervisors take no job while we have the lease, so the database may have gone back
		}
	}
}

// beatRefused finds out why a beat did not match our row. Perhaps the claimer has raised the epoch, and does not know
// yet that this succeeded. Then the next beat uses the raised epoch. If another supervisor has declared us lost, or the
// database has gone back to a state with an older epoch, we start over.
func (k *keeper) beatRefused(ctx context.Context, conn store.Session, l *lease, sent int) error {
	epoch, lost, err := conn.Epoch(ctx, l.ID)
	switch {
	case err != nil:
		return err
	case lost:
		return k.startOver(ctx, l, "lease lost")
	case epoch < sent:
		return k.startOver(ctx, l, WentBack)
	}
	l.Raise(epoch)
	k.Interrupt()
	return nil
}

// startOver gives up the lease, and registers under a new id.
func (k *keeper) startOver(ctx context.Context, l *lease, why string) error {
	l.Lose()                                         // first, because the log may block
	if k.seldom.Allow("start over "+l.ID, k.Now()) { // startOver comes again if registering fails
		k.log.ErrorContext(ctx, why+", running jobs are cancelled", slog.String("supervisor", l.ID))
	}
	k.NoteLost(l.ID) // so that a stop takes back the crashes counted for this lease even if registering fails
	return k.Register(ctx)
}

// observe looks at the other supervisors. It declares dead supervisors lost, rescues the jobs of lost supervisors, and
// notes how long others have been silent. If the database refuses a step, observe logs the error, and the next beat
// tries the step again. observe returns an error only if the connection is gone.
func (k *keeper) observe(ctx context.Context, conn store.Session, l *lease, reply store.BeatReply) error {
	now, served := k.Now(), k.QueueNames()
	refused := func(x store.Peer, message string, err error) (gone bool) {
		if err != nil && !conn.Closed() && k.seldom.Allow(message+x.ID+pg.SQLState(err), now) {
			k.log.WarnContext(ctx, message, slog.String("supervisor", x.ID), slog.String("error", err.Error()))
		}
		return conn.Closed()
	}
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
		silence := k.silences.Observe(x, now)
		if silence.Note {
			if err := conn.NoteSilence(ctx, x, silence.lasts); refused(x, "silence of a supervisor could not be noted", err) {
				return err
			}
		}
		if silence.Dead && !x.Lost {
			lost, err := conn.DeclareLost(ctx, x)
			if refused(x, "silent supervisor could not be declared lost", err) {
				return err
			}
			if err != nil || !lost {
				continue
			}
			x.Lost = true
			k.log.WarnContext(ctx, "supervisor fell silent, its jobs are rescued", slog.String("supervisor", x.ID))
		}
		if x.Lost {
			if err := k.Rescue(ctx, conn, x); refused(x, "rescue goes on with the next beat", err) {
				return err
			}
		}
	}
	maps.DeleteFunc(k.silences.Peers, func(id string, _ Observation) bool { return !seen[id] })
	maps.DeleteFunc(k.Hunts, func(id string, _ *store.Scan) bool { return !seen[id] })
	k.claimer.Near.Share(len(sharers))
	sharers = slices.DeleteFunc(sharers, func(id string) bool { return id == l.ID })
	k.sharers.Store(&sharers)
	k.Prunes.Store(first == l.ID)
	return nil
}
