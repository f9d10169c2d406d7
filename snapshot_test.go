package drover_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/health"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

func (db *testDB) snapshot(t testing.TB) *drover.Snapshot {
	t.Helper()
	s, err := db.client.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// depthOf returns the depth of one queue.
func depthOf(t testing.TB, s *drover.Snapshot, queue string) drover.QueueDepth {
	t.Helper()
	i := slices.IndexFunc(s.Queues, func(q drover.QueueDepth) bool { return q.Queue == queue })
	if i < 0 {
		t.Fatalf("no queue %s: %+v", queue, s.Queues)
	}
	return s.Queues[i]
}

// O-2: one read gathers depths, ages, supervisors, redrives, refused jobs, suspects and the findings.
func TestSnapshot(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	if s := db.snapshot(t); len(s.Queues) != 0 || s.Suspects != 0 || s.SetAside != 0 || len(s.Redrives) != 0 || s.Supervisors != (drover.SupervisorCounts{}) || len(s.NotSeen) != 0 {
		t.Errorf("of an empty queue: %+v", s)
	}
	db.exec(t, `insert into drover_supervisors (id, lease_ms, queues, beat_at, draining, lost_at) values
		('a', 3600000, '{mail,idle}', now(), false, null), ('d', 3600000, '{mail}', now(), true, null),
		('s', 30000, '{late}', now() - interval '1 h', false, null), ('l', 30000, '{late}', now(), false, now())`)
	db.exec(t, `insert into jobs (kind, queue, scheduled_at) values ('k', 'late', now() - interval '20 min'), ('k', 'mail', now() - interval '1 min'), ('k', 'mail', now())`)
	db.exec(t, `insert into jobs (kind, queue, state, scheduled_at) values ('k', 'mail', 'scheduled', now() + interval '1 h'), ('k', 'mail', 'parked', 'infinity')`)
	db.exec(t, `insert into jobs (kind, queue, scheduled_at, state, errors_total, priority) values ('k', 'mail', now() - interval '2 min', 'retryable', 1, 9)`)
	db.exec(t, `insert into jobs (kind, queue, scheduled_at, state, claimed_by) values ('k', 'mail', now() - interval '1 d', 'running', 'a'), ('k', 'late', now() - interval '1 d', 'running', 's')`)
	db.exec(t, `insert into jobs (kind, queue, state, crashes) values ('k', 'late', 'retryable', 1), ('k', 'late', 'retryable', 3)`)
	db.exec(t, `insert into jobs (kind, queue, state, finalized_at) values ('k', 'done', 'completed', now()), ('k', 'mail', 'cancelled', now())`)
	db.exec(t, `insert into jobs (kind, queue, state, finalized_at, discard_reason) select 'k', queue, 'discarded', now(), 'panic' from unnest('{dead,mail,mail}'::text[]) as queue`)
	db.exec(t, `insert into drover_set_aside (path, job, error, code, retry_at) values ('rescue', 'x', 'cursed', 'P0001', now())`)
	r, err := db.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{Queue: "dead"}, Rate: 1}, drover.Audit{})
	if err != nil {
		t.Fatal(err)
	}
	ended, err := db.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{Queue: "mail"}}, drover.Audit{})
	if err == nil {
		err = db.client.AbortRedrive(t.Context(), ended.ID, drover.Audit{})
	}
	if err != nil {
		t.Fatal(err)
	}

	s := db.snapshot(t)
	want := map[string]map[drover.State]int64{
		"dead": {drover.Discarded: 1}, "idle": {}, "late": {drover.Available: 1, drover.Retryable: 2, drover.Running: 1},
		"mail": {drover.Available: 2, drover.Scheduled: 1, drover.Parked: 1, drover.Retryable: 1, drover.Running: 1, drover.Discarded: 2},
	}
	var names []string
	for _, q := range s.Queues {
		names = append(names, q.Queue)
		if due := map[string]int64{"late": 3, "mail": 3}[q.Queue]; !maps.Equal(q.Jobs, want[q.Queue]) || q.Estimated || q.Due != due {
			t.Errorf("%+v, want %v", q, want[q.Queue])
		}
	}
	if !slices.Equal(names, []string{"dead", "idle", "late", "mail"}) {
		t.Errorf("queues %v", names)
	}
	for queue, late := range map[string]time.Duration{"late": 20 * time.Minute, "mail": 2 * time.Minute} {
		if due := depthOf(t, s, queue).OldestDue; due == nil || s.At.Sub(*due) < late || s.At.Sub(*due) > late+time.Minute {
			t.Errorf("%s: the oldest is due since %v, at %v", queue, due, s.At)
		}
	}
	if depthOf(t, s, "dead").OldestDue != nil || depthOf(t, s, "idle").OldestDue != nil {
		t.Errorf("no job is due there: %+v", s.Queues)
	}
	if want := (drover.SupervisorCounts{Alive: 1, Draining: 1, Silent: 1, Lost: 1}); s.Supervisors != want || s.Suspects != 2 || s.SetAside != 1 {
		t.Errorf("supervisors %+v, %d suspects, %d set aside", s.Supervisors, s.Suspects, s.SetAside)
	}
	if len(s.Redrives) != 1 || s.Redrives[0].ID != r.ID || s.Redrives[0].Matched != 1 || s.Redrives[0].Rate != 1 {
		t.Errorf("redrives %+v", s.Redrives)
	}
	for name, what := range map[string]string{"claim_lag": "a due job of queue late has waited 20m", "supervisors": "1 silent, 1 lost", "set_aside": "job x is set aside"} {
		i := slices.IndexFunc(s.Findings, func(f drover.Finding) bool { return f.Name == name })
		if i < 0 || s.Findings[i].Level != drover.LevelWarning || !strings.Contains(s.Findings[i].What, what) || s.Findings[i].Why == "" || s.Findings[i].Do == "" {
			t.Errorf("%s: %+v", name, s.Findings)
		}
	}
}

