package drover

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// noon is the time at which tests without a database take place.
var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC) //nolint:gochecknoglobals // times cannot be constants

func TestNearSweepsTakeTheirPartOfTheTime(t *testing.T) {
	t.Parallel()
	const whole = 3
	n := newNearSweeps()
	due := func(after time.Duration) string {
		s := n.due(noon.Add(after))
		if s.width > 0 && n.windows[s.window].whole {
			return "whole"
		}
		return s.width.String()
	}
	if got := due(0); got != "whole" {
		t.Fatalf("due at first = %v", got)
	}
	swept := func(window int, cost time.Duration) {
		n.swept(nearSweep{window: window, width: n.windows[window].width}, cost, noon)
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
	n.share(16) // the limit is for all of them together, because they share the server
	swept(2, 10*time.Millisecond)
	expect("one of 16, of 10 ms", map[time.Duration]string{1589 * time.Millisecond: "2s", 1590 * time.Millisecond: "20s"})
	if n.share(0); n.sharing != 1 {
		t.Error("nobody sweeps")
	}
}

// All living supervisors that serve one of a supervisor's queues share its near sweeps.
func TestNearSweepsAreShared(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, SupervisorConfig{})
	db.stopped(t, SupervisorConfig{})
	db.stopped(t, SupervisorConfig{})
	db.stopped(t, SupervisorConfig{Queues: []Queue{{Name: "other"}}})
	lost := db.stopped(t, SupervisorConfig{})
	db.exec(t, `update drover_supervisors set lost_at = now() where id = $1`, lost.lease.Load().id)
	s.beat(t)
	if got := s.claimer.near.sharing; got != 3 {
		t.Errorf("near sweeps are shared by %d, want the three that can", got)
	}
}

func TestANearSweepLooksNoFurtherThanItMust(t *testing.T) {
	t.Parallel()
	ago := func(d time.Duration) time.Time { return noon.Add(-d) }
	lane := laneKey{"q", 5}
	for name, c := range map[string]struct {
		width       time.Duration
		claim       time.Time // of a claim with a lower id than the oldest in progress at the last look into the lane
		floor, want floor
	}{
		"none":                              {0, noon, floor{noon, "x"}, floor{noon, "x"}},
		"nothing is known":                  {time.Minute, time.Time{}, floor{noon, "x"}, floor{at: ago(time.Minute)}},
		"no further than what can be there": {time.Minute, noon, floor{noon, "x"}, floor{at: ago(writing)}},
		"no further than its width":         {time.Minute, ago(time.Hour), floor{noon, "x"}, floor{at: ago(time.Minute)}},
		"all that can be there is in front": {time.Minute, noon, floor{ago(time.Hour), "x"}, floor{ago(time.Hour), "x"}},
		"the moment of the floor itself":    {time.Minute, noon.Add(writing), floor{noon, "x"}, floor{at: noon}},
		"no floor":                          {time.Minute, noon, floor{}, floor{}},
	} {
		n := newNearSweeps()
		sweep := nearSweep{window: 2, width: c.width}
		if !c.claim.IsZero() {
			n.saw(transactions{at: c.claim, own: 100})
			n.read(nearSweep{window: 2, width: time.Minute}, lane, transactions{oldest: 101})
		}
		if got := n.lower(sweep, lane, c.floor); got != c.want {
			t.Errorf("%s: looks from %v, want %v", name, got, c.want)
		}
	}
}

