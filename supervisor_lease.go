package drover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/oklog/ulid/v2"
)

// lease is a supervisor's claim to its jobs under one id: what handlers' contexts hang on.
type lease struct {
	id     string
	epoch  *atomic.Int64   // of the id; never lowered
	ctx    context.Context //nolint:containedctx // the parent of handlers' contexts
	cancel context.CancelCauseFunc
	ended  atomic.Bool // lost, or not kept up
}

func newLease(base context.Context, id string) *lease {
	l := &lease{id: id, epoch: new(atomic.Int64)}
	l.epoch.Store(1)
	l.ctx, l.cancel = context.WithCancelCause(base)
	return l
}

// renewed is the lease of the same id with a fresh context, after an outage in which nobody took it. They share the
// epoch: the claimer may be raising it just now.
func (l *lease) renewed(base context.Context) *lease {
	fresh := &lease{id: l.id, epoch: l.epoch}
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

// lose cancels the handlers before others may take their jobs.
func (l *lease) lose() {
	if !l.ended.Swap(true) {
		l.cancel(ErrLeaseLost)
	}
}

// control keeps a supervisor's lease, hears notifications, and watches over other supervisors. One goroutine owns it.
type control struct {
	sup       *Supervisor
	base      context.Context //nolint:containedctx // the values handlers see
	link      link
	listening *pgx.Conn // the connection that has sent LISTEN
	beaten    time.Time // when the last successful beat was sent
	counted   int64     // by our row: beats, the last successful one included
	urgent    hurry     // beats that come before their time
	beats     int       // successful ones
	steady    int       // their number when one had come late: the database may have stood still
	steadyAt  time.Time // and when that was
	peers     map[string]observation
	hunts     map[string]*hunt // for the jobs of lost peers
	orphans   *hunt            // for jobs whose owner no row speaks for
	allBy     time.Time        // when the next such hunt also reads jobs that are not due
	sweeps    int64            // the last turn looked at
	sweepAt   time.Time        // not before
	behind    sweepOrder
	floorsBy  time.Time // nor before this as long as there are no floors
	was       string    // our last id, if others took its lease; takeBack undoes what they did
	turns     turns
	clock     clockTrouble
	trouble   trouble   // of beats
	deaf      trouble   // of LISTEN
	strays    []string  // ids that may be registered, and are not ours
	asked     time.Time // for runs that are over, where no notification is heard

	mu   sync.Mutex
	stop context.CancelFunc // ends the wait for a notification
	now  bool               // beat at once
}

// observation is what a peer looked like when it last changed.
type observation struct {
	epoch int
	beat  int64
	since time.Time // by us, or by others before us
	seen  time.Time // by us
	beats int       // of ours, then
}

func newControl(s *Supervisor) *control {
	c := &control{sup: s, link: link{store: s.client.store}, peers: map[string]observation{}, hunts: map[string]*hunt{}}
	c.trouble = trouble{means: "after most of a lease the running jobs are cancelled", link: &c.link}
	c.deaf = trouble{means: "notifications are not heard, polls and heartbeats find the same later"}
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
		if err := c.sup.client.store.forget(ctx, conn, stray); err != nil {
			return err
		}
	}
	id, sent := ulid.Make().String(), c.sup.now()
	c.strays = []string{id}
	reg := c.sup.registration(id, c.sup.queueStates())
	if err := c.sup.client.store.register(ctx, conn, reg); err != nil {
		if notApplied(err) {
			c.strays = nil
		}
		return err
	}
	c.strays = nil
	c.sup.knowBudgets(reg.scopes)
	c.beaten, c.counted = sent, 0
	c.turns = turns{}
	c.floorsBy = sent.Add(c.sup.cfg.Lease / 2)
	c.sup.solo.Store(nil)
	c.sup.lease.Store(newLease(c.base, id)) //nolint:contextcheck // handlers' contexts outlive this one
	c.sup.claimer.distrust()
	return nil
}

// run beats six times a lease, and more often while beats fail. In between it waits for notifications.
func (c *control) run(ctx context.Context) {
	defer c.link.close(ctx)
	period := c.sup.cfg.Lease / 6
	due := c.sup.now() // the first tells how the others look
	next := due        // or earlier, where something waits for it
	c.listens()        //nolint:contextcheck // before that, which finds what is cancelled until then; an interrupt would cost the connection
	for ctx.Err() == nil {
		c.wait(ctx, c.sooner(c.askAt(next)))
		c.expire(ctx)
		now := c.sup.now()
		if c.interrupted() {
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
			c.trouble.failed(ctx, c.sup, "heartbeat", err)
			if c.trouble.until.Before(due) {
				due = c.trouble.until
			}
		default:
			c.trouble.over(ctx, c.sup)
		}
		next = due
	}
}

// deadline is when handlers must be told that the lease is not kept up: others may take the jobs a lease after the
// last beat that they saw.
func (c *control) deadline() time.Time { return c.beaten.Add(c.sup.cfg.Lease * 4 / 5) }

