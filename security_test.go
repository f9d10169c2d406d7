package drover_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
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
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/migrations"
)

// pgx takes a URL in quotes for a keyword string: it would send the password to the server of PGHOST, and the server would
// quote it in its error.
func TestAMalformedConnectionStringIsRefused(t *testing.T) {
	t.Parallel()
	for _, given := range []string{`"postgres://u:secret@h/db?sslmode=disable"`, "POSTGRES://u:secret@h/db?sslmode=disable", "postgres://u:p@secret@h/db"} {
		config, err := pgxpool.ParseConfig(given)
		if err != nil {
			t.Fatal(err)
		}
		dials := func(context.Context, string, string) (net.Conn, error) {
			t.Errorf("%s: a connection is made", given)
			return nil, errors.New("refused")
		}
		config.ConnConfig.DialFunc = dials
		config.ConnConfig.LookupFunc = func(_ context.Context, host string) ([]string, error) { return []string{host}, nil }
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		_, err = drover.New(pool, drover.Config{})
		if !errors.Is(err, drover.ErrInvalid) || strings.Contains(err.Error(), "secret") {
			t.Errorf("New: %v", err)
		}
		if err := migrations.Up(t.Context(), pool); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("Up: %v", err)
		}
	}
}

// Names that look odd, but are legal, do not make a pool's string malformed.
func TestOddNamesMakeNoMalformedString(t *testing.T) {
	t.Parallel()
	for _, given := range []string{
		"postgres://svc%3Aapp@h/app%40prod?application_name=https://me@x", "postgres://u@[fe80::1%25br-lan]/a%26b", "host='db1, db2' options='-c app.password=x'",
	} {
		config, err := pgxpool.ParseConfig(given)
		if err != nil {
			t.Fatal(err)
		}
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		if _, err := drover.New(pool, drover.Config{}); err != nil {
			t.Errorf("%s: %v", given, err)
		}
	}
}

