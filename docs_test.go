package drover_test

import (
	"bufio"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/engine"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/internal/tier"
	"github.com/drover-queue/drover/migrations"
)

// The documents say the same as the code.

// block is a fenced block of a Markdown file.
type block struct {
	file string
	line int // of its first line
	text string
}

func (b block) String() string { return fmt.Sprintf("%s:%d", b.file, b.line) }

// blocks returns a file's blocks of one language.
func blocks(t *testing.T, file, language string) (found []block) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var open *block
	lines := strings.Split(string(raw), "\n")
	for i, line := range lines {
		switch {
		case open == nil && line == "```"+language:
			open = &block{file: file, line: i + 2}
		case open != nil && line == "```":
			open.text = strings.Join(lines[open.line-1:i], "\n") + "\n"
			found = append(found, *open)
			open = nil
		}
	}
	if len(found) == 0 {
		t.Fatalf("%s has no block of %s", file, language)
	}
	return found
}

// recipes are the SQL blocks of all documents for users, and what their lines give to psql with -c.
func recipes(t *testing.T) (found []block) {
	t.Helper()
	files, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, "README.md") {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(raw), "```sql\n") {
			found = append(found, blocks(t, file, "sql")...)
		}
		for i, line := range strings.Split(string(raw), "\n") {
			for _, given := range regexp.MustCompile(`psql .*-c "([^"]*)"|psql .*-c '([^']*)'`).FindAllStringSubmatch(line, -1) {
				found = append(found, block{file, i + 1, given[1] + given[2]})
			}
		}
	}
	return found
}

// docsID is the job that the recipes are about.
const docsID = "01KAJ4Y8Q3N6T0V5B7C9D1E2FG"

// docsJobs are what a recipe can expect: jobs in every state, and one discarded job under docsID.
const docsJobs = `
insert into drover_kinds (kind, max_attempts) values ('charge', 10);
insert into queues (name) values ('payments');
insert into drover_budgets (scope, retries) values ('queue:payments', 100);
select drover_periodic_set('nightly', 'report', '30 2 * * *');
insert into drover_supervisors (id, lease_ms, queues, in_flight, host) values (drover_ulid(), 30000, '{payments}', '{}', 'app-1');
select drover_pause('queue:images', by => 'ada');
insert into drover_redrives (filter, rate) values ('{"kind": "charge"}', 50);
insert into jobs (kind, queue, args, tags, scheduled_at) values ('charge', 'payments', '{"OrderID": 1}', '{vip}', now() - interval '20 min');
insert into jobs (kind, queue, state, scheduled_at) values ('charge', 'payments', 'scheduled', now() + interval '1 h');
insert into jobs (kind, args, unique_key, unique_scope, unique_until) values ('reindex', '{"document": 7}', '"reindex" by {"document": 7}', 'ended', 'infinity');
insert into jobs (kind, queue, state, scheduled_at, attempt, errors_total, errors) select 'charge', 'payments', 'retryable', now() + interval '1 min', 1, 1,
	jsonb_build_array(jsonb_build_object('attempt', 1, 'at', now(), 'class', 'timeout', 'error', 'drover: run timed out', 'delay_ms', 60000));
insert into jobs (kind, queue, state, attempt, claim_seq, claimed_by, attempted_at) select 'charge', 'payments', 'running', 1, 1, id, now() - interval '2 min' from drover_supervisors;
insert into jobs (kind, queue, state, scheduled_at) values ('charge', 'payments', 'parked', 'infinity');
insert into jobs (kind, queue, state, scheduled_at, crashes, deaths) values ('resize', 'images', 'retryable', now(), 2, 2);
with killer as (
	insert into jobs (kind, queue, state, finalized_at, discard_reason, crashes, deaths, errors) values ('resize', 'images', 'discarded', now() - interval '50 days', 'crashed', 3, 3,
		'[{"attempt": 3, "class": "crash", "error": "drover: the process died while it held the job", "beside": 0, "host": "app-2, process 7"}]') returning id
)
insert into drover_ended_supervisors (id, host, pid, started_at, ended_at, died, degree, explained_by)
select 'gone', 'app-2', 7, now() - interval '1 h', now(), true, 2, id from killer;
insert into jobs (kind, queue, state, finalized_at) values ('charge', 'payments', 'completed', now() - interval '2 days'), ('charge', 'payments', 'cancelled', now());
insert into drover_set_aside (path, job, error, code, retry_at) select 'prune', id, 'violates foreign key constraint', '23503', now() + interval '15 s' from jobs where state = 'cancelled';
insert into drover_set_aside (path, job, error, code, retry_at) select 'rescue', id, 'canceling statement due to statement timeout', '57014', now() + interval '15 s' from jobs where state = 'running';
insert into drover_set_aside (path, job, error, code, retry_at) values ('claim', '` + docsID + `', 'no', 'P0001', now());
insert into drover_activity (seconds, queue, supervisor, started, waited, completed, failed, discarded) values (60, 'payments', 'gone', 20, 1.5, 18, 2, 0);
insert into drover_failure_groups (fingerprint, kind, class, sample, first_seen, last_seen, count, jobs, last_job)
values ('00c0ffee00c0ffee', 'charge', 'error', 'card declined', now(), now(), 2, 1, '` + docsID + `');
insert into jobs (id, kind, queue, args, state, finalized_at, discard_reason, class, fingerprint, attempt, errors_total, errors)
select '` + docsID + `', 'charge', 'payments', '{"OrderID": 42}', 'discarded', now() - interval '40 days', 'attempts_exhausted', 'error', '00c0ffee00c0ffee', 10, 2, jsonb_build_array(
	jsonb_build_object('attempt', 9, 'at', now(), 'class', 'error', 'error', 'card declined', 'fingerprint', '00c0ffee00c0ffee', 'delay_ms', 15000),
	jsonb_build_object('attempt', 10, 'at', now(), 'class', 'error', 'error', 'card declined', 'fingerprint', '00c0ffee00c0ffee'));
`

