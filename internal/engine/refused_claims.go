package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/drover-queue/drover/internal/floors"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// If the database refuses to hand out a due job, each claim that contains the job fails. So after such a failure the
// claimer lists the jobs that the claim would have taken, and claims them in parts. It takes the job at fault out of
// the way of others: drover_refuse puts the job off, or discards it. If the database refuses that as well, the job is
// set aside, and claims leave it out.

// asideEvery is how often the list of set-aside jobs is read while there are any.
const asideEvery = 5 * time.Second

// asideTries is how many set-aside jobs are tried again after each read of the list, at most.
const asideTries = 10

// skipLane is how long claims leave out a lane that cannot be read at all.
const skipLane = time.Minute

// RefusedClaims is what a claimer knows of jobs that it cannot claim. The claimer's goroutine owns it.
type RefusedClaims struct {
	Failed        *Plan                     // the last claim, if a row may be at fault for its failure
	why           error                     // the error of the failed claim
	timedOutAlone *store.Head               // a job that was claimed alone, without a reply in time; to be set aside
	Aside         []string                  // jobs that are set aside, up to the first 1000
	due           []string                  // set-aside jobs that are to be tried again now, except strong suspects
	strong        []string                  // set-aside strong suspects that are to be tried again in the next turn to run strong suspects
	readAt        time.Time                 // when to read the list of set-aside jobs next; zero: the list is empty
	skipped       map[floors.Lane]time.Time // lanes that cannot be read, and until when claims leave them out
	Most          int                       // how many jobs a claim asks for at most
}

// errClaimInDoubt ends a walk if the reply to one of its claims was lost.
var errClaimInDoubt = errors.New("drover: claim in doubt")

// Asked records how a claim of up to n jobs went. After a reply that was too large or too late, the next claim asks for
// fewer jobs. After a small reply with as many jobs as asked for, the next claim asks for twice as many.
func (r *RefusedClaims) Asked(n int, reply *store.ClaimReply, err error) {
	got := len(reply.Jobs)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		r.Most = max(1, n/2)
	case !reply.Committed:
	case reply.Bytes > store.LargeReply:
		r.Most = max(1, int(int64(got)*store.LargeReply/int64(reply.Bytes)))
	case got >= r.Most && reply.Bytes <= store.LargeReply/2:
		r.Most = min(MaxClaim, 2*r.Most)
	}
}

// ReadAside reads the list of set-aside jobs.
func (c *claimer) ReadAside(base context.Context) {
	now := c.Now()
	var jobs []store.AsideJob
	err := c.roundTrip(base, &c.Link, func(ctx context.Context, conn store.Session) (err error) {
		jobs, err = conn.Aside(ctx, c.QueueNames(), c.Kinds)
		return err
	})
	if err != nil {
		c.Refused.readAt = now.Add(asideEvery)
		if !pg.RowsFault(err) {
			c.Trouble.Failed(base, c.Shared, "reading which jobs are set aside", err)
			return
		}
		c.seldom.log(base, c.log, slog.LevelWarn, "set_aside", "the list of jobs that are set aside could not be read", slog.String("error", err.Error()))
		return
	}
	c.Refused.Aside, c.Refused.due, c.Refused.strong, c.Refused.readAt = nil, nil, nil, time.Time{}
	for _, j := range jobs {
		c.Refused.Aside = append(c.Refused.Aside, j.ID)
		switch {
		case !j.Due:
		case j.Strong:
			c.Refused.strong = append(c.Refused.strong, j.ID)
		case len(c.Refused.due) < asideTries:
			c.Refused.due = append(c.Refused.due, j.ID)
		}
	}
	if len(jobs) > 0 {
		c.Refused.readAt = now.Add(asideEvery)
	}
}

