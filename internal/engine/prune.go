package engine

import (
	"context"
	"log/slog"
	"time"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/store"
)

// PruneBatch is how many jobs a step of the pruner looks at.
const PruneBatch = 1000

// pruner deletes or archives jobs whose retention is over, and enqueues follow-ups that were set aside. The supervisor
// that started first prunes the queues of all supervisors. If two supervisors prune for a moment, this does no harm.
type pruner struct {
	*Shared
	Every time.Duration
}

// NewPruner returns a pruner that looks once a minute.
func NewPruner(s *Shared) *pruner { return &pruner{s, time.Minute} }

func (p *pruner) run(ctx context.Context) {
	trouble := Trouble{means: "jobs that have ended are kept for longer"}
	timer := time.NewTimer(p.Every)
	defer timer.Stop()
	var walk PruneWalk
	var nextCount time.Time
	for rounds := 0; await(ctx, timer.C, nil); {
		timer.Reset(p.Every)
		if !p.Prunes.Load() {
			trouble.Over(ctx, p.Shared)
			continue
		}
		if trouble.Failures == 0 { // after a failure the walk goes on from the id that it has reached
			if rounds%60 == 0 {
				walk = PruneWalk{Whole: true} // every hour the walk begins at the first id again, because some jobs were too young before
			}
			rounds++
		}
		var err error
		walk, err = p.Prune(ctx, walk, p.Cfg.Keep)
		if began := p.Now(); err == nil && !began.Before(nextCount) {
			err = p.PruneByCount(ctx)
			nextCount = began.Add(10 * p.Now().Sub(began)) // it reads whole tables, so it gets at most a tenth of the time
		}
		switch {
		case err == nil:
			trouble.Over(ctx, p.Shared)
		case ctx.Err() != nil:
		case pg.Answered(err):
			trouble.Over(ctx, p.Shared)
			p.seldom.log(ctx, p.log, slog.LevelWarn, "prune"+pg.SQLState(err), "pruning failed, will be tried again", slog.String("error", err.Error()))
		default:
			trouble.Failed(ctx, p.Shared, "pruning", err)
			timer.Reset(min(trouble.Until.Sub(p.Now()), p.Every))
		}
	}
}

// PruneWalk records how far the pruner has walked.
type PruneWalk struct {
	After string // the last id that was walked
	Whole bool   // the walk also covers ids above every ULID of today
}

// Prune walks on to the end of the ids, in small transactions, and returns where the next walk begins.
func (p *pruner) Prune(ctx context.Context, walk PruneWalk, keep store.Keeping) (PruneWalk, error) {
	on, done, err := store.Borrow(ctx, p.pool)
	if err != nil {
		return walk, err
	}
	defer done()
	for after := walk.After; ; {
		step, err := on.Retain(ctx, after, keep, walk.Whole, PruneBatch)
		if pg.StepFault(err) {
			step, err = p.pruneApart(ctx, on, after, keep, walk.Whole)
		}
		p.logPruned(ctx, step)
		if err == nil && len(step.FollowUps) > 0 {
			err = p.followUpsAgain(ctx, on, step.FollowUps)
		}
		switch {
		case err != nil:
			return walk, err
		case step.Last == "":
			walk.Whole = false
			return walk, nil
		}
		if after = step.Last; !step.Odd { // an odd id lies above every ULID, so a walk that began there would miss all jobs with a ULID
			walk.After = after
		}
	}
}

// logPruned logs what a step has done.
func (p *pruner) logPruned(ctx context.Context, step store.Retained) {
	if step.Deleted+step.Archived > 0 {
		p.log.DebugContext(ctx, "jobs pruned", slog.Int64("deleted", step.Deleted), slog.Int64("archived", step.Archived))
	}
	p.logRefused(ctx, step.Refused)
}

// pruneApart prunes the jobs of a failed step in parts. The step timed out, or met a row that cannot be read.
func (p *pruner) pruneApart(ctx context.Context, conn store.Session, after string, keep store.Keeping, whole bool) (all store.Retained, err error) {
	ids, odd, err := conn.RetainNext(ctx, after, keep, whole, PruneBatch)
	if err != nil {
		return all, err
	}
	all, err = p.pruneThese(ctx, conn, ids, keep, nil)
	if all.Odd = odd; len(ids) == PruneBatch {
		all.Last = ids[PruneBatch-1]
	}
	return all, err
}

// pruneThese prunes the jobs with these ids. It sets aside each job that makes the statement fail.
func (p *pruner) pruneThese(ctx context.Context, conn store.Session, ids []string, keep store.Keeping, surplus *time.Time) (all store.Retained, err error) {
	err = pg.Bisect(ids, func(part []string) error {
		step, err := conn.RetainThese(ctx, part, keep, surplus)
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
	return all, err
}

// Paths of the table drover_set_aside: the operations that the database refused.
const (
	pathPrune    = "prune"
	pathFollowUp = "follow-up"
)

// logRefused logs the jobs that were set aside. In its first walk after the job's pause, the pruner tries the job
// again, and logs it again if the database still refuses it. The pause grows to a day. The pruner walks once a minute,
// so it logs no job twice within a minute.
func (p *pruner) logRefused(ctx context.Context, refused []store.RefusedRow) {
	for _, r := range refused {
		if r.ID == "" {
			p.log.WarnContext(ctx, "pruning failed, will be tried again", slog.String("path", r.Path), slog.String("error", r.Error), slog.String("code", r.Code))
			continue
		}
		p.log.WarnContext(ctx, "job set aside: the database refuses the change", slog.String("path", r.Path), slog.String("job_id", r.ID),
			slog.String("error", r.Error), slog.String("code", r.Code))
	}
}

// followUpsAgain tries once more to enqueue follow-ups that the database refused when their jobs were discarded.
func (p *pruner) followUpsAgain(ctx context.Context, conn store.Session, ids []string) error {
	return pg.Bisect(ids, func(part []string) error {
		made, refused, err := conn.FollowUpsAgain(ctx, part)
		if err != nil {
			return err
		}
		if made > 0 {
			p.log.InfoContext(ctx, "enqueued follow-ups that the database had refused", slog.Int64("follow_ups", made))
		}
		for i := range refused {
			refused[i].Path = pathFollowUp
		}
		p.logRefused(ctx, refused)
		return nil
	}, func(id string, fault error) error {
		p.logRefused(ctx, []store.RefusedRow{{ID: id, Error: fault.Error(), Code: pg.SQLState(fault), Path: pathFollowUp}})
		return conn.SetAside(ctx, pathFollowUp, id, fault)
	})
}
