package drover

import (
	"slices"
	"time"
)

// sleep is what a supervisor says of itself in drover_sleepers, and why. Asleep it polls rarely, because it is notified
// of each job. Awake it polls often, and nobody notifies it. In a queue that is full it takes nothing, so another
// supervisor is notified of its jobs. The claimer's goroutine owns it; the clock is the process' own.
type sleep struct {
	// What drover_sleepers says.
	asleep bool
	until  time.Time // the end of the sleep; zero: for good
	full   []string  // queues without room

	idleAt time.Time            // since when nothing was found; zero while there is work
	fullAt time.Time            // since when no slot is free; zero while one is
	noRoom map[string]time.Time // queues, and since when there is no room in them
	left   float64              // jobs that may still be found before it is too much to be notified of each
	leftAt time.Time            // when that was counted
}

// found notes how many jobs a look has found.
func (s *sleep) found(n int, now time.Time) {
	switch {
	case n > 0:
		s.idleAt = time.Time{}
		s.left = max(-1, min(trickleBurst, s.left+trickleRate*now.Sub(s.leftAt).Seconds())-float64(n))
		s.leftAt = now
	case s.idleAt.IsZero():
		s.idleAt = now
	}
}

// tooMany reports whether more jobs come than a supervisor wants to be notified of one by one.
func (s *sleep) tooMany() bool { return s.left < 0 }

// slots notes whether a slot is free.
func (s *sleep) slots(free bool, now time.Time) {
	switch {
	case free:
		s.fullAt = time.Time{}
	case s.fullAt.IsZero():
		s.fullAt = now
	}
}

// say returns what the round trip of a claim is to write first, nil if drover_sleepers says so already: that this
// supervisor is asleep, once it has found nothing for a while, or awake, once it finds too many jobs. The claim closes the
// gap: it finds the jobs of transactions that committed earlier, and so saw no sleeper to notify.
//
// If a sleep was to end when a job is due, and another process got that job, the end is written anew: past it we would
// count as awake. A claim follows when a slot gets free in a queue that is written as full.
func (s *sleep) say(claim *claim, anew bool, now time.Time) *sleepRow {
	idle := !s.idleAt.IsZero() && now.Sub(s.idleAt) >= sleepAfter
	asleep := idle || s.asleep && !s.tooMany()
	over := !s.until.IsZero() && !now.Before(s.until)
	full := s.fullQueues(claim.req, asleep, now)
	if slices.ContainsFunc(full, func(q string) bool { return claim.rung[q] > 0 }) {
		anew = true // to pass the wake-up on
	}
	if asleep == s.asleep && !anew && slices.Equal(full, s.full) && (!asleep || !over) {
		return nil
	}
	row := &sleepRow{id: claim.lease.id, asleep: asleep, full: full, pass: s.pass(full, claim.rung)}
	if asleep && claim.due.After(now) {
		row.rest = claim.due.Sub(now)
	}
	return row
}

// fullQueues are the queues for which the claim has no room. Asleep they count at once, because the next look may be far;
// awake only after a while, because slots get free all the time.
func (s *sleep) fullQueues(claim *claimRequest, asleep bool, now time.Time) []string {
	full := []string{}
	for i, room := range claim.rooms {
		queue := claim.queues[i]
		since, known := s.noRoom[queue]
		switch {
		case room > 0:
			delete(s.noRoom, queue)
			continue
		case !known:
			since = now
			s.noRoom[queue] = now
		}
		if asleep || now.Sub(since) >= sleepAfter {
			full = append(full, queue)
		}
	}
	return full
}

// pass returns the queues that have just lost their room here. Another supervisor is woken for each: a job may have come
// that was announced to this one alone, or to nobody because this one was awake.
func (s *sleep) pass(full []string, rung map[string]int) (queues []string) {
	for _, queue := range full {
		if rung[queue] > 0 || !slices.Contains(s.full, queue) && !s.asleep {
			queues = append(queues, queue)
		}
	}
	return queues
}

// wrote notes what drover_sleepers says by now.
func (s *sleep) wrote(row *sleepRow, now time.Time) {
	s.asleep, s.until, s.full = row.asleep, time.Time{}, row.full
	if row.rest > 0 {
		s.until = now.Add(row.rest)
	}
}
