package health

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/pgdev"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/internal/store"
	"github.com/drover-queue/drover/internal/tier"
	"github.com/drover-queue/drover/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// testDB is a migrated schema that one test has for itself.
type testDB struct{ *pgxpool.Pool }

func newTestDB(t testing.TB) *testDB {
	t.Helper()
	return &testDB{pgtest.NewMigratedPool(t)}
}

// via is another pool for the same schema.
func (db *testDB) via(t testing.TB, edit func(*pgxpool.Config)) *testDB {
	t.Helper()
	config := db.Config()
	edit(config)
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return &testDB{pool}
}

func (db *testDB) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// value reads one value.
func value[T any](t testing.TB, db *testDB, sql string, args ...any) (v T) {
	t.Helper()
	if err := db.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// hold runs a statement in a transaction that stays open until it is ended, at the latest with the test.
func (db *testDB) hold(t testing.TB, sql string) (end func()) {
	t.Helper()
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	end = func() { _ = tx.Rollback(context.Background()) }
	t.Cleanup(end)
	if _, err := tx.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return end
}

// snapshot is held by a transaction that has read it: no vacuum removes the rows that die from then on.
const snapshot = `set transaction isolation level repeatable read; select from jobs limit 1`

// within waits until the condition holds, and fails the test if that takes too long.
func within(t testing.TB, bound time.Duration, holds func() bool) {
	t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	end := time.After(bound)
	for !holds() {
		select {
		case <-ticker.C:
		case <-end:
			t.Fatalf("not within %v", bound)
		}
	}
}

func eventually(t testing.TB, holds func() bool) {
	t.Helper()
	within(t, 30*time.Second, holds)
}

func (db *testDB) pool() *pg.Pool { return &pg.Pool{Pool: db.Pool} }

// health is a look that must succeed.
func (db *testDB) health(t testing.TB) *Report {
	t.Helper()
	h, err := Look(t.Context(), db.pool())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// holder returns the holder with that application name, or with that name of its own.
func (h *Report) holder(name string) *Holder {
	i := slices.IndexFunc(h.Holders, func(o Holder) bool { return name == o.Application || name == o.Name })
	if i < 0 {
		return nil
	}
	return &h.Holders[i]
}

func (h *Report) table(name string) *Table {
	return &h.Tables[slices.IndexFunc(h.Tables, func(t Table) bool { return t.Name == name })]
}

// calling names the connections of a pool.
func calling(name string) func(*pgxpool.Config) {
	return func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["application_name"] = name }
}

// O-5: a forgotten transaction is named. Rows that die meanwhile stay, and cost a claim without a floor. Once the
// transaction has ended, all of that is gone.
func TestHealthNamesTheSessionThatHoldsVacuum(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	db := newTestDB(t)
	app := "billing " + pgtest.Schema(db.Pool)
	conn, err := db.via(t, calling(app)).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), `begin isolation level repeatable read; select 'kept   secret'`, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	const n = 20_000
	db.exec(t, `alter table jobs set (autovacuum_enabled = off)`)
	db.exec(t, `insert into queues (name) values ('default')`)
	db.exec(t, `insert into jobs (kind, scheduled_at) select 'k', now() - interval '1 h' from generate_series(1, $1)`, n)
	db.exec(t, `update jobs set state = 'completed', finalized_at = now()`)
	db.exec(t, `vacuum jobs`)

	h := db.health(t)
	o := h.holder(app)
	if o == nil {
		t.Fatalf("nobody is named: %+v", h.Holders)
	}
	pid := int(conn.Conn().PgConn().PID())
	if o.Kind != "session" || o.PID != pid || o.State != "idle in transaction" || o.User != db.Config().ConnConfig.User || o.Transactions < 4 ||
		o.Since == nil || o.Query != `begin isolation level repeatable read; select 'kept secret'` || o.CatalogsOnly {
		t.Errorf("holder = %+v", o)
	}
	if want := fmt.Sprintf("select pg_terminate_backend(%d);", pid); o.Do != want {
		t.Errorf("do = %q, want %q", o.Do, want)
	}
	if h.Claim.FullBuffers < n/100+h.Claim.FloorBuffers {
		t.Errorf("claim = %+v: dead entries cost nothing", h.Claim)
	}
	if jobs := h.table("jobs"); jobs.DeadRows < n/2 || jobs.LiveRows < n/2 || jobs.TableBytes < n*100 || jobs.VacuumedAt == nil || jobs.Autovacuum || jobs.VacuumThreshold != 50_000 {
		t.Errorf("jobs = %+v", jobs)
	}

	db.exec(t, `select pg_terminate_backend($1)`, pid)
	eventually(t, func() bool { return db.health(t).holder(app) == nil })
	db.exec(t, `vacuum jobs`)
	within(t, 2*time.Minute, func() bool { // other tests hold snapshots in this database for a while
		h = db.health(t)
		if h.Claim.FullBuffers > h.Claim.FloorBuffers+50 || h.table("jobs").DeadRows > n/2 {
			db.exec(t, `vacuum jobs`)
			return false
		}
		return true
	})
}

