package engine

import (
	"context"
	"errors"
	"slices"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// FindOut takes one step to end the doubt about a claim whose reply was lost. The steps follow one another without a
// pause, because no claim is made meanwhile.
func (c *claimer) FindOut(base context.Context) {
	ctx, cancel := context.WithTimeout(base, min(TripTimeout, c.Cfg.Lease/2))
	defer cancel()
	conn, err := c.Link.Get(ctx)
	if err == nil {
		err = c.recoverClaim(ctx, conn)
	}
	if err != nil {
		c.Trouble.Failed(base, c.Shared, "finding out about a lost claim", err)
		return
	}
	c.Trouble.Over(base, c.Shared)
}

// recoverClaim first raises the epoch. Once the server has confirmed the new epoch, the lost claim cannot commit any
// more. Without that, a scan could come before the commit. Then each call of recoverClaim reads one page. A lapsed
// lease is no reason to stop: the keeper may renew it, and no other supervisor would rescue these jobs.
func (c *claimer) recoverClaim(ctx context.Context, conn store.Session) error {
	l := c.Lease.Load()
	if c.hunt == nil || c.hunt.Owner != l.ID {
		epoch, err := conn.RaiseEpoch(ctx, l.ID, int(l.Epoch.Load()))
		if errors.Is(err, pg.ErrLeaseLost) {
			l.Lose() // other supervisors rescue all jobs of the lease
			c.Doubt = nil
			c.beatSoon()
			return nil
		}
		if err != nil {
			return err
		}
		l.Raise(epoch)
		c.Floors.Reset()
		c.hunt = store.NewScan(l.ID, union(c.Doubt, c.QueueNames()), false)
		c.hunt.Own = true
	}
	forgotten, err := c.Audit.look(ctx, conn, c.hunt, l, true)
	if forgotten {
		c.rewound()
	}
	if err == nil && c.hunt.Ended() {
		c.Doubt, c.hunt = nil, nil
	}
	return err
}

// union returns a, followed by the elements of b that a lacks.
func union(a, b []string) []string {
	all := slices.Clone(a)
	for _, s := range b {
		if !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all
}

// rewound makes the claimer look again at all rows: at jobs that came back behind the floors, and at jobs in our name.
func (c *claimer) rewound() {
	c.resetFloors()
	c.Audit.Reconnected()
}

// resetFloors forgets how far claims have read.
func (c *claimer) resetFloors() {
	c.Floors.Reset()
	c.Near.Reset()
	c.Wake()
}