// Past claims show how far back a sweep has to look. If no past claim has a low enough id, the sweep looks back its
// whole width.
func TestHowFarBackTransactionsInProgressCanHaveWritten(t *testing.T) {
	t.Parallel()
	at := func(s float64) time.Time { return noon.Add(time.Duration(s * float64(time.Second))) }
	n, lane := newNearSweeps(), laneKey{"q", 5}
	sweep, floor, all := nearSweep{window: 2, width: time.Hour}, floor{at: at(10)}, at(10-3600)
	from := func(oldest uint64) time.Time {
		n.read(sweep, lane, transactions{oldest: oldest})
		return n.lower(sweep, lane, floor).at
	}
	if got := from(100); !got.Equal(all) {
		t.Errorf("nothing known: from %v", got)
	}
	for i := range 40 { // ten transactions every 50 ms
		n.saw(transactions{at: at(float64(i) / 20), own: uint64(100 + 10*i)})
	}
	if len(n.past) != 20 {
		t.Errorf("%d moments of 2 s", len(n.past))
	}
	for oldest, want := range map[uint64]time.Time{
		100: all, 101: at(0).Add(-writing), 120: at(0).Add(-writing), 121: at(0.1).Add(-writing), 1000: at(1.9).Add(-writing),
	} {
		if got := from(oldest); !got.Equal(want) {
			t.Errorf("%d is in progress: from %v, want %v", oldest, got, want)
		}
	}
	if got := n.lower(sweep, laneKey{"q", 6}, floor).at; !got.Equal(all) {
		t.Errorf("a lane that no sweep has looked into: from %v", got)
	}
	if got := n.lower(nearSweep{window: 3, width: time.Hour}, lane, floor).at; !got.Equal(all) {
		t.Errorf("a whole sweep looks from %v", got)
	}
	for i := range 2 * pastMost {
		n.saw(transactions{at: at(10 + float64(i)), own: uint64(1000 + i)})
	}
	if len(n.past) != pastMost || n.past[pastMost-1].own != 1000+2*pastMost-1 {
		t.Errorf("%d moments, the last %+v", len(n.past), n.past[len(n.past)-1])
	}
	n.saw(transactions{at: at(-3600), own: 7}) // the server's clock went back: its old times prove nothing about new rows
	if len(n.past) != 1 {
		t.Errorf("%d moments from before a step of the clock", len(n.past)-1)
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
		key          floor
		xid          uint64
		begins, ends time.Time // when the transaction gets its id, and when it commits
		found        bool
	}
	f, n, lane := newFloors(), newNearSweeps(), laneKey{"q", 5}
	now, next := noon, uint64(100)
	var jobs []*job
	late := []time.Duration{0, 0, time.Millisecond, 100 * time.Millisecond, time.Second, 10 * time.Second}
	pace := 1 + r.IntN(300)
	for i := range 600 {
		now = now.Add(time.Duration(r.IntN(pace)) * time.Millisecond)
		n.windows[3].next = now.Add(time.Hour)
		if r.IntN(3) > 0 {
			begins := now.Add(time.Duration(r.Int64N(int64(writing))))
			jobs = append(jobs, &job{key: floor{now, fmt.Sprintf("%05d", i)}, begins: begins, ends: begins.Add(late[r.IntN(len(late))])})
		}
		if r.IntN(3) == 0 {
			continue
		}
		for _, j := range jobs { // the jobs of one step may get their ids in any order
			if j.xid == 0 && !j.begins.After(now) {
				j.xid, next = next, next+1
			}
		}
		seen := transactions{at: now, oldest: next, own: next}
		next++
		for _, j := range jobs {
			if j.xid > 0 && j.ends.After(now) {
				seen.oldest = min(seen.oldest, j.xid)
			}
		}
		sweep := n.due(now)
		from, version := n.lower(sweep, lane, f.get(lane)), f.now()
		now = now.Add(time.Duration(r.IntN(20)) * time.Millisecond) // the claim itself comes a little later
		var last floor
		for _, j := range jobs {
			switch visible := j.xid > 0 && !j.ends.After(now); {
			case j.found:
			case visible && from.before(j.key):
				j.found = true
				if last.before(j.key) {
					last = j.key
				}
			case visible && sweep.width > 0 && j.ends.Before(seen.at) && f.get(lane).at.Sub(j.key.at) < sweep.width:
				return fmt.Errorf("step %d: a sweep of %v from %v misses a job of %v that had committed %v before", i, sweep.width, now.Sub(from.at), now.Sub(j.key.at), seen.at.Sub(j.ends))
			}
		}
		n.saw(seen)
		n.swept(sweep, time.Millisecond, now)
		n.read(sweep, lane, seen)
		f.advance(lane, last, true, now, version)
	}
	return nil
}