// The level of a snapshot is the worst of its findings, which come first, and of which none is ok.
func TestSnapshotLevel(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into jobs (kind, queue, scheduled_at) values ('k', 'q', now() - interval '20 min')`)
	s := db.snapshot(t)
	if s.Level != drover.LevelCritical || len(s.Findings) < 2 || s.Findings[0].Level != drover.LevelCritical || slices.ContainsFunc(s.Findings, func(f drover.Finding) bool { return f.Level == drover.LevelOK }) {
		t.Errorf("%s: %+v", s.Level, s.Findings)
	}
}

// A quarantined job is a warning, in a snapshot in which all else is well.
func TestSnapshotOfAQuarantinedJob(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	if s := db.snapshot(t); s.Level != drover.LevelOK {
		t.Fatalf("%+v", s)
	}
	db.exec(t, `insert into jobs (kind, queue, state, finalized_at, discard_reason, crashes, deaths) values ('k', 'q', 'discarded', now(), 'crashed', 3, 3)`)
	if s := db.snapshot(t); s.Level != drover.LevelWarning || len(s.Quarantined) != 1 || len(s.Findings) != 1 || s.Findings[0].Name != "quarantined" {
		t.Errorf("%s: %+v", s.Level, s.Findings)
	}
}

// A deep queue is counted up to a bound, suspects and retries first, and estimated beyond that. Other queues are counted to
// their end, even if the sample has jobs of theirs on many pages.
func TestSnapshotIsBounded(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.exec(t, `insert into jobs (id, kind, queue) select (select left(drover_ulid(), 10)) || lpad(n::text, 16, '0'), 'k', case n % 61 when 0 then 'thin' else 'deep' end from generate_series(1, 12000) n`)
	db.exec(t, `insert into jobs (id, kind, queue, state, scheduled_at) select (select left(drover_ulid(), 10)) || lpad(n::text, 16, '0'), 'k', 'deep', 'scheduled', now() + interval '1 h' from generate_series(1, 6000) n`)
	db.exec(t, `insert into jobs (kind, queue, state, crashes) values ('k', 'deep', 'retryable', 1)`)
	db.exec(t, `insert into jobs (kind, queue, state, errors_total) select 'k', 'deep', 'retryable', 1 from generate_series(1, 5)`)
	db.exec(t, `insert into jobs (id, kind, queue, state, finalized_at, discard_reason) select (select left(drover_ulid(), 10)) || lpad(n::text, 16, '0'), 'k', case n % 21 when 0 then 'thin' else 'dead' end, 'discarded', now(), 'panic' from generate_series(1, 4000) n`)
	db.exec(t, `insert into jobs (kind, queue) select 'k', 'dead' from generate_series(1, $1)`, drover.SnapshotJobs-1)
	db.exec(t, `insert into jobs (kind, queue) select 'k', 'bound' from generate_series(1, $1)`, drover.SnapshotJobs)
	db.exec(t, `insert into jobs (kind, queue, state, finalized_at, discard_reason) select 'k', 'bound', 'discarded', now(), 'panic' from generate_series(1, $1)`, drover.SnapshotJobs)
	db.exec(t, `insert into jobs (kind, queue) values ('k', 'small')`)
	s := db.snapshot(t)
	about := func(queue string, state drover.State, want int64) {
		t.Helper()
		if q := depthOf(t, s, queue); !q.Estimated || q.Jobs[state] < want*3/4 || q.Jobs[state] > want*5/4 {
			t.Errorf("%+v, want about %d %s", q, want, state)
		}
	}
	about("deep", drover.Available, 12_000)
	if n := depthOf(t, s, "deep").Due; n < 9_000 || n > 15_000 {
		t.Errorf("about %d jobs are due, want about 12,000", n)
	}
	about("deep", drover.Scheduled, 6_000)
	about("dead", drover.Discarded, 4_000)
	if n := depthOf(t, s, "dead").Jobs[drover.Available]; n != drover.SnapshotJobs-1 {
		t.Errorf("%d jobs next to many dead letters, want all of them, counted", n)
	}
	if q := depthOf(t, s, "thin"); q.Estimated || q.Jobs[drover.Available] != 12_000/61 || q.Jobs[drover.Discarded] != 4_000/21 {
		t.Errorf("%+v, want all of its jobs, counted: the sample has some of them", q)
	}
	if q := depthOf(t, s, "bound"); q.Estimated || q.Jobs[drover.Available] != drover.SnapshotJobs || q.Jobs[drover.Discarded] != drover.SnapshotJobs {
		t.Errorf("%+v, want all of its jobs, counted: it has no more than the bound", q)
	}
	if n := depthOf(t, s, "deep").Jobs[drover.Retryable]; n < 6 {
		t.Errorf("%d retries, want those that were counted, whatever the sample has", n)
	}
	if q := depthOf(t, s, "small"); q.Estimated || !maps.Equal(q.Jobs, map[drover.State]int64{drover.Available: 1}) {
		t.Errorf("%+v", q)
	}
	if s.Suspects != 1 {
		t.Errorf("%d suspects, want the one that is not among the first by its time", s.Suspects)
	}
}

// If there are more queues than a snapshot lists, it says so.
func TestSnapshotOfManyQueues(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into jobs (kind, queue) select 'k', 'q' || lpad(n::text, 4, '0') from generate_series(1, $1) n`, drover.SnapshotQueues)
	if s := db.snapshot(t); len(s.Queues) != drover.SnapshotQueues || len(s.NotSeen) != 0 {
		t.Errorf("%d queues, not seen %+v", len(s.Queues), s.NotSeen)
	}
	db.exec(t, `insert into drover_supervisors (id, lease_ms, queues) values ('a', 3600000, '{a,q0001}')`)
	s := db.snapshot(t)
	if len(s.Queues) != drover.SnapshotQueues || s.Queues[0].Queue != "a" || s.Queues[1].Queue != "q0001" || len(s.NotSeen) != 1 || s.NotSeen[0] != (drover.NotSeen{"depths", "there are more than 1000 queues, these are the first"}) {
		t.Errorf("%d queues from %+v on, not seen %+v", len(s.Queues), s.Queues[:2], s.NotSeen)
	}
}

