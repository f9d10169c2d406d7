package drover_test

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/migrations"
)

// listed are the ids of a filter's first page.
func (db *testDB) listed(t testing.TB, f drover.Filter) []string {
	t.Helper()
	page, err := db.client.Jobs(t.Context(), f, "", 1000)
	if err != nil {
		t.Fatalf("%+v: %v", f, err)
	}
	var ids []string
	for _, j := range page.Jobs {
		ids = append(ids, j.ID)
	}
	return ids
}

// D-2, D-8, X-5: every key of a filter picks the same jobs in Go and in SQL, in lists and counts.
func TestEveryKeyOfAFilter(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	const columns = `queue, state, created_at, finalized_at, discard_reason, class, fingerprint, redrive_id, tags, args, errors`
	put := func(values string) string { return db.put(t, columns, values) }
	one := put(`'post', 'discarded', '2030-01-01+00', '2030-02-01+00', 'panic', 'error', 'f1', 'r1', '{vip,eu}', '{"a": {"b": 1, "c": [1, 2]}}',
		'[{"class": "error", "error": "old"}, {"class": "error", "error": "Card 100% DECLINED\\"}, {"class": "operator", "error": "redriven"}]'`)
	two := put(`'post', 'discarded', '2030-01-02+00', '2030-02-02+00', 'crashed', 'crash', 'f2', 'r2', '{eu}', '{"a": {"b": 2}}', '[{"class": "crash", "error": "died"}]'`)
	done := put(`'default', 'completed', '2030-01-03+00', '2030-02-03+00', null, 'error', 'f1', null, null, '[1]', '[{"class": "error", "error": "card declined"}]'`)
	waits := put(`'default', 'available', '2030-01-04+00', null, null, null, null, null, '{}', '{"a": 1}', '[]'`)
	other := value[string](t, db, `insert into jobs (kind, created_at, priority, concurrency_key, unique_key, metadata)
		values ('parcel', '2030-01-05+00', 2, 'acme', 'u1', '{"drover:periodic": {"name": "nightly", "tick": "2030-01-05T00:00:00Z"}}') returning id`)
	day := func(month time.Month, d int) time.Time { return time.Date(2030, month, d, 0, 0, 0, 0, time.UTC) }
	const unknown = "00000000000000000000000000"

	covered := map[string]bool{}
	for _, tc := range []struct {
		filter drover.Filter
		sql    string
		want   []string
	}{
		{drover.Filter{}, `{}`, []string{one, two, done, waits, other}},
		{drover.Filter{All: true}, `{"all": true}`, []string{one, two, done, waits, other}},
		{drover.Filter{IDs: []string{one, waits, one, unknown}}, `{"ids": ["` + one + `", "` + waits + `", "` + unknown + `"]}`, []string{one, waits}},
		{drover.Filter{IDs: []string{}, Queue: "post"}, `{"ids": [], "queue": "post"}`, nil},
		{drover.Filter{Queue: "post"}, `{"queue": "post"}`, []string{one, two}},
		{drover.Filter{Kind: "parcel"}, `{"kind": "parcel"}`, []string{other}},
		{drover.Filter{Key: "acme"}, `{"concurrency_key": "acme"}`, []string{other}},
		{drover.Filter{Priority: 2}, `{"priority": 2}`, []string{other}},
		{drover.Filter{Priority: 5, Queue: "post"}, `{"priority": 5, "queue": "post"}`, []string{one, two}},
		{drover.Filter{State: drover.Completed}, `{"state": "completed"}`, []string{done}},
		{drover.Filter{State: drover.Discarded}, `{"state": "discarded"}`, []string{one, two}},
		{drover.Filter{State: drover.Discarded, Queue: "default"}, `{"state": "discarded", "queue": "default"}`, nil},
		{drover.Filter{State: drover.Available, Reason: "panic"}, `{"state": "available", "reason": "panic"}`, nil},
		{drover.Filter{State: drover.Discarded, Reason: "panic"}, `{"state": "discarded", "reason": "panic"}`, []string{one}},
		{drover.Filter{Reason: drover.ReasonCrashed}, `{"reason": "crashed"}`, []string{two}},
		{drover.Filter{Class: "error"}, `{"class": "error"}`, []string{one, done}},
		{drover.Filter{Fingerprint: "f1"}, `{"fingerprint": "f1"}`, []string{one, done}},
		{drover.Filter{State: drover.Discarded, Fingerprint: "f1"}, `{"state": "discarded", "fingerprint": "f1"}`, []string{one}},
		{drover.Filter{Periodic: "nightly"}, `{"periodic": "nightly"}`, []string{other}},
		{drover.Filter{State: drover.Discarded, Periodic: "nightly"}, `{"state": "discarded", "periodic": "nightly"}`, nil},
		{drover.Filter{Redrive: "r2"}, `{"redrive": "r2"}`, []string{two}},
		{drover.Filter{UniqueKey: "u1"}, `{"unique_key": "u1"}`, []string{other}},
		{drover.Filter{Error: "card"}, `{"error": "card"}`, []string{one, done}},
		{drover.Filter{Error: `100% dEclined\`}, `{"error": "100% dEclined\\"}`, []string{one}},
		{drover.Filter{Error: "old"}, `{"error": "old"}`, nil}, // of the last run
		{drover.Filter{Error: "redriven"}, `{"error": "redriven"}`, nil},
		{drover.Filter{Tags: []string{"eu"}}, `{"tags": ["eu"]}`, []string{one, two}},
		{drover.Filter{Tags: []string{"eu", "vip"}}, `{"tags": ["eu", "vip"]}`, []string{one}},
		{drover.Filter{Args: json.RawMessage(`{"a": {"b": 1}}`)}, `{"args": {"a": {"b": 1}}}`, []string{one}},
		{drover.Filter{Args: json.RawMessage(`{"a": {}}`)}, `{"args": {"a": {}}}`, []string{one, two}},
		{drover.Filter{Args: json.RawMessage(`1`)}, `{"args": 1}`, []string{done}},
		{drover.Filter{CreatedAfter: day(1, 4)}, `{"created_after": "2030-01-04T00:00:00Z"}`, []string{waits, other}},
		{drover.Filter{CreatedBefore: day(1, 2)}, `{"created_before": "2030-01-02T01:00:00+01:00"}`, []string{one}},
		{drover.Filter{FinalizedAfter: day(2, 2)}, `{"finalized_after": "2030-02-02T00:00:00Z"}`, []string{two, done}},
		{drover.Filter{FinalizedBefore: day(2, 2)}, `{"finalized_before": "2030-02-02T00:00:00Z"}`, []string{one}},
		{
			drover.Filter{State: drover.Discarded, FinalizedAfter: day(1, 1), FinalizedBefore: day(2, 2), Queue: "post", Tags: []string{"eu"}},
			`{"state": "discarded", "finalized_after": "2030-01-01T00:00:00Z", "finalized_before": "2030-02-02T00:00:00Z", "queue": "post", "tags": ["eu"]}`,
			[]string{one},
		},
	} {
		for i := range reflect.TypeFor[drover.Filter]().NumField() {
			if !reflect.ValueOf(tc.filter).Field(i).IsZero() {
				covered[reflect.TypeFor[drover.Filter]().Field(i).Name] = true
			}
		}
		slices.Sort(tc.want)
		for from, got := range map[string][]string{
			"Jobs":        db.listed(t, tc.filter),
			"drover_list": db.IDsOf(t, `select id from drover_list($1::jsonb)`, tc.sql),
		} {
			if slices.Sort(got); !slices.Equal(got, tc.want) {
				t.Errorf("%s of %s: %q, want %q", from, tc.sql, got, tc.want)
			}
		}
		n, err := db.client.Count(t.Context(), tc.filter)
		if err != nil || int(n) != len(tc.want) || value[int](t, db, `select drover_count($1::jsonb)`, tc.sql) != len(tc.want) {
			t.Errorf("Count of %s = %d, %v, want %d", tc.sql, n, err, len(tc.want))
		}
	}
	for i := range reflect.TypeFor[drover.Filter]().NumField() {
		if name := reflect.TypeFor[drover.Filter]().Field(i).Name; !covered[name] {
			t.Errorf("no case for %s", name)
		}
	}
}

// D-8: a filter that says what it does not mean is refused, by every function and before anything is read or written.
func TestAWrongFilterIsRefused(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	id := db.enqueue(t, letter{}, nil)
	for _, filter := range []string{
		`null`, `1`, `"kind"`, `[]`, `["state"]`, `{"knid": "letter"}`, `{"State": "discarded"}`, `{"kind": null}`, `{"kind": 1}`, `{"kind": ["letter"]}`, `{"ids": "x"}`,
		`{"ids": null}`, `{"tags": "vip"}`, `{"state": "dead"}`, `{"state": ["discarded"]}`, `{"all": "yes"}`, `{"reason": {}}`, `{"created_after": 0}`, `{"created_after": "soon"}`,
		`{"finalized_before": ""}`, `{"state": "discarded", "limit": 5}`, `{"priority": "5"}`, `{"priority": 0}`, `{"priority": 1.5}`, `{"priority": 10}`,
	} {
		for _, call := range []string{
			`drover_list`, `drover_count`, `drover_cancel_many`, `drover_discard_many`, `drover_delete_many`,
		} {
			args := ""
			if call == "drover_delete_many" {
				args = ", 'delete'"
			}
			_, err := db.Exec(t.Context(), `select `+call+`($1::jsonb`+args+`)`, filter)
			var server *pgconn.PgError
			if !errors.As(err, &server) || server.Code[:2] != "22" {
				t.Errorf("%s(%s): %v", call, filter, err)
			}
		}
	}
	for _, filter := range []drover.Filter{
		{State: "dead"},
		{Kind: "a\x00b"},
		{Queue: "\xff"},
		{IDs: []string{"\x00"}},
		{IDs: make([]string, drover.MaxFilterIDs+1)},
		{Tags: []string{"\xff"}},
		{Args: json.RawMessage(`{`)},
		{Args: json.RawMessage(``)},
		{CreatedAfter: time.Unix(1<<50, 0)},
		{Error: strings.Repeat("x", 1025)},
		{Reason: "\x00"},
		{Reason: "exhausted"},
		{State: drover.Discarded, Reason: "Panic"},
		{Class: "\x00"},
		{Class: "timed out"},
		{Class: "operator"}, // in errors, but no failure's
		{Fingerprint: "\x00"},
		{Redrive: "\x00"},
		{Key: "\x00"},
		{Priority: 10},
		{Priority: -1},
	} {
		_, listErr := db.client.Jobs(t.Context(), filter, "", 0)
		_, countErr := db.client.Count(t.Context(), filter)
		_, cancelErr := db.client.CancelMany(t.Context(), filter, drover.Audit{})
		_, discardErr := db.client.DiscardMany(t.Context(), filter, drover.Audit{})
		_, deleteErr := db.client.DeleteMany(t.Context(), filter, drover.Audit{})
		for _, err := range []error{listErr, countErr, cancelErr, discardErr, deleteErr} {
			if !errors.Is(err, drover.ErrInvalid) {
				t.Errorf("%.100v: %v", filter, err)
			}
		}
	}
	if j := db.Get(t, id); j.State != drover.Available {
		t.Errorf("%+v", j)
	}
}

// Every reason that the table takes is a word of a filter.
func TestAFilterKnowsEveryReason(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	reasons := db.IDsOf(t, `
select regexp_split_to_table((regexp_match(pg_get_constraintdef(oid), '{([a-z_,]+)}'))[1], ',')
from pg_constraint where conname = 'jobs_discard_reason' and conrelid = 'jobs'::regclass`)
	if len(reasons) < 9 {
		t.Fatalf("the table takes %q", reasons)
	}
	for _, reason := range reasons {
		if got := db.listed(t, drover.Filter{Reason: drover.Reason(reason)}); len(got) != 0 {
			t.Errorf("%s: %q", reason, got)
		}
	}
	for _, class := range []drover.Class{"error", "throttled", "panic", "timeout", "decode", "crash"} {
		if got := db.listed(t, drover.Filter{Class: class}); len(got) != 0 {
			t.Errorf("%s: %q", class, got)
		}
	}
}

// D-8: an empty filter means every job where jobs are looked at, and nothing where they are changed.
func TestAnEmptyFilterChangesNothing(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	id := db.enqueue(t, letter{}, nil)
	_, cancelErr := db.client.CancelMany(t.Context(), drover.Filter{}, drover.Audit{})
	_, discardErr := db.client.DiscardMany(t.Context(), drover.Filter{}, drover.Audit{})
	_, deleteErr := db.client.DeleteMany(t.Context(), drover.Filter{}, drover.Audit{})
	for _, err := range []error{cancelErr, discardErr, deleteErr} {
		var invalid *drover.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != "Filter" || !strings.Contains(invalid.Reason, "All") {
			t.Errorf("an empty filter: %v", err)
		}
	}
	for _, filter := range []drover.Filter{{Args: json.RawMessage(`{}`)}, {Tags: []string{}}} {
		if _, err := db.client.CancelMany(t.Context(), filter, drover.Audit{}); !errors.Is(err, drover.ErrInvalid) {
			t.Errorf("a filter of empty values: %v", err)
		}
	}
	for _, filter := range []string{`{}`, `{"all": false}`, `{"args": {}}`, `{"tags": []}`, `{"error": ""}`, `{"error": "", "args": {}, "all": false}`} {
		for _, call := range []string{`drover_cancel_many($1::jsonb)`, `drover_discard_many($1::jsonb)`, `drover_delete_many($1::jsonb, 'delete')`} {
			var server *pgconn.PgError
			if _, err := db.Exec(t.Context(), `select `+call, filter); !errors.As(err, &server) || server.Code != "22023" || !strings.Contains(server.Hint, "all") {
				t.Errorf("%s of %s: %v", call, filter, err)
			}
		}
	}
	if j := db.Get(t, id); j.State != drover.Available {
		t.Errorf("%+v", j)
	}
	if done, err := db.client.CancelMany(t.Context(), drover.Filter{All: true}, drover.Audit{}); err != nil || done.Changed != 1 {
		t.Errorf("all: %+v, %v", done, err)
	}
}

// D-8: a value is a value, whatever it looks like.
func TestFiltersQuote(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	db.enqueue(t, letter{}, nil)
	db.exec(t, `alter table jobs disable trigger jobs_bounds`) // which refuses some of these tags
	hostile := []string{`'`, `''`, `\`, `\'`, `' or true --`, `'; drop table jobs; --`, `"`, `%s`, `%L %I %%`, `$1`, `{a,"b`, `null`, `j.state = 'discarded'`, "a\nb", `/*`, `é—`, `?`, `:x`}
	for _, text := range hostile {
		raw, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		id := value[string](t, db, `
insert into jobs (id, kind, queue, state, finalized_at, discard_reason, class, fingerprint, redrive_id, tags, args, errors)
values (left('x' || regexp_replace($1, '[^ -~]', '', 'g') || md5('y'), 24) || '''/', left($1, 100), $1, 'discarded', now(), 'panic', $1, $1, $1, array[$1], to_jsonb($1::text), jsonb_build_array(jsonb_build_object('class', 'error', 'error', $1)))
returning id`, text)
		for _, f := range []drover.Filter{
			{IDs: []string{id}},
			{Kind: text},
			{Queue: text},
			{Fingerprint: text},
			{Redrive: text},
			{Tags: []string{text}},
			{Args: raw},
			{State: drover.Discarded, Error: text, Kind: text},
			{State: drover.Discarded, Kind: text},
		} {
			if got := db.listed(t, f); !slices.Equal(got, []string{id}) {
				t.Errorf("%q: %+v picks %q, want %q", text, f, got, id)
			}
			if n, err := db.client.Count(t.Context(), f); err != nil || n != 1 {
				t.Errorf("%q: %+v counts %d, %v", text, f, n, err)
			}
		}
		// Go refuses these words, psql may write them.
		if got := db.IDsOf(t, `select id from drover_list(jsonb_build_object('class', $1::text))`, text); !slices.Equal(got, []string{id}) {
			t.Errorf("class %q picks %q, want %q", text, got, id)
		}
		if got := db.IDsOf(t, `select id from drover_list(jsonb_build_object('reason', $1::text))`, text); len(got) != 0 {
			t.Errorf("reason %q picks %q", text, got)
		}
		// Places in a list too.
		const at = "2030-01-01T00:00:00+00:00/"
		page, err := db.client.Jobs(t.Context(), drover.Filter{State: drover.Discarded}, at+id, 1)
		if err != nil || len(page.Jobs) != 1 {
			t.Errorf("after %q: %+v, %v", id, page, err)
		}
		if _, err := db.client.Jobs(t.Context(), drover.Filter{}, id, 1); err != nil {
			t.Errorf("after %q: %v", id, err)
		}
		for after, f := range map[string]drover.Filter{text: {State: drover.Discarded}, at + text: {State: drover.Discarded}, id: {State: drover.Discarded}, "yesterday/" + id: {State: drover.Discarded}, at + id: {All: true}, text + " ": {All: true}} {
			if _, err := db.client.Jobs(t.Context(), f, after, 1); !errors.Is(err, drover.ErrInvalid) {
				t.Errorf("a place that is none, %q: %v", after, err)
			}
			if _, err := db.Exec(t.Context(), `select drover_discard_many($1, after => $2)`, f, after); pg.SQLState(err) != "22023" {
				t.Errorf("a verb from a place that is none, %q: %v", after, err)
			}
		}
	}
	if n := value[int](t, db, `select count(*) from jobs`); n != 1+len(hostile) {
		t.Errorf("%d jobs", n)
	}
	for _, text := range hostile {
		if done, err := db.client.DeleteMany(t.Context(), drover.Filter{State: drover.Discarded, Kind: text}, drover.Audit{}); err != nil || done.Changed != 1 {
			t.Errorf("delete %q: %+v, %v", text, done, err)
		}
	}
}

// Times mean the same in a session that writes them in another way.
func TestFilterTimesInAnyDateStyle(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	db.put(t, "created_at, state, finalized_at, discard_reason", "'2030-03-04 05:06:07.000001+00', 'discarded', '2030-03-04 05:06:07.000001+00', 'panic'")
	for _, style := range []string{"ISO, DMY", "SQL, DMY", "SQL, MDY", "Postgres, DMY", "German"} {
		for _, zone := range []string{"UTC", "Asia/Kolkata", "America/New_York", "Europe/Dublin"} {
			conn := db.planner(t)
			if _, err := conn.Exec(t.Context(), `select set_config('datestyle', $1, false), set_config('timezone', $2, false)`, style, zone); err != nil {
				t.Fatal(err)
			}
			var from, before, next int
			var cursor string
			err := conn.QueryRow(t.Context(), `select drover_count('{"created_after": "2030-03-04T05:06:07.000001Z"}'), drover_count('{"created_before": "2030-03-04T05:06:07.000001Z"}'),
	(select drover_cursor('{"reason": "panic"}', finalized_at, id) from jobs)`).Scan(&from, &before, &cursor)
			if err == nil {
				err = conn.QueryRow(t.Context(), `select count(*) from drover_list('{"reason": "panic"}', $1)`, cursor).Scan(&next)
			}
			if err != nil || from != 1 || before != 0 || next != 0 {
				t.Errorf("%s, %s: from %d, before %d, behind %s %d, %v", style, zone, from, before, cursor, next, err)
			}
		}
	}
}

// newDatabase makes a database with these options, and migrates it.
func newDatabase(t *testing.T, options string) *testDB {
	t.Helper()
	admin := dbOn(pgtest.NewPool(t), nil)
	name := pgtest.Schema(admin.Pool)
	admin.exec(t, `create database `+name+` template template0 `+options)
	t.Cleanup(func() {
		if _, err := admin.Exec(context.Background(), `drop database `+name+` with (force)`); err != nil {
			t.Error(err)
		}
	})
	pool := admin.samePool(t, func(c *pgxpool.Config) {
		c.ConnConfig.Database = name
		c.ConnConfig.RuntimeParams["client_encoding"] = "UTF8"
	})
	db := dbOn(pool, harness.NewClient(t, pool, drover.Config{}))
	db.exec(t, `create schema `+name)
	if err := migrations.Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	return db
}

// In a Turkish database, lower('I') is another letter than i. The case of an error's letters does not matter all the same.
func TestErrorsInATurkishDatabase(t *testing.T) {
	t.Parallel()
	slow(t)
	if !value[bool](t, newTestDB(t), `select exists (select from pg_collation where collname = 'tr-x-icu')`) {
		t.Fatal("this server was built without ICU, so the test cannot run")
	}
	db := newDatabase(t, `encoding utf8 locale_provider icu icu_locale 'tr-TR' locale 'C'`)
	db.exec(t, `insert into jobs (id, kind, errors) values (repeat('1', 26), 'k', '[{"class": "error", "error": "CARD DECLINED in Überlingen"}]')`)
	for _, text := range []string{"card declined IN", "CARD DECLINED IN", "ÜBERLINGEN", "überlingen"} {
		if got := db.listed(t, drover.Filter{Error: text}); len(got) != 1 {
			t.Errorf("%s: %q", text, got)
		}
		if !value[bool](t, db, `select drover_fits(repeat('1', 26), $1, null, null, null)`, text) {
			t.Errorf("%s: no job fits", text)
		}
	}
}
