package drover_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/internal/tier"
)

// oddFilters are filters of every shape; those with all pick every job of kind odd.
var oddFilters = []struct { //nolint:gochecknoglobals // a table
	filter drover.Filter
	all    bool
}{
	{drover.Filter{}, true},
	{drover.Filter{All: true}, true},
	{drover.Filter{Kind: "odd"}, false},
	{drover.Filter{State: drover.Discarded}, false},
	{drover.Filter{Reason: drover.ReasonPanic, Class: "error"}, false},
	{drover.Filter{Error: "fine"}, false},
	{drover.Filter{State: drover.Discarded, Error: "fine"}, false},
	{drover.Filter{Tags: []string{"a"}}, false},
	{drover.Filter{Args: json.RawMessage(`{"x": 1}`)}, false},
	{drover.Filter{Reason: drover.ReasonPanic, Tags: []string{"a"}, Args: json.RawMessage(`{"x": 1}`), Error: "x"}, false},
	{drover.Filter{CreatedAfter: time.Unix(0, 0), CreatedBefore: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)}, false},
	{drover.Filter{State: drover.Discarded, FinalizedAfter: time.Unix(0, 0)}, false},
	{drover.Filter{Queue: "default", State: drover.Completed}, false},
	{drover.Filter{Periodic: "x"}, false},
}

// readAll reads everything that operators read, and returns the jobs of kind odd by their ids.
func (db *testDB) readAll(t *testing.T, size int) map[string]drover.JobInfo {
	t.Helper()
	seen := map[string]drover.JobInfo{}
	for i, f := range oddFilters {
		n := 0
		for after := ""; ; {
			page, err := db.client.Jobs(t.Context(), f.filter, after, size)
			if err != nil {
				t.Fatalf("List, filter %d, after %q: %v", i, after, err)
			}
			if _, err := json.Marshal(page); err != nil {
				t.Errorf("filter %d: %v", i, err)
			}
			for _, j := range page.Jobs {
				if n++; i == 0 {
					seen[j.ID] = j
				}
			}
			if after = page.Next; after == "" {
				break
			}
		}
		count, err := db.client.Count(t.Context(), f.filter)
		if err != nil || int(count) != n {
			t.Errorf("Count, filter %d: %d, %v; listed %d", i, count, err, n)
		}
		if want := value[int](t, db, `select count(*) from jobs`); f.all && n != want {
			t.Errorf("filter %d: %d jobs of %d", i, n, want)
		}
	}
	groups, err := db.client.Summary(t.Context())
	if err != nil {
		t.Errorf("Summary: %v", err)
	}
	counts, err := db.client.Counts(t.Context())
	if err != nil {
		t.Errorf("Counts: %v", err)
	}
	s := &drover.Snapshot{}
	if size < 1000 { // many queries, and none that depends on a filter
		if s, err = db.client.Snapshot(t.Context()); err != nil {
			t.Fatalf("Snapshot: %v", err)
		}
	}
	for _, doc := range []any{groups, counts, s} {
		if _, err := json.Marshal(doc); err != nil {
			t.Error(err)
		}
	}
	for _, n := range s.NotSeen {
		t.Errorf("Snapshot did not see %+v", n)
	}
	db.exec(t, `select id, last_error, first_failed_at, last_failed_at, discarded_at::text, args, errors, redrives from discarded_jobs`)
	db.exec(t, `select * from discarded_summary`)
	db.exec(t, `select * from job_counts`)
	for id := range seen {
		if !drover.IsID(id) {
			continue
		}
		j, err := db.client.Job(t.Context(), id)
		if err != nil {
			t.Errorf("Job: %v", err)
			continue
		}
		if _, err := json.Marshal(j); err != nil {
			t.Error(err)
		}
	}
	return seen
}

// F-15: a row with unexpected contents is shown as far as it can be read, and does not keep others from being shown.
func TestOddRowsAreRead(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newTestDB(t)
	pgtest.DropChecks(t, db.Pool)
	good := db.enqueue(t, letter{To: "x"}, &drover.EnqueueOpts{Tags: []string{"a"}})
	for _, row := range pgtest.OddRows() {
		if row.Slow {
			continue
		}
		id := pgtest.PutOdd(t, db.Pool, row)
		if row.Damaged {
			pgtest.Damage(t, db.Pool)
		}
		seen := db.readAll(t, 1000)
		if t.Failed() {
			t.Fatal(row.Name)
		}
		if j := seen[id]; !strings.Contains(j.Unreadable, row.Unreadable) || row.Unreadable == "" && j.Unreadable != "" {
			t.Errorf("%s: unreadable %q, want %q", row.Name, j.Unreadable, row.Unreadable)
		}
		db.exec(t, `delete from jobs where id = $1`, id)
	}
	want := map[string]pgtest.OddRow{}
	for _, damaged := range []bool{true, false} {
		for _, row := range pgtest.OddRows() {
			if row.Damaged == damaged && !row.Slow {
				want[pgtest.PutOdd(t, db.Pool, row)] = row
			}
		}
		if damaged {
			pgtest.Damage(t, db.Pool)
		}
	}
	for _, size := range []int{999, 7} {
		seen := db.readAll(t, size)
		for id, row := range want {
			if j := seen[id]; !strings.Contains(j.Unreadable, row.Unreadable) || row.Unreadable == "" && j.Unreadable != "" || j.Kind != "odd" {
				t.Errorf("among all, %s: %q, want %q", row.Name, j.Unreadable, row.Unreadable)
			}
		}
		if j := seen[good]; j.Unreadable != "" || string(j.Args) != `{"to": "x"}` || !slices.Equal(j.Tags, []string{"a"}) {
			t.Errorf("the good job: %+v", j)
		}
	}
}

