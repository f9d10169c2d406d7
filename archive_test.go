package drover

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// jobRows are all jobs of a table, by id, as JSON.
func (db *testDB) jobRows(t testing.TB, table string) map[string]string {
	t.Helper()
	rows, err := db.Query(t.Context(), `select id, (to_jsonb(j) - 'archived_at')::text from `+table+` j`)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	var id, doc string
	if _, err := pgx.ForEachRow(rows, []any{&id, &doc}, func() error { all[id] = doc; return nil }); err != nil {
		t.Fatal(err)
	}
	return all
}

// storied stores a discarded job in which every column has a value of its own.
func (db *testDB) storied(t testing.TB) string {
	t.Helper()
	return value[string](t, db, `insert into jobs (id, kind, queue, args, state, scheduled_at, created_at, attempted_at, finalized_at, discard_reason, attempt, max_attempts,
		claim_seq, priority, crashes, redrives, redriven_at, errors, errors_total, retry, timeout_ms, last_delay_ms, expires_at, retry_until, snoozes, uncounted,
		tags, metadata, class, fingerprint, concurrency_key, redrive_id, pace_key, paced_at)
	values (drover_ulid(), 'charge', 'payments', '{"n": 12345678901234567890.123456789, "s": "\u00e9\n"}', 'discarded', 'infinity', now() - interval '3 d 1 us', now() - interval '2 d',
		now() - interval '1 d', 'panic', 3, 4, 5, 6, 1, 2, now() - interval '4 d', '[{"error": "x"}]', 9, '{"type": "linear"}', 7, 8,
		now() + interval '1 d', now() + interval '2 d', 1, 2, '{"a","b c",""}', '{"k": null}', 'panic', 'f00', 'customer', 'r', 'p', 'infinity') returning id`)
}

// D-7: moved whole, and brought back as it was.
func TestArchiveAndRestore(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	const day = 24 * time.Hour
	old := []string{db.finished(t, "discarded", 9*day), db.finished(t, "cancelled", 9*day), db.finished(t, "completed", 9*day), db.storied(t)}
	db.finished(t, "discarded", time.Hour)
	db.finished(t, "available", 9*day)
	before := db.jobRows(t, "jobs")
	filter := Filter{FinalizedBefore: time.Now().Add(-12 * time.Hour)}
	moved, err := db.client.Archive(t.Context(), filter, nil)
	if err != nil || moved.Jobs != 4 || moved.Conflicts != nil {
		t.Fatalf("Archive = %+v, %v", moved, err)
	}
	archived := db.jobRows(t, "jobs_archive")
	for _, id := range old {
		if archived[id] == "" {
			t.Errorf("%s is not in the archive", id)
		}
	}
	if left := db.jobRows(t, "jobs"); len(left) != 2 || len(archived) != 4 {
		t.Errorf("%d jobs are left, %d archived", len(left), len(archived))
	}
	if again, err := db.client.Archive(t.Context(), filter, nil); err != nil || again.Jobs != 0 {
		t.Errorf("a second time: %+v, %v", again, err)
	}

	// One filter for all verbs: one of its kinds comes back first.
	if back, err := db.client.Restore(t.Context(), Filter{Class: "panic", Tags: []string{"b c"}}); err != nil || back.Jobs != 1 {
		t.Errorf("Restore = %+v, %v", back, err)
	}
	// An id that is in use again stays where it is, and is told.
	clash := old[1]
	db.exec(t, `insert into jobs (id, kind) values ($1, 'another')`, clash)
	back, err := db.client.Restore(t.Context(), Filter{All: true})
	if err != nil || back.Jobs != 2 || !slices.Equal(back.Conflicts, []string{clash}) {
		t.Errorf("Restore = %+v, %v", back, err)
	}
	db.exec(t, `delete from jobs where id = $1`, clash)
	if back, err := db.client.Restore(t.Context(), Filter{IDs: []string{clash}}); err != nil || back.Jobs != 1 {
		t.Errorf("Restore = %+v, %v", back, err)
	}
	after := db.jobRows(t, "jobs")
	for id, want := range before {
		if after[id] != want {
			t.Errorf("job\n%s\ncame back as\n%s", want, after[id])
		}
	}
	if n := value[int](t, db, `select count(*) from jobs_archive`); n != 0 {
		t.Errorf("%d jobs are left in the archive", n)
	}
	if err := db.client.RedriveJob(t.Context(), old[0], nil); err != nil {
		t.Error(err)
	}
}

