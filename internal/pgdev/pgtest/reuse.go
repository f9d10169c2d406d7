package pgtest

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover/migrations"
)

// Creating a migrated schema costs more than most tests do in it. So a schema in which a test has changed nothing but
// rows is emptied and lent to the next test. Whatever else has changed, it is dropped.

// shelf holds migrated schemas that nobody uses.
type shelf struct {
	mu   sync.Mutex
	open bool // the test binary clears it in the end
	free []*schema
	lent map[string]*schema // by name
}

// schema is a migrated schema, lent to one test at a time.
type schema struct {
	name  string
	print string // fingerprint as the migrations left it
	stats string // what the planner was told of the indexes then, as a statement that tells it again
	seed  []seed // rows that the migrations inserted

	named    bool // the test asked for the name: sessions that are not counted may use it. The shelf's mu guards it.
	mu       sync.Mutex
	sessions []uint32 // process ids of the sessions that the test's pool, or a copy of its settings, has opened
}

type seed struct{ table, rows string } // the rows as a JSON array

// take returns a free schema, or nil. The one that was given back first comes first.
func (h *shelf) take() *schema {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.free) == 0 {
		return nil
	}
	first := h.free[0]
	h.free = h.free[1:]
	return first
}

func (h *shelf) put(s *schema) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.free = append(h.free, s)
}

// lend notes that a test has the schema.
func (h *shelf) lend(s *schema) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lent == nil {
		h.lent = map[string]*schema{}
	}
	h.lent[s.name] = s
}

// back notes that the test's time is over, and tells whether another one may have the schema.
func (h *shelf) back(s *schema) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.lent, s.name)
	return h.open && !s.named
}

// nameOf is Schema.
func (h *shelf) nameOf(pool *pgxpool.Pool) string {
	name := pool.Config().ConnConfig.RuntimeParams["search_path"]
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.lent[name]; s != nil {
		s.named = true
	}
	return name
}

// clear drops the free schemas: on a server of somebody else's nothing may be left behind.
func (h *shelf) clear(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx) //nolint:errcheck // nothing is lost with this connection
	for s := h.take(); s != nil; s = h.take() {
		if _, err := conn.Exec(ctx, `drop schema `+s.name+` cascade`); err != nil {
			return err
		}
	}
	return nil
}

// counting makes the settings count the sessions that they open. Copies of the settings do so too.
func (s *schema) counting(config *pgxpool.Config) {
	usual := config.ConnConfig.AfterConnect
	config.ConnConfig.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		s.mu.Lock()
		s.sessions = append(s.sessions, conn.PID())
		s.mu.Unlock()
		if usual != nil {
			return usual(ctx, conn)
		}
		return nil
	}
}

// sqlPrint is a fingerprint of all that a schema holds but rows, and of the version table's rows. In the catalogues a
// change of a row gives it another xmin. Only pg_class is compared by its contents, because emptying a table changes it.
const sqlPrint = `
with own as (select * from pg_class where relnamespace = '{schema}'::regnamespace),
rel as materialized (select * from own union all select * from pg_class where oid in (select reltoastrelid from own)),
things (what) as (
	select 'relation ' || (to_jsonb(rel) - '{relfilenode,relpages,reltuples,relallvisible,relallfrozen,relfrozenxid,relminmxid}'::text[])::text from rel
	union all select 'schema ' || xmin from pg_namespace where oid = '{schema}'::regnamespace
	union all select 'default acl ' || oid || ' ' || xmin from pg_default_acl where defaclnamespace = '{schema}'::regnamespace
	union all select 'column ' || attrelid || ' ' || attnum || ' ' || a.xmin from pg_attribute a join rel on rel.oid = attrelid
	union all select 'default ' || d.oid || ' ' || d.xmin from pg_attrdef d join rel on rel.oid = adrelid
	union all select 'index ' || indexrelid || ' ' || i.xmin from pg_index i join rel on rel.oid = indexrelid
	union all select 'trigger ' || t.oid || ' ' || t.xmin from pg_trigger t join rel on rel.oid = tgrelid
	union all select 'rule ' || r.oid || ' ' || r.xmin from pg_rewrite r join rel on rel.oid = ev_class
	union all select 'policy ' || p.oid || ' ' || p.xmin from pg_policy p join rel on rel.oid = polrelid
	union all select 'sequence ' || seqrelid || ' ' || s.xmin from pg_sequence s join rel on rel.oid = seqrelid
	union all select 'analyzed ' || starelid || ' ' || staattnum || ' ' || s.xmin from pg_statistic s join rel on rel.oid = starelid
	union all select 'function ' || oid || ' ' || xmin from pg_proc where pronamespace = '{schema}'::regnamespace
	union all select 'constraint ' || oid || ' ' || xmin from pg_constraint where connamespace = '{schema}'::regnamespace
	union all select 'type ' || oid || ' ' || xmin from pg_type where typnamespace = '{schema}'::regnamespace
	union all select 'comment ' || objoid || ' ' || objsubid || ' ' || d.xmin from pg_description d join rel on rel.oid = objoid
	union all select 'comment ' || objoid || ' ' || d.xmin from pg_description d join pg_proc p on p.oid = objoid where pronamespace = '{schema}'::regnamespace
	-- Anything else depends on the schema, or on one of its relations or functions.
	union all select 'depends ' || classid || ' ' || objid || ' ' || objsubid || ' ' || refobjid || ' ' || refobjsubid from pg_depend
		where refobjid = '{schema}'::regnamespace::oid or refobjid in (select oid from rel)
		or refobjid in (select oid from pg_proc where pronamespace = '{schema}'::regnamespace)
	union all select 'version ' || v from {schema}.` + migrations.Table + ` v
)
select md5(string_agg(what, E'\n' order by what collate "C")) from things`

