package engine

import (
	"context"
	"errors"
	"slices"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// FindOut takes one step to find out which jobs were taken by a claim whose reply was lost. The steps follow one
// another without a pause, because the claimer makes no other claim until they are over.
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

// The first call of recoverClaim raises the epoch. Once the server has confirmed the new epoch, the lost claim cannot
// commit any more. With the old epoch, the lost claim might commit after the scan, and the scan would miss its jobs.
// Each call, also the first, reads one page of the scan. recoverClaim goes on even if the lease has lapsed. The keeper
// may still renew the lease, and then no other supervisor rescues these jobs.
func (c *claimer) recoverClaim(ctx context.Context, conn store.Session) error {
	l := c.Lease.Load()
	if c.hunt == nil || c.hunt.Owner != l.ID {
		epoch, err := conn.RaiseEpoch(ctx, l.ID, int(l.Epoch.Load()))
		if errors.Is(err, pg.ErrLeaseLost) {
			l.Lose() // other supervisors rescue all jobs of the lost lease
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

// rewound is called when the database may have gone back to an older state. It makes the claimer look again at all
// rows: for due jobs that came back behind the floors, and for running jobs in our name.
func (c *claimer) rewound() {
	c.resetFloors()
	c.Audit.Reconnected()
}

// resetFloors forgets how far claims have read, and wakes the claimer. The next claim begins before all jobs.
func (c *claimer) resetFloors() {
	c.Floors.Reset()
	c.Near.Reset()
	c.Wake()
}
