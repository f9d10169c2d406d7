package droverprom_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
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

// The gauges agree with the rows.
func TestGaugesAgreeWithTheRows(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewMigratedPool(t)
	client := newClient(t, pool)
	if err := client.Pause(t.Context(), drover.QueueScope("q1"), nil, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	write(t, pool, `insert into jobs (kind, queue, scheduled_at) select 'charge', 'payments', now() - interval '1 h' from generate_series(1, 3)`)
	write(t, pool, `insert into jobs (kind, queue) values ('resize', 'q1'), ('resize', 'q2')`)
	write(t, pool, `insert into jobs (kind, queue, state, crashes) values ('resize', 'q2', 'retryable', 1)`)
	write(t, pool, `insert into jobs (kind, queue, state, finalized_at, discard_reason) select 'charge', 'payments', 'discarded', now(), 'operator' from generate_series(1, 5)`)
	write(t, pool, `insert into drover_supervisors (id, lease_ms, queues, slots, in_flight, beat_at, lost_at) values
		('alive', 30000, '{payments,empty}', '{"payments": 7}', '{a,b}', now(), null),
		('silent', 30000, '{payments}', '{"payments": 9}', '{c}', now() - interval '1 min', null),
		('lost', 30000, '{payments}', '{"payments": 9}', '{}', now() - interval '1 min', now())`)
	write(t, pool, `insert into drover_set_aside (path, job, error, code, retry_at) values ('rescue', 'x', 'cursed', 'P0001', now())`)
	redrive, err := client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: drover.Filter{Queue: "payments"}}, drover.Audit{})
	if err != nil {
		t.Fatal(err)
	}
	write(t, pool, `update drover_redrives set matched = 5, released = 2, skipped = 1 where id = $1`, redrive.ID)

	metrics := droverprom.New(droverprom.Options{MaxQueues: 2, MaxAge: time.Nanosecond, Timeout: time.Minute})
	metrics.Watch(client)
	got := gather(t, metrics)
	if age := got["drover_oldest_due_seconds{payments}"]; age < 3600 || age > 7200 {
		t.Errorf("the oldest due job is %v s old", age)
	}
	expect(t, got, map[string]float64{
		"drover_up{}": 1, "drover_jobs{payments,available}": 3, "drover_jobs{payments,discarded}": 5, "drover_jobs{payments,running}": 0,
		"drover_jobs{other,available}": 2, "drover_jobs{other,retryable}": 1, "drover_jobs{empty,available}": 0, "drover_oldest_due_seconds{empty}": 0,
		"drover_jobs_estimated{payments}": 0, "drover_due{payments}": 3, "drover_due{other}": 3, "drover_due{empty}": 0, "drover_paused{queue:q1}": 1, "drover_suspects{}": 1, "drover_set_aside{}": 1,
		"drover_supervisors{alive}": 1, "drover_supervisors{silent}": 1, "drover_supervisors{lost}": 1, "drover_supervisors{draining}": 0, "drover_in_flight{}": 2,
		"drover_findings{warning,supervisors}": 1, "drover_findings{warning,claim_lag}": 1,
		"drover_redrives{running}": 1, "drover_redrives{paused}": 0,
		"drover_redrive_jobs{released}": 2, "drover_redrive_jobs{waiting}": 3, "drover_redrive_jobs{skipped}": 1,
	})

	if err := client.PauseRedrive(t.Context(), redrive.ID, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	expect(t, gather(t, metrics), map[string]float64{"drover_redrives{running}": 0, "drover_redrives{paused}": 1})
	if err := client.AbortRedrive(t.Context(), redrive.ID, drover.Audit{}); err != nil {
		t.Fatal(err)
	}
	expect(t, gather(t, metrics), map[string]float64{"drover_redrives{running}": 0, "drover_redrives{paused}": 0, "drover_redrive_jobs{waiting}": 0})
}

