package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/drover-queue/drover/internal/floors"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// SweepEvery is how many seconds one supervisor's turn to make full sweeps lasts.
const SweepEvery = 15

// Sweep makes a full sweep, if it is this supervisor's turn. The server's clock and the sorted ids decide whose turn it
// is. A supervisor spends at most a tenth of its time on full sweeps. A full sweep finds jobs that were committed long
// after our floors had passed them, and running jobs whose owner has no row.
func (k *keeper) Sweep(ctx context.Context, conn store.Session, l *lease, reply store.BeatReply) error {
	var alive []string
	for _, p := range reply.Peers {
		if !p.Lost {
			alive = append(alive, p.ID)
		}
	}
	slices.Sort(alive)
	// We count each turn since the last look. If we counted only the present turn, and the time between two beats were
	// longer than a turn, our turns could always fall between two beats.
	turn, n, mine := int64(reply.Clock)/SweepEvery, int64(len(alive)), false
	if k.Sweeps == 0 || k.Sweeps > turn { // this is the first look, or the server's clock has gone back
		k.Sweeps = turn - 1
	}
	for t := max(k.Sweeps+1, turn-n+1); t <= turn; t++ {
		mine = mine || alive[t%n] == l.ID
	}
	started := k.Now()
	// The first claim is expensive. A sweep during the first claim would keep that claim from moving floors: see
	// Floors.Hold.
	first := started.Before(k.FloorsBy) && k.claimer.Floors.None()
	if !mine || first || started.Before(k.SweepAt) {
		if !mine {
			k.Sweeps = turn
		}
		return nil
	}
	k.Sweeps = turn
	defer func() { k.SweepAt = k.Now().Add(9 * k.Now().Sub(started)) }() // this also delays the sweep after a failed one
	k.claimer.Audit.ask(started)
	k.claimer.Floors.Hold()
	peopled, err := k.lookBehind(ctx, conn)
	// Only this part rescues jobs whose owner has no row in drover_supervisors.
	switch {
	case k.orphans != nil && !k.orphans.Ended():
	case !started.Before(k.AllBy):
		k.AllBy = started.Add(allOrphansEvery)
		k.orphans = store.NewScan("", k.QueueNames(), true)
	default:
		k.orphans = store.NewScan("", nil, false)
		k.orphans.Lanes = peopled
	}
	err = errors.Join(err, k.Orphaned(ctx, conn, k.orphans))
	if k.orphans.All && k.orphans.Ended() {
		err = errors.Join(err, conn.Forgive(ctx, k.Bound()))
		k.orphans = nil
	}
	return err
}

// allOrphansEvery is how often a supervisor looks for orphans among all jobs, even jobs that are not due: somebody may
// have changed a due time by hand.
const allOrphansEvery = time.Hour

// sweepOrder is where the next full sweep begins. After a sweep that ran out of time, the next sweep begins at another
// lane. Otherwise a lane that takes too long would keep the lanes after it from ever being swept.
type sweepOrder struct {
	single bool // the next sweep reads the lanes one by one
	first  int
}

// lookBehind looks for due jobs behind the floors, and lowers the floors to them. It returns the lanes that have jobs.
func (k *keeper) lookBehind(ctx context.Context, conn store.Session) (peopled []store.ScanLane, err error) {
	req := k.claimer.AllLanes()
	lanes := make([]store.SweepLane, len(req.Lanes))
	for i, g := range req.LaneGroup {
		lanes[i] = store.SweepLane{Key: floors.Lane{Queue: req.Queues[req.GroupQueue[g-1]-1], N: req.Lanes[i]}, Floor: floors.Floor{At: req.FloorAt[i], ID: req.FloorID[i]}}
	}
	size := len(lanes)
	if k.behind.single {
		first := k.behind.first % len(lanes)
		lanes, size = slices.Concat(lanes[first:], lanes[:first]), 1
	}
	lowered := false
	defer func() {
		if lowered {
			k.alarm.Wake()
		}
	}()
	const leastLook = 10 * time.Millisecond
	end := time.Now().Add(k.Cfg.Lease / 4)
	look := func(part []store.SweepLane) error {
		bound := time.Until(end)
		if bound < leastLook {
			return pg.ErrNoTime
		}
		behind, found, err := conn.Sweep(ctx, part, req.Kinds, bound)
		if pg.TimedOut(err) {
			return fmt.Errorf("%w (%s)", pg.ErrNoTime, err.Error()) // this error ends the walk, because each half of the lanes could take as long
		}
		for _, found := range behind {
			k.claimer.Floors.Lower(found.Lane, found.At)
			lowered = true
		}
		peopled = append(peopled, found...)
		return err
	}
	for part := range slices.Chunk(lanes, size) {
		if time.Until(end) < leastLook {
			k.behind.single = true
			return peopled, pg.ErrNoTime
		}
		k.behind.first++
		err := pg.Bisect(part, look, func(lane store.SweepLane, err error) error {
			if k.seldom.Allow(fmt.Sprint("sweep ", lane.Key), k.Now()) {
				k.log.ErrorContext(ctx, "part of a queue cannot be swept, jobs that were committed late may wait there",
					slog.String("queue", lane.Key.Queue), slog.Int("lane", int(lane.Key.N)), slog.String("error", err.Error()))
			}
			return nil
		})
		if err != nil {
			k.behind.single = true
			return peopled, err
		}
	}
	k.behind.single = false
	return peopled, nil
}
