package pgtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A schema is lent again only as the migrations left it, for otherwise a test would depend on those before it.
func TestASchemaIsUsedAgainAsItWas(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"nothing":                       ``,
		"rows":                          `insert into jobs (kind) values ('k'); insert into queues (name) values ('q'); insert into kinds (kind) values ('k')`,
		"rows that migrations inserted": everyTable(`delete from %I`),
		"rows that are gone":            `insert into jobs (kind) select 'k' from generate_series(1, 1000); delete from jobs`,
		"what vacuum found":             `vacuum jobs`,
		"large values":                  `insert into jobs (kind, args) select 'k', jsonb_build_object('a', (select string_agg(md5(n::text), '') from generate_series(1, 400) n))`,
		"what was rolled back":          `begin; alter table jobs add column mine int; rollback`,
		"sequences": `select nextval(oid) from pg_class where relnamespace = quote_ident(current_schema())::regnamespace
			and relkind = 'S' and relname not like 'drover_goose_version%'`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, again, left := lendTwice(t, sql)
			if first != again {
				t.Errorf("lent %s, then %s", first, again)
			}
			if len(left) > 0 {
				t.Errorf("left by the test before: %q", left)
			}
		})
	}
}

func TestWhatChangesASchema(t *testing.T) {
	t.Parallel()
	conn := connect(t.Context(), t)
	defer conn.Close(t.Context()) //nolint:errcheck // nothing is lost with this connection
	s := newMigrated(t)
	defer dropSchema(t, s.name)
	if _, err := conn.Exec(t.Context(), `set search_path to `+s.name); err != nil {
		t.Fatal(err)
	}
	for name, sql := range map[string]string{
		"a table":                 `create table mine ()`,
		"a column":                `alter table jobs add column mine int`,
		"a column's storage":      `alter table jobs alter args set storage external`,
		"a column's default":      `alter table jobs alter queue set default 'mine'`,
		"a column's rights":       `grant select (id) on jobs to public`,
		"a table's settings":      `alter table jobs set (fillfactor = 50)`,
		"a TOAST table's":         `alter table jobs set (toast.autovacuum_enabled = off)`,
		"a table's rights":        `grant select on jobs to public`,
		"row security":            `alter table jobs enable row level security`,
		"a policy":                `create policy mine on jobs using (true)`,
		"a rule":                  `create rule mine as on insert to jobs do instead nothing`,
		"a check":                 `alter table jobs add check (kind <> 'x')`,
		"a check that went":       `do $$ begin execute (select format('alter table jobs drop constraint %I', conname) from pg_constraint where conrelid = 'jobs'::regclass and contype = 'c' limit 1); end $$`,
		"an index":                `create index on jobs (kind)`,
		"an index that went":      `do $$ begin execute (select format('drop index %I', indexrelid::regclass) from pg_index where indrelid = 'jobs'::regclass and not indisunique limit 1); end $$`,
		"a trigger":               `create trigger mine before insert on jobs for each row execute function suppress_redundant_updates_trigger()`,
		"a trigger that is off":   `alter table jobs disable trigger all`,
		"a function":              `create function mine() returns int language sql as 'select 1'`,
		"a function's body":       `create or replace function drover_schema_version() returns int language sql immutable as 'select 99'`,
		"a function's settings":   `alter function drover_schema_version() set work_mem = '1MB'`,
		"a function's rights":     `revoke execute on function drover_schema_version() from public`,
		"a view":                  `create view mine as select 1`,
		"a type":                  `create type mine as enum ('a')`,
		"a comment":               `comment on table jobs is 'mine'`,
		"a comment on a column":   `comment on column jobs.id is 'mine'`,
		"a comment on a function": `comment on function drover_schema_version() is 'mine'`,
		"a sequence of its own":   `create sequence mine`,
		"statistics":              `create statistics mine on kind, queue from jobs`,
		"what ANALYZE found":      `insert into jobs (kind) values ('k'); analyze jobs`,
		"the schema's rights":     `do $$ begin execute format('grant usage on schema %I to public', current_schema()); end $$`,
		"default rights":          `do $$ begin execute format('alter default privileges in schema %I grant select on tables to public', current_schema()); end $$`,
		"the versions":            `insert into drover_goose_version (version_id, is_applied) values (99, true)`,
	} {
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if print := readPrint(t, s, conn); print == s.print {
			t.Errorf("%s: the fingerprint is the same", name)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if print := readPrint(t, s, conn); print != s.print {
			t.Fatalf("%s: the fingerprint is another one after the rollback", name)
		}
	}
}

func readPrint(t *testing.T, s *schema, conn *pgx.Conn) (print string) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), s.sql(sqlPrint)).Scan(&print); err != nil {
		t.Fatal(err)
	}
	return print
}

