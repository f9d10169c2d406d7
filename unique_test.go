package drover_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/oklog/ulid/v2"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

// parcel is the job of these tests.
type parcel struct {
	N    int    `json:"n"`
	To   string `json:"to,omitempty"`
	Note any    `json:"note,omitempty"`
}

func (parcel) Kind() string { return "job" }

// On every way into the queue the second job like it is the first one, and the receipt names it.
func TestUniqueKeepsOthersOut(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	for i, first := range db.Ways(t) {
		opts := &drover.EnqueueOpts{Unique: &drover.Unique{}}
		there, err := first.Enqueue(t.Context(), parcel{N: i}, opts)
		if err != nil || there.Existing {
			t.Fatalf("%s: %+v, %v", first.Name, there, err)
		}
		for _, second := range db.Ways(t) {
			r, err := second.Enqueue(t.Context(), parcel{N: i}, opts)
			if err != nil || r != (drover.Receipt{ID: there.ID, Existing: true}) {
				t.Errorf("%s, then %s: %+v, %v", first.Name, second.Name, r, err)
			}
			if r, err := second.Enqueue(t.Context(), parcel{N: i}, nil); err != nil || r.Existing {
				t.Errorf("%s: a job that is not unique: %+v, %v", second.Name, r, err)
			}
		}
		var id, result string
		err = db.QueryRow(t.Context(), `select job_id, existing::text from drover_enqueue('job', jsonb_build_object('n', $1::int), uniqueness => '{}')`, i).Scan(&id, &result)
		if err != nil || id != there.ID || result != "true" {
			t.Errorf("SQL: %s, %s, %v", id, result, err)
		}
		own := ulid.Make().String()
		if ids := db.IDsOf(t, `select drover_enqueue_many(jsonb_build_array(jsonb_build_object('id', $1::text, 'kind', 'job', 'args', jsonb_build_object('n', $2::int), 'uniqueness', '{}'::jsonb)))`, own, i); len(ids) != 1 || ids[0] != own {
			t.Errorf("SQL, many: %v", ids)
		}
	}
	if n := value[int](t, db, `select count(*) from jobs where unique_key is not null and unique_scope = 'ended' and unique_until = 'infinity'`); n != 5 {
		t.Errorf("%d unique jobs, want 5", n)
	}
}

// Two jobs are the same by their kind, and by the fields that Unique names.
func TestUniqueBy(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	type enqueue struct {
		args drover.Args
		opts drover.EnqueueOpts
	}
	long := strings.Repeat("x", 1000)
	for name, c := range map[string]struct {
		u    drover.Unique
		a, b enqueue
		same bool
	}{
		"all args, the same":            {drover.Unique{}, enqueue{parcel{N: 1, To: "a"}, drover.EnqueueOpts{}}, enqueue{parcel{N: 1, To: "a"}, drover.EnqueueOpts{}}, true},
		"all args, another one":         {drover.Unique{}, enqueue{parcel{N: 1, To: "a"}, drover.EnqueueOpts{}}, enqueue{parcel{N: 1, To: "b"}, drover.EnqueueOpts{}}, false},
		"the order of fields":           {drover.Unique{}, enqueue{payload{json.RawMessage(`{"a": 1, "b": [2]}`)}, drover.EnqueueOpts{}}, enqueue{payload{json.RawMessage(`{"b":[2],"a":1}`)}, drover.EnqueueOpts{}}, true},
		"another kind":                  {drover.Unique{}, enqueue{parcel{N: 1}, drover.EnqueueOpts{}}, enqueue{anyKind("other"), drover.EnqueueOpts{}}, false},
		"a field":                       {drover.Unique{By: []string{"n"}}, enqueue{parcel{N: 1, To: "a"}, drover.EnqueueOpts{}}, enqueue{parcel{N: 1, To: "b"}, drover.EnqueueOpts{}}, true},
		"a field, another value":        {drover.Unique{By: []string{"n"}}, enqueue{parcel{N: 1}, drover.EnqueueOpts{}}, enqueue{parcel{N: 2}, drover.EnqueueOpts{}}, false},
		"two fields":                    {drover.Unique{By: []string{"n", "to"}}, enqueue{parcel{N: 1, To: "a", Note: 1}, drover.EnqueueOpts{}}, enqueue{parcel{N: 1, To: "a", Note: 2}, drover.EnqueueOpts{}}, true},
		"no args":                       {drover.Unique{AnyArgs: true}, enqueue{parcel{N: 1}, drover.EnqueueOpts{}}, enqueue{parcel{N: 2}, drover.EnqueueOpts{}}, true},
		"another queue":                 {drover.Unique{}, enqueue{parcel{N: 1}, drover.EnqueueOpts{}}, enqueue{parcel{N: 1}, drover.EnqueueOpts{Queue: "post"}}, true},
		"another queue, which counts":   {drover.Unique{Queue: true}, enqueue{parcel{N: 1}, drover.EnqueueOpts{}}, enqueue{parcel{N: 1}, drover.EnqueueOpts{Queue: "post"}}, false},
		"another key":                   {drover.Unique{}, enqueue{parcel{N: 1}, drover.EnqueueOpts{Key: "a"}}, enqueue{parcel{N: 1}, drover.EnqueueOpts{Key: "b"}}, true},
		"another key, which counts":     {drover.Unique{Key: true, AnyArgs: true}, enqueue{parcel{N: 1}, drover.EnqueueOpts{Key: "a"}}, enqueue{parcel{N: 1}, drover.EnqueueOpts{Key: "b"}}, false},
		"the key alone":                 {drover.Unique{Key: true, AnyArgs: true}, enqueue{parcel{N: 1}, drover.EnqueueOpts{Key: "a"}}, enqueue{parcel{N: 2}, drover.EnqueueOpts{Key: "a"}}, true},
		"long args, the same":           {drover.Unique{}, enqueue{parcel{Note: long}, drover.EnqueueOpts{}}, enqueue{parcel{Note: long}, drover.EnqueueOpts{}}, true},
		"long args, another one":        {drover.Unique{}, enqueue{parcel{Note: long + "a"}, drover.EnqueueOpts{}}, enqueue{parcel{Note: long + "b"}, drover.EnqueueOpts{}}, false},
		"args that look like a queue":   {drover.Unique{Queue: true, AnyArgs: true}, enqueue{payload{1}, drover.EnqueueOpts{Queue: `x" key "y`}}, enqueue{payload{1}, drover.EnqueueOpts{Queue: "x", Key: "y"}}, false},
		"numbers of many digits differ": {drover.Unique{}, enqueue{payload{json.RawMessage(`{"n": 12345678901234567890}`)}, drover.EnqueueOpts{}}, enqueue{payload{json.RawMessage(`{"n": 12345678901234567891}`)}, drover.EnqueueOpts{}}, false},
	} {
		first := db.Unique(t, c.a.args, c.u, c.a.opts)
		second := db.Unique(t, c.b.args, c.u, c.b.opts)
		if first.Existing || second.Existing != c.same || c.same && second.ID != first.ID {
			t.Errorf("%s: %+v and %+v", name, first, second)
		}
		if longest := value[int](t, db, `select max(octet_length(unique_key)) from jobs`); longest > 400 {
			t.Errorf("%s: a key of %d bytes", name, longest)
		}
		db.exec(t, `delete from jobs`)
	}
}