// F-15: rows whose text is larger than the server can send are listed without it.
func TestHugeRowsAreRead(t *testing.T) {
	t.Parallel()
	tier.Nightly(t, "the server writes rows of over a gigabyte as text, some ten times")
	db := newTestDB(t)
	pgtest.DropChecks(t, db.Pool)
	good := db.enqueue(t, letter{To: "x"}, nil)
	want := map[string]string{good: ""}
	for _, row := range pgtest.OddRows() {
		if row.Slow {
			want[pgtest.PutOdd(t, db.Pool, row)] = row.Unreadable
		}
	}
	page, err := db.client.Jobs(t.Context(), drover.Filter{}, "", 10)
	if err != nil || len(page.Jobs) != len(want) || page.Next != "" {
		t.Fatalf("%d jobs, next %q, %v", len(page.Jobs), page.Next, err)
	}
	for _, j := range page.Jobs {
		if !strings.Contains(j.Unreadable, want[j.ID]) || want[j.ID] == "" && j.Unreadable != "" {
			t.Errorf("%s: unreadable %q, want %q", j.ID, j.Unreadable, want[j.ID])
		}
	}
	if groups, err := db.client.Summary(t.Context()); err != nil || len(groups) != 1 || groups[0].Jobs != 2 {
		t.Errorf("Summary: %+v, %v", groups, err)
	}
	if n, err := db.client.Count(t.Context(), drover.Filter{Error: "fine"}); err != nil || n != 0 {
		t.Errorf("Count: %d, %v", n, err)
	}
	if done, err := db.client.CancelMany(t.Context(), drover.Filter{All: true}, drover.Audit{}); err != nil || done.Changed != 1 {
		t.Errorf("CancelMany: %+v, %v", done, err)
	}
	if done, err := db.client.DeleteMany(t.Context(), drover.Filter{Reason: drover.ReasonPanic}, drover.Audit{}); err != nil || done.Changed != 2 {
		t.Errorf("DeleteMany: %+v, %v", done, err)
	}
}

// refusing makes the table refuse all changes of these jobs, as a trigger of the application's does.
func (db *testDB) refusing(t *testing.T, event string, ids ...string) {
	t.Helper()
	db.exec(t, `create table cursed as select unnest($1::text[]) as id`, ids)
	db.exec(t, `create function curse() returns trigger language plpgsql as $$ begin
		if old.id in (select id from cursed) then raise exception 'job % is cursed', old.id; end if;
		return case tg_op when 'DELETE' then old else new end;
	end $$`)
	db.exec(t, `create trigger curse before `+event+` on jobs for each row execute function curse()`)
}

func refusedIDs(done drover.BulkResult) (ids []string) {
	for _, r := range done.Refused {
		ids = append(ids, r.ID)
	}
	slices.Sort(ids)
	return ids
}

