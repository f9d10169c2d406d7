package engine_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pg"
)

// Both walks blame rows for the same errors.
func TestRowsFaultIsTheSameInSQL(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	for _, code := range strings.Fields(`08006 0A000 22003 22P05 23505 23503 25006 26000 28000 38000 39000 3D000 3F000 40001 40P01 42501 42P01 44000 53100 53200
		53300 54001 55P03 57014 57P01 58030 P0001 XX000 XX001 XX002`) {
		if got, want := pg.RowsFault(&pgconn.PgError{Code: code}), value[bool](t, db, `select drover_rows_fault($1)`, code); got != want {
			t.Errorf("%s: %v in Go, %v in SQL", code, got, want)
		}
	}
}

// F-15: the walk in SQL.
func TestWalk(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	db.exec(t, `insert into jobs (id, kind) select 'job' || lpad(n::text, 23, '0'), 'job' from generate_series(1, 1000) n`)
	db.exec(t, `alter table jobs add constraint odd check (priority <> 7 or id not in ('job00000000000000000000017', 'job00000000000000000000500', 'job00000000000000000001000'))`)
	var done int
	var refused string
	walk := `select done, (select coalesce(string_agg(right(r->>'id', 4) || ' ' || (r->>'code'), ', ' order by r->>'id'), '') from jsonb_array_elements(refused) r)
		from drover_walk(array(select id from jobs order by id), $1, '7')`
	change := `with changed as (update jobs set priority = ($2 #>> '{}')::int where id = any($1) returning id) select count(*) from changed`
	if err := db.QueryRow(t.Context(), walk, change).Scan(&done, &refused); err != nil {
		t.Fatal(err)
	}
	if want := "0017 23514, 0500 23514, 1000 23514"; done != 997 || refused != want {
		t.Errorf("%d changed, refused: %s; want 997 and %s", done, refused, want)
	}
	if n := value[int](t, db, `select count(*) from jobs where priority = 7`); n != 997 {
		t.Errorf("%d jobs are changed", n)
	}
	db.exec(t, `alter table jobs add constraint nothing check (priority <> 8)`)
	err := db.QueryRow(t.Context(), strings.ReplaceAll(walk, "'7'", "'8'"), change).Scan(&done, &refused)
	if server := (*pgconn.PgError)(nil); !errors.As(err, &server) || server.ConstraintName != "nothing" {
		t.Errorf("where nothing passes: %d, %s, %v", done, refused, err)
	}
	if err := db.QueryRow(t.Context(), walk, `select 1 / 0 from no_such_table`).Scan(&done, &refused); err == nil {
		t.Error("a statement that cannot be executed is the fault of 1000 jobs")
	}
}

// F-15: a refused job is put off or discarded. If its row cannot be changed at all, it is set aside, for a pause that
// doubles each time.
func TestRefuse(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	refuse := func(id string, seq int, later bool) string {
		t.Helper()
		return value[string](t, db, `select coalesce(drover_refuse('claim', $1, $2, 'no', '23514', $3), 'null')`, id, seq, later)
	}
	id := db.enqueue(t, job{1}, nil)
	if got := refuse(id, 1, true); got != "null" {
		t.Errorf("of a claim that is over: %s", got)
	}
	for n := range 12 {
		if got := refuse(id, 0, true); got != "scheduled" {
			t.Fatalf("put off for the %d. time: %s", n+1, got)
		}
		want := fmt.Sprintf(`scheduled_at - clock_timestamp() between interval '1 s' * %d and interval '1 s' * %[1]d + interval '5 s'`, min(15<<n, 3600)-5)
		if !value[bool](t, db, `select `+want+` and class = 'refused' and errors->-1->>'error' = 'claim refused by the database: no' from jobs where id = $1`, id) {
			t.Errorf("put off for the %d. time: %s", n+1, value[string](t, db, `select row_to_json(j)::text from jobs j where id = $1`, id))
		}
	}
	if got := refuse(id, 0, true); got != "discarded" || value[drover.Reason](t, db, `select discard_reason from jobs where id = $1`, id) != drover.ReasonRefused {
		t.Errorf("in the end: %s", got)
	}
	if got := refuse(id, 0, true); got != "null" {
		t.Errorf("once it has ended: %s", got)
	}

	id = db.enqueue(t, job{2}, nil)
	db.exec(t, `update jobs set errors = '[1, "x", null, {"class": ["odd"]}]' where id = $1`, id)
	if got := refuse(id, 0, false); got != "discarded" {
		t.Errorf("with odd errors: %s", got)
	}

	id = db.enqueue(t, job{3}, nil)
	db.exec(t, `create function no() returns trigger language plpgsql as $$ begin raise exception 'no'; end $$`)
	db.exec(t, `create trigger no before update on jobs for each row execute function no()`)
	for n := range 16 {
		if got := refuse(id, 0, n%2 == 0); got != "set aside" {
			t.Fatalf("where nothing may be changed: %s", got)
		}
		want := fmt.Sprintf(`tries = %d and error = 'no' and code = '23514' and retry_at between last_at + interval '1 s' * (%d - 1) and last_at + interval '1 s' * (%[2]d + 1)`, n+1, min(15<<n, 86400))
		if !value[bool](t, db, `select `+want+` from drover_set_aside where path = 'claim' and job = $1`, id) {
			t.Errorf("after %d tries: %s", n+1, value[string](t, db, `select row_to_json(s)::text from drover_set_aside s`))
		}
	}
}