// A list of fields makes another key than all the args, also if it names all of them.
func TestUniqueKeysAreReadable(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	opts := drover.EnqueueOpts{Queue: "post", Key: "customer 7"}
	for want, u := range map[string]drover.Unique{
		`"job" {"n": 7}`:                      {},
		`"job" by {"n": 7}`:                   {By: []string{"n"}},
		`"job"`:                               {AnyArgs: true},
		`"job" queue "post" key "customer 7"`: {AnyArgs: true, Queue: true, Key: true},
		`"job" by {"n": 7} key "customer 7"`:  {By: []string{"n"}, Key: true},
		`"job" {"n": 7} queue "post"`:         {Queue: true, Until: drover.UntilStarted},
	} {
		r := db.Unique(t, parcel{N: 7}, u, opts)
		if got := db.Get(t, r.ID).UniqueKey; got != want || r.Existing {
			t.Errorf("%+v: %s, want %s", u, got, want)
		}
		if ids := db.listed(t, drover.Filter{UniqueKey: want}); len(ids) != 1 || ids[0] != r.ID {
			t.Errorf("a filter by %s finds %v", want, ids)
		}
	}
	r := db.Unique(t, parcel{To: strings.Repeat("y", 300)}, drover.Unique{})
	if got := value[string](t, db, `select unique_key from jobs where id = $1`, r.ID); !strings.HasPrefix(got, `"job" sha256 `) || len(got) != 13+64 {
		t.Errorf("a long key is %s", got)
	}
}

// A sleeping supervisor hears of a job whose time has been moved to now.
func TestReplaceWakes(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	u := drover.Unique{By: []string{"n"}, OnConflict: drover.ReplaceWaiting}
	db.Unique(t, parcel{N: 1}, u, drover.EnqueueOpts{Delay: time.Hour})
	if !woken(t, db, func() { db.Unique(t, parcel{N: 1}, u) }) {
		t.Error("nobody is woken by a job that was moved to now")
	}
	db.Unique(t, parcel{N: 2}, u, drover.EnqueueOpts{Delay: time.Hour})
	if !woken(t, db, func() {
		if err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
			_, err := db.client.EnqueueTx(t.Context(), tx, parcel{N: 2}, &drover.EnqueueOpts{Unique: &u})
			return err
		}); err != nil {
			t.Error(err)
		}
	}) {
		t.Error("nobody is woken by a transaction that moved one to now")
	}
}

// A sleeping supervisor hears of a job that a debounce makes earlier: its longest wait ends before the new job's delay.
// The job stays in its own queue.
func TestDebounceWakes(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	u := drover.Unique{By: []string{"n"}, OnConflict: drover.Debounce(2 * time.Second)}
	late := drover.EnqueueOpts{Unique: &u, Delay: time.Hour, Queue: "elsewhere"}
	for i, way := range db.Ways(t) {
		db.Unique(t, parcel{N: i}, u, drover.EnqueueOpts{Delay: time.Second})
		db.exec(t, `update jobs set scheduled_at = now() + interval '1 day'`) // as an operator may do
		if !woken(t, db, func() {
			r, err := way.Enqueue(t.Context(), parcel{N: i}, &late)
			if err != nil || !r.Debounced {
				t.Errorf("%s: %+v, %v", way.Name, r, err)
			}
		}) {
			t.Errorf("%s: nobody is woken by a job that became due earlier", way.Name)
		}
	}
	quiet := late
	quiet.DisableNotify = true
	db.exec(t, `update jobs set scheduled_at = now() + interval '1 day'`)
	if woken(t, db, func() { okay(db.client.Enqueue(t.Context(), parcel{N: 0}, &quiet)) }) {
		t.Error("notified in spite of DisableNotify")
	}
}