// F-15: a bulk verb returns the jobs that a trigger or a foreign key of the application's refuses to change, and
// changes all others, even if the refused ones fill more than the first batch.
func TestVerbsOverManyPassRefusedJobs(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		cursed int // of the first jobs
		do     func(*testing.T, *testDB) (drover.BulkResult, error)
		event  string
		left   string // the jobs that were not changed
	}{
		{"cancel", 3, func(t *testing.T, db *testDB) (drover.BulkResult, error) {
			t.Helper()
			return db.client.CancelMany(t.Context(), drover.Filter{Kind: "k"}, drover.Audit{Why: "no"})
		}, "update", "state <> 'cancelled'"},
		{"discard", 3, func(t *testing.T, db *testDB) (drover.BulkResult, error) {
			t.Helper()
			return db.client.DiscardMany(t.Context(), drover.Filter{Kind: "k"}, drover.Audit{Why: "no"})
		}, "update", "state <> 'discarded'"},
		{"cancel behind 150", 150, func(t *testing.T, db *testDB) (drover.BulkResult, error) {
			t.Helper()
			return db.client.CancelMany(t.Context(), drover.Filter{Kind: "k"}, drover.Audit{Why: "no"})
		}, "update", "state <> 'cancelled'"},
		{"delete", 3, func(t *testing.T, db *testDB) (drover.BulkResult, error) {
			t.Helper()
			db.exec(t, `update jobs set state = 'completed', finalized_at = now()`)
			return db.client.DeleteMany(t.Context(), drover.Filter{Kind: "k"}, drover.Audit{})
		}, "delete", "true"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			db := newTestDB(t)
			db.exec(t, `insert into jobs (kind) select 'k' from generate_series(1, 1200)`)
			cursed := db.IDsOf(t, `select id from (select id from jobs order by id limit $1) j order by id`, tc.cursed)
			db.refusing(t, tc.event, cursed...)
			done, err := tc.do(t, db)
			if err != nil || done.Changed != int64(1200-tc.cursed) || !slices.Equal(refusedIDs(done), cursed) {
				t.Fatalf("%d changed, %d refused, %v", done.Changed, len(done.Refused), err)
			}
			if want := "job " + done.Refused[0].ID + " is cursed"; done.Refused[0].Error != want {
				t.Errorf("refused for %q, want %q", done.Refused[0].Error, want)
			}
			if left := db.IDsOf(t, `select id from jobs where `+tc.left+` order by id`); !slices.Equal(left, cursed) {
				t.Errorf("%d jobs are not changed", len(left))
			}
		})
	}
}

// F-15: if nothing passes at all, a verb does not go on through a million jobs.
func TestVerbsOverManyGiveUpWhereAllAreRefused(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newTestDB(t)
	db.exec(t, `insert into jobs (id, kind) select (select left(drover_ulid(), 10)) || lpad(n::text, 16, '0'), 'k' from generate_series(1, 2500) n`)
	db.refusing(t, "update", db.IDsOf(t, `select id from jobs`)...)
	done, err := db.client.CancelMany(t.Context(), drover.Filter{All: true}, drover.Audit{})
	if err == nil || !strings.Contains(err.Error(), "the first 1000 are all refused") || done.Changed != 0 || len(done.Refused) != drover.MaxRefusals {
		t.Errorf("%d changed, %d refused, %v", done.Changed, len(done.Refused), err)
	}
}

// F-15: a job on which the statement times out is found and reported, and the others are changed.
func TestVerbsOverManyPassAJobThatTakesTooLong(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newTestDB(t)
	db.exec(t, `insert into jobs (kind) select 'k' from generate_series(1, 40)`)
	slow := db.IDsOf(t, `select id from jobs order by id offset 17 limit 1`)
	// With a real time-out others would be late, too, on a busy machine.
	db.exec(t, `create function late() returns trigger language plpgsql as $$ begin raise 'canceling statement due to statement timeout' using errcode = '57014'; end $$`)
	db.exec(t, `create trigger late before update on jobs for each row when (old.id = '`+slow[0]+`') execute function late()`)
	done, err := db.client.CancelMany(t.Context(), drover.Filter{Kind: "k"}, drover.Audit{})
	if err != nil || done.Changed != 39 || !slices.Equal(refusedIDs(done), slow) {
		t.Errorf("%+v, %v", done, err)
	}
}

