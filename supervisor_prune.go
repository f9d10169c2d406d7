package drover

import (
	"context"
	"log/slog"
	"time"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

const pruneBatch = 1000

// pruner deletes or archives jobs that have ended and whose time is over, and enqueues follow-ups that were set aside. Of
// all supervisors the one that started first has the turn, for the queues of all; two for a moment do no harm.
type pruner struct {
	*shared
	every time.Duration
}

func newPruner(s *shared) *pruner { return &pruner{s, time.Minute} }

func (s *pruner) run(ctx context.Context) {
	trouble := trouble{means: "jobs that have ended are kept for longer"}
	timer := time.NewTimer(s.every)
	defer timer.Stop()
	var walk pruneWalk
	for rounds := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		timer.Reset(s.every)
		if !s.prunes.Load() {
			trouble.over(ctx, s.shared)
			continue
		}
		if trouble.failures == 0 { // else it goes on
			if rounds%60 == 0 {
				walk = pruneWalk{whole: true} // from the start: some jobs were too young an hour ago
			}
			rounds++
		}
		var err error
		switch walk, err = s.prune(ctx, walk, s.cfg.Keep); {
		case err == nil:
			trouble.over(ctx, s.shared)
		case ctx.Err() != nil:
		case pg.Answered(err):
			trouble.over(ctx, s.shared)
			s.quiet.log(ctx, s.log, slog.LevelWarn, "prune"+pg.SQLState(err), "pruning failed, will be tried again", slog.String("error", err.Error()))
		default:
			trouble.failed(ctx, s.shared, "pruning", err)
			timer.Reset(min(trouble.until.Sub(s.now()), s.every))
		}
	}
}

// pruneWalk is where the pruner stands.
type pruneWalk struct {
	after string // the last id that was walked
	whole bool   // ids that are no ULIDs of today are walked as well
}

// prune walks on until nothing is left to walk, in small transactions, and returns where the next walk begins.
func (s *pruner) prune(ctx context.Context, walk pruneWalk, keep store.Keeping) (pruneWalk, error) {
	on, done, err := store.Borrow(ctx, s.pool)
	if err != nil {
		return walk, err
	}
	defer done()
	for after := walk.after; ; {
		step, err := on.Retain(ctx, after, keep, walk.whole, pruneBatch)
		if pg.StepFault(err) {
			step, err = s.pruneApart(ctx, on, after, keep, walk.whole)
		}
		if step.Deleted+step.Archived > 0 {
			s.log.DebugContext(ctx, "jobs pruned", slog.Int64("deleted", step.Deleted), slog.Int64("archived", step.Archived))
		}
		s.logRefused(ctx, step.Refused)
		if err == nil && len(step.FollowUps) > 0 {
			err = s.followUpsAgain(ctx, on, step.FollowUps)
		}
		switch {
		case err != nil:
			return walk, err
		case step.Last == "":
			walk.whole = false
			return walk, nil
		}
		if after = step.Last; !step.Odd { // jobs that grow old sort in front of the odd ids, so do not go on behind those
			walk.after = after
		}
	}
}

// pruneApart does what one step could not, because the whole statement was cancelled by a time-out or met a row that
// cannot be read: it tries the step's jobs in parts, and sets aside the one that is at fault.
func (s *pruner) pruneApart(ctx context.Context, conn store.Session, after string, keep store.Keeping, whole bool) (all store.Retained, err error) {
	ids, odd, err := conn.RetainNext(ctx, after, keep, whole, pruneBatch)
	if err != nil {
		return all, err
	}
	err = pg.Bisect(ids, func(part []string) error {
		step, err := conn.RetainThese(ctx, part, keep)
		if err != nil {
			return err
		}
		all.Deleted += step.Deleted
		all.Archived += step.Archived
		all.Refused = append(all.Refused, step.Refused...)
		return nil
	}, func(id string, fault error) error {
		if err := conn.SetAside(ctx, pathPrune, id, fault); err != nil {
			return err
		}
		all.Refused = append(all.Refused, store.RefusedRow{ID: id, Error: fault.Error(), Code: pg.SQLState(fault), Path: pathPrune})
		return nil
	})
	if all.Odd = odd; len(ids) == pruneBatch {
		all.Last = ids[pruneBatch-1]
	}
	return all, err
}

// Paths of the table drover_set_aside.
const (
	pathPrune    = "prune"
	pathFollowUp = "follow-up"
)

// logRefused logs the jobs that were set aside. A job is tried and logged again when the pruner comes by after the
// job's pause, which grows to a day: never twice within a minute.
func (s *pruner) logRefused(ctx context.Context, refused []store.RefusedRow) {
	for _, r := range refused {
		if r.ID == "" {
			s.log.WarnContext(ctx, "pruning failed, will be tried again", slog.String("path", r.Path), slog.String("error", r.Error), slog.String("code", r.Code))
			continue
		}
		s.log.WarnContext(ctx, "job set aside: the database refuses the change", slog.String("path", r.Path), slog.String("job", r.ID),
			slog.String("error", r.Error), slog.String("code", r.Code))
	}
}

// followUpsAgain tries to enqueue follow-ups that the database refused when their jobs were discarded.
func (s *pruner) followUpsAgain(ctx context.Context, conn store.Session, ids []string) error {
	return pg.Bisect(ids, func(part []string) error {
		made, refused, err := conn.FollowUpsAgain(ctx, part)
		if err != nil {
			return err
		}
		if made > 0 {
			s.log.InfoContext(ctx, "enqueued follow-ups that the database had refused", slog.Int64("follow_ups", made))
		}
		for i := range refused {
			refused[i].Path = pathFollowUp
		}
		s.logRefused(ctx, refused)
		return nil
	}, func(id string, fault error) error {
		s.logRefused(ctx, []store.RefusedRow{{ID: id, Error: fault.Error(), Code: pg.SQLState(fault), Path: pathFollowUp}})
		return conn.SetAside(ctx, pathFollowUp, id, fault)
	})
}