// dies leaves so many dead rows in jobs, and runs a vacuum.
func (db *testDB) dies(t testing.TB, n int) {
	t.Helper()
	db.exec(t, `alter table jobs set (autovacuum_enabled = off, autovacuum_vacuum_threshold = 1000)`)
	db.exec(t, `insert into jobs (kind, state, finalized_at) select 'k', 'completed', now() from generate_series(1, $1)`, n)
	db.exec(t, `delete from jobs; select pg_stat_force_next_flush()`, pgx.QueryExecModeSimpleProtocol) // or it is counted after the vacuum
	db.exec(t, `vacuum jobs`)
}

// found returns the findings of that name.
func (h *Report) found(name string) []Finding {
	return slices.DeleteFunc(slices.Clone(h.Findings), func(f Finding) bool { return f.Name != name })
}

// O-5: if a vacuum had to leave dead rows, health does not advise another vacuum. It names the session that keeps the
// rows, however young that is, and however few transactions began since.
func TestHealthSaysToEndWhoVacuumWaitsFor(t *testing.T) { //nolint:paralleltest // an older snapshot of another test would be named in its place
	tier.Slow(t)
	db := newTestDB(t)
	app := "young " + pgtest.Schema(db.Pool)
	conn, err := db.via(t, calling(app)).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), `begin isolation level repeatable read; select 1`, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	db.dies(t, 10_000)
	var h *Report
	eventually(t, func() bool { // others of this server may hold older snapshots for a moment
		h = db.health(t)
		return len(h.found("dead_rows")) == 1 && strings.Contains(h.found("dead_rows")[0].Why, app)
	})
	end := fmt.Sprintf("select pg_terminate_backend(%d);", conn.Conn().PgConn().PID())
	if f := h.found("dead_rows")[0]; f.Level != "warning" || f.Do != end {
		t.Errorf("dead rows: %+v", f)
	}
	held := h.found("vacuum_held")
	if i := slices.IndexFunc(held, func(f Finding) bool { return f.Do == end }); i < 0 || held[i].Level != "warning" {
		t.Errorf("held: %+v", held)
	}
}

// A claim that waits for its turn is no holder.
func TestHealthLeavesOutWaitingTurns(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	first, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer first.Rollback(context.Background())
	if _, err := first.Exec(t.Context(), store.SQLTakeTurn, []string{"q"}, time.Minute); err != nil {
		t.Fatal(err)
	}
	app := "turn " + pgtest.Schema(db.Pool)
	conn, err := db.via(t, calling(app)).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	second := conn.Conn().PgConn().Exec(t.Context(), `select drover_take_turn('{q}', '1 min')`)
	eventually(t, func() bool {
		return value[bool](t, db, `select exists (select from pg_stat_activity where application_name = $1 and wait_event = 'advisory' and backend_xmin is not null)`, app)
	})
	if h := db.health(t); h.holder(app) != nil || len(h.blockers) > 0 {
		t.Errorf("holders = %+v, blockers = %+v", h.Holders, h.blockers)
	}
	if err := first.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
}

