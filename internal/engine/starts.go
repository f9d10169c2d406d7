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
func (s *settler) NoteStart(r *Run) bool {
	start := &Start{r, make(chan bool, 1)}
	s.Mu.Lock()
	s.Starts = append(s.Starts, start)
	s.Mu.Unlock()
	s.signal.poke()
	select {
	case noted := <-start.Noted:
		return noted && r.Lease.Ctx.Err() == nil // a handler that began now would be cut short
	case <-r.Lease.Ctx.Done():
		return false
	}
}

// NoteStarts records the starts that wait. It returns false if no start waits, or while it pauses after a failure.
func (s *settler) NoteStarts(base context.Context, now time.Time) bool {
	if now.Before(s.noting.Until) {
		return false
	}
	s.Mu.Lock()
	starts := s.Starts
	s.Starts = nil
	s.Mu.Unlock()
	if len(starts) == 0 {
		s.noting.Over(base, s.Shared) // a failure does not matter any more, because no start waits
		return false
	}
	noted := map[string]time.Time{}
	try := func(part []*Start) (int, error) { return s.notePart(base, part, noted) }
	asked := false
	a, err := pickApart(pg.Bisect, starts, func(part []*Start) (int, error) {
		n, err := try(part)
		if asked || !pg.TimedOut(err) {
			return n, err
		}
		asked = true
		if locked := s.tableOpen(base, &s.Link); locked != nil {
			return 0, locked
		}
		return try(part) // once more, because a lock of the table may have ended just now
	}, nil)
	for _, b := range a.refused {
		if err == nil {
			err = s.StartRefused(base, b.item.Run, b.err, a.passed == 0)
		}
	}
	if err != nil {
		starts = slices.DeleteFunc(starts, func(start *Start) bool { return start.Run.Lease.Ctx.Err() != nil }) // these starts wait no more
		s.Mu.Lock()
		s.Starts = append(starts, s.Starts...)
		s.Mu.Unlock()
		s.noting.Failed(base, s.Shared, "noting starts", err)
		return true
	}
	s.noting.Over(base, s.Shared)
	for _, start := range starts {
		at, found := noted[start.Run.ID]
		start.Noted <- found && at.Equal(start.Run.ClaimedAt)
	}
	return true
}

// notePart records some starts in one round trip, and adds them to the map noted.
func (s *settler) notePart(base context.Context, part []*Start, noted map[string]time.Time) (n int, err error) {
	list := make([]store.Fence, len(part))
	for i, start := range part {
		list[i] = start.Run.Fence
	}
	err = s.roundTrip(base, &s.Link, func(ctx context.Context, conn store.Session) error {
		read, err := conn.Start(ctx, list, s.Cfg.Lease/12)
		maps.Copy(noted, read)
		n = len(read)
		return err
	})
	return n, err
}

// StartRefused handles a job whose start the database refuses to record. It takes the job out of the way of other jobs.
// The job does not start.
func (s *settler) StartRefused(base context.Context, r *Run, why error, aside bool) error {
	// The path is PathClaim, because other processes should treat the job as a job that cannot be claimed.
	became, err := s.refuse(base, &s.Link, r, &store.Refused{Path: store.PathClaim, Why: why, Later: !pg.Lasting(why), Aside: aside})
	switch {
	case err != nil || became == "":
	case became == store.SetAside:
		s.rereadAside.Store(true)
	default:
		r.postponed.Store(true)
		s.Unsettled.Remove(r)
	}
	return err
}
