package droverprom_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	droverprom "github.com/drover-queue/drover/prometheus"
)

// The gauges are what the rows say.
func TestGaugesAgreeWithTheRows(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewMigratedPool(t)
	client := newClient(t, pool)
	if err := client.Pause(t.Context(), "queue:payments", time.Time{}, drover.By{}); err != nil {
		t.Fatal(err)
	}
	write(t, pool, `insert into jobs (kind, queue, scheduled_at) select 'charge', 'payments', now() - interval '1 h' from generate_series(1, 3)`)
	write(t, pool, `insert into jobs (kind, queue) values ('resize', 'q1'), ('resize', 'q2')`)
	write(t, pool, `insert into jobs (kind, queue, state, finalized_at, discard_reason) select 'charge', 'payments', 'discarded', now(), 'operator' from generate_series(1, 5)`)
	write(t, pool, `insert into drover_supervisors (id, lease_ms, queues, slots, in_flight, beat_at, lost_at) values
		('alive', 30000, '{payments,empty}', '{"payments": 7}', '{a,b}', now(), null),
		('silent', 30000, '{payments}', '{"payments": 9}', '{}', now() - interval '1 min', null),
		('lost', 30000, '{payments}', '{"payments": 9}', '{}', now() - interval '1 min', now())`)
	redrive, err := client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{Queue: "payments"}}, drover.By{})
	if err != nil {
		t.Fatal(err)
	}
	write(t, pool, `update drover_redrives set matched = 5, released = 2, skipped = 1 where id = $1`, redrive.ID)

	metrics := droverprom.New(droverprom.Options{MaxQueues: 2, MaxAge: time.Nanosecond, Timeout: time.Minute})
	metrics.Hooks().Started(t.Context(), drover.Event{Queue: "payments"})
	metrics.Hooks().Started(t.Context(), drover.Event{Queue: "empty"})
	metrics.Watch(client)
	got := gather(t, metrics)
	if age := got["drover_oldest_due_seconds{payments}"]; age < 3600 || age > 7200 {
		t.Errorf("the oldest due job is %v s old", age)
	}
	expect(t, got, map[string]float64{
		"drover_up{}": 1, "drover_jobs{payments,available}": 3, "drover_jobs{payments,discarded}": 5, "drover_jobs{payments,running}": 0,
		"drover_jobs{other,available}": 2, "drover_jobs{empty,available}": 0, "drover_oldest_due_seconds{empty}": 0,
		"drover_paused{queue:payments}": 1,
		"drover_supervisors{alive}":     1, "drover_supervisors{silent}": 1, "drover_supervisors{lost}": 1, "drover_supervisors{draining}": 0,
		"drover_slots{}": 7, "drover_slots_taken{}": 2, "drover_findings{warning,supervisors}": 1, "drover_findings{warning,claim_lag}": 1,
		"drover_redrives{running}": 1, "drover_redrives{paused}": 0,
		"drover_redrive_jobs{released}": 2, "drover_redrive_jobs{waiting}": 3, "drover_redrive_jobs{skipped}": 1,
	})

	if err := client.PauseRedrive(t.Context(), redrive.ID, drover.By{}); err != nil {
		t.Fatal(err)
	}
	expect(t, gather(t, metrics), map[string]float64{"drover_redrives{running}": 0, "drover_redrives{paused}": 1})
	if err := client.AbortRedrive(t.Context(), redrive.ID, drover.By{}); err != nil {
		t.Fatal(err)
	}
	expect(t, gather(t, metrics), map[string]float64{"drover_redrives{running}": 0, "drover_redrives{paused}": 0, "drover_redrive_jobs{waiting}": 0})
}

// lines counts what is logged.
type lines struct{ atomic.Int64 }

func (l *lines) Write(p []byte) (int, error) { l.Add(1); return len(p), nil }

