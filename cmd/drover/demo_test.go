//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-queue/drover/internal/demo"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
	"github.com/drover-queue/drover/internal/tier"
)

// C-1: drover demo runs as a user runs it: as a program that starts processes.
func TestDemo(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	bin := filepath.Join(t.TempDir(), "drover")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	url := pgtest.URL(t)

	t.Run("loses nothing", func(t *testing.T) {
		t.Parallel()
		d := startDemo(t, bin, url, "--jobs", "60")
		d.wantExit(t, 0)
		r := d.result(t)
		if r.Enqueued != 60 || r.Completed+r.Discarded != 60 || r.Discarded != 8 || r.Lost != 0 || r.Retries == 0 || r.Seconds <= 0 || r.Interrupted {
			t.Errorf("result %+v; want 60 enqueued, the 8 of the endpoint that is gone discarded, the rest completed", r)
		}
		if !strings.HasPrefix(r.Postgres, "DATABASE_URL ") {
			t.Errorf("postgres %q, want the database of DATABASE_URL", r.Postgres)
		}
		d.wantStory(t, `Discarded, unrecoverable: 8 of webhook\.deliver`, `410 Gone: this endpoint was removed`,
			`Discarded, attempts_exhausted: \d of refund\.deliver`, `panic: assignment to entry in nil map.*next in`,
			`internal/demo\.label at `, `select \* from discarded_summary;`, `Redriven: the \d jobs`, `Lost: 0\.`)
		d.wantNothingLeft(t, url)
	})

	t.Run("loses nothing when a worker is killed", func(t *testing.T) {
		t.Parallel()
		d := startDemo(t, bin, url, "--jobs", "60", "--crash")
		d.wantExit(t, 0)
		if r := d.result(t); r.Enqueued != 60 || r.Completed != 52 || r.Discarded != 8 || r.Lost != 0 {
			t.Errorf("result %+v; want 52 completed, 8 discarded, none lost", r)
		}
		d.wantStory(t, `killed with SIGKILL, [1-9]\d* of its jobs were claimed`, `signal: killed\); starting another`, `crash +[1-9]`)
		d.wantNothingLeft(t, url)
	})

	t.Run("does not call lost what someone cancels", func(t *testing.T) {
		t.Parallel()
		d := startDemo(t, bin, url, "--jobs", "60")
		d.waitFor(t, `delivered [1-9]`)
		cancel := fmt.Sprintf(`select %[1]s.drover_cancel(id) from %[1]s.jobs where id = (
			select id from %[1]s.jobs where state = 'retryable' and args->>'customer' = 'customer-dune' order by scheduled_at desc limit 1)`, d.schema(t))
		for end := time.Now().Add(30 * time.Second); query(t, url, cancel) == "" && time.Now().Before(end); { // until a job runs
			<-time.After(10 * time.Millisecond)
		}
		d.wantExit(t, 0)
		if r := d.result(t); r.Enqueued != 60 || r.Cancelled != 1 || r.Completed+r.Discarded != 59 || r.Lost != 0 {
			t.Errorf("result %+v; want one cancelled, none lost", r)
		}
		d.wantStory(t, `1 cancelled by someone`)
		d.wantNothingLeft(t, url)
	})

	t.Run("an outage, unpaced and paced", func(t *testing.T) { // D-5
		t.Parallel()
		d := startDemo(t, bin, url, "--story", "outage", "--jobs", "400")
		d.wantExit(t, 0)
		r := decodeLine[demo.OutageResult](t, d)
		if u := r.Unpaced; u.Jobs != 200 || u.FellOver == 0 || u.MostAtOnce <= r.PerKey || u.PeakPerSecond <= r.Rate || u.Failures < 200 {
			t.Errorf("unpaced %+v; want it to knock the endpoint over", u)
		}
		p := r.Paced
		if p.Jobs != r.Jobs-(r.Unpaced.Requests-r.Unpaced.Failures) || p.Requests < p.Jobs || p.FellOver != 0 || p.MostAtOnce == 0 || p.MostAtOnce > 5 || p.PeakPerSecond > r.Rate+r.PerKey {
			t.Errorf("paced %+v; want the rest back within the limits", p)
		}
		if r.Jobs != 400 || r.Lost != 0 || r.Dead != 0 || r.Twice != 0 || r.Interrupted || r.Seconds <= p.Seconds {
			t.Errorf("result %+v; want all delivered once", r)
		}
		d.wantStory(t, `400 +attempts_exhausted +[0-9a-f]{16} +customer-kestrel answered 500`, `attempts_exhausted .* answered 503`,
			`set state = 'available', scheduled_at = clock_timestamp\(\)`, `Rate: 100, PerKey: 5`,
			`fell over.*\n.*\n +240 \|`, `0 failed, it never fell over`, `recovered in one go`, `Lost: 0\.`)
		d.wantNothingLeft(t, url)
	})

	t.Run("Ctrl-C in an outage", func(t *testing.T) {
		t.Parallel()
		d := startDemo(t, bin, url, "--story", "outage", "--jobs", "400") // enough jobs that the demo does not end before the interrupt
		d.waitFor(t, `redrive canary`)
		d.interrupt(t)
		d.wantExit(t, 1)
		if r := decodeLine[demo.OutageResult](t, d); !r.Interrupted || r.Lost != 0 || r.Unpaced.FellOver == 0 {
			t.Errorf("result %+v; want an interrupted one, nothing lost", r)
		}
		d.wantStory(t, `Interrupted after .*, [1-9]\d* dead\. Lost: 0`, `the demo was interrupted`)
		d.wantNothingLeft(t, url)
	})

	t.Run("Ctrl-C in the middle", func(t *testing.T) {
		t.Parallel()
		d := startDemo(t, bin, url)
		d.waitFor(t, `delivered [1-9]`)
		d.interrupt(t)
		d.wantExit(t, 1)
		r := d.result(t)
		if !r.Interrupted || r.Lost != 0 || r.Held == 0 || r.Completed+r.Discarded+r.Held != r.Enqueued {
			t.Errorf("result %+v; want an interrupted one: what has not ended is held, nothing is lost", r)
		}
		d.wantStory(t, `the demo was interrupted`)
		d.wantNothingLeft(t, url)
	})

	t.Run("Ctrl-C before anything is enqueued", func(t *testing.T) {
		t.Parallel()
		d := startDemo(t, bin, url, "--jobs", "60")
		d.waitFor(t, `^postgres: `)
		d.interrupt(t)
		d.wantExit(t, 1)
		d.wantNothingLeft(t, url)
	})

	t.Run("killed itself", func(t *testing.T) {
		t.Parallel()
		d := startDemo(t, bin, url)
		d.waitFor(t, `delivered [1-9]`)
		if err := d.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		d.ended(t) // reads until all processes have closed their standard error, so none is left
		if left := d.filesLeft(t); len(left) > 0 {
			t.Errorf("left in the temporary directory: %v", left)
		}
		left := d.schema(t)
		d = startDemo(t, bin, url, "--jobs", "1")
		d.wantExit(t, 0)
		d.wantStory(t, `left a schema; remove it with: drop schema `+left+` cascade;`)
		d.wantNothingLeft(t, url)
		query(t, url, "drop schema "+left+" cascade") // the killed demo could not do it
	})

	t.Run("keeps the schema on a server of the user", func(t *testing.T) {
		t.Parallel()
		d := startDemo(t, bin, "", "--jobs", "12", "--keep", "--url", url)
		d.wantExit(t, 0)
		d.wantStory(t, `PGOPTIONS=-csearch_path=drover_demo_\w+ psql "<the --url>"`)
		schema := d.schema(t)
		if got := query(t, url, "select count(*)::text from "+schema+".jobs where finalized_at is not null"); got != "12" {
			t.Errorf("%s jobs in the schema that was kept, want 12", got)
		}
		query(t, url, "drop schema "+schema+" cascade")
	})

	t.Run("keeps a server of its own until Ctrl-C", func(t *testing.T) {
		t.Parallel()
		d := startDemo(t, bin, "", "--jobs", "12", "--keep")
		d.waitFor(t, `stays until Ctrl-C`)
		own := regexp.MustCompile(`PGOPTIONS=-csearch_path=(\S+) psql "([^"]+)"`).FindStringSubmatch(d.waitFor(t, `psql "`))
		if own == nil {
			t.Fatal("no psql line")
		}
		d.waitFor(t, regexp.QuoteMeta(`drover ui --url "`+own[2]+`" --schema `+own[1]))
		if got := query(t, own[2], "select count(*)::text from "+own[1]+".events where deliveries = 1"); got == "0" {
			t.Error("no deliveries in the database that was kept")
		}
		d.interrupt(t)
		d.wantExit(t, 0)
		if conn, err := pgx.Connect(t.Context(), own[2]); err == nil {
			_ = conn.Close(t.Context()) // the test has already failed
			t.Error("the server is still there")
		}
	})

	t.Run("for people", func(t *testing.T) {
		t.Parallel()
		cmd := exec.CommandContext(t.Context(), bin, "demo", "--jobs", "3")
		cmd.Env = append(os.Environ(), "DATABASE_URL="+url)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		story, err := cmd.Output()
		if err != nil || !strings.HasSuffix(string(story), "Lost: 0.\n") || errs.Len() > 0 {
			t.Errorf("%v, the story\n%s\nand on standard error\n%s\nwant a story that ends well, and nothing else", err, story, errs.String())
		}
	})

	t.Run("a file with broken lines", func(t *testing.T) {
		t.Parallel()
		file := filepath.Join(t.TempDir(), "mine.jsonl")
		const lines = `{"customer":"me","event":"greeting","payload":{"text":"hello 🌍 ½"}}
{"customer":"me"
{"customer":"you & co","event":"greeting","url_path":"/a b/ü?x","payload":{"n":12345678901234567890}}
{"event":"greeting","payload":{}}
`
		if err := os.WriteFile(file, []byte(lines), 0o600); err != nil {
			t.Fatal(err)
		}
		d := startDemo(t, bin, url, "--file", file)
		d.wantExit(t, 1)
		d.wantStory(t, `2 lines of .*mine\.jsonl cannot be delivered; --skip-bad`, `line 2: not JSON: unexpected end`, `line 4: customer is missing`)
		if d.stdout.Len() > 0 || strings.Contains(d.story(), "postgres: ") {
			t.Error("something was begun")
		}
		d = startDemo(t, bin, url, "--file", file, "--skip-bad")
		d.wantExit(t, 0)
		if r := d.result(t); r.Enqueued != 2 || r.Completed != 2 || r.Lost != 0 {
			t.Errorf("result %+v, want both good lines delivered", r)
		}
		d.wantNothingLeft(t, url)
	})
}