// TendAside reads the list of set-aside jobs. If it is time for another try of a job, TendAside claims this job alone.
// Strong suspects must not be claimed like this. TendAside takes them off the list, and the next turn to run strong
// suspects tries them.
func (c *claimer) TendAside(base context.Context) {
	c.ReadAside(base)
	l, queues := c.Lease.Load(), c.QueueStates()
	if l.Ended.Load() || c.Solo.Load() != nil || !c.hasRoom(queues) {
		return
	}
	p := c.planOf(l, queues)
	for _, id := range c.Refused.due {
		if err := c.tryAside(base, p, id); err != nil {
			c.failed(base, nil, err)
			return
		}
	}
	if err := c.forgetAside(base, c.Refused.strong); err != nil {
		c.failed(base, nil, err)
	}
}

// tryAside claims one set-aside job, and no other job. If another process is trying the job, tryAside does nothing.
func (c *claimer) tryAside(base context.Context, p *Plan, id string) error {
	mine := false
	err := c.roundTrip(base, &c.Link, func(ctx context.Context, conn store.Session) (err error) {
		mine, err = conn.TryAside(ctx, store.PathClaim, id)
		return err
	})
	if err != nil || !mine {
		return err
	}
	a, err := c.claimParts(base, p, []store.Head{{ID: id}})
	switch {
	case err != nil:
		return err
	case a.passed > 0:
		return c.forgetAside(base, []string{id})
	}
	return c.refuseAll(base, a.refused, true) // the job stays set aside
}

// forgetAside takes jobs off the list, so that claims ask for them again.
func (c *claimer) forgetAside(base context.Context, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	return c.roundTrip(base, &c.Link, func(ctx context.Context, conn store.Session) error {
		return conn.Passed(ctx, store.PathClaim, ids)
	})
}

// leaveOut removes from a claim the jobs that are set aside, and the lanes that cannot be read. It forgets lanes that
// were left out for long enough.
func (c *claimer) leaveOut(p *Plan, now time.Time) {
	p.Req.SkipSetAside = len(c.Refused.Aside) > 0
	if len(c.Refused.skipped) == 0 {
		return
	}
	p.unread = map[floors.Lane]bool{}
	var rest []int
	for i := range p.Req.Lanes {
		switch until, skip := c.Refused.skipped[p.Req.Lane(i)]; {
		case skip && now.Before(until):
			p.unread[p.Req.Lane(i)] = true
		default:
			delete(c.Refused.skipped, p.Req.Lane(i))
			rest = append(rest, i)
		}
	}
	p.Req = p.Req.Only(rest)
}

// planOf makes a plan for claims that name their jobs by id.
func (c *claimer) planOf(l *lease, queues []*QueueState) *Plan {
	p := &Plan{Lease: l}
	var names []string
	for _, q := range queues {
		if q.held() {
			continue
		}
		p.groups = append(p.groups, claimGroup{queue: q})
		names = append(names, q.Name)
	}
	p.Req = &store.ClaimRequest{Supervisor: l.ID, Epoch: int(l.Epoch.Load()), Kinds: c.openKinds(), Queues: names, BelowLane: floors.TierStrong}
	return p
}

