package main

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/drover-queue/drover"
)

// report is the JSON of check.
type report struct {
	Level  drover.Level       `json:"level"`
	Alerts []alert            `json:"alerts"`
	Pauses []drover.PauseInfo `json:"pauses"`
}

// D-9: check prints a line for each finding, and its exit code is for cron and monitoring.
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
	if r := decode[report](t, sh.run(t, append(all, "--json")...).ends(t, 2)); r.Level != "critical" || len(r.Alerts) != 4 {
		t.Errorf("JSON: %+v", r)
	}
	if r := decode[report](t, sh.run(t, "check", "--discarded", "2", "--json").ok(t)); r.Level != "ok" || r.Alerts == nil {
		t.Errorf("JSON: %+v", r)
	}
}

// D-9: each threshold counts its own jobs. It is the smallest value that is reported.
func TestCheckThresholds(t *testing.T) {
	t.Parallel()
	sh, _ := newMigratedShell(t)
	sh.exec(t, `insert into jobs (kind, queue, state, finalized_at, discard_reason) values
		('k', 'default', 'discarded', now() - interval '1 h', 'panic'), ('k', 'default', 'discarded', now() - interval '1 h', 'panic'),
		('k', 'default', 'discarded', now() - interval '1 h', 'panic'), ('k', 'default', 'discarded', now() - interval '5 min', 'panic'),
		('k', 'payments', 'discarded', now() - interval '10 min', 'crashed')`)
	sh.exec(t, `insert into jobs (kind, state, finalized_at) values ('k', 'completed', now() - interval '1 min')`)
	// A job is late only if it is due and waits. Its queue and lane do not matter.
	sh.exec(t, `insert into jobs (kind, queue, scheduled_at) values ('k', 'default', now() - interval '10 min'), ('k', 'default', now() - interval '1 min'),
		('k', 'default', now() + interval '1 h'), ('k', 'late', now() - interval '20 min')`)
	sh.exec(t, `insert into jobs (kind, scheduled_at, state, errors_total, crashes, priority) values ('k', now() - interval '30 min', 'retryable', 1, 2, 9)`)
	sh.exec(t, `insert into jobs (kind, scheduled_at, state, claimed_by) values ('k', now() - interval '1 d', 'running', 's')`)
	sh.exec(t, `insert into jobs (kind, scheduled_at, state) values ('k', 'infinity', 'parked')`)
	for _, c := range []struct {
		flags string
		want  []alert
	}{
		{"--discarded 5", []alert{{"discarded", "warning", 5, 5}}},
		{"--discarded 6", nil},
		{"--discarded 4 --queue default", []alert{{"discarded", "warning", 4, 4}}},
		{"--discarded 5 --queue default", nil},
		{"--new-discarded 2", []alert{{"new_discarded", "warning", 2, 2}}},
		{"--new-discarded 3", nil},
		{"--new-discarded 5 --within 2h", []alert{{"new_discarded", "warning", 5, 5}}},
		{"--new-discarded 2 --within 7m", nil},
		{"--new-discarded 1 --within 7m --queue payments", nil},
		{"--quarantined 1", []alert{{"quarantined", "critical", 1, 1}}},
		{"--quarantined 2", nil},
		{"--quarantined 1 --queue default", nil},
		{"--oldest 25m", []alert{{"oldest", "warning", 1800, 1500}}},
		{"--oldest 40m", nil},
		{"--oldest 15m --queue late", []alert{{"oldest", "warning", 1200, 900}}},
		{"--oldest 25m --queue late", nil},
		{"--oldest 1ns --queue payments", nil},
		{"--discarded 1 --new-discarded 1 --quarantined 1 --oldest 15m", []alert{
			{"discarded", "warning", 5, 1}, {"new_discarded", "warning", 2, 1}, {"quarantined", "critical", 1, 1}, {"oldest", "warning", 1800, 900},
		}},
	} {
		code := 0
		for _, reached := range c.want {
			code = max(code, map[drover.Level]int{drover.LevelWarning: 1, drover.LevelCritical: 2}[reached.Level])
		}
		got := decode[report](t, sh.run(t, append([]string{"check", "--json"}, strings.Fields(c.flags)...)...).ends(t, code)).Alerts
		for i := range got {
			if got[i].Name == "oldest" {
				got[i].Value = math.Floor(got[i].Value/60) * 60 // the test may be slow
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v; want %+v", c.flags, got, c.want)
		}
	}
}

// If there are more queues than a snapshot lists, the oldest job may be hidden, so check fails. It has an answer for a queue
// that is listed.
func TestCheckOfManyQueues(t *testing.T) {
	t.Parallel()
	sh, _ := newMigratedShell(t)
	sh.exec(t, `insert into jobs (kind, queue) select 'k', 'q' || lpad(n::text, 4, '0') from generate_series(1, 1001) n`)
	sh.run(t, "check", "--oldest", "15m").ends(t, 3, "more than 1000 queues")
	sh.run(t, "check", "--oldest", "15m", "--queue", "q1001").ends(t, 3, "more than 1000 queues")
	sh.run(t, "check", "--oldest", "15m", "--queue", "q0001").ok(t)
}

// If the server's clock went back, jobs wait although none of them is late.
func TestCheckOfTheServersClock(t *testing.T) {
	t.Parallel()
	sh, _ := newMigratedShell(t)
	sh.exec(t, `insert into jobs (kind, state, scheduled_at) select 'k', 'scheduled', now() + interval '10 min' from generate_series(1, 100)`)
	sh.run(t, "check", "--oldest", "15m").ok(t)
	sh.exec(t, `insert into jobs (kind, created_at, scheduled_at) values ('k', now() + interval '50 min', now() + interval '50 min')`)
	sh.run(t, "check", "--oldest", "15m").ends(t, 1).says(t, "warning: the server's clock has gone back by ", "threshold 15m, and jobs wait because of it: drover health\n")
	sh.run(t, "check", "--oldest", "15m", "--queue", "default").ends(t, 1)
	sh.exec(t, `insert into drover_supervisors (id, lease_ms, queues) values ('b', 30000, '{other}')`)
	sh.run(t, "check", "--oldest", "15m", "--queue", "other").ok(t)
	sh.run(t, "check", "--oldest", "2h").ok(t)
	sh.run(t, "health", "--strict").ends(t, 1).says(t, "created, claimed or redriven in the future, up to ", "from now: 1", "update ")
}

// An error that keeps check from its result is neither a warning nor critical.
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