// A role without rights gets what it may see, and the names of the parts that it may not.
func TestSnapshotOfARoleWithoutRights(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	role := pgtest.Schema(db.Pool) + "_guest"
	db.exec(t, `create role `+role)
	t.Cleanup(func() {
		if _, err := db.Exec(context.Background(), `drop owned by `+role+`; drop role `+role, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Error(err)
		}
	})
	db.exec(t, `grant usage on schema `+pgtest.Schema(db.Pool)+` to `+role)
	db.exec(t, `grant select on drover_supervisors to `+role)
	db.Alive(t, "a")
	guest := db.via(t, drover.Config{}, func(cfg *pgxpool.Config) {
		cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "set role "+role)
			return err
		}
	})
	s := guest.snapshot(t)
	var parts []string
	for _, n := range s.NotSeen {
		parts = append(parts, n.Part)
		if !strings.Contains(n.Why, "permission denied for ") {
			t.Errorf("not seen: %+v", n)
		}
	}
	if want := []string{"depths", "pauses", "quarantined", "redrives", "claim_index", "set_aside", "refused", "periodic", "clock"}; !slices.Equal(parts, want) {
		t.Errorf("not seen: %v, want %v", parts, want)
	}
	if s.Supervisors.Alive != 1 || len(s.Queues) != 0 || len(s.Redrives) != 0 || s.Level != drover.LevelWarning {
		t.Errorf("%+v", s)
	}
}

// A part that takes too long is left out, and the others are there.
func TestSnapshotDoesNotWaitForLocks(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.enqueue(t, letter{}, nil)
	db.Hold(t, `lock table drover_redrives`)
	s := db.snapshot(t)
	if want := (drover.NotSeen{"redrives", "canceling statement due to lock timeout"}); !slices.Contains(s.NotSeen, want) || depthOf(t, s, "default").Jobs[drover.Available] != 1 {
		t.Errorf("not seen %+v, queues %+v", s.NotSeen, s.Queues)
	}
}

// While somebody keeps a lock on the table jobs, a snapshot is there within the time that a scrape has. It has all that
// does not need the table.
func TestSnapshotBesideALockOnJobs(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.Alive(t, "a")
	db.Hold(t, `lock table jobs`)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	s, err := db.client.Snapshot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var parts []string
	for _, n := range s.NotSeen {
		parts = append(parts, n.Part)
	}
	if want := []string{"depths", "quarantined", "claim_index", "refused", "clock"}; !slices.Equal(parts, want) || s.Supervisors.Alive != 1 {
		t.Errorf("not seen: %+v; %+v", s.NotSeen, s.Supervisors)
	}
}

func TestSnapshotErrors(t *testing.T) {
	t.Parallel()
	db := newTestDBOn(t, pgtest.NewPool(t), drover.Config{})
	if _, err := db.client.Snapshot(t.Context()); !errors.Is(err, drover.ErrNotMigrated) || !strings.Contains(err.Error(), "take a snapshot") {
		t.Errorf("not migrated: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if s, err := db.client.Snapshot(ctx); s != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %+v, %v", s, err)
	}
}