// F-15: cancel, discard and delete end jobs that nobody can read or append to: an operator can get rid of every odd
// row.
func TestOddRowsAreEnded(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newTestDB(t)
	pgtest.DropChecks(t, db.Pool)
	// Except the CHECKs that read a column: a damaged column fails them, whatever is changed.
	for _, check := range []string{`jsonb_typeof(errors) is not null`, `jsonb_typeof(metadata) <> 'x'`, `array_ndims(tags) > 0`, `jsonb_typeof(args) <> 'x'`} {
		db.exec(t, `alter table jobs add check (`+check+`)`)
	}
	verbs := map[string]func(id string) (bool, error){
		"cancel": func(id string) (bool, error) {
			was, err := db.client.Cancel(t.Context(), id, drover.Audit{Why: "no"})
			return was != "", err
		},
		"discard": func(id string) (bool, error) {
			was, err := db.client.Discard(t.Context(), id, drover.Audit{Why: "no"})
			return was != "", err
		},
		"cancel many": func(id string) (bool, error) {
			done, err := db.client.CancelMany(t.Context(), drover.Filter{IDs: []string{id}}, drover.Audit{Why: "no"})
			return done.Changed == 1, err
		},
		"discard many": func(id string) (bool, error) {
			done, err := db.client.DiscardMany(t.Context(), drover.Filter{IDs: []string{id}}, drover.Audit{Why: "no"})
			return done.Changed == 1, err
		},
	}
	for _, row := range pgtest.OddRows() {
		if row.Slow || row.Name == "an id of wide characters" {
			continue
		}
		for name, verb := range verbs {
			id, state := pgtest.PutOdd(t, db.Pool, row), "available"
			if strings.HasPrefix(name, "cancel") {
				state = "running"
			}
			db.exec(t, `update jobs set state = $2, claimed_by = 'x', discard_reason = null, finalized_at = null where id = $1`, id, state)
			db.exec(t, `insert into drover_set_aside (path, job, error, code, retry_at) values ('claim', $1, 'no', '', 'infinity')`, id)
			if row.Damaged {
				pgtest.Damage(t, db.Pool)
			}
			if ended, err := verb(id); err != nil || !ended {
				t.Errorf("%s, %s: %v, %v", row.Name, name, ended, err)
				continue
			}
			job := db.Get(t, id)
			if !job.State.Final() || job.FinalizedAt == nil {
				t.Errorf("%s, %s: %+v", row.Name, name, job)
			}
			if row.Damaged && job.Unreadable != "" {
				t.Errorf("%s, %s: still unreadable: %s", row.Name, name, job.Unreadable)
			}
			if n := value[int](t, db, `select count(*) from drover_set_aside where job = $1`, id); n != 0 {
				t.Errorf("%s, %s: it is set aside", row.Name, name)
			}
			db.exec(t, `truncate drover_set_aside`)
			if done, err := db.client.DeleteMany(t.Context(), drover.Filter{IDs: []string{id}}, drover.Audit{}); err != nil || done.Changed != 1 {
				t.Errorf("%s, delete: %+v, %v", row.Name, done, err)
			}
		}
	}
}

// F-15: the health names what is set aside, oldest first, and counts what was discarded because the database refused it.
func TestHealthNamesRefusedJobs(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	if s := db.Health(t).SetAside; s.Rows != 0 || s.Refused != 0 || len(s.First) != 0 {
		t.Errorf("of none: %+v", s)
	}
	db.exec(t, `insert into drover_set_aside (path, job, error, code, tries, first_at, retry_at)
		select 'rescue', 'job ' || n, 'it''s cursed', 'P0001', n, now() - n * interval '1 min', case n when 1 then 'infinity' else now() + n * interval '1 min' end
		from generate_series(1, 12) n`)
	db.put(t, "state, finalized_at, discard_reason", `'discarded', now(), 'refused'`)
	db.put(t, "state, finalized_at, discard_reason", `'discarded', now() - interval '25 h', 'refused'`)
	db.put(t, "state, finalized_at, discard_reason", `'discarded', now(), 'panic'`)
	s := db.Health(t).SetAside
	if s.Rows != 12 || s.Refused != 1 || len(s.First) != 10 {
		t.Fatalf("%+v", s)
	}
	if r := s.First[0]; r.ID != "job 12" || r.Path != "rescue" || r.Error != "it's cursed" || r.Code != "P0001" || r.Tries != 12 || time.Until(r.RetryAt) < time.Minute {
		t.Errorf("%+v", r)
	}
}

// F-15: a verb whose filter asks for a part that some rows cannot show changes the rows whose part can be read.
func TestVerbsOverManyPassWhatAFilterCannotRead(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	pgtest.DropChecks(t, db.Pool)
	fine := db.put(t, "errors, tags, args", `'[{"class": "error", "error": "fine"}]', '{a}', '{"x": 1}'`)
	db.put(t, "errors", `'{"class": "error"}'`)
	for _, f := range []drover.Filter{{Error: "FINE"}, {Error: "fine", Tags: []string{"a"}, Args: json.RawMessage(`{"x": 1}`)}} {
		done, err := db.client.DiscardMany(t.Context(), f, drover.Audit{})
		if err != nil || done.Changed != 1 || len(done.Refused) != 0 || db.Get(t, fine).State != drover.Discarded {
			t.Errorf("%+v, %v", done, err)
		}
		db.exec(t, `update jobs set state = 'available', discard_reason = null, finalized_at = null`)
	}
}

// F-15: a job that others hold for longer than the role waits for a lock is reported as refused, and ends nothing.
func TestVerbsOverManyPassAJobThatStaysLocked(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	held, free := db.enqueue(t, letter{}, nil), db.enqueue(t, letter{}, nil)
	db.Hold(t, `select from jobs where id = $1 for update`, held)
	hasty := db.via(t, drover.Config{}, func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["lock_timeout"] = "100ms" })
	done, err := hasty.client.CancelMany(t.Context(), drover.Filter{All: true}, drover.Audit{})
	if err != nil || done.Changed != 1 || !slices.Equal(refusedIDs(done), []string{held}) || db.Get(t, free).State != drover.Cancelled {
		t.Errorf("%+v, %v", done, err)
	}
}
