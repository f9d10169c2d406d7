package pgtest_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/internal/tier"
	"github.com/drover-queue/drover/migrations"
)

// Tests run on schemas that goose has not made. They prove something only if these schemas equal the ones of goose.
func TestMigratedAsGooseDoes(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	byGoose := pgtest.NewPool(t)
	if err := migrations.Up(t.Context(), byGoose); err != nil {
		t.Fatal(err)
	}
	byString := pgtest.NewMigratedPool(t)
	want, got := catalogue(t, byGoose), catalogue(t, byString)
	if len(want) < 500 {
		t.Errorf("goose made only %d things", len(want))
	}
	for _, thing := range want {
		if !slices.Contains(got, thing) {
			t.Errorf("only goose made %s", thing)
		}
	}
	for _, thing := range got {
		if !slices.Contains(want, thing) {
			t.Errorf("goose did not make %s", thing)
		}
	}
	list, err := migrations.List(t.Context(), byString)
	if err != nil || len(list) == 0 {
		t.Fatal(list, err)
	}
	for _, m := range list {
		if !m.Applied {
			t.Errorf("goose does not know that %s has been applied", m.File)
		}
	}
}

// catalogue returns a description of everything in the pool's schema.
func catalogue(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	const sql = `
with space as (select oid, nspacl from pg_namespace where nspname = current_schema()),
rel as (select c.* from pg_class c join space on space.oid = relnamespace)
select concat_ws(' ', 'relation', relkind, relname, 'owner', relowner::regrole, relacl, relpersistence, relreplident, relrowsecurity, reloptions, relchecks,
	relhasrules, relhastriggers, obj_description(oid, 'pg_class'), (select reloptions from pg_class toast where toast.oid = rel.reltoastrelid)) from rel
union all select concat_ws(' ', 'column', attrelid::regclass, attnum, attname, format_type(atttypid, atttypmod), attnotnull, attidentity, attgenerated,
	attstorage, attcompression, attstattarget, attcollation::regcollation, attacl, attoptions, atthasmissing, pg_get_expr(adbin, adrelid), col_description(attrelid, attnum))
	from pg_attribute join rel on rel.oid = attrelid left join pg_attrdef on adrelid = attrelid and adnum = attnum
union all select concat_ws(' ', 'index', pg_get_indexdef(indexrelid), indisvalid, indisready, indisclustered, indisreplident) from pg_index join rel on rel.oid = indexrelid
union all select concat_ws(' ', 'constraint', conrelid::regclass, conname, pg_get_constraintdef(c.oid), convalidated, obj_description(c.oid, 'pg_constraint'))
	from pg_constraint c join space on space.oid = connamespace
union all select concat_ws(' ', 'trigger', pg_get_triggerdef(t.oid), tgenabled) from pg_trigger t join rel on rel.oid = tgrelid
union all select concat_ws(' ', 'view', relname, pg_get_viewdef(oid)) from rel where relkind in ('v', 'm')
union all select concat_ws(' ', 'rule', ev_class::regclass, rulename, ev_enabled) from pg_rewrite join rel on rel.oid = ev_class
union all select concat_ws(' ', 'policy', polrelid::regclass, polname, pg_get_expr(polqual, polrelid)) from pg_policy join rel on rel.oid = polrelid
union all select concat_ws(' ', 'sequence', relname, seqtypid::regtype, seqstart, seqincrement, seqcycle, pg_sequence_last_value(rel.oid))
	from pg_sequence join rel on rel.oid = seqrelid
union all select concat_ws(' ', 'function', pg_get_functiondef(p.oid), 'owner', proowner::regrole, proacl, obj_description(p.oid, 'pg_proc'))
	from pg_proc p join space on space.oid = pronamespace where prokind <> 'a'
union all select concat_ws(' ', 'type', typname, typtype, typacl, typnotnull, obj_description(t.oid, 'pg_type')) from pg_type t join space on space.oid = typnamespace
union all select concat_ws(' ', 'statistics', stxname, stxkind) from pg_statistic_ext join space on space.oid = stxnamespace
union all select concat_ws(' ', 'schema', nspacl, obj_description(oid, 'pg_namespace')) from space
union all select concat_ws(' ', 'default acl', defaclobjtype, defaclacl) from pg_default_acl join space on space.oid = defaclnamespace
union all select concat_ws(' ', 'depends', refclassid::regclass, classid::regclass, deptype, count(*)) from pg_depend
	where refobjid in (select oid from space union all select oid from rel) group by refclassid, classid, deptype`
	things := texts(t, pool, sql)
	for _, table := range texts(t, pool, `select relname from pg_class where relnamespace = quote_ident(current_schema())::regnamespace and relkind = 'r'`) {
		things = append(things, texts(t, pool, `select concat_ws(' ', 'row of `+table+`', to_jsonb(t) - 'tstamp') from `+table+` t`)...)
	}
	for i, thing := range things {
		things[i] = strings.ReplaceAll(thing, pgtest.Schema(pool), "schema")
	}
	return things
}

func texts(t *testing.T, pool *pgxpool.Pool, sql string) []string {
	t.Helper()
	rows, _ := pool.Query(t.Context(), sql)
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return list
}
