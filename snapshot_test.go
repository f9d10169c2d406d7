package drover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover/internal/health"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

func (db *testDB) snapshot(t testing.TB) *Snapshot {
	t.Helper()
	snap, err := db.client.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return snap
}

// health has all facts behind the findings of a snapshot. It looks until every part was seen in time, of which a busy server
// may keep one waiting.
func (db *testDB) health(t testing.TB) (report *health.Report) {
	t.Helper()
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	eventually(t, func() bool {
		if report, err = health.Look(t.Context(), conn.Conn(), health.Thorough); err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(report.NotSeen, func(n health.NotSeen) bool { return n.TimedOut })
	})
	return report
}

// counts writes a snapshot's counts as text, with the date of the oldest due job.
func (snap *Snapshot) counts() (lines []string) {
	for _, c := range snap.Counts {
		line := fmt.Sprint(c.Queue, " ", c.State, " ", c.Jobs)
		if c.Estimated {
			line += " or so"
		}
		if c.OldestDue != nil {
			line += " " + c.OldestDue.UTC().Format(time.DateOnly)
		}
		lines = append(lines, line)
	}
	return lines
}

// D-2.
func TestSnapshotCountsJobs(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	if snap := db.snapshot(t); snap.Counts == nil || len(snap.Counts) != 0 || snap.Supervisors == nil || snap.Findings == nil {
		t.Errorf("of no job: %+v", snap)
	}
	db.put(t, "scheduled_at", "'2020-01-01+00'")
	db.put(t, "scheduled_at", "'2021-01-01+00'")
	db.put(t, "state, scheduled_at", "'scheduled', now() + interval '1 day'")
	db.put(t, "state, claimed_by, scheduled_at", "'running', 's', '2020-01-01+00'")
	db.put(t, "queue, state, finalized_at, scheduled_at", "'post', 'completed', now(), '2020-01-01+00'")
	want := []string{"default available 2 2020-01-01", "default running 1", "default scheduled 1", "post completed 1"}
	if got := db.snapshot(t).counts(); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A large table is not read: what is small in it is counted by the indexes, the rest is an estimate that says so.
func TestSnapshotOfALargeTable(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newTestDB(t)
	db.exec(t, `alter table jobs set (fillfactor = 10, autovacuum_enabled = off)`)
	db.exec(t, `insert into jobs (kind, queue, scheduled_at) select 'k', 'big', '2020-01-02+00'::timestamptz + n * interval '1 s' from generate_series(1, 5000) n`)
	db.exec(t, `insert into jobs (kind, queue, state, finalized_at, discard_reason) select 'k', 'big', 'discarded', now(), 'panic' from generate_series(1, 2500) n`)
	db.exec(t, `insert into jobs (kind, queue, state, finalized_at) select 'k', 'big', 'completed', now() from generate_series(1, 2500) n`)
	db.exec(t, `insert into jobs (kind, queue, state, priority, claimed_by, scheduled_at) values ('k', 'big', 'running', 9, 's', '2019-01-01+00')`)
	db.exec(t, `insert into jobs (kind, queue, state, errors_total, scheduled_at) values ('k', 'big', 'retryable', 1, '2020-01-01+00')`)
	db.exec(t, `insert into jobs (kind, queue, priority, scheduled_at) select 'k', 'small', n, now() + interval '1 h' from generate_series(1, 9) n`)
	db.exec(t, `insert into jobs (kind, queue, scheduled_at, state) values ('k', 'small', 'infinity', 'parked'), ('k', 'small', '2018-01-01+00', 'retryable'), ('k', 'small', '2022-01-01+00', 'available')`)
	db.exec(t, `insert into jobs (kind, queue, state, finalized_at, discard_reason) values ('k', 'dead', 'discarded', now(), 'panic')`)
	if pages := value[int64](t, db, `select pg_relation_size('jobs') / 8192`); pages <= smallTable {
		t.Fatalf("%d pages are not enough", pages)
	}

	var got []string
	for _, c := range db.snapshot(t).Counts {
		if slices.Contains([]State{Available, Discarded, Completed}, c.State) && c.Queue == "big" {
			want := int64(2500)
			if c.State == Available {
				want = 5000
			}
			if !c.Estimated || c.Jobs < want/2 || c.Jobs > want*2 {
				t.Errorf("%+v, want an estimate near %d", c, want)
			}
			c.Jobs = 0
		}
		got = append(got, (&Snapshot{Counts: []QueueCount{c}}).counts()...)
	}
	want := []string{
		"big available 0 or so 2020-01-02", "big completed 0 or so", "big discarded 0 or so", "big retryable 1 or so 2020-01-01", "big running 1 or so",
		"dead discarded 1", "small available 10 2022-01-01", "small parked 1", "small retryable 1 2018-01-01",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}

	check := func(when string) {
		t.Helper()
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			p := db.planner(t)
			if _, err := p.Exec(t.Context(), "set plan_cache_mode = "+mode); err != nil {
				t.Fatal(err)
			}
			// 500 jobs of a lane and 500 dead letters, three to a page, the sample, and twelve lanes to find.
			buffers, scans := p.buffersOf(t, strings.NewReplacer("$1", "500", "$2", "10").Replace(sqlDepths))
			if scans > 0 || buffers > 1100 {
				t.Errorf("%s, %s: %d buffers, %d scans of the table", when, mode, buffers, scans)
			}
		}
	}
	check("no statistics")
	db.exec(t, `analyze jobs`)
	check("analyzed")
}

