package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drover-queue/drover"
	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

// Every option of a job has a flag and a key of a line, and both store the same.
func TestEnqueueOptions(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	const id = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
	list := decode[enqueuedList](t, sh.run(t, "enqueue", "report", "--args", `{"n": 7}`, "--id", id, "--queue", "reports", "--priority", "3", "--at", "2150-01-31",
		"--max-attempts", "4", "--retry", `{"type": "exponential", "base": "2s", "multiplier": 3, "max": "10m", "jitter": "none"}`, "--timeout", "1m",
		"--expires", "2150-02-28T12:00:00Z", "--retry-until", "2150-03-01", "--tag", "a", "--tag", "b", "--metadata", `{"big": 12345678901234567890}`, "--key", "k",
		"--unique-by", "n", "--unique-with", "queue,key", "--unique-until", "started", "--on-conflict", "replace", "--json").ok(t))
	if len(list.Jobs) != 1 || list.Jobs[0] != (enqueuedJob{ID: id, Result: "enqueued"}) || list.Enqueued != 1 {
		t.Errorf("%+v", list)
	}
	line := `{"kind": "report", "args": {"n": 8}, "id": "01ARZ3NDEKTSV4RRFFQ69G5FAW", "queue": "reports", "priority": 3, "scheduled_at": "2150-01-31T00:00:00Z", "max_attempts": 4,
		"retry": {"type": "exponential", "base": "2s", "multiplier": 3, "max": "10m", "jitter": "none"}, "timeout": "60s", "expires_at": "2150-02-28T12:00:00Z",
		"retry_until": "2150-03-01", "tags": ["a", "b"], "metadata": {"big": 12345678901234567890}, "concurrency_key": "k",
		"uniqueness": {"by": ["n"], "queue": true, "key": true, "until": "started", "on_conflict": "replace"}, "delay": null}`
	sh.input = strings.ReplaceAll(line, "\n", " ") + "\n\n"
	sh.run(t, "enqueue", "--lines", "-").ok(t).says(t, "01ARZ3NDEKTSV4RRFFQ69G5FAW  enqueued")
	const stored = `select concat_ws(' ', kind, args, queue, priority, scheduled_at at time zone 'utc', max_attempts, retry, timeout_ms, expires_at at time zone 'utc',
		retry_until at time zone 'utc', tags, metadata, concurrency_key, unique_key, unique_scope) from jobs where id = '%s'`
	flags := one(t, sh, fmt.Sprintf(stored, id))
	want := `report {"n": 7} reports 3 2150-01-31 00:00:00 4 {"max": "10m", "base": "2s", "type": "exponential", "jitter": "none", "multiplier": 3} 60000 2150-02-28 12:00:00 ` +
		`2150-03-01 00:00:00 {a,b} {"big": 12345678901234567890} k "report" by {"n": 7} queue "reports" key "k" started`
	if flags != want {
		t.Errorf("flags: %s\nwant   %s", flags, want)
	}
	if lines := one(t, sh, fmt.Sprintf(stored, "01ARZ3NDEKTSV4RRFFQ69G5FAW")); lines != strings.ReplaceAll(want, `"n": 7`, `"n": 8`) {
		t.Errorf("line: %s", lines)
	}
	sh.input = ""
	for retry, kept := range map[string]string{
		`{"type": "linear", "step": "1m"}`:               `{"step": "1m", "type": "linear", "jitter": "none"}`,
		`{"type": "constant", "delay": "7d"}`:            `{"type": "constant", "delay": "168h", "jitter": "none"}`,
		`{"type": "custom", "name": "s", "max": "1h"}`:   `{"max": "1h", "name": "s", "type": "custom"}`,
		`{"type": "exponential", "jitter": "abs:100ms"}`: `{"max": "1h", "base": "15s", "type": "exponential", "jitter": "abs:100ms", "multiplier": 2}`,
	} {
		list := decode[enqueuedList](t, sh.run(t, "enqueue", "report", "--retry", retry, "--delay", "1h30m", "--timeout", "none", "--json").ok(t))
		job, err := client.Job(t.Context(), list.Jobs[0].ID)
		if err != nil || string(job.Retry) != kept || string(job.Args) != "{}" || job.State != drover.Scheduled {
			t.Errorf("%s: %+v, %v", retry, job, err)
		}
	}
}

