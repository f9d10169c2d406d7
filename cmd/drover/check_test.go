package main

import (
	"testing"

	"github.com/drover-queue/drover"
)

// D-9: a line for each finding, and an exit code for cron and monitors.
func TestCheck(t *testing.T) {
	t.Parallel()
	sh, client := newMigratedShell(t)
	all := []string{"check", "--max-discarded", "0", "--max-new-discarded", "0", "--max-quarantined", "0", "--max-oldest", "15m"}
	sh.run(t, all...).ok(t).says(t, "ok\n")
	enqueue(t, client, charge{Order: 1}, nil)
	discard(t, sh)
	sh.run(t, "check", "--max-discarded", "1", "--max-new-discarded", "1").ok(t)
	sh.run(t, "check", "--max-discarded", "0").ends(t, 1, "1 threshold exceeded").says(t, "warning: 1 job discarded, at most 0\n")
	sh.run(t, "check", "--max-discarded", "0", "--queue", "payments").ends(t, 3, `"payments"`)
	sh.run(t, "check", "--max-discarded", "0", "--queue", "").ends(t, 3, "--queue is empty")
	sh.exec(t, `insert into drover_supervisors (id, lease_ms, queues) values ('a', 30000, '{payments}')`)
	sh.run(t, "check", "--max-discarded", "0", "--queue", "payments").ok(t)
	sh.run(t, "check", "--max-new-discarded", "0", "--within", "1h").ends(t, 1).says(t, "warning: 1 job discarded in the last 60m, at most 0\n")
	for _, sql := range []string{
		`update jobs set discard_reason = 'crashed'`,
		`insert into jobs (kind, scheduled_at) values ('k', now() - interval '20 min')`,
	} {
		if _, err := sh.pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	sh.run(t, all...).ends(t, 2, "4 thresholds exceeded").says(t, "critical: 1 job quarantined, at most 0: drover jobs list --reason crashed\n", "warning: a due job has waited 20m, at most 15m\n")
	sh.run(t, "check", "--max-oldest", "15m", "--queue", "default").ends(t, 1).says(t, "at most 15m, queue default\n")
	type report struct {
		Level  string         `json:"level"`
		Alerts []drover.Alert `json:"alerts"`
	}
	if r := decode[report](t, sh.run(t, append(all, "--json")...).ends(t, 2)); r.Level != "critical" || len(r.Alerts) != 4 {
		t.Errorf("JSON: %+v", r)
	}
	if r := decode[report](t, sh.run(t, "check", "--max-discarded", "1", "--json").ok(t)); r.Level != "ok" || r.Alerts == nil {
		t.Errorf("JSON: %+v", r)
	}
}

// A server's clock that went back makes jobs wait although none of them is late.
func TestCheckOfTheServersClock(t *testing.T) {
	t.Parallel()
	sh, _ := newMigratedShell(t)
	sh.exec(t, `insert into drover_supervisors (id, lease_ms, queues, clock_at) values ('a', 30000, '{default}', now() + interval '59 min')`)
	sh.run(t, "check", "--max-oldest", "15m").ok(t)
	sh.exec(t, `insert into jobs (kind, created_at, scheduled_at) values ('k', now() + interval '50 min', now() + interval '50 min')`)
	sh.run(t, "check", "--max-oldest", "15m").ends(t, 1).says(t, "warning: the server's clock has gone back by ", "at most 15m, and jobs wait because of it: drover health\n")
	sh.run(t, "check", "--max-oldest", "15m", "--queue", "default").ends(t, 1)
	sh.run(t, "check", "--max-oldest", "2h").ok(t)
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
		{closed, []string{"--max-discarded", "1"}, "cannot be reached"},
		{newShell(t), []string{"--max-discarded", "1"}, "not migrated"},
		{closed, nil, "no threshold"},
		{closed, []string{"--max-discarded", "-1"}, "negative"},
		{closed, []string{"--max-discarded", "some"}, "some"},
		{closed, []string{"--max-oldest", "0s"}, "--max-oldest"},
		{closed, []string{"--max-discarded", "1", "--within", "-1s"}, "--within"},
		{closed, []string{"now"}, "now"},
	} {
		c.sh.run(t, append([]string{"check"}, c.args...)...).ends(t, 3, c.text)
	}
}