// Sessions that wait for a lock on a table, and for a row of it, are traced to the session that blocks all of them.
func TestHealthNamesWhoBlocks(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	db := newTestDB(t)
	app := "hand " + pgtest.Schema(db.Pool)
	db.exec(t, `insert into queues (name) values ('q')`)
	session := func(sql string) *pgconn.MultiResultReader {
		conn, err := db.via(t, calling(app)).Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Release)
		return conn.Conn().PgConn().Exec(t.Context(), sql)
	}
	waiting := func(n int) {
		eventually(t, func() bool {
			return value[int](t, db, `select count(*) from pg_stat_activity where application_name = $1 and wait_event_type = 'Lock'`, app) == n
		})
	}
	root, err := db.via(t, calling(app+" root")).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Rollback(context.Background())
	if _, err := root.Exec(t.Context(), `update queues set name = name`); err != nil {
		t.Fatal(err)
	}
	if h := db.health(t); len(h.blockers) > 0 {
		t.Errorf("nobody waits: %+v", h.blockers)
	}
	var all []*pgconn.MultiResultReader
	for i, sql := range []string{`update queues set name = name`, `begin; lock table queues; commit`, `select from queues`} { // for the row; for the table; behind that
		all = append(all, session(sql))
		waiting(i + 1)
	}
	h := db.health(t)
	if len(h.blockers) != 1 {
		t.Fatalf("blockers = %+v", h.blockers)
	}
	pid := int(root.Conn().PgConn().PID())
	b := h.blockers[0]
	if b.sessions != 3 || b.holder.PID != pid || b.holder.Application != app+" root" || b.holder.State != "idle in transaction" || b.holder.Do != fmt.Sprintf("select pg_terminate_backend(%d);", pid) || b.since.After(h.At) {
		t.Errorf("blocker = %+v", b)
	}
	if err := root.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, one := range all {
		if err := one.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A backlog that came since the last ANALYZE is not counted to its end, and its index does not count as bloated.
func TestHealthOfABacklogOfLate(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	db := newTestDB(t)
	db.exec(t, `alter table jobs set (autovacuum_enabled = off)`) // and nobody analyzes it
	db.exec(t, `insert into jobs (kind) select 'k' from generate_series(1, $1::int)`, liveCount+10_000)
	eventually(t, func() bool { return db.health(t).Claim.unseen == liveCount+10_000 }) // statistics lag behind
	if c := db.health(t).Claim; c.Unfinished != liveCount {
		t.Errorf("%d unfinished jobs, %d more at most", c.Unfinished, c.unseen)
	}
	db.exec(t, `analyze jobs`)
	eventually(t, func() bool { return db.health(t).Claim.unseen == 0 })
	if c := db.health(t).Claim; c.Unfinished != liveCount+10_000 {
		t.Errorf("%d unfinished jobs once they are analyzed", c.Unfinished)
	}
}

// An index that a cancelled reindex has left is named.
func TestHealthNamesInvalidIndexes(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	db.exec(t, `create index jobs_claim_idx_ccnew on jobs (id)`)
	db.exec(t, `update pg_index set indisvalid = false where indexrelid = 'jobs_claim_idx_ccnew'::regclass`)
	h := db.health(t)
	if f := h.found("invalid_index"); len(f) != 1 || f[0].Do != "drop index concurrently "+pgtest.Schema(db.Pool)+".jobs_claim_idx_ccnew;" {
		t.Fatalf("findings = %+v", f)
	}
	db.exec(t, h.found("invalid_index")[0].Do)
	if f := db.health(t).found("invalid_index"); len(f) > 0 {
		t.Errorf("findings = %+v", f)
	}
}

// A transaction that has read, and holds nothing any more, is no holder.
func TestHealthNamesNobodyElse(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	app := "idle " + pgtest.Schema(db.Pool)
	conn, err := db.via(t, calling(app)).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), `begin; select 1`, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	if o := db.health(t).holder(app); o != nil {
		t.Errorf("holder = %+v", o)
	}
}

