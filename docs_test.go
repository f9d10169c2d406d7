package drover_test

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

// What the documents say is held to what the code does.

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

	// One session waits for another, for what tells of locks.
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

// The map in CONTRIBUTING.md names every file of the root package, the engine and the store, and no other.
func TestMapOfTheFiles(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	var mapped []string
	for _, line := range regexp.MustCompile("(?m)^\\| `([\\w/]+\\.go)` ").FindAllStringSubmatch(string(raw), -1) {
		mapped = append(mapped, line[1])
	}
	var files []string
	for _, dir := range []string{"", "internal/engine/", "internal/store/"} {
		in, err := filepath.Glob(dir + "*.go")
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, in...)
	}
	for _, named := range regexp.MustCompile("`([\\w/]+\\.go)`").FindAllStringSubmatch(string(raw), -1) {
		if _, err := os.Stat(named[1]); err != nil {
			t.Errorf("CONTRIBUTING.md names a file that is not there: %v", err)
		}
	}
	files = slices.DeleteFunc(files, func(name string) bool { return strings.HasSuffix(name, "_test.go") })
	slices.Sort(mapped)
	slices.Sort(files)
	if !slices.Equal(mapped, files) {
		t.Errorf("CONTRIBUTING.md maps:\n%v\nthe files are:\n%v", mapped, files)
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
