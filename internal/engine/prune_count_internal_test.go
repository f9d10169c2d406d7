package engine

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/drover-queue/drover/internal/store"
)

// Whatever the order of the jobs and the batches, what is left of each kind are the newest.
func TestSurplusLeavesTheNewest(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(12, 1)) //nolint:gosec // the same every time
	for range 200 {
		s := newSurplus()
		s.limit("a", false, 3)
		s.limit("a", true, 0)
		s.limit("b", true, 1)
		want, left := map[endedGroup][]store.EndedJob{}, map[string]bool{}
		var all []store.EndedJob
		for i := range rng.IntN(60) {
			e := store.EndedJob{
				ID: fmt.Sprint(i), Queue: string("abc"[rng.IntN(3)]), Kind: string("xy"[rng.IntN(2)]),
				Discarded: rng.IntN(2) == 0, EndedAt: float64(rng.IntN(20)),
			}
			all, left[e.ID] = append(all, e), true
			of := endedGroup{e.Queue, e.Kind, e.Discarded}
			want[of] = append(want[of], e)
		}
		for batch := range slices.Chunk(all, 1+rng.IntN(10)) {
			for _, id := range s.beyond(batch) {
				if !left[id] {
					t.Fatalf("%s is there twice", id)
				}
				delete(left, id)
			}
		}
		for of, jobs := range want {
			slices.SortFunc(jobs, func(a, b store.EndedJob) int {
				return -cmp.Or(cmp.Compare(a.EndedAt, b.EndedAt), cmp.Compare(a.ID, b.ID))
			})
			keep := len(jobs)
			if n := s.limits[endedGroup{queue: of.queue, discarded: of.discarded}]; n > 0 {
				keep = min(n, keep)
			}
			for i, e := range jobs {
				if left[e.ID] != (i < keep) {
					t.Fatalf("of %+v the job %d of %d, keeping %d: left is %v", of, i, len(jobs), keep, left[e.ID])
				}
			}
		}
	}
}