// standby connects as a standby does, and reports how far back its queries need old rows.
func standby(t testing.TB, db *testDB, name, slot string) *pgconn.PgConn {
	t.Helper()
	cfg := db.Config().ConnConfig.Config.Copy()
	cfg.RuntimeParams = map[string]string{"replication": "true", "application_name": name}
	conn, err := pgconn.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	// Replication starts where everything is flushed. Further on, the server would end it after it has said that it streams.
	start := "START_REPLICATION PHYSICAL " + value[string](t, db, `select pg_current_wal_flush_lsn()::text`)
	if slot != "" {
		start = strings.Replace(start, "PHYSICAL", "SLOT "+slot+" PHYSICAL", 1)
	}
	xmin := value[int64](t, db, `select pg_snapshot_xmin(pg_current_snapshot())::text::bigint`)
	feedback := binary.BigEndian.AppendUint64([]byte{'h'}, 0)
	for _, n := range []int64{xmin & 0xffffffff, xmin >> 32, 0, 0} {
		feedback = binary.BigEndian.AppendUint32(feedback, uint32(n)) //nolint:gosec // halves of it
	}
	conn.Frontend().Send(&pgproto3.Query{String: start})
	if err := conn.Frontend().Flush(); err != nil {
		t.Fatal(err)
	}
	for {
		msg, err := conn.ReceiveMessage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if failed, is := msg.(*pgproto3.ErrorResponse); is {
			t.Fatalf("%s: %s", start, failed.Message)
		}
		if _, is := msg.(*pgproto3.CopyBothResponse); is {
			break
		}
	}
	conn.Frontend().Send(&pgproto3.CopyData{Data: feedback})
	if err := conn.Frontend().Flush(); err != nil {
		t.Fatal(err)
	}
	return conn
}

// O-5: prepared transactions, slots and standbys are named, and the remedies that are printed end them. The test has a
// server of its own, because all of these concern the whole server.
func TestHealthNamesWhatElseHoldsVacuum(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	server, err := pgdev.Start(t.Context(), pgdev.Options{
		Ways:     []pgdev.Way{pgdev.Local, pgdev.Download},
		Settings: map[string]string{"max_prepared_transactions": "2", "wal_level": "logical", "autovacuum_naptime": "1h"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	pool, err := pgxpool.New(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := migrations.Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	db := &testDB{pool}
	if h := db.health(t); len(h.Holders) > 0 || h.Level != "ok" {
		t.Errorf("of a new server: %+v", h)
	}
	named := func(name string, want Holder) {
		t.Helper()
		var o *Holder
		eventually(t, func() bool {
			db.exec(t, `select pg_current_xact_id()`)
			o = db.health(t).holder(name)
			return o != nil && o.Transactions > 0
		})
		if (o.Since != nil) != (o.Kind == "prepared") || (o.PID != 0) != (want.PID != 0) || o.User == "" && o.Kind != "slot" {
			t.Errorf("%s: %+v", name, o)
		}
		db.dies(t, 3000) // vacuum cannot remove them, and is not asked to
		dead := db.health(t).found("dead_rows")
		if held := db.health(t).found("vacuum_held"); want.CatalogsOnly != (dead[0].Level == "ok") || (held[0].Level == "ok") != want.CatalogsOnly || dead[0].Do != "" && dead[0].Do != want.Do {
			t.Errorf("%s: dead rows: %+v, held: %+v", name, dead, held)
		}
		o.Since, o.Transactions, o.PID, o.User = nil, 0, want.PID, ""
		if *o != want {
			t.Errorf("%s:\n got %+v\nwant %+v", name, *o, want)
		}
		if !strings.HasPrefix(want.Do, "alter system") {
			db.exec(t, want.Do)
			eventually(t, func() bool { return db.health(t).holder(name) == nil })
		}
	}

	// A snapshot of another database sees no row of this one.
	elsewhere, err := db.via(t, func(cfg *pgxpool.Config) { cfg.ConnConfig.Database = "template1" }).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer elsewhere.Release()
	if _, err := elsewhere.Exec(t.Context(), `begin isolation level repeatable read; select 1`, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}

	if h := db.health(t); len(h.Holders) > 0 {
		t.Errorf("a snapshot of another database: %+v", h.Holders)
	}
	// A transaction id there does count: while it is in progress, snapshots of this database reach back to it.
	if _, err := elsewhere.Exec(t.Context(), `select pg_current_xact_id()`); err != nil {
		t.Fatal(err)
	}
	end := []func(){db.hold(t, `select pg_current_xact_id()`), db.hold(t, snapshot)}
	if h := db.health(t); len(h.Holders) != 3 || h.Holders[0].Database != "template1" || !strings.Contains(h.Holders[0].String(), "in database template1") || h.Holders[1].Database != "" {
		t.Errorf("who wrote in another database, and two that began after it: %+v", h.Holders)
	}
	if _, err := elsewhere.Exec(t.Context(), `rollback`); err != nil {
		t.Fatal(err)
	}
	for _, end := range end {
		end()
	}
	eventually(t, func() bool { return len(db.health(t).Holders) == 0 })

	gid := `it's "mine" \ 1`
	db.exec(t, `begin; insert into queues (name) values ('q'); prepare transaction 'it''s "mine" \ 1'`, pgx.QueryExecModeSimpleProtocol)
	named(gid, Holder{Kind: "prepared", Name: gid, State: "prepared", Do: `rollback prepared E'it''s "mine" \\ 1';`})

	db.exec(t, `select pg_create_logical_replication_slot('feed', 'pgoutput')`)
	named("feed", Holder{Kind: "slot", Name: "feed", State: "inactive", CatalogsOnly: true, Do: `select pg_drop_replication_slot('feed');`})

	const off = "alter system set hot_standby_feedback = off; -- on the standby, then reload it"
	lone := standby(t, db, "lone", "")
	eventually(t, func() bool { // it catches up first
		return value[string](t, db, `select state from pg_stat_replication where application_name = 'lone'`) == "streaming"
	})
	named("lone", Holder{Kind: "standby", PID: 1, Application: "lone", State: "streaming", Do: off})
	if err := lone.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return db.health(t).holder("lone") == nil })

	db.exec(t, `select pg_create_physical_replication_slot('replica', true)`) // holds nothing before its standby says so
	if o := db.health(t).holder("replica"); o != nil {
		t.Errorf("of a slot without xmin: %+v", o)
	}
	far := standby(t, db, "far", "replica")
	named("replica", Holder{Kind: "slot", PID: 1, Name: "replica", Application: "far", State: "active", Do: off})
	if err := far.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return db.health(t).holder("far") == nil })
	named("replica", Holder{Kind: "slot", Name: "replica", State: "inactive", Do: `select pg_drop_replication_slot('replica');`})
	if h := db.health(t); len(h.Holders) > 0 {
		t.Errorf("in the end: %+v", h.Holders)
	}
}