// An id that the archive has already stays in jobs, and is told.
func TestArchiveOfAnIDThatIsThere(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	id := db.finished(t, "discarded", time.Hour)
	if moved, err := db.client.Archive(t.Context(), Filter{All: true}, nil); err != nil || moved.Jobs != 1 {
		t.Fatalf("Archive = %+v, %v", moved, err)
	}
	db.exec(t, `insert into jobs (id, kind, state, finalized_at) values ($1, 'another', 'completed', now())`, id)
	moved, err := db.client.Archive(t.Context(), Filter{All: true}, nil)
	if err != nil || moved.Jobs != 0 || !slices.Equal(moved.Conflicts, []string{id}) {
		t.Errorf("Archive = %+v, %v", moved, err)
	}
	if got := value[string](t, db, `select j.kind || ', ' || a.kind from jobs j join jobs_archive a using (id)`); got != "another, job" {
		t.Errorf("kinds: %s", got)
	}
}

// D-7: all but the last N of each kind, of those that fit.
func TestArchiveAllButTheNewest(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	var want []string
	for kind, n := range map[string]int{"a": 5, "b": 2, "c": 1} {
		for i := range n {
			id := db.finished(t, "discarded", time.Duration(i+1)*time.Hour)
			db.exec(t, `update jobs set kind = $2 where id = $1`, id, kind)
			if i >= 2 {
				want = append(want, id)
			}
			db.finished(t, "completed", time.Minute) // not of the filter's
		}
	}
	moved, err := db.client.Archive(t.Context(), Filter{State: Discarded}, &ArchiveOpts{KeepNewest: 2})
	if err != nil || moved.Jobs != 3 {
		t.Fatalf("Archive = %+v, %v", moved, err)
	}
	for _, id := range want {
		if !value[bool](t, db, `select exists (select from jobs_archive where id = $1)`, id) {
			t.Errorf("%s was kept", id)
		}
	}
}

