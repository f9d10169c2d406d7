package pgtest

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// OddRow is a row of the table jobs that drover never writes. People, older versions and damaged disks make such rows.
type OddRow struct {
	Name            string
	Columns, Values string // the two lists of an insert
	Damaged         bool   // call Damage after the insert
	Unreadable      string // a part of JobInfo.Unreadable, "" if that is empty
	Slow            bool   // its text is too large to send, and the server needs a second to find that out
}

const (
	dead     = `state, discard_reason, class, finalized_at, `
	deadNow  = `'discarded', 'panic', 'error', now(), `
	goodPart = `{"class": "error", "error": "fine", "at": "2031-01-01T00:00:00Z", "attempt": 1}`
	deep     = `(repeat('{"a":', 11000) || '1' || repeat('}', 11000))`
	huge     = `jsonb_build_object('x', (select jsonb_agg(('1e131071')::numeric) from generate_series(1, 9000)))`
	allParts = "args, errors, metadata, retry, tags: "
	long     = `(select string_agg(md5(n::text), '') from generate_series(1, 400) n)`
)

// OddRows returns odd rows. A statement that reads many jobs must not fail because of one of them.
func OddRows() []OddRow {
	rows := []OddRow{
		{Name: "errors of scalars", Columns: dead + "errors", Values: deadNow + `'[1, "x", null, true, [], {}, ` + goodPart + `]'`, Unreadable: "errors: 5 of 7 entries"},
		{Name: "errors of other types", Columns: dead + "errors", Values: deadNow + `'[` + goodPart + `, {"class": ["odd"], "error": {"a": 1}, "attempt": "x", "at": 5}]'`, Unreadable: "errors: 1 of 2"},
		{Name: "errors at no time", Columns: dead + "errors", Values: deadNow + `'[` + goodPart + `, {"class": "error", "error": "e", "at": "yesterday"}]'`, Unreadable: "errors: 1 of 2"},
		{Name: "errors in the year 294276", Columns: dead + "errors", Values: deadNow + `'[{"class": "error", "error": "e", "at": "294276-01-01T00:00:00Z"}]'`, Unreadable: "errors: 1 of 1"},
		{Name: "errors of huge numbers", Columns: dead + "errors", Values: deadNow + `'[{"class": "error", "error": "e", "duration_ms": 1e300, "delay_ms": 1.5}]'`, Unreadable: "errors: 1 of 1"},
		{Name: "errors of long waits", Columns: dead + "errors", Values: deadNow + `'[{"class": "error", "error": "e", "duration_ms": 9223372036854775807, "delay_ms": 9223372036854775807}]'`},
		{Name: "errors with odd keys", Columns: dead + "errors", Values: deadNow + `'[{"class": "error", "error": "a \"q\" [{,", "": 1, "Error": 5}, ` + goodPart + `]'`, Unreadable: "errors: 1 of 2"},
		{Name: "errors too deep", Columns: dead + "errors", Values: deadNow + `('[` + goodPart + `, {"class": "error", "error": ' || ` + deep + ` || '}]')::jsonb`, Unreadable: "errors: not an array, or nested too deep"},
		{Name: "errors that are an object", Columns: dead + "errors", Values: deadNow + `'{"class": "error"}'`, Unreadable: "errors: not an array"},
		{Name: "errors that are a word", Columns: dead + "errors", Values: deadNow + `'"error"'`, Unreadable: "errors: not an array"},
		{Name: "errors that are null", Columns: dead + "errors", Values: deadNow + `'null'`},
		{Name: "errors of an unfinished job", Columns: "errors, errors_total", Values: `'{"a": [1]}', 3`, Unreadable: "errors"},
		{Name: "metadata too deep", Columns: "metadata", Values: deep + `::jsonb`, Unreadable: "metadata: nested too deep"},
		{Name: "args too deep", Columns: "args", Values: deep + `::jsonb`, Unreadable: "args: nested too deep"},
		{Name: "retry too deep", Columns: "retry", Values: deep + `::jsonb`, Unreadable: "retry: nested too deep"},
		{Name: "metadata that is a number, odd retry", Columns: "metadata, retry", Values: `'5', '[1e400]'`},
		{Name: "args too large", Columns: dead + "args", Values: deadNow + huge, Unreadable: allParts, Slow: true},
		{Name: "errors too large", Columns: dead + "errors", Values: deadNow + `jsonb_build_array(jsonb_build_object('class', 'error', 'error', ` + huge + `))`, Unreadable: allParts, Slow: true},
		{Name: "null tags", Columns: "tags", Values: `'{a,null}'`, Unreadable: "tags: 1 of 2 are null"},
		{Name: "tags in two dimensions", Columns: "tags", Values: `'{{a,b},{c,null}}'`, Unreadable: "tags"},
		{Name: "no tags", Columns: "tags", Values: `'{}'`},
		{Name: "the largest counters", Columns: "attempt, claim_seq, errors_total, crashes, redrives, snoozes, uncounted, max_attempts, timeout_ms, last_delay_ms", Values: `2147483647, 2147483647, 2147483647, 32767, 32767, 2147483647, 2147483647, 2147483647, 9223372036854775807, 9223372036854775807`},
		{Name: "the smallest counters", Columns: "attempt, claim_seq, errors_total, crashes, redrives, snoozes, uncounted, max_attempts, timeout_ms, last_delay_ms", Values: `-2147483648, -2147483648, -2147483648, -32768, -32768, -2147483648, -2147483648, -2147483648, -9223372036854775808, -9223372036854775808`},
		{Name: "an odd priority", Columns: "priority", Values: `32000`},
		{Name: "a long queue", Columns: "queue", Values: `repeat('q', 2000)`},
		{Name: "control characters", Columns: "queue, claimed_by, tags", Values: `E'a\n\x1b[31m\t', E'\r', array[E'\x01']`},
		{Name: "an unknown state", Columns: "state, discard_reason", Values: `'nowhere', 'because'`},
		{Name: "running and owned by nobody", Columns: "state", Values: `'running'`},
		{Name: "a discarded job that has not ended", Columns: "state, discard_reason", Values: `'discarded', 'panic'`},
		{Name: "limits that are infinite", Columns: "expires_at, retry_until", Values: `'infinity', '-infinity'`},
		{Name: "an id of wide characters", Columns: "id", Values: `'ééééééééééééé'`},
		{Name: "damaged errors", Columns: dead + "errors", Values: deadNow + `jsonb_build_array(jsonb_build_object('class', 'error', 'error', ` + long + `))`, Damaged: true, Unreadable: allParts},
		{Name: "damaged args", Columns: "args", Values: `jsonb_build_object('x', ` + long + `)`, Damaged: true, Unreadable: allParts},
		{Name: "damaged metadata", Columns: "metadata", Values: `jsonb_build_object('x', ` + long + `)`, Damaged: true, Unreadable: allParts},
		{Name: "damaged tags", Columns: "tags", Values: `array(select md5(n::text) from generate_series(1, 1000) n)`, Damaged: true, Unreadable: allParts},
	}
	for _, at := range []struct{ value, unreadable string }{
		{"infinity", " is infinity"},
		{"-infinity", " is -infinity"},
		{"0044-03-15 12:00+00 BC", " BC"},
		{"4713-01-01+00 BC", " BC"},
		{"0001-01-01+00", ""},
		{"9999-12-31 23:59:59.999999+00", ""},
		{"10000-01-01+00", " is 10000"},
		{"294276-12-31+00", " is 294276"},
	} {
		rows = append(rows,
			OddRow{Name: "scheduled at " + at.value, Columns: "scheduled_at, state", Values: "'" + at.value + "', 'scheduled'", Unreadable: at.unreadable},
			OddRow{Name: "created at " + at.value, Columns: "created_at", Values: "'" + at.value + "'", Unreadable: at.unreadable},
			OddRow{Name: "discarded at " + at.value, Columns: "state, discard_reason, class, finalized_at", Values: "'discarded', 'panic', 'error', '" + at.value + "'", Unreadable: at.unreadable},
			OddRow{Name: "completed at " + at.value, Columns: "state, finalized_at", Values: "'completed', '" + at.value + "'", Unreadable: at.unreadable},
			OddRow{Name: "claimed at " + at.value, Columns: "state, claimed_by, attempted_at", Values: "'running', 'x', '" + at.value + "'", Unreadable: at.unreadable},
		)
	}
	return rows
}