// A sample may miss the few jobs of a queue that are due. The oldest one is known all the same.
func TestSnapshotOfFewDueJobs(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into jobs (kind, queue, scheduled_at) select 'k', 'q', now() + interval '1 h' from generate_series(1, 1000)`)
	db.exec(t, `insert into jobs (kind, queue, scheduled_at) values ('k', 'q', now() - interval '1 h')`)
	s, _ := db.depths(t, 1)
	if q := depthOf(t, s, "q"); q.OldestDue == nil || q.Due < 1 || !q.Estimated {
		t.Errorf("%+v", q)
	}
}

// depths reads the depths of the queues, from a sample of so many pages.
func (db *testDB) depths(t testing.TB, sample int) (*drover.Snapshot, health.Claim) {
	t.Helper()
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	for _, sql := range []string{pg.OnePlan, drover.SQLDepthsPlan} { // as in a snapshot; Postgres would compile the other plan for seconds
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	rows, err := tx.Query(t.Context(), drover.SQLDepths, 10, drover.SnapshotQueues, drover.SnapshotHeld, sample, 5)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var s drover.Snapshot
	var claim health.Claim
	for rows.Next() {
		if err := drover.ReadDepth(&s, &claim, rows); err != nil {
			t.Fatal(err)
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return &s, claim
}

// F-1, O-2: while somebody holds an old snapshot, dead entries stand before the due jobs. A snapshot reads them once, to
// find the oldest due job, and counts the pages, because a claim without a floor reads them, too.
func TestASnapshotReadsDeadEntriesOnce(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.exec(t, `alter table jobs set (autovacuum_enabled = off)`)
	db.Hold(t, `set transaction isolation level repeatable read; select from jobs limit 1`)
	db.exec(t, `insert into jobs (kind, queue, scheduled_at, priority) select 'k', 'q' || i % 2, now() - interval '1 h', 1 + i % 3 from generate_series(1, 30000) i`)
	if _, claim := db.depths(t, 1); claim.FullBuffers < 6 || claim.FullBuffers > 60 {
		t.Errorf("%+v", claim)
	}
	db.exec(t, `update jobs set state = 'completed', finalized_at = now()`)
	db.exec(t, `insert into jobs (kind, queue, scheduled_at, priority) select 'k', 'q' || i % 2, now() - interval '1 s', 1 + i % 3 from generate_series(1, 30) i`)
	one := db.via(t, drover.Config{}, func(cfg *pgxpool.Config) { cfg.MaxConns = 1 })
	read := func() (n int64) {
		one.exec(t, `select pg_stat_force_next_flush()`)
		return value[int64](t, one, `select heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit from pg_statio_user_tables where relid = 'jobs'::regclass`)
	}
	one.snapshot(t) // so planning has read its part
	before := read()
	s := one.snapshot(t)
	after := read()
	one.exec(t, `set enable_seqscan = off; set enable_bitmapscan = off`, pgx.QueryExecModeSimpleProtocol)
	begin := read()
	for queue := range 2 {
		for priority := range 3 {
			one.exec(t, `select from jobs where finalized_at is null and queue = $1 and lane = $2 order by scheduled_at, id limit 1`, fmt.Sprint("q", queue), priority+1)
		}
	}
	once := read() - begin
	t.Logf("a snapshot reads %d buffers, the first jobs take %d", after-before, once)
	if once < 2000 || after-before > once*5/4+300 || len(s.Queues) != 2 || s.Queues[0].OldestDue == nil {
		t.Errorf("a snapshot reads %d buffers, the first jobs take %d: %+v", after-before, once, s.Queues)
	}
	costs := func(when string) {
		t.Helper()
		if _, claim := db.depths(t, 1); claim.FullBuffers < once*9/10 || claim.FullBuffers > once*11/10 {
			t.Errorf("%s: %+v, and the first jobs take %d buffers", when, claim, once)
		}
	}
	costs("jobs wait")
	db.exec(t, `insert into drover_limits (scope, held_at, held_until) values ('kind:x', now(), 'infinity')`)
	before = read()
	s = one.snapshot(t)
	if after := read(); after-before > once*5/4+300 || s.Queues[0].OldestDue == nil {
		t.Errorf("while a kind is paused, a snapshot reads %d buffers, and the first jobs take %d: %+v", after-before, once, s.Queues)
	}
	db.exec(t, `update jobs set state = 'completed', finalized_at = now() where finalized_at is null`)
	db.exec(t, `insert into drover_supervisors (id, lease_ms, queues) values ('s', 60000, '{q0,q1}')`)
	costs("no job waits")
}

// F-1: a snapshot names the queues that have waited longest, and not more than 100 of them.
func TestASnapshotOfManyLateQueues(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into jobs (kind, queue, scheduled_at) select 'k', 'q' || i, now() - interval '1 h' - i * interval '1 min' from generate_series(101, 202) i`)
	var late []string
	for _, f := range db.snapshot(t).Findings {
		if f.Name == "claim_lag" {
			late = append(late, f.What)
		}
	}
	if len(late) != 100 || !strings.HasPrefix(late[0], "a due job of queue q202 ") || !strings.HasPrefix(late[99], "a due job of queue q103 ") {
		t.Errorf("%d: %q", len(late), late)
	}
}

