package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pg"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// shell runs command lines in this process against one schema.
type shell struct {
	pool  *pgxpool.Pool
	flags []string // --url and --schema
	env   map[string]string
	input string // typed by the user
}

// newShell returns a shell on an empty schema.
func newShell(t *testing.T) *shell {
	t.Helper()
	return shellOn(t, pgtest.NewPool(t))
}

func shellOn(t *testing.T, pool *pgxpool.Pool) *shell {
	t.Helper()
	return &shell{pool: pool, flags: []string{"--url", pgtest.URL(t), "--schema", pgtest.Schema(pool)}}
}

// newMigratedShell returns a shell on a schema with drover's tables, and a client.
func newMigratedShell(t *testing.T) (*shell, *drover.Client) {
	t.Helper()
	sh := shellOn(t, pgtest.NewMigratedPool(t))
	client, err := drover.New(sh.pool, drover.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return sh, client
}

// output is the result of one command line.
type output struct {
	line           string
	stdout, stderr string
	code           int
}

func (sh *shell) run(t *testing.T, args ...string) *output {
	t.Helper()
	return sh.runIn(t.Context(), args...)
}

func (sh *shell) runIn(ctx context.Context, args ...string) *output {
	var stdout, stderr bytes.Buffer
	a := &app{stdin: strings.NewReader(sh.input), interactive: sh.input != "", stdout: &stdout, stderr: &stderr, getenv: func(name string) string { return sh.env[name] }}
	code := a.run(ctx, append(append([]string{}, args...), sh.flags...))
	return &output{line: strings.Join(args, " "), stdout: stdout.String(), stderr: stderr.String(), code: code}
}

func (o *output) ok(t *testing.T) *output {
	t.Helper()
	return o.ends(t, 0)
}

// ends asserts the exit code, and that stderr contains each of the texts.
func (o *output) ends(t *testing.T, code int, texts ...string) *output {
	t.Helper()
	if o.code != code {
		t.Fatalf("drover %s: exit code %d, want %d\n%s%s", o.line, o.code, code, o.stdout, o.stderr)
	}
	if n := strings.Count(o.stderr, "drover: "); code != 0 && n != 1 {
		t.Errorf("drover %s: %d times \"drover: \" in %q, want once", o.line, n, o.stderr)
	}
	for _, text := range texts {
		if !strings.Contains(o.stderr, text) {
			t.Errorf("drover %s: no %q in stderr:\n%s", o.line, text, o.stderr)
		}
	}
	return o
}

// says asserts that stdout contains each of the texts.
func (o *output) says(t *testing.T, texts ...string) *output {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(o.stdout, text) {
			t.Errorf("drover %s: no %q in:\n%s", o.line, text, o.stdout)
		}
	}
	return o
}

// decode parses the JSON of the last line, which must have no other keys than v.
func decode[T any](t *testing.T, o *output) (v T) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(o.stdout), "\n")
	dec := json.NewDecoder(strings.NewReader(lines[len(lines)-1]))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("drover %s: %v in:\n%s", o.line, err, o.stdout)
	}
	return v
}

