package engine_test

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/store"
)

func TestWhoIsDead(t *testing.T) {
	t.Parallel()
	const lease = 30 * time.Second
	begin := time.Unix(1000, 0)
	// beat is what the peer's row counts at each, and late are our beats that came late.
	for name, c := range map[string]struct {
		every time.Duration // between two looks; zero: 5 s
		beat  []int64
		noted time.Duration // before we came
		late  map[int]bool
		dead  int // the first look that finds it dead; -1: none
		note  int // the first that has its silence noted; -1: none
	}{
		"it beats":                     {beat: []int64{1, 2, 3, 4, 5, 6, 7, 8, 9}, dead: -1, note: -1},
		"silent for a lease":           {beat: []int64{1, 1, 1, 1, 1, 1, 1, 1, 1}, dead: 6, note: 2},
		"silent, and back":             {beat: []int64{1, 1, 1, 1, 1, 2, 2, 2, 2}, dead: -1, note: 2},
		"silent since before we came":  {beat: []int64{1, 1, 1, 1, 1, 1}, noted: lease, dead: 3, note: 1},
		"noted a moment ago":           {beat: []int64{1, 1, 1, 1, 1, 1}, noted: lease / 2, dead: 3, note: 1},
		"the database stood still":     {beat: []int64{1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, late: map[int]bool{5: true}, dead: 8, note: 2},
		"the database stands still":    {beat: []int64{1, 1, 1, 1, 1, 1, 1, 1}, late: map[int]bool{3: true, 5: true, 7: true}, dead: -1, note: 2},
		"its row is of another epoch":  {beat: []int64{5, 5, 5, -5, -5, -5, -5, -5}, dead: -1, note: 2},
		"three beats of ours":          {every: lease / 2, beat: slices.Repeat([]int64{1}, 5), dead: 3, note: 1},
		"two fifths of its lease":      {every: time.Second, beat: slices.Repeat([]int64{1}, 20), noted: lease, dead: 12, note: 4},
		"noted a moment ago, by us":    {every: time.Second, beat: slices.Repeat([]int64{1}, 6), noted: lease / 3, dead: -1, note: 4},
		"our own beats come late":      {beat: slices.Repeat([]int64{1}, 5), late: map[int]bool{1: true, 2: true}, dead: -1, note: 3},
		"so few looks that none is it": {beat: []int64{1, 1}, noted: time.Hour, dead: -1, note: 1},
	} {
		s := engine.Silences{Peers: map[string]engine.Observation{}}
		dead, note := -1, -1
		for i, beat := range c.beat {
			now := begin.Add(time.Duration(i) * cmp.Or(c.every, 5*time.Second))
			x := store.Peer{ID: "peer", Epoch: 1, Beat: beat, Lease: lease}
			if beat < 0 {
				x.Epoch, x.Beat = 2, -beat
			}
			if c.noted > 0 {
				x.Silence = c.noted
			}
			s.Beat(c.late[i], now)
			got := s.Of(x, now)
			if got.Dead && dead < 0 {
				dead = i
			}
			if got.Note && note < 0 {
				note = i
			}
		}
		if dead != c.dead || note != c.note {
			t.Errorf("%s: dead at look %d, noted at %d, want %d and %d", name, dead, note, c.dead, c.note)
		}
	}
}