// sqlUsed are the tables that have rows, or had some.
const sqlUsed = `
select relname from pg_class where relnamespace = '{schema}'::regnamespace and relkind = 'r' and relname <> '` + migrations.Table + `'
	and (pg_relation_size(oid) > 0 or reltuples >= 0) order by relname`

// sqlForget resets what the server has counted about the schema's relations.
const sqlForget = `select pg_stat_reset_single_table_counters(oid) from pg_class where relnamespace = '{schema}'::regnamespace and relkind in ('r', 'i')`

// sqlRestart are the sequences that somebody has used.
const sqlRestart = `select sequencename from pg_sequences where schemaname = '{schema}' and last_value is not null
	and sequencename not like '` + migrations.Table + `%' order by 1`

// sqlStats is what the planner knows of the indexes. Emptying a table leaves other numbers than creating it.
const sqlStats = `
select 'update pg_class c set relpages = v.relpages, reltuples = v.reltuples from (values ' ||
	string_agg(format('(%s::oid, %s, %s::real)', oid, relpages, reltuples), ', ') ||
	') v (oid, relpages, reltuples) where c.oid = v.oid and (c.relpages, c.reltuples) <> (v.relpages, v.reltuples)'
from pg_class where relnamespace = '{schema}'::regnamespace and relkind = 'i'`

func (s *schema) sql(text string) string { return strings.ReplaceAll(text, "{schema}", s.name) }

// remember notes what the schema is like. It has just been migrated.
func (s *schema) remember(ctx context.Context, conn *pgx.Conn) error {
	if err := conn.QueryRow(ctx, s.sql(sqlPrint)).Scan(&s.print); err != nil {
		return err
	}
	if err := conn.QueryRow(ctx, s.sql(sqlStats)).Scan(&s.stats); err != nil {
		return err
	}
	tables, err := s.names(ctx, conn, sqlUsed)
	if err != nil {
		return err
	}
	for _, table := range tables {
		var rows string
		if err := conn.QueryRow(ctx, s.sql(`select coalesce(jsonb_agg(to_jsonb(t)), '[]')::text from {schema}.`+table+` t`)).Scan(&rows); err != nil {
			return err
		}
		if rows != "[]" {
			s.seed = append(s.seed, seed{table, rows})
		}
	}
	return nil
}

// restore makes the schema what it was when it had just been migrated. It returns false, and the schema is of no more
// use, if something else than rows has changed, or if a session of the test's does not end.
func (s *schema) restore(ctx context.Context, conn *pgx.Conn) (bool, error) {
	if ended, err := s.sessionsEnded(ctx, conn); err != nil || !ended {
		return false, err
	}
	var print string
	if err := conn.QueryRow(ctx, s.sql(sqlPrint)).Scan(&print); err != nil || print != s.print {
		return false, err
	}
	tables, err := s.names(ctx, conn, sqlUsed)
	if err != nil {
		return false, err
	}
	sequences, err := s.names(ctx, conn, sqlRestart)
	if err != nil {
		return false, err
	}
	var all []string
	if len(tables) > 0 {
		all = append(all, `truncate {schema}.`+strings.Join(tables, `, {schema}.`))
	}
	for _, sequence := range sequences {
		all = append(all, `alter sequence {schema}.`+sequence+` restart`)
	}
	for _, seed := range s.seed {
		all = append(all, `insert into {schema}.`+seed.table+` overriding system value
			select * from jsonb_populate_recordset(null::{schema}.`+seed.table+`, $seed$`+seed.rows+`$seed$)`)
	}
	all = append(all, s.stats, sqlForget)
	_, err = conn.Exec(ctx, s.sql(strings.Join(all, "; ")), pgx.QueryExecModeSimpleProtocol)
	return err == nil, err
}

// sessionsEnded waits a moment for them. The server notices only after its client that a session has ended, and until
// then it may still write.
func (s *schema) sessionsEnded(ctx context.Context, conn *pgx.Conn) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for end := time.Now().Add(2 * time.Second); ; {
		var alive bool
		if err := conn.QueryRow(ctx, `select exists (select from pg_stat_activity where pid = any($1))`, s.sessions).Scan(&alive); err != nil {
			return false, err
		}
		if !alive || time.Now().After(end) {
			s.sessions = nil
			return !alive, nil
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

func (s *schema) names(ctx context.Context, conn *pgx.Conn, query string) ([]string, error) {
	rows, _ := conn.Query(ctx, s.sql(query)) // an error is told by CollectRows
	return pgx.CollectRows(rows, pgx.RowTo[string])
}
