package drover

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// An enqueue wakes one supervisor by name, and asks a second one to look a little later. These are the duties of a
// supervisor that is woken in that way: it looks at once; it looks once, where one look can be sure; and it wakes the
// next one if it has no room, or if it found more than it has room for.
const (
	soonAfter  = 100 * time.Millisecond // after a job was enqueued for another supervisor, to see whether that one came
	passEvery  = sleepAfter             // between two times that a supervisor with too much to do wakes another
	mostTurns  = 24                     // supervisors that share the polls: each looks at least once in as many intervals
	cheapSweep = 5 * time.Millisecond   // a near sweep that costs less is worth a look that can be sure
)

// doorbell gathers wake-ups for the claimer. It is safe for concurrent use; the zero value is silent.
type doorbell struct {
	mu   sync.Mutex
	rung map[string]int // wake-ups since the last look, by queue
	soon map[string]int // those that another supervisor should have answered by then
	at   time.Time      // when to look for those; zero: there are none
}

// ring notes a wake-up for a queue.
func (d *doorbell) ring(queue string, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.rung == nil {
		d.rung = map[string]int{}
	}
	d.rung[queue] += n
}

// later notes a wake-up that another supervisor was sent first. One look serves all that come until then.
func (d *doorbell) later(queue string, at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.soon == nil {
		d.soon = map[string]int{}
	}
	d.soon[queue]++
	if d.at.IsZero() {
		d.at = at
	}
}

// next is when to look because of later; zero: not.
func (d *doorbell) next() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.at
}

// ringing reports whether take would return any.
func (d *doorbell) ringing(now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.rung) > 0 || !d.at.IsZero() && !now.Before(d.at)
}

// take returns the wake-ups that the look now begun has to answer.
func (d *doorbell) take(now time.Time) map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	rung := d.rung
	if !d.at.IsZero() && !now.Before(d.at) {
		if rung == nil {
			rung = map[string]int{}
		}
		for queue, n := range d.soon {
			rung[queue] += n
		}
		d.soon, d.at = nil, time.Time{}
	}
	d.rung = nil
	return rung
}

// ring makes the claimer look for a job that was enqueued to this queue.
func (c *claimer) ring(queue string) {
	c.bell.ring(queue, 1)
	c.wake()
}

// ringLater makes it look a little later: another supervisor was woken, and may be dead, frozen or full.
func (c *claimer) ringLater(queue string) {
	c.bell.later(queue, c.sup.now().Add(soonAfter))
	c.poke()
}

// unanswered keeps the wake-ups of a look that could not answer them for the next one.
func (c *claimer) unanswered(p *plan) {
	for queue, n := range p.rung {
		c.bell.ring(queue, n)
	}
}

// found strikes out the wake-ups that the look has answered with a job, and reports whether that was all.
func (p *plan) found() bool {
	for i := range p.reply.jobs {
		if queue := p.reply.jobs[i].queue; p.rung[queue] > 1 {
			p.rung[queue]--
		} else {
			delete(p.rung, queue)
		}
	}
	return len(p.rung) == 0
}

// lookAgain decides whether a look that found jobs is followed by another at once. Awake it is. Asleep it need not be:
// whatever comes is announced. But there may be more, and only a look that finds nothing tells when the next job is due.
func (c *claimer) lookAgain(p *plan, now time.Time) bool {
	if !c.asleep || c.trickle.over() || p.order != nil {
		c.next, c.step = now, 0
		return true
	}
	answered := p.found()
	filled := slices.ContainsFunc(p.groups, func(g claimGroup) bool { return g.queue.full })
	if answered && !filled && (p.due.IsZero() || p.due.After(now)) {
		if !p.due.IsZero() {
			c.noteDue(p.due)
		}
		return false
	}
	c.unanswered(p)
	c.next, c.step = now, c.sup.cfg.PollInterval*mostTurns
	return true
}

// restAsleep decides when a supervisor that is woken for each job looks again by itself: in its turn. If a look could not
// be sure to have found the job that it was woken for, it comes again, after 1, 2, 4, … ms, until it is.
func (c *claimer) restAsleep(p *plan, now time.Time, poll time.Duration) {
	most := poll * mostTurns
	if c.step = max(firstPoll, 2*c.step); c.step > poll {
		c.step = most
	}
	switch {
	case len(p.reply.jobs) == 0 && len(p.rung) == 0:
	case p.sweep.width >= wideSweep || len(p.rung) == 0:
		c.step = most
	default:
		c.unanswered(p)
	}
	longest := c.hearing.step(p.reply.seen, now, c.sup.polls.wait(p.reply.seen.at, poll))
	c.next = now.Add(min(c.step, longest))
	if c.until.After(now) && c.until.Before(c.next) {
		c.next = c.until // past that it would pass for awake
	}
}