// Lists are never null.
func TestSnapshotJSON(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.Alive(t, "a")
	doc, err := json.Marshal(db.snapshot(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{`"findings":[`, `"redrives":[]`, `"not_seen":[]`, `"queues":[{"queue":"default","jobs":{},"due":0}]`, `"supervisors":{"alive":1,"draining":0,"silent":0,"lost":0,"in_flight":0}`} {
		if !strings.Contains(string(doc), part) {
			t.Errorf("no %s in %s", part, doc)
		}
	}
}

// Depths and redrives are read by index, and no scan goes on behind its limit, whatever the statistics say.
func TestPlansOfASnapshot(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	check := func(when string) {
		t.Helper()
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			p := db.planner(t)
			if _, err := p.Exec(t.Context(), "set plan_cache_mode = "+mode); err != nil {
				t.Fatal(err)
			}
			depths := p.explain(t, planned{name: "depths", sql: drover.SQLDepths, args: []any{drover.SnapshotJobs, drover.SnapshotQueues, drover.SnapshotHeld, drover.SnapshotSample, drover.SnapshotFew}}, "costs off")
			sorted := slices.DeleteFunc(regexp.MustCompile(`Sort Key: \S+`).FindAllString(depths, -1), regexp.MustCompile(`: (counted\.name|(waiting_1|[jl]_\d)\.queue)$`).MatchString) // besides names and the sample
			if regexp.MustCompile(`(Seq|Bitmap Heap) Scan on jobs|jobs_pkey|Aggregate\s+->\s+Index`).MatchString(depths) || len(sorted) > 0 || strings.Count(depths, "Limit") != 16 {
				t.Errorf("depths, %s, %s:\n%s", when, mode, depths)
			}
			redrives := p.explain(t, planned{name: "redrives", sql: drover.SQLOpenRedrives, args: []any{drover.SnapshotRedrives}}, "costs off")
			if !strings.Contains(redrives, "redrives_unfinished_idx") || strings.Contains(redrives, "Sort") {
				t.Errorf("redrives, %s, %s:\n%s", when, mode, redrives)
			}
		}
	}
	db.exec(t, `alter table jobs set (autovacuum_enabled = off)`)
	check("no statistics")
	db.Fill(t, harness.RowsForPlans(t))
	db.exec(t, `analyze jobs`)
	check("full")
	db.exec(t, `insert into drover_limits (scope, held_at, held_until) values ('kind:job', now(), 'infinity')`)
	check("a kind is paused")
	db.exec(t, `update jobs set state = 'completed', finalized_at = now()`)
	db.exec(t, `analyze jobs`)
	check("nothing but completed jobs")
	db.exec(t, `update jobs set state = 'discarded', discard_reason = 'panic'`)
	check("dead letters since")
	db.exec(t, `analyze jobs`)
	check("nothing but dead letters")
}

// A time-out for locks, set by the application, costs a snapshot the part that is locked.
func TestSnapshotUnderALockTimeout(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	hasty := db.via(t, drover.Config{}, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["lock_timeout"] = "50" })
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `lock table drover_set_aside in access exclusive mode`); err != nil {
		t.Fatal(err)
	}
	s, err := hasty.client.Snapshot(t.Context())
	if err != nil || !slices.ContainsFunc(s.NotSeen, func(n drover.NotSeen) bool { return n.Part == "set_aside" }) {
		t.Errorf("%+v, %v", s, err)
	}
}

// The suspects of a queue that is not listed do not count.
func TestSnapshotCountsSuspectsOfItsQueues(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	db.exec(t, `insert into jobs (kind, queue, state, crashes) select 'k', 'q' || lpad(i::text, 5, '0'), 'retryable', 1 from generate_series(1, $1) i`, drover.SnapshotQueues+1)
	if s, err := db.client.Snapshot(t.Context()); err != nil || len(s.Queues) != drover.SnapshotQueues || s.Suspects != drover.SnapshotQueues {
		t.Errorf("%d queues, %d suspects, %v", len(s.Queues), s.Suspects, err)
	}
}

// A snapshot reads at most 100 buffers for a queue whose jobs lie together, besides the sample, and 400 for one whose jobs
// have all priorities and lie anywhere in the table, however many there are.
func TestCostOfASnapshot(t *testing.T) {
	t.Parallel()
	slow(t)
	for name, test := range map[string]struct {
		due      string // of the jobs
		priority string
		most     int
	}{
		"in order": {"now() - i * interval '1 ms'", "5", 40},
		"anyhow":   {"now() + (random() - 0.5) * interval '30 d'", "1 + i % 9", 100},
	} {
		db := newQuietDB(t)
		db.exec(t, `alter table jobs set (autovacuum_enabled = off)`)
		db.exec(t, `insert into jobs (id, kind, queue, scheduled_at, priority) select (select left(drover_ulid(), 10)) || lpad(i::text, 16, '0'), 'k', 'q' || i % 4, `+test.due+`, `+test.priority+` from generate_series(1, 60000) i`)
		db.exec(t, `insert into jobs (id, kind, queue, state, finalized_at, discard_reason) select (select left(drover_ulid(), 10)) || lpad(i::text, 16, '0'), 'k', 'q' || i % 4, 'discarded', now(), 'panic' from generate_series(1, 10000) i`)
		least, best := math.MaxInt, ""
		bound := 4*test.most + drover.SnapshotSample*5/4
		// Transactions of other tests keep the vacuum from marking pages as visible to all, and changes of their schemas make
		// the server read its catalogs anew, in the middle of the statement.
		for began := time.Now(); least > bound && time.Since(began) < time.Minute; {
			db.exec(t, `vacuum analyze jobs`)
			plan := db.planner(t).explain(t, planned{name: "depths", sql: drover.SQLDepths, args: []any{drover.SnapshotJobs, drover.SnapshotQueues, drover.SnapshotHeld, drover.SnapshotSample, drover.SnapshotFew}}, "analyze, buffers, costs off, timing off")
			m := regexp.MustCompile(`Buffers: shared(?: hit=(\d+))?(?: read=(\d+))?`).FindStringSubmatch(plan)
			if m == nil {
				t.Fatalf("no buffers:\n%s", plan)
			}
			hit, _ := strconv.Atoi(m[1])
			read, _ := strconv.Atoi(m[2])
			if hit+read < least {
				least, best = hit+read, plan
			}
		}
		t.Logf("%s: %d buffers for 4 queues", name, least)
		if least > bound || least < 4*10 {
			t.Errorf("%s: %d buffers for 4 queues:\n%s", name, least, best)
		}
	}
}