// Every recipe runs, and each of its statements finds or changes something: E-8, F-11, D-8.
func TestSQLOfTheDocuments(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewMigratedPool(t)
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	run := func(sql string) ([]*pgconn.Result, error) {
		return conn.Conn().PgConn().Exec(t.Context(), sql).ReadAll()
	}

	// One session waits for another, so that there is a lock to show.
	for _, exec := range []func(*pgconn.PgConn) error{
		func(holder *pgconn.PgConn) error {
			return holder.Exec(t.Context(), `select pg_advisory_lock(1)`).Close()
		},
		func(waiting *pgconn.PgConn) error {
			waiting.Exec(t.Context(), `select pg_advisory_lock(1)`)
			return nil
		},
	} {
		session, err := pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = session.PgConn().Conn().Close() })
		if err := exec(session.PgConn()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := run(`do $$ begin while not exists (select from pg_locks where locktype = 'advisory' and objid = 1 and not granted) loop perform pg_sleep(0.01); end loop; end $$`); err != nil {
		t.Fatal(err)
	}

	for _, b := range recipes(t) {
		if _, err := run("begin;" + docsJobs); err != nil {
			t.Fatal(err)
		}
		results, err := run(b.text)
		if err != nil {
			t.Errorf("%v: %v\n%s", b, err, b.text)
		}
		for i, r := range results {
			tag := r.CommandTag
			if (tag.Select() || tag.Insert() || tag.Update() || tag.Delete()) && tag.RowsAffected() == 0 {
				t.Errorf("%v: statement %d touches no row (%s)\n%s", b, i+1, tag, b.text)
			}
		}
		if _, err := run("rollback"); err != nil {
			t.Fatal(err)
		}
	}
}

// The tables of settings name exactly the fields there are, in their order.
func TestConfigurationTables(t *testing.T) {
	t.Parallel()
	const file = "docs/configuration.md"
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, settings := range []any{drover.Config{}, drover.SupervisorConfig{}, drover.Queue{}, drover.WorkerOpts{}, drover.EnqueueOpts{}} {
		kind := reflect.TypeOf(settings)
		var want []string
		for _, field := range reflect.VisibleFields(kind) {
			if field.IsExported() {
				want = append(want, field.Name)
			}
		}
		_, table, found := strings.Cut(string(raw), "\n| `"+kind.Name()+"` |")
		if !found {
			t.Errorf("%s has no table of %s", file, kind.Name())
			continue
		}
		table, _, _ = strings.Cut(table, "\n\n")
		var got []string
		for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\|").FindAllStringSubmatch(table, -1) {
			got = append(got, row[1])
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s tells of these fields of %s:\n%v\nit has:\n%v", file, kind.Name(), got, want)
		}
	}
}