// What a unique job meets is told job by job, and in the sum.
func TestEnqueueUnique(t *testing.T) {
	t.Parallel()
	sh, _ := newMigratedShell(t)
	first := strings.Fields(sh.run(t, "enqueue", "reindex", "--args", `{"document": 7}`, "--unique", "--delay", "1h").ok(t).stdout)[0]
	sh.run(t, "enqueue", "reindex", "--args", `{"document": 7}`, "--unique").ok(t).says(t, first+"  existed already\n")
	sh.run(t, "enqueue", "reindex", "--args", `{"document": 7}`, "--unique", "--on-conflict", "debounce", "--longest", "2h", "--delay", "30m").ok(t).says(t, first+"  existed already, and has the new time\n")
	sh.run(t, "enqueue", "reindex", "--args", `{"document": 7}`, "--on-conflict", "replace").ok(t).says(t, first+"  existed already, and has the new args and options\n")
	sh.run(t, "enqueue", "reindex", "--args", `{"document": 7}`).ok(t).says(t, "  enqueued")
	sh.run(t, "enqueue", "reindex", "--args", `{"document": 8}`, "--unique-any-args", "--unique-until", "1h").ok(t).says(t, "  enqueued")
	file := filepath.Join(t.TempDir(), "jobs")
	text := strings.Repeat(`{"kind": "reindex", "args": {"document": 9}, "uniqueness": {}}`+"\n", 3)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	o := sh.run(t, "enqueue", "--lines", file).ends(t, 0, "1 job enqueued, 2 existed already\n")
	if n := strings.Count(o.stdout, "\n"); n != 3 {
		t.Errorf("%d lines: %s", n, o.stdout)
	}
	list := decode[enqueuedList](t, sh.run(t, "enqueue", "--lines", file, "--json").ok(t))
	if list.Enqueued != 0 || list.Existing != 3 || len(list.Jobs) != 3 || list.Jobs[2].Line != 3 || list.Jobs[2].Result != "existing" || len(list.Warnings) != 0 {
		t.Errorf("%+v", list)
	}
}