// O-3, C-2: a stop writes how many jobs ran, and they are read minute by minute.
func TestActivity(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	if got, err := db.client.Activity(t.Context()); err != nil || len(got) != 0 || got == nil {
		t.Fatal(got, err)
	}
	for kind, n := range map[string]int{"ok": 10, "fails": 3, "dies": 2} {
		for range n {
			db.enqueue(t, dyn{kind: kind}, nil)
		}
	}
	db.enqueue(t, dyn{kind: "ok"}, &drover.EnqueueOpts{ExpiresAt: time.Now().Add(-time.Hour)})
	db.exec(t, `update jobs set scheduled_at = scheduled_at - interval '2 s'`)
	_, stop := db.Start(t, drover.SupervisorConfig{Queues: []drover.Queue{{}, {Name: "idle"}}, Workers: []drover.Worker{
		dynWorker("ok", drover.WorkerOpts{}, doNothing),
		dynWorker("fails", drover.WorkerOpts{Retry: drover.Constant{Delay: time.Hour}}, func(context.Context, *drover.Job) error { return errBoom }),
		dynWorker("dies", drover.WorkerOpts{MaxAttempts: 1}, func(context.Context, *drover.Job) error { return errBoom }),
	}})
	db.waitFor(t, 30*time.Second, `select count(*) = 16 from jobs where state in ('completed', 'discarded') or errors_total > 0`)
	stop()
	if row := value[string](t, db, `select format('%s: %s started, %s completed, %s failed, %s discarded, %s', queue, started, completed, failed, discarded, waited between 30 and 900 and seconds > 0) from drover_activity`); row != "default: 15 started, 10 completed, 3 failed, 3 discarded, t" {
		t.Errorf("written: %s", row)
	}
	if got, err := db.client.Activity(t.Context()); err != nil || len(got) != 0 {
		t.Errorf("a minute that may not be written everywhere is read: %v, %v", got, err)
	}
	db.exec(t, `update drover_activity set at = at - interval '3 minutes'`)
	got, err := db.client.Activity(t.Context())
	if err != nil || len(got) != 1 || got[0].Queue != "default" || len(got[0].Minutes) != 60 {
		t.Fatalf("%+v, %v", got, err)
	}
	var sum drover.ActivityMinute
	for _, m := range got[0].Minutes {
		sum.Started, sum.Completed, sum.Failed, sum.Discarded = sum.Started+m.Started, sum.Completed+m.Completed, sum.Failed+m.Failed, sum.Discarded+m.Discarded
		if m.Started > 0 && m.WaitMS < 2000 {
			t.Errorf("jobs that were due for two seconds waited %v ms", m.WaitMS)
		}
	}
	if want := (drover.ActivityMinute{Started: 15, Completed: 10, Failed: 3, Discarded: 3}); !near(sum, want) {
		t.Errorf("%+v, want %+v", sum, want)
	}
}

func near(m, other drover.ActivityMinute) bool {
	near := func(a, b float64) bool { return math.Abs(a-b) < 0.002 } // they are rounded
	return near(m.Started, other.Started) && near(m.WaitMS, other.WaitMS) && near(m.Completed, other.Completed) && near(m.Failed, other.Failed) && near(m.Discarded, other.Discarded)
}