// C-1: the exit code distinguishes a usage error from a failure, and each error names a remedy.
func TestErrors(t *testing.T) {
	t.Parallel()
	there := newShell(t)
	migrated, _ := newMigratedShell(t)
	nowhere := &shell{}
	closed := &shell{flags: []string{"--url", "postgres://drover:secret@127.0.0.1:1/app"}}
	env := func(url string) *shell { return &shell{env: map[string]string{"DATABASE_URL": url}} }
	refused, err := url.Parse(pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	refused.RawQuery += "&statement_timeout=5ssecret"
	const id = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
	for _, c := range []struct {
		sh    *shell
		args  []string
		code  int
		texts []string
	}{
		{nowhere, []string{"jobs", "list"}, 2, []string{"--url", "DATABASE_URL"}},
		{&shell{flags: []string{"--url", "postgres://u:secret@h:port/db"}}, []string{"stats"}, 2, []string{"cannot be read"}},
		{env(`"postgres://u:secret@h/db?sslmode=disable`), []string{"stats"}, 2, []string{"cannot be read", "percent"}},
		{env("postgres://u:se@secret@h/db"), []string{"stats"}, 2, []string{"cannot be read"}},
		{env("u:secret@h/db?sslmode=disable"), []string{"bench"}, 2, []string{"cannot be read"}},
		{&shell{flags: []string{"--url", refused.String()}}, []string{"stats"}, 1, []string{"cannot be reached", "refuses a parameter"}},
		{nowhere, []string{"stats", "-url=postgres://u:secret@h/db"}, 2, []string{"after --url"}},
		{nowhere, []string{"jobs", "show", "postgres://u:secret@h/db"}, 2, []string{"after --url"}},
		{nowhere, []string{"stats", "host=h password=secret"}, 2, []string{"after --url"}},
		{nowhere, []string{"job"}, 2, []string{`unknown command "job"`, "did you mean", "jobs"}},
		{nowhere, []string{"jobs", "shwo"}, 2, []string{`unknown command "shwo" for "drover jobs"`, "show"}},
		{nowhere, []string{"jobs", "list", "--colour"}, 2, []string{"unknown flag: --colour"}},
		{nowhere, []string{"jobs", "list", "--limit", "many"}, 2, []string{"many"}},
		{nowhere, []string{"jobs", "show"}, 2, []string{"usage: drover jobs show ID"}},
		{nowhere, []string{"jobs", "redrive"}, 2, []string{"usage: drover jobs redrive ID..."}},
		{nowhere, []string{"jobs", "redrive", id, "--max-attempts", "0"}, 2, []string{"at least 1"}},
		{nowhere, []string{"migrate", "up", "--create-schema"}, 2, []string{"needs --schema"}},
		{nowhere, []string{"bench", "--retention", "some"}, 2, []string{`"some"`}},
		{closed, []string{"stats"}, 1, []string{"the database cannot be reached", "127.0.0.1:1"}},
		{there, []string{"stats"}, 1, []string{"not migrated", "database ", `schema "` + pgtest.Schema(there.pool), "drover migrate up", "--schema " + pgtest.Schema(there.pool)}},
		{&shell{flags: there.flags[:2:2]}, []string{"stats"}, 1, []string{"not migrated", "database ", "search_path", "drover migrate up"}},
		{&shell{flags: there.flags[:2:2], env: map[string]string{"DROVER_SCHEMA": "Nowhere Land"}}, []string{"stats"}, 1, []string{`there is no schema "Nowhere Land"; drover is installed in: `}},
		{&shell{flags: append(there.flags[:2:2], "--schema", strings.Repeat("x", 64))}, []string{"stats"}, 2, []string{"64 bytes; at most 63"}},
		{&shell{flags: append(there.flags[:2:2], "--schema", "Nowhere Land")}, []string{"stats"}, 1, []string{`there is no schema "Nowhere Land"; drover is installed in: `}},
		{&shell{flags: append(there.flags[:2:2], "--schema", "Nowhere Land")}, []string{"migrate", "up"}, 1, []string{
			`there is no schema "Nowhere Land"; to make it: drover migrate up --create-schema --schema 'Nowhere Land'; drover is installed in: `,
		}},
		{migrated, []string{"jobs", "list", "--state", "dead"}, 2, []string{"--state", `"dead"`, "parked"}},
		{migrated, []string{"jobs", "list", "--limit", "1001"}, 2, []string{"1001"}},
		{migrated, []string{"jobs", "redrive", id, "--args-patch", "[1]"}, 2, []string{"--args-patch", "not a JSON object"}},
		{migrated, []string{"jobs", "redrive", id, "--args-patch", ""}, 2, []string{"--args-patch"}},
		{migrated, []string{"jobs", "list", "--reason", "bored"}, 2, []string{"--reason", "attempts_exhausted"}},
		{migrated, []string{"jobs", "list", "--after", "yesterday"}, 2, []string{"--after: ", "this filter"}},
		{migrated, []string{"jobs", "list", "--kind", "a\x00b"}, 2, []string{"--kind"}},
		{migrated, []string{"jobs", "list", "--state", "discarded", "--after", id}, 2, []string{"--after: ", "this filter"}},
		{migrated, []string{"jobs", "count", "--args-contain", "{"}, 2, []string{"--args-contain"}},
		{migrated, []string{"jobs", "count", "--args-contain", `{"a": "\u0000"}`}, 2, []string{"--args-contain: "}},
		{nowhere, []string{"jobs", "count", "--created-after", "yesterday"}, 2, []string{"--created-after", "RFC", "2h"}},
		{nowhere, []string{"jobs", "count", "--created-after", "-2h"}, 2, []string{"--created-after"}},
		{nowhere, []string{"jobs", "count", "--queue", ""}, 2, []string{"--queue is empty"}},
		{nowhere, []string{"jobs", "cancel", "--kind", "k", "--id", ""}, 2, []string{"--id is empty"}},
		{nowhere, []string{"jobs", "cancel", "--kind", "k", "--finalized-after="}, 2, []string{"--finalized-after"}},
		{nowhere, []string{"jobs", "cancel", "--kind", "k", "x"}, 2, []string{`"x" is not a job id`}},
		{nowhere, []string{"jobs", "cancel"}, 2, []string{"which jobs?", "--all"}},
		{nowhere, []string{"jobs", "discard", "--why", "x"}, 2, []string{"which jobs?"}},
		{nowhere, []string{"jobs", "delete", "--yes"}, 2, []string{"which jobs?"}},
		{migrated, []string{"jobs", "delete", "--state", "running", "--yes"}, 2, []string{"running jobs cannot be deleted"}},
		{migrated, []string{"jobs", "cancel", "--all"}, 2, []string{"0 jobs in database", "--yes"}},
		{nowhere, []string{"jobs", "show", "x"}, 2, []string{"not a job id"}},
		{nowhere, []string{"stats", "--url", ""}, 2, []string{"--url is empty"}},
		{nowhere, []string{"stats", "--schema="}, 2, []string{"--schema is empty"}},
		{nowhere, []string{"help", "jobz"}, 2, []string{`unknown command "jobz"`}},
		{nowhere, []string{"jobs", "shwo", "--help"}, 2, []string{`unknown command "shwo"`}},
		{migrated, []string{"jobs", "show", id}, 1, []string{"not found", id}},
	} {
		o := c.sh.run(t, c.args...).ends(t, c.code, c.texts...)
		if o.stdout != "" {
			t.Errorf("drover %s: %q on stdout", o.line, o.stdout)
		}
		if strings.Contains(o.stderr, "--create-schema") && c.args[0] != "migrate" { // because the name is more often misspelt than new
			t.Errorf("drover %s makes a schema: %s", o.line, o.stderr)
		}
		if strings.Contains(o.stderr, "secret") {
			t.Errorf("drover %s tells the password: %s", o.line, o.stderr)
		}
	}
	malformed := &shell{flags: []string{"--url", "u:secret@h/db?sslmode=disable"}}
	if o := malformed.run(t, "demo").ends(t, 1, "cannot be read"); strings.Contains(o.stderr, "secret") {
		t.Errorf("drover demo tells the password: %s", o.stderr)
	}
}

// The flag overrides the environment, and a search_path in the URL picks the schema.
func TestDatabaseURL(t *testing.T) {
	t.Parallel()
	sh, _ := newMigratedShell(t)
	config, err := pgxpool.ParseConfig(pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	c := config.ConnConfig
	at := fmt.Sprintf("host=%s port=%d dbname=%s user=%s password=%s search_path=%s", conninfo(c.Host), c.Port,
		conninfo(c.Database), conninfo(c.User), conninfo(c.Password), pgtest.Schema(sh.pool))
	const wrong = "postgres://127.0.0.1:1/app"
	for _, kept := range []string{`"` + pgtest.URL(t) + `"`, " '" + pgtest.URL(t) + "'\n"} { // env files keep quotes and blanks
		quoted := &shell{env: map[string]string{"DATABASE_URL": kept}, flags: sh.flags[2:]}
		quoted.run(t, "stats").ok(t).says(t, "no jobs")
	}

	env := &shell{env: map[string]string{"DATABASE_URL": at}}
	env.run(t, "stats").ok(t).says(t, "no jobs")
	flag := &shell{env: map[string]string{"DATABASE_URL": wrong}, flags: []string{"--url", at}}
	flag.run(t, "stats").ok(t).says(t, "no jobs")
	(&shell{env: map[string]string{"DATABASE_URL": at}, flags: []string{"--url", wrong}}).run(t, "stats").ends(t, 1, "cannot be reached")
}

func TestHelp(t *testing.T) {
	t.Parallel()
	sh := &shell{}
	sh.run(t).ok(t).says(t, "jobs", "migrate", "stats", "bench", "demo")
	sh.run(t, "jobs").ok(t).says(t, "list", "show", "count", "summary", "redrive", "cancel", "discard", "delete")
	sh.run(t, "help", "jobs", "list").ok(t).says(t, "parked", "time_budget", "--limit", "xargs -r")
	sh.run(t, "completion", "bash").ok(t).says(t, "drover")
	sh.run(t, "__complete", "jobs", "list", "--state", "d").ok(t).says(t, "discarded")
}

// Each help text lists the command's own flags, then the filter's, then the global ones. A filter's flag is in no other group.
func TestHelpGroupsFlags(t *testing.T) {
	t.Parallel()
	flag := regexp.MustCompile(`(?m)^(?:  -h, |      )--([a-z-]+)`)
	filter := slices.Sorted(slices.Values(filterFlagNames()))
	filtered := 0
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
		help := (&shell{}).run(t, append(strings.Fields(cmd.CommandPath())[1:], "--help")...).ok(t).stdout
		names := func(title string) (names []string) {
			_, group, _ := strings.Cut(help, "\n"+title+":\n")
			group, _, _ = strings.Cut(group, "\n\n")
			for _, found := range flag.FindAllStringSubmatch(group, -1) {
				names = append(names, found[1])
			}
			return names
		}
		own, picks, global := names("Flags"), names("Filter"), names("Global flags")
		if !slices.Contains(own, "help") || !slices.Contains(global, "url") || slices.Contains(own, "url") {
			t.Errorf("%s: its own flags are %q, the global flags %q", cmd.CommandPath(), own, global)
		}
		if cmd.Long != "" && cmd.Example == "" {
			t.Errorf("%s has no example", cmd.CommandPath())
		}
		if !strings.Contains(help, "--created-after ") {
			return
		}
		filtered++
		if !slices.Equal(picks, filter) {
			t.Errorf("%s: the filter's flags are %q, want %q", cmd.CommandPath(), picks, filter)
		}
		if slices.ContainsFunc(own, func(name string) bool { return slices.Contains(filter, name) }) {
			t.Errorf("%s: flags of the filter are among its own: %q", cmd.CommandPath(), own)
		}
		if at := strings.Index(help, "\nFilter:\n"); at < strings.Index(help, "\nFlags:\n") || at > strings.Index(help, "\nGlobal flags:\n") {
			t.Errorf("%s: the filter is not between the other flags:\n%s", cmd.CommandPath(), help)
		}
	}
	walk(newRootCommand(&app{}))
	if filtered < 10 {
		t.Errorf("%d commands have a filter", filtered)
	}
}

// Ctrl-C ends the command while a question waits for its answer.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	sh, _ := newMigratedShell(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	silent, keepOpen := io.Pipe()
	defer keepOpen.Close() //nolint:errcheck // closing the end of a pipe cannot fail
	asked := &cancelAt{text: "Type yes", cancel: cancel}
	a := &app{stdin: silent, stdout: io.Discard, stderr: asked, getenv: func(string) string { return "" }}
	if code := a.run(ctx, append([]string{"migrate", "down"}, sh.flags...)); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if got := asked.String(); !strings.HasSuffix(got, "drover: interrupted\n") {
		t.Errorf("stderr %q", got)
	}
	sh.run(t, "stats").ok(t)
}