// In one batch the second of two that are alike meets the first.
func TestUniqueTwiceInABatch(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	there := db.Unique(t, parcel{N: 9}, drover.Unique{})
	replace := &drover.EnqueueOpts{Unique: &drover.Unique{By: []string{"n"}, OnConflict: drover.ReplaceWaiting}}
	for _, enqueue := range []func([]drover.EnqueueItem) ([]drover.Receipt, error){
		func(items []drover.EnqueueItem) ([]drover.Receipt, error) {
			return db.client.EnqueueMany(t.Context(), items)
		},
		func(items []drover.EnqueueItem) (r []drover.Receipt, err error) {
			err = pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
				r, err = db.client.EnqueueManyTx(t.Context(), tx, items)
				return err
			})
			return r, err
		},
	} {
		got, err := enqueue([]drover.EnqueueItem{
			{parcel{N: 2}, &drover.EnqueueOpts{Unique: &drover.Unique{}}},
			{parcel{N: 1}, nil},
			{parcel{N: 9}, &drover.EnqueueOpts{Unique: &drover.Unique{}}},
			{parcel{N: 1}, &drover.EnqueueOpts{Unique: &drover.Unique{}}},
			{parcel{N: 2}, &drover.EnqueueOpts{Unique: &drover.Unique{}, ID: ulid.Make().String()}},
			{parcel{N: 3, To: "a"}, replace},
			{parcel{N: 1}, &drover.EnqueueOpts{Tags: []string{"t"}}},
			{parcel{N: 3, To: "b"}, replace},
			{parcel{N: 3, To: "c"}, replace},
		})
		if err != nil || len(got) != 9 {
			t.Fatalf("%v, %v", got, err)
		}
		want := []drover.Receipt{
			{ID: got[0].ID},
			{ID: got[1].ID},
			{ID: there.ID, Existing: true},
			{ID: got[3].ID},
			{ID: got[0].ID, Existing: true},
			{ID: got[5].ID},
			{ID: got[6].ID},
			{ID: got[5].ID, Existing: true, Replaced: true},
			{ID: got[5].ID, Existing: true, Replaced: true},
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%+v\nwant %+v", got, want)
		}
		if last := value[string](t, db, `select args->>'to' from jobs where id = $1`, got[5].ID); last != "c" {
			t.Errorf("the last one is %s", last)
		}
		if n := value[int](t, db, `select count(*) from jobs`); n != 6 {
			t.Errorf("%d jobs, want 6", n)
		}
		db.exec(t, `delete from jobs where id <> $1`, there.ID)
	}
}

// One id for two unique jobs is a conflict, as it is for other jobs.
func TestUniqueJobsWithOneID(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	opts := &drover.EnqueueOpts{ID: ulid.Make().String(), Unique: &drover.Unique{}}
	_, err := db.client.EnqueueMany(t.Context(), []drover.EnqueueItem{{parcel{N: 1}, opts}, {parcel{N: 2}, opts}})
	if !errors.Is(err, drover.ErrIDConflict) || value[int](t, db, `select count(*) from jobs`) != 0 {
		t.Errorf("%v", err)
	}
	got, err := db.client.EnqueueMany(t.Context(), []drover.EnqueueItem{{parcel{N: 1}, opts}, {parcel{N: 1}, opts}})
	if err != nil || len(got) != 2 || got[0] != (drover.Receipt{ID: opts.ID}) || got[1] != (drover.Receipt{ID: opts.ID, Existing: true}) {
		t.Errorf("%+v, %v", got, err)
	}
}

// A job that the database has refused to let run is tried again immediately if it gets other args.
func TestReplacedJobIsNotSetAside(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	opts := &drover.EnqueueOpts{Unique: &drover.Unique{By: []string{"n"}, OnConflict: drover.ReplaceWaiting}}
	id := db.enqueue(t, parcel{N: 1, To: "a"}, opts)
	db.exec(t, `insert into drover_set_aside (path, job, error, code, retry_at) values ('claim', $1, 'no', 'P0001', now() + interval '1 h')`, id)
	if again := db.enqueue(t, parcel{N: 1, To: "b"}, opts); again != id || value[int](t, db, `select count(*) from drover_set_aside`) != 0 {
		t.Error("it is still set aside")
	}
}

