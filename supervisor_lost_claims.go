package drover

import (
	"context"
	"errors"
	"slices"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// findOut ends the doubt about a claim whose reply was lost.
func (c *claimer) findOut(base context.Context) {
	ctx, cancel := context.WithTimeout(base, min(tripTimeout, c.cfg.Lease/2))
	defer cancel()
	conn, err := c.link.Get(ctx)
	if err == nil {
		err = c.recoverClaim(ctx, conn)
	}
	if err != nil {
		c.trouble.failed(base, c.shared, "finding out about a lost claim", err)
		return
	}
	c.trouble.over(base, c.shared)
}

// recoverClaim first raises the epoch, until that is answered: then no such claim can commit any more, where a look
// alone could come before its commit. Only then it looks, page by page, at what is held in this supervisor's name and
// not known to it, and hands that back. A lease that merely was not kept up is not lost: control may go on with it,
// and nobody would rescue what is held in its name.
func (c *claimer) recoverClaim(ctx context.Context, conn store.Session) error {
	l := c.lease.Load()
	if c.hunt == nil || c.hunt.Owner != l.id {
		epoch, err := conn.RaiseEpoch(ctx, l.id, int(l.epoch.Load()))
		if errors.Is(err, pg.ErrLeaseLost) {
			l.lose() // all of it is for others to rescue
			c.doubt = nil
			c.beatSoon()
			return nil
		}
		if err != nil {
			return err
		}
		l.raise(epoch)
		c.floors.Reset()
		c.hunt = store.NewHunt(l.id, union(c.doubt, c.queueNames()), false)
		c.hunt.Own = true
	}
	// What is known is asked before the look: what is settled in between is held in the one, and not in the other.
	known := slices.Concat(c.book.all(), c.apart.all())
	held, err := conn.Hunt(ctx, c.hunt, fences(known))
	if err != nil {
		return err
	}
	if err := c.audit.giveBack(ctx, conn, c.withoutReruns(held, known), l); err != nil {
		return err
	}
	if c.hunt.Ended() {
		c.doubt, c.hunt = nil, nil
	}
	return nil
}

// union is a, and what of b is not in it.
func union(a, b []string) []string {
	all := slices.Clone(a)
	for _, s := range b {
		if !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all
}
