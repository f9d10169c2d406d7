package main

import (
	"testing"

	"github.com/drover-queue/drover"
)

// D-9: a line for each finding, and an exit code for cron and monitors.
func TestCheck(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	all := []string{"check", "--discarded", "1", "--new-discarded", "1", "--quarantined", "1", "--oldest", "15m"}
	sh.run(t, all...).ok(t).says(t, "ok\n")
	enqueue(t, client, charge{Order: 1}, nil)
	discard(t, sh)
	sh.run(t, "check", "--discarded", "2", "--new-discarded", "2").ok(t)
	sh.run(t, "check", "--discarded", "1").ends(t, 1, "1 threshold reached").says(t, "warning: 1 job discarded, threshold 1\n")
	sh.run(t, "check", "--discarded", "1", "--queue", "payments").ends(t, 3, `"payments"`)
	sh.run(t, "check", "--discarded", "1", "--queue", "").ends(t, 3, "--queue is empty")
	sh.exec(t, `insert into drover_supervisors (id, lease_ms, queues) values ('a', 30000, '{payments}')`)
	sh.run(t, "check", "--discarded", "1", "--queue", "payments").ok(t)
	sh.run(t, "check", "--new-discarded", "1", "--within", "1h").ends(t, 1).says(t, "warning: 1 job discarded in the last 60m, threshold 1\n")
	for _, sql := range []string{
		`update jobs set discard_reason = 'crashed'`,
		`insert into jobs (kind, scheduled_at) values ('k', now() - interval '20 min')`,
	} {
		if _, err := sh.pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	sh.run(t, all...).ends(t, 2, "4 thresholds reached").says(t, "critical: 1 job quarantined, threshold 1: drover jobs list --reason crashed\n", "warning: a due job has waited 20m, threshold 15m\n")
	sh.run(t, "check", "--oldest", "15m", "--queue", "default").ends(t, 1).says(t, "threshold 15m, queue default\n")
	type report struct {
		Level  string         `json:"level"`
		Alerts []drover.Alert `json:"alerts"`
	}
	if r := decode[report](t, sh.run(t, append(all, "--json")...).ends(t, 2)); r.Level != "critical" || len(r.Alerts) != 4 {
		t.Errorf("JSON: %+v", r)
	}
	if r := decode[report](t, sh.run(t, "check", "--discarded", "2", "--json").ok(t)); r.Level != "ok" || r.Alerts == nil {
		t.Errorf("JSON: %+v", r)
	}
}

// A server's clock that went back makes jobs wait although none of them is late.
func TestCheckOfTheServersClock(t *testing.T) {
	t.Parallel()
	sh, _ := newMigratedShell(t)
	sh.exec(t, `insert into drover_supervisors (id, lease_ms, queues, clock_at) values ('a', 30000, '{default}', now() + interval '59 min')`)
	sh.run(t, "check", "--oldest", "15m").ok(t)
	sh.exec(t, `insert into jobs (kind, created_at, scheduled_at) values ('k', now() + interval '50 min', now() + interval '50 min')`)
	sh.run(t, "check", "--oldest", "15m").ends(t, 1).says(t, "warning: the server's clock has gone back by ", "threshold 15m, and jobs wait because of it: drover health\n")
	sh.run(t, "check", "--oldest", "15m", "--queue", "default").ends(t, 1)
	sh.run(t, "check", "--oldest", "2h").ok(t)
	sh.run(t, "health", "--strict").ends(t, 1).says(t, "jobs from before that wait until then: 1", "update ")
}

// What keeps it from looking is neither a warning nor critical.
func TestCheckThatCannotLook(t *testing.T) {
	t.Parallel()
	closed := &shell{flags: []string{"--url", "postgres://drover@127.0.0.1:1/app"}}
	for _, c := range []struct {
		sh   *shell
		args []string
		text string
	}{
		{closed, []string{"--discarded", "2"}, "cannot be reached"},
		{newShell(t), []string{"--discarded", "2"}, "not migrated"},
		{closed, nil, "no threshold"},
		{closed, []string{"--discarded", "0"}, "at least 1"},
		{closed, []string{"--discarded", "some"}, "some"},
		{closed, []string{"--oldest", "0s"}, "--oldest"},
		{closed, []string{"--discarded", "2", "--within", "-1s"}, "--within"},
		{closed, []string{"now"}, "now"},
	} {
		c.sh.run(t, append([]string{"check"}, c.args...)...).ends(t, 3, c.text)
	}
}
