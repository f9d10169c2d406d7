package drover

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// start is a run that waits for the note that it starts.
type start struct {
	run   *Run
	noted chan bool
}

// noteStart writes down that a job with a single attempt starts, and waits for it: from then on a rescue discards it, and
// before it the job has certainly not run. It returns false if the claim or the lease is over, the row is locked, or the
// database refuses the note.
func (e *settler) noteStart(r *Run) bool {
	s := &start{r, make(chan bool, 1)}
	e.mu.Lock()
	e.starts = append(e.starts, s)
	e.mu.Unlock()
	e.poke()
	select {
	case noted := <-s.noted:
		return noted && r.lease.ctx.Err() == nil // a handler that began now could only be cut short
	case <-r.lease.ctx.Done():
		return false
	}
}

// noteStarts is one round trip for all that wait, if any do.
func (e *settler) noteStarts(base context.Context, now time.Time) bool {
	if now.Before(e.noting.until) {
		return false
	}
	e.mu.Lock()
	starts := e.starts
	e.starts = nil
	e.mu.Unlock()
	if len(starts) == 0 {
		e.noting.over(base, e.shared) // nobody waits any more
		return false
	}
	noted := map[string]time.Time{}
	type bad struct {
		run *Run
		err error
	}
	var refused []bad
	err := pg.Bisect(starts, func(part []*start) error { return e.notePart(base, part, noted) }, func(s *start, err error) error {
		refused = append(refused, bad{s.run, err})
		return nil
	})
	for _, b := range refused {
		if err == nil {
			err = e.startRefused(base, b.run, b.err, len(noted) == 0)
		}
	}
	if err != nil {
		starts = slices.DeleteFunc(starts, func(s *start) bool { return s.run.lease.ctx.Err() != nil }) // nobody waits any more
		e.mu.Lock()
		e.starts = append(starts, e.starts...)
		e.mu.Unlock()
		e.noting.failed(base, e.shared, "noting starts", err)
		return true
	}
	e.noting.over(base, e.shared)
	for _, s := range starts {
		at, found := noted[s.run.ID]
		s.noted <- found && at.Equal(s.run.ClaimedAt)
	}
	return true
}

// notePart is one round trip that notes some starts.
func (e *settler) notePart(base context.Context, part []*start, noted map[string]time.Time) error {
	ctx, cancel := e.tripContext(base)
	defer cancel()
	conn, err := e.connect(ctx)
	if err != nil {
		return err
	}
	list := make([]store.Fence, len(part))
	for i, s := range part {
		list[i] = s.run.Fence
	}
	read, err := conn.Start(ctx, list, e.cfg.Lease/12)
	maps.Copy(noted, read)
	return err
}

// startRefused takes a job whose start cannot be recorded out of the way of others. The job is not started.
func (e *settler) startRefused(base context.Context, r *Run, why error, aside bool) error {
	ctx, cancel := e.tripContext(base)
	defer cancel()
	conn, err := e.connect(ctx)
	if err != nil {
		return err
	}
	// A job whose start cannot be noted cannot be claimed, as far as the others are concerned.
	g := &store.Refused{Path: store.PathClaim, Owner: r.Owner, ID: r.ID, Seq: r.Seq, ClaimedAt: &r.ClaimedAt, Why: why, Later: !pg.Lasting(why), Aside: aside}
	became, err := conn.GiveUp(ctx, g, e.walkBound())
	if err != nil || became == "" {
		return err
	}
	if became == store.SetAside {
		e.rereadAside.Store(true)
	} else {
		r.putOff.Store(true)
		e.book.remove(r)
	}
	e.logRefused(base, store.PathClaim, r, became, why)
	return nil
}