// everyTable runs a statement on all tables but goose's.
func everyTable(statement string) string {
	return `do $$ declare name text; begin
		for name in select relname from pg_class where relnamespace = quote_ident(current_schema())::regnamespace
			and relkind = 'r' and relname <> 'drover_goose_version' loop execute format('` + statement + `', name); end loop;
	end $$`
}

// Others than the pool may use a schema whose name they know, and so may sessions that nobody has ended.
func TestASchemaIsNotUsedAgain(t *testing.T) {
	t.Parallel()
	for name, use := range map[string]func(*testing.T, *shelf, *pgxpool.Pool){
		"by its name": func(_ *testing.T, h *shelf, pool *pgxpool.Pool) { h.nameOf(pool) },
		"after a change of its own": func(t *testing.T, _ *shelf, pool *pgxpool.Pool) {
			t.Helper()
			if _, err := pool.Exec(t.Context(), `create table mine ()`); err != nil {
				t.Fatal(err)
			}
		},
		"in a session that goes on": func(t *testing.T, _ *shelf, pool *pgxpool.Pool) {
			t.Helper()
			if _, err := pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := &shelf{open: true}
			t.Run("test", func(t *testing.T) {
				use(t, h, h.pool(t, nil))
			})
			if s := h.take(); s != nil {
				t.Errorf("%s can be lent again", s.name)
			}
		})
	}
}

// lendTwice runs the statements in a schema of a shelf of their own, and returns which schema they had, which one a
// test after them would have, and what that one does not have as a new one has it.
func lendTwice(t *testing.T, sql string) (first, again string, left []string) {
	t.Helper()
	h := &shelf{open: true}
	t.Run("first", func(t *testing.T) {
		pool := h.pool(t, nil)
		first = pool.Config().ConnConfig.RuntimeParams["search_path"]
		if _, err := pool.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("again", func(t *testing.T) {
		pool := h.pool(t, nil)
		again = pool.Config().ConnConfig.RuntimeParams["search_path"]
		fresh := (&shelf{}).pool(t, nil)
		was, is := contents(t, fresh), contents(t, pool)
		for _, line := range is {
			if !slices.Contains(was, line) {
				left = append(left, line)
			}
		}
		if len(was) != len(is) {
			left = append(left, fmt.Sprintf("%d things, a new schema has %d", len(is), len(was)))
		}
	})
	return first, again, left
}

// contents are all rows, what tables and indexes occupy, and what the server has counted about them.
func contents(t *testing.T, pool *pgxpool.Pool) (list []string) {
	t.Helper()
	read := func(sql string) {
		rows, _ := pool.Query(t.Context(), sql) // an error is told by CollectRows
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		list = append(list, lines...)
	}
	read(`select concat_ws(' ', relkind, relname, pg_relation_size(oid), relpages, reltuples, pg_sequence_last_value(case relkind when 'S' then oid end),
		pg_stat_get_tuples_inserted(oid), pg_stat_get_dead_tuples(oid), pg_stat_get_live_tuples(oid))
		from pg_class where relnamespace = quote_ident(current_schema())::regnamespace and relkind in ('r', 'i', 'S')
		and relname not like 'drover_goose_version%' order by relname`)
	for _, relation := range slices.Clone(list) {
		kind, name, _ := strings.Cut(relation, " ")
		if name, _, _ = strings.Cut(name, " "); kind != "r" {
			continue
		}
		read(`select concat_ws(' ', 'row of ` + name + `', to_jsonb(t)) from ` + name + ` t`)
	}
	return list
}