// passOn wakes another supervisor for the queues of which this one has just claimed all that it has room for, but not
// often: that one does the same.
func (c *claimer) passOn(base context.Context, p *plan, now time.Time) {
	if c.sup.cfg.DisableNotify || now.Before(c.passAt) || p.order != nil {
		return
	}
	queues := map[string]string{} // and a kind that waits there
	for i := range p.reply.jobs {
		j := &p.reply.jobs[i]
		queues[j.queue] = j.kind
	}
	for _, g := range p.groups {
		if !g.queue.full {
			delete(queues, g.queue.Name)
		}
	}
	if len(queues) == 0 {
		return
	}
	c.passAt = now.Add(passEvery)
	ctx, cancel := context.WithTimeout(base, min(tripTimeout, c.sup.cfg.Lease/2))
	defer cancel()
	conn, err := c.link.get(ctx)
	if err == nil {
		var pass pipeline
		pass.begin()
		names, kinds := make([]string, 0, len(queues)), make([]*string, 0, len(queues))
		for _, queue := range slices.Sorted(maps.Keys(queues)) {
			kind := queues[queue]
			names, kinds = append(names, queue), append(kinds, &kind)
		}
		pass.exec(nil, sqlWakeAnother, names, kinds, p.lease.id)
		pass.commit()
		err = pass.send(ctx, conn)
	}
	if err != nil {
		c.trouble.failed(base, c.sup, "waking another supervisor", err)
	}
}

// passFull wakes another supervisor for each queue that has just lost its room here: a job may have come for it that
// was announced to this one alone, or to nobody because this one was awake.
func (c *claimer) passFull(p *pipeline, id string, full []string, rung map[string]int) {
	var queues []string
	for _, queue := range full {
		if rung[queue] > 0 || !slices.Contains(c.full, queue) && !c.asleep {
			queues = append(queues, queue)
		}
	}
	if len(queues) > 0 {
		p.exec(nil, sqlWakeAnother, queues, make([]*string, len(queues)), id)
	}
	p.call(func() {
		for _, queue := range queues {
			delete(rung, queue)
		}
	})
}

// pollTurns are a supervisor's places among those that share its polls: those asleep that serve the same queue and the same kinds.
// One of them looks in each poll interval.
type pollTurns struct {
	places atomic.Pointer[[]pollPlace] // nil: it hears no notifications, and polls by itself
}

// pollPlace is the supervisor's place in one queue, from 0, and how many there are.
type pollPlace struct{ at, of int64 }

// wait is how long it is, at this time of the server's, until the supervisor's next turn.
func (t *pollTurns) wait(at time.Time, poll time.Duration) time.Duration {
	wait := poll * mostTurns
	places := t.places.Load()
	if places == nil {
		return poll
	}
	for _, p := range *places {
		wait = min(wait, p.wait(at, poll))
	}
	return wait
}

func (p pollPlace) wait(at time.Time, poll time.Duration) time.Duration {
	turns := min(p.of, mostTurns)
	if turns <= 1 {
		return poll
	}
	// Where there are more supervisors than turns, those of one turn come one after the other.
	round, every := time.Duration(p.at/turns), time.Duration((p.of+turns-1)/turns)
	since := time.Duration(at.UnixNano()) - poll*round/every
	turn := int64(since / poll)
	ahead := (p.at%turns - turn%turns + turns) % turns
	if ahead == 0 {
		ahead = turns
	}
	return time.Duration(turn+ahead)*poll - since
}

// hear sends LISTEN for the channel of the queue and for the supervisor's own, and takes the lock that shows producers
// that this session is alive. Reports whether it got the lock: it may not, as long as the server has not noticed the end
// of the connection before.
func (s *store) hear(ctx context.Context, conn *pgx.Conn, id string) (known bool, err error) {
	var channel string
	if err := conn.QueryRow(ctx, sqlListen).Scan(&channel); err != nil {
		return false, err
	}
	var p pipeline
	p.begin()
	p.exec(nil, `unlisten *`)
	for _, name := range []string{channel, bellOf(id)} {
		p.exec(nil, "listen "+pgx.Identifier{name}.Sanitize())
	}
	p.commit()
	p.begin()
	p.exec(nil, sqlForgetBell)
	p.query(func(rows pgx.Rows) error { return rows.Scan(&known) }, sqlBell, id)
	p.commit()
	return known, p.send(ctx, conn)
}
