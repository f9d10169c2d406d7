package drover

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

// oddFilters are filters of every shape; those with all pick every job of kind odd.
var oddFilters = []struct { //nolint:gochecknoglobals // a table
	filter Filter
	all    bool
}{
	{Filter{}, true},
	{Filter{All: true}, true},
	{Filter{Kind: "odd"}, false},
	{Filter{State: Discarded}, false},
	{Filter{Reason: ReasonPanic, Class: "error"}, false},
	{Filter{Error: "fine"}, false},
	{Filter{State: Discarded, Error: "fine"}, false},
	{Filter{Tags: []string{"a"}}, false},
	{Filter{Args: json.RawMessage(`{"x": 1}`)}, false},
	{Filter{Reason: ReasonPanic, Tags: []string{"a"}, Args: json.RawMessage(`{"x": 1}`), Error: "x"}, false},
	{Filter{CreatedAfter: time.Unix(0, 0), CreatedBefore: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)}, false},
	{Filter{State: Discarded, FinalizedAfter: time.Unix(0, 0)}, false},
	{Filter{Queue: "default", State: Completed}, false},
}

// readAll reads everything that operators read, and returns the jobs of kind odd by their ids.
func (db *testDB) readAll(t *testing.T, size int) map[string]JobInfo {
	t.Helper()
	seen := map[string]JobInfo{}
	for i, f := range oddFilters {
		n := 0
		for after := ""; ; {
			page, err := db.client.List(t.Context(), f.filter, after, size)
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
	h, err := db.client.Health(t.Context())
	if err != nil {
		t.Errorf("Health: %v", err)
	}
	alerts, err := db.client.Alerts(t.Context(), Thresholds{Discarded: 1, NewDiscarded: 1, Quarantined: 1, Oldest: time.Second})
	if err != nil {
		t.Errorf("Alerts: %v", err)
	}
	for _, doc := range []any{groups, counts, h, alerts} {
		if _, err := json.Marshal(doc); err != nil {
			t.Error(err)
		}
	}
	for _, n := range h.NotSeen {
		t.Errorf("Health did not see %+v", n)
	}
	db.exec(t, `select id, last_error, first_failed_at, last_failed_at, discarded_at::text, args, errors, redrives from discarded_jobs`)
	db.exec(t, `select * from discarded_summary`)
	db.exec(t, `select * from job_counts`)
	for id := range seen {
		if !isID(id) {
			continue
		}
		j, err := db.client.Get(t.Context(), id)
		if err != nil {
			t.Errorf("Get: %v", err)
			continue
		}
		if _, err := json.Marshal(j); err != nil {
			t.Error(err)
		}
	}
	return seen
}

// F-15: a row that nobody expects, whatever is in it, is shown as far as it can be, and keeps no other from being shown.
func TestOddRowsAreRead(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	pgtest.DropChecks(t, db.Pool)
	good := db.enqueue(t, letter{To: "x"}, &EnqueueOpts{Tags: []string{"a"}})
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
	for _, size := range []int{1000, 7} {
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
	db := newTestDB(t)
	pgtest.DropChecks(t, db.Pool)
	good := db.enqueue(t, letter{To: "x"}, nil)
	want := map[string]string{good: ""}
	for _, row := range pgtest.OddRows() {
		if row.Slow {
			want[pgtest.PutOdd(t, db.Pool, row)] = row.Unreadable
		}
	}
	page, err := db.client.List(t.Context(), Filter{}, "", 10)
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
	if n, err := db.client.Count(t.Context(), Filter{Error: "fine"}); err != nil || n != 0 {
		t.Errorf("Count: %d, %v", n, err)
	}
	if done, err := db.client.CancelMany(t.Context(), Filter{All: true}, ""); err != nil || done.Changed != 1 {
		t.Errorf("CancelMany: %+v, %v", done, err)
	}
	if done, err := db.client.DeleteMany(t.Context(), Filter{Reason: ReasonPanic}); err != nil || done.Changed != 2 {
		t.Errorf("DeleteMany: %+v, %v", done, err)
	}
}
