package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/harness"
	"github.com/drover-queue/drover/internal/pg"
)

// oddSettings are what a database or a role may have set for every session.
func oddSettings() []map[string]string {
	return []map[string]string{
		{"datestyle": "SQL, DMY", "intervalstyle": "sql_standard", "timezone": "Asia/Kolkata", "extra_float_digits": "-15", "array_nulls": "off", "transform_null_equals": "on", "quote_all_identifiers": "on"},
		{"datestyle": "German", "intervalstyle": "iso_8601", "timezone": "America/St_Johns", "bytea_output": "escape", "plan_cache_mode": "force_generic_plan", "jit_above_cost": "0", "row_security": "off", "synchronous_commit": "off"},
		{"datestyle": "Postgres, YMD", "intervalstyle": "postgres_verbose", "timezone": "Europe/Dublin", "default_transaction_isolation": "serializable", "default_transaction_deferrable": "on", "plpgsql.extra_errors": "all", "client_min_messages": "debug5"},
	}
}

// C6: exec and simple_protocol get times and numbers as text. Whatever the settings of the session, a job's whole life
// is the same as everywhere.
func TestLifeInAnyDateStyle(t *testing.T) {
	t.Parallel()
	slow(t)
	for i, settings := range oddSettings() {
		modes := []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol}
		if i == 0 { // these get the same binary values as the first mode
			modes = append(modes, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec)
		}
		for _, mode := range modes {
			t.Run(settings["datestyle"]+" "+mode.String(), func(t *testing.T) {
				t.Parallel()
				plain := newQuietDB(t)
				var log harness.Logbook
				odd := plain.via(t, drover.Config{Logger: slog.New(&log)}, func(c *pgxpool.Config) {
					c.ConnConfig.DefaultQueryExecMode = mode
					for name, value := range settings {
						c.ConnConfig.RuntimeParams[name] = value
					}
				})
				l := &oddLife{testDB: odd, plain: plain, due: time.Now().Truncate(time.Microsecond)}
				l.enqueueAll(t)
				l.runAll(t)
				l.inspect(t)
				l.bringBack(t)
				l.putAway(t)
				for _, text := range log.From(slog.LevelWarn) {
					if !strings.HasPrefix(text, "job discarded") {
						t.Error("logged " + text)
					}
				}
			})
		}
	}
}

// oddLife is one life of some jobs, seen through odd settings.
type oddLife struct {
	*testDB
	plain *testDB // the same schema, without the settings
	sup   *drover.Supervisor
	due   time.Time
	ids   [6]string
}

const (
	lifeGood = iota
	lifeFails
	lifeDies
	lifeSnoozes
	lifeInTx
	lifeLater
)

func (l *oddLife) enqueueAll(t *testing.T) {
	t.Helper()
	l.ids[lifeGood] = l.enqueue(t, job{lifeGood}, nil)
	l.ids[lifeFails] = l.enqueue(t, job{lifeFails}, &drover.EnqueueOpts{ScheduledAt: l.due, Tags: []string{"a"}, ExpiresAt: time.Now().Add(time.Hour), RetryUntil: time.Now().Add(time.Hour), Timeout: time.Minute})
	receipts, err := l.client.EnqueueMany(t.Context(), []drover.EnqueueItem{{Args: job{lifeDies}}, {Args: job{lifeSnoozes}, Opts: &drover.EnqueueOpts{ScheduledAt: l.due}}})
	if err != nil {
		t.Fatal(err)
	}
	l.ids[lifeDies], l.ids[lifeSnoozes] = receipts[0].ID, receipts[1].ID
	tx, err := l.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	receipt, err := l.client.EnqueueTx(t.Context(), tx, job{lifeInTx}, &drover.EnqueueOpts{Delay: 10 * time.Millisecond, Key: "key"})
	if err = errors.Join(err, tx.Commit(t.Context())); err != nil {
		t.Fatal(err)
	}
	l.ids[lifeInTx] = receipt.ID
	l.ids[lifeLater] = l.enqueue(t, job{lifeLater}, &drover.EnqueueOpts{ScheduledAt: l.due.AddDate(500, 0, 0)})
}

func (l *oddLife) handle(ctx context.Context, j *drover.Job, n int) error {
	switch {
	case n == lifeFails && j.Attempt == 1:
		var due, claimed time.Time
		if err := l.plain.QueryRow(ctx, `select scheduled_at, attempted_at from jobs where id = $1`, j.ID).Scan(&due, &claimed); err != nil || !j.ScheduledAt.Equal(due) || !runOf(j).ClaimedAt.Equal(claimed) {
			return drover.Discard(fmt.Errorf("due at %v and not %v, claimed at %v and not %v, %w", j.ScheduledAt, due, runOf(j).ClaimedAt, claimed, err))
		}
		return errors.New("once")
	case n == lifeDies && j.Redrives == 0:
		return drover.Discard(errors.New("dead"))
	case n == lifeSnoozes && j.Snoozes == 0:
		return drover.Snooze(20 * time.Millisecond)
	case n == lifeInTx:
		tx, err := l.Begin(ctx)
		if err != nil {
			return err
		}
		return errors.Join(j.CompleteTx(ctx, tx), tx.Commit(ctx))
	}
	return nil
}