// PickApart claims the jobs of a failed claim in parts, and takes the jobs at fault out of the way. If no job passes,
// it tries jobs from the other end of the lanes. If no job passes there either, perhaps no single job is at fault: then
// it takes only jobs with a lasting error out of the way. If only one job is due, and its claim timed out, PickApart
// sets the job aside, because each further claim of the job would keep the server busy for as long.
func (c *claimer) PickApart(base context.Context) {
	p, why := c.Refused.Failed, c.Refused.why
	c.Refused.Failed, c.Refused.why = nil, nil
	if l := c.Lease.Load(); l.ID != p.Lease.ID || l.Ended.Load() {
		return
	}
	p.Lease = c.Lease.Load()
	p.Req.Epoch, p.Req.BelowLane = int(p.Lease.Epoch.Load()), floors.TierStrong+10
	c.ReadAside(base)
	p.Req.SkipSetAside = len(c.Refused.Aside) > 0
	if order := p.order; order != nil {
		order.idle.Store(true)
	}
	heads, err := c.candidates(base, p, false)
	var a apart[store.Head]
	if err == nil {
		a, err = c.claimParts(base, p, heads)
	}
	if err == nil && a.passed == 0 && len(a.refused) > 0 && p.order == nil {
		var others []store.Head
		if others, err = c.candidates(base, p, true); err == nil {
			more, fault := c.claimParts(base, p, without(others, a.refused))
			a.passed, a.refused, err = more.passed, append(a.refused, more.refused...), fault
		}
	}
	slow := false
	if err == nil && a.passed == 0 {
		slow = len(a.refused) == 1 && pg.TimedOut(a.refused[0].err) // no other due job could pass
		if !slow {
			a.refused = slices.DeleteFunc(a.refused, func(r refusal[store.Head]) bool { return !pg.Lasting(r.err) })
		}
		if len(a.refused) == 0 { // no job passed, or there was no job
			err = why
		}
	}
	if err == nil {
		err = c.refuseAll(base, a.refused, slow)
	}
	if err != nil {
		c.failed(base, nil, err)
		return
	}
	c.Trouble.Over(base, c.Shared)
	c.Wake()
}

// candidates lists the jobs that a claim would take. If the parameter last is true, it lists some jobs from the other
// end of the claim's lanes. If some lanes are damaged and others can be read, claims leave the damaged lanes out for
// skipLane.
func (c *claimer) candidates(base context.Context, p *Plan, last bool) (all []store.Head, err error) {
	read := 0
	list := func(lanes []int) error {
		return c.roundTrip(base, &c.Link, func(ctx context.Context, conn store.Session) error {
			heads, err := conn.Candidates(ctx, p.Req.Only(lanes), last, c.walkBound())
			if err == nil {
				all = append(all, heads...)
				read += len(lanes)
				interleave(all)
			}
			return err
		})
	}
	lanes := make([]int, len(p.Req.Lanes))
	for i := range lanes {
		lanes[i] = i
	}
	err = list(lanes)
	if err == nil || !strings.HasPrefix(pg.SQLState(err), "XX") {
		return all, err
	}
	damaged := map[floors.Lane]error{}
	err = pg.BisectFailed(lanes, list, func(i int, err error) error {
		damaged[p.Req.Lane(i)] = err
		return nil
	})
	if err != nil || read == 0 {
		for _, fault := range damaged {
			err = errors.Join(err, fault)
		}
		return all, err
	}
	for key, fault := range damaged {
		if c.Refused.skipped == nil {
			c.Refused.skipped = map[floors.Lane]time.Time{}
		}
		c.Refused.skipped[key] = c.Now().Add(skipLane)
		c.seldom.log(base, c.log, slog.LevelError, fmt.Sprintf("lane %v", key), "jobs cannot be read, their lane is left out for a minute",
			slog.String("queue", key.Queue), slog.Int("lane", int(key.N)), slog.String("error", fault.Error()))
	}
	return all, nil
}

// interleave puts the first job of each lane in front, then the second job of each lane, and so on. So a lane in which
// every job is slow does not hold up the other lanes.
func interleave(heads []store.Head) {
	nth := map[floors.Lane]int{}
	for i := range heads {
		key := floors.Lane{Queue: heads[i].Queue, N: heads[i].Lane}
		heads[i].Nth = nth[key]
		nth[key]++
	}
	slices.SortStableFunc(heads, func(a, b store.Head) int { return cmp.Compare(a.Nth, b.Nth) })
}

// without removes the refused jobs from a list.
func without(heads []store.Head, refused []refusal[store.Head]) []store.Head {
	return slices.DeleteFunc(heads, func(h store.Head) bool {
		return slices.ContainsFunc(refused, func(r refusal[store.Head]) bool { return r.item.ID == h.ID })
	})
}

