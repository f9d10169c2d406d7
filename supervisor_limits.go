package drover

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// holds is what may not start now, as this process knows it. It is never changed in place; nil holds nothing.
//
// A pause is exact because each supervisor says which changes it follows, and says so only when no job of a held scope
// can start any more: holds is replaced under the lock that every start takes (runSet.start), what waited in buffers is
// handed back, and a claim that was under way hands back what it got. A process that does not answer starts nothing
// once its lease is over by its own clock (lease.until). So Client.Pause waits for the supervisors' word or the end of their leases.
type holds struct {
	all    bool
	queues map[string]bool
	kinds  map[string]bool
	open   []string // kinds of this supervisor that are not held
}

func (h *holds) queue(name string) bool { return h != nil && (h.all || h.queues[name]) }

func (h *holds) job(queue, kind string) bool {
	return h != nil && (h.all || h.queues[queue] || h.kinds[kind])
}

// same reports whether two hold the same.
func (h *holds) same(other *holds) bool {
	if h == nil || other == nil {
		return h == other
	}
	return h.all == other.all && maps.Equal(h.queues, other.queues) && maps.Equal(h.kinds, other.kinds)
}

// newHolds reads what is held from rows; nil: nothing.
func newHolds(rows []heldScope, kinds []string) *holds {
	h := &holds{queues: map[string]bool{}, kinds: map[string]bool{}}
	for _, row := range rows {
		if row.left == nil {
			continue
		}
		switch what, name, _ := strings.Cut(row.scope, ":"); what {
		case "all":
			h.all = true
		case "queue":
			h.queues[name] = true
		case "kind":
			h.kinds[name] = true
		}
	}
	if !h.all && len(h.queues)+len(h.kinds) == 0 {
		return nil
	}
	h.open = slices.DeleteFunc(slices.Clone(kinds), func(kind string) bool { return h.kinds[kind] })
	return h
}

// openKinds are the kinds whose jobs may be claimed.
func (s *shared) openKinds() []string {
	if h := s.holds.Load(); h != nil {
		return h.open
	}
	return s.kinds
}

// openQueues are the names of the queues whose jobs may be claimed.
func (s *shared) openQueues() []string {
	h := s.holds.Load()
	return slices.DeleteFunc(s.queues.names(), h.queue)
}

// follower is how control follows the limits.
type follower struct {
	stamp  string    // of the limits that this supervisor follows
	number int64     // of their newest change
	told   int64     // what our row says
	stale  bool      // they have changed since, or may have
	next   time.Time // when the first of the holds ends; zero: none does by itself
	known  map[string]bool
}

// due reports whether the limits must be read.
func (f *follower) due(now time.Time) bool { return f.stale || !f.next.IsZero() && !now.Before(f.next) }

// followLimits reads the limits if they have changed, acts on them, and then says so. If the database does not answer it
// comes again with the next heartbeat.
func (c *control) followLimits(ctx context.Context, conn *pgx.Conn, id string) error {
	if !c.limits.due(c.now()) && c.limits.told == c.limits.number {
		return nil
	}
	asked := c.now()
	rows, number, stamp, err := c.client.store.holds(ctx, conn)
	if err != nil {
		return err
	}
	c.limits.stale, c.limits.stamp, c.limits.number, c.limits.next = false, stamp, number, time.Time{}
	for _, row := range rows {
		if row.left != nil && *row.left < 1e9 {
			if end := asked.Add(seconds(*row.left)); c.limits.next.IsZero() || end.Before(c.limits.next) {
				c.limits.next = end
			}
		}
	}
	c.hold(newHolds(rows, c.kinds))
	c.tellHolds(rows, id)
	if err := c.client.store.followed(ctx, conn, id, number); err != nil {
		return err
	}
	c.limits.told = number
	return nil
}

// hold makes held jobs stay where they are. When it returns none can start.
func (c *control) hold(h *holds) {
	if c.holds.Load().same(h) {
		return
	}
	c.inFlight.hold(&c.holds, h)
	for _, q := range c.queues.states() {
		if held := q.buffer.pick(func(r *run) bool { return h.job(r.queue.Name, r.job.Kind) }); len(held) > 0 {
			c.settler.handBack(held)
		}
	}
	c.lookout.distrust() // what floors have passed may start again, and sleepers says of other queues that we take nothing
}

// tellHolds tells which scopes are held since the last look, and which are not any more.
func (c *control) tellHolds(rows []heldScope, supervisor string) {
	now := map[string]bool{}
	for scope := range c.limits.known {
		if !slices.ContainsFunc(rows, func(row heldScope) bool { return row.scope == scope }) {
			rows = append(rows, heldScope{scope: scope}) // deleted by hand
		}
	}
	for _, row := range rows {
		what, name, _ := strings.Cut(row.scope, ":")
		e := Event{Supervisor: supervisor, By: row.by, Why: row.why}
		if what == "queue" {
			e.Queue = name
		} else {
			e.Kind = name
		}
		switch held := row.left != nil; {
		case held:
			now[row.scope] = true
			if !c.limits.known[row.scope] {
				c.reporter.tell(told{eventPaused, e})
			}
		case c.limits.known[row.scope]:
			c.reporter.tell(told{eventResumed, e})
		}
	}
	c.limits.known = now
}

// readLimits reads the limits before the first claim of a lease. It comes after the registration has committed: a pause
// that this read misses finds our row, and waits for us.
func (c *control) readLimits(ctx context.Context, conn *pgx.Conn, id string) error {
	c.limits.stale, c.limits.told = true, 0
	return c.followLimits(ctx, conn, id)
}

// hearLimits follows a change as soon as it is heard of, or a pause is over. What fails comes with the next heartbeat.
func (c *control) hearLimits(ctx context.Context) {
	conn, l, now := c.link.conn, c.lease.Load(), c.now()
	if ctx.Err() != nil || !c.limits.due(now) {
		return
	}
	if conn == nil || conn.IsClosed() || l.ended.Load() {
		c.limits.stale, c.limits.next = true, now.Add(askEvery)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Lease/6)
	defer cancel()
	if err := c.followLimits(ctx, conn, l.id); err != nil {
		c.limits.stale, c.limits.next = true, c.now().Add(askEvery)
	}
}
