package main

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pgdev"
	"github.com/drover-queue/drover/internal/tier"
)

// stored has the ids of jobs, failures and redrives, so that each command has something to work on.
type stored struct {
	dead, waits, print, redrive string
	done                        string
	cancelled                   [3]string
}

func store(t *testing.T, sh *shell, client *drover.Client) (s stored) {
	t.Helper()
	s.dead = enqueue(t, client, charge{Order: 1}, nil)
	discard(t, sh)
	s.print = decode[[]drover.FailureGroup](t, sh.run(t, "failures", "list", "--json").ok(t))[0].Fingerprint
	old := enqueue(t, client, charge{Order: 2}, nil)
	sh.run(t, "jobs", "cancel", old).ok(t)
	sh.run(t, "archive", "add", "--id", old).ok(t)
	for i := range s.cancelled {
		s.cancelled[i] = enqueue(t, client, charge{Order: 10 + i}, nil)
	}
	s.done = enqueue(t, client, charge{Order: 4}, nil)
	if _, err := sh.pool.Exec(t.Context(), `update jobs set state = 'completed', finalized_at = now() where id = $1`, s.done); err != nil {
		t.Fatal(err)
	}
	s.waits = enqueue(t, client, charge{Order: 3}, nil)
	sh.run(t, "jobs", "discard", s.waits).ok(t)
	sh.run(t, "periodic", "set", "nightly", "--kind", "report", "--schedule", "@daily").ok(t)
	s.redrive = decode[drover.Redrive](t, sh.run(t, "redrive", "start", s.waits, "--json").ok(t)).ID
	return s
}

// reads are the commands that change nothing in the database, in lines that find something.
func (s stored) reads() [][]string {
	return [][]string{
		{"jobs", "list"},
		{"jobs", "list", "--json"},
		{"jobs", "list", "--queue", "none"},
		{"jobs", "list", "--state", "discarded", "--limit", "1"},
		{"jobs", "show", s.dead},
		{"jobs", "show", s.waits},
		{"jobs", "show", s.dead, "--json"},
		{"explain", s.dead},
		{"explain", s.dead, "--json"},
		{"jobs", "count"},
		{"jobs", "count", "--json"},
		{"jobs", "summary"},
		{"archive", "export"},
		{"redrive", "list"},
		{"redrive", "show", s.redrive},
		{"redrive", "watch", s.redrive, "--json"},
		{"redrive", "start", "--kind", "charge", "--dry-run"},
		{"failures", "list"},
		{"failures", "list", "--kind", "none"},
		{"failures", "show", s.print},
		{"stats"},
		{"stats", "--json"},
		{"check", "--discarded", "100", "--oldest", "1h"},
		{"health"},
		{"queues", "list"},
		{"queues", "list", "--json"},
		{"budgets"},
		{"periodic", "list"},
		{"periodic", "list", "--json"},
		{"periodic", "show", "nightly"},
		{"periodic", "preview", "@daily"},
		{"migrate", "status"},
	}
}

// others are the commands that need no database.
func others() [][]string {
	return [][]string{
		{"help"}, {"jobs", "--help"}, {"jobs"}, {"--version"}, {"completion", "bash"}, {"completion", "fish"}, {"completion", "powershell"}, {"completion", "zsh"},
	}
}

// changes are the commands that change something. In this order each of them has something to change.
func (s stored) changes() [][]string {
	return [][]string{
		{"redrive", "pause", s.redrive},
		{"redrive", "resume", s.redrive},
		{"redrive", "abort", s.redrive},
		{"queues", "pause", "payments"},
		{"queues", "pause", "--kind", "charge", "--until", "1h", "--json"},
		{"queues", "resume", "payments"},
		{"queues", "resume", "--kind", "charge"},
		{"failures", "resolve", s.print},
		{"failures", "ignore", s.print},
		{"failures", "reopen", s.print},
		{"failures", "policy", s.print, "discard"},
		{"failures", "redrive", s.print},
		{"enqueue", "charge"},
		{"jobs", "edit", s.cancelled[0], "--to-priority", "3"},
		{"jobs", "rerun", s.done},
		append([]string{"jobs", "cancel"}, s.cancelled[:]...),
		{"jobs", "redrive", s.cancelled[0], s.cancelled[1]},
		{"jobs", "discard", s.cancelled[0], s.cancelled[1]},
		{"jobs", "delete", s.cancelled[0], "--yes"},
		{"archive", "add", "--id", s.cancelled[2]},
		{"archive", "restore", s.cancelled[2]},
		{"archive", "purge", "--all", "--yes"},
		{"redrive", "start", "--id", s.cancelled[1]},
		{"jobs", "cancel", "--all", "--yes", "--json"},
		{"periodic", "set", "weekly", "--kind", "report", "--schedule", "@weekly"},
		{"periodic", "pause", "nightly"},
		{"periodic", "resume", "nightly"},
		{"periodic", "run", "nightly"},
		{"periodic", "delete", "nightly"},
		{"migrate", "down", "--yes"},
		{"migrate", "up"},
	}
}

