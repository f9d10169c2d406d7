package pg_test

import (
	"strings"
	"testing"

	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestQualify(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`select id from jobs where id = $1`:                                                       `select id from "s".jobs where id = $1`,
		"update jobs set jobs = 1\nfrom drover_kinds k":                                           "update \"s\".jobs set jobs = 1\nfrom \"s\".drover_kinds k",
		`insert into queues (name) values ('jobs')`:                                               `insert into "s".queues (name) values ('jobs')`,
		`delete from drover_solo where drover_solo.id = jobs.id`:                                  `delete from "s".drover_solo where drover_solo.id = jobs.id`,
		`lock table only jobs in row exclusive mode`:                                              `lock table only "s".jobs in row exclusive mode`,
		`copy jobs (id) from stdin`:                                                               `copy "s".jobs (id) from stdin`,
		`select jobs, queues from job_counts join failures f on true`:                             `select jobs, queues from "s".job_counts join "s".failures f on true`,
		`select drover_wake($1), drover_x, drover_last_error (e)`:                                 `select "s".drover_wake($1), drover_x, "s".drover_last_error (e)`,
		`select from drover_enqueue(kind => $1)`:                                                  `select from "s".drover_enqueue(kind => $1)`,
		`select 'jobs'::regclass, to_regclass('jobs'), 'jobs', 'drover_x()'::regprocedure`:        `select '"s".jobs'::regclass, to_regclass('"s".jobs'), 'jobs', '"s".drover_x()'::regprocedure`,
		`select to_regproc('now'), '''jobs'''::regclass`:                                          `select to_regproc('now'), '''jobs'''::regclass`,
		`select a is distinct from jobs.id from mine.jobs`:                                        `select a is distinct from jobs.id from mine.jobs`,
		`select "from" from "jobs"`:                                                               `select "from" from "jobs"`,
		"-- from jobs\nselect /* from jobs /* from jobs */ from jobs */ 1":                        "-- from jobs\nselect /* from jobs /* from jobs */ from jobs */ 1",
		`select ' from jobs ', E'\' from jobs ', $$ from jobs $$, $a$ from $$ jobs $a$ from jobs`: `select ' from jobs ', E'\' from jobs ', $$ from jobs $$, $a$ from $$ jobs $a$ from "s".jobs`,
		`select $1 from jobs where $1$2 from jobs`:                                                `select $1 from "s".jobs where $1$2 from "s".jobs`,
		`select 1from jobs`: `select 1from jobs`,
		`from ' jobs`:       `from ' jobs`,
	} {
		if got := pg.NewNames("s").SQL(in); got != want {
			t.Errorf("%s\nbecomes %s\nwant    %s", in, got, want)
		}
	}
	odd := pg.NewNames(`a"b'\`)
	if got, want := odd.SQL(`select 'jobs'::regclass from jobs`), `select  E'"a""b''\\".jobs'::regclass from "a""b'\".jobs`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if none := pg.NewNames(""); none.SQL(`from jobs`) != `from jobs` || none.Schema() != "" || none.Table("jobs").Sanitize() != `"jobs"` {
		t.Error("without a schema something is qualified")
	}
}

// Whatever the server has in drover's schema is known to be drover's.
func TestAllNamesAreQualified(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewMigratedPool(t)
	names := pg.NewNames("s")
	for kind, query := range map[string]string{
		"select from ": `select relname::text from pg_class where relnamespace = quote_ident(current_schema())::regnamespace and relkind in ('r', 'p', 'v', 'm', 'f', 'S')`,
		"select ":      `select proname || '()' from pg_proc where pronamespace = quote_ident(current_schema())::regnamespace`,
	} {
		rows, err := pool.Query(t.Context(), query)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for rows.Next() {
			var name string
			if err := rows.Scan(&name); err != nil {
				t.Fatal(err)
			}
			if n++; names.SQL(kind+name) != kind+`"s".`+name {
				t.Errorf("%s is not known", name)
			}
		}
		if rows.Err() != nil || n < 20 {
			t.Errorf("%d names: %v", n, rows.Err())
		}
	}
	var types int
	if err := pool.QueryRow(t.Context(), `select count(*) from pg_type where typnamespace = quote_ident(current_schema())::regnamespace and typrelid = 0 and typelem = 0`).Scan(&types); err != nil || types > 0 {
		t.Errorf("%d types: qualify knows of none: %v", types, err)
	}
}

// A text is kept once, and no number of texts fills the memory.
func TestNamesKeepAThousandTexts(t *testing.T) {
	t.Parallel()
	names := pg.NewNames("s")
	for i := range 2000 {
		names.SQL("select from jobs limit " + strings.Repeat("1", i+1))
	}
	if n := pg.KnownTexts(names); n != 1000 {
		t.Errorf("%d are kept", n)
	}
}

// Qualifying changes nothing else, does it once, and ends.
func FuzzQualify(f *testing.F) {
	for _, text := range []string{`select from jobs`, `'jobs'::regclass`, `/* -- */ $a$ 'x`, `to_regclass('jobs') E'\'`, `"`, `1.jobs from`, `from"s".jobs`} {
		f.Add(text)
	}
	const prefix = `"s".`
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, prefix) {
			return
		}
		once := pg.NewNames("s").SQL(text)
		if twice := pg.NewNames("s").SQL(once); twice != once {
			t.Errorf("%q becomes %q, then %q", text, once, twice)
		}
		if strings.ReplaceAll(once, prefix, "") != text {
			t.Errorf("%q becomes %q", text, once)
		}
	})
}

func BenchmarkQualify(b *testing.B) {
	text := `with held as materialized (select id from jobs where id = any($1) for update skip locked) ` +
		strings.Repeat(`, x as (select 'literal', "quoted", $1::text[], a.b from held h join drover_kinds k on k.kind = h.kind)`, 40) + ` update jobs set id = id`
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			pg.NewNames("s").SQL(text)
		}
	})
	b.Run("again", func(b *testing.B) {
		names := pg.NewNames("s")
		names.SQL(text)
		b.ReportAllocs()
		for b.Loop() {
			names.SQL(text)
		}
	})
	b.ReportMetric(float64(len(text)), "bytes")
}