// A mistake in a line is told with its number, and nothing of the file is written, however far behind the line is.
func TestEnqueueWrongLines(t *testing.T) {
	t.Parallel()
	sh, _ := newMigratedShell(t)
	good := strings.Repeat(`{"kind": "charge"}`+"\n", batchLines+5)
	file := filepath.Join(t.TempDir(), "jobs")
	put := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	count := func() string { return strings.TrimSpace(sh.run(t, "jobs", "count").ok(t).stdout) }
	wrong := good + `{"kind": "charge", "priorty": 1}` + "\n\n" + `{"kind": "charge", "priority": 11}` + "\n"
	put(wrong)
	sh.run(t, "enqueue", "--lines", file).ends(t, 2, `line 1006: unknown key "priorty": did you mean priority?`, "line 1008: priority: 11 is not 1 to 9", "nothing was enqueued")
	if n := count(); n != "0" {
		t.Errorf("%s jobs", n)
	}
	// Standard input is read once: the batch before the mistake is stored, the one with the mistake is not.
	sh.input = wrong
	sh.run(t, "enqueue", "--lines", "-", "--dry-run").ends(t, 2, "line 1006", "nothing was enqueued")
	o := sh.run(t, "enqueue", "--lines", "-").ends(t, 2, "line 1006", "the lines up to 1000 were enqueued, and no later one: go on with line 1001", "1000 jobs enqueued")
	if n := count(); n != "1000" || strings.Count(o.stdout, "  enqueued\n") != 1000 {
		t.Errorf("%s jobs", n)
	}
	list := decode[enqueuedList](t, sh.run(t, "enqueue", "--lines", "-", "--json").ends(t, 2))
	if list.Enqueued != 1000 || len(list.Jobs) != 1000 || list.Jobs[999].Line != 1000 {
		t.Errorf("%+v", list.enqueuedSum)
	}
	sh.input = ""
	put(good)
	sh.run(t, "enqueue", "--lines", file, "--dry-run").ok(t).says(t, "1005 jobs valid, none enqueued")
	sh.run(t, "enqueue", "--lines", file).ends(t, 0, "1005 jobs enqueued")
	if n := count(); n != "3005" {
		t.Errorf("%s jobs", n)
	}
	for line, want := range map[string]string{
		`[]`:                              "line 1: is not a JSON object",
		`{"kind": "`:                      "line 1: is not a JSON object: ",
		`{"args": 1}`:                     "line 1: has no kind",
		`{"kind": 1}`:                     "line 1: kind: 1 is not a text",
		`{"kind": "a", "Queue": "b"}`:     `unknown key "Queue": did you mean queue?`,
		`{"kind": "a", "colour": 1}`:      `unknown key "colour": the keys are kind, args, id, `,
		`{"kind": "a", "delay": "5 min"}`: `delay: "5 min" is not a duration above 0 such as 90s`,
		`{"kind": "a", "delay": "5m", "scheduled_at": "2150-01-01"}`:                       "delay: contradicts the time when it is due",
		`{"kind": "a", "expires_at": "noon"}`:                                              `expires_at: "noon" is not a time such as `,
		`{"kind": "a", "max_attempts": 0}`:                                                 "max_attempts: 0 is not at least 1",
		`{"kind": "a", "tags": ["", "b"]}`:                                                 "tags[0]: is empty",
		`{"kind": "a", "id": "x"}`:                                                         `id: "x" is not a ULID`,
		`{"kind": "a", "metadata": {"drover:x": 1}}`:                                       `metadata: key "drover:x"`,
		`{"kind": "a", "retry": {"type": "never"}}`:                                        `retry.type: "never" is none of`,
		`{"kind": "a", "retry": {"type": "linear", "base": "1s"}}`:                         `unknown key "retry.base"`,
		`{"kind": "a", "retry": {"type": "constant", "delay": "0s"}}`:                      `retry.delay: "0s" is not a duration above 0`,
		`{"kind": "a", "retry": {"type": "constant", "jitter": "some"}}`:                   `retry.Jitter: `,
		`{"kind": "a", "uniqueness": {"by": ["n"]}}`:                                       `uniqueness.by: the args have no field "n"`,
		`{"kind": "a", "uniqueness": {"untl": "ended"}}`:                                   `unknown key "uniqueness.untl": did you mean until?`,
		`{"kind": "a", "uniqueness": {"on_conflict": "debounce"}}`:                         `uniqueness.longest: is missing`,
		`{"kind": "a", "uniqueness": {"on_conflict": "drop"}}`:                             `uniqueness.on_conflict: "drop" is not keep, replace or debounce`,
		`{"kind": "a", "uniqueness": {"until": "later"}}`:                                  `uniqueness.until: "later" is not among its words`,
		`{"kind": "a", "uniqueness": {"key": true, "longest": "1s"}}`:                      `uniqueness.longest: is for on_conflict debounce only`,
		`{"kind": "a", "args": "` + strings.Repeat("x", mostArgsBytes) + `"}`:              `args: `,
		`{"kind": "a"}` + strings.Repeat("\n"+`{"kind": ""}`, maxFaults+1):                 "there may be more such lines",
		`{"kind": "a", "args": {"n": 1}, "uniqueness": {"by": ["n"], "any_args": true}}`:   "uniqueness.by: contradicts any_args",
		`{"kind": "a", "uniqueness": {"on_conflict": "debounce", "longest": "1h"}}`:        "uniqueness.on_conflict: debounce needs a delay or a time",
		`{"kind": "a", "args": null, "priority": "high", "retry": [], "uniqueness": true}`: `priority: "high" is not a whole number; retry: [] is not a JSON object; uniqueness: true is not a JSON object`,
	} {
		put(line)
		sh.run(t, "enqueue", "--lines", file).ends(t, 2, want, "nothing was enqueued")
	}
	put(`{"kind": "a", "args": "` + strings.Repeat("x", maxLine) + `"}`)
	sh.run(t, "enqueue", "--lines", file).ends(t, 1, "line 1: is longer than 32 MiB; nothing was enqueued")
}