// DropChecks removes the CHECKs of jobs and the trigger jobs_bounds, so that the table takes odd rows.
func DropChecks(tb testing.TB, pool *pgxpool.Pool) {
	tb.Helper()
	exec(tb, pool, `do $$ declare name text; begin
		for name in select conname from pg_constraint where conrelid = 'jobs'::regclass and contype = 'c' loop execute format('alter table jobs drop constraint %I', name); end loop;
		drop trigger if exists jobs_bounds on jobs;
		alter table jobs alter args set storage external, alter errors set storage external, alter metadata set storage external, alter tags set storage external;
	end $$`)
}

// PutOdd stores the row, of kind odd, and returns its id. The table must have lost its CHECKs.
func PutOdd(tb testing.TB, pool *pgxpool.Pool, row OddRow) (id string) {
	tb.Helper()
	insert := fmt.Sprintf(`insert into jobs (kind, %s) values ('odd', %s) returning id`, row.Columns, row.Values)
	if err := pool.QueryRow(context.Background(), insert).Scan(&id); err != nil {
		tb.Fatalf("%s: %v", row.Name, err)
	}
	return id
}

// Damage deletes all TOAST chunks of the table jobs, as a failing disk might. The present values that are stored outside of
// their rows can no longer be read. The role must be a superuser.
func Damage(tb testing.TB, pool *pgxpool.Pool) {
	tb.Helper()
	exec(tb, pool, `do $$ declare toast regclass := (select reltoastrelid from pg_class where oid = 'jobs'::regclass); begin
		set local allow_system_table_mods = on;
		update pg_class set relkind = 'r' where oid = toast;
		execute format('truncate %s', toast);
		update pg_class set relkind = 't' where oid = toast;
	end $$`)
}

func exec(tb testing.TB, pool *pgxpool.Pool, sql string) {
	tb.Helper()
	if _, err := pool.Exec(context.Background(), sql); err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
}