// The id goes first: a repeated enqueue finds its own job after the job has ended and another one
// has taken the key.
func TestUniqueWithAnID(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	id := ulid.Make().String()
	opts := drover.EnqueueOpts{ID: id}
	if r := db.Unique(t, parcel{N: 1}, drover.Unique{}, opts); r != (drover.Receipt{ID: id}) {
		t.Fatalf("%+v", r)
	}
	if _, err := db.client.Cancel(t.Context(), id, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	next := db.Unique(t, parcel{N: 1}, drover.Unique{})
	for _, way := range db.Ways(t) {
		r, err := way.Enqueue(t.Context(), parcel{N: 1}, &drover.EnqueueOpts{ID: id, Unique: &drover.Unique{}})
		if err != nil || r != (drover.Receipt{ID: id, Existing: true}) || next.Existing {
			t.Errorf("%s: %+v, %v", way.Name, r, err)
		}
		if _, err := way.Enqueue(t.Context(), parcel{N: 2}, &drover.EnqueueOpts{ID: id, Unique: &drover.Unique{}}); !errors.Is(err, drover.ErrIDConflict) {
			t.Errorf("%s: another job of that id: %v", way.Name, err)
		}
	}
}

// a sender that repeats an enqueue after an unknown outcome finds its own job, also if the job
// has been replaced since, and so has other args.
func TestUniqueAgainAfterAReplacement(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	for i, way := range db.Ways(t) {
		opts := &drover.EnqueueOpts{ID: ulid.Make().String(), Delay: time.Hour, Unique: &drover.Unique{By: []string{"n"}, OnConflict: drover.ReplaceWaiting}}
		if _, err := way.Enqueue(t.Context(), parcel{N: i, To: "ann"}, opts); err != nil {
			t.Fatal(err)
		}
		replaced := db.Unique(t, parcel{N: i, To: "ada"}, *opts.Unique)
		again, err := way.Enqueue(t.Context(), parcel{N: i, To: "ann"}, opts)
		if err != nil || again != (drover.Receipt{ID: opts.ID, Existing: true}) || !replaced.Replaced {
			t.Errorf("%s: %+v, %+v, %v", way.Name, replaced, again, err)
		}
		if to := value[string](t, db, `select args->>'to' from jobs where id = $1`, opts.ID); to != "ada" {
			t.Errorf("%s: the repeated enqueue has changed the job to %s", way.Name, to)
		}
	}
}

// Bad input is refused before anything is written, with the field named: in Go, and from SQL.
func TestUniqueBadInput(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	for name, c := range map[string]struct {
		args  drover.Args
		u     drover.Unique
		opts  drover.EnqueueOpts
		field string
	}{
		"a field that the args do not have": {parcel{N: 1}, drover.Unique{By: []string{"n", "N"}}, drover.EnqueueOpts{}, "Unique.By"},
		"a field that was left out":         {parcel{N: 1}, drover.Unique{By: []string{"to"}}, drover.EnqueueOpts{}, "Unique.By"},
		"an empty list":                     {parcel{N: 1}, drover.Unique{By: []string{}}, drover.EnqueueOpts{}, "Unique.By"},
		"too many fields":                   {parcel{N: 1}, drover.Unique{By: make([]string, 33)}, drover.EnqueueOpts{}, "Unique.By"},
		"fields of a number":                {payload{7}, drover.Unique{By: []string{"n"}}, drover.EnqueueOpts{}, "Unique.By"},
		"fields, and none":                  {parcel{N: 1}, drover.Unique{By: []string{"n"}, AnyArgs: true}, drover.EnqueueOpts{}, "Unique.By"},
		"a key that the job does not have":  {parcel{N: 1}, drover.Unique{Key: true}, drover.EnqueueOpts{}, "Unique.Key"},
		"an unknown end":                    {parcel{N: 1}, drover.Unique{Until: "tomorrow"}, drover.EnqueueOpts{}, "Unique.Until"},
		"no period":                         {parcel{N: 1}, drover.Unique{Until: drover.UntilPassed(0)}, drover.EnqueueOpts{}, "Unique.Until"},
		"a negative period":                 {parcel{N: 1}, drover.Unique{Until: drover.UntilPassed(-time.Hour)}, drover.EnqueueOpts{}, "Unique.Until"},
		"a number without its unit":         {parcel{N: 1}, drover.Unique{Until: drover.UntilPassed(5)}, drover.EnqueueOpts{}, "Unique.Until"},
		"an unknown mode":                   {parcel{N: 1}, drover.Unique{OnConflict: "drop"}, drover.EnqueueOpts{}, "Unique.OnConflict"},
		"no longest wait":                   {parcel{N: 1}, drover.Unique{OnConflict: drover.Debounce(0)}, drover.EnqueueOpts{Delay: time.Hour}, "Unique.OnConflict"},
		"debounce without a time":           {parcel{N: 1}, drover.Unique{OnConflict: drover.Debounce(time.Hour)}, drover.EnqueueOpts{}, "Unique.OnConflict"},
	} {
		u := c.u
		c.opts.Unique = &u
		for _, way := range db.Ways(t) {
			_, err := way.Enqueue(t.Context(), c.args, &c.opts)
			if !namesFields(err, c.field) && !namesFields(err, "items[0]."+c.field) {
				t.Errorf("%s: %s: %v, want %s", name, way.Name, err, c.field)
			}
		}
	}
	for uniqueness, field := range map[string]string{
		`[]`: "uniqueness", `{"of": 1}`: `uniqueness: has no {"of": 1}`, `{"by": ["x"]}`: "uniqueness.by: the args have no field 'x'", `{"by": []}`: "uniqueness.by", `{"by": "n"}`: "uniqueness.by",
		`{"by": [1]}`: "uniqueness.by", `{"by": ["n"], "any_args": true}`: "uniqueness.by", `{"any_args": 1}`: "uniqueness.any_args", `{"queue": "x"}`: "uniqueness.queue",
		`{"key": 1}`: "uniqueness.key", `{"key": true}`: "uniqueness.key", `{"until": "x"}`: "uniqueness.until", `{"until": "0 s"}`: "uniqueness.until",
		`{"until": "-1 hour"}`: "uniqueness.until", `{"until": "9000 years"}`: "uniqueness.until", `{"on_conflict": "drop"}`: "uniqueness.on_conflict",
		`{"on_conflict": "debounce", "longest": "1 hour"}`: "uniqueness.on_conflict", `{"on_conflict": "debounce"}`: "uniqueness.longest",
		`{"by": ["n"], "until": 5}`: "uniqueness.until: not a string", `{"on_conflict": 1}`: "uniqueness.on_conflict: not a string", `{"on_conflict": "debounce", "longest": 5}`: "uniqueness.longest: not a string",
		`{"by": [` + strings.Repeat(`"n", `, 32) + `"n"]}`: "uniqueness.by: 33 fields; at most 32",
		`{"longest": "1 hour"}`:                            "uniqueness.longest", `7`: "uniqueness: not",
	} {
		_, err := db.Exec(t.Context(), `select drover_enqueue('job', '{"n": 1}', uniqueness => $1::jsonb)`, uniqueness)
		if pg.SQLState(err) != "22023" || !strings.Contains(err.Error(), "drover: "+field) {
			t.Errorf("SQL: %s: %v, want %s", uniqueness, err, field)
		}
		_, err = db.Exec(t.Context(), `select drover_enqueue_many(jsonb_build_array(jsonb_build_object('id', drover_ulid(), 'kind', 'job'),
			jsonb_build_object('id', drover_ulid(), 'kind', 'job', 'args', '{"n": 1}'::jsonb, 'uniqueness', $1::jsonb)))`, uniqueness)
		if pg.SQLState(err) != "22023" || !strings.Contains(err.Error(), "drover: batch[1]."+field) {
			t.Errorf("SQL, many: %s: %v, want %s", uniqueness, err, field)
		}
	}
	// A JSON array of 90 KB can be a gigabyte of text: it is refused before that is written.
	_, err := db.Exec(t.Context(), `select drover_enqueue('job', (select jsonb_agg('1e131071'::numeric) from generate_series(1, 4000)), uniqueness => '{}')`)
	if pg.SQLState(err) != "22023" || !strings.Contains(err.Error(), "args") {
		t.Errorf("args that are huge as text: %v", err)
	}
	if n := value[int](t, db, `select count(*) from jobs`); n > 0 {
		t.Errorf("%d jobs were stored", n)
	}
}

// namesFields reports whether an error is one of InvalidError, with this field.
func namesFields(err error, field string) bool {
	var invalid *drover.InvalidError
	return errors.As(err, &invalid) && invalid.Field == field || err != nil && strings.Contains(err.Error(), "drover: "+field+": ")
}

// A role that may execute the functions, and nothing else, may enqueue unique jobs.
func TestUniqueFromAProducersRole(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	schema := pgtest.Schema(db.Pool)
	role := "unique_" + schema
	db.exec(t, `create role `+role)
	t.Cleanup(func() {
		if _, err := db.Exec(context.Background(), `drop owned by `+role+` cascade; drop role `+role); err != nil {
			t.Error(err)
		}
	})
	db.exec(t, `grant usage on schema `+schema+` to `+role)
	db.exec(t, `grant execute on function drover_enqueue, drover_enqueue_many, drover_enqueue_unique, drover_wake to `+role)
	pool := db.samePool(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["role"] = role })
	producer := dbOn(pool, harness.NewClient(t, pool, drover.Config{}))
	first := producer.Unique(t, parcel{N: 1}, drover.Unique{})
	receipts, err := producer.client.EnqueueMany(t.Context(), []drover.EnqueueItem{{parcel{N: 1}, nil}, {parcel{N: 1}, &drover.EnqueueOpts{Unique: &drover.Unique{}}}})
	if err != nil || receipts[0].Existing || receipts[1] != (drover.Receipt{ID: first.ID, Existing: true}) {
		t.Errorf("%+v, %v", receipts, err)
	}
	db.exec(t, `update jobs set state = 'completed', finalized_at = now(), unique_scope = 'period', unique_until = now() where id = $1`, first.ID)
	if r := producer.Unique(t, parcel{N: 1}, drover.Unique{}); r.Existing {
		t.Errorf("%+v after the period", r)
	}
	if _, err := pool.Exec(t.Context(), `select drover_replace_waiting('x', '{}', 'k')`); pg.SQLState(err) != "42501" {
		t.Errorf("the role may change jobs by their ids: %v", err)
	}
}