// Each function of the walk in CONTRIBUTING.md is in the file that the walk names.
func TestWalkOfADeath(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	_, walk, _ := strings.Cut(string(raw), "\n## A process dies\n")
	walk, _, _ = strings.Cut(walk, "\n## ")
	steps := regexp.MustCompile("`(\\w+)`(?: \\| | in\n?)\\s*`([\\w/]+\\.go)`").FindAllStringSubmatch(walk, -1)
	if len(steps) < 20 {
		t.Errorf("%d steps", len(steps))
	}
	for _, step := range steps {
		code, err := os.ReadFile(step[2])
		if err != nil {
			t.Error(err)
		} else if !regexp.MustCompile(`(?m)^func (\(.+?\) )?` + step[1] + `\(`).Match(code) {
			t.Errorf("%s has no function %s", step[2], step[1])
		}
	}
}

// The doc.go of a package with more than two files lists each of them, and no other file.
func TestMapOfTheFiles(t *testing.T) {
	t.Parallel()
	rooms := map[string][]string{}
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch ext := filepath.Ext(path); {
		case err == nil && entry.IsDir() && path != "." && (entry.Name()[0] == '.' || entry.Name() == "node_modules" || entry.Name() == "testdata"):
			return filepath.SkipDir
		case err == nil && (ext == ".go" || ext == ".sql") && !strings.HasSuffix(path, "_test.go") && filepath.Base(path) != "doc.go":
			rooms[filepath.Dir(path)] = append(rooms[filepath.Dir(path)], filepath.Base(path))
		}
		return err
	})
	if err != nil || len(rooms) < 20 {
		t.Fatal(rooms, err)
	}
	for room, files := range rooms {
		doc, err := os.ReadFile(filepath.Join(room, "doc.go"))
		var mapped []string
		for _, line := range regexp.MustCompile(`(?m)^//   - (\w+\.(?:go|sql)): `).FindAllStringSubmatch(string(doc), -1) {
			mapped = append(mapped, line[1])
		}
		if len(files) <= 2 && len(mapped) == 0 {
			continue
		}
		slices.Sort(mapped)
		slices.Sort(files)
		if !slices.Equal(mapped, files) {
			t.Errorf("%s/doc.go lists:\n%v\nthe files are:\n%v (%v)", room, mapped, files, err)
		}
	}
	raw, err := os.ReadFile("CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, named := range regexp.MustCompile("`([\\w/]+\\.go)`").FindAllStringSubmatch(string(raw), -1) {
		if _, err := os.Stat(named[1]); err != nil && named[1] != "doc.go" {
			t.Errorf("CONTRIBUTING.md names a file that is not there: %v", err)
		}
	}
}

// Every link to a file leads to one, and every link to a heading too.
func TestLinksOfTheDocuments(t *testing.T) {
	t.Parallel()
	files := []string{"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"}
	for _, pattern := range []string{"docs/*.md", "docs/*/*.md", "*/README.md"} {
		more, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, more...)
	}
	fenced := regexp.MustCompile("(?ms)^ *```.*?^ *```")
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, link := range regexp.MustCompile(`\]\(([^)#]*)(#[^)]*)?\)`).FindAllStringSubmatch(fenced.ReplaceAllString(string(raw), ""), -1) {
			if strings.Contains(link[1], "://") {
				continue
			}
			to := filepath.Join(filepath.Dir(file), link[1])
			if link[1] == "" {
				to = file
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s: %v", file, err)
			} else if link[2] != "" && !slices.Contains(anchors(t, to), link[2]) {
				t.Errorf("%s: %s has no heading %s", file, to, link[2])
			}
		}
	}
}

// anchors returns what links to the headings of a Markdown file end with.
func anchors(t *testing.T, file string) (found []string) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(string(raw), -1) {
		name := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		found = append(found, "#"+strings.ReplaceAll(name, " ", "-"))
	}
	return found
}

// Every function and method that a user calls has an example that runs.
func TestEveryEntryPointHasAnExample(t *testing.T) {
	t.Parallel()
	fset := token.NewFileSet()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var parsed []*ast.File
	for _, name := range files {
		file, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, file)
	}
	examples := map[string]bool{}
	for _, e := range doc.Examples(parsed...) {
		name, _, _ := strings.Cut(e.Name, "_")
		if e.Output != "" {
			examples[name], examples[e.Name] = true, true
			if i := strings.LastIndex(e.Name, "_"); i > 0 {
				examples[e.Name[:i]] = true // a suffix
			}
		}
	}
	pkg, err := doc.NewFromFiles(fset, parsed, "github.com/drover-queue/drover")
	if err != nil {
		t.Fatal(err)
	}
	var calls []string
	for _, f := range pkg.Funcs {
		calls = append(calls, f.Name)
	}
	for _, typ := range pkg.Types {
		for _, f := range typ.Funcs {
			calls = append(calls, f.Name)
		}
		if slices.Contains([]string{"Client", "Supervisor", "Job"}, typ.Name) {
			for _, m := range typ.Methods {
				if m.Name != "LogValue" { // slog calls it
					calls = append(calls, typ.Name+"_"+m.Name)
				}
			}
		}
	}
	for _, call := range calls {
		if !examples[call] {
			t.Errorf("%s has no example with an output", strings.ReplaceAll(call, "_", "."))
		}
	}
}

