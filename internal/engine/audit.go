package engine

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// The pace of audits.
const (
	AuditGap   = time.Minute     // a full sweep asks for an audit only if the last one ended this long ago, or two leases ago if that is less
	auditPause = 5 * time.Second // the shortest time between any two audits, because connections may break often
	AuditPage  = 2000            // rows of a lane in one page, which takes some 2 ms
	AuditShare = 100             // the claimer spends at most a hundredth of its time on pages
)

// audit looks for jobs that run in this supervisor's name although its settler does not know of them, and releases
// them. No other supervisor would rescue them, because their owner is alive. There are two ways to get such a job.
// Somebody changed claim_seq or attempted_at by hand, so the settle matched no row. Or the database forgot a settle
// that it had acknowledged.
//
// A full sweep asks for an audit, and so does a connection that was lost and made anew. The claimer's goroutine reads
// the pages between its claims: during a claim, the settler would not know of the jobs of that claim either.
type audit struct {
	*Shared
	settler *settler

	Mu    sync.Mutex
	Due   time.Time // when the next audit is due; zero: none is wanted
	Ended time.Time // when the last audit ended

	// Only the claimer's goroutine uses the fields below.
	Hunt *store.Scan
	Next time.Time // no page is read before this time
}

// ask requests an audit, unless the last audit ended less than AuditGap ago, or less than two leases if that is
// shorter.
func (a *audit) ask(now time.Time) {
	a.Mu.Lock()
	recent := now.Sub(a.Ended) < min(AuditGap, 2*a.Cfg.Lease)
	a.Mu.Unlock()
	if !recent {
		a.by(now)
	}
}

// Reconnected asks for an audit after a connection was lost: the server may have lost changes that it had acknowledged.
func (a *audit) Reconnected() { a.by(a.Now()) }

func (a *audit) by(now time.Time) {
	a.Mu.Lock()
	if a.Due.IsZero() {
		a.Due = now
		if pause := a.Ended.Add(auditPause); pause.After(now) {
			a.Due = pause
		}
	}
	a.Mu.Unlock()
	a.alarm.poke()
}

// Rest returns for how long the audit has nothing to do.
func (a *audit) Rest(now time.Time) time.Duration {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	switch {
	case a.Hunt != nil:
		return a.Next.Sub(now)
	case a.Due.IsZero():
		return time.Hour
	}
	return a.Due.Sub(now)
}

// Page reads the next page of the audit, if it is time.
func (a *audit) Page(base context.Context, t *Trouble, now time.Time) {
	l := a.Lease.Load()
	if a.Rest(now) > 0 || l.Ended.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(base, min(TripTimeout, a.Cfg.Lease/6))
	defer cancel()
	if a.Hunt == nil || a.Hunt.Owner != l.ID {
		a.Mu.Lock()
		a.Due = time.Time{} // an audit that is asked for from now on comes after this one
		a.Mu.Unlock()
		a.Hunt = store.NewScan(l.ID, a.QueueNames(), false)
		a.Hunt.Own, a.Hunt.Page, a.Hunt.Bound = true, AuditPage, min(a.Cfg.Lease/24, time.Second)
	}
	conn, err := t.link.Get(ctx)
	if err == nil {
		_, err = a.look(ctx, conn, a.Hunt, l, false)
	}
	took := a.Now().Sub(now)
	a.Next = now.Add(AuditShare * max(took, time.Millisecond))
	if err != nil {
		a.Next = now.Add(MaxRetryPause)
		if !pg.RowsFault(err) && !pg.Answered(err) {
			t.Failed(base, a.Shared, "looking for forgotten jobs", err)
		} else {
			a.seldom.log(base, a.log, slog.LevelWarn, "audit"+pg.SQLState(err), "could not look for forgotten jobs; the supervisor tries again",
				slog.String("error", err.Error()))
		}
		return
	}
	if a.Hunt.Ended() {
		a.Hunt = nil
		a.Mu.Lock()
		a.Ended = a.Now()
		a.Mu.Unlock()
	}
}

// look reads one page and releases the jobs that nobody works on. It lists the known runs before it reads the page. So
// if a job is settled in between, the list still has its run, and the job is not released by mistake. The parameter
// lost is whether the search is for a lost claim and not an audit. The result forgotten is true if the database has
// forgotten a claim that is known here.
func (a *audit) look(ctx context.Context, conn store.Session, h *store.Scan, l *lease, lost bool) (forgotten bool, err error) {
	known := latestClaims(slices.Concat(a.Unsettled.All(), a.RefusedRuns.All()))
	held, err := conn.Scan(ctx, h)
	h.Found = nil
	held = slices.DeleteFunc(held, func(j store.Held) bool {
		forgotten = forgotten || lost && known[j.ID].After(j.AttemptedAt.Time)
		return mayBeAtWork(known, &j, lost)
	})
	if !lost {
		a.logUnread(ctx, h)
		if len(held) > 0 {
			a.log.WarnContext(ctx, "jobs that nobody works on ran in this supervisor's name, they are given back",
				slog.String("supervisor", l.ID), slog.Int("count", len(held)))
		}
	}
	return forgotten, errors.Join(err, a.release(ctx, conn, held, l))
}

// latestClaims returns the time of the latest claim for each job of the runs.
func latestClaims(runs []*Run) map[string]time.Time {
	latest := map[string]time.Time{}
	for _, r := range runs {
		if at, ok := latest[r.ID]; !ok || r.ClaimedAt.After(at) {
			latest[r.ID] = r.ClaimedAt
		}
	}
	return latest
}

// mayBeAtWork reports whether a known run keeps a job from being released. The map known has the time of the latest
// claim of each job.
//
// In an audit any run of the job keeps the job: somebody may have changed the row while the handler works. When that
// run ends, its settle matches no row, and the next audit releases the job.
//
// After a lost claim, a run of an older claim does not keep the job. The handler of such a run ignores the end of its
// context. Its claim has ended, and the lost claim has taken the job again. A run of the same claim keeps the job, and
// so does a run of a later claim, which the database has forgotten.
func mayBeAtWork(known map[string]time.Time, j *store.Held, lost bool) bool {
	claimed, ok := known[j.ID]
	return ok && (!lost || !claimed.Before(j.AttemptedAt.Time))
}

// release ends the runs of jobs that ran in this supervisor's name without its knowledge. Most of the jobs become
// available as if they had never been claimed. A job with a single attempt is discarded if it may have started, because
// it must not run again.
func (a *audit) release(ctx context.Context, conn store.Session, held []store.Held, l *lease) error {
	var errs []error
	for i := range held {
		j := &held[i]
		r := a.Handler.Crashed(j, Crash{Owner: l.ID, Own: true, Started: j.StartedSeq})
		if j.Unfenced() { // a job with a single attempt is discarded, other jobs are put off
			_, err := a.refuseOn(ctx, conn, r, &store.Refused{Path: store.PathRescue, Why: errUnfenced, Later: !j.Once()}, a.Cfg.Lease/24)
			errs = append(errs, err)
			continue
		}
		r.Lease = l
		a.Unsettled.Add(r)
		a.settler.Settle(r)
	}
	return errors.Join(errs...)
}

var errUnfenced = errors.New("its attempted_at is no time that a settle can name")