// The list of tables has every table that the migrations make.
func TestHealthKnowsEveryTable(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	var names []string
	for _, table := range db.health(t).Tables {
		names = append(names, table.Name)
	}
	slices.Sort(names)
	rows, _ := db.Query(t.Context(), `select relname from pg_stat_user_tables where schemaname = current_schema() and relname <> 'drover_goose_version' order by relname collate "C"`)
	want, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || !slices.Equal(names, want) {
		t.Errorf("%v\nthere are %v, %v", names, want, err)
	}
}

func TestHealthOfQueuesAndSupervisors(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	db.exec(t, `insert into drover_supervisors (id, lease_ms, queues, beat_at, draining, lost_at) values
		('a', 30000, '{mail}', now() + interval '1 h', false, null), ('d', 30000, '{mail,late}', now() + interval '1 h', true, null),
		('s', 30000, '{late}', now() - interval '1 h', false, null), ('l', 30000, '{late}', now(), false, now())`)
	db.exec(t, `insert into jobs (kind, queue, scheduled_at) values ('k', 'late', now() - interval '20 min'), ('k', 'mail', now() - interval '1 min'), ('k', 'mail', now()), ('k', 'future', now() + interval '1 h')`)
	db.exec(t, `insert into jobs (kind, queue, scheduled_at, state, errors_total, priority) values ('k', 'mail', now() - interval '2 min', 'retryable', 1, 9)`)
	db.exec(t, `insert into jobs (kind, queue, scheduled_at, state, claimed_by) values ('k', 'mail', now() - interval '1 d', 'running', 'a')`)
	db.exec(t, `insert into jobs (kind, queue) select 'k', 'many' from generate_series(1, 1500)`)
	h := db.health(t)
	if want := (Supervisors{Alive: 1, Draining: 1, Silent: 1, Lost: 1}); h.Supervisors != want {
		t.Errorf("supervisors = %+v", h.Supervisors)
	}
	got := map[string]string{}
	for _, q := range h.Claim.Queues {
		late := "-"
		if q.OldestDue != nil {
			late = h.At.Sub(*q.OldestDue).Truncate(time.Minute).String()
		}
		got[q.Queue] = fmt.Sprint(q.Due, " ", late, " ", q.Supervisors)
	}
	if want := map[string]string{"late": "1 20m0s 0", "mail": "3 2m0s 1", "many": "1000 0s 0", "future": "0 - 0"}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("queues = %v, want %v", got, want)
	}
	if h.Claim.Unfinished != 1506 || h.Claim.IndexBytes == 0 || h.Claim.Queues[0].Queue != "late" {
		t.Errorf("claim = %+v", h.Claim)
	}
	i := slices.IndexFunc(h.Findings, func(f Finding) bool { return f.Name == "claim_lag" })
	if f := h.Findings[i]; f.Level != "warning" || !strings.HasPrefix(f.What, "a due job of queue late has waited 20m") || f.Why != "no live supervisor serves the queue" {
		t.Errorf("finding = %+v", f)
	}
}