// 64 producers race, single, in bulk and in transactions, some of which roll back, as a whole
// or to a savepoint: one row, and every receipt names it.
func TestManyProducersOfOneUniqueJob(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	ways := db.Ways(t)
	for round := range 10 {
		var wg sync.WaitGroup
		go_ := make(chan struct{})
		told := make([]drover.Receipt, 64)
		for i := range told {
			wg.Go(func() {
				<-go_
				opts := &drover.EnqueueOpts{Unique: &drover.Unique{By: []string{"n"}, Until: []drover.UniqueUntil{drover.UntilEnded, drover.UntilStarted, drover.UntilPassed(time.Hour)}[round%3]}}
				switch i % 16 {
				case 7: // it is stored, or found, by a transaction that rolls back
					db.rolledBack(t, parcel{N: round, To: fmt.Sprint(i)}, opts)
					return
				case 15: // and here what follows a savepoint is rolled back, and the rest committed
					db.rolledBackInPart(t, parcel{N: round, To: fmt.Sprint(i)}, opts)
					return
				}
				r, err := ways[i%len(ways)].Enqueue(t.Context(), parcel{N: round, To: fmt.Sprint(i)}, opts)
				if err != nil {
					t.Errorf("%s: %v", ways[i%len(ways)].Name, err)
				}
				told[i] = r
			})
		}
		close(go_)
		wg.Wait()
		id := value[string](t, db, `select min(id) from jobs where args->>'n' = $1::text having count(*) = 1`, fmt.Sprint(round))
		stored := 0
		for i, r := range told {
			if i%8 == 7 {
				continue
			}
			if r.ID != id {
				t.Errorf("round %d: producer %d was told of %s, the row is %s", round, i, r.ID, id)
			}
			if !r.Existing {
				stored++
			}
		}
		if stored != 1 {
			t.Errorf("round %d: %d receipts say that it was stored", round, stored)
		}
	}
}

// rolledBack enqueues a job in a transaction that comes to nothing.
func (db *testDB) rolledBack(t testing.TB, args drover.Args, opts *drover.EnqueueOpts) {
	t.Helper()
	tx, err := db.Begin(t.Context())
	if err == nil {
		_, err = db.client.EnqueueTx(t.Context(), tx, args, opts)
		err = errors.Join(err, tx.Rollback(t.Context()))
	}
	if err != nil {
		t.Error(err)
	}
}

// rolledBackInPart enqueues a job behind a savepoint, and goes back to that.
func (db *testDB) rolledBackInPart(t testing.TB, args drover.Args, opts *drover.EnqueueOpts) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		part, err := tx.Begin(t.Context())
		if err == nil {
			_, err = db.client.EnqueueTx(t.Context(), part, args, opts)
			err = errors.Join(err, part.Rollback(t.Context()))
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// Producers race with sessions that end, redrive and delete the jobs that they store: there is
// never more than one, and no receipt names a job that was not there.
func TestUniqueJobsThatComeAndGo(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	// The table itself could not show afterwards which jobs there ever were.
	db.exec(t, `create table seen (id text primary key)`)
	db.exec(t, `create function seen() returns trigger language plpgsql as $$ begin insert into seen values (new.id); return null; end $$`)
	db.exec(t, `create trigger seen after insert on jobs for each row execute function seen()`)
	ways := db.Ways(t)
	var over atomic.Bool
	var wg, others sync.WaitGroup
	for _, verb := range []string{
		`update jobs set state = 'completed', finalized_at = now(), claimed_by = null where id = any(array(select id from jobs where finalized_at is null and random() < 0.7 order by id for update skip locked))`,
		`delete from jobs where id = any(array(select id from jobs where finalized_at is not null and random() < 0.2 order by id for update skip locked))`,
		`update jobs set state = 'cancelled', finalized_at = now() where id = any(array(select id from jobs where finalized_at is null and random() < 0.2 order by id for update skip locked))`,
	} {
		others.Go(func() {
			for !over.Load() {
				if _, err := db.Exec(t.Context(), verb); err != nil {
					t.Error(err)
				}
			}
		})
	}
	others.Go(func() {
		for !over.Load() {
			ids := db.IDsOf(t, `select id from jobs where state in ('cancelled') limit 5`)
			for _, id := range ids {
				if err := db.client.RedriveJob(t.Context(), id, nil, drover.Audit{}); err != nil && !errors.Is(err, drover.ErrState) && !errors.Is(err, drover.ErrNotFound) {
					t.Error(err)
				}
			}
			if n := value[int](t, db, `select coalesce(max(n), 0) from (select count(*) as n from jobs where finalized_at is null group by unique_key) x`); n > 1 {
				t.Errorf("%d jobs with one key", n)
			}
		}
	})
	for i := range 16 {
		wg.Go(func() {
			for n := range 60 {
				r, err := ways[i%len(ways)].Enqueue(t.Context(), parcel{N: n % 3}, &drover.EnqueueOpts{Unique: &drover.Unique{}})
				if err != nil {
					t.Error(err)
				} else if !value[bool](t, db, `select exists (select from seen where id = $1)`, r.ID) {
					t.Errorf("%+v names no job", r)
				}
			}
		})
	}
	wg.Wait()
	over.Store(true)
	others.Wait()
}

// An open transaction that has changed the job in the way, such as a handler's, holds up no enqueue
// that keeps the job. An enqueue that would change it waits.
func TestUniqueNextToAnOpenTransaction(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	for name, change := range map[string]string{
		"a completion": `update jobs set state = 'completed', finalized_at = now(), claimed_by = null where args = '{"n": 1}'`,
		"an edit":      `update jobs set tags = '{x}' where args = '{"n": 1}'`,
		"a deletion":   `delete from jobs where args = '{"n": 1}'`,
	} {
		there := db.Unique(t, parcel{N: 1}, drover.Unique{})
		end := db.Hold(t, change)
		for _, way := range db.Ways(t) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			r, err := way.Enqueue(ctx, parcel{N: 1}, &drover.EnqueueOpts{Unique: &drover.Unique{}})
			if cancel(); err != nil || r != (drover.Receipt{ID: there.ID, Existing: true}) {
				t.Errorf("%s: %s: %+v, %v", name, way.Name, r, err)
			}
		}
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), `set local lock_timeout = '50 ms'`); err != nil {
			t.Fatal(err)
		}
		_, err = db.client.EnqueueTx(t.Context(), tx, parcel{N: 1}, &drover.EnqueueOpts{Unique: &drover.Unique{OnConflict: drover.ReplaceWaiting}})
		if pg.SQLState(err) != "55P03" {
			t.Errorf("%s: a replacement did not wait: %v", name, err)
		}
		_ = tx.Rollback(t.Context())
		end()
	}
}

