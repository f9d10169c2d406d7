package harness

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/internal/store"
)

// Alive registers a live supervisor of another process. Without its row, a full sweep would rescue the jobs that it owns.
func (db *DB) Alive(t testing.TB, id string) {
	t.Helper()
	db.exec(t, `insert into drover_supervisors (id, lease_ms, queues) values ($1, 3600000, '{default}')`, id)
}

// Dead inserts a lost supervisor. All jobs that it had claimed are in flight.
func (db *DB) Dead(t testing.TB, id string) {
	t.Helper()
	db.exec(t, `insert into drover_supervisors (id, lease_ms, queues, slots, in_flight, lost_at)
		values ($1, 1000, '{default}', '{"default": 10}', (select coalesce(array_agg(id), '{}') from jobs where claimed_by = $1), now())`, id)
}

// Finished stores a job that ended some time ago. Its id has the same time.
func (db *DB) Finished(t testing.TB, state string, ago time.Duration) string {
	t.Helper()
	return value[string](t, db, `insert into jobs (id, kind, state, created_at, finalized_at, discard_reason)
		select left(drover_ulid_at(now() - $2::interval), 10) || right(drover_ulid(), 16), 'job', $1, now() - $2::interval,
			case when $1 in ('completed', 'cancelled', 'discarded') then now() - $2::interval end, case when $1 = 'discarded' then 'operator' end
		returning id`, state, pg.Interval(ago))
}

// Ended stores a job of a queue that ended some time ago.
func (db *DB) Ended(t testing.TB, queue, state string, ago time.Duration) string {
	t.Helper()
	id := db.Finished(t, state, ago)
	db.exec(t, `update jobs set queue = $2 where id = $1`, id, queue)
	return id
}

// Aged stores n completed jobs that ended two days ago, and returns their ids in the order of the pruner's walk.
func (db *DB) Aged(t testing.TB, n int) []string {
	t.Helper()
	return value[[]string](t, db, `with aged as (
		insert into jobs (id, kind, state, created_at, finalized_at)
		select left(drover_ulid_at(now() - interval '2 days'), 10) || lpad(n::text, 16, '0'), 'job', 'completed', now() - interval '2 days', now() - interval '2 days'
		from generate_series(1, $1) n returning id) select array_agg(id order by id) from aged`, n)
}

// Bury stores n discarded jobs of one queue, with the concurrency keys of the given number of customers.
func (db *DB) Bury(t testing.TB, n, customers int) {
	t.Helper()
	db.exec(t, `
insert into jobs (id, queue, kind, args, state, attempt, finalized_at, discard_reason, class, fingerprint, errors_total, errors, concurrency_key)
select drover_ulid(), 'default', 'job', jsonb_build_object('n', i, 'customer', jsonb_build_object('id', i % $2)), 'discarded', 20,
	now() - (($1 - i) * interval '1 millisecond') - interval '1 hour', 'attempts_exhausted', 'error', 'f' || i % 2, 20,
	jsonb_build_array(jsonb_build_object('class', 'error', 'error', 'down', 'at', now())), 'c' || i % $2
from generate_series(1, $1::int) as i`, n, customers)
	db.exec(t, `analyze jobs`)
}

// Fill stores n jobs. It makes the ids itself: drover_ulid would take a third of the time of the insert.
func (db *DB) Fill(t testing.TB, n int) {
	t.Helper()
	db.exec(t, `insert into jobs (id, kind, priority, scheduled_at, created_at) select (select left(drover_ulid(), 10)) || lpad(n::text, 16, '0'), 'job', 1 + n % 9, now() - n * interval '1 ms', now() from generate_series(1, $1) as n`, n)
}

// Refuses adds a trigger to a table, as an application might. The trigger runs the code for rows that match the condition.
func (db *DB) Refuses(t testing.TB, event, table, condition, code string) {
	t.Helper()
	name := "app_" + strings.ToLower(strings.Fields(event)[0]) + "_" + table
	result := "new"
	if event == "delete" {
		result = "old"
	}
	db.exec(t, fmt.Sprintf(`create function %s() returns trigger language plpgsql as $$ begin if %s then %s; end if; return %s; end $$`, name, condition, code, result))
	db.exec(t, fmt.Sprintf(`create trigger %s before %s on %s for each row execute function %[1]s()`, name, event, table))
}

// Refuse adds a trigger to jobs. The trigger refuses an update if the condition on old and new holds.
func (db *DB) Refuse(t testing.TB, when string) {
	t.Helper()
	db.exec(t, `create or replace function no() returns trigger language plpgsql as $$ begin raise exception 'no'; end $$`)
	db.exec(t, `create or replace trigger no before update on jobs for each row when (`+when+`) execute function no()`)
}

// Unguarded removes the table's CHECKs, as the owner or a restored dump might.
func (db *DB) Unguarded(t testing.TB) {
	t.Helper()
	pgtest.DropChecks(t, db.Pool)
}

// Noted returns the jobs that drover has set aside on a path.
func (db *DB) Noted(t testing.TB, path string) []string {
	t.Helper()
	return value[[]string](t, db, `select coalesce(array_agg(job order by job), '{}') from drover_set_aside where path = $1`, path)
}

// IDsOf runs a query for ids.
func (db *DB) IDsOf(t testing.TB, sql string, args ...any) []string {
	t.Helper()
	rows, _ := db.Query(t.Context(), sql, args...)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s %v: %v", sql, args, err)
	}
	return ids
}

// Get reads one job.
func (db *DB) Get(t *testing.T, id string) *drover.JobInfo {
	t.Helper()
	job, err := db.Client.Job(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return job
}

// EndRow is a job's row after the end of a run.
type EndRow struct {
	State     drover.State
	Reason    *drover.Reason
	Attempt   int
	ClaimSeq  int
	Total     int
	Crashes   int
	Snoozes   int
	Uncounted int
	Delay     time.Duration // from the settle until it is due
	Errors    []drover.RunError
	Finalized bool
}

// EndRow reads the row of a job after the end of a run.
func (db *DB) EndRow(t *testing.T, id string) (r EndRow) {
	t.Helper()
	var errs []byte
	var delay float64
	err := db.QueryRow(t.Context(), `
select state, discard_reason, attempt, claim_seq, errors_total, crashes, coalesce(snoozes, 0), coalesce(uncounted, 0),
	extract(epoch from scheduled_at - coalesce((errors->-1->>'at')::timestamptz, attempted_at, now()))::float8, errors, finalized_at is not null
from jobs where id = $1`, id).Scan(&r.State, &r.Reason, &r.Attempt, &r.ClaimSeq, &r.Total, &r.Crashes, &r.Snoozes, &r.Uncounted, &delay, &errs, &r.Finalized)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(errs, &r.Errors); err != nil {
		t.Fatal(err)
	}
	r.Delay = time.Duration(delay * float64(time.Second))
	return r
}

// Tend does what a supervisor does with its heartbeats, and returns the groups that came back.
func (db *DB) Tend(t testing.TB) []store.Reopened {
	t.Helper()
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	reopened, err := store.Session{Conn: conn.Conn()}.TendFailures(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return reopened
}

// TheGroup returns the only failure group that exists.
func (db *DB) TheGroup(t testing.TB) drover.FailureGroup {
	t.Helper()
	groups, err := db.Client.FailureGroups(t.Context(), drover.FailureFilter{})
	if err != nil || len(groups) != 1 {
		t.Fatalf("groups: %+v, %v; want one", groups, err)
	}
	return groups[0]
}
