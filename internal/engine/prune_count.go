package engine

import (
	"container/heap"
	"context"
	"log/slog"
	"slices"

	"github.com/drover-queue/drover/internal/store"
)

// countBatch is how many rows PruneByCount reads at a time.
const countBatch = 10_000

// PruneByCount serves the queues that keep only the newest N ended jobs of each kind. It deletes or archives the older
// jobs of the table jobs, and then deletes the older jobs of the archive.
func (p *pruner) PruneByCount(ctx context.Context) error {
	on, done, err := store.Borrow(ctx, p.pool)
	if err != nil {
		return err
	}
	defer done()
	counts, err := on.KeptCounts(ctx)
	if err != nil || len(counts) == 0 {
		return err
	}
	jobs, archive := newSurplus(), newSurplus()
	for _, c := range counts {
		jobs.limit(c.Queue, false, c.Completed)
		jobs.limit(c.Queue, true, c.Discarded)
		archive.limit(c.Queue, true, c.Archived)
	}
	before := counts[0].At // jobs that ended after this time stay, because they may have run again since the walk read them
	err = p.walkByCount(ctx, on, jobs, false, func(ids []string) (store.Retained, error) {
		return p.pruneThese(ctx, on, ids, p.Cfg.Keep, &before)
	})
	if err != nil {
		return err
	}
	return p.walkByCount(ctx, on, archive, true, func(ids []string) (store.Retained, error) {
		step, err := on.RetainArchived(ctx, ids, before)
		for _, r := range step.Refused {
			p.seldom.log(ctx, p.log, slog.LevelWarn, "prune archive", "archived job not deleted: the database refuses it",
				slog.String("job_id", r.ID), slog.String("error", r.Error), slog.String("code", r.Code))
		}
		step.Refused = nil
		return step, err
	})
}

// walkByCount reads a whole table in steps. After each step it prunes the jobs beyond the counts.
func (p *pruner) walkByCount(ctx context.Context, on store.Session, over *surplus, archive bool, prune func(ids []string) (store.Retained, error)) error {
	if len(over.queues) == 0 {
		return nil
	}
	for after := ""; ; {
		ended, last, err := on.Ended(ctx, archive, after, countBatch, over.queues)
		if err != nil {
			return err
		}
		for ids := range slices.Chunk(over.beyond(ended), PruneBatch) {
			step, err := prune(ids)
			if p.logPruned(ctx, step); err != nil {
				return err
			}
		}
		if after = last; last == "" {
			return nil
		}
	}
}

// surplus finds the jobs that are not among the newest of their kind in their queue. It sees each job once, in any
// order, and keeps only the newest jobs in memory.
type surplus struct {
	queues []string
	limits map[endedGroup]int // how many jobs to keep; the keys have a queue and discarded, and no kind
	newest map[endedGroup]*oldestFirst
}

type endedGroup struct {
	queue, kind string
	discarded   bool
}

func newSurplus() *surplus {
	return &surplus{limits: map[endedGroup]int{}, newest: map[endedGroup]*oldestFirst{}}
}

// limit sets how many completed or discarded jobs of each kind a queue keeps; 0 keeps all.
func (s *surplus) limit(queue string, discarded bool, n int) {
	if n == 0 {
		return
	}
	s.limits[endedGroup{queue: queue, discarded: discarded}] = n
	if !slices.Contains(s.queues, queue) {
		s.queues = append(s.queues, queue)
	}
}

// beyond adds jobs. It returns the ids of the jobs that are not among the newest any more. These may be jobs that an
// earlier call has added.
func (s *surplus) beyond(ended []store.EndedJob) (ids []string) {
	for _, e := range ended {
		keep, limited := s.limits[endedGroup{queue: e.Queue, discarded: e.Discarded}]
		if !limited {
			continue
		}
		of := endedGroup{e.Queue, e.Kind, e.Discarded}
		newest := s.newest[of]
		if newest == nil {
			newest = &oldestFirst{}
			s.newest[of] = newest
		}
		if heap.Push(newest, endedAt{e.EndedAt, e.ID}); newest.Len() > keep {
			ids = append(ids, heap.Pop(newest).(endedAt).id) //nolint:forcetypeassert // nothing else is pushed
		}
	}
	return ids
}

type endedAt struct {
	at float64
	id string
}

// oldestFirst is a heap of the newest jobs of one kind, with the oldest of them on top.
type oldestFirst []endedAt

func (h oldestFirst) Len() int { return len(h) }
func (h oldestFirst) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].id < h[j].id
}
func (h oldestFirst) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *oldestFirst) Push(x any)   { *h = append(*h, x.(endedAt)) } //nolint:forcetypeassert // see beyond
func (h *oldestFirst) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
