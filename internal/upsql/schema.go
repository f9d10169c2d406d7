package upsql

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Create makes a schema with drover's tables.
func Create(ctx context.Context, conn *pgx.Conn, schema string) error {
	migrations, err := Render()
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, `create schema `+schema+`; set search_path = `+schema+`; `+migrations+`; set search_path = pg_catalog`)
	return err
}

// Note describes a new schema, for Reset.
type Note struct {
	Print string                     `json:"print"` // the result of sqlPrint
	Rows  map[string]json.RawMessage `json:"rows"`  // rows that the migrations have inserted, by table

	Sequences json.RawMessage `json:"sequences"` // last values of the sequences that the migrations have used, by name
}

// Describe returns the note of a new schema.
func Describe(ctx context.Context, conn *pgx.Conn, schema string) (Note, error) {
	n := Note{Rows: map[string]json.RawMessage{}}
	const sequences = `select coalesce(jsonb_object_agg(sequencename, last_value), '{}') from pg_sequences where schemaname = $1 and last_value is not null`
	var used []string
	err := conn.QueryRow(ctx, `select (`+sqlPrint+`), (`+sequences+`), array(`+sqlUsed+`)`, schema).Scan(&n.Print, &n.Sequences, &used)
	for _, table := range used {
		var rows []byte
		if err := conn.QueryRow(ctx, `select jsonb_agg(r) from `+pgx.Identifier{schema, table}.Sanitize()+` r`).Scan(&rows); err != nil {
			return n, err
		}
		if rows != nil {
			n.Rows[table] = rows
		}
	}
	return n, err
}

// sqlUsed lists the tables that have rows or had rows, and the tables whose rows have been counted by analyze. Reading
// the size of a table takes a lock on the table, so sqlUsed must not read the sizes of tables of other schemas. So it
// first lists the tables of the schema. Otherwise Postgres might read the size of each table before it tests the schema.
const sqlUsed = `
with tables as materialized (select oid, relname, reltuples from pg_class where relnamespace = to_regnamespace($1) and relkind = 'r')
select relname::text from tables where pg_relation_size(oid) > 0 or reltuples >= 0`

// Free reports whether no session has the schema's name as its application_name. A session ends a moment after its
// client has closed it, so Free waits up to 100 ms.
func Free(ctx context.Context, conn *pgx.Conn, schema string) (free bool, err error) {
	const sql = `select not exists (select from pg_stat_activity where application_name = $1 and datname = current_database())`
	for range 10 {
		if err := conn.QueryRow(ctx, sql, schema).Scan(&free); err != nil || free {
			return free, err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return false, nil
}

// Reset restores the state in which the schema was described. If the catalog of the schema has changed since, or a table
// was analyzed, Reset changes nothing and returns false. It skips tables without rows, because the truncate of a table
// takes 0.5 ms.
func Reset(ctx context.Context, conn *pgx.Conn, schema string, n Note) (good bool, err error) {
	var used []string
	if err := conn.QueryRow(ctx, `select (`+sqlPrint+`) = $2 and not `+sqlAnalyzed+`, array(`+sqlUsed+`)`, schema, n.Print).Scan(&good, &used); err != nil || !good {
		return false, err
	}
	var statements []string
	for _, table := range used {
		statements = append(statements, `truncate `+pgx.Identifier{schema, table}.Sanitize())
	}
	for table, rows := range n.Rows {
		statements = append(statements, fmt.Sprintf(`insert into %[1]s select * from jsonb_populate_recordset(null::%[1]s, '%[2]s')`,
			pgx.Identifier{schema, table}.Sanitize(), strings.ReplaceAll(string(rows), `'`, `''`)))
	}
	if len(statements) > 0 {
		if _, err := conn.Exec(ctx, strings.Join(statements, `; `)); err != nil {
			return false, err
		}
	}
	_, err = conn.Exec(ctx, sqlSequences, schema, string(n.Sequences))
	return err == nil, err
}

// sqlSequences sets the sequences to the values that they had in the new schema. A truncate would restart only the
// sequences of its table.
const sqlSequences = `
select setval(format('%I.%I', schemaname, sequencename)::regclass, coalesce(was, start_value), was is not null)
from pg_sequences cross join lateral (select (nullif($2, '')::jsonb->>sequencename)::bigint as was) w
where schemaname = $1 and last_value is distinct from was`

// sqlPrint returns a text that changes if anything in schema $1 changes, except the rows of tables and their statistics.
// Each change of a catalog row changes its oid or its xmin. For pg_class the text has the columns instead, because a
// truncate also changes rows of pg_class.
//
// Almost no catalog has an index that begins with the schema. So pg_depend gives the objects of the schema, and each
// subquery looks up the rows of one object by index. Joins would read the catalogs of all schemas, some of them in
// parallel workers.
const sqlPrint = `
select count(*) || md5(string_agg(x, ' ' order by x collate "C")) from (
	select concat(nspowner, nspacl) from pg_namespace where oid = to_regnamespace($1)
	union all
	select concat_ws(':', classid, objid,
		case classid
		when 'pg_proc'::regclass then (select p.xmin::text from pg_proc p where p.oid = objid)
		when 'pg_type'::regclass then (select t.xmin::text from pg_type t where t.oid = objid)
		when 'pg_constraint'::regclass then (select n.xmin::text from pg_constraint n where n.oid = objid)
		when 'pg_statistic_ext'::regclass then (select e.xmin::text from pg_statistic_ext e where e.oid = objid)
		when 'pg_class'::regclass then (
			select concat_ws(' ', ` + sqlRelation + `,
				(select concat(t.oid, ':', t.xmin) from pg_type t where t.oid = c.reltype),
				(select concat(e.oid, ':', e.xmin) from pg_type t join pg_type e on e.oid = t.typarray where t.oid = c.reltype),
				(select string_agg(concat(attnum, ':', a.xmin), ' ' order by attnum) from pg_attribute a where attrelid = c.oid),
				(select string_agg(concat(d.oid, ':', d.xmin), ' ' order by d.oid) from pg_attrdef d where adrelid = c.oid),
				(select string_agg(concat(n.oid, ':', n.xmin), ' ' order by n.oid) from pg_constraint n where conrelid = c.oid),
				(select string_agg(concat(t.oid, ':', t.xmin), ' ' order by t.oid) from pg_trigger t where tgrelid = c.oid),
				(select string_agg(concat(p.oid, ':', p.xmin), ' ' order by p.oid) from pg_policy p where polrelid = c.oid),
				(select string_agg(concat(r.oid, ':', r.xmin), ' ' order by r.oid) from pg_rewrite r where ev_class = c.oid),
				(select string_agg((select ` + sqlRelation + ` from pg_class c where c.oid = indexrelid), ' ' order by indexrelid) from pg_index where indrelid = c.oid))
			from pg_class c where c.oid = objid)
		end)
	from pg_depend where refclassid = 'pg_namespace'::regclass and refobjid = to_regnamespace($1)
) all_of_it(x)`

const sqlRelation = `concat_ws(':', c.oid, c.relname, c.relkind, c.relowner, c.relacl, c.reloptions, c.relrowsecurity, c.relpersistence)`

// sqlAnalyzed is true if a table of schema $1 has statistics, which outlive the rows and would influence the plans of
// the next test. A new schema has none, so only Reset spends 2 ms on the view pg_stats.
const sqlAnalyzed = `exists (
	select from pg_class c where relnamespace = to_regnamespace($1) and relkind in ('r', 'm')
		and (select count(*) from pg_stats where schemaname = $1 and tablename = c.relname) > 0)`