// The sums of two supervisors are added up, and a row counts for each minute by the part of its time that is in it.
func TestActivityBySpread(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	minute := func() time.Time { return value[time.Time](t, db, `select date_trunc('minute', now())`) }
	var now time.Time
	var all []drover.QueueActivity
	for !now.Equal(minute()) { // again, if a minute of the clock ended meanwhile
		now = minute()
		db.exec(t, `truncate drover_activity`)
		for _, row := range []struct {
			queue, supervisor, at               string
			seconds, started, waited, completed int
		}{
			{"b", "one", "-9 min -45 s", 60, 40, 80, 100},
			{"b", "two", "-10 min", 60, 40, 0, 100},
			{"a", "one", "-59 min", 240, 40, 40, 40}, // it began before the hour
			{"a", "one", "-1 min", 60, 40, 40, 40},
			{"c", "one", "-61 min", 60, 1, 1, 1},
			{"d", "one", "-20 s", 30, 1, 1, 1},
		} {
			db.exec(t, `insert into drover_activity (at, seconds, queue, supervisor, started, waited, completed, failed, discarded) values ($1::timestamptz + $2::text::interval, $3, $4, $5, $6, $7, $8, 4, 8)`,
				now, row.at, row.seconds, row.queue, row.supervisor, row.started, row.waited, row.completed)
		}
		var err error
		if all, err = db.client.Activity(t.Context()); err != nil || len(all) != 2 || all[0].Queue != "a" || all[1].Queue != "b" {
			t.Fatalf("%d queues, %v", len(all), err)
		}
	}
	b := func(minutesAgo int) drover.ActivityMinute { return all[1].Minutes[61-minutesAgo] }
	if m, want := b(11), (drover.ActivityMinute{Started: 70, WaitMS: 60. / 70 * 1000, Completed: 175, Failed: 7, Discarded: 14}); !near(m, want) || !m.At.Equal(now.Add(-11*time.Minute)) {
		t.Errorf("eleven minutes ago: %+v, want %+v", m, want)
	}
	if m, want := b(10), (drover.ActivityMinute{Started: 10, WaitMS: 2000, Completed: 25, Failed: 1, Discarded: 2}); !near(m, want) {
		t.Errorf("ten minutes ago: %+v, want %+v", m, want)
	}
	if m := b(9); !near(m, drover.ActivityMinute{}) {
		t.Errorf("nine minutes ago: %+v", m)
	}
	if first, last := all[0].Minutes[0], all[0].Minutes[59]; !near(first, drover.ActivityMinute{Started: 10, WaitMS: 1000, Completed: 10, Failed: 1, Discarded: 2}) || !near(last, drover.ActivityMinute{Started: 40, WaitMS: 1000, Completed: 40, Failed: 4, Discarded: 8}) {
		t.Errorf("the ends of the hour: %+v, %+v", first, last)
	}
	if one, err := db.client.Activity(t.Context(), "b", "nobody"); err != nil || len(one) != 1 || one[0].Queue != "b" {
		t.Errorf("of one queue: %+v, %v", one, err)
	}
}