// A database that is away costs the scrape its depths, and nothing else: the counters are there, and the log stays as it is.
func TestScrapeWithoutADatabase(t *testing.T) {
	t.Parallel()
	var away atomic.Bool
	pool := pgtest.NewMigratedPool(t, func(config *pgxpool.Config) {
		dial := config.ConnConfig.DialFunc
		config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if away.Load() {
				return nil, errors.New("away")
			}
			return dial(ctx, network, addr)
		}
	})
	var log lines
	client, err := drover.New(pool, drover.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	metrics := droverprom.New(droverprom.Options{MaxAge: time.Nanosecond, Timeout: time.Minute})
	metrics.Hooks().Completed(t.Context(), drover.Event{Queue: "q", Kind: "k"})
	if _, found := gather(t, metrics)["drover_up{}"]; found {
		t.Error("drover_up is there although nothing is watched")
	}
	metrics.Watch(client)
	expect(t, gather(t, metrics), map[string]float64{"drover_up{}": 1, "drover_supervisors{alive}": 0})

	away.Store(true)
	pool.Reset()
	for range 3 {
		got := gather(t, metrics)
		expect(t, got, map[string]float64{"drover_up{}": 0, "drover_outcomes_total{k,completed,q,}": 1})
		if _, found := got["drover_supervisors{alive}"]; found {
			t.Error("gauges of a database that does not answer")
		}
	}
	away.Store(false)
	expect(t, gather(t, metrics), map[string]float64{"drover_up{}": 1})
	if n := log.Load(); n != 0 {
		t.Errorf("%d lines in the log", n)
	}
}

// A table that somebody has locked keeps a scrape no longer than its timeout.
func TestScrapeHasATimeout(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewMigratedPool(t)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `lock table drover_supervisors in access exclusive mode`); err != nil {
		t.Fatal(err)
	}
	metrics := droverprom.New(droverprom.Options{Timeout: 50 * time.Millisecond})
	metrics.Watch(newClient(t, pool))
	began := time.Now()
	expect(t, gather(t, metrics), map[string]float64{"drover_up{}": 0})
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("the scrape took %v", took)
	}
}

// However many scrape, one reads.
func TestScrapesShareARead(t *testing.T) {
	t.Parallel()
	var reads atomic.Int64
	pool := pgtest.NewMigratedPool(t, func(config *pgxpool.Config) {
		config.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) { reads.Add(1); return true, nil }
	})
	client := newClient(t, pool)
	for _, test := range []struct {
		maxAge time.Duration
		reads  int64
	}{{time.Hour, 1}, {time.Nanosecond, 20}} {
		metrics := droverprom.New(droverprom.Options{MaxAge: test.maxAge, Timeout: time.Minute})
		metrics.Watch(client)
		registry := registered(t, metrics)
		reads.Store(0)
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if _, err := registry.Gather(); err != nil {
					t.Error(err)
				}
				metrics.Hooks().Completed(t.Context(), drover.Event{Queue: "q", Kind: "k"})
			})
		}
		all.Wait()
		if n := reads.Load(); n != 2*test.reads { // a snapshot and the list of redrives
			t.Errorf("%d connections taken at an age of %v", n, test.maxAge)
		}
	}
}

// A scrape next to 100,000 jobs reads few pages: counting them would read them all.
func TestScrapeReadsABoundedPart(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.NewMigratedPool(t, func(config *pgxpool.Config) { config.MaxConns = 1 })
	write(t, pool, `alter table jobs set (autovacuum_enabled = off)`) // its reads would be counted, too
	write(t, pool, `insert into jobs (kind, queue, args) select 'charge', 'q' || n % 3, jsonb_build_object('n', n) from generate_series(1, 80000) n`)
	write(t, pool, `insert into jobs (kind, queue, state, finalized_at, discard_reason) select 'charge', 'q0', 'discarded', now(), 'operator' from generate_series(1, 20000)`)
	write(t, pool, `vacuum analyze jobs`)
	blocks := func() (n int64) {
		write(t, pool, `select pg_stat_force_next_flush()`)
		write(t, pool, `select pg_stat_clear_snapshot()`)
		if err := pool.QueryRow(t.Context(), `
			select sum(coalesce(heap_blks_read, 0) + coalesce(heap_blks_hit, 0) + coalesce(idx_blks_read, 0) + coalesce(idx_blks_hit, 0))::bigint
			from pg_statio_user_tables where schemaname = current_schema()`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	metrics := droverprom.New(droverprom.Options{Timeout: time.Minute})
	metrics.Watch(newClient(t, pool))
	before := blocks()
	got := gather(t, metrics)
	scrape := blocks() - before
	expect(t, got, map[string]float64{"drover_up{}": 1})
	if got["drover_jobs{q0,discarded}"] < 500 {
		t.Errorf("%v dead letters", got["drover_jobs{q0,discarded}"])
	}
	before = blocks()
	write(t, pool, `select count(kind) from jobs`)
	whole := blocks() - before
	t.Logf("a scrape reads %d blocks, the whole table is %d", scrape, whole)
	if scrape > 3500 || scrape == 0 || whole < 5000 {
		t.Errorf("a scrape reads %d blocks, the whole table is %d", scrape, whole)
	}
	if got["drover_oldest_due_seconds{q1}"] <= 0 {
		t.Error("no oldest job")
	}
}