// The maximum over processes, summed over queues, is the number of jobs, whatever queues each process has worked on:
// docs/metrics.md and DroverDeadLetters compute it so.
func TestDepthsOfManyQueuesAddUpOverProcesses(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewMigratedPool(t)
	client := newClient(t, pool)
	write(t, pool, `insert into jobs (kind, queue, state, finalized_at, discard_reason)
		select 'charge', q, 'discarded', now(), 'operator' from unnest('{a,b,c}'::text[]) q, generate_series(1, 60)`)
	most := map[string]float64{} // by series
	for _, first := range []string{"a", "b"} {
		metrics := droverprom.New(droverprom.Options{MaxQueues: 1, Timeout: time.Minute})
		metrics.Hooks().Started(t.Context(), drover.Event{Queue: first}) // the only queue that the counters name
		metrics.Watch(client)
		got := gather(t, metrics)
		expect(t, got, map[string]float64{"drover_wait_seconds{" + first + "}": 1})
		for name, n := range got {
			if strings.HasPrefix(name, "drover_jobs{") {
				most[name] = max(most[name], n)
			}
		}
	}
	expect(t, most, map[string]float64{"drover_jobs{a,discarded}": 60, "drover_jobs{other,discarded}": 120})
	if _, found := most["drover_jobs{b,discarded}"]; found {
		t.Error("two queues have a label of their own")
	}
}

// A part that cannot be read is missing, not zero, and the scrape has its name.
func TestScrapeWithoutAllRights(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewMigratedPool(t)
	role := pgtest.Schema(pool) + "_guest"
	write(t, pool, `create role `+role)
	t.Cleanup(func() {
		for _, sql := range []string{`drop owned by ` + role, `drop role ` + role} {
			if _, err := pool.Exec(context.Background(), sql); err != nil {
				t.Error(err)
			}
		}
	})
	write(t, pool, `grant usage on schema `+pgtest.Schema(pool)+` to `+role)
	write(t, pool, `grant select on jobs, drover_limits, drover_supervisors to `+role)
	config := pool.Config()
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "set role "+role)
		return err
	}
	guest, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer guest.Close()
	metrics := droverprom.New(droverprom.Options{Timeout: time.Minute})
	metrics.Watch(newClient(t, guest))
	got := gather(t, metrics)
	expect(t, got, map[string]float64{"drover_up{}": 1, "drover_not_seen{redrives}": 1, "drover_not_seen{set_aside}": 1, "drover_supervisors{alive}": 0, "drover_suspects{}": 0})
	for _, name := range []string{"drover_redrives{running}", "drover_set_aside{}", "drover_not_seen{depths}"} {
		if _, found := got[name]; found {
			t.Errorf("%s is there", name)
		}
	}
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

// A table that somebody has locked keeps a scrape no longer than its timeout, and holds up no hook meanwhile.
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
	metrics := droverprom.New(droverprom.Options{Timeout: 300 * time.Millisecond})
	metrics.Watch(newClient(t, pool))
	registry := registered(t, metrics)
	scraped := make(chan error, 1)
	go func() {
		_, err := registry.Gather()
		scraped <- err
	}()
	hooks, timeout := metrics.Hooks(), time.After(30*time.Second)
	for done := false; !done; hooks.Completed(t.Context(), drover.Event{Queue: "q", Kind: "k"}) {
		select {
		case err := <-scraped:
			done = true
			if err != nil {
				t.Error(err)
			}
		case <-timeout:
			t.Fatal("the scrape hangs")
		case <-time.After(time.Millisecond):
		}
	}
	if n := gather(t, metrics)["drover_outcomes_total{k,completed,q,}"]; n < 10 {
		t.Errorf("%v events were counted while a scrape waited for a lock", n)
	}
	expect(t, gather(t, metrics), map[string]float64{"drover_up{}": 0})
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
		if n := reads.Load(); n != test.reads {
			t.Errorf("%d connections taken at an age of %v", n, test.maxAge)
		}
	}
}
