package floors

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestFloorMovesNoFurtherThanWhatWasSeen(t *testing.T) {
	t.Parallel()
	lane := Lane{"q", 5}
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return at.Add(-d) }
	for name, c := range map[string]struct {
		old, last, want Floor
		toEnd           bool
	}{
		"nothing found, read to the end":              {want: Floor{At: ago(SettleTime)}, toEnd: true},
		"the last key is later than the settle time":  {last: Floor{ago(time.Millisecond), "x"}, want: Floor{ago(time.Millisecond), "x"}, toEnd: true},
		"the last key is earlier":                     {last: Floor{ago(time.Minute), "x"}, want: Floor{At: ago(SettleTime)}, toEnd: true},
		"a near sweep to the end changes nothing":     {old: Floor{ago(time.Millisecond), "x"}, last: Floor{ago(time.Second), "y"}, want: Floor{ago(time.Millisecond), "x"}, toEnd: true},
		"a filled claim stops at its last key":        {old: Floor{ago(time.Hour), "x"}, last: Floor{ago(time.Minute), "y"}, want: Floor{ago(time.Minute), "y"}},
		"a filled near sweep goes on from its last":   {old: Floor{ago(time.Second), "x"}, last: Floor{ago(time.Minute), "y"}, want: Floor{ago(time.Minute), "y"}},
		"not looked into":                             {old: Floor{ago(time.Hour), "x"}, want: Floor{ago(time.Hour), "x"}},
		"in the future: the server's clock went back": {old: Floor{at.Add(time.Minute), "x"}, want: Floor{}, toEnd: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := New()
			f.Lanes[lane] = c.old
			f.Advance(lane, c.last, c.toEnd, at, f.Version())
			if got := f.Get(lane); got != c.want {
				t.Errorf("floor = %v, want %v", got, c.want)
			}
		})
	}
}

// A claim that was under way when a floor was lowered has not seen the jobs behind it, so it must not raise the floor
// again. On a busy queue a claim is always under way.
func TestLoweredFloorOutlivesTheClaimUnderWay(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	lane, other := Lane{"q", 5}, Lane{"q", 6}
	f := New()
	f.Advance(lane, Floor{}, true, at, f.Version())
	underWay := f.Version()
	f.Lower(lane, at.Add(-time.Hour))
	low := f.Get(lane)
	f.Advance(lane, Floor{}, true, at.Add(time.Second), underWay)
	f.Advance(other, Floor{}, true, at.Add(time.Second), underWay)
	if got := f.Get(lane); got != low || !got.At.Before(at.Add(-time.Hour)) {
		t.Errorf("the lowered floor is at %v", got)
	}
	if f.Get(other).At.IsZero() {
		t.Error("the other lane stood still")
	}
	f.Advance(lane, Floor{}, true, at.Add(2*time.Second), f.Version())
	if got := f.Get(lane); got == low {
		t.Error("the next claim did not move it")
	}
	underWay = f.Version()
	f.Reset()
	f.Advance(lane, Floor{}, true, at.Add(3*time.Second), underWay)
	if got := f.Get(lane); got != (Floor{}) {
		t.Errorf("after a reset the floor is at %v", got)
	}
}

// A model of one lane: jobs commit late, and claims with a limit and near sweeps are under way while the full sweep
// lowers the floor. In every interleaving the sweeps find all jobs.
func TestFloorsLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		if err := floorsModel(rand.New(rand.NewPCG(seed, 0))); err != nil { //nolint:gosec // a model
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

type laneRow struct {
	key     Floor
	commits time.Time
	done    bool
}

func floorsModel(r *rand.Rand) error {
	f, near, lane := New(), NewNear(), Lane{"q", 5}
	now := noon
	var rows []*laneRow
	late := []time.Duration{0, 0, 0, time.Millisecond, 50 * time.Millisecond, 500 * time.Millisecond, 3 * time.Second, 25 * time.Second, time.Minute}
	type claim struct {
		from    Floor
		sweep   Sweep
		limit   int
		version int
	}
	begin := func() claim {
		sweep := near.Due(now)
		return claim{from: near.Lower(sweep, lane, f.Get(lane)), limit: 1 + r.IntN(5), version: f.Version(), sweep: sweep}
	}
	end := func(c claim, at time.Time) {
		slices.SortFunc(rows, func(a, b *laneRow) int {
			if a.key.Before(b.key) {
				return -1
			}
			return 1
		})
		var last Floor
		n := 0
		for _, row := range rows {
			if !row.done && !row.commits.After(at) && !row.key.At.After(at) && c.from.Before(row.key) && n < c.limit {
				row.done, last, n = true, row.key, n+1
			}
		}
		near.Swept(c.sweep, time.Millisecond, now)
		f.Advance(lane, last, n < c.limit, at, c.version)
	}
	sweep := func() {
		for _, row := range rows {
			if !row.done && !row.commits.After(now) && !row.key.At.After(now) && !f.Get(lane).Before(row.key) {
				f.Lower(lane, row.key.At)
				return
			}
		}
	}
	for range 400 {
		now = now.Add(time.Duration(r.IntN(100)) * time.Millisecond)
		switch r.IntN(6) {
		case 0, 1, 2:
			rows = append(rows, &laneRow{key: Floor{now, fmt.Sprintf("%05d", len(rows))}, commits: now.Add(late[r.IntN(len(late))])})
		case 3, 4:
			c, at := begin(), now
			if r.IntN(4) == 0 {
				sweep() // while the claim is under way
			}
			end(c, at)
		case 5:
			sweep()
		}
	}
	now = now.Add(2 * time.Minute)
	for range len(rows) + 10 {
		sweep()
		end(begin(), now)
	}
	for _, row := range rows {
		if !row.done {
			return fmt.Errorf("a job due at %v that committed at %v was left behind a floor at %v", row.key.At.Sub(noon), row.commits.Sub(noon), f.Get(lane).At.Sub(noon))
		}
	}
	return nil
}
