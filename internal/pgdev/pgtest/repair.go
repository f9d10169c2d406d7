package pgtest

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
)

// objects lists the objects of the schema. Each entry has the OIDs of the catalog and of the object.
func objects(ctx context.Context, conn *pgx.Conn, schema string) ([]string, error) {
	rows, _ := conn.Query(ctx, `select concat(classid, '/', objid) from (`+sqlObjects+`) o`, schema)
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// repair removes what a test has added to the schema: functions, tables, indexes, constraints, triggers, policies and
// the statistics of analyze. The caller checks afterwards whether the schema is like a new one. The check fails if the
// test has changed or dropped an object. A repair takes a tenth of the time that a new schema takes.
func (s *schema) repair(ctx context.Context) error {
	rows, _ := s.conn.Query(ctx, sqlRepair, s.name, s.objects)
	statements, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	if _, err := s.conn.Exec(ctx, strings.Join(statements, `; `)); err != nil {
		return err
	}
	for _, sql := range []string{sqlNoStatistics, sqlNoExtendedStatistics} {
		if _, err := s.conn.Exec(ctx, sql, s.name); err != nil { // only a superuser may run some of these statements
			return err
		}
	}
	return nil
}

// sqlObjects has the objects that depend on schema $1, and the parts of its relations.
const sqlObjects = `
with own as materialized (select classid, objid from pg_depend where refclassid = 'pg_namespace'::regclass and refobjid = to_regnamespace($1)),
relations as materialized (select objid as oid from own where classid = 'pg_class'::regclass)
select classid, objid, 0::oid as relation from own
union all select 'pg_class'::regclass, indexrelid, indrelid from pg_index where indrelid in (select oid from relations)
union all select 'pg_constraint'::regclass, oid, conrelid from pg_constraint where conrelid in (select oid from relations)
union all select 'pg_trigger'::regclass, oid, tgrelid from pg_trigger where tgrelid in (select oid from relations) and not tgisinternal
union all select 'pg_policy'::regclass, oid, polrelid from pg_policy where polrelid in (select oid from relations)`

// sqlRepair returns statements that drop the objects of schema $1 that are not in $2. It returns no statements for the
// parts of a new table, because the drop of the table drops its parts.
const sqlRepair = `
select case classid
	when 'pg_constraint'::regclass then (select format('alter table %s drop constraint if exists %I cascade', relation::regclass, conname) from pg_constraint n where n.oid = objid)
	when 'pg_trigger'::regclass then (select format('drop trigger if exists %I on %s cascade', tgname, relation::regclass) from pg_trigger t where t.oid = objid)
	when 'pg_policy'::regclass then (select format('drop policy if exists %I on %s cascade', polname, relation::regclass) from pg_policy p where p.oid = objid)
	else (select format('drop %s if exists %s cascade', replace(type, ' object', ''), identity) from pg_identify_object(classid, objid, 0))
end from (` + sqlObjects + `) o
where not concat(classid, '/', objid) = any($2) and (relation = 0 or concat('pg_class'::regclass::oid, '/', relation) = any($2))
order by classid <> 'pg_constraint'::regclass, relation = 0, not exists (select from pg_class c where classid = 'pg_class'::regclass and c.oid = objid and relkind = 'r')`

const sqlNoStatistics = `
delete from pg_statistic where starelid in (select objid from (` + sqlObjects + `) o where classid = 'pg_class'::regclass)`

const sqlNoExtendedStatistics = `
delete from pg_statistic_ext_data where stxoid in (select oid from pg_statistic_ext where stxnamespace = to_regnamespace($1))`
