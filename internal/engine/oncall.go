package engine

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drover-queue/drover/internal/store"
)

// onCall decides in which queues this supervisor is on call. Up to eight supervisors that serve the same kinds in a
// queue are on call there (store.CallSlots). Each of them holds a call slot: an advisory lock of the keeper's
// connection, which has nothing to do with slots for running jobs. If the queue has no lookout (sleep.go), an enqueue
// notifies two supervisors on call.
//
// The other supervisors listen as well: if all supervisors on call run out of room in a burst, a notification to all
// reaches the others. But up to PostgreSQL 18 a NOTIFY interrupts each session that listens. So a supervisor that hears
// too many notifications for others stops listening for a while, and asks for a free slot instead. Slots get free
// because supervisors without room leave their slots when they are notified.
type onCall struct {
	*Shared
	slots  map[string]int64 // for each queue in which we are on call, the key of the lock that we hold
	conn   store.Session    // the connection that holds these locks
	unsure bool             // the connection may hold locks that slots does not have
	at     time.Time        // no further attempt to go on call before this time
	noise  trickle          // counts the notifications that were for other supervisors
	deafBy time.Time        // the keeper does not listen until this time, because too many notifications were for others
	heard  func(string)     // gets the stamp of the limits (pauses) that an attempt to go on call has read
}

func newOnCall(s *Shared, heard func(string)) *onCall {
	return &onCall{Shared: s, heard: heard, slots: map[string]int64{}, noise: trickle{rate: noiseRate, burst: noiseBurst}}
}

const (
	noiseRate  = 4  // if more notifications a second are for other supervisors, the keeper stops listening
	noiseBurst = 20 // up to this many of these notifications may come together
	deafFor    = 30 * time.Second

	// Between two requests for a slot, a supervisor that does not listen waits askSlot for each other supervisor, and
	// at least askSlotLeast.
	askSlot      = 4 * time.Millisecond
	askSlotLeast = 250 * time.Millisecond
)

// called acts on a notification about jobs. An enqueue sends "wake"; a supervisor that has no room sends "pass", or
// "all" if no other supervisor is on call. The parameter what has these parts, separated by spaces: the two notified
// slots (not with "all"); when the first job is due, in µs since 1970; how long until then, in µs; the queue.
func (o *onCall) called(verb, what string) {
	var slots [2]int64
	if verb != "all" {
		for i := range slots {
			slots[i], what = number(what)
		}
	}
	due, what := number(what)
	left, queue := number(what)
	slot, held := o.slots[queue]
	if verb == "wake" && len(o.slots) == 0 {
		o.noise.add(1, o.Now())
	}
	if !slices.Contains(o.QueueNames(), queue) || o.Draining.Load() || verb != "all" && (!held || slot != slots[0] && slot != slots[1]) {
		return
	}
	if verb != "wake" {
		o.alarm.Missed()
	}
	now := o.Now()
	switch {
	case left > 0:
		o.alarm.NoteOwn(now.Add(time.Duration(left) * time.Microsecond))
		return
	case verb != "all":
		o.calls.add(queue, due, o.calls.answerBy(now))
	case o.calls.room(queue):
		o.calls.add(queue, due, time.Time{})
		o.calls.wantSlots() // other supervisors have left their slots, so there may be free ones
	default:
		return
	}
	o.alarm.poke()
}

// number cuts a number and a space off the front of a text.
func number(text string) (n int64, rest string) {
	digits, rest, _ := strings.Cut(text, " ")
	n, _ = strconv.ParseInt(digits, 10, 64)
	return n, rest
}

// next returns when the keeper has to hand on a call or to ask for a slot, or the given time if that comes first.
func (o *onCall) next(at time.Time, hears bool) time.Time {
	if next := o.calls.next(); !next.IsZero() && next.Before(at) {
		return next
	}
	if o.at.Before(at) && (o.deaf(hears) || o.calls.gotRoom(false)) && len(o.missing(hears)) > 0 {
		return o.at
	}
	return at
}

