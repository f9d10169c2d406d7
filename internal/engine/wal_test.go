package engine_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/pgdev"
	"github.com/drover-queue/drover/internal/store"
	"github.com/drover-queue/drover/migrations"
)

// hot returns the share of all updates of jobs so far that were HOT.
func (db *testDB) hot(t testing.TB, s *still) float64 {
	t.Helper()
	if _, err := s.Claimer.Link.Conn.Exec(t.Context(), `select pg_stat_force_next_flush()`); err != nil {
		t.Fatal(err)
	}
	var all, hot int
	err := db.QueryRow(t.Context(), `select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relid = 'jobs'::regclass`).Scan(&all, &hot)
	if err != nil {
		t.Fatal(err)
	}
	if all == 0 {
		t.Fatal("no updates are counted")
	}
	return float64(hot) / float64(all)
}

// A claim changes no indexed column, and there is room on the page for the claimed row.
func TestClaimsAreHOT(t *testing.T) {
	t.Parallel()
	slow(t)
	for _, fillfactor := range []int{30, 45} {
		for _, size := range []int{10, 200, 1 << 10, 4 << 10} {
			t.Run(fmt.Sprintf("fillfactor %d, args of %d bytes", fillfactor, size), func(t *testing.T) {
				t.Parallel()
				db := newQuietDB(t)
				db.exec(t, fmt.Sprintf(`alter table jobs set (fillfactor = %d, autovacuum_enabled = off)`, fillfactor))
				// The text is random: text that compresses well would be stored in fewer bytes than size.
				db.exec(t, `insert into jobs (kind, args) select 'job', jsonb_build_object('n', n, 'text', left((select string_agg(md5(n::text || m), '')
					from generate_series(0, $1 / 32) as m), $1)) from generate_series(1, 1000) as n`, size)
				s := db.stopped(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 10_000}}})
				n := 0
				for n < 1000 {
					n += len(s.claim(t))
				}
				if got := db.hot(t, s); got < 0.99 {
					t.Errorf("%.1f %% of the claims were HOT", 100*got)
				}
			})
		}
	}
}