// sooner is the given time, or the deadline if that comes first and handlers have not been told yet.
func (c *control) sooner(at time.Time) time.Time {
	if end := c.deadline(); !c.sup.lease.Load().ended.Load() && end.Before(at) {
		return end
	}
	return at
}

// expire cancels the handlers at the deadline, whatever holds up the beat.
func (c *control) expire(ctx context.Context) {
	if l := c.sup.lease.Load(); !l.ended.Load() && !c.sup.now().Before(c.deadline()) {
		c.sup.log.ErrorContext(ctx, "no heartbeat for most of a lease, running jobs are cancelled", slog.String("supervisor", l.id))
		l.lose()
	}
}

// interrupt makes the next beat come at once.
func (c *control) interrupt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = true
	if c.stop != nil {
		c.stop()
	}
}

func (c *control) interrupted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now
	c.now = false
	return now
}

// wait hears notifications until the given time, an interrupt, or the end.
func (c *control) wait(ctx context.Context, until time.Time) {
	ctx, cancel := context.WithTimeout(ctx, until.Sub(c.sup.now()))
	defer cancel()
	c.mu.Lock()
	c.stop = cancel
	if c.now {
		cancel()
	}
	c.mu.Unlock()
	for ctx.Err() == nil {
		if !c.listens() { //nolint:contextcheck // an interrupt in the middle of a statement would cost the connection
			<-ctx.Done()
			return
		}
		note, err := c.listening.WaitForNotification(ctx)
		if err == nil {
			c.sup.heard(note.Payload)
		} else if ctx.Err() == nil {
			c.deaf.failed(ctx, c.sup, "listening", err)
			c.interrupt() // the beat makes a new one
			return
		}
	}
}

// listens sends LISTEN on a fresh connection. Notifications are hints: a job was enqueued while all slept, or a
// running one was cancelled. Without them the polls find the same.
func (c *control) listens() bool {
	conn := c.link.conn
	if c.sup.cfg.DisableNotify || conn == nil || conn.IsClosed() {
		return false
	}
	if c.listening == conn {
		return true
	}
	ctx, cancel := context.WithDeadline(c.base, c.sooner(c.sup.now().Add(min(5*time.Second, c.sup.cfg.Lease/6))))
	defer cancel()
	var channel string
	err := conn.QueryRow(ctx, sqlListen).Scan(&channel)
	if err == nil {
		_, err = conn.Exec(ctx, "listen "+pgx.Identifier{channel}.Sanitize())
	}
	if err != nil {
		c.deaf.failed(ctx, c.sup, "listening", err)
		return false
	}
	c.deaf.over(ctx, c.sup)
	c.listening = conn
	// What came before, while nobody listened: the claimer finds jobs, and a beat what was cancelled.
	c.sup.claimer.wake()
	c.interrupt()
	return true
}

// heard acts on a notification's text.
func (s *Supervisor) heard(payload string) {
	verb, what, _ := strings.Cut(payload, " ")
	switch verb {
	case "wake":
		if slices.Contains(s.queueNames(), what) {
			s.claimer.wake()
		}
	case "cancel":
		s.cancelRun(what)
	case "redrive":
		s.redriver.poke()
	}
}

// beat is one round: sign of life, look at the others, rescue, sweep.
func (c *control) beat(ctx context.Context) error {
	l := c.sup.lease.Load()
	sent := c.sup.now()
	beating, cancel := context.WithTimeout(ctx, c.sooner(sent.Add(c.sup.cfg.Lease/6)).Sub(sent))
	defer cancel()
	conn, err := c.link.get(beating)
	running, epoch := c.sup.inFlight.under(l.id), int(l.epoch.Load())
	var reply beatReply
	if err == nil {
		reply, err = c.sup.client.store.beat(beating, conn, l.id, epoch, running, c.sup.draining.Load(), c.sup.queueNames(), c.sup.kinds)
	}
	if err != nil {
		c.expire(ctx)
		return err
	}
	// What follows may read much, and must leave time for the next beat.
	ctx, cancelRest := context.WithTimeout(ctx, c.sup.cfg.Lease/3)
	defer cancelRest()
	switch {
	case !reply.alive:
		return c.refused(ctx, conn, l, epoch)
	case c.forgotten(l.id, epoch, reply.peers):
		return c.startOver(ctx, l, wentBack)
	}
	c.sup.knowBudgets(reply.scope)
	c.beats++
	if sent.Sub(c.beaten) > c.sup.cfg.Lease/3 {
		c.steady, c.steadyAt = c.beats, c.sup.now()
	}
	c.beaten = sent
	if l.ended.Load() {
		// The database was away and nobody took the jobs: go on under the same id, with fresh contexts.
		c.sup.lease.Store(l.renewed(c.base)) //nolint:contextcheck // handlers' contexts outlive this one
		c.sup.claimer.wake()
	}
	c.tellGone(running, reply)
	if reply.paces {
		c.sup.redriver.poke()
	}
	return c.afterBeat(ctx, conn, l, reply)
}

