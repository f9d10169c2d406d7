package engine

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/drover-queue/drover/internal/blame"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// PastLease is a lease that we have lost. Other supervisors may be rescuing its jobs.
type PastLease struct {
	ID   string
	Late map[string]int // for each job: in how many beats the statement that takes back its crash has timed out
}

// MostPastLeases is how many lost leases a supervisor remembers. Until the rescue of its jobs is over, a lost lease
// costs each beat at least one round trip.
const MostPastLeases = 16

// NoteLost notes that the lease of an id is lost. If there are too many lost leases, it forgets the oldest one.
func (k *keeper) NoteLost(id string) {
	if !slices.ContainsFunc(k.Was, func(l PastLease) bool { return l.ID == id }) { // if registering fails, the next try notes the same id again
		k.Was = append(k.Was, PastLease{ID: id, Late: map[string]int{}})
	}
	k.Was = k.Was[max(len(k.Was)-MostPastLeases, 0):]
}

// UndoCrashes takes back the crashes that other supervisors counted against our jobs when they declared us lost. The
// parameter bound limits a statement over many jobs, and the parameter longer limits a statement over one job, and the
// read of the list of jobs.
func (k *keeper) UndoCrashes(ctx context.Context, conn store.Session, bound, longer time.Duration) error {
	var left []PastLease
	var errs []error
	for _, l := range k.Was {
		done, err := k.undoCrashesOf(ctx, conn, &l, bound, longer)
		if !done {
			left = append(left, l)
		}
		errs = append(errs, err)
	}
	k.Was = left
	return errors.Join(errs...)
}

// undoCrashesOf takes back the crashes that one lost lease has caused. If a job's statement times out, undoCrashesOf
// tries it again in up to PatientBeats beats: a job must not keep a crash because the server was slow for a moment. The
// result done is true if nothing is left to take back.
func (k *keeper) undoCrashesOf(ctx context.Context, conn store.Session, l *PastLease, bound, longer time.Duration) (done bool, err error) {
	blamed, all, err := conn.Blamed(ctx, l.ID, longer)
	if err != nil || len(blamed) == 0 {
		return all, err
	}
	if err := conn.TableOpen(ctx, k.walkBound()); err != nil {
		return false, err
	}
	takeBack := func(jobs []string, bound time.Duration) error {
		if err := pg.TimeFor(ctx, 2*bound); err != nil {
			return err
		}
		return conn.TakeBack(ctx, l.ID, jobs, bound)
	}
	// Each statement rewrites the list of blamed jobs. Over too many jobs it would take longer than its bound, so the walk
	// goes by chunks.
	walk := func(jobs []string, try func([]string) error, refused func(string, error) error) (err error) {
		for part := range slices.Chunk(jobs, store.MaxSettle) {
			if err = pg.Bisect(part, try, refused); err != nil {
				break
			}
		}
		return err
	}
	a, err := pickApart(walk, blamed, func(jobs []string) (int, error) { return len(jobs), takeBack(jobs, bound) }, nil)
	left := a.patiently(
		func(job string) error { return takeBack([]string{job}, longer) },
		func(job string, err error) bool {
			if pg.TimedOut(err) {
				l.Late[job]++
			}
			return l.Late[job] < PatientBeats
		})
	for _, b := range a.refused {
		if fault := pg.TimeFor(ctx, bound); fault != nil {
			return false, cmp.Or(err, fault)
		}
		k.seldom.log(ctx, k.log, slog.LevelWarn, "take back "+b.item, "crash not taken back, the database refuses to change the job",
			slog.String("job_id", b.item), slog.String("error", b.err.Error()))
		err = cmp.Or(err, conn.LeaveBlame(ctx, l.ID, b.item))
	}
	if err != nil || left > 0 {
		return false, cmp.Or(err, pg.ErrNoTime)
	}
	blamed, all, err = conn.Blamed(ctx, l.ID, longer) // some jobs may be left: their rows were locked, or they were blamed after the first look
	return all && len(blamed) == 0, err
}