// waiting waits until a session waits for a lock in this schema's table of jobs or for another
// transaction.
func (db *testDB) waiting(t testing.TB) {
	t.Helper()
	db.Soon(t, 20*time.Second, "nobody waits", `select exists (select from pg_locks l join pg_locks j using (pid) where not l.granted and j.relation = 'jobs'::regclass)`)
}

// A job that another transaction has stored and not yet committed: the second waits, and then finds
// it, or stores its own.
func TestUniqueWaitsForItsStorer(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	for i, way := range db.Ways(t) {
		for _, commits := range []bool{true, false} {
			n := 10*i + map[bool]int{true: 1}[commits]
			tx, err := db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			first, err := db.client.EnqueueTx(t.Context(), tx, parcel{N: n}, &drover.EnqueueOpts{Unique: &drover.Unique{}})
			if err != nil {
				t.Fatal(err)
			}
			var second drover.Receipt
			done := make(chan error)
			go func() {
				var err error
				second, err = way.Enqueue(t.Context(), parcel{N: n}, &drover.EnqueueOpts{Unique: &drover.Unique{}})
				done <- err
			}()
			db.waiting(t)
			if commits {
				err = tx.Commit(t.Context())
			} else {
				err = tx.Rollback(t.Context())
			}
			if err := errors.Join(err, <-done); err != nil {
				t.Fatal(err)
			}
			if commits && second != (drover.Receipt{ID: first.ID, Existing: true}) || !commits && (second.Existing || second.ID == first.ID) {
				t.Errorf("%s: committed %v: %+v and %+v", way.Name, commits, first, second)
			}
		}
	}
}

// Two transactions that store the same two keys in opposite orders deadlock. The error says so, and
// 40P01.
func TestUniqueDeadlockIsNamed(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	enqueue := func(tx pgx.Tx, n int) error {
		_, err := db.client.EnqueueTx(t.Context(), tx, parcel{N: n}, &drover.EnqueueOpts{Unique: &drover.Unique{}})
		return err
	}
	var txs [2]pgx.Tx
	for i := range txs {
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		if err := enqueue(tx, i); err != nil {
			t.Fatal(err)
		}
		txs[i] = tx
	}
	other := make(chan error)
	go func() { other <- errors.Join(enqueue(txs[1], 0), txs[1].Rollback(t.Context())) }()
	db.waiting(t)
	err := errors.Join(enqueue(txs[0], 1), txs[0].Rollback(t.Context()))
	if err == nil {
		err = <-other
	} else if err := <-other; err != nil {
		t.Errorf("both were ended: %v", err)
	}
	if !errors.Is(err, drover.ErrUniqueDeadlock) || pg.SQLState(err) != "40P01" {
		t.Errorf("%v", err)
	}
}

// Batches that come with the same keys in opposite orders do not deadlock, or go through
// nevertheless.
func TestUniqueBatchesInOppositeOrders(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newTestDB(t)
	forth := make([]drover.EnqueueItem, 2500)
	for i := range forth {
		forth[i] = drover.EnqueueItem{parcel{N: i}, &drover.EnqueueOpts{Unique: &drover.Unique{}}}
	}
	if stored := db.enqueueBothWays(t, forth); !slices.Equal(stored, []int{0, 0, 0, len(forth)}) || value[int](t, db, `select count(*) from jobs`) != len(forth) {
		t.Errorf("stored %d", stored)
	}
}