// afterBeat runs the steps of a beat after the sign of life. A step that fails is logged, and does not keep later
// ones from running. It returns an error only if the connection is gone or no time is left.
func (c *control) afterBeat(ctx context.Context, conn *pgx.Conn, l *lease, reply beatReply) error {
	for _, step := range []struct {
		name string
		run  func() error
	}{
		{"registering the queues", func() error { return c.serveAgain(ctx, conn, l, reply) }},
		{"watching the others", func() error {
			// However many jobs there are to rescue, some of the time is left to the other steps.
			ctx, cancel := context.WithTimeout(ctx, c.sup.cfg.Lease/4)
			defer cancel()
			c.observe(ctx, conn, l, reply)
			return nil
		}},
		{"tending failure groups", func() error {
			if !reply.failures || !c.sup.pruner.Load() {
				return nil
			}
			return c.tendFailures(ctx, conn)
		}},
		{"writing what the tables have forgotten", func() error { return c.reassert(ctx, conn, l, reply) }},
		{"the turn to run strong suspects", func() error { return c.solo(ctx, conn, l, reply.solo) }},
		{"taking back a death", func() error { return c.takeBack(ctx, conn) }},
		{"full sweep", func() error { return c.sweep(ctx, conn, l, reply) }},
		{"looking for jobs that wait for the server's clock", func() error { return c.tellClock(ctx, conn, reply.behind) }},
	} {
		err := step.run()
		if conn.IsClosed() || ctx.Err() != nil {
			return fmt.Errorf("%s: %w", step.name, errors.Join(err, ctx.Err()))
		}
		if err != nil && c.sup.quiet.may(step.name+sqlState(err), c.sup.now()) {
			c.sup.log.WarnContext(ctx, step.name+" failed, goes on with the next beat", slog.String("error", err.Error()))
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
func (c *control) bound() time.Duration { return max(c.sup.cfg.Lease/100, 50*time.Millisecond) }

// takeBack undoes what other supervisors concluded from our silence, if they took our lease.
func (c *control) takeBack(ctx context.Context, conn *pgx.Conn) error {
	if c.was == "" {
		return nil
	}
	done, err := c.sup.client.store.takeBack(ctx, conn, c.was, c.bound(), func(job string, err error) {
		if c.sup.quiet.may("take back "+job, c.sup.now()) {
			c.sup.log.WarnContext(ctx, "crash not taken back, the database refuses to change the job",
				slog.String("id", job), slog.String("error", err.Error()))
		}
	})
	if done {
		c.was = ""
	}
	return err
}

// tendFailures adds what settles have recorded to the failure groups, tells which came back, and makes parked jobs due
// whose build has come. One supervisor at a time does so, the one that prunes; two would not harm.
func (c *control) tendFailures(ctx context.Context, conn *pgx.Conn) error {
	reopened, err := c.sup.client.store.tendFailures(ctx, conn)
	if err != nil {
		return err
	}
	for _, g := range reopened {
		c.sup.reporter.tell(g.tellReopened(c.sup.lease.Load().id))
	}
	return nil
}

// solo takes, keeps and gives up the turn to run strong suspects, of which one is due in queue.
func (c *control) solo(ctx context.Context, conn *pgx.Conn, l *lease, queue string) error {
	store, now, order := c.sup.client.store, c.sup.now(), c.sup.solo.Load()
	draining := c.sup.draining.Load()
	switch {
	case order != nil && !order.over.Load():
		return nil
	case order != nil && (queue == "" || draining || !c.turns.goesOn(now, order.ran.Load())):
		if err := store.releaseSolo(ctx, conn, l.id); err != nil {
			return err
		}
		c.turns.end(now, order.idle.Load())
		c.sup.solo.Store(nil)
		c.sup.claimer.wake()
		return nil
	case order == nil:
		if queue == "" || draining || !c.turns.may(now) {
			return nil
		}
		if taken, err := store.takeSolo(ctx, conn, l.id); err != nil || !taken {
			return err
		}
		c.turns.begin(now)
	}
	c.sup.solo.Store(&soloOrder{queue: queue, idleBy: now.Add(c.turns.patience)})
	c.sup.claimer.wake()
	return nil
}

// tellGone ends the contexts of runs whose jobs are not ours any more. One that settled its job in a transaction of
// its own may work on.
func (c *control) tellGone(running []*run, reply beatReply) {
	for _, r := range running {
		cancelled, gone := reply.gone[r]
		if !gone || r.txOutcome.Load() != nil || !c.sup.inFlight.has(r) {
			continue
		}
		if cancelled {
			r.cancel(ErrCancelled)
		} else {
			r.cancel(ErrLeaseLost)
			c.sup.goneBack() // for nobody may take it while we have the lease
		}
	}
}

// refused finds out why our row did not take a beat with an epoch. Either the claimer raised the epoch, perhaps without
// having heard of it: the next beat has it. Or others have declared us lost, or the database has forgotten the epoch.
func (c *control) refused(ctx context.Context, conn *pgx.Conn, l *lease, sent int) error {
	epoch, lost := 0, true
	err := conn.QueryRow(ctx, sqlEpoch, l.id).Scan(&epoch, &lost)
	switch {
	case err != nil && !errors.Is(err, pgx.ErrNoRows):
		return err
	case lost:
		return c.startOver(ctx, l, "lease lost")
	case epoch < sent:
		return c.startOver(ctx, l, wentBack)
	}
	l.raise(epoch)
	c.interrupt()
	return nil
}

// startOver gives up the lease, and goes on under another id.
func (c *control) startOver(ctx context.Context, l *lease, why string) error {
	if c.sup.quiet.may("start over "+l.id, c.sup.now()) { // registering may fail, and be tried again
		c.sup.log.ErrorContext(ctx, why+", running jobs are cancelled", slog.String("supervisor", l.id))
	}
	l.lose()
	if err := c.register(ctx); err != nil {
		return err
	}
	c.was = l.id
	return nil
}

// observe finds supervisors whose beat has not changed for a lease: no clocks are compared. What we have seen of a silence
// we note for those that come after us, so that jobs are rescued also where no process lives for a lease. But three beats of
// our own have to get through meanwhile, in two fifths of the silent one's lease at least, and none may come late: a stalled
// database makes nobody look dead.
func (c *control) observe(ctx context.Context, conn *pgx.Conn, l *lease, reply beatReply) {
	now, served := c.sup.now(), c.sup.queueNames()
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
		o, known := c.peers[x.id]
		if !known || o.epoch != x.epoch || o.beat != x.beat {
			o = observation{epoch: x.epoch, beat: x.beat, since: now, seen: now, beats: c.beats}
		}
		if noted := now.Add(-x.silence); noted.Before(o.since) {
			o.since = noted
		}
		c.peers[x.id] = o
		silence, beats, watched := now.Sub(o.since), c.beats-max(o.beats, c.steady), now.Sub(o.seen)
		if !c.steadyAt.IsZero() {
			watched = min(watched, now.Sub(c.steadyAt))
		}
		silent := silence >= x.lease && beats >= 3 && watched >= x.lease/5*2
		if !silent && !x.lost && beats >= 1 && silence >= x.lease/4 && silence-x.silence >= x.lease/8 {
			if err := c.sup.client.store.noteSilence(ctx, conn, x, silence); err != nil {
				continue // the next beat tells of it
			}
		}
		if silent && !x.lost {
			lost, err := c.sup.client.store.declareLost(ctx, conn, x)
			if err != nil && c.sup.quiet.may("declare lost "+x.id, now) {
				c.sup.log.WarnContext(ctx, "silent supervisor could not be declared lost", slog.String("supervisor", x.id), slog.String("error", err.Error()))
			}
			if err != nil || !lost {
				continue
			}
			x.lost = true
			c.sup.log.WarnContext(ctx, "supervisor fell silent, its jobs are rescued", slog.String("supervisor", x.id))
		}
		if x.lost {
			if err := c.rescue(ctx, conn, x); err != nil && c.sup.quiet.may("rescue "+x.id+sqlState(err), now) {
				c.sup.log.WarnContext(ctx, "rescue goes on with the next beat", slog.String("supervisor", x.id), slog.String("error", err.Error()))
			}
		}
	}
	for id := range c.peers {
		if !seen[id] {
			delete(c.peers, id)
			delete(c.hunts, id)
		}
	}
	c.sup.claimer.near.share(sharing)
	c.sup.pruner.Store(first == l.id)
}

// rescue frees a lost supervisor's jobs, found page by page over as many beats as it takes: all of them first, for who
// is suspected depends on who ran beside. Its row goes once a later search, through all of the index, found none.
func (c *control) rescue(ctx context.Context, conn *pgx.Conn, x peer) error {
	queues := union(x.queues, c.sup.queueNames())
	h := c.hunts[x.id]
	if h == nil {
		h = newHunt(x.id, queues, false)
		c.hunts[x.id] = h
	}
	h.bound = c.sup.cfg.Lease / 12
	for !h.ended() {
		if _, err := c.sup.client.store.hunt(ctx, conn, h, nil); err != nil {
			return err
		}
	}
	if h.all && len(h.found) == 0 {
		delete(c.hunts, x.id)
		if len(h.unread) > 0 {
			c.sup.tellUnread(ctx, h)
			return nil // its row says that there may be more
		}
		return c.sup.client.store.forget(ctx, conn, x.id)
	}
	if h.started == nil {
		started := startedJobs(h.found)
		var crashes []int
		for _, j := range h.found {
			if started[j.id] {
				crashes = append(crashes, j.crashes)
			}
		}
		d, err := c.sup.client.store.judge(ctx, conn, x.id, newDeath(crashes))
		if err != nil {
			return err
		}
		h.started, h.death = started, d
	}
	left, err := c.free(ctx, conn, x.id, h, h.found)
	if err != nil {
		h.found = left
		return err
	}
	c.sup.tellUnread(ctx, h)
	c.hunts[x.id] = newHunt(x.id, queues, true) // what someone held just now
	return nil
}

// tellUnread logs the lanes that a hunt had to skip.
func (s *Supervisor) tellUnread(ctx context.Context, h *hunt) {
	for _, lane := range h.unread {
		if s.quiet.may(fmt.Sprint("unread ", lane.key), s.now()) {
			s.log.ErrorContext(ctx, "part of a queue cannot be read, jobs of lost supervisors may wait there",
				slog.String("queue", lane.key.queue), slog.Int("lane", int(lane.key.lane)), slog.String("error", lane.err.Error()))
		}
	}
	h.unread = nil
}

// orphaned frees the jobs of owners that no row speaks for. Nothing is known of how those ended, so it counts no more
// than a death among many.
func (c *control) orphaned(ctx context.Context, conn *pgx.Conn, h *hunt) error {
	h.bound = c.sup.cfg.Lease / 12
	for {
		byOwner := map[string][]heldJob{}
		for _, j := range h.found {
			byOwner[j.owner] = append(byOwner[j.owner], j)
		}
		h.found = nil
		var errs []error
		for owner, held := range byOwner {
			h.started, h.death = startedJobs(held), death{mass: true}
			left, err := c.free(ctx, conn, owner, h, held)
			h.found, errs = append(h.found, left...), append(errs, err)
		}
		c.sup.tellUnread(ctx, h)
		err := errors.Join(errs...)
		if err == nil && !h.ended() {
			_, err = c.sup.client.store.hunt(ctx, conn, h, nil)
		} else if err == nil {
			return nil
		}
		if errors.Is(err, errNoTime) {
			return nil // the next sweep goes on with it
		}
		if err != nil {
			return err
		}
	}
}

// freed is a job of a dead supervisor, and what becomes of it.
type freed struct {
	j      *heldJob
	o      *outcome
	deaths []string // of supervisors, which the job is convicted of
	done   bool
}

// free ends the runs of a dead supervisor, but for those that their owner settled in the last moment, or whose rows
// someone holds. A job that the database refuses to settle does not hold up the others. It returns the jobs that are
// left for the next beat, with the reason.
func (c *control) free(ctx context.Context, conn *pgx.Conn, owner string, h *hunt, held []heldJob) (left []heldJob, err error) {
	var errs []error
	var noSlots error
	all := len(held)
	for len(held) > 0 && err == nil {
		chunk := held[:min(max(h.part, 1), len(held))]
		held = held[len(chunk):]
		jobs, wait := make([]*freed, 0, len(chunk)), []*freed(nil)
		for i := range chunk {
			f := &freed{j: &chunk[i]}
			if err := c.decide(ctx, conn, owner, h, f); err != nil {
				errs, wait = append(errs, err), append(wait, f)
				continue
			}
			jobs = append(jobs, f)
		}
		if noSlots == nil {
			noSlots = c.takeSlots(ctx, conn, jobs)
		}
		if noSlots != nil {
			jobs = slices.DeleteFunc(jobs, func(f *freed) bool {
				if c.sup.wantsSlot(f.o) {
					wait = append(wait, f)
					return true
				}
				return false
			})
		}
		err = c.settleFreed(ctx, conn, owner, jobs)
		for _, f := range append(jobs, wait...) {
			if f.done && f.o.quarantined {
				h.convicted = append(h.convicted, conviction{f.j.id, f.deaths})
			}
			if !f.done {
				left = append(left, *f.j)
			}
		}
	}
	left = append(left, held...)
	if err == nil {
		err = c.hurry(ctx, conn, h)
	}
	if errors.Is(err, errNoTime) && len(left) == all {
		h.part = max(h.part/8, 1) // else a job that took all the time would do so again
	} else {
		h.part = min(2*h.part, maxSettle)
	}
	c.sup.claimer.wake()
	return left, errors.Join(append(errs, noSlots, err)...)
}

// decide chooses what becomes of a dead supervisor's job, and which deaths that explains.
func (c *control) decide(ctx context.Context, conn *pgx.Conn, owner string, h *hunt, f *freed) (err error) {
	d, started := h.death, h.started[f.j.id]
	deaths := f.j.deathsBlamed(owner)
	var b background
	if started && d.alone() && d.spares(f.j.crashes) == "" && f.j.crashes+1 >= c.sup.cfg.QuarantineAfter {
		if b, err = c.sup.client.store.background(ctx, conn, deaths); err != nil {
			return err
		}
	}
	f.o = c.sup.rescued(f.j, owner, started, d, b)
	if f.o.quarantined {
		f.deaths = deaths
	}
	return nil
}

// takeSlots takes slots of the retry budgets for the jobs that wait for a backoff.
func (c *control) takeSlots(ctx context.Context, conn *pgx.Conn, jobs []*freed) error {
	outcomes := make([]*outcome, len(jobs))
	for i, f := range jobs {
		outcomes[i] = f.o
	}
	return c.sup.reserve(ctx, conn, outcomes)
}

// settleFreed records what becomes of a dead supervisor's jobs.
func (c *control) settleFreed(ctx context.Context, conn *pgx.Conn, owner string, jobs []*freed) error {
	settle := func(part []*freed) error {
		if err := timeFor(ctx, 2*c.bound()); err != nil {
			return err
		}
		settled := map[string]State{}
		p := c.freeing(owner, part, settled)
		if err := p.send(ctx, conn); err != nil {
			return err
		}
		for _, f := range part {
			f.done = true
			if state := settled[f.j.id]; state != "" {
				f.o.became(state)
				c.sup.reporter.tell(f.o.tellAll()...)
			}
		}
		return nil
	}
	var fenced []*freed
	for _, f := range jobs {
		if !f.j.unfenced() {
			fenced = append(fenced, f)
			continue
		}
		later := !f.j.once() && f.o.state != Discarded
		if err := c.giveUp(ctx, conn, owner, f, errUnfenced, later, false); err != nil {
			return err
		}
	}
	type bad struct {
		f   *freed
		err error
	}
	var refused []bad
	passed := false
	err := isolate(fenced, func(part []*freed) error {
		err := settle(part)
		passed = passed || err == nil
		return err
	}, func(f *freed, err error) error {
		if !timedOut(err) && f.o.entry != nil && !f.o.replaced {
			f.o.simplify()
			if again := settle([]*freed{f}); again == nil || !rowsFault(again) {
				passed = passed || again == nil
				return again
			}
		}
		refused = append(refused, bad{f, err})
		return nil
	})
	// If none passed, no single job may be at fault: nothing is discarded for it.
	for _, b := range refused {
		if fault := c.giveUp(ctx, conn, owner, b.f, b.err, false, !passed && len(refused) > 1); fault != nil {
			return errors.Join(err, fault)
		}
	}
	return err
}

// freeing settles jobs of one dead supervisor, and records in the same transaction what the death counts against
// them: blame for a job that is not settled would be wrong, and a settled job is not looked at again.
func (c *control) freeing(owner string, part []*freed, settled map[string]State) *pipeline {
	p := &pipeline{}
	outcomes := make([]*outcome, len(part))
	var blamed []string
	for i, f := range part {
		outcomes[i] = f.o
		if f.o.crashed {
			blamed = append(blamed, f.j.id)
		}
	}
	p.begin()
	p.exec(nil, sqlSettlePlan)
	p.exec(nil, sqlBound, c.bound().Milliseconds())
	p.settle(settled, owner, outcomes)
	if len(blamed) > 0 {
		p.exec(nil, sqlBlame, owner, blamed)
	}
	for _, f := range part {
		if f.deaths != nil {
			p.exec(nil, sqlExplain, f.deaths, f.j.id)
		}
	}
	p.commit()
	return p
}

var errUnfenced = errors.New("its attempted_at is no time that a settle can name")

// giveUp takes a job that cannot be settled out of the way of others. The job is discarded or put off (later); if not
// even that is possible, it stays as it is for a pause.
func (c *control) giveUp(ctx context.Context, conn *pgx.Conn, owner string, f *freed, why error, later, aside bool) error {
	if err := timeFor(ctx, 2*c.bound()); err != nil {
		return err
	}
	g := &givenUp{path: pathRescue, owner: owner, id: f.j.id, seq: f.j.claimSeq, why: why, later: later, aside: aside || timedOut(why)}
	text := c.sup.client.clean(refusal(why), maxErrorText)
	became, err := c.sup.client.store.giveUp(ctx, conn, g, c.bound())
	if c.sup.quiet.may("rescue "+f.j.id, c.sup.now()) {
		c.sup.log.ErrorContext(ctx, "job cannot be rescued as usual", slog.Any("job", f.o.run.job), slog.String("became", became),
			slog.String("error", text))
	}
	if err != nil && !rowsFault(err) {
		return err
	}
	f.done = err == nil
	switch became {
	case string(Discarded):
		f.o.refuse(text)
		c.sup.reporter.tell(f.o.tell(eventDiscarded))
	case string(Scheduled), string(Retryable):
		c.sup.reporter.tell(f.o.tell(eventRescued))
	}
	return nil
}

// refuse turns the outcome into a discard, reason refused, with the database's error.
func (o *outcome) refuse(why string) {
	o.class, o.text, o.quarantined = classRefused, why, false
	o.discard(ReasonRefused)
}

// deathsBlamed are the supervisors whose deaths count against the job, the present one included.
func (j *heldJob) deathsBlamed(owner string) []string {
	deaths := []string{owner}
	for _, e := range j.before {
		deaths = append(deaths, e.Supervisor)
	}
	return deaths
}

// suspect is the job's record, with the mean time that its runs lasted until the process died.
func (j *heldJob) suspect() suspect {
	flight := j.flight
	for _, e := range j.before {
		flight = min(flight+millis(max(e.DurationMS, 0)), maxSpan)
	}
	return suspect{
		crashes: j.crashes, deaths: j.deaths, redrives: j.redrives, flight: flight / time.Duration(1+len(j.before)),
	}
}

// startedJobs tells which of a dead supervisor's jobs may have been started. All count as started but where that
// is next to impossible: at the last beat every slot of the queue was taken by a job that is running still. Of jobs with
// a single attempt the row says so, or the last beat does: the dead process may have known of more attempts.
func startedJobs(held []heldJob) map[string]bool {
	busy := map[string]int{}
	for _, j := range held {
		if j.inFlight {
			busy[j.queue]++
		}
	}
	started := make(map[string]bool, len(held))
	for _, j := range held {
		if j.once() {
			started[j.id] = j.inFlight || j.startedSeq
		} else {
			started[j.id] = j.inFlight || j.slots == 0 || busy[j.queue] < j.slots
		}
	}
	return started
}

var errCrashed = errors.New("drover: the process died while it held the job")

// rescued decides what becomes of a dead supervisor's job. One that was not started is due again as if nothing had
// been. A crash counts as a run, but does not exhaust a job: only one with a single run, or one that is convicted of the
// death, is discarded.
func (s *Supervisor) rescued(j *heldJob, owner string, started bool, d death, b background) *outcome {
	r := &run{
		sup: s, claimSeq: j.claimSeq, attemptedAt: j.attemptedAt.Time, owner: owner, host: j.host,
		job: &Job{
			ID: j.id, Queue: j.queue, Kind: j.kind, Attempt: j.attempt, MaxAttempts: j.maxAttempts,
			LastDelay: j.lastDelay, Crashes: j.crashes,
		},
	}
	if !started {
		o := r.handedBack()
		o.event, o.giveBack = eventRescued, j.attempt > 0
		return o
	}
	o := &outcome{run: r, err: errCrashed, class: classCrash, duration: j.flight, death: &d}
	o.crashed = d.spares(j.crashes) == ""
	o.quarantined = o.crashed && d.convicts(j.suspect(), s.cfg.QuarantineAfter, b)
	switch {
	case o.quarantined || j.once():
		o.discard(ReasonCrashed)
	default:
		o.state, o.event, o.giveBack = Retryable, eventRescued, j.attempt >= j.maxAttempts && j.attempt > 0
		if o.now = j.crashes == 0 || !o.crashed && !d.mass; !o.now {
			o.delay, _ = s.wait(s.strategyOf(j), Failure{
				Attempt: j.attempt, RetryIndex: j.attempt - 1, Err: errCrashed, Job: r.job, LastDelay: j.lastDelay,
			})
			o.delay += d.spread(j.crashes, s.cfg.Lease, j.id, j.claimSeq)
		}
	}
	o.entry = r.errorEntry(o)
	return o
}

// strategyOf is the strategy of a job by the usual order: its own, its worker's where this process has one, what kinds
// and queues say, the default. A stored one that this process cannot read is passed over, and told of.
func (s *Supervisor) strategyOf(j *heldJob) RetryStrategy {
	if strategy := s.readStrategy(j.id, j.retry); strategy != nil {
		return strategy
	}
	if w := s.workers[j.kind]; w != nil && w.opts.Retry != nil {
		return w.opts.Retry
	}
	return orDefault(s.readStrategy(j.id, j.policy))
}

func (s *Supervisor) readStrategy(id string, stored *string) RetryStrategy {
	if stored == nil {
		return nil
	}
	strategy, err := decodeStrategy([]byte(*stored), s.strategies)
	if err != nil {
		s.log.Warn("stored retry strategy not known here, passed over", slog.String("id", id),
			slog.String("retry", *stored), slog.String("error", err.Error()))
		return nil
	}
	return strategy
}

// sweepEvery is the turn of one supervisor to look behind everybody's floors.
const sweepEvery = 15

// sweep is the full sweep: one supervisor at a time, by turns that the server's clock and the sorted ids decide,
// and at most a tenth of the time. It finds jobs whose transaction committed long after its floor had passed, and
// jobs whose owner nobody speaks for.
func (c *control) sweep(ctx context.Context, conn *pgx.Conn, l *lease, reply beatReply) error {
	var alive []string
	for _, p := range reply.peers {
		if !p.lost {
			alive = append(alive, p.id)
		}
	}
	slices.Sort(alive)
	// Any turn since the last look: where beats are further apart than turns, one that looked at this turn alone
	// could miss its own every time.
	turn, n, mine := int64(reply.clock)/sweepEvery, int64(len(alive)), false
	if c.sweeps == 0 || c.sweeps > turn { // the first look, or the server's clock has gone back
		c.sweeps = turn - 1
	}
	for t := max(c.sweeps+1, turn-n+1); t <= turn; t++ {
		mine = mine || alive[t%n] == l.id
	}
	started := c.sup.now()
	// One beside the first claim, a dear one, would keep it from moving floors: see hold.
	first := started.Before(c.floorsBy) && c.sup.claimer.floors.none()
	if !mine || first || started.Before(c.sweepAt) {
		if !mine {
			c.sweeps = turn
		}
		return nil
	}
	c.sweeps = turn
	defer func() { c.sweepAt = c.sup.now().Add(9 * c.sup.now().Sub(started)) }() // also of one that failed
	c.sup.claimer.audit.want(started)
	c.sup.claimer.floors.hold()
	peopled, err := c.lookBehind(ctx, conn)
	// Nobody else rescues jobs whose owner has no row in supervisors.
	switch {
	case c.orphans != nil && !c.orphans.ended():
	case !started.Before(c.allBy):
		c.allBy = started.Add(allOrphansEvery)
		c.orphans = newHunt("", c.sup.queueNames(), true)
	default:
		c.orphans = newHunt("", nil, false)
		c.orphans.lanes = peopled
	}
	err = errors.Join(err, c.orphaned(ctx, conn, c.orphans))
	if c.orphans.all && c.orphans.ended() {
		err = errors.Join(err, c.sup.client.store.forgive(ctx, conn, c.bound()))
		c.orphans = nil
	}
	return err
}

// allOrphansEvery is how often a supervisor looks for orphans among all jobs, also those that are not due: their due
// time may have been changed by hand.
const allOrphansEvery = time.Hour

// sweepOrder is where the next full sweep begins. Without it, one lane that takes too long would keep the same lanes
// from being swept in every turn.
type sweepOrder struct {
	single bool // lane by lane
	first  int
}

// lookBehind lowers the floors to the jobs it finds behind them. It returns the lanes that have any jobs.
func (c *control) lookBehind(ctx context.Context, conn *pgx.Conn) (peopled []huntLane, err error) {
	req := c.sup.claimer.allLanes()
	lanes := make([]sweepLane, len(req.lanes))
	for i, g := range req.laneGroup {
		lanes[i] = sweepLane{laneKey{req.queues[req.groupQueue[g-1]-1], req.lanes[i]}, floor{req.floorAt[i], req.floorID[i]}}
	}
	size := len(lanes)
	if c.behind.single {
		first := c.behind.first % len(lanes)
		lanes, size = slices.Concat(lanes[first:], lanes[:first]), 1
	}
	lowered := false
	defer func() {
		if lowered {
			c.sup.claimer.wake()
		}
	}()
	const leastLook = 10 * time.Millisecond
	end := time.Now().Add(c.sup.cfg.Lease / 4)
	look := func(part []sweepLane) error {
		bound := time.Until(end)
		if bound < leastLook {
			return errNoTime
		}
		behind, found, err := c.sup.client.store.sweep(ctx, conn, part, req.kinds, bound)
		if timedOut(err) {
			return fmt.Errorf("%w (%s)", errNoTime, err.Error()) // half of the lanes would take as long
		}
		for _, found := range behind {
			c.sup.claimer.floors.lower(found.lane, found.at)
			lowered = true
		}
		peopled = append(peopled, found...)
		return err
	}
	for part := range slices.Chunk(lanes, size) {
		if time.Until(end) < leastLook {
			c.behind.single = true
			return peopled, errNoTime
		}
		c.behind.first++
		err := isolate(part, look, func(lane sweepLane, err error) error {
			if c.sup.quiet.may(fmt.Sprint("sweep ", lane.key), c.sup.now()) {
				c.sup.log.ErrorContext(ctx, "part of a queue cannot be swept, jobs that were committed late may wait there",
					slog.String("queue", lane.key.queue), slog.Int("lane", int(lane.key.lane)), slog.String("error", err.Error()))
			}
			return nil
		})
		if err != nil {
			c.behind.single = true
			return peopled, err
		}
	}
	c.behind.single = false
	return peopled, nil
}

// end takes this supervisor out of the tables. If that fails others find it silent, with nothing to rescue.
func (c *control) end(ctx context.Context) {
	c.signOff(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return errors.Join(c.tendFailures(ctx, conn), c.sup.client.store.forget(ctx, conn, c.sup.lease.Load().id))
	})
}

// endStrays takes registrations out of the tables that may stand although the supervisor never ran.
func (c *control) endStrays(ctx context.Context) {
	if len(c.strays) == 0 {
		return
	}
	c.signOff(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		for _, id := range c.strays {
			err = errors.Join(err, c.sup.client.store.forget(ctx, conn, id))
		}
		return err
	})
}

func (c *control) signOff(ctx context.Context, forget func(context.Context, *pgx.Conn) error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	link := link{store: c.sup.client.store}
	defer link.close(ctx)
	conn, err := link.get(ctx)
	if err == nil {
		err = forget(ctx, conn)
	}
	if err != nil {
		c.sup.log.WarnContext(ctx, "supervisor could not sign off", slog.String("error", err.Error()))
	}
}
