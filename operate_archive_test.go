package drover_test

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
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/store"
)

// jobRows are all jobs of a table, by id, as JSON.
func (db *testDB) jobRows(t testing.TB, table string) map[string]string {
	t.Helper()
	rows, err := db.Query(t.Context(), `select id, (to_jsonb(j) - '{archived_at,archived_by,archived_why}'::text[])::text from `+table+` j`)
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
		tags, metadata, class, fingerprint, concurrency_key, redrive_id, pace_key, paced_at, unique_key, unique_scope)
	values (drover_ulid(), 'charge', 'payments', '{"n": 12345678901234567890.123456789, "s": "\u00e9\n"}', 'discarded', 'infinity', now() - interval '3 d 1 us', now() - interval '2 d',
		now() - interval '1 d', 'panic', 3, 4, 5, 6, 1, 2, now() - interval '4 d', '[{"error": "x"}]', 9, '{"type": "linear"}', 7, 8,
		now() + interval '1 d', now() + interval '2 d', 1, 2, '{"a","b c","d,e"}', '{"k": null}', 'panic', 'f00', 'customer', 'r', 'p', 'infinity', 'u', 'ended') returning id`)
}

// D-7: moved whole, and brought back as it was.
func TestArchiveAndRestore(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	const day = 24 * time.Hour
	old := []string{db.Finished(t, "discarded", 9*day), db.Finished(t, "cancelled", 9*day), db.Finished(t, "completed", 9*day), db.storied(t)}
	db.Finished(t, "discarded", time.Hour)
	db.Finished(t, "available", 9*day)
	before := db.jobRows(t, "jobs")
	filter := drover.Filter{FinalizedBefore: time.Now().Add(-12 * time.Hour)}
	moved, err := db.client.Archive(t.Context(), filter, nil, drover.Audit{})
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
	if again, err := db.client.Archive(t.Context(), filter, nil, drover.Audit{}); err != nil || again.Jobs != 0 {
		t.Errorf("a second time: %+v, %v", again, err)
	}

	// One filter for all verbs: one of its kinds comes back first.
	if back, err := db.client.Restore(t.Context(), drover.Filter{Class: "panic", Tags: []string{"b c"}}, drover.Audit{}); err != nil || back.Jobs != 1 {
		t.Errorf("Restore = %+v, %v", back, err)
	}
	// A job whose id is in use again stays where it is, and is reported.
	clash := old[1]
	db.exec(t, `insert into jobs (id, kind) values ($1, 'another')`, clash)
	back, err := db.client.Restore(t.Context(), drover.Filter{All: true}, drover.Audit{})
	if err != nil || back.Jobs != 2 || !slices.Equal(back.Conflicts, []string{clash}) {
		t.Errorf("Restore = %+v, %v", back, err)
	}
	db.exec(t, `delete from jobs where id = $1`, clash)
	if back, err := db.client.Restore(t.Context(), drover.Filter{IDs: []string{clash}}, drover.Audit{}); err != nil || back.Jobs != 1 {
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
	if err := db.client.RedriveJob(t.Context(), old[0], nil, drover.Audit{}); err != nil {
		t.Error(err)
	}
}

// A job whose id the archive has already stays in jobs, and is reported.
func TestArchiveOfAnIDThatIsThere(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	id := db.Finished(t, "discarded", time.Hour)
	if moved, err := db.client.Archive(t.Context(), drover.Filter{All: true}, nil, drover.Audit{}); err != nil || moved.Jobs != 1 {
		t.Fatalf("Archive = %+v, %v", moved, err)
	}
	db.exec(t, `insert into jobs (id, kind, state, finalized_at) values ($1, 'another', 'completed', now())`, id)
	moved, err := db.client.Archive(t.Context(), drover.Filter{All: true}, nil, drover.Audit{})
	if err != nil || moved.Jobs != 0 || !slices.Equal(moved.Conflicts, []string{id}) {
		t.Errorf("Archive = %+v, %v", moved, err)
	}
	if got := value[string](t, db, `select j.kind || ', ' || a.kind from jobs j join jobs_archive a using (id)`); got != "another, job" {
		t.Errorf("kinds: %s", got)
	}
}

// D-7: of the jobs that match, all except the last N of each kind.
func TestArchiveAllButTheNewest(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	var want []string
	for kind, n := range map[string]int{"a": 5, "b": 2, "c": 1} {
		for i := range n {
			id := db.Finished(t, "discarded", time.Duration(i+1)*time.Hour)
			db.exec(t, `update jobs set kind = $2 where id = $1`, id, kind)
			if i >= 2 {
				want = append(want, id)
			}
			db.Finished(t, "completed", time.Minute) // not of the filter's
		}
	}
	moved, err := db.client.Archive(t.Context(), drover.Filter{State: drover.Discarded}, &drover.ArchiveOpts{KeepNewest: 2}, drover.Audit{})
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
	db.exec(t, `insert into jobs (id, kind, state, finalized_at) select (select left(drover_ulid(), 10)) || lpad(n::text, 16, '0'), 'k', 'completed', now() from generate_series(1, 2500) n`)
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
	if moved, err := db.client.Archive(t.Context(), drover.Filter{Kind: "k"}, nil, drover.Audit{}); err != nil || moved.Jobs != 1500 {
		t.Errorf("Archive = %+v, %v", moved, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n, err := db.client.PurgeArchive(t.Context(), drover.Filter{Kind: "other"}, drover.Audit{}); n != 0 || err != nil {
		t.Errorf("PurgeArchive of another kind = %d, %v", n, err)
	}
	if n, err := db.client.PurgeArchive(t.Context(), drover.Filter{Kind: "k"}, drover.Audit{}); n != 2497 || err != nil {
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
	db.Finished(t, "discarded", time.Hour)
	if _, err := db.client.Archive(t.Context(), drover.Filter{All: true}, nil, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"Archive, empty filter":   ret2(db.client.Archive(t.Context(), drover.Filter{}, nil, drover.Audit{})),
		"Archive, waiting jobs":   ret2(db.client.Archive(t.Context(), drover.Filter{State: drover.Available}, nil, drover.Audit{})),
		"Archive, keep":           ret2(db.client.Archive(t.Context(), drover.Filter{All: true}, &drover.ArchiveOpts{KeepNewest: -1}, drover.Audit{})),
		"Restore, empty filter":   ret2(db.client.Restore(t.Context(), drover.Filter{}, drover.Audit{})),
		"Purge, empty filter":     ret2(db.client.PurgeArchive(t.Context(), drover.Filter{}, drover.Audit{})),
		"ExportArchive, bad JSON": ret2(db.client.ExportArchive(t.Context(), io.Discard, drover.Filter{Args: []byte("{")})),
	} {
		if !errors.Is(err, drover.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, sql := range []string{`select drover_purge('{"all": true}')`, `select drover_purge('{"all": true}', 'yes')`} {
		var server *pgconn.PgError
		if _, err := db.Exec(t.Context(), sql); !errors.As(err, &server) || server.Code != "22023" || !strings.Contains(server.Hint, "confirm => 'delete for ever'") {
			t.Errorf("%s: %v, which does not say how", sql, err)
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
	db.exec(t, `insert into jobs (kind, args, state, finalized_at) select 'k', jsonb_build_object('n', n, 's', e'\n\u2028"'), 'completed', now() from generate_series(1, $1) n`, 2*drover.ExportPage+1)
	if _, err := db.client.Archive(t.Context(), drover.Filter{All: true}, nil, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if n, err := db.client.ExportArchive(t.Context(), &out, drover.Filter{Kind: "charge"}); n != 1 || err != nil {
		t.Errorf("ExportArchive = %d, %v", n, err)
	}
	out.Reset()
	n, err := db.client.ExportArchive(t.Context(), &out, drover.Filter{})
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if err != nil || n != 2*drover.ExportPage+2 || len(lines) != int(n) {
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
	if n, err := db.client.ExportArchive(t.Context(), writerFunc(func([]byte) (int, error) { return 0, full }), drover.Filter{}); n != 0 || !errors.Is(err, full) {
		t.Errorf("a writer that fails: %d, %v", n, err)
	}
	if _, err := db.client.ExportArchive(t.Context(), io.Discard, drover.Filter{}); err != nil { // the connection can be used
		t.Error(err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// Each method that takes the id of a job says that the job is in the archive, and which commands show it and bring it back.
func TestJobsOfTheArchiveAreNamed(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	ctx := t.Context()
	dead, gone := db.Finished(t, "discarded", time.Hour), db.Finished(t, "discarded", time.Hour)
	db.exec(t, `delete from jobs where id = $1`, gone)
	if _, err := db.client.Archive(ctx, drover.Filter{All: true}, nil, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	for name, do := range map[string]func(id string) error{
		"Job":        func(id string) error { _, err := db.client.Job(ctx, id); return err },
		"Explain":    func(id string) error { _, err := db.client.Explain(ctx, id, nil); return err },
		"RedriveJob": func(id string) error { return db.client.RedriveJob(ctx, id, nil, drover.Audit{}) },
		"Rerun":      func(id string) error { _, err := db.client.Rerun(ctx, id, nil, drover.Audit{}); return err },
		"Cancel":     func(id string) error { _, err := db.client.Cancel(ctx, id, drover.Audit{}); return err },
		"Discard":    func(id string) error { _, err := db.client.Discard(ctx, id, drover.Audit{}); return err },
		"Edit": func(id string) error {
			_, err := db.client.Edit(ctx, id, drover.JobEdit{RunNow: true}, drover.Audit{})
			return err
		},
	} {
		err := do(strings.ToLower(dead))
		if !errors.Is(err, drover.ErrArchived) || !errors.Is(err, drover.ErrNotFound) || !strings.Contains(err.Error(), "drover archive export --id "+dead) || !strings.Contains(err.Error(), "drover archive restore "+dead) {
			t.Errorf("%s: %v, want ErrArchived and the commands", name, err)
		}
		if err := do(gone); !errors.Is(err, drover.ErrNotFound) || errors.Is(err, drover.ErrArchived) {
			t.Errorf("%s of a deleted job: %v", name, err)
		}
	}
}

// Every column of jobs has its like in the archive: a migration that adds one must add it to both.
func TestTheArchiveHasTheColumnsOfJobs(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	columns := func(table string, without ...string) string {
		return value[string](t, db, `select string_agg(format('%s %s %s', attname, format_type(atttypid, atttypmod), attcollation::regcollation), ', ' order by attname)
			from pg_attribute where attrelid = $1::regclass and attnum > 0 and not attisdropped and attname <> all($2)`, table, without)
	}
	if jobs, archive := columns("jobs", "lane", "unique_until"), columns("jobs_archive", "archived_at", "archived_by", "archived_why"); jobs != archive {
		t.Errorf("jobs has\n%s\nthe archive\n%s", jobs, archive)
	}
}

// Names and values are quoted wherever SQL is put together.
func TestArchiveFiltersAreSafe(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	evil := `k' or true; drop table jobs_archive; -- \`
	id := db.Finished(t, "completed", time.Hour)
	db.exec(t, `update jobs set kind = $1`, evil)
	db.Finished(t, "completed", time.Hour)
	if moved, err := db.client.Archive(t.Context(), drover.Filter{Kind: evil}, &drover.ArchiveOpts{}, drover.Audit{}); err != nil || moved.Jobs != 1 {
		t.Errorf("Archive = %+v, %v", moved, err)
	}
	for n, verb := range []func() (int64, error){
		func() (int64, error) {
			return db.client.ExportArchive(t.Context(), io.Discard, drover.Filter{Kind: evil})
		},
		func() (int64, error) {
			m, err := db.client.Restore(t.Context(), drover.Filter{Kind: evil}, drover.Audit{})
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

// fullArchive is a schema with so many jobs in the archive, whose ids it returns.
func fullArchive(t testing.TB, n int) (db *testDB, ids []string) {
	t.Helper()
	db = newQuietDB(t)
	ids = db.Aged(t, n)
	if moved, err := db.client.Archive(t.Context(), drover.Filter{All: true}, nil, drover.Audit{}); err != nil || moved.Jobs != int64(n) {
		t.Fatalf("Archive = %+v, %v", moved, err)
	}
	return db, ids
}

// checkRefused checks that exactly these jobs are reported as refused, each with an error.
func checkRefused(t testing.TB, got []drover.Refusal, want ...string) {
	t.Helper()
	var ids []string
	for _, r := range got {
		ids = append(ids, r.ID)
		if r.Error == "" {
			t.Errorf("%s is refused without an error", r.ID)
		}
	}
	slices.Sort(ids)
	if !slices.Equal(ids, want) {
		t.Errorf("refused: %+v, want %q", got, want)
	}
}

// F-15: archive, restore and purge go on around the jobs that the database refuses to move, and name them; a statement
// time-out over one of them, which ends the whole step, is found as well.
func TestMovingAroundRefusedJobs(t *testing.T) {
	t.Parallel()
	slow(t)
	for name, does := range map[string]string{
		"trigger": "raise 'no'", "trigger that returns null": "return null", "statement time-out": "perform pg_sleep(3600)",
	} {
		t.Run(name, func(t *testing.T) { // not in parallel: such subtests come last, when nothing else is left to run
			n := 1300
			db, set := newQuietDB(t), func(*pgxpool.Config) {}
			if name == "statement time-out" {
				n, set = 30, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["statement_timeout"] = "400ms" }
			}
			db = db.via(t, drover.Config{Logger: quiet()}, set)
			ids := db.Aged(t, n)
			bad := []string{ids[0], ids[n-1]}
			fits := func(row string) string { return fmt.Sprintf("%s.id in ('%s', '%s')", row, bad[0], bad[1]) }
			rows := func(table string) int { return value[int](t, db, `select count(*) from `+table) }

			db.Refuses(t, "insert", "jobs_archive", fits("new"), does)
			moved, err := db.client.Archive(t.Context(), drover.Filter{All: true}, nil, drover.Audit{})
			if err != nil || moved.Jobs != int64(n-2) || rows("jobs") != 2 || rows("jobs_archive") != n-2 {
				t.Fatalf("Archive = %d, %v; %d are left", moved.Jobs, err, rows("jobs"))
			}
			checkRefused(t, moved.Refused, bad...)
			db.exec(t, `drop trigger app_insert_jobs_archive on jobs_archive`)
			if moved, err := db.client.Archive(t.Context(), drover.Filter{All: true}, &drover.ArchiveOpts{}, drover.Audit{}); err != nil || moved.Jobs != 2 || moved.Refused != nil {
				t.Fatalf("Archive = %+v, %v", moved, err)
			}

			db.Refuses(t, "insert", "jobs", fits("new"), does)
			back, err := db.client.Restore(t.Context(), drover.Filter{All: true}, drover.Audit{})
			if err != nil || back.Jobs != int64(n-2) || rows("jobs_archive") != 2 || rows("jobs") != n-2 {
				t.Fatalf("Restore = %d, %v; %d are left", back.Jobs, err, rows("jobs_archive"))
			}
			checkRefused(t, back.Refused, bad...)
			if moved, err := db.client.Archive(t.Context(), drover.Filter{All: true}, nil, drover.Audit{}); err != nil || moved.Jobs != int64(n-2) {
				t.Fatalf("Archive = %+v, %v", moved, err)
			}

			db.Refuses(t, "delete", "jobs_archive", fits("old"), does)
			gone, err := db.client.PurgeArchive(t.Context(), drover.Filter{All: true}, drover.Audit{})
			if err == nil || gone != int64(n-2) || rows("jobs_archive") != 2 {
				t.Fatalf("PurgeArchive = %d, %v; %d are left", gone, err, rows("jobs_archive"))
			}
			var refused *drover.RefusedError
			if !errors.As(err, &refused) || !strings.Contains(err.Error(), bad[0]) {
				t.Fatalf("PurgeArchive = %v", err)
			}
			checkRefused(t, refused.Refused, bad...)
		})
	}
}

// F-15: jobs behind many that are refused are moved, and no more than a thousand are named.
func TestMovingBehindManyThatAreRefused(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	ids := db.Aged(t, 1300)
	db.Refuses(t, "insert", "jobs_archive", fmt.Sprintf("new.id < '%s'", ids[1250]), "raise 'no'")
	moved, err := db.client.Archive(t.Context(), drover.Filter{All: true}, nil, drover.Audit{})
	if err != nil || moved.Jobs != 50 || len(moved.Refused) != 1000 {
		t.Errorf("Archive = %d, %d refused, %v", moved.Jobs, len(moved.Refused), err)
	}
}

// A caller's deadline is no job's fault.
func TestMovingWithADeadline(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.Aged(t, 3)
	db.Refuses(t, "insert", "jobs_archive", "true", "perform pg_sleep(3600)")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if moved, err := db.client.Archive(ctx, drover.Filter{All: true}, nil, drover.Audit{}); !errors.Is(err, context.DeadlineExceeded) || moved.Refused != nil {
		t.Errorf("Archive = %+v, %v", moved, err)
	}
}

// F-15: columns of the application's own stop neither pruning nor archiving nor restoring. A column that both
// tables have is kept. A column that must not be null holds up only the jobs that have no value for it.
func TestColumnsOfTheApplication(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into queues (name, archive_discarded_after) values ('stored', '1 day')`)
	db.exec(t, `alter table jobs add column tenant text, add column region text, add column place int, add column seq bigint generated always as identity,
		add column shouted text generated always as (upper(kind)) stored, add column archived_at timestamptz`)
	db.exec(t, `alter table jobs_archive add column region text, add column place text, add column seq bigint, add column shouted text, add column note text`)
	var ids []string
	for n := range 3 {
		id := db.Ended(t, "stored", "discarded", 2*aDay)
		db.exec(t, `update jobs set tenant = 't', region = $2, place = 7 where id = $1`, id, fmt.Sprint("r", n))
		ids = append(ids, id)
	}
	db.Finished(t, "completed", 2*aDay)
	seqs := value[string](t, db, `select string_agg(seq::text, ' ' order by id) from jobs where state = 'discarded'`)
	keep := store.Keeping{Completed: drover.Kept(drover.KeepFor(aDay)), Cancelled: nil}
	if _, err := db.prune(t.Context(), engine.PruneWalk{}, keep); err != nil {
		t.Fatal(err)
	}
	slices.Sort(ids)
	if got := value[[]string](t, db, `select array_agg(id order by id) from jobs_archive where archived_at is not null`); !slices.Equal(got, ids) {
		t.Errorf("archived: %q, want %q", got, ids)
	}
	if moved, err := db.client.Restore(t.Context(), drover.Filter{All: true}, drover.Audit{}); err != nil || moved.Jobs != 3 || moved.Refused != nil {
		t.Errorf("Restore = %+v, %v", moved, err)
	}
	if got := value[string](t, db, `select string_agg(concat_ws('', region, tenant, place, shouted), ' ' order by region) from jobs`); got != "r0JOB r1JOB r2JOB" {
		t.Errorf("restored: %s", got)
	}
	if got := value[string](t, db, `select string_agg(seq::text, ' ' order by id) from jobs`); got != seqs {
		t.Errorf("identities %s became %s", seqs, got)
	}

	db.exec(t, `update jobs set region = null where id = $1`, ids[1])
	db.exec(t, `alter table jobs_archive alter region set not null`)
	moved, err := db.client.Archive(t.Context(), drover.Filter{All: true}, nil, drover.Audit{})
	if err != nil || moved.Jobs != 2 {
		t.Errorf("Archive = %+v, %v", moved, err)
	}
	checkRefused(t, moved.Refused, ids[1])
	if _, err := db.prune(t.Context(), engine.PruneWalk{}, keep); err != nil {
		t.Error(err)
	}
	if noted := db.Noted(t, "archive"); !slices.Equal(noted, ids[1:2]) {
		t.Errorf("set aside: %q", noted)
	}
	db.exec(t, `alter table jobs add column must int not null default 1`)
	db.exec(t, `alter table jobs alter must drop default`)
	if moved, err = db.client.Restore(t.Context(), drover.Filter{All: true}, drover.Audit{}); err != nil || moved.Jobs != 0 {
		t.Errorf("Restore = %+v, %v", moved, err)
	}
	checkRefused(t, moved.Refused, ids[0], ids[2])
}

// F-15: a row that a filter cannot read is left out and reported; the others are picked.
func TestFiltersOverARowThatCannotBeRead(t *testing.T) {
	t.Parallel()
	db, ids := fullArchive(t, 700)
	bad := ids[300]
	db.exec(t, `update jobs_archive set errors = '[{"class": "error", "error": "needle"}]' where id = any($1)`, ids[250:600])
	db.exec(t, `update jobs_archive set errors = '{}' where id = $1`, bad) // by hand: nothing reads an error out of that
	var out bytes.Buffer
	n, err := db.client.ExportArchive(t.Context(), &out, drover.Filter{Error: "needle"})
	if refused := (*drover.RefusedError)(nil); n != 349 || !errors.As(err, &refused) || len(refused.Refused) != 1 || refused.Refused[0].ID != bad {
		t.Errorf("ExportArchive = %d, %v", n, err)
	}
	moved, err := db.client.Restore(t.Context(), drover.Filter{Error: "needle"}, drover.Audit{})
	if err != nil || moved.Jobs != 349 {
		t.Errorf("Restore = %d, %v", moved.Jobs, err)
	}
	checkRefused(t, moved.Refused, bad)
	if gone, err := db.client.PurgeArchive(t.Context(), drover.Filter{Error: "needle"}, drover.Audit{}); gone != 0 || err == nil || !strings.Contains(err.Error(), bad) {
		t.Errorf("PurgeArchive = %d, %v", gone, err)
	}
	if n := value[int](t, db, `select count(*) from jobs_archive`); n != 351 {
		t.Errorf("%d jobs are left, want 351", n)
	}
}

// F-15: rows that cannot be turned into JSON do not end an export, and the error at the end names them.
func TestExportAroundARowThatCannotBeRead(t *testing.T) {
	t.Parallel()
	db, ids := fullArchive(t, drover.ExportPage+30)
	db.damage(t, "jobs_archive", ids[7])
	db.damage(t, "jobs_archive", ids[drover.ExportPage+29])
	var out bytes.Buffer
	n, err := db.client.ExportArchive(t.Context(), &out, drover.Filter{})
	if n != drover.ExportPage+28 || err == nil || !strings.Contains(err.Error(), ids[7]) || !strings.Contains(err.Error(), ids[drover.ExportPage+29]) {
		t.Errorf("ExportArchive = %d, %v", n, err)
	}
	if lines := strings.Count(out.String(), "\n"); lines != drover.ExportPage+28 {
		t.Errorf("%d lines", lines)
	}
	moved, err := db.client.Restore(t.Context(), drover.Filter{All: true}, drover.Audit{})
	if err != nil || moved.Jobs != drover.ExportPage+28 {
		t.Errorf("Restore = %d, %v", moved.Jobs, err)
	}
	checkRefused(t, moved.Refused, ids[7], ids[drover.ExportPage+29])
}

// damage makes the args of a job unreadable, as a broken disk does: "missing chunk number 0".
func (db *testDB) damage(t testing.TB, table, id string) {
	t.Helper()
	db.exec(t, `update `+table+` set args = to_jsonb((select string_agg(md5(n::text), '') from generate_series(1, 1000) n)) where id = $1`, id)
	toast := value[string](t, db, `select reltoastrelid::regclass::text from pg_class where oid = $1::text::regclass`, table)
	if err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		for _, sql := range []string{
			`set local allow_system_table_mods = on`, `update pg_class set relkind = 'r' where oid = '` + toast + `'::regclass`,
			`truncate ` + toast, `update pg_class set relkind = 't' where oid = '` + toast + `'::regclass`,
		} {
			if _, err := tx.Exec(t.Context(), sql); err != nil {
				return fmt.Errorf("%s: %w", sql, err)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	var server *pgconn.PgError
	if err := db.QueryRow(t.Context(), `select args::text from `+table+` where id = $1`, id).Scan(new(string)); !errors.As(err, &server) || server.Code != "XX001" {
		t.Fatalf("the args of %s: %v", id, err)
	}
}

// F-15: a job whose args are damaged is deleted; if it has to be archived it is set aside.
func TestPruningOfADamagedJob(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `insert into queues (name, archive_discarded_after) values ('stored', '1 day')`)
	var stored []string
	for range 3 {
		db.Finished(t, "completed", 2*aDay)
		stored = append(stored, db.Ended(t, "stored", "discarded", 2*aDay))
	}
	db.damage(t, "jobs", db.Finished(t, "completed", 2*aDay))
	db.damage(t, "jobs", stored[1])
	if _, err := db.prune(t.Context(), engine.PruneWalk{}, store.Keeping{Completed: drover.Kept(drover.KeepFor(aDay)), Cancelled: nil}); err != nil {
		t.Fatal(err)
	}
	if left := value[[]string](t, db, `select array_agg(id) from jobs`); !slices.Equal(left, stored[1:2]) {
		t.Errorf("left: %q, want %q", left, stored[1:2])
	}
	if noted := db.Noted(t, "archive"); !slices.Equal(noted, stored[1:2]) {
		t.Errorf("set aside: %q", noted)
	}
}
