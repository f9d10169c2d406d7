package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/drover-queue/drover/internal/blame"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// This file is about a supervisor's row in drover_supervisors: how it gets there, and how it is removed.

// Start checks the server and registers. After an error that may go away by itself it tries again, until ctx is done.
func (k *keeper) Start(ctx, base context.Context) error {
	k.Base = base
	starting := Trouble{means: "this supervisor does not run yet", vital: true}
	for {
		err := k.tryStart(ctx, base)
		if err == nil {
			starting.Over(ctx, k.Shared)
			return nil
		}
		k.Link.Close(base)
		if ctx.Err() == nil && pg.Temporary(err) {
			starting.Failed(ctx, k.Shared, "starting", err)
			if await(ctx, time.After(starting.Until.Sub(k.Now())), nil) {
				continue
			}
		}
		k.EndStrays(base)
		return err
	}
}

const (
	startTimeout  = 30 * time.Second // the longest try
	startPatience = 2 * time.Second  // how long a registration may still go on once the supervisor is to stop
)

// tryStart makes one try to check the server and to register. If ctx ends during the registration, the registration has
// startPatience to end. If it were cut off immediately, the server might commit it all the same, and the row would
// belong to a supervisor that does not run.
func (k *keeper) tryStart(ctx, base context.Context) error {
	checking, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := k.pool.CheckOn(checking, &k.Link.Link); err != nil {
		return err
	}
	registering, cancel := context.WithTimeout(base, startTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		timer := time.NewTimer(startPatience)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel()
		case <-registering.Done():
		}
	})()
	k.Changing.Lock()
	defer k.Changing.Unlock()
	if err := k.Register(registering); err != nil {
		return fmt.Errorf("register supervisor: %w", err)
	}
	return nil
}

// Register registers under a fresh id. If the reply to an earlier registration was lost, the row of that registration
// may be in the tables. Until others declared that id lost, producers would take the row for a supervisor. So Register
// removes the row first.
func (k *keeper) Register(ctx context.Context) error {
	conn, err := k.Link.Get(ctx)
	if err != nil {
		return err
	}
	for _, stray := range k.strays {
		if err := conn.Forget(ctx, stray); err != nil {
			return err
		}
	}
	id, sent := ulid.Make().String(), k.Now()
	k.strays = []string{id}
	reg := k.registration(id, k.QueueStates())
	reg.Schedules = k.Cfg.Schedules
	if err := conn.Register(ctx, reg); err != nil {
		if pg.NotApplied(err) {
			k.strays = nil
		}
		return err
	}
	k.budgets.know(reg.Scopes)
	k.crews.Store(&reg.Crews)
	k.logTaken(ctx, reg.Taken)
	k.living, k.declare = nil, true
	k.counted = 0
	k.turns = blame.Turns{}
	k.FloorsBy = sent.Add(k.Cfg.Lease / 2)
	k.Solo.Store(nil)
	k.Kept(sent)
	// We read the limits after the registration has committed, and before the first claim. A Client.Pause that comes
	// later finds our row, and waits for us.
	k.Limits.confirmAgain()
	if err := k.Limits.Follow(ctx, conn, id); err != nil {
		return err
	}
	k.strays = nil
	k.Lease.Store(NewLease(k.Base, id)) //nolint:contextcheck // handlers' contexts outlive this one
	k.claimer.resetFloors()
	return nil
}

// declareAgain stores the schedules of this supervisor once more when another supervisor has left. That supervisor may
// have been the last one of a newer build, whose deploy was rolled back. Then the settings of our build apply again.
// The first beat after a registration also stores them, because the registration skips schedules whose rows are locked.
func (k *keeper) declareAgain(ctx context.Context, conn store.Session, l *lease, peers []store.Peer) error {
	if len(k.Cfg.Schedules) == 0 {
		return nil
	}
	var living []string
	for _, x := range peers {
		if !x.Lost && x.ID != l.ID {
			living = append(living, x.ID)
		}
	}
	left := slices.ContainsFunc(k.living, func(id string) bool { return !slices.Contains(living, id) })
	if left || k.declare {
		if err := conn.DeclareAgain(ctx, l.ID, k.Cfg.Build, k.Cfg.Schedules, k.declare, k.walkBound()); err != nil {
			return err
		}
	}
	k.living, k.declare = living, false
	return nil
}

// logTaken logs which schedules of this supervisor are not used.
func (k *keeper) logTaken(ctx context.Context, names []string) {
	for _, name := range names {
		k.log.WarnContext(ctx, "schedule is not used, because a schedule made at run time has its name; delete that one, or rename this one",
			slog.String("periodic", name))
	}
}

// end adds up failures for the last time, and removes this supervisor's row. If this fails, other supervisors later
// find the supervisor silent, with no job to rescue.
func (k *keeper) end(ctx context.Context) {
	k.atLast(ctx, "sign off", func(ctx context.Context, conn store.Session) error {
		return errors.Join(k.tendAtLast(ctx, conn), conn.Forget(ctx, k.Lease.Load().ID))
	})
}

// tendAtLast adds up failures until none is left, for at most half a second. Somebody may have locked the groups for a
// moment, such as a beat of this supervisor that the stop has cut short, and perhaps there is no other supervisor to
// add the failures up later.
func (k *keeper) tendAtLast(ctx context.Context, conn store.Session) error {
	for until := time.Now().Add(500 * time.Millisecond); ; time.Sleep(20 * time.Millisecond) {
		if err := k.tendFailures(ctx, conn); err != nil {
			return err
		}
		if left, err := conn.FailuresLeft(ctx); err != nil || !left || time.Now().After(until) {
			return err
		}
	}
}

// UndoAtLast takes back, before a stop, the crashes that other supervisors have counted because we lost leases. After
// the stop, no supervisor would take them back.
func (k *keeper) UndoAtLast(ctx context.Context) {
	if len(k.Was) == 0 {
		return
	}
	k.atLast(ctx, "take crashes back", func(ctx context.Context, conn store.Session) error {
		err := k.UndoCrashes(ctx, conn, min(k.Bound(), 100*time.Millisecond), 600*time.Millisecond)
		if err == nil && len(k.Was) > 0 {
			err = errors.New("a rescue of this supervisor's jobs is not over")
		}
		return err
	})
}

// EndStrays removes registrations that may be in the tables although we do not use their ids.
func (k *keeper) EndStrays(ctx context.Context) {
	if len(k.strays) == 0 {
		return
	}
	k.atLast(ctx, "sign off", func(ctx context.Context, conn store.Session) (err error) {
		for _, id := range k.strays {
			err = errors.Join(err, conn.Forget(ctx, id))
		}
		return err
	})
}

// atLast opens a connection and runs the function do on it, for at most two seconds. It logs the error of do.
func (k *keeper) atLast(ctx context.Context, what string, do func(context.Context, store.Session) error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	link := store.NewLine(k.pool)
	defer link.Close(ctx)
	conn, err := link.Get(ctx)
	if err == nil {
		err = do(ctx, conn)
	}
	if err != nil {
		k.log.WarnContext(ctx, "supervisor could not "+what, slog.String("error", err.Error()))
	}
}
