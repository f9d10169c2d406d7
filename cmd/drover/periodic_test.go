package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/drover-queue/drover"
)

func TestPeriodic(t *testing.T) {
	t.Parallel()
	sh, _ := newMigratedShell(t)
	sh.run(t, "periodic", "list").ok(t).says(t, "no schedules")
	if got := decode[[]drover.PeriodicJob](t, sh.run(t, "periodic", "list", "--json").ok(t)); got == nil || len(got) != 0 {
		t.Errorf("%+v, want an empty list", got)
	}
	file := filepath.Join(t.TempDir(), "args.json")
	if err := os.WriteFile(file, []byte(`{"n": 7}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	set := []string{
		"periodic", "set", "nightly", "--kind", "report", "--schedule", "0 2 * * *", "--zone", "Europe/Berlin", "--args", "@" + file, "--queue", "reports",
		"--priority", "3", "--max-attempts", "4", "--timeout", "1m", "--tag", "a", "--tag", "b", "--key", "k", "--delay", "1s", "--jitter", "1m", "--catch-up", "once", "--overlap", "skip", "--run-at-start=false", "--metadata", `{"mine": 1}`, "--retry", `{"type": "constant", "delay": "30s"}`, "--by", "ann", "--why", "so",
	}
	sh.exec(t, `insert into drover_kinds (kind, max_attempts) values ('reports', 1); insert into queues (name) values ('reports')`)
	o := sh.run(t, set...).ok(t)
	o.says(t, "0 2 * * * (Europe/Berlin)", "next runs", "by ann: so", "1m0s", "active")
	if want := "warning: no supervisor has ever served kind:report; there is kind:reports\n"; o.stderr != want {
		t.Errorf("stderr = %q, want %q", o.stderr, want)
	}
	j := decode[drover.PeriodicJob](t, sh.run(t, append(set, "--json")...).ok(t))
	if len(j.Next) != 10 || j.Queue != "reports" || string(j.Args) != `{"n":7}` || j.CatchUp != "once" || j.Overlap != "skip" || j.UpdatedBy != "ann" ||
		string(j.Options) != `{"tags":["a","b"],"delay":"1000000 microseconds","queue":"reports","retry":{"type":"constant","delay":"30s","jitter":"none"},"timeout":"60000000 microseconds","metadata":{"mine":1},"priority":3,"max_attempts":4,"concurrency_key":"k"}` {
		t.Errorf("%+v %s", j, j.Options)
	}
	sh.run(t, "periodic", "list").ok(t).says(t, "nightly", "Europe/Berlin", "active", "in ")
	sh.run(t, "periodic", "run", "nightly", "--by", "ann").ok(t).says(t, "nightly  enqueued  01")
	sh.run(t, "jobs", "count", "--periodic", "nightly").ok(t).says(t, "1\n")
	sh.run(t, "periodic", "run", "nightly").ends(t, 1, "has not ended, and its overlap is skip")
	sh.run(t, "periodic", "pause", "nightly").ok(t).says(t, "nightly  paused")
	sh.run(t, "periodic", "show", "nightly").ok(t).says(t, "no next run until it is resumed\n", "paused")
	sh.exec(t, `select drover_periodic_declare('gone', 'b1', '[{"name": "old", "kind": "k", "schedule": "@daily", "zone": "UTC", "args": {}, "options": {}, "jitter_ms": 0, "catch_up": "skip", "overlap": "allow", "run_at_start": false}]')`)
	sh.run(t, "periodic", "show", "old").ok(t).says(t, "undeclared", "no next run: no running process declares it any more\n")
	sh.run(t, "periodic", "pause", "nightly", "--until", "48h").ok(t)
	sh.run(t, "periodic", "show", "nightly").ok(t).says(t, "next runs", "paused until")
	sh.run(t, "periodic", "resume", "nightly").ok(t).says(t, "nightly  resumed")
	if got := decode[changedPeriodic](t, sh.run(t, "periodic", "delete", "nightly", "--json").ok(t)); got != (changedPeriodic{Name: "nightly", Result: "deleted"}) {
		t.Errorf("%+v", got)
	}
	sh.run(t, "periodic", "delete", "nightly").ends(t, 1, "not found")
	sh.run(t, "periodic", "show", "nightly").ends(t, 1, "not found")
	sh.run(t, "periodic", "set", "now", "--kind", "k", "--schedule", "@yearly", "--run-at-start").ok(t).says(t, "run at start  yes", "next runs")
	// A tick makes no job while another one like it waits. Metadata stay as they are, however large a number is.
	sh.run(t, "periodic", "set", "once", "--kind", "k", "--schedule", "@yearly", "--args", `{"Order": 7, "n": 1}`, "--unique", `{"by": ["Order"], "until": "started"}`, "--metadata", `{"id": 12345678901234567890}`).ok(t)
	sh.run(t, "enqueue", "k", "--args", `{"Order": 7, "n": 2}`, "--unique", `{"by": ["Order"], "until": "started"}`).ok(t)
	sh.run(t, "periodic", "run", "once").ends(t, 1, "has the unique key of the jobs of schedule")
	sh.exec(t, `delete from jobs`)
	sh.run(t, "periodic", "run", "once").ok(t)
	sh.run(t, "jobs", "list", "--json").ok(t).says(t, `12345678901234567890`, `"unique_key"`)
	sh.run(t, "periodic", "preview", "*/20 0 12 * * *").ok(t).says(t, "T12:00:40Z")
	sh.run(t, "periodic", "preview", "@hourly").ok(t).says(t, "next runs", ":00:00Z  in ")
	if got := decode[[]string](t, sh.run(t, "periodic", "preview", "0 0 31 2 *", "--json").ok(t)); len(got) != 0 {
		t.Errorf("%v", got)
	}
	for _, c := range []struct {
		want string
		args []string
	}{
		{"--schedule: minute '61' is not 0 to 59", []string{"set", "a", "--kind", "k", "--schedule", "61 * * * *"}},
		{"--schedule: '0 0 31 2 *' never comes", []string{"set", "a", "--kind", "k", "--schedule", "0 0 31 2 *"}},
		{"--schedule: is missing", []string{"set", "a", "--kind", "k"}},
		{"--zone: 'Mars/Base' is not a time zone", []string{"set", "a", "--kind", "k", "--schedule", "@daily", "--zone", "Mars/Base"}},
		{"--kind: empty", []string{"set", "a", "--schedule", "@daily"}},
		{"--args is not JSON", []string{"set", "a", "--kind", "k", "--schedule", "@daily", "--args", "{"}},
		{"--args: ", []string{"set", "a", "--kind", "k", "--schedule", "@daily", "--args", "@/no/such/file"}},
		{"--retry: type: ", []string{"set", "a", "--kind", "k", "--schedule", "@daily", "--retry", `{"type": "sometimes"}`}},
		{"--retry: base: is not a setting of this type", []string{"set", "a", "--kind", "k", "--schedule", "@daily", "--retry", `{"type": "constant", "base": "1s"}`}},
		{"--retry: step: \"long\" is not a duration", []string{"set", "a", "--kind", "k", "--schedule", "@daily", "--retry", `{"type": "linear", "step": "long"}`}},
		{"--retry: delay: ", []string{"set", "a", "--kind", "k", "--schedule", "@daily", "--retry", `{"type": "constant", "delay": "-1s"}`}},
		{"--metadata: is not a JSON object", []string{"set", "a", "--kind", "k", "--schedule", "@daily", "--metadata", "[]"}},
		{"--metadata: is not a JSON object", []string{"set", "a", "--kind", "k", "--schedule", "@daily", "--metadata", "null"}},
		{"--unique: ", []string{"set", "a", "--kind", "k", "--schedule", "@daily", "--unique", `{"until": 1}`}},
		{"--unique: until: ", []string{"set", "a", "--kind", "k", "--schedule", "@daily", "--unique", `{"until": "sarted"}`}},
		{"--unique: key: the job has no --key", []string{"set", "a", "--kind", "k", "--schedule", "@daily", "--unique", `{"key": true}`}},
		{"--unique: on_conflict: is not keep: a tick changes no job", []string{"set", "a", "--kind", "k", "--schedule", "@daily", "--unique", `{"on_conflict": "replace"}`}},
		{"--unique: is empty", []string{"set", "a", "--kind", "k", "--schedule", "@daily", "--unique", ""}},
		{"--catch-up: ", []string{"set", "a", "--kind", "k", "--schedule", "@daily", "--catch-up", "maybe"}},
		{"--overlap: ", []string{"set", "a", "--kind", "k", "--schedule", "@daily", "--overlap", "maybe"}},
		{"--queue: is empty", []string{"set", "a", "--kind", "k", "--schedule", "@daily", "--queue", ""}},
		{"--zone: is empty", []string{"set", "a", "--kind", "k", "--schedule", "@daily", "--zone", ""}},
		{"--jitter: ", []string{"set", "a", "--kind", "k", "--schedule", "@daily", "--jitter", "-1s"}},
		{"NAME: empty", []string{"set", "", "--kind", "k", "--schedule", "@daily"}},
		{"nor how long from now", []string{"pause", "a", "--until", "noon"}},
		{"--until", []string{"pause", "a", "--until", ""}},
		{"--by: is empty", []string{"run", "a", "--by", ""}},
		{"usage: drover periodic run NAME", []string{"run"}},
		{"--schedule: ", []string{"preview", "sometimes"}},
	} {
		sh.run(t, append([]string{"periodic"}, c.args...)...).ends(t, 2, c.want)
	}
}