func (l *oddLife) runAll(t *testing.T) {
	t.Helper()
	workers := handling(l.handle)
	optsOf(&workers[0]).Retry = drover.Constant{Delay: 20 * time.Millisecond, Jitter: drover.NoJitter}
	optsOf(&workers[0]).RetryBudget = drover.RetryBudget{Retries: 60000}
	optsOf(&workers[0]).MaxAttempts = 2
	l.sup = l.run(t, drover.SupervisorConfig{Workers: workers, Queues: []drover.Queue{{}}, Lease: 10 * time.Minute}) // a heartbeat that comes late is logged, too
	t.Cleanup(func() {
		if t.Failed() {
			var jobs string
			err := l.plain.QueryRow(context.Background(), `select string_agg(concat_ws(' ', args, state, discard_reason, drover_last_error(errors)->>'error'), '; ') from jobs`).Scan(&jobs)
			t.Log(jobs, err)
		}
	})
	eventually(t, func() bool {
		return value[bool](t, l.plain, `select count(*) filter (where state = 'completed') = 4 and count(*) filter (where state = 'discarded') = 1 from jobs`)
	})
}

// same fails the test unless the time that was read is the one in the column.
func (l *oddLife) same(t *testing.T, what string, read time.Time, sql string, args ...any) {
	t.Helper()
	if want := value[time.Time](t, l.plain, sql, args...); !read.Equal(want) {
		t.Errorf("%s is %v, want %v", what, read, want)
	}
}

