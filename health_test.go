package drover

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

	"github.com/drover-queue/drover/internal/pgdev"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/internal/store"
	"github.com/drover-queue/drover/migrations"
)

func (db *testDB) health(t testing.TB) *Health {
	t.Helper()
	h, err := db.client.Health(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// holder is what holds vacuum back under that application's name or that name of its own.
func (h *Health) holder(name string) *Holder {
	i := slices.IndexFunc(h.Holders, func(o Holder) bool { return name == o.Application || name == o.Name })
	if i < 0 {
		return nil
	}
	return &h.Holders[i]
}

func (h *Health) table(name string) *TableHealth {
	return &h.Tables[slices.IndexFunc(h.Tables, func(t TableHealth) bool { return t.Name == name })]
}

// calling names the connections of a pool.
func calling(name string) func(*pgxpool.Config) {
	return func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["application_name"] = name }
}

// O-5: a forgotten transaction is named, what dies meanwhile stays and costs claims without a floor, and once it has
// ended all of that is gone.
func TestHealthNamesTheSessionThatHoldsVacuum(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	app := "billing " + pgtest.Schema(db.Pool)
	conn, err := db.via(t, Config{}, calling(app)).Acquire(t.Context())
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

// dies leaves so many dead rows in jobs, and has vacuum look at them.
func (db *testDB) dies(t testing.TB, n int) {
	t.Helper()
	db.exec(t, `alter table jobs set (autovacuum_enabled = off, autovacuum_vacuum_threshold = 1000)`)
	db.exec(t, `insert into jobs (kind, state, finalized_at) select 'k', 'completed', now() from generate_series(1, $1)`, n)
	db.exec(t, `delete from jobs; select pg_stat_force_next_flush()`, pgx.QueryExecModeSimpleProtocol) // or it is counted after the vacuum
	db.exec(t, `vacuum jobs`)
}

// found are the findings of that name.
func (h *Health) found(name string) []Finding {
	return slices.DeleteFunc(slices.Clone(h.Findings), func(f Finding) bool { return f.Name != name })
}

// O-5: where vacuum was and the dead rows stayed, health does not send it there again but says who holds it, however
// young, and however few transactions began since.
func TestHealthSaysToEndWhoVacuumWaitsFor(t *testing.T) { //nolint:paralleltest // an older snapshot of another test would be named in its place
	slow(t)
	db := newQuietDB(t)
	app := "young " + pgtest.Schema(db.Pool)
	conn, err := db.via(t, Config{}, calling(app)).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), `begin isolation level repeatable read; select 1`, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	db.dies(t, 10_000)
	var h *Health
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
	db := newQuietDB(t)
	first, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer first.Rollback(context.Background())
	if _, err := first.Exec(t.Context(), store.SQLTakeTurn, []string{"q"}, time.Minute); err != nil {
		t.Fatal(err)
	}
	app := "turn " + pgtest.Schema(db.Pool)
	conn, err := db.via(t, Config{}, calling(app)).Acquire(t.Context())
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

// Those who wait for a lock on a table, and for a row of it, have one who holds them all up.
func TestHealthNamesWhoBlocks(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	app := "hand " + pgtest.Schema(db.Pool)
	db.exec(t, `insert into queues (name) values ('q')`)
	session := func(sql string) *pgconn.MultiResultReader {
		conn, err := db.via(t, Config{}, calling(app)).Acquire(t.Context())
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
	root, err := db.via(t, Config{}, calling(app+" root")).Begin(t.Context())
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

// A backlog that came since the last ANALYZE is not counted to its end, and is not what its index is too big for.
func TestHealthOfABacklogOfLate(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.exec(t, `alter table jobs set (autovacuum_enabled = off)`) // and nobody analyzes it
	db.exec(t, `insert into jobs (kind) select 'k' from generate_series(1, $1::int)`, healthLiveCount+10_000)
	eventually(t, func() bool { return db.health(t).Claim.unseen == healthLiveCount+10_000 }) // statistics lag behind
	if c := db.health(t).Claim; c.Unfinished != healthLiveCount {
		t.Errorf("%d unfinished jobs, %d more at most", c.Unfinished, c.unseen)
	}
	db.exec(t, `analyze jobs`)
	eventually(t, func() bool { return db.health(t).Claim.unseen == 0 })
	if c := db.health(t).Claim; c.Unfinished != healthLiveCount+10_000 {
		t.Errorf("%d unfinished jobs once they are analyzed", c.Unfinished)
	}
}

// What a cancelled reindex leaves is named.
func TestHealthNamesInvalidIndexes(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
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

// A transaction that has read, and holds nothing any more, is nobody's concern.
func TestHealthNamesNobodyElse(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	app := "idle " + pgtest.Schema(db.Pool)
	conn, err := db.via(t, Config{}, calling(app)).Acquire(t.Context())
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

// standby connects as one does and says up to where its queries need old rows.
func standby(t testing.TB, db *testDB, name, slot string) *pgconn.PgConn {
	t.Helper()
	cfg := db.Config().ConnConfig.Config.Copy()
	cfg.RuntimeParams = map[string]string{"replication": "true", "application_name": name}
	conn, err := pgconn.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	// From where all is flushed: further on, the server breaks off after it has said that it streams.
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

// O-5: prepared transactions, slots and standbys are named, with what ends them; and what ends them is right. A server
// of its own: all of these concern the whole of it.
func TestHealthNamesWhatElseHoldsVacuum(t *testing.T) {
	t.Parallel()
	slow(t)
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
	client, err := New(pool, Config{})
	if err != nil {
		t.Fatal(err)
	}
	db := &testDB{pool, client}
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

	// What a session of another database could see is no row of this one's.
	elsewhere, err := db.via(t, Config{}, func(cfg *pgxpool.Config) { cfg.ConnConfig.Database = "template1" }).Acquire(t.Context())
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
	// What it writes does: while it is in progress, snapshots of this one reach back to it.
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

// The tables are all that the migrations make.
func TestHealthKnowsEveryTable(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
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
	db := newQuietDB(t)
	db.exec(t, `insert into drover_supervisors (id, lease_ms, queues, beat_at, draining, lost_at) values
		('a', 30000, '{mail}', now() + interval '1 h', false, null), ('d', 30000, '{mail,late}', now() + interval '1 h', true, null),
		('s', 30000, '{late}', now() - interval '1 h', false, null), ('l', 30000, '{late}', now(), false, now())`)
	db.exec(t, `insert into jobs (kind, queue, scheduled_at) values ('k', 'late', now() - interval '20 min'), ('k', 'mail', now() - interval '1 min'), ('k', 'mail', now()), ('k', 'future', now() + interval '1 h')`)
	db.exec(t, `insert into jobs (kind, queue, scheduled_at, state, errors_total, priority) values ('k', 'mail', now() - interval '2 min', 'retryable', 1, 9)`)
	db.exec(t, `insert into jobs (kind, queue, scheduled_at, state, claimed_by) values ('k', 'mail', now() - interval '1 d', 'running', 'a')`)
	db.exec(t, `insert into jobs (kind, queue) select 'k', 'many' from generate_series(1, 1500)`)
	h := db.health(t)
	if want := (SupervisorsHealth{Alive: 1, Draining: 1, Silent: 1, Lost: 1}); h.Supervisors != want {
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

// A role without rights gets what it may see, and is told what it does not.
func TestHealthOfARoleWithoutRights(t *testing.T) {
	t.Parallel()
	db := newQuietDB(t)
	role, app := pgtest.Schema(db.Pool)+"_guest", "owner of "+pgtest.Schema(db.Pool)
	db.exec(t, `create role `+role)
	t.Cleanup(func() {
		if _, err := db.Exec(context.Background(), `drop owned by `+role+`; drop role `+role, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Error(err)
		}
	})
	guest := db.via(t, Config{}, func(cfg *pgxpool.Config) {
		cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "set role "+role)
			return err
		}
	})
	if _, err := guest.client.Health(t.Context()); !errors.Is(err, ErrNotMigrated) { // it does not even see that there is a table
		t.Errorf("without the schema: %v", err)
	}
	db.exec(t, `grant usage on schema `+pgtest.Schema(db.Pool)+` to `+role)
	conn, err := db.via(t, Config{}, calling(app)).Acquire(t.Context())
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
	if want := []string{"supervisors", "claim_floor", "claim_full", "queues", "claim_index", "set_aside", "refused", "clock"}; !slices.Equal(parts, want) {
		t.Errorf("not seen: %v, want %v", parts, want)
	}
	if len(h.Tables) != len(healthTables()) || h.Level == "ok" {
		t.Errorf("health = %+v", h)
	}
	if i := slices.IndexFunc(h.Findings, func(f Finding) bool { return f.Do == "grant pg_read_all_stats to "+role+";" }); i < 0 {
		t.Errorf("it is not told what it needs to see more: %+v", h.Findings)
	}
	for _, f := range h.Findings {
		if slices.Contains([]string{"claim_cost", "index_bloat", "claim_lag", "supervisors", "set_aside"}, f.Name) {
			t.Errorf("of what it has not seen it says: %+v", f)
		}
	}
}

// A part that takes too long is left out: the others are told.
func TestHealthDoesNotWaitForLocks(t *testing.T) {
	t.Parallel()
	slow(t)
	db := newQuietDB(t)
	db.hold(t, `lock table drover_supervisors`)
	h := db.health(t)
	var parts []string
	for _, n := range h.NotSeen {
		parts = append(parts, n.Part)
		if n.Why != "it took longer than 2s" || !n.TimedOut {
			t.Errorf("not seen: %+v", n)
		}
	}
	if want := []string{"tables", "supervisors", "queues", "clock"}; !slices.Equal(parts, want) { // a table's size is locked as it is
		t.Errorf("not seen: %v, want %v", parts, want)
	}
}

func TestHealthErrors(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewPool(t)
	client, err := New(pool, Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Health(t.Context()); !errors.Is(err, ErrNotMigrated) {
		t.Errorf("not migrated: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := client.Health(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	gone, err := pgxpool.New(t.Context(), "postgres://drover@127.0.0.1:1/app")
	if err != nil {
		t.Fatal(err)
	}
	defer gone.Close()
	if client, err = New(gone, Config{}); err != nil {
		t.Fatal(err)
	}
	if h, err := client.Health(t.Context()); h != nil || err == nil || !strings.Contains(err.Error(), "look at the health") {
		t.Errorf("no server: %+v, %v", h, err)
	}
}

// Facts in, findings out.
func TestHealthFindings(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) *time.Time { at := now.Add(-d); return &at }
	session := func(since *time.Time, transactions int64) Holder {
		return Holder{Kind: "session", PID: 42, Application: "billing", User: "app", State: "idle in transaction", Since: since, Transactions: transactions, Do: "stop it"}
	}
	jobs := func(dead int64, change func(*TableHealth)) TableHealth {
		table := TableHealth{Name: "jobs", LiveRows: 7, DeadRows: dead, VacuumThreshold: 50_000, Autovacuum: true, VacuumedAt: ago(time.Hour)}
		if change != nil {
			change(&table)
		}
		return table
	}
	vacuumed := func(d time.Duration) func(*TableHealth) {
		return func(t *TableHealth) { t.VacuumedAt = ago(d) }
	}
	catalogs := Holder{Kind: "slot", Name: "feed", Transactions: 1000, CatalogsOnly: true, Do: "not this"}
	slot := Holder{Kind: "slot", Name: "s", State: "inactive", Transactions: 525, Do: "drop it"}
	waits := func(d time.Duration) blocker {
		return blocker{Holder{Kind: "session", PID: 42, Application: "billing", Do: "stop it"}, 3, now.Add(-d)}
	}
	const endSession = "; session 42 (billing, idle in transaction, user app) holds vacuum back: end it first"
	for _, c := range []struct {
		name  string
		facts Health
		want  []Finding // those that are not ok; of an empty Why and Do nothing is asked
	}{
		{"nothing", Health{}, nil},
		{"a short transaction", Health{Holders: []Holder{session(ago(59*time.Second), 1<<30)}}, nil},
		{"a minute", Health{Holders: []Holder{session(ago(time.Minute), 1)}}, []Finding{
			{"warning", "vacuum_held", "session 42 (billing, idle in transaction, user app) has held vacuum back for 1m0s", "", "stop it"},
		}},
		{"a quarter of an hour", Health{Holders: []Holder{session(ago(15*time.Minute), 1)}}, []Finding{
			{"critical", "vacuum_held", "session 42 (billing, idle in transaction, user app) has held vacuum back for 15m0s", "", "stop it"},
		}},
		{"of another role", Health{Holders: []Holder{{Kind: "session", PID: 42, Transactions: 99_999}, {Kind: "session", PID: 43, Transactions: 100_000}}}, []Finding{
			{"warning", "vacuum_held", "session 43 has held vacuum back through 100000 transactions", "", ""},
		}},
		{"a slot", Health{Holders: []Holder{{Kind: "slot", Name: "s", State: "inactive", Transactions: 10_000_000}}}, []Finding{
			{"critical", "vacuum_held", "replication slot s (inactive) has held vacuum back through 10000000 transactions", "", ""},
		}},
		{"a slot for the catalogs", Health{Holders: []Holder{{Kind: "slot", Name: "s", Transactions: 1 << 30, CatalogsOnly: true}}}, nil},
		{"a standby", Health{Holders: []Holder{{Kind: "standby", Application: "far", State: "streaming", Transactions: 100_000}}}, []Finding{
			{"warning", "vacuum_held", "standby far (far, streaming) has held vacuum back through 100000 transactions", "", ""},
		}},
		{"a prepared transaction", Health{Holders: []Holder{{Kind: "prepared", Name: "g", State: "prepared", User: "app", Since: ago(time.Hour)}}}, []Finding{
			{"critical", "vacuum_held", "prepared transaction g (prepared, user app) has held vacuum back for 1h0m0s", "", ""},
		}},
		{"few dead", Health{Tables: []TableHealth{jobs(99_999, nil)}}, nil},
		{"many dead", Health{Tables: []TableHealth{jobs(100_000, nil)}}, []Finding{
			{"warning", "dead_rows", "jobs has 100000 dead rows beside 7 live ones", "autovacuum begins at 50000 and does not keep up; it was here last 1h0m0s ago", "vacuum public.jobs;"},
		}},
		{"very many dead", Health{Tables: []TableHealth{jobs(1_000_000, func(t *TableHealth) { t.VacuumedAt = nil })}}, []Finding{
			{"critical", "dead_rows", "jobs has 1000000 dead rows beside 7 live ones", "it has never been vacuumed", "vacuum public.jobs;"},
		}},
		{"a vacuum runs", Health{Tables: []TableHealth{jobs(100_000, func(t *TableHealth) { t.Vacuuming = true })}}, []Finding{
			{"warning", "dead_rows", "jobs has 100000 dead rows beside 7 live ones", "a vacuum of it is running", ""},
		}},
		{"dead because held, the cause first", Health{Tables: []TableHealth{jobs(1_000_000, nil)}, Holders: []Holder{session(ago(time.Minute), 1)}}, []Finding{
			{"critical", "vacuum_held", "session 42 (billing, idle in transaction, user app) has held vacuum back for 1m0s", "", "stop it"},
			{"critical", "dead_rows", "jobs has 1000000 dead rows beside 7 live ones", "session 42 (billing, idle in transaction, user app) holds vacuum back: end it first", "stop it"},
		}},
		{"a vacuum met a young one", Health{Tables: []TableHealth{jobs(100_000, vacuumed(time.Second))}, Holders: []Holder{catalogs, session(ago(30*time.Second), 2)}}, []Finding{
			{"warning", "vacuum_held", "session 42 (billing, idle in transaction, user app) has held vacuum back for 30s", "", "stop it"},
			{"warning", "dead_rows", "jobs has 100000 dead rows beside 7 live ones", "session 42 (billing, idle in transaction, user app) holds vacuum back: end it first", "stop it"},
		}},
		{"no vacuum met it", Health{Tables: []TableHealth{jobs(100_000, vacuumed(time.Minute))}, Holders: []Holder{session(ago(30*time.Second), 2)}}, []Finding{
			{"warning", "dead_rows", "jobs has 100000 dead rows beside 7 live ones", "autovacuum begins at 50000 and does not keep up; it was here last 1m0s ago", "vacuum public.jobs;"},
		}},
		{"a vacuum met a slot, the oldest", Health{Tables: []TableHealth{jobs(1_000_000, vacuumed(time.Minute))}, Holders: []Holder{catalogs, slot, session(ago(2*time.Second), 2)}}, []Finding{
			{"critical", "vacuum_held", "replication slot s (inactive) has held vacuum back through 525 transactions", "", "drop it"},
			{"critical", "dead_rows", "jobs has 1000000 dead rows beside 7 live ones", "replication slot s (inactive) holds vacuum back: end it first", "drop it"},
		}},
		{"no vacuum met the slot", Health{Tables: []TableHealth{jobs(100_000, vacuumed(time.Hour))}, Holders: []Holder{slot}}, []Finding{
			{"warning", "dead_rows", "jobs has 100000 dead rows beside 7 live ones", "", "vacuum public.jobs;"},
		}},
		{"a slot that nothing died behind", Health{Tables: []TableHealth{jobs(100_000, vacuumed(time.Second))}, Holders: []Holder{{Kind: "slot", Name: "s"}}}, []Finding{
			{"warning", "dead_rows", "jobs has 100000 dead rows beside 7 live ones", "", "vacuum public.jobs;"},
		}},
		{"an invalid index", Health{Tables: []TableHealth{jobs(0, func(t *TableHealth) { t.InvalidIndexes = []string{"jobs_claim_idx_ccnew", "mine"} })}}, []Finding{
			{"warning", "invalid_index", "index jobs_claim_idx_ccnew of jobs is not valid", "", "drop index concurrently public.jobs_claim_idx_ccnew;"},
			{"warning", "invalid_index", "index mine of jobs is not valid", "", "reindex index concurrently public.mine;"},
		}},
		{"a small table", Health{Tables: []TableHealth{jobs(1999, func(t *TableHealth) { t.VacuumThreshold = 50 })}}, nil},
		{"autovacuum off for a table", Health{Tables: []TableHealth{jobs(0, func(t *TableHealth) { t.Autovacuum = false })}}, []Finding{
			{"warning", "autovacuum", "autovacuum is off for jobs", "", "alter table public.jobs reset (autovacuum_enabled);"},
		}},
		{"a dear claim", Health{Claim: ClaimHealth{FloorBuffers: 100, FullBuffers: 10_100}}, []Finding{
			{"warning", "claim_cost", "a claim reads 100 pages from its floor on, and 10100 without one", "", "vacuum public.jobs;"},
		}},
		{"a dear claim because held", Health{Holders: []Holder{session(ago(time.Minute), 1)}, Claim: ClaimHealth{FullBuffers: 1_000_000}}, []Finding{
			{"critical", "vacuum_held", "session 42 (billing, idle in transaction, user app) has held vacuum back for 1m0s", "", "stop it"},
			{
				"critical", "claim_cost", "a claim reads 0 pages from its floor on, and 1000000 without one",
				"dead or running jobs stand at the beginning of jobs_claim_idx: a supervisor that starts, and full sweeps, step over them" + endSession, "stop it",
			},
		}},
		{"a very dear claim", Health{Claim: ClaimHealth{FloorBuffers: 100, FullBuffers: 1_000_100}}, []Finding{
			{"critical", "claim_cost", "a claim reads 100 pages from its floor on, and 1000100 without one", "", "vacuum public.jobs;"},
		}},
		{"a cheap claim", Health{Claim: ClaimHealth{FloorBuffers: 20_000, FullBuffers: 20_100}}, nil},
		{"an index of dead pages", Health{Claim: ClaimHealth{IndexBytes: 64 << 20, Unfinished: 100_000}}, []Finding{
			{"warning", "index_bloat", "jobs_claim_idx has 64 MiB for 100000 unfinished jobs, which need about 10 MiB", "", "reindex index concurrently public.jobs_claim_idx;"},
		}},
		{"an index of held pages", Health{Holders: []Holder{session(ago(time.Minute), 1)}, Claim: ClaimHealth{IndexBytes: 64 << 20, Unfinished: 100_000}}, []Finding{
			{"warning", "vacuum_held", "session 42 (billing, idle in transaction, user app) has held vacuum back for 1m0s", "", "stop it"},
			{
				"warning", "index_bloat", "jobs_claim_idx has 64 MiB for 100000 unfinished jobs, which need about 10 MiB",
				"an estimate; its pages are used again, and an index that has become too big stays so; a new one takes over what is held, and waits for transactions" +
					": session 42 (billing, idle in transaction, user app) holds vacuum back: end it first", "stop it\nreindex index concurrently public.jobs_claim_idx;",
			},
		}},
		{"blocked for a moment", Health{blockers: []blocker{waits(4 * time.Second)}}, nil},
		{"blocked", Health{blockers: []blocker{waits(5 * time.Second)}}, []Finding{
			{"warning", "blocked", "session 42 (billing) holds a lock: 3 sessions on drover's tables wait for it, the first for 5s", "", "stop it"},
		}},
		{"blocked for long", Health{blockers: []blocker{waits(time.Minute)}}, []Finding{
			{"critical", "blocked", "session 42 (billing) holds a lock: 3 sessions on drover's tables wait for it, the first for 1m0s", "", "stop it"},
		}},
		{"a full index", Health{Claim: ClaimHealth{IndexBytes: 64 << 20, Unfinished: 200_000}}, nil},
		{"an index filled since the last ANALYZE", Health{Claim: ClaimHealth{IndexBytes: 64 << 20, Unfinished: 100_000, unseen: 600_000}}, nil},
		{"late", Health{Supervisors: SupervisorsHealth{Alive: 1}, Claim: ClaimHealth{Queues: []QueueHealth{{"q", 1, ago(15 * time.Minute), 1}, {"r", 1, ago(time.Minute), 0}, {"s", 0, nil, 0}}}}, []Finding{
			{"warning", "claim_lag", "a due job of queue q has waited 15m0s", "its supervisors have no free slot, do not know its kind, or do not get on", "drover stats"},
		}},
		{"nobody works", Health{Claim: ClaimHealth{Queues: []QueueHealth{{"q", 1, ago(time.Second), 0}}}}, []Finding{
			{"critical", "supervisors", "supervisors: 0 alive, 0 draining, 0 silent, 0 lost", "jobs are due, and nobody claims", "start a supervisor"},
		}},
		{"one fell silent", Health{Supervisors: SupervisorsHealth{Alive: 2, Silent: 1}}, []Finding{{"warning", "supervisors", "supervisors: 2 alive, 0 draining, 1 silent, 0 lost", "", ""}}},
		{"set aside", Health{SetAside: SetAsideHealth{Rows: 3, Refused: 2, First: []SetAside{{
			Job: "01X", Path: "claim", Error: "job is cursed", Code: "P0001", Tries: 4, RetryAt: now,
		}}}}, []Finding{
			{
				"warning", "set_aside", "job 01X is set aside, the database refuses its claim: job is cursed (tried 4 times, next at 2026-03-01T12:00:00Z)", "",
				"delete from public.drover_set_aside where path = 'claim' and job = '01X';\ndrover jobs cancel 01X",
			},
			{"warning", "set_aside", "3 jobs are set aside in all, 2 more than named here", "", "select path, job, error, tries, retry_at from public.drover_set_aside order by first_at;"},
			{"warning", "refused", "2 jobs were discarded in the last day because the database refuses to read or to change them", "", "drover jobs list --reason refused"},
		}},
		{"cannot be read", Health{NotSeen: []NotSeen{{Part: "queues", Why: "missing chunk", Failed: true}}}, []Finding{{"warning", "not_seen", "not seen: queues: missing chunk", "a row that it reads is damaged or out of range", ""}}},
		{"not seen", Health{NotSeen: []NotSeen{{Part: "queues", Why: "no"}}}, []Finding{{"warning", "not_seen", "not seen: queues: no", "this role may not read it", "grant it select on drover's tables"}}},
		{"a clock that went back, but no job waits", Health{Clock: ClockHealth{Latest: ago(-time.Hour)}}, nil},
		{"jobs that wait for the clock", Health{Clock: ClockHealth{Latest: ago(-time.Hour), Since: ago(time.Minute), Waiting: 813}}, []Finding{{
			"warning", "clock", "the server's clock has gone back: it is 1h0m0s behind 2026-03-01T13:00:00Z, which it has shown before; first seen at 2026-03-01T11:59:00Z by the clock as it is now; jobs from before that wait until then: 813", "", "",
		}}},
		{"not in time", Health{NotSeen: []NotSeen{{Part: "queues", Why: "slow", TimedOut: true}}}, []Finding{{"warning", "not_seen", "not seen: queues: slow", "it waited for a lock, or stepped over very many rows, dead ones included", ""}}},
	} {
		h := c.facts
		h.At, h.schema, h.Autovacuum = now, "public", true
		h.judge()
		level := "ok"
		if len(c.want) > 0 {
			level = c.want[0].Level
		}
		if h.Level != level {
			t.Errorf("%s: level %s, want %s", c.name, h.Level, level)
		}
		got := slices.DeleteFunc(slices.Clone(h.Findings), func(f Finding) bool { return f.Level == "ok" })
		for i := range got {
			if i < len(c.want) && c.want[i].Why == "" && got[i].Why != "" {
				got[i].Why = ""
			}
			if i < len(c.want) && c.want[i].Do == "" && c.want[i].Why == "" {
				got[i].Do = ""
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", c.name, got, c.want)
		}
	}
	off := Health{}
	off.judge()
	if f := off.Findings[0]; f.Level != "critical" || f.Name != "autovacuum" || !strings.Contains(f.Do, "autovacuum = on") {
		t.Errorf("autovacuum off: %+v", f)
	}
	well := Health{Autovacuum: true}
	well.judge()
	var names []string
	for _, f := range well.Findings {
		names = append(names, f.Name)
	}
	if want := []string{"vacuum_held", "blocked", "autovacuum", "dead_rows", "claim_cost", "index_bloat", "claim_lag", "supervisors", "set_aside", "clock"}; !slices.Equal(names, want) {
		t.Errorf("all is well, says %v", names)
	}
	if share := (&TableHealth{LiveRows: 1, DeadRows: 3}).DeadShare(); share != 0.75 {
		t.Errorf("share = %v", share)
	}
	if share := (&TableHealth{}).DeadShare(); share != 0 {
		t.Errorf("share of an empty table = %v", share)
	}
}

// Lists are never null.
func TestHealthJSON(t *testing.T) {
	t.Parallel()
	doc, err := json.Marshal(newQuietDB(t).health(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range []string{"findings", "holders", "tables", "invalid_indexes", "queues", "first", "not_seen"} {
		if !bytes.Contains(doc, []byte(`"`+list+`":[`)) {
			t.Errorf("no list %s in %s", list, doc)
		}
	}
}