func TestEnqueueWrongFlags(t *testing.T) {
	t.Parallel()
	sh, _ := newMigratedShell(t)
	for _, c := range []struct {
		want string
		args []string
	}{
		{"what to enqueue?", nil},
		{"usage: drover enqueue KIND", []string{"a", "b"}},
		{"KIND: is empty", []string{""}},
		{"--args: is no JSON", []string{"a", "--args", "{"}},
		{"--queue: is empty", []string{"a", "--queue", ""}},
		{"--priority: 0 is not at least 1", []string{"a", "--priority", "0"}},
		{"--priority: 10 is not 1 to 9", []string{"a", "--priority", "10"}},
		{`--at: "noon" is not a time such as`, []string{"a", "--at", "noon"}},
		{"--delay: ", []string{"a", "--delay", "-1s"}},
		{"--delay: contradicts", []string{"a", "--delay", "1s", "--at", "1h"}},
		{"--expires: is not after", []string{"a", "--at", "2h", "--expires", "1h"}},
		{"--retry: is no JSON", []string{"a", "--retry", "linear"}},
		{"--retry.type: ", []string{"a", "--retry", "{}"}},
		{"--tag[1]: is empty", []string{"a", "--tag", "b", "--tag", ""}},
		{"--metadata: [1] is not a JSON object", []string{"a", "--metadata", "[1]"}},
		{`--unique-by: the args have no field "n"`, []string{"a", "--unique-by", "n"}},
		{"--unique-with: the job has no Key", []string{"a", "--unique-with", "key"}},
		{`--unique-with "args" is not queue or key`, []string{"a", "--unique-with", "args"}},
		{"--unique=false contradicts", []string{"a", "--unique=false", "--unique-by", "n"}},
		{"--longest: is missing", []string{"a", "--on-conflict", "debounce"}},
		{"leave out \"a\"", []string{"a", "--lines", "-"}},
		{"leave out --queue", []string{"--lines", "-", "--queue", "q"}},
		{"--lines is empty", []string{"--lines", ""}},
		{"--lines: open /no/such/file", []string{"--lines", "/no/such/file"}},
		{"unknown flag: --by", []string{"a", "--by", "ann"}},
	} {
		if o := sh.run(t, append([]string{"enqueue"}, c.args...)...).ends(t, 2, c.want); o.stdout != "" {
			t.Errorf("%q: %s", c.args, o.stdout)
		}
	}
	sh.run(t, "enqueue", "a", "--dry-run").ok(t).says(t, "1 job valid, none enqueued")
	sh.run(t, "jobs", "count").ok(t).says(t, "0\n")
	sh.input = `{"big": 1}`
	sh.run(t, "enqueue", "a", "--args", "@-").ok(t)
	if args := one(t, sh, `select args from jobs`); args != `{"big": 1}` {
		t.Errorf("args %s", args)
	}
}