// In each minute, one session samples how many jobs of each served queue are due and do not run. A paused queue has no
// sample, and neither has a queue that no supervisor serves. The sample counts at most 10,000 jobs, and reads no more by index.
func TestDepthIsSampledOnce(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into jobs (kind, queue, state, scheduled_at, priority, claimed_by, errors_total, attempt, claim_seq)
		select 'k', 'q', state, now() + due * interval '1 h', 1 + n % 9, case when state = 'running' then 's' end, (state = 'retryable')::int, 1, 1
		from (values ('available', -1, 20), ('running', -1, 7), ('retryable', -1, 3), ('retryable', 1, 5), ('scheduled', 1, 11)) v(state, due, many), generate_series(1, many) n`)
	db.exec(t, `insert into jobs (kind, queue, state, scheduled_at) values ('k', 'q', 'parked', 'infinity'), ('k', 'paused', 'available', now())`)
	db.exec(t, `insert into jobs (kind, queue, state, finalized_at) select 'k', 'q', 'completed', now() from generate_series(1, 100)`)
	db.exec(t, `select drover_pause('queue:paused', 'infinity', 'ada', '')`)
	db.exec(t, `insert into drover_supervisors (id, lease_ms, queues, draining, lost_at) values ('s', 3600000, '{q,idle,paused}', false, null), ('t', 3600000, '{q}', false, null),
		('lost', 3600000, '{other}', false, now()), ('stops', 3600000, '{last}', true, null)`)
	const sample = `select drover_sample_depth()`
	rows := func() string {
		return value[string](t, db, `select coalesce(string_agg(format('%s: %s due, %s retrying', queue, due, retrying), ', ' order by queue, at), '') from drover_activity where supervisor = ''`)
	}
	const want = "idle: 0 due, 0 retrying, q: 23 due, 5 retrying"
	var minute time.Time
	clock := func() time.Time { return value[time.Time](t, db, `select date_trunc('minute', now())`) }
	for !minute.Equal(clock()) { // again, if a minute of the clock ended meanwhile
		minute = clock()
		db.exec(t, `truncate drover_activity`)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() { db.exec(t, sample) })
		}
		all.Wait()
		db.exec(t, sample) // after all others
	}
	if got := rows(); got != want {
		t.Errorf("after eight supervisors: %q, want %q", got, want)
	}
	db.exec(t, `update drover_activity set at = date_trunc('minute', now()) - interval '4 min 30 s'`)
	list, err := db.client.Activity(t.Context())
	if err != nil || len(list) != 2 || list[1].Queue != "q" {
		t.Fatalf("%+v, %v", list, err)
	}
	var known []string
	for i, m := range list[1].Minutes {
		if m.Due != nil {
			known = append(known, fmt.Sprintf("%d min ago: %d, %d", 61-i, *m.Due, *m.Retrying))
		}
	}
	if got := strings.Join(known, "; "); got != "5 min ago: 23, 5; 4 min ago: 23, 5" {
		t.Errorf("read: %s", got)
	}

	db.exec(t, `insert into jobs (kind, queue, scheduled_at) select 'k', 'q', now() - n * interval '1 ms' from generate_series(1, 30000) n`)
	db.exec(t, `vacuum analyze jobs`)
	db.exec(t, sample) // only the first run reads the catalogs to plan the queries
	db.exec(t, `truncate drover_activity`)
	err = pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		plan, _ := tx.Query(t.Context(), `explain (analyze, buffers, costs off, timing off, summary off) `+sample)
		lines, err := pgx.CollectRows(plan, pgx.RowTo[string])
		if err != nil {
			return err
		}
		var scans int
		n := harness.BuffersIn(t, strings.Join(lines, "\n"))
		if err = tx.QueryRow(t.Context(), `select pg_stat_get_xact_numscans('jobs'::regclass)`).Scan(&scans); n < 1000 || n > 5000 || scans != 0 {
			t.Errorf("a sample costs %d buffers, and reads the table %d times", n, scans)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	db.exec(t, `truncate drover_activity`)
	db.exec(t, sample)
	if got := rows(); got != "idle: 0 due, 0 retrying, q: 10000 due, 5 retrying" {
		t.Errorf("of 30,023: %q", got)
	}
}

// The runs of a queue are written after it was removed, also if it was added and removed between two writes, or was added
// again meanwhile. Then the queue is forgotten.
func TestActivityOfARemovedQueue(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	var heard harness.EventLog
	s := db.via(t, drover.Config{Hooks: []drover.Hooks{heard.Hooks()}}).launch(t, drover.SupervisorConfig{Queues: []drover.Queue{{}, {Name: "post"}}})
	ran := func(queue string) {
		heard.Wait(t, db.enqueue(t, job{1}, &drover.EnqueueOpts{Queue: queue}), "completed")
	}
	remove := func(queue string) {
		if err := s.RemoveQueue(t.Context(), queue); err != nil {
			t.Fatal(err)
		}
	}
	add := func(queue string) {
		if err := s.AddQueue(t.Context(), drover.Queue{Name: queue}); err != nil {
			t.Fatal(err)
		}
	}
	write := func() (rows string) {
		drover.EngineOf(s.Supervisor).Activity.Write(t.Context())
		rows = value[string](t, db, `select coalesce(string_agg(queue || ' ' || completed, ', ' order by queue), '') from drover_activity where supervisor <> ''`)
		db.exec(t, `delete from drover_activity`)
		return rows
	}
	ran("post")
	remove("post")
	add("post")
	ran("post")
	remove("post")
	add("brief")
	ran("brief")
	remove("brief")
	if got := write(); got != "brief 1, post 2" {
		t.Errorf("written: %q", got)
	}
	add("post")
	ran("post")
	if got := write(); got != "post 1" {
		t.Errorf("after it was added again: %q", got)
	}
	write()
	if n := len(drover.EngineOf(s.Supervisor).Tallied()) - 2; n != 0 {
		t.Errorf("%d removed queues are kept", n)
	}
}

// Counts that could not be written are written the next time. Each run counts once.
func TestActivityThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	var book harness.Logbook
	var heard harness.EventLog
	s := drover.EngineOf(db.via(t, drover.Config{Logger: slog.New(&book), Hooks: []drover.Hooks{heard.Hooks()}}).launch(t, drover.SupervisorConfig{}).Supervisor)
	ran := func(n int) {
		for range n {
			heard.Wait(t, db.enqueue(t, job{1}, nil), "completed")
		}
	}
	write := func() (rows string) {
		s.Activity.Write(t.Context())
		return value[string](t, db, `select coalesce(string_agg(completed::text, ' ' order by at), '') from drover_activity where supervisor <> ''`)
	}
	ran(2)
	db.exec(t, `create function refuse() returns trigger language plpgsql as $$ begin raise exception 'not today'; end $$`)
	db.exec(t, `create trigger refuse before insert on drover_activity execute function refuse()`)
	if got := write(); got != "" || len(book.From(slog.LevelWarn)) != 1 {
		t.Fatalf("refused: %q, %v", got, book.From(slog.LevelWarn))
	}
	db.exec(t, `drop trigger refuse on drover_activity`)
	ran(3)
	if got := write(); got != "5" {
		t.Errorf("after it was refused: %q, want 5", got)
	}
	if got := write(); got != "5" {
		t.Errorf("nothing ran: %q, want 5", got)
	}
	ran(4)
	if got := write(); got != "5 4" {
		t.Errorf("after four more: %q, want 5 4", got)
	}
	db.exec(t, `update drover_activity set at = at - interval '2 hours' where completed = 5`)
	eventually(t, s.Prunes.Load)
	if got := write(); got != "4" {
		t.Errorf("the old row is there: %q", got)
	}
	// A sample of how many jobs wait that cannot be written costs nothing else.
	db.exec(t, `truncate drover_activity`)
	db.exec(t, `create trigger refuse before insert on drover_activity for each row when (new.supervisor = '') execute function refuse()`)
	ran(1)
	if got := write(); got != "1" || len(book.From(slog.LevelWarn)) != 2 {
		t.Errorf("next to a refused sample: %q, %v", got, book.From(slog.LevelWarn))
	}
	db.exec(t, `drop trigger refuse on drover_activity`)
	write()
	if got := value[string](t, db, `select string_agg(queue || ' ' || due, ' ') from drover_activity where supervisor = ''`); got != "default 0" {
		t.Errorf("samples: %q", got)
	}
}