// One statement takes its keys in order, whatever the order of its batch.
func TestOneUniqueBatchTakesItsKeysInOrder(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	var wg sync.WaitGroup
	for i := range 8 {
		items := make([]drover.EnqueueItem, 200)
		for n := range items {
			items[n] = drover.EnqueueItem{parcel{N: n}, &drover.EnqueueOpts{Unique: &drover.Unique{}}}
		}
		if i%2 == 1 {
			slices.Reverse(items)
		}
		wg.Go(func() {
			for range 10 {
				// It rolls back, so that the next one has to insert too.
				tx, err := db.Begin(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := db.client.EnqueueManyTx(t.Context(), tx, items); err != nil {
					t.Error(err)
				}
				_ = tx.Rollback(t.Context())
			}
		})
	}
	wg.Wait()
}

// In a repeatable read transaction the job that somebody else has stored since its snapshot is
// Postgres' 40001.
func TestUniqueUnderRepeatableRead(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		db.exec(t, `delete from jobs`)
		tx, err := db.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), `select from jobs limit 1`); err != nil {
			t.Fatal(err)
		}
		db.Unique(t, parcel{N: 1}, drover.Unique{})
		_, err = db.client.EnqueueTx(t.Context(), tx, parcel{N: 1}, &drover.EnqueueOpts{Unique: &drover.Unique{}})
		if pg.SQLState(err) != "40001" {
			t.Errorf("%s: %v", level, err)
		}
		_ = tx.Rollback(t.Context())
	}
}

// An index of the application's that refuses the job is an error, and is not taken for a job that
// is there; neither is a trigger that drops it.
func TestUniqueAndTheApplicationsOwnRules(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `create unique index one_addressee on jobs ((args->>'to'))`)
	db.Unique(t, parcel{N: 1, To: "x"}, drover.Unique{})
	for _, way := range db.Ways(t) {
		r, err := way.Enqueue(t.Context(), parcel{N: 2, To: "x"}, &drover.EnqueueOpts{Unique: &drover.Unique{}})
		if pg.SQLState(err) != "23505" || r.Existing {
			t.Errorf("%s: %+v, %v", way.Name, r, err)
		}
	}
	db.exec(t, `create function drops() returns trigger language plpgsql as $$ begin return null; end $$`)
	db.exec(t, `create trigger drops before insert on jobs for each row execute function drops()`)
	for _, way := range db.Ways(t) {
		if r, err := way.Enqueue(t.Context(), parcel{N: 3, To: "y"}, &drover.EnqueueOpts{Unique: &drover.Unique{}}); !errors.Is(err, drover.ErrNotStored) {
			t.Errorf("%s: %+v, %v", way.Name, r, err)
		}
	}
	db.exec(t, `create or replace function drops() returns trigger language plpgsql as $$ begin new.id := drover_ulid(); return new; end $$`)
	if r, err := db.client.Enqueue(t.Context(), parcel{N: 3, To: "z"}, &drover.EnqueueOpts{Unique: &drover.Unique{}}); !errors.Is(err, drover.ErrNotStored) {
		t.Errorf("a trigger that changes the id: %+v, %v", r, err)
	}
}

// Until started, in a transaction: the job that is there does not start before the transaction has
// ended, so its handler sees what the transaction has written. A claim that is not committed makes
// the enqueue wait.
func TestUniqueUntilStartedWaitsForTheTransaction(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	opts := &drover.EnqueueOpts{Unique: &drover.Unique{Until: drover.UntilStarted}}
	there := db.Unique(t, parcel{N: 1}, *opts.Unique)
	s := db.Stopped(t, drover.SupervisorConfig{})
	const doc = `{"id": "01KAJ4Y8Q3N6T0V5B7C9D1E2FA", "kind": "job", "args": {"n": 1}, "uniqueness": {"until": "started"}}`
	psql := func(sql string) func(pgx.Tx) (string, error) {
		return func(tx pgx.Tx) (id string, err error) {
			err = tx.QueryRow(t.Context(), sql).Scan(&id)
			return id, err
		}
	}
	for way, enqueue := range map[string]func(pgx.Tx) (string, error){
		"EnqueueTx": func(tx pgx.Tx) (string, error) {
			r, err := db.client.EnqueueTx(t.Context(), tx, parcel{N: 1}, opts)
			return r.ID, err
		},
		"drover_enqueue":                 psql(`select job_id from drover_enqueue('job', '{"n": 1}', uniqueness => '{"until": "started"}')`),
		"drover_enqueue, no wake":        psql(`select job_id from drover_enqueue('job', '{"n": 1}', uniqueness => '{"until": "started"}', wake => false)`),
		"drover_enqueue_unique, no wake": psql(`select job_id from drover_enqueue_unique('` + doc + `', wake => false)`),
		"drover_enqueue_many, no wake":   psql(`select '` + there.ID + `' from drover_enqueue_many('[` + doc + `]', wake => false)`),
	} {
		err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
			if id, err := enqueue(tx); err != nil || id != there.ID {
				t.Fatalf("%s: %s, %v", way, id, err)
			}
			if runs := s.Claim(t); len(runs) != 0 {
				t.Fatalf("%s: it started before the transaction that relies on it has committed", way)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	// Enqueue commits immediately, so it does not wait for a transaction that has locked the job.
	end := db.Hold(t, `select from jobs where id = $1 for update`, there.ID)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if r, err := db.client.Enqueue(ctx, parcel{N: 1}, opts); err != nil || r != (drover.Receipt{ID: there.ID, Existing: true}) {
		t.Errorf("Enqueue: %+v, %v", r, err)
	}
	end()
	// A claim that is not committed yet.
	end = db.Hold(t, `update jobs set state = 'running', claimed_by = 's', claim_seq = 1, attempt = 1, attempted_at = now(), unique_until = null where id = (select id from jobs where id = $1 for update)`, there.ID)
	got := make(chan drover.Receipt)
	go func() {
		var r drover.Receipt
		if err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) (err error) {
			r, err = db.client.EnqueueTx(t.Context(), tx, parcel{N: 1}, opts)
			return err
		}); err != nil {
			t.Error(err)
		}
		got <- r
	}()
	db.waiting(t)
	end() // the claim has failed: it still waits
	if r := <-got; r.ID != there.ID {
		t.Errorf("%+v, want %s", r, there.ID)
	}
}