// tend hands on the calls that were not answered in time. If a queue has no room here, the supervisor leaves its slot
// first, because two full supervisors must not hand calls on to each other. Once a claim has left room, tend takes a
// free slot again.
func (o *onCall) tend(ctx context.Context, conn store.Session, hears bool) {
	if ctx.Err() != nil || conn.Closed() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, o.Cfg.Lease/6)
	defer cancel()
	now := o.Now()
	o.useConn(conn)
	if o.unsure || o.Draining.Load() && len(o.slots) > 0 {
		if conn.LeaveAll(ctx) != nil {
			return // the next heartbeat meets the same error and reports it
		}
		o.slots, o.unsure = map[string]int64{}, false
	}
	for queue, call := range o.calls.overdue(now) {
		slot, due := o.slots[queue], call.due
		if due == 0 {
			due = now.UnixMicro()
		}
		leave := !o.calls.room(queue)
		told, err := conn.HandOn(ctx, queue, due, slot, leave)
		if err != nil {
			o.unsure = true
			return
		}
		if leave {
			delete(o.slots, queue)
			o.at = now.Add(tryEvery)
		}
		o.calls.handedOn(queue, told, now)
	}
	if !now.Before(o.at) && (o.calls.gotRoom(true) || o.deaf(hears)) && len(o.missing(hears)) > 0 {
		o.at = now.Add(tryEvery)
		if o.deaf(hears) {
			o.at = now.Add(o.askPause())
		}
		o.goOn(ctx, conn, hears)
	}
}

// askPause returns the pause between two requests for a slot by a supervisor that does not listen.
func (o *onCall) askPause() time.Duration {
	return max(askSlotLeast, askSlot*time.Duration(len(*o.sharers.Load())))
}

// tooLoud reports whether so many notifications were for others that the keeper must stop listening, and records that
// it stops. Supervisors that hear the same notifications stop at the same moment. They must not ask for slots at the
// same moment, so each of them waits for a random time first.
func (o *onCall) tooLoud() bool {
	if !o.noise.over() {
		return false
	}
	now := o.Now()
	o.deafBy, o.noise.left, o.at = now.Add(deafFor), noiseBurst, now.Add(rand.N(o.askPause())) //nolint:gosec // to spread them
	return true
}

// deaf reports whether the keeper does not listen because too many notifications were for others.
func (o *onCall) deaf(hears bool) bool { return o.Now().Before(o.deafBy) && !hears }

// missing returns the queues in which this supervisor has room and is not on call, each with the key of the queue's
// first call slot.
func (o *onCall) missing(hears bool) map[string]int64 {
	if !hears && !o.deaf(hears) || o.Draining.Load() {
		return nil
	}
	firsts, open := map[string]int64{}, o.openQueues()
	for queue, crew := range *o.crews.Load() {
		if _, on := o.slots[queue]; !on && o.calls.room(queue) && slices.Contains(open, queue) {
			firsts[queue] = crew.OnCall
		}
	}
	return firsts
}

// goOn takes a free slot in each queue that missing returns.
func (o *onCall) goOn(ctx context.Context, conn store.Session, hears bool) {
	firsts := o.missing(hears)
	if len(firsts) == 0 {
		return
	}
	got, limits, err := conn.GoOnCall(ctx, slices.Collect(maps.Values(firsts)))
	if err == nil {
		o.heard(limits)
	}
	o.noteSlots(conn, firsts, got, err)
}

// noteSlots records which slots an attempt to go on call has got. In the map got, the key is the first slot of a queue,
// and the value is the slot that the connection got there. After any success the keeper listens again, and the claimer
// looks for jobs, because earlier transactions may have notified no supervisor.
func (o *onCall) noteSlots(conn store.Session, firsts map[string]int64, got map[int64]int64, err error) {
	if err != nil {
		o.unsure = o.unsure || len(firsts) > 0
		return
	}
	o.useConn(conn)
	for queue, first := range firsts {
		if slot, ok := got[first]; ok {
			o.slots[queue] = slot
		}
	}
	if len(got) > 0 {
		o.deafBy = time.Time{}
		o.alarm.Wake()
	}
}

// useConn records which connection the next statement uses. If the connection is new, it holds no locks, so we have no
// slots.
func (o *onCall) useConn(conn store.Session) {
	if o.conn != conn {
		o.conn, o.slots, o.unsure = conn, map[string]int64{}, false
	}
}