// Jobs wait because the server's clock has gone back if they were created, claimed or redriven in the future, and were due
// then. A look at them reads at most 1,000 jobs of each lane.
func TestHealthOfJobsFromTheFuture(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	db.exec(t, `
insert into jobs (kind, queue, priority, state, claimed_by, created_at, attempted_at, redriven_at, scheduled_at)
select 'k', queue, priority, state, case state when 'running' then 'x' end, now() + created, now() + attempted, now() + redriven, case when due = 'infinity' then 'infinity' else now() + due::interval end
from (values
	('a', 1, 'available', interval '50 min', null::interval, null::interval, '50 min'),
	('a', 5, 'retryable', '-1 h', '40 min', null, '55 min'),
	('b', 5, 'available', '-1 h', '-1 h', '45 min', '45 min'),
	('b', 5, 'available', '5 s', null, null, '5 s'), -- it waits for a moment
	('b', 5, 'available', '50 min', null, null, '-1 s'), -- somebody has moved it
	('b', 5, 'scheduled', '50 min', null, null, '2 h'), -- it runs at the time that it names
	('b', 5, 'parked', '50 min', null, null, 'infinity'),
	('b', 5, 'running', '50 min', '50 min', null, '50 min')) as j(queue, priority, state, created, attempted, redriven, due)`)
	h := db.health(t)
	if c := h.Clock; c.Waiting != 3 || c.Latest == nil || c.Latest.Sub(h.At) > 50*time.Minute || c.Latest.Sub(h.At) < 40*time.Minute {
		t.Errorf("%+v", c)
	}
	if n := value[int](t, db, `select waiting from drover_clock(queue => 'b')`); n != 1 {
		t.Errorf("queue b: %d jobs", n)
	}
	db.exec(t, `insert into jobs (kind, state, scheduled_at) select 'k', 'scheduled', now() + n * interval '1 s' from generate_series(1, 5000) n`)
	db.exec(t, `vacuum analyze jobs`)
	var plan struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	if err := json.Unmarshal([]byte(value[string](t, db, `explain (analyze, buffers, format json) select * from drover_clock()`)), &[]any{&plan}); err != nil {
		t.Fatal(err)
	}
	if n := plan.Plan.Hit + plan.Plan.Read; n == 0 || n > 1200 {
		t.Errorf("%d buffers", n)
	}
}