func TestDemoFlags(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"demo", "--jobs", "-1"}, 2, "--jobs is -1"},
		{[]string{"demo", "--schema", "x"}, 2, "a schema of its own"},
		{[]string{"demo", "--story", "war"}, 2, "only outage"},
		{[]string{"demo", "--story", "outage", "--crash"}, 2, "do not go with it"},
		{[]string{"demo", "more"}, 2, "unknown command"},
		{[]string{"demo", "--file", "/no/such/file"}, 1, "/no/such/file"},
		{[]string{"demo", "worker"}, 1, "started by drover demo"},
	} {
		var out, errs bytes.Buffer
		a := &app{stdin: strings.NewReader(""), stdout: &out, stderr: &errs, getenv: func(string) string { return "" }}
		if code := a.run(t.Context(), test.args); code != test.code || !strings.Contains(errs.String(), test.want) {
			t.Errorf("%v: exit %d, %s; want %d, %s", test.args, code, errs.String(), test.code, test.want)
		}
	}
}

// demoRun is a running demo. A goroutine reads the standard error of all its processes.
type demoRun struct {
	cmd    *exec.Cmd
	tmp    string
	stdout bytes.Buffer
	lines  chan string // closed when every process has closed its standard error

	mu   sync.Mutex
	said []string
}