// The server quotes a parameter that it refuses, in which a slip of the pen may have put the password.
func TestARefusedParameterIsNotQuoted(t *testing.T) {
	t.Parallel()
	config, err := pgxpool.ParseConfig(pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.RuntimeParams["statement_timeout"] = "5ssecret"
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	var log lockedBuffer
	client := harness.NewClient(t, pool, drover.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	sup, err := client.NewSupervisor(drover.SupervisorConfig{
		Queues: []drover.Queue{{}}, Workers: []drover.Worker{drover.Handle(func(context.Context, *drover.Job, letter) error { return nil }, drover.WorkerOpts{})},
	})
	if err != nil {
		t.Fatal(err)
	}
	_, enqueue := client.Enqueue(t.Context(), letter{}, nil)
	_, get := client.Job(t.Context(), strings.Repeat("0", 26))
	_, cancel := client.Cancel(t.Context(), strings.Repeat("0", 26), drover.Audit{})
	for name, err := range map[string]error{
		"Enqueue": enqueue, "Job": get, "Cancel": cancel, "Check": client.Check(t.Context()), "Up": migrations.Up(t.Context(), pool), "Run": sup.Run(t.Context()),
	} {
		if err == nil || !strings.Contains(err.Error(), "refuses a parameter") || strings.Contains(err.Error(), "secret") || pg.SQLState(err) != "22023" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if strings.Contains(string(log.Bytes()), "secret") {
		t.Errorf("the log: %s", string(log.Bytes()))
	}
}

// the text of a job's error cannot pass for a line of the log, nor move a terminal's cursor. A record is a line, its
// message is ours, and characters that cannot be printed are escaped.
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
			var heard harness.EventLog
			db := newTestDBWith(t, drover.Config{Logger: slog.New(handler(&log)), Hooks: []drover.Hooks{heard.Hooks()}})
			sup := db.launch(t, drover.SupervisorConfig{Workers: []drover.Worker{
				dynWorker("fails", drover.WorkerOpts{MaxAttempts: 1}, func(context.Context, *drover.Job) error { return errors.New(forged) }),
				dynWorker("panics", drover.WorkerOpts{DiscardOnPanic: true}, func(context.Context, *drover.Job) error { panic(forged) }),
				dynWorker("cancels", drover.WorkerOpts{}, func(context.Context, *drover.Job) error { return drover.Cancel(errors.New(forged)) }),
			}})
			for _, kind := range []string{"fails", "panics", "cancels"} {
				heard.End(t, db.enqueue(t, dyn{kind: kind}, nil))
			}
			if _, err := db.client.Cancel(t.Context(), db.enqueue(t, dyn{kind: "nobody's"}, nil), drover.Audit{Why: forged}); !errors.Is(err, drover.ErrInvalid) {
				t.Error(err)
			}
			sup.Stop(t)
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
	var heard harness.EventLog
	db := newTestDBWith(t, drover.Config{Logger: slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})), Hooks: []drover.Hooks{heard.Hooks()}})
	db.exec(t, `create table customers (email text unique)`)
	insert := func(ctx context.Context) error {
		_, err := db.Exec(ctx, `insert into customers values ($1)`, secret)
		return err
	}
	if err := insert(t.Context()); err != nil {
		t.Fatal(err)
	}
	sup := db.launch(t, drover.SupervisorConfig{Workers: []drover.Worker{
		dynWorker("returns", drover.WorkerOpts{}, func(ctx context.Context, _ *drover.Job) error { return fmt.Errorf("store: %w", insert(ctx)) }),
		dynWorker("panics", drover.WorkerOpts{}, func(ctx context.Context, _ *drover.Job) error { panic(insert(ctx)) }),
		dynWorker("refused", drover.WorkerOpts{}, func(context.Context, *drover.Job) error { return nil }),
	}})
	for _, kind := range []string{"returns", "panics"} {
		if e := heard.End(t, db.enqueue(t, dyn{kind: kind}, nil)); !strings.Contains(e.Error, "23505") || strings.Contains(fmt.Sprintf("%+v", e), secret) {
			t.Errorf("%s: the event tells %+v", kind, e)
		}
	}
	db.exec(t, `create function refuse() returns trigger language plpgsql as $$
		begin if new.kind = 'refused' and new.state = 'completed' then raise unique_violation using detail = 'Key (email)=(`+secret+`)'; end if; return new; end $$`)
	db.exec(t, `create trigger refuse before update on jobs for each row execute function refuse()`)
	db.enqueue(t, dyn{kind: "refused"}, nil)
	eventually(t, func() bool { return bytes.Contains(log.Bytes(), []byte("the database refuses a job")) })
	db.exec(t, `drop trigger refuse on jobs`)
	sup.Stop(t)
	if bytes.Contains(log.Bytes(), []byte(secret)) {
		t.Errorf("the log tells it:\n%s", log.Bytes())
	}
	if n := value[int](t, db, `select count(*) from jobs where errors::text like '%' || $1 || '%'`, secret); n > 0 {
		t.Errorf("%d rows tell it", n)
	}
}

