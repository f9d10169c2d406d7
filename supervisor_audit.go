package drover

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

const (
	auditGap   = time.Minute     // between audits that full sweeps ask for, or two leases
	auditPause = 5 * time.Second // between any two: connections may break all the time
	auditPage  = 2000            // rows of a lane in one page, some 2 ms
	auditShare = 100             // a page takes at most a hundredth of the time
)

// audit looks for jobs that run in this supervisor's name though its settler does not know of them, and gives them back.
// Nobody else would: their owner is alive. There are two ways to get such a job. Somebody changed claim_seq or
// attempted_at by hand, so that the outcome was refused. Or the database forgot a settle that it had acknowledged.
//
// A full sweep asks for it, and so does a connection that came back. The claimer's goroutine does it, between claims:
// with a claim under way, that claim's jobs would be unknown, too.
type audit struct {
	*shared
	settler *settler

	mu    sync.Mutex
	due   time.Time // when the next audit is due; zero: none is wanted
	ended time.Time // when the last audit ended

	// The rest is the claimer goroutine's own.
	hunt *store.Hunt
	next time.Time // no page is read before this
}

// want asks for an audit, unless there was one a short while ago.
func (a *audit) want(now time.Time) {
	a.mu.Lock()
	recent := now.Sub(a.ended) < min(auditGap, 2*a.cfg.Lease)
	a.mu.Unlock()
	if !recent {
		a.by(now)
	}
}

// reconnected asks for an audit: the server may have lost what it had acknowledged.
func (a *audit) reconnected() { a.by(a.now()) }

func (a *audit) by(now time.Time) {
	a.mu.Lock()
	if a.due.IsZero() {
		a.due = now
		if pause := a.ended.Add(auditPause); pause.After(now) {
			a.due = pause
		}
	}
	a.mu.Unlock()
	a.alarm.poke()
}

// rest returns how long the audit has nothing to do.
func (a *audit) rest(now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.hunt != nil:
		return a.next.Sub(now)
	case a.due.IsZero():
		return time.Hour
	}
	return a.due.Sub(now)
}

// page reads the next page, if it is time.
func (a *audit) page(base context.Context, t *trouble, now time.Time) {
	l := a.lease.Load()
	if a.rest(now) > 0 || l.ended.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(base, min(tripTimeout, a.cfg.Lease/6))
	defer cancel()
	if a.hunt == nil || a.hunt.Owner != l.id {
		a.mu.Lock()
		a.due = time.Time{} // an audit that is wanted from now on comes after this one
		a.mu.Unlock()
		a.hunt = store.NewHunt(l.id, a.queueNames(), false)
		a.hunt.Own, a.hunt.Page, a.hunt.Bound = true, auditPage, min(a.cfg.Lease/24, time.Second)
	}
	conn, err := t.link.Get(ctx)
	if err == nil {
		err = a.look(ctx, conn, l)
	}
	took := a.now().Sub(now)
	a.next = now.Add(auditShare * max(took, time.Millisecond))
	if err != nil {
		a.next = now.Add(maxRetryPause)
		if !pg.RowsFault(err) && !pg.Answered(err) {
			t.failed(base, a.shared, "looking for forgotten jobs", err)
		} else {
			a.quiet.log(base, a.log, slog.LevelWarn, "audit"+pg.SQLState(err), "could not look for forgotten jobs; the supervisor tries again",
				slog.String("error", err.Error()))
		}
		return
	}
	if a.hunt.Ended() {
		a.hunt = nil
		a.mu.Lock()
		a.ended = a.now()
		a.mu.Unlock()
	}
}

// look audits one page. It asks the settler before the database: a job that is settled in between is known to the
// settler, and no longer runs in the database. A job with any known run has to wait: its handler may still be at
// work.
func (a *audit) look(ctx context.Context, conn store.Session, l *lease) error {
	known := map[string]bool{}
	for _, r := range slices.Concat(a.book.all(), a.apart.all()) {
		known[r.ID] = true
	}
	held, err := conn.Hunt(ctx, a.hunt, nil)
	var unknown []store.Held
	for _, j := range held {
		if !known[j.ID] {
			unknown = append(unknown, j)
		}
	}
	a.hunt.Found = nil
	a.logUnread(ctx, a.hunt)
	if len(unknown) > 0 {
		a.log.WarnContext(ctx, "jobs that nobody works on ran in this supervisor's name, they are given back",
			slog.String("supervisor", l.id), slog.Int("count", len(unknown)))
	}
	return errors.Join(err, a.giveBack(ctx, conn, unknown, l))
}

// giveBack ends runs in this supervisor's name that the supervisor did not know of. Most jobs go back as if they had
// never been claimed. A job with a single attempt that may have started must not run again: it is discarded.
func (a *audit) giveBack(ctx context.Context, conn store.Session, held []store.Held, l *lease) error {
	var errs []error
	for i := range held {
		j := &held[i]
		if j.Unfenced() {
			errs = append(errs, a.giveUpUnfenced(ctx, conn, l.id, j))
			continue
		}
		r := a.handler.Crashed(j, Crash{Owner: l.id, Own: true, Started: j.StartedSeq})
		r.lease = l
		a.book.add(r)
		a.settler.settle(r)
	}
	return errors.Join(errs...)
}

// giveUpUnfenced takes care of a job whose attempted_at no settle can match: it puts the job off, or discards it if
// the job has a single attempt.
func (a *audit) giveUpUnfenced(ctx context.Context, conn store.Session, owner string, j *store.Held) error {
	_, err := conn.GiveUp(ctx, &store.Refused{
		Path: store.PathRescue, Owner: owner, ID: j.ID, Seq: j.ClaimSeq, Why: errUnfenced, Later: !j.Once(),
	}, a.cfg.Lease/24)
	return err
}
