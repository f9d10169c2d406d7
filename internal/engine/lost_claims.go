package engine

import (
	"context"
	"errors"
	"slices"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// FindOut takes one step to end the doubt about a claim whose reply was lost.
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

// recoverClaim first raises the epoch: once the server confirms it, the lost claim cannot commit any more. A scan alone
// could come before that commit. Then it scans, one page a call, for jobs that run in this supervisor's name and are
// unknown to it, and releases them. A lapsed lease is no reason to stop: the keeper may renew it, and no other
// supervisor would rescue these jobs.
func (c *claimer) recoverClaim(ctx context.Context, conn store.Session) error {
	l := c.Lease.Load()
	if c.hunt == nil || c.hunt.Owner != l.ID {
		epoch, err := conn.RaiseEpoch(ctx, l.ID, int(l.Epoch.Load()))
		if errors.Is(err, pg.ErrLeaseLost) {
			l.Lose() // other supervisors rescue all its jobs
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
	// We list our runs before the scan. A job that is settled in between is in our list, and no longer runs in the
	// database.
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

// withoutReruns leaves out the jobs whose handlers may be at work here under a later claim, which the database has
// forgotten. When such a run ends, its settle matches no row, and an audit releases the job.
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

// resetFloors forgets how far claims have read.
func (c *claimer) resetFloors() {
	c.Floors.Reset()
	c.Near.Reset()
	c.Wake()
}