// A role without rights gets the facts that it may see, and the names of the parts that it may not.
func TestHealthOfARoleWithoutRights(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	role, app := pgtest.Schema(db.Pool)+"_guest", "owner of "+pgtest.Schema(db.Pool)
	db.exec(t, `create role `+role)
	t.Cleanup(func() {
		if _, err := db.Exec(context.Background(), `drop owned by `+role+`; drop role `+role, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Error(err)
		}
	})
	guest := db.via(t, func(cfg *pgxpool.Config) {
		cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "set role "+role)
			return err
		}
	})
	if _, err := Look(t.Context(), guest.pool()); !errors.Is(err, pg.ErrNotMigrated) { // it does not even see that there is a table
		t.Errorf("without the schema: %v", err)
	}
	db.exec(t, `grant usage on schema `+pgtest.Schema(db.Pool)+` to `+role)
	conn, err := db.via(t, calling(app)).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), `begin isolation level repeatable read; select 'secret'`, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	h := guest.health(t)
	if o := h.holder(app); o == nil || o.PID != int(conn.Conn().PgConn().PID()) || o.Since != nil || strings.Contains(o.Query, "secret") || !strings.HasPrefix(o.Do, "select pg_terminate_backend(") {
		t.Errorf("holder = %+v", o)
	}
	var parts []string
	for _, n := range h.NotSeen {
		parts = append(parts, n.Part)
		if !strings.Contains(n.Why, "permission denied for table") || n.TimedOut {
			t.Errorf("not seen: %+v", n)
		}
	}
	if want := []string{"claim_floor", "claim_full", "queues", "supervisors", "claim_index", "set_aside", "refused", "periodic", "clock"}; !slices.Equal(parts, want) {
		t.Errorf("not seen: %v, want %v", parts, want)
	}
	if len(h.Tables) != len(tables()) || h.Level == "ok" {
		t.Errorf("health = %+v", h)
	}
	if i := slices.IndexFunc(h.Findings, func(f Finding) bool { return f.Do == "grant pg_read_all_stats to "+role+";" }); i < 0 {
		t.Errorf("it is not told what it needs to see more: %+v", h.Findings)
	}
	for _, f := range h.Findings {
		if slices.Contains([]string{"claim_cost", "index_bloat", "claim_lag", "supervisors", "set_aside", "periodic"}, f.Name) {
			t.Errorf("of what it has not seen it says: %+v", f)
		}
	}
}

// A part that takes too long is left out, and the others are there.
func TestHealthDoesNotWaitForLocks(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	db := newTestDB(t)
	db.hold(t, `lock table drover_supervisors`)
	h := db.health(t)
	var parts []string
	for _, n := range h.NotSeen {
		parts = append(parts, n.Part)
		if n.Why != "it took longer than 2s" || !n.TimedOut {
			t.Errorf("not seen: %+v", n)
		}
	}
	if want := []string{"queues", "tables", "supervisors", "periodic"}; !slices.Equal(parts, want) { // a table's size is locked as it is
		t.Errorf("not seen: %v, want %v", parts, want)
	}
}