// cancelAt is a writer that calls cancel once a text was written to it.
type cancelAt struct {
	bytes.Buffer
	text   string
	cancel func()
}

func (c *cancelAt) Write(p []byte) (int, error) {
	n, err := c.Buffer.Write(p)
	if strings.Contains(c.String(), c.text) {
		c.cancel()
	}
	return n, err
}

// A URL without a password is no secret, but an error hides every URL. The remedy in an error is whole all the same.
func TestRemedyForAPlainURL(t *testing.T) {
	t.Parallel()
	sh := newShell(t)
	config := sh.pool.Config().ConnConfig
	file := filepath.Join(t.TempDir(), "pass")
	if err := os.WriteFile(file, []byte("*:*:*:*:"+config.Password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	open := url.URL{
		Scheme: "postgres", User: url.User(config.User), Host: net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port))), Path: config.Database,
		RawQuery: url.Values{"sslmode": {"disable"}, "passfile": {file}}.Encode(),
	}
	sh.flags[1] = open.String()
	remedy := "to fix it, run: drover migrate up --schema " + pgtest.Schema(sh.pool) + "  # with the same --url\n"
	sh.run(t, "stats").ends(t, 1, remedy)
}

// A command line that is printed for copying reaches the same tables, and shows no password.
func TestAgain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ url, schema, want string }{
		{"", "", "drover jobs redrive X"},
		{"", "a b", "drover jobs redrive --schema 'a b' X"},
		{"postgres://u@h:1/db", "s", "drover jobs redrive --url 'postgres://u@h:1/db' --schema s X"},
		{"postgres://u:secret@h/db", "s", "drover jobs redrive --schema s X  # with the same --url"},
		{"postgres://h/db?p%61ssword=secret", "", "drover jobs redrive X  # with the same --url"},
		{"host=h password=secret", "", "drover jobs redrive X  # with the same --url"},
	} {
		if got := (&app{url: c.url, schema: c.schema}).again("jobs redrive", "X"); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

// The help lists --schema except in commands that refuse it.
func TestHelpOfSchema(t *testing.T) {
	t.Parallel()
	sh := &shell{}
	for _, name := range []string{"demo", "bench", "stats"} {
		for _, line := range [][]string{{name, "--help"}, {"help", name}} {
			if o := sh.run(t, line...).ok(t).says(t, "--url"); strings.Contains(o.stdout, "--schema ") != (name == "stats") {
				t.Errorf("%v:\n%s", line, o.stdout)
			}
		}
	}
}

// docs/cli.md names --by in the line of each command that has the flag.
func TestAuditOfTheDocuments(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	spans, word := regexp.MustCompile("`[^`]*`"), regexp.MustCompile(`[a-z-]+`)
	seen := 0
	for _, group := range newRootCommand(&app{}).Commands() {
		for _, cmd := range group.Commands() {
			if cmd.Flags().Lookup("by") == nil {
				continue
			}
			seen++
			documented := false
			for line := range strings.Lines(string(raw)) {
				if !strings.HasPrefix(line, "| `drover "+group.Name()+" ") {
					continue
				}
				for _, span := range spans.FindAllString(line, -1) {
					if slices.Contains(word.FindAllString(span, -1), cmd.Name()) {
						documented = documented || strings.Contains(span, "--by") || strings.Contains(line, "`--by`") || strings.Contains(line, "with the flags of `start`")
					}
				}
			}
			if !documented {
				t.Errorf("docs/cli.md has no --by for %s", cmd.CommandPath())
			}
		}
	}
	if seen < 10 {
		t.Errorf("%d commands take --by", seen)
	}
}

// A row whose last cells are empty is aligned with the others, and no line ends in blanks.
func TestTable(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	if err := table(&b, [][]string{{"ID", "KIND", "DUE", "ERROR"}, {"1", "a long kind", "", ""}, {"2", "b", "in 5s", ""}, {"3", "c", "in 2m", "no"}}); err != nil {
		t.Fatal(err)
	}
	const want = `
ID  KIND         DUE    ERROR
1   a long kind
2   b            in 5s
3   c            in 2m  no
`
	if got := "\n" + b.String(); got != want {
		t.Errorf("got:%s\nwant:%s", got, want)
	}
}

func TestOutput(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ got, want string }{
		{printable("a\x1b[31mb\tc\nd\u202e€"), `a\u001b[31mb c d\u202e€`},
		{shorten("héllo", 5), "héllo"},
		{shorten("héllo!", 5), "héll…"},
		{span(450 * time.Millisecond), "450ms"},
		{span(312 * time.Microsecond), "0.31ms"},
		{span(9400 * time.Microsecond), "9.4ms"},
		{span(0), "0ms"},
		{span(119 * time.Second), "119s"},
		{span(3 * time.Minute), "3m"},
		{span(47 * time.Hour), "47h"},
		{span(480 * time.Hour), "20d"},
		{relative(time.Unix(100, 0), time.Unix(40, 0)), "in 60s"},
		{relative(time.Unix(40, 0), time.Unix(100, 0)), "60s ago"},
		{ago(time.Unix(105, 0), time.Unix(100, 0)), "0s ago"},
		{ago(time.Unix(3700, 0), time.Unix(100, 0)), "in 60m"}, // the server's clock has gone back
		{pg.ShellQuote("it's"), `'it'\''s'`},
		{pg.ShellQuote("host=/tmp"), "host=/tmp"},
		{pg.ShellQuote(""), "''"},
		{conninfo(`a'b\`), `'a\'b\\'`},
		{conninfo(""), "''"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}