// startDemo runs the demo with --json, which puts the story on standard error.
func startDemo(t *testing.T, bin, url string, args ...string) *demoRun {
	t.Helper()
	d := &demoRun{tmp: t.TempDir(), lines: make(chan string, 10_000)}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	d.cmd = exec.CommandContext(ctx, bin, append([]string{"demo", "--json"}, args...)...)
	d.cmd.Env = append(os.Environ(), "DATABASE_URL="+url, "TMPDIR="+d.tmp)
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	d.cmd.Stdout = &d.stdout
	story, err := d.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go d.read(story)
	t.Cleanup(func() {
		_ = d.cmd.Process.Kill() // an error means that it has ended
		if t.Failed() {
			t.Logf("drover demo %v:\n%s\n%s", args, d.story(), d.stdout.String())
		}
	})
	return d
}

func (d *demoRun) read(story io.Reader) {
	defer close(d.lines)
	in := bufio.NewScanner(story)
	for in.Scan() {
		d.mu.Lock()
		d.said = append(d.said, in.Text())
		d.mu.Unlock()
		d.lines <- in.Text()
	}
}

func (d *demoRun) story() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.said, "\n")
}

// waitFor returns the next line that matches.
func (d *demoRun) waitFor(t *testing.T, pattern string) string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	for line := range d.lines {
		if re.MatchString(line) {
			return line
		}
	}
	t.Fatalf("it ended without a line like %q", pattern)
	return ""
}

