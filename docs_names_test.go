package drover_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/migrations"
)

// Most tables of drover's have its name as a prefix. Whatever names one of them in text that people read (Markdown in
// code style or SQL, Go comments, SQL) names it in full: without the prefix there is no such table.
func TestTablesOfTheDocuments(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewMigratedPool(t)
	rows, err := pool.Query(t.Context(), `
select substr(relname, 8) from pg_class c where relnamespace = current_schema()::regnamespace and relkind in ('r', 'v') and relname like 'drover\_%'
	and to_regclass(substr(relname, 8)) is null order by length(relname) desc, relname`)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(names) < 10 {
		t.Fatalf("%q, %v", names, err)
	}
	rows, err = pool.Query(t.Context(), `
select relname from pg_class where relnamespace = current_schema()::regnamespace union select proname from pg_proc where pronamespace = current_schema()::regnamespace
union select conname from pg_constraint where connamespace = current_schema()::regnamespace union select tgname from pg_trigger`)
	if err != nil {
		t.Fatal(err)
	}
	known, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	// The version table of the migrations, the roles of docs/roles.sql, the schemas of demo and bench.
	known = append(known, migrations.Table, "drover_owner", "drover_producer", "drover_worker", "drover_reader", "drover_operator", "drover_demo_", "drover_bench_")
	metrics, err := os.ReadFile("docs/metrics.md") // a test of the module prometheus compares it with what is exported
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range regexp.MustCompile("(?m)^\\| `(drover_\\w+)` \\|").FindAllStringSubmatch(string(metrics), -1) {
		known = append(known, row[1], row[1]+"_count", row[1]+"_sum", row[1]+"_bucket")
	}
	alternatives := strings.Join(names, "|")
	long := strings.Join(slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !strings.Contains(name, "_") }), "|")
	any := regexp.MustCompile("(?i)\\b(?:tables?|rows? (?:of|in)|reads?|writes?|says in) `?(?:" + alternatives + ")\\b|\\b(?:" + alternatives + ")`? (?:tables?|rows?)\\b|[^,] (?:" + long + ")\\b")
	sql := regexp.MustCompile(`(?i)\b(?:from|join|into|update|table) (?:only )?(?:` + alternatives + `)\b`)
	styled := regexp.MustCompile("`(?:" + alternatives + ")`")
	also := []string{"`redrives`", "`budgets`", "`supervisors`", "`set_aside`", "`periodic`"} // a column, commands, findings, the key of a filter
	comment, code := regexp.MustCompile(`(^|\s)//.*`), regexp.MustCompile("`[^`]*`|^ *[^` ].*-c \".*")

	full := regexp.MustCompile(`\bdrover_[a-z_]+`)
	refuse := func(file string, line int, text string, patterns ...*regexp.Regexp) {
		if !slices.ContainsFunc(append(names, "drover_"), func(name string) bool { return strings.Contains(text, name) }) {
			return // at once: most lines name none
		}
		for _, found := range full.FindAllString(text, -1) {
			if !slices.Contains(known, found) {
				t.Errorf("%s:%d: there is no %s", file, line, found)
			}
		}
		for _, p := range patterns {
			for _, found := range p.FindAllString(text, -1) {
				if slices.Contains(also, found) {
					continue
				}
				t.Errorf("%s:%d: there is no such table: %s", file, line, found)
			}
		}
	}
	read, root := 0, os.DirFS(".")
	err = fs.WalkDir(root, ".", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if err == nil && file != "." && strings.HasPrefix(d.Name(), ".") {
				return fs.SkipDir
			}
			return err
		}
		kind := filepath.Ext(file)
		if !slices.Contains([]string{".md", ".go", ".sql"}, kind) || file == "docs/nightly.md" { // a log: it quotes, and cuts off
			return nil
		}
		raw, err := fs.ReadFile(root, file)
		if err != nil {
			return err
		}
		read++
		fenced := false
		for i, text := range strings.Split(string(raw), "\n") {
			switch kind {
			case ".go":
				refuse(file, i+1, comment.FindString(text), any)
			case ".sql":
				refuse(file, i+1, text, any, sql)
			default:
				if strings.HasPrefix(strings.TrimSpace(text), "```") {
					fenced = !fenced
				}
				refuse(file, i+1, text, any, styled)
				if !fenced {
					text = strings.Join(code.FindAllString(text, -1), "\n")
				}
				refuse(file, i+1, text, sql)
			}
		}
		return nil
	})
	if err != nil || read < 200 {
		t.Fatalf("%d files, %v", read, err)
	}
}

// How long a stop takes is the same in docs/deploying.md as in the engine.
func TestStopOfTheDocuments(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("docs/deploying.md")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(string(raw)), " ")
	for _, want := range []string{
		fmt.Sprintf("after %g s releases the jobs", engine.HandBack.Seconds()),
		fmt.Sprintf("returns within %g s after it has cancelled", engine.EndPart.Seconds()),
	} {
		if !strings.Contains(text, want) {
			t.Errorf("docs/deploying.md has no %q", want)
		}
	}
}

// docs/events.md has a row for each hook, and names each field of an Event.
func TestEventsOfTheDocuments(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("docs/events.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[drover.Hooks]()) {
		if strings.Count(string(raw), "\n| `"+f.Name+"` |") != 1 {
			t.Errorf("the hook %s has no row", f.Name)
		}
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[drover.Event]()) {
		if !strings.Contains(string(raw), "`"+f.Name+"`") {
			t.Errorf("the field %s is not explained", f.Name)
		}
	}
}