// Each near sweep finds jobs that commit as late as it is wide, also in a lane that had no room for a while,
// and without help from the whole sweep.
func TestLateCommitsAreFoundByEachNearSweep(t *testing.T) {
	t.Parallel()
	slow(t)
	for window, open := range []time.Duration{100 * time.Millisecond, 1200 * time.Millisecond, 3 * time.Second} {
		for _, full := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v, full %t", open, full), func(t *testing.T) {
				t.Parallel()
				db := newQuietDB(t)
				s := db.stopped(t, SupervisorConfig{Queues: []Queue{{Concurrency: 2}, {Name: "other"}}})
				s.claimer.near.windows[window].width *= 10 // room for a pause of the process
				never := s.now().Add(time.Hour)
				claim := func(sweep bool) []string {
					t.Helper()
					for i := range s.claimer.near.windows {
						s.claimer.near.windows[i].next = never
					}
					if sweep {
						s.claimer.near.windows[window].next = time.Time{}
					}
					return ids(s.claim(t))
				}
				claim(true)
				tx, err := db.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer tx.Rollback(context.Background())
				late, err := db.client.EnqueueTx(t.Context(), tx, job{}, nil)
				if err != nil {
					t.Fatal(err)
				}
				db.exec(t, `select pg_sleep($1)`, (open / 2).Seconds())
				db.enqueueJobs(t, 2, nil) // their claim moves the floors past the late job
				if got := claim(true); len(got) != 2 {
					t.Fatalf("claimed %q", got)
				}
				db.exec(t, `select pg_sleep($1)`, (open / 2).Seconds())
				if full {
					claim(true) // only the other queue has room
				}
				if err := tx.Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
				if full {
					claim(true)
				}
				var done []*outcome
				for _, r := range s.settler.book.all() {
					r.finish()
					done = append(done, r.decide(nil))
				}
				s.settle(t, done...)
				if got := claim(false); len(got) > 0 {
					t.Fatalf("claimed without a sweep: %q", got)
				}
				if got := claim(true); !slices.Equal(got, []string{late.ID}) {
					t.Errorf("a sweep of %v claimed %q, want %s", s.claimer.near.windows[window].width, got, late.ID)
				}
			})
		}
	}
}

// A claim reports the oldest open transaction that has written, because a sweep has to look back for its rows.
// Transactions that only read do not count.
func TestClaimsTellOfTransactions(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, SupervisorConfig{})
	claimed := func() transactions {
		s.claimer.wake()
		p := s.claimer.request(s.now())
		s.claimer.trip(context.Background(), p)
		return p.reply.seen
	}
	before := claimed()
	reader, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Rollback(context.Background())
	writer, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Rollback(context.Background())
	if _, err := reader.Exec(t.Context(), `declare held cursor for select * from jobs`); err != nil {
		t.Fatal(err)
	}
	var xid uint64
	if err := writer.QueryRow(t.Context(), `select pg_current_xact_id()::text::bigint`).Scan(&xid); err != nil {
		t.Fatal(err)
	}
	if before.own >= xid {
		t.Errorf("the claim before had %d, a transaction after it %d", before.own, xid)
	}
	if now := claimed(); now.oldest > xid || now.own <= xid || !now.at.After(before.at) {
		t.Errorf("%d is in progress, and a claim says %+v", xid, now)
	}
	if err := writer.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.waitFor(t, 20*time.Second, `select pg_snapshot_xmin(pg_current_snapshot())::text::bigint > $1`, xid) // other tests write, too
	if now := claimed(); now.oldest <= xid {
		t.Errorf("%d has ended, and a claim says %+v", xid, now)
	}
}
