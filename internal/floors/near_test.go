package floors

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// noon is the time at which tests without a database take place.
var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC) //nolint:gochecknoglobals // times cannot be constants

func TestNearSweepsTakeTheirPartOfTheTime(t *testing.T) {
	t.Parallel()
	const whole = 3
	n := NewNear()
	due := func(after time.Duration) string {
		s := n.Due(noon.Add(after))
		if s.Width > 0 && n.Windows[s.Window].whole {
			return "whole"
		}
		return s.Width.String()
	}
	if got := due(0); got != "whole" {
		t.Fatalf("due at first = %v", got)
	}
	swept := func(window int, cost time.Duration) {
		n.Swept(Sweep{Window: window, Width: n.Windows[window].Width}, cost, noon)
	}
	expect := func(when string, wanted map[time.Duration]string) {
		t.Helper()
		for after, want := range wanted {
			if got := due(after); got != want {
				t.Errorf("%s: due after %v = %v, want %v", when, after, got, want)
			}
		}
	}
	swept(whole, time.Millisecond)
	expect("a whole sweep of 1 ms", map[time.Duration]string{
		9 * time.Millisecond: "0s", 10 * time.Millisecond: "200ms", 100 * time.Millisecond: "2s", 199 * time.Millisecond: "2s", 200 * time.Millisecond: "whole",
	})
	swept(whole, time.Second)
	expect("a whole sweep of 1 s", map[time.Duration]string{
		9 * time.Millisecond: "0s", 10 * time.Millisecond: "200ms", // only its own cost holds a sweep back
		999 * time.Millisecond: "2s", time.Second: "20s", 198 * time.Second: "20s", 199 * time.Second: "whole",
	})
	swept(2, time.Second)
	expect("a wide sweep of 1 s", map[time.Duration]string{8900 * time.Millisecond: "2s", 9 * time.Second: "20s"})
	swept(0, 100*time.Millisecond)
	swept(2, time.Millisecond)
	expect("a narrow sweep of 100 ms, then a wide one of 1 ms", map[time.Duration]string{9 * time.Millisecond: "0s", 10 * time.Millisecond: "200ms"})
	n.Share(16) // the limit is for all of them together, because they share the server
	swept(2, 10*time.Millisecond)
	expect("one of 16, of 10 ms", map[time.Duration]string{1589 * time.Millisecond: "2s", 1590 * time.Millisecond: "20s"})
	if n.Share(0); n.Sharing != 1 {
		t.Error("nobody sweeps")
	}
}

func TestANearSweepLooksNoFurtherThanItMust(t *testing.T) {
	t.Parallel()
	ago := func(d time.Duration) time.Time { return noon.Add(-d) }
	lane := Lane{"q", 5}
	for name, c := range map[string]struct {
		width       time.Duration
		claim       time.Time // of a claim with a lower id than the oldest in progress at the last look into the lane
		floor, want Floor
	}{
		"none":                              {0, noon, Floor{noon, "x"}, Floor{noon, "x"}},
		"nothing is known":                  {time.Minute, time.Time{}, Floor{noon, "x"}, Floor{At: ago(time.Minute)}},
		"no further than what can be there": {time.Minute, noon, Floor{noon, "x"}, Floor{At: ago(writing)}},
		"no further than its width":         {time.Minute, ago(time.Hour), Floor{noon, "x"}, Floor{At: ago(time.Minute)}},
		"all that can be there is in front": {time.Minute, noon, Floor{ago(time.Hour), "x"}, Floor{ago(time.Hour), "x"}},
		"the moment of the floor itself":    {time.Minute, noon.Add(writing), Floor{noon, "x"}, Floor{At: noon}},
		"no floor":                          {time.Minute, noon, Floor{}, Floor{}},
	} {
		n := NewNear()
		sweep := Sweep{Window: 2, Width: c.width}
		if !c.claim.IsZero() {
			n.Saw(Seen{At: c.claim, Own: 100})
			n.Read(Sweep{Window: 2, Width: time.Minute}, lane, Seen{Oldest: 101})
		}
		if got := n.Lower(sweep, lane, c.floor); got != c.want {
			t.Errorf("%s: looks from %v, want %v", name, got, c.want)
		}
	}
}

