package engine

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drover-queue/drover/internal/store"
)

// A few supervisors of each queue are on call: each holds a slot, and an enqueue notifies two of them if there is no
// lookout. The slots are locks on the keeper's connection, which also listens.
//
// The other supervisors listen as well, so that all hear of a burst. But up to PostgreSQL 18 a NOTIFY interrupts each
// session that listens. A supervisor that hears too many notifications for others stops listening for a while, and asks for
// a free slot instead: a supervisor without room that is notified leaves its slot.
const (
	noiseRate  = 4  // notifications for others in a second
	noiseBurst = 20 // and so many together
	deafFor    = 30 * time.Second

	// askSlot is how often a supervisor that does not listen asks for a slot, times the supervisors that may do the same.
	askSlot      = 5 * time.Millisecond
	askSlotLeast = 250 * time.Millisecond
)

// called acts on a notification about jobs: "wake" of an enqueue, "pass" and "all" of a supervisor that has no room. It has
// two slots (except "all"), when the first job is due and how long until then, both in µs, and the queue.
func (c *keeper) called(verb, what string) {
	var slots [2]int64
	if verb != "all" {
		for i := range slots {
			slots[i], what = number(what)
		}
	}
	due, what := number(what)
	left, queue := number(what)
	slot, held := c.onCall[queue]
	if verb == "wake" && len(c.onCall) == 0 {
		c.noise.add(1, c.Now())
	}
	if !slices.Contains(c.QueueNames(), queue) || c.Draining.Load() || verb != "all" && (!held || slot != slots[0] && slot != slots[1]) {
		return
	}
	if verb != "wake" {
		c.alarm.Missed()
	}
	now := c.Now()
	switch {
	case left > 0:
		c.alarm.NoteOwn(now.Add(time.Duration(left) * time.Microsecond))
		return
	case verb != "all":
		c.calls.add(queue, due, c.calls.answerBy(now))
	case c.calls.room(queue):
		c.calls.add(queue, due, time.Time{})
		c.calls.want() // other supervisors have left their slots
	default:
		return
	}
	c.alarm.poke()
}

// number cuts a number and a space off the front of a text.
func number(text string) (n int64, rest string) {
	digits, rest, _ := strings.Cut(text, " ")
	n, _ = strconv.ParseInt(digits, 10, 64)
	return n, rest
}

// Ring makes the keeper see to the calls.
func (c *keeper) Ring() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rung = true
	if c.stop != nil {
		c.stop()
	}
}

// Rung reports whether there is something to see to.
func (c *keeper) Rung() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rung || c.noise.over()
}

// callsAt returns when a call is to be handed on, or the given time if that comes first.
func (c *keeper) callsAt(at time.Time) time.Time {
	if next := c.calls.next(); !next.IsZero() && next.Before(at) {
		return next
	}
	if c.callAt.Before(at) && (c.isDeaf() || c.calls.gotRoom(false)) && len(c.offCall()) > 0 {
		return c.callAt
	}
	return at
}

// TendCalls hands on the calls that were not answered in time. If there is no room, it leaves its slot first: two full
// supervisors must not hand on to each other. It goes on call again once a claim has left room.
func (c *keeper) TendCalls(ctx context.Context) {
	c.mu.Lock()
	c.rung = false
	c.mu.Unlock()
	conn := c.Link.Current()
	if ctx.Err() != nil || conn.Closed() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, c.Cfg.Lease/6)
	defer cancel()
	now := c.Now()
	if c.callConn != conn {
		c.callConn, c.onCall, c.unsure = conn, map[string]int64{}, false
	}
	if c.unsure || c.Draining.Load() && len(c.onCall) > 0 {
		if conn.LeaveAll(ctx) != nil {
			return // the next heartbeat meets and reports the same error
		}
		c.onCall, c.unsure = map[string]int64{}, false
	}
	for queue, call := range c.calls.overdue(now) {
		slot, due := c.onCall[queue], call.due
		if due == 0 {
			due = now.UnixMicro()
		}
		leave := !c.calls.room(queue)
		told, err := conn.HandOn(ctx, queue, due, slot, leave)
		if err != nil {
			c.unsure = true
			return
		}
		if leave {
			delete(c.onCall, queue)
			c.callAt = now.Add(tryEvery)
		}
		c.calls.handedOn(queue, told, now)
	}
	if c.hears() && c.noise.over() {
		if conn.Unlisten(ctx) != nil {
			return
		}
		c.Listening, c.deafBy = store.Session{}, now.Add(deafFor)
		c.noise.left = noiseBurst
	}
	if !now.Before(c.callAt) && (c.calls.gotRoom(true) || c.isDeaf()) && len(c.offCall()) > 0 {
		c.callAt = now.Add(tryEvery)
		if c.isDeaf() {
			c.callAt = now.Add(max(askSlotLeast, askSlot*time.Duration(len(*c.sharers.Load()))))
		}
		if c.goOnCall(ctx) {
			c.deafBy = time.Time{}
			c.alarm.Wake() // transactions that committed meanwhile have notified no supervisor
		}
	}
}

// isDeaf reports whether it does not listen because too much was for others.
func (c *keeper) isDeaf() bool { return c.Now().Before(c.deafBy) && !c.hears() }

// offCall returns the first slots of the queues that have room and in which it is not on call, by queue.
func (c *keeper) offCall() map[string]int64 {
	if !c.hears() && !c.isDeaf() || c.Draining.Load() {
		return nil
	}
	firsts := map[string]int64{}
	for queue, crew := range *c.crews.Load() {
		if _, on := c.onCall[queue]; !on && c.calls.room(queue) && slices.Contains(c.openQueues(), queue) {
			firsts[queue] = crew.OnCall
		}
	}
	return firsts
}

// goOnCall takes a free slot in each of these queues, and reports whether it got any.
func (c *keeper) goOnCall(ctx context.Context) bool {
	firsts := c.offCall()
	if len(firsts) == 0 {
		return false
	}
	got, err := c.Link.Current().GoOnCall(ctx, slices.Collect(maps.Values(firsts)))
	return c.wentOnCall(firsts, got, err)
}

// wentOnCall notes the slots that it got, by the first slot of their queue, and reports whether there are any.
func (c *keeper) wentOnCall(firsts map[string]int64, got map[int64]int64, err error) bool {
	if err != nil {
		c.unsure = c.unsure || len(firsts) > 0
		return false
	}
	if conn := c.Link.Current(); c.callConn != conn {
		c.callConn, c.onCall, c.unsure = conn, map[string]int64{}, false
	}
	for queue, first := range firsts {
		if slot, ok := got[first]; ok {
			c.onCall[queue] = slot
		}
	}
	return len(got) > 0
}
