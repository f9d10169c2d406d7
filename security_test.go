package drover

import (
	"bufio"
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
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/migrations"
)

// what a job's error says cannot pass for a line of the log, nor move a terminal's cursor: a record is a line, its
// message is ours, and what is not printable is escaped.
func TestLogsCannotBeForged(t *testing.T) {
	t.Parallel()
	const forged = "card declined\nlevel=ERROR msg=\"all jobs lost\"\r\n{\"msg\":\"all jobs lost\"}\x1b[2J\x1b]0;owned\a\u2028"
	for name, handler := range map[string]func(*lockedBuffer) slog.Handler{
		"text": func(b *lockedBuffer) slog.Handler { return slog.NewTextHandler(b, nil) },
		"json": func(b *lockedBuffer) slog.Handler { return slog.NewJSONHandler(b, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log lockedBuffer
			var heard eventLog
			db := newTestDBWith(t, Config{Logger: slog.New(handler(&log)), Hooks: []Hooks{heard.hooks()}})
			sup := db.launch(t, SupervisorConfig{Workers: []Worker{
				dynWorker("fails", WorkerOpts{MaxAttempts: 1}, func(context.Context, *Job) error { return errors.New(forged) }),
				dynWorker("panics", WorkerOpts{DiscardOnPanic: true}, func(context.Context, *Job) error { panic(forged) }),
				dynWorker("cancels", WorkerOpts{}, func(context.Context, *Job) error { return Cancel(errors.New(forged)) }),
			}})
			for _, kind := range []string{"fails", "panics", "cancels"} {
				heard.end(t, db.enqueue(t, dyn{kind: kind}, nil))
			}
			if _, err := db.client.Cancel(t.Context(), db.enqueue(t, dyn{kind: "nobody's"}, nil), forged); err != nil {
				t.Error(err)
			}
			sup.stop(t)
			seen := 0
			for lines := bufio.NewScanner(bytes.NewReader(log.Bytes())); lines.Scan(); {
				line := lines.Text()
				if !strings.HasPrefix(line, `time=`) && !strings.HasPrefix(line, `{"time":`) || strings.Contains(line, `"msg":"all jobs lost"`) {
					t.Errorf("a forged record: %q", line)
				}
				if strings.ContainsAny(line, "\x1b\a\r\u2028") {
					t.Errorf("not escaped: %q", line)
				}
				if strings.Contains(line, "card declined") {
					seen++
				}
			}
			if seen < 3 {
				t.Errorf("%d records tell of the errors:\n%s", seen, log.Bytes())
			}
		})
	}
}

// X-7, F-10: the DETAIL of a database error quotes the row. It reaches neither the job's errors nor the log nor the
// events, however the error comes: from a handler, or from a trigger that refuses what drover writes.
func TestDetailsOfDatabaseErrorsStayOut(t *testing.T) {
	t.Parallel()
	const secret = "ann@example.com"
	var log lockedBuffer
	var heard eventLog
	db := newTestDBWith(t, Config{Logger: slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})), Hooks: []Hooks{heard.hooks()}})
	db.exec(t, `create table customers (email text unique)`)
	insert := func(ctx context.Context) error {
		_, err := db.Exec(ctx, `insert into customers values ($1)`, secret)
		return err
	}
	if err := insert(t.Context()); err != nil {
		t.Fatal(err)
	}
	sup := db.launch(t, SupervisorConfig{Workers: []Worker{
		dynWorker("returns", WorkerOpts{}, func(ctx context.Context, _ *Job) error { return fmt.Errorf("store: %w", insert(ctx)) }),
		dynWorker("panics", WorkerOpts{}, func(ctx context.Context, _ *Job) error { panic(insert(ctx)) }),
		dynWorker("refused", WorkerOpts{}, func(context.Context, *Job) error { return nil }),
	}})
	for _, kind := range []string{"returns", "panics"} {
		if e := heard.end(t, db.enqueue(t, dyn{kind: kind}, nil)); !strings.Contains(e.Error, "23505") || strings.Contains(fmt.Sprintf("%+v", e), secret) {
			t.Errorf("%s: the event tells %+v", kind, e)
		}
	}
	db.exec(t, `create function refuse() returns trigger language plpgsql as $$
		begin if new.kind = 'refused' and new.state = 'completed' then raise unique_violation using detail = 'Key (email)=(`+secret+`)'; end if; return new; end $$`)
	db.exec(t, `create trigger refuse before update on jobs for each row execute function refuse()`)
	db.enqueue(t, dyn{kind: "refused"}, nil)
	eventually(t, func() bool { return bytes.Contains(log.Bytes(), []byte("outcome refused by the database")) })
	db.exec(t, `drop trigger refuse on jobs`)
	sup.stop(t)
	if bytes.Contains(log.Bytes(), []byte(secret)) {
		t.Errorf("the log tells it:\n%s", log.Bytes())
	}
	if n := value[int](t, db, `select count(*) from jobs where errors::text like '%' || $1 || '%'`, secret); n > 0 {
		t.Errorf("%d rows tell it", n)
	}
}

