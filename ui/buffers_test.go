package ui

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover/internal/tier"
)

const manyJobsSQL = `
alter table jobs set (autovacuum_enabled = off); -- its reads would be counted, too
insert into jobs (id, kind, queue, state, scheduled_at, finalized_at)
select (select left(drover_ulid(), 10)) || lpad(n::text, 16, '0'), 'k' || n % 5, 'q' || n % 3, s, now() - n * interval '1 ms', case when s = 'completed' then now() end
from (select n, (array['available', 'completed'])[1 + n % 2] as s from generate_series(1, 50000) n) j;
insert into jobs (kind, queue, state, scheduled_at, finalized_at, discard_reason, class, fingerprint)
select 'k' || n % 5, 'q' || n % 3, 'discarded', now(), now(), 'panic', 'panic', '` + groupID + `' from generate_series(1, 1000) n;
analyze jobs`

// Twice as many jobs cost a page no more reads of the table and its indexes, as the server counts them. Only what looks
// at dead letters reads more with more of them.
func TestPagesReadLittle(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	h, pool := newSite(t, Options{}, richSQL, manyJobsSQL)
	pages := map[string]int64{ // and the most that each may read
		"/": 2000, "/queue?name=q1": 2000, "/supervisors": 100, "/jobs": 300, "/jobs?state=discarded": 300, "/jobs?state=discarded&queue=q1": 600,
		"/job?id=" + deadID: 100, "/failures": 1000, "/redrives": 0, "/pauses": 0, "/periodic": 10,
		"/api/overview": 2000, "/api/queue?name=q1": 2000, "/api/health": 2000, "/api/supervisors": 100, "/api/jobs": 300, "/api/jobs?state=discarded&limit=100": 600,
		"/api/job?id=" + deadID: 30, "/api/explanation?id=" + deadID: 100, "/api/failures": 1000, "/api/failure?id=" + groupID: 1200, "/api/redrives": 0, "/api/redrive?id=" + redriveID: 20, "/redrive?id=" + redriveID: 20,
		"/api/periodic": 10, "/api/schedule?name=nightly": 10, "/api/pauses": 0, "/api/budgets": 0,
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
// reports when a session asks for it, so every connection of the pool is asked.
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
	get(t, h, at).ok(t) // so planning has read its part
	before := read()
	get(t, h, at).ok(t)
	return read() - before
}

// With millions of rows the pages are still made in time, and none reads a whole table. Of each thousand rows five in six are
// completed jobs, and one in six is a dead letter. The usual size is a hundredth of that which .ci/nightly has.
func TestPagesOfManyRows(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	rows := tier.Size(t, "DROVER_PAGE_ROWS", 60_000)
	h, pool := newSite(t, Options{}, richSQL, fmt.Sprintf(`
alter table jobs set (autovacuum_enabled = off);
insert into jobs (kind, queue, state, scheduled_at, finalized_at, created_at, attempt, args, discard_reason, class, fingerprint, errors_total, errors)
select 'k' || n %% 7, 'q' || n %% 3, case when n %% 6 = 0 then 'discarded' else 'completed' end, at, at, at, 1, jsonb_build_object('OrderID', n),
	case when n %% 6 = 0 then 'attempts_exhausted' end, case when n %% 6 = 0 then 'error' end, case when n %% 6 = 0 then lpad(to_hex(n / 6 %% 500), 16, '0') end, (n %% 6 = 0)::int,
	case when n %% 6 = 0 then jsonb_build_array(jsonb_build_object('attempt', 1, 'at', at, 'class', 'error', 'error', 'no', 'fingerprint', lpad(to_hex(n / 6 %% 500), 16, '0'))) else '[]' end
from (select n, now() - (%[1]d - n) * interval '50 ms' as at from generate_series(1, %[1]d) n) j;
insert into drover_failure_groups (fingerprint, kind, class, sample, first_seen, last_seen, count, jobs, last_job)
select lpad(to_hex(n), 16, '0'), 'k' || n %% 7, 'error', 'no', now() - interval '1 day', now() - n * interval '1 s', 100, 90, '' from generate_series(1, 499) n`, rows))
	if _, err := pool.Exec(t.Context(), `vacuum analyze jobs`); err != nil { // as autovacuum does
		t.Fatal(err)
	}
	var pages int64
	if err := pool.QueryRow(t.Context(), `select relpages from pg_class where oid = 'jobs'::regclass`).Scan(&pages); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{
		"/", "/queue?name=q1", "/supervisors", "/health", "/jobs", "/jobs?state=discarded", "/jobs?state=completed", "/jobs?state=discarded&queue=q1&kind=k3", "/jobs?kind=k3", "/jobs?state=discarded&fingerprint=0000000000000007",
		"/failures", "/failure?id=0000000000000007", "/start?fingerprint=0000000000000007", "/redrives", "/periodic", "/pauses", "/job?id=" + deadID,
	} {
		buffers := buffersOf(t, h, pool, at)
		took := make([]time.Duration, 5)
		for i := range took {
			began := time.Now()
			get(t, h, at).ok(t)
			took[i] = time.Since(began)
		}
		slices.Sort(took)
		if buffers > max(pages/4, 10_000) {
			t.Errorf("%s reads %d buffers, and the table has %d pages", at, buffers, pages)
		}
		t.Logf("%-60s median %4d ms, %7d buffers", at, took[2].Milliseconds(), buffers)
	}
	t.Logf("the table has %d pages", pages)
}