// A job with tiny args writes a bounded number of bytes to the WAL, from enqueue to completion.
func TestWALOfAJob(t *testing.T) {
	t.Parallel()
	slow(t)
	server, err := pgdev.Start(t.Context(), pgdev.Options{
		Ways:     []pgdev.Way{pgdev.Local},
		Settings: map[string]string{"autovacuum": "off", "checkpoint_timeout": "1h", "max_wal_size": "8GB", "bgwriter_lru_maxpages": "0"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	config, err := pgxpool.ParseConfig(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	const jobs = 8000
	for _, c := range []struct {
		schema     string
		retention  drover.Retention
		fillfactor int
		most       int
	}{{"kept", 0, 30, 950}, {"deleted", drover.DeleteOnCompletion, 45, 720}} {
		config.ConnConfig.RuntimeParams["search_path"] = c.schema
		pool, err := pgxpool.NewWithConfig(context.Background(), config)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		client, err := drover.New(pool, drover.Config{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		db := dbOn(pool, client)
		db.exec(t, `create schema `+c.schema)
		if err := migrations.Up(t.Context(), pool); err != nil {
			t.Fatal(err)
		}
		db.exec(t, fmt.Sprintf(`alter table jobs set (fillfactor = %d)`, c.fillfactor))
		// After a checkpoint no page of the table needs a full-page image, because they are all created later.
		db.exec(t, `checkpoint`)
		before := value[int](t, db, `select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint`)
		for range jobs / 2000 {
			db.enqueueJobs(t, 2000, nil)
		}
		sup := db.launch(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 100}}, CompletedRetention: c.retention})
		db.waitFor(t, 3*time.Minute, `select count(*) = 0 from jobs where finalized_at is null`)
		sup.Stop(t)
		perJob := (value[int](t, db, `select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint`) - before) / jobs
		t.Logf("%s: %d bytes of WAL a job", c.schema, perJob)
		if perJob > c.most {
			t.Errorf("%s: %d bytes of WAL a job, at most %d are promised", c.schema, perJob, c.most)
		}
	}
}

// Some errors leave a statement's outcome unknown. Then drover finds out first, before it tries again.
func TestErrorsOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err                   error
		notApplied, rowsFault bool
	}{
		{&pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "40001"}, true, false},
		{&pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "53100"}, true, false},
		{&pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "22P05"}, true, true},
		{&pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "23514"}, true, true},
		{&pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "54000"}, true, true},
		{&pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "P0001"}, true, true},
		{&pgconn.PgError{SeverityUnlocalized: "FATAL", Code: "57P01"}, false, false}, // terminated, perhaps after the commit
		{&pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "57014"}, true, true},   // cancelled: never in the middle of a commit
		{&pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "40003"}, false, false}, // statement completion unknown
		{&pgconn.PgError{SeverityUnlocalized: "FATAL", Code: "08P01"}, false, false}, // a pooler whose server went away
		{&pgconn.PgError{}, false, false},
		{context.DeadlineExceeded, false, true},
		{errors.New("connection reset"), false, false},
		{pg.Classify(&pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "0A000", Routine: "call_bool_check_hook"}), true, false},
	} {
		for _, err := range []error{c.err, fmt.Errorf("wrapped: %w", c.err), errors.Join(errors.New("first"), c.err)} {
			if got := pg.NotApplied(err); got != c.notApplied {
				t.Errorf("notApplied(%v) = %v", err, got)
			}
			if got := pg.RowsFault(err); got != c.rowsFault {
				t.Errorf("RowsFault(%v) = %v", err, got)
			}
		}
	}
}

// After an error in the middle of a pipeline the connection is out of the transaction, and the next pipeline works.
func TestPipelineAfterAnErrorLeavesNoTransactionOpen(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	for name, broken := range map[string]string{"at run time": `select 1 / (select count(*) from jobs)`, "when planned": `select nothing from jobs`} {
		link := store.NewLine(harness.PoolOf(db.client))
		defer link.Close(context.Background())
		for range 3 {
			conn, err := link.Get(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var p pg.Pipeline
			committed := false
			p.Begin()
			p.Exec(nil, `insert into queues (name) values ('x')`)
			p.Exec(nil, broken)
			p.Commit()
			p.Call(func() { committed = true })
			if err := p.Send(t.Context(), conn.Conn); err == nil || committed {
				t.Errorf("%s: send = %v, committed %v", name, err, committed)
			}
			if !conn.Closed() && conn.Conn.PgConn().TxStatus() != 'I' {
				t.Errorf("%s: a transaction is open: %c", name, conn.Conn.PgConn().TxStatus())
			}
		}
		if n := value[int](t, db, `select count(*) from queues`); n > 0 {
			t.Errorf("%s: half of it was committed", name)
		}
	}
}

// Claims of jobs that are unique until they have ended are HOT, like the claims of all other jobs
// (TestClaimsAreHOT).
func TestClaimsOfUniqueJobsAreHOT(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	db.exec(t, `alter table jobs set (autovacuum_enabled = off)`)
	db.exec(t, `select drover_enqueue_unique((select jsonb_agg(jsonb_build_object('id', drover_ulid(), 'kind', 'job', 'args', jsonb_build_object('n', n), 'uniqueness', '{}'::jsonb)) from generate_series(1, 1000) n))`)
	s := db.stopped(t, drover.SupervisorConfig{Queues: []drover.Queue{{Concurrency: 10_000}}})
	n := 0
	for n < 1000 {
		n += len(s.claim(t))
	}
	if got := db.hot(t, s); got < 0.99 {
		t.Errorf("%.1f %% of the claims were HOT", 100*got)
	}
}
