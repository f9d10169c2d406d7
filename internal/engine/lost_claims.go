package engine

import (
	"context"
	"errors"
	"slices"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// FindOut ends the doubt about a claim whose reply was lost.
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

// recoverClaim raises the epoch until the server answers that. From then on the lost claim cannot commit; a look alone
// could come before its commit. Then it looks, page by page, for jobs that run in this supervisor's name and are not known
// to it, and releases them. A lease that was not kept up is not lost: the keeper may go on with it, and nobody else would
// rescue the jobs in its name.
func (c *claimer) recoverClaim(ctx context.Context, conn store.Session) error {
	l := c.Lease.Load()
	if c.hunt == nil || c.hunt.Owner != l.ID {
		epoch, err := conn.RaiseEpoch(ctx, l.ID, int(l.Epoch.Load()))
		if errors.Is(err, pg.ErrLeaseLost) {
			l.Lose() // all of it is for others to rescue
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
	// We list our runs before the look. A job that is settled in between is in our list, and no longer runs in the database.
	known := slices.Concat(c.Unsettled.All(), c.RefusedRuns.All())
	held, err := conn.Scan(ctx, c.hunt, Fences(known))
	if err != nil {
		return err
	}
	if err := c.Audit.release(ctx, conn, c.withoutReruns(held, known), l); err != nil {
		return err
	}
	if c.hunt.Ended() {
		c.Doubt, c.hunt = nil, nil
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

// rewound looks again at all rows: at jobs that came back behind the floors, and at jobs that run in our name.
func (c *claimer) rewound() {
	c.resetFloors()
	c.Audit.Reconnected()
}

// withoutReruns leaves out the jobs whose handlers may be at work here under a later claim, which the database has
// forgotten. When such a run ends, its outcome is refused, and an audit gives the job back.
func (c *claimer) withoutReruns(held []store.Held, known []*Run) []store.Held {
	return slices.DeleteFunc(held, func(j store.Held) bool {
		again := slices.ContainsFunc(known, func(r *Run) bool {
			return r.ID == j.ID && r.ClaimedAt.After(j.AttemptedAt.Time)
		})
		if again {
			c.rewound()
		}
		return again
	})
}

// resetFloors forgets where jobs have been looked for, and what drover_sleepers says.
func (c *claimer) resetFloors() {
	c.Floors.Reset()
	c.Near.Reset()
	c.SayAnew()
	c.Wake()
}