// Jobs that nobody will run are an easy slip: a queue or a kind with a typing mistake.
func TestEnqueueWarns(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	sh.run(t, "enqueue", "charge", "--delay", "1h").ends(t, 0, "warning: no live supervisor serves queue default: the jobs wait until one does\n")
	sup, err := client.NewSupervisor(drover.SupervisorConfig{
		Queues:  []drover.Queue{{}},
		Workers: []drover.Worker{drover.Handle(func(context.Context, *drover.Job, charge) error { return nil }, drover.WorkerOpts{})},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- sup.Run(ctx) }()
	for tick := time.NewTicker(10 * time.Millisecond); one(t, sh, `select count(*)::text from drover_sleepers`) == "0"; {
		<-tick.C // until it has registered
	}
	if o := sh.run(t, "enqueue", "charge", "--delay", "1h").ok(t); o.stderr != "" {
		t.Errorf("%s", o.stderr)
	}
	sh.run(t, "enqueue", "chrage").ends(t, 0, "warning: no live supervisor of queue default has a worker for kind chrage: the jobs wait until one has\n")
	list := decode[enqueuedList](t, sh.run(t, "enqueue", "charge", "--queue", "x", "--json").ends(t, 0, "queue x"))
	if len(list.Warnings) != 1 || list.Warnings[0] != "no live supervisor serves queue x: the jobs wait until one does" {
		t.Errorf("%q", list.Warnings)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	sh.run(t, "enqueue", "charge").ends(t, 0, "warning: no live supervisor serves queue default")
}

// A producer's role has no right on any table, and is told nothing of supervisors.
func TestEnqueueAsProducer(t *testing.T) {
	t.Parallel()
	sh, _ := newMigratedShell(t)
	schema := pgtest.Schema(sh.pool)
	role := schema + "_producer"
	for _, sql := range []string{
		`create role ` + role, `grant usage on schema ` + schema + ` to ` + role,
		`grant execute on function drover_enqueue, drover_enqueue_many, drover_enqueue_unique, drover_wake to ` + role,
	} {
		if _, err := sh.pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	defer func() {
		if _, err := sh.pool.Exec(context.WithoutCancel(t.Context()), `drop owned by `+role+`; drop role `+role); err != nil {
			t.Error(err)
		}
	}()
	at := pgtest.URL(t)
	between := "?"
	if strings.Contains(at, "?") {
		between = "&"
	}
	producer := &shell{flags: []string{"--url", at + between + "role=" + role, "--schema", schema}}
	producer.run(t, "enqueue", "charge").ok(t).says(t, "  enqueued")
	producer.run(t, "enqueue", "charge", "--unique").ok(t).says(t, "  enqueued")
	producer.input = strings.Repeat(`{"kind": "charge"}`+"\n", 3)
	if o := producer.run(t, "enqueue", "--lines", "-").ok(t); o.stderr != "3 jobs enqueued\n" {
		t.Errorf("%q", o.stderr)
	}
	producer.run(t, "jobs", "list").ends(t, 1, "permission denied")
}

// An id makes an enqueue repeatable. What the database refuses is told with its lines.
func TestEnqueueAgain(t *testing.T) {
	t.Parallel()
	sh, _ := newMigratedShell(t)
	const id = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
	sh.run(t, "enqueue", "charge", "--id", strings.ToLower(id)).ok(t).says(t, id+"  enqueued")
	sh.run(t, "enqueue", "charge", "--id", id).ok(t).says(t, id+"  existed already")
	sh.run(t, "enqueue", "other", "--id", id).ends(t, 1, id)
	if _, err := sh.pool.Exec(t.Context(), `alter table jobs add constraint no_x check (kind <> 'x')`); err != nil {
		t.Fatal(err)
	}
	sh.input = `{"kind": "charge"}` + "\n" + `{"kind": "x"}` + "\n"
	sh.run(t, "enqueue", "--lines", "-").ends(t, 1, "lines 1 to 2: ", "no_x", "nothing was enqueued")
}

// After an error that leaves open whether a job was stored, the command says how to repeat it without storing it twice.
func TestEnqueueLosesItsConnection(t *testing.T) {
	t.Parallel()
	sh, _ := newMigratedShell(t)
	if _, err := sh.pool.Exec(t.Context(), `
create function cut() returns trigger language plpgsql as 'begin perform pg_terminate_backend(pg_backend_pid()); return null; end';
create trigger cut after insert on jobs for each row execute function cut()`); err != nil {
		t.Fatal(err)
	}
	o := sh.run(t, "enqueue", "charge").ends(t, 1, "The job may be stored nevertheless", "add --id ")
	_, id, _ := strings.Cut(strings.TrimSpace(o.stderr), "--id ")
	sh.input = `{"kind": "charge"}` + "\n"
	sh.run(t, "enqueue", "--lines", "-").ends(t, 1, "lines 1 to 1: ", "they may be stored, all or none", "before them: nothing was enqueued")
	if _, err := sh.pool.Exec(t.Context(), `drop trigger cut on jobs`); err != nil {
		t.Fatal(err)
	}
	sh.run(t, "enqueue", "charge", "--id", id).ok(t).says(t, id+"  enqueued")
	sh.run(t, "enqueue", "charge", "--id", id).ok(t).says(t, id+"  existed already")
}

// Ctrl-C while standard input has no more lines for now: the command ends, and says how far it got.
func TestEnqueueInterrupted(t *testing.T) {
	t.Parallel()
	sh, _ := newMigratedShell(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	lines, writer := io.Pipe()
	defer writer.Close() //nolint:errcheck // a pipe's end has nothing to fail with
	go func() {
		_, _ = io.WriteString(writer, strings.Repeat(`{"kind": "charge"}`+"\n", 7)) // returns once they are read
		cancel()
	}()
	var stdout, stderr bytes.Buffer
	a := &app{stdin: lines, stdout: &stdout, stderr: &stderr, getenv: func(string) string { return "" }}
	if code := a.run(ctx, append([]string{"enqueue", "--lines", "-"}, sh.flags...)); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if want := "nothing was enqueued\n0 jobs enqueued\ndrover: interrupted\n"; stderr.String() != want || stdout.String() != "" {
		t.Errorf("stdout %q, stderr %q, want %q", stdout.String(), stderr.String(), want)
	}
	sh.run(t, "jobs", "count").ok(t).says(t, "0\n")
}