// Rescue frees the jobs of a lost supervisor. First it finds all of them, page by page, over as many beats as it takes,
// because the number and the crash counts of the jobs that ran together decide how the death is judged (blame.Death).
// Then it frees them. It removes the supervisor's row once a later scan has found no job, even among jobs that are not
// due.
func (k *keeper) Rescue(ctx context.Context, conn store.Session, x store.Peer) error {
	queues := union(x.Queues, k.QueueNames())
	h := k.Hunts[x.ID]
	if h == nil {
		h = store.NewScan(x.ID, queues, false)
		k.Hunts[x.ID] = h
	}
	h.Bound = k.Cfg.Lease / 12
	for !h.Ended() {
		if _, err := conn.Scan(ctx, h); err != nil {
			return err
		}
	}
	if h.All && len(h.Found) == 0 {
		delete(k.Hunts, x.ID)
		if len(h.Unread) > 0 {
			k.logUnread(ctx, h)
			return nil // the row stays, because there may be more jobs in the unread lanes
		}
		return conn.Forget(ctx, x.ID)
	}
	if h.Started == nil {
		started := StartedJobs(h.Found)
		var crashes []int
		for _, j := range h.Found {
			if started[j.ID] {
				crashes = append(crashes, j.Crashes)
			}
		}
		d, err := conn.Judge(ctx, x.ID, blame.NewDeath(crashes))
		if err != nil {
			return err
		}
		h.Started, h.Death = started, d
	}
	left, err := k.Free(ctx, conn, x.ID, h, h.Found)
	if err != nil {
		h.Found = left
		return err
	}
	k.logUnread(ctx, h)
	k.Hunts[x.ID] = store.NewScan(x.ID, queues, true) // this scan finds the rows that were locked just now
	return nil
}

// Orphaned frees the jobs of owners that have no row in drover_supervisors. If the rescue of an owner has set one of
// its jobs aside, Orphaned judges this job by the evidence about the death that the rescue has recorded. If drover does
// not know how an owner ended, Orphaned judges the owner's jobs as if other processes had died at the same time
// (blame.Death.Mass).
func (k *keeper) Orphaned(ctx context.Context, conn store.Session, h *store.Scan) error {
	h.Bound, h.Late = k.Cfg.Lease/12, PatientBeats
	for {
		byOwner := map[string][]store.Held{}
		for _, j := range h.Found {
			byOwner[j.Owner] = append(byOwner[j.Owner], j)
		}
		h.Found = nil
		var errs []error
		for owner, held := range byOwner {
			d, died, err := conn.Verdict(ctx, owner)
			if err != nil {
				h.Found, errs = append(h.Found, held...), append(errs, err)
				continue
			}
			if !died {
				d = blame.Death{Mass: true}
			}
			h.Started, h.Death = StartedJobs(held), d
			left, err := k.Free(ctx, conn, owner, h, held)
			h.Found, errs = append(h.Found, left...), append(errs, err)
		}
		k.logUnread(ctx, h)
		err := errors.Join(errs...)
		if err == nil && !h.Ended() {
			_, err = conn.Scan(ctx, h)
		} else if err == nil {
			return nil
		}
		if errors.Is(err, pg.ErrNoTime) {
			return nil // the next sweep goes on with the scan
		}
		if err != nil {
			return err
		}
	}
}

// rescued is a job of a dead supervisor, with the run whose outcome the job gets.
type rescued struct {
	j      *store.Held
	r      *Run
	deaths []string // if the job is quarantined: the supervisors whose deaths it has caused
	done   bool
}