// whatever goes wrong with a connection, its password appears nowhere.
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
		client := harness.NewClient(t, pool, drover.Config{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
		sup, err := client.NewSupervisor(drover.SupervisorConfig{Queues: []drover.Queue{{}}, Workers: harness.DoingNothing()})
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
	slow(t)
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
	db := dbOn(pool, harness.NewClient(t, pool, drover.Config{Logger: quiet()}))
	var mended atomic.Bool
	ran := make(chan struct{}, 1)
	db.launch(t, drover.SupervisorConfig{
		Queues: []drover.Queue{{Name: hostile, RetryBudget: drover.RetryBudget{Retries: 100}}}, Build: hostile, PollInterval: time.Minute,
		Workers: []drover.Worker{dynWorker(hostile, drover.WorkerOpts{MaxAttempts: 1, FollowUp: &drover.FollowUp{Kind: hostile + "2", Queue: hostile}}, func(context.Context, *drover.Job) error {
			ran <- struct{}{}
			if !mended.Load() {
				return errors.New(hostile)
			}
			return nil
		})},
	})
	db.waitFor(t, 30*time.Second, ``+harness.SQLAsleep)
	opts := &drover.EnqueueOpts{Queue: hostile, Tags: []string{hostile, `{"`}, Key: hostile, Metadata: map[string]any{"a'b": 1}}
	id := db.enqueue(t, dyn{kind: hostile}, opts)
	receive(t, ran)
	db.waitFor(t, 30*time.Second, `select state = 'discarded' from jobs where id = $1`, id)
	mended.Store(true)
	filter := drover.Filter{Queue: hostile, Kind: hostile, Tags: []string{hostile}, Error: hostile, State: drover.Discarded}
	if _, err := db.client.StartRedrive(t.Context(), drover.RedrivePlan{Filter: filter, PerKey: 1}, drover.Audit{By: hostile, Why: hostile}); err != nil {
		t.Fatal(err)
	}
	receive(t, ran)
	db.waitFor(t, 30*time.Second, `select state = 'completed' from jobs where id = $1`, id)
	if _, err := db.client.Cancel(t.Context(), db.enqueue(t, dyn{kind: hostile + "3"}, opts), drover.Audit{Why: hostile}); err != nil {
		t.Error(err)
	}
	if n := value[int](t, db, `select count(*) from jobs where kind in ($1, $1 || '2', $1 || '3') and queue = $1`, hostile); n != 3 {
		t.Errorf("%d jobs, want 3", n)
	}
}

// a caller's own session cannot make drover's functions find objects of its own, neither in pg_temp nor in a schema
// that comes first in search_path.
func TestFunctionsIgnoreWhatHidesTheirNames(t *testing.T) {
	t.Parallel()
	c := newCast(t)
	evil := pgx.Identifier{c.schema + " evil"}.Sanitize()
	c.exec(t, `create schema `+evil+` authorization `+pgx.Identifier{c.name("operator")}.Sanitize())
	ids := c.enqueueWaiting(t, 4)
	operator := c.as(t, "operator", drover.Config{})
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
		`create temp table drover_redrives (like ` + c.schema + `.drover_redrives)`,
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
	want := []drover.State{drover.Available, drover.Discarded, drover.Cancelled, drover.Available}
	for i, id := range ids {
		if state := value[drover.State](t, c.testDB, `select state from jobs where id = $1`, id); state != want[i] {
			t.Errorf("job %d is %s, want %s", i, state, want[i])
		}
	}
	if n := value[int](t, c.testDB, `select count(*) from jobs where finalized_at > now() - interval '1 h' and jsonb_array_length(errors) = 1`); n != 2 {
		t.Errorf("%d jobs ended as the functions say, want 2", n)
	}
}

// tooMuch are inputs that a role with the right to enqueue may try. Each is for one parameter of drover_enqueue.
func tooMuch() []struct{ field, sql string } {
	const deep = `(repeat('[', %[1]d) || repeat(']', %[1]d))::jsonb`
	return []struct{ field, sql string }{
		{"kind", `null::text`},
		{"kind", `''`},
		{"kind", `repeat('k', 129)`},
		{"kind", `repeat('é', 65)`},
		{"kind", `E'a\nb'`},
		{"kind", `E'a\u0085b'`},
		{"queue", `''`},
		{"queue", `repeat('q', 129)`},
		{"queue", `E'\x7f'`},
		{"priority", `0`},
		{"priority", `10`},
		{"priority", `2147483647`},
		{"priority", `-2147483648`},
		{"max_attempts", `0`},
		{"max_attempts", `-2147483648`},
		{"delay", `'-1 us'::interval`},
		{"delay", `'-178000000 years'::interval`},
		{"delay", `'178000000 years'::interval`},
		{"delay", `'9000 years 1 us'::interval`},
		{"scheduled_at", `'infinity'::timestamptz`},
		{"scheduled_at", `'294276-12-31'::timestamptz`},
		{"expires_at", `'infinity'::timestamptz`},
		{"expires_at", `'-infinity'::timestamptz`},
		{"expires_at", `'294276-12-31'::timestamptz`},
		{"expires_at", `'0001-12-31 BC'::timestamptz`},
		{"retry_until", `'infinity'::timestamptz`},
		{"retry_until", `'-infinity'::timestamptz`},
		{"retry_until", `'4713-01-01 BC'::timestamptz`},
		{"retry", `'{}'::jsonb`},
		{"retry", `'null'::jsonb`},
		{"retry", `('{"type": "custom", "name": "' || repeat('n', 2000) || '"}')::jsonb`},
		{"retry", fmt.Sprintf(deep, 10001)},
		{"timeout", `'0'::interval`},
		{"timeout", `'0.9 ms'::interval`},
		{"timeout", `'-178000000 years'::interval`},
		{"id", `''`},
		{"id", `'short'`},
		{"id", `repeat('é', 13)`},
		{"id", `repeat('é', 26)`},
		{"id", `repeat('0', 27)`},
		{"concurrency_key", `''`},
		{"concurrency_key", `repeat('k', 257)`},
		{"tags", `jsonb_build_array(null)`},
		{"tags", `jsonb_build_array('')`},
		{"tags", `jsonb_build_array('a', repeat('t', 129))`},
		{"tags", `jsonb_build_array(repeat('t', 2000000))`},
		{"tags", `(select jsonb_agg('t' || n) from generate_series(1, 33) n)`},
		{"metadata", `'[]'::jsonb`},
		{"metadata", `'null'::jsonb`},
		{"metadata", `'1'::jsonb`},
		{"metadata", `'{"drover:follow_up": -1e300}'::jsonb`},
		{"metadata", `'{"drover:follow_up": 1}'::jsonb`},
		{"metadata", `'{"a": 1, "drover:": null}'::jsonb`},
		{"metadata", `jsonb_build_object('a', ` + fmt.Sprintf(deep, 64) + `)`},
		{"metadata", `jsonb_build_object('a', ` + fmt.Sprintf(deep, 10001) + `)`},
		{"metadata", `jsonb_build_object('a', repeat(chr(1), 22000))`},
		{"metadata", `jsonb_build_object('a', repeat('x', 6000000))`},
		{"metadata", `('{"a": 1' || repeat('0', 131072 - 1) || '}')::jsonb`},
		{"metadata", `(select jsonb_build_object('a', jsonb_agg(round(1e131071, 16383))) from generate_series(1, 30))`},
		{"args", fmt.Sprintf(deep, 65)},
		{"args", fmt.Sprintf(deep, 10001)},
		{"args", `(repeat('{"a": ', 65) || '{}' || repeat('}', 65))::jsonb`},
		{"args", `('[' || repeat('1e131071, ', 8999) || '1e131071]')::jsonb`},
		{"args", `(select jsonb_agg(round(1, 16383)) from generate_series(1, 1600))`},
		{"args", `(select jsonb_object_agg(n, '1e-16383'::jsonb) from generate_series(1, 1600) n)`},
		{"args", `('[' || repeat('0e-16383, ', 1600) || '0]')::jsonb`},
		{"args", `jsonb_build_array(repeat('x', 26000000))`},
		{"args", `jsonb_build_array(repeat(chr(1), 5000000))`},
		{"args", `to_jsonb(repeat(chr(1), 5000000))`},
	}
}

// F-15, X-7: drover_enqueue and drover_enqueue_many quickly refuse values that a producer may not store, and name the
// field. The table refuses from everybody the values that would be costly to read.
func TestDoorsAreShut(t *testing.T) {
	t.Parallel()
	slow(t)
	c := newCast(t)
	producer := c.as(t, "producer", drover.Config{})
	refusedAs := func(field, sql string, err error) {
		t.Helper()
		var server *pgconn.PgError
		if !errors.As(err, &server) || server.Code != "22023" && server.Code != "23514" || !strings.HasPrefix(server.Message, "drover: ") ||
			!strings.Contains(server.Message, field+": ") || len(server.Message) > 500 || server.Code == "23514" && (server.ColumnName != field || server.ConstraintName != "jobs_"+field) {
			t.Errorf("%s => %s: %v", field, sql, err)
		}
	}
	for _, tc := range tooMuch() {
		// 1.2 GB are not written out to find that they are too much.
		const soon = `set local statement_timeout = '20s'; `
		kind := `kind => 'k', `
		if tc.field == "kind" {
			kind = ""
		}
		err := pgx.BeginFunc(t.Context(), producer, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), soon); err != nil {
				return err
			}
			_, err := tx.Exec(t.Context(), `select drover_enqueue(`+kind+tc.field+` => `+tc.sql+`)`)
			return err
		})
		refusedAs(tc.field, tc.sql, err)
		if tc.sql == `'null'::jsonb` {
			continue // as if it were not given
		}
		err = pgx.BeginFunc(t.Context(), producer, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), soon); err != nil {
				return err
			}
			_, err := tx.Exec(t.Context(), `select drover_enqueue_many(jsonb_build_array(
				jsonb_build_object('id', '01KAJ4Y8Q3N6T0V5B7C9D1E2FG', 'kind', 'k') || jsonb_build_object('`+tc.field+`', `+tc.sql+`)))`)
			return err
		})
		if strings.HasSuffix(tc.sql, `interval`) && err != nil && pg.SQLState(err) == "22008" {
			continue // JSON has no intervals: the text of this one is out of their range
		}
		refusedAs(tc.field, tc.sql, err)
	}
	for _, sql := range []string{`'{}'`, `'1'`, `'"x"'`, `'null'`, `'[1]'`} {
		if _, err := producer.Exec(t.Context(), `select drover_enqueue_many(`+sql+`)`); err == nil {
			t.Errorf("drover_enqueue_many(%s) was accepted", sql)
		}
	}
	for _, tc := range tooMuch() {
		column := tc.sql
		switch tc.field {
		case "tags":
			column = `array(select jsonb_array_elements_text(` + tc.sql + `))`
		case "args", "metadata", "id":
		default:
			continue
		}
		if tc.sql == `'{"drover:follow_up": 1}'::jsonb` {
			continue // a follow-up's own
		}
		_, inserted := c.Exec(t.Context(), `insert into jobs (kind, `+tc.field+`) values ('k', `+column+`)`)
		c.exec(t, `insert into jobs (kind) values ('k')`)
		_, updated := c.Exec(t.Context(), `update jobs set `+tc.field+` = `+column)
		if pg.SQLState(inserted) != "23514" || pg.SQLState(updated) != "23514" {
			t.Errorf("insert, update of %s = %s: %v, %v", tc.field, tc.sql, inserted, updated)
		}
		c.exec(t, `delete from jobs`)
	}
	for what, sql := range map[string]string{
		"tags of tags":            `insert into jobs (kind, tags) values ('k', '{{a},{b}}')`,
		"created never":           `insert into jobs (kind, created_at) values ('k', 'infinity')`,
		"created before time":     `insert into jobs (kind, created_at) values ('k', '-infinity')`,
		"attempted never":         `insert into jobs (kind, attempted_at) values ('k', 'infinity')`,
		"finalized never":         `insert into jobs (kind, state, finalized_at) values ('k', 'completed', 'infinity')`,
		"finalized before time":   `insert into jobs (kind, state, finalized_at) values ('k', 'completed', '-infinity')`,
		"due before time":         `insert into jobs (kind, scheduled_at) values ('k', '-infinity')`,
		"due before Christ":       `insert into jobs (kind, scheduled_at) values ('k', '0001-12-31 BC')`,
		"a fourth follow-up":      `insert into jobs (kind, metadata) values ('k', '{"drover:follow_up": 4}')`,
		"a follow-up of text":     `insert into jobs (kind, metadata) values ('k', '{"drover:follow_up": "1"}')`,
		"another key of drover's": `insert into jobs (kind, metadata) values ('k', '{"drover:follow_up": 1, "drover:x": 1}')`,
	} {
		if _, err := c.Exec(t.Context(), sql); pg.SQLState(err) != "23514" {
			t.Errorf("%s: %v", what, err)
		}
	}
	if n := value[int](t, c.testDB, `select count(*) from jobs`); n != 0 {
		t.Errorf("%d jobs of refused calls", n)
	}
}