// whatever goes wrong with a connection, its password is told nowhere.
func TestNoErrorTellsThePassword(t *testing.T) {
	t.Parallel()
	const secret = "correct-horse-battery"
	db := newTestDB(t)
	for name, edit := range map[string]func(*pgxpool.Config){
		"a wrong password": func(c *pgxpool.Config) { c.ConnConfig.User = pgtest.Schema(db.Pool) },
		"nobody listens":   func(c *pgxpool.Config) { c.ConnConfig.Host, c.ConnConfig.Port = "127.0.0.1", 1 },
		"no such database": func(c *pgxpool.Config) { c.ConnConfig.Database = "nowhere" },
	} {
		var log lockedBuffer
		pool := db.samePool(t, func(c *pgxpool.Config) {
			c.ConnConfig.Password, c.ConnConfig.Fallbacks = secret, nil
			edit(c)
		})
		client := newClientOn(t, pool, Config{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
		sup, err := client.Supervisor(SupervisorConfig{Queues: []Queue{{}}, Workers: doingNothing()})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		_, enqueued := client.Enqueue(ctx, letter{}, nil)
		for what, err := range map[string]error{"Check": client.Check(ctx), "Enqueue": enqueued, "Run": sup.Run(ctx)} {
			if what != "Run" && err == nil {
				t.Errorf("%s: %s: no error", name, what)
			}
			for text := range strings.Lines(fmt.Sprintf("%v %+v %#v", err, err, errors.Unwrap(err))) {
				if strings.Contains(text, secret) {
					t.Errorf("%s: %s tells the password: %s", name, what, text)
				}
			}
		}
		cancel()
		if bytes.Contains(log.Bytes(), []byte(secret)) {
			t.Errorf("%s: the log tells the password:\n%s", name, log.Bytes())
		}
	}
}

// a schema, queues, kinds, tags and keys whose names look like SQL are names, from an enqueue to a redrive.
func TestNamesAreNames(t *testing.T) {
	t.Parallel()
	admin := newTestDB(t)
	const hostile = `x'); drop table jobs; --"%s\$1`
	quoted := pgx.Identifier{hostile + pgtest.Schema(admin.Pool)}.Sanitize()
	admin.exec(t, `create schema `+quoted)
	t.Cleanup(func() {
		if _, err := admin.Exec(context.Background(), `drop schema `+quoted+` cascade`); err != nil {
			t.Error(err)
		}
	})
	pool := admin.samePool(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["search_path"] = quoted })
	if err := migrations.Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	db := &testDB{pool, newClientOn(t, pool, Config{Logger: quiet()})}
	var mended atomic.Bool
	ran := make(chan struct{}, 1)
	db.launch(t, SupervisorConfig{
		Queues: []Queue{{Name: hostile, RetryBudget: RetryBudget{Retries: 100}}}, Build: hostile, PollInterval: time.Minute,
		Workers: []Worker{dynWorker(hostile, WorkerOpts{MaxAttempts: 1, FollowUp: &FollowUp{Kind: hostile + "2", Queue: hostile}}, func(context.Context, *Job) error {
			ran <- struct{}{}
			if !mended.Load() {
				return errors.New(hostile)
			}
			return nil
		})},
	})
	db.waitFor(t, 30*time.Second, `select exists (select from sleepers where sleeps_until = 'infinity')`)
	opts := &EnqueueOpts{Queue: hostile, Tags: []string{hostile, `{"`}, ConcurrencyKey: hostile, Metadata: map[string]any{"a'b": 1}}
	id := db.enqueue(t, dyn{kind: hostile}, opts)
	receive(t, ran)
	db.waitFor(t, 30*time.Second, `select state = 'discarded' from jobs where id = $1`, id)
	mended.Store(true)
	filter := Filter{Queue: hostile, Kind: hostile, Tags: []string{hostile}, Error: hostile, State: Discarded}
	if _, err := db.client.Redrive(t.Context(), RedrivePlan{Filter: filter, PerKey: 1, By: hostile, Why: hostile}); err != nil {
		t.Fatal(err)
	}
	receive(t, ran)
	db.waitFor(t, 30*time.Second, `select state = 'completed' from jobs where id = $1`, id)
	if _, err := db.client.Cancel(t.Context(), db.enqueue(t, dyn{kind: hostile + "3"}, opts), hostile); err != nil {
		t.Error(err)
	}
	if n := value[int](t, db, `select count(*) from jobs where kind in ($1, $1 || '2', $1 || '3') and queue = $1`, hostile); n != 3 {
		t.Errorf("%d jobs, want 3", n)
	}
}

// what a caller's own session puts before drover's names is not what drover's functions find: neither in pg_temp nor
// in a schema that stands first.
func TestFunctionsIgnoreWhatHidesTheirNames(t *testing.T) {
	t.Parallel()
	c := newCast(t)
	evil := pgx.Identifier{c.schema + " evil"}.Sanitize()
	c.exec(t, `create schema `+evil+` authorization `+pgx.Identifier{c.name("operator")}.Sanitize())
	ids := c.enqueueWaiting(t, 4)
	operator := c.as(t, "operator", Config{})
	conn, err := operator.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = conn.Conn().Close(context.Background()) // its session is spoilt
		conn.Release()
	}()
	for _, sql := range []string{
		`create temp table jobs (like ` + c.schema + `.jobs)`,
		`create temp table redrives (like ` + c.schema + `.redrives)`,
		`create table ` + evil + `.jobs (like ` + c.schema + `.jobs)`,
		`create function ` + evil + `.drover_end(text, text, text) returns text language sql as 'select ''hijacked'''`,
		`create function ` + evil + `.drover_where(jsonb, text) returns text language sql as 'select ''false'''`,
		`create function ` + evil + `.drover_append_error(jsonb, jsonb) returns jsonb language sql as 'select ''[]''::jsonb'`,
		`create function ` + evil + `.clock_timestamp() returns timestamptz language sql as 'select ''-infinity''::timestamptz'`,
		`set search_path = pg_temp, ` + evil + `, pg_catalog, ` + c.schema,
		`select ` + c.schema + `.drover_cancel('` + ids[0] + `')`,
		`select ` + c.schema + `.drover_discard('` + ids[1] + `')`,
		`select ` + c.schema + `.drover_cancel_many('{"ids": ["` + ids[2] + `"]}')`,
		`select ` + c.schema + `.drover_redrive('` + ids[0] + `')`,
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	want := []State{Available, Discarded, Cancelled, Available}
	for i, id := range ids {
		if state := value[State](t, c.testDB, `select state from jobs where id = $1`, id); state != want[i] {
			t.Errorf("job %d is %s, want %s", i, state, want[i])
		}
	}
	if n := value[int](t, c.testDB, `select count(*) from jobs where finalized_at > now() - interval '1 h' and jsonb_array_length(errors) = 1`); n != 2 {
		t.Errorf("%d jobs ended as the functions say, want 2", n)
	}
}