// Free settles the jobs of a dead supervisor, except jobs that their owner settled at the last moment and jobs whose
// rows are locked. A job that the database refuses to settle does not hold up the others. While another session has
// locked the whole table, Free settles nothing. Free returns the jobs that are left for the next beat, and the reason as
// an error.
func (k *keeper) Free(ctx context.Context, conn store.Session, owner string, h *store.Scan, held []store.Held) (left []store.Held, err error) {
	if len(held) > 0 {
		if err := conn.TableOpen(ctx, k.walkBound()); err != nil {
			return held, err
		}
	}
	var errs []error
	var noSlots error
	all, late := len(held), 0
	for len(held) > 0 && err == nil {
		chunk := held[:min(max(h.Part, 1), len(held))]
		held = held[len(chunk):]
		jobs, wait := make([]*rescued, 0, len(chunk)), []*rescued(nil)
		for i := range chunk {
			f := &rescued{j: &chunk[i]}
			if err := k.decide(ctx, conn, owner, h, f); err != nil {
				errs, wait = append(errs, err), append(wait, f)
				continue
			}
			jobs = append(jobs, f)
		}
		if noSlots == nil {
			noSlots = k.takeSlots(ctx, conn, jobs)
		}
		if noSlots != nil {
			jobs = slices.DeleteFunc(jobs, func(f *rescued) bool {
				if k.budgets.wants(f.r, &f.r.End) {
					wait = append(wait, f)
					return true
				}
				return false
			})
		}
		var n int
		n, err = k.settleFreed(ctx, conn, owner, h.Late, jobs)
		late += n
		for _, f := range append(jobs, wait...) {
			if !f.done {
				left = append(left, *f.j)
			}
		}
	}
	left = append(left, held...)
	if late > 0 {
		h.Late++
		err = cmp.Or(err, pg.ErrNoTime)
	}
	if errors.Is(err, pg.ErrNoTime) && len(left) == all {
		h.Part = max(h.Part/8, 1) // one job may have taken all the time, and would do so again in a part of the same size
	} else {
		h.Part = min(2*h.Part, store.MaxSettle)
	}
	k.alarm.Wake()
	return left, errors.Join(append(errs, noSlots, err)...)
}

// decide sets the outcome of a dead supervisor's job. If the job is quarantined, decide also sets the deaths that the
// job has caused.
func (k *keeper) decide(ctx context.Context, conn store.Session, owner string, h *store.Scan, f *rescued) (err error) {
	d, started := h.Death, h.Started[f.j.ID]
	deaths := f.j.DeathsBlamed(owner)
	var b blame.Background
	if started && d.Alone() && d.Spares(f.j.Crashes) == "" && f.j.Crashes+1 >= k.Cfg.QuarantineAfter {
		if b, err = conn.Background(ctx, deaths); err != nil {
			return err
		}
	}
	f.r = k.Handler.Crashed(f.j, Crash{Owner: owner, Started: started, Death: d, Background: b})
	if f.r.End.Quarantined {
		f.deaths = deaths
	}
	return nil
}

// takeSlots takes slots of the retry budgets for the jobs that are to be retried.
func (k *keeper) takeSlots(ctx context.Context, conn store.Session, jobs []*rescued) error {
	ends := make([]wanting, len(jobs))
	for i, f := range jobs {
		ends[i] = wanting{run: f.r, end: &f.r.End}
	}
	return k.budgets.Reserve(ctx, conn, ends)
}

// PatientBeats limits in how many beats writes of one rescue may time out, whatever the jobs are: the server may be
// busy, or another rescuer may have locked the owner's row in drover_ended_supervisors. In the last of these beats,
// each job whose write times out is set aside. Full sweeps try it again, as a job without an owner (Orphaned).
// UndoCrashes counts the beats of each job by itself.
const PatientBeats = 3