// F-15: a compressed value looks small. A producer may keep one in a temporary table, an owner in any table.
func TestDoorsSeeWhatIsCompressed(t *testing.T) {
	t.Parallel()
	slow(t)
	c := newCast(t)
	for role, enqueue := range map[string]string{
		"producer": `select drover_enqueue('k', args) from small`,
		"worker":   `insert into jobs (kind, args) select 'k', args from small`,
	} {
		err := pgx.BeginFunc(t.Context(), c.as(t, role, drover.Config{}), func(tx pgx.Tx) error {
			for _, sql := range []string{
				`create temp table small (args jsonb)`,
				`insert into small select jsonb_agg(round(1e131071, 16383)) from generate_series(1, 200)`,
				`do $$ begin assert (select pg_column_size(args) < 516 from small), 'not compressed so far'; end $$`,
			} {
				if _, err := tx.Exec(t.Context(), sql); err != nil {
					t.Fatalf("%s: %v", sql, err)
				}
			}
			_, err := tx.Exec(t.Context(), enqueue)
			return err
		})
		if pg.SQLState(err) != "23514" {
			t.Errorf("%s: %v, want the bound of args", role, err)
		}
	}
}

// F-15, E-7: a job that is accepted at the bounds, by SQL or by a Client, can be claimed, read and discarded with its
// follow-ups.
func TestWhatPassesTheDoorsRuns(t *testing.T) {
	t.Parallel()
	slow(t)
	c := newCast(t)
	producer := c.as(t, "producer", drover.Config{MaxArgsBytes: 4 << 20})
	db := dbOn(c.Pool, harness.NewClient(t, c.Pool, drover.Config{Logger: quiet(), MaxArgsBytes: 4 << 20}))
	deep := any(1)
	for range 64 {
		deep = []any{deep}
	}
	for name, job := range map[string]drover.EnqueueItem{
		"deepest":       {payload{deep}, nil},
		"ones":          {payload{slicesOfOnes(4 << 20)}, nil},
		"metadata":      {letter{}, &drover.EnqueueOpts{Metadata: map[string]any{"f": slicesOfOnes(64<<10 - 6)}}},
		"empty arrays":  {letter{}, &drover.EnqueueOpts{Metadata: map[string]any{"f": strings.Split(strings.Repeat(",", 20<<10), ",")}}},
		"separators":    {letter{}, &drover.EnqueueOpts{Metadata: map[string]any{"f": strings.Repeat("\u2028\x01", 5<<10)}}},
		"no tag":        {letter{}, &drover.EnqueueOpts{Tags: []string{}}},
		"most tags":     {letter{}, &drover.EnqueueOpts{Tags: strings.Split(strings.Repeat(strings.Repeat("t", 128)+" ", 31)+"t", " ")}},
		"long in array": {payload{[]any{1, "é"}}, &drover.EnqueueOpts{Key: strings.Repeat("k", 256)}},
	} {
		for way, enqueue := range map[string]func(context.Context, []drover.EnqueueItem) ([]drover.Receipt, error){"owner": db.client.EnqueueMany, "producer": producer.client.EnqueueMany} {
			if _, err := enqueue(t.Context(), []drover.EnqueueItem{job}); err != nil {
				t.Errorf("%s, by the %s: %.300v", name, way, err)
			}
		}
	}
	for _, args := range []string{
		`'k'`, `'k', null, null, null`, `'k', 'null'`, `'k', '[]'`, `'k', '{"n": 1e131071}'`, `'k', priority => 9, max_attempts => 2147483647`,
		`'k', delay => '0'`, `'k', scheduled_at => '-infinity'`, `'k', scheduled_at => '4713-01-01 BC'`, `'k', scheduled_at => '9999-12-31'`, `'k', delay => '7900 years'`,
		`'k', timeout => '178000000 years'`, `'k', timeout => '1 ms'`, `'k', expires_at => '9999-12-31 23:59:59.999999Z', retry_until => '0001-01-01 00:00:00Z'`,
		`'k', tags => '[]'`, `'k', tags => '[1, true, {"a": 1}]'`, `'k', metadata => '{}'`, `'k', metadata => '{"a": {"drover:follow_up": -1e300}}'`,
		`'k', id => repeat('~', 26)`, `repeat('é', 64), queue => 'default', concurrency_key => repeat('é', 128)`,
	} {
		if _, err := producer.Exec(t.Context(), `select drover_enqueue(`+args+`)`); err != nil {
			t.Errorf("drover_enqueue(%s): %v", args, err)
		}
	}
	if most := value[int64](t, c.testDB, `select max(timeout_ms) from jobs`); most != drover.MaxTimeout.Milliseconds() {
		t.Errorf("a timeout of %d ms", most)
	}
	waiting := `finalized_at is null and scheduled_at <= now()`
	if n := value[int](t, db, `select count(*) from jobs where `+waiting); n < 30 {
		t.Errorf("%d jobs are due", n)
	}
	// The owner's statements obey only the table's rules: chains of follow-ups hold the deepest args three times
	// over.
	db.exec(t, `insert into drover_kinds (kind, follow_up_kind, follow_up_queue) values ('payload', 'after', 'default'), ('after', 'payload', 'default')`)
	for range 4 {
		db.exec(t, `update jobs set state = 'discarded', discard_reason = 'operator', finalized_at = now() where kind in ('payload', 'after') and finalized_at is null`)
	}
	if n := value[int](t, db, `select count(*) from jobs where metadata->'drover:follow_up' = '3' and args::text like '%[[[[[[[%'`); n != 2 {
		t.Errorf("%d follow-ups of follow-ups of the deepest, want 2", n)
	}
	db.launch(t, drover.SupervisorConfig{PollInterval: 10 * time.Millisecond, Workers: []drover.Worker{
		dynWorker("k", drover.WorkerOpts{}, func(context.Context, *drover.Job) error { return nil }),
		dynWorker("letter", drover.WorkerOpts{}, func(context.Context, *drover.Job) error { return nil }),
		dynWorker(strings.Repeat("é", 64), drover.WorkerOpts{}, func(context.Context, *drover.Job) error { return nil }),
	}})
	db.waitFor(t, 5*time.Minute, `select not exists (select from jobs where `+waiting+`)`)
	if n := value[int](t, db, `select count(*) from jobs where state <> 'completed' and kind not in ('payload', 'after') and scheduled_at <= now()`); n != 0 {
		t.Errorf("%d jobs were not completed: %s", n, value[string](t, db, `select string_agg(errors::text, ' ') from jobs where state <> 'completed' and kind not in ('payload', 'after') and scheduled_at <= now()`))
	}
	if _, err := db.client.Jobs(t.Context(), drover.Filter{}, "", 1000); err != nil {
		t.Error(err)
	}
}

// slicesOfOnes encodes as [1,1,…] of at most that many bytes: no other JSON takes so much room as jsonb.
func slicesOfOnes(size int) []int { return slices.Repeat([]int{1}, (size-1)/2) }