// A supervisor's state and slots are as its row has them, odd numbers among them.
func TestSnapshotOfSupervisors(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	db.exec(t, `insert into drover_supervisors (id, lease_ms, queues, slots, in_flight, host, pid, build, started_at, beat_at, draining, lost_at) values
		('a', 30000, '{mail,post}', '{"mail": 4, "post": 2}', '{x,y}', 'h', 7, 'b', now() - interval '4 h', now() + interval '1 h', false, null),
		('d', 30000, '{mail}', '{"mail": 1e300}', '{}', '', 0, '', now() - interval '3 h', now() + interval '1 h', true, null),
		('s', 30000, '{mail}', '{"mail": "many"}', '{}', '', 0, '', now() - interval '2 h', now() - interval '1 h', false, null),
		('l', 30000, '{mail}', '{}', '{}', '', 0, '', now() - interval '1 h', 'infinity', false, now())`)
	snap := db.snapshot(t)
	var got []string
	for _, s := range snap.Supervisors {
		got = append(got, fmt.Sprint(s.ID, " ", s.State, " ", s.Queues, " ", s.InFlight, "/", s.Slots, " ", s.Host, s.PID, s.Build, " ", s.LeaseMS))
	}
	want := []string{"a alive [mail post] 2/6 h7b 30000", "d draining [mail] 0/1000000000 0 30000", "s silent [mail] 0/0 0 30000", "l lost [mail] 0/0 0 30000"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if d := snap.Supervisors[0].BeatAt.Sub(snap.At).Round(time.Hour); d != time.Hour {
		t.Errorf("last beat %v from now", d)
	}
	if i := slices.IndexFunc(snap.Findings, func(f Finding) bool { return f.Name == "supervisors" }); i < 0 || snap.Findings[i].Level != "warning" {
		t.Errorf("findings = %+v", snap.Findings)
	}
}

// Findings are those that need a person, worst first.
func TestSnapshotFindings(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	db.exec(t, `insert into jobs (kind, queue, scheduled_at) values ('k', 'late', now() - interval '20 min')`)
	var got []string
	for _, f := range db.snapshot(t).Findings {
		if f.Name != "vacuum_held" && f.Name != "blocked" { // others use this server
			got = append(got, f.Level+" "+f.Name)
		}
	}
	if want := []string{"critical supervisors", "warning claim_lag"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestSnapshotErrors(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewPool(t)
	client, err := New(pool, Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Snapshot(t.Context()); !errors.Is(err, ErrNotMigrated) {
		t.Errorf("not migrated: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := client.Snapshot(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	gone, err := pgxpool.New(t.Context(), "postgres://drover@127.0.0.1:1/app")
	if err != nil {
		t.Fatal(err)
	}
	defer gone.Close()
	if client, err = New(gone, Config{}); err != nil {
		t.Fatal(err)
	}
	if snap, err := client.Snapshot(t.Context()); snap != nil || err == nil || !strings.Contains(err.Error(), "take a snapshot") {
		t.Errorf("no server: %+v, %v", snap, err)
	}
}