// interrupt sends SIGINT to all processes of the group, like Ctrl-C in a terminal.
func (d *demoRun) interrupt(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(-d.cmd.Process.Pid, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
}

// ended waits until all processes have ended, and returns the exit code.
func (d *demoRun) ended(t *testing.T) int {
	t.Helper()
	for range d.lines { // the reader keeps the lines
	}
	_ = d.cmd.Wait() // the exit code is checked below
	return d.cmd.ProcessState.ExitCode()
}

func (d *demoRun) wantExit(t *testing.T, want int) {
	t.Helper()
	if got := d.ended(t); got != want {
		t.Fatalf("exit code %d, want %d", got, want)
	}
}

func (d *demoRun) wantStory(t *testing.T, patterns ...string) {
	t.Helper()
	story := d.story()
	for _, pattern := range patterns {
		if !regexp.MustCompile(pattern).MatchString(story) {
			t.Errorf("the story lacks %q", pattern)
		}
	}
}

func (d *demoRun) result(t *testing.T) demo.Result {
	t.Helper()
	return decodeLine[demo.Result](t, d)
}

// decodeLine parses the figures: one line, and nothing else is on standard output.
func decodeLine[T any](t *testing.T, d *demoRun) (r T) {
	t.Helper()
	in := json.NewDecoder(&d.stdout)
	in.DisallowUnknownFields()
	if strings.Count(d.stdout.String(), "\n") != 1 {
		t.Fatalf("standard output is %q, want one line", d.stdout.String())
	}
	if err := in.Decode(&r); err != nil {
		t.Fatal(err)
	}
	return r
}

func (d *demoRun) schema(t *testing.T) string {
	t.Helper()
	name := regexp.MustCompile(`, schema (drover_demo_\w+)`).FindStringSubmatch(d.story())
	if name == nil {
		t.Fatal("the story names no schema")
	}
	return name[1]
}

func (d *demoRun) filesLeft(t *testing.T) []string {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(d.tmp, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return left
}

// wantNothingLeft looks for files and for the schema. Processes need no look, because ended has waited for all of them.
func (d *demoRun) wantNothingLeft(t *testing.T, url string) {
	t.Helper()
	if left := d.filesLeft(t); len(left) > 0 {
		t.Errorf("left in the temporary directory: %v", left)
	}
	name := regexp.MustCompile(`, schema (drover_demo_\w+)`).FindStringSubmatch(d.story())
	if name == nil {
		return // the demo was stopped before it had a schema
	}
	if got := query(t, url, "select count(*)::text from pg_namespace where nspname = $1", name[1]); got != "0" {
		t.Errorf("the schema %s is still there", name[1])
	}
}

// query runs one statement and returns its first value, or "" if there is none.
func query(t *testing.T, url, sql string, args ...any) (value string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx) //nolint:errcheck // nothing is lost with this connection
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	if rows.Next() {
		if err := rows.Scan(&value); err != nil {
			t.Fatal(err)
		}
	}
	rows.Close()
	if err := rows.Err(); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}