// Every command is in one of the lists, a new one too.
func TestEveryCommandIsTried(t *testing.T) {
	t.Parallel()
	lines := slices.Concat(stored{}.reads(), stored{}.changes(), others())
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
		path := strings.Fields(cmd.CommandPath())[1:]
		if cmd.HasSubCommands() || cmd.Hidden || slices.Contains([]string{"bench", "demo", "ui"}, path[0]) { // bench and demo make their own databases, and ui serves until it is stopped
			return
		}
		if !slices.ContainsFunc(lines, func(line []string) bool { return len(line) >= len(path) && slices.Equal(line[:len(path)], path) }) {
			t.Errorf("drover %s is in no list", strings.Join(path, " "))
		}
	}
	root := newRootCommand(&app{})
	root.InitDefaultCompletionCmd()
	walk(root)
}

// On a standby, commands that only read work. Commands that change something fail, and the error names the standby.
func TestCommandsOnAStandby(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	server, err := pgdev.Start(t.Context(), pgdev.Options{Ways: []pgdev.Way{pgdev.Local, pgdev.Download}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	pool, err := pgxpool.New(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	sh := &shell{pool: pool, flags: []string{"--url", server.URL()}}
	sh.run(t, "migrate", "up").ok(t)
	client, err := drover.New(pool, drover.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s := store(t, sh, client)
	want := map[string]string{} // the output of each command on the primary
	for _, line := range s.reads() {
		if line[0] == "jobs" || line[0] == "migrate" {
			want[strings.Join(line, " ")] = sh.run(t, line...).ok(t).stdout
		}
	}
	standby, err := server.Standby(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = standby.Close() })
	sh.flags = []string{"--url", standby.URL()}
	plain := func(text string) string {
		return strings.Join(strings.Fields(regexp.MustCompile(`[0-9]+(ms|s) ago`).ReplaceAllString(text, "")), " ")
	}
	for _, line := range s.reads() {
		o := sh.run(t, line...).ok(t)
		if want := want[o.line]; want != "" && !strings.Contains(want, "psql") && plain(o.stdout) != plain(want) {
			t.Errorf("drover %s: %s\nand on the primary: %s", o.line, o.stdout, want)
		}
	}
	sh.run(t, "health").ok(t).says(t, "not seen: tables: this server is a standby")
	sh.run(t, "health", "--strict").ends(t, 1, "the health is not ok, but critical") // jobs are due, and no supervisor claims
	for _, line := range append(s.changes(), []string{"bench", "--only", "idle"}, []string{"demo", "--jobs", "3"}) {
		sh.run(t, line...).ends(t, 1, "this server is a standby", "primary")
	}
}

// runOn runs a command line whose standard output is a file.
func (sh *shell) runOn(t *testing.T, stdout *os.File, args []string) *output {
	t.Helper()
	var stderr bytes.Buffer
	a := &app{stdin: strings.NewReader(""), stdout: stdout, stderr: &stderr, getenv: func(string) string { return "" }}
	code := a.run(t.Context(), append(slices.Clone(args), sh.flags...))
	return &output{line: strings.Join(args, " "), stderr: stderr.String(), code: code}
}

// On a full disk, every command fails. A command that changes something prints its report on standard error instead.
func TestOutputToAFullDisk(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	sh, client := newMigratedShell(t)
	s := store(t, sh, client)
	full := func() *os.File {
		file, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil { // this system has no /dev/full; a file that is not open for writing fails too
			file, err = os.Open(os.DevNull)
		}
		if err != nil {
			t.Fatal(err)
		}
		return file
	}
	for _, line := range slices.Concat(s.reads(), others()) {
		code := 1
		if line[0] == "check" {
			code = exitUnknown
		}
		if o := sh.runOn(t, full(), line).ends(t, code, "output cannot be written"); len(o.stderr) > 200 {
			t.Errorf("drover %s: %s", o.line, o.stderr)
		}
	}
	for _, line := range s.changes() {
		o := sh.runOn(t, full(), line).ends(t, 1, "output cannot be written", "on standard error")
		if said, _, _ := strings.Cut(o.stderr, "drover: standard output"); strings.TrimSpace(said) == "" {
			t.Errorf("drover %s says nothing of what it did: %s", o.line, o.stderr)
		}
		for _, id := range line[2:] {
			if line[0] == "jobs" && line[1] != "delete" && len(id) == 26 && !strings.Contains(o.stderr, id+"  ") {
				t.Errorf("drover %s: no %s in %s", o.line, id, o.stderr)
			}
		}
	}
}

// A closed pipe, as with | head, is no error. A command that changes something goes on to its end.
func TestOutputToAClosedPipe(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	sh, client := newMigratedShell(t)
	s := store(t, sh, client)
	closed := func() *os.File {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		return w
	}
	for _, line := range slices.Concat(s.reads(), others()) {
		if o := sh.runOn(t, closed(), line).ok(t); strings.Contains(o.stderr, "pipe") {
			t.Errorf("drover %s: %s", o.line, o.stderr)
		}
	}
	for _, line := range s.changes() {
		sh.runOn(t, closed(), line).ok(t)
	}

	// In the real process, a SIGPIPE must not end it before the last id.
	bin := filepath.Join(t.TempDir(), "drover")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	args := []string{"jobs", "cancel"}
	for n := range 3 {
		args = append(args, enqueue(t, client, charge{Order: n}, nil))
	}
	cmd := exec.CommandContext(t.Context(), bin, append(args, sh.flags...)...)
	cmd.Stdout = closed()
	if out, err := cmd.StderrPipe(); err != nil {
		t.Fatal(err)
	} else if err := cmd.Start(); err != nil {
		t.Fatal(err)
	} else if said, _ := io.ReadAll(out); cmd.Wait() != nil || len(said) > 0 {
		t.Errorf("%v: %s", cmd.ProcessState, said)
	}
	sh.run(t, "jobs", "count", "--state", "cancelled").ok(t).says(t, "3")
}

// Each drover command line in the documents is valid: its command and all its flags exist.
func TestCommandsOfTheDocuments(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	word := regexp.MustCompile(`'[^']*'|"[^"]*"|[^\s'"]+`)
	lines := 0
	for _, file := range append(files, "../../README.md") {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		fenced := false
		for i, line := range strings.Split(string(raw), "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				fenced = !fenced
			}
			rest, found := strings.CutPrefix(strings.TrimPrefix(strings.TrimSpace(line), "$ "), "drover ")
			if !found || !fenced {
				continue
			}
			var words []string
			for _, w := range word.FindAllString(rest, -1) {
				if slices.Contains([]string{"|", ">", "#", "&&", ";"}, w) {
					break
				}
				words = append(words, strings.Trim(w, `'"`))
			}
			lines++
			cmd, left, err := newRootCommand(&app{}).Find(words)
			if err == nil {
				err = cmd.ParseFlags(left)
			}
			if err == nil && cmd.HasSubCommands() {
				err = cmd.Args(cmd, cmd.Flags().Args())
			}
			if err != nil {
				t.Errorf("%s:%d: %s: %v", file, i+1, line, err)
			}
		}
	}
	if lines < 20 {
		t.Errorf("%d lines", lines)
	}
}

// Each command that a text, a page, an alert or a comment names exists, such as "drover archive restore".
func TestCommandsOfTheTexts(t *testing.T) {
	t.Parallel()
	named := regexp.MustCompile(`\bdrover ([a-z]+) ([a-z][a-z-]*)`)
	found := 0
	tree := os.DirFS("../..")
	err := fs.WalkDir(tree, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || strings.HasSuffix(path, "_test.go") ||
			!slices.Contains([]string{".go", ".html", ".md", ".sql", ".yml", ".json"}, filepath.Ext(path)) {
			return err
		}
		raw, err := fs.ReadFile(tree, path)
		for _, m := range named.FindAllSubmatch(raw, -1) {
			root := newRootCommand(&app{})
			group, _, err := root.Find([]string{string(m[1])})
			if err != nil || group == root || !group.HasSubCommands() {
				continue
			}
			found++
			if cmd, _, err := group.Find([]string{string(m[2])}); err != nil || cmd == group {
				t.Errorf("%s: there is no command %q", path, m[0])
			}
		}
		return err
	})
	if err != nil || found < 100 {
		t.Errorf("%d commands: %v", found, err)
	}
}