func TestHealthErrors(t *testing.T) {
	t.Parallel()
	db := &testDB{pgtest.NewPool(t)}
	if _, err := Look(t.Context(), db.pool()); !errors.Is(err, pg.ErrNotMigrated) {
		t.Errorf("not migrated: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Look(ctx, db.pool()); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	gone, err := pgxpool.New(t.Context(), "postgres://drover@127.0.0.1:1/app")
	if err != nil {
		t.Fatal(err)
	}
	defer gone.Close()
	if h, err := Look(t.Context(), &pg.Pool{Pool: gone}); h != nil || err == nil {
		t.Errorf("no server: %+v, %v", h, err)
	}
}

// A caller's part is read like the others: with its arguments and its plan, and within the same time. If it cannot be read,
// it is named.
func TestHealthReadsMoreParts(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	db := newTestDB(t)
	var n int
	read := func(rows pgx.Rows) error { return rows.Scan(&n) }
	if _, err := db.Exec(t.Context(), `create table locked ()`); err != nil {
		t.Fatal(err)
	}
	lock, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Rollback(context.Background())
	if _, err := lock.Exec(t.Context(), `lock table locked`); err != nil {
		t.Fatal(err)
	}
	h := New()
	err = h.Brief(t.Context(), db.pool(),
		Part{Name: "mine", Read: read, SQL: `select $1::int + 1 where current_setting('enable_sort') = 'off'`, Args: []any{6}, Plan: `set local enable_sort = off`},
		Part{Name: "slow", Read: read, SQL: `select 1 from pg_sleep(60)`},
		Part{Name: "damaged", Read: read, SQL: `select 1 / 0`},
		Part{Name: "locked", Read: read, SQL: `select 1 from locked`, Plan: `set local lock_timeout = '50ms'`})
	if err != nil {
		t.Fatal(err)
	}
	want := []NotSeen{
		{Part: "slow", Why: "it took longer than 2s", TimedOut: true},
		{Part: "damaged", Why: "division by zero", Failed: true},
		{Part: "locked", Why: "canceling statement due to lock timeout", TimedOut: true},
	}
	if found := h.found("not_seen"); n != 7 || !slices.Equal(h.NotSeen, want) || len(found) != 3 || strings.Contains(found[2].Do, "grant") {
		t.Errorf("read %d, not seen %+v, findings %+v", n, h.NotSeen, h.found("not_seen"))
	}
	if err := h.Brief(t.Context(), db.pool(), Part{Name: "wrong", Read: read, SQL: `select no_such_column`}); err == nil {
		t.Error("a mistake in a statement is no error")
	}
}

// Lists are never null.
func TestHealthJSON(t *testing.T) {
	t.Parallel()
	doc, err := json.Marshal(newTestDB(t).health(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range []string{"findings", "holders", "tables", "invalid_indexes", "queues", "first", "not_seen"} {
		if !bytes.Contains(doc, []byte(`"`+list+`":[`)) {
			t.Errorf("no list %s in %s", list, doc)
		}
	}
}

// A schedule that was due and has not ticked is named, and so are a schedule whose last tick failed and one without a next
// tick. A schedule that nobody declares any more, or that is paused, is not.
func TestHealthNamesSchedules(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	if h := db.health(t); !slices.ContainsFunc(h.Findings, func(f Finding) bool { return f.Name == "periodic" && f.Level == LevelOK }) {
		t.Errorf("%+v", h.Findings)
	}
	db.exec(t, `insert into drover_periodic (name, kind, schedule, next_at, last_at, problem, problem_at, declared_by, paused_until) values
		('late', 'k', '@daily', now() - interval '2 min', null, null, null, null, null),
		('nonsense', 'k', 'mine', now() - interval '3 min', null, 'makes no sense', now(), null, null),
		('failed', 'k', '@daily', now() + interval '1 h', now() - interval '1 h', 'no such table', now() - interval '1 h', null, null),
		('mended', 'k', '@daily', now() + interval '1 h', now() - interval '1 h', 'no such table', now() - interval '2 h', null, null),
		('stopped', 'k', '@daily', null, now() - interval '1 h', null, null, null, null),
		('paused', 'k', '@daily', null, now() - interval '1 h', null, null, null, 'infinity'),
		('undeclared', 'k', '@daily', now() - interval '2 min', null, null, null, '{gone}', null)`)
	h := db.health(t)
	var named []string
	for _, f := range h.Findings {
		if f.Name == "periodic" {
			named = append(named, string(f.Level)+": "+f.What)
		}
	}
	for i, want := range []string{
		"warning: schedule nonsense has not ticked, it was due at ", "warning: schedule late has not ticked, it was due at ",
		"warning: schedule failed made no job at its last tick: no such table", "warning: schedule stopped has no next tick, although nobody has paused it",
	} {
		if len(named) != 4 || !strings.HasPrefix(named[i], want) {
			t.Errorf("%q, want %q", named, want)
		}
	}
}

// F-1: drover health counts all jobs that were refused in the last day. Brief reads little, however many there are.
func TestRefusedJobsAreCounted(t *testing.T) {
	t.Parallel()
	db := newTestDB(t)
	db.exec(t, `insert into jobs (kind, state, finalized_at, discard_reason, class) select case when i > 1500 then 'old' else 'new' end, 'discarded', now() - i * interval '1 min', 'refused', 'refused' from generate_series(1, 30000) i where i < 1440 or i > 1500`)
	if h := db.health(t); h.SetAside.Refused != 1439 {
		t.Errorf("refused: %d, want 1439", h.SetAside.Refused)
	}
	brief := New()
	if err := brief.Brief(t.Context(), db.pool()); err != nil || brief.SetAside.Refused != 1000 {
		t.Errorf("refused: %d, want 1000, %v", brief.SetAside.Refused, err)
	}
	one := db.via(t, func(config *pgxpool.Config) { config.MaxConns = 1 })
	var doc []byte
	for range 2 { // the first time, the session reads the catalogs
		doc = value[[]byte](t, one, "explain (analyze, buffers, format json) "+sqlRefused, 1000)
	}
	var plans []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	if err := json.Unmarshal(doc, &plans); err != nil || plans[0].Plan.Hit+plans[0].Plan.Read > 500 {
		t.Errorf("Brief reads %+v to count refused jobs, %v", plans, err)
	}
}