// A redrive of a job next to an enqueue that is not committed waits, and then finds the key taken.
func TestRedriveRacesWithAUniqueEnqueue(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	dead := db.Unique(t, parcel{N: 1}, drover.Unique{})
	if _, err := db.client.Discard(t.Context(), dead.ID, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if r, err := db.client.EnqueueTx(t.Context(), tx, parcel{N: 1}, &drover.EnqueueOpts{Unique: &drover.Unique{}}); err != nil || r.Existing {
		t.Fatal(r, err)
	}
	done := make(chan error)
	go func() { done <- db.client.RedriveJob(t.Context(), dead.ID, nil, drover.Audit{}) }()
	db.waiting(t)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, drover.ErrState) {
		t.Errorf("RedriveJob = %v, want ErrState", err)
	}
	if db.Get(t, dead.ID).State != drover.Discarded {
		t.Error("two jobs with one key")
	}
}

// The reply to an enqueue is lost; repeated, without an id of the caller's, it finds the job.
func TestUniqueAgainAfterTheReplyWasLost(t *testing.T) {
	t.Parallel()
	w := &wire{}
	db := newTestDBOn(t, pgtest.NewMigratedPool(t, w.edit), drover.Config{})
	db.Unique(t, parcel{N: 0}, drover.Unique{}) // the statements are cached
	for i := 1; i < 10; i++ {
		w.loseReplyTo(func([]byte) bool { return true })
		if _, err := db.client.Enqueue(t.Context(), parcel{N: i}, &drover.EnqueueOpts{Unique: &drover.Unique{}}); err == nil {
			t.Fatal("the reply was not lost")
		}
		r := db.Unique(t, parcel{N: i}, drover.Unique{})
		if there := value[string](t, db, `select id from jobs where args = jsonb_build_object('n', $1::int)`, i); r != (drover.Receipt{ID: there, Existing: true}) {
			t.Errorf("%+v, want %s", r, there)
		}
	}
	batch := []drover.EnqueueItem{{parcel{N: 20}, &drover.EnqueueOpts{Unique: &drover.Unique{}}}, {parcel{N: 21}, &drover.EnqueueOpts{Unique: &drover.Unique{}}}}
	w.loseReplyTo(func(written []byte) bool { return bytes.Contains(written, []byte("commit\x00")) })
	if _, err := db.client.EnqueueMany(t.Context(), batch); err == nil {
		t.Fatal("the reply was not lost")
	}
	receipts, err := db.client.EnqueueMany(t.Context(), batch)
	if err != nil || !receipts[0].Existing || !receipts[1].Existing {
		t.Errorf("%+v, %v", receipts, err)
	}
}

// BenchmarkUniqueRates compares enqueues with and without Unique: two producers of single jobs, and
// batches of 1,000. The variants take turns round by round, and each reports the median of the
// ratios to the first one of its round. ADR 41 has the numbers.
//
//	go test -run '^$' -bench UniqueRates -benchtime 9x .
func BenchmarkUniqueRates(b *testing.B) {
	pool := pgtest.NewMigratedPool(b, func(c *pgxpool.Config) { c.MaxConns = 4 })
	db := dbOn(pool, harness.NewClient(b, pool, drover.Config{}))
	variants := []struct {
		name string
		opts func() *drover.EnqueueOpts
	}{
		{"plain", func() *drover.EnqueueOpts { return nil }},
		{"options", func() *drover.EnqueueOpts { return &drover.EnqueueOpts{MaxAttempts: 5} }},
		{"unique", func() *drover.EnqueueOpts { return &drover.EnqueueOpts{Unique: &drover.Unique{}} }},
		{"unique-by", func() *drover.EnqueueOpts { return &drover.EnqueueOpts{Unique: &drover.Unique{By: []string{"n"}}} }},
	}
	n := 0
	single := func(opts func() *drover.EnqueueOpts, jobs int) {
		var wg sync.WaitGroup
		for range 2 {
			first := n
			n += jobs
			wg.Go(func() {
				for i := range jobs {
					if _, err := db.client.Enqueue(b.Context(), parcel{N: first + i, To: "a"}, opts()); err != nil {
						b.Error(err)
					}
				}
			})
		}
		wg.Wait()
	}
	bulk := func(opts func() *drover.EnqueueOpts, jobs int) {
		for range jobs / 1000 {
			items := make([]drover.EnqueueItem, 1000)
			for i := range items {
				items[i] = drover.EnqueueItem{parcel{N: n, To: "a"}, opts()}
				n++
			}
			if _, err := db.client.EnqueueMany(b.Context(), items); err != nil {
				b.Error(err)
			}
		}
	}
	rates, ratios, wal := map[string][]float64{}, map[string][]float64{}, map[string][]float64{}
	b.ResetTimer()
	for b.Loop() {
		for _, kind := range []struct {
			name string
			do   func(func() *drover.EnqueueOpts, int)
			jobs int // of each producer
			all  int
			base string
		}{{"single", single, 500, 1000, "plain"}, {"bulk", bulk, 4000, 4000, "options"}} {
			rate := map[string]float64{}
			for _, v := range variants {
				db.exec(b, `truncate jobs`)
				db.exec(b, `checkpoint`)
				lsn := value[string](b, db, `select pg_current_wal_insert_lsn()::text`)
				began := time.Now()
				kind.do(v.opts, kind.jobs)
				rate[v.name] = float64(kind.all) / time.Since(began).Seconds()
				wal[kind.name+" "+v.name] = append(wal[kind.name+" "+v.name], value[float64](b, db, `select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), $1::pg_lsn)::float8`, lsn)/float64(kind.all))
				rates[kind.name+" "+v.name] = append(rates[kind.name+" "+v.name], rate[v.name])
			}
			for name, r := range rate {
				ratios[kind.name+" "+name] = append(ratios[kind.name+" "+name], r/rate[kind.base])
			}
		}
	}
	median := func(all []float64) float64 { return slices.Sorted(slices.Values(all))[len(all)/2] }
	for _, name := range slices.SortedFunc(maps.Keys(rates), func(x, y string) int { return cmp.Compare(x, y) }) {
		fmt.Printf("%-18s %8.0f jobs/s  ratio %.2f (%.2f to %.2f)  %4.0f B of WAL\n", name, median(rates[name]), median(ratios[name]),
			slices.Min(ratios[name]), slices.Max(ratios[name]), median(wal[name]))
		b.ReportMetric(median(ratios[name]), strings.ReplaceAll(name, " ", "-")+"-ratio")
	}
}
