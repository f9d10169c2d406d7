package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drover-queue/drover"
)

// E-4, C-1: every flag sets its option.
func TestEnqueue(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	const id = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
	sh.run(t, "enqueue", "charge", "--args", `{"Order": 42}`, "--id", strings.ToLower(id), "--queue", "payments", "--priority", "2", "--delay", "90m", "--max-attempts", "3",
		"--retry", `{"type": "constant", "delay": "1m"}`, "--timeout", "5s", "--expires-at", "2040-01-02T03:04:05Z", "--retry-until", "2041-01-02T03:04:05Z",
		"--tag", "vip", "--tag", "a,b", "--metadata", `{"n": 12345678901234567890}`, "--key", "acme").ok(t).says(t, id+"\n")
	job, err := client.Job(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if string(job.Args) != `{"Order": 42}` || job.Kind != "charge" || job.Queue != "payments" || job.Priority != 2 || job.MaxAttempts != 3 || len(job.Tags) != 2 || job.Tags[1] != "a,b" ||
		job.Key != "acme" || !strings.Contains(string(job.Retry), `"1m"`) || !strings.Contains(string(job.Metadata), "12345678901234567890") {
		t.Errorf("%+v", job)
	}
	if until := time.Until(job.ScheduledAt); until < 89*time.Minute || until > 91*time.Minute {
		t.Errorf("due in %v", until)
	}
	var rest bool
	if err := sh.pool.QueryRow(t.Context(), `select timeout_ms = 5000 and expires_at = '2040-01-02 03:04:05Z' and retry_until = '2041-01-02 03:04:05Z' from jobs`).Scan(&rest); err != nil || !rest {
		t.Errorf("timeout, expires_at or retry_until: %v", err)
	}
	sh.run(t, "enqueue", "charge", "--args", `{"Order": 42}`, "--id", id, "--queue", "payments").ok(t).says(t, id+"  was there already")
	sh.run(t, "enqueue", "refund", "--id", id).ends(t, 1, "different job", "--id "+id)

	sh.input = ` {"Order": 7} `
	made := decode[enqueued](t, sh.run(t, "enqueue", "charge", "--args", "@-", "--scheduled-at", "2040-01-01T00:00:00Z", "--json").ok(t))
	if job, err = client.Job(t.Context(), made.ID); err != nil || string(job.Args) != `{"Order": 7}` || job.State != drover.Scheduled || made.Existing {
		t.Errorf("%+v, %v", job, err)
	}
	file := filepath.Join(t.TempDir(), "args.json")
	if err := os.WriteFile(file, []byte(`{"Order": 8}`), 0o600); err != nil {
		t.Fatal(err)
	}
	made = decode[enqueued](t, sh.run(t, "enqueue", "charge", "--args", "@"+file, "--json").ok(t))
	if job, err = client.Job(t.Context(), made.ID); err != nil || string(job.Args) != `{"Order": 8}` {
		t.Errorf("%+v, %v", job, err)
	}
}

// A wrong flag ends with exit code 2, the error names the flag, and nothing is stored.
func TestEnqueueRefused(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	for line, want := range map[string]string{
		"":                            "what to enqueue?",
		"k --args {":                  "--args is not JSON",
		"k --args @/no/such/file":     "no such file",
		"k --args=":                   "--args is empty",
		"k --queue=":                  "--queue is empty",
		"k --id x":                    `--id: "x" is not a ULID: `,
		"k --priority 10":             "--priority: 10 is not 1 to 9",
		"k --priority 0":              "--priority is empty",
		"k --delay soon":              `--delay: "soon" is not a duration`,
		"k --delay -1s":               "--delay:",
		"k --scheduled-at tomorrow":   `--scheduled-at "tomorrow" is not a time`,
		"k --max-attempts -1":         "--max-attempts:",
		"k --retry {}":                "--retry: type",
		"k --retry x":                 "--retry is not JSON",
		"k --metadata []":             "--metadata: is not a JSON object",
		`k --metadata {"drover:x":1}`: `keys that begin with "drover:"`,
		"k --timeout 1ns":             "--timeout:",
		"k --expires-at 0001-01-01":   "--expires-at",
		"k --tag=":                    "--tag",
		"k --lines -":                 "a KIND with --lines",
		"--lines - --queue q":         "--queue with --lines",
		"--lines /no/such/file":       "no such file",
		"k l":                         "",
		"k --delay 1s --scheduled-at 2040-01-01T00:00:00Z": "--delay: contradicts --scheduled-at",
	} {
		sh.run(t, append([]string{"enqueue"}, strings.Fields(line)...)...).ends(t, 2, want)
	}
	if n, err := client.Count(t.Context(), drover.Filter{}); err != nil || n != 0 {
		t.Errorf("%d jobs, %v", n, err)
	}
}

// E-3, C-1: lines of JSON are stored a thousand in a transaction. The error names the wrong line and the stored lines.
func TestEnqueueLines(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	count := func(want int64) {
		t.Helper()
		if n, err := client.Count(t.Context(), drover.Filter{}); err != nil || n != want {
			t.Errorf("%d jobs, want %d, %v", n, want, err)
		}
	}
	sh.input = `{"kind": "charge", "args": {"Order": 1}, "queue": "payments", "delay": "1h", "retry": {"type": "constant", "delay": "1m"}, "tags": ["vip"], "metadata": {"a": 1}}` +
		"\n\n" + `{"kind": "refund", "scheduled_at": "2040-01-01T00:00:00Z", "concurrency_key": "acme"}`
	if o := sh.run(t, "enqueue", "--lines", "-").ok(t); strings.Count(o.stdout, "\n") != 2 {
		t.Errorf("it printed %q", o.stdout)
	}
	count(2)
	if page, err := client.Jobs(t.Context(), drover.Filter{Queue: "payments", Tags: []string{"vip"}, Args: []byte(`{"Order": 1}`)}, "", 0); err != nil || len(page.Jobs) != 1 || page.Jobs[0].State != drover.Scheduled {
		t.Errorf("%+v, %v", page, err)
	}
	for line, want := range map[string]string{
		`{"kind": "charge", "que": "q"}`:         `unknown field "que"`,
		`{"kind": "charge"} {}`:                  "more than one JSON value",
		`{"kind": "charge"`:                      "not JSON: unexpected",
		`{"kind": "charge", "args": }`:           "not JSON: ",
		`[]`:                                     "a JSON array, not an object",
		`{"kind": ""}`:                           "kind",
		`{"kind": "charge", "priority": 11}`:     "line 3: priority: 11 is not 1 to 9",
		`{"kind": "charge", "priority": "high"}`: "priority: a JSON string, not a whole number",
		`{"kind": "charge", "delay": "1 hour"}`:  "line 3: delay:",
		`{"kind": "charge", "retry": {"x": 1}}`:  "retry.type",
		`{"kind": "charge", "expires_at": "x"}`:  `"x" is not a time such as`,
		`{"kind": "charge", "id": "x"}`:          `line 3: id: "x" is not a ULID: `,

		`{"kind": "charge", "delay": "1h", "scheduled_at": "2030-01-31T12:00:00Z"}`:                        "line 3: delay: contradicts scheduled_at",
		`{"kind": "charge", "scheduled_at": "2030-01-31T12:00:00Z", "expires_at": "2030-01-30T12:00:00Z"}`: "line 3: expires_at: is not after scheduled_at",

		`{"kind": "charge", "uniqueness": {"by": "Order"}}`:     "uniqueness.by: a JSON string, not an array",
		`{"kind": "charge", "uniqueness": {"by": ["Order"]}}`:   `line 3: uniqueness.by: the args have no field "Order"`,
		`{"kind": "charge", "uniqueness": {"key": true}}`:       "line 3: uniqueness.key: the job has no concurrency_key",
		`{"kind": "charge", "uniqueness": {"until": "sarted"}}`: `line 3: uniqueness.until: "sarted" is `,
	} {
		sh.input = strings.Repeat(`{"kind": "charge"}`+"\n", 2) + line + "\n"
		sh.run(t, "enqueue", "--lines", "-").ends(t, 2, "line 3: ", want, "no line is stored")
	}
	count(2)
	sh.input = strings.Repeat(`{"kind": "charge"}`+"\n", 1500) + "{}\n"
	sh.run(t, "enqueue", "--lines", "-").ends(t, 2, "line 1501: ", "lines 1 to 1000 are stored: correct the line, and give the lines from 1001 on")
	count(1002)
}

// If the connection is lost at the commit, it is unknown whether the lines are stored.
func TestEnqueueLinesLostCommit(t *testing.T) {
	t.Parallel()
	sh, _ := newMigratedShell(t)
	if _, err := sh.pool.Exec(t.Context(), `
create function dies() returns trigger language plpgsql as $$ begin perform pg_terminate_backend(pg_backend_pid()); return null; end $$;
create constraint trigger dies after insert on jobs deferrable initially deferred for each row execute function dies()`); err != nil {
		t.Fatal(err)
	}
	sh.input = `{"kind": "k"}` + "\n"
	sh.run(t, "enqueue", "--lines", "-").ends(t, 1, "not known whether lines 1 to 1 are stored")
}

// the command enqueues unique jobs, by flags and by lines.
func TestEnqueueUnique(t *testing.T) {
	t.Parallel()
	sh, _ := newMigratedShell(t)
	unique := func(order, more string) *output {
		return sh.run(t, "enqueue", "charge", "--args", `{"Order": `+order+`, "n": `+more+`}`, "--delay", "1h", "--unique", `{"by": ["Order"], "until": "started", "on_conflict": "debounce", "longest": "10m"}`)
	}
	first := strings.TrimSpace(unique("1", "1").ok(t).stdout)
	unique("1", "2").ok(t).says(t, first+"  debounced")
	if other := strings.TrimSpace(unique("2", "1").ok(t).stdout); other == first {
		t.Errorf("another order is the same job %s", other)
	}
	sh.input = `{"kind": "charge", "args": {"Order": 1, "n": 3}, "uniqueness": {"by": ["Order"], "on_conflict": "replace"}}`
	sh.run(t, "enqueue", "--lines", "-").ok(t).says(t, first+"  replaced")
	for flag, want := range map[string]string{
		`{"bye": ["Order"]}`:          `unknown field "bye"`,
		`{"by": ["Orders"]}`:          "--unique: by: the args have no field",
		`{"until": "soon"}`:           "--unique: until:",
		`{"on_conflict": "debounce"}`: "--unique: on_conflict: debounce needs longest",
		`{"longest": "10m"}`:          "--unique: on_conflict: longest is for debounce",
		`[]`:                          "--unique: ",
		`{"until": ""}`:               "--unique: until: is empty",
		`{"on_conflict": ""}`:         `--unique: on_conflict: "" is not keep, replace or debounce`,
		`{"on_conflict": "Keep"}`:     `--unique: on_conflict: "Keep" is not keep, replace or debounce`,
		`{"by": []}`:                  "--unique: by: is empty; leave it out to compare all the args; any_args compares none of them",
		`{"key": true}`:               "--unique: key: the job has no --key",

		`{"by": ["Order"], "any_args": true}`:           "--unique: by: contradicts any_args",
		`{"on_conflict": "debounce", "longest": "10m"}`: "--unique: on_conflict: debounce needs --delay or --scheduled-at",
	} {
		sh.run(t, "enqueue", "charge", "--args", `{"Order": 1}`, "--unique", flag).ends(t, 2, want)
	}
}