// docs/guarantees.md and SECURITY.md promise nothing without a test, and name no test that is not there.
func TestEveryPromiseNamesItsTests(t *testing.T) {
	t.Parallel()
	var tests strings.Builder
	for _, pattern := range []string{"*_test.go", "*/*_test.go", "*/*/*_test.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			tests.Write(raw)
		}
	}
	named := regexp.MustCompile("`(Test\\w+)`")
	for _, file := range []string{"docs/guarantees.md", "SECURITY.md"} {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range named.FindAllStringSubmatch(string(raw), -1) {
			if !strings.Contains(tests.String(), "\nfunc "+name[1]+"(t *testing.T) {") {
				t.Errorf("%s names %s, which is no test", file, name[1])
			}
		}
		promises := 0
		for line := range strings.Lines(string(raw)) {
			row := strings.HasPrefix(line, "| ") && !strings.HasSuffix(line, "| proven by |\n")
			if file == "docs/guarantees.md" && row {
				promises++
				if !named.MatchString(line) {
					t.Errorf("%s: nothing proves: %s", file, line)
				}
			}
		}
		if file == "docs/guarantees.md" && promises < 20 {
			t.Errorf("%s has %d promises", file, promises)
		}
	}
}

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
			return // quickly: most lines name none
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

const firstProgram = "examples/welcome/main.go"

// The code of README.md, docs/testing.md, docs/outcomes.md, docs/middleware.md and docs/health.md is, word for word, the
// code that tests and examples run.
func TestCodeOfTheReadme(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(firstProgram)
	if err != nil {
		t.Fatal(err)
	}
	_, program, _ := strings.Cut(string(raw), "\npackage main\n")
	compareCode(t, "README.md", append([]string{"package main\n" + program}, partsFor(t, "README.md", "example_readme_test.go")...))
	compareCode(t, "docs/testing.md", partsFor(t, "docs/testing.md", "example_testing_test.go"))
	compareCode(t, "docs/outcomes.md", partsFor(t, "docs/outcomes.md", "example_handler_test.go"))
	compareCode(t, "docs/middleware.md", partsFor(t, "docs/middleware.md", "example_middleware_test.go"))
	raw, err = os.ReadFile("example_operate_test.go")
	if err != nil {
		t.Fatal(err)
	}
	lines := blocks(t, "docs/health.md", "go")
	if len(lines) == 0 {
		t.Error("docs/health.md has no line of go")
	}
	for _, line := range lines {
		if !strings.Contains(string(raw), "\n\t"+line.text) {
			t.Errorf("%v has this, and example_operate_test.go does not:\n%s", line, line.text)
		}
	}
}

// partsFor returns the parts of a file of ours that a document shows.
func partsFor(t *testing.T, document, file string) []string {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, code, _ := strings.Cut(string(raw), "// "+document+" shows this code; docs_test.go compares the two.\n\n")
	code, _, _ = strings.Cut(code, "\n// "+document+" ends here.\n")
	return strings.Split(code, "\n// "+document+" goes on.\n\n")
}

func compareCode(t *testing.T, document string, run []string) {
	t.Helper()
	shown := blocks(t, document, "go")
	if len(shown) != len(run) {
		t.Fatalf("%s has %d blocks of go, %d are run", document, len(shown), len(run))
	}
	for i, code := range run {
		if shown[i].text != code {
			t.Errorf("%v shows:\n%s\nwhat is run is:\n%s", shown[i], shown[i].text, code)
		}
	}
}

// The first program of README.md migrates an empty schema, runs its job and ends with Ctrl-C.
func TestFirstProgramOfTheReadme(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	url := pgtest.URL(t)
	if strings.Contains(url, "?") {
		url += "&"
	} else {
		url += "?"
	}
	url += "search_path=" + pgtest.Schema(pgtest.NewPool(t))
	binary := filepath.Join(t.TempDir(), "welcome")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "./"+filepath.Dir(firstProgram)).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), binary)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+url)
	var problems strings.Builder
	cmd.Stderr = &problems
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || line != "Welcome, Ann\n" {
		t.Errorf("it printed %q, %v", line, err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, problems.String())
	}
}
