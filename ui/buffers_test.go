package ui

import (
	"maps"
	"net/http"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

const manyJobsSQL = `
alter table jobs set (autovacuum_enabled = off); -- its reads would be counted, too
insert into jobs (kind, queue, state, scheduled_at, finalized_at)
select 'k' || n % 5, 'q' || n % 3, s, now() - n * interval '1 ms', case when s = 'completed' then now() end
from (select n, (array['available', 'completed'])[1 + n % 2] as s from generate_series(1, 50000) n) j;
insert into jobs (kind, queue, state, scheduled_at, finalized_at, discard_reason, class, fingerprint)
select 'k' || n % 5, 'q' || n % 3, 'discarded', now(), now(), 'panic', 'panic', '` + groupID + `' from generate_series(1, 1000) n;
analyze jobs`

// Twice as many jobs cost a page no more reads of the table and its indexes, as the server counts them. Only what looks
// at dead letters reads more with more of them.
func TestPagesReadLittle(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	h, pool := newSite(t, Options{}, richSQL, manyJobsSQL)
	pages := map[string]int64{ // and the most that each may read
		"/": 6000, "/queue?name=q1": 5000, "/supervisors": 5000, "/jobs": 300, "/jobs?state=discarded": 300, "/jobs?state=discarded&queue=q1": 600,
		"/job?id=" + deadID: 100, "/failures": 1000, "/redrives": 0, "/limits": 0, "/periodic": 10,
		"/api/overview": 6000, "/api/queue?name=q1": 5000, "/api/health": 5000, "/api/supervisors": 5000, "/api/jobs": 300, "/api/jobs?state=discarded&limit=100": 600,
		"/api/job?id=" + deadID: 30, "/api/explanation?id=" + deadID: 100, "/api/failures": 1000, "/api/failure?id=" + groupID: 1200, "/api/redrives": 0, "/api/redrive?id=" + redriveID: 0,
		"/api/periodic": 10, "/api/schedule?name=nightly": 10, "/api/limits": 0, "/api/budgets": 0,
	}
	once := map[string]int64{}
	for at := range pages {
		once[at] = buffersOf(t, h, pool, at)
	}
	if _, err := pool.Exec(t.Context(), `insert into jobs (kind, queue, state, scheduled_at, finalized_at) select kind, queue, state, scheduled_at + interval '1 h', finalized_at from jobs where state in ('available', 'completed')`); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), `analyze jobs`); err != nil {
		t.Fatal(err)
	}
	for _, at := range slices.Sorted(maps.Keys(pages)) {
		twice := buffersOf(t, h, pool, at)
		t.Logf("%-40s %6d then %6d", at, once[at], twice)
		if most := pages[at]; twice > most || twice > once[at]*3/2+100 {
			t.Errorf("%s reads %d buffers next to 50,000 jobs and %d next to 100,000; at most %d", at, once[at], twice, most)
		}
	}
}

// buffersOf is how many pages of jobs and its indexes were read for an address. The server counts for each session, and
// tells when a session says so, so every connection of the pool is asked.
func buffersOf(t *testing.T, h http.Handler, pool *pgxpool.Pool, at string) int64 {
	t.Helper()
	read := func() (n int64) {
		for _, conn := range pool.AcquireAllIdle(t.Context()) {
			if _, err := conn.Exec(t.Context(), `select pg_stat_force_next_flush()`); err != nil {
				t.Fatal(err)
			}
			conn.Release()
		}
		if err := pool.QueryRow(t.Context(), `select heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit from pg_statio_user_tables where relid = 'jobs'::regclass`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	get(t, h, at).ok(t) // what planning reads is behind it
	before := read()
	get(t, h, at).ok(t)
	return read() - before
}
