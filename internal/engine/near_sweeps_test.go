package engine_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/floors"
)

// All living supervisors that serve one of a supervisor's queues share its near sweeps.
func TestNearSweepsAreShared(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	s := db.stopped(t, drover.SupervisorConfig{})
	db.stopped(t, drover.SupervisorConfig{})
	db.stopped(t, drover.SupervisorConfig{})
	db.stopped(t, drover.SupervisorConfig{Queues: []drover.Queue{{Name: "other"}}})
	lost := db.stopped(t, drover.SupervisorConfig{})
	db.exec(t, `update drover_supervisors set lost_at = now() where id = $1`, lost.Lease.Load().ID)
	s.beat(t)
	if got := s.Claimer.Near.Sharing; got != 3 {
		t.Errorf("near sweeps are shared by %d, want the three that can", got)
	}
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
				// DisableNotify: a lookout that leaves a full queue makes the next claim look behind the floors.
				s := db.stopped(t, drover.SupervisorConfig{DisableNotify: true, Queues: []drover.Queue{{Concurrency: 2}, {Name: "other"}}})
				s.Claimer.Near.Windows[window].Width *= 10 // room for a pause of the process
				never := s.Now().Add(time.Hour)
				claim := func(sweep bool) []string {
					t.Helper()
					for i := range s.Claimer.Near.Windows {
						s.Claimer.Near.Windows[i].Next = never
					}
					if sweep {
						s.Claimer.Near.Windows[window].Next = time.Time{}
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
				var done []*engine.Run
				for _, r := range s.Settler.Unsettled.All() {
					r.Finish()
					done = append(done, decided(r, nil))
				}
				s.settle(t, done...)
				if got := claim(false); len(got) > 0 {
					t.Fatalf("claimed without a sweep: %q", got)
				}
				if got := claim(true); !slices.Equal(got, []string{late.ID}) {
					t.Errorf("a sweep of %v claimed %q, want %s", s.Claimer.Near.Windows[window].Width, got, late.ID)
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
	s := db.stopped(t, drover.SupervisorConfig{})
	claimed := func() floors.Seen {
		s.Claimer.Wake()
		p := s.Claimer.Request(s.Now())
		s.Claimer.Trip(context.Background(), p)
		return p.Reply.Seen
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
	if before.Own >= xid {
		t.Errorf("the claim before had %d, a transaction after it %d", before.Own, xid)
	}
	if now := claimed(); now.Oldest > xid || now.Own <= xid || !now.At.After(before.At) {
		t.Errorf("%d is in progress, and a claim says %+v", xid, now)
	}
	if err := writer.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.waitFor(t, 20*time.Second, `select pg_snapshot_xmin(pg_current_snapshot())::text::bigint > $1`, xid) // other tests write, too
	if now := claimed(); now.Oldest <= xid {
		t.Errorf("%d has ended, and a claim says %+v", xid, now)
	}
}
