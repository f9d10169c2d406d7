package engine

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// Start is a run that waits until its start is recorded.
type Start struct {
	Run   *Run
	Noted chan bool
}

// NoteStart records the start of a job with a single attempt, and waits for the commit. If the process dies before the
// commit, the job has certainly not run, and another supervisor may run it. If the process dies later, a rescue
// discards the job. NoteStart returns false if the job must not start, because the claim or the lease is over, the row
// is locked, or the database refuses the record.
func (e *settler) NoteStart(r *Run) bool {
	s := &Start{r, make(chan bool, 1)}
	e.Mu.Lock()
	e.Starts = append(e.Starts, s)
	e.Mu.Unlock()
	e.signal.poke()
	select {
	case noted := <-s.Noted:
		return noted && r.Lease.Ctx.Err() == nil // a handler that began now would be cut short
	case <-r.Lease.Ctx.Done():
		return false
	}
}

// NoteStarts records the starts that wait. It returns false if no start waits, or while it pauses after a failure.
func (e *settler) NoteStarts(base context.Context, now time.Time) bool {
	if now.Before(e.noting.Until) {
		return false
	}
	e.Mu.Lock()
	starts := e.Starts
	e.Starts = nil
	e.Mu.Unlock()
	if len(starts) == 0 {
		e.noting.Over(base, e.Shared) // a failure does not matter any more, because no start waits
		return false
	}
	noted := map[string]time.Time{}
	a, err := pickApart(pg.Bisect, starts, func(part []*Start) (int, error) { return e.notePart(base, part, noted) }, nil)
	for _, b := range a.refused {
		if err == nil {
			err = e.StartRefused(base, b.item.Run, b.err, a.passed == 0)
		}
	}
	if err != nil {
		starts = slices.DeleteFunc(starts, func(s *Start) bool { return s.Run.Lease.Ctx.Err() != nil }) // these starts wait no more
		e.Mu.Lock()
		e.Starts = append(starts, e.Starts...)
		e.Mu.Unlock()
		e.noting.Failed(base, e.Shared, "noting starts", err)
		return true
	}
	e.noting.Over(base, e.Shared)
	for _, s := range starts {
		at, found := noted[s.Run.ID]
		s.Noted <- found && at.Equal(s.Run.ClaimedAt)
	}
	return true
}

// notePart records some starts in one round trip, and adds them to the map noted.
func (e *settler) notePart(base context.Context, part []*Start, noted map[string]time.Time) (n int, err error) {
	list := make([]store.Fence, len(part))
	for i, s := range part {
		list[i] = s.Run.Fence
	}
	err = e.roundTrip(base, &e.Link, func(ctx context.Context, conn store.Session) error {
		read, err := conn.Start(ctx, list, e.Cfg.Lease/12)
		maps.Copy(noted, read)
		n = len(read)
		return err
	})
	return n, err
}

// StartRefused handles a job whose start the database refuses to record. It takes the job out of the way of other jobs.
// The job does not start.
func (e *settler) StartRefused(base context.Context, r *Run, why error, aside bool) error {
	// The path is PathClaim, because other processes should treat the job as a job that cannot be claimed.
	became, err := e.refuse(base, &e.Link, r, &store.Refused{Path: store.PathClaim, Why: why, Later: !pg.Lasting(why), Aside: aside})
	switch {
	case err != nil || became == "":
	case became == store.SetAside:
		e.rereadAside.Store(true)
	default:
		r.postponed.Store(true)
		e.Unsettled.Remove(r)
	}
	return err
}