// Batches: each is one transaction, rows that someone holds are left, and the walk ends.
func TestArchiveAndPurgeInBatches(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into jobs (kind, state, finalized_at) select 'k', 'completed', now() from generate_series(1, 2500)`)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `select from jobs order by id limit 3 for update`); err != nil {
		t.Fatal(err)
	}
	var first, last string
	if err := db.QueryRow(t.Context(), `select moved::text, last from drover_archive('{"kind": "k"}', batch => 1000)`).Scan(&first, &last); err != nil || first != "997" || last == "" {
		t.Fatalf("the first batch moved %s, %v", first, err)
	}
	if moved, err := db.client.Archive(t.Context(), Filter{Kind: "k"}, nil); err != nil || moved.Jobs != 1500 {
		t.Errorf("Archive = %+v, %v", moved, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n, err := db.client.PurgeArchive(t.Context(), Filter{Kind: "other"}, DeleteForEver); n != 0 || err != nil {
		t.Errorf("PurgeArchive of another kind = %d, %v", n, err)
	}
	if n, err := db.client.PurgeArchive(t.Context(), Filter{Kind: "k"}, DeleteForEver); n != 2497 || err != nil {
		t.Errorf("PurgeArchive = %d, %v", n, err)
	}
	if n := value[int](t, db, `select count(*) from jobs`); n != 3 {
		t.Errorf("%d jobs are left, 3 were held", n)
	}
}

// D-7: nothing is deleted without a word of confirmation, and no verb takes an empty filter for all.
func TestTheArchiveAsksTwice(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.finished(t, "discarded", time.Hour)
	if _, err := db.client.Archive(t.Context(), Filter{All: true}, nil); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"Archive, empty filter":   ret2(db.client.Archive(t.Context(), Filter{}, nil)),
		"Archive, waiting jobs":   ret2(db.client.Archive(t.Context(), Filter{State: Available}, nil)),
		"Archive, keep":           ret2(db.client.Archive(t.Context(), Filter{All: true}, &ArchiveOpts{KeepNewest: -1})),
		"Restore, empty filter":   ret2(db.client.Restore(t.Context(), Filter{})),
		"Purge, empty filter":     ret2(db.client.PurgeArchive(t.Context(), Filter{}, DeleteForEver)),
		"Purge, not confirmed":    ret2(db.client.PurgeArchive(t.Context(), Filter{All: true}, "")),
		"ExportArchive, bad JSON": ret2(db.client.ExportArchive(t.Context(), io.Discard, Filter{Args: []byte("{")})),
	} {
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, sql := range []string{
		`select drover_purge('{"all": true}', null)`, `select drover_purge('{"all": true}', 'yes')`, `select drover_purge('{}', 'delete for ever')`,
		`select drover_archive('{}')`, `select drover_restore('{}')`, `select drover_restore('{"all": false}')`,
	} {
		if _, err := db.Exec(t.Context(), sql); err == nil || !strings.Contains(err.Error(), "22023") {
			t.Errorf("%s: %v", sql, err)
		}
	}
	if n := value[int](t, db, `select count(*) from jobs_archive`); n != 1 {
		t.Errorf("%d jobs in the archive, want 1", n)
	}
}

func ret2[T any](_ T, err error) error { return err }

// D-7: JSON lines, page after page, that make rows again.
func TestExportArchive(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.storied(t)
	db.exec(t, `insert into jobs (kind, args, state, finalized_at) select 'k', jsonb_build_object('n', n, 's', e'\n\u2028"'), 'completed', now() from generate_series(1, $1) n`, 2*exportPage+1)
	if _, err := db.client.Archive(t.Context(), Filter{All: true}, nil); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if n, err := db.client.ExportArchive(t.Context(), &out, Filter{Kind: "charge"}); n != 1 || err != nil {
		t.Errorf("ExportArchive = %d, %v", n, err)
	}
	out.Reset()
	n, err := db.client.ExportArchive(t.Context(), &out, Filter{})
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if err != nil || n != 2*exportPage+2 || len(lines) != int(n) {
		t.Fatalf("ExportArchive = %d, %v; %d lines", n, err, len(lines))
	}
	ids := map[string]bool{}
	for _, line := range lines {
		var row struct{ ID string }
		if err := json.Unmarshal([]byte(line), &row); err != nil {
			t.Fatal(err)
		}
		ids[row.ID] = true
	}
	if len(ids) != len(lines) {
		t.Errorf("%d different ids on %d lines", len(ids), len(lines))
	}
	before := db.jobRows(t, "jobs_archive")
	db.exec(t, `delete from jobs_archive`)
	db.exec(t, `insert into jobs_archive select r.* from unnest($1::jsonb[]) as line, jsonb_populate_record(null::jobs_archive, line) r`, lines)
	for id, row := range db.jobRows(t, "jobs_archive") {
		if before[id] != row {
			t.Errorf("%s\nwas exported and read as\n%s", before[id], row)
		}
	}

	full := errors.New("no space left")
	if n, err := db.client.ExportArchive(t.Context(), writerFunc(func([]byte) (int, error) { return 0, full }), Filter{}); n != 0 || !errors.Is(err, full) {
		t.Errorf("a writer that fails: %d, %v", n, err)
	}
	if _, err := db.client.ExportArchive(t.Context(), io.Discard, Filter{}); err != nil { // the connection is fit for use
		t.Error(err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// Every column of jobs has its like in the archive: a migration that adds one must add it to both.
func TestTheArchiveHasTheColumnsOfJobs(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	columns := func(table, without string) string {
		return value[string](t, db, `select string_agg(format('%s %s %s', attname, format_type(atttypid, atttypmod), attcollation::regcollation), ', ' order by attname)
			from pg_attribute where attrelid = $1::regclass and attnum > 0 and not attisdropped and attname <> $2`, table, without)
	}
	if jobs, archive := columns("jobs", "lane"), columns("jobs_archive", "archived_at"); jobs != archive {
		t.Errorf("jobs has\n%s\nthe archive\n%s", jobs, archive)
	}
}

// Names and values are quoted wherever SQL is put together.
func TestArchiveFiltersAreSafe(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	evil := `k' or true; drop table jobs_archive; -- \`
	id := db.finished(t, "completed", time.Hour)
	db.exec(t, `update jobs set kind = $1`, evil)
	db.finished(t, "completed", time.Hour)
	if moved, err := db.client.Archive(t.Context(), Filter{Kind: evil}, &ArchiveOpts{}); err != nil || moved.Jobs != 1 {
		t.Errorf("Archive = %+v, %v", moved, err)
	}
	for n, verb := range []func() (int64, error){
		func() (int64, error) { return db.client.ExportArchive(t.Context(), io.Discard, Filter{Kind: evil}) },
		func() (int64, error) {
			m, err := db.client.Restore(t.Context(), Filter{Kind: evil})
			return m.Jobs, err
		},
	} {
		if got, err := verb(); got != 1 || err != nil {
			t.Error(fmt.Sprint(n, got, err))
		}
	}
	if got := value[string](t, db, `select id from jobs where kind = $1`, evil); got != id {
		t.Errorf("%s came back, want %s", got, id)
	}
}