func (l *oddLife) inspect(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	for n, id := range l.ids {
		j, err := l.client.Job(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		l.same(t, "created_at", j.CreatedAt, `select created_at from jobs where id = $1`, id)
		l.same(t, "scheduled_at", j.ScheduledAt, `select scheduled_at from jobs where id = $1`, id)
		if n != lifeLater {
			l.same(t, "finalized_at", *j.FinalizedAt, `select finalized_at from jobs where id = $1`, id)
			l.same(t, "attempted_at", *j.AttemptedAt, `select attempted_at from jobs where id = $1`, id)
		}
	}
	if at := value[time.Time](t, l.plain, `select scheduled_at from jobs where id = $1`, l.ids[lifeLater]); !at.Equal(l.due.AddDate(500, 0, 0)) {
		t.Errorf("enqueued for %v, want %v", at, l.due.AddDate(500, 0, 0))
	}
	for _, filter := range []drover.Filter{{State: drover.Discarded, FinalizedAfter: time.Now().Add(-time.Hour)}, {Kind: "job", CreatedAfter: time.Now().Add(-time.Hour)}} {
		page, err := l.client.Jobs(ctx, filter, "", 1)
		if err != nil || len(page.Jobs) != 1 {
			t.Fatalf("Jobs = %+v, %v", page, err)
		}
		l.same(t, "listed created_at", page.Jobs[0].CreatedAt, `select created_at from jobs where id = $1`, page.Jobs[0].ID)
	}
	counts, err := l.client.Counts(ctx)
	if err != nil || len(counts) != 3 {
		t.Errorf("Counts = %+v, %v", counts, err)
	}
	summary, err := l.client.Summary(ctx)
	if err != nil || len(summary) != 1 {
		t.Fatalf("Summary = %+v, %v", summary, err)
	}
	l.same(t, "last_discarded_at", summary[0].LastDiscardedAt, `select finalized_at from jobs where state = 'discarded'`)
	var groups []drover.FailureGroup
	eventually(t, func() bool { // a heartbeat adds them up
		harness.EngineOf(l.sup).Keeper.Interrupt()
		groups, err = l.client.FailureGroups(ctx, drover.FailureFilter{})
		return err != nil || len(groups) == 2
	})
	if err != nil {
		t.Fatal(err)
	}
	l.same(t, "last_seen", groups[0].LastSeen, `select last_seen from drover_failure_groups where fingerprint = $1`, groups[0].Fingerprint)
	if _, err := l.client.FailureGroup(ctx, groups[0].Fingerprint); err != nil {
		t.Error(err)
	}
	if s, err := l.client.Snapshot(ctx); err != nil || len(s.NotSeen) > 0 || time.Since(s.At).Abs() > time.Hour || len(s.Queues) == 0 {
		t.Errorf("Snapshot = %+v, %v", s, err)
	}
	if budgets, err := l.client.RetryBudgets(ctx); err != nil || len(budgets) != 1 || budgets[0].Per != time.Minute || time.Since(budgets[0].NextFree).Abs() > time.Hour {
		t.Errorf("RetryBudgets = %+v, %v", budgets, err)
	}
}

// bringBack redrives the dead letter at a pace.
func (l *oddLife) bringBack(t *testing.T) {
	t.Helper()
	plan := drover.RedrivePlan{Filter: drover.Filter{State: drover.Discarded, FinalizedAfter: time.Now().Add(-time.Hour)}, Rate: 1234.5678}
	if groups, err := l.client.PreviewRedrive(t.Context(), plan); err != nil || len(groups) != 1 {
		t.Errorf("PreviewRedrive = %+v, %v", groups, err)
	}
	r, err := l.client.StartRedrive(t.Context(), plan, drover.Audit{})
	if err != nil {
		t.Fatal(err)
	}
	l.same(t, "created_at of a redrive", r.CreatedAt, `select created_at from drover_redrives`)
	eventually(t, func() bool {
		list, err := l.client.Redrives(t.Context(), 10)
		if err != nil || len(list) != 1 || list[0].Rate != 1234.5678 {
			t.Fatalf("Redrives = %+v, %v", list, err)
		}
		return list[0].State == drover.RedriveDone && value[string](t, l.plain, `select state from jobs where id = $1`, l.ids[lifeDies]) == "completed"
	})
}

func (l *oddLife) putAway(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	filter := drover.Filter{State: drover.Completed, FinalizedAfter: time.Now().Add(-time.Hour)}
	if moved, err := l.client.Archive(ctx, filter, nil, drover.Audit{}); err != nil || moved.Jobs != 5 {
		t.Errorf("Archive = %+v, %v", moved, err)
	}
	var lines bytes.Buffer
	if n, err := l.client.ExportArchive(ctx, &lines, filter); err != nil || n != 5 || strings.Count(lines.String(), "\n") != 5 {
		t.Errorf("ExportArchive = %d, %v", n, err)
	}
	if moved, err := l.client.Restore(ctx, filter, drover.Audit{}); err != nil || moved.Jobs != 5 {
		t.Errorf("Restore = %+v, %v", moved, err)
	}
	if done, err := l.client.DeleteMany(ctx, drover.Filter{State: drover.Completed, FinalizedBefore: time.Now().Add(time.Hour)}, drover.Audit{}); err != nil || done.Changed != 5 {
		t.Errorf("DeleteMany = %+v, %v", done, err)
	}
	if state, err := l.client.Cancel(ctx, l.ids[lifeLater], drover.Audit{}); err != nil || state != drover.Scheduled {
		t.Errorf("Cancel = %v, %v", state, err)
	}
}

// A supervisor that dies leaves its jobs to others, whose reading of its rows no setting changes.
func TestRescueInAnyDateStyle(t *testing.T) {
	t.Parallel()
	slow(t)
	for _, settings := range oddSettings() {
		t.Run(settings["datestyle"], func(t *testing.T) {
			t.Parallel()
			plain := newQuietDB(t)
			id := plain.enqueue(t, job{1}, nil)
			plain.exec(t, `insert into drover_supervisors (id, lease_ms, queues, beat_at) values ('dead', 1000, '{default}', now() - interval '1 hour')`)
			plain.exec(t, `update jobs set state = 'running', claimed_by = 'dead', attempt = 1, claim_seq = 1, attempted_at = now() - interval '1 hour'`)
			var ran atomic.Bool
			var log harness.Logbook
			workers := handling(func(_ context.Context, j *drover.Job, _ int) error {
				ran.Store(j.ID == id && j.Attempt == 2)
				return nil
			})
			optsOf(&workers[0]).Retry = drover.Constant{Delay: time.Millisecond}
			plain.via(t, drover.Config{Logger: slog.New(&log)}, func(c *pgxpool.Config) {
				c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
				for name, value := range settings {
					c.ConnConfig.RuntimeParams[name] = value
				}
			}).run(t, drover.SupervisorConfig{Lease: 6 * time.Second, Queues: []drover.Queue{{}}, Workers: workers}) // a lease that was lost would cost an attempt
			eventually(t, func() bool {
				for _, text := range log.From(slog.LevelWarn) {
					if strings.Contains(text, "date/time") || strings.Contains(text, "scan") {
						t.Fatal("logged " + text)
					}
				}
				return ran.Load()
			})
		})
	}
}

// L4: a standby is known by what no lc_messages translates.
func TestAStandbyInAnyLanguage(t *testing.T) {
	t.Parallel()
	refused := &pgconn.PgError{Code: "0A000", Message: "kann den Transaktionsmodus nicht auf Lesen/Schreiben setzen", Routine: "call_bool_check_hook"}
	if err := pg.Classify(refused); !errors.Is(err, drover.ErrReadOnly) {
		t.Errorf("in German: %v", err)
	}
	for _, routine := range []string{"RevalidateCachedQuery", "transformOnConflictClause", "rewriteRuleAction", ""} {
		if err := pg.Classify(&pgconn.PgError{Code: "0A000", Message: "not during recovery", Routine: routine}); errors.Is(err, drover.ErrReadOnly) {
			t.Errorf("%s: %v", routine, err)
		}
	}
}