// settleFreed records the outcomes of a dead supervisor's jobs. The parameter late counts the beats in which a write
// has timed out so far. The result patient is how many jobs are left for the next beat because their writes timed out.
func (k *keeper) settleFreed(ctx context.Context, conn store.Session, owner string, late int, jobs []*rescued) (patient int, err error) {
	settle := func(part []*rescued, bound time.Duration) error {
		if err := pg.TimeFor(ctx, 2*bound); err != nil {
			return err
		}
		settled, err := conn.Free(ctx, freeingOf(owner, part, bound))
		if err != nil {
			return err
		}
		for _, f := range part {
			f.done = true
			if state := settled[f.j.ID]; state != "" {
				f.r.End.became(state)
				k.reportEnd(f.r)
			}
		}
		return nil
	}
	var fenced []*rescued
	for _, f := range jobs {
		if !f.j.Unfenced() {
			fenced = append(fenced, f)
			continue
		}
		later := !f.j.Once() && f.r.End.State != store.Discarded
		if err := k.refuseFreed(ctx, conn, f, &store.Refused{Why: errUnfenced, Later: later}); err != nil {
			return 0, err
		}
	}
	a, err := pickApart(pg.Bisect, fenced,
		func(part []*rescued) (int, error) { return len(part), settle(part, k.Bound()) },
		func(f *rescued, why error) bool { return f.r.simplify(why) })
	patient = a.patiently(
		func(f *rescued) error { return settle([]*rescued{f}, k.Cfg.Lease/12) },
		func(*rescued, error) bool { return late+1 < PatientBeats })
	// A refused job is set aside if its write timed out. If several jobs are refused and no job has passed, perhaps no
	// single job is at fault, so all of them are set aside. Any other refused job is discarded: it may have killed the
	// process, and drover could not count its crash.
	several := a.passed == 0 && len(a.refused) > 1
	for _, b := range a.refused {
		if fault := k.refuseFreed(ctx, conn, b.item, &store.Refused{Why: b.err, Aside: several || pg.TimedOut(b.err)}); fault != nil {
			return patient, errors.Join(err, fault)
		}
	}
	return patient, err
}

// freeingOf puts the outcomes of a dead supervisor's jobs into one transaction: the changes of their rows, the jobs
// that the death counts against, and for each quarantined job the deaths that it has caused.
func freeingOf(owner string, part []*rescued, bound time.Duration) *store.Freeing {
	f := &store.Freeing{Owner: owner, Changes: make([]store.Change, len(part)), Explained: map[string][]string{}, Bound: bound}
	for i, one := range part {
		f.Changes[i] = one.r.End.Change(one.r)
		if one.r.End.Crashed {
			f.Blamed = append(f.Blamed, one.j.ID)
		}
		if one.deaths != nil {
			f.Explained[one.j.ID] = one.deaths
		}
	}
	return f
}

// If a job cannot be settled, refuseFreed takes it out of the way of the others. If the database refuses even that, the
// job is left for the next beat.
func (k *keeper) refuseFreed(ctx context.Context, conn store.Session, f *rescued, g *store.Refused) error {
	if err := pg.TimeFor(ctx, 2*k.Bound()); err != nil {
		return err
	}
	g.Path = store.PathRescue
	became, err := k.refuseOn(ctx, conn, f.r, g, k.Bound())
	if err != nil && !pg.RowsFault(err) {
		return err
	}
	f.done = err == nil
	if became == string(store.Scheduled) || became == string(store.Retryable) {
		k.report(EventRescued, f.r)
	}
	return nil
}

// StartedJobs returns which of a dead supervisor's jobs may have started. A job counts as started, unless every slot of
// its queue was taken by other jobs: jobs that ran at the last beat and are still not settled. A job with a single
// attempt counts only if its row or the last beat shows the start. The row shows the start only if the job had a single
// attempt already when it started.
func StartedJobs(held []store.Held) map[string]bool {
	busy := map[string]int{}
	for _, j := range held {
		if j.InFlight {
			busy[j.Queue]++
		}
	}
	started := make(map[string]bool, len(held))
	for _, j := range held {
		if j.Once() {
			started[j.ID] = j.InFlight || j.StartedSeq
		} else {
			started[j.ID] = j.InFlight || j.Slots == 0 || busy[j.Queue] < j.Slots
		}
	}
	return started
}