// claimParts claims and starts the jobs in parts: first one job, then two, four and so on. After a quarter of a lease
// it ends the walk. If another session has locked the table, claimParts tries no job.
func (c *claimer) claimParts(base context.Context, p *Plan, heads []store.Head) (a apart[store.Head], err error) {
	if err := c.tableOpen(base, &c.Link); err != nil {
		return a, err
	}
	end, tried := c.Now().Add(c.Cfg.Lease/4), 0
	a, err = pickApart(pg.BisectFailed, heads, func(part []store.Head) (int, error) {
		if tried++; tried > 1 && (c.Now().After(end) || c.Draining.Load()) {
			return 0, errWalkTooLong
		}
		return c.claimPart(base, p, part)
	}, nil)
	if errors.Is(err, errWalkTooLong) || pg.RowsFault(err) { // a row's error means that the first 100 jobs were all refused
		err = nil // the next claim goes on
	}
	return a, err
}

// errWalkTooLong ends a walk that has taken a quarter of a lease, because other jobs wait.
var errWalkTooLong = errors.New("drover: walk took too long")

// claimPart claims some jobs, and starts the jobs that it got.
func (c *claimer) claimPart(base context.Context, p *Plan, part []store.Head) (n int, err error) {
	ids := make([]string, len(part))
	for i, h := range part {
		ids[i] = h.ID
	}
	claim := &Plan{Lease: p.Lease, groups: p.groups, Req: p.Req}
	err = c.roundTrip(base, &c.Link, func(ctx context.Context, conn store.Session) error {
		err := conn.ClaimThese(ctx, p.Req, ids, c.walkBound(), &claim.Reply)
		switch reply := &claim.Reply; {
		case !reply.Committed && !pg.NotApplied(err):
			c.Doubt = p.Req.Queues
			if len(part) == 1 && errors.Is(err, context.DeadlineExceeded) && base.Err() == nil {
				c.Refused.timedOutAlone = &part[0]
			}
			return fmt.Errorf("%w: %v", errClaimInDoubt, err) //nolint:errorlint // as text, in which Bisect sees no row's error
		case !reply.Committed:
			return err
		case reply.Fenced:
			p.Lease.Lose()
			c.beatSoon()
			return pg.ErrLeaseLost
		}
		c.unclaimed.Store(nil)
		if n = len(claim.Reply.Jobs); p.order != nil && n > 0 {
			p.order.ran.Store(true)
		}
		c.dispatch(ctx, claim, c.Now())
		return nil
	})
	return n, err
}

// setSlowAside sets a job aside whose claim took too long, perhaps because the job is too large. It leaves the job's
// row as it is, because that claim may have changed the row after all.
func (c *claimer) setSlowAside(base context.Context) {
	why := fmt.Errorf("its claim took longer than %v", min(TripTimeout, c.Cfg.Lease/2))
	if err := c.refuseAll(base, []refusal[store.Head]{{*c.Refused.timedOutAlone, why}}, true); err != nil {
		c.failed(base, nil, err)
		return
	}
	c.Refused.timedOutAlone = nil
}

// If jobs cannot be claimed, refuseAll takes them out of the way of others: at least one job, and more jobs for up to a
// quarter of a lease. If the parameter aside is true, it sets the jobs aside and leaves their rows as they are.
func (c *claimer) refuseAll(base context.Context, refused []refusal[store.Head], aside bool) error {
	end := c.Now().Add(c.Cfg.Lease / 4)
	for i, b := range refused {
		if i > 0 && (c.Now().After(end) || c.Draining.Load()) {
			break // the next walk finds the other jobs again
		}
		r := &Run{Fence: store.Fence{ID: b.item.ID, Seq: b.item.ClaimSeq}, Queue: b.item.Queue, Kind: b.item.Kind}
		became, err := c.refuse(base, &c.Link, r, &store.Refused{Path: store.PathClaim, Why: b.err, Later: !pg.Lasting(b.err), Aside: aside})
		if err != nil {
			return err
		}
		if became == store.SetAside {
			c.Refused.Aside = append(c.Refused.Aside, r.ID)
			c.Refused.readAt = c.Now().Add(asideEvery)
		}
	}
	return nil
}