// Past claims show how far back a sweep has to look. If no past claim has a low enough id, the sweep looks back its
// whole width.
func TestHowFarBackTransactionsInProgressCanHaveWritten(t *testing.T) {
	t.Parallel()
	at := func(s float64) time.Time { return noon.Add(time.Duration(s * float64(time.Second))) }
	n, lane := NewNear(), Lane{"q", 5}
	sweep, floor, all := Sweep{Window: 2, Width: time.Hour}, Floor{At: at(10)}, at(10-3600)
	from := func(oldest uint64) time.Time {
		n.Read(sweep, lane, Seen{Oldest: oldest})
		return n.Lower(sweep, lane, floor).At
	}
	if got := from(100); !got.Equal(all) {
		t.Errorf("nothing known: from %v", got)
	}
	for i := range 40 { // ten transactions every 50 ms
		n.Saw(Seen{At: at(float64(i) / 20), Own: uint64(100 + 10*i)})
	}
	if len(n.Past) != 20 {
		t.Errorf("%d moments of 2 s", len(n.Past))
	}
	for oldest, want := range map[uint64]time.Time{
		100: all, 101: at(0).Add(-writing), 120: at(0).Add(-writing), 121: at(0.1).Add(-writing), 1000: at(1.9).Add(-writing),
	} {
		if got := from(oldest); !got.Equal(want) {
			t.Errorf("%d is in progress: from %v, want %v", oldest, got, want)
		}
	}
	if got := n.Lower(sweep, Lane{"q", 6}, floor).At; !got.Equal(all) {
		t.Errorf("a lane that no sweep has looked into: from %v", got)
	}
	if got := n.Lower(Sweep{Window: 3, Width: time.Hour}, lane, floor).At; !got.Equal(all) {
		t.Errorf("a whole sweep looks from %v", got)
	}
	for i := range 2 * pastMost {
		n.Saw(Seen{At: at(10 + float64(i)), Own: uint64(1000 + i)})
	}
	if len(n.Past) != pastMost || n.Past[pastMost-1].Own != 1000+2*pastMost-1 {
		t.Errorf("%d moments, the last %+v", len(n.Past), n.Past[len(n.Past)-1])
	}
	n.Saw(Seen{At: at(-3600), Own: 7}) // the server's clock went back: its old times prove nothing about new rows
	if len(n.Past) != 1 {
		t.Errorf("%d moments from before a step of the clock", len(n.Past)-1)
	}
}

// A model of one lane, a server's clock and its transaction ids: jobs have the time of their statement, get an id a
// little later, and commit late. Near sweeps alone, without the whole one, find every job that commits no later than a
// window is wide. The next sweep of that window finds it.
func TestNearSweepsFindAllThatWasInProgress(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		if err := nearSweepsModel(rand.New(rand.NewPCG(seed, 1))); err != nil { //nolint:gosec // a model
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

func nearSweepsModel(r *rand.Rand) error {
	type job struct {
		key          Floor
		xid          uint64
		begins, ends time.Time // when the transaction gets its id, and when it commits
		found        bool
	}
	f, n, lane := New(), NewNear(), Lane{"q", 5}
	now, next := noon, uint64(100)
	var jobs []*job
	late := []time.Duration{0, 0, time.Millisecond, 100 * time.Millisecond, time.Second, 10 * time.Second}
	pace := 1 + r.IntN(300)
	for i := range 600 {
		now = now.Add(time.Duration(r.IntN(pace)) * time.Millisecond)
		n.Windows[3].Next = now.Add(time.Hour)
		if r.IntN(3) > 0 {
			begins := now.Add(time.Duration(r.Int64N(int64(writing))))
			jobs = append(jobs, &job{key: Floor{now, fmt.Sprintf("%05d", i)}, begins: begins, ends: begins.Add(late[r.IntN(len(late))])})
		}
		if r.IntN(3) == 0 {
			continue
		}
		for _, j := range jobs { // the jobs of one step may get their ids in any order
			if j.xid == 0 && !j.begins.After(now) {
				j.xid, next = next, next+1
			}
		}
		seen := Seen{At: now, Oldest: next, Own: next}
		next++
		for _, j := range jobs {
			if j.xid > 0 && j.ends.After(now) {
				seen.Oldest = min(seen.Oldest, j.xid)
			}
		}
		sweep := n.Due(now)
		from, version := n.Lower(sweep, lane, f.Get(lane)), f.Version()
		now = now.Add(time.Duration(r.IntN(20)) * time.Millisecond) // the claim itself comes a little later
		var last Floor
		for _, j := range jobs {
			switch visible := j.xid > 0 && !j.ends.After(now); {
			case j.found:
			case visible && from.Before(j.key):
				j.found = true
				if last.Before(j.key) {
					last = j.key
				}
			case visible && sweep.Width > 0 && j.ends.Before(seen.At) && f.Get(lane).At.Sub(j.key.At) < sweep.Width:
				return fmt.Errorf("step %d: a sweep of %v from %v misses a job of %v that had committed %v before", i, sweep.Width, now.Sub(from.At), now.Sub(j.key.At), seen.At.Sub(j.ends))
			}
		}
		n.Saw(seen)
		n.Swept(sweep, time.Millisecond, now)
		n.Read(sweep, lane, seen)
		f.Advance(lane, last, true, now, version)
	}
	return nil
}
